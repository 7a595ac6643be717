import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tileweave.backends import host


def test_a_process_that_is_forked_in_a_frugal_run_has_no_limits() -> None:
    if not hasattr(os, "fork"):
        pytest.skip("the system does not fork")
    inside, outside = os.pipe()
    with warnings.catch_warnings(), host.frugal(1):
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests
        child = os.fork()
        if child == 0:
            os.write(outside, repr((host.arena._limits, host._FRUGAL)).encode())
    if child == 0:
        os._exit(0)  # the block has ended in the child, too
    os.close(outside)
    with os.fdopen(inside) as told:
        assert told.read() == "([], [])"
    assert os.waitpid(child, 0)[1] == 0
    assert not host.arena._limits


def test_folders_of_processes_that_were_killed_go_with_the_next_one(tmp_path: Path) -> None:
    words = (
        "import os, signal; from tileweave.backends.folders import scratch; it = scratch(); print(it.name, flush=True)"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = [sys.executable, "-c", f"{words}; os.kill(os.getpid(), signal.SIGKILL)"]
    waiting = [sys.executable, "-c", f"{words}; input()"]
    with subprocess.Popen(waiting, env=env, stdin=-1, stdout=-1, text=True) as living:
        assert living.stdout is not None
        kept = Path(living.stdout.readline().strip())
        left = Path(subprocess.run(killed, env=env, capture_output=True, text=True).stdout.strip())
        assert left.is_dir() and kept.is_dir()
        (tmp_path / "tileweave-mine").mkdir()
        subprocess.run([sys.executable, "-c", words], env=env, check=True, capture_output=True)
        assert {path.name for path in tmp_path.iterdir()} == {kept.name, "tileweave-mine"}
        living.communicate("")
