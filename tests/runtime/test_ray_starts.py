"""A local cluster that starts late, or not at all."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import nothing_runs
from test_ray_faults import ENV, needs_ray

pytestmark = [pytest.mark.ray]

LATE = """
import logging, os, sys
from pathlib import Path
from ray._private import services
import tileweave as tw
from tileweave.errors import RunError
from tileweave.runtime.ray import session, watchdog
from tileweave.runtime.ray.session import shutdown
fails, session.LATE_SECONDS = int(sys.argv[1]), float(sys.argv[2])
place, name = (services, "get_node") if sys.argv[3] == "node" else (session, "_session")
found, scratch = getattr(place, name), []
def late(*given):
    scratch.append(session._SCRATCH)
    if len(scratch) > fails:
        return found(*given)
    raise TimeoutError("timed out during startup")  # with a control service and a raylet that run, or all of them
setattr(place, name, late)
logging.basicConfig(format="%(message)s")
def left():
    try:
        return [os.waitpid(-1, os.WNOHANG), *watchdog.family([os.getpid()])]  # those that have ended, too
    except ChildProcessError:
        return []
try:
    print(tw.run(tw.source([1, 2]) * 3, runtime="ray").tolist())
    assert not scratch[0].exists() and scratch[1].exists() and len(scratch) == 2
    shutdown()
except RunError as error:
    print(error)
print("started", len(set(scratch)), "left", left(), [one for one in scratch if one.exists()])
"""


@needs_ray
@pytest.mark.parametrize("where", ["node", "session"])
@pytest.mark.parametrize(
    ("fails", "slow", "says"),
    [
        (1, True, "[3, 6]\nstarted 2 left [] []\n"),
        (2, True, "no local cluster could be started in two attempts, the first of .* s\n.*started 2 left [] []\n"),
        (1, False, "no local cluster could be started\n  cause  TimeoutError: .*started 1 left [] []\n"),
    ],
)
def test_a_cluster_that_starts_late_is_started_once_again(
    tmp_path: Path, fails: int, slow: bool, says: str, where: str
) -> None:
    """Nothing is left of a start that fails, from then on: no process of it and no folder."""
    words = [sys.executable, "-c", LATE, str(fails), "0" if slow else "1000", where]
    env = {**ENV, "TILEWEAVE_TEST_RUN": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, env=env)
    assert re.search(re.escape(says).replace(r"\.\*", "(?s:.*)"), done.stdout), (done.stdout, done.stderr)
    assert ("is started once again" in done.stderr) == slow
    nothing_runs(f"TILEWEAVE_TEST_RUN={tmp_path}")


THREADS = """
import threading
import tileweave as tw
from tileweave.runtime.ray import session, shutdown
found, begun, begin = [], [], session._begin
def counted(*given):
    begun.append(given)
    return begin(*given)
session._begin = counted
def go():
    found.append(tw.run(tw.source([1, 2]) * 3, runtime="ray").tolist())
threads = [threading.Thread(target=go) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
go()
print(found, len(begun))
shutdown()
"""


@needs_ray
def test_threads_that_end_leave_the_cluster_that_they_have_started_together(tmp_path: Path) -> None:
    env = {**ENV, "TILEWEAVE_TEST_RUN": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=200, env=env)
    assert done.stdout == "[[3, 6], [3, 6], [3, 6]] 1\n", (done.stdout, done.stderr)
    nothing_runs(f"TILEWEAVE_TEST_RUN={tmp_path}")
