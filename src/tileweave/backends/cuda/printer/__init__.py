"""CUDA C++ of kernels and thread programs."""

from tileweave.backends.cuda.printer.entry import run, run_program, text
from tileweave.backends.cuda.printer.printer import text_and_places, text_of

__all__ = ["run", "run_program", "text", "text_and_places", "text_of"]
