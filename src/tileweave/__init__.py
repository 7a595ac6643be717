"""tileweave: a tensor compiler.

The names here are the main job: write a tensor program, look at its plan, run it on a laptop or a cluster. The rest is
reached through the rooms: ``from tileweave import space, layout, teir, graph, planner``.

Every name is loaded on first use, so importing the package, or one room of it, is light.

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
    from tileweave.graph import (
        Tensor,
        absolute,
        broadcast_to,
        cast,
        concat,
        einsum,
        exp,
        linear,
        log,
        log_softmax,
        matmul,
        max,
        maximum,
        mean,
        min,
        minimum,
        relu,
        sigmoid,
        softmax,
        sqrt,
        sum,
        tanh,
        transpose,
        where,
    )
    from tileweave.graph.passes.grad import grad
    from tileweave.lower import contract
    from tileweave.planner import Machines, Plan
    from tileweave.planner.machines import machines
    from tileweave.runtime.api import plan, run, sink, source


_HOME = {
    "tileweave.errors": ["TileweaveError"],
    "tileweave.lower": ["contract"],
    "tileweave.planner": ["Machines", "Plan", "machines"],
    "tileweave.runtime.api": ["plan", "run", "sink", "source"],
    "tileweave.graph": [
        "Tensor",
        "absolute",
        "broadcast_to",
        "cast",
        "concat",
        "einsum",
        "exp",
        "grad",
        "linear",
        "log",
        "log_softmax",
        "matmul",
        "max",
        "maximum",
        "mean",
        "min",
        "minimum",
        "relu",
        "sigmoid",
        "softmax",
        "sqrt",
        "sum",
        "tanh",
        "transpose",
        "where",
    ],
}
_FROM = {name: home for home, names in _HOME.items() for name in names}
_ROOMS = ("backends", "draw", "errors", "graph", "index", "layout", "lower", "planner", "runtime", "space", "teir")
_INSIDE = {"cute": "tileweave.layout.cute", "axe": "tileweave.layout.axe", "lego": "tileweave.layout.lego"}

__all__ = [
    "Machines",
    "Plan",
    "Tensor",
    "TileweaveError",
    "__version__",
    "absolute",
    "broadcast_to",
    "cast",
    "concat",
    "contract",
    "einsum",
    "exp",
    "grad",
    "linear",
    "log",
    "log_softmax",
    "machines",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "plan",
    "relu",
    "run",
    "sigmoid",
    "sink",
    "softmax",
    "source",
    "sqrt",
    "sum",
    "tanh",
    "transpose",
    "where",
]


def __getattr__(name: str) -> Any:
    if name in _FROM:
        value = getattr(importlib.import_module(_FROM[name]), name)
    elif name in _INSIDE:
        value = importlib.import_module(_INSIDE[name])
    elif name in _ROOMS:
        value = importlib.import_module(f"tileweave.{name}")
    else:
        raise AttributeError(f"module 'tileweave' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, *_INSIDE, "__version__"})
