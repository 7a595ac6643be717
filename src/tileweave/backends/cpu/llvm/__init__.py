"""LLVM text: values, loops, vectors and mathematical functions."""
