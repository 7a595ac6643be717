"""What a value must be before any other rule can be asked: its types, names that can be shown, and a bounded depth.

Each function yields the places that are wrong, with what is wrong there;
`tileweave.teir.ir.verify` makes rules of them.

A *kind* of programs is what those have in common that differ in sizes alone: in extents, strides other than 0, bytes of
scratch tensors, and numbers that may come from them, as the inverse of a count.

Source: own.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from tileweave.kept import keep_last
from tileweave.teir.ir.program import (
    Axis,
    Entries,
    First,
    Id,
    Invocation,
    Iteration,
    Last,
    Primitive,
    Program,
    TensorSpec,
)
from tileweave.teir.ir.walk import nodes_by_id, primitives_by_id, printed

ADDRESS_LIMIT = 2**63
"""Extents, and distances in bytes between any two addresses of a program, stay below this."""

VALUE_DEPTH = 16
"""How deep values of metadata may nest."""

DEPTH_LIMIT = 128
"""How many axes an invocation has at most: those that its ancestors iterate and those that its primitive consumes."""


def is_integer(value: object) -> bool:
    """Whether a value is an integer, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: object) -> str:
    """An integer in digits, or how long it is."""
    if is_integer(value) and isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def shown_tuple(values: object) -> str:
    """A tuple of numbers, or whatever stands in its place."""
    if not isinstance(values, tuple):
        return shown(values)
    return f"({', '.join(map(shown, values))}{',' if len(values) == 1 else ''})"


def is_finite(value: float) -> bool:
    """Whether a number is one, and no larger than every float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def types(program: Any) -> Iterator[tuple[str, str]]:
    """Parts that are not what `tileweave.teir.ir.program` states; numbers are left to the rules that bound them."""
    if not isinstance(program, Program):
        yield "program", f"it is {type(program).__name__} and no Program"
        return
    for name in ("profile", "name"):
        yield from _wrong("program", name, getattr(program, name), _text)
    yield from _wrong("program", "roots", program.roots, _IDS)
    for name, legal in _PARTS.items():
        values = getattr(program, name)
        yield from _wrong("program", name, values, _tuple_of(_any))
        for k, value in enumerate(values if isinstance(values, tuple) else ()):
            if not isinstance(value, tuple(legal)):
                yield f"{name}[{k}]", f"it is {type(value).__name__} and no {' or '.join(c.__name__ for c in legal)}"
                continue
            for field, good in legal[type(value)].items():
                yield from _wrong(f"{name}[{k}]", field, getattr(value, field), good)


def _wrong(path: str, field: str, value: object, good: Callable[[Any], bool]) -> Iterator[tuple[str, str]]:
    if not good(value):
        verb = "are" if field.endswith("s") else "is"
        yield path, f"its {field} {verb} {shown(value) if is_integer(value) else reprlib.repr(value)}"


def _any(value: Any) -> bool:
    return True


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _id(value: Any) -> bool:
    return isinstance(value, str) or (is_integer(value) and abs(value) < ADDRESS_LIMIT)


def _tuple_of(good: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, tuple) and all(map(good, values))


def _pair_of(one: Callable[[Any], bool], two: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda pair: isinstance(pair, tuple) and len(pair) == 2 and one(pair[0]) and two(pair[1])


def _scalar(value: Any) -> bool:
    return isinstance(value, str | float | bool) or (isinstance(value, int) and value.bit_length() <= 1024)


def _value(value: Any, depth: int = 0) -> bool:
    if isinstance(value, tuple):
        return depth < VALUE_DEPTH and all(_value(one, depth + 1) for one in value)
    if isinstance(value, Entries):
        pairs = _tuple_of(_pair_of(_text, lambda one: _value(one, depth + 1)))
        return depth < VALUE_DEPTH and pairs(value.items)
    return _scalar(value)


def _words(value: Any) -> Iterator[object]:
    """The keys and scalars of a value."""
    if isinstance(value, Entries):
        for key, one in value.items:
            yield key
            yield from _words(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from _words(one)
    else:
        yield value


def _term(value: Any) -> bool:
    return not isinstance(value, First | Last) or _id(value.axis)


_IDS, _TEXTS, _GUARD = _tuple_of(_id), _tuple_of(_text), _tuple_of(_term)

_PARTS: dict[str, dict[type, dict[str, Callable[[Any], bool]]]] = {
    "tensors": {TensorSpec: {"name": _text, "dtype": _text, "role": _text}},
    "axes": {Axis: {"id": _id, "strides": _tuple_of(_any), "offsets": _tuple_of(_any)}},
    "nodes": {
        Iteration: {"id": _id, "axis": _id, "children": _IDS, "policy": _text, "guard": _GUARD},
        Invocation: {"id": _id, "primitive": _id, "guard": _GUARD},
    },
    "primitives": {
        Primitive: {
            "id": _id,
            "operation": _text,
            "axes": _tuple_of(_pair_of(_text, _IDS)),
            "operands": _TEXTS,
            "metadata": _tuple_of(_pair_of(_text, _value)),
        }
    },
}


def names(program: Program) -> Iterator[tuple[str, str]]:
    """Names and identifiers that are not one line of text."""
    for path, name in _all_names(program):
        if isinstance(name, str) and printed(name) != name:
            yield path, f"{name!a} cannot be shown on one line"


def _all_names(program: Program) -> Iterator[tuple[str, object]]:
    yield "program", program.name
    for k, spec in enumerate(program.tensors):
        yield f"tensors[{k}]", spec.name
    for k, axis in enumerate(program.axes):
        yield f"axes[{k}]", axis.id
    for k, node in enumerate(program.nodes):
        yield f"nodes[{k}]", node.id
    for k, primitive in enumerate(program.primitives):
        yield f"primitives[{k}]", primitive.id
        for key, value in primitive.metadata:
            for word in (key, *_words(value)):
                yield f"primitives[{k}].metadata", word


def depth(program: Program) -> Iterator[tuple[str, str]]:
    """The first node with more axes than `DEPTH_LIMIT`."""
    nodes, primitives = nodes_by_id(program), primitives_by_id(program)
    met: set[Id] = set()
    stack = [(root, 0) for root in program.roots]
    while stack:
        id, above = stack.pop()
        if id in met or id not in nodes:
            continue
        met.add(id)
        node = nodes[id]
        if isinstance(node, Iteration):
            stack += [(child, above + 1) for child in node.children]
            count, what = above + 1, f"it and its ancestors iterate {above + 1} axes"
        else:
            known = primitives.get(node.primitive)
            consumed = sum(len(ids) for _, ids in known.axes) if known else 0
            count, what = above + consumed, f"its ancestors iterate {above} axes and its primitive consumes {consumed}"
        if count > DEPTH_LIMIT:
            yield f"node {id!r}", what
            return


# ── kinds ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def kind_of(program: Program) -> Hashable | None:
    """A program without its sizes; which extents are 1, and which strides 0, is no size. None where it may be no
    program: construction checks nothing."""
    global _last
    last, kind = _last
    if last is program:  # who verifies a program compiles it
        return kind
    if not isinstance(program, Program) or not _has_types(program):
        return None
    try:
        hash(program)
    except TypeError:
        return None
    axes = tuple([(a.id, a.extent == 1, tuple(map(bool, a.strides)), a.offsets) for a in program.axes])
    tensors = tuple([(spec.name, spec.dtype, spec.role, spec.shape is None) for spec in program.tensors])
    primitives = tuple([(p.id, p.operation, p.axes, p.operands, _metadata(p)) for p in program.primitives])
    kind = program.name, program.profile, tensors, axes, program.roots, program.nodes, primitives
    _last = program, kind
    return kind


_last: tuple[object, Hashable] = (None, None)


def _has_types(program: Program) -> bool:
    """Whether it is made of values of the types that it states, as far as its kind asks; identifiers are texts, since
    1 equals True."""
    parts = (program.tensors, program.axes, program.nodes, program.primitives)
    if {*map(type, parts)} != {tuple}:
        return False
    if {type(one) for several in parts for one in several} - {TensorSpec, Axis, Iteration, Invocation, Primitive}:
        return False
    ids = [getattr(one, "id", "") for several in parts for one in several]
    return {*map(type, ids)} <= {str} and all(type(a.strides) is type(a.offsets) is tuple for a in program.axes)


def _metadata(primitive: Primitive) -> Hashable:
    """What metadata say beside sizes: as text, since 1 equals True, and 0.0 equals -0.0."""
    if not primitive.metadata:
        return None
    return repr(primitive.metadata) if number_of(primitive) is None else "a number"


def number_of(primitive: Primitive) -> float | None:
    """The number that a Fill writes, where it is one that may come from sizes: finite, not 0 and not 1."""
    given = primitive.metadata
    if primitive.operation != "Fill" or type(given) is not tuple or len(given) != 1 or type(given[0]) is not tuple:
        return None
    name, value = given[0] if len(given[0]) == 2 else ("", None)
    return value if name == "value" and may_be_of_sizes(value) else None


def may_be_of_sizes(value: object) -> TypeGuard[float]:
    """Whether a constant may come from extents, as the inverse of a count: it is finite, not 0 and not 1."""
    return isinstance(value, float) and value not in (0.0, 1.0) and math.isfinite(value)


def numbers_of(program: Program) -> list[float]:
    """The sizes of a program in order."""
    found: list[float] = [spec.size_bytes for spec in program.tensors if spec.role == "scratch"]
    for axis in program.axes:
        found += [axis.extent, *filter(None, axis.strides)]
    return found + [number for number in map(number_of, program.primitives) if number is not None]


def with_numbers(program: Program, numbers: Sequence[float]) -> Program:
    """The program of the same kind of which these are `numbers_of`."""
    rest: Iterator[Any] = iter(numbers)
    tensors = [replace(s, size_bytes=next(rest)) if s.role == "scratch" else s for s in program.tensors]
    axes = [replace(a, extent=next(rest), strides=tuple([s and next(rest) for s in a.strides])) for a in program.axes]
    every = [p if number_of(p) is None else replace(p, metadata=(("value", next(rest)),)) for p in program.primitives]
    return replace(program, tensors=tuple(tensors), axes=tuple(axes), primitives=tuple(every))


def sizes_fit(program: Program) -> bool:
    """Whether the sizes of a program are positive integers, or strides, that address less than 2^63 bytes; false also
    where a number has to be an integer, or a stride of a document is negative.

    Of a kind of which one program is well formed, those are well formed of which this is true.
    """
    reach = [0] * len(program.tensors)
    for axis in program.axes:
        if {type(axis.extent), *map(type, axis.strides), *map(type, axis.offsets)} != {int}:
            return False
        if len(axis.strides) != len(reach) or len(axis.offsets) != len(reach) or not 0 < axis.extent < ADDRESS_LIMIT:
            return False
        if program.profile == "document" and min(axis.strides, default=0) < 0:
            return False
        last = axis.extent - 1
        reach = [r + abs(o) + abs(s) * last for r, s, o in zip(reach, axis.strides, axis.offsets, strict=True)]
    integers = {spec.name for spec in program.tensors if "INT" in spec.dtype}
    filled = {name for p in program.primitives if number_of(p) is not None for name in p.operands[-1:]}
    return all(_bytes_fit(program)) and max(reach, default=0) < ADDRESS_LIMIT and not filled & integers


def _bytes_fit(program: Program) -> Iterator[bool]:
    for spec in program.tensors:
        yield spec.shape is None and type(spec.size_bytes) is int
        yield (spec.size_bytes > 0) == (spec.role == "scratch") and spec.size_bytes >= 0


_KNOWN: dict[Hashable, None] = {}
_KEPT = 1024
"""Kinds of well-formed programs, the last ones."""


def keep_known(program: Program) -> None:
    """Have programs of the kind of a well-formed one known."""
    kind = kind_of(program)
    if kind is not None:
        _KNOWN[kind] = None
        keep_last(_KNOWN, _KEPT)


def is_like_known(program: Program) -> bool:
    """Whether it differs from a well-formed program in sizes alone, and these fit: then it is well formed."""
    return kind_of(program) in _KNOWN and sizes_fit(program)
