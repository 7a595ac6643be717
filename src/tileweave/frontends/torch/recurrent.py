"""ATen's recurrent layers, of any number of layers, forward or both ways: one operation for all steps of each."""

from __future__ import annotations

from collections.abc import Sequence

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.torch.call import AtenCall, aten
from tileweave.frontends.values import tensor
from tileweave.graph import Tensor
from tileweave.graph.nn.recurrent import Weights, layer, lstm_steps
from tileweave.graph.ops.grouped.recurrence import WAYS


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
    for number in range(0, call.get("num_layers") * ways, ways):
        own = range(number, number + ways)
        weights = [held[k * count : (k + 1) * count] for k in own]
        starts = [[g.select(state, 0, k) for state in states] for k in own]
        x, last = _layer(kind.removeprefix("rnn_"), x, weights, bool(call.get("has_biases")), starts)
        for each, end in zip(ends, last, strict=True):
            each += end
    return (g.swapaxes(x, 0, 1) if by_batch else x, *(g.stack(each) for each in ends))


def _layer(
    cell: str, x: Tensor, held: Sequence[Sequence[Tensor]], biased: bool, starts: Sequence[Sequence[Tensor]]
) -> tuple[Tensor, list[list[Tensor]]]:
    """All states, [time, batch, ways * state], and of each start what it has become, for each way."""
    ways = "both" if len(held) == 2 else "forward"
    weights: list[Weights] = [(w, u, more[0] if biased else None, more[1] if biased else None) for w, u, *more in held]
    if len(held[0]) == 2 + 2 * biased:
        states, ends = layer(cell, x, weights, starts, ways)
        return g.reshape(states, (*states.shape[:2], -1)), ends
    made = [
        lstm_steps(x, *own, h, c, reverse, down=each[-1])
        for own, (h, c), reverse, each in zip(weights, starts, WAYS[ways], held, strict=True)
    ]
    return g.concat([states for states, *_ in made], 2), [list(end) for end in list(zip(*made, strict=True))[1:]]
