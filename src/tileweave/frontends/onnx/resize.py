"""Resizing: every axis on its own, at places that the mode tells, by `tileweave.nn`'s interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.graph import Tensor
from tileweave.graph.nn.images import interpolated
from tileweave.graph.nn.images import nearest as nearest_of

Array = np.ndarray[Any, Any]


@operator("Upsample")
def upsample(node: OnnxNode) -> Tensor:
    """The older form of Resize: coordinates are divided by the scale."""
    x = node.tensor(0)
    scales = node.known(1, "the scales") if node.has(1) else np.asarray(node.get("scales", ()), np.float64)
    if not scales.size:  # the first version
        scales = np.asarray([1.0] * (len(x.shape) - 2) + [node.get("height_scale"), node.get("width_scale")])
    mode = node.text("mode", "nearest")
    for axis, scale in enumerate(scales.tolist()):
        extent = x.shape[axis]
        out = int(np.floor(extent * scale))
        if out != extent:
            x = _resized(x, axis, np.arange(out) / scale, mode, rounding="floor")
    return x


@operator("Resize")
def resize(node: OnnxNode) -> Tensor:
    """Nearest, linear or cubic, with or without antialiasing."""
    x = node.tensor(0)
    rank = len(x.shape)
    mode = node.text("mode", "nearest")
    if node.version < 11:
        scales, sizes, roi = node.known(1, "the scales").tolist(), None, None
        coordinates, nearest = "asymmetric", "floor"
    else:
        roi = node.known(1).tolist() if node.has(1) and node.known(1).size else None
        scales = node.known(2, "the scales").tolist() if node.has(2) and node.known(2).size else None
        sizes = node.known(3, "the sizes").tolist() if node.has(3) and node.known(3).size else None
        coordinates = node.text("coordinate_transformation_mode", "half_pixel")
        nearest = node.text("nearest_mode", "round_prefer_floor")
    axes = [node.axis(x, given=k) for k in node.get("axes", range(rank))]
    extents = [x.shape[k] for k in axes]
    if sizes is not None:
        scales = [n / e for n, e in zip(sizes, extents, strict=True)]
        policy = node.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = min(scales) if policy == "not_larger" else max(scales)
            scales = [one] * len(axes)
            sizes = [int(np.floor(one * e + 0.5)) for e in extents]
    elif scales is not None:
        sizes = [int(np.floor(e * s)) for e, s in zip(extents, scales, strict=True)]
    else:
        raise node.refuse("neither scales nor sizes", legal="one of them")
    for k, axis in enumerate(axes):
        window = (roi[k], roi[len(axes) + k]) if roi and coordinates == "tf_crop_and_resize" else None
        if sizes[k] == extents[k] and scales[k] == 1 and window is None:
            continue
        at = _Axis(extents[k], sizes[k], scales[k], window).places(coordinates)
        x = _resized(
            x,
            axis,
            at,
            mode,
            rounding=_ROUNDING[nearest],
            cubic=node.get("cubic_coeff_a", -0.75),
            inside=bool(node.get("exclude_outside", 0)),
            shrink=min(scales[k], 1.0) if node.get("antialias", 0) else 1.0,
        )
        beyond = (at < 0) | (at > extents[k] - 1)
        if coordinates == "tf_crop_and_resize" and beyond.any():
            mask = g.unsqueeze(g.as_tensor(beyond), tuple(range(1, rank - axis)))
            x = g.where(mask, g.full((), node.get("extrapolation_value", 0.0), x.dtype), x)
    return x


_ROUNDING = {"round_prefer_floor": "down", "round_prefer_ceil": "up", "floor": "floor", "ceil": "ceil"}


def _resized(x: Tensor, axis: int, at: Array, mode: str, *, rounding: str, **options: Any) -> Tensor:
    if mode == "nearest":
        return nearest_of(x, axis, at, rounding)
    kind = x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
    values = x if x.dtype == kind else g.cast(x, kind)
    made = interpolated(values, axis, at, mode, **options)
    return made if x.dtype == kind else g.cast(made, x.dtype)


class _Axis:
    """One axis: its extents, the scale, and the window that is cropped."""

    def __init__(self, extent: int, out: int, scale: float, window: tuple[float, float] | None = None) -> None:
        self.extent, self.out, self.scale, self.window = extent, out, scale, window

    def places(self, mode: str) -> Array:
        """Where the results lie on the input."""
        k, n, out, scale = np.arange(self.out, dtype=np.float64), self.extent, self.out, self.scale
        length = float(np.float32(scale * n))  # so that n times a scale of float32 is a whole number where it should be
        if mode == "asymmetric":
            return k / scale
        if mode == "align_corners":
            return k * (n - 1) / (length - 1) if length != 1 else np.zeros_like(k)
        if mode == "pytorch_half_pixel":
            return (k + 0.5) / scale - 0.5 if length > 1 else np.full_like(k, -0.5)
        if mode == "half_pixel_symmetric":
            centre, adjusted = n / 2, out / length
            return centre * (1 - adjusted) + (k + 0.5) / scale - 0.5
        if mode == "tf_crop_and_resize":
            start, end = self.window or (0.0, 1.0)
            if out > 1:
                return start * (n - 1) + k * (end - start) * (n - 1) / (length - 1 if length > 1 else 1)
            return np.full_like(k, 0.5 * (start + end) * (n - 1))
        return (k + 0.5) / scale - 0.5


@operator("AffineGrid")
def affine_grid(node: OnnxNode) -> Tensor:
    """Where a matrix per item sends the points of a grid in [-1, 1]; the first number of a point is of the last axis.

    A grid whose corners are kept begins at -1, one of a single point too.
    """
    theta, size = node.tensor(0), node.integers(1, "size") or []
    spatial, corners = size[2:], bool(node.get("align_corners", 0))
    lines = [np.linspace(-1.0, 1.0, n) if corners else (2 * np.arange(n) + 1) / n - 1 for n in spatial]
    points = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(spatial)], -1).reshape(-1, len(spatial) + 1)
    made = g.matmul(points.astype(theta.dtype), g.transpose(theta, (0, 2, 1)))
    return g.reshape(made, (size[0], *spatial, len(spatial)))
