"""Loops over axes: neighbours that walk like one become one, nests around a body, tasks for the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tileweave.backends.cpu.llvm.ir import Function, Value
from tileweave.teir.merged.form import Mode

__all__ = ["PARALLEL_BYTES", "emit_nest", "emit_points", "run_tasks"]

PARALLEL_BYTES = 256 * 1024
"""Operations that write less than this run on one thread."""


def emit_nest(f: Function, dims: Sequence[Mode], pointers: Sequence[str], body: Callable[[list[str]], None]) -> None:
    """Loops over all axes, outermost first, around ``body``, which gets one address per operand."""
    if not dims:
        body(list(pointers))
        return
    dim = dims[0]

    def inside(index: Value, _: list[str]) -> None:
        moved = [f.at(p, f.mul(index, stride)) for p, stride in zip(pointers, dim.strides, strict=True)]
        emit_nest(f, dims[1:], moved, body)

    f.loop(0, dim.extent, inside)


def emit_points(
    f: Function,
    dims: Sequence[Mode],
    pointers: Sequence[str],
    body: Callable[[Function, list[str], list[Value]], None],
    *,
    parallel: bool,
    words: Sequence[Value] = (),
    last: str = "",
) -> None:
    """All points of some axes, in a function of their own; where they may run at once, as tasks of the pool.

    Args:
        f: the function that has them done; its parameters are ``env`` and ``thread``, among others.
        dims: the axes, outermost first.
        pointers: one address per operand.
        body: takes the function to write to, the operands' addresses at a point, its index along every axis.
        parallel: whether tasks may run at once.
        words: more integers that every point needs; ``body`` finds them after the indices.
        last: an instruction at the end of each task.
    """
    points = prod(dim.extent for dim in dims)
    parallel = parallel and points > 1
    held = [*(("ptr", p) for p in pointers), *(("i64", word) for word in words)]
    frame = f.slot("i64", len(held) + 1)
    for k, (type, value) in enumerate(held):
        f.store(type, value, f.at(frame, 8 + 8 * k), 8)
    shares = f.min(f.mul(f.load("i64", f.at("%env", 24), 8), 8), points) if parallel else 1
    f.store("i64", shares, frame, 8)
    task = f"{f.name}.task"
    if parallel:
        run_tasks(f, task, frame, shares)
    else:
        f.call(task, f"ptr {frame}", "i64 0", "i64 %thread")
    g = Function(f.module, task, [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
    shares = g.load("i64", "%frame", 8)
    found = [g.load(type, g.at("%frame", 8 + 8 * k), 8) for k, (type, _) in enumerate(held)]
    bases, known = found[: len(pointers)], found[len(pointers) :]

    def one(flat: Value, _: list[str]) -> None:
        moved, digits, rest = list(bases), [], flat
        for k, dim in enumerate(reversed(dims)):
            digits.append(g.rem(rest, dim.extent) if k < len(dims) - 1 else rest)
            rest = g.div(rest, dim.extent)
            moved = [g.at(p, g.mul(digits[-1], s)) for p, s in zip(moved, dim.strides, strict=True)]
        body(g, moved, [*reversed(digits), *known])

    g.loop(g.div(g.mul("%task", points), shares), g.div(g.mul(g.add("%task", 1), points), shares), one)
    if last:
        g.emit(last)
    g.ret()


def run_tasks(f: Function, task: str, frame: str, count: Value, thread: str = "%thread") -> None:
    """Run ``task(frame, 0 .. count - 1, thread)`` on the pool that the environment names."""
    pool = f.load("ptr", "%env", 8)
    run = f.load("ptr", f.at("%env", 8), 8)
    threads = f.load("i64", f.at("%env", 24), 8)
    f.call(run, f"ptr {pool}", f"ptr @{task}", f"ptr {frame}", f"i64 {count}", f"i64 {threads}", f"i64 {thread}")
