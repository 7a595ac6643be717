"""``tileweave layout``: evaluate an expression of the layout algebra; print, tabulate, draw and analyse the result."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from tileweave.cli.files import check_new, draw
from tileweave.cli.layout.operations import FAMILIES, METHODS, OPERATIONS
from tileweave.errors import LayoutError, Undecided, Unproved
from tileweave.index import Expr, simplify, symbol, to_c, to_python
from tileweave.layout import Coord, Layout, is_injective
from tileweave.layout.analysis.conflicts import Remedy
from tileweave.layout.analysis.memory import Banks, Coalescing, VectorWidth, bank_conflicts
from tileweave.layout.analysis.movement import Conversion
from tileweave.layout.analysis.svg import svg
from tileweave.layout.core.checks import need_numbers
from tileweave.layout.cute import ComposedLayout, Cover, CuteLayout, F2Map, Swizzle, XorLayout, cosize, idx2crd
from tileweave.layout.lego import Chain, GenP, GroupBy, OrderBy, PartialTiles, RegP
from tileweave.layout.notation.cute_tuples import Underscore, tuple_text
from tileweave.layout.notation.lego_numbers import tuple_index
from tileweave.layout.text.reader import evaluate

WHERE = "tileweave layout"
LEGAL = "such as (4,8):(1,4), (8:4@lane, 2:1@reg) + [2:1@warp], or composition((4,8):(1,4), 8:2); see --help"

LAYOUTS = (Layout, CuteLayout, ComposedLayout, XorLayout, F2Map, GroupBy, OrderBy, RegP, GenP)
"""What has a coordinate for every index, and so a table."""

_EPILOG = """the three notations:
  (4,8):(1,4)                                   CuTe, first mode fastest; nested, strides such as 1@0 too
  (8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp    Axe: (shard) + [replica] + offset; the last iter is fastest
  OrderBy(Col(2,2), Row(3,3)).GroupBy((6,6))    LEGO: pieces and chains; the last dimension is fastest

examples:
  tileweave layout "composition((6,2):(8,2), (4,3):(3,1))"
  tileweave layout "logical_divide((9,(4,8)):(59,(13,1)), <3:3, (2,4):(1,8)>)"
  tileweave layout "complement((2,2):(1,6), 24)" --json
  tileweave layout "tile((2:3, 3:1), (8:8, 8:1))" --draw block.svg
  tileweave layout "slice((2:192, 8:8, 3:64, 8:1), shape=(16,24), box=[0:8, 8:24])"
  tileweave layout "(8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp" --at 3,9 --shape 8,16
  tileweave layout "Sw<3,3,3> o 0 o (8,64):(64,1)" --banks --width 2 --vector 8 --threads 0:8
  tileweave layout "(32,32):(32,1)" --banks --threads 0:32
  tileweave layout "TileBy((2,2),(3,3))" --at i,j,k,l
  tileweave layout "zipped_divide((M,N):(1,M), (4,8))" --symbol M=1::4 --symbol N=1::8
  tileweave layout "bind((16:128, 8:8, 2:4, 4:1) + 2112, (tx//8, tx%8), (16,8))" --symbol tx=0:128

operations:
{operations}

A list of pairs in round brackets is an Axe layout; where a CuTe operation takes a tiler it is a tiler, and so is a
list in angle brackets. Where both notations have an operation, its first argument decides. Exit status 2: the text is
malformed, or no layout agrees with the definition (the witness is printed)."""


def epilog() -> str:
    """The text below the options: notations, examples, every operation."""
    lines = []
    for family, names in FAMILIES.items():
        line = f"  {family:<9} "
        for name in sorted(names):
            if len(line) + len(name) > 108:
                lines.append(line.rstrip())
                line = " " * 12
            line += name + " "
        lines.append(line.rstrip())
    return _EPILOG.format(operations="\n".join(lines))


def evaluate_layout(options: argparse.Namespace) -> int:
    """Evaluate the expression; print the result and what was asked of it."""
    if options.draw:
        check_new("--draw", options.draw, ".svg", bool(options.overwrite))
    text = sys.stdin.read() if options.expression == "-" else options.expression
    value = evaluate(text, OPERATIONS, METHODS, _symbols(options.symbol or []), where=WHERE, legal=LEGAL)
    shape = _parsed_shape(options.shape)
    found: dict[str, Any] = {"result": describe(value)}
    lines = [text_of(value)]
    if options.at is not None:
        result = _simple(_at(value, options.at, shape))
        found["at"] = {"index": options.at, "value": describe(result)}
        lines = _at_lines(result)
    if options.table:
        head, rows, size = table(value, shape)
        shown = list(islice(rows, options.limit))
        found["table"] = {"columns": head, "rows": shown, "size": size}
        lines += ["", *_aligned([head, *shown])]
        lines += [f"showing {len(shown)} of {size} rows"] if len(shown) < size else []
    if options.banks:
        banks = _banks(value, options)
        found["banks"] = _banks_json(banks)
        lines += ["", *_banks_lines(banks)]
    if options.draw:
        _draw(value, shape, options)
    if options.json:
        print(json.dumps(found, indent=2, default=str))
    else:
        print("\n".join(lines))
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# text and JSON of a result


def text_of(value: Any) -> str:
    """A result as text: layouts in their own notation, which the command reads back."""
    match value:
        case GroupBy() | Chain() | OrderBy() | RegP() | GenP():
            return _lego_text(value)
        case Cover():
            valid = "every coordinate is valid" if value.always_valid else f"valid where {value.index} is below"
            return f"{value.layout}\n{valid} {'' if value.always_valid else tuple_text(value.limits)}".rstrip()
        case PartialTiles():
            return f"PartialTiles({tuple_text(value.dims)}, {', '.join(map(tuple_text, value.tiles))})"
        case F2Map():
            return f"F2Map({tuple_text(value.columns)}, {value.rows})"
        case Banks():
            return "\n".join(_banks_lines(value))
        case dict():
            return "\n".join(f"{name}  {text_of(v)}" for name, v in value.items())
        case np.ndarray():
            return str(value.tolist())
        case Conversion():
            return "\n".join(_aligned_left([[name, text_of(v)] for name, v in _plan(value).items()]))
        case Remedy() | Coalescing() | VectorWidth():
            return "\n".join(_aligned_left([[f.name, text_of(getattr(value, f.name))] for f in fields(value)]))
        case tuple() if hasattr(value, "_fields"):  # named: pieces of a slice
            return _named_text(value)
        case tuple() if any(not isinstance(v, int | Coord | Underscore | tuple | Expr) for v in value):
            return "\n".join(map(text_of, value))
        case tuple() if value and all(isinstance(v, tuple) and (not v or _is_iters(v)) for v in value):
            return "\n".join("(" + ", ".join(map(str, block)) + ")" for block in value)
        case tuple():
            return tuple_text(value)
    return str(value)


def _plan(value: Conversion) -> dict[str, Any]:
    """The means, an element that has to move, and the steps (one a line) where places can be listed."""
    try:
        steps = str(value)
    except (Undecided, Unproved) as error:
        steps = error.problem
    return {"means": value.means, "element": value.element, "place": value.place, "steps": steps}


def _is_iters(value: tuple[Any, ...]) -> bool:
    return all(type(v).__name__ == "Iter" for v in value)


def _named_text(value: Any) -> str:
    if "pieces" in value._fields:
        lines = [text_of(p) for p in value.pieces]
        count = f"{len(lines)} piece{'s' * (len(lines) > 1)}"
        return "\n".join([*lines, f"{count}, the fewest" if value.fewest else count])
    if "layout" in value._fields:
        box = ", ".join(f"{b}:{b + e}" for b, e in zip(value.begin, value.extent, strict=True))
        return f"[{box}]  {value.layout}"
    return ", ".join(f"{name}={text_of(getattr(value, name))}" for name in value._fields)


def _lego_text(value: GroupBy | Chain | OrderBy | RegP | GenP) -> str:
    match value:
        case RegP():
            return f"RegP({_dims(value.dims)}, {_dims(value.sigma)})"
        case GenP():
            return value.name or str(value)
        case OrderBy():
            return f"OrderBy({', '.join(map(_lego_text, value.pieces))})"
        case Chain():
            return ".".join(map(_lego_text, value.orders))
    chain = ".".join(map(_lego_text, value.orders))
    return f"{chain}.GroupBy({_dims(value.dims)})" if chain else f"GroupBy({_dims(value.dims)})"


def _dims(dims: Sequence[Any]) -> str:
    return "(" + ", ".join(map(str, dims)) + ("," if len(dims) == 1 else "") + ")"


def describe(value: Any) -> Any:
    """A result as plain data for JSON."""
    match value:
        case Layout():
            iters = {"shard": value.shard, "replica": value.replica}
            rows = {
                part: [{"extent": _plain(it.extent), "stride": _terms(it.stride)} for it in items]
                for part, items in iters.items()
            }
            return {"notation": "axe", "text": str(value), **rows, "offset": _terms(value.offset), **_core_facts(value)}
        case CuteLayout():
            facts = {"shape": value.shape, "stride": _strides(value.stride), "size": value.size}
            if not isinstance(value.zero, Coord):
                facts["cosize"] = cosize(value)
            return {"notation": "cute", "text": str(value), **facts}
        case ComposedLayout() | XorLayout():
            return {"notation": "cute", "text": str(value), "shape": value.shape, "size": value.size}
        case Swizzle():
            parts = {"bits": value.bits, "base": value.base, "shift": value.shift}
            return {"notation": "swizzle", "text": str(value), **parts}
        case F2Map():
            return {"notation": "f2", "text": text_of(value), "columns": value.columns, "rows": value.rows}
        case GroupBy() | OrderBy() | RegP() | GenP():
            dims = [_plain(n) for n in value.dims]
            return {"notation": "lego", "text": text_of(value), "dims": dims, "size": _plain(value.size)}
        case Coord():
            return _terms(value)
        case Expr():
            return {"text": str(value), "python": to_python(value), "c": to_c(value)}
        case Banks():
            return _banks_json(value)
        case Conversion():
            return {name: describe(v) for name, v in _plan(value).items()}
        case Remedy() | Coalescing() | VectorWidth():
            return {f.name: describe(getattr(value, f.name)) for f in fields(value)}
        case dict():
            return {str(k): describe(v) for k, v in value.items()}
        case bool() | int() | str() | float() | None:
            return value
        case np.ndarray():
            return value.tolist()
        case tuple() | list() if not hasattr(value, "_fields"):
            return [describe(v) for v in value]
    return {"text": text_of(value)}


def _core_facts(layout: Layout) -> dict[str, Any]:
    facts: dict[str, Any] = {"size": _plain(layout.size), "axes": {}}
    for axis in layout.axes:
        low, high = layout.bounds(axis)
        facts["axes"][axis] = {"min": _plain(low), "max": _plain(high)}
    try:
        facts["injective"] = is_injective(layout)
    except (Undecided, Unproved):
        facts["injective"] = None
    return facts


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Expr) else value


def _terms(coord: Coord) -> dict[str, Any]:
    return {axis: _plain(v) for axis, v in coord.terms}


def _strides(stride: Any) -> Any:
    if isinstance(stride, tuple):
        return [_strides(s) for s in stride]
    return _terms(stride) if isinstance(stride, Coord) else stride


# ---------------------------------------------------------------------------------------------------------------------
# options that are read


def _symbols(words: Sequence[str]) -> dict[str, Expr]:
    """``NAME=LOW:HIGH:STEP`` words: symbols in half-open ranges, ends may be left out, and multiples of a step."""
    out: dict[str, Expr] = {}
    for word in words:
        match = re.fullmatch(r"([A-Za-z]\w*)=(-?\d{1,19})?:(-?\d{1,19})?(?::(\d{1,19}))?", word, re.ASCII)
        if not match:
            raise LayoutError(
                f"--symbol {word}", "this declares no symbol", legal="NAME=LOW:HIGH or NAME=LOW:HIGH:STEP"
            )
        low, high, step = (None if part is None else int(part) for part in match.groups()[1:])
        out[match[1]] = symbol(match[1], low, high, multiple_of=1 if step is None else step)
    return out


def _parsed_shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = re.split(r"[x,]", text.strip("() "))
    if not all(re.fullmatch(r"\s*\d{1,19}\s*", part, re.ASCII) for part in parts):
        raise LayoutError(f"--shape {text}", "this is no shape", legal="such as 8,16 or 8x16")
    return tuple(map(int, parts))


def _thread_set(text: str | None) -> Any:
    """``0:32``, ``0:1024:32`` or ``0,8,-1``: the index that each thread accesses."""
    if text is None:
        return None
    legal = "START:STOP, START:STOP:STEP, or a list of indices, at most 1024 threads; -1 is idle"
    numbers = re.fullmatch(r"-?\d{1,19}([:,]-?\d{1,19})*", text, re.ASCII)
    parts = [int(part) for part in re.split("[:,]", text)] if numbers and not (":" in text and "," in text) else []
    if ":" in text and len(parts) in (2, 3) and (len(parts) == 2 or parts[2] != 0):
        span = range(*parts)
        if 0 < len(span) <= 1024 and min(span) >= 0:
            return np.array(span)
    elif parts and ":" not in text and len(parts) <= 1024 and min(parts) >= -1:
        return np.array(parts)
    raise LayoutError(f"--threads {text}", "this is no thread set", legal=legal)


def _layout(value: Any, option: str) -> Any:
    """The value, which must be a layout; a swizzle is none, for it has no domain."""
    if not isinstance(value, LAYOUTS):
        problem = f"the result is no layout but {text_of(value).splitlines()[0] or 'empty'}"
        raise LayoutError(f"{WHERE} {option}", problem, legal="an expression whose value is a layout")
    return value


def _reshaped(value: Any, shape: tuple[int, ...] | None, option: str) -> None:
    if shape is not None and not isinstance(value, Layout):
        raise LayoutError(f"{WHERE} {option}", "only an Axe layout takes --shape", legal="leave --shape out")


# ---------------------------------------------------------------------------------------------------------------------
# evaluation at a point


def _at(value: Any, text: str, shape: tuple[int, ...] | None) -> Any:
    """The value at an index, a coordinate, or names, which stand for every coordinate at once."""
    where = f"{WHERE} --at {text}"
    _reshaped(value, shape, "--at")
    names = list(dict.fromkeys(re.findall(r"[A-Za-z]\w*", text)))
    dims = _named_dims(value, shape)
    index = evaluate(f"({text},)", {}, {}, {name: name for name in names}, where=WHERE, legal=LEGAL)
    if names:
        index = _name_index(index, dims, where)
    if isinstance(value, Swizzle | F2Map):
        if len(index) != 1 or isinstance(index[0], tuple | Underscore):
            raise LayoutError(where, f"{text_of(value)} takes one index", legal="an integer")
        return value(index[0])
    _layout(value, "--at")
    if isinstance(value, Layout):
        return _core_at(value, index, shape)
    if isinstance(value, GroupBy | OrderBy | RegP | GenP):
        return value.apply(*index)
    return value(*index)


def _named_dims(value: Any, shape: tuple[int, ...] | None) -> Any:
    if isinstance(value, Layout):
        return shape or value.extents
    return getattr(value, "dims", None) or getattr(value, "shape", None)


def _name_index(index: tuple[Any, ...], dims: Any, where: str) -> tuple[Any, ...]:
    """Every name as a symbol that ranges over the extent at its place."""
    size = prod(_leaves(dims)) if dims is not None else 1 << 31

    def place(part: Any, extent: Any) -> Any:
        if isinstance(part, tuple):
            if not isinstance(extent, tuple) or len(part) != len(extent):
                raise LayoutError(where, "the names do not fit the shape", inputs={"shape": _dims(_leaves(dims))})
            return tuple(place(p, e) for p, e in zip(part, extent, strict=True))
        return symbol(part, 0, prod(_leaves(extent))) if isinstance(part, str) else part

    if len(index) == 1 and not isinstance(index[0], tuple):
        return (place(index[0], size),)
    whole = dims if isinstance(dims, tuple) else (dims,)
    found = place(index[0] if len(index) == 1 else index, whole)
    return (found,) if len(index) == 1 else tuple(found)


def _leaves(tree: Any) -> list[Any]:
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, tuple) else [tree]


def _core_at(layout: Layout, index: tuple[Any, ...], shape: tuple[int, ...] | None) -> Any:
    """All coordinates of one logical index; for names, the least replica's expression."""
    dims = shape or (layout.size,) * (len(index) == 1) or layout.extents
    if any(isinstance(i, tuple | Underscore) for i in index):
        raise LayoutError(f"{WHERE} --at", "a coordinate of an Axe layout is flat", legal="such as 3 or 1,2")
    dims = (layout.size,) if len(index) == 1 and len(dims) != 1 else dims
    base = layout.at(index, dims)
    if not isinstance(base, Coord):
        return base
    if prod(it.extent for it in layout.replica) == 1:
        return base
    flat = 0
    for i, n in zip(index, dims, strict=True):
        flat = flat * n + i
    return tuple(sorted(layout.set_at(flat), key=lambda c: c.terms))


def _simple(value: Any) -> Any:
    if isinstance(value, dict):
        return {axis: _simple(v) for axis, v in value.items()}
    return simplify(value) if isinstance(value, Expr) else value


def _at_lines(result: Any) -> list[str]:
    """A value; an expression also as C."""
    if isinstance(result, Expr):
        return [str(result), f"C  {to_c(result)}"]
    if isinstance(result, dict):
        return [f"{axis}  {v}" for axis, v in result.items()]
    if isinstance(result, tuple) and any(isinstance(v, Coord) for v in result):
        return [str(v) for v in result]
    return [text_of(result)]


# ---------------------------------------------------------------------------------------------------------------------
# tables and pictures


def table(value: Any, shape: tuple[int, ...] | None = None) -> tuple[list[str], Iterator[list[Any]], int]:
    """The column heads, the rows of index, coordinate and value (made one by one), and how many there are.

    Args:
        value: a layout; its linear index runs in its own order.
        shape: of an Axe layout, the logical shape of the coordinates.
    """
    _layout(value, "--table")
    need_numbers(f"{WHERE} --table", value)
    _reshaped(value, shape, "--table")
    if isinstance(value, Layout):
        return _core_table(value, shape or value.extents)
    if isinstance(value, GroupBy | OrderBy | RegP | GenP):
        dims = value.dims
        rows = ([k, tuple_text(i), int(value.apply(*i))] for k, i in _enumerate(value.size, _row_major(dims)))
        return ["index", "coordinate", "value"], rows, int(value.size)
    if isinstance(value, F2Map):
        return ["index", "value"], ([k, value(k)] for k in range(value.size)), value.size
    points = _enumerate(value.size, lambda k: idx2crd(k, value.shape))
    rows = ([k, tuple_text(c), str(value(k))] for k, c in points)
    return ["index", "coordinate", "value"], rows, value.size


def _enumerate(size: int, coordinate: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
    return ((k, coordinate(k)) for k in range(size))


def _row_major(dims: Sequence[Any]) -> Callable[[int], tuple[int, ...]]:
    return lambda k: tuple_index(k, tuple(dims)) if dims else ()


def _core_table(layout: Layout, shape: tuple[int, ...]) -> tuple[list[str], Iterator[list[Any]], int]:
    layout.at([0] * len(shape), shape)  # the shape is admitted
    replicated = any(it.extent > 1 for it in layout.replica)

    def row(k: int, coordinate: tuple[int, ...]) -> list[Any]:
        places = sorted(layout.set_at(k), key=lambda c: c.terms) if replicated else [layout(k)]
        return [k, tuple_text(coordinate), " | ".join(map(str, places))]

    rows = (row(k, c) for k, c in _enumerate(layout.size, _row_major(shape)))
    return ["index", "coordinate", "value"], rows, layout.size


def _aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    widths = [max(len(str(row[c])) for row in rows) for c in range(len(rows[0]))]
    return ["  ".join(f"{cell!s:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]


def _aligned_left(rows: Sequence[Sequence[str]]) -> list[str]:
    width = max(len(row[0]) for row in rows)
    return [f"{name:<{width}}  {text}".rstrip() for name, text in rows]


def _draw(value: Any, shape: tuple[int, ...] | None, options: argparse.Namespace) -> None:
    if not isinstance(value, Swizzle):
        _layout(value, "--draw")
    _reshaped(value, shape, "--draw")
    draw(options.draw, svg(value, shape=shape, colour=options.colour))


# ---------------------------------------------------------------------------------------------------------------------
# banks


def _banks(value: Any, options: argparse.Namespace) -> Banks:
    threads = _thread_set(options.threads)
    need_numbers(f"{WHERE} --banks", _layout(value, "--banks"))
    return bank_conflicts(value, threads, element_bytes=options.width, vector=options.vector, banks=options.bank_count)


def _banks_lines(banks: Banks) -> list[str]:
    lines = []
    for k, (taken, ideal) in enumerate(zip(banks.passes, banks.ideal, strict=True)):
        verdict = "no conflicts" if taken == ideal else f"{ideal} without conflicts"
        lines.append(f"warp {k}: {taken} pass{'es' * (taken != 1)}, {verdict}")
    for c in banks.collisions:
        who = [f"thread {t} at byte {b}" for t, b in zip(c.threads, c.first_bytes, strict=True)]
        lines.append(f"bank {c.bank}: {', '.join(who[:6])}{f', and {len(who) - 6} more' if len(who) > 6 else ''}")
    return lines


def _banks_json(banks: Banks) -> Mapping[str, Any]:
    collisions = [{"bank": c.bank, "threads": c.threads, "first_bytes": c.first_bytes} for c in banks.collisions]
    return {"passes": banks.passes, "ideal": banks.ideal, "collisions": collisions}
