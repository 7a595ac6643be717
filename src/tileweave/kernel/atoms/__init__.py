"""The atom table: instructions of GPUs, their operands as layouts; one row feeds dispatch, printers and tests."""

from tileweave.kernel.atoms.atom import BITS, Atom, Condition, Cost, Fragment
from tileweave.kernel.atoms.table import atom, families, names, refusals

__all__ = ["BITS", "Atom", "Condition", "Cost", "Fragment", "atom", "families", "names", "refusals"]
