"""The kernel IR: statements, and the kernel that they make up. The whole grammar is in this file.

::

    kernel    = Kernel(name, params, mesh, grid, body, choices)
    statement = Alloc | Let | For | While | When | Break | Continue | On
              | Op
              | Init | Arrive | Wait | Commit | WaitGroup | Fence | Sync | Signal | Await

A statement is executed by the threads of the nearest `On` around it. Tensors are storage: an operator reads regions and
writes regions; there are no results. Integers are index expressions over the symbols that `Grid`, `For`, `Let` and `On`
bind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tileweave.index import Expr
from tileweave.kernel.ir.values import NOWHERE, KernelTensor, Line, Number, Region, Scalar, Scope

Option = int | float | bool | str | Expr | tuple[int, ...]
GroupKind = Literal["cp.async", "bulk", "wgmma", "tcgen05"]
FenceKind = Literal[
    "proxy.async", "mbarrier_init", "wgmma", "cta", "gpu", "sys", "tcgen05.before", "tcgen05.after", "tcgen05.wait_ld"
]
Lanes = Literal["each", "warp", "one"]


@dataclass(frozen=True, slots=True)
class Alloc:
    """Storage from here to the end of the enclosing body; registers belong to the threads of the scope around it."""

    tensor: KernelTensor
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Let:
    """A symbol gets a value: an expression, or the one element of a region. A symbol may get several in turn."""

    symbol: Expr
    value: Number | Region
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class For:
    """The body for ``start, start + step, ..`` below `stop`.

    Args:
        symbol: the counter.
        start, stop, step: numbers; the step is positive.
        body: statements.
        stages: how many iterations dispatch may have in flight; 1: as written.
        unroll: whether the body is written out.
    """

    symbol: Expr
    start: Number
    stop: Number
    step: Number
    body: tuple[Statement, ...]
    stages: int = 1
    unroll: bool = False
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class While:
    """The body as long as the condition holds, which is looked at before each iteration."""

    condition: Expr
    body: tuple[Statement, ...]
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class When:
    """One of two bodies."""

    condition: Expr
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Break:
    """Leaves the nearest loop."""

    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Continue:
    """The next iteration of the nearest loop."""

    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class On:
    """The body by the threads of a scope; the others pass by. Neighbouring bodies of disjoint scopes run side by side.

    Args:
        scope: the threads.
        body: statements.
        each: the number of the entity, where every entity executes the body by itself; None: all together.
        registers: registers per thread from here on (``setmaxnreg``); None: as launched.
    """

    scope: Scope
    body: tuple[Statement, ...]
    each: Expr | None = None
    registers: int | None = None
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Op:
    """An operator on whole regions, executed once by the scope; `operators.OPERATORS` says what each one takes.

    Args:
        name: the operator.
        outs: what it writes.
        ins: what it reads; a region that is added to is in both.
        options: name and value, sorted by name.
        barrier: for `copy_async`, the mbarrier on which it completes; None: the thread's current group.
    """

    name: str
    outs: tuple[Region, ...]
    ins: tuple[Region | Scalar, ...] = ()
    options: tuple[tuple[str, Option], ...] = ()
    barrier: Region | None = None
    line: Line = field(default=NOWHERE, compare=False)

    def option(self, name: str, default: Option | None = None) -> Option | None:
        """The value of an option."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True, slots=True)
class Init:
    """An mbarrier gets its arrival count; one thread does it, a `Fence` and a `Sync` publish it."""

    barrier: Region
    count: Number
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Arrive:
    """Arrivals on an mbarrier.

    Args:
        barrier: one element of type mbarrier.
        lanes: one arrival per thread of the scope, per warp, or one in all.
        bytes: bytes that the phase waits for besides (``expect_tx``); None: none.
        cta: the block of the cluster whose barrier it is; None: the own one.
    """

    barrier: Region
    lanes: Lanes = "each"
    bytes: Number | None = None
    cta: Number | None = None
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Wait:
    """Every thread of the scope waits until the mbarrier's phase of this parity has completed."""

    barrier: Region
    parity: Number
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Commit:
    """Closes the current group of asynchronous operations of a kind.

    Args:
        kind: the kind of group.
        barrier: for `tcgen05`, the mbarrier that gets one arrival when all products issued so far are complete.
        mask: blocks of the cluster whose barrier it is, one bit each; None: the own one.
    """

    kind: GroupKind
    barrier: Region | None = None
    mask: int | None = None
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class WaitGroup:
    """Waits until at most `pending` of the committed groups of a kind are unfinished.

    Args:
        kind: the kind of group.
        pending: how many may be unfinished.
        read: only until their sources have been read (``.read``, kind bulk).
    """

    kind: GroupKind
    pending: int
    read: bool = False
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Fence:
    """Orders accesses of the executing threads: to memory of a reach, or between proxies."""

    kind: FenceKind
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Sync:
    """The threads of the scope wait for each other; what they wrote to shared and global memory is then visible.

    Args:
        barrier: the hardware barrier, 0 to 15; a scope below the block needs its own. None: chosen by dispatch.
        cluster: all blocks of the cluster.
    """

    barrier: int | None = None
    cluster: bool = False
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Signal:
    """Adds to a flag in global or symmetric memory, after everything that the scope wrote before (release)."""

    flag: Region
    value: Number = 1
    line: Line = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True)
class Await:
    """Waits until a flag has reached a value; what was written before its signals is then visible (acquire)."""

    flag: Region
    at_least: Number
    line: Line = field(default=NOWHERE, compare=False)


Statement = (
    Alloc | Let | For | While | When | Break | Continue | On | Op
    | Init | Arrive | Wait | Commit | WaitGroup | Fence | Sync | Signal | Await
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to execute an operator: whether it is legal, and why."""

    name: str
    legal: bool
    reason: str

    def __str__(self) -> str:
        return f"{self.name} {'yes' if self.legal else 'no'} ({self.reason})"


@dataclass(frozen=True, slots=True)
class Choice:
    """What dispatch took for an operator, and what it weighed.

    Args:
        op: the operator, as written.
        atom: the instruction that was taken, by its name in the atom table; or the name of a schedule.
        reasons: every candidate, best first.
        order: where it adds, its result in NumPy by the order in which the instructions add.
    """

    op: Op
    atom: str
    reasons: tuple[Candidate, ...] = ()
    order: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.op.name} {', '.join(map(str, self.op.outs))}: " + " | ".join(map(str, self.reasons))


@dataclass(frozen=True, slots=True)
class Grid:
    """Blocks of the kernel: `block` counts them from 0, and the coordinates are expressions in it.

    Args:
        block: the symbol of the linear number.
        size: how many there are.
        coords: (symbol, expression in `block`), in the order that the user named.
        extents: the extent of each coordinate.
        cluster: blocks of one cluster.
    """

    block: Expr
    size: Number
    coords: tuple[tuple[Expr, Expr], ...] = ()
    extents: tuple[Number, ...] = ()
    cluster: int = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel: what every block of a grid, on every device of a mesh, executes.

    Args:
        name: a C identifier.
        params: tensors in global or symmetric memory, in the order of the arguments.
        mesh: (axis, extent) of the devices; empty for one device.
        grid: the blocks.
        body: statements; the outermost `On` of kind ``cta`` says how many threads a block has.
        choices: what dispatch decided; empty before.
        line: where the user defined it.
    """

    name: str
    params: tuple[KernelTensor, ...]
    mesh: tuple[tuple[str, int], ...]
    grid: Grid
    body: tuple[Statement, ...]
    choices: tuple[Choice, ...] = ()
    line: Line = field(default=NOWHERE, compare=False)

    @property
    def threads(self) -> int:
        """Threads of a block: the largest scope of kind ``cta``."""
        return max((s.scope.threads for s in walk(self.body) if isinstance(s, On)), default=32)

    @property
    def dispatched(self) -> bool:
        """Whether no operator is left."""
        return not any(isinstance(s, Op) for s in walk(self.body))


def blocks_of(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """The bodies inside a statement."""
    if isinstance(statement, When):
        return (statement.body, statement.otherwise)
    if isinstance(statement, For | While | On):
        return (statement.body,)
    return ()


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement, outer before inner, in order."""
    for statement in body:
        yield statement
        for inner in blocks_of(statement):
            yield from walk(inner)
