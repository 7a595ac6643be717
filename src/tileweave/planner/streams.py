"""Streams: steps whose waves follow each other one to one, and so are issued wave by wave.

A chain of operations that are cut alike into waves never holds more than a wave of what lies between them. A step
joins the stream of what it reads where each of its waves needs only that wave of every step of the stream. A store in
larger blocks than its stream's waves, since a file has chunks, trails behind: each block is written when the last wave
that it needs is made. Anything else is finished first. Waves of a reduction that add to one block follow each other
inside a wave of that block, or, where what they read streams, one to one with it. Streams are in an order in which they
could run one after the other.

Source: own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tileweave.graph import Operation, Selector, Sink, Source, Tensor
from tileweave.graph.ops.operators import operator_of
from tileweave.planner.placement import IntArray
from tileweave.planner.plan import Step
from tileweave.planner.steps import drivers

Levels = tuple[tuple[int, int, tuple[int, ...]], ...]
"""(dimension of a tensor, waves, cuts of what moves it from 0) of the dimensions that have waves, in their order."""


class Trail(NamedTuple):
    """How a store in larger blocks trails behind the step that it stores.

    Args:
        made: number of the step that it stores.
        due: per wave of that step, the blocks of the store along ``dim`` that then can be written.
        dim: the dimension along which both go.
        held: the most blocks of the step that one machine then holds.
    """

    made: int
    due: tuple[tuple[int, ...], ...]
    dim: int
    held: int


class Stream(NamedTuple):
    """Steps that are issued wave by wave.

    Args:
        steps: their numbers.
        fine: whether waves that accumulate go one to one with those of the other steps, not several inside one; None
            where no step accumulates.
        trailing: stores -> how they trail behind the step that they store.
    """

    steps: list[int]
    fine: bool | None = None
    trailing: Mapping[int, Trail] = MappingProxyType({})


def streams(steps: Sequence[Step]) -> list[Stream]:
    """The streams of a plan's steps, dependencies first; most are one step."""
    needed = needed_steps(steps)
    stream_of: list[int] = []
    out: list[Stream] = []
    for number, step in enumerate(steps):
        last = max((stream_of[n] for n in needed[number]), default=-1)
        inside = [steps[n] for n in needed[number] if stream_of[n] == last]
        known = out[last].fine if inside else None
        ways = (known,) if known is not None else (True, False) if step.accumulated else (None,)
        way = next((w for w in ways if inside and all(_follows(step, made, bool(w)) for made in inside)), ...)
        trail = _trail(step, steps, needed[number]) if way is ... else None
        if trail is not None:
            row = out[last]
            out[last] = row._replace(trailing={**row.trailing, number: trail})
        elif way is ...:
            last = len(out)
            out.append(Stream([number], False if step.accumulated else None))
        else:
            out[last] = Stream([*out[last].steps, number], way, out[last].trailing)
        stream_of.append(last)
    return out


def issue_order(steps: Sequence[Step]) -> tuple[IntArray, IntArray]:
    """(step, shard) of every task by number, in the order in which they are issued.

    The shards of one wave of a step stand side by side.
    """
    if all(step.cuts.count == 1 for step in steps):
        return np.arange(len(steps)), np.zeros(len(steps), np.int64)
    found = []
    for row, fine, trailing in streams(steps):
        keys: list[IntArray] = []  # rows of (wave, place in the stream, step, shard), sorted by the first two
        for place, number in enumerate(row):
            where = steps[number].where
            waves, shards = where.in_waves(steps[number].accumulated)
            turn = 1 if fine else where.wave_count // steps[number].waves
            keys.append(np.stack([waves // turn, *(np.full_like(waves, k) for k in (place, number)), shards], 1))
        for place, (number, trail) in enumerate(trailing.items(), len(row)):
            grid = steps[number].cuts.grid
            shards = np.moveaxis(np.arange(prod(grid)).reshape(grid), trail.dim, 0).reshape(grid[trail.dim], -1)
            for wave, due in enumerate(trail.due):
                blocks = shards[list(due)].reshape(-1)
                keys.append(np.stack([*(np.full_like(blocks, k) for k in (wave, place, number)), blocks], 1))
        table = np.concatenate(keys)
        found.append(table[np.lexsort((table[:, 1], table[:, 0]))])
    whole = np.concatenate(found) if found else np.zeros((0, 4), np.int64)
    return whole[:, 2], whole[:, 3]


def needed_steps(steps: Sequence[Step], *, reads_only: bool = False) -> list[dict[int, None]]:
    """Per step, the numbers of the steps before it: those that it reads, and (unless told) those by sequence points."""
    made: dict[Operation, int] = {}
    nodes: dict[Operation | Sink, list[int]] = {}
    out: list[dict[int, None]] = []
    for number, step in enumerate(steps):
        node = step.node
        needed: dict[int, None] = {}
        if isinstance(node, Operation) and not reads_only:
            for point in node.after:
                needed |= {n: None for held in point.before for n in nodes.get(held, ())}
        if step.stage == "combine" and isinstance(node, Operation):
            needed[made[node]] = None
        for tensor in read_tensors(step):
            needed |= {made[maker]: None for maker in _origins(tensor)}
        nodes.setdefault(node, []).append(number)
        if isinstance(node, Operation):
            made[node] = number
        out.append(needed)
    return out


def read_tensors(step: Step) -> list[Tensor]:
    """The tensors that a step reads, its own partial results left out."""
    node = step.node
    if isinstance(node, Sink):
        return [node.tensor]
    late = operator_of(node).finish
    when = {"partial": (False,), "combine": (True,)}.get(step.stage, (False, True))
    return [tensor for name, tensor in node.inputs if (name in late) in when]


_ORIGINS: weakref.WeakKeyDictionary[Tensor, tuple[Operation, ...]] = weakref.WeakKeyDictionary()


def _origins(tensor: Tensor) -> tuple[Operation, ...]:
    """The operations that a tensor's values come from."""
    known, todo = _ORIGINS, [tensor]
    while todo:
        at = todo[-1]
        producer = at.producer
        if at in known:
            todo.pop()
        elif isinstance(producer, Selector):
            missing = [t for _, t in producer.inputs if t not in known]
            todo += missing
            if not missing:
                known[at] = tuple(dict.fromkeys(o for _, t in producer.inputs for o in known[t]))
        else:
            known[at] = () if isinstance(producer, Source) else (producer,)
    return known[tensor]


def _follows(reader: Step, made: Step, fine: bool) -> bool:
    """Whether each wave of a step needs only the same wave of what a step makes."""
    waves = [step.where.wave_count if fine else step.waves for step in (reader, made)]
    if (
        made.spilled
        or waves[0] == 1
        or waves[0] != waves[1]
        or not isinstance(made.node, Operation)
        or (fine and made.accumulated)
    ):
        return False
    if reader.stage == "combine" and made.node is reader.node:
        tensor = Tensor(made.node, reader.outputs[0])
        return _made_levels(made, tensor) == _made_levels(reader, tensor) is not None
    if made.stage == "partial" or reader.stage == "combine":
        return False
    if isinstance(reader.node, Operation) and made.node in {n for point in reader.node.after for n in point.before}:
        return False
    tensors = [t for t in read_tensors(reader) if not isinstance(t.producer, Source)]
    mine = [t for t in tensors if t.producer is made.node]
    through = [t for t in tensors if isinstance(t.producer, Selector) and made.node in _origins(t)]
    if through or not mine:
        return False
    return all(_read_levels(reader, t, fine) == _made_levels(made, t) is not None for t in mine)


def _trail(store: Step, steps: Sequence[Step], needed: Iterable[int]) -> Trail | None:
    """How a store trails behind the step that it stores; None where they do not go along one and the same dimension."""
    made = next(iter(needed), None)
    if (
        not isinstance(store.node, Sink)
        or made is None
        or steps[made].spilled
        or store.where.run
        or steps[made].where.run
    ):
        return None
    tensor, step = store.node.tensor, steps[made]
    if tensor.producer is not step.node or step.stage == "partial":
        return None
    levels = _made_levels(step, tensor)
    grid = store.cuts.grid
    if levels is None or len(levels) != 1 or step.waves != levels[0][1]:
        return None
    ((dim, waves, edges),) = levels
    if any(n > 1 for k, n in enumerate(store.where.waves) if k != dim) or prod(grid) != grid[dim]:
        return None
    due, held = _due(edges, store.cuts.cuts[dim], waves)
    return Trail(made, due, dim, held) if held < waves else None


@lru_cache(maxsize=1 << 8)
def _due(made: tuple[int, ...], stored: tuple[int, ...], waves: int) -> tuple[tuple[tuple[int, ...], ...], int]:
    """(per wave of what is made, the stored blocks that then are complete; the most made blocks that a machine holds).

    Args:
        made: boundaries of the blocks of a step; so many ``waves`` after one another are on one machine.
        stored: boundaries of the blocks of a store.
        waves: of the step.
    """
    due: list[list[int]] = [[] for _ in range(waves)]
    kept = np.zeros((len(made) // waves + 1, waves + 1), np.int64)  # blocks that come, less those that go, per machine
    first = 0
    release = np.zeros(len(made) - 1, np.int64)
    for block, (low, high) in enumerate(pairwise(stored)):
        while made[first + 1] <= low:
            first += 1
        last = first
        while made[last + 1] < high:
            last += 1
        need = waves - 1 if last // waves > first // waves else last % waves
        due[need].append(block)
        release[first : last + 1] = np.maximum(release[first : last + 1], need)
        first = last
    numbers = np.arange(len(release))
    np.add.at(kept, (numbers // waves, numbers % waves), 1)
    np.add.at(kept, (numbers // waves, release + 1), -1)
    return tuple(map(tuple, due)), int(kept.cumsum(1).max())


def _made_levels(made: Step, tensor: Tensor) -> Levels | None:
    node = made.node
    if made.stage == "combine" or not isinstance(node, Operation):
        rows: tuple[int | None, ...] = tuple(range(len(tensor.shape)))
    elif node.signature is None or not _plain(node.signature.output(tensor.output).map.matrix):
        return None
    else:
        rows = drivers(node, tensor.output)
    return _levels(made, rows)


def _read_levels(reader: Step, tensor: Tensor, fine: bool) -> Levels | None:
    node = reader.node
    if isinstance(node, Sink):
        return _levels(reader, tuple(range(len(tensor.shape))))
    if node.signature is None:
        return None
    found: Levels | None = None
    for name, one in node.inputs:
        if one is not tensor:
            continue
        projection = node.signature.input(name)
        if not _plain(projection.map.matrix):
            return None
        rows = tuple(next((k for k, c in enumerate(row) if c), None) for row in projection.map.matrix)
        waved = {k for k in rows if k is not None and reader.where.waves[k] > 1}
        if any(projection.shape[r] != 1 for r, k in enumerate(rows) if k in waved):
            return None
        levels = _levels(reader, rows, fine)
        if levels is None or (found is not None and levels != found):
            return None
        found = levels
    return found


def _plain(matrix: Sequence[Sequence[int]]) -> bool:
    """Whether every row is moved by at most one dimension, by ones."""
    return all(sum(c != 0 for c in row) <= 1 and all(c in (0, 1) for c in row) for row in matrix)


def _levels(step: Step, rows: Sequence[int | None], fine: bool = False) -> Levels | None:
    """The cuts of the dimensions that have waves, in the order of the waves; None where one moves no row, or two."""
    if step.where.run:
        return None
    out, inner = [], step.accumulated
    for k in (*(k for k in range(len(step.where.waves)) if k not in inner), *(inner if fine else ())):
        waves = step.where.waves[k]
        if waves > 1:
            at = [r for r, d in enumerate(rows) if d == k]
            edges = step.cuts.cuts[k]
            if len(at) != 1:
                return None
            out.append((at[0], waves, edges if not edges[0] else tuple(e - edges[0] for e in edges)))
    return tuple(out)
