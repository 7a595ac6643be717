"""The command ``tileweave``: run and plan programs, and single einsums, from the shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from tileweave.errors import TileweaveError

__all__ = ["main"]

EXIT_PROGRAM, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130

_EPILOG = """examples:
  tileweave run examples/digits.py
  tileweave plan examples/digits.py --machines 4 --memory 2GiB
  tileweave einsum "ij,jk->ik" a.npy b.npy -o c.npy

Flags win over what a program says; what a program says wins over defaults.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tileweave",
        description="Run tensor programs on a laptop or a cluster, and see the plan first.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    run = commands.add_parser("run", help="run a program", description="Run a Python program that uses tileweave.")
    _program_arguments(run)
    run.add_argument("--runtime", choices=("local", "ray"), help="threads in this process, or a Ray cluster")
    run.add_argument("--address", help="a running Ray cluster; without it a local one is started")
    run.add_argument("--threads", type=_positive, help="threads of the local runtime (default: the cores)")
    run.add_argument("--overwrite", action="store_true", default=None, help="replace sinks that exist")
    run.add_argument("--progress", action=argparse.BooleanOptionalAction, help="show a bar for every run")
    run.set_defaults(action=_run)

    plan = commands.add_parser(
        "plan",
        help="print what a program would do, without doing it",
        description="Execute a program up to the first result that it needs; print the plan of each distinct graph.",
    )
    _program_arguments(plan)
    plan.add_argument("--json", action="store_true", help="print the plans as JSON")
    plan.add_argument("--draw", metavar="FILE.svg", help="draw the first plan")
    plan.set_defaults(action=_plan)

    einsum = commands.add_parser(
        "einsum",
        help="contract tensors in files",
        description="Compute an einsum of .npy, .npz or .zarr tensors.",
    )
    einsum.add_argument("equation", help='such as "trus,pqtu->pqrs"')
    einsum.add_argument("operands", nargs="+", metavar="FILE", help="FILE or FILE.npz#member")
    einsum.add_argument("-o", "--output", metavar="FILE", help="where to write; without it the result is printed")
    einsum.add_argument("--overwrite", action="store_true", default=None, help="replace the output if it exists")
    einsum.add_argument("--explain", action="store_true", help="print the plan first")
    _machine_arguments(einsum)
    einsum.add_argument("--threads", type=_positive, help="threads (default: the cores)")
    einsum.set_defaults(action=_einsum)
    return parser


def _program_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments, after --")
    _machine_arguments(parser)


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machines", metavar="N|FILE.toml", help="how many machines, or a description of them")
    parser.add_argument("--memory", help="memory per machine, such as 2GiB")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options, rest = parser.parse_known_args(_split(words))
    if rest:
        parser.error(f"unknown argument {rest[0]!r}")
    if options.version:
        from tileweave import __version__

        print(f"tileweave {__version__}")
        return 0
    action: Callable[[argparse.Namespace], int] | None = getattr(options, "action", None)
    if action is None:
        parser.print_help()
        return 0
    try:
        return action(options)
    except TileweaveError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        print("interrupted; nothing half-written was left", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stderr.close()
        return 0


def _split(words: Sequence[str]) -> list[str]:
    """Flags may follow the program's name: everything up to ``--`` is ours, moved before the program."""
    words = list(words)
    if not words or words[0] not in ("run", "plan"):
        return words
    own = words[1 : words.index("--")] if "--" in words else words[1:]
    theirs = words[words.index("--") :] if "--" in words else []
    flags: list[str] = []
    names: list[str] = []
    k = 0
    takes_value = {"--machines", "--memory", "--runtime", "--address", "--threads", "--draw"}
    while k < len(own):
        if own[k] in takes_value and k + 1 < len(own):
            flags += own[k : k + 2]
            k += 2
            continue
        (flags if own[k].startswith("-") else names).append(own[k])
        k += 1
    return [words[0], *flags, *names, *theirs]


def _run(options: argparse.Namespace) -> int:
    from tileweave.cli.program import run_program

    return run_program(options)


def _plan(options: argparse.Namespace) -> int:
    from tileweave.cli.program import plan_program

    return plan_program(options)


def _einsum(options: argparse.Namespace) -> int:
    from tileweave.cli.einsum import einsum_files

    return einsum_files(options)


if __name__ == "__main__":
    sys.exit(main())
