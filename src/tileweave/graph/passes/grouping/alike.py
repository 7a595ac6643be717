"""A graph fused as one that differs in extents was, without looking for what can be fused.

`Descent` follows a rewriting: which nodes of its result are nodes of the graph that it began with, on rewritten inputs,
and which tensors those that rules made stand for. `alike` makes the same of another graph, from its own nodes and by
the constructors of fused operations. Every tensor that stands for another must have its type.

Source: own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, cast

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import (
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
from tileweave.graph.ir.select import full, unsqueeze
from tileweave.graph.ops.contract import linear
from tileweave.graph.ops.fused import fused, once_more
from tileweave.graph.ops.grouped.attention import attended
from tileweave.graph.ops.grouped.chained import conv_chain, product_chain, product_of
from tileweave.graph.ops.grouped.rows import rows
from tileweave.graph.ops.grouped.steps import FULL
from tileweave.graph.ops.operators import is_elementwise
from tileweave.graph.ops.windows import conv_like

Places = tuple[tuple[int, ...], tuple[int, ...]]
"""Of a node: the nodes that it is, on rewritten inputs, and the tensors that it stands for, by their places."""


class Descent:
    """What became of a graph's nodes, pass by pass; `watch` is for `tileweave.graph.passes.rewrite.rewrite`."""

    def __init__(self, graph: Graph) -> None:
        nodes = plain_nodes(graph)
        self._is: dict[Node, set[int]] = {node: {k} for k, node in enumerate(nodes)}
        self._stands: dict[Node, set[int]] = {node: {k} for k, node in enumerate(nodes) if isinstance(node, Tensor)}

    def watch(self, new: Mapping[Node, Node], rewritten: AbstractSet[Node]) -> None:
        """Take in a pass: what each node became, and the tensors to which rules applied."""
        same, stands = dict[Node, set[int]](), dict[Node, set[int]]()
        for node, made in new.items():
            if node not in rewritten:
                same.setdefault(made, set()).update(self._is.get(node, ()))
            stands.setdefault(made, set()).update(self._stands.get(node, ()))
        self._is, self._stands = same, stands

    def places(self, graph: Graph) -> tuple[Places, ...]:
        """Of the nodes of the result."""
        return tuple(
            (tuple(sorted(self._is.get(node, ()))), tuple(sorted(self._stands.get(node, ()))))
            for node in plain_nodes(graph)
        )


def plain_nodes(graph: Graph) -> list[Node]:
    """The nodes but for signatures: two of them may be equal for some extents only."""
    return [node for node in graph.nodes() if not isinstance(node, Signature)]


def alike(first: Graph, result: Graph, places: Sequence[Places], graph: Graph) -> Graph | None:
    """What a rewriting that made `result` of `first` makes of a graph that differs from `first` in extents alone.

    Args:
        first: a graph.
        result: what `tileweave.graph.passes.rewrite.rewrite` made of it.
        places: of the nodes of `result`: `Descent.places`.
        graph: another graph.

    Returns:
        None where the graphs differ otherwise, an extent is 1 or 0 in one of them only, or a constructor refuses.
    """
    old, now = plain_nodes(first), plain_nodes(graph)
    if len(old) != len(now):
        return None
    numbers = _numbers(old, now, frozenset[int]().union(*(same for same, _ in places)))
    if numbers is None:
        return None
    new: dict[Node, Node] = {}
    try:
        for node, (same, stands) in zip(plain_nodes(result), places, strict=True):
            found = {_moved(now[k], node, new) for k in same} or {_remade(node, new, numbers)}
            made = found.pop()
            wrong = any(cast("Tensor", made).type != cast("Tensor", now[k]).type for k in stands)
            if found or made is None or wrong:
                return None
            new[node] = made
    except GraphError:
        return None
    return cast("Graph", new[result])


def _numbers(old: Sequence[Node], now: Sequence[Node], kept: AbstractSet[int]) -> dict[Any, Any] | None:
    """The constants of one graph -> those of the other; None where the graphs differ in more than extents.

    What is not kept was taken into operations that rules made, so its parameters must be the same.
    """
    if _forms(old, keep=False) != _forms(now, keep=True):
        return None
    found: dict[Any, Any] = {}
    for k, (a, b) in enumerate(zip(old, now, strict=True)):
        if isinstance(a, Selector) and isinstance(b, Selector) and a.kind == FULL:
            value = b.parameter("value")
            if _constant(found.setdefault(_constant(a.parameter("value")), value)) != _constant(value):
                return None
        elif isinstance(a, (Operation, Selector)) and k not in kept:
            powers = isinstance(a, Operation) and a.operator == "power"  # small ones are written as products
            same = not powers or _exponent(a) == _exponent(b)
            if not same or a.parameters != cast("Operation | Selector", b).parameters:
                return None
    return found


_Form = tuple[type, Any]
_FORMS: weakref.WeakKeyDictionary[Node, list[_Form]] = weakref.WeakKeyDictionary()
"""Graph -> its forms: of the one that was read last, against which the next one is held."""


def _forms(nodes: Sequence[Node], *, keep: bool) -> list[_Form]:
    """What the nodes of a graph are and refer to, but for extents that are neither 0 nor 1; the graph comes last."""
    found = _FORMS.pop(nodes[-1], None)
    if found is None:
        places = {node: k for k, node in enumerate(nodes)}
        found = [(type(node), _links(node, places)) for node in nodes]
    if keep:
        _FORMS[nodes[-1]] = found
    return found


def _exponent(power: Any) -> object:
    base = power.input("x1").producer
    while isinstance(base, Selector) and base.inputs:
        base = base.inputs[0][1].producer
    return _constant(base.parameter("value")) if isinstance(base, Selector) and base.kind == FULL else None


def _constant(value: Any) -> tuple[type, str]:
    """A number as a key: it tells 1, True and 1.0 apart, and knows NaN."""
    return type(value), repr(value)


def _links(node: Node, places: Mapping[Node, int]) -> object:
    """What a node is and which nodes it refers to."""
    match node:
        case Tensor():
            kind = node.type
            return places[node.producer], node.output, kind.dtype, [n if n < 2 else 2 for n in kind.shape]
        case Operation():
            return node.operator, [(name, places[x]) for name, x in node.inputs], [places[p] for p in node.after]
        case Selector():
            return node.kind, [(name, places[x]) for name, x in node.inputs]
        case Source():
            return type(node.data), node.name, node.placement
        case Sink():
            return places[node.tensor], node.target, node.placement, node.part
        case SequencePoint():
            return [places[one] for one in node.before]
        case _:
            return [places[one] for one in cast("Graph", node).points]


def _moved(now: Node, node: Node, new: Mapping[Node, Node]) -> Node | None:
    """A node of the other graph on what stands for its inputs; `node` is the like of it in the rewritten graph."""
    if isinstance(now, (Operation, Selector)) and isinstance(node, (Operation, Selector)):
        if isinstance(now, Operation) and now.after:
            return None
        given = tuple([(name, cast("Tensor", new[x])) for name, x in node.inputs])
        if given == now.inputs:
            return now
        if [(name, x.type) for name, x in given] != [(name, x.type) for name, x in now.inputs]:
            return None
        if isinstance(now, Selector):
            return Selector(now.kind, given, now.out, now.parameters)
        return Operation(now.operator, now.index, given, now.outputs, now.parameters, now.signature)
    if isinstance(now, Sink) and isinstance(node, Sink):
        return None if now.part else replace(now, tensor=cast("Tensor", new[node.tensor]))
    return now if isinstance(now, Source) else _refers(node, new)


def _refers(node: Node, new: Mapping[Node, Node]) -> Node | None:
    """A node that has no extents of its own, on what its parts became."""
    match node:
        case Tensor():
            return Tensor(cast("Operation", new[node.producer]), node.output)
        case SequencePoint():
            return SequencePoint(tuple(cast("Operation", new[one]) for one in node.before))
        case Graph():
            return Graph(tuple(cast("SequencePoint", new[one]) for one in node.points))
    return None


def _remade(node: Node, new: Mapping[Node, Node], numbers: Mapping[Any, Any]) -> Node | None:
    """A node that rules made, for the inputs that it has now; None where there is no constructor for it."""
    if not isinstance(node, (Operation, Selector)):
        return _refers(node, new)
    given = [cast("Tensor", new[x]) for _, x in node.inputs]
    known: dict[str, Any] = dict(node.parameters)
    if isinstance(node, Selector):
        if node.kind == FULL and known["value"] == 0:  # the bias of a product without one
            return node
        if node.kind != "unsqueeze":
            return None
        kept = {row.index(1) for row in known["matrix"]}
        return unsqueeze(given[0], [k for k in range(len(node.out.shape)) if k not in kept]).producer
    made: Tensor | None = None
    match node.operator:
        case "fused":
            made = fused(given, known["program"])
        case "rows":
            shape = np.broadcast_shapes((1,) * known["rank"], *(x.shape for x in given))
            made = rows(given, shape, known["axes"], _with(known["program"], numbers))
        case "conv_chain":
            made = conv_chain(conv_like(node, *given[:2]), given[2:], known["program"])
        case "product_chain":
            product, _ = product_of(node)
            first = len(product.operands)
            names = [name for name, _ in product.operands]
            now = product._replace(operands=tuple(zip(names, given[:first], strict=True)))
            made = product_chain(now, given[first:], known["program"], known["summed"])
        case "attention":
            made = attended(given[0], given[1], given[2], given[3:], known["letters"], _with(known["program"], numbers))
        case "linear" | "linear_relu" if len(given) == 3:
            x, w, bias = given
            if isinstance(bias.producer, Selector) and bias.producer.kind == FULL:  # of a product that has none
                bias = full(w.shape[1:], cast("Any", bias.producer.parameter("value")), bias.dtype)
            found = linear(x, w, bias).producer
            return replace(cast("Operation", found), operator=node.operator)
        case name if is_elementwise(name):
            made = once_more(name, given, node.outputs[0][1].dtype.name)
    return None if made is None else made.producer


def _with(program: Sequence[tuple[str, tuple[Any, ...], str]], numbers: Mapping[Any, Any]) -> list[Any]:
    """The steps with the constants of the other graph."""
    return [(name, (numbers[_constant(args[0])],) if name == FULL else args, dtype) for name, args, dtype in program]
