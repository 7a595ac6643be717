"""Kernels as JSON, both ways: `from_json(to_json(kernel)) == kernel`, the user's lines included.

One form for every frozen value: ``{"is": class, field: ..}`` without the fields that have their default.
Expressions are tables of nodes, operands first; layouts are lists of iters; infinities and NaN are ``{"is": "float",
"value": "-inf"}``. Reading executes nothing.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tileweave.document import Place, load
from tileweave.errors import TileweaveError, VerifyError
from tileweave.index import Expr, as_expr, symbol
from tileweave.index.expr import CONDITIONS, NUMBERS, node_of
from tileweave.index.expr import walk as nodes_of
from tileweave.index.trees import made
from tileweave.kernel.ir import statements, values
from tileweave.kernel.ir.statements import Candidate, Choice, Grid, Kernel, Statement
from tileweave.kernel.ir.values import KernelTensor, Line, Region, Scalar, Scope
from tileweave.layout import Coord, Iter, Layout
from tileweave.layout.f2.swizzle import Swizzle

FORMAT = "tileweave.kernel"
VERSION = 1

_CLASSES: dict[str, type] = {
    one.__name__.removeprefix("Kernel") or "Kernel": one
    for one in (
        Line, KernelTensor, Region, Scalar, Scope, Swizzle, Candidate, Choice, Grid, Kernel, *get_args(Statement),
    )
}  # fmt: skip
_NAMES = {one: name for name, one in _CLASSES.items()}


def to_json(kernel: Kernel) -> str:
    """The text of a kernel that `from_json` reads."""
    data = {"format": FORMAT, "version": VERSION, "kernel": _data(kernel)}
    return json.dumps(data, indent=1) + "\n"


def _data(value: Any) -> Any:
    if isinstance(value, Expr):
        return {"is": "Expr", "nodes": _expression(value)}
    if isinstance(value, Layout):
        parts = {"shard": value.shard, "replica": value.replica}
        rows = {name: [[_data(it.extent), _coord(it.stride)] for it in part] for name, part in parts.items()}
        return {"is": "Layout", **rows, "offset": _coord(value.offset)}
    if isinstance(value, tuple):
        return [_data(one) for one in value]
    if isinstance(value, float) and not isfinite(value):
        return {"is": "float", "value": repr(value)}
    if type(value) in _NAMES:
        found: dict[str, Any] = {"is": _NAMES[type(value)]}
        for one in fields(value):
            content = getattr(value, one.name)
            if one.default is MISSING or content != one.default:
                found[one.name] = _data(content)
        return found
    return value


def _coord(coord: Coord) -> dict[str, Any]:
    return {axis: _data(value) for axis, value in coord.terms}


def _expression(root: Expr) -> list[list[Any]]:
    order = nodes_of([root], bounds=True)
    row = {node: number for number, node in enumerate(order)}
    rows: list[list[Any]] = []
    for node in order:
        if node.op == "sym":
            name, *bounds = node.args
            rows.append(["sym", name, *(None if b is None else row[b] for b in bounds)])
        elif node.op in ("const", "true"):
            rows.append([node.op, node.args[0]])
        else:
            rows.append([node.op, *(row[part] for part in node.args)])
    return rows


def from_json(text: str) -> Kernel:
    """The kernel that a text of `to_json` denotes.

    Raises:
        VerifyError: the text is no kernel; rule ``json``, with the place. The kernel itself is not verified: `verify`
            does that.
    """
    whole = load(text, "a kernel of a usual depth").record("format", "version", "kernel")
    whole["format"].choice(FORMAT)
    if whole["version"].integer() != VERSION:
        whole["version"].is_not(f"version {VERSION}")
    try:
        kernel = _value(whole["kernel"])
    except RecursionError:
        whole["kernel"].refuse("it nests too deeply", "what to_json wrote")
    return kernel if isinstance(kernel, Kernel) else whole["kernel"].is_not("a kernel")


def _value(place: Place) -> Any:
    data = place.value
    if isinstance(data, list):
        return place.list(_value)
    if not isinstance(data, dict):
        return data
    fields_of = dict(place.entries())
    if "is" not in fields_of:
        place.is_not('a value with its kind, {"is": ..}')
    name = fields_of.pop("is").choice("Expr", "Layout", "float", *_CLASSES)
    try:
        if name == "float":
            return float(place.record("is", "value")["value"].choice("inf", "-inf", "nan"))
        if name == "Expr":
            return _read_expression(place.record("is", "nodes")["nodes"])
        if name == "Layout":
            parts = place.record("is", "shard", "replica", "offset")
            shard, replica = (
                tuple(Iter(_value(extent), _read_coord(stride)) for extent, stride in parts[part].pairs())
                for part in ("shard", "replica")
            )
            return Layout(shard, replica, _read_coord(parts["offset"]))
        known = _CLASSES[name]
        given = {key: _value(one) for key, one in fields_of.items()}
        hints = _hints(known)
        for key, one in given.items():
            if key in hints and not _fits(one, hints[key]):
                fields_of[key].is_not(f"{name}.{key}")
        return known(**given)
    except VerifyError:
        raise
    except (TypeError, ValueError, AttributeError, TileweaveError) as error:
        place.refuse(f"no {name}: {str(error).splitlines()[0]}", "what to_json wrote")


@cache
def _hints(known: type) -> dict[str, Any]:
    return get_type_hints(known, vars(statements) | vars(values))


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in parts)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if parts[-1:] == (...,):
            return all(_fits(one, parts[0]) for one in value)
        return len(value) == len(parts) and all(map(_fits, value, parts))
    if hint is float:
        return type(value) in (float, int)
    if hint is int:
        return type(value) is int and abs(value) < 1 << 62
    return isinstance(value, hint) if isinstance(hint, type) else value is hint


def _read_coord(place: Place) -> Coord:
    return Coord(tuple((axis, _value(one)) for axis, one in place.entries()))


def _read_expression(place: Place) -> Expr:
    nodes: list[Expr] = []

    def node(part: Place) -> Expr:
        number = part.integer()
        return nodes[number] if 0 <= number < len(nodes) else part.is_not("the number of a node before")

    for row in place.items():
        head, *rest = row.items() or (row,)
        op = head.choice(*NUMBERS, *CONDITIONS)
        wanted = {"sym": 4, "const": 1, "true": 1}.get(op, len(rest))
        if len(rest) != wanted:
            row.is_not(f"a node of {wanted} parts")
        if op == "sym":
            low, high, step = (None if part.value is None else node(part) for part in rest[1:])
            nodes.append(symbol(rest[0].text(), low, high, multiple_of=1 if step is None else step))
        elif op == "const":
            nodes.append(as_expr(rest[0].integer()))
        elif op == "true":
            nodes.append(node_of("true", (bool(rest[0].value),)))
        else:
            nodes.append(made(op, [node(part) for part in rest]))
    return nodes[-1] if nodes else place.is_not("a table of nodes")
