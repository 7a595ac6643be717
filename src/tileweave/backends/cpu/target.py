"""What machine code is made for: the processor that LLVM finds, its vectors, its registers, its caches."""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Target", "host"]


@dataclass(frozen=True, slots=True)
class Target:
    """A processor as code generation sees it.

    Args:
        cpu: LLVM's name of the processor.
        features: LLVM's features, ``+avx2,-avx512f,..``.
        vector_bytes: bytes of the widest vector worth using.
        registers: how many vector registers there are.
        l1_bytes: the first data cache of one core.
        l2_bytes: the second cache of one core.
        l3_bytes: the last cache, shared.
    """

    cpu: str
    features: str
    vector_bytes: int
    registers: int
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    l3_bytes: int = 8 * 1024 * 1024

    def has(self, feature: str) -> bool:
        """Whether a feature is on."""
        return f"+{feature}" in self.features.split(",")

    def lanes(self, width_bytes: int) -> int:
        """How many elements of this width one vector holds."""
        return max(1, self.vector_bytes // width_bytes)


def describe(cpu: str, features: str, machine: str, caches: tuple[int, int, int]) -> Target:
    """A target from names; vectors and registers follow from the features."""
    on = set(features.split(","))
    if "+avx512f" in on and "+avx512vl" in on and "+avx512bw" in on and "+avx512dq" in on:
        vector_bytes, registers = 64, 32
    elif "+avx2" in on and "+fma" in on:
        vector_bytes, registers = 32, 16
    elif machine in ("aarch64", "arm64"):
        vector_bytes, registers = 16, 32
    else:
        vector_bytes, registers = 16, 16
    # explicit 512-bit vectors are used on purpose; the tuning that halves them would only undo that
    return Target(cpu, features, vector_bytes, registers, *caches)


@functools.cache
def host() -> Target:
    """The processor of this machine, asked once."""
    import llvmlite.binding as llvm

    try:
        features = llvm.get_host_cpu_features().flatten()
    except RuntimeError:
        features = ""
    return describe(llvm.get_host_cpu_name(), features, platform.machine(), _caches())


def _caches() -> tuple[int, int, int]:
    """Bytes of the data caches L1, L2, L3 as Linux tells them; modest guesses elsewhere."""
    found = {1: 32 * 1024, 2: 512 * 1024, 3: 8 * 1024 * 1024}
    root = Path("/sys/devices/system/cpu/cpu0/cache")
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    try:
        for entry in sorted(root.glob("index*")):
            if (entry / "type").read_text().strip() == "Instruction":
                continue
            size = (entry / "size").read_text().strip()
            found[int((entry / "level").read_text())] = int(size[:-1]) * units[size[-1]]
    except (OSError, ValueError, KeyError):
        pass
    return found[1], found[2], found[3]
