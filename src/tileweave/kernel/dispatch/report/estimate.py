"""What a dispatched kernel takes by its counts: arithmetic, bytes, passes, issued instructions; and what it needs.

An estimate to rank choices by, from published rates of one processor for each target; nothing was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from tileweave.index import Expr, ExprLike, as_expr, bounds, evaluate, symbols_of
from tileweave.kernel.atoms import BITS, atom
from tileweave.kernel.dispatch.layouts.traffic import access_of
from tileweave.kernel.dispatch.lower import lower
from tileweave.kernel.dispatch.report.resources import (
    columns_of,
    registers_limit,
    registers_of,
    registers_problem,
    resident,
    shared_limit,
    shared_of,
)
from tileweave.kernel.ir import Kernel
from tileweave.kernel.threads import (
    Branch,
    Instruction,
    Local,
    Repeat,
    Statement,
    ThreadLoop,
    ThreadProgram,
)


@dataclass(frozen=True)
class ProcessorRates:
    """One processor: what it does in a cycle, and what a multiprocessor has.

    Args:
        multiprocessors: how many there are.
        hertz: cycles in a second.
        bytes_per_second: of global memory.
        products: multiplications and additions of 16-bit tensor products in a cycle of one multiprocessor.
    """

    multiprocessors: int
    hertz: float
    bytes_per_second: float
    products: int


#: A100, H200 and B200, from their data sheets.
RATES = {
    "sm_80": ProcessorRates(108, 1.41e9, 1.555e12, 2048),
    "sm_90a": ProcessorRates(132, 1.755e9, 4.8e12, 4096),
    "sm_100a": ProcessorRates(148, 1.85e9, 8e12, 8192),
}
#: Cycles before a block's first instruction of use.
_START = 1500
#: `mma.sync` reaches half of the rate of warpgroups where there are such.
_WARP_SHARE = 0.5
#: Bytes of a cycle that all multiprocessors together get from the second cache, which serves what was read before. Of
#: A100 and H100 (7,219 GB/s at 1.41 GHz, 8,986 at 1.755: doi 10.1016/j.ultsonch.2023.106546, table 3); B200 is taken to
#: be no faster, for want of a source.
_CACHED = 5120


@dataclass(frozen=True)
class Estimate:
    """What a launch takes and needs.

    Args:
        seconds: of the launch.
        bound: what takes longest: ``products``, ``memory``, ``second cache``, ``shared memory`` or ``issue``.
        shared_bytes: of a block.
        registers: with which a thread spills nothing: what its tensors take at once, and some for what is ahead of its
            use, for addresses and counters. A compiler may well do with fewer.
        resident: blocks of a multiprocessor at once; 0: none fits.
        problem: why it cannot run; empty if it can.
        tensor_columns: of tensor memory that a block allocates.
        most_registers: that a thread may have; where it may need more, some values may be spilled.
    """

    seconds: float
    bound: str
    shared_bytes: int
    registers: int
    resident: int
    problem: str = ""
    tensor_columns: int = 0
    most_registers: int = 255

    @property
    def may_spill(self) -> bool:
        """Whether there are fewer registers than would do for certain."""
        return self.registers > self.most_registers

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        tensor = f"{self.tensor_columns} columns of tensor memory, " if self.tensor_columns else ""
        blocks = f"{self.resident} block{'s' * (self.resident != 1)} resident"
        short = f" where there are {self.most_registers}: it may spill" * self.may_spill
        needs = f"{self.shared_bytes} B shared, {tensor}some {self.registers} registers{short}, {blocks}"
        return f"{self.seconds * 1e6:.1f} us by its counts, bound by {self.bound}; {needs}"


def estimate(kernel: Kernel, arch: str = "sm_90a") -> Estimate:
    """The estimate of a kernel on a target.

    Args:
        kernel: the kernel.
        arch: the target; rates of the nearest known one.
    """
    return estimated(kernel, lower(kernel, arch).program)


def estimated(kernel: Kernel, program: ThreadProgram) -> Estimate:
    """The estimate of a dispatched kernel: a byte of its tensors crosses memory once, then from the second cache."""
    rates = RATES.get(program.arch) or RATES["sm_80"]
    counts: Counter[str] = Counter()
    _count(program, program.body, 1.0, tuple({"warp": w, "lane": 0} for w in range(program.warps)), counts)
    shared, registers, columns = shared_of(program), registers_of(program), columns_of(program)
    problem, most = registers_problem(program), shared_limit(program.arch)
    if shared > most:
        problem = f"{shared} bytes of shared memory; {program.arch} has {most}"
    blocks_at_once = max(1 if not problem else 0, resident(program))
    blocks = prod(program.grid)
    once = min(counts["bytes"], sum(t.size * t.element.bits // 8 for t in kernel.params) / blocks)
    cycles = {
        "products": counts["products"] / rates.products,
        "memory": once / (rates.bytes_per_second / rates.hertz / rates.multiprocessors),
        "second cache": counts["bytes"] * rates.multiprocessors / _CACHED,
        "shared memory": counts["passes"],
        "issue": counts["issued"] / 4,
    }
    bound = max(cycles, key=lambda name: cycles[name])
    turns = ceil(blocks / (rates.multiprocessors * max(1, blocks_at_once)))
    each = min(max(1, blocks_at_once), ceil(blocks / rates.multiprocessors))
    seconds = turns * (_START + each * cycles[bound]) / rates.hertz
    return Estimate(seconds, bound, shared, registers, blocks_at_once, problem, columns, registers_limit(program))


#: For each warp: what the symbols of its first thread are.
_Warps = tuple[dict[str, int], ...]


def _count(
    program: ThreadProgram, body: Sequence[Statement], times: float, warps: _Warps, counts: Counter[str]
) -> None:
    """Adds what these warps of a block do, `times` times."""
    for statement in body:
        if isinstance(statement, ThreadLoop):
            turns = _turns(statement.start, statement.stop, statement.step)
            _count(program, statement.body, times * turns, warps, counts)
        elif isinstance(statement, Repeat):
            _count(program, statement.body, times, warps, counts)
        elif isinstance(statement, Branch):
            inside = _where(statement.condition, warps)
            _count(program, statement.body, times, inside, counts)
            _count(program, statement.otherwise, times, tuple(w for w in warps if w not in inside), counts)
        elif isinstance(statement, Local) and isinstance(statement.value, Expr | int):
            for known in warps:
                if _of_the_thread(statement.value, known):
                    known[str(statement.symbol)] = int(evaluate(as_expr(statement.value), known))
        elif isinstance(statement, Instruction):
            _instruction(program, statement, times, warps, counts)


def _instruction(program: ThreadProgram, item: Instruction, turns: float, warps: _Warps, counts: Counter[str]) -> None:
    times = turns * len(warps)
    counts["issued"] += times  # type: ignore[assignment]
    if item.atom.startswith("wgmma.mma"):
        row = atom(item.atom)
        counts["products"] += times / 4 * row.cost.operations * BITS[row["a"].dtype] / 16  # type: ignore[assignment]
    elif item.atom.startswith("tcgen05.mma"):  # by one thread, for one block or two
        row, declared = atom(item.atom), dict(item.option("declared"))
        share = declared["n"] / row["b"].shape[0]
        counts["products"] += turns * share * row.cost.operations * BITS[row["a"].dtype] / 16
    elif item.atom.startswith("mma."):
        row = atom(item.atom)
        share = _WARP_SHARE if program.arch != "sm_80" else 1.0
        counts["products"] += times * row.cost.operations * BITS[row["a"].dtype] / 16 / share  # type: ignore[assignment]
    elif item.option("cover") is not None:
        dims, _ = item.option("cover")
        size = 1
        for _, _, extent in dims:
            size *= extent
        where = next(o for o in item.operands if hasattr(o, "offset"))
        threads = len(_where(item.mask, warps)) if item.mask is not None else len(warps)  # one of each warp issues it
        counts["bytes"] += turns * threads * size * BITS[where.buffer.dtype] // 8  # type: ignore[assignment]
    else:
        found = access_of(item)
        if found is not None:
            name, each = ("passes", 1) if found.unit == "passes" else ("bytes", 32)
            counts[name] += times * found.served * each  # type: ignore[assignment]


def _turns(start: ExprLike, stop: ExprLike, step: ExprLike) -> float:
    """How often a loop turns; the most that is known."""
    low, high, by = bounds(as_expr(start))[0], bounds(as_expr(stop))[1], bounds(as_expr(step))[0]
    return 1.0 if low is None or high is None else max(0.0, ceil((high - low) / max(1, by or 1)))


def _of_the_thread(value: ExprLike, known: dict[str, int]) -> bool:
    return {str(s) for s in symbols_of(as_expr(value))} <= known.keys()


def _where(condition: Expr, warps: _Warps) -> _Warps:
    """The warps whose first thread a condition holds for; all, where it speaks of more than the thread."""
    return tuple(w for w in warps if not _of_the_thread(condition, w) or evaluate(condition, w))
