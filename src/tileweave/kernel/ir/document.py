"""Kernels as JSON, both ways: `from_json(to_json(kernel)) == kernel`, the user's lines included.

One form for every frozen value: ``{"is": class, field: ..}`` without the fields that have their default.
Expressions are tables of nodes, operands first; layouts are lists of iters. Reading executes nothing.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tileweave.errors import TileweaveError, VerifyError
from tileweave.index import Expr, as_expr, symbol
from tileweave.index.expr import CONDITIONS, NUMBERS, node_of
from tileweave.index.expr import walk as nodes_of
from tileweave.index.trees import made
from tileweave.kernel.ir import statements, values
from tileweave.kernel.ir.statements import Candidate, Choice, Grid, Kernel, Statement
from tileweave.kernel.ir.values import Line, Region, Scalar, Scope, Tensor
from tileweave.layout import Coord, Iter, Layout
from tileweave.layout.f2.swizzle import Swizzle

FORMAT = "tileweave.kernel"
VERSION = 1

_CLASSES: dict[str, type] = {
    one.__name__: one
    for one in (
        Line, Tensor, Region, Scalar, Scope, Swizzle, Candidate, Choice, Grid, Kernel, *get_args(Statement),
    )
}  # fmt: skip


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
    if type(value).__name__ in _CLASSES:
        found: dict[str, Any] = {"is": type(value).__name__}
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
        VerifyError: the text is no kernel; rule ``json``. The kernel itself is not verified: `verify` does that.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _refused(f"no JSON: {error}", "$") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        raise _refused(f"no document of {FORMAT}, version {VERSION}", "$")
    kernel = _value(data.get("kernel"), "$.kernel")
    if not isinstance(kernel, Kernel):
        raise _refused("no kernel", "$.kernel")
    return kernel


def _refused(problem: str, path: str) -> VerifyError:
    return VerifyError(
        "from_json(text)", f"{problem} at {path}", legal="what to_json wrote", facts={"rule": "json", "path": path}
    )


def _value(data: Any, path: str) -> Any:
    if isinstance(data, list):
        return tuple(_value(one, f"{path}[{number}]") for number, one in enumerate(data))
    if not isinstance(data, dict):
        return data
    name = data.get("is")
    try:
        if name == "Expr":
            return _read_expression(data["nodes"])
        if name == "Layout":
            shard, replica = (
                tuple(Iter(_value(extent, path), _read_coord(stride, path)) for extent, stride in data[part])
                for part in ("shard", "replica")
            )
            return Layout(shard, replica, _read_coord(data["offset"], path))
        known = _CLASSES.get(name) if isinstance(name, str) else None
        if known is None:
            raise _refused(f"{name!r} is no kind of value", path)
        given = {key: _value(one, f"{path}.{key}") for key, one in data.items() if key != "is"}
        hints = _hints(known)
        for key, one in given.items():
            if key in hints and not _fits(one, hints[key]):
                raise _refused(f"{name}.{key} is a {type(one).__name__} ({one!r})", path)
        return known(**given)
    except VerifyError:
        raise
    except (TypeError, KeyError, IndexError, ValueError, AttributeError, TileweaveError) as error:
        raise _refused(f"{name} cannot be made ({str(error).splitlines()[0]})", path) from None


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


def _read_coord(data: dict[str, Any], path: str) -> Coord:
    return Coord(tuple((axis, _value(value, path)) for axis, value in data.items()))


def _read_expression(rows: list[list[Any]]) -> Expr:
    nodes: list[Expr] = []
    for op, *args in rows:
        ends = args if op not in ("sym", "const", "true") else args[1:] if op == "sym" else []
        if op not in (*NUMBERS, *CONDITIONS) or any(b is not None and not 0 <= b < len(nodes) for b in ends):
            raise ValueError(f"{op!r} of {args} is no node")
        if op == "sym":
            name, low, high, step = args
            bounds = (None if b is None else nodes[b] for b in (low, high))
            nodes.append(symbol(name, *bounds, multiple_of=1 if step is None else nodes[step]))
        elif op == "const":
            nodes.append(as_expr(args[0]))
        elif op == "true":
            nodes.append(node_of("true", (bool(args[0]),)))
        else:
            nodes.append(made(op, [nodes[part] for part in args]))
    return nodes[-1]
