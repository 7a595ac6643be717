"""What makes a graph well formed: one rule per function, each with an id.

Construction already excludes cycles (a node refers only to nodes that exist) and ranks that differ.

Source: Tapestry, "TEG", and the validation rules of its Java implementation, with an exact cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tileweave.errors import VerifyError
from tileweave.graph.monoids import MONOIDS
from tileweave.graph.nodes import Graph, Node, Operation, Selector, Sink, Source, Tensor
from tileweave.graph.operators import OPERATORS
from tileweave.graph.select import SELECTORS
from tileweave.space import Box

__all__ = ["RULES", "problems", "verify"]

Rule = Callable[[Any], Iterator[str]]


def _operator_known(node: Operation) -> Iterator[str]:
    if node.operator not in OPERATORS:
        yield f"operator {node.operator!r} is not registered"


def _selector_known(node: Selector) -> Iterator[str]:
    if node.kind not in SELECTORS:
        yield f"selector {node.kind!r} is not known"


def _output_named(node: Tensor) -> Iterator[str]:
    if node.output not in node.producer.output_types:
        yield f"the producer has no output {node.output!r}"


def _signature_agrees(node: Operation) -> Iterator[str]:
    signature = node.signature
    if signature is None:
        return
    if len(signature.dims) != node.index.rank:
        yield f"the signature names {len(signature.dims)} dimensions, the index has {node.index.rank}"
    for what, own, theirs in (
        ("inputs", [n for n, _ in node.inputs], [n for n, _ in signature.inputs]),
        ("outputs", [n for n, _ in node.outputs], [n for n, _ in signature.outputs]),
    ):
        if own != theirs:
            yield f"{what} {own} are not the signature's {theirs}"


def _regions_fit(node: Operation) -> Iterator[str]:
    if node.signature is None or len(node.signature.dims) != node.index.rank:
        return
    regions = dict(node.signature.inputs), dict(node.signature.outputs)
    for name, tensor in node.inputs:
        if name in regions[0] and regions[0][name].span(node.index).shape != tensor.shape:
            yield f"input {name} has shape {tensor.shape}, the index needs {regions[0][name].span(node.index).shape}"
    for name, kind in node.outputs:
        if name in regions[1] and regions[1][name].span(node.index).shape != kind.shape:
            yield f"output {name} has shape {kind.shape}, the index makes {regions[1][name].span(node.index).shape}"


def _outputs_covered(node: Operation) -> Iterator[str]:
    """Every output element is made, and by one index point unless the rest of the index is a reduction."""
    if node.signature is None or node.index.empty:
        return
    for name, projection in node.signature.outputs:
        if not isinstance(projection.image(node.index), Box):
            yield f"output {name} has holes: {projection} on {node.index}"
        for k, extent in enumerate(node.index.shape):
            used = [(row[k], n) for row, n in zip(projection.map.matrix, projection.shape, strict=True) if row[k]]
            if extent > 1 and not used and k not in node.signature.monoids:
                yield f"dimension {node.signature.dims[k]} writes output {name} again and is not a reduction"
            if extent > 1 and used and all(abs(step) < n for step, n in used):
                yield f"neighbours along {node.signature.dims[k]} overlap in output {name}"


def _reductions_declared(node: Operation) -> Iterator[str]:
    if node.signature is None:
        return
    for dim, monoid in node.signature.reductions:
        if monoid not in MONOIDS:
            yield f"reduction over dimension {dim} names {monoid!r}, which is not a declared monoid"
        if not 0 <= dim < node.index.rank:
            yield f"reduction dimension {dim} does not exist"


def _source_matches(node: Source) -> Iterator[str]:
    array = getattr(node.data, "array", None)
    if array is not None and (array.shape != node.type.shape or array.dtype != node.type.dtype):
        yield f"the array has shape {array.shape} and type {array.dtype}, the source declares {node.type}"


def _sinks_feed_points(node: Operation | Selector) -> Iterator[str]:
    if any(isinstance(tensor, Sink) for _, tensor in node.inputs):
        yield "a sink is used as an input"


RULES: dict[str, tuple[type[Node] | tuple[type[Node], ...], Rule]] = {
    "operation.operator-known": (Operation, _operator_known),
    "operation.signature-agrees": (Operation, _signature_agrees),
    "operation.regions-fit": (Operation, _regions_fit),
    "operation.outputs-covered": (Operation, _outputs_covered),
    "operation.reductions-declared": (Operation, _reductions_declared),
    "selector.kind-known": (Selector, _selector_known),
    "tensor.output-exists": (Tensor, _output_named),
    "source.array-matches": (Source, _source_matches),
    "sink.only-observed": ((Operation, Selector), _sinks_feed_points),
}
"""Rule id -> (node class, rule). A rule yields what is wrong with a node."""


def problems(graph: Graph) -> list[VerifyError]:
    """Every broken rule, in topological order of the nodes."""
    found = []
    for number, node in enumerate(graph.nodes()):
        for rule, (kinds, check) in RULES.items():
            if isinstance(node, kinds):
                for problem in check(node):
                    path = f"node {number}: {node!r}"
                    found.append(
                        VerifyError(
                            f"verify(graph) [{rule}]",
                            problem,
                            inputs={"node": path},
                            facts={"rule": rule, "path": path},
                        )
                    )
    return found


def verify(graph: Graph) -> Graph:
    """The same graph, or the first broken rule as a VerifyError."""
    for problem in problems(graph):
        raise problem
    return graph
