"""Recurrent layers, step after step: an LSTM, a GRU and a plain one. A step is two products and a few functions.

Rows of weights stand gate after gate, in the order that each function names.
"""

from __future__ import annotations

from typing import Any

from tileweave.errors import GraphError
from tileweave.graph.ir.assemble import stack
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import concat, full, permute, select, slice_
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.contract import matmul
from tileweave.graph.ops.elementwise import add, multiply, relu, sigmoid, subtract, tanh
from tileweave.graph.ops.grouped.recurrence import TYPES, recurrence
from tileweave.graph.ops.reductions import floating


def _checked(name: str, gates: int, x: Any, w: Any, u: Any) -> tuple[Tensor, Tensor, Tensor, int]:
    """x, the weights of its product, transposed, those of the state's, and the width of the state."""
    x, w, u = floating(name, x), as_tensor(w, name), as_tensor(u, name)
    fits = len(x.shape) == 3 and len(w.shape) == len(u.shape) == 2 and u.shape[0] == w.shape[0] == gates * u.shape[1]
    if not fits or w.shape[1] != x.shape[2]:
        types = {"x": x.type, "w": w.type, "u": u.type}
        legal = f"x [time, batch, in], w [{gates} * hidden, in], u [{gates} * hidden, hidden]"
        raise GraphError(name, "x and the weights do not fit", inputs=types, legal=legal)
    return x, permute(w, (1, 0)), u, u.shape[1]


def _gate(x: Tensor, k: int, hidden: int) -> Tensor:
    return slice_(x, x.type.box.with_range(len(x.shape) - 1, k * hidden, (k + 1) * hidden))


def _biased(x: Tensor, bias: Any) -> Tensor:
    return x if bias is None else add(x, bias)


def _start(x: Tensor, hidden: int, state: Any) -> Tensor:
    return full((x.shape[1], hidden), 0.0, x.dtype) if state is None else as_tensor(state)


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
    x, w, u, hidden = _checked("lstm(x, w, u)", 4, x, w, u)
    h, c = _start(x, hidden, state), _start(x, hidden, cell)
    inputs = _biased(matmul(x, w), bias)
    if _is_one(inputs, u, h, c):
        states, cells = recurrence("lstm", inputs, u, h, c, reverse=reverse)
        return states, _last(states, reverse), _last(as_tensor(cells), reverse)
    u, out = permute(u, (1, 0)), []
    for t in _steps(x, reverse):
        gates = add(select(inputs, 0, t), matmul(h, u))
        enter, forget, new, leave = (_gate(gates, k, hidden) for k in range(4))
        c = add(multiply(sigmoid(forget), c), multiply(sigmoid(enter), tanh(new)))
        h = multiply(sigmoid(leave), tanh(c))
        out.append(h)
    return _stacked(x, hidden, out, reverse), h, c


def _is_one(x: Tensor, *others: Tensor) -> bool:
    """Whether all steps are one operation: there are some, and elements have the type of one that has them."""
    return bool(x.type.box.size) and x.dtype.str[1:] in TYPES and all(each.dtype == x.dtype for each in others)


def _last(states: Tensor, reverse: bool) -> Tensor:
    return select(states, 0, 0 if reverse else states.shape[0] - 1)


def _steps(x: Tensor, reverse: bool) -> range:
    return range(x.shape[0])[::-1] if reverse else range(x.shape[0])


def _stacked(x: Tensor, hidden: int, out: list[Tensor], reverse: bool) -> Tensor:
    if not out:
        return full((0, x.shape[1], hidden), 0.0, x.dtype)
    return stack(out[::-1] if reverse else out, 0)


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
    x, w, u, hidden = _checked("gru(x, w, u)", 3, x, w, u)
    h = _start(x, hidden, state)
    if reset_after:
        early = None if bias_state is None else as_tensor(bias_state)
        late = full((hidden,), 0.0, x.dtype) if early is None else _gate(early, 2, hidden)
        both = bias if early is None else _early(early, bias, hidden)
        inputs = _biased(matmul(x, w), both)
        if _is_one(inputs, u, h, late):
            states, _ = recurrence("gru", inputs, u, h, late, reverse=reverse)
            return states, _last(states, reverse)
    inputs, u, out = _biased(matmul(x, w), bias), permute(u, (1, 0)), []
    last = slice_(u, u.type.box.with_range(1, 2 * hidden, 3 * hidden))
    last_bias = None if bias_state is None else _gate(as_tensor(bias_state), 2, hidden)
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


def _early(bias_state: Tensor, bias: Any, hidden: int) -> Tensor:
    """What can be added to the inputs' product: all but what the reset gate multiplies."""
    zero = full((hidden,), 0.0, bias_state.dtype)
    return _biased(concat([_gate(bias_state, 0, 2 * hidden), zero], 0), bias)


@public()
def rnn(
    x: Any, w: Any, u: Any, bias: Any = None, *, state: Any = None, reverse: bool = False, function: Any = "tanh"
) -> tuple[Tensor, Tensor]:
    """(all states, the last state) of ``h = tanh(x @ w^T + h @ u^T + bias)``, or with relu."""
    x, w, u, hidden = _checked("rnn(x, w, u)", 1, x, w, u)
    functions = {"tanh": tanh, "relu": relu}
    if function not in functions:
        raise GraphError("rnn(x, w, u)", f"function {function!r}", legal="tanh, relu")
    h = _start(x, hidden, state)
    inputs = _biased(matmul(x, w), bias)
    if _is_one(inputs, u, h):
        states, _ = recurrence(str(function), inputs, u, h, reverse=reverse)
        return states, _last(states, reverse)
    u, out = permute(u, (1, 0)), []
    for t in _steps(x, reverse):
        h = functions[function](add(select(inputs, 0, t), matmul(h, u)))
        out.append(h)
    return _stacked(x, hidden, out, reverse), h
