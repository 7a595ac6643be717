"""Every rule alone, the driver, sequence points, traces."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from arrays import values
from random_graphs import close, random_graph, random_partitions

from tileweave import graph as tw
from tileweave.errors import GraphError
from tileweave.graph.ir.nodes import children
from tileweave.graph.passes.rewrite import RewriteContext, RewriteRule, choices, replay, rewrite
from tileweave.graph.passes.rules import EXPANSIONS, OPTIMIZATIONS, RULES

RNG = np.random.default_rng(0)
X, W, B = values(RNG, (4, 3), "int64"), values(RNG, (3, 5), "int64"), values(RNG, (5,), "int64")


def tensors(dtype):
    return tw.as_tensor(X.astype(dtype)), tw.as_tensor(W.astype(dtype)), tw.as_tensor(B.astype(dtype))


def matching(name, dtype, rng):
    """Graphs of random shapes and values on which a rule applies."""
    m, k, n = (int(rng.integers(low, 7)) for low in (3, 2, 2))
    x, w, b = (tw.as_tensor(values(rng, shape, dtype)) for shape in ((m, k), (k, n), (n,)))
    cut, lead = int(rng.integers(1, m)), int(rng.integers(1, 4))
    image = tw.as_tensor(values(rng, (lead, 2, m + 3, k + 4), dtype))
    window = values(rng, (3, 2, 2, 3), dtype)
    cases = {
        "one-view": [tw.concat([x[:cut], x[cut:]], 0), x[1:][:, ::-1].T, tw.concat([x, w[:, :1].T], 0)[::2][:2],
                     tw.pad(x, 2)[2:4, 2:4], tw.pad(x, 3)[:2], tw.copies(x, 3)[m : m + cut], tw.flip(tw.flip(x)),
                     tw.interleave([x, x * 2], 1)[:, ::2]],
        "where-known": [tw.where(tw.full((), True), x, -x), tw.where(tw.full((m, 1), False), 5, x),
                        tw.where(tw.broadcast_to(tw.full((1,), True), (lead, m, k)), x, x * 2)],
        "double-negative": [tw.negative(tw.negative(x))],
        "times-one": [x * 1, 1 * x, x * tw.ones((), dtype)] + ([x / 1] if dtype != "int64" else []),
        "idempotent": [tw.relu(tw.relu(x)), tw.absolute(tw.absolute(x))],
        "power-of-few": [x**1, x**2, x**3, tw.power(x, tw.full((m, 1), 4, dtype))],
        "sum-of-products": [tw.sum(x[:, :, None] * w, 1), tw.sum(x * x, 0), tw.sum(x[:, None] * w.T, -1),
                            tw.sum(x * x, (0, 1)), tw.sum(w * b, 0), tw.sum(tw.broadcast_to(x, (lead, m, k)) * x, 0)],
        "matmul-bias": [x @ w + b, b + x @ w, tw.matmul(tw.broadcast_to(x, (lead, m, k)), w) + b],
        "linear-relu": [tw.relu(tw.linear(x, w, b))],
        "elementwise-chain": [tw.relu(x + 1), (x + 2) * (x - x[0]), tw.where(x > 0, -x, x), (x + 1).astype("float32")],
        "linear": [tw.linear(x, w, b), tw.linear(x[0], w, b)],
        "relu-as-where": [tw.relu(x)],
        "unfused": [rewrite(tw.Graph.of(tw.relu(x + 1) * x), OPTIMIZATIONS).graph.sinks[0].tensor],
        "linear-relu-apart": [rewrite(tw.Graph.of(tw.relu(tw.linear(x, w, b))), OPTIMIZATIONS).graph.sinks[0].tensor],
        "sum-as-selects": [tw.sum(x, 0), tw.sum(x, 1)],
        "conv-gaps-interleaved": [tw.conv(image, window, dilation=(1, 2)), tw.conv(image, window, dilation=(3, 2))],
        "conv-steps-added": [tw.conv(image, window, stride=(2, 1)), tw.conv(image, window, stride=(2, 4), dilation=2)],
    }  # fmt: skip
    return cases[name]


def equal(rule, got, expected):
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if rule.exact or expected.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_each_rule_alone_keeps_the_value_of_what_it_matches(name, dtype):
    """On random graphs that match: alone, and in the middle of others."""
    rule = RULES[name]
    for seed in range(8):
        rng = np.random.default_rng(seed)
        for tensor in matching(name, dtype, rng):
            found = choices(tensor, [rule], RewriteContext.of(tw.Graph.of(tensor)))
            assert found, f"{name} does not match {tensor}"
            (expected,) = tw.evaluate([tensor])
            for _, _, option in found:
                tw.verify(tw.Graph.of(option))
                equal(rule, tw.evaluate([option])[0], expected)
            around = tw.Graph.of(tw.concat([tensor if tensor.ndim else tensor[None]] * 2) - 1, tensor)
            inside = rewrite(around, [rule], passes=4)
            assert inside.trace
            results = [sink.tensor for sink in (*inside.graph.sinks, *around.sinks)]
            got = tw.evaluate(results)
            for one, other in zip(got[:2], got[2:], strict=True):
                equal(rule, one, other)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_each_rule_alone_keeps_the_value_of_random_graphs(name, dtype):
    count = 0
    for seed in range(4):
        made = random_graph(seed + 300, dtype)
        graph = tw.Graph.of(*(v.tensor for v in made))
        done = rewrite(graph, [RULES[name]])
        assert done.complete
        tw.verify(done.graph)
        expected = tw.evaluate([v.tensor for v in made])
        for v, got, want in zip(made, tw.evaluate([s.tensor for s in done.graph.sinks]), expected, strict=True):
            close(v, got, want)
        count += len(done.trace)
    assert count >= 0


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_random_rewrites_of_random_sharded_graphs(dtype):
    """Rewritten at random, sharded at random, rewritten again: the same value."""
    steps = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        made = random_graph(seed + 700, dtype, 6)
        graph = tw.Graph.of(*(v.tensor for v in made))
        expected = tw.evaluate([v.tensor for v in made])
        pick = lambda found, rng=rng: int(rng.integers(-1, len(found)))  # noqa: E731
        first = rewrite(graph, [*RULES.values()], passes=2, choose=pick)
        sharded = tw.expand(first.graph, random_partitions(rng, first.graph))
        last = rewrite(sharded, OPTIMIZATIONS)
        assert last.complete
        tw.verify(last.graph)
        for v, got, want in zip(made, tw.evaluate([s.tensor for s in last.graph.sinks]), expected, strict=True):
            close(v, got, want)
        steps += len(first.trace) + len(last.trace)
    assert steps > 25


def test_a_fixed_point_is_reached_and_stays():
    x, w, b = tensors("float64")
    graph = tw.Graph.of(tw.relu(x @ w + b) * 2 + 1)
    done = rewrite(graph, OPTIMIZATIONS)
    assert done.complete and [o.operator for o in done.graph.operations] == ["linear_relu", "fused"]
    again = rewrite(done.graph, OPTIMIZATIONS)
    assert again.graph is done.graph and again.trace == () and again.complete


def test_expansions_written_out_and_fused_again():
    x, w, b = tensors("int64")
    graph = tw.Graph.of(tw.relu(tw.linear(x, w, b)))
    apart = rewrite(graph, EXPANSIONS, passes=4)
    done = rewrite(apart.graph, OPTIMIZATIONS, passes=16)
    np.testing.assert_array_equal(tw.evaluate([done.graph.sinks[0].tensor])[0], np.maximum(X @ W + B, 0))
    assert {s.rule for s in (*apart.trace, *done.trace)} >= {"linear", "relu-as-where", "matmul-bias"}


def test_ambiguous_expansions_keep_all_choices():
    x, w, b = tensors("int64")
    found = choices(tw.linear(x, w, b), [RULES["linear"]])
    assert [(rule.name, k) for rule, k, _ in found] == [("linear", 0), ("linear", 1)]
    operators = [{o.operator for o in tw.Graph.of(t).operations} for _, _, t in found]
    assert operators == [{"matmul", "add"}, {"multiply", "sum", "add"}]


def test_precedence_of_local_expansion():
    x = tw.as_tensor(X)
    halve = RewriteRule("halve", "exp(x) is exp(x / 2) squared", lambda t, c: None)
    first = RewriteRule("first", "for the test", lambda t, c: tw.negative(tw.negative(t)) if t is x else None)
    ((rule, _, found),) = choices(x, [halve, first])
    assert rule is first and found is tw.negative(tw.negative(x)) and not choices(found, [halve, first])


def test_passes_are_bounded():
    grow = RewriteRule("grow", "for the test", lambda t, c: tw.negative(tw.negative(t)) if t.ndim == 1 else None)
    done = rewrite(tw.Graph.of(tw.as_tensor(np.ones(3))), [grow], passes=2)
    assert not done.complete and len(done.trace) > 0


def test_a_trace_replays():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        graph = tw.Graph.of(*(v.tensor for v in random_graph(seed, "int64")))
        graph = tw.expand(graph, random_partitions(rng, graph))
        pick = lambda found, rng=rng: int(rng.integers(-1, len(found)))  # noqa: E731
        done = rewrite(graph, [*RULES.values()], passes=3, choose=pick)
        assert replay(graph, done.trace, [*RULES.values()]) is done.graph
        assert rewrite(graph, OPTIMIZATIONS).trace == rewrite(graph, OPTIMIZATIONS).trace


def test_a_trace_says_what_happened_where():
    x, w, b = tensors("float64")
    done = rewrite(tw.Graph.of(tw.relu(x @ w + b)), OPTIMIZATIONS)
    assert str(done).splitlines() == [
        "pass 0, node 11: matmul-bias[0]  <Tensor float64[4, 5] = add> => <Tensor float64[4, 5] = linear>",
        "pass 0, node 14: linear-relu[0]  <Tensor float64[4, 5] = relu> => <Tensor float64[4, 5] = linear_relu>",
    ]
    with pytest.raises(GraphError, match="no node 11"):
        replay(tw.Graph.of(x + 1), done.trace, OPTIMIZATIONS)


def test_shared_values_are_not_computed_twice():
    x, w, b = tensors("float64")
    product = x @ w
    done = rewrite(tw.Graph.of(product + b, tw.exp(product)), OPTIMIZATIONS)
    assert [o.operator for o in done.graph.operations].count("matmul") == 1


def test_no_rewrite_crosses_a_sequence_point():
    x = tw.as_tensor(X)
    y = x + 1
    held = tw.SequencePoint((y.producer,))
    z = tw.relu(y)
    graph = tw.Graph((tw.SequencePoint((tw.Sink(z, tw.MemoryTarget()),)), held))
    done = rewrite(graph, OPTIMIZATIONS)
    assert y.producer in done.graph.operations and [o.operator for o in done.graph.operations] == ["add", "relu"]
    plain = tw.negative(tw.negative(x)).producer
    after = tw.Operation(
        plain.operator, plain.index, plain.inputs, plain.outputs, plain.parameters, plain.signature, (held,)
    )
    late = rewrite(tw.Graph.of(tw.Tensor(after) * 1 * 1), OPTIMIZATIONS)
    assert any(o.after for o in late.graph.operations) and late.graph.operations[-1].operator == "negative"


def test_a_sequence_point_leaves_rewriting_linear(monkeypatch):
    looked = []
    for function in (rewrite, children):
        module = sys.modules[function.__module__]
        monkeypatch.setattr(module, "children", lambda node: looked.append(node) or children(node))

    def steps(length):
        first = tw.as_tensor(X) + 1
        z = tw.Tensor(replace((first * 2).producer, after=(tw.SequencePoint((first.producer,)),)))
        for _ in range(length):
            z = tw.negative(tw.negative(z)) * 3
        looked.clear()
        done = rewrite(tw.Graph.of(z), OPTIMIZATIONS, passes=1)
        assert any(o.after for o in done.graph.operations)
        return len(looked)

    few, many = steps(100), steps(500)
    assert many < 6 * few  # five times the length


def test_a_rule_that_changes_the_type_is_refused():
    bad = RewriteRule("bad", "no law", lambda t, c: t.astype("float32"))
    with pytest.raises(GraphError, match=r"rule bad: answered float32\[4, 3\] for int64\[4, 3\]"):
        rewrite(tw.Graph.of(tw.as_tensor(X) + 1), [bad])
    with pytest.raises(GraphError, match="two rules"):
        rewrite(tw.Graph.of(tw.as_tensor(X)), [bad, bad])


def test_rules_of_others_stand_beside_ours():
    square = RewriteRule("square", "x ** 2 is x * x", lambda t, c: power_of_two(t), exact=False)

    def power_of_two(t):
        producer = t.producer
        if getattr(producer, "operator", "") != "power":
            return None
        two = producer.input("x1").producer
        if getattr(two, "kind", "") != "full" or two.parameter("value") != 2:
            return None
        x = producer.input("x0")
        return tw.multiply(x, x)

    x = tw.as_tensor(X.astype("float64"))
    done = rewrite(tw.Graph.of(x**2), [square, *OPTIMIZATIONS])
    assert [o.operator for o in done.graph.operations] == ["multiply"]
    np.testing.assert_array_equal(tw.evaluate([done.graph.sinks[0].tensor])[0], X.astype("float64") ** 2)


def test_programs_have_a_bounded_length_so_that_long_chains_fuse_in_linear_time():
    x = tw.as_tensor(np.ones(3))
    y = x
    for k in range(1000):
        y = y + float(k % 7)
    done = rewrite(tw.Graph.of(y), OPTIMIZATIONS)
    programs = [len(o.parameter("program")) for o in done.graph.operations]
    assert done.complete and sum(programs) == 1000 and max(programs) == 64
    np.testing.assert_array_equal(tw.evaluate([done.graph.sinks[0].tensor])[0], tw.evaluate([y])[0])


def test_a_long_chain_is_fused_without_recursion():
    y = tw.as_tensor(np.ones(3))
    for _ in range(300):
        y = -y
    done = rewrite(tw.Graph.of(y), [RULES["double-negative"]])
    assert done.complete and done.graph.operations == ()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_many_random_rewrites(dtype):
    for seed in range(2000, 2300):
        rng = np.random.default_rng(seed)
        made = random_graph(seed, dtype, 10)
        graph = tw.Graph.of(*(v.tensor for v in made))
        pick = lambda found, rng=rng: int(rng.integers(-1, len(found)))  # noqa: E731
        done = rewrite(graph, [*RULES.values()], passes=3, choose=pick)
        sharded = tw.verify(tw.expand(done.graph, random_partitions(rng, done.graph)))
        last = rewrite(sharded, OPTIMIZATIONS)
        expected = tw.evaluate([v.tensor for v in made])
        for v, got, want in zip(made, tw.evaluate([s.tensor for s in last.graph.sinks]), expected, strict=True):
            close(v, got, want)
        assert last.complete


def test_rules_behind_the_one_that_is_taken_are_not_asked() -> None:
    asked: list[str] = []

    def never(tensor: tw.Tensor, context: RewriteContext) -> None:
        asked.append(repr(tensor))

    last = RewriteRule("never", "asked, and answers nothing", never)
    graph = tw.Graph.of(tw.exp(tw.as_tensor(np.ones(3)) * 1))
    rewrite(graph, [RULES["times-one"], last], passes=1)
    alone = len(asked)
    asked.clear()
    rewrite(graph, [RULES["times-one"], last], passes=1, choose=lambda found: len(found) - 1)
    assert len(asked) > alone > 0, "a choice that counts its options asks for all of them"
