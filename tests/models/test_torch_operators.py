"""PyTorch's own samples of its operators, through `from_torch`: values are PyTorch's, or the operator is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

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
    "add", "addmm", "amax", "argmax", "argsort", "as_strided", "atan2", "baddbmm", "bucketize", "cat", "cdist", "clamp",
    "copysign",
    "cummax", "cummin",
    "cumprod", "cumsum", "diagonal", "diff", "digamma", "einsum", "erfc", "erfinv", "expand", "fill", "fmax",
    "flip", "gather", "histc", "index_add",
    "index_copy", "index_fill",
    "gcd", "hypot", "i0", "index_reduce", "index_put", "index_select", "kthvalue", "lcm", "lerp", "lgamma",
    "linalg.vector_norm", "logcumsumexp", "logsumexp", "masked_fill", "masked_scatter", "max",
    "median", "nanmedian", "nextafter",
    "nn.functional.adaptive_max_pool1d", "nn.functional.adaptive_max_pool2d",
    "nn.functional.bilinear", "nn.functional.embedding", "nn.functional.embedding_bag", "nn.functional.pdist",
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
    "norm", "pow", "prod", "put", "repeat_interleave", "roll", "scatter", "scatter_add", "scatter_reduce",
    "searchsorted", "select_scatter",
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


DTYPES = (torch.float32, torch.int64, torch.bool)


def uses(info: Any, most: int, dtypes: tuple[Any, ...] = DTYPES) -> Iterator[tuple[Use, tuple[Any, ...], list[Any]]]:
    """Samples of an operator, evenly from PyTorch's, with its results."""
    dtype = next((t for t in dtypes if t in info.dtypes), None)
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


def array(tensor: Any) -> Any:
    """A tensor as an array on its memory."""
    return tensor.view(torch.int16).numpy().view(bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def agree(info: Any, most: int, dtypes: tuple[Any, ...] = DTYPES, tolerance: float = 2e-5) -> int:
    """How many samples were converted; each of them is compared."""
    converted = 0
    for use, tensors, wanted in uses(info, most, dtypes):
        try:
            model = tw.from_torch(use, tensors)
        except GraphError as error:
            assert error.legal, error
            continue
        got = list(model(*map(array, tensors)).values())
        assert len(got) == len(wanted)
        for ours, theirs in zip(got, wanted, strict=True):
            value = theirs.float().numpy() if theirs.dtype == torch.bfloat16 else theirs.numpy()
            assert ours.shape == value.shape and ours.dtype == array(theirs).dtype
            ours, rtol = ours.astype(value.dtype), 10 * tolerance
            np.testing.assert_allclose(ours, value, rtol=rtol, atol=tolerance, equal_nan=True)
        converted += 1
    return converted


def named(name: str) -> list[Any]:
    return [info for info in op_db if info.name == name]


@pytest.mark.parametrize("name", USUAL)
def test_operators_of_models_are_converted_and_right(name: str) -> None:
    assert any(agree(info, 2) for info in named(name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", [
    "clamp", "cummax", "index_reduce", "nn.functional.adaptive_max_pool2d", "nn.functional.hardtanh",
    "nn.functional.max_pool2d", "nn.functional.max_pool1d", "put", "scatter_reduce",
])  # fmt: skip
def test_results_have_the_types_of_pytorch(name: str, dtype: Any) -> None:
    for info in named(name):
        assert agree(info, 3, (dtype,), 4e-3) or dtype not in info.dtypes


def test_means_of_integers_are_integers() -> None:
    (info,) = named("nn.functional.avg_pool2d")
    assert agree(info, 5, (torch.int64,))


@pytest.mark.parametrize("sizes", [(5, 5), (13, 7), (2, 19)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("corners", [True, False])
def test_images_that_shrink_are_smoothed(sizes: tuple[int, int], mode: str, corners: bool) -> None:
    class Smooth(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.interpolate(x, sizes, mode=mode, align_corners=corners, antialias=True)

    x = torch.randn(2, 3, 11, 9, generator=torch.Generator().manual_seed(1))
    (got,) = tw.from_torch(Smooth(), (x,))(x.numpy()).values()
    np.testing.assert_allclose(got, Smooth()(x).numpy(), rtol=2e-4, atol=2e-5)


class Calls(torch.nn.Module):  # type: ignore[misc, name-defined]
    """The results of a function of tensors."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def test_numbers_beside_tensors_are_of_a_kind_at_least() -> None:
    truths, small = torch.tensor([True, False]), torch.tensor([5, 255, 0], dtype=torch.uint8)
    same(Calls(lambda b: (b + 1, b * 2, 2 - b.int(), b < 2, b == 1, b * 1.5, b | 2, b.cumsum(0) - 7)), truths)
    same(Calls(lambda u: (u + (-1), u == -1, u * 300, u.clamp(max=7), u * 0.5, u > -1)), small)


def test_integers_to_negative_powers() -> None:
    x, y = torch.tensor([2, 1, -1, -1, 3, 7]), torch.tensor([-1, -2, -3, -2, 2, 0])
    same(Calls(lambda x, y: (torch.pow(x, y), torch.pow(2, y), x**3, torch.pow(x.int(), y))), x, y)


@pytest.mark.parametrize("heads", [2, 4])
def test_a_query_that_sees_no_key_has_no_value(heads: int) -> None:
    draw = torch.Generator().manual_seed(4)
    q, k = torch.randn(2, heads, 3, 5, generator=draw), torch.randn(2, 2, 4, 5, generator=draw)
    v, mask = torch.randn(2, 2, 4, 6, generator=draw), torch.rand(3, 4, generator=draw) > 0.5
    mask[1] = False
    added = torch.where(mask, 0.5, -torch.inf)
    attend = torch.nn.functional.scaled_dot_product_attention
    shared = heads > 2
    same(Calls(lambda q, k, v, m: attend(q, k, v, attn_mask=m, enable_gqa=shared)), q, k, v, mask)
    same(Calls(lambda q, k, v, m: attend(q, k, v, attn_mask=m, enable_gqa=shared)), q, k, v, added)
    same(Calls(lambda q, k, v: attend(q, k, v, attn_mask=mask, enable_gqa=shared)), q, k, v)


_ATEN = torch.ops.aten


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_convolutions(transposed: bool) -> None:
    class Back(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, dy: Any, x: Any, w: Any) -> Any:
            mask, extra = [True, True, True], [1, 0] if transposed else [0, 0]
            sizes = [6 if not transposed else 4]
            return _ATEN.convolution_backward(dy, x, w, sizes, [2, 1], [1, 1], [1, 1], transposed, extra, 2, mask)

    draw = torch.Generator().manual_seed(2)
    x, w = (
        torch.randn(2, 4, 9, 8, generator=draw),
        torch.randn(*((4, 2) if transposed else (6, 2)), 3, 3, generator=draw),
    )
    bias, extra = None, [1, 0] if transposed else [0, 0]
    y = _ATEN.convolution(x, w, bias, [2, 1], [1, 1], [1, 1], transposed, extra, 2)
    dy = torch.randn(y.shape, generator=draw)
    same(Back(), dy, x, w)


@pytest.mark.parametrize("kind", ["average", "adaptive", "max"])
def test_gradients_of_pools(kind: str) -> None:
    class Back(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, dy: Any, x: Any) -> Any:
            if kind == "average":
                return _ATEN.avg_pool2d_backward(dy, x, [3, 3], [2, 2], [1, 1], True, False, None)
            if kind == "adaptive":
                return _ATEN._adaptive_avg_pool2d_backward(dy, x)
            places = _ATEN.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])[1]
            return _ATEN.max_pool2d_with_indices_backward(dy, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places)

    draw = torch.Generator().manual_seed(3)
    x = torch.randn(2, 4, 9, 7, generator=draw)
    dy = torch.randn(2, 4, 5, 4, generator=draw)
    same(Back(), dy, x)


def same(module: Any, *tensors: Any) -> None:
    """Holds a module's results against PyTorch's."""
    wanted = _pytree.tree_leaves(module(*tensors))
    got = list(tw.from_torch(module, tensors)(*(t.numpy() for t in tensors)).values())
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == theirs.numpy().dtype
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-4, atol=1e-4)


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
