"""Damaged documents: each is a graph that can be evaluated, cut and shown, or is refused with the place in the text."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from random_graphs import random_graph, random_partitions

from tileweave import graph as tw
from tileweave.errors import VerifyError
from tileweave.graph import from_json, to_json
from tileweave.graph.ir.svg import svg

Random = np.random.Generator
Path = tuple[str | int, ...]


def of_every_kind() -> list[tw.Graph]:
    """Small graphs of every selector and most operators."""
    x = tw.as_tensor(np.arange(24).reshape(4, 6))
    f = tw.cast(x, np.float64)
    image = tw.unsqueeze(f, (0, 1))
    held = tw.add(x, 1).producer
    late = tw.negative(x).producer
    ordered = tw.Operation(
        late.operator, late.index, late.inputs, late.outputs, late.parameters, late.signature,
        (tw.SequencePoint((held,)),),
    )  # fmt: skip
    results = [
        tw.pad(tw.concat([x[::-1], x[:2]]), [(1, 2), (0, 0)], "reflect"),
        tw.pad(tw.interleave([x, x * 2], 1), [(0, 0), (2, 1)], value=7),
        tw.copies(tw.squeeze(tw.broadcast_to(x[:1], (3, 6))[:1]), 2),
        tw.transpose(x)[1:5:2] + tw.full((), 3, "int64"),
        tw.linear(x, np.ones((6, 2), int), np.ones(2, int)),
        tw.einsum("ij,kj,k->i", x, x, np.arange(4)),
        tw.conv(image, np.ones((2, 1, 2, 3)), stride=(1, 2), dilation=(2, 1), padding=1),
        tw.conv(tw.concat([image, image], 1), np.ones((4, 1, 2, 2)), groups=2),
        tw.max_pool(image, (2, 3), stride=(1, 2)),
        tw.argmax(x, 1),
        tw.softmax(f, 0),
        tw.uniform((4, 3), 5),
        tw.random_integers((5,), 3, -2, 9),
        tw.arange(2, 11, 3),
        tw.where(x > 3, x, -x),
        tw.sum(x, (0, 1)),
        tw.rewrite(tw.Graph.of(tw.relu(x + 1) * x), tw.OPTIMIZATIONS).graph.sinks[0].tensor,
        tw.Tensor(ordered),
    ]
    product, place, spread = tw.matmul(x, tw.transpose(x)), tw.argmax(x, 0), tw.moments(f, 1)
    whole = tw.Graph.of(product, place, *spread)
    parts = {product.producer: (2, 1, 3), place.producer: (2, 3), spread[0].producer: (1, 2)}
    cut = tw.expand(whole, {operation: tw.partition(operation, counts) for operation, counts in parts.items()})
    return [cut, whole, tw.Graph.of(*tw.max_and_sum(f, 0)), *map(tw.Graph.of, results)]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths to everything in a document, but not into arrays that are written as text."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for k, item in enumerate(value):
            yield from leaves(item, (*path, k))


def at(data: Any, path: Path) -> Any:
    for key in path:
        data = data[key]
    return data


VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 5, 7, 1.5, "", "x", "x0", "dim", True, False, None, [], [0], [1, 0], [[0]], {},
    {"float": "nan"}, {"float": "inf"}, "add", "sum", "float32", "int64", "t0", "t3", "bool",
)  # fmt: skip


def mutated(rng: Random, data: Any, paths: list[Path]) -> Any:
    """The document with one or two things changed, removed, doubled, or put in another's place."""
    data = copy.deepcopy(data)
    for _ in range(int(rng.integers(1, 3))):
        path = paths[rng.integers(len(paths))]
        if not path:
            continue
        try:
            parent, key = at(data, path[:-1]), path[-1]
            old = parent[key]
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
        if not isinstance(parent, (dict, list)):
            continue
        how = rng.integers(0, 6)
        if how == 0:
            parent[key] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
        elif how == 1 and isinstance(old, int):
            parent[key] = old + int(rng.choice([-2, -1, 1, 2, 4]))
        elif how == 2:
            del parent[key]
        elif how == 3 and isinstance(parent, list):
            parent.insert(int(rng.integers(0, len(parent) + 1)), copy.deepcopy(old))
        elif how == 4 and isinstance(parent, list) and len(parent) > 1:
            other = int(rng.integers(0, len(parent)))
            parent[key], parent[other] = parent[other], parent[key]
        else:
            donor = paths[rng.integers(len(paths))]
            try:
                parent[key] = copy.deepcopy(at(data, donor)) if len(donor) > 1 else 0
            except (KeyError, IndexError, TypeError):
                parent[key] = None
    return data


def check(text: str, rng: Random) -> bool:
    """Whether a document is a graph; asserts that everything works on it then, and that it is refused well if not."""
    try:
        graph = from_json(text)
    except VerifyError as error:
        assert error.path.startswith("$") and str(error).startswith("from_json(text)"), error
        return False
    assert to_json(from_json(to_json(graph))) == to_json(graph)
    assert str(graph) and str(tw.explain(graph)) and svg(graph, signatures=True)
    bind = {
        node: np.ones(node.type.shape, node.type.dtype)
        for node in graph.nodes()
        if isinstance(node, tw.Source) and not isinstance(node.data, tw.ArrayData)
    }
    with np.errstate(all="ignore"):
        whole = tw.evaluate([sink.tensor for sink in graph.sinks], bind)
        sharded = tw.expand(graph, random_partitions(rng, graph))
        assert tw.is_sharding(sharded, graph)
        tw.coalesce(sharded)
        rewritten = tw.rewrite(sharded, tw.OPTIMIZATIONS).graph
        for made in (sharded, rewritten):
            for got, want in zip(tw.evaluate([s.tensor for s in made.sinks], bind), whole, strict=True):
                assert got.shape == want.shape and got.dtype == want.dtype
                if want.dtype.kind in "biu":
                    np.testing.assert_array_equal(got, want)
                else:
                    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return True


def fuzz(graph: tw.Graph, seeds: range) -> tuple[int, int]:
    """(documents that are graphs, documents that are refused)."""
    data = json.loads(to_json(graph))
    paths = [p for p in leaves(data) if p[:1] in (("nodes",), ("observe",))]
    good = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        text = json.dumps(mutated(rng, data, paths))
        try:
            good += check(text, rng)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return good, len(seeds) - good


def test_damaged_documents_of_every_kind_of_node():
    counts = [fuzz(graph, range(100 * k, 100 * k + 30)) for k, graph in enumerate(of_every_kind())]
    assert sum(good for good, _ in counts) > 20 and sum(refused for _, refused in counts) > 300


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_damaged_documents_of_random_graphs(dtype):
    counts = [
        fuzz(tw.Graph.of(*(v.tensor for v in random_graph(seed, dtype, 3))), range(100 * seed, 100 * seed + 12))
        for seed in range(10)
    ]
    assert sum(good for good, _ in counts) > 4 and sum(refused for _, refused in counts) > 50


@pytest.mark.slow
def test_many_damaged_documents():
    counts = [fuzz(graph, range(10_000 + 1000 * k, 10_300 + 1000 * k)) for k, graph in enumerate(of_every_kind())]
    assert sum(good for good, _ in counts) > 200 and sum(refused for _, refused in counts) > 3000
