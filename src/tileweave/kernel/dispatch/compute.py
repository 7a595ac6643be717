"""Elementwise operators, reductions and scans on registers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tileweave.errors import BackendError
from tileweave.index import Expr, ExprLike, as_expr, simplify
from tileweave.kernel.dispatch import convert, mesh
from tileweave.kernel.dispatch.boxes import elected
from tileweave.kernel.dispatch.context import Context, declined, slot
from tileweave.kernel.dispatch.copies import load_each, load_into, memory_at, store_from
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.orders import TreeOrder, combined_in
from tileweave.kernel.dispatch.layouts.registers import Holding, RegisterDigit, blocked, holding
from tileweave.kernel.ir import DTYPES, Candidate, Op, Region, Scalar, promote
from tileweave.kernel.meaning import neutral
from tileweave.kernel.threads import LANE, Address, Buffer, Operand

Element = Callable[[ExprLike], Operand]


def _target(context: Context, op: Op) -> tuple[Buffer, Holding, Callable[[], None]]:
    """Where results go: the registers of the output, or fresh ones; and what brings them to the output."""
    out = op.outs[0]
    if out.tensor.space == "register":
        return convert.into(context, op, out)
    held = _blocked(context, out)
    buffer = context.registers("result", out.tensor.dtype, held.slots)
    return buffer, held, lambda: store_from(context, buffer, held, out)


def _blocked(context: Context, region: Region) -> Holding:
    """A holding for a region in memory, as wide as its accesses may be."""
    warps = max(1, context.threads.warps)
    layout, padded = blocked(region.shape, warps, places.vector(region, max(1, 128 // region.tensor.element.bits)))
    return holding(layout, padded, warps)


def _operand(context: Context, op: Op, value: Region | Scalar, want: Holding) -> Element:
    """How to name the element of an input that meets the element in a slot of the output."""
    if isinstance(value, Scalar):
        number = value.value
        return lambda r: number
    dims = _ones(value, want)
    part = want
    if dims:
        part = holding(want.without(dims), tuple(1 if d in dims else n for d, n in enumerate(want.shape)), want.warps)
    if value.tensor.space == "register":
        buffer, have = convert.held(context, op, value)
        buffer, _ = convert.converted(context, buffer, have, part, op)
    else:
        buffer = context.registers("part", value.tensor.dtype, part.slots)
        load_into(context, buffer, part, value)
    if not dims:
        return lambda r: slot(buffer, r)
    return lambda r: slot(buffer, want.part_slot(dims, r))


def _ones(value: Region, held: Holding) -> tuple[int, ...]:
    """The dimensions in which an input has one element and the output may have more."""
    return tuple(d for d, (a, b) in enumerate(zip(value.shape, held.shape, strict=True)) if a == 1 and b > 1)


def elementwise(context: Context, op: Op) -> None:
    """Lowers ``map``, ``cast``, ``fill`` and ``iota``."""
    target, held, finish = _target(context, op)
    if op.name == "iota":
        axis = op.option("axis")
        first = op.ins[0]
        start = first.value if isinstance(first, Scalar) else 0
        if not isinstance(axis, int):
            raise declined(op.line, f"numbers along axis {axis!r}")
        real = isinstance(start, float) and not start.is_integer()
        wide = context.registers("number", "f64", 1) if real else target
        base = 0 if real else start if isinstance(start, Expr) else int(start)

        def number(r: ExprLike) -> None:
            at = simplify(as_expr(base + held.coordinates(context.threads.warp, LANE, r)[axis]))
            context.instruction("map.cast", slot(wide, 0 if real else r), at, dtype="s32")
            if real:
                context.instruction("map.add", slot(wide, 0), slot(wide, 0), start, dtype="f64")
                context.instruction("map.cast", slot(target, r), slot(wide, 0))

        context.loop(held.slots, number)
    else:
        name = {"fill": "id", "cast": "cast"}.get(op.name) or str(op.option("fn"))
        inputs = [_operand(context, op, value, held) for value in op.ins]
        given = _computed(op)
        context.loop(
            held.slots,
            lambda r: context.instruction(f"map.{name}", slot(target, r), *(one(r) for one in inputs), dtype=given),
        )
    finish()


def _computed(op: Op) -> str:
    """The type that an elementwise operator computes in: the output's; for a predicate, that of its inputs."""
    out = op.outs[0].tensor.dtype
    if out != "pred" or op.name != "map":
        return out
    types = [v.dtype if isinstance(v, Scalar) else v.tensor.dtype for v in op.ins]
    found = DTYPES[types[0]]
    for other in types[1:]:
        found = promote(found, DTYPES[other])
    return found.name


def reduce(context: Context, op: Op) -> None:
    """Lowers ``reduce``: over the slots of a thread, over lanes by butterflies, over warps through shared memory."""
    out, source = op.outs[0], op.ins[0]
    axes, fn = op.option("axes"), str(op.option("fn"))
    if not isinstance(source, Region) or not isinstance(axes, tuple):
        raise declined(op.line, "a reduction of a number", op=op.name)
    at_once = mesh.reduce(context, op)
    if at_once is not None:
        _deliver(context, op, out, *at_once)
        return
    here = convert.held(context, op, source) if source.tensor.space == "register" else None
    held = here[1] if here is not None else _blocked(context, source)
    padded = tuple(1 if d in axes else n for d, n in enumerate(held.shape))
    part = holding(held.without(axes), padded, held.warps)
    dtype = combined_in(out.tensor.element).name
    result = context.registers("sum" if fn == "add" else fn, dtype, part.slots)
    begin = neutral(fn, DTYPES[dtype])
    context.loop(part.slots, lambda r: context.instruction("map.id", slot(result, r), begin))

    def one(r: ExprLike, term: Operand) -> None:
        at = held.coordinates(context.threads.warp, LANE, r)
        exists = places.inside(source, at, held.shape)
        into = slot(result, held.part_slot(axes, r))
        context.instruction(f"map.{fn}", into, into, term, mask=exists, dtype=dtype)

    if here is not None:
        context.loop(held.slots, lambda r: one(r, slot(here[0], r)))
    else:
        load_each(context, held, source, None, one, part.slots if _slowest(held, axes) else 0)
    lanes, warps = ([d for d in held.digits if d.axis == axis and d.dim in axes] for axis in ("lane", "warp"))
    asked = op.option("use")
    if why := _refused(asked, lanes, warps):
        raise BackendError(f"{fn if fn != 'add' else 'sum'}(.., use={asked!r})", why, inputs={"line": str(op.line)})
    shared = [*lanes, *warps] if asked == "shared" else warps
    distances = () if asked == "shared" else _lanes(context, lanes, fn, result, part, dtype)
    if shared:
        _through_shared(context, shared, fn, result, part, dtype)
    means = ["slots"] + ["shuffles"] * bool(distances) + ["shared memory"] * bool(shared)
    order = TreeOrder(held, axes, distances, tuple(shared))
    each = held.slots // part.slots
    butterflies = f"butterflies over distances {', '.join(map(str, distances))}"
    apart = "shared memory was asked for" if lanes and asked == "shared" else "no two lanes have terms of one sum"
    across = f"{_spread(lanes, warps) if asked == 'shared' else _spread([], warps)} have terms of one sum"
    context.choose(
        op,
        ", ".join(means),
        Candidate(
            "slots", each > 1, f"{each} of a thread in each sum" if each > 1 else "a thread has one term of a sum"
        ),
        Candidate("shuffles", bool(distances), butterflies if distances else apart),
        Candidate("shared memory", bool(shared), across if shared else "no two warps have terms"),
        Candidate("layout", True, str(held.layout)),
        *mesh.apart(context, op),
        order=order,
    )
    if dtype != out.tensor.dtype:
        wide, result = result, context.registers(fn, out.tensor.dtype, part.slots)
        context.loop(part.slots, lambda r: context.instruction("map.cast", slot(result, r), slot(wide, r)))
    _deliver(context, op, out, result, part)


def _slowest(held: Holding, axes: tuple[int, ...]) -> bool:
    """Whether the terms of a sum in a thread lie behind each other by all of its sums."""
    digits = [d for d in held.digits if d.axis == "reg"]
    within = max((d.stride * d.extent for d in digits if d.dim not in axes), default=1)
    return all(d.stride >= within for d in digits if d.dim in axes)


def _spread(lanes: list[RegisterDigit], warps: list[RegisterDigit]) -> str:
    """How many lanes and warps have terms of one sum."""
    counts = [(prod(d.extent for d in digits), name) for digits, name in ((lanes, "lanes"), (warps, "warps"))]
    return " of ".join(f"{count} {name}" for count, name in counts if count > 1)


def _refused(asked: object, lanes: list[RegisterDigit], warps: list[RegisterDigit]) -> str:
    """Why terms do not meet in the way that is asked for; empty if they do, or if none is."""
    if asked == "slots" and (lanes or warps):
        return f"{_spread(lanes, warps)} have terms of one sum"
    if asked == "shuffle" and warps:
        return f"{_spread([], warps)} have terms of one sum, and shuffles stay within a warp"
    alone = not lanes and not warps and asked in ("shuffle", "shared")
    return "a thread has all terms of a sum" if alone else ""


def _lanes(
    context: Context, digits: list[RegisterDigit], fn: str, result: Buffer, part: Holding, dtype: str
) -> tuple[int, ...]:
    """Butterflies over the digits of the lane that were reduced, by distance: every lane ends with the same total."""
    distances = []
    for digit in digits:
        step = digit.stride
        while step < digit.stride * digit.extent:
            distances.append(step)
            step *= 2
    if not distances:
        return ()
    far_first = tuple(sorted(distances, reverse=True))
    other = context.registers("other", dtype, 1)

    def one(r: ExprLike) -> None:
        for distance in far_first:
            context.instruction("shfl.sync.bfly.b32", slot(other, 0), slot(result, r), distance)
            context.instruction(f"map.{fn}", slot(result, r), slot(result, r), slot(other, 0), dtype=dtype)

    context.loop(part.slots, one)
    return far_first


def _through_shared(
    context: Context, digits: list[RegisterDigit], fn: str, result: Buffer, part: Holding, dtype: str
) -> None:
    """Each thread writes its partial results, all read those that belong together, in the order of the threads."""
    threads = context.threads.count
    trip = context.staging(dtype, part.slots * threads)
    warp = context.threads.warp
    context.sync()
    context.loop(
        part.slots,
        lambda r: context.instruction(
            "st.shared", Address(trip, simplify(r * threads + warp * 32 + LANE)), slot(result, r)
        ),
    )
    context.sync()
    other = context.registers("other", dtype, 1)
    base: dict[str, ExprLike] = {"warp": warp, "lane": LANE}
    count = 1
    for d in digits:
        base[d.axis] = base[d.axis] - d.of(base[d.axis]) * d.stride
        count *= d.extent

    def one(r: ExprLike) -> None:
        def step(i: ExprLike) -> None:
            at, rest = dict(base), i
            for d in digits:
                at[d.axis] = at[d.axis] + (rest % d.extent) * d.stride
                rest = rest // d.extent
            where = Address(trip, simplify(r * threads + at["warp"] * 32 + at["lane"]))
            context.instruction("ld.shared", slot(other, 0), where)
            context.instruction(f"map.{fn}", slot(result, r), slot(result, r), slot(other, 0), dtype=dtype)

        context.instruction("map.id", slot(result, r), neutral(fn, DTYPES[dtype]))
        context.loop(count, step, "w")

    context.loop(part.slots, one)


def _deliver(context: Context, op: Op, out: Region, result: Buffer, part: Holding) -> None:
    if out.tensor.space != "register":
        store_from(context, result, part, out)
        return
    target, want, finish = convert.into(context, op, out)
    moved, _ = convert.converted(context, result, part, want, op)
    context.loop(want.slots, lambda r: context.instruction("map.id", slot(target, r), slot(moved, r)))
    finish()


def scan(context: Context, op: Op) -> None:
    """Lowers ``scan``: the tile goes to shared memory, one thread runs along each row, and it comes back."""
    out, source = op.outs[0], op.ins[0]
    axis, fn = op.option("axis"), str(op.option("fn"))
    if not isinstance(source, Region) or not isinstance(axis, int):
        raise declined(op.line, "a scan of a number", op=op.name)
    if source.tensor.space != "register":
        raise declined(op.line, "a scan of memory", legal="load it first", region=source)
    buffer, held = convert.held(context, op, source)
    shape = held.shape
    dtype = out.tensor.dtype
    if not context.threads.warps:
        _scan_alone(context, op, axis, buffer, shape)
        return
    box = convert.staged(context, dtype, shape)
    trip = context.buffer(box.tensor)
    context.sync()
    store_from(context, buffer, held, box)
    context.sync()
    rows = prod(shape) // shape[axis]
    total = context.registers("total", dtype, 1)
    threads = context.threads.count

    def row(v: ExprLike) -> None:
        number = context.threads.thread + v * threads
        inner = prod(shape[axis + 1 :])
        first = number // inner * (inner * shape[axis]) + number % inner

        def run() -> None:
            context.instruction("map.id", slot(total, 0), neutral(fn, DTYPES[dtype]))

            def step(i: ExprLike) -> None:
                where = Address(trip, simplify(first + i * inner))
                context.instruction(f"map.{fn}", slot(total, 0), slot(total, 0), where, dtype=dtype)
                context.instruction("map.id", where, slot(total, 0))

            context.loop(shape[axis], step, "i", unroll=False)

        if rows % threads:
            context.branch(as_expr(number) < rows, run)
        else:
            run()

    context.loop(-(-rows // threads), row, unroll=False)
    context.sync()
    target, want, finish = _target(context, op)
    load_into(context, target, want, box)
    finish()
    context.choose(op, "shared memory", Candidate("shared memory", True, f"one thread a row of {shape[axis]}"))


def _scan_alone(context: Context, op: Op, axis: int, buffer: Buffer, shape: tuple[int, ...]) -> None:
    """A scan of what one thread holds, whose slots are in row-major order."""
    fn, dtype = str(op.option("fn")), op.outs[0].tensor.dtype
    if op.option("use") == "shared":
        raise BackendError("scan(.., use='shared')", "a thread has whole rows", inputs={"line": str(op.line)})
    target, _, finish = _target(context, op)
    total, inner = context.registers("total", dtype, 1), prod(shape[axis + 1 :])

    def row(v: ExprLike) -> None:
        first = v // inner * (inner * shape[axis]) + v % inner
        context.instruction("map.id", slot(total, 0), neutral(fn, DTYPES[dtype]))

        def step(i: ExprLike) -> None:
            at = simplify(as_expr(first + i * inner))
            context.instruction(f"map.{fn}", slot(total, 0), slot(total, 0), slot(buffer, at), dtype=dtype)
            context.instruction("map.id", slot(target, at), slot(total, 0))

        context.loop(shape[axis], step, "i")

    context.loop(prod(shape) // shape[axis], row)
    finish()
    context.choose(op, "slots", Candidate("slots", True, "a thread has whole rows"))


def atomic_add(context: Context, op: Op) -> None:
    """Lowers ``atomic_add``: one thread adds, the others get the old value through shared memory."""
    out, cell, value = op.outs[0], op.ins[0], op.ins[1]
    if not isinstance(cell, Region) or out.tensor.space != "register" or cell.tensor.dtype not in ("u32", "s32"):
        raise declined(op.line, "an atomic addition of this kind", legal="a cell of u32 or s32 in memory", out=out)
    trip = context.staging(out.tensor.dtype, 1)
    number: Operand
    if isinstance(value, Scalar):
        number = value.value
    else:
        number = slot(convert.held(context, op, value)[0], 0)
    where = memory_at(context, cell, (0,) * len(cell.dims))
    context.sync()
    context.instruction("atom.add", Address(trip), where, number, mask=elected(context))
    context.sync()
    target = context.buffer(out.tensor)
    context.instruction("ld.shared", slot(target, 0), Address(trip))
    context.choose(op, "atom.add", Candidate("atom.add", True, "one thread, acquire and release"))
