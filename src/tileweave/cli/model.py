"""``tileweave run model.onnx``: a model where a program stands."""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Collection
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tileweave.errors import GraphError, StorageError
from tileweave.frontends.model import Model
from tileweave.frontends.symbolic import SymbolicModel
from tileweave.graph import Graph, Tensor
from tileweave.runtime.api import run, sink

SUFFIXES = (".onnx",)
"""Files that are models."""


def run_model(options: argparse.Namespace) -> None:
    """Load a model, bind arrays from files, and run it; outputs go to a file, or a line each is printed.

    Raises:
        StorageError: a word that is no NAME=FILE, or a file that cannot be read.
        GraphError: the model cannot be said, or an array does not fit.
    """
    from tileweave.frontends.onnx import load

    model = load(options.program, bind=_bindings(options.bind or []))
    arrays = _arrays(options.arguments, model)
    if options.command == "run":
        _check_complete(arrays, model)
    if isinstance(model, SymbolicModel):
        model = model.at(**model.extents(**arrays))
    results: list[Any] = list(model.outputs.values())
    if getattr(options, "output", None):
        results = [sink(tensor, options.output, key=name) for name, tensor in model.outputs.items()]
    bind: dict[Tensor | str, Any] = {}
    if options.command == "run" and (arrays or model.inputs):
        bind = model.bind(**arrays)
    values = run(results, bind=bind)
    for name, value in zip(model.outputs, values, strict=True):
        print(f"wrote {value}#{name}" if isinstance(value, str) else _line(name, value))


def graph_of_model(path: str, words: list[str]) -> Graph:
    """The graph of a model, its dimensions bound by words such as ``batch=8``.

    Raises:
        StorageError: a word that is no NAME=VALUE, or a file that cannot be read.
        GraphError: the model cannot be said, or a dimension has no extent.
    """
    from tileweave.frontends.onnx import load

    model = load(path, bind=_bindings(words))
    return (model.at() if isinstance(model, SymbolicModel) else model).graph


def _line(name: str, value: np.ndarray[Any, Any]) -> str:
    """One output on one line: its type, and its values as far as they fit."""
    flat = value.reshape(-1)
    shown = (
        " ".join(f"{v:.6g}" for v in flat[:6].astype(np.float64))
        if flat.dtype.kind == "f"
        else " ".join(map(str, flat[:6]))
    )
    more = f" .. ({flat.size} in all)" if flat.size > 6 else ""
    return f"{name}  {value.dtype.name}[{', '.join(map(str, value.shape))}]  {shown}{more}"


def _pair(word: str, what: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals and value):
        raise StorageError("tileweave run MODEL", f"{word!r} is no {what}", legal=what)
    return name, value


def _bindings(words: list[str]) -> dict[str, Any]:
    """``batch=8`` is an extent, ``image=1x3x224x224`` a shape, ``shape=FILE.npy`` a value."""
    made: dict[str, Any] = {}
    for word in words:
        name, value = _pair(word, "NAME=8, NAME=1x3x224x224 or NAME=FILE.npy")
        _once(name, made, "--bind")
        parts = value.split("x")
        if all(part.isascii() and part.isdecimal() for part in parts):
            made[name] = int(value) if len(parts) == 1 else tuple(map(int, parts))
        else:
            made[name] = _read(value)
    return made


def _arrays(words: list[str], model: Model | SymbolicModel) -> dict[str, Any]:
    """The arrays of the inputs, each from its file; an input of one model needs no name."""
    made: dict[str, Any] = {}
    for word in words:
        name, value = ("", word) if "=" not in word and len(model.inputs) == 1 else _pair(word, "NAME=FILE.npy")
        name = name or next(iter(model.inputs))
        _once(name, made, "tileweave run MODEL")
        made[name] = _read(value)
    return made


def _check_complete(arrays: Collection[str], model: Model | SymbolicModel) -> None:
    """Refuses a run where an input has no array."""
    types: dict[str, object] = {
        name: kind.type if isinstance(kind, Tensor) else kind for name, kind in model.inputs.items()
    }
    missing = [f"{name} {kind}" for name, kind in types.items() if name not in arrays]
    if missing and set(arrays) <= types.keys():  # what is no input is said first
        legal = " ".join(f"{name}=FILE.npy" for name in types)
        raise GraphError("tileweave run MODEL", f"no array for {', '.join(missing)}", legal=legal)


def _once(name: str, made: Collection[str], where: str) -> None:
    """Refuses a name that has been given something already."""
    if name in made:
        raise StorageError(where, f"{name!r} is given twice", legal="one value for each name")


def _read(word: str) -> np.ndarray[Any, Any]:
    """An array from FILE.npy, memory-mapped, or from FILE.npz#member."""
    path, _, key = word.partition("#")
    where, legal = "tileweave run MODEL", "FILE.npy or FILE.npz#member"
    try:
        held = np.load(path, mmap_mode="r", allow_pickle=False)
        several = isinstance(held, np.lib.npyio.NpzFile)
        names = held.files if several else []
        array = held[key or names[0]] if key in names or (not key and len(names) == 1) else held
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        reason = "it is no NumPy file" if isinstance(error, ValueError) else str(error)
        raise StorageError(where, f"{word!r} cannot be read as an array: {reason}", legal=legal) from error
    if array is held and (several or key):
        problem = f"{path!r} has no array {key!r}" if key else f"{path!r} holds {len(names)} arrays"
        raise StorageError(
            where, problem, legal=" | ".join(f"{path}#{name}" for name in names) or (legal if several else path)
        )
    return np.asarray(array)
