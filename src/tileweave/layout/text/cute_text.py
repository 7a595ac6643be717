"""CuTe's text form, ``((2,2),4):((1,8),2)``, by the reader of all notations; writing it is ``str`` of the layout."""

from __future__ import annotations

from typing import Any

from tileweave.errors import LayoutError
from tileweave.layout.f2.swizzle import ComposedLayout, Swizzle, XorLayout
from tileweave.layout.notation.cute_tiling import make_ordered_layout
from tileweave.layout.notation.cute_tuples import make_shape
from tileweave.layout.notation.cute_value import CuteLayout
from tileweave.layout.text.reader import PairList, evaluate

WHERE = "parse(text)"
LEGAL = "e.g. ((2,2),4):((1,8),2)"


def parse(text: str) -> Any:
    """The layout that CuTe's text form spells; inverse of ``str``.

    Args:
        text: ``shape:stride`` with nested parentheses, coordinate strides as ``2@1`` or ``1@0@1``; or a shape alone,
            which gets column-major strides (first mode fastest); or a layout behind a swizzle, ``Sw<3,3,3> o 0 o ..``.
            Blanks, and ``_`` before numbers, are ignored.

    Raises:
        LayoutError: text that is no layout, with the position.

    Example:
        >>> print(parse("((2, 2), 4):((1, 8), 2)"), parse("(_4,_8)"))
        ((2,2),4):((1,8),2) (4,8):(1,4)
    """
    found = evaluate(text, {"Swizzle": Swizzle}, {}, notation="cute", where=WHERE, legal=LEGAL)
    if isinstance(found, PairList):
        raise LayoutError(WHERE, "a list of pairs is no CuTe layout", inputs={"text": text}, legal=LEGAL)
    if isinstance(found, CuteLayout | ComposedLayout | XorLayout):
        return found
    return make_ordered_layout(make_shape(found, WHERE), 0)
