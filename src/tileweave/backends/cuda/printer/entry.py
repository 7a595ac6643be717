"""Kernels as CUDA: their text, and runs of it on a CPU or a device with errors that name the user's lines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from tileweave.backends.cuda.arguments import TensorMap
from tileweave.backends.cuda.launch import run as launch
from tileweave.backends.cuda.printer.printer import shared_bytes, text_and_places
from tileweave.errors import BackendError
from tileweave.kernel.dispatch import Lowered, lower
from tileweave.kernel.ir import Kernel
from tileweave.kernel.threads import Place, ThreadProgram

__all__ = ["run", "run_program", "text"]


@lru_cache(64)
def _lowered(kernel: Kernel, arch: str) -> Lowered:
    return lower(kernel, arch)


def text(kernel: Kernel, arch: str = "sm_90a") -> str:
    """The CUDA C++ of a kernel.

    Raises:
        BackendError: something in it has no CUDA text for this target; names it and the user's line.
    """
    return text_and_places(_lowered(kernel, arch).program)[0]


def run(
    kernel: Kernel,
    arrays: Mapping[str, Any],
    on: Literal["cpu", "cuda"] = "cpu",
    arch: str = "sm_90a",
    *,
    check: bool = False,
    order: str | int = "forward",
    seconds: int = 60,
) -> None:
    """Runs the printed text of a kernel on arrays, which are read and written in place.

    Args:
        kernel: the kernel.
        arrays: a NumPy array for each parameter, by name.
        on: ``"cpu"``: the text on fibers; ``"cuda"``: on a device.
        arch: the target that instructions are chosen for.
        check: whether every access is followed (races, initialisation, completion, fences); slower.
        order: of threads and blocks on the CPU: ``"forward"``, ``"reversed"``, or a seed.
        seconds: the time limit on the CPU.

    Raises:
        BackendError: the text breaks a rule; ``error.findings`` lists each, with the user's lines.
    """
    run_program(_lowered(kernel, arch).program, arrays, on, check=check, order=order, seconds=seconds)


def run_program(
    program: ThreadProgram,
    arrays: Mapping[str, Any],
    on: Literal["cpu", "cuda"] = "cpu",
    *,
    check: bool = False,
    order: str | int = "forward",
    seconds: int = 60,
) -> None:
    """`run` for a thread program."""
    source, places = text_and_places(program)
    maps = dict(program.maps)
    given: dict[str, Any] = {}
    for parameter in program.parameters:
        box = maps.get(parameter.name)
        array = arrays[box.tensor if box else parameter.name]
        given[parameter.name] = array if box is None else TensorMap(array, box.box, box.swizzle)
    try:
        launch(
            source, program.grid, 32 * program.warps, given, on, shared=shared_bytes(program), cluster=program.cluster,
            check=check, order=order, seconds=seconds,
        )  # fmt: skip
    except BackendError as error:
        raise _located(error, program, places) from None


def _located(error: BackendError, program: ThreadProgram, places: tuple[Place | None, ...]) -> BackendError:
    """The error with the user's lines in place of the printed ones."""
    findings = error.facts.get("findings") if error.facts else None
    if not findings:
        return error
    from dataclasses import replace

    shown = tuple(
        replace(f, place=_user(f.place, f.frames[0], places), other=_user(f.other, f.frames[1], places))
        for f in findings
    )
    wrong = [f for f in shown if not f.note] or list(shown)
    more = {f"also {i}": str(f) for i, f in enumerate(wrong[1:6], 1)}
    return BackendError(f"{program.name}.run(..)", str(wrong[0]), inputs=more, facts={**error.facts, "findings": shown})


def _user(where: str, frames: tuple[str, ...], places: tuple[Place | None, ...]) -> str:
    """The user's line of the innermost call that has one; the printed line where none has."""
    for frame in frames:
        number = frame.rpartition(":")[2]
        if number.isdigit() and 0 < int(number) <= len(places):
            found = places[int(number) - 1]
            if found is not None:
                return str(found)
    return where
