"""The emitter of attention: a product, steps on its rows, and a second product of each row, query by query.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileweave.errors import DtypeError, GraphError
from tileweave.teir.emit.chains import add_steps, typed_steps
from tileweave.teir.emit.rows import Rows
from tileweave.teir.emit.terms import Operand, check_output, extents_of
from tileweave.teir.ir.dtypes import accumulator, is_float
from tileweave.teir.ir.program import Program


def emit_attention(
    steps: Sequence[tuple[str, tuple[Any, ...]]],
    operands: Sequence[Operand],
    out: Operand,
    letters: Sequence[str],
    *,
    name: str = "attention",
) -> Program:
    """The program of ``out = steps(in0 @ in1) @ in2``, one row of scores after the other, which lies in scratch memory.

    Args:
        steps: as `emit_chain` takes them; argument 0 is the row of scores, ``k > 0`` operand ``k + 2``. Scores of
            narrow floats are FP32; the last step then gives weights of the operands' type.
        operands: queries, keys, values, and what else the steps read.
        out: the result.
        letters: of every operand, then of the output. The letter of a row is the one that keys and values share and
            the output lacks; the products sum over what queries and keys share alone, and over the row.
        name: of the program.

    Returns:
        A well-formed program. Its scratch memory holds a row of scores per part of the outermost loop.

    Raises:
        GraphError: the letters or shapes do not fit, or there is no such operation.
        DtypeError: an element type is not floating point, or there is more than one.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a = Operand(strided((4, 8), (8, 1)), "FP32")
        >>> steps = [("ReduceMax", (0,)), ("Sub", (0, -1)), ("Exp", (-2,))]
        >>> made = emit_attention(steps, [a, a, a], a, ["id", "jd", "je", "ie"])
        >>> [p.operation for p in made.primitives]
        ['Zero', 'Contraction', 'Lowest', 'ReduceMax', 'Sub', 'Exp', 'Zero', 'Contraction']
    """
    where = "emit_attention(steps, operands, out, letters)"
    terms = list(zip(letters, (*operands, out), strict=True))
    q, k, v, made = (set(letters[n]) for n in (0, 1, 2, -1))
    row, inner, outer = (k & v) - made, (q & k) - v - made, (v & made) - k - q
    if not len(row) == len(inner) == len(outer) == 1:
        raise GraphError(where, f"letters {', '.join(letters)}", legal="such as id, jd, je, ie")
    wide, extras = accumulator(out.dtype), {operand.dtype for operand in operands[3:]}
    if {o.dtype for o in operands[:3]} != {out.dtype} or extras - {wide, "INT8"} or not is_float(out.dtype):
        raise DtypeError(where, "element types differ", legal="one of floats; of extras its FP32 or FP64, or INT8")
    extents_of(where, terms)
    check_output(where, letters[-1], out)
    (j,), (d,), (e,) = row, inner, outer
    p = Rows(name, terms, j + d + e, elements=j)
    scores = p.scratch_row("scores", wide)
    keys, summed, features = (p.row_axes(letter) for letter in (j, d, e))
    p.each("Zero", scores)
    p.body.append(p.invoke("Contraction", ("in0", "in1", scores), {"M": (), "N": keys, "K": summed}))
    given = [(scores, True), *((f"in{n + 3}", j in letters[n + 3]) for n in range(len(operands) - 3))]
    weights = p.scratch_row("weights", out.dtype)
    types = [wide, *(operand.dtype for operand in operands[3:])]
    typed = typed_steps(where, steps, types, out.dtype, reduces=True)
    add_steps(where, p, typed, given, (weights, True), out.dtype)
    sums = "out"
    if wide != out.dtype:
        own = {*features, *(dim.name for dim in p.dims if dim.name.endswith("_chunk"))}
        sums = p.packed("sums", wide, [dim.name in own for dim in p.dims])
    p.body.append(p.invoke("Zero", (sums,), {"M": (), "N": features}))
    p.body.append(p.invoke("Contraction", (weights, "in2", sums), {"M": (), "N": features, "K": keys}))
    if wide != out.dtype:
        p.body.append(p.invoke("Copy", (sums, "out"), {"M": (), "N": features}))
    return p.program()
