"""MLIR's command-line tools: where they are, what they say, and the passes that lower a GPU kernel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tileweave.backends import folders
from tileweave.errors import BackendError

SECONDS = 300
VERSION = 22
"""The major version of MLIR's tools that the passes below belong to."""
_HOW = f"apt install mlir-{VERSION}-tools, or name the tools in TILEWEAVE_MLIR_OPT and TILEWEAVE_MLIR_TRANSLATE"

_INDEX_PASSES = (
    "lower-affine,canonicalize,int-range-optimizations,arith-int-range-narrowing{int-bitwidths-supported=32}"
)
"""Index arithmetic while loops are still structured: ranges are known only then."""
_DEVICE_PASSES = (
    "canonicalize,cse,loop-invariant-code-motion,{index},convert-nvgpu-to-nvvm,convert-vector-to-scf,convert-scf-to-cf,"
    "expand-strided-metadata,lower-affine,convert-gpu-to-nvvm{{use-bare-ptr-memref-call-conv={bare}}},"
    "convert-vector-to-llvm,convert-nvvm-to-llvm,convert-ub-to-llvm,reconcile-unrealized-casts,canonicalize,cse"
)
_FEATURES = {80: "+ptx80", 86: "+ptx80", 89: "+ptx81", 90: "+ptx80", 100: "+ptx86", 120: "+ptx87"}
"""The PTX version that an architecture needs, by its number."""


@cache
def _tool(name: str) -> str | None:
    """The path of a tool, of the version that the passes are written for; None where there is none."""
    named = os.environ.get(f"TILEWEAVE_{name.upper().replace('-', '_')}")
    return shutil.which(named) if named else shutil.which(f"{name}-{VERSION}")


def installed() -> str:
    """What is missing to verify, lower and run MLIR; empty where nothing is.

    Example:
        >>> isinstance(installed(), str)
        True
    """
    missing = [name for name in ("mlir-opt", "mlir-translate") if _tool(name) is None]
    return f"{' and '.join(missing)} {VERSION} not installed: {_HOW}" if missing else ""


def _call(where: str, name: str, arguments: Sequence[str], text: str, file: str = "<stdin>") -> str:
    """The output of a tool on a text.

    Raises:
        BackendError: there is no such tool, or it refuses the text; with its first messages.
    """
    path = _tool(name)
    if path is None:
        raise BackendError(where, f"{name} {VERSION} is not installed", legal=_HOW)
    try:
        done = subprocess.run(
            [path, *arguments], input=text, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BackendError(where, f"{name} took more than {SECONDS} s", facts={"source": text}) from None
    if done.returncode:
        found = re.findall(r"^<stdin>:(\d+):\d+: error: (.*)$", done.stderr, re.M)
        lines = text.splitlines()
        inputs: dict[str, object] = {}
        for number, message in found[:3]:
            place = f"{file}:{number}" if file != "<stdin>" else f"line {number}"
            line = lines[int(number) - 1].strip() if int(number) <= len(lines) else ""
            inputs[place] = f"{message}\n{line[:160]}"
        if not found:
            inputs["log"] = done.stderr[:500]
        raise BackendError(
            where, f"{name} does not accept the text", inputs=inputs, facts={"source": text, "log": done.stderr}
        )
    return done.stdout


def opt(text: str, *passes: str, where: str = "opt(text, *passes)", debug: bool = False) -> str:
    """The module after passes of mlir-opt, each in the notation of ``--pass-pipeline``.

    Args:
        text: a module.
        passes: what stands inside ``builtin.module(..)``.
        where: the public function, for errors.
        debug: print locations too.

    Raises:
        BackendError: mlir-opt is missing, or refuses text or passes.
    """
    arguments = [f"--pass-pipeline=builtin.module({','.join(passes)})"] + ["--mlir-print-debuginfo"] * debug
    return _call(where, "mlir-opt", arguments, text)


def verify(text: str) -> None:
    """Parses a module and checks the rules of its dialects.

    Raises:
        BackendError: mlir-opt is missing, or the text breaks a rule; with line and message.

    Source: own; MLIR's verifiers.
    """
    _call("verify(text)", "mlir-opt", [], text)


def device_passes(text: str) -> str:
    """The passes from GPU dialects to NVVM for one module, after the transform that the text brings along.

    A memref of run-time extents keeps its descriptor.
    """
    first = "transform-interpreter," if "transform.with_named_sequence" in text else ""
    dynamic = re.search(r"gpu\.func[^{]*memref<[^>]*\?", text) is not None
    return f"{first}gpu.module(" + _DEVICE_PASSES.format(index=_INDEX_PASSES, bare=int(not dynamic)) + ")"


_FOREIGN = re.compile(r"(?:= |^ +)((?:nvgpu|gpu|memref|vector|arith|scf|math|linalg|affine|tensor)\.[\w.]+)[ (]", re.M)
"""Operations that are not of the dialects LLVM and NVVM."""


def lowered(text: str, *, where: str = "lowered(text)", debug: bool = False) -> str:
    """The one ``gpu.module`` of a text in the LLVM and NVVM dialects, as a module of its own.

    Args:
        text: a module that holds one ``gpu.module``.
        where: the public function, for errors.
        debug: keep locations.

    Raises:
        BackendError: the tools are missing, the text is refused, or it holds no or several GPU modules.
    """
    count = len(re.findall(r"^\s*gpu\.module\s+@", text, re.M))
    if count != 1:
        raise BackendError(where, f"the text has {count} GPU modules", legal="one gpu.module @name { .. }")
    out = opt(text, device_passes(text), where=where, debug=debug)
    found = re.search(r"^( *)gpu\.module @\w+[^\n]*\{\n(.*?)^\1\}[^\n]*$", out, re.S | re.M)
    if found is None:
        raise BackendError(where, "mlir-opt printed no GPU module", facts={"source": text, "log": out})
    left = sorted(set(_FOREIGN.findall(found[2])))
    if left:
        raise BackendError(where, f"mlir-opt lowers no {', '.join(left)}", facts={"source": text, "log": out})
    names = "\n".join(re.findall(r"^#\w+ = .*$", out, re.M))
    return _readable(f"{names}\nmodule {{\n{found[2]}}}\n")


def _readable(module: str) -> str:
    """A printed module without the locations of barriers of a part of a block, which the parser takes for something."""
    return re.sub(r"(nvvm\.barrier id = \S+ number_of_threads = \S+) loc\(#\w+\)", r"\1", module)


def translated(module: str, edits: Sequence[tuple[str, str]] = (), *, where: str = "translated(module)") -> str:
    """The LLVM IR of a module in the LLVM dialect, with line numbers.

    Args:
        module: what `lowered` returns, with locations.
        edits: regular expressions and what replaces them, before.
        where: the public function, for errors.
    """
    for pattern, replacement in edits:
        module = re.sub(pattern, replacement, module, flags=re.M)
    scope = "ensure-debug-info-scope-on-llvm-func{emission-kind=LineTablesOnly}"
    module = _readable(opt(module, scope, where=where, debug=True))
    return _call(where, "mlir-translate", ["--mlir-to-llvmir"], module)


@cache
def _device_library() -> Path | None:
    """CUDA's library of mathematical functions as LLVM bitcode, beside nvcc; None where there is none."""
    nvcc = shutil.which("nvcc")
    roots = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    roots += [Path(nvcc).resolve().parents[1]] if nvcc else []
    found = (root / "nvvm" / "libdevice" / "libdevice.10.bc" for root in roots)
    return next((path for path in found if path.is_file()), None)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A text lowered for an architecture.

    Args:
        arch: the architecture.
        ptx: the assembly.
        cubin: the machine code; empty where there is no ptxas.
        log: what ptxas says of registers and spills.
    """

    arch: str
    ptx: str
    cubin: bytes
    log: str

    @property
    def registers(self) -> int:
        """Registers of a thread, the largest of all kernels; 0 without ptxas."""
        return max((int(n) for n in re.findall(r"Used (\d+) registers", self.log)), default=0)

    @property
    def spills(self) -> int:
        """Bytes that registers spill, of all kernels."""
        return sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", self.log))


def assemble(text: str, arch: str = "sm_80") -> Assembled:
    """PTX of the kernels of a text and, where ptxas is on PATH, machine code; no device is needed.

    Args:
        text: a module that holds one ``gpu.module``.
        arch: ``sm_80``, ``sm_90a``, and so on.

    Raises:
        BackendError: the architecture is unknown, tools are missing, or one of them refuses the text.
    """
    where = "assemble(text, arch)"
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", arch) if isinstance(arch, str) else None
    if match is None or int(match[1]) not in _FEATURES:
        raise BackendError(where, f"unknown architecture {arch!r}", legal=", ".join(f"sm_{n}" for n in _FEATURES))
    library = _device_library() if re.search(r"\bmath\.", text) else None
    linked = f" l={library}" if library else ""
    target = f"nvvm-attach-target{{chip={arch} features={_FEATURES[int(match[1])]} O=3{linked}}}"
    out = opt(text, target, device_passes(text), "gpu-module-to-binary{format=isa}", where=where)
    found = re.search(r'assembly = "((?:[^"\\]|\\.)*)"', out)
    if found is None:
        raise BackendError(where, "mlir-opt printed no assembly", facts={"source": text, "log": out})
    ptx = re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), found[1]).replace("\\\\", "\\").rstrip("\0")
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return Assembled(arch, ptx, b"", "")
    with folders.scratch() as folder:
        source, target_file = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        done = subprocess.run(
            [ptxas, f"-arch={arch}", "-v", str(source), "-o", str(target_file)],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            inputs = {"log": done.stderr[:500]}
            raise BackendError(
                where, f"ptxas does not accept the text for {arch}", inputs=inputs, facts={"source": ptx}
            )
        return Assembled(arch, ptx, target_file.read_bytes(), done.stderr)
