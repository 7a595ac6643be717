"""What sorts compare: elements as signed integers of the same order, their places behind them where those are wanted.

A record is what is moved. It is the key alone where values are wanted; a key and a place in one integer where both
fit, so that no two records are equal and equal elements stay in order; else a key and a place side by side.

Source: own; the order of floats as integers is that of IEEE 754's totalOrder, but for NaN and zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from tileweave.backends.cpu.llvm.elements import splat, vector
from tileweave.backends.cpu.llvm.ir import Function

INFINITIES = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}
"""The bits of the infinity of each floating type."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Elements as integers that compare as they do; NaN is the greatest.

    Args:
        width: bytes of an element.
        infinity: the bits of infinity; 0: elements are integers.
        places: whether places are wanted, else values.
        bytes: of each part of a record, 4 or 8.
        parts: of a record: a key, or a key and its place.
    """

    width: int
    infinity: int
    places: bool
    bytes: int
    parts: int

    @property
    def type(self) -> str:
        """LLVM's type of a part of a record."""
        return f"i{8 * self.bytes}"

    @property
    def element(self) -> str:
        """LLVM's type of the bits of an element."""
        return f"i{8 * self.width}"

    @property
    def wanted(self) -> str:
        """LLVM's type of what is written."""
        return "i64" if self.places else self.element

    @property
    def wanted_bytes(self) -> int:
        """Bytes of what is written."""
        return 8 if self.places else self.width

    @property
    def last(self) -> str:
        """A part of a record that no element comes behind."""
        return str((1 << (8 * self.bytes - 1)) - 1)

    @property
    def _joined(self) -> bool:
        return self.places and self.parts == 1

    def made(self, f: Function, lanes: int, bits: str, places: str, mask: str) -> list[str]:
        """The records of elements, from their bits and their places in the type of a part; ``mask``: see `mask_of`."""
        type, full = self.element, vector(self.element, lanes)
        sign = 1 << (8 * self.width - 1)
        if self.infinity:
            size = f.value(f"and {full} {bits}, {splat(type, lanes, str(sign - 1))}")
            missing = f.value(f"icmp ugt {full} {size}, {splat(type, lanes, str(self.infinity))}")
            truths = vector("i1", lanes)
            # NaN of any sign is behind infinity; where equal elements stay in order, all are one, and both zeros
            other = splat(type, lanes, str(sign - 1)) if self.places else size
            bits = f.value(f"select {truths} {missing}, {full} {other}, {full} {bits}")
            if self.places:
                zero = f.value(f"icmp eq {full} {size}, {splat(type, lanes, '0')}")
                bits = f.value(f"select {truths} {zero}, {full} {splat(type, lanes, '0')}, {full} {bits}")
            bits = self._turned(f, lanes, bits)
        bits = f.value(f"xor {full} {bits}, {mask}")
        wide = vector(self.type, lanes)
        key = f.value(f"sext {full} {bits} to {wide}") if self.bytes > self.width else bits
        if not self.places:
            return [key]
        if not self._joined:
            return [key, places]
        high = f.value(f"shl {wide} {key}, {splat(self.type, lanes, str(4 * self.bytes))}")
        return [f.value(f"or {wide} {high}, {places}")]

    def _turned(self, f: Function, lanes: int, bits: str) -> str:
        """Floats as integers of their order, or back: the sizes of negative ones are turned round."""
        type, full = self.element, vector(self.element, lanes)
        negative = f.value(f"ashr {full} {bits}, {splat(type, lanes, str(8 * self.width - 1))}")
        most = splat(type, lanes, str((1 << (8 * self.width - 1)) - 1))
        return f.value(f"xor {full} {bits}, {f.value(f'and {full} {negative}, {most}')}")

    def read(self, f: Function, lanes: int, record: list[str], mask: str) -> str:
        """What is wanted of records."""
        wide = vector(self.type, lanes)
        if self.places:
            if not self._joined:
                return record[1]
            place = f.value(f"and {wide} {record[0]}, {splat(self.type, lanes, str((1 << 4 * self.bytes) - 1))}")
            return place if self.bytes == 8 else f.value(f"zext {wide} {place} to {vector('i64', lanes)}")
        full = vector(self.element, lanes)
        bits = f.value(f"trunc {wide} {record[0]} to {full}") if self.bytes > self.width else record[0]
        bits = f.value(f"xor {full} {bits}, {mask}")
        return self._turned(f, lanes, bits) if self.infinity else bits

    def behind(self, f: Function, lanes: int, a: list[str], b: list[str]) -> str:
        """Where records come behind others."""
        wide, truths = vector(self.type, lanes), vector("i1", lanes)
        later = f.value(f"icmp sgt {wide} {a[0]}, {b[0]}")
        if self.parts == 1:
            return later
        equal = f.value(f"icmp eq {wide} {a[0]}, {b[0]}")
        place = f.value(f"icmp sgt {wide} {a[1]}, {b[1]}")
        return f.value(f"or {truths} {later}, {f.value(f'and {truths} {equal}, {place}')}")

    def chosen(self, f: Function, lanes: int, truth: str, a: list[str], b: list[str]) -> list[str]:
        """Records where a truth holds, else others."""
        wide, truths = vector(self.type, lanes), vector("i1", lanes)
        return [f.value(f"select {truths} {truth}, {wide} {x}, {wide} {y}") for x, y in zip(a, b, strict=True)]


def mask_of(width: int, unsigned: bool, descending: bool) -> int:
    """What turns elements of some bytes into integers with a sign, and their order round: bits that change."""
    sign = 1 << (8 * width - 1)
    return (sign if unsigned else 0) ^ (2 * sign - 1 if descending else 0)
