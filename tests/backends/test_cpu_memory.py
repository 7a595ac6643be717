"""No byte outside the arrays: compiled programs run between pages that nobody may touch, in a process of their own.

Reads and writes beyond an array end that process; asking for a cache line ahead does not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tileweave.backends.cpu import compile
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
