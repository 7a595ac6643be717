"""Kernels of a plan's tasks bound to their arrays: what a run does, and where everything lies.

Results in between lie in one arena, where those that are never alive together share bytes. Blocks of a tensor that are
read together lie together, and blocks of a result lie in the result, so that reading several is a slice and no copy.

The layout of every array is known beforehand: sources have the strides of the samples, everything else is row-major,
or a slice of what is row-major.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, cast

import numpy as np

from tileweave.backends.base import Arranged, Moves, backend
from tileweave.backends.calls import AddsAlike, Calls, Wanted
from tileweave.backends.host import address_of, owner
from tileweave.graph import Operation, Sink, Source
from tileweave.lower import actions
from tileweave.lower.actions import CallColumns, CallSegment, Found, WorkFailed
from tileweave.lower.execute import COPIES, Writes, combination, copy, definition, execute, regular
from tileweave.lower.reads import (
    block_bytes,
    call_of,
    constant,
    is_call,
    is_native,
    own,
    place,
    put_together,
    row_major,
    slices,
    updates,
    view_of,
)
from tileweave.lower.sweeps.calls import PanelCalls
from tileweave.lower.sweeps.panels import Made, SweepActions
from tileweave.lower.tasks.addresses import Addresses
from tileweave.lower.tasks.places import AlikeTasks, BlockPlaces
from tileweave.lower.tasks.table import TaskTable
from tileweave.lower.values import (
    Action,
    ArrayAccess,
    ArrayAccesses,
    Home,
    Slot,
    TaskKind,
    Values,
    as_in,
    in_python,
    lies_as,
    part_of,
    task_kind,
    untouched,
)
from tileweave.planner.placement import IntArray
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Read, ReadPiece, Task

Array = np.ndarray[Any, Any]
FEW = 4
"""So many tasks that lie alike are not worth columns of their own."""


class TaskBinding:
    """What a run of tasks does, found once; an `Executable` keeps the outcome, and all that led to it goes.

    Args:
        steps, tasks, sources, constant, sinks, threads, room_bytes: as `Executable`.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        tasks: Sequence[Task],
        sources: Mapping[Source, Array],
        constant: Collection[Source],
        sinks: Sequence[Sink],
        threads: int,
        room_bytes: int,
    ) -> None:
        self.steps, self.tasks, self.threads = steps, tasks, threads
        self.sources, self.constant = sources, constant
        self._slots = {source: number for number, source in enumerate(sources)}
        self.bound = tuple(number for number, source in enumerate(sources) if source not in constant)
        """The numbers of the sources that every run brings."""
        self._count, self.sinks = len(sources), {sink: number for number, sink in enumerate(sinks)}
        self._boxes = [sink.tensor.type.box for sink in sinks]  # of the results
        kinds = [sink.tensor.type for sink in sinks]
        self.results = [np.ndarray(k.shape, k.dtype, untouched(k.size_bytes)) for k in kinds]
        """Arrays that lie as the results do."""
        self.first_result = self._count + len(tasks)
        """The number of the first result among the values of a run: sources, blocks, results, further outputs."""
        self.found: list[Found] = []
        """What a run does, in its order."""
        self._segment, self._accesses = CallSegment(), ArrayAccesses()
        self.calls: dict[str, Calls] = {}
        """The prepared calls, by backend."""
        self._known: dict[Any, TaskKind] = {}
        self._alike: dict[Any, int] = {}  # how arrays lie -> the first call that copies one to the other
        self._outputs: dict[tuple[int, str], int] = {}  # (task that leaves a block of several, output) -> its value
        self._kept: dict[int, Array] = {}  # arrays that calls name, by identity; each has its own memory
        self.python_steps = self.kernels = self.combined = 0
        self.table = table = TaskTable(steps, tasks, self.sinks, sources, constant)
        self.places = BlockPlaces(table, sources, constant, room_bytes)
        self._addresses = Addresses(self.places, sources, [box.shape for box in self._boxes])
        self.fixed_blocks: dict[int, Any] = {}  # task -> its array, or its block of several outputs
        self._panels = PanelCalls(steps, threads, self.table.never_changes)
        self.arena_bytes = self.places.arena_bytes
        self.in_columns = self._add_all(self.places)
        """How many tasks are bound in columns."""
        self.arena_bytes += self._panels.arranged_bytes
        self.apart = self._accesses.apart(list(sources.values()), self.bound, self.results)
        """Of the arrays that a run brings and the results."""

    @property
    def kept(self) -> list[Array]:
        """What has to stay alive."""
        return [*self._kept.values(), *self._panels.kept]

    @property
    def fixed(self) -> int:
        """How many tasks were done once."""
        return len(self.fixed_blocks)

    @property
    def outputs(self) -> int:
        """How many outputs there are of blocks that have several."""
        return len(self._outputs)

    @property
    def gathered_bytes(self) -> IntArray:
        """What each task puts together to read it, by number."""
        return self.places.gathered_bytes

    def wanted(self) -> list[Wanted]:
        """What the arrays of a run have to be: the bound sources, then the results."""
        taken = [array for source, array in self.sources.items() if source not in self.constant]
        return [*actions.wanted_of(taken, False), *actions.wanted_of(self.results, True, len(taken))]

    def _add(self, task: Task) -> None:
        """Adds what a run does for a task, and then drops blocks that Python holds."""
        number = task.number
        if self.steps[task.step].stage == "store":
            self._store(task)
        elif number in self.table.sweeps:
            self._sweep(task)
        elif number not in self.fixed_blocks and number not in self.places.views:
            self._work(task)
        if dropped := self.places.dropped.get(number, ()):
            outputs = [value for (one, _), value in self._outputs.items() if one in dropped]
            self._act(-1, partial(actions.drop, [*(self._count + one for one in dropped), *outputs]))

    def _add_all(self, places: BlockPlaces) -> int:
        """Adds what a run does for all tasks; how many of them are bound in columns."""
        for number in np.flatnonzero(self.table.fixed).tolist():
            self._fix(self.tasks[number])
        alone, columns = list[int](), list[CallColumns]()
        for rows in (one for one in places.rows if not self.table.fixed[one.sample.number]):
            found = self._bind_rows(places, rows)
            alone += rows.numbers.tolist() if found is None else []
            columns += found or []
        between = list[tuple[int, list[Found]]]()
        for number in sorted(alone):
            self._add(self.tasks[number])
            if columns:
                self._flush()
                between.append((number, self.found))
                self.found = []
        self._flush()
        if columns:
            self.found = actions.in_order_of_tasks(columns, between, COPIES)
        return sum(len(one.numbers) for one in columns if not one.place)

    def _bind_rows(self, places: BlockPlaces, rows: AlikeTasks) -> list[CallColumns] | None:
        """The calls of tasks that lie alike, made from those of the first; None where each is bound by itself."""
        sample, step = rows.sample, self.steps[rows.sample.step]
        store = step.stage == "store"
        if len(rows.numbers) < FEW or not (store or (is_native(step, sample) and step.kernel.backend == COPIES)):
            return None
        sink = self.sinks[cast("Sink", step.node)] if store else -1
        there = [piece for piece in sample.reads[0].pieces if self.is_there(piece, sink)] if store else []
        moved = self._addresses.moved(rows, there)
        if moved is None:
            return None
        known = len(self._kept), self.arena_bytes, self.kernels, self.python_steps
        self._accesses, whole = ArrayAccesses(), self._accesses
        self._add(sample)
        self._accesses, own, self._segment, segment = whole, self._accesses, CallSegment(), self._segment
        alike = not self.found and segment.by in ("", COPIES) and hasattr(self._calls_of(COPIES), "add_columns")
        if alike and len(segment.calls) == len(moved):
            found = actions.columns_of(rows.numbers, segment, moved, cast("AddsAlike", self._calls_of(COPIES)))
            if found is not None:
                self.kernels += 0 if store else len(rows.numbers) - 1
                self._addresses.note(rows, own, whole, there)
                read = (piece.tasks for one in rows.kind.reads for piece in one.pieces)
                self._keep(
                    *(self.fixed_blocks[n] for made in read for n in made[rows.at].tolist() if n in self.fixed_blocks)
                )
                return found
        self.found = []
        while len(self._kept) > known[0]:
            self._kept.popitem()
        self.arena_bytes, self.kernels, self.python_steps = known[1:]
        return None

    # ---- blocks that are made once --------------------------------------------------------------------------------

    def _fix(self, task: Task) -> None:
        """Computes the block of a task that is done once.

        Raises:
            WorkFailed: its operator raised.
        """
        step = self.steps[task.step]
        given = {read.name: self._put_together(read) for read in task.reads}
        try:
            made = execute(cast("Operation", step.node), step.stage, task.index, given, decision=step.kernel)
        except Exception as error:
            raise WorkFailed(task) from error
        block = row_major(own(made, step.outputs, given))
        self.fixed_blocks[task.number] = block
        if not isinstance(block, dict):
            self.places.offset[task.number] = address_of(block)
        self.arena_bytes += block_bytes(block)

    def _put_together(self, read: Read) -> Array:
        """What is read, where that is the same in every run: all pieces are arrays then."""
        return put_together(read, [np.asarray(self._read(piece, read.dtype)) for piece in read.pieces])

    # ---- reads --------------------------------------------------------------------------------------------------

    def _read(self, piece: ReadPiece, dtype: np.dtype[Any]) -> Array | Slot:
        """A piece as an array that is always there, or as one that every run brings."""
        if piece.constant:
            return constant(piece, dtype)
        if piece.source is not None:
            found, held = view_of(piece, piece.source.type.box), self.sources[piece.source]
            if piece.source in self.constant:
                return held if found is None else found(held)
            return Slot(self._slots[piece.source], found, held)
        if piece.task in self.places.views:
            whole, found = self._read(self.places.views[piece.task], dtype), view_of(piece, piece.block)
            return reshaped(whole, piece.block.shape, found)
        home = self.places.home(piece.task)
        if piece.task in self.fixed_blocks:
            block, found = self.fixed_blocks[piece.task], view_of(piece, piece.block)
            held = block[piece.output] if isinstance(block, dict) else block
            return held if found is None else found(held)
        if home is None:
            found, sample = view_of(piece, piece.block), np.empty(piece.block.shape, dtype)
            number = self._outputs.get((piece.task, piece.output), self._count + piece.task)
            return Slot(number, found, sample)
        found = view_of(piece, home.hold)
        return part_of(self._held(home), found)

    def _held(self, home: Home) -> Array | Slot:
        """The buffer of the arena, or the result, in which blocks lie, with their dimensions."""
        if home.result < 0:
            return self.places.buffer(home)
        sample, shape = self.results[home.result], home.hold.shape
        view = (lambda array: array.reshape(shape)) if sample.shape != shape else None
        return Slot(self.first_result + home.result, view, sample)

    def _reads_of(self, order: int, pieces: Sequence[ReadPiece], pointwise: bool = False) -> None:
        """Notes which regions of sources are read."""
        for piece in pieces:
            if piece.task in self.places.views:
                self._reads_of(order, [self.places.views[piece.task]])
            elif piece.source is not None:
                whole = piece.source.type.box
                shifts = piece.shifts
                box = piece.region if shifts else whole
                self._accesses.reads.append(ArrayAccess(order, self._slots[piece.source], box, pointwise and shifts))

    def _input(self, task: Task, k: int) -> tuple[Array | Slot, Array]:
        """(an input of a task, an array of its layout); several pieces are put together first, once if fixed."""
        read = task.reads[k]
        pieces = self.places.merged(read)
        if len(pieces) == 1:
            found = self._read(pieces[0], read.dtype)
            return found, lies_as(found)
        if self.table.never_changes(read):
            held = self._put_together(read)
            self._keep(held)
            self.arena_bytes += held.nbytes
            return held, held
        whole = self.places.gathered(task.number, k)
        for piece in self.places.elsewhere(task.number, k):
            self._copy(task.number, whole[place(read, piece)], self._read(piece, read.dtype))
        return whole, lies_as(whole)

    def _copy(self, number: int, target: Array | Slot, source: Array | Slot) -> None:
        if not self._moved(number, target, source):
            both = [one if isinstance(one, Slot) else (lambda now, one=one: one) for one in (target, source)]
            threads = self.threads  # of all that is here, nothing else is kept
            self._act(number, lambda now: copy(both[0](now), both[1](now), threads=threads))

    def _moved(self, number: int, target: Array | Slot, source: Array | Slot) -> bool:
        """Adds a call that copies; False where there is no code for it."""
        by, lies = backend(COPIES), (lies_as(source), lies_as(target))
        how = tuple((array.dtype, array.shape, array.strides, array.flags.aligned) for array in lies)
        if how in self._alike:
            calls = cast("AddsAlike", self._calls_of(COPIES))
            call = calls.add_like(self._alike[how], list(map(address_of, lies)))
            if call is not None:
                self._point(call, [source, target], number)
                return True
        mover = by.mover(*lies, self.threads) if isinstance(by, Moves) else None
        if mover is not None:
            call = self._call(mover, [source, target], number)
            if hasattr(self._calls_of(COPIES), "add_like"):
                self._alike[how] = call
        return mover is not None

    def _call(self, kernel: Any, operands: Sequence[Array | Slot], number: int, by: str = COPIES) -> int:
        """Adds a call of a backend, by number."""
        call = self._calls_of(by).add(kernel, list(map(lies_as, operands)))
        self._point(call, operands, number)
        return call

    def _point(self, call: int, operands: Sequence[Array | Slot], number: int) -> None:
        """Adds a call to the row: what every run brings of its operands is said then, the others stay alive."""
        self._keep(*(one for one in operands if not isinstance(one, Slot)))
        self._segment.add(call, number, operands)

    def _keep(self, *arrays: Array) -> None:
        """Keeps the memory of arrays alive."""
        for one in map(owner, arrays):
            self._kept.setdefault(id(one), one)

    # ---- tasks --------------------------------------------------------------------------------------------------

    def _target(self, task: Task) -> Array | Slot | None:
        """Where a task's block lies, always or in every run."""
        home = self.places.home(task.number)
        if home is None:
            return None
        index = slices(task.out.translate([-a for a in home.hold.start]))
        view = (lambda array: np.asarray(array[index])) if task.out != home.hold else None
        return part_of(self._held(home), view)

    def _work(self, task: Task) -> None:
        step = self.steps[task.step]
        node = cast("Operation", step.node)
        found = [self._input(task, k) for k in range(len(task.reads))]
        target = self._target(task)
        add = self._given if is_call(step, task) else self._bind
        if self.table.native[task.number] and target is not None and add(task, step, found, target):
            return
        slot, kept = self._count + task.number, step.outputs
        if target is None and len(kept) > 1:
            first = self.first_result + len(self.sinks) + len(self._outputs)
            self._outputs.update(((task.number, name), first + k) for k, name in enumerate(kept))
        places = [(self._outputs[task.number, name], name) for name in kept if (task.number, name) in self._outputs]
        into: Writes | None = None
        if step.stage == "block" and (is_call(step, task) or not step.kernel.backend):
            block, into = definition(node, task.index, kept)
        else:
            block = partial(execute, node, step.stage, task.index, threads=self.threads, decision=step.kernel)
            into = combination(node, [read.name for read in task.reads]) if step.stage == "combine" else None
        given = {read.name: one for read, (one, _) in zip(task.reads, found, strict=True)}
        compute = in_python(given, block, into, target, kept, [(slot, ""), *places])
        for read in task.reads:
            self._reads_of(2 * task.number, read.pieces)
        self._writes(task)
        self.python_steps += 1
        self.combined += step.stage == "combine"
        self._act(task.number, compute)

    def _sweep(self, task: Task) -> None:
        """Adds what a sweep does, when the last of its tasks comes."""
        sweep = self.table.sweeps[task.number]
        if task.number != sweep.numbers[-1]:
            return
        for one in SweepActions(sweep, self.places.tracks(sweep), self._read, self._target).actions():
            if isinstance(one, Made):
                call, operands = self._panels.add(self._calls_of(self.steps[one.task.step].kernel.backend), one)
                self._segment.add(call, one.task.number, operands)
                self.kernels += 1
            else:
                self._copy(one.number, one.target, one.source)
        first, last = 2 * sweep.numbers[0], 2 * sweep.numbers[-1] + 1
        for number, member in enumerate(sweep.members):
            for read in member.task.reads:
                self._reads_of(first, read.pieces)
            if (home := self.places.home(member.task.number)) is not None and home.result >= 0:
                alike = [one for one in self.sources if one.type.shape == self._boxes[home.result].shape]
                self._writes(member.task, last if sweep.follows(alike, number) else first)

    def _bind(self, task: Task, step: Step, found: Sequence[tuple[Array | Slot, Array]], target: Array | Slot) -> bool:
        """Adds a kernel to the calls; False where the arrays' strides allow none."""
        sample = [array for _, array in found]
        made = lies_as(target)
        if not all(regular(array) is array for array in sample):
            return False
        by = step.kernel.backend
        fixed = tuple(read.name for read in task.reads if self.table.never_changes(read))
        key = (task.step, task.index.size, fixed, *((array.shape, array.strides) for array in (made, *sample)))
        kind = self._known.get(key)
        if kind is None:  # which all tasks of its step have whose arrays lie alike
            kind = self._known[key] = task_kind(task, step, sample, made, fixed, self.threads)
        calls = self._calls_of(by)
        given = [made if k < 0 else sample[k] for k in kind.order]
        if kind.arranges:
            own = cast("Arranged", kind.kernel).arranged(given)
            new = [array for array, old in zip(own, given, strict=True) if array is not old]
            self._kept.update((id(array), array) for array in new)  # by which other plans find them, too
            self.arena_bytes += sum(array.nbytes for array in new)
            given = own
        call = calls.add(kind.kernel, given)
        self._point(call, [target if k < 0 else found[k][0] for k in kind.order], task.number)
        self._bound(task, kind.over)
        return True

    def _given(self, task: Task, step: Step, found: Sequence[tuple[Array | Slot, Array]], target: Array | Slot) -> bool:
        """Adds a call of code for any sizes; False where the arrays' strides allow none."""
        same = [self.table.never_changes(read) for read in task.reads]
        held = [
            None if not fixed or isinstance(one, Slot) else one for (one, _), fixed in zip(found, same, strict=True)
        ]
        given, sample, made = [one for one, _ in found], [array for _, array in found], lies_as(target)
        call, new = call_of(step, sample, held, made, self.threads)
        if call is None:
            return False
        operands = [one if array is None else array for one, array in zip(given, new, strict=True)]
        self._call(call, [*operands, target], task.number, step.kernel.backend)
        over = updates(step, task)
        self._bound(task, [over and k == 0 for k in range(len(found))])
        return True

    def _bound(self, task: Task, over: Sequence[bool]) -> None:
        """Notes what a call reads, which its result may be written over where that is said, and what it writes."""
        for region, may in zip(task.reads, over, strict=True):
            together = len(region.pieces) > 1  # in memory of its own, before the kernel runs
            self._reads_of(2 * task.number + (not together), region.pieces, may)
        self._writes(task)
        self.kernels += 1

    def _writes(self, task: Task, order: int = -1) -> None:
        """Notes which region of a result a task writes; when, if that is not at its end."""
        home = self.places.home(task.number)
        if home is not None and home.result >= 0:
            box = task.out.translate([-b for b in home.hold.start])
            box = as_in(box, home.hold.shape, self._boxes[home.result].shape)
            self._accesses.writes.append(ArrayAccess(2 * task.number + 1 if order < 0 else order, home.result, box))

    def _calls_of(self, by: str) -> Calls:
        """The calls of a backend, to which what follows is added."""
        if self._segment.by != by:
            self._flush()
            self._segment.by = by
        return self.calls.get(by) or self.calls.setdefault(by, backend(by).calls())

    def _store(self, task: Task) -> None:
        sink = self.sinks[cast("Sink", self.steps[task.step].node)]
        read, result = task.reads[0], self.first_result + sink
        pieces = [piece for piece in read.pieces if not self.is_there(piece, sink)]
        if not pieces:
            return
        for piece in self.places.merged(replace(read, pieces=tuple(pieces))):
            found, index = self._read(piece, read.dtype), slices(piece.box)
            self._reads_of(2 * task.number, [piece], pointwise=True)
            self._accesses.writes.append(ArrayAccess(2 * task.number, sink, piece.box))
            target = Slot(result, None, self.results[sink]).part(itemgetter(index))
            if self._moved(task.number, target, found):
                continue

            def write(now: Values, read: Array | Slot = found, index: Any = index, threads: int = self.threads) -> None:
                into, values = now[result][index], read(now) if isinstance(read, Slot) else read
                if address_of(into) != address_of(values):  # else they are there: the source is written over
                    copy(into, values, threads=threads)

            self._act(task.number, write)

    def is_there(self, piece: ReadPiece, sink: int) -> bool:
        """Whether a piece lies in a result already, in its place."""
        home = self.places.home(piece.task)
        if home is None or home.result != sink or not piece.in_order:
            return False
        return home.hold == piece.map.cover(self._boxes[sink])

    def _act(self, number: int, action: Action) -> None:
        self._flush()
        self.found.append((number, action))

    def _flush(self) -> None:
        """Ends a row of calls that nothing interrupts."""
        if self._segment.calls:
            self.found.append((self._segment.tasks[-1], self._segment))
            self._segment = CallSegment(self._segment.by)


def reshaped(held: Array | Slot, shape: tuple[int, ...], part: Callable[[Array], Array] | None) -> Array | Slot:
    """A part of an array in row-major order, or of one that every run brings, in another shape; None: all of it."""

    def seen(array: Array) -> Array:
        whole = array.reshape(shape)
        return whole if part is None else part(whole)

    return part_of(held, seen)
