"""The paper's notation as text: ``(8:4@lane, 2:1@warp) + [2:4@warp] + 5@warp``.

Round brackets hold D, slowest iter first; square brackets hold R; the remaining terms are O. An iter is
``extent:stride``, a stride a signed sum of ``integer@axis``; a term without an axis lies on ``m``. In the place of an
integer, brackets may hold an index expression. ``str(layout)`` prints this form, and `parse` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tileweave.errors import LayoutError
from tileweave.index import Expr
from tileweave.layout.core.checks import need_axis, need_layouts
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.layout import Iter, Layout, is_symbolic
from tileweave.layout.text.reader import CONSTRUCTORS, evaluate

WHERE = "parse(text)"
LEGAL = "(extent:stride@axis, ..) + [extent:stride@axis, ..] + offset@axis"


def parse(text: str, symbols: Mapping[str, Expr] | None = None) -> Layout:
    """The layout that a text in the paper's notation denotes; ``parse(str(layout)) == layout`` for every layout.

    Args:
        text: the notation; blanks are free.
        symbols: the symbols that index expressions in the text may use, by name.

    Raises:
        LayoutError: the text is malformed; the message points at the place.

    Example:
        >>> parse("(8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp").size
        128
        >>> print(parse("(4:1, 2:1@a - 3@b) + 64"))
        (4:1@m, 2:1@a - 3@b) + 64@m
        >>> from tileweave.index import symbol
        >>> print(parse("(4:1) + (tx // 8 * 4)", {"tx": symbol("tx", 0, 32)}))
        (4:1@m) + (tx // 8 * 4)@m

    Source: Axe, sections 2.1 and 2.2 (Figure 7: a stride without an axis means ``m``).
    """
    found = evaluate(text, CONSTRUCTORS, {}, symbols, notation="axe", where=WHERE, legal=LEGAL)
    if isinstance(found, int | Expr | Coord):
        return Layout((), (), found)  # type: ignore[arg-type]
    if not isinstance(found, Layout):
        raise LayoutError(WHERE, "this is no layout in Axe's notation", inputs={"text": text}, legal=LEGAL)
    return found


def to_text(layout: Layout, *, bare_axis: str = "") -> str:
    """The text form of a layout, with one axis left unnamed if `bare_axis` names it (``"m"`` reads back as it was).

    Example:
        >>> to_text(Layout(((2, 192), (8, {"lane": 8}))), bare_axis="m")
        '(2:192, 8:8@lane)'
    """
    need_layouts("to_text(layout)", layout)
    if bare_axis.__class__ is not str or bare_axis:
        need_axis("to_text(layout, bare_axis)", bare_axis)
    text = str(layout)
    return re.sub(rf"@{re.escape(bare_axis)}\b", "", text) if bare_axis else text


_full_repr = Layout.__repr__


def _repr(layout: Layout) -> str:
    """``read('(8:4@lane) + [2:1@warp]')``; in full where there are index expressions, whose symbols are no text."""
    iters = (*layout.shard, *layout.replica, Iter(1, layout.offset))
    return _full_repr(layout) if any(map(is_symbolic, iters)) else f"read({str(layout)!r})"


setattr(Layout, "__repr__", _repr)  # noqa: B010  # attached from above: the value does not know its notation
