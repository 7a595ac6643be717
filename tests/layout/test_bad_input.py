"""Whatever is passed, a public function answers or raises in the error format: no internal traceback, no hang."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tileweave import layout as package
from tileweave.errors import TileweaveError
from tileweave.layout import Layout, axe, strided

PLAIN = strided((4, 6), (6, 1))
COPIES = Layout(((4, 1),), ((2, 4),))
VECTOR = Layout(((4, {"a": 1}), (2, {"a": 1, "b": 2})))
JUNK = [
    None, 1.5, "ab", -1, 3, (), (0,), (2.0, 12), (None,), ("x",), {}, [24], (4, 6), 2**70, (2**70,),
    np.zeros(3), np.array([1, 2]), True, b"x", object(), PLAIN, COPIES, VECTOR,
]  # fmt: skip
ONE = {
    "Coord": package.Coord,
    "Coord.of": package.Coord.of,
    "Layout": Layout,
    "call": PLAIN,
    "call on several axes": VECTOR,
    "set_at": COPIES.set_at,
    "multiset_at": COPIES.multiset_at,
    "bounds": COPIES.bounds,
    "parse": package.parse,
    "normalize": package.normalize,
    "canonical_key": package.canonical_key,
    "canonicalize": axe.canonicalize,
    "recover": package.recover,
    "is_injective": package.is_injective,
    "is_contiguous": package.is_contiguous,
    "image": package.image,
    "right_inverse": package.right_inverse,
    "left_inverse": package.left_inverse,
    "from_array": package.from_array,
    "to_strides": package.to_strides,
    "span": axe.span,
}
TWO = {
    "Layout": Layout,
    "Iter": package.Iter,
    "strided": strided,
    "at": PLAIN.at,
    "recover": package.recover,
    "same_map": package.same_map,
    "holders": package.holders,
    "group": package.group,
    "common_refinement": package.common_refinement,
    "compose": package.compose,
    "complement": package.complement,
    "divide": package.divide,
    "product": package.product,
    "to_strides": package.to_strides,
    "byte_strides": package.byte_strides,
    "as_array": package.as_array,
    "from_array": package.from_array,
    "admits": axe.admits,
    "groups": axe.groups,
    "intersect": axe.intersect,
    "slice": lambda shape, region: axe.slice(PLAIN, shape, region),
    "slice_layout": lambda begin, extent: package.slice_layout(PLAIN, (4, 6), begin, extent),
    "slice_pieces": lambda begin, extent: package.slice_pieces(PLAIN, (4, 6), begin, extent),
    "bind": lambda coords, shape: axe.bind(PLAIN, coords, shape),
    "tile": lambda shape_a, shape_b: package.tile(PLAIN, shape_a, COPIES, shape_b),
    "tile_of": lambda shape_a, shape_b: package.tile_of(PLAIN, shape_a, COPIES, shape_b),
    "direct_sum_of": lambda a, b: package.direct_sum_of(a, (24,), b, (4,)),
}


@pytest.mark.parametrize(
    ("function", "count"),
    [*(pytest.param(f, 1, id=f"{name}/1") for name, f in ONE.items())]
    + [*(pytest.param(f, 2, id=f"{name}/2") for name, f in TWO.items())],
)
def test_junk_is_refused_in_the_house_form(function, count):
    refused = answered = 0
    for arguments in product(JUNK, repeat=count):
        try:
            function(*arguments)
            answered += 1
        except TileweaveError as error:
            refused += 1
            assert error.where
            assert error.problem
    assert refused + answered == len(JUNK) ** count
