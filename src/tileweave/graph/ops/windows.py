"""Operators that read windows: convolution in any number of dimensions, pooling, stencils.

The input projection of a window strides: the window of output point o is ``stride * o + dilation * k``. Padding is a
selector before the operator, so it is made where it is needed. Neighbouring shards share their halo by reading it.

Source: Tapestry, "Sharding Convolution Operators" and "Sparse Strided Convolution Operators".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from math import prod
from typing import Any, Literal

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.assemble import pad
from tileweave.graph.ir.dtypes import is_floating, wide_type
from tileweave.graph.ir.forms import Form, given_parameters, integer, sizes_form
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType, Value, trusted_type
from tileweave.graph.ir.resolve import strided_view
from tileweave.graph.ir.select import concat, full, permute, slice_, squeeze, unsqueeze
from tileweave.graph.ir.sugar import FUNCTIONS, public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.along import partly_whole, reshape
from tileweave.graph.ops.elementwise import add, cast, common_type, divide, equal, maximum
from tileweave.graph.ops.elementwise import where as where_
from tileweave.graph.ops.operators import Array, Arrays, Operator, made, register
from tileweave.graph.ops.reductions import widened
from tileweave.space import AffineMap, Box, Projection

Sizes = int | Sequence[int]
Padding = int | Sequence[int] | Sequence[tuple[int, int]] | Literal["valid", "same"]


def sizes_of(where: str, name: str, value: Sizes, rank: int, least: int = 1) -> tuple[int, ...]:
    """An integer per spatial dimension, given once or for each."""
    values = tuple(value) if isinstance(value, Iterable) else (value,) * rank
    if len(values) != rank or any(not isinstance(n, (int, np.integer)) or n < least for n in values):
        raise GraphError(
            where, f"{name} {value!r} does not fit", legal=f"an integer, or {rank} integers, of {least} or more"
        )
    return tuple(int(n) for n in values)


def pairs_of(where: str, padding: Any, rank: int, least: int = 0) -> list[tuple[int, int]]:
    """What to add before and after each dimension: a number, one per dimension, or pairs."""
    if isinstance(padding, (int, np.integer)):
        return [(p, p) for p in sizes_of(where, "padding", int(padding), rank, 0)]
    try:
        given = [tuple(p) if isinstance(p, Sequence) else (p, p) for p in padding]
        fits = len(given) == rank and all(
            len(pair) == 2 and all(isinstance(n, (int, np.integer)) and n >= least for n in pair) for pair in given
        )
    except TypeError:
        fits = False
    if not fits:
        raise GraphError(
            where,
            f"padding {padding!r} does not fit",
            legal=f"'valid', 'same', an integer, {rank} integers, or {rank} pairs, of zero or more",
        )
    return [(int(before), int(after)) for before, after in given]


def _padded(
    where: str,
    x: Tensor,
    padding: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    value: Any = 0,
) -> Tensor:
    """x with its last dimensions padded; ``same`` makes ceil(extent / stride) windows, an odd element at the end."""
    rank = len(kernel)
    pairs: list[tuple[int, int]]
    if padding == "valid":
        return x
    if padding == "same":
        pairs = []
        for n, k, s, d in zip(x.shape[-rank:], kernel, stride, dilation, strict=True):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            pairs.append((total // 2, total - total // 2))
    else:
        pairs = pairs_of(where, padding, rank)
    return pad(x, [*[(0, 0)] * (len(x.shape) - rank), *pairs], "constant", value)


def _outputs(
    where: str, x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """The number of windows per dimension; a window larger than the input is refused."""
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    extents = x.shape[-len(kernel) :]
    if any(span > n for span, n in zip(spans, extents, strict=True)):
        raise GraphError(
            where,
            f"windows of {tuple(spans)} elements do not fit {extents}",
            inputs={"x (padded)": x.type},
            legal="windows no larger than the padded input",
        )
    return _counts(extents, kernel, stride, dilation)


def _counts(
    extents: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """How many windows there are along each dimension."""
    axes = zip(extents, kernel, stride, dilation, strict=True)
    return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in axes)


def _used(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], out: Sequence[int]
) -> Tensor:
    """x without the trailing elements that no window reads."""
    axes = zip(out, kernel, stride, dilation, strict=True)
    shape = x.shape
    needed = (*shape[: -len(out)], *[s * (o - 1) + d * (k - 1) + 1 for o, k, s, d in axes])
    return x if needed == shape else slice_(x, Box.of(needed))


def _windows(x: Array, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Array:
    """A view [.., windows.., kernel..] of the last dimensions of an array."""
    rank = len(kernel)
    lead, extents, strides = x.shape[:-rank], x.shape[-rank:], x.strides[-rank:]
    out = _counts(extents, kernel, stride, dilation)
    steps = tuple(s * step for s, step in zip(stride, strides, strict=True))
    inner = tuple(d * step for d, step in zip(dilation, strides, strict=True))
    return strided_view(x, (*lead, *out, *kernel), (*x.strides[:-rank], *steps, *inner))


def _window_projection(
    lead: AffineMap,
    first: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    lead_shape: Sequence[int],
) -> Projection:
    """Leading coordinates by a map, then the windows of the index dimensions from `first` on."""
    rows = tuple(tuple(s if column == first + k else 0 for column in range(lead.inputs)) for k, s in enumerate(stride))
    map = AffineMap((*lead.matrix, *rows), (*lead.offset, *(0,) * len(rows)), lead.inputs)
    return Projection(map, (*lead_shape, *kernel), (*(1,) * lead.outputs, *dilation))


# ---------------------------------------------------------------------------------------------------------------------
# convolution


@public()
def conv(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of a batch of channels with a stack of filters, in as many dimensions as w has beyond two.

    ``out[n, f, o..] = b[f] + sum over c, k.. of x[n, c, stride * o + dilation * k ..] * w[f, c, k..]``. One operation
    over (batch, filter, out.., channel); the channel is a sum, so it may be cut into partial results. With groups
    the index is (batch, group, out..).

    Args:
        x: [batch, channels, spatial..].
        w: [filters, channels / groups, kernel..].
        b: [filters], or None.
        stride: elements between windows, one or per dimension.
        padding: zeros before and after: a number, one per dimension, pairs, ``valid`` (none) or ``same``.
        dilation: elements between the points of a window.
        groups: the channels and the filters fall into so many groups that do not see each other.

    Raises:
        GraphError: ranks, channels or groups do not fit, or no window fits the input.

    Example:
        >>> np.asarray(conv(np.arange(5.0)[None, None], np.ones((1, 1, 3)))).tolist()
        [[[3.0, 6.0, 9.0]]]

    Source: Tapestry, "Sharding Convolution Operators".
    """
    where = "conv(x, w, b)" if b is not None else "conv(x, w)"
    x, w = as_tensor(x, where), as_tensor(w, where)
    types = {"x": x.type, "w": w.type}
    legal = "x [batch, channels, spatial..], w [filters, channels / groups, kernel..]"
    rank = len(w.shape) - 2
    if rank < 1 or len(x.shape) != rank + 2:
        raise GraphError(where, f"ranks {len(x.shape)} and {len(w.shape)} do not fit", inputs=types, legal=legal)
    groups = sizes_of(where, "groups", groups, 1)[0]
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups or 0 in w.shape:
        problem = f"{x.shape[1]} channels and {w.shape[0]} filters of {w.shape[1]} do not fit {groups} groups"
        raise GraphError(where, problem, inputs=types, legal=legal)
    if x.dtype.kind == "b" and w.dtype.kind == "b":
        raise DtypeError(where, "bool has no sum of products", inputs=types, legal="cast to an integer type first")
    kernel = w.shape[2:]
    steps, gaps = sizes_of(where, "stride", stride, rank), sizes_of(where, "dilation", dilation, rank)
    dtype = common_type(x, w)
    x, w = cast(_padded(where, x, padding, kernel, steps, gaps), dtype), cast(w, dtype)
    out = _outputs(where, x, kernel, steps, gaps)
    x = _used(x, kernel, steps, gaps, out)
    result = _conv(x, w, steps, gaps, groups, out)
    if b is None:
        return result
    b = as_tensor(b, where)
    if b.shape != (w.shape[0],):
        raise GraphError(where, f"b has shape {b.shape}, there are {w.shape[0]} filters", inputs=types | {"b": b.type})
    return add(result, unsqueeze(b, tuple(range(1, rank + 1))))


def conv_like(operation: Operation, x: Tensor, w: Tensor) -> Operation:
    """A convolution with the parameters of another one, of padded inputs of other extents."""
    stride, dilation, groups = (operation.parameter(name) for name in ("stride", "dilation", "groups"))
    out = _outputs("conv(x, w)", x, w.shape[2:], stride, dilation)
    like: Any = _conv(x, w, stride, dilation, groups, out).producer
    return like  # type: ignore[no-any-return]


def spatial_names(rank: int) -> tuple[str, ...]:
    """The names of the spatial dimensions of an index."""
    return tuple("xyz"[k] if rank <= 3 else f"x{k}" for k in range(rank))


@lru_cache(maxsize=1024)
def conv_projections(
    w: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], groups: int
) -> tuple[Projection, Projection, Projection]:
    """What an index (batch, group or filter, out..) reads of x and w and makes, the channels being whole."""
    rank, kernel = len(w) - 2, w[2:]
    inputs = rank + 2
    each = w[0] // groups if groups > 1 else 1  # filters of an index
    lead = AffineMap(_rows(inputs, {0: (0, 1), 1: (1, w[1] if groups > 1 else 0)}), (0, 0), inputs)
    read = _window_projection(lead, 2, kernel, stride, dilation, (1, w[1]))
    per_group = AffineMap(_rows(inputs, {0: (1, each)}, 2 + rank), (0,) * (2 + rank), inputs)
    rows = {0: (0, 1), 1: (1, each)} | {k: (k, 1) for k in range(2, rank + 2)}
    makes = Projection(AffineMap(_rows(inputs, rows), (0,) * len(rows), inputs), (1, each, *(1,) * rank))
    return read, Projection(per_group, (each, w[1], *kernel)), makes


def _conv(
    x: Tensor, w: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...], groups: int, out: tuple[int, ...]
) -> Tensor:
    each = (w.shape[0] // groups, w.shape[1])  # filters and channels of a group
    kind = trusted_type((x.shape[0], w.shape[0], *out), x.dtype)
    index = (*kind.shape, w.shape[1]) if groups == 1 else (x.shape[0], groups, *out)
    named: tuple[tuple[str, Value], ...] = (
        ("stride", stride),
        ("dilation", dilation),
        ("filters", each[0]),
        ("channels", each[1]),
        ("groups", groups),
    )
    signature = _conv_form(w.shape if groups > 1 else w.shape[2:], stride, dilation, groups)
    return Tensor(Operation("conv", Box.of(index), (("x", x), ("w", w)), (("out", kind),), named, signature))


@lru_cache(maxsize=1024)
def _conv_form(w: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], groups: int) -> Signature:
    """The signature of a convolution with a stack of filters of this shape, or, of one group, with such windows."""
    rank = len(stride)
    spatial, kernel = spatial_names(rank), w[-rank:]
    if groups == 1:
        inputs = rank + 3
        dims = ("batch", "filter", *spatial, "channel")
        read = _window_projection(AffineMap.select((0, inputs - 1), inputs), 2, kernel, stride, dilation, (1, 1))
        filters = Projection(AffineMap.select((1, inputs - 1, *(None,) * rank), inputs), (1, 1, *kernel))
        makes = Projection.select((0, 1, *range(2, rank + 2)), inputs)
        reductions: tuple[tuple[int, str], ...] = ((inputs - 1, "sum"),)
        flops = 2.0 * prod(kernel)
    else:
        dims = ("batch", "group", *spatial)
        read, filters, makes = conv_projections(w, stride, dilation, groups)
        reductions = ()
        flops = 2.0 * prod(kernel) * (w[0] // groups) * w[1]
    return Signature(dims, (("x", read), ("w", filters)), (("out", makes),), reductions, (("flops", flops),))


def _rows(inputs: int, rows: dict[int, tuple[int, int]], count: int | None = None) -> tuple[tuple[int, ...], ...]:
    """A matrix whose row r has one coefficient, ``rows[r] = (column, value)``; other rows are zero."""
    count = len(rows) if count is None else count
    return tuple(tuple(rows[r][1] if r in rows and rows[r][0] == c else 0 for c in range(inputs)) for r in range(count))


def _conv_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x, w = inputs["x"], inputs["w"]
    rank = len(w.shape) - 2
    seen = _windows(x, w.shape[2:], operation.parameter("stride"), operation.parameter("dilation"))
    spatial, inner = list(range(3, 3 + rank)), list(range(3 + rank, 3 + 2 * rank))
    filters, channels = w.shape[0], w.shape[1]
    groups = 1
    if operation.parameter("groups") > 1:
        filters, channels = operation.parameter("filters"), operation.parameter("channels")
        groups = x.shape[1] // channels
    wide = wide_type(x.dtype)
    seen, w = seen.astype(wide, copy=False), w.astype(wide, copy=False)
    seen = seen.reshape((x.shape[0], groups, channels, *seen.shape[2:])) if groups > 1 else seen[:, None]
    w = w.reshape((groups, filters, *w.shape[1:]))
    # n, group, filter, out..: labels 0, 1, 2, spatial; the channel is label 99
    out = np.einsum(
        seen, [0, 1, 50, *spatial, *inner], w, [1, 2, 50, *inner], [0, 1, 2, *spatial], optimize=groups == 1
    )
    return {"out": np.asarray(out.reshape((out.shape[0], groups * filters, *out.shape[3:])), x.dtype)}


def apart(x: Tensor, stride: Sequence[int]) -> Tensor:
    """x with zeros between its elements along spatial dimensions: a cell of ``stride`` elements begins with each."""
    counts, rank = x.shape[2:], len(stride)
    cells = unsqueeze(x, [3 + 2 * k for k in range(rank)])
    cells = pad(cells, [(0, 0), (0, 0), *(margin for s in stride for margin in ((0, 0), (0, s - 1)))])
    whole = reshape(cells, (*x.shape[:2], *(n * s for n, s in zip(counts, stride, strict=True))))
    return slice_(
        whole, Box.of((*x.shape[:2], *(max((n - 1) * s + 1, 0) for n, s in zip(counts, stride, strict=True))))
    )


def _conv_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Callable[[], Tensor]]:
    """A transposed convolution of dy with the filters, and a convolution of x with dy as the filter."""
    x, w = operation.input("x"), operation.input("w")
    stride, dilation, groups = (operation.parameter(name) for name in ("stride", "dilation", "groups"))
    rank, filters, channels = len(stride), w.shape[0] // groups, w.shape[1]

    def swapped(t: Tensor) -> Tensor:
        return permute(t, (1, 0, *range(2, rank + 2)))

    def group(t: Tensor, k: int, size: int, dim: int) -> Tensor:
        return slice_(t, t.type.box.with_range(dim, k * size, (k + 1) * size))

    def to_x() -> Tensor:
        made: Tensor = FUNCTIONS["conv_transpose"](dy, w, stride=stride, dilation=dilation, groups=groups)
        return made

    def to_w() -> Tensor:
        if not dy.size:  # a window of no points is refused
            return full(w.shape, 0, w.dtype)
        parts = []
        for k in range(groups):
            values, weights = swapped(group(x, k, channels, 1)), swapped(group(dy, k, filters, 1))
            parts.append(swapped(conv(values, weights, stride=dilation, dilation=stride)))
        return concat(parts, 0)

    return {"x": to_x, "w": to_w}


def _window_fits(node: Operation) -> Iterator[str]:
    """The windows are those that the signature's projection names, so that no view leaves its array."""
    given = given_parameters(node)
    x = node.inputs[0][1]
    kernel = given.get("window", node.inputs[1][1].shape[2:] if len(node.inputs) > 1 else ())
    if len(kernel) != len(x.shape) - 2 or 0 in kernel:
        yield f"a window of shape {tuple(kernel)} does not fit an input of shape {x.shape}"
        return
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, given["dilation"], strict=True)]
    if any(span > n > 0 for span, n in zip(spans, x.shape[2:], strict=True)):
        yield f"windows of {tuple(spans)} elements do not fit an input of shape {x.shape}"


def _conv_fits(node: Operation) -> Iterator[str]:
    given = given_parameters(node)
    x, w = (t for _, t in node.inputs)
    if len(w.shape) != len(x.shape):
        yield f"x has rank {len(x.shape)}, w rank {len(w.shape)}"
        return
    yield from _window_fits(node)
    if given["groups"] > 1:
        own = w.shape[1] == given["channels"] and w.shape[0] % given["filters"] == 0
        if not own or x.shape[1] * given["filters"] != w.shape[0] * given["channels"]:
            yield f"{x.shape[1]} channels and filters of shape {w.shape} do not fall into groups as declared"
    elif x.shape[1] != w.shape[1]:
        yield f"x has {x.shape[1]} channels, w {w.shape[1]}"


_CONV = {"stride": sizes_form, "dilation": sizes_form, **dict.fromkeys(("filters", "channels", "groups"), integer(1))}
register(
    Operator("conv", _conv_block, Form(("x", "w"), _CONV, fits=_conv_fits), _conv_gradient, lowering="Contraction")
)


@public()
def stencil(x: Any, weights: Any, boundary: Literal["constant", "reflect"] = "constant", value: Any = 0) -> Tensor:
    """Every element replaced by a weighted sum of its neighbourhood; the result has the shape of x.

    Args:
        x: of the rank of the weights.
        weights: odd extents; the middle one is the element's own.
        boundary: what lies outside: a constant, or the mirror image.
        value: the constant.

    Example:
        >>> np.asarray(stencil(np.array([0.0, 0.0, 1.0, 0.0]), np.array([1.0, -2.0, 1.0]))).tolist()
        [0.0, 1.0, -2.0, 1.0]

    Source: Tapestry, "Finite Element Simulations".
    """
    where = "stencil(x, weights)"
    x, weights = as_tensor(x, where), as_tensor(weights, where)
    if len(x.shape) != len(weights.shape) or not x.shape or any(n % 2 == 0 for n in weights.shape):
        raise GraphError(
            where,
            f"weights of shape {weights.shape} do not fit x of shape {x.shape}",
            inputs={"x": x.type, "weights": weights.type},
            legal="equal ranks of 1 or more, odd extents of the weights",
        )
    wide = pad(x, [(n // 2, n // 2) for n in weights.shape], boundary, value)
    return squeeze(conv(unsqueeze(wide, (0, 1)), unsqueeze(weights, (0, 1))), (0, 1))


# ---------------------------------------------------------------------------------------------------------------------
# pooling


def _pooling(
    where: str, x: Any, window: Sizes, stride: Sizes | None, dilation: Sizes
) -> tuple[Tensor, tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    x = as_tensor(x, where)
    rank = len(x.shape) - 2
    if rank < 1:
        raise GraphError(
            where, f"rank {len(x.shape)} is too low", inputs={"x": x.type}, legal="[batch, channels, spatial..]"
        )
    kernel = sizes_of(where, "window", window, rank)
    steps = kernel if stride is None else sizes_of(where, "stride", stride, rank)
    return x, kernel, steps, sizes_of(where, "dilation", dilation, rank)


@public()
def max_pool(
    x: Any, window: Sizes, *, stride: Sizes | None = None, padding: Padding = 0, dilation: Sizes = 1
) -> Tensor:
    """The greatest value of each window of [batch, channels, spatial..]; padding never wins.

    Args:
        x: the input.
        window: its extent, one or per spatial dimension.
        stride: elements between windows; the window's extent when left out.
        padding: as in `conv`, with the least value of the type.
        dilation: elements between the points of a window.
    """
    where = "max_pool(x, window)"
    x, kernel, steps, gaps = _pooling(where, x, window, stride, dilation)
    kind = x.dtype.kind
    least = bool(0) if kind == "b" else int(np.iinfo(x.dtype).min) if kind in "iu" else -np.inf
    x = _padded(where, x, padding, kernel, steps, gaps, least)
    out = _outputs(where, x, kernel, steps, gaps)
    x = _used(x, kernel, steps, gaps, out)
    inputs = len(x.shape)
    read = _window_projection(AffineMap.select((0, 1), inputs), 2, kernel, steps, gaps, (1, 1))
    shape, named = (*x.shape[:2], *out), {"window": kernel, "stride": steps, "dilation": gaps}
    makes = TensorType(shape, x.dtype), Projection.select(range(inputs), inputs)
    options: Any = {"dims": ("batch", "channel", *spatial_names(len(out))), "costs": (("flops", float(prod(kernel))),)}
    return made("max_pool", shape, [("x", x, read)], makes, *named.items(), **options)


def _max_pool_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    kernel = operation.parameter("window")
    seen = _windows(inputs["x"], kernel, operation.parameter("stride"), operation.parameter("dilation"))
    return {"out": np.asarray(np.max(seen, axis=tuple(range(-len(kernel), 0))))}


def _max_pool_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    how: Any = dict(operation.parameters)
    return {"x": max_pool_gradient(operation.input("x"), y, dy, **how)}


def max_pool_gradient(
    x: Tensor, y: Tensor, dy: Tensor, *, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """dy shared among the greatest elements of each window, zero elsewhere: one operation, image by image.

    Args:
        x: [batch, channels, spatial..], all of which windows read.
        y: its maximum over windows.
        dy: of the shape of y.
        window: extents.
        stride: elements between windows.
        dilation: elements between the points of a window.

    Raises:
        GraphError: the parameters do not fit x, y or dy does not have the shape that pooling gives, or dy has integers.
    """
    given = [("x", x), ("y", y), ("dy", dy)]
    inputs = [(own, one, partly_whole((0, 1, *(None,) * len(one.shape[2:])), one.shape, 2)) for own, one in given]
    where, rank = "max_pool_gradient(x, y, dy)", len(x.shape) - 2
    sizes = {"window": window, "stride": stride, "dilation": dilation}
    named = {name: sizes_of(where, name, value, rank) for name, value in sizes.items()}
    costs = (("flops", 3.0 * prod(y.shape[2:]) * prod(window)),)
    makes = TensorType(x.shape, dy.dtype), inputs[0][2]
    options: Any = {"dims": ("batch", "channel"), "costs": costs}
    out = made("max_pool_gradient", x.shape[:2], inputs, makes, *named.items(), **options)
    operation: Any = out.producer
    if problems := list(_pooled_fits(operation)):
        raise GraphError(where, problems[0], inputs={own: one.type for own, one in given})
    return out


def _max_pool_gradient_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x, y, dy = (inputs[name] for name in ("x", "y", "dy"))
    window, stride, dilation = (operation.parameter(name) for name in ("window", "stride", "dilation"))
    hits = _windows(x, window, stride, dilation) == np.expand_dims(y, tuple(range(-len(window), 0)))
    shares = hits.sum(tuple(range(-len(window), 0)), dtype=np.intp).astype(dy.dtype)
    with np.errstate(divide="ignore", invalid="ignore"):  # a window of NaN has no greatest element
        shares = dy / shares
    out = np.zeros(x.shape, dy.dtype)
    for place in np.ndindex(*window):
        at: tuple[Any, ...] = (..., *map(_reached, place, y.shape[2:], stride, dilation))
        np.add(out[at], shares, out=out[at], where=hits[(..., *place)])
    return {"out": out}


def _reached(place: int, count: int, step: int, gap: int) -> slice:
    """The elements along a dimension that windows have at one of their places."""
    return slice(place * gap, place * gap + (count - 1) * step + 1, step)


def _max_pool_gradient_back(operation: Operation, out: Tensor, d_out: Tensor) -> dict[str, Tensor]:
    """Of dy alone: which elements are the greatest does not change."""
    x, y = operation.input("x"), operation.input("y")
    window, stride, dilation = (operation.parameter(name) for name in ("window", "stride", "dilation"))
    wide = cast(d_out, wide_type(d_out.dtype))  # narrow floats do not count far
    hits, terms = list[Tensor](), list[Tensor]()
    for place in Box.of(window):
        start = (0, 0, *(d * p for d, p in zip(dilation, place, strict=True)))
        at, steps = Box(start, y.shape), (1, 1, *stride)
        hits.append(equal(slice_(x, at, steps), y))
        terms.append(where_(hits[-1], slice_(wide, at, steps), 0.0))
    shared = maximum(reduce(add, [cast(hit, wide.dtype) for hit in hits]), 1)  # 0 where a window has NaN
    return {"dy": cast(divide(reduce(add, terms), shared), d_out.dtype)}


_POOL = Form(("x",), dict.fromkeys(("window", "stride", "dilation"), sizes_form), fits=_window_fits)
register(Operator("max_pool", _max_pool_block, _POOL, _max_pool_gradient, lowering="ReduceMax"))


def _pooled_fits(node: Operation) -> Iterator[str]:
    """What was pooled, and the gradient of that, have the shape that pooling has."""
    window, stride, dilation = (given_parameters(node)[name] for name in ("window", "stride", "dilation"))
    x, y, dy = (t for _, t in node.inputs)
    if len(window) != len(x.shape) - 2 or 0 in window:
        yield f"a window of shape {window} does not fit an input of shape {x.shape}"
        return
    expected = (*x.shape[:2], *_counts(x.shape[2:], window, stride, dilation))
    if y.shape != expected or dy.shape != expected:
        yield f"y and dy have shapes {y.shape} and {dy.shape}, not {expected}"
    if not is_floating(dy.dtype):
        yield f"dy is of {dy.dtype}, which has no shares"


_POOLED = Form(("x", "y", "dy"), dict.fromkeys(("window", "stride", "dilation"), sizes_form), fits=_pooled_fits)
register(Operator("max_pool_gradient", _max_pool_gradient_block, _POOLED, _max_pool_gradient_back))


@public()
def average_pool(x: Any, window: Sizes, *, stride: Sizes | None = None, padding: Padding = 0) -> Tensor:
    """The mean of each window of [batch, channels, spatial..]; padding counts as zeros.

    Args:
        x: the input; integers become float64.
        window: its extent, one or per spatial dimension.
        stride: elements between windows; the window's extent when left out.
        padding: as in `conv`.
    """
    where = "average_pool(x, window)"
    x, kernel, steps, _ = _pooling(where, x, window, stride, 1)
    wide = widened(x)
    if x.shape[1]:
        weights = full((x.shape[1], 1, *kernel), 1.0, wide.dtype)
        total = conv(wide, weights, stride=steps, padding=padding, groups=x.shape[1])
    else:
        padded = _padded(where, wide, padding, kernel, steps, (1,) * len(kernel))
        extents = _outputs(where, padded, kernel, steps, (1,) * len(kernel))
        total = full((*x.shape[:2], *extents), 0.0, wide.dtype)
    out = divide(total, float(prod(kernel)))
    return cast(out, x.dtype) if is_floating(x.dtype) else out
