import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import misbehaving, random_plan, rows_plan
from random_graphs import random_graph
from test_local import plan_of

from tileweave import graph as g
from tileweave.errors import RunError
from tileweave.planner import machines
from tileweave.runtime import Done, Progress, Started, run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.ray import session, watchdog

pytestmark = [
    pytest.mark.ray,
    # Ray leaves its daemons' pipes and sockets to the garbage collector when it shuts down
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the optional package ray is not installed")


def run(plan: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    """(results, events) of a run on the shared cluster."""
    events: list[Any] = []
    told = [events.append, *options.pop("listeners", ())]
    return run_plan(plan, runtime="ray", threads=2, listeners=told, **options), events


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize("apart", [False, True])
def test_what_takes_a_request_to_end_is_the_programs_own_whichever_thread_connects(apart: bool) -> None:
    library = ctypes.CDLL(None)
    library.signal.argtypes = ctypes.c_int, ctypes.c_void_p

    def taken() -> bytes:
        held = ctypes.create_string_buffer(session.ACTION_BYTES)
        library.sigaction(signal.SIGTERM, None, held)
        return held.raw[: ctypes.sizeof(ctypes.c_void_p)]  # the handler; what lies behind its mask is anything

    def connects() -> None:
        with session._own_handler():
            library.signal(signal.SIGTERM, int(signal.SIG_IGN))  # as native code does, unseen by Python
            seen.append(taken())

    seen: list[bytes] = []
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        own = taken()
        thread = threading.Thread(target=connects)
        if apart:
            thread.start()
            thread.join()
        else:
            connects()
        assert seen != [own] and taken() == own
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_any_plan_of_any_graph_computes_what_the_graph_means(dtype: str) -> None:
    for seed in range(5):
        values = random_graph(seed, dtype)
        tensors = [value.tensor for value in values]
        plan = random_plan(g.Graph.of(*tensors), machines(3, memory="1GiB"), np.random.default_rng(seed))
        results, events = run(plan)
        done = [event for event in events if isinstance(event, Progress)]
        assert sum(event.bytes_read for event in done) == plan.bytes_read
        assert sum(event.bytes_moved for event in done) == plan.bytes_moved
        for value, got, expected in zip(values, results, g.evaluate(tensors), strict=True):
            bound = 0.0 if expected.dtype.kind == "i" else 8 * float(np.finfo(dtype).eps) * (value.error + 1)
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=0, atol=bound)


@pytest.mark.usefixtures("ray_cluster")
def test_what_results_take_that_stay_on_nodes_is_told() -> None:
    from tileweave.runtime.ray.held import HeldSink, Nodes

    nodes, moved = Nodes.of(None, 1), 0
    for seed in range(100, 106):
        values = random_graph(seed, "int64", steps=4)
        tensors = [value.tensor for value in values]
        sinks = [g.Sink(tensor, g.MemoryTarget(), seed % 3) for tensor in tensors]
        plan = random_plan(g.Graph.of(*sinks), machines(3, memory="1GiB"), np.random.default_rng(seed))
        kept: dict[g.Sink, HeldSink] = {}
        _, events = run(plan, keep=lambda sink, kept=kept: kept.setdefault(sink, HeldSink(nodes, sink.tensor.type)))
        done = [event for event in events if isinstance(event, Progress)]
        assert sum(event.bytes_read for event in done) == plan.bytes_read
        assert sum(event.bytes_moved for event in done) == plan.bytes_moved
        moved += sum(step.costs.bytes_moved for step in plan.steps if step.stage == "store")
        for sink, expected in zip(plan.graph.sinks, g.evaluate(tensors), strict=True):
            np.testing.assert_array_equal(nodes.read(kept[sink].held(1)), expected)
    assert moved > 0


@pytest.mark.usefixtures("ray_cluster")
def test_both_runtimes_tell_the_same_events() -> None:
    x = np.random.default_rng(0).integers(0, 9, (40, 30))
    plan = plan_of(g.sum(g.matmul(x, g.transpose(g.as_tensor(x))) * 2, axis=1))
    local: list[Any] = []
    expected = run_plan(plan, listeners=[local.append])
    results, events = run(plan)
    np.testing.assert_array_equal(results[0], expected[0])
    assert events[0] == Started("ray", local[0].steps, plan.tasks, 4)
    assert [e.done for e in events if isinstance(e, Progress)] == list(range(1, plan.tasks + 1))
    assert isinstance(events[-1], Done)
    assert max(events[-1].peak_bytes) > 0
    results[0][...] = 0  # a result is the caller's own


@pytest.mark.usefixtures("ray_cluster")
def test_repeated_runs_see_new_arrays() -> None:
    x = g.Tensor(g.Source(g.Hole(), g.TensorType((200, 100), np.dtype("float64")), "x"))
    plan = plan_of(g.sum(x * 2, axis=0))
    for seed in range(3):
        array = np.random.default_rng(seed).random((200, 100))
        (got,), _ = run(plan, bind={x.producer: array})
        np.testing.assert_allclose(got, (array * 2).sum(axis=0))


@pytest.mark.usefixtures("ray_cluster")
def test_files_at_both_ends(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 100, (40, 30))
    np.save(tmp_path / "x.npy", array)
    kind, data = io.describe(tmp_path / "x.npy")
    x = g.Tensor(g.Source(data, kind))
    y = g.matmul(g.transpose(x), x)
    targets = [io.target(tmp_path / f"y.{suffix}") for suffix in ("npy", "npz", "zarr")]
    paths, _ = run(plan_of(*(g.Sink(y, target) for target in targets)))
    for path in paths:
        made, where = io.describe(path)
        np.testing.assert_array_equal(io.open_source(where, made).read(made.box), array.T @ array)


@pytest.mark.usefixtures("ray_cluster")
def test_a_failing_shard_is_named_and_leaves_no_sink(tmp_path: Path) -> None:
    y = misbehaving(g.as_tensor(np.arange(16)) + 0, tmp_path / "marks", fails_at=8)
    sink = g.Sink(y, io.target(tmp_path / "a.npy"))
    with pytest.raises(RunError, match="test_misbehaving failed with ArithmeticError") as caught:
        run(rows_plan(sink, machines(4), 4))
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert "2 of 4" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["marks"]
    assert run(plan_of(g.as_tensor(np.arange(3)) + 1))[0][0].tolist() == [1, 2, 3]


@pytest.mark.usefixtures("ray_cluster")
def test_a_failing_shard_is_named_where_a_unit_that_reads_it_is_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit whose argument could not be computed fails with the error of the unit that should have made it."""

    def last(one: Any) -> Any:
        return one.ray.wait([list(one.flying)[-1]], timeout=60)[0][0]

    monkeypatch.setattr(import_module("tileweave.runtime.ray.engine").ClusterRun, "_next", last)
    y = misbehaving(g.as_tensor(np.arange(16)) + 0, tmp_path / "marks", fails_at=8)
    with pytest.raises(RunError, match="test_misbehaving failed with ArithmeticError") as caught:
        run(rows_plan(y[::-1] + 1, machines(4), 4))
    assert "2 of 4" in str(caught.value)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"pip install 'tileweave\[ray\]'"):
        run(plan_of(g.as_tensor(np.arange(3)) + 1))


OWN_SESSION = """
import numpy as np, ray, logging
from tileweave import graph as g, lower
from tileweave.planner import machines, make_plan
from tileweave.runtime import run_plan
from tileweave.runtime.io import files as io
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR)
x = np.random.default_rng(0).integers(0, 9, (30, 20))
plan = make_plan(g.Graph.of(g.sum(g.matmul(x, x.T), axis=0)), machines(3), lower.decide, io.atom)
(got,) = run_plan(plan, runtime="ray")
assert (got == (x @ x.T).sum(axis=0)).all()
from tileweave.runtime.ray import shutdown
shutdown()
assert ray.is_initialized()
print("both")
"""


@needs_ray
@pytest.mark.slow
def test_a_session_of_the_programs_own_is_used_and_stays(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWN_SESSION], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.stdout == "both\n", done.stderr


@pytest.mark.usefixtures("ray_cluster")
def test_workers_read_and_write_files_that_they_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own readers and writers are not used at all, except for what cannot be read by boxes elsewhere."""
    array = np.random.default_rng(0).integers(0, 100, (300, 40))
    np.save(tmp_path / "x.npy", array)
    kind, data = io.describe(tmp_path / "x.npy")
    monkeypatch.chdir(tmp_path)
    y = g.relu(g.Tensor(g.Source(replace(data, path="x.npy"), kind)) - 50)
    sinks = [g.Sink(y, io.target(tmp_path / f"y.{suffix}")) for suffix in ("npy", "npz", "zarr")]
    plan = plan_of(*sinks)

    def refuse(*_: Any) -> Any:
        raise AssertionError("the driver touched a file's elements")

    for name in ("mapped.MappedReader.read", "mapped.MappedWriter.write", "zarrfile.ZarrWriter.write"):
        monkeypatch.setattr(f"tileweave.runtime.io.{name}", refuse)
    paths, _ = run(plan)
    monkeypatch.undo()
    for path in paths:
        made, where = io.describe(path)
        np.testing.assert_array_equal(io.open_source(where, made).read(made.box), np.maximum(array - 50, 0))


def listening(processes: set[int]) -> set[str]:
    """The addresses on which processes listen, as the system writes them."""
    links = set()
    for process in processes:
        for entry in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):
                links.add(str(entry.readlink()))
    sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        found |= {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}
    return found


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="the system does not list its sockets in /proc")
def test_our_own_cluster_listens_on_the_loopback_address_only() -> None:
    services = {process for processes in session._started().values() for process in processes}
    found = listening({os.getpid(), *watchdog.family(services)})
    assert found and found <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
