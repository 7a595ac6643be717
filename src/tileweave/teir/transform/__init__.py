"""Transforms: Program -> Program, each keeping the value or refusing with the reason."""
