"""The tasks of a plan: one per shard, with exactly what it reads, in the order in which they are issued."""

from tileweave.planner.tasks.columns import PieceColumns, ReadColumns, TaskColumns, grouped
from tileweave.planner.tasks.margins import widened
from tileweave.planner.tasks.records import PARTIAL, Read, ReadPiece, Task
from tileweave.planner.tasks.sequence import Tasks, in_one_process, kinds_of, tasks
from tileweave.planner.tasks.sights import preimage

__all__ = [
    "PARTIAL",
    "PieceColumns",
    "Read",
    "ReadColumns",
    "ReadPiece",
    "Task",
    "TaskColumns",
    "Tasks",
    "grouped",
    "in_one_process",
    "kinds_of",
    "preimage",
    "tasks",
    "widened",
]
