"""Kernels take as long as the slower of arithmetic and memory, by the cache that holds what they touch."""

import random
from dataclasses import replace

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.planner import Machine, Machines, make_plan, simulate
from tileweave.planner.costs import OBJECT_BYTES, ROW_FUNCTIONS, Arrival, objects_of
from tileweave.planner.count import EFFICIENCY
from tileweave.planner.loads import Loads
from tileweave.planner.placement import Boxes
from tileweave.planner.rates import Rates
from tileweave.planner.tasks import tasks

ONE = Machine("one", 1 << 30, 1, 1e9, 1e9)
CACHES = ((1 << 10, 8e9), (1 << 14, 4e9))


def decide(operation, stage):
    return Decision(stage)


def source(shape, name, dtype="float32"):
    return g.Tensor(g.Source(g.Hole(name), g.TensorType(shape, dtype), name))


def defined(one, size, flops, functions, touched, crossed):
    """Seconds of one kernel, as the page says."""
    held = [rate for limit, rate in one.caches if touched <= limit]
    memory = (touched + (one.crossing - 1) * crossed) / (held[0] if held else one.bytes_per_second)
    arithmetic = flops / one.flops_per_second
    if one.functions_per_second is not None:
        arithmetic += functions * max(1, size / 4) / one.functions_per_second
    return max(arithmetic, memory) / EFFICIENCY


@pytest.mark.parametrize("seed", range(20))
def test_the_time_of_a_kernel_is_the_slower_of_arithmetic_and_memory(seed):
    """Machines of unlike caches beside each other, some with none."""
    chance = random.Random(seed)
    found = []
    for number in range(chance.randrange(1, 4)):
        caches = CACHES[: chance.randrange(3)]
        functions = chance.choice([None, 1e8])
        found.append(
            replace(
                ONE, name=str(number), caches=caches, functions_per_second=functions, crossing=chance.choice([1, 5])
            )
        )
    rates, dtype = Rates(Machines(tuple(found))), np.dtype(chance.choice(["float32", "float64", "int8"]))
    touched = [chance.choice([1 << 9, 1 << 10, (1 << 10) + 1, 1 << 14, 1 << 15]) for _ in found]
    flops, functions = (np.array([chance.randrange(1 << 15) for _ in found], float) for _ in range(2))
    crossed = [size // 4 for size in touched]
    seconds = rates.kernel_seconds(dtype, flops, functions, np.array(touched), np.array(crossed))
    expected = [
        defined(one, dtype.itemsize, *each)
        for one, *each in zip(found, flops, functions, touched, crossed, strict=True)
    ]
    np.testing.assert_allclose(seconds, expected)


def test_functions_are_counted_wherever_they_are_fused():
    """A softmax has one exponential per element, a perceptron's layer one hyperbolic tangent per result. Maximum and
    sum of a row that are formed in one kernel with its elements count as some functions more."""
    x, w = source((64, 32), "x"), source((32, 16), "w")
    for tensor, count in (
        (g.exp(x), 64 * 32),
        (g.softmax(x), 64 * 32),
        (g.tanh(g.exp(x) + 1.0) * 2.0, 2 * 64 * 32),
        (g.tanh(x @ w), 64 * 16),
        (g.relu(x @ w) + 1.0, 0),
    ):
        for fuse in (True, False):
            plan = tw.plan(tensor, fuse=fuse)
            rows = 2 * 64 * ROW_FUNCTIONS * any(step.name in ("rows", "max") for step in plan.steps)
            assert sum(load.functions.sum() for load in simulate(plan).loads) == pytest.approx(count + rows)
            assert not rows or count == 64 * 32
    assert "rows" in [step.name for step in tw.plan(g.softmax(x)).steps]


def test_values_of_rows_count_as_functions_where_a_row_lies_along_memory():
    """Rows of a few elements cost a function per element, longer ones as many as a row in a kernel of rows."""
    for shape, axis, count in (
        ((50, 4), 1, 50 * 4),
        ((50, 64), 1, 50 * ROW_FUNCTIONS),
        ((50, 64), 0, 0),
        ((5, 6, 2), (1, 2), 5 * 12),
        ((5, 6, 2), 1, 0),
        ((50, 64, 1), 1, 50 * ROW_FUNCTIONS),
        ((50, 1), 1, 0),
    ):
        for reduction in (g.sum, g.max):
            plan = make_plan(g.Graph.of(reduction(source(shape, "x"), axis)), Machines((ONE,)), decide)
            assert sum(load.functions.sum() for load in Loads().of(plan)) == pytest.approx(count), (shape, axis)


def test_an_operand_across_the_others_is_told_from_one_along_them():
    x, y, row = source((40, 24), "x"), source((24, 40), "y"), source((24,), "row")
    for tensor, crossed in (
        (x + g.transpose(y), y.type.size_bytes),
        (x + x, 0),
        (x + row, 0),
        (g.exp(g.transpose(y)), 0),  # all that is read lies one way: a kernel goes along it
        (g.add(g.transpose(y), g.transpose(y)), 0),
        (g.matmul(g.transpose(x), x), 0),
    ):
        plan = make_plan(g.Graph.of(tensor), Machines((ONE,)), decide)
        assert sum(int(load.crossed.sum()) for load in Loads().of(plan)) == crossed


def test_a_machine_opens_the_files_that_it_reads():
    """Two files, each read whole by one step: a machine pays for each once, and one that reads neither for none."""
    files = [
        g.Tensor(g.Source(g.FileData(f"{name}.npy", "npy", ""), g.TensorType((8,), "float32"), name)) for name in "ab"
    ]
    used = Machines((ONE, replace(ONE, name="two")), task_seconds=0.0, link_seconds=0.0)
    slow = replace(used, open_seconds=10.0)
    for tensor, opened in ((files[0] + 1.0, 1), (files[0] + files[1], 2), (files[0] + files[0] * 2.0, 1)):
        seconds = [make_plan(g.Graph.of(tensor), one, decide, pin={tensor: (1,)}).seconds for one in (used, slow)]
        assert seconds[1] - seconds[0] == pytest.approx(10.0 * opened)


def test_arrays_of_the_program_pass_its_process_one_machine_after_the_other():
    """So a run on a cluster takes as long as all that goes there and back, on however many machines it computes."""
    x = source((4096, 512), "x")
    y, carried = g.exp(x), 2 * x.type.size_bytes

    def seconds(count, **rates):
        ones = tuple(replace(ONE, name=f"m{k}") for k in range(count))
        used = Machines(ones, task_seconds=0.0, link_seconds=0.0, run_seconds=3.0)
        return make_plan(g.Graph.of(y), replace(used, **rates), decide, pin={y: (count, 1)}).seconds

    for count in (1, 2, 4):
        free = seconds(count, driver_bytes_per_second=1e15)
        assert free == pytest.approx(seconds(count, link_bytes_per_second=1e15), rel=1e-6)
        assert 3 + 10 <= seconds(count, driver_bytes_per_second=carried / 10) <= 3 + 10 + 2 * (free - 3)


@pytest.mark.parametrize("seed", range(8))
def test_objects_of_the_program_are_counted_as_its_tasks_take_them(seed):
    """Every region of an array of the program that a task reads, once, and every block of a result, if it is large."""
    rng = random.Random(seed)
    m, n, k = (rng.choice([64, 300, 512]) for _ in range(3))
    x, y = source((m, k), "x"), source((k, n), "y")
    made = rng.choice([x @ y, g.relu(x @ y), g.sum(x, 0), x + g.transpose(source((k, m), "z")), g.softmax(x)])
    count = rng.randrange(1, 5)
    used = Machines(tuple(replace(ONE, name=f"m{k}") for k in range(count)))
    pin = {made: tuple(rng.choice([1, count]) if k == 0 else 1 for k in range(made.producer.index.rank))}
    plan = make_plan(g.Graph.of(made), used, decide, pin=pin)
    taken = set()
    for task in tasks(plan):
        stored = plan.steps[task.step].stage == "store"
        pieces = [(piece.source, piece.region) for read in task.reads for piece in read.pieces if piece.source]
        found = [(task.number, task.out)] if stored else pieces
        taken |= {(*one, task.step) for one in found if one[1].size * 4 > OBJECT_BYTES}
    objects = sum(float(load.objects.sum()) for load in Loads().of(plan))
    assert objects == pytest.approx(len(taken)), seed
    slow = replace(used, driver_bytes_per_second=1e15, driver_object_seconds=10.0)
    seconds = simulate(replace(plan, machines=slow)).seconds
    assert seconds == pytest.approx(10 * len(taken), abs=9)
    assert f"in {len(taken)} objects, " in replace(plan, machines=slow).explain()


def test_cuts_are_chosen_by_what_objects_of_the_program_cost():
    """Two halves are four objects, not two: worth it where arithmetic is slow, not where objects are."""
    x = source((4096, 512), "x")
    for each, parts in ((1e-6, 2), (100.0, 1)):
        rates = {"driver_bytes_per_second": 1e12, "driver_object_seconds": each, "task_seconds": 0.0}
        used = Machines(tuple(replace(ONE, name=f"m{k}") for k in range(2)), link_seconds=0.0, **rates)
        plan = make_plan(g.Graph.of(g.exp(x)), used, decide)
        assert plan.steps[0].cuts.count == parts


def test_results_come_back_at_a_rate_of_their_own():
    x = source((4096, 512), "x")
    used = Machines((ONE,), driver_bytes_per_second=1e15, driver_result_bytes_per_second=x.type.size_bytes / 10)
    assert 10 < make_plan(g.Graph.of(g.exp(x)), used, decide).seconds < 11
    assert make_plan(g.Graph.of(g.sum(x)), used, decide).seconds < 10


@pytest.mark.parametrize("rank", range(1, 8))
def test_objects_are_the_regions_that_differ(rank):
    chance = np.random.default_rng(rank)
    for _ in range(20):
        count = int(chance.integers(1, 9))
        low = [chance.choice([0, 1, 12, 5000], count) for _ in range(rank)]
        some = chance.random(count) < 0.7
        moved, one = np.where(some, 2 * OBJECT_BYTES, 0), some.astype(np.int64)
        region = Boxes(low, [at + 1 for at in low], np.ones(count, bool))
        found = objects_of(Arrival(moved, moved, one, one, one, moved), region)
        regions = {tuple(at[k] for at in low) for k in range(count) if some[k]}
        assert found.sum() == pytest.approx(len(regions))
        assert (found[~some] == 0).all()
