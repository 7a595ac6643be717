"""The layout of a PyTorch DTensor, and the check at run time that it is the declared one.

A DTensor says per mesh axis what happens there; a layout says per logical index where its element lies. Shard(d) is a
digit of dimension d on that axis, Replicate an iter of R, Partial a slowest logical index: the terms of each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tileweave.errors import NoLayout, VerifyError
from tileweave.layout import DEFAULT_AXIS, Coord, Iter, Layout, group, parse, same_map

_LEGAL = "a DTensor whose mesh axes have names, or axes=(..)"


def dtensor_layout(tensor: Any, axes: Sequence[str] = ()) -> Layout:
    """Where each element of a DTensor lies: on which coordinates of the mesh, and where in the memory of each.

    Args:
        tensor: a ``torch.distributed.tensor.DTensor``; its local memory may have any strides.
        axes: names of the mesh's axes; the mesh's own unless given, and ``gpu`` for a mesh of one axis without a name.

    Returns:
        the layout of the tensor's row-major index. Terms of axes that are Partial are slowest, in the mesh's order;
        places in memory are elements from the local tensor's first, on the axis ``m``.

    Raises:
        VerifyError: no DTensor; a dimension that is not cut evenly; a local tensor of another shape.

    Source: Axe, section 3.2 and figure 8; terms as in conversions with sums.
    """
    where = "dtensor_layout(tensor)"
    return _layout_of(tensor, _axes_of(tensor, axes, where), where)


def check_dtensor(tensor: Any, layout: Layout | str, axes: Sequence[str] = (), *, combine: str = "sum") -> None:
    """Returns exactly if the DTensor has the layout: each element on the same devices, at the same places.

    Nothing is sent: each process looks at the placements, which are the same everywhere, and at its own local tensor.

    Args:
        tensor: a ``torch.distributed.tensor.DTensor``.
        layout: over the mesh's axes and ``m``; axes that are Partial are terms, its slowest logical index.
        axes: as in `dtensor_layout`.
        combine: how terms are combined, by PyTorch's name; layouts do not say it.

    Raises:
        VerifyError: it has another layout, or none. Names the mesh axis (``error.axis``), the dimension
            (``error.dimension``; None where it is none of one dimension) and what differs.
    """
    where = "check_dtensor(tensor, layout)"
    names = _axes_of(tensor, axes, where)
    wanted = parse(layout) if isinstance(layout, str) else layout
    if not isinstance(wanted, Layout):
        raise _error(where, f"{type(wanted).__name__} is no layout", {}, "a Layout, or its notation")
    found = _layout_of(tensor, names, where)
    shape = tuple(tensor.shape)
    inputs = {"tensor": f"{shape}, {_placements(tensor, names)}: {found}", "layout": wanted}
    for name, one in zip(names, tensor.placements, strict=True):
        if _kind(one) == "Partial" and one.reduce_op != combine:
            problem = f"mesh axis {name}: terms are combined by {one.reduce_op}, not by {combine}"
            raise _error(where, problem, inputs, f"combine={one.reduce_op!r}", name)
    strange = [axis for axis in wanted.axes if axis not in (*names, DEFAULT_AXIS)]
    if strange:
        raise _error(where, f"axis {strange[0]} is none of the mesh", inputs, " | ".join((*names, DEFAULT_AXIS)),
                     strange[0])  # fmt: skip
    terms = found.size // prod(shape)
    if wanted.size != found.size:
        partial = [n for n, one in zip(names, tensor.placements, strict=True) if _kind(one) == "Partial"]
        of = f"{terms} terms over {', '.join(partial)} of " if partial else ""
        problem = f"the layout has {wanted.size} logical indices, the tensor {of}{prod(shape)} elements"
        raise _error(where, problem, inputs, _legal(found), "".join(partial[:1]))
    try:
        blocks = group(wanted, (terms, *shape))
    except NoLayout as error:
        problem = f"no DTensor has this layout: {error.problem}"
        raise _error(where, problem, inputs, _legal(found)) from None
    mine = group(found, (terms, *shape))
    for axis in (*names, DEFAULT_AXIS):
        for d, (a, b) in enumerate(zip(mine, blocks, strict=True), -1):
            if not same_map(_on(axis, a), _on(axis, b)):
                raise _differs(where, axis, d, a, b, inputs, _legal(found))
        ours, others = (_on(axis, (), one.replica, one.offset[axis]) for one in (found, wanted))
        if not same_map(ours, others, replicas="set"):
            problem = f"{_named(axis)}: the tensor {_copies(ours)}, the layout {_copies(others)}"
            raise _error(where, problem, inputs, _legal(found), axis)
    if not same_map(found, wanted, replicas="set"):
        raise _error(where, "the copies lie on other devices: axes of R are joined", inputs, _legal(found))


def _kind(placement: Any) -> str:
    return type(placement).__name__.removeprefix("_")


def _placements(tensor: Any, names: Sequence[str]) -> str:
    return ", ".join(f"{n} {s} {p}" for n, s, p in zip(names, tensor.device_mesh.shape, tensor.placements, strict=True))


def _error(
    where: str, problem: str, inputs: Any, legal: str, axis: str = "", dimension: int | None = None
) -> VerifyError:
    facts = {"rule": "dtensor", "path": axis, "axis": axis, "dimension": dimension}
    return VerifyError(where, problem, inputs=inputs, legal=legal, facts=facts)


def _legal(found: Layout) -> str:
    return f"{found}, or tensor.redistribute(..) first"


def _axes_of(tensor: Any, axes: Sequence[str], where: str) -> tuple[str, ...]:
    """Names of the mesh's axes."""
    if not hasattr(tensor, "device_mesh") or not hasattr(tensor, "placements"):
        raise _error(where, f"{type(tensor).__name__} is no DTensor", {}, "a torch.distributed.tensor.DTensor")
    rank = len(tensor.placements)
    names = tuple(axes) or tuple(tensor.device_mesh.mesh_dim_names or (("gpu",) if rank == 1 else ()))
    if len(names) != rank or len({*names, DEFAULT_AXIS}) != rank + 1:
        raise _error(where, f"{names} are no names of the {rank} axes of the mesh", {}, _LEGAL)
    return names


def _layout_of(tensor: Any, names: Sequence[str], where: str) -> Layout:
    shape, local = tuple(tensor.shape), tensor.to_local()
    inputs = {"tensor": f"{shape}, {_placements(tensor, names)}"}
    digits: list[list[tuple[int, str, int]]] = [[(n, "", 0)] for n in shape]  # (extent, mesh axis, stride there)
    terms, copies = [], []
    if not prod(shape):
        raise _error(where, f"an empty tensor, of shape {shape}", inputs, "at least one element")
    for k in _order(tensor):
        axis, size, one = names[k], tensor.device_mesh.shape[k], tensor.placements[k]
        kind = _kind(one)
        if kind in ("Shard", "StridedShard"):
            skip = one.split_factor if kind == "StridedShard" else 1
            cut = _cut(digits[one.dim], skip, size, axis)
            if cut is None:
                rest = prod(n for n, on, _ in digits[one.dim] if not on)
                blocks = f"{skip} blocks of {size}" if skip > 1 else f"{size} blocks"
                problem = f"mesh axis {axis}, dimension {one.dim}: {rest} is not cut evenly into {blocks}"
                raise _error(where, problem, inputs, f"a multiple of {skip * size}", axis, one.dim)
            digits[one.dim] = cut
        elif kind == "Replicate":
            copies.append(Iter(size, Coord(((axis, 1),))))
        elif kind == "Partial":
            terms.append(Iter(size, Coord(((axis, 1),))))
        else:
            raise _error(where, f"mesh axis {axis}: the placement {one}", inputs, "Shard | Replicate | Partial", axis)
    shard = list(terms)
    for d, parts in enumerate(digits):
        extent = prod(n for n, on, _ in parts if not on)
        if extent != local.shape[d]:
            problem = f"dimension {d}: the local tensor has {local.shape[d]} of {shape[d]}, its placements say {extent}"
            raise _error(where, problem, inputs, "DTensor.from_local(local, .., shape=, stride=) of its shape", "", d)
        step = local.stride(d) * extent
        for n, on, stride in parts:
            if on:
                shard.append(Iter(n, Coord(((on, stride),))))
            else:
                step //= n
                shard.append(Iter(n, Coord(((DEFAULT_AXIS, step),)) if step else Coord(())))
    return Layout(tuple(shard), tuple(copies))


def _order(tensor: Any) -> list[int]:
    """The mesh's axes in the order in which they cut: their own, unless the tensor says another for a dimension."""
    order = list(range(len(tensor.placements)))
    for entry in getattr(tensor._spec, "shard_order", None) or ():
        for place, axis in zip(sorted(entry.mesh_dims), entry.mesh_dims, strict=True):
            order[place] = axis
    return order


def _cut(parts: Sequence[tuple[int, str, int]], skip: int, size: int, axis: str) -> list[tuple[int, str, int]] | None:
    """The digits of a dimension with one more on a mesh axis, behind `skip` local ones; None where it is not even."""
    out: list[tuple[int, str, int]] = []
    for n, on, stride in parts:
        if on:
            out.append((n, on, stride))
            continue
        for want in ("skip", "size"):
            left = skip if want == "skip" else size
            if left == 1 or n == 1:
                continue
            take = min(left, n)
            if left % take or n % take:
                return None
            out.append((take, "", 0) if want == "skip" else (take, axis, left // take))
            n //= take
            if want == "skip":
                skip //= take
            else:
                size //= take
        if n > 1:
            out.append((n, "", 0))
    return None if skip > 1 or size > 1 else out or [(1, "", 0)]


def _on(axis: str, shard: Sequence[Iter], replica: Sequence[Iter] = (), offset: int = 0) -> Layout:
    """What iters do on one axis."""

    def part(iters: Sequence[Iter]) -> tuple[Iter, ...]:
        return tuple(
            Iter(it.extent, Coord(((axis, it.stride[axis]),)) if it.stride[axis] else Coord(())) for it in iters
        )

    return Layout(part(shard), tuple(it for it in part(replica) if it.stride.axes), Coord(((axis, offset),)))


def _named(axis: str) -> str:
    return "memory" if axis == DEFAULT_AXIS else f"mesh axis {axis}"


def _differs(
    where: str, axis: str, d: int, mine: Sequence[Iter], theirs: Sequence[Iter], inputs: Any, legal: str
) -> VerifyError:
    """A dimension, or the terms, that goes elsewhere on an axis."""
    sides = [_moves(axis, part) for part in (mine, theirs)]
    dimension = None if d < 0 else d
    what = "terms" if d < 0 else f"dimension {d}"
    problem = f"{_named(axis)}, {what}: the tensor has {sides[0]}, the layout {sides[1]}"
    return _error(where, problem, inputs, legal, axis, dimension)


def _moves(axis: str, part: Sequence[Iter]) -> str:
    """The iters of a dimension, if some of them lie on the axis."""
    if not any(it.stride[axis] for it in part):
        return "none of it there"
    return "(" + ", ".join(map(str, part)) + ")"


def _copies(side: Layout) -> str:
    """What the replicas on one axis say."""
    if side.replica:
        return f"has copies [{', '.join(map(str, side.replica))}]" + (f" + {side.offset}" if side.offset.terms else "")
    return f"has no copies, and begins at {side.offset}" if side.offset.terms else "has no copies"
