"""Loops over axes: neighbours that walk like one become one, nests around a body, tasks for the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tileweave.backends.cpu.llvm.ir import Function, Value
from tileweave.index.sizes import plain
from tileweave.teir.merged.form import Mode

PARALLEL_BYTES = 256 * 1024
"""Operations that write less than this run on one thread."""


def constants(dims: Sequence[Mode]) -> tuple[Mode, ...]:
    """Axes with sizes that are constants of the text."""
    return tuple(Mode(plain(dim.extent), tuple(map(plain, dim.strides))) for dim in dims)


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


def digits_of(f: Function, dims: Sequence[Mode], index: Value) -> list[Value]:
    """The index along every axis of a flat index, fastest axis first."""
    digits, rest = [], index
    for dim in dims[:-1]:
        digits.append(f.rem(rest, dim.extent))
        rest = f.div(rest, dim.extent)
    return [*digits, rest] if dims else []


def next_digits(f: Function, dims: Sequence[Mode], digits: Sequence[Value], goes_on: Value = 1) -> list[Value]:
    """The index behind, without a division: it goes on in the fastest axis, and at its end in the next one."""
    found: list[Value] = []
    carry: Value = goes_on if isinstance(goes_on, int) else f.value(f"zext i1 {goes_on} to i64")
    for dim, digit in zip(dims, digits, strict=True):
        more = f.add(digit, carry)
        if len(found) == len(dims) - 1:
            found.append(more)
            break
        over = f.compare("eq", more, dim.extent)
        found.append(f.value(f"select i1 {over}, i64 0, i64 {more}"))
        carry = f.value(f"zext i1 {over} to i64")
    return found


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
    frame = f.slot("i64", len(held) + 2)
    f.store("ptr", "%env", frame, 8)
    for k, (type, value) in enumerate(held):
        f.store(type, value, f.at(frame, 16 + 8 * k), 8)
    shares = f.min(f.mul(f.load("i64", f.at("%env", 24), 8), 8), points) if parallel else 1
    f.store("i64", shares, f.at(frame, 8), 8)
    task = f"{f.name}.task"
    if parallel:
        run_tasks(f, task, frame, shares)
    else:
        f.call(task, f"ptr {frame}", "i64 0", "i64 %thread")
    g = Function(f.module, task, [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
    shares = g.load("i64", g.at("%frame", 8), 8)
    found = [g.load(type, g.at("%frame", 16 + 8 * k), 8) for k, (type, _) in enumerate(held)]
    bases, known = found[: len(pointers)], found[len(pointers) :]

    inner = list(reversed(dims))

    def one(_: Value, digits: list[str]) -> list[Value]:
        moved = list(bases)
        for digit, dim in zip(digits, inner, strict=True):
            moved = [g.at(p, g.mul(digit, s)) for p, s in zip(moved, dim.strides, strict=True)]
        body(g, moved, [*reversed(digits), *known])
        return next_digits(g, inner, digits)

    first, end = (g.div(g.mul(task, points), shares) for task in ("%task", g.add("%task", 1)))
    g.loop(first, end, one, carry=[("i64", digit) for digit in digits_of(g, inner, first)])
    if last:
        g.emit(last)
    g.ret()


def run_tasks(f: Function, task: str, frame: str, count: Value, thread: str = "%thread") -> None:
    """Run ``task(frame, 0 .. count - 1, thread)`` on the pool that the environment names."""
    pool = f.load("ptr", "%env", 8)
    run = f.load("ptr", f.at("%env", 8), 8)
    threads = f.load("i64", f.at("%env", 24), 8)
    f.call(run, f"ptr {pool}", f"ptr @{task}", f"ptr {frame}", f"i64 {count}", f"i64 {threads}", f"i64 {thread}")
