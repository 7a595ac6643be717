"""What a layout proves of the elements side by side: runs, their alignment, and the width of a vector access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tileweave.index import Expr, constant_of, divisor, split_affine, substitute, symbol, symbols_of
from tileweave.index.affine import split_in
from tileweave.index.expr import walk
from tileweave.index.normal.poly import known_divisor
from tileweave.index.normal.read import Normal, normal_of, value_of
from tileweave.layout.notation.lego_slices import Slice


def substituted(value: Any, change: Mapping[Any, Any]) -> Any:
    """A slice or an expression with other symbols."""
    if not isinstance(value, Slice):
        return substitute(value, change) if isinstance(value, Expr) else value
    offset, mask = (substitute(e, change) if isinstance(e, Expr) else e for e in (value.offset, value.mask))
    ranges = tuple(change.get(r, change.get(str(r), r)) for r in value.ranges)
    return Slice(value.text, offset, mask, tuple(r for r in ranges if isinstance(r, Expr)))


def width_of(value: Slice, given: Sequence[Expr]) -> int:
    """The elements of a vector access along a slice's last range; the pointer is aligned to them."""
    if not value.ranges or not isinstance(value.offset, Expr):
        return 1
    node, mask = value.ranges[-1], value.mask
    where = (*given, mask) if isinstance(mask, Expr) and mask.op != "true" else tuple(given)
    run, multiple = run_of(value.offset, node, normal_of(where))
    width = min(run, multiple)
    while width > 1 and isinstance(mask, Expr) and not _uniform(mask, node, width):
        width //= 2
    return width


def _uniform(mask: Expr, node: Expr, width: int) -> bool:
    """Whether a mask holds for all or for none of the `width` values of a range that follow a multiple of it.

    It does where each comparison has a multiple of the width on one side, and the range once on the other.
    """
    if mask.op == "and":
        return all(_uniform(part, node, width) for part in mask.args)
    if node not in symbols_of((mask,)):
        return True
    if mask.op != "lt":
        return False
    outer, inner = symbol("run_outer", 0, (constant_of(node.args[2]) or width) // width), symbol("run_inner", 0, width)
    left, right = (substitute(side, {node: outer * width + inner}) for side in mask.args)
    parts = split_affine(right - left, inner)
    return parts is not None and constant_of(parts[1]) == -1 and divisor(parts[0]) % width == 0


def plainly_affine(expr: Expr) -> bool:
    """Whether an expression is a sum of symbols times constants as it is written."""
    return all(
        node.op in ("add", "sub", "const", "sym") or (node.op == "mul" and any(x.op == "const" for x in node.args))
        for node in walk((expr,))
    )


def _power_of_two(number: int, run: int) -> int:
    """The greatest power of two that divides a number, up to a megabyte; for zero the run itself."""
    return run if number == 0 else min(number & -number, 1 << 20)


def run_of(expr: Expr, node: Expr, facts: Normal) -> tuple[int, int]:
    """The longest run of consecutive offsets along a range, and a power of two that divides the start of every run."""
    extent = constant_of(node.args[2]) or 1
    whole = split_in(facts, expr, node)
    if whole is not None and constant_of(whole[1]) != 1:
        return 1, 1
    run = extent
    while run > 1:
        if whole is not None:
            return run, _power_of_two(known_divisor(value_of(facts, whole[0])), run)
        outer, inner = symbol("run_outer", 0, max(extent // run, 1)), symbol("run_inner", 0, run)
        parts = split_in(facts, substitute(expr, {node: outer * run + inner}), inner)
        if parts is not None and constant_of(parts[1]) == 1:
            return run, _power_of_two(known_divisor(value_of(facts, parts[0])), run)
        run //= 2
    return 1, 1
