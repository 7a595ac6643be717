"""ATen's recurrent layers, of any number of layers, forward or both ways: one operation for all steps of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.torch.call import AtenCall, aten
from tileweave.frontends.values import tensor
from tileweave.graph import Tensor


@aten("rnn_tanh.input", "rnn_relu.input", "gru.input", "lstm.input")
def layers(call: AtenCall) -> tuple[Tensor, ...]:
    """All states of the last layer, then the last ones of each layer and way."""
    if call.get("train") and call.get("dropout"):
        raise GraphError(call.where, "dropout between layers", legal="evaluation mode")
    kind = call.where.split("aten.")[1].split(".")[0]
    x, by_batch, both = call.x(), call.get("batch_first"), call.get("bidirectional")
    x = g.swapaxes(x, 0, 1) if by_batch else x
    first = call.value(1) if kind == "lstm" else [call.value(1)]
    states = [tensor(state, call.where) for state in first]
    held = [tensor(each, call.where) for each in call.get("params")]
    ways = 1 + bool(both)
    count = len(held) // (call.get("num_layers") * ways)
    ends: list[list[Tensor]] = [[] for _ in states]
    for layer in range(call.get("num_layers")):
        made = []
        for way in range(ways):
            number = layer * ways + way
            weights = held[number * count : (number + 1) * count]
            start = [g.select(state, 0, number) for state in states]
            found, *last = _layer(kind, x, weights, bool(call.get("has_biases")), start, way == 1)
            made.append(found)
            for each, end in zip(ends, last, strict=True):
                each.append(end)
        x = g.concat(made, 2) if both else made[0]
    return (g.swapaxes(x, 0, 1) if by_batch else x, *(g.stack(each) for each in ends))


def _layer(
    kind: str, x: Tensor, weights: Sequence[Tensor], biased: bool, start: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, ...]:
    """(all states, the last state, of an lstm the last inner state) of one layer in one way."""
    w, u, *more = weights
    biases = more[:2] if biased else [None, None]
    if kind == "gru":
        made: tuple[Tensor, ...] = g.gru(x, w, u, *biases, state=start[0], reverse=reverse)
        return made
    bias = g.add(*biases) if biased else None
    if kind == "lstm":
        if len(more) > len(biases) * biased:
            return _projected(x, w, u, more[-1], bias, start, reverse)
        return g.lstm(x, w, u, bias, state=start[0], cell=start[1], reverse=reverse)
    function = kind.removeprefix("rnn_")
    return g.rnn(x, w, u, bias, state=start[0], reverse=reverse, function=function)


def _projected(
    x: Tensor, w: Tensor, u: Tensor, down: Tensor, bias: Any, start: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, ...]:
    """A long short-term memory whose states are products with further weights."""
    (h, c), hidden = start, down.shape[1]
    given = g.matmul(x, g.transpose(w))
    given = given if bias is None else g.add(given, bias)
    out: dict[int, Tensor] = {}
    for t in range(x.shape[0])[::-1] if reverse else range(x.shape[0]):
        gates = g.add(g.select(given, 0, t), g.matmul(h, g.transpose(u)))
        enter, forget, new, leave = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
        c = g.add(g.multiply(g.sigmoid(forget), c), g.multiply(g.sigmoid(enter), g.tanh(new)))
        h = out[t] = g.matmul(g.multiply(g.sigmoid(leave), g.tanh(c)), g.transpose(down))
    return g.stack([out[t] for t in range(x.shape[0])]), h, c
