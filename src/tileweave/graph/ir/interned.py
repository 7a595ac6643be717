"""One living node for equal parts, and the line of the user's program that first made it.

Source: own.
"""

from __future__ import annotations

import struct
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any


class Interned(type):
    """Builds a node, then returns the living equal one if there is one. The key tells 1, True, 1.0 and -0.0 apart."""

    has_line = False
    """Whether the line that first made a node is kept."""
    _table: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
    _lock = threading.RLock()  # a finaliser may build a node while one is being built

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """The living node that is equal to one of these parts."""
        node = super().__call__(*args, **kwargs)
        names = field_names(cls)
        key = (cls, *[_key(getattr(node, name)) for name in names])
        with Interned._lock:
            found = Interned._table.get(key)
            if found is None:
                found = Interned._table[_shared(node, names, key)] = node
            if cls.has_line and found not in _LINES:
                line = _BUILDING.get()
                _LINES[found] = _user_line() if line is None else line
            return found


_PARTS: dict[Any, tuple[Any, Any]] = {}
"""Key of a part of a node -> it, and the part: a program has many parts that are equal, as types and parameters are."""
KEEP_PARTS = 1 << 10
_EQUAL = "index", "outputs", "parameters", "out", "type"
"""The fields of nodes that are plain values: they keep no tensor alive."""


def _shared(node: Any, names: Sequence[str], key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of a new node; its parts, and those of the node, are those of earlier nodes where they are equal."""
    if len(_PARTS) > KEEP_PARTS:
        _PARTS.clear()
    keys = [key[0]]
    for name, part in zip(names, key[1:], strict=True):
        if type(part) is tuple and part and name in _EQUAL:
            part, value = _PARTS.setdefault(part, (part, getattr(node, name)))
            object.__setattr__(node, name, value)
        keys.append(part)
    return tuple(keys)


_LINES: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Operation -> where the user's program first made it."""
_BUILDING: ContextVar[str | None] = ContextVar("_BUILDING", default=None)
_PACKAGE = str(Path(__file__).parents[2])


def _user_line() -> str:
    """``file:line`` of the innermost frame outside this package."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(node: Any) -> str:
    """``file:line`` of the user's program that made an operation; empty where that is not known."""
    return _LINES.get(node, "")


@contextmanager
def built_for(node: Any) -> Iterator[None]:
    """Operations that are made inside stand for another one, and so have its line."""
    before = _BUILDING.set(line_of(node) or None)
    try:
        yield
    finally:
        _BUILDING.reset(before)


@cache
def field_names(cls: type) -> tuple[str, ...]:
    """The names of a dataclass' fields."""
    return tuple(f.name for f in fields(cls))


_WHOLE, _WORDS = {int}, {str}


def _key(value: Any) -> Any:
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is tuple:
        kinds = set(map(type, value))
        if kinds == _WHOLE:  # such as shapes, which need no keys of their own
            return (int, value)
        return value if kinds == _WORDS else tuple([one if type(one) is str else _key(one) for one in value])
    if kind is float:
        return (float, struct.pack("d", value))
    if type(kind) is Interned:
        return id(value)  # a plain integer keys as (int, value), so the two cannot meet
    return (kind, value)
