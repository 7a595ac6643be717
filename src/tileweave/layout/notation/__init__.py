"""The notations of CuTe, Axe and LEGO: nesting, order, names and text over one core."""
