"""The search for plans: candidates, cost tables, exact and stochastic solvers, and the choice that fits the memory."""

from tileweave.planner.search.make import make_plan
from tileweave.planner.search.pareto import Mutator, register_mutator
from tileweave.planner.search.pins import Cuts

__all__ = ["Cuts", "Mutator", "make_plan", "register_mutator"]
