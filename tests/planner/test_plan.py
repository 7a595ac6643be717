"""Plans: cuts, tasks, costs. The oracle for values is the NumPy evaluator; for bytes, counting points."""

import itertools
import json
import random
from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph

from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.errors import PlanError, VerifyError
from tileweave.graph.ir.resolve import view
from tileweave.graph.ops.monoids import MONOIDS
from tileweave.graph.ops.operators import operator_of
from tileweave.planner import Machine, Machines, machines, make_plan, placement, simulate, tasks
from tileweave.planner.plan import Plan
from tileweave.planner.show.explain import cuts_text
from tileweave.planner.simulate import costed
from tileweave.planner.steps import Waves, candidates, steps_of
from tileweave.space import Box


def decide(operation, stage):
    return Decision(stage)


def plan_of(*tensors, count=4, memory="1GiB", **rates):
    return make_plan(g.Graph.of(*tensors), machines(count, memory=memory, **rates), decide)


def mlp(rng, batch=37, dims=(11, 7, 5)):
    a, b, c = dims
    x, w1, b1, w2 = (g.as_tensor(rng.standard_normal(s)) for s in ((batch, a), (a, b), (b,), (b, c)))
    return g.softmax(g.matmul(g.relu(g.linear(x, w1, b1)), w2))


def run_by_tasks(plan: Plan):
    """A plan executed by its tasks alone, each from the blocks that it names: the meaning of `tasks`."""
    made = tasks(plan)
    blocks: dict[int, np.ndarray] = {}
    results = {sink: np.empty(sink.tensor.shape, sink.tensor.dtype) for sink in plan.graph.sinks}
    written = {sink: np.zeros(sink.tensor.shape, int) for sink in plan.graph.sinks}

    def fetch(read):
        out = np.empty(read.box.shape, read.dtype)
        filled = np.zeros(read.box.shape, int)
        for piece in read.pieces:
            at = tuple(
                slice(a - o, b - o) for a, b, o in zip(piece.box.start, piece.box.stop, read.box.start, strict=True)
            )
            filled[at] += 1
            if piece.task >= 0:
                out[at] = view(blocks[piece.task], piece.block, piece.map, piece.box)
            elif piece.source is not None:
                out[at] = view(piece.source.data.array, piece.block, piece.map, piece.box)
            else:
                out[at] = piece.fill
        assert (filled == 1).all(), "pieces cover the region once"
        return out

    for task in made:
        assert all(n < task.number for n in task.needs)
        step = plan.steps[task.step]
        if step.stage == "store":
            at = tuple(slice(a, b) for a, b in zip(task.out.start, task.out.stop, strict=True))
            results[step.node][at] = fetch(task.reads[0])
            written[step.node][at] += 1
        elif step.stage == "combine":
            parts = [fetch(r) for r in task.reads if r.partial]
            late = {r.name: fetch(r) for r in task.reads if not r.partial}
            total = parts[0]
            for part in parts[1:]:
                total = MONOIDS[next(iter(step.node.signature.monoids.values()))].combine(total, part)
            finished = operator_of(step.node).finished
            blocks[task.number] = finished(step.node, total, late) if finished else total
        else:
            inputs = {r.name: fetch(r) for r in task.reads if not r.partial}
            blocks[task.number] = operator_of(step.node).block(step.node, inputs)["out"]
            for r in task.reads:
                if r.partial:  # a wave of a machine's part of a reduction adds to the wave before it
                    monoid = MONOIDS[next(iter(step.node.signature.monoids.values()))]
                    blocks[task.number] = monoid.combine(fetch(r), blocks[task.number])
        if step.stage != "store":
            assert blocks[task.number].shape == task.out.shape
    assert all((count == 1).all() for count in written.values()), "every element is stored once"
    return list(results.values()), made


def test_tasks_compute_the_value_under_any_choice_of_grids():
    rng, chance = np.random.default_rng(0), random.Random(0)
    y = mlp(rng)
    loss = g.sum(g.log(y)[:, ::-1] * y[1:2])
    graph = g.Graph.of(y, loss)
    want = g.evaluate([sink.tensor for sink in graph.sinks])
    for count in (1, 2, 3, 4, 6):
        for waves in (Waves(), Waves(2), Waves(5), Waves(3, "longest"), Waves(4, "all")):
            grids = {op: chance.choice(candidates(op, count)) for op in graph.operations}
            steps = steps_of(graph, grids, count, decide, lambda sink: None, waves)
            plan, result = costed(Plan(graph, machines(count), steps))
            got, made = run_by_tasks(plan)
            for a, b in zip(want, got, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)
            assert len(made) == plan.tasks
            assert sum(span.tasks * span.alike for span in result.spans) == plan.tasks


def test_bytes_moved_are_the_points_that_lie_elsewhere():
    rng = np.random.default_rng(1)
    plan = plan_of(mlp(rng), count=4)
    made = tasks(plan)
    counted = 0
    for task in made:
        for read in task.reads:
            points = set()
            for piece in read.pieces:
                if piece.task >= 0 and made[piece.task].machine != task.machine:
                    points |= {(piece.task, piece.map(p)) for p in piece.box}
            counted += len(points) * read.dtype.itemsize
    assert plan.bytes_moved == counted


def test_a_chain_of_row_wise_operations_moves_nothing():
    x = g.as_tensor(np.ones((64, 8), np.float32))
    plan = plan_of(g.relu(g.exp(x) * 2.0), count=4)
    assert plan.bytes_moved == 0
    assert {step.cuts.grid for step in plan.steps} == {(4, 1)}


def test_a_long_contraction_is_cut_along_its_reduction():
    a = g.exp(g.as_tensor(np.ones((8, 40000))))
    b = g.exp(g.as_tensor(np.ones((40000, 8))))
    plan = plan_of(g.matmul(a, b), count=4, flops_per_second=1e9)
    stages = {(step.name, step.stage): step.cuts.grid for step in plan.steps}
    assert stages["matmul", "partial"] == (1, 1, 4)
    assert plan.bytes_moved < 8 * 8 * 8 * 4


def test_a_product_combined_in_runs_is_right():
    """Deep on seven machines: no boxes share 12 x 10 elements evenly among seven."""
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((12, 700)), rng.standard_normal((700, 10))
    x, y = g.as_tensor(a), g.as_tensor(b)
    place = {x.producer: "balanced", y.producer: "balanced"}
    graph = g.Graph.of(g.relu(g.matmul(x, y)) * 2.0)
    plan = make_plan(
        graph, machines(7, memory="1GiB"), lambda op, stage: Decision(stage), place=place, objective="words"
    )
    assert any(step.where.run for step in plan.steps)
    np.testing.assert_allclose(run_by_tasks(plan)[0][0], np.maximum(a @ b, 0) * 2)


def test_peak_memory_is_what_the_tasks_hold():
    """Recounted block by block from the tasks, without the simulator."""
    plan = plan_of(mlp(np.random.default_rng(2)), count=2)
    made = tasks(plan)
    last = {}
    for task in made:
        for read in task.reads:
            for piece in read.pieces:
                last[piece.task] = task.number
    peak = [0, 0]
    for task in made:
        alive = [t for t in made if t.number < task.number and last.get(t.number, -1) >= task.number]
        held = sum(t.out.size * 8 for t in alive if t.machine == task.machine)
        for read in task.reads:
            local = len(read.pieces) == 1 and read.pieces[0].task >= 0
            if not (local and made[read.pieces[0].task].machine == task.machine):
                held += read.box.size * 8
        if plan.steps[task.step].stage != "store":
            held += task.out.size * 8
        peak[task.machine] = max(peak[task.machine], held)
    assert plan.peak_bytes == tuple(peak)


def test_waves_lower_the_peak_until_the_budget_holds():
    x = g.as_tensor(np.ones((4096, 64)))
    y = g.relu(g.exp(x) * 2.0)
    whole = plan_of(y, count=1).peak_bytes[0]
    small = plan_of(y, count=1, memory=whole // 8)
    assert small.peak_bytes[0] <= whole // 8
    assert small.steps[0].cuts.count >= 8
    np.testing.assert_array_equal(run_by_tasks(small)[0][0], np.maximum(np.exp(np.ones((4096, 64))) * 2, 0))


@pytest.mark.parametrize("shape", [(16, 65536), (65536, 16)])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_reduction_streams_with_what_it_reads(shape, axis):
    """8 MiB through 400 KiB: waves of a long sum accumulate one to one with the waves of what they read."""
    x = np.random.default_rng(7).standard_normal(shape)
    plan = plan_of(g.sum(g.exp(g.as_tensor(x)), axis), count=1, memory="400KiB")
    assert max(plan.peak_bytes) <= 400 << 10
    np.testing.assert_allclose(run_by_tasks(plan)[0][0], np.exp(x).sum(axis), rtol=1e-12)


@pytest.mark.parametrize("budget", ["400KiB", "1KiB"])
def test_the_least_that_a_refusal_names_plans_long_rows(budget):
    x = g.as_tensor(np.ones((16, 65536)))
    for y in (g.softmax(x), g.sum(g.exp(x), -1), g.max(g.sum(x, 0))):
        graph = g.Graph.of(y)
        try:
            assert max(make_plan(graph, machines(1, memory=budget), decide).peak_bytes) <= 400 << 10
        except PlanError as error:
            assert max(make_plan(graph, machines(1, memory=error.least_bytes), decide).peak_bytes) <= error.least_bytes


def test_a_budget_that_nothing_meets_is_refused_with_the_least_that_would_do():
    y = g.matmul(g.as_tensor(np.ones((30, 20))), g.as_tensor(np.ones((20, 30))))
    with pytest.raises(PlanError) as caught:
        plan_of(y, count=1, memory=10)
    error = caught.value
    assert "matmul" in str(error) and "operation" in str(error)
    assert plan_of(y, count=1, memory=error.least_bytes).peak_bytes[0] <= error.least_bytes
    with pytest.raises(PlanError):
        plan_of(y, count=1, memory=error.least_bytes - 1)


def test_plans_are_deterministic():
    first, second = (plan_of(mlp(np.random.default_rng(3))).to_json() for _ in range(2))
    assert first == second


def test_explain_and_json_state_the_same_totals():
    plan = plan_of(mlp(np.random.default_rng(4)), count=4)
    data = json.loads(json.dumps(plan.to_json()))
    assert data["bytes_moved"] == plan.bytes_moved == sum(s["bytes_moved"] for s in data["steps"])
    assert data["flops"] == pytest.approx(sum(s["flops"] for s in data["steps"]))
    text = plan.explain()
    for step in data["steps"]:
        assert step["operation"] in text
    assert "peak memory" in text and "moved between machines" in text


def test_cut_dimensions_are_named_and_axes_numbered():
    x, w = (g.as_tensor(np.ones(shape)) for shape in ((64, 8), (8, 4)))
    plan = plan_of(g.exp(g.linear(x, w, g.as_tensor(np.ones(4)))), count=2)
    assert [cuts_text(step) for step in plan.steps] == ["batch/2", "axis0/2", "axis0/2"]


def test_placement_is_a_layout_from_shards_to_machines_and_waves():
    for count, machine_count in itertools.product((1, 2, 3, 4, 8, 12), (1, 2, 4)):
        layout = placement(count, machine_count)
        seen = [(layout(k)["machine"], layout(k)["wave"]) for k in range(count)]
        assert len(set(seen)) == count
        assert all(0 <= m < machine_count for m, _ in seen)


def test_a_pinned_sink_runs_on_its_machine():
    x = g.exp(g.as_tensor(np.ones((8, 8))))
    graph = g.Graph.of(g.Sink(x, g.MemoryTarget(), 2))
    plan = make_plan(graph, machines(4, memory="1GiB"), decide)
    assert {t.machine for t in tasks(plan) if plan.steps[t.step].stage == "store"} == {2}
    with pytest.raises(PlanError, match="machine 9"):
        make_plan(g.Graph.of(g.Sink(x, g.MemoryTarget(), 9)), machines(4), decide)


def test_sequence_points_order_tasks():
    x = g.as_tensor(np.ones((8, 8)))
    first = g.Sink(g.exp(x), g.MemoryTarget())
    point = g.SequencePoint((first,))
    late = g.relu(x).producer
    ordered = g.Operation(
        late.operator, late.index, late.inputs, late.outputs, late.parameters, late.signature, (point,)
    )
    graph = g.Graph((point, g.SequencePoint((g.Sink(g.Tensor(ordered), g.MemoryTarget()),))))
    plan = make_plan(graph, machines(2, memory="1GiB"), decide)
    made = tasks(plan)
    stores = [t for t in made if plan.steps[t.step].node is first]
    for task in made:
        if plan.steps[task.step].node is ordered:
            assert {t.step for t in stores} <= set(task.after)
            assert max(t.number for t in stores) < task.number


def test_a_malformed_graph_is_refused_before_planning():
    bad = g.Operation("no such operator", Box.of((2,)), (), (("out", g.TensorType((2,), np.float32)),))
    with pytest.raises(VerifyError, match=r"operation\.operator-known"):
        plan_of(g.Tensor(bad))


def test_the_simulated_time_is_at_least_the_longest_chain_and_at_most_the_sum():
    plan = plan_of(mlp(np.random.default_rng(5)), count=4)
    result = simulate(plan)
    lengths = [span.end - span.arrive for span in result.spans]
    assert max(lengths) <= result.seconds <= sum(lengths) + 1e-12


def chain_of_stages(count):
    """So many operations, each behind a sequence point that holds the one before it."""
    x, after, sinks = g.as_tensor(np.ones((16, 8))), (), []
    for _ in range(count):
        made = replace(g.exp(x).producer, after=after)
        sinks.append(g.Sink(g.Tensor(made), g.MemoryTarget()))
        after = (g.SequencePoint((made,)),)
    return g.Graph.of(*sinks)


def test_what_a_task_waits_for_grows_with_the_steps_and_not_with_the_tasks_behind_a_sequence_point():
    for parts in (2, 16):
        graph = chain_of_stages(6)
        grids = dict.fromkeys(graph.operations, (parts, 1))
        made = tasks(Plan(graph, machines(parts), steps_of(graph, grids, parts, decide, lambda sink: None)))
        assert len(made) == 2 * 6 * parts
        assert sum(len(task.needs) for task in made) == 6 * parts  # each store reads one block
        assert sum(len(task.after) for task in made) == 5 * parts  # each block but the first stage's, one step
        ends = {step: max(task.number for task in made if task.step == step) for step in range(12)}
        assert all(task.number > ends[step] for task in made for step in task.after)


# ---------------------------------------------------------------------------------------------------------------------
# refusals


def named(graph, used):
    """The budget that a refusal names."""
    with pytest.raises(PlanError) as caught:
        make_plan(graph, used, decide)
    return caught.value.least_bytes


def the_named_budget_does(seed, count, dtype="float32", steps=8):
    """The law of refusals, on a random graph: refused with one byte, planned with the budget that the refusal names."""
    values = random_graph(seed, dtype, steps=steps)
    graph = g.Graph.of(*(value.tensor for value in values))
    tiny = Machines(tuple(Machine(f"m{k}", 1 + (seed % 3) * k) for k in range(count)))
    try:
        make_plan(graph, tiny, decide)
    except PlanError as error:
        budget = error.least_bytes
        plan = make_plan(graph, machines(tiny, memory=budget), decide)
        assert max(plan.peak_bytes) <= budget
        for smaller in {budget - 1, budget // 2} - {0}:  # a smaller budget is met, or refused with one that does
            try:
                plan = make_plan(graph, machines(tiny, memory=smaller), decide)
                assert max(plan.peak_bytes) <= smaller
            except PlanError as again:
                assert smaller < again.least_bytes
                make_plan(graph, machines(tiny, memory=again.least_bytes), decide)


@pytest.mark.parametrize("seed", range(12))
def test_planning_with_the_budget_that_a_refusal_names_succeeds(seed):
    the_named_budget_does(seed, 1 + seed % 4, ["float32", "int64"][seed % 2])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 500))
def test_planning_with_the_budget_that_a_refusal_names_succeeds_on_many_graphs(seed):
    the_named_budget_does(seed, 1 + seed % 5, ["float32", "int64"][seed % 2], steps=12)


@pytest.mark.parametrize("count", [1, 3])
def test_the_named_budget_does_where_small_blocks_are_many(count):
    """A product of 1024 x 1024 has plans of tens of thousands of tasks, which no budget may make the search forget."""
    a = g.as_tensor(np.ones((1024, 1024), np.float32))
    graph = g.Graph.of(g.relu(g.matmul(a, a)))
    budget = named(graph, machines(count, memory=10))
    assert budget <= 1 << 20  # the three matrices are 12 MiB
    assert max(make_plan(graph, machines(count, memory=budget), decide).peak_bytes) <= budget


def test_a_larger_budget_is_never_refused_where_a_smaller_one_was_met():
    graph = g.Graph.of(mlp(np.random.default_rng(6), batch=64))
    met = False
    for budget in range(400, 12_000, 1000):
        try:
            make_plan(graph, machines(2, memory=budget), decide)
            met = True
        except PlanError:
            assert not met
    assert met
