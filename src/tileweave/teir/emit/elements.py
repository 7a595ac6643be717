"""Emitters of what runs over elements: copies, fills, functions of elements, and reductions, by strides of any sign.

Every emitter takes an equation that names the indices of each input and of the output. An input that lacks a letter of
the output is broadcast along it; a letter that the output lacks is reduced over.

Source: TEIR, sections 10.7.1 and 10.7.2; the extensions are our own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.errors import DtypeError, GraphError
from tileweave.teir.emit.build import BodyStep, build
from tileweave.teir.emit.schedule import Chooser, LoopDim, Role, fuse_dims, untiled
from tileweave.teir.emit.terms import (
    Operand,
    Term,
    check_output,
    dims_of,
    extents_of,
    letter_strides,
    packed_strides,
    parse,
    refined,
    shown,
)
from tileweave.teir.ir.dtypes import contraction_dtype, is_float, width_bytes
from tileweave.teir.ir.extensions import BINARY, IN_PLACE, NEUTRAL, REDUCTIONS, UNARY
from tileweave.teir.ir.primitives import operation as named
from tileweave.teir.ir.program import Program, TensorSpec


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
    return _elementwise(where, "Copy", [source], out, equation, tiling, name)


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
        return _elementwise(where, "ReLU", [], source, None, tiling, name)
    return _elementwise(where, "ReLU", [source], out, equation, tiling, name)


def emit_zero(out: Operand, *, tiling: Chooser = untiled, name: str = "zero") -> Program:
    """The program of ``out[i] = 0``.

    Raises:
        LayoutError: elements of the output share a byte, or the layout leaves the memory axis ``m``.

    Source: TEIR, table 10.3.2.
    """
    return _elementwise("emit_zero(out)", "Zero", [], out, None, tiling, name)


def emit_elementwise(
    operation: str,
    operands: Sequence[Operand],
    out: Operand,
    equation: str | None = None,
    *,
    tiling: Chooser = untiled,
    name: str | None = None,
) -> Program:
    """The program of ``out[i] = operation(in0[i], ..)``, every operand by strides of any sign, or broadcast.

    Args:
        operation: one of `extensions.UNARY`, `BINARY` and `IN_PLACE`; those in place change what ``out`` holds.
        operands: in0, or in0 and in1; zero strides broadcast.
        out: no two of its elements may share a byte.
        equation: ``"ab,b->ab"``; by default all operands have the same indices in the same order.
        tiling: as for `emit_copy`.
        name: of the program; by default the operation's.

    Raises:
        GraphError: there is no such operation, or the shapes or the equation do not fit.
        DtypeError: the element types do not fit the operation.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, row = Operand(strided((2, 3), (3, 1)), "FP32"), Operand(strided((3,), (1,)), "FP32")
        >>> program = emit_elementwise("Add", (a, row), a, "ab,b->ab")
        >>> program.primitives[0].operands, program.axes[-1].strides
        (('in0', 'in1', 'out'), (4, 4, 4))

    Source: own.
    """
    where = f"emit_elementwise({operation!r}, ..)"
    legal = (*UNARY, *BINARY, *IN_PLACE)
    if operation not in legal:
        raise GraphError(where, "there is no such elementwise operation", legal=", ".join(legal))
    if len(operands) != named(operation).inputs:
        wanted = named(operation).inputs
        given = "1 operand is" if len(operands) == 1 else f"{len(operands)} operands are"
        problem = f"{given} given for {named(operation).meaning}"
        raise GraphError(where, problem, legal=f"{wanted} operand{'' if wanted == 1 else 's'}")
    why = named(operation).dtypes((*(operand.dtype for operand in operands), out.dtype))
    if why:
        raise DtypeError(where, why, legal="a Cast before it")
    return _elementwise(where, operation, operands, out, equation, tiling, name or operation.lower())


def emit_reduction(
    monoid: str,
    source: Operand,
    out: Operand,
    equation: str,
    *,
    accumulate: bool = False,
    tiling: Chooser = untiled,
    name: str | None = None,
) -> Program:
    """The program of ``out[i] = monoid of in0[i, k] over k``.

    Args:
        monoid: sum, prod, max or min.
        source: in0.
        out: no two of its elements may share a byte.
        equation: ``"abc->b"``: the letters that the output lacks are reduced over. At least one is.
        accumulate: take the values into what the output holds, instead of into the neutral element.
        tiling: chooses the tiles of the dims it is given; `contraction_tiles` fits; by default roles are whole.
        name: of the program; by default the reduction's.

    Returns:
        A well-formed program. Sums and products are formed in the wider one of the two types, FP32 at least, and
        narrowed once; max and min in the source's type.

    Raises:
        GraphError: there is no such monoid, or the equation does not fit.
        DtypeError: floating point would become an integer, or the other way.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, row = Operand(strided((2, 3), (3, 1)), "FP32"), Operand(strided((3,), (1,)), "FP32")
        >>> [primitive.operation for primitive in emit_reduction("max", a, row, "ab->b").primitives]
        ['Lowest', 'ReduceMax']

    Source: own.
    """
    where = f"emit_reduction({monoid!r}, ..)"
    if monoid not in REDUCTIONS:
        raise GraphError(where, "there is no such monoid", legal=", ".join(REDUCTIONS))
    if is_float(source.dtype) != is_float(out.dtype):
        raise DtypeError(where, f"{source.dtype} to {out.dtype} has no agreed meaning", legal="a Cast first")
    inputs, output = parse(where, equation, 1)
    terms: list[Term] = [(inputs[0], source), (output, out)]
    extents = extents_of(where, terms)
    check_output(where, output, out)
    for letter in output:
        if letter not in inputs[0]:
            raise GraphError(where, f"letter {letter!r} of the output is not in the source", inputs=shown(terms))
    if set(inputs[0]) == set(output):
        raise GraphError(where, "no letter is reduced over", inputs=shown(terms), legal="emit_copy")
    terms = refined(where, terms)
    output, extents = terms[1][0], extents_of(where, terms)
    wide = contraction_dtype(source.dtype, out.dtype) if monoid in ("sum", "prod") else source.dtype
    specs = [TensorSpec("in0", source.dtype, "in"), TensorSpec("out", out.dtype, "inout" if accumulate else "out")]
    strides = [letter_strides(letters, operand) for letters, operand in terms]
    offsets = [operand.offset_bytes for _, operand in terms]
    acc = "out" if wide == out.dtype else "acc"
    if acc == "acc":
        packed, size_bytes = packed_strides(output, extents, strides[1], width_bytes(wide))
        specs.append(TensorSpec("acc", wide, "scratch", size_bytes))
        strides.append(packed)
        offsets.append(0)
    start = [BodyStep("Copy", ("out", acc))] if acc != "out" else []
    body = start if accumulate else [BodyStep(NEUTRAL[monoid], (acc,))]
    body.append(BodyStep(REDUCTIONS[monoid], ("in0", acc), reduces=True))
    if acc != "out":
        body.append(BodyStep("Copy", (acc, "out")))
    dims = _reduction_dims(output, extents, strides)
    return build(name or REDUCTIONS[monoid].lower(), tuple(specs), dims, tiling(dims), body, offsets)


def _elementwise(
    where: str,
    operation: str,
    sources: Sequence[Operand],
    out: Operand,
    equation: str | None,
    tiling: Chooser,
    name: str,
) -> Program:
    output = "".join(map(chr, range(ord("a"), ord("a") + len(out.shape))))
    inputs: list[str] = [output] * len(sources)
    if equation is not None:
        inputs, output = parse(where, equation, len(sources))
    terms = [*zip(inputs, sources, strict=True), (output, out)]
    extents = extents_of(where, terms)
    check_output(where, output, out)
    if set("".join(inputs)) - set(output):
        raise GraphError(
            where, "a letter of the source is not in the output", inputs=shown(terms), legal="a contraction"
        )
    terms = refined(where, terms)
    output, extents = terms[-1][0], extents_of(where, terms)
    specs = [TensorSpec(f"in{k}", op.dtype, "in") for k, (_, op) in enumerate(terms[:-1])]
    alone = len(sources) < named(operation).inputs  # it works in place on its only tensor
    changes = alone or named(operation).reads_output
    specs.append(TensorSpec("out", out.dtype, "inout" if changes else "out"))
    strides = [letter_strides(letters, operand) for letters, operand in terms]
    operands = ("out", "out") if alone else tuple(spec.name for spec in specs)
    dims = _elementwise_dims(output, extents, strides)
    offsets = [operand.offset_bytes for _, operand in terms]
    return build(name, tuple(specs), dims, tiling(dims), [BodyStep(operation, operands)], offsets)


def _elementwise_dims(output: str, extents: dict[str, int], strides: Sequence[dict[str, int]]) -> tuple[LoopDim, ...]:
    """The output's fastest dim is N, the sources' fastest M if it is another; the order is the output's."""
    dims = fuse_dims(dims_of({letter: extents[letter] for letter in output}, strides, lambda letter: "batch"))
    dims = tuple(sorted(dims, key=lambda dim: -abs(dim.strides[-1])))
    n = dims[-1] if dims else None

    def speed(dim: LoopDim) -> tuple[bool, int, int]:
        # a dim along which a source stands still is no help to it: broadcasts come last
        still, stride = min((stride == 0, abs(stride)) for stride in (dim.strides[:-1] or dim.strides))
        return still, stride, abs(dim.strides[-1])

    m = min(dims[:-1], key=speed, default=None)
    return tuple(
        LoopDim(dim.name, dim.extent, dim.strides, "N" if dim is n else "M" if dim is m else "batch") for dim in dims
    )


def _reduction_dims(output: str, extents: dict[str, int], strides: Sequence[dict[str, int]]) -> tuple[LoopDim, ...]:
    """The output's fastest dim is N, its others M, what it lacks K; outermost first by the output, then by in0."""

    def role(letter: str) -> Role:
        return "M" if letter in output else "K"

    dims = fuse_dims(dims_of(extents, strides, role))
    free = sorted((dim for dim in dims if dim.role == "M"), key=lambda dim: -abs(dim.strides[1]))
    inner = sorted((dim for dim in dims if dim.role == "K"), key=lambda dim: -abs(dim.strides[0]))
    free[-1:] = [LoopDim(dim.name, dim.extent, dim.strides, "N") for dim in free[-1:]]
    return (*free, *inner)
