"""The law of the package: whole, sharded at random and rewritten at random, a graph has one value."""

import numpy as np
import pytest
from every_operator import FLOATS, INTEGERS, steps_for
from random_graphs import close, random_graph, random_partitions

from tileweave import graph as tw
from tileweave.graph.ir.resolve import SELECTORS
from tileweave.graph.ops.operators import OPERATORS
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import OPTIMIZATIONS, RULES

# before any test adds its own
OURS = frozenset(
    name for name, operator in OPERATORS.items() if operator.block.__module__.startswith("tileweave.graph.")
)
KINDS = frozenset(SELECTORS)


def some_rules(rng):
    """A random sequence of rules of the registry, and a choice among what they answer."""
    names = rng.permutation(sorted(RULES))[: rng.integers(1, len(RULES) + 1)]
    return [RULES[str(name)] for name in names], lambda found: int(rng.integers(-1, len(found)))


def one_value(seed: int, dtype: str, steps: int = 6) -> tuple[tw.Graph, ...]:
    """The graph, sharded, rewritten, and rewritten ones sharded and fused: all of one value, all well formed."""
    made = random_graph(seed, dtype, steps, steps_for(dtype), empty=0.1)
    rng = np.random.default_rng(seed)
    graph = tw.verify(tw.Graph.of(*(v.tensor for v in made)))
    whole = tw.evaluate([v.tensor for v in made])
    rules, choose = some_rules(rng)
    rewritten = rewrite(graph, rules, passes=2, choose=choose).graph
    sharded = tw.expand(rewritten, random_partitions(rng, rewritten, 2))
    graphs = (
        tw.expand(graph, random_partitions(rng, graph)),
        rewritten,
        rewrite(sharded, OPTIMIZATIONS, passes=3).graph,
    )
    tw.check_sharding(graphs[0], graph)
    for changed in graphs:
        tw.verify(changed)
        got = tw.evaluate([sink.tensor for sink in changed.sinks])
        for value, one, other in zip(made, got, whole, strict=True):
            close(value, one, other)
    return (graph, *graphs)


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_whole_sharded_and_rewritten_graphs_have_one_value(dtype):
    more = 0
    for seed in range(16):
        graph, sharded, _, _ = one_value(seed, dtype)
        more += len(sharded.operations) - len(graph.operations)
    assert more > 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("dtype", INTEGERS + FLOATS)
def test_thousands_of_graphs_have_one_value(dtype, part):
    for seed in range(1000 + 40 * part, 1040 + 40 * part):
        one_value(seed, dtype, 4 + seed % 7)


def test_the_random_graphs_hold_every_operator_and_selector():
    operators, selectors = set(), set()
    for dtype in INTEGERS + FLOATS:
        for seed in range(200):
            values = random_graph(seed, dtype, 6, steps_for(dtype), empty=0.1)
            for node in tw.Graph.of(*(v.tensor for v in values)).nodes():
                if isinstance(node, tw.Operation):
                    operators.add(node.operator)
                elif isinstance(node, tw.Selector):
                    selectors.add(node.kind)
    made = {
        "fused",
        "linear_relu",
        "rows",
        "conv_chain",
        "product_chain",
        "attention",
        "triangle",
        "combine",
    }  # by rewriting, or by cutting
    assert OURS - operators <= made | {"max_and_sum", "moments"}  # states, which tests/graph/test_states.py looks at
    assert KINDS - selectors <= {"view"}  # the same
