"""Operators of the domain com.microsoft: what onnxruntime's optimiser and quantiser write into models.

Their meaning is that of onnxruntime's kernels for processors; what only other devices compute is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.networks import activation, average_pool, conv, global_pool, max_pool
from tileweave.frontends.onnx.node import OPERATORS, Converter, OnnxNode, operator
from tileweave.frontends.onnx.quantized import (
    dequantize,
    dynamic_quantize,
    integer_product,
    quantize,
    quantized_conv,
)
from tileweave.graph import Tensor

DOMAIN = "com.microsoft"


def _microsoft(*names: str) -> Callable[[Converter], Converter]:
    return operator(*(f"{DOMAIN}.{name}" for name in names))


_microsoft("QuantizeLinear")(quantize)
_microsoft("DequantizeLinear")(dequantize)


def _none_of(node: OnnxNode, *attributes: str) -> None:
    """Refuses attributes that are set."""
    for name in attributes:
        if node.get(name, 0):
            raise node.refuse(f"{name}={node.get(name)}", legal=f"{name} left out")


def _fused(node: OnnxNode, x: Tensor) -> Tensor:
    """The activation that an attribute names, with its numbers."""
    name = node.text("activation")
    numbers = list(node.get("activation_params", []))
    alpha, beta = numbers[0] if numbers else None, numbers[1] if len(numbers) > 1 else None
    if name == "Clip":
        return g.clip(x, alpha, beta)
    alpha, beta = node.get("activation_alpha", alpha), node.get("activation_beta", beta)
    return activation(node, name, alpha, beta)(x) if name else x


@_microsoft("FusedMatMul", "TransposeMatMul")
def fused_matmul(node: OnnxNode) -> Tensor:
    """A scaled product of operands whose last axes, or whose first axis among the batches, are transposed."""
    operands = []
    for place, side in enumerate("AB"):
        x = node.tensor(place)
        rank = len(x.shape)
        if node.get(f"transBatch{side}", 0) and rank > 2:
            x = g.transpose(x, (*range(1, rank - 1), 0, rank - 1))
        if node.get(f"trans{side}", 0) and rank > 1:
            x = g.transpose(x, (*range(rank - 2), rank - 1, rank - 2))
        operands.append(x)
    return _times(g.matmul(*operands), node.get("alpha", 1.0))


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else g.multiply(x, factor)


@_microsoft("FusedGemm")
def fused_gemm(node: OnnxNode) -> Tensor:
    """Gemm and an activation."""
    return _fused(node, OPERATORS["Gemm"](node))


@_microsoft("FusedConv")
def fused_conv(node: OnnxNode) -> Tensor:
    """A convolution, a sum and an activation."""
    made = conv(node)
    return _fused(node, g.add(made, node.tensor(3)) if node.has(3) else made)


@_microsoft("Gelu", "BiasGelu")
def gelu(node: OnnxNode) -> Tensor:
    """Exact, of the input and its bias."""
    return g.gelu(reduce(g.add, node.tensors()))


@_microsoft("FastGelu")
def fast_gelu(node: OnnxNode) -> Tensor:
    """By tanh, of the input and its bias."""
    return g.gelu(reduce(g.add, node.tensors()), "tanh")


@_microsoft("QuickGelu")
def quick_gelu(node: OnnxNode) -> Tensor:
    """x sigmoid(alpha x)."""
    x = node.tensor(0)
    return g.multiply(x, g.sigmoid(g.multiply(x, node.get("alpha", 1.702))))


@_microsoft("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_norm(node: OnnxNode) -> tuple[Any, ...]:
    """A sum of the input, a residual and a bias, normalised; the fourth result is the sum."""
    simple = "Simplified" in node.kind
    beta, bias = (None, node.optional(3)) if simple else (node.optional(3), node.optional(4))
    total = g.add(node.tensor(0), node.tensor(1))
    total = total if bias is None else g.add(total, bias)
    return (*_normalised(node, total, node.tensor(2), beta, rms=simple), total)


def _normalised(
    node: OnnxNode, x: Tensor, gamma: Tensor, beta: Tensor | None, *, rms: bool, default: float = 1e-12
) -> tuple[Any, Any, Any]:
    """Over the axes from one on: the result, the mean and the inverse deviation where they are wanted."""
    axes = tuple(range(node.get("axis", -1) % len(x.shape), len(x.shape)))
    epsilon = node.get("epsilon", default)
    made = g.rms_norm(x, gamma, axes, epsilon) if rms else g.layer_norm(x, gamma, beta, axes, epsilon)
    if not any(node.wanted(k) for k in (1, 2)) or node.kind.startswith("Embed"):
        return made, None, None
    wide = g.cast(x, np.float32) if x.dtype.itemsize < 4 else x
    mean = g.mean(wide, axes, keepdims=True)
    centred = wide if rms else g.subtract(wide, mean)
    spread = g.add(g.mean(g.multiply(centred, centred), axes, keepdims=True), epsilon)
    return made, mean, g.divide(g.full((), 1, wide.dtype), g.sqrt(spread))


@operator("SimplifiedLayerNormalization")
def simplified_norm(node: OnnxNode) -> tuple[Any, ...]:
    """By the root of the mean square; onnxruntime's optimiser writes it into the default domain."""
    inner = replace(node, outputs=(*node.outputs[:1], "", *node.outputs[1:]))
    made, _, inverse = _normalised(inner, node.tensor(0), node.tensor(1), None, rms=True, default=1e-5)
    return made, inverse


@_microsoft("QEmbedLayerNormalization")
def quantized_embed_norm(node: OnnxNode) -> tuple[Any, ...]:
    """Of tables that are quantised: their scales are the inputs from 8 on, their zero points those from 13 on."""
    tables: list[Any] = []
    for k in range(5):
        given = tuple(node.inputs[at] if node.has(at) else None for at in (2 + k, 8 + k, 13 + k))
        inner = given if node.has(13 + k) else given[:2]
        tables.append(dequantize(replace(node, inputs=inner, attributes={})) if given[0] is not None else None)
    made: tuple[Any, ...] = embed_norm(
        replace(node, kind=node.kind[1:], inputs=(*node.inputs[:2], *tables, *node.inputs[7:8]))
    )
    return made


@_microsoft("EmbedLayerNormalization")
def embed_norm(node: OnnxNode) -> tuple[Any, ...]:
    """Embeddings of words, places and segments, summed and normalised; the length of each row's mask; the sum."""
    words, segments = node.tensor(0), node.optional(1)
    batch, length = words.shape
    places = node.tensor(8) if node.has(8) else g.arange(length, dtype=np.int64)
    total = g.add(g.take(node.tensor(2), words, 0), g.take(node.tensor(3), places, 0))
    if segments is not None:
        total = g.add(total, g.take(node.tensor(4), segments, 0))
    made = _normalised(node, total, node.tensor(5), node.optional(6), rms=False)[0]
    kept = g.full((batch,), 0, np.int32)
    if node.has(7):
        kept = g.cast(g.sum(g.cast(g.not_equal(node.tensor(7), 0), np.int32), 1), np.int32)
    return made, kept, total


def _heads(x: Tensor, heads: int) -> Tensor:
    """[batch, places, heads * features] as [batch, heads, places, features]."""
    batch, places, size = x.shape
    return g.transpose(g.reshape(x, (batch, places, heads, size // heads)), (0, 2, 1, 3))


def _joined(x: Tensor) -> Tensor:
    """[batch, heads, places, features] as [batch, places, heads * features]."""
    batch, heads, places, size = x.shape
    return g.reshape(g.transpose(x, (0, 2, 1, 3)), (batch, places, heads * size))


def _padding(node: OnnxNode, mask: Tensor | None, batch: int, queries: int, keys: int) -> Tensor | None:
    """What is added to scores where keys are masked, from any of the forms of a mask."""
    if mask is None:
        return None
    columns = np.arange(keys)
    shape = mask.shape
    if shape == (batch,):
        seen = g.less(columns, g.unsqueeze(mask, 1))
    elif shape == (2 * batch,):  # ends, then starts
        ends, starts = g.unsqueeze(mask[:batch], 1), g.unsqueeze(mask[batch:], 1)
        seen = g.logical_and(g.less(columns, ends), g.less_equal(starts, columns))
    elif len(shape) in (2, 3) and shape[-1] == keys:
        seen = g.greater(mask, 0)
    elif len(shape) == 4 and shape[-1] >= keys:
        seen = g.greater(mask[:, 0, keys - queries : keys, :keys], 0)
    else:
        raise node.refuse(f"a mask of shape {shape}", legal="(b,), (2 b,), (b, keys), (b, queries, keys)")
    seen = g.unsqueeze(seen, (1, 2) if len(seen.shape) == 2 else 1)
    return g.where(seen, np.float32(0), np.float32(node.get("mask_filter_value", -10000.0)))


def _attended(
    node: OnnxNode, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, past: tuple[Any, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of heads, and the keys and values with those of before."""
    causal = bool(node.get("unidirectional", 0))
    if causal and q.shape[2] != k.shape[2]:  # onnxruntime lets the last query see all keys then, the others not
        problem = f"unidirectional attention of {q.shape[2]} queries to {k.shape[2]} new keys"
        raise node.refuse(problem, legal="as many new keys as queries")
    if past[0] is not None:
        k, v = g.concat([past[0], k], 2), g.concat([past[1], v], 2)
    added = _padding(node, mask, q.shape[0], q.shape[2], k.shape[2])
    both = [g.cast(each, q.dtype) for each in (added, bias) if each is not None]
    out = g.attention(
        q,
        k,
        v,
        scale=node.get("scale", 0.0) or None,
        causal=causal,
        mask=reduce(g.add, both) if both else None,
    )
    return _joined(out), k, v


def _self_attention(node: OnnxNode, qkv: Tensor, mask: int, past: int, bias: int | None) -> tuple[Tensor, Tensor]:
    """Attention of projected queries, keys and values; places of the mask, the past and the bias among the inputs."""
    _none_of(node, "do_rotary", "past_present_share_buffer")
    heads, size = node.get("num_heads"), qkv.shape[-1] // 3
    sizes = node.get("qkv_hidden_sizes") or [size, size, size]
    ends = np.cumsum(sizes).tolist()
    q, k, v = (_heads(qkv[..., end - n : end], heads) for end, n in zip(ends, sizes, strict=True))
    before = node.optional(past)
    given = (None, None) if before is None else (g.select(before, 0, 0), g.select(before, 0, 1))
    added = None if bias is None else node.optional(bias)
    out, keys, values = _attended(node, q, k, v, node.optional(mask), added, given)
    if not node.wanted(1):
        return out, out
    return out, g.concat([g.unsqueeze(keys, 0), g.unsqueeze(values, 0)], 0)


@_microsoft("Attention")
def attention(node: OnnxNode) -> tuple[Tensor, Tensor]:
    """Self-attention with its projection."""
    qkv = g.matmul(node.tensor(0), node.tensor(1))
    return _self_attention(node, g.add(qkv, node.tensor(2)) if node.has(2) else qkv, 3, 4, 5)


@_microsoft("QAttention")
def quantized_attention(node: OnnxNode) -> tuple[Tensor, Tensor]:
    """Self-attention whose projection is quantised."""
    total = integer_product(node, node.tensor(0), 1, (node.tensor(6) if node.has(6) else 0, 7))
    qkv = g.multiply(g.cast(total, np.float32), g.multiply(node.tensor(3), node.tensor(4)))
    return _self_attention(node, g.add(qkv, node.tensor(2)), 5, 8, None)


@_microsoft("MultiHeadAttention")
def multi_head_attention(node: OnnxNode) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of projected queries, keys and values; keys and values may be of another sequence."""
    heads = node.get("num_heads")
    if any(node.has(k) for k in (8, 9)) or node.wanted(3):
        raise node.refuse("a shared cache, beams, or scores as a result", legal="past and present")
    q, k, v = node.tensor(0), node.optional(1), node.optional(2)
    if k is None or v is None:
        raise node.refuse("queries, keys and values are packed", legal="three inputs")
    if node.has(3):
        bias, size = node.tensor(3), q.shape[-1]
        q = g.add(q, bias[:size])
        if len(k.shape) == 3:
            k, v = g.add(k, bias[size : 2 * size]), g.add(v, bias[2 * size :])
    k, v = (_heads(each, heads) if len(each.shape) == 3 else each for each in (k, v))
    past = (node.optional(6), node.optional(7))
    return _attended(node, _heads(q, heads), k, v, node.optional(4), node.optional(5), past)


@_microsoft("RotaryEmbedding")
def rotary_embedding(node: OnnxNode) -> Tensor:
    """The operator of the default domain, its inputs in another order; one number is the first of all places."""
    _none_of(node, "is_packed_batching")
    x, places = node.tensor(0), node.tensor(1)
    cos, sin = node.tensor(2), node.tensor(3)
    flat = len(x.shape) == 3
    size = 2 * cos.shape[1]
    heads = node.get("num_heads", 0) or (x.shape[2] // size if flat else x.shape[1])
    split = _heads(x, heads) if flat else x
    batch, _, length, _ = split.shape
    if len(places.shape) == 1:
        places = g.broadcast_to(g.unsqueeze(g.add(places, np.arange(length)), 0), (batch, length))
    made = _turned(split, cos, sin, places, bool(node.get("interleaved", 0)))
    return _joined(made) if flat else made


def _turned(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, interleaved: bool) -> Tensor:
    """Features of [batch, heads, places, features] turned by the angles of their places, in pairs."""
    half = cos.shape[1]
    c, s = (g.unsqueeze(g.take(table, places, 0), 1) for table in (cos, sin))
    head = x[..., : 2 * half]
    if interleaved:
        pairs = g.reshape(head, (*head.shape[:-1], half, 2))
        a, b = g.select(pairs, -1, 0), g.select(pairs, -1, 1)
    else:
        a, b = head[..., :half], head[..., half:]
    new = [g.subtract(g.multiply(a, c), g.multiply(b, s)), g.add(g.multiply(a, s), g.multiply(b, c))]
    if interleaved:
        turned = g.reshape(g.concat([g.unsqueeze(each, -1) for each in new], -1), head.shape)
    else:
        turned = g.concat(new, -1)
    return g.concat([turned, x[..., 2 * half :]], -1) if 2 * half < x.shape[-1] else turned


@_microsoft("GroupQueryAttention")
def group_query_attention(node: OnnxNode) -> tuple[Tensor, Tensor, Tensor]:
    """Causal attention with fewer heads of keys, rotary embedding and a cache.

    Each sequence's new keys stand behind its own past, whose length is ``seqlens_k + 1 - queries``; of a first prompt,
    which is as long as the whole, it is 0.
    """
    _none_of(node, "smooth_softmax", "qk_output", "sliding_window_cache", "kv_cache_bit_width")
    if any(node.has(k) for k in range(11, 17)) or not node.get("causal", 1):
        raise node.refuse("sinks, quantised caches, normed queries or no causal mask", legal="the inputs up to 10")
    heads, kv = node.get("num_heads"), node.get("kv_num_heads")
    q = node.tensor(0)
    if node.has(1):
        parts = [q, node.tensor(1), node.tensor(2)]
    else:
        size = q.shape[-1] // (heads + 2 * kv)
        ends = (heads * size, (heads + kv) * size)
        parts = [q[..., : ends[0]], q[..., ends[0] : ends[1]], q[..., ends[1] :]]
    q, k, v = (_heads(x, n) for x, n in zip(parts, (heads, kv, kv), strict=True))
    batch, _, queries, size = q.shape
    total = int(node.known(6, "total_sequence_length").reshape(-1)[0])
    lengths = node.inputs[5]
    first: Any = 0 if queries == total else total - queries  # one sequence is as long as the longest
    if queries != total and not (batch == 1 or (isinstance(lengths, np.ndarray) and (lengths == total - 1).all())):
        first = g.subtract(g.reshape(g.cast(node.tensor(5), np.int64), (batch, 1)), queries - 1)
    places = g.broadcast_to(g.add(np.arange(queries), first), (batch, queries))
    if node.get("do_rotary", 0):
        turned = node.tensor(9) if node.has(9) else places
        cos, sin, pairs = node.tensor(7), node.tensor(8), bool(node.get("rotary_interleaved", 0))
        q, k = (_turned(x, cos, sin, turned, pairs) for x in (q, k))
    k, v = (_cached(node.optional(at), new, first, total) for at, new in ((3, k), (4, v)))
    keys, window = k.shape[2], node.get("local_window_size", -1)
    options: dict[str, Any] = {"scale": node.get("scale", 0.0) or None, "cap": node.get("softcap", 0.0) or None}
    mask = node.tensor(10) if node.has(10) else None
    if mask is not None and mask.shape[-1] < keys:
        mask = g.pad(mask, [(0, 0)] * 3 + [(0, keys - mask.shape[-1])])
    if isinstance(first, int):
        left = None if window < 0 else window - 1
        options |= {"causal": True, "start": first, "window": None if left is None else (left, 0), "mask": mask}
    else:
        rows, columns = g.unsqueeze(places, (1, 3)), np.arange(keys)
        seen = g.less_equal(columns, rows)
        if window >= 0:
            seen = g.logical_and(seen, g.less(g.subtract(rows, window), columns))
        options["mask"] = seen if mask is None else g.where(seen, mask, g.full((), -np.inf, mask.dtype))
    return _joined(g.attention(q, k, v, **options)), k, v


def _cached(past: Tensor | None, new: Tensor, first: Any, total: int) -> Tensor:
    """Keys or values of [batch, heads, places, features] with new ones behind each sequence's first places."""
    if past is None or not past.shape[2]:
        return new
    if isinstance(first, int):
        end = first + new.shape[2]
        parts = [past[:, :, :first], new, past[:, :, end:]] if past.shape[2] > end else [past[:, :, :first], new]
        return g.concat([each for each in parts if each.shape[2]], 2)
    held, added = past.shape[2], new.shape[2]
    columns = np.arange(max(held, total))
    behind = g.subtract(columns, first)  # the place among the new ones, by batch
    fresh = g.logical_and(g.greater_equal(behind, 0), g.less(behind, added))
    places = g.where(fresh, g.add(behind, held), np.minimum(columns, held - 1))
    shape = (*new.shape[:2], columns.size, new.shape[3])
    return g.take_along_axis(g.concat([past, new], 2), g.broadcast_to(g.unsqueeze(places, (1, 3)), shape), 2)


@_microsoft("MatMulNBits")
def matmul_bits(node: OnnxNode) -> Tensor:
    """A product with weights of 2, 4 or 8 bits, which blocks along what is summed share a scale and a zero point of."""
    _none_of(node, "weight_prepacked")
    a, bits = node.tensor(0), node.get("bits", 4)
    rows, size, columns = node.get("N"), node.get("block_size"), node.get("K")
    blocks = -(-columns // size)
    packed, scales = node.tensor(1), g.reshape(node.tensor(2), (rows, blocks, 1))
    if not packed.type.box.size or node.has(4):
        raise node.refuse("weights that are left out, or in an order of their own", legal="packed weights")
    values = g.reshape(_bits(packed, bits), (rows, blocks, size))
    zero: Any = float(1 << (bits - 1))
    if node.has(3) and node.tensor(3).dtype.kind == "f":
        zero = g.reshape(node.tensor(3), (rows, blocks, 1))
    elif node.has(3):
        zero = _bits(g.reshape(node.tensor(3), (rows, -(-blocks * bits // 8))), bits)[:, :blocks]
        zero = g.reshape(g.cast(zero, scales.dtype), (rows, blocks, 1))
    weights = g.multiply(g.subtract(g.cast(values, scales.dtype), zero), scales)
    weights = g.reshape(weights, (rows, blocks * size))[:, :columns]
    made = g.matmul(a, g.transpose(weights))
    return g.add(made, node.tensor(5)) if node.has(5) else made


def _bits(packed: Tensor, bits: int) -> Tensor:
    """Bytes as the numbers of so many bits that they hold, the lowest first, along the last axis."""
    if bits == 8:
        return packed
    parts = 8 // bits
    shifts = np.arange(parts, dtype=np.uint8) * np.uint8(bits)
    spread = g.bitwise_and(g.right_shift(g.unsqueeze(packed, -1), shifts), np.uint8((1 << bits) - 1))
    return g.reshape(spread, (*packed.shape[:-1], packed.shape[-1] * parts))


def _scaled(total: Tensor, scales: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
    """Sums of products of integers as numbers."""
    made = g.multiply(g.cast(total, np.float32), g.multiply(*scales))
    return made if bias is None else g.add(made, bias)


@_microsoft("DynamicQuantizeMatMul")
def dynamic_matmul(node: OnnxNode) -> Tensor:
    """A product with quantised weights, of an input that is quantised by its own range."""
    x, scale, zero = dynamic_quantize(replace(node, inputs=node.inputs[:1]))
    total = integer_product(node, x, 1, (zero, 3))
    return _scaled(total, (scale, node.tensor(2)), node.optional(4))


@_microsoft("MatMulIntegerToFloat")
def matmul_to_float(node: OnnxNode) -> Tensor:
    """A product of quantised tensors as numbers."""
    total = integer_product(node, node.tensor(0), 1, (node.tensor(4) if node.has(4) else 0, 5))
    return _scaled(total, (node.tensor(2), node.tensor(3)), node.optional(6))


@_microsoft("QGemm")
def quantized_gemm(node: OnnxNode) -> Tensor:
    """A scaled product of quantised matrices and a bias of sums, quantised again or not."""
    operands = [
        g.transpose(node.tensor(k)) if node.get(f"trans{side}", 0) else node.tensor(k)
        for k, side in ((0, "A"), (3, "B"))
    ]
    zeros: list[Any] = [node.tensor(k) if node.has(k) else 0 for k in (2, 5)]
    total = g.matmul_integer(*operands, *zeros)
    total = g.add(total, node.tensor(6)) if node.has(6) else total
    made = _times(_scaled(total, (node.tensor(1), node.tensor(4)), None), node.get("alpha", 1.0))
    return _quantized(node, made, 7) if node.has(7) else made


def _number(node: OnnxNode, at: int) -> Tensor:
    """A quantised input, its scale and its zero point from a place on, as numbers."""
    made: Tensor = dequantize(replace(node, inputs=node.inputs[at : at + 3], attributes={}))
    return made


def _quantized(node: OnnxNode, x: Tensor, at: int) -> Tensor:
    """Numbers, quantised by the scale and the zero point that stand from a place on."""
    zero = node.inputs[at + 1] if node.has(at + 1) else np.zeros((), np.uint8)
    made: Tensor = quantize(replace(node, inputs=(x, node.inputs[at], zero), attributes={}))
    return made


@_microsoft("QLinearAdd", "QLinearMul")
def quantized_pair(node: OnnxNode) -> Tensor:
    """A sum or a product of numbers that are quantised."""
    combine = g.add if node.kind == "QLinearAdd" else g.multiply
    return _quantized(node, combine(_number(node, 0), _number(node, 3)), 6)


@_microsoft("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean")
def quantized_function(node: OnnxNode) -> Tensor:
    """A function of numbers that are quantised."""
    x = _number(node, 0)
    if node.kind == "QLinearSigmoid":
        made = g.sigmoid(x)
    elif node.kind == "QLinearLeakyRelu":
        made = g.leaky_relu(x, node.get("alpha", 0.01))
    elif node.kind == "QLinearReduceMean":
        made = g.mean(x, tuple(node.get("axes", range(len(x.shape)))), keepdims=bool(node.get("keepdims", 1)))
    else:
        axis = node.get("axis", -1) % len(x.shape)
        old = node.get("opset", 13) < 13  # over all axes from this one on
        flat = g.reshape(x, (*x.shape[:axis], int(np.prod(x.shape[axis:])))) if old else x
        made = g.reshape(g.softmax(flat, -1 if old else axis), x.shape)
    return _quantized(node, made, 3)


@_microsoft("QLinearConcat")
def quantized_concat(node: OnnxNode) -> Tensor:
    """Tensors of unlike scales as one."""
    parts = [_number(node, k) for k in range(2, len(node.inputs), 3)]
    return _quantized(node, g.concat(parts, node.get("axis")), 0)


@_microsoft("QLinearWhere")
def quantized_where(node: OnnxNode) -> Tensor:
    """A choice between tensors of unlike scales."""
    return _quantized(node, g.where(node.tensor(0), _number(node, 1), _number(node, 4)), 7)


def _channels_first(node: OnnxNode, body: Callable[[OnnxNode], Tensor]) -> Tensor:
    """A spatial operator, on images whose channels stand last where it is told so."""
    last = node.get("channels_last", 0) or node.kind.startswith("Nhwc")
    if not last:
        return body(node)
    x = node.tensor(0)
    rank = len(x.shape)
    turned = g.transpose(x, (0, rank - 1, *range(1, rank - 1)))
    made = body(replace(node, inputs=(turned, *node.inputs[1:])))
    return g.transpose(made, (0, *range(2, rank), 1))


@_microsoft("QLinearAveragePool", "QLinearGlobalAveragePool")
def quantized_pool(node: OnnxNode) -> Tensor:
    """The mean of windows, or of whole images, that are quantised."""

    def body(one: OnnxNode) -> Tensor:
        inner = replace(one, inputs=(_number(one, 0),), kind=one.kind.removeprefix("QLinear"))
        pooled: Tensor = (global_pool if "Global" in node.kind else average_pool)(inner)
        return _quantized(node, pooled, 3)

    return _channels_first(node, body)


@_microsoft("QLinearConv")
def quantized_convolution(node: OnnxNode) -> Tensor:
    """The operator of the default domain, on channels that may stand last."""
    return _channels_first(node, quantized_conv)


@_microsoft("NhwcMaxPool")
def last_max_pool(node: OnnxNode) -> Tensor:
    """The greatest of each window, where channels stand last."""
    return _channels_first(node, max_pool)
