"""Thread programs: what each thread of a block does, instruction by instruction; printers obey them.

Dispatch turns a kernel's operators into a `ThreadProgram`: buffers, loops, branches and instructions of the atom table.
Everything that a printed text does is visible here: which instruction, which address, which slots of registers, which
barrier. Index expressions speak of ``blockIdx_x`` .., of the loops' symbols, and of ``warp`` and ``lane``, the thread's
place in its block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from tileweave.index import Expr, ExprLike, symbol
from tileweave.kernel.atoms import BITS
from tileweave.kernel.ir.values import KernelTensor

#: The lane of a thread in its warp.
LANE = symbol("lane", 0, 32)
#: Bytes of shared memory that a block may declare without asking.
STATIC_SHARED = 48 << 10


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that instructions address: a parameter, a part of shared memory, or registers of each thread.

    Args:
        name: its name in printed text.
        dtype: the element type, by its PTX name.
        space: where it is; ``"peers"``: one on each device of a mesh, all of them visible; ``"cluster"``: shared memory
            that each block of a cluster has and all of them reach; ``"multicast"``: the memory of all devices at one
            address, which ``multimem`` alone may use; ``"tensor"``: columns of tensor memory;
            ``"map"``: a tensor map; ``"barrier"``: mbarriers in shared memory; ``"value"``: a number.
        elements: how many; of one thread for registers.
        alignment: bytes that its address is a multiple of.
        note: a comment for readers: the layout it came from.
    """

    name: str
    dtype: str
    space: Literal["global", "peers", "multicast", "shared", "cluster", "register", "tensor", "map", "barrier", "value"]
    elements: int
    alignment: int = 16
    note: str = field(default="", compare=False)

    @property
    def bytes(self) -> int:
        """Of all elements; a barrier has 8."""
        return 8 * self.elements if self.space == "barrier" else self.elements * BITS[self.dtype] // 8


@dataclass(frozen=True, slots=True)
class TensorBox:
    """What a tensor map describes: boxes of a parameter.

    Args:
        tensor: the parameter's name.
        box: its extents, in the order of the tensor's dimensions.
        swizzle: bytes.
    """

    tensor: str
    box: tuple[int, ...]
    swizzle: int


@dataclass(frozen=True, slots=True)
class Slots:
    """Consecutive registers of the thread."""

    buffer: Buffer
    first: ExprLike = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class ClaimedElement:
    """The element of a tensor that an address claims to be of.

    Args:
        tensor: its layout says where the element lies.
        at: coordinates.
        whole: the tensor with its swizzle, where hardware applies that to the address and `tensor` has none.
    """

    tensor: KernelTensor
    at: tuple[ExprLike, ...]
    whole: KernelTensor | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """An element of a buffer in memory, by its offset in elements; of buffers of all devices (blocks), on one.

    Args:
        element: what it claims to be, where it is the address of a tensor's element; checked, never printed.
    """

    buffer: Buffer
    offset: ExprLike = 0
    device: ExprLike = 0
    element: ClaimedElement | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Barrier:
    """One mbarrier of a buffer of them."""

    buffer: Buffer
    index: ExprLike = 0


Operand = Slots | Address | Barrier | Buffer | Expr | int | float | str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Args:
        atom: its name in the atom table, or that of an elementwise function (``map.exp``), of a vector access
            (``ld``, ``st``), of a barrier.
        operands: values of `Operand`, in the order of the instruction's PTX.
        mask: the condition under which the thread takes part; a load elsewhere gives `options` ``fill``.
        options: further settings, by name.
        at: the user's line.
    """

    atom: str
    operands: tuple[Any, ...] = ()
    mask: Expr | None = None
    options: tuple[tuple[str, Any], ...] = ()
    at: SourceLine | None = field(default=None, compare=False)

    def option(self, name: str, default: Any = None) -> Any:
        """A setting, or a default."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True, slots=True)
class ThreadLoop:
    """``for symbol in range(start, stop, step)``; the symbol's range is part of it.

    `unroll` writes the turns out: all of them, or `turns` at a time.
    """

    symbol: Expr
    start: ExprLike
    stop: ExprLike
    body: tuple[Statement, ...]
    step: ExprLike = 1
    unroll: bool = False
    turns: int = 0
    at: SourceLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Repeat:
    """``while condition: body``; the condition is looked at before each turn."""

    condition: Expr
    body: tuple[Statement, ...]
    at: SourceLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Jump:
    """``break`` or ``continue`` of the nearest loop."""

    kind: Literal["break", "continue"]
    at: SourceLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Branch:
    """``if condition: body else: otherwise``."""

    condition: Expr
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()
    at: SourceLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Local:
    """A symbol gets a value: an expression, or an element of memory; a symbol may get several in turn."""

    symbol: Expr
    value: ExprLike | Address | Slots
    at: SourceLine | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Allocate:
    """Registers come into being here, uninitialised."""

    buffer: Buffer
    at: SourceLine | None = field(default=None, compare=False)


Statement = Instruction | ThreadLoop | Repeat | Jump | Branch | Local | Allocate


@dataclass(frozen=True, slots=True)
class ThreadProgram:
    """A kernel as one thread sees it.

    Args:
        name: the kernel's name.
        parameters: global buffers, maps and values, in the order of the call.
        shared: buffers in shared memory and barriers, laid out in this order.
        grid: blocks, x first.
        warps: warps of a block.
        body: the statements.
        arch: the target that dispatch chose instructions for.
        cluster: blocks of a cluster, x first.
        maps: what the parameters that are tensor maps describe, by name.
        devices: of the mesh.
        multicast: the parameters that are multicast addresses, each with the name of the tensor's own.
    """

    name: str
    parameters: tuple[Buffer, ...]
    shared: tuple[Buffer, ...]
    grid: tuple[int, ...]
    warps: int
    body: tuple[Statement, ...]
    arch: str = "sm_80"
    cluster: tuple[int, ...] = (1,)
    maps: tuple[tuple[str, TensorBox], ...] = ()
    devices: int = 1
    multicast: tuple[tuple[str, str], ...] = ()

    def shared_places(self) -> tuple[dict[str, int], int]:
        """Where each part of shared memory begins, and where all end."""
        places, at = {}, 0
        for buffer in self.shared:
            at = -(-at // buffer.alignment) * buffer.alignment
            places[buffer.name] = at
            at += buffer.bytes
        return places, at

    @property
    def dynamic_bytes(self) -> int:
        """Bytes of dynamic shared memory that a launch asks for: 0 where the block's declarations suffice."""
        total = self.shared_places()[1]
        return 0 if total <= STATIC_SHARED else total

    @property
    def varying(self) -> frozenset[str]:
        """The names of local symbols that are assigned more than once."""
        named = Counter(str(s.symbol) for s in statements(self.body) if isinstance(s, Local))
        return frozenset(name for name, count in named.items() if count > 1)


Spell = TypeVar("Spell", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Spellings(Generic[Spell]):
    """How a printer spells instructions: the first function whose prefix an instruction's name has."""

    functions: list[tuple[str, Spell]] = field(default_factory=list)

    def __call__(self, prefix: str) -> Callable[[Spell], Spell]:
        """Registers a function behind those that are there."""

        def register(function: Spell) -> Spell:
            self.functions.append((prefix, function))
            return function

        return register

    def of(self, name: str) -> Spell | None:
        """The function for an instruction."""
        return next((spell for prefix, spell in self.functions if name.startswith(prefix)), None)


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement, outer before inner, in the order of the text."""
    for statement in body:
        yield statement
        if isinstance(statement, ThreadLoop | Repeat | Branch):
            yield from statements(statement.body)
        if isinstance(statement, Branch):
            yield from statements(statement.otherwise)


def instructions(body: tuple[Statement, ...]) -> Iterator[Instruction]:
    """Every instruction, in the order of the text."""
    return (s for s in statements(body) if isinstance(s, Instruction))


def rewritten(
    body: tuple[Statement, ...], change: Callable[[Statement], tuple[Statement, ...] | None]
) -> tuple[Statement, ...]:
    """The body with statements replaced: `change` gives the statements in its place, or None to go inside."""
    out: list[Statement] = []
    for statement in body:
        new = change(statement)
        if new is not None:
            out += new
        elif isinstance(statement, ThreadLoop | Repeat):
            out.append(replace(statement, body=rewritten(statement.body, change)))
        elif isinstance(statement, Branch):
            inner = rewritten(statement.body, change)
            out.append(replace(statement, body=inner, otherwise=rewritten(statement.otherwise, change)))
        else:
            out.append(statement)
    return tuple(out)
