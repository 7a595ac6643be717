"""What fusion makes of a product, a softmax of its rows and a second product: attention as one operation per query.

No tensor holds the scores: a shard is some queries of some heads, which reads their keys and values whole.

Source: own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType
from tileweave.graph.ops.elementwise import input_names
from tileweave.graph.ops.grouped.steps import Step
from tileweave.graph.ops.operators import OPERATORS, Array, Arrays, Operator, made, program_costs, register
from tileweave.space import Projection


def attended(
    q: Tensor, k: Tensor, v: Tensor, extras: Sequence[Tensor], letters: Sequence[str], program: Sequence[Step]
) -> Tensor:
    """``softmax(steps(q @ k)) @ v``, without a tensor of scores.

    Of narrow floats, products and steps are formed in the type of the steps; weights are rounded to the type of v,
    and the result, which has that type, once.

    Args:
        q: queries.
        k: keys.
        v: values.
        extras: what else the steps read: masks, scales; they broadcast to the scores.
        letters: of q, k, v and the result. The result has the letters of a score but for the last, which keys and
            values share, then that of the values.
        program: the steps of `tileweave.graph.ops.grouped.rows.rows` on each row of scores, of which argument 0 is the
            scores, ``n > 0`` the extra n - 1.

    Raises:
        GraphError: the letters do not fit.
    """
    where = "attention(q, k, v, extras, letters, program)"
    extents: dict[str, int] = {}
    for own, x in zip(letters, (q, k, v), strict=False):
        if len(own) != len(x.shape) or any(extents.setdefault(c, n) != n for c, n in zip(own, x.shape, strict=True)):
            raise GraphError(where, f"the letters {own} do not fit {x.type}", legal="a letter per dimension")
    kept, feature = letters[3][:-1], letters[3][-1]
    (key,) = set(letters[1]) & set(letters[2]) - set(kept)
    scores = (*(extents[c] for c in kept), extents[key])
    reads = [_read(own, kept, x.shape) for own, x in zip(letters, (q, k, v), strict=False)]
    for x in extras:
        if np.broadcast_shapes(x.shape, scores) != scores:
            raise GraphError(where, f"{x.type} does not broadcast to {scores}", legal="extents equal, or 1")
        own = f"{kept}{key}"[len(scores) - len(x.shape) :]
        reads.append(_read(own, kept, x.shape))
    names = ("q", "k", "v", *input_names(len(extras) + 1)[1:])
    rows = tuple(extents[c] for c in kept)
    makes = Projection.select([*range(len(kept)), None], len(kept), [1] * len(kept) + [extents[feature]])
    (summed,) = set(letters[0]) & set(letters[1]) - set(kept)
    products = extents[key] * 2.0 * (extents[summed] + extents[feature])
    return made(
        "attention",
        rows,
        list(zip(names, (q, k, v, *extras), reads, strict=True)),
        (TensorType((*rows, extents[feature]), v.dtype), makes),
        ("letters", tuple(letters)),
        ("program", tuple(program)),
        dims=(*(("batch", "head", "group")[n] if n < 3 else f"d{n}" for n in range(len(kept) - 1)), "query"),
        costs=program_costs(((step, extents[key]) for step, _, _ in program), products),
    )


def _read(own: str, kept: Sequence[str], shape: Sequence[int]) -> Projection:
    """What a query reads of an input: its own place along the letters of the rows, the rest whole."""
    places: list[int | None] = [kept.index(c) if c in kept and n > 1 else None for c, n in zip(own, shape, strict=True)]
    return Projection.select(
        places, len(kept), [1 if place is not None else n for place, n in zip(places, shape, strict=True)]
    )


def _block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    """The two products and the steps between them, one after the other."""
    q, k, v, out = operation.parameter("letters")
    wide = np.dtype(operation.parameter("program")[-1][2])
    arrays: list[Any] = [*(x.astype(wide, copy=False) for x in list(inputs.values())[:3]), *list(inputs.values())[3:]]
    narrow = operation.output_types["out"].dtype
    key = (set(k) & set(v) - set(out)).pop()
    contract, rows = OPERATORS["matmul"], OPERATORS["rows"]

    def product(equation: str, *factors: Array) -> Array:
        step = replace(
            operation,
            operator="matmul",
            inputs=(),
            outputs=(("out", TensorType((), arrays[0].dtype)),),
            parameters=(("equation", equation),),
            signature=None,
        )
        return contract.block(step, dict(zip(("x0", "x1"), factors, strict=True)))["out"]

    scores = product(f"{q},{k}->{out[:-1]}{key}", *arrays[:2])
    rank = scores.ndim
    steps = replace(
        operation,
        operator="rows",
        inputs=(),
        outputs=(("out", TensorType(scores.shape, scores.dtype)),),
        parameters=(("axes", (rank - 1,)), ("program", operation.parameter("program")), ("rank", rank)),
        signature=None,
    )
    given = [scores, *arrays[3:]]
    weights = rows.block(steps, dict(zip(input_names(len(given)), given, strict=True)))["out"]
    weights = weights.astype(narrow, copy=False).astype(wide, copy=False)
    made = product(f"{out[:-1]}{key},{v}->{out}", weights, arrays[2])
    return {"out": np.ascontiguousarray(made, dtype=narrow)}


register(Operator("attention", _block))
