"""The decision kernel against enumeration: normal forms, equality, recovery, collisions, holders, images."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given

from strategies import PLAIN, VECTOR, fibres, layouts, random_layout, values
from tileweave.errors import LayoutError, NoLayout, Undecided
from tileweave.layout import (
    BOUND,
    Coord,
    Layout,
    canonical_key,
    carries,
    collision,
    from_carries,
    holders,
    image,
    is_compact,
    is_contiguous,
    is_injective,
    normalize,
    recover,
    same_map,
    strided,
)
from tileweave.layout.core.checks import Witness
from tileweave.layout.core.replicas import factor_multiset
from tileweave.layout.core.rows import prefixes, window
from tileweave.layout.core.symbolic import divisors, factorize

MANY = pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])


def column_table(layout):
    """The table as recover takes it, by axis."""
    table = layout.table()
    return table if isinstance(table, dict) else {layout.axes[0]: table}


# Normal forms and equality.


@given(layouts(copies=3, max_size=24))
def test_the_normal_form_keeps_the_map_and_is_a_fixed_point(layout):
    normal = normalize(layout)
    assert fibres(normal) == fibres(layout)
    assert normalize(normal) == normal
    assert len(normal.replica) <= max(len(layout.replica), 0)
    assert all(it.extent > 1 for it in (*normal.shard, *normal.replica))


@MANY
def test_theorem_a8_equal_maps_have_equal_normal_d_and_recovery_finds_it(cases):
    rng = Random(8)
    seen: dict[object, Layout] = {}
    for _ in range(cases):
        layout = random_layout(rng, strides=VECTOR, offsets=(0, 3, {"lane": -1}))
        normal = normalize(layout)
        key = (tuple(tuple(f.items()) for f in fibres(layout)),)
        assert seen.setdefault(key, normal) == normal
        assert recover(column_table(layout)) == normal
        assert recover(layout, layout.size) == normal
        assert from_carries(layout.size, carries(normal.shard)) == normal.shard


@MANY
def test_same_map_and_keys_agree_with_enumerated_fibres(cases):
    rng = Random(3)
    pool = [Layout((), _copies(rng), rng.choice([0, 1, 3, {"lane": 1}])) for _ in range(cases)]
    by_multiset, by_set = {}, {}
    for layout in pool:
        fibre = fibres(layout)[0]
        multiset, points = frozenset(fibre.items()), frozenset(fibre)
        assert by_multiset.setdefault(multiset, canonical_key(layout)) == canonical_key(layout)
        assert by_set.setdefault(points, canonical_key(layout, "set")) == canonical_key(layout, "set")
    assert len(set(by_multiset.values())) == len(by_multiset)
    assert len(set(by_set.values())) == len(by_set)
    for _ in range(cases):
        a, b = rng.choice(pool), rng.choice(pool)
        assert same_map(a, b) == (fibres(a) == fibres(b))
        assert same_map(a, b, "set") == (set(fibres(a)[0]) == set(fibres(b)[0]))


def _copies(rng):
    return [(rng.randint(1, 4), rng.choice([0, 1, 2, 3, 4, 6, -1, -2, *VECTOR[-6:]])) for _ in range(rng.randint(0, 3))]


def test_same_map_sees_sizes_offsets_and_signs():
    a = strided((2, 3), (3, 1))
    assert same_map(a, strided((6,), (1,)))
    assert not same_map(a, strided((6,), (1,), 1))
    assert not same_map(a, strided((7,), (1,)))
    assert same_map(Layout((), ((3, -2),), 4), Layout((), ((3, 2),)))
    with pytest.raises(LayoutError, match="no replica semantics"):
        same_map(a, a, "list")


def test_set_equality_past_the_bound_is_undecided_and_says_the_bound():
    a = Layout((), ((1024, 5), (1024, 7), (1024, 11), (1024, 13)))
    b = Layout((), ((1024, 5), (1024, 7), (1024, 11), (1025, 13)))
    assert not same_map(a, b)
    assert same_map(a, a, "set")
    with pytest.raises(Undecided) as caught:
        same_map(a, b, "set")
    assert caught.value.facts["bound"] == BOUND


# Recovery.


@MANY
def test_recovery_of_any_table_is_right_or_refuted_by_its_witness(cases):
    rng = Random(5)
    refused = 0
    for _ in range(cases):
        size = rng.choice([1, 2, 3, 4, 6, 8, 9, 12])
        table = [rng.randint(0, 2) * x + rng.choice([0, 0, 0, 1]) for x in range(size)]
        try:
            found = recover(table)
        except NoLayout as error:
            refused += 1
            witness = error.witness
            assert isinstance(witness, Witness)
            assert [Coord.of(table[x]) for x in witness.points] == list(witness.values)
            assert not _some_layout_takes(table, size)
        else:
            assert values(found) == table
    assert 0 < refused < cases


def _some_layout_takes(table, size):
    """Brute force: for every ordered factorisation of size, the strides are forced by the unit steps."""

    def factorisations(n):
        yield ()
        for d in range(2, n + 1):
            if n % d == 0:
                for rest in factorisations(n // d):
                    yield (d, *rest)

    for extents in factorisations(size):
        if np.prod(extents, dtype=int) != size:
            continue
        strides, weight = [], 1
        for e in reversed(extents):
            strides.append(table[weight] - table[0])
            weight *= e
        guess = Layout(tuple(zip(extents, strides[::-1], strict=True)), (), table[0])
        if values(guess) == table:
            return True
    return False


def test_recovery_of_functions_below_and_beyond_the_bound():
    assert recover(lambda x: 3 * (x % 4) + x // 4, 12) == strided((3, 4), (1, 3))
    with pytest.raises(NoLayout):
        recover(lambda x: x * x, 2**40)
    with pytest.raises(Undecided) as caught:
        recover(lambda x: 3 * x, 2**40)
    assert caught.value.bound == BOUND
    assert recover(strided((2**30, 2**30), (2**30, 1))) == strided((2**60,), (1,))


@pytest.mark.parametrize(
    ("f", "extent", "text"),
    [
        (lambda x: x, None, "extent None is not positive"),
        (lambda x: x, 0, "extent 0 is not positive"),
        ([], None, "not one non-empty list"),
        (np.zeros((2, 2), int), None, "not one non-empty list"),
        (np.zeros(4), None, "not one non-empty list"),
        ([1, 2.5], None, "2.5 is not a coordinate"),
        ([1, 2], 3, "extent 3 is not the table's length 2"),
        (strided((4,), (1,)), 5, "extent 5 is not the layout's size 4"),
    ],
)
def test_recovery_names_bad_input(f, extent, text):
    with pytest.raises(LayoutError, match=text.replace(".", r"\.")):
        recover(f, extent)


@MANY
def test_windows_are_decided_as_their_tables_are(cases):
    rng = Random(11)
    for _ in range(cases):
        layout = random_layout(rng, strides=VECTOR)
        start = rng.randrange(layout.size)
        extent = rng.randint(1, layout.size - start)
        found = window(carries(layout.shard), start, extent)
        part = {axis: column[start : start + extent] for axis, column in column_table(layout).items()}
        try:
            want = recover(part)
        except NoLayout:
            assert isinstance(found, Witness)
        else:
            assert found == [(it.extent, it.stride) for it in reversed(want.shard)]


def test_the_lengths_of_windows_that_are_layouts_are_known_at_once():
    rng = Random(12)
    for _ in range(200):
        layout = random_layout(rng, strides=VECTOR)
        start = rng.randrange(layout.size)
        most = layout.size - start
        levels = carries(layout.shard)
        known = {t for step, low, high in prefixes(levels, start, most) for t in range(low + step, high + 1, step)}
        assert known == {t for t in range(1, most + 1) if not isinstance(window(levels, start, t), Witness)}


def test_a_window_of_a_huge_layout_takes_no_time():
    levels = carries(strided((2**20, 2**20, 2**20), (1, 2**40, 2**20)).shard)
    assert isinstance(window(levels, 2**40 - 12345, 2**41), Witness)
    assert not isinstance(window(levels, 2**40 - 2**19, 2**20), Witness)


# Collisions, holders, images.


@MANY
def test_injectivity_contiguity_image_and_holders_agree_with_enumeration(cases):
    rng = Random(2)
    for _ in range(cases):
        layout = random_layout(rng, strides=VECTOR, rank=3, extent=4, copies=1, offsets=(0, 5, {"reg": 1}))
        sets = [set(f) for f in fibres(layout)]
        whole = set().union(*sets)
        clash = any(sets[i] & sets[j] for i in range(len(sets)) for j in range(i))
        pair = collision(layout)
        assert (pair is not None) == clash == (not is_injective(layout)) == (not is_compact(layout))
        if pair:
            assert pair[0] < pair[1]
            assert sets[pair[0]] & sets[pair[1]]
        wanted = {((("m", v),) if v else ()) for v in range(layout.size)}
        assert is_contiguous(layout) == (not clash and whole == wanted)
        found = image(layout)
        columns = found if isinstance(found, dict) else {layout.axes[0]: found}
        rows = list(zip(*(columns[axis].tolist() for axis in layout.axes), strict=True))
        assert rows == sorted(set(rows))
        assert {tuple((a, v) for a, v in zip(layout.axes, row, strict=True) if v) for row in rows} == whole
        for terms in [*list(whole)[:4], (("m", 7),), (("other", 1),)]:
            want = tuple(x for x, s in enumerate(sets) if terms in s)
            assert holders(layout, Coord(terms)) == want


@pytest.mark.parametrize(
    ("layout", "injective"),
    [
        (strided((2**20, 2**20, 2**20), (1, 2**20, 2**40)), True),
        (strided((2**30, 2**29), (2, 3)), False),
        (strided((2**29, 2), (2, 2**30 + 1)), True),
        (strided((1000, 1000, 1000), (7, 1001, 99991)), False),
        (strided((2,) * 40, [3**k for k in range(40)]), True),
        (strided((4,) * 20, [3**k for k in range(20)]), False),
        (strided((2,) * 12, [2**12 + 2**k for k in range(12)]), True),
        (Layout(((2**20, {"a": 1}), (2**20, {"a": 1, "b": 1}), (2**20, {"b": 2**20}))), True),
    ],
)
def test_injectivity_of_large_layouts_is_exact_and_quick(layout, injective):
    pair = collision(layout)
    assert (pair is None) == injective
    if pair:
        assert layout(pair[0]) == layout(pair[1])


def test_a_search_past_its_bound_says_so(monkeypatch):
    monkeypatch.setattr("tileweave.layout.core.search.QUICK", 1 << 12)
    monkeypatch.setattr("tileweave.layout.core.search.BOUND", 1 << 12)
    rng = Random(4)
    hard = strided((2,) * 60, [rng.randrange(2**40, 2**41) for _ in range(60)])
    with pytest.raises(Undecided) as caught:
        is_injective(hard)
    assert caught.value.bound == 1 << 12
    with pytest.raises(Undecided):
        image(hard)
    with pytest.raises(Undecided):
        holders(hard, hard(2**59 + 12345678))


def test_contiguous_layouts_of_any_size_need_no_search():
    assert is_contiguous(strided((2**20, 2**20, 2**20), (2**20, 1, 2**40)))
    assert is_contiguous(strided((8, 4), (-4, 1), 28))
    assert not is_contiguous(strided((8, 4), (-4, 1), 27))
    assert not is_contiguous(strided((2, 2), (1, 1)))
    assert not is_contiguous(Layout(((4, {"lane": 1}),)))
    assert is_contiguous(Layout(((4, {"lane": 1}),)), "lane")


# Whole numbers and multisets.


def test_factors_and_divisors_multiply_back():
    rng = Random(6)
    for n in [1, 2, 360, 2**60, (2**31 - 1) * (2**29 - 3), 2**61 - 1, *(rng.randrange(1, 10**6) for _ in range(200))]:
        product = 1
        for p, k in factorize(n).items():
            product *= p**k
        assert product == n
    for n in range(1, 200):
        assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]


@MANY
def test_multisets_factor_into_replicas_exactly_when_they_can(cases):
    rng = Random(9)
    for _ in range(cases):
        layout = Layout((), normalize(Layout((), _copies(rng))).replica)
        points = Counter({Coord(terms): k for terms, k in fibres(layout)[0].items()})
        found = factor_multiset(points)
        assert found is not None
        assert same_map(Layout((), tuple(found)), layout)
    assert factor_multiset(Counter({Coord(): 1, Coord.of(1): 2})) is None
    assert factor_multiset(Counter({Coord(): 1, Coord.of(1): 1, Coord.of(3): 1})) is None


def test_strides_of_the_strategies_cover_both_signs_and_zero():
    assert min(PLAIN) < 0 == min(abs(s) for s in PLAIN)
