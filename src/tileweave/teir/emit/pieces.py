"""The emitter of contractions with long sums: pieces of the sum in FP32, added in FP64.

A sum of n terms that is formed in FP32 one after the other loses up to n units in the last place, a blocked one
still a part of them. Pieces of bounded length bound the loss whatever n is: each piece is one contraction into its own
row of a scratch tensor, the rows are independent, and their sum in FP64 adds no error that FP32 could show.

Source: own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from string import ascii_letters
from typing import Literal

from tileweave.errors import DtypeError, GraphError
from tileweave.layout import DEFAULT_AXIS, strided
from tileweave.teir.emit.compose import sequence
from tileweave.teir.emit.contraction import emit_contraction
from tileweave.teir.emit.elements import emit_copy, emit_reduction, emit_relu
from tileweave.teir.emit.schedule import Chooser, LoopDim, Tiling
from tileweave.teir.emit.terms import Operand, check_output, extents_of, parse
from tileweave.teir.ir.dtypes import contraction_dtype, width_bytes
from tileweave.teir.ir.program import Program, TensorSpec

PIECE = 1 << 16
"""Terms of a sum that are added in FP32."""

Part = tuple[Program, Mapping[str, str]]


def summed_length(equation: str, shapes: Sequence[Sequence[int]]) -> int:
    """How many products each element of a contraction sums.

    Example:
        >>> summed_length("ij,jkl->il", ((2, 3), (3, 4, 5)))
        12
    """
    left, _, right = equation.replace(" ", "").partition("->")
    extents = {
        q: n for term, shape in zip(left.split(","), shapes, strict=True) for q, n in zip(term, shape, strict=True)
    }
    return prod(n for letter, n in extents.items() if letter not in right)


def emit_contraction_in_pieces(
    equation: str,
    operands: Sequence[Operand],
    out: Operand,
    *,
    init: Literal["zero"] | Operand | None = None,
    relu: bool = False,
    piece: int = PIECE,
    name: str = "contraction",
) -> Program:
    """The program of `emit_contraction` with sums of at most about ``piece`` terms in FP32, and their sums in FP64.

    Args:
        equation: as for `emit_contraction`; its longest summed letter is cut.
        operands: in0 and in1, of floating point, none wider than FP32 and none blocked.
        out: as for `emit_contraction`.
        init: as for `emit_contraction`.
        relu: as for `emit_contraction`.
        piece: terms per piece, at least 1.
        name: of the program.

    Returns:
        A well-formed program. Its scratch tensor ``part`` has a row of FP32 per piece, ``sum`` is their sum in FP64.

    Raises:
        GraphError: the equation does not fit the operands, or no letter is summed.
        DtypeError: sums of these operands are not formed in FP32.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> x, total = Operand(strided((70,), (1,)), "FP32"), Operand(strided((), ()), "FP32")
        >>> program = emit_contraction_in_pieces("i,i->", (x, x), total, piece=32)
        >>> [(spec.name, spec.size_bytes) for spec in program.tensors]
        [('in0', 0), ('in1', 0), ('out', 0), ('part', 12), ('sum', 8)]

    Source: own.
    """
    where = f"emit_contraction_in_pieces({equation!r}, ..)"
    inputs, output = parse(where, equation, 2)
    biased = isinstance(init, Operand)
    terms = [*zip(inputs, operands, strict=True), (output, out)]
    extents = extents_of(where, [*terms, (output, init)] if isinstance(init, Operand) else terms)
    check_output(where, output, out)
    if contraction_dtype(*(operand.dtype for _, operand in terms)) != "FP32":
        raise DtypeError(where, "its sums are not formed in FP32", legal="operands of FP32, BF16 or FP16")
    summed = {letter: n for letter, n in extents.items() if letter not in output}
    if not summed or piece < 1:
        raise GraphError(
            where, "no letter is summed, or pieces have no term", legal="a summed letter, piece of 1 or more"
        )
    letter = max(summed, key=lambda q: summed[q])
    step = min(summed[letter], max(1, piece * summed[letter] // prod(summed.values())))
    count, rest = divmod(summed[letter], step)
    number = next(q for q in ascii_letters if q not in extents)

    order = sorted(output, key=lambda q: -abs(out.strides[output.index(q)]))
    shape = [extents[q] for q in order]
    row = prod(shape)
    rows = count + (rest > 0)
    dense = [prod(shape[k + 1 :]) for k in range(len(shape))]
    kept = "".join(order)

    def rows_of(first: int, many: int) -> Operand:
        return Operand(strided((many, *shape), (row, *dense), first * row), "FP32")

    names = {"in0": "in0", "in1": "in1", "out": "part"}
    whole = [(_cut(q, letter, number), _pieces(q, op, letter, 0, count, step)) for q, op in terms[:2]]
    left = ",".join(q for q, _ in whole)
    each = emit_contraction(
        f"{left}->{number}{kept}", [op for _, op in whole], rows_of(0, count), tiling=_iterate(number)
    )
    parts: list[Part] = [(each, names)]
    if rest:
        ends = [_pieces(q, op, letter, count * step, 1, rest) for q, op in terms[:2]]
        last = emit_contraction(f"{left}->{number}{kept}", ends, rows_of(count, 1), tiling=_iterate(number))
        parts.append((last, names))
    total = Operand(strided(shape, dense), "FP64")
    if isinstance(init, Operand):
        parts.append((emit_copy(init, total, f"{output}->{kept}"), {"in0": "bias", "out": "sum"}))
    add = emit_reduction("sum", rows_of(0, rows), total, f"{number}{kept}->{kept}", accumulate=biased)
    parts.append((add, {"in0": "part", "out": "sum"}))
    if relu:
        parts.append((emit_relu(total), {"out": "sum"}))
    parts.append((emit_copy(total, out, f"{kept}->{output}"), {"in0": "sum", "out": "out"}))
    specs = [TensorSpec(f"in{k}", operand.dtype, "in") for k, operand in enumerate(operands)]
    specs.append(TensorSpec("out", out.dtype, "out"))
    if isinstance(init, Operand):
        specs.append(TensorSpec("bias", init.dtype, "in"))
    specs.append(TensorSpec("part", "FP32", "scratch", rows * row * width_bytes("FP32")))
    specs.append(TensorSpec("sum", "FP64", "scratch", row * width_bytes("FP64")))
    return sequence(parts, specs, name)


def _cut(letters: str, letter: str, number: str) -> str:
    return letters.replace(letter, number + letter)


def _pieces(letters: str, operand: Operand, letter: str, start: int, count: int, step: int) -> Operand:
    """Pieces of a summed letter as two indices: which piece, and where in it."""
    shape: list[int] = []
    strides: list[int] = []
    offset = operand.layout.offset[DEFAULT_AXIS]
    for q, extent, stride in zip(letters, operand.shape, operand.strides, strict=True):
        shape += [count, step] if q == letter else [extent]
        strides += [step * stride, stride] if q == letter else [stride]
        offset += start * stride if q == letter else 0
    return Operand(strided(shape, strides, offset), operand.dtype)


def _iterate(number: str) -> Chooser:
    def tiles(dims: Sequence[LoopDim]) -> Tiling:
        return Tiling(tuple(1 if number in dim.name or dim.role == "batch" else dim.extent for dim in dims))

    return tiles
