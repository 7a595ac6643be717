"""Core ATen operators in terms of tensor programs: one function per operator, keyed by PyTorch's own names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tileweave import graph as g
from tileweave.errors import GraphError
from tileweave.frontends.values import Value, tensor
from tileweave.graph import Tensor
from tileweave.graph.ir.dtypes import element_type

__all__ = ["OPERATORS", "AtenCall"]


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One use of an operator.

    Args:
        where: what errors name.
        target: the operator, whose schema names and defaults the arguments.
        arguments: by position.
        options: by name.
    """

    where: str
    target: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def get(self, name: str) -> Any:
        """An argument by its name in the schema, with the schema's default."""
        for k, argument in enumerate(self.target._schema.arguments):
            if argument.name == name:
                if name in self.options:
                    return self.options[name]
                return self.arguments[k] if k < len(self.arguments) else argument.default_value
        raise GraphError(self.where, f"the operator has no argument {name!r}")

    def value(self, index: int) -> Value:
        """An argument by position."""
        return self.get(self.target._schema.arguments[index].name)

    def x(self, index: int = 0) -> Tensor:
        """An argument as a tensor."""
        return tensor(self.value(index), self.where)

    def like(self, index: int, other: Tensor) -> Tensor:
        """An argument as a tensor; a number takes the type of another tensor."""
        value = self.value(index)
        if isinstance(value, (bool, int, float)):
            real = isinstance(value, float) and other.dtype.kind in "iub"
            return g.full((), value, np.float32 if real else other.dtype)
        return tensor(value, self.where)


Operator = Callable[[AtenCall], Any]
OPERATORS: dict[str, Operator] = {}


def aten(*names: str) -> Callable[[Operator], Operator]:
    """Registers a function for ATen operators."""

    def register(function: Operator) -> Operator:
        OPERATORS.update({f"aten.{name}": function for name in names})
        return function

    return register


def common(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors in PyTorch's common type: a tensor without dimensions does not widen within its kind."""
    if x.dtype == y.dtype:
        return x, y
    order = "biuf"
    kinds = [order.index("f" if t.dtype.kind not in "biu" else t.dtype.kind) for t in (x, y)]
    if not x.shape and y.shape and kinds[0] <= kinds[1]:
        wide = y.dtype
    elif (not y.shape and x.shape and kinds[1] <= kinds[0]) or (kinds[0] == 3 and kinds[1] < 3):
        wide = x.dtype
    elif kinds[1] == 3 and kinds[0] < 3:
        wide = y.dtype
    else:
        wide = np.result_type(x.dtype, y.dtype)
    return cast(x, wide), cast(y, wide)


def cast(x: Tensor, dtype: Any) -> Tensor:
    """A cast, unless the type is the same."""
    return x if x.dtype == np.dtype(dtype) else g.cast(x, dtype)


def dtype_of(kind: Any) -> np.dtype[Any]:
    """The NumPy type of a torch one."""
    return element_type("from_torch(module)", str(kind).removeprefix("torch."))


def real(x: Tensor) -> Tensor:
    """Integers as float32, as PyTorch's functions of reals take them."""
    return g.cast(x, np.float32) if x.dtype.kind in "biu" else x


def _unary(names: dict[str, str], convert: Callable[[Tensor], Tensor]) -> None:
    for name, function in names.items():

        def one(call: AtenCall, function: str = function) -> Any:
            return getattr(g, function)(convert(call.x()))

        aten(name)(one)


_unary(
    {"abs.default": "absolute", "neg.default": "negative", "relu.default": "relu", "floor.default": "floor",
     "ceil.default": "ceil", "round.default": "round", "sign.default": "sign", "logical_not.default": "logical_not",
     "bitwise_not.default": "invert", "isnan.default": "isnan", "isinf.default": "isinf"},
    lambda x: x,
)  # fmt: skip
_unary(
    {"cos.default": "cos", "sin.default": "sin", "tan.default": "tan", "tanh.default": "tanh", "exp.default": "exp",
     "log.default": "log", "sqrt.default": "sqrt", "erf.default": "erf", "sigmoid.default": "sigmoid",
     "acos.default": "arccos", "asin.default": "arcsin", "atan.default": "arctan", "sinh.default": "sinh",
     "cosh.default": "cosh"},
    real,
)  # fmt: skip


@aten("rsqrt.default", "reciprocal.default")
def reciprocal(call: AtenCall) -> Tensor:
    """1 / x, or of its root."""
    x = real(call.x())
    x = g.sqrt(x) if "rsqrt" in call.where else x
    return g.divide(g.full((), 1.0, x.dtype), x)


def _binary(names: tuple[str, ...], function: str) -> None:
    def convert(call: AtenCall) -> Tensor:
        x = call.x()
        made: Tensor = getattr(g, function)(*common(x, call.like(1, x)))
        return made

    aten(*names)(convert)


for _name, _function in {
    "mul": "multiply", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "remainder": "remainder",
    "fmod": "fmod",
}.items():  # fmt: skip
    _binary((f"{_name}.Tensor", f"{_name}.Scalar"), _function)
_binary(("maximum.default",), "maximum")
_binary(("minimum.default",), "minimum")
_binary(("logical_and.default",), "logical_and")
_binary(("logical_or.default",), "logical_or")
_binary(("logical_xor.default",), "logical_xor")


@aten("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def add(call: AtenCall) -> Tensor:
    """x + alpha y."""
    x, y = common(call.x(), call.like(1, call.x()))
    alpha = call.get("alpha")
    y = y if alpha == 1 else g.multiply(y, g.full((), alpha, y.dtype))
    return g.add(x, y) if ".add." in call.where else g.subtract(x, y)


@aten("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def divide(call: AtenCall) -> Tensor:
    """A quotient, rounded where that is asked."""
    x, y = common(call.x(), call.like(1, call.x()))
    mode = call.get("rounding_mode") if "_mode" in call.where else None
    if mode == "floor":
        return g.floor_divide(x, y)
    out = g.divide(real(x), real(y))
    return (
        out
        if mode is None
        else cast(g.where(g.less(out, g.full((), 0, out.dtype)), g.ceil(out), g.floor(out)), x.dtype)
    )


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor")
def power(call: AtenCall) -> Tensor:
    """x to a power; squares are products."""
    x = call.x()
    if call.value(1) == 2 if isinstance(call.value(1), (int, float)) else False:
        return g.multiply(x, x)
    return g.power(*common(x, call.like(1, x)))


@aten("clamp.default", "hardtanh.default")
def clamp(call: AtenCall) -> Tensor:
    """Between bounds."""
    x = call.x()
    for value, function in ((call.value(1), g.maximum), (call.value(2), g.minimum)):
        if value is not None:
            x = function(x, g.full((), value, x.dtype))
    return x


@aten("gelu.default")
def gelu(call: AtenCall) -> Tensor:
    """Exact, or by tanh."""
    return g.gelu(call.x(), "tanh" if call.get("approximate") == "tanh" else "none")


@aten("leaky_relu.default")
def leaky_relu(call: AtenCall) -> Tensor:
    """x, or a multiple of it below zero."""
    x = call.x()
    slope = g.full((), call.get("negative_slope"), x.dtype)
    return g.where(g.less(x, g.full((), 0, x.dtype)), g.multiply(x, slope), x)


@aten("where.self")
def where(call: AtenCall) -> Tensor:
    """Elements of one of two tensors."""
    x, y = common(call.x(1), call.x(2))
    return g.where(call.x(), x, y)


@aten("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "contiguous.default")
def same(call: AtenCall) -> Value:
    """The value itself."""
    return call.value(0)


@aten("_assert_tensor_metadata.default", "_assert_async.msg", "sym_constrain_range_for_size.default")
def nothing(call: AtenCall) -> None:
    """A check that holds by the shapes."""


@aten("_to_copy.default", "to.dtype")
def to(call: AtenCall) -> Tensor:
    """Another element type."""
    kind = call.get("dtype")
    return call.x() if kind is None else cast(call.x(), dtype_of(kind))


@aten("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default", "ones_like.default",
      "empty.memory_format", "scalar_tensor.default", "new_zeros.default")  # fmt: skip
def full(call: AtenCall) -> Tensor:
    """One value everywhere."""
    name = call.where.split("aten.")[1].split(".")[0]
    kind = call.get("dtype")
    if name == "scalar_tensor":
        shape: tuple[int, ...] = ()
        value, default = call.value(0), np.dtype(np.float32)
    else:
        like = name.endswith("_like")
        shape = call.x().shape if like else tuple(int(n) for n in call.value(1 if name == "new_zeros" else 0))
        value = call.get("fill_value") if name.startswith("full") else int(name.startswith("ones"))
        default = call.x().dtype if like or name == "new_zeros" else np.asarray(value).dtype
        default = np.dtype(np.float32) if default == np.float64 and not like else default
    return g.full(shape, value, default if kind is None else dtype_of(kind))


@aten("arange.start_step", "arange.default", "arange.start")
def numbers(call: AtenCall) -> Any:
    """start, start + step, .. below end."""
    plain = call.where.endswith("arange.default")
    start, step = (0, 1) if plain else (call.get("start"), call.get("step") if "step" in call.where else 1)
    made = np.arange(start, call.get("end"), step)
    kind = call.get("dtype")
    default = np.float32 if made.dtype.kind == "f" else np.int64
    return made.astype(default if kind is None else dtype_of(kind))


@aten("view.default", "reshape.default", "_unsafe_view.default")
def view(call: AtenCall) -> Tensor:
    """Another shape; -1 is what remains."""
    x, shape = call.x(), [int(n) for n in call.value(1)]
    if -1 in shape:
        rest = prod(n for n in shape if n != -1)
        shape = [prod(x.shape) // rest if n == -1 else n for n in shape]
    return g.reshape(x, tuple(shape))


@aten("permute.default")
def permute(call: AtenCall) -> Tensor:
    """Axes in another order."""
    x = call.x()
    return g.transpose(x, tuple(k % len(x.shape) for k in call.value(1)))


@aten("transpose.int")
def transpose(call: AtenCall) -> Tensor:
    """Two axes exchanged."""
    x = call.x()
    axes = list(range(len(x.shape)))
    a, b = call.value(1) % len(axes), call.value(2) % len(axes)
    axes[a], axes[b] = axes[b], axes[a]
    return g.transpose(x, tuple(axes))


@aten("t.default")
def matrix_transpose(call: AtenCall) -> Tensor:
    """Rows as columns."""
    return g.transpose(call.x())


@aten("expand.default")
def expand(call: AtenCall) -> Tensor:
    """Broadcast; -1 keeps an extent."""
    x, shape = call.x(), list(call.value(1))
    old = (1,) * (len(shape) - len(x.shape)) + tuple(x.shape)
    return g.broadcast_to(x, tuple(o if n == -1 else int(n) for n, o in zip(shape, old, strict=True)))


@aten("unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default")
def ones(call: AtenCall) -> Tensor:
    """With or without extents of one."""
    x = call.x()
    if ".unsqueeze." in call.where:
        return g.unsqueeze(x, call.value(1) % (len(x.shape) + 1))
    if call.where.endswith("squeeze.default"):
        return g.squeeze(x)
    dims = call.value(1)
    axes = [k % len(x.shape) for k in (dims if isinstance(dims, list) else [dims])]
    return g.squeeze(x, tuple(k for k in axes if x.shape[k] == 1))


@aten("slice.Tensor")
def slice_(call: AtenCall) -> Tensor:
    """Every step-th element between two places of an axis."""
    x, axis = call.x(), call.get("dim") % len(call.x().shape)
    end = call.get("end")
    end = None if end is None or end > x.shape[axis] else end
    return x[(*(slice(None),) * axis, slice(call.get("start"), end, call.get("step")))]


@aten("select.int")
def select(call: AtenCall) -> Tensor:
    """One index of an axis."""
    x, axis = call.x(), call.value(1) % len(call.x().shape)
    return g.select(x, axis, int(call.value(2)))


@aten("cat.default")
def concat(call: AtenCall) -> Tensor:
    """Along an axis; tensors of no elements and one dimension are left out."""
    tensors = [tensor(value, call.where) for value in call.value(0)]
    kept = [t for t in tensors if t.shape != (0,)] or tensors[:1]
    wide = kept[0].dtype
    for each in kept[1:]:
        wide = common(g.full((1,), 0, wide), g.full((1,), 0, each.dtype))[0].dtype
    return g.concat([cast(t, wide) for t in kept], (call.get("dim") or 0) % len(kept[0].shape))


@aten("stack.default")
def stack(call: AtenCall) -> Tensor:
    """Along a new axis."""
    tensors = [tensor(value, call.where) for value in call.value(0)]
    axis = (call.get("dim") or 0) % (len(tensors[0].shape) + 1)
    return g.concat([g.unsqueeze(t, axis) for t in tensors], axis)


@aten("split_with_sizes.default", "split.Tensor", "chunk.default")
def split(call: AtenCall) -> tuple[Tensor, ...]:
    """Consecutive pieces."""
    x, axis = call.x(), (call.get("dim") or 0) % len(call.x().shape)
    sizes = call.value(1)
    extent = x.shape[axis]
    if not isinstance(sizes, list):
        step = sizes if ".split." in call.where else -(-extent // sizes)
        sizes = [min(step, extent - k) for k in range(0, extent, step)]
    ends = np.cumsum(sizes).tolist()
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True))


@aten("repeat.default")
def tile(call: AtenCall) -> Tensor:
    """Copies side by side."""
    return g.tile(call.x(), tuple(call.value(1)))


@aten("flip.default")
def flip(call: AtenCall) -> Tensor:
    """Axes backwards."""
    return g.flip(call.x(), tuple(k % len(call.x().shape) for k in call.value(1)))


@aten("constant_pad_nd.default")
def pad(call: AtenCall) -> Tensor:
    """A value around the last axes; negative widths cut."""
    x, widths, value = call.x(), call.value(1), call.get("value") or 0
    for k in range(len(widths) // 2):
        axis, low, high = len(x.shape) - 1 - k, widths[2 * k], widths[2 * k + 1]
        before = (slice(None),) * axis
        x = x[(*before, slice(max(-low, 0), x.shape[axis] - max(-high, 0)))]
        shapes = [tuple(max(w, 0) if j == axis else n for j, n in enumerate(x.shape)) for w in (low, high)]
        ends = [g.full(shape, value, x.dtype) for shape in shapes]
        parts = [part for part in (ends[0], x, ends[1]) if part.shape[axis]]
        x = g.concat(parts, axis) if len(parts) > 1 else x
    return x


@aten("embedding.default")
def embedding(call: AtenCall) -> Tensor:
    """Rows of a table."""
    return g.take(call.x(), call.x(1), 0)


@aten("index_select.default")
def index_select(call: AtenCall) -> Tensor:
    """Places of an axis."""
    return g.take(call.x(), call.x(2), call.value(1) % len(call.x().shape))


@aten("gather.default")
def gather(call: AtenCall) -> Tensor:
    """An index per element of the result."""
    x, axis, indices = call.x(), call.value(1) % max(len(call.x().shape), 1), call.x(2)
    key = tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(indices.shape))
    return g.take_along_axis(x[key], indices, axis)


@aten("index.Tensor")
def index(call: AtenCall) -> Tensor:
    """Advanced indexing by integers: one vector of indices per leading axis, broadcast against each other."""
    x = call.x()
    given = [None if each is None else tensor(each, call.where) for each in call.value(1)]
    if any(each is not None and each.dtype.kind == "b" for each in given):
        raise GraphError(call.where, "a mask as an index makes a shape that depends on values", legal="integers")
    places = [k for k, each in enumerate(given) if each is not None]
    if places != list(range(places[0], places[-1] + 1)):
        raise GraphError(call.where, "indices with axes between them", legal="indices of adjacent axes")
    first, count = places[0], len(places)
    flat: Tensor | None = None
    extent = 1
    for k in places:
        at, n = g.cast(given[k], np.int64), x.shape[k]
        at = g.where(g.less(at, g.full((), 0, np.int64)), g.add(at, g.full((), n, np.int64)), at)
        flat = at if flat is None else g.add(g.multiply(flat, g.full((), n, np.int64)), at)
        extent *= n
    merged = g.reshape(x, (*x.shape[:first], extent, *x.shape[first + count :]))
    return g.take(merged, flat, first)


def _axes(call: AtenCall, x: Tensor) -> tuple[int, ...]:
    dims = call.get("dim")
    if dims is None or dims == []:
        return tuple(range(len(x.shape)))
    return tuple(k % len(x.shape) for k in (dims if isinstance(dims, list) else [dims]))


@aten("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "any.dim", "all.dim", "any.dims")
def reduce(call: AtenCall) -> Tensor:
    """Over some axes."""
    x = call.x()
    name = call.where.split("aten.")[1].split(".")[0]
    axes, keep = _axes(call, x), bool(call.get("keepdim"))
    if name in ("any", "all"):
        made: Tensor = getattr(g, name)(x, axes, keepdims=keep)
        return made
    kind = call.get("dtype") if name in ("sum", "mean") else None
    x = x if kind is None else cast(x, dtype_of(kind))
    if name == "sum":
        return g.sum(cast(x, np.int64) if x.dtype.kind in "biu" else x, axes, keepdims=keep)
    function = {"mean": g.mean, "amax": g.max, "amin": g.min}[name]
    return function(x, axes, keepdims=keep)


@aten("sum.default", "mean.default", "max.default", "min.default")
def total(call: AtenCall) -> Tensor:
    """Over everything."""
    x = call.x()
    name = call.where.split("aten.")[1].split(".")[0]
    x = cast(x, np.int64) if name == "sum" and x.dtype.kind in "biu" else x
    made: Tensor = getattr(g, name)(x)
    return made


@aten("var.correction")
def variance(call: AtenCall) -> Tensor:
    """With a correction of the count."""
    x = call.x()
    correction = call.get("correction")
    correction = 1 if correction is None else correction
    return g.variance(x, _axes(call, x), correction=correction, keepdims=bool(call.get("keepdim")))


@aten("argmax.default", "argmin.default")
def position(call: AtenCall) -> Tensor:
    """Where the greatest or the least element is."""
    function = g.argmax if ".argmax." in call.where else g.argmin
    x, axis = call.x(), call.get("dim")
    return g.cast(
        function(x, None if axis is None else axis % len(x.shape), keepdims=bool(call.get("keepdim"))), np.int64
    )


@aten("max.dim", "min.dim")
def extreme(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The greatest or the least along an axis, and where it is."""
    x, axis, keep = call.x(), call.get("dim") % len(call.x().shape), bool(call.get("keepdim"))
    value, place = (g.max, g.argmax) if ".max." in call.where else (g.min, g.argmin)
    return value(x, axis, keepdims=keep), g.cast(place(x, axis, keepdims=keep), np.int64)


@aten("cumsum.default")
def cumsum(call: AtenCall) -> Tensor:
    """Running sums."""
    x = call.x()
    return g.cumsum(cast(x, np.int64) if x.dtype.kind in "biu" else x, call.value(1) % len(x.shape))


@aten("topk.default")
def top_k(call: AtenCall) -> tuple[Tensor, Tensor]:
    """The largest or smallest of an axis."""
    values, places = g.top_k(call.x(), int(call.value(1)), call.get("dim"), largest=bool(call.get("largest")))
    return values, g.cast(places, np.int64)


@aten("_softmax.default", "softmax.int", "_log_softmax.default", "log_softmax.int")
def softmax(call: AtenCall) -> Tensor:
    """Along an axis."""
    function = g.log_softmax if "log_softmax" in call.where else g.softmax
    return function(real(call.x()), axis=call.value(1))


@aten("mm.default", "bmm.default", "matmul.default")
def matmul(call: AtenCall) -> Tensor:
    """A product of matrices."""
    return g.matmul(call.x(), call.x(1))


@aten("addmm.default")
def addmm(call: AtenCall) -> Tensor:
    """A product with a bias."""
    b, x, w = call.x(), call.x(1), call.x(2)
    if call.get("beta") == 1 and call.get("alpha") == 1:
        return g.linear(x, w, b) if b.shape == (w.shape[1],) else g.add(b, g.matmul(x, w))
    scaled = g.multiply(g.matmul(x, w), g.full((), call.get("alpha"), x.dtype))
    return g.add(g.multiply(b, g.full((), call.get("beta"), b.dtype)), scaled)


@aten("linear.default")
def linear(call: AtenCall) -> Tensor:
    """x w' + b."""
    b = call.value(2)
    return g.linear(call.x(), g.transpose(call.x(1)), None if b is None else tensor(b, call.where))


@aten("scaled_dot_product_attention.default")
def attention(call: AtenCall) -> Tensor:
    """Softmax of scaled products, with a mask of truth values or numbers."""
    if call.get("dropout_p"):
        raise GraphError(call.where, "dropout in attention", legal="evaluation mode")
    q, k, v = (call.x(n) for n in range(3))
    if k.shape[-3] != q.shape[-3]:
        copies = q.shape[-3] // k.shape[-3]
        k, v = (g.repeat(each, copies, len(each.shape) - 3) for each in (k, v))
    mask = call.get("attn_mask")
    return g.attention(
        q, k, v, scale=call.get("scale"), causal=bool(call.get("is_causal")),
        mask=None if mask is None else tensor(mask, call.where),
    )  # fmt: skip


@aten("native_layer_norm.default")
def layer_norm(call: AtenCall) -> tuple[Any, ...]:
    """Over the last axes; the statistics are not given."""
    x = call.x()
    axes = tuple(range(len(x.shape) - len(call.value(1)), len(x.shape)))
    weight, bias = (None if v is None else tensor(v, call.where) for v in (call.value(2), call.value(3)))
    return g.layer_norm(x, weight, bias, axis=axes, epsilon=call.value(4)), None, None


@aten("native_group_norm.default")
def group_norm(call: AtenCall) -> tuple[Any, ...]:
    """Groups of channels by their own statistics."""
    x, groups = call.x(), call.get("group")
    shape = x.shape
    grouped = g.reshape(x, (shape[0], groups, -(-prod(shape[1:]) // groups)))
    mean, var = g.mean(grouped, 2, keepdims=True), g.variance(grouped, 2, keepdims=True)
    normal = g.divide(g.subtract(grouped, mean), g.sqrt(g.add(var, g.full((), call.get("eps"), var.dtype))))
    out = g.reshape(normal, shape)
    for value, function in ((call.get("weight"), g.multiply), (call.get("bias"), g.add)):
        if value is not None:
            out = function(out, g.unsqueeze(tensor(value, call.where), tuple(range(1, len(shape) - 1))))
    return out, None, None


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm(call: AtenCall) -> tuple[Any, ...]:
    """With given statistics: one multiplication and one addition per element."""
    x = call.x()
    weight, bias, mean, var = (call.value(k) for k in range(1, 5))
    mean, var = tensor(mean, call.where), tensor(var, call.where)
    factor = g.divide(g.full((), 1, var.dtype), g.sqrt(g.add(var, g.full((), call.get("eps"), var.dtype))))
    factor = factor if weight is None else g.multiply(factor, tensor(weight, call.where))
    shift = g.negative(g.multiply(mean, factor))
    shift = shift if bias is None else g.add(shift, tensor(bias, call.where))
    axes = tuple(range(1, len(x.shape) - 1))
    return g.add(g.multiply(x, g.unsqueeze(factor, axes)), g.unsqueeze(shift, axes)), None, None


@aten("convolution.default")
def convolution(call: AtenCall) -> Tensor:
    """Cross-correlation; transposed where that is asked."""
    x, w, b = call.x(), call.x(1), call.value(2)
    bias = None if b is None else tensor(b, call.where)
    stride, padding, dilation = call.value(3), call.value(4), call.value(5)
    rank = len(w.shape) - 2
    stride, padding, dilation = ([v[0]] * rank if len(v) == 1 else v for v in (stride, padding, dilation))
    groups = call.get("groups")
    if call.get("transposed"):
        extra = call.get("output_padding")
        made: Tensor = g.conv_transpose(
            x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, output_padding=extra
        )
        return made
    return g.conv(x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)


@aten("max_pool2d_with_indices.default")
def max_pool(call: AtenCall) -> tuple[Any, ...]:
    """The greatest of each window; the places are not given."""
    kernel, stride = call.value(1), call.get("stride") or call.value(1)
    if call.get("ceil_mode"):
        raise GraphError(call.where, "ceil_mode", legal="windows that are rounded down")
    padding, dilation = call.get("padding"), call.get("dilation")
    kernel, stride, padding, dilation = ([v[0]] * 2 if len(v) == 1 else v for v in (kernel, stride, padding, dilation))
    return g.max_pool(call.x(), kernel, stride=stride, padding=padding, dilation=dilation), None


@aten("avg_pool2d.default")
def average_pool(call: AtenCall) -> Tensor:
    """The mean of each window; padding counts as zeros."""
    kernel, stride, padding = call.value(1), call.get("stride") or call.value(1), call.get("padding")
    kernel, stride, padding = ([v[0]] * 2 if len(v) == 1 else v for v in (kernel, stride, padding))
    if call.get("ceil_mode") or (any(padding) and not call.get("count_include_pad")):
        raise GraphError(call.where, "ceil_mode, or padding that does not count", legal="padding that counts")
    return g.average_pool(call.x(), kernel, stride=stride, padding=padding)


@aten("_adaptive_avg_pool2d.default", "adaptive_avg_pool2d.default")
def adaptive_pool(call: AtenCall) -> Tensor:
    """The mean of as many windows as asked, where these divide the extents."""
    x, out = call.x(), call.value(1)
    for axis, count in enumerate(out, start=2):
        if x.shape[axis] % count:
            raise GraphError(call.where, f"{count} windows over {x.shape[axis]} elements", legal="a divisor")
    h, w = x.shape[2] // out[0], x.shape[3] // out[1]
    return g.mean(g.reshape(x, (*x.shape[:2], out[0], h, out[1], w)), (3, 5))


@aten("upsample_nearest2d.vec", "upsample_nearest2d.default")
def upsample(call: AtenCall) -> Tensor:
    """The nearest element."""
    x = call.x()
    size = call.get("output_size")
    factors = call.get("scale_factors") if ".vec" in call.where else None
    size = size if size is not None else [int(n * f) for n, f in zip(x.shape[2:], factors or (), strict=True)]
    for axis, out in enumerate(size, start=2):
        x = g.take(x, np.arange(out) * x.shape[axis] // out, axis)
    return x
