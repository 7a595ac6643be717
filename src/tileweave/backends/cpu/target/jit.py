"""Text IR to callable machine code, by way of an object file that may come from a cache on disk.

An object is found by the hash of all that shaped it: the text of the module, the processor, the versions of llvmlite
and of this package. A cache file says its own hash first, so a broken or foreign file is noticed, ignored and written
anew. Writers use a temporary file and ``os.replace``; readers see an old file, a new file, or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tileweave.backends.cpu.target.target import Target
from tileweave.errors import BackendError
from tileweave.version import __version__

__all__ = ["Code", "cache_directory", "compile_ir"]

_MAGIC = b"tileweave object 1\n"
_LOCK = threading.RLock()
_READY = False


@dataclass(frozen=True, slots=True)
class Code:
    """Machine code in memory. It stays for the life of the process: threads may be inside it.

    Args:
        source: the text IR.
        addresses: public function -> address.
        from_cache: whether the object was read from disk.
    """

    source: str
    addresses: dict[str, int]
    from_cache: bool


def cache_directory() -> Path:
    """Where objects are kept: ``TILEWEAVE_CACHE``, else ``~/.cache/tileweave``; asked at every compilation.

    For a user without a home it is a place that cannot exist, so that nothing is kept.
    """
    named = os.environ.get("TILEWEAVE_CACHE")
    if named:
        return Path(named)
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(os.devnull)
    return home / ".cache" / "tileweave"


def compile_ir(source: str, names: tuple[str, ...], target: Target, *, disk: bool = True) -> Code:
    """Machine code of a module.

    Args:
        source: the module as text.
        names: its public functions.
        target: the processor to compile for; it must be able to run here.
        disk: whether the object cache on disk is used.

    Raises:
        BackendError: LLVM refuses the module; ``source`` and ``log`` keep the evidence.
    """
    return _uninterrupted(lambda: _compiled(source, names, target, disk))


def _compiled(source: str, names: tuple[str, ...], target: Target, disk: bool) -> Code:
    with _LOCK:
        _initialise()
        file = _object_path(source, target) if disk else None
        stored = _read(file) if file else None
        if stored is not None:
            with contextlib.suppress(RuntimeError, BackendError):
                return Code(source, _link(stored, names, target, source), True)
        data = _assemble(source, target)
        if file:
            _write(file, data)
        return Code(source, _link(data, names, target, source), False)


def _uninterrupted(work: Callable[[], Code]) -> Code:
    """The result of some work, done where no KeyboardInterrupt lands: inside LLVM's clean-up it would free twice.

    Python interrupts its main thread only; that one waits here, and may be interrupted while the work goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: list[Code] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="tileweave-compile")
    try:
        thread.start()
    except RuntimeError:  # the process ends, or may have no more threads
        return work()
    thread.join()
    if failed:
        raise failed.pop()
    return done[0]


def _initialise() -> None:
    global _READY
    if not _READY:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        _READY = True


def _machine(target: Target) -> Any:
    import llvmlite.binding as llvm

    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="default", codemodel="jitdefault", jit=True
    )


def _assemble(source: str, target: Target) -> bytes:
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(source)
        module.verify()
        data: bytes = _machine(target).emit_object(module)
    except RuntimeError as error:
        raise BackendError(
            "compile_ir(source)",
            f"LLVM refuses the generated module: {' '.join(str(error).split())[:300]}",
            facts={"source": source, "log": str(error)},
        ) from None
    return data


def _link(data: bytes, names: tuple[str, ...], target: Target, source: str) -> dict[str, int]:
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    addresses = {name: engine.get_function_address(name) for name in names}
    if not all(addresses.values()):
        raise BackendError(
            "compile_ir(source)",
            f"the object lacks {', '.join(name for name, address in addresses.items() if not address)}",
            facts={"source": source, "log": ""},
        )
    engine.detach()  # never unmapped: a worker thread may be running in it when Python lets go
    return addresses


# ---- the cache on disk ------------------------------------------------------------------------------------------


def _object_path(source: str, target: Target) -> Path:
    import llvmlite
    import llvmlite.binding as llvm

    about = (source, target.cpu, target.features, llvmlite.__version__, str(llvm.llvm_version_info), __version__)
    digest = hashlib.sha256("\0".join(about).encode()).hexdigest()
    return cache_directory() / "cpu" / digest[:2] / f"{digest[2:]}.o"


def _read(file: Path) -> bytes | None:
    """The object in a cache file; None when there is none or it is not what was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC)
    digest, data = content[head : head + 32], content[head + 32 :]
    about = hashlib.sha256(file.name.encode() + data).digest()
    return data if content[:head] == _MAGIC and digest == about else None


def _write(file: Path, data: bytes) -> None:
    """Keep an object; a cache that cannot be written is no failure."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(_MAGIC + hashlib.sha256(file.name.encode() + data).digest() + data)
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError:
        return


if hasattr(os, "register_at_fork"):  # a child that begins inside a compilation could never compile
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
