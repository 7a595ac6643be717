"""Copies by one piece of code: any shapes and strides, equal to NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from tileweave.backends.base import backend
from tileweave.backends.cpu import moves
from tileweave.backends.cpu.moves import Move, movable
from tileweave.backends.cpu.target.target import describe, host
from tileweave.errors import BackendError


def copied(source, out, threads=1):
    """By the native list of calls, as an executable does it."""
    calls = backend("cpu").calls()
    calls.sequence([calls.add(Move(threads), [source, out])]).run()


@pytest.mark.skipif(not host().has("avx2"), reason="a lesser target needs a greater host")
@pytest.mark.parametrize("lesser", [("x86-64-v3", "+avx2,+fma,+sse2"), ("x86-64", "+sse2")])
def test_lesser_processors_copy_rows_of_every_length(lesser, monkeypatch):
    monkeypatch.setattr(moves, "host", lambda: describe(*lesser, "x86_64", (32768, 524288, 8388608)))
    draw = np.random.default_rng(0)
    for dtype in ("int8", "float32", "float64"):
        for length in (*range(1, 70, 3), 200):
            x = draw.integers(-99, 99, (5, length)).astype(dtype)
            for source in (x, x[:, ::-1], np.broadcast_to(x[:, :1], x.shape)):
                whole = np.zeros((5, length + 2), dtype)
                copied(source, whole[:, 1:-1])
                np.testing.assert_array_equal(whole, np.pad(source, ((0, 0), (1, 1))))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "int8", "bool", "float16", "uint16"])
def test_random_copies_equal_numpys(dtype):
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    native = 0
    for _ in range(90):
        rank = int(draw.integers(0, 6))
        shape = tuple(int(n) for n in draw.integers(1, (400, 40, 12, 7, 5, 4)[rank] + 1, rank))
        wide = tuple(n + int(draw.integers(0, 4)) for n in shape)
        held = draw.integers(-99, 99, wide).astype(dtype)
        source = held[(*(slice(w - n, w) for n, w in zip(shape, wide, strict=True)), ...)]
        if rank and draw.integers(3) == 0:
            source = np.broadcast_to(source[tuple(slice(0, 1) for _ in shape)], shape)
        if rank and draw.integers(2) == 0:
            source = np.flip(source, int(draw.integers(rank)))
        if rank > 1 and draw.integers(3) == 0:
            order = draw.permutation(rank)
            source = np.ascontiguousarray(source.transpose(order)).transpose(np.argsort(order))
        if rank and draw.integers(3) == 0:
            source = np.repeat(source, 2, -1)[..., :: 2 * int(draw.choice([-1, 1]))]
        steps = [1] * (rank - 1) + [int(draw.choice([1, 1, 2, 5]))] * (rank > 0)
        whole = np.full(tuple(n * step + 3 for n, step in zip(shape, steps, strict=True)), 7, dtype)
        inner = (*(slice(1, 1 + n * step, step) for n, step in zip(shape, steps, strict=True)), ...)  # also at rank 0
        out = whole[inner]
        expected = whole.copy()
        expected[inner] = source
        if movable(source, out):
            copied(source, out, threads=1 + native % 2)
            np.testing.assert_array_equal(whole, expected)  # and nothing beside it
            native += 1
    assert native > 50


def test_large_copies_are_shared_among_threads():
    source = np.random.default_rng(0).standard_normal((64, 90, 83)).astype(np.float32)
    whole = np.zeros((64, 92, 85), np.float32)
    copied(source, whole[:, 1:-1, 1:-1], threads=2)
    np.testing.assert_array_equal(whole, np.pad(source, ((0, 0), (1, 1), (1, 1))))


def test_what_there_is_no_code_for_is_refused():
    x = np.zeros((4, 4), np.float32)
    large, wide = np.zeros((300, 300), np.float32), np.zeros((4, 4), np.complex128)
    for source, out in ((x.astype(np.float16), x), (x[1:], x), (x[:0], x[:0]), (wide, wide), (large.T, large)):
        assert not movable(source, out)
        with pytest.raises(BackendError, match="is not copied by rows"):
            Move(1).bind([source, out])
