"""The choice of cuts: additive costs first, then waves until memory suffices, by closed forms alone.

Every operation is offered its shardings along a few meshes. A beam over the cost tables keeps the best choices, each
polished node by node; they are simulated, and the best by the objective is taken. When none fits the machines' memory,
each machine's part is cut again, into waves along one dimension or into blocks along all of them, so that less is
alive at once. If none fits, the least peak of the plans that were considered is named with the operation: planning
with that budget succeeds. What is considered does not depend on the budget, so a larger one is never refused where a
smaller one was met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from numbers import Integral, Real
from typing import Any

from tileweave.errors import PlanError
from tileweave.graph import FileTarget, Graph, Operation, Source, Tensor, join_sinks, verify
from tileweave.planner.bounds import best_factor_grid, best_grid
from tileweave.planner.costs import chunks_of
from tileweave.planner.loads import Loads
from tileweave.planner.machine import Machines
from tileweave.planner.movement import needed_spread
from tileweave.planner.placement import Mesh, Placement
from tileweave.planner.plan import Plan, Step
from tileweave.planner.search.candidates import FEW_OPERATIONS, meshes
from tileweave.planner.search.islands import searched_together
from tileweave.planner.search.objectives import OBJECTIVES, Objective, objective_of
from tileweave.planner.search.pareto import Progressed
from tileweave.planner.search.pins import Cuts, allowed_shardings, pinned_meshes, pinned_parts
from tileweave.planner.search.solve import Solved, beam, cost_of, gridded, polished, relaxed
from tileweave.planner.search.spill import spilled, with_copies
from tileweave.planner.search.tables import Tables
from tileweave.planner.simulate import Peaks, Simulation, costed, peaks_of, simulate, with_costs
from tileweave.planner.steps import WHOLE, Atoms, Decide, Sharding, Sharing, Waves, in_runs, steps_of
from tileweave.planner.streams import read_tensors
from tileweave.words import size_text

MOST_WAVES = 4096
"""The most waves per machine that the search tries."""
MOST_RANGES = 1 << 19
"""Waves along one dimension on all machines: each has a range of its own in the closed forms."""
MOST_FRONTIER = 16
"""Choices of a stochastic search that are simulated."""
FURTHER = 6
"""How many more kinds of waves are tried, once one fits, where chunks of files would be read more than once."""
FINALISTS = 4
"""Choices of the beam that are simulated."""
BALANCED = "balanced"
"""Said of a source: one copy of it, of which every machine that is used holds an equal part, placed by the plan."""
STORAGE = "storage"
MOST_RUNS = 256
"""Machines up to which combining in runs is looked at for its time: between more, it takes too many messages."""
SHARED: Mapping[Sharing, str] = {"boxes": "", "runs": ", shared in runs"}
SHARINGS: tuple[Sharing, ...] = tuple(SHARED)
FULL_WEIGHT = 1 << 16
"""The weight of the machine that has most."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a stochastic search goes on.

    Args:
        trials: at most; none: no search.
        seed: of its random numbers.
        workers: searches side by side.
        runs: how often the plan will run: the search stops where further trials take longer than they save.
        progress: called as it goes on.
    """

    trials: int = 0
    seed: int = 0
    workers: int = 1
    runs: float | None = None
    progress: Callable[[Progressed], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be planned, and what the choice is bound to.

    Args:
        graph: joined and verified.
        machines: where.
        decide: what will compute a shard.
        atoms: sink -> the extents of the region that must have one writer, or None.
        homes: where sources lie that are not on storage, by choice of the user.
        placed: sources that the plan places.
        allowed: operation -> the shardings that it may have, where these are limited.
        objective: what is least in the plan.
        extra: meshes beside those that the graph suggests.
        effort: of the stochastic search.
        model: a name in `MODELS`, by which finalists are simulated.
    """

    graph: Graph
    machines: Machines
    decide: Decide
    atoms: Atoms
    homes: tuple[tuple[Source, Placement], ...] = ()
    placed: tuple[Source, ...] = ()
    allowed: tuple[tuple[Operation, tuple[Sharding, ...]], ...] = ()
    objective: Objective = OBJECTIVES["seconds"]
    extra: tuple[Mesh, ...] = ()
    effort: Effort = Effort()
    model: str = "roofline"


@dataclass(frozen=True, slots=True)
class _Offer:
    """A choice under a number of waves, as a plan that is not simulated yet."""

    waves: Waves
    plan: Plan
    label: str


def search(problem: PlanRequest) -> tuple[Plan, Simulation]:
    """The best plan that was found among those that fit the machines' memory, with as few waves as that takes.

    Raises:
        PlanError: none fits; carries a budget that would do, the least that any plan that was considered needs, and
            the operation that needs it.
    """
    known, order = Loads(), problem.objective.order
    tried, fitting = _looked_at(problem, known)
    with_steps = with_copies(problem.graph)
    # a copy between a file and the sink that stores it can have waves of its own, so that each chunk is read once
    if with_steps is not None and _reads_again(problem.graph, [plan for _, plan, _ in fitting]):
        more, better = _looked_at(replace(problem, graph=with_steps), known)
        tried, fitting = tried + more, fitting + better
    if not fitting:
        raise _refusal(problem, tried, known)
    _, best, _ = min(fitting, key=lambda item: order(item[1], item[2]))
    plan, result = costed(best, known, problem.model)
    rows = tuple((label, p.seconds, max(p.peak_bytes, default=0), p.bytes_moved) for label, p, _ in fitting)
    return replace(plan, alternatives=rows), result


_Tried = list[tuple["_Offer", Peaks]]
_Fitting = list[tuple[str, Plan, Simulation]]


def _looked_at(problem: PlanRequest, known: Loads) -> tuple[_Tried, _Fitting]:
    """(what was considered, what of it fits): with ever more waves, until a plan fits that spills nothing, or for a few
    kinds of waves more."""
    budgets = [machine.memory_bytes for machine in problem.machines.machines]
    tried: _Tried = []
    fitting: _Fitting = []
    further = 0
    for _, level in groupby(_offers(problem, known), lambda offer: offer.waves):
        for plain in level:
            for offer in (plain, *_spilling(problem, plain)):
                tried.append((offer, peaks_of(offer.plan, known)))
                if all(peak <= limit for peak, limit in zip(tried[-1][1].machines, budgets, strict=True)):
                    result = simulate(offer.plan, known, problem.model)
                    fitting.append((offer.label, with_costs(offer.plan, result), result))
                    break  # what spills more than it must is no faster
        if fitting and not problem.objective.waves:
            further += 1
            plans = [plan for _, plan, _ in fitting if not any(step.spilled for step in plan.steps)]
            if further > FURTHER or (plans and not _reads_again(problem.graph, plans)):
                break
    return tried, fitting


def _spilling(problem: PlanRequest, offer: _Offer) -> Iterator[_Offer]:
    for plan in spilled(offer.plan, problem.atoms, offer.waves):
        yield replace(offer, plan=plan, label=f"{offer.label}, spilled")


def _reads_again(graph: Graph, plans: Sequence[Plan]) -> bool:
    """Whether every plan reads chunks of files more than once: other waves may read each chunk once."""
    chunked = [node for node in graph.nodes() if isinstance(node, Source) and chunks_of(node)]
    stored = sum(node.type.size_bytes for node in graph.nodes() if isinstance(node, Source))
    return bool(chunked) and all(plan.bytes_read > stored for plan in plans)


def tables_of(
    problem: PlanRequest, known: Loads, weights: tuple[int, ...] = (), on: Sequence[Mesh] | None = None
) -> Tables:
    """The cost tables of a problem, for parts by weights of the machines, along meshes that its graph suggests."""
    allowed = dict(problem.allowed)
    plain = Plan(problem.graph, problem.machines, (), homes=problem.homes)
    homes = {**plain.residents, **plain.disks}
    on = on or meshes(problem.graph, problem.machines, problem.extra)
    runs = problem.objective.name == "words"
    return Tables(
        problem.graph,
        problem.machines,
        on,
        homes,
        problem.placed,
        allowed,
        known,
        weights=weights,
        disks=plain.disks,
        runs=runs,
    )


def solved(tables: Tables, objective: Objective) -> list[Solved]:
    """The finalists, the one with a certified gap first: the best choices of dual ascent and of the beam, each grid
    once; the best one where sources arrive early; the ones that hold or move least; for the fewest words those with
    the best grid of every product.
    """
    first = relaxed(tables, objective.weigh)
    least = (OBJECTIVES["peak_memory"].weigh, 1), (OBJECTIVES["words"].weigh, 1)
    found: dict[tuple[Any, ...], Solved] = {_grids(tables, first): first}
    for by, most in ((objective.weigh, FINALISTS - 1), *least):
        taken = 0
        for one in beam(tables, by):
            better = polished(tables, by, one)
            parts = _grids(tables, better)
            if parts not in found:
                found[parts] = better
                taken += 1
            if taken == most:
                break
    if objective.name == "words":
        for best in (best_grid, best_factor_grid):
            one = gridded(tables, objective.weigh, first, best)
            found.setdefault(_grids(tables, one), one)
    if any(isinstance(tables.nodes[edge.maker], Source) for edge in tables.edges):
        early = relaxed(tables.prefetched(), objective.weigh)
        found.setdefault(_grids(tables, early), replace(early, cost=cost_of(tables, objective.weigh, early.chosen)))
    return list(found.values())


def _grids(tables: Tables, one: Solved) -> tuple[Any, ...]:
    return tuple(o.choices[k].parts for o, k in zip(tables.offers, one.chosen, strict=True))


def searched(problem: PlanRequest, tables: Tables, seeds: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The frontier of a stochastic search of so many trials, seeded by the additive solvers; the fastest first."""
    effort = problem.effort
    if not effort.trials:
        return []
    found = searched_together(
        tables,
        effort.trials,
        seed=effort.seed,
        workers=effort.workers,
        start=seeds,
        runs=effort.runs,
        progress=effort.progress,
    )
    return sorted(found.frontier, key=lambda chosen: found.points[chosen])[:MOST_FRONTIER]


def _offers(problem: PlanRequest, known: Loads) -> Iterator[_Offer]:
    """Every plan that is considered: the finalists in one wave, then in ever more; each plan once."""
    graph, machines = problem.graph, problem.machines
    ways = [_chosen(problem, known, about, weights) for about, weights in weightings(graph, machines)]
    if len(machines) > 1 and not problem.allowed and not problem.placed and ways[0].tables is not None:
        whole = (0,) * len(ways[0].tables.nodes)
        ways[0].choices += [whole] if whole not in ways[0].choices else []
    seen: set[Any] = set()
    words = problem.objective.name == "words"
    few = len(graph.operations) <= FEW_OPERATIONS and len(machines) <= MOST_RUNS
    meshed = _mesh_by_mesh(problem, known, ways[0])
    for waves in wave_counts(graph, len(machines)):
        used = [*ways, *meshed] if waves == WHOLE else ways
        for way, (rank, chosen) in [(one, ranked) for one in used for ranked in enumerate(one.choices)]:
            for sharing in SHARINGS if words or (few and not rank and waves == WHOLE) else SHARINGS[:1]:
                plan = plan_of(problem, way.tables, chosen, waves, sharing)
                if (plan.steps, plan.homes) not in seen:
                    seen.add((plan.steps, plan.homes))
                    gap = None if way.least is None else 0.0
                    if way.tables is not None and way.least is not None:
                        cost = cost_of(way.tables, problem.objective.weigh, chosen)
                        gap = max(0.0, 1 - way.least / cost) if cost else 0.0
                    label = _label(plan.steps, rank, waves) + way.about + SHARED[sharing]
                    yield _Offer(waves, replace(plan, gap=gap), label)


@dataclass(slots=True)
class _Way:
    """What was chosen for parts of some lengths: the tables, the choices, the least that any choice costs.

    There are no tables where an operation can only be whole.
    """

    tables: Tables | None
    about: str
    choices: list[tuple[int, ...]]
    least: float | None = None


def _chosen(problem: PlanRequest, known: Loads, about: str, weights: tuple[int, ...]) -> _Way:
    """The finalists of the additive solvers and of the stochastic search, for machines of these weights."""
    if len(problem.machines) == 1 and not (problem.allowed or problem.placed or problem.effort.trials):
        return _Way(None, about, [()], 0.0 if problem.graph.operations else None)
    tables = tables_of(problem, known, weights)
    if not tables.nodes:
        return _Way(tables, about, [()])
    finalists = solved(tables, problem.objective)
    choices = [one.chosen for one in finalists]
    choices += [chosen for chosen in searched(problem, tables, choices) if chosen not in choices]
    return _Way(tables, about, choices, finalists[0].cost * (1 - (finalists[0].gap or 0.0)))


def _mesh_by_mesh(problem: PlanRequest, known: Loads, all_together: _Way) -> list[_Way]:
    """The best choice along each mesh alone, for graphs of few operations.

    An operation is then offered more cuts along that mesh, and neighbours move little: where transfers overlap with
    arithmetic, which sums of table entries do not see, such a choice may be faster than their best one.
    """
    tables, few = all_together.tables, 1 < len(problem.graph.operations) <= FEW_OPERATIONS
    if tables is None or problem.allowed or not few:
        return []
    found = []
    for mesh in tables.on:
        alone = tables_of(problem, known, on=(mesh,))
        best = relaxed(alone, problem.objective.weigh)
        least = None if all_together.least is None else min(all_together.least, best.cost * (1 - (best.gap or 0.0)))
        found.append(_Way(alone, f", along {' x '.join(map(str, mesh))}", [best.chosen], least))
    return found


def weightings(graph: Graph, machines: Machines) -> list[tuple[str, tuple[int, ...]]]:
    """(words for people, weights of the machines in the order in which they fill): equal parts, then parts by what
    machines have more or less of: arithmetic, memory bandwidth, memory.

    All operations of a plan take the same weights, so that what is cut alike has its boundaries in common.
    """
    filled = [machines.machines[k] for k in machines.order]
    largest = max(graph.operations, key=lambda op: op.index.size, default=None)
    dtype = largest.outputs[0][1].dtype.name if largest is not None else "float32"
    found: dict[tuple[int, ...], str] = {(): ""}
    for about, amounts in (
        (", parts by arithmetic", [m.rate(dtype) for m in filled]),
        (", parts by bandwidth", [m.bytes_per_second for m in filled]),
        (", parts by memory", [m.memory_bytes for m in filled]),
    ):
        most = max(amounts)
        weights = tuple(max(1, round(FULL_WEIGHT * amount / most)) for amount in amounts)
        if len(set(weights)) > 1:
            found.setdefault(weights, about)
    return [(about, weights) for weights, about in found.items()]


def plan_of(
    problem: PlanRequest,
    tables: Tables | None,
    chosen: Sequence[int],
    waves: Waves = WHOLE,
    sharing: Sharing = "boxes",
) -> Plan:
    """The plan of a choice, without costs; without tables, of whole operations."""
    graph, machines = problem.graph, problem.machines
    cut: dict[Operation, Any]
    if tables is None:
        cut = {operation: (1,) * operation.index.rank for operation in graph.operations}
    else:
        cut = {operation: tables.sharding(operation, chosen) for operation in graph.operations}
    places = sorted(range(len(machines)), key=machines.order.__getitem__)
    steps = steps_of(graph, cut, len(machines), problem.decide, problem.atoms, waves, places, sharing=sharing)
    homes = () if tables is None else tables.homes_of(chosen)
    if sharing == "runs":
        homes = tuple((source, _home_in_runs(source, steps, len(machines)) or home) for source, home in homes)
    return Plan(graph, machines, steps, homes=(*problem.homes, *homes))


def _home_in_runs(source: Source, steps: Sequence[Step], machines: int) -> Placement | None:
    """Where a source lies so that the machines that need a part of it share that part; by its largest reader."""
    tensor = Tensor(source)
    readers = [step for step in steps if any(read == tensor for read in read_tensors(step))]
    if not readers:
        return None
    largest = max(readers, key=lambda step: step.cuts.box.size)
    spread = None if largest.where.weights else needed_spread(largest, tensor)
    return None if spread is None else in_runs(tensor.shape, spread.digits, spread.copies, spread.offset, machines)


def wave_counts(graph: Graph, machines: int) -> Iterator[Waves]:
    """One wave, then ever more, as long as some dimension is long enough to be cut by them."""
    yield WHOLE
    shapes = [op.index.shape for op in graph.operations] + [sink.tensor.shape for sink in graph.sinks]
    largest = max((max(shape, default=1) for shape in shapes), default=1)
    size = max((op.index.size for op in graph.operations), default=1)
    factor = 2 if len(graph.operations) <= FEW_OPERATIONS else 4
    count = factor
    while count <= min(MOST_WAVES, max(size, largest)):
        if count <= min(largest, MOST_RANGES // machines):
            yield Waves(count)
            yield Waves(count, "longest")
        if count <= size:
            yield Waves(count, "all")
        count *= factor


def _label(steps: Sequence[Step], rank: int, waves: Waves) -> str:
    whole = all(step.cuts.count == 1 for step in steps)
    name = "whole" if whole else f"choice {rank + 1}"
    if waves.count == 1:
        return name
    return f"{name}, {waves.count} {'blocks' if waves.along == 'all' else 'waves'}"


def _refusal(problem: PlanRequest, tried: Sequence[tuple[_Offer, Peaks]], known: Loads) -> PlanError:
    """The error that names the least that was found to do, for machines that all have it.

    Where machines differ, they are filled in another order once all have the same, so everything is looked at again.
    """
    machines = problem.machines
    budget = min(machine.memory_bytes for machine in machines.machines)
    if any(machine.memory_bytes != budget for machine in machines.machines):
        alike = replace(machines, machines=tuple(replace(m, memory_bytes=budget) for m in machines.machines))
        offers = _offers(replace(problem, machines=alike), known)
        tried = [(offer, peaks_of(offer.plan, known)) for offer in offers]
    found, peaks = min(tried, key=lambda one: max(one[1].machines))
    least, step = max(peaks.machines), found.plan.steps[int(peaks.steps.argmax())]
    return PlanError(
        "plan(target, machines)",
        f"no plan that was found fits {size_text(budget)} per machine",
        inputs={
            "machines": machines,
            "operation": f"{step.name} {step.tensor.type} over {step.cuts.box}, cut {step.cuts}, stage {step.stage}",
            "least": f"{size_text(least)} ({least} bytes) per machine, by {found.label!r}, of {len(tried)} plans",
        },
        legal=f"a budget of {least} bytes per machine, or more machines",
        facts={"least_bytes": least, "operation": step.name},
    )


def make_plan(
    graph: Graph,
    machines: Machines,
    decide: Decide,
    atoms: Atoms = lambda sink: None,
    *,
    place: Mapping[Source, Placement | str] | None = None,
    pin: Mapping[Any, Cuts] | None = None,
    forbid: Mapping[Any, Sequence[str]] | None = None,
    objective: str | Objective | Callable[[Plan, Simulation], float] = "seconds",
    trials: int = 0,
    seed: int = 0,
    workers: int = 1,
    runs: float | None = None,
    progress: Callable[[Progressed], None] | None = None,
    model: str = "roofline",
) -> Plan:
    """The verified graph's plan.

    Args:
        graph: what to compute. Sinks that are cut are planned as one per result: the plan cuts them itself.
        machines: where.
        decide: (operation, stage) -> what will compute a shard.
        atoms: sink -> the extents of the region that must have one writer, or None.
        place: where sources lie: a placement, ``"storage"`` (the default: every machine reads what it needs), or
            ``"balanced"`` (one copy, placed by the plan).
        pin: operation (or its tensor) -> parts per index dimension, by name or in order.
        forbid: operation (or its tensor) -> names of index dimensions that are not cut.
        objective: a name in `OBJECTIVES` (``"seconds"``, ``"words"``, ``"peak_memory"``, ..), or a function of a plan
            and its simulation, whose least value wins.
        trials: of a stochastic Pareto search that follows the additive solvers; none by default.
        seed: of its random numbers: the same seed gives the same plan.
        workers: searches side by side, which exchange what they find at fixed numbers of trials.
        runs: how often the plan will run, by which the search weighs its own price.
        progress: called with a `Progressed` as the search goes on.
        model: how long a step computes, by a name in `simulate.MODELS`; the finalists are simulated by it.
    """
    _check_effort(trials, seed, workers, runs)
    problem = problem_of(graph, machines, decide, atoms, place, pin, forbid, objective)
    return search(replace(problem, effort=Effort(trials, seed, workers, runs, progress), model=model))[0]


def _check_effort(trials: Any, seed: Any, workers: Any, runs: Any) -> None:
    for name, value, least, legal in (
        ("trials", trials, 0, "an integer, 0 or more"),
        ("seed", seed, -math.inf, "an integer"),
        ("workers", workers, 1, "an integer, 1 or more"),
    ):
        if not isinstance(value, Integral) or value < least:
            raise PlanError(f"plan({name})", f"{value!r} cannot be taken", legal=legal)
    if runs is not None and not (isinstance(runs, Real) and float(runs) > 0):
        raise PlanError("plan(runs)", f"{runs!r} cannot be taken", legal="a number above 0, or None")


def problem_of(
    graph: Graph,
    machines: Machines,
    decide: Decide,
    atoms: Atoms,
    place: Mapping[Source, Placement | str] | None = None,
    pin: Mapping[Any, Cuts] | None = None,
    forbid: Mapping[Any, Sequence[str]] | None = None,
    objective: str | Objective | Callable[[Plan, Simulation], float] = "seconds",
) -> PlanRequest:
    """The checked problem."""
    graph = join_sinks(verify(graph))
    _check(graph, machines)
    aim = objective_of(objective)
    sources = [node for node in graph.nodes() if isinstance(node, Source)]
    homes, placed = [], []
    for source, where in (place or {}).items():
        if source not in sources:
            raise PlanError("plan(place)", f"source {source.name!r} is not in this graph")
        if isinstance(where, Placement):
            if len(where.grid) != len(source.type.shape):
                raise PlanError("plan(place)", f"a placement of rank {len(where.grid)} for {source.type}")
            homes.append((source, where))
        elif where == BALANCED:
            placed.append(source)
        elif where != STORAGE:
            raise PlanError("plan(place)", f"{where!r} is no place", legal=f"{STORAGE!r}, {BALANCED!r}, a Placement")
    parts = pinned_parts(graph, machines, pin or {})
    extra = tuple(pinned_meshes(parts))
    limited = allowed_shardings(graph, machines, meshes(graph, machines, extra), parts, forbid or {})
    return PlanRequest(graph, machines, decide, atoms, tuple(homes), tuple(placed), tuple(limited.items()), aim, extra)


def _check(graph: Graph, machines: Machines) -> None:
    where, legal = "plan(target, machines)", f"0..{len(machines) - 1}"
    for operation in graph.operations:
        if not operation.outputs:
            raise PlanError(where, f"operation {operation.operator} makes nothing", legal="one output or more")
    for node in graph.nodes():
        if isinstance(node, Source) and node.placement is not None and not 0 <= node.placement < len(machines):
            raise PlanError(
                where,
                f"source {node.name!r} is placed on machine {node.placement}",
                inputs={"machines": machines},
                legal=legal,
            )
    for sink in graph.sinks:
        if sink.placement is not None and not 0 <= sink.placement < len(machines):
            inputs = {"machines": machines, "sink": sink}
            raise PlanError(where, f"a sink is placed on machine {sink.placement}", inputs=inputs, legal=legal)
    targets = [sink.target for sink in graph.sinks if isinstance(sink.target, FileTarget)]
    written = [(target.path, target.key) for target in targets]
    for path, key in written:
        if written.count((path, key)) > 1:
            raise PlanError(where, f"two sinks write {path!r}", legal="one sink per file member")
