"""Whatever is passed to the CuTe, swizzle and F2 functions: an answer or a refusal, never a crash."""

from __future__ import annotations

import inspect
import random
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from tileweave.errors import LayoutError, TileweaveError
from tileweave.index import symbol
from tileweave.layout import Layout as Core
from tileweave.layout import cute, lego
from tileweave.layout.cute import ComposedLayout, CuteLayout, E, F2Map, Swizzle, XorLayout, _

N = symbol("n", 1)
SWIZZLED = ComposedLayout(Swizzle(1, 0, 1), 0, CuteLayout(8, 1))
JUNK = [
    None, "(4,8):(1,4)", 1.5, float("nan"), True, np.int64(4), np.float32(2), 0, -1, 7, 1 << 70, (), (0,), (2, -1),
    (2, (3, None)), [4, 8], {"a": 1}, b"x", object(), np.arange(3), np.zeros(2), Core(((4, 1),)), lego.Row(2, 2),
    Swizzle(1, 0, 1), SWIZZLED, CuteLayout((4, 2), (2, 1)), CuteLayout((), ()), cute.make_identity_layout((2, 2)),
    F2Map((1, 2), 2), XorLayout((2, 2), (1, 2)), N, N < 3, Fraction(1, 2), E(0), _, int, CuteLayout((N, 4), (1, N)),
    CuteLayout(1 << 60, 3),
]  # fmt: skip
FUNCTIONS = [name for name in cute.__all__ if callable(getattr(cute, name)) and name != "_"]
METHODS = {
    "layout": CuteLayout((4, 2), (2, 1)),
    "layout[mode]": CuteLayout((4, 2), (2, 1)).__getitem__,
    "composed": SWIZZLED,
    "composed.slice": SWIZZLED.slice,
    "swizzle": Swizzle(1, 0, 1),
    "f2": F2Map((1, 2), 2),
    "f2.compose": F2Map((1, 2), 2).compose,
    "f2.solve": F2Map((1, 2), 2).solve,
    "F2Map.identity": F2Map.identity,
    "xor": XorLayout((2, 2), (1, 2)),
    "cover.valid": cute.cover_divide(CuteLayout((5, 4), (1, 5)), (2, 4)).valid,
}


def takes(function, count):
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def call(function, arguments):
    """Whether the call was refused; anything but an answer and a refusal in the error format fails the test."""
    try:
        function(*arguments)
    except TileweaveError as refusal:
        assert refusal.where and refusal.problem
        return True
    return False


@pytest.mark.parametrize("name", FUNCTIONS)
def test_junk_is_refused_or_answered(name):
    function = getattr(cute, name)
    rng = random.Random(name)
    tried = refused = 0
    for count in (1, 2, 3):
        if not takes(function, count):
            continue
        every = list(product(JUNK, repeat=count)) if count < 3 else [rng.choices(JUNK, k=3) for _k in range(150)]
        chosen = every if len(every) <= 400 else rng.sample(every, 400)
        for arguments in chosen:
            tried += 1
            refused += call(function, arguments)
    assert tried and refused


@pytest.mark.parametrize("name", METHODS)
def test_junk_given_to_methods_is_refused_or_answered(name):
    assert sum(call(METHODS[name], (junk,)) for junk in JUNK) > len(JUNK) // 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: cute.coalesce(None),
        lambda: cute.composition("4:1", 4),
        lambda: cute.dice(Core(((4, 1),)), _),
        lambda: cute.f2_from_layout(lego.Row(2, 2)),
        lambda: cute.f2_to_layout(Swizzle(1, 0, 1)),
        lambda: cute.cover_divide(Core(((4, 1),)), 2),
    ],
)
def test_a_layout_of_another_notation_is_named_in_the_refusal(call):
    with pytest.raises(LayoutError, match=r"is no layout|is no map over F2"):
        call()


def test_an_integer_stands_for_its_contiguous_layout_everywhere():
    assert cute.coalesce(8) == cute.composition(8, 8) == CuteLayout(8, 1)
    assert cute.logical_divide(8, np.int64(4)) == CuteLayout((4, 2), (1, 4))
    assert cute.logical_product(4, 2) == CuteLayout((4, 2), (1, 4))
    assert cute.nullspace(4) == CuteLayout(1, 0)


DEEP = 4
for _level in range(5000):
    DEEP = (DEEP,)


@pytest.mark.parametrize(
    "call",
    [
        lambda: CuteLayout(DEEP, DEEP),
        lambda: CuteLayout((4, 4), DEEP),
        lambda: CuteLayout((4, 4), (1, 4))(DEEP),
        lambda: cute.make_layout(DEEP),
        lambda: cute.depth(DEEP),
        lambda: cute.congruent(DEEP, DEEP),
        lambda: cute.weakly_congruent(4, DEEP),
        lambda: cute.compatible(4, DEEP),
        lambda: cute.crd2idx(DEEP, (4, 4)),
        lambda: cute.idx2crd(DEEP, (4, 4)),
        lambda: cute.composition(CuteLayout((4, 4), (1, 4)), DEEP),
        lambda: cute.zipped_divide(CuteLayout((4, 4), (1, 4)), DEEP),
        lambda: cute.coalesce(CuteLayout((4, 4), (1, 4)), DEEP),
        lambda: cute.slice_(CuteLayout((4, 4), (1, 4)), DEEP),
        lambda: cute.dice(CuteLayout((4, 4), (1, 4)), DEEP),
        lambda: cute.make_ordered_layout((4, 4), DEEP),
        lambda: cute.parse("(" * 5000 + "4" + ")" * 5000),
        lambda: cute.parse("9" * 5000 + ":1"),
        lambda: CuteLayout(10**5000, 1),
        lambda: CuteLayout((4, 4), (1, 10**5000)),
        lambda: CuteLayout((4, 4), (1, 4))(10**5000),
        lambda: CuteLayout((4, 4), (1, 4))(0, -(10**5000)),
        lambda: CuteLayout((4, 4), (1, 4))[10**5000],
        lambda: cute.complement(CuteLayout(4, 1), 10**5000),
        lambda: cute.upcast(CuteLayout(4, 1), 10**5000),
        lambda: cute.idx2crd(10**5000, (4, 4)),
        lambda: cute.size(10**5000),
        lambda: Swizzle(3, 10**12, 3),
        lambda: Swizzle(10**9, 0, 10**9),
    ],
)
def test_what_is_too_deep_or_too_long_is_refused_at_once(call):
    with pytest.raises(LayoutError):
        call()


def test_as_deep_as_is_allowed():
    tree = 4
    for _level in range(64):
        tree = (tree,)
    layout = cute.make_layout(tree)
    assert cute.depth(layout) == 64 and layout(3) == 3 and cute.parse(str(layout)) == layout
