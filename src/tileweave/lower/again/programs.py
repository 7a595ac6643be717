"""The kernels of a task for operands of any extents: the code that served before, with the sizes that follow.

Source: own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tileweave.backends.base import Compiled, backend
from tileweave.kept import keep_last
from tileweave.lower.emitted import OperandView, RecordedProgram, emitted, recorded
from tileweave.lower.execute import compiled_program
from tileweave.lower.programs import ProgramKind

Lie = tuple[np.dtype[Any], tuple[int, ...], tuple[int, ...]]
"""How an operand lies: its type, extents, and bytes between neighbours."""
KEPT = 8
"""How many patterns of extents of 1 and strides of 0 a step knows programs for, and how many for each."""


@dataclass(frozen=True, slots=True, eq=False)
class StepPrograms:
    """The programs of a step, for operands of any extents.

    Args:
        kind: of the programs, for some extents.
        constants: where the constants of the kind are found in a form, which may come from extents.
        operands: the names of the reads in the order of the program's tensors; that of the result is empty.
        constant: names of the reads that never change.
        known: for threads and pattern, programs as they follow from operands, each with a kernel of its kind.
    """

    kind: ProgramKind
    constants: tuple[int, ...]
    operands: tuple[str, ...]
    constant: frozenset[str]
    known: dict[Hashable, list[tuple[RecordedProgram, Any]]] = field(default_factory=dict)

    def kernel(
        self, by: str, constants: Sequence[float], reads: Sequence[Lie], out: Lie, threads: int, *, soon: bool
    ) -> Compiled | None:
        """The kernel of a backend for operands, in the order of the reads, and a result that lie so; a slower one, too,
        where it is wanted ``soon`` (`tileweave.backends.base.Resizable.resized`)."""
        pattern: list[Hashable] = [threads]
        numbers: list[float] = [*constants]
        for dtype, shape, strides in (*reads, out):
            pattern += [dtype, *[n == 1 for n in shape], *[not s for s in strides]]
            numbers += [n for n in shape if n != 1]
            numbers += [s for s in strides if s]
        key = tuple(pattern)
        for program, like in tuple(self.known.get(key, ())):
            sizes = program.sizes.of(numbers)
            if sizes is not None:
                found: Compiled | None = like.numbered(sizes, soon=soon)
                if found is not None:
                    return found
                break
        return self._made(by, key, constants, reads, out, threads)

    def _made(
        self, by: str, key: Hashable, constants: Sequence[float], reads: Sequence[Lie], out: Lie, threads: int
    ) -> Compiled:
        """The same by way of the program."""
        views = {name: OperandView(*lie) for name, lie in zip(self.kind.names, reads, strict=True)}
        kind, made = self.kind.with_numbers(list(constants)), OperandView(*out)
        program = emitted(kind, views, made)
        specs = [spec for spec in program.tensors if spec.role != "scratch"]
        named = frozenset(
            spec.name for spec, name in zip(specs, self.operands, strict=True) if name and name in self.constant
        )
        kernel: Any = compiled_program(backend(by), program, threads, named)
        like = recorded(kind, views, made)
        if like is not None and getattr(kernel, "in_kind", False) and (not named or kernel.arranges):
            others = [one for one in self.known.pop(key, ()) if one[0] is not like]
            self.known[key] = [(like, kernel), *others[: KEPT - 1]]
            keep_last(self.known, KEPT)
        return cast("Compiled", kernel)
