"""The texts that users see when the core refuses, pinned: what was asked, the values, the witness, what is legal."""

from __future__ import annotations

import pytest

from tileweave.errors import LayoutError
from tileweave.layout import (
    complement,
    compose,
    divide,
    group,
    holders,
    left_inverse,
    parse,
    recover,
    slice_layout,
    strided,
    tile_of,
)

CASES = {
    "compose": lambda: compose(strided((4, 6), (4, 8)), strided((3, 2), (2, 3))),
    "compose_outside": lambda: compose(strided((4, 3), (10, 1)), strided((13,), (1,))),
    "recover": lambda: recover([0, 1, 3]),
    "group": lambda: group(strided((3, 2), (5, 1)), (2, 3)),
    "slice": lambda: slice_layout(strided((4, 4), (100, 1)), (16,), (2,), (10,)),
    "tile_of": lambda: tile_of(parse("(2:4, 2:5)"), (4,), parse("(2:4)"), (2,)),
    "tile_of_span": lambda: tile_of(parse("(2:3, 2:4)"), (4,), parse("(2:4)"), (2,)),
    "complement": lambda: complement(strided((2, 3), (1, 3)), 12),
    "left_inverse": lambda: left_inverse(strided((8, 8), (7, 9))),
    "bound": lambda: holders(strided((2**21,), (0,)), 0),
    "divide": lambda: divide(strided((6,), (1,)), 4),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals_read_as_pinned(case, golden):
    with pytest.raises(LayoutError) as caught:
        CASES[case]()
    golden(f"layout/{case}.txt", f"{type(caught.value).__name__}: {caught.value}\n")
