"""The merged form as an indented tree, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tileweave.teir.ir.program import Guard
from tileweave.teir.ir.walk import show_guard
from tileweave.teir.merged.form import Loop, Merged, MergedOp, Step


def show(form: Merged, more: Callable[[MergedOp], Sequence[str]] | None = None) -> str:
    """One line per loop and operation; ``stores`` and ``then ReLU`` are a Contraction's flags.

    Args:
        form: what is shown.
        more: further lines below an operation, such as how a backend blocks it.
    """
    return "\n".join(_lines(form, form.body, more, ""))


def _lines(
    form: Merged, steps: tuple[Step, ...], more: Callable[[MergedOp], Sequence[str]] | None, indent: str
) -> list[str]:
    lines = []
    for step in steps:
        condition = f"  [{show_guard(step.guard)}]" if step.guard else ""
        if isinstance(step, Loop):
            lines.append(f"{indent}{step.axis.id}{'  (parallel)' if step.parallel else ''}{condition}")
            lines += _lines(form, step.body, more, indent + "    ")
            continue
        names = ", ".join(form.program.tensors[j].name for j in step.operands)
        shape = " x ".join(str(mode.extent) for mode in step.modes) or "scalar"
        kind = "; ".join(stage.kind for stage in step.stages) if step.kind == "Chain" else step.kind
        flags = "".join(
            f"  {word}{_when(guard)}"
            for word, guard in (("stores", step.init), ("then ReLU", step.relu))
            if guard is not None
        )
        lines.append(f"{indent}{kind}({names})  {shape}{flags}{condition}")
        lines += [f"{indent}  {line}" for line in (more(step) if more else ())]
    return lines


def _when(guard: Guard) -> str:
    return f" if {show_guard(guard)}" if guard else ""
