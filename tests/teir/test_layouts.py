"""Emitters take operands of any layout: each program is judged by where the package `layout` says that elements lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileweave.backends import cpu
from tileweave.errors import LayoutError
from tileweave.layout import Iter, Layout, slice_layout, strided, tile
from tileweave.teir import (
    Operand,
    contraction_tiles,
    emit_contraction,
    emit_copy,
    emit_einsum,
    emit_elementwise,
    emit_reduction,
    emit_relu,
    interpret,
    numpy_dtype,
    problems,
    races,
)


def places(operand: Operand) -> np.ndarray:
    """The element at which each index lies, by evaluating the layout at every linear index, last index fastest."""
    layout = Layout(operand.layout.shard, (), operand.layout.offset)
    return np.array([int(layout(k)["m"]) for k in range(layout.size)], np.int64).reshape(operand.shape)


class Buffer:
    """Memory that holds an operand, with guards on both sides."""

    def __init__(self, operand: Operand, values: np.ndarray | None = None) -> None:
        self.operand, self.places = operand, places(operand)
        low, high = int(self.places.min()), int(self.places.max())
        self.base = 8 - min(low, 0)
        self.memory = np.full(self.base + max(high, 0) + 9, -77, numpy_dtype(operand.dtype))
        if values is not None:
            self.memory[self.base + self.places] = values

    @property
    def array(self) -> np.ndarray:
        return self.memory[self.base :]

    @property
    def values(self) -> np.ndarray:
        return self.memory[self.base + self.places]

    def untouched(self) -> bool:
        rest = np.ones(len(self.memory), bool)
        rest[self.base + self.places.ravel()] = False
        return bool((self.memory[rest] == -77).all())


def dense(rng: np.random.Generator, extents: list[int], order: list[int], gap: int) -> list[int]:
    """Strides of iters that follow each other in memory in some order, with gaps of padding."""
    strides = [0] * len(extents)
    step = 1
    for k in order:
        strides[k] = step
        step = step * extents[k] + int(rng.integers(0, gap + 1))
    return strides


@st.composite
def operands(draw, shape: tuple[int, ...], *, broadcast: bool = True):
    """An operand of this shape whose indices are cut into blocks that lie anyhow in memory."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cuts: list[list[int]] = []
    for extent in shape:
        chain, rest = [], extent
        for factor in (2, 3):  # blocks of one chain nest in those of every other operand
            if rest % factor == 0 and draw(st.booleans()):
                chain.insert(0, factor)
                rest //= factor
            else:
                break
        cuts.append([rest, *chain])
    extents = [n for chain in cuts for n in chain]
    strides = dense(rng, extents, list(rng.permutation(len(extents))), draw(st.integers(0, 2)))
    strides = [-s if rng.random() < 0.2 else s for s in strides]
    if broadcast and draw(st.booleans()) and strides:
        strides[int(rng.integers(len(strides)))] = 0
    layout = Layout(tuple(map(Iter, extents, strides)), (), int(rng.integers(-3, 4)))
    return Operand(layout, "INT32", shape)


EXTENTS = {"i": 12, "j": 6, "k": 4, "b": 2}


def judge(program, sources, out: Buffer, expected, extra=None) -> None:
    assert problems(program) == ()
    assert races(program) is None
    arrays = {f"in{k}": buffer.array for k, buffer in enumerate(sources)} | (extra or {})
    interpret(program, {**arrays, "out": out.array}, order="random")
    np.testing.assert_array_equal(out.values, expected)
    assert out.untouched()


def given_operands(data, equation: str):
    rng = np.random.default_rng(0)
    left, output = equation.split("->")
    buffers = []
    for term in left.split(","):
        shape = tuple(EXTENTS[c] for c in term)
        operand = data.draw(operands(shape))
        buffer = Buffer(operand)
        buffer.memory[:] = rng.integers(-3, 4, len(buffer.memory))
        buffers.append(buffer)
    out = Buffer(data.draw(operands(tuple(EXTENTS[c] for c in output), broadcast=False)))
    return buffers, out, np.einsum(equation, *(buffer.values for buffer in buffers))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["ik,kj->ij", "bik,bkj->jbi", "ik,k->i", "ij,ij->"]), st.booleans())
def test_contractions_of_blocked_padded_reversed_and_broadcast_operands(data, equation, tiled):
    sources, out, expected = given_operands(data, equation)
    flags = {"tiling": contraction_tiles} if tiled else {}
    bias = data.draw(operands(out.operand.shape))
    start = Buffer(bias)
    start.memory[:] = np.arange(len(start.memory))
    program = emit_contraction(equation, [b.operand for b in sources], out.operand, init=bias, **flags)
    judge(program, sources, out, expected + start.values, {"bias": start.array})


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_networks_of_blocked_operands(data):
    sources, out, expected = given_operands(data, "ik,kb,bj->ji")
    program = emit_einsum("ik,kb,bj->ji", [b.operand for b in sources], out.operand)
    judge(program, sources, out, expected)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_elements_of_blocked_operands(data):
    (source,), out, expected = given_operands(data, "ikj->jik")
    judge(emit_copy(source.operand, out.operand, "ikj->jik"), [source], out, expected)
    judge(emit_relu(source.operand, out.operand, "ikj->jik"), [source], out, np.maximum(expected, 0))
    (a, b), out, _ = given_operands(data, "ij,j->ij")
    program = emit_elementwise("Sub", [a.operand, b.operand], out.operand, "ij,j->ij")
    judge(program, [a, b], out, a.values - b.values)
    (source,), out, expected = given_operands(data, "ijk->j")
    judge(emit_reduction("sum", source.operand, out.operand, "ijk->j"), [source], out, expected)


def test_a_matrix_in_blocks_is_multiplied_by_native_code():
    """A as 64 x 48 in blocks of 16 x 8, each row-major: the layout of blocked matrix libraries."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (64, 48)).astype("f4"), rng.integers(-3, 4, (48, 40)).astype("f4")
    blocked = np.ascontiguousarray(a.reshape(4, 16, 6, 8).transpose(0, 2, 1, 3))
    first = Operand(strided((4, 16, 6, 8), (6 * 128, 8, 128, 1)), "FP32", (64, 48))
    out = np.zeros((64, 40), "f4")
    program = emit_contraction(
        "ik,kj->ij",
        (first, Operand(strided((48, 40), (40, 1)), "FP32")),
        Operand(strided((64, 40), (40, 1)), "FP32"),
    )
    contraction = program.primitives[-1]
    assert len(contraction.role("M")) == len(contraction.role("K")) == 2
    cpu.compile(program, threads=2, cache=False)(blocked, b, out)
    np.testing.assert_array_equal(out, a @ b)


def test_layouts_of_the_layout_room():
    """Tiles, slices and products of layouts are operands as they are."""
    memory = np.arange(2 * 12 * 20, dtype="i4")
    tiles = tile(strided((3, 5), (5, 1)), (3, 5), strided((4, 4), (4, 1)), (4, 4))
    operand = Operand(tiles, "INT32", (12, 20))
    values = memory[places(operand)]
    out = np.zeros((20, 12), "i4")
    program = emit_copy(operand, Operand(strided((20, 12), (12, 1)), "INT32"), "ab->ba")
    interpret(program, {"in0": memory, "out": out})
    np.testing.assert_array_equal(out, values.T)
    # rows 4..7 and columns 8..15 of it: whole tiles, so the slice is a layout again
    part = Operand(slice_layout(tiles, (12, 20), (4, 8), (4, 8)), "INT32", (4, 8))
    total = np.zeros(4, "i4")
    program = emit_reduction("sum", part, Operand(strided((4,), (1,)), "INT32"), "ab->a")
    interpret(program, {"in0": memory, "out": total})
    np.testing.assert_array_equal(total, values[4:8, 8:16].sum(1))


def test_blocks_that_do_not_nest_and_indices_that_are_none_are_refused():
    one = Operand(strided((3, 2), (1, 3)), "FP32", (6,))
    two = Operand(strided((2, 3), (1, 2)), "FP32", (6,))
    with pytest.raises(LayoutError, match="the operands' blocks do not fit each other: the boundaries 2 and 3"):
        emit_copy(one, two)
    with pytest.raises(LayoutError, match="the operands' blocks do not fit each other"):
        emit_copy(Operand(strided((3, 4), (7, 1)), "FP32", (2, 6)), Operand(strided((2, 6), (6, 1)), "FP32"))
    with pytest.raises(LayoutError, match="share memory"):
        emit_copy(one, Operand(strided((3, 2), (1, 1)), "FP32", (6,)))
