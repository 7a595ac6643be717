"""NumPy's notation on tensors: ``h @ w + b``, slicing, methods, and NumPy's own functions of tensors.

The methods call public functions by name, in a table that the operators fill. A function of NumPy on a tensor is the
public function of its meaning, which makes a tensor, or it is refused: nothing is evaluated unless the user asks for a
value (``np.asarray(t)``, ``float(t)``, ``np.allclose(t, ..)``), so no gradient is cut in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from tileweave.errors import DtypeError, GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileweave.graph.ir.nodes import Tensor

    Axes = int | Sequence[int] | None

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Name of a public function of tensors -> function; `public` adds to it."""
NUMPY: dict[Callable[..., Any], str] = {}
"""NumPy's function -> the public function that means the same."""
READING: set[Callable[..., Any]] = {
    np.allclose, np.array_equal, np.array_equiv, np.array_repr, np.array_str, np.array2string, np.save, np.savez,
    np.savez_compressed, np.savetxt,
}  # fmt: skip
"""NumPy's functions whose result is no array: they ask for the value, so the tensor is evaluated."""
EVALUATE: list[Callable[[Sequence[Any]], list[np.ndarray[Any, Any]]]] = []
"""The evaluator, once `tileweave.graph.passes.evaluate` is loaded."""
NAMESPACE: list[Any] = []
"""The namespace of the array API standard, once `tileweave.graph.array_api` is loaded."""
_SHAPES: dict[Callable[..., Any], str] = {np.shape: "shape", np.ndim: "ndim", np.size: "size"}
_NUMPYS = {
    "ddof": "correction", "a": "x", "a_min": "low", "a_max": "high", "min": "low", "max": "high",
    "constant_values": "value",
}  # fmt: skip
"""NumPy's name of an argument -> ours, where they differ."""
_UNSET: tuple[Any, ...] = (None, np._NoValue)


Function = TypeVar("Function", bound=Callable[..., Any])


def public(*numpys: Callable[..., Any], name: str = "") -> Callable[[Function], Function]:
    """Makes a function a public function of tensors, of its own name or another one.

    Args:
        numpys: functions of NumPy that mean the same, whose calls on tensors become calls of this one.
        name: under which `tileweave.graph` has it.
    """

    def add(function: Function) -> Function:
        known = name or function.__name__
        if known in FUNCTIONS:
            raise GraphError("public(..)", f"the name {known!r} is taken", legal="a new name")
        FUNCTIONS[known] = function
        NUMPY.update(dict.fromkeys(numpys, known))
        return function

    return add


def _call(name: str, *args: Any, **kwargs: Any) -> Tensor:
    return cast("Tensor", FUNCTIONS[name](*args, **kwargs))


def _binary(name: str) -> Callable[[Any, Any], Tensor]:
    return lambda self, other: _call(name, self, other)


def _reflected(name: str) -> Callable[[Any, Any], Tensor]:
    return lambda self, other: _call(name, other, self)


_signature = lru_cache(256)(signature)


def _as_numpy(name: str, *args: Any, **options: Any) -> Tensor:
    """A public function, called with NumPy's names of arguments; those that only NumPy has must be at their default."""
    function = FUNCTIONS[name]
    about = _signature(function)
    known = about.parameters
    given: dict[str, Any] = {}
    for option, value in options.items():
        own = _NUMPYS.get(option, option)
        if own in known or option in known:
            given[own if own in known else option] = value
        elif option != "optimize" and not any(value is unset for unset in _UNSET):
            problem = f"{option}={value!r} is NumPy's own"
            legal = f"{', '.join(list(known)[1:])}, or np.asarray(tensor) first"
            raise GraphError(f"{name}(tensor, ..)", problem, legal=legal)
    try:
        about.bind(*args, **given)
    except TypeError as error:
        legal = f"{', '.join(known)}, or np.asarray(tensor) first"
        raise GraphError(f"{name}(tensor, ..)", str(error), legal=legal) from None
    return cast("Tensor", function(*args, **given))


def _method(name: str) -> Callable[..., Tensor]:
    return lambda self, *args, **options: _as_numpy(name, self, *args, **options)


class TensorSugar:
    """Operators and methods of `Tensor`. Tensors are values: ``==`` asks whether two are the same one."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's functions of elements are the operators of that meaning; an ndarray on the left lets the tensor
        answer."""
        name = NUMPY.get(ufunc)
        if method == "__call__" and not options and name is not None and ufunc not in (np.equal, np.not_equal):
            return _call(name, *inputs)
        called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        legal = f"np.{called} of np.asarray(tensor), which evaluates it"
        if method == "__call__" and name is not None:
            legal = f"tileweave.graph.{name}, or {legal}"
        raise DtypeError(f"np.{called}(tensor)", "NumPy does not compute tensors", legal=legal)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions of arrays are the public functions of that meaning; what asks for values evaluates."""
        if function in NUMPY:
            return _as_numpy(NUMPY[function], *args, **kwargs)
        if function in _SHAPES and len(args) == 1 and not kwargs:
            return getattr(args[0], _SHAPES[function])
        if function in READING:
            return function(*map(_read, args), **{name: _read(value) for name, value in kwargs.items()})
        called = f"np.{function.__name__}"
        raise DtypeError(
            f"{called}(tensor)",
            "no operator has this meaning",
            legal=f"{called} of np.asarray(tensor), which evaluates it and has no gradient",
        )

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __pow__, __rpow__ = _binary("power"), _reflected("power")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __and__, __rand__ = _binary("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _reflected("bitwise_xor")
    __lshift__, __rlshift__ = _binary("left_shift"), _reflected("left_shift")
    __rshift__, __rrshift__ = _binary("right_shift"), _reflected("right_shift")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __getitem__ = _binary("getitem")
    any, all, clip, round = _method("any"), _method("all"), _method("clip"), _method("round")
    cumsum, cumprod, argsort = _method("cumsum"), _method("cumprod"), _method("argsort")
    squeeze, swapaxes, take = _method("squeeze"), _method("swapaxes"), _method("take")
    ravel, flatten = _method("ravel"), _method("ravel")

    __hash__ = object.__hash__  # the slot itself: tables of tensors ask it all the time

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, (bool, int, float, np.ndarray, np.generic)):
            _refuse_comparison("==", "equal")
        return self is other

    def __ne__(self, other: object) -> bool:
        _refuse_comparison("!=", "not_equal")
        return True

    def __invert__(self) -> Tensor:
        return _call("invert", self)

    def __neg__(self) -> Tensor:
        return _call("negative", self)

    def __pos__(self) -> Tensor:
        return cast("Tensor", self)

    def __abs__(self) -> Tensor:
        return _call("absolute", self)

    def __len__(self) -> int:
        shape = cast("Tensor", self).shape
        if not shape:
            raise TypeError("len() of a tensor of rank 0")
        return shape[0]

    def __bool__(self) -> bool:
        raise DtypeError("bool(tensor)", "a tensor has no truth value before it is run", legal="np.asarray(tensor)")

    def __iter__(self) -> Any:
        raise DtypeError("iter(tensor)", "a tensor is not iterated", legal="tensor[k]; np.asarray(tensor)")

    def __contains__(self, value: object) -> bool:
        legal = "tileweave.graph.equal(tensor, value).any(); value in np.asarray(tensor)"
        raise DtypeError("value in tensor", "a tensor is not searched before it is run", legal=legal)

    def __setitem__(self, key: object, value: object) -> None:
        raise DtypeError(
            "tensor[key] = value",
            "a tensor is a value, which nothing changes",
            inputs={"tensor": cast("Tensor", self).type},
            legal="a new tensor: tileweave.graph.where(mask, value, tensor), or scatter_nd(tensor, places, values)",
        )

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return _call("floor_divide", self, other), _call("remainder", self, other)

    def __round__(self, digits: int = 0) -> Tensor:
        return _call("round", self, digits)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("a tensor has no array to share; np.asarray(tensor) evaluates it into a new one")
        array = _read(self)
        return cast("np.ndarray[Any, Any]", array if dtype is None else array.astype(dtype))

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers: the tensor is evaluated."""
        return _read(self).tolist()

    def item(self, *at: int) -> bool | int | float:
        """One element as a Python number: the only one, or that at an index; it is evaluated."""
        if at:
            one = _call("ravel", self)[at[0]] if len(at) == 1 else _call("getitem", self, at)
            return one.item()
        size = cast("Tensor", self).size
        if size != 1:
            raise GraphError(
                "tensor.item()", f"the tensor has {size} elements", legal="one element; np.asarray(tensor)"
            )
        return cast("bool | int | float", _read(self).item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if cast("Tensor", self).dtype.kind not in "iu" or cast("Tensor", self).shape:
            raise TypeError("only a tensor of integers of rank 0 is an index; it is evaluated for that")
        return int(self.item())

    @property
    def T(self) -> Tensor:
        """All dimensions in reverse order."""
        return _call("transpose", self)

    @property
    def mT(self) -> Tensor:
        """The last two dimensions exchanged."""
        return _call("swapaxes", self, -1, -2)

    @property
    def device(self) -> str:
        """Where the array API standard says that tensors are."""
        return "cpu"

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The tensor itself: the array API standard asks for it."""
        if device != "cpu":
            raise GraphError("tensor.to_device(device)", f"there is no device {device!r}", legal="'cpu'")
        return cast("Tensor", self)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return NAMESPACE[0]

    def transpose(self, *axes: Any) -> Tensor:
        """Dimensions in the given order; reversed when none is given."""
        return _call("transpose", self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None)

    def reshape(self, *shape: Any) -> Tensor:
        """The elements in row-major order in another shape; one extent may be -1."""
        return _call("reshape", self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype: Any) -> Tensor:
        """The same values in another element type, converted as NumPy converts them."""
        return _call("cast", self, dtype)

    def sum(self, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The sum over some or all dimensions."""
        return _as_numpy("sum", self, axis, keepdims=keepdims, **options)

    def max(self, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The greatest value over some or all dimensions."""
        return _as_numpy("max", self, axis, keepdims=keepdims, **options)

    def min(self, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The least value over some or all dimensions."""
        return _as_numpy("min", self, axis, keepdims=keepdims, **options)

    def mean(self, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The mean over some or all dimensions."""
        return _as_numpy("mean", self, axis, keepdims=keepdims, **options)

    def prod(self, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The product over some or all dimensions."""
        return _as_numpy("product", self, axis, keepdims=keepdims, **options)

    def var(self, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The mean square distance from the mean over some or all dimensions."""
        return _as_numpy("variance", self, axis, keepdims=keepdims, **options)

    def std(self, axis: Axes = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The square root of the variance over some or all dimensions."""
        return _as_numpy("standard_deviation", self, axis, keepdims=keepdims, **options)

    def argmax(self, axis: int | None = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The first place of the greatest value along one dimension."""
        return _as_numpy("argmax", self, axis, keepdims=keepdims, **options)

    def argmin(self, axis: int | None = None, keepdims: bool = False, **options: Any) -> Tensor:
        """The first place of the least value along one dimension."""
        return _as_numpy("argmin", self, axis, keepdims=keepdims, **options)


def _read(value: Any) -> Any:
    if not isinstance(value, TensorSugar):
        return value
    return EVALUATE[0]([value])[0]


def _refuse_comparison(sign: str, name: str) -> None:
    raise DtypeError(
        f"tensor {sign} other",
        "tensors are values: == asks whether two are the same tensor, not which elements are equal",
        legal=f"tileweave.graph.{name}(x, y) for the elements, `is` for the tensors",
    )
