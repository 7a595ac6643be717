"""Correct shardings are recognised without running them; a wrong one is named."""

from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph, random_partitions

from tileweave import graph as tw
from tileweave.errors import VerifyError
from tileweave.graph.ir.resolve import resolve
from tileweave.graph.passes.rewrite import rewrite
from tileweave.graph.passes.rules import ONE_VIEW
from tileweave.graph.passes.shard import moved, shard_operation
from tileweave.graph.passes.sharding import check_sharding, is_sharding
from tileweave.space import Box

X = tw.as_tensor(np.arange(40.0).reshape(20, 2))
ADD = tw.add(X, 1.0)
WHOLE = tw.Graph.of(ADD)


def shard(tensor, start, stop):
    """Rows [start, stop) of an operation over two dimensions."""
    operation = tensor.producer
    return tw.Tensor(shard_operation(operation, operation.index.with_range(0, start, stop)))


def wrong(graph, whole=WHOLE):
    with pytest.raises(VerifyError) as caught:
        check_sharding(graph, whole)
    assert not is_sharding(graph, whole)
    return caught.value


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_random_shardings_are_recognised(dtype):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        graph = tw.Graph.of(*(v.tensor for v in random_graph(seed, dtype, 7)))
        assert is_sharding(graph, graph)
        sharded = tw.expand(graph, random_partitions(rng, graph))
        check_sharding(sharded, graph)
        assert is_sharding(rewrite(sharded, [ONE_VIEW]).graph, graph)


@pytest.mark.parametrize(
    "tensor",
    [
        tw.linear(X, np.ones((2, 3)), np.ones(3)),
        tw.conv(np.ones((2, 3, 9)), np.ones((4, 3, 3)), np.ones(4), stride=2),
        tw.softmax(X @ np.ones((2, 5))),
        tw.attention(np.ones((6, 4)), np.ones((5, 4)), np.ones((5, 3)), causal=True),
        tw.uniform((9, 4), 3) * 2,
        rewrite(tw.Graph.of(tw.relu(tw.linear(X, np.ones((2, 3)), np.ones(3)))), list(tw.OPTIMIZATIONS))
        .graph.sinks[0]
        .tensor,
    ],
)
def test_shardings_of_every_kind_are_recognised(tensor):
    graph = tw.Graph.of(tensor)
    for seed in range(4):
        check_sharding(tw.expand(graph, random_partitions(np.random.default_rng(seed), graph)), graph)
    assert is_sharding(graph, graph)


def test_blocks_that_add_up_but_do_not_cover_are_found():
    """Sizes and bounding box agree, [0:5) is written twice and [10:15) never."""
    good = tw.Graph.of(tw.concat([shard(ADD, 0, 10), shard(ADD, 10, 15), shard(ADD, 15, 20)]))
    check_sharding(good, WHOLE)
    bad = tw.Graph.of(tw.concat([shard(ADD, 0, 10), shard(ADD, 0, 5), shard(ADD, 15, 20)]))
    assert wrong(bad).rule == "cover"


def test_blocks_in_the_wrong_order_are_found():
    assert wrong(tw.Graph.of(tw.concat([shard(ADD, 10, 20), shard(ADD, 0, 10)]))).rule == "cover"


def test_a_shard_that_reads_the_wrong_region_is_named():
    good = shard(ADD, 0, 10).producer
    (name, _), other = good.inputs
    bad = tw.Operation(
        good.operator, good.index, ((name, X[1:11]), other), good.outputs, good.parameters, good.signature
    )
    error = wrong(tw.Graph.of(tw.concat([tw.Tensor(bad), shard(ADD, 10, 20)])))
    assert error.rule == "shard" and "input x0 is not the region [0:10, 0:2]" in str(error)
    assert "add [0:10, 0:2]" in error.path


def test_another_operator_or_signature_is_named():
    error = wrong(tw.Graph.of(tw.concat([shard(tw.multiply(X, 1.0), 0, 10), shard(ADD, 10, 20)])))
    assert error.rule == "shard" and "no operation of the whole graph is a multiply" in str(error)
    bare = tw.Operation("add", ADD.producer.index, ADD.producer.inputs, ADD.producer.outputs)
    assert wrong(tw.Graph.of(tw.Tensor(bare))).rule == "shard"


def test_the_cause_is_named_not_its_consequence():
    both = tw.exp(ADD)
    whole = tw.Graph.of(both)
    bad = tw.concat([shard(tw.subtract(X, 1.0), 0, 10), shard(ADD, 10, 20)])
    error = wrong(tw.Graph.of(tw.exp(bad)), whole)
    assert "subtract" in error.path


def test_partial_results_must_be_whole_and_of_the_right_monoid():
    total = tw.sum(X, 0)
    whole = tw.Graph.of(total)
    parts = [shard(total, a, b) for a, b in ((0, 5), (5, 20), (5, 10))]

    def combined(reduce, *chosen):
        return tw.Graph.of(reduce(tw.concat([tw.unsqueeze(p, 0) for p in chosen]), 0))

    check_sharding(combined(tw.sum, *parts[:2]), whole)
    assert wrong(combined(tw.sum, parts[0], parts[2]), whole).rule == "shard"
    assert wrong(combined(tw.sum, parts[0], parts[0]), whole).rule == "shard"
    assert wrong(combined(tw.max, *parts[:2]), whole).rule == "shard"
    assert "partial result: [0:5, 0:2] of [0:20, 0:2]" in str(wrong(tw.Graph.of(parts[0]), whole))


def test_sinks_correspond():
    many = wrong(tw.Graph.of(ADD, ADD))
    assert many.rule == "sinks" and str(many).splitlines() == [
        "check_sharding(sharded, whole) [sinks]: 2 sinks stand for 1",
        "  sharded  <Sink float64[20, 2] -> memory>, <Sink float64[20, 2] -> memory>",
        "  whole    <Sink float64[20, 2] -> memory>",
    ]
    assert wrong(tw.Graph.of(tw.Sink(ADD, tw.FileTarget("a.npy", "npy")))).rule == "sinks"
    assert wrong(tw.Graph.of(ADD[:5])).rule == "sinks"


def test_a_lost_sequence_point_is_found():
    before = tw.SequencePoint((tw.negative(X).producer,))
    plain = ADD.producer
    late = tw.Operation(
        plain.operator, plain.index, plain.inputs, plain.outputs, plain.parameters, plain.signature, (before,)
    )
    whole = tw.Graph.of(tw.Tensor(late))
    check_sharding(tw.expand(whole, {late: tw.partition(late, (4, 1))}), whole)
    assert "0 sequence points" in str(wrong(WHOLE, whole))


def test_different_constants_are_told_apart():
    whole = tw.Graph.of(tw.concat([X, tw.full((1, 2), 0.0)]) * 2)
    other = tw.Graph.of(tw.concat([X, tw.full((1, 2), -0.0)]) * 2)
    check_sharding(whole, whole)
    assert wrong(other, whole).rule == "shard"
    assert Box.of((21, 2)) == whole.operations[0].index


def test_operations_of_which_one_is_a_block_of_another_are_told_apart():
    """The same numbers twice, in two lengths: a shard of either is a block of both."""
    x = tw.as_tensor(np.arange(12.0))
    for long, short in ((tw.arange(9) * 2, tw.arange(7) + 2), (tw.tanh(x) * 2, tw.tanh(x[:7]) + 2)):
        for graph in (tw.Graph.of(long, short), tw.Graph.of(short, long)):
            check_sharding(graph, graph)
            cuts = {o: tw.partition(o, [3]) for o in graph.operations}
            check_sharding(tw.expand(graph, cuts), graph)
            swapped = tw.expand(tw.Graph.of(*reversed([s.tensor for s in graph.sinks])), cuts)
            assert not is_sharding(swapped, graph)


def test_a_deep_chain_is_checked_in_time_that_grows_with_its_length():
    y = tw.as_tensor(np.ones(4))
    for k in range(1500):
        y = y + float(k % 7)
    graph = tw.Graph.of(y)
    check_sharding(tw.expand(graph, {o: tw.partition(o, (2,)) for o in graph.operations}), graph)
    with pytest.raises(VerifyError):
        check_sharding(tw.Graph.of(tw.concat([y[:2], y[:2]])), graph)


# ---------------------------------------------------------------------------------------------------------------------
# order, what is observed, and blocks of operations that are blocks themselves


LINE = tw.as_tensor(np.arange(8.0))


def ordered(count, held):
    """An add in shards, a point that waits for some of them, and a product that comes after that point."""
    x = LINE
    first = tw.add(x, 1.0).producer
    whole = tw.SequencePoint((first,))
    late = replace(tw.multiply(x, 2.0).producer, after=(whole,))
    graph = tw.Graph.of(tw.Tensor(late), tw.Tensor(first))
    cut = tw.expand(graph, {first: tw.partition(first, (count,)), late: tw.partition(late, (2,))})
    if held is None:
        return graph, cut
    (point,) = [n for n in cut.nodes() if isinstance(n, tw.SequencePoint) and n not in cut.points]
    short = tw.SequencePoint(tuple(point.before[k] for k in held))
    new = {}
    for node in cut.nodes():
        new[node] = short if node is point else moved(node, new)
    return graph, new[cut]


def test_waiting_for_half_of_the_shards_is_no_sharding():
    graph, cut = ordered(4, None)
    check_sharding(cut, graph)
    assert tw.coalesce(cut) is graph
    check_sharding(ordered(4, (0, 1, 2, 3))[1], graph)
    check_sharding(ordered(4, (3, 1, 0, 2))[1], graph)
    for held in ((0, 1), (0, 1, 2), (0, 0, 2, 3), ()):
        with pytest.raises(VerifyError) as caught:
            check_sharding(ordered(4, held)[1], graph)
        assert "what comes before it is not what comes before the whole operation" in str(caught.value)


def test_what_a_graph_observes_counts():
    x = tw.as_tensor(np.arange(8.0))
    first, other = tw.add(x, 1.0).producer, tw.multiply(x, 2.0).producer
    whole = tw.Graph((tw.SequencePoint((first,)),))
    cut = tw.expand(whole, {first: tw.partition(first, (2,))})
    check_sharding(cut, whole)
    (point,) = cut.points
    for bad, why in (
        (tw.Graph(()), "0 observed points stand for 1"),
        (tw.Graph((tw.SequencePoint(point.before[:1]),)), "does not hold every shard"),
        (tw.Graph((tw.SequencePoint((*point.before, other)),)), "which the whole graph does not hold there"),
        (tw.Graph((point, point)), "2 observed points stand for 1"),
    ):
        assert not is_sharding(bad, whole)
        with pytest.raises(VerifyError, match=why):
            check_sharding(bad, whole)
    assert not is_sharding(whole, tw.Graph((tw.SequencePoint((first, other)),)))


@pytest.mark.parametrize("larger_first", [False, True])
def test_an_operation_that_is_a_block_of_a_larger_one_may_be_cut(larger_first):
    """max(x) beside max(concat(x, z)): each shard of the first is a shard of the second, too."""
    x, z = tw.as_tensor(np.arange(8.0)), tw.as_tensor(-np.arange(8.0))
    small, large = tw.max(x), tw.max(tw.concat([x, z]))
    whole = tw.Graph.of(large, small) if larger_first else tw.Graph.of(small, large)
    for parts in ({small: 2}, {large: 4}, {small: 4, large: 4}, {small: 2, large: 8}):
        cuts = {t.producer: tw.partition(t.producer, (count,)) for t, count in parts.items()}
        for arity in (None, 2):
            cut = tw.expand(whole, cuts, arity=arity)
            check_sharding(cut, whole)
            assert not is_sharding(cut, tw.Graph.of(*(tw.max(t * 2) for t in (small, large))))
    # the same without a reduction, and blocks that overlap
    a, b = tw.exp(x[:6]), tw.exp(x[2:])
    whole = tw.Graph.of(a + 1.0, b * 2.0, tw.exp(x))
    cuts = {o: tw.partition(o, (3,) if o.index.size == 6 else (4,)) for o in whole.operations}
    check_sharding(tw.expand(whole, cuts), whole)


def test_ten_times_the_shards_take_about_ten_times_the_steps(monkeypatch):
    """Recognising is not quadratic: what is read is compared a bounded number of times for each shard."""
    from tileweave.graph.passes import blocks, coalesce, sharding

    counts = []
    for many in (40, 400):
        x = tw.as_tensor(np.zeros(many))
        parts = [tw.add(x[k : k + 1], float(k % 7)) for k in range(many)]
        whole = tw.Graph.of(tw.relu(tw.concat(parts)), tw.max(tw.concat(parts)))
        cuts = {o: tw.partition(o, (many,)) for o in whole.operations if o.index.size == many}
        cut = tw.expand(whole, cuts)
        steps = [0]

        def counted(tensor, box, steps=steps, **options):
            pieces = resolve(tensor, box, **options)
            steps[0] += len(pieces) + 1
            return pieces

        for module in (blocks, coalesce, sharding):
            monkeypatch.setattr(module, "resolve", counted)
        check_sharding(cut, whole)
        assert tw.coalesce(cut) is whole
        counts.append(steps[0])
    assert counts[1] < 14 * counts[0]


def test_blocks_of_one_column_are_found_among_operations_that_read_one_tensor():
    x, y = tw.as_tensor(np.zeros((7, 4))), tw.as_tensor(np.ones((7, 4)))
    woven = tw.interleave([x, y, x], 1)
    parts = [tw.min(woven[:, 4 * k : 4 * k + 4], 1) for k in range(3)]
    whole = tw.Graph.of(*parts)
    for counts in ([2, 4], [1, 2], [2, 3]):
        sharded = tw.expand(whole, {part.producer: tw.partition(part.producer, counts) for part in parts})
        tw.check_sharding(sharded, whole)
