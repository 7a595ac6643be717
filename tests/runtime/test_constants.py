"""Weights that never change: what a plan arranges of them once, and what its runs compute with it."""

import numpy as np
import pytest

import tileweave as tw
from tileweave.runtime.prepare import prepare


def executables(plan) -> list:
    """The executables that are kept with a plan."""
    return [one for idle in prepare(plan).extra.get("executables", {}).values() for one in idle.kept()]


@pytest.mark.parametrize("seed", range(10))
def test_constant_weights_are_arranged_from_any_order(seed: int) -> None:
    """Windows of images and weights that lie in any order of their dimensions, in panels and as products."""
    rng = np.random.default_rng(300 + seed)
    rank, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2]))
    channels, filters = (groups * int(rng.integers(1, 9)) for _ in range(2))
    window = [int(k) for k in rng.integers(1, 5, rank)]
    sides = [k + int(rng.integers(2, 12)) for k in window]
    x = rng.standard_normal((2, channels, *sides)).astype(np.float32)
    w = rng.standard_normal((filters, channels // groups, *window)).astype(np.float32)
    options = {"stride": [int(s) for s in rng.integers(1, 3, rank)], "groups": groups}
    turned = []
    for array in (x, w):
        order = rng.permutation(rank + 2)
        turned.append(
            (np.transpose(array, order).tobytes(), [array.shape[k] for k in order], np.argsort(order).tolist())
        )
    given = np.frombuffer(turned[0][0], np.float32).reshape(turned[0][1])
    held = np.frombuffer(turned[1][0], np.float32).reshape(turned[1][1])  # read-only: constant
    source = tw.source(name="x", shape=given.shape, dtype="float32")
    plan = tw.plan(tw.conv(tw.transpose(source, turned[0][2]), tw.transpose(tw.source(held), turned[1][2]), **options))
    wanted = np.asarray(tw.conv(tw.source(x.astype("f8")), tw.source(w.astype("f8")), **options))
    np.testing.assert_allclose(tw.run(plan, bind={"x": given}), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_products_of_some_rows_with_constant_weights_are_those_of_numpy(seed: int) -> None:
    """Rows that stay in the first cache meet panels of weights that do not: columns pass outermost."""
    rng = np.random.default_rng(1100 + seed)
    rows, inner, columns = (int(rng.integers(*ends)) for ends in ((2, 40), (40, 140), (130, 600)))
    x = rng.integers(-9, 10, (rows, inner)).astype(np.float32)
    w = np.frombuffer(rng.integers(-9, 10, (inner, columns)).astype(np.float32).tobytes(), np.float32)
    plan = tw.plan(tw.source(name="x", shape=x.shape, dtype="float32") @ tw.source(w.reshape(inner, columns)))
    for threads in (1, 2):
        assert np.array_equal(tw.run(plan, bind={"x": x}, threads=threads), x @ w.reshape(inner, columns)), seed


@pytest.mark.parametrize("by", ["slice", "buffer"])
def test_plans_of_views_of_weights_that_change_between_them_have_the_new_ones(by: str) -> None:
    """While plans of the old ones live: arranged arrays are shared only where their memory cannot change."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 8, 16, 16)).astype(np.float32)
    w = rng.standard_normal((16, 8, 3, 3)).astype(np.float32)
    source, plans = tw.source(name="x", shape=x.shape, dtype="float32"), []
    w.flags.writeable = False
    held = w if by == "slice" else np.frombuffer(memoryview(w).cast("B"), w.dtype).reshape(w.shape)
    for factor in (1, 2, -3):
        w.flags.writeable = True
        w *= factor
        w.flags.writeable = False
        plans.append(tw.plan(tw.conv(source, tw.source(held[:]))))
        wanted = np.asarray(tw.conv(tw.source(x.astype("f8")), tw.source(w.astype("f8"))))
        np.testing.assert_allclose(tw.run(plans[-1], bind={"x": x}), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_constant_weights_of_products_are_packed_once(seed: int) -> None:
    """In panels, where rows are few: linear layers of any shape, in either order, as float64 has them; counted."""
    rng = np.random.default_rng(seed)
    kind, threads = np.dtype(rng.choice(["float32", "float64"])), int(rng.integers(1, 3))
    m, k = int(rng.integers(2, 700)), int(rng.integers(2, 300))
    n = int(rng.choice([64, 96, 200, 208, 384])) + int(rng.random() < 0.2)
    x = rng.standard_normal((m, k)).astype(kind)
    w, b = (rng.standard_normal(shape).astype(kind) for shape in ((k, n), n))
    x[rng.integers(m), rng.integers(k)] = rng.choice([np.nan, np.inf, 1.0])
    turned = rng.random() < 0.5
    held = np.frombuffer((w.T if turned else w).tobytes(), kind).reshape((n, k) if turned else (k, n))
    weights = tw.transpose(tw.source(held)) if turned else tw.source(held)
    y = tw.source(name="x", shape=x.shape, dtype=kind.name) @ weights
    if rng.random() < 0.7:
        y = tw.maximum(y + tw.source(np.frombuffer(b.tobytes(), kind)), 0.0)
    else:
        b = None
    plan = tw.plan(y)
    with np.errstate(invalid="ignore"):
        wanted = x.astype("f8") @ w.astype("f8")
        wanted = wanted if b is None else np.maximum(wanted + b, 0)
    for _ in range(2):
        np.testing.assert_allclose(tw.run(plan, bind={"x": x}, threads=threads), wanted, rtol=1e-4, atol=1e-3)
    found = [one for one in executables(plan) if one.kernels]
    if 24 <= m <= 512 and k >= 24 and n % 16 == 0 and found:
        assert found[0].arena_bytes >= held.nbytes, (seed, m, n, k)


@pytest.mark.parametrize("cut", ["all", "reversed", "half of the channels", "the last filters", "mirrored channels"])
@pytest.mark.parametrize("count", [1, 2])
def test_constant_weights_that_are_no_whole_stretch_are_arranged(cut: str, count: int) -> None:
    rng = np.random.default_rng(5)
    whole = np.frombuffer(rng.standard_normal((37, 18, 3, 5)).tobytes()).reshape(37, 18, 3, 5)
    weights = {
        "all": whole,
        "reversed": whole[::-1],
        "half of the channels": whole[:, :9],
        "the last filters": whole[20:],
        "mirrored channels": whole[:, ::-1],
    }[cut]
    x = rng.standard_normal((2, weights.shape[1], 17, 26))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 5), axis=(2, 3))[:, :, ::3, ::2]
    y = tw.graph.nn.conv(tw.source(x), tw.source(weights), stride=(3, 2))
    plan = tw.plan(y, machines=tw.machines(count))
    for _ in range(2):
        np.testing.assert_allclose(tw.run(plan), np.einsum("nchwij,fcij->nfhw", windows, weights), atol=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_constants_of_several_pieces_are_put_together_before_anything_is_made_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    print("seed", seed)
    kind = np.dtype(rng.choice(["float32", "float64"]))

    def held(*shape: int) -> tw.graph.Tensor:
        """A constant of several pieces: parts in another order, with zeros around, or taken around an end."""
        parts, axis = int(rng.integers(2, 5)), int(rng.integers(len(shape)))
        sizes = np.diff([0, *np.sort(rng.integers(0, shape[axis] + 1, parts - 1)), shape[axis]])
        pieces = []
        for n in sizes:
            own = [int(n) if k == axis else extent for k, extent in enumerate(shape)]
            if rng.random() < 0.2:
                pieces.append(tw.full(own, 0.5, kind))
                continue
            array = rng.standard_normal([2 * extent for extent in own]).astype(kind)
            whole = tw.source(np.frombuffer(array.tobytes(), kind).reshape(array.shape))
            pieces.append(
                whole[tuple(slice(int(rng.integers(0, extent + 1)), None) for extent in own)][
                    tuple(slice(0, extent) for extent in own)
                ]
            )
        return tw.concat(pieces, axis)

    m, k, n = (int(rng.integers(2, 90)) for _ in range(3))
    x = tw.source(name="x", shape=(m, k), dtype=kind.name)
    image = tw.reshape(x, (1, 1, m, k))
    places = np.frombuffer(rng.integers(0, k, 9).tobytes(), np.int64)
    results = [
        x @ held(k, n),
        tw.transpose(held(n, k) @ tw.transpose(x)) + held(n),
        tw.conv(image, held(3, 1, 2, 2)),
        x * held(m, k),
        tw.take(held(k, n), tw.cast(tw.sum(x, 1) * 0, "int64"), 0),
        x @ tw.transpose(held(n, k)),
        tw.take(x, tw.concat([tw.source(places)[5:], tw.source(places)[:5]], 0), 1),
        tw.attention(x, held(n, k), held(n, k)),
    ]
    chosen = [results[number] for number in rng.choice(len(results), 3, replace=False)]
    plan, data = tw.plan(chosen, machines=int(rng.integers(1, 3))), rng.standard_normal((m, k)).astype(kind)
    wanted = tw.graph.evaluate(chosen, {x.producer: data})
    for threads in (1, 2):
        for got, want in zip(tw.run(plan, bind={"x": data}, threads=threads), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 if kind == np.float32 else 1e-10)
