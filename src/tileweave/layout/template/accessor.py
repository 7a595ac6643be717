"""An array of CUDA C++ in any layout: indexed as a plain array is, so that a kernel stays when its layout changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tileweave.errors import LayoutError
from tileweave.index import Expr, symbol
from tileweave.layout.template.binding import template

LETTERS = "ijklmn"


@dataclass(frozen=True, slots=True)
class Accessor:
    """A struct of CUDA C++ that indexes a buffer by a layout.

    Args:
        name: of the struct.
        element: the type of an element.
        dims: the logical extents.
        elements: of the buffer that it needs; more than the extents' product where the layout leaves gaps.
        text: the struct.
    """

    name: str
    element: str
    dims: tuple[int, ...]
    elements: int
    text: str

    def declare(self, variable: str, space: str = "__shared__") -> str:
        """The declaration of an array of this kind: its buffer, and the array over it."""
        return f"{space} {self.element} {variable}_base[{self.elements}]; {self.name} {variable}{{{variable}_base}};"

    def __str__(self) -> str:
        return self.text


def at(layout: Any, *index: Any) -> Any:
    """The offset of a layout of any notation at one coordinate per dimension."""
    return layout.apply(*index) if hasattr(layout, "apply") else layout(*index)


def accessor(layout: Any, name: str = "Arr2D", element: str = "int") -> Accessor:
    """The struct whose ``a[i][j]`` is the element of a buffer where the layout puts (i, j), at the cost of an index.

    Args:
        layout: of any notation, with integer extents and at least two dimensions; it need not be a bijection, so that
            padded rows are one too.
        name: of the struct.
        element: the type of an element.

    Raises:
        LayoutError: symbolic extents, or fewer than two dimensions or more than six.

    Example:
        >>> from tileweave.layout import cute
        >>> padded = accessor(cute.parse("(3,4):(5,1)"), "Padded", "float")
        >>> print(padded)
        struct Padded {  // (3,4):(5,1)
          float* base;
          struct At1 {
            float* base; int i;
            __device__ float& operator[](int j) const {
              return base[i * 5 + j];
            }
          };
          __device__ At1 operator[](int i) const { return {base, i}; }
        };
        >>> padded.declare("tile")
        '__shared__ float tile_base[14]; Padded tile{tile_base};'

    Source: LEGO, section 6.2 (its accessor overloads the index operator).
    """
    where = "accessor(layout, name)"
    found = getattr(layout, "dims", None) or getattr(layout, "shape", None) or ()
    dims = found if isinstance(found, tuple) else (found,)
    if not 2 <= len(dims) <= len(LETTERS) or not all(isinstance(n, int) for n in dims):
        raise LayoutError(
            where, f"the extents are {dims}", inputs={"layout": layout}, legal="two to six integer extents"
        )
    index = [symbol(letter, 0, n) for letter, n in zip(LETTERS, dims, strict=False)]
    offset = at(layout, *index)
    shown = str(layout) if not hasattr(layout, "apply") else repr(layout)
    body = template(
        "{{ define(*letters) }}\nreturn base[{{ offset }}];".replace("*letters", ", ".join(f"'{i}'" for i in index)),
        name=name, offset=offset if isinstance(offset, Expr) else index[0] * 0 + offset,
    ).fill("cuda").text  # fmt: skip
    return Accessor(name, element, dims, _elements(layout, dims), _struct(name, element, shown, len(dims), body))


def _elements(layout: Any, dims: tuple[int, ...]) -> int:
    """One more than the greatest offset."""
    import numpy as np  # text alone does not need it

    return int(np.max(at(layout, *(g.reshape(-1) for g in np.indices(dims))))) + 1


def _struct(name: str, element: str, layout: str, rank: int, body: str) -> str:
    lines = [f"struct {name} {{  // {layout}", f"  {element}* base;"]
    for depth in range(rank - 1, 0, -1):  # the innermost first: each returns the one inside it
        fields = "".join(f" int {letter};" for letter in LETTERS[:depth])
        head = f"int {LETTERS[depth]}"
        lines += [f"  struct At{depth} {{", f"    {element}* base;{fields}"]
        if depth == rank - 1:
            lines.append(f"    __device__ {element}& operator[]({head}) const {{")
            lines += [f"      {line}" for line in body.split("\n") if line]
            lines.append("    }")
        else:
            values = ", ".join(["base", *LETTERS[: depth + 1]])
            lines.append(f"    __device__ At{depth + 1} operator[]({head}) const {{ return {{{values}}}; }}")
        lines.append("  };")
    lines.append("  __device__ At1 operator[](int i) const { return {base, i}; }")
    return "\n".join([*lines, "};"])
