"""Which programs are attention: a product, elementwise steps, a softmax along its rows, and a second product.

What a program computes is followed from operation to operation as an expression per tensor; so its text may order and
store the steps in any way.

Source: own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod
from typing import Any

from tileweave.backends.cpu.llvm.elements import Element, element
from tileweave.backends.cpu.llvm.meanings import KNOWN
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.ir.primitives import operands_of
from tileweave.teir.ir.program import Id, Invocation, Iteration, Primitive, Program
from tileweave.teir.merged.form import MONOIDS, Mode, fuse


@dataclass(frozen=True, slots=True)
class Value:
    """What a tensor holds, as an expression.

    Args:
        kind: ``in``, ``Fill``, ``Contraction``, or an operation of TEIR.
        dtype: of the value.
        inputs: of the operation.
        number: of a Fill; the position of an input.
    """

    kind: str
    dtype: str
    inputs: tuple[Value, ...] = ()
    number: float = 0.0


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention as loops: strides are bytes per tensor of the program, in its order.

    Args:
        element: of everything but truths.
        tensors: positions of queries, keys, values and the output.
        offsets: bytes to the first element of every tensor.
        outer: loops along which keys or values move.
        rows: loops along which they do not, outermost first.
        keys: the loop over keys.
        depth: the loop over what the first product sums.
        features: the loop over the values' features.
        scores: the first product.
        weighed: what softmax is taken of.
    """

    element: Element
    tensors: tuple[int, int, int, int]
    offsets: tuple[int, ...]
    outer: tuple[Mode, ...]
    rows: tuple[Mode, ...]
    keys: Mode
    depth: Mode
    features: Mode
    scores: Value
    weighed: Value

    @property
    def queries(self) -> int:
        """Rows of scores that share keys."""
        return prod(mode.extent for mode in self.rows)

    @property
    def batches(self) -> int:
        """How often keys change."""
        return prod(mode.extent for mode in self.outer)

    @property
    def extras(self) -> tuple[int, ...]:
        """Positions of what the steps read beside the scores."""
        found: list[int] = []
        stack = [self.weighed]
        while stack:
            value = stack.pop()
            if value.kind == "in" and int(value.number) not in found:
                found.append(int(value.number))
            stack += [] if value is self.scores else value.inputs
        return tuple(sorted(found))

    @property
    def masks(self) -> tuple[int, ...]:
        """Positions of truths without which a score is minus infinity, whatever else it is."""
        found: list[int] = []
        value = self.weighed
        while value.kind == "Select" and value.inputs[2] == Value("Fill", self.element.name, (), -inf):
            if value.inputs[0].kind == "in":
                found.append(int(value.inputs[0].number))
            value = value.inputs[1]
        return tuple(found)


_FILLS = {"Zero": 0.0, "One": 1.0, "Lowest": -inf, "Highest": inf}
_START = {"ReduceSum": 0.0, "Contraction": 0.0, "ReduceMax": -inf}


def match(program: Program, target: Target) -> Attention | None:
    """The attention that a program is; None where it is none."""
    products = [p for p in program.primitives if p.operation == "Contraction"]
    if len(products) != 2 or not any(p.operation == "ReduceMax" for p in program.primitives):
        return None
    walked = _walked(program)
    if walked is None:
        return None
    loops, order = walked
    result = _followed(program, order)
    if result is None or result.kind != "Contraction" or result.inputs[1].kind != "in":
        return None
    weighed = _softmax(result.inputs[0])
    scores = _product_in(weighed) if weighed is not None else None
    if weighed is None or scores is None:
        return None
    one = element(result.dtype)
    if not (one.floating and one.plain) or target.lanes(one.width_bytes) < 4:
        return None
    return _placed(program, loops, order, scores, weighed, int(result.inputs[1].number), one)


def _walked(program: Program) -> tuple[list[Id], list[Primitive]] | None:
    """The axes of the one loop nest, and the primitives in order: constants, then its body."""
    nodes = {node.id: node for node in program.nodes}
    primitives = {primitive.id: primitive for primitive in program.primitives}
    loops: list[Id] = []
    order: list[Primitive] = []
    level = [nodes[root] for root in program.roots]
    while level:
        deeper: list[Iteration] = []
        for node in level:
            if node.guard or deeper:
                return None
            if isinstance(node, Invocation):
                order.append(primitives[node.primitive])
            else:
                deeper.append(node)
        loops += [node.axis for node in deeper]
        level = [nodes[child] for node in deeper for child in node.children]
    return loops, order


def _followed(program: Program, order: list[Primitive]) -> Value | None:
    """What the output holds at the end; None where a tensor is changed in a way that is not followed."""
    held = {
        spec.name: Value("in", spec.dtype, (), place) for place, spec in enumerate(program.tensors) if spec.role == "in"
    }
    dtypes = {spec.name: spec.dtype for spec in program.tensors}
    for primitive in order:
        *names, out = operands_of(primitive, program)
        kind, dtype = primitive.operation, dtypes[out]
        if kind in _FILLS or kind == "Fill":
            number: Any = _FILLS.get(kind, dict(primitive.metadata).get("value"))
            held[out] = Value("Fill", dtype, (), float(number))
            continue
        if any(name not in held for name in names) or kind not in KNOWN:
            return None
        if kind in MONOIDS and held.get(out) != Value("Fill", dtype, (), _START.get(kind, 0.5)):
            return None
        held[out] = Value(kind, dtype, tuple(held[name] for name in names))
    return held.get("out")


def _softmax(value: Value) -> Value | None:
    """Of what a value is the softmax, however the division is done."""
    power: Value | None = None
    if value.kind == "Div":
        power, total = value.inputs
    elif value.kind == "Mul" and value.inputs[1].kind == "Div":
        power, (one, total) = value.inputs[0], value.inputs[1].inputs
        if (one.kind, one.number) != ("Fill", 1.0):
            return None
    if power is None or (total.kind, total.inputs) != ("ReduceSum", (power,)) or power.kind != "Exp":
        return None
    difference = power.inputs[0]
    if difference.kind != "Sub" or difference.inputs[1] != Value("ReduceMax", value.dtype, difference.inputs[:1]):
        return None
    return difference.inputs[0]


def _product_in(value: Value) -> Value | None:
    """The one product of inputs in an expression that reduces nothing else."""
    found: set[Value] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if one.kind == "Contraction":
            found.add(one)
        elif one.kind in MONOIDS:
            return None
        else:
            stack += one.inputs
    if len(found) != 1:
        return None
    (product,) = found
    return product if all(one.kind == "in" for one in product.inputs) else None


def _placed(
    program: Program,
    loops: list[Id],
    order: list[Primitive],
    scores: Value,
    weighed: Value,
    values: int,
    one: Element,
) -> Attention | None:
    """The loops by what moves along them."""
    axes = {axis.id: axis for axis in program.axes}
    first, second = (p for p in order if p.operation == "Contraction")
    roles = [dict(p.axes) for p in (first, second)]
    if any(role.get("M") for role in roles) or roles[0].get("N", ()) != roles[1].get("K", ()):
        return None
    queries, keys = (int(x.number) for x in scores.inputs)
    out = program.position("out")
    still = Mode(1, (0,) * len(program.tensors))
    inner = []
    for ids in (roles[0].get("N", ()), roles[0].get("K", ()), roles[1].get("N", ())):
        if len(ids) > 1 or any(any(axes[id].offsets) for id in ids):
            return None
        inner.append(Mode(axes[ids[0]].extent, axes[ids[0]].strides) if ids else still)
    offsets = [0] * len(program.tensors)
    outer: list[Mode] = []
    rows: list[Mode] = []
    for id in loops:
        axis = axes[id]
        offsets = [a + b for a, b in zip(offsets, axis.offsets, strict=True)]
        if axis.extent > 1:
            moves = axis.strides[keys] or axis.strides[values]
            (outer if moves else rows).append(Mode(axis.extent, axis.strides))
    rows.sort(key=lambda mode: -abs(mode.strides[out]))
    outer.sort(key=lambda mode: -abs(mode.strides[out]))
    real = [spec.role != "scratch" for spec in program.tensors]

    def shown(modes: list[Mode]) -> tuple[Mode, ...]:
        return fuse([Mode(m.extent, tuple(s if k else 0 for s, k in zip(m.strides, real, strict=True))) for m in modes])

    places = (queries, keys, values, out)
    over, depth, features = inner
    shapes = shown(outer), shown(rows)
    return Attention(one, places, tuple(offsets), *shapes, over, depth, features, scores, weighed)
