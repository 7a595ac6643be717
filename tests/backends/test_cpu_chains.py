"""Chains with reductions: several at once, begun or not, before and behind what writes their elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
import pytest

from tileweave.backends.cpu import compile
from tileweave.errors import BackendError
from tileweave.teir import (
    Axis,
    First,
    Invocation,
    Iteration,
    Primitive,
    Program,
    TensorSpec,
    interpret,
)
from tileweave.teir.extensions import NEUTRAL, REDUCTIONS
from tileweave.teir.text import show

ROWS, COLUMNS = 3, 19
DENSE, UPRIGHT = {"r": 4 * COLUMNS, "c": 4}, {"r": 4, "c": 4 * ROWS}
Call = tuple[str, tuple[str, ...], str]
"""An operation, its operands, and the axes that it reduces."""


def nest(calls: Sequence[Call], strides: dict[str, dict[str, int]], dtype: str = "INT32") -> Program:
    """Operations one after the other over rows and columns, of tensors that move along some of these axes."""
    axes = tuple(
        Axis(name, extent, tuple(moves.get(name, 0) for moves in strides.values()), (0,) * len(strides))
        for name, extent in (("r", ROWS), ("c", COLUMNS))
    )
    tensors = tuple(TensorSpec(name, dtype, "inout") for name in strides)
    primitives = []
    for k, (kind, operands, reduced) in enumerate(calls):
        moving = tuple(axis for axis in strides[operands[-1]] if axis not in reduced)
        roles = [("M", ()), ("N", moving)] + ([("K", tuple(reduced))] if reduced else [])
        primitives.append(Primitive(f"p{k}", kind, tuple(roles), operands))
    nodes = tuple(Invocation(f"i{k}", f"p{k}") for k in range(len(calls)))
    return Program(tensors, axes, tuple(node.id for node in nodes), nodes, tuple(primitives))


def check(program: Program, plan: str | None = None) -> None:
    """Compiled code leaves in every tensor what the interpreter leaves; and the plan is this one chain."""
    rng = np.random.default_rng(1)
    arrays = {spec.name: rng.integers(-9, 10, 2 * ROWS * COLUMNS, "i4") for spec in program.tensors}
    expected = {name: array.copy() for name, array in arrays.items()}
    interpret(program, expected)
    kernel = compile(program, cache=False)
    kernel.run(arrays)
    if plan is not None:
        assert kernel.explain().split("(")[0] == plan
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=f"{name}\n{show(program)}\n{kernel.explain()}")


@pytest.mark.parametrize("order", [DENSE, UPRIGHT], ids=["dense", "upright"])
@pytest.mark.parametrize("reduced", ["r", "c", "rc"])
@pytest.mark.parametrize("begun", list(product((False, True), repeat=3)))
def test_each_of_several_reductions_begins_at_its_own(begun, reduced, order):
    strides = {"in0": order}
    fills, calls = list[Call](), list[Call]()
    for k, (monoid, starts) in enumerate(zip(("sum", "max", "min"), begun, strict=True)):
        strides[f"t{k}"] = {axis: 4 * (k + 1) for axis in "rc" if axis not in reduced}
        fills += [(NEUTRAL[monoid], (f"t{k}",), "")] * starts
        calls += [(REDUCTIONS[monoid], ("in0", f"t{k}"), reduced)]
    check(nest(fills + calls, strides), "ReduceSum; ReduceMax; ReduceMin")


@pytest.mark.parametrize("order", [DENSE, UPRIGHT], ids=["dense", "upright"])
@pytest.mark.parametrize("reduced", ["r", "c", "rc"])
@pytest.mark.parametrize("writes", ["Copy", "ReLU", "Add", "Bias"])
def test_a_reduction_takes_an_element_before_a_later_stage_overwrites_it(writes, reduced, order):
    strides = {"in0": order, "in1": order, "t": {axis: 4 for axis in "rc" if axis not in reduced}}
    last = {"Copy": ("in1", "in0"), "ReLU": ("in0", "in0"), "Add": ("in0", "in1", "in0"), "Bias": ("in1", "in0")}
    strides["u"] = {axis: 2 * stride for axis, stride in strides["t"].items()}
    calls = [("ReduceSum", ("in0", "t"), reduced), (writes, last[writes], ""), ("ReduceMax", ("in0", "u"), reduced)]
    check(nest(calls, strides), f"ReduceSum; {writes}; ReduceMax")
    check(nest([calls[1], calls[0], calls[2]], strides), f"{writes}; ReduceSum; ReduceMax")


def test_a_reduction_of_what_another_has_found_is_no_part_of_its_chain():
    strides = {"in0": DENSE, "t": {"r": 4}, "u": {"r": 8}}
    calls = [("ReduceSum", ("in0", "t"), "c"), ("Add", ("in0", "t", "in0"), ""), ("ReduceMax", ("in0", "u"), "c")]
    check(nest(calls, strides))
    check(nest([("ReduceSum", ("in0", "t"), "c"), ("ReduceMax", ("in0", "t"), "c")], strides))


def test_results_of_two_reductions_are_separate_arrays():
    strides = {"in0": DENSE, "t": {"r": 4}, "u": {"r": 4}}
    program = nest([("ReduceSum", ("in0", "t"), "c"), ("ReduceMax", ("in0", "u"), "c")], strides)
    x, out = np.zeros((ROWS, COLUMNS), "i4"), np.zeros(ROWS, "i4")
    with pytest.raises(BackendError, match="'t' and 'u' share memory"):
        compile(program)(x, out, out)
    check(program, "ReduceSum; ReduceMax")


@pytest.mark.parametrize("loops", [order for n in range(5) for order in permutations("mkpn", n)], ids="".join)
@pytest.mark.parametrize("monoid", ["sum", "max"])
def test_a_start_under_a_guard_is_no_pass_of_its_own(monoid, loops):
    """Whatever loops there are, and in whatever order; m and n are kept, k and p reduced."""
    extents = {"m": 3, "k": 4, "p": 1, "n": 5}
    strides = {"m": (80, 20), "k": (20, 0), "p": (4, 0), "n": (4, 4)}
    axes = tuple(Axis(name, extent, strides[name], (0, 0)) for name, extent in extents.items())
    inside = {role: tuple(c for c in names if c not in loops) for role, names in (("M", "m"), ("N", "n"), ("K", "kp"))}
    start = Primitive("start", NEUTRAL[monoid], (("M", inside["M"]), ("N", inside["N"])), ("out",))
    take = Primitive("take", REDUCTIONS[monoid], tuple(inside.items()), ("in0", "out"))
    guard = tuple(First(c) for c in loops if c in "kp")
    nodes: list[Iteration | Invocation] = [Invocation("start", "start", guard), Invocation("take", "take")]
    below: tuple[str, ...] = ("start", "take")
    for c in reversed(loops):
        nodes.append(Iteration(c, c, below, "sequential"))
        below = (c,)
    specs = (TensorSpec("in0", "INT32", "in"), TensorSpec("out", "INT32", "out"))
    program = Program(specs, axes, below, tuple(nodes), (start, take))
    x, out = np.random.default_rng(3).integers(-9, 10, (3, 4, 5), "i4"), np.full((3, 5), 77, "i4")
    kernel = compile(program, cache=False)
    kernel(x, out)
    assert len(kernel.explain().splitlines()) == 1
    np.testing.assert_array_equal(out, getattr(x, monoid)(1))


def test_a_guarded_start_is_written_where_its_loop_stays():
    """Rows are copied, which keeps the loop, and summed; the sums start in the first turn of it."""
    axes = (Axis("k", 4, (24, 0, 24), (0, 0, 0)), Axis("n", 6, (4, 4, 4), (0, 0, 0)))
    specs = (TensorSpec("in0", "INT32", "in"), TensorSpec("sum", "INT32", "inout"), TensorSpec("out", "INT32", "out"))
    roles = (("M", ()), ("N", ("n",)))
    primitives = (
        Primitive("zero", "Zero", roles, ("sum",)),
        Primitive("add", "ReduceSum", (*roles, ("K", ())), ("in0", "sum")),
        Primitive("copy", "Copy", roles, ("sum", "out")),
    )
    leaves = (Invocation("i0", "zero", (First("k"),)), Invocation("i1", "add"), Invocation("i2", "copy"))
    loop = Iteration("l", "k", ("i0", "i1", "i2"), "sequential")
    program = Program(specs, axes, ("l",), (loop, *leaves), primitives)
    x, total, out = np.arange(24, dtype="i4").reshape(4, 6), np.full(6, 9, "i4"), np.zeros((4, 6), "i4")
    kernel = compile(program, cache=False)
    kernel(x, total, out)
    assert kernel.explain().splitlines()[1].startswith("    Zero(sum)  6  [first(k)]")
    np.testing.assert_array_equal(out, x.cumsum(0))
