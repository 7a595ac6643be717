"""Operators that are computed whole, by NumPy: rare ones whose result at one place may need everything."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.graph import Operation, Signature, Tensor, TensorType
from tileweave.graph.nn.images import keys_kernel
from tileweave.graph.ops.operators import Operator, register
from tileweave.space import AffineMap, Box, Projection

Array = np.ndarray[Any, Any]


def _whole(rank: int, shape: Sequence[int]) -> Projection:
    """The projection of one point of work that needs a whole tensor."""
    return Projection(AffineMap(((),) * rank, (0,) * rank, 0), tuple(shape))


def computed(name: str, inputs: Sequence[Any], shape: Sequence[int], dtype: Any, **parameters: Any) -> Tensor:
    """The operation ``onnx.<name>`` on whole tensors."""
    tensors = [x if isinstance(x, Tensor) else g.as_tensor(np.asarray(x)) for x in inputs]
    signature = Signature(
        (),
        tuple((f"x{k}", _whole(len(x.shape), x.shape)) for k, x in enumerate(tensors)),
        (("out", _whole(len(shape), shape)),),
        (),
        (("flops", 1.0),),
    )
    kind = TensorType(tuple(shape), np.dtype(dtype))
    named = tuple((f"x{k}", x) for k, x in enumerate(tensors))
    return Tensor(Operation(f"onnx.{name}", Box.of(()), named, (("out", kind),), tuple(parameters.items()), signature))


def block(name: str) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Registers a function of arrays, and of parameters by keyword, as the meaning of ``onnx.<name>``."""

    def register_it(function: Callable[..., Array]) -> Callable[..., Array]:
        def meaning(operation: Operation, inputs: Mapping[str, Array]) -> dict[str, Array]:
            arrays = [inputs[f"x{k}"] for k in range(len(operation.inputs))]
            made = function(*arrays, **dict(operation.parameters))
            kind = operation.output_types["out"]
            return {"out": np.ascontiguousarray(made.astype(kind.dtype, copy=False)).reshape(kind.shape)}

        meaning.__module__ = __name__
        register(Operator(f"onnx.{name}", meaning))
        return function

    return register_it


@operator("Det")
def determinant(node: OnnxNode) -> Tensor:
    """Of the last two dimensions."""
    x = node.tensor(0)
    return computed("determinant", [x], x.shape[:-2], x.dtype)


@block("determinant")
def _determinant(x: Array) -> Array:
    return np.asarray(np.linalg.det(x))


@operator("DFT")
def fourier(node: OnnxNode) -> Tensor:
    """The discrete Fourier transform along an axis; the last dimension holds real and imaginary parts."""
    x = node.tensor(0)
    rank = len(x.shape)
    axis = int(node.known(2).reshape(-1)[0]) if node.has(2) else node.get("axis", 1 if node.version < 20 else -2)
    axis %= rank
    length = int(node.known(1).reshape(-1)[0]) if node.has(1) else 0
    one_sided, inverse = bool(node.get("onesided", 0)), bool(node.get("inverse", 0))
    shape = list(x.shape)
    shape[axis] = length or shape[axis]
    real = inverse and one_sided
    if one_sided and not inverse:
        shape[axis] = shape[axis] // 2 + 1
    elif real and not length:
        shape[axis] = 2 * (x.shape[axis] - 1)
    shape[-1] = 1 if real else 2
    options = {"axis": axis, "length": length, "inverse": inverse, "onesided": one_sided}
    return computed("fourier", [x], shape, x.dtype, **options)


@block("fourier")
def _fourier(x: Array, axis: int, length: int, inverse: bool, onesided: bool) -> Array:
    value = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]
    count = length or None
    if inverse and onesided:
        return np.fft.irfft(value, count, axis)[..., None]
    made = np.fft.ifft(value, count, axis) if inverse else np.fft.fft(value, count, axis)
    if onesided:
        made = np.take(made, np.arange(made.shape[axis] // 2 + 1), axis)
    return np.stack([made.real, made.imag], -1)


@operator("STFT")
def short_time_fourier(node: OnnxNode) -> Tensor:
    """The Fourier transform of windowed frames."""
    x, step = node.tensor(0), int(node.known(1).reshape(-1)[0])
    window = node.tensor(2) if node.has(2) else None
    length = int(node.known(3).reshape(-1)[0]) if node.has(3) else (window.shape[0] if window is not None else 0)
    frames = (x.shape[1] - length) // step + 1
    places = np.arange(frames)[:, None] * step + np.arange(length)
    framed = g.take(x, places, 1)
    if window is not None:
        framed = g.multiply(framed, g.reshape(window, (length, 1)))
    one_sided = bool(node.get("onesided", 1))
    shape = (x.shape[0], frames, length // 2 + 1 if one_sided else length, 2)
    return computed("fourier", [framed], shape, x.dtype, axis=2, length=0, inverse=False, onesided=one_sided)


@operator("MelWeightMatrix")
def mel_weights(node: OnnxNode) -> Any:
    """Triangular filters on the mel scale."""
    bands, length, rate, low, high = (node.known(k).reshape(-1)[0].item() for k in range(5))
    import onnx

    dtype = onnx.helper.tensor_dtype_to_np_dtype(node.get("output_datatype", 1))
    bins = np.arange(bands + 2, dtype=np.float64)
    mels = 2595 * np.log10(1 + np.asarray([low, high]) / 700)
    bins = mels[0] + bins * (mels[1] - mels[0]) / (bands + 2)
    places = ((length + 1) * (700 * (10 ** (bins / 2595) - 1)) // rate).astype(np.int64)
    out = np.zeros((length // 2 + 1, bands))
    for band in range(bands):
        left, middle, right = places[band : band + 3]
        if middle == left:
            out[middle, band] = 1
        else:
            k = np.arange(left, middle + 1)
            out[k, band] = (k - left) / (middle - left)
        if right > middle:
            k = np.arange(middle, right)
            out[k, band] = (right - k) / (right - middle)
    return out.astype(dtype)


@operator("MaxUnpool")
def max_unpool(node: OnnxNode) -> Tensor:
    """Values back at the places from which they were pooled."""
    x, places = node.tensor(0), node.tensor(1)
    kernel = node.get("kernel_shape")
    rank = len(kernel)
    strides, pads = node.get("strides", [1] * rank), node.get("pads", [0] * (2 * rank))
    shape = [
        (n - 1) * s + k - pads[j] - pads[rank + j]
        for j, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    inferred = (*x.shape[:2], *shape)
    wanted = tuple(node.integers(2) or inferred)
    return computed("unpool", [x, places], wanted, x.dtype, inferred=inferred, wanted=wanted)


@block("unpool")
def _unpool(x: Array, places: Array, inferred: tuple[int, ...], wanted: tuple[int, ...]) -> Array:
    flat = np.zeros(int(np.prod(inferred)), x.dtype)
    flat[places.reshape(-1)] = x.reshape(-1)
    out = np.zeros(wanted, x.dtype)
    out[tuple(slice(n) for n in inferred)] = flat.reshape(inferred)
    return out


def _sampled(x: Array, rows: Array, columns: Array, padding: str) -> Array:
    """Elements of [channels, height, width] at integer places, outside by the rule of the padding."""
    h, w = x.shape[-2:]
    inside = (rows >= 0) & (rows < h) & (columns >= 0) & (columns < w)
    picked = x[..., np.clip(rows, 0, h - 1), np.clip(columns, 0, w - 1)]
    return np.where(inside, picked, 0) if padding == "zeros" else picked


@operator("GridSample")
def grid_sample(node: OnnxNode) -> Tensor:
    """Values between the elements, at places that a tensor names."""
    x, grid = node.tensor(0), node.tensor(1)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(node.text("mode", "linear"), node.text("mode", "linear"))
    options = {
        "mode": mode,
        "padding": node.text("padding_mode", "zeros"),
        "corners": bool(node.get("align_corners", 0)),
    }
    return computed("grid_sample", [x, grid], (*x.shape[:2], *grid.shape[1:-1]), x.dtype, **options)


@block("grid_sample")
def _grid_sample(x: Array, grid: Array, mode: str, padding: str, corners: bool) -> Array:
    spatial = x.shape[2:]
    places = []
    for k, n in enumerate(spatial):
        at = grid[..., len(spatial) - 1 - k].astype(np.float64)
        places.append((at + 1) / 2 * (n - 1) if corners else ((at + 1) * n - 1) / 2)
    taps = {"nearest": 1, "linear": 2, "cubic": 4}[mode]
    per_axis = []
    for at, n in zip(places, spatial, strict=True):
        if padding == "border" and mode != "cubic":
            at = np.clip(at, 0, n - 1)
        elif padding == "reflection" and mode != "cubic":
            at = _reflected(at, n, corners)
        if mode == "nearest":
            per_axis.append([(np.rint(at).astype(np.int64), np.ones_like(at))])
            continue
        low = np.floor(at).astype(np.int64)
        t = at - low
        if mode == "linear":
            per_axis.append([(low, 1 - t), (low + 1, t)])
        else:
            near = [keys_kernel(np.abs(t + 1 - j), -0.75) for j in range(taps)]
            per_axis.append([(low - 1 + j, weight) for j, weight in enumerate(near)])
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for item in range(x.shape[0]):
        for chosen in np.ndindex(*(len(options) for options in per_axis)):
            weight, inside, index = np.ones(grid.shape[1:-1]), np.ones(grid.shape[1:-1], bool), []
            for axis, pick in enumerate(chosen):
                at, part = per_axis[axis][pick][0][item], per_axis[axis][pick][1][item]
                n = spatial[axis]
                if padding == "reflection":
                    at = np.rint(_reflected(at.astype(np.float64), n, corners)).astype(np.int64)
                inside &= ((at >= 0) & (at < n)) | (padding != "zeros")
                index.append(np.clip(at, 0, n - 1))
                weight = weight * part
            out[item] += np.where(inside, x[item][(slice(None), *index)] * weight, 0)
    return out


def _reflected(at: Array, n: int, corners: bool) -> Array:
    low, high = (0.0, n - 1.0) if corners else (-0.5, n - 0.5)
    span = high - low
    if span <= 0:
        return np.zeros_like(at)
    folded = np.abs(at - low) % (2 * span)
    return np.clip(np.where(folded > span, 2 * span - folded, folded) + low, 0, n - 1)


@operator("RoiAlign")
def roi_align(node: OnnxNode) -> Tensor:
    """Regions of images, pooled to one size."""
    x, rois, batch = node.tensor(0), node.tensor(1), node.tensor(2)
    high, wide = node.get("output_height", 1), node.get("output_width", 1)
    half = node.text("coordinate_transformation_mode", "half_pixel" if node.version >= 16 else "output_half_pixel")
    options = {
        "high": high,
        "wide": wide,
        "mode": node.text("mode", "avg"),
        "ratio": node.get("sampling_ratio", 0),
        "scale": float(node.get("spatial_scale", 1.0)),
        "shift": 0.5 if half == "half_pixel" else 0.0,
    }
    return computed("roi_align", [x, rois, batch], (rois.shape[0], x.shape[1], high, wide), x.dtype, **options)


@block("roi_align")
def _roi_align(
    x: Array, rois: Array, batch: Array, high: int, wide: int, mode: str, ratio: int, scale: float, shift: float
) -> Array:
    out = np.zeros((len(rois), x.shape[1], high, wide))
    h, w = x.shape[2:]
    for r, (roi, item) in enumerate(zip(rois.astype(np.float64), batch, strict=True)):
        x0, y0, x1, y1 = roi * scale - shift
        width, height = x1 - x0, y1 - y0
        if not shift:
            width, height = max(width, 1.0), max(height, 1.0)
        step_y, step_x = height / high, width / wide
        ny, nx = ratio or int(np.ceil(step_y)), ratio or int(np.ceil(step_x))
        ys = y0 + (np.arange(high * ny) + 0.5) * step_y / ny
        xs = x0 + (np.arange(wide * nx) + 0.5) * step_x / nx
        grid_y, grid_x = np.meshgrid(ys, xs, indexing="ij")
        outside = (grid_y < -1) | (grid_y > h) | (grid_x < -1) | (grid_x > w)
        gy, gx = np.clip(grid_y, 0, h - 1), np.clip(grid_x, 0, w - 1)
        ly, lx = np.floor(gy).astype(int), np.floor(gx).astype(int)
        uy, ux = np.minimum(ly + 1, h - 1), np.minimum(lx + 1, w - 1)
        ty, tx = gy - ly, gx - lx
        image = x[int(np.clip(item, 0, len(x) - 1))].astype(np.float64)
        corners = [
            (image[:, ly, lx], (1 - ty) * (1 - tx)),
            (image[:, ly, ux], (1 - ty) * tx),
            (image[:, uy, lx], ty * (1 - tx)),
            (image[:, uy, ux], ty * tx),
        ]
        parts = np.stack([np.where(outside, 0, value * weight) for value, weight in corners])
        cells = parts.reshape(4, x.shape[1], high, ny, wide, nx)
        out[r] = cells.sum(0).mean((2, 4)) if mode == "avg" else cells.max((0, 3, 5))
    return out


@operator("DeformConv")
def deformable_conv(node: OnnxNode) -> Tensor:
    """A convolution whose points are moved by offsets."""
    x, w, offset = node.tensor(0), node.tensor(1), node.tensor(2)
    kernel = w.shape[2:]
    strides, dilations = node.get("strides", [1, 1]), node.get("dilations", [1, 1])
    pads = node.get("pads", [0, 0, 0, 0])
    bias = node.tensor(3) if node.has(3) else g.full((w.shape[0],), 0, x.dtype)
    mask = node.tensor(4) if node.has(4) else g.full((x.shape[0], offset.shape[1] // 2, *offset.shape[2:]), 1, x.dtype)
    options = {
        "kernel": tuple(kernel),
        "strides": tuple(strides),
        "dilations": tuple(dilations),
        "pads": tuple(pads[:2]),
        "groups": node.get("group", 1),
        "offset_groups": node.get("offset_group", 1),
    }
    return computed(
        "deformable", [x, w, offset, bias, mask], (x.shape[0], w.shape[0], *offset.shape[2:]), x.dtype, **options
    )


@block("deformable")
def _deformable(
    x: Array, w: Array, offset: Array, bias: Array, mask: Array, kernel: Any, strides: Any, dilations: Any, pads: Any,
    groups: int, offset_groups: int,
) -> Array:  # fmt: skip
    n, c = x.shape[:2]
    oh, ow = offset.shape[2:]
    offset = offset.reshape(n, offset_groups, kernel[0], kernel[1], 2, oh, ow)
    mask = mask.reshape(n, offset_groups, kernel[0], kernel[1], oh, ow)
    columns = np.zeros((n, c, kernel[0], kernel[1], oh, ow))
    share = c // offset_groups
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            base_y = (np.arange(oh) * strides[0] - pads[0] + i * dilations[0])[:, None]
            base_x = (np.arange(ow) * strides[1] - pads[1] + j * dilations[1])[None, :]
            for item in range(n):
                for group in range(offset_groups):
                    y = base_y + offset[item, group, i, j, 0]
                    z = base_x + offset[item, group, i, j, 1]
                    ly, lx = np.floor(y).astype(int), np.floor(z).astype(int)
                    image = x[item, group * share : (group + 1) * share]
                    total = np.zeros((share, oh, ow))
                    for dy in (0, 1):
                        for dx in (0, 1):
                            weight = np.abs(1 - dy - (y - ly)) * np.abs(1 - dx - (z - lx))
                            total += _sampled(image, ly + dy, lx + dx, "zeros") * weight
                    columns[item, group * share : (group + 1) * share, i, j] = total * mask[item, group, i, j]
    per = w.shape[0] // groups
    split = columns.reshape(n, groups, c // groups, *kernel, oh, ow)
    weights = w.reshape(groups, per, c // groups, *kernel)
    out: Array = np.einsum("ngcijyx,gfcij->ngfyx", split, weights).reshape(n, w.shape[0], oh, ow)
    return out + bias.reshape(1, -1, 1, 1)


@operator("ImageDecoder")
def decoded(node: OnnxNode) -> Any:
    """The pixels [height, width, channels] of a known image file; none where it cannot be read."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise node.refuse("Pillow, which reads images, is not installed", "pip install pillow") from error
    form = node.text("pixel_format", "RGB")
    try:
        with Image.open(io.BytesIO(node.known(0).tobytes())) as image:
            pixels = np.asarray(image.convert("L" if form == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError):
        return np.zeros((0, 0, 0), np.uint8)
    return pixels[..., None] if form == "Grayscale" else pixels[..., ::-1] if form == "BGR" else pixels


@operator("TfIdfVectorizer")
def grams(node: OnnxNode) -> Tensor:
    """How often runs of integers occur, with skips, and weighted."""
    x = node.tensor(0)
    if "pool_int64s" not in node.attributes:
        raise node.refuse("a constant of strings", legal="pool_int64s")
    pool, starts = np.asarray(node.get("pool_int64s"), np.int64), [*node.get("ngram_counts"), None]
    places = np.asarray(node.get("ngram_indexes"), np.int64)
    levels = [pool[starts[n - 1] : starts[n]].reshape(-1, n) for n in range(1, len(starts))]
    options = {
        "shortest": node.get("min_gram_length"),
        "longest": min(node.get("max_gram_length"), len(levels)),
        "skips": node.get("max_skip_count"),
        "counts": node.text("mode") != "IDF",
        "size": int(places.max()) + 1,
    }
    weights = node.get("weights", np.ones(len(places))) if node.text("mode") != "TF" else np.ones(len(places))
    inputs = [x, places, np.asarray(weights, np.float32), *levels]
    return computed("grams", inputs, (*x.shape[:-1], options["size"]), np.float32, **options)


@block("grams")
def _grams(
    x: Array,
    places: Array,
    weights: Array,
    *levels: Array,
    shortest: int,
    longest: int,
    skips: int,
    counts: bool,
    size: int,
) -> Array:
    rows = x.reshape(-1, x.shape[-1])
    found = np.zeros((len(rows), len(places)))
    first = np.cumsum([0, *(len(level) for level in levels)])
    for n in range(shortest, longest + 1):
        level = levels[n - 1]
        for skip in range(skips + 1 if n > 1 else 1):
            reach = (n - 1) * (skip + 1)
            if reach >= rows.shape[1] or not len(level):
                continue
            at = np.arange(rows.shape[1] - reach)[:, None] + np.arange(n) * (skip + 1)
            runs = rows[:, at].reshape(-1, n)
            _, names = np.unique(np.concatenate([level, runs]), axis=0, return_inverse=True)
            number = np.full(names.max() + 1, -1)
            number[names[: len(level)].reshape(-1)] = np.arange(len(level))
            hit = number[names[len(level) :].reshape(-1)]
            row = np.repeat(np.arange(len(rows)), len(at))
            np.add.at(found, (row[hit >= 0], first[n - 1] + hit[hit >= 0]), 1)
    found = (found if counts else np.minimum(found, 1)) * weights
    out = np.zeros((size, len(rows)))
    np.add.at(out, np.clip(places, 0, size - 1), found.T)
    return out.T


@operator("TreeEnsemble")
def trees(node: OnnxNode) -> Tensor:
    """Sums, means or extremes of the leaves that a row of features reaches, one in each tree."""
    x, targets = node.tensor(0), node.get("n_targets")
    # A branch is the number of a node, or -1 - the number of a leaf.
    branches = [
        np.where(np.asarray(node.get(f"nodes_{side}leafs")), -1 - np.asarray(ids), ids)
        for side in ("true", "false")
        for ids in [np.asarray(node.get(f"nodes_{side}nodeids"), np.int64)]
    ]
    modes = np.asarray(node.get("nodes_modes"), np.int64)
    members = np.asarray(node.get("membership_values", np.zeros(0)), np.float64)
    ends = np.append(np.flatnonzero(np.isnan(members)), len(members))
    starts = np.append(0, ends[:-1] + 1)
    sets = np.cumsum(modes == _MEMBER) - 1
    spans = np.where(modes[:, None] == _MEMBER, np.stack([starts, ends], 1)[np.clip(sets, 0, len(ends) - 1)], 0)
    missing = np.asarray(node.get("nodes_missing_value_tracks_true", [0] * len(modes)), bool)
    roots, features, leaves = (
        np.asarray(node.get(name), np.int64) for name in ("tree_roots", "nodes_featureids", "leaf_targetids")
    )
    if min(roots.min(), features.min(), leaves.min()) < 0 or roots.max() >= len(modes) or leaves.max() >= targets:
        raise node.refuse("a root, a feature or a target that does not exist", legal="numbers below their counts")
    if features.max() >= x.shape[1] or any(ids.max() >= len(modes) or -ids.min() > len(leaves) for ids in branches):
        raise node.refuse("a feature, a node or a leaf that does not exist", legal=f"features below {x.shape[1]}")
    inputs = [
        x,
        roots,
        features,
        modes,
        np.asarray(node.get("nodes_splits")),
        *branches,
        missing,
        spans,
        members,
        leaves,
        np.asarray(node.get("leaf_weights")),
    ]
    options = {"targets": targets, "gather": node.get("aggregate_function", 1), "after": node.get("post_transform", 0)}
    return computed("trees", inputs, (x.shape[0], targets), x.dtype, **options)


_MEMBER = 6
_COMPARISONS = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
"""By the number of a node's mode, below `_MEMBER`."""


@block("trees")
def _trees(
    x: Array, roots: Array, features: Array, modes: Array, splits: Array, true: Array, false: Array, missing: Array,
    spans: Array, members: Array, leaf_targets: Array, leaf_weights: Array, targets: int, gather: int, after: int,
) -> Array:  # fmt: skip
    # Blocks are also checked on arrays of any numbers, where branches may lead in a circle and out of the arrays.
    at = np.broadcast_to(roots, (len(x), len(roots))).copy()
    for _ in range(len(modes)):
        row, tree = np.nonzero(at >= 0)
        if not row.size:
            break
        node = np.minimum(at[row, tree], len(modes) - 1)
        value, mode = x[row, np.clip(features[node], 0, x.shape[1] - 1)], modes[node]
        holds = np.zeros(len(node), bool)
        for kind, compare in enumerate(_COMPARISONS):
            chosen = mode == kind
            holds[chosen] = compare(value[chosen], splits[node[chosen]])
        for k in np.flatnonzero(mode == _MEMBER):
            start, end = spans[node[k]]
            holds[k] = (members[start:end] == value[k]).any()
        holds |= np.isnan(value) & missing[node]
        at[row, tree] = np.where(holds, true[node], false[node])
    leaf = np.clip(-1 - at, 0, len(leaf_targets) - 1)
    rows = np.broadcast_to(np.arange(len(x))[:, None], leaf.shape)
    join, start = {2: (np.minimum, np.inf), 3: (np.maximum, -np.inf)}.get(gather, (np.add, 0.0))
    out = np.full((len(x), targets), start)
    join.at(out, (rows, np.clip(leaf_targets[leaf], 0, targets - 1)), leaf_weights[leaf])
    out = np.where(np.isinf(out) & np.isinf(start), 0, out) / (len(roots) if gather == 0 else 1)
    return _transformed(out, after)


def _transformed(score: Array, after: int) -> Array:
    """Scores as they are (0), as a softmax (1), logistic (2), a softmax that keeps zeros (3), or probits (4)."""
    if after in (1, 3):
        grown: Array = np.exp(score - score.max(1, keepdims=True)) * ((score != 0) | (after == 1))
        return np.asarray(grown / np.maximum(grown.sum(1, keepdims=True), np.finfo(np.float64).tiny))
    if after == 4:
        from scipy.special import ndtri  # type: ignore[import-untyped]

        return np.asarray(ndtri(score))
    return 1 / (1 + np.exp(-score)) if after == 2 else score
