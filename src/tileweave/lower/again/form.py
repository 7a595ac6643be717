"""What a graph is whatever its extents, and which extents it has.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tileweave.graph import ArrayData, Graph, Hole, MemoryTarget, Operation, Selector, Source, Tensor, TensorType
from tileweave.graph.ir.interned import key_of, pairs_key
from tileweave.graph.ops.grouped.steps import FULL
from tileweave.lower.reads import never_written
from tileweave.teir.ir.form import may_be_of_sizes


class FormKey:
    """A long key, whose hash is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: Hashable) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FormKey) and self._parts == other._parts


@dataclass(frozen=True, slots=True, eq=False)
class GraphForm:
    """A graph, as what all have in common that differ in extents alone, and these.

    Two graphs of one key have the same operators with the same parameters, on the same inputs, of the same element
    types; and extents of 0 and of 1 in the same places. Other extents, where slices begin, constants that may come from
    extents, and sources whose array no run brings are sizes.

    Args:
        key: of the form.
        sizes: all that differs between graphs of the form.
        order: the operations, selectors and sources, each behind its inputs.
        places: of these.
        starts: where the sizes of each begin.
        bound: the places of the sources that every run brings, in the order in which they are met.
        results: per sink the place and the output that it stores.
    """

    key: Hashable
    sizes: tuple[Any, ...]
    order: Sequence[Any]
    places: Mapping[Any, int]
    starts: Sequence[int]
    bound: tuple[int, ...]
    results: tuple[tuple[int, str], ...]

    def type_of(self, place: int, output: str) -> TensorType:
        """Of an output of what stands at a place."""
        node = self.order[place]
        if type(node) is Operation:
            for name, kind in node.outputs:
                if name == output:
                    return kind
        found: TensorType = node.out if type(node) is Selector else node.type
        return found


def form_of(graph: Graph, brought: Callable[[Source], bool]) -> GraphForm | None:
    """The form of a graph; None where it is ordered by sequence points, or reads or writes files.

    Args:
        graph: any.
        brought: whether every run brings the array of a source.
    """
    if len(graph.points) != 1:
        return None
    roots = []
    for sink in graph.points[0].before:
        if isinstance(sink, Operation) or not isinstance(sink.target, MemoryTarget):
            return None
        if sink.part is not None or sink.placement is not None:
            return None
        roots.append(sink.tensor)
    return form_of_tensors(roots, brought)


def form_of_tensors(roots: Sequence[Tensor], brought: Callable[[Source], bool]) -> GraphForm | None:
    """The form of the graph that observes these tensors, which is not made."""
    places: dict[Any, int] = {}
    order, keys, sizes, bound, starts = list[Any](), list[Hashable](), list[Any](), list[int](), list[int]()
    stack: list[Any] = [root.producer for root in reversed(roots)]
    while stack:
        node = stack[-1]
        if node in places:
            stack.pop()
            continue
        kind, start = type(node), len(sizes)
        if kind is Source:
            data, mine = node.data, node.type
            if type(data) not in (ArrayData, Hole) or node.placement is not None:
                return None
            key: Hashable = mine.dtype, _pattern(mine.shape)
            sizes.append(mine.shape)
            if brought(node):
                bound.append(len(order))
            elif type(data) is Hole:
                return None
            else:
                key = key, never_written(data.array)
                sizes.append(node)
        else:
            inputs = node.inputs
            waiting = [x.producer for _, x in inputs if x.producer not in places]
            if waiting:
                waiting.reverse()
                stack += waiting
                continue
            links = [(name, places[x.producer], x.output) for name, x in inputs]
            if kind is Selector:
                key = node.kind, *links, node.out.dtype, _pattern(node.out.shape), *_selection(node, sizes)
                sizes.append(node.out.shape)
            else:
                if node.after:
                    return None
                key = node.operator, *links, *_parameters(node)
                for name, made in node.outputs:
                    key = *key, name, made.dtype, _pattern(made.shape)
                    sizes.append(made.shape)
        stack.pop()
        places[node] = len(order)
        order.append(node)
        starts.append(start)
        keys.append(key)
    results = tuple([(places[root.producer], root.output) for root in roots])
    return GraphForm(FormKey((results, *keys)), tuple(sizes), order, places, starts, tuple(bound), results)


def _pattern(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Extents but for those that are neither 0 nor 1."""
    return tuple([n if n < 2 else 2 for n in shape])


def _parameters(node: Operation) -> tuple[Hashable, ...]:
    """The parameters of an operation, but for a shape that its output has."""
    given = node.parameters
    if not given:
        return ()
    found: tuple[Hashable, ...] = pairs_key(
        tuple([pair for pair in given if pair[0] != "shape"]) if node.operator == "reshape" else given
    )
    return found


def _selection(node: Selector, sizes: list[Any]) -> tuple[Hashable, ...]:
    """The parameters of a selector, but for where it begins, and a constant that may come from extents."""
    given: Any = node.parameters
    if node.kind == FULL:
        value = given[0][1]
        if may_be_of_sizes(value):
            sizes.append(value)
            return ("number",)
        return (key_of(value),)
    if len(given) == 2 and given[1][0] == "offset":
        offset = given[1][1]
        sizes.append(offset)
        return given[0][1], tuple(map(bool, offset))
    return (pairs_key(given),)
