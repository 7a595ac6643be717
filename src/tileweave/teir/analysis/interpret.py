"""The slow, obvious meaning of a program; every backend is judged against it.

Every operand is a stretch of memory and the address of its base. An invocation forms the address of its tile from the
indices of its ancestors; the primitive then applies its operation's scalar step at every point of its own axes. Every
byte that is read or written is checked against the memory that holds the operand.

Source: TEIR, sections 10.2 to 10.4.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tileweave.errors import VerifyError
from tileweave.teir.analysis.calls import Call, Span, call_of, every_call
from tileweave.teir.ir.dtypes import numpy_dtype
from tileweave.teir.ir.policies import any_order
from tileweave.teir.ir.primitives import OperationSpec
from tileweave.teir.ir.program import First, Guard, Id, Invocation, Iteration, Program, TensorSpec
from tileweave.teir.ir.verify import verify
from tileweave.teir.ir.walk import axes_by_id, nodes_by_id, printed, walk

Order = Literal["forward", "reversed", "random"]

POINT_LIMIT = 1 << 24
"""Points of one invocation that are computed at once at most, and steps that are summed into each."""


def tile_address(program: Program, tensor: str, indices: Mapping[Id, int]) -> int:
    """The byte address relative to the tensor's base: the sum of offset + stride * index over the given axes.

    Args:
        program: any program.
        tensor: a tensor's name.
        indices: the current index of every iterated axis of the path.

    Raises:
        VerifyError: there is no such axis, or an index is outside it; rule ``address.index``.
        KeyError: there is no such tensor.

    Example:
        >>> from tileweave.teir.ir.program import Axis, Program, TensorSpec
        >>> axes = (Axis("a", 4, (32, 64), (0, 0)), Axis("b", 8, (4, 8), (0, 16)))
        >>> tensors = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP64", "out"))
        >>> tile_address(Program(tensors, axes, (), (), ()), "out", {"a": 1, "b": 2})
        96

    Source: TEIR, section 10.4.
    """
    j = program.position(tensor)
    axes = axes_by_id(program)
    total = 0
    for id, index in indices.items():
        axis = axes.get(id)
        if axis is None or not 0 <= index < axis.extent:
            raise VerifyError(
                "tile_address(program, tensor, indices)",
                f"index {index} of axis {id!r} is out of range" if axis else f"there is no axis {id!r}",
                legal=f"0..{axis.extent - 1}" if axis else ", ".join(map(printed, axes)),
                facts={"rule": "address.index", "path": f"axis {id!r}"},
            )
        total += axis.offsets[j] + axis.strides[j] * index
    return total


def interpret(
    program: Program,
    arrays: Mapping[str, NDArray[Any]],
    *,
    order: Order = "forward",
    seed: int = 0,
) -> None:
    """Runs a well-formed program on arrays, in place.

    Args:
        program: verified first.
        arrays: one array per tensor that is not scratch, of the tensor's element type. The address of its first element
            is the tensor's base; its shape and strides do not matter. A byte is inside when it is inside the memory of
            the array that owns the data.
        order: how parallel iterations are traversed; a program without races gives the same result in every order.
        seed: of the random order.

    Raises:
        VerifyError: the program is not well formed; an array is missing, superfluous, of another type or read-only
            where it is written (rule ``interpret.arrays``); there is no such order (``interpret.order``); an invocation
            takes more than `POINT_LIMIT` points, or scratch tensors more memory than there is (``interpret.memory``);
            or an address is outside (``address.in-bounds``).

    Example:
        >>> from tileweave.teir.ir.program import Axis, Invocation, Primitive, Program, TensorSpec
        >>> out = np.array([3, 1, 4], "int32")
        >>> interpret(
        ...     Program(
        ...         (TensorSpec("out", "INT32", "out"),),
        ...         (Axis("n", 2, (8,), (0,)),),
        ...         ("zero",),
        ...         (Invocation("zero", "z"),),
        ...         (Primitive("z", "Zero", (("M", ()), ("N", ("n",))), ("out",)),),
        ...     ),
        ...     {"out": out},
        ... )
        >>> out
        array([0, 1, 0], dtype=int32)
    """
    verify(program)
    if order not in ("forward", "reversed", "random"):
        facts = {"rule": "interpret.order", "path": "program"}
        legal = "forward, reversed or random"
        raise VerifyError("interpret(program, arrays, order=..)", f"{order!r} is no order", legal=legal, facts=facts)
    _check_points(program, order)
    memories = _operands(program, arrays)
    memories |= {spec.name: _scratch(spec) for spec in program.tensors if spec.role == "scratch"}
    with np.errstate(all="ignore"):
        run = Run(program, memories, order, Random(seed))
        run.forest(run.compute)


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes that hold a tensor, the position of its base among them, and what keeps them alive."""

    data: NDArray[np.uint8]
    base: int
    owner: Any


def _check_points(program: Program, order: Order) -> None:
    """Refuses invocations whose points, and random loops whose iterations, are too many to be held at once."""
    axes = axes_by_id(program)
    for visit in walk(program):
        node = visit.node
        if isinstance(node, Iteration):
            most = axes[node.axis].extent if any_order(node.policy) and order == "random" else 0
        else:
            call = call_of(program, visit)
            counts = [1, 1]
            for span in call.consumed:
                counts[span.role in call.spec.contracted] *= span.count
            most = max(counts)
        if most > POINT_LIMIT:
            raise _too_much(f"node {node.id!r}", f"it takes {most} steps at once", f"{POINT_LIMIT} at most")


def _too_much(path: str, problem: str, legal: str) -> VerifyError:
    facts = {"rule": "interpret.memory", "path": path}
    return VerifyError("interpret(program, arrays)", f"{path}: {problem}", legal=legal, facts=facts)


def _scratch(spec: TensorSpec) -> Memory:
    try:
        data = np.full(spec.size_bytes, 0xA5, np.uint8)  # a value that no program may rely on
    except (MemoryError, ValueError):  # NumPy's words for too much, and for far too much
        problem = f"there is no memory for its {spec.size_bytes} bytes"
        raise _too_much(f"tensor {spec.name!r}", problem, "scratch that fits in memory") from None
    return Memory(data, 0, data)


def _operands(program: Program, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Memory]:
    expected = {spec.name: spec for spec in program.tensors if spec.role != "scratch"}
    if not isinstance(arrays, Mapping):
        raise _refused(program, next(iter(expected), ""), f"{type(arrays).__name__} is given and no mapping from names")
    for name in arrays:
        if name not in expected:
            raise _refused(program, name, "the program has no such operand")
    memories = {}
    for name, spec in expected.items():
        if name not in arrays:
            raise _refused(program, name, "no array is given")
        array = arrays[name]
        if not isinstance(array, np.ndarray):
            raise _refused(program, name, f"{type(array).__name__} is given and no array")
        if array.dtype != numpy_dtype(spec.dtype):
            raise _refused(program, name, f"the array holds {array.dtype}, the tensor {spec.dtype}")
        if spec.role != "in" and not array.flags.writeable:
            raise _refused(program, name, "the array is read-only and the program writes it")
        memories[name] = _memory(array)
    return memories


def _refused(program: Program, name: str, why: str) -> VerifyError:
    wants = ", ".join(f"{spec.name} {spec.dtype} {spec.role}" for spec in program.tensors if spec.role != "scratch")
    return VerifyError(
        "interpret(program, arrays)",
        f"operand {name!r}: {why}",
        legal=f"one array per operand: {wants}",
        facts={"rule": "interpret.arrays", "path": f"tensor {name!r}"},
    )


def _memory(array: NDArray[Any]) -> Memory:
    """All bytes of the array that owns the data of this one, and where this one's first element lies in them."""
    owner = array
    below: Any = array
    while below is not None:
        if isinstance(below, np.ndarray):
            owner = below
        below = getattr(below, "base", None)
    low, high = np.lib.array_utils.byte_bounds(owner)
    raw = (ctypes.c_uint8 * (high - low)).from_address(low)
    return Memory(np.asarray(memoryview(raw).cast("B")), array.__array_interface__["data"][0] - low, owner)


Apply = Callable[[Id, OperationSpec, tuple[str, ...], list[NDArray[np.int64]]], None]
"""What a step does: node, operation, tensor names, and for each the positions of its elements in its memory."""


class Run:
    """One traversal of the schedule: the current indices, and the memory that they address."""

    def __init__(self, program: Program, memories: dict[str, Memory], order: Order, random: Random) -> None:
        self.program = program
        self.memories = memories
        self.order = order
        self.random = random
        self.axes = axes_by_id(program)
        self.nodes = nodes_by_id(program)
        self.calls = {call.node: call for call in every_call(program)}
        self.dtypes = {spec.name: numpy_dtype(spec.dtype) for spec in program.tensors}
        self.indices: dict[Id, int] = {}
        self.apply: Apply = self.compute

    def forest(self, apply: Apply) -> None:
        """Executes the schedule; every step of every invocation goes through ``apply``."""
        self.apply = apply
        for root in self.program.roots:
            self._node(root)

    def _node(self, id: Id) -> None:
        node = self.nodes[id]
        if not self._holds(node.guard):
            return
        if isinstance(node, Invocation):
            self.invoke(self.calls[node.id])
            return
        for index in self._traversal(node):
            self.indices[node.axis] = index
            for child in node.children:
                self._node(child)
        del self.indices[node.axis]

    def _holds(self, guard: Guard) -> bool:
        return all(
            self.indices[term.axis] == (0 if isinstance(term, First) else self.axes[term.axis].extent - 1)
            for term in guard
        )

    def _traversal(self, node: Iteration) -> Any:
        indices = range(self.axes[node.axis].extent)
        if any_order(node.policy) and self.order == "reversed":
            return reversed(indices)
        if any_order(node.policy) and self.order == "random":
            return self.random.sample(indices, len(indices))
        return indices

    def invoke(self, call: Call) -> None:
        """The scalar step at every point of the primitive's axes, M outermost, then N, then K."""
        spec, names = call.spec, call.names
        free = [span for span in call.consumed if span.role not in spec.contracted]
        inner = [span for span in call.consumed if span.role in spec.contracted]
        tiles = [self.tile(call, k, free) for k in range(len(names))]
        steps = list(product(*(range(span.count) for span in inner)))
        moves = [[_moved(call, k, inner, step) for k in range(len(names))] for step in steps]
        for k, tile in enumerate(tiles):
            self.check(call, k, tile, [move[k] for move in moves])
        if self.independent(spec, names, tiles, moves):
            for move in moves:
                self.apply(call.node, spec, names, [tile + by for tile, by in zip(tiles, move, strict=True)])
        else:  # elements of the tile meet each other: one point after the other
            for point in range(len(tiles[-1])):
                for move in moves:
                    at = [tile[point : point + 1] + by for tile, by in zip(tiles, move, strict=True)]
                    self.apply(call.node, spec, names, at)

    def tile(self, call: Call, k: int, free: Sequence[Span]) -> NDArray[np.int64]:
        """The address of every point of the free axes, relative to the tensor's memory, in row-major order."""
        addresses = np.array([self.memories[call.names[k]].base + call.address(k, self.indices)], np.int64)
        for span in free:
            steps = span.axis.strides[call.tensors[k]] * np.arange(span.count, dtype=np.int64)
            addresses = np.add.outer(addresses, steps).ravel()
        return addresses

    def check(self, call: Call, k: int, tile: NDArray[np.int64], moves: Sequence[int]) -> None:
        """Every byte of the operand lies in its memory."""
        name = call.names[k]
        low, high = int(tile.min()) + min(moves), int(tile.max()) + max(moves) + call.width(k)
        memory = self.memories[name]
        if low < 0 or high > memory.data.size:
            at = ", ".join(f"{id}={index}" for id, index in self.indices.items())
            raise VerifyError(
                "interpret(program, arrays)",
                f"node {call.node!r} touches bytes {low - memory.base}..{high - memory.base - 1} of {name!r} at ({at})",
                legal=f"bytes {-memory.base}..{memory.data.size - memory.base - 1} from its base",
                facts={"rule": "address.in-bounds", "path": f"node {call.node!r}", "indices": dict(self.indices)},
            )

    def compute(
        self, node: Id, spec: OperationSpec, names: tuple[str, ...], addresses: list[NDArray[np.int64]]
    ) -> None:
        """The operation's meaning on the bytes of its operands."""
        values = [self._read(name, at) for name, at in zip(names, addresses, strict=True)]
        result = spec.step(tuple(values[:-1]), values[-1])
        dtype = self.dtypes[names[-1]]
        cells = addresses[-1][..., None] + np.arange(dtype.itemsize)
        self.memories[names[-1]].data[cells] = np.ascontiguousarray(result, dtype).view(np.uint8).reshape(cells.shape)

    def _read(self, name: str, addresses: NDArray[np.int64]) -> NDArray[Any]:
        dtype = self.dtypes[name]
        cells = addresses[..., None] + np.arange(dtype.itemsize)
        values: NDArray[Any] = self.memories[name].data[cells].view(dtype)[..., 0]
        return values

    def independent(
        self, spec: OperationSpec, names: tuple[str, ...], tiles: list[NDArray[np.int64]], moves: list[list[int]]
    ) -> bool:
        """Whether all points of a tile may take a step at once: no point writes what another reads or writes."""
        out = tiles[-1]
        if len(out) == 1:
            return True
        if (
            any(move[-1] for move in moves)
            or int(np.diff(np.sort(out.ravel())).min()) < self.dtypes[names[-1]].itemsize
        ):
            return False
        low, high = self.span(names[-1], out, [0])
        for k, name in enumerate(names[:-1]):
            first, last = self.span(name, tiles[k], [move[k] for move in moves])
            same = (first, last) == (low, high) and self.dtypes[name] == self.dtypes[names[-1]]
            in_place = same and not spec.contracted and np.array_equal(tiles[k] - tiles[k][0], out - out[0])
            if first < high and low < last and not in_place:
                return False
        return True

    def span(self, name: str, tile: NDArray[np.int64], moves: list[int]) -> tuple[int, int]:
        """The absolute addresses between which a tile and its moves lie, end excluded."""
        start = self.memories[name].data.__array_interface__["data"][0]
        low, high = int(tile.min()) + min(moves), int(tile.max()) + max(moves) + self.dtypes[name].itemsize
        return start + low, start + high


def _moved(call: Call, k: int, inner: Sequence[Span], step: Sequence[int]) -> int:
    """Bytes that contracted indices move the k-th operand."""
    return sum(span.axis.strides[call.tensors[k]] * index for span, index in zip(inner, step, strict=True))
