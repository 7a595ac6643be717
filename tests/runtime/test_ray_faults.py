"""Workers, nodes, services and drivers that end in the middle of a run on Ray."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leftovers import left_behind, nothing_runs
from plans import misbehaving, rows_plan
from test_local import interrupted

from tileweave import graph as g
from tileweave.errors import RunError
from tileweave.planner import machines
from tileweave.runtime import Progress, Retry, run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.ray import session, watchdog

pytestmark = [
    pytest.mark.ray,
    # Ray leaves its daemons' pipes and sockets to the garbage collector when it shuts down
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the optional package ray is not installed")


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
