"""The command ``tileweave``: run and plan programs, and single einsums, from the shell."""

from __future__ import annotations

import argparse
import difflib
import io
import math
import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from textwrap import dedent
from typing import Any, NoReturn

from tileweave.errors import TileweaveError, UsageError

EXIT_PROGRAM, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130

_EPILOG = """examples:
  tileweave run examples/digits.py
  tileweave plan examples/digits.py --machines 4 --memory 2GiB
  tileweave machines probe -o here.toml
  tileweave einsum "ij,jk->ik" a.npy b.npy -o c.npy
  tileweave graph show examples/digits.py#1 --explain
  tileweave layout "composition((6,2):(8,2), (4,3):(3,1))" --table
  tileweave teir emit "ij,jk->ik" 64x32 32x16 -o matmul.json
  tileweave teir run matmul.json in0=a.npy in1=b.npy -o out=c.npy

Flags win over what a program says; what a program says wins over defaults.
"""

_TEIR_EPILOG = """examples:
  tileweave teir emit "ij,jk->ik" 640x320 320x160 --tiled -o matmul.json
  tileweave teir emit "ij->i" 64x32 --op max -o highest.json
  tileweave teir check matmul.json in0=a.npy in1=b.npy
  tileweave teir show matmul.json --draw matmul.svg
  tileweave teir run matmul.json in0=a.npy in1=b.npy -o out=c.npy --time
  tileweave teir tune matmul.json --seconds 5
"""

_GRAPH_EPILOG = """examples:
  tileweave graph show examples/digits.py#1 --explain
  tileweave graph show examples/blur.py --draw blur.svg
  tileweave graph rewrite examples/digits.py#1 --rules one-view,elementwise-chain
  tileweave graph show examples/heat.py --json --no-arrays | tileweave graph check -
  tileweave graph show examples/blur.py --json > blur.json
  tileweave graph diff examples/blur.py blur.json
"""

_CODEGEN_EPILOG = """examples:
  tileweave codegen --list
  tileweave codegen matmul --set M=4096 N=4096 K=4096 b=col -o matmul.py
  tileweave codegen softmax --set BN=1024 --explain
  tileweave codegen layernorm --check
  tileweave codegen transpose_shared --target cuda --set shared=padded --check
"""


class _Parser(argparse.ArgumentParser):
    """Refuses words in the form of every other error; the parsers of its commands are of this class, too."""

    def error(self, message: str) -> NoReturn:
        """What argparse found, and what the command takes."""
        problem, _, choices = message.partition(" (choose from ")
        legal = " | ".join(one.strip("'") for one in choices.removesuffix(")").split(", "))
        raise UsageError(self.prog, problem, legal=legal if choices else self._usage())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Nothing is left over: a command names what it does not take, rather than the one above it."""
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
            near = difflib.get_close_matches(rest[0].partition("=")[0], flags, 1)
            problem = f"unknown argument {rest[0]!r}{_hint(self.prog, options, rest)}"
            raise UsageError(self.prog, problem, legal=near[0] if near else self._usage())
        return options, rest

    def _usage(self) -> str:
        return dedent(self.format_usage().replace("usage: ", " " * 7)).strip()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tileweave",
        description="Run tensor programs on a laptop or a cluster, and see the plan first.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    run = commands.add_parser(
        "run", allow_abbrev=False, help="run a program", description="Run a Python program that uses tileweave."
    )
    _program_arguments(run)
    run.add_argument("--runtime", choices=("local", "ray"), help="threads in this process, or a Ray cluster")
    run.add_argument("--address", help="a running Ray cluster; without it a local one is started")
    run.add_argument("--threads", type=_positive, help="threads of the local runtime (default: the cores)")
    run.add_argument("-o", "--output", metavar="FILE.npz", help="of a model: where its outputs go, each by its name")
    run.add_argument("--overwrite", action="store_true", default=None, help="replace sinks that exist")
    run.add_argument("--resume", action="store_true", help="go on with what an unfinished run left of its sinks")
    run.add_argument("--progress", action=argparse.BooleanOptionalAction, help="show a bar for every run")
    run.add_argument("--table", action="store_true", help="show a table of steps that follows every run")
    run.add_argument("--trace", metavar="FILE.json", help="write when each task ran, as a Chrome trace")
    run.add_argument("--report", action="store_true", help="print each run beside its plan, step by step")
    run.set_defaults(action=_lazily("program", "run_program"))

    plan = commands.add_parser(
        "plan",
        allow_abbrev=False,
        help="print what a program would do, without doing it",
        description="Execute a program up to the first result that it needs; print the plan of each distinct graph.",
    )
    _program_arguments(plan)
    plan.add_argument("--json", action="store_true", help="print the plans as JSON")
    plan.add_argument(
        "--runtime", choices=("local", "ray"), default="local", help="where it would run: on a cluster, with margins"
    )
    _draw_arguments(plan, "draw the first plan")
    plan.add_argument("--diff", metavar="FILE.json", help="print only what differs from the plans of a file")
    plan.add_argument("--html", metavar="FILE.html", help="write the first plan as one page")
    plan.set_defaults(action=_lazily("program", "plan_program"))

    einsum = commands.add_parser(
        "einsum",
        allow_abbrev=False,
        help="contract tensors in files",
        description="Compute an einsum of .npy, .npz or .zarr tensors.",
    )
    einsum.add_argument("equation", type=str.strip, help='such as "trus,pqtu->pqrs"')
    einsum.add_argument("operands", nargs="+", metavar="FILE", help="FILE or FILE.npz#member")
    einsum.add_argument("-o", "--output", metavar="FILE", help="where to write; without it the result is printed")
    einsum.add_argument("--overwrite", action="store_true", default=None, help="replace the output if it exists")
    einsum.add_argument("--explain", action="store_true", help="print the plan first")
    _machine_arguments(einsum)
    einsum.add_argument("--threads", type=_positive, help="threads (default: the cores)")
    einsum.set_defaults(action=_lazily("einsum", "einsum_files"))

    layout = commands.add_parser(
        "layout",
        allow_abbrev=False,
        add_help=False,
        help="evaluate an expression of the layout algebra; print, draw, tabulate and analyse it",
        description="Evaluate an expression of the layout algebra, in the notation of CuTe, Axe or LEGO.",
    )
    _layout_arguments(layout)

    teir = commands.add_parser(
        "teir",
        help="check, show, run, explain, tune and emit programs of the tiled execution IR",
        description="Programs of the tiled execution IR, as JSON files; - is the standard input.",
        epilog=_TEIR_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _teir_commands(teir)

    graph = commands.add_parser(
        "graph",
        help="show, check, rewrite and compare tensor expression graphs",
        description="Graphs of a Python program, up to the first result that it needs, or of a JSON document;\n"
        "FILE#2 is the second graph of a program, - is a document on the standard input.",
        epilog=_GRAPH_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _graph_commands(graph)

    codegen = commands.add_parser(
        "codegen",
        allow_abbrev=False,
        help="print a GPU kernel from a template and its layouts",
        description="Fill a kernel's template with index expressions derived from layouts; sizes that are not\n"
        "set become arguments of the kernel.",
        epilog=_CODEGEN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _codegen_arguments(codegen)

    from tileweave.cli.cuda import add_cuda_commands
    from tileweave.cli.machines import add_machines_commands

    add_machines_commands(commands)
    add_cuda_commands(commands)

    from tileweave.cli.kernels import add_kernel_commands

    add_kernel_commands(commands)
    return parser


Action = Callable[[argparse.Namespace], int]


def _lazily(module: str, function: str) -> Action:
    """What a command does: a function of a module of this package, both loaded when it runs.

    The name of the function may hold that of another command, ``{graph_command}``.
    """

    def action(options: argparse.Namespace) -> int:
        found: Action = getattr(import_module(f"tileweave.cli.{module}"), function.format(**vars(options)))
        return found(options)

    return action


class _LayoutHelp(argparse.Action):
    """The help with every operation; its names are loaded only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from tileweave.cli.layout.command import epilog

        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = epilog()
        parser.print_help()
        parser.exit()


def _layout_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", "--help", action=_LayoutHelp, nargs=0, help="show this help, with every operation")
    parser.add_argument("expression", metavar="EXPR", help="the expression, quoted; - reads the standard input")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--at", metavar="X", help="the value at an index (5), a coordinate (1,2), or names (i,j)")
    parser.add_argument("--table", action="store_true", help="print coordinate -> value")
    parser.add_argument("--limit", type=_positive, default=64, help="most rows of the table (default: 64)")
    parser.add_argument("--shape", metavar="8,16", help="logical shape of an Axe layout, for --at, --table and --draw")
    _draw_arguments(parser, "draw the layout")
    parser.add_argument("--colour", metavar="AXIS", help="the axis that chooses the colours of the picture")
    parser.add_argument("--banks", action="store_true", help="count the conflicts in the banks of shared memory")
    parser.add_argument("--threads", metavar="0:32", help="the indices that threads access: A:B, A:B:STEP or a list")
    parser.add_argument("--width", type=_positive, default=4, metavar="BYTES", help="bytes per element (default: 4)")
    parser.add_argument("--vector", type=_positive, default=1, help="elements per access of a thread (default: 1)")
    parser.add_argument("--bank-count", type=_positive, default=32, help="banks of 4 bytes (default: 32)")
    parser.add_argument(
        "--symbol",
        action="append",
        metavar="NAME=LOW:HIGH",
        help="a symbol in [LOW, HIGH), either may be left out; a third number divides it",
    )
    parser.set_defaults(action=_lazily("layout.command", "evaluate_layout"))


def _teir_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="teir_command", metavar="COMMAND", title="commands", required=True)

    def command(name: str, help: str, *, arrays: str = "", description: str = "") -> argparse.ArgumentParser:
        text = description or f"{help[0].upper()}{help[1:]}."
        made = commands.add_parser(name, allow_abbrev=False, help=help, description=text)
        if name != "emit":
            made.add_argument("file", metavar="FILE", help="a program as JSON; - is the standard input")
        if arrays:
            made.add_argument("arrays", nargs="*", metavar="NAME=FILE.npy", help=arrays)
        return made

    command(
        "check", "every rule and analysis; exit status 2 where one fails", arrays="arrays that must fit the program"
    )

    show = command("show", "the schedule tree and the tables")
    show.add_argument("--json", action="store_true", help="the canonical JSON instead")
    _draw_arguments(show, "draw the tree and the tiles")

    run = command(
        "run",
        "run on arrays; what is not written to a file is printed",
        arrays="an array per tensor that the program reads; of the shape that the program states, if any",
        description="Run a program on arrays. Elements are taken in row-major order, whatever order a file has.",
    )
    run.add_argument("-o", "--output", action="append", metavar="NAME=FILE.npy", help="where to write a tensor")
    run.add_argument(
        "--shape", action="append", metavar="NAME=64x16", help="shape of an output (default: the program's, or flat)"
    )
    run.add_argument("--overwrite", action="store_true", help="replace outputs that exist")
    how = run.add_mutually_exclusive_group()
    how.add_argument("--interpret", action="store_true", help="the slow reference instead of compiled code")
    how.add_argument("--tuned", action="store_true", help="as tune found it, which is done first where it was not")
    run.add_argument("--threads", type=_positive, metavar="N", help="threads (default: the cores)")
    run.add_argument("--time", action="store_true", help="time repeated calls")
    how.add_argument("--no-merge", action="store_true", help="the schedule as it stands, without merging")

    tune = command(
        "tune",
        "time ways to compute a program, and remember the best for this machine",
        arrays="arrays to time on (default: random numbers)",
    )
    tune.add_argument("--threads", type=_positive, metavar="N", help="the most threads (default: the cores)")
    tune.add_argument(
        "--seconds", type=_duration, default=10.0, metavar="N", help="begin no new trial after so long (default: 10)"
    )
    tune.add_argument("--again", action="store_true", help="time again, even where a winner is remembered")
    tune.add_argument("-o", "--output", metavar="FILE.json", help="where to write the program that won")
    tune.add_argument("--overwrite", action="store_true", help="replace the output if it exists")

    explain = command("explain", "which kernel each primitive becomes, and why")
    explain.add_argument("--threads", type=_positive, metavar="N", help="threads (default: the cores)")
    explain.add_argument("--no-merge", action="store_true", help="the schedule as it stands, without merging")

    emit = command(
        "emit",
        "the program of an einsum, a reduction or an elementwise operation, as JSON",
        description="Write the program of an einsum; with --op that of a reduction or of an elementwise operation. "
        "Its operands are dense and row-major.",
    )
    emit.add_argument(
        "equation", metavar="EQUATION", type=str.strip, help='such as "ij,jk->ik" or "abc->cba"; a letter per index'
    )
    emit.add_argument("shapes", nargs="+", metavar="SHAPE", help="such as 64x32, or scalar; one per operand")
    emit.add_argument("--dtype", default="FP32", metavar="TYPE", help="element type of the operands (default: FP32)")
    emit.add_argument("--out-dtype", metavar="TYPE", help="element type of the output (default: the operands')")
    emit.add_argument(
        "--profile", choices=("document", "tileweave"), default="tileweave", help="default: tileweave, which has more"
    )
    emit.add_argument("--tiled", action="store_true", help="write the blocking for caches into the schedule")
    emit.add_argument("--accumulate", action="store_true", help="add to what the output holds")
    emit.add_argument("--relu", action="store_true", help="apply ReLU at the end")
    emit.add_argument(
        "--op", metavar="OP", help="sum, prod, max, min reduce; Add, Exp, .. work element by element, also Max and Min"
    )
    emit.add_argument("--name", help="name of the program (default: from the equation)")
    emit.add_argument("-o", "--output", metavar="FILE.json", help="where to write (default: standard output)")
    emit.add_argument("--overwrite", action="store_true", help="replace the output if it exists")
    parser.set_defaults(action=_lazily("teir.command", "{teir_command}_file"))
    emit.set_defaults(action=_lazily("teir.emit", "emit_file"))


def _graph_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="graph_command", metavar="COMMAND", title="commands", required=True)

    def file(command: argparse.ArgumentParser, *names: str, nargs: str | None = None) -> None:
        for name in names:
            command.add_argument(name, metavar=name.upper(), nargs=nargs, help="PROGRAM.py, FILE.json, or PROGRAM.py#2")
        _own_arguments(command)

    show = commands.add_parser("show", allow_abbrev=False, help="a line per node, or a table of costs, or JSON")
    file(show, "file")
    how = show.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one graph as a JSON document")
    how.add_argument("--explain", action="store_true", help="shapes, bytes and flops of every operation")
    show.add_argument("--no-arrays", action="store_true", help="leave the arrays in memory out of the document")
    _draw_arguments(show, "draw the first graph")

    check = commands.add_parser("check", allow_abbrev=False, help="every rule; exit status 2 where one is broken")
    file(check, "file")

    rewrite = commands.add_parser("rewrite", allow_abbrev=False, help="apply rules to a fixed point")
    file(rewrite, "file", nargs="?")
    rewrite.add_argument("--rules", metavar="A,B", help="names of rules or groups (default: optimizations)")
    rewrite.add_argument("--list", action="store_true", help="list the rules and their laws")
    rewrite.add_argument("--passes", type=_positive, default=32, metavar="N", help="the most passes (default: 32)")
    rewrite.add_argument("--json", action="store_true", help="the result as JSON; the trace goes to standard error")
    _draw_arguments(rewrite, "draw the first result")

    diff = commands.add_parser(
        "diff",
        allow_abbrev=False,
        help="where two graphs part, and whether one is a correct sharding of the other",
        description="Exit status 0: the same, or one is a correct sharding of the other; 1: neither.",
    )
    file(diff, "file", "other")
    parser.set_defaults(action=_lazily("graph", "{graph_command}_graph"))


def _program_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", help="a Python file, or an .onnx model followed by NAME=FILE.npy for each input")
    parser.add_argument(
        "--bind", action="append", metavar="NAME=VALUE", help="of a model: batch=8, image=1x3x224x224 or shape=FILE.npy"
    )
    _own_arguments(parser)
    _machine_arguments(parser)
    _planning_arguments(parser)


def _planning_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that ``tw.plan`` has as arguments."""
    group = parser.add_argument_group("planning")
    group.add_argument("--objective", metavar="NAME", help="what is least: seconds, words, moved, peak_memory, ..")
    group.add_argument("--trials", type=_positive, metavar="N", help="of a stochastic search behind the exact solvers")
    group.add_argument("--seed", type=int, metavar="N", help="of its random numbers (default: 0)")
    group.add_argument("--workers", type=_positive, metavar="N", help="searches side by side (default: 1)")
    group.add_argument("--runs", type=_positive, metavar="N", help="how often the plan will run: stops a longer search")
    for option, metavar, text in (
        ("--pin", "OP=PARTS", "cut an operation by hand: matmul#2=4,1,2, relu=axis0:4, @17=m:4 (line 17); repeatable"),
        ("--forbid", "OP=DIMS", "leave dimensions whole: matmul=k; repeatable"),
    ):
        group.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    group.add_argument("--load", metavar="FILE.json", help="take the plans from a file instead of planning")
    group.add_argument("--save", metavar="FILE.json", help="keep every plan in a file")


def _own_arguments(parser: argparse.ArgumentParser) -> None:
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments, after --")
    rest.required = False  # not named among what is missing


def _draw_arguments(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--draw", metavar="FILE.svg", help=help)
    parser.add_argument("--overwrite", action="store_true", help="replace a picture that exists")


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machines", metavar="N|FILE.toml", help="how many machines, or a description of them")
    parser.add_argument("--memory", help="memory per machine, such as 2GiB")


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    _say_something_anywhere()
    try:
        parser = _parser()  # it loads the packages that add commands: an interruption is one there, too
        options = parser.parse_args(_split(words, _values_of(parser)))
        if options.version:
            from tileweave import __version__

            print(f"tileweave {__version__}")
            return 0
        action: Action | None = getattr(options, "action", None)
        if action is None:
            parser.print_help()
            return 0
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
    except MemoryError as error:
        print(f"MemoryError: this does not fit the memory{f': {error}' if str(error) else ''}", file=sys.stderr)
        return EXIT_REFUSED
    except OSError as error:  # a file of ours: the program's own failures are shown by `cli.program`
        where = f"{error.filename}: " if error.filename else ""
        print(f"StorageError: {where}{error.strerror or error}", file=sys.stderr)
        return EXIT_REFUSED


def _hint(command: str, options: argparse.Namespace, rest: Sequence[str]) -> str:
    """What may have been meant by arguments that a command does not take."""
    if command.startswith(("tileweave run", "tileweave plan", "tileweave graph")):
        return "; a program's own arguments follow --"
    if command != "tileweave layout" or any(word.startswith("--") for word in rest):
        return ""
    if options.expression.isidentifier():
        return f"; layout takes one expression and no command: leave out {options.expression!r}"
    return f"; layout takes one expression, in quotes, and {1 + len(rest)} were given"


def _say_something_anywhere() -> None:
    """A terminal, or a file, that cannot show a character shows ? instead; for errors Python shows its number."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # not where Python was started without it
        sys.stdout.reconfigure(errors="replace")


def _values_of(parser: argparse.ArgumentParser) -> set[str]:
    """The flags of a command, and of the commands inside it, that are followed by a value."""
    found: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(*map(_values_of, action.choices.values()))
        elif action.nargs != 0:
            found.update(action.option_strings)
    return found


def _split(words: Sequence[str], valued: AbstractSet[str]) -> list[str]:
    """Flags may follow the program's name: everything up to ``--`` is ours, moved before the program.

    An equation may begin with an arrow, which is no flag.

    Args:
        words: of the command line.
        valued: the flags that are followed by a value.
    """
    words = list(words)
    if words[:1] == ["einsum"] or words[:2] == ["teir", "emit"]:
        words = [f" {word}" if word.startswith("->") else word for word in words]
    if not words or words[0] not in ("run", "plan", "teir", "graph"):
        return words
    if words[0] in ("teir", "graph"):
        return [*words[:2], *_split(["run", *words[2:]], valued)[1:]] if len(words) > 2 else words
    own = words[1 : words.index("--")] if "--" in words else words[1:]
    theirs = words[words.index("--") :] if "--" in words else []
    flags: list[str] = []
    names: list[str] = []
    k = 0
    while k < len(own):
        if own[k] in valued:
            if k + 1 == len(own):
                return [words[0], own[k]]  # refused: its value is missing
            flags += own[k : k + 2]
            k += 2
            continue
        (flags if own[k].startswith("-") and own[k] != "-" else names).append(own[k])
        k += 1
    return [words[0], *flags, *names, *theirs]


def _codegen_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("template", nargs="?", metavar="TEMPLATE", help="a kernel's name; --list shows them")
    parser.add_argument(
        "--target", choices=("triton", "cuda", "mlir"), help="the language (default: the first that has it)"
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="sizes, tiles and orders, as M=4096"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the text to a file")
    parser.add_argument("--list", action="store_true", help="list the kernels with their options")
    parser.add_argument("--explain", action="store_true", help="print grid, checks, and expressions before and after")
    parser.add_argument("--check", action="store_true", help="run and compile the text as far as it can be here")
    parser.set_defaults(action=_lazily("codegen", "codegen"))


if __name__ == "__main__":
    sys.exit(main())
