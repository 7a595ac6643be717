"""The onnx package's own tests of operators: each a model, inputs, and the outputs that its reference computed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from tileweave.errors import GraphError
from tileweave.frontends.model import Model
from tileweave.frontends.onnx import load
from tileweave.frontends.symbolic import SymbolicModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases


def cases() -> list[Any]:
    """All of them, collected once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


def bound(case: Any, inputs: Sequence[Any]) -> tuple[Model, list[Any]]:
    """The model with the inputs that decide shapes bound by value, and the arrays of the others."""
    names = [info.name for info in case.model.graph.input]
    given = {name: array(value) for name, value in zip(names, inputs, strict=False)}
    bind: dict[str, Any] = {}
    while True:
        try:
            model = load(case.model, bind=bind)
        except GraphError as error:
            name = error.facts.get("input")
            if name is None or name in bind or name not in given:
                raise
            bind[name] = given[name]
            continue
        arrays = [given[name] for name in model.inputs]
        return (model.at(**model.extents(*arrays)) if isinstance(model, SymbolicModel) else model), arrays


def array(value: Any) -> Any:
    """A value of a case as an array; sequences stay."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) or value is None else np.asarray(value)


def differences(got: Sequence[Any], expected: Sequence[Any], case: Any) -> Iterator[str]:
    """What is wrong with results."""
    flat = [each for value in expected for each in (value if isinstance(value, list) else [value])]
    for number, (one, other) in enumerate(zip(got, flat, strict=True)):
        other = array(other)
        if one.shape != other.shape or one.dtype != other.dtype:
            yield f"output {number} is {one.dtype}{one.shape}, expected {other.dtype}{other.shape}"
        elif other.dtype.kind in "biu":
            if not np.array_equal(one, other):
                yield f"output {number} differs"
        else:
            wide = [each.astype(np.float64) for each in (one, other)]
            rounding = {1: 0.1, 2: 1e-2}.get(other.dtype.itemsize, 1e-6)  # of FP8 and FP16, whose sums are reordered
            if not np.allclose(*wide, rtol=max(case.rtol, rounding), atol=max(case.atol, rounding), equal_nan=True):
                yield f"output {number} is off by {np.nanmax(np.abs(wide[0] - wide[1]))}"
