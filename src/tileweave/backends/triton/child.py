"""The child process of `run`: imports Triton, runs or compiles one kernel, writes what came of it. Run as a file."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def _interpret(module: Any, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    torch = import_module("torch")
    given = {key: torch.from_numpy(array) for key, array in np.load(folder / "in.npz").items()}
    typed = {key: x.view(getattr(torch, job["small"][key])) if key in job["small"] else x for key, x in given.items()}
    for number, run in enumerate(job["runs"]):
        arguments: list[Any] = []
        for key in run["arrays"]:
            if key.startswith("*"):
                parts = [typed[name] for name in typed if name.rsplit(".", 1)[0] == f"{number}/{key[1:]}"]
                arguments.append(torch.tensor([part.data_ptr() for part in parts], dtype=torch.int64))
            else:
                arguments.append(typed[f"{number}/{key}"])
        getattr(module, run["name"])[tuple(run["grid"])](*arguments, **run["scalars"])
    return {key: array.numpy() for key, array in given.items()}


def _compile(function: Any, job: dict[str, Any]) -> dict[str, Any]:
    triton = import_module("triton")
    gluon = type(function).__name__ == "GluonJITFunction"
    source = import_module("triton.experimental.gluon._runtime").GluonASTSource if gluon else None
    source = source or import_module("triton.compiler").ASTSource
    options = {"num_warps": job["warps"]} if job["warps"] else {}
    target = import_module("triton.backends.compiler").GPUTarget
    constants = {(function.arg_names.index(name),): value for name, value in job["constants"].items()}
    signature = {name: "constexpr" if name in job["constants"] else kind for name, kind in job["signature"].items()}
    whole = source(fn=function, signature=signature, constexprs=constants)
    made = triton.compile(whole, target=target(*job["target"]), options=options)
    texts = {stage: text for stage, text in made.asm.items() if isinstance(text, str)}
    return {stage: np.frombuffer(text.encode(), dtype=np.uint8) for stage, text in texts.items()}


def main(folder: Path) -> None:
    """Do what ``job.json`` in the folder says; results go to ``out.npz``."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    sys.path.insert(0, str(folder))
    module = import_module("kernel")
    if job["task"] == "interpret":
        found = _interpret(module, job, folder)
    else:
        found = _compile(getattr(module, job["name"]), job)
    np.savez(folder / "out.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
