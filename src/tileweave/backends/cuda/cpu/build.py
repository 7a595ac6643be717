"""g++ on the runtime and on translated programs; the runtime is built once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tileweave.backends import folders
from tileweave.backends.cache import cache_directory, touch
from tileweave.backends.cuda.cpu import instructions  # noqa: F401  (registers what each instruction calls)
from tileweave.backends.cuda.cpu.source import PLAIN, Translation, translate
from tileweave.errors import BackendError
from tileweave.kernel.atoms import atom

_RUNTIME = Path(__file__).parent / "runtime"
INCLUDE = _RUNTIME / "include"
# addr2line of binutils 2.40 takes the wrong file from tables of DWARF 5: version 4.
# Kernels read registers through wider types, as compilers for devices allow.
_FLAGS = (
    "-std=c++17",
    "-fno-strict-aliasing",
    "-g1",
    "-gdwarf-4",
    "-fPIC",
    "-w",
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
)
# Faults are traced through the runtime to the line of the program by frame pointers.
_RUNTIME_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fno-omit-frame-pointer")
# Locals begin with a pattern: a value that was never set shows.
_FAST = ("-O2", "-ftrivial-auto-var-init=pattern", "-fsanitize=alignment")
_PLAIN = ("-O0", *_FAST[1:])
# The checker sees what these functions of the C library touch.
_MOVES = ("memcpy", "memmove", "memset")
_CHECKED = (
    "-O1", "-ftrivial-auto-var-init=pattern", "-fsanitize=thread,alignment,bounds", "--param",
    "tsan-distinguish-volatile=1", "-fno-inline-small-functions",
    *(f"-fno-builtin-{name}" for name in _MOVES),
)  # fmt: skip
_COMPILE_SECONDS = 300


def compiler() -> str:
    """The C++ compiler, ``TILEWEAVE_CXX`` or g++.

    Raises:
        BackendError: there is none.
    """
    found = shutil.which(os.environ.get("TILEWEAVE_CXX", "g++"))
    if found is None:
        raise BackendError(
            "run(text, .., on='cpu')", "g++ is not on PATH", legal="install g++, or name one in TILEWEAVE_CXX"
        )
    return found


def _call(command: Sequence[str], what: str, source: str = "") -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_COMPILE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BackendError(
            what, f"the compiler took more than {_COMPILE_SECONDS} s", facts={"source": source}
        ) from None
    if done.returncode:
        errors = [
            line for line in done.stderr.splitlines() if "error" in line or "undefined" in line
        ] or done.stderr.splitlines()
        shown = "\n".join(errors[:8])
        raise BackendError(
            what, "g++ does not accept the text", inputs={"log": shown}, facts={"source": source, "log": done.stderr}
        )
    return done.stdout


def _map_rules() -> str:
    """The rules of tensor maps as a C++ function that returns the name of the first broken one."""
    row = atom("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes")
    lines = []
    for rule in row.legal:
        if "address" in rule.condition or "expected" in rule.condition:
            continue  # rules of the copy, not of the map
        over = rule.over or "1"
        lines.append(f'  for (uint64_t i = 0; i < {over}; i++) if (!({rule.condition})) return "{rule.name}";')
    arguments = (
        "uint64_t rank, uint64_t base, const uint64_t* dim, const uint64_t* stride, const uint32_t* box, "
        "const uint32_t* element_stride, uint64_t bytes, uint64_t swizzle"
    )
    return f"static const char* tw_map_rule({arguments}) {{\n" + "\n".join(lines) + "\n  return nullptr;\n}\n"


@cache
def runtime_library() -> Path:
    """The runtime as a shared library, built on first use and kept in the cache folder.

    Where that folder cannot be written it is built once more by every process, in a folder that goes with the process.
    """
    sources = sorted(_RUNTIME.glob("*.cpp"))
    rules = _map_rules()
    digest = hashlib.sha256(repr((rules, compiler(), _RUNTIME_FLAGS)).encode())
    for path in sorted([*sources, *_RUNTIME.glob("*.h"), *INCLUDE.rglob("*.h")]):
        digest.update(path.read_bytes())
    target = cache_directory() / "cuda" / f"libtileweave-{digest.hexdigest()[:16]}.so"
    if target.exists():
        touch(target)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = (target.parent / "lock").open("w")
    except OSError:
        target = Path(_own_folder().name) / target.name
        _build_runtime(sources, rules, target)
        return target
    with lock:  # one process builds, the others wait for it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _build_runtime(sources, rules, target)
    return target


@cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    return folders.scratch()  # removed when the interpreter ends


def _build_runtime(sources: Sequence[Path], rules: str, target: Path) -> None:
    with folders.scratch() as scratch:
        (Path(scratch) / "tileweave_rules.h").write_text(rules)
        running = []
        for source in sources:
            command = [compiler(), *_RUNTIME_FLAGS, "-I", scratch, "-I", str(INCLUDE), "-c", str(source)]
            running.append(
                subprocess.Popen([*command, "-o", f"{scratch}/{source.stem}.o"], stderr=subprocess.PIPE, text=True)
            )
        for process in running:
            log = process.communicate(timeout=_COMPILE_SECONDS)[1]
            if process.returncode:
                raise BackendError(
                    "run(text, .., on='cpu')", "g++ does not build the runtime", inputs={"log": log[:2000]}
                )
        built = f"{scratch}/lib.so"
        _call(
            [compiler(), "-shared", *(f"{scratch}/{s.stem}.o" for s in sources), "-o", built], "run(text, .., on='cpu')"
        )
        staged = target.with_suffix(f".{os.getpid()}")
        shutil.copy(built, staged)
        staged.replace(target)


def preprocess(source: Path, include: Sequence[str] = (), define: Sequence[str] = ()) -> str:
    """The source after ``#include`` and macros, with line markers."""
    command = [
        compiler(),
        "-E",
        "-x",
        "c++",
        "-std=c++17",
        "-D__CUDACC__=1",
        "-D__NVCC__=1",
        "-D__CUDA_ARCH__=900",
        "-Wno-builtin-macro-redefined",
    ]
    command += ["-isystem", str(INCLUDE), "-include", "cuda_runtime.h"]
    command += [f"-I{path}" for path in include] + [f"-D{name}" for name in define]
    try:
        return _call([*command, str(source)], "cuda check")
    except BackendError as error:
        missing = re.search(r"(\S+?:\d+):\d+: fatal error: (\S+): No such file", str(error.facts.get("log", "")))
        if missing is None:
            raise
        names = sorted(str(path.relative_to(INCLUDE)) for path in INCLUDE.rglob("*") if path.is_file())
        ours = ", ".join(name for name in names if not name.startswith("tileweave"))
        raise BackendError(
            "cuda check", f"no header {missing[2]}", inputs={"at": missing[1]}, legal=f"-I DIR, or one of {ours}",
            facts=error.facts,
        ) from None  # fmt: skip


def build_program(
    source: Path,
    folder: Path,
    *,
    instrumented: bool,
    optimise: bool = True,
    include: Sequence[str] = (),
    define: Sequence[str] = (),
    extra: Callable[[Translation], str] | None = None,
    objects: Sequence[Path] = (),
) -> tuple[Path, Translation]:
    """Compiles CUDA C++ against the runtime.

    Args:
        source: the file.
        folder: where the program and the translated text go.
        instrumented: whether every access of memory calls the checker.
        optimise: whether the compiler does, where it is not instrumented.
        include: more folders of headers.
        define: macros, ``NAME=VALUE``.
        extra: C++ that is added at the end, from what was translated: the main of a kernel on its own.
        objects: machine code to link.
    """
    text = preprocess(source, include, define)
    translation = translate(text, str(source))
    translated = folder / "translated.cpp"
    whole = translation.text + (f'# 1 "<launch>"\n{extra(translation)}\n' if extra else "")
    translated.write_text(re.sub(r"\bTW_PLAIN\b", PLAIN, whole), "utf-8", "surrogateescape")
    flags = [*_FLAGS, "-fpreprocessed", *(_CHECKED if instrumented else _FAST if optimise else _PLAIN)]
    if not instrumented and re.search(r"\bvolatile\b(?!\s*\()", source.read_text(errors="replace")):
        flags.append("-fsanitize-coverage=trace-pc")  # threads may spin on plain memory: they yield at branches
    threads = ["-fopenmp"] if re.search(r"#\s*pragma\s+omp\b|<omp\.h>", source.read_text(errors="replace")) else []
    library = runtime_library()
    program, compiled = folder / "program", folder / "program.o"
    _call([compiler(), *flags, *threads, "-c", str(translated), "-o", str(compiled)], "cuda check", translation.text)
    linked = [str(compiled), *map(str, objects), str(library)]
    linked += [f"-Wl,--wrap={name}" for name in _MOVES] if instrumented else []
    try:
        _call(
            [compiler(), "-no-pie", *threads, *linked, f"-Wl,-rpath,{library.parent}", "-o", str(program)], "cuda check"
        )
    except BackendError as error:
        if "undefined reference to `main'" not in str(error.facts.get("log", "")):
            raise
        names = ", ".join(kernel.name for kernel in translation.kernels)
        legal = f"--launch GRID,BLOCK --arg NAME=VALUE for one of {names}" if names else "a whole program"
        raise BackendError(
            "cuda check", f"{source.name} has no main, and no kernel was asked for", legal=legal
        ) from None
    return program, translation
