"""Products of groups of rows by the kernel of the kernel language: a plan names it, its printed text computes it."""

import shutil

import ml_dtypes
import numpy as np
import pytest

import tileweave as tw
from tileweave.backends import base
from tileweave.backends.cuda import grouped
from tileweave.backends.cuda.offered import OfferedKernels, offer

random = np.random.default_rng(0)
needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def example(dtype):
    sizes = np.array([3, 0, 70, 2, 0], np.int32)
    x, w = (random.standard_normal(s).astype(dtype) for s in ((80, 50), (5, 50, 90)))
    ends = np.cumsum(sizes)
    parts = [x[e - n : e].astype(float) @ w[g].astype(float) for g, (n, e) in enumerate(zip(sizes, ends, strict=True))]
    return x, w, sizes, np.concatenate([*parts, np.zeros((5, 90))])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_kernel_is_right(dtype):
    x, w, sizes, want = example(dtype)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    for arch in ("", "sm_90a", "sm_80"):
        found = grouped.ragged_dot.check(x, w, starts, np.zeros((80, 90), dtype), arch=arch).outputs["out"]
        np.testing.assert_allclose(found.astype(float), want, 1e-2, 0.1 if np.dtype(dtype).itemsize < 4 else 1e-4)


@needs_gpp
def test_a_plan_takes_it():
    x, w, sizes, want = example(np.float16)
    y = tw.nn.ragged_dot(*map(tw.source, (x, w, sizes)))
    offer("cpu", "sm_90a")
    try:
        for machines in (1, 2):
            plan = tw.plan(y, machines)
            assert plan.steps[0].kernel.kernel == "product of 5 groups of rows by tiles of 64 x 64 x 32"
            np.testing.assert_allclose(tw.run(plan).astype(float), want, 1e-2, 0.05)
    finally:
        base.unregister("kernels")


def test_machines_with_a_device_name_it():
    x, w = tw.source(np.ones((1024, 512), np.float16)), tw.source(np.ones((8, 512, 512), np.float16))
    y = tw.nn.ragged_dot(x, w, tw.source(np.full(8, 128)))
    said = " ".join(tw.plan(y, tw.machines(1, gpu="sm_90a")).explain().split("on sm_90a:")[1].split())
    assert "ragged_dot product of 8 groups of rows by tiles of 64 x 64 x 32: wgmma, 1 warpgroup" in said


def test_what_it_does_not_take_is_told():
    kernels = OfferedKernels("cuda", "sm_90a")
    assert "do not pay" in kernels.supports_groups((8, 8), (2, 8, 8), np.dtype(np.float16)).reason
    assert kernels.supports_groups((8, 8), (2, 8, 8), np.dtype(np.int32)).reason == "no product of groups of int32"
