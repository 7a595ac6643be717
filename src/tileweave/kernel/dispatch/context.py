"""What lowering knows while it walks a kernel: the block's threads, buffers, holdings, and the statements so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

from tileweave.errors import BackendError
from tileweave.index import Expr, ExprLike, as_expr, simplify, symbol
from tileweave.kernel.atoms.atom import generation
from tileweave.kernel.dispatch.layouts.places import cosize
from tileweave.kernel.dispatch.layouts.registers import Holding
from tileweave.kernel.ir import RESERVED, Candidate, Choice, KernelTensor, Line, Op, Scope, dtype_of
from tileweave.kernel.threads import (
    LANE,
    Address,
    Allocate,
    Branch,
    Buffer,
    Instruction,
    Local,
    Operand,
    Slots,
    SourceLine,
    Statement,
    TensorBox,
    ThreadLoop,
)

_INSTEAD = "`thread.each()` with `k.when(thread.index < {})` inside"


def place(line: Line) -> SourceLine | None:
    """The user's line as thread programs keep it."""
    return SourceLine(line.file, line.number) if line.number else None


def declined(line: Line, problem: str, **inputs: object) -> BackendError:
    """The error for what dispatch cannot lower, with the user's line."""
    return BackendError("dispatch(kernel, arch)", problem, inputs={**inputs, "line": str(line)})


def need_type(tensor: KernelTensor, line: Line) -> None:
    """Refuses elements that printed text has no type for."""
    if tensor.dtype in ("tf32", "s4", "u4"):
        raise declined(
            line, f"no CUDA type for elements of type {tensor.dtype}", tensor=tensor,
            legal="f64 | f32 | f16 | bf16 | e4m3 | e5m2 | e8m0, integers of 8 to 64 bits, pred",
        )  # fmt: skip


_HOPPER = frozenset({"fence.proxy.async", "fence.mbarrier_init"})


def printed(name: str) -> str:
    """A user's name as text may have it: not one that text gives another meaning."""
    return f"{name}_" if name in RESERVED or name.startswith("tw_") else name


def always(condition: Expr) -> bool | None:
    """True or False for a condition that is constant, None for any other."""
    return bool(condition.args[0]) if condition.op == "true" else None


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads that execute together: whole warps from `first` on, or one thread each (`warps` 0).

    Args:
        first: the first warp, in the block.
        warps: how many warps act together; 0: each thread by itself.
        warp: the warp of a thread counted from the first of its entity.
        number: the hardware barrier of the group; None: all threads of the block, or one warp.
        entity: which one of several groups that execute the same a thread is in.
        entities: how many such groups there are; 0: groups of groups, which share no memory between threads.
    """

    first: int
    warps: int
    warp: ExprLike
    number: int | None = None
    entity: ExprLike = 0
    entities: int = 1

    @property
    def count(self) -> int:
        """How many threads."""
        return 32 * self.warps or 1

    @property
    def thread(self) -> ExprLike:
        """The number of a thread in the group."""
        return self.warp * 32 + LANE if self.warps else 0


@dataclass
class Context:
    """The state of lowering one kernel for one target."""

    arch: str
    warps: int
    holdings: dict[str, Holding]
    threads: Threads
    out: list[Statement] = field(default_factory=list)
    shared: list[Buffer] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    line: Line = field(default_factory=lambda: Line("", 0))
    names: int = 0
    barriers: int = 0
    pair: bool = False
    scaled: tuple[KernelTensor, ...] = ()
    devices: int = 1
    maps: dict[TensorBox, Buffer] = field(default_factory=dict)
    scales: dict[str, Buffer] = field(default_factory=dict)
    multicasts: dict[str, Buffer] = field(default_factory=dict)
    trips: dict[str, ExprLike] = field(default_factory=dict)
    staged: dict[tuple[Threads, str], list[Buffer]] = field(default_factory=dict)
    refused: dict[Op, str] = field(default_factory=dict)

    # Statements.

    def emit(self, *statements: Statement) -> None:
        """Adds statements."""
        self.out += statements

    def instruction(self, atom: str, *operands: Operand, mask: Expr | None = None, **options: object) -> None:
        """Adds an instruction at the current line."""
        if atom in _HOPPER and generation(self.arch) < 90:
            return  # no proxies and no boxes that would see an mbarrier: barriers order all that there is
        if mask is not None:
            mask = simplify(mask)
            if always(mask) is True:
                mask = None
            elif always(mask) is False and atom.startswith("st"):
                return
        operands = tuple(self._own(o) if isinstance(o, Address) else o for o in operands)
        self.emit(Instruction(atom, operands, mask, tuple(sorted(options.items())), place(self.line)))

    def _own(self, where: Address) -> Address:
        """An address in staging memory, in the part of the group that a thread is in."""
        first = self.trips.get(where.buffer.name, 0)
        if not isinstance(first, Expr):
            return where
        return replace(where, offset=simplify(as_expr(first + where.offset)), element=None)

    def fresh(self, stem: str) -> str:
        """A name that nothing else has."""
        self.names += 1
        return f"{stem}{self.names}"

    @contextmanager
    def body(self) -> Iterator[list[Statement]]:
        """Collects statements into a list of their own."""
        before, self.out = self.out, []
        try:
            yield self.out
        finally:
            self.out = before

    def loop(
        self, count: int, make: Callable[[ExprLike], None], stem: str = "v", unroll: bool = True, turns: int = 0
    ) -> None:
        """``make(i)`` for i below a known count: as it stands for one, else in a loop; `turns` as in `ThreadLoop`."""
        if count == 1:
            make(0)
            return
        i = symbol(self.fresh(stem), 0, count)
        with self.body() as inside:
            make(i)
        self.emit(ThreadLoop(i, 0, count, tuple(inside), 1, unroll, turns if turns < count else 0, place(self.line)))

    def branch(self, condition: Expr, make: Callable[[], None]) -> None:
        """``if (condition) make()``."""
        condition = simplify(condition)
        with self.body() as inside:
            make()
        if inside and always(condition) is not False:
            whole = always(condition) is True
            self.emit(*(inside if whole else [Branch(condition, tuple(inside), (), place(self.line))]))

    def local(self, stem: str, value: ExprLike) -> ExprLike:
        """A symbol for a value that is computed once; numbers stay numbers."""
        from tileweave.index import bounds, constant_of

        value = simplify(as_expr(value))
        if constant_of(value) is not None:
            return value
        low, high = bounds(value)
        name = symbol(self.fresh(stem), low, None if high is None else high + 1)
        self.emit(Local(name, value, place(self.line)))
        return name

    # Buffers.

    def registers(self, stem: str, dtype: str, count: int, note: str = "") -> Buffer:
        """Registers of each thread."""
        buffer = Buffer(
            self.fresh(stem), dtype, "register", count, min(16, _power(count * dtype_of(dtype).bits // 8)), note
        )
        self.emit(Allocate(buffer, place(self.line)))
        return buffer

    def allocate(self, tensor: KernelTensor) -> Buffer:
        """The buffer of a tensor that the kernel allocates."""
        name = printed(tensor.name)
        need_type(tensor, self.line)
        if tensor.space == "register":
            held = self.holdings[tensor.name]
            count = held.slots
            buffer = Buffer(
                name,
                tensor.dtype,
                "register",
                count,
                min(16, _power(count * tensor.element.bits // 8)),
                str(held.layout),
            )
            self.emit(Allocate(buffer, place(self.line)))
        elif tensor.dtype == "mbarrier":
            buffer = Buffer(name, "b64", "barrier", prod(tensor.shape), 8)
            self.shared.append(buffer)
        elif tensor.space == "shared":
            swizzled = tensor.swizzle is not None
            note = f"{tensor.layout}{f' {tensor.swizzle}' if swizzled else ''}" if tensor.layout is not None else ""
            spread = tensor.layout is not None and "cta" in tensor.layout.axes
            space: Literal["cluster", "shared"] = "cluster" if spread else "shared"
            buffer = Buffer(name, tensor.dtype, space, cosize(tensor), 1024 if swizzled else 128, note)
            self.shared.append(buffer)
        else:
            raise declined(self.line, f"no memory {tensor.space!r} in CUDA text", tensor=tensor)
        self.buffers[tensor.name] = buffer
        return buffer

    def tensor_map(self, box: TensorBox) -> Buffer:
        """The parameter that holds the map of some boxes."""
        if box not in self.maps:
            self.maps[box] = Buffer(f"{printed(box.tensor)}_map{len(self.maps) or ''}", "b8", "map", 128, 64)
        return self.maps[box]

    def multicast(self, tensor: KernelTensor) -> Buffer:
        """The parameter that holds the multicast address of a tensor that each device has."""
        own = self.buffer(tensor)
        made = Buffer(f"{own.name}_all", own.dtype, "multicast", own.elements, 16, f"{own.name} of all devices at once")
        return self.multicasts.setdefault(own.name, made)

    def buffer(self, tensor: KernelTensor) -> Buffer:
        """The buffer of a tensor."""
        return self.buffers[tensor.name]

    def staging(self, dtype: str, elements: int, own: bool = False) -> Buffer:
        """Shared memory for a trip between threads; every trip begins with a barrier, so later ones use it again.

        Args:
            own: whether it keeps its values beyond the next trip.
        """
        threads = self.threads
        if threads.warps == 0 or threads.entities == 0:
            whose = "one thread" if threads.warps == 0 else "each part of each part"
            raise declined(self.line, f"memory between threads for an operator of {whose}", legal="a warp at least")
        whole = -(-elements // 16) * 16 if threads.entities > 1 else elements
        for used in self.staged.get((threads, dtype), ()) if not own else ():
            if used.elements >= whole * threads.entities:
                return used
        buffer = Buffer(self.fresh("trip"), dtype, "shared", whole * threads.entities, 16)
        self.shared.append(buffer)
        if threads.entities > 1:
            self.trips[buffer.name] = threads.entity * whole
        if not own:
            self.staged.setdefault((threads, dtype), []).append(buffer)
        return buffer

    # Threads.

    def cluster_sync(self) -> None:
        """The barrier of the cluster, which every thread of its blocks comes to."""
        self.instruction("barrier.cluster")

    def sync(self) -> None:
        """A barrier of the current threads."""
        threads = self.threads
        if threads.warps == 0:
            return
        if threads.warps == self.warps:
            self.instruction("bar.sync", 0, 32 * self.warps)
        elif threads.warps == 1:
            self.instruction("bar.warp.sync")
        else:
            last = (threads.number or 1) + max(1, threads.entities) - 1
            if last > 15:
                raise declined(self.line, f"barrier {last} of a block", legal="at most 15 groups of warps that wait")
            number = (threads.number or 1) + threads.entity
            self.instruction(
                "bar.sync", simplify(as_expr(number)) if isinstance(number, Expr) else number, threads.count
            )

    def scope(self, scope: Scope, each: Expr | None) -> Threads:
        """The threads of a scope inside the current ones."""
        table = sorted(scope.members())
        if table == [table[0]] and each is None:
            raise declined(self.line, "a scope of one thread", scope=scope, legal=_INSTEAD.format(1))
        whole = [range(t, t + 32) for t in table[::32]]
        if len(table) % 32 or any(list(r) != table[32 * i : 32 * i + 32] for i, r in enumerate(whole)) or table[0] % 32:
            legal = f"whole warps, or {_INSTEAD.format('n')}"
            raise declined(self.line, "a scope of parts of warps", scope=scope, legal=legal)
        first, warps = table[0] // 32, len(table) // 32
        if [r[0] // 32 for r in whole] != list(range(first, first + warps)):
            raise declined(self.line, "a scope of warps that are apart", scope=scope)
        block = symbol("warp", 0, self.warps)
        if each is None:
            if warps == self.threads.warps:
                return self.threads
            warp = block - first if first else block
            shown = self.local("warp", warp) if first else _ranged(self, warps)
            self.barriers += warps > 1
            return Threads(first, warps, shown, self.barriers)
        size = {"warp": 1, "warpgroup": 4, "thread": 0}.get(scope.kind, warps)
        if size == 0:
            return Threads(first, 0, 0)
        inner = (block - first) % size if size > 1 else 0
        number, entities = 1 + self.barriers, warps // size if self.threads.entities == 1 else 0
        self.barriers += entities if size > 1 else 0
        entity = self.local("entity", (block - first) // size) if entities > 1 else 0
        return Threads(first, size, self.local("warp", inner) if size > 1 else 0, number, entity, entities)

    # Choices.

    def choose(self, op: Op, atom: str, *reasons: Candidate, order: Callable[..., Any] | None = None) -> None:
        """Notes what was taken for an operator, why, and in which order it adds."""
        together = op.option("collective")
        if together is not None:
            reasons = (*reasons, Candidate("collective", True, str(together)))
        self.choices.append(Choice(op, atom, reasons, order))


def _ranged(context: Context, warps: int) -> ExprLike:
    """The block's warp, known to be below `warps`: inside the branch that says so."""
    return context.local("warp", symbol("warp", 0, context.warps) % warps)


def _power(count: int) -> int:
    """The largest power of two that divides a number, at least 1."""
    return max(1, count & -count)


def slot(buffer: Buffer, at: ExprLike, count: int = 1) -> Slots:
    """Registers from a slot on."""
    return Slots(buffer, simplify(at) if isinstance(at, Expr) else at, count)
