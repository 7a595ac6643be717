"""The code of attention: row panels of queries meet blocks of keys, whose scores never leave the caches.

A job is a block of queries of one head. Keys pass in blocks: a block is packed once for the job, keys transposed,
values in panels. Then each row panel forms its scores by the micro-kernel of matrix products, takes the steps on
them, brings its running maximum, sum and output up to date, and adds the product with the values likewise.
A block of which a mask hides every score is left out, but for what values that are not finite make of a sum.

Source: own; the running softmax is that of Milakov and Gimelshein, its tiles those of Dao et al.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from tileweave.backends.cpu.attention.match import Attention, Value
from tileweave.backends.cpu.gemm.blocking import ReadFrom
from tileweave.backends.cpu.gemm.contract import Workspace
from tileweave.backends.cpu.gemm.micro import Ahead, Edges, Start, Stores, Tile, emit_tile
from tileweave.backends.cpu.gemm.panels import Contracted, Panels
from tileweave.backends.cpu.gemm.tile import choose_tile
from tileweave.backends.cpu.llvm import functions, vectors
from tileweave.backends.cpu.llvm.elements import Element, element, vector
from tileweave.backends.cpu.llvm.ir import Function, Module
from tileweave.backends.cpu.llvm.ir import Value as Number
from tileweave.backends.cpu.llvm.loops import run_tasks
from tileweave.backends.cpu.llvm.meanings import Registers
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.merged.form import Mode

KEYS = 256
"""Of a block, at most: packed keys and values of 128 features are a quarter of a second cache of 1 MiB."""
QUERIES_BYTES = 384 * 1024
"""Of the queries and sums of a job, at most, beside keys and values in the second cache: a job of more queries packs
the keys less often; 1024 queries of 128 features take 46 ms with 384 of them, 48 with 192 (bench/attention.py)."""
MOST_QUERIES = 512
SEQUENTIAL_PRODUCTS = 1 << 18
"""Products that one thread computes: some 3 us, less than another thread takes to begin."""
_LINE = 64


@dataclass(frozen=True, slots=True)
class _Sizes:
    """How attention is cut.

    Args:
        lanes: elements of a vector.
        rows: queries of a row panel.
        vectors: of a panel of keys, or of features.
        keys: of a block.
        queries: of a job.
        blocks: jobs per head.
    """

    lanes: int
    rows: int
    vectors: int
    keys: int
    queries: int
    blocks: int


def _sizes(a: Attention, target: Target, threads: int) -> _Sizes:
    lanes = target.lanes(a.element.width_bytes)
    rows, panel = choose_tile(target, a.queries, 64 * lanes, lanes, (2,), 1)
    width = panel * lanes
    parts = -(-a.keys.extent // KEYS)
    keys = _up(-(-a.keys.extent // parts), width)
    each = (_up(a.depth.extent, lanes) + _up(a.features.extent, lanes)) * a.element.width_bytes
    most = max(rows, min(MOST_QUERIES, QUERIES_BYTES // each) // rows * rows)
    blocks = -(-a.queries // most)
    while a.batches * blocks < 4 * threads > 4 and a.queries > 4 * rows * blocks:
        blocks += 1
    queries = _up(-(-a.queries // blocks), rows)
    return _Sizes(lanes, rows, panel, keys, queries, -(-a.queries // queries))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def emit_attention(
    module: Module, target: Target, name: str, a: Attention, threads: int, memory: Workspace
) -> tuple[str, ...]:
    """Add the function ``name(env, thread, p0, p1, ..)``, a pointer per tensor; how it works, in lines."""
    sizes = _sizes(a, target, threads)
    writer = _Writer(module, target, name, a, sizes, threads)
    memory.reserve(0, writer.thread_bytes)
    writer.write()
    left = f", blocks that {len(writer.masks)} mask{'s hide' if len(writer.masks) > 1 else ' hides'} left out"
    return (
        f"attention: blocks of {sizes.keys} keys pass row panels of {sizes.rows} queries; running softmax",
        f"{a.batches * sizes.blocks} jobs of {sizes.queries} queries; keys and values packed by each"
        + (left if writer.masks else ""),
    )


@dataclass
class _Writer:
    """Writes the functions of one attention."""

    module: Module
    target: Target
    name: str
    a: Attention
    sizes: _Sizes
    threads: int
    places: dict[str, int] = field(default_factory=dict)
    thread_bytes: int = 0

    def __post_init__(self) -> None:
        a, s = self.a, self.sizes
        self.e = a.element
        self.width, self.lanes = self.e.width_bytes, s.lanes
        self.full = vector(self.e.memory, self.lanes)
        self.panel = s.vectors * s.lanes
        self.depth, self.features = _up(a.depth.extent, s.lanes), _up(a.features.extent, s.lanes)
        self.held = _up(s.rows, s.lanes) * self.width  # bytes of a value per row of a panel, in whole vectors
        self.row = (s.keys + s.lanes) * self.width  # of scores; rows do not begin in one set of the cache
        self.tensors = (*a.tensors, *(t for t in a.extras if t not in a.tensors))
        dense = a.keys.strides
        self.masks = [t for t in a.masks if dense[t] in (0, 1)]
        at = 0
        for part, size in (
            ("q", s.queries * self.depth * self.width),
            ("k", s.keys * a.depth.extent * self.width),
            ("v", s.keys * self.features * self.width),
            ("scores", s.rows * self.row),
            ("sums", s.queries * self.features * self.width),
            ("state", s.queries // s.rows * 2 * self.held),
            ("work", 3 * self.held),
            ("hidden", self.features * self.width),
            ("live", s.queries // s.rows * 8),
        ):
            self.places[part] = at
            at += _up(size, _LINE) + _LINE
        self.thread_bytes = at

    def write(self) -> None:
        """The function, its task, and what the task calls."""
        a, s = self.a, self.sizes
        last = len(a.offsets)
        f = Function(
            self.module, self.name, [("ptr", "env"), ("i64", "thread"), *(("ptr", f"p{k}") for k in range(last))]
        )
        frame = f.slot("ptr", 1 + len(self.tensors))
        f.store("ptr", "%env", frame, 8)
        for k, tensor in enumerate(self.tensors):
            f.store("ptr", f.at(f"%p{tensor}", a.offsets[tensor]), f.at(frame, 8 + 8 * k), 8)
        jobs = a.batches * s.blocks
        products = a.batches * a.queries * a.keys.extent * (a.depth.extent + a.features.extent)
        count = min(jobs, 64 * self.threads) if self.threads > 1 and products > SEQUENTIAL_PRODUCTS else 1
        if count > 1:
            run_tasks(f, f"{self.name}.task", frame, count)
        else:
            f.call(f"{self.name}.task", f"ptr {frame}", "i64 0", "i64 %thread")
        f.ret()
        self.products()
        self.pack_queries()
        self.pack_keys()
        self.pack_values()
        self.weigh()
        self.finish()
        for tensor in self.masks:
            self.look(tensor)
        self.job()
        self.task(jobs, count)

    # ---- micro-kernels ------------------------------------------------------------------------------------------

    def products(self) -> None:
        """Scores of a row panel with a panel of keys, and sums of it with panels of values."""
        a, s = self.a, self.sizes
        self.product("scores", s.vectors, (self.depth * self.width, self.row), a.depth.extent)
        for count in {min(s.vectors, self.features // s.lanes - first) for first in self.feature_panels()}:
            self.product(f"sums{count}", count, (self.row, self.features * self.width), s.keys)

    def feature_panels(self) -> range:
        """The first vector of every panel of features."""
        return range(0, self.features // self.sizes.lanes, self.sizes.vectors)

    def product(self, part: str, count: int, strides: tuple[int, int], summed: int) -> None:
        s, w, e = self.sizes, self.width, self.e
        rows = Panels((Mode(s.rows, strides),), e, e, w, s.rows, 1)
        columns = Panels((Mode(count * s.lanes, (w, w)),), e, e, w, count * s.lanes, s.lanes)
        tile = Tile(
            rows=s.rows,
            vectors=count,
            a=ReadFrom.IN_PLACE,
            b=ReadFrom.PACKED,
            start=Start.ZERO,
            edges=Edges.WHOLE,
            stores=Stores.CACHED,
            ahead=Ahead.PANEL,
            relu=False,
            nested=False,
            partial=False,
            following=None,
            output_caches=0,
        )
        summing = Contracted((Mode(summed, (w, count * s.lanes * w)),))
        emit_tile(self.module, f"{self.name}.{part}", tile, rows, columns, summing)
        lanes = [offset for row in range(s.rows) for offset in (row * strides[0], row * strides[1])]
        segments = [1, *(word for g in range(count) for word in (0, g * s.lanes * w, -1))]
        for table, words in (("rows", lanes), ("columns", segments)):
            text = ", ".join(f"i64 {word}" for word in words)
            self.module.constant(f"{self.name}.{part}.{table}", f"[{len(words)} x i64] [{text}]")

    def multiply(self, f: Function, part: str, left: str, right: str, out: str, count: Number, store: bool) -> None:
        """Call a micro-kernel: rows at `left`, a packed panel at `right`."""
        name = f"{self.name}.{part}"
        f.call(
            name,
            f"ptr {left}",
            f"ptr {right}",
            f"ptr {out}",
            f"i64 {count}",
            "ptr null",
            f"ptr @{name}.rows",
            "ptr null",
            f"ptr @{name}.columns",
            f"i1 {'true' if store else 'false'}",
            "i1 false",
            "ptr null",
            "ptr null",
            "ptr null",
            "i64 0",
            "i64 0",
        )

    # ---- addresses ----------------------------------------------------------------------------------------------

    def moved(self, f: Function, modes: Sequence[Mode], index: Number, tensors: Sequence[int]) -> list[Number]:
        """How far tensors are moved by a flat index of some loops."""
        offsets: list[Number] = [0] * len(tensors)
        rest = index
        for number, mode in enumerate(reversed(modes)):
            last = number == len(modes) - 1
            digit = rest if last else f.rem(rest, mode.extent)
            rest = rest if last else f.div(rest, mode.extent)
            offsets = [f.add(o, f.mul(digit, mode.strides[t])) for o, t in zip(offsets, tensors, strict=True)]
        return offsets

    def along(self, f: Function, count: Number, body: Callable[[Number, str | None], None]) -> None:
        """Vectors along so many elements: the whole ones, then what is left, under a mask."""
        if isinstance(count, int):
            whole: Number = count // self.lanes
            f.loop(0, whole, lambda k, _: body(f.mul(k, self.lanes), None))
            if count % self.lanes:
                body(count // self.lanes * self.lanes, vectors.mask_of(count % self.lanes, self.lanes))
            return
        whole = f.div(count, self.lanes)
        f.loop(0, whole, lambda k, _: body(f.mul(k, self.lanes), None))
        first = f.mul(whole, self.lanes)
        left = f.sub(count, first)
        f.when(f.compare("sgt", left, 0), lambda: body(first, vectors.mask_below(f, str(left), self.lanes)))

    def read(
        self, f: Function, base: str, stride: int, index: Number, mask: str | None, of: Element | None = None
    ) -> str:
        """A vector of elements that lie so many bytes apart, from an index on."""
        one = of or self.e
        place = f.at(base, f.mul(index, stride))
        if stride == one.width_bytes:
            return vectors.load(f, one, self.lanes, place, mask)
        if stride == 0:
            return vectors.broadcast(f, one.memory, self.lanes, f.load(one.memory, place, one.width_bytes))
        return vectors.gather(f, one, self.lanes, place, stride, mask)

    # ---- packing ------------------------------------------------------------------------------------------------

    def pack_queries(self) -> None:
        """``pack_q(into, queries, first)``: the rows of a job; those beyond the last repeat it."""
        a, q = self.a, self.a.tensors[0]
        f = Function(self.module, f"{self.name}.pack_q", [("ptr", "into"), ("ptr", "q"), ("i64", "first")])

        def row(number: Number, _: list[str]) -> None:
            index = f.min(f.add("%first", number), a.queries - 1)
            (offset,) = self.moved(f, a.rows, index, (q,))
            source = f.at("%q", offset)
            into = f.at("%into", f.mul(number, self.depth * self.width))

            def some(start: Number, mask: str | None) -> None:
                value = self.read(f, source, a.depth.strides[q], start, mask)
                vectors.store(f, self.e, self.lanes, value, f.at(into, f.mul(start, self.width)))

            self.along(f, a.depth.extent, some)

        f.loop(0, self.sizes.queries, row)
        f.ret()

    def pack_keys(self) -> None:
        """``pack_k(into, keys, count)``: panels of keys, transposed; those beyond the last are anything."""
        a, s = self.a, self.sizes
        stride, step = a.keys.strides[a.tensors[1]], a.depth.strides[a.tensors[1]]
        f = Function(self.module, f"{self.name}.pack_k", [("ptr", "into"), ("ptr", "k"), ("i64", "count")])
        last = f.sub("%count", 1)

        def group(number: Number, _: list[str]) -> None:
            first = f.mul(number, s.lanes)
            panel = f.mul(f.div(number, s.vectors), a.depth.extent * self.panel * self.width)
            into = f.at("%into", f.add(panel, f.mul(f.rem(number, s.vectors), s.lanes * self.width)))
            if step == self.width and a.depth.extent > 1:
                rows = [f.at("%k", f.mul(f.min(f.add(first, lane), last), stride)) for lane in range(s.lanes)]

                def square(start: Number, mask: str | None) -> None:
                    held = [self.read(f, row, step, start, mask) for row in rows]
                    turned = vectors.transpose(f, self.e.memory, s.lanes, held, s.lanes)
                    count = s.lanes if mask is None else a.depth.extent % s.lanes
                    for j, value in enumerate(turned[:count]):
                        place = f.mul(f.add(start, j), self.panel * self.width)
                        vectors.store(f, self.e, s.lanes, value, f.at(into, place))

                self.along(f, a.depth.extent, square)
                return
            mask = vectors.mask_below(f, str(f.sub("%count", first)), s.lanes)

            def one(index: Number, _: list[str]) -> None:
                base = f.at("%k", f.mul(index, step))
                value = self.read(f, base, stride, first, mask)
                vectors.store(f, self.e, s.lanes, value, f.at(into, f.mul(index, self.panel * self.width)))

            f.loop(0, a.depth.extent, one)

        f.loop(0, f.div(f.add("%count", s.lanes - 1), s.lanes), group)
        f.ret()

    def pack_values(self) -> None:
        """``pack_v(into, values, count, hidden)``: panels of features; where masks may hide keys, also what they sum to
        with weights of zero: zero, or NaN where a value is not finite. Returns whether there is such a value."""
        a, s = self.a, self.sizes
        tensor = a.tensors[2]
        stride, step = a.keys.strides[tensor], a.features.strides[tensor]
        names = [("ptr", "into"), ("ptr", "v"), ("i64", "count"), ("ptr", "hidden")]
        f = Function(self.module, f"{self.name}.pack_v", names, returns="i1")
        v = Registers(f, self.target, s.lanes).floats(self.e)
        bad: Number = 0
        for first in self.feature_panels():
            count = min(s.vectors, self.features // s.lanes - first)
            into = f.at("%into", first * s.lanes * s.keys * self.width)

            def key(
                number: Number, sums: list[str], first: int = first, count: int = count, into: str = into
            ) -> list[str]:
                row = f.at("%v", f.mul(number, stride))
                target = f.at(into, f.mul(number, count * s.lanes * self.width))
                after = []
                for j in range(count):
                    begin = (first + j) * s.lanes
                    inside = min(s.lanes, a.features.extent - begin)
                    mask = vectors.mask_of(inside, s.lanes) if inside < s.lanes else None
                    value = self.read(f, row, step, begin, mask)
                    vectors.store(f, self.e, s.lanes, value, f.at(target, j * s.lanes * self.width))
                    if self.masks:
                        after.append(v.multiply_add(value, v.constant(0.0), sums[j]))
                return after

            start = [(self.full, v.constant(0.0))] * count if self.masks else []
            for j, total in enumerate(f.loop(0, "%count", key, carry=start)):
                vectors.store(f, self.e, s.lanes, str(total), f.at("%hidden", (first + j) * s.lanes * self.width))
                lanes = v.compare("uno", str(total), str(total))
                name = f"llvm.vector.reduce.or.v{s.lanes}i1"
                f.module.declare(name, f"i1 {{}}(<{s.lanes} x i1>)")
                bad = f.either(bad, f.value(f"call i1 @{name}(<{s.lanes} x i1> {lanes})"))
        f.ret(f"i1 {bad if isinstance(bad, str) else 'false'}")

    # ---- masks --------------------------------------------------------------------------------------------------

    def look(self, tensor: int) -> None:
        """``look(mask, first, rows, keys)``: whether a mask shows any key to any of these rows."""
        a = self.a
        names = [("ptr", "mask"), ("i64", "first"), ("i64", "rows"), ("i64", "keys")]
        f = Function(self.module, f"{self.name}.look{tensor}", names, returns="i1")
        size = 32
        full = f"<{size} x i8>"

        def row(number: Number, seen: list[str]) -> list[Number]:
            (offset,) = self.moved(f, a.rows, f.add("%first", number), (tensor,))
            place = f.at("%mask", offset)
            if not a.keys.strides[tensor]:
                one = f.value(f"insertelement {full} zeroinitializer, i8 {f.load('i8', place)}, i64 0")
                return [f.value(f"or {full} {seen[0]}, {one}")]
            whole = f.div("%keys", size)

            def some(k: Number, held: list[str]) -> list[Number]:
                return [f.value(f"or {full} {held[0]}, {f.load(full, f.at(place, f.mul(k, size)))}")]

            def rest(k: Number, held: list[str]) -> list[Number]:
                one = f.value(f"insertelement {full} zeroinitializer, i8 {f.load('i8', f.at(place, k))}, i64 0")
                return [f.value(f"or {full} {held[0]}, {one}")]

            held = f.loop(0, whole, some, carry=[(full, seen[0])])
            return list(f.loop(f.mul(whole, size), "%keys", rest, carry=[(full, held[0])]))

        still = not any(mode.strides[tensor] for mode in a.rows)
        (seen,) = f.loop(0, 1 if still else "%rows", row, carry=[(full, "zeroinitializer")])
        name = f"llvm.vector.reduce.or.v{size}i8"
        f.module.declare(name, f"i8 {{}}({full})")
        byte = f.value(f"call i8 @{name}({full} {seen})")
        f.ret(f"i1 {f.value(f'icmp ne i8 {byte}, 0')}")

    # ---- softmax ------------------------------------------------------------------------------------------------

    def weigh(self) -> None:
        """``weigh(scores, sums, state, work, row, rows, keys, extras..)``: scores of a panel become weights; the sums
        so far and their totals are brought to the new maxima.

        ``state``: a maximum per row, then a total; ``work``: a number per row to subtract, to scale by, and to add.
        What is one number per row is computed for all rows at once.
        """
        names = [("ptr", "scores"), ("ptr", "sums"), ("ptr", "state"), ("ptr", "work")]
        names += [("i64", "row"), ("i64", "rows"), ("i64", "keys"), *(("ptr", f"x{t}") for t in self.tensors[4:])]
        f = Function(self.module, f"{self.name}.weigh", names)
        v = Registers(f, self.target, self.lanes).floats(self.e)
        base, scale, total = (f.at("%work", n * self.held) for n in range(3))
        f.loop(0, "%rows", lambda number, _: self.step_row(f, v, number, base))
        lowest = v.constant(-inf)
        groups = [n * self.lanes * self.width for n in range(self.held // (self.lanes * self.width))]
        for at in groups:
            before = f.load(self.full, f.at("%state", at), self.width)
            seen = f.load(self.full, f.at(base, at), self.width)
            most = v.select(v.compare("ogt", seen, before), seen, before)
            f.store(self.full, most, f.at("%state", at), self.width)
            less = v.select(v.compare("oeq", most, lowest), v.constant(0.0), most)  # -inf less -inf were NaN
            f.store(self.full, less, f.at(base, at), self.width)
            f.store(self.full, functions.exp(v, v.sub(before, less)), f.at(scale, at), self.width)
        f.loop(0, "%rows", lambda number, _: self.weigh_row(f, v, number, (base, scale, total)))
        for at in groups:
            place = f.at("%state", self.held + at)
            old, down = f.load(self.full, place, self.width), f.load(self.full, f.at(scale, at), self.width)
            new = f.load(self.full, f.at(total, at), self.width)
            f.store(self.full, v.multiply_add(old, down, new), place, self.width)
        f.ret()

    def step_row(self, f: Function, v: functions.Floats, number: Number, tops: str) -> None:
        """The steps on a row of scores, and its maximum."""
        a, extras, size = self.a, self.tensors[4:], self.width
        moved = self.moved(f, a.rows, f.add("%row", number), extras)
        bases = {t: f.at(f"%x{t}", o) for t, o in zip(extras, moved, strict=True)}
        fixed = {
            t: self.read(f, bases[t], 0, 0, None, element(self.dtype_of(t))) for t in extras if not a.keys.strides[t]
        }
        line, lowest = f.at("%scores", f.mul(number, self.row)), v.constant(-inf)

        def some(first: Number, mask: str | None, top: str) -> str:
            place = f.at(line, f.mul(first, size))
            value = self.stepped(f, f.load(self.full, place, size), first, mask, bases, fixed)
            value = v.select(mask, value, lowest) if mask else value
            f.store(self.full, value, place, size)
            return v.select(v.compare("ogt", value, top), value, top)

        whole = f.div("%keys", self.lanes)
        (top,) = f.loop(
            0, whole, lambda k, held: [some(f.mul(k, self.lanes), None, held[0])], carry=[(self.full, lowest)]
        )
        first = f.mul(whole, self.lanes)
        left = f.sub("%keys", first)
        (top,) = f.choose(
            f.compare("sgt", left, 0),
            [self.full],
            lambda: [some(first, vectors.mask_below(f, str(left), self.lanes), str(top))],
            lambda: [top],
        )
        name = f"llvm.vector.reduce.fmax.{vectors.suffix(self.e.memory, self.lanes)}"
        f.module.declare(name, f"{self.e.memory} {{}}({self.full})")
        most = f.value(f"call nnan {self.e.memory} @{name}({self.full} {top})")
        f.store(self.e.memory, most, f.at(tops, f.mul(number, size)), size)

    def weigh_row(self, f: Function, v: functions.Floats, number: Number, work: tuple[str, str, str]) -> None:
        """The weights of a row, their sum, and the row's sums so far, scaled."""
        size = self.width
        line = f.at("%scores", f.mul(number, self.row))
        base, scale, total = (f.at(place, f.mul(number, size)) for place in work)
        less = vectors.broadcast(f, self.e.memory, self.lanes, f.load(self.e.memory, base, size))

        def weight(k: Number, sums: list[str]) -> list[str]:
            place = f.at(line, f.mul(k, self.lanes * size))
            value = functions.exp(v, v.sub(f.load(self.full, place, size), less))
            f.store(self.full, value, place, size)
            return [v.add(sums[0], value)]

        count = f.div(f.add("%keys", self.lanes - 1), self.lanes)
        (sums,) = f.loop(0, count, weight, carry=[(self.full, v.constant(0.0))])
        name = f"llvm.vector.reduce.fadd.{vectors.suffix(self.e.memory, self.lanes)}"
        f.module.declare(name, f"{self.e.memory} {{}}({self.e.memory}, {self.full})")
        new = f.value(f"call reassoc {self.e.memory} @{name}({self.e.memory} 0.0, {self.full} {sums})")
        f.store(self.e.memory, new, total, size)
        down = f.load(self.e.memory, scale, size)
        target = f.at("%sums", f.mul(number, self.features * size))

        def scaled() -> None:
            spread = vectors.broadcast(f, self.e.memory, self.lanes, down)

            def one(k: Number, _: list[str]) -> None:
                place = f.at(target, f.mul(k, self.lanes * size))
                f.store(self.full, v.mul(f.load(self.full, place, size), spread), place, size)

            f.loop(0, self.features // self.lanes, one)

        f.when(f.value(f"fcmp une {self.e.memory} {down}, 1.0"), scaled)

    def dtype_of(self, tensor: int) -> str:
        """The element type of what the steps read."""
        stack = [self.a.weighed]
        while stack:
            value = stack.pop()
            if value.kind == "in" and int(value.number) == tensor:
                return value.dtype
            stack += value.inputs
        return self.e.name

    def stepped(
        self,
        f: Function,
        scores: str,
        first: Number,
        mask: str | None,
        bases: dict[int, str],
        fixed: dict[int, str],
    ) -> str:
        """What softmax is taken of, for a vector of scores."""
        a, registers = self.a, Registers(f, self.target, self.lanes)
        known: dict[Value, str] = {a.scores: scores}

        def of(value: Value) -> str:
            if value not in known:
                one = element(value.dtype)
                if value.kind == "in":
                    t = int(value.number)
                    known[value] = (
                        fixed[t] if t in fixed else self.read(f, bases[t], a.keys.strides[t], first, mask, one)
                    )
                elif value.kind == "Fill":
                    known[value] = registers.fill(value.number, one)
                else:
                    given = [(of(x), element(x.dtype)) for x in value.inputs]
                    known[value] = registers.value(value.kind, given, one)
            return known[value]

        return of(a.weighed)

    def finish(self) -> None:
        """``finish(sums, total, out)``: a row of sums, divided by its total, to the output."""
        a, s = self.a, self.sizes
        out = a.tensors[3]
        stride = a.features.strides[out]
        f = Function(self.module, f"{self.name}.finish", [("ptr", "sums"), ("ptr", "total"), ("ptr", "out")])
        v = Registers(f, self.target, s.lanes).floats(self.e)
        total = vectors.broadcast(f, self.e.memory, s.lanes, f.load(self.e.memory, "%total", self.width))
        inverse = v.div(v.constant(1.0), total)

        def some(first: Number, mask: str | None) -> None:
            value = v.mul(f.load(self.full, f.at("%sums", f.mul(first, self.width)), self.width), inverse)
            place = f.at("%out", f.mul(first, stride))
            if stride == self.width or a.features.extent == 1:
                vectors.store(f, self.e, s.lanes, value, place, mask)
            else:
                vectors.scatter(f, self.e, s.lanes, value, place, stride, mask)

        self.along(f, a.features.extent, some)
        f.ret()

    # ---- jobs ---------------------------------------------------------------------------------------------------

    def job(self) -> None:
        """``job(memory, first, rows, tensors..)``: some queries of one head."""
        a, s = self.a, self.sizes
        names = [("ptr", "memory"), ("i64", "first"), ("i64", "rows"), *(("ptr", f"t{t}") for t in self.tensors)]
        f = Function(self.module, f"{self.name}.job", names)
        q, k, v, out = (f"%t{t}" for t in a.tensors)
        place = {part: f.at("%memory", at) for part, at in self.places.items()}
        f.call(f"{self.name}.pack_q", f"ptr {place['q']}", f"ptr {q}", "i64 %first")
        registers = Registers(f, self.target, s.lanes).floats(self.e)
        size = s.lanes * self.width

        def clear(number: Number, _: list[str]) -> None:
            f.store(self.full, registers.constant(0.0), f.at(place["sums"], f.mul(number, size)), self.width)

        f.loop(0, s.queries * self.features // s.lanes, clear)
        lowest = registers.constant(-inf)
        vectors_held = self.held // size

        def begin(number: Number, _: list[str]) -> None:
            at = f.at(place["state"], f.mul(number, 2 * self.held))
            for k in range(vectors_held):
                f.store(self.full, lowest, f.at(at, k * size), self.width)
                f.store(self.full, registers.constant(0.0), f.at(at, self.held + k * size), self.width)

        f.loop(0, s.queries // s.rows, begin)
        panels = f.div(f.add("%rows", s.rows - 1), s.rows)
        f.loop(0, -(-a.keys.extent // s.keys), lambda number, _: self.block(f, number, panels, place, (k, v)))

        def done(number: Number, _: list[str]) -> None:
            (offset,) = self.moved(f, a.rows, f.add("%first", number), (a.tensors[3],))
            sums = f.at(place["sums"], f.mul(number, self.features * self.width))
            panel = f.mul(f.div(number, s.rows), 2 * self.held)
            total = f.add(f.add(panel, self.held), f.mul(f.rem(number, s.rows), self.width))
            given = [f"ptr {sums}", f"ptr {f.at(place['state'], total)}", f"ptr {f.at(out, offset)}"]
            f.call(f"{self.name}.finish", *given)

        f.loop(0, "%rows", done)
        f.ret()

    def block(
        self, f: Function, number: Number, panels: Number, place: dict[str, str], tensors: tuple[str, str]
    ) -> None:
        """One block of keys for all row panels of a job."""
        a, s = self.a, self.sizes
        first = f.mul(number, s.keys)
        count = f.min(s.keys, f.sub(a.keys.extent, first))
        k, v = (f.at(t, f.mul(first, a.keys.strides[n])) for t, n in zip(tensors, a.tensors[1:3], strict=True))
        extras = {t: f.at(f"%t{t}", f.mul(first, a.keys.strides[t])) for t in self.tensors[4:]}
        arguments = [f"ptr {place['v']}", f"ptr {v}", f"i64 {count}", f"ptr {place['hidden']}"]
        bad = f.call(f"{self.name}.pack_v", *arguments, returns="i1")

        def shown(panel: Number) -> tuple[Number, Number]:
            begin = f.mul(panel, s.rows)
            return begin, f.min(s.rows, f.sub("%rows", begin))

        def look(panel: Number, any: list[str]) -> list[Number]:
            begin, rows = shown(panel)
            live: Number = 1
            for t in self.masks:
                given = [f"ptr {extras[t]}", f"i64 {f.add('%first', begin)}", f"i64 {rows}", f"i64 {count}"]
                live = f.both(live, f.call(f"{self.name}.look{t}", *given, returns="i1"))
            word = f.value(f"zext i1 {live} to i64")
            f.store("i64", word, f.at(place["live"], f.mul(panel, 8)), 8)
            return [f.value(f"or i64 {any[0]}, {word}")]

        pack = [f"ptr {place['k']}", f"ptr {k}", f"i64 {count}"]
        if not self.masks:
            f.call(f"{self.name}.pack_k", *pack)
            f.loop(0, panels, lambda panel, _: self.rows(f, panel, shown(panel), count, place, extras))
            return
        (any,) = f.loop(0, panels, look, carry=[("i64", 0)])
        f.when(f.compare("ne", any, 0), lambda: _ignored(f.call(f"{self.name}.pack_k", *pack)))

        def each(panel: Number, _: list[str]) -> None:
            live = f.load("i64", f.at(place["live"], f.mul(panel, 8)), 8)
            f.when(
                f.compare("ne", live, 0),
                lambda: self.rows(f, panel, shown(panel), count, place, extras),
                lambda: f.when(bad, lambda: self.hide(f, panel, place)),
            )

        f.loop(0, panels, each)

    def hide(self, f: Function, panel: Number, place: dict[str, str]) -> None:
        """What hidden keys add to the sums of a row panel."""
        s, size = self.sizes, self.sizes.lanes * self.width
        v = Registers(f, self.target, s.lanes).floats(self.e)
        begin = f.at(place["sums"], f.mul(panel, s.rows * self.features * self.width))
        count = self.features // s.lanes

        def one(number: Number, _: list[str]) -> None:
            at = f.at(begin, f.mul(number, size))
            more = f.load(self.full, f.at(place["hidden"], f.mul(f.rem(number, count), size)), self.width)
            f.store(self.full, v.add(f.load(self.full, at, self.width), more), at, self.width)

        f.loop(0, s.rows * count, one)

    def rows(
        self,
        f: Function,
        panel: Number,
        shown: tuple[Number, Number],
        count: Number,
        place: dict[str, str],
        extras: dict[int, str],
    ) -> None:
        """One row panel with one block of keys."""
        a, s = self.a, self.sizes
        begin, rows = shown
        left = f.at(place["q"], f.mul(begin, self.depth * self.width))
        sums = f.at(place["sums"], f.mul(begin, self.features * self.width))
        state = f.at(place["state"], f.mul(panel, 2 * self.held))

        def scores(number: Number, _: list[str]) -> None:
            right = f.at(place["k"], f.mul(number, a.depth.extent * self.panel * self.width))
            out = f.at(place["scores"], f.mul(number, self.panel * self.width))
            self.multiply(f, "scores", left, right, out, a.depth.extent, True)

        f.loop(0, f.div(f.add(count, self.panel - 1), self.panel), scores)

        given = [f"ptr {place['scores']}", f"ptr {sums}", f"ptr {state}", f"ptr {place['work']}"]
        given += [f"i64 {f.add('%first', begin)}", f"i64 {rows}", f"i64 {count}"]
        f.call(f"{self.name}.weigh", *given, *(f"ptr {extras[t]}" for t in self.tensors[4:]))
        for first in self.feature_panels():
            width = min(s.vectors, self.features // s.lanes - first)
            right = f.at(place["v"], first * s.lanes * s.keys * self.width)
            out = f.at(sums, first * s.lanes * self.width)
            self.multiply(f, f"sums{width}", place["scores"], right, out, count, False)

    def task(self, jobs: int, count: int) -> None:
        """A share of the jobs. The last queries come first: where masks hide later keys, they take longest."""
        a, s = self.a, self.sizes
        g = Function(self.module, f"{self.name}.task", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        env = g.load("ptr", "%frame", 8)
        memory = g.at(g.load("ptr", g.at(env, 32), 8), g.mul("%thread", g.load("i64", g.at(env, 40), 8)))
        bases = [g.load("ptr", g.at("%frame", 8 + 8 * k), 8) for k in range(len(self.tensors))]

        def job(flat: Number, _: list[str]) -> None:
            batch, block = g.rem(flat, a.batches), g.sub(s.blocks - 1, g.div(flat, a.batches))
            first = g.mul(block, s.queries)
            rows = g.min(s.queries, g.sub(a.queries, first))
            moved = [g.at(b, o) for b, o in zip(bases, self.moved(g, a.outer, batch, self.tensors), strict=True)]
            g.call(f"{self.name}.job", f"ptr {memory}", f"i64 {first}", f"i64 {rows}", *(f"ptr {p}" for p in moved))

        g.loop(g.div(g.mul("%task", jobs), count), g.div(g.mul(g.add("%task", 1), jobs), count), job)
        g.ret()


def _ignored(_: str) -> None:
    return None
