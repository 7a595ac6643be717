"""The algebra of CuTe layouts: coalesce, filter, composition, complement, inverses, common layouts.

Every operation agrees with its definition at every point of its domain, or raises `NoLayout` with the witness.
Linear indices run first mode fastest. Where an inner layout leaves the outer domain, the slowest mode of the outer one
runs on without bound, as CuTe reads every layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from tileweave.errors import Incongruent, LayoutError, NoLayout, Undecided
from tileweave.index import require
from tileweave.layout.core.layout import Coord, Iter, Layout
from tileweave.layout.core.search import collision
from tileweave.layout.core.symbolic import is_expr, least_and_greatest, simple
from tileweave.layout.f2.swizzle import ComposedLayout, Swizzle, through_swizzles
from tileweave.layout.notation.cute_exact import (
    check_domain,
    coalesce_flat,
    compose_flat,
    compose_structural,
    evaluate_flat,
    no_layout,
)
from tileweave.layout.notation.cute_solve import left_inverse_modes
from tileweave.layout.notation.cute_symbolic import complement_symbolic, compose_symbolic, is_zero, require_numbers
from tileweave.layout.notation.cute_tuples import (
    Pair,
    Shape,
    Underscore,
    check_depth,
    make_shape,
    mode_path,
    positive,
    rank,
    size,
    zip_shape,
)
from tileweave.layout.notation.cute_value import CuteLayout, as_layout, concat, new_layout

__all__ = [
    "Tiler",
    "coalesce",
    "complement",
    "compose",
    "composition",
    "cosize",
    "filter_layout",
    "filter_zeros",
    "from_modes",
    "left_inverse",
    "max_common_layout",
    "max_common_vector",
    "nullspace",
    "right_inverse",
]

Tiler = Any
"""An int n (the layout n:1), a layout, or a tuple of tilers, one for each leading mode; `_` leaves a mode alone."""


def from_modes(modes: Sequence[Pair], zero: Any = 0) -> CuteLayout:
    """The layout of a list of flat modes: none gives 1:0, one a plain mode, several a tuple."""
    if not modes:
        return new_layout(1, zero)
    if len(modes) == 1:
        return new_layout(*modes[0])
    return new_layout(tuple([n for n, _d in modes]), tuple([d for _n, d in modes]), tuple(modes))


def _integers(layout: CuteLayout, where: str) -> CuteLayout:
    if isinstance(layout.zero, Coord):
        raise LayoutError(where, "the strides are coordinates", inputs={"layout": layout}, legal="integer strides")
    return layout


def cosize(layout: CuteLayout | ComposedLayout) -> int:
    """One more than the greatest value: ``1 + max(layout)``. A negative stride never raises the maximum.

    Example:
        >>> cosize(CuteLayout((2, 3), (1, 4))), cosize(CuteLayout(4, -1))
        (10, 1)

    Source: seed 003, section 2.
    """
    if isinstance(layout, ComposedLayout):
        return layout.cosize
    layout = _integers(as_layout(layout, "cosize(layout)"), "cosize(layout)")
    if layout.is_symbolic:
        _low, high = least_and_greatest(0, 0, [d * (n - 1) for n, d in layout.flat])
        return simple(high + 1)  # type: ignore[no-any-return]
    return 1 + int(sum(d * (n - 1) for n, d in layout.flat if d > 0))


@through_swizzles
def coalesce(layout: CuteLayout, profile: Any = None) -> CuteLayout:
    """The layout with the fewest modes and the same values at all linear indices; unique.

    Args:
        layout: any layout.
        profile: left out, the whole is coalesced; a tuple coalesces mode by mode, keeping that nesting (its leaves
            carry no meaning, and modes beyond its length stay as they are).

    Raises:
        Incongruent: the profile has more modes than the layout.

    Example:
        >>> print(coalesce(CuteLayout((2, (1, 6)), (1, (7, 2)))))
        12:1
        >>> print(coalesce(CuteLayout(((2, 3), 4), ((1, 2), 6)), (1, 1)))
        (6,4):(1,6)

    Source: CuTe; Axe, theorem A.8 (uniqueness).
    """
    if not isinstance(profile, tuple):
        return from_modes(coalesce_flat(layout.flat), layout.zero)
    check_depth(profile, "coalesce(layout, profile)")
    if len(profile) > rank(layout):
        raise Incongruent(
            "coalesce(layout, profile)",
            f"the profile has {len(profile)} modes, the layout {rank(layout)}",
            inputs={"layout": layout},
        )
    modes = list(layout)
    head = [coalesce(mode, p if isinstance(p, tuple) else None) for mode, p in zip(modes, profile, strict=False)]
    return concat(head + modes[len(profile) :], keep=True)


def filter_zeros(layout: CuteLayout) -> CuteLayout:
    """The layout with every mode of stride zero shrunk to extent 1; the nesting stays."""
    layout = as_layout(layout, "filter_zeros(layout)")
    leaves = iter([1 if is_zero(d, "filter_zeros(layout)") else n for n, d in layout.flat])
    return new_layout(zip_shape(layout.shape, leaves), layout.stride)


def filter_layout(layout: CuteLayout) -> CuteLayout:
    """The coalesced layout of the modes that move: stride zero and extent one are dropped.

    Example:
        >>> print(filter_layout(CuteLayout((2, 1, 3, 4), (1, 5, 0, 2))))
        8:1

    Source: CuTe, ``filter``.
    """
    layout = as_layout(layout, "filter(layout)")
    moving = [(n, d) for n, d in layout.flat if not is_zero(d, "filter(layout)")]
    return from_modes(coalesce_flat(moving), layout.zero)


# --- composition


def composition(a: Any, b: Any) -> Any:
    """The layout ``c -> a(b(c))``, refining the shape of `b` mode by mode; exact, or refused with a witness.

    Values of `b` from ``size(a)`` on are read as CuTe reads them: the slowest mode of `a`, as it is written, runs on
    without bound (``(4,1):(2,9)`` goes on with 9, ``4:2`` with 8). Within ``[0, size(a))`` the result does not depend
    on how `a` is written; ``cosize(b) <= size(a)`` tells whether that is the case. A layout of one mode is linear
    and runs on below zero too.

    Args:
        a: a layout, a swizzle or a composed layout; applied last.
        b: a layout; an integer n (n:1); a tuple (mode k of `a` with entry k, further modes kept); a swizzle. A layout
            with coordinate strides `E` reads the modes of `a` by their paths, within their sizes.

    Returns:
        a `CuteLayout`, or a `ComposedLayout` where a swizzle takes part.

    Raises:
        NoLayout: a value of `b` is negative and `a` has several modes, or no layout that refines `b` agrees with
            ``a(b(c))``.
        Undecided: the exact search would pass its bound.

    Example:
        >>> a = CuteLayout((6, 2), (8, 2))
        >>> print(composition(a, CuteLayout((4, 3), (3, 1))))
        ((2,2),3):((24,2),8)
        >>> print(composition(CuteLayout((2, 2), (8, 12)), CuteLayout(2, 3)), composition(CuteLayout(4, 2), 8))
        2:20 8:2

    Source: CuTe; the decision is own (`cute_exact`).
    """
    if isinstance(a, CuteLayout) and isinstance(b, CuteLayout):
        return compose(a, b, "composition(a, b)")
    if isinstance(a, CuteLayout | ComposedLayout) and isinstance(b, tuple | list):
        return _by_mode(a, tuple(b))
    if isinstance(a, Swizzle | ComposedLayout) or isinstance(b, Swizzle | ComposedLayout):
        return _compose_swizzled(a, b)
    if isinstance(b, tuple | list):
        return _by_mode(as_layout(a, "composition(a, b)"), tuple(b))
    return compose(as_layout(a, "composition(a, b)"), as_layout(b, "composition(a, b)"), "composition(a, b)")


def _compose_swizzled(a: Any, b: Any) -> Any:
    """Compositions with a swizzle on either side: a `ComposedLayout`, and less where the swizzles cancel."""
    if isinstance(a, Swizzle) and isinstance(b, Swizzle):
        if a == b:
            return Swizzle(0, 0, 0)
        raise LayoutError(
            "composition(a, b)",
            f"{a} o {b} is no single swizzle",
            legal="maps over F2: f2_from_swizzle(a, bits).compose(f2_from_swizzle(b, bits))",
        )
    if not isinstance(a, Swizzle | ComposedLayout):
        a = as_layout(a, "composition(a, b)")
    if isinstance(b, Swizzle):
        size = (a.inner if isinstance(a, ComposedLayout) else a).size
        b = ComposedLayout(b, 0, CuteLayout(size, 1))
    elif not isinstance(b, ComposedLayout):
        b = as_layout(b, "composition(a, b)")
    if isinstance(a, ComposedLayout):
        return replace(a, inner=composition(a.inner, b))
    if isinstance(b, ComposedLayout):
        if a == b.outer and not b.offset and isinstance(a, Swizzle):
            return b.inner
        if isinstance(a, CuteLayout):
            if coalesce(a) == CuteLayout(a.size, 1) and b.cosize <= a.size:
                return b
            a = extend(a, b.cosize)
    return ComposedLayout(a, 0, b)


def _by_mode(a: Any, tiler: tuple[Any, ...]) -> Any:
    """Mode k of `a` composed with entry k; further modes are kept."""
    check_depth(tiler, "composition(a, b)")
    if isinstance(a, ComposedLayout):
        return replace(a, inner=_by_mode(a.inner, tiler))
    if len(tiler) > rank(a):
        raise Incongruent(
            "composition(a, b)",
            f"a tiler of {len(tiler)} entries for {rank(a)} modes",
            inputs={"a": a},
            legal="at most one entry for each mode",
        )
    modes = list(a)
    head = [m if isinstance(t, Underscore) else composition(m, t) for m, t in zip(modes, tiler, strict=False)]
    return concat(head + modes[len(tiler) :], keep=True)


def compose(a: CuteLayout, b: CuteLayout, where: str) -> CuteLayout:
    """`composition` of two layouts on behalf of the public function `where`."""
    if isinstance(b.zero, Coord):
        return _compose_coordinates(a, b, where)
    modes = _modes_or_hint(a, b, where)
    return _refine(b.shape, modes)


def _modes_or_hint(a: CuteLayout, b: CuteLayout, where: str) -> list[list[Pair]]:
    """The composed modes; a refusal tells whether the coalesced inner layout would compose."""
    if a.is_symbolic or b.is_symbolic:
        return compose_symbolic(a.flat, b.flat, where, a.zero)
    outer = coalesce_flat(a.flat)
    found = compose_structural(outer, b.flat, a.zero)
    if found is not None:
        return found
    reach = sum(d * (n - 1) for n, d in b.flat if d > 0)
    outer = coalesce_flat(extend(a, max(reach, a.size) + 1).flat)
    if len(outer) == 1:
        return [[(n, s * outer[0][1])] for n, s in b.flat]
    try:
        return compose_flat(outer, b.flat, where, {"a": a, "b": b}, a.zero)
    except NoLayout as error:
        merged = coalesce_flat(b.flat)
        if len(merged) < len(b.flat):
            try:
                flat = _refine(tuple(n for n, _d in merged), compose_flat(outer, merged, where, {}, a.zero))
            except (NoLayout, Undecided):
                raise error from None
            raise NoLayout(
                where,
                error.problem,
                inputs=error.inputs,
                facts=error.facts,
                legal=f"composition(a, coalesce(b)), which is {coalesce(flat)}",
            ) from None
        raise


def _refine(shape: Shape, modes: list[list[Pair]]) -> CuteLayout:
    """The layout of `shape` with each leaf replaced by its modes."""
    if not isinstance(shape, tuple):
        return from_modes(modes[0])
    shapes: list[Any] = []
    strides: list[Any] = []
    for found in modes:
        if len(found) == 1:
            n, d = found[0]
            shapes.append(n)
            strides.append(d)
        else:
            shapes.append(tuple([n for n, _d in found]))
            strides.append(tuple([d for _n, d in found]))
    flat = tuple([pair for found in modes for pair in found])
    if len(shape) == len(modes) and tuple not in map(type, shape):
        return new_layout(tuple(shapes), tuple(strides), flat)
    return new_layout(zip_shape(shape, iter(shapes)), zip_shape(shape, iter(strides)), flat)


def _compose_coordinates(a: CuteLayout, b: CuteLayout, where: str) -> CuteLayout:
    """``a(b(c))`` where `b` gives coordinates of `a`: as linear indices, the steps of the modes added up."""
    step: dict[str, int] = {}
    symbolic = a.is_symbolic or b.is_symbolic
    for axis in sorted({axis for _n, d in b.flat for axis in d.axes}):
        path = mode_path(axis)
        if path is None:
            raise LayoutError(where, f"axis {axis} names no mode", inputs={"a": a, "b": b}, legal="strides made of E")
        mode, step[axis] = a, 1
        for k in path:
            step[axis] *= prod(m.size for m in list(mode)[:k])
            mode = mode[k]
        along = [(n, d[axis]) for n, d in b.flat]
        if symbolic:
            low, high = least_and_greatest(0, 0, [d * (n - 1) for n, d in along])
            require((low >= 0) & (high < mode.size), where)
        else:
            check_domain([(mode.size, 1)], along, where, {"a": a, "b": b})
    inner = [(n, simple(sum(step[axis] * value for axis, value in d.terms))) for n, d in b.flat]
    if symbolic:
        return _refine(b.shape, compose_symbolic(a.flat, inner, where, a.zero))
    return _refine(b.shape, compose_flat(coalesce_flat(a.flat), inner, where, {"a": a, "b": b}, a.zero))


def extend(a: CuteLayout, least: int) -> CuteLayout:
    """`a` with its slowest leaf lengthened, if need be, until the size reaches `least`."""
    if a.size >= least:
        return a
    if not a.flat:
        return new_layout(least, 0)
    n, d = a.flat[-1]
    modes = [*a.flat[:-1], (-(-least // (a.size // n)), d)]
    return new_layout(zip_shape(a.shape, iter(m for m, _d in modes)), a.stride)


# --- complement and inverses


def _moving(layout: CuteLayout) -> list[tuple[int, int, int]]:
    """The modes (extent, stride, step of the linear index) of extent above one, coalesced."""
    out, step = [], 1
    for n, d in coalesce_flat(layout.flat):
        out.append((n, d, step))
        step *= n
    return out


def complement(layout: CuteLayout, bound: Any = None) -> CuteLayout:
    """The ascending layout that, together with `layout`, is a bijection onto [0, bound).

    It exists iff the modes, sorted by stride, fit into each other: each ``extent * stride`` divides the next stride,
    the last one divides `bound`, and no stride is zero or negative. (An interval has no other tilings by such sets.)

    Args:
        layout: integer strides.
        bound: M, an integer or a shape of that size; left out, the least M for which the complement exists.

    Raises:
        NoLayout: no complement exists; the witness names the two values or strides that do not fit.

    Example:
        >>> print(complement(CuteLayout((2, 2), (1, 6)), 24), complement(CuteLayout(4, 2)))
        (3,2):(2,12) 2:1

    Source: CuTe; exact by de Bruijn's structure of the tilings of an interval.
    """
    where = "complement(layout, bound)"
    layout = _integers(as_layout(layout, where), where)
    inputs: dict[str, object] = {"layout": layout} if bound is None else {"layout": layout, "bound": bound}
    if is_expr(bound) or isinstance(bound, tuple | list):
        bound = size(make_shape(bound, where))
    elif bound is not None:
        bound = positive(bound, where, "bound")
    if layout.is_symbolic or is_expr(bound):
        return from_modes(coalesce_flat(complement_symbolic(layout, bound, where)))
    period = 1
    out: list[Pair] = []
    for n, d, step in sorted(_moving(layout), key=lambda mode: mode[1]):
        if d <= 0:
            raise no_layout(
                where,
                f"stride {d} leaves [0, bound) or repeats a value",
                inputs=inputs,
                legal="positive strides",
                points=(0, step),
                values=(0, d),
                condition="values are distinct and not negative",
            )
        if d % period:
            raise no_layout(
                where,
                f"stride {d} is no multiple of {period}, the period of the faster modes",
                inputs=inputs,
                legal=f"a stride that {period} divides",
                points=(step,),
                values=(d,),
                condition=f"{period} | {d}",
            )
        if d > period:
            out.append((d // period, period))
        period = n * d
    bound = period if bound is None else bound
    if bound % period:
        raise no_layout(
            where,
            f"bound {bound} is no multiple of {period}, the period of the layout",
            inputs=inputs,
            legal=f"a multiple of {period}",
            points=(layout.size - 1,),
            values=(layout(layout.size - 1),),
            condition=f"{period} | {bound}",
        )
    if bound > period:
        out.append((bound // period, period))
    return from_modes(coalesce_flat(out))


def right_inverse(layout: CuteLayout) -> CuteLayout:
    """A layout R with ``layout(R(i)) = i`` for all i: the longest whose iters each step through a mode of their own.

    Its size is 1 where no mode has stride one.

    Example:
        >>> print(right_inverse(CuteLayout((2, 4), (4, 1))), right_inverse(CuteLayout((4, 3), (2, 1))))
        (4,2):(2,1) (2,4):(4,1)

    Source: CuTe; modes are cut short where that makes the inverse longer (own).
    """
    where = "right_inverse(layout)"
    layout = _integers(as_layout(layout, where), where)
    require_numbers(where, layout)
    best: dict[int, tuple[int, list[Pair]]] = {}
    for n, d, step in sorted(_moving(layout), key=lambda mode: -mode[1]):
        if d < 1:
            continue
        reach = (d * n, [(n, step)])
        for ahead, (total, modes) in best.items():
            ratio, rest = divmod(ahead, d)
            if not rest and 2 <= ratio <= n and total > reach[0]:
                reach = (total, [(ratio, step), *modes])
        if d not in best or reach[0] > best[d][0]:
            best[d] = reach
    return from_modes(coalesce_flat(best[1][1]) if 1 in best else [])


def left_inverse(layout: CuteLayout) -> CuteLayout:
    """A layout L with ``L(layout(i)) = i`` for all i in [0, size); it exists only for injective layouts.

    Its domain is [0, cosize) or a little more. Values that `layout` skips go to indices from its size on where the
    gaps are whole runs (as in CuTe), and are arbitrary elsewhere.

    Raises:
        NoLayout: two indices (the witness) have the same value, a value is negative, or no layout agrees.
        Undecided: the exact search for layouts whose strides do not divide each other passed its bound.

    Example:
        >>> print(left_inverse(CuteLayout((5, 2), (3, 1))))
        (3,5):(5,1)

    Source: CuTe; complete by own search.
    """
    where = "left_inverse(layout)"
    layout = _integers(as_layout(layout, where), where)
    require_numbers(where, layout)
    moving = sorted(_moving(layout), key=lambda mode: mode[1])
    for _n, d, step in moving:
        if d <= 0:
            raise no_layout(
                where,
                f"index {step} has the value {d}, which is taken or negative",
                inputs={"layout": layout},
                legal="an injective layout with values from 0",
                points=(0, step),
                values=(0, d),
                condition="values are distinct and not negative",
            )
    if all(not after[1] % before[1] and before[0] * before[1] <= after[1] for before, after in pairwise(moving)):
        return from_modes(coalesce_flat(_nested_inverse(moving, layout.size)))
    check_injective(layout, where)
    return from_modes(coalesce_flat(left_inverse_modes(coalesce_flat(layout.flat), where, {"layout": layout})))


def _nested_inverse(moving: list[tuple[int, int, int]], size: int) -> list[Pair]:
    """The left inverse of ascending modes whose strides divide each other.

    Whole gaps between the values get indices from `size` on, in the order of the complement.
    """
    modes: list[Pair] = []
    run = 1
    for k, (n, d, step) in enumerate(moving):
        if d > run:
            modes.append((d // run, size))
            size *= d // run
        run = n * d
        ahead = moving[k + 1][1] if k + 1 < len(moving) else run
        if ahead % run:  # a gap that is no whole number of runs: the mode itself is lengthened over it
            n, run = ahead // d, ahead
        modes.append((n, step))
    return modes


def check_injective(layout: CuteLayout, where: str) -> None:
    """Proves that no two indices share a value.

    Raises:
        NoLayout: with two indices that do; Undecided: the exact search passed its bound.
    """
    found = collision(Layout(tuple(Iter(n, Coord.of(d)) for n, d in reversed(layout.flat))))
    if found is not None:
        x, y = found
        raise no_layout(
            where,
            f"indices {x} and {y} have the same value",
            inputs={"layout": layout},
            legal="an injective layout",
            points=(x, y),
            values=(layout(x), layout(y)),
            condition="values are distinct",
        )


def nullspace(layout: CuteLayout) -> CuteLayout:
    """The layout of the indices along the modes of stride zero: ``layout(N(i)) = 0`` for all i, N injective.

    Example:
        >>> print(nullspace(CuteLayout((2, 3, 4), (0, 1, 0))))
        (2,4):(1,6)

    Source: CuTe.
    """
    layout = as_layout(layout, "nullspace(layout)")
    out, step = [], 1
    for n, d in layout.flat:
        if is_zero(d, "nullspace(layout)"):
            out.append((n, step))
        step *= n
    return from_modes(coalesce_flat(out))


def max_common_layout(a: CuteLayout, b: CuteLayout) -> CuteLayout:
    """A layout R of the common index with ``a(R(i)) = b(R(i)) = i`` for all i: the elements contiguous in both.

    R is the longest beginning of `right_inverse` (b) on which `a` agrees.

    Raises:
        Incongruent: the sizes differ.

    Example:
        >>> print(max_common_layout(CuteLayout((4, 8), (1, 4)), CuteLayout((4, 8), (1, 8))))
        4:1

    Source: CuTe.
    """
    where = "max_common_layout(a, b)"
    a, b = as_layout(a, where), as_layout(b, where)
    require_numbers(where, a, b)
    if a.size != b.size:
        raise Incongruent(where, f"sizes {a.size} and {b.size} differ", inputs={"a": a, "b": b})
    outer = coalesce_flat(_integers(a, where).flat)
    kept: list[Pair] = []
    run = 1
    for n, step in coalesce_flat(right_inverse(b).flat):
        longest = _agreeing(outer, [*kept, (n, step)], run)
        if longest > 1:
            kept.append((longest, step))
        run *= longest
        if longest < n:
            break
    return from_modes(coalesce_flat(kept))


def _agreeing(outer: list[Pair], modes: list[Pair], run: int) -> int:
    """The greatest extent of the last mode for which ``A(R(i)) = i`` still holds; found by bisection."""
    n, step = modes[-1]

    def holds(extent: int) -> bool:
        index = [*modes[:-1], (extent, step)]
        try:
            found = [mode for part in compose_flat(outer, index, "max_common_layout(a, b)", {}) for mode in part]
        except NoLayout:
            return False
        return coalesce_flat(found) == [(run * extent, 1)]

    if run == 1 and evaluate_flat(outer, step) != 1:
        return 1
    low, high = 1, n
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def max_common_vector(a: CuteLayout, b: CuteLayout) -> int:
    """How many elements, contiguous in both layouts, can be moved at once: the size of `max_common_layout`.

    Example:
        >>> max_common_vector(CuteLayout((4, 8), (1, 4)), CuteLayout((4, 8), (1, 8)))
        4
    """
    return prod(n for n, _d in max_common_layout(a, b).flat)
