"""PyTorch's recurrent layers as operations of all steps, beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tileweave as tw

torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize("seed", range(24))
def test_layers_are_those_of_torch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    print("seed", seed)
    torch.manual_seed(seed)
    kind = ["LSTM", "GRU", "RNN"][seed % 3]
    features, hidden, steps, batch = (int(n) for n in rng.integers(1, 20, 4))
    options: dict[str, Any] = {"num_layers": int(rng.integers(1, 4)), "bidirectional": bool(rng.integers(2))}
    options |= {"batch_first": bool(rng.integers(2)), "bias": bool(rng.integers(2))}
    if kind == "LSTM" and hidden > 2 and rng.random() < 0.3:
        options["proj_size"] = hidden // 2
    if kind == "RNN":
        options["nonlinearity"] = str(rng.choice(["tanh", "relu"]))
    wide = torch.float64 if rng.random() < 0.3 else torch.float32
    module = getattr(torch.nn, kind)(features, hidden, **options).to(wide).eval()
    shape = (batch, steps, features) if options["batch_first"] else (steps, batch, features)
    alone = rng.random() < 0.25  # one sequence
    x = torch.randn((steps, features) if alone else shape, dtype=wide)
    given: tuple[Any, ...] = (x,)
    if rng.random() < 0.5:
        count = options["num_layers"] * (1 + options["bidirectional"])
        many = () if alone else (batch,)
        h = torch.randn((count, *many, options.get("proj_size") or hidden), dtype=wide)
        c = torch.randn((count, *many, hidden), dtype=wide)
        given = (x, (h, c)) if kind == "LSTM" else (x, h)
    model = tw.from_torch(module, given)
    with torch.no_grad():
        out, last = module(*given)
    arrays = [x, *(given[1:] if kind != "LSTM" else given[1] if len(given) > 1 else ())]
    found = list(model(*(a.numpy() for a in arrays)).values())
    wanted = [out, *(last if kind == "LSTM" else (last,))]
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=1e-5 if wide == torch.float32 else 1e-12)


def test_a_layer_has_few_steps() -> None:
    module = torch.nn.LSTM(8, 16, num_layers=2, bidirectional=True).eval()
    assert len(tw.from_torch(module, torch.randn(40, 2, 8)).plan().steps) < 30
