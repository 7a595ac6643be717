"""Reductions by strides: the loops that form pieces of them in vectors of registers, and combine these.

Sums of FP32, BF16 and FP16 have pieces in FP32 and totals in FP64. So such a sum is off by `MOST_ROUNDINGS` of the sum
of magnitudes at most, however long it is, and by the last one; NumPy's along the last axis by 19 from 256 elements on,
and one more each time that they double, along other axes by as many as there are elements. A piece overflows as sums
in FP32 do, totals do not. A sum in FP32 that a program takes into FP64 has no such pieces.

Along the vectors' own axis each vector of results takes in every so manieth pair of vectors; along other axes up to
`_LONG_RUN` elements are taken at a time, into what the output holds or into a buffer of totals.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import vector
from tileweave.backends.cpu.llvm.ir import Function, Value
from tileweave.backends.cpu.llvm.loops import emit_nest
from tileweave.backends.cpu.llvm.meanings import Registers
from tileweave.backends.cpu.maps.points import Carried, Points
from tileweave.backends.host import LINE_BYTES
from tileweave.index.sizes import known
from tileweave.teir.merged.form import Mode

_TURNS = 8
"""A piece of a reduction along the vectors' axis: so many times the vectors that are taken at once."""
_RUN, _LONG_RUN, _AT_ONCE = 16, 64, 4
"""A piece of one along another axis: so many elements at least and, where the first cache holds them, at most; those of
them that are added before they are added to the others."""
MOST_ROUNDINGS = _LONG_RUN // _AT_ONCE + 2
"""By so many roundings of the sum of magnitudes a piece is off, at most."""

Body = Callable[[list[list[str]], str | None, list[str]], list[str]]
"""Some vectors: their addresses, a mask, and values carried along; returns the values to carry on."""


@dataclass(frozen=True, slots=True)
class Along:
    """The axis that runs in vectors.

    Args:
        dim: the axis.
        lanes: elements of a vector.
        unroll: vectors at once, a power of two.
        piece: elements of a piece of it, a multiple of these; 0: it is one.
        ahead: operands whose lines are asked for ahead, with their widths and whether they are written.
        few: does fewer elements than a vector has, from an index on; None: a masked vector does.
        halving: whether what is left is taken in halves of so many vectors, not one by one.
    """

    dim: Mode
    lanes: int
    unroll: int
    piece: int = 0
    ahead: tuple[tuple[int, int, bool], ...] = ()
    few: Callable[[Function, Sequence[str], Value, Value], None] | None = None
    halving: bool = False

    def run(
        self,
        f: Function,
        pointers: list[str],
        piece: Value,
        body: Body,
        carried: Carried,
        start: Value = 0,
        beside: tuple[int, ...] = (),
    ) -> list[str]:
        """Some vectors at a time, then one at a time, then a masked one; values are carried on.

        Args:
            f: the function.
            pointers: addresses of the operands, and of what lies beside them.
            piece: which one of the axis this is.
            body: what happens.
            carried: to the first vectors.
            start: where the axis begins.
            beside: strides of what lies beside the operands.
        """
        types, values = [type for type, _ in carried], [value for _, value in carried]
        extent, lanes, unroll = self.dim.extent, self.lanes, self.unroll
        left = extent % lanes
        many, one = extent - extent % (lanes * unroll), extent - left

        def over(first: Value, last: Value, count: int) -> None:
            carry = list(zip(types, values, strict=True))
            values[:] = self.over(f, pointers, first, last, count, body, carry, beside)

        def rest(begin: Value) -> None:
            first, counts = many, [unroll >> k for k in range(1, unroll.bit_length())]
            for count in counts if self.halving else [1] * (unroll > 1):
                last = extent - extent % (lanes * count)
                over(f.sub(first, begin), f.sub(last, begin), count)
                first = last
            if left and self.few is not None:
                self.few(f, pointers, f.sub(one, begin), left)
            elif left:
                values[:] = body(self.at(f, pointers, f.sub(one, begin), 1, beside), self.mask(f, left), values)

        if not self.piece:
            over(start, many, unroll)
            rest(0)
            return values
        begin = f.mul(piece, self.piece)
        over(0, f.min(f.sub(many, begin), self.piece), unroll)
        if many < extent:  # pieces carry nothing: their results are their own
            f.when(f.compare("eq", piece, -(-extent // self.piece) - 1), lambda: rest(begin))
        return values

    def at(
        self, f: Function, pointers: list[str], index: Value, count: int, beside: tuple[int, ...] = ()
    ) -> list[list[str]]:
        """The addresses of so many vectors."""
        strides = (*self.dim.strides, *beside)
        return [
            [f.at(p, f.mul(f.add(index, u * self.lanes), s)) for p, s in zip(pointers, strides, strict=True)]
            for u in range(count)
        ]

    def over(
        self,
        f: Function,
        pointers: list[str],
        first: Value,
        last: Value,
        count: int,
        body: Body,
        carried: Carried,
        beside: tuple[int, ...] = (),
    ) -> list[str]:
        """A part of the axis, so many vectors at a time."""

        def turn(index: Value, carry: list[str]) -> list[Value]:
            if count == self.unroll:
                self.ask(f, pointers, index, count)
            return list(body(self.at(f, pointers, index, count, beside), None, carry))

        return [str(value) for value in f.loop(first, last, turn, step=self.lanes * count, carry=carried)]

    def ask(self, f: Function, pointers: Sequence[str], index: Value, count: int) -> None:
        """Ask for the lines that some vectors of dense operands will need in a while."""
        for o, width, write in self.ahead:
            if self.dim.strides[o] == width:
                begin = f.at(f.at(pointers[o], f.mul(index, width)), vectors.AHEAD_BYTES)
                for line in range(0, count * self.lanes * width, LINE_BYTES):
                    vectors.prefetch(f, f.at(begin, line), write=write)

    def mask(self, f: Function, left: int) -> str:
        """The mask of the first lanes."""
        if not known(left):
            return vectors.mask_below(f, str(left), self.lanes)
        if left > 1:
            return vectors.mask_of(left, self.lanes)
        # LLVM 22 widens a masked store of narrowed values whose constant mask has one lane: this one is not constant
        one = f.add(f.value("lshr i64 %thread, 63"), 1)
        return vectors.mask_below(f, str(one), self.lanes)


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reductions of a chain at a point of its outer axes.

    Args:
        points: what happens at a point.
        along: the vectors' axis.
        dims: the other axes that are reduced.
        begun: results that start at their neutral elements.
        rows: elements of the last one of ``dims`` that are taken at a time, where results move along the vectors' axis.
        most: elements of the vectors' axis in a row, at most.
    """

    points: Points
    along: Along
    dims: tuple[Mode, ...]
    begun: frozenset[int]
    rows: int
    most: int

    def emit(self, f: Function, pointers: list[str], piece: Value, rows: Sequence[tuple[int, ...]]) -> None:
        """Their loops.

        Args:
            f: the function.
            pointers: addresses of the operands.
            piece: which one of the vectors' axis this is.
            rows: distances from the pointers to where rows begin, whose loops run together along the vectors.
        """
        if self.points.across:
            self._across(f, pointers, piece)
        else:
            self._along(f, pointers, rows)

    def _along(self, f: Function, pointers: list[str], rows: Sequence[tuple[int, ...]]) -> None:
        """Reductions along the vectors' axis, and along others with it: partial results per lane.

        Each of ``rows`` begins at this distance from the pointers; their loops run together.
        """
        p, axis, lanes = self.points, self.along, self.along.lanes
        step = lanes * axis.unroll
        registers = Registers(f, p.target, lanes)
        neutral, size, count = p.neutral(registers), len(p.reductions), axis.unroll // 2
        none = neutral * (count + 1) * len(rows)  # per row a part of each pair of vectors, and one of its end

        def body(places: list[list[str]], mask: str | None, carry: list[str]) -> list[str]:
            result = list(carry)
            for k, row in enumerate(rows):
                moved, first = [moved_by(f, place, row) for place in places], k * (count + 1) * size
                if len(places) == 1:
                    own = slice(first + count * size, first + (count + 1) * size)
                    result[own] = p.point(f, moved[0], lanes, mask, carry[own])
                for u in range(0, len(places) & ~1, 2):
                    own = slice(first + u // 2 * size, first + (u // 2 + 1) * size)
                    result[own] = p.joined(registers, carry[own], p.tree(f, moved[u : u + 2], lanes, mask))
            return result

        def taken(totals: list[str], parts: list[str]) -> list[str]:
            found, width = list(totals), (count + 1) * size
            for k in range(len(rows)):
                one = [parts[k * width + u * size : k * width + (u + 1) * size] for u in range(count + 1)]
                own = slice(k * size, (k + 1) * size)
                piece = p.as_one(registers, one)
                found[own] = p.added(f, totals[own], piece, lanes) if p.pieces else piece
            return found

        def along(pointers: list[str], carried: Carried) -> list[str]:
            begin: Value = 0
            totals = [value for _, value in carried]
            if p.pieces and not (known(axis.dim.extent) and axis.dim.extent < _TURNS * step):
                begin = axis.dim.extent - axis.dim.extent % (_TURNS * step)

                def block(index: Value, carry: list[str]) -> list[Value]:
                    parts = self.along.over(
                        f, pointers, index, f.add(index, _TURNS * step), self.along.unroll, body, none
                    )
                    return list(taken(carry, parts))

                totals = list(map(str, f.loop(0, begin, block, step=_TURNS * step, carry=carried)))
            return taken(totals, axis.run(f, pointers, 0, body, none, begin))

        def nested(dims: Sequence[Mode], pointers: list[str], carried: Carried) -> list[str]:
            if not dims:
                return along(pointers, carried)
            types = [type for type, _ in carried]

            def inside(index: Value, carry: list[str]) -> list[Value]:
                moved = [f.at(p, f.mul(index, s)) for p, s in zip(pointers, dims[0].strides, strict=True)]
                return list(nested(dims[1:], moved, list(zip(types, carry, strict=True))))

            return [str(value) for value in f.loop(0, dims[0].extent, inside, carry=carried, nonempty=True)]

        found = nested(self.dims, pointers, p.neutral_totals(f, lanes) * len(rows))
        for k, row in enumerate(rows):
            self._conclude(f, moved_by(f, pointers, row), found[k * size : (k + 1) * size])

    def _conclude(self, f: Function, pointers: list[str], totals: list[str]) -> None:
        """Totals per lane to one result, which is written."""
        p = self.points
        result = p.results_of(f, totals, self.along.lanes)
        if not self.begun.issuperset(p.results):
            held = p.combined(f, p.found(f, pointers, 1, None, totals=True), result)
            result = [a if o in self.begun else b for o, a, b in zip(p.results, result, held, strict=True)]
        p.keep(f, pointers, dict(zip(p.results, result, strict=True)), 1, None, totals=True)

    def _across(self, f: Function, pointers: list[str], piece: Value) -> None:
        """Reductions along other axes than the vectors' own: a few elements of the last one at a time.

        Pieces are taken into what the outputs hold, or, where these are narrower than totals, into a buffer.
        """
        p, lanes = self.points, self.along.lanes
        neutral = p.neutral(Registers(f, p.target, lanes))
        last = self.dims[-1] if self.dims else Mode(1, (0,) * len(pointers))
        held = [k for k, s in enumerate(p.reductions) if p.total(s) != p.elements[s.output]] if p.pieces else []
        columns = self.along.piece or self.along.dim.extent
        columns = -(-columns // lanes) * lanes if known(columns) else self.most
        buffers = [f.slot(p.total(p.reductions[k]).memory, columns) for k in held]
        beside = tuple(p.total(p.reductions[k]).width_bytes for k in held)
        size, operands = len(neutral), len(pointers)

        def taken(places: list[list[str]], mask: str | None, count: Value, start: list[list[str]]) -> list[list[str]]:
            """Pieces of so many elements, one per place."""

            def some(many: int) -> Callable[[Value, list[str]], list[Value]]:
                def turn(index: Value, carry: list[str]) -> list[Value]:
                    result: list[Value] = []
                    for u, place in enumerate(places):
                        own = carry[u * size : (u + 1) * size]
                        moved = [
                            [f.at(q, f.mul(f.add(index, row), s)) for q, s in zip(place, last.strides, strict=False)]
                            for row in range(many)
                        ]
                        if many == 1:
                            result += p.point(f, moved[0], lanes, mask, own)
                        else:
                            result += p.joined(Registers(f, p.target, lanes), own, p.tree(f, moved, lanes, mask))
                    return result

                return turn

            types = [type for type, _ in neutral] * len(places)
            values: list[Value] = [value for one in start for value in one]
            whole = f.sub(count, f.rem(count, _AT_ONCE))
            for begin, end, many in ((0, whole, _AT_ONCE), (whole, count, 1)):
                carry = list(zip(types, map(str, values), strict=True))
                values = f.loop(begin, end, some(many), step=many, carry=carry)
            found = list(map(str, values))
            return [found[u * size : (u + 1) * size] for u in range(len(places))]

        def totals(place: list[str], mask: str | None) -> list[str]:
            found = list[str]()
            for k, stage in enumerate(p.reductions):
                one, o = p.total(stage), stage.output
                if k in held:
                    found.append(f.load(vector(one.memory, lanes), place[operands + held.index(k)], one.width_bytes))
                else:
                    found.append(p.load(f, o, place[o], lanes, mask))
            return found

        def keep(place: list[str], mask: str | None, values: Sequence[str]) -> None:
            for k, (stage, value) in enumerate(zip(p.reductions, values, strict=True)):
                one, o = p.total(stage), stage.output
                if k in held:
                    f.store(vector(one.memory, lanes), value, place[operands + held.index(k)], one.width_bytes)
                else:
                    p.store(f, o, value, place[o], lanes, mask)

        def begin(places: list[list[str]], mask: str | None, _: list[str]) -> list[str]:
            for place in places:
                keep(place, mask, started(place, mask, totals=True))
            return []

        def started(place: list[str], mask: str | None, *, totals: bool) -> list[str]:
            none = [value for _, value in (p.neutral_totals(f, lanes) if totals else neutral)]
            if self.begun.issuperset(p.results):
                return none
            there = p.found(f, place[:operands], lanes, mask, totals=totals)
            return [a if o in self.begun else b for o, a, b in zip(p.results, none, there, strict=True)]

        def whole(places: list[list[str]], mask: str | None, _: list[str]) -> list[str]:
            start = [started(place, mask, totals=False) for place in places]
            for place, one in zip(places, taken(places, mask, last.extent, start), strict=True):
                p.keep(f, place, dict(zip(p.results, one, strict=True)), lanes, mask)
            return []

        def end(places: list[list[str]], mask: str | None, _: list[str]) -> list[str]:
            for place in places:
                values = {p.results[k]: totals(place, mask)[k] for k in held}
                p.keep(f, place[:operands], values, lanes, mask, totals=True)
            return []

        if not p.pieces:
            self.along.run(f, pointers, piece, whole, [])
            return
        own = [p.total(stage) == p.piece(stage) for stage in p.reductions]

        def runs(moved: list[str]) -> None:
            def run(index: Value, _: list[str]) -> None:
                count = f.min(f.sub(last.extent, index), self.rows)

                def some(places: list[list[str]], mask: str | None, _: list[str]) -> list[str]:
                    there = [totals(place, mask) for place in places]
                    start = [
                        [a if one else b for one, a, (_, b) in zip(own, have, neutral, strict=True)] for have in there
                    ]
                    found = taken(places, mask, count, start)
                    for place, have, part in zip(places, there, found, strict=True):
                        more = p.added(f, have, part, lanes)
                        keep(place, mask, [a if one else b for one, a, b in zip(own, part, more, strict=True)])
                    return []

                places = [f.at(q, f.mul(index, s)) for q, s in zip(moved, last.strides, strict=True)]
                self.along.run(f, [*places, *buffers], piece, some, [], 0, beside)

            f.loop(0, last.extent, run, step=self.rows)

        if held or self.begun:
            self.along.run(f, [*pointers, *buffers], piece, begin, [], 0, beside)
        emit_nest(f, self.dims[:-1], pointers, runs)
        if held:
            self.along.run(f, [*pointers, *buffers], piece, end, [], 0, beside)


def moved_by(f: Function, pointers: Sequence[str], by: Sequence[Value]) -> list[str]:
    """Addresses so many bytes on."""
    return [f.at(pointer, distance) for pointer, distance in zip(pointers, by, strict=True)]


def reduction_of(
    points: Points, along: Along, dims: tuple[Mode, ...], begun: frozenset[int], most: int, *, across: bool, heavy: bool
) -> Reduction:
    """The reductions of a chain.

    Args:
        points, along, dims, begun, most: as of `Reduction`.
        across: whether results move along the vectors' axis.
        heavy: whether elements are functions of dozens of instructions.
    """
    rows = _RUN
    if across:
        rows = _rows(points, along, dims, heavy=heavy)
        pieces = len(dims) > 1 or (len(dims) == 1 and not dims[0].extent <= rows)
    else:
        pieces = bool(dims) or not along.dim.extent < _TURNS * along.lanes * along.unroll
    return Reduction(replace(points, across=across, pieces=pieces), along, dims, begun, rows, most)


def _rows(points: Points, along: Along, dims: Sequence[Mode], *, heavy: bool) -> int:
    """Elements of another axis than the vectors' that are taken at a time: half the first cache holds them."""
    read = {o for stage in points.op.stages for o in stage.inputs} - points.op.dropped
    width = max(points.elements[o].width_bytes for o in read)
    rows = points.target.l1_bytes // (2 * width * (along.piece or along.dim.extent))
    if heavy:
        return _RUN
    if rows < 2 * _RUN:
        return 2 * _RUN if dims and dims[-1].extent <= 2 * _RUN else _RUN
    return _LONG_RUN if rows > _LONG_RUN else rows
