"""Conversions run on data, and compared with the definition: every place of the target holds its element."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tileweave.layout import Layout, is_injective
from tileweave.layout.analysis import moves
from tileweave.layout.analysis.movement import conversion

MANY = [60, pytest.param(1500, marks=pytest.mark.slow)]
AXES = ["gpu", "warp", "lane", "reg"]
COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def in_place(layout, values, digits=()):
    """By definition: agent -> slot -> value, of layouts whose only slot axis is reg or m."""
    out = {}
    for x in range(layout.size):
        for r in layout.replicas():
            at = layout(x) + r
            tid = at["tid"]
            warp, lane = (tid // 4, tid % 4) if digits else (at["warp"], at["lane"])
            out.setdefault((at["gpu"], warp, lane), {})[at["reg"] + at["m"]] = values[x]
    return out


def given(layout, values, agents, digits=()):
    """The data before: arrays per agent, what holds nothing is junk."""
    names = ("gpu", "warp", "lane")
    found = in_place(layout, values, digits)
    width = 1 + max(max(row) for row in found.values())
    state = {}
    for key, row in found.items():
        slots = np.full(width, -77, dtype=values.dtype)
        for slot, value in row.items():
            slots[slot] = value
        short = tuple(v for n, v in zip(names, key, strict=True) if any(a.split("_")[-1] == n for a in agents))
        state[short] = slots
    return state


def check(plan, values, want, digits=()):
    state = plan.execute(given(plan.source, values, plan.agents, digits))
    names = ("gpu", "warp", "lane")
    checked = 0
    for key, row in in_place(plan.target, want, digits).items():
        short = tuple(v for n, v in zip(names, key, strict=True) if any(a.split("_")[-1] == n for a in plan.agents))
        for slot, value in row.items():
            assert state[short][slot] == value
            checked += 1
    assert checked == plan.target.size * len({tuple(r.terms) for r in plan.target.replicas()})
    assert np.array_equal(plan.collect(state), want)


def draw(rng, size, axes, offset=False):
    """A random injective layout: digits on random axes, each axis filled in random order, with replicas."""
    extents = []
    while size > 1:
        extents.append(rng.choice([p for p in (2, 3, 4, 5) if size % p == 0]))
        size //= extents[-1]
    parts = [(n, rng.choice(axes), False) for n in extents]
    spare = [a for a in axes if a != "reg" and a != "m"]
    if spare and rng.random() < 0.35:
        parts.append((rng.choice([2, 2, 3]), rng.choice(spare), True))
    order = list(range(len(parts)))
    rng.shuffle(order)
    reach, strides = dict.fromkeys(axes, 1), {}
    for k in order:
        n, axis, _ = parts[k]
        strides[k] = {axis: reach[axis]}
        reach[axis] *= n
    shard = tuple((parts[k][0], strides[k]) for k in range(len(parts)) if not parts[k][2])
    replica = tuple((parts[k][0], strides[k]) for k in range(len(parts)) if parts[k][2])
    shift = {rng.choice(axes): rng.randint(0, 2)} if offset and rng.random() < 0.3 else 0
    layout = Layout(shard, replica, shift)
    assert is_injective(layout)
    return layout


@pytest.mark.parametrize("count", MANY)
def test_random_pairs_of_layouts_run_to_the_definition(count):
    seed = 101
    rng = random.Random(seed)
    seen = {}
    for k in range(count):
        size = rng.choice([4, 8, 12, 16, 24, 32, 48, 60, 64])
        axes = AXES[rng.randint(0, 3) :]
        source = draw(rng, size, axes, True)
        target = source if rng.random() < 0.05 else draw(rng, size, axes, True)
        plan = conversion(source, target, element_bytes=rng.choice([1, 2, 4, 8, 16]))
        values = np.array(rng.sample(range(10_000), size))
        try:
            check(plan, values, values)
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {k}: {source} -> {target}") from error
        seen[plan.means] = seen.get(plan.means, 0) + 1
        assert (plan.means == "nothing") == (not plan.steps)
        assert str(plan)
    assert {"registers", "lanes", "shared", "devices"} <= set(seen)


@pytest.mark.parametrize("count", MANY)
def test_loads_and_stores_between_memory_and_threads_run_to_the_definition(count):
    seed = 102
    rng = random.Random(seed)
    seen = {}
    for k in range(count):
        size = rng.choice([8, 16, 24, 32, 64])
        memory = draw(rng, size, rng.choice([["m"], ["gpu", "m"]]), True)
        threads = draw(rng, size, ["gpu", "warp", "lane", "reg"][rng.randint(0, 1) :], True)
        pair = rng.choice([(memory, threads), (threads, memory), (memory, draw(rng, size, ["m"]))])
        plan = conversion(*pair, element_bytes=rng.choice([1, 2, 4, 8]))
        values = np.array(rng.sample(range(10_000), size))
        try:
            check(plan, values, values)
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {k}: {pair[0]} -> {pair[1]}") from error
        for step in plan.steps:
            seen[getattr(step, "way", step.kind)] = seen.get(getattr(step, "way", step.kind), 0) + 1
    assert {"loads", "stores", "moves", "devices"} <= set(seen)


@pytest.mark.parametrize("count", MANY)
def test_an_axis_of_threads_runs_by_its_digits(count):
    seed = 103
    rng = random.Random(seed)
    levels = {"tid": (("lane", 4), ("warp", None)), "reg": "register"}
    for k in range(count):
        size = rng.choice([8, 16, 24, 32])
        source, target = (draw(rng, size, ["tid", "reg"], True) for _ in range(2))
        plan = conversion(source, target, levels)
        values = np.array(rng.sample(range(10_000), size))
        try:
            check(plan, values, values, digits=("warp", "lane"))
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {k}: {source} -> {target}") from error


@pytest.mark.parametrize("count", MANY)
def test_terms_are_combined_to_the_definition(count):
    seed = 104
    rng = random.Random(seed)
    seen = {}
    for k in range(count):
        size, terms = rng.choice([4, 8, 12, 16]), rng.choice([2, 3, 4, 6, 8])
        axes = rng.choice([AXES, AXES[1:], ["lane", "reg"], ["lane"], ["gpu", "m"], ["gpu"], ["reg"], ["gpu", "reg"]])
        source, target = draw(rng, size * terms, axes, True), draw(rng, size, axes, True)
        name = rng.choice(list(COMBINE))
        try:
            plan = conversion(source, target, {"m": "memory", "gpu": "device", "warp": "warp", "lane": "lane",
                                               "reg": "register"}, reduce=name)  # fmt: skip
            values = np.array([rng.randint(1, 3) for _ in range(size * terms)])
            want = COMBINE[name].reduce(values.reshape(terms, size), axis=0)
            check(plan, values, want)
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {k}: {name} of {source} -> {target}") from error
        for step in plan.steps:
            seen[step.kind] = seen.get(step.kind, 0) + 1
    assert {"combine", "devices", "lanes"} <= set(seen), seen


# --- what devices do, by name


MESH = "(2:1@gpu, 32:64, 2:2@gpu, 64:1)"
PLACEMENTS = {
    "none": ("(4:1@gpu, 8:1)", "(4:1@gpu, 8:1)", None, 0),
    "slice": ("(32:1) + [4:1@gpu]", "(4:1@gpu, 8:1)", None, 0),
    "permute": ("(4:1@gpu, 8:1)", "(4:-1@gpu, 8:1) + 3@gpu", None, 8),
    "broadcast": ("(32:1)", "(32:1) + [4:1@gpu]", None, 32),
    "scatter": ("(32:1)", "(4:1@gpu, 8:1)", None, 24),
    "gather": ("(4:1@gpu, 8:1)", "(32:1)", None, 24),
    "all-gather": ("(4:1@gpu, 8:1)", "(32:1) + [4:1@gpu]", None, 24),
    "all-to-all": ("(4:1@gpu, 4:2, 2:1)", "(4:2, 4:1@gpu, 2:1)", None, 6),
    "reduce": ("(4:1@gpu, 32:1)", "(32:1)", "sum", 32),
    "reduce-scatter": ("(4:1@gpu, 32:1)", "(4:1@gpu, 8:1)", "sum", 24),
    "all-reduce": ("(4:1@gpu, 32:1)", "(32:1) + [4:1@gpu]", "max", 48),
    "exchange": ("(2:1@gpu, 3:2@gpu, 4:1)", "(3:1@gpu, 2:3@gpu, 4:1) + [2:1]", None, 4),
}


@pytest.mark.parametrize("kind", PLACEMENTS)
def test_collectives_are_recognised_and_counted(kind):
    from tileweave.layout import parse

    source, target, reduce, words = PLACEMENTS[kind]
    source, target = parse(source), parse(target)
    if kind == "exchange":
        source, target = parse("(2:1@gpu, 6:1)"), parse("(3:1@gpu, 4:1)")
    plan = conversion(source, target, reduce=reduce)
    assert (plan.collective.kind, plan.collective.words) == (kind, words)
    values = np.arange(source.size)
    want = values if reduce is None else COMBINE[reduce].reduce(values.reshape(-1, target.size), axis=0)
    state = plan.execute(plan.distribute(values))
    assert np.array_equal(plan.collect(state), want)


@pytest.mark.parametrize("count", MANY)
def test_messages_between_devices_are_what_is_missing(count):
    """By definition: a device receives exactly the elements that it wants and does not have."""
    seed = 105
    rng = random.Random(seed)
    kinds = {}
    for k in range(count):
        size = rng.choice([8, 12, 16, 24, 36])
        source, target = (draw(rng, size, ["gpu", "m"], True) for _ in range(2))
        plan = conversion(source, target)
        has, wants = {}, {}
        for layout, rows in ((source, has), (target, wants)):
            for x in range(size):
                for r in layout.replicas():
                    rows.setdefault((layout(x) + r)["gpu"], set()).add(x)
        missing = {d: len(xs - has.get(d, set())) for d, xs in wants.items()}
        received = dict.fromkeys(missing, 0)
        for (giver, taker), n in plan.collective.messages.items():
            assert giver != taker and n <= len(has[giver[0]])
            received[taker[0]] += n
        assert received == missing, (seed, k, str(source), str(target))
        if plan.means == "devices":
            assert plan.steps[0].run(plan.distribute(np.arange(size)))[1] == dict(plan.collective.messages), (seed, k)
        kinds[plan.collective.kind] = kinds.get(plan.collective.kind, 0) + 1
    assert len(kinds) >= 4, kinds


def test_a_collective_of_a_large_tensor_is_recognised_in_closed_form():
    rows = Layout(((8, {"gpu": 1}), (1 << 40, 1)))
    columns = Layout(((1 << 20, 1 << 20), (8, {"gpu": 1}), (1 << 20, 1)))
    found = conversion(rows, columns).collective
    assert (found.kind, found.words) == ("all-to-all", 7 * (1 << 37))
    partial = Layout(((8, {"gpu": 1}), (1 << 40, 1)))
    whole = Layout(((1 << 40, 1),), ((8, {"gpu": 1}),))
    assert conversion(partial, whole, reduce="sum").collective.words == 2 * 7 * (1 << 37)


def test_devices_of_a_mesh_with_two_axes_are_named_by_both():
    from tileweave.layout import parse

    levels = {"x": "device", "y": "device", "m": "memory"}
    plan = conversion(parse("(2:1@x, 2:1@y, 8:1)"), parse("(2:1@x, 16:1) + [2:1@y]"), levels)
    assert str(plan) == "devices: all-gather among {(0,0), (0,1)}, {(1,0), (1,1)}: 8 words a device"


def test_partial_sums_on_a_mesh_take_two_steps_where_that_is_less():
    from tileweave.layout import parse

    source = parse("(2:2@gpu, 2:1@gpu, 16:1)")  # partial along one axis of the mesh, split along the other
    target = parse("(32:1) + [4:1@gpu]")
    plan = conversion(source, target, reduce="sum")
    assert [s.collective.kind for s in plan.steps] == ["all-reduce", "all-gather"]
    assert plan.steps[0].collective.groups == (((0,), (2,)), ((1,), (3,)))
    values = np.arange(64)
    assert np.array_equal(plan.collect(plan.execute(plan.distribute(values))), values.reshape(2, 32).sum(axis=0))


# --- what threads do, by count


@pytest.mark.parametrize("count", MANY)
def test_shuffles_are_coloured_in_as_many_rounds_as_the_greatest_degree(count):
    """König: without copies, as many rounds as one lane gives or takes values are enough."""
    seed = 106
    rng = random.Random(seed)
    for k in range(count):
        lanes = rng.choice([2, 3, 8, 32])
        edges = [(rng.randrange(lanes), rng.randrange(lanes)) for _ in range(rng.randint(1, 6 * lanes))]
        rows = [(s, n, a, n) for n, (s, a) in enumerate(edges)]
        colours = moves._colour(rows)
        for end in (0, 2):
            pairs = {(row[end], colour) for row, colour in zip(rows, colours, strict=True)}
            assert len(pairs) == len(rows), (seed, k)
        assert max(colours) + 1 == moves._least_rounds(rows), (seed, k)


def test_the_cheaper_of_fewer_shuffles_and_fewer_selects_is_taken():
    seed = 107
    rng = random.Random(seed)
    for _ in range(40):
        source = Layout(((8, {"lane": 1}), (8, {"reg": 1})))
        target = draw(rng, 64, ["lane", "reg"])
        for step in conversion(source, target).steps:
            if step.kind == "lanes":
                assert step.least <= step.rounds <= step.cost.instructions, (seed, str(target))


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_bits_that_change_between_lanes_and_registers_are_exchanged_one_by_one_where_that_is_cheaper(count):
    seed = 108
    rng = random.Random(seed)
    staged = 0
    for k in range(count):
        bits = [{"lane": 1 << b} for b in range(5)] + [{"reg": 1 << b} for b in range(rng.randint(3, 6))]
        source, target = (Layout(tuple((2, stride) for stride in rng.sample(bits, len(bits)))) for _ in range(2))
        plan = conversion(source, target, element_bytes=rng.choice([2, 4]))
        values = np.array(rng.sample(range(10_000), source.size))
        check(plan, values, values)
        if plan.means == "lanes":
            direct = moves.Shuffle.make(*plan._places, plan.element_bytes)
            assert sum(step.cost.instructions for step in plan.steps) <= direct.cost.instructions, (seed, k)
            staged += len(plan.steps) > 1
    assert staged > count // 10


def test_an_accumulator_becomes_rows_by_three_exchanges():
    from tileweave.layout import parse

    accumulator = parse("(4:1@warp, 2:2@reg, 8:4@lane, 16:4@reg, 4:1@lane, 2:1@reg)")  # wgmma, 64 x 128
    rows = parse("(4:1@warp, 16:2@lane, 2:1@lane, 64:1@reg)")  # two lanes to a row of 128
    plan = conversion(accumulator, rows, element_bytes=2)
    assert plan.means == "lanes" and len(plan.steps) > 1
    assert sum(step.cost.instructions for step in plan.steps) < 300


def test_a_shuffle_moves_neighbours_as_one_word():
    from tileweave.layout import parse

    source, target = parse("(4:1@lane, 4:2@reg, 2:1@reg)"), parse("(4:2@reg, 4:1@lane, 2:1@reg)")
    half, single = (conversion(source, target, element_bytes=n).steps for n in (2, 4))
    assert {step.vector for step in half} == {2} and {step.vector for step in single} == {1}
    assert 2 * sum(step.rounds for step in half) == sum(step.rounds for step in single)


def test_a_trip_through_shared_memory_has_no_conflicts_where_a_swizzle_removes_them():
    from tileweave.layout import parse

    rows = parse("(32:1@lane, 4:1@warp, 8:1@reg)")  # 32 x 32, a row for each lane
    columns = parse("(4:1@warp, 8:1@reg, 32:1@lane)")
    step = conversion(rows, columns).steps[0]
    assert step.kind == "shared" and step.passes == step.least
    values = np.arange(1024)
    plan = conversion(rows, columns)
    assert np.array_equal(plan.collect(plan.execute(plan.distribute(values))), values)


def test_lanes_add_up_in_a_butterfly():
    from tileweave.layout import parse

    plan = conversion(parse("(32:1@lane, 4:1@reg)"), parse("(4:1@reg) + [32:1@lane]"), reduce="sum")
    assert [s.kind for s in plan.steps] == ["butterfly"] and plan.steps[0].masks == (1, 2, 4, 8, 16)
    assert plan.steps[0].cost.instructions == 5 * 4 * 2
    values = np.arange(128)
    assert np.array_equal(plan.collect(plan.execute(plan.distribute(values))), values.reshape(32, 4).sum(axis=0))


def test_a_swizzled_buffer_is_a_source_like_any_other():
    from tileweave.layout import parse
    from tileweave.layout.cute import ComposedLayout, CuteLayout, Swizzle

    tile = ComposedLayout(Swizzle(3, 3, 3), 0, CuteLayout((8, 64), (64, 1)))
    fragment = parse("(8:4@lane, 4:1@lane, 16:1@reg)")
    plan = conversion(tile, fragment, element_bytes=2)
    assert plan.means == "memory" and plan.steps[0].vector == 8 and plan.steps[0].cost.instructions == 2
    shared = np.zeros(512, int)
    for i in range(8):
        for j in range(64):
            shared[tile(i, j)] = 64 * i + j
    found = plan.execute({(0,): shared})
    for lane in range(32):
        assert found[(lane,)].tolist() == [lane * 16 + j for j in range(16)]


def test_loads_from_a_swizzled_buffer_count_their_bank_conflicts():
    from tileweave.layout import parse, read
    from tileweave.layout.analysis.memory import bank_conflicts

    columns = parse("(8:4@lane, 4:16@reg, 4:1@lane, 4:4@reg, 2:2@reg, 2:1@reg)")  # any fragment of 8 x 64 ...
    fragment = parse("(8:4@lane, 8:2@reg, 4:1@lane, 2:1@reg)")
    assert columns.size == 8 * 4 * 4 * 4 * 2 * 2 and fragment.size == 512
    for text in ("(8,64):(64,1)", "Sw<3,3,3> o 0 o (8,64):(64,1)"):
        tile = read(text)
        cost = conversion(tile, fragment, element_bytes=2).steps[0].cost
        passes = 0
        for reg in range(0, 16, 2):
            index = np.zeros(32, int)
            for x in range(512):
                at = fragment(x)
                if at["reg"] == reg:
                    index[at["lane"]] = x // 64 + x % 64 * 8  # first mode fastest
            passes += bank_conflicts(tile, index, element_bytes=2, vector=2).passes[0]
        assert cost.passes == passes
        assert (cost.passes == cost.least) == text.startswith("Sw")
    back = conversion(fragment, read("Sw<3,3,3> o 0 o (8,64):(64,1)"), element_bytes=2).steps[0]
    assert back.way == "stores" and back.cost.passes == back.cost.least == 8


HOSTILE = [
    "(8:1099511627776@m)", "(8:1@lane) - 5@lane", "(8:-3@reg) + 2@lane", "(8:0@reg)", "(2:1@lane, 4:1@lane)",
    "(8:1@lane) + [4:1@lane]", "(8:1@lane) + [3:1@lane]", "(2:1@gpu, 4:1@gpu)", "(8:1@gpu - 1@lane)", "()", "(8:1@q)",
    "(8:1@lane + 1@reg)", "(8:1@gpu) + [2:8@gpu + 1@m]", "(4:1@warp, 2:1@m) - 1@m", "(2:4@reg,4:1@reg) + [2:1@warp]",
    "(8:1@Lane)", "(2:1@P, 4:1@F)", "(8:1@block)", "(1:1@lane, 8:1@reg, 1:7@warp)", "(16:1@gpu)", "(2:8@m, 8:1@gpu)",
]  # fmt: skip


def test_whatever_the_layouts_a_plan_runs_to_the_definition_or_the_refusal_is_named():
    from itertools import product

    from tileweave.errors import TileweaveError
    from tileweave.layout import parse

    ran = 0
    for a, b in product(map(parse, HOSTILE), repeat=2):
        for reduce in (None, "sum"):
            try:
                plan = conversion(a, b, reduce=reduce)
                values = np.arange(a.size) + 1
                want = values.reshape(-1, b.size).sum(axis=0)
                found = plan.collect(plan.execute(plan.distribute(values)))
            except TileweaveError as error:
                assert error.where and error.problem
            else:
                assert np.array_equal(found, want), (str(a), str(b), reduce)
                assert str(plan) and str(plan.collective)
                ran += 1
    assert ran > 100
