"""Recurrent layers: an LSTM, a GRU and a plain one. All steps are one operation where elements are FP32 or FP64, else
one step follows the other: two products and a few functions.

Rows of weights stand gate after gate, in the order that each function names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tileweave.errors import GraphError
from tileweave.graph.ir.assemble import stack
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import concat, full, permute, select, slice_
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.along import reshape
from tileweave.graph.ops.contract import matmul
from tileweave.graph.ops.elementwise import add, multiply, relu, sigmoid, subtract, tanh
from tileweave.graph.ops.grouped.recurrence import TYPES, WAYS, recurrence
from tileweave.graph.ops.reductions import floating

Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""[gates * hidden, in], [gates * hidden, hidden], and what is added to the products of inputs and state, if it is."""


def _checked(name: str, gates: int, x: Any, w: Any, u: Any) -> tuple[Tensor, Tensor, Tensor]:
    """x and the weights of both products."""
    x, w, u = floating(name, x), as_tensor(w, name), as_tensor(u, name)
    fits = len(x.shape) == 3 and len(w.shape) == len(u.shape) == 2 and u.shape[0] == w.shape[0] == gates * u.shape[1]
    if not fits or w.shape[1] != x.shape[2]:
        types = {"x": x.type, "w": w.type, "u": u.type}
        legal = f"x [time, batch, in], w [{gates} * hidden, in], u [{gates} * hidden, hidden]"
        raise GraphError(name, "x and the weights do not fit", inputs=types, legal=legal)
    return x, w, u


def _gate(x: Tensor, k: int, hidden: int) -> Tensor:
    return slice_(x, x.type.box.with_range(len(x.shape) - 1, k * hidden, (k + 1) * hidden))


def _biased(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else add(x, bias)


def _known(x: Any) -> Tensor | None:
    return None if x is None else as_tensor(x)


def _start(x: Tensor, hidden: int, state: Any) -> Tensor:
    return full((x.shape[1], hidden), 0.0, x.dtype) if state is None else as_tensor(state)


def layer(
    cell: str, x: Tensor, weights: Sequence[Weights], starts: Sequence[Sequence[Tensor]], ways: str
) -> tuple[Tensor, list[list[Tensor]]]:
    """(all states, [time, batch, ways, hidden]; of each start, what it has become, for each way).

    Args:
        cell: a key of `recurrence.GATES`.
        x: [time, batch, in].
        weights: of each way.
        starts: of each way the state, and of an lstm the inner state, [batch, hidden].
        ways: a key of `recurrence.WAYS`.
    """
    if not _is_one(x, *(each for group in (*weights, *starts) for each in group)):
        whole = zip(weights, starts, WAYS[ways], strict=True)
        made = [_STEPS[cell](x, *own, *start, reverse) for own, start, reverse in whole]
        return stack([states for states, *_ in made], 2), [list(ends) for ends in list(zip(*made, strict=True))[1:]]
    given = [list(start) for start in starts]
    biases = [_known(bias) for _, _, bias, _ in weights]
    for way, (_, u, bias, late) in enumerate(weights):
        if cell == "gru":
            biases[way], later = _split(bias, late, u.shape[1], x)
            given[way].append(later)
        elif late is not None:
            biases[way] = _biased(late, bias)
    w, u = concat([own[0] for own in weights], 0), stack([own[1] for own in weights])
    added = [bias for bias in biases if bias is not None]
    inputs = _biased(matmul(x, permute(w, (1, 0))), concat(added, 0) if added else None)
    inputs = reshape(inputs, (*x.shape[:2], *u.shape[:2]))
    states, inner = recurrence(cell, inputs, u, *map(stack, zip(*given, strict=True)), ways=ways)
    kept = [each for each in (states, inner) if each is not None]
    return states, [
        [select(select(each, 2, way), 0, 0 if reverse else x.shape[0] - 1) for way, reverse in enumerate(WAYS[ways])]
        for each in kept
    ]


def _is_one(x: Tensor, *others: Tensor | None) -> bool:
    """Whether all steps are one operation: there are some, and elements have the type of one that has them."""
    return bool(x.type.box.size) and x.dtype.str[1:] in TYPES and all(t is None or t.dtype == x.dtype for t in others)


def _split(bias: Tensor | None, bias_state: Tensor | None, hidden: int, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """(what is added to the inputs' product of a gru, what its reset gate multiplies with the state's product)."""
    zero = full((hidden,), 0.0, x.dtype)
    if bias_state is None:
        return bias, zero
    return _biased(concat([_gate(bias_state, 0, 2 * hidden), zero], 0), bias), _gate(bias_state, 2, hidden)


def _one_way(cell: str, x: Tensor, weights: Weights, start: Sequence[Tensor], reverse: bool) -> tuple[Tensor, ...]:
    """All states, and of each start what it has become."""
    states, ends = layer(cell, x, [weights], [start], "reverse" if reverse else "forward")
    return select(states, 2, 0), *(end for (end,) in ends)


def _steps(x: Tensor, reverse: bool) -> range:
    return range(x.shape[0])[::-1] if reverse else range(x.shape[0])


def _stacked(x: Tensor, hidden: int, out: list[Tensor], reverse: bool) -> Tensor:
    if not out:
        return full((0, x.shape[1], hidden), 0.0, x.dtype)
    return stack(out[::-1] if reverse else out, 0)


@public()
def lstm(
    x: Any, w: Any, u: Any, bias: Any = None, *, state: Any = None, cell: Any = None, reverse: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """(all states, the last state, the last cell) of a long short-term memory; gates: input, forget, cell, output.

    Args:
        x: [time, batch, in].
        w: [4 * hidden, in].
        u: [4 * hidden, hidden].
        bias: [4 * hidden], the sum of both, or None.
        state: [batch, hidden], zeros when left out.
        cell: the same.
        reverse: whether time runs backwards; the states stand where their inputs do.
    """
    x, w, u = _checked("lstm(x, w, u)", 4, x, w, u)
    starts = [_start(x, u.shape[1], each) for each in (state, cell)]
    states, h, c = _one_way("lstm", x, (w, u, _known(bias), None), starts, reverse)
    return states, h, c


def lstm_steps(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    bias: Tensor | None,
    bias_state: Tensor | None,
    h: Tensor,
    c: Tensor,
    reverse: bool,
    down: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """What `lstm` gives, one step after the other.

    Args:
        x: as in `lstm`, and so are those that are not named here.
        w: weights of the inputs.
        u: weights of the state.
        bias: added to the inputs' product.
        bias_state: added to the state's.
        h: the first state.
        c: the first cell.
        reverse: whether time runs backwards.
        down: [state, hidden], the weights that make a state of what a cell shows; None: it is the state.
    """
    inputs = _biased(_biased(matmul(x, permute(w, (1, 0))), bias), bias_state)
    u, hidden, out = permute(u, (1, 0)), c.shape[1], []
    for t in _steps(x, reverse):
        gates = add(select(inputs, 0, t), matmul(h, u))
        enter, forget, new, leave = (_gate(gates, k, hidden) for k in range(4))
        c = add(multiply(sigmoid(forget), c), multiply(sigmoid(enter), tanh(new)))
        h = multiply(sigmoid(leave), tanh(c))
        h = h if down is None else matmul(h, permute(down, (1, 0)))
        out.append(h)
    return _stacked(x, h.shape[1], out, reverse), h, c


@public()
def gru(
    x: Any,
    w: Any,
    u: Any,
    bias: Any = None,
    bias_state: Any = None,
    *,
    state: Any = None,
    reverse: bool = False,
    reset_after: bool = True,
) -> tuple[Tensor, Tensor]:
    """(all states, the last state) of a gated recurrent unit; gates: reset, update, new.

    Args:
        x: [time, batch, in].
        w: [3 * hidden, in].
        u: [3 * hidden, hidden].
        bias: [3 * hidden], added to the inputs' product, or None.
        bias_state: the same, added to the state's product.
        state: [batch, hidden], zeros when left out.
        reverse: as in `lstm`.
        reset_after: whether the reset gate multiplies the state's product, or the state before it.
    """
    x, w, u = _checked("gru(x, w, u)", 3, x, w, u)
    h, weights = _start(x, u.shape[1], state), (w, u, _known(bias), _known(bias_state))
    states, h = _one_way("gru" if reset_after else "early_gru", x, weights, [h], reverse)
    return states, h


def _gru_steps(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    bias: Tensor | None,
    bias_state: Tensor | None,
    h: Tensor,
    reverse: bool,
    reset_after: bool = True,
) -> tuple[Tensor, ...]:
    hidden = u.shape[1]
    inputs, u, out = _biased(matmul(x, permute(w, (1, 0))), bias), permute(u, (1, 0)), list[Tensor]()
    last = slice_(u, u.type.box.with_range(1, 2 * hidden, 3 * hidden))
    last_bias = None if bias_state is None else _gate(bias_state, 2, hidden)
    for t in _steps(x, reverse):
        mine, theirs = select(inputs, 0, t), _biased(matmul(h, u), bias_state)
        reset, update = (sigmoid(add(_gate(mine, k, hidden), _gate(theirs, k, hidden))) for k in range(2))
        if reset_after:
            inner = multiply(reset, _gate(theirs, 2, hidden))
        else:
            inner = _biased(matmul(multiply(reset, h), last), last_bias)
        new = tanh(add(_gate(mine, 2, hidden), inner))
        h = add(multiply(subtract(1.0, update), new), multiply(update, h))
        out.append(h)
    return _stacked(x, hidden, out, reverse), h


@public()
def rnn(
    x: Any, w: Any, u: Any, bias: Any = None, *, state: Any = None, reverse: bool = False, function: Any = "tanh"
) -> tuple[Tensor, Tensor]:
    """(all states, the last state) of ``h = tanh(x @ w^T + h @ u^T + bias)``, or with relu."""
    x, w, u = _checked("rnn(x, w, u)", 1, x, w, u)
    if function not in _FUNCTIONS:
        raise GraphError("rnn(x, w, u)", f"function {function!r}", legal="tanh, relu")
    start = [_start(x, u.shape[1], state)]
    states, h = _one_way(str(function), x, (w, u, _known(bias), None), start, reverse)
    return states, h


_FUNCTIONS = {"tanh": tanh, "relu": relu}


def _rnn_steps(function: str) -> Callable[..., tuple[Tensor, ...]]:
    def steps(
        x: Tensor, w: Tensor, u: Tensor, bias: Tensor | None, bias_state: Tensor | None, h: Tensor, reverse: bool
    ) -> tuple[Tensor, ...]:
        inputs = _biased(_biased(matmul(x, permute(w, (1, 0))), bias), bias_state)
        u, out = permute(u, (1, 0)), list[Tensor]()
        for t in _steps(x, reverse):
            h = _FUNCTIONS[function](add(select(inputs, 0, t), matmul(h, u)))
            out.append(h)
        return _stacked(x, h.shape[1], out, reverse), h

    return steps


_STEPS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "lstm": lstm_steps,
    "gru": _gru_steps,
    "early_gru": partial(_gru_steps, reset_after=False),
    **{name: _rnn_steps(name) for name in _FUNCTIONS},
}
