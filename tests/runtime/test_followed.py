"""Runs that listeners follow are those of the executable: random plans, their events against the plan's own tasks."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from plans import misbehaving, random_plan, rows_plan
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave import lower
from tileweave.errors import RunError
from tileweave.lower import binding
from tileweave.planner import machines
from tileweave.runtime import Done, Failed, Progress, Started, direct, run_plan
from tileweave.runtime.prepare import prepare

SEED = 20261128


def followed(plan: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """(results, events) of a run."""
    events: list[Any] = []
    return run_plan(plan, listeners=[events.append], **options), events


def of_random(seeds: range, monkeypatch: pytest.MonkeyPatch) -> int:
    """Random plans: values, and what events say of each task; how many ran as executables."""
    monkeypatch.setattr(lower, "decide", partial(lower.decide, small=True))
    count = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(binding, "FEW", 1 if seed % 2 else 8)
        values = random_graph(seed, ("int64", "float32")[seed % 2])
        tensors = [value.tensor for value in values]
        plan = random_plan(g.Graph.of(*tensors), machines(1 + seed % 3, memory="1GiB"), rng)
        wanted = g.evaluate(tensors)
        for threads in (1, 2):
            got, events = followed(plan, threads=threads)
            for value, one, expected in zip(values, got, wanted, strict=True):
                eps = float(np.finfo(expected.dtype).eps) if expected.dtype.kind == "f" else 0
                np.testing.assert_allclose(one, expected, rtol=0, atol=8 * eps * (value.error + 1), err_msg=str(seed))
            check_events(plan, events, str(seed))
        count += "about" in prepare(plan).extra
    return count


def check_events(plan: Any, events: list[Any], note: str) -> None:
    """Every task of the plan is told once, in order, with its bytes, behind all that it reads."""
    started, *progress, done = events
    tasks = prepare(plan).tasks
    assert started == Started("local", prepare(plan).labels, len(tasks), len(plan.machines)), note
    assert [event.done for event in progress] == list(range(1, len(tasks) + 1)), note
    assert all(event.tasks == len(tasks) and event.start_seconds <= event.end_seconds for event in progress), note
    assert isinstance(done, Done) and all(event.end_seconds <= done.seconds for event in progress), note
    told = {(event.step, event.shard): event for event in progress}
    ends = {}
    for task in tasks:
        event = told[task.step, task.shard]
        assert event.machine == task.machine, note
        assert all(ends[number] <= event.start_seconds + 1e-9 for number in task.needs), note
        ends[task.number] = event.end_seconds
    assert sum(event.bytes_read for event in progress) == plan.bytes_read, note
    assert sum(event.bytes_moved for event in progress) == plan.bytes_moved, note
    assert all(a <= b for a, b in zip(done.peak_bytes, plan.peak_bytes, strict=True)), note


def test_random_plans_are_told_task_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", SEED)
    assert of_random(range(SEED, SEED + 10), monkeypatch) > 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_plans_are_told_task_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", SEED + 100)
    assert of_random(range(SEED + 100, SEED + 400), monkeypatch) > 150


def rows(count: int, work: Callable[[g.Tensor], g.Tensor]) -> Any:
    return rows_plan(work(tw.source(np.ones((count, 4096), np.float32))), machines(1, memory="1GiB"), count)


def test_tasks_of_one_row_of_calls_have_their_own_times() -> None:
    plan = rows(500, lambda x: tw.exp(x))
    _, events = followed(plan, threads=1)
    _, events = followed(plan, threads=1)
    check_events(plan, events, "")
    made = [event for event in events if isinstance(event, Progress) and event.step == 0]
    spans = [event.end_seconds - event.start_seconds for event in made]
    assert all(span > 0 for span in spans) and len(set(spans)) > 5
    assert all(a.end_seconds <= b.start_seconds + 1e-9 for a, b in pairwise(made))


def test_a_run_is_followed_while_it_goes_on() -> None:
    """Events of a long row of calls come in several batches, not all behind it."""
    plan = rows(400, lambda x: tw.exp(tw.exp(tw.exp(tw.exp(x * 0.01)))))
    followed(plan, threads=1)
    came: list[float] = []
    begun: list[float] = []

    def listener(event: Any) -> None:
        if isinstance(event, Started):
            begun.append(time.perf_counter())
        if isinstance(event, Progress):
            came.append(time.perf_counter() - begun[0])

    run_plan(plan, threads=1, listeners=[listener])
    assert came[0] < came[-1] / 4


def test_long_tasks_are_told_before_the_next_is_done() -> None:
    x = tw.source(np.ones((8, 1 << 20), np.float32))
    for _ in range(8):
        x = tw.exp(x * 0.01)
    plan = rows_plan(x, machines(1, memory="1GiB"), 8)
    followed(plan, threads=1)
    begun, came = time.perf_counter(), list[float]()
    run_plan(plan, threads=1, listeners=[lambda event: came.append(time.perf_counter() - begun)])
    assert came[1] < came[-1] / 2  # the first task


def test_steps_of_a_sweep_are_told_in_order() -> None:
    x = tw.source(np.random.default_rng(3).random((2048, 1024), np.float32))
    y = x
    for _ in range(6):
        y = tw.pad(y[2:] * 0.25 + y[1:-1] * 0.5 + y[:-2] * 0.25, [(1, 1), (0, 0)])
    plan = tw.plan(y, machines=tw.machines(1))
    got, events = followed(plan)
    np.testing.assert_array_equal(got[0], run_plan(plan)[0])
    check_events(plan, events, "")


@pytest.mark.parametrize("at", [1, 3, 40])
def test_what_a_listener_raises_stops_the_executable(at: int) -> None:
    def listener(event: Any) -> None:
        told.append(event)
        if isinstance(event, Progress) and event.done == at:
            raise LookupError("enough")

    plan = rows(64, lambda x: tw.exp(x))
    told: list[Any] = []
    with pytest.raises(LookupError, match="enough"):
        run_plan(plan, listeners=[listener])
    assert sum(isinstance(event, Progress) for event in told) == at and isinstance(told[-1], Failed)
    (got,), events = followed(plan)
    np.testing.assert_allclose(got, np.exp(np.ones((64, 4096))), rtol=1e-6)
    check_events(plan, events, "")


def test_nobody_hears_of_the_failure_of_a_run_that_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError("no room for the arena")

    monkeypatch.setattr(direct, "executable", fails)
    events: list[Any] = []
    with pytest.raises(MemoryError, match="no room"):
        run_plan(rows(4, lambda x: tw.exp(x)), listeners=[events.append])
    assert events == []


def test_a_failing_step_between_kernels_is_named(tmp_path: Any) -> None:
    x = tw.source(np.repeat(np.arange(16.0), 256).reshape(16, 256))
    plan = rows_plan(tw.sqrt(misbehaving(x * 2.0, tmp_path / "marks", fails_at=10)), machines(1), 16)
    events: list[Any] = []
    with pytest.raises(RunError, match="test_misbehaving failed with ArithmeticError") as caught:
        run_plan(plan, listeners=[events.append])
    assert caught.value.shard == 5 and "6 of 16" not in str(caught.value)
    assert isinstance(events[0], Started) and isinstance(events[-1], Failed)
    done = [(event.step, event.shard) for event in events if isinstance(event, Progress)]
    order = [(task.step, task.shard) for task in prepare(plan).tasks]
    assert done == order[: len(done)] and (caught.value.step, 5) == order[len(done)]


def test_a_place_outside_is_named_and_told_once() -> None:
    table, places = np.arange(64.0).reshape(16, 4), np.arange(64) % 16
    places[37] = 99
    x = tw.source(table)
    plan = rows_plan(tw.exp(tw.take(x * 1.5, tw.source(places), 0)), machines(1), 8)
    events: list[Any] = []
    with pytest.raises(RunError, match="take"):
        run_plan(plan, listeners=[events.append])
    done = [event.done for event in events if isinstance(event, Progress)]
    assert done == list(range(1, len(done) + 1)) and isinstance(events[-1], Failed)
    assert sum(isinstance(event, Started) for event in events) == 1
