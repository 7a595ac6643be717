"""What PyTorch on the CPU answers for the same calls: the cases, and the table of its answers in float64.

Run as a script, where PyTorch is installed, to write the table anew::

    python tests/graph/torch_peer.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tileweave import graph as tw

TABLE = Path(__file__).parent.parent / "golden" / "graph_torch.npz"


@dataclass(frozen=True)
class Case:
    """A call on inputs of these shapes, ours and theirs; theirs gets the module torch first."""

    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., tw.Tensor]
    theirs: Callable[..., Any]


def numbers(shape: tuple[int, ...], start: int) -> np.ndarray:
    """Dyadic numbers between -2.5 and 2.5, no two alike in one array of fewer than 10007 elements."""
    k = np.arange(math.prod(shape)) + 1000 * start
    return ((k * 7919 + 104729) % 10007 - 5003).reshape(shape) / 2048.0


def inputs(case: Case) -> list[np.ndarray]:
    return [numbers(shape, k) for k, shape in enumerate(case.shapes)]


def weights(shape: tuple[int, ...]) -> np.ndarray:
    """What the elements of a result count for in the scalar that is differentiated."""
    return numbers(shape, 7)


def ours(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The result, and the gradient of its weighted sum for every input."""
    tensors = [tw.as_tensor(a) for a in arrays]
    y = case.ours(*tensors)
    return tw.evaluate([y, *tw.grad(tw.sum(y * weights(y.shape).astype(y.dtype)), tensors)])


def theirs(case: Case, arrays: list[np.ndarray]) -> list[np.ndarray]:
    import torch

    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = case.theirs(torch, *tensors)
    (y * torch.tensor(weights(tuple(y.shape)).astype(arrays[0].dtype))).sum().backward()
    return [y.detach().numpy(), *(t.grad.numpy() for t in tensors)]


def convolution(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Case:
    rank = len(x) - 2
    return Case(
        (x, w, w[:1]),
        lambda x, w, b: tw.conv(x, w, b, **options),
        lambda torch, x, w, b: getattr(torch.nn.functional, f"conv{rank}d")(x, w, b, **options),
    )


def pooling(kind: str, x: tuple[int, ...], window: Any, **options: Any) -> Case:
    rank, name = len(x) - 2, {"average": "avg", "max": "max"}[kind]
    return Case(
        (x,),
        lambda x: getattr(tw, f"{kind}_pool")(x, window, **options),
        lambda torch, x: getattr(torch.nn.functional, f"{name}_pool{rank}d")(x, window, **options),
    )


def attention(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], parts: int = 0, **options: Any) -> Case:
    def own(q: Any, k: Any, v: Any) -> tw.Tensor:
        return tw.attention_in_parts(q, k, v, parts, **options) if parts else tw.attention(q, k, v, **options)

    def other(torch: Any, q: Any, k: Any, v: Any) -> Any:
        mask = options.get("mask")
        if options.get("causal"):  # torch counts from the first query and key, we from the last
            mask = np.tri(q.shape[-2], k.shape[-2], k.shape[-2] - q.shape[-2], dtype=bool)
        mask = None if mask is None else torch.tensor(mask)
        call = torch.nn.functional.scaled_dot_product_attention
        return call(q, k, v, attn_mask=mask, scale=options.get("scale"))

    return Case((q, k, v), own, other)


MASK = np.array([[True, False, True], [True, True, False]])

CASES: dict[str, Case] = {
    "conv1d": convolution((2, 3, 9), (4, 3, 3)),
    "conv1d stride": convolution((2, 2, 10), (3, 2, 3), stride=3),
    "conv1d dilation": convolution((1, 2, 10), (2, 2, 3), dilation=3),
    "conv1d padding": convolution((2, 2, 6), (2, 2, 4), padding=2),
    "conv1d groups": convolution((2, 6, 6), (4, 3, 2), groups=2),
    "conv1d same": convolution((1, 2, 7), (2, 2, 3), padding="same"),
    "conv1d all": convolution((2, 4, 11), (6, 2, 3), stride=2, dilation=2, padding=1, groups=2),
    "conv2d": convolution((2, 2, 5, 4), (3, 2, 2, 3)),
    "conv2d stride": convolution((1, 2, 7, 6), (2, 2, 3, 2), stride=(2, 3)),
    "conv2d dilation": convolution((1, 1, 6, 7), (2, 1, 2, 3), dilation=(2, 2)),
    "conv2d padding": convolution((1, 2, 4, 4), (2, 2, 3, 3), padding=(1, 2)),
    "conv2d depthwise": convolution((1, 3, 5, 5), (6, 1, 3, 2), groups=3),
    "conv2d all": convolution((1, 4, 7, 8), (2, 2, 3, 2), stride=(2, 1), dilation=(1, 3), padding=(2, 1), groups=2),
    "conv3d": convolution((1, 2, 3, 4, 3), (2, 2, 2, 2, 2)),
    "conv3d all": convolution(
        (1, 2, 4, 5, 4), (2, 1, 2, 2, 3), stride=(1, 2, 2), dilation=(2, 1, 1), padding=(1, 0, 1), groups=2
    ),
    "average pool 1d": pooling("average", (2, 2, 7), 3, stride=2),
    "average pool 2d": pooling("average", (1, 2, 6, 5), (2, 3), stride=(2, 1), padding=(1, 1)),
    "average pool 3d": pooling("average", (1, 1, 4, 4, 5), 2),
    "max pool 1d": pooling("max", (2, 2, 9), 3, stride=2, padding=1, dilation=2),
    "max pool 2d": pooling("max", (1, 2, 6, 5), (2, 3), stride=(2, 1), padding=(1, 1)),
    "max pool 3d": pooling("max", (1, 1, 4, 4, 5), 2, dilation=(1, 2, 1)),
    "attention": attention((2, 3), (4, 3), (4, 2)),
    "attention scaled": attention((1, 2, 3), (1, 4, 3), (1, 4, 2), scale=0.25),
    "attention causal": attention((4, 3), (4, 3), (4, 2), causal=True),
    "attention causal late": attention((2, 3), (5, 3), (5, 2), causal=True),
    "attention masked": attention((2, 3), (3, 3), (3, 2), mask=MASK),
    "attention heads": attention((2, 2, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2)),
    "attention in parts": attention((3, 2), (5, 2), (5, 2), parts=3, causal=True),
    "layer norm": Case(
        ((3, 5), (5,), (5,)),
        lambda x, w, b: tw.layer_norm(x, w, b),
        lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (5,), w, b, 1e-5),
    ),
    "layer norm of two": Case(
        ((2, 3, 4),),
        lambda x: tw.layer_norm(x, axis=(1, 2), epsilon=1e-3),
        lambda torch, x: torch.nn.functional.layer_norm(x, (3, 4), None, None, 1e-3),
    ),
    "rms norm": Case(
        ((3, 5), (5,)),
        lambda x, w: tw.rms_norm(x, w),
        lambda torch, x, w: torch.nn.functional.rms_norm(x, (5,), w, 1e-5),
    ),
    "softmax": Case(((3, 4),), lambda x: tw.softmax(x, 0), lambda torch, x: torch.softmax(x, 0)),
    "log softmax": Case(((3, 4),), lambda x: tw.log_softmax(x, 1), lambda torch, x: torch.log_softmax(x, 1)),
    "logsumexp": Case(((3, 2, 4),), lambda x: tw.logsumexp(x, (0, 2)), lambda torch, x: torch.logsumexp(x, (0, 2))),
    "variance": Case(
        ((3, 5),), lambda x: tw.variance(x, 1, correction=1), lambda torch, x: torch.var(x, 1, correction=1)
    ),
    "variance in parts": Case(
        ((3, 5),),
        lambda x: tw.reduce_in_parts("variance", x, 1, 3),
        lambda torch, x: torch.var(x, 1, correction=0),
    ),
    "deviation": Case(((3, 5),), lambda x: tw.standard_deviation(x, 0), lambda torch, x: torch.std(x, 0, correction=0)),
    "gelu": Case(((3, 5),), tw.gelu, lambda torch, x: torch.nn.functional.gelu(x)),
    "gelu tanh": Case(
        ((3, 5),), lambda x: tw.gelu(x, "tanh"), lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh")
    ),
    "erf": Case(((3, 5),), tw.erf, lambda torch, x: torch.erf(x)),
    "sigmoid": Case(((3, 5),), tw.sigmoid, lambda torch, x: torch.sigmoid(x)),
    "linear": Case(((2, 3, 4), (4, 2), (2,)), tw.linear, lambda torch, x, w, b: torch.nn.functional.linear(x, w.T, b)),
    "matmul": Case(((2, 1, 3, 4), (3, 4, 2)), tw.matmul, lambda torch, x, y: x @ y),
    "einsum": Case(
        ((2, 3, 4), (3, 2), (2, 2)),
        lambda x, y, z: tw.einsum("abc,bd,ad->cd", x, y, z),
        lambda torch, x, y, z: torch.einsum("abc,bd,ad->cd", x, y, z),
    ),
    "product": Case(((3, 4),), lambda x: tw.product(x, 1), lambda torch, x: torch.prod(x, 1)),
    "maximum": Case(((3, 4), (4,)), tw.maximum, lambda torch, x, y: torch.maximum(x, y)),
    "where": Case(
        ((3, 4), (4,)), lambda x, y: tw.where(x > y, x * y, y), lambda torch, x, y: torch.where(x > y, x * y, y)
    ),
    "reflect": Case(
        ((2, 5),),
        lambda x: tw.pad(x, [(0, 0), (2, 1)], "reflect") ** 2,
        lambda torch, x: torch.nn.functional.pad(x, (2, 1), mode="reflect") ** 2,
    ),
}


def main() -> None:
    """Writes the table: per case the result, then the gradient of every input."""
    answers = {f"{name}/{k}": a for name, case in CASES.items() for k, a in enumerate(theirs(case, inputs(case)))}
    np.savez_compressed(TABLE, **answers)


if __name__ == "__main__":
    main()
