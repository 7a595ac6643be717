"""Axe's names and examples: sections 2.2, 3.1, 3.3, 3.4 and appendices F and G, each checked point by point."""

from __future__ import annotations

from collections import Counter
from math import prod
from random import Random

import numpy as np
import pytest

from strategies import VECTOR, fibres, random_layout
from tileweave.errors import LayoutError, NoLayout
from tileweave.index import symbol
from tileweave.layout import axe, is_contiguous, is_injective
from tileweave.layout.axe import Coord, Iter, Layout

MANY = pytest.mark.parametrize("cases", [300, pytest.param(10_000, marks=pytest.mark.slow)])


def held(layout, shape):
    """A dictionary from physical coordinate (as a dict's items) to the logical coordinates it holds."""
    out = {}
    for x, fibre in enumerate(fibres(layout)):
        for terms in fibre:
            out.setdefault(terms, []).append(tuple(int(i) for i in np.unravel_index(x, shape)))
    return out


@MANY
def test_canonical_forms_keep_the_set_and_are_unique_where_replicas_do_not_collide(cases):
    rng = Random(1)
    for _ in range(cases):
        layout = random_layout(rng, strides=VECTOR, rank=2, copies=3)
        for how in ("set", "multiset"):
            canon = axe.canonicalize(layout, how)
            assert axe.canonicalize(canon, how) == canon
            assert axe.same_map(canon, layout, how)
            if how == "set":
                assert [set(f) for f in fibres(canon)] == [set(f) for f in fibres(layout)]
            else:
                assert fibres(canon) == fibres(layout)


def test_the_tensor_core_tile_of_section_2_2():
    tile = axe.parse("(8:4@lane, 2:1@warp, 4:1@lane, 2:1@reg) + [2:4@warp] + 5@warp")
    assert axe.admits(tile, (8, 16))
    assert not axe.admits(tile, (8, 8))
    where = held(tile, (8, 16))
    assert {dict(terms).get("warp", 0) for terms in where} == {5, 6, 9, 10}
    assert {dict(terms).get("lane", 0) for terms in where} == set(range(32))
    assert all(len(elements) == 1 for elements in where.values())
    assert is_injective(tile)
    i, j = 3, 13  # row 3, column 13: warp 1 of the two, lane 4*3 + 2, register 1
    assert tile.set_at(i * 16 + j) == {Coord.of({"lane": 14, "warp": w, "reg": 1}) for w in (6, 10)}
    assert axe.holders(tile, {"lane": 14, "warp": 10, "reg": 1}) == (i * 16 + j,)


def test_the_mesh_examples_of_section_2_2():
    full = axe.parse("(2:1@gpuid, 32:128, 2:2@gpuid, 64:1)")
    assert axe.admits(full, (64, 128))
    for (i, j), gpu in {(0, 0): 0, (32, 0): 1, (0, 64): 2, (63, 127): 3}.items():
        assert full.at((i, j), (64, 128))["gpuid"] == gpu
    # the printed pitch of 128 leaves holes in a 32 x 64 shard; 64 is the compact one
    assert full.cosize() == 31 * 128 + 64
    assert axe.parse("(2:1@gpuid, 32:64, 2:2@gpuid, 64:1)").cosize() == 32 * 64
    shard = axe.parse("(2:1@gpuid, 32:128, 128:1) + [2:2@gpuid]")
    where = held(shard, (64, 128))
    assert {dict(t).get("gpuid", 0) for t, e in where.items() if e[0][0] < 32} == {0, 2}
    assert {dict(t).get("gpuid", 0) for t, e in where.items() if e[0][0] >= 32} == {1, 3}


def test_the_scratchpad_and_tensor_memory_examples_of_section_2_2():
    pad = axe.parse("(2:512@F, 128:1@P, 512:1@F)")
    assert axe.admits(pad, (256, 512))
    assert is_injective(pad)
    assert pad.at((200, 7), (256, 512)) == Coord.of({"F": 519, "P": 72})
    tmem = axe.parse("(2:112@Col, 128:1@Lane, 112:1@Col)")
    assert axe.span(tmem) == Coord.of({"Col": 224, "Lane": 128})  # 224 columns, not 256
    assert axe.admits(tmem, (256, 112))


def test_the_block_layout_and_its_slice_of_section_3_3():
    grid, tile = axe.parse("(2:3, 3:1)"), axe.parse("(8:8, 8:1)")
    whole = axe.tile(grid, (2, 3), tile, (8, 8))
    assert whole == axe.parse("(2:192, 8:8, 3:64, 8:1)")
    assert is_contiguous(whole)
    part = axe.slice(whole, (16, 24), [(0, 8), (8, 24)])
    assert axe.same_map(part, axe.parse("(1:192, 8:8, 2:64, 8:1) + 64"))
    back = axe.tile_of(whole, (16, 24), tile, (8, 8))
    assert axe.same_map(back, grid)


def test_both_views_of_the_copy_in_section_3_1():
    source = axe.parse("(32:128, 128:1)")
    region = axe.slice(source, (32, 128), [(16, 32), (64, 128)])
    work = axe.parse("(16:128, 8:8, 2:4, 4:1) + 2112")
    assert axe.same_map(region, work)
    # thread-local view: binding the first two loops leaves two vectors of four per thread
    for tx in range(128):
        mine = axe.bind(work, (tx // 8, tx % 8), (16, 8))
        assert mine.offset == Coord.of((tx // 8) * 128 + (tx % 8) * 8 + 2112)
        assert axe.same_map(Layout(mine.shard), axe.parse("(2:4, 4:1)"))
    # collective view: thread i holds eight neighbours of row i/8, from column (i mod 8) * 8
    local = axe.parse("(16:8@tx, 8:1@tx, 8:1@reg)")
    for tx in range(128):
        for reg in range(8):
            (x,) = axe.holders(local, {"tx": tx, "reg": reg})
            assert divmod(x, 64) == (tx // 8, tx % 8 * 8 + reg)
            assert region(x) == axe.bind(work, (tx // 8, tx % 8), (16, 8))(reg)


def test_the_distributed_tensor_of_figure_8():
    partial = axe.parse("(4:1@gpuid, 64:64, 64:1)")
    result = axe.parse("(4:1@gpuid, 16:64, 64:1)")
    assert axe.admits(partial, (4, 64, 64))
    assert axe.admits(result, (64, 64))
    assert [partial.at((k, 0, 0), (4, 64, 64))["gpuid"] for k in range(4)] == [0, 1, 2, 3]
    assert result.at((16, 0), (64, 64)) == Coord.of({"gpuid": 1})


def test_the_tma_dispatch_of_section_3_4_step_by_step():
    # a 128 x 256 half-precision tile in shared memory, stored as 8 x 64 atoms (128 B rows), of a 512 x 1024 array
    rows, columns, atom = 128, 256, (8, 64)
    intra = axe.parse("(8:64, 64:1)")
    outer = axe.parse("(16:1, 4:16)")  # atoms run down the rows first
    shared = axe.tile(outer, (16, 4), intra, atom)
    found = axe.tile_of(shared, (rows, columns), intra, atom)
    assert axe.same_map(found, outer)
    assert [int(found(k)["m"]) for k in range(4)] == [0, 16, 32, 48]
    glob = axe.slice(axe.parse("(512:1024, 1024:1)"), (512, 1024), [(128, 256), (256, 512)])
    blocks = axe.group(glob, (rows, columns))
    assert [[str(it) for it in block] for block in blocks] == [["128:1024@m"], ["256:1@m"]]
    # the atom is a suffix of each group, so the array is a direct sum over one atom
    one = axe.slice(glob, (rows, columns), [(0, 8), (0, 64)])
    rest = axe.direct_sum_of(glob, (rows, columns), Layout(one.shard), atom)
    assert axe.same_map(axe.direct_sum(rest, (16, 4), Layout(one.shard), atom), glob)
    # every atom copies the same elements on both sides
    for k in range(64):
        start = axe.parse("(16:8192, 4:64)")(k)["m"] + glob.offset["m"]
        for y in (0, 63, 64, 511):
            x = (k // 4 * 8 + y // 64) * columns + k % 4 * 64 + y % 64
            assert glob(x)["m"] == start + one(y)["m"] - one.offset["m"]
            assert shared(x)["m"] == found(k)["m"] * 512 + y


def test_the_direct_sum_of_appendix_f_is_contiguous_and_no_tiling_is():
    a, b = axe.parse("(2:8, 2:2)"), axe.parse("(2:4, 2:1)")
    whole = axe.direct_sum(a, (2, 2), b, (2, 2))
    assert whole == axe.parse("(2:8, 2:4, 2:2, 2:1)")  # F.2's interleaving is already in order
    assert axe.canonicalize(whole) == axe.parse("(16:1)")
    assert axe.span(b) == Coord.of(6)
    with pytest.raises(NoLayout) as caught:
        axe.tile_of(axe.parse("(16:1)"), (4, 4), b, (2, 2))
    assert caught.value.witness.condition
    assert axe.same_map(axe.direct_sum_of(axe.parse("(16:1)"), (4, 4), b, (2, 2)), a)


def test_scaling_the_outer_layout_by_spans_turns_sums_into_tiles():
    rng = Random(3)
    for _ in range(200):
        a, b = (random_layout(rng, strides=VECTOR, rank=2, extent=3, copies=1, offsets=(0, 2)) for _ in range(2))
        factors = dict(axe.span(b).terms)

        def scaled(it, factors=factors):
            return Iter(it.extent, Coord(tuple((n, v * factors.get(n, 1)) for n, v in it.stride.terms)))

        wide = Layout(
            tuple(map(scaled, a.shard)),
            tuple(map(scaled, a.replica)),
            Coord(tuple((n, v * factors.get(n, 1)) for n, v in a.offset.terms)),
        )
        sa, sb = (a.size,), (b.size,)
        assert axe.same_map(axe.direct_sum(wide, sa, b, sb), axe.tile(a, sa, b, sb))


def test_the_layout_of_appendix_g_is_exact_and_not_linear_over_bits():
    column_major = axe.parse("(24:1, 24:24)")
    f = [column_major(i)["m"] for i in range(4)]
    assert f == [0, 24, 48, 72]
    assert f[1 ^ 2] != f[1] ^ f[2]


def test_intersections_take_exactly_the_common_values():
    rng = Random(5)
    strides = [0, 1, 2, 3, 4, 6, -2, -3, {"a": 1}, {"a": 2, "b": 4}, {"a": 3, "b": 6}, {"a": 1, "b": 1}]
    for _ in range(500):
        a, b = (Iter(rng.randint(1, 9), rng.choice(strides)) for _ in range(2))
        both = {k * a.stride for k in range(a.extent)} & {k * b.stride for k in range(b.extent)}
        found = axe.intersect(a, b)
        assert Counter(k * found.stride for k in range(found.extent)) == Counter(both)


def test_groups_and_admits_answer_without_raising():
    layout = axe.parse("(6:1, 4:6)")
    assert axe.groups(layout, (6, 4))
    assert axe.groups(layout, (6, 1, 2, 2))
    assert not axe.groups(layout, (8, 3))
    assert not axe.groups(layout, (5, 5))
    assert not axe.admits(layout, (-4, -6))
    assert not axe.admits(layout, (2.0, 12))


def test_binding_names_what_does_not_divide():
    with pytest.raises(LayoutError, match="5 threads do not divide 24 points"):
        axe.bind(axe.parse("(6:1, 4:6)"), (0,), (5,))
    bound = axe.bind(axe.parse("(6:1, 4:6) + [2:3@w]"), (2,), (3,))
    assert prod(bound.extents) == 8
    assert bound.replica == axe.parse("[2:3@w]").replica


def test_bind_keeps_the_vector_atom_of_the_paper_where_asked():
    """Section 3.1: two iterations over atoms of four elements are left to each thread."""
    tx = symbol("tx", 0, 128)
    work = axe.parse("(16:128, 8:8, 2:4, 4:1) + 2112")
    mine = axe.bind(work, (tx // 8, tx % 8), (16, 8), written=True)
    assert str(mine).startswith("(2:4@m, 4:1@m) + ")
    merged = axe.bind(work, (tx // 8, tx % 8), (16, 8))
    assert str(merged).startswith("(8:1@m) + ") and mine.offset == merged.offset
    rng = Random(11)
    for _ in range(100):
        extents = [rng.randint(1, 4) for _ in range(4)]
        layout = Layout(tuple((n, rng.randint(-4, 9)) for n in extents), (), 3)
        lead = rng.randint(0, 3)
        at = [rng.randrange(n) for n in extents[:lead]]
        kept = axe.bind(layout, at, extents[:lead], written=True)
        assert kept.shard == tuple(it for it in layout.shard[lead:] if it.extent > 1)
        for y in range(kept.size):
            x = y
            for _n, c, below in zip(extents, at, range(lead), strict=False):
                x += c * int(np.prod(extents[below + 1 :]))
            assert kept(y) == layout(x)


def test_slice_keeps_the_papers_form_where_asked():
    layout = axe.parse("(4:24, 2:12, 3:4, 4:1)")
    merged, kept = (axe.slice(layout, (8, 12), ((2, 6), (0, 12)), written=w) for w in (False, True))
    assert str(merged) == "(4:12@m, 12:1@m) + 24@m" and str(kept) == "(2:24@m, 2:12@m, 3:4@m, 4:1@m) + 24@m"
    assert axe.same_map(merged, kept)
