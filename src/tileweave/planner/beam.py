"""The beam: choices of grids by their estimated time, operation by operation, from closed forms alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tileweave.graph import Graph, Operation, Partition, Source, Tensor, resolve
from tileweave.graph.ops.operators import operator_of
from tileweave.graph.passes.shard import input_region, output_partition
from tileweave.planner.cost import Blocks, Traffic, machine_runs
from tileweave.planner.machines import Machines
from tileweave.planner.plan import placement
from tileweave.planner.simulate import EFFICIENCY
from tileweave.planner.steps import Grid, candidates, combine_cuts, cut, maker, out_size

__all__ = ["beam"]

BEAM = 12
"""Partial choices kept after each operation."""
FINALISTS = 4
"""Choices that are simulated exactly."""


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
        key = (operation, grid, tuple((id(p), chosen[maker(p)]) for p in origins))
        if key not in self.known:
            self.known[key] = self._cost(operation, grid, chosen)
        return self.known[key]

    def _traffic(self, operation: Operation, name: str, grid: Grid) -> Traffic | None:
        key = (operation, name, grid)
        if key not in self.traffic:
            self.traffic[key] = Traffic.of(operation, name, cut(operation, grid))
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
        cuts = cut(operation, grid)
        signature = operation.signature
        reduced = signature.monoids if signature else {}
        partial = any(cuts.grid[k] > 1 for k in reduced)
        late = operator_of(operation).finish if partial else ()
        count, machines = cuts.count, self.machines
        block = cuts.block(0)  # even cuts: the first block is the largest
        arrived: Sequence[tuple[int, int]] = [(0, 0)] * len(machines)
        touched = sum(out_size(operation, name, block) * kind.dtype.itemsize for name, kind in operation.outputs)
        fetched = 0.0
        for name, tensor in operation.inputs:
            if name in late:
                continue
            touched += input_region(operation, name, block).size * tensor.dtype.itemsize
            traffic = self._traffic(operation, name, grid)
            if traffic is None:
                here: Sequence[tuple[int, int]] = self._counted(operation, name, cuts, chosen)
            else:
                places = {made: self._place(made, chosen[maker(made)]) for made in traffic.origins}
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
            who = maker(result)
            cuts = cut(who, grid)
            signature = who.signature
            blocks = output_partition(who, result.output, cuts)
            if signature is None or any(cuts.grid[k] > 1 for k in signature.monoids):
                made = combine_cuts(who, cuts, len(self.machines)) if signature else blocks
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


def beam(graph: Graph, machines: Machines) -> Iterator[dict[Operation, Grid]]:
    """The best choices of grids by estimated time, best first; then everything whole."""
    estimator = _Estimator(machines)
    operations = graph.operations
    last_use = _last_uses(graph)
    kept = [(_Choice(), {})]  # type: list[tuple[_Choice, dict[Operation, Grid]]]
    for number, operation in enumerate(operations):
        grown = []
        for choice, live in kept:
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
        kept, seen = [], set()
        for choice, live in grown:
            live = {who: grid for who, grid in live.items() if last_use[who] > number}
            key = tuple(sorted((id(who), grid) for who, grid in live.items()))
            if key not in seen:  # of two choices with the same future, the better past wins
                seen.add(key)
                kept.append((choice, live))
            if len(kept) == BEAM:
                break
    for choice, _ in kept[:FINALISTS]:
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
