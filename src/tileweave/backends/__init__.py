"""Backends: a verified TEIR program, or a kernel, becomes machine code."""
