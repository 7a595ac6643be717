"""No byte outside the arrays: compiled programs run between pages that nobody may touch, in a process of their own.

Reads and writes beyond an array end that process; asking for a cache line ahead does not.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tileweave.backends.cpu import compile
from tileweave.backends.host import allocation, fills_its_memory
from tileweave.layout import strided
from tileweave.teir import Operand, emit_copy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are protected as Linux does")

RUN = """
import sys
sys.path.insert(0, {folder!r})
import faulthandler
faulthandler.enable()
import {module} as module
module.{call}
print("whole")
"""


def in_a_process(module: str, call: str) -> tuple[str, str]:
    """What a call prints in a new process, and the end of what it writes to stderr."""
    text = RUN.format(folder=str(Path(__file__).parent), module=module, call=call)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=3000, check=False)
    return done.stdout, f"exit {done.returncode}: {done.stderr[-2000:]}"


def test_the_guard_pages_guard() -> None:
    for at, at_end, whole in ((7, True, True), (8, True, False), (-1, False, False)):
        stdout, _ = in_a_process("random_programs", f"peek({at}, at_end={at_end})")
        assert ("whole" in stdout) == whole


@pytest.mark.parametrize("block", range(2))
def test_random_programs_stay_within_their_arrays(block: int) -> None:
    stdout, problem = in_a_process("random_programs", f"protected({500_000 + 1000 * block}, 45)")
    assert "whole" in stdout, problem


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_random_programs_stay_within_their_arrays(block: int) -> None:
    stdout, problem = in_a_process("random_programs", f"protected({600_000 + 1000 * block}, 300)")
    assert "whole" in stdout, problem


@pytest.mark.slow
def test_arrays_beyond_two_gigabytes() -> None:
    count = 2**31 + 4099
    source, out = np.zeros(count, np.int8), np.zeros(count, np.int8)
    places = np.array([0, 1, 63, 4096, 2**30 + 7, 2**31 - 1, 2**31, 2**31 + 1, count - 1])
    source[places] = np.arange(1, 1 + len(places))
    flat = Operand(strided((count,), (1,)), "INT8")
    compile(emit_copy(flat, flat), cache=False)(source, out)
    assert np.array_equal(out[places], source[places])
    assert np.count_nonzero(out) == len(places)
    rows = Operand(strided((2, 2**30 + 2049), (2**30 + 2049, 1)), "INT8")
    columns = Operand(strided((2**30 + 2049, 2), (2, 1)), "INT8")
    compile(emit_copy(rows, columns, "ab->ba"), cache=False)(source[:-1], out[:-1])
    half = 2**30 + 2049
    assert np.array_equal(out[2 * (places[:-1] % half) + places[:-1] // half], source[places[:-1]])
    assert np.count_nonzero(out[:-1]) == len(places) - 1


@pytest.mark.parametrize("length", [100, 20_000, 200_000, 3_000_000])
def test_results_that_are_alive_never_share_memory(length: int) -> None:
    """Memory of results is used again as soon as nothing refers to it, by view or by the result, and no sooner."""
    make, rng, alive = allocation((length,), np.float32), np.random.default_rng(length), []
    for turn in range(120):
        new = make()
        assert fills_its_memory(new) and not any(np.may_share_memory(new, other) for other, _ in alive)
        new[:] = turn
        alive.append((new[rng.integers(length) :] if rng.random() < 0.5 else memoryview(new), turn))
        del new
        while len(alive) > rng.integers(5):
            kept, value = alive.pop(rng.integers(len(alive)))
            assert (np.asarray(kept) == value).all()


def test_threads_that_make_results_at_once_never_share_memory() -> None:
    make, wrong, old = allocation((50_000,), np.int32), [], sys.getswitchinterval()

    def work(number: int) -> None:
        for turn in range(400):
            mine = make()
            mine[::5000] = number * 1000 + turn
            other = make() if turn % 3 == 0 else None
            if other is not None:
                other[::5000] = -1
            if (mine[::5000] != number * 1000 + turn).any():
                wrong.append((number, turn))

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    assert not wrong
