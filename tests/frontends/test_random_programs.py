"""Random programs of one symbolic extent: at each extent a plan's values are those of the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tileweave as tw

Step = Callable[[Any, Any], Any]
"""(a matrix, an array of numbers) -> a matrix."""

STEPS: dict[str, Step] = {
    "axpy": lambda a, w: a * w[0, 0] + a[:1],
    "blend": lambda a, w: tw.where(tw.greater(a, 0.0), a, a[::-1] * 0.5),
    "centre": lambda a, w: a - tw.mean(a, 0, keepdims=True),
    "normalise": lambda a, w: (a - tw.mean(a, 1, keepdims=True)) / tw.sqrt(tw.variance(a, 1, keepdims=True) + 0.1),
    "softmax": lambda a, w: tw.softmax(a, -1),
    "project": lambda a, w: a @ tw.transpose(a) @ a * 0.01,
    "product": lambda a, w: a @ np.resize(w, (a.shape[1], 5)),
    "transpose": lambda a, w: tw.transpose(a),
    "reshape": lambda a, w: tw.reshape(a, a.shape[::-1]),
    "below": lambda a, w: tw.concat([a, tw.tanh(a)], 0),
    "column": lambda a, w: tw.concat([a, -a[:, :1]], 1),
    "shorter": lambda a, w: a[:-1] if a.shape[0] > 1 else a,
    "every other": lambda a, w: a[::-2],
    "pad": lambda a, w: tw.pad(a, [(1, 2), (0, 1)], "constant", 0.5),
    "running": lambda a, w: tw.cumsum(a, 0) * 0.1,
    "sorted": lambda a, w: tw.sort(a, 0),
    "rows": lambda a, w: tw.take(a, np.array([0, -1, 0]), 0),
    "places": lambda a, w: a + np.arange(a.shape[0])[:, None] * 0.1,
    "lower": lambda a, w: tw.tril(a),
    "stencil": lambda a, w: (tw.pad(a, [(1, 1), (0, 0)])[:-2] + tw.pad(a, [(1, 1), (0, 0)])[2:]) * 0.4,
    "roll": lambda a, w: tw.roll(a, 1, 0),
    "interleave": lambda a, w: tw.reshape(tw.stack([a, a + 1.0], 1), (2 * a.shape[0], a.shape[1])),
}


def program(seed: int) -> Callable[[Any], dict[str, Any]]:
    """A random chain of steps; the same at every extent."""
    rng = np.random.default_rng(seed)
    names = [str(name) for name in rng.choice(list(STEPS), int(rng.integers(3, 10)))]
    weights = rng.normal(size=(4, 5))

    def build(x: Any) -> dict[str, Any]:
        made = [x]
        for name in names:
            made.append(STEPS[name](made[-1], weights))
            if made[-1].size > 3000:
                break
        return {"last": made[-1], "middle": made[len(made) // 2]}

    build.__doc__ = f"seed {seed}: {names}"
    return build


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_at_every_extent(seed: int) -> None:
    build, rng = program(seed), np.random.default_rng(seed)
    model = tw.program(build, x=((tw.dim("n", 1, 6), 4), "float64"))
    plan = model.plan(machines=1 + seed % 3)
    for n in (4, 1, 6, 3):
        x = rng.normal(size=(n, 4))
        wanted = {name: np.asarray(tensor) for name, tensor in build(tw.source(x)).items()}
        on_machines = tw.run(plan, bind={"x": x}, threads=1 + n % 2)
        for got, other, value in zip(model(x=x).values(), on_machines, wanted.values(), strict=True):
            for one in (got, other):
                np.testing.assert_allclose(one, value, rtol=1e-9, atol=1e-9, err_msg=f"{build.__doc__}, extent {n}")
