import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
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


def test_idle_memory_is_that_of_the_sizes_met_last() -> None:
    arena = host.Arena(keep_bytes=64 << 20)
    for size in range(5 << 20, 40 << 20, 3 << 20):
        arena.give(arena.take(size))
    again = arena.take(11 << 20)
    arena.give(again)
    assert arena.take(11 << 20) is again
    idle = [block.size for blocks in arena._idle.values() for *_, block in blocks]
    assert sum(idle) == arena._idle_bytes <= 64 << 20
    assert max(idle) >= 38 << 20, "what was given back last stays"
    with arena.limited(8 << 20):
        assert arena._idle_bytes <= 8 << 20
        arena.give(again)
        assert arena.take(11 << 20) is not again, "it is larger than what may lie idle"


def test_memory_that_lies_idle_for_long_goes() -> None:
    arena = host.Arena(keep_seconds=0.05)
    old = arena.take(5 << 20)
    arena.give(old)
    time.sleep(0.1)
    arena.give(arena.take(1 << 20))
    assert arena._idle_bytes == 1 << 20


def test_results_take_turns_in_the_memory_that_stays_for_them() -> None:
    make, arena = host.allocation((1 << 18,), np.uint8), host.arena
    before = arena._kept_bytes
    held = [make() for _ in range(5)]
    assert len({host.address_of(one) for one in held}) == 5, "somebody holds them all"
    assert arena._kept_bytes - before == 2 << 18
    found = set()
    result = make()
    for _ in range(6):
        result = make()
        found.add(host.address_of(result))
    assert len(found) == 2, "the one before is still held when the next is made"
    del held, result, make
    assert arena._kept_bytes == before


def test_threads_that_hold_results_leave_no_more_memory_with_what_makes_them() -> None:
    make, arena, old = host.allocation((1 << 17,), np.uint8), host.arena, sys.getswitchinterval()
    before, together = arena._kept_bytes, threading.Barrier(4)

    def work() -> None:
        mine = []
        for turn in range(600):
            if turn % 30 == 0:
                together.wait(60)
            mine.append(make())
            del mine[: -1 - turn % 5]

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    held = [make() for _ in range(16)]
    assert len(held) == 16 and arena._kept_bytes - before <= host.KEPT_RESULTS << 17


def test_a_block_that_is_too_large_to_stay_takes_the_place_of_none() -> None:
    arena = host.Arena(keep_bytes=8 << 20)
    small = arena.take(1 << 20)
    arena.give(small)
    arena.give(arena.take(9 << 20))
    assert arena._idle_bytes == 1 << 20
    assert arena.take(1 << 20) is small
