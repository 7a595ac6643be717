"""Einsums of arrays, at once: the compiled kernels without a plan.

The meaning, the errors and the order of many operands are those of `tileweave.graph.einsum`: an einsum is built as a
graph of operations on typed holes, and each operation is compiled for the operands' strides. What was made is kept, so
a further call with operands of the same types, shapes and strides costs a look-up and the kernel.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from tileweave.backends.cpu import Kernel
from tileweave.errors import GraphError
from tileweave.graph import Hole, Operation, Selector, Source, Tensor, TensorType, einsum
from tileweave.graph.evaluate import gather
from tileweave.graph.nodes import topological
from tileweave.lower.execute import compiled, describe, execute

__all__ = ["Contraction", "contract"]

Array = np.ndarray[Any, Any]
Call = Callable[..., Array]

_KEPT: OrderedDict[Any, Contraction] = OrderedDict()
_FAST: dict[Any, Call] = {}
KEEP_CONTRACTIONS = 1024


def contract(
    equation: str, *operands: Any, out: Array | None = None, threads: int | None = None, tune: bool = False
) -> Array:
    """The einsum of arrays, as `numpy.einsum`, by compiled kernels.

    Args:
        equation: such as ``"ij,jk->ik"``; ``...`` and an implied output as in NumPy.
        operands: arrays of any strides, or what `numpy.asarray` makes one of.
        out: where the result is written, of its shape and type, any strides, no memory shared with the operands;
            None: a new array.
        threads: that the kernels may use; None: all processors.
        tune: the first call times several ways to compute it, for up to 10 seconds per pair of operands, and remembers
            the fastest for this machine.

    Returns:
        ``out``, or a new array in row-major order. Sums are formed in FP32 at least and narrowed once; their order
        differs from NumPy's.

    Raises:
        GraphError: the equation does not fit the operands, or ``out`` does not fit the result.

    Example:
        >>> contract("ij,jk->ik", np.ones((2, 3)), np.ones((3, 2))).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    counted = threads is None or type(threads) is int
    if out is None and len(operands) == 2 and not tune and counted and type(equation) is str:
        a, b = operands
        if type(a) is np.ndarray and type(b) is np.ndarray:
            fast = _FAST.get((equation, threads, a.dtype, a.shape, a.strides, b.dtype, b.shape, b.strides))
            if fast is not None:
                return fast(a, b)
    if not isinstance(equation, str):
        raise GraphError(
            "contract(equation, *operands)",
            "the equation comes first, and is a text",
            legal="contract('ij,jk->ik', a, b)",
        )
    arrays = [_as_array(equation, k, operand) for k, operand in enumerate(operands)]
    _check_threads(f"contract({equation!r}, ..)", threads)
    about = tuple(part for array in arrays for part in _about(array))
    key = (equation, threads, *about, *(_about(out) if isinstance(out, np.ndarray) else ()))
    made = _KEPT.get(key)
    if made is None or (tune and not made.tuned):
        made = _KEPT[key] = Contraction(equation, *arrays, out=out, threads=threads, tune=tune)
        if made.fast is not None:
            _FAST[key] = made.fast
        while len(_KEPT) > KEEP_CONTRACTIONS:
            _FAST.pop(_KEPT.popitem(last=False)[0], None)
    return made(*arrays, out=out)


def _check_threads(where: str, threads: object) -> None:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise GraphError(where, f"threads={threads!r} is no number of threads", legal="a positive integer, or None")


def _as_array(equation: str, number: int, operand: Any) -> Array:
    try:
        return np.asarray(operand)
    except (TypeError, ValueError) as error:
        problem = f"NumPy reads no array in operand {number}: {error}"
        raise GraphError(f"contract({equation!r}, ..)", problem, legal="an array, a number, nested lists") from None


class Contraction:
    """An einsum made ready for operands of one type, shape and strides each; call it with such arrays.

    Args:
        equation: as `contract`.
        operands: samples; only their types, shapes and strides matter.
        out: a sample of what results are written to; None: a new array in row-major order. Calls may give another.
        threads: as `contract`.
        tune: as `contract`.

    Example:
        >>> a = np.arange(6.0).reshape(2, 3)
        >>> product = Contraction("ij,kj->ik", a, a)
        >>> product(a, a).tolist()
        [[5.0, 14.0], [14.0, 50.0]]
    """

    def __init__(
        self, equation: str, *operands: Array, out: Array | None = None, threads: int | None = None, tune: bool = False
    ) -> None:
        _check_threads(f"contract({equation!r}, ..)", threads)
        self.equation = equation
        self.threads = threads
        self.tuned = tune
        self._about = [_about(array) for array in operands]
        holes = [Source(Hole(), TensorType(a.shape, a.dtype), f"operand {k}") for k, a in enumerate(operands)]
        self._holes = [Tensor(hole) for hole in holes]
        self._result = einsum(equation, *self._holes)
        self._operations = [node for node in topological([self._result]) if isinstance(node, Operation)]
        self.shape, self.dtype = self._result.shape, self._result.dtype
        tensors = [tensor for _, tensor in self._operations[0].inputs] if len(self._operations) == 1 else []
        whole = tensors == self._holes and not isinstance(self._result.producer, Selector)
        self._whole = whole and all(array.size for array in operands)
        self._check(out)
        self.kernel = self._compiled(operands, np.empty(self.shape, self.dtype) if out is None else out)
        self.fast = None
        if out is None and self.kernel is not None:
            self.fast = _direct(self.kernel, self.shape, self.dtype)

    def __call__(self, *arrays: Array, out: Array | None = None) -> Array:
        """The einsum of these arrays.

        Raises:
            GraphError: arrays of other types, shapes or strides, or an ``out`` that does not fit.
        """
        if [_about(array) for array in arrays] != self._about:
            found = {f"operand {k}": array for k, array in enumerate(arrays)}
            raise self._error("it was made for other operands", found)
        self._check(out)
        if out is None:
            plain = all(type(array) is np.ndarray for array in arrays)
            return self.fast(*arrays) if plain and self.fast is not None else self._stepwise(arrays)
        kernel = self._compiled(arrays, out)
        if kernel is None:
            out[...] = self._stepwise(arrays)
        else:
            kernel(*arrays, out)
        return out

    def prepare(self, *arrays: Array, out: Array) -> Callable[[], object]:
        """A function without arguments that writes the einsum of these arrays to ``out``, with no check of its own.

        The arrays are checked now, once, and kept alive. Calls of the result must not overlap in time.
        """
        self(*arrays, out=out)
        kernel = self._compiled(arrays, out)
        return partial(self, *arrays, out=out) if kernel is None else kernel.prepare(*arrays, out)

    def explain(self) -> str:
        """What computes it, a line per kernel."""
        if self.kernel is not None:
            return self.kernel.explain()
        lines = []
        for operation in self._operations:
            equation = dict(operation.parameters).get("equation", "")
            lines.append(f"{operation.operator} {equation}".rstrip() + f"  {describe(operation, 'block')}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Contraction({self.equation!r}, {self.dtype.name}{list(self.shape)})"

    def _check(self, out: object) -> None:
        """Passes None, and an array of the result's shape and type."""
        legal = f"{self.dtype.name}{list(self.shape)}"
        if out is not None and not isinstance(out, np.ndarray):
            raise self._error("out is no array", {}, legal)
        if out is not None and (out.shape != self.shape or out.dtype != self.dtype):
            raise self._error("out does not fit", {"out": out}, legal)

    def _compiled(self, arrays: tuple[Array, ...], out: Array) -> Kernel | None:
        return compiled(self._operations[0], arrays, out, self.threads, self.tuned) if self._whole else None

    def _stepwise(self, arrays: tuple[Array, ...]) -> Array:
        values = dict(zip(self._holes, arrays, strict=True))
        for operation in self._operations:
            inputs = {name: gather(tensor, values) for name, tensor in operation.inputs}
            made = execute(operation, "block", operation.index, inputs, threads=self.threads, tune=self.tuned)
            values[Tensor(operation)] = made["out"]
        return gather(self._result, values)

    def _error(self, problem: str, found: Mapping[str, Array], legal: str = "") -> GraphError:
        types = {name: f"{a.dtype.name}{list(a.shape)}, strides {list(a.strides)}" for name, a in found.items()}
        return GraphError(repr(self), problem, inputs=types, legal=legal)


def _about(array: Array) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.strides


def _direct(kernel: Kernel, shape: tuple[int, ...], dtype: Any) -> Call:
    """The kernel on arrays whose types, shapes and strides are known to fit, into a new array."""
    run_on, empty = kernel.run_on, np.empty

    def call(*arrays: Array) -> Array:
        out = empty(shape, dtype)
        run_on(*arrays, out)
        return out

    return call
