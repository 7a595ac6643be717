"""Operators on whole regions: what each reads and writes, checked, then computed in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tileweave.kernel.ir import DTYPES, Dtype, Op, Scalar, promote
from tileweave.kernel.meaning import FUNCTIONS, factor, matmul, neutral, reduced, rounded, scaled, scanned
from tileweave.kernel.semantics.access import RegionAccess, refuse
from tileweave.kernel.semantics.clocks import Event, publish
from tileweave.kernel.semantics.extents import follow
from tileweave.kernel.semantics.machine import Frame, Interpreter, RunningBlock
from tileweave.kernel.semantics.tensor_memory import product

Array = np.ndarray[Any, Any]


def operate(machine: Interpreter, op: Op, frame: Frame) -> None:
    """Execute an operator by the threads of a frame."""
    if op.name == "copy_async":
        _copy_async(machine, op, frame)
        return
    if op.name == "gemm" and op.outs[0].tensor.space == "tensor":
        product(machine, op, frame)
        return
    held = machine.held(op)
    out = machine.access(op.outs[0], frame, op.line)
    inputs: list[RegionAccess | Scalar] = []
    for one in op.ins:
        if isinstance(one, Scalar):
            inputs.append(one)
            continue
        access = machine.access(one, frame, op.line)
        if op.name == "gemm" and len(inputs) == 2 and not machine.value(op.option("keep", 1), frame, op.line):  # type: ignore[arg-type]
            inputs.append(access)  # its old value does not count
            continue
        if op.name == "atomic_add" and one is op.ins[0]:
            machine.note_atomic(access, op, frame)
        else:
            machine.note(access, "read", op, frame, held=held)
        inputs.append(access)
    if op.option("accumulate"):
        machine.note(out, "read", op, frame, held=held)
    with np.errstate(all="ignore"):
        values = OPERATIONS[op.name](machine, op, frame, out, inputs)
    machine.note(out, "write", op, frame, held=held)
    read = [(one, "zeros are read") for one in inputs if isinstance(one, RegionAccess)]
    for access, what in [(out, "nothing is written"), *read]:
        if access.empty and access.region.tensor.space in ("global", "symmetric"):
            text = f"{op.line}: {access.region} does not exist in {frame.label}: {what}"
            machine.warnings.setdefault((what, op.line), text)
    follow(machine, op, out, inputs, frame.label)
    out.put(values)


def _number(machine: Interpreter, scalar: Scalar, op: Op, frame: Frame) -> Any:
    return machine.value(scalar.value, frame, op.line)  # type: ignore[arg-type]


def _values(machine: Interpreter, one: RegionAccess | Scalar, op: Op, frame: Frame, to: Dtype) -> Array:
    """An input in the type computed in."""
    if isinstance(one, Scalar):
        return np.asarray(_number(machine, one, op, frame)).astype(to.numpy)
    return rounded(one.values(), to)


def _type(one: RegionAccess | Scalar) -> Dtype:
    return DTYPES[one.dtype] if isinstance(one, Scalar) else one.region.tensor.element


def _copy(machine: Interpreter, op: Op, frame: Frame, out: RegionAccess, ins: list[Any]) -> Array:
    element = out.region.tensor.element
    if op.option("accumulate"):
        kind = promote(element, element)
        return rounded(np.add(rounded(out.values(), kind), rounded(ins[0].values(), kind)), element)
    return rounded(ins[0].values(), element)


def _fill(machine: Interpreter, op: Op, frame: Frame, out: RegionAccess, ins: list[Any]) -> Array:
    element = out.region.tensor.element
    if isinstance(ins[0], Scalar):
        number = _number(machine, ins[0], op, frame)
        kind = np.float64 if isinstance(number, float) else np.bool_ if isinstance(number, bool) else np.int64
        return rounded(np.asarray(number, kind), element)
    return rounded(ins[0].values(), element)


def _iota(machine: Interpreter, op: Op, frame: Frame, out: RegionAccess, ins: list[Any]) -> Array:
    axis = int(op.option("axis", 0))  # type: ignore[arg-type]
    shape = out.region.shape
    start = _number(machine, ins[0], op, frame)
    steps = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return rounded(np.broadcast_to(start + steps, shape), out.region.tensor.element)


def _map(machine: Interpreter, op: Op, frame: Frame, out: RegionAccess, ins: list[Any]) -> Array:
    fn, element = str(op.option("fn")), out.region.tensor.element
    numbers = ins[1:] if fn == "where" else ins
    kind = element
    if element.kind == "pred" and fn not in ("and", "or", "not", "where"):
        kind = _type(next((one for one in numbers if isinstance(one, RegionAccess)), numbers[0]))
        for one in numbers:
            kind = promote(kind, _type(one))
    elif element.kind == "float":
        kind = promote(element, element)
    arrays = [_values(machine, one, op, frame, kind) for one in numbers]
    if fn == "where":
        arrays.insert(0, _values(machine, ins[0], op, frame, DTYPES["pred"]))
    return rounded(np.asarray(FUNCTIONS[fn](*arrays)), element)


def _reduce(machine: Interpreter, op: Op, frame: Frame, out: RegionAccess, ins: list[Any]) -> Array:
    fn, axes = str(op.option("fn")), op.option("axes")
    values, exists = ins[0].values(), ins[0].exists()
    if exists is not None:
        values = np.where(exists, values, np.asarray(neutral(fn, ins[0].region.tensor.element)).astype(values.dtype))
    order = machine.orders.get(op)
    if order is not None:
        return np.asarray(order(ins[0].values(), exists, fn, out.region.tensor.element))
    return reduced(values, fn, axes, out.region.tensor.element)  # type: ignore[arg-type]


def _scan(machine: Interpreter, op: Op, frame: Frame, out: RegionAccess, ins: list[Any]) -> Array:
    return scanned(ins[0].values(), str(op.option("fn")), int(op.option("axis", 0)), out.region.tensor.element)  # type: ignore[arg-type]


def _gemm(machine: Interpreter, op: Op, frame: Frame, out: RegionAccess, ins: list[Any]) -> Array:
    a, b = (factor(one.values(), op.option("precision")) for one in ins[:2])
    if len(ins) == 5:
        a, b = (scaled(one, scales.values()) for one, scales in zip((a, b), ins[3:], strict=True))
    keep = op.option("keep", 1)
    if not machine.value(keep, frame, op.line):  # type: ignore[arg-type]
        return matmul(a, b, np.zeros((), out.region.tensor.element.numpy), out.region.tensor.element)
    c = _values(machine, ins[2], op, frame, out.region.tensor.element) if len(ins) > 2 else np.zeros(())
    c = np.broadcast_to(c, (a.shape[0], b.shape[0]))
    return np.asarray(machine.orders.get(op, matmul)(a, b, c, out.region.tensor.element))


def _atomic(machine: Interpreter, op: Op, frame: Frame, out: RegionAccess, ins: list[Any]) -> Array:
    cell: RegionAccess = ins[0]
    element = cell.region.tensor.element
    old = cell.values().copy()
    cell.put(rounded(old.astype(np.float64 if element.kind == "float" else np.int64)
                     + _values(machine, ins[1], op, frame, element), element))  # fmt: skip
    return old


OPERATIONS: dict[str, Callable[..., Array]] = {
    "copy": _copy, "fill": _fill, "iota": _iota, "cast": _copy, "map": _map, "reduce": _reduce, "scan": _scan,
    "gemm": _gemm, "atomic_add": _atomic, "copy_async": _copy,
}  # fmt: skip
"""Operator -> the values of its output."""


def _copy_async(machine: Interpreter, op: Op, frame: Frame) -> None:
    """A copy in the background: an agent of its own; it knows what its issuer knew, and is known once waited for."""
    source, out = (machine.access(one, frame, op.line) for one in (op.ins[0], op.outs[0]))  # type: ignore[arg-type]
    number = machine.number()
    for agent in frame.agents:
        agent.tick()
    label = f"an asynchronous copy of {frame.label}"
    proxy = source.region.tensor.space == "shared"
    clocks, fenced = [a.known for a in frame.agents], [a.fenced for a in frame.agents]
    reads = Event(((number, 1),), "read", op, label, proxy)
    writes = Event(((number, 1),), "write", op, label, True)
    machine.ledger.read(source, reads, clocks, fenced)
    size = out.region.size * out.region.tensor.element.bits // 8
    for block, target in _targets(machine, op, frame, out):
        if block is not frame.block:
            frame.block.cluster.visit(block.rank, writes, frame.agents, op.line)
        told = block
        if op.option("leader") and frame.block.rank % 2:
            told = frame.block.cluster.blocks[frame.block.rank - 1]
            frame.block.cluster.visit(told.rank, writes, frame.agents, op.line)
        barrier = machine.barrier(op.barrier, frame, op.line, told) if op.barrier is not None else None
        machine.ledger.write(target, writes, clocks, fenced)
        target.put(rounded(source.values(), target.region.tensor.element))
        follow(machine, op, target, [source], label)
        if barrier is not None:
            known, marked = publish(frame.agents, whole=False)
            barrier.bring(size, ({**known, number: 1}, marked), writes)
    if op.barrier is not None:
        return
    frame.block.copies[number] = (writes, True)
    kind = "bulk" if source.region.tensor.space == "shared" else "cp.async"
    if source.region.tensor.space not in ("shared", "global", "symmetric"):
        refuse("completion", f"an asynchronous copy from {source.region.tensor.space} memory", op.line,
               legal="global to shared, or shared to global")  # fmt: skip
    for agent in frame.agents:
        agent.open_copies.setdefault(kind, []).append(number)


def _targets(
    machine: Interpreter, op: Op, frame: Frame, out: RegionAccess
) -> Iterator[tuple[RunningBlock, RegionAccess]]:
    """The blocks of the cluster in whose memory a copy is written: by its mask, or this one."""
    mask = op.option("multicast")
    if not isinstance(mask, int):
        yield frame.block, out
        return
    name, valid = out.region.tensor.name, tuple(b - a for a, b in out.box)
    for block in frame.block.cluster.blocks:
        if mask >> block.rank & 1:
            if name not in block.shared:
                refuse("cluster", f"{block.label} has not come to the declaration of {name}", op.line,
                       threads=frame.label, legal="k.sync(cluster=True) behind the declarations")  # fmt: skip
            yield block, RegionAccess(out.region, block.shared[name], out.begin, valid)
