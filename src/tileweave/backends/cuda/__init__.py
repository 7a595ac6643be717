"""CUDA: kernels run on a CPU or a device, compiled for a device, checked without one."""

from tileweave.backends.cuda.arguments import Peers, PerDevice, TensorMap
from tileweave.backends.cuda.compiled import Compiled, KernelResources, compile
from tileweave.backends.cuda.launch import run

__all__ = ["Compiled", "KernelResources", "Peers", "PerDevice", "TensorMap", "compile", "run"]
