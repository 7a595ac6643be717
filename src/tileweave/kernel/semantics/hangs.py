"""Runs in which no thread can go on: who waits for what, and which of the others would have brought it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from tileweave.kernel.ir import Arrive, Commit, Line, On, Op, Region, Signal, Statement, blocks_of
from tileweave.kernel.semantics.access import refuse
from tileweave.kernel.semantics.machine import Blocked, RunningBlock, Strand
from tileweave.kernel.semantics.threads import entities

VERBS = {Arrive: "arrives on", Commit: "commits to", Op: "copies for", Signal: "signals"}
"""What brings a wait to its end, as errors say it."""
ROWS = 8
"""Waits that an error shows."""


def refuse_deadlock(body: tuple[Statement, ...], symbols: dict[str, int], blocks: list[RunningBlock]) -> NoReturn:
    """Refuse a run that hangs.

    Args:
        body: of the kernel.
        symbols: numbers that its scopes are made with.
        blocks: those of which no thread can go on.
    Raises:
        VerifyError: rule ``deadlock``, with a row for each strand: where it waits, for what, and for whom.
    """
    stuck = [(block, s, s.blocked) for block in blocks for s in block.strands if s.blocked and s.blocked.line.number]
    rows: dict[str, object] = {}
    for block, strand, blocked in stuck[:ROWS]:
        others = [
            other for theirs, other, _ in stuck
            if other is not strand and (blocked.elsewhere or theirs.cluster is block.cluster)
        ]  # fmt: skip
        rows[strand.label] = f"at {blocked.line} waits {blocked.why()}{_for_whom(body, symbols, blocked, others)}"
    if len(stuck) > ROWS:
        rows["and"] = f"{len(stuck) - ROWS} more"
    refuse("deadlock", "no thread can go on", stuck[0][2].line if stuck else Line("", 0), **rows)


def _for_whom(body: tuple[Statement, ...], symbols: dict[str, int], blocked: Blocked, others: list[Strand]) -> str:
    """Which of the strands that wait would bring what a wait lacks, and at which of their lines."""
    if blocked.on is None:
        return ""
    name, found = blocked.on.tensor.name, []
    known = blocked.by()
    for statement, members in _bringers(body, name, symbols, None):
        for other in others:
            threads = frozenset().union(*(a.threads for a in other.agents))
            if other.label not in known and (members is None or threads & members):
                found.append(f"{other.label} {VERBS[type(statement)]} {name} at {statement.line}, and waits itself")
    if found:
        return f"; {'; '.join(found[:2])}{', ..' * (len(found) > 2)}"
    return "" if known else "; nobody else signals it" if blocked.elsewhere else "; nobody else arrives on it"


def _bringers(
    body: tuple[Statement, ...], name: str, symbols: dict[str, int], inside: frozenset[int] | None
) -> Iterator[tuple[Statement, frozenset[int] | None]]:
    """Statements that bring something to a barrier or a flag, and the threads that execute them."""
    for s in body:
        target: Region | None = s.flag if isinstance(s, Signal) else getattr(s, "barrier", None)
        if isinstance(s, tuple(VERBS)) and isinstance(target, Region) and target.tensor.name == name:
            yield s, inside
        if isinstance(s, On):
            for _, members, inner in entities(s, symbols, ""):
                yield from _bringers(s.body, name, inner, members)
        else:
            for part in blocks_of(s):
                yield from _bringers(part, name, symbols, inside)
