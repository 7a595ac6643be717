"""One living node for equal parts, and the line of the user's program that first made it.

Source: own.
"""

from __future__ import annotations

import contextlib
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from tileweave.kept import lock_of_process


class Interned(type):
    """Returns the living node of equal parts, or builds it. The key tells 1, True, 1.0 and -0.0 apart."""

    has_line = False
    """Whether the line that first made a node is kept."""
    _lock = lock_of_process(threading.RLock)  # a finaliser may build a node while one is being built

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """The living node that is equal to one of these parts."""
        layout = _layout(cls)
        try:
            if kwargs or len(args) != layout.count:
                rest = None if kwargs else layout.rest.get(len(args))
                args = layout.whole(args, kwargs) if rest is None else args + rest
            key = cls._key(args)
            kept = _TABLE.get(key)
        except TypeError:  # parts that are none: building says what is wrong with them
            super().__call__(*args, **kwargs)
            raise
        if kept is not None and (found := kept()) is not None:
            return found
        node: Any = _new(cls)
        layout.put(node, *args)
        if layout.equal:
            key = _shared(node, key, layout)
        if cls.has_line:
            line = _BUILDING.get()
            _put_line(node, _user_line() if line is None else line)
        made = _Kept(node, _gone)
        made.key = key
        with Interned._lock:
            kept = _TABLE.setdefault(key, made)
            found = node if kept is made else kept()
            if found is None:  # it is no more, and not taken out yet
                _TABLE[key] = made
        return node if found is None else found  # perhaps another thread's

    def _key(cls, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """The class, and a key per part; parts are kept as they are given."""
        return (cls, *map(key_of, parts))


_TABLE: dict[Any, _Kept] = {}
"""Every living node by its key."""
_new: Any = object.__new__


class Lined(metaclass=Interned):
    """What has a place for the line of the user's program that made it: `line_of`."""

    __slots__ = ("_line",)


_put_line = vars(Lined)["_line"].__set__


@dataclass(frozen=True, slots=True)
class _Layout:
    """What there is to know of a class of nodes.

    A ``__post_init__`` looks at parts that have no key, and makes no others of them: what it passes is refused.

    Args:
        names: of its fields.
        count: how many these are.
        put: sets all of them.
        defaults: field -> its default, where it has one.
        rest: number of parts that are given in order -> the defaults of the others, where they have them.
        equal: place in the key, name and setter of the fields that are plain values.
    """

    names: tuple[str, ...]
    count: int
    put: Callable[..., None]
    defaults: dict[str, Any]
    rest: dict[int, tuple[Any, ...]]
    equal: tuple[tuple[int, str, Callable[[Any, Any], None]], ...]

    def whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The parts in order; a TypeError where arguments do not fit."""
        given = {**self.defaults, **dict(zip(self.names, args, strict=False)), **kwargs}
        if len(given) != len(self.names) or len(args) > len(self.names) or kwargs.keys() & set(self.names[: len(args)]):
            raise TypeError
        return tuple([given[name] for name in self.names])


@cache
def _layout(cls: type) -> _Layout:
    names = field_names(cls)
    setters = {f"_{name}": getattr(cls, name).__set__ for name in names}
    lines = [f"  _{name}(node, {name})" for name in names]  # a loop over them takes twice as long
    exec(f"def put(node, {', '.join(names)}):\n" + "\n".join(lines), setters)
    defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    least = len(names) - len(defaults)
    rest = {count: tuple(defaults[name] for name in names[count:]) for count in range(least, len(names) + 1)}
    equal = tuple((place + 1, name, setters[f"_{name}"]) for place, name in enumerate(names) if name in _EQUAL)
    return _Layout(names, len(names), setters["put"], defaults, rest, equal)


class _Kept(weakref.ref[Any]):
    """A node in the table, and its key there."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


def _gone(kept: _Kept) -> None:
    """Takes a node that is no more out of the table, where no other one has its place yet."""
    key = kept.key
    with Interned._lock:
        other = _TABLE.pop(key, None)
        if other is not kept and other is not None:
            _TABLE[key] = other


_PARTS: dict[Any, tuple[Any, Any]] = {}
"""Key of a part of a node -> it, and the part: a program has many parts that are equal, as types and parameters are."""
KEEP_PARTS = 1 << 10
_EQUAL = "index", "outputs", "parameters", "out", "type"
"""The fields of nodes that are plain values: they keep no tensor alive."""


def _shared(node: Any, key: tuple[Any, ...], layout: _Layout) -> tuple[Any, ...]:
    """The key of a new node; its parts, and those of the node, are those of earlier nodes where they are equal."""
    if len(_PARTS) > KEEP_PARTS:
        _PARTS.clear()
    keys = None
    for place, name, put in layout.equal:
        part = key[place]
        if part:
            value = getattr(node, name)
            known = _PARTS.setdefault(part, (part, value))
            if known[1] is not value:
                put(node, known[1])
                keys = keys or list(key)
                keys[place] = known[0]
    return key if keys is None else tuple(keys)


_BUILDING: ContextVar[str | None] = ContextVar("_BUILDING", default=None)
_PACKAGE = str(Path(__file__).parents[2])


def _user_line() -> str:
    """``file:line`` of the innermost frame outside this package."""
    frame: Any = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE) or frame.f_code.co_filename == contextlib.__file__
    ):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of(node: Any) -> str:
    """``file:line`` of the user's program that made an operation; empty where that is not known."""
    return getattr(node, "_line", "")


@contextmanager
def _having(line: str | None) -> Iterator[None]:
    """Operations that are made inside have this line; None: their own."""
    before = _BUILDING.set(line)
    try:
        yield
    finally:
        _BUILDING.reset(before)


def built_for(node: Any) -> AbstractContextManager[None]:
    """Operations that are made inside stand for another one, and so have its line."""
    return _having(line_of(node) or None)


def built_here() -> AbstractContextManager[None]:
    """Operations that are made inside, by no code of the user's, have the line that they would have here."""
    return _having(_user_line() if _BUILDING.get() is None else _BUILDING.get())


def built_there() -> AbstractContextManager[None]:
    """Operations that are made inside, by code of the user's, have their own lines, also within `built_here`."""
    return _having(None)


@cache
def field_names(cls: type) -> tuple[str, ...]:
    """The names of a dataclass' fields."""
    return tuple(f.name for f in fields(cls))


_WHOLE, _WORDS, _ROWS = {int}, {str}, {tuple}
KEYS: dict[type, Callable[[Any], Any]] = {}
"""Type of plain values that nodes have many of -> the key of one."""


def key_of(value: Any) -> Any:
    """The key of a part of a node: hashable, without a node, equal for equal parts of equal types only."""
    kind = type(value)
    if kind is str or value is None:
        return value
    if kind is tuple:
        kinds = set(map(type, value))
        if kinds == _WHOLE or (kinds == _ROWS and set(map(type, chain.from_iterable(value))) <= _WHOLE):
            return (int, value)  # such as shapes and matrices, which need no keys of their own
        return value if kinds <= _WORDS else tuple([one if type(one) is str else key_of(one) for one in value])
    if kind is float:
        return (float, struct.pack("d", value))
    if type(kind) is Interned:
        return id(value)  # a plain integer keys as (int, value), so the two cannot meet
    return KEYS[kind](value) if kind in KEYS else (kind, value)


def pairs_key(pairs: Any) -> Any:
    """The same as `key_of`, sooner, of pairs of a name and a value."""
    if type(pairs) is not tuple:
        return key_of(pairs)
    keys = []
    for pair in pairs:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str:
            return key_of(pairs)
        name, value = pair
        kind = type(value)
        if type(kind) is Interned:
            keys.append((name, id(value)))
        elif kind is str:
            keys.append(pair)
        else:
            keys.append((name, KEYS[kind](value) if kind in KEYS else key_of(value)))
    return tuple(keys)
