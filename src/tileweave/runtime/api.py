"""The main job's verbs: `source`, `sink`, `plan`, `run`.

Example:
    >>> import numpy as np
    >>> y = relu(source(np.array([-1.0, 2.0])) * 3)
    >>> run(y).tolist()
    [0.0, 6.0]
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tileweave.backends.base import backends, registered
from tileweave.backends.host import available_threads
from tileweave.errors import GraphError, PlanError, RunError, StorageError
from tileweave.graph import (
    ArrayData,
    FileTarget,
    Graph,
    Hole,
    MemoryTarget,
    Sink,
    Source,
    Tensor,
    TensorType,
    as_tensor,
    relu,
)
from tileweave.graph.ir.dtypes import element_type
from tileweave.graph.passes.shard import with_sources
from tileweave.kept import keep_last
from tileweave.lower.actions import WorkFailed
from tileweave.lower.forms import decider, planned_forms
from tileweave.lower.reads import never_written
from tileweave.planner import Cuts, Machines, Objective, Placement, Plan, Progressed, Simulation, Step, make_plan
from tileweave.planner import machines as make_machines
from tileweave.planner.show.document import from_document, graph_digest, machines_of
from tileweave.runtime.direct import QUICK, Watch, again
from tileweave.runtime.events import Listener
from tileweave.runtime.further.expressions import further
from tileweave.runtime.io import files as io
from tileweave.runtime.io import zarrfile
from tileweave.runtime.planned import planned, whole
from tileweave.runtime.prepare import prepare
from tileweave.runtime.run import explained, run_plan
from tileweave.runtime.session import PLAIN, SETTINGS, PlanningDone, current_session

__all__ = ["plan", "relu", "run", "sink", "source", "sources"]

Array = np.ndarray[Any, Any]
Target = Tensor | Sink


@runtime_checkable
class Bindable(Protocol):
    """What gives a plan for the arrays of a run, such as plans with symbolic dimensions."""

    def bound(self, bind: Mapping[Any, Any]) -> tuple[Plan, Mapping[Tensor | str, Any]]:
        """The plan for arrays by name, and the arrays by source."""
        ...

    def further(self, bind: Mapping[Any, Any], threads: int, out: Any) -> list[Any] | Watch | None:
        """The results for these arrays where that takes no plan; else what takes their plan when that is bound."""
        ...


MachinesLike = Machines | int | str | os.PathLike[str] | None


def source(
    data: Any = None,
    *,
    name: str = "",
    key: str = "",
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    placement: int | None = None,
) -> Tensor:
    """A tensor from an array, or from a file that is read shard by shard when the plan runs.

    Args:
        data: an array, anything that NumPy reads as one, or the path or URL of a file: .npy, .npz, .zarr, .h5,
            .parquet, .arrow, .safetensors, or of the index of a checkpoint in several files. Arrays are not copied.
            None makes a hole of the given shape and dtype, to be bound by each run.
        name: how `run(.., bind={name: array})` refers to it.
        key: the member of a container; the column of a table.
        shape: of a hole.
        dtype: of a hole.
        placement: number of the machine that holds it.

    Raises:
        StorageError: the file does not exist, is broken, or has a format that is not known.
        GraphError: a hole without shape and dtype.
        DtypeError: elements that are not numbers.
    """
    if type(data) is np.ndarray and (name, key, shape, dtype, placement) == _DEFAULTS:  # as most are
        return as_tensor(data, "source(data)")
    _check_words("source(data)", placement, name=name, key=key)
    if data is None:
        if shape is None or dtype is None:
            raise GraphError("source(data)", "there is no data", legal="data, or the shape and dtype of a hole")
        return Tensor(Source(Hole(), _hole_type(shape, dtype), name, placement))
    if shape is not None or dtype is not None:
        raise GraphError(
            "source(data)", "shape and dtype belong to a hole", legal="data alone, or shape and dtype alone"
        )
    if isinstance(data, (str, os.PathLike)):
        path = os.fspath(data)
        _stop_if_planned(path)
        kind, file = io.describe(path, key)
        return Tensor(Source(file, kind, name or path, placement))
    tensor = as_tensor(data, "source(data)")
    if not isinstance(tensor.producer, Source):
        raise GraphError("source(data)", f"{tensor!r} is a tensor already", legal="an array or a path")
    held = tensor.producer
    plain = name == held.name and placement == held.placement
    return tensor if plain else Tensor(Source(held.data, held.type, name, placement))


_DEFAULTS = ("", "", None, None, None)


def sources(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """A source for each array in a .npz, a zarr group, a safetensors file or a checkpoint of several, by its name.

    Raises:
        StorageError: as `source`; the file is no container.
    """
    return {key: source(path, key=key, name=key) for key in io.members(path)}


def _hole_type(shape: Any, dtype: Any) -> TensorType:
    try:
        extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    except TypeError:
        extents = (shape,)
    if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in extents):
        raise GraphError("source(shape)", f"{shape!r} is not a shape", legal="extents of 0 or more, such as (64, 32)")
    return TensorType(extents, element_type("source(dtype)", dtype))


def _check_words(where: str, placement: object, **words: object) -> None:
    """Passes names that are texts and a placement that is the number of a machine or None."""
    for option, word in words.items():
        if not isinstance(word, str):
            raise GraphError(where, f"{option}={word!r} is not a text", legal=f"such as {option}='x'")
    number = isinstance(placement, (int, np.integer)) and not isinstance(placement, bool) and placement >= 0
    if placement is not None and not number:
        raise GraphError(where, f"placement={placement!r} is no machine", legal="its number, from 0, or None")


def sink(
    tensor: Any,
    path: str | os.PathLike[str],
    *,
    key: str = "",
    overwrite: bool = False,
    chunks: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
    placement: int | None = None,
) -> Sink:
    """A tensor that a run writes to a file: whole, or not at all.

    Args:
        tensor: what to write.
        path: path or URL ending in .npy, .npz, .zarr, .h5, .parquet or .safetensors.
        key: the name of the member or column.
        overwrite: replace what exists; otherwise the run is refused before it starts. With a key, the other members of
            a .npz stay; every other file is replaced whole.
        chunks: of a .zarr: the extents of a chunk, which is read as a whole; by default at most 4 MiB.
        shards: of a .zarr: the extents of a shard, a file of several chunks, which is written as a whole; by default
            each chunk is a file.
        placement: number of the machine that writes it.

    Raises:
        StorageError: a format that is not known; chunks or shards that do not fit it.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise StorageError("sink(tensor, path)", f"{path!r} is not a path", legal="the tensor, then a path or URL")
    _check_words("sink(tensor, path)", placement, key=key)
    made = as_tensor(tensor, "sink(tensor, path)")
    asked = [tuple(extents) for extents in (chunks, shards) if extents is not None]
    if shards is not None and chunks is None:
        asked.insert(0, zarrfile.chunks_within(asked[0], made.type))
    target = io.target(os.fspath(path), key, overwrite, tuple(asked))
    if asked:
        zarrfile.checked_grid(target.grid, made.type, f"sink({os.fspath(path)!r})")
    return Sink(made, target, placement)


def _graph(target: Target | Sequence[Target] | Graph) -> Graph:
    if isinstance(target, Graph):
        return target
    if isinstance(target, (Tensor, Sink)):
        items = [target]
    elif isinstance(target, Sequence):
        items = list(target)
    else:
        raise GraphError("plan(target)", f"{target!r} cannot be computed", legal="tensors and sinks")
    for item in items:
        if not isinstance(item, (Tensor, Sink)):
            raise GraphError("plan(target)", f"{item!r} cannot be computed", legal="tensors and sinks")
    if not items:
        raise GraphError("plan(target)", "there is nothing to compute", legal="at least one tensor or sink")
    return Graph.of(*items)


def plan(
    target: Target | Sequence[Target] | Graph,
    machines: MachinesLike = None,
    *,
    fuse: bool = True,
    place: Mapping[Tensor, Placement | str] | None = None,
    pin: Mapping[Tensor, Cuts] | None = None,
    forbid: Mapping[Tensor, Sequence[str]] | None = None,
    objective: str | Objective | Callable[[Plan, Simulation], float] = "seconds",
    trials: int = 0,
    seed: int = 0,
    workers: int = 1,
    runs: float | None = None,
    progress: Callable[[Progressed], None] | None = None,
) -> Plan:
    """How a target will be computed: per operation its cuts, where its shards run, and what that costs.

    Args:
        target: a tensor, a sink, or several.
        machines: from `machines`, a count, or a TOML file; this host as one machine by default.
        fuse: whether operations that can be one are planned as one: a chain of elementwise operations, a product with
            its bias and relu, a convolution with the chain behind it, reductions and what stands around them row by
            row, attention (`tileweave.graph.passes.rules.FUSIONS`, and those of `tileweave.graph.passes.grouping`). The
            value stays, up to the rounding of a sum. A large chain takes in only what there is compiled code for, so
            that no step falls back to NumPy for another's sake.
        place: source -> where it lies: a `Placement`, ``"storage"`` (the default: every machine reads what it needs),
            or ``"balanced"`` (one copy over the machines, placed by the plan).
        pin: tensor -> parts per dimension of the operation that makes it, by name (``{"batch": 4}``) or in order.
            A pinned graph is planned as it is written, without fusing.
        forbid: tensor -> names of dimensions that are not cut.
        objective: a name (``"seconds"``, ``"words"``: the most bytes that any machine receives, ``"peak_memory"``, ..:
            `tileweave.planner.OBJECTIVES`), or a function of a plan and its simulation, whose least value wins.
        trials: of a stochastic Pareto search that follows the additive solvers; none by default.
        seed: of its random numbers: the same seed gives the same plan.
        workers: searches side by side, which exchange what they find.
        runs: how often the plan will run; the search stops where further trials take longer than they save.
        progress: called with a `Progressed` as the search goes on.

    Raises:
        PlanError: nothing that was found fits the memory; carries the least that does.
        VerifyError: the graph is malformed.
    """
    if isinstance(machines, (Tensor, Sink, list, tuple)):
        raise GraphError("plan(target, machines)", f"{machines!r} are no machines", legal="plan([a, b]) for several")
    given = make_machines(machines) if machines is not None else None
    settings = current_session()
    used = (settings.machines(given) if settings.machines else given) or make_machines(1)
    fuse = fuse and not settings.as_written
    graph, listed = _graph(target), isinstance(target, Sequence)
    if settings.kept is not None:
        return replace(_kept(graph, settings.kept), listed=listed)
    said = settings.choosing(graph) if settings.choosing is not None else {}
    for name, option in (("place", place), ("pin", pin), ("forbid", forbid)):
        if option is not None and not isinstance(option, Mapping):
            raise PlanError(f"plan({name})", f"{option!r} is no mapping", legal="{tensor: ..}")
    if place or pin or forbid or trials != 0 or runs is not None or workers != 1 or objective != "seconds" or said:
        homes = {_source_of(tensor): where for tensor, where in (place or {}).items()}
        how: dict[str, Any] = {"place": homes, "pin": pin, "forbid": forbid, "objective": objective}
        how |= {"trials": trials, "seed": seed, "workers": workers, "runs": runs, "progress": progress, **said}
        freely = fuse and not (how["pin"] or how["forbid"])
        chosen = planned(graph, used, how) if freely else make_plan(graph, used, decider(used), io.atom, **how)
        return replace(chosen, listed=listed)
    known = _PLANS.setdefault(graph, {})
    key = used, fuse, tuple(map(id, backends()))
    if key not in known:
        made = planned(graph, used) if fuse else make_plan(graph, used, decider(used), io.atom)
        other = made.graph if made.graph is not graph else None
        known[key] = other, (made.steps, made.seconds, made.peak_bytes, made.alternatives, made.homes, made.gap)
    other, figures = known[key]
    return Plan(other or graph, used, *figures, listed=listed)


def _source_of(tensor: Any) -> Source:
    if not isinstance(tensor, Tensor) or not isinstance(tensor.producer, Source):
        raise PlanError("plan(place)", f"{tensor!r} is not a source", legal="{source: placement}")
    return tensor.producer


def _kept(graph: Graph, kept: Sequence[dict[str, Any]]) -> Plan:
    """The plan of a graph among those that were kept, whatever was fused for it."""
    for document in kept:
        for made in planned_forms(graph, machines_of(document)):
            if document.get("digest") == graph_digest(made):
                return from_document(document, made)
    raise PlanError("plan(target)", "no plan was kept of this graph", legal="planning it, without --load")


_Homes = tuple[tuple[Source, Placement], ...]
_Figures = tuple[
    tuple[Step, ...], float, tuple[int, ...], tuple[tuple[str, float, int, int], ...], _Homes, float | None
]
_Made = tuple[Graph | None, _Figures]  # the graph that is planned, where it is another
_PLANS: weakref.WeakKeyDictionary[Graph, dict[tuple[Machines, bool, tuple[int, ...]], _Made]] = (
    weakref.WeakKeyDictionary()
)
"""What was planned, for as long as its graph lives; a plan itself would keep the graph alive."""


class _Target(NamedTuple):
    """What was run: a plan that refers to none of it, so that it goes with the first of what is computed.

    Args:
        plan: of the same graph with holes for arrays.
        arrays: what the holes stand for, by hole.
        keys: of ``bind`` as they were given -> what the plan is given for them.
        backends: that were registered.
        gone: end what is known.
    """

    plan: Plan
    arrays: dict[Any, Array]
    keys: dict[Any, Tensor]
    backends: tuple[Any, ...]
    gone: list[weakref.ref[Any]]


_TARGETS: dict[Any, _Target] = {}
"""By machines, whether one result is wanted, and the identities of what is computed."""
_RECENT: dict[Any, tuple[Plan, int]] = {}
"""Plans of graphs with holes, the last used last, and the bytes that each may hold: an expression that is written
anew, on other arrays too, is planned once."""
RECENT_PLANS, RECENT_BYTES = 64, 1 << 27
"""As many plans are kept, and as many bytes of theirs."""


def _target(target: Target | Sequence[Target] | Graph, machines: MachinesLike) -> _Target:
    single = isinstance(target, (Tensor, Sink, Graph))
    items: Any = (target,) if single else tuple(target) if isinstance(target, Sequence) else ()
    where = machines if machines is None or type(machines) in (int, Machines) else make_machines(machines)
    identity = id(target)
    key = where, single, *map(id, items)
    known = _TARGETS.get(key)
    if known is not None and known.backends == registered():
        return known
    graph, arrays, holes = _graph(target), dict[Any, Array](), dict[Source, Source]()
    for number, source in enumerate(node for node in graph.nodes() if isinstance(node, Source)):
        array = source.data.array if isinstance(source.data, ArrayData) else None
        if isinstance(source.data, Hole) or (array is not None and not never_written(array)):
            holes[source] = replace(source, data=Hole(f"{number} of what runs"))
            if array is not None:
                arrays[Tensor(holes[source])] = array
    same = with_sources(graph, holes)
    made = _Target(_recent(same, where, not single), arrays, {}, registered(), [])
    made.keys.update((Tensor(old), Tensor(new)) for old, new in holes.items())
    if not any(item in made.keys for item in items) and not any(node in items for node in same.nodes()):

        def forget(_: object) -> None:
            _TARGETS.pop(key, None)
            QUICK.pop(identity, None)

        made.gone.extend(weakref.ref(item, forget) for item in items)
        _TARGETS[key] = made
    return made


def _recent(graph: Graph, where: MachinesLike, listed: bool) -> Plan:
    """The plan of a graph with holes."""
    key = graph, where, listed, registered()
    found, size = _RECENT.pop(key, (None, 0))
    if found is None:
        found, _ = _RECENT.get((graph, where, not listed, registered()), (None, 0))
        found = found or whole(graph, make_machines(1 if where is None else where)) or plan(graph, where)
        found = replace(found, listed=listed)
        data = (node.data for node in graph.nodes() if isinstance(node, Source))
        size = sum(prepare(found).peak_bytes) + sum(one.array.nbytes for one in data if isinstance(one, ArrayData))
    if size <= RECENT_BYTES:
        _RECENT[key] = found, size
    keep_last(_RECENT, RECENT_PLANS)
    while sum(size for _, size in tuple(_RECENT.values())) > RECENT_BYTES:
        keep_last(_RECENT, len(_RECENT) - 1)
    return found


def _given(known: _Target, target: Target | Sequence[Target] | Graph, bind: Mapping[Tensor | str, Any]) -> Any:
    """What a plan with holes is given: the arrays of the target, and instead of them those of ``bind``."""
    if not bind:
        return known.arrays
    if not isinstance(bind, Mapping) or not all(key in known.keys for key in bind):
        for key, source in _keys(_graph(target), bind).items():
            known.keys.setdefault(key, known.keys.get(Tensor(source), Tensor(source)))
    given = {known.keys[key]: value for key, value in bind.items()}
    if len(given) != len(bind):
        _keys(_graph(target), bind)  # two keys for one source
    return {**known.arrays, **given}


def _further(target: Any, threads: int, out: Any) -> list[Any] | Watch | None:
    """As `further`, of what has no plan yet."""
    single = isinstance(target, (Tensor, Sink, Graph))
    if not single and not isinstance(target, (list, tuple)):
        return None
    if (None, single, *map(id, (target,) if single else target)) in _TARGETS:
        return None
    return further(target, threads, out)


def run(
    target: Plan | Bindable | Target | Sequence[Target] | Graph,
    *,
    bind: Mapping[Tensor | str, Any] | None = None,
    machines: MachinesLike = None,
    runtime: Literal["local", "ray"] = "local",
    address: str | None = None,
    threads: int | None = None,
    progress: bool = False,
    listeners: Sequence[Listener] = (),
    out: Array | Sequence[Array | None] | None = None,
    resume: bool = False,
) -> Any:
    """The values of a plan's sinks: arrays for tensors, paths for files.

    Args:
        target: a plan, also one with symbolic dimensions, or what `plan` takes.
        bind: arrays for named or given sources, instead of what they hold, of the same shape and element type.
        machines: as for `plan`, where the target is not a plan.
        runtime: ``local`` (threads of this process) or ``ray``.
        address: of a running Ray cluster; without one a local cluster is started.
        threads: of the local runtime; by default ``TILEWEAVE_THREADS``, else as many as the process may use.
        progress: show a bar.
        listeners: called with every event.
        out: an array that takes the result, or one (or None) per result; it is written without a copy where it is in
            row-major order and apart from what is read. A run that fails may leave it written in part.
        resume: whether a run that does not end well leaves what it has finished of its files, under
            temporary names with a journal, and a run of the same plan on the same sources goes on with it.

    Returns:
        One result where one sink is observed, else a list in order. A sequence as the target gives a list, also of one,
        and so does a plan of a sequence.

    Raises:
        RunError: a task failed; no sink was written.
        StorageError: a sink exists and `overwrite` was not asked for, or cannot be written; what an unfinished run left
            is of another plan or of other sources.
    """
    quick = QUICK.get(id(target))
    if (  # of a small run, most of the overhead is what is asked below
        quick is not None
        and machines is address is None
        and runtime == "local"
        and not (listeners or progress or resume)
        and SETTINGS[-1] is PLAIN
    ):
        asked, call, arrays, about, _ = quick
        if asked is (available_threads() if threads is None else threads) and (about is None or about is registered()):
            result = call(bind or arrays, out)
            if result is not None:
                return result
    settings, known, watch = current_session(), None, None
    plain = (
        settings is PLAIN and runtime == "local" and address is None and listeners == () and not (progress or resume)
    )
    if type(target) is Plan and machines is None:
        made = target
    else:
        if not isinstance(target, (Plan, Tensor, Graph, list, tuple)) and isinstance(target, Bindable):
            if plain and machines is None and (threads is None or type(threads) is int):
                done = target.further(bind or {}, available_threads() if threads is None else threads, out)
                if isinstance(done, list):
                    return done if len(done) != 1 else done[0]
                watch = done
            target, bind = target.bound(bind or {})
        if isinstance(target, Plan) and machines is not None:
            raise PlanError("run(plan, machines)", "the plan has its machines already", legal="plan(target, machines)")
        if isinstance(target, Plan):
            made = target
        elif settings is not PLAIN or runtime != "local" or resume:
            made = plan(target, machines)
        else:
            if plain and machines is None and not bind and (threads is None or type(threads) is int):
                done = _further(target, available_threads() if threads is None else threads, out)
                if isinstance(done, list):
                    return done if isinstance(target, (list, tuple)) or len(done) != 1 else done[0]
                watch = done
            known = _target(target, machines)
            made, bind = known.plan, _given(known, target, bind or {})
    if plain and (bind is None or type(bind) is dict) and (threads is None or type(threads) is int):
        into = None if out is None else [out] if isinstance(out, np.ndarray) else out
        try:  # most of the overhead of a small run
            found = again(made, bind or {}, available_threads() if threads is None else threads, into)
        except WorkFailed as failed:
            raise explained(failed, made, prepare(made)) from failed.__cause__
        if found is not None:
            if known is not None and known.gone and machines is None and type(target) is Tensor and id(made) in QUICK:
                asked, call, _, _, kept = QUICK[id(made)]
                QUICK[id(target)] = asked, call, known.arrays, known.backends, kept
            return found[0] if len(found) == 1 and not made.listed else found
    if settings.planned is not None:
        settings.planned(made)
        if any(isinstance(item.target, MemoryTarget) for item in made.graph.sinks):
            raise PlanningDone
        files = [item.target.path for item in made.graph.sinks if isinstance(item.target, FileTarget)]
        settings.unwritten.update(str(Path(path).absolute()) for path in files)
        results: list[Any] = [getattr(item.target, "path", None) for item in made.graph.sinks]
    else:
        if not isinstance(listeners, Iterable) or not all(map(callable, listeners)):
            problem = f"{listeners!r} are no listeners"
            raise RunError("run(plan, listeners)", problem, legal="functions of one event, in a list")
        listening = list(listeners)
        if settings.progress if settings.progress is not None else progress:
            listening.append(_progress_bar())
        if settings.listening is not None:
            listening += settings.listening(made)
        keys = _keys(made.graph, bind or {})
        results = run_plan(
            made,
            bind=_bound(made.graph, keys, bind or {}),
            runtime=settings.runtime or runtime,
            address=None if settings.runtime == "local" else settings.address or address,
            threads=settings.threads or threads,
            overwrite=settings.overwrite,
            listeners=listening,
            out=[out] if isinstance(out, np.ndarray) else out,
            resume=_resumes(made.graph, resume, settings.resume),
            keys=keys,
            watch=watch,
        )
    return results if made.listed or len(results) != 1 else results[0]


def _resumes(graph: Graph, asked: bool, wished: bool) -> bool:
    """Whether a run can be gone on with: asked of a run, it must be; wished for all runs of a program, it may be."""
    able = any(isinstance(sink.target, FileTarget) for sink in graph.sinks)
    if asked and not able:
        raise RunError("run(plan, resume)", "no sink stays where it is written", legal="a sink in a file")
    return able and (asked or wished)


def _stop_if_planned(path: str) -> None:
    """A program that reads what an earlier run would have written needs that run's result."""
    if str(Path(path).absolute()) in current_session().unwritten:
        raise PlanningDone


def _progress_bar() -> Callable[[Any], None]:
    from tileweave.runtime.trace import ProgressBar

    return ProgressBar()


def _array(value: Any, dtype: np.dtype[Any]) -> Array:
    """An array as it is; Python numbers and lists in the wanted type where no value changes kind."""
    held = as_tensor(value, "run(target, bind)").producer
    array = held.data.array if isinstance(held, Source) and isinstance(held.data, ArrayData) else None
    if array is None:
        raise GraphError("run(target, bind)", f"{value!r} is not an array", legal="arrays, numbers, nested lists")
    plain = not isinstance(value, (np.ndarray, np.generic))
    return array.astype(dtype) if plain and np.can_cast(array.dtype, dtype, "same_kind") else array


@dataclass(frozen=True, slots=True)
class _Sources:
    """A graph's sources, and those of them that have a name or lack data."""

    all: frozenset[Source]
    named: Mapping[str, tuple[Source, ...]]
    holes: tuple[Source, ...]


_SOURCES: weakref.WeakKeyDictionary[Graph, _Sources] = weakref.WeakKeyDictionary()


def _sources(graph: Graph) -> _Sources:
    found = _SOURCES.get(graph)
    if found is None:
        nodes = [node for node in graph.nodes() if isinstance(node, Source)]
        names = dict.fromkeys(node.name for node in nodes)
        named = {name: tuple(node for node in nodes if node.name == name) for name in names}
        holes = tuple(node for node in nodes if isinstance(node.data, Hole))
        found = _SOURCES[graph] = _Sources(frozenset(nodes), named, holes)
    return found


def _keys(graph: Graph, bind: Mapping[Tensor | str, Any]) -> dict[Tensor | str, Source]:
    """The source that each key of ``bind`` names."""
    if not isinstance(bind, Mapping):
        raise GraphError("run(target, bind)", f"bind={bind!r} is no mapping", legal="bind={source or its name: array}")
    sources = _sources(graph)
    out: dict[Tensor | str, Source] = {}
    for which in bind:
        if isinstance(which, Tensor):
            found: tuple[Source, ...] = (which.producer,) if isinstance(which.producer, Source) else ()
        else:
            found = sources.named.get(which, ())
        if len(found) != 1:
            names = ", ".join(map(repr, filter(None, sources.named))) or "no source has a name"
            raise GraphError("run(target, bind)", f"{which!r} is not one source", legal=names)
        if found[0] not in sources.all:
            raise GraphError("run(target, bind)", f"source {found[0].name!r} is not in this graph")
        if found[0] in out.values():
            legal = "one key for it: the tensor, or its name"
            raise GraphError("run(target, bind)", f"source {found[0].name!r} is bound twice", legal=legal)
        out[which] = found[0]
    return out


def _bound(graph: Graph, keys: Mapping[Tensor | str, Source], bind: Mapping[Tensor | str, Any]) -> dict[Source, Array]:
    """The array of each source that is bound."""
    out: dict[Source, Array] = {}
    for which, source in keys.items():
        value, kind = bind[which], source.type
        plain = type(value) is np.ndarray and value.dtype == kind.dtype
        array = value if plain else _array(value, kind.dtype)
        if array.shape != kind.shape or array.dtype != kind.dtype:
            raise GraphError(
                "run(target, bind)",
                f"the array for source {source.name!r} has shape {array.shape} and type {array.dtype.name}",
                legal=str(kind),
            )
        out[source] = array
    for hole in _sources(graph).holes:
        if hole not in out:
            empty = f"source {hole.name!r} {hole.type} has no data"
            raise GraphError("run(target, bind)", empty, legal="bind={name: array}")
    return out
