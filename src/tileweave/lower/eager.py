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
from tileweave.lower.execute import compiled, execute

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
    if out is None and len(operands) == 2 and not tune:
        a, b = operands
        if type(a) is np.ndarray and type(b) is np.ndarray:
            fast = _FAST.get((equation, threads, a.dtype, a.shape, a.strides, b.dtype, b.shape, b.strides))
            if fast is not None:
                return fast(a, b)
    arrays = [np.asarray(operand) for operand in operands]
    key = (equation, threads, *(part for a in arrays for part in _about(a)))
    made = _KEPT.get(key)
    if made is None or (tune and not made.tuned):
        made = _KEPT[key] = Contraction(equation, *arrays, threads=threads, tune=tune)
        if made.fast is not None:
            _FAST[key] = made.fast
        while len(_KEPT) > KEEP_CONTRACTIONS:
            _FAST.pop(_KEPT.popitem(last=False)[0], None)
    return made(*arrays, out=out)


class Contraction:
    """An einsum made ready for operands of one type, shape and strides each; call it with such arrays.

    Args:
        equation: as `contract`.
        operands: samples; only their types, shapes and strides matter.
        threads: as `contract`.
        tune: as `contract`.

    Example:
        >>> a = np.arange(6.0).reshape(2, 3)
        >>> product = Contraction("ij,kj->ik", a, a)
        >>> product(a, a).tolist()
        [[5.0, 14.0], [14.0, 50.0]]
    """

    def __init__(self, equation: str, *operands: Array, threads: int | None = None, tune: bool = False) -> None:
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            where = f"contract({equation!r}, ..)"
            raise GraphError(where, f"threads={threads!r} is no number of threads", legal="a positive integer, or None")
        self.equation = equation
        self.threads = threads
        self.tuned = tune
        self._about = [_about(array) for array in operands]
        holes = [Source(Hole(), TensorType(a.shape, a.dtype), f"operand {k}") for k, a in enumerate(operands)]
        self._holes = [Tensor(hole) for hole in holes]
        self._result = einsum(equation, *self._holes)
        self._operations = [node for node in topological([self._result]) if isinstance(node, Operation)]
        self.shape, self.dtype = self._result.shape, self._result.dtype
        self.kernel = self._whole(operands)
        self.fast = None if self.kernel is None else _direct(self.kernel, self.shape, self.dtype)

    def __call__(self, *arrays: Array, out: Array | None = None) -> Array:
        """The einsum of these arrays.

        Raises:
            GraphError: arrays of other types, shapes or strides, or an ``out`` that does not fit.
        """
        if [_about(array) for array in arrays] != self._about:
            found = {f"operand {k}": array for k, array in enumerate(arrays)}
            raise self._error("it was made for other operands", found)
        if out is not None and not isinstance(out, np.ndarray):
            raise self._error("out is no array", {}, f"{self.dtype.name}{list(self.shape)}")
        if out is not None and (out.shape != self.shape or out.dtype != self.dtype):
            raise self._error("out does not fit", {"out": out}, f"{self.dtype.name}{list(self.shape)}")
        if out is None and self.fast is not None and all(type(array) is np.ndarray for array in arrays):
            return self.fast(*arrays)
        if out is not None and self.kernel is not None:
            self._into(out, arrays)
            return out
        value = self._stepwise(arrays)
        if out is None:
            return value
        out[...] = value
        return out

    def prepare(self, *arrays: Array, out: Array) -> Callable[[], object]:
        """A function without arguments that writes the einsum of these arrays to ``out``, with no check of its own.

        The arrays are checked now, once, and kept alive. Calls of the result must not overlap in time.
        """
        self(*arrays, out=out)
        kernel = None if self.kernel is None else compiled(self._operations[0], arrays, out, self.threads, self.tuned)
        return partial(self, *arrays, out=out) if kernel is None else kernel.prepare(*arrays, out)

    def explain(self) -> str:
        """What computes it, a line per kernel."""
        if self.kernel is not None:
            return self.kernel.explain()
        return "\n".join(f"{operation.operator} {operation.parameter('equation')}" for operation in self._operations)

    def __repr__(self) -> str:
        return f"Contraction({self.equation!r}, {self.dtype.name}{list(self.shape)})"

    def _whole(self, operands: tuple[Array, ...]) -> Kernel | None:
        """One kernel for all of it, where it is one operation on the operands themselves."""
        tensors = [tensor for _, tensor in self._operations[0].inputs] if len(self._operations) == 1 else []
        direct = tensors == self._holes and not isinstance(self._result.producer, Selector)
        if not direct or any(a.size == 0 for a in operands):
            return None
        return compiled(self._operations[0], operands, np.empty(self.shape, self.dtype), self.threads, self.tuned)

    def _into(self, out: Array, arrays: tuple[Array, ...]) -> None:
        kernel = compiled(self._operations[0], arrays, out, self.threads, self.tuned)
        if kernel is None:
            out[...] = self._stepwise(arrays)
        else:
            kernel(*arrays, out)

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
