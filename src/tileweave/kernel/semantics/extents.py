"""How much of a tile exists, followed from memory through copies and products; what is left out is seldom meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileweave.kernel.ir import Op
from tileweave.kernel.semantics.access import RegionAccess
from tileweave.kernel.semantics.machine import Interpreter

_MEMORY = ("global", "symmetric")


def follow(machine: Interpreter, op: Op, out: RegionAccess, inputs: Sequence[Any], label: str) -> None:
    """Notes what of an output exists, and warns of products of unequal depths and of results that are not stored.

    Args:
        machine: takes the warnings.
        op: what is executed.
        out: its output.
        inputs: its inputs, as accesses or numbers.
        label: what messages call the threads.
    """
    found = [existing(one) if isinstance(one, RegionAccess) else None for one in inputs[:2]]
    made = None
    if op.name in ("copy", "copy_async"):
        made = found[0]
        if made is not None and out.region.tensor.space in _MEMORY and not out.empty:
            kept = _shown(out, out.valid)
            for there, here in zip(made, kept, strict=True):
                if there > here:
                    text = f"{out.region} takes {here} of {there} that exist of {inputs[0].region} in {label}"
                    machine.warnings.setdefault(
                        ("not stored", op.line), f"{op.line}: {text}: the others are not stored"
                    )
    elif op.name == "gemm":
        a, b = found
        if a is not None and b is not None and a[1] != b[1]:
            text = f"a product of {a[1]} terms of {inputs[0].region} with {b[1]} of {inputs[1].region} in {label}"
            machine.warnings.setdefault(("depths", op.line), f"{op.line}: {text}: zeros are read for the others")
        made = None if a is None or b is None else (a[0], b[0])
    _note(out, made)


def existing(access: RegionAccess) -> tuple[int, ...] | None:
    """How much of a region exists, in each dimension that it shows; None where nobody knows."""
    if any(access.skip):
        return None
    if access.region.tensor.space in _MEMORY:
        return _shown(access, access.valid)
    known = access.storage.known.get((access.begin, access.region.extent))
    return None if known is None else _shown(access, [min(k, v) for k, v in zip(known, access.valid, strict=True)])


def _note(out: RegionAccess, made: Sequence[int] | None) -> None:
    known, place = out.storage.known, (out.begin, out.region.extent)
    if made is None or any(extent != out.region.extent for _, extent in known):
        known.clear()  # what was known is of values that may be written over
    if made is not None and out.region.tensor.space not in _MEMORY:
        whole = [1] * len(out.begin)
        for d, n in zip(out.region.dims, made, strict=True):
            whole[d] = min(n, out.valid[d])
        known[place] = tuple(whole)


def _shown(access: RegionAccess, valid: Sequence[int]) -> tuple[int, ...]:
    return tuple(valid[d] for d in access.region.dims)
