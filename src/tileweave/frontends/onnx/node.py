"""A node of an ONNX graph as converters see it: its inputs as values, its attributes, its version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.frontends.values import Value, tensor
from tileweave.graph import Hole, Source, Tensor, topological

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One use of an operator.

    Args:
        kind: the operator's name.
        proto: the node in the file.
        inputs: values; None where an optional input is left out.
        attributes: Python values; tensors are arrays, graphs stay as ONNX has them.
        outputs: the names of the outputs; empty where an output is not wanted.
        version: of the operator set.
        run: evaluates a subgraph on values for its inputs.
        sources: identity of an array that stays -> it, and it as a tensor; None where nobody asked for that yet.
    """

    kind: str
    proto: Any
    inputs: tuple[Value | None, ...]
    attributes: dict[str, Any]
    outputs: tuple[str, ...]
    version: int
    run: Callable[[Any, Sequence[Value]], list[Value]]
    sources: dict[int, tuple[Array, Tensor] | None]

    @property
    def name(self) -> str:
        """Of the node, or of its first output where it has none."""
        return name_of(self.proto)

    @property
    def where(self) -> str:
        """What errors name."""
        return f"load(..): node {self.name!r} ({self.kind})"

    def refuse(self, problem: str, legal: str = "") -> GraphError:
        """The error that names this node."""
        return GraphError(self.where, problem, legal=legal)

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> Tensor:
        """An input as a tensor."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, Tensor):
            return value
        if value is None:
            raise self.refuse(f"input {index} is missing")
        if isinstance(value, list):
            raise self.refuse(f"input {index} is a sequence", legal="a tensor")
        known = self.sources.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        made = tensor(value, self.where)
        if id(value) in self.sources:
            self.sources[id(value)] = value, made
        return made

    def tensors(self, start: int = 0) -> list[Tensor]:
        """The inputs from one on."""
        return [self.tensor(k) for k in range(start, len(self.inputs)) if self.has(k)]

    def optional(self, index: int) -> Tensor | None:
        """An input as a tensor, or None."""
        return self.tensor(index) if self.has(index) else None

    def known(self, index: int, what: str = "") -> Array:
        """An input whose value decides shapes, so it must be known when the model is loaded."""
        if not self.has(index):
            raise self.refuse(f"input {index} is missing")
        value = self.inputs[index]
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(value)
        what = what or f"input {index}"
        source = unknown_input(value)
        legal = f"bind={{{source or 'name'!r}: array}} gives its value"
        problem = f"{what} decides a shape, and its value is known only when the model runs"
        raise GraphError(self.where, problem, legal=legal, facts={"input": source})

    def integers(self, index: int, attribute: str = "", default: Any = None) -> list[int] | None:
        """Integers that newer versions take as an input and older ones as an attribute."""
        if self.has(index):
            return [int(k) for k in np.atleast_1d(self.known(index, attribute))]
        value = self.attributes.get(attribute, default) if attribute else default
        return None if value is None else [int(k) for k in np.atleast_1d(value)]

    def get(self, attribute: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(attribute, default)

    def axis(self, x: Tensor, default: int = 0, given: int | None = None) -> int:
        """The attribute ``axis``, or another axis, of a tensor, counted from the front."""
        axis, rank = self.get("axis", default) if given is None else given, len(x.shape)
        if not -rank <= axis < rank:
            legal = f"{-rank}..{rank - 1}" if rank else "a tensor of one dimension or more"
            raise self.refuse(f"{x.type} has no axis {axis}", legal=legal)
        return int(axis) % rank

    def text(self, attribute: str, default: str = "") -> str:
        """An attribute that is a text."""
        value = self.attributes.get(attribute, default)
        return value.decode() if isinstance(value, bytes) else value

    def wanted(self, index: int) -> bool:
        """Whether an output is used."""
        return index < len(self.outputs) and bool(self.outputs[index])


def name_of(proto: Any) -> str:
    """The name of a node in a file, or of its first output where it has none."""
    name: str = proto.name or next((each for each in proto.output if each), "")
    return name


Converter = Callable[[OnnxNode], Any]
OPERATORS: dict[str, Converter] = {}
"""Operator -> what makes its outputs: one value, or a tuple of them; foreign domains stand before the name."""
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training")


def converter(domain: str, kind: str) -> Converter | None:
    """What converts an operator; None where nothing does."""
    return OPERATORS.get(kind if domain in _DOMAINS else f"{domain}.{kind}")


def operator(*names: str) -> Callable[[Converter], Converter]:
    """Registers a converter for operators."""

    def register(converter: Converter) -> Converter:
        for name in names:
            if name in OPERATORS:
                raise GraphError("operator(name)", f"the name {name!r} is taken", legal="a new name")
            OPERATORS[name] = converter
        return converter

    return register


def unknown_input(value: Value) -> str | None:
    """The name of the first input on which a value depends."""
    if not isinstance(value, Tensor):
        return None
    for node in topological([value]):
        if isinstance(node, Source) and isinstance(node.data, Hole):
            return node.name
    return None
