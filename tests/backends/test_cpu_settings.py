"""Wishes for how contractions are cut: every one of them keeps the value, and what can be had is had."""

import random

import numpy as np
import pytest

from tileweave.backends import cpu
from tileweave.backends.cpu import Settings
from tileweave.errors import BackendError
from tileweave.layout import strided
from tileweave.teir import Operand, dtype_name, emit_contraction, numpy_dtype


def row_major(array):
    return Operand(strided(array.shape, [s // array.itemsize for s in array.strides]), dtype_name(array.dtype))


def product(equation, *shapes, dtype="FP32"):
    """A program on whole numbers, its arrays, and what NumPy makes of them."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype("f4") for shape in shapes)
    kind = numpy_dtype(dtype)
    expected = np.einsum(equation, a, b).astype(kind)
    a, b, out = a.astype(kind), b.astype(kind), np.empty_like(expected, order="C")
    return emit_contraction(equation, (row_major(a), row_major(b)), row_major(out)), (a, b, out), expected


CASES = [
    ("ik,kj->ij", (37, 53), (53, 71)),
    ("ki,jk->ij", (53, 37), (71, 53)),
    ("trus,pqtu->pqrs", (5, 3, 7, 9), (4, 3, 5, 7)),
    ("bik,bkj->bij", (3, 20, 30), (3, 30, 40)),
    ("ik,k->i", (65, 33), (33,)),
    ("adb,cd->cba", (32, 48, 16), (24, 48)),
]


LARGE = [
    ("ik,kj->ij", (200, 300), (300, 700)),
    ("ki,jk->ij", (300, 200), (700, 300)),
    ("adb,cd->cba", (32, 160, 48), (40, 160)),
    ("aebd,ce->dcba", (24, 48, 20, 16), (24, 48)),
    ("aged,cbfg->fedcba", (8, 16, 8, 8), (8, 8, 8, 16)),
]


def any_settings(rng: random.Random) -> Settings:
    return Settings(
        mr=rng.choice([None, 1, 3, 8, 14, 99]),
        nr=rng.choice([None, 1, 16, 32, 48, 64, 900]),
        kc=rng.choice([None, 4, 17, 32, 1000]),
        mc=rng.choice([None, 1, 9, 40, 999]),
        nc=rng.choice([None, 1, 16, 40, 999]),
        pack_a=rng.choice([None, True, False]),
        pack_b=rng.choice([None, True, False]),
        share_a=rng.choice([None, True, False]),
        resident=rng.choice([None, "a", "b"]),
        prefetch=rng.choice([None, True, False]),
        streamed=rng.choice([None, True, False]),
    )


def check(case, settings, threads, dtype="FP32"):
    program, (a, b, out), expected = product(*case, dtype=dtype)
    out[:] = np.nan
    kernel = cpu.compile(program, threads=threads, settings=settings, cache=False)
    kernel(a, b, out)
    np.testing.assert_array_equal(out, expected, err_msg=f"{settings}\n{kernel.explain()}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_no_wish_changes_the_value(case):
    rng = random.Random(case[0])
    for threads in (1, 2):
        check(case, any_settings(rng), threads)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_many_wishes_change_no_value(seed):
    rng = random.Random(seed)
    for _ in range(100):
        case, dtype = rng.choice(CASES + LARGE), rng.choice(["FP32", "FP32", "FP64", "BF16"])
        check(case, any_settings(rng), rng.choice([1, 2, 3]), dtype)


def test_what_can_be_had_is_had():
    program, _, _ = product("ik,kj->ij", (240, 500), (500, 480))
    wish = Settings(mr=4, nr=2 * cpu.host().lanes(4), kc=100, mc=40, pack_a=True, pack_b=True)
    said = cpu.compile(program, threads=1, settings=wish).explain()
    lanes = cpu.host().lanes(4)
    kc = -(-100 // lanes) * lanes
    assert f"mr 4, nr {2 * lanes}, kc {kc}, mc 40" in said
    assert "A = in0 packed; B = in1 packed" in said
    too_large = cpu.compile(program, threads=1, settings=Settings(mr=1000)).explain()
    assert too_large == cpu.compile(program, threads=1).explain()


def test_prefetch_and_stores_are_as_wished():
    program, (a, b, out), expected = product("ik,kj->ij", (96, 64), (64, 256))

    def said(**wish):
        kernel = cpu.compile(program, threads=1, settings=Settings(pack_b=True, **wish), cache=False)
        out[:] = np.nan
        kernel(a, b, out)
        np.testing.assert_array_equal(out, expected)
        return kernel.explain()

    assert "prefetch: within the panels; stores: through the caches" in said()
    assert "prefetch: none; stores: through the caches" in said(prefetch=False)
    assert "stores: non-temporal" in said(streamed=True)
    assert "stores: through the caches" in said(streamed=False)
    assert "prefetch: B's next panels" in said(prefetch=True, pack_a=True, share_a=True, resident="a")


@pytest.mark.parametrize(
    "wish",
    [
        {"mr": 0},
        {"prefetch": "no"},
        {"streamed": 1},
        {"kc": -1},
        {"mc": 2.5},
        {"mr": True},
        {"pack_a": 1},
        {"resident": "c"},
    ],
)
def test_wishes_that_are_none_are_refused(wish):
    with pytest.raises(BackendError, match="it is no such wish"):
        Settings(**wish)
