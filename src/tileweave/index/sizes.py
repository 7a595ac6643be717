"""Sizes that code reads from a table: one text for every operation of a kind.

An emitter computes with sizes: extents, strides, block sizes. Where they are integers, they become constants of the
text. Where they are a `Word` each, the text loads them from the table of the call, and arithmetic on words makes more
words. A decision that an emitter takes from a word (``if extent % 16``) holds for the text: it is recorded, with its
outcome. So `Table.of` says for other numbers whether the same text serves them, and with which table.

What comes before an emitter decides from sizes too: what is merged, which axis runs in vectors. Where a program's sizes
are a `FollowedSize` each, these decisions are recorded as well, and the text holds for the very number only where it
names one.

Source: own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from tileweave.kept import cached_property

if TYPE_CHECKING:
    _Number = int
else:
    _Number = object  # so that Python's own uses of an integer (range, an index) ask `__index__`, which records them


class Sizes:
    """The words of one text, while it is written; and ``results``, which whoever calls the code wants to know.

    Args:
        follows: whether the sizes of a program are followed: then these alone make a table, and what is said of sizes
            for people would count.
        any_length: whether short rows, too, have their lengths in the table.
    """

    def __init__(self, *, follows: bool = False, any_length: bool = False) -> None:
        self.numbers: list[int] = []
        self.lines: list[str] = []
        self.slots: list[int] = []
        self.parameters: list[int] = []
        self.results: tuple[Any, ...] = ()
        self.follows, self.any_length = follows, any_length
        self.one_length = False
        """Whether the length of a short row is a constant of the text."""
        self.functions: dict[str, Callable[..., Any]] = {}
        self._bits: list[tuple[int, int]] = []
        self._known: dict[Any, Word] = {}
        self._decided: dict[Any, bool] = {}

    def parameter(self, number: int) -> int:
        """The next of the numbers that a table is made from; of one that is followed, the word for it."""
        made = self._new(_number(number))
        if self.follows:
            self.lines.append(f"{_text(made)} = {_text(number)}")
        else:
            self.parameters.append(made.place)
        return made

    def followed(self, number: int) -> int:
        """The next of the numbers that a table is made from, as a size of a program."""
        self.numbers.append(number)
        self.parameters.append(len(self.numbers) - 1)
        return FollowedSize(self, number, len(self.numbers) - 1)

    def followed_number(self, number: float) -> float:
        """The next of the numbers that a table is made from, as a constant of a program."""
        made = self.followed(0)
        self.numbers[made.place] = number  # type: ignore[attr-defined, call-overload]
        return FollowedNumber(self, number, made.place)  # type: ignore[attr-defined]

    def answers(
        self, work: Callable[[tuple[int, ...], float], tuple[Any, ...] | None], given: Sequence[int]
    ) -> list[Any]:
        """What a function makes of sizes, its numbers followed as well; within it nothing is recorded.

        Args:
            work: gives None where the text would be another one, or, where it is asked whether it is near (how many
                times the time it may take; else 0), where this one would be no use; what is no integer may be one of
                the `results`.
            given: sizes and numbers.
        """
        made = work(tuple(map(_number, given)), 0) or ()
        name, whole = f"work{len(self.functions)}", f"r{len(self.functions)}"
        self.functions[name] = work
        self.lines.append(f"{whole} = {name}(( {''.join(f'{_text(one)} , ' for one in given)}) , near )")
        self.lines.append(f"if {whole} is None: return None")
        found: list[Any] = []
        for k, number in enumerate(made):
            if not isinstance(number, int):
                found.append(FollowedObject(number, f"{whole} [{k}]"))
                continue
            self.numbers.append(number)
            found.append(FollowedSize(self, number, len(self.numbers) - 1))
            self.lines.append(f"{_text(found[-1])} = {whole} [{k}]")
        return found

    def constant(self, number: float, bits: Callable[[float], int]) -> int:
        """The word for the bits of a constant of the program, of which equal ones share one."""
        if not self.follows:
            key = "constant", bits(number)
            if key not in self._known:
                made = self._new(key[1])
                self.parameters.append(made.place)
                self._known[key] = made
            return self._known[key]
        held: int = bits(number)
        if isinstance(number, FollowedNumber):
            name = f"bits{len(self.functions)}"
            self.functions[name] = bits
            self.numbers.append(held)
            held = FollowedSize(self, held, len(self.numbers) - 1)
            self.lines.append(f"{_text(held)} = {name}({_text(number)})")
        for other, word in self._bits:
            if other == held:
                return word
        self._bits.append((held, self.parameter(held)))
        return self._bits[-1][1]

    def table(self) -> tuple[Any, ...]:
        """The table: what the text names, then the results."""
        return (*(self.numbers[k] for k in self.slots), *map(_number, self.results))

    def slot(self, word: int) -> int:
        """The place of a word in the table."""
        if word not in self.slots:
            self.slots.append(word)
        return self.slots.index(word)

    def word(self, sign: str, work: Callable[[int, int], int], a: Word | int, b: Word | int) -> int:
        """``a sign b``."""
        key = sign, _key(a), _key(b)
        made = self._known.get(key)
        if made is None:
            made = self._new(work(_number(a), _number(b)))
            if all(isinstance(one, FollowedSize) or not isinstance(one, Word) for one in (a, b)):
                made = FollowedSize(self, made.number, made.place)
            self.lines.append(f"{_text(made)} = {_text(a)} {sign} {_text(b)}")
            self._known[key] = made
        return made

    def decision(
        self, sign: str, work: Callable[[int, int], bool], a: Word | int, b: Word | int, *, near: bool = False
    ) -> bool:
        """Whether ``a sign b``, which the text depends on from now on; a near one may serve where it is otherwise."""
        key = sign, _key(a), _key(b), near
        outcome = self._decided.get(key)
        if outcome is None:
            outcome = self._decided[key] = work(_number(a), _number(b))
            asked = "not near and " if near else ""
            self.lines.append(f"if {asked}{'not ' if outcome else ''}{_text(a)} {sign} {_text(b)}: return None")
        return outcome

    def _new(self, number: int) -> Word:
        self.numbers.append(number)
        return Word(self, number, len(self.numbers) - 1)


class Word(_Number):
    """A size as code reads it; in Python an integer whose every use in a decision is recorded."""

    __slots__ = ("name", "number", "place", "sizes")

    def __init__(self, sizes: Sizes, number: int, place: int) -> None:
        self.sizes = sizes
        self.number = number
        self.place = place
        self.name = f"v{place}"

    def __str__(self) -> str:
        return f"%size.{self.sizes.slot(self.place)}"

    def __format__(self, _: str) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"Word({self.number})"

    def __hash__(self) -> int:
        return hash(self.place)

    def __add__(self, other: int) -> int:
        return self if _is(other, 0) else self.sizes.word("+", operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return self if _is(other, 0) else self.sizes.word("-", operator.sub, self, other)

    def __rsub__(self, other: int) -> int:
        return self.sizes.word("-", operator.sub, other, self)

    def __mul__(self, other: int) -> int:
        if _is(other, 0):
            return 0
        return self if _is(other, 1) else self.sizes.word("*", operator.mul, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        return self if _is(other, 1) else self.sizes.word("//", operator.floordiv, self, other)

    def __rfloordiv__(self, other: int) -> int:
        return self.sizes.word("//", operator.floordiv, other, self)

    def __mod__(self, other: int) -> int:
        return 0 if _is(other, 1) else self.sizes.word("%", operator.mod, self, other)

    def __rmod__(self, other: int) -> int:
        return self.sizes.word("%", operator.mod, other, self)

    def __neg__(self) -> int:
        return self.sizes.word("-", operator.sub, 0, self)

    def __abs__(self) -> int:
        return -self if self < 0 else self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Word, int)):
            return NotImplemented
        return self.sizes.decision("==", operator.eq, self, other)

    def __ne__(self, other: object) -> bool:
        if not isinstance(other, (Word, int)):
            return NotImplemented
        return not self.sizes.decision("==", operator.eq, self, other)

    def __lt__(self, other: int) -> bool:
        return self.sizes.decision("<", operator.lt, self, other)

    def __le__(self, other: int) -> bool:
        return self.sizes.decision("<=", operator.le, self, other)

    def __gt__(self, other: int) -> bool:
        return not self.sizes.decision("<=", operator.le, self, other)

    def __ge__(self, other: int) -> bool:
        return not self.sizes.decision("<", operator.lt, self, other)

    def __bool__(self) -> bool:
        return not self.sizes.decision("==", operator.eq, self, 0)

    def __index__(self) -> int:
        self.sizes.decision("==", operator.eq, self, self.number)
        return self.number


class FollowedSize(Word):
    """A size of a program: a number whose decisions are recorded. Where a text names it, it stays that number."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(self.__index__())

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __int__(self) -> int:
        return self.__index__()

    def __float__(self) -> float:
        return float(self.__index__())

    def __truediv__(self, other: float) -> Any:
        return self.sizes.word("/", operator.truediv, self, other)  # type: ignore[arg-type]

    def __rtruediv__(self, other: float) -> Any:
        return self.sizes.word("/", operator.truediv, other, self)  # type: ignore[arg-type]

    def bit_length(self) -> int:
        """Of the very number."""
        return self.__index__().bit_length()


@dataclass(frozen=True, slots=True, eq=False)
class FollowedObject:
    """What a function of sizes made that is no number, such as an array: it and where it is found again.

    Args:
        value: for these sizes.
        text: in `Table.of`.
    """

    value: Any
    text: str


class FollowedNumber(float):
    """A constant of a program that may depend on its sizes, such as the inverse of a count; finite, not 0 and not 1."""

    __slots__ = ("place", "sizes")
    place: int
    sizes: Sizes

    def __new__(cls, sizes: Sizes, number: float, place: int) -> FollowedNumber:
        """A number with its place among those of a text."""
        made = super().__new__(cls, number)
        made.sizes, made.place = sizes, place
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self.sizes.decision("==", operator.eq, self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(exactly(self))


def exactly(number: float) -> float:
    """A number as a constant of the text, which holds for this very one from then on."""
    if not isinstance(number, FollowedNumber):
        return number
    plain = float.__float__(number)
    number.sizes.decision("==", operator.eq, number, plain)  # type: ignore[arg-type]
    return plain


class Table:
    """The table of one text, for any numbers that it serves.

    Args:
        sizes: what was recorded while the text was written.
    """

    def __init__(self, sizes: Sizes) -> None:
        self._returned = [*(f"v{k}" for k in sizes.slots), *map(_text, sizes.results)]
        self._lines, self._functions = tuple(sizes.lines), dict(sizes.functions)
        self._names = "".join(f"v{k}, " for k in sizes.parameters)

    @cached_property
    def of(self) -> Callable[..., tuple[Any, ...] | None]:
        """The table for some numbers, in the order of the parameters; None where a decision falls otherwise.

        Asked whether it is ``near``, a text may serve that is not the one which is best for these numbers.
        """
        needed = {text.split()[0] for text in self._returned}
        kept: list[str] = []
        for line in reversed(self._lines):
            words = line.replace(":", " ").split()
            if line.startswith("if ") or words[0] in needed:
                needed.update(word for word in words if word[0] in "vr" and word[1:].isdigit())
                kept.append(line)
        lines = [f"{self._names}= numbers" if self._names else "pass", *reversed(kept)]
        lines.append(f"return ({''.join(f'{word}, ' for word in self._returned)})")
        scope: dict[str, Any] = {"inf": math.inf, **self._functions}
        exec("def of(numbers, near=0):\n  " + "\n  ".join(lines), scope)
        found: Callable[..., tuple[Any, ...] | None] = scope["of"]
        return found


@lru_cache(1024)
def shared(function: Callable[..., Any], *about: Hashable) -> Callable[[tuple[int, ...]], Any]:
    """``function(*about, sizes)`` of sizes alone, its last answers kept: several texts ask for the same sizes."""
    return lru_cache(16)(partial(function, *about))


def derived(function: Callable[..., int], *given: int) -> int:
    """``function(*given)``; of sizes that are followed a size that follows from them, whatever the function decides."""
    one = next((size for size in given if isinstance(size, Word)), None)
    if one is None:
        return function(*given)

    def made(now: tuple[int, ...], near: float) -> tuple[int]:
        return (function(*now),)

    found: int = one.sizes.answers(made, given)[0]
    return found


def above(size: int, bound: int) -> bool:
    """``size > bound``, where nothing but some speed depends on it: near texts serve on both sides."""
    return size.sizes.decision(">", operator.gt, size, bound, near=True) if isinstance(size, Word) else size > bound


def plain(size: int) -> int:
    """A size as a constant of the text, which holds for this very number from then on; a word stays a word."""
    return size.__index__() if isinstance(size, FollowedSize) else size


def unrecorded(size: int) -> int:
    """A size as a number, of whose use nothing is recorded: for what `Sizes.answers` asks again."""
    return size.number if isinstance(size, Word) else size


def known(size: object) -> bool:
    """Whether a size is a constant of the text."""
    return isinstance(size, int)


def _is(value: int, number: int) -> bool:
    return isinstance(value, int) and not isinstance(value, Word) and value == number


def _number(value: Any) -> Any:
    if isinstance(value, Word):
        return value.number
    if isinstance(value, FollowedObject):
        return value.value
    return float.__float__(value) if isinstance(value, float) else value


def _key(value: Any) -> Any:
    """What tells operands apart: no comparison of the numbers themselves, which would be recorded."""
    if type(value) is int:
        return value
    return value.name if isinstance(value, Word) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Word):
        return value.name
    if isinstance(value, FollowedNumber):
        return f"v{value.place}"
    if isinstance(value, FollowedObject):
        return value.text
    return f"({value})" if value < 0 else str(value)
