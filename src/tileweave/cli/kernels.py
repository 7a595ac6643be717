"""``tileweave kernel``: check, explain, print and run kernels of a Python file."""

from __future__ import annotations

import argparse
import ast
import runpy
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tileweave.cli.files import check_new, write_whole
from tileweave.errors import StorageError, TileweaveError, VerifyError

_EPILOG = """arguments, one per tensor of the kernel: FILE.npy, or TYPE:SHAPE such as f16:200x130, which
stands for random numbers in check and run, and for no data at all in text and explain.

examples:
  tileweave kernel check matmul.py:matmul f16:200x130 f16:300x130 f16:200x300 --set bm=64
  tileweave kernel text matmul.py:matmul_roles f16:200x130 f16:300x130 f16:200x300
  tileweave kernel explain matmul.py:matmul f16:200x130 f16:300x130 f16:200x300 --arch sm_90a
  tileweave kernel run softmax.py x.npy f32:4x1000 -o y=y.npy
"""


_DEFAULTS = {"check": " (default: the kernel as written)", "explain": " (default: the target's)"} | dict.fromkeys(
    ("text", "run"), " (default: the target's; for the IR and the interpreter: the kernel as written)"
)


def add_kernel_commands(commands: Any) -> None:
    """Registers the command and its sub-commands."""
    kernel = commands.add_parser(
        "kernel", allow_abbrev=False, help="check, explain, print and run kernels of a Python file",
        description="Kernels of a Python file: functions under @tk.kernel.", epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    inner = kernel.add_subparsers(dest="kernel_command", metavar="COMMAND", title="commands", required=True)
    for name, text in (
        ("check", "interpret a kernel and check every claim that it makes; exit status 2 where one fails"),
        ("explain", "every candidate of every choice of dispatch, with its reason"),
        ("text", "the kernel as text of the IR or of a target"),
        ("run", "run a kernel on arrays"),
    ):
        one = inner.add_parser(name, allow_abbrev=False, help=text, description=f"{text[0].upper()}{text[1:]}.")
        one.add_argument("file", metavar="FILE.py[:NAME]", help="the file, and which of its kernels")
        arrays = one.add_argument("arrays", nargs="*", metavar="ARRAY", help="FILE.npy, or TYPE:SHAPE: f16:200x130")
        arrays.required = False  # not named among what is missing
        one.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the kernel")
        help_ = "interpret the explicit program of an architecture" if name == "check" else "the architecture"
        one.add_argument("--arch", default="", help=f"{help_}, such as sm_90a" + _DEFAULTS.get(name, ""))
        if name == "text":
            one.add_argument("--target", default="ir", help="ir, or a printer such as cuda (default: ir)")
        if name == "run":
            one.add_argument("--on", default="interpreter", help="interpreter, cpu or cuda (default: interpreter)")
            one.add_argument("--seed", type=int, default=0, help="of random numbers (default: 0)")
            one.add_argument("-o", "--output", action="append", default=[], metavar="NAME=FILE.npy",
                             help="where to write a tensor afterwards")  # fmt: skip
            one.add_argument("--overwrite", action="store_true", help="replace outputs that exist")
        one.set_defaults(action=partial(_guarded, globals()[f"_{name}"]))


def _guarded(action: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    path, _, name = options.file.rpartition(":")
    with _users_code(path if path and "." not in name else options.file):
        return action(options)


def _check(options: argparse.Namespace) -> int:
    print(_kernel(options).check(*_arrays(options.arrays, 0), arch=options.arch, **_options(options)))
    return 0


def _explain(options: argparse.Namespace) -> int:
    arch = {"arch": options.arch} if options.arch else {}
    print(_kernel(options).explain(*_arrays(options.arrays, None), **arch, **_options(options)))
    return 0


def _text(options: argparse.Namespace) -> int:
    arguments = _arrays(options.arrays, None)
    print(_kernel(options).text(options.target, *arguments, arch=options.arch, **_options(options)), end="")
    return 0


def _run(options: argparse.Namespace) -> int:
    function = _kernel(options)
    outputs = dict(_pair(item, "-o", "NAME=FILE.npy") for item in options.output)
    for path in outputs.values():
        check_new("-o", path, ".npy", options.overwrite)
    unknown = [name for name in outputs if name not in function.tensors]
    if unknown:
        raise StorageError("-o", f"{unknown[0]!r} is no tensor of {function}", legal=" | ".join(function.tensors))
    arrays = _arrays(options.arrays, options.seed)
    function.run(*arrays, on=options.on, arch=options.arch, **_options(options))
    for name, array in zip(function.tensors, arrays, strict=True):
        if name in outputs:
            write_whole(outputs[name], array)
    if not outputs:
        for name, array in zip(function.tensors, arrays, strict=True):
            print(f"{name} =\n{array}")
    return 0


def _refused(problem: str, legal: str) -> VerifyError:
    return VerifyError("tileweave kernel", problem, legal=legal, facts={"rule": "argument", "path": ""})


@contextmanager
def _users_code(path: str) -> Iterator[None]:
    """What the user's file raises itself is an error with its line; what we raise stays as it is."""
    try:
        yield
    except (TileweaveError, OSError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        line = _users_line(error, path)
        if not line:
            raise
        message = str(error).splitlines()[0] if str(error) else "no message"
        raise VerifyError(
            "tileweave kernel", f"the file raises {type(error).__name__}: {message}", inputs={"line": f"{path}:{line}"},
            facts={"rule": "argument", "path": ""},
        ) from None  # fmt: skip


def _users_line(error: BaseException, path: str) -> int:
    """The line of the user's file that raised an error, itself or by a call of another package; 0: ours did."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    mine = [n for n, frame in enumerate(frames) if Path(frame.filename).name == Path(path).name]
    ours = Path(__file__).parents[1]
    if mine and not any(ours in Path(frame.filename).parents for frame in frames[mine[-1] + 1 :]):
        return frames[mine[-1]].lineno or 1
    if isinstance(error, SyntaxError) and Path(error.filename or path).name == Path(path).name:
        return error.lineno or 1
    return 0


def _kernel(options: argparse.Namespace) -> Any:
    """The kernel that ``FILE.py[:NAME]`` names."""
    from tileweave.kernel import KernelFunction

    path, name = options.file, ""
    if not Path(path).is_file() and ":" in path:
        path, _, name = path.rpartition(":")
    if not Path(path).is_file():
        raise _refused(f"no file {path!r}", "FILE.py, or FILE.py:NAME")
    if Path(path).suffix != ".py":
        raise _refused(f"{path!r} is no file of Python", "FILE.py, or FILE.py:NAME")
    found = {k: v for k, v in runpy.run_path(path, run_name="kernels").items() if isinstance(v, KernelFunction)}
    if name and name not in found:
        raise _refused(f"{path} has no kernel {name!r}", " | ".join(found) or "a function under @tk.kernel")
    if not name and len(found) != 1:
        raise _refused(f"{path} has {len(found)} kernels", " | ".join(f"{path}:{one}" for one in found) or "one kernel")
    return found[name] if name else next(iter(found.values()))


def _options(options: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for item in options.set:
        name, value = _pair(item, "--set", "NAME=VALUE")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def _pair(item: str, option: str, legal: str) -> tuple[str, str]:
    name, separator, value = item.partition("=")
    if not separator or not name or not value:
        raise _refused(f"{option} {item!r}", legal)
    return name, value


def _arrays(items: list[str], seed: int | None) -> list[Any]:
    """Arrays of files; specifications as random arrays, or as they are where no data is needed."""
    from tileweave.kernel import spec
    from tileweave.kernel.ir import dtype_of

    random = np.random.default_rng(seed)
    found: list[Any] = []
    for item in items:
        if item.endswith(".npy"):
            try:
                found.append(np.load(item))
            except (OSError, ValueError) as error:
                raise StorageError("tileweave kernel", f"{item} cannot be read: {error}", legal="an array") from None
            continue
        dtype, _, shape = item.partition(":")
        if not shape or not all(part.isdigit() and int(part) for part in shape.split("x")):
            raise _refused(f"argument {item!r}", "FILE.npy, or TYPE:SHAPE such as f16:200x130")
        extents, element = tuple(map(int, shape.split("x"))), dtype_of(dtype, f"argument {item!r}")
        if seed is None:
            found.append(spec(extents, element))
        elif element.kind == "float":
            found.append(random.standard_normal(extents).astype(element.numpy))
        else:
            found.append(random.integers(0, 2 if element.kind == "pred" else 8, extents).astype(element.numpy))
    return found
