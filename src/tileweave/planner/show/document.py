"""A plan as a document: saved, loaded and compared; everything that a run needs but the data."""

from __future__ import annotations

import json
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

from tileweave.backends.base import Decision
from tileweave.errors import PlanError
from tileweave.graph import ArrayData, Graph, Operation, Partition, Sink, Source, from_json, to_json
from tileweave.planner.machine import LinkGroup, Machine, Machines
from tileweave.planner.placement import Placement
from tileweave.planner.plan import Costs, Plan, Step
from tileweave.planner.show.wellformed import check_plan

FORMAT = "tileweave plan 1"
MOST_INLINE = 1 << 20
"""Bytes of arrays up to which a plan's document holds those of its graph; larger ones are holes when it is read."""


def graph_digest(graph: Graph) -> str:
    """The same text for graphs that are alike but for the values of their arrays."""
    return sha256(to_json(graph, arrays="omit").encode()).hexdigest()[:16]


def to_document(plan: Plan) -> dict[str, Any]:
    """The plan as plain data that `from_document` reads; nodes of the graph go by their place in its order."""
    nodes = plan.graph.nodes()
    numbers = {node: k for k, node in enumerate(nodes)}
    held = [node.data.array.nbytes for node in nodes if isinstance(node, Source) and isinstance(node.data, ArrayData)]
    return {
        "format": FORMAT,
        "digest": graph_digest(plan.graph),
        "graph": to_json(plan.graph, arrays="inline" if sum(held) <= MOST_INLINE else "omit"),
        "machines": _machines(plan.machines),
        "steps": [
            {
                "node": numbers[step.node],
                "stage": step.stage,
                "cuts": [list(edges) for edges in step.cuts.cuts],
                "outputs": list(step.outputs),
                "kernel": _decision(step.kernel),
                "costs": [getattr(step.costs, name) for name in Costs.__dataclass_fields__],
                "where": _placement(step.where),
                **({"spilled": True} if step.spilled else {}),
            }
            for step in plan.steps
        ],
        "seconds": plan.seconds,
        "peak_bytes": list(plan.peak_bytes),
        "alternatives": [list(row) for row in plan.alternatives],
        "gap": plan.gap,
        "homes": [[numbers[source], _placement(home)] for source, home in plan.homes],
        **({"listed": True} if plan.listed else {}),
    }


def from_document(document: dict[str, Any], graph: Graph | None = None) -> Plan:
    """The plan that a document holds.

    Args:
        document: from `to_document`.
        graph: the graph itself, where it is at hand: data of its own are not in the document.

    Raises:
        PlanError: the document is no plan, or is the plan of another graph.
    """
    if document.get("format") != FORMAT:
        raise PlanError("load(plan)", f"format {document.get('format')!r} is not known", legal=FORMAT)
    try:
        if graph is not None and document.get("digest", graph_digest(graph)) != graph_digest(graph):
            raise PlanError("load(plan)", "the plan is that of another graph", legal="the graph that was planned")
        used = graph if graph is not None else from_json(document["graph"])
        nodes = used.nodes()
        steps = []
        for row in document["steps"]:
            node = nodes[row["node"]]
            if not isinstance(node, (Operation, Sink)):
                raise PlanError("load(plan)", "the plan is that of another graph", legal="the graph that was planned")
            cuts = Partition(tuple(tuple(edges) for edges in row["cuts"]))
            costs, where = Costs(*row["costs"]), _placed(row["where"])
            kernel, outputs = _read_decision(row["kernel"]), tuple(row["outputs"])
            spilled = row.get("spilled", False) is True
            steps.append(Step(node, row["stage"], cuts, kernel, costs, outputs, where, spilled))
        homes = [(nodes[k], _placed(home)) for k, home in document["homes"]]
        if not all(isinstance(source, Source) for source, _ in homes):
            raise PlanError("load(plan)", "the plan is that of another graph", legal="the graph that was planned")
        rows = tuple((str(a), float(b), int(c), int(d)) for a, b, c, d in document["alternatives"])
        machines, peaks = _read_machines(document["machines"]), tuple(document["peak_bytes"])
        seconds, gap = float(document["seconds"]), document.get("gap")
        listed = document.get("listed", False) is True
        plan = Plan(used, machines, tuple(steps), seconds, peaks, rows, tuple(homes), gap, listed)
        check_plan(plan)
        return plan
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PlanError("load(plan)", f"the document is broken: {type(error).__name__}: {error}") from error


def save(plan: Plan, path: str) -> None:
    """Writes the plan's document as JSON."""
    Path(path).write_text(json.dumps(to_document(plan)), "utf-8")


def load(path: str, graph: Graph | None = None) -> Plan:
    """Reads what `save` wrote, or of a file of several plans the one of a graph."""
    found = documents(path)
    alike = [one for one in found if graph is not None and one.get("digest") == graph_digest(graph)]
    return from_document((alike or found)[0], graph)


def documents(path: str, where: str = "load(plan)") -> list[dict[str, Any]]:
    """The documents of a file of plans: one, or a list of several.

    Raises:
        PlanError: there is no such file, or no plan in it.
    """
    try:
        document = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # the last of these: it nests too deeply
        raise PlanError(where, f"{path!r} cannot be read: {error}", legal="a file that save wrote") from error
    found = document if isinstance(document, list) else [document]
    if not found or not all(isinstance(one, dict) and one.get("format") == FORMAT for one in found):
        raise PlanError(where, f"{path!r} holds no plan of the format {FORMAT!r}", legal="a file that save wrote")
    return found


def machines_of(document: dict[str, Any]) -> Machines:
    """The machines that the plan of a document is for."""
    try:
        return _read_machines(document["machines"])
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PlanError("load(plan)", f"the document is broken: {type(error).__name__}: {error}") from error


def diff(one: Plan, other: Plan) -> str:
    """What differs between two plans, a line per difference; empty where nothing does."""
    lines = []
    if str(one.machines) != str(other.machines):
        lines.append(f"machines: {one.machines} -> {other.machines}")
    before, after = ({(s.node, s.stage): s for s in plan.steps} for plan in (one, other))
    names = {
        key: f"{k} {step.name} ({step.stage})" for plan in (before, after) for k, (key, step) in enumerate(plan.items())
    }
    for key in dict.fromkeys([*before, *after]):
        a, b = before.get(key), after.get(key)
        if a is None or b is None:
            lines.append(f"{names[key]}: {'added' if a is None else 'removed'}")
            continue
        if a.cuts != b.cuts:
            lines.append(f"{names[key]}: cuts {a.cuts} -> {b.cuts}")
        elif a.where != b.where:
            lines.append(f"{names[key]}: placed {a.where.layout} -> {b.where.layout}")
        if a.spilled != b.spilled:
            lines.append(f"{names[key]}: {'spilled' if b.spilled else 'in memory'}")
        if a.costs.bytes_moved != b.costs.bytes_moved:
            lines.append(f"{names[key]}: moves {a.costs.bytes_moved} -> {b.costs.bytes_moved} bytes")
    homes = dict(one.homes)
    for source, home in other.homes:
        if homes.get(source) != home:
            lines.append(f"source {source.name}: {home.layout}")
    for what, old, new in (
        ("seconds", one.seconds, other.seconds),
        ("peak bytes", max(one.peak_bytes, default=0), max(other.peak_bytes, default=0)),
        ("bytes moved", one.bytes_moved, other.bytes_moved),
    ):
        if old != new:
            lines.append(f"{what}: {old:g} -> {new:g}")
    return "\n".join(lines)


def _placement(where: Placement) -> dict[str, Any]:
    digits = [[list(pair) for pair in row] for row in where.digits]
    replica = [list(pair) for pair in where.replica]
    return {
        "grid": list(where.grid),
        "digits": digits,
        "waves": list(where.waves),
        "replica": replica,
        "offset": where.offset,
        **({"run": where.run} if where.run else {}),
        **({"rest": where.rest} if where.rest else {}),
        **({"weights": list(where.weights)} if where.weights else {}),
    }


def _placed(row: dict[str, Any]) -> Placement:
    def pairs(items: Any) -> tuple[tuple[int, int], ...]:
        return tuple((int(a), int(b)) for a, b in items)

    digits = tuple(pairs(items) for items in row["digits"])
    copies, offset, run = pairs(row["replica"]), int(row["offset"]), int(row.get("run", 0))
    weights = tuple(int(n) for n in row.get("weights", ()))
    grid, waves, rest = tuple(row["grid"]), tuple(row["waves"]), int(row.get("rest", 0))
    if run and not copies:  # as plans were written whose runs were shared by all machines
        waves, copies = grid, ((-(-prod(grid) // run), 1),)
    return Placement(grid, digits, waves, copies, offset, run, weights, rest)


_MACHINE = tuple(Machine.__dataclass_fields__)
_SHARED = tuple(name for name in Machines.__dataclass_fields__ if name not in ("machines", "groups"))


def _decision(one: Decision) -> list[Any]:
    return [one.kernel, one.reason, one.backend, *([[_decision(o) for o in one.offered]] if one.offered else [])]


def _read_decision(row: list[Any]) -> Decision:
    kernel, reason, by, *more = row
    return Decision(kernel, reason, by, tuple(map(_read_decision, *more)) if more else ())


def _machines(machines: Machines) -> dict[str, Any]:
    """Equal machines are written once."""
    rows: list[dict[str, Any]] = []
    for one in machines.machines:
        row = {name: getattr(one, name) for name in _MACHINE if name != "name" and (one.gpu or name != "gpu")}
        if rows and {k: v for k, v in rows[-1].items() if k != "names"} == row:
            rows[-1]["names"].append(one.name)
        else:
            rows.append({**row, "names": [one.name]})
    groups = [[g.name, g.first, g.last, g.bytes_per_second, g.seconds] for g in machines.groups]
    return {"machines": rows, "groups": groups, **{name: getattr(machines, name) for name in _SHARED}}


def _read_machines(row: dict[str, Any]) -> Machines:
    found = []
    for one in row["machines"]:
        values = {k: v for k, v in one.items() if k != "names"}
        values["flops"] = tuple((str(a), float(b)) for a, b in values["flops"])
        values["caches"] = tuple((int(a), float(b)) for a, b in values.get("caches", ()))
        found += [Machine(name, **values) for name in one["names"]]
    groups = tuple(LinkGroup(*group) for group in row["groups"])
    return Machines(tuple(found), groups=groups, **{name: row[name] for name in _SHARED if name in row})
