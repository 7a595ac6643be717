"""The code of attention: row panels of queries meet blocks of keys, whose scores never leave the caches.

A job is a block of queries of one head. Keys pass in blocks: a block is packed once for the job, keys transposed,
values in panels. Then each row panel forms its scores by the micro-kernel of matrix products, takes the steps on
them, brings its running maximum, sum and output up to date, and adds the product with the values likewise.
A block of which a mask hides every score is left out, but for what values that are not finite make of a sum.

Source: own; the running softmax is that of Milakov and Gimelshein, its tiles those of Dao et al.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tileweave.backends.cpu.attention import parts
from tileweave.backends.cpu.attention.cut import Cut, choose_sizes, with_sizes
from tileweave.backends.cpu.attention.match import Attention
from tileweave.backends.cpu.gemm.contract import Workspace
from tileweave.backends.cpu.llvm.ir import Function, Module
from tileweave.backends.cpu.llvm.ir import Value as Number
from tileweave.backends.cpu.llvm.loops import run_tasks
from tileweave.backends.cpu.llvm.meanings import Registers
from tileweave.backends.cpu.target.target import Target

SEQUENTIAL_PRODUCTS = 1 << 18
"""Products that one thread computes: some 3 us, less than another thread takes to begin."""


def emit_attention(
    module: Module,
    target: Target,
    name: str,
    a: Attention,
    threads: int,
    memory: Workspace,
    numbers: Sequence[int] = (),
) -> tuple[str, ...]:
    """Add the function ``name(env, thread, p0, p1, ..)``, a pointer per tensor; how it works, in lines.

    Where sizes are followed, ``numbers`` are those of `cut.numbers_of`, followed.
    """
    sizes = choose_sizes(a, target, threads)
    cut, table = Cut(module, target, name, a, sizes), module.sizes
    read = a, sizes
    if table is not None:
        given = iter(numbers)
        read = with_sizes(a, sizes, lambda n: table.parameter(next(given) if table.follows else n))
    _write(written := Cut(module, target, name, *read), threads)
    memory.reserve(0, written.thread_bytes if numbers else cut.thread_bytes)
    left = f", blocks that {len(cut.masks)} mask{'s hide' if len(cut.masks) > 1 else ' hides'} left out"
    return (
        f"attention: blocks of {sizes.keys} keys pass row panels of {sizes.rows} queries; running softmax",
        f"{a.batches * sizes.blocks} jobs of {sizes.queries} queries; keys and values packed by each"
        + (left if cut.masks else ""),
    )


def _write(c: Cut, threads: int) -> None:
    """The function, its task, and what the task calls."""
    a, s = c.a, c.sizes
    last = len(a.offsets)
    f = Function(c.module, c.name, [("ptr", "env"), ("i64", "thread"), *(("ptr", f"p{k}") for k in range(last))])
    frame = f.slot("ptr", 1 + len(c.tensors))
    f.store("ptr", "%env", frame, 8)
    for k, tensor in enumerate(c.tensors):
        f.store("ptr", f.at(f"%p{tensor}", a.offsets[tensor]), f.at(frame, 8 + 8 * k), 8)
    jobs = a.batches * s.blocks
    products = a.batches * a.queries * a.keys.extent * (a.depth.extent + a.features.extent)
    count = min(jobs, 64 * threads) if threads > 1 and products > SEQUENTIAL_PRODUCTS else 1
    if count > 1:
        run_tasks(f, f"{c.name}.task", frame, count)
    else:
        f.call(f"{c.name}.task", f"ptr {frame}", "i64 0", "i64 %thread")
    f.ret()
    parts.products(c)
    parts.pack_queries(c)
    parts.pack_keys(c)
    parts.pack_values(c)
    parts.weigh(c)
    parts.finish(c)
    for tensor in c.masks:
        parts.look(c, tensor)
    _job(c)
    _task(c, jobs, count)


def _job(c: Cut) -> None:
    """``job(memory, first, rows, tensors..)``: some queries of one head."""
    a, s = c.a, c.sizes
    names = [("ptr", "memory"), ("i64", "first"), ("i64", "rows"), *(("ptr", f"t{t}") for t in c.tensors)]
    f = Function(c.module, f"{c.name}.job", names)
    q, k, v, out = (f"%t{t}" for t in a.tensors)
    place = {part: f.at("%memory", at) for part, at in c.places.items()}
    f.call(f"{c.name}.pack_q", f"ptr {place['q']}", f"ptr {q}", "i64 %first")
    registers = Registers(f, c.target, s.lanes).floats(c.e)
    size = s.lanes * c.width

    def clear(number: Number, _: list[str]) -> None:
        f.store(c.full, registers.constant(0.0), f.at(place["sums"], f.mul(number, size)), c.width)

    f.loop(0, s.queries * c.features // s.lanes, clear)
    lowest = registers.constant(-inf)
    vectors_held = c.held // size

    def begin(number: Number, _: list[str]) -> None:
        at = f.at(place["state"], f.mul(number, 2 * c.held))
        for k in range(vectors_held):
            f.store(c.full, lowest, f.at(at, k * size), c.width)
            f.store(c.full, registers.constant(0.0), f.at(at, c.held + k * size), c.width)

    f.loop(0, s.queries // s.rows, begin)
    panels = f.div(f.add("%rows", s.rows - 1), s.rows)
    f.loop(0, -(-a.keys.extent // s.keys), lambda number, _: _block(c, f, number, panels, place, (k, v)))

    def done(number: Number, _: list[str]) -> None:
        (offset,) = c.moved(f, a.rows, f.add("%first", number), (a.tensors[3],))
        sums = f.at(place["sums"], f.mul(number, c.features * c.width))
        panel = f.mul(f.div(number, s.rows), 2 * c.held)
        total = f.add(f.add(panel, c.held), f.mul(f.rem(number, s.rows), c.width))
        given = [f"ptr {sums}", f"ptr {f.at(place['state'], total)}", f"ptr {f.at(out, offset)}"]
        f.call(f"{c.name}.finish", *given)

    f.loop(0, "%rows", done)
    f.ret()


def _block(
    c: Cut, f: Function, number: Number, panels: Number, place: dict[str, str], tensors: tuple[str, str]
) -> None:
    """One block of keys for all row panels of a job."""
    a, s = c.a, c.sizes
    first = f.mul(number, s.keys)
    count = f.min(s.keys, f.sub(a.keys.extent, first))
    k, v = (f.at(t, f.mul(first, a.keys.strides[n])) for t, n in zip(tensors, a.tensors[1:3], strict=True))
    extras = {t: f.at(f"%t{t}", f.mul(first, a.keys.strides[t])) for t in c.tensors[4:]}
    arguments = [f"ptr {place['v']}", f"ptr {v}", f"i64 {count}", f"ptr {place['hidden']}"]
    bad = f.call(f"{c.name}.pack_v", *arguments, returns="i1")

    def shown(panel: Number) -> tuple[Number, Number]:
        begin = f.mul(panel, s.rows)
        return begin, f.min(s.rows, f.sub("%rows", begin))

    def look(panel: Number, any: list[str]) -> list[Number]:
        begin, rows = shown(panel)
        live: Number = 1
        for t in c.masks:
            given = [f"ptr {extras[t]}", f"i64 {f.add('%first', begin)}", f"i64 {rows}", f"i64 {count}"]
            live = f.both(live, f.call(f"{c.name}.look{t}", *given, returns="i1"))
        word = f.value(f"zext i1 {live} to i64")
        f.store("i64", word, f.at(place["live"], f.mul(panel, 8)), 8)
        return [f.value(f"or i64 {any[0]}, {word}")]

    pack = [f"ptr {place['k']}", f"ptr {k}", f"i64 {count}"]
    if not c.masks:
        f.call(f"{c.name}.pack_k", *pack)
        f.loop(0, panels, lambda panel, _: _row_panel(c, f, panel, shown(panel), count, place, extras))
        return
    (any,) = f.loop(0, panels, look, carry=[("i64", 0)])
    f.when(f.compare("ne", any, 0), lambda: f.call(f"{c.name}.pack_k", *pack))

    def each(panel: Number, _: list[str]) -> None:
        live = f.load("i64", f.at(place["live"], f.mul(panel, 8)), 8)
        f.when(
            f.compare("ne", live, 0),
            lambda: _row_panel(c, f, panel, shown(panel), count, place, extras),
            lambda: f.when(bad, lambda: _hide(c, f, panel, place)),
        )

    f.loop(0, panels, each)


def _hide(c: Cut, f: Function, panel: Number, place: dict[str, str]) -> None:
    """What hidden keys add to the sums of a row panel."""
    s, size = c.sizes, c.sizes.lanes * c.width
    v = Registers(f, c.target, s.lanes).floats(c.e)
    begin = f.at(place["sums"], f.mul(panel, s.rows * c.features * c.width))
    count = c.features // s.lanes

    def one(number: Number, _: list[str]) -> None:
        at = f.at(begin, f.mul(number, size))
        more = f.load(c.full, f.at(place["hidden"], f.mul(f.rem(number, count), size)), c.width)
        f.store(c.full, v.add(f.load(c.full, at, c.width), more), at, c.width)

    f.loop(0, s.rows * count, one)


def _row_panel(
    c: Cut,
    f: Function,
    panel: Number,
    shown: tuple[Number, Number],
    count: Number,
    place: dict[str, str],
    extras: dict[int, str],
) -> None:
    """One row panel with one block of keys."""
    a, s = c.a, c.sizes
    begin, rows = shown
    left = f.at(place["q"], f.mul(begin, c.depth * c.width))
    sums = f.at(place["sums"], f.mul(begin, c.features * c.width))
    state = f.at(place["state"], f.mul(panel, 2 * c.held))

    def scores(number: Number, _: list[str]) -> None:
        right = f.at(place["k"], f.mul(number, a.depth.extent * c.panel * c.width))
        out = f.at(place["scores"], f.mul(number, c.panel * c.width))
        parts.multiply(c, f, "scores", left, right, out, a.depth.extent, True)

    f.loop(0, f.div(f.add(count, c.panel - 1), c.panel), scores)

    given = [f"ptr {place['scores']}", f"ptr {sums}", f"ptr {state}", f"ptr {place['work']}"]
    given += [f"i64 {f.add('%first', begin)}", f"i64 {rows}", f"i64 {count}"]
    f.call(f"{c.name}.weigh", *given, *(f"ptr {extras[t]}" for t in c.tensors[4:]))
    for first in c.feature_panels():
        width = min(s.vectors, c.features // s.lanes - first)
        right = f.at(place["v"], first * s.lanes * s.keys * c.width)
        out = f.at(sums, first * s.lanes * c.width)
        parts.multiply(c, f, f"sums{width}", place["scores"], right, out, count, False)


def _task(c: Cut, jobs: int, count: int) -> None:
    """A share of the jobs. The last queries come first: where masks hide later keys, they take longest."""
    a, s = c.a, c.sizes
    g = Function(c.module, f"{c.name}.task", [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
    env = g.load("ptr", "%frame", 8)
    memory = g.at(g.load("ptr", g.at(env, 32), 8), g.mul("%thread", g.load("i64", g.at(env, 40), 8)))
    bases = [g.load("ptr", g.at("%frame", 8 + 8 * k), 8) for k in range(len(c.tensors))]

    def job(flat: Number, _: list[str]) -> None:
        batch, block = g.rem(flat, a.batches), g.sub(s.blocks - 1, g.div(flat, a.batches))
        first = g.mul(block, s.queries)
        rows = g.min(s.queries, g.sub(a.queries, first))
        moved = [g.at(b, o) for b, o in zip(bases, c.moved(g, a.outer, batch, c.tensors), strict=True)]
        g.call(f"{c.name}.job", f"ptr {memory}", f"i64 {first}", f"i64 {rows}", *(f"ptr {p}" for p in moved))

    g.loop(g.div(g.mul("%task", jobs), count), g.div(g.mul(g.add("%task", 1), jobs), count), job)
    g.ret()
