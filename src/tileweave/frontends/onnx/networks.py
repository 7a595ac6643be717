"""Convolution, pooling, normalisation, recurrent layers, resizing, losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.frontends.windows import both, max_places, rounded_up, window_means
from tileweave.graph import Tensor
from tileweave.graph.nn.recurrent import layer
from tileweave.graph.ops.grouped.recurrence import TYPES


def pads_of(
    node: OnnxNode, spatial: Sequence[int], kernel: Sequence[int], strides: Any, dilations: Any
) -> list[tuple[int, int]]:
    """What is added before and after each spatial dimension."""
    rank = len(spatial)
    mode = node.text("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = node.get("pads", [0] * (2 * rank))
        return list(zip(pads[:rank], pads[rank:], strict=True))
    if mode == "VALID":
        return [(0, 0)] * rank
    found = []
    for extent, size, step, gap in zip(spatial, kernel, strides, dilations, strict=True):
        total = max((-(-extent // step) - 1) * step + gap * (size - 1) + 1 - extent, 0)
        small, large = total // 2, total - total // 2
        found.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return found


def window_of(node: OnnxNode, x: Tensor, kernel: Sequence[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Strides, dilations and padding of a sliding window."""
    rank = len(kernel)
    strides, dilations = list(node.get("strides", [1] * rank)), list(node.get("dilations", [1] * rank))
    return strides, dilations, pads_of(node, x.shape[2:], kernel, strides, dilations)


@operator("Conv")
def conv(node: OnnxNode) -> Tensor:
    """Cross-correlation."""
    x, w = node.tensor(0), node.tensor(1)
    strides, dilations, pads = window_of(node, x, node.get("kernel_shape", w.shape[2:]))
    return g.conv(x, w, node.optional(2), stride=strides, padding=pads, dilation=dilations, groups=node.get("group", 1))


@operator("ConvTranspose")
def conv_transpose(node: OnnxNode) -> Tensor:
    """The transpose of a convolution; the padding may be given by the shape of the result."""
    x, w = node.tensor(0), node.tensor(1)
    kernel = w.shape[2:]
    rank, groups = len(kernel), node.get("group", 1)
    strides, dilations = list(node.get("strides", [1] * rank)), list(node.get("dilations", [1] * rank))
    extra = list(node.get("output_padding", [0] * rank))
    spread = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    full = [s * (n - 1) + e for s, n, e in zip(strides, x.shape[2:], spread, strict=True)]
    mode = node.text("auto_pad", "NOTSET")
    if "output_shape" in node.attributes or mode.startswith("SAME"):
        wanted = node.get("output_shape") or [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
        total = [f + e - n for f, e, n in zip(full, extra, wanted[-rank:], strict=True)]
        halves = [(t // 2, t - t // 2) if mode == "SAME_UPPER" else (t - t // 2, t // 2) for t in total]
    else:
        halves = pads_of(node, x.shape[2:], kernel, strides, dilations)
    options = {"stride": strides, "padding": halves, "dilation": dilations, "output_padding": extra}
    return g.conv_transpose(x, w, node.optional(2), groups=groups, **options)


def pooled(
    node: OnnxNode, x: Tensor, kernel: Sequence[int]
) -> tuple[list[int], list[int], list[tuple[int, int]], list[tuple[int, int]]]:
    """Strides, dilations, the declared padding, and what rounding up adds behind it."""
    strides, dilations, pads = window_of(node, x, kernel)
    if not node.get("ceil_mode", 0):
        return strides, dilations, pads, [(0, 0)] * len(kernel)
    return strides, dilations, pads, rounded_up(x.shape[2:], kernel, strides, dilations, pads)


@operator("MaxPool")
def max_pool(node: OnnxNode) -> Any:
    """The greatest value of each window, and where it lies in the whole tensor."""
    x, kernel = node.tensor(0), node.get("kernel_shape")
    strides, dilations, pads, more = pooled(node, x, kernel)
    padding = both(pads, more)
    values = g.max_pool(x, kernel, stride=strides, padding=padding, dilation=dilations)
    if not node.wanted(1):
        return values
    places = max_places(x, kernel, strides, dilations, padding, bool(node.get("storage_order", 0)))
    base = np.arange(prod(x.shape[:2])) * prod(x.shape[2:])
    return values, g.add(places, g.as_tensor(base.reshape(*x.shape[:2], *[1] * len(kernel))))


@operator("AveragePool")
def average_pool(node: OnnxNode) -> Tensor:
    """The mean of each window; what is declared as padding counts where that is asked."""
    x, kernel = node.tensor(0), node.get("kernel_shape")
    strides, dilations, pads, more = pooled(node, x, kernel)
    return window_means(x, kernel, strides, dilations, pads, more, bool(node.get("count_include_pad", 0)))


@operator("LpPool")
def lp_pool(node: OnnxNode) -> Tensor:
    """The p-norm of each window."""
    x, kernel, p = node.tensor(0), node.get("kernel_shape"), node.get("p", 2)
    strides, dilations, pads, more = pooled(node, x, kernel)
    powers = g.power(g.absolute(x), g.full((), p, x.dtype))
    weights = g.full((x.shape[1], 1, *kernel), 1, x.dtype)
    total = g.conv(powers, weights, stride=strides, dilation=dilations, groups=x.shape[1], padding=both(pads, more))
    return g.power(total, g.full((), 1.0 / p, x.dtype))


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: OnnxNode) -> Tensor:
    """Over all spatial dimensions."""
    x = node.tensor(0)
    axes = tuple(range(2, len(x.shape)))
    if node.kind == "GlobalMaxPool":
        return g.max(x, axes, keepdims=True)
    if node.kind == "GlobalAveragePool":
        return g.cast(g.mean(x, axes, keepdims=True), x.dtype)
    p = g.full((), node.get("p", 2), x.dtype)
    total = g.sum(g.power(g.absolute(x), p), axes, keepdims=True)
    return g.power(total, g.divide(g.full((), 1, x.dtype), p))


def _per_channel(value: Tensor, rank: int) -> Tensor:
    return g.unsqueeze(value, tuple(range(1, rank - 1)))


@operator("BatchNormalization")
def batch_norm(node: OnnxNode) -> Any:
    """With given statistics; in training mode with the batch's, and the running ones as further results."""
    x, scale, bias, mean, var = (node.tensor(k) for k in range(5))
    rank = len(x.shape)
    if not node.get("spatial", 1):
        raise node.refuse("statistics of each place (spatial=0)", legal="those of each channel")
    results: tuple[Tensor, ...] = ()
    if node.get("training_mode", 0):
        axes = (0, *range(2, rank))
        momentum = node.get("momentum", 0.9)
        old, new = (g.full((), m, mean.dtype) for m in (momentum, 1 - momentum))
        now_mean, now_var = g.mean(x, axes), g.variance(x, axes)
        results = tuple(
            g.add(g.multiply(before, old), g.multiply(g.cast(now, before.dtype), new))
            for before, now in ((mean, now_mean), (var, now_var))
        )
        mean, var = now_mean, now_var
    epsilon = g.full((), node.get("epsilon", 1e-5), var.dtype)
    factor = g.divide(g.cast(scale, var.dtype), g.sqrt(g.add(var, epsilon)))
    shift = g.subtract(g.cast(bias, var.dtype), g.multiply(g.cast(mean, var.dtype), factor))
    out = g.add(g.multiply(g.cast(x, factor.dtype), _per_channel(factor, rank)), _per_channel(shift, rank))
    out = g.cast(out, x.dtype)
    return (out, *results) if results else out


@operator("InstanceNormalization")
def instance_norm(node: OnnxNode) -> Tensor:
    """Each channel of each item by its own statistics."""
    return g.instance_norm(node.tensor(0), node.tensor(1), node.tensor(2), node.get("epsilon", 1e-5))


@operator("LayerNormalization")
def layer_norm(node: OnnxNode) -> Any:
    """Over the axes from one on; mean and inverse deviation as further results."""
    x, scale, bias = node.tensor(0), node.tensor(1), node.optional(2)
    axes = tuple(range(node.axis(x, -1), len(x.shape)))
    epsilon = node.get("epsilon", 1e-5)
    kept = x.shape[axes[0] :]
    fits = scale.shape == kept and (bias is None or bias.shape == kept)
    if fits and not node.wanted(1) and not node.wanted(2) and x.dtype.kind == "f":
        return g.layer_norm(x, scale, bias, axis=axes, epsilon=epsilon)
    wide = g.cast(x, np.float32) if x.dtype.itemsize < 4 else x
    mean = g.mean(wide, axes, keepdims=True)
    inverse = g.divide(
        g.full((), 1, wide.dtype),
        g.sqrt(g.add(g.variance(wide, axes, keepdims=True), g.full((), epsilon, wide.dtype))),
    )
    out = g.multiply(g.cast(g.multiply(g.subtract(wide, mean), inverse), x.dtype), scale)
    return (out if bias is None else g.add(out, bias)), mean, inverse


@operator("LRN")
def local_response(node: OnnxNode) -> Tensor:
    """Each element by the squares of its neighbours along the channels."""
    x, size = node.tensor(0), node.get("size")
    squares = g.multiply(x, x)
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    wide = g.pad(squares, [(low, high) if k == 1 else (0, 0) for k in range(len(x.shape))])
    channels = x.shape[1]
    total = reduce(g.add, [wide[:, k : k + channels] for k in range(size)])
    base = g.add(g.multiply(total, node.get("alpha", 1e-4) / size), node.get("bias", 1.0))
    return g.divide(x, g.power(base, node.get("beta", 0.75)))


@operator("LpNormalization")
def lp_norm(node: OnnxNode) -> Tensor:
    """Divided by the norm along an axis; zeros stay."""
    return g.lp_norm(node.tensor(0), node.get("axis", -1), node.get("p", 2))


@operator("Dropout")
def dropout(node: OnnxNode) -> Any:
    """The input as it is; training with a ratio above zero leaves the numbers open, so it is refused."""
    x = node.tensor(0)
    training = node.has(2) and bool(node.known(2).reshape(-1)[0])
    ratio = float(node.known(1).reshape(-1)[0]) if node.has(1) else node.get("ratio", 0.5)
    if training and ratio:
        raise node.refuse("dropout in training mode has unspecified values", legal="ratio 0, or inference")
    if node.wanted(1):
        return x, g.full(x.shape, True, np.bool_)
    return x


Activation = Callable[[Tensor], Tensor]


_WITH_BETA = "Affine", "HardSigmoid", "ScaledTanh"
_WITH_ALPHA = *_WITH_BETA, "Elu", "LeakyRelu", "ThresholdedRelu"


def activation(node: OnnxNode, name: str, alpha: float | None, beta: float | None) -> Activation:
    """The function that ONNX names so, with its numbers."""
    known: dict[str, Activation] = {
        "Relu": g.relu,
        "Tanh": g.tanh,
        "Sigmoid": g.sigmoid,
        "Softplus": g.softplus,
        "Softsign": g.softsign,
        "Affine": lambda x: g.add(g.multiply(x, 1.0 if alpha is None else alpha), 0.0 if beta is None else beta),
        "HardSigmoid": lambda x: g.hard_sigmoid(x, 0.2 if alpha is None else alpha, 0.5 if beta is None else beta),
        "LeakyRelu": lambda x: g.leaky_relu(x, 0.01 if alpha is None else alpha),
        "Elu": lambda x: g.elu(x, 1.0 if alpha is None else alpha),
        "ScaledTanh": lambda x: g.multiply(
            1.0 if alpha is None else alpha, g.tanh(g.multiply(x, 1.0 if beta is None else beta))
        ),
        "ThresholdedRelu": lambda x: g.where(g.greater(x, 1.0 if alpha is None else alpha), x, 0.0),
    }
    if name not in known:
        raise node.refuse(f"activation {name!r}", legal=", ".join(known))
    return known[name]


@operator("RNN", "GRU", "LSTM")
def recurrent(node: OnnxNode) -> Any:
    """A recurrent layer, forward, reverse or both: one operation, or steps where it is not of the usual kind."""
    x, w, r = (node.tensor(k) for k in range(3))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[node.kind]
    by_batch = bool(node.get("layout", 0))
    x = g.transpose(x, (1, 0, 2)) if by_batch else x
    hidden, directions = r.shape[2], w.shape[0]
    bias = node.optional(3)
    lengths = node.known(4) if node.has(4) else None
    first = [node.optional(5), node.optional(6) if node.kind == "LSTM" else None]
    first = [g.transpose(s, (1, 0, 2)) if s is not None and by_batch else s for s in first]
    names = [name.decode() if isinstance(name, bytes) else name for name in node.get("activations", [])]
    per = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[node.kind]
    names = names or per * directions
    alphas, betas = list(node.get("activation_alpha", [])), list(node.get("activation_beta", []))
    made = [  # each takes the next numbers that it has use for
        activation(
            node,
            name,
            alphas.pop(0) if alphas and name in _WITH_ALPHA else None,
            betas.pop(0) if betas and name in _WITH_BETA else None,
        )
        for name in names
    ]
    states = [_starts(x, state, hidden, directions) for state in first[: 1 + (node.kind == "LSTM")]]
    usual = lengths is None and not node.has(7) and x.type.box.size and x.dtype.str[1:] in TYPES
    if usual and (cell := _one_cell(node, names, per * directions)):
        biases = [None, None] if bias is None else [bias[:, : gates * hidden], bias[:, gates * hidden :]]
        weights = [_in_order(node, each, hidden) for each in (w, r, *biases)]
        starts = list(zip(*states, strict=True))
        ways = "both" if directions == 2 else node.text("direction", "forward")
        out, ends = layer(cell, x, list(zip(*weights, strict=True)), starts, ways)
        y, *last = g.transpose(out, (0, 2, 1, 3)), *map(g.stack, ends)
    else:
        y, *last = _unrolled(node, x, w, r, bias, states, made, lengths)
    if by_batch:
        y, *last = g.transpose(y, (2, 0, 1, 3)), *(g.transpose(each, (1, 0, 2)) for each in last)
    return (y, *last)


def _starts(x: Tensor, state: Tensor | None, hidden: int, directions: int) -> list[Tensor]:
    """The state before the first step, for each direction."""
    zero = g.full((x.shape[1], hidden), 0, x.dtype)
    return [zero if state is None else g.select(state, 0, d) for d in range(directions)]


def _unrolled(
    node: OnnxNode,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    states: Sequence[Sequence[Tensor]],
    functions: Sequence[Activation],
    lengths: Any,
) -> list[Tensor]:
    """All states, [time, directions, batch, hidden], and the last ones of each kind, one step after the other."""
    steps, hidden, directions = x.shape[0], r.shape[2], w.shape[0]
    gates, per = r.shape[1] // hidden, len(functions) // directions
    outputs, last = [], [list[Tensor]() for _ in states]
    for d in range(directions):
        backward = node.text("direction", "forward") == "reverse" or d == 1
        h, c = states[0][d], states[-1][d]
        zero = g.full(h.shape, 0, x.dtype)
        wb = rb = None
        if bias is not None:
            both = g.select(bias, 0, d)
            wb, rb = _biases(node, both[: gates * hidden], both[gates * hidden :], hidden)
        peephole = g.select(node.tensor(7), 0, d) if node.kind == "LSTM" and node.has(7) else None
        own = functions[d * per : (d + 1) * per]
        wt, rt = g.transpose(g.select(w, 0, d)), g.transpose(g.select(r, 0, d))
        inputs = g.matmul(x, wt) if wb is None else g.add(g.matmul(x, wt), wb)
        found: list[Tensor] = [zero] * steps
        for step in range(steps - 1, -1, -1) if backward else range(steps):
            pre = g.select(inputs, 0, step)
            new_h, new_c = _CELLS[node.kind](node, pre, h, c, rt, rb, own, peephole, hidden)
            if lengths is not None and (lengths <= step).any():
                alive = g.as_tensor((lengths > step).reshape(-1, 1))
                found[step] = g.where(alive, new_h, zero)
                new_h, new_c = g.where(alive, new_h, h), g.where(alive, new_c, c)
            else:
                found[step] = new_h
            h, c = new_h, new_c
        outputs.append(g.stack(found))
        for end, each in zip(last, (h, c), strict=False):
            end.append(each)
    return [g.stack(outputs, 1), *map(g.stack, last)]


def _one_cell(node: OnnxNode, names: list[str], usual: list[str]) -> str:
    """The cell that computes a layer as one operation; empty where it has functions, or an order, of its own."""
    if node.get("clip") is not None or node.get("input_forget", 0):
        return ""
    if node.kind == "RNN":
        return names[0].lower() if set(names) in ({"Tanh"}, {"Relu"}) else ""
    early = node.kind == "GRU" and not node.get("linear_before_reset", 0)
    return "" if names != usual else "early_gru" if early else node.kind.lower()


def _in_order(node: OnnxNode, x: Tensor | None, hidden: int) -> list[Tensor | None]:
    """What each direction has of weights or biases, gate after gate in the order of `recurrence`."""
    if x is None:
        return [None] * node.tensor(2).shape[0]
    order = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}.get(node.kind, (0,))
    each = [g.select(x, 0, d) for d in range(x.shape[0])]
    return [g.concat([own[k * hidden : (k + 1) * hidden] for k in order], 0) for own in each]


def _clipped(node: OnnxNode, x: Tensor) -> Tensor:
    limit = node.get("clip")
    return x if limit is None else g.clip(x, -limit, limit)


def _biases(node: OnnxNode, wb: Tensor, rb: Tensor, hidden: int) -> tuple[Tensor, Tensor | None]:
    """What is added once for all steps, and what a gate multiplies together with its product, if it does."""
    if node.kind != "GRU" or not node.get("linear_before_reset", 0):
        return g.add(wb, rb), None
    early = 2 * hidden
    return g.concat([g.add(wb[:early], rb[:early]), wb[early:]], 0), rb[early:]


def _part(x: Tensor, k: int, hidden: int) -> Tensor:
    """What one gate has of a product for all gates, read where it lies."""
    return x[..., k * hidden : (k + 1) * hidden]


def _rnn(node: OnnxNode, pre: Tensor, h: Tensor, c: Tensor, rt: Tensor, rb: Any, f: Any, _: Any, hidden: int) -> Any:
    return f[0](_clipped(node, g.add(pre, g.matmul(h, rt)))), c


def _gru(node: OnnxNode, pre: Tensor, h: Tensor, c: Tensor, rt: Tensor, rb: Any, f: Any, _: Any, hidden: int) -> Any:
    linear = node.get("linear_before_reset", 0)
    product = g.matmul(h, rt if linear else rt[:, : 2 * hidden])
    z, r = (f[0](_clipped(node, g.add(_part(pre, k, hidden), _part(product, k, hidden)))) for k in range(2))
    if linear:
        inner = _part(product, 2, hidden)
        inner = g.multiply(r, inner if rb is None else g.add(inner, rb))
    else:
        inner = g.matmul(g.multiply(r, h), _part(rt, 2, hidden))
    n = f[1](_clipped(node, g.add(_part(pre, 2, hidden), inner)))
    one = g.full((), 1, h.dtype)
    return g.add(g.multiply(g.subtract(one, z), n), g.multiply(z, h)), c


def _lstm(node: OnnxNode, pre: Tensor, h: Tensor, c: Tensor, rt: Tensor, rb: Any, f: Any, p: Any, hidden: int) -> Any:
    total = g.add(pre, g.matmul(h, rt))
    i, o, forget, cell = (_part(total, k, hidden) for k in range(4))
    if p is not None:
        i = g.add(i, g.multiply(p[:hidden], c))
        forget = g.add(forget, g.multiply(p[2 * hidden :], c))
    i = f[0](_clipped(node, i))
    kept = g.subtract(g.full((), 1, c.dtype), i) if node.get("input_forget", 0) else f[0](_clipped(node, forget))
    new_c = g.add(g.multiply(kept, c), g.multiply(i, f[1](_clipped(node, cell))))
    if p is not None:
        o = g.add(o, g.multiply(p[hidden : 2 * hidden], new_c))
    return g.multiply(f[0](_clipped(node, o)), f[2](new_c)), new_c


_CELLS: dict[str, Callable[..., Any]] = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}
