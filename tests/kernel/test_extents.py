"""Arrays that are too small are refused before anything runs, by every verb; what a mask means is not."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tileweave import kernel as tk
from tileweave.errors import VerifyError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "kernels"))

import attention  # isort: skip
import clusters  # isort: skip
import matmul  # isort: skip
import norms  # isort: skip
import softmax  # isort: skip
import transpose  # isort: skip


def halves(*shape):
    return tk.spec(shape, "f16")


def floats(*shape):
    return tk.spec(shape, "f32")


#: Kernel, arguments, the rule, the words of the error.
TOO_SMALL = [
    (matmul.matmul, (halves(70, 40), halves(50, 40), halves(60, 50)), "extent", "C is too small: 60 in dimension 0"),
    (matmul.matmul, (halves(70, 40), halves(50, 40), halves(70, 20)), "extent", "C is too small: 20 in dimension 1"),
    (matmul.matmul, (halves(300, 40), halves(50, 40), halves(128, 50)), "extent", "128 in dimension 0, 300 are"),
    (matmul.matmul, (halves(70, 40), halves(50, 30), halves(70, 50)), "extent", "B is too small: 30 in dimension 1"),
    (matmul.matmul, (halves(70, 30), halves(50, 40), halves(70, 50)), "extent", "A is too small: 30 in dimension 1"),
    (matmul.matmul_roles, (halves(70, 40), halves(50, 40), halves(60, 50)), "extent", "60 in dimension 0, 70"),
    (matmul.matmul_roles, (halves(70, 140), halves(50, 130), halves(70, 50)), "extent", "B is too small: 130 in dim"),
    (clusters.matmul_cluster, (halves(512, 64), halves(256, 64), halves(512, 250)), "extent", "C is too small: 250 in"),
    (softmax.softmax, (floats(4, 1000), floats(3, 1000)), "bounds", "y is too small: 3 in dimension 0, 4 are written"),
    (softmax.softmax, (floats(4, 1000), floats(4, 900)), "operator", "of shape (1000,) does not fit y, of (900,)"),
    (softmax.softmax, (floats(4, 1000), floats(4, 1010)), "operator", "of shape (1000,) does not fit y, of (1010,)"),
    (norms.layernorm, (floats(4, 1000), floats(1000), floats(900), floats(4, 1000)), "operator", "t_2 (900,)"),
    (transpose.transpose, (floats(70, 45), floats(40, 70)), "extent", "y is too small: 40 in dimension 0, 45 are"),
    (attention.attention, (*[halves(2, 100, 64)] * 3, halves(2, 90, 64)), "extent", "too small: 90 in dimension 1"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "arrays", "rule", "said"), TOO_SMALL)
def test_arrays_that_are_too_small_are_named(kernel, arrays, rule, said):
    with pytest.raises(VerifyError) as caught:
        kernel.trace(*arrays)
    assert caught.value.rule == rule and said in str(caught.value), caught.value
    assert f"{Path(kernel.function.__code__.co_filename).name}:" in str(caught.value)


@tk.kernel
def moved(k, x, y, part=0, rows=0, shift=0, when=0):
    """Tiles of x to tiles of y: of a part of x, as far as `rows`, of tiles further on, of the first tiles only."""
    whole = x if not part else x[:part]
    i, j = k.grid(whole.blocks(0, 16), whole.blocks(1, 16))
    with k.cta(threads=32) as cta:
        target = y.tile(16, 16)[i, j]
        with k.when(i < (when or 1000)):
            cta.store(target if not rows else target.limit(0, rows), cta.load(whole.tile(16, 16)[i, j + shift]))


@tk.kernel
def smoothed(k, x, y):
    """The right neighbour is added: behind the last column there is none."""
    i, j = k.grid(x.blocks(0, 16), x.blocks(1, 16))
    with k.cta(threads=32) as cta:
        own, right = x.tile(16, 16)[i, j], x[:, 1:].tile(16, 16)[i, j]
        cta.store(y.tile(16, 16)[i, j], cta.load(own) + cta.load(right))


@pytest.mark.parametrize(
    ("kernel", "shapes", "options"),
    [
        (moved, ((45, 70), (45, 70)), {}),
        (moved, ((45, 70), (60, 90)), {}),
        (moved, ((45, 70), (20, 70)), {"part": 20}),
        (moved, ((45, 70), (45, 70)), {"rows": 7}),
        (moved, ((45, 70), (45, 70)), {"shift": 1}),
        (moved, ((45, 70), (16, 70)), {"when": 1}),
        (smoothed, ((45, 70), (45, 70)), {}),
    ],
)
def test_what_is_masked_on_purpose_is_legal(kernel, shapes, options):
    """A slice, a limit, a condition, tiles further on, a larger result, neighbours beyond an edge: none is refused."""
    x = np.arange(np.prod(shapes[0]), dtype=np.float32).reshape(shapes[0])
    report = kernel.check(x, np.zeros(shapes[1], np.float32), **options)
    assert report.accesses and report.outputs["y"].any()


def test_a_part_of_an_array_is_what_a_slice_says():
    x = np.arange(45 * 70, dtype=np.float32).reshape(45, 70)
    y = np.zeros((20, 70), np.float32)
    moved.run(x, y, part=20)
    assert (y == x[:20]).all()
    with pytest.raises(VerifyError, match="y is too small: 20 in dimension 0, 45 are written") as caught:
        moved.run(x, y)
    assert "a slice of what is read" in str(caught.value)


def test_every_way_to_run_refuses_before_it_writes():
    x, y = np.ones((45, 70), np.float32), np.full((20, 70), 7, np.float32)
    for on in ("interpreter", "cpu", "mlir", "triton"):
        with pytest.raises(VerifyError, match="y is too small"):
            moved.run(x, y, on=on)
    assert (y == 7).all()


@tk.kernel
def by_data(k, x, n, y):
    """How much of x exists is data: the interpreter judges it."""
    i = k.grid(x.blocks(0, 16))
    with k.cta(threads=32) as cta:
        count = cta.read(n[0], below=100)
        cta.store(y.tile(16)[i], cta.load(x.limit(0, count).tile(16)[i]))


def test_extents_that_are_data_are_left_to_a_run():
    x, n = np.ones(40, np.float32), np.array([20], np.int32)
    by_data.trace(x, n, np.zeros(20, np.float32))
    assert by_data.check(x, n, np.zeros(40, np.float32)).outputs["y"].sum() == 20
