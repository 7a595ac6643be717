"""Machines: what a plan may use, with rates and sizes in plain units.

Rates are peak rates that the planner derates to `EFFICIENCY`; they decide between plans and estimate time.

Source: own; alpha-beta links and a task cost as in LogGP.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any, Literal

from tileweave.errors import PlanError
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


def positive(where: str, name: str, value: Any) -> Any:
    """The value, which must be a positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise PlanError(where, f"{name} is {value!r}", legal="a positive number")
    return value


def increasing(where: str, caches: Sequence[tuple[int, float]]) -> None:
    """Refuses caches whose sizes do not increase."""
    if any(one[0] >= other[0] for one, other in pairwise(caches)):
        raise PlanError(where, f"caches is {list(map(list, caches))}", legal="sizes that increase")


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
        increasing("Machine(caches)", self.caches)

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
        driver_bytes_per_second: of arrays of the process that runs the plan, on their way to machines, to one after
            the other; None: each machine has them over its own link, and the two rates that follow count for nothing.
        driver_result_bytes_per_second: of results on their way back; None: as of arrays.
        driver_object_seconds: of each object that either are (`planner.costs.OBJECT_BYTES`), beside its bytes.
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
    driver_object_seconds: float = 0.0
    driver_result_bytes_per_second: float | None = None

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

    def driver_seconds(self, taken: Any, results: Any, objects: Any) -> Any:
        """What bytes of arrays of the program, of its results, and so many objects take on their way through its
        process; of numbers, or of arrays of them."""
        to = self.driver_bytes_per_second or float("inf")
        back = self.driver_result_bytes_per_second or to
        return taken / to + results / back + objects * self.driver_object_seconds

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
    one, leaf = machine or Machine("m", host_memory_bytes()), levels[-1]
    groups, inside = [], count
    for level in levels[:-1]:
        inside //= level.count
        groups += [
            LinkGroup(f"{level.name}{k}", k * inside, (k + 1) * inside, level.bytes_per_second, level.seconds)
            for k in range(count // inside)
        ]
    found = tuple(replace(one, name=f"{leaf.name}{k}") for k in range(count))
    return Machines(found, leaf.bytes_per_second, leaf.seconds, groups=tuple(groups), **rates)


def host_memory_bytes() -> int:
    """Of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30
