"""What the inputs and parameters of selectors and operators must be, before anything reads them.

What functions build holds; a document may hold anything. An operator without a form may take any plain values:
`tileweave.graph.passes.verify` sees what it does with them on one index point.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeGuard

import numpy as np

from tileweave.errors import short_text
from tileweave.graph.ir.nodes import Operation, Selector

Check = Callable[[Any, Any], str]
"""(node, value) -> "", or what would be legal where the value is not."""


@dataclass(frozen=True, slots=True)
class Form:
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


# ---------------------------------------------------------------------------------------------------------------------
# checks of one value


def is_integer(value: object, low: int | None = None, high: int | None = None) -> TypeGuard[int]:
    """Whether a value is a plain integer (a bool is none), ``low <= value < high``."""
    if type(value) is not int:
        return False
    return (low is None or value >= low) and (high is None or value < high)


def are_integers(value: object, low: int | None = None, high: int | None = None) -> TypeGuard[tuple[int, ...]]:
    """Whether a value is a tuple of plain integers, each ``low <= item < high``."""
    return isinstance(value, tuple) and all(is_integer(item, low, high) for item in value)


def integer(low: int | None = None, high: int | None = None) -> Check:
    """The check of one integer."""
    legal = "an integer"
    if low is not None:
        legal = f"{legal}, {low} or more" if high is None else f"{legal}, {low} <= value < {high}"
    return lambda node, value: "" if is_integer(value, low, high) else legal


def sizes_form(node: Operation, value: object) -> str:
    """Extents, steps or gaps of a window: one per spatial dimension of the first input."""
    rank = _rank(node) - 2
    good = are_integers(value, 1) and len(value) == rank
    return "" if good else f"{rank} integers, 1 or more"


def axis_form(node: Operation | Selector, value: object) -> str:
    """One dimension of the first input."""
    rank = _rank(node)
    return "" if is_integer(value, 0, rank) else f"a dimension of the input, 0 <= axis < {rank}"


def axes_form(node: Operation, value: object) -> str:
    """Some dimensions of the first input."""
    rank = _rank(node)
    good = are_integers(value, 0, rank) and len(value) > 0 and list(value) == sorted(set(value))
    return "" if good else f"ascending dimensions of the input, 0 <= axis < {rank}"


def number_form(node: object, value: Any) -> str:
    """A finite number."""
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


def dtype_form(node: Operation, value: object) -> str:
    """The name of the result's element type."""
    name = node.output_types["out"].dtype.name if "out" in node.output_types else ""
    return "" if type(value) is str and value == name else f"the result's element type, {name}"


def given_parameters(node: Operation | Selector) -> dict[str, Any]:
    """A node's parameters by name."""
    return dict(node.parameters)


def _rank(node: Operation | Selector) -> int:
    return len(node.inputs[0][1].shape)


# ---------------------------------------------------------------------------------------------------------------------
# selectors


def _matrix(node: Selector, value: Any) -> str:
    rows, columns = _rank(node), len(node.out.shape)
    good = isinstance(value, tuple) and len(value) == rows
    good = good and all(are_integers(row) and len(row) == columns for row in value)
    if good:
        used = [k for row in value for k, c in enumerate(row) if c]
        good = len(set(used)) == len(used) and all(sum(c != 0 for c in row) < 2 for row in value)
    return "" if good else f"{rows} rows of {columns} integers, one coefficient at most per row and per column"


def _offset(node: Selector, value: object) -> str:
    good = are_integers(value) and len(value) == _rank(node)
    return "" if good else f"{_rank(node)} integers"


def _as_many(node: Selector, count: int) -> Iterator[str]:
    """An assembled dimension has so many elements, and the other extents are those of every part."""
    dim = given_parameters(node)["dim"]
    for name, part in node.inputs:
        if len(part.shape) != len(node.out.shape):
            yield f"input {name} has rank {len(part.shape)}, the result {len(node.out.shape)}"
        elif any(a != b for k, (a, b) in enumerate(zip(part.shape, node.out.shape, strict=True)) if k != dim):
            yield f"input {name} of shape {part.shape} does not fit the result {node.out.shape} along dimension {dim}"
    if dim >= len(node.out.shape) or node.out.shape[dim] != count:
        yield f"the parts make {count} elements of dimension {dim}, the result has shape {node.out.shape}"


def _extents(node: Selector) -> list[int]:
    dim = given_parameters(node)["dim"]
    return [part.shape[dim] if dim < len(part.shape) else 0 for _, part in node.inputs]


def _concat(node: Selector) -> Iterator[str]:
    yield from _as_many(node, sum(_extents(node)))


def _interleave(node: Selector) -> Iterator[str]:
    yield from _as_many(node, sum(_extents(node)))
    if any(part.shape != node.inputs[0][1].shape for _, part in node.inputs):
        yield f"the parts have shapes {', '.join(str(part.shape) for _, part in node.inputs)}, which must be equal"


def _repeat(node: Selector) -> Iterator[str]:
    yield from _as_many(node, _extents(node)[0] * given_parameters(node)["count"])


def _pad(node: Selector) -> Iterator[str]:
    given = given_parameters(node)
    yield from _as_many(node, given["before"] + _extents(node)[0] + given["after"])
    if (given["mode"] == "constant") != ("value" in given):
        yield f"mode {given['mode']!r} {'needs a' if given['mode'] == 'constant' else 'takes no'} value"
    if given["mode"] == "reflect" and not _extents(node)[0]:
        yield "there is nothing to reflect"


def _mode(node: object, value: object) -> str:
    return "" if type(value) is str and value in ("constant", "reflect") else "constant, reflect"


_VIEW = Form(("x",), {"matrix": _matrix, "offset": _offset})

SELECTORS: dict[str, Form] = {
    **dict.fromkeys(("permute", "flip", "select", "slice", "squeeze", "unsqueeze", "broadcast", "view"), _VIEW),
    "concat": Form(None, {"dim": axis_form}, fits=_concat),
    "interleave": Form(None, {"dim": axis_form}, fits=_interleave),
    "repeat": Form(("x",), {"dim": axis_form, "count": integer(0)}, fits=_repeat),
    "pad": Form(
        ("x",),
        {"dim": axis_form, "before": integer(0), "after": integer(0), "mode": _mode, "value": _element},
        ("value",),
        _pad,
    ),
    "full": Form((), {"value": _element}),
}
"""Kind of selector -> what it takes."""


def wrong_inputs(declared: Form, node: Operation | Selector, late: tuple[str, ...] = ()) -> Iterator[str]:
    """What is wrong with the names of a node's inputs; a partial result does without those in `late`."""
    given = tuple(name for name, _ in node.inputs)
    if declared.inputs is None:
        if not given:
            yield "there is no input"
    elif given not in (declared.inputs, tuple(name for name in declared.inputs if name not in late)):
        yield f"the inputs are named {list(given)}, not {list(declared.inputs)}"


def wrong_parameters(declared: Form, node: Operation | Selector) -> Iterator[str]:
    """What is wrong with a node's parameters; its inputs are as declared."""
    names = [name for name, _ in node.parameters]
    given = given_parameters(node)
    found = [f"parameter {name!r} is given twice" for name in sorted({n for n in names if names.count(n) > 1})]
    found += [f"there is no parameter {name!r}" for name in given if name not in declared.parameters]
    for name, check in declared.parameters.items():
        if name in given:
            if legal := check(node, given[name]):
                found.append(f"parameter {name} is {short_text(given[name])}, not {legal}")
        elif name not in declared.optional:
            found.append(f"parameter {name} is missing")
    yield from found or declared.fits(node)
