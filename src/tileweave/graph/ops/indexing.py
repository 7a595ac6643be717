"""Elements by their places: take and its inverse, scatter, in the forms of NumPy and of ONNX.

Places are data, so no region tells what they read: the dimensions that they choose in are read whole, all others may be
cut. Negative places count from the end; places outside raise an error in the run, as they do in NumPy.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.assemble import moveaxis, stack, zeros
from tileweave.graph.ir.dtypes import element_type
from tileweave.graph.ir.forms import Form, axis_form, integer, is_integer
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType, Value
from tileweave.graph.ir.select import broadcast_to, dimension, permute, slice_, unsqueeze
from tileweave.graph.ir.select import getitem as basic
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.along import partly_whole, reshape
from tileweave.graph.ops.elementwise import cast, common_type
from tileweave.graph.ops.operators import FLOP, Array, Arrays, Costs, Operator, made, register
from tileweave.space import Box

_MOVE: Costs = (("flops", 0.0),)
REDUCTIONS: dict[str, Callable[[Array, Any, Array], None]] = {
    "none": lambda out, at, values: out.__setitem__(at, values),
    "add": np.add.at,
    "mul": np.multiply.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}
"""What a scatter does where something is already -> how NumPy does it."""


def _places(where: str, indices: Any) -> Tensor:
    found = as_tensor(indices, where)
    if found.dtype.kind not in "iu":
        legal = "an integer type"
        raise DtypeError(where, f"places of type {found.dtype.name}", inputs={"indices": found.type}, legal=legal)
    return found


def _indexed(
    name: str,
    index: Sequence[int],
    inputs: Sequence[tuple[str, Tensor, Sequence[int | None]]],
    out: tuple[TensorType, Sequence[int | None]],
    *parameters: tuple[str, Value],
    costs: Costs = _MOVE,
) -> Tensor:
    """An operation whose inputs and output move with index dimensions, or are read whole where those are None."""
    rank = len(index)
    reads = [(own, x, partly_whole(dims, x.shape, rank)) for own, x, dims in inputs]
    makes = out[0], partly_whole(out[1], out[0].shape, rank)
    return made(name, index, reads, makes, *parameters, costs=costs)


# ---------------------------------------------------------------------------------------------------------------------
# along one dimension


@public(np.take)
def take(x: Any, indices: Any, axis: int | None = None) -> Tensor:
    """``x[.., indices, ..]`` with an array of places in one dimension, as `numpy.take`.

    Args:
        x: any tensor.
        indices: integers of any shape, which stands in the result where the dimension was.
        axis: the dimension; None: places among all elements in row-major order.

    Example:
        >>> np.asarray(take([10, 20, 30], [[2, 0], [1, -1]])).tolist()
        [[30, 10], [20, 30]]
    """
    where = "take(x, indices, axis)"
    x, indices = as_tensor(x, where), _places(where, indices)
    if axis is None:
        x, axis = reshape(x, -1), 0
    dim, rank, deep = dimension(where, x, axis), len(x.shape), len(indices.shape)
    shape = (*x.shape[:dim], *indices.shape, *x.shape[dim + 1 :])
    if indices.size and not x.shape[dim]:
        raise GraphError(where, f"axis {dim} is empty", inputs={"x": x.type, "indices": indices.type})
    own = [k if k < dim else None if k == dim else k + deep - 1 for k in range(rank)]
    inputs = (("x", x, own), ("indices", indices, range(dim, dim + deep)))
    return _indexed("take", shape, inputs, (TensorType(shape, x.dtype), range(len(shape))), ("axis", dim))


def _take_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    return {"out": np.asarray(np.take(inputs["x"], inputs["indices"], axis=operation.parameter("axis")))}


def _take_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x, indices, dim = operation.input("x"), operation.input("indices"), operation.parameter("axis")
    deep, rank = len(indices.shape), len(dy.shape)
    front = [*range(dim, dim + deep), *range(dim), *range(dim + deep, rank)]
    order = [dim, *(k for k in range(len(x.shape)) if k != dim)]
    total = scatter_nd(
        zeros([x.shape[k] for k in order], dy.dtype), unsqueeze(indices, deep), permute(dy, front), reduction="add"
    )
    return {"x": permute(total, [order.index(k) for k in range(len(order))])}


_TAKE = Form(("x", "indices"), {"axis": axis_form})
register(Operator("take", _take_block, _TAKE, _take_gradient, _MOVE))


@public()
def embedding(indices: Any, weight: Any) -> Tensor:
    """The rows of a table at these places: ``weight[indices]``."""
    return take(weight, indices, 0)


@public(np.repeat)
def repeat(x: Any, repeats: int | Sequence[int], axis: int | None = None) -> Tensor:
    """Every element so many times, one behind the other, as `numpy.repeat`; `copies` joins whole tensors.

    Args:
        x: any tensor.
        repeats: how many times, or how many for each place of the dimension.
        axis: the dimension; None: of the elements in row-major order.

    Example:
        >>> np.asarray(repeat([1, 2], 2)).tolist(), np.asarray(repeat([1, 2], [3, 1])).tolist()
        ([1, 1, 2, 2], [1, 1, 1, 2])
    """
    where = "repeat(x, repeats, axis)"
    x = as_tensor(x, where)
    if axis is None:
        x, axis = reshape(x, -1), 0
    dim, counts = dimension(where, x, axis), np.asarray(repeats)
    extent, fits = x.shape[dim], counts.dtype.kind in "iu" and counts.ndim < 2 and (counts >= 0).all()
    if not fits or counts.size not in (1, extent):
        legal = f"an integer, 0 or more, or {extent} of them"
        raise GraphError(where, f"repeats is {repeats!r}", inputs={"x": x.type}, legal=legal)
    if counts.size != 1:
        return take(x, np.repeat(np.arange(extent), counts), dim)
    times, before, behind = int(counts.flat[0]), x.shape[: dim + 1], x.shape[dim + 1 :]
    wide = broadcast_to(unsqueeze(x, dim + 1), (*before, times, *behind))
    return reshape(wide, (*before[:-1], extent * times, *behind))


@public(np.take_along_axis)
def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Tensor:
    """Elements along a dimension at places of their own, as `numpy.take_along_axis`: ``x[i, indices[i, j]]``."""
    where = "take_along_axis(x, indices, axis)"
    x, indices = as_tensor(x, where), _places(where, indices)
    dim = dimension(where, x, axis)
    _others(where, x, indices, dim)
    x = slice_(x, Box.of([n if k == dim else indices.shape[k] for k, n in enumerate(x.shape)]))
    own = [None if k == dim else k for k in range(len(x.shape))]
    kind = TensorType(indices.shape, x.dtype)
    places = range(len(indices.shape))
    return _indexed(
        "take_along_axis", indices.shape, (("x", x, own), ("indices", indices, places)), (kind, places), ("axis", dim)
    )


def _others(where: str, x: Tensor, indices: Tensor, dim: int) -> list[int]:
    """The dimensions beside `dim` in which the places are as many as the elements; elsewhere they may be fewer."""
    fits = len(x.shape) == len(indices.shape)
    fits = fits and all(b <= a for k, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)) if k != dim)
    if not fits:
        legal = f"places of rank {len(x.shape)}, no more than x has beside axis {dim}"
        types = {"x": x.type, "indices": indices.type}
        raise GraphError(where, "x and places do not fit", inputs=types, legal=legal)
    return [k for k, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True)) if k != dim and a == b]


def _grid(indices: Array, dim: int) -> tuple[Array, ...]:
    """The places of every element of `indices`, with those in one dimension replaced by its values."""
    places = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    places[dim] = indices
    return tuple(places)


def _take_along_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    return {"out": np.asarray(inputs["x"][_grid(inputs["indices"], operation.parameter("axis"))])}


def _take_along_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x = operation.input("x")
    nothing = zeros(x.shape, dy.dtype)
    return {"x": scatter(nothing, operation.input("indices"), dy, operation.parameter("axis"), reduction="add")}


_ALONG = Form(("x", "indices"), {"axis": axis_form})
register(Operator("take_along_axis", _take_along_block, _ALONG, _take_along_gradient, _MOVE))


def _reduction(node: object, value: object) -> str:
    return "" if type(value) is str and value in REDUCTIONS else ", ".join(REDUCTIONS)


def _scattered(where: str, x: Any, updates: Any, reduction: str | None) -> tuple[Tensor, Tensor, str]:
    x, updates = as_tensor(x, where), as_tensor(updates, where)
    how = "none" if reduction is None else reduction
    if how not in REDUCTIONS:
        raise GraphError(where, f"reduction {reduction!r}", legal=", ".join(REDUCTIONS))
    dtype = common_type(x, updates)
    return cast(x, dtype), cast(updates, dtype), how


@public()
def scatter(x: Any, indices: Any, updates: Any, axis: int = -1, *, reduction: str | None = None) -> Tensor:
    """x with ``out[i, indices[i, j]] = updates[i, j]`` along a dimension; the inverse of `take_along_axis`.

    Args:
        x: any tensor.
        indices: places along the dimension, of the rank of x.
        updates: values, of the shape of the places.
        axis: the dimension.
        reduction: what happens to what is there: None (replaced; of several the last), add, mul, min, max.

    Example:
        >>> np.asarray(scatter([1, 2, 3], [0, 0], [5, 6], reduction="add")).tolist()
        [12, 2, 3]
    """
    where = "scatter(x, indices, updates)"
    x, updates, how = _scattered(where, x, updates, reduction)
    indices = _places(where, indices)
    dim = dimension(where, x, axis)
    moved = _others(where, x, indices, dim)
    if updates.shape != indices.shape:
        types = {"indices": indices.type, "updates": updates.type}
        raise GraphError(where, "updates do not fit their places", inputs=types, legal="equal shapes")
    dims = [moved.index(k) if k in moved else None for k in range(len(x.shape))]
    inputs = (("x", x, dims), ("indices", indices, dims), ("updates", updates, dims))
    index = [x.shape[k] for k in moved]
    return _indexed("scatter", index, inputs, (x.type, dims), ("axis", dim), ("reduction", how), costs=FLOP)


def _scatter_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    out = inputs["x"].copy()
    _scatter_into(operation, {**inputs, "x": out}, out)
    return {"out": out}


def _scatter_into(operation: Operation, inputs: Arrays, out: Array) -> None:
    """The result in an array that is new, or the very memory of x."""
    indices, updates = _begun(inputs, out)
    places = _grid(indices, operation.parameter("axis"))
    REDUCTIONS[operation.parameter("reduction")](out, places, updates)


def _begun(inputs: Arrays, out: Array) -> tuple[Array, Array]:
    """Writes x where the result will be, and gives places and updates in memory that is not written."""
    x, indices, updates = inputs["x"], inputs["indices"], inputs["updates"]
    indices, updates = (one.copy() if np.may_share_memory(out, one) else one for one in (indices, updates))
    indices = np.asarray(indices, order="C")  # NumPy takes places in the order of their memory: the last is to stay
    there, held = (array.__array_interface__["data"][0] for array in (out, x))
    if there != held or out.strides != x.strides:
        out[...] = x
    return indices, updates


def _reduction_with_gradient(operation: Operation) -> str:
    how = str(operation.parameter("reduction"))
    if how not in ("none", "add"):
        raise GraphError("grad(y, wrt)", f"a scatter by {how} has no gradient", legal="reduction None or add")
    return how


def _scatter_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    indices, axis = operation.input("indices"), operation.parameter("axis")
    how = _reduction_with_gradient(operation)
    nothing = zeros(indices.shape, dy.dtype)
    kept = dy if how == "add" else scatter(dy, indices, nothing, axis)
    return {"x": kept, "updates": take_along_axis(dy, indices, axis)}


_SCATTER = Form(("x", "indices", "updates"), {"axis": axis_form, "reduction": _reduction})
register(Operator("scatter", _scatter_block, _SCATTER, _scatter_gradient, into=_scatter_into))


@public(np.searchsorted)
def searchsorted(x: Any, values: Any, side: str = "left") -> Tensor:
    """Where numbers belong among others in order, as `numpy.searchsorted`: how many of these stand in front.

    Args:
        x: [rows.., n], in order along the last dimension, NaN behind all others.
        values: numbers of any shape where x is a vector; else [rows.., m], searched among the row of each.
        side: ``left``, in front of equal elements, or ``right``.

    Example:
        >>> np.asarray(searchsorted([1, 3, 3, 5], [3, 6, 0])).tolist()
        [1, 4, 0]
    """
    where = "searchsorted(x, values)"
    x, values = as_tensor(x, where), as_tensor(values, where)
    types = {"x": x.type, "values": values.type}
    rows = len(x.shape) - 1
    if rows < 0 or (rows and len(values.shape) != rows + 1) or values.shape[:rows] != x.shape[:-1]:
        raise GraphError(where, "x and values do not fit", inputs=types, legal="x [rows.., n], values [rows.., m]")
    if side not in ("left", "right"):
        raise GraphError(where, f"side {side!r}", inputs=types, legal="left, right")
    dtype = common_type(x, values)
    x, values = cast(x, dtype), cast(values, dtype)
    index = values.shape
    inputs = (("x", x, [*range(rows), None]), ("values", values, range(len(index))))
    made = TensorType(index, np.dtype(np.int64)), range(len(index))
    return _indexed("searchsorted", index, inputs, made, ("side", side), costs=FLOP)


def _searchsorted_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    """A binary search of each number alone: NumPy's goes on from the one before, which shows where x is in no order."""
    x, values, right = inputs["x"], inputs["values"], operation.parameter("side") == "right"
    missing, place, left = values != values, np.zeros(values.shape, np.int64), x.shape[-1]

    def before(at: Array) -> Array:
        found = x[at] if x.ndim == 1 else np.take_along_axis(x, at, -1)
        return np.asarray((found <= values) | missing if right else (found < values) | (missing & (found == found)))

    while left > 1:
        place += left // 2 * before(place + (left // 2 - 1))
        left -= left // 2
    return {"out": place + before(place) if left else place}


def _side(node: object, value: object) -> str:
    return "" if value in ("left", "right") else "left, right"


register(Operator("searchsorted", _searchsorted_block, Form(("x", "values"), {"side": _side})))


@public()
def bincount(x: Any, length: int, dtype: Any = np.int64) -> Tensor:
    """How often 0, 1, .., length - 1 occur along the last dimension, as `numpy.bincount`; other numbers count nowhere.

    Args:
        x: integers [rows.., n].
        length: how many numbers are counted, from 0 on.
        dtype: the type of the counts.

    Example:
        >>> np.asarray(bincount([1, 3, 1, -1, 9], 4)).tolist()
        [0, 2, 0, 1]
    """
    where = "bincount(x, length)"
    x, dtype = _places(where, x), element_type(where, dtype)
    if not x.shape or not is_integer(length, 0):
        given = {"x": x.type, "length": length}
        raise GraphError(where, "no rows, or no length", inputs=given, legal="x of rank 1 or more, length 0 or more")
    rows = x.shape[:-1]
    inputs = (("x", x, [*range(len(rows)), None]),)
    made = TensorType((*rows, int(length)), dtype), [*range(len(rows)), None]
    return _indexed("bincount", rows, inputs, made, costs=(("flops", float(x.shape[-1])),))


def _bincount_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x, kind = inputs["x"], operation.output_types["out"]
    rows, length = prod(x.shape[:-1]), kind.shape[-1]
    inside = (x >= 0) & (x < length)
    first = length * np.arange(rows).reshape(*x.shape[:-1], 1)
    found = np.bincount((first + np.where(inside, x, 0).astype(np.int64))[inside], minlength=rows * length)
    return {"out": found.reshape(kind.shape).astype(kind.dtype)}


register(Operator("bincount", _bincount_block, Form(("x",))))


# ---------------------------------------------------------------------------------------------------------------------
# along several dimensions


@public()
def gather_nd(x: Any, indices: Any, batch: int = 0) -> Tensor:
    """``out[i.., j..] = x[i.., places[i.., j..], ..]`` with places in several dimensions, their last dimension.

    Args:
        x: any tensor.
        indices: [batch.., more.., k]: places in the k dimensions of x after the batch.
        batch: how many leading dimensions x and places have in common.
    """
    where = "gather_nd(x, indices)"
    x, indices = as_tensor(x, where), _places(where, indices)
    deep = _depth(where, x, indices, batch)
    shape = (*indices.shape[:-1], *x.shape[batch + deep :])
    places = len(indices.shape) - 1
    own = [*range(batch), *[None] * deep, *range(places, len(shape))]
    inputs = (("x", x, own), ("indices", indices, [*range(places), None]))
    return _indexed("gather_nd", shape, inputs, (TensorType(shape, x.dtype), range(len(shape))), ("batch", batch))


def _depth(where: str, x: Tensor, indices: Tensor, batch: int) -> int:
    """In how many dimensions the places are."""
    fits = bool(indices.shape) and 0 <= batch < len(indices.shape) and x.shape[:batch] == indices.shape[:batch]
    if not fits or batch + indices.shape[-1] > len(x.shape):
        types = {"x": x.type, "indices": indices.type}
        raise GraphError(
            where, "x and places do not fit", inputs=types, legal="places [batch.., .., k], k dimensions of x"
        )
    return indices.shape[-1]


def _nd_places(indices: Array, batch: int) -> tuple[Array, ...]:
    lead = np.ogrid[tuple(slice(n) for n in indices.shape[:-1])][:batch] if batch else []
    return (*lead, *np.moveaxis(indices, -1, 0))


def _gather_nd_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x, indices, batch = inputs["x"], inputs["indices"], operation.parameter("batch")
    shape = (*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :])
    found = x[_nd_places(indices, batch)]
    return {"out": np.array(np.broadcast_to(found, shape) if not indices.shape[-1] else found).reshape(shape)}


def _gather_nd_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x, batch = operation.input("x"), operation.parameter("batch")
    if batch:
        raise GraphError("grad(y, wrt)", "gather_nd over a batch has no gradient", legal="batch=0, or take_along_axis")
    return {"x": scatter_nd(zeros(x.shape, dy.dtype), operation.input("indices"), dy, reduction="add")}


_GATHER_ND = Form(("x", "indices"), {"batch": integer(0)})
register(Operator("gather_nd", _gather_nd_block, _GATHER_ND, _gather_nd_gradient, _MOVE))


@public()
def scatter_nd(x: Any, indices: Any, updates: Any, *, reduction: str | None = None, axis: int = 0) -> Tensor:
    """x with ``out[places[j..]] = updates[j..]``, places in several dimensions; the inverse of `gather_nd`.

    Args:
        x: any tensor.
        indices: [.., k]: places in k dimensions of x.
        updates: like x, with the dimensions of the places instead of these k.
        reduction: as in `scatter`.
        axis: the first of the k dimensions.

    Example:
        >>> np.asarray(scatter_nd(np.zeros((2, 3)), [[1]], [[5.0], [6.0]], axis=1)).tolist()
        [[0.0, 5.0, 0.0], [0.0, 6.0, 0.0]]
    """
    where = "scatter_nd(x, indices, updates)"
    x, updates, how = _scattered(where, x, updates, reduction)
    indices = _places(where, indices)
    deep, many = _depth(where, x, indices, 0), len(indices.shape) - 1
    first = dimension(where, x, axis) if axis else 0
    if first + deep > len(x.shape):
        types = {"x": x.type, "indices": indices.type}
        raise GraphError(where, "x and places do not fit", inputs=types, legal=f"axis 0 to {len(x.shape) - deep}")
    if updates.shape != (*x.shape[:first], *indices.shape[:-1], *x.shape[first + deep :]):
        types = {"x": x.type, "indices": indices.type, "updates": updates.type}
        raise GraphError(where, "updates do not fit", inputs=types, legal="[places.., the other dimensions of x]")
    before, rest = range(first), range(first, len(x.shape) - deep)
    own: list[int | None] = [*before, *[None] * deep, *rest]
    new: list[int | None] = [*before, *[None] * many, *rest]
    inputs = (("x", x, own), ("indices", indices, [None] * len(indices.shape)), ("updates", updates, new))
    index = (*x.shape[:first], *x.shape[first + deep :])
    return _indexed("scatter_nd", index, inputs, (x.type, own), ("reduction", how), ("axis", first), costs=FLOP)


def _scatter_nd_into(operation: Operation, inputs: Arrays, out: Array) -> None:
    """The result in an array that is new, or the very memory of x."""
    (indices, updates), first = _begun(inputs, out), operation.parameter("axis")
    deep, many = indices.shape[-1], indices.ndim - 1
    if deep:
        front = np.moveaxis(out, range(first, first + deep), range(deep))
        values = np.moveaxis(updates, range(first, first + many), range(many))
        REDUCTIONS[operation.parameter("reduction")](front, _nd_places(indices, 0), values)


def _scatter_nd_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    out = inputs["x"].copy()
    _scatter_nd_into(operation, {**inputs, "x": out}, out)
    return {"out": out}


def _scatter_nd_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    indices, how, first = operation.input("indices"), _reduction_with_gradient(operation), operation.parameter("axis")
    deep, many, rank = indices.shape[-1], len(indices.shape) - 1, len(dy.shape)
    nothing = zeros(operation.input("updates").shape, dy.dtype)
    front = [*range(first, first + deep), *range(first), *range(first + deep, rank)]
    taken = gather_nd(permute(dy, front), indices)
    back = [*range(many, many + first), *range(many), *range(many + first, len(taken.shape))]
    return {
        "x": dy if how == "add" else scatter_nd(dy, indices, nothing, axis=first),
        "updates": permute(taken, back),
    }


_SCATTER_ND = Form(("x", "indices", "updates"), {"reduction": _reduction, "axis": integer(0)})
register(Operator("scatter_nd", _scatter_nd_block, _SCATTER_ND, _scatter_nd_gradient, into=_scatter_nd_into))


# ---------------------------------------------------------------------------------------------------------------------
# tensor[key]


@public()
def getitem(x: Any, key: Any) -> Tensor:
    """Indexing as NumPy's: integers, slices with steps of any sign, ``...``, ``None``, arrays of integers, known masks.

    A tensor as a mask would give a result whose shape depends on values, which no plan can know: it is refused.
    """
    x = as_tensor(x, "tensor[key]")
    items = _without_masks(x, list(key) if isinstance(key, tuple) else [key])
    if not any(_is_array(item) for item in items):
        return basic(x, key)
    used = sum(item is not None and item is not Ellipsis for item in items)
    at = next((k for k, item in enumerate(items) if item is Ellipsis), len(items))
    items[at : at + 1] = [slice(None)] * (len(x.shape) - used)
    # first what moves nothing by value; an integer beside arrays counts as one
    chosen = [k for k, item in enumerate(items) if not (item is None or isinstance(item, slice))]
    x = basic(x, tuple(slice(None) if k in chosen else item for k, item in enumerate(items)))
    arrays = [_place_array(x, k, items[k]) for k in chosen]
    together = chosen[-1] - chosen[0] == len(chosen) - 1
    first = chosen[0] if together else 0
    if len(arrays) == 1:
        return take(x, arrays[0], chosen[0])
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        problem = f"arrays of places of shapes {', '.join(str(a.shape) for a in arrays)} do not broadcast"
        raise GraphError("tensor[key]", problem, inputs={"x": x.type}) from None
    places = stack([cast(broadcast_to(a, shape), np.int64) for a in arrays], -1)
    rest = [k for k in range(len(x.shape)) if k not in chosen]
    out = gather_nd(permute(x, [*chosen, *rest]), places)
    deep = len(shape)
    return moveaxis(out, list(range(deep)), list(range(first, first + deep)))


def _without_masks(x: Tensor, items: list[Any]) -> list[Any]:
    """The items of a key, each mask whose values are known as the places where it is true, one array per dimension."""
    masks = {k: np.asarray(item) for k, item in enumerate(items) if isinstance(item, (list, np.ndarray))}
    masks = {k: mask for k, mask in masks.items() if mask.dtype.kind == "b" and mask.ndim}
    if not masks:
        return items
    deep = [0 if i is None or i is Ellipsis else masks[k].ndim if k in masks else 1 for k, i in enumerate(items)]
    out: list[Any] = []
    axis = 0
    for k, item in enumerate(items):
        if item is Ellipsis:
            axis += len(x.shape) - sum(deep)
        if k in masks and masks[k].shape != x.shape[axis : axis + deep[k]]:
            problem = f"the mask at axis {axis} has shape {masks[k].shape}"
            raise GraphError("tensor[key]", problem, inputs={"x": x.type}, legal="the tensor's extents there")
        out += masks[k].nonzero() if k in masks else [item]
        axis += deep[k]
    return out


def _is_array(item: Any) -> bool:
    if isinstance(item, (bool, np.bool_)):
        raise GraphError(
            "tensor[key]", f"{item!r} is no place", legal="integers, slices, ..., None, arrays of integers"
        )
    return isinstance(item, (list, np.ndarray, Tensor)) and not (isinstance(item, np.ndarray) and item.ndim == 0)


def _place_array(x: Tensor, dim: int, item: Any) -> Tensor:
    places = as_tensor(item if isinstance(item, Tensor) else np.asarray(item, None if np.size(item) else np.int64))
    if places.dtype.kind == "b":
        legal = "where(mask, x, 0); np.asarray(tensor)[mask] evaluates"
        raise GraphError(
            "tensor[key]", "the shape of tensor[mask] depends on values", inputs={"x": x.type}, legal=legal
        )
    if places.dtype.kind not in "iu":
        raise DtypeError("tensor[key]", f"places of type {places.dtype.name}", legal="integers, slices, ..., None")
    return places
