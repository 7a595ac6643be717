"""Operators tried on a few index points: what a block makes, and whether blocks make what the whole makes.

Small whole numbers stand for the inputs, so that sums are exact. An operation is tried once, however many shards share
its structure; the tensors that it reads play no part.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from tileweave.graph.ir.nodes import Hole, Operation, Signature, Source, Tensor, TensorType
from tileweave.graph.ops.monoids import combine_states
from tileweave.graph.ops.operators import OPERATORS
from tileweave.kept import keep_last
from tileweave.space import Box

Array = np.ndarray[Any, Any]
_MOST_ELEMENTS = 1 << 16
"""Operations that read more elements for so few points are not tried."""
_SAMPLES = 9
"""Values of an input, from 1 on."""


Trial = Callable[[Operation], tuple[str, ...]]
_KNOWN: dict[tuple[object, ...], tuple[str, ...]] = {}
_MOST_KNOWN = 4096


def made_wrong(operation: Operation) -> tuple[str, ...]:
    """How what the operator makes of one index point differs from the declared outputs."""
    return _tried(_made_wrong, operation, (1,) * operation.index.rank)


def cut_wrong(operation: Operation) -> tuple[str, ...]:
    """How the outputs of a few index points differ from those of the two blocks that each dimension may be cut into."""
    few = [min(n, 2 + k % 2) for k, n in enumerate(operation.index.shape)]
    few = [n if prod(few[:k]) <= 64 else 1 for k, n in enumerate(few)]
    return _tried(_cut_wrong, operation, tuple(few))


def _tried(trial: Trial, operation: Operation, shape: tuple[int, ...]) -> tuple[str, ...]:
    if operation.signature is None or operation.index.empty:
        return ()
    inputs = tuple((name, x.dtype) for name, x in operation.inputs)
    outputs = tuple((name, kind.dtype) for name, kind in operation.outputs)
    key = (trial, operation.operator, shape, inputs, outputs, repr(operation.parameters), operation.signature)
    found = _KNOWN.get(key)
    if found is None:
        with np.errstate(all="ignore"):  # sample values may lie outside an operator's domain
            found = _KNOWN[key] = trial(_structure(operation, shape))
        keep_last(_KNOWN, _MOST_KNOWN)
    return found


def _structure(operation: Operation, shape: tuple[int, ...]) -> Operation:
    """The operation on a small index, without what it reads."""
    signature, index = cast("Signature", operation.signature), Box.of(shape)
    inputs = tuple(
        (name, Tensor(Source(Hole(), TensorType(signature.input(name).span(index).shape, x.dtype))))
        for name, x in operation.inputs
    )
    return replace(operation, index=index, inputs=inputs, outputs=_types(operation, index), after=())


def _types(operation: Operation, index: Box) -> tuple[tuple[str, TensorType], ...]:
    signature = cast("Signature", operation.signature)
    return tuple(
        (name, TensorType(signature.output(name).span(index).shape, kind.dtype)) for name, kind in operation.outputs
    )


_AT_ZERO = frozenset({"erf", "fused"})
"""Operators that take 0 as their single value: `erf_of` need not load SciPy for it, which takes 0.2 s."""


def _values(operation: Operation) -> dict[str, Array] | None:
    single = 0 if operation.operator in _AT_ZERO else 1
    if any(x.size > _MOST_ELEMENTS for _, x in operation.inputs):
        return None
    out = {name: _sample(k, x.shape, x.dtype, single) for k, (name, x) in enumerate(operation.inputs)}
    if "indices" in out:  # places in the first input
        extent = min(operation.inputs[0][1].shape, default=1)
        out["indices"] = out["indices"] % max(1, min(extent, _SAMPLES + 1))  # which every type holds
    if (sizes := out.get("group_sizes")) is not None:  # as many rows as there are, at most
        sizes[...] = operation.parameter("rows") // sizes.size
    return out


def _sample(seed: int, shape: tuple[int, ...], dtype: np.dtype[Any], single: float) -> Array:
    """Values that differ where they can, so that a region which is read in another order shows.

    A single one is given.
    """
    if prod(shape) == 1 and dtype.kind == "f":
        return np.full(shape, single, dtype)
    numbers = np.arange(prod(shape)) % (2 if dtype.kind == "b" else _SAMPLES)
    mixed = np.random.default_rng(seed).permutation(numbers).reshape(shape)
    return (mixed if dtype.kind == "b" else mixed + 1).astype(dtype)


def _made_wrong(operation: Operation) -> tuple[str, ...]:
    inputs = _values(operation)
    if inputs is None:
        return ()
    try:
        made = OPERATORS[operation.operator].block(operation, inputs)
    except Exception as error:
        return (f"{operation.operator} fails on one index point: {type(error).__name__}: {error}",)
    found = []
    for name, kind in operation.outputs:
        if name not in made:
            found.append(f"{operation.operator} makes no output {name}")
        elif made[name].dtype != kind.dtype or made[name].shape != kind.shape:
            got = TensorType(made[name].shape, made[name].dtype)
            found.append(f"output {name} is declared {kind} at one index point, {operation.operator} makes {got}")
    return tuple(found)


def _cut_wrong(operation: Operation) -> tuple[str, ...]:
    inputs = _values(operation)
    if inputs is None:
        return ()
    name = operation.operator
    try:
        whole = OPERATORS[name].block(operation, inputs)
        for out, kind in operation.outputs:
            if whole[out].shape != kind.shape:
                made = f"{out} of shape {whole[out].shape} on the index {operation.index}"
                return (f"{name} makes {made}, not {kind.shape}: parameters and signature differ",)
        for dim, extent in enumerate(operation.index.shape):
            if extent == 1:
                continue
            together = _put_together(operation, inputs, dim)
            wrong = [out for out, _ in operation.outputs if not _same(together[out], whole[out])]
            if wrong:
                along = cast("Signature", operation.signature).dims[dim]
                return (
                    f"{name} makes another {wrong[0]} when it is cut along {along}: parameters and signature differ",
                )
    except Exception as error:
        return (f"{name} fails on the index {operation.index}: {type(error).__name__}: {error}",)
    return ()


def _put_together(operation: Operation, inputs: Mapping[str, Array], dim: int) -> dict[str, Array]:
    """The outputs from two blocks along one dimension: side by side, or combined by the monoid and finished."""
    operator, signature = OPERATORS[operation.operator], cast("Signature", operation.signature)
    reduced = dim in signature.monoids
    halves = operation.index.split(dim, 1)
    made = []
    for half in halves:
        blocks = {
            name: array[_place(signature.input(name).span(half), signature.input(name).span(operation.index))]
            for name, array in inputs.items()
            if not (reduced and name in operator.finish)
        }
        made.append(operator.block(replace(operation, index=half, outputs=_types(operation, half)), blocks))
    if reduced:
        late = {name: inputs[name] for name in operator.finish if name in inputs}
        out = combine_states(signature.monoids[dim], made)
        if operator.finished is None or not late:
            return out
        return {name: operator.finished(operation, array, late) for name, array in out.items()}
    out = {}
    for name, kind in operation.outputs:
        out[name] = np.zeros(kind.shape, kind.dtype)
        projection = signature.output(name)
        for half, part in zip(halves, made, strict=True):
            out[name][_place(projection.span(half), projection.span(operation.index))] = part[name]
    return out


def _place(region: Box, whole: Box) -> tuple[slice, ...]:
    axes = zip(region.start, region.shape, whole.start, strict=True)
    return tuple(slice(a - base, a - base + n) for a, n, base in axes)


def _same(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    tolerance = 2.0 ** {1: 1, 2: -5, 4: -18}.get(a.dtype.itemsize, -40)
    return bool(np.isclose(a.astype(np.float64), b.astype(np.float64), tolerance, tolerance, equal_nan=True).all())
