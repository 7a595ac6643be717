"""The operator table: one row per operator, and everything else about operators is read from it.

::

    name  meaning in NumPy  what it takes  gradient  marginal costs  lowering  late inputs

A row is made beside the public function of its operator, which `public` names. From the two tables follow the names of
`tileweave.graph`, the notation of tensors, NumPy's functions of them, the checks of documents, gradients, what fusion
may join, and which primitive a backend is asked for. An operator of somebody else's is one more row.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.forms import Form
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, TensorType, Value
from tileweave.graph.ir.sugar import FUNCTIONS
from tileweave.space import Box, Projection

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Block = Callable[[Operation, Arrays], dict[str, Array]]
Into = Callable[[Operation, Arrays, Array], None]
Gradient = Tensor | Callable[[], Tensor]
GradientRule = Callable[[Operation, Tensor, Tensor], Mapping[str, Gradient]]
Costs = tuple[tuple[str, float], ...]

FLOP: Costs = (("flops", 1.0),)
"""The marginal costs of an operator that does one floating-point operation per index point."""
FUNCTION: Costs = (("flops", 1.0), ("functions", 1.0))
"""Of one that evaluates a function by a series, such as an exponential: an operation that takes as long as many."""


@dataclass(frozen=True, slots=True)
class Late:
    """Inputs that a partial block does not use, and how they are applied after the combination.

    Args:
        names: of the inputs.
        apply: (operation, combined block, late inputs) -> output block.
        write: the same as a graph: (combined tensor, late tensors..) -> result.
        then: names of elementwise operators that follow the addition of the late inputs.
    """

    names: tuple[str, ...]
    apply: Callable[[Operation, Array, Arrays], Array]
    write: Callable[..., Tensor]
    then: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of the table.

    Args:
        name: unique.
        block: what it computes on one block of its index: (operation, input blocks) -> output blocks. On a block that
            holds only part of a reduction dimension the result is a partial value, to be combined by the signature's
            monoid. It is called with NumPy's warnings of floating point off: NaN and infinity are values.
        form: the inputs and parameters that it takes, which documents are checked against; None: any.
        gradient: (operation, its result, gradient of the result) -> gradient per input, or what builds it.
        costs: (resource, amount per index point) pairs, the marginal costs that its signature starts from.
        lowering: the primitive that package `lower` asks backends for, by name; empty where there is none.
        late: inputs that are applied to combined partial results.
        arity: of an elementwise operator, whose index is its output and which fusion may join; 0 for all others.
        into: writes its result into an array that may be the very memory of its first input; where there is one.
        spares: whether the block computes just those outputs that the operation which it is given has.
    """

    name: str
    block: Block
    form: Form | None = None
    gradient: GradientRule | None = None
    costs: Costs = FLOP
    lowering: str = ""
    late: Late | None = None
    arity: int = 0
    into: Into | None = None
    spares: bool = False

    @property
    def finish(self) -> tuple[str, ...]:
        """The names of the late inputs."""
        return self.late.names if self.late is not None else ()

    @property
    def finished(self) -> Callable[[Operation, Array, Arrays], Array] | None:
        """How late inputs are applied."""
        return self.late.apply if self.late is not None else None


OPERATORS: dict[str, Operator] = {}
"""The table: operator name -> row. Third parties call `register`."""


def register(operator: Operator) -> Operator:
    """Adds a row; a name that is taken is refused."""
    if operator.name in OPERATORS:
        raise GraphError("register(operator)", f"the name {operator.name!r} is taken", legal="a new name")
    OPERATORS[operator.name] = operator
    return operator


def made(
    name: str,
    index: Sequence[int],
    inputs: Sequence[tuple[str, Tensor, Projection]],
    out: tuple[TensorType, Projection],
    *parameters: tuple[str, Value],
    dims: Sequence[str] = (),
    reductions: tuple[tuple[int, str], ...] = (),
    costs: Costs = FLOP,
) -> Tensor:
    """The output of an operation that has one, with its signature.

    Args:
        name: of the operator.
        index: the extents of the work.
        inputs: (name, tensor, what an index point needs of it).
        out: the type of the output, and what an index point makes of it.
        parameters: (name, value) pairs.
        dims: names of the index dimensions; ``d0, d1, ..`` when left out.
        reductions: (dimension, monoid) pairs.
        costs: (resource, amount per index point) pairs.
    """
    reads = tuple((own, read) for own, _, read in inputs)
    names = tuple(dims) or tuple(f"d{k}" for k in range(len(index)))
    signature = Signature(names, reads, (("out", out[1]),), reductions, costs)
    named = tuple((own, x) for own, x, _ in inputs)
    return Tensor(Operation(name, Box.of(index), named, (("out", out[0]),), parameters, signature))


def program_costs(steps: Iterable[tuple[str, float]], flops: float = 0.0) -> Costs:
    """The marginal costs of steps of a fused program, (operator, how many times per index point), and of operations
    beside them."""
    total = {"flops": flops}
    for name, times in steps:
        for resource, amount in OPERATORS[name].costs if name in OPERATORS else FLOP:
            total[resource] = total.get(resource, 0.0) + amount * times
    return tuple(total.items())


def operator_of(operation: Operation) -> Operator:
    """The row of an operation; the error lists the names there are."""
    return operator_named(operation.operator)


def operator_named(name: str) -> Operator:
    """The row of a name; the error lists the names there are."""
    try:
        return OPERATORS[name]
    except KeyError:
        raise GraphError(
            "operator_of(operation)", f"{name!r} is not an operator", legal=", ".join(sorted(OPERATORS))
        ) from None


def is_elementwise(name: str) -> bool:
    """Whether an operator computes each element of its result alone, from elements at the same place."""
    return name in OPERATORS and OPERATORS[name].arity > 0


class _Tensors:
    """The public functions as attributes: what a definition that is written once for NumPy and for tensors calls."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            return FUNCTIONS[name]
        except KeyError:
            raise AttributeError(name) from None


TENSORS = _Tensors()
