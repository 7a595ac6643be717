"""Integer tuples: the shapes, strides and coordinates that CuTe layouts are made of.

Everything here is colexicographic: a linear index runs through the **first** mode fastest. A shape is a positive
integer or a nested tuple of them; a stride has the same nesting, with integers or coordinates (`E`) at the leaves.
Where an integer is written, an index expression may stand: what depends on it is then proved, or `Unproved` names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any, Final, Union

import numpy as np

from tileweave.errors import Incongruent, LayoutError, Unproved, short_text
from tileweave.index import Expr, require
from tileweave.layout.core.checks import asked
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.symbolic import plain, require_positive, same, simple

IntTuple = Union[int, tuple["IntTuple", ...]]  # noqa: UP007 - recursive, so the text form
Shape = IntTuple
Stride = Union[int, Coord, tuple["Stride", ...]]  # noqa: UP007
Pair = tuple[int, Any]
"""One flat mode: (extent, stride); the stride is an int or a `Coord`, never a mixture within one layout."""


GREATEST = 1 << 4096
"""What extents, strides and coordinates stay below; Python prints such numbers."""

DEEPEST = 64
"""The deepest nesting of shapes, strides, coordinates and tilers."""


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
        >>> from tileweave.layout.cute import CuteLayout
        >>> layout = CuteLayout((4, 5), (E(1), E(0)))
        >>> print(layout, layout(2, 3))
        (4,5):(1@1,1@0) 3@e0 + 2@e1

    Source: CuTe, coordinate (TMA) tensors; the axis names are own.
    """
    if not path or any(type(i) is not int or i < 0 for i in path):
        raise LayoutError("E(*path)", f"{path!r} is no path to a mode", legal="one or more mode numbers, from 0")
    return Coord((("e" + "_".join(map(str, path)), 1),))


# --- integer tuples


def check_depth(tree: Any, where: str) -> None:
    """Raise a `LayoutError` where tuples nest deeper than `DEEPEST`; no recursion."""
    level = [tree]
    for _depth in range(DEEPEST + 1):
        level = [item for part in level if isinstance(part, tuple | list) for item in part]
        if not level:
            return
    raise _too_deep(where)


def _too_deep(where: str) -> LayoutError:
    return LayoutError(where, f"tuples nest deeper than {DEEPEST}", legal="a flatter nest")


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


def make_shape(value: Any, where: str = "make_shape(value)", depth: int = 0) -> Shape:
    """The shape that `value` spells: a positive integer or a (nested) tuple or list of them.

    Raises:
        LayoutError: an extent that is not a positive integer.
        Unproved: an index expression that its ranges do not prove positive.
    """
    if isinstance(value, tuple | list):
        if depth == DEEPEST:
            raise _too_deep(where)
        return tuple([make_shape(v, where, depth + 1) for v in value])
    found = getattr(value, "shape", None)
    if isinstance(found, tuple | int | Expr) and not isinstance(value, np.ndarray | np.generic):
        return make_shape(found, where)  # of a layout
    return _extent(value, where)


def make_stride(value: Any, where: str, depth: int = 0) -> Stride:
    """The stride that `value` spells: an integer of any sign, a coordinate, or a (nested) tuple or list of them.

    Raises:
        LayoutError: a leaf that is neither.
    """
    if isinstance(value, tuple | list):
        if depth == DEEPEST:
            raise _too_deep(where)
        return tuple(make_stride(v, where, depth + 1) for v in value)
    value = plain(value)
    if isinstance(value, Coord) or (isinstance(value, Expr) and not value.is_condition):
        return value  # type: ignore[return-value]
    number = whole_number(value)
    if number is None:
        raise LayoutError(where, f"stride {short_text(value)} is not an integer", legal="integers of any sign, or E(i)")
    return number


def _extent(value: Any, where: str) -> int:
    """A positive integer, or an expression, typed as the integer that it stands for."""
    value = plain(value)
    if isinstance(value, Expr) and not value.is_condition:
        require_positive(value, where)
        return value  # type: ignore[return-value]
    number = whole_number(value)
    if number is None or number < 1:
        raise LayoutError(
            where, f"extent {short_text(value)} is not a positive integer", legal="integers from 1, or nested tuples"
        )
    return number


def whole_number(value: Any) -> int | None:
    """The exact integer that `value` is, or None: bools and floats are none, nor is what passes `GREATEST`."""
    if type(value) is not int:
        if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
            return None
        try:
            value = int(value.__index__())
        except TypeError:
            return None
    return value if -GREATEST < value < GREATEST else None


def positive(value: Any, where: str, name: str) -> int:
    """A positive integer as it is.

    Raises:
        LayoutError: anything else.
    """
    value = plain(value)
    number = whole_number(value)
    if number is None or number < 1:
        raise LayoutError(where, f"{name} {short_text(value)} is not a positive integer", legal="integers from 1")
    return number


def size(value: Any, *path: int) -> int:
    """The number of coordinates of a layout or a shape, or of the mode at `path`: the product of its extents.

    Example:
        >>> size((2, (3, 4))), size((2, (3, 4)), 1), size((2, (3, 4)), 1, 0)
        (24, 12, 3)
    """
    if path:
        part = _tree(value, "size(value, *path)")
        for k in path:
            modes = part if isinstance(part, tuple) else (part,)
            number = whole_number(k)
            if number is None or not -len(modes) <= number < len(modes):
                raise LayoutError(
                    "size(value, *path)", f"there is no mode {short_text(k)}", legal=f"0..{len(modes) - 1}"
                )
            part = modes[number]
        return size(part)
    if isinstance(value, tuple):
        return reduce(lambda a, b: a * size(b), value, 1)
    found = plain(getattr(value, "size", value))
    if isinstance(found, Expr):
        return found  # type: ignore[return-value]
    number = whole_number(found)
    if number is None:
        raise LayoutError("size(value)", f"{short_text(value)} has no size", legal="a layout, or a shape")
    return number


def _tree(value: Any, where: str) -> Any:
    """The nested tuple of a layout, or the value itself, if it is one or may stand at a leaf."""
    if type(value) is tuple or type(value) is int:
        return value
    if isinstance(value, tuple | list):
        return tuple(value)
    found = value.shape if hasattr(value, "shape") and not hasattr(value, "dtype") else value
    if isinstance(found, tuple | Coord | Expr) or whole_number(found) is not None:
        return found
    raise LayoutError(where, f"{short_text(value)} is no nested tuple", legal="a layout, or integers in nested tuples")


def _nest(value: Any, where: str) -> Any:
    """The whole tree checked: no deeper than `DEEPEST`."""
    tree = _tree(value, where)
    check_depth(tree, where)
    return tree


def rank(value: Any) -> int:
    """The number of top-level modes of a layout or a tuple; 1 for a plain integer."""
    tree = _tree(value, "rank(value)")
    return len(tree) if isinstance(tree, tuple) else 1


def depth(value: Any) -> int:
    """How deep the tuples nest: 0 for an integer, 1 for a flat tuple."""

    def levels(part: Any) -> int:
        part = _tree(part, "depth(value)")
        return 1 + max(map(levels, part), default=0) if isinstance(part, tuple) else 0

    return levels(_nest(value, "depth(value)"))


def congruent(a: Any, b: Any) -> bool:
    """Whether the two have the same nesting, so that they zip leaf by leaf.

    Example:
        >>> congruent((2, (3, 4)), (5, (6, 7))), congruent((2, 12), (5, (6, 7)))
        (True, False)
    """
    where = "congruent(a, b)"

    def same_nest(a: Any, b: Any) -> bool:
        a, b = _tree(a, where), _tree(b, where)
        if isinstance(a, tuple) and isinstance(b, tuple):
            return len(a) == len(b) and all(map(same_nest, a, b))
        return not isinstance(a, tuple) and not isinstance(b, tuple)

    return same_nest(_nest(a, where), _nest(b, where))


def weakly_congruent(a: Any, b: Any) -> bool:
    """Whether every tuple of `a` meets a tuple of the same length in `b`: `a` is a coarser nesting of `b`.

    Example:
        >>> weakly_congruent((2, 12), (5, (6, 7))), weakly_congruent((5, (6, 7)), (2, 12))
        (True, False)
    """
    where = "weakly_congruent(a, b)"

    def coarser(a: Any, b: Any) -> bool:
        a, b = _tree(a, where), _tree(b, where)
        if not isinstance(a, tuple):
            return True
        return isinstance(b, tuple) and len(a) == len(b) and all(map(coarser, a, b))

    return coarser(_nest(a, where), _nest(b, where))


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


def compact_strides(shape: Shape) -> Stride:
    """Column-major strides: the first mode fastest, congruent with the shape."""

    def leaves() -> Iterator[int]:
        run = 1
        for extent in flat_tuple(shape):
            yield run
            run = simple(run * extent)

    return zip_shape(shape, leaves())  # type: ignore[no-any-return]


_WIDE = 1 << 62
"""Extents from here on are computed with Python's integers, in object arrays."""


def check_range(crd: Any, extent: Any, where: str, shape: Any) -> Any:
    """`crd` itself, proved to lie in [0, extent)."""
    if isinstance(crd, Expr) or (isinstance(extent, Expr) and whole_number(crd) is not None):
        require((crd >= 0) & (crd < extent), where)
        return crd
    number = whole_number(crd)
    if number is not None:
        if not 0 <= number < extent:
            raise _out_of_range(number, extent, where, shape)
        return number
    if not isinstance(crd, np.ndarray) or crd.dtype.kind not in "iu":
        given = f"an array of {crd.dtype}" if isinstance(crd, np.ndarray) else short_text(crd)
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


def inner_product(crd: Any, shape: Any, stride: Any, where: str) -> Any:
    """The inner product of a coordinate with strides, integers spread over nested modes first mode fastest."""
    if isinstance(crd, tuple):
        if not isinstance(shape, tuple) or len(crd) != len(shape):
            check_depth(crd, where)
            raise Incongruent(
                where,
                f"coordinate {tuple_text(crd)} does not fit",
                inputs={"shape": tuple_text(shape)},
                legal="one coordinate for each mode, or one linear index",
            )
        if not crd:
            return 0
        return reduce(_add, (inner_product(c, s, d, where) for c, s, d in zip(crd, shape, stride, strict=True)))
    crd = check_range(crd, size(shape), where, shape)
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
        shape: the shape that the coordinate lies in, or a layout, whose strides then count.
        stride: congruent with `shape`; left out, the column-major strides of the shape.

    Raises:
        LayoutError: a number outside its mode, or a leaf that is no integer.
        Incongruent: a tuple that does not fit the shape.

    Example:
        >>> crd2idx((1, 2), (3, 4)), crd2idx(7, (3, 4), (4, 1))
        (7, 6)
    """
    if stride is None and hasattr(shape, "stride") and not isinstance(shape, np.ndarray | np.generic):
        stride = shape.stride
    shape = make_shape(shape, "crd2idx(crd, shape, stride)")
    stride = compact_strides(shape) if stride is None else make_stride(stride, "crd2idx(crd, shape, stride)")
    if not congruent(shape, stride):
        raise Incongruent(
            "crd2idx(crd, shape, stride)",
            "shape and stride nest differently",
            inputs={"shape": tuple_text(shape), "stride": tuple_text(stride)},
        )
    return inner_product(crd, shape, stride, "crd2idx(crd, shape, stride)")


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
        idx = inner_product(idx, shape, compact_strides(shape), where)
    if stride is not None and not congruent(shape, stride):
        raise Incongruent(
            where,
            "shape and stride nest differently",
            inputs={"shape": tuple_text(shape), "stride": tuple_text(stride)},
        )
    strides = flat_tuple(compact_strides(shape) if stride is None else stride)
    for d in strides:
        if isinstance(d, Expr):
            require(d >= 1, where)
        elif whole_number(d) is None or d < 1:
            raise LayoutError(where, f"stride {d} has no quotient", legal="positive integer strides")
    if stride is None:
        idx = check_range(idx, size(shape), where, shape)
    elif isinstance(idx, np.ndarray):
        idx = check_range(idx, _WIDE, where, shape)
    elif not isinstance(idx, Expr) and (whole_number(idx) is None or idx < 0):
        raise LayoutError(where, f"index {short_text(idx)} is out of range", legal="an index from 0")
    leaves = (simple((idx // d) % n) for n, d in zip(flat_tuple(shape), strides, strict=True))
    return zip_shape(shape, iter(tuple(leaves)))


@asked("crd2crd(crd, shape, dst_shape)")
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
