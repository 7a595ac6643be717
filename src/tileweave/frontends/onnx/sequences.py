"""Sequences, optionals and control flow, as far as they are known when a model is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.frontends.onnx.node import OnnxNode, operator
from tileweave.frontends.onnx.shapes import parts
from tileweave.frontends.values import Value
from tileweave.graph import Tensor

MOST_STEPS = 4096
"""Loops of more steps are refused: each is unrolled."""


def _sequence(node: OnnxNode, index: int = 0) -> list[Value]:
    value = node.inputs[index]
    if not isinstance(value, list):
        raise node.refuse(f"input {index} is no sequence")
    return value


@operator("SequenceEmpty")
def empty(node: OnnxNode) -> Any:
    """No elements."""
    return []


@operator("SequenceConstruct")
def construct(node: OnnxNode) -> Any:
    """The inputs as a sequence."""
    return list(node.inputs)


@operator("SequenceInsert")
def insert(node: OnnxNode) -> Any:
    """One more element."""
    made = list(_sequence(node))
    made.insert(int(node.known(2).reshape(-1)[0]) if node.has(2) else len(made), node.inputs[1])
    return made


@operator("SequenceErase")
def erase(node: OnnxNode) -> Any:
    """One element less."""
    made = list(_sequence(node))
    del made[int(node.known(1).reshape(-1)[0]) if node.has(1) else -1]
    return made


@operator("SequenceAt")
def at(node: OnnxNode) -> Value:
    """One element."""
    return _sequence(node)[int(node.known(1).reshape(-1)[0])]


@operator("SequenceLength")
def length(node: OnnxNode) -> Any:
    """How many elements."""
    return np.asarray(len(_sequence(node)), np.int64)


@operator("ConcatFromSequence")
def concatenate(node: OnnxNode) -> Tensor:
    """All elements along an old or a new axis."""
    tensors = [value if isinstance(value, Tensor) else g.as_tensor(value) for value in _sequence(node)]
    axis = node.get("axis")
    if node.get("new_axis", 0):
        axis %= len(tensors[0].shape) + 1
        tensors = [g.unsqueeze(tensor, axis) for tensor in tensors]
    return g.concat(tensors, axis % len(tensors[0].shape))


@operator("SplitToSequence")
def split(node: OnnxNode) -> Any:
    """Parts along an axis."""
    x = node.tensor(0)
    axis = node.axis(x)
    extent = x.shape[axis]
    sizes = node.integers(1)
    if sizes is None:
        pieces = parts(x, axis, [1] * extent)
        return pieces if node.get("keepdims", 1) else [g.squeeze(piece, axis) for piece in pieces]
    if node.known(1).ndim == 0:
        sizes = [min(sizes[0], extent - k) for k in range(0, extent, sizes[0])]
    return parts(x, axis, sizes)


@operator("Optional")
def optional(node: OnnxNode) -> Value:
    """A value, or nothing."""
    return node.inputs[0] if node.inputs else None


@operator("OptionalHasElement")
def has_element(node: OnnxNode) -> Any:
    """Whether there is a value."""
    return np.asarray(node.has(0))


@operator("OptionalGetElement")
def element(node: OnnxNode) -> Value:
    """The value."""
    return node.inputs[0]


@operator("If")
def choose(node: OnnxNode) -> tuple[Value, ...]:
    """One of two graphs, by a condition that is known."""
    holds = bool(node.known(0, "the condition").reshape(-1)[0])
    return tuple(node.run(node.get("then_branch" if holds else "else_branch"), []))


@operator("Loop")
def loop(node: OnnxNode) -> tuple[Value, ...]:
    """A number of steps that is known, unrolled."""
    body = node.get("body")
    count = int(node.known(0, "the number of steps").reshape(-1)[0]) if node.has(0) else MOST_STEPS + 1
    holds = bool(node.known(1, "the condition").reshape(-1)[0]) if node.has(1) else True
    carried = list(node.inputs[2:])
    stacks: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while step < count and holds:
        if step >= MOST_STEPS:
            raise node.refuse(f"a loop of more than {MOST_STEPS} steps", legal="fewer steps")
        going, *made = node.run(body, [np.asarray(step, np.int64), np.asarray(holds), *carried])
        if isinstance(going, Tensor):
            raise node.refuse("the condition is known only when the model runs", legal="a condition that is known")
        holds, carried = bool(np.asarray(going).reshape(-1)[0]), made[: len(carried)]
        for stack, value in zip(stacks, made[len(carried) :], strict=True):
            stack.append(value)
        step += 1
    return (*carried, *(_stacked(node, stack, 0) for stack in stacks))


@operator("Scan")
def scan(node: OnnxNode) -> tuple[Value, ...]:
    """A body over slices of its inputs, unrolled; version 8 scans each element of a batch by itself."""
    body, count = node.get("body"), node.get("num_scan_inputs")
    if node.version >= 9:
        first = len(node.inputs) - count
        return _scanned(node, body, list(node.inputs[:first]), node.tensors(first))
    if node.has(0):
        raise node.refuse("a scan of sequences of several lengths", legal="one length")
    tensors = node.tensors(1)
    first = len(tensors) - count
    made = []
    for item in range(tensors[0].shape[0]):
        parts = [g.select(x, 0, item) for x in tensors]
        made.append(_scanned(node, body, [*parts[:first]], parts[first:]))
    return tuple(_stacked(node, list(values), 0) for values in zip(*made, strict=True))


def _scanned(node: OnnxNode, body: Any, state: list[Value], scanned: list[Tensor]) -> tuple[Value, ...]:
    """The last state and the stacked outputs of a body over slices."""
    axes = node.get("scan_input_axes", [0] * len(scanned))
    backwards = node.get("scan_input_directions", node.get("directions", [0] * len(scanned)))
    steps = scanned[0].shape[axes[0]] if scanned else 0
    if steps > MOST_STEPS:
        raise node.refuse(f"a scan of more than {MOST_STEPS} steps", legal="fewer steps")
    stacks: list[list[Value]] = [[] for _ in range(len(body.output) - len(state))]
    for step in range(steps):
        slices = [
            g.select(x, axis % len(x.shape), steps - 1 - step if back else step)
            for x, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        made = node.run(body, [*state, *slices])
        state = made[: len(state)]
        for stack, value in zip(stacks, made[len(state) :], strict=True):
            stack.append(value)
    out_axes = node.get("scan_output_axes", [0] * len(stacks))
    reversed_outputs = node.get("scan_output_directions", [0] * len(stacks))
    finished = [
        _stacked(node, stack[::-1] if back else stack, axis)
        for stack, axis, back in zip(stacks, out_axes, reversed_outputs, strict=True)
    ]
    return (*state, *finished)


def _stacked(node: OnnxNode, values: list[Value], axis: int) -> Value:
    if not values:
        raise node.refuse("a scan of no steps has outputs of unknown shape", legal="at least one step")
    if not any(isinstance(value, Tensor) for value in values):
        return np.stack(values, axis)
    tensors = [value if isinstance(value, Tensor) else g.as_tensor(np.asarray(value)) for value in values]
    axis %= len(tensors[0].shape) + 1
    return g.concat([g.unsqueeze(tensor, axis) for tensor in tensors], axis)
