"""Control flow of a trace: loops over one-shot iterators, bodies under a condition, and locals that were rebound."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tileweave.errors import VerifyError
from tileweave.index import Expr
from tileweave.kernel.build.recorder import Recorder, shown_path, user_frame
from tileweave.kernel.build.views import View, as_number
from tileweave.kernel.ir import For, Line, Number, Op, Region, When, While

_INDICES = ("index", "value", "rank", "gpu")
"""Attributes of scopes, variables and kernels that are indices."""


class Filling:
    """The stage of a ring that is being filled: copies complete on its barrier."""

    def __init__(self, full: Region, pair: bool = False) -> None:
        self.full = full
        self.pair = pair  # it completes on the barrier of the first of two blocks
        self.bytes = 0
        self.shared_by = 0  # blocks of the cluster that fill each other's stage


def filling(recorder: Recorder) -> Filling | None:
    """The stage being filled, if there is one."""
    found = getattr(recorder, "stage", None)
    return found if isinstance(found, Filling) else None


class _Bound(NamedTuple):
    """What a local name, or an element of the container that it holds, is bound to."""

    value: Any
    region: Region | None


def bound(frame: FrameType) -> dict[str, _Bound]:
    """The caller's locals that a traced body must not lose: traced values, indices, plain numbers."""
    found = {}
    for name, value in list(frame.f_locals.items()):
        for key, one in _parts(name, value):
            if isinstance(one, View | Expr | int | float | bool):
                found[key] = _Bound(one, one.region if isinstance(one, View) else None)
    return found


def traced(recorder: Recorder, frame: FrameType) -> None:
    """What the caller's locals say at the end of a traced body: names of tensors; and an index compared by ``==``.

    Python asks ``i == 3`` of an index whether both are the same expression, which is False whatever i will be.
    """
    recorder.name_from(frame.f_locals)
    for number, sides, text in _equalities(frame.f_code):
        if any(map(partial(_is_index, frame), sides)) and not any(map(partial(_is_unknown, frame), sides)):
            recorder.refuse(
                text, "Python compares the expressions of indices here, not the values that they will have",
                legal="tk.equal(a, b), tk.unequal(a, b)", line=Line(shown_path(frame.f_code.co_filename), number),
            )  # fmt: skip


@lru_cache(maxsize=256)
def _equalities(code: CodeType) -> tuple[tuple[int, tuple[ast.expr, ...], str], ...]:
    """Line, operands and text of each ``==`` and ``!=`` of a function, those of functions in it left out."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return ()
    found, stack = [], list(ast.iter_child_nodes(tree.body[0])) if tree.body else []
    while stack:
        node = stack.pop()
        if isinstance(
            node, ast.FunctionDef | ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.DictComp | ast.SetComp
        ):
            continue
        if isinstance(node, ast.Compare) and all(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops):
            found.append((first + node.lineno - 1, (node.left, *node.comparators), ast.unparse(node)))
        stack += ast.iter_child_nodes(node)
    return tuple(sorted(found, key=lambda row: row[0]))


def _is_index(frame: FrameType, node: ast.expr) -> bool:
    """Whether an operand is an index that is not known, or arithmetic with one."""
    if isinstance(node, ast.Name):
        return isinstance(frame.f_locals.get(node.id), Expr)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _INDICES:
        try:
            return isinstance(getattr(frame.f_locals.get(node.value.id), node.attr, None), Expr)
        except VerifyError:
            return False
    return isinstance(node, ast.BinOp) and (_is_index(frame, node.left) or _is_index(frame, node.right))


def _is_unknown(frame: FrameType, node: ast.expr) -> bool:
    """Whether an operand may be a tensor, whose ``==`` is an operator."""
    if isinstance(node, ast.BinOp):
        return _is_unknown(frame, node.left) or _is_unknown(frame, node.right)
    known = isinstance(node, ast.Name) and isinstance(frame.f_locals.get(node.id), Expr | int)
    return not (known or isinstance(node, ast.Constant) or _is_index(frame, node))


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        yield from ((f"{name}[{number}]", one) for number, one in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", one) for key, one in value.items())
    else:
        yield name, value


def _rebound(recorder: Recorder, before: dict[str, _Bound], frame: FrameType) -> Iterator[tuple[str, _Bound, Any]]:
    now = {key: one for name, value in list(frame.f_locals.items()) for key, one in _parts(name, value)}
    for name, old in before.items():
        if isinstance(old.value, Expr) and recorder.has_ended(old.value):
            continue  # the counter of a loop, or a value read in a body, that has ended
        if name in now and now[name] is not old.value:
            same = isinstance(old.value, int | float) and type(old.value) is type(now[name])
            if not (same and old.value == now[name]):
                yield name, old, now[name]


def refuse_rebinding(recorder: Recorder, before: dict[str, _Bound], frame: FrameType, what: str) -> None:
    """Raise where the body gave a name of before another value that would be lost behind it."""
    for name, old, new in _rebound(recorder, before, frame):
        if isinstance(old.value, View) and recorder.home.get(old.value.region.tensor.name) not in recorder.bodies[:-1]:
            continue  # what it held had ended already
        if (
            isinstance(old.value, View)
            and isinstance(new, View)
            and recorder.home.get(new.region.tensor.name) in recorder.bodies[:-1]
        ):
            continue  # what it holds now was there before: no value is lost
        if not isinstance(old.value, View) and not isinstance(new, View | Expr):
            continue  # plain Python around a body that runs once
        recorder.refuse(
            what, f"{name!r} is bound to another value inside, which would be lost behind it",
            legal=f"declare it before, and scope.copy({name}, ..) inside", rule="carried",
        )  # fmt: skip


def carried(recorder: Recorder, before: dict[str, _Bound], frame: FrameType) -> None:
    """Write back what a loop's body bound anew: the next iteration, and the code behind, see the new value."""
    line = recorder.line()
    moves: list[tuple[str, View, View]] = []
    for name, old, new in _rebound(recorder, before, frame):
        if isinstance(old.value, View):
            home = recorder.home.get(old.value.region.tensor.name)
            if home not in recorder.bodies[:-1]:
                continue  # the name held something that had ended: it is a temporary
        elif not isinstance(new, View | Expr) and not isinstance(old.value, int | float):
            continue
        problem = _problem(recorder, old, new, before, name)
        if problem:
            recorder.refuse(
                "a traced loop", f"{name!r} is bound anew in its body, {problem}", line=line,
                legal="storage made before the loop and scope.copy, or k.var for an index", rule="carried",
            )  # fmt: skip
        moves.append((name, old.value, new))
    for _, old_view, new_view in moves:
        recorder.emit(Op("copy", (old_view.region,), (new_view.region,), line=line))
    for _, old_view, new_view in moves:
        new_view.region = old_view.region


def _problem(recorder: Recorder, old: _Bound, new: Any, before: dict[str, _Bound], name: str) -> str:
    if not isinstance(old.value, View) or not isinstance(new, View):
        return "and the body is traced once: no number of it changes from one iteration to the next"
    if any(new is other.value for other in before.values()):
        return f"to {new}, which another name holds"
    if any(other.value is old.value for key, other in before.items() if key != name):
        return f"but another name holds the same tensor {old.value}"
    home = recorder.home.get(new.region.tensor.name)
    if home is not recorder.bodies[-1]:
        return f"to {new}, which was not made in the body itself"
    if old.value.shape != new.shape or old.value.dtype != new.dtype:
        return f"from {old.value.dtype}{list(old.value.shape)} to {new.dtype}{list(new.shape)}"
    if old.value.region.tensor.space != "register":
        return f"but it is in {old.value.region.tensor.space} memory"
    return ""


def loop(recorder: Recorder, bounds: tuple[Any, ...], stages: int, unroll: bool) -> Iterator[Expr]:
    """A loop whose body is traced once."""
    where = f"range({', '.join(map(str, bounds))})"
    line = recorder.line()
    if not 1 <= len(bounds) <= 3 or any(isinstance(b, View | float | bool) for b in bounds):
        recorder.refuse(where, "the bounds are no indices", legal="range(stop), range(start, stop[, step])")
    start, stop, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    start, stop, step = as_number(start), as_number(stop), as_number(step)
    if not isinstance(step, int) or step < 1 or type(stages) is not int or stages < 1:
        recorder.refuse(where, f"step {step}, stages {stages}", legal="positive integers")
    symbol = recorder.counter("i", stop, start)
    return _loop(recorder, symbol, (start, stop, step), stages, unroll, line)


def _loop(
    recorder: Recorder, symbol: Expr, bounds: tuple[Number, Number, Number], stages: int, unroll: bool, line: Any
) -> Iterator[Expr]:
    frame = user_frame()
    traced(recorder, frame)
    before = bound(frame)
    depth = len(recorder.bodies)
    with recorder.body(recorder.scope) as body:
        try:
            yield symbol
        except GeneratorExit:
            recorder.poison = recorder.error(
                "a traced loop", "Python's own break, return or an exception left it after one trace of its body",
                legal="scope.break_() under k.when(condition)", line=line,
            )  # fmt: skip
            raise
        if len(recorder.bodies) != depth + 1:
            recorder.refuse("a traced loop", "a scope that was opened in its body is still open", line=line)
        traced(recorder, frame)
        targets = {key for key, one in bound(frame).items() if one.value is symbol}
        carried(recorder, {key: one for key, one in before.items() if key not in targets}, frame)
    recorder.ended.add(symbol)
    recorder.emit(For(symbol, *bounds, body.closed(), stages, unroll, line=line))


@contextmanager
def while_(recorder: Recorder, condition: Any) -> Iterator[Any]:
    """A loop under a condition over indices that the body changes by `Var.set`."""
    line = recorder.line()
    if not isinstance(condition, Expr) or not condition.is_condition:
        recorder.refuse("k.while_(condition)", f"{condition!r} is no condition on indices", legal="k.while_(n < 4)")
    frame = user_frame()
    traced(recorder, frame)
    before = bound(frame)
    with recorder.body(recorder.scope) as body:
        yield recorder.scope
        traced(recorder, frame)
        carried(recorder, before, frame)
    recorder.emit(While(condition, body.closed(), line=line))


@contextmanager
def under(recorder: Recorder, condition: Any) -> Iterator[Any]:
    """A body under a condition."""
    line = recorder.line()
    if isinstance(condition, View):
        recorder.refuse(
            "k.when(condition)", f"{condition} is a tensor", legal="scope.where(condition, a, b) or scope.read(element)"
        )  # fmt: skip
    if not isinstance(condition, Expr | bool):
        recorder.refuse("k.when(condition)", f"{condition!r} is no condition", legal="k.when(i < 4)")
    frame = user_frame()
    traced(recorder, frame)
    before = bound(frame)
    with recorder.body(recorder.scope) as body:
        yield recorder.scope
        traced(recorder, frame)
        refuse_rebinding(recorder, before, frame, "k.when(condition)")
    if isinstance(condition, Expr):
        recorder.emit(When(condition, body.closed(), line=line))
    else:
        if condition:
            for statement in body.closed():
                recorder.emit(statement)
        around = recorder.bodies[-1]
        recorder.decided = (around, len(around.statements), condition)


@contextmanager
def otherwise(recorder: Recorder) -> Iterator[Any]:
    """The other case of the condition directly before."""
    written = recorder.bodies[-1].statements
    last = written[-1] if written else None
    known = recorder.decided
    decided = known is not None and known[0] is recorder.bodies[-1] and known[1] == len(written)
    if not decided and (not isinstance(last, When) or last.otherwise):
        recorder.refuse("k.otherwise()", "there is no k.when directly before it", legal="with k.when(c): .. first")
    frame = user_frame()
    before = bound(frame)
    with recorder.body(recorder.scope) as body:
        yield recorder.scope
        traced(recorder, frame)
        refuse_rebinding(recorder, before, frame, "k.otherwise()")
    recorder.decided = None
    if isinstance(last, When) and not decided:
        written[-1] = replace(last, otherwise=body.closed())
    elif known is not None and not known[2]:
        for statement in body.closed():
            recorder.emit(statement)
