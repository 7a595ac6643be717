"""What the Axe paper gets wrong or leaves open: one test per erratum, with its counterexample, and the exact answer."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, combinations_with_replacement, product
from math import prod
from random import Random

import numpy as np
import pytest

from strategies import PLAIN, VECTOR, fibres, random_layout, values
from tileweave.errors import LayoutError, NoLayout
from tileweave.layout import (
    Coord,
    Layout,
    axe,
    canonical_key,
    carries,
    compose,
    group,
    is_compact,
    is_injective,
    normalize,
    recover,
    same_map,
    slice_layout,
    strided,
)
from tileweave.layout.axe import parse
from tileweave.layout.core.replicas import absorb, replica_ratio

# What holds.


def test_theorem_a8_a_normal_d_is_recovered_from_its_values():
    rng = Random(1)
    for _ in range(500):
        layout = random_layout(rng, strides=VECTOR)
        table = [Coord(next(iter(f))) for f in fibres(layout)]
        assert recover(table) == normalize(layout)


def test_lemma_c1_the_span_takes_absolute_values_of_strides():
    rng = Random(2)
    for _ in range(200):
        layout = random_layout(rng, copies=2, offsets=(0, 9))
        taken = [dict(t).get("m", 0) for f in fibres(layout) for t in f]
        steps = sum(abs(it.stride["m"]) * (it.extent - 1) for it in (*layout.shard, *layout.replica))
        assert max(taken) - min(taken) == steps == layout.span() - 1


# Section 2.3.


def test_span_is_one_sum_over_axes_of_max_minus_min_plus_one():
    layout = parse("(3:2@a, 2:-5@b) + [2:1@a] + 7@c")
    assert axe.span(layout) == Coord.of({"a": 6, "b": 6})
    assert layout.span("c") == 1  # a value on every axis exists, so no case is empty


def test_definition_2_3_a_set_is_smaller_than_the_replicas_where_they_collide():
    layout = parse("() + [2:1, 2:1]")
    assert len(layout.set_at(0)) == 3
    assert sum(layout.multiset_at(0).values()) == 4
    assert same_map(layout, parse("[3:1]"), "set")
    assert not same_map(layout, parse("[3:1]"), "multiset")


def test_definition_2_2_d0_may_leave_no_iter():
    layout = normalize(parse("(1:5, 1:7) + 3"))
    assert layout.shard == ()
    assert layout.size == 1
    assert layout(0) == Coord.of(3)


def test_definition_2_1_zero_strides_are_iters_without_an_axis():
    layout = parse("(4:0@lane, 2:1)")
    assert layout == parse("(4:0, 2:1)")
    assert layout.axes == ("m",)
    assert values(layout) == [0, 1] * 4
    assert normalize(parse("(2:0, 3:0@a)")) == parse("(6:0)")


# Appendix A.


def test_c1_a_negative_replica_stride_moves_the_offset_down():
    assert normalize(parse("[3:-2]")) == parse("[3:2] - 4")
    assert same_map(parse("[3:-2]"), parse("[3:2] - 4"), "multiset")


def test_c2_absorbs_up_to_and_including_the_extent():
    assert absorb(parse("[2:1, 2:2]").replica) == list(parse("[4:1]").replica)  # q = e
    assert same_map(parse("[2:1, 2:2]"), parse("[4:1]"), "multiset")
    assert len(absorb(parse("[2:1, 2:3]").replica)) == 2  # q > e leaves a hole
    assert len(parse("[2:1, 2:3]").set_at(0)) == 4


def test_proposition_a1_c2_alone_is_not_confluent_and_the_normal_form_is():
    first, second, third = parse("[2:3, 2:6, 3:2]"), parse("[2:3, 6:2]"), parse("[3:2, 4:3]")
    assert fibres(first) == fibres(second) == fibres(third)
    assert normalize(first) == normalize(second) == normalize(third)


def test_the_gap_condition_is_not_needed_for_injective_replicas():
    layout = parse("[2:6, 3:8]")  # 8 > 2 * 6 fails
    assert is_injective(Layout(layout.replica))
    normal = normalize(layout)
    assert fibres(normal) == fibres(layout)
    assert canonical_key(layout) == canonical_key(normal)


def test_replica_equality_needs_no_gap_condition_for_any_small_list():
    seen, keys = {}, {}
    items = [(e, s) for e in (2, 3, 4) for s in range(1, 7)]
    for rank in (1, 2, 3):
        for rows in combinations_with_replacement(items, rank):
            layout = Layout((), rows)
            multiset = frozenset(fibres(layout)[0].items())
            key = canonical_key(layout)
            assert seen.setdefault(multiset, key) == key
            assert keys.setdefault(key, multiset) == multiset


def test_a14_the_set_form_is_unique_on_every_small_set_without_collisions():
    seen = {}
    items = [(e, s) for e in (2, 3, 4) for s in range(1, 7)]
    for rank in (1, 2, 3):
        for rows in combinations(items, rank):
            layout = Layout((), rows)
            fibre = fibres(layout)[0]
            if max(fibre.values()) > 1:
                continue
            canon = axe.canonicalize(layout)
            assert seen.setdefault(frozenset(fibre), canon) == canon
            assert [set(f) for f in fibres(canon)] == [set(fibre)]
    assert len(seen) > 150


def test_the_cyclotomic_exponents_agree_exactly_when_the_ratio_of_factors_does():
    """The factors 1 - z^n stand for the exponents: one for each d dividing es, minus one for each d dividing s."""

    def exponents(rows):
        out = Counter()
        for e, s in rows:
            for d in range(1, e * s + 1):
                out[d] += (e * s % d == 0) - (s % d == 0)
        return {d: k for d, k in out.items() if k}

    rng = Random(3)
    pool = [[(rng.randint(2, 4), rng.randint(1, 6)) for _ in range(rng.randint(0, 3))] for _ in range(80)]
    keys = [(replica_ratio(Layout((), rows).replica)[2], exponents(rows)) for rows in pool]
    assert all((a[0] == b[0]) == (a[1] == b[1]) for a, b in combinations(keys, 2))


def test_lemma_a6_only_proper_divisors_are_probed():
    asked = []

    def f(x):
        asked.append(x)
        return {0: 0, 1: 1, 2: 10, 3: 11}[x]

    assert recover(f, 4) == strided((2, 2), (10, 1))
    assert max(asked) == 3
    assert [p for p, _ in carries(strided((2, 2), (10, 1)).shard)] == [1, 2]


# Grouping.


def test_algorithm_1_fails_on_unit_iters_and_grouping_does_not():
    layout = parse("(1:6, 6:1, 4:8)")
    blocks = group(layout, (1, 2, 12))
    assert [prod(it.extent for it in block) for block in blocks] == [1, 2, 12]
    flat = Layout(tuple(it for block in blocks for it in block))
    assert fibres(flat) == fibres(layout)


# Tiling.


def test_the_example_of_section_3_3_is_a_grid_of_2_by_3_tiles_of_8_by_8():
    whole = axe.tile(parse("(2:3, 3:1)"), (2, 3), parse("(8:8, 8:1)"), (8, 8))
    assert whole == parse("(2:192, 8:8, 3:64, 8:1)")
    table = np.array(values(whole)).reshape(16, 24)
    for i, j in product(range(2), range(3)):
        block = table[8 * i : 8 * i + 8, 8 * j : 8 * j + 8]
        assert (block == (3 * i + j) * 64 + np.arange(64).reshape(8, 8)).all()


def test_algorithm_3_is_unsound_and_tile_of_is_not():
    a, b = parse("(2:4, 2:5)"), parse("(2:4)")
    assert values(axe.tile(parse("(2:1)"), (2,), b, (2,))) != values(a)
    with pytest.raises(NoLayout) as caught:
        axe.tile_of(a, (4,), b, (2,))
    witness = caught.value.witness
    assert [values(a)[x] for x in witness.points] == [v["m"] for v in witness.values]


def test_algorithm_3_is_incomplete_and_tile_of_is_not():
    a, b = parse("(9:1)"), parse("(3:1)")
    assert axe.tile_of(a, (9,), b, (3,)) == parse("(3:1)")
    assert axe.tile(parse("(3:1)"), (3,), b, (3,)) == parse("(3:3, 3:1)")


# Slicing.


def test_algorithm_4_runs_off_the_end_where_a_block_is_whole():
    layout = parse("(4:1@t, 2:4@t)")
    assert slice_layout(layout, (8,), (0,), (8,)) == layout
    assert fibres(slice_layout(layout, (8,), (2,), (2,))) == fibres(layout)[2:4]


def test_algorithm_4_the_capacity_needs_a_digit_to_spare():
    layout = parse("(2:1@a, 3:1@b, 4:1@c)")
    # from 10 on the carry into b passes its end and moves a as well; the printed form has 1@b - 2@c
    assert slice_layout(layout, (24,), (10,), (4,)) == parse("(2:1@a - 2@b - 2@c, 2:1@c) + 2@b + 2@c")
    # where there is a digit to spare, the printed form is right
    assert slice_layout(layout, (24,), (6,), (4,)) == parse("(2:1@b - 2@c, 2:1@c) + 1@b + 2@c")


def test_algorithm_4_a_carry_moves_along_two_axes():
    part = slice_layout(parse("(3:1@a, 4:1@b)"), (12,), (2,), (4,))
    assert part == parse("(2:1@a - 2@b, 2:1@b) + 2@b")


def test_e3_is_sufficient_only():
    part = slice_layout(parse("(4:1@t, 2:4@t)"), (8,), (1,), (4,))
    assert part == parse("(2:1@t, 2:-3@t) + 4@t")


def test_a_box_is_a_layout_exactly_if_each_dimension_is():
    rng = Random(4)
    refused = 0
    for _ in range(500):
        blocks = [[(rng.randint(1, 4), rng.choice(VECTOR)) for _ in range(2)] for _ in range(2)]
        layout = Layout([it for block in blocks for it in block])
        shape = tuple(prod(e for e, _ in block) for block in blocks)
        begin = tuple(rng.randrange(n) for n in shape)
        extent = tuple(rng.randint(1, n - b) for n, b in zip(shape, begin, strict=True))
        base = np.array([Coord(next(iter(f))) for f in fibres(layout)], dtype=object).reshape(shape)
        box = base[begin[0] : begin[0] + extent[0], begin[1] : begin[1] + extent[1]]
        alone = [_is_layout(box[:, 0]), _is_layout(box[0, :])]
        assert _is_layout(box.reshape(-1)) == all(alone)
        try:
            slice_layout(layout, shape, begin, extent)
        except NoLayout:
            refused += 1
            assert not all(alone)
        else:
            assert all(alone)
    assert refused > 30


def _is_layout(coords):
    try:
        recover(list(coords))
    except NoLayout:
        return False
    return True


# Direct sums and scaling.


def test_f3_replicas_and_offset_are_scaled_as_well():
    a, b = parse("(2:1) + [2:2] + 1"), parse("(3:1)")
    made = axe.tile(a, (2,), b, (3,))
    assert made == parse("(2:3, 3:1) + [2:6] + 3")
    kept = axe.direct_sum(parse("(2:3) + [2:2] + 1"), (2,), b, (3,))  # R and O left alone, as printed
    assert not same_map(kept, made)


def test_f4_needs_no_permutation_and_permuting_digits_changes_the_map():
    made = axe.direct_sum(parse("(2:8, 2:2)"), (2, 2), parse("(2:4, 2:1)"), (2, 2))
    assert made == parse("(2:8, 2:4, 2:2, 2:1)")
    assert not same_map(parse("(2:8, 2:2, 2:4, 2:1)"), made)


# Examples.


def test_section_2_2_the_compact_pitch_of_a_32_by_64_shard_is_64():
    printed, compact = parse("(2:1@gpuid, 32:128, 2:2@gpuid, 64:1)"), parse("(2:1@gpuid, 32:64, 2:2@gpuid, 64:1)")
    assert printed.cosize() == 4032
    assert compact.cosize() == 32 * 64
    assert is_injective(printed)
    assert is_injective(compact)


def test_section_2_2_the_tensor_memory_layout_spans_224_columns():
    assert parse("(2:112@Col, 128:1@Lane, 112:1@Col)").span("Col") == 224


def test_appendix_h_128_partitions_hold_k_so_m_is_128_n_512_k_128():
    m, n, k = 128, 512, 128
    a, b, c = parse("(128:1@P, 128:1@F)"), parse("(128:1@P, 512:1@F)"), parse("(128:1@P, 512:1@F)")
    assert axe.admits(a, (k, m))
    assert axe.admits(b, (k, n))
    assert axe.admits(c, (m, n))
    assert {layout.span("P") for layout in (a, b, c)} == {128}


def test_the_chamber_counts_zero_and_negative_strides_as_layouts():
    assert values(strided((2, 3), (0, -1))) == [0, -1, -2, 0, -1, -2]
    assert not is_compact(strided((2, 3), (0, -1)))
    assert is_compact(strided((2, 3), (3, -1)))
    assert strided((4, 8), (1, 4)).cosize() == 32


# The admissibility facts.


def test_stride_check_is_a_divisibility_not_an_order():
    with pytest.raises(NoLayout) as caught:
        compose(strided((4, 3), (10, 1)), strided((4,), (2,)))  # the truth is 0, 2, 11, 20
    assert dict(zip(caught.value.witness.points, caught.value.witness.values, strict=True))[3] == Coord.of(20)


def test_composition_does_not_distribute_over_modes_that_carry():
    a, b = strided((4, 6), (4, 8)), strided((3, 2), (2, 3))  # (6,4):(8,4) o (2,3):(3,2), first mode fastest
    with pytest.raises(NoLayout) as caught:
        compose(a, b)
    assert dict(zip(caught.value.witness.points, caught.value.witness.values, strict=True))[5] == Coord.of(12)
    each = [compose(a, strided((n,), (s,))) for n, s in ((3, 2), (2, 3))]
    assert [str(c) for c in each] == ["(3:16@m)", "(2:24@m)"]


def test_the_divisibility_rule_is_sufficient_and_not_necessary():
    assert compose(strided((2, 2), (12, 8)), strided((2,), (3,))) == strided((2,), (20,))
    for n in (2, 3, 7):
        inner = strided((n,), (1,)) if n == 7 else strided((n,), (2,))
        with_modes = strided((3, 5), (1, 7))
        table = [values(with_modes)[y] for y in values(inner)]
        if _is_layout([Coord.of(v) for v in table]):
            assert values(compose(with_modes, inner)) == table
        else:
            with pytest.raises(NoLayout):
                compose(with_modes, inner)


def test_the_shape_check_is_made():
    with pytest.raises(LayoutError):
        compose(strided((2, 6), (8, 4)), strided((7,), (2,)))
    with pytest.raises(NoLayout) as caught:  # 0, 8, 16, 8, and not three points
        compose(strided((2, 6), (8, 4)), strided((4,), (2,)))
    assert Coord.of(8) in caught.value.witness.values


def test_signs_and_zeros_run_through_every_normal_form():
    rng = Random(6)
    for _ in range(300):
        layout = random_layout(rng, strides=PLAIN, copies=2)
        flipped = Layout(layout.shard, [(it.extent, -1 * it.stride) for it in layout.replica], layout.offset)
        shift = sum(((it.extent - 1) * it.stride for it in layout.replica), Coord())
        back = Layout(flipped.shard, flipped.replica, flipped.offset + shift)
        assert same_map(back, layout)
