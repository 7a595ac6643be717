"""What a multiprocessor has, and how many blocks of a dispatched kernel it holds at once."""

from __future__ import annotations

from tileweave.kernel.atoms.atom import generation
from tileweave.kernel.dispatch.report.liveness import kept
from tileweave.kernel.dispatch.report.liveness import registers as live
from tileweave.kernel.ir.verify import TENSOR_COLUMNS
from tileweave.kernel.threads import ThreadProgram, instructions

#: KiB of shared memory that a block may have, by architecture; and of those not named.
_SHARED = {70: 96, 72: 96, 75: 64, 80: 163, 87: 163, 90: 227, 100: 227, 101: 227, 103: 227, 110: 227}
_LEAST_SHARED = 99
#: Registers of a multiprocessor, the most of a thread, and what addresses and counters of a thread take beside its
#: tensors; for each four registers of these a compiler takes one more where there are, for loads ahead of their use.
_REGISTERS, _MOST, _OTHERS, _AHEAD = 65536, 255, 32, 4
#: Threads and blocks that a multiprocessor has at once, by architecture; and those not named.
_AT_ONCE = {75: (1024, 16), 86: (1536, 16), 87: (1536, 16), 88: (1536, 16), 89: (1536, 24)} | dict.fromkeys(
    (110, 120, 121), (1536, 24)
)
_MOST_AT_ONCE = (2048, 32)


def shared_limit(arch: str) -> int:
    """Bytes of shared memory that a block may have."""
    return _SHARED.get(generation(arch), _LEAST_SHARED) << 10


def shared_of(program: ThreadProgram) -> int:
    """Bytes of shared memory of a block."""
    return program.shared_places()[1]


def columns_of(program: ThreadProgram) -> int:
    """Columns of tensor memory that a block allocates."""
    return sum(int(i.operands[1]) for i in instructions(program.body) if i.atom.startswith("tcgen05.alloc"))


def registers_of(program: ThreadProgram) -> int:
    """Registers with which a thread of this program does not spill: an estimate, rather too many than too few."""
    tensors = live(program.body)
    least = _OTHERS + tensors
    return least + max(0, min(tensors // _AHEAD, registers_limit(program) - least))


def registers_limit(program: ThreadProgram) -> int:
    """The most registers that a thread may have: as it asks for itself, or what a block of this many leaves it."""
    asked = [int(i.operands[0]) for i in instructions(program.body) if i.atom.startswith("setmaxnreg")]
    return max(asked, default=min(_MOST, _REGISTERS // (32 * program.warps) // 8 * 8))


def registers_problem(program: ThreadProgram) -> str:
    """Why the registers of a thread cannot hold what its loops keep from turn to turn; empty if they can."""
    least, most = kept(program.body), registers_limit(program)
    if least <= most:
        return ""
    return f"a loop of a thread keeps {least} registers from turn to turn; there are {most}"


def resident(program: ThreadProgram) -> int:
    """Blocks of a multiprocessor at once, by threads, registers, shared and tensor memory; 0: none fits."""
    threads, shared, columns = 32 * program.warps, shared_of(program), columns_of(program)
    most, blocks = _AT_ONCE.get(generation(program.arch), _MOST_AT_ONCE)
    registers = min(registers_of(program), registers_limit(program))
    fits = [most // threads, blocks, _REGISTERS // (threads * registers)]
    if any(i.atom.startswith("setmaxnreg") for i in instructions(program.body)):
        fits.append(1)  # its warpgroups share out all registers of the multiprocessor
    fits += [shared_limit(program.arch) // shared] if shared else []
    fits += [TENSOR_COLUMNS // columns] if columns else []
    return min(fits)


def blocks_to_ask_for(program: ThreadProgram) -> int:
    """Blocks at once that a text asks a compiler to make room for: those that fit, or 1 where that limits nothing."""
    blocks = max(1, resident(program))
    return blocks if _REGISTERS // (32 * program.warps * blocks) < _MOST else 1
