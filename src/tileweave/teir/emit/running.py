"""The emitter of running sums and products: what all elements up to each one come to, along one dimension.

Source: own.
"""

from __future__ import annotations

from tileweave.errors import DtypeError, GraphError
from tileweave.teir.emit.rows import Rows
from tileweave.teir.emit.terms import Operand, check_output, extents_of
from tileweave.teir.ir.dtypes import accumulator
from tileweave.teir.ir.extensions import FILL
from tileweave.teir.ir.program import Id, Iteration, Program

_STEPS = {"sum": ("Add", -0.0), "product": ("Mul", 1.0)}
"""Monoid -> the operation that takes one more element, and the number that changes none."""


def emit_running(monoid: str, x: Operand, out: Operand, axis: int, *, name: str = "running") -> Program:
    """The program whose element k along a dimension is what elements 0 to k of the operand come to.

    Args:
        monoid: ``sum`` or ``product``.
        x: the operand.
        out: of its shape and element type.
        axis: the dimension, 0 or more.
        name: of the program.

    Returns:
        A well-formed program: along the dimension one element after the other, through one number of scratch memory
        per row; rows may run at once.

    Raises:
        GraphError: there is no such monoid or axis, or the shapes differ.
        DtypeError: the element types differ, or sums of theirs are formed in a wider one.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a = Operand(strided((4, 8), (8, 1)), "FP32")
        >>> [(p.operation, *p.operands) for p in emit_running("sum", a, a, 1).primitives]
        [('Fill', 'held'), ('Add', 'in0', 'held', 'held'), ('Copy', 'held', 'out')]
    """
    where = "emit_running(monoid, x, out, axis)"
    if monoid not in _STEPS:
        raise GraphError(where, f"{monoid!r} has no running form", legal=", ".join(_STEPS))
    if x.dtype != out.dtype or accumulator(x.dtype) != x.dtype:
        raise DtypeError(where, f"{x.dtype} to {out.dtype}", legal="one type, in which sums are formed")
    rank = len(x.shape)
    if not 0 <= axis < rank:
        raise GraphError(where, f"axis {axis} of {rank}", legal=f"0..{rank - 1}" if rank else "an operand with axes")
    letters = "".join(map(chr, range(ord("a"), ord("a") + rank)))
    terms = [(letters, x), (letters, out)]
    extents_of(where, terms)
    check_output(where, letters, out)
    step, start = _STEPS[monoid]
    p = Rows(name, terms, letters[axis])
    held = p.per_row("held", out.dtype)
    once: dict[str, tuple[Id, ...]] = {"M": (), "N": ()}
    p.body.append(p.invoke(FILL, (held,), once, (("value", start),)))
    below = tuple(p.invoke(kind, names, once) for kind, names in ((step, ("in0", held, held)), ("Copy", (held, "out"))))
    for dim in reversed([dim for dim in p.dims if dim.role == "K"]):
        p.nodes.append(Iteration(f"along {dim.name}", dim.name, below, "sequential"))
        below = (f"along {dim.name}",)
    p.body += below
    return p.program()
