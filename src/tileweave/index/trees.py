"""Whole expressions: their symbols, what of them is always evaluated, and the same expressions of other parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tileweave.errors import LayoutError
from tileweave.index.expr import Expr, Op, binary, constant_of, isqrt, logic, maximum, minimum, node_of, select, walk


def unconditional(roots: Iterable[Expr]) -> set[Expr]:
    """The nodes that are evaluated whatever a select chooses: all but those that only branches of selects reach."""
    found: set[Expr] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.args[:1] if node.op == "select" else node.parts
    return found


def rebuilt(roots: Iterable[Expr], replace: Callable[[Expr, tuple[Expr, ...]], Expr | None]) -> dict[Expr, Expr]:
    """Every node under the roots -> the node in its place, operands first.

    Args:
        roots: expressions; the bounds of symbols are left alone.
        replace: takes a node and its rebuilt operands; None: the same operation on them.
    """
    done: dict[Expr, Expr] = {}
    for node in walk(roots):
        parts = tuple(done[part] for part in node.parts)
        found = replace(node, parts)
        done[node] = found if found is not None else node if parts == node.parts else made(node.op, parts)
    return done


def made(op: Op, parts: Sequence[Any]) -> Expr:
    """The node of an operation on operands, folded as the operators fold it."""
    match op:
        case "min" | "max":
            return (minimum if op == "min" else maximum)(*parts)
        case "select":
            return select(*parts)
        case "isqrt":
            return isqrt(*parts)
        case "not":
            return Expr.__invert__(parts[0])
        case "and" | "or":
            return logic(op, *parts)
        case "floordiv" | "mod" if constant_of(parts[1]) == 0:  # in a branch that is never chosen it may stand
            return node_of(op, tuple(parts))
    return binary(op, *parts)


def symbols_of(roots: Expr | Iterable[Expr]) -> tuple[Expr, ...]:
    """Every symbol under the roots, those of bounds included, each after the symbols of its own bounds.

    Raises:
        LayoutError: two different symbols share a name, or a root is no expression.
    """
    names: dict[str, Expr] = {}
    roots = (roots,) if isinstance(roots, Expr) else tuple(roots) if isinstance(roots, Iterable) else (roots,)
    for root in roots:
        if type(root) is not Expr:
            raise LayoutError("symbols_of(roots)", f"{root!r} is no expression", legal="expressions")
    found = [node for node in walk(roots, bounds=True) if node.op == "sym"]
    for node in found:
        if names.setdefault(node.args[0], node) is not node:
            raise two_symbols(names[node.args[0]], node)
    return tuple(found)


def two_symbols(first: Expr, second: Expr) -> LayoutError:
    """The error that two symbols share a name."""
    return LayoutError(
        "symbols_of(roots)", f"two different symbols are called {first.args[0]!r}",
        inputs={"first": repr(first), "second": repr(second)}, legal="one range per name",
    )  # fmt: skip


# Pickle and copy: a node goes back through its constructor, a deep graph as a table, without recursion.


def _reduced(expr: Expr) -> tuple[Any, ...]:
    return _rebuild, (_table_of(expr),)


setattr(Expr, "__reduce__", _reduced)  # noqa: B010 - the table of a graph stands above the class


def _table_of(root: Expr) -> tuple[tuple[Any, ...], ...]:
    """The graph as rows (op, operands as row numbers), operands first; the last row is the root."""
    order = walk([root], bounds=True)
    row = {node: number for number, node in enumerate(order)}
    table: list[tuple[Any, ...]] = []
    for node in order:
        if node.op in ("const", "true"):
            table.append((node.op, node.args[0]))
        elif node.op == "sym":
            name, *bounds = node.args
            table.append(("sym", name, *(None if b is None else row[b] for b in bounds)))
        else:
            table.append((node.op, *(row[part] for part in node.args)))
    return tuple(table)


def _rebuild(table: tuple[tuple[Any, ...], ...]) -> Expr:
    nodes: list[Expr] = []
    for op, *args in table:
        if op in ("const", "true"):
            nodes.append(node_of(op, (args[0],)))
        elif op == "sym":
            nodes.append(node_of("sym", (args[0], *(None if b is None else nodes[b] for b in args[1:]))))
        else:
            nodes.append(node_of(op, tuple(nodes[part] for part in args)))
    return nodes[-1]
