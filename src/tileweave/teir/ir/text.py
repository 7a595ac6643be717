"""Programs as text: the schedule tree in the document's drawing, and its tables.

Source: TEIR, listings 10.2.1 to 10.7.13 and tables 10.1.1 to 10.3.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from tileweave.teir.ir.program import Id, Invocation, Iteration, Node, Primitive, Program, show_value
from tileweave.teir.ir.walk import nodes_by_id, printed, show_guard

Row = tuple[str, ...]


def tree(program: Program) -> str:
    """The schedule as the document draws it: one line per node, children below, ``(parallel)`` and guards behind.

    Example:
        >>> from tileweave.teir.ir.program import First, Invocation, Iteration, Program
        >>> k = Iteration("k", "k", ("zero", "contraction"))
        >>> zero = Invocation("zero", "zero_prim", (First("k"),))
        >>> print(tree(Program((), (), ("k",), (k, zero, Invocation("contraction", "p")), ())))
        k
        ├── zero  [first(k)]
        └── contraction

    Source: TEIR, listing 10.2.2.
    """
    nodes = nodes_by_id(program)
    lines: list[str] = []
    met: set[Id] = set()
    # (identifier, what stands before its label, what stands before its children)
    stack: list[tuple[Id, str, str]] = [(root, "", "") for root in reversed(program.roots)]
    while stack:
        id, lead, below = stack.pop()
        if id not in nodes:
            lines.append(f"{lead}{printed(id)}  (no such node)")
            continue
        if id in met:
            lines.append(f"{lead}{printed(id)}  (shown above)")
            continue
        met.add(id)
        node = nodes[id]
        lines.append(lead + _label(node))
        if isinstance(node, Iteration):
            last = len(node.children) - 1
            stack += [
                (child, below + ("└── " if k == last else "├── "), below + ("    " if k == last else "│   "))
                for k, child in reversed(list(enumerate(node.children)))
            ]
    return "\n".join(lines)


def _label(node: Node) -> str:
    text = printed(node.id)
    if isinstance(node, Iteration) and node.policy != "sequential":
        text += f"  ({printed(node.policy)})"
    if node.guard:
        text += f"  [{show_guard(node.guard)}]"
    return text


def axes_table(program: Program) -> tuple[Row, ...]:
    """The rows of TEIR-Axes, heading first: axis, extent, strides and offsets in bytes."""
    rows = [(str(a.id), str(a.extent), _tuple(a.strides), _tuple(a.offsets)) for a in program.axes]
    return (("Axis", "Extent", "Strides", "Offsets"), *rows)


def iterations_table(program: Program) -> tuple[Row, ...]:
    """The rows of the iteration nodes, heading first, as in table 10.2.3."""
    rows = [
        (str(n.id), str(n.axis), n.policy, _list(n.children), show_guard(n.guard))
        for n in program.nodes
        if isinstance(n, Iteration)
    ]
    return (("Node", "Axis", "Policy", "Children", "Guard"), *rows)


def invocations_table(program: Program) -> tuple[Row, ...]:
    """The rows of the invocation nodes, heading first, as in table 10.2.4."""
    rows = [(str(n.id), str(n.primitive), show_guard(n.guard)) for n in program.nodes if isinstance(n, Invocation)]
    return (("Node", "Primitive", "Guard"), *rows)


def primitives_table(program: Program) -> tuple[Row, ...]:
    """The rows of TEIR-Primitives, heading first, as in table 10.3.3; with operands where they are bound by name."""
    named = program.profile != "document"
    heading = ("Primitive", "Operation", "Axes", *(("Operands",) if named else ()), "Metadata")
    return (heading, *(_primitive_row(p, named) for p in program.primitives))


def _primitive_row(p: Primitive, named: bool) -> Row:
    axes = "{" + ", ".join(f"{role}: {_list(ids)}" for role, ids in p.axes) + "}"
    metadata = "{" + ", ".join(f"{key}: {show_value(value)}" for key, value in p.metadata) + "}"
    return (str(p.id), str(p.operation), axes, *((_list(p.operands),) if named else ()), metadata)


def tensors_table(program: Program) -> tuple[Row, ...]:
    """The rows of the tensors, heading first; own to this package."""
    rows = [("Tensor", "Type", "Role", "Scratch bytes", "Shape")]
    for t in program.tensors:
        shape = "" if t.shape is None else "x".join(map(str, t.shape)) or "scalar"
        rows.append((t.name, t.dtype, t.role, str(t.size_bytes) if t.size_bytes else "", shape))
    stated = any(t.shape is not None for t in program.tensors)
    return tuple(row if stated else row[:-1] for row in rows)


def table(rows: Sequence[Row]) -> str:
    """Rows as aligned text, the heading underlined.

    Example:
        >>> print(table([("Axis", "Extent"), ("a", "4")]))
        Axis  Extent
        ────  ──────
        a     4
    """
    rows = [tuple(map(printed, row)) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def show(program: Program) -> str:
    """The whole program: its name, the schedule tree, and one table per component.

    Raises nothing: programs that are not well formed print as well.
    """
    names = printed(", ".join(spec.name for spec in program.tensors))
    parts = [f"{printed(program.name)} ({program.profile} profile)", tree(program), table(tensors_table(program))]
    parts.append(f"Axes: strides and offsets in bytes, in the order ({names})\n" + table(axes_table(program)))
    rest = (iterations_table(program), invocations_table(program), primitives_table(program))
    return "\n\n".join([*filter(None, parts), *(table(rows) for rows in rest if len(rows) > 1)])


def _tuple(values: Sequence[object]) -> str:
    return "(" + ", ".join(map(str, values)) + ")"


def _list(values: Sequence[object]) -> str:
    return "[" + ", ".join(map(str, values)) + "]"
