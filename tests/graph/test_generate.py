"""Generators against NumPy and against the published test vectors; parts equal the whole."""

import numpy as np
import pytest
from arrays import same, values
from random_graphs import random_cuts, random_partitions

from tileweave import graph as tw
from tileweave.errors import DtypeError, GraphError
from tileweave.graph.ops.generate import _philox_rounds, philox


@pytest.mark.parametrize(
    "args", [(5,), (2, 9), (2, 11, 3), (5, 0, -2), (0,), (3, 3), (0.0, 1.0, 0.1), (1, 2, 0.3), (7.5,)]
)
@pytest.mark.parametrize("dtype", [None, "float32", "int32"])
def test_arange(args, dtype):
    same(tw.arange(*args, dtype=dtype), np.arange(*args, dtype=dtype))


def test_zeros_ones_and_full():
    same(tw.zeros((2, 3)), np.zeros((2, 3)))
    same(tw.ones((), "int32"), np.ones((), "int32"))
    same(tw.full((2,), True), np.full((2,), True))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0, 0], "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    words = _philox_rounds([np.array([c], np.uint64) for c in counter], *key)
    assert " ".join(f"{int(w[0]):08x}" for w in words) == expected


def test_counters_take_all_their_bits():
    low, high = np.array([5], np.uint64), np.array([5 + 2**32], np.uint64)
    assert [int(w[0]) for w in philox(low, 1)] != [int(w[0]) for w in philox(high, 1)]
    assert [int(w[0]) for w in philox(low, 1)] != [int(w[0]) for w in philox(low, 1 + 2**32)]


GENERATORS = {
    "uniform": lambda shape: tw.uniform(shape, 3),
    "uniform32": lambda shape: tw.uniform(shape, 3, -2.0, 5.0, "float32"),
    "normal": lambda shape: tw.normal(shape, 2**63 + 5),
    "normal32": lambda shape: tw.normal(shape, 4, 1.0, 2.0, "float32"),
    "integers": lambda shape: tw.random_integers(shape, 5, -3, 4),
    "arange": lambda shape: tw.arange(shape[0]),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_any_shard_makes_its_part_alone(name):
    whole = GENERATORS[name]((17, 9, 5))
    (array,) = tw.evaluate([whole])
    operation = next(o for o in tw.Graph.of(whole).operations if not o.inputs)
    rng = np.random.default_rng(0)
    for _ in range(5):
        cuts = random_cuts(rng, operation.index, 4)
        sharded = tw.verify(tw.expand(tw.Graph.of(whole), {operation: cuts}))
        same(sharded.sinks[0].tensor, array)
    same(whole[3:9], array[3:9])


def test_values_depend_on_seed_and_coordinate():
    a, b = tw.uniform((1000,), 1), tw.uniform((1000,), 2)
    (x, y) = tw.evaluate([a, b])
    assert (x != y).all() and len(set(x.tolist())) == 1000
    assert a is tw.uniform((1000,), 1)


def test_distributions():
    n = 200_000
    u, g, k = tw.evaluate([tw.uniform((n,), 7), tw.normal((n,), 8), tw.random_integers((n,), 9, -2, 3)])
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.005 and abs(u.var() - 1 / 12) < 0.002
    assert abs(g.mean()) < 0.01 and abs(g.var() - 1) < 0.02 and abs((g**3).mean()) < 0.05 and np.isfinite(g).all()
    assert set(k.tolist()) == {-2, -1, 0, 1, 2} and abs(np.bincount(k + 2) / n - 0.2).max() < 0.005
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01


def test_a_narrow_uniform_stays_below_one():
    (x,) = tw.evaluate([tw.uniform((300_000,), 1, dtype="float16")])
    assert x.max() < 1 and x.dtype == np.float16


def test_parameters_may_be_tensors():
    mean = np.array([0.0, 100.0])
    (x,) = tw.evaluate([tw.normal((1000, 2), 3, mean, np.array([[1.0, 5.0]]))])
    assert abs(x[:, 0].mean()) < 0.2 and abs(x[:, 1].mean() - 100) < 1 and 3 < x[:, 1].std() < 7
    (u,) = tw.evaluate([tw.uniform((5, 2), 3, mean, mean + 1)])
    assert ((u >= mean) & (u < mean + 1)).all()
    low, high = np.array([-3, 100]), np.array([[2], [200]])
    (k,) = tw.evaluate([tw.random_integers((1000, 2, 2), 5, low, tw.as_tensor(high))])
    assert ((k >= low) & (k < np.maximum(high, low + 1))).all()
    assert set(k[:, 0, 0].tolist()) == {-3, -2, -1, 0, 1} and set(k[:, 0, 1].tolist()) == {100}


@pytest.mark.parametrize("name", ["uniform", "normal", "random_integers"])
def test_distributions_with_tensor_parameters_are_sharded_right(name):
    """Cut along every dimension at random: the parts are those of the whole, and each reads its parameters alone."""
    rng = np.random.default_rng(4)
    kind = "int64" if name == "random_integers" else "float64"
    low, spread = values(rng, (6, 1, 4), kind), np.abs(values(rng, (5, 1), kind)) + 1
    drawn = getattr(tw, name)((6, 5, 4), 11, low, low + spread if name != "normal" else spread)
    (whole,) = tw.evaluate([drawn])
    graph = tw.verify(tw.Graph.of(drawn))
    for _ in range(5):
        sharded = tw.verify(tw.expand(graph, random_partitions(rng, graph)))
        same(sharded.sinks[0].tensor, whole)
    same(drawn[2:5, 1], whole[2:5, 1])


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: tw.arange(0, 5, 0), "division|zero"),
        (lambda: tw.uniform((3,), -1), "seed -1"),
        (lambda: tw.uniform((3,), 1.5), "seed 1.5"),
        (lambda: tw.uniform((-3,), 1), "negative extent"),
        (lambda: tw.random_integers((3,), 1, 5, 5), "5..5 does not fit"),
        (lambda: tw.random_integers((3,), 1, 0, 300, "uint8"), "does not fit uint8"),
        (lambda: tw.normal((3,), 1, np.zeros((2, 3))), "broadcast the shape"),
        (lambda: tw.random_integers((3,), 1, np.zeros((2, 3), int), 4), "broadcast the shape"),
        (lambda: tw.random_integers((3,), 1, 0.5, 4), "not an integer"),
        (lambda: tw.random_integers((3,), 1, 0, 4, "float32"), "not an integer type"),
        (lambda: tw.uniform("ab", 1), "'ab' is not a shape"),
        (lambda: tw.normal((2.5,), 1), "is not a shape"),
        (lambda: tw.arange(0, 1e30), "too many"),
    ],
)
def test_what_makes_no_sense_is_refused(call, problem):
    with pytest.raises(GraphError, match=problem):
        call()


def test_random_floats_are_of_a_floating_type():
    with pytest.raises(DtypeError, match="not a floating type"):
        tw.uniform((3,), 1, dtype="int32")
