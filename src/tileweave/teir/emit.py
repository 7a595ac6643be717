"""Emitters: the description of an operation on operands of any layout becomes a program.

An emitter knows descriptions only: an equation, and one `Operand` per tensor, whose layout has one iter of D per index
letter and element strides of any sign on the axis ``m``. The base of a tensor is where its layout is zero.

Programs are in the ``tileweave`` profile. Their tensors are ``in0, in1, .., out``, ``bias`` for an initial value, and
the scratch tensor ``acc`` where the output is narrower than the sums it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tileweave.errors import DtypeError, GraphError, LayoutError
from tileweave.layout import DEFAULT_AXIS, Layout
from tileweave.teir.build import Step, build
from tileweave.teir.dtypes import contraction_dtype, is_float, width_bytes
from tileweave.teir.program import Program, TensorSpec
from tileweave.teir.reach import first_collision
from tileweave.teir.schedule import Chooser, Dim, Role, fuse_dims, untiled

__all__ = ["Operand", "emit_contraction", "emit_copy", "emit_relu", "emit_zero"]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as an emitter sees it.

    Args:
        layout: one iter of D per index, in the order of the letters; strides in elements on the axis ``m``.
        dtype: FP64, FP32, BF16, FP16, INT64, INT32, INT8.
    """

    layout: Layout
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of D."""
        return tuple(it.extent for it in self.layout.shard)

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of D in elements."""
        return tuple(it.stride[DEFAULT_AXIS] for it in self.layout.shard)

    @property
    def strides_bytes(self) -> tuple[int, ...]:
        """The strides of D in bytes."""
        return tuple(stride * width_bytes(self.dtype) for stride in self.strides)

    @property
    def offset_bytes(self) -> int:
        """The offset O in bytes."""
        return self.layout.offset[DEFAULT_AXIS] * width_bytes(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype} {self.layout}"


def emit_contraction(
    equation: str,
    operands: Sequence[Operand],
    out: Operand,
    *,
    accumulate: bool = False,
    init: Literal["zero"] | Operand | None = None,
    relu: bool = False,
    tiling: Chooser = untiled,
    name: str = "contraction",
) -> Program:
    """The program of an einsum of two operands: ``out = init + sum of in0 * in1``, then ReLU if asked.

    Args:
        equation: ``"trus,pqtu->pqrs"``. A letter twice in one operand walks its diagonal; a letter that is not in the
            output is summed over.
        operands: in0 and in1. Replicas of their layouts are ignored: any replica holds the value.
        out: no two of its elements may share a byte.
        accumulate: add to what the output holds, instead of to ``init``.
        init: ``"zero"`` (also None), or an operand of the output's shape, zero strides broadcast: the tensor ``bias``.
        relu: apply ReLU to the sums.
        tiling: chooses the tiles of the dims it is given; `schedule` has some; by default roles are whole.
        name: of the program.

    Returns:
        A well-formed program. Sums are formed in the widest type of the operands, in FP32 at least, and narrowed once.

    Raises:
        GraphError: the equation does not fit the operands.
        DtypeError: integers and floating point are mixed.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, b = Operand(strided((2, 3), (3, 1)), "FP32"), Operand(strided((3, 4), (4, 1)), "FP32")
        >>> program = emit_contraction("ik,kj->ij", (a, b), Operand(strided((2, 4), (4, 1)), "FP32"))
        >>> [primitive.operation for primitive in program.primitives]
        ['Zero', 'Contraction']

    Source: TEIR, sections 10.7.5 to 10.7.7; the choice of roles is our own.
    """
    where = f"emit_contraction({equation!r}, ..)"
    inputs, output, terms = _contraction_terms(where, equation, operands, out, accumulate, init)
    biased = len(terms) == 4
    wide = contraction_dtype(*(operand.dtype for _, operand in terms))
    names = ("in0", "in1", "out", "bias")[: len(terms)]
    specs = [TensorSpec(n, op.dtype, "in") for n, (_, op) in zip(names, terms, strict=True)]
    specs[2] = TensorSpec("out", out.dtype, "inout" if accumulate else "out")
    strides = [_letter_strides(letters, operand) for letters, operand in terms]
    offsets = [operand.offset_bytes for _, operand in terms]
    extents = _extents(where, terms)
    acc = "out" if wide == out.dtype else "acc"
    if acc == "acc":
        packed, size_bytes = _packed(output, extents, strides[2], width_bytes(wide))
        specs.append(TensorSpec("acc", wide, "scratch", size_bytes))
        strides.append(packed)
        offsets.append(0)
    dims, swapped = _contraction_dims(inputs, output, extents, strides)
    sources = ("in1", "in0") if swapped else ("in0", "in1")
    body = [*_initial(acc, accumulate, biased), Step("Contraction", (*sources, acc), reduces=True)]
    if relu:
        body.append(Step("ReLU", (acc, acc)))
    if acc == "acc":
        body.append(Step("Copy", (acc, "out")))
    return build(name, tuple(specs), dims, tiling(dims), body, offsets)


def _contraction_terms(
    where: str,
    equation: str,
    operands: Sequence[Operand],
    out: Operand,
    accumulate: bool,
    init: Literal["zero"] | Operand | None,
) -> tuple[list[str], str, list[Term]]:
    """The letters of the inputs and of the output, and every operand with its letters; or why they do not fit."""
    if len(operands) != 2:
        raise GraphError(where, f"{len(operands)} operands are given", legal="two operands")
    if accumulate and init is not None:
        legal = "one initial value: what out holds, or init"
        raise GraphError(where, "both accumulate and init are given", legal=legal)
    inputs, output = _parse(where, equation, 2)
    terms = [*zip(inputs, operands, strict=True), (output, out)]
    if isinstance(init, Operand):
        terms.append((output, init))
    _extents(where, terms)
    _check_output(where, output, out)
    for letter in output:
        if letter not in "".join(inputs):
            raise GraphError(where, f"letter {letter!r} of the output is in no input", inputs=_shown(terms))
    return inputs, output, terms


def _initial(acc: str, accumulate: bool, biased: bool) -> list[Step]:
    """What stands before the sum: the bias, zero, or what the output holds."""
    if biased:
        return [Step("Copy", ("bias", acc))]
    if not accumulate:
        return [Step("Zero", (acc,))]
    return [Step("Copy", ("out", acc))] if acc != "out" else []


def emit_copy(
    source: Operand, out: Operand, equation: str | None = None, *, tiling: Chooser = untiled, name: str = "copy"
) -> Program:
    """The program of ``out[i] = in0[i]``: a permutation, a broadcast, a conversion, by strides of any sign.

    Args:
        source: in0; zero strides broadcast.
        out: no two of its elements may share a byte.
        equation: ``"abcd->dcba"``; by default both operands have the same indices in the same order. A letter of the
            output that is not in the source is broadcast.
        tiling: chooses the tiles of the dims it is given; `schedule` has some; by default roles are whole.
        name: of the program.

    Raises:
        GraphError: the shapes or the equation do not fit.
        DtypeError: floating point would become an integer.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, b = Operand(strided((2, 3), (3, 1)), "FP32"), Operand(strided((3, 2), (2, 1)), "FP32")
        >>> [primitive.operation for primitive in emit_copy(a, b, "ab->ba").primitives]
        ['Copy']

    Source: TEIR, sections 10.7.1 and 10.7.2.
    """
    where = "emit_copy(source, out)"
    if is_float(source.dtype) and not is_float(out.dtype):
        raise DtypeError(where, f"{source.dtype} to {out.dtype} has no agreed meaning for NaN", legal="round it first")
    return _elementwise(where, "Copy", source, out, equation, tiling, name)


def emit_relu(
    source: Operand,
    out: Operand | None = None,
    equation: str | None = None,
    *,
    tiling: Chooser = untiled,
    name: str = "relu",
) -> Program:
    """The program of ``out[i] = max(in0[i], 0)``, NaN kept; in place on the tensor ``out`` when no output is given.

    Args:
        source: in0, or the tensor that is changed in place.
        out: of the same element type; no two of its elements may share a byte.
        equation: as for `emit_copy`.
        tiling: chooses the tiles of the dims it is given; `schedule` has some; by default roles are whole.
        name: of the program.

    Raises:
        GraphError: the shapes or the equation do not fit.
        DtypeError: the element types differ.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Source: TEIR, table 10.3.2.
    """
    where = "emit_relu(source, out)"
    if out is not None and source.dtype != out.dtype:
        raise DtypeError(where, f"{source.dtype} and {out.dtype} differ", legal="one element type")
    if out is None:
        return _elementwise(where, "ReLU", None, source, None, tiling, name)
    return _elementwise(where, "ReLU", source, out, equation, tiling, name)


def emit_zero(out: Operand, *, tiling: Chooser = untiled, name: str = "zero") -> Program:
    """The program of ``out[i] = 0``.

    Raises:
        LayoutError: elements of the output share a byte, or the layout leaves the memory axis ``m``.

    Source: TEIR, table 10.3.2.
    """
    return _elementwise("emit_zero(out)", "Zero", None, out, None, tiling, name)


def _elementwise(
    where: str,
    operation: str,
    source: Operand | None,
    out: Operand,
    equation: str | None,
    tiling: Chooser,
    name: str,
) -> Program:
    output = "".join(map(chr, range(ord("a"), ord("a") + len(out.shape))))
    inputs: list[str] = [output] if source is not None else []
    if equation is not None:
        inputs, output = _parse(where, equation, 1)
    terms = [*zip(inputs, [source] if source is not None else [], strict=True), (output, out)]
    extents = _extents(where, terms)
    _check_output(where, output, out)
    if set("".join(inputs)) - set(output):
        raise GraphError(
            where, "a letter of the source is not in the output", inputs=_shown(terms), legal="a contraction"
        )
    specs = [TensorSpec("in0", op.dtype, "in") for _, op in terms[:-1]]
    in_place = source is None and operation == "ReLU"
    specs.append(TensorSpec("out", out.dtype, "inout" if in_place else "out"))
    strides = [_letter_strides(letters, operand) for letters, operand in terms]
    operands = ("out", "out") if in_place else tuple(spec.name for spec in specs)
    dims = _elementwise_dims(output, extents, strides)
    offsets = [operand.offset_bytes for _, operand in terms]
    return build(
        name,
        tuple(specs),
        dims,
        tiling(dims),
        [Step(operation, operands)],
        offsets,
    )


# ── equations and layouts ─────────────────────────────────────────────────────────────────────────────────────────────

Term = tuple[str, Operand]


def _parse(where: str, equation: str, inputs: int) -> tuple[list[str], str]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    if not arrow or len(parts) != inputs or not all(letter.isalpha() for letter in "".join([*parts, right])):
        form = ",".join(["ab", "bc", "cd"][:inputs]) + "->ac"
        raise GraphError(where, f"{equation!r} is not an equation of {inputs} operand(s)", legal=f"the form {form!r}")
    if len(set(right)) != len(right):
        raise GraphError(where, f"the output {right!r} repeats a letter", legal="each letter once in the output")
    return parts, right


def _extents(where: str, terms: Sequence[Term]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for letters, operand in terms:
        if any(axis != DEFAULT_AXIS for it in operand.layout.shard for axis in it.stride.axes) or (
            set(operand.layout.offset.axes) - {DEFAULT_AXIS}
        ):
            raise LayoutError(
                where, f"a layout leaves the memory axis {DEFAULT_AXIS}", inputs={"layout": operand.layout}
            )
        if len(letters) != len(operand.shape):
            raise GraphError(
                where, f"{letters!r} does not fit a shape of {len(operand.shape)} indices", inputs=_shown(terms)
            )
        for letter, extent in zip(letters, operand.shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                problem = f"letter {letter!r} has extents {extents[letter]} and {extent}"
                raise GraphError(where, problem, inputs=_shown(terms), legal="one extent per letter")
    return extents


def _shown(terms: Sequence[Term]) -> dict[str, object]:
    return {f"{letters or '()'} ({k})": operand for k, (letters, operand) in enumerate(terms)}


def _check_output(where: str, output: str, out: Operand) -> None:
    if out.layout.replica:
        raise LayoutError(where, "the output is replicated", inputs={"out": out}, legal="one place per element")
    collision = first_collision(out.shape, out.strides)
    if collision is not None:
        problem = f"elements of the output that are {collision} apart in ({','.join(output)}) share memory"
        raise LayoutError(where, problem, inputs={"out": out}, legal="strides that keep elements apart")


def _letter_strides(letters: str, operand: Operand) -> dict[str, int]:
    """Bytes per letter; a repeated letter moves along all its indices at once."""
    strides: dict[str, int] = {}
    for letter, stride in zip(letters, operand.strides_bytes, strict=True):
        strides[letter] = strides.get(letter, 0) + stride
    return strides


def _packed(output: str, extents: dict[str, int], strides: dict[str, int], width: int) -> tuple[dict[str, int], int]:
    """Strides without gaps in the order of the output's own, and the bytes that they cover."""
    packed, size = {}, width
    for letter in sorted(output, key=lambda c: abs(strides[c])):
        packed[letter] = size
        size *= extents[letter]
    return packed, size


# ── roles ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _contraction_dims(
    inputs: Sequence[str], output: str, extents: dict[str, int], strides: Sequence[dict[str, int]]
) -> tuple[tuple[Dim, ...], bool]:
    """The dims of a contraction in iteration order, and whether in0 and in1 change places.

    The output's fastest dim is made N, so in1 must move along it. Dims of both inputs and the output are batch; when
    the fastest dim is one of them it is N all the same, and the dims of either input alone are M.
    """

    def owner(letter: str) -> Role:
        """A first sorting: in0's free letters M, in1's N; letters fuse only within these."""
        if letter not in output:
            return "K"
        both = letter in inputs[0] and letter in inputs[1]
        return "batch" if both else "M" if letter in inputs[0] else "N"

    dims = fuse_dims(_dims(extents, strides, owner))
    moving = [dim for dim in dims if dim.role != "K"]
    fastest = min(moving, key=lambda dim: abs(dim.strides[2]), default=None)
    swapped = fastest is not None and fastest.role == "M"
    across = fastest is not None and fastest.role == "batch"

    def role(dim: Dim) -> Role:
        if dim is fastest:
            return "N"
        if dim.role in ("K", "batch"):
            return dim.role
        if across:
            return "M"
        return "N" if (dim.role == "N") != swapped else "M"

    rank = {"batch": 0, "M": 1, "N": 2, "K": 3}
    reduced = 1 if swapped else 0
    dims = tuple(Dim(dim.name, dim.extent, dim.strides, role(dim)) for dim in dims)

    def key(dim: Dim) -> tuple[int, int]:
        if dim.role == "K":
            return rank["K"], -max(abs(dim.strides[reduced]), abs(dim.strides[1 - reduced]))
        return rank[dim.role], -abs(dim.strides[2])

    return tuple(sorted(dims, key=key)), swapped


def _elementwise_dims(output: str, extents: dict[str, int], strides: Sequence[dict[str, int]]) -> tuple[Dim, ...]:
    """The output's fastest dim is N, the source's fastest M if it is another; the order is the output's."""
    dims = fuse_dims(_dims({letter: extents[letter] for letter in output}, strides, lambda letter: "batch"))
    dims = tuple(sorted(dims, key=lambda dim: -abs(dim.strides[-1])))
    n = dims[-1] if dims else None
    # a dim along which the source stands still is no help to it: broadcasts come last
    m = min(dims[:-1], key=lambda dim: (dim.strides[0] == 0, abs(dim.strides[0]), abs(dim.strides[-1])), default=None)
    return tuple(
        Dim(dim.name, dim.extent, dim.strides, "N" if dim is n else "M" if dim is m else "batch") for dim in dims
    )


def _dims(extents: dict[str, int], strides: Sequence[dict[str, int]], role: Callable[[str], Role]) -> tuple[Dim, ...]:
    """One dim per letter of more than one step."""
    return tuple(
        Dim(letter, extent, tuple(s.get(letter, 0) for s in strides), role(letter))
        for letter, extent in extents.items()
        if extent > 1
    )
