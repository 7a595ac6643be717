"""A model of caches, cores and vector units: about how long a program takes on a machine, and why.

Every invocation is a nest of loops around the axes that its primitive consumes. For each cache the model finds the
outermost loop below which all that is touched fits, and counts the lines that come in once per iteration of what is
outside; an operand that an enclosing loop leaves in place stays. Time is the slowest of arithmetic and of each level's
traffic, plus what calls and parallel regions cost. It ranks programs; it does not predict a stopwatch.

Source: own; the count of lines is the usual reuse analysis of tiled loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from tileweave.errors import ScheduleError
from tileweave.teir.analysis.calls import calls
from tileweave.teir.ir.program import Policy, Program
from tileweave.teir.ir.verify import verify

__all__ = ["Cache", "Cost", "Level", "Machine", "Nest", "cost", "estimate"]


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of one core.

    Args:
        size_bytes: what it holds.
        bytes_per_second: at which one core fills it from the level behind it.
    """

    size_bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model knows of a machine. The defaults are those of a plain core of 3 GHz with 256-bit vectors.

    Args:
        cores: that may work at once.
        flops_per_second: FP32 multiply-adds of one core, counted as two; other types in proportion to their width.
        vector_bytes: of one vector.
        caches: nearest first; the last is filled from memory.
        memory_bytes_per_second: of all cores together.
        line_bytes: what a cache moves at once.
        call_seconds: what one invocation of a primitive costs beyond its work.
        region_seconds: what it costs to start and join all cores.

    Raises:
        ScheduleError: a number is not positive, or there is no cache.
    """

    cores: int = 1
    flops_per_second: float = 96e9
    vector_bytes: int = 32
    caches: tuple[Cache, ...] = (Cache(32 << 10, 100e9), Cache(512 << 10, 40e9))
    memory_bytes_per_second: float = 20e9
    line_bytes: int = 64
    call_seconds: float = 20e-9
    region_seconds: float = 5e-6

    def __post_init__(self) -> None:
        numbers = (self.cores, self.flops_per_second, self.vector_bytes, self.memory_bytes_per_second, self.line_bytes)
        caches = [x for cache in self.caches for x in (cache.size_bytes, cache.bytes_per_second)]
        if not self.caches or any(number <= 0 for number in (*numbers, *caches)):
            raise ScheduleError("Machine(..)", "a rate or a size is not positive", legal="positive numbers, a cache")


@dataclass(frozen=True, slots=True)
class Nest:
    """One invocation as loops, outermost first.

    Args:
        path: of the invocation, for people.
        loops: per iterated axis: steps, bytes per operand, policy.
        consumed: per axis of the primitive: steps and bytes per operand, in the order of its roles.
        widths: bytes per element and operand.
        written: the last operand's traffic counts twice where the primitive also reads it.
        reduces: whether it multiplies and adds.
        lanes_used: steps of the axes along which vectors run.
    """

    path: str
    loops: tuple[tuple[int, tuple[int, ...], Policy], ...]
    consumed: tuple[tuple[int, tuple[int, ...]], ...]
    widths: tuple[int, ...]
    written: bool
    reduces: bool
    lanes_used: int

    @property
    def calls(self) -> int:
        """How often the primitive is invoked."""
        return prod(count for count, _, _ in self.loops)

    @property
    def steps(self) -> int:
        """Scalar steps of one invocation."""
        return prod(count for count, _ in self.consumed)


@dataclass(frozen=True, slots=True)
class Level:
    """What one level of memory costs: the bytes that come in, and the seconds that takes on the cores at work."""

    name: str
    bytes_moved: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Cost:
    """The modelled time of one invocation's nest.

    Args:
        path: of the invocation.
        cores: at work, on average.
        arithmetic_seconds: of multiply-adds and other steps, edges of vectors included.
        levels: of memory, nearest first.
        overhead_seconds: of calls and parallel regions.
    """

    path: str
    cores: float
    arithmetic_seconds: float
    levels: tuple[Level, ...]
    overhead_seconds: float

    @property
    def seconds(self) -> float:
        """The slowest of arithmetic and traffic, and the overhead."""
        return max(self.arithmetic_seconds, *(level.seconds for level in self.levels)) + self.overhead_seconds

    @property
    def bound(self) -> str:
        """What takes longest: ``arithmetic``, the name of a level, or ``calls``."""
        parts = {"arithmetic": self.arithmetic_seconds, "calls": self.overhead_seconds}
        parts |= {level.name: level.seconds for level in self.levels}
        return max(parts, key=lambda name: parts[name])

    def __str__(self) -> str:
        moved = ", ".join(f"{level.name} {level.bytes_moved / 1e6:.3g} MB" for level in self.levels)
        return f"{self.path}: {self.seconds * 1e6:.3g} us, bound by {self.bound}, {self.cores:.3g} cores; {moved}"


def estimate(program: Program, machine: Machine) -> tuple[Cost, ...]:
    """The modelled cost of every invocation of a program, in execution order; their seconds add up.

    Raises:
        VerifyError: the program is not well formed.

    Example:
        >>> from tileweave.teir import examples
        >>> costs = estimate(examples.contraction_gemm(dict.fromkeys("pqrstu", 16)), Machine())
        >>> [(cost.path, cost.bound) for cost in costs]
        [('p/r/zero', 'memory'), ('p/r/t/gemm', 'arithmetic')]

    Source: own.
    """
    verify(program)
    return tuple(cost(nest, machine) for nest in nests(program))


def nests(program: Program) -> tuple[Nest, ...]:
    """Every invocation that a guard ever admits, as loops; a guarded loop counts the iterations that are admitted."""
    found = []
    for call in calls(program):
        moves = list(zip(*(call.strides(k) for k in range(len(call.names))), strict=True))
        depth = len(call.visit.path)
        loops = zip(call.iterated, moves[:depth], call.visit.path, strict=True)
        found.append(
            Nest(
                call.path,
                tuple((span.count, move, loop.policy) for span, move, loop in loops),
                tuple((span.count, move) for span, move in zip(call.consumed, moves[depth:], strict=True)),
                tuple(map(call.width, range(len(call.names)))),
                call.spec.reads_output,
                bool(call.spec.contracted),
                prod(span.count for span in call.consumed if span.role == "N"),
            )
        )
    return tuple(found)


def cost(nest: Nest, machine: Machine) -> Cost:
    """The modelled cost of one invocation's nest."""
    cores, regions = _cores(nest, machine)
    lanes = max(1, machine.vector_bytes // nest.widths[-1])
    used = nest.lanes_used / (ceil(nest.lanes_used / lanes) * lanes)
    rate = machine.flops_per_second * 4 / nest.widths[-1] * used
    arithmetic = (2 if nest.reduces else 1) * nest.calls * nest.steps / rate / cores
    levels = []
    for k, cache in enumerate(machine.caches):
        moved = _traffic(nest, cache.size_bytes, machine.line_bytes)
        last = k + 1 == len(machine.caches)
        rate = cache.bytes_per_second * cores
        if last:
            rate = min(rate, machine.memory_bytes_per_second)
        levels.append(Level("memory" if last else f"cache {k + 2}", moved, moved / rate))
    overhead = nest.calls * machine.call_seconds / cores + regions * machine.region_seconds
    return Cost(nest.path, cores, arithmetic, tuple(levels), overhead)


def _cores(nest: Nest, machine: Machine) -> tuple[float, int]:
    """How many cores work on average, and how often they are started."""
    first = next((k for k, loop in enumerate(nest.loops) if loop[2] == "parallel"), None)
    if first is None or machine.cores == 1:
        return 1.0, 0
    tasks = 1
    for count, _, policy in nest.loops[first:]:
        if policy != "parallel":
            break
        tasks *= count
    rounds = ceil(tasks / machine.cores)
    return tasks / rounds, prod(count for count, _, _ in nest.loops[:first])


def _traffic(nest: Nest, size_bytes: int, line_bytes: int) -> int:
    """Bytes that come into a cache of this size: the least, over all loops below which everything touched fits."""
    loops = [(count, moves) for count, moves, _ in nest.loops] + list(nest.consumed)
    least = None
    for depth in range(len(loops), -1, -1):
        inside = _footprints(nest, loops[depth:], line_bytes)
        if least is not None and sum(inside) > size_bytes:
            break
        total = 0
        for k, footprint in enumerate(inside):
            back = 2 if k == len(inside) - 1 and nest.written else 1
            total += back * footprint * _times(loops[:depth], k, line_bytes)
        least = total if least is None else min(least, total)
    return least or 0


def _times(loops: Sequence[tuple[int, tuple[int, ...]]], operand: int, line_bytes: int) -> int:
    """How often an operand's lines come in, for the loops around what fits."""
    outer, times = len(loops), 1
    while outer and not loops[outer - 1][1][operand]:
        outer -= 1  # the loop leaves the operand in place
    if outer and abs(loops[outer - 1][1][operand]) < line_bytes:
        outer -= 1  # several of its steps meet the same lines
        count, moves = loops[outer]
        times = ceil(count * abs(moves[operand]) / line_bytes)
    return times * prod(count for count, _ in loops[:outer])


def _footprints(nest: Nest, loops: Sequence[tuple[int, tuple[int, ...]]], line_bytes: int) -> list[int]:
    """Bytes of the lines that each operand touches within loops."""
    result = []
    for k, width in enumerate(nest.widths):
        span, count = width, 1
        moving = sorted((abs(moves[k]), steps) for steps, moves in loops if moves[k] and steps > 1)
        for stride, steps in moving:
            if stride <= max(span, line_bytes):
                span += stride * (steps - 1)
            else:
                count *= steps
        result.append(count * ceil(span / line_bytes) * line_bytes)
    return result
