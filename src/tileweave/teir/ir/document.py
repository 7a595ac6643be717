"""Programs as JSON: a canonical writer, and a reader that refuses what is no program with the place and the reason.

The file holds data only; reading it never executes, imports or opens anything. Reading a file that this module wrote
and writing it again gives the same bytes.

Source: own format for the values of TEIR, tables 10.1.1 to 10.3.1.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf
from typing import Any, TypeVar

from tileweave.document import Place, load
from tileweave.errors import VerifyError
from tileweave.teir.ir.dtypes import DTYPES, FACTORS
from tileweave.teir.ir.form import VALUE_DEPTH
from tileweave.teir.ir.program import (
    Axis,
    Entries,
    First,
    Guard,
    Id,
    Invocation,
    Iteration,
    Last,
    Node,
    Primitive,
    Program,
    Scalar,
    TensorSpec,
    Value,
)
from tileweave.teir.ir.verify import verify

FORMAT = "tileweave.teir"
VERSION = 1

T = TypeVar("T")


def to_json(program: Program) -> str:
    """The canonical text of a program, from which `from_json` gives the program back.

    Raises:
        VerifyError: the program cannot be written: a role or a metadata key twice, infinities or NaN; rule ``json``.

    Example:
        >>> from tileweave.teir.ir.program import Program
        >>> from_json(to_json(Program((), (), (), (), ()))) == Program((), (), (), (), ())
        True
    """
    try:
        return "\n".join(_lines(_program_data(program))) + "\n"
    except ValueError as error:
        raise VerifyError("to_json(program)", str(error), facts={"rule": "json", "path": "$"}) from None


def _program_data(program: Program) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": program.name,
        "profile": program.profile,
        "tensors": [_tensor_data(t) for t in program.tensors],
        "axes": [
            {"id": a.id, "extent": a.extent, "strides": list(a.strides), "offsets": list(a.offsets)}
            for a in program.axes
        ],
        "roots": list(program.roots),
        "nodes": [_node_data(node) for node in program.nodes],
        "primitives": [
            {
                "id": p.id,
                "operation": p.operation,
                "axes": {role: list(ids) for role, ids in _once(p, p.axes)},
                "operands": list(p.operands),
                "metadata": _plain(p, Entries(p.metadata)),
            }
            for p in program.primitives
        ],
    }


def _plain(primitive: Primitive, value: Value) -> Any:
    if isinstance(value, Entries):
        return {key: _plain(primitive, one) for key, one in _once(primitive, value.items)}
    return [_plain(primitive, one) for one in value] if isinstance(value, tuple) else value


def _tensor_data(spec: TensorSpec) -> dict[str, Any]:
    fields = {"name": spec.name, "dtype": spec.dtype, "role": spec.role, "size_bytes": spec.size_bytes}
    return fields if spec.shape is None else {**fields, "shape": list(spec.shape)}


def _once(primitive: Primitive, pairs: Sequence[tuple[str, T]]) -> Sequence[tuple[str, T]]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError(f"primitive {primitive.id!r}: the keys {[key for key, _ in pairs]} repeat")
    return pairs


def _node_data(node: Node) -> dict[str, Any]:
    guard = [{"first" if isinstance(t, First) else "last": t.axis} for t in node.guard] or None
    if isinstance(node, Iteration):
        fields: dict[str, Any] = {"axis": node.axis, "policy": node.policy, "children": list(node.children)}
        return {"kind": "iteration", "id": node.id, **fields, "guard": guard}
    return {"kind": "invocation", "id": node.id, "primitive": node.primitive, "guard": guard}


def _lines(data: dict[str, Any]) -> list[str]:
    """The top level one key per line, and lists of records one record per line."""
    lines = ["{"]
    for k, (key, value) in enumerate(data.items()):
        comma = "," if k < len(data) - 1 else ""
        if isinstance(value, list) and value and isinstance(value[0], dict):
            records = [f"    {_flat(item)}{',' if j < len(value) - 1 else ''}" for j, item in enumerate(value)]
            lines += [f"  {_flat(key)}: [", *records, f"  ]{comma}"]
        else:
            lines.append(f"  {_flat(key)}: {_flat(value)}{comma}")
    return [*lines, "}"]


def _flat(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=True)


def from_json(text: str | bytes, *, check: bool = True) -> Program:
    """The program that a JSON text describes.

    Args:
        text: as `to_json` writes it; key order and white space are free.
        check: also `verify` it.

    Raises:
        VerifyError: the text is not JSON, or not of the form that `schema` states: rule ``json``, and ``path`` is the
            place as a JSON path such as ``$.axes[0].extent``. Or a well-formedness rule is broken.
    """
    program = _program(load(text, "a program"))
    if check:
        verify(program)
    return program


def _id(place: Place) -> Id:
    value = place.whole()
    if not isinstance(value, str | int) or isinstance(value, bool):
        place.is_not("a string or an integer")
    return value


def _scalar(place: Place) -> Scalar:
    if not isinstance(place.value, str | int | float) or place.value in (inf, -inf):
        place.is_not("a string, a finite number, true or false")
    return place.value


def _value(place: Place, depth: int = 0) -> Value:
    """A scalar, a list of values, or an object of them."""
    if depth > VALUE_DEPTH:
        place.is_not(f"a value that nests at most {VALUE_DEPTH} deep")
    if isinstance(place.value, list):
        return place.list(lambda item: _value(item, depth + 1))
    if isinstance(place.value, dict):
        return Entries(tuple((key, _value(item, depth + 1)) for key, item in place.entries()))
    return _scalar(place)


def _program(place: Place) -> Program:
    if isinstance(place.value, dict) and "format" not in place.value:
        place.is_not(f'a TEIR program: an object with "format": {json.dumps(FORMAT)}')
    if isinstance(place.value, dict) and place.value["format"] != FORMAT:
        Place("$.format", place.value["format"]).is_not(json.dumps(FORMAT))
    if isinstance(place.value, dict) and "version" in place.value:
        version = place.value["version"]
        if isinstance(version, bool) or version != VERSION:
            Place("$.version", version).is_not(f"version {VERSION}")
    fields = place.record("format", "version", "name", "profile", "tensors", "axes", "roots", "nodes", "primitives")
    return Program(
        tensors=fields["tensors"].list(_tensor),
        axes=fields["axes"].list(_axis),
        roots=fields["roots"].list(_id),
        nodes=fields["nodes"].list(_node),
        primitives=fields["primitives"].list(_primitive),
        profile=fields["profile"].choice("document", "tileweave"),
        name=fields["name"].text(),
    )


def _tensor(place: Place) -> TensorSpec:
    fields = place.record("name", "dtype", "role", "size_bytes", optional=("shape",))
    return TensorSpec(
        fields["name"].text(),
        fields["dtype"].choice(*DTYPES, *FACTORS),
        fields["role"].choice("in", "out", "inout", "scratch"),
        fields["size_bytes"].integer(),
        fields["shape"].list(Place.integer) if "shape" in fields else None,
    )


def _axis(place: Place) -> Axis:
    fields = place.record("id", "extent", "strides", "offsets")
    strides, offsets = fields["strides"].list(Place.integer), fields["offsets"].list(Place.integer)
    return Axis(_id(fields["id"]), fields["extent"].integer(), strides, offsets)


def _node(place: Place) -> Node:
    kind = place.value.get("kind") if isinstance(place.value, dict) else None
    if kind == "invocation":
        fields = place.record("kind", "id", "primitive", "guard", rules={"children": "invocation.no-children"})
        return Invocation(_id(fields["id"]), _id(fields["primitive"]), _guard(fields["guard"]))
    fields = place.record("kind", "id", "axis", "policy", "children", "guard")
    fields["kind"].choice("iteration", "invocation")
    return Iteration(
        _id(fields["id"]),
        _id(fields["axis"]),
        fields["children"].list(_id),
        fields["policy"].text(),
        _guard(fields["guard"]),
    )


def _guard(place: Place) -> Guard:
    return () if place.value is None else place.list(_term)


def _term(place: Place) -> First | Last:
    if isinstance(place.value, dict) and "last" in place.value:
        return Last(_id(place.record("last")["last"]))
    return First(_id(place.record("first")["first"]))


def _primitive(place: Place) -> Primitive:
    fields = place.record("id", "operation", "axes", "operands", "metadata")
    return Primitive(
        _id(fields["id"]),
        fields["operation"].text(),
        tuple((role, ids.list(_id)) for role, ids in fields["axes"].entries()),
        fields["operands"].list(Place.text),
        tuple((key, _value(value)) for key, value in fields["metadata"].entries()),
    )


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the format, as data; it states form, and `verify` states the rules."""
    id_schema = {"type": ["string", "integer"]}
    ids = {"type": "array", "items": id_schema}
    integers = {"type": "array", "items": {"type": "integer"}}
    terms = [_object(first=id_schema), _object(last=id_schema)]
    guard = {"oneOf": [{"type": "null"}, {"type": "array", "items": {"oneOf": terms}}]}
    iteration = _object(
        kind={"const": "iteration"},
        id=id_schema,
        axis=id_schema,
        policy={"type": "string"},
        children=ids,
        guard=guard,
    )
    invocation = _object(kind={"const": "invocation"}, id=id_schema, primitive=id_schema, guard=guard)
    tensor = _object(
        name={"type": "string"},
        dtype={"enum": [*DTYPES, *FACTORS]},
        role={"enum": ["in", "out", "inout", "scratch"]},
        size_bytes={"type": "integer"},
        shape=integers,
    )
    tensor["required"].remove("shape")
    axis = _object(id=id_schema, extent={"type": "integer"}, strides=integers, offsets=integers)
    primitive = _object(
        id=id_schema,
        operation={"type": "string"},
        axes={"type": "object", "additionalProperties": ids},
        operands={"type": "array", "items": {"type": "string"}},
        metadata={"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}},
    )
    program = _object(
        format={"const": FORMAT},
        version={"const": VERSION},
        name={"type": "string"},
        profile={"enum": ["document", "tileweave"]},
        tensors={"type": "array", "items": tensor},
        axes={"type": "array", "items": axis},
        roots=ids,
        nodes={"type": "array", "items": {"oneOf": [iteration, invocation]}},
        primitives={"type": "array", "items": primitive},
    )
    nested = {"$ref": "#/$defs/value"}
    forms = [{"type": ["string", "number", "boolean"]}, {"type": "array", "items": nested}]
    value = {"anyOf": [*forms, {"type": "object", "additionalProperties": nested}]}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "TEIR program",
        "$defs": {"value": value},
    }
    return {**head, **program}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
