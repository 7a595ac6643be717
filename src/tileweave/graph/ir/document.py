"""Graphs as JSON: one object per node in topological order, with stable ids; reading gives back the same document.

Arrays in memory are written into the document as base64 of their .npy form, or left out; what was left out is read
as a source without data, one for each array. Numbers that JSON lacks are written as objects: ``{"float": "nan"}``.

Source: own; the idea of one flat list of nodes with ids is Tapestry's.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np

from tileweave.document import Place, load
from tileweave.errors import TileweaveError, VerifyError
from tileweave.graph.ir.dtypes import is_narrow, narrow_type, supported
from tileweave.graph.ir.nodes import (
    ArrayData,
    FileData,
    FileTarget,
    Graph,
    Hole,
    MemoryTarget,
    Node,
    Operation,
    Selector,
    SequencePoint,
    Signature,
    Sink,
    SinkPart,
    Source,
    Tensor,
    TensorType,
    Value,
)
from tileweave.space import AffineMap, Box, Projection

FORMAT, VERSION = "tileweave.graph", 1

_LETTERS: dict[type[Node], str] = {
    Source: "source",
    Selector: "selector",
    Operation: "operation",
    Tensor: "t",
    Signature: "signature",
    Sink: "sink",
    SequencePoint: "point",
}


# ---------------------------------------------------------------------------------------------------------------------
# writing


_BITS = {1: np.uint8, 2: np.uint16}
"""Bytes of an element -> the type as which .npy has what it does not know."""


def to_json(graph: Graph, *, arrays: Literal["inline", "omit"] = "inline") -> str:
    """The graph as a JSON text, one node per line; the same graph gives the same text.

    Args:
        graph: any graph.
        arrays: whether the arrays of sources in memory are written into the text, or left out.

    Example:
        >>> from tileweave.graph import add, from_json
        >>> text = to_json(Graph.of(add(np.ones(3), 1.0)))
        >>> to_json(from_json(text)) == text
        True
    """
    nodes = [node for node in graph.nodes() if not isinstance(node, Graph)]
    counts: dict[str, int] = {}
    names: dict[Node, str] = {}
    for node in nodes:
        letter = _LETTERS[type(node)]
        names[node] = f"{letter}{counts.setdefault(letter, 0)}"
        counts[letter] += 1
    keys = _keys(nodes, names) if arrays == "omit" else {}
    lines = [
        json.dumps({"id": names[node], **_node_data(node, names, keys)}, allow_nan=False, ensure_ascii=False)
        for node in nodes
    ]
    observed = json.dumps([names[point] for point in graph.points])
    body = ",\n    ".join(lines)
    head = f'{{\n  "format": "{FORMAT}",\n  "version": {VERSION},\n'
    return f'{head}  "nodes": [\n    {body}\n  ],\n  "observe": {observed}\n}}\n'


def _keys(nodes: Sequence[Node], names: dict[Node, str]) -> dict[Node, str]:
    """A key for every array that is left out, so that sources which look alike stay apart: the source's own id."""
    taken = {node.data.key for node in nodes if isinstance(node, Source) and isinstance(node.data, Hole)}
    keys: dict[Node, str] = {}
    for node in nodes:
        if isinstance(node, Source) and isinstance(node.data, ArrayData):
            key = names[node]
            while key in taken:
                key += "'"
            taken.add(key)
            keys[node] = key
    return keys


def _node_data(node: Node, names: dict[Node, str], keys: dict[Node, str]) -> dict[str, Any]:
    match node:
        case Tensor():
            return {"kind": "tensor", "producer": names[node.producer], "output": node.output}
        case Source():
            data = {"kind": "source", "name": node.name, "type": _type_data(node.type), "data": _data(node, keys)}
            return data | {"placement": node.placement}
        case Selector():
            return {
                "kind": "selector",
                "selector": node.kind,
                "inputs": [[name, names[x]] for name, x in node.inputs],
                "type": _type_data(node.out),
                "parameters": _parameters_data(node.parameters),
            }
        case Operation():
            return {
                "kind": "operation",
                "operator": node.operator,
                "index": {"start": node.index.start, "shape": node.index.shape},
                "inputs": [[name, names[x]] for name, x in node.inputs],
                "outputs": [[name, _type_data(kind)] for name, kind in node.outputs],
                "parameters": _parameters_data(node.parameters),
                "signature": names[node.signature] if node.signature is not None else None,
                "after": [names[point] for point in node.after],
            }
        case Signature():
            return {
                "kind": "signature",
                "dims": node.dims,
                "inputs": [[name, _projection_data(p)] for name, p in node.inputs],
                "outputs": [[name, _projection_data(p)] for name, p in node.outputs],
                "reductions": [[dim, monoid] for dim, monoid in node.reductions],
                "costs": [[resource, _value_data(amount)] for resource, amount in node.costs],
            }
        case Sink():
            sink = {"kind": "sink", "tensor": names[node.tensor], "target": _target_data(node)}
            return sink | {"placement": node.placement} | _part_data(node.part)
        case SequencePoint():
            return {"kind": "point", "before": [names[item] for item in node.before]}
        case _:
            raise VerifyError("to_json(graph)", f"{node!r} is no node of a document", facts={"rule": "json"})


def _type_data(kind: TensorType) -> dict[str, Any]:
    return {"dtype": kind.dtype.name, "shape": kind.shape}


def _data(node: Source, keys: dict[Node, str]) -> dict[str, Any]:
    match node.data:
        case ArrayData() if node in keys:
            return {"kind": "none", "key": keys[node]}
        case ArrayData(array) if supported(array.dtype):
            array = array.view(_BITS[array.itemsize]) if is_narrow(array.dtype) else array  # .npy knows none of them
            buffer = io.BytesIO()
            np.save(buffer, np.ascontiguousarray(array) if array.ndim else array, allow_pickle=False)
            return {"kind": "array", "npy": base64.b64encode(buffer.getvalue()).decode("ascii")}
        case FileData(path, format, key):
            return {"kind": "file", "path": path, "format": format, "key": key}
        case ArrayData(array):
            raise VerifyError(
                "to_json(graph)",
                f"element type {array.dtype} is not supported",
                legal='arrays="omit", or bool, integers, floats',
                facts={"rule": "json"},
            )
        case Hole(key):
            return {"kind": "none", "key": key} if key else {"kind": "none"}


def _target_data(node: Sink) -> dict[str, Any]:
    if isinstance(node.target, FileTarget):
        target = node.target
        data = {"kind": "file", "path": target.path, "format": target.format, "key": target.key}
        return data | {"overwrite": target.overwrite} | ({"grid": target.grid} if target.grid else {})
    return {"kind": "memory"}


def _part_data(part: SinkPart | None) -> dict[str, Any]:
    return {} if part is None else {"part": {"start": part.box.start, "shape": part.box.shape, "of": part.shape}}


def _projection_data(projection: Projection) -> dict[str, Any]:
    map = projection.map
    return {
        "matrix": map.matrix,
        "offset": map.offset,
        "inputs": map.inputs,
        "shape": projection.shape,
        "stride": projection.stride,
    }


def _parameters_data(parameters: tuple[tuple[str, Value], ...]) -> list[list[Any]]:
    return [[name, _value_data(value)] for name, value in parameters]


def _value_data(value: Value) -> Any:
    if isinstance(value, tuple):
        return [_value_data(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


# ---------------------------------------------------------------------------------------------------------------------
# reading


def read(text: str | bytes) -> tuple[Graph, dict[Node, str]]:
    """The graph of a document, and the place of each of its nodes in it; `from_json` also holds it to the rules.

    Raises:
        VerifyError: the text is not JSON, a field is missing, unknown or of another kind, or a node refers to one that
            comes later (which excludes cycles). ``path`` says where.
    """
    place = load(text, "a graph")
    data = place.value
    if isinstance(data, dict) and (data.get("format", FORMAT), data.get("version", VERSION)) != (FORMAT, VERSION):
        format, version = (Place("$", data.get(key)).shown() for key in ("format", "version"))
        found = f"its format is {format}, version {version}"
        place.refuse(found, f'"format": "{FORMAT}", "version": {VERSION}')
    fields = place.record("format", "version", "nodes", "observe")
    made: dict[str, Node] = {}
    places: dict[Node, str] = {}
    for item in fields["nodes"].items():
        try:
            name, node = _node(item, made)
        except RecursionError:
            item.refuse("values are nested too deep")
        if name in made:
            Place(f"{item.path}.id", None).refuse(f"two nodes have the id {name!r}", "each id once")
        made[name] = node
        places.setdefault(node, item.path)
    points = [_reference(item, made, SequencePoint) for item in fields["observe"].items()]
    return Graph(tuple(cast("list[SequencePoint]", points))), places


def _plain(place: Place) -> Value:
    """A plain value: null, bool, number, text, or a list of such."""
    if isinstance(place.value, list):
        return place.list(_plain)
    if isinstance(place.value, dict):
        return float(place.record("float")["float"].choice("nan", "inf", "-inf"))
    return cast("Value", place.value)


def _node(place: Place, made: dict[str, Node]) -> tuple[str, Node]:
    if not isinstance(place.value, dict) or not isinstance(place.value.get("kind"), str):
        place.refuse("a node without a kind", ", ".join(_READERS))
    kind = place.value["kind"]
    if kind not in _READERS:
        Place(f"{place.path}.kind", None).refuse(f"{kind!r} is unknown", ", ".join(_READERS))
    fields, reader = _READERS[kind]
    got = place.record("id", "kind", *fields, optional=_OPTIONAL.get(kind, ()))
    try:
        return got["id"].text(), reader(got, made)
    except VerifyError:
        raise
    except TileweaveError as error:
        place.refuse(str(error).splitlines()[0])


def _reference(place: Place, made: dict[str, Node], *kinds: type[Node]) -> Any:
    name = place.text()
    if name not in made:
        place.refuse(f"there is no node {name!r} before this one", "the id of an earlier node")
    if not isinstance(made[name], kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        place.refuse(f"node {name!r} is a {type(made[name]).__name__}", wanted)
    return made[name]


def _type(place: Place) -> TensorType:
    fields = place.record("dtype", "shape")
    dtype = _dtype(fields["dtype"])
    shape = fields["shape"].integers()
    if any(n < 0 for n in shape):
        fields["shape"].refuse(f"{list(shape)} has a negative extent")
    return TensorType(shape, dtype)


def _dtype(place: Place) -> np.dtype[Any]:
    name = place.text()
    try:
        dtype: np.dtype[Any] = narrow_type(name) or np.dtype(name)
    except (TypeError, ValueError):
        dtype = np.dtype(np.void)
    if dtype.name != name or not supported(dtype):
        place.refuse(f"{name!r} is not an element type", "bool, int8, .., uint64, float16, .., float64, bfloat16")
    return dtype


def _inputs(place: Place, made: dict[str, Node]) -> tuple[tuple[str, Tensor], ...]:
    return tuple((name.text(), _reference(x, made, Tensor)) for name, x in place.pairs())


def _parameters(place: Place) -> tuple[tuple[str, Value], ...]:
    return tuple((name.text(), _plain(value)) for name, value in place.pairs())


def _optional(place: Place) -> int | None:
    return None if place.value is None else place.integer()


def _read_tensor(got: dict[str, Place], made: dict[str, Node]) -> Node:
    return Tensor(_reference(got["producer"], made, Source, Selector, Operation), got["output"].text())


def _read_source(got: dict[str, Place], made: dict[str, Node]) -> Node:
    kind = _type(got["type"])
    data = got["data"]
    what = data.value.get("kind") if isinstance(data.value, dict) else None
    held: ArrayData | FileData | Hole
    if what == "array":
        held = ArrayData(_array(data.record("kind", "npy")["npy"], kind.dtype))
    elif what == "file":
        file = data.record("kind", "path", "format", "key")
        held = FileData(file["path"].text(), file["format"].text(), file["key"].text())
    elif what == "none":
        keyed = data.record("kind", optional=("key",))
        held = Hole(keyed["key"].text() if "key" in keyed else "")
    else:
        data.refuse(f"{data.shown()} is no data of a source", "array, file, none")
    return Source(held, kind, got["name"].text(), _optional(got["placement"]))


def _array(place: Place, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        raw = base64.b64decode(place.text(), validate=True)
        array = cast("np.ndarray[Any, Any]", np.load(io.BytesIO(raw), allow_pickle=False))
    except (ValueError, EOFError, OSError):
        place.refuse("not the base64 of an .npy file")
    return array.view(dtype) if is_narrow(dtype) and array.dtype == _BITS[dtype.itemsize] else array


def _read_selector(got: dict[str, Place], made: dict[str, Node]) -> Node:
    inputs = _inputs(got["inputs"], made)
    return Selector(got["selector"].text(), inputs, _type(got["type"]), _parameters(got["parameters"]))


def _read_operation(got: dict[str, Place], made: dict[str, Node]) -> Node:
    index = got["index"].record("start", "shape")
    signature = None if got["signature"].value is None else _reference(got["signature"], made, Signature)
    return Operation(
        got["operator"].text(),
        Box(index["start"].integers(), index["shape"].integers()),
        _inputs(got["inputs"], made),
        tuple((name.text(), _type(kind)) for name, kind in got["outputs"].pairs()),
        _parameters(got["parameters"]),
        signature,
        tuple(_reference(item, made, SequencePoint) for item in got["after"].items()),
    )


def _projection(place: Place) -> Projection:
    got = place.record("matrix", "offset", "inputs", "shape", "stride")
    rows = tuple(row.integers() for row in got["matrix"].items())
    map = AffineMap(rows, got["offset"].integers(), got["inputs"].integer())
    return Projection(map, got["shape"].integers(), got["stride"].integers())


def _read_signature(got: dict[str, Place], made: dict[str, Node]) -> Node:
    costs = []
    for name, amount in got["costs"].pairs():
        value = _plain(amount)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            amount.refuse(f"{amount.shown()} is not a number")
        costs.append((name.text(), value))
    return Signature(
        tuple(item.text() for item in got["dims"].items()),
        tuple((name.text(), _projection(p)) for name, p in got["inputs"].pairs()),
        tuple((name.text(), _projection(p)) for name, p in got["outputs"].pairs()),
        tuple((dim.integer(), monoid.text()) for dim, monoid in got["reductions"].pairs()),
        tuple(costs),
    )


def _read_sink(got: dict[str, Place], made: dict[str, Node]) -> Node:
    target = got["target"]
    what = target.value.get("kind") if isinstance(target.value, dict) else None
    where: MemoryTarget | FileTarget
    if what == "file":
        file = target.record("kind", "path", "format", "key", "overwrite", optional=("grid",))
        if not isinstance(file["overwrite"].value, bool):
            file["overwrite"].refuse(f"{file['overwrite'].shown()} is not true or false")
        grid = tuple(item.integers() for item in file["grid"].items()) if "grid" in file else ()
        path, format, key = (file[name].text() for name in ("path", "format", "key"))
        where = FileTarget(path, format, key, file["overwrite"].value, grid)
    elif what == "memory":
        target.record("kind")
        where = MemoryTarget()
    else:
        target.refuse(f"{target.shown()} is no target of a sink", "file, memory")
    part = _part(got["part"]) if "part" in got else None
    return Sink(_reference(got["tensor"], made, Tensor), where, _optional(got["placement"]), part)


def _part(place: Place) -> SinkPart:
    got = place.record("start", "shape", "of")
    return SinkPart(Box(got["start"].integers(), got["shape"].integers()), got["of"].integers())


def _read_point(got: dict[str, Place], made: dict[str, Node]) -> Node:
    return SequencePoint(tuple(_reference(item, made, Operation, Sink) for item in got["before"].items()))


_Reader = Callable[[dict[str, Place], dict[str, Node]], Node]
_READERS: dict[str, tuple[tuple[str, ...], _Reader]] = {
    "source": (("name", "type", "data", "placement"), _read_source),
    "tensor": (("producer", "output"), _read_tensor),
    "selector": (("selector", "inputs", "type", "parameters"), _read_selector),
    "signature": (("dims", "inputs", "outputs", "reductions", "costs"), _read_signature),
    "operation": (
        ("operator", "index", "inputs", "outputs", "parameters", "signature", "after"),
        _read_operation,
    ),
    "sink": (("tensor", "target", "placement"), _read_sink),
    "point": (("before",), _read_point),
}
"""Kind of a node -> its fields beside id and kind, and what reads them."""

_OPTIONAL = {"sink": ("part",)}
"""Kind of a node -> the fields that it may have beyond these."""
