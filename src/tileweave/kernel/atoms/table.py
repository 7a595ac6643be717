"""The atom table: every row by its PTX name."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Any

from tileweave.errors import BackendError
from tileweave.kernel.atoms import mma, movement
from tileweave.kernel.atoms.atom import Atom

_SOURCES = (
    (mma.mma_names, mma.mma_atom),
    (mma.wgmma_names, mma.wgmma_atom),
    (mma.tcgen05_names, mma.tcgen05_atom),
    (mma.scaled_names, mma.scaled_atom),
    (movement.movement_names, movement.movement_atom),
)


@cache
def _all() -> tuple[str, ...]:
    return tuple(name for source, _ in _SOURCES for name in source())


def names(family: str | None = None) -> Iterator[str]:
    """The PTX names of the rows, of one family or of all.

    Example:
        >>> [name for name in names("movmatrix")]
        ['movmatrix.sync.aligned.m8n8.trans.b16']
    """
    for name in _all():
        if family is None or atom(name).family == family:
            yield name


def families() -> tuple[str, ...]:
    """The families, in the order of the table."""
    return tuple(dict.fromkeys(atom(name).family for name in _all()))


@cache
def atom(name: str) -> Atom:
    """The row of one instruction.

    Args:
        name: the PTX opcode with all its modifiers.

    Raises:
        BackendError: no row has this name; the error lists near ones.

    Example:
        >>> print(atom("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")["b"].layout)
        (8:4@lane, 2:1@reg, 4:1@lane)
    """
    for _, build in _SOURCES:
        found = build(name)
        if found is not None:
            return found
    near = get_close_matches(name, _all(), 3, 0.6)
    raise BackendError("atom(name)", f"no instruction {name!r}", legal=" | ".join(near) or "a name of names()")


def refusals(row: Atom, **values: Any) -> tuple[str, ...]:
    """The names of the rules that these addresses and settings break; a rule that speaks of others is left out.

    Example:
        >>> refusals(atom("cp.async.cg.shared.global.16"), source=32, destination=8, source_bytes=16)
        ('aligned',)
    """
    broken = []
    for rule in row.legal:
        try:
            if not rule.holds(values):
                broken.append(rule.name)
        except NameError:
            continue
    return tuple(broken)
