"""The kernels of shards: which code computes a block, and the cache of compiled programs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from tileweave.backends.base import (
    ArrangesConstants,
    Backend,
    Compiled,
    Decision,
    OfDevice,
    TakesSmall,
    backend,
    backends,
)
from tileweave.errors import BackendError, GraphError
from tileweave.graph import Operation, Signature, Tensor, TensorType
from tileweave.graph.ir.interned import pairs_key
from tileweave.graph.ops.fused import fused
from tileweave.graph.ops.monoids import MONOIDS, combine_states
from tileweave.graph.ops.operators import Operator, operator_of
from tileweave.kept import keep_last, lock_of_process
from tileweave.lower import called, ragged
from tileweave.lower.emitted import OperandView, emitted, whole_program
from tileweave.lower.programs import MOVED, in_order, kind_of, lowering, program_kind, result_of
from tileweave.planner.plan import Step
from tileweave.planner.tasks.records import PARTIAL
from tileweave.space import Box
from tileweave.teir import Program, emit_copy

Array = np.ndarray[Any, Any]


_DECIDED: weakref.WeakKeyDictionary[Operation, dict[Any, Decision]] = weakref.WeakKeyDictionary()


_OF_KINDS: dict[Any, Decision] = {}  # first asked first
"""Of kinds of large operations: a model is planned again for each extent of a symbolic dimension."""


def decide(operation: Operation, stage: str, devices: tuple[str, ...] = (), small: bool = False) -> Decision:
    """What computes the shards of an operation: a backend's kernel, or the operator's definition in NumPy, and why.

    Args:
        operation: the whole operation; all shards are computed alike.
        stage: ``block``, ``partial`` or ``combine``.
        devices: the kinds that the machines have; a single one takes what it has kernels for where it is at hand.
        small: whether compiled code is wanted for few elements, too.
    """
    if devices and stage != "combine":
        return _with_devices(operation, stage, devices, small)
    if stage == "combine":
        return Decision(f"combine by {_monoid(operation)}")
    asked = backends()
    known = _DECIDED.setdefault(operation, {})
    key = (stage, small, *map(id, asked))
    if key not in known:
        known[key] = _decision(operation, stage, asked, small)
    return known[key]


def _with_devices(operation: Operation, stage: str, devices: tuple[str, ...], small: bool) -> Decision:
    """The decision for machines with devices, some perhaps with none (an empty name)."""
    known = _DECIDED.setdefault(operation, {})
    key = (stage, small, devices, *map(id, backends()))
    if key not in known:
        usual, whole = decide(operation, stage, small=small), whole_program(operation, stage)
        offers = []
        for one in filter(None, devices):
            by = backend(one)
            found = ragged.decided(operation, by) if whole is None else by.supports(whole)
            missing = by.missing if isinstance(by, OfDevice) else ""
            if found.kernel and not missing and len(devices) == 1:
                usual = found
            away = f"; not run here: {missing}" if missing and found.kernel else ""
            offers.append(replace(found, backend=one, reason=found.reason + away))
        known[key] = replace(usual, offered=tuple(offers))
    return known[key]


def _decision(operation: Operation, stage: str, asked: Sequence[Backend], small: bool) -> Decision:
    by_kind = all(hasattr(one, "by_kind") for one in asked)  # `AnswersByKind`; isinstance is slow
    kind = kind_of(operation, stage) if by_kind else None
    key = (kind, *map(id, asked))
    found = None if kind is None else _OF_KINDS.get(key)
    if found is None:
        found = _asked(operation, stage, asked, small)
        if kind is not None and found.backend:
            _OF_KINDS[key] = found
            keep_last(_OF_KINDS, KEEP_KERNELS)
    return _with_gain(found, operation)


def _with_gain(found: Decision, operation: Operation) -> Decision:
    return replace(found, reason="; ".join(filter(None, (found.reason, _gain(operation))))) if found.backend else found


def _asked(operation: Operation, stage: str, asked: Sequence[Backend], small: bool) -> Decision:
    """What the backends answer to the program of an operation."""
    whole = whole_program(operation, stage)
    if whole is None:
        other = ragged if ragged.takes(operation) else called
        answers = [other.decided(operation, one) for one in asked]
        without = Decision(operation.operator, answers[-1].reason)
        return next((found for found in answers if found.kernel), without)
    refusals = []
    for one in asked:
        found = one.supports_small(whole) if small and isinstance(one, TakesSmall) else one.supports(whole)
        if found.kernel:
            return found
        refusals.append(f"{one.name}: {found.reason}")
    return Decision(operation.operator, "; ".join(refusals))


def _gain(operation: Operation) -> str:
    """What a group saves that a rewrite made, in words; empty for an operation that no rewrite made for speed."""
    if operation.operator == "attention":
        return "keys pass in tiles: scores are neither written nor kept"
    if operation.operator != "conv_chain":
        return ""
    out = operation.output_types["out"]
    spared = 2 * out.box.size * out.dtype.itemsize
    return f"the chain runs on the sums: {spared} bytes less are written and read than by a convolution and a chain"


def execute(
    operation: Operation,
    stage: str,
    index: Box,
    inputs: Mapping[str, Array],
    *,
    threads: int | None = 1,
    tune: bool = False,
    decision: Decision | None = None,
) -> dict[str, Array]:
    """The outputs of one shard.

    Args:
        operation: the whole operation.
        stage: ``block``, ``partial`` (part of a reduction dimension), or ``combine``.
        index: the block of the index; for ``combine`` the index points of the output block.
        inputs: the blocks by input name, any strides, never written. For ``combine`` the partial
            results are ``partial0.out, partial1.out, ..`` (a name per output) beside the inputs that the operator
            applies last. A ``partial`` shard that accumulates has what it adds to as ``partial0.out, ..``.
        threads: that the kernel may use; None: all processors.
        tune: whether the kernel is found by timing, as the backend does it.
        decision: what a plan decided on; by default what `decide` says now.

    Returns:
        New arrays by output name; a kernel makes the last output alone.
    """
    operator = operator_of(operation)
    if stage == "combine":
        return _combined(operation, operator, inputs)
    before = {name: array for name, array in inputs.items() if name.startswith("partial0.")}
    if stage == "partial" and before:
        own = {name: array for name, array in inputs.items() if name not in before}
        made = execute(operation, stage, index, own, threads=threads, tune=tune, decision=decision)
        parts = [{name: before[f"partial0.{name}"] for name in made}, made]
        return combine_states(_monoid(operation), parts)
    name, kind = result_of(operation)
    signature = None if index == operation.index else operation.signature  # a block of all of it makes all
    shape = kind.shape if signature is None else signature.output(name).span(index).shape
    some = 0 not in shape and all(array.size for array in inputs.values())
    decision = decision or decide(operation, stage)
    if some and decision.backend and not (ragged.takes(operation) or called.takes(operation)):
        out = backend(decision.backend).empty(shape, kind.dtype)()
        arrays = {name: regular(array) for name, array in inputs.items()}
        kernel = kernel_of(decision.backend, operation, stage, arrays, out, threads, tune)
        kernel(*in_order(operation, arrays, out))
        return {name: out}
    shard = _on_block(operation, index, stage == "partial")
    if some and decision.backend and ragged.takes(operation):
        return ragged.multiplied(shard, inputs, backend(decision.backend))
    if some and decision.backend and len(shard.outputs) == 1:
        found = called.computed(shard, shard.outputs[0][0], inputs, backend(decision.backend), threads or 1)
        if found is not None:
            return found
    with np.errstate(all="ignore"):
        return operator.block(shard, inputs)


class ShardWork:
    """`execute` for the shards of one operation, one after the other: what those that are alike share is found once.

    Args:
        operation, stage, decision: as `execute`.
    """

    def __init__(self, operation: Operation, stage: str, decision: Decision) -> None:
        self._about, self._decision = (operation, stage), decision
        self._compiled = bool(decision.backend) and stage != "combine"
        self._compiled = self._compiled and not (ragged.takes(operation) or called.takes(operation))
        self._known: dict[Any, tuple[Compiled, Callable[[], Array], list[str], str]] = {}

    def __call__(self, index: Box, inputs: Mapping[str, Array], threads: int) -> dict[str, Array]:
        """As `execute`."""
        if not self._compiled or not all(array.flags.aligned for array in inputs.values()):
            return execute(*self._about, index, inputs, threads=threads, decision=self._decision)
        key = threads, index.shape, *((name, x.dtype, x.shape, x.strides) for name, x in inputs.items())
        known = self._known.get(key)
        if known is not None:
            kernel, new, order, made = known
            out = new()
            kernel(*[inputs[name] if name else out for name in order])
            return {made: out}
        found = execute(*self._about, index, inputs, threads=threads, decision=self._decision)
        accumulates = any(name.startswith(f"{PARTIAL}0.") for name in inputs)
        if len(found) == 1 and not accumulates and all(regular(x) is x and x.size for x in inputs.values()):
            ((made, out),) = found.items()
            if out.size and len(self._known) < KEEP_KERNELS:
                by, (operation, stage) = self._decision.backend, self._about
                kernel = kernel_of(by, operation, stage, inputs, out, threads)
                order = in_order(operation, {name: name for name in inputs}, "")
                self._known[key] = kernel, backend(by).empty(out.shape, out.dtype), order, made
        return found


Writes = Callable[[Mapping[str, Array], Array], object]
"""Writes the only output of a shard, made from its inputs, into an array."""


def definition(
    operation: Operation, index: Box, outputs: Sequence[str]
) -> tuple[Callable[[Mapping[str, Array]], dict[str, Array]], Writes | None]:
    """The operator's function of a shard's inputs, for many calls; they are made with NumPy's warnings off.

    Args:
        operation: the whole operation.
        index: the shard's.
        outputs: those that are read; others may be missing.

    Returns:
        The function, and one that writes the only output into an array, where the operator has it.
    """
    operator, shard = operator_of(operation), _on_block(operation, index, False)
    if operator.spares:
        shard = replace(shard, outputs=tuple(one for one in shard.outputs if one[0] in outputs), signature=None)
    into = partial(operator.into, shard) if operator.into is not None and len(shard.outputs) == 1 else None
    return partial(operator.block, shard), into


def combination(operation: Operation, parts: Sequence[str]) -> Writes | None:
    """What writes the combination of partial results into an array; None where more is done to it, or it has several
    outputs.

    Args:
        operation: the whole.
        parts: the names of the partial results, in their order.
    """
    monoid = MONOIDS.get(_monoid(operation))
    if monoid is None or len(operation.outputs) > 1 or operator_of(operation).finished is not None or len(parts) < 2:
        return None
    combine: Callable[..., object] = monoid.combine  # a function of NumPy
    first, second, *rest = parts

    def write(inputs: Mapping[str, Array], out: Array) -> None:
        combine(inputs[first], inputs[second], out=out)
        for name in rest:
            combine(out, inputs[name], out=out)

    return write


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


MANY_COMBINED = 256
"""Combinations from which on code for them pays in the first runs already, which takes 25 to 55 ms to make: in NumPy
one takes some 15 us, and interrupts a row of calls, which takes 60 to prepare."""
_ELEMENTWISE = {"sum": "add", "product": "multiply", "max": "maximum", "min": "minimum"}


def joined(step: Step, count: int, late: Sequence[str], often: bool = False) -> Step:
    """A step that combines partial results as one that computes the same elementwise, in code, where that pays.

    Args:
        step: any.
        count: of the partial results that each of its tasks reads.
        late: names of the inputs that are applied to their combination.
        often: whether there are many runs, so that it pays for any number of tasks.
    """
    node, few = step.node, not often and step.cuts.count < MANY_COMBINED
    if not isinstance(node, Operation) or step.stage != "combine" or count < 2 or few:
        return step
    name, behind = _ELEMENTWISE.get(_monoid(node), ""), operator_of(node).late
    if not name or [one for one, _ in node.outputs] != ["out"] or list(late) != list(behind.names if behind else ()):
        return step
    dtype = node.output_types["out"].dtype
    steps: list[tuple[str, tuple[int, ...], str]]
    steps = [(name, (-k if k else 0, k + 1), dtype.name) for k in range(count - 1)]
    steps += [("add", (-len(steps) - k, count + k), dtype.name) for k in range(len(late))]
    steps += [(one, (-len(steps) - k,), dtype.name) for k, one in enumerate(behind.then if behind else ())]
    given = [*(Tensor(node, "out") for _ in range(count)), *(node.input(one) for one in late)]
    made = cast("Operation", fused(given, steps).producer)
    own = dict(
        zip((name for name, _ in made.inputs), [*(f"{PARTIAL}{k}.out" for k in range(count)), *late], strict=True)
    )
    signature = cast("Signature", made.signature)
    signature = replace(signature, inputs=tuple((own[name], one) for name, one in signature.inputs))
    made = replace(made, inputs=tuple((own[name], x) for name, x in made.inputs), signature=signature)
    kernel = decide(made, "block", small=True)
    return replace(step, node=made, stage="block", kernel=kernel) if kernel.backend else step


# ---------------------------------------------------------------------------------------------------------------------
# native kernels


def regular(array: Array) -> Array:
    """The array itself where its strides are whole elements and aligned, else a dense copy."""
    whole = all(s % array.itemsize == 0 for s in array.strides)
    return array if whole and array.flags.aligned else np.ascontiguousarray(array)


_KERNELS: dict[Any, Compiled] = {}  # first made first
KEEP_KERNELS = 1024
COPIED = 1 << 16
"""Rearrangements of fewer elements than this are NumPy's."""
COPIES = "cpu"
"""The backend that rearranges blocks on their way between shards: they lie in the memory of the host."""
_LOCK = lock_of_process()
_TUNING = lock_of_process()
"""Held while choices are timed, so that they do not disturb each other; other compilations need not wait for them."""


def compiled(
    operation: Operation, arrays: Sequence[Array], out: Array, threads: int | None, tune: bool = False
) -> Compiled | None:
    """The kernel of a whole operation for operands and an output of these strides; None where NumPy computes it."""
    fits = all(regular(array) is array for array in (*arrays, out))
    decision = decide(operation, "block")
    if not fits or not decision.backend:
        return None
    names = [name for name, _ in operation.inputs]
    return kernel_of(
        decision.backend, operation, "block", dict(zip(names, arrays, strict=True)), out, threads=threads, tune=tune
    )


def kernel_of(
    by: str,
    operation: Operation,
    stage: str,
    arrays: Mapping[str, Array],
    out: Array,
    threads: int | None,
    tune: bool = False,
    constant: Sequence[str] = (),
) -> Compiled:
    """The kernel of a backend for operands by name and an output, of these types, shapes and strides; kept.

    With constant operands it may be one that reads them in an order of its own (`base.Arranged`).
    """
    fixed: tuple[str, ...] = ()
    if constant and not tune and hasattr(backend(by), "compile_constant"):  # a protocol takes 10 us to look at
        fixed = tuple(constant) if lowering(operation, stage).startswith(("windows", "contraction")) else ()
    key = (
        backend(by),  # another one of its name has other kernels
        operation.operator,
        pairs_key(operation.parameters),
        stage,
        threads,
        tune,
        fixed,
        out.dtype,
        out.strides,
        *((name, array.dtype, array.shape, array.strides) for name, array in arrays.items()),
    )
    found = _KERNELS.get(key)
    if found is None:
        views = {name: OperandView.of(array) for name, array in arrays.items()}
        made = emitted(program_kind(operation, stage, list(views)), views, OperandView.of(out))
        names = in_order(operation, {name: name for name in arrays}, "")
        specs = [spec for spec in made.tensors if spec.role != "scratch"]
        named = frozenset(spec.name for spec, name in zip(specs, names, strict=True) if name in fixed)
        found = _kept(key, by, made, threads, tune, named)
    return found


def compiled_program(by: Backend, program: Program, threads: int, constant: frozenset[str]) -> Compiled:
    """A program's kernel; ``constant``: tensors that never change."""
    return _compiled(by, program, threads, False, constant if hasattr(by, "compile_constant") else frozenset())


def _kept(
    key: Any,
    by: str,
    program: Program,
    threads: int | None,
    tune: bool = False,
    constant: frozenset[str] = frozenset(),
) -> Compiled:
    """The program's kernel, kept for the next call with the same key."""
    kernel = _compiled(backend(by), program, threads, tune, constant)
    _KERNELS[key] = kernel
    keep_last(_KERNELS, KEEP_KERNELS)
    return kernel


def _compiled(
    by: Backend, program: Program, threads: int | None, tune: bool, constant: frozenset[str] = frozenset()
) -> Compiled:
    with _TUNING if tune else _LOCK:
        try:
            if constant and isinstance(by, ArrangesConstants):
                return by.compile_constant(program, constant, threads=threads)
            return by.tune(program, threads=threads).kernel if tune else by.compile(program, threads=threads)
        except BackendError:
            raise
        except Exception as error:
            raise BackendError("lower", f"{type(error).__name__}: {error}", inputs={"program": program}) from error


def copy(out: Array, source: Array, *, threads: int = 1) -> None:
    """``out[...] = source`` for arrays of one shape; large rearrangements run as compiled TEIR copies."""
    plain = source.flags.c_contiguous and out.flags.c_contiguous
    if plain or out.size < COPIED or out.dtype != source.dtype or out.dtype not in MOVED:
        out[...] = source
        return
    source = regular(source)
    key = ("copy", threads, out.dtype, source.shape, source.strides, out.strides)
    kernel = _KERNELS.get(key)
    if kernel is None:
        kernel = _kept(key, COPIES, emit_copy(OperandView.of(source).operand, OperandView.of(out).operand), threads)
    kernel(source, out)


SMALL_CONTRACTION = 1 << 19
"""Products of a contraction below which one thread computes it: some 10 us of work, as long as waking another takes."""
SMALL = 1 << 16
"""The same for other operations, in points of their index."""
HEAVY = frozenset(("exp", "log", "sqrt", "tanh", "sigmoid", "erf", "gelu", "sin", "cos", "divide"))
HEAVY_POINTS = 8
"""Operators that take as long as so many additions of an element, which wait for memory."""


def is_small(operation: Operation, index: Box) -> bool:
    """Whether one thread computes a shard sooner than several: by its products, or by its elements."""
    given = dict(operation.parameters)
    if "dilation" in given and operation.signature is not None:
        return dict(operation.signature.costs).get("flops", 2.0) / 2 * index.size < SMALL_CONTRACTION
    if "equation" in given:
        return index.size < SMALL_CONTRACTION
    whole = max(
        tensor.type.box.size
        for tensor in (*(x for _, x in operation.inputs), Tensor(operation, result_of(operation)[0]))
    )
    share = index.size / max(operation.index.size, 1)
    steps: Sequence[tuple[Any, ...]] = operation.parameter("program") if "program" in given else ()
    names = [step[0] for step in steps] or [operation.operator]
    heavy = HEAVY_POINTS if not HEAVY.isdisjoint(names) else 1
    return bool(whole * share * heavy < SMALL)
