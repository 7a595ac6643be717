"""Kernels for Trainium as NKI text, and an executor of the subset that is printed."""

from tileweave.backends.nki.printer import run, text

__all__ = ["run", "text"]
