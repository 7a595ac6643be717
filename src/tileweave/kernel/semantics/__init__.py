"""The checking interpreter at the level of operators: values in NumPy, claims by vector clocks."""

from tileweave.kernel.semantics.run import LIMIT, Report, check_kernel, run_kernel

__all__ = ["LIMIT", "Report", "check_kernel", "run_kernel"]
