"""The same plan on a Ray cluster.

Kernels run in Ray workers and blocks stay in Ray's object store. Sources are read and sinks written by this process,
so files need not be shared, and a sink appears whole or not at all as it does locally. One Ray task is a unit: tasks
of one machine in a row (see `tileweave.runtime.units`). What a killed worker or machine loses is computed again, by
Ray, since every unit is a function of its inputs.

Source: own.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import secrets
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from tileweave import lower
from tileweave.backends.host import available_threads
from tileweave.errors import RunError
from tileweave.graph import Hole, Operation, Sink, Source, Tensor
from tileweave.graph.ops.operators import OPERATORS, Operator, operator_of
from tileweave.lower.reads import Block, block_bytes, gather, own, slices
from tileweave.planner import Plan, ReadPiece, Step, Task
from tileweave.runtime.events import Event, Progress, Retry
from tileweave.runtime.local import Destination, ReadSource, TaskFailed, store
from tileweave.runtime.prepare import Prepared
from tileweave.runtime.units import Unit, left_bytes, units
from tileweave.space import Box

__all__ = ["engine", "shutdown"]

Array = np.ndarray[Any, Any]

WINDOW = 4
"""Units in flight per core."""
MACHINES = 64
"""The least number of machines that a cluster of ours is started for."""
MAX_RETRIES = 8
"""How often Ray computes a lost task again before the run fails."""
CONNECT_SECONDS = 5.0
"""How long a cluster may take to answer at an address."""
DIRECT_BYTES = 1 << 16
"""Source regions up to this size travel with the task; larger ones go through the object store."""


# ---------------------------------------------------------------------------------------------------------------------
# the session


@dataclass(frozen=True, slots=True)
class _Session:
    """A connection to a cluster.

    Args:
        own: whether we started the cluster, and so end it.
        address: that the user gave.
        machines: how many machines our own cluster was started for.
        nodes: (id, cores) of the cluster's nodes, for clusters that are not ours.
        cores: of the whole cluster.
    """

    own: bool
    address: str | None
    machines: int
    nodes: tuple[tuple[str, int], ...]
    cores: int


_SESSION: _Session | None = None
_TOKEN = secrets.token_hex(16)


def _load() -> Any:
    try:
        import ray
    except ImportError:
        raise RunError(
            "run(plan, runtime='ray')", "Ray is not installed", legal="pip install 'tileweave[ray]'"
        ) from None
    return ray


def connect(machines: int, threads: int | None, address: str | None) -> _Session:
    """The open session, or a new one: to the cluster at an address, else to a local cluster that is started here.

    A session stays open for the next run and is closed when the process ends, or by `shutdown`.
    """
    global _SESSION
    ray = _load()
    if _SESSION is not None:
        fits = _SESSION.address == address and (not _SESSION.own or machines <= _SESSION.machines)
        if fits and ray.is_initialized():
            return _SESSION
        shutdown()
    if ray.is_initialized():  # the program's own session; it stays the program's
        _SESSION = _attached(ray, address)
    elif address is not None:
        _SESSION = _attach(ray, address)
    else:
        _SESSION = _start(ray, max(machines, MACHINES), threads or available_threads())
    return _SESSION


def _attach(ray: Any, address: str) -> _Session:
    try:
        host, _, port = address.rpartition(":")
        if port.isdecimal() and "://" not in address:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()  # Ray itself waits long
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:
        raise RunError(
            "run(plan, runtime='ray')",
            f"no cluster answers at {address!r}",
            inputs={"cause": f"{type(error).__name__}: {error}"},
            legal="the address of a running Ray cluster, or none to start a local one",
        ) from error
    return _attached(ray, address)


def _attached(ray: Any, address: str | None) -> _Session:
    nodes = tuple((n["NodeID"], int(n["Resources"].get("CPU", 0))) for n in ray.nodes() if n["Alive"])
    able = tuple(node for node in nodes if node[1] >= 1)
    if not able:
        raise RunError("run(plan, runtime='ray')", "the cluster has no node with a core", legal="a node with a core")
    return _Session(False, address, 0, able, sum(cores for _, cores in able))


def _start(ray: Any, machines: int, threads: int) -> _Session:
    """A quiet local cluster, guarded by a token of this process; each machine runs one task at a time.

    Ray reads these settings from the environment, and so do the processes that it starts.
    """
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
    wanted = {**quiet, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        wanted["RAY_AUTH_TOKEN"] = _TOKEN  # else Ray would write one into the user's home
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    try:
        ray.init(
            address="local",
            num_cpus=threads,
            resources={_resource(k): 1 for k in range(machines)},
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
    except BaseException as error:
        ray.shutdown()
        if not isinstance(error, Exception):
            raise
        cause = {"cause": f"{type(error).__name__}: {error}"}
        raise RunError("run(plan, runtime='ray')", "no local cluster could be started", inputs=cause) from error
    return _Session(True, None, machines, (), threads)


def _resource(machine: int) -> str:
    return f"tileweave_machine_{machine}"


def shutdown() -> None:
    """Ends the session; a cluster that we started ends with it."""
    global _SESSION
    session, _SESSION = _SESSION, None
    if session is not None and (session.own or session.address is not None):
        _load().shutdown()


atexit.register(shutdown)


# ---------------------------------------------------------------------------------------------------------------------
# what a worker needs to know


@dataclass(frozen=True, slots=True)
class _Table:
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


def _alone(step: Step) -> Step:
    """A step that can be pickled without the graph, and without the arrays that it reads."""
    node = step.node
    if isinstance(node, Sink):
        return replace(step, node=replace(node, tensor=Tensor(Source(Hole(), node.tensor.type))))
    inputs = tuple((name, Tensor(Source(Hole(), tensor.type, name))) for name, tensor in node.inputs)
    return replace(step, node=replace(node, inputs=inputs, after=()))


def _foreign_operators(prepared: Prepared) -> tuple[Operator, ...]:
    """Operators that a worker would not know from importing tileweave."""
    nodes = (step.node for step in prepared.steps)
    found = {operator_of(node).name: operator_of(node) for node in nodes if isinstance(node, Operation)}
    return tuple(o for o in found.values() if not o.block.__module__.startswith("tileweave."))


@contextlib.contextmanager
def _by_value(cloudpickle: Any, operators: Sequence[Operator]) -> Iterator[None]:
    """The operators travel as code: a worker may not be able to import the modules that they come from."""
    modules = {sys.modules[o.block.__module__] for o in operators if o.block.__module__ in sys.modules}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


_TABLES: OrderedDict[bytes, _Table] = OrderedDict()  # in a worker: the plans that it has seen lately


def _table(reference: Any) -> _Table:
    """A plan's table, fetched once per worker."""
    name = reference.binary()
    if name not in _TABLES:
        _TABLES[name] = _load().get(reference)
        for operator in _TABLES[name].operators:
            OPERATORS.setdefault(operator.name, operator)
        if len(_TABLES) > 8:
            _TABLES.popitem(last=False)
    _TABLES.move_to_end(name)
    return _TABLES[name]


@dataclass(frozen=True, slots=True)
class _Note:
    """What a worker says of a unit: how often it was started, and the most bytes that it held."""

    attempts: int
    peak_bytes: int


class _KernelFailed(Exception):
    """A kernel raised: the number of its task, and the exception."""

    def __init__(self, number: int, cause: Exception) -> None:
        super().__init__(number, cause)
        self.number, self.cause_of_it = number, cause


def _work(references: Sequence[Any], number: int, *arguments: Block) -> Any:
    """One unit, in a worker: (note, what each task gives..)."""
    table = _table(references[0])
    unit = table.units[number]
    if unit is None:
        raise RunError("worker", f"unit {number} is no work for a worker")
    out, most = run_unit(unit, table.steps, arguments, table.threads[number])
    note = _Note(_attempts(), most)
    return (note, *out) if out else note


def run_unit(unit: Unit, steps: Sequence[Step], arguments: Sequence[Block], threads: int) -> tuple[list[Any], int]:
    """(what each task of a unit gives, the most bytes that were held)."""
    blocks: list[Block | None] = [*(None for _ in unit.tasks), *arguments]
    out: list[Any] = []
    held = most = 0
    for k, (task, gives) in enumerate(zip(unit.tasks, unit.gives, strict=True)):
        step = steps[task.step]
        try:
            block, used = _compute(task, step, blocks, threads)
        except Exception as error:
            raise _KernelFailed(task.number, _sendable(error)) from error
        held += block_bytes(block)
        most = max(most, held + used)
        blocks[k] = block
        out += [block] if gives.whole else []
        out += [_given(block, step, task, output, region) for output, region in gives.parts]
        for dropped in gives.drops:
            gone = blocks[dropped]
            held -= block_bytes(gone) if gone is not None and not unit.gives[dropped].whole else 0
            blocks[dropped] = None
    return out, most


def _given(block: Block, step: Step, task: Task, output: str, region: Box) -> Array:
    """A region of a block, or of one of its outputs, as an array of its own."""
    start = task.outs[step.outputs.index(output)].start
    array = block[output] if isinstance(block, dict) else block
    return np.array(array[slices(region.translate([-a for a in start]))])


def _compute(task: Task, step: Step, blocks: Sequence[Block | None], threads: int) -> tuple[Block, int]:
    """(the block of a task, the bytes that were newly made to read its inputs)."""
    inputs, used = {}, 0
    for read in task.reads:
        inputs[read.name], fresh = gather(read)(lambda piece: blocks[piece.task], threads)
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


# ---------------------------------------------------------------------------------------------------------------------
# the run


Engine = Callable[[Sequence[ReadSource], Sequence[Destination], Callable[[Event], None] | None], tuple[int, ...]]


def engine(plan: Plan, prepared: Prepared, threads: int | None, address: str | None) -> Engine:
    """What runs a plan's tasks on the cluster; connecting comes first, so that a cluster that is missing is an error.

    Raises:
        RunError: Ray is missing, or no cluster answers.
    """
    session = connect(len(plan.machines), threads, address)

    def run(
        sources: Sequence[ReadSource],
        destinations: Sequence[Destination],
        notify: Callable[[Event], None] | None,
    ) -> tuple[int, ...]:
        one = _Run(plan, prepared, session, sources, destinations, notify)
        try:
            return one.run()
        except KeyboardInterrupt:
            if session.own:
                shutdown()  # no process stays
            raise

    return run


class _Run:
    """One run, driven by the thread that asked for it.

    A run that fails lets the few units of its window end unseen: in Ray 2.60, a task that ends while it is being
    cancelled aborts this process.
    """

    def __init__(
        self,
        plan: Plan,
        prepared: Prepared,
        session: _Session,
        sources: Sequence[ReadSource],
        destinations: Sequence[Destination],
        notify: Callable[[Event], None] | None,
    ) -> None:
        self.ray = _load()
        self.plan, self.prepared, self.session = plan, prepared, session
        self.sources, self.destinations, self.notify = sources, destinations, notify
        self.limits = [machine.memory_bytes for machine in plan.machines.machines]
        if "units" not in prepared.extra:
            prepared.extra["units"] = units(prepared, self.limits)
        self.units: tuple[Unit, ...] = prepared.extra["units"]
        self.table = self._table()
        self.values: dict[tuple[int, Any], Any] = {}  # (task, k) or (-1 - source, region) -> reference or array
        self.uses = Counter(a for unit in self.units for a in unit.arguments if a[0] < 0)
        self.readers = Counter(task for unit in self.units for task in unit.releases)
        self.left: dict[int, tuple[int, int]] = {}  # task -> (machine, bytes that it left)
        self.flying: dict[Any, int] = {}  # note reference -> number of the unit
        self.waiting: list[int] = []  # stores whose inputs are not there yet
        self.done = [False] * len(self.units)
        self.tasks_done = 0
        self.promised = [0] * len(self.limits)
        self.held = list(self.promised)
        self.peaks = list(self.promised)

    def _table(self) -> Any:
        """A reference to the units' work in the object store, kept with the plan while the session lasts."""
        kept = self.prepared.extra.get("table")
        if kept is not None and kept[0] is self.session:
            return kept[1]
        operators = _foreign_operators(self.prepared)
        table = _Table(
            tuple(None if unit.stores else unit for unit in self.units),
            tuple(map(self._threads, self.units)),
            tuple(map(_alone, self.prepared.steps)),
            operators,
        )
        with _by_value(self.ray.cloudpickle, operators):
            reference = self.ray.put(table)
        self.prepared.extra["table"] = (self.session, reference)
        return reference

    def _threads(self, unit: Unit) -> int:
        if self.session.own:
            return max(1, self.session.cores // self._width(unit))
        cores = self.plan.machines.machines[unit.machine].cores
        return max(1, min(cores, self._node(unit.machine)[1]))

    def _width(self, unit: Unit) -> int:
        """How many units like it may run at once."""
        return max(self.prepared.width(task.step) for task in unit.tasks)

    def _node(self, machine: int) -> tuple[str, int]:
        return self.session.nodes[machine % len(self.session.nodes)]

    def run(self) -> tuple[int, ...]:
        """Submits in order, within the window and the machines' memory, until everything is done."""
        window = WINDOW * self.session.cores
        head = done = 0
        while done < len(self.units):
            while head < len(self.units) and self._may_start(self.units[head], window):
                self._start(head)
                head += 1
            ready = [number for number in self.waiting if self._is_ready(self.units[number])]
            for number in ready:
                self.waiting.remove(number)
                self._store(number)
            if self.flying and not ready:
                self._finish_one()
                done += 1
            done += len(ready)
        return tuple(self.peaks)

    def _is_ready(self, unit: Unit) -> bool:
        return all(self.done[number] for number in unit.needs)

    def _may_start(self, unit: Unit, window: int) -> bool:
        flying = len(self.flying) + len(self.waiting)
        if not flying:
            return True
        room = self.promised[unit.machine] + unit.need_bytes <= self.limits[unit.machine]
        strict = any(task.after for task in unit.tasks)  # an order that Ray could not see
        return flying < window and room and (not strict or self._is_ready(unit))

    def _start(self, number: int) -> None:
        unit = self.units[number]
        self.promised[unit.machine] += unit.need_bytes
        if unit.stores:
            self.waiting.append(number)
            return
        results = unit.results
        remote = self._remote(unit, 1 + len(results))
        references = remote.remote([self.table], number, *map(self._argument, unit.arguments))
        note, *given = references if results else [references]
        self.values.update(zip(results, given, strict=True))
        self.flying[note] = number

    def _remote(self, unit: Unit, count: int) -> Any:
        known = self.prepared.extra.setdefault("remote", {})
        key = (self.session, unit.machine, count, self._width(unit))
        if key not in known:
            options: dict[str, Any] = {"num_returns": count, "max_retries": MAX_RETRIES}
            options["num_cpus"] = self._threads(unit)
            if self.session.own:
                options["resources"] = {_resource(unit.machine): 1}
            else:
                from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self._node(unit.machine)[0], soft=True)
            known[key] = self.ray.remote(_work).options(**options)
        return known[key]

    def _argument(self, where: tuple[int, Any]) -> Any:
        if where not in self.values:
            region = self.sources[-1 - where[0]](where[1])
            small = region.nbytes <= DIRECT_BYTES
            self.values[where] = np.array(region) if small else self.ray.put(region)
        value = self.values[where]
        if where[0] < 0:
            self.uses[where] -= 1
            if not self.uses[where]:
                del self.values[where]
        return value

    def _finish_one(self) -> None:
        (note,), _ = self.ray.wait(list(self.flying), num_returns=1)
        number = self.flying.pop(note)
        unit = self.units[number]
        try:
            said: _Note = self.ray.get(note)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, _KernelFailed):
                failed = next(task for task in unit.tasks if task.number == cause.number)
                raise TaskFailed(failed) from cause.cause_of_it
            raise TaskFailed(unit.tasks[0]) from (cause if isinstance(cause, Exception) else error)
        except self.ray.exceptions.RayError as error:
            raise TaskFailed(unit.tasks[0]) from error
        if said.attempts > 1 and self.notify is not None:
            first = unit.tasks[0]
            self.notify(Retry(first.step, first.shard, first.machine, said.attempts))
        self._finish(number, said.peak_bytes)

    def _store(self, number: int) -> None:
        unit = self.units[number]
        (task,) = unit.tasks
        arrays: dict[int, Block] = {}

        def held(piece: ReadPiece) -> Block | None:
            if piece.constant:
                return None
            if piece.task not in arrays:
                value = self._argument(unit.arguments[piece.task - len(unit.tasks)])
                arrays[piece.task] = value if isinstance(value, np.ndarray) else self.ray.get(value)
            return arrays[piece.task]

        try:
            used = store(task, gather(task.reads[0]), held, self.destinations[self.prepared.sink(task)])
        except Exception as error:
            raise TaskFailed(task) from error
        self._finish(number, used)

    def _finish(self, number: int, most: int) -> None:
        unit, machine = self.units[number], self.units[number].machine
        self.peaks[machine] = max(self.peaks[machine], self.held[machine] + most)
        self.promised[machine] -= unit.need_bytes
        for task, gives in zip(unit.tasks, unit.gives, strict=True):
            size_bytes = left_bytes(self.prepared, task, gives)
            if size_bytes:
                self.left[task.number] = machine, size_bytes
                self.promised[machine] += size_bytes
                self.held[machine] += size_bytes
        for released in unit.releases:
            self.readers[released] -= 1
            if not self.readers[released]:
                self._free(released)
        self.done[number] = True
        for task in unit.tasks:
            self.tasks_done += 1
            if self.notify is not None:
                self.notify(Progress(task.step, task.shard, machine, self.tasks_done, len(self.prepared.tasks)))

    def _free(self, task: int) -> None:
        machine, size_bytes = self.left.pop(task, (0, 0))
        self.promised[machine] -= size_bytes
        self.held[machine] -= size_bytes
        k = 0
        while self.values.pop((task, k), None) is not None or k == 0:
            k += 1
