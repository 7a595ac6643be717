"""Loops over axes: neighbours that walk like one become one, nests around a body, tasks for the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tileweave.backends.cpu.ir import Function, Value
from tileweave.backends.cpu.plan import Dim

__all__ = ["emit_nest", "fuse", "run_tasks"]


def fuse(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """Neighbours that together walk like one axis, for every operand, become one."""
    fused: list[Dim] = []
    for dim in dims:
        if fused and all(a == dim.extent * b for a, b in zip(fused[-1].strides, dim.strides, strict=True)):
            fused[-1] = Dim(fused[-1].extent * dim.extent, dim.strides)
        else:
            fused.append(dim)
    return tuple(fused)


def emit_nest(f: Function, dims: Sequence[Dim], pointers: Sequence[str], body: Callable[[list[str]], None]) -> None:
    """Loops over all axes, outermost first, around ``body``, which gets one address per operand."""
    if not dims:
        body(list(pointers))
        return
    dim = dims[0]

    def inside(index: Value, _: list[str]) -> None:
        moved = [f.at(p, f.mul(index, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
        emit_nest(f, dims[1:], moved, body)

    f.loop(0, dim.extent, inside)


def run_tasks(f: Function, task: str, frame: str, count: Value, thread: str = "%thread") -> None:
    """Run ``task(frame, 0 .. count - 1, thread)`` on the pool that the environment names."""
    pool = f.load("ptr", "%env", 8)
    run = f.load("ptr", f.at("%env", 8), 8)
    threads = f.load("i64", f.at("%env", 24), 8)
    f.call(run, f"ptr {pool}", f"ptr @{task}", f"ptr {frame}", f"i64 {count}", f"i64 {threads}", f"i64 {thread}")
