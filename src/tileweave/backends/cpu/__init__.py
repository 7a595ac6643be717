"""The CPU backend: a TEIR program becomes one native function through LLVM."""

from tileweave.backends.cpu.export import blocked
from tileweave.backends.cpu.kernel import CpuKernel, compile, forget, tune_by
from tileweave.backends.cpu.target.settings import Settings
from tileweave.backends.cpu.target.target import Target, host
from tileweave.backends.cpu.tuning import Tuned, forget_tuned, tune
from tileweave.backends.host import empty

__all__ = [
    "CpuKernel",
    "Settings",
    "Target",
    "Tuned",
    "blocked",
    "compile",
    "empty",
    "forget",
    "forget_tuned",
    "host",
    "tune",
]

tune_by(tune)
