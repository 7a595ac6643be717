"""Operations with several outputs, tuple-valued reductions among them: planned, cut at random, run by both runtimes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from plans import random_plan
from test_units import ROOM, run_units

from tileweave import graph as g
from tileweave import lower
from tileweave.graph.ops.monoids import STATES
from tileweave.graph.ops.operators import OPERATORS, Operator, register
from tileweave.graph.ops.reductions import state_of
from tileweave.planner import machines, make_plan
from tileweave.planner.steps import candidates
from tileweave.runtime import run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.prepare import prepare
from tileweave.runtime.ray.units import units
from tileweave.space import Box, Projection

Array = np.ndarray[Any, Any]


def _both(operation: g.Operation, inputs: Mapping[str, Array]) -> dict[str, Array]:
    x = inputs["x"]
    return {"doubled": x * 2, "pairs": np.stack([x, -x], -1).astype(np.float32)}


if "test_both" not in OPERATORS:
    register(Operator("test_both", _both))


def both(x: g.Tensor) -> tuple[g.Tensor, g.Tensor]:
    """Twice x, and x beside -x in another shape and type: outputs that have little in common."""
    rank = x.ndim
    here = Projection.select(range(rank), rank)
    wide = Projection.select([*range(rank), None], rank, (*(1,) * rank, 2))
    signature = g.Signature(tuple("ijk"[:rank]), (("x", here),), (("doubled", here), ("pairs", wide)))
    outputs = (("doubled", x.type), ("pairs", g.TensorType((*x.shape, 2), np.dtype("float32"))))
    made = g.Operation("test_both", Box.of(x.shape), (("x", x),), outputs, (), signature)
    return g.Tensor(made, "doubled"), g.Tensor(made, "pairs")


def graphs(rng: np.random.Generator) -> Iterator[list[g.Tensor]]:
    """Results that read some or all outputs of what makes several."""
    x = g.as_tensor(rng.integers(-9, 10, (12, 10)).astype("float64"))
    y = g.matmul(x, g.transpose(x)) / 4
    for name in STATES:
        for dim in (0, 1):
            operation = state_of(name, y, dim)
            parts = [g.Tensor(operation, part) for part, _ in operation.outputs]
            yield parts
            yield [parts[1] * 2 + 1]
    doubled, pairs = both(y)
    yield [doubled, pairs]
    yield [g.sum(pairs[:, ::-1], (1, 2)), doubled[1:] - doubled[:-1]]
    yield [pairs]
    yield [g.argmax(g.relu(y), 1) + g.argmin(y, 0)]


def test_every_plan_of_several_outputs_computes_what_the_graph_means() -> None:
    rng = np.random.default_rng(5)
    stages = set()
    for tensors in graphs(rng):
        expected = g.evaluate(tensors)
        graph = g.Graph.of(*tensors)
        plans = [random_plan(graph, machines(3, memory="1GiB"), rng) for _ in range(4)]
        plans.append(make_plan(graph, machines(4, memory="1GiB"), lower.decide, io.atom))
        for plan in plans:
            stages |= {(step.name, step.stage) for step in plan.steps}
            assert plan.explain() and plan.to_json() and plan._repr_svg_()
            peaks: list[Any] = []
            results = run_plan(plan, listeners=[peaks.append])
            by_units = run_units(*units(prepare(plan), [ROOM] * 4))
            for got, other, want in zip(results, by_units, expected, strict=True):
                assert got.dtype == other.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-9)
                np.testing.assert_allclose(other, want, rtol=1e-12, atol=1e-9)
            measured = peaks[-1].peak_bytes
            assert all(most <= planned for most, planned in zip(measured, plan.peak_bytes, strict=True))
    assert {(name, stage) for name in STATES for stage in ("partial", "combine")} <= stages


def test_only_outputs_that_are_read_are_kept() -> None:
    x = g.as_tensor(np.arange(4096.0))
    slow = machines(2, memory="1GiB", flops_per_second=1e4)
    plan = make_plan(g.Graph.of(g.argmax(x, 0)), slow, lower.decide, io.atom)
    kept = {step.stage: step.outputs for step in plan.steps}
    assert kept["partial"] == ("value", "index") and kept["combine"] == ("index",)
    assert int(run_plan(plan)[0]) == 4095


def test_outputs_of_unlike_shapes_are_not_cut_along_a_reduction() -> None:
    unlike = state_of("argmax", g.as_tensor(np.ones((4, 6))), 1)
    wide = Projection.select([0, None], 2, (1, 2))
    signature = g.Signature(unlike.signature.dims, unlike.signature.inputs,
                            (unlike.signature.outputs[0], ("index", wide)), ((1, "argmax"),))  # fmt: skip
    outputs = (unlike.outputs[0], ("index", g.TensorType((4, 2), np.dtype("int64"))))
    operation = g.Operation("argmax", unlike.index, unlike.inputs, outputs, unlike.parameters, signature)
    assert all(grid[1] == 1 for grid in candidates(operation, 4)) and (4, 1) in candidates(operation, 4)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_runs_plans_of_several_outputs() -> None:
    rng = np.random.default_rng(6)
    for tensors in list(graphs(rng))[::3]:
        plan = random_plan(g.Graph.of(*tensors), machines(3, memory="1GiB"), rng)
        for got, want in zip(run_plan(plan, runtime="ray", threads=2), g.evaluate(tensors), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-9)
