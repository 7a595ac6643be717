"""Random well-formed programs in which everything meets: overlapping tiles, shared tensors, guards, branches."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from tileweave.teir import (
    Axis,
    First,
    Invocation,
    Iteration,
    Last,
    Primitive,
    Program,
    TensorSpec,
    byte_bounds,
    interpret,
    operation,
    problems,
)

NAMES = ("x", "y", "z")
OPERATIONS = ("Zero", "Copy", "ReLU", *["Contraction"] * 5, "Add", "Max", "Bias", "Scale", "ReduceSum", "ReduceMax")
SPACE = 2048  # elements of every buffer; the base lies in the middle


def _primitive(rng: random.Random, id: str, axes: list[Axis], free: list[Axis]) -> Primitive:
    """An operation on random tensors that consumes some of the free axes, as its rules allow."""
    spec = operation(rng.choice(OPERATIONS))
    operands = tuple(rng.choice(NAMES) for _ in range(spec.inputs + 1))
    out = NAMES.index(operands[-1])
    roles: dict[str, list[str]] = {role: [] for role in spec.roles}
    for axis in free:
        if rng.random() < 0.5:
            continue
        role = rng.choice(spec.roles)
        if spec.contracted:
            moves = axis.strides[out] != 0
            role = rng.choice(["M", "N"]) if moves else "K"
        roles[role].append(str(axis.id))
    return Primitive(id, spec.name, tuple((role, tuple(ids)) for role, ids in roles.items()), operands)


def wild_program(seed: int, parallel: float = 0.0) -> Program:
    rng = random.Random(seed)
    strides, offsets = [0, 0, 4, 4, 8, 12, 16, 48, -4, -12], [0, 0, 4, 16, -8]
    axes = [
        Axis(
            name,
            rng.randint(1, 4),
            tuple(rng.choice(strides) for _ in NAMES),
            tuple(rng.choice(offsets) for _ in NAMES),
        )
        for name in "abcd"
    ]
    nodes: list[Iteration | Invocation] = []
    primitives: list[Primitive] = []

    def guard(path: list[Axis]) -> tuple[First | Last, ...]:
        if not path or rng.random() < 0.7:
            return ()
        return tuple(rng.choice([First, Last])(rng.choice(path).id) for _ in range(rng.randint(1, 2)))

    def grow(path: list[Axis]) -> str:
        left = [axis for axis in axes if axis not in path]
        if left and rng.random() < (0.95 if not path else 0.6 if len(path) < 3 else 0.0):
            axis = rng.choice(left)
            term = guard(path)
            children = tuple(grow([*path, axis]) for _ in range(rng.choice([1, 1, 2, 3])))
            id = f"n{len(nodes)}"
            policy = "parallel" if rng.random() < parallel else "sequential"
            nodes.append(Iteration(id, axis.id, children, policy, term))
            return id
        id = f"n{len(nodes)}"
        primitives.append(_primitive(rng, f"p{len(primitives)}", axes, left))
        nodes.append(Invocation(id, primitives[-1].id, guard(path)))
        return id

    roots = tuple(grow([]) for _ in range(rng.choice([1, 1, 2])))
    tensors = tuple(TensorSpec(name, "INT32", "inout") for name in NAMES)
    return Program(tensors, tuple(axes), roots, tuple(nodes), tuple(primitives))


def run_wild(program: Program, order: str = "forward", seed: int = 0) -> np.ndarray:
    """What a program leaves in its buffers, from fixed random contents."""
    rng = np.random.default_rng(7)
    buffers = rng.integers(-3, 4, (len(NAMES), SPACE)).astype(np.int32)
    views = {name: buffers[k][SPACE // 2 :] for k, name in enumerate(NAMES)}
    interpret(program, views, order=order, seed=seed)  # type: ignore[arg-type]
    return buffers


@pytest.fixture(scope="session")
def wild() -> Callable[..., Program]:
    def make(seed: int, parallel: float = 0.0) -> Program:
        program = wild_program(seed, parallel)
        found = problems(program)
        if found:
            raise RuntimeError(f"the generator made a program that is not well formed: {found[0]}")
        for low, high in byte_bounds(program).values():
            if low < -2 * SPACE or high > 2 * SPACE:
                raise RuntimeError("the generator made a program that leaves its buffers")
        return program

    return make


@pytest.fixture(scope="session")
def run() -> Callable[..., np.ndarray]:
    return run_wild
