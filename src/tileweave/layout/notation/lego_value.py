"""LEGO's pieces: permutations of an index space, their hierarchy and their chains. Row-major: the **last** dimension is
fastest, in every shape, index and flat number here.

A piece maps a tuple index to a flat number, one to one: `RegP` permutes dimensions, `GenP` is any bijection. `OrderBy`
stacks pieces, outermost first; `GroupBy` is a logical shape over a chain of reorderings. All of them are values: a
dotted chain builds new ones. Every piece is checked when it is built, so that apply and inv are inverse to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tileweave.draw import drawn_by
from tileweave.errors import Incongruent, LayoutError, NoLayout, TileweaveError, Undecided, Unproved
from tileweave.index import Expr, evaluate, symbol
from tileweave.index.expr import conditions_only
from tileweave.layout.core.checks import no_layout
from tileweave.layout.notation.lego_numbers import (
    Dim,
    check_index,
    choose,
    flat_index,
    make_dims,
    product_of,
    same_number,
    tuple_index,
)
from tileweave.layout.notation.lego_slices import has_slices, sliced

Piece = Union["RegP", "GenP"]

CHECK_BOUND = 1 << 24
"""The most points on which a `GenP` is checked; a larger one needs a reason (`proof`)."""


# --- pieces


class _Bijection:
    """A bijection from the indices of a shape to [0, size): arguments are checked here, classes say what it does."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def dims(self) -> tuple[Dim, ...]: ...
        def _apply(self, index: Sequence[Any]) -> Any: ...
        def _inv(self, flat: Any) -> tuple[Any, ...]: ...

    @property
    def size(self) -> Any:
        """The number of points."""
        return product_of(self.dims)

    @property
    def is_symbolic(self) -> bool:
        """Whether an extent is an index expression."""
        return any(isinstance(n, Expr) for n in self.dims)

    def apply(self, *index: Any) -> Any:
        """The flat physical number of a logical index: integers, integer arrays or index expressions."""
        return self._apply(check_index(index, self.dims, f"{type(self).__name__}.apply(*index)"))

    def inv(self, flat: Any) -> tuple[Any, ...]:
        """The logical index of a flat physical number."""
        return self._inv(*check_index((flat,), (self.size,), f"{type(self).__name__}.inv(flat)"))


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True)
class RegP(_Bijection):
    """A permutation of dimensions: ``apply`` is the row-major number of the permuted index in the permuted shape.

    Args:
        dims: the logical shape n.
        sigma: the physical order, numbered from 1: position j of the physical shape is dimension ``sigma[j]``.

    Raises:
        LayoutError: `sigma` is no permutation of 1..d.

    Example:
        >>> RegP((2, 3), (2, 1)).apply(1, 2), RegP((2, 3), (2, 1)).inv(5)
        (5, (1, 2))

    Source: LEGO, section 3.2.
    """

    dims: tuple[Dim, ...]
    sigma: tuple[int, ...]

    def __post_init__(self) -> None:
        where = "RegP(dims, sigma)"
        object.__setattr__(self, "dims", make_dims(self.dims, where))
        sigma = self.sigma
        order: tuple[Any, ...] = tuple(sigma) if isinstance(sigma, tuple | list) else (sigma,)
        object.__setattr__(self, "sigma", tuple(int(k) if isinstance(k, np.integer) else k for k in order))
        rank = len(self.dims)
        if any(type(k) is not int for k in self.sigma) or sorted(self.sigma) != list(range(1, rank + 1)):
            raise LayoutError(
                where,
                f"sigma {self.sigma} is no permutation",
                inputs={"dims": tuple(map(str, self.dims))},
                legal=f"each of 1..{rank} once",
            )

    @property
    def strides(self) -> tuple[Any, ...]:
        """For each logical dimension, the distance of neighbours: the product of the extents behind it in `sigma`."""
        out: list[Any] = [1] * len(self.dims)
        run: Any = 1
        for k in reversed(self.sigma):
            out[k - 1] = run
            run = run * self.dims[k - 1]
        return tuple(out)

    def _apply(self, index: Sequence[Any]) -> Any:
        return flat_index([index[k - 1] for k in self.sigma], [self.dims[k - 1] for k in self.sigma])

    def _inv(self, flat: Any) -> tuple[Any, ...]:
        digits = tuple_index(flat, [self.dims[k - 1] for k in self.sigma])
        out: list[Any] = [None] * len(self.dims)
        for digit, k in zip(digits, self.sigma, strict=True):
            out[k - 1] = digit
        return tuple(out)


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GenP(_Bijection):
    """Any bijection from a shape to flat numbers, checked on construction.

    Equal are those of one shape and one function; ready-made ones, such as `morton`, those made by the same call.

    Args:
        dims: the logical shape.
        function: takes one argument per dimension, returns a flat number in [0, size). Integers suffice; written with
            `choose` it serves index expressions too. Arrays go through the table of values.
        inverse: takes a flat number, returns the tuple index; left out, it is derived from the table of values.
        name: for printing.
        proof: why it is a bijection; then nothing is enumerated, and function and inverse must take arrays themselves.

    Raises:
        NoLayout: the function is no bijection, or the inverse does not invert it; the witness holds the points.
        Undecided: too many points to check, and no `proof`.

    Example:
        >>> zigzag = GenP((2, 3), lambda i, j: 3 * i + (j if i == 0 else 2 - j), name="zigzag")
        >>> zigzag.apply(1, 0), zigzag.inv(5)
        (5, (1, 0))

    Source: LEGO, section 3.2; the checks are own.
    """

    dims: tuple[Dim, ...]
    function: Callable[..., Any]
    inverse: Callable[[Any], Any] | None = None
    name: str = ""
    proof: str = ""
    _tables: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    _call: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"GenP(dims, {self.name if isinstance(self.name, str) and self.name else 'function'})"
        object.__setattr__(self, "dims", make_dims(self.dims, where))
        if not isinstance(self.name, str) or not isinstance(self.proof, str):
            raise LayoutError(where, "name and proof are texts", legal="name='..', proof='..'")
        if not callable(self.function) or not (self.inverse is None or callable(self.inverse)):
            raise LayoutError(where, "function and inverse must be callable", legal="GenP(dims, function, inverse)")
        if self.proof:
            return
        if self.is_symbolic:
            raise Unproved(
                where,
                "a bijection on a symbolic shape is not proved",
                inputs={"dims": tuple(map(str, self.dims))},
                legal="a shape of integers, or proof='...'",
                facts={"condition": "the function is a bijection"},
            )
        if self.size > CHECK_BOUND:
            raise Undecided(
                where,
                f"{self.size} points are more than the bound {CHECK_BOUND}",
                inputs={"dims": self.dims},
                legal="proof='...'",
                facts={"bound": CHECK_BOUND},
            )
        _check_bijection(self, where)

    def _apply(self, index: Sequence[Any]) -> Any:
        if not self.proof and any(isinstance(i, np.ndarray) for i in index):
            return self._table()[0][flat_index([np.asarray(i) for i in index], self.dims)]
        if self.proof or not any(isinstance(i, Expr) for i in index):
            return self.function(*index)
        _check_expression(self)
        with conditions_only():
            return self.function(*index)

    def _inv(self, flat: Any) -> tuple[Any, ...]:
        array = isinstance(flat, np.ndarray)
        if self.inverse is not None and (self.proof or not array):
            out = self.inverse(flat)
            return tuple(out) if isinstance(out, tuple | list) else (out,)
        if isinstance(flat, Expr):
            return self._select_chain(flat)
        found = tuple_index(self._table()[1][flat], self.dims)
        return found if array else tuple(int(i) for i in found)

    def _select_chain(self, flat: Expr) -> tuple[Any, ...]:
        """The inverse as an expression, read off the table; for shapes small enough to be written out."""
        if self.size > 256:
            raise LayoutError(
                "GenP.inv(flat)",
                "the inverse of a large table has no index expression",
                inputs={"dims": self.dims},
                legal="an inverse= that takes index expressions",
            )
        points = [tuple_index(int(at), self.dims) for at in self._table()[1]]
        out = []
        for k in range(len(self.dims)):
            value: Any = int(points[-1][k])
            for at in range(len(points) - 2, -1, -1):
                value = choose(flat < at + 1, int(points[at][k]), value)
            out.append(value)
        return tuple(out)

    def _table(self) -> Any:
        """(values by flat logical index, flat logical index by value), made once."""
        if not self._tables:
            values = _values(self)
            inverse = np.empty_like(values)
            inverse[values] = np.arange(len(values))
            self._tables.append((values, inverse))
        return self._tables[0]

    def _key(self) -> tuple[Any, ...]:
        return (self.dims, self._call or (self.function, self.inverse, self.name, self.proof))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GenP) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if self._call:
            return self._call
        functions = [getattr(f, "__name__", repr(f)) for f in (self.function, self.inverse) if f is not None]
        texts = [f"{key}={text!r}" for key, text in (("name", self.name), ("proof", self.proof)) if text]
        return f"GenP({', '.join([repr(self.dims), *functions, *texts])})"

    def __str__(self) -> str:
        return f"GenP({', '.join(map(str, self.dims))}; {self.name or 'function'})"


def _check_expression(piece: GenP) -> None:
    """Refuse a function whose expression differs from its values: it takes a branch of Python on an expression."""
    if len(piece._tables) > 1:
        return
    where = "GenP.apply(*index)"
    names = [symbol(f"x{k}", 0, n) for k, n in enumerate(piece.dims)]
    with conditions_only():
        expr = piece.function(*names)
    grid = _grid(piece.dims)
    found = evaluate(expr, dict(zip(names, grid, strict=True)))
    wrong = np.flatnonzero(np.broadcast_to(np.asarray(found), grid.shape[1:]) != piece._table()[0])
    if wrong.size:
        at = tuple(int(x) for x in grid[:, wrong[0]])
        raise LayoutError(
            where,
            f"the function's expression is wrong at {at}: it is {expr}",
            inputs={"piece": piece, "value": int(piece._table()[0][wrong[0]])},
            legal="choose(condition, a, b) in place of if, and equal(i, 0) in place of i == 0",
        )
    piece._tables.append(expr)


def _values(piece: GenP) -> np.ndarray[Any, Any]:
    """The value at every point, in row-major order: vectorised if the function allows it, else one by one."""
    grid = _grid(piece.dims)
    try:
        out = np.asarray(piece.function(*grid))
        if out.shape == grid[0].shape and out.dtype.kind in "iu":
            sample = range(0, len(out), max(1, len(out) // 64))
            if all(_int_value(piece, grid[:, k]) == int(out[k]) for k in sample):
                return out.astype(np.int64)
    except TileweaveError:
        raise
    except Exception:  # the user's function takes integers only; it is then called one by one
        pass
    return np.array([_int_value(piece, point) for point in grid.T], dtype=np.int64)


def _grid(dims: Sequence[Dim]) -> np.ndarray[Any, Any]:
    """All points of an integer shape, one row per dimension, row-major."""
    shape = tuple(int(n) for n in dims if isinstance(n, int))
    return np.indices(shape).reshape(len(shape), -1)


def _int_value(piece: GenP, point: Any) -> int:
    at = tuple(int(x) for x in point)
    try:
        value = piece.function(*at)
    except TileweaveError:
        raise
    except Exception as error:
        raise LayoutError(
            "GenP(dims, function)",
            f"the function fails at {at}: {type(error).__name__}: {error}",
            legal="a function of one integer per dimension",
        ) from error
    if isinstance(value, bool | float) or not hasattr(value, "__index__"):
        where, problem = "GenP(dims, function)", f"the value at {at} is {value!r}, no integer"
        inputs, legal = {"piece": piece}, "integers"
        raise no_layout(where, problem, inputs=inputs, legal=legal, points=(at,), values=(value,), condition="integers")
    return int(value)


def _check_bijection(piece: GenP, where: str) -> None:
    """Proves by enumeration that values are a permutation of [0, size) and that the inverse inverts them."""
    values = _values(piece)
    size = len(values)

    def point(flat: int) -> tuple[int, ...]:
        return tuple(int(x) for x in tuple_index(int(flat), piece.dims))

    def refuse(problem: str, points: tuple[Any, ...], seen: tuple[Any, ...], condition: str) -> NoLayout:
        inputs, legal = {"dims": piece.dims}, "a bijection onto [0, size)"
        return no_layout(where, problem, inputs=inputs, legal=legal, points=points, values=seen, condition=condition)

    outside = np.flatnonzero((values < 0) | (values >= size))
    if outside.size:
        at, value = point(outside[0]), int(values[outside[0]])
        raise refuse(f"the value {value} at {at} lies outside [0, {size})", (at,), (value,), "0 <= value < size")
    order = np.argsort(values, kind="stable")
    twice = np.flatnonzero(values[order][1:] == values[order][:-1])
    if twice.size:
        a, b = point(order[twice[0]]), point(order[twice[0] + 1])
        value = int(values[order[twice[0]]])
        raise refuse(f"{a} and {b} both go to {value}", (a, b), (value, value), "values are distinct")
    piece._tables.append((values, order))
    if piece.inverse is None:
        return
    wrong = _wrong_inverse(piece, order)
    if wrong is not None:
        at, found = point(order[wrong]), piece.inverse(wrong)
        raise refuse(f"{at} goes to {wrong}, but the inverse gives {found}", (at,), (found,), "inv(apply(x)) = x")


def _wrong_inverse(piece: GenP, order: np.ndarray[Any, Any]) -> int | None:
    """The least flat number that the given inverse does not take back, or None."""
    inverse = piece.inverse
    if inverse is None:
        return None
    want = tuple_index(order, piece.dims)

    def right(flat: int) -> bool:
        try:
            found = inverse(flat)
        except TileweaveError:
            raise
        except Exception as error:
            raise LayoutError(
                "GenP(dims, function, inverse)",
                f"the inverse fails at {flat}: {type(error).__name__}: {error}",
                legal="a function of one integer",
            ) from error
        return (tuple(found) if isinstance(found, tuple | list) else (found,)) == tuple(int(w[flat]) for w in want)

    if len(order) > 1 << 14:
        try:
            found = inverse(np.arange(len(order)))
            found = tuple(found) if isinstance(found, tuple | list) else (found,)
            same = np.logical_and.reduce([np.asarray(f) == w for f, w in zip(found, want, strict=True)])
            if same.shape == order.shape and all(map(right, range(0, len(order), len(order) // 64))):
                bad = np.flatnonzero(~same)
                return int(bad[0]) if bad.size else None
        except Exception:  # the user's inverse takes integers only; it is then called one by one
            pass
    return next((flat for flat in range(len(order)) if not right(flat)), None)


# --- hierarchies and chains


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True)
class OrderBy(_Bijection):
    """Pieces stacked outermost first: each reorders the tiles of the next; dims are the pieces' dims in a row.

    Dots make chains, the piece on the right applied first: ``OrderBy(O1).OrderBy(O2).GroupBy((6, 6))``.

    Args:
        pieces: `RegP` and `GenP` values.

    Example:
        >>> order = OrderBy(RegP((2, 2), (2, 1)), RegP((3,), (1,)))
        >>> order.apply(0, 1, 2), order.inv(8)
        (8, (0, 1, 2))

    Source: LEGO, section 3.2.
    """

    pieces: tuple[Piece, ...]

    def __init__(self, *pieces: Piece) -> None:
        if not pieces or not all(isinstance(p, RegP | GenP) for p in pieces):
            raise LayoutError(
                "OrderBy(*pieces)", f"{pieces!r} are no pieces", legal="RegP and GenP values, at least one"
            )
        object.__setattr__(self, "pieces", tuple(pieces))

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The shape that is reordered."""
        return tuple(n for piece in self.pieces for n in piece.dims)

    def _apply(self, index: Sequence[Any]) -> Any:
        flats, at = [], 0
        for piece in self.pieces:
            flats.append(piece._apply(index[at : at + len(piece.dims)]))
            at += len(piece.dims)
        return flat_index(flats, [piece.size for piece in self.pieces])

    def _inv(self, flat: Any) -> tuple[Any, ...]:
        digits = tuple_index(flat, [piece.size for piece in self.pieces])
        return tuple(i for piece, digit in zip(self.pieces, digits, strict=True) for i in piece._inv(digit))

    def __repr__(self) -> str:
        return f"OrderBy({', '.join(map(repr, self.pieces))})"

    def OrderBy(self, *pieces: Piece) -> Chain:
        """The chain that reorders by `pieces` first and by this after."""
        return Chain((self,)).OrderBy(*pieces)

    def TileOrderBy(self, *pieces: Piece) -> Chain:
        """The chain with a tiled reordering (see `Chain.TileOrderBy`) before this one."""
        return Chain((self,)).TileOrderBy(*pieces)

    def GroupBy(self, dims: Any) -> Grouped:
        """The layout with a logical shape, reordered by this."""
        return GroupBy(dims, self)

    def TileBy(self, *levels: Any) -> Grouped:
        """The layout read by tiles (see `Chain.TileBy`), reordered by this."""
        return Chain((self,)).TileBy(*levels)


@dataclass(frozen=True, slots=True)
class Chain:
    """Reorderings in the order written; the last one is applied first. Close it with `GroupBy` or `TileBy`.

    Args:
        orders: `OrderBy` values of equal size; none for the identity.
    """

    orders: tuple[OrderBy, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.orders, tuple) or not all(isinstance(order, Ordered) for order in self.orders):
            raise LayoutError("Chain(orders)", f"{self.orders!r} are no reorderings", legal="a tuple of OrderBy values")

    def OrderBy(self, *pieces: Piece) -> Chain:
        """The chain with one more reordering, applied before the others."""
        return Chain((*self.orders, OrderBy(*pieces)))

    def TileOrderBy(self, *pieces: Piece) -> Chain:
        """The chain with a reordering of a tiled space, applied before the others.

        Piece k reorders the tiles of level k, outermost first; all have the same number of dimensions d. The space
        is the d-dimensional one: each dimension is cut into the levels' extents.
        """
        where = "TileOrderBy(*pieces)"
        stacked = OrderBy(*pieces)
        split = _levels([p.dims for p in pieces], where)
        return Chain((*self.orders, stacked, OrderBy(RegP(split[1], split[2]))))

    def GroupBy(self, dims: Any) -> Grouped:
        """The layout with a logical shape, reordered by this chain."""
        return GroupBy(dims, *self.orders)

    def TileBy(self, *levels: Any) -> Grouped:
        """The layout indexed by tiles: ``TileBy((G0, G1), (T0, T1))`` takes (g0, g1, t0, t1) of a (G0*T0, G1*T1) space.

        Args:
            levels: the extents of each level, outermost first, all with the same number of dimensions.
        """
        where = "TileBy(*levels)"
        dims, _split, _back = _levels([make_dims(level, where) for level in levels], where)
        rank = len(levels[0]) if isinstance(levels[0], tuple | list) else 1
        sigma = tuple(level * rank + d + 1 for d in range(rank) for level in range(len(levels)))
        return GroupBy(dims, *self.orders, OrderBy(RegP(dims, sigma)))


def _levels(levels: Sequence[Sequence[Dim]], where: str) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[int, ...]]:
    """Dims level by level; dims dimension by dimension; and the permutation (from 1) from the second to the first."""
    if not levels or len({len(level) for level in levels}) != 1:
        raise Incongruent(
            where, f"levels of {[len(level) for level in levels]} dimensions", legal="one rank for all levels"
        )
    depth, rank = len(levels), len(levels[0])
    by_level = tuple(n for level in levels for n in level)
    by_dim = tuple(level[d] for d in range(rank) for level in levels)
    return by_level, by_dim, tuple(d * depth + level + 1 for level in range(depth) for d in range(rank))


@drawn_by("tileweave.layout.analysis.svg")
@dataclass(frozen=True, slots=True)
class GroupBy(_Bijection):
    """A logical shape over a chain of reorderings: a bijection from its indices to [0, size).

    ``apply`` flattens the index row-major and sends it through the chain from the last reordering to the first;
    ``inv`` goes the other way. Index it with integers, arrays or expressions: ``layout[i, j]``.

    Args:
        dims: the logical shape.
        orders: `OrderBy` values, each of the same size.

    Raises:
        Incongruent: the sizes differ; Unproved: they hold symbols and are not provably equal.

    Example:
        >>> layout = OrderBy(RegP((2, 3), (2, 1))).GroupBy((6,))
        >>> [layout[k] for k in range(6)], layout.inv(1)
        ([0, 2, 4, 1, 3, 5], (3,))

    Source: LEGO, sections 3.1 and 3.2.
    """

    dims: tuple[Dim, ...]
    orders: tuple[OrderBy, ...]

    def __init__(self, dims: Any, *orders: OrderBy) -> None:
        where = "GroupBy(dims, *orders)"
        object.__setattr__(self, "dims", make_dims(dims, where))
        object.__setattr__(self, "orders", tuple(orders))
        for k, order in enumerate(self.orders):
            if not isinstance(order, OrderBy):
                raise LayoutError(where, f"{order!r} is no reordering", legal="OrderBy values")
            inputs: dict[str, object] = {"dims": tuple(map(str, self.dims)), "order": tuple(map(str, order.dims))}
            same_number(order.size, self.size, where, f"the sizes of reordering {k} and of the shape", inputs)

    def _apply(self, index: Sequence[Any]) -> Any:
        return self._run(flat_index(index, self.dims))

    def _inv(self, flat: Any) -> tuple[Any, ...]:
        for order in self.orders:
            flat = flat_index(order._inv(flat), order.dims)
        return tuple_index(flat, self.dims)

    def _run(self, flat: Any) -> Any:
        """The physical number of a row-major flat logical index."""
        for order in reversed(self.orders):
            flat = order._apply(tuple_index(flat, order.dims))
        return flat

    def __getitem__(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        return sliced(items, self.dims, _short(self), self.apply) if has_slices(items) else self.apply(*items)

    def table(self) -> np.ndarray[Any, Any]:
        """The physical number of every logical index, as an array of the logical shape."""
        if self.is_symbolic:
            raise LayoutError("GroupBy.table()", "the shape is symbolic", legal="a shape of integers")
        size, piece = int(self.size), 1 << 15  # piece by piece, within the cache
        parts = [self._run(np.arange(k, min(k + piece, size))) for k in range(0, size, piece)]
        return np.concatenate(parts).reshape([int(n) for n in self.dims if isinstance(n, int)])

    def __repr__(self) -> str:
        return f"GroupBy({', '.join(map(repr, (self.dims, *self.orders)))})"


def _short(layout: GroupBy) -> str:
    """The layout in one line, extents by their short text."""
    dims = ", ".join(map(str, layout.dims))
    return f"GroupBy(({dims}){''.join(f', {short_order(order)}' for order in layout.orders)})"


def short_order(order: OrderBy) -> str:
    """A reordering in one line, extents by their short text."""
    parts = [
        f"RegP(({', '.join(map(str, piece.dims))}), {piece.sigma})" if isinstance(piece, RegP) else str(piece)
        for piece in order.pieces
    ]
    return f"OrderBy({', '.join(parts)})"


Grouped = GroupBy
Ordered = OrderBy
"""The classes under a second name: inside a class, methods of their names hide them."""
