"""Plans that no search made: the steps of a searched plan, or none."""

from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave.planner import Costs
from tileweave.planner.simulate import costed
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
