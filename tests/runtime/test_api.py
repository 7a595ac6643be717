"""The main job's verbs: what they accept, what they refuse, what they leave behind."""

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave import lower, planner
from tileweave.errors import GraphError, PlanError, StorageError, TileweaveError
from tileweave.planner import machines
from tileweave.runtime import api, planned
from tileweave.runtime.session import Session, session


def test_results_of_empty_reductions_can_be_used():
    cases = [
        (tw.sum(np.ones((0, 3)), 0) * 2, np.zeros(3)),
        (tw.matmul(np.ones((2, 0)), np.ones((0, 3)))[1:] * 2, np.zeros((1, 3))),
        (tw.linear(np.ones((2, 0)), np.ones((0, 3)), np.arange(3.0)) + 1, np.arange(3.0) + np.ones((2, 1))),
        (tw.exp(np.ones((0, 3)))[:, 1:] + 1, np.ones((0, 2))),
        (tw.sum(np.ones(()), ()), np.ones(())),
    ]
    for tensor, want in cases:
        for count in (1, 3):
            got = tw.run(tensor, machines=count)
            np.testing.assert_array_equal(got, want)
            assert got.shape == want.shape


def test_narrow_floats_are_not_rounded_between_partial_sums():
    x = np.array([60000] * 8 + [-60000] * 8, np.float16)
    assert tw.run(tw.sum(x), machines=machines(4, flops_per_second=1.0)) == 0
    assert tw.run(tw.mean(np.ones(70000, np.float16))) == 1


def test_a_fused_graph_goes_with_its_plan_and_its_arrays() -> None:
    """What it was fused from, and what was fused of it, used to keep each other for ever."""
    for how in (lambda x: tw.softmax(x, -1), lambda x: tw.exp(x) * 2.0 + x):
        array = np.linspace(0, 1, 400 * 300, dtype=np.float32).reshape(400, 300)
        tensor = how(tw.source(array))
        held = weakref.ref(array)
        tw.run(tensor)
        graph = weakref.ref(tw.plan(tensor).graph)
        del tensor, array
        gc.collect()
        assert held() is None and graph() is None


def test_what_ran_is_freed_with_its_graph():
    array = np.ones((64, 64))
    tensor = tw.exp(tw.source(array) @ tw.source(array))
    tw.run(tensor, machines=2)
    seen = weakref.ref(tensor)
    held = weakref.ref(array)
    del tensor, array
    gc.collect()
    assert seen() is None
    assert held() is None


def test_whatever_ran_is_freed_once_nobody_can_run_it_again():
    for count in (1, 3):
        held = []
        for make in (
            lambda x: tw.softmax(x * 2.0, -1),  # fused
            tw.exp,
            tw.transpose,  # a view, computed by nobody
            lambda x: tw.source(x),
            lambda x: [tw.exp(x), tw.sum(x * 3, 0)],
            lambda x: [x + 1, tw.exp(x + 1)],  # one reads the other
            lambda x: tw.top_k(x, 2),
            lambda x: [tw.top_k(x, 2)[1]],
            lambda x: g.Graph.of(x @ x, tw.relu(x @ x)),
        ):
            array = np.random.default_rng(0).standard_normal((16, 16))
            target = make(tw.source(array))
            want = tw.run(target, machines=count)
            got = tw.run(target, machines=count)
            np.testing.assert_equal(got, want)
            held.append(weakref.ref(array))
            del array, target
        gc.collect()
        assert [one() is None for one in held] == [True] * len(held)


def test_a_tensor_is_planned_once_for_all_its_runs(monkeypatch):
    x = tw.source(shape=(8, 8), dtype="float32", name="x")
    y = tw.softmax(x + 1, -1)
    whole, made = g.Graph.of(y), []
    monkeypatch.setattr("tileweave.runtime.api.whole", lambda *given: made.append(1) or planned.whole(*given))
    for k in range(3):
        bound = {"x": np.full((8, 8), k, np.float32)}
        for target in (y, [y], (y, y), whole):
            got = tw.run(target, bind=bound)
            for one in got if isinstance(target, (list, tuple)) else [got]:
                np.testing.assert_allclose(one, np.full((8, 8), 1 / 8), rtol=1e-6)
    assert len(made) == 2  # of (y, y) another


def test_a_plan_is_made_once_per_graph_and_machines():
    y = tw.exp(np.ones((8, 8)))
    first, second = tw.plan(y, machines=2), tw.plan(y, machines=2)
    assert first.steps is second.steps
    assert tw.plan(y, machines=4).steps is not first.steps


def test_foreign_byte_order_becomes_native():
    x = np.arange(3).astype(">f4")
    got = tw.run(tw.relu(tw.source(x) - 1))
    np.testing.assert_array_equal(got, [0, 0, 1])
    assert got.dtype == np.float32


def test_a_tensor_that_is_asked_for_twice_comes_twice():
    y = tw.exp(np.zeros(3))
    first, second = tw.run([y, y])
    np.testing.assert_array_equal(first, np.ones(3))
    np.testing.assert_array_equal(second, np.ones(3))
    assert first is not second


def test_holes_are_bound_by_name_or_by_tensor():
    x = tw.source(name="x", shape=(2,), dtype=np.int64)
    plan = tw.plan(x * 3)
    np.testing.assert_array_equal(tw.run(plan, bind={"x": [1, 2]}), [3, 6])
    np.testing.assert_array_equal(tw.run(plan, bind={x: np.array([5, 6])}), [15, 18])
    with pytest.raises(GraphError, match="source 'x' is bound twice"):
        tw.run(plan, bind={x: np.array([5, 6]), "x": np.array([1, 2])})


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ({}, "has no data"),
        ({"y": [1, 2]}, "not one source"),
        ({"x": [1.5, 2.7]}, "float64"),
        ({"x": [1, 2, 3]}, r"shape \(3,\)"),
        ({"x": [[1], [2, 3]]}, "no array"),
        ({"x": "ab"}, "not supported"),
    ],
)
def test_what_does_not_fit_a_hole_is_refused(bind, said):
    x = tw.source(name="x", shape=(2,), dtype=np.int64)
    with pytest.raises(TileweaveError, match=said):
        tw.run(x * 3, bind=bind)


@pytest.mark.parametrize("target", [5, None, "text", [], [3], {}])
def test_what_cannot_be_computed_is_refused(target):
    with pytest.raises(GraphError):
        tw.run(target)


def test_a_plan_keeps_its_machines():
    plan = tw.plan(tw.exp(np.ones(3)))
    with pytest.raises(PlanError, match="machines already"):
        tw.run(plan, machines=8)


@pytest.mark.parametrize(
    "arguments", [{}, {"shape": (2,)}, {"dtype": "f4"}, {"data": np.ones(2), "shape": (2,), "dtype": "f4"}]
)
def test_a_hole_is_told_by_shape_and_dtype_alone(arguments):
    with pytest.raises(GraphError):
        tw.source(**arguments)


def test_placements_outside_the_machines_are_refused():
    with pytest.raises(PlanError, match="placed on machine 9"):
        tw.plan(tw.exp(tw.source(np.ones(3), placement=9)), machines=2)


def test_a_pinned_source_moves_to_the_machines_that_read_it():
    x = np.ones((8, 8))
    free = tw.plan(tw.exp(tw.source(x)), machines=2)
    pinned = tw.plan(tw.exp(tw.source(x, placement=0)), machines=2)
    assert (free.bytes_moved, free.bytes_read) == (0, x.nbytes)
    assert pinned.bytes_read == 0
    assert pinned.bytes_moved == (x.nbytes // 2 if pinned.steps[0].cuts.count == 2 else 0)


def test_the_command_line_is_obeyed_in_a_programs_threads():
    seen = []
    y = tw.exp(np.ones((8, 8)))

    def work():
        seen.append(len(tw.plan(y).machines))

    with session(Session(machines=lambda asked: machines(3))):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert seen == [3, 1]


@pytest.mark.parametrize("reader", ["strided", "joined"])
def test_the_planned_peak_holds_for_files(tmp_path, reader):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 512, 64))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    fa, fb = tw.source(tmp_path / "a.npy"), tw.source(tmp_path / "b.npy")
    if reader == "strided":
        y, want = tw.sum(fa[::8], 0), a[::8].sum(0)
    else:
        y, want = tw.sum(tw.concat([fa, fb], 0), 0), np.concatenate([a, b]).sum(0)
    plan = tw.plan(y)
    least = a.nbytes - 7 * 64 * 8 if reader == "strided" else 3 * a.nbytes
    assert plan.peak_bytes[0] == least + want.nbytes
    np.testing.assert_allclose(tw.run(plan), want)


def test_one_sink_feeds_the_next_in_order(tmp_path):
    first = tw.exp(np.ones(4))
    done = g.SequencePoint((g.Sink(first, g.FileTarget(str(tmp_path / "first.npy"), "npy")),))
    late = tw.relu(tw.source(np.ones(4))).producer
    after = g.Operation(late.operator, late.index, late.inputs, late.outputs, late.parameters, late.signature, (done,))
    np.testing.assert_array_equal(tw.run(g.Tensor(after)), np.ones(4))
    np.testing.assert_array_equal(np.load(tmp_path / "first.npy"), np.exp(np.ones(4)))


def operators(tensor, **options):
    return [operation.operator for operation in tw.plan(tensor, **options).graph.operations]


def test_a_large_chain_takes_in_only_what_is_compiled():
    x = tw.source(np.linspace(-3, 3, lower.ELEMENTS, dtype="f4"))
    mixed = g.cosh(g.tanh(x) + g.exp(g.arctan(x)) * 2)
    assert operators(mixed) == ["arctan", "fused", "cosh"]
    assert operators(mixed, fuse=False) == ["tanh", "arctan", "exp", "multiply", "add", "cosh"]
    assert str(lower.decide(tw.plan(mixed).graph.operations[1], "block")) == "cpu: exp, mul, tanh, add"
    np.testing.assert_allclose(tw.run(mixed, machines=3), np.asarray(mixed), rtol=1e-5)
    few = tw.source(np.linspace(-3, 3, 100, dtype="f4"))  # nothing of it is compiled, and one task is less work
    assert operators(g.cosh(g.tanh(few) + g.exp(g.arctan(few)) * 2)) == ["fused"]
    late = g.maximum(g.arctan(x), g.exp(-x) + 1)  # its first input has no code, its second has
    assert operators(late) == ["arctan", "fused"]
    assert str(lower.decide(tw.plan(late).graph.operations[1], "block")) == "cpu: neg, exp, add, max"
    np.testing.assert_allclose(tw.run(late), np.asarray(late), rtol=1e-6)


@pytest.mark.parametrize("machines", [1, 3])
def test_relu_joins_a_product_without_a_bias(machines):
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, shape).astype("f4") for shape in ((2, 30, 40), (40, 20)))
    tensor = tw.relu(tw.source(x) @ tw.source(w))
    assert operators(tensor) == ["linear_relu"]
    np.testing.assert_array_equal(tw.run(tensor, machines=machines), np.maximum(x @ w, 0))
    product = tw.source(x) @ tw.source(w)
    assert "linear_relu" not in operators([tw.relu(product), product])  # it is read twice


@pytest.mark.parametrize("machines", [1, 3])
def test_sinks_that_are_cut_write_one_result(tmp_path, machines):
    """Files and arrays, in order, as the whole graph gives them; or nothing at all."""
    x = tw.source(np.arange(24.0).reshape(6, 4))
    files = [tw.sink(x + 1, tmp_path / "a.npy"), tw.sink(tw.sum(x, 0), tmp_path / "b.npz", key="total")]
    whole = g.Graph.of(tw.exp(x), files[0], x * 2, files[1], tw.exp(x))
    cuts = {node: g.partition(node, (2,) * len(node.tensor.shape)) for node in whole.sinks}
    cuts |= {node: g.partition(node, (3,) + (1,) * (node.index.rank - 1)) for node in whole.operations}
    sharded = g.expand(whole, cuts)
    assert len(sharded.sinks) == 4 * 4 + 2
    plan = tw.plan(sharded, machines)
    assert len(plan.graph.sinks) == 5 and tw.plan(sharded, machines).graph is plan.graph
    one, first, two, second, again = tw.run(plan)
    np.testing.assert_allclose(one, np.exp(np.asarray(x)))
    np.testing.assert_array_equal(two, np.asarray(x) * 2)
    np.testing.assert_array_equal(one, again)
    assert (first, second) == (str(tmp_path / "a.npy"), str(tmp_path / "b.npz"))
    np.testing.assert_array_equal(np.load(first), np.asarray(x) + 1)
    np.testing.assert_array_equal(np.load(second)["total"], np.asarray(x).sum(0))
    with pytest.raises(StorageError, match="it exists"):
        tw.run(sharded)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: tw.source(shape="ab", dtype="f4"), "source(shape): 'ab' is not a shape"),
        (lambda x: tw.source(shape=(1.5,), dtype="f4"), "source(shape): (1.5,) is not a shape"),
        (lambda x: tw.source(shape=1.5, dtype="f4"), "source(shape): 1.5 is not a shape"),
        (lambda x: tw.source(shape=(-1,), dtype="f4"), "source(shape): (-1,) is not a shape"),
        (lambda x: tw.source(shape=(2,), dtype="frob"), "source(dtype): 'frob' is not an element type"),
        (lambda x: tw.source(shape=(2,), dtype="complex64"), "source(dtype): element type complex64"),
        (lambda x: tw.source([[1, 2], [3]]), "source(data): NumPy reads no array in it"),
        (lambda x: tw.source(np.ones(2), name=3), "name=3 is not a text"),
        (lambda x: tw.source(np.ones(2), placement="x"), "placement='x' is no machine"),
        (lambda x: tw.sink("x.npy", x), "is not a path\n  legal  the tensor, then a path"),
        (lambda x: tw.sink(x, "x.npz", key=3), "key=3 is not a text"),
        (lambda x: tw.sink(x, "x.npz", overwrite="yes"), "overwrite='yes' is neither yes nor no"),
        (lambda x: tw.run(x, threads="2"), "run(plan, threads): '2' threads cannot work"),
        (lambda x: tw.run(x, threads=1.5), "1.5 threads cannot work"),
        (lambda x: tw.run(x, threads=True), "True threads cannot work"),
        (lambda x: tw.run(x, bind=[np.ones(2)]), "is no mapping"),
        (lambda x: tw.run(x, listeners=print), "are no listeners"),
        (lambda x: tw.run(x, listeners=[3]), "[3] are no listeners"),
        (lambda x: tw.plan(x, x), "are no machines\n  legal  plan([a, b]) for several"),
    ],
)
def test_arguments_of_another_kind_are_refused(call, said):
    with pytest.raises(TileweaveError) as caught:
        call(tw.source(np.ones((2, 3))) + 1)
    assert said in str(caught.value)


def test_the_shape_of_a_hole_may_be_one_number():
    assert tw.source(shape=3, dtype="f4").shape == (3,)
    assert tw.source(shape=np.array([2, 3]), dtype=np.int64).shape == (2, 3)


@pytest.mark.parametrize("options", [{}, {"machines": 2}, {"objective": "words"}])
def test_a_plan_of_a_sequence_gives_what_a_run_of_it_gives(tmp_path: Path, options: dict[str, Any]) -> None:
    x = tw.source(np.arange(6.0).reshape(2, 3)) * 2
    for target in (x, [x], (x,), [x, x + 1]):
        made = tw.plan(target, **options)
        made.save(str(tmp_path / "plan.json"))
        found = [
            tw.run(target),
            tw.run(made),
            tw.run(made),
            tw.run(planner.load(str(tmp_path / "plan.json"), made.graph)),
        ]
        assert {type(one) for one in found} == {np.ndarray if target is x else list}
        for one in found:
            np.testing.assert_array_equal(np.asarray(one), np.asarray(found[0]))
    assert tw.plan([x]) == tw.plan(x)


def test_an_expression_that_is_written_anew_is_planned_once(monkeypatch):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    rng = np.random.default_rng(seed)
    made = []
    monkeypatch.setattr("tileweave.runtime.api.whole", lambda *given: made.append(1) or planned.whole(*given))
    fixed = rng.standard_normal((5, 7))
    fixed.flags.writeable = False
    for _ in range(4):
        x, y = rng.standard_normal((6, 5)), rng.standard_normal((6, 5))
        a, b = tw.source(x, name="a"), tw.source(y)
        z = tw.relu((a * 3 - b) @ fixed)  # the product of two sources of one type: which is which matters
        want = np.maximum((x * 3 - y) @ fixed, 0)
        np.testing.assert_allclose(tw.run(z), want, atol=1e-12)
        other = rng.standard_normal((6, 5))
        swapped = np.maximum((other * 3 - y) @ fixed, 0)
        for bound in ({"a": other}, {a: other}):
            np.testing.assert_allclose(tw.run(z, bind=bound), swapped, atol=1e-12)
        np.testing.assert_allclose(tw.run(z, bind={b: x}), np.maximum((x * 2) @ fixed, 0), atol=1e-12)
        out = np.empty((6, 7))
        assert tw.run(z, out=out) is out
        np.testing.assert_allclose(out, want, atol=1e-12)
        with pytest.raises(GraphError, match="bound twice"):
            tw.run(z, bind={"a": other, a: other})
        with pytest.raises(GraphError, match="not one source"):
            tw.run(z, bind={"c": other})
        with pytest.raises(GraphError, match="has shape"):
            tw.run(z, bind={"a": other[:3]})
        x[...] = 0  # an array that can be written is read anew
        np.testing.assert_allclose(tw.run(z), np.maximum(-y @ fixed, 0), atol=1e-12)
    assert len(made) == 1
    with pytest.raises(GraphError, match="no data"):
        tw.run(tw.exp(tw.source(shape=(2, 2), dtype="float32", name="h")))


def test_plans_that_are_kept_hold_few_bytes():
    held = []
    for k in range(80):
        array = np.ones((1 << 18, 1 + k % 40), np.float32)
        tw.run(tw.exp(tw.source(array)) + k)
        held.append(weakref.ref(array))
        del array
    gc.collect()
    assert not any(one() is not None for one in held)
    assert sum(size for _, size in api._RECENT.values()) <= api.RECENT_BYTES and len(api._RECENT) <= api.RECENT_PLANS
