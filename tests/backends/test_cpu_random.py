"""Random programs: compiled code equals the reference interpreter, bit for bit.

Operands hold small integers, so every sum is exact in every type and in every order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest

from tileweave.backends.cpu import compile
from tileweave.teir.dtypes import numpy_dtype, width_bytes
from tileweave.teir.interpret import interpret
from tileweave.teir.program import Axis, First, Invocation, Iteration, Last, Primitive, Program, TensorSpec
from tileweave.teir.text import show

DTYPES = ("FP64", "FP32", "INT64", "INT32", "INT8", "FP16", "BF16")
WIDE = {"FP16": "FP32", "BF16": "FP32"}
POINTS = 6000


@dataclass(frozen=True)
class Placed:
    """A tensor's strides per axis, the offset of its base, and the bytes that it needs."""

    strides: dict[str, int]
    base: int
    size: int


def place(random: Random, axes: dict[str, int], used: list[str], width: int, *, still: list[str] = ()) -> Placed:
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
    return Placed(strides, base, step + width)


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
    choices = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 19, 24, 33, 50, 65)
    while True:
        axes = {f"x{k}": random.choice(choices) for k in range(count)}
        if np.prod(list(axes.values()), dtype=np.int64) <= POINTS:
            return axes


def program_axes(axes: dict[str, int], placed: list[Placed], random: Random, everywhere: list[str]) -> tuple[Axis, ...]:
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


def contraction(random: Random) -> tuple[Program, dict[str, np.ndarray]]:
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
    program = Program(tensors, program_axes(axes, placed, random, m + n), roots, nodes, used_primitives)
    return program, arrays_of(random, program, placed, axes)


def elementwise(random: Random) -> tuple[Program, dict[str, np.ndarray]]:
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
    program = Program(tensors, program_axes(axes, placed, random, names), roots, nodes, tuple(primitives))
    return program, arrays_of(random, program, placed, axes)


def arrays_of(random: Random, program: Program, placed: list[Placed], axes: dict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(random.randrange(2**32))
    arrays = {}
    for spec, one in zip(program.tensors, placed, strict=True):
        width = width_bytes(spec.dtype)
        values = rng.integers(-3, 4, one.size // width + 1).astype(numpy_dtype(spec.dtype))
        arrays[spec.name] = values[one.base // width :]
    return arrays


def same(program: Program, arrays: dict[str, np.ndarray], random: Random) -> None:
    expected = {name: array.base.copy()[array.base.size - array.size :] for name, array in arrays.items()}
    interpret(program, expected)
    kernel = compile(program, threads=random.choice((1, 2)), merge=random.random() < 0.8, cache=False)
    kernel.run(arrays)
    for name, array in arrays.items():
        wanted, found = expected[name].base, array.base
        equal = wanted == found
        if not equal.all():
            at = np.flatnonzero(~equal)[:5]
            pytest.fail(
                f"{name} differs at {at}: wanted {wanted[at]}, found {found[at]}\n{show(program)}\n{kernel.explain()}"
            )


def run_seeds(first: int, count: int) -> None:
    for seed in range(first, first + count):
        random = Random(seed)
        program, arrays = (contraction if seed % 3 else elementwise)(random)
        program = replace(program, name=f"seed {seed}")
        same(program, arrays, random)


@pytest.mark.parametrize("block", range(6))
def test_random_programs_equal_the_interpreter(block: int) -> None:
    run_seeds(1000 * block, 14)
    assert block >= 0


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_random_programs_equal_the_interpreter(block: int) -> None:
    run_seeds(100_000 + 1000 * block, 500)
    assert block >= 0
