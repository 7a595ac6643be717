"""Threads that switch every few microseconds share plans, kernels, nodes and executables, and no value changes."""

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from plans import random_plan
from random_graphs import random_graph
from test_outputs import graphs

from tileweave import graph as g
from tileweave.planner import machines
from tileweave.runtime import run_plan

SECONDS = 60


@pytest.fixture
def _switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_switching")
def test_threads_that_run_plans_at_once_disturb_nobody() -> None:
    """Four threads make and run random plans of few graphs, so that they share nodes, kernels and what is kept."""
    seed = int.from_bytes(os.urandom(4), "little")
    until, raised, runs = time.monotonic() + SECONDS, list[BaseException](), list[int]()

    def once(rng: np.random.Generator, tensors: list[g.Tensor], bounds: list[float]) -> None:
        expected = g.evaluate(tensors)
        plan = random_plan(g.Graph.of(*tensors), machines(3, memory="1GiB"), rng)
        for listening in (True, False, True, False):
            events: list[Any] = []
            results = run_plan(plan, threads=3, listeners=[events.append] if listening else [])
            for got, want, bound in zip(results, expected, bounds, strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=bound)
            if listening:
                assert all(a <= b for a, b in zip(events[-1].peak_bytes, plan.peak_bytes, strict=True))
        runs.append(1)

    def work(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        try:
            while time.monotonic() < until and not raised:
                which = int(rng.integers(8))
                if which < 4:
                    for tensors in graphs(np.random.default_rng(which)):
                        once(rng, tensors, [1e-9] * len(tensors))
                else:
                    values = random_graph(which, "float64")
                    once(rng, [v.tensor for v in values], [8 * 2.3e-16 * (v.error + 1) for v in values])
                if rng.random() < 0.3:
                    gc.collect()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("seed", seed, "plans", len(runs))
    if raised:
        raise AssertionError(f"seed {seed}") from raised[0]
    assert len(runs) > 20
