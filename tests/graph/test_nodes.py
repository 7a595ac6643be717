"""Interning, identity, pickling, depth and speed of nodes."""

import copy
import gc
import pickle
import threading

import numpy as np
import pytest

from tileweave import graph as tw
from tileweave.errors import GraphError
from tileweave.graph.ir import interned
from tileweave.graph.ir.nodes import ArrayData, children, topological


def chain(length: int, x: tw.Tensor | None = None) -> tw.Tensor:
    y = tw.as_tensor(ONES) if x is None else x
    for k in range(length):
        y = tw.add(y, float(k % 7))
    return y


ONES = np.ones(3)


def test_equal_parts_are_one_object():
    a = tw.as_tensor(ONES)
    assert tw.as_tensor(ONES) is a
    assert tw.add(a, 1.0) is tw.add(a, 1.0)
    assert tw.add(a, 1.0) == tw.add(a, 1.0) and hash(tw.add(a, 1.0)) == hash(tw.add(a, 1.0))
    assert tw.add(a, 1.0) is not tw.add(a, 2.0)
    assert tw.as_tensor(np.ones(3)) is not a  # another array, even with the same values


def test_values_of_different_types_and_bits_stay_apart():
    made = [tw.full((), v, "float64").producer for v in (0.0, -0.0, 1.0)]
    assert len(set(map(id, made))) == 3
    out = tw.TensorType((), "float64")
    nodes = [tw.Selector("full", (), out, (("value", v),)) for v in (1, 1.0, True, -0.0, 0.0, 0, False, float("nan"))]
    assert len(set(map(id, nodes))) == 8
    assert tw.Selector("full", (), out, (("value", float("nan")),)) is nodes[-1]
    nested = [tw.Selector("full", (), out, (("value", (v,)),)) for v in (1, 1.0, True)]
    assert len(set(map(id, nested))) == 3


def test_nodes_that_nobody_holds_are_let_go():
    chain(7)  # its numbers are kept
    gc.collect()
    before = len(interned._TABLE)
    y = chain(100)
    assert len(interned._TABLE) >= before + 200
    del y
    gc.collect()
    assert len(interned._TABLE) <= before + 5


def test_threads_agree_on_one_object():
    x = tw.as_tensor(ONES)
    found = [None] * 8

    def build(k: int) -> None:
        found[k] = [tw.add(x, float(n)) for n in range(200)]

    threads = [threading.Thread(target=build, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(one is other for row in found for one, other in zip(found[0], row, strict=True))


def test_pickle_and_copy_return_the_living_object():
    graph = tw.Graph.of(tw.relu(tw.linear(np.ones((2, 3)), np.ones((3, 4)), np.ones(4))))
    x = tw.relu(tw.full((3,), 1.0))
    assert pickle.loads(pickle.dumps(x)) is x
    assert copy.copy(graph) is graph and copy.deepcopy(graph) is graph


def test_a_pickled_graph_keeps_its_value_elsewhere():
    array = np.arange(6.0).reshape(2, 3)
    y = tw.relu(tw.linear(array, np.ones((3, 4)), np.arange(4.0)) - 3)
    data = pickle.dumps(y)
    (expected,) = tw.evaluate([y])
    del y
    gc.collect()
    np.testing.assert_array_equal(tw.evaluate([pickle.loads(data)])[0], expected)


def test_a_chain_of_ten_thousand_nodes():
    y = chain(10_000)
    graph = tw.Graph.of(y)
    nodes = graph.nodes()
    again = pickle.loads(pickle.dumps(graph))
    assert len(nodes) > 20_000 and len(set(map(id, nodes))) == len(nodes)
    assert len(again.nodes()) == len(nodes)
    assert isinstance(hash(y), int) and "add" in repr(y)


def test_a_chain_of_a_thousand_nodes_is_verified_and_expanded():
    y = chain(1000)
    assert chain(1000) is y
    (value,) = tw.evaluate([y])
    np.testing.assert_array_equal(value, ONES + sum(float(k % 7) for k in range(1000)))
    graph = tw.Graph.of(y)
    assert tw.verify(graph) is graph
    partitions = {o: tw.partition(o, (3,)) for o in graph.operations[:50]}
    assert len(tw.expand(graph, partitions).operations) == 1000 + 100


def test_a_shared_graph_stays_small():
    y = tw.as_tensor(ONES)
    for _ in range(200):
        y = tw.add(y, y)
    assert len(tw.Graph.of(y).operations) == 200
    np.testing.assert_array_equal(tw.evaluate([y])[0], ONES * 2.0**200)


def test_topological_order_has_dependencies_first_and_is_deterministic():
    x = tw.as_tensor(ONES)
    y = tw.add(tw.exp(x), tw.multiply(x, tw.exp(x)))
    nodes = topological([y])
    place = {node: k for k, node in enumerate(nodes)}
    assert all(place[child] < place[node] for node in nodes for child in children(node))
    assert nodes == topological([y])


def test_what_nobody_observes_is_unreachable():
    x = tw.as_tensor(ONES)
    y = tw.exp(x)
    unused = tw.log(y)
    assert unused.producer not in tw.Graph.of(y).operations


def test_types_and_sizes():
    kind = tw.TensorType((3, 4), "int32")
    assert str(kind) == "int32[3, 4]" and kind.size_bytes == 48
    x = tw.as_tensor(np.ones((3, 4)))
    assert x.ndim == 2 and x.size == 12 and len(x) == 3
    assert repr(x) == "<Tensor float64[3, 4] = source>"
    assert repr(tw.exp(x).producer) == "<Operation exp [0:3, 0:4]>"


def test_signatures_tell_costs():
    y = tw.matmul(np.ones((3, 4)), np.ones((4, 5)))
    signature, index = y.producer.signature, y.producer.index
    assert signature.cost("flops", index) == 2 * 3 * 4 * 5
    for dim, extent in enumerate(index.shape):
        assert signature.marginal_cost("flops", index, dim) * extent == signature.cost("flops", index)


def test_sources_without_an_array_are_bound():
    hole = tw.Source(tw.Hole(), tw.TensorType((3,), "float64"), "x")
    y = tw.exp(tw.Tensor(hole))
    np.testing.assert_array_equal(tw.evaluate([y], {hole: np.zeros(3)})[0], np.ones(3))
    with pytest.raises(GraphError, match="source x has no array"):
        tw.evaluate([y])
    with pytest.raises(GraphError, match=r"has shape \(2,\)"):
        tw.evaluate([y], {hole: np.zeros(2)})


def test_array_data_is_compared_by_identity():
    a = np.ones(3)
    assert ArrayData(a) == ArrayData(a) and ArrayData(a) != ArrayData(a.copy())


def test_a_tensor_of_an_array_names_the_function_that_makes_one():
    with pytest.raises(GraphError, match="a ndarray is no producer"):
        tw.Tensor(np.zeros(3))
