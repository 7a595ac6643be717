"""Windows, attention, norms and their gradients against PyTorch: its table everywhere, itself where it is there."""

import importlib.util

import numpy as np
import pytest
from torch_peer import CASES, TABLE, Case, convolution, inputs, ours, pooling, theirs

torch_only = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch is not installed; its table of answers is compared instead",
)


def agree(got: list[np.ndarray], expected: list[np.ndarray], rtol: float) -> None:
    """Result and gradients, relative to the largest element of each."""
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * max(1.0, float(np.abs(other).max(initial=0))))


@pytest.fixture(scope="module")
def table():
    with np.load(TABLE) as file:
        return dict(file)


def answers(table, name):
    """The result of a case, then the gradient of each of its inputs."""
    return [table[f"{name}/{k}"] for k in range(1 + len(CASES[name].shapes))]


@pytest.mark.parametrize("name", CASES)
def test_against_the_table(table, name):
    case = CASES[name]
    agree(ours(case, inputs(case)), answers(table, name), 1e-12)


def test_the_table_holds_the_cases_and_is_small(table):
    assert {key.rsplit("/", 1)[0] for key in table} == set(CASES)
    assert all(a.dtype == np.float64 for a in table.values()) and TABLE.stat().st_size < 100_000


@torch_only
@pytest.mark.parametrize("name", CASES)
def test_the_table_is_what_torch_says(table, name):
    case = CASES[name]
    agree(answers(table, name), theirs(case, inputs(case)), 1e-12)


@torch_only
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_against_torch(name, dtype):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=shape).astype(dtype) for shape in CASES[name].shapes]
    agree(ours(CASES[name], arrays), theirs(CASES[name], arrays), 2e-5 if dtype == "float32" else 1e-11)


def random_window(rng: np.random.Generator) -> Case:
    """A convolution or a pooling of random rank, extents, stride, dilation, padding and groups."""
    rank = int(rng.integers(1, 4))

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(n) for n in rng.integers(low, high, rank))

    kernel, stride, dilation = some(1, 4), some(1, 4), some(1, 3)
    kind = rng.choice(["conv", "max", "average"])
    # torch pads a pooling by at most half its window
    padding = tuple(int(rng.integers(0, (k // 2 if kind != "conv" else 2) + 1)) for k in kernel)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    extents = tuple(max(s - 2 * p, 1) + int(rng.integers(0, 5)) for s, p in zip(spans, padding, strict=True))
    if kind == "average":  # torch takes no window larger than the input without its padding
        extents = tuple(max(n, k) for n, k in zip(extents, kernel, strict=True))
    batch, groups = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    channels = groups * int(rng.integers(1, 3))
    if kind == "conv":
        filters = (groups * int(rng.integers(1, 3)), channels // groups, *kernel)
        options = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
        return convolution((batch, channels, *extents), filters, **options)
    options = {"stride": stride, "padding": padding} | ({"dilation": dilation} if kind == "max" else {})
    return pooling(str(kind), (batch, channels, *extents), kernel, **options)


@torch_only
@pytest.mark.parametrize("seed", range(60))
def test_random_windows_against_torch(seed):
    rng = np.random.default_rng(seed)
    case = random_window(rng)
    arrays = [rng.permutation(int(np.prod(s))).reshape(s) / 64.0 - 1.0 for s in case.shapes]  # no ties
    agree(ours(case, arrays), theirs(case, arrays), 1e-11)
