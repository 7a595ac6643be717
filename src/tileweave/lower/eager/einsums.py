"""Einsums of arrays, at once: the compiled kernels without a plan.

The meaning, the errors and the order of many operands are those of `tileweave.graph.einsum`: an einsum is built as a
graph of operations on typed holes, and each operation is compiled for the operands' strides. What was made is kept, so
a further call with operands of the same types, shapes and strides costs a look-up and the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from tileweave.backends.base import Resizable, backend, backends
from tileweave.backends.host import thread_count
from tileweave.errors import BackendError, DtypeError, GraphError, LayoutError, TileweaveError
from tileweave.graph import Hole, Operation, Selector, Source, Tensor, TensorType, einsum
from tileweave.graph.ir.dtypes import element_type
from tileweave.graph.ir.nodes import topological
from tileweave.graph.ir.values import read_array
from tileweave.graph.ops.contract import worded
from tileweave.graph.ops.elementwise import promoted
from tileweave.graph.passes.evaluate import gather
from tileweave.kept import cached_property, keep_last
from tileweave.layout.core.search import first_collision
from tileweave.lower.eager.further import KnownKind, run_once, sizes_of
from tileweave.lower.eager.orders import is_row_major, lying, order_of
from tileweave.lower.eager.steps import Call, KernelStep, Quick, into, into_new, quick_of
from tileweave.lower.execute import COPIES, compiled, decide, execute

Array = np.ndarray[Any, Any]

_KEPT: dict[Any, Contraction] = {}
_FAST: dict[Any, Call] = {}
_QUICK: dict[Any, Quick] = {}  # by equation, threads, shapes of two operands, and whether there is no ``out``
_LAST: dict[Any, tuple[Any, ...]] = {}  # the quick one of the shapes met last, by the same without shapes
_ARRAY, _PLAIN = np.ndarray, {np.ndarray}
KEEP_CONTRACTIONS = 1024


def contract(
    *operands: Any,
    out: Array | None = None,
    threads: int | None = None,
    tune: bool = False,
    dtype: Any = None,
    order: str = "C",
    casting: str = "safe",
    optimize: Any = True,
) -> Array:
    """The einsum of arrays, as `numpy.einsum`, by compiled kernels.

    Args:
        operands: an equation such as ``"ij,jk->ik"`` and arrays of any strides, or what `numpy.asarray` makes one of;
            or each array with the list of its indices, and the list of the result's: ``a, [0, 1], b, [1, 2], [0, 2]``.
            ``...`` and an implied output as in NumPy. Large arrays are read fastest from a cache line on, where those
            of `tileweave.backends.cpu.empty` begin.
        out: where the result is written, of its shape, any strides, no memory shared with the operands; of its type,
            or of one to which ``casting`` lets the result be cast. None: a new array.
        threads: that the kernels may use; None: all processors.
        tune: the first call times several ways to compute it, for up to 10 seconds per pair of operands, and remembers
            the fastest for this machine.
        dtype: in which products and sums are formed, where the operands may be cast to it; None: their common type.
        order: how a new array lies: ``C``, ``F``, ``A`` (``F`` where all operands do) or ``K`` (as near to the operands
            as can be). NumPy's default is ``K``.
        casting: ``no``, ``equiv``, ``safe``, ``same_kind`` or ``unsafe``, as `numpy.can_cast`.
        optimize: in which order more than two operands are contracted: as `numpy.einsum_path`, whose paths are taken.
            Without one, True and False alike, the path is our choice.

    Returns:
        ``out``, or a new array, never a view; what a compiled kernel writes begins with a cache line if it is
        large, and cannot be resized in place. Sums are formed in FP32 at least and narrowed once; their order differs
        from NumPy's. The sum of bool is whether any product is true.

    Raises:
        GraphError: the equation does not fit the operands, or ``out`` does not fit the result.
        DtypeError: an element type that cannot be cast, or is not supported.
        LayoutError: elements of ``out`` share memory.
        BackendError: ``threads`` is no positive integer, or ``out`` is read-only or shares memory with an operand.

    Example:
        >>> contract("ij,jk->ik", np.ones((2, 3)), np.ones((3, 2))).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
        >>> contract(np.ones((2, 3)), [0, 1], np.ones(3), [1], order="F").tolist()
        [3.0, 3.0]
    """
    equation: Any = operands[0] if operands else None
    plain = type(equation) is str and dtype is None and order == "C" and casting == "safe" and optimize is True
    try:
        if plain and not tune and (threads is None or type(threads) is int):
            if len(operands) == 3:  # written out: this is most of the overhead of a small call
                _, a, b = operands
                last = _LAST.get((equation, threads, out is None))  # shapes of a call before: the rest is native
                if last is not None:
                    if out is not None:
                        if last[1](a, b, out):
                            return out
                    elif type(a) is _ARRAY is type(b) and a.shape == last[2] and b.shape == last[3]:
                        new: Array = last[0]()
                        if last[1](a, b, new):
                            return new
                if type(a) is _ARRAY is type(b):
                    quick = _QUICK.get((equation, threads, a.shape, b.shape, out is None))
                    if quick is not None:
                        made = quick[0]() if out is None else out
                        if quick[1](a, b, made):
                            _LAST[equation, threads, out is None] = (*quick, a.shape, b.shape)
                            return made
                    key: Any = (equation, threads, a.dtype, a.shape, a.strides, b.dtype, b.shape, b.strides)
                    if out is None:
                        fast = _FAST.get(key)
                        if fast is not None:
                            return fast(a, b)
                    elif type(out) is np.ndarray:
                        fast = _FAST.get((key, out.dtype, out.shape, out.strides))
                        if fast is not None:
                            return fast(a, b, out)
            elif set(map(type, operands[1:])) == _PLAIN and (out is None or type(out) is np.ndarray):
                fast = _FAST.get(_key(equation, threads, operands[1:], out))
                if fast is not None:
                    return fast(*operands[1:]) if out is None else fast(*operands[1:], out)
            if len(operands) == 3:
                found = _further(equation, threads, operands[1], operands[2], out)
                if found is not None:
                    return found
        equation, given = worded("contract(equation, *operands)", operands)
        arrays = [read_array(f"contract({equation!r}, ..)", x, f"operand {k}") for k, x in enumerate(given)]
        how = {"threads": threads, "tune": tune, "order": order, "optimize": optimize}
        return _typed(equation, arrays, out, dtype, casting, how)
    except TileweaveError as error:
        shown = f"contract({equation!r}, ..)" if isinstance(equation, str) else "contract(equation, *operands)"
        where = error.where if error.where.startswith("contract(") else shown
        raise type(error)(where, error.problem, inputs=error.inputs, legal=error.legal, facts=error.facts) from None


_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


def _typed(
    equation: str, arrays: Sequence[Array], out: Array | None, dtype: Any, casting: str, how: Mapping[str, Any]
) -> Array:
    """The einsum formed in a type, and written to an ``out`` of a type to which it may be cast."""
    where = f"contract({equation!r}, ..)"
    if casting not in _CASTINGS:
        raise GraphError(where, f"casting={casting!r} is none", legal=", ".join(_CASTINGS))
    if dtype is not None:
        wanted = element_type(where, dtype)
    else:
        wanted = promoted([element_type(where, array.dtype) for array in arrays] or [np.dtype(float)])
        strict = casting in ("no", "equiv")
        if wanted.kind != "b" and not strict and getattr(out, "dtype", wanted) == wanted:
            return _known(equation, arrays, out, **how)
    given = out if isinstance(out, np.ndarray) and out.dtype.isnative else None
    if dtype is None and given is not None:
        wanted = promoted([wanted, element_type(where, given.dtype)])
    for k, array in enumerate(arrays):
        _castable(where, f"operand {k}", array.dtype, wanted, casting)
    if wanted.kind == "b":  # a sum of truths is true where one of them is
        counts = [array.astype(bool).astype(np.int64) for array in arrays]
        made = _known(equation, counts, None, **how).astype(bool)
    else:
        arrays = [array.astype(wanted, copy=False) for array in arrays]
        if out is None or given is None or given.dtype == wanted:
            return _known(equation, arrays, out, **how)
        made = _known(equation, arrays, None, **how)
    if given is None:
        return made if out is None else _known(equation, arrays, out, **how)
    _castable(where, "out does not fit: the result", wanted, given.dtype, casting)
    if given.shape != made.shape or not given.flags.writeable:
        problem = "out does not fit" if given.shape != made.shape else "out is read-only"
        raise GraphError(where, problem, inputs={"out": _shown(given)}, legal=f"{list(made.shape)}, writeable")
    with np.errstate(all="ignore"):
        given[...] = made.astype(given.dtype)
    return given


def _castable(where: str, what: str, have: np.dtype[Any], to: np.dtype[Any], casting: Any) -> None:
    if not np.can_cast(have, to, casting):
        legal = "casting='same_kind' or 'unsafe'"
        raise DtypeError(where, f"{what} of {have.name} is not cast to {to.name} with casting={casting!r}", legal=legal)


def _known(
    equation: str,
    arrays: Sequence[Array],
    out: Array | None,
    threads: int | None,
    tune: bool,
    order: str,
    optimize: Any,
) -> Array:
    """The einsum by what is kept for such operands, which is made where it is missing."""
    thread_count(f"contract({equation!r}, ..)", threads)
    key = _key(equation, threads, arrays, out if isinstance(out, np.ndarray) else None)
    if order != "C" or not isinstance(optimize, bool):
        key = (key, str(order), str(optimize))
    made = _KEPT.get(key)
    if made is None or (tune and not made.tuned):
        made = _KEPT[key] = Contraction(
            equation, *arrays, out=out, threads=threads, tune=tune, order=order, optimize=optimize
        )
        _keep(key, made)
        kind = None if tune or order != "C" or not isinstance(optimize, bool) else made.kind()
        if kind is not None:
            _KINDS[equation, threads, *(array.dtype for array in arrays)] = kind
            _bound(_KINDS)
    return made(*arrays, out=out)


def _keep(key: Any, made: Contraction) -> None:
    """Have a contraction found by the next call on such operands."""
    _KEPT[key] = made
    _bound(_KEPT)
    if made.fast is not None:
        _keep_call(key, made.fast, made.quick)


def _keep_call(key: Any, fast: Call, quick: Quick | None) -> None:
    """The call for operands of a `_key`, and what looks at two operands itself."""
    _FAST[key] = fast
    new = len(key) != 4
    given = key if new else key[0]
    if quick is not None and len(given) == 8:
        _QUICK[given[0], given[1], given[3], given[6], new] = quick
    for kept in (_FAST, _QUICK, _LAST):
        _bound(kept)


def _bound(kept: dict[Any, Any]) -> None:
    keep_last(kept, KEEP_CONTRACTIONS)


_KINDS: dict[Any, KnownKind] = {}
_MET: dict[Any, KernelStep] = {}
"""Steps for sizes that have come once and may come again, by their kind and what the arrays look like."""


def _further(equation: str, threads: int | None, a: Any, b: Any, out: Any) -> Array | None:
    """The einsum of two arrays by the code of a kind that is known; None where there is none."""
    if type(a) is not _ARRAY or type(b) is not _ARRAY or not (out is None or type(out) is _ARRAY):
        return None
    kind = _KINDS.get((equation, threads, a.dtype, b.dtype))
    if kind is None or backends()[0] is not kind.backend:
        return None
    if not (a.flags.aligned and b.flags.aligned and (out is None or out.flags.aligned)):
        return None
    given: Any = (kind, a.shape, a.strides, b.shape, b.strides)
    given = given if out is None else (given, *_about(out))
    step = _MET.get(given)
    if step is None:
        step = kind.step(a, b, out)
        if step is None:
            return None
        _MET[given] = step
        _bound(_MET)
        return run_once(step, a, b, out)
    own = cast("Resizable", step.kernel).own()
    if own is None:
        return run_once(step, a, b, out)
    made = step.new() if out is None else out
    steps = (KernelStep(own, step.inputs, step.new),)
    quick = quick_of(steps, [_about(a), _about(b), _about(made)])
    fast = (into_new if out is None else into)(steps, quick)
    _MET.pop(given, None)
    _keep_call(_key(equation, threads, (a, b), out), fast, quick)
    return fast(a, b) if out is None else fast(a, b, out)


class Contraction:
    """An einsum made ready for operands of one type, shape and strides each; call it with such arrays.

    Args:
        equation: as `contract`.
        operands: samples; only their types, shapes and strides matter.
        out: a sample of what results are written to; None: a new array in row-major order. Calls may give another.
        threads: as `contract`.
        tune: as `contract`.
        order: of new results, as `contract`.
        optimize: as `contract`.

    Example:
        >>> a = np.arange(6.0).reshape(2, 3)
        >>> product = Contraction("ij,kj->ik", a, a)
        >>> product(a, a).tolist()
        [[5.0, 14.0], [14.0, 50.0]]
    """

    def __init__(
        self,
        equation: str,
        *operands: Array,
        out: Array | None = None,
        threads: int | None = None,
        tune: bool = False,
        order: str = "C",
        optimize: Any = True,
    ) -> None:
        thread_count(f"contract({equation!r}, ..)", threads)
        self.equation = equation
        self.threads = threads
        self.tuned = tune
        self._optimize = optimize
        self._about = [_about(array) for array in operands]
        self.shape, self.dtype = self._graph.result.shape, self._graph.result.dtype
        self._lies = order_of(equation, order, operands, len(self.shape))
        self._out: tuple[Any, ...] | None = None
        self._check(out)
        self._out = None if out is None else _about(out)
        self._steps = self._compiled(operands, out)
        self.quick: Quick | None = None
        self.fast: Call | None = None
        """For arrays of the class ndarray that are known to fit, and an ``out`` behind them if a sample was given."""
        if self._steps:
            made = self._steps[-1].new() if out is None else out
            self.quick = quick_of(self._steps, [*self._about, _about(made)])
            self.fast = (into_new if out is None else into)(self._steps, self.quick)

    @cached_property
    def _graph(self) -> _Graph:
        """The operations that the einsum is."""
        holes = [
            Tensor(Source(Hole(), TensorType(shape, dtype), f"operand {k}"))
            for k, (dtype, shape, _) in enumerate(self._about)
        ]
        result = einsum(self.equation, *holes, optimize=self._optimize)
        return _Graph(holes, [node for node in topological([result]) if isinstance(node, Operation)], result)

    def kind(self) -> KnownKind | None:
        """What serves other sizes as well; None where the sizes decide which operations there are."""
        operations = self._graph.operations
        if len(self._steps) != 1 or len(operations) != 1 or not is_row_major(self._lies):
            return None
        step, equation = self._steps[0], str(dict(operations[0].parameters).get("equation", ""))
        kernel, asked = cast("Resizable", step.kernel), backends()[0]
        terms = equation.replace("->", ",").split(",")
        resizable = hasattr(type(kernel), "resized")  # `isinstance` would make it ready to run, to see that it runs
        if not resizable or decide(operations[0], "block").backend != asked.name or len(terms) != 3:
            return None
        ordered = [terms[step.inputs.index(k)] for k in range(2)] if sorted(step.inputs) == [0, 1] else []
        letters = set("".join(terms))
        once = any(sum(x in term for term in terms) == 1 for x in letters)  # summed beforehand in larger operands
        twice = any(len(set(term)) < len(term) for term in terms)
        if not ordered or not letters or once or twice or set("".join(kernel.axes)) != letters:
            return None
        if [len(term) for term in ordered] != [len(shape) for _, shape, _ in self._about]:
            return None
        summed = "".join(sorted(letters - set(terms[2])))
        given = [*ordered, terms[2]]
        widths = [dtype.itemsize for dtype, _, _ in self._about] + [self.dtype.itemsize]
        sizes = sizes_of(given, step.inputs, kernel.axes, summed, widths)
        return KnownKind(kernel, asked, self.dtype, step.inputs, sizes)

    def __call__(self, *arrays: Array, out: Array | None = None) -> Array:
        """The einsum of these arrays.

        Raises:
            GraphError: arrays of other types, shapes or strides, or an ``out`` that does not fit.
            LayoutError, BackendError: as `contract`.
        """
        if [_about(array) for array in arrays] != self._about:
            found = {f"operand {k}": array for k, array in enumerate(arrays)}
            raise self._error("it was made for other operands", found)
        self._check(out)
        given = arrays if out is None else (*arrays, out)
        if self.fast is not None and set(map(type, given)) == _PLAIN:
            if self._out == (None if out is None else _about(out)):
                return self.fast(*given)
        if out is None:
            return self._stepwise(arrays)
        steps = self._compiled(arrays, out)
        if steps:
            return into(steps, None)(*given)
        out[...] = self._stepwise(arrays)
        return out

    def prepare(self, *arrays: Array, out: Array) -> Callable[[], object]:
        """A function without arguments that writes the einsum of these arrays to ``out``, with no check of its own.

        The arrays are checked now, once, and kept alive. Calls of the result must not overlap in time.
        """
        self(*arrays, out=out)
        steps = self._compiled(arrays, out)
        if not steps:
            return partial(self, *arrays, out=out)
        results = [*(step.new() for step in steps[:-1]), out]
        values = [*arrays, *results]
        calls = [step.kernel.prepare(*step.of(values), made) for step, made in zip(steps, results, strict=True)]
        return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]

    def explain(self) -> str:
        """What computes it, a line per kernel."""
        if len(self._steps) == 1:
            return self._steps[0].kernel.explain()
        lines = []
        for operation in self._graph.operations:
            equation = dict(operation.parameters).get("equation", "")
            lines.append(f"{operation.operator} {equation}".rstrip() + f"  {decide(operation, 'block')}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Contraction({self.equation!r}, {self.dtype.name}{list(self.shape)})"

    def _check(self, out: object) -> None:
        """Passes None, and an array of the result's shape and type whose elements can be written, each alone."""
        legal = f"{self.dtype.name}{list(self.shape)}"
        if out is None:
            return
        if not isinstance(out, np.ndarray):
            raise self._error("out is no array", {}, legal, DtypeError)
        if out.shape != self.shape or out.dtype != self.dtype:
            raise self._error("out does not fit", {"out": out}, legal)
        known = not out.size or _about(out) == self._out
        apart = None if known else first_collision(out.shape, out.strides, out.itemsize)
        if apart is not None:
            problem = f"elements of out that are {apart} apart share memory"
            shown = {"out": _shown(out)}
            raise LayoutError(repr(self), problem, inputs=shown, legal="strides that keep elements apart")
        if not out.flags.writeable:
            raise BackendError(repr(self), "out is read-only", legal="an array that can be written")

    def _compiled(self, arrays: Sequence[Array], out: Array | None) -> tuple[KernelStep, ...]:
        """The kernels, one after the other; none where a part is no kernel's: nothing to sum, or a view between."""
        if isinstance(self._graph.result.producer, Selector) or not all(array.size for array in arrays):
            return ()
        places = {hole: k for k, hole in enumerate(self._graph.holes)}
        samples = list(arrays)
        steps = []
        for operation in self._graph.operations:
            tensors, (_, kind) = [tensor for _, tensor in operation.inputs], operation.outputs[0]
            last = operation is self._graph.operations[-1]
            new: Callable[[], Array] = backend(decide(operation, "block").backend or COPIES).empty(
                kind.shape, kind.dtype
            )
            if last and not is_row_major(self._lies):
                new = partial(lying, kind.shape, kind.dtype, self._lies)
            sample = out if last and out is not None else new()
            if not all(tensor in places for tensor in tensors):
                return ()
            inputs = tuple(places[tensor] for tensor in tensors)
            kernel = compiled(operation, [samples[k] for k in inputs], sample, self.threads, self.tuned)
            if kernel is None:
                return ()
            steps.append(KernelStep(kernel, inputs, new))
            places[Tensor(operation)] = len(samples)
            samples.append(sample)
        return tuple(steps)

    def _stepwise(self, arrays: tuple[Array, ...]) -> Array:
        values = dict(zip(self._graph.holes, arrays, strict=True))
        for operation in self._graph.operations:
            inputs = {name: gather(tensor, values) for name, tensor in operation.inputs}
            made = execute(operation, "block", operation.index, inputs, threads=self.threads, tune=self.tuned)
            values[Tensor(operation)] = made["out"]
        result = gather(self._graph.result, values)
        if is_row_major(self._lies) and not any(np.may_share_memory(result, array) for array in arrays):
            return result
        new = lying(self.shape, self.dtype, self._lies)
        new[...] = result
        return new

    def _error(
        self, problem: str, found: Mapping[str, Array], legal: str = "", kind: type[GraphError] = GraphError
    ) -> GraphError:
        return kind(repr(self), problem, inputs={k: _shown(a) for k, a in found.items()}, legal=legal)


def _shown(array: Array) -> str:
    order = "" if array.dtype.isnative else ", bytes in the other order"
    return f"{array.dtype.name}{list(array.shape)}, strides {list(array.strides)}{order}"


def _about(array: Array) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.strides


def _key(equation: str, threads: int | None, operands: Sequence[Array], out: Array | None) -> tuple[Any, ...]:
    key = (equation, threads, *(part for array in operands for part in _about(array)))
    return key if out is None else (key, *_about(out))


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    """An einsum as operations on holes."""

    holes: list[Tensor]
    operations: list[Operation]
    result: Tensor
