"""``tileweave teir emit``: from an equation and shapes to a program."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tileweave.cli.files import check_new, count, write_whole
from tileweave.errors import DtypeError, GraphError, LayoutError
from tileweave.layout import strided
from tileweave.teir import (
    Operand,
    Program,
    as_document,
    contraction_tiles,
    elementwise_tiles,
    emit_contraction,
    emit_einsum,
    emit_elementwise,
    emit_reduction,
    emit_relu,
    problems,
    to_json,
    untiled,
)
from tileweave.teir.ir.dtypes import DTYPES
from tileweave.teir.ir.extensions import BINARY, IN_PLACE, REDUCTIONS, UNARY


def emit_file(options: argparse.Namespace) -> int:
    """Write the program of an einsum, a permutation or a copy as JSON."""
    if options.output is not None:
        check_new("-o", options.output, ".json", bool(options.overwrite))
    program = _emitted(options)
    if options.profile == "document":
        program = as_document(program)
    text = to_json(program)
    if options.output is None:
        print(text, end="")
        return 0
    write_whole(options.output, text)
    size = f"{count(len(program.nodes), 'node')}, {count(len(program.primitives), 'primitive')}"
    print(f"wrote {options.output}  {program.name}: {size}")
    return 0


def parse_shape(text: str) -> tuple[int, ...]:
    """The extents of ``64x32``, or of ``scalar``."""
    if text == "scalar":
        return ()
    parts = text.split("x")
    if not all(part.isascii() and part.isdecimal() and len(part) < 20 and int(part) > 0 for part in parts):
        raise GraphError(text, "is no shape", legal="positive extents such as 64x32, or scalar")
    return tuple(map(int, parts))


def shown_shape(shape: Sequence[int]) -> str:
    """A shape as `parse_shape` reads it."""
    return "x".join(map(str, shape)) or "scalar"


def _emitted(options: argparse.Namespace) -> Program:
    out_dtype = options.out_dtype or options.dtype
    for option, name in (("--dtype", options.dtype), ("--out-dtype", out_dtype)):
        if name not in DTYPES:
            raise DtypeError(option, f"{name!r} is not an element type of TEIR", legal=", ".join(DTYPES))
    left, arrow, right = options.equation.replace(" ", "").partition("->")
    terms = left.split(",")
    where = _emit(options)
    if "." in options.equation:
        problem = "a program has a letter for every index, and ... names none"
        raise GraphError(where, problem, legal="such as 'abij->abji'")
    if not arrow:
        counts = Counter(left.replace(",", ""))
        implied = "".join(sorted(letter for letter in counts if counts[letter] == 1))
        raise GraphError(where, "the equation says no output", legal=f"such as {options.equation + '->' + implied!r}")
    if len(terms) != len(options.shapes):
        follow = "shape follows" if len(options.shapes) == 1 else "shapes follow"
        given = f"the equation has {count(len(terms), 'operand')}, and {len(options.shapes)} {follow} it"
        raise GraphError(where, given, legal="a shape for each operand, such as 64x32")
    shapes = [parse_shape(text) for text in options.shapes]
    extents: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        extents.update(zip(term, shape, strict=False))
    missing = [letter for letter in right if letter not in extents]
    if missing:
        raise GraphError(where, f"letter {missing[0]!r} of the output is in no input", legal="letters of the inputs")
    try:
        program = _chosen_emitter(options, terms, right, shapes, extents)
    except (GraphError, LayoutError) as error:
        raise type(error)(where, error.problem, inputs=error.inputs, legal=error.legal, facts=error.facts) from None
    stated = dict(zip((f"in{k}" for k in range(len(shapes))), shapes, strict=True))
    stated["out"] = tuple(extents[letter] for letter in right)
    tensors = tuple(replace(spec, shape=stated.get(spec.name)) for spec in program.tensors)
    program = replace(program, tensors=tensors)
    if found := problems(program):
        raise GraphError(where, f"{found[0].path}: {found[0].message}", legal=found[0].legal)
    return program


def _emit(options: argparse.Namespace) -> str:
    return f"teir emit {options.equation!r}"


def _chosen_emitter(
    options: argparse.Namespace,
    terms: Sequence[str],
    right: str,
    shapes: Sequence[tuple[int, ...]],
    extents: Mapping[str, int],
) -> Program:
    """The program by the emitter that the options and the number of operands choose."""
    operands = [_row_major(shape, options.dtype) for shape in shapes]
    out = _row_major(tuple(extents[letter] for letter in right), options.out_dtype or options.dtype)
    name = options.name or "_".join([*terms, "to", right]).strip("_")
    if options.op is not None:
        if options.accumulate or options.relu:
            raise GraphError(_emit(options), "--accumulate and --relu are for contractions", legal="--op alone")
        return _extension(options, operands, out, name)
    if len(operands) >= 2:
        tiling = contraction_tiles if options.tiled else untiled
        flags = {"accumulate": options.accumulate, "relu": options.relu}
        alone = [q for k in (0, 1) for q in terms[k] if q not in terms[1 - k] + right]
        emit = emit_contraction if len(operands) == 2 and not alone else emit_einsum
        return emit(options.equation, operands, out, tiling=tiling, name=name, **flags)
    if options.accumulate:
        raise GraphError(_emit(options), "--accumulate needs a contraction", legal="two operands")
    tiling = elementwise_tiles if options.tiled else untiled
    if options.relu:
        if set(terms[0]) != set(right):
            raise GraphError(
                _emit(options),
                "--relu of one operand needs all of its letters in the output",
                legal="a program for each",
            )
        return emit_relu(operands[0], out, options.equation, tiling=tiling, name=name)
    return emit_einsum(options.equation, operands, out, tiling=tiling, name=name)


def _extension(options: argparse.Namespace, operands: list[Operand], out: Operand, name: str) -> Program:
    """The program of an extension: a reduction where the output lacks a letter, elementwise otherwise."""
    left, _, right = options.equation.replace(" ", "").partition("->")
    if len(operands) == 1 and options.op in REDUCTIONS:
        if set(left) == set(right):
            raise GraphError(
                _emit(options), f"--op {options.op} has no letter to reduce over", legal="an output that lacks a letter"
            )
        tiling = contraction_tiles if options.tiled else untiled
        return emit_reduction(options.op, operands[0], out, options.equation, tiling=tiling, name=name)
    tiling = elementwise_tiles if options.tiled else untiled
    if options.op not in (*UNARY, *BINARY, *IN_PLACE):
        legal = f"to reduce {', '.join(REDUCTIONS)}; element by element {', '.join((*UNARY, *BINARY, *IN_PLACE))}"
        meant = next((op for op in (*UNARY, *BINARY, *IN_PLACE) if op.lower() == options.op.lower()), None)
        problem = f"there is no operation {options.op!r}"
        if options.op in REDUCTIONS:
            problem = f"{options.op!r} reduces one operand; the equation has {len(operands)}"
        if meant is not None:
            problem += f"; {meant!r} works element by element"
        raise GraphError(_emit(options), f"--op: {problem}", legal=legal)
    return emit_elementwise(options.op, operands, out, options.equation, tiling=tiling, name=name)


def _row_major(shape: tuple[int, ...], dtype: str) -> Operand:
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    return Operand(strided(shape, strides), dtype)
