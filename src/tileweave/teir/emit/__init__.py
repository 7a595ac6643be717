"""Emitters: an equation, a chain or a row function, with operands of any layout, becomes a program."""
