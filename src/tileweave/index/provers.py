"""Answers, and the optional outside provers: z3 for conditions, isl for bijections of constant size.

The core never needs them. They see the same ranges, and their answers come back as the same `Verdict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tileweave.errors import LayoutError
from tileweave.index.expr import Expr, equal, walk
from tileweave.index.trees import symbols_of

Z3_TIMEOUT_MS = 5000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "does this hold at every point?": yes with the kind of proof, no with a point, or open.

    Args:
        holds: True, False, or None where it is open. A verdict is true as a bool only when it holds.
        how: ``"normal form"``, ``"ranges"``, ``"every point"``, ``"counterexample"``, ``"open"``; ``"z3"``, ``"isl"``.
        witness: a point where it fails, symbol name -> value.
        points: how many points were tried.
        other: a second point, where it takes two to see the failure.
    """

    holds: bool | None
    how: str
    witness: dict[str, int] = field(default_factory=dict)
    points: int = 0
    other: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.holds is True


def _load(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        name = {"z3": "z3-solver"}.get(package, package)
        where = f"the prover {package!r}"
        raise LayoutError(where, "the package is not installed", legal=f"pip install {name}, or no prover") from None


def ask(prover: str, condition: Expr, given: Sequence[Expr] = ()) -> Verdict:
    """Whether the condition holds in all ranges, asked of an outside solver.

    Args:
        prover: ``"z3"``.
        condition: what is to hold.
        given: conditions that hold besides the ranges.

    Raises:
        LayoutError: another prover, or the package is not installed.
    """
    if prover != "z3":
        raise LayoutError("prove(condition, using=...)", f"no prover {prover!r}", legal="'z3'")
    z3 = _load("z3")
    solver = z3.Solver()
    solver.set("timeout", Z3_TIMEOUT_MS)
    nodes = symbols_of((condition, *given))
    facts = [fact for node in nodes for fact in facts_of(node)]
    wanted = [condition, *given, *facts]
    terms, defined = _z3_terms(z3, wanted)
    solver.add(*(terms[fact] for fact in (*given, *facts)), *(defined[root] for root in wanted))
    solver.add(z3.Not(terms[condition]))
    answer = solver.check()
    if answer == z3.unsat:
        return Verdict(True, "z3")
    if answer != z3.sat:
        return Verdict(None, "open")
    model = solver.model()
    witness = {str(node): model.eval(terms[node], model_completion=True).as_long() for node in nodes}
    return Verdict(False, "z3", witness)


def facts_of(node: Expr) -> list[Expr]:
    """What a symbol's declaration says of it."""
    _, start, stop, factor = node.args
    facts = [] if start is None else [start <= node]
    facts += [] if stop is None else [node < stop]
    facts += [] if factor.op == "const" and factor.args[0] == 1 else [equal(node % factor, 0)]
    return [fact for fact in facts if fact.op != "true"]


def _z3_terms(z3: Any, roots: Sequence[Expr]) -> tuple[dict[Expr, Any], dict[Expr, Any]]:
    """A z3 term for every node, and one for where it is defined: no divisor is zero, in chosen branches that is."""
    terms: dict[Expr, Any] = {}
    defined: dict[Expr, Any] = {}
    for node in walk(roots, bounds=True):
        parts = [terms[part] for part in node.parts]
        whole = [defined[part] for part in node.parts]
        defined[node] = z3.And(*whole) if whole else z3.BoolVal(True)
        match node.op:
            case "const":
                terms[node] = z3.IntVal(node.args[0])
            case "true":
                terms[node] = z3.BoolVal(node.args[0])
            case "sym":
                terms[node] = z3.Int(node.args[0])
            case "floordiv" | "mod":
                x, d = parts  # z3 rounds so that the remainder is never negative: turn both signs for d < 0
                quotient = z3.If(d > 0, x / d, (-x) / (-d))
                terms[node] = quotient if node.op == "floordiv" else x - d * quotient
                defined[node] = z3.And(*whole, d != 0)
            case "isqrt":
                terms[node] = z3.FreshInt("isqrt")
                r = terms[node]
                defined[node] = z3.And(*whole, parts[0] >= 0, r >= 0, r * r <= parts[0], parts[0] < (r + 1) * (r + 1))
            case "xor":
                raise LayoutError("prove(condition, using='z3')", "xor has no integer theory", legal="no xor, or no z3")
            case "min" | "max":
                lower = parts[0] <= parts[1]
                terms[node] = z3.If(lower if node.op == "min" else z3.Not(lower), *parts)
            case "select":
                terms[node] = z3.If(*parts)
                defined[node] = z3.And(whole[0], z3.If(parts[0], whole[1], whole[2]))
            case "and" | "or":
                terms[node] = (z3.And if node.op == "and" else z3.Or)(*parts)
            case "not":
                terms[node] = z3.Not(parts[0])
            case _:
                terms[node] = _arithmetic(node.op, parts)
    return terms, defined


def _arithmetic(op: str, parts: list[Any]) -> Any:
    a, b = parts
    match op:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "lt":
            return a < b
        case "le":
            return a <= b
        case "eq":
            return a == b
    return a != b


def bijective_by_isl(exprs: Sequence[Expr], extents: Sequence[int]) -> bool:
    """Whether the map from the symbols' ranges to the box of these extents is a bijection, proved by isl.

    Args:
        exprs: one expression per output; sums, // and % by constants, over symbols with constant ranges.
        extents: of the output box, from zero.

    Raises:
        LayoutError: islpy is not installed, or an expression that is not quasi-affine.

    Source: own; the set library is isl.
    """
    isl = _load("islpy")
    nodes = symbols_of(exprs)
    names = ", ".join(node.args[0] for node in nodes)
    try:
        limits = " and ".join(
            f"{int(n.args[1].args[0])} <= {n.args[0]} < {int(n.args[2].args[0])} and {n.args[0]} mod {n.args[3]} = 0"
            for n in nodes
        )
        outputs = ", ".join(_isl_text(expr) for expr in exprs)
        graph = isl.Map(f"{{ [{names}] -> [{outputs}] : {limits} }}")
    except (AttributeError, TypeError, isl.Error) as problem:
        where = "bijective_by_isl(exprs, extents)"
        raise LayoutError(where, f"not quasi-affine: {problem}", legal="constant ranges and divisors") from None
    axes = ", ".join(f"o{k}" for k in range(len(extents)))
    box = " and ".join(f"0 <= o{k} < {extent}" for k, extent in enumerate(extents))
    whole = isl.Set(f"{{ [{axes}] : {box} }}")
    return bool(graph.is_injective()) and bool(graph.range().is_equal(whole))


def _isl_text(expr: Expr) -> str:
    done: dict[Expr, str] = {}
    for node in walk((expr,)):
        parts = [done[part] for part in node.parts]
        match node.op:
            case "const" | "sym":
                done[node] = str(node.args[0])
            case "add" | "sub" | "mul":
                sign = {"add": "+", "sub": "-", "mul": "*"}[node.op]
                done[node] = f"({parts[0]} {sign} {parts[1]})"
            case "floordiv":
                done[node] = f"floor({parts[0]} / {parts[1]})"
            case "mod":
                done[node] = f"({parts[0]} mod {parts[1]})"
            case _:
                raise LayoutError(
                    "bijective_by_isl(exprs, extents)", f"{node.op} is not quasi-affine", legal="+ - * // %"
                )
    return done[expr]
