"""Tuning: several ways to compute a program are timed on this machine, and the best is remembered.

What there is to choose is which of several programs of one value is compiled (the given one, and others of the caller),
how many threads take part, and how contractions are blocked (`Settings`). The search starts from the backend's own
choice, changes one thing at a time, keeps what helps, and times the best few again in turns.

Winners are kept in a folder beside the object cache, one small JSON file per program, machine and number of threads. A
file appears whole or not at all; one that is damaged, or about something else, is ignored and written anew. Nothing in
it can change a value: it names settings, and the number of a program in a list that is made again.

Source: own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cache import cache_directory, touch, write_whole
from tileweave.backends.cpu.gemm.blocking import ProductBlocking
from tileweave.backends.cpu.gemm.gett import block_product
from tileweave.backends.cpu.kernel import CpuKernel, compile
from tileweave.backends.cpu.llvm.elements import element
from tileweave.backends.cpu.target.settings import DEFAULT, Settings
from tileweave.backends.cpu.target.target import Target, usable
from tileweave.backends.host import LINE_BYTES, address_of, empty, thread_count
from tileweave.errors import BackendError
from tileweave.teir.analysis.calls import bounds
from tileweave.teir.ir.document import to_json
from tileweave.teir.ir.dtypes import numpy_dtype
from tileweave.teir.ir.program import Program
from tileweave.teir.ir.verify import verify
from tileweave.teir.merged.form import Loop, Step
from tileweave.teir.merged.merge import merged
from tileweave.version import __version__
from tileweave.words import seconds_text

Array = NDArray[Any]

_PART = 1 << 20
"""So many random numbers are made at a time."""
ADVANTAGE = 0.02
"""A winner is at least this much faster than the backend's own choice, else that stays."""


@dataclass(frozen=True, slots=True)
class TuningChoice:
    """One way to compute: which program of the list, with how many threads, and with which wishes."""

    program: int = 0
    threads: int = 1
    settings: Settings = DEFAULT

    def __str__(self) -> str:
        words = [str(self.settings)] if self.settings != DEFAULT or not self.program else []
        named = [f"program {self.program}"] if self.program else []
        return ", ".join([*named, *words, f"{self.threads} thread{'s' if self.threads > 1 else ''}"])


@dataclass(frozen=True, slots=True)
class TimedChoice:
    """A choice that was timed.

    Args:
        choice: what was compiled.
        cycles: the modelled time in cycles of one core, of all contractions; 0 where there is nothing to model.
        seconds: the least that was measured of one call.
    """

    choice: TuningChoice
    cycles: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of tuning.

    Args:
        programs: the programs to choose from; the first is the one that was given.
        notes: what each of them is, in words.
        choice: the winner.
        trials: all that was timed, the backend's own choice first.
        remembered: whether the winner comes from the cache file.
        target: the processor.
        unkept: why the winner will not be remembered, where its file cannot be written.
    """

    programs: tuple[Program, ...]
    notes: tuple[str, ...]
    choice: TuningChoice
    trials: tuple[TimedChoice, ...]
    remembered: bool
    target: Target
    unkept: str = ""

    @property
    def program(self) -> Program:
        """The winning program."""
        return self.programs[self.choice.program]

    @property
    def kernel(self) -> CpuKernel:
        """The winner, compiled."""
        return compile(self.program, threads=self.choice.threads, settings=self.choice.settings, target=self.target)

    def explain(self) -> str:
        """Every choice with its modelled and its measured time, relative to the backend's own, and why one won."""
        own = self.trials[0]
        lines = [f"{'time':>10} {'of own':>7} {'model':>7}  choice"]
        for trial in sorted(self.trials, key=lambda trial: trial.seconds):
            model = f"{trial.cycles / own.cycles:7.2f}" if own.cycles and trial.cycles else f"{'-':>7}"
            mark = "*" if trial.choice == self.choice else " "
            share = trial.seconds / own.seconds
            lines.append(f"{seconds_text(trial.seconds):>10} {share:7.2f} {model} {mark}{trial.choice}")
        best = next(trial for trial in self.trials if trial.choice == self.choice)
        gain = own.seconds / best.seconds - 1
        if self.choice == own.choice:
            why = f"nothing was more than {ADVANTAGE:.0%} faster"
        else:
            why = f"{gain:.0%} more work per second than the backend's own choice"
        timed = {trial.choice.program for trial in self.trials} - {0}
        lines += [f"program {k}: {self.notes[k]}" for k in sorted(timed)]
        where = f"{self.target.cpu}, {'remembered' if self.remembered else f'timed now, {len(self.trials)} choices'}"
        lines.append(f"winner: {self.choice}: {why} ({where})")
        return "\n".join([*lines, *([f"it will not be remembered: {self.unkept}"] if self.unkept else [])])


def tune(
    program: Program,
    *,
    threads: int | None = None,
    arrays: Mapping[str, Array] | None = None,
    programs: Sequence[Program] = (),
    target: Target | None = None,
    seconds: float = 10.0,
    cache: bool = True,
    again: bool = False,
) -> Tuned:
    """The fastest way to compute a program that was found on this machine; remembered for the next time.

    Args:
        program: any that `compile` takes.
        threads: the most that may be used; None: all processors of the process.
        arrays: by tensor name, to time on; what the program writes is copied first. None: random numbers, dense.
        programs: others of the same value, as transforms make them; the winner may be one of them.
        target: the processor; None: this one.
        seconds: after which no further choice is tried.
        cache: whether a winner is read from the cache file and kept there, and what is compiled for trials is kept.
        again: time even where a winner is remembered.

    Returns:
        The winner, with everything that was timed.

    Raises:
        VerifyError: the program is not well formed.
        BackendError: a program has other tensors than the first, or no code; the arrays do not fit, or their memory is
            refused; a number is out of range.

    Source: own.
    """
    target, most = usable(target), thread_count("tune(program, threads=..)", threads)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise BackendError("tune(program, seconds=..)", f"{seconds!r} is no such time", legal="seconds from 0 on")
    for one in (program, *programs):
        verify(one)
    for other in programs:
        if [s for s in other.tensors if s.role != "scratch"] != [s for s in program.tensors if s.role != "scratch"]:
            legal = "programs of the same operands, as transforms make them"
            raise BackendError("tune(program, programs=..)", f"{other.name!r} has other tensors", legal=legal)
    offered = (program, *programs)
    file = _file(offered, most, target)
    remembered = None if again or not cache else _read(file, len(offered), most)
    if remembered is not None and remembered[0].program < len(offered):
        choice, trials, notes = remembered
        return Tuned(offered, notes, choice, trials, True, target)
    notes = tuple("as it was given" for _ in offered)
    search = _Search(offered, most, target, _arrays(program, arrays), seconds, cache)
    choice = search.run()
    unkept = _write(file, _document(file, choice, search.trials, notes)) if cache else ""
    return Tuned(offered, notes, choice, tuple(search.trials), False, target, unkept)


def forget_tuned() -> None:
    """Remove every winner that is remembered on disk."""
    folder = cache_directory() / "tuned"
    for file in folder.glob("*/*.json") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            file.unlink()


# ---- the search -----------------------------------------------------------------------------------------------------


class _Search:
    """What was tried, and how long there is time."""

    def __init__(
        self,
        programs: tuple[Program, ...],
        threads: int,
        target: Target,
        arrays: dict[str, Array],
        seconds: float,
        cache: bool,
    ) -> None:
        self.programs = programs
        self.threads = threads
        self.target = target
        self.arrays = arrays
        self.cache = cache
        self.start = time.perf_counter()
        self.end = self.start + seconds
        self.trials: list[TimedChoice] = []
        self.calls: dict[TuningChoice, Callable[[], None]] = {}
        self.known: set[Any] = set()

    def run(self) -> TuningChoice:
        """The winner: one change after the other, then the best of all in turns."""
        own = TuningChoice(0, self.threads)
        self.attempt(own)
        best = self.trials[0]
        for group in _changes(self.cuts(own), self.target):
            now = best.choice.settings
            found = [self.attempt(replace(best.choice, settings=_over(now, wish))) for wish in group]
            best = min([best, *(trial for trial in found if trial)], key=lambda trial: trial.seconds)
        for fewer in _fewer(self.threads):
            self.attempt(replace(best.choice, threads=fewer))
        for k in range(1, len(self.programs)):
            self.attempt(TuningChoice(k, self.threads))
            self.attempt(TuningChoice(k, self.threads, best.choice.settings))
        return self.finalists(own)

    def cuts(self, choice: TuningChoice) -> tuple[_Called, ...]:
        return _cuts(self.programs[choice.program], choice.threads, self.target, choice.settings)

    def attempt(self, choice: TuningChoice) -> TimedChoice | None:
        """Compile a choice and time it briefly; None where it makes no new code, or no time is left."""
        cuts = self.cuts(choice)
        made = (choice.program, choice.threads, cuts)
        if made in self.known or (self.trials and time.perf_counter() > self.end):
            return None
        self.known.add(made)
        program = self.programs[choice.program]
        try:
            kernel = compile(
                program, threads=choice.threads, settings=choice.settings, target=self.target, cache=self.cache
            )
        except BackendError:
            if not choice.program:
                raise
            return None  # a further program needs not compile
        operands = [self.arrays[spec.name] for spec in kernel.program.tensors if spec.role != "scratch"]
        call = kernel.prepare(*operands)
        trial = TimedChoice(choice, sum(one.cycles for one in cuts), _least(call))
        self.trials.append(trial)
        self.calls[choice] = call
        return trial

    def finalists(self, own: TuningChoice) -> TuningChoice:
        """The best few and the backend's own choice, timed in turns, so that a disturbance meets all of them."""
        least = {trial.choice: trial.seconds for trial in self.trials}
        close = sorted((c for c in least if least[c] < 1.2 * min(least.values())), key=lambda c: least[c])
        few = list(dict.fromkeys([own, *close[:4]]))
        end = time.perf_counter() + max(0.5, (self.end - self.start) / 4)
        for turn in range(7):
            for choice in few if turn < 2 or time.perf_counter() < end else ():
                least[choice] = min(least[choice], _least(self.calls[choice], rounds=1))
        self.trials = [replace(trial, seconds=least[trial.choice]) for trial in self.trials]
        winner = min(few, key=lambda choice: least[choice])
        return winner if least[winner] < least[own] * (1 - ADVANTAGE) else own


def _least(call: Callable[[], None], rounds: int = 3) -> float:
    """The least seconds per call of a few rounds; a round is as many calls as take a millisecond or so."""
    call()
    start = time.perf_counter()
    call()
    least = time.perf_counter() - start
    count = max(1, min(1000, int(0.001 / max(least, 1e-7))))
    for _ in range(rounds if least < 0.1 else 0):
        start = time.perf_counter()
        for _ in range(count):
            call()
        least = min(least, (time.perf_counter() - start) / count)
    return least


def _fewer(threads: int) -> Iterator[int]:
    while threads > 1:
        threads //= 2
        yield threads


def _changes(cuts: Sequence[_Called], target: Target) -> list[list[Settings]]:
    """Wishes that change one thing each, in groups; around what the largest contraction has."""
    if not cuts:
        return []
    c = cuts[0].cut
    lanes, kc = c.columns.lanes, c.kc
    rows, columns = c.row_panels * c.rows.width, c.column_panels * c.columns.width
    tiles = [(8, 3), (14, 2), (28, 1), (6, 4)] if target.registers >= 32 else [(4, 3), (6, 2), (14, 1), (3, 4)]
    room = target.registers
    shapes = [(r, v) for r, v in tiles if (v - 1) * lanes < c.columns.total and r * v + v + 1 <= room]
    swept = Settings(pack_a=True, share_a=True, resident="a", mc=c.rows.total)
    return [
        [
            Settings(pack_a=c.a_in_place),
            Settings(pack_b=c.b_in_place),
            Settings(share_a=not c.shared),
            Settings(resident="b") if c.a_resident else swept,
        ],
        [Settings(mr=r, nr=v * lanes) for r, v in shapes],
        [Settings(kc=max(16, kc * p // q)) for p, q in ((1, 2), (3, 4), (3, 2), (2, 1))],
        [Settings(nc=max(lanes, columns * p // q)) for p, q in ((1, 4), (1, 2), (2, 1), (4, 1))],
        [Settings(mc=max(1, rows * p // q)) for p, q in ((1, 4), (1, 2), (2, 1))],
        [Settings(prefetch=not c.far(1, target)), Settings(streamed=not c.may_stream(target))],
    ]


def _over(settings: Settings, wish: Settings) -> Settings:
    """Settings with a further wish, which wins where both say something."""
    return replace(settings, **{name: value for name, value in asdict(wish).items() if value is not None})


# ---- the model ------------------------------------------------------------------------------------------------------

_BYTES_PER_CYCLE = 8.0
"""What one core moves between its caches and memory in a cycle: copies of 28 to 34 GB/s at 3.7 GHz (memcpy in
bench/permute.py)."""


@dataclass(frozen=True, slots=True)
class _Called:
    """A contraction of a program: how it is cut, the threads that share a call of it, and the calls of each thread."""

    cut: ProductBlocking
    threads: int
    calls: float

    @property
    def cycles(self) -> float:
        """The modelled cycles of all calls."""
        return self.calls * _cycles(self.cut, self.threads)


def _cuts(program: Program, threads: int, target: Target, settings: Settings) -> tuple[_Called, ...]:
    """The contractions of a program, the one with most work first."""
    found: list[_Called] = []

    def visit(steps: Sequence[Step], shared: int, calls: float) -> None:
        for step in steps:
            if isinstance(step, Loop):
                extent = step.axis.extent
                busy = min(shared, extent) if step.parallel else 1
                visit(step.body, 1 if step.parallel else shared, calls * extent / busy)
            elif step.kind == "Contraction" and step.operands[2] not in step.operands[:2]:
                elements = tuple(element(program.tensors[j].dtype) for j in step.operands)
                found.append(_Called(block_product(step, elements, target, shared, settings), shared, calls))

    visit(merged(program).body, threads, 1.0)
    return tuple(sorted(found, key=lambda one: -one.calls * one.cut.flops))


def _cycles(c: ProductBlocking, threads: int) -> float:
    """The modelled cycles of one contraction: multiply-adds in register tiles, packing, and the output's traffic."""
    width = c.columns.sums.width_bytes
    tile = max(c.rows.width * c.columns.groups / 2, (c.rows.width + c.columns.groups) / 2, 4.0)
    sums = c.batches * c.rows.panels * c.columns.panels * c.contracted.total * tile
    row_bytes = c.batches * c.rows.total * c.contracted.total * width
    column_bytes = c.batches * c.columns.total * c.contracted.total * width
    row_times = 0 if c.a_in_place else 1 if c.shared else c.column_chunks
    column_times = 0 if c.b_in_place else 1 if c.a_resident else c.row_chunks
    packed = 2 * (row_bytes * row_times + column_bytes * column_times)
    moved = c.output_bytes * (2 * c.k_blocks - 1) + packed
    tasks = c.column_chunks * (1 if c.shared else c.batches * c.row_chunks)
    busy = max(1, min(threads, tasks))
    return (sums + moved / _BYTES_PER_CYCLE) / busy


# ---- arrays to time on ----------------------------------------------------------------------------------------------


def _arrays(program: Program, given: Mapping[str, Array] | None) -> dict[str, Array]:
    """One array per operand: copies of what is written, the given ones, or random numbers of the bytes it needs."""
    specs = [spec for spec in program.tensors if spec.role != "scratch"]
    if given is not None:
        missing = [spec.name for spec in specs if spec.name not in given]
        if missing:
            wants = ", ".join(spec.name for spec in specs)
            raise BackendError("tune(program, arrays=..)", f"no array is given for {missing[0]!r}", legal=wants)
        return {s.name: given[s.name] if s.role == "in" else _copied(given[s.name]) for s in specs}
    extents = bounds(program)
    rng = np.random.default_rng(0)
    arrays = {}
    for spec in specs:
        dtype = numpy_dtype(spec.dtype)
        low, high = extents.get(spec.name, (0, dtype.itemsize))
        before = -(min(low, 0) // dtype.itemsize)
        before = -(-before // LINE_BYTES) * LINE_BYTES  # the base begins with a line
        count = before + max(1, -(-high // dtype.itemsize))
        try:
            numbers = empty((count,), dtype)
        except (MemoryError, ValueError):  # NumPy's words for too much, and for far too much
            problem = f"there is no memory for {count * dtype.itemsize} bytes of {spec.name!r}"
            raise BackendError("tune(program)", problem, legal="arrays=.. to time on") from None
        for begin in range(0, count, _PART):
            part = numbers[begin : begin + _PART]
            whole = dtype.kind == "i"
            part[:] = rng.integers(-3, 4, part.size) if whole else rng.standard_normal(part.size, np.float32)
        arrays[spec.name] = numbers[before:]
    return arrays


def _copied(array: Array) -> Array:
    """A copy with the strides of the array, whatever their signs and gaps, that begins as far behind a cache line."""
    if not isinstance(array, np.ndarray) or array.size == 0:
        return array
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.zeros(high - low + LINE_BYTES, np.uint8)
    shift = (low - address_of(memory)) % LINE_BYTES
    copy: Array = np.ndarray(array.shape, array.dtype, memory, shift + address_of(array) - low, array.strides)
    copy[...] = array
    return copy


# ---- the cache file -------------------------------------------------------------------------------------------------


def _file(programs: Sequence[Program], threads: int, target: Target) -> Path:
    """Where the winner is kept: a name made of all that it depends on."""
    about = [*map(to_json, programs), str(threads), repr(target), __version__]
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()
    return cache_directory() / "tuned" / digest[:2] / f"{digest[2:]}.json"


_FORMAT = "tileweave tuned 2"


def _document(file: Path, choice: TuningChoice, trials: Sequence[TimedChoice], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "key": file.stem,
        "programs": list(notes),
        "winner": next(k for k, trial in enumerate(trials) if trial.choice == choice),
        "trials": [
            {
                "program": t.choice.program,
                "threads": t.choice.threads,
                "settings": {k: v for k, v in asdict(t.choice.settings).items() if v is not None},
                "cycles": t.cycles,
                "seconds": t.seconds,
            }
            for t in trials
        ],
    }


def _read(
    file: Path, programs: int, threads: int
) -> tuple[TuningChoice, tuple[TimedChoice, ...], tuple[str, ...]] | None:
    """The winner in a cache file, and what was timed; None where there is none or it is not what was written."""
    try:
        document = json.loads(file.read_text("utf-8"))
        touch(file)
        notes, winner = tuple(map(str, document["programs"])), document["winner"]
        if document["format"] != _FORMAT or document["key"] != file.stem or not 0 < len(notes) <= programs:
            return None
        trials = tuple(_trial(entry, len(notes), threads) for entry in document["trials"])
        known = type(winner) is int and 0 <= winner < len(trials)
        return (trials[winner].choice, trials, notes) if known else None
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError, RecursionError, BackendError):
        return None


def _trial(entry: Any, programs: int, threads: int) -> TimedChoice:
    number, used = entry["program"], entry["threads"]
    cycles, seconds = float(entry["cycles"]), float(entry["seconds"])
    good = type(number) is int and type(used) is int and 0 <= number < programs and 1 <= used <= threads
    if not good or not (0 <= cycles < 1e30 and 0 < seconds < 1e9):
        raise ValueError("no trial of these programs")
    return TimedChoice(TuningChoice(number, used, Settings(**entry["settings"])), cycles, seconds)


def _write(file: Path, document: Mapping[str, Any]) -> str:
    """Keep a winner; a cache that cannot be written is no failure: what is wrong with it is returned."""
    try:
        write_whole(file, json.dumps(document, indent=1).encode())
    except OSError as error:
        return str(error)
    return ""
