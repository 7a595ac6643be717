"""Tensors that lie on the nodes of a cluster: cut into blocks by rows, each block on one node or on several.

Source: own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.errors import RunError
from tileweave.graph import TensorType
from tileweave.lower.reads import slices
from tileweave.runtime.ray.session import RaySession, connect, load
from tileweave.space import Box

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
        self.ray, self.copies = load(), copies
        self._next = itertools.count()
        if copies > len(self.living()):
            where = f"environment(copies={copies})"
            raise RunError(where, f"the cluster has {len(self.living())} nodes", legal="no more copies than nodes")

    @classmethod
    def of(cls, address: str | None, copies: int) -> Nodes:
        """Those of the cluster at an address; without one of the local cluster."""
        return cls(connect(None, address), copies)

    def living(self) -> list[str]:
        """The nodes that the cluster knows to live."""
        return [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]

    def hold(self, array: Array, copies: int | None = None) -> HeldTensor:
        """Puts a tensor on nodes; blocks go to one node after the other, copies to different ones."""
        kind, nodes = TensorType(array.shape, array.dtype), self.living()
        several = array.ndim and array.nbytes > BLOCK_BYTES
        count = max(1, min(len(nodes), array.shape[0])) if several else 1
        edges = [array.shape[0] * k // count for k in range(count + 1)] if several else []
        boxes = [kind.box.with_range(0, a, b) for a, b in itertools.pairwise(edges)] if several else [kind.box]
        return HeldTensor(kind, tuple((box, self._copies(array[slices(box)], copies or self.copies)) for box in boxes))

    def _copies(self, block: Array, count: int, given: tuple[tuple[str, Any], ...] = ()) -> tuple[tuple[str, Any], ...]:
        """So many copies on different nodes, those that are given among them."""
        out = list(given)
        sent = self.ray.put(np.ascontiguousarray(block))
        for _ in range(TRIES):
            taken = {node for node, _ in out}
            free = [node for node in self.living() if node not in taken]
            at = next(self._next)
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
        living, blocks = set(self.living()), []
        for box, copies in held.blocks:
            common = box if wanted is None else box.intersect(wanted)
            if common == box:
                blocks.append(self._read([r for node, r in copies if node in living]))
            elif not common.empty:
                part = slices(common.translate([-a for a in box.start]))
                blocks.append(self._read(self._at(node, _cut, r, part) for node, r in copies if node in living))
        if not blocks:  # an empty box
            return np.empty(wanted.shape if wanted is not None else (), held.type.dtype)
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)  # they are rows, in order

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
        options = {"num_cpus": 0, "max_retries": 0, "num_returns": returns, "scheduling_strategy": where}
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
