"""Machines as TOML files describe them::

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
    driver_bytes_per_second = 3e9  # of a cluster: from the program, whose arrays it computes on, to all machines
    driver_result_bytes_per_second = 2e9  # and back; as to machines by default
    driver_object_seconds = 1e-3   # of each of these arrays and results; counted, as the former, only beside the first

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

Source: own.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tileweave.backends.base import OfDevice, backend
from tileweave.errors import BackendError, PlanError
from tileweave.graph.ir.dtypes import element_type
from tileweave.planner.machine.values import (
    MOST_MACHINES,
    Level,
    Machine,
    Machines,
    bytes_from,
    host_memory_bytes,
    increasing,
    machine_tree,
    positive,
)


def _duration(where: str, name: str, value: Any) -> Any:
    """A number of seconds, 0 too: what takes no time worth counting."""
    return value if type(value) in (int, float) and value == 0 else positive(where, name, value)


def device(where: str, gpu: object) -> str:
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
        "driver_result_bytes_per_second": "driver_result_bytes_per_second",
        "driver_object_seconds": "driver_object_seconds",
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


def from_toml(path: Path) -> Machines:
    """The machines that a file describes.

    Raises:
        PlanError: it does not.
    """
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
            check = _duration if key.endswith("seconds") else positive
            shared[names[key]] = check(f"{where} [{table}]", key, value)
    levels = [_level(f"{where} [[level]] {k}", row) for k, row in enumerate(_rows(where, document, "level"))]
    rows = _rows(where, document, "machine")
    if levels:
        if rows or "link" in document:
            raise PlanError(where, "levels stand beside machines or [link]", legal="[[level]] tables and [defaults]")
        one = _machine(where, {"name": "m", "memory": host_memory_bytes()} | defaults)
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
        base = {"name": f"m{len(found)}", "memory": host_memory_bytes() // sum(counts)} | defaults | row
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
        >>> from tileweave.planner.machine import machines
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
    values["gpu"] = device(where, values.get("gpu", ""))
    if not isinstance(values["name"], str) or not isinstance(values.get("cores", 1), int):
        raise PlanError(where, "name is not text, or cores is not an integer")
    values["caches"] = _caches(where, values.get("caches", []))
    for name, value in [*values.items(), *flops.items()]:
        if name not in ("name", "gpu", "caches"):
            positive(where, name, value)
    rates = sorted((element_type(f"{where} flops", name).name, rate) for name, rate in flops.items())
    return Machine(memory_bytes=memory_bytes, flops=tuple(rates), **values)


def _caches(where: str, rows: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise PlanError(where, f"caches is {rows!r}", legal="[[bytes, bytes per second], ..]")
    found = tuple((bytes_from(size, where), positive(where, "caches", rate)) for size, rate in rows)
    increasing(where, found)
    return found


def _level(where: str, row: dict[str, Any]) -> Level:
    _known(where, row, _LEVEL_KEYS)
    if not isinstance(row.get("name"), str) or "count" not in row or "bytes_per_second" not in row:
        raise PlanError(where, "a level needs name, count and bytes_per_second", legal=", ".join(sorted(_LEVEL_KEYS)))
    for name, value in row.items():
        if name != "name":
            positive(where, name, value)
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
