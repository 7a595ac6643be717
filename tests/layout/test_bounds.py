"""Questions about layouts of few points are decided: a hunt for `Undecided` where every point could be listed."""

from random import Random

import pytest

from tileweave.errors import NoLayout
from tileweave.layout import (
    Layout,
    axe,
    collision,
    complement,
    compose,
    cute,
    holders,
    image,
    is_contiguous,
    is_injective,
    same_map,
    slice_pieces,
)

EXTENTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 25, 31, 64, 100]


def random_iters(rng, most, count, signs=(1, 1, 1, -1)):
    """Up to so many iters of at most so many points together, of strides that nest, overlap, repeat or are zero."""
    out, points = [], 1
    for _ in range(count):
        extent = rng.choice([*EXTENTS, rng.randint(2, 400)])
        if points * extent > most:
            break
        points *= extent
        stride = rng.choice(
            [0, 1, 2, 3, 4, 7, 8, 27, 64, rng.randint(1, 3000), rng.randint(1, 10**5), 1 << rng.randint(0, 40)]
        )
        out.append((extent, {rng.choice("mmmmmmab"): stride * rng.choice(signs)}))
    return tuple(out), points


def decided(seed):
    """Asks every question about random layouts; a refusal is an answer, `Undecided` is none."""
    rng = Random(seed)
    shard, points = random_iters(rng, rng.choice([1 << 6, 1 << 9, 1 << 13]), rng.randint(1, 6))
    replica, _ = random_iters(rng, max(2, min(1 << 9, (1 << 20) // points)), rng.choice([0, 0, 1, 2, 3]))
    layout = Layout(shard, replica)
    flat = Layout(tuple((n, sum(s.values())) for n, s in shard))
    inner = Layout(tuple((n, sum(s.values())) for n, s in random_iters(rng, 1 << 10, 3, signs=(1,))[0]))
    outer = Layout(((inner.cosize() // flat.size + 1, 7), *((it.extent, it.stride) for it in flat.shard)))
    begin = rng.randrange(flat.size)
    box = (flat.size,), (begin,), (rng.randint(1, flat.size - begin),)
    assert is_injective(layout) == (collision(layout) is None)
    assert holders(layout, layout(rng.randrange(layout.size)))
    assert len(image(flat)) <= flat.size
    assert same_map(layout, axe.canonicalize(layout)) and same_map(layout, axe.canonicalize(layout, "set"), "set")
    assert is_contiguous(flat) in (True, False) and slice_pieces(flat, *box).pieces
    for ask in (
        lambda: complement(flat, rng.choice([flat.size, rng.randint(1, 1 << 20)])),
        lambda: compose(outer, inner),
        lambda: cute.composition(cute.from_index_map(flat), cute.from_index_map(inner)),
    ):
        try:
            ask()
        except NoLayout as refusal:
            assert refusal.witness.condition


@pytest.mark.parametrize("seed", range(40))
def test_a_few_random_layouts_are_decided(seed):
    decided(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_random_layouts_are_decided(part):
    for seed in range(1000 * part + 40, 1000 * part + 440):
        decided(seed)
