"""Kernels as MLIR: their text, and runs of it on the CPU with errors that name the user's lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tileweave.backends.cuda.arguments import Launch
from tileweave.backends.cuda.printer.entry import arguments, located, lowered
from tileweave.backends.mlir.launch import Order, run_all
from tileweave.backends.mlir.printer.printer import text_and_places
from tileweave.backends.mlir.signature import merged
from tileweave.errors import BackendError
from tileweave.kernel.ir import Kernel
from tileweave.kernel.threads import SourceLine


def text(kernel: Kernel, arch: str = "sm_80") -> str:
    """The MLIR of a kernel.

    Raises:
        BackendError: something in it has no operation in the dialects; names it, the reason and the user's line.
    """
    return text_and_places(lowered(kernel, arch, boxes=False).program)[0]


def run(
    kernel: Kernel,
    arrays: Mapping[str, Any] | Sequence[Any],
    on: str = "mlir",
    arch: str = "sm_80",
    *,
    check: bool = False,
    order: Order | Sequence[Order] = "forward",
    seconds: int = 60,
) -> None:
    """Runs the MLIR of a kernel on arrays of the CPU, which are read and written in place.

    Args:
        kernel: the kernel.
        arrays: an array for each parameter, by name or in order.
        on: ``"mlir"``: lowered by mlir-opt, on fibers.
        arch: the target that instructions are chosen for.
        check: whether every access is followed (races, initialisation); slower.
        order: of threads and blocks; several must agree bit for bit.
        seconds: the time limit.

    Raises:
        BackendError: MLIR's tools are missing, the text cannot say the kernel, or it breaks a rule: ``error.findings``
            lists each, with the user's lines.
    """
    run_together([(kernel, arrays)], arch, check=check, order=order, seconds=seconds)


def run_together(
    runs: Sequence[tuple[Kernel, Mapping[str, Any] | Sequence[Any]]],
    arch: str = "sm_80",
    *,
    check: bool = False,
    order: Order | Sequence[Order] = "forward",
    seconds: int = 60,
) -> None:
    """Runs kernels one after the other, on arrays of each, as one module that is lowered once; arguments as `run`."""
    texts: dict[str, str] = {}
    launches: list[Launch] = []
    places: tuple[SourceLine | None, ...] = ()
    finish: list[Callable[[], None]] = []
    for number, (kernel, arrays) in enumerate(runs):
        named = (
            arrays if isinstance(arrays, Mapping) else dict(zip([p.name for p in kernel.params], arrays, strict=True))
        )
        program = lowered(kernel, arch, boxes=False).program
        name = program.name if len(runs) == 1 else f"{program.name}_{number}"
        texts[name], places = text_and_places(program)
        given, after = arguments(kernel, program, named)
        flat = {key: _flat(value) for key, value in given.items()}
        launches.append(Launch(program.grid, 32 * program.warps, flat, name, program.dynamic_bytes))
        finish += [partial(_back, given, flat), *after]
    source = texts[launches[0].kernel or ""] if len(runs) == 1 else merged(texts)
    try:
        run_all(source, launches, order=order, seconds=seconds, check=check)
    except BackendError as error:
        known = places if len(runs) == 1 else ()
        raise located(error, launches[0].kernel or "", lambda place, _: _user(place, known)) from None
    for one in finish:
        one()


def _back(given: Mapping[str, Any], flat: Mapping[str, Any]) -> None:
    """What was written to copies goes to the arrays."""
    for name, value in given.items():
        if isinstance(value, np.ndarray) and value.flags.writeable and not np.shares_memory(flat[name], value):
            value[...] = flat[name].view(value.dtype).reshape(value.shape)


def _flat(value: Any) -> Any:
    """An array as a memref of one dimension takes it: types of 8 bits that MLIR only moves as integers."""
    if not isinstance(value, np.ndarray):
        return value
    line = np.ascontiguousarray(value).reshape(-1)
    return line.view(np.int8) if line.dtype.name.startswith("float8") else line


def _user(where: str, places: tuple[SourceLine | None, ...]) -> str:
    file, _, number = where.rpartition(":")
    if not file.endswith("kernel.mlir") or not number.isdigit() or not 0 < int(number) <= len(places):
        return where
    return str(places[int(number) - 1] or where)
