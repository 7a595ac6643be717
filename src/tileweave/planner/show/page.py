"""A plan as one HTML page that needs nothing else: graph, cuts, timeline, memory, moves, what was considered."""

from __future__ import annotations

from html import escape
from itertools import pairwise

from tileweave.planner.movement import movements
from tileweave.planner.plan import Plan
from tileweave.planner.show.explain import cuts_text, frontier, step_label, taken_text
from tileweave.planner.show.picture import to_svg
from tileweave.planner.simulate import Simulation, simulate
from tileweave.words import seconds_text, size_text

WIDTH, ROW, LEFT = 960, 18, 110
MOST_ROWS = 32
"""Groups of like machines that the timeline shows."""
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em;color:#222;max-width:1100px}"
    "table{border-collapse:collapse}td,th{padding:2px 10px;border-bottom:1px solid #ddd;text-align:left}"
    "td.n,th.n{text-align:right;white-space:nowrap}svg{max-width:100%;height:auto}"
    ".wide{overflow-x:auto}.wide svg{max-width:none}h2{margin-top:1.6em;font-size:1.1em}"
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
            f'<h2>Graph</h2><div class="wide">{to_svg(plan, title=False)}</div>',
            f"<h2>Cuts and costs</h2>{_steps(plan)}",
            f"<h2>Timeline</h2>{_timeline(plan, result)}",
            f"<h2>Memory</h2>{_memory(plan, result)}",
            f"<h2>Moved</h2>{_moves(plan)}",
            f"<h2>Considered</h2>{_considered(plan)}",
            "</body></html>",
        ]
    )


def _table(head: list[str], rows: list[list[str]], numbers: int) -> str:
    """A table whose last columns are numbers."""
    first = len(head) - numbers

    def cells(row: list[str], tag: str) -> str:
        kinds = [tag if k < first else f'{tag} class="n"' for k in range(len(row))]
        return "".join(
            f"<{kind}>{text if isinstance(text, _Markup) else escape(text)}</{tag}>"
            for kind, text in zip(kinds, row, strict=True)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{cells(head, 'th')}</tr>{body}</table>"


class _Markup(str):
    """Text of a cell that is HTML already."""


def _key(number: int) -> str:
    """The number of a step beside its colour in the timeline."""
    colour = COLOURS[number % len(COLOURS)]
    return _Markup(f'<span style="color:{colour}" aria-hidden="true">&#9632;</span> {number}')


def _steps(plan: Plan) -> str:
    rows = [
        [
            _key(number),
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
    """A row per group of like machines: what is computed over time, and below it, thinner, what arrives."""
    total = result.seconds or 1.0
    machines = sorted({span.machine for span in result.spans})[:MOST_ROWS]
    at = {machine: k for k, machine in enumerate(machines)}
    alike = {span.machine: span.alike for span in result.spans}
    out = []
    for span in result.spans:
        if span.machine not in at:
            continue
        y, colour = at[span.machine] * ROW, COLOURS[span.step % len(COLOURS)]
        label = escape(
            f"{step_label(plan.steps[span.step])}: {seconds_text(span.end - span.arrive)}, x{span.alike} machines"
        )
        load = result.loads[span.step]
        first = span.arrive if load.moved.any() or load.read.any() else span.start  # waiting for others is not drawn
        for start, end, down, tall in ((first, span.start, ROW - 6, 4), (span.start, span.end, 2, ROW - 8)):
            x, width = LEFT + start / total * (WIDTH - LEFT), max(0.4, (end - start) / total * (WIDTH - LEFT))
            out.append(
                f'<rect x="{x:.1f}" y="{y + down}" width="{width:.1f}" height="{tall}" fill="{colour}">'
                f"<title>{label}</title></rect>"
            )
    for machine, k in at.items():
        name = escape(plan.machines.machines[machine].name) + (f" x{alike[machine]}" if alike[machine] > 1 else "")
        out.append(f'<text x="0" y="{k * ROW + 13}" font-size="11">{name}</text>')
    height = len(machines) * ROW + 18
    out.append(f'<text x="{LEFT}" y="{height - 4}" font-size="11">0</text>')
    out.append(f'<text x="{WIDTH}" y="{height - 4}" font-size="11" text-anchor="end">{seconds_text(total)}</text>')
    said = (
        "<p>Bars: a machine computes. Lines below them: its data arrive, from storage or from other machines. "
        "Colours are those of the steps above.</p>"
    )
    return said + _svg(height, "".join(out))


def _memory(plan: Plan, result: Simulation) -> str:
    """The most that one machine holds over time, below the budget."""
    budget = min(machine.memory_bytes for machine in plan.machines.machines)
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for span in result.spans:
        first[span.step] = min(span.arrive, first.get(span.step, span.arrive))
        last[span.step] = max(span.end, last.get(span.step, 0.0))
    times = sorted({*first.values(), *last.values(), 0.0})
    peaks = [step.costs.peak_bytes for step in plan.steps]
    total, most = result.seconds or 1.0, max([*peaks, 1])
    points, height = [], 8 * ROW
    for start, end in pairwise(times):
        held = max((peaks[k] for k in first if first[k] < end and last[k] > start), default=0)
        y = height - held / most * (height - ROW)
        points += [f"{LEFT + t / total * (WIDTH - LEFT):.1f},{y:.1f}" for t in (start, end)]
    line = f'<polyline fill="none" stroke="{COLOURS[0]}" stroke-width="2" points="{" ".join(points)}"/>'
    axis = (
        f'<text x="0" y="{ROW}" font-size="11">{size_text(most)}</text>'
        f'<text x="{LEFT}" y="{height + 14}" font-size="11">0</text>'
        f'<text x="{WIDTH}" y="{height + 14}" font-size="11" text-anchor="end">{seconds_text(total)}</text>'
    )
    return f"<p>Budget per machine: {size_text(budget)}</p>{_svg(height + ROW, _axes(height) + line + axis)}"


def _axes(height: int) -> str:
    """The two axes of a diagram."""
    return f'<path d="M{LEFT} {ROW}V{height}H{WIDTH}" fill="none" stroke="#bbb"/>'


def _svg(height: int, body: str) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">{body}</svg>'


def _moves(plan: Plan) -> str:
    found = [one for one in movements(plan) if one.bytes_moved] if len(plan.machines) > 1 else []
    if not found:
        return "<p>Nothing moves between machines.</p>"
    rows = [
        [step_label(plan.steps[m.step]), taken_text(plan, m), str(m.collective), m.line, size_text(m.bytes_moved)]
        for m in sorted(found, key=lambda one: -one.bytes_moved)[:MOST_ROWS]
    ]
    return _table(["operation", "takes", "as", "line", "moved"], rows, 1)


def _considered(plan: Plan) -> str:
    """The simulated plans over time and memory, those that none beats in both joined; and a table."""
    best = set(frontier(plan))
    rows = [
        [label + (" *" if k in best else ""), seconds_text(seconds), size_text(peak), size_text(moved)]
        for k, (label, seconds, peak, moved) in enumerate(plan.alternatives)
    ]
    table = _table(["plan (* on the frontier)", "time", "peak", "moved"], rows, 3)
    if len(rows) < 2:
        return table
    high, most = max(row[1] for row in plan.alternatives) or 1.0, max(row[2] for row in plan.alternatives) or 1
    height = 10 * ROW
    at = [
        (LEFT + seconds / high * (WIDTH - 2 * LEFT), height - peak / most * (height - ROW))
        for _, seconds, peak, _ in plan.alternatives
    ]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in sorted(at[k] for k in best))
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[0 if k in best else 7]}">'
        f"<title>{escape(' '.join(rows[k]))}</title></circle>"
        for k, (x, y) in enumerate(at)
    )
    text = f'<text x="{WIDTH}" y="{height + 14}" font-size="11" text-anchor="end">time to {seconds_text(high)}</text>'
    text += f'<text x="0" y="{ROW}" font-size="11">peak to {size_text(most)}</text>'
    line = f'<polyline fill="none" stroke="{COLOURS[0]}" points="{joined}"/>'
    return _svg(height + ROW, _axes(height) + line + dots + text) + table
