"""Element types and elementwise functions as CUDA text: f16 and bf16 compute in f32 and round after each operator."""

from __future__ import annotations

from tileweave.errors import BackendError

__all__ = ["FUNCTIONS", "HELPERS", "TYPES", "applied", "constant"]

#: PTX name of an element type -> its C++ type.
TYPES = {
    "f16": "__half",
    "bf16": "__nv_bfloat16",
    "f32": "float",
    "f64": "double",
    "e4m3": "__nv_fp8_e4m3",
    "e5m2": "__nv_fp8_e5m2",
    "s8": "signed char",
    "s16": "short",
    "s32": "int",
    "s64": "long long",
    "u8": "unsigned char",
    "u16": "unsigned short",
    "u32": "unsigned",
    "u64": "unsigned long long",
    "b8": "unsigned char",
    "b16": "unsigned short",
    "b32": "unsigned",
    "pred": "bool",
}

_NARROW = {"f16": ("__half2float", "__float2half_rn"), "bf16": ("__bfloat162float", "__float2bfloat16_rn")}

#: Function -> its text over {0}, {1}, ..; ``tw_`` names are helpers.
FUNCTIONS = {
    "id": "{0}",
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("div", "/"))},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("eq", "=="), ("ne", "!="), ("and", "&&"), ("or", "||"))},
    **{name: f"tw_{name}({{0}}, {{1}})" for name in ("max", "min")},
    **{
        name: f"tw_{name}({{0}})" for name in ("abs", "sqrt", "exp", "log", "exp2", "log2", "tanh", "erf", "sin", "cos")
    },
    "neg": "-{0}",
    "not": "!{0}",
    "square": "{0} * {0}",
    "rsqrt": "1 / tw_sqrt({0})",
    "recip": "1 / {0}",
    "floor": "floor({0})",
    "fma": "fma({0}, {1}, {2})",
    "where": "{0} ? {1} : {2}",
}

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def _smooth(name: str) -> str:
    """A function computed in f64 and rounded; on a device in the type's own precision."""
    return (
        f"__device__ __forceinline__ double tw_{name}(double a) {{ return ::{name}(a); }}\n"
        f"__device__ __forceinline__ float tw_{name}(float a) {{\n"
        f"#ifdef TILEWEAVE_CPU\n  return (float)::{name}((double)a);\n#else\n  return {name}f(a);\n#endif\n}}"
    )


#: Helper -> its definition. A NaN wins over a number in `tw_max` and `tw_min`, as in NumPy.
HELPERS = {
    "tw_max": "template <class T> __device__ __forceinline__ T tw_max(T a, T b) { return a != a || a > b ? a : b; }",
    "tw_min": "template <class T> __device__ __forceinline__ T tw_min(T a, T b) { return a != a || a < b ? a : b; }",
    "tw_abs": "template <class T> __device__ __forceinline__ T tw_abs(T a) { return a < 0 ? -a : a == 0 ? 0 : a; }",
    "tw_sqrt": "__device__ __forceinline__ float tw_sqrt(float a) { return sqrtf(a); }\n"
    "__device__ __forceinline__ double tw_sqrt(double a) { return sqrt(a); }",
    **{f"tw_{name}": _smooth(name) for name in ("exp", "log", "exp2", "log2", "tanh", "erf", "sin", "cos")},
}


def constant(value: float | int | bool, dtype: str) -> str:
    """A number as a literal of a type."""
    if dtype == "pred":
        return "true" if value else "false"
    if dtype[0] in "su":
        return f"{int(value)}{'ll' if dtype in ('s64', 'u64') else ''}"
    number = float(value)
    if number != number:
        text = "NAN"
    elif number in (float("inf"), float("-inf")):
        text = "INFINITY" if number > 0 else "-INFINITY"
    else:
        text = repr(number) if dtype == "f64" else f"{number!r}f"
        text = text.replace("e+", "e")
    if dtype in _NARROW:
        return f"{_NARROW[dtype][1]}({text})"
    return text


def applied(function: str, dtype: str, operands: list[tuple[str, str]], where: str) -> str:
    """The text of a function of operands (text, dtype), of a result dtype.

    Raises:
        BackendError: CUDA text cannot say the function.
    """
    if function == "cast":
        return _cast(operands[0][0], operands[0][1], dtype)
    if function not in FUNCTIONS:
        raise BackendError(where, f"no CUDA text for the function {function!r}", legal=" | ".join(sorted(FUNCTIONS)))
    if function == "id":
        return operands[0][0]
    wide = [_computed(text, given, dtype) for text, given in operands]
    if function == "where" and dtype in _NARROW:
        return FUNCTIONS[function].format(wide[0], operands[1][0], operands[2][0])
    text = FUNCTIONS[function].format(*wide)
    if function in _COMPARISONS or dtype not in _NARROW:
        return text
    return f"{_NARROW[dtype][1]}({text})"


def _computed(text: str, source: str, target: str) -> str:
    """An operand in the type that its operator computes in: an integer beside a float becomes a float."""
    if source[0] in "su" and target[0] in "fbe":
        return f"({'double' if target == 'f64' else 'float'}){text}"
    return _wide(text, source)


def _wide(text: str, dtype: str) -> str:
    if dtype in _NARROW:
        return f"{_NARROW[dtype][0]}({text})"
    if dtype in ("e4m3", "e5m2"):
        return f"float({text})"
    return text


def _cast(text: str, source: str, target: str) -> str:
    if source == target:
        return text
    wide = _wide(text, source)
    if target in _NARROW:
        return f"{_NARROW[target][1]}({wide if source != 'f64' else f'(float){wide}'})"
    if target == "pred":
        return f"{wide} != 0"
    return f"({TYPES[target]})({wide})"
