"""A blocked contraction as a TEIR program: loops over blocks and panels, Copies that pack, a micro-kernel.

The program is what the code does, in the same order, for the interpreter to run and for people to read: scratch tensors
hold the packed panels, the first block of k clears the tile or starts it with a bias, the last one clips it.

Source: own; the loop order is that of blocked GEMM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tileweave.backends.cpu.gemm.blocking import ProductBlocking
from tileweave.backends.cpu.gemm.contract import without_start
from tileweave.backends.cpu.gemm.gett import block_product
from tileweave.backends.cpu.llvm.elements import element
from tileweave.backends.cpu.target.settings import DEFAULT, Settings
from tileweave.backends.cpu.target.target import Target, usable
from tileweave.errors import ScheduleError
from tileweave.teir.ir.program import (
    Axis,
    First,
    Guard,
    Id,
    Invocation,
    Iteration,
    Last,
    Node,
    Policy,
    Primitive,
    Program,
    TensorSpec,
)
from tileweave.teir.ir.verify import verify
from tileweave.teir.merged.form import MergedOp, Mode
from tileweave.teir.merged.merge import merged


def blocked(
    program: Program, *, threads: int = 1, target: Target | None = None, settings: Settings = DEFAULT
) -> Program:
    """The schedule by which the backend computes a matrix product: blocks, packed panels, micro-kernel.

    Args:
        program: that merges to one Contraction whose m, n and k are one mode each (batch modes are loops around).
        threads: for which it is blocked.
        target: the processor; None: this one.
        settings: wishes for the blocking.

    Raises:
        VerifyError: the program is not well formed.
        ScheduleError: it merges to something else, or its panels cross the borders of axes.

    Example:
        >>> from tileweave.layout import strided
        >>> from tileweave.teir import Operand, emit_contraction
        >>> from tileweave.teir.ir.text import tree
        >>> side = Operand(strided((64, 64), (64, 1)), "FP32")
        >>> product = emit_contraction("ik,kj->ij", (side, side), side)
        >>> wish = Settings(mr=4, nr=16, kc=64, mc=32, nc=64, pack_a=True, pack_b=True, resident="b")
        >>> print(tree(blocked(product, settings=wish)))
        m_block  (parallel)
        └── n_block  (parallel)
            └── k_block
                ├── b_panel
                │   └── pack_b
                └── a_panel
                    ├── pack_a
                    └── b_panel.2
                        ├── zero  [first(k_block)]
                        └── micro_kernel
    """
    verify(program)
    form = merged(program)
    op = form.body[0]
    if len(form.body) != 1 or not isinstance(op, MergedOp) or op.kind != "Contraction" or op.guard:
        raise _refused("it does not merge to one contraction")
    if op.operands[2] in op.operands[:2]:
        raise _refused("the contraction reads what it writes")
    elements = tuple(element(program.tensors[j].dtype) for j in op.operands[:3])
    plain = without_start(op)
    c = block_product(plain, elements, usable(target), threads, settings)
    if c.untiled:  # it has no panels: the schedule that packs
        c = block_product(plain, elements, usable(target), threads, replace(settings, pack_b=True))
    for what, modes in (("m", c.rows.dims), ("n", c.columns.dims), ("k", c.contracted.dims)):
        if len(modes) > 1:
            raise _refused(f"panels cross the borders of the {len(modes)} modes of {what}")
    if c.transposed_panels or c.outer or c.contracted.paired:
        raise _refused("tiles are transposed in a buffer, products are paired, or elements of the output overlap")
    return _Writer(program, op, c).program()


def _refused(why: str) -> ScheduleError:
    return ScheduleError(
        "blocked(program)", why, legal="a matrix product, or a batch of them, with m, n and k of one mode"
    )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Equal parts of a range: how many, of which length, and where they begin."""

    count: int
    length: int
    begin: int


def _blocks(total: int, length: int) -> list[_Blocks]:
    """The range in parts of this length, and what is left."""
    count, rest = divmod(total, length)
    whole = [_Blocks(count, length, 0)] if count else []
    return whole + ([_Blocks(1, rest, count * length)] if rest else [])


@dataclass
class _Writer:
    """Writes the program of one blocking."""

    source: Program
    op: MergedOp
    c: ProductBlocking
    axes: list[tuple[Id, int, dict[str, int], dict[str, int]]] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)

    def __post_init__(self) -> None:
        c, op = self.c, self.op
        r, v = (1, 0) if c.swapped else (0, 1)
        names = [self.source.tensors[j].name for j in op.operands]
        self.a, self.b, self.out = names[r], names[v], names[2]
        self.start = names[3] if len(names) > 3 else ""
        self.width = c.columns.sums.width_bytes
        one = Mode(1, (0, 0))
        self.m, self.n, self.k = (
            modes[0] if modes else one for modes in (c.rows.dims, c.columns.dims, c.contracted.dims)
        )
        self.mr, self.nr, self.kc = c.rows.width, c.columns.width, c.kc
        self.mc, self.nc = c.row_panels * self.mr, c.column_panels * self.nr

    # ---- building -----------------------------------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        taken = {str(one.id) for one in (*self.nodes, *self.primitives)} | {str(id) for id, *_ in self.axes}
        return next(n for n in (name, *(f"{name}.{k}" for k in range(2, len(taken) + 3))) if n not in taken)

    def axis(self, name: str, extent: int, strides: dict[str, int], offsets: dict[str, int] | None = None) -> str:
        name = self.fresh(name)
        self.axes.append((name, extent, strides, offsets or {}))
        return name

    def loop(self, axis: str, children: Sequence[Id], policy: Policy = "sequential") -> Id:
        self.nodes.append(Iteration(axis, axis, tuple(children), policy))
        return axis

    def call(self, name: str, operation: str, roles: dict[str, list[str]], operands: Sequence[str], guard: Guard) -> Id:
        axes = tuple((role, tuple(ids)) for role, ids in roles.items())
        primitive = Primitive(f"{self.fresh(name)}_primitive", operation, axes, tuple(operands))
        self.primitives.append(primitive)
        self.nodes.append(Invocation(self.fresh(name), primitive.id, guard))
        return self.nodes[-1].id

    def program(self) -> Program:
        """The whole: batch loops around the blocks, tensors with the scratch of packed panels."""
        c = self.c
        roots = self.resident_a() if c.a_resident else self.resident_b()
        names = [self.a, self.b, self.out]
        for mode in reversed(c.batch):
            moves = self.moved(dict(zip(names, mode.strides, strict=True)))
            roots = [self.loop(self.axis("batch", mode.extent, moves), roots, "parallel")]
        offsets = dict(zip(names, c.offsets, strict=True))
        if self.start:
            offsets[self.start] = self.op.offsets[3]
        if any(offsets.values()):
            roots = [self.loop(self.axis("origin", 1, {}, offsets), roots)]
        scratch = [("a_packed", 0 if c.a_in_place else self.a_panels() * self.panel_a())]
        scratch.append(
            ("b_packed", 0 if c.b_in_place else -(-min(self.nc, c.columns.total) // self.nr) * self.panel_b())
        )
        dtype = c.columns.sums.name
        specs = [TensorSpec(name, dtype, "scratch", size) for name, size in scratch if size]
        tensors = (*self.source.tensors, *specs)
        axes = tuple(
            Axis(
                id,
                extent,
                tuple(strides.get(spec.name, 0) for spec in tensors),
                tuple(start.get(spec.name, 0) for spec in tensors),
            )
            for id, extent, strides, start in self.axes
        )
        program = Program(
            tensors, axes, tuple(roots), tuple(self.nodes), tuple(self.primitives), name=f"{self.source.name} blocked"
        )
        verify(program)
        return program

    def moved(self, strides: dict[str, int]) -> dict[str, int]:
        """Strides with those of what the output starts from, which moves as the output does or not at all."""
        if self.start:
            same = [m for m in self.op.modes if m.strides[2] and abs(m.strides[2]) == abs(strides.get(self.out, 0))]
            strides[self.start] = next((m.strides[3] for m in same if m.extent > 1), 0)
        return strides

    # ---- panels -------------------------------------------------------------------------------------------------

    def panel_a(self) -> int:
        """Bytes of one packed panel of A."""
        return self.mr * self.kc * self.width

    def panel_b(self) -> int:
        return self.nr * self.kc * self.width

    def a_panels(self) -> int:
        """Panels of A that are packed at once."""
        return self.c.row_panels if self.c.shared else 1

    def along(self, which: str, step: int, begin: int = 0) -> tuple[dict[str, int], dict[str, int]]:
        """Strides and offsets of ``step`` indices of m, n or k, from index ``begin`` on."""
        if which == "k":
            moves = {self.a: self.k.strides[0], self.b: self.k.strides[1]}
        else:
            mode, operand = (self.m, self.a) if which == "m" else (self.n, self.b)
            moves = self.moved({operand: mode.strides[0], self.out: mode.strides[1]})
        return {t: step * s for t, s in moves.items()}, {t: begin * s for t, s in moves.items()}

    def over(self, which: str, part: _Blocks, name: str, packed: dict[str, int] | None = None) -> str:
        """An axis over equal parts of m, n or k; ``packed``: bytes from a packed panel to the next."""
        strides, offsets = self.along(which, part.length, part.begin)
        length = {"m": self.mr, "n": self.nr}.get(which, 1)
        for tensor, size in (packed or {}).items():
            strides[tensor], offsets[tensor] = size, part.begin // length * size
        return self.axis(name, part.count, strides, offsets)

    def pack(self, which: str, length: int, count: int) -> Id:
        """A Copy of one panel of A (m) or B (n), ``count`` steps of k."""
        source, into = (self.a, "a_packed") if which == "m" else (self.b, "b_packed")
        mode = self.m if which == "m" else self.n
        row = self.mr if which == "m" else self.nr
        along = self.axis("i" if which == "m" else "j", length, {source: mode.strides[0], into: self.width})
        steps = self.axis("p", count, {source: self.k.strides[0 if which == "m" else 1], into: row * self.width})
        name = "pack_a" if which == "m" else "pack_b"
        return self.call(name, "Copy", {"M": [steps], "N": [along]}, (source, into), ())

    def tile(self, rows: int, columns: int, count: int, first: Guard | None, last: Guard | None) -> list[Id]:
        """The micro-kernel on one tile, with what comes before its first block of k and behind its last."""
        c = self.c
        a, b = (self.a if c.a_in_place else "a_packed"), (self.b if c.b_in_place else "b_packed")
        i_moves, _ = self.along("m", 1)
        j_moves, _ = self.along("n", 1)
        p_moves, _ = self.along("k", 1)
        i = self.axis("i", rows, {**i_moves, "a_packed": self.width})
        j = self.axis("j", columns, {**j_moves, "b_packed": self.width})
        p = self.axis("p", count, {**p_moves, "a_packed": self.mr * self.width, "b_packed": self.nr * self.width})
        found = []
        if first is not None and self.op.init is not None:
            before = ("Copy", (self.start, self.out)) if self.start else ("Zero", (self.out,))
            found.append(self.call(before[0].lower(), before[0], {"M": [i], "N": [j]}, before[1], first))
        roles = {"M": [i], "N": [j], "K": [p]}
        found.append(self.call("micro_kernel", "Contraction", roles, (a, b, self.out), ()))
        if last is not None and self.op.relu is not None:
            found.append(self.call("relu", "ReLU", {"M": [i], "N": [j]}, (self.out, self.out), last))
        return found

    # ---- the two orders -----------------------------------------------------------------------------------------

    def k_blocks(self) -> Iterator[tuple[str, _Blocks, Guard | None, Guard | None]]:
        """Blocks of k with their axis, and when they are the first and the last one; None: never."""
        ks = _blocks(self.c.contracted.total, self.kc)
        for kb in ks:
            axis = self.over("k", kb, "k_block")
            yield axis, kb, (First(axis),) if kb is ks[0] else None, (Last(axis),) if kb is ks[-1] else None

    def resident_b(self) -> list[Id]:
        """The packed block of B stays while panels of A pass."""
        c, roots = self.c, []
        for mb in _blocks(c.rows.total, self.mc):
            m_axis, inner_m = self.over("m", mb, "m_block"), []
            for nb in _blocks(c.columns.total, self.nc):
                n_axis, inner_n = self.over("n", nb, "n_block"), []
                for k_axis, kb, first, last in self.k_blocks():
                    body = self.packed_b(nb.length, kb.length) if not c.b_in_place else []
                    for ir in _blocks(mb.length, self.mr):
                        a_axis = self.over("m", ir, "a_panel")
                        children = [] if c.a_in_place else [self.pack("m", ir.length, kb.length)]
                        for jr in _blocks(nb.length, self.nr):
                            b_axis = self.over("n", jr, "b_panel", {"b_packed": self.panel_b()})
                            children.append(self.loop(b_axis, self.tile(ir.length, jr.length, kb.length, first, last)))
                        body.append(self.loop(a_axis, children))
                    inner_n.append(self.loop(k_axis, body))
                inner_m.append(self.loop(n_axis, inner_n, "parallel"))
            roots.append(self.loop(m_axis, inner_m, "parallel"))
        return roots

    def packed_b(self, columns: int, count: int) -> list[Id]:
        """Copies of all panels of a block of B."""
        found = []
        for jr in _blocks(columns, self.nr):
            axis = self.over("n", jr, "b_panel", {"b_packed": self.panel_b()})
            found.append(self.loop(axis, [self.pack("n", jr.length, count)]))
        return found

    def resident_a(self) -> list[Id]:
        """The packed block of A stays while panels of B pass, each packed before it is used."""
        c, roots = self.c, []
        for mb in _blocks(c.rows.total, self.mc):
            m_axis, inner_m = self.over("m", mb, "m_block"), []
            for k_axis, kb, first, last in self.k_blocks():
                body = []
                for ir in _blocks(mb.length, self.mr):
                    axis = self.over("m", ir, "a_panel", {"a_packed": self.panel_a()})
                    body.append(self.loop(axis, [self.pack("m", ir.length, kb.length)]))
                for jr in _blocks(c.columns.total, self.nr):
                    children = [self.pack("n", jr.length, kb.length)] if not c.b_in_place else []
                    b_axis = self.over("n", jr, "b_panel")
                    for ir in _blocks(mb.length, self.mr):
                        axis = self.over("m", ir, "a_panel", {"a_packed": self.panel_a()})
                        children.append(self.loop(axis, self.tile(ir.length, jr.length, kb.length, first, last)))
                    body.append(self.loop(b_axis, children))
                inner_m.append(self.loop(k_axis, body))
            roots.append(self.loop(m_axis, inner_m))
        return roots
