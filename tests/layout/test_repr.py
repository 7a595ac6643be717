"""`repr` of every public value parses back to an equal value of the same class."""

from __future__ import annotations

import numpy as np
import pytest

from tileweave import layout as package
from tileweave.errors import NoLayout
from tileweave.index import expr as index_values
from tileweave.index import maximum, minimum, symbol
from tileweave.layout import axe, convert, cute, lego, strided
from tileweave.layout.analysis import conflicts, memory, movement
from tileweave.layout.axe import parse
from tileweave.layout.core import exact, slices
from tileweave.layout.lego import Col, GenP, OrderBy, PartialTiles, RegP, Row, TileOrderBy

NAMES = {"np": np}
for module in (package, exact, convert, memory, conflicts, movement, axe, lego, cute, slices, index_values):
    NAMES |= vars(module)


def zigzag(i, j):
    return 3 * i + (j if i == 0 else 2 - j)


def unzigzag(p):
    return p // 3, p % 3 if p < 3 else 5 - p


def witness():
    with pytest.raises(NoLayout) as caught:
        package.recover([0, 1, 3])
    return caught.value.witness


N, T = symbol("n", 1, multiple_of=4), symbol("t", 0, symbol("n", 1, multiple_of=4))
COLUMN = cute.CuteLayout((32, 32), (32, 1))
VALUES = {
    "Coord": package.Coord.of({"a": 1, "m": -3}),
    "zero": package.Coord(),
    "Iter": package.Iter(4, {"lane": 2, "m": -1}),
    "Layout": parse("(8:4@lane, 2:1@warp, 1:7, 4:0) + [2:4@warp, 3:-1] - 5@warp"),
    "empty Layout": package.Layout(),
    "symbolic Layout": package.Layout(((N, N // 4 * 2), (4, 1)), ((N, 3),), maximum(T, 3) * 2 - minimum(T, N - 2) % 5),
    "Witness": witness(),
    "Pieces": package.slice_pieces(strided((4, 4), (100, 1)), (16,), (2,), (10,)),
    "Strides": package.to_strides(strided((2, 3), (3, 1), 4)),
    "VectorWidth": memory.vector_width(COLUMN, 4),
    "Coalescing": memory.coalescing(COLUMN),
    "Banks": memory.bank_conflicts(COLUMN, np.arange(32) * 32),
    "Remedy": conflicts.remove_conflicts(COLUMN, [np.arange(32) * 32], 32),
    "padding": conflicts.search_padding(COLUMN, [np.arange(32) * 32], 32),
    "Conversion": movement.conversion(parse("(4:1@lane, 2:1@reg)"), parse("(4:1@reg, 2:1@lane)")),
    "RegP": RegP((2, N, 3), (2, 3, 1)),
    "Row": Row(2, 3),
    "Col": Col(2, 3),
    "GenP": GenP((2, 3), zigzag),
    "GenP with inverse": GenP((2, 3), zigzag, unzigzag, name="zigzag", proof="drawn"),
    "OrderBy": OrderBy(Col(2, 2), GenP((2, 3), zigzag)),
    "Chain": TileOrderBy(Col(2, 2), Row(3, 3)),
    "GroupBy": TileOrderBy(Col(2, 2), Row(3, 3)).GroupBy((6, 6)),
    "TileBy": lego.TileBy((N, 2), (3, 3)),
    "PartialTiles": PartialTiles((100, N), (32, 32)),
    "PartialTiles of two levels": PartialTiles((5, 6), (2, 3), (2, 1), chain=OrderBy(Col(5, 6))),
    "antidiagonal": lego.antidiagonal(4),
    "bricks": lego.bricks((4, 4), (2, 2)),
    "grouped": lego.grouped(9, 4, 4),
    "grouped, symbolic": lego.grouped(N, 4, 2),
    "reversal, symbolic": lego.reversal((N, 3)),
    "hilbert": lego.hilbert(4),
    "morton": lego.morton(4, 2),
    "morton of one dimension": lego.morton(8),
    "permutation": lego.permutation([[2, 0], [1, 3]]),
    "large permutation": lego.permutation(np.arange(999)[::-1]),
    "reversal": lego.reversal((2, 3), (1,)),
    "reversal of all": lego.reversal((2, 3)),
    "xor_swizzle": lego.xor_swizzle(4, 8),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_repr_parses_back(name):
    value = VALUES[name]
    text = repr(value)
    assert "\n" not in text
    again = eval(text, {**NAMES, "zigzag": zigzag, "unzigzag": unzigzag})
    assert type(again) is type(value)
    assert again == value
    assert repr(again) == text


def test_ready_made_bijections_are_equal_when_their_calls_are():
    assert lego.morton(4, 2) == lego.morton(4, 2) != lego.morton(2, 4)
    assert lego.reversal((2, 3)) == lego.reversal((2, 3), (1, 0)) != lego.reversal((2, 3), (1,))
    assert hash(lego.permutation([1, 0])) == hash(lego.permutation(np.array([1, 0])))
    assert GenP((2, 3), zigzag) == GenP((2, 3), zigzag) != GenP((2, 3), lambda i, j: 3 * i + j)
    assert str(lego.permutation(np.arange(999)[::-1])) == "GenP(999; permutation)"
