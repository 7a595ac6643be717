"""Kernels as text: every statement with everything it says, one per line; for people, nothing reads it back."""

from __future__ import annotations

from functools import singledispatch

from tileweave.kernel.ir.statements import (
    Alloc,
    Arrive,
    Await,
    Break,
    Commit,
    Continue,
    Fence,
    For,
    Init,
    Kernel,
    Let,
    On,
    Op,
    Option,
    Signal,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    While,
)
from tileweave.kernel.ir.values import Line


def to_text(kernel: Kernel, *, lines: bool = True) -> str:
    """The text of a kernel.

    Args:
        kernel: any kernel, before or after dispatch.
        lines: with the user's line behind each statement.
    """
    rows: list[tuple[str, Line | None]] = [(f"kernel {kernel.name}", kernel.line)]
    rows += [(f"  param {one}", None) for one in kernel.params]
    if kernel.mesh:
        rows.append(("  mesh " + ", ".join(f"{axis} {extent}" for axis, extent in kernel.mesh), None))
    grid = kernel.grid
    cluster = f" in clusters of {grid.cluster}" if grid.cluster > 1 else ""
    rows.append((f"  grid {grid.block} < {grid.size}{cluster}", None))
    for (symbol, value), extent in zip(grid.coords, grid.extents, strict=True):
        rows.append((f"    {symbol} < {extent} = {value}", None))
    _body(kernel.body, "  ", rows)
    if not lines:
        return "\n".join(text for text, _ in rows) + "\n"
    width = min(100, max(len(text) for text, line in rows if line is not None))
    return "\n".join(f"{text:<{width}}  # {line}" if line and line.number else text for text, line in rows) + "\n"


def _body(body: tuple[Statement, ...], indent: str, rows: list[tuple[str, Line | None]]) -> None:
    if not body:
        rows.append((f"{indent}pass", None))
    for statement in body:
        rows.append((indent + head(statement), statement.line))
        if isinstance(statement, For | While | When | On):
            _body(statement.body, indent + "  ", rows)
        if isinstance(statement, When) and statement.otherwise:
            rows.append((f"{indent}else", None))
            _body(statement.otherwise, indent + "  ", rows)


def _options(options: tuple[tuple[str, Option], ...]) -> list[str]:
    return [f"{name}={value}" for name, value in options]


@singledispatch
def head(statement: Statement) -> str:
    """One statement without the bodies inside it, on one line."""
    raise TypeError(f"head(statement): {type(statement).__name__} is no statement")


@head.register
def _(s: Alloc) -> str:
    return f"alloc {s.tensor}"


@head.register
def _(s: Let) -> str:
    return f"let {s.symbol} = {s.value}"


@head.register
def _(s: For) -> str:
    step = "" if s.step == 1 else f" step {s.step}"
    stages = "" if s.stages == 1 else f" stages {s.stages}"
    return f"for {s.symbol} in {s.start} .. {s.stop}{step}{stages}{' unroll' if s.unroll else ''}"


@head.register
def _(s: While) -> str:
    return f"while {s.condition}"


@head.register
def _(s: When) -> str:
    return f"when {s.condition}"


@head.register
def _(s: Break) -> str:
    return "break"


@head.register
def _(s: Continue) -> str:
    return "continue"


@head.register
def _(s: On) -> str:
    each = "" if s.each is None else f" each {s.each}"
    return f"on {s.scope}{each}" + ("" if s.registers is None else f" registers {s.registers}")


@head.register
def _(s: Op) -> str:
    barrier = "" if s.barrier is None else f" completes {s.barrier}"
    return f"{', '.join(map(str, s.outs))} = {s.name}({', '.join([*map(str, s.ins), *_options(s.options)])}){barrier}"


@head.register
def _(s: Init) -> str:
    return f"init {s.barrier} count {s.count}"


@head.register
def _(s: Arrive) -> str:
    lanes = {"each": "every thread", "warp": "one thread per warp", "one": "one thread"}[s.lanes]
    expected = "" if s.bytes is None else f" expects {s.bytes} bytes"
    return f"arrive {s.barrier} by {lanes}{expected}" + ("" if s.cta is None else f" of block {s.cta}")


@head.register
def _(s: Wait) -> str:
    return f"wait {s.barrier} parity {s.parity}"


@head.register
def _(s: Commit) -> str:
    where = "" if s.mask is None else f" of the blocks of mask {s.mask}"
    return f"commit {s.kind}" + ("" if s.barrier is None else f" arrives {s.barrier}{where}")


@head.register
def _(s: WaitGroup) -> str:
    return f"wait {s.kind} until {s.pending} pending{' read' if s.read else ''}"


@head.register
def _(s: Fence) -> str:
    return f"fence {s.kind}"


@head.register
def _(s: Sync) -> str:
    return "sync" + (" cluster" if s.cluster else "") + ("" if s.barrier is None else f" barrier {s.barrier}")


@head.register
def _(s: Signal) -> str:
    return f"signal {s.flag} += {s.value}"


@head.register
def _(s: Await) -> str:
    return f"await {s.flag} >= {s.at_least}"
