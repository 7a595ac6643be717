"""``tileweave run`` and ``tileweave plan``: a user's program under the command line's settings."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import runpy
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tileweave.cli.files import check_new, draw, write_whole
from tileweave.cli.model import run_model
from tileweave.cli.planning import Planning, difference, write_plans
from tileweave.errors import PlanError, RunError, StorageError, TileweaveError
from tileweave.graph import FileTarget
from tileweave.planner import Machines, Plan, machines
from tileweave.planner.show.document import documents
from tileweave.runtime.events import Listener
from tileweave.runtime.session import PlanningDone, Session, session

_DATA = (".arrow", ".h5", ".json", ".npy", ".npz", ".parquet", ".safetensors", ".svg", ".toml", ".zarr")


def chosen_machines(options: argparse.Namespace) -> Callable[[Machines | None], Machines] | None:
    """How the flags change the machines that a program asks for; None where they say nothing."""
    if options.machines is None and options.memory is None:
        return None
    fixed = None
    if options.machines is not None:
        words = options.machines
        if words.isascii() and words.isdecimal():
            fixed = machines(int(words))
        elif words.endswith(".toml"):
            fixed = machines(words)
        else:
            raise PlanError(
                "--machines", f"{words!r} is neither a count nor a .toml file", legal="such as 4 or cluster.toml"
            )
    if options.memory is not None:
        machines(1, memory=options.memory)  # refuse a bad amount before the program starts

    def choose(asked: Machines | None) -> Machines:
        base = fixed or asked or machines(1)
        return machines(base, memory=options.memory) if options.memory is not None else base

    return choose


def run_program(options: argparse.Namespace) -> int:
    """Run a program; its own failure shows its own traceback."""
    if options.address and options.runtime == "local":
        raise PlanError("--address", "a Ray cluster is named for the local runtime", legal="--runtime ray")
    planning, plans = Planning(options), list[Plan]()
    settings = Session(
        machines=chosen_machines(options),
        choosing=planning.choose,
        kept=planning.kept,
        runtime="ray" if options.address else options.runtime,
        address=options.address,
        threads=options.threads,
        overwrite=options.overwrite,
        resume=options.resume,
        progress=options.progress,
        listening=_listening(options, plans),
    )
    status = execute(options, settings)
    _keep(options, plans)
    if status == 0:  # what a program that failed would have made later, nobody knows
        planning.check()
    return status


def _keep(options: argparse.Namespace, plans: Sequence[Plan]) -> None:
    """Writes the plans that were made, where ``--save`` asks for it."""
    if options.save and plans:
        write_plans(options.save, plans)
        print(f"written: {options.save}", file=sys.stderr)


def _listening(options: argparse.Namespace, plans: list[Plan]) -> Callable[[Plan], Sequence[Listener]] | None:
    """What follows every run, as the flags ask for it; collects the plans that are to be kept."""
    if not (options.trace or options.report or options.table or options.save):
        return None
    if options.trace:
        check_new("--trace", options.trace, ".json", bool(options.overwrite))
    from tileweave.runtime.trace import LiveTable, RunReport, Trace

    trace = Trace(options.trace) if options.trace else None

    def listeners(plan: Plan) -> Sequence[Listener]:
        if plan not in plans:
            plans.append(plan)
        out: list[Listener] = [trace.of(plan)] if trace else []
        if options.report:
            out.append(RunReport(plan, lambda report: print(report, file=sys.stderr)))
        if options.table:
            out.append(LiveTable(plan))
        return out

    return listeners


def plan_program(options: argparse.Namespace) -> int:
    """Print the plan of each distinct graph that a program would run, up to the first result that it needs."""
    plans: list[Plan] = []

    def planned(plan: Plan) -> None:
        if plan not in plans:
            plans.append(plan)

    if options.draw:
        check_new("--draw", options.draw, ".svg", bool(options.overwrite))
    if options.html:
        check_new("--html", options.html, ".html", bool(options.overwrite))
    planning = Planning(options)
    before = documents(options.diff, "--diff") if options.diff else []
    settings = Session(machines=chosen_machines(options), planned=planned, choosing=planning.choose, kept=planning.kept)
    out, sys.stdout = sys.stdout, sys.stderr if options.json else sys.stdout
    try:
        with _folders_made() as made:
            status = execute(options, settings)
    finally:
        sys.stdout = out
        _remove_folders(plans, made)
    if not plans and status == 0:
        raise nothing_runs("tileweave plan", options.program)
    _keep(options, plans)
    if options.json:
        print(json.dumps([plan.to_json(runtime=options.runtime) for plan in plans], indent=2))
    else:
        for number, plan in enumerate(plans, start=1):
            print(f"graph {number} of {len(plans)}")
            told = difference(plan, planning.graphs, before, options.diff) if options.diff else ""
            print(told if options.diff else plan.explain(runtime=options.runtime))
            print()
    if options.draw and plans:
        draw(options.draw, plans[0]._repr_svg_())
    if options.html and plans:
        write_whole(options.html, plans[0].html())
        print(f"written: {options.html}", file=sys.stderr)
    if status == 0:  # what a program that failed would have made later, nobody knows
        planning.check()
    return status


@contextlib.contextmanager
def _folders_made() -> Iterator[list[Path]]:
    """The folders that are made in a with block, in order. The time of one that was there changes with its files."""
    made, before = list[Path](), os.mkdir

    def noted(path: Any, *given: Any, dir_fd: int | None = None, **named: Any) -> None:
        before(path, *given, dir_fd=dir_fd, **named)
        if dir_fd is None:
            made.append(Path(os.fsdecode(path)).absolute())  # the program may change its folder

    os.mkdir = noted  # by which `os.makedirs` and `Path.mkdir` go, too
    try:
        yield made
    finally:
        os.mkdir = before


def _remove_folders(plans: Sequence[Plan], made: Sequence[Path]) -> None:
    """Removes the empty folders that a program has made for files that it would have written, had it run."""
    targets = {sink.target for plan in plans for sink in plan.graph.sinks}
    files = {Path(one.path).absolute() for one in targets if isinstance(one, FileTarget) and "://" not in one.path}
    for folder in reversed(made):
        if any(folder in file.parents for file in files):
            with contextlib.suppress(OSError):  # it is gone, or holds something
                folder.rmdir()


def nothing_runs(asked: str, program: str) -> PlanError:
    """The error of a program that was to be planned or shown and asks for no result."""
    return PlanError(
        asked, f"{program} runs no graph", legal="a program that calls tw.run(..), as those in examples/ do"
    )


def execute(
    options: argparse.Namespace, settings: Session, *, failed: Callable[[Exception], int] = lambda error: 1
) -> int:
    """Run a program under settings; its own failure shows its own traceback.

    Args:
        options: the `program`, its `arguments`, and the `command` that runs it.
        settings: of the session.
        failed: the exit status where the program raises an exception.
    """
    path = Path(options.program)
    if not path.is_file():
        what = f"{str(path)!r} is a folder" if path.is_dir() else f"there is no file {str(path)!r}"
        raise StorageError(f"tileweave {options.command}", what, legal="a Python program or an .onnx model")
    if path.suffix in _DATA:
        how = (
            "tileweave graph show or tileweave teir show read a document"
            if path.suffix == ".json"
            else "a Python program"
        )
        raise StorageError(f"tileweave {options.command}", f"{str(path)!r} is data, not a program", legal=how)
    if path.suffix == ".onnx":
        with session(settings), contextlib.suppress(PlanningDone):
            run_model(options)
        return 0
    for flag, given in (("--bind", getattr(options, "bind", None)), ("-o", getattr(options, "output", None))):
        if given:
            problem = f"{str(path)!r} is a program: it says itself what it reads and writes"
            raise StorageError(flag, problem, legal="an .onnx model")
    words = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
    argv, sys.argv = sys.argv, [str(path), *words]
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        with session(settings):
            runpy.run_path(str(path), run_name="__main__")
    except PlanningDone:
        return 0
    except KeyboardInterrupt:
        raise
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _unread():
            raise
        missing = error.filename if isinstance(error, FileNotFoundError) else None
        if isinstance(missing, (str, os.PathLike)) and str(Path(missing).absolute()) in settings.unwritten:
            print(f"planned up to where the program reads {str(missing)!r}, which no plan writes", file=sys.stderr)
            return 0
        _show(error, path, f"tileweave {options.command}")
        return failed(error)
    finally:
        sys.argv = argv
        sys.path.remove(str(path.parent.resolve()))
    return 0


def _unread() -> bool:
    """Whether the reader of our output went away, as `| head` does; a pipe of the program's own is another matter."""
    try:
        watch = select.poll()
        watch.register(sys.stdout, 0)
        return any(event & select.POLLERR for _, event in watch.poll(0))
    except (AttributeError, OSError, ValueError):  # no such call here, no output, or one that is no file
        return False


def _show(error: Exception, path: Path, asked: str) -> None:
    """The program's own traceback, from its first frame on, and what was wrong, in the form of our errors.

    Our refusals come without the frames of ours and of what we call, but for the program's own functions.
    """
    ours, theirs = str(Path(__file__).resolve().parent.parent), path.resolve()
    frames = traceback.extract_tb(error.__traceback__)
    first = next((k for k, f in enumerate(frames) if Path(f.filename).resolve() == theirs), len(frames))
    shown = list(frames[first:])
    if isinstance(error, TileweaveError):
        inner = next((k for k, f in enumerate(shown) if f.filename.startswith(ours)), len(shown))
        shown[inner:] = [f for f in shown[inner:] if Path(f.filename).resolve() == theirs]
    if shown:
        print("Traceback (most recent call last):", file=sys.stderr)
        print("".join(traceback.format_list(shown)), end="", file=sys.stderr)
    if not isinstance(error, TileweaveError):
        own = [f"{path}:{f.lineno}: {f.line}" for f in shown if Path(f.filename).resolve() == theirs]
        if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == theirs:
            own = [f"{path}:{error.lineno}: {(error.text or '').strip()}"]
        what = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        notes = "\n".join(getattr(error, "__notes__", ()))
        inputs = {"line": own[-1] if own else str(path)} | ({"note": notes} if notes else {})
        error = RunError(asked, f"the program raises {what}", inputs=inputs)
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
