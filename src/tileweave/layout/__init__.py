"""Layouts: exact maps from logical indices to named physical axes."""

from tileweave.layout.layout import DEFAULT_AXIS, Coord, Iter, Layout, strided

__all__ = ["DEFAULT_AXIS", "Coord", "Iter", "Layout", "strided"]
