"""The planner's options on the command line: objective, search, pins by name, and plans that are kept in files."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tileweave.cli.files import check_new, write_whole
from tileweave.errors import PlanError
from tileweave.graph import Graph, Operation
from tileweave.graph.ir.interned import line_of
from tileweave.graph.ops.operators import OPERATORS
from tileweave.lower.forms import planned_forms
from tileweave.planner import Plan
from tileweave.planner.search.objectives import objective_of
from tileweave.planner.show.document import documents, from_document, graph_digest, machines_of, to_document

FUSED = frozenset({"linear_relu", "fused", "rows", "conv_chain", "product_chain", "combine"})
"""Operators that plans show and no program writes: a graph is pinned as it is written."""


class Pins:
    """What ``--pin`` and ``--forbid`` say, found in each graph that the program plans.

    Args:
        words: ``OPERATION=CUTS``: an operator, one of several by number (``matmul#2``) or all of a line (``@17``); then
            parts by name (``i:4,k:2``), in order (``4,1,2``), or (to forbid) names.
        forbid: whether names stand behind the sign.
    """

    def __init__(self, option: str, words: Sequence[str], *, forbid: bool = False) -> None:
        self.option, self.found = option, dict.fromkeys(words, False)
        self.rows: list[tuple[str, str, Any]] = []
        for word in words:
            what, sign, cuts = word.partition("=")
            if not (sign and re.fullmatch(r"@\d+|[A-Za-z_]\w*(#[1-9]\d*)?", what)):
                legal = "such as matmul=k or matmul#2=i,j" if forbid else "such as matmul=4,1,2 or matmul#2=k:4"
                raise PlanError(option, f"{word!r} names no operation", legal=legal)
            self.rows.append((word, what, _names(word, cuts) if forbid else self._parts(word, cuts)))

    def _parts(self, word: str, cuts: str) -> dict[str, int] | list[int]:
        parts = [part.rpartition(":") for part in cuts.split(",")]
        named = {name for name, _, _ in parts}
        good = all(count.isdecimal() and int(count) for _, _, count in parts)
        if not good or (len(parts) > 1 and "" in named and len(named) > 1):
            legal = "a number for each dimension (4,1,2), or some by name (i:4,k:2)"
            raise PlanError(self.option, f"{word!r} says no parts", legal=legal)
        return [int(n) for _, _, n in parts] if named == {""} else {name: int(n) for name, _, n in parts}

    def of(self, graph: Graph) -> dict[Operation, Any]:
        """Operation -> its cuts, for those operations of a graph that are named."""
        known = _numbered(graph)
        out: dict[Operation, Any] = {}
        for word, what, cuts in self.rows:
            for operation, names in known.items():
                if what in names:
                    out[operation], self.found[word] = cuts, True
        for word, what, _ in self.rows:  # what no graph can have is refused before any runs
            if not (self.found[word] or what.startswith("@") or _is_written(what.partition("#")[0])):
                raise self._missed(word, [graph])
        return out

    def check(self, graphs: Sequence[Graph]) -> None:
        """Refuses a word that no graph of the program met."""
        missed = [word for word, found in self.found.items() if not found]
        if missed and graphs:
            raise self._missed(missed[0], graphs)

    def _missed(self, word: str, graphs: Sequence[Graph]) -> PlanError:
        legal = ", ".join(dict.fromkeys(names[1] for graph in graphs for names in _numbered(graph).values()))
        return PlanError(self.option, f"no graph has the operation of {word!r}", legal=legal)


def _is_written(operator: str) -> bool:
    """Whether a graph may have it that the program makes later."""
    return operator in OPERATORS and operator not in FUSED


def _names(word: str, cuts: str) -> list[str]:
    """The names behind the sign."""
    names = cuts.split(",")
    if not all(name.isidentifier() for name in names):
        raise PlanError("--forbid", f"{word!r} names no dimensions", legal="names that stay whole, such as matmul=i,k")
    return names


def _numbered(graph: Graph) -> dict[Operation, tuple[str, ...]]:
    """The names of a graph's operations: the operator, the same with a number, the line."""
    counts: dict[str, int] = {}
    out: dict[Operation, tuple[str, ...]] = {}
    for operation in graph.operations:
        counts[operation.operator] = count = counts.get(operation.operator, 0) + 1
        line = line_of(operation).rpartition(":")[2]
        out[operation] = (operation.operator, f"{operation.operator}#{count}", f"@{line}")
    return out


class Planning:
    """What the options say of every plan of a program.

    Raises:
        PlanError: an objective that is not known, a pin that says nothing, options that exclude each other.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        said = {name: getattr(options, name) for name in ("objective", "trials", "seed", "workers", "runs")}
        self.said = {name: value for name, value in said.items() if value is not None}
        objective_of(self.said.get("objective", "seconds"))
        lonely = [name for name in ("seed", "workers", "runs") if name in self.said and not options.trials]
        if lonely:
            problem = "there is no stochastic search without trials"
            raise PlanError(f"--{lonely[0]}", problem, legal="--trials 20000")
        chosen = bool(self.said or options.pin or options.forbid)
        if options.load and (chosen or options.machines or options.memory):
            raise PlanError(
                "--load", "a plan that was kept is run as it is", legal="--load without options of planning"
            )
        self.pins = {"pin": Pins("--pin", options.pin), "forbid": Pins("--forbid", options.forbid, forbid=True)}
        self.choose = self._choose if chosen or getattr(options, "diff", None) else None
        self.graphs: list[Graph] = []
        self.kept = documents(options.load, "--load") if options.load else None
        if options.save:
            check_new("--save", options.save, ".json", bool(options.overwrite))

    def _choose(self, graph: Graph) -> Mapping[str, Any]:
        self.graphs.append(graph)
        found = {name: words.of(graph) for name, words in self.pins.items()}
        return self.said | {name: rows for name, rows in found.items() if rows}

    def check(self) -> None:
        """Refuses a pin that no graph of the program met."""
        for words in self.pins.values():
            words.check(self.graphs)


def write_plans(path: str, plans: Sequence[Plan]) -> None:
    """One file with a document per plan."""
    write_whole(path, json.dumps([to_document(plan) for plan in plans]))


def difference(plan: Plan, graphs: Sequence[Graph], kept: Sequence[dict[str, Any]], path: str) -> str:
    """How a plan differs from the one that was kept for the same graph.

    Args:
        plan: one of the program's.
        graphs: those of the program, as they are written: what a pin leaves apart may be fused elsewhere.
        kept: the documents of a file.
        path: its path.
    """
    own = graph_digest(plan.graph)
    for graph in (plan.graph, *graphs):
        if own not in map(graph_digest, planned_forms(graph, plan.machines)):
            continue
        for document in kept:
            for form in planned_forms(graph, machines_of(document)):
                if document.get("digest") == graph_digest(form):
                    before = from_document(document, plan.graph if own == document["digest"] else form)
                    return before.diff(plan) or f"as in {Path(path).name}"
    return f"{Path(path).name} has no plan of this graph"
