"""What tiles ask for ahead: every line of the next columns, by some tile, and no tile beyond those that there are."""

from __future__ import annotations

import pytest

from tileweave.backends.cpu import Settings, compile, host
from tileweave.backends.cpu.gemm.packing.prefetch import TURN, prefetch_plan
from tileweave.backends.cpu.gemm.panels import Contracted, Panels
from tileweave.backends.cpu.llvm.elements import element
from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction
from tileweave.teir.merged.form import Mode

FP32 = element("FP32")


def columns(stride: int) -> Panels:
    """4096 columns in panels of 64, so far apart in the operand."""
    return Panels((Mode(4096, (stride, 4)),), FP32, FP32, 4, 64, 16)


@pytest.mark.parametrize("products", [4, 7, 24, 128, 384])
@pytest.mark.parametrize("tiles", [1, 5, 10, 14, 63, 512])
@pytest.mark.parametrize(("stride", "step"), [(4, 16384), (32768, 4)])
def test_every_line_is_asked_for_by_some_tile(products: int, tiles: int, stride: int, step: int) -> None:
    found = prefetch_plan(columns(stride), Contracted((Mode(8192, (4, step)),)), products, tiles)
    turns = products // TURN
    count, entries = (5, products) if stride == 4 else (-(-products // 16), 64)
    if found is None:
        assert turns == 0 or count * -(-entries // (turns * TURN)) > tiles
        return
    assert (found.count, found.entries) == (count, entries)
    assert found.count * found.parts <= tiles
    asked = {
        min(part * -(-found.entries // found.parts) + number, found.entries - 1)
        for part in range(found.parts)
        for number in range(turns * found.at_once)
    }
    assert asked == set(range(found.entries))


def test_an_operand_that_is_dense_nowhere_has_no_streams() -> None:
    assert prefetch_plan(columns(32768), Contracted((Mode(8192, (4, 64)),)), 128, 63) is None


@pytest.mark.parametrize("far", [True, False])
def test_tiles_ask_for_columns_that_are_far(far: bool) -> None:
    wide = 64 * (host().l2_bytes * (4 if far else 1) // (2 * 64 * 200 * 4))
    shapes = (84, 200), (200, wide), (84, wide)
    a, b, c = (Operand(strided(shape, (shape[1], 1)), "FP32") for shape in shapes)
    vectors = 4 if host().registers > 16 else 2
    wishes = Settings(
        mr=6, nr=vectors * host().lanes(4), resident="a"
    )  # a tile that leaves rows enough to deal lines to
    kernel = compile(emit_contraction("ab,bc->ac", [a, b], c), threads=1, settings=wishes)
    assert ("add i64 %askfirst" in kernel.source) == far
