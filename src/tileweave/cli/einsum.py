"""``tileweave einsum``: one contraction on files."""

from __future__ import annotations

import argparse
import sys

from tileweave.cli.program import chosen_machines
from tileweave.graph import einsum
from tileweave.runtime.api import plan, run, sink, source
from tileweave.runtime.session import Session, session


def einsum_files(options: argparse.Namespace) -> int:
    """Compute the einsum of the operand files; write or print the result."""
    settings = Session(machines=chosen_machines(options), threads=options.threads, overwrite=options.overwrite)
    with session(settings):
        operands = [source(path, key=key) for path, key in map(_member, options.operands)]
        result = einsum(options.equation, *operands)
        if options.output is None:
            made = plan(result)
        else:
            path, key = _member(options.output)
            made = plan(sink(result, path, key=key))
        if options.explain:
            print(made.explain(), file=sys.stderr)
        value = run(made)
        print(f"wrote {value}  {result.type}" if options.output else value)
    return 0


def _member(word: str) -> tuple[str, str]:
    path, _, key = word.partition("#")
    return path, key
