"""PTX arithmetic on one thread as C++ expressions; registers are 64 raw bits."""

from __future__ import annotations

import re

from tileweave.backends.cuda.cpu.ptx import Statement

C_TYPES = {
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "s8": "int8_t", "s16": "int16_t",
    "s32": "int32_t", "s64": "int64_t", "b8": "uint8_t", "b16": "uint16_t", "b32": "uint32_t", "b64": "uint64_t",
    "f16": "_Float16", "f32": "float", "f64": "double", "pred": "bool",
}  # fmt: skip
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_BINARY = {"add": "{0} + {1}", "sub": "{0} - {1}", "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}",
           "div": "{0} / {1}", "rem": "{0} % {1}",
           "min": "{1} < {0} ? {1} : {0}", "max": "{0} < {1} ? {1} : {0}"}  # fmt: skip
_UNARY = {
    "mov": "{0}", "neg": "-{0}", "abs": "{0} < 0 ? -{0} : {0}", "sqrt": "sqrt({0})", "rsqrt": "1 / sqrt({0})",
    "rcp": "1 / {0}", "ex2": "exp2({0})", "lg2": "log2({0})", "sin": "sin({0})", "cos": "cos({0})", "tanh": "tanh({0})",
    "popc": "__builtin_popcountll((uint64_t){0})", "brev": "__brev({0})",
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
_PACKED = {"add": "+", "sub": "-", "mul": "*"}


def _types(statement: Statement) -> list[str]:
    return [m for m in statement.modifiers if m in C_TYPES or m in ("bf16", "f16x2", "bf16x2", "tf32")]


def scalar_expression(statement: Statement, read: list[str]) -> tuple[str, str] | None:
    """The type and value of the first operand, from C++ texts of the others' raw bits; None for other instructions."""
    opcode, types = statement.modifiers[0], _types(statement)
    if not types or "sync" in statement.modifiers:
        return None
    kind = types[-1]
    if opcode == "cvt":
        return _convert(statement, types, read)
    if kind in ("f16x2", "bf16x2"):
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
    if opcode in ("selp", "slct"):
        return kind, f"({read[2]}) ? {typed[0]} : {typed[1]}"
    if opcode == "setp" or opcode == "set":
        compare = next((_COMPARE[m] for m in statement.modifiers if m in _COMPARE), None)
        return ("pred", f"{typed[0]} {compare} {typed[1]}") if compare else None
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
        return "b32", f"__byte_perm({', '.join(read)})"
    if opcode == "bfe":
        return kind, f"({typed[0]} >> ({read[1]})) & ((1ull << ({read[2]})) - 1)"
    if opcode in _BINARY:
        return kind, _BINARY[opcode].format(*typed)
    if opcode in _UNARY:
        return kind, _UNARY[opcode].format(*typed)
    return None


def _packed(opcode: str, kind: str, read: list[str]) -> tuple[str, str] | None:
    half = kind[:-2]
    if opcode in _PACKED:
        return (
            "b32",
            f"::tw::pairs<::tw::{half}>({read[0]}, {read[1]}, [](float x, float y) {{ "
            f"return x {_PACKED[opcode]} y; }})",
        )
    if opcode in ("min", "max"):
        return (
            "b32",
            f"::tw::pairs<::tw::{half}>({read[0]}, {read[1]}, [](float x, float y) {{ return f{opcode}(x, y); }})",
        )
    if opcode == "fma":
        return "b32", f"::tw::pairs<::tw::{half}>({read[0]}, {read[1]}, {read[2]})"
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
    return to, f"({C_TYPES[to]})({value})"
