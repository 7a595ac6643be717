"""A kernel as a custom operator of PyTorch; its tensors are used where they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Protocol

import numpy as np

from tileweave.errors import BackendError
from tileweave.kernel import targets
from tileweave.kernel.atoms.atom import check_arch
from tileweave.kernel.ir import Kernel, Op, Signal, dtype_of, walk


class Traced(Protocol):
    """What an operator needs of a kernel function."""

    name: str
    tensors: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]

    def trace(self, *args: Any, **options: Any) -> Kernel:
        """The kernel for arguments of these shapes and types."""
        ...


Outputs = Sequence[str] | Mapping[str, Callable[..., Any]]


def make_op(
    function: Traced, specify: Callable[..., Any], outputs: Outputs, name: str, arch: str, options: Mapping[str, Any]
) -> Any:
    """The operator; see `KernelFunction.torch_op`.

    Args:
        function: the kernel.
        specify: a specification from a shape and a type, to trace without data.
        outputs: the tensors that the kernel writes; with functions that make them, the operator returns them.
        name: ``namespace::name``.
        arch: the target; empty for the default.
        options: of the kernel.
    """
    where = f"{function.name}.torch_op(outputs)"
    if arch:
        check_arch(where, arch)
    try:
        import torch
    except ImportError:
        raise BackendError(where, "PyTorch is not installed", legal="pip install 'tileweave[gpu]'") from None
    unknown = [one for one in outputs if one not in function.tensors]
    if isinstance(outputs, str) or unknown or not outputs:
        raise BackendError(
            where, f"{outputs!r} names no tensors of the kernel", legal=f"some of {', '.join(function.tensors)}"
        )
    if function.mesh:
        raise BackendError(where, "the kernel runs on a mesh, an operator on one device", legal="a kernel without mesh")
    makers = outputs if isinstance(outputs, Mapping) else {}
    inputs = [one for one in function.tensors if one not in makers]
    called = _free(name, function.name, where)
    call = f"{called}({', '.join(inputs)})"

    @lru_cache(64)
    def traced(specs: tuple[tuple[tuple[int, ...], str], ...]) -> Kernel:
        kernel = function.trace(*(specify(shape, dtype) for shape, dtype in specs), **options)
        undeclared = sorted(_written(kernel) - set(outputs))
        if undeclared:
            raise BackendError(call, f"the kernel writes {', '.join(undeclared)}, too", legal="all of them in outputs")
        return kernel

    def made(*given: Any) -> dict[str, Any]:
        return {key: make(*given) for key, make in makers.items()}

    def result(fresh: Mapping[str, Any]) -> Any:
        return None if not fresh else next(iter(fresh.values())) if len(fresh) == 1 else tuple(fresh.values())

    def execute(*given: Any) -> Any:
        fresh = made(*given)
        named = {**dict(zip(inputs, given, strict=True)), **fresh}
        tensors = {key: named[key] for key in function.tensors}
        place = _place(tensors, call)
        specs = tuple((tuple(t.shape), _dtype(key, t, call).name) for key, t in tensors.items())
        arrays = {key: _array(key, t, call) for key, t in tensors.items()}
        if place == "cuda":  # the kernel is launched on the default stream
            torch.cuda.current_stream(next(iter(tensors.values())).device).synchronize()
        targets.runner(place)(traced(specs), arrays, on=place, **({"arch": arch} if arch else {}))
        return result(fresh)

    def shapes(*given: Any) -> Any:
        return result(made(*given))

    op = torch.library.custom_op(
        called, execute, mutates_args=() if makers else tuple(outputs),
        schema=_schema(inputs, () if makers else tuple(outputs), len(makers)),
    )  # fmt: skip
    op.register_fake(shapes)
    return op


def _free(name: str, kernel: str, where: str) -> str:
    """The operator's name; a second operator of a name would silently take the place of the first.

    Raises:
        BackendError: the name has no namespace, or is taken.
    """
    from torch import ops

    def taken(one: str) -> bool:
        space, _, own = one.partition("::")
        return hasattr(getattr(ops, space), own)

    if not name:
        numbered = (f"tileweave::{kernel}{k or ''}" for k in count())
        return next(one for one in numbered if not taken(one))
    if not all(part.isidentifier() for part in name.split("::")) or name.count("::") != 1:
        raise BackendError(where, f"the name {name!r}", legal="namespace::name")
    if taken(name):
        raise BackendError(where, f"an operator {name} exists", legal="another name, or none: then one is found")
    return name


def _schema(inputs: Sequence[str], mutated: Sequence[str], results: int) -> str:
    """The operator's schema; each tensor that is written has an alias set of its own."""
    marks = {one: f"(a{k}!)" for k, one in enumerate(mutated)}
    takes = ", ".join(f"Tensor{marks.get(one, '')} {one}" for one in inputs)
    gives = "Tensor" if results == 1 else "(" + ", ".join(["Tensor"] * results) + ")"
    return f"({takes}) -> {gives}"


def _written(kernel: Kernel) -> set[str]:
    """The parameters that a kernel writes."""
    params = {p.name for p in kernel.params}
    found: set[str] = set()
    for s in walk(kernel.body):
        if isinstance(s, Op):
            found |= {r.tensor.name for r in s.outs}
            if s.name == "atomic_add":
                found |= {r.tensor.name for r in s.ins[:1] if hasattr(r, "tensor")}
        elif isinstance(s, Signal):
            found.add(s.flag.tensor.name)
    return found & params


def _place(tensors: Mapping[str, Any], where: str) -> str:
    """Where the tensors are: ``"cpu"`` or ``"cuda"``."""
    devices = {str(t.device) for t in tensors.values()}
    kinds = {t.device.type for t in tensors.values()}
    if len(devices) > 1 or not kinds <= {"cpu", "cuda"}:
        shown = {key: t.device for key, t in tensors.items()}
        raise BackendError(where, "tensors on several devices, or on one that is no target", inputs=shown,
                           legal="all on the CPU, or all on one CUDA device")  # fmt: skip
    return str(kinds.pop())


def _dtype(name: str, tensor: Any, where: str) -> Any:
    try:
        return dtype_of(str(tensor.dtype).removeprefix("torch."), where)
    except TypeError:
        raise BackendError(where, f"{name}: elements of type {tensor.dtype}", legal="a type of kernels") from None


def _array(name: str, tensor: Any, where: str) -> Any:
    """The memory of a tensor, without a copy: an array on the CPU, an address on a device."""
    import torch

    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        strides = tuple(tensor.stride()) if tensor.layout is torch.strided else tensor.layout
        raise BackendError(
            where, f"{name}: a tensor that is not contiguous", legal="tensor.contiguous()",
            inputs={"shape": tuple(tensor.shape), "strides": strides},
        )  # fmt: skip
    dtype: np.dtype[Any] = _dtype(name, tensor, where).numpy
    if tensor.device.type == "cuda":
        return tensor.detach()  # the runner takes its address
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return tensor.detach().view(bits).numpy().view(dtype)  # NumPy takes no bf16 and no floats of 8 bits
