"""Attention, composed of operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.dtypes import is_floating, wide_type
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import permute, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.contract import matmul
from tileweave.graph.ops.elementwise import add, cast, common_type, less_equal, multiply
from tileweave.graph.ops.elementwise import where as where_
from tileweave.graph.ops.generate import arange
from tileweave.graph.ops.reductions import softmax


def attention_scores(
    q: Any,
    k: Any,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
    *,
    first: int = 0,
    keys: int | None = None,
) -> Tensor:
    """``q @ k^T * scale``, minus infinity where a query must not look: beyond its own place, or where mask is False.

    Scores of narrow floats are kept in float32. `k` may be a part of the keys: `first` is its place among all `keys`.
    """
    where = "attention(q, k, v)"
    q, k = as_tensor(q, where), as_tensor(k, where)
    types = {"q": q.type, "k": k.type}
    if len(q.shape) < 2 or len(k.shape) < 2 or q.shape[-1] != k.shape[-1]:
        raise GraphError(where, "queries and keys do not fit", inputs=types, legal="q [.., lq, d], k [.., lk, d]")
    dtype = common_type(q, k)
    if not is_floating(dtype):
        raise DtypeError(where, f"element type {dtype} is not a floating type", inputs=types, legal="float32, float64")
    rank, wide = len(k.shape), wide_type(dtype)
    q, k = cast(q, wide), cast(k, wide)
    turned = permute(k, (*range(rank - 2), rank - 1, rank - 2))
    scores = multiply(matmul(q, turned), 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale)
    if causal:
        late = (k.shape[-2] if keys is None else keys) - q.shape[-2]  # the last query sees the last key
        rows = unsqueeze(arange(q.shape[-2], dtype=np.int64), 1)
        seen = less_equal(arange(first, first + k.shape[-2], dtype=np.int64), add(rows, late))
        scores = where_(seen, scores, -np.inf)
    if mask is not None:
        mask = as_tensor(mask, where)
        try:
            fits = np.broadcast_shapes(mask.shape, scores.shape)[-2:] == scores.shape[-2:]
        except ValueError:
            fits = False
        if not fits:
            legal = "[.., lq, lk], or what broadcasts to it"
            raise GraphError(where, "the mask does not fit", inputs=types | {"mask": mask.type}, legal=legal)
        scores = where_(mask, scores, -np.inf)
    return scores


@public()
def attention(q: Any, k: Any, v: Any, *, scale: float | None = None, causal: bool = False, mask: Any = None) -> Tensor:
    """``softmax(q @ k^T * scale) @ v`` along the keys.

    Args:
        q: [.., queries, d].
        k: [.., keys, d].
        v: [.., keys, e].
        scale: ``1 / sqrt(d)`` when left out.
        causal: whether a query sees only the keys up to its own place, counted from the end of both.
        mask: True where a query may look, broadcast to [.., queries, keys].

    Example:
        >>> one = np.ones((1, 2))
        >>> np.asarray(attention(one, one, one)).tolist()
        [[1.0, 1.0]]
    """
    where = "attention(q, k, v)"
    k, v = as_tensor(k, where), as_tensor(v, where)
    if len(v.shape) < 2 or k.shape[-2:-1] != v.shape[-2:-1] or not v.shape[-2]:
        raise GraphError(
            where, "keys and values do not fit", inputs={"k": k.type, "v": v.type}, legal="one or more keys"
        )
    weights = softmax(attention_scores(q, k, scale, causal, mask), -1)
    return cast(matmul(weights, v), common_type(as_tensor(q), k, v))
