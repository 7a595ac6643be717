"""Sharded graphs against whole ones: values, rules, cuts, order."""

import pickle
import time

import numpy as np
import pytest
from arrays import same, values
from random_graphs import close, random_cuts, random_graph, random_partitions

from tileweave import graph as tw
from tileweave.errors import GraphError
from tileweave.graph.passes.shard import (
    index_of_output,
    input_region,
    output_partition,
    shard_operation,
    with_sources,
)
from tileweave.space import Box


def check_sharded(seed: int, dtype: str, steps: int = 8, twice: bool = False) -> int:
    made = random_graph(seed, dtype, steps)
    rng = np.random.default_rng(seed + 10**6)
    graph = tw.verify(tw.Graph.of(*(v.tensor for v in made)))
    whole = tw.evaluate([v.tensor for v in made])
    sharded = tw.verify(tw.expand(graph, random_partitions(rng, graph)))
    if twice:
        sharded = tw.verify(tw.expand(sharded, random_partitions(rng, sharded, 2)))
    for v, got, expected in zip(made, tw.evaluate([s.tensor for s in sharded.sinks]), whole, strict=True):
        close(v, got, expected)
    return len(sharded.operations) - len(graph.operations)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "float32"])
def test_random_graphs_keep_their_value_when_sharded(dtype):
    more = sum(check_sharded(seed, dtype) for seed in range(35))
    assert more > 200


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_shards_may_be_sharded_again(dtype):
    assert sum(check_sharded(seed, dtype, 5, twice=True) for seed in range(500, 510)) > 30


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "float32"])
def test_many_random_graphs_keep_their_value_when_sharded(dtype):
    assert sum(check_sharded(seed, dtype, 10, twice=seed % 4 == 0) for seed in range(1000, 1600)) > 3000


def operations_of_every_kind():
    rng = np.random.default_rng(0)
    x, w, b = values(rng, (7, 5), "int64"), values(rng, (5, 3), "int64"), values(rng, (3,), "int64")
    q = values(rng, (5, 5), "int64")
    return {
        "add": tw.add(x, x[0]),
        "where": tw.where(x > 0, x, 1),
        "matmul": tw.matmul(x, w),
        "batched": tw.matmul(np.stack([x, x]), w),
        "linear": tw.linear(x, w, b),
        "diagonal": tw.einsum("ii->i", q),
        "trace": tw.einsum("ii", q),
        "three": tw.einsum("ij,jk,kl->il", x, w, b.reshape(3, 1)),
        "sum": tw.sum(x, 0),
        "product": tw.product(x, 1),
        "max": tw.max(x),
        "min": tw.min(x, 1),
    }


KINDS = operations_of_every_kind()


@pytest.mark.parametrize("kind", KINDS)
def test_every_legal_dimension_alone(kind):
    tensor = KINDS[kind]
    graph = tw.Graph.of(tensor)
    operation = graph.operations[-1]
    (whole,) = tw.evaluate([tensor])
    for dim, extent in enumerate(operation.index.shape):
        for count in range(1, extent + 1):
            parts = [count if k == dim else 1 for k in range(operation.index.rank)]
            cuts = tw.partition(operation, parts)
            sharded = tw.verify(tw.expand(graph, {operation: cuts}))
            same(sharded.sinks[0].tensor, whole)
            assert count == 1 or sum(o.operator == operation.operator for o in sharded.operations) >= count


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_an_output_are_cut_as_the_index_is(kind):
    tensor = KINDS[kind]
    operation = tw.Graph.of(tensor).operations[-1]
    rng = np.random.default_rng(3)
    for _ in range(5):
        cuts = random_cuts(rng, operation.index)
        out = output_partition(operation, "out", cuts)
        assert out.box == operation.output_types["out"].box
        for box in out:
            index = index_of_output(operation, "out", box)
            assert operation.signature.output("out").cover(index).shape == box.shape
            for name, x in operation.inputs:
                assert x.type.box.contains(input_region(operation, name, index))


def test_linear_over_in_is_partial_products_their_sum_and_the_bias():
    rng = np.random.default_rng(1)
    y = KINDS["linear"]
    operation = y.producer
    sharded = tw.expand(tw.Graph.of(y), {operation: tw.partition(operation, [1, 1, 2])})
    names = [o.operator for o in sharded.operations]
    assert sorted(names) == ["add", "linear", "linear", "sum"]
    partial = next(o for o in sharded.operations if o.operator == "linear")
    assert [name for name, _ in partial.inputs] == ["x", "w"]
    assert rng is not None and partial.index.shape == (7, 3, 3)


def test_a_chain_that_is_cut_alike_is_never_joined_in_between():
    a, b = np.arange(12.0).reshape(6, 2), np.ones(2)
    c = tw.add(a, b)
    d = tw.multiply(c, 2.0)
    cuts = {o: tw.partition(o, (3, 1)) for o in tw.Graph.of(d).operations}
    sharded = tw.expand(tw.Graph.of(d), cuts)
    concats = [n for n in sharded.nodes() if isinstance(n, tw.Selector) and n.kind == "concat"]
    assert len(concats) == 1 and concats[0].out.shape == (6, 2)
    same(sharded.sinks[0].tensor, (a + b) * 2)


def test_a_partition_into_a_million_shards_is_a_small_value():
    x, y = tw.full((4096, 4096), 0.0, "float32"), tw.full((4096, 4096), 0.0, "float32")
    operation = tw.matmul(x, y).producer
    start = time.perf_counter()
    cuts = tw.partition(operation, (100, 100, 100))
    out = output_partition(operation, "out", cuts)
    text = f"{cuts} {out}"
    block = cuts.block(999_999)
    seconds = time.perf_counter() - start
    assert cuts.count == 10**6 and text == "100x100x100 100x100"
    assert block.stop == (4096, 4096, 4096)
    assert len(pickle.dumps(cuts)) < 10_000 and seconds < 0.05


def test_blocks_number_places_and_overlaps_agree_with_enumeration():
    rng = np.random.default_rng(5)
    for _ in range(50):
        box = Box(tuple(rng.integers(-3, 4, 2).tolist()), tuple(rng.integers(1, 7, 2).tolist()))
        cuts = random_cuts(rng, box, 4)
        blocks = list(cuts)
        assert sorted(p for block in blocks for p in block) == sorted(box)
        assert [cuts.block(k) for k in range(cuts.count)] == blocks
        assert [cuts.number(cuts.place(k)) for k in range(cuts.count)] == list(range(cuts.count))
        part = random_cuts(rng, box, 4).block(0)
        expected = {(k, b.intersect(part)) for k, b in enumerate(blocks) if not b.intersect(part).empty}
        assert set(cuts.overlapping(part)) == expected


def test_sequence_points_hold_every_shard_and_shards_keep_what_comes_before():
    first = tw.add(np.arange(6.0), 1.0).producer
    point = tw.SequencePoint((first,))
    x = tw.as_tensor(np.arange(4.0))
    plain = tw.negative(x).producer
    after = tw.Operation(
        plain.operator, plain.index, plain.inputs, plain.outputs, plain.parameters, plain.signature, (point,)
    )
    graph = tw.Graph.of(tw.Tensor(after))
    cuts = {o: tw.partition(o, (2,)) for o in graph.operations}
    assert set(cuts) == {first, after}
    sharded = tw.verify(tw.expand(graph, cuts))
    shards = [o for o in sharded.operations if o.operator == "negative"]
    assert len(shards) == 2
    for shard in shards:
        (before,) = shard.after
        assert [o.index for o in before.before] == [Box((0,), (3,)), Box((3,), (3,))]
    assert all(o is not first for o in sharded.operations)


def test_an_observed_operation_is_cut_even_if_no_tensor_of_it_is_read():
    operation = tw.sum(np.arange(6.0)).producer
    graph = tw.Graph((tw.SequencePoint((operation,)),))
    sharded = tw.verify(tw.expand(graph, {operation: tw.partition(operation, (3,))}))
    assert len([o for o in sharded.operations if o.index.shape == (2,)]) == 3


def test_what_cannot_be_cut_is_refused():
    operation = tw.add(np.ones((4, 2)), 1.0).producer
    bare = tw.Operation(operation.operator, operation.index, operation.inputs, operation.outputs)
    with pytest.raises(GraphError, match="no signature"):
        tw.partition(bare, (2, 1))
    with pytest.raises(GraphError, match="no signature"):
        shard_operation(bare, Box((0, 0), (2, 2)))
    with pytest.raises(GraphError, match="no signature"):
        tw.expand(tw.Graph.of(tw.Tensor(bare)), {bare: tw.Partition(((0, 2, 4), (0, 2)))})
    with pytest.raises(GraphError, match="5 parts do not fit extent 4"):
        tw.partition(operation, (5, 1))
    with pytest.raises(GraphError, match="do not fit an index of rank 2"):
        tw.partition(operation, (2,))
    with pytest.raises(GraphError, match="cuts do not fit the index"):
        tw.expand(tw.Graph.of(tw.Tensor(operation)), {operation: tw.Partition(((0, 3), (0, 2)))})


def test_empty_operations_stay_whole_and_keep_their_value():
    x = np.empty((0, 3))
    for tensor in (tw.add(x, 1.0), tw.sum(x, 0), tw.matmul(x, np.ones((3, 2)))):
        operation = tw.Graph.of(tensor).operations[-1]
        cuts = tw.partition(operation, [1 if n == 0 else min(n, 2) for n in operation.index.shape])
        sharded = tw.verify(tw.expand(tw.Graph.of(tensor), {operation: cuts}))
        same(sharded.sinks[0].tensor, tw.evaluate([tensor])[0])


@pytest.mark.parametrize("arity", [2, 3, 7, None])
def test_partial_results_combine_in_trees_of_any_arity(arity):
    rng = np.random.default_rng(1)
    x, w, b = values(rng, (3, 13), "int64"), values(rng, (13, 4), "int64"), values(rng, (4,), "int64")
    for whole in (tw.linear(x, w, b), tw.matmul(x, w), tw.max(x, 1), tw.sum(w)):
        graph = tw.Graph.of(whole)
        (operation,) = graph.operations
        parts = [min(5, n) if k in operation.signature.monoids else 1 for k, n in enumerate(operation.index.shape)]
        sharded = tw.verify(tw.expand(graph, {operation: tw.partition(operation, parts)}, arity=arity))
        same(sharded.sinks[0].tensor, tw.evaluate([whole])[0])
        tw.check_sharding(sharded, graph)
        assert tw.coalesce(sharded) is graph
        stacks = [
            o.input("x").shape[0] for o in sharded.operations if "axes" in dict(o.parameters) and o.index.rank > 2
        ]
        assert all(n <= (arity or 5) for n in stacks)


def test_an_arity_below_two_is_refused():
    with pytest.raises(GraphError, match="arity 1"):
        tw.expand(tw.Graph.of(tw.add(np.ones(3), 1.0)), {}, arity=1)


@pytest.mark.parametrize("seed", range(12))
def test_a_graph_that_reads_other_sources_has_the_order_of_its_nodes(seed):
    graph = tw.Graph.of(*(value.tensor for value in random_graph(seed, "float64")))
    sources = [node for node in graph.nodes() if isinstance(node, tw.Source)]
    holes = {one: tw.Source(tw.Hole(str(k % 2)), one.type) for k, one in enumerate(sources)}
    made = with_sources(graph, holes)
    assert made.nodes() == tw.topological([made])
    assert {node for node in made.nodes() if isinstance(node, tw.Source)} == set(holes.values())
