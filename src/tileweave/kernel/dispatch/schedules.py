"""Ways to execute an operator that others add: asked before those of dispatch, and shown among the candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tileweave.errors import BackendError
from tileweave.kernel.dispatch.context import Context
from tileweave.kernel.ir import Candidate, Op

BUILT_IN = {
    "gemm": ("tcgen05", "wgmma", "mma.sync", "fma"),
    "copy": ("tma", "st", "shuffle", "shared"),
    "copy_async": ("tma", "cp.async"),
    "reduce": ("multimem", "peers", "slots", "shuffle", "shared"),
    "scan": ("shared",),
    "atomic_add": ("atom.add",),
}
"""Operator -> the ways of dispatch's own that `use=` may ask for."""


@dataclass(frozen=True)
class Schedule:
    """A way to execute an operator.

    Args:
        name: what ``use=`` asks for and `explain` shows.
        operator: such as ``map``.
        problem: why it does not fit an operator on the target of the context; empty where it does.
        emit: adds its instructions to the context; gives the reason that `explain` shows.
    """

    name: str
    operator: str
    problem: Callable[[Context, Op], str]
    emit: Callable[[Context, Op], str]


_REGISTERED: dict[tuple[str, str], Schedule] = {}


def register(schedule: Schedule) -> None:
    """Have a schedule asked before all others of its operator.

    Raises:
        BackendError: its operator has a way of this name already.
    """
    key = schedule.operator, schedule.name
    if key in _REGISTERED or schedule.name in BUILT_IN.get(schedule.operator, ()):
        raise BackendError("register(schedule)", f"{schedule.operator} has a way {schedule.name!r} already")
    others = dict(_REGISTERED)
    _REGISTERED.clear()
    _REGISTERED.update({key: schedule, **others})


def unregister(operator: str, name: str) -> None:
    """Forget a schedule.

    Raises:
        BackendError: none of that name was registered.
    """
    if _REGISTERED.pop((operator, name), None) is None:
        raise BackendError("unregister(operator, name)", f"no way to {operator} is called {name!r}")


def registered() -> tuple[Schedule, ...]:
    """All schedules from outside, the last registered first."""
    return tuple(_REGISTERED.values())


def names(operator: str) -> tuple[str, ...]:
    """What ``use=`` may ask for."""
    return (*(s.name for s in registered() if s.operator == operator), *BUILT_IN.get(operator, ()))


def tried(context: Context, op: Op) -> tuple[bool, tuple[Candidate, ...]]:
    """Whether a schedule from outside has executed an operator; and those that did not fit, with their reasons.

    Raises:
        BackendError: ``use=`` asks for one that does not fit; says why.
    """
    asked, refused = op.option("use"), list[Candidate]()
    for one in registered():
        if one.operator != op.name or asked not in (None, one.name):
            continue
        why = one.problem(context, op)
        if not why:
            reason = one.emit(context, op)
            context.choose(op, one.name, Candidate(one.name, True, reason), *refused)
            return True, ()
        if asked == one.name:
            raise BackendError(f"{op.name}(.., use={one.name!r})", why, inputs={"line": str(op.line)})
        refused.append(Candidate(one.name, False, why))
    return False, tuple(refused)
