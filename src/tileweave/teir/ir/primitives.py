"""The operations that a primitive may perform: what they need, touch and mean.

An operation is one value in a registry. ``Zero``, ``Copy``, ``ReLU`` and ``Contraction`` are registered here in the
same way as any extension. An operation's meaning is one scalar step; a primitive applies the step once per point of
the product of its axes, M axes outermost, then N, then K, each list in its own order, last axis fastest.

Choices that the document leaves open:

- *Operands by position* (``document`` profile): inputs are ``in0, in1, ..``, the output is ``out``. ``ReLU``
  works in place on ``out``, as the guarded reduction needs it; a ReLU from one tensor to another is a Copy and a ReLU.
- *Copy* between two element types converts as NumPy's ``astype`` does.
- *Contraction* computes a step in the accumulator of the output's type (FP32 for BF16 and FP16), rounded once.

Source: TEIR, section 10.3 and table 10.3.2; operands bound by name are our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tileweave.errors import VerifyError
from tileweave.teir.ir.dtypes import accumulator, contraction_dtype, dtype_name, is_float, numpy_dtype, width_bytes
from tileweave.teir.ir.program import Primitive, Program

Step = Callable[[tuple[Any, ...], Any], Any]


@dataclass(frozen=True, slots=True)
class OperationSpec:
    """What an operation needs, touches and means.

    Args:
        name: as primitives name it.
        roles: the roles that every primitive of this operation must list; they may be empty lists.
        inputs: how many tensors it reads besides its output.
        reads_output: whether the step also reads the output element that it writes.
        contracted: the roles whose axes the output does not move along.
        meaning: the scalar step in words, for people.
        step: ``step(inputs, output) -> new output``, on NumPy arrays of points, each in its tensor's own type.
        dtypes: why these element types (inputs first, output last) do not fit, or ``""``.
        document_operands: operand names in the ``document`` profile, inputs first, output last.
        monoid: the commutative monoid by which the step takes its inputs into the output: sum, prod, max or min. Steps
            of one monoid may change places. ``""`` for other operations.
        parameters: keys of the primitive's metadata whose numbers the step is given after its inputs.
    """

    name: str
    roles: tuple[str, ...]
    inputs: int
    reads_output: bool
    contracted: tuple[str, ...]
    meaning: str
    step: Step
    dtypes: Callable[[tuple[str, ...]], str]
    document_operands: tuple[str, ...]
    monoid: str = ""
    parameters: tuple[str, ...] = ()


_REGISTRY: dict[str, OperationSpec] = {}


def register(spec: OperationSpec) -> OperationSpec:
    """From now on, primitives may name this operation.

    Raises:
        VerifyError: an operation of this name is registered already.
    """
    if spec.name in _REGISTRY:
        raise VerifyError(
            "register(spec)",
            f"an operation {spec.name!r} is registered already",
            facts={"rule": "registry", "path": ""},
        )
    _REGISTRY[spec.name] = spec
    return spec


def operation(name: str) -> OperationSpec:
    """The operation of this name.

    Raises:
        VerifyError: there is none; the message lists the names.
    """
    try:
        return _REGISTRY[name]
    except (KeyError, TypeError):
        raise VerifyError(
            "operation(name)",
            f"no operation {name!r} is registered",
            legal=", ".join(_REGISTRY),
            facts={"rule": "primitive.operation-known", "path": str(name)},
        ) from None


def bound(primitive: Primitive) -> OperationSpec:
    """The operation of a primitive, with its parameters given to the step."""
    spec = operation(primitive.operation)
    if not spec.parameters:
        return spec
    metadata = dict(primitive.metadata)
    values = tuple(metadata[key] for key in spec.parameters)
    return replace(spec, step=lambda inputs, output: spec.step((*inputs, *values), output))


def operations() -> tuple[str, ...]:
    """The registered names, in order of registration."""
    return tuple(_REGISTRY)


def operands_of(primitive: Primitive, program: Program) -> tuple[str, ...]:
    """The names of the tensors that a primitive touches, inputs first, output last."""
    if program.profile == "document":
        return operation(primitive.operation).document_operands
    return primitive.operands


def _zero(inputs: tuple[Any, ...], output: Any) -> Any:
    return np.zeros_like(output)


def _copy(inputs: tuple[Any, ...], output: Any) -> Any:
    return inputs[0].astype(output.dtype)


def _relu(inputs: tuple[Any, ...], output: Any) -> Any:
    return np.maximum(inputs[0], np.zeros_like(inputs[0]))


def _contraction(inputs: tuple[Any, ...], output: Any) -> Any:
    wide = numpy_dtype(accumulator(dtype_name(output.dtype)))
    product = inputs[0].astype(wide) * inputs[1].astype(wide)
    return (output.astype(wide) + product).astype(output.dtype)


def _any_dtype(names: tuple[str, ...]) -> str:
    return ""


def _same_dtype(names: tuple[str, ...]) -> str:
    return "" if len(set(names)) == 1 else f"its operands differ in type: {', '.join(names)}"


def _convertible(names: tuple[str, ...]) -> str:
    source, target = names
    if is_float(source) and not is_float(target):
        return f"a Copy from {source} to {target} has no agreed meaning for NaN and for numbers out of range"
    return ""


def _accumulates_wide(names: tuple[str, ...]) -> str:
    if len({is_float(name) for name in names}) > 1:
        return f"a Contraction mixes integers and floating point: {', '.join(names)}"
    wide = contraction_dtype(*names)
    if width_bytes(wide) > width_bytes(names[-1]):
        return f"a Contraction of {names[0]} and {names[1]} accumulates in {names[-1]}, which is narrower than {wide}"
    return ""


register(
    OperationSpec("Zero", ("M", "N"), 0, False, (), "out = 0", _zero, _any_dtype, ("out",)),
)
register(
    OperationSpec("Copy", ("M", "N"), 1, False, (), "out = in0", _copy, _convertible, ("in0", "out")),
)
register(
    OperationSpec("ReLU", ("M", "N"), 1, False, (), "out = max(in0, 0), NaN kept", _relu, _same_dtype, ("out", "out")),
)
register(
    OperationSpec(
        "Contraction",
        ("M", "N", "K"),
        2,
        True,
        ("K",),
        "out = out + in0 * in1",
        _contraction,
        _accumulates_wide,
        ("in0", "in1", "out"),
        "sum",
    ),
)

DOCUMENT_OPERATIONS: tuple[str, ...] = operations()
"""The operations of the document, which are all that its profile allows."""
