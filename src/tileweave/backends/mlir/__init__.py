"""MLIR: kernels in the dialects gpu, nvgpu, memref and vector; verified, lowered, and run on a CPU without a GPU."""

from tileweave.backends.cuda.arguments import Launch
from tileweave.backends.mlir.kernels import KERNELS, MlirKernel, kernel, run_trial
from tileweave.backends.mlir.launch import run, run_all
from tileweave.backends.mlir.signature import merged
from tileweave.backends.mlir.tools import Assembled, assemble, installed, lowered, opt, verify

__all__ = [
    "KERNELS",
    "Assembled",
    "Launch",
    "MlirKernel",
    "assemble",
    "installed",
    "kernel",
    "lowered",
    "merged",
    "opt",
    "run",
    "run_all",
    "run_trial",
    "verify",
]
