"""Vector width, coalescing, bank conflicts and conversions, recounted thread by thread in plain Python."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from tileweave.errors import Incongruent, LayoutError, Undecided, Unproved
from tileweave.index import symbol
from tileweave.layout import lego, read
from tileweave.layout.analysis.conflicts import remove_conflicts, search_padding, search_swizzle
from tileweave.layout.analysis.memory import bank_conflicts, coalescing, offsets_of, vector_width
from tileweave.layout.analysis.movement import conversion
from tileweave.layout.analysis.svg import svg
from tileweave.layout.core.coord import Coord
from tileweave.layout.core.layout import Layout
from tileweave.layout.cute import ComposedLayout, CuteLayout, F2Map, Swizzle, XorLayout, make_layout, xor_strides
from tileweave.layout.f2 import from_layout

MANY = [200, pytest.param(10_000, marks=pytest.mark.slow)]


def random_layout(rng):
    rank = rng.randint(1, 3)
    return CuteLayout(
        tuple(rng.choice([1, 2, 4, 8, 3]) for _m in range(rank)),
        tuple(rng.choice([0, 1, 1, 2, 4, 8, 12, 33, 32, 64]) for _m in range(rank)),
    )


# --- recounts


def passes_by_hand(addresses, width, banks=32, bank_bytes=4):
    """Thread by thread: (lane, byte address) pairs of one warp."""
    together = max(1, min(32, banks * bank_bytes // max(width, bank_bytes)))
    total = 0
    for phase in {lane // together for lane, _a in addresses}:
        wanted = {}
        for lane, address in addresses:
            if lane // together == phase:
                for byte in range(address, address + width):
                    word = byte // bank_bytes
                    wanted.setdefault(word % banks, set()).add(word)
        total += max(map(len, wanted.values()))
    return total


@pytest.mark.parametrize("count", MANY)
def test_bank_conflicts_are_counted_thread_by_thread(count):
    rng = random.Random(1)
    conflicts = 0
    for _k in range(count):
        layout = random_layout(rng)
        element_bytes, vector = rng.choice([(1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (4, 2), (4, 4), (2, 4)])
        threads = np.array([rng.choice([-1, rng.randrange(layout.size)]) for _t in range(rng.randint(1, 70))])
        if (threads < 0).all():
            continue
        width = element_bytes * vector
        warps = [
            [(t, layout(int(i)) * element_bytes) for t, i in enumerate(threads[w : w + 32]) if i >= 0]
            for w in range(0, len(threads), 32)
        ]
        if vector > 1 and any(a % width for warp in warps for _t, a in warp):
            with pytest.raises(LayoutError, match="multiples"):
                bank_conflicts(layout, threads, element_bytes=element_bytes, vector=vector)
            continue
        report = bank_conflicts(layout, threads, element_bytes=element_bytes, vector=vector)
        assert list(report.passes) == [passes_by_hand(warp, width) for warp in warps if warp]
        assert all(p >= i for p, i in zip(report.passes, report.ideal, strict=True))
        assert report.free == (not report.collisions)
        for collision in report.collisions:
            conflicts += 1
            words = {
                b // 4 for a in collision.first_bytes for b in range(a, a + width) if b // 4 % 32 == collision.bank
            }
            assert len(words) > 1
            assert [layout(int(threads[t])) * element_bytes for t in collision.threads] == list(collision.first_bytes)
    assert conflicts


@pytest.mark.parametrize("count", MANY)
def test_coalescing_counts_sectors(count):
    rng = random.Random(2)
    for _k in range(count):
        layout = random_layout(rng)
        element_bytes, vector = rng.choice([(1, 1), (2, 1), (4, 1), (8, 1), (4, 4)])
        threads = np.array([rng.randrange(layout.size) for _t in range(rng.randint(1, 64))])
        report = coalescing(layout, threads, element_bytes=element_bytes, vector=vector)
        for w, (sectors, firsts) in enumerate(zip(report.sectors, report.first_bytes, strict=True)):
            touched = {
                byte
                for i in threads[32 * w : 32 * w + 32]
                for byte in range(layout(int(i)) * element_bytes, (layout(int(i)) + vector) * element_bytes)
            }
            assert {b // 32 * 32 for b in touched} == set(firsts) and sectors == len(firsts)
            assert report.ideal[w] == -(-len(touched) // 32)
        assert 0 < report.efficiency <= 1


@pytest.mark.parametrize("count", MANY)
def test_vector_width_is_the_widest_that_holds_everywhere(count):
    rng = random.Random(3)
    wide = 0
    for _k in range(count):
        layout = random_layout(rng)
        element_bytes = rng.choice([1, 2, 4])
        values = [layout(i) for i in range(layout.size)]

        def holds(v, values=values):
            starts = range(0, len(values), v)
            return len(values) % v == 0 and all(
                values[k] % v == 0 and values[k : k + v] == list(range(values[k], values[k] + v)) for k in starts
            )

        best = 1
        while 2 * best * element_bytes <= 16 and holds(2 * best):
            best *= 2
        found = vector_width(layout, element_bytes)
        assert found.elements == best and found.bytes == best * element_bytes and found.limit
        assert vector_width(np.array(values), element_bytes).elements == best
        core = Layout(tuple((n, {"m": d}) for n, d in reversed(layout.flat)))
        assert vector_width(core, element_bytes).elements == best
        wide += best > 1
    assert wide > count // 20


def test_vector_width_respects_alignment_and_scale():
    assert vector_width(make_layout(1 << 60), 4).bytes == 16
    assert vector_width(make_layout(64), 4, base_alignment=8).bytes == 8
    assert vector_width(Layout(((8, {"m": 1}),), (), Coord.of(2)), 4).elements == 2
    assert vector_width(CuteLayout((2, 4), (4, 1)), 4).limit == "neighbours are 4 elements apart"
    swizzled = ComposedLayout(Swizzle(3, 3, 3), 0, CuteLayout((64, 8), (1, 64)))
    assert vector_width(swizzled, 2).elements == 8
    assert vector_width(ComposedLayout(Swizzle(3, 1, 3), 0, CuteLayout((64, 8), (1, 64))), 2).elements == 2


def test_every_kind_of_layout_gives_offsets():
    tile = CuteLayout((4, 4), (4, 1))
    swizzled = ComposedLayout(Swizzle(2, 0, 2), 0, tile)
    at = np.arange(16)
    want = [swizzled(i) for i in range(16)]
    assert offsets_of(swizzled, at).tolist() == want
    assert offsets_of(xor_strides(swizzled), at).tolist() == want
    assert offsets_of(np.array(want), at).tolist() == want
    assert offsets_of(F2Map.identity(4), at).tolist() == list(range(16))
    assert offsets_of(lego.GroupBy((4, 4), lego.OrderBy(lego.Col(4, 4))), at).tolist() == [tile(i) for i in range(16)]
    for bad in (Layout(((2, {"a": 1}), (2, {"b": 1}))), "x"):
        with pytest.raises(LayoutError):
            offsets_of(bad, np.arange(2))
    with pytest.raises(LayoutError):
        offsets_of(np.arange(4), np.array([4]))
    with pytest.raises(LayoutError):
        offsets_of(tile, np.array([0.5]))
    with pytest.raises(LayoutError):
        bank_conflicts(tile, np.array([], dtype=int))
    with pytest.raises(LayoutError):
        bank_conflicts(tile, banks=0)


# --- remedies


def total_passes(offsets, accesses, banks):
    return sum(bank_conflicts(offsets, threads, banks=banks).passes[0] for threads in accesses)


def all_swizzles(bits):
    for b, m, s in product(range(bits // 2 + 1), range(bits), range(-bits, bits + 1)):
        if abs(s) >= b and m + b + abs(s) <= bits:
            yield Swizzle(b, m, s)


def test_the_swizzle_search_is_exhaustive():
    tile = CuteLayout((8, 8), (8, 1))
    plain = np.array([tile(i) for i in range(64)])
    accesses = [np.arange(8), np.arange(8) * 8, np.array([0, 9, 18, 27, 36, 45, 54, 63])]
    found = search_swizzle(tile, accesses, banks=8)
    assert found.passes == min(total_passes(swizzle(plain), accesses, 8) for swizzle in all_swizzles(6))
    assert found.before == total_passes(plain, accesses, 8)


def test_the_transpose_tile_is_cured_by_a_swizzle_or_one_word_of_padding():
    tile = CuteLayout((32, 32), (32, 1))
    column, row = np.arange(32), np.arange(32) * 32
    assert bank_conflicts(tile, column).passes == (32,) and bank_conflicts(tile, row).passes == (1,)
    swizzled = search_swizzle(tile, [column, row])
    assert (str(swizzled.swizzle), swizzled.passes, swizzled.optimal) == ("Sw<5,0,5>", 2, True)
    assert all(bank_conflicts(swizzled.layout, t).passes == (1,) for t in (column, row))
    padded = search_padding(tile, [column, row], 32)
    assert (padded.padding, padded.passes, padded.optimal) == (1, 2, True)
    assert all(bank_conflicts(padded.layout, t).passes == (1,) for t in (column, row))
    assert remove_conflicts(tile, [column, row], 32) == swizzled
    assert remove_conflicts(tile, [row]).kind == "none"


def test_vector_accesses_keep_their_alignment():
    tile = CuteLayout((32, 64), (64, 1))  # 32 rows of 64 halves: eight threads read 16 bytes of eight rows
    rows = np.arange(32)
    found = search_swizzle(tile, [rows], element_bytes=2, vector=8)
    assert found.before == 32 and found.passes == 4 and found.optimal
    assert found.swizzle.base >= 3
    assert bank_conflicts(found.layout, rows, element_bytes=2, vector=8).passes == (4,)


def test_a_remedy_says_when_it_is_only_the_best_of_its_family():
    tile = CuteLayout((3, 32), (32, 1))
    accesses = [np.array([0, 1, 2])]
    none = search_padding(tile, accesses, 32, most=0)
    assert none.kind == "none" and none.passes == 3 and not none.optimal
    with pytest.raises(LayoutError):
        search_swizzle(tile, [])


def test_padding_aligns_vectors_that_were_not():
    tile = CuteLayout((32, 33), (33, 1))  # rows of 33 elements, read 4 at a time
    rows = np.arange(32)
    with pytest.raises(LayoutError, match="not aligned"):
        search_swizzle(CuteLayout((3, 3), (5, 1)), [np.arange(3)], vector=4)
    found = search_padding(tile, [rows], 33, vector=4)
    assert found.before is None and found.kind == "padding" and found.padding % 4 == 3
    assert bank_conflicts(found.layout, rows, vector=4).passes == (found.passes,) == (4,)
    assert remove_conflicts(tile, [rows], 33, vector=4).passes == 4


def test_a_swizzle_keeps_vectors_whole():
    rng = random.Random(6)
    for _ in range(30):
        vector = rng.choice([2, 4, 8])
        tile = CuteLayout((32, 64), (64, 1))
        rows = np.array([64 * rng.randrange(32) + vector * rng.randrange(64 // vector) for _ in range(32)])
        threads = rows // 64 + rows % 64 * 32  # first mode fastest
        found = search_swizzle(tile, [threads], element_bytes=2, vector=vector)
        if found.swizzle:
            start = found.swizzle(rows)
            for k in range(vector):
                assert (found.swizzle(rows + k) == start + k).all(), (vector, str(found.swizzle))


def test_a_remedy_says_how_far_its_buffer_reaches():
    tile = CuteLayout((32, 20), (20, 1))  # 640 elements: no power of two
    for found in (search_swizzle(tile, [np.arange(32)]), search_padding(tile, [np.arange(32)], 20)):
        offsets = [int(v) for v in np.asarray(offsets_of(found.layout, np.arange(640)))]
        assert len(set(offsets)) == 640 and found.cosize == max(offsets) + 1


@pytest.mark.parametrize(
    "text",
    [
        "(8,64):(64,1)",
        "(8:64, 64:1)",
        "Row(8,64)",
        "OrderBy(Row(8,64))",
        "GroupBy((8,64))",
        "(8,64):(64,1)^",
        "Col(64,8)",
    ],
)
def test_every_question_takes_every_notation_and_its_text(text):
    value = read(text)
    rows = np.arange(8) if isinstance(value, CuteLayout | XorLayout) else np.arange(8) * 64
    for given in (text, value):
        assert bank_conflicts(given, rows, element_bytes=2, vector=1).passes
        assert coalescing(given, rows, element_bytes=2).sectors
        assert vector_width(given, 2).elements >= 1
        assert search_swizzle(given, [rows], element_bytes=2).passes >= 1
        assert conversion(given, value).means == "nothing"
        assert svg(given).startswith("<svg")
        offsets = offsets_of(given, np.arange(512))
        assert sorted(offsets.tolist()) == list(range(512))
        assert offsets[1] == (64 if text == "Col(64,8)" or rows[1] == 1 else 1)
    named = from_layout(value)
    assert bank_conflicts(named, np.arange(8), element_bytes=2).passes
    assert svg(named).startswith("<svg")


# --- conversions


def places(layout, x, kept):
    base = layout(x)
    return {tuple((base + r)[a] for a in kept) for r in layout.replicas()}


def conversion_by_hand(source, target):
    levels = [("devices", ["gpu"]), ("shared", ["gpu", "warp"]), ("lanes", ["gpu", "warp", "lane"]),
              ("registers", ["gpu", "warp", "lane", "reg"])]  # fmt: skip
    for name, kept in levels:
        if any(not places(target, x, kept) <= places(source, x, kept) for x in range(source.size)):
            return name
    return "nothing"


@pytest.mark.parametrize("count", MANY)
def test_conversions_need_what_the_definition_says(count):
    rng = random.Random(4)
    seen = {}
    for _k in range(count):
        extents = [rng.choice([2, 2, 3]) for _m in range(rng.randint(1, 4))]
        axes = ["reg", "lane", "warp", "gpu"][: rng.randint(1, 4)]

        def draw(extents=extents, axes=axes):
            names = [rng.choice(axes) for _n in extents]
            strides, reach = [], dict.fromkeys(axes, 1)
            for n, axis in zip(extents, names, strict=True):
                strides.append({axis: reach[axis]})
                reach[axis] *= n
            replica = [(2, {rng.choice(axes): rng.choice([1, 2])})] if rng.random() < 0.4 else []
            return Layout(tuple(zip(extents, strides, strict=True)), tuple(replica))

        source = draw()
        target = source if rng.random() < 0.1 else draw()
        found = conversion(source, target)
        want = conversion_by_hand(source, target)
        assert found.means == want
        seen[want] = seen.get(want, 0) + 1
        if found.element is not None:
            kept = sorted({a for a, _v in found.place.terms} | set(axes))
            assert 0 <= found.element < source.size and kept
    assert len(seen) == 5


SPLIT = {"tid": (("lane", 4), ("warp", None)), "reg": "register", "gpu": "device"}


@pytest.mark.parametrize("count", MANY)
def test_an_axis_of_threads_is_split_into_lanes_and_warps(count):
    """By definition: the thread t is lane t % 4 of warp t // 4."""
    rng = random.Random(5)

    def held(layout, x, kept):
        out = set()
        for r in layout.replicas():
            at = layout(x) + r
            whole = {"gpu": at["gpu"], "warp": at["tid"] // 4, "lane": at["tid"] % 4, "reg": at["reg"]}
            out.add(tuple(whole[name] for name in kept))
        return out

    def draw(size):
        extents = []
        while size > 1:
            extents.append(rng.choice([p for p in (2, 3, 4, 6) if size % p == 0]))
            size //= extents[-1]
        steps = [*({"tid": s} for s in (1, 2, 3, 4)), {"reg": 1}, {"gpu": 1}, {"tid": 1, "reg": 1}]
        strides = [rng.choice(steps) for _ in extents]
        replica = [(2, rng.choice([{"tid": 4}, {"tid": 1}, {"gpu": 1}, {"tid": 4, "gpu": 1}]))] * rng.choice([0, 0, 1])
        return Layout(tuple(zip(extents, strides, strict=True)), tuple(replica), rng.choice([0, {"tid": 2}]))

    seen = {}
    for _ in range(count):
        size = rng.choice([8, 12, 16, 24])
        source = draw(size)
        target = source if rng.random() < 0.2 else draw(size)
        want = "nothing"
        for name, kept in [("devices", ["gpu"]), ("shared", ["gpu", "warp"]), ("lanes", ["gpu", "warp", "lane"]),
                           ("registers", ["gpu", "warp", "lane", "reg"])]:  # fmt: skip
            if any(not held(target, x, kept) <= held(source, x, kept) for x in range(size)):
                want = name
                break
        assert conversion(source, target, SPLIT).means == want
        seen[want] = seen.get(want, 0) + 1
    assert {"nothing", "devices", "shared", "lanes"} <= set(seen)


def test_conversions_of_symbolic_layouts_are_proved():
    n = symbol("n", 2)
    rows = Layout(((n, {"lane": 1}), (4, {"reg": 1})))
    assert conversion(rows, Layout(((n, {"lane": 1}), (2, {"reg": 2}), (2, {"reg": 1})))).means == "nothing"
    assert conversion(rows, Layout(((n, {"lane": 1}), (4, {"reg": -1})), (), {"reg": 3})).means == "registers"
    found = conversion(rows, Layout(((4, {"reg": 1}), (n, {"lane": 1}))))
    assert (found.means, found.element) == ("lanes", None)
    with pytest.raises(Unproved):
        conversion(rows, rows, {"lane": (("lane", 32), ("warp", None)), "reg": "register"})


def test_split_axes_of_large_layouts_are_structural():
    levels = {"tid": (("lane", 32), ("warp", 4), ("device", None)), "reg": "register"}
    rows = Layout(((1 << 40, {"tid": 1}), (8, {"reg": 1})))
    assert conversion(rows, rows, levels).means == "nothing"
    lanes = Layout(((1 << 35, {"tid": 32}), (2, {"tid": 1}), (16, {"tid": 2}), (8, {"reg": 1})))
    assert conversion(rows, lanes, levels).means == "lanes"
    warps = Layout(((1 << 33, {"tid": 128}), (4, {"tid": 1}), (32, {"tid": 4}), (8, {"reg": 1})))
    found = conversion(rows, warps, levels)
    assert (found.means, found.level) == ("shared", "warp")
    assert (
        conversion(rows, Layout(((1 << 40, {"tid": -1}), (8, {"reg": 1})), (), {"tid": (1 << 40) - 1}), levels).means
        == "devices"
    )
    for bad, text in [
        ({"tid": (("lane", None), ("warp", 4))}, "digit 0 of axis tid has the extent None"),
        ({"tid": (("lane", 0),)}, "digit 0 of axis tid has the extent 0"),
        ({"tid": (("lanes", 4),)}, "is no digit of axis tid"),
        ({"tid": ()}, "axis tid has no level"),
        ({"tid": (("lane", 32), ("warp", 4))}, "outside its digits"),
        ({"tid": (("lane", 32), ("lane", None))}, "two digits have one name"),
    ]:
        with pytest.raises(LayoutError, match=text):
            conversion(rows, rows, {"reg": "register", **bad})


def test_conversions_of_large_layouts_are_structural():
    wide = Layout(((1 << 30, {"lane": 1}), (1 << 10, {"reg": 1})))
    other = Layout(((1 << 30, {"lane": 1}), (1 << 5, {"reg": 1}), (1 << 5, {"reg": 32})))
    assert conversion(wide, wide).means == "nothing"
    assert conversion(wide, other).means == "registers"
    with pytest.raises(Incongruent):
        conversion(wide, Layout(((2, {"lane": 1}),)))
    with pytest.raises(LayoutError, match="no level"):
        conversion(Layout(((2, {"q": 1}),)), Layout(((2, {"q": 1}),)))
    named = conversion(Layout(((2, {"q": 1}),)), Layout(((2, {"q": 2}),)), levels={"q": "lane"})
    assert named.means == "lanes"
    replicated = Layout(((1 << 20, {"lane": 1}),), ((2, {"lane": 3}), (2, {"lane": 5})))
    moved = Layout(((1 << 20, {"lane": 1}),), ((16, {"lane": 3}), (16, {"lane": 7})))
    assert conversion(replicated, moved).means == "lanes"
    assert conversion(moved, replicated).means == "lanes"
    wide = Layout(((1 << 20, {"lane": 1}),), ((16, {"lane": 3}), (16, {"lane": 7})))
    assert conversion(wide, Layout(((1 << 20, {"lane": 1}),), ((4, {"lane": 14}),))).means == "nothing"
    with pytest.raises(Undecided):
        conversion(replicated, Layout(((1 << 20, {"lane": 1}),), ((1 << 13, {"lane": 1}), (1 << 13, {"lane": 3}))))
