"""tileweave: a tensor compiler.

The names here are the main job: write a tensor program, look at its plan, run it on a laptop or a cluster. The rest is
reached through its packages: ``from tileweave import space, layout, teir, graph, planner``.

Every name is loaded on first use, so importing the package, or one package inside it, is light.

Example:
    >>> import numpy as np, tileweave as tw
    >>> x, w = tw.source(np.ones((4, 3))), tw.source(np.ones((3, 2)))
    >>> tw.run(tw.relu(x @ w - 1.0)).tolist()
    [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tileweave.version import __version__

if TYPE_CHECKING:
    from tileweave.errors import TileweaveError
    from tileweave.frontends.onnx import load
    from tileweave.frontends.symbolic import dim, program
    from tileweave.frontends.torch import from_torch
    from tileweave.graph import *
    from tileweave.graph import Tensor
    from tileweave.lower import contract
    from tileweave.planner import Machines, Plan
    from tileweave.planner.machine import machines
    from tileweave.runtime.api import plan, run, sink, source, sources
    from tileweave.runtime.environment import environment


_HOME = {
    "tileweave.errors": ["TileweaveError"],
    "tileweave.frontends.onnx": ["load"],
    "tileweave.frontends.symbolic": ["dim", "program"],
    "tileweave.frontends.torch": ["from_torch"],
    "tileweave.lower": ["contract"],
    "tileweave.planner": ["Machines", "Plan", "machines"],
    "tileweave.runtime.api": ["plan", "run", "sink", "source", "sources"],
    "tileweave.runtime.environment": ["environment"],
    "tileweave.graph": ["Tensor"],
}
_FROM = {name: home for home, names in _HOME.items() for name in names}
_PACKAGES = ("backends", "draw", "errors", "graph", "index", "layout", "lower", "planner", "runtime", "space", "teir")
_INSIDE = {
    "array_api": "tileweave.graph.array_api",
    "nn": "tileweave.graph.nn",
    "cute": "tileweave.layout.cute",
    "axe": "tileweave.layout.axe",
    "lego": "tileweave.layout.lego",
}

__all__ = [
    "Machines",
    "Plan",
    "Tensor",
    "TileweaveError",
    "__version__",
    "contract",
    "dim",
    "environment",
    "from_torch",
    "load",
    "machines",
    "plan",
    "program",
    "run",
    "sink",
    "source",
    "sources",
]


def __getattr__(name: str) -> Any:
    if name in _FROM:
        value = getattr(importlib.import_module(_FROM[name]), name)
    elif name in _INSIDE:
        value = importlib.import_module(_INSIDE[name])
    elif name in _PACKAGES:
        value = importlib.import_module(f"tileweave.{name}")
    elif not name.startswith("__") and name in _functions():
        return _functions()[name]  # the table of operators may change
    else:
        raise AttributeError(f"module 'tileweave' has no attribute {name!r}{_instead(name)}", name=name)
    globals()[name] = value
    return value


def _instead(name: str) -> str:
    """What does the work of a function of NumPy or of the array API standard whose name we lack."""
    if name.startswith("_") or not _functions():
        return ""
    import numpy as np

    theirs = getattr(np, name, None)
    own = importlib.import_module("tileweave.graph.ir.sugar").NUMPY.get(theirs) if callable(theirs) else None
    if own is not None:
        return f": it is tw.{own} here, and np.{name} takes tensors, too"
    standard = getattr(importlib.import_module(_INSIDE["array_api"]), name, None)
    return f": it is tw.array_api.{name} here" if getattr(standard, "__module__", "") == _INSIDE["array_api"] else ""


def _functions() -> dict[str, Any]:
    """The functions of tensors, which the operator table lists."""
    functions: dict[str, Any] = importlib.import_module("tileweave.graph").FUNCTIONS
    return functions


def __dir__() -> list[str]:
    return sorted({*__all__, *_functions(), *_PACKAGES, *_INSIDE})
