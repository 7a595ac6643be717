"""Machines are measured, written and read back; a plan for them predicts what was measured."""

from dataclasses import replace

import numpy as np
import pytest

from tileweave.cli.main import main
from tileweave.errors import PlanError
from tileweave.planner import machines
from tileweave.planner.machine import to_toml
from tileweave.runtime import direct
from tileweave.runtime.probe import DTYPES, _task_seconds, probe


def test_a_host_is_measured_and_the_description_reads_back(tmp_path, capsys):
    path = tmp_path / "here.toml"
    assert main(["machines", "probe", "--seconds", "0.05", "--folder", str(tmp_path), "-o", str(path)]) == 0
    assert not [p for p in tmp_path.iterdir() if p != path]
    found = machines(path)
    (one,) = found.machines
    assert {"float32", *(name for name, _ in one.flops)} == set(DTYPES)
    assert all(1e7 < one.rate(dtype) < 1e15 for dtype in DTYPES)
    assert 1e8 < one.bytes_per_second < 1e13 and 1e7 < found.storage_bytes_per_second < 1e12
    assert 1e7 < found.cached_bytes_per_second < 1e13
    assert 1e-6 < found.open_seconds < 1 and 1e-6 < found.store_seconds < 10
    assert 1e-6 < found.task_seconds < 1e-2 and one.memory_bytes > 1 << 20
    assert found.call_seconds < 1e-2 and 0 < found.run_seconds < 1e-1 and one.crossing >= 1
    assert 1e5 < one.functions_per_second < 1e13 and all(1e7 < rate < 1e14 for _, rate in one.caches)
    capsys.readouterr()
    assert main(["machines", "show", str(path)]) == 0
    assert capsys.readouterr().out.endswith(path.read_text())


@pytest.mark.usefixtures("ray_cluster")
def test_each_node_of_a_running_cluster_is_measured():
    import ray

    found = probe(ray.get_runtime_context().gcs_address, seconds=0.05)
    assert len(found) == len([node for node in ray.nodes() if node["Alive"]])
    assert found.storage == "shared" and 1e-6 < found.link_seconds < 1 and found.link_bytes_per_second > 1e6
    assert found.task_seconds > 1e-5  # far more than a task of this process
    assert 1e6 < found.driver_bytes_per_second < 1e13 and 0 <= found.run_seconds < 10
    assert 1e6 < found.driver_result_bytes_per_second < 1e13
    assert 0 <= found.exchange_seconds < 1 and 0 <= found.driver_object_seconds < 1
    assert machines(found) == found


def test_the_time_of_a_task_is_that_of_tasks_that_run_one_by_one(monkeypatch):
    found, executable = [], direct.executable
    monkeypatch.setattr(direct, "executable", lambda *given: found.append(executable(*given)))
    assert 1e-6 < _task_seconds(None, 0.01) < 1e-2
    assert found and set(found) == {None}


def test_what_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(PlanError, match="is no time"):
        probe(seconds=0)
    with pytest.raises(PlanError, match="cannot be written"):
        probe(folder=str(tmp_path / "missing"))


def test_descriptions_read_back_whatever_they_say(tmp_path):
    rng = np.random.default_rng(3)
    for case in range(20):
        made = machines(int(rng.integers(1, 5)), memory=int(rng.integers(1, 1 << 40)))
        rates = tuple((name, float(rng.uniform(1, 1e15))) for name in ("float16", "float64")[: case % 3])
        one = replace(
            made.machines[0],
            name='a "b" \\ é',
            flops=rates,
            link_bytes_per_second=float(rng.uniform(1, 1e12)),
            functions_per_second=float(rng.uniform(1, 1e12)) if case % 2 else None,
            caches=tuple((1 << (10 + 4 * k), float(rng.uniform(1, 1e12))) for k in range(case % 4)),
            crossing=float(rng.uniform(1, 9)) if case % 5 else 1.0,
        )
        used = replace(
            made,
            machines=(one, *made.machines[1:]),
            link_seconds=float(rng.uniform(1e-9, 1)) if case % 4 else 0.0,
            exchange_seconds=float(rng.uniform(1e-9, 1)) if case % 3 else 0.0,
            open_seconds=float(case % 2),
            run_seconds=float(case % 2),
            call_seconds=float(rng.uniform(1e-9, 1)),
            cached_bytes_per_second=None if case % 3 else float(rng.uniform(1, 1e12)),
            driver_bytes_per_second=None if case % 2 else float(rng.uniform(1, 1e12)),
            driver_result_bytes_per_second=None if case % 3 else float(rng.uniform(1, 1e12)),
            driver_object_seconds=float(rng.uniform(1e-9, 1)) if case % 2 else 0.0,
            storage=("shared", "private")[case % 2],
        )
        path = tmp_path / "m.toml"
        path.write_text(to_toml(used), "utf-8")
        assert machines(path) == used
