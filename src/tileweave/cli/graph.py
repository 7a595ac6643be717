"""``tileweave graph``: show, check, rewrite and compare tensor expression graphs, from programs or JSON documents."""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tileweave.cli.files import check_new, count, document_at, draw
from tileweave.cli.model import SUFFIXES as MODELS
from tileweave.cli.model import graph_of_model
from tileweave.cli.program import execute, nothing_runs
from tileweave.errors import GraphError, StorageError, VerifyError
from tileweave.graph import (
    OPTIMIZATIONS,
    ArrayData,
    Graph,
    Node,
    Operation,
    Rewritten,
    Rule,
    Selector,
    SequencePoint,
    Signature,
    Source,
    Tensor,
    check_sharding,
    explain,
    from_json,
    problems,
    rewrite,
    to_json,
)
from tileweave.graph.ir.nodes import children
from tileweave.graph.ir.svg import svg
from tileweave.graph.ir.text import columns, ids
from tileweave.graph.passes.dense import DENSE
from tileweave.graph.passes.rules import EXPANSIONS, RULES
from tileweave.graph.passes.shard import moved
from tileweave.planner import Machines, Plan, machines
from tileweave.runtime.session import Session

EXIT_DIFFERENT, EXIT_BROKEN = 1, 2
MOST_LINES = 12
"""Lines that `diff` prints of each graph before it counts the rest."""


# ---------------------------------------------------------------------------------------------------------------------
# the commands


def show_graph(options: argparse.Namespace) -> int:
    """Print graphs as text, as a table of costs or as JSON; draw the first one."""
    if options.draw:
        check_new("--draw", options.draw, ".svg", bool(options.overwrite))
    found = _load(options.file, options)
    if broken := _complaints(found):
        return broken
    if options.json:
        print(to_json(_only(found, "--json"), arrays="omit" if options.no_arrays else "inline"), end="")
    else:
        _print_each(found, [str(explain(graph) if options.explain else graph) for graph in found.graphs])
    if options.draw and found.graphs:
        draw(options.draw, svg(found.graphs[0]))
    return found.status


def check_graph(options: argparse.Namespace) -> int:
    """Print every broken rule with its node, as a compiler would; exit status 2 where there is one."""
    found = _load(options.file, options)
    if broken := _complaints(found):
        return broken
    for label, graph in zip(found.labels, found.graphs, strict=True):
        print(f"{label}: {_counts(graph)}: well formed")
    return found.status


def rewrite_graph(options: argparse.Namespace) -> int:
    """Apply rules to a fixed point; print what each did where, and the result."""
    if options.list:
        print(_rule_table())
        return 0
    if options.file is None:
        raise GraphError("tileweave graph rewrite", "no graph is named", legal="PROGRAM.py, FILE.json, or --list")
    rules = _chosen(options.rules)
    if options.draw:
        check_new("--draw", options.draw, ".svg", bool(options.overwrite))
    found = _load(options.file, options)
    if broken := _complaints(found):
        return broken
    if options.json:
        _only(found, "--json")
    results = [rewrite(graph, rules, passes=options.passes) for graph in found.graphs]
    if options.json:
        print(_trace(results[0]), file=sys.stderr)
        print(to_json(results[0].graph), end="")
    else:
        _print_each(found, [f"{_trace(done)}\n\n{done.graph}" for done in results])
    if options.draw and results:
        draw(options.draw, svg(results[0].graph))
    return found.status


def diff_graph(options: argparse.Namespace) -> int:
    """Print where two graphs part, and whether one is a correct sharding of the other; 1 where neither is."""
    loaded = [_load(path, options) for path in (options.file, options.other)]
    broken = [_complaints(found) for found in loaded]
    if status := max(*broken, *(found.status for found in loaded)):
        return status
    first, second = _same_sources([_only(found, "diff") for found in loaded])
    labels = [found.labels[0] for found in loaded]
    if first is second:
        print(f"{labels[0]} and {labels[1]} are the same graph: {_counts(first)}")
        return 0
    print("\n".join(_difference(first, second, labels)))
    holds, verdict = _verdict(first, second, labels)
    print(verdict)
    return 0 if holds else EXIT_DIFFERENT


# ---------------------------------------------------------------------------------------------------------------------
# graphs from programs and documents


@dataclass(frozen=True, slots=True)
class _Found:
    """The graphs of a file, what they are called in messages, and the exit status of the program that made them."""

    path: str
    graphs: tuple[Graph, ...]
    labels: tuple[str, ...]
    status: int = 0


def _load(word: str, options: argparse.Namespace) -> _Found:
    """The graphs of ``FILE`` or ``FILE#N``: a document, a model, or a program up to the first result that it needs."""
    path, number = _split(word)
    if path.endswith(MODELS):
        given = [a for a in options.arguments if a != "--"]
        return _chosen_graph(_Found(path, (graph_of_model(path, given),), (path,)), number)
    if path == "-" or path.endswith(".json"):
        given = [a for a in options.arguments if a != "--"]
        if given and not str(getattr(options, "other", "")).partition("#")[0].endswith(".py"):
            raise StorageError(path, f"a document takes no argument {given[0]!r}", legal="arguments for a program")
        return _chosen_graph(_Found(path, (_read(path),), (path,)), number)
    if not path.endswith(".py"):
        raise StorageError(
            path, "is neither a program nor a document", legal="PROGRAM.py, MODEL.onnx, FILE.json, or - for JSON"
        )
    graphs: dict[Graph, None] = {}

    def planned(plan: Plan) -> None:
        graphs[plan.graph] = None

    program = argparse.Namespace(
        program=path, arguments=options.arguments, command=f"graph {options.graph_command} {path}"
    )
    with redirect_stdout(io.StringIO()):  # what the program prints is no part of the answer
        status = execute(program, Session(machines=_roomy, planned=planned, as_written=True), failed=_status)
    if not graphs and not status:
        raise nothing_runs(f"tileweave graph {options.graph_command}", path)
    labels = tuple(f"{path}#{k}" if len(graphs) > 1 else path for k in range(1, len(graphs) + 1))
    return _chosen_graph(_Found(path, tuple(graphs), labels, status), number)


def _roomy(asked: Machines | None) -> Machines:
    """The program's machines with all the memory that any graph needs: how it is cut is no question here."""
    return machines(asked or 1, memory=1 << 62)


def _status(error: Exception) -> int:
    return EXIT_BROKEN if isinstance(error, VerifyError) else 1


def _split(word: str) -> tuple[str, int | None]:
    """``FILE#N`` in its parts; a file whose own name has a # is itself."""
    path, mark, number = word.rpartition("#")
    if not mark or Path(word).exists():
        return word, None
    if not (number.isascii() and number.isdecimal() and int(number) > 0):
        raise StorageError(word, f"{number!r} is not the number of a graph", legal="FILE or FILE#N, N from 1")
    return path, int(number)


def _chosen_graph(found: _Found, number: int | None) -> _Found:
    if number is None or (found.status and number > len(found.graphs)):
        return found
    if number > len(found.graphs):
        many = len(found.graphs)
        raise StorageError(f"{found.path}#{number}", f"{found.path} has {count(many, 'graph')}", legal=f"1..{many}")
    return replace(found, graphs=(found.graphs[number - 1],), labels=(found.labels[number - 1],))


def _only(found: _Found, wanted_by: str) -> Graph:
    """The one graph of a file; several need a choice."""
    if len(found.graphs) != 1:
        many = len(found.graphs)
        problem = f"{wanted_by} takes one graph, the program has {many}"
        legal = f"{found.path}#1 .. {found.path}#{many}" if many else "a program that plans or runs something"
        raise StorageError(found.path, problem, legal=legal)
    return found.graphs[0]


def _read(path: str) -> Graph:
    text = document_at(path, "a graph as JSON")
    try:
        return from_json(text, check=False)
    except VerifyError as error:
        error.named(path)
        raise


def _complaints(found: _Found) -> int:
    """Prints every broken rule of a file's graphs; 2 where there is one, or where there is no graph to speak of."""
    broken = 0
    for label, graph in zip(found.labels, found.graphs, strict=True):
        for problem in problems(graph):
            print(f"{label}: error: {problem.path}: {problem.problem} [{problem.rule}]", file=sys.stderr)
            broken = EXIT_BROKEN
    return broken or (found.status if not found.graphs else 0)


# ---------------------------------------------------------------------------------------------------------------------
# printing


def _print_each(found: _Found, texts: Sequence[str]) -> None:
    """Each text, under a heading where there are several."""
    for number, (label, text) in enumerate(zip(found.labels, texts, strict=True)):
        heading = f"{label}\n" if len(texts) > 1 else ""
        print(("\n" if number else "") + heading + text)


def _counts(graph: Graph) -> str:
    nodes = graph.nodes()
    kinds = ((Source, "source"), (Selector, "selector"), (Operation, "operation"))
    counts = [count(sum(isinstance(node, kind) for node in nodes), word) for kind, word in kinds]
    return ", ".join([*counts, count(len(graph.sinks), "sink")])


# ---------------------------------------------------------------------------------------------------------------------
# rules


_GROUPS = {"optimizations": OPTIMIZATIONS, "expansions": EXPANSIONS, "dense": DENSE}


def _chosen(words: str | None) -> list[Rule]:
    """The rules of a comma-separated list of names and groups, each once; the optimizations where there is none."""
    chosen: dict[str, Rule] = {}
    for word in [w.strip() for w in (words if words is not None else "optimizations").split(",")]:
        group = _GROUPS.get(word) or ([RULES[word]] if word in RULES else ())
        if not group:
            raise GraphError("--rules", f"{word!r} is no rule", legal=", ".join([*RULES, *_GROUPS]))
        chosen.update({rule.name: rule for rule in group})
    return list(chosen.values())


def _rule_table() -> str:
    rows = [(r.name, r.kind, "exact" if r.exact else "to rounding", r.law) for r in RULES.values()]
    return "\n".join(columns([("rule", "kind", "floats", "law"), *rows]))


def _trace(done: Rewritten) -> str:
    steps = str(done) if done.trace else "no rule applies"
    return steps if done.complete else f"{steps}\nnote: the passes are used up, and rules still apply: --passes"


# ---------------------------------------------------------------------------------------------------------------------
# the difference of two graphs


def _same_sources(graphs: Sequence[Graph]) -> list[Graph]:
    """The graphs with one source for arrays of the same bytes, as two documents or two runs hold them apart."""
    known: dict[tuple[Any, ...], Source] = {}
    out = []
    for graph in graphs:
        new: dict[Node, Node] = {}
        for node in graph.nodes():
            new[node] = moved(node, new)
            if isinstance(node, Source) and isinstance(node.data, ArrayData):
                digest = hashlib.sha256(node.data.array.tobytes()).digest()
                new[node] = known.setdefault((digest, node.type, node.name, node.placement), node)
        out.append(cast("Graph", new[graph]))
    return out


def _difference(first: Graph, second: Graph, labels: Sequence[str]) -> list[str]:
    """How often each kind of node stands in each graph, then the lines at which they part."""
    counts = [_kinds(graph) for graph in (first, second)]
    names = sorted({*counts[0], *counts[1]})
    rows = [(n, str(counts[0][n]), str(counts[1][n])) for n in names if counts[0][n] != counts[1][n]]
    table = columns([("nodes", *labels), *rows], right=(1, 2)) if rows else ["both have as many nodes of each kind"]
    parted = [*_parting(first, second, "-"), *_parting(second, first, "+")]
    return [*table, *(parted or ["the values are the same; what is observed, or in which order, is not"]), ""]


def _kinds(graph: Graph) -> Counter[str]:
    counts: Counter[str] = Counter()
    for node in graph.nodes():
        if isinstance(node, Operation):
            counts[node.operator] += 1
        elif isinstance(node, Selector):
            counts[node.kind] += 1
        elif not isinstance(node, (Graph, Tensor, Signature)):
            counts["sequence point" if isinstance(node, SequencePoint) else type(node).__name__.lower()] += 1
    return counts


def _parting(graph: Graph, other: Graph, sign: str) -> list[str]:
    """The lines of a graph's own nodes that stand on nodes of both, and how many more only it has."""
    shared = set(other.nodes())
    names = ids(graph)
    texts = [re.sub(" {2,}", "  ", line) for line in str(graph).splitlines()]
    lines = {name: line for line in texts for name in line.split(" = ")[0].split(", ")}
    own = [n for n in graph.nodes() if n not in shared and isinstance(n, (Tensor, Operation))]
    own = [n for n in own if n in names]
    made = [(n, n.producer if isinstance(n, Tensor) else n) for n in own]
    roots = [n for n, maker in made if all(c in shared or not isinstance(c, Tensor) for c in children(maker))]
    shown = list(dict.fromkeys(lines[names[n]] for n in roots))[:MOST_LINES]
    out = [f"{sign} {line}" for line in shown]
    rest = len({lines[names[n]] for n in own}) - len(shown)
    return [*out, f"{sign} .. and {rest} more"] if rest else out


def _verdict(first: Graph, second: Graph, labels: Sequence[str]) -> tuple[bool, str]:
    """Whether one graph is a correct sharding of the other; where neither is, why the larger one is not."""
    ways = [(second, first, labels[1], labels[0]), (first, second, labels[0], labels[1])]
    if len(first.operations) > len(second.operations):
        ways.reverse()
    reasons = []
    for sharded, whole, name, of in ways:
        try:
            check_sharding(sharded, whole)
        except VerifyError as error:
            where = f"{error.path}: " if error.rule == "shard" else ""
            reasons.append(f"{name} is no sharding of {of}: {where}{error.problem} [{error.rule}]")
        else:
            return True, f"{name} is a correct sharding of {of}: the values are the same, to rounding"
    return False, reasons[0]
