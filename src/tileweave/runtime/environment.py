"""Environments: named tensors that stay between programs, and programs that run on them under one budget.

In memory, an environment belongs to its process. In a folder, every process that opens the folder sees the same
tensors: each is a .npy that appears whole, and what a program reads and writes of it is what its plan says.

Source: Tapestry, "Distributed Tensor Expression Environments": allocate, load, copy, apply, export, drop.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from tileweave.errors import GraphError, PlanError, RunError, StorageError
from tileweave.graph import Graph, Hole, Sink, Source, Tensor, TensorType, as_tensor
from tileweave.graph.ir.dtypes import element_type
from tileweave.lower.reads import slices
from tileweave.planner import Machines, Placement, Plan
from tileweave.planner import machines as make_machines
from tileweave.runtime import api
from tileweave.runtime.events import Listener
from tileweave.runtime.io import files as io
from tileweave.runtime.io.sinks import open_sinks
from tileweave.runtime.run import run_plan
from tileweave.runtime.session import PLAIN, current_session
from tileweave.space import Box

if TYPE_CHECKING:
    from tileweave.runtime.ray.held import Nodes

Array = np.ndarray[Any, Any]
OURS = Hole("environment")
"""What a tensor of an environment in memory holds until a program runs: the name says which array is bound."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def environment(
    machines: api.MachinesLike = None,
    *,
    folder: str | Path | None = None,
    runtime: Literal["local", "ray"] = "local",
    address: str | None = None,
    copies: int | None = None,
    lineage: bool = False,
) -> Environment:
    """An environment of named tensors.

    Args:
        machines: where its programs run; their memory together is the budget. This host as one machine by default.
        folder: where its tensors lie, for other processes too; it is made where it is missing. None: in memory.
        runtime: of its programs.
        address: of a running Ray cluster.
        copies: how many nodes of the cluster hold each block of a tensor; None: this process holds all tensors.
        lineage: whether a tensor that is lost with its nodes is computed again, from the programs that made it and
            what these have read; arrays that were loaded from this process stay in it for that.

    Example:
        >>> import tileweave as tw
        >>> env = environment()
        >>> env.load("x", [[1.0, 2.0], [3.0, 4.0]])
        >>> env.apply({"y": tw.sum(env["x"] * 2, 0)})
        >>> env.read("y").tolist()
        [8.0, 12.0]
    """
    chosen = make_machines(machines) if machines is not None else make_machines(1)
    if runtime not in ("local", "ray"):
        raise RunError("environment(runtime)", f"there is no runtime {runtime!r}", legal="local, ray")
    if (copies is not None or lineage) and (runtime != "ray" or folder is not None):
        legal = 'runtime="ray" and no folder, or neither copies nor lineage'
        raise RunError("environment(copies, lineage)", "its tensors lie on no node of a cluster", legal=legal)
    if copies is not None and (isinstance(copies, bool) or not isinstance(copies, int) or copies < 1):
        raise RunError("environment(copies)", f"{copies!r} is no number of copies", legal="1 or more")
    if address is not None and runtime == "local":
        problem = "a Ray cluster is named for the local runtime"
        raise RunError("environment(address)", problem, legal="runtime='ray'")
    spread = 1 if lineage and copies is None else copies
    return Environment(chosen, Path(folder) if folder is not None else None, runtime, address, spread, lineage)


@dataclass(eq=False, slots=True)
class _Version:
    """What a name holds from one program to the next.

    Args:
        type: of the tensor.
        array: the values, where this process holds them.
        held: where they lie, where nodes of a cluster hold them.
        made: the tensor of the program that made it, and what that has read by name; None where that is not kept.
        depth: how many programs in a row stand behind it.
    """

    type: TensorType
    array: Array | None
    held: Any = None
    made: tuple[Tensor, Mapping[str, _Version]] | None = None
    depth: int = 0


LONGEST_LINEAGE = 32
"""Programs that are run again at most to have one tensor back; behind a longer row, a tensor is held by two nodes."""


class Environment:
    """Named tensors, and the programs that run on them; see `environment`.

    Any thread may use it. A program sees every tensor as it was when the program started, and its results take their
    names together, when it has succeeded. Programs start while their planned peaks fit beside the tensors and each
    other; others wait.
    """

    def __init__(
        self,
        machines: Machines,
        folder: Path | None,
        runtime: Literal["local", "ray"],
        address: str | None,
        copies: int | None = None,
        lineage: bool = False,
    ) -> None:
        self.machines = machines
        self._folder, self._runtime, self._address = folder, runtime, address
        self._lineage, self._nodes = lineage, None if copies is None else _nodes(address, copies)
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                problem = f"{str(folder)!r} cannot be a folder: {error.strerror}"
                raise StorageError("environment(folder)", problem, legal="a path where one can be") from error
        self._versions: dict[str, _Version] = {}
        self._places: dict[str, Placement | str] = {}
        self._reading: Counter[int] = Counter()  # ids of arrays that programs read now
        self._turn = threading.Condition()
        self._promised = 0
        self._running = 0
        self._plans: weakref.WeakKeyDictionary[Graph, dict[Any, Plan]] = weakref.WeakKeyDictionary()

    # ---- tensors ------------------------------------------------------------------------------------------------

    @property
    def budget_bytes(self) -> int:
        """What tensors and running programs may hold together."""
        return sum(machine.memory_bytes for machine in self.machines.machines)

    @property
    def held_bytes(self) -> int:
        """What the tensors hold in memory, copies included; those in a folder hold none."""
        copies = 1 if self._nodes is None else self._nodes.copies
        return sum(version.type.size_bytes for version in self._versions.values()) * copies

    def __iter__(self) -> Iterator[str]:
        if self._folder is not None:
            return iter(sorted(path.stem for path in self._folder.glob("*.npy") if not path.name.startswith(".")))
        return iter(sorted(self._versions))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __getitem__(self, name: str) -> Tensor:
        """A tensor by its name, for programs: it stands for what the name holds when a program starts."""
        if self._folder is not None:
            self._known("environment[name]", name)
            return api.source(self._path(name), name=name)
        return Tensor(Source(OURS, self._version("environment[name]", name).type, name))

    def allocate(
        self, name: str, shape: Sequence[int], dtype: Any, fill: Any = 0, place: Placement | str | None = None
    ) -> None:
        """A tensor of one value.

        Args:
            name: letters, digits, ``_``, ``.`` and ``-``; a tensor that has it is replaced.
            shape: its extents.
            dtype: its element type.
            fill: the value.
            place: where the planner takes it to lie, as `tileweave.plan` has it; storage by default.
        """
        kind = TensorType((shape,) if isinstance(shape, int) else tuple(shape), element_type("allocate(dtype)", dtype))
        self._put("allocate(name)", name, np.broadcast_to(np.asarray(fill, kind.dtype), kind.shape), place)

    def load(self, name: str, data: Any, *, key: str = "", place: Placement | str | None = None) -> None:
        """A tensor from an array, or from a file in any format that sources have.

        Args:
            name: as for `allocate`.
            data: an array, or a path or URL.
            key: the member of a container.
            place: as for `allocate`.
        """
        self._named("load(name)", name)
        made = api.source(data, key=key)
        self.apply({name: made})
        self._placed(name, place)

    def copy(self, name: str, box: Box, target: str, at: Sequence[int]) -> None:
        """Copies a box of a tensor into another one, when no program reads that.

        Args:
            name: what is read.
            box: a region of it.
            target: what is written; the same element type.
            at: where the box's least corner goes.
        """
        where = "copy(name, box, target, at)"
        if not isinstance(box, Box) or not isinstance(at, Sequence):
            raise GraphError(where, f"{box!r} at {at!r} is no place", legal="a Box, and the coordinates of a corner")
        there = Box(tuple(at), box.shape)
        if self._folder is not None:
            self._known(where, name)
            self._known(where, target)
            read = np.load(self._path(name), mmap_mode="r")
            written = np.load(self._path(target), mmap_mode="r")
            _check_copy(where, read, box)
            _check_copy(where, written, there, read.dtype)
            whole = Box.of(written.shape)
            with self._turn:
                self._replace(
                    target, TensorType(whole.shape, read.dtype), [(whole, written), (there, read[slices(box)])]
                )
            return
        with self._turn:
            kinds = [self._version(where, one).type for one in (name, target)]
            _check_copy(where, kinds[0], box)
            _check_copy(where, kinds[1], there, kinds[0].dtype)
            if self._nodes is not None and not self._lineage:
                moved, old = self._array(where, name, box), self._version(where, target)
                self._values(target, old, there)  # an error where it is lost
                self._versions[target] = _Version(old.type, None, self._nodes.patched(old.held, there, moved))
                return
            read, written = self._array(where, name), self._array(where, target)
            while self._reading[id(written)]:
                self._turn.wait()
                written = self._array(where, target)
            if not written.flags.writeable or self._nodes is not None:
                written = np.array(written)
            written[slices(there)] = np.array(read[slices(box)])
            if written is not self._versions[target].array:
                self._versions[target] = self._made_version(written, None)

    def read(self, name: str, box: Box | None = None) -> Array:
        """The values of a tensor, or of a box of it, as a new array; nodes of a cluster send no more than the box."""
        where = "read(name, box)"
        if self._folder is not None:
            self._known(where, name)
            found = np.load(self._path(name), mmap_mode="r")
        else:
            found = self._version(where, name).type
        if box is not None:
            _check_copy(where, found, box)
        if self._folder is None:
            return np.array(self._array(where, name, box))
        return np.array(found if box is None else found[slices(box)])

    def export(self, name: str, path: str | Path, *, key: str = "", overwrite: bool = False) -> None:
        """Writes a tensor to a file in any format that sinks have."""
        sink = api.sink(self[name], path, key=key, overwrite=overwrite)
        self._run(Graph.of(sink))

    def drop(self, name: str) -> None:
        """Forgets a tensor; a program that reads it goes on."""
        self._known("drop(name)", name)
        self._places.pop(name, None)
        if self._folder is not None:
            self._path(name).unlink(missing_ok=True)
            return
        with self._turn:
            del self._versions[name]
            self._turn.notify_all()

    # ---- programs -----------------------------------------------------------------------------------------------

    def plan(self, results: Mapping[str, Any]) -> Plan:
        """The plan by which `apply` would run."""
        return self._planned(self._graph(results)[0], None)

    def apply(self, results: Mapping[str, Any], *, listeners: Sequence[Listener] = ()) -> None:
        """Computes tensors from those of the environment, and gives them names; a name that is taken is given anew.

        Args:
            results: name -> tensor, an expression over ``environment[name]`` and any other sources.
            listeners: called with every event.

        Raises:
            PlanError: no plan fits the budget beside the tensors that are held.
            RunError: a task failed; every name holds what it held.
        """
        graph, names = self._graph(results)
        values, read = self._run(graph, listeners)
        if self._folder is None:
            tensors = (as_tensor(value, "apply(results)") for value in results.values())
            made = [self._made_version(value, (tensor, read)) for value, tensor in zip(values, tensors, strict=True)]
            with self._turn:
                self._versions.update(zip(names, made, strict=True))
                self._turn.notify_all()

    def _made_version(self, array: Any, made: tuple[Tensor, Mapping[str, _Version]] | None) -> _Version:
        """A version of these values, or of what a run has left on nodes, held as the environment holds them."""
        here = isinstance(array, np.ndarray)
        kind = TensorType(array.shape, array.dtype) if here else array.type
        if self._nodes is None:
            return _Version(kind, array)
        depth = 1 + max((version.depth for version in made[1].values()), default=0) if made is not None else 0
        safe = self._lineage and made is not None and depth <= LONGEST_LINEAGE
        copies = max(2, self._nodes.copies) if self._lineage and not safe else None
        held = self._nodes.hold(array, copies) if here else array.held(copies or self._nodes.copies)
        return _Version(kind, None, held, made if safe else None, depth if safe else 0)

    def _values(self, name: str, version: _Version, box: Box | None = None) -> Array:
        """The values of a version, or of a box; what nodes have taken with them comes from copies, or is made again."""
        part = ... if box is None else slices(box)
        if version.array is not None or self._nodes is None:
            return cast("Array", version.array)[part]
        from tileweave.runtime.ray.held import Lost

        try:
            version.held = self._nodes.mended(version.held)
            return cast("Array", self._nodes.read(version.held, box))
        except Lost:
            if version.made is None:
                problem = f"the nodes that held tensor {name!r} are gone"
                legal = "environment(copies=2) or environment(lineage=True), which outlive a node"
                raise RunError("environment", problem, legal=legal) from None
        tensor, read = version.made
        graph = Graph.of(tensor)
        given = {node: node.name for node in graph.nodes() if isinstance(node, Source) and node.data == OURS}
        bind: dict[Tensor | str, Array] = {
            Tensor(source): self._values(called, read[called]) for source, called in given.items()
        }
        plan = self._planned(graph, None)
        array: Array = api.run(plan, bind=bind, runtime=self._runtime, address=self._address)
        version.held = self._nodes.hold(array)
        return array[part]

    def _graph(self, results: Mapping[str, Any]) -> tuple[Graph, list[str]]:
        if not isinstance(results, Mapping) or not results:
            raise GraphError("apply(results)", f"{results!r} names no tensor", legal="{name: tensor}")
        for name in results:
            self._named("apply(results)", name)
        tensors = [as_tensor(value, "apply(results)") for value in results.values()]
        if self._folder is None:
            return Graph.of(*tensors), list(results)
        paths = [str(self._path(name)) for name in results]
        return Graph.of(*(Sink(t, io.target(p, overwrite=True)) for t, p in zip(tensors, paths, strict=True))), []

    def _planned(self, graph: Graph, memory: int | None) -> Plan:
        places = {}
        for node in graph.nodes():
            if isinstance(node, Source) and node.name in self._places and node.name in self:
                places[Tensor(node)] = self._places[node.name]
        kept = self._plans.setdefault(graph, {})
        key = memory, tuple(places.items())
        if key not in kept:
            machines = self.machines if memory is None else make_machines(self.machines, memory=memory)
            kept[key] = api.plan(graph, machines, place=places or None)
        return kept[key]

    def _run(self, graph: Graph, listeners: Sequence[Listener] = ()) -> tuple[list[Any], Mapping[str, _Version]]:
        """The results of a program, and the versions that it has read."""
        made = sum(sink.tensor.type.size_bytes for sink in graph.sinks) if self._folder is None else 0
        plan = self._planned(graph, None)
        with self._turn:
            room = self.budget_bytes - self.held_bytes - made
        if sum(plan.peak_bytes) > room:  # beside what is held, a tighter plan
            share = room // len(self.machines)
            if share <= 0:
                raise PlanError(
                    "apply(results)",
                    f"{-room} bytes more than the budget of {self.budget_bytes} would be held",
                    legal="drop(name) of what is not needed, or machines with more memory",
                )
            plan = self._planned(graph, share)
        sources = [node for node in graph.nodes() if isinstance(node, Source) and node.data == OURS]
        with self._admitted(sum(plan.peak_bytes) + made, [source.name for source in sources]) as (arrays, read):
            if self._nodes is not None and current_session() is PLAIN:
                return self._run_on_nodes(plan, {source: read[source.name] for source in sources}, listeners), read
            arrays = arrays or {name: self._values(name, version) for name, version in read.items()}
            bind: dict[Tensor | str, Array] = {Tensor(source): arrays[source.name] for source in sources}
            options: dict[str, Any] = {"runtime": self._runtime, "address": self._address, "listeners": listeners}
            found = api.run(plan, bind=bind, **options)
        return found if len(graph.sinks) > 1 else [found], read

    def _run_on_nodes(self, plan: Plan, read: Mapping[Source, _Version], listeners: Sequence[Listener]) -> list[Any]:
        """The results of a program, left on the nodes that make them; what it reads goes from node to node."""
        from tileweave.runtime.ray.held import HeldSink, HeldSource, Lost

        nodes = cast("Nodes", self._nodes)
        options: dict[str, Any] = {"runtime": "ray", "address": self._address, "listeners": listeners}
        while True:
            living, kept = set(nodes.living()), dict[Sink, HeldSink]()
            for source, version in read.items():
                self._values(source.name, version, _corner(version.type))  # what has gone with nodes is made again
            bind = {source: HeldSource(nodes, version.held) for source, version in read.items()}
            keep = partial(_kept_on, nodes, kept)
            try:
                found = run_plan(plan, bind=bind, keep=keep, **options)
                for one in kept.values():
                    one.check()
                return [kept.get(sink, value) for sink, value in zip(plan.graph.sinks, found, strict=True)]
            except (RunError, Lost) as error:
                if living <= set(nodes.living()):  # it was not a node that went meanwhile
                    if isinstance(error, Lost):
                        raise RunError("environment", "the cluster has lost blocks of a tensor") from error
                    raise

    @contextmanager
    def _admitted(
        self, need_bytes: int, names: Sequence[str]
    ) -> Iterator[tuple[dict[str, Array], dict[str, _Version]]]:
        """Waits until a program fits beside the others; the arrays that it reads stay as they are meanwhile."""
        with self._turn:
            while self._running and self.held_bytes + self._promised + need_bytes > self.budget_bytes:
                self._turn.wait()
            read = {name: self._version("apply(results)", name) for name in names}
            here = read.items() if self._nodes is None else ()
            arrays = {name: self._values(name, version) for name, version in here}
            held = list(arrays.values())
            self._reading.update(map(id, held))
            self._promised += need_bytes
            self._running += 1
        try:
            yield arrays, read
        finally:
            with self._turn:
                self._reading.subtract(map(id, held))
                self._reading += Counter()
                self._promised -= need_bytes
                self._running -= 1
                self._turn.notify_all()

    # ---- names --------------------------------------------------------------------------------------------------

    def _put(self, where: str, name: str, array: Array, place: Placement | str | None) -> None:
        self._named(where, name)
        if self._folder is not None:
            self._replace(name, TensorType(array.shape, array.dtype), [(Box.of(array.shape), array)])
        else:
            with self._turn:
                held = self.held_bytes + self._promised - self._bytes(name)
                if held + array.nbytes > self.budget_bytes:
                    problem = f"{array.nbytes} bytes do not fit beside {held} of {self.budget_bytes}"
                    raise RunError(where, problem, legal="fewer bytes, or drop(name) first")
                tensor = api.source(array) if self._lineage else None
                self._versions[name] = self._made_version(np.array(array), None if tensor is None else (tensor, {}))
        self._placed(name, place)

    def _replace(self, name: str, kind: TensorType, parts: Sequence[tuple[Box, Array]]) -> None:
        """Gives a tensor in the folder these values, one part after the other; others see all of them or none."""
        sinks = open_sinks([(io.target(self._path(name), overwrite=True), kind)])
        try:
            for box, values in parts:
                sinks.writers[0].write(box, values)
            sinks.commit()
        except BaseException:
            sinks.abort()
            raise

    def _bytes(self, name: str) -> int:
        return self._versions[name].type.size_bytes if name in self._versions else 0

    def _placed(self, name: str, place: Placement | str | None) -> None:
        if place is None:
            self._places.pop(name, None)
        else:
            self._places[name] = place

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise RunError("environment", "its tensors lie in memory")
        return self._folder / f"{name}.npy"

    @staticmethod
    def _named(where: str, name: object) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise GraphError(where, f"{name!r} is no name", legal="letters, digits, _, . and -")

    def _known(self, where: str, name: object) -> None:
        self._named(where, name)
        if name not in self:
            raise GraphError(where, f"there is no tensor {name!r}", legal=", ".join(self) or "none is there")

    def _version(self, where: str, name: str) -> _Version:
        self._known(where, name)
        return self._versions[name]

    def _array(self, where: str, name: str, box: Box | None = None) -> Array:
        return self._values(name, self._version(where, name), box)

    def __repr__(self) -> str:
        return f"<Environment of {len(self)} tensors, {self.held_bytes} of {self.budget_bytes} bytes>"


def _nodes(address: str | None, copies: int) -> Any:
    from tileweave.runtime.ray.held import Nodes  # ray is loaded with the first tensor on it, not with the package

    return Nodes.of(address, copies)


def _kept_on(nodes: Nodes, kept: dict[Sink, Any], sink: Sink) -> Any:
    """What keeps a result on nodes, one per sink."""
    from tileweave.runtime.ray.held import HeldSink

    return kept.setdefault(sink, HeldSink(nodes, sink.tensor.type))


def _corner(kind: TensorType) -> Box:
    """A box of no elements."""
    return Box((0,) * len(kind.shape), (0,) * len(kind.shape))


def _check_copy(where: str, tensor: Array | TensorType, box: Box, dtype: np.dtype[Any] | None = None) -> None:
    """Passes a box that lies inside a tensor, an empty one too, and elements that are of the type that is copied."""
    fits = isinstance(box, Box) and box.rank == len(tensor.shape)
    if not fits or not all(0 <= a <= b <= n for a, b, n in zip(box.start, box.stop, tensor.shape, strict=True)):
        raise GraphError(where, f"{box} is no box inside shape {tensor.shape}", legal=f"such as {Box.of(tensor.shape)}")
    if dtype is not None and dtype != tensor.dtype:
        raise GraphError(where, f"{dtype} is no {tensor.dtype}", legal="tensors of one element type")
