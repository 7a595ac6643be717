"""Every public function of the package, every argument: another class is answered or named, never a traceback.

Each row of the table is a call that is right. One argument at a time is replaced by junk; the call then answers or
raises in the error format. With NumPy's integers in the place of Python's it answers the same.
"""

from __future__ import annotations

from itertools import product as every

import numpy as np
import pytest

from tileweave import layout as package
from tileweave.errors import TileweaveError
from tileweave.index import symbol
from tileweave.layout import Coord, Iter, Layout, axe, convert, f2, lego, strided
from tileweave.layout.analysis import conflicts, memory, movement, svg
from tileweave.layout.cute import CuteLayout
from tileweave.layout.lego import Chain, GroupBy, OrderBy, PartialTiles, RegP

A = strided((4, 6), (6, 1))
HALF = strided((2, 3), (3, 1))
COPIES = Layout(((4, 1),), ((2, 4),))
LANES = Layout(((4, {"lane": 1}), (2, {"reg": 1})))
TILE = strided((8, 8), (8, 1))
PIECE = RegP((2, 3), (2, 1))
ORDER = OrderBy(PIECE)
GROUPED = GroupBy((6,), ORDER)
RAGGED = PartialTiles((5, 6), (2, 3))
N = symbol("n", 1)
JUNK = [
    None, "ab", b"x", 1.5, float("nan"), float("inf"), True, -1, 0, 7, 2**70, np.int64(3), np.float64(2.0),
    np.array(2), np.array([1, 2]), np.zeros(2), (), (0,), (1, 2), ("a", "b"), (None,), [2, 3], [[1, 2]], {}, {"m": 1},
    {1: 2}, {"m": "x"}, {None}, object(), int, lambda *_: None, iter([1]), A, LANES, Iter(4, 1), Coord.of(2),
    CuteLayout((2, 3), (1, 2)), PIECE, ORDER, GROUPED, N, N % 2, N < 5, (N, 2), Layout(((N, 4), (4, 1))),
    Layout(((4, N), (2, 1)), ((2, N),)), strided((4, 6), (6, 1), N), RegP((N, 2), (2, 1)), lego.TileBy((N, 2), (3, 3)),
]  # fmt: skip

CALLS = {
    "Coord": (Coord, [(("m", 2), ("lane", 1))]),
    "Coord.of": (Coord.of, [{"m": 2}]),
    "Iter": (Iter, [4, 2]),
    "Layout": (Layout, [((4, 1),), ((2, 4),), 3]),
    "strided": (strided, [(4, 6), (6, 1), 2, "m"]),
    "Layout.call": (A.__call__, [5]),
    "Layout.at": (A.at, [(1, 2), (4, 6)]),
    "Layout.set_at": (COPIES.set_at, [1]),
    "Layout.multiset_at": (COPIES.multiset_at, [1]),
    "Layout.bounds": (A.bounds, ["m"]),
    "Layout.span": (A.span, ["m"]),
    "Layout.cosize": (A.cosize, ["m"]),
    "as_array": (package.as_array, [np.arange(24), A, (4, 6), "m"]),
    "byte_strides": (package.byte_strides, [A, 4]),
    "canonical_key": (package.canonical_key, [COPIES, "set"]),
    "carries": (package.carries, [A.shard]),
    "collision": (package.collision, [A]),
    "common_refinement": (package.common_refinement, [A, A]),
    "complement": (package.complement, [HALF, 12]),
    "compose": (package.compose, [A, HALF]),
    "compose.axis": (lambda axis: package.compose(A, HALF, axis=axis), ["m"]),
    "complement.axis": (lambda axis: package.complement(HALF, 12, axis=axis), ["m"]),
    "right_inverse.axis": (lambda axis: package.right_inverse(A, axis=axis), ["m"]),
    "left_inverse.axis": (lambda axis: package.left_inverse(A, axis=axis), ["m"]),
    "tile_of.replicas": (lambda word: package.tile_of(A, (24,), Layout(), (1,), replicas=word), ["set"]),
    "recover.bound": (lambda bound: package.recover(lambda x: x, 8, bound=bound), [8]),
    "to_text.bare_axis": (lambda axis: package.to_text(A, bare_axis=axis), ["m"]),
    "memory.numbers": (
        lambda e, v, n, w: memory.bank_conflicts(A, element_bytes=e, vector=v, banks=n, bank_bytes=w), [4, 1, 32, 4]
    ),
    "memory.sectors": (lambda *n: memory.coalescing(A, element_bytes=n[0], vector=n[1], sector_bytes=n[2]), [4, 1, 32]),
    "memory.width": (lambda *n: memory.vector_width(A, 4, most_bytes=n[0], base_alignment=n[1]), [16, 16]),
    "conflicts.search_swizzle": (conflicts.search_swizzle, [strided((32, 32), (32, 1)), [np.arange(32) * 32]]),
    "conflicts.search_padding": (conflicts.search_padding, [strided((32, 32), (32, 1)), [np.arange(32) * 32], 32]),
    "conflicts.remove_conflicts": (conflicts.remove_conflicts, [strided((32, 32), (32, 1)), [np.arange(32) * 32], 32]),
    "direct_sum": (package.direct_sum, [A, (4, 6), HALF, (2, 3)]),
    "direct_sum_of": (package.direct_sum_of, [strided((4,), (1,)), (4,), strided((2,), (1,)), (2,)]),
    "divide": (package.divide, [A, 4]),
    "from_array": (package.from_array, [np.arange(6).reshape(2, 3), np.arange(6), "m"]),
    "from_carries": (package.from_carries, [6, [(1, Coord.of(1)), (2, Coord.of(4))]]),
    "group": (package.group, [A, (4, 6)]),
    "holders": (package.holders, [A, 5]),
    "image": (package.image, [A]),
    "is_compact": (package.is_compact, [A]),
    "is_contiguous": (package.is_contiguous, [A, "m"]),
    "is_injective": (package.is_injective, [A]),
    "left_inverse": (package.left_inverse, [A]),
    "normalize": (package.normalize, [COPIES]),
    "parse": (package.parse, ["(4:1, 2:(n)) + 3", {"n": 1}]),
    "product": (package.product, [HALF, 2]),
    "read": (package.read, ["(4:1, 2:(n)) + 3", {"n": 1}]),
    "recover": (package.recover, [[0, 1, 2], 3]),
    "right_inverse": (package.right_inverse, [A]),
    "same_map": (package.same_map, [A, HALF, "set"]),
    "slice_layout": (package.slice_layout, [A, (4, 6), (1, 2), (2, 3)]),
    "slice_pieces": (package.slice_pieces, [A, (4, 6), (1, 2), (2, 3)]),
    "substitute": (package.substitute, [A, {"n": 2}]),
    "tile": (package.tile, [HALF, (2, 3), TILE, (8, 8)]),
    "tile_of": (package.tile_of, [strided((4,), (1,)), (4,), strided((2,), (1,)), (2,)]),
    "to_strides": (package.to_strides, [A, (4, 6), "m"]),
    "to_text": (package.to_text, [A]),
    "axe.admits": (axe.admits, [A, (4, 6)]),
    "axe.bind": (axe.bind, [A, (1,), (4,)]),
    "axe.canonicalize": (axe.canonicalize, [COPIES, "set"]),
    "axe.groups": (axe.groups, [A, (4, 6)]),
    "axe.intersect": (axe.intersect, [Iter(4, 2), Iter(3, 3)]),
    "axe.slice": (axe.slice, [A, (4, 6), ((0, 2), (1, 3))]),
    "axe.span": (axe.span, [A]),
    "lego.RegP": (RegP, [(2, 3), (2, 1)]),
    "lego.RegP.apply": (PIECE.apply, [1, 2]),
    "lego.RegP.inv": (PIECE.inv, [5]),
    "lego.GenP": (lego.GenP, [(2, 3), lambda i, j: 3 * i + j, lambda p: (p // 3, p % 3), "g", ""]),
    "lego.OrderBy": (OrderBy, [PIECE, PIECE]),
    "lego.OrderBy.apply": (ORDER.apply, [1, 2]),
    "lego.OrderBy.inv": (ORDER.inv, [5]),
    "lego.OrderBy.OrderBy": (ORDER.OrderBy, [PIECE]),
    "lego.OrderBy.TileOrderBy": (ORDER.TileOrderBy, [RegP((6,), (1,))]),
    "lego.OrderBy.GroupBy": (ORDER.GroupBy, [(6,)]),
    "lego.OrderBy.TileBy": (ORDER.TileBy, [(2,), (3,)]),
    "lego.Chain": (Chain, [(ORDER,)]),
    "lego.Chain.OrderBy": (Chain().OrderBy, [PIECE]),
    "lego.Chain.GroupBy": (Chain((ORDER,)).GroupBy, [(6,)]),
    "lego.Chain.TileBy": (Chain().TileBy, [(2, 2), (3, 3)]),
    "lego.Chain.TileOrderBy": (Chain().TileOrderBy, [lego.Col(2, 2), lego.Row(3, 3)]),
    "lego.GroupBy": (GroupBy, [(6,), ORDER]),
    "lego.GroupBy.apply": (GROUPED.apply, [5]),
    "lego.GroupBy.inv": (GROUPED.inv, [5]),
    "lego.GroupBy.getitem": (GROUPED.__getitem__, [5]),
    "lego.PartialTiles": (PartialTiles, [(5, 6), (2, 3)]),
    "lego.PartialTiles.chain": (lambda c: PartialTiles((2, 3), (2, 3), chain=c), [ORDER]),
    "lego.PartialTiles.apply": (RAGGED.apply, [1, 0, 1, 2]),
    "lego.PartialTiles.mask": (RAGGED.mask, [1, 0, 1, 2]),
    "lego.PartialTiles.coordinates": (RAGGED.coordinates, [1, 0, 1, 2]),
    "lego.Row": (lego.Row, [2, 3]),
    "lego.Col": (lego.Col, [2, 3]),
    "lego.TileBy": (lego.TileBy, [(2, 2), (3, 3)]),
    "lego.TileOrderBy": (lego.TileOrderBy, [lego.Col(2, 2), lego.Row(3, 3)]),
    "lego.antidiagonal": (lego.antidiagonal, [4]),
    "lego.bricks": (lego.bricks, [(4, 4), (2, 2)]),
    "lego.choose": (lego.choose, [True, 1, 2]),
    "lego.flat_index": (lego.flat_index, [(1, 2), (3, 4)]),
    "lego.tuple_index": (lego.tuple_index, [6, (3, 4)]),
    "lego.from_core": (lego.from_core, [A, (24,)]),
    "lego.grouped": (lego.grouped, [3, 2, 2]),
    "lego.hilbert": (lego.hilbert, [4]),
    "lego.morton": (lego.morton, [4, 2]),
    "lego.permutation": (lego.permutation, [[2, 0, 1], (3,)]),
    "lego.reversal": (lego.reversal, [(2, 3), (1,)]),
    "lego.to_core": (lego.to_core, [GROUPED]),
    "lego.xor_swizzle": (lego.xor_swizzle, [4, 8]),
    "lego.accessor": (lego.accessor, [lego.Row(4, 8), "Tile", "float"]),
    "convert.Strides": (convert.byte_strides, [convert.Strides((2,), (1,), 0), 4]),
    "memory.bank_conflicts": (memory.bank_conflicts, [A, np.arange(24)]),
    "memory.coalescing": (memory.coalescing, [A, np.arange(24)]),
    "memory.offsets_of": (memory.offsets_of, [A, np.arange(24)]),
    "memory.vector_width": (memory.vector_width, [A, 4]),
    "movement.conversion": (movement.conversion, [LANES, LANES, {"lane": "lane", "reg": "register"}]),
    "movement.options": (lambda r, n: movement.conversion(LANES, LANES, reduce=r, element_bytes=n), ["sum", 4]),
    "f2.from_layout": (f2.from_layout, [strided((4, 8), (8, 1)), (4, 8)]),
    "f2.places": (f2.places, [LANES, (4, 2)]),
    "f2.LinearMap": (f2.LinearMap, [(("reg", 1),), (("row", 1),), f2.F2Map((1,), 1)]),
    "f2.LinearMap.of": (f2.LinearMap.of, [{"reg": [(1, 0)], "lane": [(0, 1)]}, {"row": 1, "column": 1}]),
    "f2.LinearMap.compose": (f2.places(LANES).compose, [f2.from_layout(LANES)]),
    "f2.LinearMap.select": (f2.places(LANES).select, [["lane"], ["dim0"]]),
    "f2.LinearMap.call": (lambda reg, lane: f2.places(LANES)(reg=reg, lane=lane), [1, 2]),
    "f2.F2Map": (f2.F2Map, [(1, 2), 2]),
    "svg.svg": (svg.svg, [A]),
    "svg.svg.shape": (
        lambda s, c, n, t: svg.svg(A, shape=s, colour=c, limit=n, title=t), [(4, 6), "m", (8, 8), "t"]
    ),
    "svg.thread_value_svg": (svg.thread_value_svg, [CuteLayout((4, 2), (2, 1)), (2, 4)]),
}  # fmt: skip
VALUES_ONLY = {
    "BOUND", "DEFAULT_AXIS", "Blocks", "Piece", "Pieces", "Replicas", "Witness", "CHECK_BOUND", "LEVELS", "LIMIT",
    "Remedy", "Conversion", "Accesses", "best_swizzle", "Slice", "Template", "template", "Accessor", "Filled",
    "Part", "Level", "Means", "Banks", "Coalescing", "Collision", "VectorWidth", "Strides",
}  # fmt: skip
"""Constants, type names, and tuples of results."""


def covered(module, prefix=""):
    named = {name.split(".")[-1] for name in CALLS} | {name.split(".")[0] for name in CALLS}
    return {name for name in module.__all__ if name not in named and name not in VALUES_ONLY}


@pytest.mark.parametrize(
    "module", [package, axe, lego, convert, f2, memory, conflicts, movement, svg], ids=lambda m: m.__name__
)
def test_every_public_name_is_in_the_table(module):
    assert not covered(module)


@pytest.mark.parametrize("name", CALLS)
def test_junk_in_any_argument_is_answered_or_named(name):
    function, arguments = CALLS[name]
    function(*arguments)
    for k, junk in every(range(len(arguments)), JUNK):
        changed = [*arguments[:k], junk, *arguments[k + 1 :]]
        try:
            function(*changed)
        except TileweaveError as error:
            assert error.where and error.problem
        except Exception as error:
            pytest.fail(f"{name}, argument {k} = {junk!r}: {type(error).__name__}: {error}")


def with_numpy(value):
    """The same argument with NumPy's integers in the place of Python's."""
    if type(value) is int:
        return np.int64(value)
    if type(value) in (tuple, list):
        return type(value)(with_numpy(v) for v in value)
    if type(value) is dict:
        return {key: with_numpy(v) for key, v in value.items()}
    return value


@pytest.mark.parametrize("name", CALLS)
def test_integers_of_numpy_answer_as_those_of_python_or_are_named(name):
    function, arguments = CALLS[name]
    want = function(*arguments)
    try:
        found = function(*map(with_numpy, arguments))
    except TileweaveError as error:
        assert "integer" in str(error) or "limit" in str(error), name
    else:
        assert type(found) is type(want) or isinstance(found, np.integer)
        assert repr(found) == repr(want) or np.array_equal(found, want)
