"""Tensors that lie on the nodes of a cluster: cut into blocks by rows, each block on one node or on several.

Source: own.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.errors import RunError
from tileweave.graph import TensorType
from tileweave.lower.reads import gather, slices
from tileweave.planner import Read, ReadPiece, Task
from tileweave.runtime.ray.session import RaySession, connect, load
from tileweave.runtime.ray.worker import FileRegion, FileRegions
from tileweave.space import Box, even_cuts

Array = np.ndarray[Any, Any]
BLOCK_BYTES = 1 << 20
"""Smaller tensors are one block."""
GET_SECONDS = 60.0
"""How long a node that is thought to live may take to answer."""


class Lost(Exception):
    """No node that held a block of a tensor lives."""


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor on nodes.

    Args:
        type: its shape and element type.
        blocks: (box, (node, reference) of each copy).
    """

    type: TensorType
    blocks: tuple[tuple[Box, tuple[tuple[str, Any], ...]], ...]


class Nodes:
    """Puts tensors on the nodes of a cluster, and reads them.

    Args:
        session: with the cluster.
        copies: how many nodes hold each block.
    """

    def __init__(self, session: RaySession, copies: int) -> None:
        self.ray, self.session, self.copies = load(), session, copies
        self._next = itertools.count()
        if copies > len(self.living()):
            where = f"environment(copies={copies})"
            raise RunError(where, f"the cluster has {len(self.living())} nodes", legal="no more copies than nodes")

    @classmethod
    def of(cls, address: str | None, copies: int) -> Nodes:
        """Those of the cluster at an address; without one of the local cluster."""
        return cls(connect(None, address), copies)

    def living(self) -> list[str]:
        """The nodes that the cluster knows to live, first those that are machines of plans, in their order."""
        known = [node.id for node in self.session.nodes]
        living = [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]
        return [one for one in known if one in living] + [one for one in living if one not in known]

    def hold(self, array: Array, copies: int | None = None) -> HeldTensor:
        """Puts a tensor on nodes; blocks go to one node after the other, as machines have them, copies to others."""
        kind, nodes = TensorType(array.shape, array.dtype), self.living()
        several = array.ndim and array.nbytes > BLOCK_BYTES
        count = max(1, min(len(nodes), array.shape[0])) if several else 1
        edges = even_cuts(array.shape[0], count, 0) if several else ()
        boxes = [kind.box.with_range(0, a, b) for a, b in itertools.pairwise(edges)] if several else [kind.box]
        many, first = copies or self.copies, 0 if several else next(self._next)
        made = [self._copies(array[slices(box)], many, first=first + k) for k, box in enumerate(boxes)]
        return HeldTensor(kind, tuple(zip(boxes, made, strict=True)))

    def _copies(
        self, block: Any, count: int, given: tuple[tuple[str, Any], ...] = (), first: int | None = None
    ) -> tuple[tuple[str, Any], ...]:
        """So many copies of an array, or of what is referred to, on different nodes, with those that are given."""
        out = list(given)
        if len(out) >= count:
            return given
        sent = self.ray.put(np.ascontiguousarray(block)) if isinstance(block, np.ndarray) else block
        for _ in range(TRIES):
            taken = {node for node, _ in out}
            free = [node for node in self.living() if node not in taken]
            at = next(self._next) if first is None else first
            wanted = [free[(at + k) % len(free)] for k in range(min(count - len(out), len(free)))]
            kept = {node: self._at(node, _kept, sent) for node in wanted}
            self.ray.wait(list(kept.values()), num_returns=len(kept), timeout=GET_SECONDS, fetch_local=False)
            living = set(self.living())
            out += [(node, reference) for node, reference in kept.items() if node in living]
            if out and (len(out) >= count or not free):
                return tuple(out)
        raise RunError("environment", "no node takes a block", legal="a cluster with a node that lives")

    def read(self, held: HeldTensor, wanted: Box | None = None) -> Array:
        """The values of a tensor, or of a box of it, cut out where they lie, from whichever copies are left.

        Raises:
            Lost: of a block there is none.
        """
        living, region = set(self.living()), held.type.box if wanted is None else wanted
        out: Array | None = None
        for box, copies in held.blocks:
            common = box.intersect(region)
            if common == box:
                part = self._read([r for node, r in copies if node in living])
            elif common.empty:
                continue
            else:
                inside = slices(common.translate([-a for a in box.start]))
                part = self._read(self._at(node, _cut, r, inside) for node, r in copies if node in living)
            if common == region:
                return part
            out = np.empty(region.shape, held.type.dtype) if out is None else out
            out[slices(common.translate([-a for a in region.start]))] = part
        return np.empty(region.shape, held.type.dtype) if out is None else out  # an empty box, else

    def reference(self, held: HeldTensor, region: Box, node: str, living: Collection[str]) -> Any:
        """A reference to a region of a tensor: a block, or what is cut out where blocks lie and put together on a node.

        Raises:
            Lost: no living node holds a block of it.
        """
        found = []
        for box, copies in held.blocks:
            common = box.intersect(region)
            if not common.empty:
                left = [copy for copy in copies if copy[0] in living]
                if not left:
                    raise Lost
                where, r = next((copy for copy in left if copy[0] == node), left[0])
                inside = slices(common.translate([-a for a in box.start]))
                found.append((common, r if common == box else self._at(where, _cut, r, inside)))
        if len(found) == 1 and found[0][0] == region:
            return found[0][1]
        places = [slices(common.translate([-a for a in region.start])) for common, _ in found]
        where = node if node in living else next(iter(living))
        return self._at(where, _joined, region.shape, held.type.dtype, places, *(r for _, r in found))

    def patched(self, held: HeldTensor, there: Box, values: Array) -> HeldTensor:
        """The tensor with other values in a box, which are sent to the nodes whose blocks meet it."""
        blocks = []
        for box, copies in held.blocks:
            common = box.intersect(there)
            if not common.empty:
                part = slices(common.translate([-a for a in box.start]))
                given = np.ascontiguousarray(values[slices(common.translate([-a for a in there.start]))])
                made = [(node, *self._at(node, _changed, r, part, given, returns=2)) for node, r in copies]
                sound = tuple((node, r) for node, r, done in made if self._is_done(done))
                if len(sound) < len(copies):  # a worker or a node has gone meanwhile
                    block = _changed(self._read(r for _, r in copies), part, given)[0]
                    sound = self._copies(block, len(copies), sound)
                copies = sound
            blocks.append((box, copies))
        return HeldTensor(held.type, tuple(blocks))

    def _at(self, node: str, function: Any, *arguments: Any, returns: int = 1) -> Any:
        """References to what a function gives on a node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node, soft=False)
        retries = TRIES if function in (_cut, _joined, _stored) else 0  # what takes nothing but what nodes hold
        options = {"num_cpus": 0, "max_retries": retries, "num_returns": returns, "scheduling_strategy": where}
        return self.ray.remote(function).options(**options).remote(*arguments)

    def _is_done(self, note: Any) -> bool:
        """Whether the task that leaves a note has succeeded."""
        try:
            return bool(self.ray.get(note, timeout=GET_SECONDS))
        except self.ray.exceptions.RayError:
            return False

    def _read(self, references: Iterable[Any]) -> Array:
        for reference in references:
            try:
                return np.asarray(self.ray.get(reference, timeout=GET_SECONDS))
            except self.ray.exceptions.RayError:  # gone, though its node was thought to live
                continue
        raise Lost

    def mended(self, held: HeldTensor) -> HeldTensor:
        """The tensor with as many copies as it should have, made from those that are left.

        Raises:
            Lost: of a block there is none.
        """
        living, blocks = set(self.living()), []
        for box, copies in held.blocks:
            left = tuple(copy for copy in copies if copy[0] in living)
            whole = len(left) == len(copies) or len(living) <= len(left)
            blocks.append((box, copies if whole else self._copies(self._read([r for _, r in left]), len(copies), left)))
        return HeldTensor(held.type, tuple(blocks))


TRIES = 4
"""How often nodes are asked anew to take a block, where some have gone meanwhile."""


class HeldSource:
    """A tensor on nodes as a source of a run: workers get references, this process the values."""

    everywhere = True

    def __init__(self, nodes: Nodes, held: HeldTensor) -> None:
        self._nodes, self._held, self._living = nodes, held, nodes.living()

    def __call__(self, box: Box) -> Array:
        """The values of a box, in this process."""
        return self._nodes.read(self._held, box)

    def reference(self, box: Box, node: str) -> Any:
        """As `Nodes.reference`."""
        return self._nodes.reference(self._held, box, node, self._living)


class HeldSink:
    """A result of a run that stays on the nodes that make it."""

    atom = ()
    handle = None

    def __init__(self, nodes: Nodes, kind: TensorType) -> None:
        self._nodes, self.type, self._living = nodes, kind, nodes.living()
        self._blocks: list[tuple[Box, str, Any]] = []
        self._notes: list[Any] = []

    def keep(self, task: Task, node: str, arguments: Sequence[Any]) -> None:
        """Has a node store what a task stores; its reads refer to the arguments."""
        node = node if node in self._living else self._living[task.shard % len(self._living)]
        made, note = self._nodes._at(node, _stored, task.reads[0], *arguments, returns=2)
        self._notes.append(note)
        self._blocks.append((task.index, node, made))

    def write(self, box: Box, block: Array) -> None:
        """Puts values of this process on nodes."""
        ((node, made),) = self._nodes._copies(np.asarray(block), 1)
        self._blocks.append((box, node, made))

    def take(self, block: Array) -> None:
        """All values at once."""
        self.write(self.type.box, block)

    def finished(self, box: Box) -> None:
        """Nobody keeps count."""

    def held(self, copies: int) -> HeldTensor:
        """The tensor, each block on so many nodes.

        Raises:
            Lost: a node that made a block is gone.
        """
        self.check()
        copied = (self._nodes._copies(r, copies, ((node, r),)) for _, node, r in self._blocks)
        return HeldTensor(self.type, tuple(zip((box for box, _, _ in self._blocks), copied, strict=True)))

    def check(self) -> None:
        """Waits for every block.

        Raises:
            Lost: a node that made one is gone.
        """
        if not all(map(self._nodes._is_done, self._notes)):
            raise Lost


def _stored(read: Read, *arguments: Array | FileRegion) -> tuple[Array, bool]:
    """In a worker: what a task stores, as an array of its own, and a note that it is made."""
    with FileRegions() as files:

        def holds(piece: ReadPiece) -> Array | None:
            held = arguments[piece.task - 1] if piece.task >= 1 else None
            return files.read(held) if isinstance(held, FileRegion) else held

        return np.array(gather(read)(holds, 1)[0]), True


def _joined(shape: tuple[int, ...], dtype: np.dtype[Any], places: Sequence[Any], *parts: Array) -> Array:
    """In a worker: parts of a region, together."""
    out = np.empty(shape, dtype)
    for place, part in zip(places, parts, strict=True):
        out[place] = part
    return out


def _kept(block: Array) -> Array:
    """In a worker: the block, in the store of its node."""
    return np.array(block)


def _cut(block: Array, part: Any) -> Array:
    """In a worker: a part of a block."""
    return np.array(block[part])


def _changed(block: Array, part: Any, values: Array) -> tuple[Array, bool]:
    """In a worker: a block with other values in a part, and a note that it is made."""
    made = np.array(block)
    made[part] = values
    return made, True
