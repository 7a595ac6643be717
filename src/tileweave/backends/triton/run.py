"""Triton text run by its interpreter, and compiled for an architecture, in a child process: no GPU is needed.

A child of its own, since an access out of bounds ends the process, and since the interpreter is chosen when Triton is
imported. What its interpreter computes wrongly (sums and products of BF16) is refused rather than run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (makes NumPy know the names of FP8 types)
import numpy as np

from tileweave.backends import folders
from tileweave.errors import BackendError, LayoutError

ARCHITECTURES: dict[str, tuple[str, int | str, int]] = {
    "sm_80": ("cuda", 80, 32),
    "sm_86": ("cuda", 86, 32),
    "sm_89": ("cuda", 89, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "sm_103": ("cuda", 103, 32),
    "sm_120": ("cuda", 120, 32),
    "gfx942": ("hip", "gfx942", 64),
}
"""Name -> what Triton calls it: backend, architecture, lanes of a warp."""
FP8 = {"float8_e5m2": ("fp8e5", "sm_80"), "float8_e4m3fn": ("fp8e4nv", "sm_89")}
"""NumPy's name of an FP8 type -> Triton's, and the first CUDA architecture for which Triton compiles it."""
SECONDS = 300
"""After which a child process is ended."""

Array = np.ndarray[Any, Any]


def installed(*, interpreter: bool = True) -> str:
    """What is missing to compile, or to interpret; empty where nothing is.

    Example:
        >>> isinstance(installed(), str)
        True
    """
    wanted = ["triton", "torch"] if interpreter else ["triton"]
    missing = [package for package in wanted if find_spec(package) is None]
    return f"{' and '.join(missing)} not installed: pip install 'tileweave[gpu]'" if missing else ""


@dataclass(frozen=True, eq=False)
class TritonRun:
    """One launch for the interpreter.

    Args:
        name: of the kernel.
        grid: the numbers of programs.
        arrays: parameter -> array, written in place in the child; ``"*p"`` -> a list of arrays becomes the array of
            their addresses.
        scalars: parameter -> int.
    """

    name: str
    grid: Sequence[int]
    arrays: Mapping[str, Any]
    scalars: Mapping[str, int] = field(default_factory=dict)


def interpret(
    text: str, name: str, grid: Sequence[int], arrays: Mapping[str, Any], scalars: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """The arrays after the kernel has run in Triton's interpreter; BF16 is refused, FP8 is right in `tl.dot` alone.

    Args:
        text: of the module that defines the kernel.
        name, grid, arrays, scalars: as of `TritonRun`.

    Returns:
        Every array by its name, those of a list as ``p.0``, ``p.1``, and so on.

    Raises:
        LayoutError: a dtype that the interpreter computes wrongly. BackendError: Triton is missing, or the kernel
            fails; with the text and the child's log.
    """
    return interpret_all(text, [TritonRun(name, grid, arrays, scalars or {})])[0]


def interpret_all(text: str, runs: Sequence[TritonRun]) -> list[dict[str, Array]]:
    """The arrays of each launch, one after the other in one child process; otherwise as `interpret`."""
    where = "interpret(text, name, grid, arrays)"
    flat: dict[str, Array] = {}
    small: dict[str, str] = {}  # arrays of bytes to the child, and the element type that they are of
    for number, run in enumerate(runs):
        for key, value in run.arrays.items():
            parts = {f"{key[1:]}.{k}": part for k, part in enumerate(value)} if key.startswith("*") else {key: value}
            for part, given in parts.items():
                array, place = np.ascontiguousarray(given), f"{number}/{part}"
                if array.dtype.name in FP8:
                    small[place] = array.dtype.name
                    array = array.view(np.uint8)
                elif array.dtype.kind not in "fiu":
                    legal = "float16, float32, float64, FP8 for products, integers"
                    raise LayoutError(where, f"{part} is of {array.dtype}", legal=legal)
                flat[place] = array
    jobs = [
        {"name": run.name, "grid": list(run.grid), "arrays": list(run.arrays), "scalars": dict(run.scalars)}
        for run in runs
    ]
    found = _child(where, "interpret", text, {"runs": jobs, "small": small}, flat, {"TRITON_INTERPRET": "1"})
    out: list[dict[str, Array]] = [{} for _ in runs]
    for place, array in found.items():
        index, part = place.split("/", 1)
        out[int(index)][part] = array.view(small[place]) if place in small else array
    return out


def compiled(
    text: str,
    name: str,
    signature: Mapping[str, str],
    architecture: str,
    *,
    constants: Mapping[str, int] | None = None,
    warps: int = 0,
) -> dict[str, str]:
    """The assembly that Triton makes of the kernel, without a device: stage -> text.

    Args:
        text: of the module that defines the kernel.
        name: of the kernel.
        signature: parameter -> type, such as ``*fp16`` and ``i32``.
        architecture: one of `ARCHITECTURES`.
        constants: parameter -> value known at compile time.
        warps: of a program; 0: Triton's default.

    Raises:
        LayoutError: an unknown architecture. BackendError: Triton is missing, or refuses the kernel.
    """
    where = "compiled(text, name, signature, architecture)"
    if architecture not in ARCHITECTURES:
        raise LayoutError(where, f"unknown architecture {architecture!r}", legal=", ".join(ARCHITECTURES))
    job = {
        "name": name,
        "signature": dict(signature),
        "target": ARCHITECTURES[architecture],
        "constants": dict(constants or {}),
        "warps": warps,
    }
    found = _child(where, "compile", text, job, {}, {})
    return {stage: bytes(array).decode() for stage, array in found.items()}


def _child(
    where: str, task: str, text: str, job: Mapping[str, Any], arrays: Mapping[str, Array], more: Mapping[str, str]
) -> dict[str, Array]:
    """Run a task of `child` on files in a folder of its own, with a cache of its own."""
    problem = installed(interpreter=task == "interpret")
    if problem:
        raise BackendError(where, problem, legal="the extra `gpu`")
    with folders.scratch() as folder:
        place = Path(folder)
        (place / "kernel.py").write_text(text, encoding="utf-8")
        (place / "job.json").write_text(json.dumps({"task": task, **job}), encoding="utf-8")
        save: Any = np.savez  # typed as if an array could be called allow_pickle
        save(place / "in.npz", **arrays)
        environment = {
            **os.environ,
            **more,
            "TRITON_CACHE_DIR": str(place / "cache"),
            "TRITON_DEFAULT_FP_FUSION": "1",
        }
        if task == "compile":
            environment.pop("TRITON_INTERPRET", None)
        command = [sys.executable, str(Path(__file__).with_name("child.py")), folder]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise BackendError(where, f"no answer in {SECONDS} s", facts={"source": text}) from None
        if done.returncode != 0:
            log = done.stderr.strip().splitlines()
            last = log[-1] if log else f"the child ended with {done.returncode}"
            raise BackendError(where, last, facts={"source": text, "log": done.stderr})
        with np.load(place / "out.npz") as found:
            return {key: found[key] for key in found.files}
