"""The languages that expressions are printed in, as tables: words, width, rounding of division, laziness of select."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tileweave.index.text.spell import AND, ATOM, COMPARE, OR, PRODUCT, SHIFT, SUM, XOR

Written = tuple[str, int]
"""A format string and its binding strength."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one language writes integer expressions.

    Args:
        name: ``python``, ``numpy``, ``triton``, ``c``, ``cuda``, ``mlir``.
        infix: op -> sign and binding strength; for `MLIR`, which has no infix text, none.
        calls: op -> a format string with one ``{}`` per operand; for `MLIR` the name of the operation.
        floor: ``//`` and ``%`` where the signs are not proved -> a format of dividend {0} and divisor {1}; empty where
            the signs of `infix` round down by themselves.
        shifts: ``//`` and ``%`` by ``2**k`` -> a format of the dividend {0} and k or ``2**k - 1`` {1}, any sign.
        lazy: ``select`` evaluates only the chosen branch; elsewhere a divisor in a branch is kept from being zero.
        width: bits of its narrow integers; None: unbounded.
        widen: a format that makes a number 64 bits wide; empty where there is one width.
        statement: a format of ``{type}``, ``{name}`` and ``{text}``.
        words: names that text in this language gives a meaning of its own.
    """

    name: str
    infix: Mapping[str, Written]
    calls: Mapping[str, str]
    floor: Mapping[str, Written] = field(default_factory=dict)
    shifts: Mapping[str, Written] = field(default_factory=dict)
    lazy: bool = False
    width: int | None = None
    widen: str = ""
    statement: str = "{name} = {text}"
    words: frozenset[str] = frozenset()


_INFIX = {
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "floordiv": ("//", PRODUCT), "mod": ("%", PRODUCT),
    "xor": ("^", XOR), "lt": ("<", COMPARE), "le": ("<=", COMPARE), "eq": ("==", COMPARE), "ne": ("!=", COMPARE),
    "and": ("&", AND), "or": ("|", OR),
}  # fmt: skip

_C_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool catch class
delete new operator private protected public template this throw try typename using virtual namespace asm
int32_t int64_t tw_floordiv tw_floormod tw_min tw_max tw_isqrt
"""

PYTHON = Dialect(
    "python",
    _INFIX,
    {
        "min": "min({}, {})",
        "max": "max({}, {})",
        "isqrt": "math.isqrt({})",
        "select": "(({1}) if ({0}) else ({2}))",
        "not": "(not ({}))",
    },
    lazy=True,
    words=frozenset(("min", "max", "math")),
)
NUMPY = Dialect(
    "numpy",
    _INFIX,
    {
        "min": "np.minimum({}, {})",
        "max": "np.maximum({}, {})",
        "isqrt": "np.floor(np.sqrt({})).astype(np.int64)",
        "select": "np.where({}, {}, {})",
        "not": "np.logical_not({})",
    },
    words=frozenset(("np",)),
)
TRITON = Dialect(
    "triton",
    _INFIX,
    {
        "min": "tl.minimum({}, {})",
        "max": "tl.maximum({}, {})",
        "isqrt": "tl.cast(tl.sqrt(tl.cast({}, tl.float64)), tl.int64)",
        "select": "tl.where({}, {}, {})",
        "not": "(({}) == 0)",
    },
    floor={
        "floordiv": ("({0} - ({0} % {1} + {1}) % {1}) // {1}", PRODUCT),
        "mod": ("({0} % {1} + {1}) % {1}", PRODUCT),
    },
    shifts={"floordiv": ("{0} >> {1}", SHIFT), "mod": ("{0} & {1}", AND)},
    width=32,
    widen="tl.cast({}, tl.int64)",
    words=frozenset(("tl",)),
)
C = Dialect(
    "c",
    {op: written for op, written in _INFIX.items() if op not in ("and", "or", "xor")}
    | {"floordiv": ("/", PRODUCT), "mod": ("%", PRODUCT)},
    {
        "min": "tw_min({}, {})",
        "max": "tw_max({}, {})",
        "isqrt": "tw_isqrt({})",
        "select": "(({}) ? ({}) : ({}))",
        "not": "(!({}))",
        "and": "(({}) && ({}))",
        "or": "(({}) || ({}))",
        "xor": "(({}) ^ ({}))",
    },
    floor={"floordiv": ("tw_floordiv({0}, {1})", ATOM), "mod": ("tw_floormod({0}, {1})", ATOM)},
    # C binds & and >> otherwise than Python: COMPARE makes whatever stands around add parentheses
    shifts={"floordiv": ("{0} >> {1}", COMPARE), "mod": ("{0} & {1}", COMPARE)},
    lazy=True,
    width=64,
    widen="(int64_t){}",
    statement="const {type} {name} = {text};",
    words=frozenset(_C_WORDS.split()),
)
CUDA = Dialect(
    "cuda",
    C.infix,
    C.calls,
    C.floor,
    C.shifts,
    lazy=True,
    width=64,
    widen=C.widen,
    statement=C.statement,
    words=C.words | {"threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"},
)
MLIR = Dialect(
    "mlir",
    {},
    {
        "add": "addi", "sub": "subi", "mul": "muli", "xor": "xori", "min": "minsi", "max": "maxsi",
        "floordiv": "divui", "mod": "remui", "select": "select", "and": "andi", "or": "ori",
        "lt": "cmpi slt,", "le": "cmpi sle,", "eq": "cmpi eq,", "ne": "cmpi ne,",
    },
    floor={"floordiv": ("floordivsi", ATOM), "mod": ("remsi", ATOM)},
    shifts={"floordiv": ("shrsi", ATOM), "mod": ("andi", ATOM)},
    width=64,
    statement="{name} = arith.{text} : {type}",
)  # fmt: skip

AFFINE = replace(MLIR, name="affine")

DIALECTS = {dialect.name: dialect for dialect in (PYTHON, NUMPY, TRITON, C, CUDA, MLIR)}
