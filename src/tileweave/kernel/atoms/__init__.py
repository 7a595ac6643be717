"""The atom table: instructions of GPUs, their operands as layouts; one row feeds dispatch, printers and tests."""

from tileweave.kernel.atoms.atom import BITS, Atom, Cost, Operand, Rule
from tileweave.kernel.atoms.table import atom, families, names, refusals

__all__ = ["BITS", "Atom", "Cost", "Operand", "Rule", "atom", "families", "names", "refusals"]
