"""Sums over the devices of a mesh by ``multimem.ld_reduce``: one load of a multicast address, which the switch answers.

A multicast address stands for the same place in the memory of all devices. Threads wrote that memory through other
addresses, so a `fence.proxy.alias` lies between their writes and such a load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from tileweave.errors import BackendError
from tileweave.index import ExprLike, constant_of, simplify
from tileweave.kernel.atoms import atom
from tileweave.kernel.atoms.movement import multicast_name, multicast_widths
from tileweave.kernel.dispatch.context import Context, slot
from tileweave.kernel.dispatch.copies import memory_at
from tileweave.kernel.dispatch.layouts import places
from tileweave.kernel.dispatch.layouts.orders import DeviceOrder
from tileweave.kernel.dispatch.layouts.registers import Holding, blocked, holding
from tileweave.kernel.ir import Candidate, Op, Region
from tileweave.kernel.threads import LANE, Buffer


def over_devices(context: Context, op: Op) -> bool:
    """Whether a reduction is of memory that all devices of a mesh reach, along what lies over them."""
    source, axes = op.ins[0], op.option("axes")
    if context.devices < 2 or not isinstance(source, Region) or source.tensor.space != "symmetric":
        return False
    spread = [any(stride for _, stride in row) for row in places.rows_of(source.tensor, "gpu")]
    return isinstance(axes, tuple) and any(spread[source.dims[d]] for d in axes)


def problem(context: Context, op: Op) -> str:
    """Why a reduction over devices is none of ``multimem.ld_reduce``; empty if it is one."""
    source, axes, fn = op.ins[0], op.option("axes"), str(op.option("fn"))
    if not over_devices(context, op) or not isinstance(source, Region) or not isinstance(axes, tuple):
        return "not along the devices of a mesh, in memory that all of them reach"
    tensor, out = source.tensor, op.outs[0].tensor
    widths = multicast_widths(tensor.dtype)
    name = multicast_name(fn, tensor.dtype, widths[0]) if widths else None
    if name is None:
        return f"no {fn} of {tensor.dtype}" + (", which would drop NaN" if widths and fn != "mul" else "")
    row = atom(name)
    if not row.runs_on(context.arch):
        return f"needs {' or '.join(row.arch)}, not {context.arch}"
    if out.dtype != tensor.dtype:
        return f"terms of {tensor.dtype} are added to {tensor.dtype}, and {out.dtype} is wanted: use='multimem' of sum"
    if len(axes) > 1:
        return "more is combined than devices"
    dim, devices = source.dims[axes[0]], context.devices
    if tensor.shape[dim] != devices or constant_of(simplify(source.begin[dim])) != 0 or source.extent[dim] != devices:
        return f"not of all {devices} devices: a multicast address is of all"
    on = [constant_of(simplify(places.device(tensor, _at(tensor.rank, dim, d)))) for d in range(devices)]
    others = [row for d, row in enumerate(places.rows_of(tensor, "gpu")) if d != dim]
    if sorted(-1 if d is None else d for d in on) != list(range(devices)) or any(s for row in others for _, s in row):
        return "a device has other elements than the others: a multicast address is of the same place in all"
    if source.mask[dim] != devices or (source.skip and source.skip[dim] != 0):
        return "not all devices have a term"
    if places.vector(_one(source, dim), widths[0]) < widths[0]:
        return f"runs of fewer than {widths[0]} aligned elements"
    return ""


def _at(rank: int, dim: int, index: int) -> tuple[int, ...]:
    return tuple(index if d == dim else 0 for d in range(rank))


def _one(source: Region, dim: int) -> Region:
    """What one device has of the terms."""
    extent = tuple(1 if d == dim else n for d, n in enumerate(source.extent))
    mask = tuple(1 if d == dim else n for d, n in enumerate(source.mask))
    return replace(source, extent=extent, mask=mask)


def _width(held: Holding, one: Region) -> int:
    """Elements that a load may take."""
    at = places.fastest(one)
    return gcd(places.vector(one, max(multicast_widths(one.tensor.dtype))), held.run(at) if at is not None else 1)


def _holdings(context: Context, out: Region, one: Region) -> Iterator[Holding]:
    """How the result may lie: as it is wanted, else along the memory."""
    if out.tensor.space == "register" and out.shape == out.tensor.shape and out.dims == tuple(range(out.tensor.rank)):
        yield context.holdings[out.tensor.name]
    warps = max(1, context.threads.warps)
    layout, padded = blocked(one.shape, warps, places.vector(one, max(multicast_widths(one.tensor.dtype))))
    yield holding(layout, padded, warps)


def reduce(context: Context, op: Op) -> tuple[Buffer, Holding] | None:
    """Lowers a reduction over devices, if it is one of ``multimem.ld_reduce``: the registers, and how they lie.

    Raises:
        BackendError: it is asked for, and does not fit; says why.
    """
    asked, why = op.option("use"), problem(context, op)
    if (why and asked == "multimem") or (asked == "peers" and not over_devices(context, op)):
        raise BackendError(f"sum(.., use={asked!r})", why, inputs={"line": str(op.line)}, legal="another, or no use=")
    if why or asked not in (None, "multimem"):
        return None
    source, fn, axes = op.ins[0], str(op.option("fn")), op.option("axes")
    if not isinstance(source, Region) or not isinstance(axes, tuple):
        raise TypeError(type(source).__name__)
    dtype, one = source.tensor.dtype, _one(source, source.dims[axes[0]])
    held, width, name = next(
        (held, width, name)
        for held in _holdings(context, op.outs[0], one)
        if (name := multicast_name(fn, dtype, width := _width(held, one))) is not None
    )
    result = context.registers("sum" if fn == "add" else fn, dtype, held.slots)
    memory = context.multicast(source.tensor)

    def load(v: ExprLike) -> None:
        place = held.coordinates(context.threads.warp, LANE, v * width)
        where = replace(memory_at(context, one, place), buffer=memory, device=0)
        context.instruction(
            name, slot(result, v * width, width), where, mask=places.inside(one, place, held.shape), fill=0
        )

    context.instruction("fence.proxy.alias")
    context.loop(held.slots // width, load)
    devices = f"{context.devices} devices"
    taken = Candidate("multimem", True, f"{width} element{'s' * (width > 1)} of {devices} a load")
    context.choose(
        op, name, taken, Candidate("peers", False, f"a load of each of {devices}"), order=DeviceOrder(axes[0])
    )
    return result, held


def apart(context: Context, op: Op) -> tuple[Candidate, ...]:
    """Why a reduction that loads each device's term is none of ``multimem.ld_reduce``."""
    if not over_devices(context, op):
        return ()
    return (Candidate("multimem", False, problem(context, op) or f"use={op.option('use')!r} is asked for"),)
