"""What makes a graph well formed: one rule per function, each with an id.

Construction already excludes cycles (a node refers only to nodes that exist) and ranks that differ.

Source: Tapestry, "TEG", and the validation rules of its Java implementation, with an exact cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf, prod
from typing import Any

from tileweave.errors import VerifyError
from tileweave.graph.ir.document import read
from tileweave.graph.ir.dtypes import supported
from tileweave.graph.ir.forms import SELECTORS as FORMS
from tileweave.graph.ir.forms import is_integer, wrong_inputs, wrong_parameters
from tileweave.graph.ir.nodes import (
    FileTarget,
    Graph,
    Node,
    Operation,
    Selector,
    SequencePoint,
    Signature,
    Sink,
    Source,
    Tensor,
)
from tileweave.graph.ir.resolve import SEGMENTS, SELECTORS
from tileweave.graph.ops.monoids import STATES, is_monoid
from tileweave.graph.ops.operators import OPERATORS
from tileweave.graph.ops.trial import cut_wrong, made_wrong
from tileweave.graph.passes.shard import parts_wrong, results
from tileweave.space import AffineMap, Box

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
    names = [n for n, _ in signature.inputs]
    partial = [n for n in names if n not in OPERATORS[node.operator].finish] if node.operator in OPERATORS else names
    given = [n for n, _ in node.inputs]
    for what, own, theirs in (
        ("inputs", given, partial if given == partial else names),
        ("outputs", [n for n, _ in node.outputs], [n for n, _ in signature.outputs]),
    ):
        if own != theirs:
            yield f"{what} {own} are not the signature's {theirs}"
    read = {name: len(t.shape) for name, t in node.inputs}
    made = {name: len(t.shape) for name, t in node.outputs}
    for ranks, projections in ((read, signature.inputs), (made, signature.outputs)):
        for name, projection in projections:
            rank = len(projection.shape)
            if projection.map.inputs != node.index.rank or rank != ranks.get(name, rank):
                yield f"the projection of {name} maps rank {projection.map.inputs} to {rank}"


def _regions_fit(node: Operation) -> Iterator[str]:
    if node.signature is None:
        return
    regions = dict(node.signature.inputs), dict(node.signature.outputs)
    for name, tensor in node.inputs:
        if regions[0][name].span(node.index).shape != tensor.shape:
            yield f"input {name} has shape {tensor.shape}, the index needs {regions[0][name].span(node.index).shape}"
    for name, kind in node.outputs:
        if regions[1][name].span(node.index).shape != kind.shape:
            yield f"output {name} has shape {kind.shape}, the index makes {regions[1][name].span(node.index).shape}"


def _outputs_covered(node: Operation) -> Iterator[str]:
    """Every output element is made, by one index point unless the rest of the index is a reduction, in boxes."""
    if node.signature is None or node.index.empty:
        return
    for name, projection in node.signature.outputs:
        used = [k for row in projection.map.matrix for k, c in enumerate(row) if c]
        if len(set(used)) != len(used) or any(sum(c != 0 for c in row) > 1 for row in projection.map.matrix):
            yield f"output {name} joins or repeats dimensions, so that its blocks are no boxes: {projection}"
            continue
        if any(c < 0 for row in projection.map.matrix for c in row):
            yield f"output {name} runs backwards: {projection}; flip its input instead"
            continue
        reduced = [k for k in node.signature.monoids if not any(row[k] for row in projection.map.matrix)]
        for k in node.signature.monoids:
            if k not in reduced and node.index.shape[k] > 1:
                yield f"dimension {node.signature.dims[k]} is a reduction and moves output {name}"
        image = projection.image(node.index)
        if not isinstance(image, Box):
            yield f"output {name} has holes: {projection} on {node.index}"
            continue
        points = prod(n for k, n in enumerate(node.index.shape) if k not in reduced) * prod(projection.shape)
        if points != image.size:  # the image is the whole box, so it is covered once iff the numbers agree
            yield f"output {name} has {image.size} elements and is written {points} times, by no declared reduction"


def _block_agrees(node: Operation) -> Iterator[str]:
    """What the operator returns for one index point has the declared shape and type."""
    yield from made_wrong(node)


def _cuts_agree(node: Operation) -> Iterator[str]:
    """A few index points together, and cut in two along each dimension, have one value: parameters fit projections.

    Operators without a form are tried when they are made (`tileweave.graph.passes.custom`).
    """
    if OPERATORS[node.operator].form is not None:
        yield from cut_wrong(node)


def _operation_inputs(node: Operation) -> Iterator[str]:
    row = OPERATORS[node.operator]
    if row.form is not None:
        yield from wrong_inputs(row.form, node, row.finish)


def _operation_parameters(node: Operation) -> Iterator[str]:
    form = OPERATORS[node.operator].form
    if form is not None:
        yield from wrong_parameters(form, node)


def _selector_inputs(node: Selector) -> Iterator[str]:
    if node.kind in FORMS:
        yield from wrong_inputs(FORMS[node.kind], node)


def _selector_parameters(node: Selector) -> Iterator[str]:
    if node.kind in FORMS:
        yield from wrong_parameters(FORMS[node.kind], node)
    elif node.kind in SEGMENTS and not is_integer(dict(node.parameters).get("dim"), 0, len(node.out.shape)):
        yield f"parameter dim is not a dimension of the result, 0 <= dim < {len(node.out.shape)}"


def _type_supported(node: Operation | Selector | Source) -> Iterator[str]:
    for name, kind in node.output_types.items():
        if not supported(kind.dtype):
            yield f"output {name} has element type {kind.dtype}, which is no bool, integer or float of this machine"


def _costs_are_amounts(node: Signature) -> Iterator[str]:
    for resource, amount in node.costs:
        if not 0 <= amount < inf:
            yield f"the marginal cost of {resource} is {amount}, not an amount of zero or more"


def _placed(node: Source | Sink) -> Iterator[str]:
    if node.placement is not None and node.placement < 0:
        yield f"machine {node.placement} does not exist"


def _selector_inside(node: Selector) -> Iterator[str]:
    """A view reads only what its input holds, and has its type."""
    for name, tensor in node.inputs:
        if tensor.dtype != node.out.dtype:
            yield f"input {name} is {tensor.dtype.name}, the result {node.out.dtype.name}"
    given: dict[str, Any] = dict(node.parameters)
    if "matrix" in given:
        (name, tensor) = node.inputs[0]
        map = AffineMap(given["matrix"], given["offset"], len(node.out.shape))
        if not tensor.type.box.contains(map.cover(node.out.box)):
            yield f"the view reads {map.cover(node.out.box)}, input {name} holds {tensor.type.box}"
    elif node.kind in SEGMENTS and node.kind not in FORMS:
        yield from _segments_fit(node, given["dim"])


def _segments_fit(node: Selector, dim: int) -> Iterator[str]:
    """The segments cover the assembled dimension once, inside their sources, and the other extents agree."""

    def rest(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(n for k, n in enumerate(shape) if k != dim)

    segments = sorted((s for s in SEGMENTS[node.kind](node) if s.count), key=lambda s: s.start)
    for segment in segments:
        source = segment.source
        if source is None:
            continue
        if len(source.shape) != len(node.out.shape) or rest(source.shape) != rest(node.out.shape):
            yield f"a part of shape {source.shape} does not fit the result {node.out.shape} along dimension {dim}"
            return
        ends = sorted((segment.first, segment.first + segment.sign * (segment.count - 1)))
        if ends[0] < 0 or ends[1] >= source.shape[dim]:
            yield f"the view reads {ends[0]}..{ends[1]} of dimension {dim}, its input has extent {source.shape[dim]}"
    place, extent = 0, node.out.shape[dim]
    stepped = [s.step for s in segments if s.step > 1]
    if stepped:  # turns: as many segments as the step, one for each remainder, all of one length
        turns = [(s.start, s.step, s.count) for s in segments]
        sound = turns == [(k, len(segments), segments[0].count) for k in range(len(segments))]
        place = len(segments) * segments[0].count if sound else -1
    else:
        for segment in segments:
            place = segment.start + segment.count if segment.start == place else -1
    if place != extent:
        yield f"the parts do not make the {extent} elements of dimension {dim} once each"


def _names_differ(node: Operation | Selector) -> Iterator[str]:
    for what, names in (("input", [n for n, _ in node.inputs]), ("output", _output_names(node))):
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield f"two {what}s have the name {name!r}"


def _output_names(node: Operation | Selector) -> list[str]:
    return [n for n, _ in node.outputs] if isinstance(node, Operation) else ["out"]


def _reductions_declared(node: Operation) -> Iterator[str]:
    if node.signature is None:
        return
    for dim, monoid in node.signature.reductions:
        if not is_monoid(monoid):
            yield f"reduction over dimension {dim} names {monoid!r}, which is not a declared monoid"
        if not 0 <= dim < node.index.rank:
            yield f"reduction dimension {dim} does not exist"
        if monoid in STATES and {name for name, _ in node.outputs} != set(STATES[monoid].outputs):
            yield f"the outputs {[name for name, _ in node.outputs]} are not the state of {monoid}"
    names = sorted({monoid for _, monoid in node.signature.reductions})
    if len(names) > 1:
        yield f"reductions combine by {' and by '.join(names)}; partial results have one monoid"


def _source_matches(node: Source) -> Iterator[str]:
    array = getattr(node.data, "array", None)
    if array is not None and (array.shape != node.type.shape or array.dtype != node.type.dtype):
        yield f"the array has shape {array.shape} and type {array.dtype}, the source declares {node.type}"


def _producer_makes(node: Any) -> Iterator[str]:
    if not isinstance(node.producer, (Operation, Selector, Source)):
        yield f"its producer is {node.producer!r}; operations, selectors and sources make tensors"


def _sink_stores(node: Any) -> Iterator[str]:
    if not isinstance(node.tensor, Tensor):
        yield f"it stores {node.tensor!r}, which is no tensor"


def _after_points(node: Any) -> Iterator[str]:
    for point in node.after:
        if not isinstance(point, SequencePoint):
            yield f"it comes after {point!r}, which is no sequence point"
    if node.signature is not None and not isinstance(node.signature, Signature):
        yield f"its signature is {node.signature!r}"


def _graph_holds_points(node: Any) -> Iterator[str]:
    for point in node.points:
        if not isinstance(point, SequencePoint):
            yield f"it observes {point!r}, which is no sequence point"


def _inputs_are_tensors(node: Any) -> Iterator[str]:
    for name, tensor in node.inputs:
        if not isinstance(tensor, Tensor):
            yield f"input {name} is {tensor!r}; a sink may only stand in a sequence point"


def _points_hold_work(node: Any) -> Iterator[str]:
    for item in node.before:
        if not isinstance(item, (Operation, Sink)):
            yield f"{item!r} stands in a sequence point"


def _parts_cover(node: SequencePoint) -> Iterator[str]:
    for group in results(node):
        yield from parts_wrong(group)


def _graph_observes(node: Graph) -> Iterator[str]:
    targets = [group[0].target for point in node.points for group in results(point)]
    sinks = [(target.path, target.key) for target in targets if isinstance(target, FileTarget)]
    for path, key in sorted({target for target in sinks if sinks.count(target) > 1}):
        yield f"two sinks write {path}{f' member {key}' if key else ''}"


RULES: dict[str, tuple[type[Node] | tuple[type[Node], ...], Rule]] = {
    "node.inputs-are-tensors": ((Operation, Selector), _inputs_are_tensors),
    "tensor.producer-makes": (Tensor, _producer_makes),
    "sink.stores-a-tensor": (Sink, _sink_stores),
    "operation.after-points": (Operation, _after_points),
    "graph.holds-points": (Graph, _graph_holds_points),
    "node.names-differ": ((Operation, Selector), _names_differ),
    "node.type-supported": ((Operation, Selector, Source), _type_supported),
    "node.placed": ((Source, Sink), _placed),
    "tensor.output-exists": (Tensor, _output_named),
    "source.array-matches": (Source, _source_matches),
    "selector.kind-known": (Selector, _selector_known),
    "selector.inputs-named": (Selector, _selector_inputs),
    "selector.parameters-fit": (Selector, _selector_parameters),
    "selector.inside": (Selector, _selector_inside),
    "operation.operator-known": (Operation, _operator_known),
    "operation.inputs-named": (Operation, _operation_inputs),
    "operation.parameters-fit": (Operation, _operation_parameters),
    "operation.signature-agrees": (Operation, _signature_agrees),
    "operation.regions-fit": (Operation, _regions_fit),
    "operation.outputs-covered": (Operation, _outputs_covered),
    "operation.reductions-declared": (Operation, _reductions_declared),
    "operation.block-agrees": (Operation, _block_agrees),
    "operation.cuts-agree": (Operation, _cuts_agree),
    "signature.costs-are-amounts": (Signature, _costs_are_amounts),
    "point.holds-work": (SequencePoint, _points_hold_work),
    "point.parts-cover": (SequencePoint, _parts_cover),
    "graph.targets-differ": (Graph, _graph_observes),
}
"""Rule id -> (node class, rule). A rule yields what is wrong with a node."""


TIERS: tuple[tuple[str, ...], ...] = (
    (
        "node.inputs-are-tensors",
        "tensor.producer-makes",
        "sink.stores-a-tensor",
        "operation.after-points",
        "graph.holds-points",
        "point.holds-work",
    ),
    ("tensor.output-exists", "node.names-differ", "selector.kind-known", "operation.operator-known"),
    ("node.type-supported", "selector.inputs-named", "operation.inputs-named"),
    ("selector.parameters-fit", "operation.parameters-fit"),
    ("operation.signature-agrees", "operation.reductions-declared"),
    ("operation.regions-fit", "operation.outputs-covered", "selector.inside", "source.array-matches"),
    ("operation.block-agrees", "point.parts-cover"),
)
"""Rules that later ones rely on: where a tier is broken, only its rules are reported. All other rules come last."""


def broken(graph: Graph) -> Iterator[tuple[Node, str, str]]:
    """(node, rule, what is wrong) for every broken rule of the first tier that has one, in topological order."""
    nodes = graph.nodes()
    early = {rule for tier in TIERS for rule in tier}
    classes = {type(node) for node in nodes}
    for tier in (*TIERS, tuple(rule for rule in RULES if rule not in early)):
        checks = {cls: [(rule, RULES[rule][1]) for rule in tier if issubclass(cls, RULES[rule][0])] for cls in classes}
        found = False
        for node in nodes:
            for rule, check in checks[type(node)]:
                for problem in check(node):
                    found = True
                    yield node, rule, problem
        if found:
            return


def problems(graph: Graph) -> list[VerifyError]:
    """Every broken rule of the first tier that has one, in topological order of the nodes."""
    numbers: dict[Node, int] = {}
    out = []
    for node, rule, problem in broken(graph):
        numbers = numbers or {each: k for k, each in enumerate(graph.nodes())}
        path = f"node {numbers[node]}: {node!r}"
        facts = {"rule": rule, "path": path}
        out.append(VerifyError(f"verify(graph) [{rule}]", problem, inputs={"node": path}, facts=facts))
    return out


def verify(graph: Graph) -> Graph:
    """The same graph, or the first broken rule as a VerifyError."""
    for problem in problems(graph):
        raise problem
    return graph


def from_json(text: str | bytes, *, check: bool = True) -> Graph:
    """The graph of a document.

    Args:
        text: as `to_json` writes it.
        check: whether the graph is verified, too.

    Raises:
        VerifyError: the text is no document of a graph, or, with `check`, a rule is broken. ``path`` says where.
    """
    graph, places = read(text)
    for node, rule, problem in broken(graph) if check else ():
        path = places.get(node, "$")
        facts = {"rule": rule, "path": path}
        raise VerifyError(f"from_json(text) [{rule}]", f"{path}: {problem}", inputs={"node": repr(node)}, facts=facts)
    return graph
