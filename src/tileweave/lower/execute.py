"""The kernels of shards: which code computes a block, and the cache of compiled programs."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tileweave.backends.cpu import Kernel, compile
from tileweave.backends.cpu.target.memory import empty
from tileweave.errors import BackendError, GraphError
from tileweave.graph import Operation, TensorType
from tileweave.graph.ops.operators import Operator, operator_of
from tileweave.graph.ops.states import combine_states
from tileweave.lower.programs import ELEMENTS, TEIR_DTYPES, in_order, operand, program, steps
from tileweave.space import Box
from tileweave.teir import Program, emit_copy

__all__ = ["compiled", "copy", "describe", "execute"]

Array = np.ndarray[Any, Any]


def describe(operation: Operation, stage: str) -> str:
    """What computes a shard of an operation: ``teir: ...`` for compiled programs, ``numpy: ...`` for definitions."""
    if stage == "combine":
        return f"numpy: combine by {_monoid(operation)}"
    native = steps(operation, stage)
    return f"teir: {native}" if native else f"numpy: {operation.operator}"


def execute(
    operation: Operation,
    stage: str,
    index: Box,
    inputs: Mapping[str, Array],
    *,
    threads: int | None = 1,
    tune: bool = False,
) -> dict[str, Array]:
    """The outputs of one shard.

    Args:
        operation: the whole operation.
        stage: ``block``, ``partial`` (part of a reduction dimension), or ``combine``.
        index: the block of the index; for ``combine`` the index points of the output block.
        inputs: the blocks by input name, any strides, never written. For ``combine`` the partial
            results are ``partial0.out, partial1.out, ..`` (a name per output) beside the inputs that the operator
            applies last.
        threads: that the kernel may use; None: all processors.
        tune: whether the kernel is found by timing, as `tileweave.backends.cpu.compile` does it.

    Returns:
        New arrays by output name.
    """
    operator = operator_of(operation)
    if stage == "combine":
        return _combined(operation, operator, inputs)
    shard = _on_block(operation, index, stage == "partial")
    kind = shard.outputs[0][1]
    some = not kind.box.empty and all(array.size for array in inputs.values())
    if some and describe(operation, stage).startswith("teir"):
        out = empty(kind.shape, kind.dtype)
        _native(operation, inputs, out, threads, tune)
        return {"out": out}
    with np.errstate(all="ignore"):
        return operator.block(shard, inputs)


_SHARDS: weakref.WeakKeyDictionary[Operation, dict[tuple[Box, bool], Operation]] = weakref.WeakKeyDictionary()


def _on_block(operation: Operation, index: Box, partial: bool) -> Operation:
    """The operation as its block function sees it, with the block's index and output types; kept while it lives."""
    if index == operation.index and not partial:
        return operation
    signature = operation.signature
    if signature is None:
        raise GraphError(f"execute({operation.operator})", "the operation has no signature, so it cannot be cut")
    known = _SHARDS.setdefault(operation, {})
    found = known.get((index, partial))
    if found is None:
        outputs = tuple(
            (name, TensorType(signature.output(name).span(index).shape, kind.dtype)) for name, kind in operation.outputs
        )
        found = known[index, partial] = replace(operation, index=index, outputs=outputs, signature=None)
    return found


def _monoid(operation: Operation) -> str:
    signature = operation.signature
    return next(iter(signature.monoids.values())) if signature and signature.monoids else "sum"


def _combined(operation: Operation, operator: Operator, inputs: Mapping[str, Array]) -> dict[str, Array]:
    names = [name for name, _ in operation.outputs]
    count = sum(name.startswith("partial") for name in inputs) // len(names)
    parts = [{name: inputs[f"partial{k}.{name}"] for name in names} for k in range(count)]
    total = combine_states(_monoid(operation), parts)
    if operator.finished is None:
        return {name: array.copy() if array is parts[0][name] else array for name, array in total.items()}
    late = {name: inputs[name] for name in operator.finish}
    with np.errstate(all="ignore"):
        return {name: np.asarray(operator.finished(operation, array, late)) for name, array in total.items()}


# ---------------------------------------------------------------------------------------------------------------------
# native kernels


def _regular(array: Array) -> Array:
    """The array itself where its strides are whole elements and aligned, else a dense copy."""
    whole = all(s % array.itemsize == 0 for s in array.strides)
    return array if whole and array.flags.aligned else np.ascontiguousarray(array)


_KERNELS: OrderedDict[Any, Kernel] = OrderedDict()  # least recently made first
KEEP_KERNELS = 1024
_LOCK = threading.Lock()
_TUNING = threading.Lock()
"""Held while choices are timed, so that they do not disturb each other; other compilations need not wait for them."""


def _native(operation: Operation, inputs: Mapping[str, Array], out: Array, threads: int | None, tune: bool) -> None:
    arrays = {name: _regular(array) for name, array in inputs.items()}
    _kernel(operation, arrays, out, threads, tune)(*in_order(operation, arrays, out))


def compiled(
    operation: Operation, arrays: Sequence[Array], out: Array, threads: int | None, tune: bool = False
) -> Kernel | None:
    """The kernel of a whole operation for operands and an output of these strides; None where NumPy computes it."""
    regular = all(_regular(array) is array for array in (*arrays, out))
    if not regular or not describe(operation, "block").startswith("teir"):
        return None
    names = [name for name, _ in operation.inputs]
    return _kernel(operation, dict(zip(names, arrays, strict=True)), out, threads, tune)


def _kernel(
    operation: Operation, arrays: Mapping[str, Array], out: Array, threads: int | None, tune: bool = False
) -> Kernel:
    key = (
        operation.operator,
        operation.parameters,
        threads,
        tune,
        out.dtype,
        out.strides,
        *((name, array.dtype, array.shape, array.strides) for name, array in arrays.items()),
    )
    return _KERNELS.get(key) or _kept(key, program(operation, arrays, out), threads, tune)


def _kept(key: Any, program: Program, threads: int | None, tune: bool = False) -> Kernel:
    """The program's kernel, kept for the next call with the same key."""
    kernel = _compiled(program, threads, tune)
    _KERNELS[key] = kernel
    while len(_KERNELS) > KEEP_KERNELS:
        _KERNELS.popitem(last=False)
    return kernel


def _compiled(program: Program, threads: int | None, tune: bool) -> Kernel:
    """A callable of the program's tensors in order."""
    with _TUNING if tune else _LOCK:
        try:
            return compile(program, threads=threads, tune=tune)
        except BackendError:
            raise
        except Exception as error:
            raise BackendError("lower", f"{type(error).__name__}: {error}", inputs={"program": program}) from error


def copy(out: Array, source: Array, *, threads: int = 1) -> None:
    """``out[...] = source`` for arrays of one shape; large rearrangements run as compiled TEIR copies."""
    plain = source.flags.c_contiguous and out.flags.c_contiguous
    if plain or out.size < ELEMENTS or out.dtype != source.dtype or out.dtype not in TEIR_DTYPES:
        out[...] = source
        return
    source = _regular(source)
    key = ("copy", threads, out.dtype, source.shape, source.strides, out.strides)
    kernel = _KERNELS.get(key)
    if kernel is None:
        kernel = _kept(key, emit_copy(operand(source), operand(out)), threads)
    kernel(source, out)


def _after_fork() -> None:
    global _LOCK, _TUNING
    _LOCK, _TUNING = threading.Lock(), threading.Lock()  # threads that are gone may hold the old ones


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
