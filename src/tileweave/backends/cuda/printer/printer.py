"""CUDA C++ of a thread program. Every decision is in the program; this module spells it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tileweave.backends.cuda.printer.functions import E8M0, HELPERS, TYPES, applied, constant
from tileweave.backends.cuda.printer.helpers import HELPER_TEXT, helper_name, product_helper
from tileweave.errors import BackendError
from tileweave.index import Expr, ExprLike, bounds, c_prelude, constant_of, simplify, symbols_of, to_c
from tileweave.kernel.atoms import BITS
from tileweave.kernel.atoms.atom import generation
from tileweave.kernel.dispatch.report.resources import blocks_to_ask_for
from tileweave.kernel.threads import (
    Address,
    Barrier,
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
    instructions,
)

_INT = (1 << 31) - 1
_RENAMED = {f"blockIdx_{axis}": f"blockIdx.{axis}" for axis in "xyz"}

_spells: Spellings[Callable[[_Printer, Instruction], str]] = Spellings()


@dataclass
class _Printer:
    program: ThreadProgram
    helpers: dict[str, str] = field(default_factory=dict)
    out: list[str] = field(default_factory=list)
    varying: frozenset[str] = frozenset()
    at: SourceLine | None = None
    places: list[SourceLine | None] = field(default_factory=list)

    def need(self, name: str) -> str:
        """Notes that a helper is used, and those it uses."""
        if name not in self.helpers:
            if name in HELPERS:
                self.helpers[name] = HELPERS[name]
            else:
                needs, text = HELPER_TEXT[name]
                for other in needs:
                    self.need(other)
                self.helpers[name] = text
        return name

    def atom(self, name: str) -> str:
        """The helper of an instruction of the atom table."""
        helper = helper_name(name)
        if helper not in self.helpers:
            needs, text = product_helper(name)
            for other in needs:
                self.need(other)
            self.helpers[helper] = text
        return helper

    def emit(self, depth: int, text: str) -> None:
        lines = ["  " * depth + line for line in text.splitlines()]
        self.out += lines
        self.places += [self.at] * len(lines)

    def number(self, value: ExprLike) -> str:
        return _number(value)

    def condition(self, value: Expr) -> str:
        text = to_c(simplify(value), ctype="int", cuda=True, rename=_renames(value))
        return text[1:-1] if _enclosed(text) else text

    def base(self, place: Address) -> str:
        """The buffer of an address: of one device, where all devices have one."""
        name = place.buffer.name
        if place.buffer.space == "cluster":
            return f"{self.need('tw_peer')}({name}, {self.number(place.device)})"
        return f"{name}[{self.number(place.device)}]" if place.buffer.space == "peers" else name

    def pointer(self, place: Address | Slots | Barrier) -> str:
        """A pointer to an element."""
        if isinstance(place, Address):
            at, name = place.offset, self.base(place)
        elif isinstance(place, Slots):
            at, name = place.first, place.buffer.name
        else:
            at, name = place.index, place.buffer.name
        text = self.number(at)
        return name if text == "0" else f"&{name}[{text}]"

    def element(self, operand: Any, dtype: str) -> tuple[str, str]:
        """The text and the type of one element: of registers, of memory, of a number."""
        if isinstance(operand, Slots):
            return f"{operand.buffer.name}[{self.number(operand.first)}]", operand.buffer.dtype
        if isinstance(operand, Address):
            return f"{self.base(operand)}[{self.number(operand.offset)}]", operand.buffer.dtype
        if isinstance(operand, Buffer):
            return operand.name, operand.dtype
        if isinstance(operand, Expr):
            if operand.is_condition:
                return f"({self.condition(operand)})", "pred"
            return f"({self.number(operand)})", "s32"
        return constant(operand, dtype), dtype

    def body(self, statements: Sequence[Statement], depth: int) -> None:
        for statement in statements:
            self.at = statement.at or self.at
            if isinstance(statement, Instruction):
                self.emit(depth, self.instruction(statement))
            elif isinstance(statement, ThreadLoop):
                self.loop(statement, depth)
            elif isinstance(statement, Branch):
                self.branch(statement, depth)
            elif isinstance(statement, Repeat):
                self.emit(depth, f"while ({self.condition(statement.condition)}) {{")
                self.body(statement.body, depth + 1)
                self.emit(depth, "}")
            elif isinstance(statement, Jump):
                self.emit(depth, f"{statement.kind};")
            elif isinstance(statement, Local):
                self.emit(depth, self.local(statement))
            else:
                self.emit(depth, _declared(statement.buffer))

    def local(self, statement: Local) -> str:
        """The declaration of a symbol, or a value of one that varies, which is declared in front of the body."""
        name, value = str(statement.symbol), statement.value
        text = self.element(value, "s32")[0] if isinstance(value, Address | Slots) else self.number(value)
        return f"{name} = {text};" if name in self.varying else f"const int {name} = {text};"

    def loop(self, loop: ThreadLoop, depth: int) -> None:
        i = str(loop.symbol)
        step = self.number(loop.step)
        if loop.unroll:
            self.emit(depth, f"#pragma unroll {loop.turns or ''}".rstrip())
        more = f"++{i}" if step == "1" else f"{i} += {step}"
        self.emit(depth, f"for (int {i} = {self.number(loop.start)}; {i} < {self.number(loop.stop)}; {more}) {{")
        self.body(loop.body, depth + 1)
        self.emit(depth, "}")

    def branch(self, branch: Branch, depth: int) -> None:
        self.emit(depth, f"if ({self.condition(branch.condition)}) {{")
        self.body(branch.body, depth + 1)
        if branch.otherwise:
            self.emit(depth, "} else {")
            self.body(branch.otherwise, depth + 1)
        self.emit(depth, "}")

    def instruction(self, item: Instruction) -> str:
        spell = _spells.of(item.atom)
        if spell is not None:
            return spell(self, item)
        raise BackendError("text('cuda')", f"no CUDA text for {item.atom}", inputs={"line": str(item.at)})

    def guarded(self, item: Instruction, text: str) -> str:
        return text if item.mask is None else f"if ({self.condition(item.mask)}) {text}"


def _enclosed(text: str) -> bool:
    """Whether one pair of brackets is around the whole text."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return character == ")" and i == len(text) - 1
    return False


def _declared(buffer: Buffer) -> str:
    note = f"  // {buffer.note}" if buffer.note else ""
    return f"__align__({buffer.alignment}) {TYPES[buffer.dtype]} {buffer.name}[{buffer.elements}];{note}"


@lru_cache(4096)
def _number(value: ExprLike) -> str:
    known = constant_of(value) if isinstance(value, Expr) else int(value)
    if known is not None:
        return str(known)
    expr = simplify(value)
    low, high = bounds(expr)
    if low is not None and high is not None and low >= -_INT and high <= _INT:
        try:
            return to_c(expr, ctype="int", cuda=True, rename=_renames(expr))
        except Exception as error:  # a part of it leaves 32 bits
            if "fit" not in str(error):
                raise
    return to_c(expr, ctype="int64_t", cuda=True, rename=_renames(expr, wide=True))


def _renames(expr: Expr, wide: bool = False) -> dict[str, str]:
    names = {str(s): _RENAMED.get(str(s), f"({s})" if wide else str(s)) for s in symbols_of(expr)}
    return {name: text for name, text in names.items() if name != text}


@_spells("ld")
def _load(printer: _Printer, item: Instruction) -> str:
    if item.atom.startswith("ldmatrix"):
        target, row = item.operands
        return f"{printer.atom(item.atom)}({printer.pointer(target)}, {printer.pointer(row)});"
    target, source = item.operands
    width = target.count * BITS[target.buffer.dtype] // 8
    printer.need("tw_move")
    text = f"tw_move<{width}>({printer.pointer(target)}, {printer.pointer(source)});"
    return _filled(printer, item, target, text)


def _filled(printer: _Printer, item: Instruction, target: Slots, text: str) -> str:
    """A load under its mask, which elsewhere gives what the instruction says."""
    if item.mask is None:
        return text
    dtype = target.buffer.dtype
    printer.need("tw_fill")
    fill = (
        "tw_e8m0{0}"
        if dtype == "e8m0"
        else constant(item.option("fill", 0), dtype)
        if item.option("fill", 0) or dtype not in ("f16", "bf16", "e4m3", "e5m2")
        else f"{TYPES[dtype]}(0.f)"
    )
    other = f"tw_fill<{target.count}>({printer.pointer(target)}, ({TYPES[dtype]}){fill});"
    return f"if ({printer.condition(item.mask)}) {text}\nelse {other}"


@_spells("multimem.")
def _multicast(printer: _Printer, item: Instruction) -> str:
    target, source = item.operands
    call = f"{printer.atom(item.atom)}({printer.pointer(target)}, {printer.pointer(source)});"
    return _filled(printer, item, target, call)


@_spells("stmatrix")
def _store_matrix(printer: _Printer, item: Instruction) -> str:
    row, source = item.operands
    return printer.guarded(item, f"{printer.atom(item.atom)}({printer.pointer(row)}, {printer.pointer(source)});")


@_spells("st")
def _store(printer: _Printer, item: Instruction) -> str:
    target, source = item.operands
    printer.need("tw_move")
    width = source.count * BITS[source.buffer.dtype] // 8
    return printer.guarded(item, f"tw_move<{width}>({printer.pointer(target)}, {printer.pointer(source)});")


@_spells("map.")
def _map(printer: _Printer, item: Instruction) -> str:
    target, *sources = item.operands
    dtype = target.buffer.dtype
    function = item.atom.removeprefix("map.")
    given = item.option("dtype", dtype)
    text = applied(function, dtype, [printer.element(s, given) for s in sources], "text('cuda')", given)
    for helper in re.findall(r"\btw_\w+", text):
        if helper in HELPERS:
            printer.need(helper)
    return printer.guarded(item, f"{printer.element(target, dtype)[0]} = {text};")


@_spells("atom.add")
def _atomic(printer: _Printer, item: Instruction) -> str:
    old, cell, value = item.operands
    text, _ = printer.element(value, cell.buffer.dtype)
    add = f"{printer.need('tw_atomic_add')}({printer.pointer(cell)}, {text})"
    return printer.guarded(item, f"{printer.element(old, old.buffer.dtype)[0]} = {add};")


@_spells("shfl.sync.")
def _shuffle(printer: _Printer, item: Instruction) -> str:
    target, source, lane = item.operands
    if item.atom == "shfl.sync.idx.b32":
        width = target.count * BITS[target.buffer.dtype] // 8
        to, from_ = printer.pointer(target), printer.pointer(source)
        return f"{printer.need('tw_shuffle')}<{width}>({to}, {from_}, {printer.number(lane)});"
    how = {"bfly": "__shfl_xor_sync", "down": "__shfl_down_sync", "up": "__shfl_up_sync"}[item.atom.split(".")[2]]
    text, _ = printer.element(source, "")
    return f"{printer.element(target, '')[0]} = {how}(0xffffffffu, {text}, {printer.number(lane)});"


@_spells("mma.")
def _mma(printer: _Printer, item: Instruction) -> str:
    d, a, b = item.operands
    return f"{printer.atom(item.atom)}({printer.pointer(d)}, {printer.pointer(a)}, {printer.pointer(b)});"


@_spells("wgmma.mma_async")
def _wgmma(printer: _Printer, item: Instruction) -> str:
    d, a, b, keep = item.operands
    printer.need("tw_descriptor")
    parts = []
    for role, operand in (("a", a), ("b", b)):
        lbo, sbo, swizzle = item.option(role)
        parts.append(f"tw_descriptor({printer.pointer(operand)}, {lbo}, {sbo}, {swizzle})")
    name = printer.atom(item.atom)
    major = item.option("transposed")
    how = f"<{str(major[0]).lower()}, {str(major[1]).lower()}>" if major is not None else ""
    kept = printer.condition(keep) if isinstance(keep, Expr) else str(int(keep))
    return f"{name}{how}({printer.pointer(d)}, {parts[0]}, {parts[1]}, {kept});"


@_spells("tcgen05.mma")
def _tensor_product(printer: _Printer, item: Instruction) -> str:
    target, a, b, number, keep, *scales = item.operands
    printer.need("tw_descriptor100")
    parts = [
        "tw_descriptor100({}, {}, {}, {})".format(printer.pointer(operand), *item.option(role))
        if item.option(role)
        else printer.number(operand)
        for role, operand in (("a", a), ("b", b))
    ]
    kept = printer.condition(keep) if isinstance(keep, Expr) else str(int(keep))
    name = printer.atom(item.atom)
    given = (printer.number(target), *parts, f"{number:#010x}u", kept, *map(printer.number, scales))
    text = f"{name}({', '.join(given)});"
    return printer.guarded(item, text)


@_spells("tcgen05.cp.")
def _scale_copy(printer: _Printer, item: Instruction) -> str:
    at, source = item.operands
    printer.need("tw_descriptor100")
    descriptor = f"tw_descriptor100({printer.pointer(source)}, 128, 128, 0)"
    return printer.guarded(item, f"{printer.atom(item.atom)}({printer.number(at)}, {descriptor});")


@_spells("tcgen05.ld.")
@_spells("tcgen05.st.")
def _tensor_move(printer: _Printer, item: Instruction) -> str:
    given = (printer.pointer(o) if isinstance(o, Slots) else printer.number(o) for o in item.operands)
    return f"{printer.atom(item.atom)}({', '.join(given)});"


@_spells("bar.warp.sync")
def _warp_sync(printer: _Printer, item: Instruction) -> str:
    return "__syncwarp();"


@_spells("bar.sync")
def _barrier(printer: _Printer, item: Instruction) -> str:
    if not item.operands or item.operands[1] == 32 * printer.program.warps:
        return "__syncthreads();"
    return f"{printer.need('tw_barrier')}({printer.number(item.operands[0])}, {item.operands[1]});"


@_spells("cp.async.bulk.tensor")
def _box(printer: _Printer, item: Instruction) -> str:
    name = printer.atom(item.atom)
    if ".shared::cluster.global" in item.atom:
        to, map_, bar, *at = item.operands
        places = "".join(f", {printer.number(c)}" for c in at)
        mask = f", {item.option('multicast')}" if item.option("multicast") is not None else ""
        return printer.guarded(
            item, f"{name}({printer.pointer(to)}, &{map_.name}, {printer.pointer(bar)}{mask}{places});"
        )
    map_, source, *at = item.operands
    places = "".join(f", {printer.number(c)}" for c in at)
    return printer.guarded(item, f"{name}(&{map_.name}, {printer.pointer(source)}{places});")


@_spells("cp.async.c")
def _copy_async(printer: _Printer, item: Instruction) -> str:
    if item.atom == "cp.async.commit_group":
        return f"{printer.need('tw_copy_commit')}();"
    to, source = item.operands
    size = int(item.atom.rsplit(".", 1)[1])
    name = printer.atom(item.atom)
    if item.mask is None:
        return f"{name}({printer.pointer(to)}, {printer.pointer(source)}, {size});"
    inside = f"({printer.condition(item.mask)})"
    from_ = printer.pointer(source)
    return f"{name}({printer.pointer(to)}, {inside} ? {from_} : {source.buffer.name}, {inside} ? {size} : 0);"


_SIMPLE = {
    "cp.async.wait_group": "tw_copy_wait<{0}>();",
    "cp.async.bulk.commit_group": "tw_bulk_commit();",
    "cp.async.bulk.wait_group.read": "tw_bulk_wait_read<{0}>();",
    "cp.async.bulk.wait_group": "tw_bulk_wait<{0}>();",
    "wgmma.fence": "tw_wgmma_fence();",
    "wgmma.commit_group": "tw_wgmma_commit();",
    "wgmma.wait_group": "tw_wgmma_wait<{0}>();",
    "fence.proxy.async": "tw_proxy_fence();",
    "fence.proxy.alias": "tw_alias_fence();",
    "fence.mbarrier_init": "tw_mbarrier_fence();",
    "mbarrier.init": "tw_mbarrier_init({0}, {1});",
    "mbarrier.expect_tx": "tw_mbarrier_expect({0}, {1});",
    "mbarrier.arrive": "tw_mbarrier_arrive({0});",
    "mbarrier.arrive.cluster": "tw_mbarrier_arrive_cluster({0}, {1});",
    "barrier.cluster": "tw_cluster_sync();",
    **{
        f"tcgen05.{name.split('.')[0]}.cta_group::{group}{name[len(name.split('.')[0]) :]}": (
            f"tw_tensor_{name.replace('.', '_')}{group}({slots});"
        )
        for group in (1, 2)
        for name, slots in (
            ("alloc", "{0}, {1}"),
            ("dealloc", "{0}, {1}"),
            ("relinquish_alloc_permit", ""),
            ("commit", "{0}"),
            ("commit.multicast", "{0}, {1}"),
        )
    },
    "tcgen05.fence_before": "tw_tensor_fence_before();",
    "tcgen05.fence_after": "tw_tensor_fence_after();",
    "tcgen05.wait_ld": "tw_tensor_wait_ld();",
    "tcgen05.wait_st": "tw_tensor_wait_st();",
    "mbarrier.wait": "tw_mbarrier_wait({0}, {1});",
    "setmaxnreg.inc": "tw_registers_inc<{0}>();",
    "setmaxnreg.dec": "tw_registers_dec<{0}>();",
    "signal": "tw_signal({0}, {1});",
    "wait": "tw_wait({0}, {1});",
}


@_spells("")
def _simple(printer: _Printer, item: Instruction) -> str:
    if item.atom not in _SIMPLE:
        raise BackendError("text('cuda')", f"no CUDA text for {item.atom}", inputs={"line": str(item.at)})
    spelled = []
    for operand in item.operands:
        if isinstance(operand, (Address, Slots)):
            spelled.append(printer.pointer(operand))
        elif isinstance(operand, Barrier):
            text = printer.number(operand.index)
            spelled.append(f"&{operand.buffer.name}[{text}]")
        else:
            spelled.append(printer.number(operand))
    pattern = _SIMPLE[item.atom]
    if item.atom == "mbarrier.wait" and generation(printer.program.arch) < 90:
        pattern = pattern.replace("tw_mbarrier_wait", "tw_mbarrier_test")  # try_wait came with sm_90
    text = pattern.format(*spelled)
    printer.need(text[: text.index("<" if "<" in text.split("(")[0] else "(")])
    return printer.guarded(item, text)


def _parameter(buffer: Buffer, written: frozenset[str]) -> str:
    if buffer.space == "map":
        return f"const __grid_constant__ CUtensorMap {buffer.name}"
    kind = TYPES[buffer.dtype]
    if buffer.space == "value":
        return f"{kind} {buffer.name}"
    if buffer.space == "multicast":
        return f"const {kind}* {buffer.name}"
    if buffer.space == "peers":
        return f"{kind}* const* __restrict__ {buffer.name}"
    return f"{'' if buffer.name in written else 'const '}{kind}* __restrict__ {buffer.name}"


def text_of(program: ThreadProgram) -> str:
    """The CUDA C++ of a program.

    Raises:
        BackendError: CUDA text cannot say a statement; names it and the user's line.
    """
    return text_and_places(program)[0]


def text_and_places(program: ThreadProgram) -> tuple[str, tuple[SourceLine | None, ...]]:
    """The CUDA C++ of a program, and for each of its lines the user's line that it came from."""
    printer = _Printer(program, varying=program.varying)
    places, total = program.shared_places()
    if program.dynamic_bytes:
        align = max(b.alignment for b in program.shared)
        printer.emit(1, f"extern __shared__ __align__({max(align, 16)}) unsigned char tw_memory[];")
    for buffer in program.shared:
        note = f"  // {buffer.note}" if buffer.note else ""
        kind = "unsigned long long" if buffer.space == "barrier" else TYPES[buffer.dtype]
        if program.dynamic_bytes:
            printer.emit(
                1, f"{kind}* const {buffer.name} = reinterpret_cast<{kind}*>(tw_memory + {places[buffer.name]});{note}"
            )
        else:
            printer.emit(1, f"__shared__ __align__({buffer.alignment}) {kind} {buffer.name}[{buffer.elements}];{note}")
    printer.emit(1, "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;")
    if printer.varying:
        printer.emit(1, f"int {', '.join(sorted(printer.varying))};")
    printer.body(program.body, 1)
    body = "\n".join(printer.out)
    called = set(re.findall(r"\btw_(floordiv|floormod|min|max|isqrt)\(", body))
    if called or "int64_t" in body:
        wide = "int64_t" in body
        helpers = c_prelude("int64_t" if wide else "int", cuda=True).splitlines()
        used = [line for line in helpers if any(f" tw_{name}(" in line for name in called)]
        printer.helpers = {"prelude": "\n".join([*(["#include <stdint.h>"] * wide), *used]), **printer.helpers}
    written = frozenset(_written(program.body))
    parameters = ", ".join(_parameter(b, written) for b in program.parameters)
    if "tw_e8m0" in body + parameters:
        printer.helpers = {"tw_e8m0": E8M0, **printer.helpers}
    includes = _includes(body + "".join(printer.helpers.values()) + parameters)
    cluster = (
        "" if all(n == 1 for n in program.cluster) else f" __cluster_dims__({', '.join(map(str, program.cluster))})"
    )
    threads = 32 * program.warps
    # Not told how many blocks it is to make room for, ptxas chooses, and spills a few registers for one more.
    bounds_ = f"{threads}, {blocks_to_ask_for(program)}"
    head = f'extern "C" __global__ void __launch_bounds__({bounds_}){cluster} {program.name}({parameters}) {{'
    grid = " x ".join(map(str, program.grid))
    comment = (
        f"// {program.name}: {grid} blocks of {threads} threads, {total} bytes of shared memory, for {program.arch}."
    )
    notes = [f"//   {b.name}: {b.note}" for b in program.parameters if b.note]
    before = "\n".join([comment, *notes, *includes, "", *printer.helpers.values(), "", head])
    text = "\n".join([before, body, "}", ""])
    return text, (*(None for _ in before.splitlines()), *printer.places, None)


def together(programs: Sequence[ThreadProgram]) -> tuple[str, tuple[SourceLine | None, ...]]:
    """Several programs, whose names differ, as one text: the helpers of each lie in a namespace of its own."""
    if len(programs) == 1:
        return text_and_places(programs[0])
    bodies: list[str] = []
    includes: dict[str, None] = {}
    places: list[SourceLine | None] = []
    for program in programs:
        text, known = text_and_places(program)
        lines = text.splitlines()
        includes |= dict.fromkeys(line for line in lines if line.startswith("#include"))
        kept = ["" if line.startswith("#include") else line for line in lines]
        bodies += [f"namespace of_{program.name} {{", *kept, f"}}  // {program.name}"]
        bodies.append(f"using of_{program.name}::{program.name};")
        places += [None, *known, None, None]
    return "\n".join([*includes, *bodies, ""]), (*(None for _ in includes), *places)


def _written(statements: Sequence[Statement]) -> list[str]:
    """The buffers that some instruction writes."""
    writes = [
        item for item in instructions(tuple(statements)) if item.atom.startswith(("st", "map.", "signal", "atom"))
    ]
    first = [item.operands[item.atom.startswith("atom")] for item in writes]
    return [operand.buffer.name for operand in first if isinstance(operand, Address)]


def _includes(text: str) -> list[str]:
    wanted = {
        "__half": "cuda_fp16.h",
        "__nv_bfloat16": "cuda_bf16.h",
        "__nv_fp8": "cuda_fp8.h",
        "CUtensorMap": "cuda.h",
    }
    return [f"#include <{header}>" for word, header in wanted.items() if word in text]
