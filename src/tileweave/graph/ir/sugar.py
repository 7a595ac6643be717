"""NumPy-like notation on tensors: ``h @ w + b``, slicing, reductions, ``np.asarray``.

The methods call the operators by name. They import them on call, because operators are built on the very nodes
that carry this notation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from tileweave.graph.ir.nodes import Tensor

__all__ = ["TensorSugar"]


def _call(name: str, *args: Any, **kwargs: Any) -> Tensor:
    from tileweave import graph

    return cast("Tensor", getattr(graph, name)(*args, **kwargs))


def _reduced(name: str, x: TensorSugar, axis: Any, keepdims: bool, numpys: Mapping[str, Any]) -> Tensor:
    """A reduction, also as `numpy.sum` and its like call it: with arguments of NumPy's own at their defaults."""
    from tileweave.errors import GraphError

    for option, value in numpys.items():
        if option not in ("dtype", "out", "ddof") or not (value is None or (option == "ddof" and value == 0)):
            problem = f"{option}={value!r} is NumPy's own"
            raise GraphError(f"{name}(tensor, ..)", problem, legal="axis and keepdims, or np.asarray(tensor) first")
    return _call(name, x, axis, keepdims=keepdims)


class TensorSugar:
    """Operators and methods of `Tensor`; comparison with ``==`` stays identity, `equal` compares values."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Tensor:
        """NumPy's functions of elements are the operators of their names; an ndarray on the left lets the tensor
        answer."""
        from tileweave import graph
        from tileweave.errors import DtypeError

        name = ufunc.__name__
        if method == "__call__" and not options and name in graph.__all__ and name not in ("equal", "not_equal"):
            return _call(name, *inputs)
        called = name if method == "__call__" else f"{name}.{method}"
        legal = f"np.{called} of np.asarray(tensor), which evaluates it"
        if method == "__call__" and name in graph.__all__:
            legal = f"tileweave.graph.{name}, or {legal}"
        raise DtypeError(f"np.{called}(tensor)", "NumPy does not compute tensors", legal=legal)

    def __add__(self, other: Any) -> Tensor:
        return _call("add", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _call("add", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _call("subtract", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _call("subtract", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _call("multiply", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _call("multiply", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _call("divide", other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return _call("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return _call("floor_divide", other, self)

    def __mod__(self, other: Any) -> Tensor:
        return _call("remainder", self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return _call("remainder", other, self)

    def __pow__(self, other: Any) -> Tensor:
        return _call("power", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return _call("power", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return _call("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return _call("matmul", other, self)

    def __neg__(self) -> Tensor:
        return _call("negative", self)

    def __pos__(self) -> Tensor:
        return cast("Tensor", self)

    def __abs__(self) -> Tensor:
        return _call("absolute", self)

    def __lt__(self, other: Any) -> Tensor:
        return _call("less", self, other)

    def __le__(self, other: Any) -> Tensor:
        return _call("less_equal", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return _call("greater", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return _call("greater_equal", self, other)

    def __getitem__(self, key: Any) -> Tensor:
        return _call("getitem", self, key)

    def __len__(self) -> int:
        shape = cast("Tensor", self).shape
        if not shape:
            raise TypeError("len() of a tensor of rank 0")
        return shape[0]

    def __bool__(self) -> bool:
        raise TypeError("a tensor has no truth value before it is run; evaluate it with np.asarray(tensor)")

    def __iter__(self) -> Any:
        raise TypeError("a tensor is not iterated; slice it, or evaluate it with np.asarray(tensor)")

    @property
    def T(self) -> Tensor:
        """All dimensions in reverse order."""
        return _call("transpose", self)

    def transpose(self, *axes: int) -> Tensor:
        """Dimensions in the given order; reversed when none is given."""
        return _call("transpose", self, axes or None)

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The sum over some or all dimensions."""
        return _reduced("sum", self, axis, keepdims, numpys)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The greatest value over some or all dimensions."""
        return _reduced("max", self, axis, keepdims, numpys)

    def min(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The least value over some or all dimensions."""
        return _reduced("min", self, axis, keepdims, numpys)

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The mean over some or all dimensions."""
        return _reduced("mean", self, axis, keepdims, numpys)

    def prod(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The product over some or all dimensions."""
        return _reduced("product", self, axis, keepdims, numpys)

    def var(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The mean square distance from the mean over some or all dimensions."""
        return _reduced("variance", self, axis, keepdims, numpys)

    def std(self, axis: int | Sequence[int] | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The square root of the variance over some or all dimensions."""
        return _reduced("standard_deviation", self, axis, keepdims, numpys)

    def argmax(self, axis: int | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The first place of the greatest value along one dimension."""
        return _reduced("argmax", self, axis, keepdims, numpys)

    def argmin(self, axis: int | None = None, keepdims: bool = False, **numpys: Any) -> Tensor:
        """The first place of the least value along one dimension."""
        return _reduced("argmin", self, axis, keepdims, numpys)

    def astype(self, dtype: Any) -> Tensor:
        """The same values in another element type, converted as NumPy converts them."""
        return _call("cast", self, dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        from tileweave.graph.passes.evaluate import evaluate

        if copy is False:
            raise ValueError("a tensor has no array to share; np.asarray(tensor) evaluates it into a new one")
        array = evaluate([cast("Tensor", self)])[0]
        return array if dtype is None else array.astype(dtype)
