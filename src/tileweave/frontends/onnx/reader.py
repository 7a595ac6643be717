"""From an ONNX file to a tensor program: types, constants, nodes in order, functions, constant control flow.

Shapes are numbers when a model is loaded, so values that decide shapes are computed then: a node whose inputs are all
known is folded into its value. A node of an operator that has no converter is replaced by the body that the operator's
schema defines, where there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tileweave.errors import GraphError, StorageError, TileweaveError, short_text
from tileweave.frontends.model import Model
from tileweave.frontends.onnx import (
    arithmetic,
    microsoft,
    networks,
    quantized,
    reductions,
    resize,
    sequences,
    shapes,
    whole,
)
from tileweave.frontends.onnx.node import OPERATORS, Converter, OnnxNode, converter, name_of
from tileweave.frontends.symbolic import Dim, SymbolicModel, SymbolicType
from tileweave.frontends.values import Value, folded
from tileweave.graph import Tensor
from tileweave.graph.ir.dtypes import element_type
from tileweave.graph.ir.interned import built_here, built_there
from tileweave.graph.ir.values import read_only
from tileweave.runtime.api import source
from tileweave.runtime.prepare import keeping

Array = np.ndarray[Any, Any]
_CONVERTERS = (arithmetic, microsoft, networks, quantized, reductions, resize, sequences, shapes, whole)
_NAMELESS = ("", "?", "None", "-1")
"""What exporters write for a dimension that they know nothing of; two of them are not one dimension."""
_CAPTURING = ("If", "Loop", "Scan")
"""Operators whose graphs read values from outside, so that known inputs do not make known results."""


@keeping()
def load(
    model: str | os.PathLike[str] | bytes | Any,
    *,
    bind: Mapping[str, int | Dim | tuple[int | Dim, ...] | Array | list[Array]] | None = None,
) -> Model | SymbolicModel:
    """An ONNX model as a tensor program with named inputs and outputs.

    Args:
        model: a path, the bytes of a file, or an ``onnx.ModelProto``. Weights in external files are memory-mapped.
        bind: name -> value: the extent of a symbolic dimension (``{"batch": 8}``), or its bounds
            (``{"batch": tw.dim("batch", 1, 512)}``); the shape of an input (``{"image": (1, 3, 224, 224)}``); an array,
            the value of an input that decides shapes; or a list of arrays, the value of a sequence.

    Returns:
        A `Model`, where an output ``y`` that is a sequence gives outputs ``y[0]``, ``y[1]``, ..; a `SymbolicModel`,
        which takes its extents from the arrays of each call, where dimensions of inputs stay symbolic. What depends on
        shapes is then read, or refused, when extents are first bound; at once where all have an upper bound.

    Raises:
        StorageError: the file is missing or is no ONNX model.
        GraphError: an operator, an element type or an unknown extent that a tensor program cannot say; names the node.

    Source: own; the meaning of operators is the ONNX specification's.
    """
    try:
        import onnx
    except ImportError as error:
        raise GraphError("load(model)", "onnx is not installed", legal="pip install 'tileweave[onnx]'") from error

    bind = dict(bind or {})
    folder: Path | None = None
    path: Path | None = None
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            raise StorageError("load(model)", f"there is no file {str(path)!r}", legal="the path of an .onnx file")
        folder, name, model = path.parent, path.stem, path.read_bytes()
    else:
        name = getattr(getattr(model, "graph", None), "name", "")
    if isinstance(model, (bytes, bytearray, memoryview)):
        try:
            proto = onnx.ModelProto.FromString(bytes(model))
        except Exception as error:
            what = repr(str(path)) if path is not None else "the bytes"
            raise StorageError(
                "load(model)", f"{what} cannot be read as an ONNX model: {error}", legal="an .onnx file"
            ) from error
    elif isinstance(model, onnx.ModelProto):
        proto = model
    else:
        problem = f"{type(model).__name__} is no ONNX model"
        raise GraphError("load(model)", problem, legal="a path, bytes, or an onnx.ModelProto")
    if not proto.graph.output:
        raise StorageError("load(model)", "the file holds no graph with outputs", legal="an .onnx file")
    return _Reader(proto, folder).program(name or proto.graph.name, bind)


class _Entry(NamedTuple):
    """A node, its parts read once; converters do not change its attributes."""

    proto: Any
    domain: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    convert: Converter | None


@dataclass
class _Reader:
    """One model being read."""

    proto: Any
    folder: Path | None
    versions: dict[str, int] = field(init=False)
    functions: dict[tuple[str, str], Any] = field(init=False)
    weights: dict[str, Value] = field(init=False)
    """The main graph's constants, the same arrays for all extents."""
    known: tuple[dict[str, Value], list[_Entry]] = field(init=False)
    """The main graph's values that depend on constants alone, once a model was made, and the nodes that are left."""
    sources: dict[int, tuple[Array, Tensor] | None] = field(init=False)
    """Array of `known` by its identity -> it, and it as a tensor, once a node asked for that."""

    def __post_init__(self) -> None:
        self.versions = {entry.domain: entry.version for entry in self.proto.opset_import}
        self.functions = {(f.domain, f.name): f for f in self.proto.functions}
        self.weights = self.constants(self.proto.graph)
        self.known = self.weights, [self.entry(proto) for proto in self.proto.graph.node]
        self.sources = {}

    def program(self, name: str, bind: dict[str, Any]) -> Model | SymbolicModel:
        """The model, or what makes it for the extents of calls."""
        graph = self.proto.graph
        fixed: dict[str, Value] = {}
        kinds: dict[str, SymbolicType] = {}
        used: set[str] = set()
        for info in graph.input:
            if info.name in self.weights and info.name not in bind:
                continue  # an initializer with a declaration: older files list them among the inputs
            value = self.input(info, bind, used)
            if isinstance(value, SymbolicType):
                kinds[info.name] = value
            else:
                fixed[info.name] = value
        unknown = sorted(set(bind) - used)
        if unknown:
            legal = ", ".join(sorted({info.name for info in graph.input} | _symbols(graph))) or "nothing to bind"
            raise GraphError("load(model, bind)", f"{unknown[0]!r} is no input or dimension", legal=legal)
        made = SymbolicModel(name, kinds, lambda extents: self.model(name, fixed, kinds, extents))
        if not made.dims:
            return made.make({})
        if all(one.most is not None for one in made.dims.values()):
            made.at(**{one.name: one.most or 0 for one in made.dims.values()})
        else:
            self.refuse_unknown(graph.node)
        return made

    def refuse_unknown(self, nodes: Sequence[Any]) -> None:
        """Refuses nodes of operators that do not exist, whatever the shapes."""
        for proto in nodes:
            known = converter(proto.domain, proto.op_type) is not None
            version = self.versions.get(proto.domain, self.versions.get("", 1))
            if not known and (proto.domain, proto.op_type) not in self.functions and not _has_body(proto, version):
                raise _no_operator(proto)

    def model(
        self, name: str, fixed: Mapping[str, Value], kinds: Mapping[str, SymbolicType], extents: Mapping[str, int]
    ) -> Model:
        """The program of the main graph for extents by name."""
        graph = self.proto.graph
        inputs = {key: source(None, name=key, shape=kind.at(extents), dtype=kind.dtype) for key, kind in kinds.items()}
        constant, nodes = self.known
        values: dict[str, Value] = {**constant, **fixed, **inputs}
        with built_here():
            self.run(nodes, values, self.versions)
        if constant is self.weights:
            self.known = _settled({**constant, **fixed}, nodes, inputs, values)
            self.sources = {id(value): None for value in self.known[0].values() if isinstance(value, np.ndarray)}
        outputs = {}
        for info in graph.output:
            if info.name not in values:
                problem = f"no node makes output {info.name!r}"
                raise GraphError("load(model)", problem, legal="the name of a node's output")
            value = values[info.name]
            named = {info.name: value}
            if isinstance(value, list):
                named = {f"{info.name}[{k}]": each for k, each in enumerate(value)}
            for key, each in named.items():
                if isinstance(each, list) or each is None:
                    problem = f"output {key!r} is an empty optional or a sequence of sequences"
                    raise GraphError("load(model)", problem, legal="tensors and sequences of tensors")
                outputs[key] = each if isinstance(each, Tensor) else source(np.asarray(each), name=key)
        if not outputs:
            raise GraphError("load(model)", "all outputs are empty sequences", legal="a tensor to compute")
        return Model(name, inputs, outputs)

    def constants(self, graph: Any) -> dict[str, Value]:
        """The initializers of a graph."""
        found: dict[str, Value] = {item.name: self.array(item) for item in graph.initializer}
        for item in graph.sparse_initializer:
            found[item.values.name] = _dense(item, self)
        return found

    def array(self, item: Any) -> Array:
        """A tensor of the file, memory-mapped where it lies in a file of its own."""
        import onnx

        if item.data_type == onnx.TensorProto.STRING:
            raise GraphError("load(model)", f"constant {item.name!r} holds strings", legal="numbers")
        if item.data_location == onnx.TensorProto.EXTERNAL:
            places = {entry.key: entry.value for entry in item.external_data}
            if self.folder is None:
                problem = f"the data of {item.name!r} lie in a file {places['location']!r}, and bytes have no folder"
                raise StorageError("load(model)", problem, legal="the path of the model")
            path = (self.folder or Path()) / places["location"]
            kind = onnx.helper.tensor_dtype_to_np_dtype(item.data_type)
            shape = tuple(item.dims)
            try:
                resolved = path.resolve(strict=True)
                if not resolved.is_relative_to(self.folder.resolve()):
                    raise StorageError("load(model)", f"{places['location']!r} lies outside the model's folder")
                offset = int(places.get("offset", 0))
                return np.memmap(resolved, kind, "r", offset, shape) if all(shape) else np.empty(shape, kind)
            except (OSError, ValueError) as error:
                problem = f"the data of {item.name!r} cannot be read from {str(path)!r}: {error}"
                raise StorageError("load(model)", problem, legal="the file beside the model") from error
        return read_only(np.asarray(onnx.numpy_helper.to_array(item)))

    def input(self, info: Any, bind: dict[str, Any], used: set[str]) -> Value:
        """The type of an input, or the value that was bound."""
        import onnx

        given = bind.get(info.name)
        if given is not None:
            used.add(info.name)
        if isinstance(given, (np.ndarray, np.generic)):
            return np.asarray(given)
        if isinstance(given, list):
            return [np.asarray(each) for each in given]
        kind = info.type
        if kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        if not kind.HasField("tensor_type"):
            problem = f"input {info.name!r} is no tensor"
            legal = f"bind={{{info.name!r}: [array, ..]}}, its value"
            raise GraphError("load(model)", problem, legal=legal, facts={"input": info.name})
        if kind.tensor_type.elem_type == onnx.TensorProto.STRING:
            raise GraphError("load(model)", f"input {info.name!r} holds strings", legal="numbers")
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
        if given is not None:
            whole = given if isinstance(given, (tuple, list)) else (given,)
            shape = tuple(n if isinstance(n, Dim) else int(n) for n in whole)
        elif not kind.tensor_type.HasField("shape"):
            legal = f"bind={{{info.name!r}: (1, 3, ..)}}"
            raise GraphError("load(model)", f"the shape of input {info.name!r} is unknown", legal=legal)
        else:
            shape = tuple(_extent(dim, info.name, k, bind, used) for k, dim in enumerate(kind.tensor_type.shape.dim))
        return SymbolicType(shape, element_type("load(model)", dtype))

    def entry(self, proto: Any) -> _Entry:
        """A node, its parts as Python values."""
        attributes = {item.name: self.attribute(item) for item in proto.attribute}
        domain, kind = proto.domain, proto.op_type
        convert = converter(domain, kind)
        return _Entry(proto, domain, kind, tuple(proto.input), tuple(proto.output), attributes, convert)

    def run(self, nodes: Iterable[_Entry], values: dict[str, Value], versions: dict[str, int]) -> None:
        """Evaluates nodes in order, adding their outputs to the values."""
        for entry in nodes:
            try:
                inputs = tuple([values[name] if name else None for name in entry.inputs])
            except KeyError as missing:
                what = f"node {name_of(entry.proto)!r} ({entry.kind})"
                problem = f"{what}: no input, constant or earlier node makes {missing.args[0]!r}"
                raise GraphError("load(..)", problem, legal="nodes in the order of their values") from None
            made = self.node(entry, inputs, values, versions)
            values.update([(name, value) for name, value in zip(entry.outputs, made, strict=False) if name])

    def node(
        self, entry: _Entry, inputs: tuple[Value | None, ...], scope: dict[str, Value], versions: dict[str, int]
    ) -> list[Value]:
        """The outputs of one node."""
        proto, kind, attributes, convert = entry.proto, entry.kind, entry.attributes, entry.convert
        local = self.functions.get((entry.domain, kind)) if self.functions else None
        if local is not None:
            return self.function(local, inputs, attributes)
        version = versions.get(entry.domain, versions.get("", 1))

        def run(graph: Any, given: Sequence[Value]) -> list[Value]:
            inner = {**scope, **self.constants(graph)}
            inner |= dict(zip((info.name for info in graph.input), given, strict=True))
            self.run(map(self.entry, graph.node), inner, versions)
            return [inner[info.name] for info in graph.output]

        node = OnnxNode(kind, proto, inputs, attributes, entry.outputs, version, run, self.sources)
        if convert is not None:
            known = kind not in _CAPTURING and not any(isinstance(each, (Tensor, list)) for each in inputs)
            try:
                if convert.__module__.startswith("tileweave."):
                    made = convert(node)
                else:
                    with built_there():
                        made = convert(node)
                results = [folded(each, known) for each in (made if isinstance(made, tuple) else (made,))]
            except TileweaveError as error:
                if error.where.startswith("load(..): node"):
                    raise
                raise node.refuse(f"{error.where}: {error.problem}", error.legal) from error
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise _misfit(node, entry, error) from error  # files are foreign: an index, a shape, what is left out
            return results
        body, defaults = _schema_function(proto, inputs, version)
        if body is None:
            raise _no_operator(proto)
        defaults = {name: self.attribute(item) for name, item in defaults.items()}
        return self.function(body, inputs, defaults | attributes)

    def function(self, body: Any, inputs: tuple[Value | None, ...], attributes: dict[str, Any]) -> list[Value]:
        """The outputs of a function's body."""
        values: dict[str, Value] = dict.fromkeys(body.input)
        values |= dict(zip(body.input, inputs, strict=False))
        defaults = {item.name: self.attribute(item) for item in body.attribute_proto}
        nodes = [self.entry(_with_attributes(node, defaults | attributes)) for node in body.node]
        versions = {entry.domain: entry.version for entry in body.opset_import} or self.versions
        self.run(nodes, values, versions)
        return [values.get(name) for name in body.output]

    def attribute(self, item: Any) -> Any:
        """An attribute as a Python value."""
        import onnx

        if item.type == onnx.AttributeProto.TENSOR:
            return self.array(item.t)
        if item.type == onnx.AttributeProto.SPARSE_TENSOR:
            return _dense(item.sparse_tensor, self)
        return onnx.helper.get_attribute_value(item)


def _settled(
    constant: dict[str, Value], nodes: Sequence[_Entry], inputs: Mapping[str, Value], values: Mapping[str, Value]
) -> tuple[dict[str, Value], list[_Entry]]:
    """The values that depend on constants alone, and the nodes that do not."""
    found = {name: value for name, value in constant.items() if name not in inputs}
    left = []
    for entry in nodes:
        plain = entry.proto.op_type not in _CAPTURING and all(name in found for name in entry.inputs if name)
        if plain and all(isinstance(values.get(name), (np.ndarray, Tensor)) for name in entry.outputs if name):
            found |= {name: values[name] for name in entry.outputs if name}
        else:
            left.append(entry)
    return found, left


def _extent(dim: Any, name: str, axis: int, bind: dict[str, Any], used: set[str]) -> int | Dim:
    """The extent of a dimension; one without a number is symbolic, by its own name or by its input and axis."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    symbol = dim.dim_param
    if symbol in bind:
        used.add(symbol)
        bound = bind[symbol]
        if isinstance(bound, str):
            legal = "a number, tw.dim(..), or a shape for the input"
            raise GraphError("load(model, bind)", f"{symbol}={bound!r} is no extent", legal=legal)
        return bound if isinstance(bound, Dim) else int(bound)
    return Dim(symbol if symbol not in _NAMELESS else f"{name}.{axis}")


def _symbols(graph: Any) -> set[str]:
    return {dim.dim_param for info in graph.input for dim in info.type.tensor_type.shape.dim if dim.dim_param}


def _dense(item: Any, reader: _Reader) -> Array:
    """A sparse constant as an array."""
    values, indices = reader.array(item.values), reader.array(item.indices)
    out = np.zeros(tuple(item.dims), values.dtype)
    if indices.ndim == 1:
        out.reshape(-1)[indices] = values
    else:
        out[tuple(indices.T)] = values
    return out


def _with_attributes(node: Any, attributes: Mapping[str, Any]) -> Any:
    """A node of a function with the caller's attributes in the place of references."""
    import onnx

    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for item in node.attribute:
        if item.ref_attr_name:
            if attributes.get(item.ref_attr_name) is not None:
                value = attributes[item.ref_attr_name]
                value = onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
                made.attribute.append(onnx.helper.make_attribute(item.name, value))
        else:
            kept = made.attribute.add()
            kept.CopyFrom(item)
            if item.HasField("g"):
                nodes = [_with_attributes(inner, attributes) for inner in item.g.node]
                del kept.g.node[:]
                kept.g.node.extend(nodes)
    return made


def _misfit(node: OnnxNode, entry: _Entry, error: Exception) -> GraphError:
    """What a node is refused with whose inputs and attributes its converter cannot work with."""
    given = zip(entry.inputs, node.inputs, strict=True)
    types = {name: getattr(value, "type", None) or short_text(value) for name, value in given if value is not None}
    words = {name: short_text(value) for name, value in entry.attributes.items()}
    problem = f"its inputs and attributes do not fit: {type(error).__name__}: {error}"
    return GraphError(node.where, problem, inputs=types | words, legal="what the operator's specification allows")


def _no_operator(proto: Any) -> GraphError:
    problem = f"there is no operator {proto.domain or 'ai.onnx'}.{proto.op_type}"
    listed = f"{len(OPERATORS)} operators, listed in the documentation"
    return GraphError(f"load(..): node {name_of(proto)!r} ({proto.op_type})", problem, legal=listed)


def _has_body(proto: Any, version: int) -> bool:
    """Whether the operator's schema may define it by others."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(proto.op_type, version, proto.domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _schema_function(proto: Any, inputs: tuple[Value | None, ...], version: int) -> tuple[Any, dict[str, Any]]:
    """The body that the operator's schema defines, or None, and the defaults of its attributes."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(proto.op_type, version, proto.domain)
    except onnx.defs.SchemaError:
        return None, {}
    defaults = {name: item.default_value for name, item in schema.attributes.items() if item.default_value.name}
    if schema.has_function:
        return schema.function_body, defaults
    if schema.has_context_dependent_function:
        types = [_type_bytes(value) for value in inputs]
        body = schema.get_context_dependent_function(proto.SerializeToString(), types)
        return (onnx.FunctionProto.FromString(body) if body else None), defaults
    return None, {}


def _type_bytes(value: Value | None) -> bytes:
    import onnx

    if value is None:
        return bytes(onnx.TypeProto().SerializeToString())
    several = isinstance(value, list)
    one = value[0] if several and value else value
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(getattr(one, "dtype", np.float32)))
    made = onnx.helper.make_tensor_type_proto(kind, None if several else list(one.shape))
    return bytes((onnx.helper.make_sequence_type_proto(made) if several else made).SerializeToString())
