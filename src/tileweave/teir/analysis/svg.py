"""A program as a picture: its schedule tree, and every tensor as a grid of tiles that the schedule's axes index.

A contraction is drawn as a matrix product: in0 at the left, in1 above, out where their rows and columns meet, so that
an axis aligns the tiles that it moves. A tile carries the byte of its first element; the line inside follows memory
order, along the fastest axis first. The tiles that make the first tile of the output are dark.

Source: TEIR, figures 10.7.1 and 10.7.2; the schedule tree is drawn as in listing 10.2.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tileweave.draw import CHARACTER, LINE, Label, Rect, Stroke, canvas
from tileweave.teir.analysis.analyse import Access, accesses
from tileweave.teir.ir.policies import any_order
from tileweave.teir.ir.primitives import operands_of, operation
from tileweave.teir.ir.program import Axis, Id, Invocation, Iteration, Node, Primitive, Program
from tileweave.teir.ir.verify import problems
from tileweave.teir.ir.walk import axes_by_id, nodes_by_id, show_guard

Item = Rect | Label | Stroke

SIDE, THIN = 72.0, 44.0
"""Pixels of a tile along axes that it spans, and along none."""
ROW, INDENT, GAP = 30.0, 26.0, 48.0
PALE = {"in0": "#dbe9f6", "in1": "#fdecd2", "out": "#e2f2d8"}
DARK = {"in0": "#8fbbe0", "in1": "#f9c27a", "out": "#a4d584"}
ITERATION, PARALLEL, INVOCATION = "#ffffff", "#fff6bf", "#e9e2f3"


def to_svg(program: Program, *, limit: int = 6) -> str:
    """The schedule tree and the tiles of each tensor; the same program gives the same text.

    Args:
        program: drawn as a tree alone where it is not well formed.
        limit: most rows and most columns of tiles that are drawn; the picture says what it leaves out.

    Example:
        >>> from tileweave.teir import examples
        >>> to_svg(examples.contraction_gemm(dict.fromkeys("pqrstu", 2))).startswith("<svg")
        True
    """
    items, width, _ = _tree(program)
    found = problems(program)
    title = f"{program.name} ({program.profile} profile)"
    if found:
        return canvas(items, title=f"{title}, not well formed: {found[0]}")
    top = 0.0
    for group in _groups(program):
        drawn, height = group.draw(width + GAP, top, limit)
        items += drawn
        top += height + GAP
    return canvas(items, title=title)


# ── the schedule ──


def _tree(program: Program) -> tuple[list[Item], float, float]:
    """The schedule as nested boxes, and the width and height that they take."""
    nodes, axes = nodes_by_id(program), axes_by_id(program)
    items: list[Item] = []
    width, y = 0.0, 0.0
    met: set[Id] = set()
    stack: list[tuple[Id, int, float]] = [(root, 0, -1.0) for root in reversed(program.roots)]
    while stack:
        id, depth, above = stack.pop()
        if id in met or id not in nodes:
            continue
        met.add(id)
        x, node = depth * INDENT, nodes[id]
        text = _words(node, axes)
        wide = len(text) * CHARACTER + 20
        if depth:
            items.append(Stroke(((x - INDENT / 2, above), (x - INDENT / 2, y + 11), (x, y + 11))))
        invoked = isinstance(node, Invocation)
        fill = INVOCATION if invoked else PARALLEL if _is_parallel(node) else ITERATION
        items.append(Rect(x, y, wide, 22.0, text, fill, 0.0 if invoked else 10.0))
        width = max(width, x + wide)
        if isinstance(node, Iteration):
            stack += [(child, depth + 1, y + 22) for child in reversed(node.children)]
        y += ROW
    return items, width, y


def _is_parallel(node: Node) -> bool:
    return isinstance(node, Iteration) and any_order(node.policy)


def _words(node: Node, axes: dict[Id, Axis]) -> str:
    if isinstance(node, Iteration):
        axis = axes.get(node.axis)
        text = "" if node.id == node.axis else f"{node.id}: "
        text += f"{node.axis} < {axis.extent if axis else '?'}" + ("  parallel" if _is_parallel(node) else "")
    else:
        text = f"{node.id}: {node.primitive}"
    return text + (f"  if {show_guard(node.guard)}" if node.guard else "")


# ── tensors ──


@dataclass(frozen=True, slots=True)
class _Grid:
    """One tensor as tiles: the axes that index rows and columns, and those that a tile spans down and across."""

    name: str
    shade: str
    access: Access
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    down: tuple[Axis, ...]
    across: tuple[Axis, ...]
    first_row: bool
    first_column: bool

    def address(self, row: Sequence[int], column: Sequence[int]) -> int:
        """The byte of a tile's first element."""
        stride = {id: s for id, (s, _, _) in self.access.terms}
        indices = [*zip(self.rows, row, strict=True), *zip(self.columns, column, strict=True)]
        return self.access.offset + sum(stride[axis.id] * index for axis, index in indices)

    def caption(self, dtype: str) -> list[str]:
        """The tensor, its tiles, and the order of its axes in memory, slowest first."""
        stride = {id: s for id, (s, _, _) in self.access.terms}
        order = sorted((*self.rows, *self.columns, *self.down, *self.across), key=lambda a: -abs(stride[a.id]))
        lines = [f"{self.name}  {dtype}"]
        tiles, tile = (*self.rows, *self.columns), _product((*self.down, *self.across))
        lines.append(f"tiles {_product(tiles)}, each {tile}" if tiles else f"one tile: {tile}")
        lines.append("memory " + (" > ".join(str(axis.id) for axis in order) or "one element"))
        return lines


def _product(axes: Sequence[Axis]) -> str:
    if not axes:
        return "1"
    return " x ".join(str(axis.id) for axis in axes) + " = " + " x ".join(str(axis.extent) for axis in axes)


@dataclass(frozen=True, slots=True)
class _Group:
    """The grids of one invocation, side by side or as a matrix product."""

    program: Program
    heading: str
    grids: tuple[_Grid, ...]
    is_product: bool

    def draw(self, x: float, y: float, limit: int) -> tuple[list[Item], float]:
        """The items of a group whose corner is at (x, y), and its height."""
        items: list[Item] = [Label(x, y + 14, self.heading, bold=True)]
        y += 30
        sizes = [self.size(grid, limit) for grid in self.grids]
        if self.is_product:
            (wide_a, high_a), (_, high_b), (_, high_c) = sizes
            across, below = x + wide_a + GAP, y + high_b + GAP / 2
            corners = [(x, below), (across, y), (across, below)]
            bottom = below + max(high_a, high_c)
        else:
            corners, at = [], x
            for wide, _ in sizes:
                corners.append((at, y))
                at += wide + GAP
            bottom = y + max(high for _, high in sizes)
        for grid, corner in zip(self.grids, corners, strict=True):
            items += self.grid(grid, corner, limit)
        return items, bottom - y + 30

    def margin(self) -> float:
        """Room for the names of rows, the same for all grids, so that columns align."""
        longest = [",".join(f"{axis.id}={axis.extent - 1}" for axis in grid.rows) for grid in self.grids]
        return max(len(names) * CHARACTER + 10 if names else 4.0 for names in longest)

    def captions(self, grid: _Grid, limit: int) -> list[str]:
        """The lines above a grid, as many for all grids, so that rows align."""
        most = max(len(_left_out(other, limit)) for other in self.grids)
        left_out = _left_out(grid, limit)
        return grid.caption(self.dtype(grid)) + left_out + [""] * (most - len(left_out))

    def size(self, grid: _Grid, limit: int) -> tuple[float, float]:
        """Width and height of a grid with its captions."""
        rows, columns = min(_count(grid.rows), limit), min(_count(grid.columns), limit)
        captions = self.captions(grid, limit)
        wide = self.margin() + columns * _side(grid.across)
        wide = max(wide, *(len(line) * CHARACTER for line in captions))
        return wide, LINE * (len(captions) + 1) + 8 + rows * _side(grid.down)

    def dtype(self, grid: _Grid) -> str:
        return self.program.tensors[self.program.position(grid.name)].dtype

    def grid(self, grid: _Grid, corner: tuple[float, float], limit: int) -> list[Item]:
        """One tensor: captions, names of rows and columns, tiles."""
        x, y = corner
        captions = self.captions(grid, limit)
        items: list[Item] = [
            Label(x, y + (k + 1) * LINE, line, bold=k == 0, fill="black" if k == 0 else "#555")
            for k, line in enumerate(captions)
            if line
        ]
        left, top = x + self.margin(), y + LINE * (len(captions) + 1) + 6
        high, wide = _side(grid.down), _side(grid.across)
        for c, column in enumerate(_indices(grid.columns, limit)):
            name = _names(grid.columns, column)
            if len(name) * CHARACTER > wide:
                name = ",".join(map(str, column))
            items.append(Label(left + (c + 0.5) * wide, top - 4, name, "middle", fill="#555"))
        for r, row in enumerate(_indices(grid.rows, limit)):
            items.append(Label(left - 6, top + (r + 0.5) * high + 4, _names(grid.rows, row), "end", fill="#555"))
            for c, column in enumerate(_indices(grid.columns, limit)):
                dark = (r == 0 or not grid.first_row) and (c == 0 or not grid.first_column)
                place = (left + c * wide, top + r * high)
                items += _tile(grid, place, grid.address(row, column), dark)
        return items


def _tile(grid: _Grid, place: tuple[float, float], address: int, dark: bool) -> list[Item]:
    (x, y), wide, high = place, _side(grid.across), _side(grid.down)
    fill = (DARK if dark else PALE)[grid.shade]
    items: list[Item] = [Rect(x, y, wide, high, fill=fill)]
    order = _order(grid, x + 8, y + 18, x + wide - 8, y + high - 8)
    if order:
        items.append(Stroke(order, arrow=True, colour="#666"))
    items.append(Label(x + 4, y + 12, str(address), size=10))
    return items


def _order(grid: _Grid, left: float, top: float, right: float, bottom: float) -> tuple[tuple[float, float], ...]:
    """A line through a tile in the order of memory: along its fastest direction, advancing along the other."""
    stride = {id: s for id, (s, _, _) in grid.access.terms}
    x, y = (left + right) / 2, (top + bottom) / 2
    down = min(grid.down, key=lambda a: abs(stride[a.id]), default=None)
    across = min(grid.across, key=lambda a: abs(stride[a.id]), default=None)
    if down is not None and stride[down.id] < 0:
        top, bottom = bottom, top
    if across is not None and stride[across.id] < 0:
        left, right = right, left
    if down is None and across is None:
        return ()
    if across is None:
        return ((x, top), (x, bottom))
    if down is None:
        return ((left, y), (right, y))
    parts = [0.0, 1 / 3, 2 / 3, 1.0]
    if abs(stride[across.id]) <= abs(stride[down.id]):
        lines = [top + (bottom - top) * part for part in parts]
        return tuple(point for line in lines for point in ((left, line), (right, line)))
    lines = [left + (right - left) * part for part in parts]
    return tuple(point for line in lines for point in ((line, top), (line, bottom)))


def _side(axes: Sequence[Axis]) -> float:
    return SIDE if axes else THIN


def _count(axes: Sequence[Axis]) -> int:
    return prod(axis.extent for axis in axes)


def _indices(axes: Sequence[Axis], limit: int) -> list[tuple[int, ...]]:
    """The first indices in row-major order; `itertools.product` would list every extent first."""
    extents = [axis.extent for axis in axes]
    found = []
    for number in range(min(limit, prod(extents))):
        digits = []
        for extent in reversed(extents):
            number, digit = divmod(number, extent)
            digits.append(digit)
        found.append(tuple(reversed(digits)))
    return found


def _names(axes: Sequence[Axis], index: Sequence[int]) -> str:
    return ",".join(f"{axis.id}={value}" for axis, value in zip(axes, index, strict=True))


def _left_out(grid: _Grid, limit: int) -> list[str]:
    rows, columns = _count(grid.rows), _count(grid.columns)
    if max(rows, columns) <= limit:
        return []
    return [f"showing {min(rows, limit)} of {rows} rows, {min(columns, limit)} of {columns} columns"]


# ── which invocation shows a tensor ──


def _groups(program: Program) -> list[_Group]:
    """The invocation with the most steps, contractions first; then others for tensors that it does not touch."""
    by_node: dict[Id, list[Access]] = {}
    for access in accesses(program):
        by_node.setdefault(access.visit.node.id, []).append(access)

    def weight(found: list[Access]) -> tuple[bool, int]:
        steps = max(prod(high - low + 1 for _, (_, low, high) in access.terms) for access in found)
        return bool(operation(_primitive(program, found[0]).operation).contracted), steps

    alike = Counter(_what(program, found) for found in by_node.values())
    groups = []
    left = {spec.name for spec in program.tensors}
    for found in sorted(by_node.values(), key=weight, reverse=True):
        if left & {access.tensor for access in found}:
            left -= {access.tensor for access in found}
            groups.append(_group(program, found, alike[_what(program, found)]))
    return groups


def _what(program: Program, found: list[Access]) -> str:
    """An operation and its operands."""
    primitive = _primitive(program, found[0])
    return f"{primitive.operation}({', '.join(operands_of(primitive, program))})"


def _primitive(program: Program, access: Access) -> Primitive:
    node = access.visit.node
    if not isinstance(node, Invocation):  # accesses are invocations'
        raise TypeError(f"node {node.id!r} is no invocation")
    return program.primitive(node.primitive)


def _group(program: Program, found: list[Access], alike: int) -> _Group:
    """The grids of one invocation; of those that compute the same on other parts, as branches do, it stands for all."""
    primitive = _primitive(program, found[0])
    names = operands_of(primitive, program)
    by_name = {access.tensor: access for access in found}
    axes = axes_by_id(program)
    path = [axes[node.axis] for node in found[0].visit.path]
    is_product = bool(operation(primitive.operation).contracted) and len(set(names)) == 3
    heading = f"{found[0].path}: {_what(program, found)}" + (f", one of {alike} invocations" if alike > 1 else "")
    still = [axis for axis in path if is_product and _role(program, axis, names) == "batch"]
    if still:
        heading += ", at " + ", ".join(f"{axis.id}=0" for axis in still)
    grids = []
    for k, name in enumerate(dict.fromkeys(names)):
        shade = "out" if name == names[-1] else "in0" if k == 0 else "in1"
        if is_product:
            vertical, horizontal = (("r", "t"), ("t", "p"), ("r", "p"))[k]
            down, across = (("M", "NK"), ("KM", "N"), ("M", "N"))[k]
            rows = [axis for axis in path if _role(program, axis, names) == vertical]
            columns = [axis for axis in path if _role(program, axis, names) == horizontal]
            firsts = (vertical != "t", horizontal != "t")
        else:
            down, across = "M", "".join(role for role, _ in primitive.axes if role != "M")
            moving = [axis for axis in path if any(_moves(program, axis, other) for other in names)]
            rows, columns, firsts = moving[:1], moving[1:], (True, True)

        def of(roles: str, name: str = name) -> tuple[Axis, ...]:
            ids = [id for role in roles for id in primitive.role(role)]
            return tuple(axes[id] for id in ids if _moves(program, axes[id], name))

        rows, columns = ([axis for axis in part if _moves(program, axis, name)] for part in (rows, columns))
        grids.append(_Grid(name, shade, by_name[name], tuple(rows), tuple(columns), of(down), of(across), *firsts))
    return _Group(program, heading, tuple(grids), is_product)


def _moves(program: Program, axis: Axis, tensor: str) -> bool:
    return axis.extent > 1 and axis.strides[program.position(tensor)] != 0


def _role(program: Program, axis: Axis, names: tuple[str, ...]) -> str:
    """What an iterated axis is to a product: rows of in0 and out, columns of in1 and out, contracted, or batch."""
    a, b, out = (_moves(program, axis, name) for name in names)
    if a and out and not b:
        return "r"
    if b and out and not a:
        return "p"
    if (a or b) and not out:
        return "t"
    return "batch" if out else "still"
