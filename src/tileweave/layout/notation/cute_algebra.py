"""The algebra of CuTe layouts: coalesce, filter, composition, complement, inverses, common layouts.

Every operation agrees with its definition at every point of its domain, or raises `NoLayout` with the witness.
Linear indices run first mode fastest. Where an inner layout leaves the outer domain, the slowest mode of the outer one
runs on without bound, as CuTe reads every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from tileweave.errors import Incongruent, LayoutError, NoLayout, Undecided
from tileweave.index import equal, require
from tileweave.layout.core.checks import Witness, asked, need_numbers, no_layout
from tileweave.layout.core.composition import compose_rows
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.inverse.complement import complement_rows
from tileweave.layout.core.inverse.divide import composition_refused
from tileweave.layout.core.inverse.inverses import left_inverse_rows, right_inverse_rows
from tileweave.layout.core.inverse.longest import Moving
from tileweave.layout.core.rows import Row, evaluate
from tileweave.layout.core.rows import coalesce as coalesce_rows
from tileweave.layout.core.symbolic import is_expr, least_and_greatest, same, simple
from tileweave.layout.notation.cute_tuples import (
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
from tileweave.layout.notation.cute_value import (
    CuteLayout,
    as_layout,
    concat,
    nested_as,
    new_layout,
    through_swizzles,
)

Tiler = Any
"""An int n (the layout n:1), a layout, or a tuple of tilers, one for each leading mode; `_` leaves a mode alone."""


def from_modes(modes: Sequence[Row], zero: Any = 0) -> CuteLayout:
    """The layout of a list of flat modes: none gives 1:0, one a plain mode, several a tuple."""
    if not modes:
        return new_layout(1, zero)
    if len(modes) == 1:
        return new_layout(*modes[0])
    return new_layout(tuple([n for n, _d in modes]), tuple([d for _n, d in modes]), tuple(modes))


def integral(value: Any, where: str) -> CuteLayout:
    """`as_layout` of a layout with integer strides; coordinate strides are refused."""
    layout = as_layout(value, where)
    if isinstance(layout.zero, Coord):
        raise LayoutError(where, "the strides are coordinates", inputs={"layout": layout}, legal="integer strides")
    return layout


def cosize(layout: Any) -> int:
    """One more than the greatest value: ``1 + max(layout)``. A negative stride never raises the maximum.

    Example:
        >>> cosize(CuteLayout((2, 3), (1, 4))), cosize(CuteLayout(4, -1))
        (10, 1)

    Source: seed 003, section 2.
    """
    if not isinstance(layout, CuteLayout) and hasattr(layout, "cosize") and hasattr(layout, "with_inner"):
        return layout.cosize  # type: ignore[no-any-return]
    layout = integral(layout, "cosize(layout)")
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
        return from_modes(coalesce_rows(layout.flat), layout.zero)
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


def is_zero(stride: Any, where: str) -> bool:
    """Whether a stride is zero, decided for all values of its symbols."""
    if not is_expr(stride):
        return not stride
    if same(stride, 0):
        return True
    require(~equal(stride, 0), where)
    return False


def filter_zeros(layout: CuteLayout) -> CuteLayout:
    """The layout with every mode of stride zero shrunk to extent 1; the nesting stays."""
    layout = as_layout(layout, "filter_zeros(layout)")
    return nested_as(layout, [(1 if is_zero(d, "filter_zeros(layout)") else n, d) for n, d in layout.flat])


def filter_layout(layout: CuteLayout) -> CuteLayout:
    """The coalesced layout of the modes that move: stride zero and extent one are dropped.

    Example:
        >>> print(filter_layout(CuteLayout((2, 1, 3, 4), (1, 5, 0, 2))))
        8:1

    Source: CuTe, ``filter``.
    """
    layout = as_layout(layout, "filter(layout)")
    moving = [(n, d) for n, d in layout.flat if not is_zero(d, "filter(layout)")]
    return from_modes(coalesce_rows(moving), layout.zero)


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

    Source: CuTe; the decision is own (`core.composition`).
    """
    if isinstance(a, CuteLayout) and isinstance(b, CuteLayout):
        return composition_of(a, b, "composition(a, b)")
    if isinstance(b, tuple | list) and not (hasattr(a, "composed") and not hasattr(a, "with_inner")):
        inner = a if hasattr(a, "with_inner") else as_layout(a, "composition(a, b)")
        return by_mode(inner, tuple(b), "composition(a, b)", composition, "a")
    for part in (a, b):
        if hasattr(part, "composed"):  # a swizzle, or a layout behind one: `f2` knows
            return part.composed(a, b)
    return composition_of(as_layout(a, "composition(a, b)"), as_layout(b, "composition(a, b)"), "composition(a, b)")


def by_mode(
    layout: Any, tiler: tuple[Any, ...], where: str, operation: Callable[..., Any], name: str = "layout"
) -> Any:
    """An operation on each leading mode with its entry of the tiler; further modes, and those at `_`, are kept.

    Behind a swizzle the inner layout is worked on. In messages the layout is called `name`.
    """
    check_depth(tiler, where)
    if hasattr(layout, "with_inner"):
        return layout.with_inner(by_mode(layout.inner, tiler, where, operation, name))
    if len(tiler) > rank(layout):
        raise Incongruent(
            where,
            f"a tiler of {len(tiler)} entries for {rank(layout)} modes",
            inputs={name: layout},
            legal="at most one entry for each mode",
        )
    modes = list(layout)
    head = [m if isinstance(t, Underscore) else operation(m, t) for m, t in zip(modes, tiler, strict=False)]
    return concat(head + modes[len(tiler) :], keep=True)


def composition_of(a: CuteLayout, b: CuteLayout, where: str) -> CuteLayout:
    """`composition` of two layouts on behalf of the public function `where`."""
    if isinstance(b.zero, Coord):
        return _compose_coordinates(a, b, where)
    rows, inputs = b.flat, {"a": a, "b": b}
    found = compose_rows(a.flat, rows, 0, a.zero, where, inputs)
    if found.__class__ is not Witness:
        return refined(b.shape, found[0])
    legal = ""
    merged = coalesce_rows(rows)
    if len(merged) < len(rows):  # the refusal tells whether the coalesced inner layout would compose
        try:
            again = compose_rows(a.flat, merged, 0, a.zero, where, inputs)
        except Undecided:
            again = Witness((), (), "")
        if not isinstance(again, Witness):
            flat = refined(tuple([n for n, _d in merged]), again[0]) if merged else a
            legal = f"composition(a, coalesce(b)), which is {coalesce(flat)}"
    raise composition_refused(found, where, inputs, legal)


def _outside(
    rows: Sequence[Row], value: int, sign: int, domain: int, where: str, inputs: Mapping[str, object]
) -> NoLayout:
    return no_layout(
        where,
        f"the inner layout reaches {value}, outside the domain [0, {domain}) of the outer one",
        inputs=inputs,
        legal=f"an inner layout with values in [0, {domain})",
        points=(tuple(n - 1 if sign * s > 0 else 0 for n, s in rows),),
        values=(value,),
        condition=f"0 <= value < {domain}",
    )


def refined(shape: Shape, modes: Sequence[Sequence[Row]]) -> CuteLayout:
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
            for sign in (1, -1):
                value = sum(d * (n - 1) for n, d in along if sign * d > 0)
                if not 0 <= value < mode.size:
                    raise _outside(along, value, sign, mode.size, where, {"a": a, "b": b})
    inner = [(n, simple(sum(step[axis] * value for axis, value in d.terms))) for n, d in b.flat]
    found = compose_rows(a.flat, inner, 0, a.zero, where, {"a": a, "b": b})
    if isinstance(found, Witness):
        raise composition_refused(found, where, {"a": a, "b": b})
    return refined(b.shape, found[0])


def extend(a: CuteLayout, least: int) -> CuteLayout:
    """`a` with its slowest leaf lengthened, if need be, until the size reaches `least`."""
    if a.size >= least:
        return a
    if not a.flat:
        return new_layout(least, 0)
    n, d = a.flat[-1]
    return nested_as(a, [*a.flat[:-1], (-(-least // (a.size // n)), d)])


# --- complement and inverses


def _moving(layout: CuteLayout) -> list[Moving]:
    """The modes (stride, extent, step of the linear index) of extent above one, coalesced, by ascending strides."""
    out, step = [], 1
    for n, d in coalesce_rows(layout.flat):
        out.append((d, n, step))
        step *= n
    return sorted(out)


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
    layout = integral(layout, where)
    inputs: dict[str, object] = {"layout": layout} if bound is None else {"layout": layout, "bound": bound}
    if is_expr(bound) or isinstance(bound, tuple | list):
        bound = size(make_shape(bound, where))
    elif bound is not None:
        bound = positive(bound, where, "bound")
    return from_modes(complement_rows(coalesce_rows(layout.flat), bound, where, inputs))


def right_inverse(layout: CuteLayout) -> CuteLayout:
    """The longest layout R with ``layout(R(i)) = i`` for all i; of that length, one that runs along single modes.

    Its size is 1 where no mode has stride one. Modes of negative stride are left out: R begins at index 0.

    Raises:
        Undecided: strides overlap on more than `BOUND` points.

    Example:
        >>> print(right_inverse(CuteLayout((2, 4), (4, 1))), right_inverse(CuteLayout((4, 3), (2, 1))))
        (4,2):(2,1) (2,4):(4,1)

    Source: CuTe; the length as the definition (own).
    """
    where = "right_inverse(layout)"
    layout = integral(layout, where)
    need_numbers(where, layout)
    moving = _moving(layout)
    if moving and moving[0][0] < 0:
        moving = [row for row in moving if row[0] >= 0]
    return from_modes(right_inverse_rows(moving, where, {"layout": layout})[0])


def left_inverse(layout: CuteLayout) -> CuteLayout:
    """A layout L with ``L(layout(i)) = i`` for all i in [0, size); it exists only for injective layouts.

    Its domain is [0, cosize) or a little more. Values that `layout` skips go to indices from its size on where the
    gaps are whole runs (as in CuTe), and are arbitrary elsewhere.

    Raises:
        NoLayout: two indices (the witness) have the same value, a value is negative, or no layout agrees.
        Undecided: the strides do not nest, a value is `BOUND` or more, and no chain of strides will do.

    Example:
        >>> print(left_inverse(CuteLayout((5, 2), (3, 1))))
        (3,5):(5,1)

    Source: CuTe; complete by own search.
    """
    where = "left_inverse(layout)"
    layout = integral(layout, where)
    need_numbers(where, layout)
    moving = _moving(layout)
    inputs: dict[str, object] = {"layout": layout}
    if moving and moving[0][0] <= 0:
        d, _n, step = moving[0]
        raise no_layout(
            where,
            f"index {step} has the value {d}, which is taken or negative",
            inputs=inputs,
            legal="an injective layout with values from 0",
            points=(0, step),
            values=(0, d),
            condition="values are distinct and not negative",
        )
    return from_modes(left_inverse_rows(moving, 0, 0, layout.as_core(), where, inputs)[0])


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
    return from_modes(coalesce_rows(out))


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
    need_numbers(where, a, b)
    if a.size != b.size:
        raise Incongruent(where, f"sizes {a.size} and {b.size} differ", inputs={"a": a, "b": b})
    outer = coalesce_rows(integral(a, where).flat)
    kept: list[Row] = []
    run = 1
    for n, step in coalesce_rows(right_inverse(b).flat):
        longest = _agreeing(outer, [*kept, (n, step)], run)
        if longest > 1:
            kept.append((longest, step))
        run *= longest
        if longest < n:
            break
    return from_modes(coalesce_rows(kept))


def _agreeing(outer: list[Row], modes: list[Row], run: int) -> int:
    """The greatest extent of the last mode for which ``A(R(i)) = i`` still holds; found by bisection."""
    n, step = modes[-1]

    def holds(extent: int) -> bool:
        index = [*modes[:-1], (extent, step)]
        found = compose_rows(outer, index, 0, 0, "max_common_layout(a, b)", {})
        if isinstance(found, Witness):
            return False
        return coalesce_rows([mode for part in found[0] for mode in part]) == [(run * extent, 1)]

    if run == 1 and evaluate(outer, step) != 1:
        return 1
    low, high = 1, n
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


@asked("max_common_vector(a, b)")
def max_common_vector(a: CuteLayout, b: CuteLayout) -> int:
    """How many elements, contiguous in both layouts, can be moved at once: the size of `max_common_layout`.

    Example:
        >>> max_common_vector(CuteLayout((4, 8), (1, 4)), CuteLayout((4, 8), (1, 8)))
        4
    """
    return prod(n for n, _d in max_common_layout(a, b).flat)
