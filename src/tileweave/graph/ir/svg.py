"""A graph as a picture, in the visual language of the Tapestry document: one shape and colour per kind of node.

Tensors are blue blocks, operations grey arrows that carry their index box, selectors green slanted boxes, signatures
yellow, sequence points octagons, sources and sinks grey boxes with a point. Arrows follow the values.

Source: Tapestry, "TEG: Tapestry Expression Graph".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tileweave.draw import BoxNode, Edge, layers
from tileweave.graph.ir.nodes import (
    FileData,
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
from tileweave.graph.ir.text import ids
from tileweave.space import AffineMap

TENSOR, OPERATION, SELECTOR, SIGNATURE, POINT = "#d0d0ff", "#E5E8E8", "#a0d0d0", "#ffffd0", "#B4F8C8"


def svg(graph: Graph, *, signatures: bool = False, limit: int = 400) -> str:
    """The graph as an SVG picture; the same graph gives the same text.

    Args:
        graph: any graph.
        signatures: whether to draw the signature beside each operation.
        limit: most nodes that are drawn; the picture says how many there are.

    Example:
        >>> import numpy as np
        >>> from tileweave.graph import add
        >>> svg(Graph.of(add(np.ones(3), 1.0))).startswith("<svg")
        True
    """
    names = ids(graph)
    nodes = graph.nodes()
    keys = {node: f"n{k}" for k, node in enumerate(nodes)}
    boxes: list[BoxNode] = []
    edges: list[Edge] = []
    drawn = [node for node in nodes if not isinstance(node, (Graph, Signature))]
    folded = {node: fold for fold in _folds(drawn) for node in fold.nodes} if len(drawn) > FOLD_FROM else {}
    keys.update({node: fold.key for node, fold in folded.items()})
    for node in drawn:
        key = keys[node]
        edges += [edge for edge in _edges(node, keys) if edge.start != edge.end] if node in folded else []
        if node in folded:
            boxes += [folded[node].box] if node is folded[node].nodes[0] else []
            continue
        boxes.append(_box(node, key, names))
        if isinstance(node, Operation) and node.signature is not None and signatures:
            beside = f"{key}s"
            dims = tuple(
                f"{d}: {n}{' ' + node.signature.monoids[k] if k in node.signature.monoids else ''}"
                for k, (d, n) in enumerate(zip(node.signature.dims, node.index.shape, strict=False))
            )
            boxes.append(BoxNode(beside, ("Signature", *dims), "component", SIGNATURE, key))
            edges.append(Edge(beside, key, dashed=True))
        edges += _edges(node, keys)
    inside = {fold.key for fold in folded.values()}
    bare = [replace(edge, label="") if edge.end in inside else edge for edge in edges]
    return layers(boxes, list(dict.fromkeys(bare)) if folded else edges, limit=limit)


FOLD_FROM = 100
"""Nodes from which runs of equal blocks are drawn as one box: what fits on a screen is drawn whole."""
_LONGEST = 400
"""Nodes of the longest block that is looked for: two layers of a transformer with its gradients."""


@dataclass(frozen=True, eq=False, slots=True)
class _Fold:
    """The blocks between the first and the last of a run of equal ones, as one box."""

    key: str
    nodes: tuple[Node, ...]
    lines: tuple[str, ...]

    @property
    def box(self) -> BoxNode:
        """What is drawn for them."""
        return BoxNode(self.key, self.lines, "component", SELECTOR)


def _folds(nodes: Sequence[Node]) -> Iterator[_Fold]:
    """Runs of equal blocks in topological order: contracting an interval of such an order makes no cycle."""
    numbers: dict[object, int] = {}
    labels = np.array([numbers.setdefault(_label(node), len(numbers)) for node in nodes])
    count, lengths = len(nodes), np.zeros((2, len(nodes)), np.int64)  # of the best run at each node: nodes, period
    for period in range(1, min(_LONGEST, count // 4) + 1):
        differ = np.flatnonzero(labels[:-period] != labels[period:])
        ends = np.append(differ, count - period)
        start = np.arange(count - period)
        run = ends[np.searchsorted(ends, start)] - start
        whole = (run // period + 1) * period
        better = (whole >= 4 * period) & (whole > lengths[0, : count - period])
        lengths[:, : count - period][:, better] = np.stack([whole, np.full(len(whole), period)])[:, better]
    at = 0
    while at < count:
        length, period = (int(n) for n in lengths[:, at])
        if length - 2 * period < 8 or length < lengths[0, at : at + max(period, 1)].max():
            at += 1
            continue
        inner = tuple(nodes[at + period : at + length - period])
        what = [node.operator for node in inner[:period] if isinstance(node, Operation)]
        shown = ", ".join(what[:4]) + (", .." if what[4:] else "")
        times = f"{length // period - 2} times more"
        yield _Fold(f"f{at}", inner, (times, *((shown,) if shown else ()), f"{period} nodes each"))
        at += length


def _label(node: Node) -> object:
    """What nodes have in common that look alike in a picture."""
    match node:
        case Tensor():
            return "tensor", node.output, node.type
        case Operation():
            return "operation", node.operator, node.index.shape, len(node.inputs)
        case Selector():
            return "selector", node.kind, node.out
        case Source():
            return "source", node.type
        case _:
            return id(node)


def _box(node: Node, key: str, names: dict[Node, str]) -> BoxNode:
    match node:
        case Tensor():
            shape = f"[{', '.join(map(str, node.shape))}]"
            return BoxNode(key, (f"Tensor: {names[node]}", shape, node.dtype.name), "box3d", TENSOR)
        case Operation():
            return BoxNode(key, (node.operator, str(node.index), *_shown(node)), "arrow", OPERATION)
        case Selector():
            return BoxNode(key, (node.kind, *_read(node), *_shown(node)), "parallelogram", SELECTOR)
        case Source():
            data = f"from {node.data.path}" if isinstance(node.data, FileData) else "from memory"
            lines = (f"Source: {node.name}" if node.name else "Source", data)
            return BoxNode(key, lines, "cds", OPERATION)
        case Sink():
            target = f"to {node.target.path}" if isinstance(node.target, FileTarget) else "to memory"
            part = (str(node.part.box),) if node.part is not None else ()
            return BoxNode(key, ("Sink", target, *part), "cds", OPERATION)
        case _:
            return BoxNode(key, ("Sequence", "Point"), "octagon", POINT)


def _shown(node: Operation | Selector) -> tuple[str, ...]:
    """The parameters, each on a line, shortened."""
    lines = [f"{name}={value}" for name, value in node.parameters if name not in ("matrix", "offset")]
    return tuple(line if len(line) <= 28 else line[:27] + "…" for line in lines)


def _read(node: Selector) -> tuple[str, ...]:
    """What a view reads: a slice in NumPy's notation, the map of any other view that is short."""
    if "matrix" not in dict(node.parameters):
        return ()
    view = AffineMap(node.parameter("matrix"), node.parameter("offset"), len(node.out.shape))
    if node.kind in ("slice", "flip"):
        steps = [row[k] for k, row in enumerate(view.matrix)]
        return (f"[{', '.join(map(_range, view.offset, node.out.shape, steps))}]",)
    return (str(view),) if len(str(view)) <= 28 else ()


def _range(start: int, extent: int, step: int) -> str:
    if step == 1 or not extent:
        return f"{start}:{start + extent}"
    stop = start + step * (extent - 1) + (1 if step > 0 else -1)
    return f"{start}:{stop if stop >= 0 else ''}:{step}"


def _edges(node: Node, keys: dict[Node, str]) -> list[Edge]:
    key = keys[node]
    match node:
        case Tensor():
            label = node.output if len(node.producer.output_types) > 1 else ""
            return [Edge(keys[node.producer], key, label)]
        case Operation() | Selector():
            many = len(node.inputs) > 1 and isinstance(node, Operation)
            read = [Edge(keys[tensor], key, name if many else "") for name, tensor in node.inputs]
            after = node.after if isinstance(node, Operation) else ()
            return read + [Edge(keys[point], key, dashed=True) for point in after]
        case Sink():
            return [Edge(keys[node.tensor], key)]
        case SequencePoint():
            return [Edge(keys[item], key, dashed=True) for item in node.before]
        case _:
            return []
