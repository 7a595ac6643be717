"""What Gluon text computes: its statements in NumPy, block by block; layouts say who holds a value, not which it is."""

import math
from types import SimpleNamespace

import numpy as np


class Value(np.ndarray):
    """A tensor of a block, or one number of it."""

    def to(self, dtype):
        return value(self.astype(dtype))


def value(x):
    return np.asarray(x).view(Value)


class Pointer:
    """Memory and offsets in elements."""

    def __init__(self, memory, at=0):
        self.memory, self.at = memory, at

    def __add__(self, more):
        return Pointer(self.memory, self.at + more)


class Shared:
    def __init__(self, array):
        self.array = array

    def permute(self, order):
        return Shared(self.array.transpose(order))

    def store(self, x):
        self.array[...] = x

    def load(self, layout):
        return value(self.array.copy())


def load(pointer, mask=True, other=0.0):
    at, there = np.broadcast_arrays(pointer.at, mask)
    assert (at[there] >= 0).all() and (at[there] < pointer.memory.size).all(), "outside the array"
    return value(np.where(there, pointer.memory[np.where(there, at, 0)], np.asarray(other, pointer.memory.dtype)))


def store(pointer, x, mask=True):
    at, there, x = np.broadcast_arrays(pointer.at, mask, x)
    assert (at[there] >= 0).all() and (at[there] < pointer.memory.size).all(), "outside the array"
    pointer.memory[at[there]] = x[there]


def reduce(x, axis, fn, keep_dims=False):
    total = np.take(x, 0, axis)
    for k in range(1, x.shape[axis]):
        total = fn(total, np.take(x, k, axis))
    return value(np.expand_dims(total, axis) if keep_dims else total)


def scan(x, axis, fn):
    parts = [np.take(x, 0, axis)]
    for k in range(1, x.shape[axis]):
        parts.append(fn(parts[-1], np.take(x, k, axis)))
    return value(np.stack(parts, axis))


def choose(condition, x, y):
    kept = x if isinstance(x, np.ndarray) else y
    return value(np.where(condition, x, np.asarray(y, kept.dtype)))


def mma(a, b, c):
    return value((c + a.astype(np.float64) @ b.astype(np.float64)).astype(c.dtype))


def language(block):
    def layout(*_, **__):
        return "layout"

    named = ("BlockedLayout", "DotOperandLayout", "NVMMADistributedLayout", "SliceLayout", "SwizzledSharedLayout",
             "NVMMASharedLayout", "PaddedSharedLayout", "DistributedLinearLayout")  # fmt: skip
    return SimpleNamespace(
        constexpr=object, program_id=lambda axis: block, barrier=lambda: None, load=load, store=store, reduce=reduce,
        arange=lambda low, high, layout: value(np.arange(low, high)), associative_scan=scan, where=choose,
        full=lambda shape, x, dtype, layout: value(np.broadcast_to(np.asarray(x).astype(dtype), shape).copy()),
        zeros=lambda shape, dtype, layout: value(np.zeros(shape, dtype)), cast=lambda x, dtype: value(x).to(dtype),
        sum=lambda x, axis, keep_dims=False: value(x.astype(np.float64).sum(axis, keepdims=keep_dims).astype(x.dtype)),
        allocate_shared_memory=lambda dtype, shape, layout: Shared(np.full(shape, np.nan, dtype)),
        convert_layout=lambda x, layout: x, permute=lambda x, order: value(x.transpose(order)),
        maximum=lambda a, b, propagate_nan=None: value(np.maximum(a, b)), minimum=lambda a, b: value(np.minimum(a, b)),
        exp=lambda x: value(np.exp(x)), sqrt=lambda x: value(np.sqrt(x)),
        erf=lambda x: value(np.vectorize(math.erf)(x).astype(x.dtype)),
        float32=np.float32, float16=np.float16, float64=np.float64, int32=np.int32, **dict.fromkeys(named, layout),
    )  # fmt: skip


def run(text, name, grid, arrays):
    """Run a kernel's text on arrays, which it writes."""
    body = "\n".join(line for line in text.splitlines() if not line.startswith(("from ", "import ")))
    code = compile(body, name, "exec")
    for block in range(grid):
        names = {"gl": language(block), "tl": SimpleNamespace(PropagateNan=SimpleNamespace(ALL=None)), "mma_v2": mma,
                 "gluon": SimpleNamespace(jit=lambda f: f)}  # fmt: skip
        exec(code, names)
        with np.errstate(all="ignore"):
            names[name](*(Pointer(array.reshape(-1)) for array in arrays))
