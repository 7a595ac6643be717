"""Which operators have code for any sizes, and what makes their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.indexed.counts import Count, countable
from tileweave.backends.cpu.indexed.firsts import Firsts, searchable
from tileweave.backends.cpu.indexed.pools import PoolGradient, poolable
from tileweave.backends.cpu.indexed.scatters import Scatter, scatterable
from tileweave.backends.cpu.indexed.searches import Search, findable
from tileweave.backends.cpu.indexed.takes import Take, takeable
from tileweave.backends.cpu.indexed.triangles import Triangle, triangular
from tileweave.backends.cpu.recurrent.bind import Recurrence, computable
from tileweave.backends.cpu.sorting.bind import Sort, sortable, sorts_sooner

Arrays = Sequence[NDArray[Any]]
How = Mapping[str, Any]
Made = Any | None


def _take(operator: str, how: How, arrays: Arrays, threads: int) -> Made:
    x, places, out = arrays
    return Take(operator, how, threads) if takeable(operator, how, x, places, out) else None


def _scatter(operator: str, how: How, arrays: Arrays, threads: int) -> Made:
    x, places, updates, out = arrays
    return Scatter(operator, how, threads) if scatterable(operator, how, x, places, updates, out) else None


def _sort(operator: str, how: How, arrays: Arrays, threads: int) -> Made:
    x, out = arrays
    axis, descending, places = how["axis"], how["descending"], how["output"] == "indices"
    whole = sortable(x, out, axis)
    if searchable(x, out, axis) and not (whole and sorts_sooner(x, out, axis, places)):
        return Firsts(descending, places, threads)
    return Sort(axis, descending, places, threads) if whole else None


def _search(operator: str, how: How, arrays: Arrays, threads: int) -> Made:
    return Search(how, threads) if findable(*arrays) else None


def _count(operator: str, how: How, arrays: Arrays, threads: int) -> Made:
    return Count(threads) if countable(*arrays) else None


def _triangle(operator: str, how: How, arrays: Arrays, threads: int) -> Made:
    return Triangle(how, threads) if triangular(*arrays) else None


def _recurrence(operator: str, how: How, arrays: Arrays, threads: int) -> Made:
    return Recurrence(how["cell"], how["ways"], threads) if computable(arrays) else None


def _pool_gradient(operator: str, how: How, arrays: Arrays, threads: int) -> Made:
    x, y, dy, out = arrays
    return PoolGradient(how, threads) if poolable(how, x, y, dy, out) else None


CALLS: dict[str, Callable[[str, How, Arrays, int], Made]] = {
    **dict.fromkeys(("take", "take_along_axis", "gather_nd"), _take),
    **dict.fromkeys(("scatter", "scatter_nd"), _scatter),
    "sort": _sort,
    "searchsorted": _search,
    "bincount": _count,
    "triangle": _triangle,
    "recurrence": _recurrence,
    "max_pool_gradient": _pool_gradient,
}
"""Operator -> what makes a call of it: (operator, parameters and the output wanted, arrays, threads); None: nothing."""
