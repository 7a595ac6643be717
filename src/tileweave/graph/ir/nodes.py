"""The nodes of a tensor expression graph: immutable, interned values that refer to what they depend on.

::

    Tensor        = one output of a producer: Operation | Selector | Source
    Operation     = operator name, index box, named inputs, named outputs, parameters, signature?, after*
    Selector      = kind, named inputs, one output type, parameters              (moves values, never computes)
    Source        = data (an array, a file, nothing yet), type, name, placement?
    Sink          = a tensor, a target (memory, a file), placement?, part?       (the region that it writes)
    Signature     = projection per input and output, reduction monoids, marginal costs
    SequencePoint = operations and sinks that happen before it
    Graph         = the sequence points that are observed

A value that nothing observes is simply unreachable. Two nodes built from the same parts are the same object, so
equality is identity and a shared graph stays small. Nodes pickle as one topological table, however deep they are.

Source: Tapestry, "TEG: Tapestry Expression Graph" and "Representing Graphs".
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Union, cast

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.interned import KEYS, Lined, field_names, key_of, pairs_key
from tileweave.graph.ir.sugar import TensorSugar
from tileweave.space import Box, Projection
from tileweave.space.box import trusted_box

Value = Union[None, bool, int, float, str, tuple["Value", ...]]  # noqa: UP007  (a recursive alias needs Union)
Named = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node(Lined):
    """The base of every node: identity is equality, and pickling goes through a topological table."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_table, (_to_table([self]),)

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: object) -> Node:
        return self


MOST_EXTENT = 2**63 - 1
_INTEGERS = {int}


@dataclass(frozen=True, slots=True)
class TensorType:
    """A shape and an element type. Tensors start at the origin and are dense."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        shape: Any = self.shape
        if type(shape) is not tuple or not _INTEGERS.issuperset(map(type, shape)):
            shape = tuple(int(n) for n in shape)
            object.__setattr__(self, "shape", shape)
        dtype: Any = self.dtype
        if not isinstance(dtype, np.dtype):
            object.__setattr__(self, "dtype", np.dtype(dtype))
        if shape and (min(shape) < 0 or max(shape) > MOST_EXTENT):
            problem = f"shape {self.shape} has an extent below 0, or beyond what an index of 64 bits reaches"
            raise GraphError("TensorType(shape, dtype)", problem, legal=f"0..{MOST_EXTENT}")

    @property
    def box(self) -> Box:
        """The whole tensor as a region."""
        return trusted_box((0,) * len(self.shape), self.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of the dense tensor."""
        return self.box.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


def trusted_type(shape: tuple[int, ...], dtype: np.dtype[Any]) -> TensorType:
    """A type of integers that are known to be extents, without checking them again."""
    kind = _new(TensorType)
    _set_shape(kind, shape)
    _set_dtype(kind, dtype)
    return kind


_new, _set_shape, _set_dtype = object.__new__, vars(TensorType)["shape"].__set__, vars(TensorType)["dtype"].__set__
KEYS[TensorType] = lambda kind: (TensorType, kind.shape, kind.dtype)
KEYS[Projection] = lambda one: (Projection, one.map.matrix, one.map.offset, one.map.inputs, one.shape, one.stride)
KEYS[Box] = lambda box: (Box, box.start, box.shape)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Tensor(TensorSugar, Node):
    """A logical tensor: one named output of its producer."""

    producer: Operation | Selector | Source
    output: str = "out"

    @classmethod
    def _key(cls, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """As of every node, sooner."""
        producer, output = parts
        node = id(producer) if type(producer) is Operation else key_of(producer)
        return cls, node, output if type(output) is str else key_of(output)

    def __post_init__(self) -> None:
        if type(self.producer).__hash__ is None:  # no node, nor anything that `verify` could name
            raise GraphError(
                "Tensor(producer, output)", f"a {type(self.producer).__name__} is no producer",
                legal="tw.source(array); an operation, a selector or a source",
            )  # fmt: skip

    @property
    def type(self) -> TensorType:
        """Shape and element type."""
        producer, output = self.producer, self.output
        if type(producer) is Operation:  # asked everywhere, and most have one output
            for name, kind in producer.outputs:
                if name == output:
                    return kind
        return producer.output_types[output]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.type.box.size

    def __repr__(self) -> str:
        what: Any = self.producer
        if not isinstance(what, (Operation, Selector, Source)):  # `verify` says what is wrong
            return f"<Tensor of {what!r}>"
        label = what.operator if isinstance(what, Operation) else what.kind if isinstance(what, Selector) else "source"
        return f"<Tensor {what.output_types.get(self.output, self.output)} = {label}>"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Signature(Node):
    """How an operation may be cut: which region of each tensor an index point needs, and what a cut costs.

    Args:
        dims: names of the index dimensions, e.g. ``("batch", "in", "out")``.
        inputs: (name, projection) pairs.
        outputs: (name, projection) pairs. A dimension that no output uses is a reduction.
        reductions: (dimension, monoid name) pairs, for the index dimensions that may be cut only into partial results.
        costs: (resource, amount per index point) pairs; the marginal cost of one step along a dimension
            of a box is the amount times the product of its other extents.
    """

    dims: tuple[str, ...]
    inputs: tuple[tuple[str, Projection], ...]
    outputs: tuple[tuple[str, Projection], ...]
    reductions: tuple[tuple[int, str], ...] = ()
    costs: tuple[tuple[str, float], ...] = ()

    def input(self, name: str) -> Projection:
        """The projection of a named input."""
        return dict(self.inputs)[name]

    def output(self, name: str) -> Projection:
        """The projection of a named output."""
        return dict(self.outputs)[name]

    @property
    def monoids(self) -> dict[int, str]:
        """Reduction dimension -> monoid name."""
        return dict(self.reductions)

    def cost(self, resource: str, box: Box) -> float:
        """The amount of a resource that a block of the index needs."""
        return dict(self.costs).get(resource, 0.0) * box.size

    def marginal_cost(self, resource: str, box: Box, dim: int) -> float:
        """The amount that one more step along a dimension of the block adds."""
        rest = [n for k, n in enumerate(box.shape) if k != dim]
        return self.cost(resource, Box.of(rest))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Operation(Node):
    """A block operation over an index box. Without a signature it can be run but not cut again.

    Args:
        operator: a name registered in `tileweave.graph.ops.operators`.
        index: the work, a dense box; a shard keeps its place in the parent's index.
        inputs: (name, tensor) pairs; each tensor has the shape of the projection's cover of `index`.
        outputs: (name, type) pairs.
        parameters: (name, value) pairs of plain values.
        signature: how it may be cut, or None.
        after: sequence points that happen before it.
    """

    has_line = True

    operator: str
    index: Box
    inputs: tuple[tuple[str, Tensor], ...]
    outputs: tuple[tuple[str, TensorType], ...]
    parameters: tuple[tuple[str, Value], ...] = ()
    signature: Signature | None = None
    after: tuple[SequencePoint, ...] = ()

    @classmethod
    def _key(cls, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """As of every node, sooner."""
        operator, index, inputs, outputs, parameters, signature, after = parts
        name = operator if type(operator) is str else key_of(operator)
        box = (Box, index.start, index.shape) if type(index) is Box else key_of(index)
        reads, made, given = pairs_key(inputs), pairs_key(outputs), pairs_key(parameters) if parameters else parameters
        cut = id(signature) if type(signature) is Signature else key_of(signature)
        return cls, name, box, reads, made, given, cut, key_of(after) if after else after

    @property
    def output_types(self) -> dict[str, TensorType]:
        """Output name -> type."""
        return dict(self.outputs)

    def input(self, name: str) -> Tensor:
        """The tensor of a named input."""
        return dict(self.inputs)[name]

    def parameter(self, name: str) -> Any:
        """A parameter's value."""
        return dict(self.parameters)[name]

    def __repr__(self) -> str:
        return f"<Operation {self.operator} {self.index}>"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Selector(Node):
    """A view: every output element is a known input element or a generated value; nothing is computed."""

    kind: str
    inputs: tuple[tuple[str, Tensor], ...]
    out: TensorType
    parameters: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def _key(cls, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """As of every node, sooner."""
        kind, inputs, out, parameters = parts
        name = kind if type(kind) is str else key_of(kind)
        return cls, name, pairs_key(inputs), key_of(out), pairs_key(parameters)

    @property
    def output_types(self) -> dict[str, TensorType]:
        """The one output, named ``out``."""
        return {"out": self.out}

    def parameter(self, name: str) -> Any:
        """A parameter's value."""
        return dict(self.parameters)[name]

    def __repr__(self) -> str:
        return f"<Selector {self.kind} {self.out}>"


@dataclass(frozen=True, slots=True, eq=False)
class ArrayData:
    """An array in this process. Two are equal when they hold the same array object."""

    array: np.ndarray[Any, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayData) and other.array is self.array

    def __hash__(self) -> int:
        return id(self.array)


KEYS[ArrayData] = lambda data: (ArrayData, id(data.array))


@dataclass(frozen=True, slots=True)
class FileData:
    """A tensor in a file.

    Args:
        path: path or URL.
        format: npy, npz, zarr, and so on.
        key: the member of a container.
        chunks: extents of what is read at once, where the format reads no less; for the planner, and no part of what
            the file is.
    """

    path: str
    format: str
    key: str = ""
    chunks: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Hole:
    """No data yet: the run binds an array. The key tells holes of one name and type apart."""

    key: str = ""


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Source(Node):
    """Where a tensor comes from. `placement` pins it to a machine by number."""

    data: ArrayData | FileData | Hole
    type: TensorType
    name: str = ""
    placement: int | None = None

    @classmethod
    def _key(cls, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """As of every node, sooner."""
        data, kind, name, placement = parts
        held = (ArrayData, id(data.array)) if type(data) is ArrayData else key_of(data)
        return cls, held, key_of(kind), name if type(name) is str else key_of(name), key_of(placement)

    @property
    def output_types(self) -> dict[str, TensorType]:
        """The one output, named ``out``."""
        return {"out": self.type}

    def __repr__(self) -> str:
        return f"<Source {self.name or 'array'} {self.type}>"


@dataclass(frozen=True, slots=True)
class MemoryTarget:
    """The result is handed back by the run as an array."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """The result becomes a file.

    Args:
        path: path or URL.
        format: such as npy or zarr.
        key: the member of a container.
        overwrite: whether it replaces a file that exists.
        grid: of a zarr: the extents of a chunk, and those of a shard where chunks are stored together; empty where the
            writer chooses.
    """

    path: str
    format: str
    key: str = ""
    overwrite: bool = False
    grid: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class SinkPart:
    """The region of a result that one of several sinks writes.

    Args:
        box: the region, not empty.
        shape: of the whole result.

    Raises:
        GraphError: the region is empty or not inside the result.
    """

    box: Box
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if self.box.rank != len(self.shape) or self.box.empty or not Box.of(self.shape).contains(self.box):
            raise GraphError(
                "SinkPart(box, shape)", f"{self.box} is no region of {self.shape}", legal="a box inside, not empty"
            )

    def __str__(self) -> str:
        return f"{self.box} of [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Sink(Node):
    """Where a tensor goes. `placement` pins it to a machine by number.

    A sink with a `part` is a shard: it writes one region of a result. The shards of one result stand next to each
    other in one sequence point, have the same target, placement and element type, and are the blocks of a grid.
    """

    tensor: Tensor
    target: MemoryTarget | FileTarget
    placement: int | None = None
    part: SinkPart | None = None

    def __repr__(self) -> str:
        where = self.target.path if isinstance(self.target, FileTarget) else "memory"
        kind = getattr(self.tensor, "type", self.tensor)
        return f"<Sink {kind} -> {where}{f' {self.part}' if self.part is not None else ''}>"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class SequencePoint(Node):
    """A strict happens-before: what it holds is done before anything that lists it in `after` starts."""

    before: tuple[Operation | Sink, ...]

    def __repr__(self) -> str:
        return f"<SequencePoint of {len(self.before)}>"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Graph(Node):
    """The sequence points that are observed: the roots of everything that will be computed."""

    points: tuple[SequencePoint, ...]

    def __repr__(self) -> str:
        return f"<Graph of {', '.join(map(repr, self.points)) or 'nothing'}>"

    @classmethod
    def of(cls, *observed: Tensor | Sink | Operation) -> Graph:
        """The graph that observes these tensors (as memory sinks), sinks and operations."""
        roots = tuple(Sink(item, MemoryTarget()) if isinstance(item, Tensor) else item for item in observed)
        return cls((SequencePoint(roots),))

    def nodes(self) -> list[Node]:
        """Every reachable node once, dependencies first; this graph last."""
        known = _BELOW.get(self)
        if known is None:
            known = _BELOW[self] = topological([self])[:-1]  # without the graph, which else would live for ever
        return [*known, self]

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The observed sinks in order."""
        return tuple(item for point in self.points for item in point.before if isinstance(item, Sink))

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Every reachable operation, dependencies first."""
        return tuple(node for node in self.nodes() if isinstance(node, Operation))


_BELOW: weakref.WeakKeyDictionary[Graph, list[Node]] = weakref.WeakKeyDictionary()
"""Graph -> the nodes that it reaches: planning asks a dozen times."""


def keep_order(graph: Graph, nodes: Iterable[Node]) -> None:
    """Have the nodes of a graph known, from those that they were made of one by one, in their order."""
    _BELOW.setdefault(graph, [node for node in dict.fromkeys(nodes) if node is not graph])


_PLAIN = (
    "operator",
    "index",
    "outputs",
    "parameters",
    "kind",
    "out",
    "data",
    "type",
    "name",
    "target",
    "placement",
    "part",
)
"""Fields that hold no node: of a fused operation, they are most of what there is."""


@cache
def links_of(cls: type) -> tuple[str, ...]:
    """The fields of a class of nodes that refer to nodes."""
    return () if cls is Signature else tuple(name for name in field_names(cls) if name not in _PLAIN)


def children(node: Node) -> list[Node]:
    """The nodes that a node refers to directly, in field order."""
    cls = type(node)
    if cls is Tensor:
        producer = cast("Tensor", node).producer
        return [producer] if isinstance(producer, Node) else []
    found: list[Node] = []
    for name in links_of(cls):
        value = getattr(node, name)
        if type(value) is tuple:
            _gather(value, found)
        elif isinstance(value, Node):
            found.append(value)
    return found


def _gather(values: tuple[Any, ...], found: list[Node]) -> None:
    for value in values:
        if type(value) is tuple:
            _gather(value, found)
        elif type(value) is not str and isinstance(value, Node):
            found.append(value)


def relinked(node: Node, new: Mapping[Node, Node]) -> Node:
    """A node with what others became in the place of each node that it refers to."""
    if type(node) is Tensor:
        return Tensor(cast("Any", new[node.producer]), node.output)
    cls = type(node)
    links = links_of(cls)
    values = ((name, getattr(node, name)) for name in field_names(cls))
    return cls(*[_relinked(value, new) if name in links else value for name, value in values])


def _relinked(value: Any, new: Mapping[Node, Node]) -> Any:
    if isinstance(value, Node):
        return new[value]
    return tuple([_relinked(one, new) for one in value]) if isinstance(value, tuple) else value


def topological(roots: Sequence[Node]) -> list[Node]:
    """Every node reachable from the roots once, dependencies first, in a deterministic order; no recursion."""
    order: list[Node] = []
    met: set[int] = set()
    stack: list[tuple[Node, Iterator[Node]]] = []
    for root in roots:
        if id(root) in met:
            continue
        met.add(id(root))
        stack.append((root, iter(children(root))))
        while stack:
            node, rest = stack[-1]
            for child in rest:
                if id(child) not in met:
                    met.add(id(child))
                    stack.append((child, iter(children(child))))
                    break
            else:
                stack.pop()
                order.append(node)
    return order


@dataclass(frozen=True, slots=True)
class _Ref:
    position: int


def _to_table(roots: Sequence[Node]) -> list[tuple[type, tuple[Any, ...]]]:
    nodes = topological(roots)
    position = {id(node): k for k, node in enumerate(nodes)}

    def encode(value: Any) -> Any:
        if isinstance(value, Node):
            return _Ref(position[id(value)])
        return tuple(map(encode, value)) if isinstance(value, tuple) else value

    return [(type(node), tuple(encode(getattr(node, name)) for name in field_names(type(node)))) for node in nodes]


def _from_table(table: Sequence[tuple[type, tuple[Any, ...]]]) -> Node:
    nodes: list[Node] = []

    def decode(value: Any) -> Any:
        if isinstance(value, _Ref):
            return nodes[value.position]
        return tuple(map(decode, value)) if isinstance(value, tuple) else value

    for cls, values in table:
        nodes.append(cls(*map(decode, values)))
    return nodes[-1]
