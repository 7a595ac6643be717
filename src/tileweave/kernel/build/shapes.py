"""Shapes, types and boxes that operators of a scope make of their operands'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from tileweave.index import bounds
from tileweave.kernel.ir import DTYPES, Number, Region, Scope
from tileweave.kernel.ir.values import WARP_LANES


def missing(scope: Scope, here: Scope | None) -> dict[str, object]:
    """A row of an error: which threads of a scope do not execute what all of them must."""
    if here is None or any(not isinstance(v, int) for one in (scope, here) for _, v in one.layout.offset.terms):
        return {}
    apart = sorted(scope.members() - here.members())
    if not apart:
        return {}
    whole = len(apart) % WARP_LANES == 0
    first, last, kind = (
        (apart[0] // WARP_LANES, apart[-1] // WARP_LANES, "warp") if whole else (apart[0], apart[-1], "thread")
    )
    return {"missing": f"{kind} {first}" if first == last else f"{kind}s {first}..{last}"}


def sum_type(dtype: str) -> str:
    """The type of a sum: 32 bits at least."""
    one = DTYPES[dtype]
    return dtype if one.bits >= 32 else "f32" if one.kind == "float" else "s32"


def flag(flags: Any, own: Number, index: tuple[Any, ...]) -> Region:
    """One flag of a tensor's tiles, of one device where there is a mesh."""
    ones = (1,) * flags.rank
    begin = (own, *index) if flags.space == "symmetric" else tuple(index)
    return Region(flags, begin, ones, ones, ())


def as_wide(region: Region, padded: Region) -> Region:
    """The region as wide as a register tile that is padded to its threads and whose elements all fit the region."""
    shape = list(region.shape)
    for d, (extent, valid) in enumerate(zip(padded.shape, padded.valid, strict=True)):
        most = bounds(valid)[1]
        if extent > shape[d] and most is not None and most <= shape[d]:
            shape[d] = extent
    return widened(region, tuple(shape))


Asked = tuple[int | None, ...]
"""The extents with which a value was asked for, before registers were padded to their threads; None: any."""


def asked(region: Region, loaded: Mapping[str, Asked]) -> Asked:
    """The extents with which a region was asked for.

    Args:
        region: any.
        loaded: register tensor -> the extents of what was loaded into it, or of what it was computed from.
    """
    if region.tensor.space != "register":
        return region.shape
    shape = loaded.get(region.tensor.name)
    if shape is None or region.extent != region.tensor.shape:
        return (None,) * len(region.shape)
    return tuple(shape[d] for d in region.dims)


def shown(region: Region, loaded: Mapping[str, Asked]) -> tuple[int, ...]:
    """A region's shape as messages give it."""
    wanted = asked(region, loaded)
    return tuple(e if w is None or e == 1 else w for w, e in zip(wanted, region.shape, strict=True))


def common(regions: Sequence[Region], loaded: Mapping[str, Asked]) -> Asked | None:
    """The extents with which elementwise operands were asked for; None: two of them with different ones."""
    made: list[int | None] = [None] * max(len(one.shape) for one in regions)
    for one in regions:
        for d, (extent, wanted) in enumerate(zip(one.shape, asked(one, loaded), strict=True)):
            if wanted is not None and extent != 1:
                if made[d] not in (None, wanted):
                    return None
                made[d] = wanted
    return tuple(made)


def fits(out: Region, source: Region, loaded: Mapping[str, Asked]) -> bool:
    """Whether a value has the extents of where it is copied, those asked for or those that it was padded to."""
    wanted = asked(source, loaded)
    return len(wanted) != len(out.shape) or all(
        w is None or e == 1 or o in (w, e) for w, o, e in zip(wanted, out.shape, source.shape, strict=True)
    )


def even(extent: int, others: int, threads: int) -> int:
    """The least extent from this one on that spreads evenly: the elements divide the threads, or these them.

    A tile of several rows keeps its extent where the threads are no power of two: most of them may be those of a ring,
    and 384 threads would make 129 columns of 128.
    """
    if others > 1 and threads & (threads - 1):
        return extent
    step = threads // gcd(threads, others)
    whole = -(-extent // step) * step
    return next((e for e in range(extent, whole) if others * e < threads and threads % (others * e) == 0), whole)


def same_depth(a: Region, b: Region) -> tuple[Region, Region]:
    """The factors of a product with equal extents along k, where one is padded to its threads."""
    if not a.shape or not b.shape or a.shape[-1] == b.shape[-1]:
        return a, b
    deep, shallow = (a, b) if a.shape[-1] > b.shape[-1] else (b, a)
    most = bounds(deep.valid[-1])[1]
    if most is None or most > shallow.shape[-1]:
        return a, b  # of different depths, which is refused
    depth = deep.shape[-1]
    return widened(a, (*a.shape[:-1], depth)), widened(b, (*b.shape[:-1], depth))


def widened(region: Region, shape: tuple[int, ...]) -> Region:
    """The region with greater extents, masked as before: what is beyond does not exist."""
    extent = list(region.extent)
    for d, size in zip(region.dims, shape, strict=True):
        extent[d] = size
    if region.tensor.space == "register" and any(e > s for e, s in zip(extent, region.tensor.shape, strict=True)):
        return region
    return replace(region, extent=tuple(extent))
