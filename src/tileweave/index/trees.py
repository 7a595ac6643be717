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
            raise LayoutError(
                "symbols_of(roots)",
                f"two different symbols are called {node.args[0]!r}",
                inputs={"first": repr(names[node.args[0]]), "second": repr(node)},
                legal="one range per name",
            )
    return tuple(found)
