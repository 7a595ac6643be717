"""``tileweave teir``: check, show, run, explain, tune and emit programs of the tiled execution IR."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.base import backend
from tileweave.cli.files import check_new, count, document_at, draw, write_whole
from tileweave.cli.teir.emit import parse_shape, shown_shape
from tileweave.errors import BackendError, GraphError, StorageError, Undecided, VerifyError
from tileweave.teir import (
    Invocation,
    Problem,
    Program,
    TensorSpec,
    byte_bounds,
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
)
from tileweave.teir.analysis.analyse import accesses
from tileweave.teir.analysis.coverage import gaps
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.text import tree
from tileweave.words import seconds_text

Array = NDArray[Any]

CHECKED_STEPS = 200_000
"""Scalar steps that `check` enumerates where strides do not nest; it emits a note beyond."""


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
    axes = f"{len(program.axes)} {'axis' if len(program.axes) == 1 else 'axes'}"
    steps = f"{count(len(program.nodes), 'node')}, {count(len(program.primitives), 'primitive')}"
    counts = f"{count(len(program.tensors), 'tensor')}, {axes}, {steps}"
    print(f"{_shown_path(options.file)}: {program.name} ({program.profile} profile): {counts}: {', '.join(proved)}")
    return 0


def show_file(options: argparse.Namespace) -> int:
    """Print a program as text or canonical JSON, well formed or not; draw it."""
    if options.draw:
        check_new("--draw", options.draw, ".svg", bool(options.overwrite))
    program = _load(options.file, check=bool(options.draw))
    print(to_json(program) if options.json else f"{program}\n", end="")
    for problem in problems(program):
        _complain(options.file, problem)
    if options.draw:
        draw(options.draw, program._repr_svg_())
    return 0


def run_file(options: argparse.Namespace) -> int:
    """Run a program on arrays from files; write, or print, what it writes."""
    program = _load(options.file)
    given = {name: _read(path) for name, path in _bindings(options.arrays, program).items()}
    targets = _bindings(options.output or [], program, "-o")
    _check_targets(program, targets, bool(options.overwrite))
    arrays = _operands(program, given, _shapes(options.shape or [], program, given))
    found = _array_problems(program, arrays)
    if found:
        raise _refusal(options.file, program, found)
    for warning in _warnings(program, arrays):
        print(f"{_shown_path(options.file)}: warning: {warning}", file=sys.stderr)
    if options.time:
        print(_timing(program, arrays, options), file=sys.stderr)
    _runner(program, options)(arrays)
    for spec in program.tensors:
        if spec.name in targets:
            write_whole(targets[spec.name], arrays[spec.name])
            print(f"wrote {targets[spec.name]}  {spec.dtype} {shown_shape(arrays[spec.name].shape)}")
        elif spec.role in ("out", "inout"):
            print(f"{spec.name} = {arrays[spec.name]}")
    return 0


def explain_file(options: argparse.Namespace) -> int:
    """Print which kernel each primitive is, with its parameters or the reason, and what the CPU backend makes of it."""
    program = _load(options.file)
    for primitive in program.primitives:
        print(explain(primitive, program))
    by = backend()
    try:
        kernel = by.compile(program, threads=options.threads, merge=not options.no_merge)
    except BackendError as error:
        print(f"{by.name} backend: no code: {error.problem}")
        return 0
    print(f"{by.name} backend: {kernel.about}")
    print("\n".join(f"  {line}" for line in kernel.explain().splitlines() if line.strip()))
    return 0


def tune_file(options: argparse.Namespace) -> int:
    """Print every way to compute a program that was timed, and which one is remembered for this machine."""
    if options.output is not None:
        check_new("-o", options.output, ".json", bool(options.overwrite))
    program = _load(options.file)
    given = {name: _read(path) for name, path in _bindings(options.arrays, program).items()}
    found = _array_problems(program, given)
    if found:
        raise _refusal(options.file, program, found)
    arrays = _operands(program, given, {}) if given else None
    limits = {"threads": options.threads, "seconds": options.seconds}
    try:
        tuned = backend().tune(program, arrays=arrays, again=options.again, **limits)
    except BackendError as error:
        error.named(_shown_path(options.file))
        raise
    print(tuned.explain())
    if options.output is not None:
        write_whole(options.output, to_json(tuned.program))
        print(f"wrote {options.output}  {tuned.program.name}: the program that won")
    return 0


# ---------------------------------------------------------------------------------------------------------------------
# programs and complaints


def _load(path: str, *, check: bool = True) -> Program:
    text = document_at(path, "a program as JSON")
    try:
        return from_json(text, check=check)
    except VerifyError as error:
        error.named(_shown_path(path))
        raise


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
    """What a program does not write of the outputs for which arrays are given, or whose shapes it states."""
    notes = []
    for spec in program.tensors:
        size = arrays[spec.name].size if spec.name in arrays else prod(spec.shape or (0,))
        if spec.role != "out" or not size:
            continue
        width = width_bytes(spec.dtype)
        try:
            missing, first = gaps(program, spec.name, range(0, size * width, width), CHECKED_STEPS)
        except Undecided as error:
            notes.append(f"gaps in {spec.name!r} are not decided: {error.problem}")
            continue
        if missing:
            notes.append(f"{missing} elements of {spec.name!r} are never written, the first at byte {first}")
    return notes


def _warnings(program: Program, arrays: Mapping[str, Array]) -> Iterator[str]:
    """What a run does that is hardly meant: shapes unlike the axes of a program that states none, and races."""
    for name, array in arrays.items():
        likely = _natural_shape(program, name)
        if likely is not None and not _reshapes(array.shape, likely):
            shape = shown_shape(array.shape)
            yield f"the program moves over {shown_shape(likely)} of {name!r}, whose array is {shape}"
    conflict = races(program)
    if conflict is not None:
        yield f"parallel iterations race on {conflict}"


def _array_problems(program: Program, arrays: Mapping[str, Array]) -> list[Problem]:
    """Arrays of another element type, and nodes that leave their array."""
    found = []
    for spec in program.tensors:
        if spec.name in arrays and arrays[spec.name].dtype != numpy_dtype(spec.dtype):
            message = f"its array holds {arrays[spec.name].dtype}"
            found.append(Problem("interpret.arrays", f"tensor {spec.name!r}", message, f"{numpy_dtype(spec.dtype)}"))
    sizes: dict[str, int | tuple[int, int]] = dict(byte_bounds(program))
    sizes |= {s.name: prod(s.shape) * width_bytes(s.dtype) for s in program.tensors if s.shape is not None}
    sizes |= {spec.name: spec.size_bytes for spec in program.tensors if spec.role == "scratch"}
    sizes |= {name: array.nbytes for name, array in arrays.items()}
    return found or _shape_problems(program, arrays) or list(out_of_bounds(program, sizes))


def _shape_problems(program: Program, arrays: Mapping[str, Array]) -> list[Problem]:
    """Arrays of other shapes than the program states; reshaping one by joining or cutting neighbours is no other."""
    found = []
    for spec in program.tensors:
        if spec.shape is not None and spec.name in arrays and not _reshapes(arrays[spec.name].shape, spec.shape):
            message = f"its array has the shape {shown_shape(arrays[spec.name].shape)}"
            found.append(Problem("interpret.arrays", f"tensor {spec.name!r}", message, shown_shape(spec.shape)))
    return found


def _reshapes(shape: Sequence[int], stated: Sequence[int]) -> bool:
    """Whether neighbours of one shape are joined in the other: the same indices, numbered in fewer steps."""
    strides = [set(accumulate(reversed(extents), mul)) for extents in (shape, stated)]
    return prod(shape) == prod(stated) and (
        strides[0] | {1} <= strides[1] | {1} or strides[1] | {1} <= strides[0] | {1}
    )


# ---------------------------------------------------------------------------------------------------------------------
# arrays


def _bindings(words: Iterable[str], program: Program, option: str = "", what: str = "FILE.npy") -> dict[str, str]:
    """``NAME=FILE`` words, or those of an option, by tensor name."""
    names = [spec.name for spec in program.tensors if spec.role != "scratch"]
    bound: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not path or name not in names or name in bound:
            named = bool(equals and path)
            problem = (
                "is given twice"
                if named and name in bound
                else f"is not {'a tensor of the program' if named else f'NAME={what}'}"
            )
            raise StorageError(
                f"{option} {word}".strip(), problem, legal=f"NAME={what} with NAME one of {', '.join(names)}"
            )
        bound[name] = path
    return bound


def _shapes(words: Iterable[str], program: Program, given: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """The shapes that outputs are asked to have: the program's own, with neighbours joined or cut."""
    shapes = {name: parse_shape(text) for name, text in _bindings(words, program, "--shape", "64x16").items()}
    for spec in program.tensors:
        if spec.name not in shapes:
            continue
        where = f"--shape {spec.name}={shown_shape(shapes[spec.name])}"
        if spec.role != "out" or spec.name in given:
            raise GraphError(where, f"the run does not make {spec.name!r}", legal="an output without an array")
        if spec.shape is not None and not _reshapes(shapes[spec.name], spec.shape):
            legal = f"{shown_shape(spec.shape)}, or this with neighbours joined or cut"
            raise GraphError(where, f"the program writes {shown_shape(spec.shape)}", legal=legal)
    return shapes


def _read(path: str) -> Array:
    """The array of a file, in row-major order and this machine's bytes, whatever order the file keeps."""
    try:
        with Path(path).open("rb") as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
            array: Array = np.asarray(found, found.dtype.newbyteorder("="), order="C")
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
            shape = shapes.get(spec.name, _natural_shape(program, spec.name))
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
    shape = (least,) if shape is None else shape
    try:
        return np.zeros(shape, numpy_dtype(spec.dtype))
    except (MemoryError, ValueError):
        problem = f"there is no memory for {shown_shape(shape)} elements of {spec.dtype}"
        raise StorageError(spec.name, problem, legal="a smaller program") from None


def _natural_shape(program: Program, tensor: str) -> tuple[int, ...] | None:
    """The shape of a tensor: as stated, else the extents of the axes along which all that is read or written of it
    moves, where these leave no gap in row-major order; None where tiles, remainders or gaps say nothing."""
    spec = program.tensors[program.position(tensor)]
    if spec.shape is not None:
        return spec.shape
    moves = {
        tuple(sorted(((abs(s), high - low + 1) for _, (s, low, high) in a.terms if s and high > low), reverse=True))
        for a in accesses(program)
        if a.tensor == tensor and (a.writes or spec.role == "in")
    }
    if len(moves) != 1:
        return None
    (dims,) = moves
    expected = width_bytes(spec.dtype)
    for stride, extent in reversed(dims):
        if stride != expected:
            return None
        expected *= extent
    return tuple(extent for _, extent in dims)


def _check_targets(program: Program, targets: Mapping[str, str], overwrite: bool) -> None:
    roles = {spec.name: spec.role for spec in program.tensors}
    for name, path in targets.items():
        if roles[name] == "in":
            written = ", ".join(spec.name for spec in program.tensors if spec.role in ("out", "inout"))
            problem = f"the program does not write tensor {name!r}"
            raise StorageError(f"-o {name}={path}", problem, legal=f"NAME=FILE.npy with NAME one of {written}")
        check_new(f"-o {name}", path, ".npy", overwrite)
    if len({Path(path).resolve() for path in targets.values()}) < len(targets):
        raise StorageError("-o", "two tensors go to one file", legal="a file per tensor")


# ---------------------------------------------------------------------------------------------------------------------
# running


def _runner(program: Program, options: argparse.Namespace) -> Callable[[Mapping[str, Array]], None]:
    if options.interpret:
        return lambda arrays: interpret(program, arrays)
    try:
        if options.tuned:
            return backend().tune(program, threads=options.threads).kernel.run
        return backend().compile(program, threads=options.threads, merge=not options.no_merge).run
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
    least, most = seconds_text(min(seconds)), seconds_text(max(seconds))
    text = f"{how}; median {seconds_text(median)} of {len(seconds)} calls ({least}..{most})"
    operations = {p.id: p.operation for p in program.primitives}
    called = {node.id: operations[node.primitive] for node in program.nodes if isinstance(node, Invocation)}
    adds = [a for a in accesses(program) if a.writes and called[a.visit.node.id] == "Contraction"]
    flops = 2 * sum(prod(high - low + 1 for _, (_, low, high) in access.terms) for access in adds)
    return text + (f", {flops / median / 1e9:.3g} GFLOP/s" if flops else "")
