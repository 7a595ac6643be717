"""The CuTe value: nested ``shape:stride`` layouts and the integer tuples that they are made of.

Everything here is colexicographic: a linear index runs through the **first** mode fastest. A shape is a positive
integer or a nested tuple of them; a stride has the same nesting, with integers or coordinates (`E`) at the leaves.
Where an integer is written, an index expression may stand: what depends on it is then proved, or `Unproved` names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, Union

import numpy as np

from tileweave.errors import Incongruent, LayoutError, Unproved
from tileweave.index import Expr, require
from tileweave.layout.layout import Coord
from tileweave.layout.symbolic import plain, require_positive, same, simple

__all__ = [
    "CuteLayout",
    "E",
    "IntTuple",
    "Pair",
    "Shape",
    "Stride",
    "StrideLeaf",
    "Underscore",
    "_",
    "as_layout",
    "compatible",
    "concat",
    "congruent",
    "crd2crd",
    "crd2idx",
    "depth",
    "flat_tuple",
    "idx2crd",
    "is_free",
    "make_shape",
    "mode_number",
    "mode_path",
    "new_layout",
    "positive",
    "rank",
    "select_modes",
    "size",
    "slice_with_offset",
    "split_digit",
    "tuple_text",
    "weakly_congruent",
    "zip_shape",
]

IntTuple = Union[int, tuple["IntTuple", ...]]  # noqa: UP007 - recursive, so the text form
Shape = IntTuple
StrideLeaf = int | Coord
Stride = Union[int, Coord, tuple["Stride", ...]]  # noqa: UP007
Pair = tuple[int, Any]
"""One flat mode: (extent, stride); the stride is an int or a `Coord`, never a mixture within one layout."""


class Underscore:
    """The free coordinate ``_`` of `slice_` and `dice`: this mode stays."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "_"


_: Final = Underscore()


def E(*path: int) -> Coord:
    """The unit vector of the mode at `path`: a coordinate stride, printed ``1@0``, and ``1@1@0`` for ``E(0, 1)``.

    Args:
        path: mode numbers from the outermost in; on the core they name the axes ``e0``, ``e0_1``.

    Example:
        >>> layout = CuteLayout((4, 5), (E(1), E(0)))
        >>> print(layout, layout(2, 3))
        (4,5):(1@1,1@0) 3@e0 + 2@e1

    Source: CuTe, coordinate (TMA) tensors; the axis names are own.
    """
    if not path or any(type(i) is not int or i < 0 for i in path):
        raise LayoutError("E(*path)", f"{path!r} is no path to a mode", legal="one or more mode numbers, from 0")
    return Coord((("e" + "_".join(map(str, path)), 1),))


# --- integer tuples


def flat_tuple(tree: Any) -> tuple[Any, ...]:
    """The leaves of a nested tuple, in order."""
    if not isinstance(tree, tuple):
        return (tree,)
    out: list[Any] = []
    for item in tree:
        if isinstance(item, tuple):
            out.extend(flat_tuple(item))
        else:
            out.append(item)
    return tuple(out)


def zip_shape(shape: Shape, leaves: Iterator[Any]) -> Any:
    """The leaves, taken in order, put into the nesting of `shape`."""
    return tuple(zip_shape(s, leaves) for s in shape) if isinstance(shape, tuple) else next(leaves)


def mode_path(axis: str) -> tuple[int, ...] | None:
    """The mode that an axis made by `E` stands for; None for any other axis."""
    digits = axis[1:].split("_")
    return tuple(map(int, digits)) if axis[:1] == "e" and all(d.isdecimal() for d in digits) else None


def tuple_text(tree: Any) -> str:
    """A nested tuple as CuTe prints it, without blanks; coordinate strides as ``2@1``, sums joined by ``+``."""
    if isinstance(tree, tuple):
        return "(" + ",".join(map(tuple_text, tree)) + ")"
    if not isinstance(tree, Coord):
        return _number_text(tree)
    terms = []
    for axis, value in tree.terms:
        path = mode_path(axis)
        terms.append(f"{_number_text(value)}@" + (axis if path is None else "@".join(map(str, reversed(path)))))
    return "+".join(terms) or "0"


def _number_text(value: Any) -> str:
    return f"({value})" if isinstance(value, Expr) and value.op != "sym" else str(value)


def make_shape(value: Any, where: str = "make_shape(value)") -> Shape:
    """The shape that `value` spells: a positive integer or a (nested) tuple or list of them.

    Raises:
        LayoutError: an extent that is not a positive integer.
        Unproved: an index expression that its ranges do not prove positive.
    """
    if isinstance(value, tuple | list):
        return tuple([make_shape(v, where) for v in value])
    found = getattr(value, "shape", None)
    if isinstance(found, tuple | int | Expr) and not isinstance(value, np.ndarray | np.generic):
        return make_shape(found, where)  # of a layout
    return _extent(value, where)


def _extent(value: Any, where: str) -> int:
    """A positive integer, or an expression, typed as the integer that it stands for."""
    value = plain(value)
    if isinstance(value, Expr) and not value.is_condition:
        require_positive(value, where)
        return value  # type: ignore[return-value]
    number = _integer(value)
    if number is None or number < 1:
        raise LayoutError(
            where, f"extent {value!r} is not a positive integer", legal="integers from 1, or nested tuples"
        )
    return number


def _integer(value: Any) -> int | None:
    """The exact integer that `value` is, or None (bools and floats are none)."""
    if type(value) is int:
        return value
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        return None
    try:
        return int(value.__index__())
    except TypeError:
        return None


def positive(value: Any, where: str, name: str) -> int:
    """A positive integer as it is.

    Raises:
        LayoutError: anything else.
    """
    value = plain(value)
    number = _integer(value)
    if number is None or number < 1:
        raise LayoutError(where, f"{name} {value!r} is not a positive integer", legal="integers from 1")
    return number


def size(value: Any) -> int:
    """The number of coordinates of a layout or a shape: the product of its extents."""
    if isinstance(value, CuteLayout):
        return value.size
    if isinstance(value, tuple):
        return reduce(lambda a, b: a * size(b), value, 1)
    found = plain(getattr(value, "size", value))
    if isinstance(found, Expr):
        return found  # type: ignore[return-value]
    number = _integer(found)
    if number is None:
        raise LayoutError("size(value)", f"{value!r} has no size", legal="a layout, or a shape")
    return number


def _tree(value: Any, where: str) -> Any:
    """The nested tuple of a layout, or the value itself, if it is one or may stand at a leaf."""
    if type(value) is tuple or type(value) is int:
        return value
    if isinstance(value, tuple | list):
        return tuple(value)
    found = value.shape if hasattr(value, "shape") and not hasattr(value, "dtype") else value
    if isinstance(found, tuple | Coord | Expr) or _integer(found) is not None:
        return found
    raise LayoutError(where, f"{_short(value)} is no nested tuple", legal="a layout, or integers in nested tuples")


def rank(value: Any) -> int:
    """The number of top-level modes of a layout or a tuple; 1 for a plain integer."""
    tree = _tree(value, "rank(value)")
    return len(tree) if isinstance(tree, tuple) else 1


def depth(value: Any) -> int:
    """How deep the tuples nest: 0 for an integer, 1 for a flat tuple."""
    tree = _tree(value, "depth(value)")
    return 1 + max(map(depth, tree), default=0) if isinstance(tree, tuple) else 0


def congruent(a: Any, b: Any) -> bool:
    """Whether the two have the same nesting, so that they zip leaf by leaf.

    Example:
        >>> congruent((2, (3, 4)), (5, (6, 7))), congruent((2, 12), (5, (6, 7)))
        (True, False)
    """
    a, b = _tree(a, "congruent(a, b)"), _tree(b, "congruent(a, b)")
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def weakly_congruent(a: Any, b: Any) -> bool:
    """Whether every tuple of `a` meets a tuple of the same length in `b`: `a` is a coarser nesting of `b`.

    Example:
        >>> weakly_congruent((2, 12), (5, (6, 7))), weakly_congruent((5, (6, 7)), (2, 12))
        (True, False)
    """
    a, b = _tree(a, "weakly_congruent(a, b)"), _tree(b, "weakly_congruent(a, b)")
    if not isinstance(a, tuple):
        return True
    return isinstance(b, tuple) and len(a) == len(b) and all(map(weakly_congruent, a, b))


def compatible(a: Any, b: Any) -> bool:
    """Whether every coordinate of shape `a` is a coordinate of shape `b`: `b` refines `a` mode by mode.

    Example:
        >>> compatible((2, 12), (2, (3, 4))), compatible((4, 6), (2, (3, 4)))
        (True, False)
    """
    a, b = make_shape(a, "compatible(a, b)"), make_shape(b, "compatible(a, b)")
    if not isinstance(a, tuple):
        return same(a, size(b))
    return isinstance(b, tuple) and len(a) == len(b) and all(map(compatible, a, b))


def _compact(shape: Shape) -> Stride:
    """Column-major strides: the first mode fastest, congruent with the shape."""

    def leaves() -> Iterator[int]:
        run = 1
        for extent in flat_tuple(shape):
            yield run
            run = simple(run * extent)

    return zip_shape(shape, leaves())  # type: ignore[no-any-return]


_CHUNK = 1 << 15
"""How many linear indices are evaluated at once."""

_WIDE = 1 << 62
"""Extents from here on are computed with Python's integers, in object arrays."""


def _check_range(crd: Any, extent: Any, where: str, shape: Any) -> Any:
    """`crd` itself, proved to lie in [0, extent)."""
    if isinstance(crd, Expr) or (isinstance(extent, Expr) and _integer(crd) is not None):
        require((crd >= 0) & (crd < extent), where)
        return crd
    number = _integer(crd)
    if number is not None:
        if not 0 <= number < extent:
            raise _out_of_range(number, extent, where, shape)
        return number
    if not isinstance(crd, np.ndarray) or crd.dtype.kind not in "iu":
        given = f"an array of {crd.dtype}" if isinstance(crd, np.ndarray) else f"{crd!r}"
        raise LayoutError(where, f"{given} is no coordinate", legal="integers, integer arrays, index expressions")
    if isinstance(extent, Expr):
        raise Unproved(
            where,
            "an array holds numbers, the extents are symbolic",
            inputs={"shape": tuple_text(shape)},
            legal="integer extents, or one index at a time",
            facts={"condition": f"indices < {extent}"},
        )
    if crd.size and (int(crd.min()) < 0 or int(crd.max()) >= extent):
        raise _out_of_range(next(int(c) for c in crd.flat if not 0 <= int(c) < extent), extent, where, shape)
    return crd.astype(object) if extent >= _WIDE else crd.astype(np.int64, copy=False)


def _out_of_range(crd: int, extent: int, where: str, shape: Any) -> LayoutError:
    problem = f"coordinate {crd} is out of range"
    return LayoutError(where, problem, inputs={"shape": tuple_text(shape)}, legal=f"0..{extent - 1}")


def _dot(crd: Any, shape: Any, stride: Any, where: str) -> Any:
    """The inner product of a coordinate with strides, integers spread over nested modes first mode fastest."""
    if isinstance(crd, tuple):
        if not isinstance(shape, tuple) or len(crd) != len(shape):
            raise Incongruent(
                where,
                f"coordinate {tuple_text(crd)} does not fit",
                inputs={"shape": tuple_text(shape)},
                legal="one coordinate for each mode, or one linear index",
            )
        if not crd:
            return 0
        return reduce(_add, (_dot(c, s, d, where) for c, s, d in zip(crd, shape, stride, strict=True)))
    crd = _check_range(crd, size(shape), where, shape)
    if not isinstance(shape, tuple):
        return _scale(crd, stride)
    total: Any = None
    extents, strides = flat_tuple(shape), flat_tuple(stride)
    last = len(extents) - 1
    for k, (n, d) in enumerate(zip(extents, strides, strict=True)):
        digit = crd
        if k < last:
            crd, digit = split_digit(crd, n)
        term = _scale(digit, d)
        total = term if total is None else _add(total, term)
    return 0 if total is None else total


def split_digit(index: Any, extent: Any) -> tuple[Any, Any]:
    """``(index // extent, index % extent)`` of a number, an expression or (with one division at most) an array."""
    if not isinstance(index, np.ndarray) or not isinstance(extent, int) or index.dtype == object:
        return index // extent, index % extent
    if not extent & (extent - 1):
        return index >> (extent.bit_length() - 1), index & (extent - 1)
    quotient = index // extent
    return quotient, index - quotient * extent


def _add(a: Any, b: Any) -> Any:
    return a + b


def _scale(digit: Any, stride: Any) -> Any:
    """A digit times a stride, without overflow."""
    if isinstance(digit, np.ndarray):
        if not isinstance(stride, int):
            raise LayoutError(
                "layout(coordinate)", f"arrays take no stride {stride}", legal="integer strides, or one index at a time"
            )
        if not digit.size or abs(stride) * (int(digit.max()) + 1) < 1 << 57:  # 32 such terms still fit 64 bits
            narrow = digit.astype(np.int64, copy=False)
            return narrow if stride == 1 else narrow * stride
        return digit.astype(object) * stride
    return digit * stride


def crd2idx(crd: Any, shape: Any, stride: Any = None) -> Any:
    """The index of a coordinate: ``sum(digit * stride)``, digits taken first mode fastest.

    Args:
        crd: an integer (a linear index), or a tuple that `shape` refines; integers, integer arrays or index
            expressions at the leaves.
        shape: the shape that the coordinate lies in.
        stride: congruent with `shape`; left out, the column-major strides of the shape.

    Raises:
        LayoutError: a number outside its mode, or a leaf that is no integer.
        Incongruent: a tuple that does not fit the shape.

    Example:
        >>> crd2idx((1, 2), (3, 4)), crd2idx(7, (3, 4), (4, 1))
        (7, 6)
    """
    shape = make_shape(shape, "crd2idx(crd, shape, stride)")
    stride = _compact(shape) if stride is None else _make_stride(stride, "crd2idx(crd, shape, stride)")
    if not congruent(shape, stride):
        raise Incongruent(
            "crd2idx(crd, shape, stride)",
            "shape and stride nest differently",
            inputs={"shape": tuple_text(shape), "stride": tuple_text(stride)},
        )
    return _dot(crd, shape, stride, "crd2idx(crd, shape, stride)")


def idx2crd(idx: Any, shape: Any, stride: Any = None) -> Any:
    """The coordinate of an index: ``(idx // stride) % shape`` at every leaf.

    With the column-major strides (`stride` left out) this inverts `crd2idx`; with others it does where the
    strides are a permutation of compact ones.

    Args:
        idx: a linear index; without strides also a coordinate, whose parts are refined to the nesting of the shape.
        shape: the shape that the coordinate lies in, first mode fastest.
        stride: congruent with `shape`, positive; left out, the column-major strides of the shape.

    Example:
        >>> idx2crd(7, (3, 4)), idx2crd(7, (3, 4), (4, 1)), idx2crd((1, 5), (3, (2, 3)))
        ((1, 2), (1, 3), (1, (1, 2)))
    """
    where = "idx2crd(idx, shape, stride)"
    shape = make_shape(shape, where)
    if isinstance(idx, list):
        idx = tuple(idx)
    if isinstance(idx, tuple) and stride is None:
        idx = _dot(idx, shape, _compact(shape), where)
    if stride is not None and not congruent(shape, stride):
        raise Incongruent(
            where,
            "shape and stride nest differently",
            inputs={"shape": tuple_text(shape), "stride": tuple_text(stride)},
        )
    strides = flat_tuple(_compact(shape) if stride is None else stride)
    for d in strides:
        if isinstance(d, Expr):
            require(d >= 1, where)
        elif _integer(d) is None or d < 1:
            raise LayoutError(where, f"stride {d} has no quotient", legal="positive integer strides")
    if stride is None:
        idx = _check_range(idx, size(shape), where, shape)
    elif isinstance(idx, np.ndarray):
        idx = _check_range(idx, _WIDE, where, shape)
    elif not isinstance(idx, Expr) and (_integer(idx) is None or idx < 0):
        raise LayoutError(where, f"index {_short(idx)} is out of range", legal="an index from 0")
    leaves = (simple((idx // d) % n) for n, d in zip(flat_tuple(shape), strides, strict=True))
    return zip_shape(shape, iter(tuple(leaves)))


def crd2crd(crd: Any, shape: Any, dst_shape: Any) -> Any:
    """The coordinate in `dst_shape` with the linear index that `crd` has in `shape`.

    Raises:
        Incongruent: the two shapes differ in size.

    Example:
        >>> crd2crd((1, 2), (3, 4), (2, 6))
        (1, 3)
    """
    where = "crd2crd(crd, shape, dst_shape)"
    shape, dst = make_shape(shape, where), make_shape(dst_shape, where)
    if not same(size(shape), size(dst)):
        raise Incongruent(
            where,
            f"sizes {size(shape)} and {size(dst)} differ",
            inputs={"shape": tuple_text(shape), "dst_shape": tuple_text(dst)},
        )
    return idx2crd(crd2idx(crd, shape), dst)


# --- the layout


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
        stride = _make_stride(stride, where)
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
                _check_range(index, self.size, "layout(index)", self.shape)
            return self._at(index)
        return self._at(crd)

    def _at(self, crd: Any) -> Any:
        if isinstance(crd, list):
            crd = tuple(crd)
        if is_free(crd):
            return concat(list(select_modes(crd, self, True)))
        if isinstance(crd, np.ndarray) and crd.size > _CHUNK:  # piece by piece, within the cache
            flat = crd.reshape(-1)
            pieces = [self._at(flat[k : k + _CHUNK]) for k in range(0, flat.size, _CHUNK)]
            return np.concatenate(pieces).reshape(crd.shape)
        return simple(_dot(crd, self.shape, self.stride, "layout(coordinate)"))

    def __getitem__(self, mode: int) -> CuteLayout:
        """The layout of one top-level mode; a layout without tuple has the one mode 0."""
        if not isinstance(self.shape, tuple):
            modes: tuple[tuple[Any, Any], ...] = ((self.shape, self.stride),)
        else:
            modes = tuple(zip(self.shape, self.stride, strict=True))  # type: ignore[arg-type]
        number = _integer(mode)
        if number is None or not -len(modes) <= number < len(modes):
            raise LayoutError(
                "layout[mode]", f"there is no mode {mode!r}", inputs={"layout": self}, legal=f"0..{len(modes) - 1}"
            )
        return new_layout(*modes[number])

    def __iter__(self) -> Iterator[CuteLayout]:
        return (self[k] for k in range(rank(self.shape)))

    def __len__(self) -> int:
        return rank(self.shape)

    def __str__(self) -> str:
        return f"{tuple_text(self.shape)}:{tuple_text(self.stride)}"

    def _repr_svg_(self) -> str:
        from tileweave.layout.svg import svg  # pictures are written in terms of these values

        return svg(self)


def _make_stride(value: Any, where: str) -> Stride:
    if isinstance(value, tuple | list):
        return tuple(_make_stride(v, where) for v in value)
    value = plain(value)
    if isinstance(value, Coord) or (isinstance(value, Expr) and not value.is_condition):
        return value  # type: ignore[return-value]
    number = _integer(value)
    if number is None:
        raise LayoutError(where, f"stride {value!r} is not an integer", legal="integers of any sign, or E(i)")
    return number


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


def as_layout(value: Any, where: str) -> CuteLayout:
    """A layout as it is; an integer n as the layout n:1.

    Raises:
        LayoutError: anything else.
    """
    if isinstance(value, CuteLayout):
        return value
    if isinstance(value, Expr) or _integer(value) is not None:
        return CuteLayout(make_shape(value, where), 1)
    raise LayoutError(where, f"{_short(value)} is no layout", legal="a CuteLayout, or an integer n for n:1")


def mode_number(value: Any, where: str) -> int:
    """The number of a mode as a plain integer.

    Raises:
        LayoutError: anything else.
    """
    number = _integer(value)
    if number is None:
        raise LayoutError(where, f"{_short(value)} is no number of a mode", legal="integers")
    return number


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(shape: tuple[Any, ...], stride: tuple[Any, ...]) -> bool:
    """Whether these are flat tuples of plain integers, sound as they stand: the common case, decided quickly."""
    for n in shape:
        if type(n) is not int or n < 1:
            return False
    for d in stride:  # noqa: SIM110 - a loop is twice as quick as all(..)
        if type(d) is not int:
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
    return concat(list(select_modes(crd, layout, True))), layout(_zeroed(crd))


def _zeroed(crd: Any) -> Any:
    if isinstance(crd, tuple):
        return tuple(map(_zeroed, crd))
    return 0 if is_free(crd) else crd


def is_free(crd: Any) -> bool:
    """Whether a coordinate is `_` (or None), or holds one."""
    if isinstance(crd, tuple):
        return any(map(is_free, crd))
    return crd is _ or crd is None


def select_modes(crd: Any, layout: CuteLayout, free: bool) -> Iterator[CuteLayout]:
    """The modes at which `crd` is (not) free, in order; tuples of the coordinate descend."""
    if isinstance(crd, tuple):
        if not isinstance(layout.shape, tuple) or len(crd) != len(layout.shape):
            raise Incongruent(
                "slice_(layout, crd)",
                f"coordinate {tuple_text(crd)} does not fit",
                inputs={"layout": layout},
                legal="_ or a coordinate for each mode",
            )
        for c, mode in zip(crd, layout, strict=True):
            kept = list(select_modes(c, mode, free))
            if isinstance(c, tuple) and kept:
                yield concat(kept)
            else:
                yield from kept
        return
    stays = is_free(crd)
    if not stays:
        _check_range(crd, layout.size, "slice_(layout, crd)", layout.shape)
    if stays is free:
        yield layout
