"""Machines: what a plan may use, with rates and sizes in plain units.

Rates are peak rates that the planner derates to `EFFICIENCY`; they decide between plans and estimate time. They can
be written in a TOML file::

    [defaults]
    memory = "2GiB"            # bytes that a plan may hold on one machine
    flops_per_second = 100e9
    bytes_per_second = 20e9    # memory bandwidth
    functions_per_second = 6e9 # exponentials, logarithms and the like, of float32
    caches = [[2097152, 100e9], [33554432, 60e9]]  # working sets up to so many bytes move at such rates
    crossing = 6               # how many times as long an operand takes that lies across the others
    cores = 2

    [link]
    bytes_per_second = 1.25e9  # between any two machines, per machine
    seconds = 100e-6           # per message
    exchange_seconds = 5e-3    # of a step that waits for blocks of other machines, however many
    driver_bytes_per_second = 3e9  # of a cluster: between all machines and the program whose arrays it computes on

    [storage]
    bytes_per_second = 500e6   # sources and sinks, per machine
    cached_bytes_per_second = 10e9  # of sources that the system's cache of files holds
    open_seconds = 200e-6      # to open a source's file
    store_seconds = 5e-3       # to store a sink's file, whatever its size
    kind = "shared"            # or "private": each machine sees its own files

    [task]
    seconds = 10e-6            # the runtime's own cost of one task
    call_seconds = 1e-6        # of one among calls of native code in a row, as tasks on arrays of one machine are
    run_seconds = 2e-6         # of a run, whatever it computes

    [[machine]]
    name = "a"
    [[machine]]
    name = "b"
    memory = "8GiB"
    link_bytes_per_second = 2.5e9   # this machine's own
    flops = { float16 = 400e9 }     # rates per element type
    gpu = "sm_90a"             # the kind of its device, for which plans name kernels
    [[machine]]
    count = 6                  # equal machines, b2, b3, ..

A tree of clusters, nodes and devices is written as levels, the outermost first. The link of a level carries what
enters each of its groups; machines are numbered row-major over the levels::

    [[level]]
    name = "node"
    count = 16
    bytes_per_second = 25e9
    [[level]]
    name = "device"
    count = 8
    bytes_per_second = 300e9

Source: own; alpha-beta links and a task cost as in LogGP.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, Literal

from tileweave.backends.base import OfDevice, backend
from tileweave.backends.host import cache_bytes, last_caches
from tileweave.errors import BackendError, PlanError
from tileweave.graph.ir.dtypes import element_type
from tileweave.words import size_text

MOST_MACHINES = 1 << 16
"""Planning holds arrays over machines; beyond this many it would take minutes."""
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}


def bytes_from(text: str | int | float, where: str = "bytes_from(text)") -> int:
    """A number of bytes from an integer or from text such as ``"2GiB"``, ``"500 MB"``, ``"1.5e9"``.

    Example:
        >>> bytes_from("2GiB")
        2147483648
    """
    try:
        if isinstance(text, (int, float)) and not isinstance(text, bool):
            size = int(text)
            if size != text:
                raise ValueError
        else:
            match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", str(text).lower())
            if match is None:
                raise ValueError
            size = int(float(match[1]) * _UNITS[match[2]])
    except (ValueError, KeyError, OverflowError):
        raise PlanError(where, f"{text!r} is not an amount of memory", legal="such as 512MiB, 2GiB, 1e9") from None
    if size < 1:
        raise PlanError(where, f"{text!r} is not a positive amount of memory", legal="such as 512MiB, 2GiB, 1e9")
    return size


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine.

    Args:
        name: unique.
        memory_bytes: what a plan may hold there at any moment.
        cores: threads that compute.
        flops_per_second: peak of all cores.
        bytes_per_second: memory bandwidth.
        link_bytes_per_second: into this machine; None: as all machines have it.
        flops: (element type, operations per second) where it computes at another rate.
        gpu: the kind of its device, such as ``sm_90a``; empty: none.
        functions_per_second: exponentials, logarithms and the like, of float32; None: as fast as other operations.
        caches: (bytes, bytes per second): working sets of up to so many bytes move at such a rate, the smallest first;
            larger ones at that of memory.
        crossing: how many times as long a byte takes that an elementwise operation reads across the order of its
            result.
    """

    name: str
    memory_bytes: int
    cores: int = 1
    flops_per_second: float = 50e9
    bytes_per_second: float = 10e9
    link_bytes_per_second: float | None = None
    flops: tuple[tuple[str, float], ...] = ()
    gpu: str = ""
    functions_per_second: float | None = None
    caches: tuple[tuple[int, float], ...] = ()
    crossing: float = 1.0

    def __post_init__(self) -> None:
        _increasing("Machine(caches)", self.caches)

    def rate(self, dtype: str) -> float:
        """Operations per second on an element type."""
        return dict(self.flops).get(dtype, self.flops_per_second)


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """Machines behind a link that they share: a node, a rack.

    Args:
        name: for people.
        first: number of the first machine.
        last: number of the machine behind the last one.
        bytes_per_second: into the group.
        seconds: per transfer into the group.
    """

    name: str
    first: int
    last: int
    bytes_per_second: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a tree of machines: so many groups in each group of the level above, each behind a link.

    Args:
        name: such as "node".
        count: groups; at the last level, machines.
        bytes_per_second: into each.
        seconds: per message.
    """

    name: str
    count: int
    bytes_per_second: float
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines of a plan and what joins them.

    Args:
        machines: at least one.
        link_bytes_per_second: into each machine.
        link_seconds: per message.
        storage_bytes_per_second: of sources and sinks, per machine.
        cached_bytes_per_second: of sources that the system's cache of files holds; None: as of others.
        open_seconds: to open the file of a source, on each machine that reads it.
        store_seconds: to store a file, whatever its size.
        task_seconds: the runtime's own cost of one task.
        call_seconds: the same where tasks are calls of native code in a row, as those on arrays of one machine are.
        run_seconds: of a run, whatever it computes.
        driver_bytes_per_second: of arrays of the process that runs the plan, on their way to machines and back, to one
            after the other; None: each machine has them over its own link.
        exchange_seconds: of a step on a machine that waits for blocks of others, however many.
        groups: links that several machines share, the outermost first.
        storage: whether all machines see the same files.
    """

    machines: tuple[Machine, ...]
    link_bytes_per_second: float = 1.25e9
    link_seconds: float = 100e-6
    storage_bytes_per_second: float = 500e6
    task_seconds: float = 10e-6
    groups: tuple[LinkGroup, ...] = ()
    storage: Literal["shared", "private"] = "shared"
    cached_bytes_per_second: float | None = None
    open_seconds: float = 0.0
    store_seconds: float = 0.0
    call_seconds: float = 1e-6
    run_seconds: float = 0.0
    driver_bytes_per_second: float | None = None
    exchange_seconds: float = 0.0

    def __post_init__(self) -> None:
        names = [machine.name for machine in self.machines]
        if not names or len(set(names)) != len(names):
            raise PlanError("Machines(machines)", "there is no machine, or two share a name", inputs={"names": names})
        if self.storage not in ("shared", "private"):
            raise PlanError("Machines(storage)", f"storage is {self.storage!r}", legal="shared, private")
        for group in self.groups:
            if not 0 <= group.first < group.last <= len(names):
                raise PlanError(
                    "Machines(groups)",
                    f"group {group.name!r} holds machines {group.first}..{group.last - 1}",
                    legal=f"a range of 0..{len(names) - 1}",
                )

    def __len__(self) -> int:
        return len(self.machines)

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the machines as shards fill them: the largest memory first, as given among equals."""
        sizes = [-machine.memory_bytes for machine in self.machines]
        return tuple(sorted(range(len(sizes)), key=sizes.__getitem__))

    def waited_seconds(self, messages: Any) -> Any:
        """What messages to a step on a machine take, beside their bytes; of numbers, or of arrays of them."""
        return messages * self.link_seconds + (messages > 0) * self.exchange_seconds

    def read_bytes_per_second(self, stored: int) -> float:
        """Of sources in files of so many bytes: files that take less than half of a machine's memory are taken to be in
        the system's cache, as they are when a plan runs again."""
        cached = 2 * stored <= min(machine.memory_bytes for machine in self.machines)
        return (
            self.cached_bytes_per_second or self.storage_bytes_per_second if cached else self.storage_bytes_per_second
        )

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of devices, in order; an empty name among them where only some machines have one."""
        found = tuple(sorted({machine.gpu for machine in self.machines}))
        return found if any(found) else ()

    def __str__(self) -> str:
        first = self.machines[0]
        sizes = [size_text(m.memory_bytes) for m in self.machines]
        held = sorted(m.memory_bytes for m in self.machines)
        memory = sizes[0] if len(set(sizes)) == 1 else "/".join(sizes)
        memory = memory if len(sizes) <= 4 or len(set(sizes)) == 1 else f"{size_text(held[0])} to {size_text(held[-1])}"
        plural = "machine" if len(self) == 1 else "machines"
        cores = "1 core" if first.cores == 1 else f"{first.cores} cores"
        device = f", {' and '.join(one or 'none' for one in self.devices)}" if self.devices else ""
        return f"{len(self)} {plural} x {memory}, {cores}{device}, link {size_text(self.link_bytes_per_second)}/s"


def machine_tree(levels: Sequence[Level], machine: Machine | None = None, **rates: Any) -> Machines:
    """Equal machines behind nested links.

    Args:
        levels: the outermost first; the last one's groups are the machines.
        machine: what each is like; its name is replaced.
        rates: of `Machines`: ``storage_bytes_per_second``, ``task_seconds``, ``storage``.

    Example:
        >>> tree = machine_tree([Level("node", 2, 25e9), Level("device", 4, 300e9, 2e-6)], Machine("d", 1 << 30))
        >>> len(tree), [(g.name, g.first, g.last) for g in tree.groups]
        (8, [('node0', 0, 4), ('node1', 4, 8)])
    """
    for level in levels:
        if not isinstance(level.count, int) or level.count < 1:
            raise PlanError(
                "machine_tree(levels)", f"level {level.name!r} has {level.count!r} groups", legal="1 or more"
            )
    if not levels:
        raise PlanError("machine_tree(levels)", "there is no level", legal="such as [Level('node', 2, 25e9), ..]")
    count = prod(level.count for level in levels)
    if count > MOST_MACHINES:
        raise PlanError("machine_tree(levels)", f"the levels make {count} machines", legal=f"1..{MOST_MACHINES}")
    one, leaf = machine or Machine("m", _host_memory_bytes()), levels[-1]
    groups, inside = [], count
    for level in levels[:-1]:
        inside //= level.count
        groups += [
            LinkGroup(f"{level.name}{k}", k * inside, (k + 1) * inside, level.bytes_per_second, level.seconds)
            for k in range(count // inside)
        ]
    found = tuple(replace(one, name=f"{leaf.name}{k}") for k in range(count))
    return Machines(found, leaf.bytes_per_second, leaf.seconds, groups=tuple(groups), **rates)


def _host_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30


def machines(
    count: int | str | os.PathLike[str] | Machines = 1,
    *,
    memory: str | int | None = None,
    cores: int | None = None,
    flops_per_second: float | None = None,
    bytes_per_second: float | None = None,
    link_bytes_per_second: float | None = None,
    task_seconds: float | None = None,
    gpu: str | None = None,
) -> Machines:
    """A number of equal machines, or the machines that a TOML file describes.

    Args:
        count: how many, or the path of a TOML file, or machines to change.
        memory: of each machine, as bytes or text such as ``"2GiB"``; this host's memory, shared equally, by default.
        cores: threads per machine.
        flops_per_second: per machine, of every element type and of functions too.
        bytes_per_second: memory bandwidth per machine, in caches too.
        link_bytes_per_second: into each machine.
        task_seconds: the runtime's own cost of one task.
        gpu: the kind of the device of each, such as ``"sm_90a"``.

    Raises:
        PlanError: a count below one, an amount that is no amount, a file that does not describe machines.

    Example:
        >>> str(machines(4, memory="2GiB", cores=2))
        '4 machines x 2 GiB, 2 cores, link 1.16 GiB/s'
    """
    if isinstance(count, Machines):
        out = count
    elif isinstance(count, (str, os.PathLike)):
        out = _from_toml(Path(count))
    else:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_MACHINES:
            legal = f"1..{MOST_MACHINES}, or a TOML file"
            raise PlanError("machines(count)", f"{count!r} machines cannot be used", legal=legal)
        share = max(1, _host_memory_bytes() // count)
        threads = max(1, (os.cpu_count() or 1) // count)
        out = _equal(count, share, threads)
    each: dict[str, Any] = {}
    if flops_per_second is not None:  # rates that go with others than those given would say nothing
        each |= {"functions_per_second": None, "flops": ()}
    if bytes_per_second is not None:
        each |= {"caches": (), "crossing": 1.0}
    if memory is not None:
        each["memory_bytes"] = bytes_from(memory, "machines(memory)")
    for name, value in (
        ("cores", cores),
        ("flops_per_second", flops_per_second),
        ("bytes_per_second", bytes_per_second),
    ):
        if value is not None:
            each[name] = _positive("machines", name, value)
    if gpu is not None:
        each["gpu"] = _device("machines(gpu)", gpu)
    shared = {"link_bytes_per_second": link_bytes_per_second, "task_seconds": task_seconds}
    given = {name: _positive("machines", name, value) for name, value in shared.items() if value is not None}
    if each:
        given["machines"] = tuple(replace(m, **each) for m in out.machines)
    return replace(out, **given) if given else out


CORE_BYTES_PER_SECOND, MOST_BYTES_PER_SECOND = 15e9, 200e9
"""What one core reads and writes, and the most that all of a machine do. `bench/planner.py defaults` holds what follows
against measured seconds."""
CORE_CACHE_BYTES_PER_SECOND = 50e9, 35e9
"""The same in the second cache and in the last one."""
CORE_FUNCTIONS_PER_SECOND = 3e9
CROSSING = 6.0
HOST_TASK: dict[str, Any] = {"task_seconds": 5e-6, "call_seconds": 1e-6, "run_seconds": 2e-6}
"""Of a task in a process (where files are read, it is up to ten times as long), of a native call, and of a run."""
HOST_FILES: dict[str, Any] = {"cached_bytes_per_second": 10e9, "open_seconds": 200e-6, "store_seconds": 5e-3}
"""Of a solid-state disk and a file system of today, within a factor of 3."""


@lru_cache(maxsize=64)
def _equal(count: int, memory_bytes: int, cores: int) -> Machines:
    """Machines of this host: the same value for the same numbers, so that a plan of a graph is known again at once."""
    memory = min(CORE_BYTES_PER_SECOND * cores, MOST_BYTES_PER_SECOND)
    _, second, last = cache_bytes()
    held = second * cores, last * last_caches() // count
    near, far = ((size, rate * cores) for size, rate in zip(held, CORE_CACHE_BYTES_PER_SECOND, strict=True))
    caches = (near, far) if far[0] > near[0] else (near,)
    one = Machine("", memory_bytes, cores, 50e9 * cores, memory, caches=caches, crossing=CROSSING)
    one = replace(one, functions_per_second=CORE_FUNCTIONS_PER_SECOND * cores)
    return Machines(tuple(replace(one, name=f"m{k}") for k in range(count)), **HOST_TASK, **HOST_FILES)


def _positive(where: str, name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise PlanError(where, f"{name} is {value!r}", legal="a positive number")
    return value


def _duration(where: str, name: str, value: Any) -> Any:
    """A number of seconds, 0 too: what takes no time worth counting."""
    return value if type(value) in (int, float) and value == 0 else _positive(where, name, value)


def _device(where: str, gpu: object) -> str:
    """The kind of a device that there are kernels for."""
    if gpu == "":
        return ""
    try:
        if isinstance(gpu, str) and isinstance(backend(gpu), OfDevice):
            return gpu
    except BackendError:
        pass
    raise PlanError(where, f"{gpu!r} is no device that is known", legal="such as sm_80, sm_90a, sm_100a")


_MACHINE_KEYS = {"memory" if name == "memory_bytes" else name for name in Machine.__dataclass_fields__}
_LEVEL_KEYS = {"name", "count", "bytes_per_second", "seconds"}
_TABLES = {
    "link": {
        "bytes_per_second": "link_bytes_per_second",
        "seconds": "link_seconds",
        "exchange_seconds": "exchange_seconds",
        "driver_bytes_per_second": "driver_bytes_per_second",
    },
    "storage": {
        "bytes_per_second": "storage_bytes_per_second",
        "cached_bytes_per_second": "cached_bytes_per_second",
        "open_seconds": "open_seconds",
        "store_seconds": "store_seconds",
        "kind": "storage",
    },
    "task": {"seconds": "task_seconds", "call_seconds": "call_seconds", "run_seconds": "run_seconds"},
}


def _from_toml(path: Path) -> Machines:
    where = f"machines({str(path)!r})"
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise PlanError(where, f"the file cannot be read: {error.strerror}", legal="a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(where, f"the file is not TOML: {error}", legal="a TOML file") from None
    _known(where, document, {"defaults", "machine", "level", *_TABLES})
    defaults = _table(where, document, "defaults")
    shared: dict[str, Any] = {}
    for table, names in _TABLES.items():
        rates = _table(where, document, table)
        _known(f"{where} [{table}]", rates, set(names))
        if table == "storage" and "kind" in rates:
            shared["storage"] = rates.pop("kind")
        for key, value in rates.items():
            check = _duration if key.endswith("seconds") else _positive
            shared[names[key]] = check(f"{where} [{table}]", key, value)
    levels = [_level(f"{where} [[level]] {k}", row) for k, row in enumerate(_rows(where, document, "level"))]
    rows = _rows(where, document, "machine")
    if levels:
        if rows or "link" in document:
            raise PlanError(where, "levels stand beside machines or [link]", legal="[[level]] tables and [defaults]")
        one = _machine(where, {"name": "m", "memory": _host_memory_bytes()} | defaults)
        return machine_tree(levels, one, **{k: v for k, v in shared.items() if not k.startswith("link")})
    if not rows:
        raise PlanError(where, "there is no [[machine]]", legal="at least one [[machine]] table")
    counts = [row.pop("count", 1) for row in rows]
    for number, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_MACHINES:
            raise PlanError(f"{where} [[machine]] {number}", f"count is {count!r}", legal=f"1..{MOST_MACHINES}")
    if sum(counts) > MOST_MACHINES:
        raise PlanError(where, f"there are {sum(counts)} machines", legal=f"1..{MOST_MACHINES}")
    found: list[Machine] = []
    for number, (row, count) in enumerate(zip(rows, counts, strict=True)):
        _known(f"{where} [[machine]] {number}", row, _MACHINE_KEYS)
        base = {"name": f"m{len(found)}", "memory": _host_memory_bytes() // sum(counts)} | defaults | row
        one = _machine(f"{where} [[machine]] {number}", base)
        found.append(one)
        found += [
            replace(one, name=f"{row['name']}{k}" if "name" in row else f"m{len(found) + k - 1}")
            for k in range(1, count)
        ]
    return Machines(tuple(found), **shared)


def to_toml(used: Machines) -> str:
    """The description of machines as TOML, which `machines` reads back.

    Raises:
        PlanError: machines share links in groups (levels are written by hand).

    Example:
        >>> used = machines(2, memory="2GiB", cores=4, flops_per_second=1e11, bytes_per_second=3e10)
        >>> print(to_toml(used).split("[[machine]]")[1].strip())
        name = "m0"
        memory = 2147483648
        cores = 4
        flops_per_second = 100000000000.0
        bytes_per_second = 30000000000.0
    """
    if used.groups:
        raise PlanError("to_toml(machines)", "machines share links in groups", legal="machines without groups")
    lines = []
    for table, names in _TABLES.items():
        values = {key: getattr(used, name) for key, name in names.items()}
        lines += [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in values.items() if value is not None), ""]
    for one in used.machines:
        rows: dict[str, Any] = {
            "name": one.name,
            "memory": one.memory_bytes,
            "cores": one.cores,
            "flops_per_second": one.flops_per_second,
            "bytes_per_second": one.bytes_per_second,
            "link_bytes_per_second": one.link_bytes_per_second,
            "functions_per_second": one.functions_per_second,
            "crossing": one.crossing if one.crossing != 1 else None,
            "gpu": one.gpu or None,
        }
        lines += ["[[machine]]", *(f"{key} = {_toml(value)}" for key, value in rows.items() if value is not None)]
        if one.caches:
            lines.append(f"caches = [{', '.join(f'[{size}, {_toml(rate)}]' for size, rate in one.caches)}]")
        if one.flops:
            lines.append(f"flops = {{ {', '.join(f'{name} = {_toml(rate)}' for name, rate in one.flops)} }}")
        lines.append("")
    return "\n".join(lines)


def _toml(value: str | float) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _rows(where: str, document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = document.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise PlanError(where, f"{name} is not a list of tables", legal=f"[[{name}]] tables")
    return [dict(row) for row in rows]


def _machine(where: str, values: dict[str, Any]) -> Machine:
    memory_bytes = bytes_from(values.pop("memory"), where)
    flops = values.pop("flops", {})
    if not isinstance(flops, dict):
        raise PlanError(where, f"flops is {flops!r}", legal="a table of element types and operations per second")
    values["gpu"] = _device(where, values.get("gpu", ""))
    if not isinstance(values["name"], str) or not isinstance(values.get("cores", 1), int):
        raise PlanError(where, "name is not text, or cores is not an integer")
    values["caches"] = _caches(where, values.get("caches", []))
    for name, value in [*values.items(), *flops.items()]:
        if name not in ("name", "gpu", "caches"):
            _positive(where, name, value)
    rates = sorted((element_type(f"{where} flops", name).name, rate) for name, rate in flops.items())
    return Machine(memory_bytes=memory_bytes, flops=tuple(rates), **values)


def _caches(where: str, rows: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise PlanError(where, f"caches is {rows!r}", legal="[[bytes, bytes per second], ..]")
    found = tuple((bytes_from(size, where), _positive(where, "caches", rate)) for size, rate in rows)
    _increasing(where, found)
    return found


def _increasing(where: str, caches: Sequence[tuple[int, float]]) -> None:
    if any(one[0] >= other[0] for one, other in pairwise(caches)):
        raise PlanError(where, f"caches is {list(map(list, caches))}", legal="sizes that increase")


def _level(where: str, row: dict[str, Any]) -> Level:
    _known(where, row, _LEVEL_KEYS)
    if not isinstance(row.get("name"), str) or "count" not in row or "bytes_per_second" not in row:
        raise PlanError(where, "a level needs name, count and bytes_per_second", legal=", ".join(sorted(_LEVEL_KEYS)))
    for name, value in row.items():
        if name != "name":
            _positive(where, name, value)
    return Level(**row)


def _table(where: str, document: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise PlanError(where, f"{name} is not a table", legal=f"[{name}]")
    if name == "defaults":
        _known(f"{where} [defaults]", table, _MACHINE_KEYS - {"name"})
    return dict(table)


def _known(where: str, table: Mapping[str, Any], names: set[str]) -> None:
    unknown = sorted(set(table) - names)
    if unknown:
        raise PlanError(where, f"{unknown[0]!r} is not known here", legal=", ".join(sorted(names)))
