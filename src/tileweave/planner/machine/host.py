"""The machines of this host, or those that a file describes."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tileweave.backends.host import cache_bytes, last_caches
from tileweave.errors import PlanError
from tileweave.planner.machine.toml import device, from_toml
from tileweave.planner.machine.values import MOST_MACHINES, Machine, Machines, bytes_from, host_memory_bytes, positive


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
        out = from_toml(Path(count))
    else:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_MACHINES:
            legal = f"1..{MOST_MACHINES}, or a TOML file"
            raise PlanError("machines(count)", f"{count!r} machines cannot be used", legal=legal)
        share = max(1, host_memory_bytes() // count)
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
            each[name] = positive("machines", name, value)
    if gpu is not None:
        each["gpu"] = device("machines(gpu)", gpu)
    shared = {"link_bytes_per_second": link_bytes_per_second, "task_seconds": task_seconds}
    given = {name: positive("machines", name, value) for name, value in shared.items() if value is not None}
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
