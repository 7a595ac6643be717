"""From one graph operation on concrete operands to a compiled kernel, cached.

Contractions, and large elementwise operations, chains of them and reductions become TEIR programs and run as native
code; every other operator runs its NumPy definition behind the same call, and `describe` names which. Empty operands
are answered here, so layouts and TEIR only see positive extents.
"""

from tileweave.lower.eager import Contraction, contract
from tileweave.lower.execute import copy, describe, execute
from tileweave.lower.programs import ELEMENTS

__all__ = ["ELEMENTS", "Contraction", "contract", "copy", "describe", "execute"]
