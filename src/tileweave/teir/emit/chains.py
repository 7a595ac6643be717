"""The emitter of chains: elementwise operations and reductions on one row after the other.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any, NamedTuple

from tileweave.errors import DtypeError, GraphError
from tileweave.teir.emit.rows import Rows
from tileweave.teir.emit.terms import Operand, check_output, extents_of, parse, shown
from tileweave.teir.ir.extensions import BINARY, CHOICES, FILL, NEUTRAL, REDUCTIONS, UNARY
from tileweave.teir.ir.primitives import operation as named
from tileweave.teir.ir.program import Program

_ELEMENTWISE = ("Copy", "ReLU", *UNARY, *BINARY, *CHOICES)
_COMPARISONS = frozenset(CHOICES) - {"Select"}
_START = {reduction: NEUTRAL[monoid] for monoid, reduction in REDUCTIONS.items()}


class ChainStep(NamedTuple):
    """An operation, its arguments (none for a Fill), the type of its result, and the number that a Fill writes."""

    kind: str
    arguments: tuple[int, ...]
    dtype: str
    number: float = 0.0


def emit_chain(
    steps: Sequence[tuple[Any, ...]],
    operands: Sequence[Operand],
    out: Operand,
    equation: str | None = None,
    *,
    axes: Sequence[int] = (),
    name: str = "chain",
) -> Program:
    """The program of several elementwise operations and reductions, of which only the last is stored.

    Args:
        steps: (operation, arguments) or (operation, arguments, element type of the result); an argument ``k >= 0`` is
            input k, ``-1 - k`` is the result of step k. Operations are those of `extensions.UNARY`, `BINARY` and
            `CHOICES`, ReLU and Copy; with ``axes``, reductions of one argument over a row (``ReduceSum``, ..); ``Fill``
            takes a number. The type of a result is by default that of the last argument, of a comparison INT8, and of
            a Fill the output's; a Cast names it.
        operands: the inputs; zero strides broadcast. With ``axes``, an input may lack all indices of a row: it has one
            value per row.
        out: takes the last result, of its type; no two of its elements may share a byte. It may lack a row likewise.
        equation: ``"ab,b->ab"``; by default operands have the same indices in the same order, or those outside a row.
        axes: the indices of a row, counted in the operand with most indices; none: there are no reductions.
        name: of the program.

    Returns:
        A well-formed program; results in between lie in scratch rows, along ``axes`` or along the output's fastest
        axis, and in scratch memory where there is one per row.

    Raises:
        GraphError: there is no such operation or argument, or the shapes, the axes or the equation do not fit.
        DtypeError: the element types do not fit an operation.
        LayoutError: elements of the output share a byte, or a layout leaves the memory axis ``m``.

    Example:
        >>> from tileweave.layout import strided
        >>> a, row = Operand(strided((4, 8), (8, 1)), "FP32"), Operand(strided((8,), (1,)), "FP32")
        >>> program = emit_chain([("Add", (0, 1)), ("ReLU", (-1,))], (a, row), a, "ab,b->ab")
        >>> [(p.operation, *p.operands) for p in program.primitives]
        [('Add', 'in0', 'in1', 'step0'), ('ReLU', 'step0', 'out')]
        >>> mean = Operand(strided((4,), (1,)), "FP32")
        >>> steps = [("ReduceSum", (0,)), ("Fill", (0.125,)), ("Mul", (-1, -2))]
        >>> [p.operation for p in emit_chain(steps, [a], mean, axes=(1,)).primitives]
        ['Zero', 'ReduceSum', 'Fill', 'Mul']
    """
    where = "emit_chain(steps, operands, out)"
    if not steps:
        raise GraphError(where, "there are no steps", legal="one or more")
    inputs, output, row = _letters(where, operands, out, equation, axes)
    terms = [*zip(inputs, operands, strict=True), (output, out)]
    extents_of(where, terms)
    check_output(where, output, out)
    if set("".join(inputs)) - set(output) - set(row):
        raise GraphError(where, "a letter of an input is not in the output", inputs=shown(terms))
    p = Rows(name, terms, row or None)
    given = [(f"in{k}", not row or bool(set(letters) & set(row))) for k, letters in enumerate(inputs)]
    typed = typed_steps(where, steps, [operand.dtype for operand in operands], out.dtype, reduces=bool(row))
    add_steps(where, p, typed, given, ("out", not row or bool(set(output) & set(row))), out.dtype)
    return p.program()


def add_steps(
    where: str,
    p: Rows,
    steps: Sequence[ChainStep],
    inputs: Sequence[tuple[str, bool]],
    into: tuple[str, bool],
    dtype: str,
) -> None:
    """Puts steps behind what a row program has.

    Args:
        where: for errors.
        p: the program.
        steps: as `typed_steps` gives them.
        inputs: per input its tensor, and whether it has a value per element of a row, not one per row.
        into: the same of the last step.
        dtype: of the last step.
    """
    held = _held(steps, [each for _, each in inputs], dtype) if into[1] else -1
    made: list[tuple[str, bool]] = []  # where a step's value is, and whether it is one per element
    for k, (kind, arguments, own, number) in enumerate(steps):
        last = k == len(steps) - 1
        if kind == FILL:
            if isinf(number):  # no metadata hold it
                made.append((p.per_row(f"step{k}", own), False))
                p.once(NEUTRAL["max" if number < 0 else "min"], made[-1][0])
            else:
                made.append((p.constant(f"step{k}", own, number), False))
            continue
        given = [inputs[a] if a >= 0 else made[-1 - a] for a in arguments]
        spread = last and into[1]  # what has one value per row is written to all of it
        each = kind not in _START and (p.row is None or spread or any(one for _, one in given))
        if last or k == held:
            target = into[0]
        else:
            target = (p.scratch_row if each else p.per_row)(f"step{k}", own)
        if kind in _START:
            p.once(_START[kind], target)
            p.over(kind, given[0][0], target)
        else:
            (p.each if each else p.once)(kind, *(place for place, _ in given), target)
        made.append((target, each))
    if made[-1][1] != into[1]:
        raise GraphError(where, "the last step does not have the output's shape", legal="one value per element, or row")


def _letters(
    where: str, operands: Sequence[Operand], out: Operand, equation: str | None, axes: Sequence[int]
) -> tuple[list[str], str, str]:
    """The letters of the inputs, of the output, and of a row."""
    if equation is not None:
        inputs, output = parse(where, equation, len(operands))
        most = max((*inputs, output), key=len)
    else:
        rank = max(len(one.shape) for one in (*operands, out))
        inputs, output = [], ""
        most = "".join(map(chr, range(ord("a"), ord("a") + rank)))
    rank = len(most)
    if any(not -rank <= axis < rank for axis in axes) or len({axis % rank for axis in axes}) < len(axes):
        raise GraphError(where, f"axes {tuple(axes)} of {rank} indices", legal="axes of the operands, each once")
    row = "".join(most[axis] for axis in axes)
    if equation is None:
        kept = "".join(letter for letter in most if letter not in row)
        *inputs, output = (most if len(one.shape) == rank else kept for one in (*operands, out))
    return list(inputs), output, row


def typed_steps(
    where: str, steps: Sequence[tuple[Any, ...]], inputs: Sequence[str], made: str, *, reduces: bool
) -> list[ChainStep]:
    """The steps with the type of each result; or why they do not fit."""
    legal = (*_ELEMENTWISE, FILL, *(_START if reduces else ()))
    typed: list[ChainStep] = []
    for k, step in enumerate(steps):
        kind, arguments = step[0], tuple(step[1])
        if kind not in legal:
            raise GraphError(where, f"step {k}: there is no such operation {kind!r}", legal=", ".join(legal))
        count = 1 if kind == FILL else named(kind).inputs
        if len(arguments) != count or (kind != FILL and not all(-k <= a < len(inputs) for a in arguments)):
            problem = f"step {k}: {kind} of {', '.join(map(str, arguments)) or 'nothing'}"
            raise GraphError(where, problem, legal=f"{count} of -{k}..{len(inputs) - 1}" if k else "inputs")
        if kind == FILL:
            number = arguments[0] if isinstance(arguments[0], float) else float(arguments[0])  # as it is: see `Sizes`
            typed.append(ChainStep(kind, (), step[2] if len(step) > 2 else made, number))
            continue
        dtypes = [inputs[a] if a >= 0 else typed[-1 - a].dtype for a in arguments]
        dtype = step[2] if len(step) > 2 else "INT8" if kind in _COMPARISONS else dtypes[-1]
        why = named(kind).dtypes((*dtypes, dtype))
        if why:
            raise DtypeError(where, f"step {k}: {why}", legal="a Cast before it")
        typed.append(ChainStep(kind, arguments, dtype))
    if typed[-1].dtype != made:
        raise DtypeError(
            where, f"the last result is {typed[-1].dtype} and the output {made}", legal="a Cast at the end"
        )
    return typed


def _held(steps: Sequence[ChainStep], whole: Sequence[bool], made: str) -> int:
    """The step whose row waits in the output for the last step; -1: none does.

    A row that is read again after another reduction is stored somewhere, and the output's own row is in cache when it
    is written again. It is free as long as nothing but the last value is stored behind it.
    """
    phase: list[int] = []  # how many reductions stand one behind the other before a step
    each: list[bool] = []
    late: list[int] = []  # steps with a row that a later phase reads
    for k, step in enumerate(steps):
        below = [-1 - a for a in step.arguments if a < 0]
        phase.append(max([phase[b] + (steps[b].kind in _START) for b in below], default=0))
        rows = any(each[-1 - a] if a < 0 else whole[a] for a in step.arguments)
        each.append(rows and step.kind not in _START)
        late += [b for b in below if each[b] and phase[b] < phase[k] and b not in late and steps[b].dtype == made]
    return late[-1] if late else -1
