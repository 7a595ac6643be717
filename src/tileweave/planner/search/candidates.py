"""What the search may choose: meshes, and for each operation (or source that the plan places) shardings along them.

A mesh numbers machines by a few coordinates. Each of its axes cuts one dimension of an operation's index, or none. All
operations share a few meshes, so neighbours that are cut alike keep their data where it is. The meshes come from the
best grids of the products in the graph, from the tree of machines, and from plain factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations, product
from math import prod

import numpy as np

from tileweave.graph import Graph, Operation
from tileweave.planner.bounds import best_factor_grid, best_grid, product_of
from tileweave.planner.costs import Held, index_of_boxes, input_boxes, output_boxes
from tileweave.planner.machine import Machines
from tileweave.planner.placement import (
    Boxes,
    Digits,
    IntArray,
    Mesh,
    Placement,
    machine_boxes,
    mesh_digits,
    part_bounds,
)
from tileweave.planner.steps import Sharding, combine_placement, index_placement, uncut
from tileweave.space import Box

Size = Callable[[Sequence[int]], float]
MOST_MESHES = 4
"""Of a graph of many operations: every mesh adds shardings to each of them, and neighbours are costed pair by pair."""
FEW_OPERATIONS = 40
"""Graphs of up to so many operations are offered twice as many meshes, and every power of two of waves."""
MOST_SHARDINGS = 64
"""Shardings that one operation is offered; a pair of neighbours is costed for all pairs of them."""
MOST_LOOKED_AT = 512
"""Machines that cost tables look at, of those that are alike."""
MOST_ENTRIES = 1 << 22
"""Entries (candidates x candidates x machines) of a cost table; fewer candidates are offered on many machines."""


def meshes(graph: Graph, machines: Machines, extra: Sequence[Mesh] = ()) -> list[Mesh]:
    """The meshes that plans of a graph are built on, the most useful first."""
    count = len(machines)
    if count == 1:
        return [()]
    work: dict[Mesh, float] = {}
    for operation in graph.operations:
        found = product_of(operation)
        if found is not None:
            for grid, _ in (best_grid(*found.shape, count), best_factor_grid(*found.shape, count)):
                mesh = tuple(g for g in grid if g > 1)
                work[mesh] = work.get(mesh, 0.0) + float(operation.index.size)
    heavy = sorted((mesh for mesh in work if mesh), key=lambda mesh: -work[mesh])
    tree: list[Mesh] = []
    sizes = sorted({group.last - group.first for group in machines.groups}, reverse=True)
    if sizes and all(count % n == 0 for n in sizes):
        edges = [count, *sizes, 1]
        tree = [tuple(a // b for a, b in pairwise(edges) if a // b > 1)]
    square = max((n for n in range(1, int(count**0.5) + 1) if count % n == 0), default=1)
    plain: list[Mesh] = [(count,), (count // square, square)] if square > 1 else [(count,)]
    most = MOST_MESHES if len(graph.operations) > FEW_OPERATIONS else 2 * MOST_MESHES
    plain += [(count // n, n) for n in (4, 2, 8) if count % n == 0 and count > n]
    found_meshes = [*extra, (count,), *tree, *heavy[: MOST_MESHES - 1], *plain]
    return list(dict.fromkeys(mesh for mesh in found_meshes if prod(mesh) <= count))[: most + len(extra)]


def shardings(
    shape: Sequence[int],
    on: Sequence[Mesh],
    fixed: frozenset[int],
    most: int,
    *,
    ordered: bool = True,
    size: Size = prod,
) -> list[tuple[Digits, ...]]:
    """The ways to cut a box along meshes, the whole box first.

    Args:
        shape: extents.
        on: meshes.
        fixed: dimensions that are not cut.
        most: how many to list; of each mesh those of least size, then those that cut fewer dimensions.
        ordered: whether the axes that cut one dimension come in every order.
        size: what a block of these extents reads and makes.
    """
    rank = len(shape)
    whole: tuple[Digits, ...] = ((),) * rank
    found: dict[tuple[Digits, ...], tuple[float, int, int]] = {}
    free = [d for d in range(rank) if d not in fixed and shape[d] > 1]
    for number, mesh in enumerate(on):
        for digits in _along(shape, mesh, free, ordered):
            block = [-(-n // prod(extent for extent, _ in row)) for n, row in zip(shape, digits, strict=True)]
            found.setdefault(digits, (float(size(block)), number, sum(bool(row) for row in digits)))
        count = prod(mesh)
        for d in free:  # a dimension shorter than the machines are many
            if shape[d] < count:
                row: Digits = ((shape[d], 1),)
                block = [1 if k == d else n for k, n in enumerate(shape)]
                found.setdefault(tuple(row if k == d else () for k in range(rank)), (float(size(block)), len(on), 1))
    listed = sorted((d for d in found if any(d)), key=lambda d: found[d])
    turns: dict[int, int] = {}
    place = {}  # every mesh gives as many as the others
    for digits in listed:
        number = found[digits][1]
        place[digits] = turns[number] = turns.get(number, 0) + 1
    kept = set(sorted(listed, key=lambda d: (place[d], found[d]))[: most - 1])
    return [whole, *(d for d in listed if d in kept)]


def _along(shape: Sequence[int], mesh: Mesh, free: Sequence[int], ordered: bool) -> Iterator[tuple[Digits, ...]]:
    """Every assignment of mesh axes to free dimensions, or to none, whose parts are not empty.

    Args:
        shape: extents.
        mesh: extents of the axes.
        free: dimensions that may be cut.
        ordered: whether the axes of one dimension come in every order, not only the slowest first.
    """
    for chosen in product([*free, None], repeat=len(mesh)):
        axes = [[a for a, d in enumerate(chosen) if d == k] for k in range(len(shape))]
        if all(prod(mesh[a] for a in row) <= n for row, n in zip(axes, shape, strict=True)):
            ways = [list(permutations(row)) if ordered else [row] for row in axes]
            for rows in product(*ways):
                yield tuple(mesh_digits(mesh, row) for row in rows)


@dataclass(frozen=True, eq=False)
class Offered:
    """The candidates of one node, as arrays (candidate, machine).

    Args:
        choices: shardings of the index; for a source, placements of the tensor as shardings.
        index: boxes of the index.
        partial: per candidate, whether it makes partial results.
        combined: boxes of the combined results, where there are any.
        parts: per candidate, how many partial results there are of each element.
    """

    choices: tuple[Sharding, ...]
    index: Boxes
    partial: np.ndarray[tuple[int], np.dtype[np.bool_]]
    combined: Boxes | None
    parts: IntArray
    operation: Operation | None
    shape: tuple[int, ...]

    def needs(self, name: str, late: bool) -> Boxes:
        """The region of an input that each candidate's machines need."""
        operation = self.operation
        if operation is None:
            return self.index
        main = input_boxes(operation, name, self.index)
        if not late or self.combined is None:
            return main
        output = operation.outputs[0][0]
        return _chosen(
            self.partial, input_boxes(operation, name, index_of_boxes(operation, output, self.combined)), main
        )

    def holds(self, output: str) -> Held:
        """Where each candidate's result lies."""
        operation = self.operation
        if operation is None:
            boxes, shape = self.index, self.shape
        else:
            boxes, shape = output_boxes(operation, output, self.index), operation.output_types[output].shape
            if self.combined is not None:
                boxes = _chosen(self.partial, self.combined, boxes)
        parts = [np.maximum((high - low).max(-1), 1) for low, high in zip(boxes.low, boxes.high, strict=True)]
        grid = tuple(np.maximum(-(-n // longest), 1)[None, :, None] for n, longest in zip(shape, parts, strict=True))
        lifted = Boxes([x[None] for x in boxes.low], [x[None] for x in boxes.high], boxes.here[None])
        return Held((lifted,), None, shape, grid)


def _chosen(which: np.ndarray[tuple[int], np.dtype[np.bool_]], yes: Boxes, no: Boxes) -> Boxes:
    at = which[:, None]
    low = [np.where(at, a, b) for a, b in zip(yes.low, no.low, strict=True)]
    high = [np.where(at, a, b) for a, b in zip(yes.high, no.high, strict=True)]
    return Boxes(low, high, np.where(at, yes.here, no.here))


def offered(operation: Operation, choices: Sequence[Sharding], count: int, at: IntArray) -> Offered:
    """The candidates of an operation, on those of so many machines that are looked at."""
    places = [index_placement(operation, choice) for choice in choices]
    index = _stacked(operation.index.shape, operation.index.start, places, count, at)
    reduced = list(operation.signature.monoids) if operation.signature else []
    parts = np.asarray([prod(place.parts[k] for k in reduced) for place in places], np.int64)
    combined = None
    if (parts > 1).any():
        shape = operation.outputs[0][1].shape
        joined = [
            combine_placement(operation, p) if n > 1 else _nowhere(len(shape))
            for p, n in zip(places, parts, strict=True)
        ]
        combined = _stacked(shape, (0,) * len(shape), joined, count, at)
    return Offered(tuple(choices), index, parts > 1, combined, parts, operation, operation.index.shape)


def offered_home(shape: tuple[int, ...], choices: Sequence[Sharding], count: int, at: IntArray) -> Offered:
    """The candidates for where a source lies."""
    places = [_plain(choice) for choice in choices]
    boxes = _stacked(shape, (0,) * len(shape), places, count, at)
    one = np.ones(len(choices), np.int64)
    return Offered(tuple(choices), boxes, one > 1, None, one, None, shape)


def _plain(sharding: Sharding) -> Placement:
    return Placement(sharding.parts, sharding.digits, (1,) * len(sharding.digits), weights=sharding.weights)


def _nowhere(rank: int) -> Placement:
    return Placement((1,) * rank, ((),) * rank, (1,) * rank)


def looked_at(machines: Machines) -> IntArray:
    """The machines whose loads cost tables compute: all, or of many that are alike the ends and some between.

    Parts differ by a point at most, so few machines show what all of them do; plans are simulated on all.
    """
    count, first = len(machines), machines.machines[0]
    everything = np.arange(count, dtype=np.int64)
    if count <= MOST_LOOKED_AT or any(replace(m, name=first.name) != first for m in machines.machines):
        return everything
    ends, spread = MOST_LOOKED_AT // 8, np.random.default_rng(count).permutation(everything)[: MOST_LOOKED_AT // 2]
    step = everything[:: max(1, count // (MOST_LOOKED_AT // 4))]
    return np.unique(np.concatenate([everything[:ends], everything[-ends:], step, spread]))


def on_some(boxes: Boxes, at: IntArray) -> Boxes:
    """Boxes of all machines, on those that are looked at."""
    return boxes._replace(low=[x[at] for x in boxes.low], high=[x[at] for x in boxes.high], here=boxes.here[at])


def _stacked(
    shape: Sequence[int], start: Sequence[int], places: Sequence[Placement], count: int, at: IntArray
) -> Boxes:
    """The boxes of each placement as arrays (placement, machine); waves do not change what a machine holds."""
    found = []
    for place in places:
        rows = zip(shape, place.digits, start, strict=True)
        bounds = [part_bounds(n, row, place.weights, a) for n, row, a in rows]
        plain = Placement(place.parts, place.digits, (1,) * len(shape), place.replica, place.offset)
        found.append(on_some(machine_boxes(bounds, plain, count), at))
    low = [np.stack([boxes.low[k] for boxes in found]) for k in range(len(shape))]
    high = [np.stack([boxes.high[k] for boxes in found]) for k in range(len(shape))]
    return Boxes(low, high, np.stack([boxes.here for boxes in found]))


def operation_shardings(
    operation: Operation, on: tuple[Mesh, ...], count: int, limit: int | None = None
) -> tuple[Sharding, ...]:
    """The candidates of an operation, the whole one first."""
    rank = operation.index.rank
    whole = Sharding(((),) * rank, (1,) * rank)
    if count == 1 or operation.signature is None or operation.index.size <= 1:
        return (whole,)
    most = limit or max(4, min(MOST_SHARDINGS, int((MOST_ENTRIES / count) ** 0.5)))
    signature = operation.signature
    tensors = [projection for _, projection in (*signature.inputs, *signature.outputs)]

    def size(block: Sequence[int]) -> float:
        return sum(float(projection.span(Box.of(block)).size) for projection in tensors)

    fixed, plain = frozenset(uncut(operation)), not signature.monoids
    found = shardings(operation.index.shape, on, fixed, most, ordered=plain, size=size)
    return tuple(Sharding(digits, (1,) * rank) for digits in found)
