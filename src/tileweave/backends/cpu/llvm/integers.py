"""Division, shifts and conversions of integers as NumPy defines them for every operand.

Processors divide no vectors of integers, and LLVM leaves open what a division by zero is, a shift by more bits than
there are, and the integer of a float beyond its range. Here quotients are formed in floating point, which is exact:
the numbers next to a whole quotient are further from it than rounding reaches.

Source: own.
"""

from __future__ import annotations

from tileweave.backends.cpu.llvm.elements import Element, element, splat, vector, zero
from tileweave.backends.cpu.llvm.ir import Function
from tileweave.backends.cpu.llvm.vectors import joined, suffix
from tileweave.backends.cpu.target.target import Target

_LARGE = {"FP32": 1.5 * 2**23, "FP64": 1.5 * 2**52}
"""Numbers whose neighbours are one apart, also when a number of either sign is added."""
_LARGE_BITS = 0x4338 << 48
"""The bits of the second."""
_NEAR = 1 << 49
"""So many numbers of 64 bits, on both sides of zero where there are signs, are divided as floats."""


class Integers:
    """Values of one integer type.

    Args:
        f: the function that computes.
        one: the type.
        lanes: elements per value.
    """

    def __init__(self, f: Function, one: Element, lanes: int) -> None:
        self.f = f
        self.one = one
        self.lanes = lanes
        self.full = vector(one.memory, lanes)

    def floor_divide(self, a: str, b: str) -> str:
        """The quotient, rounded down; by zero it is 0, and of the least number by -1 the least number."""
        if self.one.width_bytes < 8:
            wide = element("FP64" if self.one.width_bytes == 4 else "FP32")
            to = "sitofp" if self.one.signed else "uitofp"
            x, y = (self.f.value(f"{to} {self.full} {v} to {vector(wide.memory, self.lanes)}") for v in (a, b))
            return self._whole_of(self._quotient(x, y, wide), wide)
        wide, near = element("FP64"), "true"
        for v in (a, b):
            up = self.f.value(f"add {self.full} {v}, {self._whole(_NEAR >> 1)}") if self.one.signed else v
            below = self.f.value(f"icmp ult {self.full} {up}, {self._whole(_NEAR)}")
            near = self.f.value(f"and i1 {near}, {self._all(below)}")

        def by_floats() -> list[str]:
            x, y = (self._float_of(v, wide) for v in (a, b))
            return [self._whole_of(self._quotient(x, y, wide), wide)]

        return str(self.f.choose(near, [self.full], by_floats, lambda: [self._by_instruction(a, b)])[0])

    def _quotient(self, x: str, y: str, wide: Element) -> str:
        """``floor(x / y)`` of whole numbers, 0 where y is.

        x / y + 1 / (2 |y|) lies above that whole number and below the next one by more than it is rounded by.
        """
        full, nothing = vector(wide.memory, self.lanes), zero(wide, self.lanes)
        none = self.f.value(f"fcmp oeq {full} {y}, {nothing}")
        inverse = self.f.value(f"fdiv {full} {self._number(1.0, wide)}, {y}")
        inverse = self._select(none, nothing, inverse, full)
        half = self.f.value(f"fmul {full} {self._intrinsic('fabs', inverse, wide)}, {self._number(0.5, wide)}")
        middle = self.f.value(f"fadd {full} {self.f.value(f'fmul {full} {x}, {inverse}')}, {half}")
        return self._intrinsic("floor", middle, wide)

    def _whole_of(self, quotient: str, wide: Element) -> str:
        """A whole number as the last bits of the sum with a large one; what is too large wraps."""
        full, bits = vector(wide.memory, self.lanes), f"i{8 * wide.width_bytes}"
        total = self.f.value(f"fadd {full} {quotient}, {self._number(_LARGE[wide.name], wide)}")
        held = vector(bits, self.lanes)
        whole = self.f.value(f"bitcast {full} {total} to {held}")
        if self.one.width_bytes == 8:
            return self.f.value(f"sub {held} {whole}, {self._whole(_LARGE_BITS)}")
        return self.f.value(f"trunc {held} {whole} to {self.full}")

    def _float_of(self, x: str, wide: Element) -> str:
        """A number of 64 bits below 2^51, in the same way: no instruction of AVX2 converts it."""
        full = vector(wide.memory, self.lanes)
        total = self.f.value(f"add {self.full} {x}, {self._whole(_LARGE_BITS)}")
        total = self.f.value(f"bitcast {self.full} {total} to {full}")
        return self.f.value(f"fsub {full} {total}, {self._number(_LARGE[wide.name], wide)}")

    def _all(self, truths: str) -> str:
        """Whether all lanes are true."""
        if self.lanes == 1:
            return truths
        name, full = f"llvm.vector.reduce.and.v{self.lanes}i1", vector("i1", self.lanes)
        self.f.module.declare(name, f"i1 {{}}({full})")
        return self.f.value(f"call i1 @{name}({full} {truths})")

    def remainder(self, a: str, b: str) -> str:
        """What the quotient leaves, of the sign of b; by zero it is 0."""
        product = self.f.value(f"mul {self.full} {self.floor_divide(a, b)}, {b}")
        none = self._equals(b, zero(self.one, self.lanes))
        return self._select(none, b, self.f.value(f"sub {self.full} {a}, {product}"), self.full)

    def shift(self, a: str, b: str, *, left: bool) -> str:
        """All bits moved; by as many as there are, or more, or by a negative number, nothing is left but the sign."""
        bits = 8 * self.one.width_bytes
        inside = self.f.value(f"icmp ult {self.full} {b}, {self._whole(bits)}")
        if not left and self.one.signed:
            by = self._select(inside, b, self._whole(bits - 1), self.full)
            return self.f.value(f"ashr {self.full} {a}, {by}")
        by = self._select(inside, b, zero(self.one, self.lanes), self.full)
        moved = self.f.value(f"{'shl' if left else 'lshr'} {self.full} {a}, {by}")
        return self._select(inside, moved, zero(self.one, self.lanes), self.full)

    def wrapped(self, x: str, source: Element, target: Target) -> str:
        """A number of FP32 or FP64 without its fraction; TEIR's Wrap says of what an integer does not hold."""
        held = element("INT64" if self.one.width_bytes == 8 else "INT32")
        whole = self._cut(x, source, held, target)
        if held.width_bytes == self.one.width_bytes:
            return whole
        return self.f.value(f"trunc {vector(held.memory, self.lanes)} {whole} to {self.full}")

    def _cut(self, x: str, source: Element, held: Element, target: Target) -> str:
        """The whole part of a number, and the least integer where that is none: NaN, or beyond the range."""
        if held.width_bytes == 4 and target.has("sse2"):
            return self._cut_by_instruction(x, source, target)
        bits = 8 * held.width_bytes
        full, into = vector(source.memory, self.lanes), vector(held.memory, self.lanes)
        low = self.f.value(f"fcmp oge {full} {x}, {self._number(-(2.0 ** (bits - 1)), source)}")
        high = self.f.value(f"fcmp olt {full} {x}, {self._number(2.0 ** (bits - 1), source)}")
        inside = self.f.value(f"and {vector('i1', self.lanes)} {low}, {high}")
        kept = self._select(inside, x, zero(source, self.lanes), full)
        whole = self.f.value(f"fptosi {full} {kept} to {into}")
        least = splat(held.memory, self.lanes, str(-(1 << (bits - 1))))
        return self._select(inside, whole, least, into)

    def _cut_by_instruction(self, x: str, source: Element, target: Target) -> str:
        """The same in 32 bits by x86's own instruction, as many lanes at a time as it takes."""
        f, most = self.f, target.lanes(source.width_bytes)
        size = min(max(self.lanes, 16 // source.width_bytes), most)
        kind, single = vector(source.memory, size), source.name == "FP32"
        if size * source.width_bytes == 64:
            name, rest = f"avx512.mask.cvtt{'ps' if single else 'pd'}2dq.512", f", i{size} -1, i32 4"
        elif size * source.width_bytes == 32:
            name, rest = "avx.cvtt.ps2dq.256" if single else "avx.cvtt.pd2dq.256", ""
        else:
            name, rest = "sse2.cvttps2dq" if single else "sse2.cvttpd2dq", ""
        into = vector("i32", max(size, 4))
        more = f", {into}, i{size}, i32" if rest else ""
        f.module.declare(f"llvm.x86.{name}", f"{into} {{}}({kind}{more})")
        rest = f", {into} zeroinitializer{rest}" if rest else ""
        parts = []
        for begin in range(0, self.lanes, size):
            part = self._lanes_of(x, source.memory, self.lanes, begin, size)
            whole = f.value(f"call {into} @llvm.x86.{name}({kind} {part}{rest})")
            parts.append(self._lanes_of(whole, "i32", max(size, 4), 0, min(size, self.lanes)))
        return joined(f, "i32", parts, min(size, self.lanes))

    def _lanes_of(self, value: str, type: str, lanes: int, begin: int, size: int) -> str:
        """Some lanes of a value; those that it does not have are zero, so that what is made of them costs no time."""
        if (lanes, begin) == (size, 0):
            return value
        if lanes == 1:
            return self.f.value(f"insertelement {vector(type, size)} zeroinitializer, {type} {value}, i64 0")
        if size == 1:
            return self.f.value(f"extractelement {vector(type, lanes)} {value}, i64 {begin}")
        places = ", ".join(f"i32 {k if k < lanes else lanes}" for k in range(begin, begin + size))
        full = vector(type, lanes)
        return self.f.value(f"shufflevector {full} {value}, {full} zeroinitializer, <{size} x i32> <{places}>")

    def _by_instruction(self, a: str, b: str) -> str:
        """Of 64 bits, which no float holds: one element after the other."""
        none, ones = self._equals(b, zero(self.one, self.lanes)), self._whole(1)
        by = self._select(none, ones, b, self.full)
        if not self.one.signed:
            quotient = self.f.value(f"udiv {self.full} {a}, {by}")
            return self._select(none, zero(self.one, self.lanes), quotient, self.full)
        minus = self._equals(b, self._whole(-1))
        by = self._select(minus, ones, by, self.full)
        cut = self.f.value(f"sdiv {self.full} {a}, {by}")
        rest = self.f.value(f"sub {self.full} {a}, {self.f.value(f'mul {self.full} {cut}, {by}')}")
        apart = self.f.value(f"icmp slt {self.full} {self.f.value(f'xor {self.full} {rest}, {by}')}, {self._whole(0)}")
        uneven = self.f.value(f"icmp ne {self.full} {rest}, {self._whole(0)}")
        below = self.f.value(f"and {vector('i1', self.lanes)} {apart}, {uneven}")
        down = self.f.value(f"sext {vector('i1', self.lanes)} {below} to {self.full}")
        quotient = self.f.value(f"add {self.full} {cut}, {down}")
        opposite = self.f.value(f"sub {self.full} {self._whole(0)}, {a}")
        quotient = self._select(minus, opposite, quotient, self.full)
        return self._select(none, self._whole(0), quotient, self.full)

    def _whole(self, number: int) -> str:
        return splat(self.one.memory, self.lanes, str(number))

    def _number(self, number: float, wide: Element) -> str:
        return splat(wide.memory, self.lanes, f"{number:.1f}")

    def _equals(self, a: str, b: str) -> str:
        return self.f.value(f"icmp eq {self.full} {a}, {b}")

    def _select(self, condition: str, yes: str, no: str, full: str) -> str:
        return self.f.value(f"select {vector('i1', self.lanes)} {condition}, {full} {yes}, {full} {no}")

    def _intrinsic(self, name: str, a: str, wide: Element) -> str:
        full, name = vector(wide.memory, self.lanes), f"llvm.{name}.{suffix(wide.memory, self.lanes)}"
        self.f.module.declare(name, f"{full} {{}}({full})")
        return self.f.value(f"call {full} @{name}({full} {a})")
