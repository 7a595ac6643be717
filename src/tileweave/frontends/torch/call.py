"""A use of an ATen operator, the table of operators by PyTorch's own names, and PyTorch's promotion of types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.values import Value, tensor
from tileweave.graph import Tensor
from tileweave.graph.ir.dtypes import element_type


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One use of an operator.

    Args:
        where: what errors name.
        target: the operator, whose schema names and defaults the arguments.
        arguments: by position.
        options: by name.
    """

    where: str
    target: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def get(self, name: str) -> Any:
        """An argument by its name in the schema, with the schema's default."""
        for k, argument in enumerate(self.target._schema.arguments):
            if argument.name == name:
                if name in self.options:
                    return self.options[name]
                return self.arguments[k] if k < len(self.arguments) else argument.default_value
        raise GraphError(self.where, f"the operator has no argument {name!r}")

    def value(self, index: int) -> Value:
        """An argument by position."""
        return self.get(self.target._schema.arguments[index].name)

    def x(self, index: int = 0) -> Tensor:
        """An argument as a tensor."""
        return tensor(self.value(index), self.where)

    def like(self, index: int, other: Tensor) -> Tensor:
        """An argument as a tensor; a number takes the type of another tensor, of whose kind or below it is.

        Whole numbers wrap where they do not fit.
        """
        value = self.value(index)
        if isinstance(value, bool) or (isinstance(value, int) and other.dtype.kind != "b"):
            wraps = other.dtype.kind in "iu"
            return g.full((), np.asarray(value).astype(other.dtype).item() if wraps else value, other.dtype)
        if isinstance(value, (int, float)):
            kind = np.dtype(np.int64 if isinstance(value, int) else np.float32)
            return g.full((), value, kind if other.dtype.kind in "iub" else other.dtype)
        return tensor(value, self.where)


Operator = Callable[[AtenCall], Any]
OPERATORS: dict[str, Operator] = {}


def aten(*names: str) -> Callable[[Operator], Operator]:
    """Registers a function for ATen operators, or for those of a namespace that the name begins with."""

    def register(function: Operator) -> Operator:
        OPERATORS.update({name if name.count(".") > 1 else f"aten.{name}": function for name in names})
        return function

    return register


def common(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors in PyTorch's common type: a tensor without dimensions does not widen within its kind."""
    if x.dtype == y.dtype:
        return x, y
    order = "biuf"
    kinds = [order.index("f" if t.dtype.kind not in "biu" else t.dtype.kind) for t in (x, y)]
    if not x.shape and y.shape and kinds[0] <= kinds[1]:
        wide = y.dtype
    elif (not y.shape and x.shape and kinds[1] <= kinds[0]) or (kinds[0] == 3 and kinds[1] < 3):
        wide = x.dtype
    elif kinds[1] == 3 and kinds[0] < 3:
        wide = y.dtype
    else:
        wide = np.result_type(x.dtype, y.dtype)
    return cast(x, wide), cast(y, wide)


def cast(x: Tensor, dtype: Any) -> Tensor:
    """A cast, unless the type is the same."""
    return x if x.dtype == np.dtype(dtype) else g.cast(x, dtype)


def like_declared(where: str, made: Any, declared: Any) -> Any:
    """A result as PyTorch declares it: of its element type; a result of another shape is none."""
    if isinstance(made, (tuple, list)) and isinstance(declared, (tuple, list)):
        return tuple(like_declared(where, *pair) for pair in zip(made, declared, strict=False))
    if made is None or not hasattr(declared, "dtype"):
        return made
    shape, dtype = tuple(map(int, declared.shape)), dtype_of(declared.dtype)
    if made.shape != shape:
        problem = f"{dtype.name}{list(made.shape)} instead of {dtype.name}{list(shape)}"
        raise GraphError(where, problem, legal="arguments for which both are the same")
    return cast(tensor(made, where), dtype) if made.dtype != dtype else made


def nothing_like(declared: Any) -> Any:
    """Results without elements, where PyTorch declares nothing else; else None."""
    if isinstance(declared, (tuple, list)):
        made = tuple(map(nothing_like, declared))
        return made if made and all(item is not None for item in made) else None
    if not hasattr(declared, "dtype") or 0 not in declared.shape:
        return None
    return np.zeros(tuple(map(int, declared.shape)), dtype_of(declared.dtype))


def dtype_of(kind: Any) -> np.dtype[Any]:
    """The NumPy type of a torch one."""
    return element_type("from_torch(module)", str(kind).removeprefix("torch."))


def real(x: Tensor) -> Tensor:
    """Integers as float32, as PyTorch's functions of reals take them."""
    return g.cast(x, np.float32) if x.dtype.kind in "biu" else x


def lifted(x: Tensor) -> Tensor:
    """A tensor without dimensions as one of one element: PyTorch's functions along an axis take it so."""
    return x if x.shape else g.reshape(x, (1,))
