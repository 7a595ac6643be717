"""Triton: the kernels of LEGO's evaluation as template files, filled by layouts; run and compiled without a GPU."""

from tileweave.backends.triton.kernels import KERNELS, TritonKernel, kernel
from tileweave.backends.triton.run import ARCHITECTURES, compiled, installed, interpret

__all__ = ["ARCHITECTURES", "KERNELS", "TritonKernel", "compiled", "installed", "interpret", "kernel"]
