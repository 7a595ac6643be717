"""Runs of graphs that differ from known ones in extents alone, without planning: see `tileweave.lower.again`."""
