"""CUDA kernels of LEGO's evaluation as template files, filled by layouts; each runs on a CPU against NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tileweave.backends.cuda.launch import run_all
from tileweave.backends.cuda.templates import factorization, product, stencil, transpose, wavefront
from tileweave.backends.cuda.templates.entry import CudaKernel, CudaText, Trial
from tileweave.layout.template.collection import named

__all__ = ["KERNELS", "CudaKernel", "CudaText", "Trial", "kernel", "run_trial"]

KERNELS: dict[str, CudaKernel] = {
    entry.name: entry
    for entry in (
        CudaKernel("needleman_wunsch", wavefront.needleman_wunsch, wavefront.trial),
        CudaKernel("lud", factorization.lud, factorization.trial),
        CudaKernel("stencil", stencil.stencil, stencil.trial),
        CudaKernel("transpose_naive", transpose.naive, transpose.naive_trial),
        CudaKernel("transpose_shared", transpose.shared, transpose.shared_trial),
        CudaKernel("matmul_mma", product.matmul, product.trial),
    )
}


def kernel(name: str) -> CudaKernel:
    """The kernel of that name.

    Raises:
        LayoutError: there is none; the message lists the names.
    """
    return named(KERNELS, name)


def run_trial(
    entry: CudaKernel,
    text: CudaText,
    options: Mapping[str, Any] | None = None,
    *,
    check: bool = False,
    order: str | int = "forward",
) -> Trial:
    """Runs the kernel's text on the CPU on its trial problem; `Trial.difference` says how far the answer is off.

    Args:
        entry, text, options: a kernel, and its text for the options.
        check: whether every access is followed.
        order: of threads and blocks, as in :func:`tileweave.backends.cuda.run`.

    Raises:
        BackendError: the text does not compile, or breaks a rule.
    """
    trial = entry.trial(text, **(options or {}))
    run_all(text.text, trial.launches, check=check, order=order)
    return trial
