"""The emitter of contractions: an equation and operands of any layout become a program.

An emitter knows descriptions only: an equation, and one `Operand` per tensor, whose layout has one iter of D per index
letter and element strides of any sign on the axis ``m``. The base of a tensor is where its layout is zero.

Programs are in the ``tileweave`` profile. Their tensors are ``in0, in1, .., out``, ``bias`` for an initial value, and
the scratch tensor ``acc`` where the output is narrower than the sums it takes. `emit_elements` has the other emitters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from tileweave.errors import DtypeError, GraphError
from tileweave.teir.emit.build import BodyStep, build
from tileweave.teir.emit.chains import typed_steps
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
from tileweave.teir.ir.dtypes import accumulator, contraction_dtype, width_bytes
from tileweave.teir.ir.extensions import REDUCTIONS
from tileweave.teir.ir.program import Program, TensorSpec


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
    chain: Sequence[tuple[Any, ...]] = (),
    extras: Sequence[Operand] = (),
    sums: str | None = None,
    added: str = "",
) -> Program:
    """The program of an einsum of two operands: ``out = init + sum of in0 * in1``, then ReLU and a chain if asked.

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
        chain: elementwise steps on the sums, as of `emit_chain`; argument 0 is the sums, ``k > 0`` the extra k - 1.
        extras: what else the chain reads, of the output's shape, zero strides broadcast: ``in2``, ``in3``, ..
        sums: the type of the sums that a chain reads; by default the output's.
        added: letters of both inputs and of the equation's output that `out` lacks: what the chain makes at each of
            their indices is added.

    Returns:
        A well-formed program. Sums are formed in the widest type of the operands, in FP32 at least, and narrowed once;
            those of INT8 wrap, but for a ReLU they are formed in INT32.

    Raises:
        GraphError: the equation does not fit the operands, or these are none.
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
    inputs, output, terms = _contraction_terms(where, equation, operands, out, accumulate, init, extras, added)
    first = len(terms) - len(extras)
    biased, kind = first == 4, (sums or out.dtype) if chain else out.dtype
    types = [operand.dtype for _, operand in terms]
    wide = contraction_dtype(*types[:2], kind, *types[3:first])
    if relu and wide == "INT8":
        wide = "INT32"  # a sum that wraps is narrowed to the same number whenever that is done, but not its ReLU
    names = (*("in0", "in1", "out", "bias")[:first], *(f"in{k + 2}" for k in range(len(extras))))
    specs = [TensorSpec(n, op.dtype, "in") for n, (_, op) in zip(names, terms, strict=True)]
    specs[2] = TensorSpec("out", out.dtype, "inout" if accumulate else "out")
    strides = [letter_strides(letters, operand) for letters, operand in terms]
    offsets = [operand.offset_bytes for _, operand in terms]
    extents = extents_of(where, terms)
    target = "sums" if chain else "out"
    acc = target if wide == kind else "acc"
    steps = typed_steps(where, chain, [kind, *types[first:]], out.dtype, reduces=False) if chain else []
    scratch = [("acc", wide)] * (acc == "acc") + [("sums", kind)] * bool(chain)
    held_steps = steps if added else steps[:-1]
    for held, dtype in (*scratch, *((f"step{k}", step.dtype) for k, step in enumerate(held_steps))):
        packed, size_bytes = packed_strides(output, extents, strides[2], width_bytes(dtype))
        specs.append(TensorSpec(held, dtype, "scratch", size_bytes))
        strides.append(packed)
        offsets.append(0)
    between = "".join(c for c in inputs[0] if c in inputs[1] and any(c in own for own, _ in terms[first:]))
    dims, swapped = _contraction_dims(inputs, output, extents, strides, between if added else "")
    sources = ("in1", "in0") if swapped else ("in0", "in1")
    body = [BodyStep("Zero", ("out",), first=True)] * bool(added)
    body += [*_initial(acc, accumulate, biased), BodyStep("Contraction", (*sources, acc), reduces=True)]
    if relu:
        body.append(BodyStep("ReLU", (acc, acc)))
    if acc == "acc":
        body.append(BodyStep("Copy", (acc, target)))
    given = [target, *names[first:]]
    for k, step in enumerate(steps):
        read = (given[a] if a >= 0 else f"step{-1 - a}" for a in step.arguments)
        body.append(BodyStep(step.kind, (*read, f"step{k}" if k < len(held_steps) else "out")))
    if added:
        body.append(BodyStep(REDUCTIONS["sum"], (f"step{len(steps) - 1}", "out")))
    return build(name, tuple(specs), dims, tiling(dims), body, offsets)


def _contraction_terms(
    where: str,
    equation: str,
    operands: Sequence[Operand],
    out: Operand,
    accumulate: bool,
    init: Literal["zero"] | Operand | None,
    extras: Sequence[Operand],
    added: str,
) -> tuple[list[str], str, list[Term]]:
    """The letters of the inputs and of the output, and every operand with its letters; or why they do not fit."""
    if not isinstance(operands, Sequence):
        raise GraphError(where, f"{type(operands).__name__} is given as operands", legal="two operands")
    if len(operands) != 2:
        raise GraphError(where, f"it takes two operands, not {len(operands)}", legal="two operands")
    if accumulate and init is not None:
        legal = "one initial value: what out holds, or init"
        raise GraphError(where, "both accumulate and init are given", legal=legal)
    inputs, whole = parse(where, equation, 2)
    output = "".join(c for c in whole if c not in added)
    if added and not (extras and all(c in inputs[0] and c in inputs[1] and c in whole for c in added)):
        raise GraphError(where, f"added along {added!r}", legal="letters of both inputs and of the output, and extras")
    if added and accumulator(out.dtype) != out.dtype:
        raise DtypeError(where, f"results of {out.dtype} are added", legal=accumulator(out.dtype))
    terms = [*zip(inputs, operands, strict=True), (output, out)]
    if isinstance(init, Operand):
        terms.append((output, init))
    terms += [(whole, one) for one in extras]
    extents_of(where, terms)
    check_output(where, output, out)
    for letter in output:
        if letter not in "".join(inputs):
            raise GraphError(where, f"letter {letter!r} of the output is in no input", inputs=shown(terms))
    terms = refined(where, terms)
    return [letters for letters, _ in terms[:2]], terms[2][0], terms


def _initial(acc: str, accumulate: bool, biased: bool) -> list[BodyStep]:
    """What stands before the sum: the bias, zero, or what the output holds."""
    if biased:
        return [BodyStep("Copy", ("bias", acc))]
    if not accumulate:
        return [BodyStep("Zero", (acc,))]
    return [BodyStep("Copy", ("out", acc))] if acc != "out" else []


# ── roles ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _contraction_dims(
    inputs: Sequence[str], output: str, extents: dict[str, int], strides: Sequence[dict[str, int]], added: str
) -> tuple[tuple[LoopDim, ...], bool]:
    """The dims of a contraction in iteration order, and whether in0 and in1 change places.

    The output's fastest dim is made N, so in1 must move along it. Dims of both inputs and the output are batch; when
    the fastest dim is one of them it is N all the same, and the dims of either input alone are M.
    """

    def owner(letter: str) -> Role:
        """A first sorting: in0's free letters M, in1's N; letters fuse only within these."""
        if letter in added and letter not in output:
            return "added"
        if letter not in output:
            return "K"
        both = letter in inputs[0] and letter in inputs[1]
        return "batch" if both else "M" if letter in inputs[0] else "N"

    dims = fuse_dims(dims_of(extents, strides, owner))
    moving = [dim for dim in dims if dim.role not in ("K", "added")]
    fastest = min(moving, key=lambda dim: abs(dim.strides[2]), default=None)
    swapped = fastest is not None and fastest.role == "M"
    across = fastest is not None and fastest.role == "batch"

    def role(dim: LoopDim) -> Role:
        if dim is fastest:
            return "N"
        if dim.role in ("K", "batch", "added"):
            return dim.role
        if across:
            return "M"
        return "N" if (dim.role == "N") != swapped else "M"

    rank = {"batch": 0, "M": 1, "N": 2, "added": 3, "K": 4}
    reduced = 1 if swapped else 0
    dims = tuple(LoopDim(dim.name, dim.extent, dim.strides, role(dim)) for dim in dims)

    def key(dim: LoopDim) -> tuple[int, int]:
        if dim.role == "K":
            return rank["K"], -max(abs(dim.strides[reduced]), abs(dim.strides[1 - reduced]))
        return rank[dim.role], -abs(dim.strides[2])

    return tuple(sorted(dims, key=key)), swapped
