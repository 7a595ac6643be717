import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leftovers import left_behind, nothing_runs
from plans import misbehaving, random_plan, rows_plan
from random_graphs import random_graph
from test_local import interrupted, plan_of

from tileweave import graph as g
from tileweave.errors import RunError
from tileweave.planner import machines
from tileweave.runtime import Done, Progress, Retry, Started, run_plan
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
def test_a_killed_worker_does_not_change_the_result(tmp_path: Path) -> None:
    x = g.as_tensor(np.arange(64))
    y = g.sum(misbehaving(x * 2, tmp_path / "marks", milliseconds=150))
    plan = rows_plan(y, machines(2, memory="1GiB"), 16)
    killed: list[int] = []

    def kill(event: Any) -> None:
        """Kills the worker that started a shard last, at most four times, until one was in the middle of it."""
        retried = any(isinstance(seen, Retry) for seen in events)
        if retried or len(killed) == 4 or not isinstance(event, Progress) or event.done < 18:
            return
        marks = sorted((tmp_path / "marks").iterdir(), key=lambda path: path.stat().st_mtime_ns)
        pid = int(marks[-1].read_text().split()[-1])
        if pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    events: list[Any] = []
    (got,) = run_plan(plan, runtime="ray", threads=2, listeners=[events.append, kill])
    assert killed
    assert got == (np.arange(64) * 2 + 1).sum()
    retries = [event for event in events if isinstance(event, Retry)]
    assert retries
    assert retries[0].attempts >= 2
    assert events[-1].retries == len(retries)


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


ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}


def on_nodes(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a program that starts nodes of Ray's own: once more where these do not start in time on a busy machine.

    What it says goes to files: processes of a node that is killed may live on for minutes, and would hold a pipe open.
    """
    for _ in range(3):
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
            done = subprocess.run(words, stdout=out, stderr=error, timeout=240, env=ENV)
            out.seek(0), error.seek(0)
            said = subprocess.CompletedProcess(words, done.returncode, out.read(), error.read())
        if "during startup" not in said.stderr:
            break
    return said


@needs_ray
@pytest.mark.parametrize(
    "how",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_is_ended_leaves_no_process_and_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setenv("TILEWEAVE_TEST_RUN", str(tmp_path))
    before = set(Path("/tmp").glob("tileweave-ray-*"))
    status, error = interrupted(tmp_path, "ray", how, 60)
    words = {signal.SIGINT: "KeyboardInterrupt", signal.SIGTERM: "", signal.SIGKILL: "removed 1 temporary files"}
    assert words[how] in error
    assert status == 128 + how if how == signal.SIGTERM else status != 0
    nothing_runs(f"TILEWEAVE_TEST_RUN={tmp_path}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "script.py"]
    assert not left_behind(set(Path("/tmp").glob("tileweave-ray-*")) - before)


ABORTED = """
import os, sys
from pathlib import Path
import numpy as np
from plans import misbehaving, rows_plan
from tileweave import graph as g
from tileweave.planner import machines
from tileweave.runtime import Progress, run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.io.sinks import Sinks
here = Path(sys.argv[1])
Sinks.abort = lambda self: os.abort()
def stop(event):
    if isinstance(event, Progress):
        raise SystemExit(1)
y = misbehaving(g.as_tensor(np.arange(16)) + 0, here / "marks")
sink = g.Sink(y, io.target(here / "a.npy"))
run_plan(rows_plan(sink, machines(2, memory="1GiB"), 4), runtime="ray", threads=2, listeners=[stop])
"""


@needs_ray
@pytest.mark.slow
def test_a_driver_that_ray_aborts_while_it_ends_leaves_no_half_file(tmp_path: Path) -> None:
    env = {**ENV, "TILEWEAVE_TEST_RUN": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ABORTED, str(tmp_path)], capture_output=True, text=True, env=env)
    assert done.returncode == -signal.SIGABRT and "removed 1 temporary files" in done.stderr, done.stderr
    nothing_runs(f"TILEWEAVE_TEST_RUN={tmp_path}")
    assert [path.name for path in tmp_path.iterdir()] == ["marks"]


IDLE = """
import os, signal, sys, time
from tileweave.runtime.ray import connect, session
connect(2)
for process in session._started()["gcs_server"]:
    os.kill(process, signal.SIGKILL)
print("killed", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@needs_ray
@pytest.mark.slow
def test_a_cluster_whose_control_service_is_gone_is_ended_though_the_driver_hangs(tmp_path: Path) -> None:
    """The watchdog reports within ten seconds, and what the driver has started is gone but the driver."""
    env = {**ENV, "TILEWEAVE_TEST_RUN": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", IDLE], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as one:
        assert one.stdout is not None and one.stderr is not None
        assert one.stdout.readline() == b"killed\n"
        began = time.monotonic()
        assert b"of the local cluster is gone; ended" in one.stderr.readline()
        assert time.monotonic() - began < 10
        left = [Path(f"/proc/{p}/cmdline").read_bytes() for p in watchdog.family([one.pid]) if p != one.pid]
        assert len(left) == 1 and b"watchdog.py" in left[0], left
        one.kill()
    nothing_runs(f"TILEWEAVE_TEST_RUN={tmp_path}")


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


NODES = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
from plans import misbehaving, rows_plan
from ray.cluster_utils import Cluster
from tileweave import graph as g
from tileweave.planner import machines
from tileweave.runtime import Progress, run_plan
from tileweave.runtime.io import files as io
here, kill = Path(sys.argv[1]), sys.argv[2] == "kill"
quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_timeout_ms": 3000,
         "health_check_failure_threshold": 5}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": quick})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
x = np.random.default_rng(0).integers(0, 9, (96, 40))
np.save(here / "x.npy", x)
kind, data = io.describe(here / "x.npy")
doubled = misbehaving(g.Tensor(g.Source(data, kind)) * 2, here / "marks", milliseconds=60 if kill else 0)
product = g.matmul(doubled, g.transpose(doubled))
plan = rows_plan(g.Sink(product, io.target(here / "y.npy")), machines(3, memory="1GiB"), 24)
def end(event):
    if kill and isinstance(event, Progress) and event.done == 8:
        threading.Thread(target=cluster.remove_node, args=(nodes[0],), kwargs={"allow_graceful": False}).start()
run_plan(plan, runtime="ray", address=cluster.address, listeners=[end])
want = (x * 2 + 1) @ (x * 2 + 1).T
assert (np.load(here / "y.npy") == want).all()
hosts = {path.read_text().split()[0] for path in (here / "marks").iterdir()}
assert len(hosts) >= 2, hosts
left = [path.name for path in here.iterdir() if path.name not in ("x.npy", "y.npy", "marks")]
assert not left, left
print("right")
import ray
ray.shutdown()
cluster.shutdown()
"""


NODELESS = """
import sys, threading
from importlib import import_module
from pathlib import Path
import numpy as np
from plans import misbehaving, rows_plan
from ray.cluster_utils import Cluster
from tileweave import graph as g
from tileweave.errors import RunError
from tileweave.planner import machines
from tileweave.runtime import Progress, run_plan
from tileweave.runtime.io import files as io
here = Path(sys.argv[1])
quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_timeout_ms": 3000,
         "health_check_failure_threshold": 5}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": quick})
node = cluster.add_node(num_cpus=2)
y = misbehaving(g.as_tensor(np.arange(64)) * 2, here / "marks", milliseconds=200)
plan = rows_plan(g.Sink(y, io.target(here / "a.npy")), machines(2, memory="1GiB"), 32)
def end(event):
    if isinstance(event, Progress) and event.done == 4:
        threading.Thread(target=cluster.remove_node, args=(node,), kwargs={"allow_graceful": False}).start()
import_module("tileweave.runtime.ray.engine").NODELESS_SECONDS = 5.0
try:
    run_plan(plan, runtime="ray", address=cluster.address, listeners=[end])
except RunError as error:
    print("RunError:", error)
print("left", sorted(path.name for path in here.iterdir()), flush=True)
import ray
ray.shutdown()
cluster.shutdown()
"""


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(800)
def test_a_run_ends_where_no_node_is_left_that_computes(tmp_path: Path) -> None:
    """The cluster answers, and Ray itself would wait for a node to come."""
    done = on_nodes([sys.executable, "-c", NODELESS, str(tmp_path)])
    assert "has no node of 1 cores any more; no sink was written" in done.stdout, (done.stdout, done.stderr)
    assert "left ['marks']" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the watchdog is for Linux and macOS")
def test_the_end_of_a_driver_is_told_where_its_services_have_ended_before_it() -> None:
    """Ray ends a driver, and the services that it has started, when its node is gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    program = f"""
import os
from tileweave.runtime.ray.watchdog import Watchdog
held = Watchdog(services={{"raylet": [{gone.pid}]}})
os._exit(1)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=ENV)
    assert ended.returncode == 1
    assert "was ended; ended 0 processes, removed 0 temporary files" in ended.stderr


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(800)
@pytest.mark.parametrize("kill", ["kill", "keep"])
def test_several_nodes_one_of_which_may_die(tmp_path: Path, kill: str) -> None:
    """Real raylets; the result is right, whichever node ends in the midst of the run."""
    done = on_nodes([sys.executable, "-c", NODES, str(tmp_path), kill])
    assert "right" in done.stdout.split(), done.stderr


TWO = """
import os, subprocess, sys
import numpy as np
import tileweave as tw
folder, number, address = sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
def program():
    x = tw.source(folder + "/x.npy")
    for _ in range(3):
        tw.run(tw.sink(x * number + tw.sum(x, 0), f"{folder}/y{number}.npy", overwrite=True),
               machines=2, runtime="ray", address=address)
if address:
    program()
else:
    from ray.cluster_utils import Cluster
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    x = np.random.default_rng(0).random((300, 50))
    np.save(folder + "/x.npy", x)
    drivers = [subprocess.Popen([sys.executable, __file__, folder, str(k), cluster.address]) for k in (2, 3)]
    assert [driver.wait(200) for driver in drivers] == [0, 0]
    for k in (2, 3):
        np.testing.assert_allclose(np.load(f"{folder}/y{k}.npy"), x * k + x.sum(0))
    cluster.shutdown()
    print("right")
"""


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(800)
def test_two_drivers_share_a_cluster_of_several_nodes(tmp_path: Path) -> None:
    program = tmp_path / "two.py"
    program.write_text(TWO)
    done = on_nodes([sys.executable, str(program), str(tmp_path), "0"])
    assert "right" in done.stdout.split(), done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"two.py", "x.npy", "y2.npy", "y3.npy"}


LOST = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
from plans import misbehaving, rows_plan
from tileweave import graph as g
from tileweave.errors import RunError
from tileweave.planner import machines
from tileweave.runtime import Progress, run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.ray import connect, session
here, service = Path(sys.argv[1]), sys.argv[2]
connect(2)
y = misbehaving(g.as_tensor(np.arange(64)), here / "marks", milliseconds=400)
plan = rows_plan(g.Sink(y, io.target(here / "a.npy")), machines(2), 64)
killed = []
def kill(event):
    if isinstance(event, Progress) and not killed:
        killed.append(time.monotonic())
        for process in session._started()[service]:
            os.kill(process, signal.SIGKILL)
try:
    run_plan(plan, runtime="ray", listeners=[kill])
except RunError as error:
    print("error", time.monotonic() - killed[0], flush=True)
else:
    print("right" if (np.load(here / "a.npy") == np.arange(64) + 1).all() else "wrong", flush=True)
"""


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("service", ["raylet", "gcs_server"])
def test_a_service_that_is_killed_ends_the_run_cleanly(tmp_path: Path, service: str) -> None:
    """Either the result is right, or an error comes within ten seconds; no file and no process is left."""
    env = {**ENV, "TILEWEAVE_TEST_RUN": str(tmp_path)}
    words = [sys.executable, "-c", LOST, str(tmp_path), service]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("right", "error"))]
    said = lines[0] if lines else []
    assert said[:1] == ["right"] or (said[:1] == ["error"] and float(said[1]) < 10), (done.stdout, done.stderr)
    assert {path.name for path in tmp_path.iterdir()} <= {"marks", "a.npy"}
    nothing_runs(f"TILEWEAVE_TEST_RUN={tmp_path}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("ray_cluster")
def test_workers_killed_at_random_moments_change_no_result(tmp_path: Path) -> None:
    """Sixty kills over runs of one plan: every run is right, or fails with an error; nothing is left but the result."""
    seed = int.from_bytes(os.urandom(4), "little")
    rng = np.random.default_rng(seed)
    x = g.as_tensor(np.arange(64))
    plan = rows_plan(g.Sink(misbehaving(x * 2, tmp_path / "marks", milliseconds=40), io.target(tmp_path / "a.npy")),
                     machines(2, memory="1GiB"), 32)  # fmt: skip

    def workers(called: bytes) -> list[int]:
        return [p for p in watchdog.family(session._started().get("raylet", [])) if called in _command(p)]

    for process in workers(b"ray::IDLE") + workers(b"ray::work"):  # not a node's agents, with which it ends
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    began = time.monotonic()
    run_plan(plan, runtime="ray", threads=2, overwrite=True)
    slow = max(1.0, (time.monotonic() - began) / 4)  # new workers take longer than that on a busy machine
    stop, killed = threading.Event(), list[int]()

    def kill() -> None:
        """One worker after the other, however many runs end meanwhile."""
        while not stop.wait(slow * float(rng.uniform(0.5, 4.0))):
            if busy := workers(b"ray::work"):
                with suppress(OSError):
                    os.kill(busy[int(rng.integers(len(busy)))], signal.SIGKILL)
                    killed.append(1)

    killer, runs, right = threading.Thread(target=kill), 0, 0
    killer.start()
    try:
        while len(killed) < 60:
            runs += 1
            with suppress(RunError):  # one task may be lost more often than it is tried
                run_plan(plan, runtime="ray", threads=2, overwrite=True)
                right += 1
                np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(64) * 2 + 1)
            assert {path.name for path in tmp_path.iterdir()} <= {"marks", "a.npy"}
    finally:
        stop.set()
        killer.join()
    print("seed", seed, "runs", runs, "right", right, "kills", len(killed))
    assert right >= runs // 2, (right, runs)


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
