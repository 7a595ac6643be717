"""What is told of runs on a cluster whose machines exchange margins is what they do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_ray import pytestmark, run  # noqa: F401 (the marks are these tests', too)
from test_units import chain_plan

from tileweave import graph as g
from tileweave import lower
from tileweave.planner import Plan, machines, with_margins
from tileweave.planner.simulate import costed
from tileweave.planner.steps import steps_of
from tileweave.planner.tasks import margins
from tileweave.runtime import Progress, run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.io import journal
from tileweave.runtime.trace import RunReport


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("seed", range(3))
def test_a_report_plans_the_margins_that_are_run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margins, "MESSAGE_SECONDS", 1e9)
    plan = chain_plan(np.random.default_rng(seed))
    wide, report = with_margins(plan), RunReport(plan)
    results = run_plan(plan, runtime="ray", threads=2, listeners=[report])
    for got, expected in zip(results, run_plan(plan), strict=True):
        np.testing.assert_array_equal(got, expected)
    for what in ("bytes_read", "bytes_moved"):
        assert sum(getattr(step, what) for step in report.steps) == getattr(wide, what)
    assert f"bytes moved, planned and measured: {wide.bytes_moved} {wide.bytes_moved}" in str(report)
    assert ("planned with margins" in str(report)) == (wide is not plan)
    run_plan(plan, listeners=[report])
    assert f"bytes moved, planned and measured: {plan.bytes_moved} {plan.bytes_moved}" in str(report)


@pytest.mark.usefixtures("ray_cluster")
def test_what_is_left_of_a_run_has_margins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margins, "MESSAGE_SECONDS", 1e9)
    monkeypatch.setattr(journal, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(journal, "SYNC_SHARE", 1e9)
    y = g.as_tensor(np.random.default_rng(0).random((40, 5)))
    for _ in range(5):
        y = g.stencil(y, np.ones((3, 1)), boundary="constant")
    graph, used = g.Graph.of(g.Sink(y, io.target(tmp_path / "y.npy"))), machines(4, memory="1GiB")
    grids = dict.fromkeys(graph.operations, (1, 1, 4, 1, 1))
    plan = costed(Plan(graph, used, steps_of(graph, grids, 4, lower.decide, io.atom)))[0]

    def stop(event: Any) -> None:
        if isinstance(event, Progress) and plan.steps[event.step].stage == "store":
            raise LookupError

    with pytest.raises(LookupError):
        run(plan, resume=True, listeners=[stop])
    report = RunReport(plan)
    events = run(plan, resume=True, listeners=[report])[1]
    assert events[0].margins and 0 < events[0].tasks < plan.tasks
    assert f"of {plan.tasks} tasks that are planned, {plan.tasks - events[0].tasks} were not" in str(report)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), g.evaluate([y])[0])
