"""Sums in FP32 beside their exact values and beside NumPy's: pieces in FP32, totals in FP64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.teir.test_extensions import operand

import tileweave as tw
from tileweave.backends.cpu import compile
from tileweave.backends.cpu.maps.sums import MOST_ROUNDINGS
from tileweave.backends.cpu.target.target import Target
from tileweave.layout import strided
from tileweave.teir import Operand, emit_reduction, numpy_dtype

UNIT = 2.0**-24
"""What one rounding in FP32 adds to an error, relative to what is rounded."""
TARGETS = [None, Target("x86-64-v3", "", vector_bytes=32, registers=16), Target("x86-64", "", 16, 16)]
DRAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.random(shape),
    "far from zero": lambda rng, shape: 1000 + rng.standard_normal(shape) / 100,
    "of many sizes": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, shape),
    "equal": lambda rng, shape: np.full(shape, 0.1),
    "that cancel": lambda rng, shape: _cancelling(rng, shape),
}
CASES = [
    ((82, 4663), (0, 1)),
    ((431, 517), (1,)),
    ((1021, 133), (0,)),
    ((70_000, 3), (0,)),
    ((3, 70_001), (1,)),
    ((18, 84, 62), (1,)),
    ((6, 301, 9, 40), (0, 2)),
    ((5, 33, 1100), (0,)),
    ((400_003,), (0,)),
]


def _cancelling(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers, and the negatives of about half of them, in any order."""
    half = 1e6 + rng.random(math.prod(shape) // 2)
    rest = math.prod(shape) - 2 * len(half)
    return rng.permutation(np.concatenate([half, -half, rng.random(rest)])).reshape(shape)


def _draw(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return DRAWS[kind](np.random.default_rng(seed), shape).astype(np.float32)


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)
def test_a_sum_is_off_by_few_roundings_and_by_no_more_than_numpys(shape, axes, kind):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    squares = np.zeros(2, np.longdouble)  # of our errors, and of NumPy's
    most, count = 0.0, 0
    while count < 6:
        x = _draw(kind, shape, seed + count)
        made, other = (tw.run(tw.sum(tw.source(x), axes), threads=threads) for threads in (1, 2))
        np.testing.assert_array_equal(made, other)
        exact, sizes = (one.astype(np.longdouble).sum(axes) for one in (x, np.abs(x)))
        last = np.spacing(np.abs(exact).astype(np.float32)).astype(np.longdouble) / 2
        assert (np.abs(made - exact) <= 1.01 * (MOST_ROUNDINGS * UNIT * sizes + last)).all(), seed
        squares += [((one - exact) ** 2).sum() for one in (made, x.sum(axes))]
        most, count = max(most, last.max()), count + np.size(made)
    ours, numpys = np.sqrt(squares / count)
    assert ours <= (1 + 4 / np.sqrt(count)) * numpys + most, seed  # of few results it is chance whose are nearer


@pytest.mark.parametrize("value", [0.1, 0.7, 1.1, 3.3])
def test_a_long_sum_of_equal_numbers_is_as_near_as_numpys(value):
    x = np.full(10_000_000, value, np.float32)
    exact = math.fsum([float(x[0])]) * len(x)
    made = tw.run(tw.sum(tw.source(x)))
    assert abs(made - exact) <= abs(x.sum() - exact) + np.spacing(np.float32(exact))
    assert abs(tw.run(tw.mean(tw.source(x))) - x[0]) <= 2 * np.spacing(x[0])
    tall = np.full((2_000_000, 3), value, np.float32)
    exact = float(x[0]) * len(tall)
    found = abs(tw.run(tw.sum(tw.source(tall), 0)) - exact).max()
    assert found <= 4 * np.spacing(np.float32(exact))
    assert found < abs(tall.sum(0) - exact).max() / 100  # NumPy adds them one by one


@pytest.mark.parametrize("shape", [(1_000_000,), (300, 1111), (40_000, 9)], ids=str)
def test_a_variance_far_from_zero_is_as_good_as_numpys(shape):
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    x = _draw("far from zero", shape, seed)
    for axis in (-1, 0):
        exact = x.astype(np.float64).var(axis)
        made = tw.run(tw.variance(tw.source(x), axis))
        peer = x.var(axis)
        ours, numpys = (np.sqrt(((one - exact) ** 2).mean()) for one in (made, peer))
        assert ours <= (1.5 + 4 / np.sqrt(exact.size)) * numpys + 4 * UNIT * exact.max(), seed  # a mean is a product


@pytest.mark.parametrize("shape", [(7,), (1000,), (200_000,), (61, 3000), (3000, 61)], ids=str)
def test_what_is_no_number_is_numpys(shape):
    rng = np.random.default_rng(5)
    for given in ([np.nan], [np.inf], [-np.inf], [np.inf, -np.inf], [np.nan, np.inf]):
        x = rng.random(shape).astype(np.float32)
        x.reshape(-1)[rng.permutation(x.size)[: len(given)]] = given
        for axis in range(x.ndim):
            with np.errstate(invalid="ignore"):
                wanted = x.sum(axis)
            np.testing.assert_allclose(tw.run(tw.sum(tw.source(x), axis)), wanted, rtol=1e-5)


def test_a_piece_overflows_as_a_sum_in_fp32_does_and_a_total_does_not():
    """NumPy's partial sums of half of all overflow; of ours those of a few elements alone could."""
    x = np.full(1 << 18, 2.0**111, np.float32)
    x[1 << 17 :] *= -1
    assert tw.run(tw.sum(tw.source(x))) == 0.0
    with np.errstate(all="ignore"):
        assert not np.isfinite(x.sum())
    x = np.full(1 << 18, 3e38, np.float32)
    assert tw.run(tw.sum(tw.source(x))) == np.inf
    assert tw.run(tw.sum(tw.source(-x))) == -np.inf


@pytest.mark.parametrize(
    ("target", "dtype"),
    [*((target, "FP32") for target in TARGETS), (None, "BF16"), (None, "FP16")],
    ids=lambda x: x if isinstance(x, str) else x.cpu if x else "host",
)
def test_every_length_of_a_sum_on_several_processors(target, dtype):
    """Along the vectors and across them, begun and taken into what is there."""
    rng = np.random.default_rng(3)
    for k, n in enumerate((1, 3, 16, 33, 63, 64, 129, 515, 1030)):
        for shape, equation, axis in (((3, n), "ab->a", 1), ((n, 5), "ab->b", 0), ((2, n, 3), "abc->ac", 1)):
            x = rng.integers(-4, 5, shape).astype(numpy_dtype(dtype))
            out = rng.integers(-4, 5, x.sum(axis).shape).astype("f4")
            wanted = x.astype("f8").sum(axis) + (out if k % 2 else 0)
            program = emit_reduction("sum", operand(x), operand(out), equation, accumulate=bool(k % 2))
            compile(program, target=target, cache=False)(x, out)
            np.testing.assert_array_equal(out, wanted)


def test_a_sum_into_fp64_has_no_pieces_in_fp32():
    x = np.full(4000, 0.1, np.float32)
    x[::2] = 1e8
    out = np.zeros((), np.float64)
    source, result = Operand(strided((4000,), (1,)), "FP32"), Operand(strided((), ()), "FP64")
    compile(emit_reduction("sum", source, result, "a->"), cache=False)(x, out)
    assert abs(out - math.fsum(map(float, x))) <= 1e-4
