"""Products of groups of rows whose sizes are data, each group with a matrix of its own, as in a mixture of experts.

Rows stand group after group. A shard is rows by columns of all groups, or some groups or terms, whose partial results
are added: the rows of other groups are zero there, so a machine needs the matrices of its groups only.

Source: own; the names are those of JAX (``jax.lax.ragged_dot``); PyTorch has it as ``grouped_mm``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.dtypes import wide_type
from tileweave.graph.ir.forms import Form, integer
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType
from tileweave.graph.ir.select import permute
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import cast, common_type
from tileweave.graph.ops.operators import Array, Arrays, Operator, made, register
from tileweave.space import Projection


@public()
def ragged_dot(x: Any, w: Any, group_sizes: Any) -> Tensor:
    """``out[r] = x[r] @ w[g]`` for the group g of each row: the first rows are of group 0, the next ones of group 1, ..

    Sums are formed in FP32 at least and rounded once. Rows behind the last group are zero.

    Args:
        x: [rows, in], sorted by group.
        w: [groups, in, out].
        group_sizes: [groups], how many rows each group has; integers, data of the run, some may be 0.

    Returns:
        [rows, out], of the type that x and w promote to.

    Raises:
        GraphError: ranks or extents do not fit; in a run: a size is negative, or the groups have more rows than x.
        DtypeError: the sizes are no integers, or the elements no numbers.

    Example:
        >>> x, w = np.ones((3, 2)), np.arange(8.0).reshape(2, 2, 2)
        >>> np.asarray(ragged_dot(x, w, [1, 2])).tolist()
        [[2.0, 4.0], [10.0, 12.0], [10.0, 12.0]]
    """
    where = "ragged_dot(x, w, group_sizes)"
    x, w, sizes = as_tensor(x, where), as_tensor(w, where), as_tensor(group_sizes, where)
    types = {"x": x.type, "w": w.type, "group_sizes": sizes.type}
    legal = "x [rows, in], w [groups, in, out], group_sizes [groups]"
    ranks = [len(t.shape) for t in (x, w, sizes)]
    if ranks != [2, 3, 1]:
        raise GraphError(where, f"ranks {ranks[0]}, {ranks[1]} and {ranks[2]} do not fit", inputs=types, legal=legal)
    if x.shape[1] != w.shape[1]:
        raise GraphError(where, f"in is {x.shape[1]} in x and {w.shape[1]} in w", inputs=types, legal=legal)
    if w.shape[0] != sizes.shape[0]:
        problem = f"{w.shape[0]} matrices for {sizes.shape[0]} groups"
        raise GraphError(where, problem, inputs=types, legal=legal)
    x, w = _numbers(where, x, w, sizes)
    (m, k), (groups, _, n) = x.shape, w.shape
    reads = (("x", x, (0, 2)), ("w", w, (3, 2, 1)), ("group_sizes", sizes, (None,)))
    return _made("ragged_dot", (m, n, k, groups), ("row", "out", "in", "group"), reads, (0, 1), (m, n), m)


def ragged_outer(x: Any, y: Any, group_sizes: Any) -> Tensor:
    """``out[g] = x[rows of g].T @ y[rows of g]``: the gradient of `ragged_dot` with respect to its matrices.

    Args:
        x: [rows, in], sorted by group.
        y: [rows, out].
        group_sizes: [groups].

    Returns:
        [groups, in, out]; zero for a group without rows.
    """
    where = "ragged_outer(x, y, group_sizes)"
    x, y, sizes = as_tensor(x, where), as_tensor(y, where), as_tensor(group_sizes, where)
    if (len(x.shape), len(y.shape), len(sizes.shape)) != (2, 2, 1) or x.shape[0] != y.shape[0]:
        types = {"x": x.type, "y": y.type, "group_sizes": sizes.type}
        raise GraphError(where, "rows do not fit", inputs=types, legal="x [rows, in], y [rows, out], sizes [groups]")
    x, y = _numbers(where, x, y, sizes)
    (m, k), n, groups = x.shape, y.shape[1], sizes.shape[0]
    reads = (("x", x, (3, 1)), ("y", y, (3, 2)), ("group_sizes", sizes, (None,)))
    return _made("ragged_outer", (groups, k, n, m), ("group", "in", "out", "row"), reads, (0, 1, 2), (groups, k, n), m)


def _numbers(where: str, x: Tensor, y: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    types = {"x": x.type, "w": y.type, "group_sizes": sizes.type}
    if sizes.dtype.kind not in "iu":
        raise DtypeError(where, f"sizes of type {sizes.dtype.name}", inputs=types, legal="an integer type")
    dtype = common_type(x, y)
    if dtype.kind == "b":
        raise DtypeError(where, "bool has no sum of products", inputs=types, legal="cast to an integer type first")
    return cast(x, dtype), cast(y, dtype)


def _made(
    name: str, index: tuple[int, ...], dims: tuple[str, ...], reads: tuple[tuple[str, Tensor, Any], ...],
    kept: tuple[int, ...], shape: tuple[int, ...], rows: int,
) -> Tensor:  # fmt: skip
    """The operation; inputs move with dimensions of the index, which has a point per term and group of each element."""
    rank = len(index)
    inputs = [
        (own, x, Projection.select(at, rank, [1 if d is not None else n for d, n in zip(at, x.shape, strict=True)]))
        for own, x, at in reads
    ]
    groups = index[dims.index("group")]
    return made(
        name, index, inputs, (TensorType(shape, reads[0][1].dtype), Projection.select(kept, rank)), ("rows", rows),
        dims=dims, reductions=tuple((d, "sum") for d in range(rank) if d not in kept),
        costs=(("flops", 2.0 / max(groups, 1)),),
    )  # fmt: skip


def spans(operation: Operation, sizes: Array, row: int, group: int) -> Iterator[tuple[int, slice]]:
    """The groups of a block that have rows in it: number in the block, and their rows in it.

    Args:
        operation: on the block.
        sizes: of all groups.
        row, group: the dimensions of the index that are rows and groups.

    Raises:
        GraphError: a size is negative, or the groups have more rows than there are.
    """
    wide, rows = sizes.astype(np.int64), operation.parameter("rows")
    if (wide < 0).any() or int(wide.sum()) > rows:
        problem = f"groups of {', '.join(map(str, wide[:8].tolist()))}{', ..' * (wide.size > 8)} rows"
        raise GraphError(f"{operation.operator}(.., group_sizes)", problem, legal=f"sizes from 0, {rows} rows in all")
    index = operation.index
    ends = np.cumsum(wide)
    for number, g in enumerate(range(index.start[group], index.stop[group])):
        first, last = max(int(ends[g] - wide[g]), index.start[row]), min(int(ends[g]), index.stop[row])
        if first < last:
            yield number, slice(first - index.start[row], last - index.start[row])


def _dot_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x, w = inputs["x"], inputs["w"]
    dtype = operation.output_types["out"].dtype
    wide, out = wide_type(dtype), np.zeros((x.shape[0], w.shape[2]), dtype)
    for g, rows in spans(operation, inputs["group_sizes"], 0, 3):
        out[rows] = x[rows].astype(wide, copy=False) @ w[g].astype(wide, copy=False)
    return {"out": out}


def _outer_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    x, y = inputs["x"], inputs["y"]
    kind = operation.output_types["out"]
    wide, out = wide_type(kind.dtype), np.zeros(kind.shape, kind.dtype)
    for g, rows in spans(operation, inputs["group_sizes"], 3, 0):
        out[g] = x[rows].T.astype(wide, copy=False) @ y[rows].astype(wide, copy=False)
    return {"out": out}


def _dot_gradient(operation: Operation, out: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x, w, sizes = (operation.input(name) for name in ("x", "w", "group_sizes"))
    return {"x": ragged_dot(dy, permute(w, (0, 2, 1)), sizes), "w": ragged_outer(x, dy, sizes)}


def _outer_gradient(operation: Operation, out: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x, y, sizes = (operation.input(name) for name in ("x", "y", "group_sizes"))
    return {"x": ragged_dot(y, permute(dy, (0, 2, 1)), sizes), "y": ragged_dot(x, dy, sizes)}


_ROWS = {"rows": integer(0)}
register(Operator("ragged_dot", _dot_block, Form(("x", "w", "group_sizes"), _ROWS), _dot_gradient))
register(Operator("ragged_outer", _outer_block, Form(("x", "y", "group_sizes"), _ROWS), _outer_gradient))
