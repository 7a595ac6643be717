"""Text IR to callable machine code, by way of an object file that may come from a cache on disk.

An object is found by the hash of all that shaped it: the text of the module, the processor, the versions of llvmlite
and of this package.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tileweave.backends import cache
from tileweave.backends.cpu.target.target import Target
from tileweave.errors import BackendError
from tileweave.version import __version__

_LOCK = threading.RLock()
_READY = False


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Code:
    """Machine code in memory, unmapped some time after nobody holds it: whoever may call it keeps it.

    Args:
        source: the text IR.
        addresses: public function -> address.
        from_cache: whether the object was read from disk.
    """

    source: str
    addresses: dict[str, int]
    from_cache: bool

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """A public function as ctypes calls it; while it lives or runs, the code is there."""
        made: Any = ctypes.CFUNCTYPE(result, *arguments)(self.addresses[name])
        made.code = self
        return made


_KEPT: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
"""Code that somebody holds, by the hash of all that shaped it: kernels of other sizes share it."""

_DROPPED: list[Any] = []
"""Engines whose code nobody holds. LLVM's clean-up must not be interrupted, so they wait for `release`."""


def release() -> None:
    """Unmap the code that nobody holds any more; every compilation begins with it."""
    _uninterrupted(_unmap)


def _unmap() -> None:
    with _LOCK:
        while _DROPPED:
            _DROPPED.pop().close()


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
    digest = _digest(source, target) if disk else ""
    code = _KEPT.get(digest)
    return code if code is not None else _uninterrupted(lambda: _compiled(source, names, target, digest))


def _compiled(source: str, names: tuple[str, ...], target: Target, digest: str) -> Code:
    with _LOCK:
        _initialise()
        _unmap()
        if not digest:
            return _link(_assemble(source, target), names, target, source, from_cache=False)
        code = _KEPT.get(digest)
        if code is None:
            code = _KEPT[digest] = _stored(source, names, target, digest)
        return code


def _stored(source: str, names: tuple[str, ...], target: Target, digest: str) -> Code:
    """Machine code by way of the object cache on disk."""
    file = cache.cache_directory() / "cpu" / digest[:2] / f"{digest[2:]}.o"
    stored = cache.read(file)
    if stored is not None:
        with contextlib.suppress(RuntimeError, BackendError):
            return _link(stored, names, target, source, from_cache=True)
    data = _assemble(source, target)
    cache.write(file, data)
    return _link(data, names, target, source, from_cache=False)


Made = TypeVar("Made")


def _uninterrupted(work: Callable[[], Made]) -> Made:
    """The result of some work, done where no KeyboardInterrupt lands: inside LLVM's clean-up it would free twice.

    Python interrupts its main thread only; that one waits here, and may be interrupted while the work goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: list[Made] = []
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


def _link(data: bytes, names: tuple[str, ...], target: Target, source: str, *, from_cache: bool) -> Code:
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
    code = Code(source, addresses, from_cache)
    # nothing is unmapped when the process ends: a thread may be in the code when Python lets go of it
    weakref.finalize(code, _DROPPED.append, engine).atexit = False
    return code


def _digest(source: str, target: Target) -> str:
    import llvmlite
    import llvmlite.binding as llvm

    about = (source, target.cpu, target.features, llvmlite.__version__, str(llvm.llvm_version_info), __version__)
    return hashlib.sha256("\0".join(about).encode()).hexdigest()


if hasattr(os, "register_at_fork"):  # a child that begins inside a compilation could never compile
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)
