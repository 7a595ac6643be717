"""The tasks of an executable as a table: who reads whose block, what kernels compute, what is done once, what sweeps.

A plan of many tasks has few kinds of them (`planner.tasks.TaskColumns`). What is decided here is decided of a kind,
from one of its tasks; arrays are by the number of a task.

Source: own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from tileweave.graph import Operation, Sink, Source
from tileweave.kept import cached_property
from tileweave.lower.reads import is_call, is_native, never_written
from tileweave.lower.sweeps import find as sweeps
from tileweave.lower.sweeps.fields import Sweep
from tileweave.lower.values import Home
from tileweave.planner.placement import IntArray
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Read, ReadPiece, Task, TaskColumns, kinds_of

Array = np.ndarray[Any, Any]
FIXED_BYTES = 1 << 20
"""What is computed once from constants and kept may be this large, or as large as what it is computed from."""


class TaskTable:
    """Tasks in columns.

    Args:
        steps: of the plan.
        tasks: all of them, in their order.
        sinks: the numbers of the results.
        sources: an array per source that lies as it will.
        constant: the sources that are the same array in every run.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        tasks: Sequence[Task],
        sinks: Mapping[Sink, int],
        sources: Mapping[Source, Array],
        constant: Collection[Source],
    ) -> None:
        self.steps, self.tasks, self.sinks, self.count = steps, tasks, sinks, len(tasks)
        self.kinds = kinds = kinds_of(tasks)
        self._still = {source for source in constant if never_written(sources[source])}
        self.kind_of: IntArray = np.arange(self.count)
        """Which of the kinds each task is of: of its own where there are as many, which are in the order of tasks."""
        self.row = np.zeros(self.count, np.int64)
        """Which of the rows of its kind each task is."""
        if len(kinds) < self.count:
            lengths = np.array(list(map(len, kinds)), np.int64)
            numbers = joined(kind.numbers for kind in kinds)
            self.kind_of[numbers] = np.repeat(np.arange(len(kinds)), lengths)
            self.row[numbers] = np.arange(self.count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        pieces = [(kind, piece) for kind in kinds for read in kind.reads for piece in read.pieces]
        reader, made = joined(kind.numbers for kind, _ in pieces), joined(piece.tasks for _, piece in pieces)
        self.reader, self.made = reader[made >= 0], made[made >= 0]
        """Per piece of a block that is read, who reads it and who makes it."""
        self.readers = np.bincount(self.made, minlength=self.count)
        """How many pieces of each block are read."""
        own = [self.step(kind) for kind in kinds]
        self.makes = self._of_kinds([step.stage != "store" for step in own])
        """Whether tasks make a block."""
        stored = self._stored()
        self.fixed = self._of_kinds(self._done_once(stored))
        """Whether tasks are done once."""
        compiled = [
            is_native(step, kind.sample) or is_call(step, kind.sample) for step, kind in zip(own, kinds, strict=True)
        ]
        self.native = self._of_kinds(compiled) & ~self.fixed
        """Whether a backend's code computes tasks in every run."""
        self.in_results = [(numbers[~self.fixed[numbers]], home) for numbers, home in stored]
        """Tasks whose block is a part of a result as it is, with where it lies there."""
        self.sweeps = self._find_sweeps()
        """By the numbers of their tasks; a sweep runs in the place of its last task."""
        self.each_sweep = [sweep for number, sweep in sorted(self.sweeps.items()) if sweep.numbers[0] == number]

    def step(self, kind: TaskColumns) -> Step:
        """The step of a kind."""
        return self.steps[kind.sample.step]

    def kind(self, number: int) -> TaskColumns:
        """The kind of a task."""
        return self.kinds[int(self.kind_of[number])]

    def _of_kinds(self, values: Sequence[bool]) -> Array:
        """What is said of each kind, by task."""
        return np.array(values, bool)[self.kind_of]

    def _stored(self) -> list[tuple[IntArray, Home]]:
        """Tasks whose block is a part of a result as it is."""
        found = []
        for kind in self.kinds:
            node = self.step(kind).node
            if not isinstance(node, Sink):
                continue
            whole = node.tensor.type.box
            for piece, column in zip(kind.sample.reads[0].pieces, kind.reads[0].pieces, strict=True):
                complete = piece.task >= 0 and piece.region.shape == piece.block.shape
                if complete and piece.in_order and len(self.kind(piece.task).sample.outs) == 1:
                    hold = piece.map.cover(whole)
                    if hold.size == whole.size:  # else a dimension of the result is none of the block's
                        numbers = column.tasks[(column.regions == column.blocks).all(1)]
                        found.append((once(numbers), Home(-1, self.sinks[node], hold, node.tensor.dtype)))
        return found

    def _done_once(self, stored: Sequence[tuple[IntArray, Home]]) -> list[bool]:
        """Per kind whether its step depends on constants alone, and does more than to make a result: it is done once.

        A source is constant where nothing is bound to it and nothing writes to its array, as to the weights of a model.
        """
        result = np.zeros(self.count, bool)
        for numbers, _ in stored:
            result[numbers] = True
        only, varies = result & (self.readers == 1), set[int]()

        def differs(piece: ReadPiece) -> bool:
            return self.kind(piece.task).sample.step in varies if piece.task >= 0 else not self.still(piece)

        def too_large(kind: TaskColumns) -> bool:
            step, sample = self.step(kind), kind.sample
            types = cast("Operation", step.node).output_types
            made = zip(step.outputs, sample.outs, strict=True)
            kept = sum(out.size * types[name].dtype.itemsize for name, out in made)
            return kept > max(sum(read.size_bytes for read in sample.reads), FIXED_BYTES)

        before = -1
        while before < len(varies):
            before = len(varies)
            for kind in self.kinds:
                if kind.sample.step not in varies and (
                    self.step(kind).stage == "store"
                    or any(map(differs, pieces_of(kind.sample)))
                    or only[kind.numbers].any()
                    or too_large(kind)
                ):
                    varies.add(kind.sample.step)
        return [kind.sample.step not in varies for kind in self.kinds]

    def never_changes(self, read: Read) -> bool:
        """Whether what is read is the same in every run."""
        return all(self.fixed[one.task] if one.task >= 0 else self.still(one) for one in read.pieces)

    def still(self, piece: ReadPiece) -> bool:
        """Whether a piece of no block is the same in every run."""
        return piece.constant or piece.source in self._still

    def _find_sweeps(self) -> dict[int, Sweep]:
        whole = [kind.sample for kind in self.kinds if self.step(kind).cuts.count == 1]
        whole = [task for task in whole if self.native[task.number]]
        if len(whole) < 2:
            return {}
        placed, idle = np.zeros(self.count, bool), self.fixed.copy()
        for numbers, _ in self.in_results:
            placed[numbers] = True
        for kind in self.kinds:
            if self.step(kind).stage == "store":
                made = [piece.tasks for piece in kind.reads[0].pieces]
                idle[kind.numbers] = np.all([(one >= 0) & placed[one] for one in made], 0)
        in_results = set(np.flatnonzero(placed).tolist())
        found = sweeps.find(self.steps, whole, np.flatnonzero(~idle).tolist(), self.readers_of, in_results)
        return {number: sweep for sweep in found for number in sweep.numbers}

    @cached_property
    def _by_block(self) -> tuple[IntArray, IntArray]:
        order = np.argsort(self.made, kind="stable")
        return self.made[order], self.reader[order]

    def readers_of(self, number: int) -> set[int]:
        """The tasks that read a block."""
        made, reader = self._by_block
        return set(reader[np.searchsorted(made, number) : np.searchsorted(made, number, "right")].tolist())


def joined(columns: Iterable[IntArray]) -> IntArray:
    """One column behind the other."""
    return np.concatenate([np.zeros(0, np.int64), *columns])


def once(numbers: IntArray) -> IntArray:
    """Each of some numbers once, in order."""
    return numbers if len(numbers) < 2 else np.unique(numbers)


def pieces_of(task: Task) -> list[ReadPiece]:
    """All that a task reads."""
    return [piece for read in task.reads for piece in read.pieces]
