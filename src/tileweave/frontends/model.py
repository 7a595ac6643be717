"""A model as a value: named inputs and named outputs of one tensor program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph import Graph, Source, Tensor, TensorType
from tileweave.planner import Plan
from tileweave.runtime import api

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A tensor program with names: what `tileweave.load` returns.

    Args:
        name: of the model.
        inputs: name -> source without data, in the model's order.
        outputs: name -> tensor, in the model's order.

    Calling it runs it on this host: ``model(image=array)`` or ``model(array)`` gives arrays by the outputs' names.
    """

    name: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    graph: Graph = field(init=False, repr=False, compare=False)
    """The program whose sinks are the outputs, in order."""
    _used: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        graph = Graph.of(*self.outputs.values())
        sources = {node for node in graph.nodes() if isinstance(node, Source)}
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "_used", frozenset(n for n, t in self.inputs.items() if t.producer in sources))

    def plan(self, machines: Any = None) -> Plan:
        """How the outputs are computed on machines; see `tileweave.plan`."""
        return api.plan(self.graph, machines)

    def bind(self, *arrays: Any, **named: Any) -> dict[Tensor | str, Any]:
        """The arrays of one run by source, for ``tileweave.run(plan, bind=...)``.

        Raises:
            GraphError: an input is missing, unknown, or given twice.
        """
        names = list(self.inputs)
        where = f"{self.name or 'model'}(..)"
        if len(arrays) > len(names):
            raise GraphError(where, f"{len(arrays)} arrays for {len(names)} inputs", legal=", ".join(names))
        given = dict(zip(names, arrays, strict=False))
        for name, array in named.items():
            if name not in self.inputs or name in given:
                problem = "is given twice" if name in given else "is no input"
                raise GraphError(where, f"{name!r} {problem}", legal=", ".join(names) or "no inputs")
            given[name] = array
        missing = [name for name in names if name not in given]
        if missing:
            types = ", ".join(f"{name} {self.inputs[name].type}" for name in missing)
            raise GraphError(where, f"no array for {types}", legal=f"one array for each of {', '.join(names)}")
        fitting = {name: _fitting(where, name, self.inputs[name].type, array) for name, array in given.items()}
        return {self.inputs[name]: array for name, array in fitting.items() if name in self._used}

    def __call__(self, *arrays: Any, **named: Any) -> dict[str, Array]:
        """The outputs' values, by name."""
        values = api.run(self.graph, bind=self.bind(*arrays, **named))
        several = values if isinstance(values, list) else [values]
        return dict(zip(self.outputs, several, strict=True))

    def __str__(self) -> str:
        rows = [f"{self.name or 'model'}"]
        rows += [f"  in   {name}  {tensor.type}" for name, tensor in self.inputs.items()]
        rows += [f"  out  {name}  {tensor.type}" for name, tensor in self.outputs.items()]
        return "\n".join(rows)


def _fitting(where: str, name: str, wanted: TensorType, value: Any) -> Array:
    array = np.asarray(value)
    if array.shape != wanted.shape or array.dtype != wanted.dtype:
        problem = f"input {name!r} is {wanted}, the array has shape {array.shape} and type {array.dtype.name}"
        raise GraphError(where, problem, legal=f"an array of {wanted}")
    return array
