"""Kernels of the kernel language for operations of graphs: a backend that takes products and groups over rows.

Where machines say which device they have, a plan names for each operation the kernel that there is for it, or why
there is none, and runs it where such a device is at hand (:func:`of_device`). ``offer()`` puts the kernels before the
CPU's for all plans of a process; ``offer(on="cpu")`` runs the same printed text on the CPU, for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from math import prod
from typing import Any, Literal

import numpy as np

from tileweave.backends import base
from tileweave.backends.cuda.printer.entry import lowered
from tileweave.backends.cuda.printer.entry import text as text_of
from tileweave.errors import BackendError, TileweaveError
from tileweave.kernel import KernelFunction, spec
from tileweave.kernel.atoms.atom import check_arch
from tileweave.teir.ir.extensions import FILL, NEUTRAL, REDUCTIONS
from tileweave.teir.ir.program import Invocation, Iteration, Primitive, Program, TensorSpec

Array = np.ndarray[Any, Any]
Where = Literal["cpu", "cuda"]
_DTYPES = {"FP16": "f16", "BF16": "bf16", "FP32": "f32", "FP64": "f64"}
#: Operation of a program -> the elementwise function of the kernel language.
_FUNCTIONS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Maximum": "max", "Minimum": "min", "Exp": "exp",
    "Log": "log", "Tanh": "tanh", "Sqrt": "sqrt", "Erf": "erf", "Neg": "neg", "Abs": "abs", "Sin": "sin", "Cos": "cos",
}  # fmt: skip
_IN_PLACE = {"Bias": "add", "Scale": "mul"}
_MONOIDS = {REDUCTIONS["sum"]: "add", REDUCTIONS["max"]: "max", REDUCTIONS["min"]: "min", REDUCTIONS["prod"]: "mul"}
#: Elements of a row that the registers of a block hold.
_ROW = 16384
#: Operations or elements from which the arrays' way to a device and back may pay: a transfer of some 10 us.
_LEAST = {"cpu": 0, "cuda": 1 << 24}


@dataclass(frozen=True)
class _Offer:
    """A kernel for a program: what it is called, how it is traced, and each operand as the kernel sees it.

    Args:
        name: for people.
        function: the kernel.
        operands: tensor of the program -> the axes, slowest first, of each dimension that the kernel sees.
        order: the tensors that are arguments of the kernel.
        work: elements or multiplications.
    """

    name: str
    function: KernelFunction
    operands: Mapping[str, tuple[tuple[str, ...], ...]]
    order: tuple[str, ...]
    work: int


@dataclass(frozen=True)
class OfferedKernels:
    """The backend.

    Args:
        on: ``"cuda"``: a device; ``"cpu"``: the printed text on fibers.
        arch: the target.
        name: its name in the registry.
    """

    on: Where = "cuda"
    arch: str = "sm_90a"
    name: str = "kernels"

    @property
    def missing(self) -> str:
        """Why no kernel runs here; empty where one does."""
        return _missing(self.arch) if self.on == "cuda" else ""

    def supports(self, program: Program) -> base.Decision:
        """A product, or a group of elementwise operations and reductions over rows, whose kernel dispatch accepts."""
        found = _offer(program)
        if isinstance(found, str):
            return base.Decision("", found)
        if found.work < _LEAST[self.on]:
            least = f"{found.work} operations do not pay for the arrays' way to the device, {_LEAST[self.on]} do"
            return base.Decision("", least)
        try:
            given = [spec(_shape(program, found, name), _dtype(program, name)) for name in found.order]
            by = _instructions(found.function, given, self.arch)
        except TileweaveError as error:
            return base.Decision("", str(error).splitlines()[0])
        return base.Decision(found.name, by, self.name)

    def compile(self, program: Program, *, threads: int | None = None, merge: bool = True) -> base.Compiled:
        """The program's kernel.

        Raises:
            BackendError: there is none; says why.
        """
        found = _offer(program)
        if isinstance(found, str):
            raise BackendError("compile(program)", found)
        names = [t.name for t in program.tensors if t.role != "scratch"]

        def run(*arrays: Array) -> None:
            views = {n: _viewed(program, n, found.operands[n], a) for n, a in zip(names, arrays, strict=True)}
            given = {name: np.ascontiguousarray(views[name]).reshape(_shape(program, found, name)) for name in names}
            found.function.run(*(given[n] for n in found.order), on=self.on, arch=self.arch)
            for tensor in program.tensors:
                if tensor.role in ("out", "inout"):
                    views[tensor.name][...] = given[tensor.name].reshape(views[tensor.name].shape)

        return base.FunctionKernel(program, run, f"{found.name} for {self.arch} on {self.on}")

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Callable[[], Array]:
        """A function that makes arrays for results."""
        return lambda: np.empty(shape, dtype)

    def calls(self) -> base.Calls:
        """An empty list of prepared calls."""
        return base.PythonCalls()

    def tune(self, program: Program, *, threads: int | None = None, **limits: Any) -> base.Tuning:
        """Programs are not tuned here; :meth:`KernelFunction.tune` ranks the options of a kernel."""
        raise BackendError("tune(program)", "kernels are tuned by their options", legal="kernel.tune(space, ..)")


def offer(on: Where = "cuda", arch: str = "sm_90a") -> OfferedKernels:
    """Has plans use kernels of the kernel language; ``backends.base.unregister("kernels")`` takes it back.

    Args:
        on: ``"cuda"``: a device; ``"cpu"``: their printed text on the CPU, which is slow and for tests.
        arch: the target.

    Raises:
        BackendError: there is no device; the CPU backend stays.
    """
    if on == "cuda":
        from tileweave.backends.cuda.device import _driver

        _driver()
    made = OfferedKernels(on, arch)
    base.register(made)
    return made


def of_device(arch: str) -> OfferedKernels:
    """The backend of machines that say they have a device of this architecture.

    Raises:
        BackendError: it is not known.
    """
    check_arch(f"backend({arch!r})", arch)
    return OfferedKernels("cuda", arch, arch)


@cache
def _missing(arch: str) -> str:
    from tileweave.backends.cuda.device import capability

    try:
        found = capability()
    except BackendError as error:
        return str(error).splitlines()[0].partition(": ")[2]
    wanted = int("".join(c for c in arch if c.isdigit()))
    return "" if found == wanted or (arch[-1].isdigit() and found > wanted) else f"the device here is sm_{found}"


def _instructions(function: KernelFunction, given: Sequence[Any], arch: str) -> str:
    """What dispatch takes for the products of a kernel, or else for its copies, sums and the like."""
    kernel = function.trace(*given)
    text_of(kernel, arch)  # what has no text is refused here
    choices = lowered(kernel, arch).choices
    chosen = [c for c in choices if c.op.name in ("gemm", "reduce")] or choices
    taken = (next((r for r in c.reasons if r.legal), None) for c in chosen)
    return ", ".join(dict.fromkeys(f"{one.name}, {one.reason}" for one in taken if one is not None))


# --- what a program is


def _offer(program: Program) -> _Offer | str:
    wrong = next((t for t in program.tensors if t.dtype not in _DTYPES), None)
    if wrong is not None:
        return f"no kernels for {wrong.dtype}"
    if any(node.guard for node in program.nodes):
        return "guards"
    steps = [_primitive(program, node) for node in program.nodes if isinstance(node, Invocation)]
    if [p.operation for p in steps[:2]] in (["Zero", "Contraction"], ["Copy", "Contraction"]):
        return _product(program, steps)
    return _rows(program, steps)


def _primitive(program: Program, node: Invocation) -> Primitive:
    return program.primitive(node.primitive)


def _product(program: Program, steps: Sequence[Primitive]) -> _Offer | str:
    """A product, and what is elementwise behind it: that is done on the tile in registers."""
    if any(isinstance(node, Iteration) for node in program.nodes):
        return "a product within loops"
    start, found, *rest = steps
    m, n, k = (tuple(map(str, found.role(role))) for role in "MNK")
    if not (m and n and k) or any(role not in ("M", "N", "K") and axes for role, axes in found.axes):
        return "no product of matrices"
    a, b, out = found.operands
    if start.operands[-1] != out or _moves(program, a, n) or _moves(program, b, m):
        if start.operands[-1] != out or _moves(program, b, n) or _moves(program, a, m):
            return "no product of matrices"
        a, b = b, a
    unknown = [p.operation for p in rest if p.operation not in {*_FUNCTIONS, *_IN_PLACE, FILL, "Copy", "ReLU"}]
    if unknown:
        return f"no kernel does {unknown[0]} behind a product"
    operands = {a: (m, k), b: (n, k)}
    for tensor in program.tensors:
        if tensor.role == "inout" or (tensor.role != "scratch" and tensor.name in (a, b) and tensor.role != "in"):
            return "an operand that is written"
        if tensor.role != "scratch" and tensor.name not in operands:
            sides = (axes if _moves(program, tensor.name, axes) else () for axes in (m, n))
            operands[tensor.name] = tuple(sides)  # type: ignore[assignment]
    outs = tuple(t.name for t in program.tensors if t.role == "out")
    if any(operands[one] != (m, n) for one in outs):
        return "a result that is no matrix"
    narrow = {t.dtype for t in program.tensors if t.name in (a, b)} <= {"FP16", "BF16"}
    tile = (128, 128, 64) if narrow else (64, 64, 16)
    order = (a, b, *(x for x in operands if x not in (a, b)))
    body = _product_body((start, *rest), order, (out, *outs), tile, 384 if narrow else 128)
    shown = " x ".join(map(str, tile)) + "".join(f", {p.operation.lower()}" for p in rest)
    work = prod(program.axis(x).extent for x in (*m, *n, *k))
    return _Offer(f"product by tiles of {shown}", KernelFunction(body, {}), operands, order, work)


def _moves(program: Program, name: str, axes: Sequence[str]) -> bool:
    """Whether any of the axes moves in a tensor."""
    at = [t.name for t in program.tensors].index(name)
    return any(program.axis(x).strides[at] for x in axes)


Tile = tuple[int, int, int]


def _product_body(
    steps: Sequence[Primitive], order: Sequence[str], outs: Sequence[str], tile: Tile, threads: int
) -> Callable[..., None]:
    """The kernel of a product and what follows it; the first of `outs` is what the product goes to."""
    bm, bn, bk = tile

    def product(k: Any, *tensors: Any) -> None:
        given = dict(zip(order, tensors, strict=True))
        left, right = tensors[:2]
        m, n = k.grid(left.blocks(0, bm), right.blocks(0, bn))
        with k.cta(threads=threads) as cta:
            values: dict[str, Any] = {}

            def value(name: str) -> Any:
                if name not in values:
                    rows, columns = given[name].shape
                    high, wide = bm if rows > 1 else 1, bn if columns > 1 else 1
                    part = given[name].tile(high, wide)[m if rows > 1 else 0, n if columns > 1 else 0]
                    values[name] = cta.load(part)
                return values[name]

            start, *rest = steps
            acc = cta.zeros((bm, bn), dtype="f64" if left.dtype == "f64" else "f32")
            for i in cta.range(left.blocks(1, bk), stages=3):
                cta.gemm(acc, left.tile(bm, bk)[m, i], right.tile(bn, bk)[n, i])
            values[outs[0]] = acc if start.operation == "Zero" else acc + _step(cta, start, value, values)
            for step in rest:
                values[step.operands[-1]] = _step(cta, step, value, values)
            for name in dict.fromkeys(o for o in outs if o in given):
                cta.store(given[name].tile(bm, bn)[m, n], values[name])

    product.__signature__ = _signature(order)  # type: ignore[attr-defined]
    return product


def _signature(names: Sequence[str]) -> Signature:
    return Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("k", *names)])


def _rows(program: Program, steps: Sequence[Primitive]) -> _Offer | str:
    """Elementwise operations and reductions, one row after the other."""
    known = {*_FUNCTIONS, *_MONOIDS, *_IN_PLACE, FILL, "Copy", "ReLU", *NEUTRAL.values()}
    unknown = [p.operation for p in steps if p.operation not in known]
    if unknown:
        return f"no kernel does {unknown[0]}"
    around = tuple(str(node.axis) for node in program.nodes if isinstance(node, Iteration))
    if not around:
        reducing = [p for p in steps if p.operation in _MONOIDS]
        around = tuple(dict.fromkeys(str(x) for p in reducing for x in (*p.role("M"), *p.role("N"))))
    used = dict.fromkeys(str(x) for p in steps for _, axes in p.axes for x in axes if x not in around)
    inner = tuple(used)
    length = prod(program.axis(x).extent for x in inner)
    if not around or not inner or length > _ROW:
        return f"rows of {length} elements" if inner and around else "no rows"

    def dims(tensor: TensorSpec) -> tuple[tuple[str, ...], ...]:
        """The axes of a tensor's rows and columns; none where all rows or all columns are the same element."""
        return tuple(axes if _moves(program, tensor.name, axes) else () for axes in (around, inner))

    named = [t for t in program.tensors if t.role != "scratch"]
    operands = {t.name: dims(t) for t in named}
    if any(t.role == "inout" for t in named) or any(not operands[t.name][0] for t in named if t.role == "out"):
        return "an output that is no rows"
    outs = tuple(t.name for t in named if t.role == "out")
    order = tuple(t.name for t in named)
    function = KernelFunction(_row_body(steps, order, outs), {})
    rows = prod(program.axis(x).extent for x in around)
    fns = ", ".join(dict.fromkeys(p.operation.lower() for p in steps if p.operation not in NEUTRAL.values()))
    return _Offer(f"rows of {length}: {fns}", function, operands, order, rows * length)


def _row_body(steps: Sequence[Primitive], order: Sequence[str], outs: Sequence[str]) -> Callable[..., None]:
    """The kernel of a group over rows, one row a block."""

    def rows(k: Any, *tensors: Any) -> None:
        given = dict(zip(order, tensors, strict=True))
        row = k.grid(max(t.shape[0] for t in tensors))
        width = max(t.shape[1] for t in tensors)
        with k.cta(threads=min(256, 32 * max(1, -(-width // 64)))) as cta:
            values: dict[str, Any] = {}

            def value(name: str) -> Any:
                if name not in values:
                    tensor = given[name]
                    values[name] = cta.load(tensor[row if tensor.shape[0] > 1 else 0])
                return values[name]

            for step in steps:
                values[step.operands[-1]] = _step(cta, step, value, values)
            for name in outs:
                wide = values[name]
                if not hasattr(wide, "shape") or wide.shape[0] < given[name].shape[1]:
                    wide = cta.zeros((given[name].shape[1],)) + wide
                cta.store(given[name][row], wide)

    rows.__signature__ = _signature(order)  # type: ignore[attr-defined]
    return rows


def _step(cta: Any, step: Primitive, value: Callable[[str], Any], values: Mapping[str, Any]) -> Any:
    *sources, target = step.operands
    operation = step.operation
    if operation in NEUTRAL.values():
        return {"Zero": 0.0, "One": 1.0, "Lowest": float("-inf"), "Highest": float("inf")}[operation]
    if operation == FILL:
        return float(dict(step.metadata)["value"])  # type: ignore[arg-type]
    if operation == "Copy":
        return value(sources[0])
    if operation == "ReLU":
        return cta.map("max", value(sources[0]), 0.0)
    if operation in _IN_PLACE:
        return cta.map(_IN_PLACE[operation], value(target), value(sources[0]))
    if operation in _MONOIDS:
        fn, before = _MONOIDS[operation], values.get(target)
        result = cta.reduce(fn, value(sources[0]), 0)
        neutral = {"add": 0.0, "mul": 1.0, "max": float("-inf"), "min": float("inf")}[fn]
        return result if before is None or before == neutral else cta.map(fn, before, result)
    operands = [value(s) for s in sources]
    if not any(hasattr(o, "shape") for o in operands):
        operands[0] = cta.full((1,), operands[0])
    return cta.map(_FUNCTIONS[operation], *operands)


# --- arrays


def _viewed(program: Program, name: str, dims: tuple[tuple[str, ...], ...], array: Array) -> Array:
    """An operand with a dimension for each axis that moves in it, by the program's strides."""
    at = [t.name for t in program.tensors].index(name)
    axes = [program.axis(x) for axes in dims for x in axes]
    offset = sum(axis.offsets[at] for axis in program.axes)
    if offset:
        raise BackendError("compile(program)", f"{name} begins {offset} bytes behind its array")
    return np.lib.stride_tricks.as_strided(array, [a.extent for a in axes], [a.strides[at] for a in axes])


def _shape(program: Program, found: _Offer, name: str) -> tuple[int, ...]:
    return tuple(prod(program.axis(x).extent for x in axes) for axes in found.operands[name])


def _dtype(program: Program, name: str) -> str:
    return _DTYPES[next(t.dtype for t in program.tensors if t.name == name)]
