"""Contractions: blocking, packing, panels and micro-kernels."""
