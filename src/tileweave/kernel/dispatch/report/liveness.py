"""Registers that a thread holds at once: from where each buffer is first written to where it is last read.

A loop over the slots of buffers is one place: a slot that it reads for the last time makes room for one that it writes.
A buffer from outside of another loop lives through all of that, since the next turn may read it. What follows from
constants and coordinates alone takes no register: a compiler computes it where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tileweave.kernel.atoms import BITS
from tileweave.kernel.threads import (
    Allocate,
    Branch,
    Buffer,
    Instruction,
    Local,
    Repeat,
    Slots,
    Statement,
    ThreadLoop,
    instructions,
    statements,
)


def registers(body: Sequence[Statement]) -> int:
    """The most 32-bit registers that the buffers of a body take at once."""
    spans: dict[Buffer, list[int]] = {}
    count = _walk(tuple(body), spans, set(), 0)
    change = [[0, 0, 0] for _ in range(count + 1)]  # at a place: registers that pass it, that end, that begin
    computed = _computed(tuple(body))
    for buffer, (first, last) in spans.items():
        if buffer in computed:
            continue
        size = -(-buffer.elements * BITS[buffer.dtype] // 32)
        if first == last:
            change[first][0] += size
            change[first + 1][0] -= size
            continue
        change[first][2] += size
        change[last][1] += size
        change[first + 1][0] += size
        change[last][0] -= size
    most = passing = 0
    for delta, ending, beginning in change:
        passing += delta
        most = max(most, passing + max(ending, beginning))
    return most


def kept(body: Sequence[Statement]) -> int:
    """Registers that any compiler needs: the most that one loop keeps from turn to turn, since they are read later.

    Any write of a buffer is taken for one of all of it and a loop for one that turns, so what is said to be kept is.
    """
    computed, most = _computed(tuple(body)), [0]

    def count(live: frozenset[Buffer]) -> None:
        size = sum(-(-b.elements * BITS[b.dtype] // 32) for b in live - computed)
        most[0] = max(most[0], size)

    _needed(tuple(body), frozenset(), count)
    return most[0]


def _needed(
    body: tuple[Statement, ...], live: frozenset[Buffer], count: Callable[[frozenset[Buffer]], None]
) -> frozenset[Buffer]:
    """The buffers whose values are read from the beginning of a body on, from those that are behind it."""
    for s in reversed(body):
        if isinstance(s, Branch):
            live = _needed(s.body, live, count) | _needed(s.otherwise, live, count)
        elif isinstance(s, ThreadLoop | Repeat):
            head = _needed(s.body, live, count)
            if isinstance(s, Repeat) or not s.unroll:
                head = _needed(s.body, live | head, count)
                count(head)
            live = head
        elif isinstance(s, Allocate):
            live -= {s.buffer}
        elif isinstance(s, Instruction):
            named = [o.buffer for o in s.operands if isinstance(o, Slots)]
            first = s.operands[0] if s.operands else None
            makes = isinstance(first, Slots) and s.mask is None and s.atom.startswith(_MAKERS)
            live = live - {named[0]} | frozenset(named[1:]) if makes else live | frozenset(named)
        elif isinstance(s, Local) and isinstance(s.value, Slots):
            live |= {s.value.buffer}
    return live


_MAKERS = ("map.", "ld.", "ldmatrix", "shfl", "tcgen05.ld")
"""Instructions whose first operand is written without being read."""


def _computed(body: tuple[Statement, ...]) -> set[Buffer]:
    """Buffers whose every value is a function of constants, coordinates and other such buffers."""
    sources: dict[Buffer, set[Buffer]] = {}
    other: set[Buffer] = set()
    for item in instructions(body):
        named = [o.buffer for o in item.operands if isinstance(o, Slots)]
        if not item.atom.startswith("map."):
            other.update(named)
        elif named:
            sources.setdefault(named[0], set()).update(named[1:])
    found = set(sources) - other
    while late := {b for b in found if not sources[b] <= found}:
        found -= late
    return found


def _walk(body: tuple[Statement, ...], spans: dict[Buffer, list[int]], born: set[Buffer], at: int) -> int:
    """Notes the places of each buffer from place `at` on; gives the first place behind the body."""
    for s in body:
        if isinstance(s, Allocate):
            born.add(s.buffer)
        elif isinstance(s, Branch):
            at = _walk(s.otherwise, spans, born, _walk(s.body, spans, born, at))
        elif isinstance(s, ThreadLoop | Repeat) and not _over_slots(s):
            inside: set[Buffer] = set()
            end = _walk(s.body, spans, inside, at)
            for buffer in set(_buffers(s.body)) - inside:
                _note(spans, buffer, at)
                _note(spans, buffer, max(at, end - 1))
            at = end
        else:
            for buffer in _buffers((s,)):
                _note(spans, buffer, at)
            at += 1
    return at


def _over_slots(s: ThreadLoop | Repeat) -> bool:
    inner = statements(s.body)
    return isinstance(s, ThreadLoop) and s.unroll and all(not isinstance(i, Allocate | Repeat) for i in inner)


def _note(spans: dict[Buffer, list[int]], buffer: Buffer, at: int) -> None:
    span = spans.setdefault(buffer, [at, at])
    span[0], span[1] = min(span[0], at), max(span[1], at)


def _buffers(body: tuple[Statement, ...]) -> Iterator[Buffer]:
    """The register buffers that statements name."""
    for s in statements(body):
        values = s.operands if isinstance(s, Instruction) else (s.value,) if isinstance(s, Local) else ()
        yield from (v.buffer for v in values if isinstance(v, Slots))
