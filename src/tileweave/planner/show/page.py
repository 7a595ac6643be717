"""A plan as one HTML page that needs nothing else: graph and cuts, timeline, memory, what was considered."""

from __future__ import annotations

from html import escape

from tileweave.planner.machines import size_text
from tileweave.planner.plan import Plan
from tileweave.planner.show.explain import cuts_text, seconds_text, step_label
from tileweave.planner.show.picture import to_svg
from tileweave.planner.simulate import Simulation, simulate

__all__ = ["to_html"]

WIDTH, ROW, LEFT = 960, 18, 110
MOST_ROWS = 32
"""Groups of like machines that the timeline shows."""
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em;color:#222;max-width:1100px}"
    "table{border-collapse:collapse}td,th{padding:2px 10px;border-bottom:1px solid #ddd;text-align:left}"
    "td.n,th.n{text-align:right}svg{max-width:100%;height:auto}h2{margin-top:1.6em;font-size:1.1em}"
)


def to_html(plan: Plan) -> str:
    """The page as text; without scripts, and without anything that is loaded from elsewhere."""
    result = simulate(plan)
    peak = max(plan.peak_bytes, default=0)
    facts = (
        f"{plan.tasks} tasks, {size_text(plan.bytes_moved)} moved between machines, {size_text(plan.bytes_read)} read, "
        f"peak {size_text(peak)} per machine, {seconds_text(plan.seconds)} estimated"
    )
    return "\n".join(
        [
            "<!DOCTYPE html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>Plan</title><style>{_STYLE}</style></head><body>',
            f"<h1>Plan for {escape(str(plan.machines))}</h1><p>{escape(facts)}</p>",
            f"<h2>Graph</h2>{to_svg(plan)}",
            f"<h2>Cuts and costs</h2>{_steps(plan)}",
            f"<h2>Timeline</h2>{_timeline(plan, result)}",
            f"<h2>Memory</h2>{_memory(plan)}",
            f"<h2>Considered</h2>{_considered(plan)}",
            "</body></html>",
        ]
    )


def _table(head: list[str], rows: list[list[str]], numbers: int) -> str:
    """A table whose last columns are numbers."""
    first = len(head) - numbers

    def cells(row: list[str], tag: str) -> str:
        kinds = [tag if k < first else f'{tag} class="n"' for k in range(len(row))]
        return "".join(f"<{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{cells(head, 'th')}</tr>{body}</table>"


def _steps(plan: Plan) -> str:
    rows = [
        [
            str(number),
            step_label(step),
            ", ".join(str(tensor.type) for tensor in step.tensors),
            cuts_text(step),
            str(step.where.layout),
            str(step.cuts.count),
            size_text(step.costs.bytes_moved),
            size_text(step.costs.peak_bytes),
            seconds_text(step.costs.seconds),
        ]
        for number, step in enumerate(plan.steps)
    ]
    return _table(["step", "operation", "result", "cuts", "placement", "shards", "moved", "peak", "time"], rows, 4)


def _timeline(plan: Plan, result: Simulation) -> str:
    """A row per group of like machines: what arrives (light) and what is computed, over time."""
    total = result.seconds or 1.0
    machines = sorted({span.machine for span in result.spans})[:MOST_ROWS]
    at = {machine: k for k, machine in enumerate(machines)}
    out = []
    for span in result.spans:
        if span.machine not in at:
            continue
        y, colour = at[span.machine] * ROW, COLOURS[span.step % len(COLOURS)]
        label = escape(
            f"{step_label(plan.steps[span.step])}: {seconds_text(span.end - span.arrive)}, x{span.alike} machines"
        )
        for start, end, opacity in ((span.arrive, span.start, 0.35), (span.start, span.end, 1.0)):
            x, width = LEFT + start / total * (WIDTH - LEFT), max(0.4, (end - start) / total * (WIDTH - LEFT))
            out.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{width:.1f}" height="{ROW - 4}" fill="{colour}" '
                f'fill-opacity="{opacity}"><title>{label}</title></rect>'
            )
    for machine, k in at.items():
        name = escape(plan.machines.machines[machine].name)
        out.append(f'<text x="0" y="{k * ROW + 13}" font-size="11">{name}</text>')
    height = len(machines) * ROW + 18
    out.append(f'<text x="{LEFT}" y="{height - 4}" font-size="11">0</text>')
    out.append(f'<text x="{WIDTH}" y="{height - 4}" font-size="11" text-anchor="end">{seconds_text(total)}</text>')
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">{"".join(out)}</svg>'


def _memory(plan: Plan) -> str:
    """The most that one machine holds while each step runs, as bars below the budget."""
    budget = min(machine.memory_bytes for machine in plan.machines.machines)
    most = max([step.costs.peak_bytes for step in plan.steps], default=0)
    scale = min(budget, 4 * most) or 1
    out = []
    for k, step in enumerate(plan.steps):
        width = step.costs.peak_bytes / scale * (WIDTH - 2 * LEFT)
        label, held = escape(f"{k} {step_label(step)}"[:18]), size_text(step.costs.peak_bytes)
        out.append(f'<text x="0" y="{k * ROW + 13}" font-size="11">{label}</text>')
        out.append(
            f'<rect x="{LEFT}" y="{k * ROW + 2}" width="{width:.1f}" height="{ROW - 4}" fill="{COLOURS[k % 8]}"/>'
            f'<text x="{LEFT + width + 6:.1f}" y="{k * ROW + 13}" font-size="11">{held}</text>'
        )
    height = max(1, len(plan.steps)) * ROW
    return (
        f"<p>Budget per machine: {size_text(budget)}</p>"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">{"".join(out)}</svg>'
    )


def _considered(plan: Plan) -> str:
    rows = [
        [label, seconds_text(seconds), size_text(peak), size_text(moved)]
        for label, seconds, peak, moved in plan.alternatives
    ]
    return _table(["plan", "time", "peak", "moved"], rows, 3)
