"""Kernels of the kernel language for programs: products, attention, stencils, and groups over rows.

:func:`offer_of` reads what a program computes from its steps and strides, and makes a kernel with tiles of its shape;
each operand is told how the kernel sees it (:class:`Offer`). What has no kernel is answered with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, Signature
from math import inf, prod, sqrt
from typing import Any

from tileweave.kernel import KernelFunction
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.extensions import FILL, NEUTRAL, REDUCTIONS
from tileweave.teir.ir.program import Axis, Invocation, Iteration, Primitive, Program

DTYPES = {"FP16": "f16", "BF16": "bf16", "FP32": "f32", "FP64": "f64", "INT8": "s8"} | {
    "FP8E4M3": "e4m3", "FP8E5M2": "e5m2"
}  # fmt: skip
"""Element type of a program -> of a kernel; what is INT8 is a truth that a choice reads."""
_FUNCTIONS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min", "Exp": "exp",
    "Log": "log", "Tanh": "tanh", "Sqrt": "sqrt", "Erf": "erf", "Neg": "neg", "Abs": "abs",
}  # fmt: skip
"""Operation of a program -> the elementwise function of the kernel language."""
_COMPARISONS = {
    "Less": "lt", "LessEqual": "le", "Greater": "gt", "GreaterEqual": "ge", "Equal": "eq", "NotEqual": "ne",
}  # fmt: skip
_IN_PLACE = {"Bias": "add", "Scale": "mul"}
_MONOIDS = {REDUCTIONS["sum"]: "add", REDUCTIONS["max"]: "max", REDUCTIONS["min"]: "min", REDUCTIONS["prod"]: "mul"}
_STARTS = {"Zero": 0.0, "One": 1.0, "Lowest": -inf, "Highest": inf}
_ELEMENTWISE = {*_FUNCTIONS, *_COMPARISONS, *_IN_PLACE, FILL, "Copy", "Cast", "ReLU", "Sigmoid", "Gelu", "Select"}
_SOFTMAX = ["ReduceMax", "Sub", "Exp", "ReduceSum", "Div", "Mul"]
"""How a softmax ends the steps of an attention, but for the numbers that it starts from."""
ROW = 16384
"""Elements of a row that the registers of a block hold."""
TAPS = 128
"""Neighbours that a stencil's text names one by one."""
Dimension = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Offer:
    """A kernel for a program: what it is called, how it is traced, and each operand as the kernel sees it.

    Args:
        name: for people.
        function: the kernel.
        operands: tensor of the program -> of each dimension that the kernel sees, the extents and the strides in
            bytes, slowest first, that it joins; none where all of the dimension is one element.
        work: elements or multiplications.
    """

    name: str
    function: KernelFunction
    operands: Mapping[str, tuple[Dimension, ...]]
    work: int

    def shape(self, name: str) -> tuple[int, ...]:
        """Of an operand as the kernel sees it."""
        return tuple(prod(extent for extent, _ in one) for one in self.operands[name])


def offer_of(program: Program) -> Offer | str:
    """The kernel of a program, or why there is none."""
    outs = [t for t in program.tensors if t.role == "out"]
    wrong = next((t for t in program.tensors if t.dtype not in DTYPES), None)
    wrong = wrong or next((t for t in outs if t.dtype == "INT8"), None)
    if wrong is not None:
        return f"no kernels for {wrong.dtype}"
    if any(node.guard for node in program.nodes):
        return "guards"
    if any(t.role == "inout" for t in program.tensors):
        return "an operand that is written"
    steps = [_typed(program, node) for node in program.nodes if isinstance(node, Invocation)]
    found = [p for p in steps if p.operation == "Contraction"]
    if len(found) == 2:
        return _attention(program, steps)
    if found and steps[1] is found[0] and steps[0].operation in ("Zero", "Copy"):
        return _product(program, steps)
    if found and steps[2] is found[0] and steps[-1].operation == REDUCTIONS["sum"]:
        return _blocks(program, steps)
    return _rows(program, steps)


def _typed(program: Program, node: Invocation) -> Primitive:
    """The primitive of a node; a cast says to which type of the kernel language, and so does a copy that rounds."""
    found = program.primitive(node.primitive)
    types = {t.name: t.dtype for t in program.tensors}
    made = types[found.operands[-1]]
    if found.operation != "Cast" and (found.operation != "Copy" or types[found.operands[0]] == made):
        return found
    return replace(found, metadata=(("dtype", DTYPES[made]),))


def _signature(names: Sequence[str]) -> Signature:
    return Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("k", *names)])


def _function(body: Callable[..., None], order: Sequence[str]) -> KernelFunction:
    body.__signature__ = _signature(order)  # type: ignore[attr-defined]
    return KernelFunction(body, {})


def _named(program: Program) -> list[str]:
    """The operands, as they are bound."""
    return [t.name for t in program.tensors if t.role != "scratch"]


def _stride(program: Program, name: str, axis: str) -> int:
    return program.axis(axis).strides[[t.name for t in program.tensors].index(name)]


def _moves(program: Program, name: str, axes: Sequence[str]) -> bool:
    """Whether any of the axes moves in a tensor."""
    return any(_stride(program, name, x) for x in axes)


def _dimensions(program: Program, name: str, dims: Sequence[Sequence[str]]) -> tuple[Dimension, ...]:
    """An operand by the axes of its dimensions; those none of which moves are one element."""

    def pair(axis: Axis) -> tuple[int, int]:
        return axis.extent, _stride(program, name, str(axis.id))

    return tuple(tuple(pair(program.axis(x)) for x in d) if _moves(program, name, d) else () for d in dims)


def _around(program: Program) -> tuple[str, ...]:
    """The axes of the loops."""
    return tuple(str(node.axis) for node in program.nodes if isinstance(node, Iteration))


def _extent(program: Program, axes: Sequence[str]) -> int:
    return prod(program.axis(x).extent for x in axes)


def _part(view: Any, sizes: Sequence[int], at: Sequence[Any]) -> Any:
    """A tile of the last dimensions of an operand, all of those in which it does not move; the first are indices."""
    lead = len(view.shape) - len(sizes)
    for size, index in zip(view.shape[:lead], at, strict=False):
        view = view[index if size > 1 else 0]
    moves = [n > 1 for n in view.shape]
    tiles = [size if m else 1 for size, m in zip(sizes, moves, strict=True)]
    return view.tile(*tiles)[tuple(i if m else 0 for i, m in zip(at[lead:], moves, strict=True))]


def _tile(given: Mapping[str, Any], sizes: Sequence[int], at: Sequence[Any], name: str) -> Any:
    return _part(given[name], sizes, at)


# --- products


def _product(program: Program, steps: Sequence[Primitive]) -> Offer | str:
    """A product or many alike, and what is elementwise behind it: that is done on the tile in registers."""
    start, found, *rest = steps
    m, n, k = (tuple(map(str, found.role(role))) for role in "MNK")
    if any(role not in ("M", "N", "K") and axes for role, axes in found.axes) or not k:
        return "no product of matrices"
    a, b, out = found.operands
    unknown = [p.operation for p in rest if p.operation not in _ELEMENTWISE]
    if unknown:
        return f"no kernel does {unknown[0]} behind a product"
    if start.operands[-1] != out or not {a, b} <= set(_named(program)):
        return "no product of matrices"
    around = _around(program)
    if not all(_moves(program, out, (x,)) for x in around):
        return "a product whose sums are taken in parts"
    if not (m and n) and not around:
        return _stencil(program, steps)
    if _moves(program, a, n) or _moves(program, b, m):
        a, b = b, a
    if _moves(program, a, n) or _moves(program, b, m):
        return "no product of matrices"
    batch = tuple(x for x in around if _moves(program, a, (x,)) and _moves(program, b, (x,)))
    m = (*(x for x in around if x not in batch and _moves(program, a, (x,))), *m)
    n = (*(x for x in around if x not in batch and x not in m), *n)
    if not (m and n):
        return "no product of matrices"
    first = (batch,) if batch else ()
    operands = {name: _dimensions(program, name, (*first, m, n)) for name in _named(program)}
    operands |= {a: _dimensions(program, a, (*first, m, k)), b: _dimensions(program, b, (*first, n, k))}
    outs = tuple(t.name for t in program.tensors if t.role == "out")
    if not all(all(operands[one]) for one in outs):
        return "a result that is no matrix"
    bits = {8 * width_bytes(t.dtype) for t in program.tensors if t.name in (a, b)}
    narrow = max(bits) <= 16
    tile = (128, 128, 1024 // max(bits)) if narrow else (64, 64, 16)  # rows of the widest swizzle, 128 bytes
    order = tuple(_named(program))
    body = _product_body((start, *rest), order, (a, b), (out, *outs), tile, 384 if narrow else 128)
    shown = " x ".join(map(str, tile)) + "".join(f", {p.operation.lower()}" for p in rest)
    many = f"{_extent(program, batch)} products" if batch else "product"
    return Offer(
        f"{many} by tiles of {shown}", _function(body, order), operands, _extent(program, (*batch, *m, *n, *k))
    )


def _product_body(
    steps: Sequence[Primitive],
    order: Sequence[str],
    pair: tuple[str, str],
    outs: Sequence[str],
    tile: tuple[int, int, int],
    threads: int,
) -> Callable[..., None]:
    """The kernel of a product and what follows it; the first of `outs` is what the product goes to."""
    bm, bn, bk = tile

    def product(k: Any, *tensors: Any) -> None:
        given = dict(zip(order, tensors, strict=True))
        left, right = (given[name] for name in pair)
        lead = left.shape[:-2]
        at = k.grid(*lead, left.blocks(-2, bm), right.blocks(-2, bn))
        *batch, m, n = at
        with k.cta(threads=threads) as cta:
            start, *rest = steps
            values = _Values(cta, partial(_tile, given, (bm, bn), at), (bm, bn))
            acc = cta.zeros((bm, bn), dtype="f64" if left.dtype == "f64" else "f32")
            for i in cta.range(left.blocks(-1, bk), stages=3):
                cta.gemm(acc, _part(left, (bm, bk), (*batch, m, i)), _part(right, (bn, bk), (*batch, n, i)))
            values.done[outs[0]] = acc if start.operation == "Zero" else acc + values.step(start)
            values.all(rest)
            for name in dict.fromkeys(o for o in outs if o in given):
                cta.store(_part(given[name], (bm, bn), at), values(name))

    return product


def _blocks(program: Program, steps: Sequence[Primitive]) -> Offer | str:
    """A product whose terms come in blocks, each of which a chain scales before it is added."""
    _, start, found, *rest, add = steps
    m, n, k = (tuple(map(str, found.role(role))) for role in "MNK")
    a, b, sums = found.operands
    around, out = _around(program), add.operands[-1]
    added = tuple(x for x in around if not _moves(program, out, (x,)))
    batch = tuple(x for x in around if x not in added)
    if _moves(program, a, n) or _moves(program, b, m):
        a, b = b, a
    if not (m and n and k and added) or _moves(program, a, n) or _moves(program, b, m):
        return "no product of matrices"
    if any(not (_moves(program, one, (x,))) for x in batch for one in (a, b)) or start.operation != "Zero":
        return "no product of matrices"
    depth, size = _extent(program, k), 8 * max(width_bytes(t.dtype) for t in program.tensors if t.name in (a, b))
    bk = next((n for n in (1024 // size, 512 // size, 256 // size) if depth % n == 0), 0)
    if not bk:
        return f"blocks of {depth} terms, no multiple of {256 // size}"
    first = (batch,) if batch else ()
    order = tuple(_named(program))
    operands = {name: _dimensions(program, name, (*first, added, m, n)) for name in order}
    operands[out] = _dimensions(program, out, (*first, m, n))
    operands |= {x: _dimensions(program, x, (*first, own, (*added, *k))) for x, own in ((a, m), (b, n))}
    tile = (64, 128 if size <= 16 else 64, bk)
    count = _extent(program, added)
    body = _blocks_body(rest, order, (a, b), (sums, add.operands[0], out), tile, count)
    shown = " x ".join(map(str, tile)) + "".join(f", {p.operation.lower()}" for p in rest)
    many = f"{_extent(program, batch)} products" if batch else "product"
    name = f"{many} in {count} blocks of {depth} by tiles of {shown}"
    return Offer(name, _function(body, order), operands, _extent(program, (*batch, *added, *m, *n, *k)))


def _blocks_body(
    steps: Sequence[Primitive],
    order: Sequence[str],
    pair: tuple[str, str],
    names: tuple[str, str, str],
    tile: tuple[int, int, int],
    count: int,
) -> Callable[..., None]:
    """The kernel of a product in blocks: `names` are its sums, what the steps make of them, and the result."""
    bm, bn, bk = tile
    sums, made, out = names

    def blocks(k: Any, *tensors: Any) -> None:
        given = dict(zip(order, tensors, strict=True))
        left, right = (given[name] for name in pair)
        *batch, m, n = k.grid(*left.shape[:-2], left.blocks(-2, bm), right.blocks(-2, bn))
        parts = left.shape[-1] // count // bk
        with k.cta(warpgroups=1) as cta:
            wide = "f64" if left.dtype == "f64" else "f32"
            acc = cta.zeros((bm, bn), dtype=wide)
            for block in cta.range(count):
                part = cta.zeros((bm, bn), dtype=wide)
                for i in range(parts):
                    at = block * parts + i
                    cta.gemm(part, _part(left, (bm, bk), (*batch, m, at)), _part(right, (bn, bk), (*batch, n, at)))
                values = _Values(cta, partial(_tile, given, (bm, bn), (*batch, block, m, n)), (bm, bn))
                values.done[sums] = part
                values.all(steps)
                acc += values(made)
            cta.store(_part(given[out], (bm, bn), (*batch, m, n)), acc)

    return blocks


# --- attention


def _attention(program: Program, steps: Sequence[Primitive]) -> Offer | str:
    """A product, a softmax of its rows and a product with these: the keys go by, with a running maximum and sum."""
    work = [p for p in steps if p.operation not in (*NEUTRAL.values(), FILL)]
    out = work[-1].operands[-1]
    first, *between, last = work[:-1] if work[-1].operation == "Copy" else work
    weights, values, _ = last.operands
    if between and between[-1].operation == "Cast" and between[-1].operands[-1] == weights:
        weights = between.pop().operands[0]
    names = [p.operation for p in between]
    if {first.operation, last.operation} != {"Contraction"} or names[-6:] != _SOFTMAX:
        return "products that are no attention"
    unknown = [name for name in names[:-6] if name not in _ELEMENTWISE]
    if unknown:
        return f"no kernel does {unknown[0]} to scores"
    (key,), (z,), (d,) = (tuple(map(str, p.role(r))) for p, r in ((first, "N"), (last, "N"), (first, "K")))
    q, keys, scores = first.operands
    highest, spread = between[-6], between[-5]
    if between[-1].operands[-1] != weights or spread.operands[:2] != highest.operands or first.role("M"):
        return "products that are no attention"
    around = _around(program)
    rows = tuple(x for x in around if not _moves(program, keys, (x,)) and not _moves(program, values, (x,)))
    batch = tuple(x for x in around if x not in rows)
    dims = {
        q: (batch, rows, (d,)),
        keys: (batch, (key,), (d,)),
        values: (batch, (key,), (z,)),
        out: (batch, rows, (z,)),
    }
    order = tuple(_named(program))
    operands = {name: _dimensions(program, name, dims.get(name, (batch, rows, (key,)))) for name in order}
    if not rows or not all(operands[name][1] and operands[name][2] for name in dims):
        return "attention to one query or key"
    numbers = tuple(p for p in steps if p.operation in (*NEUTRAL.values(), FILL))
    body = _attention_body(numbers, between[:-6], order, (q, keys, values, scores, highest.operands[0], out))
    size, length = _extent(program, rows), program.axis(key).extent
    shown = "".join(f", {name.lower()}" for name in names[:-6])
    name = f"attention of {size} queries to {length} keys, {QUERIES} x {KEYS} at a time{shown}"
    multiplications = _extent(program, (*batch, *rows, key, d)) + _extent(program, (*batch, *rows, key, z))
    return Offer(name, _function(body, order), operands, multiplications)


QUERIES = KEYS = 64
"""Rows and columns of the tile of scores that a block has in registers."""


def _attention_body(
    numbers: Sequence[Primitive], steps: Sequence[Primitive], order: Sequence[str], names: Sequence[str]
) -> Callable[..., None]:
    """The kernel of an attention; `steps` make of the scores and the `numbers` what the softmax takes."""
    q_name, k_name, v_name, scores, weighed, out_name = names

    def attention(k: Any, *tensors: Any) -> None:
        given = dict(zip(order, tensors, strict=True))
        q, keys, values, out = (given[name] for name in (q_name, k_name, v_name, out_name))
        head, row = k.grid(out.shape[0], out.blocks(1, QUERIES))
        depth, width = (-(-x.shape[2] // 16) * 16 for x in (q, values))
        wide = "f64" if q.dtype == "f64" else "f32"
        with k.cta(warpgroups=1) as cta:
            query = cta.load(_part(q, (QUERIES, depth), (head, row, 0)))
            m, l = cta.full((QUERIES, 1), -inf, wide), cta.zeros((QUERIES, 1), wide)
            acc = cta.zeros((QUERIES, width), wide)
            for j in cta.range(keys.blocks(1, KEYS)):
                done = _Values(cta, partial(_tile, given, (QUERIES, KEYS), (head, row, j)))
                done.all(numbers)
                done.done[scores] = cta.dot(query, _part(keys, (KEYS, depth), (head, j, 0)), wide)
                done.all(steps)
                s = done(weighed)
                new = cta.maximum(m, cta.max(s, axis=1))
                # a row that saw no key yet has no maximum to subtract: its weights and its fade are 0, not NaN
                shift = cta.where(new == -inf, 0.0, new)
                p, fade = cta.exp(s - shift), cta.exp(m - shift)
                l = l * fade + cta.sum(p, axis=1)
                acc *= fade
                p = p if q.dtype == wide else cta.cast(p, q.dtype)
                cta.gemm(acc, p, _part(values, (KEYS, width), (head, j, 0)).T)
                m = new
            cta.store(_part(out, (QUERIES, width), (head, row, 0)), acc / l)

    return attention


# --- stencils


def _stencil(program: Program, steps: Sequence[Primitive]) -> Offer | str:
    """Weighted sums of the neighbours of each element, in up to three dimensions."""
    start, found, *rest = steps
    kept = tuple(map(str, (*found.role("M"), *found.role("N"))))
    taps = tuple(map(str, found.role("K")))
    a, b, out = found.operands
    x, w = (a, b) if _moves(program, a, kept) else (b, a)
    if _moves(program, w, kept):
        return "no product of matrices"
    along: dict[str, str] = {}
    for tap in taps:
        step = _stride(program, x, tap)
        fits = [k for k in kept if k not in along.values() and step and _stride(program, x, k)]
        fits = [k for k in fits if step % _stride(program, x, k) == 0]
        if not fits:
            return "a sum along no dimension of the result"
        along[tap] = max(fits, key=lambda k: abs(_stride(program, x, k)))
    if len(taps) > 3 or _extent(program, taps) > TAPS:
        return f"{_extent(program, taps)} neighbours in {len(taps)} dimensions"
    steps_of = {t: _stride(program, x, t) // _stride(program, x, along[t]) for t in taps}
    if any(s < 1 for s in steps_of.values()):
        return "neighbours in the opposite order"
    windows = tuple(along[t] for t in taps)
    others = tuple(k for k in kept if k not in windows)
    dims = (others, *((k,) for k in windows))
    order = tuple(_named(program))
    operands = {name: _dimensions(program, name, dims) for name in order}
    reach = [steps_of[t] * (program.axis(t).extent - 1) for t in taps]
    wide = (((program.axis(k).extent + r, _stride(program, x, k)),) for k, r in zip(windows, reach, strict=True))
    operands[x] = (operands[x][0], *wide)
    operands[w] = _dimensions(program, w, [(t,) for t in taps])
    outs = tuple(t.name for t in program.tensors if t.role == "out")
    if not all(all(operands[one][1:]) for one in outs):
        return "a result that is no field"
    body = _stencil_body((start, *rest), order, (x, w), (out, *outs), [steps_of[t] for t in taps])
    shown = " x ".join(str(program.axis(t).extent) for t in taps) + "".join(f", {p.operation.lower()}" for p in rest)
    return Offer(f"stencil of {shown}", _function(body, order), operands, _extent(program, (*kept, *taps)))


def _stencil_body(
    steps: Sequence[Primitive], order: Sequence[str], pair: tuple[str, str], outs: Sequence[str], strides: Sequence[int]
) -> Callable[..., None]:
    """The kernel of a stencil; the field that is read is larger than the result by the reach of the taps."""

    def stencil(k: Any, *tensors: Any) -> None:
        given = dict(zip(order, tensors, strict=True))
        field, taps, out = given[pair[0]], given[pair[1]], given[outs[-1]]
        size = ((256,), (16, 32), (1, 16, 32))[len(strides) - 1]
        at = k.grid(out.shape[0], *(-(-n // t) for n, t in zip(out.shape[1:], size, strict=True)))
        with k.cta(threads=128) as cta:
            here = field[at[0] if field.shape[0] > 1 else 0]
            wide = [t + s * (n - 1) for t, s, n in zip(size, strides, taps.shape, strict=True)]
            first = [i * t for i, t in zip(at[1:], size, strict=True)]
            seen = here[tuple(slice(f, f + n) for f, n in zip(first, wide, strict=True))]
            for axis, begin in enumerate(first):
                seen = seen.limit(axis, here.shape[axis] - begin)
            s = k.shared(tuple(wide), like=field)
            cta.copy(s, seen)
            cta.sync()
            total = cta.zeros(size, dtype="f64" if field.dtype == "f64" else "f32")
            for number in range(prod(taps.shape)):
                place = [number // prod(taps.shape[d + 1 :]) % taps.shape[d] for d in range(len(strides))]
                moved = [p * by for p, by in zip(place, strides, strict=True)]
                part = s[tuple(slice(p, p + t) for p, t in zip(moved, size, strict=True))]
                weight = taps[tuple(slice(p, p + 1) for p in place)]
                total = total + cta.load(part) * cta.load(weight)
            start, *rest = steps
            values = _Values(cta, partial(_tile, given, size, at))
            values.done[outs[0]] = total if start.operation == "Zero" else total + values.step(start)
            values.all(rest)
            for name in dict.fromkeys(o for o in outs if o in given):
                cta.store(_part(given[name], size, at), values(name))

    return stencil


# --- rows


def _rows(program: Program, steps: Sequence[Primitive]) -> Offer | str:
    """Elementwise operations and reductions, one row after the other."""
    known = {*_ELEMENTWISE, *_MONOIDS, *NEUTRAL.values()}
    unknown = [p.operation for p in steps if p.operation not in known]
    if unknown:
        return f"no kernel does {unknown[0]}"
    around = _around(program)
    if not around:
        reducing = [p for p in steps if p.operation in _MONOIDS]
        around = tuple(dict.fromkeys(str(x) for p in reducing for x in (*p.role("M"), *p.role("N"))))
    used = dict.fromkeys(str(x) for p in steps for _, axes in p.axes for x in axes if x not in around)
    inner = tuple(used)
    length = _extent(program, inner)
    if not around or not inner or length > ROW:
        return f"rows of {length} elements" if inner and around else "no rows"
    order = tuple(_named(program))
    operands = {name: _dimensions(program, name, (around, inner)) for name in order}
    outs = tuple(t.name for t in program.tensors if t.role == "out")
    if any(not operands[name][0] for name in outs):
        return "an output that is no rows"
    function = _function(_row_body(steps, order, outs), order)
    fns = ", ".join(dict.fromkeys(p.operation.lower() for p in steps if p.operation not in NEUTRAL.values()))
    return Offer(f"rows of {length}: {fns}", function, operands, _extent(program, around) * length)


def _row_body(steps: Sequence[Primitive], order: Sequence[str], outs: Sequence[str]) -> Callable[..., None]:
    """The kernel of a group over rows, one row a block."""

    def rows(k: Any, *tensors: Any) -> None:
        given = dict(zip(order, tensors, strict=True))
        row = k.grid(max(t.shape[0] for t in tensors))
        width = max(t.shape[1] for t in tensors)
        with k.cta(threads=min(256, 32 * max(1, -(-width // 64)))) as cta:
            values = _Values(cta, lambda name: given[name][row if given[name].shape[0] > 1 else 0])
            values.all(steps)
            for name in outs:
                wide = values(name)
                if not hasattr(wide, "shape") or wide.shape[0] < given[name].shape[1]:
                    wide = cta.zeros((given[name].shape[1],)) + wide
                cta.store(given[name][row], wide)

    return rows


# --- steps


class _Values:
    """What the steps of a program have made of the tile of a block, by tensor; what none made is loaded once.

    Args:
        cta: executes the steps.
        region: name of an operand -> the region that is loaded.
        sums: the shape of a product's sums, with which what has it meets; others may be widened to fill the threads.
    """

    def __init__(self, cta: Any, region: Callable[[str], Any], sums: tuple[int, ...] = ()) -> None:
        self.cta, self.region, self.sums = cta, region, sums
        self.done: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        if name not in self.done:
            region = self.region(name)
            if region.shape == self.sums:
                self.done[name] = self.cta.zeros(self.sums, dtype=region.dtype)
                self.cta.copy(self.done[name], region)
            else:
                self.done[name] = self.cta.load(region)
        return self.done[name]

    def all(self, steps: Sequence[Primitive]) -> None:
        """Some steps, in their order."""
        for step in steps:
            self.done[step.operands[-1]] = self.step(step)

    def step(self, step: Primitive) -> Any:
        """What a step makes: a value of the block, or a number."""
        *sources, target = step.operands
        operation, cta = step.operation, self.cta
        if operation in _STARTS:
            return _STARTS[operation]
        if operation == FILL:
            return float(dict(step.metadata)["value"])  # type: ignore[arg-type]
        if operation == "Copy":
            value = self(sources[0])
            return cta.cast(value, dict(step.metadata)["dtype"]) if step.metadata else value
        if operation == "Cast":
            return cta.cast(self(sources[0]), dict(step.metadata)["dtype"])
        if operation in _IN_PLACE:
            return cta.map(_IN_PLACE[operation], self(target), self(sources[0]))
        if operation in _MONOIDS:
            fn, before = _MONOIDS[operation], self.done.get(target)
            result = cta.reduce(fn, self(sources[0]), 0)
            neutral = {"add": 0.0, "mul": 1.0, "max": -inf, "min": inf}[fn]
            return result if before is None or before == neutral else cta.map(fn, before, result)
        return self._elementwise(operation, [self(s) for s in sources])

    def _elementwise(self, operation: str, operands: list[Any]) -> Any:
        cta = self.cta
        if not any(hasattr(o, "shape") for o in operands):
            operands[-1] = cta.full((1,), operands[-1])
        x = operands[0]
        if operation == "ReLU":
            return cta.map("max", x, 0.0)
        if operation == "Sigmoid":
            return 1.0 / (1.0 + cta.exp(-x))
        if operation == "Gelu":
            return x * 0.5 * (cta.erf(x * sqrt(0.5)) + 1.0)
        if operation == "Select":
            return cta.where(x if x.dtype == "pred" else x != 0, *operands[1:])
        return cta.map({**_FUNCTIONS, **_COMPARISONS}[operation], *operands)
