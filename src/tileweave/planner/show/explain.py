"""A plan for people and for programs: a table, plain data, a picture."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from tileweave.errors import PlanError
from tileweave.graph import FileTarget, Operation, Sink, Source
from tileweave.planner.bounds import best_factor_grid, lower_bound_words, product_of
from tileweave.planner.loads import Load, Loads
from tileweave.planner.movement import Movement, movements
from tileweave.planner.plan import Plan, Step
from tileweave.planner.show.exchange import margined
from tileweave.words import count_text, seconds_text, size_text

MOST_LENGTHS = 4
"""Parts of unequal lengths that are listed one by one."""


def cuts_text(step: Step) -> str:
    """The cut dimensions by name, e.g. ``batch/4``; ``whole`` where nothing is cut.

    Dimensions that have no name of their own are the axes of what a step makes, stores, or (of a reduction) reads.
    """
    node = step.node
    names: tuple[str, ...]
    if step.stage in ("block", "partial") and not isinstance(node, Sink) and node.signature:
        names = node.signature.dims
    else:
        names = tuple(f"axis{k}" for k in range(len(step.cuts.cuts)))
    names = tuple(f"axis{name[1:]}" if re.fullmatch(r"d[0-9]+", name) else name for name in names)
    cut = []
    for name, parts, edges in zip(names, step.cuts.grid, step.cuts.cuts, strict=True):
        lengths = [b - a for a, b in pairwise(edges)]
        uneven = step.where.weights and max(lengths) - min(lengths) > 1
        few = ", ".join(map(str, lengths)) if parts <= MOST_LENGTHS else f"{min(lengths)}..{max(lengths)}"
        cut += [f"{name}/{parts}" + (f" ({few})" if uneven else "")] if parts > 1 else []
    return " ".join(cut) or "whole"


def step_label(step: Step) -> str:
    """What a step does, in a few words."""
    if isinstance(step.node, Sink):
        target = step.node.target
        where = target.path + (f"#{target.key}" if target.key else "") if isinstance(target, FileTarget) else "memory"
        return f"store -> {where}"
    about: list[str] = [step.stage] if step.stage != "block" else []
    about += ["spilled"] if step.spilled else []
    return f"{step.name} ({', '.join(about)})" if about else step.name


def kernel_text(step: Step) -> str:
    """What computes or stores a shard."""
    return step.kernel.kernel if step.stage == "store" else str(step.kernel)


def explain(plan: Plan, runtime: str = "local") -> str:
    """The plan as text: what runs where, and what it costs, per step and in sum.

    Args:
        plan: any.
        runtime: ``ray`` for what it costs on a cluster, where machines exchange margins.

    Raises:
        PlanError: there is no such runtime.
    """
    own, several = plan, len(plan.machines) > 1
    plan, loads = _as_run(plan, runtime, "explain(runtime)")
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("step", justify="right")
    table.add_column("operation", overflow="fold")
    table.add_column("result")
    table.add_column("cuts")
    for name in ("shards", "flops", "read", "moved", "peak", "time"):
        table.add_column(name, justify="right")
    table.add_column("kernel")
    for number, step in enumerate(plan.steps):
        costs = step.costs
        table.add_row(
            str(number),
            Text(step_label(step)),
            Text(", ".join(str(tensor.type) for tensor in step.tensors)),
            cuts_text(step),
            str(step.cuts.count),
            count_text(costs.flops) if costs.flops else "",
            size_text(costs.bytes_read) if costs.bytes_read else "",
            size_text(costs.bytes_moved) if costs.bytes_moved else "",
            size_text(costs.peak_bytes),
            seconds_text(costs.seconds),
            kernel_text(step),
        )
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    lines = [f"plan for {plan.machines}", "\n".join(line.rstrip() for line in text.splitlines()).strip("\n"), ""]
    peak = max(plan.peak_bytes, default=0)
    budget = min(machine.memory_bytes for machine in plan.machines.machines)
    flops = count_text(plan.flops) + ("flop" if plan.flops >= 1000 else " flop")
    lines += [
        f"total: {plan.tasks} tasks, {flops}, {size_text(plan.bytes_moved)} moved between "
        f"machines, {size_text(plan.bytes_read)} read, {size_text(plan.bytes_written)} written",
        f"estimate: {seconds_text(plan.seconds)}, from the rates that the machines are said to have",
        f"peak memory: {size_text(peak)} per machine of {size_text(budget)}; results in memory and kernels' own "
        "temporaries come on top",
    ]
    lines += list(_passing(plan, loads))
    if plan is not own:
        lines.append("margins: chains of stencils exchange once for several steps, as the first of each is told to")
    if plan.gap is not None and several:
        lines.append(
            f"choice of cuts: at most {_percent(plan.gap)} % above the least of all that were offered, by sums"
        )
    lines += list(_ratios(plan, loads))
    lines += list(_moves(plan, loads)) if several else []
    lines += list(_offers(plan))
    if len(plan.alternatives) > 1:
        best, width = set(frontier(plan)), max(22, *(len(label) for label, *_ in plan.alternatives))
        lines.append("simulated (* on the frontier of time, memory and bytes moved):")
        lines += [
            f"{'*' if k in best else ' ':>2}{label:<{width}} {seconds_text(seconds):>8}  peak {size_text(most):>9}  "
            f"moved {size_text(moved):>9}"
            for k, (label, seconds, most, moved) in enumerate(plan.alternatives)
        ]
    return "\n".join(lines)


def _as_run(plan: Plan, runtime: str, where: str) -> tuple[Plan, list[Load]]:
    """The plan with the estimates of a runtime, and what each machine does in each step there."""
    if runtime not in ("local", "ray"):
        raise PlanError(where, f"there is no runtime {runtime!r}", legal="local, ray")
    found = margined(plan) if runtime == "ray" else None
    return found or (plan, Loads().of(plan))


def _passing(plan: Plan, loads: Sequence[Load]) -> Iterator[str]:
    """What the program's arrays and results take on their way to a cluster and back."""
    if plan.machines.driver_bytes_per_second:
        names = ("carried", "results", "objects")
        carried, results, objects = (sum(float(getattr(load, name).sum()) for load in loads) for name in names)
        seconds = seconds_text(plan.machines.driver_seconds(carried - results, results, objects))
        sizes = f"{size_text(carried - results)} to machines and {size_text(results)} back"
        yield f"through the program's process: {sizes} in {objects:.0f} objects, {seconds}"


def _percent(fraction: float) -> str:
    """Per cent, rounded up to a hundredth: what is said to be the most is."""
    return "0" if fraction < 1e-9 else f"{math.ceil(1e4 * fraction) / 100:.3g}"


def _offers(plan: Plan) -> Iterator[str]:
    """For each kind of device that the machines have: the kernel of every operation there, or why there is none."""
    for number, kind in enumerate(filter(None, plan.machines.devices)):
        yield f"on {kind}:"
        for k, step in enumerate(plan.steps):
            if len(step.kernel.offered) > number:
                found = step.kernel.offered[number]
                yield f"{k:>4} {step_label(step):<16} {found.kernel or 'none'}: {found.reason}"


def frontier(plan: Plan) -> list[int]:
    """The numbers of the simulated plans that no other one equals or beats in time, memory and bytes moved at once."""
    costs = [row[1:] for row in plan.alternatives]
    return [
        k
        for k, mine in enumerate(costs)
        if not any(
            all(a <= b for a, b in zip(other, mine, strict=True)) and (other != mine or j < k)
            for j, other in enumerate(costs)
            if j != k
        )
    ]


MOST_MOVES = 12
"""Edges that are listed, those that move most first."""


def _moves(plan: Plan, loads: Sequence[Load]) -> Iterator[str]:
    """What moves between machines: how much, as which collective, for which operation and line of the program."""
    found = [m for m in movements(plan, loads) if m.bytes_moved] if loads else []
    if not found:
        return
    yield "moved:"
    for one in sorted(found, key=lambda m: -m.bytes_moved)[:MOST_MOVES]:
        yield f"  {move_text(plan, one)}"
    if len(found) > MOST_MOVES:
        rest = sum(sorted(m.bytes_moved for m in found)[:-MOST_MOVES])
        yield f"  {len(found) - MOST_MOVES} edges more, {size_text(rest)}"


def taken_text(plan: Plan, one: Movement) -> str:
    """What an edge carries: a source by its name, partial results, or a tensor."""
    producer = one.tensor.producer
    what = f"source {producer.name or 'array'}" if isinstance(producer, Source) else repr(one.tensor)[8:-1]
    return "its partial results" if producer is plan.steps[one.step].node else what


def move_text(plan: Plan, one: Movement) -> str:
    """One edge: step, what it reads, bytes, collective, and the user's line."""
    step, reads = plan.steps[one.step], taken_text(plan, one)
    line = f", {'/'.join(one.line.split('/')[-2:])}" if one.line else ""
    return f"{size_text(one.bytes_moved):>9}  {one.collective}: step {one.step} {step.name} takes {reads}{line}"


def _ratios(plan: Plan, loads: Sequence[Load]) -> Iterator[str]:
    """Per product of matrices on several machines: what it receives, beside the least that any plan could."""
    count = len(plan.machines)
    if count == 1:
        return
    words: dict[Any, Any] = {}
    for step, load in zip(plan.steps, loads, strict=True):
        words[step.node] = words.get(step.node, 0) + load.moved + load.read
    homes = plan.residents
    for operation, received in words.items():
        product = product_of(operation) if isinstance(operation, Operation) else None
        if product is None:
            continue
        item = operation.outputs[0][1].dtype.itemsize
        memory = min(machine.memory_bytes for machine in plan.machines.machines) / item
        bound = lower_bound_words(*product.shape, count, memory) * item
        best = best_factor_grid(*product.shape, count)[1] * item
        most = int(received.max())
        ratio = f"{most / bound:.2f} x the lower bound of {size_text(bound)}" if bound else "no communication is needed"
        sources = [t.producer for _, t in operation.inputs if isinstance(t.producer, Source)]
        free = all(source in homes and homes[source].copies == 1 for source in sources)
        note = "" if free else "; the bound assumes one copy of the operands on the machines"
        factor = f" (best factor grid {best / bound:.2f} x)" if bound else ""
        yield f"{operation.operator} receives at most {size_text(most)} per machine, {ratio}{factor}{note}"


def to_json(plan: Plan, runtime: str = "local") -> dict[str, Any]:
    """The plan as plain data; names carry the units.

    Args:
        plan: any.
        runtime: as for `explain`.

    Raises:
        PlanError: there is no such runtime.
    """
    plan, loads = _as_run(plan, runtime, "to_json(runtime)")
    return {
        "machines": [
            {"name": m.name, "memory_bytes": m.memory_bytes, "cores": m.cores, "peak_bytes": peak}
            for m, peak in zip(plan.machines.machines, plan.peak_bytes or [0] * len(plan.machines), strict=True)
        ],
        "seconds": plan.seconds,
        "flops": plan.flops,
        "bytes_moved": plan.bytes_moved,
        "bytes_read": plan.bytes_read,
        "bytes_written": plan.bytes_written,
        "tasks": plan.tasks,
        "steps": [
            {
                "operation": step_label(step),
                "stage": step.stage,
                "shape": list(step.tensor.shape),
                "dtype": step.tensor.dtype.name,
                "outputs": list(step.outputs) if not isinstance(step.node, Sink) else [],
                "index": list(step.cuts.box.shape),
                "cuts": [list(cuts) for cuts in step.cuts.cuts],
                "shards": step.cuts.count,
                "flops": step.costs.flops,
                "bytes_moved": step.costs.bytes_moved,
                "bytes_read": step.costs.bytes_read,
                "bytes_written": step.costs.bytes_written,
                "peak_bytes": step.costs.peak_bytes,
                "seconds": step.costs.seconds,
                "kernel": kernel_text(step),
                "reason": step.kernel.reason,
            }
            for step in plan.steps
        ],
        "moves": [
            {
                "step": one.step,
                "reads": repr(one.tensor)[1:-1],
                "bytes_moved": one.bytes_moved,
                "collective": one.collective.kind,
                "members": one.collective.members,
                "groups": one.collective.groups,
                "line": one.line,
            }
            for one in (movements(plan, loads) if len(plan.machines) > 1 else ())
            if one.bytes_moved
        ],
        "alternatives": [
            {"label": label, "seconds": seconds, "peak_bytes": peak, "bytes_moved": moved}
            for label, seconds, peak, moved in plan.alternatives
        ],
    }
