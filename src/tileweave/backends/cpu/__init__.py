"""The CPU backend: a TEIR program becomes one native function through LLVM."""

from tileweave.backends.cpu.kernel import Kernel, compile, forget
from tileweave.backends.cpu.settings import Settings
from tileweave.backends.cpu.target import Target, host

__all__ = ["Kernel", "Settings", "Target", "compile", "forget", "host"]
