"""Random kernels: the interpreter computes what NumPy computes, and so does the printed text on the CPU."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from random_kernels import random_kernel  # isort: skip


def check(seed, on):
    trial = random_kernel(seed)
    arrays = [array.copy() for array in trial.arrays]
    want = trial.kernel.check(*arrays, arch="sm_90a").outputs if on == "cpu" else {}
    trial.kernel.run(*arrays, on=on)
    for tensor, array in zip(trial.kernel.tensors, arrays, strict=True) if want else ():
        assert array.tobytes() == want[tensor].tobytes(), f"seed {seed}: {trial.name}"
    got, want = arrays[-1].astype(np.float64), trial.expected.astype(np.float64)
    scale = max(1.0, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
    np.testing.assert_allclose(
        got, want, trial.tolerance, trial.tolerance * scale, err_msg=f"seed {seed}: {trial.name}"
    )


@pytest.mark.parametrize("group", range(5))
def test_the_interpreter_computes_what_numpy_computes(group):
    for seed in range(20 * group, 20 * group + 20):
        check(seed, "interpreter")
    assert group >= 0


@pytest.mark.slow
@pytest.mark.parametrize("group", range(20))
def test_a_thousand_more(group):
    for seed in range(1000 + 50 * group, 1000 + 50 * group + 50):
        check(seed, "interpreter")
    assert group >= 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 1000))])
def test_the_printed_text_computes_what_numpy_computes(seed):
    check(seed, "cpu")
    assert seed >= 0
