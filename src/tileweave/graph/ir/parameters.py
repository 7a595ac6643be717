"""What the inputs and parameters of each kind of selector and operator must be, before anything reads them.

What functions build holds; a document may hold anything. Operators that are not listed here (those of third parties)
may take any plain values: `tileweave.graph.ir.verify` sees what they do with them on one index point.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeGuard

import numpy as np

from tileweave.graph.ir.dtypes import is_floating
from tileweave.graph.ir.nodes import Operation, Selector
from tileweave.graph.ops.monoids import MONOIDS
from tileweave.graph.ops.operators import BINARY, UNARY
from tileweave.graph.ops.states import STATES, is_monoid

__all__ = ["ARITY", "OPERATORS", "SELECTORS", "Declared", "is_integer", "supported", "wrong_inputs", "wrong_parameters"]

Check = Callable[[Any, Any], str]
"""(node, value) -> "", or what would be legal where the value is not."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What a kind of node takes.

    Args:
        inputs: names in order; None for any number of inputs, one at least.
        parameters: name -> its check.
        optional: parameters that may be missing.
        fits: node -> what is wrong with it; asked when inputs and parameters are as declared.
    """

    inputs: tuple[str, ...] | None
    parameters: Mapping[str, Check] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    fits: Callable[[Any], Iterator[str]] = lambda node: iter(())


def supported(dtype: np.dtype[Any]) -> bool:
    """Whether tensors may have an element type: bool, integers, floats, in this machine's byte order."""
    return dtype.isnative and (dtype.kind in "biuf" or dtype.name == "bfloat16")


# ---------------------------------------------------------------------------------------------------------------------
# checks of one value


def is_integer(value: object, low: int | None = None, high: int | None = None) -> TypeGuard[int]:
    """Whether a value is a plain integer (a bool is none), ``low <= value < high``."""
    if type(value) is not int:
        return False
    return (low is None or value >= low) and (high is None or value < high)


def _are_integers(value: object, low: int | None = None, high: int | None = None) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(is_integer(item, low, high) for item in value)


def _integer(low: int | None = None, high: int | None = None) -> Check:
    legal = "an integer"
    if low is not None:
        legal = f"{legal}, {low} or more" if high is None else f"{legal}, {low} <= value < {high}"
    return lambda node, value: "" if is_integer(value, low, high) else legal


def _sizes(node: Operation, value: object) -> str:
    """Extents, steps or gaps of a window: one per spatial dimension of the first input."""
    rank = _rank(node) - 2
    good = _are_integers(value, 1) and len(value) == rank
    return "" if good else f"{rank} integers, 1 or more"


def _axis(node: Operation | Selector, value: object) -> str:
    rank = _rank(node)
    return "" if is_integer(value, 0, rank) else f"a dimension of the input, 0 <= axis < {rank}"


def _axes(node: Operation, value: object) -> str:
    rank = _rank(node)
    good = _are_integers(value, 0, rank) and len(value) > 0 and list(value) == sorted(set(value))
    return "" if good else f"ascending dimensions of the input, 0 <= axis < {rank}"


def _number(node: object, value: Any) -> str:
    return "" if type(value) in (int, float) and isfinite(value) else "a finite number"


def _element(node: Selector, value: Any) -> str:
    """A number that the selector's type holds."""
    dtype = node.out.dtype
    if dtype.kind == "b":
        good = type(value) is bool
    elif dtype.kind in "iu":
        good = type(value) in (bool, int) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    else:
        good = type(value) is float or (type(value) in (bool, int) and abs(value) < 1 << 1023)
    return "" if good else f"a number that {dtype.name} holds"


def _dtype(node: Operation, value: object) -> str:
    name = node.output_types["out"].dtype.name if "out" in node.output_types else ""
    return "" if type(value) is str and value == name else f"the result's element type, {name}"


def _given(node: Operation | Selector) -> dict[str, Any]:
    return dict(node.parameters)


def _rank(node: Operation | Selector) -> int:
    return len(node.inputs[0][1].shape)


# ---------------------------------------------------------------------------------------------------------------------
# selectors


def _matrix(node: Selector, value: Any) -> str:
    rows, columns = _rank(node), len(node.out.shape)
    good = isinstance(value, tuple) and len(value) == rows
    good = good and all(_are_integers(row) and len(row) == columns for row in value)
    if good:
        used = [k for row in value for k, c in enumerate(row) if c]
        good = len(set(used)) == len(used) and all(sum(c != 0 for c in row) < 2 for row in value)
    return "" if good else f"{rows} rows of {columns} integers, one coefficient at most per row and per column"


def _offset(node: Selector, value: object) -> str:
    good = _are_integers(value) and len(value) == _rank(node)
    return "" if good else f"{_rank(node)} integers"


def _as_many(node: Selector, count: int) -> Iterator[str]:
    """An assembled dimension has so many elements, and the other extents are those of every part."""
    dim = _given(node)["dim"]
    for name, part in node.inputs:
        if len(part.shape) != len(node.out.shape):
            yield f"input {name} has rank {len(part.shape)}, the result {len(node.out.shape)}"
        elif any(a != b for k, (a, b) in enumerate(zip(part.shape, node.out.shape, strict=True)) if k != dim):
            yield f"input {name} of shape {part.shape} does not fit the result {node.out.shape} along dimension {dim}"
    if dim >= len(node.out.shape) or node.out.shape[dim] != count:
        yield f"the parts make {count} elements of dimension {dim}, the result has shape {node.out.shape}"


def _extents(node: Selector) -> list[int]:
    dim = _given(node)["dim"]
    return [part.shape[dim] if dim < len(part.shape) else 0 for _, part in node.inputs]


def _concat(node: Selector) -> Iterator[str]:
    yield from _as_many(node, sum(_extents(node)))


def _interleave(node: Selector) -> Iterator[str]:
    yield from _as_many(node, sum(_extents(node)))
    if any(part.shape != node.inputs[0][1].shape for _, part in node.inputs):
        yield f"the parts have shapes {', '.join(str(part.shape) for _, part in node.inputs)}, which must be equal"


def _repeat(node: Selector) -> Iterator[str]:
    yield from _as_many(node, _extents(node)[0] * _given(node)["count"])


def _pad(node: Selector) -> Iterator[str]:
    given = _given(node)
    yield from _as_many(node, given["before"] + _extents(node)[0] + given["after"])
    if (given["mode"] == "constant") != ("value" in given):
        yield f"mode {given['mode']!r} {'needs a' if given['mode'] == 'constant' else 'takes no'} value"
    if given["mode"] == "reflect" and not _extents(node)[0]:
        yield "there is nothing to reflect"


def _mode(node: object, value: object) -> str:
    return "" if type(value) is str and value in ("constant", "reflect") else "constant, reflect"


_VIEW = Declared(("x",), {"matrix": _matrix, "offset": _offset})

SELECTORS: dict[str, Declared] = {
    **dict.fromkeys(("permute", "flip", "select", "slice", "squeeze", "unsqueeze", "broadcast", "view"), _VIEW),
    "concat": Declared(None, {"dim": _axis}, fits=_concat),
    "interleave": Declared(None, {"dim": _axis}, fits=_interleave),
    "repeat": Declared(("x",), {"dim": _axis, "count": _integer(0)}, fits=_repeat),
    "pad": Declared(
        ("x",),
        {"dim": _axis, "before": _integer(0), "after": _integer(0), "mode": _mode, "value": _element},
        ("value",),
        _pad,
    ),
    "full": Declared((), {"value": _element}),
}
"""Kind of selector -> what it takes."""


# ---------------------------------------------------------------------------------------------------------------------
# operators


def _equation(node: Operation, value: object) -> str:
    """One term per factor with a letter per dimension, and a result made of letters that occur, each once."""
    factors = [x for name, x in node.inputs if name != "b"]
    if type(value) is str and value.count("->") == 1:
        left, out = value.split("->")
        terms = left.split(",")
        letters = "".join(terms)
        plain = all(c.isascii() and c.isalpha() for c in letters + out)
        fits = [len(term) for term in terms] == [len(x.shape) for x in factors]
        if plain and fits and len(set(out)) == len(out) and set(out) <= set(letters):
            return ""
    return f"{len(factors)} terms with a letter for each dimension, such as ij,jk->ik"


def _program(node: Operation, value: object) -> str:
    """Steps (operator, arguments, element type); see `tileweave.graph.ops.fused`."""
    legal = "steps (elementwise operator, arguments, element type), the last of the result's type"
    if not isinstance(value, tuple) or not value:
        return legal
    for k, step in enumerate(value):
        if not (isinstance(step, tuple) and len(step) == 3):
            return legal
        name, args, dtype = step
        known = type(name) is str and name in ARITY and _are_integers(args, -k, len(node.inputs))
        if not known or len(args) != ARITY[name] or type(dtype) is not str or dtype not in _DTYPES:
            return legal
    return "" if not _dtype(node, value[-1][2]) else legal


def _monoid(node: Operation, value: object) -> str:
    return "" if type(value) is str and is_monoid(value) else f"a monoid: {', '.join([*MONOIDS, *STATES])}"


def _index_shape(node: Operation, value: Any) -> str:
    index = node.index
    good = _are_integers(value, 0) and len(value) == index.rank
    good = good and all(a >= 0 and b <= n for a, b, n in zip(index.start, index.stop, value, strict=True))
    return "" if good else f"the extents of the whole tensor, around {index}"


def _window_fits(node: Operation) -> Iterator[str]:
    """The windows are those that the signature's projection names, so that no view leaves its array."""
    given = _given(node)
    x = node.inputs[0][1]
    kernel = given.get("window", node.inputs[1][1].shape[2:] if len(node.inputs) > 1 else ())
    if len(kernel) != len(x.shape) - 2 or 0 in kernel:
        yield f"a window of shape {tuple(kernel)} does not fit an input of shape {x.shape}"
        return
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, given["dilation"], strict=True)]
    if any(span > n > 0 for span, n in zip(spans, x.shape[2:], strict=True)):
        yield f"windows of {tuple(spans)} elements do not fit an input of shape {x.shape}"


def _conv_fits(node: Operation) -> Iterator[str]:
    given = _given(node)
    x, w = (t for _, t in node.inputs)
    if len(w.shape) != len(x.shape):
        yield f"x has rank {len(x.shape)}, w rank {len(w.shape)}"
        return
    yield from _window_fits(node)
    if given["groups"] > 1:
        own = w.shape[1] == given["channels"] and w.shape[0] % given["filters"] == 0
        if not own or x.shape[1] * given["filters"] != w.shape[0] * given["channels"]:
            yield f"{x.shape[1]} channels and filters of shape {w.shape} do not fall into groups as declared"
    elif x.shape[1] != w.shape[1]:
        yield f"x has {x.shape[1]} channels, w {w.shape[1]}"


def _arange_fits(node: Operation) -> Iterator[str]:
    if node.index.rank != 1:
        yield f"the index has rank {node.index.rank}, not 1"


def _integers_fit(node: Operation) -> Iterator[str]:
    given, dtype = _given(node), node.outputs[0][1].dtype
    if dtype.kind not in "iu":
        yield f"the result is {dtype.name}, not an integer type"
    elif given["low"] < np.iinfo(dtype).min or given["low"] + given["span"] - 1 > np.iinfo(dtype).max:
        yield f"{given['low']}..{given['low'] + given['span'] - 1} does not fit {dtype.name}"


def _floats_fit(node: Operation) -> Iterator[str]:
    if not is_floating(node.outputs[0][1].dtype):
        yield f"the result is {node.outputs[0][1].dtype.name}, not a floating type"


ARITY: dict[str, int] = {
    **dict.fromkeys(UNARY, 1),
    **dict.fromkeys(BINARY, 2),
    **dict.fromkeys(("relu", "sigmoid", "cast"), 1),
    "where": 3,
}
"""Elementwise operator -> number of inputs."""
_DTYPES = frozenset(("bool", "bfloat16", *(f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)),
                     "float16", "float32", "float64", "longdouble", "float128"))  # fmt: skip

_SEED = {"seed": _integer(0, 1 << 64), "shape": _index_shape}
_CONV = {"stride": _sizes, "dilation": _sizes, **dict.fromkeys(("filters", "channels", "groups"), _integer(1))}
_EQUATION = {"equation": _equation}


OPERATORS: dict[str, Declared] = {
    **{name: Declared(("x",) if n == 1 else tuple(f"x{k}" for k in range(n))) for name, n in ARITY.items()},
    "cast": Declared(("x",), {"dtype": _dtype}),
    "fused": Declared(None, {"program": _program}),
    **dict.fromkeys(("sum", "product", "max", "min"), Declared(("x",), {"axes": _axes})),
    **dict.fromkeys(("einsum", "matmul"), Declared(None, _EQUATION)),
    **dict.fromkeys(("linear", "linear_relu"), Declared(("x", "w", "b"), _EQUATION)),
    "conv": Declared(("x", "w"), _CONV, fits=_conv_fits),
    "max_pool": Declared(("x",), dict.fromkeys(("window", "stride", "dilation"), _sizes), fits=_window_fits),
    **dict.fromkeys(("argmax", "argmin", "max_and_sum", "moments"), Declared(("x",), {"axis": _axis})),
    "combine": Declared(None, {"monoid": _monoid}),
    "erf": Declared(("x",)),
    "arange": Declared((), {"start": _number, "step": _number}, fits=_arange_fits),
    **dict.fromkeys(("uniform", "normal"), Declared((), _SEED, fits=_floats_fit)),
    "random_integers": Declared(
        (), _SEED | {"low": _integer(), "span": _integer(1, (1 << 64) + 1)}, fits=_integers_fit
    ),
}
"""Operator -> what it takes; operators that are missing here may take anything."""


def wrong_inputs(declared: Declared, node: Operation | Selector, late: tuple[str, ...] = ()) -> Iterator[str]:
    """What is wrong with the names of a node's inputs; a partial result does without those in `late`."""
    given = tuple(name for name, _ in node.inputs)
    if declared.inputs is None:
        if not given:
            yield "there is no input"
    elif given not in (declared.inputs, tuple(name for name in declared.inputs if name not in late)):
        yield f"the inputs are named {list(given)}, not {list(declared.inputs)}"


def wrong_parameters(declared: Declared, node: Operation | Selector) -> Iterator[str]:
    """What is wrong with a node's parameters; its inputs are as declared."""
    names = [name for name, _ in node.parameters]
    given = _given(node)
    found = [f"parameter {name!r} is given twice" for name in sorted({n for n in names if names.count(n) > 1})]
    found += [f"there is no parameter {name!r}" for name in given if name not in declared.parameters]
    for name, check in declared.parameters.items():
        if name in given:
            if legal := check(node, given[name]):
                found.append(f"parameter {name} is {_short(given[name])}, not {legal}")
        elif name not in declared.optional:
            found.append(f"parameter {name} is missing")
    yield from found or declared.fits(node)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
