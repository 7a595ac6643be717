"""ATen pools, paddings and resizing: windows and places along the spatial dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.torch.call import AtenCall, aten
from tileweave.frontends.windows import both, folded_columns, greatest, max_places, rounded_up, window_means
from tileweave.graph import Tensor
from tileweave.graph.nn.images import interpolated, picked


def _rank(call: AtenCall) -> int:
    """The number of spatial dimensions, which the operator's name has."""
    return int(call.where[call.where.index("d.") - 1] if "d." in call.where else call.where.split("d_")[0][-1])


def _each(value: Any, rank: int) -> list[int]:
    return [int(v) for v in (value * rank if len(value) == 1 else value)]


def _batched(x: Tensor, rank: int) -> tuple[Tensor, bool]:
    """With a batch, and whether there was none."""
    alone = len(x.shape) == rank + 1
    return (g.unsqueeze(x, 0) if alone else x), alone


def _windows(call: AtenCall, x: Tensor, rank: int) -> tuple[Any, ...]:
    """Kernel, strides, dilations, the declared padding, and what rounding up adds behind it."""
    kernel = _each(call.value(1), rank)
    strides, low = _each(call.get("stride") or kernel, rank), _each(call.get("padding"), rank)
    dilations = _each(call.get("dilation"), rank) if "max_pool" in call.where else [1] * rank
    pads = [(n, n) for n in low]
    more = [(0, 0)] * rank
    if call.get("ceil_mode"):
        more = rounded_up(x.shape[2:], kernel, strides, dilations, pads)
    return kernel, strides, dilations, pads, more


@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The greatest element of each window, and where it lies among those of its channel."""
    rank = _rank(call)
    x, alone = _batched(call.x(), rank)
    kernel, strides, dilations, pads, more = _windows(call, x, rank)
    padding = both(pads, more)
    values = g.max_pool(x, kernel, stride=strides, padding=padding, dilation=dilations)
    places = max_places(x, kernel, strides, dilations, padding)
    return (g.squeeze(values, 0), g.squeeze(places, 0)) if alone else (values, places)


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def average_pool(call: AtenCall) -> Tensor:
    """The mean of each window."""
    rank = _rank(call)
    x, alone = _batched(call.x(), rank)
    kernel, strides, dilations, pads, more = _windows(call, x, rank)
    padded = bool(call.get("count_include_pad"))
    divisor = call.get("divisor_override") if rank > 1 else None
    if divisor is None and not np.any(more) and (padded or not np.any(pads)):
        out = g.average_pool(x, kernel, stride=strides, padding=pads)
    else:
        out = window_means(x, kernel, strides, dilations, pads, more, padded, divisor)
    return g.squeeze(out, 0) if alone else out


@aten("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "adaptive_avg_pool2d.default",
      "_adaptive_avg_pool3d.default")  # fmt: skip
def adaptive_pool(call: AtenCall) -> Tensor:
    """The mean of as many windows as asked; where they do not divide an extent, neighbours share elements."""
    x, out = call.x(), call.value(1)
    first = len(x.shape) - len(out)
    if all(x.shape[first + k] % n == 0 for k, n in enumerate(out) if n):
        split = [part for k, n in enumerate(out) for part in (n, x.shape[first + k] // max(n, 1))]
        axes = tuple(first + 2 * k + 1 for k in range(len(out)))
        return g.mean(g.reshape(x, (*x.shape[:first], *split)), axes)
    for axis, count in enumerate(out, start=first):
        extent = x.shape[axis]
        low, high = np.arange(count) * extent // count, -(-(np.arange(count) + 1) * extent // count)
        place = np.arange(extent)[:, None]
        share: Any = ((place >= low) & (place < high)) / (high - low)
        moved = g.matmul(g.moveaxis(x, axis, -1), g.as_tensor(share.astype(x.dtype)))
        x = g.moveaxis(moved, -1, axis)
    return x


@aten("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The greatest of as many windows as asked, and its place; where they do not divide an extent, they overlap."""
    x, alone = _batched(call.x(), _rank(call))
    lines = []
    for extent, count in zip(x.shape[2:], call.value(1), strict=True):
        low, high = np.arange(count) * extent // count, -(-(np.arange(count) + 1) * extent // count)
        line = low + np.arange(np.max(high - low))[:, None]
        lines.append(np.where(line < high, line, -1))
    values, places = greatest(x, lines)
    return (g.squeeze(values, 0), g.squeeze(places, 0)) if alone else (values, places)


@aten("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default", "replication_pad1d.default",
      "replication_pad2d.default", "replication_pad3d.default")  # fmt: skip
def pad(call: AtenCall) -> Tensor:
    """The last axes mirrored, or with their ends again; negative widths cut."""
    x, widths = call.x(), call.value(1)
    for k in range(len(widths) // 2):
        axis = len(x.shape) - 1 - k
        extent = x.shape[axis]
        places = np.arange(-widths[2 * k], extent + widths[2 * k + 1])
        if "reflection" in call.where:
            period = max(2 * (extent - 1), 1)
            places = np.minimum(places % period, -places % period)
        x = picked(x, axis, np.clip(places, 0, extent - 1))
    return x


def _sizes(call: AtenCall, x: Tensor) -> tuple[list[int], list[float] | None]:
    """The spatial extents of a result, and the factors where these were given instead."""
    if call.where.endswith(".vec"):
        size, factors = call.get("output_size"), call.get("scale_factors")
    else:
        size, factors = call.get("output_size"), None
    if size is None:
        return [int(n * f) for n, f in zip(x.shape[2:], factors, strict=True)], [float(f) for f in factors]
    return [int(n) for n in size], None


@aten(*(f"upsample_nearest{rank}d.{name}" for rank in (1, 2, 3) for name in ("vec", "default")))
def nearest(call: AtenCall) -> Tensor:
    """The nearest element before."""
    x = call.x()
    size, factors = _sizes(call, x)
    for k, out in enumerate(size):
        extent = x.shape[2 + k]
        step = np.float32(1 / factors[k]) if factors else np.float32(extent) / np.float32(max(out, 1))
        at = np.minimum((np.arange(out, dtype=np.float32) * step).astype(np.int64), extent - 1)
        x = picked(x, 2 + k, at)
    return x


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_bilinear2d.default", "upsample_trilinear3d.vec",
      "upsample_bicubic2d.vec")  # fmt: skip
def between(call: AtenCall) -> Tensor:
    """Interpolated linearly or by cubics along each axis."""
    x = _real(call)
    size, factors = _sizes(call, x)
    corners = bool(call.get("align_corners"))
    return g.resize(
        x, size, "cubic" if "bicubic" in call.where else "linear", scales=None if corners else factors,
        coordinates="align_corners" if corners else "half_pixel",
    )  # fmt: skip


@aten("_upsample_bilinear2d_aa.default", "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.default",
      "_upsample_bicubic2d_aa.vec")  # fmt: skip
def smoothed(call: AtenCall) -> Tensor:
    """Interpolated linearly or by cubics along each axis; where it shrinks, over as many more elements."""
    x = _real(call)
    size, factors = _sizes(call, x)
    for axis, out in enumerate(size, start=2):
        extent = x.shape[axis]
        if call.get("align_corners"):
            step = (extent - 1) / (out - 1) if out > 1 else 0.0
        else:
            step = 1 / factors[axis - 2] if factors else extent / out
        if extent != out or step != 1:
            mode, at, shrink = (
                "cubic" if "bicubic" in call.where else "linear",
                (np.arange(out) + 0.5) * step - 0.5,
                1 / max(step, 1),
            )
            x = interpolated(x, axis, at, mode, cubic=-0.5, inside=True, shrink=shrink)
    return x


def _real(call: AtenCall) -> Tensor:
    if call.x().dtype.kind in "biu":
        raise GraphError(call.where, f"{call.x().dtype.name} is interpolated in fixed point", legal="floats")
    return call.x()


@aten("col2im.default")
def columns_to_image(call: AtenCall) -> Tensor:
    """Sums of overlapping windows."""
    x = call.x()
    alone = len(x.shape) == 2
    x = g.unsqueeze(x, 0) if alone else x
    image, block, dilations, padding, strides = ([int(n) for n in call.value(k)] for k in range(1, 6))
    out = folded_columns(x, image, block, strides, dilations, [(n, n) for n in padding])
    return g.squeeze(out, 0) if alone else out
