"""Recurrent layers as one kernel of all steps, beside their definition in FP64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave.graph import as_tensor
from tileweave.graph.ops.grouped.recurrence import GATES, WAYS, recurrence
from tileweave.lower.binding import TaskBinding
from tileweave.lower.executable import Executable
from tileweave.planner import tasks

TOLERANCE = {"f4": 2e-5, "f8": 1e-13}
CELLS = list(GATES)


def drawn(rng: np.random.Generator, dtype: str, ways: int) -> tuple[str, list[np.ndarray[Any, Any]]]:
    """A cell and its operands, some of them parts of larger arrays."""
    cell = CELLS[int(rng.integers(len(CELLS)))]
    steps, batch = int(rng.integers(1, 7)), int(rng.choice([1, 1, 2, 3, 5, 7, 8, 9, 16, 33]))
    hidden = int(rng.choice([1, 3, 7, 8, 15, 16, 17, 31, 64, 65, 100, 129, 200]))
    wide = GATES[cell] * hidden

    def part(*shape: int) -> np.ndarray[Any, Any]:
        more = [n + int(rng.integers(0, 3)) for n in shape]
        whole = (rng.standard_normal(more) / 2).astype(dtype)
        return whole[tuple(slice(m - n, None) for m, n in zip(more, shape, strict=True))]

    u = part(ways, wide, hidden)
    u /= u.dtype.type(np.sqrt(hidden))
    return cell, [part(steps, batch, ways, wide), u, part(ways, batch, hidden), *_more(cell, ways, batch, hidden, part)]


def _more(cell: str, ways: int, batch: int, hidden: int, part: Any) -> list[np.ndarray[Any, Any]]:
    return {"lstm": [part(ways, batch, hidden)], "gru": [part(ways, hidden)]}.get(cell, [])


def outputs(cell: str, inputs: list[Any], ways: str = "forward") -> list[Any]:
    return [out for out in recurrence(cell, *inputs, ways=ways) if out is not None]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_weights_may_be_constants_in_another_order(cell: str, threads: int) -> None:
    """As those of models are, gate after gate: what is put together of constants is there when it is arranged."""
    rng, hidden = np.random.default_rng(11), 129
    u = np.frombuffer((rng.standard_normal((GATES[cell] * hidden, hidden)) / 12).tobytes()).reshape(-1, hidden)
    order = rng.permutation(GATES[cell] * 3)  # thirds of gates
    turned = tw.concat([as_tensor(u)[k * 43 : (k + 1) * 43] for k in order], 0)
    x, *rest = (rng.standard_normal(n) for n in ((5, 3, 1, len(u)), (1, 3, hidden)))
    rest += _more(cell, 1, 3, hidden, lambda *shape: rng.standard_normal(shape))
    source = tw.source(name="x", shape=x.shape, dtype="float64")
    weights = np.concatenate([u[k * 43 : (k + 1) * 43] for k in order])[None]
    wanted = outputs(cell, list(map(as_tensor, (x, weights, *rest))))
    plan = tw.plan(outputs(cell, [source, tw.stack([turned]), *map(as_tensor, rest)]))
    for _ in range(2):
        for got, want in zip(tw.run(plan, bind={"x": x}, threads=threads), wanted, strict=True):
            np.testing.assert_allclose(got, np.asarray(want), atol=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_all_steps_are_those_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    print("seed", seed)
    dtype = str(rng.choice(["f4", "f8"]))
    ways, threads, fixed = str(rng.choice(list(WAYS))), int(rng.integers(1, 4)), bool(rng.integers(2))
    cell, arrays = drawn(rng, dtype, len(WAYS[ways]))
    sources = [tw.source(name=f"a{k}", shape=a.shape, dtype=a.dtype) for k, a in enumerate(arrays)]
    bind = {f"a{k}": array for k, array in enumerate(arrays) if not (fixed and k == 1)}
    if fixed:
        weights = arrays[1].copy()
        weights.setflags(write=False)
        sources[1] = as_tensor(weights)
    plan = tw.plan(outputs(cell, sources, ways))
    expected = outputs(cell, [as_tensor(a.astype("f8")) for a in arrays], ways)
    for _ in range(2):
        for found, wanted in zip(tw.run(plan, bind=bind, threads=threads), expected, strict=True):
            np.testing.assert_allclose(found, np.asarray(wanted), rtol=0, atol=TOLERANCE[dtype])
        if not fixed:  # weights that are bound are read anew
            arrays[1] *= -1
            expected = outputs(cell, [as_tensor(a.astype("f8")) for a in arrays], ways)


@pytest.mark.parametrize("ways", ["forward", "both"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_steps_are_shared(threads: int, ways: str) -> None:
    rng, many = np.random.default_rng(threads), len(WAYS[ways])
    shapes = (4, 2, many, 1640), (many, 1640, 410), (many, 2, 410), (many, 2, 410)
    arrays = [(rng.standard_normal(shape) / 8).astype("f4") for shape in shapes]
    found = tw.run(outputs("lstm", list(map(as_tensor, arrays)), ways), threads=threads)
    wanted = outputs("lstm", [as_tensor(a.astype("f8")) for a in arrays], ways)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=0, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_a_layer_is_one_kernel_and_no_step_in_python(cell: str) -> None:
    rng = np.random.default_rng(1)
    more = {"lstm": [(2, 2, 24)], "gru": [(2, 24)]}.get(cell, [])
    shapes = [(9, 2, 2, 24 * GATES[cell]), (2, 24 * GATES[cell], 24), (2, 2, 24), *more]
    arrays = [rng.standard_normal(shape).astype("f4") for shape in shapes]
    plan = tw.plan(outputs(cell, [as_tensor(a) for a in arrays], "both")[:1])
    sources = {node: node.data.array for node in plan.graph.nodes() if isinstance(node, tw.graph.Source)}
    made = Executable(tasks(plan), TaskBinding(plan.steps, tasks(plan), sources, (), plan.graph.sinks, 1, 0))
    assert (made.kernels, made.python_steps) == (1, 0)


@pytest.mark.parametrize("layer", ["lstm", "gru", "rnn"])
def test_a_layer_of_nn_is_planned_in_few_steps(layer: str) -> None:
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[layer]
    rng = np.random.default_rng(2)
    x, w, u, b = (
        rng.standard_normal(shape).astype("f4") for shape in ((200, 3, 5), (8 * gates, 5), (8 * gates, 8), (8 * gates,))
    )
    states = getattr(tw.nn, layer)(x, w, u, b)[0]
    assert len(tw.plan(states).steps) < 10
    np.testing.assert_allclose(tw.run(states), np.asarray(states), rtol=0, atol=1e-4)


def test_shards_of_a_batch_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(3)
    print("seed 3")
    x, u, h, b = (rng.standard_normal(s).astype("f4") / 4 for s in ((6, 12, 2, 48), (2, 48, 16), (2, 12, 16), (2, 16)))
    states = outputs("gru", [as_tensor(a) for a in (x, u, h, b)], "both")[0]
    plan = tw.plan(states, tw.machines(4))
    np.testing.assert_allclose(tw.run(plan), np.asarray(states), rtol=0, atol=1e-5)
