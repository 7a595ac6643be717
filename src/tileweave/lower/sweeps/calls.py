"""The kernels of panels as calls: those of panels that lie alike differ in addresses alone.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from tileweave.backends.base import Arranged
from tileweave.backends.calls import AddsAlike, Calls
from tileweave.backends.host import address_of, owner
from tileweave.graph import Operation
from tileweave.lower.execute import is_small
from tileweave.lower.sweeps.panels import Made
from tileweave.lower.values import Slot, TaskKind, lies_as, task_kind
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Read

Array = np.ndarray[Any, Any]


class PanelCalls:
    """Adds the kernels of panels to the calls of their backends.

    Args:
        steps: of the plan.
        threads: that kernels may use.
        fixed: whether what is read is the same in every run.
    """

    def __init__(self, steps: Sequence[Step], threads: int, fixed: Callable[[Read], bool]) -> None:
        self._steps, self._threads, self._fixed = steps, threads, fixed
        self._known: dict[Any, tuple[TaskKind, int]] = {}  # how arrays lie -> the kernel, and its first call
        self._kept: dict[int, Array] = {}
        self._arranged: dict[Any, list[Array | None]] = {}  # constants as kernels read them

    @property
    def arranged_bytes(self) -> int:
        """The bytes of constants that kernels read in an order of their own."""
        return sum(array.nbytes for row in self._arranged.values() for array in row if array is not None)

    @property
    def kept(self) -> list[Array]:
        """What has to stay alive."""
        arranged = (array for row in self._arranged.values() for array in row if array is not None)
        return [*self._kept.values(), *arranged]

    def add(self, calls: Calls, made: Made) -> tuple[int, list[Array | Slot]]:
        """Adds the kernel of a panel: (the call, its operands)."""
        task, step, operands = made.task, self._steps[made.task.step], [*made.inputs, made.target]
        node, arrays = cast("Operation", step.node), [*map(lies_as, operands)]
        fixed = tuple(read.name for read in task.reads if len(read.pieces) == 1 and self._fixed(read))
        about = node.operator, node.parameters, step.kernel.backend, fixed, made.block.size, is_small(node, made.block)
        key = (*about, *((array.dtype, array.shape, array.strides) for array in arrays))
        kind, first = self._known.get(key, (None, -1))
        if kind is None:
            part = replace(task, index=made.block)
            kind = task_kind(part, step, arrays[:-1], arrays[-1], fixed, self._threads)
        given = [arrays[k] for k in kind.order]  # -1: what is made, which is the last
        if kind.arranges:
            given = self._constants(kind, given, {k for k, read in enumerate(task.reads) if read.name in fixed})
        call = None
        if first >= 0 and hasattr(calls, "add_like"):
            call = cast("AddsAlike", calls).add_like(first, list(map(address_of, given)))
        if call is None:
            call = calls.add(kind.kernel, given)
            self._known[key] = kind, call
        self._kept.update((id(one), one) for one in map(owner, arrays))
        return call, [operands[k] for k in kind.order]

    def _constants(self, kind: TaskKind, given: Sequence[Array], fixed: Collection[int]) -> list[Array]:
        """The arrays that a kernel runs on: some constants in an order of its own, made once for all panels."""
        key = id(kind.kernel), *(address_of(x) for x, k in zip(given, kind.order, strict=True) if k in fixed)
        if key not in self._arranged:
            made = cast("Arranged", kind.kernel).arranged(given)
            self._arranged[key] = [None if x is old else x for x, old in zip(made, given, strict=True)]
        return [old if x is None else x for x, old in zip(self._arranged[key], given, strict=True)]
