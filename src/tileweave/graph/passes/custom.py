"""Block operators of the user's own: a NumPy function and the projections that say what a block of it needs.

The declaration is checked by sampling: the function on the regions that the projections name must give the same
values as the function on the whole inputs.

Source: Tapestry, "Restricting to Shardable Operators".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileweave.errors import GraphError
from tileweave.graph.ir.dtypes import element_type, epsilon, is_floating
from tileweave.graph.ir.nodes import Graph, Operation, Signature, Tensor, TensorType, Value
from tileweave.graph.ir.values import as_tensor
from tileweave.graph.ops.operators import Array, Arrays, GradientRule, Operator, register
from tileweave.graph.passes.evaluate import evaluate
from tileweave.graph.passes.shard import Partition, expand
from tileweave.graph.passes.verify import verify
from tileweave.space import Box, Projection


@dataclass(frozen=True, slots=True)
class BlockOperator:
    """A registered operator; calling it makes an operation. See `block_operator`."""

    name: str

    def __call__(
        self,
        inputs: Mapping[str, tuple[Any, Projection]],
        output: Projection,
        index: Sequence[int],
        dtype: Any,
        *,
        dims: Sequence[str] | None = None,
        reductions: Mapping[int, str] | None = None,
        flops: float = 1.0,
        parameters: Mapping[str, Value] | None = None,
        samples: int = 4,
    ) -> Tensor:
        """The operator on tensors.

        Args:
            inputs: name -> (tensor, projection); the projection's cover of the index is the whole tensor.
            output: the projection of the result; its exact image of the index is the whole result, once.
            index: the extents of the work.
            dtype: of the result.
            dims: names of the index dimensions.
            reductions: index dimension -> monoid by which its partial results combine.
            flops: per index point.
            parameters: plain values that the function takes by name.
            samples: how many random cuts are tried on random data; 0 trusts the declaration.

        Raises:
            GraphError: a cut changes the result, so the projections are not enough.
            VerifyError: projections, shapes and types do not fit together.
        """
        box = Box.of(index)
        names = tuple(dims) if dims is not None else tuple(f"d{k}" for k in range(box.rank))
        tensors = tuple((name, as_tensor(x, f"{self.name}(inputs)")) for name, (x, _) in inputs.items())
        signature = Signature(
            names,
            tuple((name, projection) for name, (_, projection) in inputs.items()),
            (("out", output),),
            tuple((reductions or {}).items()),
            (("flops", flops),),
        )
        kind = TensorType(output.cover(box).shape, element_type(f"{self.name}(dtype)", dtype))
        operation = Operation(self.name, box, tensors, (("out", kind),), tuple((parameters or {}).items()), signature)
        verify(Graph.of(Tensor(operation)))
        if samples:
            check_projections(operation, samples)
        return Tensor(operation)


def block_operator(name: str, function: Callable[..., Array], *, gradient: GradientRule | None = None) -> BlockOperator:
    """Registers a NumPy function as an operator that can be cut, evaluated and planned like the others.

    Args:
        name: unique.
        function: from input blocks and parameters, by keyword, to the output block. It must compute any block from the
            regions that the projections name, and change nothing.
        gradient: as in `tileweave.graph.ops.operators.Operator`, if there is one.

    Example:
        >>> smooth = block_operator("doc_smooth", lambda x: (x[:-2] + x[1:-1] + x[2:]) / 3)
        >>> from tileweave.space import AffineMap
        >>> window = Projection(AffineMap.identity(1), (3,))
        >>> y = smooth({"x": (np.arange(6.0), window)}, Projection.select((0,), 1), (4,), "float64")
        >>> np.asarray(y).tolist()
        [1.0, 2.0, 3.0, 4.0]
    """

    def block(operation: Operation, inputs: Arrays) -> dict[str, Array]:
        values: dict[str, Any] = dict(operation.parameters)
        return {"out": np.asarray(function(**inputs, **values))}

    block.__module__ = function.__module__  # a runtime that sends operators to other processes must see whose it is
    register(Operator(name, block, gradient=gradient))
    return BlockOperator(name)


def check_projections(operation: Operation, samples: int = 8, seed: int = 0) -> None:
    """Cuts an operation at random on random data, each dimension in turn; the result must not change.

    Sampling finds declarations that miss data which matters for the sampled values; it proves nothing.

    Raises:
        GraphError: a cut changed the result; says which cut and where.
    """
    rng = np.random.default_rng(seed)
    inputs = tuple((name, as_tensor(_sample(rng, x.type))) for name, x in operation.inputs)
    own = Operation(
        operation.operator, operation.index, inputs, operation.outputs, operation.parameters, operation.signature
    )
    results = [Tensor(own, name) for name, _ in own.outputs]
    whole = evaluate(results)
    long = [k for k, n in enumerate(own.index.shape) if n > 1]
    for k in range(samples if long else 0):
        cuts = _random_cuts(rng, own.index, long[k % len(long)])
        sharded = expand(Graph.of(*results), {own: cuts})
        for (name, _), got, expected in zip(
            own.outputs, evaluate([sink.tensor for sink in sharded.sinks]), whole, strict=True
        ):
            same = _close(got, expected)
            if not same.all():
                place = tuple(int(k) for k in np.argwhere(~same)[0])
                raise GraphError(
                    f"check_projections({operation.operator})",
                    f"output {name} at {place} is {got[place]} in blocks and {expected[place]} whole",
                    inputs={"index": own.index, "cuts": cuts.cuts},
                    legal="projections that name everything that a block reads, monoids that combine partial results",
                )


def _close(got: Array, expected: Array) -> Array:
    """Where integers are equal, and where floats differ by no more than what another order of sums rounds."""
    if not is_floating(expected.dtype):
        return np.asarray(got == expected)
    tolerance = (1e3 if expected.dtype.itemsize >= 4 else 8) * epsilon(expected.dtype)
    one, other = got.astype(np.float64), expected.astype(np.float64)
    scale = max(1.0, float(np.abs(other[np.isfinite(other)]).max(initial=0.0)))
    return np.asarray(np.isclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def _sample(rng: np.random.Generator, kind: TensorType) -> Array:
    if kind.dtype.kind == "b":
        return rng.integers(0, 2, kind.shape).astype(bool)
    if kind.dtype.kind in "iu":
        return rng.integers(0, 10, kind.shape).astype(kind.dtype)
    return rng.normal(size=kind.shape).astype(kind.dtype)


def _random_cuts(rng: np.random.Generator, box: Box, least: int) -> Partition:
    """One or two cuts of dimension `least`, at most two of every other, anywhere."""
    cuts = []
    for k, (a, n) in enumerate(zip(box.start, box.shape, strict=True)):
        inner = rng.permutation(np.arange(1, n))[: int(rng.integers(k == least, 3))]
        cuts.append((a, *sorted(a + int(c) for c in inner), a + n))
    return Partition(tuple(cuts))
