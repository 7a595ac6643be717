"""The tables of panels: where each index of a panel lies, and the runs that its vectors are made of."""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.backends.cpu.gemm.panels import LANE_BYTES, SEGMENT_BYTES, Panels
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import digits_of, next_digits
from tileweave.teir.merged.form import Mode


def _offsets(f: Function, dims: tuple[Mode, ...], index: Value) -> tuple[Value, Value, Value]:
    """The offset in the operand and in the output of a flat index, and its digit in the fastest axis."""
    digits = digits_of(f, dims, index)
    return _moved(f, dims, digits, 0), _moved(f, dims, digits, 1), digits[0] if digits else 0


def _moved(f: Function, dims: tuple[Mode, ...], digits: Sequence[Value], which: int) -> Value:
    """How far an operand is moved by an index along every axis."""
    offset: Value = 0
    for digit, dim in zip(digits, dims, strict=True):
        offset = f.add(offset, f.mul(digit, dim.strides[which]))
    return offset


def emit_lane_table(module: Module, name: str, panels: Panels) -> None:
    """Add ``name(table, panel)``: offsets of each index of a panel, those beyond the end repeating the last one,
    and how many are inside."""
    f = Function(module, name, [("ptr", "table"), ("i64", "panel")])
    first = f.mul("%panel", panels.width)
    last = panels.total - 1

    def one(index: Value, digits: list[str]) -> list[Value]:
        place = f.mul(index, LANE_BYTES)
        f.store("i64", _moved(f, panels.dims, digits, 0), f.at("%table", place), 8)
        f.store("i64", _moved(f, panels.dims, digits, 1), f.at("%table", f.add(place, 8)), 8)
        return next_digits(f, panels.dims, digits, f.compare("slt", f.add(first, index), last))

    def clamped() -> None:
        for lane in range(panels.width):
            index, at = f.min(f.add(first, lane), last), lane * LANE_BYTES
            for place, stride in zip((at, at + 8), panels.dims[0].strides, strict=True):
                f.store("i64", f.mul(index, stride), f.at("%table", place), 8)

    def whole() -> None:
        """One addition per index, of both offsets: tiles of few products wait for this table."""
        pair = _pair(f, [f.mul(first, stride) for stride in panels.dims[0].strides])
        step = _pair(f, panels.dims[0].strides)
        for lane in range(panels.width):
            pair = f.value(f"add <2 x i64> {pair}, {step}") if lane else pair
            f.store("<2 x i64>", pair, f.at("%table", lane * LANE_BYTES), 8)

    if len(panels.dims) == 1:
        f.when(f.compare("sle", f.add(first, panels.width - 1), last), whole, clamped)
    else:
        f.loop(0, panels.width, one, carry=[("i64", digit) for digit in digits_of(f, panels.dims, first)])
    live = f.min(f.sub(panels.total, first), panels.width)
    f.store("i64", live, f.at("%table", panels.lane_table_bytes), 8)
    f.ret()


def _pair(f: Function, words: Sequence[Value]) -> str:
    """Two words as a vector."""
    low = f.value(f"insertelement <2 x i64> poison, i64 {words[0]}, i64 0")
    return f.value(f"insertelement <2 x i64> {low}, i64 {words[1]}, i64 1")


def emit_segment_table(module: Module, name: str, panels: Panels) -> None:
    """Add ``name(table, panel)``: the word that says whether all vectors are whole, then the segments."""
    f = Function(module, name, [("ptr", "table"), ("i64", "panel")])
    start = f.mul("%panel", panels.width)
    dims = panels.stored
    extent = dims[0].extent
    w_operand, w_output = panels.element.width_bytes, panels.output_bytes

    def group(index: Value, carried: list[str]) -> list[Value]:
        begin = f.mul(index, panels.lanes)
        inside = f.min(f.sub(panels.width, begin), panels.lanes)
        flat = f.add(start, begin)
        count = f.min(f.sub(panels.total, flat), inside)

        def segment(number: Value, state: list[str]) -> list[Value]:
            lane, operand_old, output_old = state
            position = f.min(f.add(flat, lane), panels.total - 1)
            operand, output, digit = _offsets(f, dims, position)
            left = f.sub(count, lane)
            live = f.compare("sgt", left, 0)
            run = f.min(f.sub(extent, digit), left)
            ones = f.sub(f.value(f"shl i64 1, {run}"), 1)
            mask = f.value(f"select i1 {live}, i64 {f.value(f'shl i64 {ones}, {lane}')}, i64 0")
            operand = f.sub(operand, f.mul(lane, w_operand))
            output = f.sub(output, f.mul(lane, w_output))
            operand = f.value(f"select i1 {live}, i64 {operand}, i64 {operand_old}")
            output = f.value(f"select i1 {live}, i64 {output}, i64 {output_old}")
            place = f.add(8, f.mul(f.add(f.mul(index, panels.segments), number), SEGMENT_BYTES))
            for k, word in enumerate((operand, output, mask)):
                f.store("i64", word, f.at("%table", f.add(place, 8 * k)), 8)
            step = f.value(f"select i1 {live}, i64 {run}, i64 0")
            return [f.add(lane, step), operand, output]

        f.loop(0, panels.segments, segment, carry=[("i64", 0), ("i64", 0), ("i64", 0)])
        full = f.compare("eq", count, panels.lanes)
        first_digit = _offsets(f, dims, f.min(flat, panels.total - 1))[2]
        one_run = f.compare("sge", f.sub(extent, first_digit), panels.lanes)
        return [f.value(f"and i1 {carried[0]}, {f.value(f'and i1 {full}, {one_run}')}")]

    whole = f.loop(0, panels.groups, group, carry=[("i1", "true")])
    f.store("i64", f.value(f"zext i1 {whole[0]} to i64"), "%table", 8)
    f.ret()
