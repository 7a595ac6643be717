"""Templates: a kernel's text with placeholders, and what the placeholders mean as layouts, slices and expressions.

The text knows no layout and the layouts know no text. `Template.fill` reads where each placeholder stands, simplifies
all index expressions with every range that is known, assigns common parts once and where their symbols are known,
moves what a loop does not change in front of it, and prints the rest in the target's language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tileweave.errors import LayoutError
from tileweave.index import (
    Expr,
)
from tileweave.layout.notation.lego_slices import Slice
from tileweave.layout.template.filling import RESERVED, TemplateFilling
from tileweave.layout.template.values import TARGETS, Filled

_BOUND = Slice | Expr | int | float | str


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders and what they mean; made by `template`."""

    name: str
    text: str
    bindings: Mapping[str, Any]
    grid: tuple[Expr | int, ...] = ()
    given: tuple[Expr, ...] = ()

    def fill(self, target: str = "triton") -> Filled:
        """The kernel's text for a target.

        Args:
            target: ``"triton"``, ``"cuda"``, ``"mlir"``, or ``"affine"``: MLIR with numbers as affine maps.

        Raises:
            LayoutError: an undefined or unused name, with its place; a symbol used before it is defined; a tile that
                the target cannot say; an expression too wide for it.
        """
        where = f"Template.fill({self.name!r})"
        if target not in TARGETS:
            raise LayoutError(where, f"unknown target {target!r}", legal=", ".join(TARGETS))
        return TemplateFilling(where, self, TARGETS[target]).result()


def template(
    text: str | Path,
    *,
    grid: Sequence[Expr | int] = (),
    given: Sequence[Expr] = (),
    name: str = "",
    **bindings: Any,
) -> Template:
    """A kernel's template: Jinja2 text, or a file of it, whose names stand for layouts, expressions and words.

    In the text ``{{ a }}`` is the offset of the slice bound to ``a``, ``{{ a.mask }}`` its mask, ``{{ a.load("p") }}``
    and ``{{ a.store("p", "x") }}`` whole accesses, masked only where the mask is not proved to hold always.
    ``{{ define("pid") }}`` stands where a symbol is known from then on, ``{{ loop("k") }}`` first in the body of a
    loop over k: there the common parts are assigned. ``{{ arguments }}`` adds the sizes that the text needs to a list,
    and ``{{ layouts }}`` are comment lines with the layouts.

    Args:
        text: the template, or the path of a file.
        grid: the numbers of programs.
        given: conditions that hold besides the ranges of the symbols; those over sizes become checks of the host.
        name: for messages and comments.
        bindings: name -> a slice of a layout (``layout[i, :]``), an index expression, a condition, an int or a word;
            or a tuple of slices and expressions, whose parts the text names ``a[0]``, ``a[1]``, and so on.

    Example:
        >>> from tileweave.index import symbol
        >>> from tileweave.layout.lego import PartialTiles
        >>> n = symbol("n", 1, 1 << 20)
        >>> tile = PartialTiles((n,), (256,))[symbol("pid", 0, (n + 255) // 256), :]
        >>> copy = template("{{ define('pid') }}\\nx = {{ x.load('p') }}", x=tile)
        >>> print(copy.fill("triton"))
        i0 = tl.arange(0, 256)
        t0 = pid * 256 + i0
        x = tl.load(p + t0, mask=t0 < n, other=0.0)

    Source: LEGO section 4.1 and figure 11.
    """
    where = "template(text, **bindings)"
    if isinstance(text, Path):
        name = name or text.name
        text = text.read_text(encoding="utf-8")
    if not isinstance(text, str) or not isinstance(name, str):
        raise LayoutError(where, f"{text!r} is no text", legal="a text, or the path of a file")
    for key, value in bindings.items():
        if key in RESERVED:
            raise LayoutError(where, f"the name {key!r} is taken", legal=f"names other than {', '.join(RESERVED)}")
        parts = value if isinstance(value, tuple) and value else (value,)
        if not all(isinstance(part, Slice | Expr if parts is value else _BOUND) for part in parts):
            legal = "a slice, an expression, a number, a word, or a tuple of slices and expressions"
            raise LayoutError(where, f"{key} is bound to {value!r}", legal=legal)
    if not all(isinstance(fact, Expr) and fact.is_condition for fact in given):
        raise LayoutError(where, f"given {given!r}", legal="conditions")
    return Template(name or "template", text, dict(bindings), tuple(grid), tuple(given))
