"""Chains with reductions: several at once, begun or not, before and behind what writes their elements, in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from tests.teir.test_extensions import operand

from tileweave.backends.cpu import compile, host
from tileweave.errors import BackendError
from tileweave.layout import strided
from tileweave.teir import (
    Axis,
    First,
    Invocation,
    Iteration,
    Operand,
    Primitive,
    Program,
    TensorSpec,
    emit_contraction,
    emit_elementwise,
    emit_reduction,
    interpret,
)
from tileweave.teir.ir.extensions import NEUTRAL, REDUCTIONS
from tileweave.teir.ir.text import show

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


# ── to few results, in pieces; to large ones, past the caches ──


@pytest.mark.parametrize(
    ("shape", "equation"),
    [
        ((1 << 17,), "a->"),
        ((99_991,), "a->"),
        ((300, 401), "ab->"),
        ((3, 50_000), "ab->a"),
        ((50_000, 3), "ab->b"),
        ((9000, 12), "ab->b"),
        ((40, 5, 700), "abc->b"),
    ],
)
@pytest.mark.parametrize("monoid", ["sum", "max"])
def test_reductions_to_few_results_are_cut_into_pieces(monoid, shape, equation):
    """Every bit of the result is the same for any number of threads, also where sums are rounded."""
    rng = np.random.default_rng(6)
    letters, kept = equation.split("->")
    x = rng.standard_normal(shape).astype("f4")[..., ::-1]
    before = rng.standard_normal([shape[letters.index(c)] for c in kept]).astype("f4")
    over = tuple(k for k, c in enumerate(letters) if c not in kept)
    wide = getattr(x.astype("f8"), monoid)(over)
    for accumulate in (False, True):
        expected = {"sum": wide + before, "max": np.maximum(wide, before)}[monoid] if accumulate else wide
        program = emit_reduction(monoid, operand(x), operand(before), equation, accumulate=accumulate)
        results = []
        for threads in (1, 2, 5):
            out = before.copy()
            kernel = compile(program, threads=threads, cache=False)
            kernel(x, out)
            results.append(out)
        assert "part0" in kernel.source
        np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-4)
        assert all(np.array_equal(results[0], one) for one in results)


def test_several_reductions_behind_a_function_are_cut_into_pieces():
    """The sum, the sum of squares and the least of what is written, each begun or not."""
    extent = 70_001
    x = np.random.default_rng(8).integers(-3, 4, extent, "i4")
    names = ("in0", "out", "sum", "squares", "least")
    axes = (Axis("n", extent, (4, 4, 0, 0, 0), (0, 0, 0, 0, 0)),)
    each, all_of = (("M", ()), ("N", ("n",))), (("M", ()), ("N", ()), ("K", ("n",)))
    primitives = (
        Primitive("zero", "Zero", (("M", ()), ("N", ())), ("squares",)),
        Primitive("double", "Add", each, ("in0", "in0", "out")),
        Primitive("add", "ReduceSum", all_of, ("out", "sum")),
        Primitive("square", "Contraction", all_of, ("in0", "out", "squares")),
        Primitive("lessen", "ReduceMin", all_of, ("out", "least")),
    )
    nodes = tuple(Invocation(p.id, p.id) for p in primitives)
    specs = tuple(TensorSpec(name, "INT32", "in" if name == "in0" else "inout") for name in names)
    kernel = compile(Program(specs, axes, tuple(p.id for p in primitives), nodes, primitives), threads=2, cache=False)
    out, total, squares, least = np.zeros(extent, "i4"), *(np.full((), 5, "i4") for _ in range(3))
    kernel(x, out, total, squares, least)
    assert kernel.explain().startswith("Add; ReduceSum; Contraction; ReduceMin(")
    assert "part0" in kernel.source
    np.testing.assert_array_equal(out, 2 * x)
    assert (total, squares, least) == (5 + 2 * x.sum(), 2 * (x * x).sum(), -6)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize(
    ("shape", "equation"),
    [
        ((64, 1024), "ab->a"),
        ((65, 1031), "ab->a"),
        ((3, 67, 900), "abc->ab"),
        ((129, 3, 700), "abc->ab"),
        ((67, 5, 512), "abc->a"),
        ((65, 131, 20), "abc->ab"),
        ((140, 3, 1024), "abc->ac"),
    ],
)
def test_rows_that_no_cache_holds_are_summed_two_at_a_time(dtype, shape, equation):
    """Exactly, an odd number of them too, begun or not, alone or as products, behind a function or not."""
    tiny = replace(host(), l1_bytes=1 << 12, l2_bytes=1 << 13, l3_bytes=1 << 14)
    rng = np.random.default_rng(4)
    x, y = (rng.integers(-9, 10, shape).astype(dtype) for _ in range(2))
    letters, kept = equation.split("->")
    before = rng.integers(-9, 10, [shape[letters.index(c)] for c in kept]).astype(dtype)
    total, products = (np.einsum(equation, array) for array in (x, x * y))
    for threads in (1, 3):
        for accumulate in (False, True):
            out = before.copy()
            program = emit_reduction("sum", operand(x), operand(out), equation, accumulate=accumulate)
            compile(program, target=tiny, threads=threads, cache=False)(x, out)
            np.testing.assert_array_equal(out, total + before * accumulate)
        out = before.copy()
        program = emit_contraction(f"{letters},{letters}->{kept}", (operand(x), operand(y)), operand(out))
        compile(program, target=tiny, threads=threads, cache=False)(x, y, out)
        np.testing.assert_array_equal(out, products)


def test_only_rows_that_no_cache_holds_are_read_as_two_streams():
    x, s = np.ones((64, 1024), "f4"), np.zeros(64, "f4")
    program = emit_reduction("sum", operand(x), operand(s), "ab->a")
    caches = (1 << 14, x.nbytes, x.nbytes + 1, 1 << 40)
    made = [compile(program, target=replace(host(), l3_bytes=size), threads=1, cache=False).source for size in caches]
    assert made[0] == made[1] != made[2] == made[3]


def test_a_processor_without_a_last_cache_sums_what_a_chain_has_written():
    """No operand is read that the chain has not written itself: there is nothing to read as two streams."""
    axes = (Axis("r", 64, (160, 4), (0, 0)), Axis("c", 40, (4, 0), (0, 0)))
    tensors = (TensorSpec("x", "INT32", "inout"), TensorSpec("s", "INT32", "inout"))
    negate = Primitive("negate", "Neg", (("M", ()), ("N", ("r", "c"))), ("x", "x"))
    take = Primitive("take", "ReduceSum", (("M", ()), ("N", ("r",)), ("K", ("c",))), ("x", "s"))
    program = Program(tensors, axes, ("a", "b"), (Invocation("a", "negate"), Invocation("b", "take")), (negate, take))
    x, s = np.arange(64 * 40, dtype="i4").reshape(64, 40), np.ones(64, "i4")
    total = x.sum(axis=1)
    compile(program, target=replace(host(), l3_bytes=0), cache=False)(x, s)
    np.testing.assert_array_equal(s, 1 - total)


@pytest.mark.skipif(not host().has("sse2"), reason="stores past the caches are those of x86")
@pytest.mark.parametrize("shape", [(20_000,), (33_333,), (7, 5000), (3, 8, 2000), (40, 1031)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i1"])
def test_outputs_that_no_cache_holds_go_past_them(dtype, shape):
    """At any address, in place or not; bytes around the output stay."""
    tiny = replace(host(), l1_bytes=1 << 12, l2_bytes=1 << 13, l3_bytes=1 << 14)
    rng = np.random.default_rng(2)
    x, y = (rng.integers(-9, 9, shape).astype(dtype) for _ in range(2))
    program = emit_elementwise("Add", [operand(x), operand(y)], operand(x))
    kernel = compile(program, target=tiny, threads=2, cache=False)
    assert "nontemporal" in kernel.source
    for shift in (64, 65, 68, 88):
        store = np.full(x.nbytes + 200, 0xA5, "u1")
        out = store[shift : shift + x.nbytes].view(dtype).reshape(shape)
        kernel(x, y, out)
        np.testing.assert_array_equal(out, x + y)
        assert (store[:shift] == 0xA5).all()
        assert (store[shift + x.nbytes :] == 0xA5).all()
    held = x.copy()
    kernel(held, y, held)
    np.testing.assert_array_equal(held, x + y)


@pytest.mark.parametrize("itself", [False, True])
def test_lines_are_asked_for_that_the_second_cache_does_not_hold_and_the_processor_does_not_fetch(itself):
    x = np.ones((64, 1024), "f4")
    features = host().features.replace("+sse4a", "-sse4a") + (",+sse4a" if itself and host().has("sse4a") else "")
    target = replace(host(), features=features)
    program = emit_elementwise("Add", [operand(x), operand(x)], operand(x))
    for l2_bytes in (3 * x.nbytes - 1, 3 * x.nbytes):
        kernel = compile(program, target=replace(target, l2_bytes=l2_bytes), threads=1, cache=False)
        assert ("llvm.prefetch" in kernel.source) == (l2_bytes < 3 * x.nbytes and not target.fetches_ahead)


@pytest.mark.parametrize("equation", ["i,i->i", "ij,ij->i", "ij,ij->ij"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("still", [False, True])
def test_products_of_elements_and_dot_products_start_at_a_bias(equation, relu, still):
    """Also at a bias that is the same for all results."""
    rng = np.random.default_rng(3)
    left, result = equation.split(",")[0], equation.split("->")[1]
    shape, wide = (tuple({"i": 37, "j": 19}[letter] for letter in letters) for letters in (left, result))
    a, b = (rng.integers(-9, 9, shape).astype("f4") for _ in range(2))
    bias, out = rng.integers(-9, 9, () if still else wide).astype("f4"), np.full(wide, np.nan, "f4")
    start = Operand(strided(wide, (0,) * len(wide)), "FP32") if still else operand(bias)
    program = emit_contraction(equation, (operand(a), operand(b)), operand(out), init=start, relu=relu)
    compile(program, cache=False)(a, b, out, bias)
    wanted = np.einsum(equation, a, b) + bias
    np.testing.assert_array_equal(out, np.maximum(wanted, 0) if relu else wanted)


def test_a_long_chain_is_cut():
    """Seventy negations in place are the identity, in chains of a bounded number of stages."""
    program = nest([("Neg", ("x", "x"), "")] * 70, {"x": DENSE})
    check(program)
    lines = compile(program, cache=False).explain().splitlines()
    assert [line.count("Neg") for line in lines if "Neg" in line] == [32, 32, 6]
