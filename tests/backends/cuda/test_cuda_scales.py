"""Products with a scale for every 32 elements in tensor memory: ``tcgen05.cp`` and ``kind::mxf8f6f4`` on the fibers."""

import shutil
from pathlib import Path
from random import Random

import ml_dtypes
import numpy as np
import pytest

from tileweave.backends.cuda import compile as compile_text
from tileweave.backends.cuda import run
from tileweave.errors import BackendError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

TEXT = (Path(__file__).parent / "kernels" / "scaled_product.cu").read_text("utf-8")


def number(n, a=0, b=0):
    """The instruction's descriptor: types of A and B, N, scales of type e8m0, M = 128."""
    return a << 7 | b << 10 | n // 8 << 17 | 1 << 23 | 1 << 27


def placed(scales):
    """Scales (rows, 4) as ``tcgen05.cp`` takes them: 16 bytes a lane, four rows 32 apart, four steps each."""
    rows = -(-len(scales) // 128) * 128
    whole = np.full((rows, 4), 127, np.uint8)
    whole[: len(scales)] = scales
    return np.ascontiguousarray(whole.reshape(-1, 4, 32, 4).transpose(0, 2, 1, 3)).reshape(-1)


def case(seed):
    random, draw = Random(seed), np.random.default_rng(seed)
    n, types = random.choice((8, 40, 72, 192)), (random.randrange(2), random.randrange(2))
    kinds = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
    a, b = (draw.integers(-4, 5, (rows, 128)).astype(kinds[t]) for rows, t in zip((128, n), types, strict=True))
    scales = [draw.integers(124, 131, (rows, 4)).astype(np.uint8) for rows in (128, n)]
    print("seed", seed, "n", n, "types", types)
    return n, types, a, b, scales


def arguments(n, types, a, b, scales):
    given = {"c": np.zeros((128, n), np.float32), "a": a.view(np.uint8), "b": b.view(np.uint8)}
    return {**given, "sa": placed(scales[0]), "sb": placed(scales[1]), "number": np.uint32(number(n, *types))}


@pytest.mark.parametrize("seed", range(4))
def test_products_with_scales_are_those_of_numpy(seed):
    n, types, a, b, scales = case(seed)
    given = arguments(n, types, a, b, scales)
    run(TEXT.replace("@N@", str(n)), 1, 128, given, check=True)
    wide = [np.repeat(np.ldexp(1.0, s.astype(int) - 127), 32, axis=1) for s in scales]
    assert (given["c"] == (a.astype(float) * wide[0]) @ (b.astype(float) * wide[1]).T).all()


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        ("| 1ull << 46", "", "descriptor"),
        ('asm volatile("fence.proxy.async;" ::: "memory");', "", "proxy-fence"),
        ('asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");', "", "tensor-fence"),
        ("second = d + 260", "second = d + 510", "tensor-memory"),
        ("number | step << 29", "(number & ~(1u << 23)) | step << 29", "tensor-descriptor"),
        ("number | step << 29", "number | 1 << 13 | step << 29", "tensor-descriptor"),
    ],
)
def test_what_is_wrong_with_scales_is_named(before, after, rule):
    assert before in TEXT
    with pytest.raises(BackendError) as caught:
        run(TEXT.replace("@N@", "40").replace(before, after), 1, 128, arguments(*case_of(40)), check=True)
    assert rule in {f.rule for f in caught.value.findings}


def case_of(n):
    ones = np.full((128, 4), 127, np.uint8)
    kind = ml_dtypes.float8_e4m3fn
    return n, (0, 0), np.ones((128, 128), kind), np.ones((n, 128), kind), [ones, ones[:n]]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_text_compiles_without_spills():
    found = compile_text(TEXT.replace("@N@", "128"), "sm_100a")
    assert found.kernels["scaled"].spill_bytes == 0
