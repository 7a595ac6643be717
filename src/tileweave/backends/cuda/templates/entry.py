"""What a CUDA kernel of the collection is: its texts from layouts, its launches, and a trial with its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import Launch
from tileweave.errors import LayoutError
from tileweave.index import Expr, ExprLike, symbol
from tileweave.kernel.atoms import Fragment
from tileweave.layout.lego import Filled, Template
from tileweave.layout.template.collection import check_options, options_of

FOLDER = Path(__file__).parent
LARGEST = (1 << 31) - (1 << 16)
"""Sizes stay below it: 32 bits, with room to round up to a tile."""

Size = int | Expr
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class CudaText:
    """The text of one kernel or of several that belong together.

    Args:
        text: CUDA C++.
        parts: each kernel's filled template, by the kernel's name.
    """

    text: str
    parts: Mapping[str, Filled]

    @property
    def arguments(self) -> tuple[str, ...]:
        """The sizes that the kernels take, each once."""
        return tuple(dict.fromkeys(name for part in self.parts.values() for name in part.arguments))

    def explain(self) -> str:
        """The index expressions of each kernel with their cost before and after."""
        return "\n".join(f"{name}\n{part.explain()}" for name, part in self.parts.items())


@dataclass(frozen=True, eq=False)
class Trial:
    """A problem whose answer is known.

    Args:
        sizes: for messages.
        launches: what the host does.
        found: the arrays that the kernels write.
        wanted: the answer.
        tolerance: the greatest absolute difference; 0: equal bit for bit.
        read: takes what is in memory to the logical order.
    """

    sizes: str
    launches: Sequence[Launch]
    found: Array
    wanted: Array
    tolerance: float = 0.0
    read: Callable[[Array], Array] = lambda memory: memory

    def difference(self) -> float:
        """The greatest absolute difference of the answers; infinite where something was not written."""
        found = self.read(self.found)
        if np.isnan(found.astype(np.float64)).any():
            return float("inf")
        return float(np.abs(found.astype(np.float64) - self.wanted.astype(np.float64)).max(initial=0.0))


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """A named kernel of the collection.

    Args:
        name: of the kernel, or of the group.
        build: takes sizes and options, returns a template for each kernel of the text; sizes left out are arguments.
        trial: takes the text and the options, returns a problem; sizes left out are ones that divide nothing.
        arch: the oldest target that has its instructions.
    """

    name: str
    build: Callable[..., Mapping[str, Template]]
    trial: Callable[..., Trial]
    arch: str = "sm_80"

    @property
    def options(self) -> tuple[str, ...]:
        """The names that `build` takes."""
        return options_of(self.build)

    def text(self, **options: Any) -> CudaText:
        """The text for sizes and options.

        Raises:
            LayoutError: an unknown option.
        """
        check_options(self.name, self.build, options)
        parts = {name: made.fill("cuda") for name, made in self.build(**options).items()}
        return CudaText("\n".join(part.text for part in parts.values()), parts)


# -- pieces that the kernels share ---------------------------------------------------------------------------


def size(name: str, value: Size | None) -> Any:
    """A size: the given number or expression, or a symbol that becomes an argument of the kernel."""
    if value is not None and not isinstance(value, Expr) and not (type(value) is int and 1 <= value < LARGEST):
        raise LayoutError("kernel(name, ..)", f"the size {name} is {value!r}", legal=f"1 .. {LARGEST - 1}")
    return symbol(name, 1, LARGEST) if value is None else value


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse an option that is none of the choices."""
    if value not in choices or isinstance(value, bool):
        many = isinstance(choices, range) and choices.step == 1
        legal = f"{choices[0]} .. {choices[-1]}" if many else " | ".join(map(repr, choices))
        raise LayoutError("kernel(name, ..)", f"{name} is {value!r}", legal=legal)


def count(n: ExprLike, tile: int) -> Any:
    """How many tiles cover n."""
    return (n + tile - 1) // tile


def tiles_of(n: int, tile: int) -> int:
    """How many tiles cover n, for the host."""
    return -(-n // tile)


def held(fragment: Fragment, lane: Any, register: Any) -> tuple[Any, ...]:
    """The coordinates of the element that a lane holds in a register, read off an instruction's fragment.

    The fragment's layout takes elements to places; every digit of a place is one iter, so that the way back is a sum.
    """
    places = {"lane": lane, "reg": register}
    out: list[Any] = [0] * len(fragment.shape)
    dimension, weight = len(fragment.shape) - 1, 1
    for it in reversed(fragment.layout.shard):
        if weight == fragment.shape[dimension]:
            dimension, weight = dimension - 1, 1
        ((axis, stride),) = it.stride.terms
        out[dimension] = out[dimension] + places[axis] // stride % it.extent * weight
        weight *= int(it.extent)
    return tuple(out)
