"""The paper's notation as text: ``(8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp``.

Round brackets hold D, slowest iter first; square brackets hold R; the remaining terms are O. An iter is
``extent:stride``, a stride a signed sum of ``integer@axis``; a term without an axis lies on ``m``. ``str(layout)``
prints this form, and `parse` reads it back.
"""

from __future__ import annotations

import re

from tileweave.errors import LayoutError
from tileweave.layout.layout import DEFAULT_AXIS, Coord, Iter, Layout

__all__ = ["parse", "to_text"]

WHERE = "parse(text)"
TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<name>[^\W\d]\w*)|(?P<mark>[()\[\]:,@+\-]))")
LEGAL = "(extent:stride@axis, ..) + [extent:stride@axis, ..] + offset@axis"


def parse(text: str) -> Layout:
    """The layout that a text in the paper's notation denotes; ``parse(str(layout)) == layout`` for every layout.

    Raises:
        LayoutError: the text is malformed; the message points at the place.

    Example:
        >>> parse("(8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp").size
        128
        >>> print(parse("(4:1, 2:1@a - 3@b) + 64"))
        (4:1@m, 2:1@a - 3@b) + 64@m

    Source: Axe, sections 2.1 and 2.2 (Figure 7: a stride without an axis means ``m``).
    """
    if not isinstance(text, str):
        raise LayoutError(WHERE, f"{text!r} is not a text", legal=LEGAL)
    return _Reader(text).layout()


class _Reader:
    """A cursor over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text.rstrip()):
            match = TOKEN.match(text, at)
            if not match:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self.error(f"{text[at]!r} is not expected", at)
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind], match.start(kind)))
            at = match.end()
        self.tokens.append(("end", "the end", len(text.rstrip())))
        self.next = 0

    def error(self, problem: str, at: int) -> LayoutError:
        return LayoutError(WHERE, problem, inputs={"text": f"{self.text}\n{' ' * at}^"}, legal=LEGAL)

    def peek(self) -> str:
        return self.tokens[self.next][1]

    def take(self, want: str = "", kind: str = "") -> str:
        have_kind, have, at = self.tokens[self.next]
        if (want and have != want) or (kind and have_kind != kind):
            raise self.error(f"{have!r} is not expected here, {want or 'a ' + kind} is", at)
        self.next += 1
        return have

    def layout(self) -> Layout:
        shard: tuple[Iter, ...] | None = None
        replica: tuple[Iter, ...] | None = None
        offset = Coord()
        first = True
        while first or self.peek() != "the end":
            sign = self.take() if self.peek() in "+-" else ""
            at = self.tokens[self.next][2]
            if not sign and not first:
                raise self.error(f"{self.peek()!r} is not expected here, + or - is", at)
            opening = self.peek()
            if opening in "([" and sign == "-":
                raise self.error("iters cannot be subtracted", at)
            if opening == "(" and shard is None:
                shard = self.iters("(", ")")
            elif opening == "[" and replica is None:
                replica = self.iters("[", "]")
            elif opening in "([":
                raise self.error(f"a second {opening!r}", at)
            else:
                offset = offset + self.term(-1 if sign == "-" else 1)
            first = False
        return Layout(shard or (), replica or (), offset)

    def iters(self, opening: str, closing: str) -> tuple[Iter, ...]:
        self.take(opening)
        out: list[Iter] = []
        while self.peek() != closing:
            at = self.tokens[self.next][2]
            extent = int(self.take(kind="number"))
            if extent < 1:
                raise self.error(f"the extent {extent} is not positive", at)
            self.take(":")
            out.append(Iter(extent, self.stride()))
            if self.peek() != closing:
                self.take(",")
        self.take(closing)
        return tuple(out)

    def stride(self) -> Coord:
        sign = self.take() if self.peek() in "+-" else "+"
        total = self.term(-1 if sign == "-" else 1)
        while self.peek() in "+-":
            total = total + self.term(-1 if self.take() == "-" else 1)
        return total

    def term(self, sign: int) -> Coord:
        value = sign * int(self.take(kind="number"))
        axis = DEFAULT_AXIS
        if self.peek() == "@":
            self.take()
            axis = self.take(kind="name")
        return Coord(((axis, value),))


def to_text(layout: Layout, *, bare_axis: str = "") -> str:
    """The text form of a layout, with one axis left unnamed if `bare_axis` names it (``"m"`` reads back as it was).

    Example:
        >>> to_text(Layout(((2, 192), (8, {"lane": 8}))), bare_axis="m")
        '(2:192, 8:8@lane)'
    """
    text = str(layout)
    return re.sub(rf"@{re.escape(bare_axis)}\b", "", text) if bare_axis else text
