"""Modules whose extents calls choose: the values are PyTorch's, and one exported program serves many extents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import GraphError
from tileweave.frontends.torch import export

torch = pytest.importorskip("torch", reason="make test-models installs torch")
transformers = pytest.importorskip("transformers", reason="make test-models installs transformers")
F = torch.nn.functional


class Counted:
    """How often modules were exported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        export = torch.export.export

        def counting(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return export(*arguments, **options)

        monkeypatch.setattr(torch.export, "export", counting)


@pytest.fixture
def exports(monkeypatch):
    return Counted(monkeypatch)


class Halves(torch.nn.Module):
    """Extents in arithmetic: products, quotients, positions, a mask, and a branch on one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: Any, y: Any) -> Any:
        length = x.shape[1]
        h = self.words(x) + torch.arange(length)[None, :, None] / length
        h = self.linear(h.view(x.shape[0] * length, 16)).view(x.shape[0], -1, 16)
        h = F.scaled_dot_product_attention(h, h, h, is_causal=True)
        if length > 7:
            h = h * 2 + length
        if length % 3 == 0:
            h = h - y[:, None]
        return h[:, : (length + 1) // 2].mean(1) + y, torch.full((length,), float(length))


@pytest.mark.parametrize("seed", [1])
def test_branches_and_arithmetic_of_extents(seed):
    print("seed", seed)
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    module = Halves().eval()
    batch, length = tw.dim("batch", 1, 9), tw.dim("length", 1, 40)
    dims = {"x": {0: batch, 1: length}, "y": {0: batch}}
    model = tw.from_torch(module, (torch.zeros(3, 10, dtype=torch.int64), torch.zeros(3, 16)), dims=dims)
    for _ in range(9):
        b, n = int(random.integers(1, 6)), int(random.integers(1, 20))
        x, y = torch.randint(0, 50, (b, n)), torch.randn(b, 16)
        with torch.no_grad():
            expected = module(x, y)
        got = model(x.numpy(), y.numpy())
        for one, other in zip(got.values(), expected, strict=True):
            np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5, err_msg=f"{b} x {n}")


@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama"])
def test_one_export_serves_all_lengths(name, exports):
    torch.manual_seed(3)
    sizes = {"vocab_size": 100, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    if name == "GPT2":
        sizes = {"vocab_size": 100, "n_layer": 2, "n_head": 4, "n_embd": 32}
    else:
        sizes["intermediate_size"] = 64
    module = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes)).eval()
    dims = {"input_ids": {0: tw.dim("batch", 1, 8), 1: tw.dim("length", 1, 64)}}
    model = tw.from_torch(module, torch.zeros(2, 11, dtype=torch.int64), dims=dims)
    random = np.random.default_rng(11)
    shapes = [(2, 5), (1, 7), (3, 12), (1, 30), (2, 33), (5, 1), *random.integers(2, 9, (2, 2)).tolist()]
    for batch, length in shapes:
        words = torch.randint(0, 100, (batch, length))
        with torch.no_grad():
            expected = module(words)[0].numpy()
        got = next(iter(model(words.numpy()).values()))
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-4, err_msg=f"{batch} x {length}")
    # the example; no extent of one; a batch of one; a length of one
    assert exports.count <= 4


class Given(torch.nn.Module):
    """Inputs in a list and by name, one of them no tensor."""

    def forward(self, pair: Any, scale: Any) -> Any:
        a, b = pair
        return torch.cat([a @ b, b.transpose(0, 1)], 1) * scale


def test_inputs_in_lists_and_by_name(exports):
    example = {"pair": [torch.zeros(4, 6), torch.zeros(6, 4)], "scale": 3.0}
    model = tw.from_torch(Given(), example)
    first, second = model.inputs
    n, k = tw.dim("n", 1, 50), tw.dim("k", 1, 50)
    model = tw.from_torch(Given(), example, dims={first: {0: n, 1: k}, second: {0: k, 1: n}})
    for rows, inner in ((3, 8), (8, 3), (5, 5), (2, 1), (7, 31)):
        a, b = torch.randn(rows, inner), torch.randn(inner, rows)
        (got,) = model(a.numpy(), b.numpy()).values()
        np.testing.assert_allclose(got, Given()([a, b], 3.0).numpy(), rtol=1e-5, atol=1e-5)
    assert exports.count <= 4  # the example, twice; extents above one; one of one
    with pytest.raises(GraphError, match="dimension"):
        model(np.zeros((3, 8), np.float32), np.zeros((8, 4), np.float32))


class Sum(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


def test_extents_that_a_module_needs_equal_may_broadcast_or_are_refused():
    dims = {"x": {0: tw.dim("a", 1, 9)}, "y": {0: tw.dim("b", 1, 9)}}
    model = tw.from_torch(Sum(), (torch.zeros(4), torch.zeros(4)), dims=dims)
    for a, b in ((5, 5), (1, 6), (6, 1), (7, 7), (1, 1)):
        x, y = torch.randn(a), torch.randn(b)
        np.testing.assert_array_equal(model(x.numpy(), y.numpy())["out"], (x + y).numpy())
    with pytest.raises(GraphError, match="refuses the module"):
        model(np.zeros(3, np.float32), np.zeros(4, np.float32))
    assert model(np.ones(8, np.float32), np.ones(8, np.float32))["out"].tolist() == [2] * 8


class Told(torch.nn.Module):
    """A branch for one extent alone."""

    def forward(self, x: Any) -> Any:
        return x * 2 if x.shape[0] == 6 else x + 1


@pytest.mark.parametrize("first", [6, 5])
def test_an_extent_with_code_of_its_own(first, exports):
    model = tw.from_torch(Told(), torch.zeros(first), dims={"x": {0: tw.dim("n", 0, 20)}})
    for n in (first, 4, 6, 9, 1, 6, 4):
        x = torch.randn(n)
        np.testing.assert_array_equal(model(x.numpy())["out"], Told()(x).numpy())
    assert exports.count <= 4  # the example, six, others, one


class Pair(NamedTuple):
    a: Any
    b: Any


class Named(torch.nn.Module):
    def forward(self, pair: Any) -> Any:
        return pair.a - pair.b


def test_inputs_in_a_named_tuple():
    example = {"pair": Pair(torch.zeros(3), torch.zeros(3))}
    first, second = tw.from_torch(Named(), example).inputs
    n = tw.dim("n", 1, 9)
    model = tw.from_torch(Named(), example, dims={first: {0: n}, second: {0: n}})
    for length in (5, 1):
        a, b = torch.randn(length), torch.randn(length)
        np.testing.assert_array_equal(model(a.numpy(), b.numpy())["out"], (a - b).numpy())


class Chosen(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0].sum()


def test_shapes_that_depend_on_values_are_refused():
    for dims in ({}, {"x": {0: tw.dim("n", 1, 9)}}):
        with pytest.raises(GraphError, match="the shape of its result depends on values"):
            tw.from_torch(Chosen(), torch.zeros(4), dims=dims)


def test_parts_that_do_not_train_still_do_not():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)).train()
    module[0].eval()
    tw.from_torch(module, torch.zeros(4, 3))
    assert [one.training for one in module.modules()] == [True, False, True]


def test_threads_share_one_export(exports):
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh()).train()
    model = tw.from_torch(module, torch.zeros(3, 4), dims={"input": {0: tw.dim("n", 1, 99)}})
    given = [torch.randn(n, 4) for n in (2, 9, 5, 31, 17, 3, 8, 40)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda x: next(iter(model(x.numpy()).values())), given))
    with torch.no_grad():
        for x, got in zip(given, made, strict=True):
            np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-5, atol=1e-6)
    assert exports.count == 2  # the example, and all others
    assert all(one.training for one in module.modules())


class Numbers(torch.nn.Module):
    """It takes no symbols."""

    def forward(self, x: Any) -> Any:
        if not isinstance(x.shape[0], int):
            raise TypeError("a number is wanted")
        return x * x.shape[0]


def test_a_module_without_symbols_is_not_asked_for_them_for_ever(exports, monkeypatch):
    monkeypatch.setattr(export, "MOST", 3)
    model = tw.from_torch(Numbers(), torch.zeros(4), dims={"x": {0: tw.dim("n", 2, 50)}})
    for n in range(2, 12):
        assert model(np.ones(n, np.float32))["out"].tolist() == [n] * n
    assert exports.count == 1 + 3 * 2 + 7
