"""Attention, composed of operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.assemble import interleave
from tileweave.graph.ir.dtypes import is_floating, wide_type
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.select import concat, dimension, permute, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.along import reshape
from tileweave.graph.ops.contract import matmul
from tileweave.graph.ops.elementwise import (
    add,
    cast,
    common_type,
    divide,
    less,
    less_equal,
    multiply,
    subtract,
    tanh,
)
from tileweave.graph.ops.elementwise import where as choose
from tileweave.graph.ops.functions import cos, sin
from tileweave.graph.ops.generate import arange
from tileweave.graph.ops.indexing import scatter_nd
from tileweave.graph.ops.reductions import softmax

Window = int | tuple[int | None, int | None] | None


def attention_scores(
    q: Any,
    k: Any,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
    *,
    first: int = 0,
    keys: int | None = None,
    window: Window = None,
    start: Any = None,
    length: Any = None,
    cap: float | None = None,
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
    if cap is not None:
        scores = multiply(tanh(divide(scores, cap)), cap)
    columns = arange(first, first + k.shape[-2], dtype=np.int64)
    if causal or window is not None:
        every = length if length is not None else k.shape[-2] if keys is None else keys
        begin = subtract(every, q.shape[-2]) if start is None else start  # the last query sees the last key
        rows = add(unsqueeze(arange(q.shape[-2], dtype=np.int64), 1), begin)
        left, right = window if isinstance(window, tuple) else (window, window)
        right = 0 if causal else right
        if right is not None:
            scores = choose(less_equal(columns, add(rows, right)), scores, -np.inf)
        if left is not None:
            scores = choose(less_equal(subtract(rows, left), columns), scores, -np.inf)
    if length is not None:
        scores = choose(less(columns, length), scores, -np.inf)
    if mask is not None:
        mask = as_tensor(mask, where)
        try:
            fits = np.broadcast_shapes(mask.shape, scores.shape)[-2:] == scores.shape[-2:]
        except ValueError:
            fits = False
        if not fits:
            legal = "[.., lq, lk], or what broadcasts to it"
            raise GraphError(where, "the mask does not fit", inputs=types | {"mask": mask.type}, legal=legal)
        added = is_floating(mask.dtype)
        scores = add(scores, cast(mask, wide)) if added else choose(mask, scores, -np.inf)
    return scores


@public()
def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
    window: Window = None,
    start: Any = None,
    length: Any = None,
    cap: float | None = None,
) -> Tensor:
    """``softmax(q @ k^T * scale) @ v`` along the keys.

    Args:
        q: [.., queries, d], or [.., heads, queries, d] beside fewer heads of keys, each of which serves as many.
        k: [.., keys, d].
        v: [.., keys, e].
        scale: ``1 / sqrt(d)`` when left out.
        causal: whether a query sees only the keys up to its own place, counted from the end of both.
        mask: True where a query may look, or numbers that are added, broadcast to [.., queries, keys].
        window: how many keys before and after its own place a query sees: a number, or a pair of numbers or None.
        start: the place of the first query among the keys, an integer or a tensor; counted from the end when left out.
        length: how many keys there are, an integer or a tensor, where k has space for more (a cache).
        cap: scores are bounded by it: ``tanh(scores / cap) * cap``.

    Example:
        >>> one = np.ones((1, 2))
        >>> np.asarray(attention(one, one, one)).tolist()
        [[1.0, 1.0]]
    """
    where = "attention(q, k, v)"
    q, k, v = as_tensor(q, where), as_tensor(k, where), as_tensor(v, where)
    if len(v.shape) < 2 or k.shape[-2:-1] != v.shape[-2:-1] or not v.shape[-2]:
        raise GraphError(
            where, "keys and values do not fit", inputs={"k": k.type, "v": v.type}, legal="one or more keys"
        )
    dtype = common_type(q, k, v)
    heads = k.shape[-3] if len(k.shape) > 2 else 1
    shared = len(q.shape) > 2 and heads > 1 and q.shape[-3] != heads and q.shape[-3] % heads == 0
    if shared:  # [.., heads, queries per head, .., ..]
        k, v = unsqueeze(k, -3), unsqueeze(v, -3)
        mask = _per_head(mask, q.shape[-3], heads)
        q = reshape(q, (*q.shape[:-3], heads, q.shape[-3] // heads, *q.shape[-2:]))
    options: dict[str, Any] = {"window": window, "start": start, "length": length, "cap": cap}
    weights = softmax(attention_scores(q, k, scale, causal, mask, **options), -1)
    out = cast(matmul(weights, v), dtype)
    return reshape(out, (*out.shape[:-4], out.shape[-4] * out.shape[-3], *out.shape[-2:])) if shared else out


def _per_head(mask: Any, queries: int, heads: int) -> Any:
    """A mask of [.., heads of queries, lq, lk] as one of [.., heads of keys, queries per head, lq, lk]."""
    if mask is None or len((mask := as_tensor(mask)).shape) < 3:
        return mask
    if mask.shape[-3] == 1:
        return unsqueeze(mask, -3)
    return reshape(mask, (*mask.shape[:-3], heads, queries // heads, *mask.shape[-2:]))


@public()
def cache_update(cache: Any, new: Any, start: Any, axis: int = -2) -> Tensor:
    """A cache with new keys or values written from a place on: an integer, or a tensor that a run tells.

    Example:
        >>> np.asarray(cache_update(np.zeros((3, 1)), [[5.0]], 1)).tolist()
        [[0.0], [5.0], [0.0]]
    """
    where = "cache_update(cache, new, start)"
    cache, new = as_tensor(cache, where), as_tensor(new, where)
    dim = dimension(where, cache, axis)
    rest = [tuple(n for k, n in enumerate(t.shape) if k != dim) for t in (cache, new)]
    if len(cache.shape) != len(new.shape) or rest[0] != rest[1] or new.shape[dim] > cache.shape[dim]:
        types = {"cache": cache.type, "new": new.type}
        raise GraphError(where, "the new part does not fit the cache", inputs=types, legal="equal but along the axis")
    places = unsqueeze(add(arange(new.shape[dim], dtype=np.int64), start), 1)
    return scatter_nd(cache, places, cast(new, cache.dtype), axis=dim)


@public()
def rotary(
    x: Any, positions: Any = None, *, base: float = 10000.0, size: int | None = None, interleaved: bool = False
) -> Tensor:
    """Pairs of features turned by an angle that grows with the place: rotary position embedding.

    Args:
        x: [.., places, features].
        positions: [places], or what broadcasts to [.., places]; 0, 1, .. when left out.
        base: the angle of pair i is ``position / base ** (2 i / size)``.
        size: how many of the features are turned, the first ones; all when left out.
        interleaved: whether neighbours are a pair, or elements of the two halves.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding".
    """
    where = "rotary(x, positions)"
    x = as_tensor(x, where)
    turned = x.shape[-1] if size is None and x.shape else size or 0
    if len(x.shape) < 2 or turned % 2 or not 0 < turned <= x.shape[-1]:
        raise GraphError(where, f"{turned} features are no pairs", inputs={"x": x.type}, legal="an even number")
    places = arange(x.shape[-2]) if positions is None else as_tensor(positions, where)
    steps = base ** (-np.arange(0, turned, 2) / turned)
    angles = multiply(unsqueeze(cast(places, np.float64), -1), steps)
    c, s = (cast(f(angles), wide_type(x.dtype)) for f in (cos, sin))
    wide = cast(x, wide_type(x.dtype))
    head = wide[..., :turned]
    if interleaved:
        a, b = head[..., ::2], head[..., 1::2]
    else:
        a, b = head[..., : turned // 2], head[..., turned // 2 :]
    new = (subtract(multiply(a, c), multiply(b, s)), add(multiply(a, s), multiply(b, c)))
    out = interleave(new, -1) if interleaved else concat(new, -1)
    rest = [wide[..., turned:]] if turned < x.shape[-1] else []
    return cast(concat([out, *rest], -1), x.dtype)
