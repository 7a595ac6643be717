"""Plain data -> SVG text: a grid of coloured cells, boxes and arrows in layers, a free canvas.

Knows nothing of tileweave. Every picture is a self-contained, valid SVG document, the same text for the same data:
coordinates are rounded to a tenth of a pixel, and no font is measured (all text is monospaced).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import Any, Literal, TypeVar

FONT = 12
"""Font size in pixels."""
CHARACTER = 7.3
"""Width of a monospaced character at that size, in pixels."""
LINE = 16
"""Height of a line of text, in pixels."""
PIN = 14
"""Height between arrows that carry labels into one node, in pixels."""

PALETTE = (
    "#a6cee3", "#b2df8a", "#fdbf6f", "#cab2d6", "#fb9a99", "#ffff99", "#8dd3c7", "#bebada", "#fccde5", "#d9d9d9",
    "#ccebc5", "#ffed6f", "#80b1d3", "#b3de69", "#bc80bd", "#e5d8bd",
)  # fmt: skip
"""Light colours that black text stays readable on, apart from each other in order."""


_Class = TypeVar("_Class", bound="type[Any]")


def drawn_by(module: str) -> Callable[[_Class], _Class]:
    """A decorator of a class: notebooks draw its values by ``svg`` of a module, which the first picture loads."""

    def decorated(cls: _Class) -> _Class:
        def picture(value: object) -> str:
            text: str = import_module(module).svg(value)
            return text

        cls._repr_svg_ = picture
        return cls

    return decorated


def palette(k: int) -> str:
    """The k-th colour; after the last one they repeat."""
    return PALETTE[k % len(PALETTE)]


def _number(value: float) -> str:
    out = f"{value:.1f}"
    return out[:-2] if out.endswith(".0") else out


_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def _xml(content: str) -> str:
    """Text without the characters that no XML document may hold, not even escaped."""
    return _NOT_XML.sub("\ufffd", content)


def _escaped(text: str) -> str:
    """Text as content of an element; `xml.sax.saxutils`, which does the same, loads a client of HTTP first."""
    return text.replace("&", "&amp;").replace(">", "&gt;").replace("<", "&lt;")


def _quoted(text: str) -> str:
    """Text as the value of an attribute, with its quotes."""
    text = _escaped(text).replace("\n", "&#10;").replace("\r", "&#13;").replace("\t", "&#9;")
    if '"' not in text:
        return f'"{text}"'
    return f"'{text}'" if "'" not in text else f'"{text.replace(chr(34), "&quot;")}"'


def _attributes(values: Mapping[str, object]) -> str:
    shown = {k.rstrip("_").replace("_", "-"): _number(v) if isinstance(v, float) else v for k, v in values.items()}
    return "".join(f" {name}={_quoted(_xml(str(value)))}" for name, value in shown.items())


def _tag(name: str, content: str | None = None, /, **attributes: object) -> str:
    opened = f"<{name}{_attributes(attributes)}"
    return f"{opened}/>" if content is None else f"{opened}>{content}</{name}>"


def _text(x: float, y: float, content: str, *, anchor: str = "middle", **more: object) -> str:
    return _tag("text", _escaped(_xml(content)), x=float(x), y=float(y), text_anchor=anchor, **more)


def _polygon(points: Sequence[tuple[float, float]], **more: object) -> str:
    return _tag("polygon", points=" ".join(f"{_number(x)},{_number(y)}" for x, y in points), **more)


def _document(width: float, height: float, body: Sequence[str], defs: str = "") -> str:
    head = _tag("rect", width="100%", height="100%", fill="white")
    opened = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_number(width)}" height="{_number(height)}" '
        f'viewBox="0 0 {_number(width)} {_number(height)}" font-family="monospace" font-size="{FONT}">'
    )
    return "\n".join([opened, *([defs] if defs else []), head, *body, "</svg>"]) + "\n"


def _width(text: str, least: float = 0.0) -> float:
    return max(least, len(text) * CHARACTER)


# ---------------------------------------------------------------------------------------------------------------------
# grid


def grid(
    labels: Sequence[Sequence[str]],
    colours: Sequence[Sequence[str]] | None = None,
    *,
    title: str = "",
    row_names: Sequence[str] = (),
    column_names: Sequence[str] = (),
    borders: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
    limit: tuple[int, int] = (64, 64),
    total: tuple[int, int] | None = None,
) -> str:
    """A table of labelled, coloured cells; rows and columns beyond the limit are left out, and the picture says so.

    Args:
        labels: rows of cell labels, all of equal length; a label may have several lines.
        colours: fills of the cells, of the same shape; white when left out.
        title: a line above.
        row_names: a name per row, at the left.
        column_names: a name per column, above.
        borders: heavy lines: number of a row (then: of a column) -> how heavy the line before it is, from 1.
        limit: most rows and most columns that are drawn.
        total: rows and columns of the whole table, where the labels are only its first ones.

    Raises:
        ValueError: rows differ in length, or the colours in shape.

    Example:
        >>> grid([["0", "1"]], [["#a6cee3", "#b2df8a"]]).count("<rect")
        3
    """
    count = (len(labels), len(labels[0]) if labels else 0)
    if any(len(row) != count[1] for row in labels):
        raise ValueError("grid(labels, colours): rows differ in length")
    if colours is not None and [len(row) for row in colours] != [len(row) for row in labels]:
        raise ValueError("grid(labels, colours): the colours have another shape than the labels")
    rows, columns = min(count[0], limit[0]), min(count[1], limit[1])
    shown = [[str(cell).split("\n") for cell in row[:columns]] for row in labels[:rows]]
    names = [str(n) for n in row_names[:rows]]
    heads = [str(n) for n in column_names[:columns]]
    lines = [line for row in shown for label in row for line in label]
    cell = max([28.0, *(_width(line) + 10 for line in lines), *(_width(n) + 10 for n in heads)])
    tall = 8 + LINE * max((len(label) for row in shown for label in row), default=1)
    left = 8 + (max(map(_width, names)) + 8 if names else 0)
    top = 8 + LINE * (bool(title) + bool(heads)) + (4 if title else 0)
    body = [_text(8, 8 + FONT, title, anchor="start", font_weight="bold")] if title else []
    body += [_text(left + (k + 0.5) * cell, top - 5, n, fill="#555") for k, n in enumerate(heads)]
    body += [_text(left - 8, top + r * tall + tall / 2 + 4, n, anchor="end", fill="#555") for r, n in enumerate(names)]
    for r, row in enumerate(shown):
        for c, label in enumerate(row):
            x, y = left + c * cell, float(top + r * tall)
            fill = colours[r][c] if colours is not None else "white"
            body.append(_tag("rect", x=x, y=y, width=cell, height=tall, fill=fill, stroke="#333"))
            first = y + 4 + (tall - LINE * (len(label) - 1)) / 2
            body += [_text(x + cell / 2, first + k * LINE, line) for k, line in enumerate(label) if line]
    body += _borders(borders, (left, float(top)), (cell, float(tall)), (rows, columns))
    bottom = float(top + rows * tall + 8)
    width = left + columns * cell + 8
    count = total or count
    if (rows, columns) != count:
        note = f"showing {rows} of {count[0]} rows, {columns} of {count[1]} columns"
        body.append(_text(8, bottom + FONT, note, anchor="start", fill="#a00"))
        bottom, width = bottom + LINE + 4, max(width, 16 + _width(note))
    return _document(max(width, 16 + _width(title)), bottom, body)


def _borders(
    borders: tuple[Mapping[int, int], Mapping[int, int]],
    corner: tuple[float, float],
    step: tuple[float, float],
    count: tuple[int, int],
) -> list[str]:
    """Lines before rows and columns, the heavier ones later."""
    (left, top), (wide, tall), (rows, columns) = corner, step, count
    lines = []
    for k, weight in borders[0].items():
        if 0 < k < rows:
            ends = {"x1": left, "y1": top + k * tall, "x2": left + columns * wide, "y2": top + k * tall}
            lines.append((weight, k, ends))
    for k, weight in borders[1].items():
        if 0 < k < columns:
            ends = {"x1": left + k * wide, "y1": top, "x2": left + k * wide, "y2": top + rows * tall}
            lines.append((weight, k, ends))
    lines.sort(key=lambda line: line[:2])
    return [_tag("line", **ends, stroke="#111", stroke_width=min(1.0 + weight, 4.0)) for weight, _, ends in lines]


# ---------------------------------------------------------------------------------------------------------------------
# boxes and arrows in layers

Shape = Literal["box", "box3d", "arrow", "parallelogram", "component", "octagon", "cds", "note"]
"""Outlines, after Graphviz: ``arrow`` is rarrow, ``cds`` a box with a point at the right."""


@dataclass(frozen=True, slots=True)
class BoxNode:
    """A node of a layered drawing.

    Args:
        key: how edges refer to it; unique.
        lines: its text.
        shape: its outline.
        fill: its colour.
        beside: the key of a node in whose layer, and next to which, it stands; "" for a layer of its own.
        pins: labels inside its left side, from above: where the edges that carry them arrive. `layers` fills them in.
    """

    key: str
    lines: tuple[str, ...]
    shape: Shape = "box"
    fill: str = "white"
    beside: str = ""
    pins: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in pixels, with the margins that the outline needs."""
        width = max([_width(line) for line in self.lines], default=0.0)
        extra = {"arrow": 46, "parallelogram": 36, "octagon": 24, "cds": 36, "component": 34}.get(self.shape, 22)
        tall = {"arrow": 26, "box3d": 16, "octagon": 16}.get(self.shape, 12)
        high = max(max(len(self.lines), 1) * LINE, len(self.pins) * PIN)
        return max(width + extra + self.margin, 40.0), float(high + tall)

    @property
    def margin(self) -> float:
        """Room for the pins, at the left of the text."""
        return 6.0 * max(map(len, self.pins)) + 4 if self.pins else 0.0

    def pin(self, label: str) -> float:
        """How far below its middle an edge with a label arrives."""
        return (self.pins.index(label) - (len(self.pins) - 1) / 2) * PIN if label in self.pins else 0.0


@dataclass(frozen=True, slots=True)
class Edge:
    """An arrow between two nodes; a label stands inside the second, where it arrives."""

    start: str
    end: str
    label: str = ""
    dashed: bool = False


_Point = tuple[float, float]
WIDEST = 3000.0
"""Width in pixels from which layers go on in a further rank: about three screens at full size."""


def layers(nodes: Sequence[BoxNode], edges: Sequence[Edge], *, title: str = "", limit: int = 400) -> str:
    """Nodes in layers from left to right, every edge pointing to a later layer; a long edge passes between nodes.

    Layers that would make the picture wider than `WIDEST` go on below, like lines of text.

    Args:
        nodes: at most `limit` of them are drawn, the first ones; the picture says so.
        edges: an edge to a node that is not there is left out.
        title: a line above.

    Raises:
        ValueError: two nodes have one key, or the edges have a cycle.

    Example:
        >>> svg = layers([BoxNode("a", ("a",)), BoxNode("b", ("b",), "box3d")], [Edge("a", "b")])
        >>> svg.startswith("<svg") and "marker-end" in svg
        True
    """
    pins: dict[str, list[str]] = {node.key: [] for node in nodes[:limit]}
    kept = [e for e in edges if e.start in pins and e.end in pins]
    for e in kept:
        pins[e.end] += [e.label] if e.label else []
    shown = [replace(node, pins=tuple(pins[node.key])) for node in nodes[:limit]]
    table = {node.key: node for node in shown}
    if len(table) != len(shown):
        raise ValueError("layers(nodes, edges): two nodes have one key")
    depth = _depths(shown, kept)
    columns, chains = _columns(shown, kept, depth)
    _untangle(columns, chains)
    at, wide, ranks = _places(columns, table)
    body = []
    for edge, chain in zip(kept, chains, strict=True):
        body.append(_edge(edge, chain, at, wide, table, ranks))
    body += [_outline(node, *at[node.key]) for node in shown]
    width = max([at[n.key][0] + n.size[0] / 2 for n in shown], default=0.0) + 16
    height = max([at[n.key][1] + n.size[1] / 2 for n in shown] + [y + 6 for _, y in at.values()], default=0.0) + 16
    width = max(width, ranks.right + 8) if len(ranks.track) > 1 else width
    notes = [title] if title else []
    if len(shown) != len(nodes):
        notes.append(f"showing {len(shown)} of {len(nodes)} nodes")
    if notes:
        lift = float(len(notes) * LINE + 4)
        heads = [_text(12, 8 + FONT + k * LINE, n, anchor="start", font_weight="bold") for k, n in enumerate(notes)]
        body = [*heads, _tag("g", "\n".join(body), transform=f"translate(0 {_number(lift)})")]
        width, height = max(width, *(24 + _width(n) for n in notes)), height + lift
    return _document(width, height, body, _ARROW)


_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L10 5L0 10z" fill="#444"/></marker></defs>'
)


def _depths(nodes: Sequence[BoxNode], edges: Sequence[Edge]) -> dict[str, int]:
    """The longest path to each node; a node beside another shares its layer."""
    home = {node.key: node.beside or node.key for node in nodes}
    keys = {node.key for node in nodes}
    home = {key: other if other in keys else key for key, other in home.items()}
    before: dict[str, list[str]] = {key: [] for key in home.values()}
    for e in edges:
        if home[e.start] != home[e.end]:
            before[home[e.end]].append(home[e.start])
    depth: dict[str, int] = {}
    for root in before:
        stack, open_keys = [root], {root}
        while stack:
            key = stack[-1]
            waiting = [k for k in before[key] if k not in depth]
            if not waiting:
                depth[key] = max((depth[k] + 1 for k in before[key]), default=0)
                stack.pop()
                continue
            if waiting[0] in open_keys:
                raise ValueError(f"layers(nodes, edges): a cycle goes through {waiting[0]!r}")
            stack.append(waiting[0])
            open_keys.add(waiting[0])
    return _late({node.key: depth[home[node.key]] for node in nodes}, edges, home)


def _late(depth: dict[str, int], edges: Sequence[Edge], home: Mapping[str, str]) -> dict[str, int]:
    """Nodes without a predecessor moved right, to just before the first node that they feed."""
    fed = {home[e.end] for e in edges if home[e.start] != home[e.end]}
    later: dict[str, list[int]] = {}
    for e in edges:
        if home[e.start] != home[e.end]:
            later.setdefault(home[e.start], []).append(depth[e.end])
    moved = {key: min(ds) - 1 for key, ds in later.items() if key not in fed}
    return {key: moved.get(home[key], d) for key, d in depth.items()}


def _columns(
    nodes: Sequence[BoxNode], edges: Sequence[Edge], depth: Mapping[str, int]
) -> tuple[list[list[str]], list[list[str]]]:
    """Keys per layer, and per edge the keys that it passes: a long edge has a point in every layer between."""
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        columns[depth[node.key]].append(node.key)
    chains = []
    for number, e in enumerate(edges):
        chain = [e.start]
        for layer in range(depth[e.start] + 1, depth[e.end]):
            chain.append(f"\0{number}.{layer}")
            columns[layer].append(chain[-1])
        chains.append([*chain, e.end])
    return columns, chains


def _untangle(columns: list[list[str]], chains: Sequence[Sequence[str]]) -> None:
    """Orders each layer by the mean place of its neighbours, forth and back, a fixed number of times."""
    near: dict[str, list[str]] = {}
    for chain in chains:
        for a, b in pairwise(chain):
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    for sweep in range(8):
        layers_in_order = range(1, len(columns)) if sweep % 2 == 0 else range(len(columns) - 2, -1, -1)
        for layer in layers_in_order:
            other = columns[layer - 1] if sweep % 2 == 0 else columns[layer + 1]
            place = {key: k / max(len(other) - 1, 1) for k, key in enumerate(other)}
            old = {key: k / max(len(columns[layer]) - 1, 1) for k, key in enumerate(columns[layer])}

            def mean(key: str, place: dict[str, float] = place, old: dict[str, float] = old) -> float:
                found = [place[k] for k in near.get(key, ()) if k in place]
                return sum(found) / len(found) if found else old[key]

            columns[layer].sort(key=mean)


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Where the lines of layers lie: the rank of each layer's x, and the free track above each rank."""

    of: dict[str, int]
    track: list[float]
    right: float


def _places(
    columns: Sequence[Sequence[str]], table: Mapping[str, BoxNode]
) -> tuple[dict[str, _Point], dict[str, float], _Ranks]:
    """The centre of every node and passing point, the width of its layer, and the ranks."""
    sizes = {key: table[key].size if key in table else (0.0, 12.0) for column in columns for key in column}
    heights = [sum(sizes[key][1] + 14 for key in column) for column in columns]
    wides = [max((sizes[key][0] for key in column), default=0.0) for column in columns]
    rows: list[list[int]] = [[]]
    used = 16.0
    for number, wide in enumerate(wides):
        if used + wide > WIDEST and rows[-1]:
            rows.append([])
            used = 16.0
        rows[-1].append(number)
        used += wide + 48
    at: dict[str, _Point] = {}
    widths: dict[str, float] = {}
    ranks = _Ranks({}, [], max(sum(wides[n] + 48 for n in row) for row in rows) if columns else 0.0)
    top = 16.0
    for rank, row in enumerate(rows):
        tallest, x = max((heights[n] for n in row), default=0.0), 16.0
        ranks.track.append(top - 20)
        for number in row:
            y = top + (tallest - heights[number]) / 2
            for key in columns[number]:
                at[key] = (x + wides[number] / 2, y + sizes[key][1] / 2)
                widths[key], ranks.of[key] = wides[number], rank
                y += sizes[key][1] + 14
            x += wides[number] + 48
        top += tallest + 40
    return at, widths, ranks


def _edge(
    edge: Edge,
    chain: Sequence[str],
    at: Mapping[str, _Point],
    wide: Mapping[str, float],
    table: Mapping[str, BoxNode],
    ranks: _Ranks,
) -> str:
    """An arrow from side to side; it crosses the layers that it passes in straight lines between their nodes."""
    style: dict[str, object] = {"fill": "none", "stroke": "#444", "marker_end": "url(#arrow)"}
    if edge.dashed:
        style["stroke_dasharray"] = "5 3"
    (x, y), (u, v) = at[chain[0]], at[chain[-1]]
    half, other = table[edge.start].size, table[edge.end].size
    if x == u and ranks.of[chain[0]] == ranks.of[chain[-1]]:  # beside each other in one layer
        down = 1 if v > y else -1
        y, v = y + down * half[1] / 2, v - down * other[1] / 2
        path = f"M{_number(x)} {_number(y)}L{_number(u)} {_number(v)}"
    else:
        start = (x + half[0] / 2, y)
        path = f"M{_number(start[0])} {_number(y)}"
        before = chain[0]
        for key in chain[1:]:
            last = key == chain[-1]
            left = u - other[0] / 2 - 1 if last else at[key][0] - wide[key] / 2
            end = (left, at[key][1] + (table[edge.end].pin(edge.label) if last else 0.0))
            if ranks.of[key] != ranks.of[before]:  # on to the next rank: along the track above it
                track = _number(ranks.track[ranks.of[key]])
                path += f"H{_number(ranks.right)}V{track}H6"
                start = (6.0, ranks.track[ranks.of[key]])
            before = key
            middle = _number((start[0] + end[0]) / 2)
            path += f"C{middle} {_number(start[1])} {middle} {_number(end[1])} {_number(end[0])} {_number(end[1])}"
            if not last:
                start = (left + wide[key], at[key][1])
                path += f"H{_number(start[0])}"
    return _tag("path", d=path, **style)


def _corners(shape: Shape, left: float, top: float, right: float, bottom: float) -> list[_Point]:
    """The polygon of an outline that fills a rectangle."""
    y = (top + bottom) / 2
    match shape:
        case "box3d":
            d = 5
            slanted = [(right, top), (right, bottom - d), (right - d, bottom)]
            return [(left, top + d), (left + d, top), *slanted, (left, bottom)]
        case "arrow":
            neck, inset = right - 22, 7
            head = [(neck, top), (right, y), (neck, bottom)]
            return [(left, top + inset), (neck, top + inset), *head, (neck, bottom - inset), (left, bottom - inset)]
        case "parallelogram":
            return [(left + 12, top), (right, top), (right - 12, bottom), (left, bottom)]
        case "octagon":
            cut = min(12.0, (bottom - top) / 3)
            upper = [(left, top + cut), (left + cut, top), (right - cut, top), (right, top + cut)]
            return [*upper, (right, bottom - cut), (right - cut, bottom), (left + cut, bottom), (left, bottom - cut)]
        case "cds":
            return [(left, top), (right - 14, top), (right, y), (right - 14, bottom), (left, bottom)]
        case "note":
            return [(left, top), (right - 8, top), (right, top + 8), (right, bottom), (left, bottom)]
        case "component":
            return [(left + 6, top), (right, top), (right, bottom), (left + 6, bottom)]
        case "box":
            return [(left, top), (right, top), (right, bottom), (left, bottom)]


_SHIFT = {"box3d": (-2.5, 2.5), "arrow": (-7.0, 0.0), "cds": (-7.0, 0.0), "component": (6.0, 0.0)}
"""How far the text of an outline stands from its centre."""


def _outline(node: BoxNode, x: float, y: float) -> str:
    """The outline of a node and its text."""
    w, h = node.size
    left, top, right, bottom = x - w / 2, y - h / 2, x + w / 2, y + h / 2
    out = [_polygon(_corners(node.shape, left, top, right, bottom), fill=node.fill, stroke="black")]
    if node.shape == "box3d":
        d = 5
        front = f"M{_number(left)} {_number(top + d)}H{_number(right - d)}V{_number(bottom)}"
        edge = f"M{_number(right - d)} {_number(top + d)}L{_number(right)} {_number(top)}"
        out.append(_tag("path", d=front + edge, fill="none", stroke="black"))
    if node.shape == "component":
        for k in (0.25, 0.6):
            tab = {"x": left, "y": top + k * h, "width": 12, "height": 5}
            out += [_tag("rect", **tab, fill=node.fill, stroke="black")]
    dx, dy = _SHIFT.get(node.shape, (0.0, 0.0))
    first = y + dy - (len(node.lines) - 1) * LINE / 2 + 4
    out += [_text(x + dx + node.margin / 2, first + k * LINE, line) for k, line in enumerate(node.lines)]
    for label in node.pins:
        out.append(_text(left + 5, y + node.pin(label) + 3.5, label, anchor="start", fill="#555", font_size=10))
    return "".join(out)


# ---------------------------------------------------------------------------------------------------------------------
# a free canvas


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle with its top left corner at (x, y), a text at its middle, and corners rounded by a radius."""

    x: float
    y: float
    width: float
    height: float
    text: str = ""
    fill: str = "white"
    radius: float = 0.0
    size: int = FONT


@dataclass(frozen=True, slots=True)
class Label:
    """A text whose baseline starts, ends or has its middle at (x, y)."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    bold: bool = False
    fill: str = "black"
    size: int = FONT


@dataclass(frozen=True, slots=True)
class Stroke:
    """Straight lines through points, with an arrow at the end if asked."""

    points: tuple[_Point, ...]
    arrow: bool = False
    colour: str = "#444"


def canvas(items: Sequence[Rect | Label | Stroke], *, title: str = "") -> str:
    """Items where they say, later ones above earlier ones; the picture is as large as they are.

    Example:
        >>> canvas([Rect(-5, 0, 40, 20, "a"), Stroke(((35, 10), (60, 10)), arrow=True)]).count("<rect")
        2
    """
    heads = [Label(0.0, 0.0, title, bold=True)] if title else []
    boxes = [_extent(item) for item in items]
    left = min((box[0] for box in boxes), default=0.0)
    top = min((box[1] for box in boxes), default=0.0)
    lift = float(LINE + 8) if title else 0.0
    width = max([box[2] - left for box in boxes] + [_width(title)], default=0.0) + 24
    height = max((box[3] - top for box in boxes), default=0.0) + lift + 24
    body = [_item(head, 12.0, 12.0 + FONT) for head in heads]
    body += [_item(item, 12.0 - left, 12.0 + lift - top) for item in items]
    return _document(width, height, body, _ARROW)


def _extent(item: Rect | Label | Stroke) -> tuple[float, float, float, float]:
    """Left, top, right and bottom."""
    match item:
        case Rect():
            return item.x, item.y, item.x + item.width, item.y + item.height
        case Label():
            wide = _width(item.text) * item.size / FONT
            start = item.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[item.anchor] * wide
            return start, item.y - item.size, start + wide, item.y + 3
        case Stroke():
            xs, ys = [x for x, _ in item.points], [y for _, y in item.points]
            return min(xs), min(ys), max(xs), max(ys)


def _item(item: Rect | Label | Stroke, dx: float, dy: float) -> str:
    match item:
        case Rect():
            x, y = item.x + dx, item.y + dy
            rounded: dict[str, object] = {"rx": item.radius} if item.radius else {}
            paint = {"width": float(item.width), "height": float(item.height), "fill": item.fill, "stroke": "#333"}
            out = _tag("rect", x=x, y=y, **paint, **rounded)
            middle = (x + item.width / 2, y + item.height / 2 + item.size / 3)
            return out + (_text(*middle, item.text, font_size=item.size) if item.text else "")
        case Label():
            more: dict[str, object] = {"font_weight": "bold"} if item.bold else {}
            size = {"font_size": item.size} if item.size != FONT else {}
            return _text(item.x + dx, item.y + dy, item.text, anchor=item.anchor, fill=item.fill, **more, **size)
        case Stroke():
            points = [f"{_number(x + dx)} {_number(y + dy)}" for x, y in item.points]
            style: dict[str, object] = {"fill": "none", "stroke": item.colour}
            if item.arrow:
                style["marker_end"] = "url(#arrow)"
            return _tag("path", d="M" + "L".join(points), **style)
