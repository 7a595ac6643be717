"""Targets as tables, and the value of a filled template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tileweave.errors import LayoutError
from tileweave.index import Expr, constant_of, cost, evaluate, ops, prove, symbols_of
from tileweave.index.expr import walk
from tileweave.index.text.dialect import AFFINE, CUDA, MLIR, TRITON, Dialect

# -- targets ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextTarget:
    """What a template's target language says for a tile's dimension, a masked access, and a hint.

    Args:
        name: of the target.
        dialect: its integer expressions.
        comment: what a comment line starts with.
        range: a format of ``{extent}`` and ``{axis}``; empty: `:` is a loop, which the template opens and closes.
        load, store: formats of ``{pointer}``, ``{offset}``, ``{value}``.
        masked_load, masked_store: also of ``{mask}`` and ``{other}``.
        argument: a format of ``{name}``, for a size that the kernel takes.
        hint: a format of ``{offset}``, ``{multiple}`` and ``{run}``; empty: none is written.
        whole: a format of ``{shape}`` and ``{offset}``: an offset spread over a tile; empty: loops need none.
        always: a condition that holds always.
        guard: a format of ``{mask}``, the head of a statement; empty: the language has none.
        loop: a format of ``{name}`` and ``{extent}``, for a ``:`` in a language without ranges.
        ssa: every operation is a statement with a name; loads and stores are also formats of ``{name}``,
            ``{attributes}``, ``{type}``, ``{element}``, ``{dialect}`` and ``{local}`` (`operations.access`).
    """

    name: str
    dialect: Dialect
    comment: str
    range: str
    load: str
    masked_load: str
    store: str
    masked_store: str
    argument: str = "{name}"
    hint: str = ""
    whole: str = ""
    always: str = "True"
    guard: str = ""
    loop: str = "for (int {name} = 0; {name} < {extent}; ++{name}) {{"
    ssa: bool = False


TARGETS = {
    "triton": TextTarget(
        "triton",
        TRITON,
        "#",
        "tl.arange(0, {extent}){axis}",
        "tl.load({pointer} + {offset})",
        "tl.load({pointer} + {offset}, mask={mask}, other={other})",
        "tl.store({pointer} + {offset}, {value})",
        "tl.store({pointer} + {offset}, {value}, mask={mask})",
        hint="tl.max_contiguous(tl.multiple_of({offset}, {multiple}), {run})",
        whole="tl.zeros({shape}, dtype=tl.int32) + {offset}",
    ),
    "cuda": TextTarget(
        "cuda",
        replace(CUDA, width=32, widen="(long long)({})"),
        "//",
        "",
        "{pointer}[{offset}]",
        "({mask} ? {pointer}[{offset}] : {other})",
        "{pointer}[{offset}] = {value}",
        "if ({mask}) {pointer}[{offset}] = {value}",
        "int {name}",
        always="true",
        guard="if ({mask}) ",
    ),
    "mlir": TextTarget(
        "mlir",
        MLIR,
        "//",
        "",
        "{dialect}.load {name}[{offset}]{attributes} : {type}",
        "scf.if {mask} -> ({element}) {{ {local} = {dialect}.load {name}[{offset}]{attributes} : {type} "
        "scf.yield {local} : {element} }} else {{ scf.yield {other} : {element} }}",
        "{dialect}.store {value}, {name}[{offset}]{attributes} : {type}",
        "scf.if {mask} {{ {dialect}.store {value}, {name}[{offset}]{attributes} : {type} }}",
        "%{name}: index",
        always="%true",
        loop="scf.for %{name} = %c0 to %c{extent} step %c1 {{",
        ssa=True,
    ),
}
TARGETS["affine"] = replace(TARGETS["mlir"], name="affine", dialect=AFFINE)
"""MLIR whose numbers are affine maps: passes that read arithmetic as part of a computation leave them alone."""


# -- values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexPart:
    """One index expression of a template: as the layout gives it, and as it is printed.

    Args:
        name: the placeholder, ``a`` or ``a.mask``.
        before, after: the expression; after simplification, where its mask holds.
        given: the conditions that held besides the ranges.
    """

    name: str
    before: Expr
    after: Expr
    given: tuple[Expr, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """What could not be simplified or proved, with a point where it fails."""
        return tuple(_reasons(self.after, self.given))

    def __str__(self) -> str:
        head = f"{self.name}: {ops(self.before)} -> {ops(self.after)} operations, cost {cost(self.before)} -> "
        return f"{head}{cost(self.after)}: {self.after}" + "".join(f"\n  {reason}" for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class Filled:
    """A template filled for one target: the text, and what a host needs to launch it.

    Args:
        text: the kernel.
        target: the name of its language.
        grid: the numbers of programs, expressions over the arguments.
        arguments: the sizes that the kernel takes, in the order of ``{{ arguments }}``.
        parts: the index expressions.
        checks: what the host must make sure of before a launch, conditions over the sizes.
    """

    text: str
    target: str
    grid: tuple[Expr | int, ...]
    arguments: tuple[str, ...]
    parts: tuple[IndexPart, ...]
    checks: tuple[Expr, ...]

    def __str__(self) -> str:
        return self.text

    def launch(self, **sizes: int) -> tuple[int, ...]:
        """The grid for actual sizes, after `checks`.

        Raises:
            LayoutError: a size is missing, outside its range, or breaks a check.
        """
        for condition in self.checks:
            if not evaluate(condition, {**_known(condition, sizes)}):
                raise LayoutError("Filled.launch(**sizes)", f"{condition} does not hold", inputs=dict(sizes))
        return tuple(n if isinstance(n, int) else int(evaluate(n, _known(n, sizes))) for n in self.grid)

    def explain(self) -> str:
        """The expressions with their operations and cost before and after, and the reasons of what is left."""
        lines = [f"target {self.target}", f"grid ({', '.join(map(str, self.grid))})", f"arguments {self.arguments}"]
        lines += [f"check {condition}" for condition in self.checks]
        return "\n".join([*lines, *map(str, self.parts)])


def _known(expr: Expr, sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in sizes.items() if name in {str(s) for s in symbols_of((expr,))}}


def _reasons(expr: Expr, given: Sequence[Expr]) -> list[str]:
    """Why divisions and conditions of a simplified expression are still there."""
    out = []
    for node in walk((expr,)):
        if node.op in ("floordiv", "mod") and constant_of(node.args[1]) is None:
            x, d = node.args
            verdict = prove((x >= 0) & (x < d), given=given, limit=0)
            point = ", ".join(f"{k} = {v}" for k, v in verdict.witness.items()) or "not proved"
            out.append(f"{node} stays: 0 <= {x} < {d} fails ({point})")
        elif node.op in ("lt", "le"):
            verdict = prove(node, given=given, limit=0)
            point = ", ".join(f"{k} = {v}" for k, v in verdict.witness.items()) or "not proved"
            out.append(f"{node} stays: it fails ({point})")
    return out
