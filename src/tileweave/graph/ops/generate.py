"""Generators whose values depend on their coordinates: arange and random numbers.

They are operations without inputs. A shard keeps its place in the index, so it makes exactly its part of the whole,
alone: random numbers are counter-based, the value at a coordinate is a function of the seed and the coordinate.

Source: Tapestry, "Random Generators"; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox 4x32-10).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.dtypes import element_type, is_floating
from tileweave.graph.ir.forms import Form, are_integers, given_parameters, integer, number_form
from tileweave.graph.ir.nodes import Operation, Tensor, TensorType, Value
from tileweave.graph.ir.select import unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import (
    add,
    cast,
    equal,
    greater_equal,
    less_equal,
    maximum,
    multiply,
    remainder,
    subtract,
    where,
)
from tileweave.graph.ops.operators import Array, Arrays, Operator, made, register
from tileweave.space import Projection


def _generator(name: str, shape: Sequence[int], dtype: Any, *parameters: tuple[str, Value]) -> Tensor:
    shape = _extents(f"{name}(shape)", shape)
    whole = Projection.select(range(len(shape)), len(shape))
    return made(name, shape, (), (TensorType(shape, dtype), whole), *parameters)


def _extents(where: str, shape: Any) -> tuple[int, ...]:
    """A shape as NumPy takes it: an integer, or several."""
    try:
        found = tuple(operator.index(n) for n in (shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        raise GraphError(where, f"{shape!r} is not a shape", legal="integers of zero or more") from None
    if any(n < 0 for n in found):
        raise GraphError(where, f"shape {shape!r} has a negative extent", legal="integers of zero or more")
    return found


@public()
def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = None) -> Tensor:
    """The numbers ``start + step * i`` below stop, as `numpy.arange`; a shard makes its part alone.

    Example:
        >>> np.asarray(arange(2, 11, 3)).tolist()
        [2, 5, 8]
    """
    start, stop = (0, start) if stop is None else (start, stop)
    try:
        like = np.arange(start, start + (stop - stop), step, dtype=dtype)  # stop tells the type, too
        count = max(int(np.ceil((stop - start) / step)), 0)
        if count >= 2**63:
            raise ValueError(f"{count} numbers are too many")
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise GraphError(
            "arange(start, stop, step)",
            str(error),
            inputs={"start": start, "stop": stop, "step": step},
            legal="numbers, and a step other than 0",
        ) from None
    return _generator("arange", (count,), like.dtype, ("start", start), ("step", step))


def _arange_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    dtype = operation.output_types["out"].dtype
    start, step = operation.parameter("start"), operation.parameter("step")
    (low,), (high,) = operation.index.start, operation.index.stop
    # as NumPy does it: the difference of the first two values, in the type of the result
    first = np.array(start).astype(dtype)
    delta = np.array(start + step).astype(dtype) - first
    return {"out": (first + np.arange(low, high).astype(dtype) * delta).astype(dtype)}


def _arange_fits(node: Operation) -> Iterator[str]:
    if node.index.rank != 1:
        yield f"the index has rank {node.index.rank}, not 1"


_ARANGE = Form((), {"start": number_form, "step": number_form}, fits=_arange_fits)
register(Operator("arange", _arange_block, _ARANGE))


@public()
def linspace(start: float, stop: float, count: int = 50, dtype: Any = np.float64) -> Tensor:
    """So many numbers, evenly from start to stop, both included, as `numpy.linspace`."""
    if count < 2:
        return cast(add(arange(count), start), dtype)
    places = arange(count, dtype=np.float64)
    numbers = add(multiply(places, (stop - start) / (count - 1)), start)
    return cast(where(equal(places, count - 1), float(stop), numbers), dtype)


@public()
def eye(rows: int, columns: int | None = None, offset: int = 0, dtype: Any = np.float64) -> Tensor:
    """Ones on one diagonal and zeros elsewhere, as `numpy.eye`."""
    return cast(equal(*_places(rows, rows if columns is None else columns, offset)), dtype)


def _places(rows: int, columns: int, offset: int) -> tuple[Tensor, Tensor]:
    """(column, the column of the diagonal in this row), to be compared: in 32 bits, of which a vector holds more."""
    kind = np.int32 if rows + columns + abs(float(offset)) < 1 << 31 else np.int64
    return arange(columns, dtype=kind), unsqueeze(add(arange(rows, dtype=kind), offset), 1)


@public(np.tril)
def tril(x: Any, k: int = 0) -> Tensor:
    """The last two dimensions with zeros above a diagonal, as `numpy.tril`."""
    return _triangle("tril(x, k)", x, k, less_equal)


@public(np.triu)
def triu(x: Any, k: int = 0) -> Tensor:
    """The last two dimensions with zeros below a diagonal, as `numpy.triu`."""
    return _triangle("triu(x, k)", x, k, greater_equal)


def _triangle(name: str, x: Any, k: int, compare: Callable[[Any, Any], Tensor]) -> Tensor:
    x = as_tensor(x, name)
    if len(x.shape) < 2:
        raise GraphError(name, f"rank {len(x.shape)}", inputs={"x": x.type}, legal="rank 2 or more")
    return cast(where(compare(*_places(x.shape[-2], x.shape[-1], k)), x, 0), x.dtype)


@public()
def one_hot(indices: Any, depth: int, axis: int = -1, dtype: Any = np.float64) -> Tensor:
    """Ones at these places of a new dimension, zeros elsewhere; a place outside gives zeros alone.

    Example:
        >>> np.asarray(one_hot([2, 0], 3)).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    indices = as_tensor(indices, "one_hot(indices, depth)")
    rank = len(indices.shape) + 1
    if not -rank <= axis < rank:
        raise GraphError("one_hot(indices, depth)", f"axis {axis}", legal=f"{-rank}..{rank - 1}")
    places = unsqueeze(arange(depth), tuple(range(1, rank - axis % rank))) if axis % rank < rank - 1 else arange(depth)
    return cast(equal(unsqueeze(indices, axis % rank), places), dtype)


# ---------------------------------------------------------------------------------------------------------------------
# random numbers


def philox(counter: Array, seed: int) -> list[Array]:
    """Four independent 32-bit words per 64-bit counter, by Philox 4x32-10.

    Args:
        counter: unsigned 64-bit integers of any shape.
        seed: 64 bits; the key.

    Returns:
        Four arrays of 32-bit words (held in 64 bits), each of the shape of `counter`.
    """
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    words = [counter & low, counter >> shift, np.zeros_like(counter), np.zeros_like(counter)]
    return _philox_rounds(words, seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)


def _philox_rounds(words: list[Array], key: int, other: int) -> list[Array]:
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = words
    for _ in range(10):
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (right >> shift) ^ b ^ np.uint64(key),
            right & low,
            (left >> shift) ^ d ^ np.uint64(other),
            left & low,
        )
        key, other = (key + 0x9E3779B9) & 0xFFFFFFFF, (other + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def _counters(operation: Operation) -> Array:
    """The row-major number of every point of the operation's index in the whole tensor."""
    shape = operation.parameter("shape")
    out = np.zeros(operation.index.shape, np.uint64)
    for k, (low, high) in enumerate(zip(operation.index.start, operation.index.stop, strict=True)):
        along = np.arange(low, high, dtype=np.uint64) * np.uint64(prod(shape[k + 1 :]))
        out += along.reshape([-1 if j == k else 1 for j in range(len(shape))])
    return out


def _unit(first: Array, second: Array) -> Array:
    """A double in [0, 1) with 53 random bits from two words."""
    return ((first >> np.uint64(5)) * np.uint64(1 << 26) + (second >> np.uint64(6))).astype(np.float64) / 2.0**53


def _uniform_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    a, b, _, _ = philox(_counters(operation), operation.parameter("seed"))
    out = _unit(a, b).astype(operation.output_types["out"].dtype)
    # a double just below 1 rounds to 1 in a narrower type: keep the interval half open
    return {"out": np.minimum(out, np.nextafter(out.dtype.type(1), out.dtype.type(0)))}


def _normal_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    a, b, c, d = philox(_counters(operation), operation.parameter("seed"))
    radius = np.sqrt(-2.0 * np.log(1.0 - _unit(a, b)))
    out = radius * np.cos(2.0 * np.pi * _unit(c, d))
    return {"out": np.asarray(out).astype(operation.output_types["out"].dtype)}


def _integers_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    a, b, _, _ = philox(_counters(operation), operation.parameter("seed"))
    low, span = operation.parameter("low"), operation.parameter("span")
    offset = ((a << np.uint64(32)) + b) % np.uint64(span)
    return {"out": (offset.astype(np.int64) + low).astype(operation.output_types["out"].dtype)}


def _index_shape(node: Operation, value: Any) -> str:
    index = node.index
    good = are_integers(value, 0) and len(value) == index.rank
    good = good and all(a >= 0 and b <= n for a, b, n in zip(index.start, index.stop, value, strict=True))
    return "" if good else f"the extents of the whole tensor, around {index}"


def _integers_fit(node: Operation) -> Iterator[str]:
    given, dtype = given_parameters(node), node.outputs[0][1].dtype
    if dtype.kind not in "iu":
        yield f"the result is {dtype.name}, not an integer type"
    elif given["low"] < np.iinfo(dtype).min or given["low"] + given["span"] - 1 > np.iinfo(dtype).max:
        yield f"{given['low']}..{given['low'] + given['span'] - 1} does not fit {dtype.name}"


def _floats_fit(node: Operation) -> Iterator[str]:
    if not is_floating(node.outputs[0][1].dtype):
        yield f"the result is {node.outputs[0][1].dtype.name}, not a floating type"


_SEED = {"seed": integer(0, 1 << 64), "shape": _index_shape}
_SPAN = {"low": integer(), "span": integer(1, (1 << 64) + 1)}
register(Operator("uniform", _uniform_block, Form((), _SEED, fits=_floats_fit)))
register(Operator("normal", _normal_block, Form((), _SEED, fits=_floats_fit)))
register(Operator("random_integers", _integers_block, Form((), _SEED | _SPAN, fits=_integers_fit)))


def _random(name: str, shape: Sequence[int], seed: int, dtype: Any, *parameters: tuple[str, Value]) -> Tensor:
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise GraphError(f"{name}(shape, seed)", f"seed {seed!r}", legal="an integer, 0 <= seed < 2**64")
    shape = _extents(f"{name}(shape, seed)", shape)
    return _generator(name, shape, dtype, ("seed", int(seed)), ("shape", shape), *parameters)


def _floating(where: str, dtype: Any) -> np.dtype[Any]:
    kind = element_type(where, dtype)
    if not is_floating(kind):
        raise DtypeError(where, f"element type {kind} is not a floating type", legal="float32, float64, ..")
    return kind


@public()
def uniform(shape: Sequence[int], seed: int, low: Any = 0.0, high: Any = 1.0, dtype: Any = np.float64) -> Tensor:
    """Random numbers, evenly between low and high; the value at a coordinate depends on the seed and the coordinate.

    Args:
        shape: of the result.
        seed: 64 bits; the same seed gives the same tensor, whole or in parts, on every machine.
        low: least value; a number, or a tensor that broadcasts to the shape.
        high: upper bound; the same.
        dtype: a floating type.

    Example:
        >>> u = uniform((1000,), seed=7)
        >>> bool((np.asarray(u[100:110]) == np.asarray(u)[100:110]).all())
        True
    """
    kind = _floating("uniform(shape, seed)", dtype)
    out = _random("uniform", shape, seed, kind)
    if _is(low, 0.0) and _is(high, 1.0):
        return out
    low, high = cast(as_tensor(low), kind), cast(as_tensor(high), kind)
    return _of_shape("uniform", add(low, multiply(out, subtract(high, low))), out)


@public()
def normal(shape: Sequence[int], seed: int, mean: Any = 0.0, deviation: Any = 1.0, dtype: Any = np.float64) -> Tensor:
    """Normally distributed random numbers; mean and standard deviation are numbers or tensors, else as `uniform`."""
    kind = _floating("normal(shape, seed)", dtype)
    out = _random("normal", shape, seed, kind)
    if not _is(deviation, 1.0):
        out = _of_shape("normal", multiply(out, cast(as_tensor(deviation), kind)), out)
    return out if _is(mean, 0.0) else _of_shape("normal", add(out, cast(as_tensor(mean), kind)), out)


@public()
def random_integers(shape: Sequence[int], seed: int, low: Any, high: Any, dtype: Any = np.int64) -> Tensor:
    """Random integers, ``low <= value < high``, else as `uniform`.

    Bounds that are tensors are not looked at before a run: where high is not above low, the value is low.
    """
    where = "random_integers(shape, seed, low, high)"
    kind = element_type(where, dtype)
    if kind.kind not in "iu":
        raise DtypeError(where, f"element type {kind} is not an integer type", legal="int64, uint8, ..")
    if not (_is_integer(low) and _is_integer(high)):
        return _integers_between(where, shape, seed, low, high, kind)
    if low >= high or low < np.iinfo(kind).min or high - 1 > np.iinfo(kind).max:
        problem = f"{low}..{high} does not fit {kind.name}"
        raise GraphError(where, problem, legal="low < high, both in the range of an integer type")
    return _random("random_integers", shape, seed, kind, ("low", int(low)), ("span", int(high) - int(low)))


def _integers_between(where: str, shape: Any, seed: int, low: Any, high: Any, kind: np.dtype[Any]) -> Tensor:
    """63 random bits modulo the distance of the bounds, from the lower one on."""
    bounds = [as_tensor(bound, where) for bound in (low, high)]
    if any(bound.dtype.kind not in "iu" for bound in bounds):
        raise DtypeError(where, "a bound is not an integer", inputs={"low": bounds[0].type, "high": bounds[1].type})
    first, last = (cast(bound, np.int64) for bound in bounds)
    bits = random_integers(shape, seed, 0, 2**63 - 1)
    span = maximum(subtract(last, first), 1)
    return _of_shape("random_integers", cast(add(first, remainder(bits, span)), kind), bits)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is(value: Any, number: float) -> bool:
    return type(value) in (int, float) and value == number


def _of_shape(name: str, result: Tensor, like: Tensor) -> Tensor:
    if result.shape != like.shape:
        raise GraphError(
            f"{name}(shape, seed)",
            f"the parameters broadcast the shape {like.shape} to {result.shape}",
            legal="parameters that broadcast to the shape",
        )
    return result
