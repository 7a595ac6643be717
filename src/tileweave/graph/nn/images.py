"""Windows the other way round, and images in other sizes: transposed convolution, resize. All of it is selectors, takes
with places that are known before, and convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any, Literal

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.assemble import pad, swapaxes
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import broadcast_to, concat, flip, full, permute, slice_, squeeze, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.along import reshape
from tileweave.graph.ops.contract import einsum
from tileweave.graph.ops.elementwise import add, cast, multiply
from tileweave.graph.ops.indexing import take
from tileweave.graph.ops.reductions import widened
from tileweave.graph.ops.windows import Padding, Sizes, apart, conv, pairs_of, sizes_of

Array = np.ndarray[Any, Any]


@public()
def conv_transpose(
    x: Any,
    w: Any,
    b: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_padding: Sizes = 0,
) -> Tensor:
    """The transpose of `conv`: every input element adds a multiple of the filters to the window around its place.

    Args:
        x: [batch, channels, spatial..].
        w: [channels, filters / groups, kernel..].
        b: [filters], or None.
        stride: elements of the result between the windows of neighbours.
        padding: elements cut off before and after, as in `conv`; fewer than none adds zeros.
        dilation: elements between the points of a window.
        groups: the channels and the filters fall into so many groups that do not see each other.
        output_padding: elements added after the end of each dimension, which no window may reach.

    Example:
        >>> np.asarray(conv_transpose([[[1.0, 2.0]]], [[[1.0, 1.0]]], stride=2)).tolist()
        [[[1.0, 1.0, 2.0, 2.0]]]
    """
    where = "conv_transpose(x, w, b)"
    x, w = as_tensor(x, where), as_tensor(w, where)
    rank = len(w.shape) - 2
    if rank < 1 or len(x.shape) != rank + 2 or w.shape[0] != x.shape[1] or groups < 1 or x.shape[1] % groups:
        types = {"x": x.type, "w": w.type}
        legal = "x [batch, channels, spatial..], w [channels, filters / groups, kernel..]"
        raise GraphError(where, f"x and w do not fit {groups} groups", inputs=types, legal=legal)
    steps, gaps = sizes_of(where, "stride", stride, rank), sizes_of(where, "dilation", dilation, rank)
    extra, cut = sizes_of(where, "output_padding", output_padding, rank, 0), pairs_of(where, padding, rank, -(1 << 31))
    kernel = w.shape[2:]
    if groups == 1 and steps == kernel and set(gaps) == {1} and not any(map(any, cut)) and not any(extra) and x.size:
        return _side_by_side(x, w, b)
    size = w.shape[0] // groups
    parts = [slice_(w, w.type.box.with_range(0, k * size, (k + 1) * size)) for k in range(groups)]
    filters = concat([swapaxes(part, 0, 1) for part in parts], 0)
    whole = all(n % step == 0 for n, step in zip(w.shape[2:], steps, strict=True))
    worth = whole or (prod(steps) <= MOST_PHASES and size * prod(kernel) >= _FEWEST_PRODUCTS)
    phases = bool(set(gaps) == {1} and set(steps) != {1} and worth and x.size and w.size)
    folds = groups == 1 and x.dtype == w.dtype and _folds(x, w, steps, gaps, phases=phases)
    if folds or phases:
        out = _folded(x, w, steps, gaps) if folds else _in_phases(x, filters, steps, groups)
        for k in range(rank):
            out = _margins(out, k + 2, -cut[k][0], extra[k] - cut[k][1])
        return out if b is None else add(out, unsqueeze(as_tensor(b), tuple(range(1, rank + 1))))
    x = apart(x, steps)
    for k in range(rank):
        reach = gaps[k] * (w.shape[k + 2] - 1)
        x = _margins(x, k + 2, reach - cut[k][0], reach - cut[k][1] + extra[k])
    return conv(x, flip(filters, tuple(range(2, rank + 2))), b, dilation=gaps, groups=groups)


MOST_PHASES = 16
"""Convolutions that stand for a transposed one: each costs its planning, and the result is put together of them."""


_FEWEST_PRODUCTS = 32
"""Products of a sum from which on several phases pay: fewer are formed sooner than results are put together (one
channel by 3 x 3 or 5 x 5 points takes a quarter longer in phases, by 7 x 7 a fifth less)."""


def _in_phases(x: Tensor, filters: Tensor, steps: Sequence[int], groups: int) -> Tensor:
    """Windows by steps: the elements of the result that lie a step apart are a convolution by every so many points.

    Where the steps divide the window, all of these are one convolution of more filters. What no window reaches is not
    multiplied, as zeros between the elements of x would be.
    """
    rank, kernel, spatial = len(steps), filters.shape[2:], range(2, len(steps) + 2)
    reach = [-(-k // step) for k, step in zip(kernel, steps, strict=True)]
    places = [n + taps - 1 for n, taps in zip(x.shape[2:], reach, strict=True)]

    def phase(filters: Tensor) -> Tensor:
        around = [(n - 1, n - 1) for n in filters.shape[2:]]
        return conv(pad(x, [(0, 0), (0, 0), *around]), flip(filters, tuple(spatial)), groups=groups)

    if all(k % step == 0 for k, step in zip(kernel, steps, strict=True)):
        cut = reshape(filters, (*filters.shape[:2], *(n for pair in zip(reach, steps, strict=True) for n in pair)))
        inner, outer = ([2 + first + 2 * k for k in range(rank)] for first in (1, 0))
        each = reshape(permute(cut, (0, *inner, 1, *outer)), (filters.shape[0] * prod(steps), filters.shape[1], *reach))
        found = phase(each)
    else:
        made = list[Tensor]()
        for at in np.ndindex(*steps):
            part = filters[(..., *(slice(k, None, step) for k, step in zip(at, steps, strict=True)))]
            one = phase(part) if part.size else full((x.shape[0], filters.shape[0], *places), 0, made[0].dtype)
            ends = [(0, n - got) for n, got in zip(places, one.shape[2:], strict=True)]
            made.append(unsqueeze(pad(one, [(0, 0), (0, 0), *ends]), 2))
        found = concat(made, 2)
    found = reshape(found, (x.shape[0], filters.shape[0], *steps, *places))
    order = [axis for k in spatial for axis in (rank + k, k)]
    found = reshape(
        permute(found, (0, 1, *order)), (*found.shape[:2], *(n * s for n, s in zip(places, steps, strict=True)))
    )
    for k, size in enumerate(_reached(x.shape[2:], kernel, steps, (1,) * rank)):
        found = slice_(found, found.type.box.with_range(k + 2, 0, size))
    return found


def _reached(extents: Sequence[int], kernel: Sequence[int], steps: Sequence[int], gaps: Sequence[int]) -> list[int]:
    """Elements of the result in each dimension that windows reach."""
    sizes = zip(extents, kernel, steps, gaps, strict=True)
    return [(n - 1) * step + gap * (k - 1) + 1 for n, k, step, gap in sizes]


_MOST_POINTS = 32
"""Points of a window along all dimensions whose products are added: each is a node of the graph."""
_SPARED_PRODUCTS = 32
"""Products that a convolution forms more for each one that would be added, from which on to add takes less: it writes
and reads what it adds. Measured on a Zen 1."""


def _folds(x: Tensor, w: Tensor, steps: Sequence[int], gaps: Sequence[int], *, phases: bool) -> bool:
    """Whether to multiply first and then to add is better than a convolution, which multiplies zeros around few
    elements, and between them where it is none in phases; narrow floats would be rounded more than once."""
    extents, kernel = x.shape[2:], w.shape[2:]
    if not (x.size and w.size) or sum(kernel) + sum(steps) > _MOST_POINTS or w.dtype.itemsize < 4:
        return False
    windows = _reached(extents, kernel, steps, gaps)
    if phases:
        windows = [-(-n // step) for n, step in zip(windows, steps, strict=True)]
    return w.shape[0] * (prod(windows) - prod(extents)) >= _SPARED_PRODUCTS * prod(extents)


def _folded(x: Tensor, w: Tensor, steps: Sequence[int], gaps: Sequence[int]) -> Tensor:
    """One product of all elements with all points of windows, then, dimension by dimension, the sums of what meets in
    an element of the result: of those that lie a step apart, sums of whole products, each moved."""
    rank = len(steps)
    spatial = "opqrstuvwxyz"[:rank]
    found = einsum(f"nc{spatial},cf{spatial.upper()}->nf{spatial.upper()}{spatial}", x, w)
    at = rank + 1  # the dimension of places behind those of points that are left
    for k, reached in enumerate(_reached(x.shape[2:], w.shape[2:], steps, gaps)):
        step, extent = steps[k], x.shape[k + 2]
        places = -(-reached // step)
        phases = [list[Tensor]() for _ in range(step)]
        for point in range(w.shape[k + 2]):
            far, phase = divmod(point * gaps[k], step)
            one = squeeze(slice_(found, found.type.box.with_range(2, point, point + 1)), 2)
            margins = [(far, places - far - extent) if d == at else (0, 0) for d in range(len(one.shape))]
            phases[phase].append(pad(one, margins))
        empty = full(phases[0][0].shape, 0, found.dtype)
        sums = [reduce(add, parts) if parts else empty for parts in phases]
        if step > 1:
            woven = concat([unsqueeze(one, at + 1) for one in sums], at + 1)
            sums = [reshape(woven, (*woven.shape[:at], places * step, *woven.shape[at + 2 :]))]
        found = slice_(sums[0], sums[0].type.box.with_range(at, 0, reached))
    return found


def _side_by_side(x: Tensor, w: Tensor, b: Any) -> Tensor:
    """Windows that tile the result: one product whose result has a dimension per place and per point of a window."""
    spatial = "opqrst"[: len(w.shape) - 2]
    pairs = "".join(place + place.upper() for place in spatial)
    blocks = einsum(f"nc{spatial},cf{spatial.upper()}->nf{pairs}", x, w)
    out = reshape(blocks, (x.shape[0], w.shape[1], *(n * k for n, k in zip(x.shape[2:], w.shape[2:], strict=True))))
    return out if b is None else add(out, unsqueeze(as_tensor(b), tuple(range(1, len(spatial) + 1))))


def _margins(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    """x with zeros before and after, or without elements there, where those are negative."""
    x = pad(x, [(max(before, 0), max(after, 0)) if k == dim else (0, 0) for k in range(len(x.shape))])
    return slice_(x, x.type.box.with_range(dim, max(-before, 0), x.shape[dim] - max(-after, 0)))


Mode = Literal["nearest", "linear", "cubic"]
Coordinates = Literal["half_pixel", "half_pixel_one", "align_corners", "asymmetric"]


@public()
def resize(
    x: Any,
    sizes: Sequence[int],
    mode: Mode = "nearest",
    *,
    coordinates: Coordinates = "half_pixel",
    rounding: Literal["down", "up", "floor", "ceil"] = "down",
    cubic: float = -0.75,
    scales: Sequence[float] | None = None,
    inside: bool = False,
) -> Tensor:
    """A tensor with its last dimensions in other sizes, read at places in between.

    Args:
        x: any tensor; integers become float64 unless the mode is nearest.
        sizes: of the last dimensions.
        mode: nearest (one element), linear (two) or cubic (four) along each dimension.
        coordinates: where result i stands among the elements: ``half_pixel`` (i + 0.5) / scale - 0.5 (with
            ``half_pixel_one``, 0 where there is one result), ``align_corners`` the ends meet, ``asymmetric`` i / scale.
        rounding: which neighbour is nearest: of two the lower or the upper one, or always one side.
        cubic: the coefficient of cubic interpolation.
        scales: result per element in each dimension; the quotient of the sizes when left out.
        inside: whether cubic weights outside are dropped, and the others made to sum to one.

    Example:
        >>> np.asarray(resize([1.0, 3.0], [4], "linear")).tolist()
        [1.0, 1.5, 2.5, 3.0]
    """
    where = "resize(x, sizes, mode)"
    x = as_tensor(x, where)
    if len(sizes) > len(x.shape) or any(n < 0 for n in sizes) or mode not in ("nearest", *_WEIGHTS):
        legal = "one size for each of the last dimensions; nearest, linear, cubic"
        raise GraphError(where, f"sizes {tuple(sizes)} by {mode!r} do not fit", inputs={"x": x.type}, legal=legal)
    kind = x.dtype
    out = x if mode == "nearest" else widened(x)
    first = len(x.shape) - len(sizes)
    for k, size in enumerate(sizes):
        old = x.shape[first + k]
        scale = scales[k] if scales is not None else size / max(old, 1)
        if old == size and scale == 1:
            continue
        at = _places(int(size), old, scale, coordinates)
        if mode == "nearest":
            out = nearest(out, first + k, at, rounding)
        else:
            out = interpolated(out, first + k, at, mode, cubic=cubic, inside=inside)
    return cast(out, kind) if kind.kind not in "biu" else out


def _places(size: int, old: int, scale: float, coordinates: str) -> Array:
    at = np.arange(size, dtype=np.float64)
    if coordinates == "align_corners":
        return at * ((old - 1) / (size - 1)) if size > 1 else at * 0
    if coordinates == "asymmetric":
        return at / scale
    if coordinates == "half_pixel_one" and size <= 1:
        return at * 0
    return (at + 0.5) / scale - 0.5


def nearest(x: Tensor, dim: int, at: Array, rounding: str) -> Tensor:
    """The elements of a dimension that are nearest to places in between."""
    return picked(x, dim, np.clip(_ROUNDING[rounding](at), 0, max(x.shape[dim] - 1, 0)).astype(np.int64))


def picked(x: Tensor, dim: int, places: Array) -> Tensor:
    """The elements of a dimension at known places; where each comes so many times in a row, by strides."""
    extent = x.shape[dim]
    times = len(places) // extent if extent else 0
    if times < 2 or not np.array_equal(places, np.arange(extent * times) // times):
        return take(x, places, dim)
    shape = (*x.shape[: dim + 1], times, *x.shape[dim + 1 :])
    return reshape(broadcast_to(unsqueeze(x, dim + 1), shape), (*x.shape[:dim], extent * times, *x.shape[dim + 1 :]))


_ROUNDING: dict[str, Callable[[Array], Array]] = {
    "down": lambda at: np.ceil(at - 0.5),
    "up": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def interpolated(
    x: Tensor, dim: int, at: Array, mode: str, *, cubic: float = -0.75, inside: bool = False, shrink: float = 1.0
) -> Tensor:
    """A dimension of floats read at places in between: a weighted sum of neighbours, elements at the ends going on.

    Args:
        x: of floats.
        dim: the dimension.
        at: the places, counted in elements.
        mode: linear or cubic.
        cubic: the coefficient of cubic interpolation (Keys' kernel).
        inside: whether weights outside are dropped, and the others made to sum to one.
        shrink: below 1 the kernel is as much wider (antialiasing), and weights sum to one.
    """
    old = x.shape[dim]
    reach = (1 if mode == "linear" else 2) / shrink
    base = np.floor(at).astype(np.int64) if shrink == 1 else np.floor(at - reach).astype(np.int64)
    taps = range(1 - int(reach), int(reach) + 1) if shrink == 1 else range(int(np.ceil(2 * reach)) + 2)
    places = base[:, None] + np.asarray(taps)
    weights = _WEIGHTS[mode](np.abs(at[:, None] - places) * shrink, cubic)
    if inside:
        weights = np.where((places >= 0) & (places < old), weights, 0)
    if inside or shrink != 1:
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    shape = [-1 if k == dim else 1 for k in range(len(x.shape))]
    parts = []
    for tap in np.flatnonzero(weights.any(0)):
        part = take(x, np.clip(places[:, tap], 0, max(old - 1, 0)), dim)
        parts.append(multiply(part, weights[:, tap].reshape(shape).astype(x.dtype)))
    return reduce(add, parts) if parts else multiply(take(x, np.clip(base, 0, max(old - 1, 0)), dim), 0.0)


def _linear(distance: Array, a: float) -> Array:
    return np.asarray(np.maximum(1 - distance, 0))


def keys_kernel(distance: Array, a: float) -> Array:
    """Keys' kernel: the weights of values at distances of 0 or more, in cubic interpolation of coefficient a."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


_WEIGHTS: dict[str, Callable[[Array, float], Array]] = {"linear": _linear, "cubic": keys_kernel}
