"""The planner: machines, costs, the choice of cuts, and the plan as a printable value."""

from tileweave.planner.machines import Machine, Machines, machines
from tileweave.planner.plan import Costs, Plan, Step, placement
from tileweave.planner.search import make_plan
from tileweave.planner.simulate import Simulation, simulate
from tileweave.planner.tasks import Read, ReadPiece, Task, tasks

__all__ = [
    "Costs",
    "Machine",
    "Machines",
    "Plan",
    "Read",
    "ReadPiece",
    "Simulation",
    "Step",
    "Task",
    "machines",
    "make_plan",
    "placement",
    "simulate",
    "tasks",
]
