"""Pools of models: windows that are rounded up, places of the greatest elements, means that leave padding out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.graph import Tensor

Array = np.ndarray[Any, Any]
Pads = Sequence[tuple[int, int]]
"""What is added before and after each dimension."""


def rounded_up(
    extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Pads
) -> list[tuple[int, int]]:
    """What must be added behind each dimension so that the number of windows is rounded up.

    A window that would begin in the padding behind is none.
    """
    more = []
    for extent, size, step, gap, (low, high) in zip(extents, kernel, strides, dilations, pads, strict=True):
        span = gap * (size - 1) + 1
        count = -(-(extent + low + high - span) // step) + 1
        if (count - 1) * step >= extent + low:
            count -= 1
        more.append((0, max((count - 1) * step + span - extent - low - high, 0)))
    return more


def both(pads: Pads, more: Pads) -> list[tuple[int, int]]:
    """Two paddings one after the other."""
    return [(a + c, b + d) for (a, b), (c, d) in zip(pads, more, strict=True)]


def max_places(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: Pads,
    columns_first: bool = False,
) -> Tensor:
    """Where the greatest element of each window lies among those of its channel: an argmax over the windows' points.

    Args:
        x: [batch, channels, spatial..].
        kernel, strides, dilations, padding: per spatial dimension.
        columns_first: whether the first spatial dimension is counted fastest.
    """
    lines = []
    for n, (low, high), size, step, gap in zip(x.shape[2:], padding, kernel, strides, dilations, strict=True):
        count = (n + low + high - gap * (size - 1) - 1) // step + 1
        lines.append((np.arange(size) * gap)[:, None] + np.arange(count) * step - low)
    return greatest(x, lines, columns_first)[1]


def greatest(x: Tensor, lines: Sequence[Array], columns_first: bool = False) -> tuple[Tensor, Tensor]:
    """The greatest element of each window, and where it lies among those of its channel.

    Args:
        x: [batch, channels, spatial..].
        lines: per spatial dimension the places of each window, [points, windows]; those outside are in no window.
        columns_first: whether the first spatial dimension is counted fastest.
    """
    spatial, rank = x.shape[2:], len(lines)
    kernel, counts = [line.shape[0] for line in lines], [line.shape[1] for line in lines]
    flat = np.zeros((*kernel, *counts), np.int64)
    inside: Any = np.ones(flat.shape, bool)
    for k, each in enumerate(lines):
        line = each.reshape([n if j in (k, rank + k) else 1 for j, n in enumerate(flat.shape)])
        inside &= (line >= 0) & (line < spatial[k])
        flat = flat * spatial[k] + np.clip(line, 0, spatial[k] - 1)
    points = prod(kernel)
    table: Any = flat.reshape(points, -1)
    inside = inside.reshape(points, -1)
    own = np.take_along_axis(table, inside.argmax(0)[None], 0)  # a window's first element stands for those outside
    table = np.where(inside, table, own)
    rows = g.reshape(x, (*x.shape[:2], prod(spatial)))
    seen = g.take(rows, table, 2)
    best = g.cast(g.argmax(seen, 2), np.int64)
    values = g.squeeze(g.take_along_axis(seen, g.unsqueeze(best, 2), 2), 2)
    if columns_first:
        order: Any = np.arange(prod(spatial)).reshape(spatial[::-1]).T.reshape(-1)
        table = order[table]
    spread = np.broadcast_to(table, (*x.shape[:2], *table.shape)).copy()
    picked = g.squeeze(g.take_along_axis(g.as_tensor(spread), g.unsqueeze(best, 2), 2), 2)
    shape = (*x.shape[:2], *counts)
    return g.reshape(values, shape), g.reshape(picked, shape)


def window_means(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Pads,
    more: Pads,
    padded: bool,
    divisor: int | None = None,
) -> Tensor:
    """The mean of each window.

    Args:
        x: [batch, channels, spatial..].
        kernel, strides, dilations: per spatial dimension.
        pads: the declared padding, of zeros.
        more: what lies beyond it, which no mean counts.
        padded: whether declared padding counts as elements.
        divisor: what sums are divided by, instead of the number of elements.
    """
    weights = g.full((x.shape[1], 1, *kernel), 1, x.dtype)
    total = g.conv(x, weights, padding=both(pads, more), stride=strides, dilation=dilations, groups=x.shape[1])
    if divisor is not None:
        return g.divide(total, g.full((), divisor, x.dtype))
    ones = np.ones((1, 1, *x.shape[2:]), np.float64)
    ones = np.pad(ones, [(0, 0), (0, 0), *pads], constant_values=1.0 if padded else 0.0)
    count = g.conv(ones, np.ones((1, 1, *kernel)), stride=strides, dilation=dilations, padding=more)
    return g.divide(total, g.as_tensor(np.maximum(np.asarray(count), 1).astype(x.dtype)))


def folded_columns(
    x: Tensor,
    image: Sequence[int],
    block: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Pads,
) -> Tensor:
    """Sums of overlapping windows: [batch, channels * points of a block, blocks] -> [batch, channels, image..]."""
    rank = len(image)
    channels = x.shape[1] // prod(block)
    whole = [image[k] + sum(pads[k]) for k in range(rank)]
    counts = [(whole[k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(rank)]
    at = np.zeros((*block, *counts), np.int64)
    for k in range(rank):
        line = (np.arange(block[k]) * dilations[k])[:, None] + np.arange(counts[k]) * strides[k]
        at = at * whole[k] + line.reshape([n if j in (k, rank + k) else 1 for j, n in enumerate(at.shape)])
    places = np.broadcast_to(at.reshape(-1), (x.shape[0], channels, at.size)).copy()
    flat = g.full((x.shape[0], channels, prod(whole)), 0, x.dtype)
    summed = g.scatter(flat, places, g.reshape(x, places.shape), 2, reduction="add")
    out = g.reshape(summed, (x.shape[0], channels, *whole))
    return out[(slice(None), slice(None), *(slice(pads[k][0], pads[k][0] + image[k]) for k in range(rank)))]
