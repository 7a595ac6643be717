"""From one graph operation on concrete operands to a compiled kernel, cached.

Contractions, and large elementwise operations, chains of them and reductions become TEIR programs and run as kernels
of a backend; every other operator runs its NumPy definition behind the same call, and `decide` says which and why.
Empty operands are answered here, so layouts and TEIR only see positive extents.
"""

from tileweave.backends.base import ELEMENTS
from tileweave.lower.eager import Contraction, contract
from tileweave.lower.execute import copy, decide, execute

__all__ = ["ELEMENTS", "Contraction", "contract", "copy", "decide", "execute"]
