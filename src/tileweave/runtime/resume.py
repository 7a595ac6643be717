"""Going on with a run that did not end: what must be the same, and what is left to do.

Source: own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.graph import ArrayData, FileData, Source, to_json
from tileweave.planner import Plan, Read
from tileweave.runtime.io.journal import Identity
from tileweave.runtime.prepare import Prepared, with_tasks
from tileweave.space import Box

Array = np.ndarray[Any, Any]


def identity(plan: Plan, prepared: Prepared, bind: Mapping[Source, Array]) -> Identity:
    """What tells a run apart from runs that compute something else, or cut it otherwise; rates of machines do not."""
    steps = [(s.stage, s.cuts.cuts, s.where, s.outputs, s.kernel) for s in plan.steps]
    parts = to_json(plan.graph, arrays="omit"), repr(steps), repr(len(plan.machines))
    sources: dict[str, str] = {}
    for number, source in enumerate(prepared.sources):
        name = source.data.path if isinstance(source.data, FileData) else source.name or "array"
        sources[f"{name} ({number})"] = _content(source, bind)
    return Identity(_digest(part.encode() for part in parts), sources)


def _digest(parts: Iterator[Any]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _content(source: Source, bind: Mapping[Source, Array]) -> str:
    """What tells the content of a source apart: a digest of an array; place, size and time of a file's last change."""
    data = source.data
    array = bind.get(source, data.array if isinstance(data, ArrayData) else None)
    if array is not None:
        return _digest(iter([np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]))
    return _digest(text.encode() for text in _stamps(data.path)) if isinstance(data, FileData) else "nothing"


def _stamps(path: str) -> Iterator[str]:
    if "://" in path:
        import fsspec

        fs, inside = fsspec.core.url_to_fs(path)
        found = fs.find(inside) or [inside]
        yield from (f"{name} {fs.ukey(name)}" for name in sorted(found))
        return
    whole = Path(path).resolve()
    files = [whole] if whole.is_file() else sorted(Path(folder) / n for folder, _, ns in os.walk(whole) for n in ns)
    for one in files:
        stat = one.stat()
        yield f"{one} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"


def remaining(prepared: Prepared, finished: Sequence[Collection[Box]]) -> Prepared:
    """What is left of a plan's tasks where parts of its sinks are finished: the other stores, and what they need.

    Args:
        prepared: the plan.
        finished: per sink, the parts that need not be stored again.
    """
    if not any(finished):
        return prepared
    wanted = [False] * len(prepared.tasks)
    for task in reversed(prepared.tasks):
        sink = prepared.sink(task)
        if sink >= 0:
            wanted[task.number] = task.index not in finished[sink]
        if wanted[task.number]:
            for number in task.needs:
                wanted[number] = True
    numbers = {task.number: k for k, task in enumerate(t for t in prepared.tasks if wanted[t.number])}

    def renumbered(read: Read) -> Read:
        pieces = tuple(replace(piece, task=numbers.get(piece.task, piece.task)) for piece in read.pieces)
        return replace(read, pieces=pieces)

    left = tuple(
        replace(
            task,
            number=numbers[task.number],
            reads=tuple(map(renumbered, task.reads)),
            needs=tuple(numbers[number] for number in task.needs),
        )
        for task in prepared.tasks
        if wanted[task.number]
    )
    return with_tasks(prepared, left)
