"""Element types in machine code: how each is held in memory and in registers, and how values convert.

BF16 lives in memory as 16-bit integers and FP16 as ``half``; both are computed in FP32. Conversions round to nearest
even as NumPy's do. Where the processor has no instruction for FP16, integer arithmetic does it, so that no run-time
library is needed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tileweave.backends.cpu.llvm.ir import Function
from tileweave.backends.cpu.target.target import Target


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """A TEIR element type, of which there is one value per name: equality is identity.

    Args:
        name: TEIR's name.
        memory: the LLVM type in memory.
        width_bytes: bytes of one element.
        floating: whether it holds floating-point numbers.
        signed: whether it holds negative numbers.
    """

    name: str
    memory: str
    width_bytes: int
    floating: bool
    signed: bool = True

    @property
    def plain(self) -> bool:
        """Whether arithmetic happens in the memory type itself."""
        return self.name not in ("BF16", "FP16")


_ELEMENTS = {
    "FP64": Element("FP64", "double", 8, True),
    "FP32": Element("FP32", "float", 4, True),
    "BF16": Element("BF16", "i16", 2, True),
    "FP16": Element("FP16", "i16", 2, True),
    "INT64": Element("INT64", "i64", 8, False),
    "INT32": Element("INT32", "i32", 4, False),
    "INT16": Element("INT16", "i16", 2, False),
    "INT8": Element("INT8", "i8", 1, False),
    "UINT64": Element("UINT64", "i64", 8, False, signed=False),
    "UINT32": Element("UINT32", "i32", 4, False, signed=False),
    "UINT16": Element("UINT16", "i16", 2, False, signed=False),
    "UINT8": Element("UINT8", "i8", 1, False, signed=False),
}


def element(name: str) -> Element:
    """The element type of this TEIR name; KeyError when there is none."""
    return _ELEMENTS[name]


def vector(type: str, lanes: int) -> str:
    """The LLVM vector of so many lanes; the scalar type itself for one lane."""
    return type if lanes == 1 else f"<{lanes} x {type}>"


def zero(element: Element, lanes: int = 1) -> str:
    """The constant zero."""
    if lanes > 1:
        return "zeroinitializer"
    return "0.0" if element.memory in ("float", "double") else "0"


def splat(type: str, lanes: int, constant: str) -> str:
    """A constant in every lane."""
    if lanes == 1:
        return constant
    return "<" + ", ".join(f"{type} {constant}" for _ in range(lanes)) + ">"


def convert(f: Function, target: Target, value: str, source: Element, to: Element, lanes: int = 1) -> str:
    """A value of one element type as another, as NumPy's ``astype`` converts it.

    Args:
        f: the function that computes it.
        target: the processor.
        value: scalar or vector, in the source's memory type.
        source: the type it has.
        to: the type it gets.
        lanes: elements in the value.

    Returns:
        The value in the memory type of ``to``.
    """
    if source == to:
        return value
    if not source.floating:
        return _from_integer(f, target, value, source, to, lanes)
    if to.name == "FP16" and source.name == "FP64":
        return _narrow_half(f, target, _round_to_odd(f, value, lanes), lanes)
    wide = _widen(f, target, value, source, lanes)
    held = _ELEMENTS["FP32"] if not source.plain else source
    if to.name == "FP64":
        return wide if held.name == "FP64" else _cast(f, "fpext", wide, "float", "double", lanes)
    if held.name == "FP64":
        wide = _cast(f, "fptrunc", wide, "double", "float", lanes)
    return _narrow(f, target, wide, to, lanes)


def _from_integer(f: Function, target: Target, value: str, source: Element, to: Element, lanes: int) -> str:
    widening, floating = ("sext", "sitofp") if source.signed else ("zext", "uitofp")
    if not to.floating:
        if to.width_bytes == source.width_bytes:
            return value
        operation = widening if to.width_bytes > source.width_bytes else "trunc"
        return _cast(f, operation, value, source.memory, to.memory, lanes)
    if to.plain:
        return _cast(f, floating, value, source.memory, to.memory, lanes)
    return _narrow(f, target, _cast(f, floating, value, source.memory, "float", lanes), to, lanes)


def _cast(f: Function, operation: str, value: str, source: str, to: str, lanes: int) -> str:
    return f.value(f"{operation} {vector(source, lanes)} {value} to {vector(to, lanes)}")


def _widen(f: Function, target: Target, value: str, source: Element, lanes: int) -> str:
    """BF16 and FP16 as FP32; others unchanged."""
    if source.name == "BF16":
        wide = _cast(f, "zext", value, "i16", "i32", lanes)
        return _cast(f, "bitcast", _integer(f, "shl", wide, 16, lanes), "i32", "float", lanes)
    if source.name == "FP16":
        if _has_half(target):
            return _cast(f, "fpext", _cast(f, "bitcast", value, "i16", "half", lanes), "half", "float", lanes)
        return _widen_half(f, value, lanes)
    return value


def _narrow(f: Function, target: Target, value: str, to: Element, lanes: int) -> str:
    """FP32 as FP32, BF16 or FP16."""
    if to.name == "BF16":
        return _narrow_bfloat(f, value, lanes)
    if to.name == "FP16":
        return _narrow_half(f, target, value, lanes)
    return value


def _has_half(target: Target) -> bool:
    return target.has("f16c") or target.has("fullfp16") or target.has("neon")


def _integer(f: Function, operation: str, value: str, constant: int, lanes: int, type: str = "i32") -> str:
    return f.value(f"{operation} {vector(type, lanes)} {value}, {splat(type, lanes, str(constant))}")


def _pair(f: Function, operation: str, a: str, b: str, lanes: int, type: str = "i32") -> str:
    return f.value(f"{operation} {vector(type, lanes)} {a}, {b}")


def _select(f: Function, condition: str, yes: str, no: str, lanes: int, type: str = "i32") -> str:
    full = vector(type, lanes)
    return f.value(f"select {vector('i1', lanes)} {condition}, {full} {yes}, {full} {no}")


def _narrow_bfloat(f: Function, value: str, lanes: int) -> str:
    """Round to nearest even on the bits; a NaN stays a NaN, quiet."""
    bits = _cast(f, "bitcast", value, "float", "i32", lanes)
    odd = _integer(f, "and", _integer(f, "lshr", bits, 16, lanes), 1, lanes)
    rounded = _pair(f, "add", _integer(f, "add", bits, 0x7FFF, lanes), odd, lanes)
    nan = f.value(f"fcmp uno {vector('float', lanes)} {value}, {value}")
    quiet = _integer(f, "or", bits, 0x400000, lanes)
    chosen = _select(f, nan, quiet, rounded, lanes)
    return _cast(f, "trunc", _integer(f, "lshr", chosen, 16, lanes), "i32", "i16", lanes)


def _narrow_half(f: Function, target: Target, value: str, lanes: int) -> str:
    if _has_half(target):
        return _cast(f, "bitcast", _cast(f, "fptrunc", value, "float", "half", lanes), "half", "i16", lanes)
    bits = _cast(f, "bitcast", value, "float", "i32", lanes)
    sign = _integer(f, "and", bits, -0x80000000, lanes)
    size = _pair(f, "xor", bits, sign, lanes)
    # below 2^-14 the sum with 0.5 places the last bit of a subnormal half at the last bit of the float, rounded
    floating = _cast(f, "bitcast", size, "i32", "float", lanes)
    half = splat("float", lanes, "0x3FE0000000000000")
    shifted = f.value(f"fadd {vector('float', lanes)} {floating}, {half}")
    small = _integer(f, "sub", _cast(f, "bitcast", shifted, "float", "i32", lanes), 0x3F000000, lanes)
    odd = _integer(f, "and", _integer(f, "lshr", size, 13, lanes), 1, lanes)
    biased = _pair(f, "add", _integer(f, "add", size, 0xFFF - (112 << 23), lanes), odd, lanes)
    normal = _integer(f, "lshr", biased, 13, lanes)
    is_small = _integer(f, "icmp ult", size, 0x38800000, lanes)
    finite = _select(f, is_small, small, normal, lanes)
    huge = _integer(f, "icmp uge", size, 0x47800000, lanes)
    nan = _integer(f, "icmp ugt", size, 0x7F800000, lanes)
    infinite = _select(f, nan, splat("i32", lanes, "32256"), splat("i32", lanes, "31744"), lanes)
    result = _pair(f, "or", _select(f, huge, infinite, finite, lanes), _integer(f, "lshr", sign, 16, lanes), lanes)
    return _cast(f, "trunc", result, "i32", "i16", lanes)


def _widen_half(f: Function, value: str, lanes: int) -> str:
    wide = _cast(f, "zext", value, "i16", "i32", lanes)
    size = _integer(f, "shl", _integer(f, "and", wide, 0x7FFF, lanes), 13, lanes)
    scale = splat("float", lanes, _float_constant(2.0**112))
    scaled = f.value(f"fmul {vector('float', lanes)} {_cast(f, 'bitcast', size, 'i32', 'float', lanes)}, {scale}")
    bits = _cast(f, "bitcast", scaled, "float", "i32", lanes)
    special = _integer(f, "icmp uge", size, 0x0F800000, lanes)
    chosen = _select(f, special, _integer(f, "or", size, 0x7F800000, lanes), bits, lanes)
    sign = _integer(f, "shl", _integer(f, "and", wide, 0x8000, lanes), 16, lanes)
    return _cast(f, "bitcast", _pair(f, "or", chosen, sign, lanes), "i32", "float", lanes)


def _round_to_odd(f: Function, value: str, lanes: int) -> str:
    """FP64 as FP32 such that a later rounding to FP16 is the right one: inexact results get an odd last bit."""
    doubles, floats = vector("double", lanes), vector("float", lanes)
    near = f.value(f"fptrunc {doubles} {value} to {floats}")
    back = f.value(f"fpext {floats} {near} to {doubles}")
    inexact = f.value(f"fcmp one {doubles} {back}, {value}")
    magnitude = [_absolute(f, v, lanes) for v in (back, value)]
    beyond = f.value(f"fcmp ogt {doubles} {magnitude[0]}, {magnitude[1]}")
    bits = _cast(f, "bitcast", near, "float", "i32", lanes)
    toward_zero = _select(f, beyond, _integer(f, "sub", bits, 1, lanes), bits, lanes)
    odd = _integer(f, "or", toward_zero, 1, lanes)
    return _cast(f, "bitcast", _select(f, inexact, odd, bits, lanes), "i32", "float", lanes)


def _absolute(f: Function, value: str, lanes: int) -> str:
    bits = _cast(f, "bitcast", value, "double", "i64", lanes)
    cleared = _integer(f, "and", bits, 0x7FFFFFFFFFFFFFFF, lanes, "i64")
    return _cast(f, "bitcast", cleared, "i64", "double", lanes)


def _float_constant(number: float) -> str:
    """LLVM writes a float as the bits of the double of the same value."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
