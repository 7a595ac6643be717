"""A JSON Schema of the documents of graphs, written apart from what reads and writes them."""

from __future__ import annotations

from typing import Any

from tileweave.graph.ir.document import FORMAT, VERSION


def schema() -> dict[str, Any]:
    """The JSON Schema of a document (draft 2020-12): its forms; `from_json` checks references and rules, too."""
    text = {"type": "string"}
    extents = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    integers = {"type": "array", "items": {"type": "integer"}}
    placement = {"type": ["integer", "null"]}
    type_ = _object(dtype=text, shape=extents)
    projection = _object(
        matrix={"type": "array", "items": integers},
        offset=integers,
        inputs={"type": "integer"},
        shape=extents,
        stride=integers,
    )
    value = {"$ref": "#/$defs/value"}
    file = {"path": text, "format": text, "key": text}
    data = [
        _object(kind={"const": "array"}, npy=text),
        _object(kind={"const": "file"}, **file),
        _object(kind={"const": "none"}),
        _object(kind={"const": "none"}, key=text),
    ]
    target = [
        _object(kind={"const": "file"}, **file, overwrite={"type": "boolean"}),
        _object(kind={"const": "file"}, **file, overwrite={"type": "boolean"}, grid=_list(_list({"type": "integer"}))),
        _object(kind={"const": "memory"}),
    ]
    fields: dict[str, dict[str, Any]] = {
        "source": {"name": text, "type": type_, "data": {"oneOf": data}, "placement": placement},
        "tensor": {"producer": text, "output": text},
        "selector": {"selector": text, "inputs": _pairs(text), "type": type_, "parameters": _pairs(value)},
        "signature": {
            "dims": _list(text),
            "inputs": _pairs(projection),
            "outputs": _pairs(projection),
            "reductions": {"type": "array", "items": _tuple({"type": "integer"}, text)},
            "costs": _pairs({"anyOf": [{"type": "number"}, {"$ref": "#/$defs/special"}]}),
        },
        "operation": {
            "operator": text,
            "index": _object(start=integers, shape=extents),
            "inputs": _pairs(text),
            "outputs": _pairs(type_),
            "parameters": _pairs(value),
            "signature": {"type": ["string", "null"]},
            "after": _list(text),
        },
        "sink": {"tensor": text, "target": {"oneOf": target}, "placement": placement},
        "point": {"before": _list(text)},
    }
    part = _object(start=integers, shape=extents, of=extents)
    forms = [*fields.items(), ("sink", fields["sink"] | {"part": part})]
    nodes = [_object(id=text, kind={"const": kind}, **own) for kind, own in forms]
    special = _object(float={"enum": ["nan", "inf", "-inf"]})
    plain = [{"type": ["null", "boolean", "number", "string"]}, {"$ref": "#/$defs/special"}, _list(value)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tileweave graph",
        **_object(
            format={"const": FORMAT}, version={"const": VERSION}, nodes=_list({"oneOf": nodes}), observe=_list(text)
        ),
        "$defs": {"value": {"anyOf": plain}, "special": special},
    }


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _tuple(*items: Any) -> dict[str, Any]:
    return {"type": "array", "prefixItems": list(items), "minItems": len(items), "maxItems": len(items)}


def _pairs(value: Any) -> dict[str, Any]:
    return {"type": "array", "items": _tuple({"type": "string"}, value)}
