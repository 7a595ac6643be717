"""Which bytes a program writes, and whether it reads any that it has not: by running it on flags instead of values.

Both answers follow the program's order of execution, so they enumerate every step; programs beyond the bound are
`Undecided`.

Source: own; TEIR leaves these questions to the emitter (sections 10.2.1 and 10.2.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from random import Random

import numpy as np
from numpy.typing import NDArray

from tileweave.errors import Undecided, VerifyError
from tileweave.teir.analysis.analyse import accesses, byte_bounds
from tileweave.teir.analysis.interpret import Memory, Run
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.primitives import OperationSpec
from tileweave.teir.ir.program import Id, Program
from tileweave.teir.ir.verify import Problem, verify

__all__ = ["BYTE_LIMIT", "STEP_LIMIT", "uninitialised", "unwritten"]

STEP_LIMIT = 2_000_000
"""Scalar steps that are enumerated at most."""

BYTE_LIMIT = 1 << 30
"""Bytes of all tensors together, from the first to the last that is touched, for which a flag is kept at most."""

HELD, WRITTEN = 1, 2


def uninitialised(program: Program, limit: int = STEP_LIMIT) -> Problem | None:
    """The first node that reads a byte of an ``out`` or scratch tensor which nothing has written, or None.

    A caller whose output holds a value (``C += A B``) says so by the role ``inout``.

    Args:
        program: well formed.
        limit: of the steps.

    Raises:
        VerifyError: the program is not well formed.
        Undecided: the program takes more steps, or reaches over more than `BYTE_LIMIT`.

    Example:
        >>> from dataclasses import replace
        >>> from tileweave.teir import examples
        >>> program = examples.contraction_gemm(dict.fromkeys("pqrstu", 2))
        >>> uninitialised(program) is None
        True
        >>> print(uninitialised(replace(program, nodes=tuple(
        ...     replace(n, children=("t",)) if n.id == "r" else n for n in program.nodes if n.id != "zero"))))
        [output.initialised] node 'gemm': it reads byte 0 of 'out' before anything writes it
    """
    return _Flags(program, limit).first_problem()


def unwritten(program: Program, tensor: str, elements: Iterable[int], limit: int = STEP_LIMIT) -> tuple[int, ...]:
    """The elements of a tensor that the program does not write whole: the gaps that its tiles leave.

    Args:
        program: well formed.
        tensor: its name.
        elements: the byte of every element that should be written, relative to the base.
        limit: of the steps.

    Raises:
        VerifyError: the program is not well formed, or has no such tensor.
        Undecided: the program takes more steps, or reaches over more than `BYTE_LIMIT`.

    Example:
        >>> from tileweave.teir import examples
        >>> unwritten(examples.branching({"r": 2, "s": 1, "t": 2}), "out", range(0, 32, 4))
        (24, 28)
    """
    verify(program)
    spec = next((spec for spec in program.tensors if spec.name == tensor), None)
    if spec is None:
        facts = {"rule": "unwritten.tensor", "path": f"tensor {tensor!r}"}
        legal = ", ".join(spec.name for spec in program.tensors)
        raise VerifyError("unwritten(program, tensor, ..)", f"there is no tensor {tensor!r}", legal=legal, facts=facts)
    flags = _Flags(program, limit)
    flags.first_problem()
    written, width = flags.written[tensor], width_bytes(spec.dtype)

    def whole(element: int) -> bool:
        start = element + written.base
        cells = written.data[max(start, 0) : max(start + width, 0)]
        return start >= 0 and len(cells) == width and bool((cells == WRITTEN).all())

    return tuple(element for element in elements if not whole(element))


class _Flags:
    """A run whose memories hold, per byte, whether it holds a value and whether the program wrote it."""

    def __init__(self, program: Program, limit: int) -> None:
        verify(program)
        steps = sum(prod(high - low + 1 for _, (_, low, high) in access.terms) for access in accesses(program))
        if steps > limit:
            raise Undecided(
                "uninitialised(program)", f"the program takes {steps} steps, more than {limit}", facts={"bound": limit}
            )
        bounds = byte_bounds(program)
        reached = sum(high - low for low, high in bounds.values())
        if reached > BYTE_LIMIT:
            problem = f"the program reaches over {reached} bytes, more than {BYTE_LIMIT}"
            raise Undecided("uninitialised(program)", problem, facts={"bound": BYTE_LIMIT})
        self.program = program
        self.written: dict[str, Memory] = {}
        for spec in program.tensors:
            low, high = bounds.get(spec.name, (0, 0))
            holds = HELD if spec.role in ("in", "inout") else 0
            self.written[spec.name] = Memory(np.full(high - low, holds, np.uint8), -low, None)
        self.widths = {spec.name: width_bytes(spec.dtype) for spec in program.tensors}
        self.problem: Problem | None = None

    def first_problem(self) -> Problem | None:
        Run(self.program, self.written, "forward", Random(0)).forest(self.apply)
        return self.problem

    def apply(self, node: Id, spec: OperationSpec, names: tuple[str, ...], addresses: list[NDArray[np.int64]]) -> None:
        reads = names if spec.reads_output else names[:-1]
        cells = [at[..., None] + np.arange(self.widths[name]) for name, at in zip(names, addresses, strict=True)]
        for name, at in zip(reads, cells, strict=False):
            held = self.written[name].data[at]
            if self.problem is None and not held.all():
                byte = int(at[held == 0][0]) - self.written[name].base
                message = f"it reads byte {byte} of {name!r} before anything writes it"
                self.problem = Problem("output.initialised", f"node {node!r}", message, "a Zero or a Copy before it")
        self.written[names[-1]].data[cells[-1]] = WRITTEN
