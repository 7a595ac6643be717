"""``run``: the text of a CUDA kernel on arrays, on simulated devices or on a real one; ``run_all``: several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tileweave.backends.cuda.arguments import Launch
from tileweave.errors import BackendError


def run(
    text: str,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arrays: Mapping[str, Any],
    on: Literal["cpu", "cuda"] = "cpu",
    *,
    kernel: str | None = None,
    shared: int = 0,
    cluster: int | Sequence[int] = 1,
    devices: int = 1,
    order: str | int = "forward",
    window: int = 8,
    seconds: int = 60,
    cooperative: bool = False,
    check: bool = False,
) -> None:
    """Runs a CUDA kernel; arrays are read and written in place.

    Args:
        text: CUDA C++ with inline PTX, unchanged.
        grid: blocks, x first.
        block: threads of a block, x first.
        arrays: a value for each parameter, by name: arrays, numbers, :class:`TensorMap`, :class:`Peers`,
            :class:`Multicast`, :class:`PerDevice`.
        on: ``"cpu"``: fibers, compiled by g++; ``"cuda"``: a device, through NVRTC (extra ``gpu``).
        kernel: the name where the text has several kernels, with template arguments: ``"scale<float, 4>"``.
        shared: bytes of dynamic shared memory.
        cluster: blocks of a cluster, x first.
        devices: simulated devices, 1 to 8; each launches the whole grid, and they run together.
        order: of fibers and blocks on the CPU: ``"forward"``, ``"reversed"``, or the seed of a random one.
        window: how many blocks are resident at once on the CPU.
        seconds: the time limit on the CPU.
        cooperative: whether all blocks are resident, so that the grid may synchronise.
        check: whether every access is followed on the CPU (races, initialisation, fences); slower.

    Raises:
        BackendError: the text does not compile, or a rule was broken: ``error.findings`` lists each with file and line.

    Example:
        >>> import numpy as np
        >>> x = np.arange(5, dtype=np.float32)
        >>> run("__global__ void twice(float* x) { x[threadIdx.x] *= 2; }", 1, 5, {"x": x})
        >>> x
        array([0., 2., 4., 6., 8.], dtype=float32)
    """
    one = Launch(grid, block, arrays, kernel, shared, cluster, cooperative)
    run_all(text, [one], on, devices=devices, order=order, window=window, seconds=seconds, check=check)


def run_all(
    text: str,
    launches: Sequence[Launch],
    on: Literal["cpu", "cuda"] = "cpu",
    *,
    devices: int = 1,
    order: str | int = "forward",
    window: int = 8,
    seconds: int = 60,
    check: bool = False,
    optimise: bool = True,
) -> None:
    """Launches kernels of one text one after the other, as a host would on one stream; compiled once.

    Args:
        text: CUDA C++ with inline PTX, unchanged.
        launches: what to launch, in order; an array that several are given is one array to all of them.
        on: as in :func:`run`, like the rest.
        devices, order, window, seconds, check: as in :func:`run`.
        optimise: whether g++ does.

    Raises:
        BackendError: as :func:`run`.

    Example:
        >>> import numpy as np
        >>> x = np.arange(3, dtype=np.int32)
        >>> text = "__global__ void add(int* x, int by) { x[threadIdx.x] += by; }"
        >>> run_all(text, [Launch(1, 3, {"x": x, "by": by}) for by in (10, 100)])
        >>> x
        array([110, 111, 112], dtype=int32)
    """
    if on == "cuda":
        from tileweave.backends.cuda.device import launch_on_device

        if devices != 1 or check:
            raise BackendError("run(text, .., on='cuda')", "devices and check are simulated only", legal="on='cpu'")
        launch_on_device(text, launches)
        return
    if on != "cpu":
        raise BackendError("run(text, .., on=)", f"{on!r}", legal='"cpu" | "cuda"')
    if not 1 <= devices <= 8:
        raise BackendError("run(text, .., devices=)", f"{devices} devices", legal="1 to 8")
    from tileweave.backends.cuda.cpu.kernel import launch_on_cpu

    outcome, findings = launch_on_cpu(
        text, launches, devices=devices, order=order, window=window, seconds=seconds, check=check,
        optimise=optimise,
    )  # fmt: skip
    wrong = [f for f in findings if not f.note]
    if wrong or outcome.status:
        first = str(wrong[0]) if wrong else _status(outcome.status)
        more = {f"also {i}": str(f) for i, f in enumerate(wrong[1:6], 1)}
        raise BackendError(
            "run(text, ..)", first, inputs={**more, **({"output": outcome.errors[-500:]} if outcome.errors else {})},
            facts={"findings": tuple(findings), "source": text, "log": outcome.errors},
        )  # fmt: skip


def _status(status: int) -> str:
    if status == 97:
        return "the launch is refused"
    if status == 98:
        return "a tensor map is refused"
    return f"the program ended with status {status}"
