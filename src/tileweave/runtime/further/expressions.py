"""Expressions that are written anew, on arrays of any extents: run without a plan of their own where one is known.

Source: own.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tileweave.backends.base import registered
from tileweave.graph import ArrayData, Graph, Hole, Source, Tensor
from tileweave.lower.again.form import form_of, form_of_tensors
from tileweave.lower.forms import kind_of_nodes
from tileweave.lower.reads import never_written
from tileweave.planner import Machines, machines
from tileweave.runtime.direct import QUICK, Found, Idle, Watch
from tileweave.runtime.further.known import KnownForms

Array = np.ndarray[Any, Any]
MOST, MOST_BYTES = 64, 1 << 27
"""As many forms and bindings are kept, and as many bytes of theirs."""


def _brought(source: Source) -> bool:
    data = source.data
    return isinstance(data, Hole) or (isinstance(data, ArrayData) and not never_written(data.array))


KNOWN = KnownForms(_brought, MOST, MOST_BYTES)


@cache
def _here() -> Machines:
    """This host as one machine, looked at once: that takes as long as all else that is asked here of a small graph."""
    return machines(1)


def further(target: Any, threads: int, out: Any) -> list[Any] | Watch | None:
    """The results of a graph that differs from a known one in extents alone, on the arrays that it holds and on this
    host; where none is known, what takes its plan when that is bound.

    Args:
        target: what is computed: a graph, a tensor, or several.
        threads: that kernels may use.
        out: as of `tileweave.run`.
    """
    roots = (target,) if type(target) is Tensor else target
    if isinstance(target, Graph):
        form = form_of(target, _brought)
    elif isinstance(roots, (list, tuple)) and roots and {*map(type, roots)} == {Tensor}:
        form = form_of_tensors(roots, _brought)
    else:
        return None
    if form is None or any(isinstance(form.order[place].data, Hole) for place in form.bound):
        return None
    where = _here()
    kind = kind_of_nodes(form.order, where)
    if kind is None:
        return None
    backends = registered()
    key = form.key, kind, threads, backends
    found = KNOWN.found(form, key, form.sizes, lambda place: form.order[place].data.array, new=out is None)
    if found is None:
        return KNOWN.watch(form, key, where.machines[0].memory_bytes)
    if isinstance(found, list):
        return found
    graph = target if isinstance(target, Graph) else Graph.of(*roots)
    results = KNOWN.ran(replace(found, idle=Idle()), graph, out)
    if results is None or type(target) is not Tensor or not _quickly(target, found, threads, backends):
        found.idle.append(found.executable)
    return results


_KEYS = tuple(object() for _ in range(64))
"""By what the arrays of an expression are known to `Executable.quick`."""
_GONE: dict[int, weakref.ref[Tensor]] = {}


def _quickly(target: Tensor, found: Found, threads: int, backends: tuple[Any, ...]) -> bool:
    """Has a further run of a tensor be one native call; False where it cannot be."""
    one, idle, number = found.executable, found.idle, id(target)
    if one.quick is None:
        if len(found.arrays) > len(_KEYS):
            return False
        one.named(_KEYS[: len(found.arrays)])
    if one.quick is None or number in QUICK:
        return False

    def forget(_: object) -> None:
        """What ran a tensor that is gone runs another one."""
        _GONE.pop(number, None)
        if QUICK.pop(number, None) is not None and not one.running:
            idle.append(one)

    _GONE[number] = weakref.ref(target, forget)
    QUICK[number] = threads, one.quick, dict(zip(_KEYS, found.arrays, strict=False)), backends, (idle, one)
    return True
