"""The additive part of the search as an integer program: an oracle for the solvers."""

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from tileweave.planner.search.solve import Solved, cost_of


def exact(tables, weigh):
    """The best choice by integer programming (HiGHS), with the gap that it certifies."""
    alone, pairs = tables.weighed(weigh)
    starts = np.cumsum([0, *(len(a) for a in alone)])
    bases = int(starts[-1]) + np.cumsum([0, *(p.size for p in pairs)])
    cost = np.concatenate([*alone, *(p.reshape(-1) for p in pairs)]) if alone else np.zeros(0)
    scale = float(cost.max()) or 1.0
    rows, columns, values, right = [], [], [], []

    def row(entries, equals):
        for at, value in entries:
            at = np.atleast_1d(at)
            rows.append(np.full(len(at), len(right)))
            columns.append(at)
            values.append(np.full(len(at), value))
        right.append(equals)

    for number in range(len(alone)):
        row([(np.arange(starts[number], starts[number + 1]), 1.0)], 1.0)
    for edge, pair, base in zip(tables.edges, pairs, bases, strict=False):
        grid = base + np.arange(pair.size).reshape(pair.shape)
        for k in range(pair.shape[0]):
            row([(grid[k], 1.0), (starts[edge.maker] + k, -1.0)], 0.0)
        for k in range(pair.shape[1]):
            row([(grid[:, k], 1.0), (starts[edge.reader] + k, -1.0)], 0.0)
    size = len(cost)
    matrix = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(len(right), size)
    )
    whole = np.zeros(size)
    whole[: starts[-1]] = 1
    found = milp(
        cost / scale,
        constraints=LinearConstraint(matrix.tocsr(), right, right),
        integrality=whole,
        bounds=(0, 1),
        options={"time_limit": 60.0, "mip_rel_gap": 1e-4},
    )
    chosen = tuple(int(np.argmax(found.x[starts[n] : starts[n + 1]])) for n in range(len(alone)))
    total = cost_of(tables, weigh, chosen)
    least = float(found.mip_dual_bound) * scale
    return Solved(chosen, total, max(0.0, (total - least) / total) if total else 0.0)
