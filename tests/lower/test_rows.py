"""Groups of rows: the rule, the operator's meaning, and the kernel, each against NumPy."""

import subprocess
import sys

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave import lower
from tileweave.backends.base import backend
from tileweave.errors import PlanError
from tileweave.graph.passes.grouping.rows import ROWS
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import FUSIONS
from tileweave.layout import strided
from tileweave.planner import machines
from tileweave.runtime import planned as planning
from tileweave.teir import Operand, emit_chain, interpret

ROUNDING = 64


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def norm(x, w, b):
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * w + b


def operators(plan) -> list[str]:
    return [operation.operator for operation in plan.graph.operations]


CASES = {
    "softmax": (lambda x, w: tw.softmax(x, -1), lambda x, w: softmax(x, -1)),
    "softmax of two axes": (lambda x, w: tw.softmax(x, (1, 2)), lambda x, w: softmax(x, (1, 2))),
    "log_softmax": (lambda x, w: tw.log_softmax(x, -1), lambda x, w: np.log(softmax(x, -1))),
    "layer_norm": (lambda x, w: g.layer_norm(x, w, w), lambda x, w: norm(x, w, w)),
    "rms_norm": (lambda x, w: g.rms_norm(x, w), lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w),
    "variance": (lambda x, w: g.variance(x, -1), lambda x, w: x.var(-1)),
    "deviation": (lambda x, w: g.standard_deviation(x, -1, keepdims=True), lambda x, w: x.std(-1, keepdims=True)),
    "sum of exp": (lambda x, w: g.sum(g.exp(x * w), -1), lambda x, w: np.exp(x * w).sum(-1)),
    "after and before": (
        lambda x, w: g.tanh(tw.softmax(x + w, -1) * 3),
        lambda x, w: np.tanh(softmax(x + w, -1) * 3),
    ),
    "scaled by the greatest": (
        lambda x, w: x / g.max(g.absolute(x), -1, keepdims=True),
        lambda x, w: x / np.abs(x).max(-1, keepdims=True),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES)
def test_one_kernel_per_row_computes_what_the_steps_do(case: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((24, 10, 300)).astype(dtype), rng.standard_normal(300).astype(dtype)
    tensor, want = CASES[case][0](tw.source(x, name="x"), tw.source(w)), CASES[case][1](x.astype("f8"), w.astype("f8"))
    plan = tw.plan(tensor)
    assert operators(plan) == ["rows"]
    assert plan.steps[0].kernel.backend == "cpu"
    near = {"rtol": ROUNDING * np.finfo(dtype).eps, "atol": ROUNDING * np.finfo(dtype).eps}
    np.testing.assert_allclose(tw.run(plan), want, **near)
    np.testing.assert_allclose(np.asarray(g.evaluate([plan.graph.sinks[0].tensor])[0]), want, **near)
    three = tw.plan(tensor, 3)
    np.testing.assert_allclose(tw.run(three), want, **near)
    assert np.asarray(tw.run(plan)).dtype == dtype


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_rows_with_special_values_are_numpys(special: float) -> None:
    x = np.random.default_rng(1).standard_normal((300, 256))
    x[3, 5], x[7] = special, special
    with np.errstate(all="ignore"):
        for tensor, want in (
            (tw.softmax(tw.source(x), -1), softmax(x, -1)),
            (g.variance(tw.source(x), -1), x.var(-1)),
            (tw.source(x) / g.max(tw.source(x), -1, keepdims=True), x / x.max(-1, keepdims=True)),
        ):
            np.testing.assert_allclose(tw.run(tensor), want, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("strides", [(0, 0), (4, 0), (0, 4)])
def test_rows_of_arrays_that_repeat_their_elements(strides: tuple[int, int]) -> None:
    """A bound array whose elements are one along a row has one value per row; the result has it everywhere."""
    memory = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    x = np.lib.stride_tricks.as_strided(memory, (64, 48), strides, writeable=False)
    source = tw.source(name="x", shape=x.shape, dtype="float32")
    for made in (tw.softmax(source, -1), tw.softmax(source, -1) + source, source - tw.sum(source, 1, keepdims=True)):
        dense = tw.run(made, bind={"x": np.ascontiguousarray(x)})
        np.testing.assert_allclose(tw.run(tw.plan(made), bind={"x": x}), dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_constant_before_a_softmax_has_the_type_of_what_it_stands_beside(dtype: str) -> None:
    rng = np.random.default_rng(6)
    x, seen = rng.standard_normal((64, 128)).astype(np.dtype(dtype)), rng.random((64, 128)) < 0.5
    for fill in (-np.inf, -5.0):
        t = tw.softmax(tw.where(tw.logical_xor(tw.source(seen), True), fill, tw.source(x) * 2.0), -1)
        plan = tw.plan(t)
        assert "rows" in operators(plan)
        want = softmax(np.where(seen, x.astype(np.float64) * 2, fill), -1)
        np.testing.assert_allclose(tw.run(plan).astype(np.float64), want, rtol=2.0**-7, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_that_count_truths_compute_the_gradient_of_a_maximum(dtype: str) -> None:
    x = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]], dtype)
    source = tw.source(x)
    gradient = tw.run(tw.grad(tw.sum(tw.max(source, 1) * 2.0), source))
    np.testing.assert_array_equal(gradient, [[0, 1, 1], [2, 0, 0]])


@pytest.mark.parametrize("strides", [(0, 0), (4, 0)])
def test_sums_of_rows_that_repeat_one_element(strides: tuple[int, int]) -> None:
    memory = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    x = np.lib.stride_tricks.as_strided(memory, (64, 48), strides, writeable=False)
    source = tw.source(x)
    for made in (tw.sum(g.exp(source), 1), g.variance(source, 1, keepdims=True), tw.max(source * 2.0, 1) + 1.0):
        np.testing.assert_allclose(tw.run(made), np.asarray(made), rtol=1e-5, atol=1e-5)


def test_what_others_read_stays_outside() -> None:
    x = tw.source(np.random.default_rng(2).standard_normal((300, 256)))
    e = g.exp(x)
    y = e / g.sum(e, -1, keepdims=True)
    assert operators(tw.plan(y)) == ["rows"]
    assert operators(tw.plan([y, e])) == ["exp", "rows"]
    one, two = tw.run([y, e])
    np.testing.assert_allclose(one, two / two.sum(-1, keepdims=True), rtol=1e-13)


def test_rows_that_are_read_elsewhere_are_not_confused() -> None:
    """A square: one value per row of shape [n] broadcasts along the other dimension without an axis of its own."""
    a = np.random.default_rng(3).standard_normal((300, 300))
    x = tw.source(a)
    np.testing.assert_allclose(tw.run(x / g.sum(g.exp(x), -1)), a / np.exp(a).sum(-1), rtol=1e-12)
    want = np.exp((a * a).sum(-1) * 1e-3) + a  # numbers about 1, some of which nearly cancel
    np.testing.assert_allclose(tw.run(g.exp(g.sum(x * x, -1) * 1e-3) + x), want, rtol=1e-12, atol=1e-14)
    full = g.full((300, 300), 2.0, "float64")
    np.testing.assert_allclose(tw.run(g.sum(x * 0 + full, -1) * 2), np.full(300, 1200.0))


def test_few_rows_and_columns_stay_apart() -> None:
    """Few: fewer than half of a machine's processors."""
    x = tw.source(np.ones((8, 40_000)))
    for cores, apart in ((1, False), (16, False), (18, True), (64, True)):
        operators_of = operators(tw.plan(tw.softmax(x, -1), tw.machines(1, cores=cores)))
        assert ("rows" not in operators_of) == apart
    assert "rows" not in operators(tw.plan(tw.softmax(tw.source(np.ones((40_000, 8))), 0)))


def test_random_groups_compute_what_the_graph_means() -> None:
    found = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shape = tuple(int(n) for n in rng.integers(2, 6, int(rng.integers(2, 4))))
        axes = tuple(sorted(rng.permutation(len(shape))[: int(rng.integers(1, len(shape)))].tolist()))
        values = [g.as_tensor(rng.standard_normal(shape)), g.as_tensor(rng.standard_normal(shape[-1:]))]
        for _ in range(8):
            a, b = (values[int(k)] for k in rng.integers(len(values), size=2))
            kind = rng.integers(5)
            if kind == 0 and a.shape == shape:
                reduce = (g.sum, g.max, g.min)[int(rng.integers(3))]
                values.append(reduce(a, axes, keepdims=bool(rng.integers(2))))
            elif kind == 1:
                values.append(g.tanh(a))
            else:
                try:
                    values.append((g.add, g.multiply, g.maximum)[int(rng.integers(3))](a, b))
                except tw.TileweaveError:
                    continue
        for rules in ((ROWS,), (*FUSIONS, ROWS)):
            done = rewrite(g.Graph.of(values[-1], values[-2]), rules)
            found += sum(operation.operator == "rows" for operation in done.graph.operations)
            for sink, value in zip(done.graph.sinks, values[:-3:-1], strict=True):
                got, want = g.evaluate([sink.tensor])[0], g.evaluate([value])[0]
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12, err_msg=f"seed {seed}")
    assert found > 30


def test_the_kernel_is_what_the_interpreter_computes() -> None:
    x, w = np.random.default_rng(4).standard_normal((7, 5, 19)), np.random.default_rng(5).standard_normal((7, 5))
    steps = [("Mul", (0, 0)), ("ReduceSum", (-1,)), ("Add", (-2, 1)), ("Sqrt", (-3,)), ("Div", (0, -4)), ("Exp", (-5,))]
    program = emit_chain(steps, [_operand(x), _operand(w)], _operand(x), axes=(2,))
    out, slow = np.empty_like(x), np.empty_like(x)
    with np.errstate(all="ignore"):
        interpret(program, {"in0": x, "in1": w, "out": slow})
        backend("cpu").compile(program, threads=2)(x, w, out)
        want = np.exp(x / np.sqrt((x * x).sum(-1, keepdims=True) + w[..., None]))
    np.testing.assert_allclose(slow, want, rtol=1e-13)
    np.testing.assert_allclose(out, want, rtol=1e-13)
    assert lower.decide(tw.softmax(tw.source(x), -1).producer, "block").kernel


def _operand(array):
    return Operand(strided(array.shape, [stride // 8 for stride in array.strides]), "FP64")


def test_rows_that_do_not_fit_the_memory_are_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group holds whole rows, its parts need not."""
    x = tw.source(np.random.default_rng(6).standard_normal((64, 512)))
    y, make_plan = g.sum(g.exp(x), -1), planning.make_plan

    def without_rows(graph, *about):
        if "rows" in [operation.operator for operation in graph.operations]:
            raise PlanError("plan(target, machines)", "whole rows do not fit", facts={"least_bytes": 4096})
        return make_plan(graph, *about)

    monkeypatch.setattr(planning, "make_plan", without_rows)
    apart = tw.plan(y)
    assert operators(apart) == ["exp", "sum"]
    np.testing.assert_allclose(tw.run(apart), np.exp(np.asarray(x)).sum(-1), rtol=1e-12)
    monkeypatch.undo()
    long = np.random.default_rng(7).standard_normal((16, 65_536))
    parts = tw.plan(tw.softmax(tw.source(long), -1), machines(1, memory="400KiB"))  # one row is 512 KiB
    assert any(step.spilled for step in parts.steps)
    exact = np.exp(long) / np.exp(long).sum(-1, keepdims=True)
    np.testing.assert_allclose(tw.run(parts), exact, rtol=1e-12)
    with pytest.raises(PlanError, match="least  "):
        tw.plan(tw.softmax(tw.source(long), -1), machines(1, memory="1KiB"))


def test_a_process_that_only_runs_kernels_knows_the_operator() -> None:
    """A worker gets operations from others, and never plans."""
    code = "import tileweave.lower; from tileweave.graph.ops.operators import OPERATORS; print('rows' in OPERATORS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_divided_by_a_root_keep_zeros_infinities_and_nan(dtype: str) -> None:
    """Elements are multiplied by the root's inverse: within one unit more than a division, special values alike."""
    big, small = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
    a = np.random.default_rng(11).standard_normal((40, 300)).astype(dtype)
    a[0], a[1, 7], a[2, 3], a[3], a[4], a[5, :2] = 0, np.inf, np.nan, small, 0, (-np.inf, np.nan)
    b = np.abs(a[:, :300]).copy()
    b[3], b[6], b[7, 5], b[8] = small, big, np.inf, 0
    x, y = tw.source(a), tw.source(b)
    made = x / tw.sqrt(g.max(y, -1, keepdims=True)) + 1
    assert "rows" in operators(tw.plan(made))
    with np.errstate(all="ignore"):
        want = (a.astype("f8") / np.sqrt(b.max(-1, keepdims=True).astype("f8")) + 1).astype(dtype)
        np.testing.assert_allclose(tw.run(made), want, rtol=4 * np.finfo(dtype).eps, atol=16 * np.finfo(dtype).eps)
