"""The CuTe value: nested ``shape:stride`` layouts, **first mode fastest**."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, cast

import numpy as np

from tileweave.draw import drawn_by
from tileweave.errors import Incongruent, LayoutError, short_text
from tileweave.index import Expr
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.layout import Iter, Layout
from tileweave.layout.core.symbolic import simple
from tileweave.layout.notation.cute_tuples import (
    GREATEST,
    Pair,
    Shape,
    Stride,
    _,
    check_depth,
    check_range,
    congruent,
    flat_tuple,
    inner_product,
    make_shape,
    make_stride,
    rank,
    size,
    tuple_text,
    whole_number,
    zip_shape,
)

_CHUNK = 1 << 15
"""How many linear indices are evaluated at once."""


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True, init=False)
class CuteLayout:
    """A layout ``shape:stride``: coordinate ``c`` goes to ``sum(c_i * d_i)``; linear indices run first mode fastest.

    Args:
        shape: a positive integer or a nested tuple of them.
        stride: the same nesting; integers of any sign, or coordinates (`E`). When one leaf is a coordinate, all
            become coordinates (0 the zero vector, k the vector k@m).

    Extents and strides may be index expressions. Evaluation, sizes, coalesce, compositions, complements, divides and
    products then prove what they rely on; the other operations need numbers.

    Raises:
        LayoutError: an extent that is not positive, a stride that is no integer or coordinate.
        Incongruent: shape and stride nest differently.
        Unproved: an extent that its ranges do not prove positive.

    Example:
        >>> layout = CuteLayout(((2, 2), 4), ((1, 8), 2))
        >>> print(layout, layout(3), layout(1, 2), layout((0, 1), 2))
        ((2,2),4):((1,8),2) 9 5 12

    Source: CuTe; seed 003, sections 1 to 4.
    """

    shape: Shape
    stride: Stride
    _flat: tuple[Pair, ...] | None = field(init=False, repr=False, compare=False)  # made when first asked for

    def __init__(self, shape: Any, stride: Any) -> None:
        if type(shape) is type(stride) is tuple and len(shape) == len(stride) and _plain(shape, stride):
            _set_shape(self, shape)
            _set_stride(self, stride)
            _set_flat(self, None)
            return
        where = "CuteLayout(shape, stride)"
        shape = make_shape(shape, where)
        stride = make_stride(stride, where)
        if not congruent(shape, stride):
            raise Incongruent(
                where,
                "shape and stride nest differently",
                inputs={"shape": tuple_text(shape), "stride": tuple_text(stride)},
                legal="one stride for each extent",
            )
        strides = flat_tuple(stride)
        if any(isinstance(d, Coord) for d in strides):
            strides = tuple(map(Coord.of, strides))
            stride = zip_shape(shape, iter(strides))
        _set_shape(self, shape)
        _set_stride(self, stride)
        _set_flat(self, tuple(zip(flat_tuple(shape), strides, strict=True)))

    @property
    def flat(self) -> tuple[Pair, ...]:
        """The modes without nesting: (extent, stride) pairs, first fastest."""
        found = self._flat
        if found is None:
            found = tuple(zip(flat_tuple(self.shape), flat_tuple(self.stride), strict=True))
            _set_flat(self, found)
        return found

    @property
    def size(self) -> int:
        """The number of coordinates: the product of the extents."""
        out = 1
        for n, _d in self._flat or self.flat:
            out *= n
        return out if type(out) is int else simple(out)

    @property
    def is_symbolic(self) -> bool:
        """Whether an extent or a stride is an index expression."""
        for n, d in self._flat or self.flat:
            if type(n) is not int:
                return True
            if type(d) is not int and (type(d) is not Coord or any(type(v) is not int for _axis, v in d.terms)):
                return True
        return False

    @property
    def zero(self) -> Any:
        """The value at the origin: 0, or the zero vector where the strides are coordinates."""
        flat = self._flat or self.flat
        return Coord() if flat and isinstance(flat[0][1], Coord) else 0

    def __call__(self, *crd: Any) -> Any:
        """The value at a linear index or a coordinate; with `_` among the coordinates, the sublayout that it leaves.

        Args:
            crd: one linear index, or one coordinate per mode, or one tuple of them. Integers, integer arrays
                (vectorised) or index expressions.

        Raises:
            LayoutError: a number out of range: layouts are finite here.
            Unproved: an index expression whose range does not prove it within its mode.
        """
        if len(crd) == 1:
            index = crd[0]
            if type(index) is int:
                rest, out = index, self.zero
                if rest >= 0:
                    for n, d in self._flat or self.flat:
                        rest, digit = divmod(rest, n)
                        out = out + digit * d
                    if rest == 0:  # false, too, where the rest is an expression
                        return out if type(out) is int else simple(out)
                check_range(index, self.size, "layout(index)", self.shape)
            if type(index) is not tuple:
                return self._at(index)
            crd = index
        found = _inner(crd, self.shape, self.stride)
        return self._at(crd) if found is None else found

    def _at(self, crd: Any) -> Any:
        if isinstance(crd, list):
            crd = tuple(crd)
        if isinstance(crd, tuple):
            check_depth(crd, "layout(coordinate)")
        if is_free(crd):
            return selected(self, crd, True)
        if isinstance(crd, np.ndarray) and crd.size > _CHUNK:  # piece by piece, within the cache
            flat = crd.reshape(-1)
            pieces = [self._at(flat[k : k + _CHUNK]) for k in range(0, flat.size, _CHUNK)]
            return np.concatenate(pieces).reshape(crd.shape)
        return simple(inner_product(crd, self.shape, self.stride, "layout(coordinate)"))

    def as_core(self) -> Layout:
        """The core layout with the same value at every linear index: the flat modes in reverse."""
        return Layout(tuple(Iter(n, Coord.of(d)) for n, d in reversed(self.flat)))

    def mapped(self, number: Callable[[Any], Any], vector: Callable[[Coord], Coord]) -> CuteLayout:
        """The layout with a function applied to its extents and strides."""
        shape = zip_shape(self.shape, iter([number(n) for n, _d in self.flat]))
        strides = [vector(d) if isinstance(d, Coord) else number(d) for _n, d in self.flat]
        return CuteLayout(shape, zip_shape(self.shape, iter(strides)))

    def __getitem__(self, mode: int) -> CuteLayout:
        """The layout of one top-level mode; a layout without tuple has the one mode 0."""
        if not isinstance(self.shape, tuple):
            modes: tuple[tuple[Any, Any], ...] = ((self.shape, self.stride),)
        else:
            modes = tuple(zip(self.shape, self.stride, strict=True))  # type: ignore[arg-type]
        number = whole_number(mode)
        if number is None or not -len(modes) <= number < len(modes):
            raise LayoutError(
                "layout[mode]",
                f"there is no mode {short_text(mode)}",
                inputs={"layout": self},
                legal=f"0..{len(modes) - 1}",
            )
        return new_layout(*modes[number])

    def __iter__(self) -> Iterator[CuteLayout]:
        return (self[k] for k in range(rank(self.shape)))

    def __len__(self) -> int:
        return rank(self.shape)

    def __str__(self) -> str:
        return f"{tuple_text(self.shape)}:{tuple_text(self.stride)}"


def new_layout(shape: Any, stride: Any, flat: tuple[Pair, ...] | None = None) -> CuteLayout:
    """A layout from parts that are known to be sound: no checks, for results of the algebra."""
    self = _new(CuteLayout)
    _set_shape(self, shape)
    _set_stride(self, stride)
    if flat is None:
        nested = type(shape) is tuple
        flat = tuple(zip(flat_tuple(shape), flat_tuple(stride), strict=True)) if nested else ((shape, stride),)
    _set_flat(self, flat)
    return self


def nested_as(like: CuteLayout, modes: Sequence[Pair]) -> CuteLayout:
    """The layout of these modes in the nesting of another."""
    shape = zip_shape(like.shape, iter([n for n, _d in modes]))
    return new_layout(shape, zip_shape(like.shape, iter([d for _n, d in modes])), tuple(modes))


def _inner(crd: Any, shape: Any, stride: Any) -> int | None:
    """The inner product of a coordinate of integers in range with integer strides; None where that is not so."""
    if type(crd) is int:
        if type(shape) is int:
            return crd * stride if type(stride) is int and 0 <= crd < shape else None
        total = 0
        for n, d in zip(flat_tuple(shape), flat_tuple(stride), strict=True):
            if type(n) is not int or type(d) is not int:
                return None
            crd, digit = divmod(crd, n)
            total += digit * d
        return None if crd else total
    if type(crd) is not tuple or type(shape) is not tuple or len(crd) != len(shape) or not crd:
        return None
    total = 0
    for c, n, d in zip(crd, shape, stride, strict=True):
        if type(c) is type(n) is type(d) is int:
            if not 0 <= c < n:
                return None
            total += c * d
        else:
            found = _inner(c, n, d)
            if found is None:
                return None
            total += found
    return total


def as_layout(value: Any, where: str) -> CuteLayout:
    """A layout as it is; an integer n as the layout n:1.

    Raises:
        LayoutError: anything else.
    """
    if isinstance(value, CuteLayout):
        return value
    if isinstance(value, Expr) or whole_number(value) is not None:
        return CuteLayout(make_shape(value, where), 1)
    raise LayoutError(where, f"{short_text(value)} is no layout", legal="a CuteLayout, or an integer n for n:1")


Operation = TypeVar("Operation", bound=Callable[..., Any])


def through_swizzles(operation: Operation) -> Operation:
    """An operation on layouts that, given a layout behind a swizzle, works on the inner one and keeps the outer.

    Such a layout has `inner` and `with_inner`. An integer n stands for the layout n:1; anything else is refused.
    """
    where = f"{operation.__name__}({', '.join(map(_written, signature(operation).parameters.values()))})"

    @wraps(operation)
    def run(layout: Any, *args: Any, **kwargs: Any) -> Any:
        if type(layout) is not CuteLayout and hasattr(layout, "with_inner"):
            return layout.with_inner(run(layout.inner, *args, **kwargs))
        try:
            return operation(as_layout(layout, where), *args, **kwargs)
        except LayoutError as error:
            error.named(where)  # whichever function it was that refused
            raise

    return cast("Operation", run)


def _written(parameter: Parameter) -> str:
    return f"*{parameter.name}" if parameter.kind is Parameter.VAR_POSITIONAL else parameter.name


def mode_number(value: Any, where: str) -> int:
    """The number of a mode as a plain integer.

    Raises:
        LayoutError: anything else.
    """
    number = whole_number(value)
    if number is None:
        raise LayoutError(where, f"{short_text(value)} is no number of a mode", legal="integers")
    return number


def _plain(shape: tuple[Any, ...], stride: tuple[Any, ...]) -> bool:
    """Whether these are flat tuples of plain integers, sound as they stand: the common case, decided quickly."""
    for n in shape:
        if type(n) is not int or not 0 < n < GREATEST:
            return False
    for d in stride:  # noqa: SIM110 - a loop is twice as quick as all(..)
        if type(d) is not int or not -GREATEST < d < GREATEST:
            return False
    return True


_new = object.__new__
_set_shape = CuteLayout.__dict__["shape"].__set__  # the slots themselves: assignment is closed
_set_stride = CuteLayout.__dict__["stride"].__set__
_set_flat = CuteLayout.__dict__["_flat"].__set__


def concat(layouts: list[CuteLayout], keep: bool = False) -> CuteLayout:
    """The layout whose modes are the given layouts; a single one stands for itself unless `keep` asks for a tuple."""
    if len(layouts) == 1 and not keep:
        return layouts[0]
    shape, stride = tuple([a.shape for a in layouts]), tuple([a.stride for a in layouts])
    flat = tuple([pair for a in layouts for pair in a.flat])
    if any(type(d) is Coord for _n, d in flat):  # mixed strides become coordinates together
        return CuteLayout(shape, stride)
    return new_layout(shape, stride, flat)


def slice_with_offset(layout: CuteLayout, crd: Any) -> tuple[CuteLayout, Any]:
    """The modes at which the coordinate is free, and the value of the rest with 0 in the free places."""
    return selected(layout, crd, True), layout(_zeroed(crd))


def selected(layout: CuteLayout, crd: Any, free: bool) -> CuteLayout:
    """The layout of the modes at which the coordinate is (not) free; a single one stands for itself."""
    if isinstance(crd, tuple):
        check_depth(crd, "slice_(layout, crd)")
    shapes: list[Any] = []
    strides: list[Any] = []
    _select(crd, layout.shape, layout.stride, free, shapes, strides)
    return _joined(shapes, strides)


def _joined(shapes: list[Any], strides: list[Any]) -> CuteLayout:
    if len(shapes) == 1:
        return new_layout(shapes[0], strides[0])
    return new_layout(tuple(shapes), tuple(strides))


def _select(crd: Any, shape: Any, stride: Any, free: bool, shapes: list[Any], strides: list[Any]) -> None:
    """Collect the shape and stride of the modes at which `crd` is (not) free, in order; tuples descend."""
    if type(crd) is int:
        if type(shape) is not int or not 0 <= crd < shape:
            check_range(crd, size(shape), "slice_(layout, crd)", shape)
        kept = not free
    elif crd is _ or crd is None:
        kept = free
    elif isinstance(crd, tuple):
        if not isinstance(shape, tuple) or len(crd) != len(shape):
            raise Incongruent(
                "slice_(layout, crd)",
                f"coordinate {tuple_text(crd)} does not fit",
                inputs={"shape": tuple_text(shape)},
                legal="_ or a coordinate for each mode",
            )
        for c, n, d in zip(crd, shape, stride, strict=True):
            if isinstance(c, tuple):
                inner: tuple[list[Any], list[Any]] = ([], [])
                _select(c, n, d, free, *inner)
                if inner[0]:
                    part = _joined(*inner)
                    shapes.append(part.shape)
                    strides.append(part.stride)
            elif c is not None and c is not _:
                _select(c, n, d, free, shapes, strides)
            elif free:
                shapes.append(n)
                strides.append(d)
        return
    else:
        check_range(crd, size(shape), "slice_(layout, crd)", shape)
        kept = not free
    if kept:
        shapes.append(shape)
        strides.append(stride)


def _zeroed(crd: Any) -> Any:
    if isinstance(crd, tuple):
        return tuple([0 if c is None or c is _ else _zeroed(c) if isinstance(c, tuple) else c for c in crd])
    return 0 if crd is _ or crd is None else crd


def is_free(crd: Any) -> bool:
    """Whether a coordinate is `_` (or None), or holds one."""
    if isinstance(crd, tuple):
        return any(map(is_free, crd))
    return crd is _ or crd is None
