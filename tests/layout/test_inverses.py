"""Right and left inverses against all layouts of small cases, and that an answer is found below the bound."""

from __future__ import annotations

from itertools import product as every
from math import prod
from random import Random

import numpy as np
import pytest

from strategies import any_left_inverse, random_layout, values
from tileweave.errors import NoLayout, Undecided
from tileweave.layout import Layout, is_injective, left_inverse, recover, right_inverse, strided

FEW = pytest.mark.parametrize("cases", [80, pytest.param(10_000, marks=pytest.mark.slow)])
MANY = pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])


def is_layout(coords):
    """Whether some layout takes these values, by recovery from the full table."""
    try:
        recover(coords)
    except NoLayout:
        return False
    return True


@MANY
def test_inverses_undo_the_layout(cases):
    rng = Random(14)
    lefts = 0
    for _ in range(cases):
        layout = random_layout(rng, rank=3, extent=4)
        low, _ = layout.bounds()
        start = rng.choice([0, 0, 1, 3])
        layout = Layout(layout.shard, (), start - low)
        mine = values(layout)
        if not start:
            right = right_inverse(layout)
            assert [mine[x] for x in values(right)] == list(range(right.size))
        try:
            left = left_inverse(layout)
        except NoLayout:
            if max(mine) < 24 and len(set(mine)) == len(mine):
                assert not any_left_inverse(mine)
            continue
        lefts += 1
        back = values(left)
        assert [back[y] for y in mine] == list(range(layout.size))
    assert lefts > cases // 10


@FEW
def test_the_right_inverse_is_the_longest(cases):
    rng = Random(15)
    reached = shorter = 0
    while reached < cases:
        layout = random_layout(rng, rank=4, extent=4)
        layout = Layout(layout.shard, (), -layout.bounds()[0])
        mine = values(layout)
        held = {}
        for x, y in enumerate(mine):
            held.setdefault(y, []).append(x)
        end = next(k for k in range(len(mine) + 1) if k not in held)
        found = right_inverse(layout)
        assert [mine[x] for x in values(found)] == list(range(found.size))
        choices = [prod(len(held[k]) for k in range(n)) for n in range(end + 1)]
        if choices[end] > 500 or end < 3:
            continue
        reached += 1
        shorter += found.size < end
        for n in range(found.size + 1, end + 1):
            assert not any(is_layout(list(indices)) for indices in every(*(held[k] for k in range(n))))
    assert shorter > cases // 100


def test_right_inverses_that_run_along_no_single_iter():
    across = strided((3, 4), (2, 1))  # the value 4 is twice 2, not 4 times 1
    assert right_inverse(across) == strided((2, 4), (8, 1))
    assert values(across) == [0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7]
    wide = strided((1 << 30, 1 << 30), (1 << 29, 1))  # beyond 2**59 nobody has looked
    with pytest.raises(Undecided) as caught:
        right_inverse(wide)
    assert caught.value.facts["bound"]
    assert right_inverse(strided((1 << 30, 2, 1 << 30), (1, 0, 1 << 30))).size == 1 << 60


@pytest.mark.parametrize("cases", [150, pytest.param(3_000, marks=pytest.mark.slow)])
def test_left_inverses_of_scattered_values_against_all_layouts(cases):
    rng = Random(20)
    seen = {True: 0, False: 0}
    for _ in range(cases):
        rows = [(rng.randint(2, 6), rng.randint(1, 15)) for _ in range(rng.choice((2, 2, 3)))]
        layout = Layout(rows)
        mine = values(layout)
        if max(mine) > 40 or len(set(mine)) < len(mine):
            continue
        exists = any_left_inverse(mine)
        seen[exists] += 1
        if not exists:
            with pytest.raises(NoLayout):
                left_inverse(layout)
            continue
        back = left_inverse(layout)
        assert [back(y)["m"] for y in mine] == list(range(layout.size)), layout
    assert min(seen.values()) >= cases // 50, seen


HARD = [
    ("no", (3, 3, 4, 4), (119, 8, 174, 2280)),
    ("no", (6, 6, 2), (49, 1612, 63)),
    ("no", (4, 2, 6), (2495, 7, 9)),
    ("yes", (4, 5, 2), (819, 92, 2554)),
    ("yes", (2, 7, 3), (1300, 2618, 2028)),
    ("no", (4, 6, 3), (8, 2086, 3)),
    ("yes", (3, 6, 3), (1381, 1128, 2096)),
    ("yes", (3, 6, 3), (1381 << 40, 1128 << 40, 2096 << 40)),
    ("yes", (2, 2), (3000017, 7)),
    ("yes", (3, 5, 4), (1044472658, 1593724115, 1)),
    ("yes", (5, 3, 2, 4), (11225376, 13302660, 12903990, 3)),
]


@pytest.mark.parametrize(("answer", "shape", "strides"), HARD)
def test_left_inverses_that_were_undecided(answer, shape, strides):
    layout = strided(shape, strides)
    if answer == "no":
        with pytest.raises(NoLayout, match="all were tried"):
            left_inverse(layout)
        return
    back = left_inverse(layout)
    assert [back(y)["m"] for y in layout.table().tolist()] == list(range(layout.size))


@pytest.mark.parametrize("cases", [60, pytest.param(3_000, marks=pytest.mark.slow)])
def test_inverses_are_decided_below_the_bound(cases):
    rng = Random(21)
    found = 0
    for _ in range(cases):
        strides = [rng.choice((rng.randint(1, 12), rng.randint(1, 200), rng.randint(1, 1000))) for _ in range(3)]
        layout = strided([rng.randint(2, 7) for _ in strides], strides)
        try:
            back = left_inverse(layout)
        except NoLayout as error:
            assert "all were tried" in str(error) or not is_injective(layout)
            continue
        found += 1
        assert [back(y)["m"] for y in layout.table().tolist()] == list(range(layout.size)), layout
    assert found > cases // 5


OVERLAPPING = [
    ((7, 6, 6, 6, 4, 4), (4, 1, 2, 37, 10, 3), 240),
    ((6, 3, 6, 6, 5), (2, 12, 0, 1, 1), 36),
    ((2, 3, 4, 6), (0, 0, 1, 1), 8),
    ((4, 5, 4, 7, 5, 6), (29, 2, 1, 7, 9, 0), 96),
    ((1000, 400), (160, 1), 160160),  # 160 of the fast iter by 1000 are 160000
    ((4, 2, 2, 20), (30, 20, 0, 1), 128),  # a step that carries through the iter of stride 0
    ((100, 50, 100), (1, 0, 60), 6000),
]


@pytest.mark.parametrize(("shape", "strides", "length"), OVERLAPPING)
def test_right_inverses_that_were_undecided(shape, strides, length):
    layout = strided(shape, strides)
    found = right_inverse(layout)
    assert found.size == length
    assert np.array_equal(layout.table()[found.table()], np.arange(length))


def test_right_inverses_beside_iters_too_far_to_list():
    layout = Layout(((2, 1), (1 << 40, 1 << 50), (2, 1), (3, 2)))
    found = right_inverse(layout)
    assert [layout(found(k)["m"])["m"] for k in range(found.size)] == list(range(found.size))
    assert found.size == 6
