"""Integer space: boxes, lattices, affine maps and index projections, in plain Python integers."""

from tileweave.space.affine import AffineMap, AffineSet, Projection
from tileweave.space.box import Box, Lattice, Point, disjoint, even_cuts

__all__ = ["AffineMap", "AffineSet", "Box", "Lattice", "Point", "Projection", "disjoint", "even_cuts"]
