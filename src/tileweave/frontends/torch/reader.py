"""From a PyTorch module to a tensor program: ``torch.export`` gives the graph, a table its operators.

The exported graph is in core ATen form, but for attention and recurrent layers, which stay one operator. Parameters and
buffers are sources that share the module's memory; what depends on constants alone (positions, masks) is computed when
the module is read.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tileweave.errors import GraphError, TileweaveError
from tileweave.frontends.model import Model
from tileweave.frontends.symbolic import Dim, SymbolicModel, SymbolicType
from tileweave.frontends.torch import elementwise, gradients, images, networks, ordered, recurrent, shapes
from tileweave.frontends.torch.call import OPERATORS, AtenCall, like_declared, nothing_like
from tileweave.frontends.torch.export import Exported, Exports, SymbolValues, exported
from tileweave.frontends.values import Value, folded
from tileweave.graph import Tensor
from tileweave.graph.ir.dtypes import LEGAL, is_narrow, narrow_type
from tileweave.graph.ir.values import read_only
from tileweave.runtime.api import source

_CONVERTERS = (elementwise, gradients, images, networks, ordered, recurrent, shapes)
Array = np.ndarray[Any, Any]


def from_torch(
    module: Any, example: Any, *, dims: Mapping[str, Mapping[int, Dim]] | None = None
) -> Model | SymbolicModel:
    """A PyTorch module in evaluation mode as a tensor program with named inputs and outputs.

    Args:
        module: a ``torch.nn.Module``.
        example: its inputs: one tensor, a tuple of them, or a mapping by name; their shapes and types are kept.
        dims: input -> axis -> `tileweave.dim`: extents that calls choose. The module is exported once for all that
            take the same branches of its Python code, once more for extents of 0 or 1.

    Returns:
        The model, a `SymbolicModel` with ``dims``. Caches of keys and values that a model of transformers would make
        are no outputs, and buffers are not written. Inputs have the names of the module's arguments; outputs are
        ``out``, or ``out0, out1, ..`` in the order in which the module returns tensors.

    Raises:
        GraphError: the module cannot be exported, or uses an operator without a counterpart; names the operator; or
            ``dims`` name no input and axis.

    Source: own; the meaning of operators is PyTorch's.
    """
    try:
        import torch
    except ImportError as error:
        raise GraphError("from_torch(module)", "PyTorch is not installed", legal="pip install torch") from error
    if not isinstance(module, torch.nn.Module):
        problem = f"{type(module).__name__} is no module"
        raise GraphError("from_torch(module, example)", problem, legal="a torch.nn.Module")
    first = _model(type(module).__name__, exported(module, example), SymbolValues())
    if not dims:
        return first
    kinds = {}
    for name, axes in dims.items():
        rank = len(first.inputs[name].shape) if name in first.inputs else 0
        if not axes or not all(isinstance(n, Dim) and axis in range(rank) for axis, n in axes.items()):
            legal = "; ".join(f"{key}: {tensor.type}" for key, tensor in first.inputs.items())
            raise GraphError("from_torch(module, example, dims)", f"{name!r}: {axes!r} fits no input", legal=legal)
    for name, tensor in first.inputs.items():
        shape = tuple(dims.get(name, {}).get(axis, n) for axis, n in enumerate(tensor.shape))
        kinds[name] = SymbolicType(shape, tensor.dtype)
    open_axes = [[axis for axis, n in enumerate(kind.shape) if isinstance(n, Dim)] for kind in kinds.values()]
    exports = Exports(module, example, open_axes)

    def make(extents: Mapping[str, int]) -> Model:
        return _model(first.name, *exports.at([kind.at(extents) for kind in kinds.values()]))

    return SymbolicModel(first.name, kinds, make)


def _model(name: str, exported: Exported, sizes: SymbolValues) -> Model:
    """The tensor program of an exported one, for values of its symbols."""
    values: dict[str, Value] = {}
    inputs: dict[str, Tensor] = {}
    program = exported.program
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
    for node in program.graph.nodes:
        declared = sizes.declared(node.meta.get("val"))
        if node.op == "placeholder":
            spec = kinds[node.name]
            held = _held(program, spec)
            if held is not None:
                if node.name not in exported.values:
                    exported.values[node.name] = _array(held, spec.target or node.name)
                values[node.name] = exported.values[node.name]
                continue
            if not hasattr(declared, "shape"):
                values[node.name] = declared
                continue
            dtype = _dtype(declared.dtype)
            values[node.name] = source(None, name=node.name, shape=tuple(map(int, declared.shape)), dtype=dtype)
            inputs[node.name] = values[node.name]
        elif node.op == "call_function" and isinstance(declared, (bool, int, float)):
            values[node.name] = declared  # an extent, or what is computed from extents
        elif node.op == "call_function":
            values[node.name] = _call(node, values, declared)
        elif node.op == "output":
            made_by = program.graph_signature.output_specs  # new values of inputs and buffers are no results
            flat = zip(_flat(node.args[0]), made_by, strict=True)
            results = [_resolved(item, values) for item, spec in flat if spec.kind.name == "USER_OUTPUT"]
            results = [item for item in results if item is not None]
            names = ["out"] if len(results) == 1 else [f"out{k}" for k in range(len(results))]
            made = (item if isinstance(item, Tensor) else source(np.asarray(item)) for item in results)
            return Model(name, inputs, dict(zip(names, made, strict=True)))
        else:
            raise GraphError("from_torch(module)", f"a node of kind {node.op!r}", legal="functions of tensors")
    raise GraphError("from_torch(module)", "the module returns nothing", legal="a module that returns tensors")


def _held(program: Any, spec: Any) -> Any:
    """The tensor behind a parameter, a buffer or a constant."""
    if spec.target is None:
        return None
    with contextlib.suppress(KeyError):
        return program.state_dict[spec.target]
    return program.constants.get(spec.target)


def _call(node: Any, values: Mapping[str, Value], declared: Any) -> Value:
    if getattr(node.target, "__name__", "") == "getitem":
        return values[node.args[0].name][node.args[1]]
    name = str(node.target)
    where = f"from_torch(..): {name}"
    if any(None in getattr(one, "shape", ()) for one in _flat(declared)):
        problem, legal = "the shape of its result depends on values", "shapes that follow from those of the inputs"
        raise GraphError(where, problem, legal=legal)
    empty = nothing_like(declared)
    if empty is not None:
        return empty
    if name not in OPERATORS:
        near = ", ".join(difflib.get_close_matches(name, OPERATORS, 3, 0.4)) or "none with such a name"
        raise GraphError(where, "there is no such operator here", legal=f"{len(OPERATORS)} others; closest: {near}")
    arguments = tuple(_resolved(item, values) for item in node.args)
    options = {key: _resolved(item, values) for key, item in node.kwargs.items()}
    call = AtenCall(where, node.target, arguments, options)
    try:
        made = like_declared(where, OPERATORS[name](call), declared)
    except TileweaveError as error:
        if error.where == where:
            raise
        raise GraphError(where, f"{error.where}: {error.problem}", legal=error.legal) from error
    known = not any(isinstance(item, Tensor) for item in _flat((arguments, tuple(options.values()))))
    return tuple(folded(item, known) for item in made) if isinstance(made, tuple) else folded(made, known)


def _resolved(item: Any, values: Mapping[str, Value]) -> Any:
    """An argument with nodes replaced by their values."""
    if hasattr(item, "op") and hasattr(item, "name"):
        return values[item.name]
    if isinstance(item, (list, tuple)):
        return [_resolved(each, values) for each in item]
    return item


def _flat(item: Any) -> list[Any]:
    if isinstance(item, (list, tuple)):
        return [each for part in item for each in _flat(part)]
    return [item]


def _dtype(kind: Any) -> np.dtype[Any]:
    """The NumPy type of a torch one."""
    name = str(kind).removeprefix("torch.")
    try:
        return narrow_type(name) or np.dtype(name)
    except TypeError as error:
        raise GraphError("from_torch(module)", f"elements of type {name}", legal=LEGAL) from error


def _array(tensor: Any, name: str) -> Array:
    """A torch tensor as an array on the same memory."""
    import torch

    dtype = _dtype(tensor.dtype)
    plain = tensor.detach().cpu()
    if is_narrow(dtype):
        bits = torch.int16 if dtype.itemsize == 2 else torch.int8
        return read_only(np.asarray(plain.view(bits).numpy()).view(dtype))
    return read_only(np.asarray(plain.numpy()))
