"""Named maps over F2 against the enumeration of the layouts that they come from."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import numpy as np
import pytest

from tileweave.errors import Incongruent, LayoutError, NoLayout
from tileweave.layout import Layout, parse, read, same_map
from tileweave.layout.f2 import F2Map, LinearMap, from_layout, places

MANY = [80, pytest.param(2000, marks=pytest.mark.slow)]


def draw(rng, axes, free=False):
    """A layout of powers of two; with `free`, strides that may share bits."""
    extents = [1 << rng.randint(0, 2) for _ in range(rng.randint(1, 4))]
    reach, iters = dict.fromkeys(axes, 1), []
    for n in extents:
        axis = rng.choice(axes)
        stride = rng.choice([0, 1, 2, 3, 4, 5, 6, 8, -1]) if free else reach[axis]
        iters.append((n, {axis: stride}))
        reach[axis] *= n
    rng.shuffle(iters)
    return Layout(tuple(iters))


def digits(x, dims):
    out = []
    for n in reversed(dims):
        out.append(x % n)
        x //= n
    return tuple(reversed(out))


@pytest.mark.parametrize("count", MANY)
def test_a_layout_has_a_map_exactly_if_it_is_linear_over_f2(count):
    seed = 201
    rng = random.Random(seed)
    seen = {True: 0, False: 0}
    for k in range(count):
        layout = draw(rng, ["lane", "reg"], free=True)
        values = [layout(x) for x in range(layout.size)]
        linear = all(v[a] >= 0 for v in values for a in v.axes) and all(
            values[x ^ y][a] == values[x][a] ^ values[y][a]
            for x, y in product(range(layout.size), repeat=2)
            for a in ("lane", "reg")
        )
        try:
            found = from_layout(layout)
        except NoLayout as error:
            assert not linear, (seed, k, str(layout))
            assert error.witness.condition
        else:
            assert linear, (seed, k, str(layout))
            for x in range(layout.size):
                at = {f"dim{d}": v for d, v in enumerate(digits(x, layout.extents))}
                assert {a: v for a, v in found(**at).items() if v} == dict(values[x].terms), (seed, k)
            assert same_map(found.to_layout(), layout)
        seen[linear] += 1
    assert min(seen.values()) > count // 20


@pytest.mark.parametrize("count", MANY)
def test_places_are_who_holds_what(count):
    seed = 202
    rng = random.Random(seed)
    for k in range(count):
        layout = draw(rng, ["reg", "lane", "warp"])
        spare = {"warp": layout.span("warp")}
        layout = Layout(layout.shard, ((2, spare),)) if rng.random() < 0.5 else layout
        found = places(layout)
        for x in range(layout.size):
            for r in layout.replicas():
                at = {a: (layout(x) + r)[a] for a, _ in found.inputs}
                want = {f"dim{d}": v for d, v in enumerate(digits(x, layout.extents))}
                assert found(**at) == want, (seed, k, str(layout))
        assert found.is_surjective() and found.rank == (layout.size - 1).bit_length()
        if not layout.replica:
            assert found.inverse().same(from_layout(layout))


@pytest.mark.parametrize(
    "text",
    [
        "(8,64):(64,1)",
        "((2,4),(8,2)):((1,16),(2,64))",
        "Sw<3,3,3> o 0 o (8,64):(64,1)",
        "(8,64):(72,1)^",
        "Row(4,8)",
        "Col(4,8)",
        "morton(8,8)",
        "morton(4,16)",
        "xor_swizzle(8,8)",
        "bricks((8,8),(2,4))",
        "OrderBy(Col(2,2), Row(4,2)).GroupBy((8,4))",
        "reversal((1,1))",
    ],
)
def test_every_notation_converts_and_agrees_at_every_coordinate(text):
    layout = read(text)
    found = from_layout(layout)
    dims = [1 << n for _, n in found.inputs]
    assert prod(dims) == layout.size
    for at in product(*map(range, dims)):
        value = layout.apply(*at) if hasattr(layout, "apply") else None
        if value is None:
            value = layout(*at)
        assert found(**{f"dim{k}": c for k, c in enumerate(at)}) == {"m": value}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hilbert(4)", "the XOR of its bits"),
        ("reversal((4,))", "the origin goes to 3"),
        ("Row(3,4)", "extent 3 is no power of two"),
        ("(4:1@lane) + [2:4@lane]", "one value for each index"),
        ("(4:1@lane) + 1@lane", "one value for each index"),
        ("(4:1@lane, 2:3@lane)", "share a bit"),
        ("(4:-1)", "negative"),
    ],
)
def test_what_is_not_linear_is_refused_with_a_witness(text, problem):
    with pytest.raises(NoLayout, match=problem) as caught:
        from_layout(read(text))
    assert caught.value.witness.points


def test_places_that_hold_nothing_are_named():
    with pytest.raises(NoLayout, match="is no image"):
        places(parse("(4:2@lane)"))


def test_maps_compose_by_name_and_have_inverses():
    fragment = places(parse("(2:2@reg, 8:4@lane, 4:1@lane, 2:1@reg)"), (16, 8))
    assert [name for name, _ in fragment.inputs] == ["lane", "reg"] and fragment.is_injective()
    back = fragment.inverse()
    both = fragment.compose(back)
    for at in product(range(16), range(8)):
        assert both(dim0=at[0], dim1=at[1]) == {"dim0": at[0], "dim1": at[1]}
    tile = from_layout(read("Sw<1,3,3> o 0 o (16,8):(8,1)"))
    offsets = tile.compose(fragment)
    layout = read("Sw<1,3,3> o 0 o (16,8):(8,1)")
    for lane, reg in product(range(32), range(4)):
        at = fragment(lane=lane, reg=reg)
        assert offsets(lane=lane, reg=reg)["m"] == layout(at["dim0"], at["dim1"])
    lanes, regs = np.arange(32), np.zeros(32, int)
    assert offsets(lane=lanes, reg=regs)["m"].tolist() == [offsets(lane=k, reg=0)["m"] for k in range(32)]
    with pytest.raises(Incongruent, match="no input dim0"):
        back.select(["dim1"]).compose(fragment)


def test_names_may_come_in_any_order():
    a = LinearMap.of({"reg": [(1, 0)], "lane": [(0, 1)]}, {"row": 1, "column": 1})
    b = LinearMap.of({"lane": [(1, 0)], "reg": [(0, 1)]}, {"column": 3, "row": 1})
    assert a != b and a.same(b) and not a.same(a.select(["lane"]))
    assert a.select(["lane"], ["column"]).rank == 1 and a.select(["lane"], ["row"]).rank == 0
    assert eval(repr(a)) == a


def test_mistakes_are_named():
    a = LinearMap.of({"reg": [(1, 0)]}, {"row": 1, "column": 1})
    for run, text in [
        (lambda: a(lane=1), "there is no input lane"),
        (lambda: a(reg=2), "reg is 2"),
        (lambda: a(reg="x"), "reg is 'x'"),
        (lambda: a.select(["lane"]), "there is no lane"),
        (lambda: LinearMap.of({"reg": [(1,)]}, {"row": 1, "column": 1}), "the image"),
        (lambda: LinearMap({"reg": 2}, {"row": 1}, F2Map((1,), 1)), "1 x 1 bits"),
        (lambda: LinearMap({"reg": -1}, {"row": 1}, F2Map((1,), 1)), "bits from 0"),
        (lambda: from_layout("x"), "is no layout"),
        (lambda: from_layout(read("4:1"), (4,)), "its own shape"),
        (lambda: from_layout(parse("(4:1)"), (2,)), "has 2 points"),
        (lambda: places(read("4:1")), "no core layout"),
    ]:
        with pytest.raises(LayoutError, match=text):
            run()
