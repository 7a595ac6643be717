"""Rows that are sorted: into the lanes of vectors and out of them, and runs that are merged.

A row is one column, or is cut into segments of one length, which are columns; the last ones are filled with what no
element comes behind. As many columns as there are lanes are a batch. Sorted segments are runs in memory, merged in
pairs until one is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tileweave.backends.cpu.llvm import vectors
from tileweave.backends.cpu.llvm.elements import element, splat, vector
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import run_tasks
from tileweave.backends.cpu.moves import HEAD
from tileweave.backends.cpu.sorting.keys import Keys
from tileweave.backends.cpu.sorting.merge import emit_merges
from tileweave.backends.cpu.sorting.network import Network
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target

RANK = 3
"""Dimensions beside the sorted one, neighbours that walk alike joined."""
WORDS = (
    *("x", "out", "tasks", "rows", "count", "extent", "x_step", "out_step"),
    *("segments", "length", "lanes", "groups", "columns_bytes", "runs_bytes", "chunks", "mask"),
    *(f"{what}_{k}" for what in ("extent", "x", "out") for k in range(RANK)),
)
"""Words of a call behind the head of its environment.

``tasks``: 0 where threads share each row; ``lanes``: columns of a group of rows; ``chunks``: of a row that is written;
``mask``: of `keys.mask_of`.
"""
AT = {name: 8 * (HEAD + k) for k, name in enumerate(WORDS)}
ENV_BYTES = 8 * (HEAD + len(WORDS))
_MEMORY, _THREADS = 16, 24


def sort_code(keys: Keys, target: Target) -> Code:
    """The code that sorts rows of any number and length."""
    module = Module()
    network = Network(module, keys, target)
    emit_merges(module, keys, network.lanes)
    _Batch(module, network)
    _emit_written(module, keys, target)
    _emit_groups(module, keys, network.lanes)
    _emit_shared(module, keys, network.lanes)
    f = Function(module, "entry", [("ptr", "env")], public=True)
    tasks = _words(f, "tasks")[0]
    several = partial(run_tasks, f, "groups", "%env", tasks, "0")
    alone = partial(f.call, "groups", "ptr %env", "i64 0", "i64 0")
    f.when(
        f.compare("sgt", tasks, 1),
        several,
        partial(f.when, f.compare("eq", tasks, 1), alone, partial(f.call, "shared", "ptr %env")),
    )
    f.ret()
    return compile_ir(module.text(), ("entry",), target)


def _words(f: Function, *names: str) -> list[str]:
    return [f.load("ptr" if name in ("x", "out") else "i64", f.at("%env", AT[name]), 8) for name in names]


def _masks(f: Function, keys: Keys, lanes: int) -> dict[int, str]:
    """The mask of the call for one element, and for a vector of them."""
    (word,) = _words(f, "mask")
    one = word if keys.width == 8 else f.value(f"trunc i64 {word} to {keys.element}")
    return {1: one, lanes: vectors.broadcast(f, keys.element, lanes, one)}


def _divided(f: Function, number: Value, divisor: Value) -> list[Value]:
    """(quotient, remainder) of numbers of which most are less than the divisor: a division takes ten sums' time."""
    less = f.compare("ult", number, divisor)
    return f.choose(less, ["i64", "i64"], lambda: [0, number], lambda: [f.div(number, divisor), f.rem(number, divisor)])


def _digits(f: Function, row: Value) -> list[Value]:
    """The index of a row along the dimensions beside the sorted one."""
    digits, rest = list[Value](), row
    for extent in reversed(_words(f, *(f"extent_{k}" for k in range(1, RANK)))):
        rest, digit = _divided(f, rest, extent)
        digits.insert(0, digit)
    return [rest, *digits]


def _row_at(f: Function, digits: Sequence[Value]) -> list[str]:
    """Where a row begins in what is sorted, and in what is written."""
    found = list[str]()
    for name in ("x", "out"):
        base, *steps = _words(f, name, *(f"{name}_{k}" for k in range(RANK)))
        offset: Value = 0
        for digit, step in zip(digits, steps, strict=True):
            offset = f.add(offset, f.mul(digit, step))
        found.append(f.at(base, offset))
    return found


class _Batch:
    """Writes ``batch(env, group, number, columns, runs)``, which sorts as many columns as there are lanes.

    Args:
        module: where it goes.
        network: which sorts columns.
    """

    def __init__(self, module: Module, network: Network) -> None:
        self.network, self.keys, self.lanes = network, network.keys, network.lanes
        self.one, target = element(f"INT{8 * self.keys.width}"), network.target
        self.masks_loads = target.vector_bytes == 64 or (target.vector_bytes == 32 and self.keys.width >= 4)
        parameters = [("ptr", "env"), ("i64", "group"), ("i64", "number"), ("ptr", "columns"), ("ptr", "runs")]
        self.f = f = Function(module, "batch", parameters)
        names = ("extent", "count", "length", "segments", "x_step", "out_step", "runs_bytes")
        self.word = dict(zip(names, _words(f, *names), strict=True))
        self.table = {name: f.slot("i64", self.lanes) for name in ("from", "to", "left", "begin")}
        self.masks = _masks(f, self.keys, self.lanes)
        least, beside, beside_out = self._tables()
        length, lanes = self.word["length"], self.lanes
        dense = f.compare("eq", self.word["x_step"], self.keys.width)

        def tiles() -> list[Value]:
            end = length if self.masks_loads else f.value(f"and i64 {least}, {-lanes}")
            f.loop(0, end, lambda k, _: self._tile_in(k, least), step=lanes)
            return [end]

        def other() -> list[Value]:
            def side_by_side() -> list[Value]:
                f.loop(0, length, self._row_in)
                return [length]

            return f.choose(beside, ["i64"], side_by_side, lambda: [0])

        (done,) = f.choose(dense, ["i64"], tiles, other)
        f.loop(done, length, lambda k, _: self._each(lambda lane: self._one_in(k, lane)))
        f.call("columns", "ptr %columns", f"i64 {length}")
        alone = f.compare("eq", self.word["segments"], 1)
        f.when(alone, partial(self._written, beside_out), self._runs)
        f.ret()

    def _entry(self, name: str, lane: Value) -> str:
        return self.f.at(self.table[name], self.f.mul(lane, 8))

    def _held(self, name: str, lane: Value) -> str:
        return self.f.load("ptr" if name in ("from", "to") else "i64", self._entry(name, lane), 8)

    def _each(self, one: Callable[[Value], None]) -> None:
        self.f.loop(0, self.lanes, lambda lane, _: one(lane))

    def _tables(self) -> list[Value]:
        """Where each lane's elements come from and go to, how many there are, and which number the first one has.

        Returns the least number, and whether elements of neighbouring lanes are neighbours in memory: of what is
        sorted, and of what is written.
        """
        f, word = self.f, self.word
        rows, lanes, x, out = _words(f, "rows", "lanes", "x", "out")
        sides = (("from", self.keys.width), ("to", self.keys.wanted_bytes))
        alone = f.compare("eq", word["segments"], 1)
        ahead, segment = f.choose(
            alone,
            ["i64", "i64"],
            lambda: [f.add(f.mul("%group", lanes), f.mul("%number", self.lanes)), 0],
            lambda: self._segment(lanes),
        )
        # whole rows of the last batch are those that end the rows, where there are so many, and where no other batch
        # writes over what this one reads
        ends = f.both(alone, f.compare("ne", x, out, "ptr"))
        last = f.value(f"select i1 {ends}, i64 {f.sub(rows, self.lanes)}, i64 {f.sub(rows, 1)}")
        last = f.value(f"select i1 {f.compare('sgt', last, 0)}, i64 {last}, i64 0")
        row = f.min(ahead, last)
        extents = _words(f, *(f"extent_{k}" for k in range(1, RANK)))

        def lane(k: Value, carried: list[str]) -> list[Value]:
            least, near, near_out, segment, row, *digits = carried
            begin = f.mul(segment, word["length"])
            places = _row_at(f, digits)
            places[0] = f.at(places[0], f.mul(begin, word["x_step"]))
            left = f.min(f.sub(word["extent"], begin), word["length"])
            left = f.value(f"select i1 {f.compare('sgt', left, 0)}, i64 {left}, i64 0")
            for name, value in (("left", left), ("begin", begin)):
                f.store("i64", value, self._entry(name, k), 8)
            found: list[Value] = [f.min(least, left)]
            for (name, width), place, truth in zip(sides, places, (near, near_out), strict=True):
                f.store("ptr", place, self._entry(name, k), 8)
                expected = f.at(self._held(name, 0), f.mul(k, width))
                found.append(f.value(f"and i1 {truth}, {f.compare('eq', place, expected, 'ptr')}"))
            # the next segment, or that of the next row; idle lanes repeat the last row
            following = f.add(segment, 1)
            over: Value = f.compare("eq", following, word["segments"])
            more = f.both(over, f.compare("slt", f.add(row, 1), rows))
            found.append(f.value(f"select i1 {over}, i64 0, i64 {following}"))
            carry: Value = f.value(f"zext i1 {more} to i64")
            found.append(f.add(row, carry))
            moved = list[Value]()
            for digit, extent in zip(reversed(digits[1:]), reversed(extents), strict=True):
                after = f.add(digit, carry)
                over = f.compare("eq", after, extent)
                moved.insert(0, f.value(f"select i1 {over}, i64 0, i64 {after}"))
                carry = f.value(f"zext i1 {over} to i64")
            return [*found, f.add(digits[0], carry), *moved]

        first: list[tuple[str, Value]] = [("i64", word["length"]), ("i1", alone), ("i1", alone)]
        first += [("i64", value) for value in (segment, row, *_digits(f, row))]
        return list(f.loop(0, self.lanes, lane, carry=first)[:3])

    def _segment(self, lanes: Value) -> list[Value]:
        """The row of a batch's first column, and which segment of it the column is."""
        f, segments = self.f, self.word["segments"]
        row, segment = _divided(f, f.mul("%number", self.lanes), segments)
        return [f.add(f.mul("%group", f.div(lanes, segments)), row), segment]

    # ---- into columns -------------------------------------------------------------------------------------------

    def _column(self, k: Value) -> str:
        return self.f.at("%columns", self.network.at(self.f, k))

    def _numbers(self, first: Value, step: int) -> str:
        """Numbers of elements in the type of a part; empty where no places are wanted."""
        if not self.keys.places:
            return ""
        f, type, lanes = self.f, self.keys.type, self.lanes
        start = first if type == "i64" else f.value(f"trunc i64 {first} to {type}")
        every = vectors.broadcast(f, type, lanes, str(start))
        full = vector(type, lanes)
        steps = "<" + ", ".join(f"{type} {step * k}" for k in range(lanes)) + ">" if lanes > 1 else "0"
        return f.value(f"add {full} {every}, {steps}")

    def _tile_in(self, k: Value, least: Value) -> None:
        """As many elements of each lane as there are lanes; behind the end of one, what fills it up."""
        f, keys, lanes = self.f, self.keys, self.lanes
        places = [f.at(self._held("from", lane), f.mul(k, keys.width)) for lane in range(lanes)]
        numbers = [f.add(self._held("begin", lane), k) if keys.places else 0 for lane in range(lanes)]

        def made(lane: int, mask: str | None) -> list[str]:
            bits = vectors.load(f, self.one, lanes, places[lane], mask)
            record = keys.made(f, lanes, bits, self._numbers(numbers[lane], 1), self.masks[lanes])
            return record if mask is None else keys.chosen(f, lanes, mask, record, fill)

        def whole() -> list[Value]:
            return [part for lane in range(lanes) for part in made(lane, None)]

        def partly() -> list[Value]:
            left = (str(f.sub(self._held("left", lane), k)) for lane in range(lanes))
            masks = [vectors.mask_below(f, count, lanes) for count in left]
            return [part for lane in range(lanes) for part in made(lane, masks[lane])]

        full, fill = vector(keys.type, lanes), [splat(keys.type, lanes, keys.last)] * keys.parts
        if self.masks_loads:
            within = f.compare("sle", f.add(k, lanes), least)
            found = f.choose(within, [full] * (lanes * keys.parts), whole, partly)
        else:
            found = whole()
        turned = [
            vectors.transpose(f, keys.type, lanes, [str(one) for one in found[part :: keys.parts]], lanes)
            for part in range(keys.parts)
        ]
        for row in range(lanes):
            self.network.store(f, [part[row] for part in turned], self._column(f.add(k, row)))

    def _row_in(self, k: Value, _: object) -> None:
        f, keys, lanes = self.f, self.keys, self.lanes
        at = f.at(self._held("from", 0), f.mul(k, self.word["x_step"]))
        bits = f.load(vector(keys.element, lanes), at, keys.width)
        record = keys.made(f, lanes, bits, self._numbers(k, 0), self.masks[lanes])
        self.network.store(f, record, self._column(k))

    def _one_in(self, k: Value, lane: Value) -> None:
        f, keys = self.f, self.keys
        to = f.at(self._column(k), f.mul(lane, keys.bytes))

        def put(record: Sequence[str]) -> None:
            for part, value in enumerate(record):
                f.store(keys.type, value, f.at(to, part * self.lanes * keys.bytes), keys.bytes)

        def there() -> None:
            bits = f.load(keys.element, f.at(self._held("from", lane), f.mul(k, self.word["x_step"])), keys.width)
            number: Value = f.add(self._held("begin", lane), k)
            if keys.type != "i64":
                number = f.value(f"trunc i64 {number} to {keys.type}")
            put(keys.made(f, 1, bits, str(number), self.masks[1]))

        f.when(f.compare("slt", k, self._held("left", lane)), there, lambda: put([keys.last] * keys.parts))

    # ---- out of columns -----------------------------------------------------------------------------------------

    def _turned(self, k: Value) -> list[list[str]]:
        """Rows of columns from one on, per lane the parts of its records."""
        f, keys, lanes = self.f, self.keys, self.lanes
        rows = [self.network.load(f, self._column(f.add(k, row))) for row in range(lanes)]
        turned = [vectors.transpose(f, keys.type, lanes, [one[p] for one in rows], lanes) for p in range(keys.parts)]
        return [[part[lane] for part in turned] for lane in range(lanes)]

    def _one_out(self, k: Value, lane: Value) -> list[str]:
        f, keys = self.f, self.keys
        at = f.at(self._column(k), f.mul(lane, keys.bytes))
        return [f.load(keys.type, f.at(at, p * self.lanes * keys.bytes), keys.bytes) for p in range(keys.parts)]

    def _written(self, beside: Value) -> None:
        """Columns that are rows, as what is wanted of them."""
        f, keys, lanes, width = self.f, self.keys, self.lanes, self.keys.wanted_bytes
        count, step, full = self.word["count"], self.word["out_step"], vector(keys.wanted, lanes)
        wanted, short = element(f"INT{8 * width}"), f.compare("slt", count, lanes)

        def tile(k: Value, _: object) -> None:
            begin = f.min(k, f.sub(count, lanes))  # the last one ends with the row: it may meet the one before
            begin = f.value(f"select i1 {short}, i64 0, i64 {begin}")
            values = [keys.read(f, lanes, record, self.masks[lanes]) for record in self._turned(begin)]
            places = [f.at(self._held("to", lane), f.mul(begin, width)) for lane in range(lanes)]

            def part() -> None:
                masks = self.network.target.masks_stores
                mask, runs = (
                    (vectors.mask_below(f, count, lanes), []) if masks else ("", vectors.runs_of(f, count, lanes))
                )
                for value, to in zip(values, places, strict=True):
                    if masks:
                        vectors.store(f, wanted, lanes, value, to, mask)
                    else:
                        vectors.store_runs(f, wanted, lanes, value, to, runs)

            def whole() -> None:
                for value, to in zip(values, places, strict=True):
                    f.store(full, value, to, width)

            f.when(short, part, whole)

        def row(k: Value, _: object) -> None:
            value = keys.read(f, lanes, self.network.load(f, self._column(k)), self.masks[lanes])
            f.store(full, value, f.at(self._held("to", 0), f.mul(k, step)), width)

        def one(k: Value, lane: Value) -> None:
            at = f.at(self._held("to", lane), f.mul(k, step))
            f.store(keys.wanted, keys.read(f, 1, self._one_out(k, lane), self.masks[1]), at, width)

        def tiles() -> list[Value]:
            f.loop(0, count, tile, step=lanes)
            return [count]

        def side_by_side() -> list[Value]:
            f.loop(0, count, row)
            return [count]

        dense = f.compare("eq", step, width)
        (done,) = f.choose(dense, ["i64"], tiles, lambda: f.choose(beside, ["i64"], side_by_side, lambda: [0]))
        f.loop(done, count, lambda k, _: self._each(partial(one, k)))

    def _runs(self) -> None:
        """Columns that are segments, as records."""
        f, keys, lanes, length = self.f, self.keys, self.lanes, self.word["length"]
        full, number = vector(keys.type, lanes), f.mul("%number", lanes)

        def at(k: Value, lane: Value, part: int) -> str:
            place = f.add(f.mul(f.add(number, lane), length), k)
            begin = f.at("%runs", self.word["runs_bytes"]) if part else "%runs"
            return f.at(begin, f.mul(place, keys.bytes))

        def tile(k: Value, _: object) -> None:
            for lane, record in enumerate(self._turned(k)):
                for part, value in enumerate(record):
                    f.store(full, value, at(k, lane, part), keys.bytes)

        f.loop(0, length, tile, step=lanes)


def _emit_written(module: Module, keys: Keys, target: Target) -> None:
    """Adds ``written(env, row, records, first, last)``: some of a row's records as what is wanted of them."""
    parameters = [("ptr", "env"), ("i64", "row"), ("ptr", "records"), ("i64", "first"), ("i64", "last")]
    f = Function(module, "written", parameters)
    step, gap = _words(f, "out_step", "runs_bytes")
    _, to = _row_at(f, _digits(f, "%row"))

    def put(k: Value, lanes: int) -> None:
        at, full = f.at("%records", f.mul(k, keys.bytes)), vector(keys.type, lanes)
        record = [f.load(full, f.at(at, gap) if part else at, keys.bytes) for part in range(keys.parts)]
        value = keys.read(f, lanes, record, masks[lanes])
        f.store(vector(keys.wanted, lanes), value, f.at(to, f.mul(k, step)), keys.wanted_bytes)

    lanes = target.lanes(keys.bytes)
    masks = _masks(f, keys, lanes)

    def tiles() -> list[Value]:
        end = f.add("%first", f.mul(f.div(f.sub("%last", "%first"), lanes), lanes))
        f.loop("%first", end, lambda k, _: put(k, lanes), step=lanes)
        return [end]

    (done,) = f.choose(f.compare("eq", step, keys.wanted_bytes), ["i64"], tiles, lambda: ["%first"])
    f.loop(done, "%last", lambda k, _: put(k, 1))
    f.ret()


def _merged(
    f: Function, runs: str, length: Value, rounds: Value, level: Callable[[str, str, Value, Value], None]
) -> str:
    """Levels of merging between two buffers; returns where the last one wrote.

    Args:
        f: where code goes.
        runs: the first buffer, where the runs are.
        length: of a run.
        rounds: how many runs there are of a row.
        level: takes from where, to where, the length of the runs, and how many of them make a row.
    """
    other = f.at(runs, f.mul(_words(f, "runs_bytes")[0], 2))

    def one(_: Value, carried: list[str]) -> list[Value]:
        source, to, size, left = carried
        level(source, to, size, left)
        return [to, source, f.mul(size, 2), f.value(f"lshr i64 {left}, 1")]

    f.module.declare("llvm.cttz.i64", "i64 {}(i64, i1)")
    levels = f.value(f"call i64 @llvm.cttz.i64(i64 {rounds}, i1 true)")
    carry: list[tuple[str, Value]] = [("ptr", runs), ("ptr", other), ("i64", length), ("i64", rounds)]
    return str(f.loop(0, levels, one, carry=carry)[0])


def _emit_groups(module: Module, keys: Keys, lanes_of_batch: int) -> None:
    """Adds ``groups(env, task, thread)``: a task sorts groups of rows by itself."""
    f = Function(module, "groups", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    memory = f.load("ptr", f.at("%env", _MEMORY), 8)
    tasks, rows, count, segments, length, lanes, groups, columns_bytes, runs_bytes = _words(
        *(f, "tasks", "rows", "count", "segments", "length", "lanes", "groups", "columns_bytes", "runs_bytes")
    )
    own = f.add(columns_bytes, f.mul(runs_bytes, 4))
    columns = f.at(memory, f.mul("%thread", own))
    runs = f.at(columns, columns_bytes)
    together, batches = f.div(lanes, segments), f.div(lanes, lanes_of_batch)
    first, last = (f.div(f.mul(task, groups), tasks) for task in ("%task", f.add("%task", 1)))

    def group(number: Value, _: object) -> None:
        def batch(k: Value, _: object) -> None:
            f.call("batch", "ptr %env", f"i64 {number}", f"i64 {k}", f"ptr {columns}", f"ptr {runs}")

        f.loop(0, batches, batch)
        begin = f.mul(number, together)
        here = f.min(together, f.sub(rows, begin))

        def level(source: str, to: str, size: Value, left: Value) -> None:
            def pair(k: Value, _: object) -> None:
                offset = f.mul(f.mul(f.mul(k, size), 2), keys.bytes)
                places = (f"ptr {f.at(base, offset)}" for base in (source, to))
                f.call("merge", *places, f"i64 {size}", f"i64 {runs_bytes}")

            f.loop(0, f.mul(here, f.value(f"lshr i64 {left}, 1")), pair)

        def merged() -> None:
            found = _merged(f, runs, length, segments, level)

            def row(k: Value, _: object) -> None:
                records = f.at(found, f.mul(f.mul(k, f.mul(segments, length)), keys.bytes))
                f.call("written", "ptr %env", f"i64 {f.add(begin, k)}", f"ptr {records}", "i64 0", f"i64 {count}")

            f.loop(0, here, row)

        f.when(f.compare("sgt", segments, 1), merged)

    f.loop(first, last, group)
    f.ret()


def _emit_shared(module: Module, keys: Keys, lanes_of_batch: int) -> None:
    """Adds ``shared(env)``: one row after the other, each by all threads."""
    f = Function(module, "shared", [("ptr", "env")])
    frame = f.slot("i64", 6)
    names = ("rows", "segments", "length", "lanes", "chunks", "columns_bytes")
    rows, segments, length, lanes, chunks, columns_bytes = _words(f, *names)
    memory, threads = f.load("ptr", f.at("%env", _MEMORY), 8), f.load("i64", f.at("%env", _THREADS), 8)
    runs = f.at(memory, f.mul(threads, columns_bytes))
    f.store("ptr", "%env", frame, 8)

    def row(number: Value, _: object) -> None:
        f.store("i64", number, f.at(frame, 8), 8)
        f.store("ptr", runs, f.at(frame, 16), 8)
        run_tasks(f, "shared.batch", frame, f.div(lanes, lanes_of_batch), "0")

        def level(source: str, to: str, size: Value, left: Value) -> None:
            for k, (type, value) in enumerate((("ptr", source), ("ptr", to), ("i64", size))):
                f.store(type, value, f.at(frame, 16 + 8 * k), 8)
            run_tasks(f, "shared.merge", frame, left, "0")

        f.store("ptr", _merged(f, runs, length, segments, level), f.at(frame, 16), 8)
        run_tasks(f, "shared.written", frame, chunks, "0")

    f.loop(0, rows, row)
    f.ret()
    _emit_task(module, "batch", _shared_batch)
    _emit_task(module, "merge", partial(_shared_merge, keys))
    _emit_task(module, "written", _shared_written)


def _emit_task(module: Module, name: str, body: Callable[[Function, str, str], None]) -> None:
    """Adds a task of threads that share a row; its frame has the environment, the row, and where its records are."""
    f = Function(module, f"shared.{name}", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
    env = f.load("ptr", "%frame", 8)
    f.emit(f"%env = getelementptr i8, ptr {env}, i64 0")
    body(f, f.load("i64", f.at("%frame", 8), 8), f.load("ptr", f.at("%frame", 16), 8))
    f.ret()


def _shared_batch(f: Function, row: str, runs: str) -> None:
    memory, own = f.load("ptr", f.at("%env", _MEMORY), 8), _words(f, "columns_bytes")[0]
    columns = f.at(memory, f.mul("%thread", own))
    f.call("batch", "ptr %env", f"i64 {row}", "i64 %task", f"ptr {columns}", f"ptr {runs}")


def _shared_merge(keys: Keys, f: Function, _: str, source: str) -> None:
    to, size = f.load("ptr", f.at("%frame", 24), 8), f.load("i64", f.at("%frame", 32), 8)
    offset = f.mul(f.mul(f.mul(f.div("%task", 2), size), 2), keys.bytes)
    given = (f"ptr {f.at(source, offset)}", f"ptr {f.at(to, offset)}", f"i64 {size}")
    gap = f"i64 {_words(f, 'runs_bytes')[0]}"
    low, high = (partial(f.call, name, *given, gap) for name in ("merge_low", "merge_high"))
    f.when(f.compare("eq", f.rem("%task", 2), 0), low, high)


def _shared_written(f: Function, row: str, records: str) -> None:
    count, chunks = _words(f, "count", "chunks")
    first, last = (f.div(f.mul(task, count), chunks) for task in ("%task", f.add("%task", 1)))
    f.call("written", "ptr %env", f"i64 {row}", f"ptr {records}", f"i64 {first}", f"i64 {last}")
