"""Machines: what a plan may use, in code, as files describe them, and those of this host."""

from tileweave.planner.machines.host import machines
from tileweave.planner.machines.toml import to_toml
from tileweave.planner.machines.values import Level, LinkGroup, Machine, Machines, bytes_from, machine_tree

__all__ = ["Level", "LinkGroup", "Machine", "Machines", "bytes_from", "machine_tree", "machines", "to_toml"]
