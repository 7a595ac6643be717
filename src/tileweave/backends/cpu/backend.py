"""The CPU backend as a value of the protocol: which programs it takes, and how they become kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from tileweave.backends import host
from tileweave.backends.base import ELEMENTS, Decision, primitives_text
from tileweave.backends.cpu.indexed.table import CALLS
from tileweave.backends.cpu.kernel import CpuKernel, compile
from tileweave.backends.cpu.moves import Move, movable
from tileweave.backends.cpu.target.calls import NativeCalls
from tileweave.backends.cpu.tuning import Tuned, tune
from tileweave.teir.ir.dtypes import FACTORS
from tileweave.teir.ir.program import Program

Array = np.ndarray[Any, Any]
_ALWAYS = frozenset(("Contraction", "Copy"))
"""What is compiled at any size: contractions, and the rearrangements that einsums ask for."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Native code through LLVM for every program that is large enough to be worth it."""

    name: str = "cpu"
    by_kind: Literal[True] = True

    def supports(self, program: Program) -> Decision:
        """Contractions and copies of any size; everything else from `ELEMENTS` on."""
        elements = prod(axis.extent for axis in program.axes)
        if elements < ELEMENTS and _ALWAYS.isdisjoint(primitive.operation for primitive in program.primitives):
            return Decision("", f"{elements} elements: compiling pays from {ELEMENTS} on")
        return self.supports_small(program)

    def supports_small(self, program: Program) -> Decision:
        """Every program but products of floats of 8 bits."""
        factor = next((spec.dtype for spec in program.tensors if spec.dtype in FACTORS), None)
        if factor is not None:
            return Decision("", f"no code reads {factor}")
        return Decision(primitives_text(program), "native code through LLVM", self.name)

    def compile(self, program: Program, *, threads: int | None = None, merge: bool = True) -> CpuKernel:
        """The program as native code."""
        return compile(program, threads=threads, merge=merge, wait=False)

    def compile_constant(self, program: Program, constant: Collection[str], *, threads: int | None = None) -> CpuKernel:
        """The program as native code that reads constant tensors in an order of its own: see `CpuKernel.arranged`."""
        return compile(program, threads=threads, constant=constant, wait=False)

    def mover(self, source: Array, out: Array, threads: int) -> Move | None:
        """What copies arrays of these layouts among the calls of kernels; None where there is no code for it."""
        return Move(threads) if movable(source, out) else None

    def caller(self, operator: str, how: Mapping[str, Any], arrays: Sequence[Array], threads: int) -> Any | None:
        """What computes an operator without a program among the calls of kernels; None: there is no code for it."""
        made = CALLS.get(operator)
        return made(operator, how, arrays, threads) if made is not None else None

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Callable[[], Array]:
        """Arrays that begin with a cache line where they are large."""
        return host.allocation(shape, dtype)

    def calls(self) -> NativeCalls:
        """Calls that are run by one native loop."""
        return NativeCalls()

    def tune(self, program: Program, *, threads: int | None = None, **limits: Any) -> Tuned:
        """Schedules and settings, timed."""
        return tune(program, threads=threads, **limits)


BACKEND = Cpu()
