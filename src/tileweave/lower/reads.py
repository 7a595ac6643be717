"""What a kernel reads: regions of blocks and sources, as views where one block holds them, else as copies.

What is read is said by the plan's tasks (`planner.tasks.Read`), piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from tileweave.backends.base import ELEMENTS, ArrangesState, backend
from tileweave.backends.host import empty, fills_its_memory
from tileweave.errors import RunError
from tileweave.graph import Operation
from tileweave.graph.ir.resolve import view
from tileweave.graph.ops.operators import operator_of
from tileweave.lower import called, ragged
from tileweave.lower.execute import copy
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Read, ReadPiece, Task
from tileweave.space import AffineMap, Box, Projection

Array = np.ndarray[Any, Any]
Block = Array | dict[str, Array]
"""What a task makes: an array, or an array per output where it keeps several."""


def never_written(array: Array) -> bool:
    """Whether an array is read-only, and so is all that it is a view of: such an array is taken for a constant.

    A read-only view of what can be written is none. Who makes an array read-only, and then writes to it by a view of
    before, by making it writable again or through a file that it maps, finds the values of the first run.

    Example:
        >>> x = np.zeros(4)
        >>> never_written(np.broadcast_to(x, (3, 4))), never_written(np.frombuffer(b"1234", np.uint8))
        (False, True)
    """
    held: Any = array
    while held is not None:
        if isinstance(held, np.ndarray):
            written = held.flags.writeable
        else:
            try:
                written = not memoryview(held).readonly
            except (TypeError, ValueError, BufferError):
                written = False  # what gives no buffer is asked for what it holds
        if written:
            return False
        held = getattr(held, "obj" if isinstance(held, memoryview) else "base", None)
    return True


def slices(box: Box) -> Any:
    """A box as an index of an array that starts at the origin; what it gives is an array even at rank 0."""
    return (*(slice(a, b) for a, b in zip(box.start, box.stop, strict=True)), ...)


def block_bytes(block: Block) -> int:
    """The bytes of a block."""
    return sum(array.nbytes for array in block.values()) if isinstance(block, dict) else block.nbytes


def own(made: Mapping[str, Array], outputs: Sequence[str], inputs: Mapping[str, Array]) -> Block:
    """What a kernel made, as a block that holds no other memory than its own: a view would keep an input alive."""
    kept = {}
    taken = {id(_memory(x)) for x in inputs.values()}
    for name in outputs:
        array = np.asarray(made[name])
        alone = fills_its_memory(array) and id(_memory(array)) not in taken
        kept[name] = array if alone else array.copy()
        taken.add(id(_memory(kept[name])))
    return kept if len(kept) > 1 else kept[outputs[0]]


def _memory(array: Array) -> Any:
    """What holds the bytes of an array."""
    return array if array.base is None else array.base


def place(read: Read, piece: ReadPiece) -> Any:
    """Where a piece goes, as an index of an array that holds the whole read."""
    return slices(piece.box.translate([-a for a in read.box.start]))


def view_of(piece: ReadPiece, hold: Box) -> Callable[[Array], Array] | None:
    """From an array that holds a box of what a piece is read from, to the piece's values; None: the array itself."""
    if not piece.shifts:
        return lambda array: view(array, hold, piece.map, piece.box)
    region = piece.box.translate(piece.map.offset)
    if region == hold:
        return None
    index = slices(region.translate([-a for a in hold.start]))
    return lambda array: np.asarray(array[index])


def in_memory_order(piece: ReadPiece) -> bool:
    """Whether a piece is all elements of its block, in their order."""
    if piece.constant or piece.box.size != piece.block.size:
        return False
    part = view_of(piece, piece.block)
    return part is None or bool(part(np.empty(piece.block.shape, np.int8)).flags.c_contiguous)


def constant(piece: ReadPiece, dtype: np.dtype[Any]) -> Array:
    """The values of a piece that nothing holds."""
    held, shape = np.asarray(piece.fill).astype(dtype), piece.box.shape
    made: Array = np.ndarray(shape, dtype, held, 0, (0,) * len(shape))  # `broadcast_to` takes ten times as long
    made.flags.writeable = False
    return made


Held = Callable[[ReadPiece], Block | None]
"""What holds a piece: the block of its task, or, where it is fetched, the region that was read."""
Gather = Callable[[Held, int], tuple[Array, int]]
"""(what holds pieces, threads) -> (the region as one array, not to be written; bytes that were newly made for it)."""


def values(piece: ReadPiece, dtype: np.dtype[Any]) -> Callable[[Block | None], Array]:
    """From what holds a piece to its values, as a view of that; not to be written."""
    if piece.constant:
        fixed = constant(piece, dtype)
        return lambda held: fixed
    found, output = view_of(piece, piece.region if piece.fetched else piece.block), piece.output

    def take(held: Block | None) -> Array:
        if held is None:
            raise RunError("run(plan)", f"the block that holds {piece.box} is gone", legal="a block that is still held")
        array = held[output] if isinstance(held, dict) else held
        return array if found is None else found(array)

    return take


@dataclass(slots=True)
class Taken:
    """What a task took from elsewhere, measured on the arrays.

    Args:
        read: bytes of sources, and of blocks that were spilled.
        moved: bytes of blocks of other machines; what a broadcast repeats counts once.
    """

    read: int = 0
    moved: int = 0

    def counting(self, holds: Held, machine: int, machine_of: Callable[[ReadPiece], int]) -> Held:
        """The same, counting what is taken.

        Args:
            holds: what holds a piece.
            machine: that of the task.
            machine_of: that of what holds a piece; -1 for a source.
        """

        def held(piece: ReadPiece) -> Block | None:
            block, maker = holds(piece), machine if piece.constant else machine_of(piece)
            if block is not None and (maker < 0 or piece.spilled):
                self.read += block_bytes(block)
            if block is not None and maker not in (-1, machine):
                array = values(piece, np.dtype(bool))(block)
                moving = (n for n, stride in zip(array.shape, array.strides, strict=True) if stride)
                self.moved += array.itemsize * prod(moving) * (array.size > 0)
            return block

        return held


def gather(read: Read) -> Gather:
    """What reads a region: a view where one block or source holds it, else a copy of the pieces."""
    takes = [(piece, values(piece, read.dtype)) for piece in read.pieces]
    if len(takes) == 1:
        piece, take = takes[0]
        if not piece.fetched:
            return lambda held, threads: (take(held(piece)), 0)

        def single(held: Held, threads: int) -> tuple[Array, int]:
            block = held(piece)
            return take(block), fresh_bytes(piece, block)

        return single
    shape, dtype, places = read.box.shape, read.dtype, [place(read, piece) for piece in read.pieces]

    def several(held: Held, threads: int) -> tuple[Array, int]:
        out = empty(shape, dtype)
        fresh = 0
        for where, (piece, take) in zip(places, takes, strict=True):
            block = held(piece)
            fresh = max(fresh, fresh_bytes(piece, block))
            copy(out[where], take(block), threads=threads)
        return out, out.nbytes + fresh

    return several


def put_together(read: Read, pieces: Sequence[Array]) -> Array:
    """The region that pieces fill, from an array for each; that of a single piece itself."""
    if len(pieces) == 1:
        return pieces[0]
    whole = np.empty(read.box.shape, read.dtype)
    for piece, values in zip(read.pieces, pieces, strict=True):
        whole[place(read, piece)] = values
    return whole


def fresh_bytes(piece: ReadPiece, block: Block | None) -> int:
    """The bytes that were newly made to read a piece of a source or of a file of blocks."""
    return block.nbytes if isinstance(block, np.ndarray) and piece.fetched and block.base is None else 0


def bounds(boxes: Sequence[Box]) -> Box:
    """The least box that holds all of them."""
    start = [min(box.start[k] for box in boxes) for k in range(boxes[0].rank)]
    stop = [max(box.stop[k] for box in boxes) for k in range(boxes[0].rank)]
    return Box.between(start, stop)


def row_major(block: Block) -> Block:
    """A block in row-major order."""
    if isinstance(block, dict):
        return {name: np.ascontiguousarray(array) if array.ndim else array for name, array in block.items()}
    return block if block.flags.c_contiguous else np.ascontiguousarray(block)


def pointwise(step: Step) -> frozenset[str]:
    """The inputs of which a task reads the element at the place of each that it makes, of the type that it makes."""
    node = cast("Operation", step.node)
    signature = node.signature if step.stage == "block" else None
    if signature is None or len(step.outputs) != 1 or not (node.operator == "fused" or operator_of(node).arity):
        return frozenset()
    straight = AffineMap.identity(len(signature.dims))

    def in_place(projection: Projection) -> bool:
        return projection.map == straight and all(n == 1 for n in projection.shape)

    (made,) = step.outputs
    dtype, kept = node.output_types[made].dtype, in_place(signature.output(made))
    return frozenset(name for name, x in node.inputs if kept and x.dtype == dtype and in_place(signature.input(name)))


def written_over(step: Step, names: Collection[str], task: Task) -> list[ReadPiece]:
    """The blocks that a task may write over as it reads them: what it updates, or inputs that are read `pointwise`."""
    if updates(step, task):
        piece = task.reads[0].pieces[0]
        others = [other.task for read in task.reads[1:] for other in read.pieces]
        fits = piece.task >= 0 and piece.whole and piece.shifts and piece.block.shape == task.out.shape
        return [piece] if fits and piece.task not in others else []
    first = [read.pieces[0] for read in task.reads if len(read.pieces) == 1 and read.name in names]
    readers = [piece.task for read in task.reads for piece in read.pieces]
    return [piece for piece in first if piece.task >= 0 and piece.whole and readers.count(piece.task) == 1]


def updates(step: Step, task: Task) -> bool:
    """Whether a task changes some elements of its first input, where that lies if nobody else reads it."""
    node = cast("Operation", step.node)
    if step.stage != "block" or len(node.outputs) != 1 or not task.reads:
        return False
    if step.kernel.backend and not called.takes(node):
        return False
    operator, first = operator_of(node), node.inputs[0][1]
    same = first.type == node.output_types[step.outputs[0]] and task.reads[0].name == node.inputs[0][0]
    some = operator.into is not None and not operator.arity and node.operator != "fused"
    return some and same and len(task.reads[0].pieces) == 1


def has_place(step: Step, task: Task) -> bool:
    """Whether a block that no kernel makes has a place all the same: one that `updates`, or of few elements, which
    NumPy writes there sooner than into a new array."""
    node = cast("Operation", step.node)
    if step.stage != "block" or step.kernel.backend or len(node.outputs) != 1 or not 0 < task.out.size < ELEMENTS:
        return step.stage != "store" and updates(step, task)
    return operator_of(node).into is not None


def is_call(step: Step, task: Task) -> bool:
    """Whether a task may be computed by a backend's code for any sizes: see `called`."""
    node = cast("Operation", step.node)
    if step.stage != "block" or not step.kernel.backend or not called.takes(node) or len(task.outs) != 1:
        return False
    return bool(task.out.size) and all(read.box.size and not read.partial for read in task.reads)


def call_of(
    step: Step, given: Sequence[Array], held: Sequence[Array | None], made: Array, threads: int
) -> tuple[Any | None, list[Array | None]]:
    """(what `Calls.add` takes for a task that `is_call`, arrays to give instead of operands); each may be None.

    Args:
        step: of the task.
        given: arrays that lie as the operands do.
        held: the operands that are the same in every run, None for the others.
        made: an array that lies as the result does.
        threads: that it may use.
    """
    node, by = cast("Operation", step.node), backend(step.kernel.backend)
    new = [None if array is None else np.ascontiguousarray(array) for array in held]
    arrays = [x if array is None else array for x, array in zip(given, new, strict=True)]
    call = called.caller(node, step.outputs[0], [*arrays, made], by, threads)
    if isinstance(call, ArrangesState) and new[1] is not None:
        new[1] = call.arranged(new[1], made.shape[2])
    return call, new


def is_native(step: Step, task: Task) -> bool:
    """Whether a backend's kernel computes a task."""
    if (
        step.stage == "store"
        or not step.kernel.backend
        or ragged.takes(cast("Operation", step.node))
        or called.takes(cast("Operation", step.node))
        or len(task.outs) != 1
        or (step.stage != "block" and any(read.partial for read in task.reads))
    ):
        return False
    return bool(task.out.size) and all(read.box.size for read in task.reads)
