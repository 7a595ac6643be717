"""The semantic operators: what each takes, in one table. Shapes are those that regions show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tileweave.kernel.ir.statements import Op
from tileweave.kernel.ir.values import Region, Scalar


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A function of elements: how many it takes, and of which kind its result is."""

    arity: int
    result: str = "same"
    """``same``: the type computed in; ``pred``: a predicate."""
    inputs: str = "number"
    """``number``, ``float``, ``pred`` or ``select`` (a predicate and two numbers)."""


ELEMENTWISE: dict[str, Elementwise] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "min", "max"), Elementwise(2)),
    **dict.fromkeys(("neg", "abs", "square"), Elementwise(1)),
    **dict.fromkeys(
        ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor", "recip"),
        Elementwise(1, inputs="float"),
    ),
    **dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), Elementwise(2, "pred")),
    **dict.fromkeys(("and", "or"), Elementwise(2, "pred", "pred")),
    "not": Elementwise(1, "pred", "pred"),
    "fma": Elementwise(3),
    "where": Elementwise(3, inputs="select"),
}
"""Functions of the operator `map`. Division of integers rounds towards minus infinity."""

MONOIDS = ("add", "max", "min", "mul")
"""What `reduce` and `scan` combine by; a masked element is the neutral one."""


@dataclass(frozen=True, slots=True)
class TileOperator:
    """A row of the table: inputs, the names of the options it knows, and what is wrong with its shapes ('' if nothing).

    Every operator has one output. Values are computed in the type of the output unless the text says otherwise.
    """

    inputs: tuple[int, ...]
    shapes: Callable[[Op], str]
    options: tuple[str, ...] = ()
    meaning: str = ""


def broadcast_problem(op: Op) -> str:
    """Every input has the output's rank, and in each dimension its extent or 1."""
    out = op.outs[0].shape
    for one in op.ins:
        if isinstance(one, Region) and one.shape != out:
            if len(one.shape) != len(out) or any(e not in (1, o) for e, o in zip(one.shape, out, strict=True)):
                return f"{one} of shape {one.shape} does not broadcast to {out}"
    return ""


def _same(op: Op) -> str:
    for one in op.ins:
        if isinstance(one, Region) and one.shape != op.outs[0].shape:
            return f"{one} of shape {one.shape} does not fit {op.outs[0]} of shape {op.outs[0].shape}"
    return ""


def _gemm(op: Op) -> str:
    c, (a, b) = op.outs[0].shape, [one.shape if isinstance(one, Region) else () for one in op.ins[:2]]
    if op.option("pair") and len(b) == 2:
        b = (2 * b[0], b[1])  # half of B's rows are in each of the two blocks
    if len(c) != 2 or len(a) != 2 or len(b) != 2 or a[0] != c[0] or b[0] != c[1] or a[1] != b[1]:
        return f"C {c}, A {a}, B {b} are not (m, n), (m, k), (n, k)"
    if len(op.ins) == 5:
        return _scaled(op)
    if op.option("precision") is not None:
        types = [one.tensor.dtype for one in (*op.outs, *op.ins[:2]) if isinstance(one, Region)]
        if op.option("precision") != "tf32" or set(types) != {"f32"}:
            return f"precision={op.option('precision')!r} of {', '.join(types)}: 'tf32' of f32 is all there is"
    return ""


def _scaled(op: Op) -> str:
    """A scale for every 32 terms of each row of both factors."""
    for factor, scales in ((op.ins[0], op.ins[3]), (op.ins[1], op.ins[4])):
        if not isinstance(factor, Region) or not isinstance(scales, Region):
            return "a factor or its scales are a number"
        wanted = (factor.shape[0], -(-factor.shape[1] // 32))
        if scales.shape != wanted or scales.tensor.dtype != "e8m0":
            return f"scales {scales} of {scales.tensor.dtype} and shape {scales.shape}, not e8m0 and {wanted}"
        if factor.tensor.dtype not in ("e4m3", "e5m2"):
            return f"scales of {factor.tensor.dtype}: factors with scales are e4m3 or e5m2"
    return "a product of two blocks, or in tf32, has no scales" if op.option("pair") or op.option("precision") else ""


def _reduced(op: Op) -> str:
    out, axes = op.outs[0].shape, op.option("axes")
    source = op.ins[0]
    if not isinstance(source, Region) or not isinstance(axes, tuple) or not axes:
        return "reduces no region, or no axes"
    if any(not 0 <= axis < len(source.shape) for axis in axes):
        return f"axes {axes} of a region of rank {len(source.shape)}"
    wanted = tuple(1 if d in axes else e for d, e in enumerate(source.shape))
    return "" if out == wanted else f"the result has shape {out}, not {wanted}"


def _scanned(op: Op) -> str:
    axis = op.option("axis")
    if not isinstance(axis, int) or not 0 <= axis < len(op.outs[0].shape):
        return f"axis {axis} of a region of rank {len(op.outs[0].shape)}"
    return _same(op)


def _iota(op: Op) -> str:
    axis = op.option("axis")
    ok = isinstance(axis, int) and 0 <= axis < len(op.outs[0].shape)
    return "" if ok else f"axis {axis} of a region of rank {len(op.outs[0].shape)}"


def _single(op: Op) -> str:
    ok = all(isinstance(one, Scalar) or one.size == 1 for one in (*op.outs, *op.ins))
    return "" if ok else "an atomic operation is on one element"


_ADVICE = ("use", "cache")
"""Options of every operator that may name a schedule: `use` forces one, `cache` is a hint for loads."""

OPERATORS: dict[str, TileOperator] = {
    "copy": TileOperator(
        (1,),
        _same,
        (*_ADVICE, "accumulate", "collective"),
        "out = in, rounded to out's type; accumulate=1: out += in; collective: what the devices of a mesh do together",
    ),
    "copy_async": TileOperator(
        (1,),
        _same,
        (*_ADVICE, "multicast", "leader"),
        "out = in, complete at its barrier or group; same element type; "
        "multicast=mask: out and the barrier of every block of the cluster whose bit is set; "
        "leader=1: the barrier of the pair's first block",
    ),
    "fill": TileOperator((1,), broadcast_problem, (), "out = a scalar"),
    "iota": TileOperator((1,), _iota, ("axis",), "out = the scalar + the coordinate along axis"),
    "cast": TileOperator((1,), _same, ("use",), "out = in, rounded to nearest even; to integers towards zero"),
    "map": TileOperator(
        (1, 2, 3), broadcast_problem, ("fn", "use"), "out = fn(ins), element by element, inputs broadcast"
    ),
    "reduce": TileOperator(
        (1,), _reduced, ("axes", "fn", "use", "collective"), "out = in combined along axes, which keep extent 1"
    ),
    "scan": TileOperator((1,), _scanned, ("axis", "fn", "use"), "out = in combined up to and with each coordinate"),
    "gemm": TileOperator(
        (3, 5),
        _gemm,
        ("use", "keep", "pair", "precision"),
        "out = in0 in1^T + in2 in out's type, exact products; in2 is out or 0; in "
        "tensor memory, keep=0: without in2; pair=1: of two blocks, rows of out and in0 in each, in1's rows shared; "
        "precision='tf32': of in0 and in1 the upper 19 bits count; in3, in4: a factor for every 32 terms of their rows",
    ),
    "atomic_add": TileOperator(
        (2,), _single, ("order", "use"), "out = the element in0, which then grows by in1, at once"
    ),
}
"""Every operator by its name."""
