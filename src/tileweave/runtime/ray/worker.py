"""What workers of a cluster know and do: units, as functions of their arguments.

Source: own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from tileweave import lower
from tileweave.errors import RunError
from tileweave.graph import FileData, Hole, Operation, Sink, Source, Tensor, TensorType
from tileweave.graph.ops.operators import OPERATORS, Operator, operator_of
from tileweave.lower.reads import Block, Held, Taken, block_bytes, gather, own, slices
from tileweave.planner import ReadPiece, Step, Task
from tileweave.runtime.io.files import FileSource
from tileweave.runtime.io.sinks import Handle, Reopened
from tileweave.runtime.local import storing
from tileweave.runtime.prepare import Prepared
from tileweave.runtime.ray.session import load
from tileweave.runtime.ray.units import Unit
from tileweave.space import Box

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class WorkerTable:
    """A plan as workers know it.

    Args:
        units: what each unit does; None for a store of the driver's.
        threads: per unit, how many threads it may use.
        steps: of the plan, each operation cut off from the graph that it stands in.
        operators: that a worker would not know from importing tileweave.
    """

    units: tuple[Unit | None, ...]
    threads: tuple[int, ...]
    steps: tuple[Step, ...]
    operators: tuple[Operator, ...]


def alone(step: Step) -> Step:
    """A step that can be pickled without the graph, and without the arrays that it reads."""
    node = step.node
    if isinstance(node, Sink):
        return replace(step, node=replace(node, tensor=Tensor(Source(Hole(), node.tensor.type))))
    inputs = tuple((name, Tensor(Source(Hole(), tensor.type, name))) for name, tensor in node.inputs)
    return replace(step, node=replace(node, inputs=inputs, after=()))


def foreign_operators(prepared: Prepared) -> tuple[Operator, ...]:
    """Operators that a worker would not know from importing tileweave."""
    nodes = (step.node for step in prepared.steps)
    found = {operator_of(node).name: operator_of(node) for node in nodes if isinstance(node, Operation)}
    return tuple(o for o in found.values() if not o.block.__module__.startswith("tileweave."))


@contextlib.contextmanager
def by_value(cloudpickle: Any, operators: Sequence[Operator]) -> Iterator[None]:
    """The operators travel as code: a worker may not be able to import the modules that they come from."""
    modules = {sys.modules[o.block.__module__] for o in operators if o.block.__module__ in sys.modules}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


_TABLES: OrderedDict[bytes, WorkerTable] = OrderedDict()  # in a worker: the plans that it has seen lately


def _table(reference: Any) -> WorkerTable:
    """A plan's table, fetched once per worker."""
    name = reference.binary()
    if name not in _TABLES:
        _TABLES[name] = load().get(reference)
        for operator in _TABLES[name].operators:
            OPERATORS.setdefault(operator.name, operator)
        if len(_TABLES) > 8:
            _TABLES.popitem(last=False)
    _TABLES.move_to_end(name)
    return _TABLES[name]


Timed = tuple[float, float, Taken]


@dataclass(frozen=True, slots=True)
class Note:
    """What a worker says of a unit.

    Args:
        attempts: how often it was started.
        peak_bytes: the most bytes that it held.
        times: per task, when it began and ended, in seconds since the epoch, and what it took.
        worker: the process.
    """

    attempts: int
    peak_bytes: int
    times: tuple[Timed, ...]
    worker: int


class KernelFailed(Exception):
    """A kernel raised: the number of its task, and the exception."""

    def __init__(self, number: int, cause: Exception) -> None:
        super().__init__(number, cause)
        self.number, self.cause_of_it = number, cause


@dataclass(frozen=True, slots=True)
class FileRegion:
    """A region of a source in a file, which the worker reads itself."""

    data: FileData
    type: TensorType
    box: Box


Targets = Mapping[int, Handle]
"""Where the stores of each step go."""


def work(references: Sequence[Any], number: int, targets: Targets, *arguments: Block | FileRegion) -> Any:
    """One unit, in a worker: (note, what each task gives..)."""
    table = _table(references[0])
    unit = table.units[number]
    if unit is None:
        raise RunError("worker", f"unit {number} is no work for a worker")
    times: list[Timed] = []
    out, most = run_unit(unit, table.steps, arguments, table.threads[number], targets, times)
    note = Note(_attempts(), most, tuple(times), os.getpid())
    return (note, *out) if out else note


def run_unit(
    unit: Unit,
    steps: Sequence[Step],
    arguments: Sequence[Block | FileRegion],
    threads: int,
    targets: Targets | None = None,
    times: list[Timed] | None = None,
) -> tuple[list[Any], int]:
    """(what each task of a unit gives, the most bytes that were held); `times` takes when each ran, what it took."""
    blocks: list[Block | FileRegion | None] = [*(None for _ in unit.tasks), *arguments]
    out: list[Any] = []
    held = most = 0
    with FileRegions() as files:

        def holds(piece: ReadPiece) -> Block | None:
            block = blocks[piece.task] if piece.task >= 0 else None
            return files.read(block) if isinstance(block, FileRegion) else block

        for k, (task, gives) in enumerate(zip(unit.tasks, unit.gives, strict=True)):
            step, began, taken = steps[task.step], time.time(), Taken()
            counted = taken.counting(holds, unit.machine, unit.machine_of)
            try:
                if isinstance(step.node, Sink):
                    destination = Reopened((targets or {})[task.step])
                    most = max(most, held + storing(task)(counted, destination, threads))
                    block: Block = np.empty(0)
                else:
                    block, used = _compute(task, step, counted, threads)
                    held += block_bytes(block)
                    most = max(most, held + used)
            except Exception as error:
                raise KernelFailed(task.number, _sendable(error)) from error
            if times is not None:
                times.append((began, time.time(), taken))
            blocks[k] = block
            out += [block] if gives.whole else []
            out += [_given(block, step, task, output, region) for output, region in gives.parts]
            for dropped in gives.drops:
                gone = blocks[dropped]
                if gone is not None and not isinstance(gone, FileRegion) and not unit.gives[dropped].whole:
                    held -= block_bytes(gone)
                blocks[dropped] = None
    return out, most


class FileRegions:
    """Reads regions of files, which stay open inside a with block."""

    def __init__(self) -> None:
        self._open: dict[FileData, FileSource] = {}

    def read(self, region: FileRegion) -> Array:
        """The values of a region."""
        found = self._open.get(region.data)
        if found is None:
            found = self._open[region.data] = FileSource(region.data, region.type)
        return found(region.box)

    def __enter__(self) -> FileRegions:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._open.values():
            source.close()


def _given(block: Block, step: Step, task: Task, output: str, region: Box) -> Array:
    """A region of a block, or of one of its outputs, as an array of its own."""
    start = task.outs[step.outputs.index(output)].start
    array = block[output] if isinstance(block, dict) else block
    return np.array(array[slices(region.translate([-a for a in start]))])


def _compute(task: Task, step: Step, holds: Held, threads: int) -> tuple[Block, int]:
    """(the block of a task, the bytes that were newly made to read its inputs)."""
    inputs, used = {}, 0
    for read in task.reads:
        inputs[read.name], fresh = gather(read)(holds, threads)
        used += fresh
    node = cast("Operation", step.node)
    with np.errstate(all="ignore"):
        made = lower.execute(node, step.stage, task.index, inputs, threads=threads, decision=step.kernel)
    return own(made, step.outputs, inputs), used


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _attempts() -> int:
    """How often this task has been started; 1 where Ray does not say."""
    with contextlib.suppress(Exception):
        import ray

        return 1 + int(ray._private.worker.global_worker.core_worker.get_current_task_attempt_number())
    return 1
