"""Tables that keep what came last, while many threads change them."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph
from tileweave.kept import keep_last


@dataclass(frozen=True)
class Key:
    """Its hash and comparison are Python code in which other threads get their turn."""

    value: int

    def __hash__(self) -> int:
        time.sleep(0)
        return hash(self.value % 17)

    def __eq__(self, other: object) -> bool:
        time.sleep(0)
        return isinstance(other, Key) and other.value == self.value


def test_last_entries_stay_in_order() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(200):
        keys = [draw.randrange(40) for _ in range(draw.randrange(60))]
        most = draw.randrange(12)
        kept, want = dict[int, int](), list[int]()
        for key in keys:
            kept[key] = key
            want = want if key in want else [*want, key]
            keep_last(kept, most)
            want = want[len(want) - most :] if len(want) > most else want
        assert list(kept) == want


def test_ordered_dictionaries_are_refused() -> None:
    with pytest.raises(TypeError, match="a plain dict is needed, not OrderedDict"):
        keep_last(OrderedDict(), 3)


def _in_threads(count: int, work: Any) -> None:
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert not errors, errors


def test_threads_that_change_one_table_do_not_disturb_each_other() -> None:
    kept: dict[Key, int] = {}

    def work(number: int) -> None:
        draw = random.Random(number)
        for _ in range(400):
            key = Key(draw.randrange(1000))
            kept.pop(key, None)
            kept[key] = number
            keep_last(kept, 8)

    _in_threads(8, work)
    assert len(kept) <= 8


def test_tables_of_kernels_that_are_full_serve_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that compute many kinds of sums at once, beside tables that hold few of them."""
    monkeypatch.setitem(vars(importlib.import_module("tileweave.lower.emitted")), "KEPT", 2)
    monkeypatch.setitem(vars(importlib.import_module("tileweave.lower.execute")), "KEEP_KERNELS", 3)
    equations = (
        "ij,kj->ik",
        "ij,kj->ki",
        "ji,jk->ik",
        "ij,kj->ijk",
        "ij,ij->i",
        "ij,ij->j",
        "ij,kl->ijkl",
        "ij,kl->ik",
    )
    types = (np.float64, np.float32, np.int64, np.int32)

    def work(number: int) -> None:
        draw = random.Random(number)
        for _ in range(25):
            rows = draw.randrange(2, 9)
            a = np.arange(rows * 3).reshape(rows, 3).astype(draw.choice(types))
            equation = draw.choice(equations)
            found = tw.run(tw.einsum(equation, graph.as_tensor(a), graph.as_tensor(a)), machines=2)
            np.testing.assert_array_equal(found, np.einsum(equation, a, a))
            np.testing.assert_array_equal(tw.contract(equation, a, a), np.einsum(equation, a, a))

    _in_threads(6, work)


FORKS = """
import faulthandler, os, random, sys, threading, time
import numpy as np
import tileweave as tw

stop = False


def sums(a, machines):
    t = tw.source(a)
    found = tw.run(tw.sum(t * 2 + t, axis=0), machines=machines), tw.contract("ij,kj->ik", a, a)
    return np.array_equal(found[0], (a * 3).sum(0)) and np.array_equal(found[1], a @ a.T)


def work(number):
    draw = random.Random(number)
    while not stop:
        assert sums(np.arange(draw.randrange(1, 40) * 3.0).reshape(-1, 3), draw.choice([1, 2]))


assert sums(np.ones((2, 3)), 1) and sums(np.ones((2, 3)), 2)  # what is imported late is imported
sys.setswitchinterval(1e-4)
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
ended = []
for _ in range(8):
    time.sleep(random.random() * 0.03)
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        os._exit(0 if sums(np.arange(12.0).reshape(4, 3), 2) else 3)
    ended.append(os.waitpid(child, 0)[1])
stop = True
for thread in threads:
    thread.join()
print(ended)
assert not any(ended)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_children_forked_while_threads_work_compute() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stdout + done.stderr
