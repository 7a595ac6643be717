"""`@tk.kernel`: a Python function that leaves a kernel when it is traced, and what can be done with that."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from tileweave.errors import TileweaveError, VerifyError
from tileweave.index import symbol
from tileweave.kernel import targets
from tileweave.kernel.atoms.atom import check_arch
from tileweave.kernel.build.arguments import Spec, param_of
from tileweave.kernel.build.context import KernelContext
from tileweave.kernel.build.mesh import Mesh
from tileweave.kernel.build.recorder import Recorder, line_of, shown_path, with_text
from tileweave.kernel.build.tuning import TunedKernel, tune
from tileweave.kernel.build.views import View
from tileweave.kernel.ir import (
    Grid,
    Kernel,
    Line,
    On,
    Statement,
    cta_scope,
    replace_tensors,
    require_extents,
    to_text,
    verify,
    whole,
)
from tileweave.kernel.semantics import Report, check_kernel, run_kernel

if TYPE_CHECKING:
    from tileweave.kernel.torch.op import Outputs


class KernelFunction:
    """A kernel as written: `trace` gives its IR for arguments of some shapes, `check` interprets it.

    Arguments are arrays, or `spec(shape, dtype)` where no data is needed; parameters of the function that have a
    default are options, given by keyword.
    """

    def __init__(self, function: Callable[..., None], mesh: Mapping[str, int]) -> None:
        self.function = function
        self.mesh = tuple(mesh.items())
        self._devices = Mesh.of(mesh)
        self.name = function.__name__
        self.__doc__ = function.__doc__
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.tensors = tuple(p.name for p in parameters if p.default is p.empty)
        self._options = {p.name: p.default for p in parameters if p.default is not p.empty}
        self._last: Kernel | None = None

    @property
    def _where(self) -> str:
        return f"{self.name}({', '.join(self.tensors)})"

    def trace(self, *args: Any, **options: Any) -> Kernel:
        """The kernel for arguments of these shapes and types, verified.

        Raises:
            VerifyError: the function cannot be traced, or what it leaves is not well formed; with the user's line.
        """
        unknown = sorted(set(options) - set(self._options))
        if unknown or len(args) != len(self.tensors):
            problem = f"unknown options {', '.join(unknown)}" if unknown else f"{len(args)} arguments"
            raise VerifyError(
                self._where, problem, facts={"rule": "argument", "path": ""},
                legal=f"{len(self.tensors)} arrays" + "".join(f", {k}={v!r}" for k, v in self._options.items()),
            )  # fmt: skip
        for name, value in options.items():
            if isinstance(value, str) and isinstance(self._options[name], (int, float)):
                raise VerifyError(
                    self._where, f"the option {name} is {value!r}", facts={"rule": "argument", "path": ""},
                    legal=f"a number, such as {name}={self._options[name]!r}",
                )  # fmt: skip
        devices = self._devices.number[0][1] if self._devices.number else 1
        params = tuple(param_of(n, a, self._where, devices) for n, a in zip(self.tensors, args, strict=True))
        params = tuple(replace(p, layout=self._devices.joined(p.layout)) if p.layout else p for p in params)
        recorder = Recorder(self.name, params, self._devices)
        context = KernelContext(recorder)
        views = [View(recorder, whole(one)) for one in params]
        own = self.function.__code__.co_filename
        try:
            self.function(context, *views, **{**self._options, **options})
        except TileweaveError as error:
            if error.where == "bool(Expr)":
                raise recorder.error(
                    self._where, f"the condition {error.inputs.get('expr', '')} has no truth value while the kernel is "
                    "traced", legal="`with k.when(condition):`", line=line_of(error, own),
                ) from None  # fmt: skip
            if "line" not in error.inputs:
                error.located(with_text(line_of(error, own)))
            raise
        kernel = self._finished(recorder)
        verify(kernel)
        require_extents(kernel)
        self._last = kernel
        return kernel

    def _finished(self, recorder: Recorder) -> Kernel:
        if recorder.poison is not None:
            raise recorder.poison
        code = self.function.__code__
        line = Line(shown_path(code.co_filename), code.co_firstlineno)
        statements = recorder.bodies[0].closed()
        blocks = [s for s in statements if isinstance(s, On) and s.scope.kind == "cta"]
        threads = {s.scope.threads for s in blocks} or {32 * recorder.warps}
        if len(threads) != 1 or threads == {0}:
            recorder.refuse(
                self._where,
                f"blocks of {sorted(threads)} threads" if any(threads) else "no scope says who executes it",
                legal="one `with k.cta(threads=n) as cta:`", line=line,
            )  # fmt: skip
        body: list[Statement] = []
        for s in statements:
            body += s.body if isinstance(s, On) and s.scope.kind == "cta" else [s]
        grid = recorder.grid or Grid(symbol("block", 0, 1), 1, (), ())
        if self._devices.axes != self._devices.number:
            grid = replace(grid, coords=(*recorder.mesh_coordinates(), *grid.coords))
        outer = On(cta_scope(threads.pop()), tuple(body), line=blocks[0].line if blocks else line)
        made = Kernel(self.name, recorder.params, self._devices.number, grid, (outer,), line=line)
        return replace_tensors(made, recorder.renamed)

    def _kernel(self, args: tuple[Any, ...], options: Mapping[str, Any], what: str) -> Kernel:
        if args or self._last is None or options:
            if not args and self.tensors:
                raise VerifyError(
                    f"{self.name}.{what}", "the shapes are not known", facts={"rule": "argument", "path": ""},
                    legal=f"{what}(.., {self._where}), or a call of check, run or trace before",
                )  # fmt: skip
            return self.trace(*args, **options)
        return self._last

    def check(self, *args: Any, arch: str = "", **options: Any) -> Report:
        """Interpret the kernel on copies of the arguments and check every claim that it makes.

        Args:
            args: arrays.
            arch: a target, whose explicit program is interpreted: its sums are formed in the order of its instructions,
                so the arrays are bit for bit those that the printed text leaves. Empty: the kernel as written, each sum
                formed in f64 and rounded once.
            options: of the kernel.

        Returns:
            what was checked, and the arrays as the kernel leaves them.

        Raises:
            VerifyError: the first claim that does not hold: its rule, the lines, the element, what is missing.
        """
        kernel = self.trace(*args, **options)
        if not arch:
            return check_kernel(kernel, args)
        kernel, orders = targets.dispatcher("ordered")(kernel, arch)
        return check_kernel(kernel, args, orders=orders)

    def run(self, *args: Any, on: str = "interpreter", arch: str = "", **options: Any) -> None:
        """Execute the kernel on the arguments, in place.

        Args:
            args: arrays.
            on: ``"interpreter"``, or a place of a target: ``"cpu"`` runs the printed CUDA text on the CPU, ``"cuda"``
                on a device.
            arch: the target's architecture; the target's default where it is empty. On the interpreter as in `check`.
            options: of the kernel.
        """
        if on == "interpreter":
            kernel = self.trace(*args, **options)
            kernel, orders = targets.dispatcher("ordered")(kernel, arch) if arch else (kernel, None)
            run_kernel(kernel, args, orders=orders)
            return
        packed = {id(a): np.asarray(a, order="C") for a in args if isinstance(a, np.ndarray)}
        given = tuple(packed.get(id(a), a) for a in args)  # one piece of memory each; what is written goes back below
        kernel = self.trace(*given, **options)
        arrays = dict(zip(self.tensors, given, strict=True))
        targets.runner(on)(kernel, arrays, on=on, **({"arch": arch} if arch else {}))
        for mine, one in zip(args, given, strict=True):
            if one is not mine and mine.flags.writeable:
                mine[...] = one

    def expand(self, *args: Any, arch: str = "sm_90a", **options: Any) -> Any:
        """The explicit program that dispatch makes of the kernel."""
        return targets.dispatcher("expand")(self._kernel(args, options, "expand"), arch)

    def explain(self, *args: Any, arch: str = "sm_90a", **options: Any) -> str:
        """Every candidate of every choice of dispatch, with its reason; resources; bank conflicts."""
        return str(targets.dispatcher("explain")(self._kernel(args, options, "explain"), arch))

    def pictures(self, *args: Any, arch: str = "sm_90a", **options: Any) -> dict[str, str]:
        """SVG of the layouts that dispatch chose, by the names of tensors in registers and in shared memory."""
        found: dict[str, str] = targets.dispatcher("pictures")(self._kernel(args, options, "pictures"), arch)
        return found

    def tune(
        self, space: Mapping[str, Sequence[Any]], *args: Any, arch: str = "sm_90a", on: str = "", most: int = 8,
        **options: Any,
    ) -> TunedKernel:  # fmt: skip
        """The settings of some options, best first: by static cost, without those that need more than there is.

        Args:
            space: option -> the values to try.
            args: arrays or specifications; to be timed, arrays that are on the device: copies would be timed, too.
            arch: the target.
            on: ``"cuda"``: the best are timed on a device, where there is one; empty: none is.
            most: how many are timed.
            options: of the kernel, the same for all.

        Raises:
            VerifyError: no setting can run, or an option is unknown. BackendError: the architecture is unknown.

        Example:
            >>> from tileweave.kernel import kernel, spec
            >>> @kernel
            ... def double(k, x, y, threads=32):
            ...     row = k.grid(x.blocks(0, 1))
            ...     with k.cta(threads=threads) as cta:
            ...         cta.store(y[row], cta.load(x[row]) * 2)
            >>> x = spec((10000, 4096), "f32")
            >>> double.tune({"threads": (32, 256)}, x, x).best
            {'threads': 256}
        """
        import time

        check_arch(f"{self.name}.tune(space)", arch)

        def seconds(setting: Mapping[str, Any]) -> float:
            if any(isinstance(a, Spec) for a in args):
                raise VerifyError(self._where, "a specification holds no data", facts={"rule": "argument", "path": ""})
            times = []
            for _ in range(5):
                begin = time.perf_counter()
                self.run(*args, on=on, arch=arch, **options, **setting)
                times.append(time.perf_counter() - begin)
            return min(times)

        return tune(self.name, space, lambda s: self.trace(*args, **options, **s), seconds if on else None, arch, most)

    def text(self, target: str = "ir", *args: Any, arch: str = "", **options: Any) -> str:
        """The kernel in a target's text, or in that of the IR: with an architecture, the explicit program for it."""
        kernel = self._kernel(args, options, "text")
        if target == "ir":
            return to_text(targets.dispatcher("expand")(kernel, arch) if arch else kernel)
        return str(targets.printer(target)(kernel, **({"arch": arch} if arch else {})))

    def torch_op(self, outputs: Outputs, name: str = "", *, arch: str = "", **options: Any) -> Any:
        """The kernel as a custom operator of PyTorch, which `torch.compile` and `torch.export` take.

        Tensors on the CPU run the printed text there, tensors on a CUDA device on that device; none is copied.

        Args:
            outputs: the tensors that the kernel writes. Names: the operator takes all tensors, and mutates these. A
                mapping of names to functions of the other tensors, which make what is written: the operator takes the
                others, and returns these.
            name: ``namespace::name``; unless given, ``tileweave::`` and the kernel's name, numbered if that is taken.
            arch: the target's architecture; the target's default where it is empty.
            options: of the kernel.

        Raises:
            BackendError: PyTorch is missing, the outputs are no tensors of the kernel, or the name is taken. In a call:
                a tensor is not contiguous, lies elsewhere, has a type that kernels lack, or is written and no output.
        """
        from tileweave.kernel.torch.op import make_op

        return make_op(self, Spec, outputs, name, arch, options)

    def __call__(self, *args: Any, **options: Any) -> None:
        """`run` on the interpreter."""
        self.run(*args, **options)

    def __repr__(self) -> str:
        return f"<kernel {self._where}>"


@overload
def kernel(function: Callable[..., None], /) -> KernelFunction: ...
@overload
def kernel(*, mesh: Mapping[str, int] | None = None) -> Callable[[Callable[..., None]], KernelFunction]: ...
def kernel(function: Callable[..., None] | None = None, /, *, mesh: Mapping[str, int] | None = None) -> Any:
    """Make a kernel of a function of (k, tensors.., options..); on a mesh, every device executes it.

    Example:
        >>> import numpy as np
        >>> @kernel
        ... def double(k, x, y):
        ...     row = k.grid(x.blocks(0, 1))
        ...     with k.cta(threads=32) as cta:
        ...         cta.store(y[row], cta.load(x[row]) * 2)
        >>> x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
        >>> double.run(x, y)
        >>> y.tolist()
        [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    """
    if function is not None:
        return KernelFunction(function, {})
    return lambda made: KernelFunction(made, mesh or {})
