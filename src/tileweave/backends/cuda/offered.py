"""Kernels of the kernel language for operations of graphs: products, attention, stencils, groups over rows.

Where machines say which device they have, a plan names for each operation the kernel that there is for it, or why
there is none, and runs it where such a device is at hand (:func:`of_device`). ``offer()`` puts the kernels before the
CPU's for all plans of a process; ``offer(on="cpu")`` runs the same printed text on the CPU, for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from tileweave.backends import base
from tileweave.backends.cuda.grouped import COLUMNS, ROWS, TERMS, ragged_dot
from tileweave.backends.cuda.offers import DTYPES, Dimension, offer_of
from tileweave.backends.cuda.printer.entry import lowered
from tileweave.backends.cuda.printer.entry import text as text_of
from tileweave.errors import BackendError, TileweaveError
from tileweave.kernel import KernelFunction, spec
from tileweave.kernel.atoms.atom import check_arch
from tileweave.teir.ir.program import Program

Array = np.ndarray[Any, Any]
Where = Literal["cpu", "cuda"]
_MULTIPLIED = ("float16", "bfloat16", "float32", "float64")
#: Operations or elements from which the arrays' way to a device and back may pay: a transfer of some 10 us.
_LEAST = {"cpu": 0, "cuda": 1 << 24}


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
        found = offer_of(program)
        if isinstance(found, str):
            return base.Decision("", found)
        named = [t for t in program.tensors if t.role != "scratch"]
        given = [spec(found.shape(t.name), DTYPES[t.dtype]) for t in named]
        return self._decided(found.name, found.function, given, found.work)

    def supports_groups(self, x: tuple[int, ...], w: tuple[int, ...], dtype: np.dtype[Any]) -> base.Decision:
        """A product of groups of rows, x [rows, in] with w [groups, in, out], where the sizes of groups are data."""
        if str(dtype) not in _MULTIPLIED:
            return base.Decision("", f"no product of groups of {dtype}")
        (rows, depth), (groups, _, columns) = x, w
        given = [spec(x, dtype), spec(w, dtype), spec((groups + 1,), "s32"), spec((rows, columns), dtype)]
        name = f"product of {groups} groups of rows by tiles of {ROWS} x {COLUMNS} x {TERMS}"
        return self._decided(name, ragged_dot, given, rows * depth * columns)

    def multiply_groups(self, x: Array, w: Array, starts: Array, out: Array) -> None:
        """Writes the rows ``starts[g] .. starts[g + 1]`` of out by w[g], for each group."""
        ragged_dot.run(x, w, starts, out, on=self.on, arch=self.arch)

    def _decided(self, name: str, function: KernelFunction, given: Sequence[Any], work: int) -> base.Decision:
        """Whether a kernel is taken that does so many multiplications, by what dispatch makes of it."""
        if work < _LEAST[self.on]:
            least = f"{work} operations do not pay for the arrays' way to the device, {_LEAST[self.on]} do"
            return base.Decision("", least)
        try:
            by = _instructions(function, given, self.arch)
        except TileweaveError as error:
            return base.Decision("", str(error).splitlines()[0])
        return base.Decision(name, by, self.name)

    def compile(self, program: Program, *, threads: int | None = None, merge: bool = True) -> base.Compiled:
        """The program's kernel.

        Raises:
            BackendError: there is none; says why.
        """
        found = offer_of(program)
        if isinstance(found, str):
            raise BackendError("compile(program)", found)
        names = [t.name for t in program.tensors if t.role != "scratch"]

        def run(*arrays: Array) -> None:
            views = {n: _viewed(program, n, found.operands[n], a) for n, a in zip(names, arrays, strict=True)}
            given = {name: _dense(views[name]).reshape(found.shape(name)) for name in names}
            found.function.run(*(given[n] for n in names), on=self.on, arch=self.arch)
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
    taken = ((c, next((r for r in c.reasons if r.legal), None)) for c in chosen)
    said = (c.atom if c.op.name == "reduce" else f"{r.name}, {r.reason}" for c, r in taken if r is not None)
    return ", ".join(dict.fromkeys(said))


def _viewed(program: Program, name: str, dims: Sequence[Dimension], array: Array) -> Array:
    """An operand with a dimension for each axis that moves in it, by the program's strides."""
    at = [t.name for t in program.tensors].index(name)
    offset = sum(axis.offsets[at] for axis in program.axes)
    if offset:
        raise BackendError("compile(program)", f"{name} begins {offset} bytes behind its array")
    axes = [pair for one in dims for pair in one]
    return np.lib.stride_tricks.as_strided(array, [n for n, _ in axes], [stride for _, stride in axes])


def _dense(view: Array) -> Array:
    """The elements one after the other, truths as 1 or 0."""
    dense = np.ascontiguousarray(view)
    return dense.view(np.int8) if dense.dtype == np.bool_ else dense
