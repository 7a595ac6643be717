"""One row of the atom table: an instruction, its operands as layouts, when it is legal, what it computes and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from tileweave.errors import BackendError
from tileweave.layout import Coord, Layout, parse

#: Bits of each element type, by its PTX name.
BITS = {
    "s4": 4, "u4": 4, "e4m3": 8, "e5m2": 8, "e8m0": 8, "s8": 8, "u8": 8, "b8": 8, "pred": 8,
    "f16": 16, "bf16": 16, "b16": 16, "s16": 16, "u16": 16,
    "tf32": 32, "f32": 32, "s32": 32, "u32": 32, "b32": 32, "f64": 64, "b64": 64,
    "s64": 64, "u64": 64, "b128": 128,
}  # fmt: skip

Array = np.ndarray[Any, Any]
Meaning = Callable[[Mapping[str, Array]], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A tile of elements and where an instruction finds each of them.

    Args:
        dtype: the element type, by its PTX name.
        shape: the logical tile; the layout maps its row-major index.
        layout: places on the axes ``reg``, ``lane``, ``warp`` (registers), ``m`` (elements of memory), or
            ``TLane``, ``TCol`` (tensor memory).
        space: where the elements are.
    """

    dtype: str
    shape: tuple[int, ...]
    layout: Layout
    space: Literal["register", "shared", "global", "tensor"] = "register"

    @property
    def elements(self) -> int:
        """Elements that one thread holds."""
        return _extent(self.layout, "reg")

    @property
    def threads(self) -> int:
        """Threads that hold the tile: 32 for a warp, 128 for a warpgroup."""
        return 32 * _extent(self.layout, "warp")

    @property
    def registers(self) -> int:
        """Registers of one thread, as PTX counts operands: of 32 bits, of 64 for wider elements."""
        bits = BITS[self.dtype]
        return self.elements * bits // max(32, bits)

    def places(self) -> tuple[tuple[int, ...], ...]:
        """``places()[thread][slot]`` is the row-major index of the element in that register slot, or -1 where none is.

        Example:
            >>> fragment("f32", (8, 4), "(8:4@lane, 4:1@lane)").places()[5]
            (5,)
        """
        values = self.layout.table()
        at = values if isinstance(values, dict) else {self.layout.axes[0]: values}
        zeros = np.zeros(self.layout.size, int)
        table = np.full((self.threads, self.elements), -1)
        table[32 * at.get("warp", zeros) + at.get("lane", zeros), at.get("reg", zeros)] = np.arange(self.layout.size)
        return tuple(map(tuple, table.tolist()))


@dataclass(frozen=True, slots=True)
class Condition:
    """A named condition, in the words that Python and C++ share; ``[i]`` ranges over the first ``over`` entries.

    Example:
        >>> Condition("aligned", "address % 16 == 0").holds({"address": 24})
        False
    """

    name: str
    condition: str
    over: str = ""

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether the condition holds for these values: integers, or sequences of them."""
        code = _compiled(self.condition)
        names: dict[str, Any] = {"__builtins__": {}, **values}
        count = eval(_compiled(self.over), names) if self.over else 1
        return all(eval(code, {**names, "i": i}) for i in range(count))


@dataclass(frozen=True, slots=True)
class Cost:
    """What one execution of an instruction takes; an estimate to rank candidates, from published rates.

    Args:
        operations: multiplications and additions, or 0.
        bytes_moved: bytes between memories.
        issues: instructions that the warp's scheduler issues.
    """

    operations: int = 0
    bytes_moved: int = 0
    issues: int = 1


@dataclass(frozen=True, slots=True)
class Atom:
    """An instruction of a GPU.

    Args:
        name: its PTX opcode with all modifiers.
        family: the name of its family (:func:`families`).
        arch: the targets that accept it: ``sm_80`` means that one and later ones; a target with a letter, ``sm_90a``,
            only itself.
        operands: role and operand, in the order of the instruction's text.
        legal: what must hold of addresses and settings that the text does not say.
        emulate: the meaning on whole tiles: role -> array, to role -> array. Data movement is the identity.
        cost: an estimate of what it takes.
    """

    name: str
    family: str
    arch: tuple[str, ...]
    operands: tuple[tuple[str, Fragment], ...]
    legal: tuple[Condition, ...] = ()
    emulate: Meaning = dict
    cost: Cost = Cost()

    def __getitem__(self, role: str) -> Fragment:
        for name, operand in self.operands:
            if name == role:
                return operand
        raise KeyError(role)

    def runs_on(self, arch: str) -> bool:
        """Whether a target accepts the instruction.

        Example:
            >>> from tileweave.kernel.atoms import atom
            >>> atom("stmatrix.sync.aligned.m8n8.x4.shared.b16").runs_on("sm_80")
            False
        """
        number, _ = _target(arch)
        for accepted in self.arch:
            least, feature = _target(accepted)
            if (feature and arch == accepted) or (not feature and number >= least):
                return True
        return False

    def __str__(self) -> str:
        rows = [f"{self.name}  ({', '.join(self.arch)})"]
        rows += [f"  {role}  {operand.dtype} {operand.shape}  {operand.layout}" for role, operand in self.operands]
        return "\n".join(rows)


def fragment(dtype: str, shape: tuple[int, ...], text: str) -> Fragment:
    """An operand in registers, its layout in the notation of :func:`tileweave.layout.parse`."""
    return Fragment(dtype, shape, parse(text))


def shared(dtype: str, shape: tuple[int, ...], text: str) -> Fragment:
    """An operand in shared memory."""
    return Fragment(dtype, shape, parse(text), "shared")


def _items(coordinate: Coord | int) -> list[tuple[str, int]]:
    if isinstance(coordinate, int):
        return [("m", coordinate)] if coordinate else []
    return list(coordinate.terms)


def _extent(layout: Layout, axis: str) -> int:
    """One more than the largest coordinate on an axis; the layouts of the table have no negative strides."""
    last = 0
    for it in layout.shard:
        last += (int(it.extent) - 1) * dict(_items(it.stride)).get(axis, 0)
    return last + 1


@cache
def _compiled(text: str) -> Any:
    return compile(text, "rule", "eval")


def generation(arch: str) -> int:
    """The number of an architecture, without its feature letter."""
    return _target(arch)[0]


def check_arch(where: str, arch: str) -> None:
    """Refuses what is no architecture of NVIDIA's GPUs.

    Raises:
        BackendError: with those that are known.
    """
    if arch not in _ARCHITECTURES:
        legal = ", ".join(f"sm_{number}" for number in _GENERATIONS) + "; sm_90a, sm_100a .. with what is theirs alone"
        raise BackendError(where, f"{arch!r} is no architecture that is known", legal=legal)


_GENERATIONS = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
_ARCHITECTURES = frozenset(
    f"sm_{number}{letter}" for number in _GENERATIONS for letter in ("", *"a" * (number >= 90), *"f" * (number >= 100))
)


def _target(arch: str) -> tuple[int, str]:
    digits = arch.removeprefix("sm_").rstrip("abcdef")
    return int(digits), arch.removeprefix("sm_" + digits)
