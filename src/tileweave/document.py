"""JSON documents read field by field; what is refused is named by its JSON path, such as ``$.axes[0].extent``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from tileweave.errors import VerifyError

T = TypeVar("T")


def load(text: str | bytes, legal: str) -> Place:
    """The whole of a JSON text; repeated keys, infinities and NaN are refused."""
    whole = Place("$", text)
    if not isinstance(text, str | bytes | bytearray):
        whole.refuse(f"{type(text).__name__} is no text", "a JSON text")
    try:
        return Place("$", json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant))
    except RecursionError:
        whole.refuse("it nests too deeply", legal)
    except ValueError as error:
        whole.refuse(f"it is not JSON: {error}", "a JSON text in UTF-8 without repeated keys")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError(f"the keys {[key for key, _ in pairs]} repeat")
    return data


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class Place:
    """A value of a document and the path that leads to it."""

    __slots__ = ("path", "value")

    def __init__(self, path: str, value: Any) -> None:
        self.path, self.value = path, value

    def refuse(self, problem: str, legal: str = "", rule: str = "json") -> NoReturn:
        """Raise the `VerifyError` of `from_json` that something is wrong here."""
        facts = {"rule": rule, "path": self.path}
        raise VerifyError("from_json(text)", f"{self.path}: {problem}", legal=legal, facts=facts)

    def is_not(self, legal: str) -> NoReturn:
        """Refuse the value: it is not what it should be."""
        self.refuse(f"{self.shown()} is not {legal}", legal)

    def shown(self) -> str:
        """The value as JSON, cut short."""
        try:
            text = json.dumps(self.value)
        except RecursionError:
            return "a value that nests too deeply"
        return text if len(text) < 60 else text[:57] + "..."

    def record(
        self, *keys: str, optional: Sequence[str] = (), rules: Mapping[str, str] | None = None
    ) -> dict[str, Place]:
        """The fields of an object that has exactly these keys, and perhaps the optional ones.

        Args:
            keys: of the fields.
            optional: the keys that may be missing.
            rules: the rules that some unknown keys break, beside ``json``.
        """
        legal = f"the keys {', '.join((*keys, *optional))}"
        if not isinstance(self.value, dict):
            self.is_not(f"an object with {legal}")
        for key in self.value:
            if key not in (*keys, *optional):
                self.refuse(f"unknown key {json.dumps(key)}", legal, (rules or {}).get(key, "json"))
        for key in keys:
            if key not in self.value:
                self.refuse(f"the key {key!r} is missing", legal)
        return dict(self.entries())

    def entries(self) -> list[tuple[str, Place]]:
        """The fields of any object."""
        if not isinstance(self.value, dict):
            self.is_not("an object")
        return [(key, Place(f"{self.path}.{key}", value)) for key, value in self.value.items()]

    def items(self) -> list[Place]:
        """The items of a list."""
        if not isinstance(self.value, list):
            self.is_not("a list")
        return [Place(f"{self.path}[{k}]", value) for k, value in enumerate(self.value)]

    def list(self, read: Callable[[Place], T]) -> tuple[T, ...]:
        """What is read of each item of a list."""
        return tuple(map(read, self.items()))

    def pairs(self) -> Iterator[tuple[Place, Place]]:
        """The items of a list of pairs."""
        for item in self.items():
            both = item.items()
            if len(both) != 2:
                item.is_not("a pair")
            yield both[0], both[1]

    def text(self) -> str:
        """A string."""
        if not isinstance(self.value, str):
            self.is_not("a string")
        return self.value

    def choice(self, *values: str) -> Any:
        """One of some strings."""
        if not isinstance(self.value, str) or self.value not in values:
            self.is_not("one of " + ", ".join(values))
        return self.value

    def whole(self) -> Any:
        """A number without a fraction as an integer: to JSON Schema 1.0 is one. Other values as they are."""
        value = self.value
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def integer(self) -> int:
        """An integer; true and false are none."""
        value = self.whole()
        if not isinstance(value, int) or isinstance(value, bool):
            self.is_not("an integer")
        return value

    def integers(self) -> tuple[int, ...]:
        """A list of integers."""
        return self.list(Place.integer)
