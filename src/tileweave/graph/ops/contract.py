"""Contractions: einsum, matmul, linear, and linear with relu.

Sums of products of narrow floats (float16, bfloat16) are kept in float32 and narrowed once, at the end.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ir.dtypes import element_type, wide_type
from tileweave.graph.ir.forms import Form
from tileweave.graph.ir.nodes import Operation, Signature, Tensor, trusted_type
from tileweave.graph.ir.select import broadcast_to, squeeze, unsqueeze
from tileweave.graph.ir.sugar import public
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.elementwise import add, cast, common_type, fold, greater, multiply, relu, where
from tileweave.graph.ops.operators import Array, Arrays, Late, Operator, register
from tileweave.graph.ops.reductions import sum
from tileweave.space import Box, Projection


def _contract(
    name: str,
    inputs: Sequence[Tensor],
    labels: Sequence[Sequence[int]],
    out: Sequence[int],
    dtype: np.dtype[Any] | None = None,
) -> Tensor:
    """``out[out labels] = sum over the other labels of the product of the inputs``; labels index the work.

    Sums are in the type asked for, which holds all factors; by default in the one that the factors promote to.
    """
    common = common_type(*inputs)
    inputs = [cast(x, common) for x in inputs]
    extents: dict[int, int] = {}
    for x, own in zip(inputs, labels, strict=True):
        extents.update(zip(own, x.shape, strict=True))
    order, equation, signature = _contract_form(tuple(map(tuple, labels)), tuple(out))
    index = tuple([extents[label] for label in order])
    kind = trusted_type(index[: len(out)], dtype or common)
    named = tuple([(f"x{k}", x) for k, x in enumerate(inputs)])
    return Tensor(Operation(name, Box.of(index), named, (("out", kind),), (("equation", equation),), signature))


@lru_cache(maxsize=1024)
def _contract_form(labels: tuple[tuple[int, ...], ...], out: tuple[int, ...]) -> tuple[list[int], str, Signature]:
    """(the labels in the order of the index, the equation in its letters, the signature) of a contraction."""
    order = [*out, *sorted({label for own in labels for label in own} - set(out))]
    place = {label: k for k, label in enumerate(order)}
    rank = len(order)
    equation = ",".join("".join(_letter(place[q]) for q in own) for own in labels)
    equation += "->" + "".join(_letter(place[q]) for q in out)
    reads = [(f"x{k}", Projection.select([place[q] for q in own], rank)) for k, own in enumerate(labels)]
    makes = ("out", Projection.select(range(len(out)), rank))
    reductions = tuple((k, "sum") for k in range(len(out), rank))
    costs = (("flops", 2.0 if len(labels) > 1 else 1.0),)
    return order, equation, Signature(tuple(map(_letter, order)), tuple(reads), (makes,), reductions, costs)


SEPARATE = 1 << 16
"""Points of a contraction from which sums over labels of one operand are taken out of it."""
_LETTERS = "ijklmnopqrstuvwxyzabcdefghIJKLMNOPQRSTUVWXYZABCDEFGH"


def _letter(k: int) -> str:
    return _LETTERS[k]


def _contraction(operation: Operation, *inputs: Array) -> Array:
    """The contraction of blocks in the type in which sums are kept."""
    wide = wide_type(operation.output_types["out"].dtype)
    wider = [x.astype(wide, copy=False) for x in inputs]
    return np.asarray(np.einsum(operation.parameter("equation"), *wider, optimize=len(inputs) > 1), wide)


def _contract_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    out = _contraction(operation, *inputs.values())
    return {"out": out.astype(operation.output_types["out"].dtype, copy=False)}


def _equation(node: Operation, value: object) -> str:
    """One term per factor with a letter per dimension, and a result made of letters that occur, each once."""
    factors = [x for name, x in node.inputs if name != "b"]
    if type(value) is str and value.count("->") == 1:
        left, out = value.split("->")
        terms = left.split(",")
        letters = "".join(terms)
        plain = all(c.isascii() and c.isalpha() for c in letters + out)
        fits = [len(term) for term in terms] == [len(x.shape) for x in factors]
        if plain and fits and len(set(out)) == len(out) and set(out) <= set(letters):
            return ""
    return f"{len(factors)} terms with a letter for each dimension, such as ij,jk->ik"


def _contract_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    left, out = operation.parameter("equation").split("->")
    terms = left.split(",")
    tensors = dict(operation.inputs)
    names = [name for name in tensors if name != "b"]
    grads = {}
    for k, name in enumerate(names):
        others = [(terms[j], tensors[other]) for j, other in enumerate(names) if j != k]
        grads[name] = _term_gradient(terms[k], tensors[name], [(out, dy), *others])
    if "b" in tensors:
        grads["b"] = fold(dy, tensors["b"])
    return grads


def _term_gradient(term: str, x: Tensor, factors: Sequence[tuple[str, Tensor]]) -> Tensor:
    """The contraction of the other factors back onto the indices of one operand."""
    known = {letter for own, _ in factors for letter in own}
    unique = "".join(dict.fromkeys(term))
    kept = "".join(letter for letter in unique if letter in known)
    part = einsum(",".join(own for own, _ in factors) + "->" + kept, *(t for _, t in factors))
    extent = dict(zip(term, x.shape, strict=True))
    for place, letter in enumerate(unique):
        if letter not in known:
            part = unsqueeze(part, place)
    part = broadcast_to(part, [extent[letter] for letter in unique])
    if len(unique) == len(term):
        return part
    # a repeated index reads a diagonal: the gradient is zero off it
    spread = part
    for place, letter in enumerate(term):
        first = term.index(letter)
        if place != first:
            spread = unsqueeze(spread, place)
    spread = broadcast_to(spread, x.shape)
    for place, letter in enumerate(term):
        first = term.index(letter)
        if place != first:
            n = extent[letter]
            eye = as_tensor(np.eye(n, dtype=x.dtype))
            dims = [place, first] if place < first else [first, place]
            lifted = unsqueeze(eye, [k for k in range(len(term)) if k not in dims])
            spread = multiply(spread, lifted)
    return spread


_EQUATION = {"equation": _equation}
for _name in ("einsum", "matmul"):
    form = Form(None, _EQUATION)
    register(Operator(_name, _contract_block, form, _contract_gradient, lowering="Contraction"))


@public(np.einsum)
def einsum(*operands: Any, optimize: Any = True) -> Tensor:
    """Einstein summation of any number of operands, as `numpy.einsum`; more than two go pairwise.

    Args:
        operands: an equation and tensors, or each tensor with the list of its indices and the list of the result's:
            ``x, [0, 1], y, [1, 2], [0, 2]``. An extent of 1 broadcasts to what the index has elsewhere.
        optimize: the order of the pairs: a way to find it (``"greedy"``, ``"optimal"``, also with a bound on the
            elements in between), or the path itself, as `numpy.einsum_path` gives it, whose steps of several operands
            are taken pair by pair. True and False: our choice.

    Example:
        >>> einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4))).shape
        (2, 4)
        >>> einsum(np.ones((2, 3)), [0, 1], [1]).shape
        (3,)
    """
    import opt_einsum

    equation, given = worded("einsum(equation, *operands)", operands)
    where = f"einsum({equation!r}, ..)"
    tensors = [as_tensor(x, where) for x in given]
    shapes = {f"operand {k}": x.type for k, x in enumerate(tensors)}
    try:
        left, right, _ = opt_einsum.parser.parse_einsum_input((equation, *(x.shape for x in tensors)), shapes=True)
    except Exception as error:
        raise GraphError(
            where, f"the equation does not fit: {error}", inputs=shapes, legal="such as 'ij,jk->ik'"
        ) from None
    labels = [[ord(c) for c in term] for term in left.split(",")]
    out = [ord(c) for c in right]
    tensors, labels = _without_singles(tensors, labels)
    _check_einsum(where, tensors, labels, out, shapes)
    symbols = {label: k for k, label in enumerate(dict.fromkeys([*out, *(q for own in labels for q in own)]))}
    labels = [[symbols[q] for q in own] for own in labels]
    out = [symbols[q] for q in out]
    path = _path(where, tensors, labels, out, optimize)
    if len(path) <= 1:
        return _summed_first(tensors, labels, out)
    dtype = common_type(*tensors)
    tensors = [cast(x, dtype) for x in tensors]
    for step in path:
        picked = [(tensors.pop(k), labels.pop(k)) for k in sorted(step, reverse=True)]
        picked.reverse()
        used = {q for _, own in picked for q in own}
        later = set(out).union(*labels) if labels else set(out)
        kept = out if not labels else sorted(used & later)
        tensors.append(_summed_first([t for t, _ in picked], [own for _, own in picked], kept))
        labels.append(list(kept))
    return tensors[0]


def worded(where: str, operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """The equation, and the operands: of a call with an equation, or with a list of indices after each operand.

    Raises:
        DtypeError: neither a text comes first, nor lists of numbers and ``...`` come second, fourth, ..
    """
    if operands and isinstance(operands[0], str):
        return operands[0], operands[1:]
    given, lists = operands[0 : len(operands) // 2 * 2 : 2], operands[1::2]
    terms = [_term(indices) for indices in (*lists, *operands[len(given) * 2 :])]
    if not given or None in terms:
        problem = "the equation comes first, and is a text; or each operand is followed by a list of indices"
        raise DtypeError(where, problem, legal="('ij,jk->ik', a, b), or (a, [0, 1], b, [1, 2], [0, 2])")
    words = [str(term) for term in terms]
    return ",".join(words[: len(given)]) + "".join("->" + word for word in words[len(given) :]), given


def _term(indices: Any) -> str | None:
    """A list of indices as letters in the numbers' order; None where it is something else."""
    if not isinstance(indices, (list, tuple, range, np.ndarray)):
        return None
    numbers = [k for k in indices if k is not Ellipsis]
    if not builtins.all(isinstance(k, (int, np.integer)) and 0 <= k < len(_SORTED) for k in numbers):
        return None
    return "".join("..." if k is Ellipsis else _SORTED[k] for k in indices)


_SORTED = "".join(sorted(_LETTERS))


def _path(
    where: str, tensors: Sequence[Tensor], labels: Sequence[list[int]], out: Sequence[int], optimize: Any
) -> Sequence[Sequence[int]]:
    """Which operands are contracted, one step after the other; what a step makes comes behind the others."""
    import opt_einsum

    count = len(tensors)
    if isinstance(optimize, (list, tuple)) and optimize[:1] in (["einsum_path"], ("einsum_path",)):
        left = count
        for step in optimize[1:]:
            fits = isinstance(step, tuple) and 0 < len(set(step)) == len(step)
            if not fits or not builtins.all(isinstance(k, (int, np.integer)) and 0 <= k < left for k in step):
                raise GraphError(where, f"{step} is no step of a path", legal=f"different numbers of 0..{left - 1}")
            left += 1 - len(step)
        if left != 1:
            raise GraphError(where, f"the path leaves {left} operands", legal="one result")
        return _pairs(count, optimize[1:])
    if count <= 2:
        return [range(count)]
    terms = ["".join(opt_einsum.get_symbol(q) for q in own) for own in (*labels, out)]
    way, limit = optimize if isinstance(optimize, tuple) and len(optimize) == 2 else (optimize, None)
    if not isinstance(way, (bool, str)):
        raise GraphError(where, f"optimize={optimize!r} finds no path", legal="True, 'greedy', 'optimal' or a path")
    try:
        path, _ = opt_einsum.contract_path(
            ",".join(terms[:-1]) + "->" + terms[-1],
            *(x.shape for x in tensors),
            shapes=True,
            optimize="auto" if isinstance(way, bool) else way,
            memory_limit=limit,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise GraphError(where, f"optimize={optimize!r} finds no path: {error}", legal="'greedy', 'optimal'") from None
    return _pairs(count, path)


def _pairs(count: int, path: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """A path whose steps of more than two operands go pair by pair."""
    made: list[tuple[int, ...]] = []
    for step in path:
        last, *others = sorted(step, reverse=True)
        while len(others) > 1:  # the two that come last; what they make comes behind all others
            made.append((others.pop(0), last))
            count, last = count - 1, count - 2
        made.append((*others, last))
        count += 1 - len(made[-1])
    return made


def _summed_first(tensors: Sequence[Tensor], labels: Sequence[Sequence[int]], out: Sequence[int]) -> Tensor:
    """The contraction, after sums over what one operand has alone: the sum of ``a * b`` over both is ``sum a * sum b``.

    Integers are exact, floats are summed in another order. Sums that are kept wide are not taken out, since they would
    be rounded in between, nor those of so few points that one operation costs less than two.
    """
    dtype = common_type(*tensors)
    points = prod(
        {q: n for x, own in zip(tensors, labels, strict=True) for q, n in zip(own, x.shape, strict=True)}.values()
    )
    if dtype.kind == "b" or wide_type(dtype) != dtype or points < SEPARATE:
        return _contract("einsum", tensors, labels, out)
    left: list[Tensor] = []
    kept: list[Sequence[int]] = []
    for k, (x, own) in enumerate(zip(tensors, labels, strict=True)):
        others = {q for j, other in enumerate(labels) if j != k for q in other}.union(out)
        alone = [q for q in own if q not in others and own.count(q) == 1]
        axes = [own.index(q) for q in alone]
        left.append(sum(cast(x, dtype), axes, dtype=dtype) if axes else x)
        kept.append([q for q in own if q not in alone])
    if len(left) == 1 and kept[0] == list(out) != list(labels[0]):
        return left[0]
    return _contract("einsum", left, kept, out)


def _without_singles(tensors: Sequence[Tensor], labels: Sequence[list[int]]) -> tuple[list[Tensor], list[list[int]]]:
    """Operands without the dimensions of extent 1 whose index is longer in another operand: they broadcast."""
    extents: dict[int, int] = {}
    for x, own in zip(tensors, labels, strict=True):
        for label, extent in zip(own, x.shape, strict=False):
            extents[label] = extent if extents.get(label, 1) == 1 else extents[label]
    out: list[tuple[Tensor, list[int]]] = []
    for x, own in zip(tensors, labels, strict=True):
        if len(own) != len(x.shape):  # refused by the check that follows
            out.append((x, own))
            continue
        ones = {q for q in own if builtins.all(n == 1 for p, n in zip(own, x.shape, strict=False) if p == q)}
        single = [k for k, q in enumerate(own[: len(x.shape)]) if q in ones and extents.get(q, 1) != 1]
        kept = [q for k, q in enumerate(own) if k not in single]
        out.append((squeeze(x, single) if single else x, kept))
    return [x for x, _ in out], [own for _, own in out]


def _check_einsum(
    where: str, tensors: Sequence[Tensor], labels: Sequence[list[int]], out: list[int], shapes: Mapping[str, object]
) -> None:
    extents: dict[int, int] = {}
    for k, (x, own) in enumerate(zip(tensors, labels, strict=True)):
        if len(own) != len(x.shape):
            raise GraphError(
                where,
                f"operand {k} has rank {len(x.shape)}, its term names {len(own)}",
                inputs=shapes,
                legal="equal ranks",
            )
        for label, extent in zip(own, x.shape, strict=True):
            if extents.setdefault(label, extent) != extent:
                raise GraphError(
                    where,
                    f"index {chr(label)!r} has extent {extents[label]} and {extent}",
                    inputs=shapes,
                    legal="one extent per index, or 1",
                )
    if len(set(out)) != len(out):
        raise GraphError(where, "the output names an index twice", inputs=shapes, legal="each output index once")
    for label in out:
        if label not in extents:
            raise GraphError(where, f"output index {chr(label)!r} is in no operand", inputs=shapes)
    if len(extents) > len(_LETTERS):
        raise GraphError(where, f"{len(extents)} different indices", inputs=shapes, legal=f"{len(_LETTERS)} at most")
    if builtins.any(x.dtype.kind == "b" for x in tensors) and builtins.all(x.dtype.kind == "b" for x in tensors):
        raise DtypeError(where, "bool has no sum of products", inputs=shapes, legal="cast to an integer type first")


@public(np.matmul)
def matmul(x: Any, y: Any, *, dtype: Any = None) -> Tensor:
    """Matrix product with NumPy's rules for vectors and for broadcast batch dimensions.

    Args:
        x: [.., m, k] or [k].
        y: [.., k, n] or [k].
        dtype: of sums and result, as in NumPy; by default the type that both promote to. Factors of int8 or
            int16 are multiplied as they are where sums are of 32 bits.
    """
    where = "matmul(x, y)"
    x, y = as_tensor(x, where), as_tensor(y, where)
    kind = None if dtype is None else element_type(where, dtype)
    narrow = x.dtype == y.dtype and x.dtype in (np.int8, np.int16)
    if kind is not None and not (narrow and kind == np.int32):
        x, y = cast(x, kind), cast(y, kind)
    types = {"x": x.type, "y": y.type}
    if not x.shape or not y.shape:
        raise GraphError(where, "a scalar has no matrix product", inputs=types, legal="rank 1 or more")
    inner = (x.shape[-1], y.shape[-2] if len(y.shape) > 1 else y.shape[0])
    if inner[0] != inner[1]:
        raise GraphError(
            where, f"inner extents {inner[0]} and {inner[1]} differ", inputs=types, legal="x [.., m, k] @ y [.., k, n]"
        )
    if x.dtype.kind == "b" and y.dtype.kind == "b":
        raise DtypeError(where, "bool has no sum of products", inputs=types, legal="cast to an integer type first")
    batch_x, batch_y = x.shape[:-2], y.shape[:-2]
    try:
        batch = batch_x if batch_x == batch_y else np.broadcast_shapes(batch_x, batch_y)
    except ValueError:
        raise GraphError(where, f"batch shapes {batch_x} and {batch_y} do not broadcast", inputs=types) from None
    rank = len(batch)
    m, k, n = rank, rank + 1, rank + 2

    def batch_labels(t: Tensor, own: tuple[int, ...]) -> tuple[Tensor, list[int]]:
        places = list(range(rank - len(own), rank))
        single = [d for d, p in enumerate(places) if own[d] == 1 and batch[p] != 1]
        return squeeze(t, single) if single else t, [p for d, p in enumerate(places) if d not in single]

    x, labels_x = batch_labels(x, batch_x)
    y, labels_y = batch_labels(y, batch_y)
    labels_x += [m, k] if len(x.shape) > len(labels_x) + 1 else [k]
    labels_y += [k, n] if len(y.shape) > len(labels_y) + 1 else [k]
    out = [*range(rank), *([m] if m in labels_x else []), *([n] if n in labels_y else [])]
    return _contract("matmul", [x, y], [labels_x, labels_y], out, kind)


@public()
def linear(x: Any, w: Any, b: Any = None) -> Tensor:
    """``x @ w + b`` as one operation over (batch.., out, in); without b it is `matmul`.

    Args:
        x: [.., in].
        w: [in, out].
        b: [out], or None.

    Source: Tapestry, "Sharding Linear, and Matmul, over the in dimension".
    """
    where = "linear(x, w, b)" if b is not None else "linear(x, w)"
    x, w = as_tensor(x, where), as_tensor(w, where)
    b = None if b is None else as_tensor(b, where)
    types = {"x": x.type, "w": w.type} | ({} if b is None else {"b": b.type})
    legal = "x [.., in], w [in, out], b [out]"
    if len(w.shape) != 2 or len(x.shape) < 1:
        raise GraphError(where, f"ranks {len(x.shape)} and {len(w.shape)} do not fit", inputs=types, legal=legal)
    if x.shape[-1] != w.shape[0]:
        raise GraphError(where, f"in is {x.shape[-1]} in x and {w.shape[0]} in w", inputs=types, legal=legal)
    if b is None:
        return matmul(x, w)
    if b.shape != (w.shape[1],):
        raise GraphError(where, f"b has shape {b.shape}, out is {w.shape[1]}", inputs=types, legal=legal)
    dtype = common_type(x, w, b)
    if dtype.kind == "b":
        raise DtypeError(where, "bool has no sum of products", inputs=types, legal="cast to an integer type first")
    x, w, b = cast(x, dtype), cast(w, dtype), cast(b, dtype)
    equation, signature = _linear_form(len(x.shape) - 1)
    kind = trusted_type((*x.shape[:-1], w.shape[1]), dtype)
    index, named = Box.of((*kind.shape, w.shape[0])), (("x", x), ("w", w), ("b", b))
    return Tensor(Operation("linear", index, named, (("out", kind),), (("equation", equation),), signature))


@cache
def _linear_form(batch: int) -> tuple[str, Signature]:
    """(equation, signature) of `linear` with so many batch dimensions."""
    rank = batch + 2
    letters = "".join(_letter(k) for k in range(batch))
    o, i = _letter(batch), _letter(batch + 1)
    signature = Signature(
        (*(("batch",) if batch == 1 else tuple(f"batch{k}" for k in range(batch))), "out", "in"),
        (
            ("x", Projection.select([*range(batch), batch + 1], rank)),
            ("w", Projection.select([batch + 1, batch], rank)),
            ("b", Projection.select([batch], rank)),
        ),
        (("out", Projection.select(range(batch + 1), rank)),),
        ((batch + 1, "sum"),),
        (("flops", 2.0),),
    )
    return f"{letters}{i},{i}{o}->{letters}{o}", signature


def _linear_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    """What `linear` computes on a block; without b it is the partial product."""
    product = _contraction(operation, inputs["x"], inputs["w"])
    out = product + inputs["b"] if "b" in inputs else product
    return {"out": out.astype(operation.output_types["out"].dtype, copy=False)}


def _linear_relu_block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
    out = _linear_block(operation, inputs)["out"]
    return {"out": np.maximum(out, out.dtype.type(0))} if "b" in inputs else {"out": out}


def _biased(operation: Operation, combined: Array, inputs: Arrays) -> Array:
    return np.asarray(combined + inputs["b"])


def _biased_relu(operation: Operation, combined: Array, inputs: Arrays) -> Array:
    return np.asarray(np.maximum(combined + inputs["b"], combined.dtype.type(0)))


def _linear_relu_gradient(operation: Operation, y: Tensor, dy: Tensor) -> dict[str, Tensor]:
    return _contract_gradient(operation, y, where(greater(y, 0), dy, 0.0))


_FORM = Form(("x", "w", "b"), _EQUATION)
register(
    Operator(
        "linear",
        _linear_block,
        _FORM,
        _contract_gradient,
        lowering="Contraction",
        late=Late(("b",), _biased, add),
    )
)
register(
    Operator(
        "linear_relu",
        _linear_relu_block,
        _FORM,
        _linear_relu_gradient,
        lowering="Contraction",
        late=Late(("b",), _biased_relu, lambda total, b: relu(add(total, b)), ("relu",)),
    )
)
