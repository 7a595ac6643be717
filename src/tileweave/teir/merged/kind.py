"""Kernel kinds: merged operations whose extents and strides are parameters.

A kind keeps what code is better for knowing: the operation and its types, which modes an operand stands still on, and
where an operand is dense. Everything else is a parameter with a name, so operations of other sizes are the same kind
with other values: `kind_of` takes an operation apart, `bind` puts it together again.

Source: own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tileweave.index import Expr, evaluate, symbol
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.program import Program
from tileweave.teir.merged.form import MergedOp, Mode

Size = int | Expr
"""A number that code is specialised on, or a parameter."""


@dataclass(frozen=True, slots=True)
class KindMode:
    """A mode whose extent and strides may be parameters."""

    extent: Size
    strides: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """An operation whose sizes are parameters.

    Args:
        op: the operation without its modes; its tensors are numbered from 0 in the order in which they appear, and its
            offsets are 0.
        dtypes: of the operands.
        modes: outermost first.
        offsets: bytes added to each operand's address.
    """

    op: MergedOp
    dtypes: tuple[str, ...]
    modes: tuple[KindMode, ...]
    offsets: tuple[Size, ...]

    @property
    def key(self) -> str:
        """What code is specialised on, in one line: per mode and operand ``0``, ``1`` where it is dense, ``s`` else."""
        widths = [width_bytes(dtype) for dtype in self.dtypes]

        def shown(size: Size, width: int) -> str:
            return "s" if isinstance(size, Expr) else str(size // width)

        modes = [
            f"{mode.extent}({','.join(map(shown, mode.strides, widths))})" if isinstance(mode.extent, Expr) else "1"
            for mode in self.modes
        ]
        what = "; ".join(stage.kind for stage in self.op.stages) or self.op.kind
        flags = [word for word, guard in (("stores", self.op.init), ("ReLU", self.op.relu)) if guard is not None]
        return " ".join([what, "x".join(dict.fromkeys(self.dtypes)), *modes, *flags])


def kind_of(op: MergedOp, program: Program) -> tuple[Kind, dict[str, int]]:
    """The kind of a merged operation, and the values of its parameters.

    Example:
        >>> from tileweave.teir import examples
        >>> from tileweave.teir.merged.merge import merged
        >>> form = merged(examples.guarded_reduction({"m": 8, "n": 9, "k": 10}))
        >>> kind, values = kind_of(form.body[0], form.program)
        >>> kind.key
        'Contraction FP32 n0(1,s,0) n1(s,0,s) n2(0,1,1) stores ReLU'
        >>> {name: value for name, value in values.items() if name.startswith("n")}
        {'n0': 10, 'n1': 8, 'n2': 9}
    """
    numbers: dict[int, int] = {}
    operands = tuple(numbers.setdefault(j, len(numbers)) for j in op.operands)
    dtypes = tuple(program.tensors[j].dtype for j in op.operands)
    widths = [width_bytes(dtype) for dtype in dtypes]
    values: dict[str, int] = {}

    def parameter(name: str, value: int, least: int | None = None) -> Size:
        values[name] = value
        return symbol(name) if least is None else symbol(name, least)

    def stride(k: int, o: int, value: int) -> Size:
        return value if value in (0, widths[o], -widths[o]) else parameter(f"s{k}_{o}", value)

    modes = tuple(
        KindMode(
            1 if mode.extent == 1 else parameter(f"n{k}", mode.extent, 2),
            tuple(stride(k, o, value) for o, value in enumerate(mode.strides)),
        )
        for k, mode in enumerate(op.modes)
    )
    offsets = tuple(0 if value == 0 else parameter(f"o{o}", value) for o, value in enumerate(op.offsets))
    bare = replace(op, operands=operands, modes=(), offsets=(0,) * len(operands))
    return Kind(bare, dtypes, modes, offsets), values


def bind(kind: Kind, values: Mapping[str, int], operands: tuple[int, ...]) -> MergedOp:
    """The operation of a kind for some values of its parameters, on these tensors of a program.

    ``bind(kind, values, op.operands) == op`` for ``kind, values = kind_of(op, program)``.
    """

    def number(size: Size) -> int:
        return size if isinstance(size, int) else int(evaluate(size, values))

    modes = tuple(Mode(number(mode.extent), tuple(map(number, mode.strides))) for mode in kind.modes)
    return replace(kind.op, operands=operands, modes=modes, offsets=tuple(map(number, kind.offsets)))
