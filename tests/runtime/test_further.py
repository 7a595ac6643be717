"""Graphs that differ from known ones in extents alone are run without a plan, and give the very same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import GraphError
from tileweave.runtime.further.expressions import KNOWN

Array = np.ndarray[Any, Any]


def drawn(random: np.random.Generator, shape: tuple[int, ...], kind: str = "float32") -> Array:
    """An array that lies in one of several ways."""
    way = int(random.integers(0, 6))
    whole = tuple(2 * n + 1 for n in shape)
    if way == 0:  # every other element
        return random.standard_normal(whole).astype(kind)[tuple(slice(1, 1 + 2 * n, 2) for n in shape)]
    if way == 1:  # in column-major order
        return np.asfortranarray(random.standard_normal(shape).astype(kind))
    if way == 2 and shape:  # downwards
        return random.standard_normal(shape).astype(kind)[::-1]
    if way == 3 and shape:  # repeated
        return np.array(np.broadcast_to(random.standard_normal(shape[1:]).astype(kind), shape))
    return random.standard_normal(shape).astype(kind)


def softmax_of_product(s: Any, n: int, m: int, k: int) -> Any:
    return tw.softmax(s(n, k) @ s(k, m), -1)


def layers(s: Any, n: int, m: int, k: int) -> Any:
    return tw.relu(s(n, k) @ s(k, m) + s(m)) @ s(m, k) * 0.5 + s(k)


def norm(s: Any, n: int, m: int, k: int) -> Any:
    x = s(n, m, k)
    d = x - tw.mean(x, -1, keepdims=True)
    return d / tw.sqrt(tw.mean(d * d, -1, keepdims=True) + 1e-5) * s(k) + s(k)


def parts(s: Any, n: int, m: int, k: int) -> Any:
    x, y = s(n, m), s(k, m)
    joined = tw.concat([tw.exp(x), tw.permute(tw.tanh(tw.permute(y, (1, 0))), (1, 0))], 0)
    return joined[n // 2 :] + 1.0, tw.sum(joined[: n // 2 + 1], 1)


def moved(s: Any, n: int, m: int, k: int) -> Any:
    x = tw.reshape(tw.sigmoid(s(n, m * k)), (n, m, k))
    return tw.sum(tw.permute(x, (2, 0, 1)) * s(m), 2) - tw.max(x, 1).T


def averaged(s: Any, n: int, m: int, k: int) -> Any:
    return tw.mean(s(n, m), 0) * (1 / max(n, 1)) + s(m), tw.max(tw.absolute(s(k, m)), 0)


def attended(s: Any, n: int, m: int, k: int) -> Any:
    q, x, v = s(2, n, k), s(2, m, k), s(2, m, k)
    return tw.softmax(q @ tw.permute(x, (0, 2, 1)) * (1 / (k + 1) ** 0.5), -1) @ v


def windows(s: Any, n: int, m: int, k: int) -> Any:
    x = tw.pad(s(1, 3, n + 3, m + 3), [(0, 0), (0, 0), (1, 1), (1, 1)])
    y = tw.relu(tw.conv(x, s(5, 3, 3, 3)) * 0.5 + 1.0)
    return tw.conv(tw.pad(y, [(0, 0), (0, 0), (1, 0), (0, 1)]), s(4, 5, 2, 2), stride=(2, 1))


def chosen(s: Any, n: int, m: int, k: int) -> Any:
    rows = tw.source(np.arange(k) % max(n, 1))
    return tw.take(tw.exp(s(n, m)), rows, 0) + s(m)


PROGRAMS = (softmax_of_product, layers, norm, parts, moved, averaged, attended, windows, chosen)


def written(build: Any, seed: int, extents: tuple[int, int, int]) -> list[Any]:
    """The program on arrays of a seed."""
    random = np.random.default_rng(seed)
    made = build(lambda *shape: tw.source(drawn(random, shape)), *extents)
    return list(made) if isinstance(made, tuple) else [made]


def planned_anew(targets: list[Any], threads: int | None) -> list[Array]:
    """The values by the path that knows no other graph of the form."""
    known = dict(KNOWN.outlines)
    KNOWN.outlines.clear()
    try:
        return tw.run(targets, threads=threads)
    finally:
        KNOWN.outlines.update(known)


@pytest.fixture(autouse=True)
def nothing_known():
    """Each test begins without forms."""
    KNOWN.outlines.clear()
    KNOWN.bindings.clear()


@pytest.mark.parametrize("build", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_further_extents_give_the_same_bits(build, threads):
    seed = int(np.random.default_rng().integers(1 << 30))
    print("seed", seed)
    random = np.random.default_rng(seed)
    bound = 0
    for turn in range(24):
        few = turn % 6 == 5
        extents = tuple(int(n) for n in (random.integers(0 if few else 3, 4 if few else 90, 3)))
        try:
            targets = written(build, seed + turn, extents)
        except GraphError:  # such as the largest of no numbers
            continue
        before = len(KNOWN.bindings)
        got = tw.run(targets, threads=threads)
        bound += len(KNOWN.bindings) > before
        for one, other in zip(got, planned_anew(written(build, seed + turn, extents), threads), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{extents}")
        for one, tensor in zip(got, targets, strict=True):
            expected = np.asarray(tensor)
            np.testing.assert_allclose(one, expected, rtol=2e-4, atol=2e-4, err_msg=f"{extents}")
    assert bound, "nothing was bound again"
