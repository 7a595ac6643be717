"""Conversions within a warp: what is left of two register layouts when their common digits are set aside, and tables
by lane as expressions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from tileweave.index import Expr, ExprLike, as_expr, equal, simplify
from tileweave.kernel.dispatch.layouts.registers import Holding, RegisterDigit, closed, pieces
from tileweave.kernel.threads import LANE
from tileweave.layout.analysis import Conversion, conversion

_BITS = 5
#: Bytes that a shuffle moves.
_WORD = 4


@dataclass(frozen=True)
class Within:
    """A conversion that stays within warps: a small one, repeated over the slots that both layouts count alike.

    Args:
        plan: the conversion of the digits that differ, for one warp.
        loops: extent, stride in the slots of the source and of the target of each common digit.
        have, want: slot of the small conversion -> slot of the source and of the target.
    """

    plan: Conversion
    loops: tuple[tuple[int, int, int], ...]
    have: tuple[int, ...]
    want: tuple[int, ...]

    @property
    def turns(self) -> int:
        """How often the small conversion is repeated."""
        return prod(extent for extent, _, _ in self.loops)

    @property
    def instructions(self) -> int:
        """Instructions of a warp, shuffles and selects."""
        return self.turns * sum(step.cost.instructions for step in self.plan.steps)

    def offsets(self, turn: ExprLike) -> tuple[ExprLike, ExprLike]:
        """The first slot of the source and of the target in a turn."""
        first: list[ExprLike] = [0, 0]
        for extent, *strides in self.loops:
            for side, stride in enumerate(strides):
                first[side] = first[side] + turn % extent * stride
            turn = turn // extent
        return first[0], first[1]


def within(have: Holding, want: Holding, bits: int) -> Within | str:
    """The conversion within warps from one holding to another, or why there is none.

    Args:
        have, want: the holdings.
        bits: of an element.
    """
    if have.shape != want.shape:
        return f"padded to {have.shape} and {want.shape}"
    parts, goal = pieces(have), pieces(want)
    if any(p.axis == "reg" and p.dim < 0 for p in (*parts, *goal)):
        return "copies in slots"
    for side in (parts, goal):
        if {p for p in side if p.axis == "warp"} != {p for p in parts if p.axis == "warp"}:
            return "elements change their warp"
    word = max(1, 8 * _WORD // bits)  # slots within a word stay together
    places = {_key(p): p.stride for p in goal if p.axis == "reg" and p.stride >= word}
    common = [p for p in parts if p.axis == "reg" and p.stride >= word and _key(p) in places]
    loops = [(p.extent, p.stride, places[_key(p)]) for p in sorted(common, key=lambda p: p.stride)]
    keys = {_key(p) for p in common}
    source, slots = closed([p for p in parts if p.axis == "lane" or (p.axis == "reg" and _key(p) not in keys)])
    target, into = closed([p for p in goal if p.axis == "lane" or (p.axis == "reg" and _key(p) not in keys)])
    plan = conversion(source, target, element_bytes=max(1, bits // 8))
    if plan.means not in ("nothing", "registers", "lanes"):
        return f"it takes {plan.means}"
    return Within(plan, tuple(loops), slots, into)


def _key(piece: RegisterDigit) -> tuple[int, int, int]:
    return piece.extent, piece.dim, piece.weight


def lane_number(table: Sequence[int | None]) -> ExprLike | None:
    """A number for each lane as an expression, None being any; None if it is no xor of multiples of the lane's bits.

    Example:
        >>> print(lane_number([8 * (lane % 4) + lane // 4 for lane in range(32)]))
        lane * 8 - lane // 4 * 31
    """
    rows: dict[int, tuple[int, int]] = {}  # highest bit of the lane's bits that are left -> those bits, their value
    for lane, value in enumerate(table):
        if value is None:
            continue
        bits, number = 2 * lane + 1, value
        while bits and bits.bit_length() in rows:
            other, amount = rows[bits.bit_length()]
            bits, number = bits ^ other, number ^ amount
        if bits:
            rows[bits.bit_length()] = bits, number
        elif number:
            return None
    worth: dict[int, int] = {}  # what a bit of 2 lane + 1 contributes
    for top in sorted(rows):
        bits, number = rows[top]
        for low in range(top - 1):
            if bits >> low & 1:
                number ^= worth.get(low, 0)
        worth[top - 1] = number
    return _combined([worth.get(k + 1, 0) for k in range(_BITS)], worth.get(0, 0))


def _combined(worth: Sequence[int], start: int) -> ExprLike:
    """The xor of a number and of what each bit of the lane is worth; a sum where no two share a bit."""
    apart = sum(worth) + start == _xor([*worth, start])
    groups: list[tuple[int, int, int]] = []  # first bit, bits, worth of the first
    for bit, amount in enumerate(worth):
        first, count, unit = groups[-1] if groups else (0, 0, 0)
        alone = apart or unit & unit - 1 == 0  # a multiple of the unit is then the xor of its bits' multiples
        if amount and count and alone and first + count == bit and amount == unit << count:
            groups[-1] = first, count + 1, unit
        elif amount:
            groups.append((bit, 1, amount))
    total: ExprLike = start
    for first, count, amount in groups:
        part = LANE // (1 << first) % (1 << count) * amount
        total = total + part if apart else as_expr(total) ^ part
    return simplify(total) if isinstance(total, Expr) else total


def _xor(numbers: Iterable[int]) -> int:
    total = 0
    for number in numbers:
        total ^= number
    return total


def lane_condition(lanes: Iterable[int]) -> Expr | None:
    """The condition that a lane is one of some; None where all are.

    Example:
        >>> print(lane_condition([4, 5, 6, 7, 20, 21, 22, 23]))
        lane // 4 % 4 == 1
    """
    chosen = frozenset(lanes)
    return None if len(chosen) == 1 << _BITS else _condition(chosen, _BITS)


def _condition(chosen: frozenset[int], free: int) -> Expr:
    """The condition of some lanes: equations between bits where these say all, else one half or the other."""
    first = min(chosen)
    span: list[int] = []  # reduced: every leading bit occurs once
    for lane in chosen:
        rest = lane ^ first
        for row in span:
            rest = min(rest, rest ^ row)
        if rest:
            span = [min(row, row ^ rest) for row in span] + [rest]
    if 1 << len(span) == len(chosen):
        leading = {row.bit_length() - 1: row for row in span}
        fixed = [bit for bit in range(_BITS) if bit not in leading]
        whole = [bit for bit in fixed if not any(row >> bit & 1 for row in span)]
        conditions = [_equal_bits(run, first) for run in _runs(whole)]
        for bit in fixed:
            if bit not in whole:
                others = [b for b, row in leading.items() if row >> bit & 1]
                parity = _xor(first >> b & 1 for b in (bit, *others))
                total = as_expr(LANE // (1 << bit) % 2)
                for b in others:
                    total = total ^ LANE // (1 << b) % 2
                conditions.append(equal(total, parity))
        result = conditions[0]
        for one in conditions[1:]:
            result = result & one
        return result
    half = 1 << free - 1
    parts = [
        part for part in (frozenset(c for c in chosen if bool(c & half) is side) for side in (False, True)) if part
    ]
    found = [_condition(part, free - 1) for part in parts]
    return found[0] | found[1] if len(found) == 2 else found[0]


def _runs(bits: Sequence[int]) -> list[list[int]]:
    """Consecutive numbers together."""
    runs = [[bits[0]]] if bits else []
    for before, bit in pairwise(bits):
        if bit == before + 1:
            runs[-1].append(bit)
        else:
            runs.append([bit])
    return runs


def _equal_bits(run: Sequence[int], value: int) -> Expr:
    width = 1 << len(run)
    return equal(LANE // (1 << run[0]) % width, value // (1 << run[0]) % width)
