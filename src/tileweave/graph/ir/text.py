"""A graph as text: one line per node with stable ids, and a table of shapes, bytes and flops.

Ids count the tensors in topological order, so the same graph prints the same text everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tileweave.graph.ir.nodes import (
    FileData,
    FileTarget,
    Graph,
    Hole,
    Node,
    Operation,
    Selector,
    SequencePoint,
    Sink,
    Source,
    Tensor,
    Value,
)
from tileweave.space import AffineMap
from tileweave.words import count_text, size_text


def ids(graph: Graph) -> dict[Node, str]:
    """A short name per node: t3 a tensor, s0 a sink, p0 a sequence point, o2 an operation that no tensor shows.

    Example:
        >>> import numpy as np
        >>> from tileweave.graph import add
        >>> x = add(np.ones(3), 1.0)
        >>> ids(Graph.of(x))[x]
        't2'
    """
    names: dict[Node, str] = {}
    counts = {"t": 0, "o": 0, "p": 0, "s": 0}

    def name(node: Node, letter: str) -> None:
        names[node] = f"{letter}{counts[letter]}"
        counts[letter] += 1

    nodes = graph.nodes()
    shown = {node.producer for node in nodes if isinstance(node, Tensor)}
    for node in nodes:
        if isinstance(node, Tensor):
            name(node, "t")
        elif isinstance(node, Operation) and node not in shown:
            name(node, "o")
        elif isinstance(node, Sink):
            name(node, "s")
        elif isinstance(node, SequencePoint):
            name(node, "p")
    return names


def text(graph: Graph) -> str:
    """The graph as lines ``result = producer(inputs)  type  index``; the same graph gives the same text.

    Example:
        >>> import numpy as np
        >>> from tileweave.graph import add
        >>> print(text(Graph.of(add(np.ones(3), 1.0))))
        t0 = source()     float64[3]
        t1 = full(1.0)    float64[]
        t2 = add(t0, t1)  float64[3]  index [0:3]
        s0 = sink(t2)     memory
        observe s0
    """
    names = ids(graph)
    return "\n".join([*columns(list(_rows(graph, names)), widest=100), *_order(graph, names)])


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = (), widest: int | None = None) -> list[str]:
    """Rows as aligned lines, two spaces between columns; columns in `right` are aligned to the right.

    A cell of more than `widest` characters moves the rest of its own row alone.
    """
    widths: dict[int, int] = {}
    for row in rows:
        for k, cell in enumerate(row):
            fits = widest is None or len(cell) <= widest
            widths[k] = max(widths.get(k, 0), len(cell) if fits else 0)
    lines = []
    for row in rows:
        cells = [c.rjust(widths[k]) if k in right else c.ljust(widths[k]) for k, c in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _rows(graph: Graph, names: dict[Node, str]) -> Iterator[tuple[str, ...]]:
    outputs: dict[Node, list[Tensor]] = {}
    nodes = graph.nodes()
    for node in nodes:
        if isinstance(node, Tensor):
            outputs.setdefault(node.producer, []).append(node)
    for node in nodes:
        if isinstance(node, (Source, Selector, Operation)):
            made = outputs.get(node, [])
            left = ", ".join(names[t] for t in made) or names.get(node, "-")
            kinds = ", ".join(str(t.type) for t in made) or ", ".join(str(kind) for _, kind in _types(node))
            yield f"{left} = {_call(node, names)}", kinds, *_notes(node, names)
        elif isinstance(node, Sink):
            place = f" on machine {node.placement}" if node.placement is not None else ""
            part = [f"part {node.part}"] if node.part is not None else []
            yield f"{names[node]} = sink({names[node.tensor]})", f"{_target(node)}{place}", *part


def _types(node: Source | Selector | Operation) -> list[tuple[str, object]]:
    return list(node.output_types.items())


def _target(node: Sink) -> str:
    if isinstance(node.target, FileTarget):
        return f"{node.target.path}{'#' + node.target.key if node.target.key else ''}"
    return "memory"


def _call(node: Source | Selector | Operation, names: dict[Node, str]) -> str:
    if isinstance(node, Source):
        what = [repr(node.name)] if node.name else []
        if isinstance(node.data, FileData):
            what.append(f"{node.data.path}{'#' + node.data.key if node.data.key else ''}")
        if isinstance(node.data, Hole):
            what.append(f"no data: {node.data.key}" if node.data.key and not node.name else "no data")
        return f"source({', '.join(what)})"
    inputs = [names[tensor] for _, tensor in node.inputs]
    label = node.kind if isinstance(node, Selector) else node.operator
    return f"{label}({', '.join([*inputs, *_parameters(node)])})"


def _parameters(node: Selector | Operation) -> list[str]:
    """The parameters as they would be written; the map of a view is told beside the call."""
    shown = [(name, value) for name, value in node.parameters if name not in ("matrix", "offset")]
    if isinstance(node, Selector) and not node.inputs:
        return [_plain(value) for _, value in shown]
    return [f"{name}={_plain(value)}" for name, value in shown]


def _plain(value: Value) -> str:
    return value if isinstance(value, str) else str(value)


def _notes(node: Source | Selector | Operation, names: dict[Node, str]) -> Iterator[str]:
    notes = []
    if isinstance(node, Operation):
        after = f"  after {', '.join(names[p] for p in node.after)}" if node.after else ""
        fixed = "" if node.signature is not None else "  fixed"
        notes.append(f"index {node.index}{after}{fixed}")
    elif isinstance(node, Source):
        notes += [f"on machine {node.placement}"] if node.placement is not None else []
    elif "matrix" in dict(node.parameters):
        map = AffineMap(node.parameter("matrix"), node.parameter("offset"), len(node.out.shape))
        notes.append(f"reads {map}")
    yield from notes


def _order(graph: Graph, names: dict[Node, str]) -> Iterator[str]:
    """What each sequence point holds; the points that are observed come last."""
    producers: dict[Node, str] = {
        node.producer: names[node] for node in reversed(graph.nodes()) if isinstance(node, Tensor)
    }

    def held(point: SequencePoint) -> str:
        return ", ".join(names[item] if item in names else producers[item] for item in point.before)

    for node in graph.nodes():
        if isinstance(node, SequencePoint) and node not in graph.points:
            yield f"{names[node]} = point({held(node)})"
    for point in graph.points:
        yield f"observe {held(point) or 'nothing'}"
    if not graph.points:
        yield "observe nothing"


# ---------------------------------------------------------------------------------------------------------------------
# explain


@dataclass(frozen=True, slots=True)
class Row:
    """One operation, source or sink of an explanation.

    Args:
        name: the id of its first tensor.
        what: operator or kind.
        shape: of its first output, or of the sink's tensor.
        dtype: the element type's name.
        bytes: of all outputs that are read together, dense.
        flops: by the signature's marginal costs; 0 where there are none.
        reads_bytes: of all inputs together, dense.
    """

    name: str
    what: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    flops: float
    reads_bytes: int


@dataclass(frozen=True, slots=True)
class GraphTable:
    """A small table about a graph; ``str`` prints it."""

    rows: tuple[Row, ...]

    @property
    def flops(self) -> float:
        """The work of all operations."""
        return sum(row.flops for row in self.rows)

    @property
    def source_bytes(self) -> int:
        """The bytes of all sources."""
        return sum(row.bytes for row in self.rows if row.what == "source")

    @property
    def made_bytes(self) -> int:
        """The bytes of everything that operations make."""
        return sum(row.bytes for row in self.rows if row.what not in ("source", "sink"))

    def __str__(self) -> str:
        head = ("node", "what", "type", "makes", "reads", "flops")
        body = [
            (
                row.name,
                row.what,
                f"{row.dtype}[{', '.join(map(str, row.shape))}]",
                size_text(row.bytes),
                size_text(row.reads_bytes),
                count_text(row.flops),
            )
            for row in self.rows
        ]
        total = ("", "together", "", size_text(self.made_bytes), "", count_text(self.flops))
        return "\n".join(columns([head, *body, total], right=(3, 4, 5)))


def explain(graph: Graph) -> GraphTable:
    """What each source, operation and sink of a graph holds and costs, dependencies first; views cost nothing.

    Example:
        >>> import numpy as np
        >>> from tileweave.graph import matmul
        >>> print(explain(Graph.of(matmul(np.ones((8, 4)), np.ones((4, 2))))))
        node  what      type           makes  reads  flops
        t0    source    float64[8, 4]  256 B    0 B      0
        t1    source    float64[4, 2]   64 B    0 B      0
        t2    matmul    float64[8, 2]  128 B  320 B    128
        s0    sink      float64[8, 2]    0 B  128 B      0
              together                 128 B           128
    """
    names = ids(graph)
    nodes = graph.nodes()
    shown: dict[Node, list[Tensor]] = {}
    for node in nodes:
        if isinstance(node, Tensor):
            shown.setdefault(node.producer, []).append(node)
    rows = []
    for node in nodes:
        if isinstance(node, Sink):
            kind = node.tensor.type
            rows.append(Row(names[node], "sink", kind.shape, kind.dtype.name, 0, 0.0, kind.size_bytes))
        elif isinstance(node, (Source, Operation)):
            tensors = shown.get(node, [])
            kinds = [t.type for t in tensors] or list(node.output_types.values())
            made = sum(kind.size_bytes for kind in kinds)
            name = names[tensors[0]] if tensors else names.get(node, "-")
            shape, dtype = (kinds[0].shape, kinds[0].dtype.name) if kinds else ((), "")
            if isinstance(node, Source):
                rows.append(Row(name, "source", shape, dtype, made, 0.0, 0))
            else:
                flops = node.signature.cost("flops", node.index) if node.signature else 0.0
                reads = sum(tensor.type.size_bytes for _, tensor in node.inputs)
                rows.append(Row(name, node.operator, shape, dtype, made, flops, reads))
    return GraphTable(tuple(rows))
