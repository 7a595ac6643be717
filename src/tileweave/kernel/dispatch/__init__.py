"""Dispatch: which instruction does each operator, which layout has each register tensor; with reasons."""

from tileweave.kernel.dispatch.estimate import Estimate, estimate
from tileweave.kernel.dispatch.expand import expand
from tileweave.kernel.dispatch.explain import explain, ordered
from tileweave.kernel.dispatch.lower import Lowered, global_tensors, lower

__all__ = ["Estimate", "Lowered", "estimate", "expand", "explain", "global_tensors", "lower", "ordered"]
