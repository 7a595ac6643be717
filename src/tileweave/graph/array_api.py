"""The Python array API standard (2024.12) on tensors: what a graph can say, lazily; the rest, with its reason.

Every function makes a tensor and computes nothing. Where the standard leaves a choice, NumPy's is taken; element types
mix as in NumPy. ``x == y`` asks whether two tensors are the same one: `equal` compares elements.

Example:
    >>> import tileweave.graph.array_api as xp
    >>> x = xp.asarray([[3.0, 4.0]])
    >>> np.asarray(xp.sqrt(xp.sum(xp.square(x), axis=1))).tolist()
    [5.0]

Source: the Python array API standard, version 2024.12.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir import sugar
from tileweave.graph.ir.dtypes import element_type
from tileweave.graph.ir.nodes import Tensor
from tileweave.graph.ir.sugar import FUNCTIONS
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import promoted

__array_api_version__ = "2024.12"
e, pi, inf, nan, newaxis = np.e, np.pi, np.inf, np.nan, None
bool, int8, int16, int32, int64 = map(np.dtype, ("bool", "int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = map(np.dtype, ("uint8", "uint16", "uint32", "uint64"))
float32, float64 = np.dtype("float32"), np.dtype("float64")

OWN = {
    "abs": "absolute", "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift", "pow": "power", "permute_dims": "permute", "expand_dims": "unsqueeze",
} | {
    name: name
    for name in (
        "add", "all", "any", "bitwise_and", "bitwise_or", "bitwise_xor", "broadcast_to", "ceil",
        "cos", "cosh", "divide", "equal", "exp", "expm1", "flip", "floor", "floor_divide", "greater", "greater_equal",
        "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10", "log1p", "log2", "logical_and",
        "logical_not", "logical_or", "logical_xor", "matmul", "max", "maximum", "mean", "min", "minimum", "moveaxis",
        "multiply", "negative", "nextafter", "not_equal", "reciprocal", "remainder", "round", "sign", "signbit", "sin",
        "sinh", "sqrt", "square", "stack", "subtract", "take", "take_along_axis", "tan", "tanh", "tile", "trunc",
        "where",
    )
}  # fmt: skip
"""The standard's name -> our function of the same arguments."""
_VALUES = "the shape of the result depends on values"
DECLINED = {
    "nonzero": _VALUES, "unique_all": _VALUES, "unique_counts": _VALUES, "unique_inverse": _VALUES,
    "unique_values": _VALUES, "imag": "complex numbers are no elements",
    "from_dlpack": "asarray takes whatever has __dlpack__",
    "linalg": "of the extension there is matmul, matrix_transpose, tensordot, vecdot", "fft": "there is no transform",
}  # fmt: skip
"""What the standard has and a graph cannot say -> why."""


def _call(name: str, *args: Any, **options: Any) -> Tensor:
    made: Tensor = FUNCTIONS[name](*args, **options)
    return made


globals().update({name: FUNCTIONS[own] for name, own in OWN.items()})


# ---------------------------------------------------------------------------------------------------------------------
# element types


def astype(x: Any, dtype: Any, /, *, copy: builtins.bool = True, device: Any = None) -> Tensor:
    """Another element type."""
    _here("astype", device)
    return _call("cast", x, dtype)


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The element type of the arguments together; Python numbers adapt to the others."""
    numbers = [each for each in arrays_and_dtypes if type(each) in (builtins.bool, int, float)]
    kinds = [_dtype_of(each) for each in arrays_and_dtypes if type(each) not in (builtins.bool, int, float)]
    if not kinds:
        raise DtypeError("result_type(..)", "there are only Python numbers", legal="an array or an element type")
    return np.result_type(promoted(kinds), *numbers) if numbers else promoted(kinds)


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Whether one element type holds every value of another."""
    return np.can_cast(_dtype_of(from_), _dtype_of(to))


def finfo(type: Any, /) -> Any:
    """The limits of a floating type."""
    return np.finfo(_dtype_of(type))


def iinfo(type: Any, /) -> Any:
    """The limits of an integer type."""
    return np.iinfo(_dtype_of(type))


def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Whether an element type is of a kind, or of one of several."""
    if isinstance(kind, tuple):
        return builtins.any(isdtype(dtype, one) for one in kind)
    return np.isdtype(np.dtype(dtype), kind)


def _dtype_of(value: Any) -> np.dtype[Any]:
    return value.dtype if isinstance(value, (Tensor, np.ndarray)) else element_type("array_api", value)


def _here(where: str, device: Any) -> None:
    if device not in (None, "cpu"):
        raise GraphError(f"{where}(.., device)", f"there is no device {device!r}", legal="'cpu', or None")


# ---------------------------------------------------------------------------------------------------------------------
# creation


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: builtins.bool | None = None) -> Tensor:
    """A tensor from a tensor, an array, numbers or nested lists."""
    _here("asarray", device)
    held = as_tensor(obj.copy() if copy and isinstance(obj, np.ndarray) else obj, "asarray(obj)")
    return held if dtype is None or held.dtype == np.dtype(dtype) else astype(held, dtype)


def arange(start: float, /, stop: Any = None, step: float = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Evenly spaced numbers from a start up to a stop, which is left out."""
    _here("arange", device)
    return _call("arange", start, stop, step, dtype=dtype)


def linspace(
    start: float, stop: float, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: builtins.bool = True
) -> Tensor:
    """So many evenly spaced numbers, with the stop or without."""
    _here("linspace", device)
    kind = float64 if dtype is None else dtype
    if endpoint:
        return _call("linspace", start, stop, num, dtype=kind)
    whole = _call("linspace", start, stop, num + 1, dtype=kind)
    return whole[:-1]


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """One number everywhere."""
    _here("full", device)
    return _call("full", _shape(shape), fill_value, dtype=dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros."""
    return full(shape, 0, dtype=float64 if dtype is None else dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones."""
    return full(shape, 1, dtype=float64 if dtype is None else dtype, device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros: a graph has no values that nobody gave."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """One number everywhere, of the shape and, unless asked otherwise, the type of x."""
    x = asarray(x)
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device)


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros like x."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones like x."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Zeros like x."""
    return full_like(x, 0, dtype=dtype, device=device)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Ones on a diagonal."""
    _here("eye", device)
    return _call("eye", n_rows, n_cols, k, dtype=float64 if dtype is None else dtype)


def tril(x: Any, /, *, k: int = 0) -> Tensor:
    """What is on and below a diagonal, zeros elsewhere."""
    return _call("tril", x, k)


def triu(x: Any, /, *, k: int = 0) -> Tensor:
    """What is on and above a diagonal, zeros elsewhere."""
    return _call("triu", x, k)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """Vectors as coordinates of a grid."""
    if indexing not in ("xy", "ij"):
        raise GraphError("meshgrid(..)", f"indexing={indexing!r}", legal="'xy', 'ij'")
    vectors = [asarray(x) for x in arrays]
    order = [1, 0, *range(2, len(vectors))] if indexing == "xy" and len(vectors) > 1 else [*range(len(vectors))]
    shape = [vectors[k].size for k in order]
    made = []
    for k, x in enumerate(vectors):
        own = [1] * len(vectors)
        own[order.index(k)] = x.size
        made.append(_call("broadcast_to", _call("reshape", x, own), shape))
    return made


def _shape(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)


# ---------------------------------------------------------------------------------------------------------------------
# elementwise


def clip(x: Any, /, min: Any = None, max: Any = None) -> Tensor:
    """Numbers kept between bounds, of the type of x."""
    x = asarray(x)
    return astype(_call("clip", x, min, max), x.dtype) if min is not None or max is not None else x


def conj(x: Any, /) -> Tensor:
    """x, since no element is complex."""
    return asarray(x)


def real(x: Any, /) -> Tensor:
    """x, since no element is complex."""
    return asarray(x)


def positive(x: Any, /) -> Tensor:
    """x."""
    return asarray(x)


def copysign(x1: Any, x2: Any, /) -> Tensor:
    """The magnitude of one with the sign of the other."""
    x1, x2 = _alike(x1, x2)
    size = _call("absolute", x1)
    return _call("where", _call("signbit", x2), _call("negative", size), size)


def hypot(x1: Any, x2: Any, /) -> Tensor:
    """The square root of the sum of squares, without overflow in between."""
    a, b = (_call("absolute", x) for x in _alike(x1, x2))
    large, small = _call("maximum", a, b), _call("minimum", a, b)
    rest = _call("where", _call("equal", large, 0.0), large, small / large)
    far = _call("logical_or", _call("isinf", a), _call("isinf", b))
    return _call("where", far, inf, large * _call("sqrt", rest * rest + 1.0))


def logaddexp(x1: Any, x2: Any, /) -> Tensor:
    """``log(exp(x1) + exp(x2))`` without overflow in between."""
    large, small = _call("maximum", x1, x2), _call("minimum", x1, x2)
    same = _call("equal", large, small)  # also where both are infinite
    apart = _call("where", same, 0.0, small - large)
    return large + _call("log1p", _call("exp", apart))


def _alike(*numbers: Any) -> list[Tensor]:
    """Operands in the type that they have together, to which Python numbers adapt."""
    kind = result_type(*numbers)
    return [astype(asarray(x), kind) for x in numbers]


# ---------------------------------------------------------------------------------------------------------------------
# statistics, sums, order


def _summed(x: Tensor, dtype: Any) -> Any:
    """The type in which numbers are added: as asked, or integers of 64 bits for integers."""
    if dtype is not None or x.dtype.kind not in "biu":
        return dtype
    return uint64 if x.dtype.kind == "u" else int64


def sum(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: builtins.bool = False) -> Tensor:
    """Sums; integers are added in 64 bits."""
    x = asarray(x)
    return _call("sum", x, axis, keepdims=keepdims, dtype=_summed(x, dtype))


def prod(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: builtins.bool = False) -> Tensor:
    """Products; integers are multiplied in 64 bits."""
    x = asarray(x)
    return _call("product", x, axis, keepdims=keepdims, dtype=_summed(x, dtype))


def std(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Tensor:
    """Standard deviations."""
    name = "standard_deviation"
    return _call(name, x, axis, correction=correction, keepdims=keepdims)


def var(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: builtins.bool = False) -> Tensor:
    """Variances."""
    return _call("variance", x, axis, correction=correction, keepdims=keepdims)


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: builtins.bool = False
) -> Tensor:
    """Running sums, beginning with 0 where that is asked for."""
    return _running("cumsum", 0, asarray(x), axis, dtype, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: builtins.bool = False
) -> Tensor:
    """Running products, beginning with 1 where that is asked for."""
    return _running("cumprod", 1, asarray(x), axis, dtype, include_initial)


def _running(name: str, first: int, x: Tensor, axis: int | None, dtype: Any, initial: builtins.bool) -> Tensor:
    if axis is None and len(x.shape) != 1:
        raise GraphError(f"{name}(x)", f"there is no axis for {x.type}", legal="an axis, or one dimension")
    dim = (axis or 0) % len(x.shape)
    made: Tensor = _call(name, x, dim, dtype=_summed(x, dtype))
    if not initial:
        return made
    start = full((*x.shape[:dim], 1, *x.shape[dim + 1 :]), first, dtype=made.dtype)
    return concat([start, made], axis=dim)


def count_nonzero(x: Any, /, *, axis: Any = None, keepdims: builtins.bool = False) -> Tensor:
    """How many elements are not zero."""
    return sum(astype(x, bool), axis=axis, keepdims=keepdims)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Tensor:
    """Differences of neighbours, n times."""
    made = asarray(x)
    dim = axis % len(made.shape)
    made = concat([asarray(part) for part in (prepend, made, append) if part is not None], axis=dim)
    for _ in range(n):
        lead = (slice(None),) * dim
        after, before = made[(*lead, slice(1, None))], made[(*lead, slice(None, -1))]
        made = _call("not_equal" if made.dtype.kind == "b" else "subtract", after, before)
    return made


def argmax(x: Any, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """The first place of the greatest value, along an axis or in the flattened tensor."""
    return _place("argmax", asarray(x), axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """The first place of the least value, along an axis or in the flattened tensor."""
    return _place("argmin", asarray(x), axis, keepdims)


def _place(name: str, x: Tensor, axis: int | None, keepdims: builtins.bool) -> Tensor:
    if axis is not None:
        return _call(name, x, axis, keepdims=keepdims)
    found = _call(name, _call("ravel", x), 0)
    return reshape(found, (1,) * len(x.shape)) if keepdims else found


def sort(x: Any, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True) -> Tensor:
    """In order along an axis."""
    return _call("sort", x, axis, descending=descending)


def argsort(x: Any, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True) -> Tensor:
    """The places of the elements in order along an axis."""
    return _call("argsort", x, axis, descending=descending)


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Tensor:
    """Where numbers belong in a sorted vector."""
    x1, x2 = asarray(x1), asarray(x2)
    return _call("searchsorted", x1 if sorter is None else _call("take", x1, sorter, 0), x2, side)


# ---------------------------------------------------------------------------------------------------------------------
# shapes, products


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Tensor:
    """Tensors one behind the other; flattened first where no axis is named."""
    parts = [asarray(x) for x in arrays]
    if axis is None:
        parts, axis = [_call("ravel", x) for x in parts], 0
    kind = promoted([x.dtype for x in parts])
    return _call("concat", [x if x.dtype == kind else astype(x, kind) for x in parts], axis)


def reshape(x: Any, /, shape: Any, *, copy: builtins.bool | None = None) -> Tensor:
    """The same elements in order, in another shape."""
    return _call("reshape", x, _shape(shape))


def squeeze(x: Any, /, axis: Any) -> Tensor:
    """Without dimensions of extent 1."""
    return _call("squeeze", x, axis)


def matrix_transpose(x: Any, /) -> Tensor:
    """The last two dimensions exchanged."""
    return _call("swapaxes", x, -1, -2)


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Every element so many times, one behind the other."""
    return _call("repeat", asarray(x), repeats, axis)


def roll(x: Any, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Elements moved along axes, the last ones to the front; along the flattened tensor where no axis is named."""
    made = asarray(x)
    if axis is None:
        return _call("reshape", _call("roll", _call("ravel", made), shift, 0), made.shape)
    axes = _shape(axis)
    for dim, by in zip(axes, [shift] * len(axes) if isinstance(shift, int) else shift, strict=True):
        made = _call("roll", made, by, dim)
    return made


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The parts along an axis."""
    x = asarray(x)
    return tuple(_call("select", x, axis, k) for k in range(x.shape[axis]))


def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """Tensors in the shape that they broadcast to."""
    parts = [asarray(x) for x in arrays]
    shape = np.broadcast_shapes(*(x.shape for x in parts))
    return [_call("broadcast_to", x, shape) for x in parts]


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Tensor:
    """The sum of products over axes of both."""
    x1, x2 = asarray(x1), asarray(x2)
    first, second = len(x1.shape), len(x2.shape)
    pairs = (range(first - axes, first), range(axes)) if isinstance(axes, int) else axes
    left, right = ([axis % rank for axis in each] for each, rank in zip(pairs, (first, second), strict=True))
    own = list(range(first, first + second))
    for a, b in zip(left, right, strict=True):
        own[b] = a
    free = [k for k in range(first) if k not in left] + [k for k in own if k >= first]
    return _call("einsum", x1, list(range(first)), x2, own, free)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """The sum of products along an axis of both."""
    x1, x2 = (_call("moveaxis", asarray(x), axis, -1) for x in (x1, x2))
    return _call("einsum", "...i,...i->...", x1, x2)


# ---------------------------------------------------------------------------------------------------------------------
# the namespace


class _Information:
    """What the standard's inspection asks for."""

    def capabilities(self) -> dict[str, Any]:
        """No shape depends on values."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": None}

    def default_device(self) -> str:
        """The processor."""
        return "cpu"

    def devices(self) -> list[str]:
        """The processor."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype[Any]]:
        """Types of what has none."""
        return {"real floating": float64, "integral": int64, "indexing": int64}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """Element types by name."""
        every = {kind.name: kind for kind in _DTYPES}
        return {name: dtype for name, dtype in every.items() if kind is None or isdtype(dtype, kind)}


_DTYPES = (bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64)


def __array_namespace_info__() -> _Information:  # noqa: N807  (the standard's name)
    """The namespace's answers about itself."""
    return _Information()


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: value
    for name, value in globals().items()
    if callable(value) and getattr(value, "__module__", "") == __name__ and not name.startswith("_")
}
__all__ = sorted({*OWN, *_FUNCTIONS, *(kind.name for kind in _DTYPES), "e", "pi", "inf", "nan", "newaxis"})
sugar.NAMESPACE.append(sys.modules[__name__])


def __getattr__(name: str) -> Any:
    if name in DECLINED:
        raise AttributeError(f"array_api.{name}: {DECLINED[name]}")
    raise AttributeError(f"the array API has no {name!r} here")


def page() -> str:
    """The namespace function by function, as a page of the documentation."""
    rows = ["# The array API", "", *_INTRODUCTION, "", "| function | here |", "|---|---|"]
    every = {name: f"`tileweave.{own}`" for name, own in OWN.items()}
    every |= {name: (value.__doc__ or "").splitlines()[0] for name, value in _FUNCTIONS.items()}
    every |= {name: f"not here: {reason}" for name, reason in DECLINED.items()}
    rows += [f"| `{name}` | {every[name].replace('|', '&#124;').replace('``', '`')} |" for name in sorted(every)]
    return "\n".join(rows) + "\n"


_INTRODUCTION = (
    "`tileweave.array_api` is the namespace of the Python array API standard (2024.12), as far as a graph can say it:",
    "every function makes a tensor and computes nothing; `tileweave.run` or `np.asarray` asks for the value.",
    "`x.__array_namespace__()` gives it for a tensor. Where it differs from the standard: `x == y` asks whether two",
    "tensors are the same one (`equal` compares elements), element types mix as in NumPy, no shape depends on values,",
    "and nothing is written in place. Made by `make docs`.",
)
