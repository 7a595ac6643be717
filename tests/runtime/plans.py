"""Random plans, and operators that misbehave, for the tests of both runtimes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave import lower
from tileweave.graph.ops.operators import OPERATORS, Operator, register
from tileweave.planner import Machines, Plan
from tileweave.planner.search.make import SHARINGS
from tileweave.planner.simulate import costed
from tileweave.planner.steps import Waves, candidates, steps_of
from tileweave.runtime.io import files as io
from tileweave.space import Projection

Array = np.ndarray[Any, Any]


def random_plan(graph: g.Graph, machines: Machines, rng: np.random.Generator, spill: bool = False) -> Plan:
    """A plan that no search would choose: any grid per operation, any number of waves, any steps in files."""
    grids = {}
    for operation in graph.operations:
        grids[operation] = (1,) * operation.index.rank
        if operation.index.size and rng.random() < 0.8:
            offered = candidates(operation, int(rng.integers(1, 7)))
            grids[operation] = offered[rng.integers(len(offered))]
    waves = Waves(int(rng.choice([1, 1, 2, 4])), ("rows", "longest", "all")[int(rng.integers(3))])
    steps = steps_of(graph, grids, len(machines), lower.decide, io.atom, waves, sharing=str(rng.choice(SHARINGS)))
    if spill:
        may = [isinstance(step.node, g.Operation) and step.stage != "partial" for step in steps]
        steps = tuple(replace(s, spilled=yes and rng.random() < 0.5) for s, yes in zip(steps, may, strict=True))
    return costed(Plan(graph, machines, steps))[0]


# ---------------------------------------------------------------------------------------------------------------------
# operators that misbehave; what they should do is in their parameters, since workers see nothing else


def _apply(operation: g.Operation, inputs: Mapping[str, Array]) -> dict[str, Array]:
    def number(name: str) -> int:
        return int(dict(operation.parameters).get(name, -1))

    x = inputs["x"]
    first = int(x.flat[0]) if x.size else -1
    marks = Path(dict(operation.parameters)["marks"])
    with (marks / f"{first}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(max(0, number("milliseconds")) / 1e3)
    if first == number("fails_at"):
        raise ArithmeticError("no result")
    if first == number("interrupted_at"):
        raise KeyboardInterrupt
    return {"out": x + 1}


def _meet(operation: g.Operation, inputs: Mapping[str, Array]) -> dict[str, Array]:
    PAIR.wait(20)
    return {"out": inputs["x"] + 1}


PAIR = threading.Barrier(2)
"""Shards of ``meeting`` pass it two at a time."""
OPERATOR = "test_misbehaving"
if OPERATOR not in OPERATORS:
    register(Operator(OPERATOR, _apply))
    register(Operator("test_meeting", _meet))


def misbehaving(x: g.Tensor, marks: Path, **parameters: int) -> g.Tensor:
    """``x + 1``, unless told otherwise. A shard leaves a mark, a file named by its first element with the worker's pid.

    Args:
        x: any tensor.
        marks: the folder for the marks.
        parameters: milliseconds that a shard takes; ``fails_at``, ``interrupted_at``: first element of a shard.
    """
    marks.mkdir(exist_ok=True)
    return _elementwise(OPERATOR, x, (("marks", str(marks)), *parameters.items()))


def meeting(x: g.Tensor) -> g.Tensor:
    """``x + 1``, if two shards are computed at the same time."""
    return _elementwise("test_meeting", x, ())


def _elementwise(operator: str, x: g.Tensor, parameters: tuple[tuple[str, Any], ...]) -> g.Tensor:
    rank = x.ndim
    identity = Projection.select(range(rank), rank)
    signature = g.Signature(
        tuple(f"d{k}" for k in range(rank)), (("x", identity),), (("out", identity),), costs=(("flops", 1e9),)
    )
    return g.Tensor(g.Operation(operator, x.type.box, (("x", x),), (("out", x.type),), parameters, signature))


def rows_plan(tensor: g.Tensor | g.Sink, machines: Machines, parts: int) -> Plan:
    """A plan that cuts the first dimension of every operation into so many parts."""
    graph = g.Graph.of(tensor)
    grids = {o: (min(parts, o.index.shape[0]), *(1 for _ in o.index.shape[1:])) for o in graph.operations}
    steps = steps_of(graph, grids, len(machines), lower.decide, io.atom)
    return costed(replace(Plan(graph, machines, ()), steps=steps))[0]
