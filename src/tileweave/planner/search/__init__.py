"""The search for plans: candidates, cost tables, exact and stochastic solvers, and the choice that fits the memory."""

from tileweave.planner.search.make import make_plan
from tileweave.planner.search.objectives import OBJECTIVES, Objective, register_objective
from tileweave.planner.search.pareto import Mutator, Progressed, register_mutator
from tileweave.planner.search.pins import Cuts

__all__ = [
    "OBJECTIVES",
    "Cuts",
    "Mutator",
    "Objective",
    "Progressed",
    "make_plan",
    "register_mutator",
    "register_objective",
]
