"""Which code an operation becomes: decided from what the document's tables classify it as, and from nothing else.

Source: own; the classification is TEIR's, table 10.6.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tileweave.backends.cpu.llvm.meanings import KNOWN
from tileweave.errors import BackendError
from tileweave.teir.analysis.lower import Brgemm, Gemm, General, Kernel, ScalarKernel
from tileweave.teir.merged.form import MergedOp


class Strategy(Enum):
    """How code computes an operation; the value says it in words."""

    SCALAR = "one element at a time, for it reads what it writes"
    PRODUCT = "packed or in-place panels, register tiles"
    MAP = "vectors along one mode, or a blocked transpose"


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """One row of the table.

    Args:
        strategy: what is chosen.
        kernels: classifications that the row is about.
        applies: whether it may be used; the first row that may is.
    """

    strategy: Strategy
    kernels: tuple[type[Kernel], ...]
    applies: Callable[[MergedOp], bool]


def _reads_itself(op: MergedOp) -> bool:
    return op.kind == "Contraction" and op.operands[2] in op.operands[:2]


def _sums_products(op: MergedOp) -> bool:
    return op.kind == "Contraction"


def _has_stages(op: MergedOp) -> bool:
    return bool(op.stages) and all(stage.kind in KNOWN for stage in op.stages)


_ANY = Kernel.__args__

STRATEGIES = (
    StrategyRow(Strategy.SCALAR, _ANY, _reads_itself),
    StrategyRow(Strategy.PRODUCT, (Gemm, Brgemm, ScalarKernel, General), _sums_products),
    StrategyRow(Strategy.MAP, _ANY, _has_stages),
)
"""In order of preference."""


def strategy_of(op: MergedOp, kernel: Kernel) -> Strategy:
    """The first strategy whose row takes the operation as it is classified.

    Raises:
        BackendError: there is no code for the operation.
    """
    for row in STRATEGIES:
        if isinstance(kernel, row.kernels) and row.applies(op):
            return row.strategy
    raise BackendError(
        "compile(program)",
        f"the CPU backend has no code for the operation {op.kind!r}",
        legal=", ".join(sorted(KNOWN)),
        facts={"source": "", "log": ""},
    )
