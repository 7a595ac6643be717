"""Expressions as compiled code, and the threads that a scope's layout lists."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from tileweave.index import Expr, evaluate, symbols_of, to_python
from tileweave.kernel.ir import On
from tileweave.layout import Coord, Layout

BUILTINS = {"__builtins__": {"min": min, "max": max, "abs": abs}, "math": math}


@cache
def compiled(expr: Expr) -> Any:
    """An expression as Python's own code: kernels evaluate the same ones at every step."""
    return compile(to_python(expr), str(expr), "eval")


@cache
def names_of(expr: Expr) -> tuple[str, ...]:
    """The names of an expression's symbols."""
    return tuple(str(one) for one in symbols_of(expr))


def entities(s: On, symbols: dict[str, int], block: str) -> Iterator[tuple[str, frozenset[int], dict[str, int]]]:
    """Each entity of a scope: what errors call it, its threads, the symbols inside."""
    layout = _at_numbers(s.scope.layout, symbols)
    if s.each is None:
        yield f"{s.scope.kind} {_warps_text(layout)}of {block}", _members_of(layout), dict(symbols)
        return
    size = layout.size // s.scope.entities
    table = _listed_threads(layout)
    for number in range(s.scope.entities):
        members = frozenset(table[number * size : (number + 1) * size])
        yield f"{s.scope.kind} {number} of {block}", members, {**symbols, str(s.each): number}


def _warps_text(layout: Layout) -> str:
    low, high = layout.bounds("warp")
    return f"(warps {low}..{high}) " if low != high else f"(warp {low}) "


def _listed_threads(layout: Layout) -> list[int]:
    """The threads that a layout lists, in its order."""
    table = layout.table()
    table = table if isinstance(table, dict) else {layout.axes[0]: table}
    total: Any = 0
    for axis, scale in (("warp", 32), ("lane", 1)):
        if axis in table:
            total = total + scale * table[axis]
    return [int(total)] if isinstance(total, int) else [int(t) for t in total]


def _members_of(layout: Layout) -> frozenset[int]:
    return frozenset(_listed_threads(layout))


def _at_numbers(layout: Layout, symbols: dict[str, int]) -> Layout:
    """The layout with its offset as numbers."""
    terms: list[tuple[str, Any]] = list(layout.offset.terms)
    if all(isinstance(v, int) for _, v in terms):
        return layout
    known = {n: symbols[n] for _, v in terms if isinstance(v, Expr) for n in names_of(v)}
    return Layout(
        layout.shard, layout.replica, Coord(tuple((axis, int(np.asarray(evaluate(v, known)))) for axis, v in terms))
    )
