"""Resizing: every axis on its own, by a matrix of weights or by the nearest places."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.graph import Tensor

__all__: list[str] = []

Array = np.ndarray[Any, Any]


@operator("Upsample")
def upsample(node: OnnxNode) -> Tensor:
    """The older form of Resize: coordinates are divided by the scale."""
    x = node.tensor(0)
    scales = node.known(1, "the scales") if node.has(1) else np.asarray(node.get("scales"), np.float64)
    mode = node.text("mode", "nearest")
    for axis, scale in enumerate(scales.tolist()):
        extent = x.shape[axis]
        out = int(np.floor(extent * scale))
        if out != extent:
            x = _applied(x, axis, _weights(_Axis(extent, out, scale), mode, "asymmetric", "floor"))
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
    axes = [k % rank for k in node.get("axes", range(rank))]
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
        made = _weights(
            _Axis(extents[k], sizes[k], scales[k], window),
            mode,
            coordinates,
            nearest,
            cubic=node.get("cubic_coeff_a", -0.75),
            exclude=bool(node.get("exclude_outside", 0)),
            antialias=bool(node.get("antialias", 0)),
            outside=node.get("extrapolation_value", 0.0),
        )
        x = _applied(x, axis, made)
    return x


class _Axis:
    """One axis: its extents, the scale, and the window that is cropped."""

    def __init__(self, extent: int, out: int, scale: float, window: tuple[float, float] | None = None) -> None:
        self.extent, self.out, self.scale, self.window = extent, out, scale, window

    def places(self, mode: str) -> Array:
        """Where the results lie on the input."""
        k, n, out, scale = np.arange(self.out, dtype=np.float64), self.extent, self.out, self.scale
        length = scale * n
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


def _weights(
    axis: _Axis,
    mode: str,
    coordinates: str,
    nearest: str,
    *,
    cubic: float = -0.75,
    exclude: bool = False,
    antialias: bool = False,
    outside: float = 0.0,
) -> tuple[Array, Array | None]:
    """Indices for the nearest element, or a matrix [out, in]; and what is added where the input does not reach."""
    places = axis.places(coordinates)
    beyond = (places < 0) | (places > axis.extent - 1) if coordinates == "tf_crop_and_resize" else None
    extra = None if beyond is None or not beyond.any() else np.where(beyond, outside, 0.0)
    if mode == "nearest":
        rounded = {
            "round_prefer_floor": np.ceil(places - 0.5),
            "round_prefer_ceil": np.floor(places + 0.5),
            "floor": np.floor(places),
            "ceil": np.ceil(places),
        }[nearest]
        chosen = np.clip(rounded, 0, axis.extent - 1).astype(np.int64)
        if extra is None:
            return chosen, None
        matrix = np.eye(axis.extent)[chosen]
        matrix[beyond] = 0
        return matrix, extra
    shrink = min(axis.scale, 1.0) if antialias else 1.0
    reach = (1 if mode == "linear" else 2) / shrink
    matrix = np.zeros((axis.out, axis.extent))
    for row, place in enumerate(places):
        taps = np.arange(int(np.floor(place - reach)), int(np.ceil(place + reach)) + 1)
        distance = np.abs(place - taps) * shrink
        weight = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(distance, cubic)
        if exclude:
            weight = np.where((taps < 0) | (taps >= axis.extent), 0, weight)
        total = weight.sum()
        if (exclude or antialias) and total:
            weight = weight / total
        np.add.at(matrix[row], np.clip(taps, 0, axis.extent - 1), weight)
    if extra is not None and beyond is not None:
        matrix[beyond] = 0
    return matrix, extra


def _cubic(distance: Array, a: float) -> Array:
    """Keys' kernel."""
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _applied(x: Tensor, axis: int, made: tuple[Array, Array | None]) -> Tensor:
    table, extra = made
    if table.ndim == 1:
        return g.take(x, table, axis)
    letters = "abcdefghij"[: len(x.shape)]
    out = letters.replace(letters[axis], "z")
    kind = x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)
    values = x if x.dtype == kind else g.cast(x, kind)
    made_values = g.einsum(f"{letters},z{letters[axis]}->{out}", values, table.astype(kind))
    if extra is not None:
        shape = [1] * len(x.shape)
        shape[axis] = -1
        made_values = g.add(made_values, g.as_tensor(extra.astype(kind).reshape(shape)))
    return made_values if x.dtype == kind else g.cast(made_values, x.dtype)
