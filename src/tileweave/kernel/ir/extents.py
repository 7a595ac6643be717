"""Arrays that are too small for what a kernel reads and writes, found before anything runs.

A mask drops what an array lacks, and a product reads zeros there; both are what one wants at an edge that all arrays
share, and silently wrong where one array ends before the others. So what exists of each value is followed from memory
through copies, elementwise operators, reductions and products, as expressions in the grid's coordinates and in the
counters of loops, and compared with where the arrays end. Only what an array's own end cuts off counts, never a slice
or a limit. What depends on data, or stands under a condition on data, is left to the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

import numpy as np

from tileweave.errors import VerifyError
from tileweave.index import Expr, as_expr, maximum, minimum, simplify, substitute, symbols_of
from tileweave.index.evaluate import values_of
from tileweave.kernel.ir.statements import Break, Continue, For, Kernel, Let, On, Op, Statement, When, While, walk
from tileweave.kernel.ir.values import Number, Region, clipped
from tileweave.kernel.ir.verify import regions_of

_ARRAYS = ("global", "symmetric")
_MOST = 1 << 18
"""Points at which expressions are compared; beyond, nothing is said: a tenth of a second."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _End:
    """How many coordinates of a dimension exist, and how many would if only the array's own end counted.

    Args:
        there: those that exist, by every mask.
        held: those before the end of the array; None: no array's end is known to count.
        region: of the array, where they come from.
        dim: of its tensor.
    """

    there: Number
    held: Number | None = None
    region: Region | None = None
    dim: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """An operator and what is known of the points at which it is executed."""

    op: Op
    conditions: tuple[Expr, ...]
    loops: frozenset[Expr]
    certain: bool


def require_extents(kernel: Kernel) -> None:
    """Nothing, if no array ends before what the kernel certainly reads or writes of it.

    Raises:
        VerifyError: the array, its extent, what is read or written beyond it, the line. Rule ``bounds`` where an access
            has no mask, ``extent`` where a mask would drop results or a product would read zeros.
    """
    found = _Extents(kernel)
    for place in found.places:
        if place.certain:
            found.require_inside(place)
            found.require_kept(place)
            found.require_depth(place)
            found.require_scales(place)


class _Extents:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.ranges: dict[Expr, tuple[Number, Number]] = {}
        self.values: dict[Expr, Expr | None] = {}
        self.places = list(self._places(kernel.body, (), frozenset(), True))
        self.makers: dict[str, list[_Place]] = {}
        for place in self.places:
            for out in place.op.outs:
                if out.tensor.space not in _ARRAYS:
                    self.makers.setdefault(out.tensor.name, []).append(place)
        self._known: dict[str, tuple[_End | None, ...] | None] = {}
        self._blocks: dict[Expr, Array] | None = None

    def _places(
        self, body: Sequence[Statement], conditions: tuple[Expr, ...], loops: frozenset[Expr], certain: bool
    ) -> Iterator[_Place]:
        left = any(isinstance(s, Break | Continue) for s in walk(tuple(body)))
        for s in body:
            if isinstance(s, Op):
                yield _Place(s, conditions, loops, certain)
            elif isinstance(s, Let):
                again = s.symbol in self.values
                self.values[s.symbol] = None if again or isinstance(s.value, Region) else as_expr(s.value)
            elif isinstance(s, For):
                if isinstance(s.step, int) and s.step == 1:
                    self.ranges[s.symbol] = (s.start, s.stop)
                yield from self._places(s.body, conditions, loops | {s.symbol}, certain and not left)
            elif isinstance(s, While):
                yield from self._places(s.body, conditions, loops, False)
            elif isinstance(s, When):
                yield from self._places(s.body, (*conditions, s.condition), loops, certain and not left)
                yield from self._places(s.otherwise, (*conditions, ~s.condition), loops, certain and not left)
            elif isinstance(s, On):
                if s.each is not None:
                    self.ranges[s.each] = (0, s.scope.entities)
                inner = loops if s.each is None else loops | {s.each}
                yield from self._places(s.body, conditions, inner, certain)

    # What exists of a value.

    def ends(self, region: Region) -> tuple[_End | None, ...]:
        """Per dimension that a region shows, where it ends; None where nobody knows."""
        tensor = region.tensor
        if region.skip:
            return (None,) * len(region.dims)
        if tensor.space in _ARRAYS:
            return tuple(
                _End(region.mask[d], _clip(region.begin[d], region.extent[d], tensor.shape[d]), region, d)
                for d in region.dims
            )
        known = self._ends_of(tensor.name)
        made: list[_End | None] = []
        for d in region.dims:
            end = None if known is None else known[d]
            if end is not None and (region.begin[d] != 0 or region.extent[d] != tensor.shape[d]):
                begin, extent = region.begin[d], region.extent[d]
                held = None if end.held is None else _clip(begin, extent, end.held)
                end = replace(end, there=_clip(begin, extent, end.there), held=held)
            if end is None and region.mask[d] != region.extent[d]:
                end = _End(region.mask[d])
            elif end is not None and region.mask[d] != region.extent[d]:
                end = replace(end, there=_least(end.there, region.mask[d]))
            made.append(end)
        return tuple(made)

    def _ends_of(self, name: str) -> tuple[_End | None, ...] | None:
        if name not in self._known:
            self._known[name] = None  # a value that is made of itself
            self._known[name] = self._made(name)
        return self._known[name]

    def _made(self, name: str) -> tuple[_End | None, ...] | None:
        places = self.makers.get(name, [])
        updates = [p for p in places if p.op.name == "map" and p.op.outs[0] in p.op.ins]
        real = [p for p in places if p.op.name != "fill" and p not in updates]
        found: tuple[_End | None, ...] | None = None
        for place in real:
            out = place.op.outs[0]
            if place.conditions or any(out.extent[d] != out.tensor.shape[d] for d in out.dims):
                return None
            shown = self._output(place.op)
            if shown is None:
                return None
            ends: list[_End | None] = [None] * out.tensor.rank
            for d, end in zip(out.dims, shown, strict=True):
                ends[d] = end
            if found is not None and found != tuple(ends):
                return None
            found = tuple(ends)
        return found

    def _output(self, op: Op) -> tuple[_End | None, ...] | None:
        """Where the output of an operator ends, per dimension that it shows."""
        out, regions = op.outs[0], [one for one in op.ins if isinstance(one, Region)]
        if op.name in ("copy", "copy_async", "cast", "scan") and regions and not op.option("accumulate"):
            return self.ends(regions[0])
        if op.name == "gemm" and not op.option("pair"):
            a, b = self.ends(regions[0]), self.ends(regions[1])
            return a[0], b[0]
        if op.name == "reduce":
            axes = op.option("axes")
            ends = self.ends(regions[0])
            return tuple(None if isinstance(axes, tuple) and d in axes else end for d, end in enumerate(ends))
        if op.name == "map":
            made: list[_End | None] = [None] * len(out.dims)
            for one in regions:
                for d, (end, extent) in enumerate(zip(self.ends(one), one.shape, strict=True)):
                    if end is not None and extent == out.shape[d]:
                        before = made[d]
                        both = None if before is None else _least(before.there, end.there)
                        made[d] = _End(end.there) if both is None else _End(both)
            return tuple(made)
        return None

    # The rules.

    def require_inside(self, place: _Place) -> None:
        """No access without a mask leaves its array."""
        for region in regions_of(place.op):
            if region.tensor.space not in _ARRAYS:
                continue
            size = region.tensor.shape
            skips = region.skip or (0,) * len(size)
            some = [m - s for m, s in zip(region.mask, skips, strict=True)]
            for d, begin in enumerate(region.begin):
                if _same(region.mask[d], clipped(begin, region.extent[d], size[d])):
                    continue
                last = self._first(place, begin + region.mask[d], size[d], some, d)
                if last is not None:
                    self._refuse(place, region, d, last, "bounds", {}, "a mask, as that of tile(..)[..]")

    def require_kept(self, place: _Place) -> None:
        """No result that exists is dropped because the array that takes it ends."""
        op = place.op
        if op.name not in ("copy", "copy_async") or op.outs[0].tensor.space not in _ARRAYS or op.outs[0].skip:
            return
        (source,) = op.ins
        if not isinstance(source, Region):
            return
        ends, targets = self.ends(source), self.ends(op.outs[0])
        if len(ends) != len(targets):
            return
        for k, (end, target) in enumerate(zip(ends, targets, strict=True)):
            if end is None or target is None or target.held is None or target.region is None:
                continue
            if _same(end.there, target.there) or self._elsewhere(place, end.there):
                continue
            others = [one.there for j, one in enumerate(ends) if one is not None and j != k]
            begin = target.region.begin[target.dim]
            last = self._first(place, begin + end.there, begin + target.held, [end.there, *others], 0)
            if last is not None:
                rows = {"values": source, "exist": f"{end.there} in dimension {k}"}
                self._refuse(
                    place, target.region, target.dim, last, "extent", rows, "a slice of what is read, for a part of it"
                )

    def require_depth(self, place: _Place) -> None:
        """The factors of a product have as many terms each."""
        if place.op.name != "gemm":
            return
        pair = [self.ends(one)[-1] if isinstance(one, Region) and one.dims else None for one in place.op.ins[:2]]
        for mine, other in (pair, pair[::-1]):
            if mine is None or other is None or other.region is None or other.held is None or mine.region is None:
                continue
            apart = self._elsewhere(place, mine.there) != self._elsewhere(place, other.held)
            if apart or _same(mine.there, other.there):
                continue
            begin = other.region.begin[other.dim]
            last = self._first(place, begin + mine.there, begin + other.held, [mine.there], 0)
            if last is not None:
                name, rows = mine.region.tensor.name, {"factor": mine.region}
                self._refuse(
                    place, other.region, other.dim, last, "extent", rows, f"a slice of {name}, for a part of it"
                )

    def _elsewhere(self, place: _Place, value: Number) -> set[Expr]:
        """The counters in a value of loops that are not around the operator."""
        return {s for s in _symbols([value]) if s in self.ranges and s not in place.loops}

    def require_scales(self, place: _Place) -> None:
        """There are scales for all rows and terms of the factors of a product."""
        for factor, scales in zip(place.op.ins[:2], place.op.ins[3:], strict=False):
            if place.op.name != "gemm" or not isinstance(factor, Region) or not isinstance(scales, Region):
                continue
            for mine, have, each in zip(self.ends(factor), self.ends(scales), (1, 32), strict=True):
                if mine is None or have is None or have.region is None or have.held is None:
                    continue
                if self._elsewhere(place, mine.there) != self._elsewhere(place, have.held):
                    continue
                begin, needed = have.region.begin[have.dim], simplify((as_expr(mine.there) + (each - 1)) // each)
                last = self._first(place, begin + needed, begin + have.held, [mine.there], 0)
                if last is not None:
                    legal = "a scale for every 32 terms of each row"
                    self._refuse(place, have.region, have.dim, last, "extent", {"factor": factor}, legal)

    def _refuse(
        self, place: _Place, region: Region, dim: int, last: int, rule: str, rows: Mapping[str, object], legal: str
    ) -> NoReturn:
        op, tensor = place.op, region.tensor
        does = "written" if any(r.tensor == tensor for r in op.outs) else "read"
        raise VerifyError(
            f"{self.kernel.name}({', '.join(p.name for p in self.kernel.params)})",
            f"{tensor.name} is too small: {tensor.shape[dim]} in dimension {dim}, {last} are {does}",
            inputs={"rule": rule, "shape": tensor.shape, does: region, **rows, "line": op.line},
            legal=f"{tensor.name} of at least {last} in dimension {dim}; {legal}",
            facts={"rule": rule, "path": tensor.name, "line": op.line},
        )

    # Points.

    def _first(
        self, place: _Place, reached: Number, limit: Number, some: Sequence[Number], own: int
    ) -> int | None:  # fmt: skip
        """The most that `reached` comes to where it is beyond `limit` and all of `some` are positive; None: nowhere.

        Each of `some` that has other symbols than the rest only needs to be positive somewhere.
        """
        if isinstance(reached, int) and isinstance(limit, int) and reached <= limit:
            return None
        mine = [reached, limit, some[own], *place.conditions]
        around = _symbols(self._resolved(mine) or [])
        roots, alone = list(mine), list[Number]()
        for n, one in enumerate(some):
            if n != own:
                (roots if _symbols([one]) & around else alone).append(one)
        for apart in alone:
            found = self._at([apart, *place.conditions])
            if found is None or not np.any(_all(found[1:]) & (found[0] > 0)):
                return None
        values = self._at(roots)
        if values is None:
            return None
        there = _all(values[3 : 3 + len(place.conditions)]) & (values[0] > values[1]) & (values[2] > 0)
        for exists in values[3 + len(place.conditions) :]:
            there = there & (exists > 0)
        return int(np.max(np.broadcast_to(values[0], there.shape)[there])) if np.any(there) else None

    def _resolved(self, roots: Sequence[Any]) -> list[Expr] | None:
        """The expressions without symbols that stand for others; None: one is known to a run only."""
        exprs = [as_expr(one) for one in roots]
        for _ in range(len(self.values) + 1):
            named = {s for s in _symbols(exprs) if s in self.values}
            if not named:
                return exprs
            if any(self.values[s] is None for s in named):
                return None
            known = {s: v for s in named if (v := self.values[s]) is not None}
            exprs = [substitute(one, known) for one in exprs]
        return None

    def _at(self, roots: Sequence[Any]) -> list[Array] | None:
        """The values of expressions at all points of their symbols; None where these are not known, or too many."""
        exprs = self._resolved(roots)
        if exprs is None:
            return None
        points = self._points(_symbols(exprs))
        if points is None:
            return None
        env, inside = points
        values, defined = values_of(exprs, env)
        there = inside & np.asarray(defined)
        shape = there.shape
        return [np.broadcast_to(v, shape)[there] for v in values]

    def _points(self, names: set[Expr]) -> tuple[dict[Expr, Any], Array] | None:
        """All values of symbols side by side, and which of them a run has."""
        blocks = self._grid()
        loops = {s: self.ranges[s] for s in names if s in self.ranges}
        bounds = self._resolved([b for pair in loops.values() for b in pair])
        if blocks is None or bounds is None or any(s in self.ranges for s in _symbols(bounds)):
            return None
        around = {s for s in (names | _symbols(bounds)) if s in blocks}
        meshes = {s: extent for s in names | _symbols(bounds) for axis, extent in self.kernel.mesh if str(s) == axis}
        if names - set(loops) - around - set(meshes):
            return None
        columns = np.unique(np.stack([blocks[s] for s in around]), axis=1) if around else np.zeros((0, 1), np.int64)
        axes: list[tuple[list[Expr], Array]] = [(list(around), columns)]
        axes += [([s], np.arange(extent)[None]) for s, extent in meshes.items()]
        env: dict[Expr, Any] = _crossed(axes)
        limits = dict(zip(loops, zip(bounds[::2], bounds[1::2], strict=True), strict=True))
        for s, (start, stop) in limits.items():
            (low, high), _ = values_of([start, stop], env)
            axes.append(([s], np.arange(int(np.min(low)), max(int(np.max(high)), int(np.min(low)) + 1))[None]))
        if prod(columns.shape[1] for _, columns in axes) > _MOST:
            return None
        env = _crossed(axes)
        inside = np.ones(prod(columns.shape[1] for _, columns in axes), bool)
        for s, (start, stop) in limits.items():
            (low, high), _ = values_of([start, stop], env)
            inside &= (env[s] >= low) & (env[s] < high)
        return env, inside

    def _grid(self) -> dict[Expr, Array] | None:
        if self._blocks is None:
            grid = self.kernel.grid
            if not isinstance(grid.size, int) or grid.size > _MOST:
                return None
            numbers = np.arange(grid.size)
            known: dict[Expr, Any] = {grid.block: numbers}
            for symbol, value in grid.coords:
                if _symbols([value]) <= set(known):
                    (found,), _ = values_of([as_expr(value)], known)
                    known[symbol] = np.broadcast_to(found, numbers.shape)
            self._blocks = known
        return self._blocks


def _crossed(axes: Sequence[tuple[list[Expr], Array]]) -> dict[Expr, Any]:
    """Symbol -> its value at each point of the product of several lists of points."""
    counts = [columns.shape[1] for _, columns in axes]
    made: dict[Expr, Any] = {}
    for k, (names, columns) in enumerate(axes):
        outer, inner = prod(counts[:k]), prod(counts[k + 1 :])
        for name, column in zip(names, columns, strict=True):
            made[name] = np.tile(np.repeat(column, inner), outer)
    return made


def _same(a: Number, b: Number) -> bool:
    return a is b or a == b


def _symbols(values: Sequence[Any]) -> set[Expr]:
    return set().union(*(symbols_of(v) for v in values if isinstance(v, Expr)))


def _all(conditions: Sequence[Array]) -> Any:
    made: Any = np.True_
    for one in conditions:
        made = made & one.astype(bool)
    return made


def _least(a: Number, b: Number) -> Number:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else a if a == b else minimum(a, b)


def _clip(begin: Number, extent: int, size: Number) -> Number:
    """How many of `extent` coordinates from `begin` on lie below `size`, at least none."""
    if isinstance(begin, int) and isinstance(size, int):
        return max(0, min(extent, size - begin))
    return maximum(0, minimum(extent, size - begin))
