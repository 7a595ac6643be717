"""Settings of a kernel by static cost: what cannot run is left out with its reason, the rest is ranked."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tileweave import kernel as tk
from tileweave.errors import BackendError, VerifyError
from tileweave.kernel.dispatch import estimate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))
matmul = import_module("matmul")
A, B, C = (tk.spec(s, "f16") for s in ((8192, 4096), (12288, 4096), (8192, 12288)))


@pytest.mark.parametrize("values", [(), 3, 0, "64", None])
def test_an_option_without_values_is_named(values):
    halves = [tk.spec((64, 64), "f16")] * 3
    with pytest.raises(VerifyError, match="the option bm has no values"):
        matmul.matmul.tune({"bm": values}, *halves)


def test_settings_are_ranked_and_pruned():
    tuned = matmul.matmul_roles.tune({"bm": (64, 128, 256), "bn": (128, 256), "stages": (2, 4, 8)}, A, B, C, on="cuda")
    assert tuned.best in ({"bm": 128, "bn": 256, "stages": 4}, {"bm": 256, "bn": 128, "stages": 4})
    text = str(tuned)
    assert "bm=256 bn=256 stages=2: no: a loop of a thread keeps 256 registers from turn to turn; there are 232" in text
    assert "a block has at most 232448" in text
    assert text.endswith("not timed: matmul_roles(A, B, C): a specification holds no data")


def test_where_nothing_fits_every_reason_is_given():
    with pytest.raises(VerifyError, match="no setting can run") as caught:
        matmul.matmul_roles.tune({"stages": (8, 16)}, A, B, C)
    assert "stages=16: no:" in str(caught.value)
    with pytest.raises(VerifyError, match="unknown options nonsense"):
        matmul.matmul_roles.tune({"nonsense": (1,)}, A, B, C).best  # noqa: B018


def test_counts_of_a_product_and_of_a_copy():
    kernel = matmul.matmul_roles.trace(A, B, C)
    found = estimate(kernel, "sm_90a")
    assert found.bound == "second cache" and found.shared_bytes == 230400  # a ring, and C's way out
    flops = 2 * 8192 * 12288 * 4096
    found = estimate(matmul.matmul.trace(A, B, C, bn=128), "sm_80")
    assert found.bound == "products"
    assert 1.0 < found.seconds / (flops / (108 * 2048 * 1.41e9)) < 1.2  # of the published rate

    @tk.kernel
    def move(k, x, y):
        row = k.grid(x.blocks(0, 1))
        with k.cta(threads=256) as cta:
            cta.copy(y[row], x[row])

    x = tk.spec((13200, 8192), "f32")
    moved = estimate(move.trace(x, x), "sm_90a")
    assert moved.bound == "memory"
    assert 1.0 < moved.seconds / (2 * 13200 * 8192 * 4 / 4.8e12) < 1.6


def test_bytes_of_boxes_are_those_of_the_thread_that_asks_for_them():
    rows, depth = 128, 64

    @tk.kernel
    def stream(k, x, y, roles=2):
        block = k.grid(132)
        s = k.shared((4, rows, depth), like=x, swizzle=128)
        ring = k.pipeline(4, fills=1, uses=roles - 1)
        with k.warpgroup[0] as load:
            for i in load.range(64):
                with ring.fill(i) as at:
                    load.copy_async(s[at], x.tile(rows, depth)[block, i])
        with k.warpgroup[1:roles] as use:
            for i in use.range(64):
                with ring.use(i) as at:
                    use.copy(y.tile(rows, depth)[block, i], s[at])

    x = tk.spec((132 * rows, 64 * depth), "f16")
    found = [estimate(stream.trace(x, x, roles=n), "sm_90a") for n in (2, 3, 5)]
    moved = 2 * (132 * rows * 64 * depth) * 2 / 4.8e12
    assert all(one.bound == "memory" and 1.0 < one.seconds / moved < 1.1 for one in found)
    narrow = estimate(matmul.matmul_roles.trace(A, B, C, bn=64), "sm_90a")
    bytes_ = 2 * 4096 * (128 + 64) * (8192 // 128) * (12288 // 64)  # of tiles of A and B
    assert narrow.bound == "second cache" and 1.0 < narrow.seconds / (bytes_ / 5120 / 1.755e9) < 1.2


def test_explain_shows_the_estimate():
    assert "estimate: 1152.7 us by its counts, bound by second cache" in matmul.matmul_roles.explain(A, B, C)


def test_more_groups_than_barriers_are_refused_with_the_line():
    @tk.kernel
    def crowded(k, x):
        k.grid(1)
        with k.cta(warps=32):
            for part in range(16):
                with k.warp[2 * part : 2 * part + 2]() as pair:
                    pair.sync()

    with pytest.raises(BackendError, match="barrier 16 of a block") as caught:
        crowded.text("cuda", tk.spec((4,), "f32"))
    assert "test_tune.py:" in str(caught.value)

    @tk.kernel
    def by_warps(k, x):
        k.grid(1)
        with k.cta(warps=32) as cta, cta.warp.each() as warp:
            warp.sync()

    assert "__syncwarp" in by_warps.text("cuda", tk.spec((4,), "f32"))
