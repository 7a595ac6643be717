"""Choosing tiles: which part of every axis a primitive consumes, and which part the schedule iterates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Dim", "Tiling", "choose", "untiled"]

Role = Literal["batch", "M", "N", "K"]


@dataclass(frozen=True, slots=True)
class Dim:
    """A loop of an operation before it is tiled.

    Args:
        name: the letters of the equation that it stands for.
        extent: at least 2.
        strides: bytes per tensor of the program, in its order.
        role: what it is to the primitive; ``batch`` dims are iterated.
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


def untiled(dims: Sequence[Dim]) -> Tiling:
    """Consumes every dim whole, except that batch dims are iterated."""
    return Tiling(tuple(1 if dim.role == "batch" else dim.extent for dim in dims))


def choose(dims: Sequence[Dim]) -> Tiling:
    """The tiling that emitters use."""
    return untiled(dims)
