"""Dispatch: which instruction does each operator, which layout has each register tensor; with reasons."""

from tileweave.kernel.dispatch.lower import Lowered, expand, global_tensors, lower
from tileweave.kernel.dispatch.report.estimate import Estimate, estimate
from tileweave.kernel.dispatch.report.explain import explain, ordered
from tileweave.kernel.dispatch.report.pictures import pictures
from tileweave.kernel.dispatch.schedules import Schedule, register, unregister

__all__ = [
    "Estimate", "Lowered", "Schedule", "estimate", "expand", "explain", "global_tensors", "lower", "ordered",
    "pictures", "register", "unregister",
]  # fmt: skip
