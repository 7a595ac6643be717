"""Plans on a Ray cluster: the session, units of work, what workers do, and the run that the driver leads."""

from tileweave.runtime.ray.engine import engine
from tileweave.runtime.ray.session import connect, shutdown

__all__ = ["connect", "engine", "shutdown"]
