"""What TEIR's operations mean in registers: scalars or vectors in, a scalar or a vector out.

Values are held as in memory. Narrow floating point is widened to FP32, computed there, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tileweave.backends.cpu.llvm import functions, turns
from tileweave.backends.cpu.llvm.elements import Element, convert, element, splat, vector, zero
from tileweave.backends.cpu.llvm.functions import Floats
from tileweave.backends.cpu.llvm.integers import Integers
from tileweave.backends.cpu.llvm.ir import Function
from tileweave.backends.cpu.llvm.vectors import broadcast, suffix
from tileweave.backends.cpu.target.target import Target
from tileweave.index.sizes import exactly
from tileweave.teir.ir.dtypes import accumulator, numpy_dtype
from tileweave.teir.ir.extensions import NEUTRAL
from tileweave.teir.merged.form import MONOIDS

_FUNCTIONS: dict[str, Callable[[Floats, str], str]] = {
    "Exp": functions.exp,
    "Log": functions.log,
    "Sqrt": functions.sqrt,
    "Tanh": functions.tanh,
    "Sigmoid": functions.sigmoid,
    "Erf": functions.erf,
    "Gelu": functions.gelu,
    "Sin": turns.sin,
    "Cos": turns.cos,
}
_OF_TWO: dict[str, Callable[[Floats, str, str], str]] = {"LogAddExp": functions.logaddexp}
_ROUNDED = frozenset(("Floor", "Ceil", "Trunc", "Rint"))
_ARITHMETIC = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Bias": "add", "Scale": "mul"}
_BITS = {"And": "and", "Or": "or", "Xor": "xor"}
COMPARISONS = {
    "Less": ("olt", "slt", "ult"),
    "LessEqual": ("ole", "sle", "ule"),
    "Greater": ("ogt", "sgt", "ugt"),
    "GreaterEqual": ("oge", "sge", "uge"),
    "Equal": ("oeq", "eq", "eq"),
    "NotEqual": ("une", "ne", "ne"),
}
"""Comparison -> LLVM's, of floating point, of integers and of unsigned ones."""
_TESTS = {"IsZero": "Equal", "NonZero": "NotEqual"}
"""Comparisons with zero."""
_SIZES = {"IsNan": "uno", "IsInf": "oeq", "IsFinite": "olt"}
"""How LLVM compares the size of a number with infinity."""
_WHOLE: dict[str, Callable[[Integers, str, str], str]] = {
    "FloorDiv": Integers.floor_divide,
    "Remainder": Integers.remainder,
    "ShiftLeft": partial(Integers.shift, left=True),
    "ShiftRight": partial(Integers.shift, left=False),
}
_SIGNED = "Neg", "Abs", "Sign"
_FILLS = {"Zero": 0, "One": 1, "Lowest": float("-inf"), "Highest": float("inf")}

CHEAP = frozenset(("Zero", "One", "Lowest", "Highest", "Fill", "Copy", "ReLU"))
"""Operations that do not compute in a wider type than those of their operands."""
HEAVY = frozenset((*_FUNCTIONS, *_OF_TWO, "FloorDiv", "Remainder"))
"""Operations of dozens of instructions per vector."""
KNOWN = frozenset(
    (*CHEAP, *_FUNCTIONS, *_ROUNDED, *_ARITHMETIC, *_BITS, *_WHOLE, *COMPARISONS, *_TESTS, *_SIZES, *MONOIDS, *_SIGNED)
) | {"Max", "Min", "Select", "Cast", "Wrap", *_OF_TWO}
"""Operations that there is code for."""


class Registers:
    """Writes the values of operations.

    Args:
        f: the function that computes.
        target: the processor.
        lanes: elements per value.
    """

    def __init__(self, f: Function, target: Target, lanes: int) -> None:
        self.f = f
        self.target = target
        self.lanes = lanes

    def convert(self, value: str, source: Element, to: Element) -> str:
        """As NumPy's ``astype``."""
        return convert(self.f, self.target, value, source, to, self.lanes)

    def fill(self, number: float, out: Element) -> str:
        """A number in every lane; infinities are the ends of an integer's range."""
        number = exactly(number)
        if out.plain and out.floating:
            return self.floats(out).constant(number)
        if out.floating:
            bits = int(numpy_dtype(out.name).type(number).view("int16"))
            return splat(out.memory, self.lanes, str(bits))
        low, end = (-1 << (8 * out.width_bytes - 1), 1 << (8 * out.width_bytes - 1))
        if not out.signed:
            low, end = 0, end - low
        return splat(out.memory, self.lanes, str(int(max(low, min(end - 1, number)))))

    def held(self, number: float, out: Element) -> str:
        """A number that may depend on sizes, such as the inverse of a count: its bits come from the table of sizes."""
        sizes, bits = self.f.module.sizes, 8 * out.width_bytes
        if sizes is None or number in (0.0, 1.0) or not math.isfinite(number):
            return self.fill(number, out)
        word = str(sizes.constant(number, lambda one: int(numpy_dtype(out.name).type(one).view(f"int{bits}"))))
        narrow = word if bits == 64 else self.f.value(f"trunc i64 {word} to i{bits}")
        return broadcast(self.f, out.memory, self.lanes, self.f.value(f"bitcast i{bits} {narrow} to {out.memory}"))

    def floats(self, wide: Element) -> Floats:
        """Arithmetic in FP32 or FP64."""
        return Floats(self.f, self.target, wide.memory, self.lanes)

    def value(
        self, kind: str, inputs: Sequence[tuple[str, Element]], out: Element, old: str = "", number: float = 0.0
    ) -> str:
        """What an elementwise operation writes.

        Args:
            kind: the operation.
            inputs: values with their types.
            out: the type of the result.
            old: what the output held, for operations in place.
            number: of a Fill.
        """
        if kind == "Fill" and self.f.module.sizes is not None and out.plain and out.floating:
            return self.held(number, out)
        if kind == "Fill" or kind in _FILLS:
            return self.fill(_FILLS.get(kind, number), out)
        value, source = inputs[0]
        if kind == "ReLU":
            return relu(self.f, value, out, self.lanes)
        if kind == "Copy":
            return self.convert(value, source, out)
        if kind == "Cast":
            return self.cast(value, source, out)
        if kind == "Wrap":
            wide = wide_of(source)
            return Integers(self.f, out, self.lanes).wrapped(self.convert(value, source, wide), wide, self.target)
        if kind in _SIZES:
            return self.sized(kind, value, source, out)
        if kind in _TESTS:
            kind, inputs = _TESTS[kind], [(value, source), (self.fill(0, source), source)]
        if kind in COMPARISONS:
            return self.compared(kind, inputs, out)
        if kind == "Select":
            full = vector(source.memory, self.lanes)
            chosen = self.f.value(f"icmp ne {full} {value}, {zero(source, self.lanes)}")
            return self.select(chosen, inputs[1][0], inputs[2][0], vector(out.memory, self.lanes))
        wide = wide_of(out)
        values = [self.convert(x, e, wide) for x, e in inputs]
        if kind in _FUNCTIONS:
            result = _FUNCTIONS[kind](self.floats(wide), values[0])
        elif kind in _OF_TWO:
            result = _OF_TWO[kind](self.floats(wide), values[0], values[1])
        elif kind in _ROUNDED:
            result = self.intrinsic(kind.lower(), values[0], wide)
        elif kind in _SIGNED:
            result = self.signed(kind, values[0], wide)
        elif kind in _WHOLE:
            result = _WHOLE[kind](Integers(self.f, wide, self.lanes), values[0], values[1])
        elif kind in _BITS:
            result = self.f.value(f"{_BITS[kind]} {vector(wide.memory, self.lanes)} {values[0]}, {values[1]}")
        elif kind in ("Max", "Min"):
            result = self.extreme(kind == "Max", values[0], values[1], wide)
        else:
            if old:
                values.insert(0, self.convert(old, out, wide))
            result = self.arithmetic(_ARITHMETIC[kind], values[0], values[1], wide)
        return self.convert(result, wide, out)

    def compared(self, kind: str, inputs: Sequence[tuple[str, Element]], out: Element) -> str:
        """1 or 0 per lane."""
        truth = self.truth(kind, inputs)
        return self.f.value(f"zext {vector('i1', self.lanes)} {truth} to {vector(out.memory, self.lanes)}")

    def sized(self, kind: str, value: str, source: Element, out: Element) -> str:
        """1 or 0 per lane, by the size of a number."""
        wide = wide_of(source)
        size = self.intrinsic("fabs", self.convert(value, source, wide), wide)
        full, infinity = vector(wide.memory, self.lanes), self.fill(math.inf, wide)
        truth = self.f.value(f"fcmp {_SIZES[kind]} {full} {size}, {infinity}")
        return self.f.value(f"zext {vector('i1', self.lanes)} {truth} to {vector(out.memory, self.lanes)}")

    def truth(self, kind: str, inputs: Sequence[tuple[str, Element]]) -> str:
        """How two values compare, one bit per lane."""
        wide = wide_of(inputs[0][1])
        a, b = (self.convert(x, e, wide) for x, e in inputs)
        predicate = COMPARISONS[kind][0 if wide.floating else 1 if wide.signed else 2]
        operation = "fcmp" if wide.floating else "icmp"
        return self.f.value(f"{operation} {predicate} {vector(wide.memory, self.lanes)} {a}, {b}")

    def arithmetic(self, operation: str, a: str, b: str, wide: Element) -> str:
        """add, sub, mul, div; integers wrap."""
        return self.f.value(f"{'f' if wide.floating else ''}{operation} {vector(wide.memory, self.lanes)} {a}, {b}")

    def signed(self, kind: str, a: str, wide: Element) -> str:
        """``-a``, ``|a|``: of floating point the sign bit alone; the least integer stays what it is. Or -1, 0, 1."""
        full = vector(wide.memory, self.lanes)
        if not wide.signed and kind != "Neg":
            return a if kind == "Abs" else self.extreme(False, a, self.fill(1, wide), wide)
        if kind == "Sign":
            result = a
            for sign, (of_floats, of_integers) in ((1, ("ogt", "sgt")), (-1, ("olt", "slt"))):
                compare = f"fcmp {of_floats}" if wide.floating else f"icmp {of_integers}"
                chosen = self.f.value(f"{compare} {full} {a}, {zero(wide, self.lanes)}")
                result = self.select(chosen, self.fill(sign, wide), result, full)
            return self.arithmetic("add", result, zero(wide, self.lanes), wide)  # of -0 it is 0
        if not wide.floating:
            negative = self.f.value(f"sub {full} {zero(wide, self.lanes)}, {a}")
            if kind == "Neg":
                return negative
            return self.select(self.f.value(f"icmp slt {full} {a}, {zero(wide, self.lanes)}"), negative, a, full)
        if kind == "Neg":
            return self.f.value(f"fneg {full} {a}")
        return self.intrinsic("fabs", a, wide)

    def intrinsic(self, name: str, a: str, wide: Element) -> str:
        """LLVM's own function of one number."""
        full, name = vector(wide.memory, self.lanes), f"llvm.{name}.{suffix(wide.memory, self.lanes)}"
        self.f.module.declare(name, f"{full} {{}}({full})")
        return self.f.value(f"call {full} @{name}({full} {a})")

    def extreme(self, greatest: bool, a: str, b: str, wide: Element) -> str:
        """The greater or the lesser, NaN kept."""
        full = vector(wide.memory, self.lanes)
        if not wide.floating:
            ahead = COMPARISONS["Greater" if greatest else "Less"][1 if wide.signed else 2]
            return self.select(self.f.value(f"icmp {ahead} {full} {a}, {b}"), a, b, full)
        chosen = self.f.value(f"fcmp {'ogt' if greatest else 'olt'} {full} {a}, {b}")
        result = self.select(chosen, a, b, full)  # b where either is NaN
        return self.select(self.f.value(f"fcmp uno {full} {a}, {a}"), a, result, full)

    def select(self, condition: str, yes: str, no: str, full: str) -> str:
        """Per lane, one of two values."""
        return self.f.value(f"select {vector('i1', self.lanes)} {condition}, {full} {yes}, {full} {no}")

    def cast(self, value: str, source: Element, out: Element) -> str:
        """Between any types; floating point is cut and clamped to an integer's range, NaN is 0."""
        if not source.floating or out.floating:
            return self.convert(value, source, out)
        wide = wide_of(source)
        into, full = vector(out.memory, self.lanes), vector(wide.memory, self.lanes)
        kinds = f"{suffix(out.memory, self.lanes)}.{suffix(wide.memory, self.lanes)}"
        name = f"llvm.fpto{'s' if out.signed else 'u'}i.sat.{kinds}"
        self.f.module.declare(name, f"{into} {{}}({full})")
        return self.f.value(f"call {into} @{name}({full} {self.convert(value, source, wide)})")

    # ---- reductions ---------------------------------------------------------------------------------------------

    def neutral(self, monoid: str, wide: Element) -> str:
        """The neutral element, in the type of the accumulator."""
        return self.fill(_FILLS[NEUTRAL[monoid]], wide)

    def taken(self, kind: str, inputs: Sequence[tuple[str, Element]], wide: Element) -> str:
        """An element of the monoid from the inputs of a reduction."""
        values = [self.convert(x, e, wide) for x, e in inputs]
        return self.arithmetic("mul", values[0], values[1], wide) if kind == "Contraction" else values[0]

    def combined(self, monoid: str, a: str, b: str, wide: Element) -> str:
        """Two elements of the monoid as one."""
        if monoid in ("max", "min"):
            return self.extreme(monoid == "max", a, b, wide)
        if monoid == "logaddexp":
            return functions.logaddexp(self.floats(wide), a, b)
        return self.arithmetic("add" if monoid == "sum" else "mul", a, b, wide)

    def multiply_add(self, inputs: Sequence[tuple[str, Element]], old: str, wide: Element) -> str:
        """``old + in0 * in1``, in one rounding where the processor can."""
        a, b = (self.convert(x, e, wide) for x, e in inputs)
        if wide.floating:
            return self.floats(wide).multiply_add(a, b, old)
        return self.arithmetic("add", old, self.arithmetic("mul", a, b, wide), wide)


def wide_of(one: Element) -> Element:
    """The type in which values of a type are computed."""
    return element(accumulator(one.name))


def total_of(monoid: str, piece: Element) -> Element:
    """The type in which the pieces of a reduction are combined: of sums in FP32 it is FP64, so that no rounding between
    pieces shows, however many there are."""
    return element("FP64") if monoid == "sum" and piece.name == "FP32" else piece


def relu(f: Function, value: str, element: Element, lanes: int) -> str:
    """``max(value, 0)`` with NaN kept."""
    full = vector(element.memory, lanes)
    nothing = zero(element, lanes)
    if not element.signed:
        return value
    if not element.floating:
        keep = f.value(f"icmp sgt {full} {value}, {nothing}")
    elif element.plain:
        keep = f.value(f"fcmp ugt {full} {value}, {nothing}")
    else:
        return _relu_bits(f, value, element, lanes)
    return f.value(f"select {vector('i1', lanes)} {keep}, {full} {value}, {full} {nothing}")


def _relu_bits(f: Function, value: str, element: Element, lanes: int) -> str:
    """The same on the bits of BF16 and FP16: negative numbers become zero, negative NaNs do not."""
    infinity = 0xFF80 if element.name == "BF16" else 0xFC00
    full = vector("i16", lanes)
    limit = splat("i16", lanes, str(infinity - 65536))
    positive = f.value(f"icmp sge {full} {value}, {zero(element, lanes)}")
    nan = f.value(f"icmp ugt {full} {value}, {limit}")
    keep = f.value(f"or {vector('i1', lanes)} {positive}, {nan}")
    return f.value(f"select {vector('i1', lanes)} {keep}, {full} {value}, {full} {zero(element, lanes)}")
