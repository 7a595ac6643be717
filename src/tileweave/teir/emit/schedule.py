"""Choosing tiles: which part of every axis a primitive consumes, and which part the schedule iterates.

Three choosers. `untiled` hands whole roles to a primitive and iterates only batch dims: right for a backend that blocks
for its own caches and registers, and the default of the emitters. `contraction_tiles` and `elementwise_tiles` write the
blocking into the schedule, for backends that run primitives as they stand. They are deterministic rules of thumb: a
contraction tile has about 64 x 256 outputs and 256 contracted steps, so that its panels stay in the caches of one core;
a role takes its fastest dim, and more only while the tile is small; a divisor near the target is preferred, since a
remainder doubles the branches of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["batch", "M", "N", "K", "added"]


@dataclass(frozen=True, slots=True)
class LoopDim:
    """A loop of an operation before it is tiled.

    Args:
        name: the letters of the equation that it stands for.
        extent: at least 2.
        strides: bytes per tensor of the program, in its order.
        role: what it is to the primitive; ``batch`` dims are iterated, and so are those along which results are added.
    """

    name: str
    extent: int
    strides: tuple[int, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class Tiling:
    """How many steps of every dim one primitive takes, and why.

    Args:
        tiles: one per dim: 1 iterates it, its extent consumes it, anything between splits it.
        reasons: sentences for people.
    """

    tiles: tuple[int, ...]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.reasons)


Chooser = Callable[[tuple[LoopDim, ...]], Tiling]
"""What an emitter asks for tiles; a caller may give its own."""


@dataclass(frozen=True, slots=True)
class TileTarget:
    """What a role's tile should be.

    Args:
        size: the number of steps aimed at, all dims of the role together.
        enough: the steps in a role's fastest dims that make further dims unnecessary.
        most: a dim up to this size is consumed whole, and divisors up to it are accepted.
        multiple: of which a tile that does not divide its dim is made.
    """

    size: int
    enough: int
    most: int
    multiple: int


CONTRACTION = {"M": TileTarget(64, 16, 96, 8), "N": TileTarget(256, 32, 384, 16), "K": TileTarget(256, 128, 384, 16)}
TRANSPOSE = {"M": TileTarget(64, 1, 96, 16), "N": TileTarget(64, 1, 96, 16)}
STREAM = {"M": TileTarget(16, 1, 32, 8), "N": TileTarget(8192, 64, 16384, 64)}


def untiled(dims: Sequence[LoopDim]) -> Tiling:
    """Consumes every dim whole, except that batch dims are iterated."""
    iterated = ("batch", "added")
    return Tiling(tuple(1 if dim.role in iterated else dim.extent for dim in dims), ("every role is consumed whole",))


def contraction_tiles(dims: Sequence[LoopDim]) -> Tiling:
    """Tiles for reuse: about 64 x 256 outputs, 256 contracted steps.

    Args:
        dims: outermost first within each role.

    Example:
        >>> m, n = LoopDim("m", 1000, (4000, 0, 4000), "M"), LoopDim("n", 50, (0, 4, 4), "N")
        >>> k = LoopDim("k", 90, (4, 200, 0), "K")
        >>> print(contraction_tiles((m, n, k)))
        M: m in tiles of 50 out of 1000
        N: n whole (50)
        K: k whole (90)
    """
    return tiles_for(dims, CONTRACTION)


def elementwise_tiles(dims: Sequence[LoopDim]) -> Tiling:
    """Square tiles where the operation transposes, long runs where it does not.

    Args:
        dims: outermost first within each role.

    Example:
        >>> m, n = LoopDim("m", 640, (4, 4000), "M"), LoopDim("n", 1000, (2560, 4), "N")
        >>> print(elementwise_tiles((m, n)))
        M: m in tiles of 64 out of 640
        N: n in tiles of 50 out of 1000
    """
    return tiles_for(dims, TRANSPOSE if _transposes(dims) else STREAM)


def tiles_for(dims: Sequence[LoopDim], targets: dict[str, TileTarget]) -> Tiling:
    """Tiles near the targets of each role; dims of other roles are iterated.

    Args:
        dims: outermost first within each role.
        targets: per role.
    """
    tiles = {dim.name: 1 for dim in dims}
    reasons = []
    for role, target in targets.items():
        taken = 1
        words: list[str] = []
        for dim in reversed([dim for dim in dims if dim.role == role]):
            tile = 1 if words and taken >= target.enough else _tile(dim.extent, target, taken)
            tiles[dim.name] = tile
            taken *= tile
            words.append(_say(dim, tile))
        if words:
            reasons.append(f"{role}: " + ", ".join(words))
    iterated = [dim.name for dim in dims if dim.role == "batch"]
    if iterated:
        reasons.append("iterated: " + ", ".join(iterated))
    return Tiling(tuple(tiles[dim.name] for dim in dims), tuple(reasons))


def _transposes(dims: Sequence[LoopDim]) -> bool:
    """Whether the source's fastest dim is not the output's: then M moves along it."""
    speed = {dim.role: abs(dim.strides[0]) for dim in dims if dim.role != "batch"}
    return 0 < speed.get("M", 0) < speed.get("N", 0)


def _tile(extent: int, target: TileTarget, taken: int) -> int:
    """How much of a dim to consume when ``taken`` steps of its role are consumed already."""
    size, most = max(target.size // taken, 1), max(target.most // taken, 1)
    if extent <= most:
        return extent
    if size < 4:
        return 1
    divisors = [d for d in range(max(size // 2, 2), most + 1) if extent % d == 0]
    if divisors:
        # the nearest to the target; among equals a multiple, then the larger
        return min(divisors, key=lambda d: (abs(d - size) > size // 4, d % target.multiple != 0, abs(d - size), -d))
    even = -(-extent // -(-extent // size))
    rounded = -(-even // target.multiple) * target.multiple
    return rounded if rounded <= most else even


def _say(dim: LoopDim, tile: int) -> str:
    if tile == dim.extent:
        return f"{dim.name} whole ({tile})"
    if tile == 1:
        return f"{dim.name} iterated ({dim.extent})"
    rest = dim.extent % tile
    return f"{dim.name} in tiles of {tile} out of {dim.extent}" + (f" and a rest of {rest}" if rest else "")


def fuse_dims(dims: Sequence[LoopDim]) -> tuple[LoopDim, ...]:
    """Fewer dims for the same loops: two dims of a role are one when the outer steps over exactly the inner.

    Example:
        >>> a, b = LoopDim("a", 3, (8, 80), "M"), LoopDim("b", 2, (4, 40), "M")
        >>> fuse_dims((a, b))
        (LoopDim(name='ab', extent=6, strides=(4, 40), role='M'),)
    """
    result = list(dims)
    k = 0
    while k < len(result):
        inner = result[k]
        for outer in result:
            fits = all(s == t * inner.extent for s, t in zip(outer.strides, inner.strides, strict=True))
            if outer is not inner and outer.role == inner.role and fits:
                fused = LoopDim(outer.name + inner.name, outer.extent * inner.extent, inner.strides, inner.role)
                result[k] = fused
                result.remove(outer)
                k = -1
                break
        k += 1
    return tuple(result)
