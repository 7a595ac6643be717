"""The tracing builder: a Python function runs once and leaves a kernel."""

from tileweave.kernel.build.arguments import Sharded, Spec, placed, sharded, spec
from tileweave.kernel.build.function import KernelFunction, kernel
from tileweave.kernel.build.order import grouped, row_major

__all__ = ["KernelFunction", "Sharded", "Spec", "grouped", "kernel", "placed", "row_major", "sharded", "spec"]
