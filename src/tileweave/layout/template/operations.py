"""What a target whose text is SSA operations needs: every node of every expression is an operation of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tileweave.errors import LayoutError
from tileweave.index import Expr
from tileweave.index.expr import walk
from tileweave.index.text.affine import AffineOperations
from tileweave.index.text.mlir import Operations
from tileweave.index.text.program import Printable, fresh
from tileweave.layout.template.values import TextTarget


def name_symbols(ready: Printable, ranges: Mapping[Expr, str]) -> None:
    """The text of every symbol: its SSA name."""
    for node in walk(ready.roots):
        if node.op == "sym":
            ready.written[node] = f"%{ranges.get(node, node.args[0])}"


def assign_operations(
    where: str,
    ready: Printable,
    levels: Mapping[Expr, int],
    lines: list[list[str]],
    bases: Mapping[Expr, Expr],
    taken: set[str],
    *,
    constants: tuple[int | bool, ...] = (),
) -> None:
    """Writes every node where its symbols are known, and what stands for it in `ready`.

    Args:
        where: the public function, for errors.
        ready: the expressions; of the dialect affine, or arith.
        levels: node -> the first scope in which it may stand.
        lines: the lines of each scope; constants go first in the outermost one.
        bases: symbol -> the expression that it names.
        taken: names that are not free.
        constants: those that the text needs besides.
    """
    numbers = iter(range(1 << 30))
    body = Operations("index", ready.normal, lambda: f"%{fresh(taken, next(numbers))}", frozenset(taken))
    body.names |= {node: name for node, name in ready.written.items() if node.op == "sym"}
    for value in constants:
        body.constant(value)
    for kept in bases:
        body.names.pop(kept, None)
    nodes = walk(ready.roots)
    wanted = {root for root in ready.roots if not root.is_condition}
    affine = AffineOperations(where, body, nodes, wanted) if ready.dialect.name == "affine" else None
    homes = {base: [kept for kept in bases if bases[kept] is base] for base in bases.values()}
    for node in nodes:
        if node in bases:
            continue
        body.lines = lines[max(levels[node], 0)]
        if node not in body.names:
            (affine or body).write(node)
        for kept in homes.get(node, ()):
            body.names[kept] = body.names[node]
    lines[0][:0] = body.constants
    ready.written |= body.names


_ELEMENT = re.compile(r"memref<(?:[\d?]+x)*(\w+)")


def access(where: str, target: TextTarget, kind: str, words: dict[str, str], number: int) -> str:
    """A load or a store in one line.

    Args:
        where: the public function, for errors.
        target: its formats.
        kind: ``load``, ``masked_load``, ``store`` or ``masked_store``.
        words: ``pointer``, ``offset``, ``mask``, ``other``, ``value``; the pointer is ``%name : memref<..>``, with a
            vector type behind it for several elements, and attributes in braces before the colon.
        number: tells names inside a region apart.

    Raises:
        LayoutError: the pointer says no type.
    """
    match = re.fullmatch(r"(%\w+)((?: \{.*\})?) : (memref<.*)", words["pointer"])
    found = _ELEMENT.match(match[3]) if match else None
    if match is None or found is None:
        legal = "%name : memref<64xf32>, or %name {alignment = 16 : i64} : memref<64xf32>, vector<4xf32>"
        raise LayoutError(where, f"the pointer {words['pointer']!r} says no type", legal=legal)
    vector = re.search(r", (vector<\w+>)$", match[3])
    form = str(getattr(target, kind))
    return form.format(
        **words, name=match[1], attributes=match[2], type=match[3], local=f"%in{number}",
        element=vector[1] if vector else found[1], dialect="vector" if vector else "memref",
    )  # fmt: skip
