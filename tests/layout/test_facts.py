"""What is known of layout algebra, row by row: each row names the tests that hold it, and those exist.

Here are also the rows that belong to no other file: the printed tiling algorithm, tiles that are cut askew, meshes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from strategies import fibres
from tileweave import layout as package
from tileweave.errors import NoLayout
from tileweave.layout import (
    Coord,
    Iter,
    Layout,
    axe,
    collision,
    cute,
    is_injective,
    lego,
    recover,
    same_map,
    slice_layout,
    slice_pieces,
    strided,
    tile,
)

HERE = Path(__file__).parent
ROWS = {
    "CuTe 1, the stride check is a divisibility": """
        facts_axe:stride_check_is_a_divisibility_not_an_order facts_cute:a_stride_that_does_not_divide_is_refused""",
    "CuTe 2, an injective inner layout does not distribute": """
        facts_axe:composition_does_not_distribute_over_modes_that_carry
        facts_cute:an_injective_inner_layout_does_not_distribute""",
    "CuTe 3, the shape check": """
        facts_axe:the_shape_check_is_made facts_cute:the_shape_is_checked_where_the_stride_passes""",
    "CuTe 4, complement and cosize on bad input": """
        facts_cute:complement_of_an_overlapping_layout_is_refused
        facts_cute:zero_and_negative_extents_never_reach_a_layout
        facts_cute:cosize_of_negative_strides_and_of_swizzles""",
    "CuTe 5, left inverse and product with an integer": """
        facts_cute:left_inverse_of_gaps_that_do_not_divide facts_cute:product_with_an_integer_multiplies""",
    "Axe, theorem A.8": "facts_axe:theorem_a8_a_normal_d_is_recovered_from_its_values",
    "Axe, lemma C.1": "facts_axe:lemma_c1_the_span_takes_absolute_values_of_strides",
    "Axe, algorithm 2": "facts:algorithm_2_as_printed_is_the_tiling",
    "Axe, tile is associative, with units; spans multiply": "combine:tile_has_a_unit_on_both_sides_and_is_associative",
    "Axe, appendix G": "axe:the_layout_of_appendix_g_is_exact_and_not_linear_over_bits",
    "Axe 2.3, span": "facts_axe:span_is_one_sum_over_axes_of_max_minus_min_plus_one",
    "Axe definition 2.3": "facts_axe:definition_2_3_a_set_is_smaller_than_the_replicas_where_they_collide",
    "Axe definition 2.2 and D0": "facts_axe:definition_2_2_d0_may_leave_no_iter",
    "Axe definition 2.1": "facts_axe:definition_2_1_zero_strides_are_iters_without_an_axis",
    "Axe C1": "facts_axe:c1_a_negative_replica_stride_moves_the_offset_down",
    "Axe C2": "facts_axe:c2_absorbs_up_to_and_including_the_extent",
    "Axe proposition A.1": "facts_axe:proposition_a1_c2_alone_is_not_confluent_and_the_normal_form_is",
    "Axe GC": "facts_axe:the_gap_condition_is_not_needed_for_injective_replicas",
    "Axe theorem A.14": "facts_axe:a14_the_set_form_is_unique_on_every_small_set_without_collisions",
    "Axe lemma A.6": "facts_axe:lemma_a6_only_proper_divisors_are_probed",
    "Axe algorithm 1": "facts_axe:algorithm_1_fails_on_unit_iters_and_grouping_does_not",
    "Axe 3.3, the example of a tile": "facts_axe:the_example_of_section_3_3_is_a_grid_of_2_by_3_tiles_of_8_by_8",
    "Axe algorithm 3 is unsound": "facts_axe:algorithm_3_is_unsound_and_tile_of_is_not",
    "Axe algorithm 3 is incomplete": "facts_axe:algorithm_3_is_incomplete_and_tile_of_is_not",
    "Axe algorithm 4, rem": "facts_axe:algorithm_4_runs_off_the_end_where_a_block_is_whole",
    "Axe algorithm 4 and E.2, capacity": "facts_axe:algorithm_4_the_capacity_needs_a_digit_to_spare",
    "Axe algorithm 4, two axes": "facts_axe:algorithm_4_a_carry_moves_along_two_axes",
    "Axe E.3": "facts_axe:e3_is_sufficient_only",
    "Axe F.3": "facts_axe:f3_replicas_and_offset_are_scaled_as_well",
    "Axe F.4": "facts_axe:f4_needs_no_permutation_and_permuting_digits_changes_the_map",
    "Axe 2.2, mesh and tensor memory": """
        facts_axe:section_2_2_the_compact_pitch_of_a_32_by_64_shard_is_64
        facts_axe:section_2_2_the_tensor_memory_layout_spans_224_columns""",
    "Axe appendix H": "facts_axe:appendix_h_128_partitions_hold_k_so_m_is_128_n_512_k_128",
    "Chamber, zero and negative strides": "facts_axe:the_chamber_counts_zero_and_negative_strides_as_layouts",
    "Traps, two conversions from CuTe": "facts_cute:the_two_conversions_to_the_core_are_different_layouts",
    "Traps, the last mode runs on": """
        facts_cute:coalesce_may_not_change_the_values_that_count cute:beyond_its_size_a_layout_runs_on_as_in_cute""",
    "Traps, coordinate strides are named axes": "cute_divide:conversions_keep_named_axes_and_refuse_what_has_no_form",
    "Traps, LEGO's strides and chains": """
        facts_cute:regp_strides_are_the_extents_behind_in_sigma
        facts_cute:group_by_is_strided_only_where_boundaries_align
        lego:group_by_runs_the_chain_from_last_to_first definitions:rows_columns_and_any_bijection_from_a_function""",
    "Traps, swizzles": """
        facts_cute:swizzle_is_the_composed_permutation_of_blocks facts_cute:a_swizzled_tile_has_xor_strides""",
    "Traps, strided to F2": """
        swizzle:a_layout_is_linear_over_f2_iff_its_basis_images_share_no_bit
        swizzle:core_layouts_with_offsets_or_replicas_have_no_linear_map""",
    "Traps, every constructor states its order": """
        facts:every_constructor_says_which_dimension_is_fastest cute:constructors_state_their_order""",
    "Composition, one mode": """
        facts_axe:the_divisibility_rule_is_sufficient_and_not_necessary
        facts_cute:an_inner_mode_must_end_on_a_boundary facts_cute:the_divisibility_rule_is_not_necessary""",
    "Composition, several modes": "facts_cute:carries_may_cancel_and_the_answer_is_still_found",
    "Complement that underfills": "facts_cute:complement_that_would_underfill_is_refused",
    "Divide with a predicate": "facts_cute:divide_refuses_a_tile_that_does_not_divide_and_covers_by_name",
    "Slices, decided by dimension": "facts_axe:a_box_is_a_layout_exactly_if_each_dimension_is",
    "Gap 1, one kernel decides": "exact:recovery_of_any_table_is_right_or_refuted_by_its_witness",
    "Gap 2, replica equality": """
        facts_axe:replica_equality_needs_no_gap_condition_for_any_small_list
        facts_axe:the_cyclotomic_exponents_agree_exactly_when_the_ratio_of_factors_does""",
    "Gap 3, vector strides": "facts_axe:algorithm_4_a_carry_moves_along_two_axes",
    "Gap 4, slices that are no layout": """
        facts:a_misaligned_sub_region_fills_its_own_rows slices:pieces_of_one_dimension_are_the_fewest""",
    "Gap 5, bank conflicts of any layout": "memory:bank_conflicts_are_counted_thread_by_thread",
    "Gap 6, conversions": "memory:conversions_need_what_the_definition_says",
    "Gap 7, drawings": "svg:a_cell_lists_every_replica_on_every_axis",
    "Gap 8, meshes": "facts:a_mesh_is_a_layout_or_has_a_witness_and_overlap_is_found",
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_is_held_by_a_test(row):
    for name in ROWS[row].split():
        file, test = name.split(":")
        text = (HERE / f"test_{file}.py").read_text(encoding="utf-8")
        assert re.search(rf"^def test_{test}\(", text, re.MULTILINE), name


def test_algorithm_2_as_printed_is_the_tiling():
    rng = Random(1)
    for _ in range(300):
        rank = rng.randint(1, 3)
        blocks_a, blocks_b = (
            [[Iter(rng.randint(1, 3), rng.choice([1, 2, -3, {"lane": 2}])) for _ in range(rng.randint(0, 2))]
             for _ in range(rank)]
            for _ in range(2)
        )  # fmt: skip
        ra, rb = ([Iter(2, rng.choice([3, {"lane": -1}]))] * rng.randint(0, 1) for _ in range(2))
        oa, ob = (rng.choice([Coord(), Coord.of(4), Coord.of({"lane": 1})]) for _ in range(2))
        span = {"m": 1, "lane": 1}
        for it in [*(it for block in blocks_b for it in block), *rb]:
            for axis, s in it.stride.terms:
                span[axis] += abs(s) * (it.extent - 1)

        def scaled(stride, span=span):
            return Coord(tuple((axis, span[axis] * v) for axis, v in stride.terms))

        printed = []
        for mine, theirs in zip(blocks_a, blocks_b, strict=True):
            printed += [Iter(it.extent, scaled(it.stride)) for it in mine] + theirs
        whole = Layout(printed, [Iter(it.extent, scaled(it.stride)) for it in ra] + rb, scaled(oa) + ob)
        a, b = (Layout([it for block in blocks for it in block], r, o)
                for blocks, r, o in ((blocks_a, ra, oa), (blocks_b, rb, ob)))  # fmt: skip
        shape_a, shape_b = (
            [int(np.prod([it.extent for it in block])) for block in blocks] for blocks in (blocks_a, blocks_b)
        )
        made = tile(a, shape_a, b, shape_b)
        assert fibres(made) == fibres(whole)
        assert same_map(made, whole)


def test_every_constructor_says_which_dimension_is_fastest():
    makers = [
        Layout, strided, axe.parse, package.slice_layout, package.group, package.tile, Layout.at, Layout.__call__,
        lego.Row, lego.Col, lego.RegP, lego.OrderBy, lego.GroupBy, lego.TileBy, lego.bricks, lego.flat_index,
        cute.CuteLayout, cute.make_layout,
    ]  # fmt: skip
    for maker in makers:
        own = (maker.__doc__ or "") + (sys.modules[maker.__module__].__doc__ or "")
        assert re.search(r"fastest|row-major|outermost first|slowest", own), maker


def test_a_misaligned_sub_region_fills_its_own_rows():
    """A tile of 4 x 8 blocks, read from row 2 to row 10: a copy by pieces touches those rows and no others."""
    blocks = strided((4, 4, 8), (100, 8, 1))  # four blocks of 4 rows, each padded to a pitch of 100
    buffer = np.zeros(400, dtype=int)
    with pytest.raises(NoLayout):
        slice_layout(blocks, (16, 8), (2, 0), (9, 8))
    found = slice_pieces(blocks, (16, 8), (2, 0), (9, 8))
    assert found.fewest
    for piece in found.pieces:
        buffer[piece.layout(np.arange(piece.layout.size))] += 1
    rows = blocks(np.arange(128)).reshape(16, 8)
    assert (buffer[rows[2:11]] == 1).all()
    assert buffer.sum() == 72


def test_a_mesh_is_a_layout_or_has_a_witness_and_overlap_is_found():
    mesh = np.arange(24).reshape(2, 3, 4)
    whole = recover(mesh.transpose(2, 0, 1).reshape(-1))
    assert whole == strided((4, 6), (1, 4))
    assert is_injective(whole)
    with pytest.raises(NoLayout) as caught:
        recover([0, 1, 2, 4, 5, 3])  # a mesh with two devices exchanged
    assert caught.value.witness.points
    shared = Layout(((3, {"gpu": 2}), (3, {"gpu": 1})))  # groups of three that overlap in one device
    first, second = collision(shared)
    assert shared(first) == shared(second)
    parts = recover({"gpu": np.array([0, 1, 4, 5, 8, 9])})
    assert str(parts) == "(3:4@gpu, 2:1@gpu)"
