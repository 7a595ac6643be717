"""PTX arithmetic on one thread as C++ expressions; registers are 64 raw bits."""

from __future__ import annotations

import re
from dataclasses import replace

from tileweave.backends.cuda.cpu.ptx import Statement

C_TYPES = {
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "s8": "int8_t", "s16": "int16_t",
    "s32": "int32_t", "s64": "int64_t", "b8": "uint8_t", "b16": "uint16_t", "b32": "uint32_t", "b64": "uint64_t",
    "f16": "_Float16", "f32": "float", "f64": "double", "pred": "bool",
}  # fmt: skip
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_BINARY = {"add": "{0} + {1}", "sub": "{0} - {1}", "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}",
           "div": "{0} / {1}", "rem": "{0} % {1}",
           "min": "{1} < {0} ? {1} : {0}", "max": "{0} < {1} ? {1} : {0}",
           "copysign": "copysign({1}, {0})"}  # fmt: skip
_UNARY = {
    "mov": "{0}", "neg": "-{0}", "abs": "{0} < 0 ? -{0} : {0}", "sqrt": "sqrt({0})", "rsqrt": "1 / sqrt({0})",
    "rcp": "1 / {0}", "ex2": "exp2({0})", "lg2": "log2({0})", "sin": "sin({0})", "cos": "cos({0})", "tanh": "tanh({0})",
    "popc": "__builtin_popcountll((uint64_t){0})", "cnot": "!{0}",
}  # fmt: skip
_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_UNORDERED = {
    "equ": "!=",
    "neu": "==",
    "ltu": ">=",
    "leu": ">",
    "gtu": "<=",
    "geu": "<",
}  # the comparison that must fail
_PACKED = {"add": "+", "sub": "-", "mul": "*"}


def _types(statement: Statement) -> list[str]:
    return [m for m in statement.modifiers if m in C_TYPES or m in ("bf16", "f16x2", "bf16x2", "tf32")]


def scalar_expression(statement: Statement, read: list[str]) -> tuple[str, str] | None:
    """The type and value of the first operand, from C++ texts of the others' raw bits; None for other instructions."""
    opcode, types = statement.modifiers[0], _types(statement)
    if not types or "sync" in statement.modifiers:
        return None
    kind = types[-1]
    if {"relu", "rz", "rm", "rp"} & set(statement.modifiers):
        return None
    if opcode == "cvt":
        return _convert(statement, types, read)
    if "sat" in statement.modifiers:
        plain = replace(statement, opcode=".".join(m for m in statement.modifiers if m != "sat"))
        value = scalar_expression(plain, read) if kind == "f32" else None
        return value and (kind, f"__saturatef({value[1]})")
    if kind in ("f16x2", "bf16x2", "bf16"):
        return _packed(opcode, kind, read)
    if kind not in C_TYPES:
        return None
    typed = [f"::tw::bits<{C_TYPES[kind]}>({r})" for r in read]
    if opcode in ("shl", "shr"):
        count = f"(uint32_t)({read[1]})"
        width = int(re.sub(r"\D", "", kind))
        sign = f"{typed[0]} >> {width - 1}" if kind[0] == "s" else "0"
        operator = "<<" if opcode == "shl" else ">>"
        return kind, f"{count} >= {width} ? {sign if opcode == 'shr' else '0'} : {typed[0]} {operator} {count}"
    if opcode == "not":
        return kind, f"!{typed[0]}" if kind == "pred" else f"~{typed[0]}"
    if opcode == "mul" and "wide" in statement.modifiers:
        wide = C_TYPES[_WIDE[kind]]
        return _WIDE[kind], f"({wide}){typed[0]} * ({wide}){typed[1]}"
    if opcode in ("mul", "mad") and "hi" in statement.modifiers:
        big = "__int128" if kind[0] == "s" else "unsigned __int128"
        high = f"({C_TYPES[kind]})((({big}){typed[0]} * ({big}){typed[1]}) >> {kind[1:]})"
        return kind, high if opcode == "mul" else f"{high} + {typed[2]}"
    if opcode == "mul":
        return kind, f"{typed[0]} * {typed[1]}"
    if opcode == "mad" and "wide" in statement.modifiers:
        wide = C_TYPES[_WIDE[kind]]
        return _WIDE[kind], f"({wide}){typed[0]} * ({wide}){typed[1]} + ::tw::bits<{wide}>({read[2]})"
    if opcode in ("mad", "fma"):
        return kind, f"fma({', '.join(typed)})" if kind[0] == "f" else f"{typed[0]} * {typed[1]} + {typed[2]}"
    if opcode == "selp":
        return kind, f"({read[2]}) ? {typed[0]} : {typed[1]}"
    if opcode == "slct":  # by the sign of the third, whose type is the last
        return types[0], f"::tw::bits<{C_TYPES[kind]}>({read[2]}) >= 0 ? {read[0]} : {read[1]}"
    if opcode in ("setp", "set"):
        found = [_comparison(m, *typed[:2]) for m in statement.modifiers if m in _COMPARE or m in _UNORDERED]
        if opcode == "setp":
            return ("pred", found[0]) if found else None
        return (
            (types[0], f"({found[0]}) ? {'1' if types[0][0] == 'f' else '-1'} : 0")
            if found and len(types) > 1
            else None
        )
    if opcode == "clz":
        return "u32", f"{read[0]} ? __builtin_clzll({read[0]}) - {64 - int(kind[1:])} : {kind[1:]}"
    if opcode == "lop3":
        a, b, c, table = read
        terms = [
            f"(({table}) >> {i} & 1 ? {'' if i & 4 else '~'}(uint32_t)({a}) & {'' if i & 2 else '~'}(uint32_t)({b})"
            f" & {'' if i & 1 else '~'}(uint32_t)({c}) : 0u)"
            for i in range(8)
        ]
        return "b32", " | ".join(terms)
    if opcode == "prmt":
        return ("b32", f"::tw::permuted({', '.join(read)})") if statement.opcode == "prmt.b32" else None
    if opcode == "bfe":
        return kind, f"::tw::field<{C_TYPES[kind]}>({', '.join(read)})"
    if opcode == "bfi":
        mask = f"((((::tw::u64)1 << (({read[3]}) & 255)) - 1) << (({read[2]}) & 255))"
        return kind, f"(({read[1]}) & ~{mask}) | ((({read[0]}) << (({read[2]}) & 255)) & {mask})"
    if opcode == "shf":
        clamp = "c" if "clamp" in statement.modifiers else ""
        return kind, f"__funnelshift_{'l' if 'l' in statement.modifiers else 'r'}{clamp}({', '.join(read)})"
    if opcode in ("sad", "mul24", "mad24", "dp4a", "brev", "bfind"):
        return _of_integers(opcode, kind, statement, typed, read)
    if opcode in ("min", "max") and kind in ("f32", "f64"):  # of a NaN and a number, the number
        return kind, f"f{opcode}({typed[0]}, {typed[1]})"
    if opcode in _BINARY:
        return kind, _BINARY[opcode].format(*typed)
    if opcode in _UNARY:
        return kind, _UNARY[opcode].format(*typed)
    return None


def _comparison(name: str, a: str, b: str) -> str:
    return f"{a} {_COMPARE[name]} {b}" if name in _COMPARE else f"!({a} {_UNORDERED[name]} {b})"


def _of_integers(
    opcode: str, kind: str, statement: Statement, typed: list[str], read: list[str]
) -> tuple[str, str] | None:
    if opcode == "sad":
        return kind, f"({typed[0]} < {typed[1]} ? {typed[1]} - {typed[0]} : {typed[0]} - {typed[1]}) + {typed[2]}"
    if opcode == "brev":
        return kind, f"__brev{'ll' if kind == 'b64' else ''}({read[0]})"
    if opcode == "bfind":
        value = f"({typed[0]} < 0 ? ~{typed[0]} : {typed[0]})" if kind[0] == "s" else typed[0]
        value = f"(uint{kind[1:]}_t){value}"
        if "shiftamt" in statement.modifiers:
            return None
        return "u32", f"{value} ? 63 - __builtin_clzll({value}) : -1"
    if opcode == "dp4a":
        both = kind == next(m for m in statement.modifiers if m in C_TYPES)
        return (kind, f"__dp4a({', '.join(typed)})") if both else None
    if "lo" not in statement.modifiers:
        return None
    low = [f"(({t}) << 8 >> 8)" for t in typed[:2]]
    return kind, f"{low[0]} * {low[1]}" + (f" + {typed[2]}" if opcode == "mad24" else "")


def carried(statement: Statement, read: list[str]) -> str | None:
    """The value of an addition, subtraction or product that reads or sets the carry ``tw_cc``; None for others."""
    opcode, kind = statement.modifiers[0], statement.modifiers[-1]
    if not (opcode in ("addc", "subc", "madc") or "cc" in statement.modifiers) or kind not in C_TYPES:
        return None
    bits, big = kind[1:], "unsigned __int128"
    a, b, *c = (f"({big})(uint{bits}_t)({r})" for r in read)
    if opcode[:3] == "mad":
        product = f"(__int128)(int{bits}_t)({read[0]}) * (int{bits}_t)({read[1]})" if kind[0] == "s" else f"{a} * {b}"
        high = f" >> {bits}" if "hi" in statement.modifiers else ""
        a, b = f"({big})(uint{bits}_t)(({big})({product}){high})", c[0]
    carry = " tw_cc" if opcode[-1] == "c" and opcode != "cc" and len(opcode) == 4 else " 0"
    sign = "-" if opcode[:3] == "sub" else "+"
    keep = f" tw_cc = tw_w >> {bits} & 1;" if "cc" in statement.modifiers else ""
    return f"({{ {big} tw_w = {a} {sign} {b} {sign}{carry};{keep} (uint{bits}_t)tw_w; }})"


def _packed(opcode: str, kind: str, read: list[str]) -> tuple[str, str] | None:
    half = kind.removesuffix("x2")
    kind = "b32" if kind.endswith("x2") else "b16"
    pairs = f"::tw::pairs<::tw::{half}>"
    if opcode in _PACKED:
        return kind, f"{pairs}({read[0]}, {read[1]}, [](float x, float y) {{ return x {_PACKED[opcode]} y; }})"
    if opcode in ("min", "max"):
        return kind, f"{pairs}({read[0]}, {read[1]}, [](float x, float y) {{ return f{opcode}(x, y); }})"
    if opcode in ("neg", "abs", "ex2", "tanh"):
        value = _UNARY[opcode].format("x")
        return kind, f"{pairs}({read[0]}, 0, [](float x, float) {{ return (float)({value}); }})"
    if opcode == "fma":
        return kind, f"{pairs}({', '.join(read)})"
    return None


def _convert(statement: Statement, types: list[str], read: list[str]) -> tuple[str, str] | None:
    to, source = types[-2], types[-1]
    value = f"::tw::half_value<::tw::{source}>({read[0]})" if source in ("f16", "bf16") else None
    value = value or f"::tw::bits<{C_TYPES['f32' if source == 'tf32' else source]}>({read[0]})"
    if to in ("f16x2", "bf16x2"):  # the first source is the high half
        high, low = (f"::tw::bits<float>({r})" for r in read[:2])
        return "b32", f"::tw::pack<::tw::{to[:-2]}>({low}, {high})"
    if to in ("f16", "bf16"):
        return "b16", f"::tw::half_bits<::tw::{to}>((float){value})"
    if to == "tf32":
        return "b32", f"::tw::to_tf32({value})"
    if to not in C_TYPES:
        return None
    whole = next((m for m in ("rni", "rzi", "rmi", "rpi") if m in statement.modifiers), None)
    if whole and source[0] == "f":
        value = {"rni": f"rint({value})", "rzi": f"trunc({value})", "rmi": f"floor({value})", "rpi": f"ceil({value})"}[
            whole
        ]
    if "sat" in statement.modifiers and to == "f32":
        value = f"__saturatef({value})"
    if to[0] in "us" and source[0] == "f":  # out of range becomes the nearest end
        return to, f"tw_converted<{C_TYPES[to]}>({value})"
    if to[0] in "us" and "sat" in statement.modifiers:
        wide = f"(__int128)({value})"
        return to, f"({C_TYPES[to]})::tw::clamped<{C_TYPES[to]}>({wide})"
    return to, f"({C_TYPES[to]})({value})"
