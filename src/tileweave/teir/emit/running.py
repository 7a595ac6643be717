"""Emitters of what goes along one dimension element by element: running sums and extremes, and places of extremes.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.errors import DtypeError, GraphError
from tileweave.teir.emit.rows import Rows
from tileweave.teir.emit.terms import Operand, check_output, extents_of
from tileweave.teir.ir.dtypes import accumulator, is_float
from tileweave.teir.ir.extensions import FILL, NEUTRAL
from tileweave.teir.ir.program import Id, Iteration, Program

_STEPS = {
    "sum": ("Add", FILL, -0.0),
    "product": ("Mul", FILL, 1.0),
    "max": ("Max", NEUTRAL["max"], 0.0),
    "min": ("Min", NEUTRAL["min"], 0.0),
    "logaddexp": ("LogAddExp", NEUTRAL["max"], 0.0),
}
"""Monoid -> the operation that takes one more element, what fills in the number that changes none, and that number."""


def emit_running(monoid: str, x: Operand, out: Operand, axis: int, *, name: str = "running") -> Program:
    """The program whose element k along a dimension is what elements 0 to k of the operand come to.

    Args:
        monoid: ``sum``, ``product``, ``max``, ``min`` or ``logaddexp``.
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
    if monoid == "logaddexp" and not is_float(x.dtype):
        raise DtypeError(where, f"logarithms of {x.dtype}", legal="floating point")
    letters = _letters(where, x, axis)
    terms = [(letters, x), (letters, out)]
    extents_of(where, terms)
    check_output(where, letters, out)
    step, fill, start = _STEPS[monoid]
    p = Rows(name, terms, letters[axis])
    held = p.per_row("held", out.dtype)
    once: dict[str, tuple[Id, ...]] = {"M": (), "N": ()}
    p.body.append(p.invoke(fill, (held,), once, *([(("value", start),)] if fill == FILL else [])))
    _along(p, [p.invoke(kind, names, once) for kind, names in ((step, ("in0", held, held)), ("Copy", (held, "out")))])
    return p.program()


def _letters(where: str, x: Operand, axis: int) -> str:
    """A letter per dimension of an operand that has this one."""
    rank = len(x.shape)
    if not 0 <= axis < rank:
        raise GraphError(where, f"axis {axis} of {rank}", legal=f"0..{rank - 1}" if rank else "an operand with axes")
    return "".join(map(chr, range(ord("a"), ord("a") + rank)))


def _along(p: Rows, steps: Sequence[Id]) -> None:
    """Steps at one element of a row after the other."""
    below = tuple(steps)
    for dim in reversed([dim for dim in p.dims if dim.role == "K"]):
        p.nodes.append(Iteration(f"along {dim.name}", dim.name, below, "sequential"))
        below = (f"along {dim.name}",)
    p.body += below


_AHEAD = {"max": ("Greater", "LessEqual"), "min": ("Less", "GreaterEqual")}
"""Extreme -> how an element compares with those before that comes in front of them, and how one that does not."""


def emit_place(extreme: str, x: Operand, out: Operand, axis: int, *, name: str = "place") -> Program:
    """The program that finds the first place of the greatest, or least, element along a dimension.

    NaN comes before every number, as in NumPy.

    Args:
        extreme: ``max`` or ``min``.
        x: the operand; none of its extents is 0.
        out: of its shape without the dimension, INT64.
        axis: the dimension, 0 or more.
        name: of the program.

    Returns:
        A well-formed program: along the dimension one element after the other, through the best one and its place in
        scratch memory per row; rows may run at once. Places are counted in INT32 where that holds them.

    Raises:
        GraphError: there is no such extreme or axis, or the shapes differ.
        DtypeError: the output is not INT64.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, out = Operand(strided((4, 8), (8, 1)), "INT32"), Operand(strided((4,), (1,)), "INT64")
        >>> [p.operation for p in emit_place("max", a, out, 1).primitives]
        ['Fill', 'Lowest', 'Fill', 'Fill', 'Greater', 'Select', 'Select', 'Add', 'Cast']
    """
    where = "emit_place(extreme, x, out, axis)"
    if extreme not in _AHEAD:
        raise GraphError(where, f"there is no place of {extreme!r}", legal=", ".join(_AHEAD))
    if out.dtype != "INT64":
        raise DtypeError(where, f"places of {out.dtype}", legal="INT64")
    letters = _letters(where, x, axis)
    kept = letters[:axis] + letters[axis + 1 :]
    terms = [(letters, x), (kept, out)]
    extents_of(where, terms)
    check_output(where, kept, out)
    p = Rows(name, terms, letters[axis])
    number = "INT32" if x.shape[axis] < 1 << 31 else "INT64"
    best, place, count = p.per_row("best", x.dtype), p.per_row("place", number), p.per_row("count", number)
    one = p.constant("one", number, 1)
    p.once(NEUTRAL[extreme], best)
    once: dict[str, tuple[Id, ...]] = {"M": (), "N": ()}
    p.body += [p.invoke(FILL, (held,), once, (("value", 0),)) for held in (place, count)]
    ahead, behind = _AHEAD[extreme]
    taken = p.per_row("taken", "INT8")
    steps: list[tuple[str, tuple[str, ...]]] = [(ahead, ("in0", best, taken))]
    if is_float(x.dtype):  # what does not come behind is ahead, or NaN, and the first NaN stays
        later, number_yet = p.per_row("later", "INT8"), p.per_row("number_yet", "INT8")
        steps = [(behind, ("in0", best, later)), ("Equal", (best, best, number_yet))]
        steps.append(("Less", (later, number_yet, taken)))
    steps += [
        ("Select", (taken, "in0", best, best)),
        ("Select", (taken, count, place, place)),
        ("Add", (count, one, count)),
    ]
    _along(p, [p.invoke(kind, names, once) for kind, names in steps])
    p.once("Cast", place, "out")
    return p.program()
