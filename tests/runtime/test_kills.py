"""Random kills on a cluster: worker, raylet, control service, node and driver, each at a random moment.

Every run is right, or fails cleanly; no file, process, folder or shared memory is left. How often each victim is drawn
is printed with the seed.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from leftovers import nothing_runs
from test_ray_faults import ENV, NODES, needs_ray

from tileweave.runtime.io.sinks import sweep
from tileweave.runtime.ray.watchdog import family

pytestmark = [pytest.mark.ray, pytest.mark.slow]

QUICK = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "200",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_raylet_start_wait_time_s": "60",
}
"""Ray notices what is gone within a second or two."""

DRIVER = """
import sys
from pathlib import Path
import numpy as np
from plans import misbehaving, rows_plan
from tileweave import graph as g
from tileweave.errors import RunError
from tileweave.planner import machines
from tileweave.runtime import run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.ray import connect
from tileweave.runtime.ray.session import _started
here = Path(sys.argv[1])
connect(2)
print(_started(), flush=True)
y = misbehaving(g.as_tensor(np.arange(64)) * 2, here / "marks", milliseconds=60)
try:
    run_plan(rows_plan(g.Sink(y, io.target(here / "a.npy")), machines(2, memory="1GiB"), 64), runtime="ray", threads=2)
except RunError as error:
    print("RunError", error, file=sys.stderr, flush=True)
    sys.exit(3)
print("right", flush=True)
"""


VICTIMS = ("worker", "raylet", "agents", "gcs_server", "SIGINT", "SIGTERM", "SIGKILL")
"""A worker in the midst of its work; what a node consists of; the control service; the driver, by signals."""
LATE = 3
"""How many clusters may not start in time, on a busy machine."""


def traces(scratch: Path) -> set[str]:
    """What runs might leave outside their folder: temporary files, and shared memory that no living process holds."""
    return {str(path) for path in scratch.iterdir()} | {path for path in shared() if not held(path)}


def shared() -> set[str]:
    folder = Path("/dev/shm")
    return {str(path) for path in folder.iterdir()} if folder.exists() else set()


def held(path: str) -> bool:
    """Whether a process has the file open or mapped, as another program on this host may, or whether it is gone."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if path in (process / "maps").read_text() or path in map(os.readlink, (process / "fd").iterdir()):
                return True
    return not Path(path).exists()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for the runs' temporary files: of a short name, since sockets lie there, and not that of other runs."""
    with tempfile.TemporaryDirectory(prefix="tw", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def victims(victim: str, services: dict[str, list[int]], rng: np.random.Generator) -> list[int]:
    """The processes of the cluster to be killed: one worker, the raylet's helpers, or a service."""
    if victim in services:
        return services[victim]
    children = [p for p in family(services["raylet"]) if p not in services["raylet"]]
    agents = [p for p in children if words_of(p).partition("\0")[0].endswith("Agent")]  # a node ends with them
    workers = [p for p in children if p not in agents]
    return [int(rng.choice(workers))] if victim == "worker" and workers else agents


def words_of(process: int) -> str:
    """How a process was started, or calls itself; nothing where it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def round_of(folder: Path, scratch: Path, rng: np.random.Generator, victim: str) -> tuple[str, str]:
    """One run, one kill: (the victim, how the run ended)."""
    folder.mkdir()
    env = {**ENV, **QUICK, "TILEWEAVE_TEST_RUN": str(folder), "TMPDIR": str(scratch)}
    words = [sys.executable, "-c", DRIVER, str(folder)]
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=env) as driver:
        assert driver.stdout is not None
        services: dict[str, list[int]] = eval(driver.stdout.readline() or "{}")
        if not services:  # Ray's own services are late on a busy machine
            error = driver.communicate(timeout=90)[1]
            assert "no local cluster could be started" in error, error
            nothing_runs(f"TILEWEAVE_TEST_RUN={folder}")
            return "none", "late"
        time.sleep(float(rng.uniform(0, 4)))
        if victim.startswith("SIG"):
            targets, how = [driver.pid], signal.Signals[victim]
        else:
            targets, how = victims(victim, services, rng), signal.SIGKILL
        for target in targets:
            with suppress(ProcessLookupError):
                os.kill(target, how)
        began = time.monotonic()
        out, error = driver.communicate(timeout=240)
        seconds = time.monotonic() - began
    if victim in ("gcs_server", "SIGINT", "SIGTERM", "SIGKILL") and driver.returncode:  # else on a second cluster
        assert seconds < 30, f"{victim} {seconds}\n{error}"
    nothing_runs(f"TILEWEAVE_TEST_RUN={folder}")
    names = {path.name for path in folder.iterdir()}
    assert names <= {"marks", "a.npy"}, (victim, names, error)
    if driver.returncode == 0:
        assert "right" in out.splitlines()  # Ray may have told of a worker or a node before or behind
    if "a.npy" in names:
        np.testing.assert_array_equal(np.load(folder / "a.npy"), np.arange(64) * 2 + 1)
    ended = {0: "right", 3: "error"}.get(driver.returncode, "ended")
    by_ray = victim in ("raylet", "agents", "gcs_server") and "tileweave: the driver" in error  # it ends drivers
    assert victim.startswith("SIG") or ended != "ended" or by_ray, f"{victim} {driver.returncode} {names}\n{out}{error}"
    return victim, ended


@needs_ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("piece", range(6))
def test_whatever_is_killed_on_a_cluster_leaves_nothing(tmp_path: Path, scratch: Path, piece: int) -> None:
    """Nine kills, one of them of each kind; sixty with the nodes below, beside forty of drivers without a cluster."""
    seed = int(os.environ.get("TILEWEAVE_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    rng, before, seen = np.random.default_rng(seed + piece), traces(scratch), Counter[tuple[str, str]]()
    order = [str(rng.choice(VICTIMS)), str(rng.choice(VICTIMS)), *map(str, rng.permutation(VICTIMS))]
    print("seed", seed, "piece", piece)
    for number in range(len(order) + LATE):
        ended = round_of(tmp_path / str(number), scratch, rng, order[-1])
        seen[ended] += 1
        print(number, *ended, flush=True)
        assert traces(scratch) <= before, (seed, number, traces(scratch) - before)
        order.pop() if ended[1] != "late" else None
        if not order:
            return
    raise AssertionError(seen)


@needs_ray
@pytest.mark.timeout(3600)
def test_nodes_killed_at_random_moments(tmp_path: Path, scratch: Path) -> None:
    """Real raylets; in each of eight runs, one ends at a random moment."""
    seed = int.from_bytes(os.urandom(4), "little")
    rng, before, late = np.random.default_rng(seed), traces(scratch), 0
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = NODES.replace("event.done == 8", f"event.done == {rng.integers(1, 60)}")
        script = script.replace("len(hosts) >= 2", "hosts")  # others may be late where the first ends at once
        words = [sys.executable, "-c", script, str(folder), "kill"]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=240, env={**ENV, **QUICK, "TMPDIR": str(scratch)}
        )
        if "during startup" in done.stderr:  # Ray's own nodes are late on a busy machine
            late += 1
            continue
        assert "right" in done.stdout.split(), (seed, number, done.stderr)
        sweep(folder)
        assert {path.name for path in folder.iterdir()} == {"marks", "x.npy", "y.npy"}
    shutil.rmtree(
        scratch / "ray", ignore_errors=True
    )  # the session of Ray's own cluster, which tileweave never removes
    assert traces(scratch) <= before, (seed, traces(scratch) - before)
    assert late < 4
