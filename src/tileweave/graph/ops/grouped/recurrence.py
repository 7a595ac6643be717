"""All steps of a recurrent layer as one operation: each step multiplies the state with weights that stay the same.

The products of the inputs are formed before, of all steps at once. A layer that goes both ways is one operation too:
the ways know nothing of each other, so they can run at once. A shard is some rows of the batch, each with all of its
steps and the whole state.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.assemble import stack
from tileweave.graph.ir.forms import Form
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType
from tileweave.graph.ir.select import concat, full, permute, select, slice_, unsqueeze
from tileweave.graph.ops.along import partly_whole
from tileweave.graph.ops.contract import einsum, matmul
from tileweave.graph.ops.elementwise import add, cast, greater, multiply, sigmoid, sigmoid_of, subtract, tanh
from tileweave.graph.ops.operators import Array, Arrays, Operator, register
from tileweave.graph.ops.reductions import sum as summed
from tileweave.space import Box

GATES = {"lstm": 4, "gru": 3, "early_gru": 3, "tanh": 1, "relu": 1}
"""Cell -> its gates: input, forget, new, output; reset, update, new; the new state. The reset gate of a gru multiplies
the state's product, that of an early one the state before it."""
WAYS = {"forward": (False,), "reverse": (True,), "both": (False, True)}
"""Name -> whether time runs backwards, for each way that a layer goes."""
TYPES = ("f4", "f8")
"""Element types that a recurrence has."""
_WAY_OF = {"x": 2, "u": 0, "state": 0, "inner": 0, "bias": 0}
"""Input -> its dimension of ways."""


def recurrence(
    cell: str, x: Tensor, u: Tensor, state: Tensor, *others: Tensor, ways: str = "forward"
) -> tuple[Tensor, Tensor | None]:
    """(all states, all inner states of an lstm), each [time, batch, ways, hidden].

    Args:
        cell: a key of `GATES`.
        x: [time, batch, ways, gates * hidden], what the inputs bring to each gate, biases included; FP32 or FP64.
        u: [ways, gates * hidden, hidden].
        state: [ways, batch, hidden], before the first step.
        others: of an lstm the inner state, as `state`; of a gru what is added to the state's product for the new gate,
            [ways, hidden].
        ways: a key of `WAYS`; the states of each stand where their inputs do.

    Raises:
        GraphError: shapes or types do not fit.
    """
    steps, batch, count = x.shape[:3] if len(x.shape) == 4 else (0, 0, 0)
    hidden = u.shape[-1] if u.shape else 0
    inputs = tuple(zip(_names(cell), (x, u, state, *others), strict=True))
    kind = TensorType((1 + (cell == "lstm"), steps, batch, count, hidden), x.dtype)
    by_batch = {"x": (None, 0, None, None), "state": (None, 0, None), "inner": (None, 0, None)}
    reads = tuple(
        (own, partly_whole(by_batch.get(own, (None,) * len(tensor.shape)), tensor.shape, 1)) for own, tensor in inputs
    )
    made = (("out", partly_whole((None, None, 0, None, None), kind.shape, 1)),)
    costs = (("flops", 2.0 * steps * count * GATES[cell] * hidden * hidden),)
    parameters = (("cell", cell), ("ways", ways))
    signature = Signature(("batch",), reads, made, costs=costs)
    operation = Operation("recurrence", Box.of((batch,)), inputs, (("out", kind),), parameters, signature)
    if problems := list(_fits(operation)):
        types = {own: tensor.type for own, tensor in inputs}
        raise GraphError(f"recurrence({cell!r}, x, u, state)", problems[0], inputs=types)
    out = Tensor(operation)
    return select(out, 0, 0), select(out, 0, 1) if cell == "lstm" else None


def _names(cell: str) -> tuple[str, ...]:
    more = {"lstm": ("inner",), "gru": ("bias",)}
    return ("x", "u", "state", *more.get(cell, ()))


def _fits(operation: Operation) -> Iterator[str]:
    """What is wrong with the inputs."""
    cell, given = operation.parameter("cell"), {own: tensor.type for own, tensor in operation.inputs}
    count = len(WAYS[operation.parameter("ways")])
    if tuple(given) != _names(cell):
        yield f"the inputs are named {list(given)}, not {list(_names(cell))}"
        return
    x, u = given["x"], given["u"]
    if len({kind.dtype for kind in given.values()}) > 1 or x.dtype.str[1:] not in TYPES:
        yield f"the types are {', '.join(kind.dtype.name for kind in given.values())}, not one of FP32 or FP64"
    if len(u.shape) != 3 or u.shape[0] != count or u.shape[1] != GATES[cell] * u.shape[2]:
        yield f"u has shape {u.shape}, not [{count}, {GATES[cell]} * hidden, hidden]"
        return
    if len(x.shape) != 4 or x.shape[2:] != u.shape[:2]:
        yield f"x has shape {x.shape}, not [time, batch, {count}, {u.shape[1]}]"
        return
    row = count, x.shape[1], u.shape[2]
    expected = {"state": row, "inner": row, "bias": (count, u.shape[2])}
    for own, kind in given.items():
        if own in expected and kind.shape != expected[own]:
            yield f"{own} has shape {kind.shape}, not {expected[own]}"


# ---- what it means --------------------------------------------------------------------------------------------------


def _order(steps: int, reverse: bool) -> range:
    return range(steps)[::-1] if reverse else range(steps)


def _block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    kind, cell = operation.output_types["out"], operation.parameter("cell")
    batch = inputs["x"].shape[1]
    out = np.empty((*kind.shape[:2], batch, *kind.shape[3:]), kind.dtype)
    for way, reverse in enumerate(WAYS[operation.parameter("ways")]):
        own = {name: np.take(array, way, _WAY_OF[name]) for name, array in inputs.items()}
        _steps(cell, reverse, own, out[..., way, :])
    return {"out": out}


def _steps(cell: str, reverse: bool, inputs: Mapping[str, Array], out: Array) -> None:
    """All steps of one way."""
    x, u, state, inner = inputs["x"], inputs["u"].T, inputs["state"], inputs.get("inner")
    for t in _order(x.shape[0], reverse):
        product = state @ u
        if cell == "early_gru":
            reset, update, new = np.split(x[t], 3, -1)
            reset, update = (
                sigmoid_of(part + more)
                for part, more in zip((reset, update), np.split(product, 3, -1)[:2], strict=True)
            )
            new = np.tanh(new + (reset * state) @ np.split(u, 3, -1)[2])
            state = (1 - update) * new + update * state
        elif cell == "lstm":
            enter, forget, new, leave = np.split(x[t] + product, 4, -1)
            out[1, t] = inner = sigmoid_of(forget) * inner + sigmoid_of(enter) * np.tanh(new)
            state = sigmoid_of(leave) * np.tanh(inner)
        elif cell == "gru":
            (reset, update, new), more = np.split(x[t], 3, -1), np.split(product, 3, -1)
            update = sigmoid_of(update + more[1])
            new = np.tanh(new + sigmoid_of(reset + more[0]) * (more[2] + inputs["bias"]))
            state = (1 - update) * new + update * state
        else:
            total = x[t] + product
            state = np.tanh(total) if cell == "tanh" else np.maximum(total, 0)
        out[0, t] = state


# ---- its gradient ---------------------------------------------------------------------------------------------------


def _before(first: Tensor, states: Tensor, reverse: bool) -> Tensor:
    """What each step begins with."""
    steps = states.shape[0]
    kept = slice_(states, states.type.box.with_range(0, int(reverse), steps - 1 + reverse))
    return concat([kept, unsqueeze(first, 0)] if reverse else [unsqueeze(first, 0), kept], 0)


def _gates(x: Tensor, count: int) -> list[Tensor]:
    last, hidden = len(x.shape) - 1, x.shape[-1] // count
    return [slice_(x, x.type.box.with_range(last, k * hidden, (k + 1) * hidden)) for k in range(count)]


def _slope(y: Tensor) -> Tensor:
    """Of sigmoid, where it is y."""
    return multiply(y, subtract(1.0, y))


def _tanh_slope(y: Tensor) -> Tensor:
    return subtract(1.0, multiply(y, y))


def _gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """Each way by itself."""
    cell, found = operation.parameter("cell"), list[dict[str, Tensor]]()
    for way, reverse in enumerate(WAYS[operation.parameter("ways")]):
        own = {name: select(tensor, _WAY_OF[name], way) for name, tensor in operation.inputs}
        found.append(_way_back(cell, reverse, own, select(y, 3, way), select(dy, 3, way)))
    return {name: stack([each[name] for each in found], _WAY_OF[name]) for name, _ in operation.inputs}


def _way_back(cell: str, reverse: bool, given: Mapping[str, Tensor], y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    """Step by step against time; what a step multiplies with is formed of all steps at once."""
    x, u, first = (given[name] for name in ("x", "u", "state"))
    states = select(y, 0, 0)
    before = _before(first, states, reverse)
    product = matmul(before, permute(u, (1, 0)))
    if cell == "lstm":
        earlier = _before(given["inner"], select(y, 0, 1), reverse)
        back = _lstm_back(add(x, product), earlier, select(y, 0, 1))
    elif cell == "gru":
        back = _gru_back(x, product, given["bias"], before)
    elif cell == "early_gru":
        reset = sigmoid(add(_gates(x, 3)[0], _gates(product, 3)[0]))
        last, shown = slice_(u, u.type.box.with_range(0, 2 * u.shape[1], 3 * u.shape[1])), multiply(reset, before)
        back = _early_back(x, product, reset, before, matmul(shown, permute(last, (1, 0))), last)
    else:
        back = _plain_back(_tanh_slope(states) if cell == "tanh" else cast(greater(states, 0), states.dtype))
    d_state, d_inner = full(first.shape, 0.0, first.dtype), full(first.shape, 0.0, first.dtype)
    of_x: dict[int, Tensor] = {}
    of_product: dict[int, Tensor] = {}
    for t in _order(x.shape[0], not reverse):
        d_state = add(select(select(dy, 0, 0), 0, t), d_state)
        arrived = add(select(select(dy, 0, 1), 0, t), d_inner) if cell == "lstm" else d_inner
        of_x[t], of_product[t], kept, d_inner = back(t, d_state, arrived)
        d_state = matmul(of_product[t], u)
        d_state = d_state if kept is None else add(kept, d_state)
    dx = stack([of_x[t] for t in range(x.shape[0])])
    d_product = dx if cell != "gru" else stack([of_product[t] for t in range(x.shape[0])])
    found = {"x": dx, "u": einsum("tbg,tbh->gh", d_product, before), "state": d_state}
    if cell == "early_gru":
        *early, d_new = _gates(dx, 3)
        of_u = [einsum("tbg,tbh->gh", part, before) for part in early]
        found["u"] = concat([*of_u, einsum("tbg,tbh->gh", d_new, shown)], 0)
    if cell == "lstm":
        found["inner"] = d_inner
    if cell == "gru":
        found["bias"] = summed(_gates(d_product, 3)[2], (0, 1))
    return found


_Back = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor, "Tensor | None", Tensor]]
"""(step, gradient of its state, of its inner state) -> gradients of x, of the product, of the state before but for
what comes by the product, of the inner state before."""


def _lstm_back(pre: Tensor, earlier: Tensor, inner: Tensor) -> _Back:
    enter, forget, new, leave = (
        f(part) for f, part in zip((sigmoid, sigmoid, tanh, sigmoid), _gates(pre, 4), strict=True)
    )
    shown = tanh(inner)
    of_leave, of_inner = multiply(shown, _slope(leave)), multiply(leave, _tanh_slope(shown))
    parts = multiply(new, _slope(enter)), multiply(earlier, _slope(forget)), multiply(enter, _tanh_slope(new))

    def back(t: int, d_state: Tensor, d_inner: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        inner = add(d_inner, multiply(d_state, select(of_inner, 0, t)))
        gates = [multiply(inner, select(part, 0, t)) for part in parts]
        made = concat([*gates, multiply(d_state, select(of_leave, 0, t))], 1)
        return made, made, None, multiply(inner, select(forget, 0, t))

    return back


def _gru_back(x: Tensor, product: Tensor, bias: Tensor, before: Tensor) -> _Back:
    (x_reset, x_update, x_new), (reset, update, inner) = _gates(x, 3), _gates(product, 3)
    reset, update = sigmoid(add(x_reset, reset)), sigmoid(add(x_update, update))
    inner = add(inner, bias)
    new = tanh(add(x_new, multiply(reset, inner)))
    of_new = multiply(subtract(1.0, update), _tanh_slope(new))
    of_update, of_reset = multiply(subtract(before, new), _slope(update)), multiply(inner, _slope(reset))

    def back(t: int, d_state: Tensor, d_inner: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        d_new = multiply(d_state, select(of_new, 0, t))
        early = multiply(d_new, select(of_reset, 0, t)), multiply(d_state, select(of_update, 0, t))
        later = concat([*early, multiply(d_new, select(reset, 0, t))], 1)
        return concat([*early, d_new], 1), later, multiply(d_state, select(update, 0, t)), d_inner

    return back


def _early_back(x: Tensor, product: Tensor, reset: Tensor, before: Tensor, inner: Tensor, last: Tensor) -> _Back:
    _, x_update, x_new = _gates(x, 3)
    update, new = sigmoid(add(x_update, _gates(product, 3)[1])), tanh(add(x_new, inner))
    of_new = multiply(subtract(1.0, update), _tanh_slope(new))
    of_update, of_reset = multiply(subtract(before, new), _slope(update)), multiply(before, _slope(reset))

    def back(t: int, d_state: Tensor, d_inner: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        d_new, d_update = multiply(d_state, select(of_new, 0, t)), multiply(d_state, select(of_update, 0, t))
        d_shown = matmul(d_new, last)
        d_reset = multiply(d_shown, select(of_reset, 0, t))
        kept = add(multiply(d_state, select(update, 0, t)), multiply(d_shown, select(reset, 0, t)))
        later = concat([d_reset, d_update, full(d_new.shape, 0.0, d_new.dtype)], 1)
        return concat([d_reset, d_update, d_new], 1), later, kept, d_inner

    return back


def _plain_back(slope: Tensor) -> _Back:
    def back(t: int, d_state: Tensor, d_inner: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        made = multiply(d_state, select(slope, 0, t))
        return made, made, None, d_inner

    return back


def _cell(node: object, value: object) -> str:
    return "" if isinstance(value, str) and value in GATES else ", ".join(GATES)


def _ways(node: object, value: object) -> str:
    return "" if isinstance(value, str) and value in WAYS else ", ".join(WAYS)


register(Operator("recurrence", _block, Form(None, {"cell": _cell, "ways": _ways}, fits=_fits), _gradient))
