"""CUDA: kernels run on a CPU or a device, compiled for a device, checked without one."""

from tileweave.backends.cuda.arguments import Launch, Multicast, Peers, PerDevice, TensorMap
from tileweave.backends.cuda.compiled import CompiledText, KernelResources, compile
from tileweave.backends.cuda.launch import run, run_all

__all__ = [
    "CompiledText",
    "KernelResources",
    "Launch",
    "Multicast",
    "Peers",
    "PerDevice",
    "TensorMap",
    "compile",
    "run",
    "run_all",
]
