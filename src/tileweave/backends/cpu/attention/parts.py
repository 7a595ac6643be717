"""The functions that a job of attention calls: micro-kernels, packing, looks at masks, the running softmax."""

from __future__ import annotations

from math import inf

from tileweave.backends.cpu.attention.cut import Cut
from tileweave.backends.cpu.attention.match import Value
from tileweave.backends.cpu.gemm.blocking import ReadFrom
from tileweave.backends.cpu.gemm.micro import Ahead, Edges, Start, Stores, Tile, emit_tile
from tileweave.backends.cpu.gemm.panels import Contracted, Panels
from tileweave.backends.cpu.llvm import functions, vectors
from tileweave.backends.cpu.llvm.elements import element
from tileweave.backends.cpu.llvm.ir import Function
from tileweave.backends.cpu.llvm.ir import Value as Number
from tileweave.backends.cpu.llvm.meanings import Registers
from tileweave.teir.merged.form import Mode


def products(c: Cut) -> None:
    """Scores of a row panel with a panel of keys, and sums of it with panels of values."""
    a, s = c.a, c.sizes
    _product(c, "scores", s.vectors, (c.depth * c.width, c.row), a.depth.extent)
    for count in {min(s.vectors, c.features // s.lanes - first) for first in c.feature_panels()}:
        _product(c, f"sums{count}", count, (c.row, c.features * c.width), s.keys)


def _product(c: Cut, part: str, count: int, strides: tuple[int, int], summed: int) -> None:
    s, w, e = c.sizes, c.width, c.e
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
    emit_tile(c.module, f"{c.name}.{part}", tile, rows, columns, summing)
    lanes = [offset for row in range(s.rows) for offset in (row * strides[0], row * strides[1])]
    segments = [1, *(word for g in range(count) for word in (0, g * s.lanes * w, -1))]
    for table, words in (("rows", lanes), ("columns", segments)):
        text = ", ".join(f"i64 {word}" for word in words)
        c.module.constant(f"{c.name}.{part}.{table}", f"[{len(words)} x i64] [{text}]")


def multiply(c: Cut, f: Function, part: str, left: str, right: str, out: str, count: Number, store: bool) -> None:
    """Call a micro-kernel: rows at `left`, a packed panel at `right`."""
    name = f"{c.name}.{part}"
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


def pack_queries(c: Cut) -> None:
    """``pack_q(into, queries, first)``: the rows of a job; those beyond the last repeat it."""
    a, q = c.a, c.a.tensors[0]
    f = Function(c.module, f"{c.name}.pack_q", [("ptr", "into"), ("ptr", "q"), ("i64", "first")])

    def row(number: Number, _: list[str]) -> None:
        index = f.min(f.add("%first", number), a.queries - 1)
        (offset,) = c.moved(f, a.rows, index, (q,))
        source = f.at("%q", offset)
        into = f.at("%into", f.mul(number, c.depth * c.width))

        def some(start: Number, mask: str | None) -> None:
            value = c.read(f, source, a.depth.strides[q], start, mask)
            vectors.store(f, c.e, c.lanes, value, f.at(into, f.mul(start, c.width)))

        c.along(f, a.depth.extent, some)

    f.loop(0, c.sizes.queries, row)
    f.ret()


def pack_keys(c: Cut) -> None:
    """``pack_k(into, keys, count)``: panels of keys, transposed; those beyond the last are anything."""
    a, s = c.a, c.sizes
    stride, step = a.keys.strides[a.tensors[1]], a.depth.strides[a.tensors[1]]
    f = Function(c.module, f"{c.name}.pack_k", [("ptr", "into"), ("ptr", "k"), ("i64", "count")])
    last = f.sub("%count", 1)

    def group(number: Number, _: list[str]) -> None:
        first = f.mul(number, s.lanes)
        panel = f.mul(f.div(number, s.vectors), a.depth.extent * c.panel * c.width)
        into = f.at("%into", f.add(panel, f.mul(f.rem(number, s.vectors), s.lanes * c.width)))
        if step == c.width and a.depth.extent > 1:
            rows = [f.at("%k", f.mul(f.min(f.add(first, lane), last), stride)) for lane in range(s.lanes)]

            def square(start: Number, mask: str | None) -> None:
                held = [c.read(f, row, step, start, mask) for row in rows]
                turned = vectors.transpose(f, c.e.memory, s.lanes, held, s.lanes)
                count = s.lanes if mask is None else a.depth.extent % s.lanes
                for j, value in enumerate(turned[:count]):
                    place = f.mul(f.add(start, j), c.panel * c.width)
                    vectors.store(f, c.e, s.lanes, value, f.at(into, place))

            c.along(f, a.depth.extent, square)
            return
        mask = vectors.mask_below(f, str(f.sub("%count", first)), s.lanes)

        def one(index: Number, _: list[str]) -> None:
            base = f.at("%k", f.mul(index, step))
            value = c.read(f, base, stride, first, mask)
            vectors.store(f, c.e, s.lanes, value, f.at(into, f.mul(index, c.panel * c.width)))

        f.loop(0, a.depth.extent, one)

    f.loop(0, f.div(f.add("%count", s.lanes - 1), s.lanes), group)
    f.ret()


def pack_values(c: Cut) -> None:
    """``pack_v(into, values, count, hidden)``: panels of features; where masks may hide keys, also what they sum to
    with weights of zero: zero, or NaN where a value is not finite. Returns whether there is such a value."""
    a, s = c.a, c.sizes
    tensor = a.tensors[2]
    stride, step = a.keys.strides[tensor], a.features.strides[tensor]
    names = [("ptr", "into"), ("ptr", "v"), ("i64", "count"), ("ptr", "hidden")]
    f = Function(c.module, f"{c.name}.pack_v", names, returns="i1")
    v = Registers(f, c.target, s.lanes).floats(c.e)
    bad: Number = 0
    for first in c.feature_panels():
        count = min(s.vectors, c.features // s.lanes - first)
        into = f.at("%into", first * s.lanes * s.keys * c.width)

        def key(number: Number, sums: list[str], first: int = first, count: int = count, into: str = into) -> list[str]:
            row = f.at("%v", f.mul(number, stride))
            target = f.at(into, f.mul(number, count * s.lanes * c.width))
            after = []
            for j in range(count):
                begin = (first + j) * s.lanes
                inside = min(s.lanes, a.features.extent - begin)
                mask = vectors.mask_of(inside, s.lanes) if inside < s.lanes else None
                value = c.read(f, row, step, begin, mask)
                vectors.store(f, c.e, s.lanes, value, f.at(target, j * s.lanes * c.width))
                if c.masks:
                    after.append(v.multiply_add(value, v.constant(0.0), sums[j]))
            return after

        start = [(c.full, v.constant(0.0))] * count if c.masks else []
        for j, total in enumerate(f.loop(0, "%count", key, carry=start)):
            vectors.store(f, c.e, s.lanes, str(total), f.at("%hidden", (first + j) * s.lanes * c.width))
            lanes = v.compare("uno", str(total), str(total))
            name = f"llvm.vector.reduce.or.v{s.lanes}i1"
            f.module.declare(name, f"i1 {{}}(<{s.lanes} x i1>)")
            bad = f.either(bad, f.value(f"call i1 @{name}(<{s.lanes} x i1> {lanes})"))
    f.ret(f"i1 {bad if isinstance(bad, str) else 'false'}")


def look(c: Cut, tensor: int) -> None:
    """``look(mask, first, rows, keys)``: whether a mask shows any key to any of these rows."""
    a = c.a
    names = [("ptr", "mask"), ("i64", "first"), ("i64", "rows"), ("i64", "keys")]
    f = Function(c.module, f"{c.name}.look{tensor}", names, returns="i1")
    size = 32
    full = f"<{size} x i8>"

    def row(number: Number, seen: list[str]) -> list[Number]:
        (offset,) = c.moved(f, a.rows, f.add("%first", number), (tensor,))
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


def weigh(c: Cut) -> None:
    """``weigh(scores, sums, state, work, row, rows, keys, extras..)``: scores of a panel become weights; the sums
    so far and their totals are brought to the new maxima.

    ``state``: a maximum per row, then a total; ``work``: a number per row to subtract, to scale by, and to add.
    What is one number per row is computed for all rows at once.
    """
    names = [("ptr", "scores"), ("ptr", "sums"), ("ptr", "state"), ("ptr", "work")]
    names += [("i64", "row"), ("i64", "rows"), ("i64", "keys"), *(("ptr", f"x{t}") for t in c.tensors[4:])]
    f = Function(c.module, f"{c.name}.weigh", names)
    v = Registers(f, c.target, c.lanes).floats(c.e)
    base, scale, total = (f.at("%work", n * c.held) for n in range(3))
    f.loop(0, "%rows", lambda number, _: _step_row(c, f, v, number, base))
    lowest = v.constant(-inf)
    groups = [n * c.lanes * c.width for n in range(c.held // (c.lanes * c.width))]
    for at in groups:
        before = f.load(c.full, f.at("%state", at), c.width)
        seen = f.load(c.full, f.at(base, at), c.width)
        most = v.select(v.compare("ogt", seen, before), seen, before)
        f.store(c.full, most, f.at("%state", at), c.width)
        less = v.select(v.compare("oeq", most, lowest), v.constant(0.0), most)  # -inf less -inf were NaN
        f.store(c.full, less, f.at(base, at), c.width)
        f.store(c.full, functions.exp(v, v.sub(before, less)), f.at(scale, at), c.width)
    f.loop(0, "%rows", lambda number, _: _weigh_row(c, f, v, number, (base, scale, total)))
    for at in groups:
        place = f.at("%state", c.held + at)
        old, down = f.load(c.full, place, c.width), f.load(c.full, f.at(scale, at), c.width)
        new = f.load(c.full, f.at(total, at), c.width)
        f.store(c.full, v.multiply_add(old, down, new), place, c.width)
    f.ret()


def _step_row(c: Cut, f: Function, v: functions.Floats, number: Number, tops: str) -> None:
    """The steps on a row of scores, and its maximum."""
    a, extras, size = c.a, c.tensors[4:], c.width
    moved = c.moved(f, a.rows, f.add("%row", number), extras)
    bases = {t: f.at(f"%x{t}", o) for t, o in zip(extras, moved, strict=True)}
    fixed = {t: c.read(f, bases[t], 0, 0, None, element(_dtype_of(c, t))) for t in extras if not a.keys.strides[t]}
    line, lowest = f.at("%scores", f.mul(number, c.row)), v.constant(-inf)

    def some(first: Number, mask: str | None, top: str) -> str:
        place = f.at(line, f.mul(first, size))
        value = _stepped(c, f, f.load(c.full, place, size), first, mask, bases, fixed)
        value = v.select(mask, value, lowest) if mask else value
        f.store(c.full, value, place, size)
        return v.select(v.compare("ogt", value, top), value, top)

    whole = f.div("%keys", c.lanes)
    (top,) = f.loop(0, whole, lambda k, held: [some(f.mul(k, c.lanes), None, held[0])], carry=[(c.full, lowest)])
    first = f.mul(whole, c.lanes)
    left = f.sub("%keys", first)
    (top,) = f.choose(
        f.compare("sgt", left, 0),
        [c.full],
        lambda: [some(first, vectors.mask_below(f, str(left), c.lanes), str(top))],
        lambda: [top],
    )
    name = f"llvm.vector.reduce.fmax.{vectors.suffix(c.e.memory, c.lanes)}"
    f.module.declare(name, f"{c.e.memory} {{}}({c.full})")
    most = f.value(f"call nnan {c.e.memory} @{name}({c.full} {top})")
    f.store(c.e.memory, most, f.at(tops, f.mul(number, size)), size)


def _weigh_row(c: Cut, f: Function, v: functions.Floats, number: Number, work: tuple[str, str, str]) -> None:
    """The weights of a row, their sum, and the row's sums so far, scaled."""
    size = c.width
    line = f.at("%scores", f.mul(number, c.row))
    base, scale, total = (f.at(place, f.mul(number, size)) for place in work)
    less = vectors.broadcast(f, c.e.memory, c.lanes, f.load(c.e.memory, base, size))

    def weight(k: Number, sums: list[str]) -> list[str]:
        place = f.at(line, f.mul(k, c.lanes * size))
        value = functions.exp(v, v.sub(f.load(c.full, place, size), less))
        f.store(c.full, value, place, size)
        return [v.add(sums[0], value)]

    count = f.div(f.add("%keys", c.lanes - 1), c.lanes)
    (sums,) = f.loop(0, count, weight, carry=[(c.full, v.constant(0.0))])
    name = f"llvm.vector.reduce.fadd.{vectors.suffix(c.e.memory, c.lanes)}"
    f.module.declare(name, f"{c.e.memory} {{}}({c.e.memory}, {c.full})")
    new = f.value(f"call reassoc {c.e.memory} @{name}({c.e.memory} 0.0, {c.full} {sums})")
    f.store(c.e.memory, new, total, size)
    down = f.load(c.e.memory, scale, size)
    target = f.at("%sums", f.mul(number, c.features * size))

    def scaled() -> None:
        spread = vectors.broadcast(f, c.e.memory, c.lanes, down)

        def one(k: Number, _: list[str]) -> None:
            place = f.at(target, f.mul(k, c.lanes * size))
            f.store(c.full, v.mul(f.load(c.full, place, size), spread), place, size)

        f.loop(0, c.features // c.lanes, one)

    f.when(f.value(f"fcmp une {c.e.memory} {down}, 1.0"), scaled)


def _dtype_of(c: Cut, tensor: int) -> str:
    """The element type of what the steps read."""
    stack = [c.a.weighed]
    while stack:
        value = stack.pop()
        if value.kind == "in" and int(value.number) == tensor:
            return value.dtype
        stack += value.inputs
    return c.e.name


def _stepped(
    c: Cut,
    f: Function,
    scores: str,
    first: Number,
    mask: str | None,
    bases: dict[int, str],
    fixed: dict[int, str],
) -> str:
    """What softmax is taken of, for a vector of scores."""
    a, registers = c.a, Registers(f, c.target, c.lanes)
    known: dict[Value, str] = {a.scores: scores}

    def of(value: Value) -> str:
        if value not in known:
            one = element(value.dtype)
            if value.kind == "in":
                t = int(value.number)
                known[value] = fixed[t] if t in fixed else c.read(f, bases[t], a.keys.strides[t], first, mask, one)
            elif value.kind == "Fill":
                known[value] = registers.fill(value.number, one)
            else:
                given = [(of(x), element(x.dtype)) for x in value.inputs]
                known[value] = registers.value(value.kind, given, one)
        return known[value]

    return of(a.weighed)


def finish(c: Cut) -> None:
    """``finish(sums, total, out)``: a row of sums, divided by its total, to the output."""
    a, s = c.a, c.sizes
    out = a.tensors[3]
    stride = a.features.strides[out]
    f = Function(c.module, f"{c.name}.finish", [("ptr", "sums"), ("ptr", "total"), ("ptr", "out")])
    v = Registers(f, c.target, s.lanes).floats(c.e)
    total = vectors.broadcast(f, c.e.memory, s.lanes, f.load(c.e.memory, "%total", c.width))
    inverse = v.div(v.constant(1.0), total)

    def some(first: Number, mask: str | None) -> None:
        value = v.mul(f.load(c.full, f.at("%sums", f.mul(first, c.width)), c.width), inverse)
        place = f.at("%out", f.mul(first, stride))
        if stride == c.width or a.features.extent == 1:
            vectors.store(f, c.e, s.lanes, value, place, mask)
        else:
            vectors.scatter(f, c.e, s.lanes, value, place, stride, mask)

    c.along(f, a.features.extent, some)
    f.ret()
