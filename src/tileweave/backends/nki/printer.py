"""Kernels as NKI: operators of a block on tiles of (partition, free), an instruction of an engine for each.

A register tensor of a block is a tile in SBUF. Which dimension lies on the partitions is read from the layouts of
tensors in SBUF and PSUM; the Tensor Engine's product is recognised from them. What NKI cannot say is declined with the
statement's line.

Source: the pages of nki.isa of the AWS Neuron documentation, 2.30 to 2.33 (awsdocs-neuron.readthedocs-hosted.com), for
every call that is printed: ``nc_matmul(dst, stationary, moving, .., accumulate=None)``; ``nc_transpose(dst, data)`` of
one type, on the Tensor Engine from SBUF to PSUM; ``dma_copy(dst, src)`` between SBUF and device memory;
``tensor_reduce(dst, op, data, axis)`` along the last free axes; ``tensor_scalar(dst, data, op0, operand0, reverse0)``
with an operand of (rows, 1) or a number; ``activation(dst, op, data)``; ``reciprocal(dst, data)``. After published
kernels: ``tensor_tensor(dst, data1, data2, op)``, ``tensor_copy(dst, src)``, ``memset(dst, value)``. Operators are
those of the table "Supported Math Operators for NKI ISA", which has no division, and of that of activation functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tileweave.backends.nki import executor
from tileweave.errors import BackendError
from tileweave.index import Expr, as_expr, simplify, to_python
from tileweave.kernel.ir import (
    Alloc,
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
    head,
    walk,
)
from tileweave.kernel.ir.dtypes import dtype_of
from tileweave.layout import group

_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3", "s32": "int32"}
_BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "max": "maximum", "min": "minimum"}
_UNARY = ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "square", "abs")
_CHIP = ("register", "sbuf", "psum")


def declined(line: Line, problem: str, legal: str = "") -> BackendError:
    """The error for what NKI cannot say."""
    return BackendError("text('nki')", problem, inputs={"line": str(line)}, legal=legal)


class _Printer:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.out: list[str] = []
        self.depth = 1
        self.names = 0
        self.line = kernel.line

    def emit(self, text: str) -> None:
        self.out.append("    " * self.depth + text)

    def number(self, value: int | Expr) -> str:
        return to_python(simplify(value)) if isinstance(value, Expr) else str(value)

    def fresh(self, shape: tuple[int, int], dtype: str, buffer: str = "sbuf") -> str:
        """A tile that a statement needs in between."""
        self.names += 1
        name = f"tile_{self.names}"
        self.tile(name, shape, dtype, buffer)
        return name

    def tile(self, name: str, shape: tuple[int, ...], dtype: str, buffer: str, note: str = "") -> None:
        """The allocation of a tile, within the limits of its memory."""
        if dtype not in _TYPES:
            raise declined(self.line, f"no NKI type for {dtype}", " | ".join(_TYPES))
        if buffer != "shared_hbm":
            limit = executor.SBUF_BYTES if buffer == "sbuf" else executor.PSUM_BYTES
            bytes_ = shape[1] * dtype_of(dtype).bytes
            if shape[0] > executor.PARTITIONS:
                raise declined(self.line, f"{name}: {shape[0]} partitions", f"at most {executor.PARTITIONS}")
            if bytes_ > limit:
                raise declined(self.line, f"{name}: {bytes_} bytes of a partition of {buffer}", f"at most {limit}")
        self.emit(f"{name} = nl.ndarray({shape}, dtype=nl.{_TYPES[dtype]}, buffer=nl.{buffer}){note}")

    def alloc(self, tensor: KernelTensor) -> None:
        shape = _two(tensor.shape)
        if tensor.space not in _CHIP:
            raise declined(self.line, f"{tensor.name} is in {tensor.space} memory", "registers, k.sbuf, k.psum")
        if len(tensor.shape) > 2:
            raise declined(self.line, f"{tensor.name} has rank {len(tensor.shape)}", "(partition, free)")
        note = f"  # {tensor.layout}" if tensor.layout is not None else ""
        self.tile(tensor.name, shape, tensor.dtype, "psum" if tensor.space == "psum" else "sbuf", note)

    def region(self, region: Region) -> str:
        """A region as a slice of its tile, in the tensor's own order of dimensions."""
        parts = []
        for begin, there, size in zip(region.begin, region.mask, region.tensor.shape, strict=True):
            if not isinstance(there, int) or there < 1:
                raise declined(self.line, f"{region} is there in part only", "tiles that divide the tensor")
            whole = begin == 0 and there == size
            parts.append(":" if whole else f"{self.number(begin)} : {self.number(as_expr(begin) + there)}")
        if region.tensor.space in _CHIP and len(parts) < 2:
            parts = [*["0:1"] * (2 - len(parts)), *parts]
        if region.tensor.space not in _CHIP:
            shown = set(region.dims)
            parts = [p if d in shown else self.number(region.begin[d]) for d, p in enumerate(parts)]
        return f"{region.tensor.name}[{', '.join(parts)}]"

    def body(self, body: Sequence[Statement]) -> None:
        for s in body:
            self.line = s.line if s.line.number else self.line
            if isinstance(s, Alloc):
                self.alloc(s.tensor)
            elif isinstance(s, On) and s.scope.kind == "cta" and s.each is None:
                self.body(s.body)
            elif isinstance(s, For):
                bounds = ", ".join(self.number(v) for v in (s.start, s.stop, s.step))
                self.emit(f"for {s.symbol} in nl.sequential_range({bounds}):")
                self.depth += 1
                self.body(s.body)
                self.depth -= 1
            elif isinstance(s, Let) and not isinstance(s.value, Region):
                self.emit(f"{s.symbol} = {self.number(s.value)}")
            elif isinstance(s, Op):
                self.operator(s)
            elif not isinstance(s, Sync):  # engines wait for each other where tiles say so
                raise declined(self.line, f"NKI cannot say: {head(s)}", "operators of a whole block")

    def operator(self, op: Op) -> None:
        out = op.outs[0]
        if op.name == "copy":
            self.copy(out, op.ins[0])
        elif op.name == "gemm" and len(op.ins) == 3:
            self.product(op)
        elif op.name == "fill" and isinstance(op.ins[0], Scalar) and out.tensor.space in _CHIP:
            self.emit(f"nisa.memset(dst={self.region(out)}, value={op.ins[0].value})")
        elif op.name == "cast" and isinstance(op.ins[0], Region):
            self.emit(f"nisa.tensor_copy(dst={self.region(out)}, src={self.region(op.ins[0])})")
        elif op.name == "map":
            self.map(op)
        elif op.name == "reduce":
            self.reduce(op)
        else:
            raise declined(self.line, f"no engine for {head(op)}")

    def copy(self, out: Region, source: Any) -> None:
        if not isinstance(source, Region):
            raise declined(self.line, "a copy of a number", "fill")
        if out.valid != source.valid:
            part = source if source.masked else out
            raise declined(self.line, f"{part} is there in part only", "tiles that divide the tensor")
        to, of = out.tensor.space in _CHIP, source.tensor.space in _CHIP
        if to and of and _turned(out) != _turned(source):
            rows, columns = _two(source.extent)
            psum = self.fresh((columns, rows), source.tensor.dtype, "psum")
            self.emit(f"nisa.nc_transpose(dst={psum}[:, :], data={self.region(source)})")
            self.emit(f"nisa.tensor_copy(dst={self.region(out)}, src={psum}[:, :])")
        elif to and of:
            self.emit(f"nisa.tensor_copy(dst={self.region(out)}, src={self.region(source)})")
        elif _turned(out) != _turned(source):
            raise declined(self.line, "device memory is copied in its own order", "a copy of the turned tile in SBUF")
        elif "psum" in (out.tensor.space, source.tensor.space):
            raise declined(self.line, "the DMA engines do not reach PSUM", "a copy to registers or SBUF first")
        else:
            self.emit(f"nisa.dma_copy(dst={self.region(out)}, src={self.region(source)})")

    def product(self, op: Op) -> None:
        """``nc_matmul``: A (m, k) and B (n, k) with k on the partitions, C with m on them, in PSUM."""
        a, b, out = op.ins[0], op.ins[1], op.outs[0]
        if not isinstance(a, Region) or not isinstance(b, Region):
            raise declined(self.line, "a product with a number")
        if op.option("precision"):
            raise declined(self.line, "a product in tf32")
        for region, role, axes in (
            (a, "A (m, k)", ("F", "P")),
            (b, "B (n, k)", ("F", "P")),
            (out, "C (m, n)", ("P", "F")),
        ):
            found = tuple(axis_of(region, position) for position in (0, 1))
            if found != axes:
                raise declined(
                    self.line, f"{role} = {region} lies on {found}", f"on {axes}: TensorE contracts partitions"
                )
        if out.tensor.space != "psum" or a.tensor.space == "psum" or b.tensor.space == "psum":
            raise declined(
                self.line, "a product of SBUF into PSUM is needed", "k.psum(shape) for C, k.sbuf for A and B"
            )
        (m, k), n = a.shape, b.shape[0]
        for name, size, limit in (
            ("k", k, executor.PARTITIONS),
            ("m", m, executor.STATIONARY),
            ("n", n, executor.MOVING),
        ):
            if size > limit:
                raise declined(self.line, f"{name} = {size} of a product", f"at most {limit}")
        keep = op.option("keep", 0 if isinstance(op.ins[2], Scalar) else 1)
        accumulate = self.number(keep) if isinstance(keep, Expr) else str(bool(keep))
        self.emit(f"nisa.nc_matmul(dst={self.region(out)}, stationary={self.region(a)}, moving={self.region(b)}, "
                  f"accumulate={accumulate})")  # fmt: skip

    def map(self, op: Op) -> None:
        fn, out = str(op.option("fn")), op.outs[0]
        target = self.region(out)
        tiles = [v for v in op.ins if isinstance(v, Region)]
        if len(op.ins) == 1 and len(tiles) == 1 and fn in _UNARY:
            self.emit(f"nisa.activation(dst={target}, op=nl.{fn}, data={self.region(tiles[0])})")
        elif fn == "recip" and tiles:
            self.emit(f"nisa.reciprocal(dst={target}, data={self.region(tiles[0])})")
        elif fn == "neg" and tiles:
            self.emit(f"nisa.tensor_scalar(dst={target}, data={self.region(tiles[0])}, op0=nl.multiply, operand0=-1.0)")
        elif fn == "div" and len(op.ins) == 2:
            self.divide(op)
        elif fn in _BINARY and len(op.ins) == 2:
            first, second = op.ins
            name = f"nl.{_BINARY[fn]}"
            whole = [isinstance(v, Region) and _two(v.shape) == _two(out.shape) for v in op.ins]
            if isinstance(first, Region) and isinstance(second, Region) and all(whole):
                self.emit(f"nisa.tensor_tensor(dst={target}, data1={self.region(first)}, data2={self.region(second)}, "
                          f"op={name})")  # fmt: skip
                return
            data, other, back = (first, second, "") if whole[0] else (second, first, ", reverse0=True")
            if not isinstance(data, Region) or not any(whole):
                raise declined(self.line, f"no engine broadcasts both operands: {head(op)}")
            number = self.region(other) if isinstance(other, Region) else str(other.value)
            if isinstance(other, Region) and _two(other.shape) != (_two(data.shape)[0], 1):
                raise declined(self.line, f"{other} of shape {other.shape} is broadcast over partitions", "(rows, 1)")
            self.emit(
                f"nisa.tensor_scalar(dst={target}, data={self.region(data)}, op0={name}, operand0={number}{back})"
            )
        else:
            raise declined(
                self.line, f"no engine for {head(op)}", " | ".join([*_UNARY, *_BINARY, "div", "neg", "recip"])
            )

    def divide(self, op: Op) -> None:
        """By the reciprocal, which is rounded once more: no engine has a division."""
        first, second = op.ins
        inverse: str | float
        if isinstance(second, Scalar):
            if isinstance(second.value, Expr):
                raise declined(self.line, f"no engine for {head(op)}", "a divisor that is known")
            inverse = 1 / second.value
        else:
            rows, columns = _two(second.shape)
            inverse = self.fresh((rows, columns), "f32", "sbuf")
            self.emit(f"nisa.reciprocal(dst={inverse}[:, :], data={self.region(second)})")
            inverse += "[:, :]"
        target = self.region(op.outs[0])
        if isinstance(first, Scalar):
            self.emit(f"nisa.tensor_scalar(dst={target}, data={inverse}, op0=nl.multiply, operand0={first.value})")
        elif isinstance(second, Scalar) or _two(second.shape) == (_two(first.shape)[0], 1):
            self.emit(
                f"nisa.tensor_scalar(dst={target}, data={self.region(first)}, op0=nl.multiply, operand0={inverse})"
            )
        elif _two(second.shape) == _two(first.shape):
            self.emit(f"nisa.tensor_tensor(dst={target}, data1={self.region(first)}, data2={inverse}, op=nl.multiply)")
        else:
            raise declined(self.line, f"{second} of shape {second.shape} is broadcast over partitions", "(rows, 1)")

    def reduce(self, op: Op) -> None:
        fn, source = str(op.option("fn")), op.ins[0]
        if op.option("axes") != (len(op.outs[0].shape) - 1,) or fn not in ("add", "max", "min"):
            raise declined(self.line, f"{head(op)}: engines reduce along the free axis", "axis 1, add | max | min")
        self.emit(f"nisa.tensor_reduce(dst={self.region(op.outs[0])}, op=nl.{_BINARY[fn]}, "
                  f"data={self.region(source)}, axis=1)")  # type: ignore[arg-type]  # fmt: skip


def _two(shape: Sequence[int]) -> tuple[int, int]:
    return (*((1,) * (2 - len(shape))), *shape)[-2:]  # type: ignore[return-value]


def _turned(region: Region) -> bool:
    return list(region.dims) != sorted(region.dims)


def axis_of(region: Region, position: int) -> str:
    """The axis, ``P`` or ``F``, that a dimension of a region in SBUF or PSUM lies on; empty where it is on neither."""
    tensor, dim = region.tensor, region.dims[position]
    if tensor.layout is None or tensor.space not in ("sbuf", "psum"):
        return ("P", "F")[dim] if tensor.space == "register" and tensor.rank == 2 else ""
    axes = {axis for it in group(tensor.layout, tensor.shape)[dim] for axis, _ in it.stride.terms}
    return axes.pop() if len(axes) == 1 else ""


def _roles(kernel: Kernel) -> tuple[list[KernelTensor], list[KernelTensor]]:
    """The parameters that a kernel reads, and those that it writes."""
    ops = [s for s in walk(kernel.body) if isinstance(s, Op)]
    read = {v.tensor.name for op in ops for v in op.ins if isinstance(v, Region)}
    written = {v.tensor.name for op in ops for v in op.outs}
    both = [p.name for p in kernel.params if p.name in read & written]
    if both:
        raise declined(kernel.line, f"{both[0]} is read and written", "results are new tensors in NKI")
    return [p for p in kernel.params if p.name not in written], [p for p in kernel.params if p.name in written]


def text(kernel: Kernel, arch: str = "trn2") -> str:
    """The NKI of a kernel: Python for `nki`, a loop over the grid, an instruction per operator.

    Raises:
        BackendError: NKI cannot say a statement, or a limit is passed; names it and the user's line. An architecture
            whose limits are not these.
    """
    if arch != "trn2":
        raise BackendError("text(kernel, arch)", f"{arch!r} is no architecture of NKI that is known", legal="trn2")
    if kernel.mesh or kernel.grid.cluster > 1:
        raise declined(kernel.line, "meshes and clusters")
    inputs, outputs = _roles(kernel)
    printer = _Printer(kernel)
    for one in outputs:
        printer.tile(one.name, one.shape, one.dtype, "shared_hbm")
    printer.emit(f"for {kernel.grid.block} in nl.affine_range({kernel.grid.size}):")
    printer.depth += 1
    for name, value in kernel.grid.coords:
        if name != kernel.grid.block:
            printer.emit(f"{name} = {printer.number(value)}")
    printer.body(kernel.body)
    printer.depth = 1
    printer.emit(f"return {', '.join(one.name for one in outputs)}")
    before = [f"# {kernel.name} for {arch}: {kernel.grid.size} blocks.", "import nki", "import nki.isa as nisa",
              "import nki.language as nl", "", "", "@nki.jit"]  # fmt: skip
    signature = f"def {kernel.name}({', '.join(one.name for one in inputs)}):"
    return "\n".join([*before, signature, *printer.out, ""])


def run(kernel: Kernel, arrays: Mapping[str, Any], on: str = "nki", arch: str = "trn2") -> None:
    """Runs the printed text on our executor of its calls; the arrays take what it returns."""
    inputs, outputs = _roles(kernel)
    given = {one.name: np.asarray(arrays[one.name]) for one in inputs}
    found = executor.execute(text(kernel, arch), kernel.name, given)
    for one, values in zip(outputs, found, strict=True):
        arrays[one.name][...] = values
