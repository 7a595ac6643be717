"""Calls of kernels on known arrays, run by one native loop: no Python between two kernels.

Each call has an environment of its own, which names its operands; all calls of a list share one working memory, since
they run one after the other.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import host
from tileweave.backends.host import Block, address_of

__all__ = ["Bound", "NativeCalls"]

Array = np.ndarray[Any, Any]
_WORD = struct.Struct("=q")

_SOURCE = """
define void @run(ptr %calls, i64 %count) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %each, label %done
each:
  %k = phi i64 [ 0, %entry ], [ %next, %each ]
  %at = getelementptr { ptr, ptr }, ptr %calls, i64 %k
  %function = load ptr, ptr %at, align 8
  %at.env = getelementptr i8, ptr %at, i64 8
  %env = load ptr, ptr %at.env, align 8
  call void %function(ptr %env)
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %each, label %done
done:
  ret void
}
"""


@functools.cache
def _code() -> Code:
    return compile_ir(_SOURCE, ("run",), host())


class Bound:
    """A kernel with its environment.

    Args:
        entry: the kernel as ctypes calls it, which keeps the code.
        env_bytes: of the environment.
        work_bytes: of the working memory that it needs.
        positions: where the environment names each operand, in bytes.
    """

    def __init__(self, entry: Any, env_bytes: int, work_bytes: int, positions: Sequence[int]) -> None:
        self.entry = entry
        self.work_bytes = work_bytes
        self.env = ctypes.create_string_buffer(env_bytes + 64)
        self._shift = -ctypes.addressof(self.env) % 64
        self.env = (ctypes.c_char * env_bytes).from_buffer(self.env, self._shift)
        self.address = ctypes.addressof(self.env)
        self.positions = tuple(positions)
        self.place: Callable[[int], None] = lambda memory: None
        """Writes where the working memory begins."""

    def write(self, position: int, value: int) -> None:
        """Write a word of the environment."""
        _WORD.pack_into(self.env, position, value)


class BindsArrays(Protocol):
    """A kernel of this backend."""

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The kernel on these arrays."""


class NativeCalls:
    """Prepared calls; see `tileweave.backends.base.Calls`."""

    def __init__(self) -> None:
        self._bound: list[Bound] = []
        self._memory: Block | None = None

    def add(self, kernel: BindsArrays, arrays: Sequence[Array]) -> int:
        """A call, by number; the arrays are checked."""
        bound = kernel.bind(arrays)
        self._bound.append(bound)
        if self._memory is None or self._memory.size < bound.work_bytes:
            self._memory = Block(max(4096, -(-bound.work_bytes // 4096) * 4096))
            for earlier in self._bound:
                earlier.place(self._memory.address)
        else:
            bound.place(self._memory.address)
        return len(self._bound) - 1

    def point(self, call: int, position: int, array: Array) -> None:
        """Another array for one operand."""
        bound = self._bound[call]
        _WORD.pack_into(bound.env, bound.positions[position], address_of(array))

    def sequence(self, calls: Sequence[int]) -> Callable[[], object]:
        """A function that runs these calls in one native loop."""
        chosen = [self._bound[call] for call in calls]
        if len(chosen) == 1:
            entry, address = chosen[0].entry, chosen[0].address

            def one(_kept: object = (chosen, self)) -> None:
                entry(address)

            return one
        code = _code()
        run = code.function("run", None, ctypes.c_void_p, ctypes.c_int64)
        words = [word for bound in chosen for word in (bound.entry.code.addresses["entry"], bound.address)]
        table = (ctypes.c_int64 * len(words))(*words)
        where, count = ctypes.addressof(table), len(chosen)

        def call(_kept: object = (table, chosen, self)) -> None:
            run(where, count)

        return call
