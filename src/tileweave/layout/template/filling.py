"""One filling of a template: marks in the text, expressions simplified together, assignments at their scopes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from tileweave.errors import LayoutError
from tileweave.index import (
    Expr,
    simplify,
    symbol,
    symbols_of,
)
from tileweave.index.affine import split_in
from tileweave.index.expr import walk
from tileweave.index.normal.read import normal_of, range_of
from tileweave.index.simplify import simplified
from tileweave.index.text.program import Printable, c_prelude, fresh, program, shared_parts, statement, text_of
from tileweave.layout.notation.lego_slices import Slice
from tileweave.layout.template.operations import access, assign_operations, name_symbols
from tileweave.layout.template.runs import plainly_affine, run_of, substituted, width_of
from tileweave.layout.template.values import Filled, IndexPart, TextTarget

if TYPE_CHECKING:
    from tileweave.layout.template.binding import Template

_MARK = re.compile("\ue000(\\d+)\ue001")
RESERVED = ("define", "loop", "arguments", "layouts", "prelude")


LARGEST_TILE = 1 << 20
"""Elements of a tensor in a language with ranges."""
BLOCK = 100
"""Added to the number of an axis for each further block of loops that counts along it; no tile has as many axes."""
_HELPERS = "\ue002"
"""Where the helpers of a language go, once it is known which the text calls."""

_WHOLE_LINES = ("define", "loop", "layouts", "prelude", "open", "close")
"""Marks that stand alone on a line and become any number of lines."""


# -- reading ------------------------------------------------------------------------------------------------


class _Placeholder:
    """What a bound slice or expression is while Jinja2 runs: every use leaves a numbered mark in the text."""

    def __init__(self, filling: TemplateFilling, name: str, value: Slice | Expr) -> None:
        self._filling, self._name, self._value = filling, name, value

    def _mark(self, kind: str, *words: str) -> str:
        return self._filling.mark(kind, self._filling.name_here(self._name), *words)

    def __str__(self) -> str:
        return self._mark("offset")

    def __getattr__(self, word: str) -> Any:
        if word.startswith("_"):
            raise AttributeError(word)
        known = _list(name for name in vars(_Placeholder) if not name.startswith("_"))
        raise LayoutError(self._filling.where, f"{self._name} has no {word!r}", legal=known)

    @property
    def mask(self) -> str:
        """The mark of the mask."""
        return self._mark("mask")

    @property
    def guard(self) -> str:
        """The mark of the head of a statement that runs where the mask holds; of nothing where it always does."""
        return self._mark("guard")

    @property
    def open(self) -> str:
        """The mark of the loops over the dimensions of ``:``, in a language without ranges."""
        if not isinstance(self._value, Slice):
            return ""
        self._filling.enter(self._value.ranges)
        name = self._filling.name_here(self._name)
        return self._filling.mark("open", name, *(str(r) for r in self._filling.values[name].ranges))

    @property
    def close(self) -> str:
        """The mark of their end."""
        mark = self._mark("close")
        self._filling.renamed.clear()
        return mark

    @property
    def width(self) -> int:
        """How many elements along the last ``:`` one vector access may move: they lie side by side and aligned, and
        the mask holds for all of them or for none."""
        widths, name = self._filling.widths, self._name
        if name not in widths:
            given = self._filling.source.given
            widths[name] = width_of(self._value, given) if isinstance(self._value, Slice) else 1
        return widths[name]

    @property
    def first(self) -> _Placeholder:
        """The element at the start of the last ``:``, where a vector access of `width` elements begins."""
        if not isinstance(self._value, Slice) or not self._value.ranges:
            raise LayoutError(self._filling.where, f"{self._name}.first: {self._name} has no `:`", legal="a slice")
        name, value = f"{self._name}_first", self._value
        if name not in self._filling.values:
            self._filling.values[name] = replace(substituted(value, {value.ranges[-1]: 0}), ranges=value.ranges[:-1])
        return _Placeholder(self._filling, name, self._filling.values[name])

    def choice(self, masked: str, always: str) -> str:
        """The mark of one of two texts: where the mask is not proved to hold always, or where it is.

        In both ``[offset]`` and ``[mask]`` stand for what this placeholder means.
        """
        return self._mark("choice", str(masked), str(always))

    def load(self, pointer: str, other: object = 0.0) -> str:
        """The mark of a whole load."""
        return self._mark("load", str(pointer), str(other))

    def store(self, pointer: str, value: object) -> str:
        """The mark of a whole store."""
        return self._mark("store", str(pointer), str(value))


@dataclass(slots=True)
class _Use:
    """A mark in the text: what stands there, and the symbols' scope."""

    kind: str  # offset, mask, load, store; open, close; define, loop, arguments, layouts, prelude
    name: str
    words: tuple[str, ...]
    level: int = 0


@dataclass(slots=True)
class _Scope:
    """A place where assignments may stand: everything whose symbols are known there."""

    known: set[str]
    loop: str  # the symbol that the loop counts, or empty
    lines: list[str] = field(default_factory=list)


class TemplateFilling:
    """One filling of one template."""

    def __init__(self, where: str, source: Template, target: TextTarget) -> None:
        self.where, self.source, self.target = where, source, target
        self.uses: list[_Use] = []
        self.parts: dict[tuple[str, str], IndexPart] = {}  # (name, "offset" or "mask") -> its expressions
        self.scopes: list[_Scope] = []
        self.kept: set[str] = set()  # the names of bases
        self.values: dict[str, Any] = dict(source.bindings)  # and what the text derives from them
        for key, value in source.bindings.items():
            if isinstance(value, tuple):
                self.values |= {f"{key}[{k}]": part for k, part in enumerate(value)}
        self.entered: set[Expr] = set()  # ranges that loops have counted with
        self.renamed: dict[Expr, Expr] = {}  # those of them that the loops around count with again
        self.widths: dict[str, int] = {}  # of vector accesses, by the name of a value
        self.blocks = 0
        self.facts = normal_of(source.given)

    def mark(self, kind: str, name: str, *words: str) -> str:
        """A numbered mark for the text, and the use that it stands for."""
        self.uses.append(_Use(kind, name, words))
        return f"\ue000{len(self.uses) - 1}\ue001"

    def enter(self, ranges: Sequence[Expr]) -> None:
        """Loops over ranges begin: those that earlier loops counted with get symbols of their own until the end."""
        if self.target.range:
            return
        self.blocks += 1
        for node in ranges:
            if node in self.entered:
                axis, rank = node.args[0][4:].split("_")[:2]
                name = f"axis{int(axis) + BLOCK * self.blocks}_{rank}_{node.args[2]}"
                self.renamed[node] = symbol(name, 0, node.args[2])
            self.entered.add(node)

    def name_here(self, name: str) -> str:
        """The name of a value; of its own where the loops around count with symbols of their own."""
        value = self.values[name]
        exprs = (
            [e for e in (value.offset, value.mask, value) if isinstance(e, Expr)]
            if isinstance(value, Slice)
            else [value]
        )
        if not self.renamed or not any(s in self.renamed for s in symbols_of(tuple(exprs))):
            return name
        own = f"{name}_{self.blocks}"
        if own not in self.values:
            change = {str(node): new for node, new in self.renamed.items()}
            self.values[own] = substituted(value, change)
        return own

    # -- the text ---------------------------------------------------------------------------------------

    def rendered(self) -> str:
        """The text with marks; undefined and unused names refused with their place."""
        import jinja2  # templates alone need it

        text, bindings = self.source.text, self.source.bindings
        try:
            compiled, undeclared, used = _compiled(text)
        except jinja2.TemplateSyntaxError as error:
            raise LayoutError(self.where, f"line {error.lineno}: {error.message}", legal="Jinja2 text") from None
        lines = text.split("\n")
        for name in sorted(set(undeclared) - set(bindings) - set(RESERVED)):
            number = undeclared[name]
            inputs = {f"line {number}": lines[number - 1].strip()}
            raise LayoutError(self.where, f"line {number}: {name!r} is undefined", inputs=inputs, legal=_list(bindings))
        unused = sorted(set(bindings) - used)
        if unused:
            raise LayoutError(self.where, f"{_list(unused)}: bound, but not in the text", legal="every name once")
        context: dict[str, Any] = {
            name: [_Placeholder(self, f"{name}[{k}]", part) for k, part in enumerate(value)]
            if isinstance(value, tuple)
            else _Placeholder(self, name, value)
            if isinstance(value, Slice | Expr)
            else value
            for name, value in bindings.items()
        }
        context["define"] = lambda *names: self.mark("define", "", *names)
        context["loop"] = lambda name: self.mark("loop", "", name)
        context |= {name: _Lazy(self, name) for name in ("arguments", "layouts", "prelude")}
        try:
            return str(compiled.render(context))
        except jinja2.TemplateError as error:
            raise LayoutError(self.where, str(error.message), legal="Jinja2 text") from None

    def result(self) -> Filled:
        """The filled template."""
        text = self.rendered()
        order = range(len(self.uses))  # as Jinja2 met them, those inside others' words included
        self._find_scopes(order)
        self._simplify(order)
        ready, bases = self._program()
        self._assign(ready, bases)
        arguments = self._arguments(ready)
        pieces: dict[int, str] = {}
        for number in order:  # a mark in the words of another comes before it
            piece = self._text(self.uses[number], ready, arguments)
            pieces[number] = _MARK.sub(lambda found: pieces[int(found[1])], piece)
        lines = []
        for line in text.split("\n"):
            marks = [int(number) for number in _MARK.findall(line)]
            indent = line[: len(line) - len(line.lstrip())]
            if len(marks) == 1 and self.uses[marks[0]].kind in _WHOLE_LINES:
                lines += [indent + inner for inner in pieces[marks[0]].split("\n") if inner]
            else:
                lines.append(_MARK.sub(lambda found: pieces[int(found[1])], line))
        whole = "\n".join(lines)
        if _HELPERS in whole:
            whole = whole.replace(_HELPERS, _helpers(whole))
        sizes = {*arguments, *map(str, symbols_of(n for n in self.source.grid if isinstance(n, Expr)))}
        checks = tuple(fact for fact in self.source.given if {str(s) for s in symbols_of((fact,))} <= sizes)
        parts = tuple(self.parts.values())
        return Filled(whole, self.target.name, self.source.grid, arguments, parts, checks)

    # -- expressions ------------------------------------------------------------------------------------

    def _find_scopes(self, order: Sequence[int]) -> None:
        """The scopes in the order of the text; every use gets the one that it stands in."""
        known: set[str] = set()
        for number in order:
            use = self.uses[number]
            if use.kind in ("define", "loop"):
                known = known | set(use.words)
                self.scopes.append(_Scope(known, use.words[0] if use.kind == "loop" else ""))
            elif use.kind == "open" and not self.target.range:
                for word in use.words:
                    known = known | {word}
                    self.scopes.append(_Scope(known, word))
            use.level = len(self.scopes) - 1

    def _simplify(self, order: Sequence[int]) -> None:
        """Every expression that the text uses, simplified with all that is known; an offset where its mask holds."""
        width = self.target.dialect.width
        masked: dict[Expr, dict[str, Expr]] = {}  # mask -> what is read where it holds
        for number in order:
            use = self.uses[number]
            value = self.values.get(use.name)
            if not isinstance(value, Slice | Expr) or use.kind in ("open", "close"):
                continue
            offset, mask = (value.offset, value.mask) if isinstance(value, Slice) else (value, True)
            if isinstance(offset, int):
                offset = symbol("zero", 0, 1) * 0 + offset
            if use.kind not in ("mask", "guard"):
                self._part(use.name, "offset", offset, offset)
                if isinstance(mask, Expr) and mask.op != "true" and _has_choices(offset):
                    masked.setdefault(mask, {})[use.name] = offset
            if use.kind in ("mask", "guard", "load", "store", "choice") and isinstance(mask, Expr):
                self._part(use.name, "mask", mask, mask)
        for mask, offsets in masked.items():
            given = (*self.source.given, mask)
            for name, after in zip(offsets, simplify(offsets.values(), given=given), strict=True):
                self.parts[name, "offset"] = replace(self.parts[name, "offset"], after=after)
        together = simplified(self.facts, tuple(part.after for part in self.parts.values()), width)
        for key, after in zip(list(self.parts), together, strict=True):
            self.parts[key] = replace(self.parts[key], after=after)

    def _part(self, name: str, kind: str, before: Expr, after: Expr) -> None:
        if (name, kind) not in self.parts:
            text = name if kind == "offset" else f"{name}.mask"
            self.parts[name, kind] = IndexPart(text, before, after, self.source.given)

    def _program(self) -> tuple[Printable, dict[Expr, Expr]]:
        """The expressions ready to print; in loops as base + step * counter, and symbol -> base."""
        bases: dict[Expr, Expr] = {}
        taken = {str(s) for s in symbols_of(part.before for part in self.parts.values())}
        taken |= set(re.findall(r"[A-Za-z_]\w*", self.source.text))
        levels = {key: self._level_of(part.after, part.name) for key, part in self.parts.items()}
        shown: dict[tuple[str, str], Expr] = {}
        for key, part in self.parts.items():
            shown[key] = part.after
            scope = self.scopes[levels[key]] if levels[key] >= 0 else None
            if scope is not None and scope.loop and key[1] == "offset":
                shown[key] = self._by_step(part.after, scope.loop, key[0], taken, bases)
        self.shown = shown
        nodes = [*bases.values(), *shown.values()]
        ranges = [s for s in symbols_of(nodes) if _is_range(s)]
        rename = {s.args[0]: fresh(taken, k, "i") for k, s in enumerate(ranges)}
        self.ranges = {s: rename[s.args[0]] for s in ranges}
        ready = program(self.where, tuple(nodes), self.target.dialect, rename, normal=self.facts, strict=True)
        self.taken = taken
        if self.target.ssa:
            name_symbols(ready, self.ranges)
        count = len(bases)
        bases = dict(zip(bases, ready.roots[:count], strict=True))
        self.shown = dict(zip(shown, ready.roots[count:], strict=True))
        return ready, bases

    def _by_step(self, expr: Expr, counter: str, name: str, taken: set[str], bases: dict[Expr, Expr]) -> Expr:
        """``base + counter * step`` where the expression is of that form and its base is worth keeping."""
        variable = next(s for s in symbols_of((expr,)) if s.args[0] == counter)
        parts = split_in(self.facts, expr, variable)
        if parts is None or not parts[0].parts:
            return expr
        base, step = parts
        low, high = range_of(self.facts, base)
        stem = f"{name}_base"
        while stem in taken:
            stem += "_"
        taken.add(stem)
        kept = symbol(stem, low, None if high is None else high + 1)
        bases[kept] = base
        self.kept.add(stem)
        return kept + variable * step

    def _level_of(self, expr: Expr, name: str = "") -> int:
        """The first scope in which all symbols of an expression are known; -1: none of them is defined by a scope."""
        defined = set().union(*(scope.known for scope in self.scopes)) if self.scopes else set()
        wanted = {s.args[0] for s in walk((expr,)) if s.op == "sym"} & defined
        level = next((k for k, scope in enumerate(self.scopes) if wanted <= scope.known), len(self.scopes) - 1)
        first = min((use.level for use in self.uses if use.name and name.split(".")[0] == use.name), default=level)
        if name and level > first and (wanted or expr.parts):  # a size alone is known from the start
            inputs = {"expression": expr}
            raise LayoutError(
                self.where, f"{name} needs {_list(sorted(wanted))} before they are defined", inputs=inputs,
                legal="{{ define('name') }} or {{ loop('name') }} before its first use",
            )  # fmt: skip
        return level if self.scopes else -1

    def _levels(self, ready: Printable) -> dict[Expr, int]:
        """Of every node the first scope in which its symbols are known; one look-up for each set of symbols."""
        defined = set().union(*(scope.known for scope in self.scopes))
        wanted: dict[Expr, frozenset[str]] = {}
        levels: dict[frozenset[str], int] = {}
        for node in walk(ready.roots):
            own = frozenset((node.args[0],)) & defined if node.op == "sym" else frozenset()
            wanted[node] = own.union(*(wanted[part] for part in node.parts))
        last = len(self.scopes) - 1
        for names in set(wanted.values()):
            levels[names] = next((k for k, scope in enumerate(self.scopes) if names <= scope.known), last)
        return {node: levels[names] for node, names in wanted.items()}

    def _assign(self, ready: Printable, bases: dict[Expr, Expr]) -> None:
        """Temporaries at their scopes: ranges first, then common parts, invariants of loops, and bases."""
        if not self.scopes:
            if self.target.ssa:
                raise LayoutError(
                    self.where, "no place for operations", legal="{{ define('name') }} where they may stand"
                )
            return
        known = self.scopes[-1].known
        closed = [str(node) for node in self.ranges if str(node) not in known]
        if not self.target.range and closed:
            legal = "{{ a.open }} .. {{ a.close }} around the uses of a, or an index over threadIdx"
            where = f"{self.target.name} has no ranges for `:`"
            raise LayoutError(self.where, where, inputs={"ranges": closed}, legal=legal)
        for key, value in self.values.items() if self.target.range else ():
            if isinstance(value, Slice) and prod(r.args[2].args[0] for r in value.ranges) > LARGEST_TILE:
                inputs = {"tile": " x ".join(str(r.args[2]) for r in value.ranges), "target": self.target.name}
                problem = f"{key} has too many elements in a tile"
                raise LayoutError(self.where, problem, inputs=inputs, legal=f"at most {LARGEST_TILE}")
        for node, name in self.ranges.items() if self.target.range else ():
            extent = int(node.args[2].args[0])
            if extent & (extent - 1):
                raise LayoutError(
                    self.where, f"a tile's extent {extent} is no power of two", inputs={"target": self.target.name},
                    legal="a tile of a power of two, with PartialTiles where the shape is smaller",
                )  # fmt: skip
            axis, rank = (int(x) for x in node.args[0][4:].split("_")[:2])
            index = ", ".join(":" if k == axis else "None" for k in range(rank))
            text = self.target.range.format(extent=extent, axis=f"[{index}]" if rank > 1 else "")
            self.scopes[0].lines.append(f"{name} = {text}")
        levels = self._levels(ready)
        for kept, base in bases.items():
            levels[kept] = levels[base]
        if self.target.ssa:
            places = [scope.lines for scope in self.scopes]
            assign_operations(self.where, ready, levels, places, bases, self.taken, constants=self._constants())
            return
        chosen = set(shared_parts(ready)) | self._invariants(ready, levels) | self._repeated()
        homes: dict[Expr, list[Expr]] = {}
        for kept, base in bases.items():
            homes.setdefault(base, []).append(kept)
        number = 0
        for node in walk(ready.roots):
            lines = self.scopes[max(levels[node], 0)].lines
            if node in chosen and node not in homes:
                name = fresh(self.taken, number)
                number += 1
                lines.append(statement(ready, name, node))
                ready.written[node] = name
            for kept in homes.get(node, ()):
                lines.append(statement(ready, str(kept), node))
                if node in ready.wide:
                    ready.declared.add(kept)
                ready.written.setdefault(node, str(kept))

    def _constants(self) -> tuple[int | bool, ...]:
        """The numbers that loops and conditions of the text need, for a target in which they have names."""
        loops = [0, 1] if any(use.kind == "open" for use in self.uses) else []
        extents = [int(node.args[2].args[0]) for node in self.ranges] if loops else []
        masks = [self.shown.get((use.name, "mask")) for use in self.uses if use.kind == "mask"]
        bare = any(mask is None or mask.op == "true" for mask in masks)
        return (*loops, *extents, *([True] if bare else []))

    def _repeated(self) -> set[Expr]:
        """What stands at several places of the text."""
        places: Counter[Expr] = Counter()
        for use in self.uses:
            offset, mask = (self.shown.get((use.name, kind)) for kind in ("offset", "mask"))
            if use.kind in ("offset", "load", "store", "choice") and offset is not None:
                places[offset] += 1
            if use.kind in ("mask", "guard", "load", "store", "choice") and mask is not None:
                places[mask] += 1
        return {node for node, count in places.items() if count > 1 and node.parts}

    def _invariants(self, ready: Printable, levels: Mapping[Expr, int]) -> set[Expr]:
        """The greatest parts of what stands in a loop that the loop does not change."""
        out: set[Expr] = set()
        for node in walk(ready.roots):
            if levels[node] >= 0 and self.scopes[levels[node]].loop:
                out.update(part for part in node.parts if part.parts and levels[part] < levels[node])
        return out

    # -- the pieces of the text -------------------------------------------------------------------------

    def _arguments(self, ready: Printable) -> tuple[str, ...]:
        """The sizes that the text needs: symbols of expressions that no scope defines and that are no ranges."""
        defined = set().union(*(scope.known for scope in self.scopes)) if self.scopes else set()
        found = [s for s in walk(ready.roots) if s.op == "sym" and s not in self.ranges and s.args[0] not in defined]
        return tuple(sorted({s.args[0] for s in found} - self.kept - {"zero"}))

    def _text(self, use: _Use, ready: Printable, arguments: Sequence[str]) -> str:
        match use.kind:
            case "define" | "loop":
                return "\n".join(self.scopes[use.level].lines)
            case "open":
                return "\n".join(self._loops(use)) if not self.target.range else ""
            case "close":
                value = self.values[use.name]
                return "" if self.target.range or not isinstance(value, Slice) else "}" * len(value.ranges)
            case "prelude":
                return _HELPERS if self.target.name == "cuda" else ""
            case "arguments":
                return "".join(f", {self.target.argument.format(name=name)}" for name in arguments)
            case "layouts":
                return "\n".join(self._comments())
        offset = self.shown.get((use.name, "offset"))
        mask = self.shown.get((use.name, "mask"))
        always = mask is None or (mask.op == "true" and bool(mask.args[0]))
        if use.kind == "guard":
            return "" if always or mask is None else self.target.guard.format(mask=text_of(ready, mask))
        if use.kind == "mask":
            return self.target.always if always or mask is None else text_of(ready, mask)
        assert offset is not None
        text = self._whole(use, self._hinted(use, text_of(ready, offset)))
        if use.kind == "offset":
            return text
        condition = "" if always or mask is None else text_of(ready, mask)
        if use.kind == "choice":
            chosen = use.words[0] if condition else use.words[1]
            return chosen.replace("[offset]", text).replace("[mask]", condition)
        words = {"pointer": use.words[0], "offset": text, "other": use.words[1], "value": use.words[1]}
        words["mask"] = condition
        kind = f"masked_{use.kind}" if condition else use.kind
        if self.target.ssa:
            return access(self.where, self.target, kind, words, self.uses.index(use))
        return str(getattr(self.target, kind).format(**words))

    def _whole(self, use: _Use, text: str) -> str:
        """The offset over the whole tile: a range that it does not depend on keeps its axis."""
        value = self.values[use.name]
        if not self.target.whole or not isinstance(value, Slice):
            return text
        if set(value.ranges) <= set(symbols_of((self.parts[use.name, "offset"].after,))):
            return text
        shape = f"({', '.join(map(str, value.shape))}{',' if len(value.shape) == 1 else ''})"
        return self.target.whole.format(shape=shape, offset=text)

    def _hinted(self, use: _Use, text: str) -> str:
        """The offset with what its layout proves of runs and divisibility, where that says something."""
        value = self.values[use.name]
        if not self.target.hint or not isinstance(value, Slice):
            return text
        expr = self.parts[use.name, "offset"].after
        if plainly_affine(expr):
            return text  # the target's own analysis sees the runs
        for axis, node in enumerate(value.ranges):
            run, multiple = run_of(expr, node, self.facts)
            if run > 1 and multiple > 1:
                rank = len(value.ranges)
                shapes = [f"({', '.join(str(n if k == axis else 1) for k in range(rank))})" for n in (multiple, run)]
                if rank == 1:
                    shapes = [str(multiple), str(run)]
                return self.target.hint.format(offset=text, multiple=shapes[0], run=shapes[1])
        return text

    def _loops(self, use: _Use) -> list[str]:
        """The heads of the loops that stand for the dimensions of ``:``."""
        value = self.values[use.name]
        names = {str(r): (self.ranges.get(r, str(r)), r.args[2]) for r in value.ranges}
        lines = []
        scopes = self.scopes[use.level + 1 - len(use.words) : use.level + 1]
        for depth, (word, scope) in enumerate(zip(use.words, scopes, strict=True)):
            name, extent = names[word]
            inside = [f"  {line}" for line in scope.lines]
            head = self.target.loop.format(name=name, extent=extent)
            lines += ["  " * depth + line for line in (head, *inside)]
        return lines

    def _comments(self) -> list[str]:
        lines = [f"{self.target.comment} {self.source.name}"]
        for name, value in self.source.bindings.items():
            first, many = (value[0], f"[0..{len(value) - 1}]") if isinstance(value, tuple) else (value, "")
            if isinstance(first, Slice):
                lines.append(f"{self.target.comment} {name}{many}: {first.text}")
        return lines


class _Lazy:
    """A word of the template that is known only when everything else is."""

    def __init__(self, filling: TemplateFilling, kind: str) -> None:
        self._filling, self._kind = filling, kind

    def __str__(self) -> str:
        return self._filling.mark(self._kind, "")


@lru_cache(maxsize=64)
def _compiled(text: str) -> tuple[Any, Mapping[str, int], frozenset[str]]:
    """A template made ready by Jinja2; the names that it leaves to its bindings, with their lines; all names."""
    import jinja2  # templates alone need it
    from jinja2 import meta, nodes

    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    tree = environment.parse(text)
    undeclared = meta.find_undeclared_variables(tree)
    lines = {node.name: node.lineno for node in reversed(list(tree.find_all(nodes.Name)))}
    first = {name: number for name, number in lines.items() if name in undeclared}
    return environment.from_string(text), first, frozenset(lines)


def _helpers(text: str) -> str:
    """The helper functions that a CUDA text calls, without headers: NVRTC has none."""
    lines = c_prelude("int64_t", cuda=True).replace("int64_t", "long long").split("\n")
    return "\n".join(line for line in lines if (name := re.search(r"tw_\w+", line)) and f"{name[0]}(" in text)


def _has_choices(expr: Expr) -> bool:
    """Whether something in an expression is simpler where a condition holds: sums and products of symbols are not."""
    return any(node.op not in ("add", "sub", "mul", "const", "sym") for node in walk((expr,)))


def _list(names: Any) -> str:
    return ", ".join(map(str, names))


def _is_range(node: Expr) -> bool:
    return bool(re.fullmatch(r"axis\d+_\d+_\d+", node.args[0]))
