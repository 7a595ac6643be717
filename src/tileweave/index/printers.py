"""Expressions as Python, Triton, C, CUDA and MLIR text that evaluates to the same numbers, also for negative values.

Python's ``//`` and ``%`` round down; those of C and Triton round towards zero. Where the ranges prove that dividend
and divisor are never negative the plain operators are printed; a power of two becomes an arithmetic shift or a mask;
everything else goes through a helper (`c_prelude`) or a longer formula.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import Literal

from tileweave.errors import LayoutError
from tileweave.index.cost import exprs_of
from tileweave.index.expr import Expr, ExprLike, symbols_of, walk
from tileweave.index.normal import Normalizer
from tileweave.index.ranges import Interval, interval_of
from tileweave.index.text import (
    AND,
    ATOM,
    COMPARE,
    OR,
    PRODUCT,
    SHIFT,
    SUM,
    UNARY,
    XOR,
    Piece,
    Spelling,
    bracket,
    spell,
    tree_size,
)

__all__ = ["c_prelude", "to_c", "to_mlir", "to_python"]

LARGEST_TREE = 200_000
"""Nodes of an expression written out as a tree beyond which text without temporaries is refused."""

Exprs = ExprLike | Iterable[ExprLike]


def to_python(
    exprs: Exprs,
    names: Sequence[str] | None = None,
    *,
    dialect: Literal["python", "numpy", "triton"] = "python",
    cse: bool = False,
    rename: Mapping[str, str] | None = None,
) -> str:
    """Python text with the values of the expressions: one expression inline, or one assignment per name.

    Args:
        exprs: one expression, or several.
        names: what to assign to, one per expression; needed for several, or with `cse`.
        dialect: ``"python"`` for ints; ``"numpy"`` for arrays (``np``); ``"triton"`` for kernels (``tl``), whose
            division rounds towards zero.
        cse: assign every part that is used twice to a temporary ``t0, t1, ..`` first.
        rename: symbol name -> text to write for it, such as ``tl.program_id(0)``.

    Raises:
        LayoutError: names that do not fit, or text that would be too long without `cse`.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> t = symbol("t", 0, 256)
        >>> to_python(t // 8 * 4 + t % 8)
        't // 8 * 4 + t % 8'
        >>> print(to_python([t // 8, t // 8 + 1], ["a", "b"], cse=True))
        t0 = t // 8
        a = t0
        b = t0 + 1
    """
    where = "to_python(exprs)"
    roots = exprs_of(exprs)
    if not isinstance(dialect, str) or dialect not in _CALLS:
        raise LayoutError(where, f"unknown dialect {dialect!r}", legal=", ".join(_CALLS))
    spelling = _python_spelling(dialect, _Signs(roots) if dialect == "triton" else None)
    return _program(where, roots, names, spelling, cse, rename, "{name} = {text}", reserved=_TAKEN[dialect])


def to_c(
    exprs: Exprs,
    names: Sequence[str] | None = None,
    *,
    ctype: str = "int64_t",
    cse: bool = False,
    rename: Mapping[str, str] | None = None,
) -> str:
    """C or CUDA text with the values of the expressions, given the helpers of `c_prelude` and two's complement shifts.

    Args:
        exprs: one expression, or several.
        names: what to declare, one per expression; needed for several, or with `cse`.
        ctype: ``int64_t``, ``int32_t`` or ``int``, also the type of every symbol; an expression whose proved range
            does not fit it is refused.
        cse: declare a temporary ``t0, t1, ..`` for every part that is used twice.
        rename: symbol name -> text to write for it, such as ``blockIdx.x``.

    Raises:
        LayoutError: names or type that do not fit, or text that would be too long without `cse`.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> n, i = symbol("n", 1), symbol("i")
        >>> to_c(i // n), to_c(i % 8), to_c(symbol("t", 0) // n)
        ('tw_floordiv(i, n)', 'i & 7', 't / n')

    Source: LEGO section 4.1 (templates for CUDA); its C printer truncates, which this one does not.
    """
    where = "to_c(exprs)"
    if not isinstance(ctype, str) or ctype not in _BITS:
        raise LayoutError(where, f"unknown type {ctype!r}", legal=", ".join(_BITS))
    roots = exprs_of(exprs)
    _check_fits(where, roots, ctype)
    text = "const {ctype} {name} = {text};"
    return _program(where, roots, names, _c_spelling(_Signs(roots)), cse, rename, text, ctype, _TAKEN["c"])


def c_prelude(ctype: str = "int64_t", *, cuda: bool = False) -> str:
    """The helper functions that `to_c` may call: floor division, floor remainder, minimum and maximum.

    Args:
        ctype: the type given to `to_c`.
        cuda: qualify them for host and device.

    Example:
        >>> print(c_prelude().splitlines()[1])
        static inline int64_t tw_floordiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
    """
    if not isinstance(ctype, str) or ctype not in _BITS:
        raise LayoutError("c_prelude(ctype)", f"unknown type {ctype!r}", legal=", ".join(_BITS))
    head = f"{'__host__ __device__ ' if cuda else ''}static inline {ctype} tw_"
    args = f"({ctype} a, {ctype} b) "
    return "\n".join(
        (
            "#include <stdint.h>",
            f"{head}floordiv{args}{{ return a / b - (a % b != 0 && (a < 0) != (b < 0)); }}",
            f"{head}floormod{args}{{ {ctype} r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }}",
            f"{head}min{args}{{ return a < b ? a : b; }}",
            f"{head}max{args}{{ return a > b ? a : b; }}",
            "",
        )
    )


_C_WORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register
restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool catch class
delete new operator private protected public template this throw try typename using virtual namespace asm
int32_t int64_t tw_floordiv tw_floormod tw_min tw_max
"""
_TAKEN = {
    "python": frozenset(("min", "max")),
    "numpy": frozenset(("np",)),
    "triton": frozenset(("tl",)),
    "c": frozenset(_C_WORDS.split()),
}
"""Names that text in a language gives a meaning of its own: keywords of C and C++, and what printed text calls."""


# -- programs -----------------------------------------------------------------------------------------------


def _program(
    where: str,
    roots: tuple[Expr, ...],
    names: Sequence[str] | None,
    spelling: Spelling,
    cse: bool,
    rename: Mapping[str, str] | None,
    line: str,
    ctype: str = "",
    reserved: frozenset[str] = frozenset(),
) -> str:
    """The text of the roots, as one expression or as assignments."""
    symbols = symbols_of(roots)
    rename = {} if rename is None else rename
    if not isinstance(rename, Mapping) or not isinstance(names, tuple | list | None):
        raise LayoutError(where, f"names {names!r}, rename {rename!r}", legal="a list of names, a mapping of names")
    written = {node: rename[node.args[0]] for node in symbols if node.args[0] in rename}
    for name in (*(node.args[0] for node in symbols if node not in written), *(names or ())):
        if name in reserved or (isinstance(name, str) and iskeyword(name) and not ctype):
            raise LayoutError(where, f"{name!r} has a meaning in that language", legal="rename it: rename={name: ..}")
    if names is None:
        if len(roots) != 1 or cse:
            raise LayoutError(where, f"{len(roots)} expressions without names", legal="one name per expression")
        _check_length(where, roots)
        return written.get(roots[0]) or spell(roots[0], spelling, written)
    identifiers = [name for name in names if isinstance(name, str) and name.isidentifier()]
    if not len(identifiers) == len(names) == len(roots) == len(set(identifiers)):
        raise LayoutError(where, f"names {list(names)}", legal=f"{len(roots)} different identifiers")
    taken = {*(node.args[0] for node in symbols), *names}
    lines: list[str] = []
    if cse:
        for node in _shared(roots):
            name = _fresh(taken, len(lines))
            lines.append(line.format(ctype=_type_of(node, ctype), name=name, text=spell(node, spelling, written)))
            written[node] = name
    else:
        _check_length(where, roots)
    for name, root in zip(names, roots, strict=True):
        text = written.get(root) or spell(root, spelling, written)
        lines.append(line.format(ctype=_type_of(root, ctype), name=name, text=text))
    return "\n".join(lines)


def _type_of(node: Expr, ctype: str) -> str:
    return "int" if node.is_condition else ctype


def _shared(roots: tuple[Expr, ...]) -> list[Expr]:
    """The nodes with operands that are used more than once, operands first."""
    order = walk(roots)
    uses = Counter(part for node in order for part in node.parts)
    uses.update(roots)
    return [node for node in order if node.parts and uses[node] > 1]


def _fresh(taken: set[str], number: int) -> str:
    name = f"t{number}"
    while name in taken or iskeyword(name):
        name += "_"
    taken.add(name)
    return name


def _check_length(where: str, roots: tuple[Expr, ...]) -> None:
    longest = max(map(tree_size, roots), default=0)
    if longest > LARGEST_TREE:
        raise LayoutError(where, f"the text would hold {longest} operands", legal="cse=True with names")


class _Signs:
    """Which divisions of a program are never of negative numbers, decided once per node."""

    def __init__(self, roots: tuple[Expr, ...]) -> None:
        self.normal = Normalizer()
        self.normal.load(roots)

    def plain(self, node: Expr) -> bool:
        """Whether dividend >= 0 and divisor >= 1 are proved, so that every rounding agrees."""
        dividend, divisor = node.args
        normal = self.normal
        return normal.nonnegative(normal.value(dividend)) and normal.positive(normal.value(divisor))


def _bits(divisor: Expr) -> int | None:
    """k where the divisor is the constant 2**k, else None."""
    value = divisor.args[0] if divisor.op == "const" else 0
    return value.bit_length() - 1 if value > 0 and value & (value - 1) == 0 else None


# -- Python and Triton --------------------------------------------------------------------------------------

_ARITHMETIC = {
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "floordiv": ("//", PRODUCT), "mod": ("%", PRODUCT),
    "xor": ("^", XOR), "lt": ("<", COMPARE), "le": ("<=", COMPARE), "eq": ("==", COMPARE), "ne": ("!=", COMPARE),
    "and": ("&", AND), "or": ("|", OR),
}  # fmt: skip
_CALLS = {
    "python": {
        "min": "min({}, {})",
        "max": "max({}, {})",
        "select": "(({1}) if ({0}) else ({2}))",
        "not": "(not ({}))",
    },
    "numpy": {
        "min": "np.minimum({}, {})",
        "max": "np.maximum({}, {})",
        "select": "np.where({}, {}, {})",
        "not": "np.logical_not({})",
    },
    "triton": {
        "min": "tl.minimum({}, {})",
        "max": "tl.maximum({}, {})",
        "select": "tl.where({}, {}, {})",
        "not": "(({}) == 0)",
    },
}


def _leaf(node: Expr) -> str:
    return str(node.args[0])


def _python_spelling(dialect: str, signs: _Signs | None) -> Spelling:
    if signs is None:
        return Spelling(_ARITHMETIC, _CALLS[dialect], _leaf)

    def division(node: Expr, parts: list[Piece]) -> Piece | None:
        if signs.plain(node):
            return None
        bits = _bits(node.args[1])
        if bits is not None:
            return _shifted(node, parts, bits)
        x, d = (bracket(part, ATOM) for part in parts)
        remainder = f"({x} % {d} + {d}) % {d}"
        return (remainder, PRODUCT) if node.op == "mod" else (f"({x} - {remainder}) // {d}", PRODUCT)

    return Spelling(_ARITHMETIC, _CALLS[dialect], _leaf, {"floordiv": division, "mod": division})


def _shifted(node: Expr, parts: list[Piece], bits: int) -> Piece:
    """Floor division and remainder by ``2**bits``, right for every sign in two's complement."""
    if node.op == "floordiv":
        return f"{bracket(parts[0], UNARY)} >> {bits}", SHIFT
    return f"{bracket(parts[0], UNARY)} & {(1 << bits) - 1}", AND


# -- C and CUDA ---------------------------------------------------------------------------------------------

_BITS = {"int64_t": 64, "int32_t": 32, "int": 32}


def _c_spelling(signs: _Signs) -> Spelling:
    infix = {op: (sign, strength) for op, (sign, strength) in _ARITHMETIC.items() if op not in ("and", "or", "xor")}
    infix |= {"floordiv": ("/", PRODUCT), "mod": ("%", PRODUCT)}
    calls = {
        "min": "tw_min({}, {})",
        "max": "tw_max({}, {})",
        "select": "(({}) ? ({}) : ({}))",
        "not": "(!({}))",
        "and": "(({}) && ({}))",
        "or": "(({}) || ({}))",
        "xor": "(({}) ^ ({}))",
    }

    def division(node: Expr, parts: list[Piece]) -> Piece | None:
        if signs.plain(node):
            return None
        bits = _bits(node.args[1])
        if bits is not None:
            text, _ = _shifted(node, parts, bits)
            return text, COMPARE  # C binds & below comparisons, so anything around it adds parentheses
        helper = "tw_floordiv" if node.op == "floordiv" else "tw_floormod"
        return f"{helper}({parts[0][0]}, {parts[1][0]})", ATOM

    return Spelling(infix, calls, _c_leaf, {"floordiv": division, "mod": division})


def _c_leaf(node: Expr) -> str:
    if node.op == "true":
        return "1" if node.args[0] else "0"
    if node.op == "const" and not -(1 << 31) < node.args[0] < 1 << 31:
        value = node.args[0]
        return f"{value}LL" if value > -(1 << 63) else f"(-{(1 << 63) - 1}LL - 1)"
    return str(node.args[0])


def _check_fits(where: str, roots: tuple[Expr, ...], ctype: str) -> None:
    """Refuse where the range of some part is known and leaves the type; unknown ranges are the caller's business."""
    most = (1 << (_BITS[ctype] - 1)) - 1
    ends: dict[Expr, Interval] = {}
    for node in walk(roots, bounds=True):
        if node.is_condition:
            ends[node] = (0, 1)
            continue
        if node.op == "sym":
            _, start, stop, _ = node.args
            low = None if start is None else ends[start][0]
            high = None if stop is None else ends[stop][1]
            ends[node] = low, None if high is None else high - 1
        else:
            ends[node] = interval_of(node, [ends[part] for part in node.parts])
    for node in walk(roots):
        low, high = ends[node]
        if (low is not None and high is not None) and (low < -most - 1 or high > most):
            inputs = {"part": node, "range": f"{low} .. {high}"}
            raise LayoutError(
                where, f"a part does not fit {ctype}", inputs=inputs, legal="a wider type, or smaller ranges"
            )


# -- MLIR ---------------------------------------------------------------------------------------------------


def to_mlir(
    exprs: Exprs, *, function: str = "index", type: str = "index", rename: Mapping[str, str] | None = None
) -> str:
    """An MLIR function of dialects func and arith that returns the values of the expressions; shared parts once.

    Args:
        exprs: one expression, or several.
        function: the function's name.
        type: ``"index"``, ``"i32"`` or ``"i64"``; arguments, in order of first use, and numbers are of this type,
            conditions are i1.
        rename: symbol name -> argument name.

    Example:
        >>> from tileweave.index.expr import symbol
        >>> print(to_mlir(symbol("t", 0) // 8))
        func.func @index(%t: index) -> index {
          %c8 = arith.constant 8 : index
          %0 = arith.divsi %t, %c8 : index
          return %0 : index
        }

    Source: LEGO section 4.2 (arith for index arithmetic).
    """
    where = "to_mlir(exprs)"
    if not isinstance(type, str) or type not in ("index", "i32", "i64"):
        raise LayoutError(where, f"unknown type {type!r}", legal="index, i32, i64")
    if not isinstance(rename, Mapping | None) or not isinstance(function, str) or not function.isidentifier():
        raise LayoutError(where, f"function {function!r}, rename {rename!r}", legal="an identifier, a mapping of names")
    roots = exprs_of(exprs)
    if not roots:
        raise LayoutError(where, "no expressions", legal="one or more")
    _check_fits(where, roots, "int32_t" if type == "i32" else "int64_t")
    names = {} if rename is None else rename
    order = walk(roots)
    arguments = [node for node in order if node.op == "sym"]
    symbols_of(roots)  # refuses two symbols of one name
    body = _Body(type, _Signs(roots))
    for node in arguments:
        body.names[node] = f"%{names.get(node.args[0], node.args[0])}"
    for node in order:
        body.write(node)
    results = ", ".join(body.names[root] for root in roots)
    kinds = ", ".join("i1" if root.is_condition else type for root in roots)
    returned = kinds if len(roots) == 1 else f"({kinds})"
    head = ", ".join(f"{body.names[node]}: {type}" for node in arguments)
    lines = [
        f"func.func @{function}({head}) -> {returned} {{",
        *body.constants,
        *body.lines,
        f"  return {results} : {kinds}",
    ]
    return "\n".join([*lines, "}"])


class _Body:
    """The operations of one function, in order, and the SSA name of every node."""

    def __init__(self, type: str, signs: _Signs) -> None:
        self.type = type
        self.signs = signs
        self.names: dict[Expr, str] = {}
        self.constants: list[str] = []
        self.lines: list[str] = []
        self.known: dict[object, str] = {}

    def constant(self, value: int | bool) -> str:
        """The SSA name of a constant, declared once at the head."""
        key = str(value)
        if key not in self.known:
            if isinstance(value, bool):
                name, text = f"%{key.lower()}", f"arith.constant {key.lower()}"
            else:
                name = f"%c{value}" if value >= 0 else f"%cm{-value}"
                text = f"arith.constant {value} : {self.type}"
            while name in self.names.values():
                name += "_"
            self.known[key] = name
            self.constants.append(f"  {name} = {text}")
        return self.known[key]

    def add(self, op: str, *operands: str, kind: str | None = None) -> str:
        """Append an operation; its SSA name."""
        name = f"%{len(self.lines)}"
        self.lines.append(f"  {name} = arith.{op} {', '.join(operands)} : {kind or self.type}")
        return name

    def write(self, node: Expr) -> None:
        """Append what the node needs beyond its operands."""
        if node.op == "sym":
            return
        if node.op in ("const", "true"):
            self.names[node] = self.constant(node.args[0])
            return
        parts = [self.names[part] for part in node.parts]
        match node.op:
            case "add" | "sub" | "mul" | "xor":
                name = self.add({"add": "addi", "sub": "subi", "mul": "muli", "xor": "xori"}[node.op], *parts)
            case "min" | "max":
                name = self.add("minsi" if node.op == "min" else "maxsi", *parts)
            case "floordiv":
                name = self.add("divsi" if self.signs.plain(node) else "floordivsi", *parts)
            case "mod":
                name = self._remainder(node, parts)
            case "select":
                name = self.add("select", *parts)
            case "and" | "or":
                name = self.add("andi" if node.op == "and" else "ori", *parts, kind="i1")
            case "not":
                name = self.add("xori", parts[0], self.constant(True), kind="i1")
            case _:
                name = self.add(f"cmpi {_PREDICATES[node.op]},", *parts).replace(",,", ",")
        self.names[node] = name

    def _remainder(self, node: Expr, parts: list[str]) -> str:
        """The floor remainder: the truncated one, moved by the divisor where its sign differs from the divisor's."""
        truncated = self.add("remsi", *parts)
        if self.signs.plain(node):
            return truncated
        zero = self.constant(0)
        moved = self.add("addi", truncated, parts[1])
        if self.signs.normal.positive(self.signs.normal.value(node.args[1])):
            wrong = self.add("cmpi slt,", truncated, zero)
        else:
            nonzero = self.add("cmpi ne,", truncated, zero)
            differ = self.add("cmpi slt,", self.add("xori", truncated, parts[1]), zero)
            wrong = self.add("andi", nonzero, differ, kind="i1")
        return self.add("select", wrong, moved, truncated)


_PREDICATES = {"lt": "slt", "le": "sle", "eq": "eq", "ne": "ne"}
