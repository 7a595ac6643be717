"""``explain``: what was chosen for each operator, what else was weighed, and what the kernel needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileweave.kernel.dispatch.explicit.rows import reasons
from tileweave.kernel.dispatch.layouts.traffic import accesses
from tileweave.kernel.dispatch.lower import expand, lower
from tileweave.kernel.dispatch.report.estimate import estimated
from tileweave.kernel.dispatch.report.resources import shared_of
from tileweave.kernel.ir import Kernel, On, Op


def ordered(kernel: Kernel, arch: str = "sm_90a") -> tuple[Kernel, dict[Op, Callable[..., Any]]]:
    """The explicit program of a kernel on a target, and operator -> its sums in the order of that target."""
    choices = lower(kernel, arch).choices
    return expand(kernel, arch), {c.op: c.order for c in choices if c.order is not None}


def explain(kernel: Kernel, arch: str = "sm_90a") -> str:
    """The table of choices for a target: per operator the user's line and the candidates with reasons; the resources.

    Args:
        kernel: the kernel.
        arch: the target.
    """
    program, choices = lower(kernel, arch)
    bytes_ = shared_of(program)
    grid = " x ".join(map(str, program.grid)) + (" blocks" if program.grid != (1,) else " block")
    clusters = f" in clusters of {kernel.grid.cluster}" if kernel.grid.cluster > 1 else ""
    threads = 32 * program.warps
    rows = [f"{kernel.name} for {arch}: {grid} of {threads} threads{clusters}, {bytes_} bytes of shared memory"]
    rows += [f"  shared {b.name}: {b.elements} x {b.dtype} {b.note}".rstrip() for b in program.shared]
    for block in kernel.body:
        found = reasons(block, arch) if isinstance(block, On) else ()
        rows += [f"  {str(block.line).rpartition('/')[2]}  the row"] * bool(found)
        rows += [f"      {c.name:<13} {'yes' if c.legal else 'no'}: {c.reason}" for c in found]
    for choice in choices:
        where = str(choice.op.line).rpartition("/")[2]
        target = ", ".join(map(str, choice.op.outs))
        rows.append(f"  {where}  {choice.op.name} {target}: {choice.atom}")
        rows += [f"      {c.name:<12} {'yes' if c.legal else 'no'}: {c.reason}" for c in choice.reasons]
    rows.append(f"estimate: {estimated(kernel, program)}")
    rows.append("accesses of one warp:")
    for text in dict.fromkeys(f"  {str(a.at).rpartition('/')[2]}  {a}" for a in accesses(program)):
        rows.append(text)
    return "\n".join(rows)
