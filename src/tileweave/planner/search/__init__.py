"""The search for plans: candidates, cost tables, exact and stochastic solvers, and the choice that fits the memory."""

from tileweave.planner.search.make import make_plan

__all__ = ["make_plan"]
