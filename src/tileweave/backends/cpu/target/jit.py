"""Text IR to callable machine code, by way of an object file that may come from a cache on disk.

An object is found by the hash of all that shaped it: the text of the module, the processor, the versions of llvmlite
and of this package.

LLVM makes machine code beside what the caller does next: threads take the modules that were read, in their order, and
whoever wants an address waits, or makes the code itself where no thread has begun. A thread makes one native call per
module, since Python lets it go on between two calls only when it has let another thread compute for 5 ms.
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
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tileweave.backends import cache
from tileweave.backends.cpu.target.later import THREADS, later
from tileweave.backends.cpu.target.target import Target
from tileweave.errors import BackendError
from tileweave.version import __version__

_LOCK = threading.RLock()
_READY = False
_MAKING = threading.Semaphore(THREADS)
"""Held by each thread while LLVM makes code without `_LOCK`; a process forks when nobody holds it."""


@dataclass
class _Held:
    """What LLVM holds for some code: the module that was read, then the engine. Closed where no interrupt lands."""

    module: Any = None
    machine: Any = None
    engine: Any = None

    def close(self) -> None:
        """Free all of it."""
        for one in (self.engine, self.module, self.machine):
            if one is not None:
                one.close()
        self.engine = self.module = self.machine = None


class Code:
    """Machine code, unmapped some time after nobody holds it: whoever may call it keeps it.

    Args:
        source: the text IR.
        names: the public functions.
        target: the processor.
        file: where the object is kept; None: nowhere.
    """

    def __init__(self, source: str, names: tuple[str, ...], target: Target, file: Path | None) -> None:
        self.source = source
        self._names, self._target, self._file = names, target, file
        self._turn = threading.Lock()  # of the thread that makes it
        self._addresses: dict[str, int] = {}
        self._object = cache.read(file) if file is not None else None
        self._from_cache = self._object is not None
        self._held = _Held()
        # nothing is unmapped when the process ends: a thread may be in the code when Python lets go of it
        weakref.finalize(self, _DROPPED.append, self._held).atexit = False
        if self._object is None:
            _read(self._held, source, target)
            _PENDING.add(self)

    @property
    def addresses(self) -> dict[str, int]:
        """Public function -> address; waits for the code.

        Raises:
            BackendError: LLVM fails; ``source`` and ``log`` keep the evidence.
        """
        if not self._addresses:
            _uninterrupted(self._finish)
        return self._addresses

    @property
    def from_cache(self) -> bool:
        """Whether the object was read from disk."""
        return bool(self.addresses) and self._from_cache

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """A public function as ctypes calls it; while it lives or runs, the code is there."""
        made: Any = ctypes.CFUNCTYPE(result, *arguments)(self.addresses[name])
        made.code = self
        return made

    def make(self) -> bytes:
        """The object, which LLVM makes where that has not been done."""
        with self._turn:
            if self._object is None:
                self._object = _assemble(self._held, self.source, self._target)
            return self._object

    def abandon(self) -> None:
        """Forget that a thread may be making it: in a process that has none of its parent's threads."""
        self._turn = threading.Lock()

    def _finish(self) -> None:
        data = self.make()
        with self._turn, _LOCK:
            if self._addresses:
                return
            about = self._names, self._target, self.source
            if self._from_cache:
                with contextlib.suppress(RuntimeError, BackendError):
                    self._addresses = _link(self._held, data, *about)
            if not self._addresses:
                if self._from_cache:
                    self._from_cache, data = False, _assemble(self._held, self.source, self._target)
                self._addresses = _link(self._held, data, *about)
                if self._file is not None:
                    cache.write(self._file, data)
            self._object = b""  # linked
            _PENDING.discard(self)


_KEPT: weakref.WeakValueDictionary[str, Code] = weakref.WeakValueDictionary()
"""Code that somebody holds, by the hash of all that shaped it: kernels of other sizes share it."""

_PENDING: weakref.WeakSet[Code] = weakref.WeakSet()
"""Code that is being made, or waits for it."""

_DROPPED: list[_Held] = []
"""What LLVM holds for code that nobody holds. Its clean-up must not be interrupted, so they wait for `release`."""


def release() -> None:
    """Unmap the code that nobody holds any more; every compilation begins with it."""
    _uninterrupted(_unmap)


def _unmap() -> None:
    with _LOCK:
        while _DROPPED:
            _DROPPED.pop().close()


def compile_ir(source: str, names: tuple[str, ...], target: Target, *, disk: bool = True) -> Code:
    """Machine code of a module, which LLVM makes in other threads: what asks for its addresses waits.

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
        code = _KEPT.get(digest) if digest else None
        if code is None:
            file = cache.cache_directory() / "cpu" / digest[:2] / f"{digest[2:]}.o" if digest else None
            code = Code(source, names, target, file)
            if digest:
                _KEPT[digest] = code
            if code in _PENDING:
                later(partial(_make, weakref.ref(code)))
        return code


def _make(code: weakref.ref[Code]) -> None:
    wanted = code()
    if wanted is not None:
        wanted.make()


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


def _read(held: _Held, source: str, target: Target) -> None:
    """Read a module, in a context of its own: such modules may become code at the same time."""
    import llvmlite.binding as llvm

    try:
        held.module = llvm.parse_assembly(source, llvm.create_context())
        held.module.verify()
        held.machine = _machine(target)
    except RuntimeError as error:
        raise _refused(source, error) from None


def _assemble(held: _Held, source: str, target: Target) -> bytes:
    """The object of a module, which is read anew where it is none; the module is gone then."""
    from llvmlite.binding import ffi

    emit = ffi.lib.LLVMPY_TargetMachineEmitToMemory
    with _MAKING:
        try:
            if held.module is None:
                _read(held, source, target)
            with ffi.OutputString() as problem:
                # without the lock of llvmlite, which lets one thread of the process into LLVM at a time
                made = getattr(emit, "_cfn", emit)(held.machine, held.module, 1, problem)
                if not made:
                    raise _refused(source, problem)
            start, size = ffi.lib.LLVMPY_GetBufferStart(made), ffi.lib.LLVMPY_GetBufferSize(made)
            data: bytes = ctypes.string_at(start, size)
            ffi.lib.LLVMPY_DisposeMemoryBuffer(made)
            return data
        finally:
            held.close()


def _refused(source: str, why: object) -> BackendError:
    return BackendError(
        "compile_ir(source)",
        f"LLVM refuses the generated module: {' '.join(str(why).split())[:300]}",
        facts={"source": source, "log": str(why)},
    )


def _link(held: _Held, data: bytes, names: tuple[str, ...], target: Target, source: str) -> dict[str, int]:
    import llvmlite.binding as llvm

    engine = held.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    addresses = {name: engine.get_function_address(name) for name in names}
    if not all(addresses.values()):
        raise BackendError(
            "compile_ir(source)",
            f"the object lacks {', '.join(name for name, address in addresses.items() if not address)}",
            facts={"source": source, "log": ""},
        )
    return addresses


def _digest(source: str, target: Target) -> str:
    import llvmlite
    import llvmlite.binding as llvm

    about = (source, target.cpu, target.features, llvmlite.__version__, str(llvm.llvm_version_info), __version__)
    return hashlib.sha256("\0".join(about).encode()).hexdigest()


def _before_fork() -> None:
    _LOCK.acquire()
    for _ in range(THREADS):
        _MAKING.acquire()


def _after_fork_in_parent() -> None:
    _MAKING.release(THREADS)
    _LOCK.release()


def _after_fork_in_child() -> None:
    global _MAKING
    _MAKING = threading.Semaphore(THREADS)
    for code in list(_PENDING):  # a thread that is gone may have been about to make it
        code.abandon()
    _LOCK.release()


if hasattr(os, "register_at_fork"):  # a child that begins inside a compilation could never compile
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
