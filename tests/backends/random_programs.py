"""Random TEIR programs of any form, memory to run them in, and the comparison with the reference interpreter.

Operands hold small integers, and chains of sums are kept short where the type is narrow, so that every sum is exact in
every type and in every order; results are compared bit for bit.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from random import Random

import ml_dtypes
import numpy as np

from tileweave.backends.cpu import Target, compile, host
from tileweave.errors import Undecided, VerifyError
from tileweave.teir.analysis.analyse import byte_bounds, races
from tileweave.teir.analysis.interpret import interpret
from tileweave.teir.ir.dtypes import numpy_dtype, width_bytes
from tileweave.teir.ir.primitives import operands_of, operation
from tileweave.teir.ir.program import (
    Axis,
    First,
    Guard,
    Id,
    Invocation,
    Iteration,
    Last,
    Primitive,
    Program,
    TensorSpec,
)
from tileweave.teir.ir.text import show
from tileweave.teir.ir.verify import problems

EXTENTS = (1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 16, 17, 33)
FAMILIES = (
    ("INT32",),
    ("INT64",),
    ("INT8", "INT32"),
    ("INT8",),
    ("FP32",),
    ("FP64",),
    ("FP32", "FP64"),
    ("BF16", "FP32"),
    ("FP16", "FP32"),
)

DTYPES = ("FP64", "FP32", "INT64", "INT32", "INT8", "FP16", "BF16")
WIDE = {"FP16": "FP32", "BF16": "FP32"}
POINTS = 6000
SUMS = ("Contraction", "ReduceSum")
EXTENSIONS = ("Add", "Max", "Bias", "ReduceSum", "ReduceMax")


# ---- programs ---------------------------------------------------------------------------------------------------


def forest(seed: int) -> Program:
    """A forest of loops with guards anywhere, around Zero, Copy, ReLU and Contraction on tensors of any strides."""
    random = Random(seed)
    while True:
        program = _Grower(random).program(f"seed {seed}")
        if not problems(program):
            return _parallel(random, program)


@dataclass
class _Grower:
    """Holds what a program under construction consists of."""

    random: Random
    axes: list[Axis] = field(default_factory=list)
    tensors: list[TensorSpec] = field(default_factory=list)
    nodes: list[Iteration | Invocation] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    sums: int = 0

    def program(self, name: str) -> Program:
        random = self.random
        family = random.choice(FAMILIES)
        self.exact = family[0].startswith("INT") or family == ("FP64",)
        self.tensors = [TensorSpec(f"t{k}", random.choice(family), "inout") for k in range(random.randint(2, 4))]
        scratch = len(self.tensors) - 2 if random.random() < 0.3 else None
        extents = [random.choice(EXTENTS) for _ in range(random.randint(0, 5))]
        while prod(extents) > 3000:
            extents.remove(max(extents))
        columns = [self.strides(spec, extents, k == scratch) for k, spec in enumerate(self.tensors)]
        self.axes = [
            Axis(f"x{k}", extent, tuple(c[0][k] for c in columns), tuple(c[1][k] for c in columns))
            for k, extent in enumerate(extents)
        ]
        roots = []
        if scratch is not None:
            size = width_bytes(self.tensors[scratch].dtype) + sum(
                (axis.extent - 1) * axis.strides[scratch] for axis in self.axes
            )
            self.tensors[scratch] = replace(self.tensors[scratch], role="scratch", size_bytes=size)
            every = tuple(axis.id for axis in self.axes)
            roots.append(self.leaf(Primitive("clear", "Zero", (("M", every), ("N", ())), (f"t{scratch}",)), ()))
        roots += [self.grow([]) for _ in range(random.choice((1, 1, 2)))]
        return Program(
            tuple(self.tensors), tuple(self.axes), tuple(roots), tuple(self.nodes), tuple(self.primitives), name=name
        )

    def strides(self, spec: TensorSpec, extents: list[int], scratch: bool) -> tuple[list[int], list[int]]:
        """Mostly dense in a random order; with gaps, axes reversed or still, now and then elements that overlap."""
        random, width = self.random, width_bytes(spec.dtype)
        strides = [0] * len(extents)
        step = width * random.choice((1, 1, 1, 1, 2, 3))
        for k in random.sample(range(len(extents)), len(extents)):
            if random.random() < 0.25:
                continue
            strides[k] = step * (1 if scratch else random.choice((1, 1, 1, -1)))
            step *= extents[k] + random.choice((0, 0, 0, 1))
        if random.random() < 0.1:  # any strides at all
            strides = [width * random.randint(0 if scratch else -3, 3) for _ in extents]
        offsets = [0] * len(extents)
        if not scratch and random.random() < 0.3:
            offsets = [width * random.randint(-4, 4) for _ in extents]
        return strides, offsets

    def guard(self, path: list[Axis]) -> Guard:
        if not path or self.random.random() < 0.7:
            return ()
        count = self.random.choice((1, 1, 2))
        return tuple(self.random.choice((First, Last))(self.random.choice(path).id) for _ in range(count))

    def grow(self, path: list[Axis]) -> Id:
        """A loop over an axis that is not on the path, or a leaf."""
        left = [axis for axis in self.axes if axis not in path]
        if left and self.random.random() < (0.7 if len(path) < 3 else 0.2):
            axis = self.random.choice(left)
            children = tuple(self.grow([*path, axis]) for _ in range(self.random.choice((1, 1, 1, 2, 3))))
            node = Iteration(f"n{len(self.nodes)}", axis.id, children, "sequential", self.guard(path))
            self.nodes.append(node)
            return node.id
        return self.leaf(self.primitive(left), self.guard(path))

    def leaf(self, primitive: Primitive, guard: Guard) -> Id:
        self.primitives.append(primitive)
        node = Invocation(f"n{len(self.nodes)}", primitive.id, guard)
        self.nodes.append(node)
        return node.id

    def primitive(self, left: list[Axis]) -> Primitive:
        random = self.random
        id = f"p{len(self.primitives)}"
        while True:
            name = random.choice(("Zero", "Copy", "Copy", "ReLU", "Contraction", "Contraction", *EXTENSIONS))
            spec = operation(name)
            out = random.randrange(len(self.tensors))
            # values flow to later tensors alone where a cycle of sums would leave what the type holds exactly
            sources = range(len(self.tensors)) if self.exact else range(out)
            if spec.inputs and not (sources or name == "ReLU"):
                continue
            ins = [random.choice(sources) if sources else out for _ in range(spec.inputs)]
            if name == "ReLU" and random.random() < 0.5:
                ins = [out]
            names = tuple(self.tensors[k].dtype for k in (*ins, out))
            if spec.dtypes(names) or (name in SUMS and self.sums and not self.exact):
                continue
            break
        self.sums += name in SUMS
        taken = [axis for axis in left if random.random() < 0.7]
        random.shuffle(taken)
        roles: dict[str, list[Id]] = {role: [] for role in spec.roles}
        for axis in taken:
            fits = [r for r in spec.roles if r not in spec.contracted or not axis.strides[out]]
            roles[random.choice(fits)].append(axis.id)
        operands = tuple(f"t{k}" for k in (*ins, out))
        return Primitive(id, name, tuple((role, tuple(ids)) for role, ids in roles.items()), operands)


def _parallel(random: Random, program: Program) -> Program:
    """Some loops run at once, where that is no race."""
    for k, node in enumerate(program.nodes):
        if isinstance(node, Iteration) and random.random() < 0.5:
            nodes = (*program.nodes[:k], replace(node, policy="parallel"), *program.nodes[k + 1 :])
            changed = replace(program, nodes=nodes)
            try:
                if races(changed) is None:
                    program = changed
            except (Undecided, VerifyError):
                continue
    return program


# ---- single operations, scheduled --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A tensor's strides per axis, the offset of its base, and the bytes that it needs."""

    strides: dict[str, int]
    base: int
    size: int


def place(random: Random, axes: dict[str, int], used: list[str], width: int, *, still: list[str] = ()) -> Place:
    """Random strides: any order, padding, gaps, reversed axes, axes that stand still."""
    order = list(used)
    if random.random() < 0.6:
        random.shuffle(order)
    strides = dict.fromkeys(axes, 0)
    step = width * random.choice((1, 1, 1, 1, 2, 3))
    base = 0
    for name in order:
        if name in still:
            continue
        sign = random.choice((1, 1, 1, -1))
        strides[name] = sign * step
        if sign < 0:
            base += step * (axes[name] - 1)
        step *= axes[name] + random.choice((0, 0, 0, 1, 3))
    return Place(strides, base, step + width)


def schedule(random: Random, loops: list[str], parallel: set[str], leaves: list[Invocation]) -> tuple[tuple, tuple]:
    """A chain of loops around leaves; loops of the set may run at once."""
    nodes: list = list(leaves)
    below = tuple(leaf.id for leaf in leaves)
    for name in reversed(loops):
        policy = "parallel" if name in parallel and random.random() < 0.5 else "sequential"
        nodes.append(Iteration(f"loop {name}", name, below, policy))
        below = (f"loop {name}",)
    return below, tuple(nodes)


def extents(random: Random, count: int) -> dict[str, int]:
    """Axes with at most `POINTS` points."""
    choices = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 19, 24, 33, 50, 65)
    while True:
        axes = {f"x{k}": random.choice(choices) for k in range(count)}
        if np.prod(list(axes.values()), dtype=np.int64) <= POINTS:
            return axes


def program_axes(axes: dict[str, int], placed: list[Place], random: Random, everywhere: list[str]) -> tuple[Axis, ...]:
    """Axes, of which one that every primitive meets carries an offset per tensor that moves the tensor up to its base.

    Where there is no such axis, the arrays start at their bases instead.
    """
    shares = {name: [0] * len(placed) for name in axes}
    if everywhere and random.random() < 0.5:
        for k, one in enumerate(placed):
            shares[random.choice(everywhere)][k] = one.base
            placed[k] = replace(one, base=0)
    return tuple(
        Axis(name, extent, tuple(one.strides[name] for one in placed), tuple(shares[name]))
        for name, extent in axes.items()
    )


def contraction(random: Random) -> Program:
    """Zero, a Contraction of axes of every kind, and ReLU, with some of the axes as loops around them."""
    axes = extents(random, random.randint(0, 6))
    kinds = {name: random.choice("MMNNKKB") for name in axes}
    dtype = random.choice(DTYPES)
    out_dtype = WIDE.get(dtype, dtype)
    if dtype == "INT8" and random.random() < 0.5:
        out_dtype = "INT32"
    if dtype == "FP32" and random.random() < 0.2:
        out_dtype = "FP64"
    names = list(axes)
    inside = {"in0": "MKB", "in1": "NKB", "out": "MNB"}
    tensors = (TensorSpec("in0", dtype, "in"), TensorSpec("in1", dtype, "in"), TensorSpec("out", out_dtype, "inout"))
    placed = []
    for spec in tensors:
        used = [name for name in names if kinds[name] in inside[spec.name]]
        still = [name for name in used if spec.name != "out" and random.random() < 0.08]
        placed.append(place(random, axes, used, width_bytes(spec.dtype), still=still))
    loops = [name for name in names if random.random() < 0.5]
    random.shuffle(loops)
    consumed = [name for name in names if name not in loops]
    m = [name for name in consumed if kinds[name] in "MB"]
    n = [name for name in consumed if kinds[name] == "N"]
    k = [name for name in consumed if kinds[name] == "K"]
    sums = [name for name in loops if kinds[name] == "K"]
    primitives = (
        Primitive("zero", "Zero", (("M", tuple(m)), ("N", tuple(n))), ("out",)),
        Primitive("sum", "Contraction", (("M", tuple(m)), ("N", tuple(n)), ("K", tuple(k))), ("in0", "in1", "out")),
        Primitive("relu", "ReLU", (("M", tuple(m)), ("N", tuple(n))), ("out", "out")),
    )
    leaves = [Invocation("i1", "sum")]
    if random.random() < 0.7:
        leaves.insert(0, Invocation("i0", "zero", tuple(First(name) for name in sums)))
    if random.random() < 0.3:
        leaves.append(Invocation("i2", "relu", tuple(Last(name) for name in sums)))
    roots, nodes = schedule(random, loops, {x for x in loops if kinds[x] != "K"}, leaves)
    used_primitives = tuple(p for p in primitives if any(leaf.primitive == p.id for leaf in leaves))
    return Program(tensors, program_axes(axes, placed, random, m + n), roots, nodes, used_primitives)


def elementwise(random: Random) -> Program:
    """Copy from type to type, with Zero and ReLU before and behind, with some of the axes as loops around them."""
    axes = extents(random, random.randint(0, 5))
    names = list(axes)
    source = random.choice(DTYPES)
    target = random.choice([d for d in DTYPES if d not in ("INT64", "INT32", "INT8") or source.startswith("INT")])
    tensors = (TensorSpec("in0", source, "in"), TensorSpec("out", target, "inout"))
    still = [name for name in names if random.random() < 0.1]
    placed = [
        place(random, axes, names, width_bytes(source), still=still),
        place(random, axes, names, width_bytes(target), still=[x for x in names if random.random() < 0.05]),
    ]
    free = {x for x in names if placed[1].strides[x]}
    loops = [name for name in names if random.random() < 0.4]
    random.shuffle(loops)
    consumed = [name for name in names if name not in loops]
    random.shuffle(consumed)
    cut = random.randint(0, len(consumed))
    roles = (("M", tuple(consumed[:cut])), ("N", tuple(consumed[cut:])))
    primitives = [Primitive("copy", "Copy", roles, ("in0", "out"))]
    leaves = [Invocation("i1", "copy")]
    if random.random() < 0.3:
        primitives.append(Primitive("relu", "ReLU", roles, ("out", "out")))
        leaves.append(Invocation("i2", "relu"))
    if random.random() < 0.3:
        primitives.append(Primitive("zero", "Zero", roles, ("out",)))
        guard = (First(random.choice(loops)),) if loops and random.random() < 0.7 else ()
        leaves.insert(random.randint(0, len(leaves)), Invocation("i0", "zero", guard))
    roots, nodes = schedule(random, loops, free, leaves)
    return Program(tensors, program_axes(axes, placed, random, names), roots, nodes, tuple(primitives))


def reductions(random: Random) -> Program:
    """One to three reductions of the same axes, begun or not, with an Add before or behind them."""
    axes = extents(random, random.randint(0, 5))
    names = list(axes)
    reduced = [name for name in names if random.random() < 0.5]
    kept = [name for name in names if name not in reduced]
    dtype = random.choice(DTYPES)
    wide = WIDE.get(dtype, dtype)
    results = [f"out{k}" for k in range(random.randint(1, 3))]
    tensors = [TensorSpec("in0", dtype, "inout"), TensorSpec("in1", dtype, "in")]
    tensors += [TensorSpec(name, wide, "inout") for name in results]
    placed = [place(random, axes, kept if spec.name in results else names, width_bytes(spec.dtype)) for spec in tensors]
    loops = [name for name in names if random.random() < 0.4]
    random.shuffle(loops)
    over, free = ([name for name in some if name not in loops] for some in (reduced, kept))
    primitives, leaves = list[Primitive](), list[Invocation]()

    def invoke(kind: str, operands: tuple[str, ...], guard: Guard = ()) -> None:
        roles = {"M": free, "N": [] if operands[-1] in results else over}
        if "K" in operation(kind).roles:
            roles |= {"K": over}
        axes = tuple((role, tuple(roles[role])) for role in operation(kind).roles)
        primitives.append(Primitive(f"p{len(primitives)}", kind, axes, operands))
        leaves.append(Invocation(f"i{len(leaves)}", primitives[-1].id, guard))

    turns, change = [name for name in loops if name in reduced], random.randint(0, 2 * len(results))
    for k, out in enumerate(results):
        if change == k:
            invoke("Add", ("in0", "in1", "in0"))
        monoid = random.choice(("Sum", "Max", "Min"))
        if random.random() < 0.7:
            neutral = {"Sum": "Zero", "Max": "Lowest", "Min": "Highest"}[monoid]
            invoke(neutral, (out,), tuple(First(name) for name in turns if random.random() < 0.9))
        if monoid == "Sum" and random.random() < 0.3:
            invoke("Contraction", (random.choice(("in0", "in1")), "in1", out))
        else:
            invoke(f"Reduce{monoid}", (random.choice(("in0", "in0", "in1")), out))
        if random.random() < 0.2:
            invoke("ReLU", (out, out), tuple(Last(name) for name in turns))
    roots, nodes = schedule(random, loops, {name for name in loops if name in kept}, leaves)
    return Program(tuple(tensors), program_axes(axes, placed, random, free), roots, nodes, tuple(primitives))


def any_program(seed: int) -> Program:
    """Contractions, elementwise operations, reductions and forests in turn."""
    if seed % 3 == 0:
        return forest(seed)
    kind = contraction if seed % 3 == 1 else elementwise if seed % 2 else reductions
    return replace(kind(Random(seed)), name=f"seed {seed}")


# ---- memory -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """The bytes of a tensor, and where among them its base is."""

    data: np.ndarray
    base: int

    def array(self, dtype: str) -> np.ndarray:
        """An array whose first element is at the base, as long as the bytes allow."""
        kind = numpy_dtype(dtype)
        return np.ndarray(((len(self.data) - self.base) // kind.itemsize,), kind, self.data, self.base)


def tensors_of(program: Program) -> dict[str, tuple[str, int, int]]:
    """Tensor -> its type and exactly the bytes that the program touches, for those that callers give."""
    bounds = byte_bounds(program)
    found = {}
    for spec in program.tensors:
        low, high = bounds.get(spec.name, (0, 0))
        found[spec.name] = (spec.dtype, min(low, 0), max(high, 0))
    return {spec.name: found[spec.name] for spec in program.tensors if spec.role != "scratch"}


def contents(random: Random, program: Program, *, exact: bool = True) -> dict[str, np.ndarray]:
    """Small integers in each tensor's type, as bytes; else any numbers where the type has fractions."""
    rng = np.random.default_rng(random.randrange(2**32))
    filled = {}
    for name, (dtype, low, high) in tensors_of(program).items():
        kind = numpy_dtype(dtype)
        count = (high - low) // kind.itemsize + 2
        whole = exact or dtype.startswith("INT")
        values = (rng.integers(-3, 4, count) if whole else rng.standard_normal(count)).astype(kind)
        # whole elements lie at multiples of the width from the base
        filled[name] = values.view(np.uint8)[low % kind.itemsize :][: high - low].copy()
    return filled


def shares(random: Random, program: Program) -> dict[str, str]:
    """Tensors that are only read and may well be the same memory: each to the one whose memory it takes."""
    written = {operands_of(primitive, program)[-1] for primitive in program.primitives}
    alike: dict[tuple[str, int, int], str] = {}
    found = {}
    for name, about in tensors_of(program).items():
        if name not in written and about in alike and random.random() < 0.5:
            found[name] = alike[about]
        elif name not in written:
            alike[about] = name
    return found


class GuardedMemory:
    """Bytes between two pages that nobody may touch: they end, or begin, right at one of them."""

    def __init__(self, size: int, *, at_end: bool, shift: int = 0) -> None:
        page = mmap.PAGESIZE
        inner = -(-(size + shift) // page) * page or page
        self.memory = mmap.mmap(-1, inner + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for address in (start, start + page + inner):
            if protect(address, page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        begin = start + page + (inner - size - shift if at_end else shift)
        self.data = np.frombuffer((ctypes.c_uint8 * size).from_address(begin), np.uint8) if size else np.empty(0, "u1")


def loose(random: Random, filled: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Copies at any address, each a part of a larger array that is otherwise 0xA5."""
    found = {}
    for name, data in filled.items():
        before, after = random.choice((0, 1, 8, 64, 67)), random.choice((0, 5, 64))
        store = np.full(before + len(data) + after, 0xA5, np.uint8)
        store[before : before + len(data)] = data
        found[name] = store[before : before + len(data)]
    return found


def guarded(random: Random, filled: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[GuardedMemory]]:
    """Copies next to a page that nobody may touch, and what keeps their memory."""
    kept = {name: GuardedMemory(len(data), at_end=random.random() < 0.7) for name, data in filled.items()}
    for name, memory in kept.items():
        memory.data[:] = filled[name]
    return {name: memory.data for name, memory in kept.items()}, list(kept.values())


# ---- the comparison ---------------------------------------------------------------------------------------------


def arrays_of(program: Program, stores: Mapping[str, np.ndarray], same: Mapping[str, str]) -> dict[str, np.ndarray]:
    """An array per tensor, in these bytes; ``same`` says which tensors take another one's."""
    return {
        name: Placed(stores[same.get(name, name)], -low).array(dtype)
        for name, (dtype, low, _) in tensors_of(program).items()
    }


def difference(
    random: Random, program: Program, *, protect: bool = False, threads: int = 0, target: Target | None = None
) -> str:
    """Where the compiled program and the interpreter differ, in words; empty where they do not.

    Floating-point elements that do not begin at multiples of their width hold any numbers, whose sums are inexact:
    there, only bytes around the tensors are compared. So it is where results feed back until they leave the integers
    that their type holds exactly: the order of rounding is free.
    With ``protect``, the process ends where the program touches a byte behind, or before, its arrays.
    """
    filled, same = contents(random, program), shares(random, program)
    expected = {name: data.copy() for name, data in filled.items()}
    interpret(program, arrays_of(program, expected, same))
    stores, kept = guarded(random, filled) if protect else (loose(random, filled), [])
    kernel = compile(
        program,
        threads=threads or random.choice((1, 2, 3)),
        merge=random.random() < 0.8,
        target=target,
        cache=False,
    )
    kernel.run(arrays_of(program, stores, same))
    exact = _even(program) and all(
        _held(expected[n], -low, numpy_dtype(t)) for n, (t, low, _) in tensors_of(program).items()
    )
    told = f"{show(program)}\n{kernel.explain()}\n{len(kept)} guarded arrays"
    for name, (dtype, low, _) in tensors_of(program).items():
        if (exact or dtype.startswith("INT")) and not _equal(stores[name], expected[name], -low, numpy_dtype(dtype)):
            return f"{program.name}: {name} differs\n{told}"
        whole = stores[name].base
        if not protect and isinstance(whole, np.ndarray):
            begin = stores[name].__array_interface__["data"][0] - whole.__array_interface__["data"][0]
            if (whole[:begin] != 0xA5).any() or (whole[begin + len(stores[name]) :] != 0xA5).any():
                return f"{program.name}: bytes around {name} changed\n{told}"
    return ""


def _even(program: Program) -> bool:
    """Whether all elements begin at multiples of their width from the base."""
    widths = [width_bytes(spec.dtype) for spec in program.tensors]
    return not any(
        stride % width or offset % width
        for axis in program.axes
        for stride, offset, width in zip(axis.strides, axis.offsets, widths, strict=True)
    )


def _held(data: np.ndarray, base: int, kind: np.dtype) -> bool:
    """Whether all numbers are so small that integers of their size are exact in their type."""
    if kind.kind in "iu":
        return True
    begin = base % kind.itemsize
    numbers = np.ndarray(((len(data) - begin) // kind.itemsize,), kind, data, begin).astype("f8")
    return bool((np.abs(numbers) <= 2 / float(ml_dtypes.finfo(kind).eps)).all())


def _equal(found: np.ndarray, wanted: np.ndarray, base: int, kind: np.dtype) -> bool:
    """The same bytes, or the same numbers: a sum that is zero may have either sign."""
    if np.array_equal(found, wanted):
        return True
    begin = base % kind.itemsize
    count = (len(found) - begin) // kind.itemsize
    a, b = (np.ndarray((count,), kind, data, begin) for data in (found, wanted))
    return bool(((a == b) | ((a != a) & (b != b))).all())


# ---- in a process of their own ----------------------------------------------------------------------------------


def peek(at: int, *, at_end: bool) -> None:
    """Read one byte of, or near, 8 bytes that lie next to a page that nobody may touch."""
    memory = GuardedMemory(8, at_end=at_end)
    address = memory.data.__array_interface__["data"][0]
    (ctypes.c_uint8 * 1).from_address(address + at)[0]


def protected(first: int, count: int) -> None:
    """Programs between protected pages, each also as for a processor with tiny caches; ends with a difference."""
    tiny = replace(host(), l1_bytes=1024, l2_bytes=2048, l3_bytes=4096)
    for seed in range(first, first + count):
        print(seed, file=sys.stderr, flush=True)
        random = Random(seed)
        program = any_program(seed)
        problem = difference(random, program, protect=True, target=tiny if random.random() < 0.4 else None)
        if problem:
            raise SystemExit(problem)
