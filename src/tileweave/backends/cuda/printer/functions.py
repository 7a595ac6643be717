"""Element types and elementwise functions as CUDA text: f16 and bf16 compute in f32 and round after each operator."""

from __future__ import annotations

from tileweave.errors import BackendError

#: PTX name of an element type -> its C++ type.
TYPES = {
    "f16": "__half",
    "bf16": "__nv_bfloat16",
    "f32": "float",
    "f64": "double",
    "e4m3": "__nv_fp8_e4m3",
    "e5m2": "__nv_fp8_e5m2",
    "e8m0": "tw_e8m0",
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

#: Powers of two in 8 bits, which are read only: 2^(bits - 127), and all ones is no number.
E8M0 = """struct tw_e8m0 {
  unsigned char bits;
  __host__ __device__ operator float() const {
    const unsigned wide = bits == 255 ? 0x7fc00000u : bits ? (unsigned)bits << 23 : 0x00400000u;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
};"""

#: Function -> its text over {0}, {1}, ..; ``tw_`` names are helpers.
FUNCTIONS = {
    "id": "{0}",
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"))},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in (("eq", "=="), ("ne", "!="), ("and", "&&"), ("or", "||"))},
    **{name: f"tw_{name}({{0}}, {{1}})" for name in ("max", "min", "div")},
    **{
        name: f"tw_{name}({{0}})" for name in ("abs", "sqrt", "exp", "log", "exp2", "log2", "tanh", "erf", "sin", "cos")
    },
    "neg": "-{0}",
    "not": "!{0}",
    "square": "{0} * {0}",
    "rsqrt": "tw_rsqrt({0})",
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


#: Helper -> its definition, as in NumPy: a NaN wins over a number in `tw_max` and `tw_min`; integers are divided
#: towards minus infinity, and by zero give zero; what an integer type cannot hold becomes its nearest number.
#: `tw_odd` cuts an f64 off to f32 and marks a loss in the last bit, so that a narrower type is rounded to once.
HELPERS = {
    "tw_max": "template <class T> __device__ __forceinline__ T tw_max(T a, T b) { return a != a || a > b ? a : b; }",
    "tw_min": "template <class T> __device__ __forceinline__ T tw_min(T a, T b) { return a != a || a < b ? a : b; }",
    "tw_div": "template <class T> __device__ __forceinline__ T tw_div(T a, T b) {\n"
    "  return b == 0 ? 0 : b + 1 == 0 ? T(0 - a) : a / b - (a % b != 0 && (a < 0) != (b < 0));\n}\n"
    "__device__ __forceinline__ float tw_div(float a, float b) { return a / b; }\n"
    "__device__ __forceinline__ double tw_div(double a, double b) { return a / b; }",
    "tw_integer": "template <class T, class F> __device__ __forceinline__ T tw_integer(F a, T least, T most) {\n"
    "  return a != a ? T(0) : a >= (F)most ? most : a <= (F)least ? least : (T)a;\n}",
    "tw_odd": "__device__ __forceinline__ float tw_odd(double a) {\n"
    "  float near = (float)a;\n  if ((double)near == a || a != a) return near;\n  int bits;\n"
    "  memcpy(&bits, &near, 4);\n  bits = (bits - (fabs((double)near) > fabs(a))) | 1;\n"
    "  memcpy(&near, &bits, 4);\n  return near;\n}",
    "tw_rsqrt": "__device__ __forceinline__ double tw_rsqrt(double a) { return 1 / sqrt(a); }\n"
    "__device__ __forceinline__ float tw_rsqrt(float a) {\n"
    "#ifdef TILEWEAVE_CPU\n  return (float)(1 / ::sqrt((double)a));\n#else\n  return rsqrtf(a);\n#endif\n}",
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
        number, end = int(value), {"s64": "ll", "u64": "ull", "u32": "u"}.get(dtype, "")
        if dtype in ("s32", "s64") and number == -(1 << int(dtype[1:]) - 1):
            return f"({number + 1}{end} - 1)"  # the literal without its sign is out of range
        return f"{number}{end}"
    real = float(value)
    if real != real:
        text = "NAN"
    elif real in (float("inf"), float("-inf")):
        text = "INFINITY" if real > 0 else "-INFINITY"
    else:
        text = repr(real) if dtype == "f64" else f"{real!r}f"
        text = text.replace("e+", "e")
    return _narrowed(text, dtype)


def _narrowed(text: str, dtype: str) -> str:
    """A float in a type of fewer than 32 bits, rounded; other types as they are."""
    if dtype in _NARROW:
        return f"{_NARROW[dtype][1]}({text})"
    return f"{TYPES[dtype]}({text})" if dtype in ("e4m3", "e5m2") else text


def applied(function: str, dtype: str, operands: list[tuple[str, str]], where: str, computed: str | None = None) -> str:
    """The text of a function of operands (text, dtype), of a result dtype, computed in that type or in another.

    Raises:
        BackendError: CUDA text cannot say the function.
    """
    if function == "cast":
        return _cast(operands[0][0], operands[0][1], dtype)
    if function not in FUNCTIONS:
        raise BackendError(where, f"no CUDA text for the function {function!r}", legal=" | ".join(sorted(FUNCTIONS)))
    if function == "id":
        return operands[0][0]
    kind = computed or dtype
    wide = [_computed(text, given, kind) for text, given in operands]
    if function == "where" and {given for _, given in operands[1:]} == {dtype}:
        return FUNCTIONS[function].format(wide[0], operands[1][0], operands[2][0])
    text = FUNCTIONS[function].format(*wide)
    if function in ("max", "min", "div") and kind in ("s8", "u8", "s16", "u16"):
        text = text.replace("(", f"<{TYPES[kind]}>(", 1)  # literals are of type int
    return text if function in _COMPARISONS else _narrowed(text, dtype)


def _computed(text: str, source: str, target: str) -> str:
    """An operand in the type that its operator computes in."""
    if source == target or "pred" in (source, target):
        return _wide(text, source)
    if target[0] in "su":
        return _cast(text, source, target)
    if source[0] in "su":
        return f"({'double' if target == 'f64' else 'float'}){text}"
    if "f64" in (source, target):  # C would compute in double wherever one operand is
        return f"({'double' if target == 'f64' else 'float'}){_wide(text, source)}"
    return _wide(text, source)


def _wide(text: str, dtype: str) -> str:
    if dtype in _NARROW:
        return f"{_NARROW[dtype][0]}({text})"
    if dtype in ("e4m3", "e5m2", "e8m0"):
        return f"float({text})"
    return text


def _cast(text: str, source: str, target: str) -> str:
    if source == target:
        return text
    wide = _wide(text, source)
    if target == "e8m0":
        raise BackendError("cast(.., 'e8m0')", "no CUDA text rounds to powers of two", legal="e8m0 is read only")
    if source == "f64" and target in (*_NARROW, "e4m3", "e5m2"):
        wide = f"tw_odd({wide})"
    if target in _NARROW:
        return f"{_NARROW[target][1]}({wide})"
    if target == "pred":
        return f"{wide} != 0"
    if target[0] in "su" and source[0] in "fbe":
        return f"tw_integer<{TYPES[target]}>({wide}, {_limits(target)})"
    return f"({TYPES[target]})({wide})"


def _limits(dtype: str) -> str:
    """The least and the greatest number of an integer type."""
    bits = int(dtype[1:])
    if dtype[0] == "u":
        return f"0, {(1 << bits) - 1}{'ull' if bits == 64 else 'u'}"
    most = (1 << bits - 1) - 1
    end = "ll" if bits == 64 else ""
    return f"-{most}{end} - 1, {most}{end}"
