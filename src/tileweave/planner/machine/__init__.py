"""Machines: what a plan may use, in code, as files describe them, and those of this host."""

from tileweave.planner.machine.host import machines
from tileweave.planner.machine.toml import to_toml
from tileweave.planner.machine.values import Level, LinkGroup, Machine, Machines, bytes_from, machine_tree

__all__ = ["Level", "LinkGroup", "Machine", "Machines", "bytes_from", "machine_tree", "machines", "to_toml"]
