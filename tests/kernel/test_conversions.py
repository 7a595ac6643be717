"""Conversions between register layouts: the printed shuffles move every element, whatever its type, to its place."""

import shutil
from random import Random

import ml_dtypes
import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.backends.cuda import compile
from tileweave.errors import BackendError
from tileweave.index import evaluate
from tileweave.kernel.dispatch.layouts.lanes import lane_condition, lane_number
from tileweave.kernel.dispatch.layouts.registers import holding
from tileweave.layout import parse

DTYPES = (np.float32, np.float16, np.float64, np.uint8, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int32)
needs_gpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def layout_of_bits(random, bits, warps):
    """A layout of 2^bits elements: some bits count warps, five lanes, the others slots, in any order."""
    rest = [i for i in range(bits) if i not in warps]
    random.shuffle(rest)
    axes = {i: f"2:{1 << k}@warp" for k, i in enumerate(sorted(warps))}
    axes |= {i: f"2:{1 << k}@lane" for k, i in enumerate(rest[:5])}
    axes |= {i: f"2:{1 << k}@reg" for k, i in enumerate(rest[5:])}
    return f"({', '.join(axes[i] for i in reversed(range(bits)))})"


def conversion_kernel(shape, warps, first, second, use=None):
    @tk.kernel
    def convert(k, x, y):
        k.grid(1)
        with k.cta(warps=warps) as cta:
            a = cta.load(x, layout=first)
            b = cta.empty(shape, a.dtype, layout=second)
            cta.copy(b, a, use=use)
            cta.store(y, b)

    return convert


def random_case(seed):
    random = Random(seed)
    shape, warps = random.choice(((16, 16), (32, 32), (8, 64))), random.choice((1, 2, 4))
    bits = (shape[0] * shape[1]).bit_length() - 1
    chosen = random.sample(range(bits), warps.bit_length() - 1)
    first, second = (layout_of_bits(random, bits, chosen) for _ in range(2))
    use, dtype = random.choice(("shuffle", "shared", None)), random.choice(DTYPES)
    return conversion_kernel(shape, warps, first, second, use), np.arange(shape[0] * shape[1]).reshape(shape), dtype


def check(seed):
    kernel, numbers, dtype = random_case(seed)
    x = (numbers % 250).astype(np.uint8).view(dtype) if np.dtype(dtype).itemsize == 1 else numbers.astype(dtype)
    y = np.zeros_like(x)
    kernel.run(x, y, on="cpu", arch="sm_80")
    assert x.tobytes() == y.tobytes(), f"seed {seed}"


@needs_gpp
@pytest.mark.parametrize("seed", range(3))
def test_every_element_arrives(seed):
    check(seed)
    assert seed >= 0


@needs_gpp
@pytest.mark.slow
@pytest.mark.parametrize("group", range(10))
def test_every_element_arrives_in_many_layouts(group):
    for seed in range(100 + 20 * group, 120 + 20 * group):
        check(seed)
    assert group >= 0


FRAGMENT, ROWS = "(2:2@reg, 8:4@lane, 4:1@lane, 2:1@reg)", "(16:1@lane, 2:16@lane, 4:1@reg)"


def test_the_choice_goes_by_cost_and_says_so():
    arrays = [np.zeros((16, 8), np.float32)] * 2
    table = conversion_kernel((16, 8), 1, FRAGMENT, ROWS).explain(*arrays, arch="sm_80")
    assert "copy b[:, :]: shuffles" in table
    assert "shuffles     yes: cost 12: 6 shuffles, 6 selects" in table
    assert "shared memory no: cost 79: 2 stores and 1 loads a thread, 12 passes, two barriers" in table
    forced = conversion_kernel((16, 8), 1, FRAGMENT, ROWS, "shared").explain(*arrays, arch="sm_80")
    assert "copy b[:, :]: shared memory trip" in forced


def test_slots_alone_are_renamed():
    first, second = "(2:2@reg, 32:1@lane, 2:1@reg)", "(2:1@reg, 32:1@lane, 2:2@reg)"
    arrays = [np.zeros((2, 64), np.float32)] * 2
    kernel = conversion_kernel((2, 64), 1, first, second)
    assert "registers    yes: cost 0: slots renamed" in kernel.explain(*arrays, arch="sm_80")
    assert "shfl" not in kernel.text("cuda", *arrays, arch="sm_80")


def test_forced_shuffles_across_warps_are_refused_with_the_line():
    first, second = "(2:1@warp, 32:1@lane, 2:1@reg)", "(2:1@reg, 32:1@lane, 2:1@warp)"
    arrays = [np.zeros((2, 64), np.float32)] * 2
    with pytest.raises(BackendError, match="elements change their warp") as caught:
        conversion_kernel((2, 64), 2, first, second, "shuffle").explain(*arrays, arch="sm_80")
    assert "test_conversions.py" in str(caught.value)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_shuffles_compile_to_shuffles():
    arrays = [np.zeros((16, 8), np.float32)] * 2
    made = compile(conversion_kernel((16, 8), 1, FRAGMENT, ROWS).text("cuda", *arrays, arch="sm_80"), "sm_80")
    assert all(one.spill_bytes == 0 for one in made.kernels.values())
    assert not made.sass or made.sass["SHFL"] == 6  # of four registers, two change with a neighbour, then all move


@pytest.mark.parametrize("seed", range(3))
def test_tables_by_lane_are_expressions(seed):
    random, lanes = Random(seed), np.arange(32)
    for _ in range(60):
        worth = [random.randrange(64) * (random.random() < 0.7) for _ in range(6)]
        table = [
            worth[5] ^ int(np.bitwise_xor.reduce([w * (x >> k & 1) for k, w in enumerate(worth[:5])])) for x in lanes
        ]
        shown = [None if random.random() < 0.4 else n for n in table]
        got = np.broadcast_to(np.asarray(evaluate(lane_number(shown) + 0 * 1, {"lane": lanes})), 32)
        assert all(n is None or n == m for n, m in zip(shown, got, strict=True)), (seed, shown)
        chosen = set(random.sample(range(32), random.randrange(1, 32)))
        found = np.broadcast_to(np.asarray(evaluate(lane_condition(chosen), {"lane": lanes})), 32)
        assert set(np.flatnonzero(found)) == chosen, seed
    assert lane_condition(range(32)) is None
    assert lane_number([lane // 4 * (lane % 4) for lane in range(32)]) is None


def test_odd_fragments_are_converted():
    """wgmma's accumulator of 24 columns has a digit of three."""
    held = holding(parse("(4:1@warp, 2:2@reg, 8:4@lane, 3:4@reg, 4:1@lane, 2:1@reg)"), (64, 24), 4)
    assert held.slots == 12
    shape, first = (64, 24), "(4:1@warp, 2:2@reg, 8:4@lane, 3:4@reg, 4:1@lane, 2:1@reg)"
    kernel = conversion_kernel(shape, 4, first, "(4:1@warp, 16:2@lane, 3:4@reg, 2:1@lane, 4:1@reg)")
    x = np.arange(64 * 24, dtype=np.float32).reshape(shape)
    y = np.zeros_like(x)
    if shutil.which("g++"):
        kernel.run(x, y, on="cpu", arch="sm_80")
        assert (x == y).all()
    assert "shuffles     yes" in kernel.explain(x, y, arch="sm_80")
