"""Moves from one order of axes to another: any shape, stride, type and alignment, in every way that code is made.

Processors with tiny caches are pretended, so that small tensors are cut, collected and streamed as large ones are.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import permutations
from random import Random

import numpy as np
import pytest

from tileweave.backends.cpu import Target, compile, host
from tileweave.backends.cpu.llvm.ir import Function, Module
from tileweave.backends.cpu.llvm.vectors import transpose
from tileweave.backends.cpu.maps.blocks import Blocking, cut_direct, cut_staged, overflowing
from tileweave.layout import strided
from tileweave.teir import Operand, emit_copy
from tileweave.teir.ir.dtypes import numpy_dtype
from tileweave.teir.merged.form import Mode

TINY = replace(host(), l2_bytes=0, l3_bytes=0)
"""Everything is collected and streamed."""
SMALL = replace(host(), l2_bytes=0, l3_bytes=1 << 40)
"""Everything is collected, nothing is streamed."""
LARGE = replace(host(), l2_bytes=1 << 40, l3_bytes=1 << 40)
"""Everything is written as it is read."""
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 20, 24, 30, 31, 32, 33, 48, 64, 65, 72, 100, 129, 200)
DTYPES = ("FP32", "FP64", "INT8", "FP16", "BF16", "INT32", "INT64")


def older() -> Target:
    """The same processor without its widest vectors."""
    wide = ",".join(f.replace("+avx512", "-avx512") for f in host().features.split(","))
    return replace(TINY, features=wide, vector_bytes=32, registers=16)


def shape_of(random: Random, points: int) -> tuple[int, ...]:
    while True:
        shape = tuple(random.choice(EXTENTS) for _ in range(random.randint(1, 6)))
        if np.prod(shape) <= points:
            return shape


def placed(random: Random, shape: tuple[int, ...], kind: np.dtype, *, signs: bool) -> tuple[np.ndarray, np.ndarray]:
    """An array of this shape somewhere within bytes that are returned first; its axes may have gaps and directions."""
    gaps = [random.choice((0, 0, 0, 0, 1, 3, 16)) for _ in shape]
    whole = [extent + gap for extent, gap in zip(shape, gaps, strict=True)]
    if random.random() < 0.5:
        whole = list(shape)
    before, after = random.choice((0, 1, 3, 16, 64, 100)), 256
    store = np.zeros(before + int(np.prod(whole)) * kind.itemsize + after, np.uint8)
    view = store[before : len(store) - after].view(kind) if not before % kind.itemsize else None
    if view is None:  # an address that is no multiple of the element
        view = np.frombuffer(store, kind, int(np.prod(whole)), before)
    array = view.reshape(whole)[tuple(slice(0, extent) for extent in shape)]
    if signs:
        array = array[tuple(slice(None, None, random.choice((1, 1, 1, -1))) for _ in shape)]
    return store, array


def operand(array: np.ndarray, dtype: str) -> Operand:
    return Operand(strided(array.shape, tuple(s // array.itemsize for s in array.strides)), dtype)


def check(random: Random, shape: tuple[int, ...], order: tuple[int, ...], dtype: str, target: Target) -> None:
    kind = numpy_dtype(dtype)
    store, source = placed(random, shape, kind, signs=True)
    store[:] = np.random.default_rng(random.randrange(2**32)).integers(0, 256, store.size)
    out_store, out = placed(random, tuple(shape[k] for k in order), kind, signs=random.random() < 0.3)
    out_store[:] = 0xA5
    expected = out_store.copy()
    start = out.__array_interface__["data"][0] - out_store.__array_interface__["data"][0]
    bits = np.dtype(f"u{kind.itemsize}")
    there = np.ndarray(out.shape, bits, expected, start, out.strides)
    there[...] = np.ndarray(
        shape, bits, store, source.__array_interface__["data"][0] - store.ctypes.data, source.strides
    ).transpose(order)
    letters = "abcdef"[: len(shape)]
    equation = f"{letters}->{''.join(letters[k] for k in order)}"
    program = emit_copy(operand(source, dtype), operand(out, dtype), equation)
    kernel = compile(program, threads=random.choice((1, 2, 3)), target=target, cache=False)
    kernel(source, out)
    assert np.array_equal(out_store, expected), (shape, order, dtype, source.strides, out.strides)


def run(seeds: range, points: int) -> None:
    for seed in seeds:
        random = Random(seed)
        shape = shape_of(random, points)
        order = tuple(random.sample(range(len(shape)), len(shape)))
        targets = [TINY, TINY, TINY, SMALL, LARGE, host()]
        if host().has("avx512bw"):
            targets.append(older())
        check(random, shape, order, random.choice(DTYPES), random.choice(targets))


@pytest.mark.parametrize("block", range(6))
def test_random_moves_equal_numpy(block: int) -> None:
    run(range(1000 * block, 1000 * block + 25), 40_000)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_moves_equal_numpy(block: int) -> None:
    run(range(100_000 + 1000 * block, 100_000 + 1000 * block + 100), 2_000_000)


@pytest.mark.parametrize("dtype", ["FP32", "FP64", "INT8"])
def test_all_orders_of_four_axes(dtype: str) -> None:
    for number, order in enumerate(permutations(range(4))):
        check(Random(number), (20, 17, 6, 33), order, dtype, TINY)
    assert dtype


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_streamed_conversions_equal_numpy(threads: int) -> None:
    source = np.random.default_rng(0).standard_normal((70, 33, 41)).astype(np.float32)
    for dtype in ("FP64", "FP16", "BF16"):
        out = np.zeros((41, 70, 33), numpy_dtype(dtype))
        program = emit_copy(operand(source, "FP32"), operand(out, dtype), "abc->cab")
        compile(program, threads=threads, target=TINY, cache=False)(source, out)
        assert np.array_equal(out, source.transpose(2, 0, 1).astype(out.dtype))


@pytest.mark.parametrize("dtype", ["FP32", "FP64", "INT8"])
def test_short_rows_that_both_tensors_keep(dtype: str) -> None:
    random = Random(dtype)
    for last in (2, 3, 5, 16, 17, 31):
        for order in ((1, 0, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (2, 1, 0, 3)):
            shape = (random.choice((3, 9, 18)), random.choice((1, 7, 16)), random.choice((5, 17, 40)), last)
            check(random, shape, order, dtype, random.choice((TINY, SMALL, LARGE)))
    assert dtype


@pytest.mark.parametrize("shape", [(32, 1024), (32, 2048), (72, 1024), (48, 3072)])
def test_lines_that_compete_for_one_place_of_a_cache(shape: tuple[int, ...]) -> None:
    for width, dtype in ((4, "FP32"), (8, "FP64")):
        cut = cut_staged(dims_of(shape, (1, 0), width), 0, (width, width))
        along, across = cut.sides[cut.along], cut.sides[0]
        assert overflowing(along.dim, along.run)
        assert across.run * width != 128 or not along.dim.strides[0] % 65536  # pairs of lines
        for seed in range(3):
            check(Random(seed), shape, (1, 0), dtype, TINY)


# ---- squares in registers ---------------------------------------------------------------------------------------


class Shuffles(Function):
    """Performs shuffles of known vectors at once."""

    def __init__(self) -> None:
        super().__init__(Module(), "shuffles", [])
        self.vectors: dict[str, list[object]] = {}

    def value(self, instruction: str) -> str:
        name = super().value(instruction)
        a, b = (self.vectors[operand] for operand in re.findall(r"%\w+", instruction))
        self.vectors[name] = [[*a, *b][int(index)] for index in re.findall(r"i32 (\d+)", instruction)]
        return name


@pytest.mark.parametrize("type", ["i8", "i16", "float", "double"])
def test_squares_are_transposed(type: str) -> None:
    for lanes in (1, 2, 4, 8, 16, 32, 64):
        for q in (q for q in (1, 2, 4, 8, 16, 32, 64) if q <= lanes):
            f = Shuffles()
            rows = [f"%row{lane}" for lane in range(lanes)]
            f.vectors = {row: [(lane, k) for k in range(q)] for lane, row in enumerate(rows)}
            for k, vector in enumerate(transpose(f, type, lanes, rows, q)):
                assert f.vectors[vector] == [(lane, k) for lane in range(lanes)], (lanes, q)


# ---- how tensors are cut ----------------------------------------------------------------------------------------


def dims_of(shape: tuple[int, ...], order: tuple[int, ...], width: int) -> tuple[Mode, ...]:
    """Axes of a dense permutation, in the order of the output."""
    here = [shape[k] for k in order]
    strides = [width * math.prod(shape[k + 1 :]) for k in range(len(shape))]
    return tuple(Mode(shape[k], (strides[k], width * math.prod(here[j + 1 :]))) for j, k in enumerate(order))


def covered(cut: Blocking) -> bool:
    """Whether the blocks of every axis together hold every index, and none beyond."""
    for number, side in enumerate(cut.sides):
        starts = {0}
        for digit in cut.digits:
            if digit.side == number:
                starts = {start + k * digit.weight for start in starts for k in range(digit.extent)}
        held = {min(s * side.run, side.dim.extent - side.run) + k for s in starts for k in range(side.run)}
        if held != set(range(side.dim.extent)):
            return False
    return True


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_blocks_cover_their_axes(width: int) -> None:
    random = Random(width)
    for _ in range(150):
        shape = tuple(random.choice((*EXTENTS[1:], 1000, 5003)) for _ in range(random.randint(2, 6)))
        order = tuple(random.sample(range(len(shape)), len(shape)))
        dims = dims_of(shape, order, width)
        last = len(shape) - 1
        cross = None if order[-1] == last else order.index(last)
        cut = cut_staged(dims, cross, (width, width))
        assert covered(cut), (shape, order)
        assert 2 * cut.buffer_bytes < 256 * 1024, (shape, order)
        if cross is not None:
            assert covered(cut_direct(dims, cross, (width, width)))


def test_rows_of_whole_lines_are_found() -> None:
    for shape, order in (((5120, 5120), (1, 0)), ((9216, 2400), (1, 0)), ((148, 300, 280), (1, 0, 2))):
        cross = None if order[-1] == len(shape) - 1 else order.index(len(shape) - 1)
        cut = cut_staged(dims_of(shape, order, 4), cross, (4, 4))
        assert cut.row_bytes % 64 == 0
        assert {digit.weight for digit in cut.digits} == {1}


def test_rows_that_share_lines_divide_their_axis() -> None:
    for extent, rank in ((296, 3), (72, 4)):
        cut = cut_staged(dims_of((extent,) * rank, tuple(range(rank))[::-1], 4), 0, (4, 4))
        assert cut.row_bytes % 64
        assert not extent % cut.sides[cut.along].run


def test_rows_that_share_lines_are_continued() -> None:
    cut = cut_staged(dims_of((4999, 5003), (1, 0), 4), 0, (4, 4))
    assert cut.digits[-1].side == cut.along
    assert (cut.digits[-1].extent + 1) * cut.row_bytes >= 4096
