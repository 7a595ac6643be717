"""Exact composition of flat layouts: the decision on which the CuTe operations stand.

A flat layout is a tuple of (extent, stride) pairs, first mode fastest. `compose_flat` answers for a layout A and the
modes of a layout B whether ``A(B(c))`` is again a layout that refines B, mode by mode. The work is in three steps.

1. *Structure*: every mode of B ends on the digits of A and no two of them carry. Linear in the number of modes, and
   the answer for the nested strides that people write.
2. *Recover*: A is ``d x + sum of w_r floor(x / P_r)``, so along one mode of B the slope changes only where a multiple
   of some P_r is crossed. The first change fixes the first extent; the rest follows by recursion. No enumeration.
3. *Verify*: the recovered iters are right if A is additive on them. Boundaries of A that no carry can cross split the
   question into independent clusters; each is enumerated, below `BOUND` points.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import NoLayout, Undecided
from tileweave.layout.core.layout import Coord
from tileweave.layout.core.symbolic import same, simple
from tileweave.layout.notation.cute_tuples import Pair

__all__ = [
    "BOUND",
    "check_domain",
    "coalesce_flat",
    "compose_flat",
    "compose_structural",
    "continues",
    "evaluate_flat",
    "flat_text",
    "linear_on",
    "no_layout",
]

BOUND = 1 << 20
"""The most points that one decision enumerates; beyond it the answer is `Undecided`."""

EVENTS = 1 << 14
"""The most slope changes that cancel each other before `Undecided`."""

Digit = tuple[int, int, Any]
"""A recovered iter: (extent, step in A's domain, stride of the result)."""


def coalesce_flat(pairs: Sequence[Pair]) -> list[Pair]:
    """The unique shortest list of modes with the same map: units dropped, neighbours that continue merged."""
    out: list[Pair] = []
    run, stride = 1, None
    for n, d in pairs:
        if n == 1:
            continue
        if stride is None:
            run, stride = n, d
        elif continues(d, run, stride):
            run = run * n if type(run) is int else simple(run * n)
        else:
            out.append((run, stride))
            run, stride = n, d
    if stride is not None:
        out.append((run, stride))
    return out


def continues(d: Any, run: Any, stride: Any) -> bool:
    """Whether a mode of stride d goes on where the mode ``run:stride`` ends; proved, where expressions take part."""
    if d == run * stride:
        return True
    if type(d) is int and type(stride) is int and type(run) is int:
        return False
    after, end = Coord.of(d), run * Coord.of(stride)
    return all(same(after[axis], end[axis]) for axis in {*after.axes, *end.axes})


def no_layout(
    where: str,
    problem: str,
    *,
    inputs: Mapping[str, object],
    legal: str,
    points: Sequence[object],
    values: Sequence[object],
    condition: str,
) -> NoLayout:
    """The refusal with its witness: points, the values there, and the condition that they break."""
    witness = {"points": tuple(points), "values": tuple(values), "condition": condition}
    return NoLayout(where, problem, inputs=inputs, legal=legal, facts={"witness": witness})


def evaluate_flat(pairs: Sequence[Pair], index: int) -> Any:
    """The value of a flat layout at a linear index in range, first mode fastest; 0 for no modes."""
    out: Any = None
    for n, d in pairs:
        index, digit = divmod(index, n)
        out = digit * d if out is None else out + digit * d
    return 0 if out is None else out


def flat_text(pairs: Sequence[Pair]) -> str:
    """A flat layout as text, for messages."""
    return "({}):({})".format(",".join(str(n) for n, _d in pairs), ",".join(str(d) for _n, d in pairs))


def compose_flat(
    a: Sequence[Pair], b: Sequence[Pair], where: str, inputs: dict[str, object], zero: Any = 0
) -> list[list[Pair]]:
    """For each mode of B the modes of ``A o B`` that refine it; exact, or an error with the witness.

    Args:
        a: flat modes of A, coalesced.
        b: flat modes of B; integer strides.
        where, inputs: for the messages.
        zero: the zero of A's strides.

    Raises:
        NoLayout: B leaves the domain of A, or no layout that refines B agrees with ``A(B(c))``. The witness holds
            coordinates of B, the values there, and the condition that they break.
        Undecided: the exact search would pass `BOUND` points.
    """
    quick = compose_structural(a, b, zero)
    if quick is not None:
        return quick
    check_domain(a, b, where, inputs)
    digits: list[list[Digit]] = []
    for k, (n, s) in enumerate(b):
        digits.append(_recover(a, n, s, k, where, inputs) if n > 1 and s else [])
    _verify(a, b, digits, where, inputs)
    return [[(q, v) for q, _t, v in found] if found else [(n, zero)] for found, (n, _s) in zip(digits, b, strict=True)]


def compose_structural(a: Sequence[Pair], b: Sequence[Pair], zero: Any) -> list[list[Pair]] | None:
    """The composition where every mode of B ends on digits of A and nothing carries; None where that fails."""
    load = [0] * len(a)
    out: list[list[Pair]] = []
    for n, rest in b:
        if n == 1 or rest == 0:
            out.append([(n, zero)])
            continue
        if rest < 0:
            return None
        digits: list[Pair] = []
        for r, (extent, stride) in enumerate(a):
            reach = rest * (n - 1)
            if reach < extent:
                digits.append((n, rest * stride))
                load[r] += reach
                n = 0
                break
            if rest < extent:
                part, left = divmod(extent, rest)
                if left or n % part:
                    return None
                digits.append((part, rest * stride))
                load[r] += extent - rest
                n //= part
                rest = 1
            else:
                rest, left = divmod(rest, extent)
                if left:
                    return None
        if n:
            return None
        out.append(digits)
    for used, (extent, _d) in zip(load, a, strict=True):
        if used >= extent:
            return None
    return out


def check_domain(a: Sequence[Pair], b: Sequence[Pair], where: str, inputs: dict[str, object]) -> None:
    """Refuses an inner layout B that leaves [0, size A)."""
    domain = prod(n for n, _d in a)
    for sign in (1, -1):
        corner = tuple(n - 1 if sign * s > 0 else 0 for n, s in b)
        value = sum(c * s for c, (_n, s) in zip(corner, b, strict=True))
        if not 0 <= value < domain:
            raise no_layout(
                where,
                f"the inner layout reaches {value}, outside the domain [0, {domain}) of the outer one",
                inputs=inputs,
                legal=f"an inner layout with values in [0, {domain})",
                points=(corner,),
                values=(value,),
                condition=f"0 <= value < {domain}",
            )


# --- recover: the iters along one mode of B


def _recover(a: Sequence[Pair], n: int, s: int, mode: int, where: str, inputs: dict[str, object]) -> list[Digit]:
    """The only iters that ``i -> A(s i)`` on [0, n) can have, each ending where the slope first changes."""
    out: list[Digit] = []
    step = s
    while n > 1:
        change = _first_change(a, n, step, where, inputs)
        value = evaluate_flat(a, step)
        if change is None:
            out.append((n, step, value))
            break
        if n % change:
            at = change * step
            raise no_layout(
                where,
                f"along flat mode {mode} the slope changes at {change}, which does not divide the extent {n}",
                inputs=inputs,
                legal="an inner mode whose slope changes at divisors of its extent",
                points=(step // s, change * (step // s)),
                values=(value, evaluate_flat(a, at)),
                condition=f"{change} divides {n}, or A({at}) = {change} * A({step})",
            )
        out.append((change, step, value))
        n //= change
        step *= change
    return out


def _first_change(a: Sequence[Pair], n: int, step: int, where: str, inputs: dict[str, object]) -> int | None:
    """The least ``i < n`` with ``A(i step) != i A(step)``, or None.

    A's slope along the mode changes at i only where ``floor(i s / P)`` jumps, s the step modulo the boundary P.
    """
    events: list[tuple[int, int, int, int, Any]] = []
    boundary = 1
    for (extent, stride), (_next, ahead) in pairwise(a):
        boundary *= extent
        s = step % boundary
        if s:
            events.append((-(-boundary // s), 1, s, boundary, ahead - extent * stride))
    heapq.heapify(events)
    for _round in range(EVENTS):
        if not events or events[0][0] >= n:
            return None
        at = events[0][0]
        jump: Any = None
        while events and events[0][0] == at:
            _at, k, s, boundary, weight = events[0]
            jump = weight if jump is None else jump + weight
            heapq.heapreplace(events, (-(-(k + 1) * boundary // s), k + 1, s, boundary, weight))
        if jump:
            return at
    raise Undecided(
        where, f"more than {EVENTS} slope changes cancel each other", inputs=inputs, facts={"bound": EVENTS}
    )


# --- verify: additivity, cluster by cluster


def _verify(
    a: Sequence[Pair], b: Sequence[Pair], digits: list[list[Digit]], where: str, inputs: dict[str, object]
) -> None:
    """Proves that A is additive on the recovered iters, or raises with the coordinates where it is not."""
    flat = [(mode, *digit) for mode, found in enumerate(digits) for digit in found]
    boundary, modes = 1, 0
    rest = flat
    for r, (extent, _d) in enumerate(a):
        boundary *= extent
        modes += 1
        below = [item for item in rest if item[2] % boundary]
        if r + 1 < len(a) and sum(t * (q - 1) for _m, q, t, _v in below) >= boundary:
            continue  # a carry may cross this boundary: not a cut
        if r + 1 == len(a):
            below = rest
        if modes > 1:
            _check_cluster(a, b, below, where, inputs)
        rest = [item for item in rest if not item[2] % boundary]
        modes = 0


def _check_cluster(
    a: Sequence[Pair],
    b: Sequence[Pair],
    cluster: list[tuple[int, int, int, Any]],
    where: str,
    inputs: dict[str, object],
) -> None:
    if len(cluster) < 2:
        return  # one iter alone was proved linear when it was recovered
    bad = linear_on(a, [(q, t, v) for _m, q, t, v in cluster])
    if bad is None:
        return
    if isinstance(bad, int):
        raise Undecided(
            where,
            f"{bad} points would have to be compared, more than the bound {BOUND}",
            inputs=inputs,
            facts={"bound": BOUND},
        )
    point = [0] * len(b)
    for digit, (mode, _q, t, _v) in zip(bad, cluster, strict=True):
        point[mode] += digit * (t // b[mode][1])
    at = sum(digit * t for digit, (_m, _q, t, _v) in zip(bad, cluster, strict=True))
    value = evaluate_flat(a, at)
    expected = sum((digit * v for digit, (_m, _q, _t, v) in zip(bad, cluster, strict=True)), start=0 * value)
    raise no_layout(
        where,
        f"the modes carry: at {tuple(point)} the value is {value}, the modes alone add up to {expected}",
        inputs=inputs,
        legal="modes whose sum does not carry in the digits of the outer layout",
        points=(tuple(point),),
        values=(value, expected),
        condition="A(x + y) = A(x) + A(y)",
    )


def linear_on(a: Sequence[Pair], digits: Sequence[Digit]) -> tuple[int, ...] | int | None:
    """Decides whether ``A(sum c_j t_j) = sum c_j v_j`` on the whole box of digits c.

    Returns:
        None if it holds; a box point where it fails; or the number of points, if that passes `BOUND` and the
        corners and edges show no failure.
    """
    extents = [q for q, _t, _v in digits]
    for point in _probes(extents):
        at = sum(c * t for c, (_q, t, _v) in zip(point, digits, strict=True))
        value = evaluate_flat(a, at)
        if value != sum((c * v for c, (_q, _t, v) in zip(point, digits, strict=True)), start=0 * value):
            return tuple(point)
    points = prod(extents)
    if points > BOUND:
        return points
    return _enumerate(a, digits, extents)


def _probes(extents: list[int]) -> list[list[int]]:
    """A few telling points: the far corner, pairs of digits at their ends, single digits at one and at the end."""
    out = [[q - 1 for q in extents]]
    for i, q in enumerate(extents):
        for j in range(i):
            for x, y in product({1, q - 1}, {1, extents[j] - 1}):
                point = [0] * len(extents)
                point[i], point[j] = x, y
                out.append(point)
    return out


def _enumerate(a: Sequence[Pair], digits: Sequence[Digit], extents: list[int]) -> tuple[int, ...] | None:
    """The first box point, in row-major order, at which the two sides differ."""
    for axis in _axes(a):
        pairs = [(n, d[axis] if axis else d) for n, d in a]
        reach = max(sum(abs(d) * n for n, d in pairs), prod(n for n, _d in a))
        kind: Any = np.int64 if reach < 1 << 62 else object
        at = np.zeros((), dtype=kind)
        want = np.zeros((), dtype=kind)
        for q, t, v in digits:
            steps = np.arange(q).astype(kind)
            at = at[..., None] + steps * t
            want = want[..., None] + steps * (v[axis] if axis else v)
        got = np.zeros_like(at)
        for n, d in pairs:
            got = got + (at % n) * d
            at = at // n
        bad = np.flatnonzero(got != want)
        if bad.size:
            return tuple(int(x) for x in np.unravel_index(int(bad[0]), tuple(extents)))
    return None


def _axes(a: Sequence[Pair]) -> list[str]:
    """The axes that the strides use; the one name "" for plain integers."""
    if not a or not isinstance(a[0][1], Coord):
        return [""]
    return sorted({axis for _n, d in a for axis in d.axes})
