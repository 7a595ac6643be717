"""Reading CuTe's text form, ``((2,2),4):((1,8),2)``; writing it is ``str`` of the layout."""

from __future__ import annotations

import re
from typing import Any

from tileweave.errors import LayoutError
from tileweave.layout.core.layout import Coord
from tileweave.layout.notation.cute_tiling import make_ordered_layout
from tileweave.layout.notation.cute_tuples import DEEPEST, E, make_shape
from tileweave.layout.notation.cute_value import CuteLayout

__all__ = ["parse"]

LONGEST = 1000
"""The most digits of a number."""

_TOKEN = re.compile(r"(\d+(?:@\w+)+|\d+|[(),:+-])|\s+|_(?=\d)")


def parse(text: str) -> CuteLayout:
    """The layout that CuTe's text form spells; inverse of ``str``.

    Args:
        text: ``shape:stride`` with nested parentheses, coordinate strides as ``2@1`` or ``1@0@1``; or a shape alone,
            which gets column-major strides (first mode fastest). Blanks, and ``_`` before numbers, are ignored.

    Raises:
        LayoutError: text that is no layout, with the position.

    Example:
        >>> print(parse("((2, 2), 4):((1, 8), 2)"), parse("(_4,_8)"))
        ((2,2),4):((1,8),2) (4,8):(1,4)
    """
    reader = _Reader(str(text))
    shape = reader.tree()
    if reader.at_end():
        return make_ordered_layout(make_shape(shape, "parse(text)"), 0)
    reader.take(":")
    stride = reader.tree()
    if not reader.at_end():
        raise reader.refusal()
    return CuteLayout(shape, stride)


class _Reader:
    """A recursive-descent reader of nested tuples of integers and coordinates."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [t for t in _TOKEN.split(text) if t and t.strip()]
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def at_end(self) -> bool:
        return self.at == len(self.tokens)

    def refusal(self) -> LayoutError:
        problem = f"unexpected {self.next or 'end'!r} at token {self.at}"
        return LayoutError("parse(text)", problem, inputs={"text": self.text}, legal="e.g. ((2,2),4):((1,8),2)")

    def take(self, token: str) -> None:
        if self.next != token:
            raise self.refusal()
        self.at += 1

    def tree(self, depth: int = 0) -> Any:
        if self.next != "(" or depth > DEEPEST:  # too deep: the bracket is no leaf
            return self.leaf()
        self.take("(")
        items: list[Any] = []
        while self.next != ")":
            items.append(self.tree(depth + 1))
            if self.next != ")":
                self.take(",")
        self.take(")")
        return tuple(items)

    def leaf(self) -> Any:
        """A sum of signed terms; integers alone stay integers."""
        total: Any = self.term()
        while self.next in ("+", "-"):
            total = Coord.of(total) + Coord.of(self.term())
        return total

    def term(self) -> Any:
        sign = 1
        while self.next in ("+", "-"):
            sign = -sign if self.next == "-" else sign
            self.at += 1
        number, *names = self.next.split("@")
        if not number.isdecimal() or len(number) > LONGEST:
            raise self.refusal()
        value = sign * int(number)
        if not names:
            self.at += 1
            return value
        if all(name.isdecimal() for name in names):
            self.at += 1
            return value * E(*(int(name) for name in reversed(names)))
        if len(names) > 1:
            raise self.refusal()
        self.at += 1
        return Coord.of({names[0]: value})
