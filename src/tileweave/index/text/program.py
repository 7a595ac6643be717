"""Expressions as Python, Triton, C and CUDA text that evaluates to the same numbers, also for negative values.

Python's ``//`` and ``%`` round down; those of C and Triton round towards zero. Where the ranges prove that dividend
and divisor are never negative the plain operators are printed; a power of two becomes an arithmetic shift or a mask;
everything else goes through a helper (`c_prelude`) or a longer formula. What differs between languages is a `Dialect`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Literal

from tileweave.errors import LayoutError
from tileweave.index.cost import exprs_of
from tileweave.index.expr import Expr, ExprLike, constant_of, equal, maximum, select, walk
from tileweave.index.normal.poly import add, constant, negate
from tileweave.index.normal.read import Normal, fits, load, normal_of, range_of, value_of
from tileweave.index.normal.signs import nonnegative, positive
from tileweave.index.text.dialect import CUDA, DIALECTS, C, Dialect
from tileweave.index.text.spell import ATOM, COMPARE, UNARY, Piece, Spelling, bracket, spell, tree_size
from tileweave.index.trees import made, rebuilt, symbols_of, unconditional

LARGEST_TREE = 200_000
"""Nodes of an expression written out as a tree beyond which text without temporaries is refused."""
EXACT_ROOT = 1 << 52
"""Numbers below which the floor of a correctly rounded 64-bit square root is the integer square root."""

Exprs = ExprLike | Iterable[ExprLike]
_BITS = {"int64_t": 64, "int32_t": 32, "int": 32}


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
        dialect: ``"python"`` for ints (``math`` for `isqrt`); ``"numpy"`` for arrays (``np``); ``"triton"`` for
            kernels (``tl``), whose division rounds towards zero and whose symbols are 32 bits wide: a part whose
            proved range leaves 32 bits is computed in 64.
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
    languages = ("python", "numpy", "triton")
    if not isinstance(dialect, str) or dialect not in languages:
        raise LayoutError(where, f"unknown dialect {dialect!r}", legal=", ".join(languages))
    return _assignments(where, roots, names, DIALECTS[dialect], cse, rename)


def to_c(
    exprs: Exprs,
    names: Sequence[str] | None = None,
    *,
    ctype: str = "int64_t",
    cse: bool = False,
    rename: Mapping[str, str] | None = None,
    cuda: bool = False,
) -> str:
    """C or CUDA text with the values of the expressions, given the helpers of `c_prelude` and two's complement shifts.

    Args:
        exprs: one expression, or several.
        names: what to declare, one per expression; needed for several, or with `cse`.
        ctype: ``int64_t``, ``int32_t`` or ``int``, also the type of every symbol; an expression whose proved range
            does not fit it is refused.
        cse: declare a temporary ``t0, t1, ..`` for every part that is used twice.
        rename: symbol name -> text to write for it; text that is no identifier, such as ``blockIdx.x``, is of a type
            of its own and is converted to `ctype`.
        cuda: also refuse the names of CUDA's built-in variables.

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
    return _assignments(where, roots, names, CUDA if cuda else C, cse, rename, ctype)


def c_prelude(ctype: str = "int64_t", *, cuda: bool = False) -> str:
    """The helper functions that `to_c` may call: floor division, floor remainder, minimum, maximum, square root.

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
    top = f"({ctype})1 << {_BITS[ctype] - 2}"
    root = f"{ctype} r = 0; for ({ctype} b = {top}; b; b >>= 2) {{ if (a >= r + b) {{ a -= r + b; r = (r >> 1) + b; }}"
    return "\n".join(
        (
            "#include <stdint.h>",
            f"{head}floordiv{args}{{ return a / b - (a % b != 0 && (a < 0) != (b < 0)); }}",
            f"{head}floormod{args}{{ {ctype} r = a % b; return r != 0 && (r < 0) != (b < 0) ? r + b : r; }}",
            f"{head}min{args}{{ return a < b ? a : b; }}",
            f"{head}max{args}{{ return a > b ? a : b; }}",
            f"{head}isqrt({ctype} a) {{ {root} else r >>= 1; }} return r; }}",
            "",
        )
    )


# -- what is printed ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Printable:
    """Expressions made ready for one language: divisors kept from zero, widths decided, symbols named.

    Args:
        dialect: the language.
        roots: what is printed; with eager selects their guarded divisors are never zero.
        normal: their normal forms, which decide signs and ranges.
        written: node -> text that stands for it: renamed symbols, and temporaries once they are assigned.
        wide: the nodes that are computed in more than `Dialect.width` bits.
        declared: symbols whose text is of the wide type already.
        ctype: the type of numbers in C.
    """

    dialect: Dialect
    roots: tuple[Expr, ...]
    normal: Normal
    written: dict[Expr, str] = field(default_factory=dict)
    wide: set[Expr] = field(default_factory=set)
    declared: set[Expr] = field(default_factory=set)
    ctype: str = ""


def program(
    where: str,
    roots: tuple[Expr, ...],
    dialect: Dialect,
    rename: Mapping[str, str] | None = None,
    *,
    normal: Normal | None = None,
    ctype: str = "",
    strict: bool = False,
) -> Printable:
    """The expressions made ready for a language.

    Args:
        where: the public function that asks.
        roots: expressions.
        dialect: the language.
        rename: symbol name -> text.
        normal: the facts, where they are at hand.
        ctype: the type of numbers in C.
        strict: a part whose range is unknown counts as too wide for the narrow type.

    Raises:
        LayoutError: a part does not fit the type, a square root of numbers too large for it, two symbols written alike.
    """
    normal = normal or normal_of()
    if not dialect.lazy:
        roots = _guarded(roots, normal)
    out = Printable(dialect, roots, normal, ctype=ctype)
    _name_symbols(where, out, {} if rename is None else rename)
    most = 1 << ((_BITS[ctype] if ctype else dialect.width or 64) - 1)
    for node in walk(roots):
        if node.op == "isqrt" and "tw_" not in dialect.calls.get("isqrt", "") and dialect.name != "python":
            _check_root(where, out.normal, node)
        if dialect.width is None or node.is_condition or node.op == "const" or fits(out.normal, node, most):
            continue
        low, high = range_of(out.normal, node)
        known = low is not None and high is not None
        if dialect.widen and not ctype:
            if (strict or known) and not _bounded(out.normal, node, most):
                out.wide.add(node)
        elif known:
            name = ctype or f"i{dialect.width}"
            inputs = {"part": node, "range": f"{low} .. {high}"}
            raise LayoutError(
                where, f"a part does not fit {name}", inputs=inputs, legal="a wider type, or smaller ranges"
            )
    return out


def _bounded(normal: Normal, node: Expr, most: int) -> bool:
    """Whether ``-most <= node < most`` follows from symbolic bounds, where intervals alone do not tell."""
    p = value_of(normal, node)
    below = add(negate(p), constant(most - 1))
    return nonnegative(normal.facts, below) and nonnegative(normal.facts, add(p, constant(most)))


def _check_root(where: str, normal: Normal, node: Expr) -> None:
    low, high = range_of(normal, node.args[0])
    if low is None or low < 0 or high is None or high >= EXACT_ROOT:
        raise LayoutError(
            where, f"{node} is not exact in 64-bit floats", inputs={"range": (low, high)}, legal="0 <= x < 2**52 proved"
        )


def never_zero(normal: Normal, divisor: Expr) -> bool:
    """Whether a divisor is proved to differ from zero."""
    value = constant_of(divisor)
    if value is not None:
        return value != 0
    p = value_of(normal, divisor)
    return positive(normal.facts, p) or positive(normal.facts, negate(p))


def _guarded(roots: tuple[Expr, ...], normal: Normal) -> tuple[Expr, ...]:
    """The roots for a language that evaluates both branches: a divisor that may be zero there is 1 instead of 0."""
    always = unconditional(roots)
    risky = [node for node in walk(roots) if node.op in ("floordiv", "mod") and node not in always]
    if not risky:
        return roots
    load(normal, roots)
    risky = [node for node in risky if not never_zero(normal, node.args[1])]
    chosen = set(risky)

    def replace(node: Expr, parts: tuple[Expr, ...]) -> Expr | None:
        if node not in chosen:
            return None
        below = nonnegative(normal.facts, value_of(normal, node.args[1]))
        divisor = maximum(parts[1], 1) if below else select(equal(parts[1], 0), 1, parts[1])
        return made(node.op, (parts[0], divisor))

    done = rebuilt(roots, replace)
    return tuple(done[root] for root in roots)


def shared_parts(ready: Printable) -> list[Expr]:
    """The parts worth a temporary: used more than once, and safe to evaluate whatever a select chooses."""
    order = walk(ready.roots)
    uses = Counter(part for node in order for part in node.parts)
    uses.update(ready.roots)
    always = unconditional(ready.roots)
    unsafe: set[Expr] = set()
    for node in order:
        risky = node.op in ("floordiv", "mod") and node not in always and not never_zero(ready.normal, node.args[1])
        if risky or (node not in always and any(part in unsafe for part in node.parts)):
            unsafe.add(node)
    return [node for node in order if node.parts and uses[node] > 1 and node not in unsafe]


# -- names --------------------------------------------------------------------------------------------------


_POSTFIX = re.compile(r"[A-Za-z_]\w*(\.\w+|\([^()]*\)|\[[^\[\]]*\])*\Z")


def _name_symbols(where: str, ready: Printable, rename: Mapping[str, str]) -> None:
    """Enter the text of every symbol that is renamed; text that binds weakly is put in parentheses."""
    if not isinstance(rename, Mapping) or not all(isinstance(text, str) and text for text in rename.values()):
        raise LayoutError(where, f"rename {rename!r}", legal="a mapping of names to texts")
    seen: dict[str, Expr] = {}
    for node in symbols_of(ready.roots):
        name = node.args[0]
        text = rename.get(name, name)
        other = seen.setdefault(text, node)
        if other is not node:
            raise LayoutError(where, f"symbols {other} and {node} are both written {text!r}", legal="different texts")
        _check_word(where, ready.dialect, text)
        if text == name:
            continue
        atom = text if _POSTFIX.match(text) else f"({text})"
        ready.written[node] = f"({ready.ctype}){atom}" if ready.ctype and not text.isidentifier() else atom


def _check_word(where: str, dialect: Dialect, name: object) -> None:
    python = "tw_min" not in dialect.words
    if name in dialect.words or (isinstance(name, str) and iskeyword(name) and python):
        raise LayoutError(where, f"{name!r} has a meaning in that language", legal="rename it: rename={name: ..}")


def _words_of(ready: Printable) -> set[str]:
    """Every identifier in the text of the symbols."""
    found: set[str] = set()
    for node in symbols_of(ready.roots):
        found.update(re.findall(r"[A-Za-z_]\w*", ready.written.get(node, node.args[0])))
    return found


def _assignments(
    where: str,
    roots: tuple[Expr, ...],
    names: Sequence[str] | None,
    dialect: Dialect,
    cse: bool,
    rename: Mapping[str, str] | None,
    ctype: str = "",
) -> str:
    """The text of the roots, as one expression or as assignments."""
    if not isinstance(names, tuple | list | None):
        raise LayoutError(where, f"names {names!r}", legal="a list of names")
    ready = program(where, roots, dialect, rename, ctype=ctype)
    if names is None:
        if len(roots) != 1 or cse:
            raise LayoutError(where, f"{len(roots)} expressions without names", legal="one name per expression")
        _check_length(where, ready)
        return text_of(ready, ready.roots[0])
    identifiers = [name for name in names if isinstance(name, str) and name.isidentifier()]
    if not len(identifiers) == len(names) == len(roots) == len(set(identifiers)):
        raise LayoutError(where, f"names {list(names)}", legal=f"{len(roots)} different identifiers")
    taken = _words_of(ready)
    for name in identifiers:
        _check_word(where, dialect, name)
        if name in taken:
            raise LayoutError(where, f"{name!r} is also the text of a symbol", legal="another name, or rename={..}")
    taken |= set(identifiers)
    lines: list[str] = []

    def assign(name: str, node: Expr) -> None:
        kind = "int" if node.is_condition else ctype
        lines.append(dialect.statement.format(type=kind, name=name, text=text_of(ready, node)))

    if cse:
        for node in shared_parts(ready):
            name = fresh(taken, len(lines))
            assign(name, node)
            ready.written[node] = name
    _check_length(where, ready)
    for name, root in zip(identifiers, ready.roots, strict=True):
        assign(name, root)
    return "\n".join(lines)


def fresh(taken: set[str], number: int, stem: str = "t") -> str:
    """A name that nobody has taken: ``t0``, with underscores behind it where need be; it is taken from then on."""
    name = f"{stem}{number}"
    while name in taken or iskeyword(name):
        name += "_"
    taken.add(name)
    return name


def _check_length(where: str, ready: Printable) -> None:
    longest = max((tree_size(root, ready.written) for root in ready.roots), default=0)
    if longest > LARGEST_TREE:
        raise LayoutError(where, f"the text would hold {longest} operands", legal="cse=True with names")


# -- spelling -----------------------------------------------------------------------------------------------


def text_of(ready: Printable, node: Expr) -> str:
    """The text of one node of a program, temporaries by their names."""
    return ready.written.get(node) or spell(node, _spelling(ready), ready.written)


def _bits(divisor: Expr) -> int | None:
    """k where the divisor is the constant 2**k, else None."""
    value = divisor.args[0] if divisor.op == "const" else 0
    return value.bit_length() - 1 if value > 0 and value & (value - 1) == 0 else None


def plain_division(normal: Normal, node: Expr) -> bool:
    """Whether dividend >= 0 and divisor >= 1 are proved, so that every rounding agrees."""
    dividend, divisor = node.args
    return nonnegative(normal.facts, value_of(normal, dividend)) and positive(normal.facts, value_of(normal, divisor))


def _spelling(ready: Printable) -> Spelling:
    dialect = ready.dialect

    def division(node: Expr, parts: list[Piece]) -> Piece | None:
        if not dialect.floor or plain_division(ready.normal, node):
            return None
        bits = _bits(node.args[1])
        if bits is not None:
            text, strength = dialect.shifts[node.op]
            return text.format(bracket(parts[0], UNARY), bits if node.op == "floordiv" else (1 << bits) - 1), strength
        text, strength = dialect.floor[node.op]
        least = COMPARE if strength == ATOM else ATOM  # a helper's arguments need no parentheses
        return text.format(*(bracket(part, least) for part in parts)), strength

    def widened(node: Expr, parts: list[Piece]) -> Piece | None:
        if node not in ready.wide or any(_is_wide(ready, part) for part in node.args):
            return None
        at = 1 if node.args[0].op == "const" else 0
        sign, strength = dialect.infix[node.op]
        parts = list(parts)
        parts[at] = dialect.widen.format(bracket(parts[at], COMPARE)), ATOM
        return f"{bracket(parts[0], strength)} {sign} {bracket(parts[1], strength + 1)}", strength

    def choice(node: Expr, parts: list[Piece]) -> Piece | None:
        """Two literals are of type int in C whatever surrounds them: one of them is written as the wide type."""
        if ready.ctype != "int64_t" or not (node.args[1].op == node.args[2].op == "const"):
            return None
        texts = [text for text, _ in parts]
        return dialect.calls["select"].format(texts[0], *(t if "LL" in t else f"{t}LL" for t in texts[1:])), ATOM

    special = {"floordiv": division, "mod": division}
    if ready.wide:
        special |= dict.fromkeys(("add", "sub", "mul", "xor"), widened)
    if ready.ctype:
        special["select"] = choice
    return Spelling(dialect.infix, dialect.calls, _c_leaf if "tw_min" in dialect.words else _leaf, special)


def statement(ready: Printable, name: str, node: Expr) -> str:
    """The assignment of a node to a name; in C with the narrow or the wide type."""
    wide = node in ready.wide or node in ready.declared
    kind = "bool" if node.is_condition else "long long" if wide else "int"
    return ready.dialect.statement.format(type=kind, name=name, text=text_of(ready, node))


def _is_wide(ready: Printable, node: Expr) -> bool:
    return node in ready.declared or (node in ready.wide and node.op != "sym")


def _leaf(node: Expr) -> str:
    return str(node.args[0])


def _c_leaf(node: Expr) -> str:
    if node.op == "true":
        return "1" if node.args[0] else "0"
    if node.op == "const" and not -(1 << 31) < node.args[0] < 1 << 31:
        value = node.args[0]
        return f"{value}LL" if value > -(1 << 63) else f"(-{(1 << 63) - 1}LL - 1)"
    return str(node.args[0])
