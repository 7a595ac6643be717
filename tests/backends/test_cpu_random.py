"""Random programs: compiled code equals the reference interpreter, for any form, type, stride, alignment and guard."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from random_programs import any_program, arrays_of, contents, difference, shares

from tileweave.backends.cpu import compile, host
from tileweave.teir.ir.program import Iteration


def check(first: int, count: int) -> None:
    for seed in range(first, first + count):
        problem = difference(Random(seed), any_program(seed))
        if problem:
            pytest.fail(problem)


@pytest.mark.parametrize("block", range(8))
def test_random_programs_equal_the_interpreter(block: int) -> None:
    check(1000 * block, 15)


def test_two_reductions_of_one_loop() -> None:
    check(115_296, 1)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_many_random_programs_equal_the_interpreter(block: int) -> None:
    check(100_000 + 1000 * block, 400)


def test_random_programs_for_small_caches() -> None:
    small = replace(host(), l1_bytes=1024, l2_bytes=2048, l3_bytes=4096)
    for seed in range(20):
        assert difference(Random(seed), any_program(seed), target=small) == ""


def test_any_number_of_threads_gives_the_same_bits() -> None:
    """Also where sums are inexact: what is added to what never depends on how many threads there are."""
    compared = 0
    for seed in range(24):
        program = any_program(seed)
        filled = contents(Random(seed), program, exact=False)
        same = shares(Random(seed), program)
        results = []
        for threads in (1, 2, 5):
            stores = {name: data.copy() for name, data in filled.items()}
            compile(program, threads=threads, cache=False).run(arrays_of(program, stores, same))
            results.append(stores)
        assert all(np.array_equal(a[name], results[0][name]) for a in results for name in filled), program.name
        compared += any(isinstance(node, Iteration) and node.policy == "parallel" for node in program.nodes)
    assert compared > 3
