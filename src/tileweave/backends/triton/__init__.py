"""Triton: the kernels of LEGO's evaluation as template files, filled by layouts; run and compiled without a GPU."""

from tileweave.backends.triton.kernels import KERNELS, TritonKernel, kernel
from tileweave.backends.triton.run import ARCHITECTURES, FP8, TritonRun, compiled, installed, interpret, interpret_all

__all__ = [
    "ARCHITECTURES",
    "FP8",
    "KERNELS",
    "TritonKernel",
    "TritonRun",
    "compiled",
    "installed",
    "interpret",
    "interpret_all",
    "kernel",
]
