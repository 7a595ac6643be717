"""Operators that need whole dimensions: running sums, sorting, and the same elements in another shape.

Each may be cut along every dimension that it treats one by one. A reshape is cut along the common factor of the leading
extents of each group of dimensions that it splits or joins.

Source: own.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.assemble import pad
from tileweave.graph.ir.dtypes import is_floating, is_narrow, limits
from tileweave.graph.ir.forms import Form, axis_form, integer
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType, Value
from tileweave.graph.ir.select import dimension, flip, full, slice_, squeeze, unsqueeze
from tileweave.graph.ir.sugar import FUNCTIONS, public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import cast, divide, equal, multiply
from tileweave.graph.ops.elementwise import where as choose
from tileweave.graph.ops.operators import Array, Arrays, Block, Costs, Into, Operator, made, register
from tileweave.space import AffineMap, Box, Projection


def partly_whole(dims: Sequence[int | None], shape: Sequence[int], rank: int) -> Projection:
    """The projection that moves dimension k with index dimension ``dims[k]``, and takes those that are None whole."""
    window = tuple(n if dim is None else 1 for dim, n in zip(dims, shape, strict=True))
    return Projection(AffineMap.select(tuple(dims), rank), window)


def along(
    name: str, x: Tensor, dim: int, outputs: Sequence[tuple[str, TensorType]], *parameters: tuple[str, Value]
) -> Operation:
    """An operation on whole rows along one dimension, one by one: its index is the other dimensions."""
    rank = len(x.shape)
    dims = [None if k == dim else k - (k > dim) for k in range(rank)]
    index = Box.of([n for k, n in enumerate(x.shape) if k != dim])
    signature = Signature(
        tuple(f"d{k}" for k in range(rank - 1)),
        (("x", partly_whole(dims, x.shape, rank - 1)),),
        tuple((own, partly_whole(dims, kind.shape, rank - 1)) for own, kind in outputs),
        costs=(("flops", float(x.shape[dim])),),
    )
    return Operation(name, index, (("x", x),), tuple(outputs), (("axis", dim), *parameters), signature)


# ---------------------------------------------------------------------------------------------------------------------
# running sums and products


_LONG_STEP = 512
"""Running sums of so many elements side by side take a call each: 1000 x 1000 of FP32 in 1.3 ms instead of 4.0."""


def _running_block(ufunc: np.ufunc) -> Block:
    into = _running_into(ufunc)

    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        out = np.empty(inputs["x"].shape, operation.output_types["out"].dtype)
        into(operation, inputs, out)
        return {"out": out}

    return block


def _running_into(ufunc: np.ufunc) -> Into:
    def into(operation: Operation, inputs: Arrays, out: Array) -> None:
        dim, x = operation.parameter("axis"), inputs["x"]
        if dim == x.ndim - 1 or x.size < _LONG_STEP * x.shape[dim]:
            ufunc.accumulate(x, dim, out.dtype, out)
            return
        steps, given = np.moveaxis(out, dim, 0), np.moveaxis(x, dim, 0)
        steps[:1] = given[:1]
        for k in range(1, len(steps)):  # NumPy's own loop takes one element after the other
            ufunc(steps[k - 1], given[k], out=steps[k], dtype=out.dtype)

    return into


def _running(
    name: str, ufunc: np.ufunc, x: Any, axis: int | None, exclusive: bool, reverse: bool, dtype: Any
) -> Tensor:
    where = f"{name}(x, axis)"
    x = as_tensor(x, where)
    x, axis = (reshape(x, -1), 0) if axis is None else (x, axis)
    dim = dimension(where, x, axis)
    x = cast(x, dtype if dtype is not None else ufunc.reduce(np.ones(1, x.dtype)).dtype)
    x = flip(x, dim) if reverse else x
    out = Tensor(along(name, x, dim, (("out", x.type),)))
    if exclusive:
        sides = [(int(k == dim), 0) for k in range(len(x.shape))]
        out = slice_(pad(out, sides, "constant", ufunc.identity), x.type.box)
    return flip(out, dim) if reverse else out


@public(np.cumsum)
def cumsum(
    x: Any, axis: int | None = None, *, exclusive: bool = False, reverse: bool = False, dtype: Any = None
) -> Tensor:
    """The sum of all elements up to each one along a dimension, in the type that `numpy.cumsum` gives.

    Args:
        x: any tensor.
        axis: the dimension; None: all elements in row-major order.
        exclusive: whether an element does not count itself.
        reverse: whether the sums run from the end.
        dtype: of the sums.

    Example:
        >>> np.asarray(cumsum([1, 2, 3], exclusive=True)).tolist()
        [0, 1, 3]
    """
    return _running("cumsum", np.add, x, axis, exclusive, reverse, dtype)


@public(np.cumprod)
def cumprod(
    x: Any, axis: int | None = None, *, exclusive: bool = False, reverse: bool = False, dtype: Any = None
) -> Tensor:
    """The product of all elements up to each one along a dimension; else as `cumsum`."""
    return _running("cumprod", np.multiply, x, axis, exclusive, reverse, dtype)


def _running_all(name: str, ufunc: np.ufunc, x: Any, axis: int | None, reverse: bool) -> Tensor:
    return _running(name, ufunc, x, axis, False, reverse, None)


@public()
def cummax(x: Any, axis: int | None = None, *, reverse: bool = False) -> Tensor:
    """The greatest of all elements up to each one along a dimension; NaN is greater than all; else as `cumsum`."""
    return _running_all("cummax", np.maximum, x, axis, reverse)


@public()
def cummin(x: Any, axis: int | None = None, *, reverse: bool = False) -> Tensor:
    """The least of all elements up to each one along a dimension; NaN is less than all; else as `cumsum`."""
    return _running_all("cummin", np.minimum, x, axis, reverse)


@public()
def logcumsumexp(x: Any, axis: int | None = None, *, reverse: bool = False) -> Tensor:
    """``log(cumsum(exp(x)))`` without overflow in between; else as `cumsum`."""
    return _running_all("logcumsumexp", np.logaddexp, x, axis, reverse)


def _cumsum_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    return {"x": cumsum(dy, operation.parameter("axis"), reverse=True, dtype=dy.dtype)}


def _cumprod_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    # behind its first zero a product has no gradient; that zero's own is what the others give
    x, axis = operation.input("x"), operation.parameter("axis")
    zero = equal(x, 0)
    zeros = cumsum(zero, axis, dtype=np.int64)
    first = multiply(zero, equal(zeros, 1))
    others = cumprod(choose(first, 1.0, x), axis, dtype=dy.dtype)

    def from_here(products: Tensor) -> Tensor:
        return cumsum(multiply(dy, products), axis, reverse=True, dtype=dy.dtype)

    before = divide(from_here(y), choose(zero, 1.0, x))
    return {"x": choose(first, from_here(others), choose(equal(zeros, 0), before, 0.0))}


def last_reached(x: Tensor, y: Tensor, axis: int) -> Tensor:
    """The last place so far at which elements are what a running extreme of them is; of NaNs the last one."""
    reached = FUNCTIONS["logical_or"](equal(x, y), FUNCTIONS["isnan"](x)) if is_floating(x.dtype) else equal(x, y)
    count = [-1 if k == axis else 1 for k in range(len(x.shape))]
    return cummax(choose(reached, np.arange(x.shape[axis]).reshape(count), 0), axis)


def _cumextreme_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x, axis = operation.input("x"), operation.parameter("axis")
    zeros = FUNCTIONS["zeros"](x.shape, dy.dtype)
    return {"x": FUNCTIONS["scatter"](zeros, last_reached(x, y, axis), dy, axis, reduction="add")}


def _logcumsumexp_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    # exp(x) times the sum of dy exp(-y) from here on, of both signs apart, as logarithms; with `least` on both sides,
    # which cancels, a second derivative meets no logarithm of 0
    x, axis = operation.input("x"), operation.parameter("axis")
    precision = limits(dy.dtype)
    least = min(float(precision.tiny) / float(precision.eps), 1e-6)

    def of(part: Tensor) -> Tensor:
        positive = FUNCTIONS["add"](FUNCTIONS["maximum"](part, 0.0), least)
        logs = FUNCTIONS["subtract"](FUNCTIONS["log"](positive), y)
        out: Tensor = FUNCTIONS["exp"](FUNCTIONS["add"](logcumsumexp(logs, axis, reverse=True), x))
        return out

    return {"x": FUNCTIONS["subtract"](of(dy), of(FUNCTIONS["negative"](dy)))}


_AXIS = Form(("x",), {"axis": axis_form})
for _name, _ufunc, _gradient in (
    ("cummax", np.maximum, _cumextreme_gradient),
    ("cummin", np.minimum, _cumextreme_gradient),
    ("logcumsumexp", np.logaddexp, _logcumsumexp_gradient),
):
    register(Operator(_name, _running_block(_ufunc), _AXIS, _gradient, into=_running_into(_ufunc)))
register(Operator("cumsum", _running_block(np.add), _AXIS, _cumsum_gradient, into=_running_into(np.add)))
register(Operator("cumprod", _running_block(np.multiply), _AXIS, _cumprod_gradient, into=_running_into(np.multiply)))


# ---------------------------------------------------------------------------------------------------------------------
# sorting


def _sort_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x, types = inputs["x"], operation.output_types
    if len(types) == 1:
        ((name, kind),) = types.items()
        out = np.empty(kind.shape, kind.dtype)
        _sort_into(operation, inputs, out)
        return {name: out}
    order = _places_of(operation, x, types["indices"].shape)
    return {"values": np.take_along_axis(x, order, operation.parameter("axis")), "indices": order}


def _sort_into(operation: Operation, inputs: Arrays, out: Array) -> None:
    """The values alone, or the places."""
    x, dim = inputs["x"], operation.parameter("axis")
    if "indices" in operation.output_types:
        out[...] = _places_of(operation, x, out.shape)
        return
    keys, first = np.sort(_compared(x), dim), (slice(None),) * dim
    out[...] = (np.flip(keys, dim) if operation.parameter("descending") else keys)[(*first, slice(out.shape[dim]))]


def _places_of(operation: Operation, x: Array, shape: Sequence[int]) -> Array:
    """The first places that sort; equal elements stay in order."""
    dim, keys = operation.parameter("axis"), _compared(x)
    if operation.parameter("descending"):
        order = x.shape[dim] - 1 - np.flip(np.argsort(np.flip(keys, dim), dim, "stable"), dim)
    else:
        order = np.argsort(keys, dim, "stable")
    first: Array = order[(*(slice(None),) * dim, slice(shape[dim]))]
    return first.astype(np.int64, copy=False)


def _compared(x: Array) -> Array:
    """The same values in a type that NumPy compares fast, and with NaN as the greatest."""
    return x.astype(np.float32) if is_narrow(x.dtype) or x.dtype == np.float16 else x


def _sort_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x, dim = operation.input("x"), operation.parameter("axis")
    zeros = FUNCTIONS["zeros"](x.shape, dy.dtype)
    places = _sorting_places(x, dim, operation.parameter("descending"), y.shape[dim])
    return {"x": FUNCTIONS["scatter"](zeros, places, dy, dim, reduction="add")}


def _truth(node: object, value: object) -> str:
    return "" if type(value) is bool else "true or false"


def triangle(x: Tensor, offset: int, upper: bool) -> Tensor:
    """Matrices [.., rows, columns] with zeros beside the diagonal that many columns to the right, as `numpy.tril` and
    `numpy.triu`: above it, or below it."""
    rank = len(x.shape)
    if rank < 2:
        raise GraphError("triangle(x, offset, upper)", f"rank {rank}", inputs={"x": x.type}, legal="rank 2 or more")
    own = [*range(rank - 2), None, None]
    moved = partly_whole(own, x.shape, rank - 2)
    costs = (("flops", float(prod(x.shape[-2:]))),)
    parameters = (("offset", offset), ("upper", upper))
    return made("triangle", x.shape[:-2], (("x", x, moved),), (x.type, moved), *parameters, costs=costs)


def _triangle_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    cut = np.triu if operation.parameter("upper") else np.tril
    return {"out": cut(inputs["x"], operation.parameter("offset"))}


register(Operator("triangle", _triangle_block, Form(("x",), {"offset": integer(), "upper": _truth})))


_SORT = Form(("x",), {"axis": axis_form, "descending": _truth})
register(Operator("sort", _sort_block, _SORT, _sort_gradient, into=_sort_into, spares=True))


def sorted_values(x: Tensor, dim: int, descending: bool, count: int) -> Tensor:
    """The first so many elements along a dimension in order."""
    shape = tuple(count if k == dim else n for k, n in enumerate(x.shape))
    made = along("sort", x, dim, (("values", TensorType(shape, x.dtype)),), ("descending", bool(descending)))
    return Tensor(made, "values")


def _sorting_places(x: Tensor, dim: int, descending: bool, count: int) -> Tensor:
    """The first so many places that sort the elements along a dimension."""
    shape = tuple(count if k == dim else n for k, n in enumerate(x.shape))
    kind = TensorType(shape, np.dtype("i8"))
    return Tensor(along("sort", x, dim, (("indices", kind),), ("descending", bool(descending))), "indices")


@public(np.sort)
def sort(x: Any, axis: int = -1, *, descending: bool = False) -> Tensor:
    """The elements along a dimension in order; NaN is the greatest, as in NumPy."""
    x = as_tensor(x, "sort(x, axis)")
    dim = dimension("sort(x, axis)", x, axis)
    return sorted_values(x, dim, descending, x.shape[dim])


@public(np.argsort)
def argsort(x: Any, axis: int = -1, *, descending: bool = False) -> Tensor:
    """The places that sort the elements along a dimension; equal elements stay in order."""
    x = as_tensor(x, "argsort(x, axis)")
    dim = dimension("argsort(x, axis)", x, axis)
    return _sorting_places(x, dim, descending, x.shape[dim])


@public()
def top_k(x: Any, k: int, axis: int = -1, *, largest: bool = True) -> tuple[Tensor, Tensor]:
    """(values, places) of the k greatest or least elements along a dimension, the best first, the first of equal ones.

    Example:
        >>> values, places = top_k([3.0, 9.0, 2.0, 9.0], 2)
        >>> np.asarray(values).tolist(), np.asarray(places).tolist()
        ([9.0, 9.0], [1, 3])
    """
    where = "top_k(x, k, axis)"
    x = as_tensor(x, where)
    dim = dimension(where, x, axis)
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 0 <= k <= x.shape[dim]:
        raise GraphError(where, f"k is {k!r}", inputs={"x": x.type}, legal=f"0..{x.shape[dim]}")
    places = _sorting_places(x, dim, largest, int(k))
    return FUNCTIONS["take_along_axis"](x, places, dim), places


# ---------------------------------------------------------------------------------------------------------------------
# reshape


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Runs of dimensions of the old and the new shape that hold the same elements, as short as possible."""
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(left), j + len(right)
        a, b = prod([old[k] for k in left]), prod([new[k] for k in right])
        while a != b:
            if a < b:
                left.append(i)
                a *= old[i]
                i += 1
            else:
                right.append(j)
                b *= new[j]
                j += 1
        yield left, right


@public(np.reshape)
def reshape(x: object, shape: int | Sequence[int]) -> Tensor:
    """The elements in row-major order in another shape; one extent may be -1, the one that fits.

    Inserting and removing dimensions of extent 1 is a view. Anything else is an operation, since a tensor whose
    elements stand elsewhere cannot be read through strides; it is free wherever it is not moved.

    Example:
        >>> np.asarray(reshape(np.arange(6), (-1, 2))).tolist()
        [[0, 1], [2, 3], [4, 5]]
    """
    where = "reshape(x, shape)"
    x = as_tensor(x, where)
    wanted = _shape(where, x, shape)
    extents = x.shape
    solid, other = [n for n in extents if n != 1], [n for n in wanted if n != 1]
    if 0 in extents:
        return x if wanted == extents else full(wanted, 0, x.dtype)
    x = squeeze(x) if len(solid) < len(extents) else x
    out = x if solid == other else _reshaped(x, tuple(other))
    return unsqueeze(out, [k for k, n in enumerate(wanted) if n == 1]) if len(wanted) > len(other) else out


def _shape(where: str, x: Tensor, shape: Any) -> tuple[int, ...]:
    try:
        wanted = [operator.index(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,))]
    except TypeError:
        wanted = [-2]
    size = x.size
    if -1 in wanted:
        rest = prod([n for n in wanted if n != -1])
        if wanted.count(-1) == 1 and rest > 0 and size % rest == 0:
            wanted[wanted.index(-1)] = size // rest
    if min(wanted, default=0) < 0 or prod(wanted) != size:
        raise GraphError(
            where,
            f"{size} elements do not fit the shape {shape!r}",
            inputs={"x": x.type},
            legal="extents whose product is the number of elements; one of them may be -1",
        )
    return tuple(wanted)


def _reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    own = x.type
    groups = list(_groups(own.shape, shape))
    rank = len(groups)
    counts = tuple([gcd(own.shape[left[0]], shape[right[0]]) for left, right in groups])

    def projection(extents: Sequence[int], side: int) -> Projection:
        rows, window = [], []
        for g, group in enumerate(groups):
            for place, k in enumerate(group[side]):
                step = extents[k] // counts[g] if place == 0 else 0
                rows.append((*(0,) * g, step, *(0,) * (rank - 1 - g)))
                window.append(step if place == 0 else extents[k])
        return Projection(AffineMap(tuple(rows), (0,) * len(rows), rank), tuple(window))

    out = TensorType(shape, own.dtype), projection(shape, 1)
    return made("reshape", counts, [("x", x, projection(own.shape, 0))], out, costs=_MOVE)


_MOVE: Costs = (("flops", 0.0),)


def _reshape_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x = inputs["x"]
    return {"out": np.ascontiguousarray(x).reshape(operation.output_types["out"].shape)}


def _reshape_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    return {"x": reshape(dy, operation.input("x").shape)}


register(Operator("reshape", _reshape_block, Form(("x",)), _reshape_gradient, _MOVE))


@public(np.ravel)
def ravel(x: Any) -> Tensor:
    """The elements in row-major order in one dimension."""
    return reshape(x, -1)


@public()
def flatten(x: Any, start: int = 1, stop: int = -1) -> Tensor:
    """The dimensions from `start` to `stop`, both included, as one; by default all but the first."""
    x = as_tensor(x, "flatten(x, start, stop)")
    if not x.shape:
        return reshape(x, 1)
    low = dimension("flatten(x, start, stop)", x, start) if start < len(x.shape) else len(x.shape)
    high = dimension("flatten(x, start, stop)", x, stop) + 1
    return reshape(x, (*x.shape[:low], prod(x.shape[low:high]), *x.shape[max(low, high) :]))
