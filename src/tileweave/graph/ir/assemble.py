"""Selectors that assemble one dimension from parts: interleave, copies (`repeat`) and pad, beside concat.

None of them copies or computes; `resolve` reads each part where it is, and padding is made where it is needed.

Source: Tapestry, "Selector Expressions and Tensor Views".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Selector, Tensor, TensorType, Value
from tileweave.graph.ir.resolve import Segment, register_assembly
from tileweave.graph.ir.select import concat, dimension, full, getitem, permute, slice_, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.space import Box


def _count(where: str, name: str, value: Any, least: int, x: Tensor) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise GraphError(where, f"{name} is {value!r}", inputs={"x": x.type}, legal=f"an integer, {least} or more")
    return int(value)


@public()
def stride(x: object, step: int, axis: int = 0) -> Tensor:
    """Every step-th element along a dimension, from the first: ``x[::step]``."""
    x = as_tensor(x, "stride(x, step, axis)")
    dim = dimension("stride(x, step, axis)", x, axis)
    step = _count("stride(x, step, axis)", "step", step, 1, x)
    return getitem(x, (slice(None),) * dim + (slice(None, None, step),))


@public()
def copies(x: object, count: int, axis: int = 0) -> Tensor:
    """A tensor joined to itself so many times along a dimension, as `numpy.tile`; no copy is made.

    It is the selector `repeat` of the Tapestry document; `repeat` of NumPy repeats every element.

    Example:
        >>> np.asarray(copies(as_tensor([1, 2]), 3)).tolist()
        [1, 2, 1, 2, 1, 2]
    """
    x = as_tensor(x, "copies(x, count, axis)")
    where = "copies(x, count, axis)"
    dim, count = dimension(where, x, axis), _count(where, "count", count, 0, x)
    if count == 1:
        return x
    shape = tuple(count * n if k == dim else n for k, n in enumerate(x.shape))
    return Tensor(Selector("repeat", (("x", x),), TensorType(shape, x.dtype), (("dim", dim), ("count", count))))


def _repeat_segments(selector: Selector) -> Iterator[Segment]:
    x, dim = selector.inputs[0][1], selector.parameter("dim")
    for k in range(selector.parameter("count")):
        yield Segment(k * x.shape[dim], x.shape[dim], x)


register_assembly("repeat", _repeat_segments)


@public()
def interleave(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Tensors of one shape taken in turns along a dimension: the result at ``n * i + k`` is tensor k at i.

    Example:
        >>> np.asarray(interleave([as_tensor([1, 2]), as_tensor([8, 9])])).tolist()
        [1, 8, 2, 9]
    """
    where = "interleave(tensors, axis)"
    tensors = given = [as_tensor(part, where) for part in tensors]
    if not tensors:
        raise GraphError(where, "there is no tensor", legal="at least one tensor")
    first = given[0]
    dim = dimension(where, first, axis)
    for k, part in enumerate(tensors):
        if part.type != first.type:
            raise GraphError(
                where,
                f"tensor {k} does not fit tensor 0",
                inputs={"tensor 0": first.type, f"tensor {k}": part.type},
                legal="equal shapes and element types",
            )
    if len(tensors) == 1:
        return first
    shape = tuple(len(tensors) * n if k == dim else n for k, n in enumerate(first.shape))
    inputs = tuple((f"x{k}", part) for k, part in enumerate(tensors))
    return Tensor(Selector("interleave", inputs, TensorType(shape, first.dtype), (("dim", dim),)))


def _interleave_segments(selector: Selector) -> Iterator[Segment]:
    dim = selector.parameter("dim")
    for k, (_, part) in enumerate(selector.inputs):
        yield Segment(k, part.shape[dim], part, step=len(selector.inputs))


register_assembly("interleave", _interleave_segments)


@public(np.pad)
def pad(
    x: object,
    width: int | tuple[int, int] | Sequence[tuple[int, int]],
    mode: Literal["constant", "reflect"] = "constant",
    value: bool | int | float = 0,
) -> Tensor:
    """A tensor with elements added before and after each dimension, as `numpy.pad`.

    Args:
        x: any tensor.
        width: (before, after) per dimension, or one pair or one number for all of them.
        mode: ``constant`` adds `value`; ``reflect`` mirrors about the first and last element, which stay single.
        value: for ``constant``, in the type of x.

    Raises:
        GraphError: a width is negative, the pairs do not fit, or there is nothing to reflect.

    Example:
        >>> np.asarray(pad(as_tensor([1, 2, 3]), (2, 1), "reflect")).tolist()
        [3, 2, 1, 2, 3, 2]
    """
    x = as_tensor(x, "pad(x, width, mode)")
    where = "pad(x, width, mode)"
    if mode not in ("constant", "reflect"):
        raise GraphError(where, f"mode {mode!r} does not exist", inputs={"x": x.type}, legal="constant, reflect")
    for dim, (before, after) in enumerate(_widths(where, x, width)):
        if not before and not after:
            continue
        extent = x.shape[dim]
        if mode == "reflect" and extent == 0:
            raise GraphError(where, f"axis {dim} is empty, nothing to reflect", inputs={"x": x.type})
        shape = tuple(n + before + after if k == dim else n for k, n in enumerate(x.shape))
        stored = full((), value, x.dtype).producer
        parameters: tuple[tuple[str, Value], ...] = (("dim", dim), ("before", before), ("after", after), ("mode", mode))
        if mode == "constant" and isinstance(stored, Selector):
            parameters = (*parameters, ("value", stored.parameter("value")))
        x = Tensor(Selector("pad", (("x", x),), TensorType(shape, x.dtype), parameters))
    return x


def _widths(where: str, x: Tensor, width: Any) -> list[tuple[int, int]]:
    rank = len(x.shape)
    if type(width) is list and len(width) == rank and all(_is_width(pair) for pair in width):  # as most callers have it
        return width
    pairs = np.asarray(width, dtype=object)
    try:
        table = np.broadcast_to(pairs, (rank, 2))
    except ValueError:
        raise GraphError(
            where, f"widths {width} do not fit rank {rank}", inputs={"x": x.type}, legal="(before, after) per dimension"
        ) from None
    return [(_count(where, "a width", a, 0, x), _count(where, "a width", b, 0, x)) for a, b in table.tolist()]


def _is_width(pair: Any) -> bool:
    return type(pair) is tuple and len(pair) == 2 and all(type(n) is int and n >= 0 for n in pair)


def _pad_segments(selector: Selector) -> Iterator[Segment]:
    x, dim = selector.inputs[0][1], selector.parameter("dim")
    before, after, extent = selector.parameter("before"), selector.parameter("after"), x.shape[dim]
    if selector.parameter("mode") == "constant":
        fill = selector.parameter("value")
        yield Segment(0, before, None, fill=fill)
        yield Segment(before, extent, x)
        yield Segment(before + extent, after, None, fill=fill)
        return
    # mirrored runs have the period 2 * (extent - 1): up from 0 to extent - 2, down from extent - 1 to 1
    run, place = max(extent - 1, 1), 0
    while place < before + extent + after:
        at = (place - before) % (2 * run)
        rising = at < run
        count = min(run - at % run, before + extent + after - place)
        first = 0 if extent == 1 else at if rising else 2 * run - at
        yield Segment(place, count, x, first, 1 if rising else -1)
        place += count


register_assembly("pad", _pad_segments)


@public(np.tile)
def tile(x: object, counts: int | Sequence[int]) -> Tensor:
    """A tensor joined to itself so many times along each dimension, as `numpy.tile`; no copy is made."""
    x = as_tensor(x, "tile(x, counts)")
    given = (counts,) if isinstance(counts, (int, np.integer)) else tuple(counts)
    x = unsqueeze(x, range(len(given) - len(x.shape))) if len(given) > len(x.shape) else x
    for dim, count in enumerate(given, len(x.shape) - len(given)):
        x = copies(x, int(count), dim)
    return x


@public(np.stack)
def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new dimension, as `numpy.stack`."""
    return concat([unsqueeze(part, axis) for part in tensors], axis)


@public(np.split)
def split(x: object, parts: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """A tensor cut along a dimension, as `numpy.split`: into so many equal parts, or at these places."""
    where = "split(x, parts, axis)"
    x = as_tensor(x, where)
    dim = dimension(where, x, axis)
    extent = x.shape[dim]
    if isinstance(parts, (int, np.integer)):
        if parts < 1 or extent % parts:
            raise GraphError(where, f"{parts} equal parts", inputs={"x": x.type}, legal=f"a divisor of {extent}")
        ends = [extent // int(parts) * k for k in range(int(parts) + 1)]
    else:
        ends = [0, *(slice(int(at)).indices(extent)[1] for at in parts), extent]
    return [slice_(x, x.type.box.with_range(dim, a, max(a, b))) for a, b in pairwise(ends)]


@public(np.swapaxes)
def swapaxes(x: object, axis: int, other: int) -> Tensor:
    """Two dimensions exchanged, as `numpy.swapaxes`."""
    x = as_tensor(x, "swapaxes(x, axis, other)")
    a, b = (dimension("swapaxes(x, axis, other)", x, k) for k in (axis, other))
    return permute(x, [b if k == a else a if k == b else k for k in range(len(x.shape))])


@public(np.moveaxis)
def moveaxis(x: object, source: int | Sequence[int], target: int | Sequence[int]) -> Tensor:
    """Dimensions moved to other places, the others in their order, as `numpy.moveaxis`."""
    where = "moveaxis(x, source, target)"
    x = as_tensor(x, where)
    pairs = [(k,) if isinstance(k, (int, np.integer)) else tuple(k) for k in (source, target)]
    old, new = ([dimension(where, x, k) for k in side] for side in pairs)
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise GraphError(where, f"{source} does not go to {target}", inputs={"x": x.type}, legal="as many, each once")
    rest = iter(k for k in range(len(x.shape)) if k not in old)
    return permute(x, [old[new.index(k)] if k in new else next(rest) for k in range(len(x.shape))])


@public(np.roll)
def roll(x: object, shift: int, axis: int) -> Tensor:
    """The elements moved along a dimension, those that leave it entering at the other end, as `numpy.roll`."""
    x = as_tensor(x, "roll(x, shift, axis)")
    dim = dimension("roll(x, shift, axis)", x, axis)
    extent = x.shape[dim]
    at = -shift % extent if extent else 0
    return concat([slice_(x, x.type.box.with_range(dim, a, b)) for a, b in ((at, extent), (0, at))], dim)


@public(np.zeros_like)
def zeros_like(x: object, dtype: Any = None) -> Tensor:
    """Zeros in the shape and element type of a tensor."""
    x = as_tensor(x, "zeros_like(x)")
    return full(x.shape, 0, x.dtype if dtype is None else dtype)


@public(np.ones_like)
def ones_like(x: object, dtype: Any = None) -> Tensor:
    """Ones in the shape and element type of a tensor."""
    x = as_tensor(x, "ones_like(x)")
    return full(x.shape, 1, x.dtype if dtype is None else dtype)


@public()
def zeros(shape: Sequence[int], dtype: Any = np.float64) -> Tensor:
    """A tensor of zeros, generated wherever it is read."""
    return full(shape, 0, dtype)


@public()
def ones(shape: Sequence[int], dtype: Any = np.float64) -> Tensor:
    """A tensor of ones, generated wherever it is read."""
    return full(shape, 1, dtype)


def spread(x: Tensor, dim: int, step: int, start: int, extent: int) -> Tensor:
    """x placed at ``start + step * i`` of a zero dimension of the given extent."""
    count = x.shape[dim]
    if step < 0:
        start, step = start + (count - 1) * step, -step
        flipped = tuple(-1 if k == dim else 1 for k in range(len(x.shape)))
        x = slice_(x, Box(tuple(max(n - 1, 0) if k == dim else 0 for k, n in enumerate(x.shape)), x.shape), flipped)

    def zeros(n: int) -> Tensor:
        return full([n if k == dim else e for k, e in enumerate(x.shape)], 0.0, x.dtype)

    if count == 0:
        return zeros(extent)
    if step > 1 and count > 1:
        gaps = interleave([x, *[zeros(count)] * (step - 1)], dim)
        x = slice_(gaps, gaps.type.box.with_range(dim, 0, (count - 1) * step + 1))
    return pad(x, [(start, extent - start - x.shape[dim]) if k == dim else (0, 0) for k in range(len(x.shape))])
