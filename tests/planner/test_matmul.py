"""Products of matrices receive no more than the best grid, and meet the lower bound where a grid attains it.

The oracle is an exhaustive search over all grids, ragged ones and idle machines included, written out here. Words are
whole elements: every machine holds at most its equal share of the operands, and ends with one of the result.
"""

import random
from math import ceil, prod

import numpy as np
import pytest

from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.planner import machines, make_plan, simulate
from tileweave.planner.bounds import best_factor_grid, best_grid, grid_words, lower_bound_words, product_of

CUBE, WIDE, DEEP, FLAT = (8192, 8192, 8192), (65536, 8192, 8192), (256, 256, 65536), (4096, 4096, 512)


def source(shape, name):
    return g.Tensor(g.Source(g.Hole(name), g.TensorType(shape, "float32"), name))


def planned(m, n, k, count, **more):
    a, b = source((m, k), "a"), source((k, n), "b")
    place = {a.producer: "balanced", b.producer: "balanced"}
    graph = g.Graph.of(g.matmul(a, b))
    used = machines(count, memory="64GiB", **more)
    return make_plan(graph, used, lambda op, stage: Decision(stage), place=place, objective="words")


def received(m, n, k, grid, count):
    """The words of the machine that receives most, of its blocks of both operands and for its share of the result.

    Owners of a block have equal shares of it; nobody has more of an operand than its part of the whole. What idle
    machines take of the result, the owners of its blocks need not take.
    """
    gm, gn, gk = grid
    rows, columns, depth = (ceil(extent / parts) for extent, parts in zip((m, n, k), grid, strict=True))
    words = rows * depth - min(rows * depth // gn, ceil(m * k / count))
    words += columns * depth - min(columns * depth // gm, ceil(n * k / count))
    if gk == 1:
        return words
    share, idle = ceil(m * n / count), count - prod(grid)
    taken = idle * share // (gm * gn)
    words += (gk - 1) * max(ceil((rows * columns - taken) / gk), min(share, rows * columns))
    return max(words, gk * share) if idle else words


def exhaustive(m, n, k, count):
    """The least words of any grid of at most `count` blocks."""
    return min(
        received(m, n, k, (i, j, l), count)
        for i in range(1, min(m, count) + 1)
        for j in range(1, min(n, count // i) + 1)
        for l in range(1, min(k, count // (i * j)) + 1)
    )


@pytest.mark.parametrize("shape", [CUBE, WIDE, DEEP, FLAT, (100, 7, 33), (5, 3, 2)])
@pytest.mark.parametrize("count", [1, 2, 4, 7, 12, 30])
def test_the_best_grid_is_the_best_of_all(shape, count):
    grid, words = best_grid(*shape, count)
    assert prod(grid) <= count
    assert words == pytest.approx(grid_words(*shape, grid, count)) == pytest.approx(exhaustive(*shape, count))


@pytest.mark.parametrize("shape", [CUBE, WIDE, DEEP, FLAT])
@pytest.mark.parametrize("count", [2, 4, 7, 8, 16, 64, 512, 1000, 1024, 4096])
def test_a_product_receives_no_more_than_the_best_grid(shape, count):
    plan = planned(*shape, count)
    result = simulate(plan)
    words, best = result.words_bytes / 4, best_grid(*shape, count)[1]
    assert words <= 1.01 * best, (plan.steps[0].cuts.grid, best_grid(*shape, count))
    assert words <= 1.01 * best_factor_grid(*shape, count)[1]
    assert result.words_bytes == max(sum(load.moved for load in result.loads))


MANY = [2, 3, 5, 7, 8, 12, 31, 64, 100, 127, 250, 512, 1000, 1024, 2048, 4096]


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 308))])
def test_a_product_of_random_shape_receives_no_more_than_the_best_of_all_grids(seed):
    chance = random.Random(seed)
    m, n, k = (int(2 ** chance.uniform(6, 16.5)) for _ in range(3))
    count = chance.choice(MANY if seed >= 8 else MANY[:12])
    words = simulate(planned(m, n, k, count)).words_bytes / 4
    assert words <= 1.01 * best_grid(m, n, k, count)[1], (m, n, k, count)


@pytest.mark.parametrize("seed", [*range(24), *(pytest.param(s, marks=pytest.mark.slow) for s in range(24, 324))])
def test_a_small_product_receives_no_more_than_the_best_of_all_grids(seed):
    """A machine has a few elements, often one: shares in runs are whole elements, so three of them are allowed."""
    chance = random.Random(seed)
    m, n, k = (int(2 ** chance.uniform(2, 12)) for _ in range(3))
    count = chance.choice([*MANY[:12], chance.randrange(2, 600)])
    words = simulate(planned(m, n, k, count)).words_bytes / 4
    assert words <= max(1.01 * (best := best_grid(m, n, k, count)[1]), best + 3), (m, n, k, count)


RAGGED = [
    (230, 346, 349, 4096),
    (438, 155, 69, 1024),
    (1159, 1126, 2129, 1000),
    (100, 104, 292, 12),
    (193, 318, 73, 1024),  # its grid for shares that come out even is not the best one in whole elements
    (13, 261, 77, 3),  # no sum is cut: only the operands are shared in runs
    (608, 10, 156, 64),  # 16 owners of 390 elements: all have 24 or 25 only where pieces are of one column or two
    (26, 9, 196, 250),  # what sharing in runs saves decides between its grids
    (368, 84, 176, 4096),  # 99 elements for 6 owners: 17 or 16 each, not 17 and 14
    (116, 24, 421, 3000),
    (67286, 89, 78565, 2986),  # ten machines take what 48 parts leave: each has blocks of five
]


@pytest.mark.parametrize("shape", RAGGED)
def test_ragged_blocks_and_idle_machines_are_shared_evenly(shape):
    """Blocks that differ by a row, on grids that leave machines idle: up to 1.11 times the best with boxes alone."""
    words = simulate(planned(*shape)).words_bytes / 4
    assert words <= 1.01 * best_grid(*shape)[1] <= 1.01 * received(*shape[:3], best_grid(*shape)[0], shape[3])


ATTAINED = [(CUBE, 8), (CUBE, 64), (CUBE, 512), (DEEP, 8), (DEEP, 64), (WIDE, 64), (WIDE, 512)]


@pytest.mark.parametrize(("shape", "count"), ATTAINED)
def test_a_product_meets_the_lower_bound_where_a_grid_attains_it(shape, count):
    words = simulate(planned(*shape, count)).words_bytes / 4
    bound = lower_bound_words(*shape, count)
    assert 0.999 * bound <= words <= 1.01 * bound


def test_the_lower_bound_holds_for_every_grid():
    for shape in [CUBE, WIDE, DEEP, FLAT, (300, 200, 100)]:
        for count in (1, 2, 3, 5, 8, 12, 27, 64):
            assert best_grid(*shape, count)[1] >= lower_bound_words(*shape, count) - 2  # held in whole elements


def test_a_bound_with_memory_subtracts_twice_the_memory():
    m, n, k, count, words = 4096, 4096, 4096, 64, 10_000
    assert lower_bound_words(m, n, k, count, words) == 2 * m * n * k / (count * 100) - 2 * words
    assert lower_bound_words(m, n, k, count, 1e12) == lower_bound_words(m, n, k, count)


def test_what_is_a_product_of_two_matrices():
    a, b, c = (source(s, str(s)) for s in [(8, 4), (4, 6), (6,)])
    assert product_of(g.matmul(a, b).producer).shape == (8, 6, 4)
    assert product_of(g.linear(a, b, c).producer).shape == (8, 6, 4)
    assert product_of(g.relu(a).producer) is None
    assert product_of(g.einsum("bij,bjk->bik", source((2, 3, 4), "x"), source((2, 4, 5), "y")).producer) is None


def test_a_large_product_on_machines_with_little_memory_is_planned():
    """65536^2 on 1,024 machines of 64 MiB: 48 GiB of operands and result in 64 GiB."""
    a, b = source((65536, 65536), "a"), source((65536, 65536), "b")
    plan = make_plan(g.Graph.of(g.matmul(a, b)), machines(1024, memory="64MiB"), lambda op, stage: Decision(stage))
    assert max(plan.peak_bytes) <= 64 << 20
    assert plan.flops >= 2 * 65536**3


def test_copies_without_an_operation_are_cut_too():
    """1 GiB through 64 MiB: nothing is computed, so only the sink is cut."""
    x = source((1 << 14, 1 << 14), "x")
    for target, atom in [(g.FileTarget("x.npy", "npy"), None), (g.FileTarget("x.zarr", "zarr"), (1024, 1024))]:
        plan = make_plan(
            g.Graph.of(g.Sink(x, target)),
            machines(1, memory="64MiB"),
            lambda op, stage: Decision(stage),
            lambda sink, atom=atom: atom,
        )
        assert max(plan.peak_bytes) <= 64 << 20
        assert np.prod(plan.steps[0].cuts.grid) >= 16
