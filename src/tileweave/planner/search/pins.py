"""What a user fixes by hand: how many parts a dimension has, or that it is not cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import PlanError
from tileweave.graph import Graph, Operation, Tensor
from tileweave.planner.machine import Machines
from tileweave.planner.placement import Mesh
from tileweave.planner.search.candidates import operation_shardings
from tileweave.planner.steps import Sharding

Cuts = Mapping[str, int] | Sequence[int]
"""Parts per index dimension: by name, the others whole; or one number for each."""


def pinned_parts(graph: Graph, machines: Machines, pin: Mapping[Any, Cuts]) -> dict[Operation, tuple[int, ...]]:
    """Operation -> parts per dimension, checked.

    Raises:
        PlanError: what is pinned is not an operation of the graph, or cannot be cut so.
    """
    found = {}
    for what, cuts in _rows(pin, "pin"):
        operation = _operation(graph, what, "pin")
        dims, shape = _names(operation), operation.index.shape
        said: Any = cuts.values() if isinstance(cuts, Mapping) else cuts
        if isinstance(said, str) or not isinstance(said, Iterable) or not all(map(_is_count, said)):
            legal = f"whole numbers for {', '.join(dims)}, in order or by name"
            raise PlanError("plan(pin)", f"{cuts!r} says no parts of {operation.operator}", legal=legal)
        if isinstance(cuts, Mapping):
            counts = {_number(operation, name, "pin"): int(n) for name, n in cuts.items()}
            parts = tuple(counts.get(k, 1) for k in range(len(dims)))
        else:
            parts = tuple(map(int, cuts))
        fits = len(parts) == len(shape) and all(1 <= p <= max(1, n) for p, n in zip(parts, shape, strict=False))
        if not fits or prod(parts) > len(machines):
            raise PlanError(
                "plan(pin)",
                f"{operation.operator} over {operation.index} cannot be cut into {parts} on {len(machines)} "
                f"{'machine' if len(machines) == 1 else 'machines'}",
                legal=f"one count for each of {', '.join(dims)}, with a product of at most {len(machines)}",
            )
        found[operation] = parts
    return found


def _rows(said: Any, option: str) -> list[tuple[Any, Any]]:
    if not isinstance(said, Mapping):
        raise PlanError(f"plan({option})", f"{said!r} is no mapping", legal="{tensor: what is said of it}")
    return list(said.items())


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _operation(graph: Graph, what: Any, option: str) -> Operation:
    operation = what.producer if isinstance(what, Tensor) else what
    if not isinstance(operation, Operation) or operation not in graph.operations:
        raise PlanError(f"plan({option})", f"{what!r} is no operation of this graph", legal="a tensor that is computed")
    return operation


def _names(operation: Operation) -> tuple[str, ...]:
    if operation.signature is not None:
        return operation.signature.dims
    return tuple(f"d{k}" for k in range(operation.index.rank))


def _number(operation: Operation, name: str, option: str) -> int:
    """The dimension of that name; one that has none of its own goes by ``axis0``, as plans print it."""
    dims = _names(operation)
    plain = f"d{name[4:]}" if name.startswith("axis") else name
    for one in (name, plain):
        if one in dims:
            return dims.index(one)
    raise PlanError(f"plan({option})", f"{operation.operator} has no dimension {name!r}", legal=", ".join(dims))


def pinned_meshes(parts: Mapping[Operation, tuple[int, ...]]) -> list[Mesh]:
    """Meshes that have the pinned parts as axes, in every order."""
    found: dict[Mesh, None] = {}
    for counts in parts.values():
        found |= dict.fromkeys(permutations([n for n in counts if n > 1]))
    return [mesh for mesh in found if mesh][:8]


def allowed_shardings(
    graph: Graph,
    machines: Machines,
    on: Sequence[Mesh],
    parts: Mapping[Operation, tuple[int, ...]],
    forbid: Mapping[Any, Sequence[str]],
) -> dict[Operation, tuple[Sharding, ...]]:
    """Operation -> the shardings along the meshes that have the pinned parts and leave forbidden dimensions whole."""
    banned: dict[Operation, set[int]] = {}
    for what, names in _rows(forbid, "forbid"):
        operation = _operation(graph, what, "forbid")
        if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
            raise PlanError("plan(forbid)", f"{names!r} names no dimensions", legal=", ".join(_names(operation)))
        banned[operation] = {_number(operation, name, "forbid") for name in names}
    out = {}
    for operation in dict.fromkeys([*parts, *banned]):
        ways = operation_shardings(operation, tuple(on), len(machines), limit=4096)
        wanted, never = parts.get(operation), banned.get(operation, set())
        kept = [w for w in ways if (wanted is None or w.parts == wanted) and all(not w.digits[d] for d in never)]
        if not kept:
            raise PlanError(
                "plan(pin)", f"no sharding of {operation.operator} is cut into {wanted}", legal="other parts"
            )
        out[operation] = tuple(kept)
    return out
