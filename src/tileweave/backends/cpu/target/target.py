"""What machine code is made for: the processor that LLVM finds, its vectors, its registers, its caches."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass

from tileweave.backends.host import cache_bytes
from tileweave.errors import BackendError


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

    Raises:
        BackendError: a field is not of its type, or a number is out of range.
    """

    cpu: str
    features: str
    vector_bytes: int
    registers: int
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    l3_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        for name, pattern, legal in (
            ("cpu", r"[\w.+-]+", "LLVM's name of a processor, such as 'x86-64-v3'"),
            ("features", r"([+-][\w.-]+(,[+-][\w.-]+)*)?", "LLVM's features, such as '+avx2,+fma'"),
        ):
            text = getattr(self, name)
            if not isinstance(text, str) or not re.fullmatch(pattern, text, re.ASCII):
                raise BackendError(f"Target({name}={text!r})", "it is no such name", legal=legal)
        least = {"vector_bytes": 1, "registers": 1, "l1_bytes": 0, "l2_bytes": 0, "l3_bytes": 0}
        for name, smallest in least.items():
            number = getattr(self, name)
            power = name != "vector_bytes" or number in (16, 32, 64)
            if type(number) is not int or number < smallest or not power:
                legal = "16, 32 or 64" if name == "vector_bytes" else f"an integer from {smallest} on"
                raise BackendError(f"Target({name}={number!r})", "it is no such number", legal=legal)

    def has(self, feature: str) -> bool:
        """Whether a feature is on."""
        return f"+{feature}" in _split(self.features)

    def has_not(self, feature: str) -> bool:
        """Whether a feature is known to be off."""
        return f"-{feature}" in _split(self.features)

    @property
    def masks_stores(self) -> bool:
        """Whether a masked store costs no more than a whole one: where masks have registers of their own."""
        return self.vector_bytes == 64

    @property
    def fetches_ahead(self) -> bool:
        """Whether the processor itself fetches in time what loops over dense memory read and write: AMD's do.

        Where a Zen 4 is asked for lines ahead, adding arrays of 0.5 to 12 MB takes a tenth to a third longer; a
        Cascade Lake adds 24 MB in 0.6 of the time then.
        """
        return self.has("sse4a")

    @property
    def one_product(self) -> bool:
        """Whether a core begins one multiply-add of the widest vectors per cycle, not two: a Zen 4 forms it in two
        halves, and reads two numbers beside it."""
        return self.cpu == "znver4" and self.vector_bytes == 64

    def lanes(self, width_bytes: int) -> int:
        """How many elements of this width one vector holds."""
        return max(1, self.vector_bytes // width_bytes)


@functools.lru_cache(64)
def _split(features: str) -> frozenset[str]:
    return frozenset(features.split(","))


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
    return describe(llvm.get_host_cpu_name(), features, platform.machine(), cache_bytes())


def usable(target: object) -> Target:
    """The target, or this processor for None, where LLVM knows it and makes code for it that this process can link.

    LLVM ends the process over a name that it does not know, so a foreign target is first tried in another process,
    once for each pair of names.

    Raises:
        BackendError: it is no target, LLVM does not know its names, or it lacks what code of this process needs.
    """
    own = host()
    if target is None:
        return own
    if not isinstance(target, Target):
        problem, legal = f"{target!r} is no target", "a Target, such as host(), or None for this processor"
        raise BackendError("compile(program, target=..)", problem, legal=legal, facts={"source": "", "log": ""})
    if (target.cpu, target.features) != (own.cpu, own.features):
        lacking = [name for name in target.features.split(",") if name[:1] == "+" and own.has_not(name[1:])]
        log = f"this processor, {own.cpu}, has no {', '.join(lacking)}" if lacking else ""
        log = log or _refusal(target.cpu, target.features)
        if log:
            problem = f"there is no code for Target({target.cpu!r}, ..): {log}"
            legal = f"names that LLVM knows, of this processor or a lesser one of its kind: {own.cpu!r}"
            raise BackendError("compile(program, target=..)", problem, legal=legal, facts={"source": "", "log": log})
    return target


_TRIAL = """
import sys
import llvmlite.binding as llvm
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
target = llvm.Target.from_default_triple()
machine = target.create_target_machine(cpu=sys.argv[1], features=sys.argv[2], codemodel="jitdefault", jit=True)
machine.emit_object(llvm.parse_assembly("define double @f(double %x) { %y = fadd double %x, %x ret double %y }"))
"""


@functools.cache
def _refusal(cpu: str, features: str) -> str:
    """What LLVM says against a processor, in one line; empty where it makes code, or where that cannot be tried."""
    command = [sys.executable, "-c", _TRIAL, cpu, features]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""
    if ran.returncode and "Traceback" in ran.stderr:
        return ""
    lines = [line.removesuffix(" (ignoring processor)") for line in ran.stderr.splitlines() if line.strip()]
    unknown = [line.removesuffix(" (ignoring feature)") for line in lines if "is not a recognized" in line]
    failed = lines[-1:] or ["LLVM fails"] if ran.returncode else []
    return "; ".join(dict.fromkeys(unknown or failed))
