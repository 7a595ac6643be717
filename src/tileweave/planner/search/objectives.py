"""What a plan is chosen by: the document's seven objectives, what machines receive, and the user's own.

An objective is a number of a simulated plan, the least of which wins; ties go to less time, then to fewer tasks. The
additive solvers are guided by a sum over table entries that stands for it.

Source: Tapestry, "Cost Optimization"; the two kinds of waste are defined here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from tileweave.errors import PlanError
from tileweave.planner.plan import Plan
from tileweave.planner.search.tables import Measures
from tileweave.planner.simulate import Simulation


def _seconds(measures: Measures) -> Any:
    return measures.seconds + 1e-18 * measures.moved


@dataclass(frozen=True, slots=True)
class Objective:
    """What is least in the plan that is taken.

    Args:
        name: unique.
        of: of a simulated plan; a number.
        weigh: of table entries, what stands for it in the additive solvers; time, where nothing is said.
        unit: of the number.
        waves: whether plans are looked at that have more waves than the memory asks for.
    """

    name: str
    of: Callable[[Plan, Simulation], float]
    weigh: Callable[[Measures], Any] = _seconds
    unit: str = ""
    waves: bool = False

    def order(self, plan: Plan, result: Simulation) -> tuple[float, float, int, int]:
        """What plans are compared by."""
        value: Any = self.of(plan, result)
        if not isinstance(value, Real) or value != value:
            raise PlanError("plan(objective)", f"{self.name} of a plan is {value!r}", legal="a number")
        return float(value), result.seconds, plan.bytes_moved, plan.tasks


OBJECTIVES: dict[str, Objective] = {}


def register_objective(objective: Objective) -> None:
    """Adds an objective that plans can be asked for by name.

    Raises:
        PlanError: there is one of that name.
    """
    if objective.name in OBJECTIVES:
        raise PlanError(
            "register_objective(objective)", f"there is an objective {objective.name!r}", legal="another name"
        )
    OBJECTIVES[objective.name] = objective


def objective_of(what: str | Objective | Callable[[Plan, Simulation], float]) -> Objective:
    """An objective by name, the user's own value, or a function of a simulated plan.

    Raises:
        PlanError: the name is not known.
    """
    if isinstance(what, Objective):
        return what
    if callable(what):
        try:
            inspect.signature(what).bind(None, None)
        except TypeError as error:
            legal = "a function of a plan and its simulation"
            raise PlanError(
                "plan(objective)", f"{getattr(what, '__name__', what)} takes other arguments: {error}", legal=legal
            ) from None
        except ValueError:  # a built-in function without a signature
            pass
        return Objective(getattr(what, "__name__", "the user's own"), what, waves=True)
    if what not in OBJECTIVES:
        raise PlanError("plan(objective)", f"{what!r} is no objective", legal=", ".join(OBJECTIVES))
    return OBJECTIVES[what]


def _peak_compute(plan: Plan, result: Simulation) -> float:
    return float(np.max(sum((load.flops for load in result.loads), np.zeros(1))))


def _memory_waste(plan: Plan, result: Simulation) -> float:
    """Bytes that machines hold less than the one that holds most."""
    return float(sum(max(result.peak_bytes) - peak for peak in result.peak_bytes))


def _compute_waste(plan: Plan, result: Simulation) -> float:
    """Machine-seconds in which a machine does not compute: with more waves, it waits less for what arrives."""
    busy = sum((span.end - span.start) * span.alike for span in result.spans)
    return max(0.0, len(plan.machines) * result.seconds - busy)


def _held(measures: Measures) -> Any:
    return measures.held + 1e-6 * measures.seconds


for _objective in (
    Objective("seconds", lambda plan, result: result.seconds, unit="s"),
    Objective("total_memory", lambda plan, result: sum(result.peak_bytes), _held, "bytes", waves=True),
    Objective("total_compute", lambda plan, result: sum(cost.flops for cost in result.steps), unit="flop"),
    Objective("peak_memory", lambda plan, result: max(result.peak_bytes), _held, "bytes", waves=True),
    Objective("peak_compute", _peak_compute, unit="flop"),
    Objective("memory_waste", _memory_waste, _held, "bytes"),
    Objective("compute_waste", _compute_waste, unit="s", waves=True),
    Objective("words", lambda plan, result: result.words_bytes, lambda m: m.words + 1e-6 * m.seconds, "bytes"),
    Objective("moved", lambda plan, result: plan.bytes_moved, lambda m: m.moved + 1e-6 * m.seconds, "bytes"),
):
    register_objective(_objective)
