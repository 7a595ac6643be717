"""The kernel language: what a GPU kernel computes, on which threads, in which memory.

Example:
    >>> import numpy as np
    >>> from tileweave import kernel as tk
    >>> @tk.kernel
    ... def add_rows(k, x, y, out):
    ...     row = k.grid(x.blocks(0, 1))
    ...     with k.cta(threads=64) as cta:
    ...         cta.store(out[row], cta.load(x[row]) + cta.load(y[row]))
    >>> x, y = np.ones((3, 100), np.float32), np.full((3, 100), 2, np.float32)
    >>> print(add_rows.check(x, y, np.empty_like(x)))
    3 blocks, 24 statements, 27 accesses: every claim holds
"""

from tileweave.errors import VerifyError
from tileweave.index import equal, unequal
from tileweave.kernel.build import KernelFunction, Sharded, Spec, grouped, kernel, placed, row_major, sharded, spec
from tileweave.kernel.ir import Kernel, Scalar, from_json, to_json, to_text, verify
from tileweave.kernel.semantics import Report, check_kernel, run_kernel
from tileweave.kernel.torch.dtensor import check_dtensor, dtensor_layout

__all__ = [
    "Kernel",
    "KernelFunction",
    "Report",
    "Scalar",
    "Sharded",
    "Spec",
    "VerifyError",
    "check_dtensor",
    "check_kernel",
    "dtensor_layout",
    "equal",
    "from_json",
    "grouped",
    "kernel",
    "placed",
    "row_major",
    "run_kernel",
    "sharded",
    "spec",
    "to_json",
    "to_text",
    "unequal",
    "verify",
]
