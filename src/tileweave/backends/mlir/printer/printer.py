"""MLIR of a thread program. Every decision is in the program; this module spells it.

Registers are private memory that LLVM keeps in registers once loops over them are unrolled, as the text asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tileweave.backends.mlir.printer.functions import TYPES, Arithmetic, Unsayable, is_float
from tileweave.errors import BackendError
from tileweave.index import Expr, ExprLike, as_expr, constant_of, simplify, substitute, symbols_of
from tileweave.index.expr import walk
from tileweave.index.text.dialect import MLIR
from tileweave.index.text.mlir import Operations
from tileweave.index.text.program import program as printable
from tileweave.kernel.atoms import BITS, atom
from tileweave.kernel.threads import (
    Address,
    Allocate,
    Branch,
    Buffer,
    Instruction,
    Jump,
    Local,
    Repeat,
    Slots,
    SourceLine,
    Spellings,
    Statement,
    ThreadLoop,
    ThreadProgram,
    statements,
)

_WORKGROUP = "#gpu.address_space<workgroup>"
_UNROLLED = "#llvm.loop_annotation<unroll = <{}>>"
_NONE = "the dialects have no operation for it that is lowered"
#: What no dialect says -> the reason, by the beginning of an instruction's name.
_DECLINED = {
    "wgmma": "nvgpu's warpgroup products take descriptors of whole tensors; arch='sm_80' has mma.sync",
    "cp.async.bulk": "tensor maps of nvgpu are made by the host's dialect; arch='sm_80' has cp.async",
    "mbarrier": "a ring of mbarriers needs nvgpu's own barrier groups; loops with stages= need none",
    "tcgen05": _NONE,
    "setmaxnreg": "a number of registers belongs to roles, whose barriers it cannot say",
    "signal": "waiting for other blocks and devices needs ordered accesses of their memory",
    "wait": "waiting for other blocks and devices needs ordered accesses of their memory",
    "stmatrix": "nvgpu stores no matrices; arch='sm_80' has plain stores",
    "fence": _NONE,
}

_spells: Spellings[Callable[[_Printer, Instruction], None]] = Spellings()


@dataclass
class _Printer:
    program: ThreadProgram
    varying: frozenset[str] = frozenset()
    out: list[str] = field(default_factory=list)
    places: list[SourceLine | None] = field(default_factory=list)
    head: list[str] = field(default_factory=list)
    at: SourceLine | None = None
    depth: int = 3
    names: dict[Expr, str] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    values: dict[Expr, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arith = Arithmetic(self.add, self.fixed)

    # Lines and names.

    def fresh(self, stem: str = "v") -> str:
        """An SSA name that nothing has."""
        name = stem = re.sub(r"\W", "_", stem)
        while name in self.taken or name == "v":
            self.taken[stem] = self.taken.get(stem, 0) + 1
            name = f"{stem}{self.taken[stem]}"
        self.taken[name] = 0
        return f"%{name}"

    def line(self, text: str) -> None:
        self.out.append("  " * self.depth + text)
        self.places.append(self.at)

    def add(self, text: str, stem: str = "v") -> str:
        name = self.fresh(stem)
        self.line(f"{name} = {text}")
        return name

    def fixed(self, attribute: str) -> str:
        """A constant, in front of the body."""
        if attribute not in self.constants:
            name = self.fresh("c_" + attribute.replace(" : ", "_").replace("-", "m").replace("+", ""))
            self.constants[attribute] = name
            self.head.append(f"{name} = arith.constant {attribute}")
        return self.constants[attribute]

    @contextmanager
    def region(self) -> Iterator[None]:
        """A nested region, whose names end with it."""
        known, self.names, self.depth = self.names, dict(self.names), self.depth + 1
        yield
        self.names, self.depth = known, self.depth - 1

    @contextmanager
    def under(self, mask: Expr | None) -> Iterator[None]:
        """What is done where a condition holds."""
        if mask is None:
            yield
            return
        self.line(f"scf.if {self.number(mask)} {{")
        with self.region():
            yield
        self.line("}")

    # Numbers.

    def number(self, value: ExprLike) -> str:
        """An index, or a condition, as operations; a part that is known here is not computed again."""
        if isinstance(value, int):
            return self.fixed("true" if value is True else "false" if value is False else f"{value} : index")
        value = simplify(substitute(value, self.values))
        ready = printable("text('mlir')", (value,), MLIR, None, ctype="int64_t")
        (root,) = ready.roots
        moving = {s for s in symbols_of(root) if str(s) in self.varying}
        body = Operations("index", ready.normal, self.fresh)
        body.constant = self._constant  # type: ignore[method-assign]
        body.names = dict(self.names)
        for one in moving:
            body.names[one] = self.add(f"memref.load %{one}_cell[] : memref<index>")
        changed = {node for node in walk([root]) if moving & set(symbols_of(node))} if moving else set()
        for node in walk([root]):
            if node not in body.names or node in changed - moving:
                body.write(node)
                for text in body.lines:
                    self.line(text)
                body.lines.clear()
        self.names |= {node: name for node, name in body.names.items() if node not in changed}
        return body.names[root]

    def _constant(self, value: int | bool) -> str:
        return self.fixed(str(value).lower() if isinstance(value, bool) else f"{value} : index")

    # Operands.

    def type(self, buffer: Buffer, elements: int | None = None) -> str:
        """The memref of a buffer."""
        space = f", {_WORKGROUP}" if buffer.space == "shared" else ""
        return f"memref<{elements or buffer.elements}x{TYPES[buffer.dtype]}{space}>"

    def spot(self, place: Address | Slots) -> str:
        """``%buffer[%index]``."""
        at = place.first if isinstance(place, Slots) else place.offset
        return f"%{place.buffer.name}[{self.number(at)}]"

    def read(self, place: Address | Slots, count: int = 1) -> str:
        """An element, or a vector of them."""
        kind = self.type(place.buffer)
        if count == 1:
            return self.add(f"memref.load {self.spot(place)} : {kind}")
        vector = f"vector<{count}x{TYPES[place.buffer.dtype]}>"
        return self.add(f"vector.load {self.spot(place)} {self.aligned(place, count)} : {kind}, {vector}")

    def write(self, place: Address | Slots, value: str, count: int = 1) -> None:
        """The same the other way."""
        kind = self.type(place.buffer)
        if count == 1:
            self.line(f"memref.store {value}, {self.spot(place)} : {kind}")
            return
        vector = f"vector<{count}x{TYPES[place.buffer.dtype]}>"
        self.line(f"vector.store {value}, {self.spot(place)} {self.aligned(place, count)} : {kind}, {vector}")

    def aligned(self, place: Address | Slots, count: int) -> str:
        """What a vector in memory is aligned to; registers are as their elements."""
        size = BITS[place.buffer.dtype] // 8
        return f"{{alignment = {size * (count if isinstance(place, Address) else 1)} : i64}}"

    def element(self, operand: Any, dtype: str) -> tuple[str, str]:
        """The name and the type of one element: of registers, of memory, of a number."""
        if isinstance(operand, Slots | Address):
            return self.read(operand), operand.buffer.dtype
        if isinstance(operand, Buffer):
            return f"%{operand.name}", operand.dtype
        if isinstance(operand, Expr):
            if operand.is_condition:
                return self.number(operand), "pred"
            return self.add(f"arith.index_cast {self.number(operand)} : index to i32"), "s32"
        return self.arith.constant(operand, dtype), dtype

    # Statements.

    def body(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.at = statement.at or self.at
            if isinstance(statement, Instruction):
                self.instruction(statement)
            elif isinstance(statement, ThreadLoop):
                self.loop(statement)
            elif isinstance(statement, Branch):
                self.branch(statement)
            elif isinstance(statement, Repeat):
                self.repeat(statement)
            elif isinstance(statement, Jump):
                raise _declined(f"{statement.kind} of a loop", "scf loops end where they say", statement.at)
            elif isinstance(statement, Local):
                self.local(statement)

    def local(self, statement: Local) -> None:
        """A symbol is a name for its value; one that varies is a cell."""
        value = statement.value
        if isinstance(value, Address | Slots):
            kind = TYPES[value.buffer.dtype]
            cast = "index_castui" if value.buffer.dtype[0] in "ub" else "index_cast"
            name = self.add(f"arith.{cast} {self.read(value)} : {kind} to index", str(statement.symbol))
        else:
            name = self.number(value)
            known = value if isinstance(value, int) else constant_of(simplify(substitute(value, self.values)))
            if known is not None and str(statement.symbol) not in self.varying:
                self.values[statement.symbol] = known
        if str(statement.symbol) in self.varying:
            self.line(f"memref.store {name}, %{statement.symbol}_cell[] : memref<index>")
        else:
            self.names[statement.symbol] = name

    def loop(self, loop: ThreadLoop) -> None:
        start, stop, step = (self.number(n) for n in (loop.start, loop.stop, loop.step))
        name = self.fresh(str(loop.symbol))
        self.line(f"scf.for {name} = {start} to {stop} step {step} {{")
        with self.region():
            self.names[loop.symbol] = name
            self.body(loop.body)
        unrolled = _UNROLLED.format(f"count = {loop.turns} : i32" if loop.turns else "full = true")
        self.line(f"}} {{llvm.loop_annotation = {unrolled}}}" if loop.unroll else "}")

    def branch(self, branch: Branch) -> None:
        self.line(f"scf.if {self.number(branch.condition)} {{")
        with self.region():
            self.body(branch.body)
        if branch.otherwise:
            self.line("} else {")
            with self.region():
                self.body(branch.otherwise)
        self.line("}")

    def repeat(self, repeat: Repeat) -> None:
        self.line("scf.while : () -> () {")
        with self.region():
            self.line(f"scf.condition({self.number(repeat.condition)})")
        self.line("} do {")
        with self.region():
            self.body(repeat.body)
            self.line("scf.yield")
        self.line("}")

    def instruction(self, item: Instruction) -> None:
        spell = _spells.of(item.atom)
        if spell is not None:
            try:
                return spell(self, item)
            except Unsayable as error:
                raise _declined(str(error), _NONE, item.at) from None
        reason = next((why for prefix, why in _DECLINED.items() if item.atom.startswith(prefix)), _NONE)
        raise _declined(item.atom, reason, item.at)


def _declined(what: str, reason: str, at: SourceLine | None) -> BackendError:
    return BackendError("text('mlir')", f"MLIR cannot say {what}", inputs={"line": str(at)}, legal=reason)


@_spells("ldmatrix")
def _load_matrix(printer: _Printer, item: Instruction) -> None:
    target, row = item.operands
    bits, kind = BITS[row.buffer.dtype], TYPES[row.buffer.dtype]
    tiles = int(item.atom.split(".x")[1][0])
    transposed = ".trans" in item.atom
    if bits > 16 or (transposed and bits != 16):
        raise Unsayable(f"{item.atom} of {row.buffer.dtype}")
    shape = f"vector<{tiles}x{32 // bits}x{kind}>"
    options = f"{{numTiles = {tiles} : i32, transpose = {str(transposed).lower()}}}"
    found = printer.add(f"nvgpu.ldmatrix {printer.spot(row)} {options} : {printer.type(row.buffer)} -> {shape}")
    count = tiles * 32 // bits
    flat = printer.add(f"vector.shape_cast {found} : {shape} to vector<{count}x{kind}>")
    printer.write(target, flat, count)


@_spells("ld.")
def _load(printer: _Printer, item: Instruction) -> None:
    target, source = item.operands
    if item.mask is None:
        printer.write(target, printer.read(source, target.count), target.count)
        return
    printer.line(f"scf.if {printer.number(item.mask)} {{")
    with printer.region():
        printer.write(target, printer.read(source, target.count), target.count)
    printer.line("} else {")
    with printer.region():
        fill = printer.arith.constant(item.option("fill", 0), _stored(target.buffer.dtype))
        for k in range(target.count):
            printer.write(Slots(target.buffer, target.first + k), fill)
    printer.line("}")


def _stored(dtype: str) -> str:
    """The integer type of bits that are only moved."""
    return "u8" if dtype in ("e4m3", "e5m2") else dtype


@_spells("st.")
def _store(printer: _Printer, item: Instruction) -> None:
    target, source = item.operands
    with printer.under(item.mask):
        printer.write(target, printer.read(source, source.count), source.count)


@_spells("map.")
def _map(printer: _Printer, item: Instruction) -> None:
    target, *sources = item.operands
    dtype, function = target.buffer.dtype, item.atom.removeprefix("map.")
    given = item.option("dtype", dtype)
    with printer.under(item.mask):
        operands = [printer.element(s, _stored(given)) for s in sources]
        printer.write(target, printer.arith.applied(function, dtype, operands, given))


@_spells("shfl.sync.bfly.b32")
def _butterfly(printer: _Printer, item: Instruction) -> None:
    target, source, distance = item.operands
    _shuffled(printer, target, source, 1, "xor", printer.fixed(f"{distance} : i32"))


@_spells("shfl.sync.idx.b32")
def _shuffle(printer: _Printer, item: Instruction) -> None:
    target, source, lane = item.operands
    at = printer.add(f"arith.index_cast {printer.number(lane)} : index to i32")
    _shuffled(printer, target, source, target.count, "idx", at)


def _shuffled(printer: _Printer, target: Slots, source: Slots, count: int, mode: str, by: str) -> None:
    """Elements of another lane, by words of 32 bits; less than a word is widened."""
    dtype = source.buffer.dtype
    kind, bits, width = TYPES[dtype], BITS[dtype] * count, printer.fixed("32 : i32")
    value = printer.read(source, count)
    whole = kind if count == 1 else f"vector<{count}x{kind}>"
    if dtype == "pred":
        value = printer.add(f"arith.extui {value} : i1 to i32")
    elif bits <= 32:
        held = value if whole == f"i{bits}" else _bitcast(printer, value, count, kind, 1, f"i{bits}")
        value = held if bits == 32 else printer.add(f"arith.extui {held} : i{bits} to i32")
    else:
        value = _bitcast(printer, value, count, kind, bits // 32, "i32")
    words = []
    for k in range(max(1, bits // 32)):
        word = value if bits <= 32 else printer.add(f"vector.extract {value}[{k}] : i32 from vector<{bits // 32}xi32>")
        got = printer.fresh("w")
        printer.line(f"{got}, {got}_valid = gpu.shuffle {mode} {word}, {by}, {width} : i32")
        words.append(got)
    if dtype == "pred":
        printer.write(target, printer.add(f"arith.trunci {words[0]} : i32 to i1"))
        return
    if bits < 32:
        words = [printer.add(f"arith.trunci {words[0]} : i32 to i{bits}")]
    if bits <= 32:
        found = words[0] if whole == f"i{bits}" else _bitcast(printer, words[0], 1, f"i{bits}", count, kind)
    else:
        found = printer.add(f"vector.from_elements {', '.join(words)} : vector<{len(words)}xi32>")
        found = _bitcast(printer, found, len(words), "i32", count, kind)
    printer.write(target, found, count)


def _bitcast(printer: _Printer, value: str, count: int, kind: str, wanted: int, other: str) -> str:
    """The same bits as so many elements of another type; one element is a scalar."""
    if count == wanted == 1:
        return printer.add(f"arith.bitcast {value} : {kind} to {other}")
    if count == 1:
        value = printer.add(f"vector.from_elements {value} : vector<1x{kind}>")
    found = printer.add(f"vector.bitcast {value} : vector<{count}x{kind}> to vector<{wanted}x{other}>")
    return found if wanted > 1 else printer.add(f"vector.extract {found}[0] : {other} from vector<1x{other}>")


@_spells("mma.sync")
def _mma(printer: _Printer, item: Instruction) -> None:
    row = atom(item.atom)
    kinds = {role: row[role].dtype for role in "dab"}
    if kinds["a"] not in ("f16", "s8", "f64") or kinds["a"] != kinds["b"]:
        raise Unsayable(f"{item.atom}: nvgpu.mma.sync of {kinds['a']}")
    parts = {}
    for role, place in zip("dab", item.operands, strict=True):
        kind, count = TYPES[kinds[role]], row[role].elements
        inner = {"f64": 2 if role == "d" else 1}.get(kinds["a"], max(2, 32 // BITS[kinds[role]]))
        shape = f"vector<{count // inner}x{inner}x{kind}>"
        flat = printer.read(place, count) if count > 1 else printer.read(place)
        source = f"vector<{count}x{kind}>"
        if count == 1:
            flat = printer.add(f"vector.from_elements {flat} : {source}")
        parts[role] = printer.add(f"vector.shape_cast {flat} : {source} to {shape}"), shape, source, count
    m, n = row["d"].shape
    extents = f"mmaShape = [{m}, {n}, {row['a'].shape[1]}]"
    (d, whole, flat_kind, count), (a, first, *_), (b, second, *_) = parts["d"], parts["a"], parts["b"]
    types = f"({first}, {second}, {whole}) -> {whole}"
    found = printer.add(f"nvgpu.mma.sync ({a}, {b}, {d}) {{{extents}}} : {types}")
    printer.write(item.operands[0], printer.add(f"vector.shape_cast {found} : {whole} to {flat_kind}"), count)


@_spells("bar.warp.sync")
def _warp_sync(printer: _Printer, item: Instruction) -> None:
    printer.line(f"nvvm.bar.warp.sync {printer.fixed('-1 : i32')} : i32")


@_spells("bar.sync")
def _barrier(printer: _Printer, item: Instruction) -> None:
    if not item.operands or item.operands[1] == 32 * printer.program.warps:
        printer.line("gpu.barrier")
        return
    number, threads = item.operands
    if isinstance(number, Expr):
        name = printer.add(f"arith.index_cast {printer.number(number)} : index to i32")
    else:
        name = printer.fixed(f"{number} : i32")
    printer.line(f"nvvm.barrier id = {name} number_of_threads = {printer.fixed(f'{threads} : i32')}")


@_spells("cp.async.c")
def _copy_async(printer: _Printer, item: Instruction) -> None:
    if item.atom == "cp.async.commit_group":
        printer.line("nvvm.cp.async.commit.group")
        return
    to, source = item.operands
    size = int(item.atom.rsplit(".", 1)[1])
    count = 8 * size // BITS[source.buffer.dtype]
    from_, many = printer.number(source.offset), printer.fixed(f"{count} : index")
    if item.mask is not None:
        inside, zero = printer.number(item.mask), printer.fixed("0 : index")
        from_ = printer.add(f"arith.select {inside}, {from_}, {zero} : index")
        many = printer.add(f"arith.select {inside}, {many}, {zero} : index")
    bypass = " {bypassL1}" if ".cg." in item.atom else ""
    types = f"{printer.type(source.buffer)} to {printer.type(to.buffer)}"
    printer.add(
        f"nvgpu.device_async_copy %{source.buffer.name}[{from_}], {printer.spot(to)}, {count}, {many}{bypass} : {types}"
    )


@_spells("cp.async.wait_group")
def _copy_wait(printer: _Printer, item: Instruction) -> None:
    printer.line(f"nvvm.cp.async.wait.group {item.operands[0]}")


@_spells("atom.add")
def _atomic(printer: _Printer, item: Instruction) -> None:
    old, cell, value = item.operands
    dtype = cell.buffer.dtype
    if BITS[dtype] < 32:
        raise Unsayable(f"atomic additions of {dtype}")
    with printer.under(item.mask):
        name, given = printer.element(value, dtype)
        name = printer.arith.cast(name, given, dtype)
        how = "addf" if is_float(dtype) else "addi"
        kind = TYPES[dtype]
        text = f"memref.atomic_rmw {how} {name}, {printer.spot(cell)} : ({kind}, {printer.type(cell.buffer)}) -> {kind}"
        printer.write(old, printer.add(text))


def text_and_places(program: ThreadProgram) -> tuple[str, tuple[SourceLine | None, ...]]:
    """The MLIR of a program, and for each of its lines the user's line that it came from.

    Raises:
        BackendError: the dialects cannot say a statement; names it, the reason and the user's line.
    """
    _refuse_whole(program)
    printer = _Printer(program, program.varying)
    for name in (*(b.name for b in (*program.parameters, *program.shared)), "warp", "lane", "thread", "v"):
        printer.taken[name] = 0
    registers = [s.buffer for s in statements(program.body) if isinstance(s, Allocate)]
    printer.taken |= {b.name: 0 for b in registers}
    coordinates = [(f"blockIdx_{axis}", f"gpu.block_id {axis}") for axis in "xyz"]
    for node in {s for e in _expressions(program) for s in symbols_of(e)}:
        text = dict(coordinates).get(str(node))
        if text is not None or str(node) in ("warp", "lane"):
            printer.names[node] = f"%{node}"
    used = {str(s) for s in printer.names}
    printer.body(program.body)
    head = [f"%{name} = {text}" for name, text in coordinates if name in used]
    if used & {"warp", "lane"}:
        head += ["%thread = gpu.thread_id x", "%lanes = arith.constant 32 : index"]
        head += ["%warp = arith.divui %thread, %lanes : index", "%lane = arith.remui %thread, %lanes : index"]
    head += printer.head
    head += [f"%{name}_cell = memref.alloca() : memref<index>" for name in sorted(printer.varying)]
    head += [
        f"%{b.name} = memref.alloca() {{alignment = 16 : i64}} : {printer.type(b)}{f'  // {b.note}' if b.note else ''}"
        for b in {b.name: b for b in registers}.values()
    ]
    return _assembled(program, printer, head)


def _assembled(program: ThreadProgram, printer: _Printer, head: list[str]) -> tuple[str, tuple[SourceLine | None, ...]]:
    threads = 32 * program.warps
    grid = " x ".join(map(str, program.grid))
    before = [f"// {program.name}: {grid} blocks of {threads} threads, for {program.arch}."]
    before += [f"//   {b.name}: {b.note}" for b in (*program.parameters, *program.shared) if b.note]
    starts, _ = program.shared_places()
    if program.dynamic_bytes:
        views = ["%shared_memory = gpu.dynamic_shared_memory : memref<?xi8, " + _WORKGROUP + ">"]
        for buffer in program.shared:
            views.append(f"%{buffer.name}_at = arith.constant {starts[buffer.name]} : index")
            source = f"memref<?xi8, {_WORKGROUP}>"
            views.append(
                f"%{buffer.name} = memref.view %shared_memory[%{buffer.name}_at][] : {source} to {printer.type(buffer)}"
            )
        head = [*views, *head]
    arguments = ", ".join(
        f"%{b.name}: {TYPES[b.dtype] if b.space == 'value' else printer.type(b)}" for b in program.parameters
    )
    before += ["module {", "  gpu.module @kernels {", f"    gpu.func @{program.name}({arguments})"]
    if program.shared and not program.dynamic_bytes:
        listed = [f"%{b.name}: {printer.type(b)} {{llvm.align = {max(16, b.alignment)} : i64}}" for b in program.shared]
        before.append(f"        workgroup({', '.join(listed)})")
    before.append(f"        kernel attributes {{known_block_size = array<i32: {threads}, 1, 1>}} {{")
    before += ["      " + text for text in head]
    after = ["      gpu.return", "    }", "  }", "}", ""]
    places = (*(None for _ in before), *printer.places, *(None for _ in after))
    return "\n".join([*before, *printer.out, *after]), places


def _expressions(program: ThreadProgram) -> Iterator[Expr]:
    """Every expression of a program."""
    for s in statements(program.body):
        found: list[Any] = []
        if isinstance(s, Instruction):
            found = [s.mask, *(x for o in s.operands for x in _within(o))]
        elif isinstance(s, ThreadLoop):
            found = [s.start, s.stop, s.step]
        elif isinstance(s, Branch | Repeat):
            found = [s.condition]
        elif isinstance(s, Local):
            found = list(_within(s.value))
        yield from (as_expr(x) for x in found if isinstance(x, Expr))


def _within(operand: Any) -> tuple[Any, ...]:
    if isinstance(operand, Address):
        return (operand.offset,)
    return (operand.first,) if isinstance(operand, Slots) else (operand,)


def _refuse_whole(program: ThreadProgram) -> None:
    """What the whole of a text cannot be."""
    at = next((s.at for s in statements(program.body) if s.at is not None), None)
    if program.devices > 1:
        raise _declined(f"a mesh of {program.devices} devices", "a module of gpu.func is of one device", at)
    if prod(program.cluster) > 1:
        raise _declined(f"clusters of {prod(program.cluster)} blocks", "a gpu.func alone has none; cluster=1", at)
    for buffer in (*program.parameters, *program.shared):
        if buffer.space in ("map", "barrier", "cluster", "peers"):
            name = {"map": "cp.async.bulk", "barrier": "mbarrier"}.get(buffer.space, "signal")
            line = next((s.at for s in statements(program.body) if _uses(s, buffer)), at)
            raise _declined(f"{buffer.name} ({name})", _DECLINED[name], line)


def _uses(statement: Statement, buffer: Buffer) -> bool:
    if not isinstance(statement, Instruction):
        return False
    return any(buffer in (o, getattr(o, "buffer", None)) for o in statement.operands)
