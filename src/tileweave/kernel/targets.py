"""Targets of kernels, found by name and imported on first use: printers, places to run, the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tileweave.errors import BackendError

#: target -> the module that has ``text(kernel, arch=..)``; place -> the one that has ``run(kernel, arrays, on=..)``.
_PRINTERS = {
    "cuda": "tileweave.backends.cuda.printer",
    "triton": "tileweave.backends.triton.printer",
    "gluon": "tileweave.backends.triton.gluon",
    "mlir": "tileweave.backends.mlir.printer",
    "nki": "tileweave.backends.nki",
}
_RUNNERS = {
    "cpu": "tileweave.backends.cuda.printer",
    "cuda": "tileweave.backends.cuda.printer",
    "mlir": "tileweave.backends.mlir.printer",
    "triton": "tileweave.backends.triton.printer",
    "nki": "tileweave.backends.nki",
}
_DISPATCH = "tileweave.kernel.dispatch"


def register(target: str, module: str, *, places: tuple[str, ...] = ()) -> None:
    """Add a target: a module with ``text(kernel, arch=..)`` and, for its places, ``run(kernel, arrays, on=..)``.

    Raises:
        BackendError: the name is taken by another module.
    """
    for table, names in ((_PRINTERS, (target,)), (_RUNNERS, places)):
        for name in names:
            if table.setdefault(name, module) != module:
                raise BackendError("register(target, module)", f"{name!r} is {table[name]} already")


def printer(target: str) -> Callable[..., Any]:
    """The function that prints kernels for a target."""
    return _found(_PRINTERS, target, "text", "kernel.text(target)")


def runner(place: str) -> Callable[..., Any]:
    """The function that runs kernels at a place."""
    return _found(_RUNNERS, place, "run", "kernel.run(on)")


def dispatcher(function: str) -> Callable[..., Any]:
    """A function of dispatch: ``expand(kernel, arch)`` or ``explain(kernel, arch)``."""
    return _function(_DISPATCH, function, f"kernel.{function}(arch)")


def _found(table: dict[str, str], name: str, function: str, where: str) -> Callable[..., Any]:
    if name not in table:
        extra = ["ir"] if function == "text" else ["interpreter"]
        raise BackendError(where, f"no target {name!r}", legal=" | ".join([*extra, *table]))
    return _function(table[name], function, where)


def _function(module: str, name: str, where: str) -> Callable[..., Any]:
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise BackendError(where, f"{error.name} is not installed") from None
    if found is None:
        raise BackendError(where, f"{module} has no {name!r}")
    return found  # type: ignore[no-any-return]
