"""Tensors that lie on the nodes of a cluster: cut into blocks by rows, each block on one node or on several.

Source: own.
"""

from __future__ import annotations

import itertools
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
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        out = list(given)
        sent = self.ray.put(np.ascontiguousarray(block))
        for _ in range(TRIES):
            taken = {node for node, _ in out}
            free = [node for node in self.living() if node not in taken]
            at = next(self._next)
            wanted = [free[(at + k) % len(free)] for k in range(min(count - len(out), len(free)))]
            kept = {
                node: self.ray.remote(_kept)
                .options(
                    num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
                )
                .remote(sent)
                for node in wanted
            }
            self.ray.wait(list(kept.values()), num_returns=len(kept), timeout=GET_SECONDS, fetch_local=False)
            living = set(self.living())
            out += [(node, reference) for node, reference in kept.items() if node in living]
            if out and (len(out) >= count or not free):
                return tuple(out)
        raise RunError("environment", "no node takes a block", legal="a cluster with a node that lives")

    def read(self, held: HeldTensor) -> Array:
        """The values of a tensor, from whichever copies are left.

        Raises:
            Lost: of a block there is none.
        """
        living = set(self.living())
        blocks = [self._read([r for node, r in copies if node in living]) for _, copies in held.blocks]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)  # they are rows, in order

    def _read(self, references: list[Any]) -> Array:
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
