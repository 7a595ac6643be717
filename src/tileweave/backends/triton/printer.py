"""Kernels as Triton: a program for each block, from the operators as they are written; Triton chooses the threads.

A tensor in registers or shared memory is a value of the program, its extents rounded up to powers of two; copies from
and to global memory are masked loads and stores. What speaks of threads (parts of a block, mbarriers, rings, flags) has
no Triton text and is declined with the statement and the user's line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tileweave.backends.triton.gluon_layouts import rounded
from tileweave.backends.triton.run import ARCHITECTURES, interpret
from tileweave.errors import BackendError
from tileweave.index import Expr, as_expr, constant_of, simplify, symbol, symbols_of, to_python
from tileweave.kernel.atoms.atom import check_arch
from tileweave.kernel.dispatch.layouts.places import inside, offset
from tileweave.kernel.ir import (
    Alloc,
    Commit,
    For,
    Kernel,
    KernelTensor,
    Let,
    Line,
    On,
    Op,
    Region,
    Scalar,
    Statement,
    Sync,
    WaitGroup,
    When,
    While,
    walk,
)
from tileweave.kernel.ir.dtypes import dtype_of, promote
from tileweave.kernel.ir.verify import regions_of
from tileweave.kernel.meaning import neutral

__all__ = ["run", "text"]

_WHERE = "text('triton')"
_TYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "e4m3": "float8e4nv",
    "e5m2": "float8e5", "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "pred": "int1",
}  # fmt: skip
_FUNCTIONS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "square": "{0} * {0}", "recip": "1.0 / {0}", "fma": "{0} * {1} + {2}",
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "abs": "tl.abs({0})", "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "sqrt": "tl.sqrt({0})", "rsqrt": "1.0 / tl.sqrt({0})", "erf": "tl.erf({0})", "sin": "tl.sin({0})",
    "cos": "tl.cos({0})", "floor": "tl.floor({0})", "tanh": "2.0 / (1.0 + tl.exp(-2.0 * {0})) - 1.0",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}", "ge": "{0} >= {1}", "eq": "{0} == {1}",
    "ne": "{0} != {1}", "and": "{0} & {1}", "or": "{0} | {1}", "not": "{0} == 0", "where": "tl.where({0}, {1}, {2})",
}  # fmt: skip
_WHOLE_DIVISION = "{0} // {1} - ((({0} % {1}) != 0) & ((({0} < 0) != ({1} < 0)))).to({2})"
_REDUCED = {"add": "tl.sum", "max": "tl.max", "min": "tl.min"}
_HELPERS = {
    "mul": "@triton.jit\ndef tw_mul(a, b):\n    return a * b\n",
    "max": "@triton.jit\ndef tw_max(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
    "min": "@triton.jit\ndef tw_min(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
}
_TAKEN = ("tl", "triton", "range", "float")
LEAST_DOT = 16
"""Extents from which ``tl.dot`` takes a product."""


def text(kernel: Kernel, arch: str = "") -> str:
    """The Triton module of a kernel; the same for every architecture.

    Raises:
        BackendError: a statement that Triton cannot say; names it, the reason and the user's line. An unknown
            architecture.
    """
    known("text(kernel, arch)", arch)
    return Printer(kernel).module()


def run(kernel: Kernel, arrays: Mapping[str, Any] | Sequence[Any], on: str = "triton", arch: str = "") -> None:
    """Runs the printed text in Triton's interpreter, on arrays that are read and written in place.

    Raises:
        BackendError: Triton is missing, the text is declined, or it fails. LayoutError: a type that the interpreter
            computes wrongly.
    """
    named = arrays if isinstance(arrays, Mapping) else dict(zip([p.name for p in kernel.params], arrays, strict=True))
    source = text(kernel, arch)
    size = constant_of(as_expr(kernel.grid.size))
    if size is None:
        raise BackendError("run(on='triton')", f"a grid of {kernel.grid.size} blocks", legal="a known number")
    printed = {_name(key): value for key, value in named.items()}
    found = interpret(source, _name(kernel.name), (size,), printed)
    for key, value in printed.items():
        value[...] = found[key].reshape(value.shape)


def known(where: str, arch: str) -> None:
    """Refuses an architecture that neither Triton compiles for nor dispatch knows; empty: any."""
    if arch and arch not in ARCHITECTURES:
        check_arch(where, arch)


def _name(name: str) -> str:
    return f"{name}_" if name in _TAKEN else name


def _bound(text: str) -> str:
    """A text that an operator or a method may follow."""
    return text if re.fullmatch(r"[\w.]+(\([^()]*\))*", text) else f"({text})"


class Printer:
    """One kernel on its way to text; Gluon's printer adds who holds what."""

    language = "Triton"
    owner = "threads and their barriers are Triton's own choice"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.lines: list[str] = []
        self.depth = 1
        self.ranges: dict[str, tuple[str, int, int, int]] = {}  # symbol -> name, position, rank, extent
        self.helpers: set[str] = set()
        self.held: set[str] = set()  # values that have been assigned
        self.line: Line = kernel.line
        tensors = [*kernel.params, *(s.tensor for s in walk(kernel.body) if isinstance(s, Alloc))]
        self.taken = {t.name for t in tensors} | {str(s.symbol) for s in walk(kernel.body) if isinstance(s, Let | For)}

    # -- the frame ------------------------------------------------------------------------------------------

    def module(self) -> str:
        """The whole text."""
        kernel = self.kernel
        if any(extent > 1 for _, extent in kernel.mesh):
            raise self.declined("a mesh of devices", "a program sees one device")
        self.emit(f"{kernel.grid.block} = tl.program_id(0)")
        for coordinate, value in kernel.grid.coords:
            self.emit(f"{coordinate} = {self.number(value)}")
        head = len(self.lines)
        self.body(kernel.body)
        used = set(re.findall(r"\w+", " ".join(self.lines)))
        ranges = [f"    {found[0]} = {self.range(key)}" for key, found in self.ranges.items() if found[0] in used]
        lines = [*self.lines[:head], *ranges, *self.lines[head:]]
        return self.framed(lines)

    def framed(self, lines: Sequence[str]) -> str:
        """The body with what stands before it."""
        kernel = self.kernel
        parameters = ", ".join(_name(p.name) for p in kernel.params)
        notes = [f"# {p}" for p in kernel.params]
        helpers = [_HELPERS[name] + "\n" for name in sorted(self.helpers)]
        parts = [*notes, *self.imports("".join(helpers)), "", "", *helpers, "@triton.jit"]
        return "\n".join([*parts, f"def {_name(kernel.name)}({parameters}):", *lines, ""])

    def imports(self, helpers: str) -> list[str]:
        """The first lines of code."""
        return ["import triton", "import triton.language as tl"]

    def declined(self, what: str, reason: str) -> BackendError:
        """The error for what has no text."""
        inputs = {"kernel": self.kernel.name, "line": self.line, "reason": reason}
        where = f"text('{self.language.lower()}')"
        return BackendError(where, f"{self.language} cannot say {what}", inputs=inputs, legal="the target cuda")

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def body(self, statements: Sequence[Statement]) -> None:
        """Statements at one depth; Python wants at least one."""
        before = len(self.lines)
        for position, statement in enumerate(statements):
            self.line = statement.line if statement.line.file else self.line
            self.statement(statement, statements[position + 1 :])
        if len(self.lines) == before:
            self.emit("pass")

    def inner(self, statements: Sequence[Statement]) -> None:
        self.depth += 1
        self.body(statements)
        self.depth -= 1

    def statement(self, statement: Statement, later: Sequence[Statement]) -> None:
        """One statement."""
        match statement:
            case On(scope=scope, each=None) if scope.kind == "cta":
                for position, one in enumerate(statement.body):
                    self.line = one.line if one.line.file else self.line
                    self.statement(one, statement.body[position + 1 :])
            case On():
                raise self.declined(f"a scope of {statement.scope.kind}s", "all of a block works together")
            case Alloc():
                self.allocate(statement.tensor, later)
            case Let(symbol=name, value=value):
                self.emit(f"{name} = {self.element(value) if isinstance(value, Region) else self.number(value)}")
            case For():
                bounds = ", ".join(self.number(n) for n in (statement.start, statement.stop, statement.step))
                self.emit(f"for {statement.symbol} in {self.trips(bounds, statement.stages)}:")
                self.inner(statement.body)
            case While():
                self.emit(f"while {self.number(statement.condition)}:")
                self.inner(statement.body)
            case When():
                self.emit(f"if {self.number(statement.condition)}:")
                self.inner(statement.body)
                if statement.otherwise:
                    self.emit("else:")
                    self.inner(statement.otherwise)
            case Op():
                self.operator(statement)
            case Sync(cluster=False):
                self.sync(statement)
            case Commit(kind="cp.async") | WaitGroup(kind="cp.async"):
                pass  # the order of values is that of the text
            case _:
                raise self.declined(type(statement).__name__, self.owner)

    def sync(self, statement: Sync) -> None:
        """The order of values is that of the text."""

    @staticmethod
    def trips(bounds: str, stages: int) -> str:
        """What a loop runs over."""
        return f"tl.range({bounds}, num_stages={stages})" if stages > 1 else f"range({bounds})"

    def allocate(self, tensor: KernelTensor, later: Sequence[Statement]) -> None:
        """A value of the program; zeros where its first assignment is inside a loop or a branch."""
        if tensor.dtype not in _TYPES:
            raise self.declined(f"a tensor of {tensor.dtype}", self.owner)
        if tensor.space not in ("register", "shared"):
            raise self.declined(f"a tensor in {tensor.space} memory", "a value is in registers or shared memory")
        self.held.discard(tensor.name)
        first = next((s for s in later if _speaks_of(s, tensor)), None)
        if first is not None and not isinstance(first, Op):
            self.emit(f"{_name(tensor.name)} = {self.full(tensor.shape, '0', tensor.dtype)}")
            self.held.add(tensor.name)

    def full(self, extents: Sequence[int], value: str, dtype: str) -> str:
        """A value all of whose elements are one number."""
        start = f"tl.zeros({self.shape(extents)}" if value == "0" else f"tl.full({self.shape(extents)}, {value}"
        return f"{start}, tl.{_TYPES[dtype]}{self.held_in()})"

    def broadcast(self, value: str, extents: Sequence[int], dtype: str) -> str:
        """A value with the extents of a larger one."""
        return f"tl.broadcast_to({value}, {self.shape(extents)})"

    def held_in(self) -> str:
        """The last argument of what makes a value: nothing, since Triton chooses the threads."""
        return ""

    # -- numbers and places ---------------------------------------------------------------------------------

    def number(self, value: Any) -> str:
        """An index expression."""
        if not isinstance(value, Expr):
            return str(int(value))
        expr = simplify(value)
        rename = {str(s): self.ranges[str(s)][0] for s in symbols_of((expr,)) if str(s) in self.ranges}
        return to_python(expr, dialect="triton", rename=rename)

    @staticmethod
    def shape(extents: Sequence[int]) -> str:
        """Extents as a Triton value has them."""
        inner = ", ".join(str(rounded(e)) for e in extents)
        return f"({inner}{',' if len(extents) == 1 else ''})"

    def range(self, key: str) -> str:
        """The numbers along one dimension of a box."""
        _, position, rank, extent = self.ranges[key]
        axis = f"[{', '.join(':' if k == position else 'None' for k in range(rank))}]" if rank > 1 else ""
        return f"tl.arange(0, {extent}{self.range_in(key)}){axis}"

    def range_in(self, key: str) -> str:
        """The last argument of a range."""
        return ""

    def range_key(self, position: int, rank: int, extent: int) -> str:
        """What a range is known by."""
        return f"range{position}_{rank}_{extent}"

    def axes(self, region: Region) -> list[Expr]:
        """A range symbol for each dimension that a region shows."""
        out = []
        rank = len(region.shape)
        for position, extent in enumerate(region.shape):
            padded = rounded(extent)
            key = self.range_key(position, rank, padded)
            if key not in self.ranges:
                name = f"i{len(self.ranges)}"
                while name in self.taken:
                    name += "_"
                self.ranges[key] = name, position, rank, padded
            out.append(symbol(key, 0, padded))
        return out

    def exists(self, region: Region) -> Expr | None:
        """The condition that an element of the padded box exists; None where all do."""
        return inside(region, self.axes(region), [rounded(e) for e in region.shape])

    def pointer(self, region: Region) -> str:
        """Where the elements of a box in global memory are."""
        axes = dict(zip(region.dims, self.axes(region), strict=True))
        at = [begin + axes[d] if d in axes else begin for d, begin in enumerate(region.begin)]
        place = simplify(as_expr(offset(region.tensor, at)))
        used = {str(s) for s in symbols_of((place,))}
        more = [f" + 0 * {self.ranges[str(a)][0]}" for a in axes.values() if str(a) not in used]
        return f"{_name(region.tensor.name)} + {self.number(place)}{''.join(more)}"

    def load(self, region: Region) -> str:
        """The elements of a box in global memory, zero where none exist."""
        exists = self.exists(region)
        where = self.pointer(region)
        zero = "0.0" if region.tensor.element.kind == "float" else "0"
        return f"tl.load({where})" if exists is None else f"tl.load({where}, mask={self.number(exists)}, other={zero})"

    def element(self, region: Region) -> str:
        """The one element of a region, as a number."""
        if region.tensor.space == "global":
            at = offset(region.tensor, region.begin)
            return f"tl.load({_name(region.tensor.name)} + {self.number(as_expr(at))})"
        return f"tl.max({self.read(region)})"

    # -- values ---------------------------------------------------------------------------------------------

    def read(self, source: Region | Scalar, dtype: str = "", fill: str = "") -> str:
        """A region or a scalar as a value of a type.

        Args:
            source: what is read.
            dtype: the type wanted; empty: its own.
            fill: what stands for elements that do not exist; empty: anything may.
        """
        if isinstance(source, Scalar):
            return self.scalar(source, dtype or source.dtype)
        tensor = source.tensor
        if tensor.space == "global":
            value = self.load(source)
            fill = "" if fill in ("0", "0.0") else fill
        else:
            value = self.shown(source)
        if dtype and dtype != tensor.dtype:
            value = f"{value}.to(tl.{_TYPES[dtype]})"
        exists = self.exists(source) if fill else None
        return value if exists is None else f"tl.where({self.number(exists)}, {value}, {fill})"

    def shown(self, region: Region) -> str:
        """A whole value, its dimensions in the region's order."""
        self.whole(region)
        name = _name(region.tensor.name)
        if len(region.dims) < region.tensor.rank:
            kept = sorted(region.dims)
            if list(region.dims) != kept:
                raise self.declined(str(region), "dimensions are both dropped and moved")
            return f"tl.reshape({name}, {self.shape(region.shape)})"
        order = list(region.dims)
        if order == sorted(order):
            return name
        return f"tl.trans({name})" if len(order) == 2 else f"tl.permute({name}, {tuple(order)})"

    def whole(self, region: Region) -> None:
        """Refuses a part of a value."""
        for begin, extent, size in zip(region.begin, region.extent, region.tensor.shape, strict=True):
            if begin != 0 or extent != size:
                raise self.declined(
                    f"{region}, a part of a value", "a program has its values whole: no rings, no slices"
                )

    def scalar(self, source: Scalar, dtype: str) -> str:
        value = source.value
        if isinstance(value, Expr):
            return f"tl.cast({self.number(value)}, tl.{_TYPES[dtype]})"
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f'float("{value}")'
        return repr(float(value) if dtype_of(dtype).kind == "float" else int(value))

    def write(self, target: Region, value: str, dtype: str) -> None:
        """Assigns or stores a value of a type to a region; what does not exist stays as it was."""
        tensor = target.tensor
        if dtype != tensor.dtype:
            value = f"{_bound(value)}.to(tl.{_TYPES[tensor.dtype]})"
        exists = self.exists(target)
        if tensor.space == "global":
            mask = "" if exists is None else f", mask={self.number(exists)}"
            self.emit(f"tl.store({self.pointer(target)}, {value}{mask})")
            return
        self.whole(target)
        order = list(target.dims)
        if len(order) < tensor.rank:
            value = f"tl.reshape({value}, {self.shape(tensor.shape)})"
        elif order != sorted(order):
            value = f"tl.permute({value}, {tuple(order.index(d) for d in range(len(order)))})"
            exists = None
        name = _name(tensor.name)
        if exists is not None and tensor.name in self.held:
            value = f"tl.where({self.number(exists)}, {value}, {name})"
        self.held.add(tensor.name)
        self.emit(f"{name} = {value}")

    # -- operators ------------------------------------------------------------------------------------------

    def operator(self, op: Op) -> None:
        """One operator."""
        known: dict[str, Callable[[Op], None]] = {
            "copy": self.copy, "copy_async": self.copy, "cast": self.copy, "fill": self.fill, "iota": self.iota,
            "map": self.map, "reduce": self.reduce, "scan": self.scan, "gemm": self.gemm,
            "atomic_add": self.atomic_add,
        }  # fmt: skip
        if op.name not in known:
            raise self.declined(op.name, "it has no such operator")
        known[op.name](op)

    def copy(self, op: Op) -> None:
        (out,), source = op.outs, op.ins[0]
        if op.barrier is not None:
            raise self.declined("a copy that completes on an mbarrier", "copies of values complete where they stand")
        if op.option("accumulate"):
            if out.tensor.space == "global":
                raise self.declined("a copy that adds to global memory", "no order of programs is promised")
            total = f"{self.read(out)} + {self.read(source, out.tensor.dtype, '0')}"
            self.write(out, total, out.tensor.dtype)
            return
        assert isinstance(source, Region)
        same = source.valid == out.valid
        zero = "" if same else "0.0" if source.tensor.element.kind == "float" else "0"
        self.write(out, self.read(source, fill=zero), source.tensor.dtype)

    def fill(self, op: Op) -> None:
        (out,), source = op.outs, op.ins[0]
        dtype = out.tensor.dtype
        self.write(out, self.full(out.shape, self.read(source, dtype), dtype), dtype)

    def iota(self, op: Op) -> None:
        (out,), start = op.outs, op.ins[0]
        along = self.ranges[str(self.axes(out)[_integer(op, "axis")])][0]
        value = f"{self.full(out.shape, '0', 's32')} + {along} + {self.read(start, 's32')}"
        self.write(out, value, "s32")

    def map(self, op: Op) -> None:
        (out,) = op.outs
        function, dtype = str(op.option("fn")), out.tensor.dtype
        kinds = [one.dtype if isinstance(one, Scalar) else one.tensor.dtype for one in op.ins]
        wanted = [dtype] * len(kinds)
        if function == "where":
            wanted[0] = "pred"
        elif dtype == "pred" and function not in ("and", "or", "not"):
            common = dtype_of(kinds[0])
            for kind in kinds[1:]:
                common = promote(common, dtype_of(kind), _WHERE)
            wanted = [common.name] * len(kinds)
        values = [self.read(one, kind) for one, kind in zip(op.ins, wanted, strict=True)]
        values = [_bound(value) for value in values]
        form = _FUNCTIONS.get(function)
        if form is None:
            raise self.declined(f"the function {function}", "it has no such function")
        if function == "div" and dtype_of(dtype).kind != "float":
            form = _WHOLE_DIVISION.replace("{2}", f"tl.{_TYPES[dtype]}")
        value = form.format(*values)
        shapes = {one.shape for one in op.ins if isinstance(one, Region)}
        if out.shape not in shapes:  # every input is smaller: the result has the output's shape
            value = self.broadcast(value, out.shape, dtype) if shapes else self.full(out.shape, value, dtype)
        self.write(out, value, dtype)

    def reduce(self, op: Op) -> None:
        (out,), source = op.outs, op.ins[0]
        function, dtype, axes = str(op.option("fn")), out.tensor.dtype, op.option("axes")
        assert isinstance(axes, tuple)
        value = self.read(source, dtype, self.scalar(Scalar(neutral(function, dtype_of(dtype)), dtype), dtype))
        for axis in axes:
            value = self.reduced(value, axis, function, dtype, ", keep_dims=True")
        self.write(out, value, "" if dtype in ("s8", "s16", "u8", "u16", "f16", "bf16") else dtype)

    def reduced(self, value: str, axis: int, function: str, dtype: str, keep: str) -> str:
        """A value reduced along one dimension."""
        if function == "add" or (function in _REDUCED and dtype_of(dtype).kind != "float"):
            return f"{_REDUCED[function]}({value}, axis={axis}{keep})"
        self.helpers.add(function)  # tl.max and tl.min lose a NaN
        return f"tl.reduce({value}, {axis}, tw_{function}{keep})"

    def scan(self, op: Op) -> None:
        (out,), source = op.outs, op.ins[0]
        function, dtype, axis = str(op.option("fn")), out.tensor.dtype, _integer(op, "axis")
        value = self.read(source, dtype, self.scalar(Scalar(neutral(function, dtype_of(dtype)), dtype), dtype))
        if function == "add":
            value = f"tl.cumsum({value}, axis={axis})"
        else:
            self.helpers.add(function)
            value = f"tl.associative_scan({value}, {axis}, tw_{function})"
        self.write(out, value, dtype)

    def gemm(self, op: Op) -> None:
        if len(op.ins) != 3:
            raise self.declined("a product with scales", "a product of factors that are scaled")
        (out,), (a, b, c) = op.outs, op.ins
        assert isinstance(a, Region) and isinstance(b, Region)
        dtype = out.tensor.dtype
        if min(rounded(e) for e in (*out.shape, a.shape[1])) < LEAST_DOT:
            extents = f"{out.shape[0]} x {out.shape[1]} x {a.shape[1]}"
            raise self.declined(f"a product of {extents}", f"tl.dot takes extents from {LEAST_DOT}")
        if op.option("precision"):
            raise self.declined("a product in tf32", "its interpreter multiplies all bits")
        if dtype not in ("f32", "s32"):
            raise self.declined(f"a product summed in {dtype}", "tl.dot sums in f32 or s32")
        zero = "0.0" if a.tensor.element.kind == "float" else "0"
        left, right = (self.read(one, fill=zero) for one in (a, b))
        exact = ', input_precision="ieee"' if a.tensor.dtype == "f32" else ""
        added = f", {self.read(c)}" if isinstance(c, Region) else ""
        integers = ", out_dtype=tl.int32" if dtype == "s32" else ""
        self.write(out, f"tl.dot({left}, tl.trans({right}){added}{exact}{integers})", dtype)

    def atomic_add(self, op: Op) -> None:
        (out,), (cell, value) = op.outs, op.ins
        assert isinstance(cell, Region)
        if cell.tensor.space != "global":
            raise self.declined("an atomic addition to a value", "only global memory is shared by programs")
        dtype = cell.tensor.dtype
        added = self.element(value) if isinstance(value, Region) else self.read(value, dtype)
        place = f"{_name(cell.tensor.name)} + {self.number(as_expr(offset(cell.tensor, cell.begin)))}"
        self.write(out, self.full(out.shape, f"tl.atomic_add({place}, {added})", dtype), dtype)


def _integer(op: Op, name: str) -> int:
    value = op.option(name)
    assert isinstance(value, int)
    return value


def _speaks_of(statement: Statement, tensor: KernelTensor) -> bool:
    """Whether a statement reads or writes a tensor."""
    return any(region.tensor.name == tensor.name for one in walk((statement,)) for region in regions_of(one))
