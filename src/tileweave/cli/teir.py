"""``tileweave teir``: check, show, run, explain, tune and emit programs of the tiled execution IR."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.errors import BackendError, DtypeError, GraphError, StorageError, Undecided, VerifyError
from tileweave.layout import strided
from tileweave.teir import (
    Invocation,
    Operand,
    Problem,
    Program,
    TensorSpec,
    as_document,
    byte_bounds,
    contraction_tiles,
    elementwise_tiles,
    emit_contraction,
    emit_copy,
    emit_einsum,
    emit_elementwise,
    emit_reduction,
    emit_relu,
    explain,
    from_json,
    interpret,
    numpy_dtype,
    out_of_bounds,
    overlap,
    problems,
    races,
    to_json,
    uninitialised,
    untiled,
    unwritten,
)
from tileweave.teir.analyse import accesses
from tileweave.teir.dtypes import DTYPES, width_bytes
from tileweave.teir.extensions import BINARY, IN_PLACE, REDUCTIONS, UNARY
from tileweave.teir.text import tree

__all__ = ["check_file", "emit_file", "explain_file", "run_file", "show_file", "tune_file"]

Array = NDArray[Any]

CHECKED_STEPS = 200_000
"""Scalar steps up to which `check` follows initialisation, and emits a note beyond."""


# ---------------------------------------------------------------------------------------------------------------------
# the commands


def check_file(options: argparse.Namespace) -> int:
    """Print every broken rule as a compiler would, or what was proved; with arrays also that they are large enough."""
    program = _load(options.file, check=False)
    found = list(problems(program))
    proved = ["well formed"]
    notes: list[str] = []
    if not found:
        given = {name: _read(path) for name, path in _bindings(options.arrays, program).items()}
        found = _array_problems(program, given)
        if not found:
            proved += ["inside its arrays"] if given else []
            found = _analyses(program, proved, notes)
            notes += _gaps(program, given)
    for problem in found:
        _complain(options.file, problem)
    for note in notes:
        print(f"{_shown_path(options.file)}: note: {note}", file=sys.stderr)
    if found:
        print(f"{program.name}\n{_cut(tree(program))}", file=sys.stderr)
        return 2
    counts = ", ".join(
        f"{len(items)} {word}"
        for items, word in (
            (program.tensors, "tensors"),
            (program.axes, "axes"),
            (program.nodes, "nodes"),
            (program.primitives, "primitives"),
        )
    )
    print(f"{_shown_path(options.file)}: {program.name} ({program.profile} profile): {counts}: {', '.join(proved)}")
    return 0


def show_file(options: argparse.Namespace) -> int:
    """Print a program as text or canonical JSON, well formed or not; draw it."""
    program = _load(options.file, check=bool(options.draw))
    print(to_json(program) if options.json else f"{program}\n", end="")
    for problem in problems(program):
        _complain(options.file, problem)
    if options.draw:
        _write(options.draw, program._repr_svg_())
        print(f"drawn: {options.draw}", file=sys.stderr)
    return 0


def run_file(options: argparse.Namespace) -> int:
    """Run a program on arrays from files; write, or print, what it writes."""
    program = _load(options.file)
    given = {name: _read(path) for name, path in _bindings(options.arrays, program).items()}
    targets = _bindings(options.output or [], program)
    _check_targets(program, targets, bool(options.overwrite))
    arrays = _operands(program, given, _shapes(options.shape or [], program))
    found = _array_problems(program, arrays)
    if found:
        raise _refusal(options.file, program, found)
    conflict = races(program)
    if conflict is not None:
        print(f"{_shown_path(options.file)}: warning: parallel iterations race on {conflict}", file=sys.stderr)
    if options.time:
        print(_timing(program, arrays, options), file=sys.stderr)
    _runner(program, options)(arrays)
    for spec in program.tensors:
        if spec.name in targets:
            _write(targets[spec.name], arrays[spec.name])
            print(f"wrote {targets[spec.name]}  {spec.dtype} {'x'.join(map(str, arrays[spec.name].shape))}")
        elif spec.role in ("out", "inout"):
            print(f"{spec.name} = {arrays[spec.name]}")
    return 0


def explain_file(options: argparse.Namespace) -> int:
    """Print which kernel each primitive is, with its parameters or the reason, and what the CPU backend makes of it."""
    program = _load(options.file)
    for primitive in program.primitives:
        print(explain(primitive, program))
    from tileweave.backends import cpu

    try:
        kernel = cpu.compile(program, threads=options.threads)
    except BackendError as error:
        print(f"cpu backend: no code: {error.problem}")
        return 0
    print(f"cpu backend: {kernel.target.cpu}, {kernel.threads} threads")
    print("\n".join(f"  {line}" for line in kernel.explain().splitlines() if line.strip()))
    return 0


def tune_file(options: argparse.Namespace) -> int:
    """Print every way to compute a program that was timed, and which one is remembered for this machine."""
    program = _load(options.file)
    given = {name: _read(path) for name, path in _bindings(options.arrays, program).items()}
    found = _array_problems(program, given)
    if found:
        raise _refusal(options.file, program, found)
    from tileweave.backends import cpu

    arrays = _operands(program, given, {}) if given else None
    limits = {"threads": options.threads, "seconds": options.seconds, "schedules": options.schedules}
    try:
        tuned = cpu.tune(program, arrays=arrays, again=options.again, **limits)
    except BackendError as error:
        where = _shown_path(options.file)
        raise BackendError(where, error.problem, legal=error.legal, facts=error.facts) from None
    print(tuned.explain())
    if options.output is not None:
        _new_file(options.output, bool(options.overwrite))
        _write(options.output, to_json(tuned.program))
        print(f"wrote {options.output}  {tuned.program.name}: the program that won")
    return 0


def emit_file(options: argparse.Namespace) -> int:
    """Write the program of an einsum, a permutation or a copy as JSON."""
    program = _emitted(options)
    if options.profile == "document":
        program = as_document(program)
    text = to_json(program)
    if options.output is None:
        print(text, end="")
        return 0
    _new_file(options.output, bool(options.overwrite))
    _write(options.output, text)
    print(f"wrote {options.output}  {program.name}: {len(program.nodes)} nodes, {len(program.primitives)} primitives")
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# programs and complaints


def _load(path: str, *, check: bool = True) -> Program:
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise StorageError(path, f"the file cannot be opened: {error.strerror}", legal="a program as JSON") from None
    try:
        return from_json(text, check=check)
    except VerifyError as error:
        where = _shown_path(path)
        raise VerifyError(where, error.problem, inputs=error.inputs, legal=error.legal, facts=error.facts) from None


def _shown_path(path: str) -> str:
    return "standard input" if path == "-" else path


def _complain(path: str, problem: Problem) -> None:
    print(f"{_shown_path(path)}: error: {problem.path}: {problem.message} [{problem.rule}]", file=sys.stderr)
    if problem.legal:
        print(f"  legal  {problem.legal}", file=sys.stderr)


def _refusal(path: str, program: Program, found: Sequence[Problem]) -> VerifyError:
    first = found[0]
    inputs = {"rule": first.rule, "program": f"{program.name}\n{_cut(tree(program))}"}
    if len(found) > 1:
        inputs["also"] = "\n".join(map(str, found[1:]))
    facts = {"rule": first.rule, "path": first.path, "problems": tuple(found)}
    return VerifyError(
        _shown_path(path), f"{first.path}: {first.message}", inputs=inputs, legal=first.legal, facts=facts
    )


def _cut(text: str, most: int = 40) -> str:
    lines = text.splitlines()
    return "\n".join([*lines[: most - 1], f".. {len(lines) - most + 1} more lines"]) if len(lines) > most else text


def _analyses(program: Program, proved: list[str], notes: list[str]) -> list[Problem]:
    """What the analyses find wrong; what they prove, and what they cannot decide, goes into the lists."""
    found = []
    try:
        conflict = races(program)
        if conflict is None:
            proved.append("no races")
        else:
            legal = "iterations of a parallel node that share no byte which one of them writes"
            found.append(Problem("parallel.races", conflict.first[0], f"parallel iterations race on {conflict}", legal))
    except Undecided as error:
        notes.append(f"races are not decided: {error.problem}")
    try:
        twice = overlap(program)
        if twice is None:
            proved.append("no step taken twice")
        else:
            notes.append(str(twice))
    except Undecided as error:
        notes.append(f"overlapping branches are not decided: {error.problem}")
    try:
        problem = uninitialised(program, limit=CHECKED_STEPS)
        if problem is None:
            proved.append("nothing read before it is written")
        else:
            found.append(problem)
    except Undecided as error:
        notes.append(f"initialisation is not decided: {error.problem}")
    return found


def _gaps(program: Program, arrays: Mapping[str, Array]) -> list[str]:
    """What a program does not write of the outputs for which arrays are given."""
    notes = []
    for spec in program.tensors:
        if spec.role != "out" or spec.name not in arrays:
            continue
        width = width_bytes(spec.dtype)
        try:
            missing = unwritten(program, spec.name, range(0, arrays[spec.name].size * width, width), CHECKED_STEPS)
        except Undecided as error:
            notes.append(f"gaps in {spec.name!r} are not decided: {error.problem}")
            continue
        if missing:
            notes.append(f"{len(missing)} elements of {spec.name!r} are never written, the first at byte {missing[0]}")
    return notes


def _array_problems(program: Program, arrays: Mapping[str, Array]) -> list[Problem]:
    """Arrays of another element type, and nodes that leave their array."""
    found = []
    for spec in program.tensors:
        if spec.name in arrays and arrays[spec.name].dtype != numpy_dtype(spec.dtype):
            message = f"its array holds {arrays[spec.name].dtype}"
            found.append(Problem("interpret.arrays", f"tensor {spec.name!r}", message, f"{numpy_dtype(spec.dtype)}"))
    sizes: dict[str, int | tuple[int, int]] = dict(byte_bounds(program))
    sizes |= {spec.name: spec.size_bytes for spec in program.tensors if spec.role == "scratch"}
    sizes |= {name: array.nbytes for name, array in arrays.items()}
    return found or list(out_of_bounds(program, sizes))


# ---------------------------------------------------------------------------------------------------------------------
# arrays


def _bindings(words: Iterable[str], program: Program) -> dict[str, str]:
    """``NAME=FILE`` words by tensor name."""
    names = [spec.name for spec in program.tensors if spec.role != "scratch"]
    bound: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not path or name not in names or name in bound:
            problem = "is given twice" if name in bound else "names no tensor of the program and its file"
            raise StorageError(word, problem, legal=f"NAME=FILE.npy with NAME one of {', '.join(names)}")
        bound[name] = path
    return bound


def _shapes(words: Iterable[str], program: Program) -> dict[str, tuple[int, ...]]:
    return {name: _shape(text) for name, text in _bindings(words, program).items()}


def _shape(text: str) -> tuple[int, ...]:
    if text == "scalar":
        return ()
    parts = text.split("x")
    if not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise GraphError(text, "is no shape", legal="positive extents such as 64x32, or scalar")
    return tuple(map(int, parts))


def _read(path: str) -> Array:
    try:
        with Path(path).open("rb") as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise StorageError(path, f"the file cannot be read: {error.strerror}", legal="a .npy file") from None
    except ValueError as error:
        raise StorageError(path, f"the file is not a .npy: {error}", legal="a file that numpy.save wrote") from None
    # NumPy has no name for BF16: such arrays lie in files as two opaque bytes per element
    return array.view(numpy_dtype("BF16")) if array.dtype == np.dtype("V2") else array


def _operands(program: Program, given: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """An array per tensor: the given ones, copied where the program writes them, and zeros for other outputs."""
    bounds = byte_bounds(program)
    arrays: dict[str, Array] = {}
    for spec in program.tensors:
        if spec.name in given:
            arrays[spec.name] = given[spec.name].copy(order="K") if spec.role != "in" else given[spec.name]
        elif spec.role == "out":
            shape = shapes[spec.name] if spec.name in shapes else _natural_shape(program, spec.name)
            arrays[spec.name] = _zeros(spec, bounds.get(spec.name, (0, 0)), shape)
        elif spec.role != "scratch":
            problem = f"no array is given for tensor {spec.name!r}, whose role is {spec.role}"
            raise StorageError(program.name, problem, legal=f"{spec.name}=FILE.npy")
    return arrays


def _zeros(spec: TensorSpec, bounds: tuple[int, int], shape: tuple[int, ...] | None) -> Array:
    if bounds[0] < 0:
        problem = f"the program touches bytes {bounds[0]}..{bounds[1] - 1} from the base of {spec.name!r}"
        raise StorageError(spec.name, problem, legal="offsets that move its first byte to the base, which a file needs")
    least = -(-bounds[1] // width_bytes(spec.dtype))
    return np.zeros((least,) if shape is None else shape, numpy_dtype(spec.dtype))


def _natural_shape(program: Program, tensor: str) -> tuple[int, ...] | None:
    """The shape that a program gives an output: extents of the axes along which all of its writes move, where these
    leave no gap in row-major order; None where tiles, remainders or gaps say nothing about a shape."""
    moves = {
        tuple(sorted(((abs(s), high - low + 1) for _, (s, low, high) in a.terms if s and high > low), reverse=True))
        for a in accesses(program)
        if a.tensor == tensor and a.writes
    }
    if len(moves) != 1:
        return None
    (dims,) = moves
    expected = width_bytes(program.tensors[program.position(tensor)].dtype)
    for stride, extent in reversed(dims):
        if stride != expected:
            return None
        expected *= extent
    return tuple(extent for _, extent in dims)


def _check_targets(program: Program, targets: Mapping[str, str], overwrite: bool) -> None:
    roles = {spec.name: spec.role for spec in program.tensors}
    for name, path in targets.items():
        if roles[name] == "in":
            raise StorageError(f"{name}={path}", f"the program does not write tensor {name!r}", legal="an output")
        _new_file(path, overwrite)
    if len(set(targets.values())) < len(targets):
        raise StorageError("-o", "two tensors go to one file", legal="a file per tensor")


def _new_file(path: str, overwrite: bool) -> None:
    target = Path(path)
    if not target.parent.is_dir():
        raise StorageError(path, f"there is no directory {str(target.parent)!r}", legal="a directory that exists")
    if target.exists() and not overwrite:
        raise StorageError(path, "the file exists already", legal="another name, or --overwrite")


def _write(path: str, content: Array | str) -> None:
    """The file appears whole, or not at all; an array as .npy, a text as it is."""
    temporary = Path(f"{path}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            if isinstance(content, str):
                file.write(content.encode())
            else:
                np.save(file, content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StorageError(path, f"the file cannot be written: {error.strerror}") from None


# ---------------------------------------------------------------------------------------------------------------------
# running


def _runner(program: Program, options: argparse.Namespace) -> Callable[[Mapping[str, Array]], None]:
    if options.interpret:
        return lambda arrays: interpret(program, arrays)
    from tileweave.backends import cpu

    try:
        if options.tuned:
            return cpu.tune(program, threads=options.threads).kernel.run
        return cpu.compile(program, threads=options.threads).run
    except BackendError as error:
        legal = f"{error.legal}; --interpret runs every program, slowly".removeprefix("; ")
        raise BackendError(
            _shown_path(options.file), error.problem, inputs=error.inputs, legal=legal, facts=error.facts
        ) from None


def _timing(program: Program, arrays: Mapping[str, Array], options: argparse.Namespace) -> str:
    """Compile time, and the median of repeated calls on copies of what is written."""
    started = time.perf_counter()
    run = _runner(program, options)
    compiled = time.perf_counter() - started
    written = {spec.name for spec in program.tensors if spec.role != "in"}
    copies = {name: array.copy(order="K") if name in written else array for name, array in arrays.items()}
    run(copies)
    seconds: list[float] = []
    while len(seconds) < 3 or (sum(seconds) < 0.3 and len(seconds) < 10_000):
        started = time.perf_counter()
        run(copies)
        seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)
    how = "interpreted" if options.interpret else f"compiled in {compiled * 1e3:.1f} ms"
    text = (
        f"{how}; median {_seconds(median)} of {len(seconds)} calls ({_seconds(min(seconds))}..{_seconds(max(seconds))})"
    )
    operations = {p.id: p.operation for p in program.primitives}
    called = {node.id: operations[node.primitive] for node in program.nodes if isinstance(node, Invocation)}
    adds = [a for a in accesses(program) if a.writes and called[a.visit.node.id] == "Contraction"]
    flops = 2 * sum(prod(high - low + 1 for _, (_, low, high) in access.terms) for access in adds)
    return text + (f", {flops / median / 1e9:.3g} GFLOP/s" if flops else "")


def _seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if value * factor >= 1 or unit == "us":
            return f"{value * factor:.3g} {unit}"
    return f"{value} s"


# ---------------------------------------------------------------------------------------------------------------------
# emitting


def _emitted(options: argparse.Namespace) -> Program:
    out_dtype = options.out_dtype or options.dtype
    for name in (options.dtype, out_dtype):
        if name not in DTYPES:
            raise DtypeError("--dtype", f"{name!r} is not an element type of TEIR", legal=", ".join(DTYPES))
    left, arrow, right = options.equation.replace(" ", "").partition("->")
    terms = left.split(",")
    where = f"teir emit {options.equation!r}"
    if not arrow:
        legal = f"such as {options.equation + '->' + ''.join(dict.fromkeys(left.replace(',', '')))!r}"
        raise GraphError(where, "the equation says no output", legal=legal)
    if len(terms) != len(options.shapes):
        given = (
            f"the equation has {_count(len(terms), 'operand')}, and {_count(len(options.shapes), 'shape')} follow it"
        )
        raise GraphError(where, given, legal="a shape for each operand, such as 64x32")
    shapes = [_shape(text) for text in options.shapes]
    extents: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        extents.update(zip(term, shape, strict=False))
    missing = [letter for letter in right if letter not in extents]
    if missing:
        raise GraphError(where, f"letter {missing[0]!r} of the output is in no input", legal="letters of the inputs")
    operands = [_row_major(shape, options.dtype) for shape in shapes]
    out = _row_major(tuple(extents[letter] for letter in right), out_dtype)
    name = options.name or "_".join([*terms, "to", right]).strip("_")
    if options.op is not None:
        if options.accumulate or options.relu:
            raise GraphError(where, "--accumulate and --relu are for contractions", legal="--op alone")
        return _extension(options, operands, out, name)
    if len(operands) >= 2:
        tiling = contraction_tiles if options.tiled else untiled
        flags = {"accumulate": options.accumulate, "relu": options.relu}
        emit = emit_contraction if len(operands) == 2 else emit_einsum
        return emit(options.equation, operands, out, tiling=tiling, name=name, **flags)
    if options.accumulate:
        raise GraphError(where, "--accumulate needs a contraction", legal="two operands")
    emit_one = emit_relu if options.relu else emit_copy
    tiling = elementwise_tiles if options.tiled else untiled
    return emit_one(operands[0], out, options.equation, tiling=tiling, name=name)


def _extension(options: argparse.Namespace, operands: list[Operand], out: Operand, name: str) -> Program:
    """The program of an extension: a reduction where the output lacks a letter, elementwise otherwise."""
    if len(operands) == 1 and options.op in REDUCTIONS:
        tiling = contraction_tiles if options.tiled else untiled
        return emit_reduction(options.op, operands[0], out, options.equation, tiling=tiling, name=name)
    tiling = elementwise_tiles if options.tiled else untiled
    if options.op not in (*UNARY, *BINARY, *IN_PLACE):
        legal = f"to reduce {', '.join(REDUCTIONS)}; element by element {', '.join((*UNARY, *BINARY, *IN_PLACE))}"
        given = _count(len(operands), "operand")
        why = "reduces one operand" if options.op in REDUCTIONS else "is no operation"
        raise GraphError(f"--op {options.op}", f"it {why}; the equation has {given}", legal=legal)
    return emit_elementwise(options.op, operands, out, options.equation, tiling=tiling, name=name)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _row_major(shape: tuple[int, ...], dtype: str) -> Operand:
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    return Operand(strided(shape, strides), dtype)
