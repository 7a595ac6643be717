"""The search's cost tables: what each candidate costs alone, and what each pair of neighbours moves.

Tables are computed once per structure: operations that are alike (a model's layers) share theirs. A choice is one
number per node, so a trial of the search is a sum of table entries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tileweave.graph import FileTarget, Graph, Operation, Source, Tensor
from tileweave.graph.ops.operators import operator_of
from tileweave.planner.costs import (
    OBJECT_BYTES,
    Term,
    arithmetic,
    arrival,
    in_files,
    objects_of,
    output_boxes,
    stored_in_files,
    volume,
)
from tileweave.planner.loads import Loads, held_at
from tileweave.planner.machine import Machines
from tileweave.planner.placement import Mesh, Placement
from tileweave.planner.rates import Rates
from tileweave.planner.search.candidates import (
    Offered,
    looked_at,
    offered,
    offered_home,
    on_some,
    operation_shardings,
    shardings,
)
from tileweave.planner.steps import Sharding

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Measures:
    """What candidates, or pairs of them, cost.

    Args:
        seconds: of the slowest machine.
        words: bytes that the machine that receives most receives.
        moved: bytes that all machines receive.
        held: bytes of results on the machine that holds most.
    """

    seconds: Array
    words: Array
    moved: Array
    held: Array

    def __add__(self, other: Measures) -> Measures:
        return Measures(
            self.seconds + other.seconds, self.words + other.words, self.moved + other.moved, self.held + other.held
        )


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two nodes of which one reads the other's result: their numbers, and a table (maker's, reader's candidate)."""

    maker: int
    reader: int
    measures: Measures


class Tables:
    """The nodes of a graph that have a choice, their candidates, and what these cost.

    Args:
        graph: what is planned.
        machines: where.
        on: meshes.
        homes: where sources lie; a source that the plan places is in `placed` instead.
        placed: sources of which the plan places one balanced copy.
        allowed: operation -> the shardings that it may have, where these are limited.
        known: what depends on the graph alone.
        weights: by which machines have parts of unequal lengths; none: equal parts.
        disks: files that one machine reads for all.
        runs: whether cut reductions may be combined in runs, so by all machines evenly.
    """

    def __init__(
        self,
        graph: Graph,
        machines: Machines,
        on: Sequence[Mesh],
        homes: Mapping[Source, Placement],
        placed: Sequence[Source] = (),
        allowed: Mapping[Operation, Sequence[Sharding]] | None = None,
        known: Loads | None = None,
        *,
        weights: tuple[int, ...] = (),
        disks: Collection[Source] = (),
        runs: bool = False,
    ) -> None:
        self.runs, self.weights, self.disks = runs, weights, frozenset(disks)
        self.graph, self.machines, self.on = graph, machines, tuple(on)
        self.at = looked_at(machines)
        self.count, self.homes, self.known = len(machines), homes, known or Loads()
        self.nodes: list[Operation | Source] = [*placed, *graph.operations]
        self.number = {node: k for k, node in enumerate(self.nodes)}
        self.offers: list[Offered] = []
        self.alone: list[Measures] = []
        self.edges: list[Neighbours] = []
        self.into: list[list[Neighbours]] = [[] for _ in self.nodes]
        self.out: list[list[Neighbours]] = [[] for _ in self.nodes]
        self._offers: dict[Any, Offered] = {}
        self._tables: dict[Any, Measures] = {}
        self._weighed: dict[Any, Array] = {}
        order = machines.order
        filled = [machines.machines[order[k]] for k in self.at]
        self.scale = self.count / len(self.at)
        self.rates = Rates(machines, filled, stored=stored_in_files(graph)[1])
        self._kept: dict[Operation, list[str]] = {}
        for sink in graph.sinks:
            made = sink.tensor.producer
            if isinstance(made, Operation) and not isinstance(sink.target, FileTarget):
                self._kept.setdefault(made, []).append(sink.tensor.output)
        for node in self.nodes:
            self.offers.append(self._offer(node, (allowed or {}).get(node) if isinstance(node, Operation) else None))
            self.alone.append(self._alone(node, self.offers[-1]))
        for node in graph.operations:
            for edge in self._edges(node):
                self.edges.append(edge)
                self.into[edge.reader].append(edge)
                self.out[edge.maker].append(edge)

    # -- candidates

    def _offer(self, node: Operation | Source, allowed: Sequence[Sharding] | None) -> Offered:
        if isinstance(node, Source):
            key: Any = ("home", node.type.shape)
        else:
            finish = operator_of(node).finish
            key = (node.signature, node.index, node.outputs, finish, tuple(allowed) if allowed is not None else None)
        if key not in self._offers:
            if isinstance(node, Source):
                self._offers[key] = offered_home(node.type.shape, self._homes(node), self.count, self.at)
            else:
                choices = allowed if allowed is not None else operation_shardings(node, self.on, self.count)
                choices = [replace(choice, weights=self.weights) for choice in choices] if self.weights else choices
                self._offers[key] = offered(node, choices, self.count, self.at)
        return self._offers[key]

    def _homes(self, source: Source) -> list[Sharding]:
        """Placements of one copy that are as balanced as the meshes allow: every machine of a mesh holds a part."""
        rank = len(source.type.shape)
        found = shardings(source.type.shape, self.on, frozenset(), 64)
        ways = [Sharding(digits, (1,) * rank, self.weights) for digits in found]
        counts = [int(np.prod(way.parts)) for way in ways]
        full = [way for way, n in zip(ways, counts, strict=True) if n in {int(np.prod(mesh)) for mesh in self.on}]
        return full or [ways[counts.index(max(counts))]]

    # -- costs of a node alone

    def _alone(self, node: Operation | Source, offer: Offered) -> Measures:
        size = len(offer.choices)
        if isinstance(node, Source):
            zero = np.zeros(size)
            held = volume(offer.index).max(-1) * float(node.type.dtype.itemsize)
            return Measures(zero, zero, zero, held)
        kept, dtype = tuple(self._kept.get(node, ())), node.outputs[0][1].dtype
        key = ("alone", id(offer), *(self._terms_key(t) for _, t in node.inputs), dtype, kept)
        if key not in self._tables:
            self._tables[key] = self._operation_alone(node, offer)
        return self._tables[key]

    def _operation_alone(self, node: Operation, offer: Offered) -> Measures:
        machines = self.machines
        late = operator_of(node).finish
        points = volume(offer.index)
        flops, functions = (points * each for each in arithmetic(node))
        touched: Any = sum(
            volume(output_boxes(node, name, offer.index)) * kind.dtype.itemsize for name, kind in node.outputs
        )
        held: Any = touched
        crossed: Any = 0.0
        across = self.known.crossed(node)
        stored: Any = 0.0
        carried: Any = 0.0
        results: Any = 0.0
        objects: Any = np.zeros_like(points)
        served: Any = 0.0
        moved: Any = np.zeros_like(points)
        messages: Any = np.zeros_like(points)
        for name, tensor in node.inputs:
            region = offer.needs(name, name in late)
            size = volume(region) * tensor.dtype.itemsize
            touched, crossed = touched + size, crossed + size * (name in across)
            for term in self.known.terms_of(tensor):
                source = term.source
                if source is None or source in self.number:
                    continue
                home = self.homes.get(source)
                if home is None:
                    got, filed = arrival(term, region, None), in_files(source)
                    stored, carried = stored + got.moved * filed, carried + got.moved * (not filed)
                    objects = objects + objects_of(got, region) * (not filed)
                    continue
                lying = held_at(Tensor(source), home, self.count)
                lying = replace(lying, boxes=tuple(on_some(boxes, self.at) for boxes in lying.boxes))
                got = arrival(term, region, lying)
                moved, messages = moved + got.moved, messages + got.messages
                if source in self.disks:
                    served = served + arrival(term, region, None).moved.sum(-1, keepdims=True) * self.scale
        if offer.combined is not None:
            size = volume(offer.combined) * sum(kind.dtype.itemsize for _, kind in node.outputs)
            if self.runs:
                part = -(-node.outputs[0][1].box.size // self.count)
                size = np.minimum(size, part * sum(kind.dtype.itemsize for _, kind in node.outputs))
            others = np.where(offer.partial, offer.parts - 1, 0)[:, None]
            moved, messages = moved + size * others, messages + (size > 0) * others
            touched = touched + size * np.where(offer.partial, offer.parts + 1, 0)[:, None]
            held = held + size * offer.partial[:, None]
        for name in self._kept.get(node, ()):  # as results, which are in memory in the end
            made: Any = volume(output_boxes(node, name, offer.index)) * dict(node.outputs)[name].dtype.itemsize
            made = made / np.where(offer.partial, offer.parts, 1)[:, None]
            results, objects = results + made, objects + (made > OBJECT_BYTES)
        compute = self.rates.kernel_seconds(node.outputs[0][1].dtype, flops, functions, touched, crossed)
        busy = (points > 0) * machines.task_seconds * (1 + offer.partial[:, None])
        passing: Any = 0.0
        if machines.driver_bytes_per_second:  # its process serves one machine after the other
            passing = np.sum(machines.driver_seconds(carried, results, objects), -1, keepdims=True) * self.scale
        crossing = moved + carried if self.count > 1 and not machines.driver_bytes_per_second else moved
        transfer = crossing / self.rates.link + machines.waited_seconds(messages) + passing
        serving = served / min(self.rates.read, float(self.rates.link.max()))
        seconds = busy + compute + np.maximum(transfer, serving) + stored / self.rates.read
        found = (seconds.max(-1), moved.max(-1), moved.sum(-1) * self.scale, held.max(-1))
        return Measures(*(x.astype(np.float64) for x in found))

    # -- costs of pairs

    def _edges(self, node: Operation) -> list[Neighbours]:
        reader = self.number[node]
        late = operator_of(node).finish
        found: dict[int, Measures] = {}
        for name, tensor in node.inputs:
            origins: dict[Tensor, list[Term]] = {}
            for term in self.known.terms_of(tensor):
                if term.origin is not None and term.origin.producer in self.number:
                    origins.setdefault(term.origin, []).append(term)
            for origin, terms in origins.items():
                maker = self.number[origin.producer]  # type: ignore[index]
                measures = self._pair(reader, maker, name, name in late, origin.output, terms)
                found[maker] = found[maker] + measures if maker in found else measures
        return [Neighbours(maker, reader, measures) for maker, measures in found.items()]

    def _pair(self, reader: int, maker: int, name: str, late: bool, output: str, terms: Sequence[Term]) -> Measures:
        mine, made = self.offers[reader], self.offers[maker]
        key = (id(mine), id(made), name, late, output, tuple((t.dims, t.fixed, t.itemsize) for t in terms))
        if key not in self._tables:
            held, needs = made.holds(output), mine.needs(name, late)
            lifted = needs._replace(
                low=[x[:, None] for x in needs.low], high=[x[:, None] for x in needs.high], here=needs.here[:, None]
            )
            moved: Any = 0
            messages: Any = 0
            for term in terms:
                got = arrival(term, lifted, held)
                moved, messages = moved + got.moved, messages + got.messages
            seconds = (moved / self.rates.link + self.machines.waited_seconds(messages)).max(-1)
            shape = (len(mine.choices), len(made.choices))
            total = moved.sum(-1) * self.scale
            full = [np.broadcast_to(x, shape) for x in (seconds, moved.max(-1), total, np.zeros(()))]
            self._tables[key] = Measures(*(np.ascontiguousarray(x.T, np.float64) for x in full))
        return self._tables[key]

    def _terms_key(self, tensor: Tensor) -> Any:
        out = []
        for term in self.known.terms_of(tensor):
            source = term.source
            placed = source in self.number if source is not None else False
            home = self.homes.get(source) if source is not None else None
            out.append(
                (
                    term.dims,
                    term.fixed,
                    term.itemsize,
                    source is None or placed,
                    home,
                    source in self.disks,
                    in_files(source),
                )
            )
        return tuple(out), tensor.shape

    # -- a choice

    def prefetched(self) -> Tables:
        """The same tables where what sources send that the plan places takes half the time.

        Sums of table entries count every transfer; in a simulation, those wait for nothing that start from the
        beginning, and travel while machines compute as long as their links are free.
        """
        half = copy(self)
        half._weighed = {}
        known: dict[int, Measures] = {}
        half.edges, half.into, half.out = [], [[] for _ in self.nodes], [[] for _ in self.nodes]
        for edge in self.edges:
            if isinstance(self.nodes[edge.maker], Source):
                m = edge.measures
                edge = replace(edge, measures=known.setdefault(id(m), replace(m, seconds=m.seconds / 2)))
            half.edges.append(edge)
            half.into[edge.reader].append(edge)
            half.out[edge.maker].append(edge)
        return half

    def weighed(self, weigh: Callable[[Measures], Any]) -> tuple[list[Array], list[Array]]:
        """What is added up: an array per node, and one per edge; those that are alike are one array."""

        def once(measures: Measures) -> Array:
            key = weigh, id(measures)
            if key not in self._weighed:
                self._weighed[key] = np.asarray(weigh(measures), np.float64)
            return self._weighed[key]

        return [once(m) for m in self.alone], [once(edge.measures) for edge in self.edges]

    def measured(self, chosen: Sequence[int]) -> tuple[float, float, float]:
        """(seconds one after the other, sum of the words of each node, bytes moved) of one candidate per node."""
        total = np.zeros(3)
        for node, k in zip(self.alone, chosen, strict=True):
            total += (node.seconds[k], node.words[k], node.moved[k])
        for edge in self.edges:
            at, m = (chosen[edge.maker], chosen[edge.reader]), edge.measures
            total += (m.seconds[at], m.words[at], m.moved[at])
        return float(total[0]), float(total[1]), float(total[2])

    def sharding(self, node: Operation, chosen: Sequence[int]) -> Sharding:
        """The chosen sharding of an operation."""
        number = self.number[node]
        return self.offers[number].choices[chosen[number]]

    def homes_of(self, chosen: Sequence[int]) -> tuple[tuple[Source, Placement], ...]:
        """Where sources lie that the plan places."""
        out = []
        for number, node in enumerate(self.nodes):
            if isinstance(node, Source):
                way = self.offers[number].choices[chosen[number]]
                out.append((node, Placement(way.parts, way.digits, (1,) * len(way.digits), weights=way.weights)))
        return tuple(out)
