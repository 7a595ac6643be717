"""Collectives as copies and sums: the layouts of two tensors over a mesh say which one it is.

Each device takes its own part of the target, tile by tile, and fetches it from where the source lies. Every argument
lies in symmetric memory (`tk.placed`), or on every device (a list of arrays).
"""

from math import prod

import numpy as np

from tileweave import kernel as tk
from tileweave.kernel import KernelFunction


def on(devices: int, bm: int = 16, bn: int = 32) -> tuple[KernelFunction, KernelFunction]:
    """The copy and the sum for a mesh of so many devices."""

    @tk.kernel(mesh={"gpu": devices})
    def move(k, x, y):
        mine = k.own(y)
        i, j = k.grid(mine.blocks(0, bm), mine.blocks(1, bn))
        with k.cta(threads=64) as cta:
            cta.copy(mine.tile(bm, bn)[i, j], x)

    @tk.kernel(mesh={"gpu": devices})
    def add(k, terms, y):
        mine = k.own(y)
        i, j = k.grid(mine.blocks(0, bm), mine.blocks(1, bn))
        with k.cta(threads=64) as cta:
            cta.sum(mine.tile(bm, bn)[i, j], terms, axis=0)

    return move, add


def by(devices: int, rows: int, columns: int) -> dict[str, str]:
    """Layouts of a (rows, columns) matrix over the devices."""
    m, n = rows // devices, columns // devices
    return {
        "rows": f"({devices}:1@gpu, {m}:{columns}, {columns}:1)",
        "rows, last first": f"({devices}:-1@gpu, {m}:{columns}, {columns}:1) + {devices - 1}@gpu",
        "columns": f"({rows}:{n}, {devices}:1@gpu, {n}:1)",
        "terms": f"({devices}:1@gpu, {rows}:{columns}, {columns}:1)",
    }


CASES = {
    "none": ("rows", "rows"), "slice": ("", "columns"), "permute": ("rows", "rows, last first"),
    "all-gather": ("columns", ""), "all-to-all": ("rows", "columns"),
    "reduce-scatter": ("terms", "rows"), "all-reduce": ("terms", ""),
}  # fmt: skip
"""Collective -> how the source and the target lie; the empty name: on every device."""


def case(name: str, devices: int, rows: int, columns: int) -> tuple[KernelFunction, list, list, np.ndarray]:
    """A kernel, its arguments, the arrays that it fills, and what each of them must hold."""
    source, target = CASES[name]
    layouts, move = by(devices, rows, columns), source != "terms"
    shape = (rows, columns) if move else (devices, rows, columns)
    x = np.arange(prod(shape), dtype=np.float32).reshape(shape) % 1009
    given = tk.placed(x, layouts[source]) if source else [x.copy() for _ in range(devices)]
    filled = [np.zeros((rows, columns), np.float32) for _ in range(1 if target else devices)]
    to = tk.placed(filled[0], layouts[target]) if target else filled
    return on(devices)[0 if move else 1], [given, to], filled, x if move else x.sum(0)


def on_both(groups: int, each: int, bm: int = 16, bn: int = 32) -> tuple[KernelFunction, KernelFunction]:
    """For a mesh of two axes: a reduce-scatter over one, an all-gather over the other."""

    @tk.kernel(mesh={"node": groups, "gpu": each})
    def reduce_scatter(k, terms, y):
        mine = k.own(y)
        i, j = k.grid(mine.blocks(0, bm), mine.blocks(1, bn))
        with k.cta(threads=64) as cta:
            cta.sum(mine.tile(bm, bn)[i, j], terms, axis=0)

    @tk.kernel(mesh={"node": groups, "gpu": each})
    def all_gather(k, x, copies):
        mine = k.own(copies)[0]  # the slowest dimension lies over the nodes: each has a copy of its own
        i, j = k.grid(mine.blocks(0, bm), mine.blocks(1, bn))
        with k.cta(threads=64) as cta:
            cta.copy(mine.tile(bm, bn)[i, j], x)

    return reduce_scatter, all_gather


def over_both(groups: int, each: int, m: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Sums over the GPUs of each node, whose rows are then gathered from all nodes: terms, sums, copies, what is said.

    A node has m * each rows; its GPUs have a term each of all of these, then a sum of m of them, then all nodes' m.
    """
    rows = groups * each * m
    scatter, gather = on_both(groups, each)
    terms = np.random.default_rng(0).integers(-9, 9, (each, rows, n)).astype(np.float32)
    sums, copies = np.zeros((rows, n), np.float32), np.zeros((groups, rows, n), np.float32)
    terms_of = f"({each}:1@gpu, {each}:{m * n}, {groups}:1@node, {m}:{n}, {n}:1)"
    given = [tk.placed(terms, terms_of), tk.placed(sums, f"({each}:1@gpu, {groups}:1@node, {m}:{n}, {n}:1)")]
    scatter.run(*given)
    to = tk.placed(copies, f"({groups}:1@node, {each}:1@gpu, {groups * m}:{n}, {n}:1)")
    moved = [given[1], to]
    gather.run(*moved)
    said = [
        row.split("yes: ")[1] for k in (scatter, gather) for row in k.explain().splitlines() if "collective " in row
    ]
    return terms, sums, copies, said


def main() -> None:
    for name in CASES:
        kernel, arguments, filled, want = case(name, 4, 52, 36)
        kernel.run(*arguments)
        assert all((one == want).all() for one in filled)
        said = next(row for row in kernel.explain().splitlines() if "collective " in row)
        print(f"{name}: {said.split('yes: ')[1]}")


if __name__ == "__main__":
    main()
