"""Random ONNX models with a symbolic batch and sequence: at every binding the values are onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_random import BINDINGS, at, model

import tileweave as tw

DIMS = {"b": ("batch", 1, 8), "s": ("seq", 2, 9)}
FLOATS, ROUNDED = 3e-4, 0.1
"""Of the largest number, or 1: sums are reordered; what is rounded to steps may fall to the other side of one."""


def expected(proto: Any) -> Any:
    """A function from arrays by name to onnxruntime's outputs, without its own fusions."""
    runtime = pytest.importorskip("onnxruntime")
    settings = runtime.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return lambda given: session.run(None, given)


def check(seed: int, bindings: int) -> None:
    proto, inputs, rounded = model(seed)
    compute, rng, said = expected(proto), np.random.default_rng(seed), f"{proto.graph.name}"
    used = {n for shape in inputs.values() for n in shape if n in DIMS}
    loaded = tw.load(proto, bind={DIMS[n][0]: tw.dim(*DIMS[n]) for n in used})
    plan = loaded.plan(machines=1 + seed % 3)
    for turn in rng.permutation(len(BINDINGS))[:bindings]:
        binding = dict(zip("bs", BINDINGS[turn], strict=True))
        given = {name: rng.normal(size=at(shape, binding)).astype(np.float32) for name, shape in inputs.items()}
        wanted = compute(given)
        planned = tw.run(plan, bind=given, threads=1 + int(turn) % 2)
        ways = (list(loaded(**given).values()), planned if isinstance(planned, list) else [planned])
        for got in ways:
            for one, other in zip(got, wanted, strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype), f"{said}, at {binding}"
                within = (ROUNDED if rounded else FLOATS) * max(1.0, float(np.abs(other).max(initial=0)))
                np.testing.assert_allclose(one, other, rtol=0, atol=within, err_msg=f"{said}, at {binding}")


@pytest.mark.parametrize("seed", range(10))
def test_random_models_at_every_binding(seed: int) -> None:
    check(seed, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_many_random_models_at_every_binding(seed: int) -> None:
    check(seed, 5)
