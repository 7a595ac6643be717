"""Random ONNX models whose batch and sequence are symbolic: a file, bindings, and arrays for them.

A value of a model is known by its shape, whose extents are numbers or texts of two letters, ``b`` and ``s``, as Python
evaluates them: ``(s - 1) // 2 + 1`` is what a convolution of stride two makes of ``s``. So a model is right at every
binding by construction, and equal texts are equal extents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[Any, ...]
Made = tuple[str, Shape]
MOST_ELEMENTS = 20_000
"""At the largest binding: what is larger is not gone on with."""
LARGEST = {"b": 5, "s": 9}
BINDINGS = [(3, 7), (1, 2), (5, 9), (2, 4), (1, 9)]


def extent(n: Any, binding: dict[str, int]) -> int:
    """A number, or the value of a text for a binding."""
    return n if isinstance(n, int) else int(eval(n, {}, dict(binding)))


def at(shape: Shape, binding: dict[str, int]) -> tuple[int, ...]:
    """A shape's numbers."""
    return tuple(extent(n, binding) for n in shape)


class Drawn:
    """A model that is being drawn: nodes, constants, and values by name with their shapes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.values: list[Made] = []
        self.rounded = False
        """Whether something rounds, so that neighbours of a step may fall to either side."""

    def name(self) -> str:
        """A name that is new."""
        return f"v{len(self.nodes) + len(self.constants)}"

    def constant(self, array: Any) -> str:
        """A constant of the file."""
        name = "c" + self.name()
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def integers(self, *numbers: int) -> str:
        """A constant of INT64."""
        return self.constant(np.asarray(numbers, np.int64))

    def weights(self, *shape: int) -> str:
        """A constant of FP32 that keeps the size of what it multiplies."""
        scale = 1 / np.sqrt(max(1, int(np.prod(shape[:-1] if len(shape) < 3 else shape[1:]))))
        return self.constant((self.rng.normal(size=shape) * scale).astype(np.float32))

    def node(self, operator: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> Any:
        """A node, and the names of its outputs."""
        made = [self.name() + (f"_{k}" if k else "") for k in range(outputs)]
        domain = {"domain": "com.microsoft"} if operator in ("FusedMatMul", "BiasGelu", "QuickGelu") else {}
        self.nodes.append(helper.make_node(operator, inputs, made, **attributes, **domain))
        return made[0] if outputs == 1 else made

    def choice(self, options: Any) -> Any:
        """One of several."""
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        """Whether it happens."""
        return bool(self.rng.random() < probability)

    def axis(self, shape: Shape, fits: Callable[[Any], bool] = lambda n: True) -> int | None:
        """An axis whose extent fits, counted from either end."""
        axes = [k for k, n in enumerate(shape) if fits(n)]
        if not axes:
            return None
        k = self.choice(axes)
        return k - len(shape) if self.chance(0.3) else k

    def shape_of(self, value: str, *axes: int) -> str:
        """Some extents of a value, as a node computes them."""
        return self.node("Gather", [self.node("Shape", [value]), self.integers(*axes)], axis=0)


Step = Callable[[Drawn, str, Shape], Made | None]
STEPS: dict[str, Step] = {}


def step(function: Step) -> Step:
    """Adds a step to the table."""
    STEPS[function.__name__] = function
    return function


def fixed(n: Any) -> bool:
    """Whether an extent is a number."""
    return isinstance(n, int)


def moved(shape: Shape, axis: int, n: Any) -> Shape:
    """A shape with another extent on an axis."""
    made = list(shape)
    made[axis] = n
    return tuple(made)


@step
def unary(d: Drawn, x: str, shape: Shape) -> Made:
    names = "Relu Tanh Sigmoid Erf Neg Abs LeakyRelu Elu Softplus Softsign HardSwish HardSigmoid Mish Gelu Sin Selu"
    name = d.choice(names.split())
    return d.node(name, [x], **({"approximate": "tanh"} if name == "Gelu" and d.chance(0.5) else {})), shape


@step
def bounded(d: Drawn, x: str, shape: Shape) -> Made:
    return d.node("Clip", [x, d.constant(np.float32(-1)), d.constant(np.float32(1.5)) if d.chance(0.7) else ""]), shape


@step
def with_constant(d: Drawn, x: str, shape: Shape) -> Made:
    kept = int(d.rng.integers(0, len(shape) + 1))
    other = [n if fixed(n) and d.chance(0.7) else 1 for n in shape[kept:]]
    array = (d.rng.normal(size=other) + 0.1).astype(np.float32)
    name = d.choice(["Add", "Mul", "Sub", "Max", "Min", "Div"])
    array = np.where(np.abs(array) < 0.3, np.float32(0.5), array) if name == "Div" else array
    return d.node(name, [x, d.constant(array)] if name == "Div" or d.chance(0.7) else [d.constant(array), x]), shape


@step
def with_another(d: Drawn, x: str, shape: Shape) -> Made | None:
    alike = [name for name, other in d.values if other == shape]
    return (d.node(d.choice(["Add", "Mul", "Sub", "Max"]), [x, d.choice(alike)]), shape) if alike else None


@step
def with_reduced(d: Drawn, x: str, shape: Shape) -> Made:
    axis = d.axis(shape)
    mean = d.node(d.choice(["ReduceMean", "ReduceMax", "ReduceL2"]), [x, d.integers(axis)], keepdims=1)
    return d.node(d.choice(["Sub", "Add", "Mul"]), [x, mean]), shape


@step
def chosen(d: Drawn, x: str, shape: Shape) -> Made:
    holds = d.node(d.choice(["Greater", "LessOrEqual"]), [x, d.constant(np.float32(0.1))])
    holds = d.node("Not", [holds]) if d.chance(0.3) else holds
    return d.node("Where", [holds, d.node("Neg", [x]), d.constant(np.float32(0.25)) if d.chance(0.5) else x]), shape


@step
def matmul(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) < 2 or not fixed(shape[-1]):
        return None
    out = int(d.rng.integers(1, 10))
    return d.node("MatMul", [x, d.weights(shape[-1], out)]), (*shape[:-1], out)


@step
def gemm(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) != 2:
        return None
    turned, across = int(d.chance(0.3)), int(d.chance(0.5))
    rows, inner = (shape[1], shape[0]) if turned else shape
    if not fixed(inner):
        return None
    out = int(d.rng.integers(1, 10))
    weights = d.weights(out, inner) if across else d.weights(inner, out)
    bias = [d.constant(d.rng.normal(size=d.choice([(out,), (1, out), ()])).astype(np.float32))] if d.chance(0.7) else []
    scales = {"alpha": 0.5, "beta": 1.5} if d.chance(0.3) else {}
    return d.node("Gemm", [x, weights, *bias], transA=turned, transB=across, **scales), (rows, out)


@step
def attention(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) != 3 or not fixed(shape[-1]):
        return None
    heads, size = d.choice([(1, 4), (2, 4), (2, 8), (3, 2)])
    parts = [d.node("MatMul", [x, d.weights(shape[-1], heads * size)]) for _ in range(3)]
    if d.chance(0.5):
        split = d.integers(0, 0, heads, size)
    else:
        split = d.node("Concat", [d.shape_of(x, 0, 1), d.integers(heads, -1)], axis=0)
    q, k, v = (d.node("Reshape", [part, split]) for part in parts)
    q, v = (d.node("Transpose", [part], perm=[0, 2, 1, 3]) for part in (q, v))
    k = d.node("Transpose", [k], perm=[0, 2, 3, 1])
    scores = d.node("Mul", [d.node("MatMul", [q, k]), d.constant(np.float32(size**-0.5))])
    if d.chance(0.5):
        count = d.node("Squeeze", [d.shape_of(x, 1)])
        places = d.node("Range", [d.constant(np.int64(0)), count, d.constant(np.int64(1))])
        column, row = (d.node("Unsqueeze", [places, d.integers(axis)]) for axis in (1, 0))
        later = d.node("Less", [column, row])
        scores = d.node("Where", [later, d.constant(np.float32(d.choice([-1e9, -np.inf]))), scores])
    made = d.node("MatMul", [d.node("Softmax", [scores], axis=-1), v])
    made = d.node("Transpose", [made], perm=[0, 2, 1, 3])
    return d.node("Reshape", [made, d.integers(0, 0, -1)]), (*shape[:2], heads * size)


@step
def product_of_two(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) < 2:
        return None
    perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    made = d.node("MatMul", [x, d.node("Transpose", [x], perm=perm)])
    return d.node("Tanh", [d.node("Mul", [made, d.constant(np.float32(0.2))])]), (*shape[:-1], shape[-2])


@step
def convolution(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) not in (3, 4) or not fixed(shape[1]):
        return None
    points = len(shape) - 2
    kernel = [int(d.rng.integers(1, 4)) for _ in range(points)]
    strides = [int(d.rng.integers(1, 3)) for _ in range(points)]
    groups = d.choice([n for n in (1, 2, shape[1]) if shape[1] % n == 0])
    out = groups * int(d.rng.integers(1, 4))
    pads = [k - 1 for k in kernel]
    weights = d.weights(out, shape[1] // groups, *kernel)
    bias = [d.constant(d.rng.normal(size=out).astype(np.float32))] if d.chance(0.6) else []
    made = d.node(
        "Conv", [x, weights, *bias], group=groups, strides=strides, kernel_shape=kernel, pads=[0] * points + pads
    )
    spots = [f"(({n}) - 1) // {s} + 1" if s > 1 else n for n, s in zip(shape[2:], strides, strict=True)]
    return made, (shape[0], out, *(int(eval(n)) if _number(n) else n for n in spots))


def _number(n: Any) -> bool:
    return isinstance(n, str) and not set("bs") & set(n)


@step
def transposed_convolution(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) not in (3, 4) or not fixed(shape[1]):
        return None
    points = len(shape) - 2
    out = int(d.rng.integers(1, 4))
    made = d.node("ConvTranspose", [x, d.weights(shape[1], out, *[2] * points)], strides=[2] * points)
    return made, (shape[0], out, *(2 * n if fixed(n) else f"2 * ({n})" for n in shape[2:]))


@step
def pooled(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) not in (3, 4):
        return None
    points = len(shape) - 2
    kind = d.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool"])
    if kind.startswith("Global"):
        return d.node(kind, [x]), (*shape[:2], *[1] * points)
    more = {"count_include_pad": int(d.chance(0.5))} if kind == "AveragePool" else {}
    made = d.node(kind, [x], kernel_shape=[3] * points, strides=[1] * points, pads=[1] * 2 * points, **more)
    return made, shape


@step
def reshaped(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) < 2:
        return None
    last = f"({shape[-2]}) * ({shape[-1]})" if not all(map(fixed, shape[-2:])) else shape[-2] * shape[-1]
    kind = d.choice(["zeros", "shape", "rows", "flatten"])
    if kind == "zeros":
        return d.node("Reshape", [x, d.integers(*[0] * (len(shape) - 2), -1)]), (*shape[:-2], last)
    if kind == "shape" and len(shape) > 2:
        wanted = d.node("Concat", [d.shape_of(x, *range(len(shape) - 2)), d.integers(-1)], axis=0)
        return d.node("Reshape", [x, wanted]), (*shape[:-2], last)
    head = " * ".join(f"({n})" for n in shape[:-1])
    head = int(eval(head)) if all(map(fixed, shape[:-1])) else head
    if kind == "rows" and fixed(shape[-1]):
        return d.node("Reshape", [x, d.integers(-1, shape[-1])]), (head, shape[-1])
    return d.node("Flatten", [x], axis=len(shape) - 1), (head, shape[-1])


@step
def split_heads(d: Drawn, x: str, shape: Shape) -> Made | None:
    if not fixed(shape[-1]) or shape[-1] % 2 or len(shape) > 3:
        return None
    made = d.node("Reshape", [x, d.integers(*[0] * (len(shape) - 1), 2, -1)])
    return made, (*shape[:-1], 2, shape[-1] // 2)


@step
def turned(d: Drawn, x: str, shape: Shape) -> Made:
    perm = [int(k) for k in d.rng.permutation(len(shape))]
    return d.node("Transpose", [x], perm=perm), tuple(shape[k] for k in perm)


@step
def joined(d: Drawn, x: str, shape: Shape) -> Made:
    axis = d.axis(shape)
    alike = [name for name, other in d.values if other == shape]
    parts = [x, *(d.choice(alike) for _ in range(int(d.rng.integers(1, 3))))]
    n = shape[axis]
    more = len(parts) * n if fixed(n) else f"{len(parts)} * ({n})"
    return d.node("Concat", parts, axis=axis), moved(shape, axis, more)


@step
def sliced(d: Drawn, x: str, shape: Shape) -> Made:
    axis = d.axis(shape)
    n = shape[axis]
    kind = d.choice(["reversed", "every other", "but the last", "half"])
    far = 2**62
    if kind == "but the last":  # at least one is left, of what has two
        ends = d.node("Max", [d.node("Sub", [d.shape_of(x, axis), d.integers(1)]), d.integers(1)])
        made = d.node("Slice", [x, d.integers(0), ends, d.integers(axis)])
        return made, moved(shape, axis, max(n - 1, 1) if fixed(n) else f"max(({n}) - 1, 1)")
    if kind == "half":
        half = d.node("Div", [d.node("Add", [d.shape_of(x, axis), d.integers(1)]), d.integers(2)])
        made = d.node("Slice", [x, d.integers(0), half, d.integers(axis)])
        return made, moved(shape, axis, (n + 1) // 2 if fixed(n) else f"(({n}) + 1) // 2")
    if kind == "reversed":
        return d.node("Slice", [x, d.integers(-1), d.integers(-far), d.integers(axis), d.integers(-1)]), shape
    made = d.node("Slice", [x, d.integers(0), d.integers(far), d.integers(axis), d.integers(2)])
    return made, moved(shape, axis, (n + 1) // 2 if fixed(n) else f"(({n}) + 1) // 2")


@step
def parted(d: Drawn, x: str, shape: Shape) -> Made | None:
    axis = d.axis(shape, lambda n: fixed(n) and n > 1)
    if axis is None:
        return None
    first = int(d.rng.integers(1, shape[axis]))
    made = d.node("Split", [x, d.integers(first, shape[axis] - first)], 2, axis=axis)
    d.values.append((made[1], moved(shape, axis, shape[axis] - first)))
    return made[0], moved(shape, axis, first)


@step
def reduced(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) < 2:
        return None
    count = int(d.rng.integers(1, min(3, len(shape))))
    axes = sorted(int(k) for k in d.rng.choice(len(shape), count, replace=False))
    sums = "Sum", "Mean", "Max", "Min", "L1", "L2", "LogSumExp", "SumSquare"
    kind = f"Reduce{d.choice(sums)}"
    keep = d.chance(0.5)
    made = d.node(kind, [x, d.integers(*axes)], keepdims=int(keep))
    left = tuple(1 if k in axes else n for k, n in enumerate(shape) if keep or k not in axes)
    return d.node("Tanh", [d.node("Mul", [made, d.constant(np.float32(0.1))])]), left


@step
def softmax(d: Drawn, x: str, shape: Shape) -> Made:
    return d.node(d.choice(["Softmax", "LogSoftmax"]), [x], axis=d.axis(shape)), shape


@step
def normalised(d: Drawn, x: str, shape: Shape) -> Made | None:
    if not fixed(shape[-1]):
        return None
    scale, bias = (d.constant((1 + d.rng.random(shape[-1])).astype(np.float32)) for _ in range(2))
    if d.chance(0.6):
        return d.node("LayerNormalization", [x, scale, *([bias] if d.chance(0.7) else [])], axis=-1), shape
    return d.node("RMSNormalization", [x, scale], axis=-1), shape


@step
def normalised_channels(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) < 3 or not fixed(shape[1]):
        return None
    scale, bias, mean, var = (d.constant((1 + d.rng.random(shape[1])).astype(np.float32)) for _ in range(4))
    if d.chance(0.5):
        return d.node("BatchNormalization", [x, scale, bias, mean, var]), shape
    return d.node("InstanceNormalization", [x, scale, bias], epsilon=1e-2), shape


@step
def resized(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) != 4:
        return None
    mode, places = d.choice(
        [
            ("nearest", "asymmetric"),
            ("nearest", "half_pixel"),
            ("linear", "half_pixel"),
            ("linear", "align_corners"),
            ("linear", "asymmetric"),
            ("cubic", "half_pixel"),
        ]
    )
    scales = d.constant(np.asarray([1, 1, 2, 2], np.float32))
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    made = d.node("Resize", [x, "", scales], mode=mode, coordinate_transformation_mode=places, **more)
    return made, (*shape[:2], *(2 * n if fixed(n) else f"2 * ({n})" for n in shape[2:]))


@step
def quantised(d: Drawn, x: str, shape: Shape) -> Made:
    d.rounded = True
    kind = d.choice([np.uint8, np.int8])
    scale, zero = d.constant(np.float32(0.03)), d.constant(kind(d.choice([0, 3])))
    return d.node("DequantizeLinear", [d.node("QuantizeLinear", [x, scale, zero]), scale, zero]), shape


@step
def quantised_product(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) < 2 or not fixed(shape[-1]):
        return None
    d.rounded = True
    out = int(d.rng.integers(1, 9))
    kind = d.choice(["static", "dynamic"])
    weights = d.constant(d.rng.integers(-100, 100, (shape[-1], out)).astype(np.int8))
    zero = d.constant(np.int8(d.choice([0, 0, 5])))
    scale = d.constant(np.float32(0.01))
    if kind == "dynamic":
        q, step_size, middle = d.node("DynamicQuantizeLinear", [x], 3)
        made = d.node("Cast", [d.node("MatMulInteger", [q, weights, middle, zero])], to=TensorProto.FLOAT)
        return d.node("Mul", [made, d.node("Mul", [step_size, scale])]), (*shape[:-1], out)
    fine, middle = d.constant(np.float32(0.03)), d.constant(np.uint8(120))
    q = d.node("DequantizeLinear", [d.node("QuantizeLinear", [x, fine, middle]), fine, middle])
    w = d.node("DequantizeLinear", [weights, scale, zero])
    made = d.node("MatMul", [q, w])
    if d.chance(0.5):
        made = d.node("DequantizeLinear", [d.node("QuantizeLinear", [made, fine, middle]), fine, middle])
    return made, (*shape[:-1], out)


@step
def widened(d: Drawn, x: str, shape: Shape) -> Made:
    more = d.node("Unsqueeze", [x, d.integers(0)])
    if d.chance(0.5):
        many = d.node("Expand", [more, d.integers(2, *[1] * len(shape))])
    else:
        many = d.node("Tile", [more, d.integers(2, *[1] * len(shape))])
    return d.node("ReduceMean", [many, d.integers(0)], keepdims=0), shape


@step
def spread(d: Drawn, x: str, shape: Shape) -> Made:
    axis = d.axis(shape)
    mean = d.node("ReduceMean", [x, d.integers(axis)], keepdims=1)
    return d.node("Expand", [mean, d.node("Shape", [x])]), shape


@step
def gathered(d: Drawn, x: str, shape: Shape) -> Made:
    axis = d.axis(shape)
    if d.chance(0.5):
        return d.node("Gather", [x, d.integers(0, -1, 0)], axis=axis), moved(shape, axis, 3)
    places = d.node("ArgMax", [x], axis=axis, keepdims=1)
    return d.node("GatherElements", [x, places], axis=axis), moved(shape, axis, 1)


@step
def picked(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) < 3:
        return None
    axis = d.axis(shape)
    k = axis % len(shape)
    return d.node("Gather", [x, d.constant(np.int64(d.choice([0, -1])))], axis=axis), (*shape[:k], *shape[k + 1 :])


@step
def padded(d: Drawn, x: str, shape: Shape) -> Made:
    mode = d.choice(["constant", "edge"])
    before, after = ([int(k) for k in d.rng.integers(0, 2, len(shape))] for _ in range(2))
    value = [d.constant(np.float32(0.5))] if mode == "constant" else []
    made = d.node("Pad", [x, d.integers(*before, *after), *value], mode=mode)
    more = [p + q for p, q in zip(before, after, strict=True)]
    return made, tuple(n if not k else n + k if fixed(n) else f"({n}) + {k}" for n, k in zip(shape, more, strict=True))


@step
def running(d: Drawn, x: str, shape: Shape) -> Made:
    axis = d.axis(shape)
    made = d.node("CumSum", [x, d.constant(np.int64(axis))], reverse=int(d.chance(0.3)), exclusive=int(d.chance(0.3)))
    return d.node("Tanh", [d.node("Mul", [made, d.constant(np.float32(0.2))])]), shape


@step
def largest(d: Drawn, x: str, shape: Shape) -> Made | None:
    axis = d.axis(shape, lambda n: fixed(n) and n > 1)
    if axis is None:
        return None
    k = int(d.rng.integers(1, shape[axis]))
    made = d.node("TopK", [x, d.integers(k)], 2, axis=axis, largest=int(d.chance(0.7)))
    return made[0], moved(shape, axis, k)


@step
def lower(d: Drawn, x: str, shape: Shape) -> Made | None:
    return (d.node("Trilu", [x], upper=int(d.chance(0.5))), shape) if len(shape) >= 2 else None


@step
def squeezed(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) > 3:
        return None
    axis = int(d.rng.integers(len(shape) + 1))
    return d.node("Unsqueeze", [x, d.integers(axis)]), (*shape[:axis], 1, *shape[axis:])


@step
def summed_products(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) != 3 or not fixed(shape[2]):
        return None
    out = int(d.rng.integers(1, 6))
    equation = d.choice(["bsk,kn->bsn", "bsk,kn->nbs"])
    made = d.node("Einsum", [x, d.weights(shape[2], out)], equation=equation)
    return made, (*shape[:2], out) if equation.endswith("bsn") else (out, *shape[:2])


@step
def recurrent(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) != 3 or not fixed(shape[2]):
        return None
    kind = d.choice(["LSTM", "GRU", "RNN"])
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    ways, hidden = d.choice([1, 2]), int(d.rng.integers(1, 6))
    weights = [
        d.constant((d.rng.normal(size=n) * 0.4).astype(np.float32))
        for n in [(ways, gates * hidden, shape[2]), (ways, gates * hidden, hidden), (ways, 2 * gates * hidden)]
    ]
    more = {"linear_before_reset": int(d.chance(0.5))} if kind == "GRU" else {}
    made = d.node(
        kind, [x, *weights], hidden_size=hidden, direction="bidirectional" if ways == 2 else "forward", **more
    )
    if ways == 1:
        return d.node("Squeeze", [made, d.integers(1)]), (*shape[:2], hidden)
    return made, (shape[0], 2, shape[1], hidden)


@step
def shuffled(d: Drawn, x: str, shape: Shape) -> Made | None:
    if len(shape) != 4 or not fixed(shape[1]) or shape[1] % 4:
        return None
    grown = tuple(2 * n if fixed(n) else f"2 * ({n})" for n in shape[2:])
    return d.node("DepthToSpace", [x], blocksize=2, mode=d.choice(["DCR", "CRD"])), (shape[0], shape[1] // 4, *grown)


@step
def scattered(d: Drawn, x: str, shape: Shape) -> Made | None:
    if not fixed(shape[-1]) or len(shape) < 2:
        return None
    row = d.node("Gather", [x, d.constant(np.int64(-1))], axis=0)
    made = d.node("ScatterND", [x, d.constant(np.asarray([[0]], np.int64)), d.node("Unsqueeze", [row, d.integers(0)])])
    return made, shape


@step
def cast(d: Drawn, x: str, shape: Shape) -> Made:
    wide = d.node("Cast", [x], to=TensorProto.DOUBLE)
    return d.node("Cast", [d.node(d.choice(["Exp", "Tanh"]), [d.node("Neg", [d.node("Abs", [wide])])])], to=1), shape


@step
def counted(d: Drawn, x: str, shape: Shape) -> Made:
    """Divides by an extent that a node computes."""
    n = d.node("Cast", [d.shape_of(x, d.axis(shape))], to=TensorProto.FLOAT)
    return d.node("Div", [x, n]), shape


INPUTS: list[Shape] = [("b", "s", 6), ("b", 4), ("b", 3, "s"), ("b", 4, 5, "s"), ("b", 3, "s", "s"), ("s", "b", 4)]


def model(seed: int, steps: int | None = None) -> tuple[onnx.ModelProto, dict[str, Shape], bool]:
    """A random model, the shapes of its inputs, and whether something in it rounds to steps."""
    d = Drawn(seed)
    inputs = {f"x{k}": d.choice(INPUTS) for k in range(int(d.rng.integers(1, 3)))}
    d.values += list(inputs.items())
    wanted = steps or int(d.rng.integers(2, 14))
    names, tried, last = list(STEPS), 0, d.values[-1]
    done: list[str] = []
    while len(done) < wanted and tried < 10 * wanted:
        tried += 1
        name = d.choice(names)
        value, shape = last if d.chance(0.8) else d.choice(d.values)
        made = STEPS[name](d, value, shape)
        if made is None:
            continue
        small = np.prod(at(made[1], LARGEST)) <= MOST_ELEMENTS and len(made[1]) <= 5
        last = made if small else d.choice(d.values)
        if small:
            d.values.append(made)
        done.append(name)
    computed = [value for value in d.values if value[0] not in inputs] or [unary(d, *d.values[0])]
    outputs = {last[0]: last[1]} if last[0] not in inputs else {}
    outputs |= dict(d.choice(computed) for _ in range(2))
    text = {"b": "batch", "s": "seq"}
    graph = helper.make_graph(
        d.nodes,
        f"seed {seed}: {', '.join(done)}",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [text.get(k, k) for k in s]) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * len(s)) for n, s in outputs.items()],
        d.constants,
    )
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs, d.rounded
