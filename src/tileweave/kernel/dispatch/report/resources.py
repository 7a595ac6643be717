"""What a multiprocessor has, and how many blocks of a dispatched kernel it holds at once."""

from __future__ import annotations

from tileweave.kernel.atoms.atom import generation
from tileweave.kernel.dispatch.report.liveness import registers as live
from tileweave.kernel.ir.verify import TENSOR_COLUMNS
from tileweave.kernel.threads import ThreadProgram, instructions

#: KiB of shared memory that a block may have, by architecture; and of those not named.
_SHARED = {70: 96, 72: 96, 75: 64, 80: 163, 87: 163, 90: 227, 100: 227, 101: 227, 103: 227, 110: 227}
_LEAST_SHARED = 99
#: Registers of a multiprocessor, and what addresses and counters of a thread take beside its tensors.
_REGISTERS, _OTHERS = 65536, 32
_THREADS, _BLOCKS = 2048, 32


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
    """Registers of a thread: what its tensors take at once, and some for addresses and counters."""
    return _OTHERS + live(program.body)


def resident(program: ThreadProgram) -> int:
    """Blocks of a multiprocessor at once, by threads, registers, shared and tensor memory; 0: none fits."""
    threads, shared, columns = 32 * program.warps, shared_of(program), columns_of(program)
    fits = [_THREADS // threads, _BLOCKS, _REGISTERS // (threads * registers_of(program))]
    if any(i.atom.startswith("setmaxnreg") for i in instructions(program.body)):
        fits.append(1)  # its warpgroups share out all registers of the multiprocessor
    fits += [shared_limit(program.arch) // shared] if shared else []
    fits += [TENSOR_COLUMNS // columns] if columns else []
    return min(fits)
