"""The choice of cuts: a beam search over the operations in dependency order, then an exact simulation of the finalists.

Every operation is offered every grid whose parts are as many as the machines (and one part, and fewer where its
extents allow no more). A beam keeps the best partial choices by estimated time; ties go to fewer bytes moved and
fewer tasks. The finalists are simulated. When none fits the machines' memory, each machine's part is cut again, into
waves along one dimension or into blocks along all of them, so that less is alive at once. What a plan certainly needs
is known from its cuts, so most plans that do not fit are never simulated. If none fits, the least peak of the plans
that were considered is named with the operation: planning with that budget succeeds.

For a handful of operations the beam holds every combination, so the search is exhaustive there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import cast

from tileweave.errors import PlanError
from tileweave.graph import FileTarget, Graph, Operation, Partition, Sink, Source, Tensor, join_sinks, resolve, verify
from tileweave.graph.operators import operator_of
from tileweave.graph.shard import input_region, output_partition
from tileweave.planner.cost import Blocks, Traffic, machine_runs
from tileweave.planner.machines import Machines, size_text
from tileweave.planner.plan import Plan, Stage, Step, placement
from tileweave.planner.simulate import EFFICIENCY, Simulation, simulate_within, with_costs
from tileweave.planner.tasks import block_partition
from tileweave.space import Box, even_cuts

__all__ = ["Describe", "candidates", "make_plan", "search"]

BEAM = 12
"""Partial choices kept after each operation."""
FINALISTS = 4
"""Choices that are simulated exactly."""
MOST_WAVES = 4096
"""The most waves per machine that the search tries."""
MOST_WORK = 30_000
"""The most work of a plan that is simulated: tasks, and blocks that they read."""
FIRST_WORK = 150_000
"""The same for the waves of the first choice, by which data stream that are far larger than memory."""
NAMED_WORK = 10_000
"""A refusal names the least memory among plans of up to this work (or of the least of all)."""
MOST_GRIDS = 24
"""The most grids that are offered for one operation."""


@dataclass(frozen=True, slots=True)
class Waves:
    """How each machine's part of an operation is cut again, so that less is alive at once.

    Args:
        count: parts; a power of two.
        square: along every dimension in turn, not along one.
    """

    count: int = 1
    square: bool = False


WHOLE = Waves()
Grid = tuple[int, ...]
Describe = Callable[[Operation, Stage], str]
Atoms = Callable[[Sink], tuple[int, ...] | None]


def candidates(operation: Operation, count: int) -> list[Grid]:
    """The grids of an operation's index that are offered for so many machines; the whole comes first."""
    index = operation.index
    whole = (1,) * index.rank
    if count == 1 or operation.signature is None or index.size <= 1:
        return [whole]
    fixed = _uncut(operation)
    for parts in range(count, 1, -1):
        grids = [
            grid
            for grid in _factorizations(parts, index.rank)
            if all(g <= n for g, n in zip(grid, index.shape, strict=True)) and all(grid[k] == 1 for k in fixed)
        ]
        if grids:
            grids.sort(key=lambda grid: sum(g > 1 for g in grid))  # of many, those that cut fewest dimensions
            return [whole, *grids[:MOST_GRIDS]]
    return [whole]


_CHOOSING = frozenset(("max", "min", "argmax", "argmin"))
"""Monoids that choose among values and so never round."""


def _uncut(operation: Operation) -> set[int]:
    """Dimensions that are never cut: reductions whose partial results are rounded to a narrow type, or not alike."""
    signature = operation.signature
    if signature is None:
        return set()
    narrow = any(kind.dtype.kind not in "biu" and kind.dtype.itemsize < 4 for _, kind in operation.outputs)
    narrow = narrow and not _CHOOSING.issuperset(signature.monoids.values())
    unlike = len({projection for _, projection in signature.outputs}) > 1
    return set(signature.monoids) if narrow or unlike else set()


@lru_cache(maxsize=1024)
def _factorizations(count: int, rank: int) -> tuple[Grid, ...]:
    if rank == 0:
        return ((),) if count == 1 else ()
    out = []
    for first in range(count, 0, -1):
        if count % first == 0:
            out += [(first, *rest) for rest in _factorizations(count // first, rank - 1)]
    return tuple(out)


# ---------------------------------------------------------------------------------------------------------------------
# a choice of grids -> steps


def steps_of(
    graph: Graph, grids: Mapping[Operation, Grid], machines: int, describe: Describe, atoms: Atoms, waves: Waves = WHOLE
) -> tuple[Step, ...]:
    """The steps of a choice: operations with their cuts, combinations of cut reductions, stores."""
    out: list[Step] = []
    made: dict[Operation, Step] = {}
    nodes = graph.nodes()
    read = {node for node in nodes if isinstance(node, Tensor)}
    for node in nodes:
        if isinstance(node, Operation):
            cuts = _cut(node, grids[node], waves)
            names = tuple(name for name, _ in node.outputs)
            kept = tuple(name for name in names if Tensor(node, name) in read) or names[:1]
            partial = node.signature is not None and any(cuts.grid[k] > 1 for k in node.signature.monoids)
            if partial:
                out.append(Step(node, "partial", cuts, describe(node, "partial"), outputs=names))
                joined = _combine_cuts(node, cuts, machines)
                made[node] = Step(node, "combine", joined, describe(node, "combine"), outputs=kept)
            else:
                made[node] = Step(node, "block", cuts, describe(node, "block"), outputs=kept)
            out.append(made[node])
        elif isinstance(node, Sink):
            out.append(Step(node, "store", _store_cuts(node, made, atoms(node), machines * waves.count), "write"))
    return tuple(out)


def _cut(operation: Operation, grid: Grid, waves: Waves = WHOLE) -> Partition:
    """The cuts of a grid, with each machine's part cut again into waves."""
    index = operation.index
    parts = [max(1, min(p, n)) for p, n in zip(grid, index.shape, strict=True)]
    if waves.count > 1 and operation.signature is not None:
        spread = _spread if waves.square else _streamed
        parts = spread(operation, parts, waves.count)
    return Partition(tuple(even_cuts(n, p, a) for n, p, a in zip(index.shape, parts, index.start, strict=True)))


def _streamed(operation: Operation, parts: Sequence[int], waves: int) -> list[int]:
    """More parts along one dimension, so that chains of operations stream: the one that is cut, or the longest."""
    shape = operation.index.shape
    monoids = operation.signature.monoids if operation.signature else {}
    free = [k for k, n in enumerate(shape) if k not in monoids and n > parts[k]]
    cut = [k for k in free if parts[k] > 1] or sorted(free, key=lambda k: -shape[k])[:1]
    if not cut:
        cut = [k for k in monoids if shape[k] > parts[k] and k not in _uncut(operation)][:1]
    return [min(p * waves, shape[k]) if k in cut[:1] else p for k, p in enumerate(parts)]


def _spread(operation: Operation, parts: Sequence[int], waves: int) -> list[int]:
    """More parts along every dimension in turn, the longest blocks first: small blocks of a contraction."""
    out, shape = list(parts), operation.index.shape
    while waves > 1:
        free = [k for k, n in enumerate(shape) if n >= 2 * out[k] and k not in _uncut(operation)]
        if not free:
            break
        longest = max(free, key=lambda k: shape[k] / out[k])
        out[longest] *= 2
        waves //= 2
    return out


def _combine_cuts(operation: Operation, cuts: Partition, machines: int) -> Partition:
    """The output blocks of the index cuts, cut further along the largest dimension so that every machine combines."""
    (name, kind), *_ = operation.outputs  # all outputs of a cut reduction have one shape
    blocks = output_partition(operation, name, cuts)
    shape = kind.shape
    parts = machines // blocks.count if blocks.count and machines % blocks.count == 0 else 1
    if parts == 1 or not shape:
        return blocks
    dim = max(range(len(shape)), key=lambda k: shape[k] // max(1, blocks.grid[k]))
    wanted = blocks.grid[dim] * parts
    small = prod(shape) * kind.dtype.itemsize < 1 << 16
    if small or blocks.grid[dim] > 1 or wanted > shape[dim]:
        return blocks
    return Partition(tuple(even_cuts(shape[dim], wanted) if k == dim else c for k, c in enumerate(blocks.cuts)))


def _store_cuts(sink: Sink, made: Mapping[Operation, Step], atom: tuple[int, ...] | None, parts: int) -> Partition:
    """The blocks that exist, where the tensor is an operation's own output; otherwise even rows; aligned to chunks."""
    tensor = sink.tensor
    producer = tensor.producer
    if isinstance(producer, Operation):
        step = made[producer]
        cuts = output_partition(producer, tensor.output, step.cuts) if step.stage == "block" else step.cuts
    else:
        shape = tensor.shape
        parts = min(parts, shape[0]) if shape and tensor.type.box.size else 1
        cuts = Partition(tuple(even_cuts(n, max(1, parts) if k == 0 else 1) for k, n in enumerate(shape)))
    if atom is None:
        return cuts
    return Partition(
        tuple(_aligned(c, size, extent) for c, size, extent in zip(cuts.cuts, atom, tensor.shape, strict=True))
    )


def _aligned(cuts: Sequence[int], atom: int, extent: int) -> tuple[int, ...]:
    """Boundaries moved to multiples of a chunk's extent, so that every chunk has one writer."""
    if extent == 0:
        return (0, 0)
    return tuple(sorted({0, extent} | {min(extent, round(cut / atom) * atom) for cut in cuts[1:-1]}))


# ---------------------------------------------------------------------------------------------------------------------
# estimates for the beam


@dataclass(frozen=True, slots=True)
class _Choice:
    """A partial choice: the grids so far (newest first, shared tails) and what they are estimated to cost."""

    seconds: float = 0.0
    bytes_moved: int = 0
    tasks: int = 0
    last: tuple[Operation, Grid] | None = None
    rest: _Choice | None = None

    def grids(self) -> dict[Operation, Grid]:
        out: dict[Operation, Grid] = {}
        at: _Choice | None = self
        while at is not None and at.last is not None:
            out[at.last[0]] = at.last[1]
            at = at.rest
        return out


class _Estimator:
    """The estimated time of one operation under a grid, given where its producers' results lie; in closed form."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.traffic: dict[tuple[Operation, str, Grid], Traffic | None] = {}
        self.known: dict[object, tuple[float, int, int]] = {}
        self.places: dict[tuple[Tensor, Grid], Blocks] = {}

    def cost(self, operation: Operation, grid: Grid, chosen: Mapping[Operation, Grid]) -> tuple[float, int, int]:
        """(seconds, bytes moved, tasks)."""
        origins = [p for name, _ in operation.inputs for p in self._origins(operation, name, grid)]
        key = (operation, grid, tuple((id(p), chosen[_maker(p)]) for p in origins))
        if key not in self.known:
            self.known[key] = self._cost(operation, grid, chosen)
        return self.known[key]

    def _traffic(self, operation: Operation, name: str, grid: Grid) -> Traffic | None:
        key = (operation, name, grid)
        if key not in self.traffic:
            self.traffic[key] = Traffic.of(operation, name, _cut(operation, grid))
        return self.traffic[key]

    def _origins(self, operation: Operation, name: str, grid: Grid) -> list[Tensor]:
        traffic = self._traffic(operation, name, grid)
        if traffic is not None:
            return list(traffic.origins)
        tensor = operation.input(name)
        pieces = resolve(tensor, tensor.type.box)
        origins = [p.origin for p in pieces if p.origin is not None]
        return list(dict.fromkeys(t for t in origins if isinstance(t.producer, Operation)))

    def _cost(self, operation: Operation, grid: Grid, chosen: Mapping[Operation, Grid]) -> tuple[float, int, int]:
        cuts = _cut(operation, grid)
        signature = operation.signature
        reduced = signature.monoids if signature else {}
        partial = any(cuts.grid[k] > 1 for k in reduced)
        late = operator_of(operation).finish if partial else ()
        count, machines = cuts.count, self.machines
        block = cuts.block(0)  # even cuts: the first block is the largest
        arrived: Sequence[tuple[int, int]] = [(0, 0)] * len(machines)
        touched = sum(_out_size(operation, name, block) * kind.dtype.itemsize for name, kind in operation.outputs)
        fetched = 0.0
        for name, tensor in operation.inputs:
            if name in late:
                continue
            touched += input_region(operation, name, block).size * tensor.dtype.itemsize
            traffic = self._traffic(operation, name, grid)
            if traffic is None:
                here: Sequence[tuple[int, int]] = self._counted(operation, name, cuts, chosen)
            else:
                places = {made: self._place(made, chosen[_maker(made)]) for made in traffic.origins}
                here = traffic.moved(places, len(machines))
                fetched += traffic.bytes_read() / count
            arrived = [(a + c, b + d) for (a, b), (c, d) in zip(arrived, here, strict=True)]
        flops = signature.cost("flops", block) if signature else 0.0
        busy = []
        runs = machine_runs(count, len(machines))
        filled = [machines.machines[k] for k in machines.order]
        for one, (first, last), (size, messages) in zip(filled, runs, arrived, strict=True):
            compute = max(flops / one.flops_per_second, touched / one.bytes_per_second) / EFFICIENCY
            each = machines.task_seconds + compute + fetched / machines.storage_bytes_per_second
            transfer = size / machines.link_bytes_per_second + messages * machines.link_seconds
            busy.append((last - first) * each + transfer)
        seconds, moved = max(busy), sum(size for size, _ in arrived)
        if partial:
            extra = self._combine_bytes(operation, cuts)
            moved += extra
            seconds += extra / machines.link_bytes_per_second + machines.task_seconds
            seconds += machines.link_seconds * prod(cuts.grid[k] for k in reduced)
        return seconds, moved, count + partial

    def _place(self, result: Tensor, grid: Grid) -> Blocks:
        """Where an operation's result lies under a grid."""
        if (result, grid) not in self.places:
            who = _maker(result)
            cuts = _cut(who, grid)
            signature = who.signature
            blocks = output_partition(who, result.output, cuts)
            if signature is None or any(cuts.grid[k] > 1 for k in signature.monoids):
                made = _combine_cuts(who, cuts, len(self.machines)) if signature else blocks
                self.places[result, grid] = Blocks(made, tuple(range(len(result.shape))), made.grid)
            else:
                matrix = signature.output(result.output).map.matrix
                rows = {k: r for r, row in enumerate(matrix) for k, c in enumerate(row) if c}
                order = tuple(rows.get(k) for k in range(who.index.rank))
                self.places[result, grid] = Blocks(blocks, order, cuts.grid)
        return self.places[result, grid]

    def _counted(
        self, operation: Operation, name: str, cuts: Partition, chosen: Mapping[Operation, Grid]
    ) -> list[tuple[int, int]]:
        """(bytes, messages) per machine of an input that does not factor, shard by shard."""
        tensor = operation.input(name)
        arrived = [(0, 0)] * len(self.machines)
        mine = placement(cuts.count, len(self.machines))
        for shard in range(cuts.count):
            machine = mine(shard)["machine"]
            for piece in resolve(tensor, input_region(operation, name, cuts.block(shard))):
                made = piece.origin
                if made is None or not isinstance(made.producer, Operation):
                    continue
                blocks = self._place(made, chosen[made.producer])
                owner = placement(blocks.count, len(self.machines))
                for k, common in blocks.cuts.overlapping(piece.region):
                    if owner(k)["machine"] != machine:
                        size, messages = arrived[machine]
                        arrived[machine] = size + common.size * tensor.dtype.itemsize, messages + 1
        return arrived

    def _combine_bytes(self, operation: Operation, cuts: Partition) -> int:
        reduced = operation.signature.monoids if operation.signature else {}
        parts = prod(cuts.grid[k] for k in reduced)
        return sum(kind.size_bytes for _, kind in operation.outputs) * (parts - 1)


def _maker(tensor: Tensor) -> Operation:
    """The operation that makes a tensor."""
    return cast("Operation", tensor.producer)


def _out_size(operation: Operation, name: str, index: Box) -> int:
    if operation.signature is None:
        return operation.output_types[name].box.size
    return operation.signature.output(name).span(index).size


# ---------------------------------------------------------------------------------------------------------------------
# the search


def _beam(graph: Graph, machines: Machines) -> Iterator[dict[Operation, Grid]]:
    """The best choices of grids by estimated time, best first; then everything whole."""
    estimator = _Estimator(machines)
    operations = graph.operations
    last_use = _last_uses(graph)
    beam = [(_Choice(), {})]  # type: list[tuple[_Choice, dict[Operation, Grid]]]
    for number, operation in enumerate(operations):
        grown = []
        for choice, live in beam:
            for grid in candidates(operation, len(machines)):
                seconds, moved, count = estimator.cost(operation, grid, live)
                grown.append(
                    (
                        _Choice(
                            choice.seconds + seconds,
                            choice.bytes_moved + moved,
                            choice.tasks + count,
                            (operation, grid),
                            choice,
                        ),
                        {**live, operation: grid},
                    )
                )
        grown.sort(key=lambda item: (item[0].seconds, item[0].bytes_moved, item[0].tasks))
        beam, seen = [], set()
        for choice, live in grown:
            live = {who: grid for who, grid in live.items() if last_use[who] > number}
            key = tuple(sorted((id(who), grid) for who, grid in live.items()))
            if key not in seen:  # of two choices with the same future, the better past wins
                seen.add(key)
                beam.append((choice, live))
            if len(beam) == BEAM:
                break
    for choice, _ in beam[:FINALISTS]:
        yield choice.grids()
    if len(machines) > 1:
        yield {operation: (1,) * operation.index.rank for operation in operations}


def _last_uses(graph: Graph) -> dict[Operation, int]:
    """The number of the last operation that reads each operation, through any selectors."""
    operations = graph.operations
    origins: dict[Tensor, frozenset[Operation]] = {}
    for node in graph.nodes():
        if isinstance(node, Tensor):
            producer = node.producer
            if isinstance(producer, Operation):
                origins[node] = frozenset([producer])
            elif isinstance(producer, Source):
                origins[node] = frozenset()
            else:
                origins[node] = frozenset().union(*(origins[t] for _, t in producer.inputs))
    last = dict.fromkeys(operations, -1)
    for number, operation in enumerate(operations):
        for _, tensor in operation.inputs:
            for origin in origins[tensor]:
                last[origin] = number
    return last


@dataclass(frozen=True, slots=True)
class _Offer:
    """A choice of grids under a number of waves, as a plan that is not simulated yet.

    Args:
        rank: of the choice among the finalists.
        waves: how it is cut again.
        plan: without costs.
        label: for people.
    """

    rank: int
    waves: Waves
    plan: Plan
    label: str

    @property
    def small_enough(self) -> bool:
        """Whether it is simulated at all; the first choice in one wave always is."""
        streams = self.rank == 0 and not self.waves.square
        most = FIRST_WORK if streams else MOST_WORK
        return (streams and self.waves == WHOLE) or _work(self.plan, most) <= most


def search(graph: Graph, machines: Machines, describe: Describe, atoms: Atoms) -> tuple[Plan, Simulation]:
    """The fastest plan that was found among those that fit the machines' memory, with as few waves as that takes.

    What is tried does not depend on the budget, so a larger budget is never refused where a smaller one was met.

    Raises:
        PlanError: none fits; carries a budget that would do: the least that any plan that is considered needs, of
            those up to `NAMED_WORK`; and the operation that needs it.
    """
    budgets = [machine.memory_bytes for machine in machines.machines]
    for _, level in groupby(_offers(graph, machines, describe, atoms), lambda offer: offer.waves):
        fitting = []
        for offer in level:
            if _certain_bytes(offer.plan, max(budgets)) > max(budgets) or not offer.small_enough:
                continue
            result = simulate_within(offer.plan, budgets)
            if result is not None:
                fitting.append((offer.label, with_costs(offer.plan, result), result))
        if fitting:
            _, plan, result = min(fitting, key=lambda item: (item[1].seconds, item[1].bytes_moved, item[1].tasks))
            rows = tuple((label, p.seconds, max(p.peak_bytes, default=0), p.bytes_moved) for label, p, _ in fitting)
            return replace(plan, alternatives=rows), result
    raise _refusal(graph, machines, describe, atoms)


def _offers(graph: Graph, machines: Machines, describe: Describe, atoms: Atoms) -> Iterator[_Offer]:
    """Every plan that is considered: the choices of the beam in one wave, then in ever more; each plan once."""
    finalists = list(_beam(graph, machines))
    seen: set[tuple[Step, ...]] = set()
    for waves in _wave_counts(graph):
        for rank, grids in enumerate(finalists):
            steps = steps_of(graph, grids, len(machines), describe, atoms, waves)
            if steps not in seen:
                seen.add(steps)
                yield _Offer(rank, waves, Plan(graph, machines, steps), _label(steps, rank, waves))


def _wave_counts(graph: Graph) -> Iterator[Waves]:
    """One wave, then ever more, as long as some dimension is long enough to be cut by them."""
    yield WHOLE
    largest = max((max(op.index.shape, default=1) for op in graph.operations), default=1)
    size = max((op.index.size for op in graph.operations), default=1)
    count = 2
    while count <= min(MOST_WAVES, size):
        if count <= largest:
            yield Waves(count)
        yield Waves(count, square=True)
        count *= 2


def _certain_bytes(plan: Plan, enough: int) -> int:
    """Bytes that some single task certainly needs, for what it reads and makes: a lower bound of the plan's peak.

    Args:
        plan: any.
        enough: more than this needs no further look.
    """
    least = 0
    for step in plan.steps:
        if isinstance(step.node, Operation):
            least = max(least, _made_bytes(step) + _read_bytes(step.node, step))
            if least > enough:
                break
    return least


def _work(plan: Plan, enough: int) -> int:
    """How many tasks a plan has, and how many blocks and sources they read: what simulating it takes.

    Args:
        plan: any.
        enough: more than this needs no further look.
    """
    work = plan.tasks
    made = {step.node: step for step in plan.steps if step.stage != "partial"}
    for step in plan.steps:
        node = step.node
        if work > enough or not isinstance(node, Operation):
            continue
        if step.stage == "combine":
            (cuts,) = (s.cuts for s in plan.steps if s.node is node and s.stage == "partial")
            reduced = node.signature.monoids if node.signature else {}
            work += step.cuts.count * prod(cuts.grid[k] for k in reduced)
            continue
        for name, _ in node.inputs:
            traffic = Traffic.of(node, name, step.cuts)
            if traffic is not None:
                work += traffic.pieces({t: block_partition(made[_maker(t)], t.output) for t in traffic.origins})
    return work


def _made_bytes(step: Step) -> int:
    """The bytes of a step's first block, which is its largest."""
    box, size_bytes = step.cuts.block(0), 0
    for tensor in step.tensors:
        made = box.size
        if step.stage != "combine":
            made = _out_size(cast("Operation", step.node), tensor.output, box)
        size_bytes += made * tensor.dtype.itemsize
    return size_bytes


def _read_bytes(node: Operation, step: Step) -> int:
    """The bytes that the first shard of a step certainly holds of what it reads."""
    if step.stage == "combine":  # one block of each part; late inputs are not counted
        return 0
    late = operator_of(node).finish if step.stage == "partial" else ()
    total = 0
    shared: dict[Tensor, int] = {}  # a block of the machine's own may serve several inputs
    for name, tensor in node.inputs:
        if name in late:
            continue
        region = input_region(node, name, step.cuts.block(0))
        pieces = resolve(tensor, region)
        if len(pieces) > 1:
            total += region.size * tensor.dtype.itemsize
        for piece in pieces if len(pieces) == 1 else ():
            origin = piece.origin
            if origin is not None:
                moving = {dim for row in piece.map.matrix for dim, c in enumerate(row) if c}
                points = prod(n for dim, n in enumerate(piece.box.shape) if dim in moving)
                shared[origin] = max(shared.get(origin, 0), points * tensor.dtype.itemsize)
    return total + sum(shared.values())


def _label(steps: Sequence[Step], rank: int, waves: Waves) -> str:
    whole = all(step.cuts.count == 1 for step in steps)
    name = "whole" if whole else f"choice {rank + 1}"
    if waves.count == 1:
        return name
    return f"{name}, {waves.count} {'blocks' if waves.square else 'waves'}"


def _refusal(graph: Graph, machines: Machines, describe: Describe, atoms: Atoms) -> PlanError:
    """The error that names the least that was found to do, for machines that all have it.

    The finest plans come first, so that most others certainly need more and are left aside.
    """
    budget = min(machine.memory_bytes for machine in machines.machines)
    alike = replace(machines, machines=tuple(replace(m, memory_bytes=budget) for m in machines.machines))
    first, *others = _offers(graph, alike, describe, atoms)
    small = [offer for offer in others if _work(offer.plan, NAMED_WORK) <= NAMED_WORK]
    least, found, most = 0, first, None
    for offer in (*reversed(small), first):
        if most is not None and _certain_bytes(offer.plan, most) > most:
            continue
        tried = simulate_within(offer.plan, [] if most is None else [most] * len(machines))
        if tried is not None:
            least, found, result = max(tried.peak_bytes), offer, tried
            most = least - 1
    step = found.plan.steps[result.peak_step]
    return PlanError(
        "plan(target, machines)",
        f"no plan that was found fits {size_text(budget)} per machine",
        inputs={
            "machines": machines,
            "operation": f"{step.name} {step.tensor.type} over {step.cuts.box}, cut {step.cuts}, stage {step.stage}",
            "least": f"{size_text(least)} ({least} bytes) per machine, by plan {found.label!r} of {1 + len(small)}",
        },
        legal=f"a budget of {least} bytes per machine, or more machines",
        facts={"least_bytes": least, "operation": step.name},
    )


def make_plan(graph: Graph, machines: Machines, describe: Describe, atoms: Atoms = lambda sink: None) -> Plan:
    """The verified graph's plan.

    Args:
        graph: what to compute. Sinks that are cut are planned as one per result: the plan cuts them itself.
        machines: where.
        describe: (operation, stage) -> what will compute a shard, for people.
        atoms: sink -> the extents of the region that must have one writer, or None.
    """
    graph = join_sinks(verify(graph))
    for operation in graph.operations:
        if not operation.outputs:
            raise PlanError(
                "plan(target, machines)", f"operation {operation.operator} makes nothing", legal="one output or more"
            )
    for node in graph.nodes():
        if isinstance(node, Source) and node.placement is not None and not 0 <= node.placement < len(machines):
            raise PlanError(
                "plan(target, machines)",
                f"source {node.name!r} is placed on machine {node.placement}",
                inputs={"machines": machines},
                legal=f"0..{len(machines) - 1}",
            )
    for sink in graph.sinks:
        if sink.placement is not None and not 0 <= sink.placement < len(machines):
            raise PlanError(
                "plan(target, machines)",
                f"a sink is placed on machine {sink.placement}",
                inputs={"machines": machines, "sink": sink},
                legal=f"0..{len(machines) - 1}",
            )
    targets = [sink.target for sink in graph.sinks if isinstance(sink.target, FileTarget)]
    written = [(target.path, target.key) for target in targets]
    for path, key in written:
        if written.count((path, key)) > 1:
            raise PlanError("plan(target, machines)", f"two sinks write {path!r}", legal="one sink per file member")
    return search(graph, machines, describe, atoms)[0]
