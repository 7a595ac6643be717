"""Einsums of two arrays by code that is there: what a further shape of a known kind costs.

What depends on the equation is done once per kind: a function of the arrays' shapes and strides is written for it,
which gives the result's shape and the size of every axis of the kernel's program. Sizes that are met for the first time
run on the kind's code with a table made for the call; a kernel of their own is made when they come again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.backends.base import Backend, Resizable
from tileweave.lower.eager.steps import KernelStep
from tileweave.lower.programs import LONG_CONTRACTION

Array = np.ndarray[Any, Any]
Lie = tuple[int, ...]
Sized = tuple[tuple[int, ...], list[tuple[int, tuple[int, ...]]]]
"""The result's shape, and of every axis of a program the extent and the bytes per tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownKind:
    """Contractions of one equation and element type that differ in sizes: a kernel that may be had for other sizes.

    Args:
        kernel: for some sizes.
        backend: whose it is.
        dtype: of the result.
        inputs: which operand each term of the kernel's program is.
        sizes: the sizes of two operands, by `sizes_of`.
    """

    kernel: Resizable
    backend: Backend
    dtype: np.dtype[Any]
    inputs: tuple[int, ...]
    sizes: Callable[[Lie, Lie, Lie, Lie, Lie | None], Sized | None]

    def step(self, a: Array, b: Array, out: Array | None) -> KernelStep | None:
        """The kind's code on arrays of these sizes; None where it does not serve them."""
        found = self.sizes(a.shape, a.strides, b.shape, b.strides, None if out is None else out.strides)
        if found is None or (out is not None and (out.shape != found[0] or out.dtype != self.dtype)):
            return None
        kernel = self.kernel.resized(found[1], soon=True)
        if kernel is None:
            return None
        return KernelStep(kernel, self.inputs, self.backend.empty(found[0], self.dtype))


def run_once(step: KernelStep, a: Array, b: Array, out: Array | None) -> Array:
    """The result of a kind's code for sizes that may not come again."""
    made = step.new() if out is None else out
    kernel: Any = step.kernel
    first, second = (a, b) if step.inputs[0] == 0 else (b, a)
    if not (made.flags.writeable and kernel.run_once(first, second, made)):
        kernel(first, second, made)  # where it may run nevertheless, or says why not
    return made


def sizes_of(
    terms: Sequence[str], inputs: Sequence[int], axes: Sequence[str], summed: str, widths: Sequence[int]
) -> Callable[[Lie, Lie, Lie, Lie, Lie | None], Sized | None]:
    """The sizes of a contraction as a function of its operands' shapes and strides, and of the result's strides.

    The function gives None where another code may be needed: where extents do not match or are below 2, a sum is long,
    strides are no whole elements, or letters that the program walks as one axis are none. Without strides the result
    is in row-major order.

    Args:
        terms: the letters of both arrays and of the result.
        inputs: which array is each operand of the program.
        axes: the letters of each axis of the program; several where it walks them as one.
        summed: letters that are summed.
        widths: bytes of an element of both arrays and of the result.

    Example:
        >>> of = sizes_of(["ik", "kj", "ij"], [0, 1], ["i", "j", "k"], "k", [4, 4, 4])
        >>> of((2, 5), (20, 4), (5, 3), (12, 4), None)
        ((2, 3), [(2, (20, 0, 12)), (3, (0, 4, 4)), (5, (4, 12, 0))])
    """
    extent: dict[str, str] = {}
    lines = [f"if len(shape0) != {len(terms[0])} or len(shape1) != {len(terms[1])}: return None"]
    for k, term in enumerate(terms[:2]):
        names = [f"n{k}{place}" for place in range(len(term))]
        lines.append(f"{_row(names)} = shape{k}")
        for letter, name in zip(term, names, strict=True):
            if extent.setdefault(letter, name) != name:
                lines.append(f"if {name} != {extent[letter]}: return None")
    lines.append(f"if {' or '.join(f'{name} < 2' for name in extent.values())}: return None")
    lines.append(f"if {_product(extent, summed)} > {LONG_CONTRACTION}: return None")
    lines.append("if strides2 is None:")
    ranks = range(len(terms[2]))
    lines += [f"  s2{place} = {widths[2]} * {_product(extent, terms[2][place + 1 :])}" for place in ranks]
    rows = [[f"s{k}{place}" for place in range(len(term))] for k, term in enumerate(terms)]
    lines += ["  pass", f"elif len(strides2) != {len(terms[2])}: return None", f"else: {_row(rows[2])} = strides2"]
    lines += [f"{_row(rows[k])} = strides{k}" for k in range(2)]
    odd = [f"{name} % {width}" for row, width in zip(rows, widths, strict=True) for name in row if width > 1]
    lines += [f"if {' or '.join(odd)}: return None"] if odd else []
    strides = [dict(zip(term, row, strict=True)) for term, row in zip(terms, rows, strict=True)]
    walks = [strides[inputs[0]], strides[inputs[1]], strides[2]]
    sized = []
    for axis in axes:
        last = axis[-1]
        for k in range(len(axis) - 1):
            inside = _product(extent, axis[k + 1 :])
            same = [(walk.get(axis[k], "0"), walk.get(last, "0")) for walk in walks]
            wrong = [f"{far} != {near} * {inside}" for far, near in same if (far, near) != ("0", "0")]
            lines.append(f"if {' or '.join(wrong)}: return None")
        sized.append(f"({_product(extent, axis)}, {_row([walk.get(last, '0') for walk in walks])})")
    lines.append(f"return {_row([extent[x] for x in terms[2]])}, [{', '.join(sized)}]")
    scope: dict[str, Any] = {}
    exec("def of(shape0, strides0, shape1, strides1, strides2):\n  " + "\n  ".join(lines), scope)
    made: Callable[[Lie, Lie, Lie, Lie, Lie | None], Sized | None] = scope["of"]
    return made


def _row(names: Sequence[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"


def _product(extent: dict[str, str], letters: str) -> str:
    return " * ".join(extent[letter] for letter in letters) or "1"
