"""Plans that no search made: the steps of a searched plan, or none."""

from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave.lower import forms
from tileweave.planner import Costs
from tileweave.planner.simulate import costed
from tileweave.runtime import planned as api_planned
from tileweave.runtime.planned import planned, whole


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_whole_plans_have_the_steps_of_searched_ones(dtype):
    machines = tw.machines(1)
    for seed in range(60):
        graph = g.Graph.of(*(value.tensor for value in random_graph(seed, dtype)))
        made, searched = whole(graph, machines), planned(graph, machines)
        assert made is not None and made.gap == searched.gap
        assert made.steps == tuple(replace(step, costs=Costs()) for step in searched.steps), seed
        assert costed(made)[0].explain() == replace(searched, alternatives=()).explain(), seed


def test_what_a_search_may_plan_otherwise_is_left_to_it(tmp_path):
    x = tw.source(np.ones((256, 256)))
    y = g.Graph.of(tw.exp(x) @ tw.exp(x.T))
    assert whole(y, tw.machines(1)) is not None
    assert whole(y, tw.machines(2)) is None
    assert whole(y, tw.machines(1, memory="700KiB")) is None  # in waves alone
    np.save(tmp_path / "x.npy", np.ones((4, 4)))
    assert whole(g.Graph.of(tw.exp(tw.source(tmp_path / "x.npy"))), tw.machines(1)) is None
    assert whole(g.Graph.of(tw.sink(tw.exp(x), tmp_path / "y.npy")), tw.machines(1)) is None
    assert whole(g.Graph.of(tw.exp(tw.source(np.ones(3), placement=0))), tw.machines(1)) is None


def programs(rng):
    """Programs of random extents, some of them few, as typed holes."""
    n, m, k, h = (int(rng.integers(9, 300)) if rng.random() < 0.9 else int(rng.integers(1, 9)) for _ in range(4))

    def hole(*shape, dtype="float32"):
        return tw.source(shape=shape, dtype=dtype)

    x, w, b = hole(n, m), hole(m, k), hole(k)
    centred = x - x.mean(-1, keepdims=True)
    q, keys, values = hole(2, n, h), hole(2, m, h), hole(2, m, h)
    yield "chain", tw.relu(x * 2 + hole(n, m)) / hole(n, 1)
    yield "product", x @ w
    yield "softmax", tw.softmax(x, -1)
    yield "norm", centred / tw.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * hole(m)
    yield "columns", tw.softmax(x, 0)
    yield "attention", tw.softmax(q @ keys.transpose(0, 2, 1) * 0.125, -1) @ values
    yield "layers", tw.softmax(tw.tanh(tw.relu(x @ w + b) @ hole(k, h)), -1)
    yield "convolution", tw.relu(tw.nn.conv(hole(2, 3, n + 2, m + 2), hole(5, 3, 3, 3)) * 2)


def test_graphs_of_other_extents_are_fused_as_if_they_were_the_first(monkeypatch):
    searches = []
    real = forms.fused_form
    monkeypatch.setattr(api_planned, "fused_form", lambda *given: searches.append(1) or real(*given))
    rng, machines, alive, counted = np.random.default_rng(7), tw.machines(1), [], 0
    for _ in range(30):
        for name, tensor in programs(rng):
            graph = g.Graph.of(tensor)
            made, before = whole(graph, machines), len(searches)
            searched = planned(graph, machines)
            del searches[before:]
            assert made is not None and made.gap == searched.gap
            assert made.steps == tuple(replace(step, costs=Costs()) for step in searched.steps), (name, tensor.shape)
            alive.append((made, graph))
            counted += 1
    assert len(searches) < counted / 2
