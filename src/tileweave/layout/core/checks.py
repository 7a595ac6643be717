"""Arguments of public functions, checked before work starts; refusals with their witness; the bounds of searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from tileweave.errors import LayoutError, NoLayout, Undecided, Unproved, short_text
from tileweave.layout.core.coord import IntArray, Shape, integers
from tileweave.layout.core.layout import Iter, Layout
from tileweave.layout.core.symbolic import require_positive, require_same

# The bounds of exact searches: beyond them the answer is `Undecided`.

BOUND = 1 << 20
"""The most points, values or search states that one decision looks at."""

PIECES = 1 << 12
"""The most pieces of a slice, and the most points of a dimension for which every way to cut it is compared."""


class Witness(NamedTuple):
    """Why no layout exists: at these points the function takes these values, and they break the condition.

    The parts are read as attributes or by name, ``witness["points"]``.
    """

    points: tuple[Any, ...]
    values: tuple[Any, ...]
    condition: str

    def __getitem__(self, part: Any) -> Any:
        return getattr(self, part) if isinstance(part, str) else tuple.__getitem__(self, part)


def no_layout(
    where: str,
    problem: str,
    *,
    inputs: Mapping[str, object],
    legal: str = "",
    points: Sequence[object] = (),
    values: Sequence[object] = (),
    condition: str,
) -> NoLayout:
    """The refusal with its witness: points, the values there, and the condition that they break."""
    witness = Witness(tuple(points), tuple(values), condition)
    return NoLayout(where, problem, inputs=inputs, legal=legal, facts={"witness": witness})


def refuse(where: str, witness: Witness, inputs: Mapping[str, object], legal: str = "") -> NoLayout:
    """The refusal of a function that no layout describes; its witness is printed among the inputs."""
    shown = dict(inputs)
    if witness.values:
        shown["witness"] = ", ".join(f"f({x}) = {v}" for x, v in zip(witness.points, witness.values, strict=True))
    problem = f"no layout agrees with the definition: {witness.condition}"
    return NoLayout(where, problem, inputs=shown, legal=legal, facts={"witness": witness})


def undecided(where: str, what: str, inputs: Mapping[str, object], bound: int = BOUND) -> Undecided:
    """The error of an exact search that passed its bound, with the bound in the facts."""
    return Undecided(
        where, f"{what} needs more than {bound} steps", inputs=inputs, legal="a smaller domain", facts={"bound": bound}
    )


def need_layouts(where: str, *layouts: Layout) -> None:
    """Raise a `LayoutError` unless every argument is a `Layout`."""
    for layout in layouts:
        if layout.__class__ is not Layout:
            raise LayoutError(
                where, f"{short_text(layout)} is not a layout", legal="a Layout, e.g. parse('(4:8, 8:1)')"
            )


Operation = TypeVar("Operation", bound=Callable[..., Any])


def asked(where: str) -> Callable[[Operation], Operation]:
    """A decorator: what the function or those that it calls refuse is refused in the name that the user called."""

    def decorate(operation: Operation) -> Operation:
        @wraps(operation)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return operation(*args, **kwargs)
            except LayoutError as error:
                error.named(where)
                raise

        return cast("Operation", run)

    return decorate


def as_layout(value: Any, where: str) -> Layout:
    """A layout of any notation as a core layout with the same values at its own linear indices.

    A value of another notation says so with a method ``as_core()``.

    Raises:
        LayoutError: the value is no layout.
        NoLayout: it is none that iters describe, such as a bijection given by a function.
    """
    if value.__class__ is Layout:
        return value
    if hasattr(type(value), "as_core"):
        return value.as_core()  # type: ignore[no-any-return]
    raise LayoutError(where, f"{short_text(value)} is not a layout", legal="a Layout, e.g. parse('(4:8, 8:1)')")


def need_numbers(where: str, *layouts: Any) -> None:
    """Raise `Unproved` where a layout of any notation holds an index expression."""
    for layout in layouts:
        if getattr(layout, "is_symbolic", False):
            raise Unproved(
                where,
                "the layout is symbolic",
                inputs={"layout": layout},
                legal="numbers: substitute(layout, values) replaces symbols by their values",
                facts={"condition": "extents, strides and offset are numbers"},
            )


def need_iters(where: str, *iters: Iter) -> None:
    """Raise a `LayoutError` unless every argument is an `Iter`."""
    for it in iters:
        if it.__class__ is not Iter:
            raise LayoutError(where, f"{short_text(it)} is not an iter", legal="Iter(extent, stride)")


def need_arrays(where: str, *arrays: IntArray) -> None:
    """Raise a `LayoutError` unless every argument is a NumPy array."""
    for array in arrays:
        if not isinstance(array, np.ndarray):
            raise LayoutError(where, f"{short_text(array)} is not an array", legal="a NumPy array")


def check_shape(shape: Shape, size: int, where: str, layout: Layout) -> tuple[int, ...]:
    """The shape as a tuple of positive ints with `size` points, or an error."""
    out = integers(shape, where, "extent")
    points = 1
    for n in out:
        if n.__class__ is not int:
            require_positive(n, where)
        elif n < 1:
            raise LayoutError(
                where,
                f"extent {n} is not a positive integer",
                inputs={"layout": layout, "shape": out},
                legal="positive integers",
            )
        points *= n
    if points.__class__ is not int or size.__class__ is not int:
        require_same(points, size, where)
    elif points != size:
        raise LayoutError(
            where,
            f"the shape {out} has {points} points",
            inputs={"layout": layout, "shape": out},
            legal=f"{size} points",
        )
    return out


def need_axis(where: str, axis: str) -> None:
    """Raise a `LayoutError` unless the argument is the name of an axis."""
    if axis.__class__ is not str or not axis.isidentifier():
        raise LayoutError(where, f"{short_text(axis)} is not the name of an axis", legal="an identifier")


def integer_array(where: str, values: object, what: str) -> IntArray:
    """Anything that NumPy takes for an array of integers, as one; else a `LayoutError`."""
    try:
        array: IntArray = np.asarray(values)
    except Exception:  # an object that only half behaves like a sequence
        array = np.asarray(None)
    if array.dtype.kind not in "iu":
        raise LayoutError(where, f"{what} {short_text(values)} are not integers", legal="an array of integers")
    return array
