"""Listeners that keep what a run did, from the same stream of events."""

import io as text_io
import json
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import misbehaving, rows_plan

import tileweave as tw
from tileweave import graph as g
from tileweave.cli.main import main
from tileweave.errors import RunError, StorageError
from tileweave.planner import machines
from tileweave.runtime import Progress, run_plan
from tileweave.runtime.trace import LiveTable, RunReport, Trace, logged


def spans(path: Path) -> list[dict[str, Any]]:
    return [span for span in json.loads(path.read_text())["traceEvents"] if span["ph"] == "X"]


def test_a_trace_has_every_task_once_and_workers_do_one_at_a_time(tmp_path: Path) -> None:
    x = g.as_tensor(np.ones((64, 8)))
    plan = rows_plan(g.sum(g.exp(x) * 2, 0), machines(3, memory="1GiB"), 6)
    trace = Trace(tmp_path / "t.json")
    for runs in (1, 2):
        run_plan(plan, threads=2, listeners=[trace.of(plan)])
        found = spans(tmp_path / "t.json")
        assert len(found) == runs * plan.tasks
    assert {(span["args"]["step"], span["args"]["shard"]) for span in found} == {
        (number, shard) for number, step in enumerate(plan.steps) for shard in range(step.cuts.count)
    }
    assert {span["pid"] for span in found} == {0, 1, 2}
    for worker in {span["tid"] for span in found}:
        own = sorted((span["ts"], span["ts"] + span["dur"]) for span in found if span["tid"] == worker)
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(own))


def test_a_trace_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    plan = tw.plan(tw.source(np.ones(4)) * 2)
    with pytest.raises(StorageError, match="it cannot be written: No such file or directory"):
        tw.run(plan, listeners=[Trace(tmp_path / "none" / "t.json").of(plan)])


def test_a_failed_run_is_traced_up_to_its_failure(tmp_path: Path) -> None:
    y = misbehaving(g.as_tensor(np.arange(16)) + 0, tmp_path / "marks", fails_at=8)
    plan = rows_plan(y, machines(1, memory="1GiB"), 4)
    with pytest.raises(RunError):
        run_plan(plan, threads=1, listeners=[Trace(tmp_path / "t.json").of(plan)])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["failed: RunError"]
    assert 0 < len(spans(tmp_path / "t.json")) < plan.tasks


def test_a_report_puts_the_run_beside_the_plan(tmp_path: Path) -> None:
    y = misbehaving(g.as_tensor(np.arange(8)), tmp_path / "marks", milliseconds=5)
    plan = rows_plan(y, machines(2, memory="1GiB"), 4)
    told: list[RunReport] = []
    run_plan(plan, threads=2, listeners=[RunReport(plan, told.append)])
    (report,) = told
    assert [(step.name, step.tasks) for step in report.steps] == [("test_misbehaving", 4), ("store", 4)]
    assert report.steps[0].busy_seconds >= 4 * 0.005 and report.seconds >= report.steps[0].seconds
    assert all(measured <= planned for measured, planned in zip(report.peak_bytes, plan.peak_bytes, strict=True))
    lines = str(report).splitlines()
    assert lines[0].split() == ["step", "tasks", "planned", "measured", "busy"]
    assert lines[1].split()[:2] == ["test_misbehaving", "4"] and lines[4].startswith("peak bytes")
    assert lines[5:] == [f"bytes {what}, planned and measured: {n} {n}" for what, n in (("read", 64), ("moved", 0))]


def test_a_table_follows_a_run() -> None:
    from rich.console import Console

    plan = rows_plan(g.exp(g.as_tensor(np.ones(8))), machines(2, memory="1GiB"), 4)
    out = text_io.StringIO()
    run_plan(plan, listeners=[LiveTable(plan, Console(file=out, force_terminal=True, width=100))])
    assert "4 of 4" in out.getvalue()
    quiet = text_io.StringIO()
    run_plan(plan, listeners=[LiveTable(plan, Console(file=quiet))])
    assert quiet.getvalue() == ""


def test_a_log_says_when_runs_start_and_end(caplog: pytest.LogCaptureFixture) -> None:
    plan = rows_plan(g.exp(g.as_tensor(np.ones(8))), machines(2, memory="1GiB"), 2)
    with caplog.at_level(logging.INFO, logger="tileweave"):
        run_plan(plan, listeners=[logged])
    assert caplog.records[0].getMessage().split(",")[0] == "run on local: 4 tasks"
    assert caplog.records[-1].getMessage().startswith("done in")


def test_the_command_line_traces_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "p.py"
    program.write_text("import numpy as np, tileweave as tw\nprint(tw.run(tw.sum(tw.source(np.ones(9)) * 2)))\n")
    flags = ["run", str(program), "--trace", str(tmp_path / "t.json"), "--report"]
    assert main(flags) == 0
    said = capsys.readouterr()
    assert said.out.strip() == "18.0" and "peak bytes" in said.err
    assert spans(tmp_path / "t.json")
    assert main(flags) == 2  # the file exists
    assert "exists" in capsys.readouterr().err


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_tasks_of_a_cluster_have_their_times() -> None:
    plan = rows_plan(g.exp(g.as_tensor(np.ones(64))) + 1, machines(2, memory="1GiB"), 4)
    events: list[Any] = []
    run_plan(plan, runtime="ray", threads=2, listeners=[events.append])
    told = [event for event in events if isinstance(event, Progress)]
    assert len(told) == plan.tasks and all(event.start_seconds <= event.end_seconds for event in told)
    assert max(event.end_seconds for event in told) <= events[-1].seconds
