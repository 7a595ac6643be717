"""``check``: a CUDA program, or one kernel of it, on the fibers with every access of memory followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tileweave.backends import folders
from tileweave.backends.cuda.arguments import Extent, Launch
from tileweave.backends.cuda.cpu.build import build_program
from tileweave.backends.cuda.cpu.child import Finding, run_program
from tileweave.backends.cuda.cpu.kernel import launch_on_cpu
from tileweave.backends.cuda.cpu.source import Translation
from tileweave.errors import BackendError


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found.

    Args:
        findings: in the order in which they came up; remarks included.
        status: the exit status of the program; 99 where an error stopped it.
        output: what it printed, where that was kept.
    """

    findings: tuple[Finding, ...]
    status: int
    output: str = ""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that are no remarks."""
        return tuple(f for f in self.findings if not f.note)


def check(
    path: str | Path,
    arguments: Sequence[str] = (),
    *,
    order: str | int = "forward",
    devices: int = 1,
    window: int = 8,
    seconds: int = 120,
    include: Sequence[str] = (),
    define: Sequence[str] = (),
    inherit: bool = False,
) -> CheckReport:
    """Runs a whole CUDA program, host code included, and reports what its kernels do wrong.

    Args:
        path: the ``.cu`` file, unchanged.
        arguments: the command line of the program.
        order: of threads and blocks: ``"forward"``, ``"reversed"``, or the seed of a random one.
        devices: simulated devices that the program sees.
        window: blocks that are resident at once.
        seconds: the time limit.
        include: more folders of headers.
        define: macros, ``NAME=VALUE``.
        inherit: whether the program prints to our own output.

    Raises:
        BackendError: the file does not exist, does not compile, or holds PTX that has no emulation.
    """
    source = _file(path)
    with folders.scratch() as scratch:
        folder = Path(scratch)
        program, translation = build_program(source, folder, instrumented=True, include=include, define=define)
        outcome = run_program(
            program, arguments, folder=Path.cwd(), scratch=folder, order=order, checking=True, devices=devices,
            window=window, seconds=seconds, inherit=inherit,
        )  # fmt: skip
    findings = (*outcome.findings, *_unordered(translation), *_died(outcome.status, outcome.findings))
    return CheckReport(findings, outcome.status, outcome.output)


def check_kernel(
    path: str | Path, grid: Extent, block: Extent, arrays: Mapping[str, Any], *, kernel: str | None = None,
    shared: int = 0, cluster: Extent = 1, order: str | int = "forward", window: int = 8, seconds: int = 120,
    include: Sequence[str] = (),
) -> CheckReport:  # fmt: skip
    """Runs one kernel of a file on arrays, and reports what it does wrong; the arrays are updated in place."""
    source = _file(path)
    outcome, findings = launch_on_cpu(
        "", [Launch(grid, block, arrays, kernel, shared, cluster)], devices=1, order=order, window=window,
        seconds=seconds, check=True, include=include, source=source,
    )  # fmt: skip
    return CheckReport((*findings, *_died(outcome.status, findings)), outcome.status, outcome.output)


_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c")


def _file(path: str | Path) -> Path:
    source = Path(path).resolve()
    if not source.is_file():
        raise BackendError("cuda check", f"no file {path}", legal="a CUDA source file")
    if source.suffix not in _SUFFIXES:
        raise BackendError("cuda check", f"{path} is no CUDA source file", legal=", ".join(_SUFFIXES))
    return source


def _unordered(translation: Translation) -> list[Finding]:
    """Asm statements that order memory and do not tell the compiler so."""
    return [
        Finding(
            "asm-clobber",
            f'{opcode} without the clobber "memory": the compiler may move accesses across it',
            where,
            note=True,
        )
        for where, opcode in translation.unordered
    ]


def _died(status: int, findings: Sequence[Finding]) -> list[Finding]:
    if status >= 0 and (status != 99 or findings):
        return []
    return [Finding("crash", f"the program ended by signal {-status}" if status < 0 else "the program stopped", "")]
