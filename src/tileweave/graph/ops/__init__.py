"""Operators: their meaning, parameters, monoids and the functions that users call."""
