"""The runtime: a plan becomes values, on threads of this process or on a Ray cluster, with files at both ends."""

from tileweave.runtime.events import Done, Event, Failed, Listener, Progress, Retry, Started
from tileweave.runtime.run import run_plan

__all__ = ["Done", "Event", "Failed", "Listener", "Progress", "Retry", "Started", "run_plan"]
