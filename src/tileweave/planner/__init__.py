"""The planner: machines, costs, the choice of cuts, and the plan as a printable value."""

from tileweave.planner import show
from tileweave.planner.machine import Level, LinkGroup, Machine, Machines, machine_tree, machines
from tileweave.planner.movement import Movement, Redistribution, movements, redistribution
from tileweave.planner.placement import Placement, placement
from tileweave.planner.plan import Costs, Plan, Step
from tileweave.planner.search import (
    OBJECTIVES,
    Cuts,
    Mutator,
    Objective,
    Progressed,
    make_plan,
    register_mutator,
    register_objective,
)
from tileweave.planner.show import load
from tileweave.planner.show.exchange import with_margins
from tileweave.planner.simulate import CostModel, Simulation, register_cost_model, simulate
from tileweave.planner.tasks import Read, ReadPiece, Task, tasks

__all__ = [
    "OBJECTIVES",
    "CostModel",
    "Costs",
    "Cuts",
    "Level",
    "LinkGroup",
    "Machine",
    "Machines",
    "Movement",
    "Mutator",
    "Objective",
    "Placement",
    "Plan",
    "Progressed",
    "Read",
    "ReadPiece",
    "Redistribution",
    "Simulation",
    "Step",
    "Task",
    "load",
    "machine_tree",
    "machines",
    "make_plan",
    "movements",
    "placement",
    "redistribution",
    "register_cost_model",
    "register_mutator",
    "register_objective",
    "show",
    "simulate",
    "tasks",
    "with_margins",
]
