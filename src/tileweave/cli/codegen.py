"""``tileweave codegen``: a kernel's text from a template and its layouts, and what can be checked of it here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tileweave.backends import triton
from tileweave.errors import BackendError, LayoutError

__all__ = ["codegen"]

DTYPE = "fp16"


def codegen(arguments: argparse.Namespace) -> int:
    """Run the command; the exit status.

    Raises:
        LayoutError: no such kernel or option.
    """
    if arguments.list:
        for name, entry in triton.KERNELS.items():
            print(f"{name:<16} {', '.join(entry.options)}")
        return 0
    if arguments.template is None:
        raise LayoutError("tileweave codegen", "no kernel is named", legal=f"--list, or {', '.join(triton.KERNELS)}")
    entry = triton.kernel(arguments.template)
    filled = entry.template(**_options(arguments.set)).fill(arguments.target)
    if arguments.output:
        Path(arguments.output).write_text(filled.text, encoding="utf-8")
    elif not arguments.explain:
        sys.stdout.write(filled.text)
    if arguments.explain:
        print(filled.explain())
    return _check(entry, filled.text, filled.arguments) if arguments.check else 0


def _options(words: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise LayoutError("tileweave codegen --set", f"{word!r}", legal="NAME=VALUE, such as M=4096 or b=col")
        number = value.lstrip("-")
        out[name] = int(value) if number.isdigit() else value
    return out


def _check(entry: triton.TritonKernel, text: str, sizes: tuple[str, ...]) -> int:
    """Compile for every architecture, and say what was done."""
    missing = triton.installed(interpreter=False)
    compile(text, entry.name, "exec")
    print("checked: the text is Python", file=sys.stderr)
    if missing:
        print(f"not checked: compilation; {missing}", file=sys.stderr)
        return 0
    failed = 0
    for architecture in triton.ARCHITECTURES:
        try:
            stages = triton.compiled(text, entry.name, entry.signature(DTYPE, sizes), architecture)
        except BackendError as error:
            failed += 1
            print(f"failed: {architecture}: {error.problem}", file=sys.stderr)
        else:
            print(f"checked: compiles for {architecture} ({', '.join(stages)})", file=sys.stderr)
    return 1 if failed else 0
