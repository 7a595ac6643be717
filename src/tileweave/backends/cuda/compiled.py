"""``compile``: what nvcc or NVRTC makes of a text, with registers, spills and counts of machine instructions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tileweave.backends import folders
from tileweave.errors import BackendError

_SECONDS = 300


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one kernel uses: registers per thread, bytes spilled, bytes of static shared memory.

    Of NVRTC's machine code the bytes of the stack are taken as spilled, which holds what is spilled.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class CompiledText:
    """A text compiled for one target.

    Args:
        arch: the target.
        compiler: which compiler, with its version.
        cubin: the machine code.
        kernels: resources by (mangled) name; empty of NVRTC where there is no cuobjdump.
        sass: how often each machine instruction occurs, by its opcode without modifiers; empty without cuobjdump and
            nvdisasm (of a toolkit on PATH, or of Triton's wheel).
    """

    arch: str
    compiler: str
    cubin: bytes = field(repr=False)
    kernels: Mapping[str, KernelResources]
    sass: Mapping[str, int]


def compile(text: str, arch: str = "sm_90a", *, include: Sequence[str] = ()) -> CompiledText:
    """Compiles CUDA C++ for a device; none is needed.

    Args:
        text: the source.
        arch: the target, such as ``sm_90a``.
        include: folders of headers.

    Raises:
        BackendError: the compiler refuses the text, or there is neither nvcc nor NVRTC.
    """
    if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
        raise BackendError("compile(text, arch)", f"arch {arch!r}", legal="sm_80, sm_90a, sm_100a, ..")
    if shutil.which("nvcc"):
        return _nvcc(text, arch, include)
    cubin, version = nvrtc_cubin(text, arch, include)
    return CompiledText(arch, version, cubin, _usage(cubin), _sass(cubin))


def _nvcc(text: str, arch: str, include: Sequence[str]) -> CompiledText:
    with folders.scratch() as folder:
        source, target = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(text)
        number = arch.removeprefix("sm_")
        command = ["nvcc", "-std=c++17", f"-gencode=arch=compute_{number},code={arch}", "-cubin", "-Xptxas=-v"]
        command += [f"-I{path}" for path in include] + ["-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line][:8]
            raise BackendError(
                "compile(text, arch)", f"nvcc does not accept the text for {arch}", inputs={"log": "\n".join(lines)},
                facts={"source": text, "log": done.stderr},
            )  # fmt: skip
        version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
        release = re.search(r"V([\d.]+)", version)
        cubin = target.read_bytes()
    return CompiledText(
        arch, f"nvcc {release.group(1) if release else ''}".strip(), cubin, _resources(done.stderr), _sass(cubin)
    )


def _resources(log: str) -> dict[str, KernelResources]:
    kernels, name, spill = {}, "", 0
    for line in log.splitlines():
        entry = re.search(r"Compiling entry function '(\S+)'", line)
        if entry:
            name, spill = entry.group(1), 0
        spilled = re.search(r"(\d+) bytes spill stores", line)
        if spilled:
            spill = int(spilled.group(1))
        used = re.search(r"Used (\d+) registers", line)
        if used:
            shared = re.search(r"(\d+) bytes smem", line)
            kernels[name] = KernelResources(int(used.group(1)), spill, int(shared.group(1)) if shared else 0)
    return kernels


@cache
def _disassemblers() -> str | None:
    """The PATH on which cuobjdump and nvdisasm are: that of the process, or the folder of Triton's wheel."""
    found = find_spec("triton")
    wheel = (found.submodule_search_locations or ()) if found is not None else ()
    paths = [os.environ.get("PATH", ""), *(str(Path(folder) / "backends" / "nvidia" / "bin") for folder in wheel)]
    return next((p for p in paths if all(shutil.which(name, path=p) for name in ("cuobjdump", "nvdisasm"))), None)


def _dumped(cubin: bytes, what: str) -> str:
    """What cuobjdump says of machine code; empty where there is none."""
    where = _disassemblers()
    if where is None:
        return ""
    with folders.scratch() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(shutil.which("cuobjdump", path=where)), what, str(path)]
        settings = {**os.environ, "PATH": where}
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=settings)
    return done.stdout


def _usage(cubin: bytes) -> dict[str, KernelResources]:
    """Resources as the machine code itself has them."""
    rows = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", _dumped(cubin, "-res-usage"))
    return {name: KernelResources(*map(int, numbers)) for name, *numbers in rows}


def _sass(cubin: bytes) -> dict[str, int]:
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", _dumped(cubin, "-sass"))
    return dict(Counter(found))


#: What kernels take of headers that speak of the host, which NVRTC cannot read.
_OWN_HEADERS = {
    "cuda.h": "typedef struct __align__(64) { unsigned long long opaque[16]; } CUtensorMap;",
    "stdint.h": "\n".join(
        f"typedef {sign}{name} {letter}int{bits}_t;"
        for bits, name in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
        for sign, letter in (("signed ", ""), ("unsigned ", "u"))
    ),
}


#: Floats that nvcc has from math.h.
_NUMBERS = {"INFINITY": "0x7f800000", "NAN": "0x7fffffff"}


@cache
def _headers() -> tuple[str, ...]:
    """Folders with CUDA's headers, which NVRTC has none of itself: of the wheel of its runtime, of a toolkit."""
    found = find_spec("nvidia")
    wheels = (found.submodule_search_locations or ()) if found is not None else ()
    folders = [path for wheel in wheels for path in sorted(Path(wheel).glob("*/include"))]
    folders += [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    folders.append(Path("/usr/local/cuda/include"))
    return tuple(str(path) for path in folders if (path / "cuda_fp16.h").exists())[:1]


def nvrtc_cubin(text: str, arch: str, include: Sequence[str] = ()) -> tuple[bytes, str]:
    """The machine code of a text through NVRTC, and the compiler's name."""
    try:
        from cuda.bindings import nvrtc  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise BackendError(
            "compile(text, arch)", "neither nvcc nor NVRTC is installed",
            legal="nvcc on PATH, or pip install 'tileweave[gpu]'",
        ) from None  # fmt: skip

    def call(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise BackendError("compile(text, arch)", f"NVRTC: {result[0].name}")
        return result[1] if len(result) == 2 else result[1:]

    given = {name.encode(): header.encode() for name, header in _OWN_HEADERS.items()}
    program = call(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", len(given), list(given.values()), list(given)))
    folders = [f"-I{path}".encode() for path in (*include, *_headers())]
    numbers = [f"-D{name}=__int_as_float({bits})".encode() for name, bits in _NUMBERS.items()]
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", *numbers, *folders]
    status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
    if int(status):
        log = b" " * call(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        shown = log.decode(errors="replace").strip("\0 \n")
        problem = f"NVRTC does not accept the text for {arch}"
        raise BackendError(
            "compile(text, arch)", problem, inputs={"log": shown[:2000]}, facts={"source": text, "log": shown}
        )
    cubin = b" " * call(nvrtc.nvrtcGetCUBINSize(program))
    nvrtc.nvrtcGetCUBIN(program, cubin)
    major, minor = call(nvrtc.nvrtcVersion())
    return cubin, f"NVRTC {major}.{minor}"
