"""Random kernels: what NumPy computes is what they say, what their explicit program says, and what their text leaves.

Many kernels are one text that g++ compiles once; threads and blocks run forward, backward and in a random order.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from tileweave.backends.cuda.printer.entry import run_together
from tileweave.kernel.dispatch import lower

sys.path.insert(0, str(Path(__file__).resolve().parent))

from random_kernels import random_kernel, random_wide_product  # isort: skip

ORDERS = ("forward", "reversed", 7)


def right(got, trial, seed):
    got, want = got.astype(np.float64), trial.expected.astype(np.float64)
    scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
    np.testing.assert_allclose(
        got, want, trial.tolerance, trial.tolerance * scale, err_msg=f"seed {seed}: {trial.name}"
    )


def check_many(seeds, arch, order, make=random_kernel):
    """Operators as NumPy, the explicit program as NumPy, and the printed text bit for bit as the explicit program."""
    runs, explicit = [], []
    for seed in seeds:
        trial = make(seed)
        arrays = [array.copy() for array in trial.arrays]
        trial.kernel.run(*arrays)
        right(arrays[-1], trial, seed)
        explicit.append(trial.kernel.check(*trial.arrays, arch=arch).outputs)
        runs.append((trial.kernel.trace(*trial.arrays), [array.copy() for array in trial.arrays]))
        right(explicit[-1][trial.kernel.tensors[-1]], trial, seed)
    if shutil.which("g++"):
        run_together(runs, "cpu", arch, order=order, optimise=False)
        for seed, (kernel, arrays), want in zip(seeds, runs, explicit, strict=True):
            for p, array in zip(kernel.params, arrays, strict=True):
                assert array.tobytes() == want[p.name].tobytes(), f"seed {seed}: {p.name} of {kernel.name}"
    return [kernel for kernel, _ in runs]


def in_tensor_memory(kernel):
    return any(c.atom.startswith("tcgen05.mma") for c in lower(kernel, "sm_100a").choices)


def test_products_of_large_tiles_into_tensor_memory_or_not():
    made = check_many(range(3000, 3016), "sm_100a", ORDERS[1], random_wide_product)
    assert 5 <= sum(map(in_tensor_memory, made)) < 16  # some have no such form


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_many_products_of_large_tiles(part):
    made = check_many(range(4000 + 40 * part, 4040 + 40 * part), "sm_100a", ORDERS[part % 3], random_wide_product)
    assert any(map(in_tensor_memory, made))


@pytest.mark.parametrize("part", range(2))
def test_a_hundred_kernels(part):
    check_many(range(50 * part, 50 * part + 50), ("sm_90a", "sm_80")[part], ORDERS[part])
    assert part >= 0


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_two_thousand_kernels(part):
    check_many(range(1000 + 50 * part, 1050 + 50 * part), ("sm_90a", "sm_89")[part % 2], ORDERS[part % 3])
    assert part >= 0
