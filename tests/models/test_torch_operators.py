"""PyTorch's own samples of its operators, through `from_torch`: values are PyTorch's, or the operator is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import GraphError

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils import _pytree

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = {
    "bernoulli", "multinomial", "normal", "rand_like", "randn_like", "randint_like", "randint", "randn", "rand",
    "uniform",
    "exponential", "geometric", "cauchy", "log_normal", "empty", "empty_like", "new_empty", "empty_strided",
    "new_empty_strided", "empty_permuted", "nn.functional.dropout", "nn.functional.alpha_dropout", "randperm",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout", "svd_lowrank",
    "pca_lowrank", "nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
}  # fmt: skip
"""Operators whose values are drawn, or are whatever memory held."""
USUAL = [
    "add", "addmm", "amax", "argmax", "argsort", "as_strided", "atan2", "baddbmm", "cat", "cdist", "clamp",
    "cumprod", "cumsum", "diagonal", "diff", "einsum", "expand", "fill", "flip", "gather", "histc", "index_add",
    "index_copy", "index_fill",
    "hypot", "index_put", "index_select", "kthvalue", "lerp",
    "linalg.vector_norm", "logsumexp", "masked_fill", "masked_scatter", "max",
    "median",
    "nn.functional.adaptive_avg_pool1d", "nn.functional.adaptive_avg_pool2d", "nn.functional.adaptive_avg_pool3d",
    "nn.functional.avg_pool1d", "nn.functional.avg_pool2d",
    "nn.functional.avg_pool3d", "nn.functional.batch_norm", "nn.functional.conv1d", "nn.functional.conv3d",
    "nn.functional.conv_transpose2d", "nn.functional.cross_entropy", "nn.functional.elu",
    "nn.functional.gelu", "nn.functional.glu", "nn.functional.grid_sample", "nn.functional.group_norm",
    "nn.functional.huber_loss", "nn.functional.instance_norm", "nn.functional.interpolate", "nn.functional.layer_norm",
    "nn.functional.max_pool1d", "nn.functional.max_pool2d", "nn.functional.max_pool3d", "nn.functional.mish",
    "nn.functional.multi_head_attention_forward", "nn.functional.nll_loss", "nn.functional.normalize",
    "nn.functional.pad", "nn.functional.pairwise_distance", "nn.functional.pixel_shuffle", "nn.functional.prelu",
    "nn.functional.rms_norm", "nn.functional.scaled_dot_product_attention", "nn.functional.selu",
    "nn.functional.smooth_l1_loss", "nn.functional.softplus", "nn.functional.unfold", "nn.functional.upsample_bilinear",
    "norm", "pow", "prod", "repeat_interleave", "roll", "scatter", "scatter_add", "scatter_reduce", "select_scatter",
    "slice_scatter", "softmax", "sort", "std", "take_along_dim", "tensor_split", "topk", "tril", "unbind", "unflatten",
    "unfold", "var", "var_mean", "where", "xlogy",
]  # fmt: skip
"""Operators that models are made of."""


class Use(torch.nn.Module):  # type: ignore[misc, name-defined]
    """One use of an operator: its tensors are inputs, all else is constant."""

    def __init__(self, operator: Any, leaves: list[Any], spec: Any, places: list[int]) -> None:
        super().__init__()
        self.operator, self.leaves, self.spec, self.places = operator, leaves, spec, places

    def forward(self, *tensors: Any) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = _pytree.tree_unflatten(leaves, self.spec)
        return self.operator(*args, **kwargs)


def uses(info: Any, most: int) -> Iterator[tuple[Use, tuple[Any, ...], list[Any]]]:
    """Samples of an operator, evenly from PyTorch's, with its results."""
    dtype = next((t for t in (torch.float32, torch.int64, torch.bool) if t in info.dtypes), None)
    if dtype is None:
        return
    torch.manual_seed(0)
    samples = list(info.sample_inputs("cpu", dtype, requires_grad=False))
    for sample in samples[:: max(1, len(samples) // most)][:most]:
        leaves, spec = _pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = tuple(leaves[k].clone() for k in places)
        use = Use(info.op, [None if k in places else leaf for k, leaf in enumerate(leaves)], spec, places).eval()
        wanted = [t for t in _pytree.tree_leaves(use(*(t.clone() for t in tensors))) if isinstance(t, torch.Tensor)]
        if tensors and wanted and not any(t.is_sparse or t.is_complex() for t in (*tensors, *wanted)):
            yield use, tensors, wanted


def agree(info: Any, most: int) -> int:
    """How many samples were converted; each of them is compared."""
    converted = 0
    for use, tensors, wanted in uses(info, most):
        try:
            model = tw.from_torch(use, tensors)
        except GraphError as error:
            assert error.legal, error
            continue
        got = list(model(*(t.numpy() for t in tensors)).values())
        assert len(got) == len(wanted)
        for ours, theirs in zip(got, wanted, strict=True):
            value = theirs.float().numpy() if theirs.dtype == torch.bfloat16 else theirs.numpy()
            assert ours.shape == value.shape
            np.testing.assert_allclose(ours.astype(value.dtype), value, rtol=2e-4, atol=2e-5, equal_nan=True)
        converted += 1
    return converted


def named(name: str) -> list[Any]:
    return [info for info in op_db if info.name == name]


@pytest.mark.parametrize("name", USUAL)
def test_operators_of_models_are_converted_and_right(name: str) -> None:
    assert any(agree(info, 2) for info in named(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({info.name for info in op_db} - RANDOM - set(USUAL)))
def test_any_operator_is_right_or_refused(name: str) -> None:
    for info in named(name):
        agree(info, 3)


@pytest.mark.parametrize("seed", range(6))
def test_attention_of_fewer_heads_of_keys(seed: int) -> None:
    """PyTorch's samples have none: heads of queries that share one of keys lie next to each other."""
    rng = np.random.default_rng(seed)
    print("seed", seed)
    heads, shared, queries, keys, d = (int(n) for n in rng.integers((2, 2, 1, 1, 1), (5, 4, 20, 40, 30)))
    causal = bool(rng.integers(2))
    mask = None if causal or rng.integers(2) else torch.from_numpy(rng.standard_normal((queries, keys), np.float32))

    class Shared(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            function = torch.nn.functional.scaled_dot_product_attention
            return function(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)

    shapes = ((2, heads * shared, queries, d), (2, heads, keys, d), (2, heads, keys, d + 1))
    q, k, v = (torch.from_numpy(rng.standard_normal(shape, np.float32)) for shape in shapes)
    (got,) = tw.from_torch(Shared(), (q, k, v))(q.numpy(), k.numpy(), v.numpy()).values()
    np.testing.assert_allclose(got, Shared()(q, k, v).numpy(), rtol=2e-4, atol=2e-5)
