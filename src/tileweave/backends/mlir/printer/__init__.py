"""MLIR of kernels: what dispatch decided, in the dialects gpu, nvgpu, nvvm, memref, vector, scf, arith and math."""

from tileweave.backends.mlir.printer.entry import run, text
from tileweave.backends.mlir.printer.printer import text_and_places

__all__ = ["run", "text", "text_and_places"]
