"""``tileweave cuda``: check CUDA programs without a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tileweave.errors import BackendError

_EPILOG = """examples:
  tileweave cuda check reduce.cu
  tileweave cuda check gemm.cu -- 512 512 64
  tileweave cuda check gemm.cu --order reversed --define SIZE=96
  tileweave cuda check scale.cu --kernel scale --launch 4,128 --arg x=x.npy --arg n=500
"""


def add_cuda_commands(commands: Any) -> None:
    """Registers the command and its sub-commands."""
    cuda = commands.add_parser(
        "cuda", allow_abbrev=False, help="check CUDA programs on the CPU", description="CUDA programs, without a GPU."
    )
    inner = cuda.add_subparsers(dest="cuda_command", metavar="COMMAND", title="commands", required=True)
    check = inner.add_parser(
        "check",
        allow_abbrev=False,
        help="run a CUDA program on the CPU and report races, missing barriers and fences, bad accesses",
        description="Runs a CUDA program, host code included, with every access of memory followed.\n"
        "Exit status 1 when something is wrong, else that of the program.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("file", metavar="FILE.cu", help="the program")
    check.add_argument("arguments", nargs="*", metavar="ARG", help="its command line, after --")
    check.add_argument("--order", default="forward", help="of threads: forward, reversed, or a seed (default: forward)")
    check.add_argument("--devices", type=_count, default=1, help="simulated devices, 1 to 8 (default: 1)")
    check.add_argument("--window", type=_count, default=8, help="blocks that are resident at once (default: 8)")
    check.add_argument("--seconds", type=_count, default=120, help="the time limit (default: 120)")
    check.add_argument("-I", "--include", action="append", default=[], metavar="DIR", help="a folder of headers")
    check.add_argument("-D", "--define", action="append", default=[], metavar="NAME=VALUE", help="a macro")
    check.add_argument("--strict", action="store_true", help="remarks, such as bank conflicts, count as findings")
    check.add_argument("--launch", metavar="GRID,BLOCK", help="one kernel: 4,128 or 2x3,32x8")
    check.add_argument("--kernel", help="which one, with template arguments")
    check.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="FILE.npy, or a number")
    check.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory of --launch")
    check.set_defaults(action=_check)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _check(options: argparse.Namespace) -> int:
    from tileweave.backends.cuda.checked import check, check_kernel

    order: str | int = (
        options.order if options.order in ("forward", "reversed") else _number(options.order, "--order", int)
    )
    if options.launch is None:
        if options.kernel is not None or options.arg or options.shared:
            raise BackendError(
                "cuda check", "--kernel, --arg and --shared speak of one kernel, and nothing launches it",
                legal="--launch GRID,BLOCK such as 4,128",
            )  # fmt: skip
        report = check(
            options.file, options.arguments, order=order, devices=options.devices, window=options.window,
            seconds=options.seconds, include=options.include, define=options.define, inherit=True,
        )  # fmt: skip
    else:
        grid, block = _launch(options.launch)
        arrays = dict(_argument(item) for item in options.arg)
        report = check_kernel(
            options.file, grid, block, arrays, kernel=options.kernel, shared=options.shared, order=order,
            window=options.window, seconds=options.seconds, include=options.include,
        )  # fmt: skip
    sys.stdout.flush()
    for finding in report.findings:
        print(finding, file=sys.stderr)
    wrong = len(report.findings) if options.strict else len(report.errors)
    if wrong:
        print(f"{wrong} finding{'s' * (wrong != 1)}", file=sys.stderr)
    return 1 if wrong else report.status


def _number(text: str, what: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise BackendError(f"cuda check {what}", f"{text!r}", legal="forward, reversed, or an integer") from None


def _launch(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    try:
        grid, block = (tuple(int(n) for n in part.split("x")) for part in text.split(","))
    except ValueError:
        raise BackendError("cuda check --launch", f"{text!r}", legal="GRID,BLOCK such as 4,128 or 2x3,32x8") from None
    return grid, block


def _argument(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if value.endswith(".npy"):
        if not Path(value).is_file():
            raise BackendError("cuda check --arg", f"no file {value}", legal="NAME=FILE.npy or NAME=NUMBER")
        import numpy as np

        return name, np.load(value)
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    raise BackendError("cuda check --arg", f"{text!r}", legal="NAME=FILE.npy or NAME=NUMBER")
