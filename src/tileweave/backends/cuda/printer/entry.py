"""Kernels as CUDA: their text, and runs of it on a CPU or a device with errors that name the user's lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from tileweave.backends.cuda.arguments import Launch, Multicast, Peers, PerDevice, TensorMap
from tileweave.backends.cuda.device import device_array
from tileweave.backends.cuda.launch import run_all
from tileweave.backends.cuda.printer.printer import text_and_places, together
from tileweave.errors import BackendError
from tileweave.kernel.dispatch import Lowered, Schedule, global_tensors, lower
from tileweave.kernel.dispatch.context import printed
from tileweave.kernel.dispatch.layouts.claims import verify_claims
from tileweave.kernel.dispatch.layouts.places import cosize, memory_layout
from tileweave.kernel.dispatch.schedules import registered
from tileweave.kernel.ir import Kernel, KernelTensor
from tileweave.kernel.threads import SourceLine, ThreadProgram


def lowered(kernel: Kernel, arch: str, *, boxes: bool = True) -> Lowered:
    """The thread program of a kernel and the choices that made it; the last ones are kept. Arguments as `lower`."""
    return _lowered(kernel, arch, registered(), boxes)


@lru_cache(64)
def _lowered(kernel: Kernel, arch: str, schedules: tuple[Schedule, ...], boxes: bool) -> Lowered:
    return lower(kernel, arch, boxes=boxes)


def text(kernel: Kernel, arch: str = "sm_90a") -> str:
    """The CUDA C++ of a kernel.

    Raises:
        BackendError: something in it has no CUDA text for this target; names it and the user's line.
    """
    return text_and_places(lowered(kernel, arch).program)[0]


def run(
    kernel: Kernel,
    arrays: Mapping[str, Any] | Sequence[Any],
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
        arrays: an argument for each parameter, by name or in order: an array (NumPy's, or one that speaks DLPack); a
            list of one array per device; a logical array sharded over the devices.
        on: ``"cpu"``: the text on fibers; ``"cuda"``: on a device.
        arch: the target that instructions are chosen for.
        check: whether every access is followed (races, initialisation, completion, fences); slower.
        order: of threads and blocks on the CPU: ``"forward"``, ``"reversed"``, or a seed.
        seconds: the time limit on the CPU.

    Raises:
        BackendError: the text breaks a rule; ``error.findings`` lists each, with the user's lines.
        VerifyError: with `check`, an address, box or descriptor is not where its tensor's layout says.
    """
    run_together([(kernel, arrays)], on, arch, check=check, order=order, seconds=seconds)


def run_together(
    runs: Sequence[tuple[Kernel, Mapping[str, Any] | Sequence[Any]]],
    on: Literal["cpu", "cuda"] = "cpu",
    arch: str = "sm_90a",
    *,
    check: bool = False,
    order: str | int = "forward",
    seconds: int = 60,
    optimise: bool = True,
) -> None:
    """Runs kernels one after the other, on arrays of each, as one text that is compiled once.

    Args:
        runs: kernels with their arrays, as in :func:`run`; an array that several are given is one array to all.
        on, arch, check, order, seconds: as in :func:`run`.
        optimise: whether g++ does; unoptimised text compiles in half the time and runs some five times as long.

    Raises:
        BackendError, VerifyError: as :func:`run`; or the kernels want meshes of different sizes.
    """
    programs, launches, after = [], [], []
    names: Counter[str] = Counter()
    for kernel, arrays in runs:
        named = (
            arrays if isinstance(arrays, Mapping) else dict(zip([p.name for p in kernel.params], arrays, strict=True))
        )
        program = lowered(kernel, arch).program
        if check:
            verify_claims(program)
        names[program.name] += 1
        if names[program.name] > 1:
            program = replace(program, name=f"{program.name}_{names[program.name]}")
        given, finish = arguments(kernel, program, named)
        programs.append(program)
        launches.append(_launch(program, given))
        after += finish
    _launch_all(programs, launches, on, check=check, order=order, seconds=seconds, optimise=optimise)
    for finish_one in after:
        finish_one()


def run_program(
    program: ThreadProgram,
    arguments: Mapping[str, Any],
    on: Literal["cpu", "cuda"] = "cpu",
    *,
    check: bool = False,
    order: str | int = "forward",
    seconds: int = 60,
) -> None:
    """Launches a thread program; arguments are those of :func:`tileweave.backends.cuda.run`, for each parameter."""
    _launch_all([program], [_launch(program, arguments)], on, check=check, order=order, seconds=seconds)


def _launch(program: ThreadProgram, arguments: Mapping[str, Any]) -> Launch:
    return Launch(
        program.grid, 32 * program.warps, arguments, program.name, program.dynamic_bytes, program.cluster
    )  # fmt: skip


def _launch_all(
    programs: Sequence[ThreadProgram], launches: Sequence[Launch], on: Literal["cpu", "cuda"], *, check: bool,
    order: str | int, seconds: int, optimise: bool = True,
) -> None:  # fmt: skip
    devices = {program.devices for program in programs}
    if len(devices) != 1:
        raise BackendError("run(..)", f"kernels of {sorted(devices)} devices", legal="meshes of one size")
    source, places = together(programs)
    try:
        run_all(
            source, launches, on, devices=devices.pop(), order=order, seconds=seconds, check=check, optimise=optimise
        )
    except BackendError as error:
        raise located(error, programs[0].name, lambda place, frames: _user(place, frames, places)) from None


def arguments(
    kernel: Kernel, program: ThreadProgram, named: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Callable[[], None]]]:
    """What a launch is given for each parameter, and what is left to do afterwards: shards that were copied go back."""
    tensors = {t.name: t for t in (*kernel.params, *global_tensors(kernel))}
    called = {printed(name): name for name in tensors}
    maps, multicasts, devices = dict(program.maps), dict(program.multicast), program.devices
    axes = [axis for axis, _ in kernel.mesh]
    after: list[Callable[[], None]] = []
    parts: dict[str, tuple[Any, ...]] = {}
    given: dict[str, Any] = {}
    for parameter in program.parameters:
        box = maps.get(parameter.name)
        own = multicasts.get(parameter.name, parameter.name)
        name = box.tensor if box else called.get(own, own)
        if name in axes:
            given[name] = PerDevice(tuple(range(devices))) if devices > 1 else 0
            continue
        if name not in parts:
            parts[name] = _parts(tensors[name], named.get(name), devices, after)
        pieces = parts[name]
        shown = pieces if box is None else tuple(TensorMap(one, box.box, box.swizzle) for one in pieces)
        if parameter.space in ("peers", "multicast"):
            given[parameter.name] = (Peers if parameter.space == "peers" else Multicast)(pieces)
        else:
            given[parameter.name] = PerDevice(shown) if devices > 1 else shown[0]
    return given, after


def _parts(tensor: KernelTensor, value: Any, devices: int, after: list[Callable[[], None]]) -> tuple[Any, ...]:
    """The array of each device."""
    if value is None:  # the kernel's own
        return tuple(np.zeros(cosize(tensor), tensor.element.numpy) for _ in range(devices))
    if isinstance(value, list | tuple):
        return tuple(_array(one, tensor.name) for one in value)
    whole = _array(getattr(value, "array", value), tensor.name)
    if "gpu" not in memory_layout(tensor).axes:
        return (whole,) * devices
    places = np.stack([np.asarray(a) for a in _places(tensor)])
    pieces = tuple(np.zeros(cosize(tensor), whole.dtype) for _ in range(devices))
    flat = whole.reshape(-1)
    for d, piece in enumerate(pieces):
        piece[places[1][places[0] == d]] = flat[places[0] == d]

    def back() -> None:
        for d, piece in enumerate(pieces):
            flat[places[0] == d] = piece[places[1][places[0] == d]]
        if not np.shares_memory(flat, whole):
            whole[...] = flat.reshape(whole.shape)

    after.append(back)
    return pieces


def _places(tensor: KernelTensor) -> tuple[Any, Any]:
    """The device and the place of every element, row-major."""
    table = memory_layout(tensor).table()
    found = table if isinstance(table, dict) else {"gpu": table}
    zeros = np.zeros(tensor.size, int)
    return found.get("gpu", zeros), found.get("m", zeros)


def _array(value: Any, name: str) -> Any:
    if isinstance(value, np.ndarray):
        return value
    found = device_array(value, name)
    return np.from_dlpack(value) if found is None else found


def located(error: BackendError, name: str, line: Callable[[str, tuple[str, ...]], str]) -> BackendError:
    """The error with the user's lines in place of the printed ones: `line` of a place and of its frames."""
    findings = error.facts.get("findings") if error.facts else None
    if not findings:
        return error
    shown = tuple(replace(f, place=line(f.place, f.frames[0]), other=line(f.other, f.frames[1])) for f in findings)
    wrong = [f for f in shown if not f.note] or list(shown)
    more = {f"also {i}": str(f) for i, f in enumerate(wrong[1:6], 1)}
    return BackendError(f"{name}.run(..)", str(wrong[0]), inputs=more, facts={**error.facts, "findings": shown})


def _user(where: str, frames: tuple[str, ...], places: tuple[SourceLine | None, ...]) -> str:
    """The user's line of the innermost call that has one; the printed line where none has."""
    for frame in frames:
        number = frame.rpartition(":")[2]
        if number.isdigit() and 0 < int(number) <= len(places):
            found = places[int(number) - 1]
            if found is not None:
                return str(found)
    return where
