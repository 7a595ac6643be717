"""The calls of `nki` that printed text makes, in NumPy, with the limits of the hardware checked.

Only what :mod:`tileweave.backends.nki.printer` prints is here. Memory is NaN before it is written.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from tileweave.errors import BackendError
from tileweave.kernel.meaning import FUNCTIONS

PARTITIONS, STATIONARY, MOVING = 128, 128, 512
SBUF_BYTES, PSUM_BYTES = 192 * 1024, 16 * 1024
"""Bytes of one partition."""

Array = np.ndarray[Any, Any]


def refuse(call: str, problem: str, legal: str = "") -> BackendError:
    """The error of a call that the hardware cannot execute."""
    return BackendError(f"nki: {call}", problem, legal=legal)


class MemoryTile:
    """Memory of one kind: an array, its buffer, and slices of it."""

    def __init__(self, array: Array, buffer: str) -> None:
        self.array = array
        self.buffer = buffer

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents: partitions first."""
        return tuple(self.array.shape)

    def __getitem__(self, at: Any) -> MemoryTile:
        for part, size in zip(at if isinstance(at, tuple) else (at,), self.array.shape, strict=False):
            low, high = (part.start or 0, size if part.stop is None else part.stop) if isinstance(part, slice) else (
                part, part + 1)  # fmt: skip
            if not 0 <= low < high <= size:
                raise refuse("slice", f"{low}:{high} of an extent of {size}")
        return MemoryTile(self.array[at], self.buffer)


class PartitionMemory:
    """What one run has allocated: bytes of a partition, per buffer."""

    def ndarray(self, shape: tuple[int, ...], dtype: Any, buffer: str) -> MemoryTile:
        """A tile, uninitialised."""
        kind = np.dtype(dtype)
        if buffer != "hbm":
            limit = SBUF_BYTES if buffer == "sbuf" else PSUM_BYTES
            bytes_ = int(np.prod(shape[1:])) * kind.itemsize
            if shape[0] > PARTITIONS:
                raise refuse("nl.ndarray", f"{shape[0]} partitions", f"at most {PARTITIONS}")
            if bytes_ > limit:
                raise refuse("nl.ndarray", f"{bytes_} bytes of a partition of {buffer}", f"at most {limit}")
        made = np.zeros(shape, kind)
        if kind.kind not in "iub":
            made[...] = np.nan
        return MemoryTile(made, buffer)


def _store(call: str, dst: MemoryTile, values: Array) -> None:
    if dst.shape != values.shape:
        raise refuse(call, f"a destination of shape {dst.shape} for {values.shape}")
    with np.errstate(all="ignore"):
        dst.array[...] = values.astype(dst.array.dtype)


def _on_chip(call: str, *tiles: Any) -> None:
    for one in tiles:
        if isinstance(one, MemoryTile) and one.buffer == "hbm":
            raise refuse(call, "an operand in device memory", "nisa.dma_copy to SBUF before")


def _wide(value: Any) -> Any:
    return value.array.astype(np.float32) if isinstance(value, MemoryTile) else np.float32(value)


def nc_matmul(dst: MemoryTile, stationary: MemoryTile, moving: MemoryTile, accumulate: bool | None = None) -> None:
    """``dst (+)= stationary.T @ moving``: contraction over partitions, into PSUM, in f32."""
    call = "nisa.nc_matmul"
    if dst.buffer != "psum" or stationary.buffer != "sbuf" or moving.buffer != "sbuf":
        raise refuse(call, f"{stationary.buffer} and {moving.buffer} into {dst.buffer}", "SBUF and SBUF into PSUM")
    (k, m), (k2, n) = stationary.shape, moving.shape
    if k != k2 or k > PARTITIONS or m > STATIONARY or n > MOVING:
        raise refuse(call, f"stationary {stationary.shape}, moving {moving.shape}",
                     f"(k, m) and (k, n), k <= {PARTITIONS}, m <= {STATIONARY}, n <= {MOVING}")  # fmt: skip
    found = stationary.array.astype(np.float64).T @ moving.array.astype(np.float64)
    _store(call, dst, (dst.array + found if accumulate else found).astype(np.float32))


def nc_transpose(dst: MemoryTile, data: MemoryTile) -> None:
    """A tile turned, by the Tensor Engine: at most 128 x 128, into PSUM, in its own type."""
    if dst.buffer != "psum" or data.buffer != "sbuf" or max(data.shape) > PARTITIONS:
        raise refuse("nisa.nc_transpose", f"{data.shape} of {data.buffer} into {dst.buffer}", "128 x 128, SBUF to PSUM")
    if dst.array.dtype != data.array.dtype:
        raise refuse("nisa.nc_transpose", f"{data.array.dtype} into {dst.array.dtype}", "one type")
    _store("nisa.nc_transpose", dst, data.array.T)


def dma_copy(dst: MemoryTile, src: MemoryTile) -> None:
    """Between device memory and SBUF; casts."""
    if "psum" in (dst.buffer, src.buffer):
        raise refuse("nisa.dma_copy", f"{src.buffer} to {dst.buffer}", "device memory and SBUF")
    _store("nisa.dma_copy", dst, src.array.reshape(dst.shape))


def tensor_copy(dst: MemoryTile, src: MemoryTile) -> None:
    """Within SBUF and PSUM; casts."""
    _on_chip("nisa.tensor_copy", dst, src)
    _store("nisa.tensor_copy", dst, src.array)


def memset(dst: MemoryTile, value: float) -> None:
    """One value everywhere."""
    _on_chip("nisa.memset", dst)
    dst.array[...] = value


def tensor_tensor(dst: MemoryTile, data1: MemoryTile, data2: MemoryTile, op: Any) -> None:
    """Element by element of two tiles of one shape."""
    _on_chip("nisa.tensor_tensor", dst, data1, data2)
    if data1.shape != data2.shape:
        raise refuse("nisa.tensor_tensor", f"{data1.shape} and {data2.shape}", "equal shapes")
    _store("nisa.tensor_tensor", dst, op(_wide(data1), _wide(data2)))


def tensor_scalar(dst: MemoryTile, data: MemoryTile, op0: Any, operand0: Any, reverse0: bool = False) -> None:
    """A tile and a number, or one number per partition."""
    _on_chip("nisa.tensor_scalar", dst, data, operand0)
    if isinstance(operand0, MemoryTile) and operand0.shape != (data.shape[0], 1):
        raise refuse("nisa.tensor_scalar", f"an operand of shape {operand0.shape}", f"({data.shape[0]}, 1)")
    a, b = _wide(data), _wide(operand0)
    _store("nisa.tensor_scalar", dst, op0(b, a) if reverse0 else op0(a, b))


def activation(dst: MemoryTile, op: Any, data: MemoryTile) -> None:
    """A function of each element."""
    _on_chip("nisa.activation", dst, data)
    with np.errstate(all="ignore"):
        _store("nisa.activation", dst, op(_wide(data).astype(np.float64)).astype(np.float32))


def reciprocal(dst: MemoryTile, data: MemoryTile) -> None:
    """``1 / data``."""
    activation(dst, lambda x: 1 / x, data)


def tensor_reduce(dst: MemoryTile, op: Any, data: MemoryTile, axis: int) -> None:
    """Along the free axis."""
    _on_chip("nisa.tensor_reduce", dst, data)
    if axis != 1:
        raise refuse("nisa.tensor_reduce", f"axis {axis}", "the free axis, 1")
    wide = data.array.astype(np.float64)
    _store("nisa.tensor_reduce", dst, op.reduce(wide, axis=1, keepdims=True))


def _modules() -> dict[str, Any]:
    memory = PartitionMemory()
    functions = {
        "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
        "minimum": np.minimum, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "square": np.square,
        "rsqrt": lambda x: 1 / np.sqrt(x), "erf": FUNCTIONS["erf"], "abs": np.abs,
    }  # fmt: skip
    language = SimpleNamespace(
        ndarray=memory.ndarray, sbuf="sbuf", psum="psum", shared_hbm="hbm", float32=np.float32, float16=np.float16,
        bfloat16=ml_dtypes.bfloat16, float8_e4m3=ml_dtypes.float8_e4m3fn, int32=np.int32, affine_range=range,
        sequential_range=range, **functions,
    )  # fmt: skip
    isa = SimpleNamespace(**{
        f.__name__: f for f in (nc_matmul, nc_transpose, dma_copy, tensor_copy, memset, tensor_tensor, tensor_scalar,
                                activation, reciprocal, tensor_reduce)
    })  # fmt: skip
    root = SimpleNamespace(jit=lambda function: function, language=language, isa=isa)
    return {"nki": root, "nki.language": language, "nki.isa": isa}


def execute(source: str, name: str, arrays: dict[str, Array]) -> tuple[Array, ...]:
    """Run a printed kernel on arrays; gives what it returns.

    Raises:
        BackendError: a call that the hardware cannot execute; names it.
    """
    modules = _modules()

    def load(wanted: str, *_: Any) -> Any:
        if wanted not in modules:
            raise refuse("import", f"no module {wanted!r}")
        return modules["nki"]

    names: dict[str, Any] = {"__builtins__": {"__import__": load, "range": range, "min": min, "max": max}}
    exec(compile(source, f"{name}.nki.py", "exec"), names)
    found = names[name](**{key: MemoryTile(value, "hbm") for key, value in arrays.items()})
    return tuple(tile.array for tile in (found if isinstance(found, tuple) else (found,)))
