"""The same plan on a Ray cluster.

Kernels run in Ray workers and blocks stay in Ray's object store. Sources are read and sinks written by this process,
so files need not be shared, and a sink appears whole or not at all as it does locally. Where only a part of a block
crosses machines, the task that makes the block cuts the part out, so that no more than the part travels.
What a killed worker or machine loses is computed again, by Ray, since every task is a function of its inputs.

Source: own.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tileweave import lower
from tileweave.errors import RunError
from tileweave.graph import Hole, Operation, Sink, Source, Tensor
from tileweave.graph.operators import OPERATORS, Operator, operator_of
from tileweave.planner import Plan
from tileweave.runtime.events import Event, Progress, Retry
from tileweave.runtime.local import Destination, ReadSource, TaskFailed, store
from tileweave.runtime.npyfile import slices
from tileweave.runtime.prepare import Fetch, Job, Part, Prepared, assemble, make_part
from tileweave.space import Box

__all__ = ["engine", "shutdown"]

Array = np.ndarray[Any, Any]

WINDOW = 4
"""Tasks in flight per core."""
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
        _SESSION = _start(ray, max(machines, MACHINES), threads or len(os.sched_getaffinity(0)))
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
class _Kernel:
    """One task as a worker sees it: reads refer to the task's arguments, by number.

    Args:
        node: the operation, cut off from the graph that it stands in.
        stage: block, partial or combine.
        index: what `lower.execute` is told.
        fetches: inputs; `Part.task` is the number of an argument.
        keep: whether the whole block is returned.
        slices: parts of the block that are returned beside it, as indices of the block.
        threads: that the kernel may use.
    """

    node: Operation
    stage: str
    index: Box
    fetches: tuple[Fetch, ...]
    keep: bool
    slices: tuple[Any, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class _Shipment:
    """A job, and where its arguments come from.

    Args:
        job: the job.
        arguments: (task, k): the k-th value that a task returns, 0 being its block; or (-1 - source, region).
        keep: whether the whole block is returned.
        returned: regions of the block that are returned beside it, in coordinates of its tensor.
        fetches: inputs; `Part.task` is the number of an argument.
    """

    job: Job
    arguments: tuple[tuple[int, Any], ...]
    keep: bool
    returned: tuple[Box, ...]
    fetches: tuple[Fetch, ...]


def _shipments(prepared: Prepared) -> tuple[_Shipment, ...]:
    """What travels: per block, the regions that other machines read of it and whether it travels or stays whole."""
    jobs = prepared.jobs
    returned: list[dict[Box, int]] = [{} for _ in jobs]  # region -> k
    keep = [False] * len(jobs)
    arguments: list[dict[tuple[int, Any], int]] = [{} for _ in jobs]
    fetches: list[tuple[Fetch, ...]] = []
    for job in jobs:
        known = arguments[job.number]

        def shipped(part: Part, job: Job = job, known: dict[tuple[int, Any], int] = known) -> Part:
            if part.task < 0 and part.source < 0:
                return part
            hold = part.hold
            if part.source >= 0:
                argument: tuple[int, Any] = (-1 - part.source, hold)
            else:
                region = part.map.cover(part.box)
                if jobs[part.task].machine == job.machine or region == hold:
                    keep[part.task] = True
                    argument = (part.task, 0)
                else:
                    k = returned[part.task].setdefault(region, 1 + len(returned[part.task]))
                    argument, hold = (part.task, k), region
            number = known.setdefault(argument, len(known))
            return make_part(part.box, part.place, part.map, hold, task=number)

        fetches.append(tuple(replace(f, parts=tuple(map(shipped, f.parts))) for f in job.fetches))
    return tuple(
        _Shipment(job, tuple(arguments[k]), keep[k], tuple(returned[k]), fetches[k]) for k, job in enumerate(jobs)
    )


def _kernel(shipment: _Shipment, threads: int) -> _Kernel | None:
    job = shipment.job
    if isinstance(job.node, Sink):
        return None
    node = job.node
    inputs = tuple((name, Tensor(Source(Hole(), tensor.type, name))) for name, tensor in node.inputs)
    alone = replace(node, inputs=inputs, after=())  # pickling the operation must not drag its graph along
    low = [-a for a in job.out.start]
    cut = tuple(slices(region.translate(low)) for region in shipment.returned)
    return _Kernel(alone, job.stage, job.index, shipment.fetches, shipment.keep, cut, threads)


def _foreign_operators(prepared: Prepared) -> list[Operator]:
    """Operators that a worker would not know from importing tileweave."""
    found = {
        operator_of(job.node).name: operator_of(job.node) for job in prepared.jobs if not isinstance(job.node, Sink)
    }
    return [o for o in found.values() if not o.block.__module__.startswith("tileweave.")]


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


_Table = tuple[tuple[_Kernel | None, ...], list[Operator]]
_TABLES: OrderedDict[bytes, _Table] = OrderedDict()  # in a worker: the plans that it has seen lately


def _table(reference: Any) -> tuple[_Kernel | None, ...]:
    """The kernels of a plan, fetched once per worker."""
    name = reference.binary()
    if name not in _TABLES:
        _TABLES[name] = _load().get(reference)
        for operator in _TABLES[name][1]:
            OPERATORS.setdefault(operator.name, operator)
        if len(_TABLES) > 8:
            _TABLES.popitem(last=False)
    _TABLES.move_to_end(name)
    return _TABLES[name][0]


@dataclass(frozen=True, slots=True)
class _Note:
    """What a worker says of a task: how often it was started, and the bytes that it held."""

    attempts: int
    held_bytes: int


def _work(references: Sequence[Any], number: int, *arrays: Array) -> Any:
    """One task, in a worker: (note, block?, slices..)."""
    kernel = _table(references[0])[number]
    if kernel is None:
        raise RunError("worker", f"task {number} is no kernel")
    inputs, held_bytes = {}, 0
    for fetch in kernel.fetches:
        inputs[fetch.name], fresh = assemble(fetch, lambda part: arrays[part.task] if part.task >= 0 else None)
        held_bytes += fresh
    with np.errstate(all="ignore"):
        made = lower.execute(kernel.node, kernel.stage, kernel.index, inputs, threads=kernel.threads)
    block = np.asarray(made["out"])
    out: list[Any] = [_Note(_attempts(), held_bytes + block.nbytes)]
    out += [block] if kernel.keep else []
    out += [block[index].copy() for index in kernel.slices]
    return tuple(out) if len(out) > 1 else out[0]


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
    """What runs a plan's jobs on the cluster; connecting comes first, so that a cluster that is missing is an error.

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

    A run that fails lets the few tasks of its window end unseen: in Ray 2.60, a task that ends while it is being
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
        self.jobs = prepared.jobs
        if "shipments" not in prepared.extra:
            prepared.extra["shipments"] = _shipments(prepared)
        self.shipments: tuple[_Shipment, ...] = prepared.extra["shipments"]
        self.table = self._table()
        self.values: dict[tuple[int, Any], Any] = {}  # (task, k) or (-1 - source, region) -> reference or array
        self.uses = Counter(a for s in self.shipments for a in s.arguments if a[0] < 0)
        self.flying: dict[Any, Job] = {}  # note reference -> job
        self.waiting: list[Job] = []  # stores whose inputs are not there yet
        self.left = [job.readers for job in self.jobs]
        self.done = [False] * len(self.jobs)
        self.done_count = 0
        self.limits = [machine.memory_bytes for machine in plan.machines.machines]
        self.promised = [0] * len(self.limits)
        self.held = list(self.promised)
        self.peaks = list(self.promised)

    def _table(self) -> Any:
        """A reference to the plan's kernels in the object store, kept with the plan while the session lasts."""
        kept = self.prepared.extra.get("table")
        if kept is not None and kept[0] is self.session:
            return kept[1]
        kernels = tuple(_kernel(s, self._threads(s.job)) for s in self.shipments)
        operators = _foreign_operators(self.prepared)
        with _by_value(self.ray.cloudpickle, operators):
            reference = self.ray.put((kernels, operators))
        self.prepared.extra["table"] = (self.session, reference)
        return reference

    def _threads(self, job: Job) -> int:
        if self.session.own:
            return max(1, self.session.cores // job.width)
        cores = self.plan.machines.machines[job.machine].cores
        return max(1, min(cores, self._node(job.machine)[1]))

    def _node(self, machine: int) -> tuple[str, int]:
        return self.session.nodes[machine % len(self.session.nodes)]

    def run(self) -> tuple[int, ...]:
        """Submits in plan order, within the window and the machines' memory, until everything is done."""
        window = WINDOW * self.session.cores
        head = 0
        while self.done_count < len(self.jobs):
            while head < len(self.jobs) and self._may_start(self.jobs[head], window):
                self._start(self.jobs[head])
                head += 1
            ready = [job for job in self.waiting if all(self.done[n] for n in job.needs)]
            for job in ready:
                self.waiting.remove(job)
                self._store(job)
            if self.flying and not ready:
                self._finish_one()
        return tuple(self.peaks)

    def _may_start(self, job: Job, window: int) -> bool:
        flying = len(self.flying) + len(self.waiting)
        if not flying:
            return True
        room = self.promised[job.machine] + job.need_bytes <= self.limits[job.machine]
        strict = getattr(job.node, "after", ())  # happens-before is not a data dependency that Ray could see
        return flying < window and room and (not strict or all(self.done[n] for n in job.needs))

    def _start(self, job: Job) -> None:
        self.promised[job.machine] += job.need_bytes
        if job.sink >= 0:
            self.waiting.append(job)
            return
        shipment = self.shipments[job.number]
        count = 1 + shipment.keep + len(shipment.returned)
        references = self._remote(job, count).remote([self.table], job.number, *map(self._argument, shipment.arguments))
        note, *blocks = references if count > 1 else [references]
        for k, block in enumerate(blocks, start=0 if shipment.keep else 1):
            self.values[job.number, k] = block
        self.flying[note] = job

    def _remote(self, job: Job, count: int) -> Any:
        known = self.prepared.extra.setdefault("remote", {})
        key = (self.session, job.machine, count, job.width)
        if key not in known:
            threads = self._threads(job)
            options: dict[str, Any] = {"num_returns": count, "max_retries": MAX_RETRIES, "num_cpus": threads}
            if self.session.own:
                options["resources"] = {_resource(job.machine): 1}
            else:
                from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(self._node(job.machine)[0], soft=True)
            known[key] = self.ray.remote(_work).options(**options)
        return known[key]

    def _argument(self, where: tuple[int, Any]) -> Any:
        if where not in self.values:
            region = self.sources[-1 - where[0]](where[1])
            dense = np.array(region) if region.nbytes <= DIRECT_BYTES else region
            self.values[where] = dense if region.nbytes <= DIRECT_BYTES else self.ray.put(dense)
        value = self.values[where]
        if where[0] < 0:
            self.uses[where] -= 1
            if not self.uses[where]:
                del self.values[where]
        return value

    def _finish_one(self) -> None:
        (note,), _ = self.ray.wait(list(self.flying), num_returns=1)
        job = self.flying.pop(note)
        try:
            said: _Note = self.ray.get(note)
        except self.ray.exceptions.RayTaskError as error:
            raise TaskFailed(job) from (error.cause if isinstance(error.cause, Exception) else error)
        except self.ray.exceptions.RayError as error:
            raise TaskFailed(job) from error
        if said.attempts > 1 and self.notify is not None:
            self.notify(Retry(job.step, job.shard, job.machine, said.attempts))
        self._finish(job, said.held_bytes)

    def _store(self, job: Job) -> None:
        shipment = self.shipments[job.number]
        arrays: dict[int, Array] = {}

        def held(part: Part) -> Array | None:
            if part.task < 0:
                return None
            if part.task not in arrays:
                value = self._argument(shipment.arguments[part.task])
                arrays[part.task] = value if isinstance(value, np.ndarray) else self.ray.get(value)
            return arrays[part.task]

        try:
            used = store(replace(job, fetches=shipment.fetches), held, self.destinations[job.sink])
        except Exception as error:
            raise TaskFailed(job) from error
        self._finish(job, used)

    def _finish(self, job: Job, used: int) -> None:
        machine = job.machine
        self.peaks[machine] = max(self.peaks[machine], self.held[machine] + used)
        self.promised[machine] -= job.need_bytes
        if job.sink < 0 and job.readers:
            self.promised[machine] += job.out_bytes
            self.held[machine] += job.out_bytes
        for number in job.releases:
            self.left[number] -= 1
            if not self.left[number]:
                self._free(self.jobs[number])
        self.done[job.number] = True
        self.done_count += 1
        if self.notify is not None:
            self.notify(Progress(job.step, job.shard, machine, self.done_count, len(self.jobs)))

    def _free(self, job: Job) -> None:
        self.promised[job.machine] -= job.out_bytes
        self.held[job.machine] -= job.out_bytes
        for k in range(1 + len(self.shipments[job.number].returned)):
            self.values.pop((job.number, k), None)
