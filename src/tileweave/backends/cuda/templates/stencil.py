"""Stencils over three dimensions, cube or star, on arrays stored by rows or brick by brick."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import Launch
from tileweave.backends.cuda.templates.entry import (
    FOLDER,
    CudaText,
    Size,
    Trial,
    check_choice,
    size,
    tiles_of,
)  # fmt: skip
from tileweave.index import symbol
from tileweave.layout.lego import GroupBy, OrderBy, Row, Template, bricks, template

LARGEST_SIDE = 1 << 12
"""Of the array: its points then fit 64 bits, and their numbers along one dimension 32."""


def _storage(layout: str, sizes: Mapping[str, Any], B: int) -> GroupBy:
    """Rows; or bricks of B x B x B, whose numbers along each dimension cover the size (the host rounds up)."""
    if layout == "row":
        return GroupBy(tuple(sizes.values()), OrderBy(Row(*sizes.values())))
    covered = []
    for name, n in sizes.items():
        known = isinstance(n, int)
        covered.append((tiles_of(n, B) if known else symbol(f"bricks_{name}", 1, LARGEST_SIDE // B + 1)) * B)
    return bricks(tuple(covered), (B, B, B))


def stencil(
    Z: Size | None = None, Y: Size | None = None, X: Size | None = None, *,
    shape: str = "star", r: int = 1, layout: str = "bricks", B: int = 8,
) -> Mapping[str, Template]:  # fmt: skip
    """out = the weighted sum of each point's neighbours, for every point that has all of them.

    A neighbour is found by its coordinates in the array, so that it may lie in another brick.
    """
    check_choice("shape", shape, ("star", "cube"))
    check_choice("r", r, (1, 2, 3, 4))
    check_choice("layout", layout, ("bricks", "row"))
    check_choice("B", B, (2, 4, 8))
    given = {"Z": Z, "Y": Y, "X": X}
    sizes = {
        name: symbol(name, 2 * r + 1, LARGEST_SIDE + 1) if n is None else size(name, n) for name, n in given.items()
    }
    stored = _storage(layout, sizes, B)
    # the threads' coordinates, after the test that all neighbours exist
    at = [symbol(name.lower(), r, n - r) for name, n in zip(sizes, stored.dims, strict=True)]
    names = ("d",) if shape == "star" else ("dz", "dy", "dx")
    steps = [symbol(name, -r, r + 1) for name in names]
    bindings: dict[str, Any] = {"r": r, "B": B, **sizes, "here": stored[tuple(at)]}
    if shape == "star":
        for axis, name in enumerate(("along_z", "along_y", "along_x")):
            bindings[name] = stored[tuple(c + steps[0] if k == axis else c for k, c in enumerate(at))]
    else:
        bindings["around"] = stored[tuple(c + d for c, d in zip(at, steps, strict=True))]
        dz, dy, dx = (step + r for step in steps)
        bindings["weight"] = (dz * (2 * r + 1) + dy) * (2 * r + 1) + dx
    return {"stencil": template(FOLDER / f"stencil_{shape}.cu.j2", **bindings)}


def trial(
    text: CudaText, Z: int = 19, Y: int = 11, X: int = 21, *,
    shape: str = "star", r: int = 1, layout: str = "bricks", B: int = 8,
) -> Trial:  # fmt: skip
    """Small whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(9)
    sizes = {"Z": Z, "Y": Y, "X": X}
    stored = _storage(layout, sizes, B)
    field = rng.integers(-8, 9, tuple(sizes.values())).astype(np.float32)
    weights = rng.integers(1, 5, r + 1 if shape == "star" else (2 * r + 1) ** 3).astype(np.float32)
    place = stored.table()[:Z, :Y, :X]
    memory, out = np.full(stored.size, np.nan, np.float32), np.zeros(stored.size, np.float32)
    memory[place] = field
    values: dict[str, Any] = {"out": out, "in": memory, "w": weights}
    for name in text.arguments:
        values[name] = sizes[name] if name in sizes else tiles_of(sizes[name.removeprefix("bricks_")], B)
    grid = tuple(tiles_of(n, B) for n in (X, Y, Z))
    wanted = _reference(field, weights, shape, r)
    return Trial(f"{Z} x {Y} x {X}", [Launch(grid, (B, B, B), values)], out, wanted, read=lambda memory: memory[place])


def _reference(field: Any, weights: Any, shape: str, r: int) -> Any:
    """Sums of shifted views."""
    out = np.zeros_like(field)
    inner = tuple(slice(r, n - r) for n in field.shape)
    total = np.zeros_like(field[inner])
    for step in product(range(-r, r + 1), repeat=3):
        view = field[tuple(slice(r + d, n - r + d) for d, n in zip(step, field.shape, strict=True))]
        if shape == "cube":
            number = ((step[0] + r) * (2 * r + 1) + step[1] + r) * (2 * r + 1) + step[2] + r
            total += weights[number] * view
        elif sum(d != 0 for d in step) <= 1:
            total += weights[max(map(abs, step))] * view
    out[inner] = total
    return out
