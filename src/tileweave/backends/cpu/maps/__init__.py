"""Elementwise programs, reductions and transposes."""
