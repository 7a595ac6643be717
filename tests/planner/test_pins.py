"""Plans that are bound by hand: pins, forbidden cuts, placements; and hand-written parallelisations as plans."""

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.errors import PlanError
from tileweave.planner import Placement, machines, make_plan, simulate


def source(shape, name):
    return g.Tensor(g.Source(g.Hole(name), g.TensorType(shape, "float32"), name))


def decide(operation, stage):
    return Decision(stage)


def test_a_pinned_operation_is_cut_as_it_says():
    a, b = np.ones((64, 32), np.float32), np.ones((32, 48), np.float32)
    y = tw.source(a) @ tw.source(b)
    for parts in [(4, 1, 1), (2, 2, 1), (1, 1, 4), (1, 2, 2), (3, 1, 1)]:
        plan = tw.plan(y, 4, pin={y: parts})
        assert plan.steps[0].cuts.grid == parts
        np.testing.assert_allclose(tw.run(plan), a @ b)
    names = y.producer.signature.dims
    plan = tw.plan(y, 4, pin={y: {names[1]: 4}})
    assert plan.steps[0].cuts.grid == (1, 4, 1)
    plan = tw.plan(y, 4, forbid={y: [names[0], names[1]]})
    assert plan.steps[0].cuts.grid[:2] == (1, 1)


def test_what_cannot_be_pinned_is_refused():
    x = tw.source(np.ones((8, 8)))
    y = tw.exp(x)
    with pytest.raises(PlanError, match="no operation"):
        tw.plan(y, 2, pin={x: (2, 1)})
    with pytest.raises(PlanError, match="cannot be cut into"):
        tw.plan(y, 2, pin={y: (4, 1)})
    with pytest.raises(PlanError, match="has no dimension 'q'"):
        tw.plan(y, 2, pin={y: {"q": 2}})
    with pytest.raises(PlanError, match="no place"):
        tw.plan(y, 2, place={x: "nowhere"})
    with pytest.raises(PlanError, match="no objective"):
        tw.plan(y, 2, objective="beauty")


def test_resident_sources_move_only_what_machines_do_not_hold():
    x, w = source((64, 32), "x"), source((32, 48), "w")
    y = g.matmul(x, w)
    rows, copies = Placement((4, 1), (((4, 1),), ()), (1, 1)), Placement((1, 1), ((), ()), (1, 1), ((4, 1),))
    place = {x.producer: rows, w.producer: copies}
    plan = make_plan(g.Graph.of(y), machines(4, memory="1GiB"), decide, place=place)
    assert (plan.bytes_moved, plan.bytes_read) == (0, 0)
    assert plan.steps[0].cuts.grid == (4, 1, 1)
    one = make_plan(
        g.Graph.of(y), machines(4, memory="1GiB"), decide, place={**place, w.producer: rows}, pin={y: (4, 1, 1)}
    )
    assert one.bytes_moved == 4 * (32 * 48 * 4) * 3 // 4


def mlp(tokens, width):
    x, w1, w2 = source((tokens, width), "x"), source((width, 4 * width), "w1"), source((4 * width, width), "w2")
    up = g.matmul(x, w1)
    mid = g.relu(up)
    return (x, w1, w2), (up, mid, g.matmul(mid, w2))


def block(batch, tokens, width, heads):
    """A transformer block without its norms: attention in heads, a perceptron, and what is added back."""
    each = width // heads
    x = source((batch, tokens, width), "x")
    weights = [source((width, heads, each), name) for name in "qkv"]
    back, up, down = (
        source((heads, each, width), "o"),
        source((width, 4 * width), "up"),
        source((4 * width, width), "d"),
    )
    q, k, v = (g.einsum("bsw,whd->bhsd", x, w) for w in weights)
    scores = g.einsum("bhsd,bhtd->bhst", q, k)
    mixed = g.einsum("bhst,bhtd->bhsd", g.softmax(scores), v)
    joined = g.einsum("bhsd,hdw->bsw", mixed, back)
    middle = x + joined
    wide = g.einsum("bsw,wf->bsf", middle, up)
    opened = g.relu(wide)
    narrow = g.einsum("bsf,fw->bsw", opened, down)
    return (x, *weights, back, up, down), (q, k, v, scores, mixed, joined, wide, opened, narrow, middle + narrow)


def by_hand(sources, outs, pins, count):
    place = {s.producer: "balanced" for s in sources}
    plan = make_plan(g.Graph.of(outs[-1]), machines(count, memory="64GiB"), decide, place=place, pin=pins)
    return plan, simulate(plan)


@pytest.mark.parametrize("count", [8, 64, 512])
@pytest.mark.parametrize("shape", [(8192, 1024), (4096, 4096)])
def test_an_mlp_is_planned_no_worse_than_by_hand(shape, count):
    sources, outs = mlp(*shape)
    up, mid, down = outs
    found, result = by_hand(sources, outs, {}, count)
    least, _ = found.seconds, result
    ways = {
        "megatron": {up: (1, count, 1), mid: (1, count), down: (1, 1, count)},
        "fsdp": {up: (count, 1, 1), mid: (count, 1), down: (count, 1, 1)},
        "mixed": {up: (count // 4, 4, 1), mid: (count // 4, 4), down: (count // 4, 1, 4)},
    }
    for name, pins in ways.items():
        plan, _ = by_hand(sources, outs, pins, count)
        assert least <= plan.seconds * 1.001, name
    words = make_plan(
        g.Graph.of(down),
        machines(count, memory="64GiB"),
        decide,
        place={s.producer: "balanced" for s in sources},
        objective="words",
    )
    for name, pins in ways.items():
        assert simulate(words).words_bytes <= by_hand(sources, outs, pins, count)[1].words_bytes * 1.001, name


@pytest.mark.parametrize("count", [8, 64])
def test_a_transformer_block_is_planned_no_worse_than_by_hand(count):
    """In simulated seconds, and in the most bytes that a device receives; the planner adds what is not pinned."""
    sources, outs = block(32, 256, 1024, 16)
    q, k, v, scores, mixed, joined, wide, opened, narrow, out = outs

    def cut(data, sequence, tensor):
        rows = dict.fromkeys((q, k, v, scores, mixed), (data, tensor, sequence, 1, 1))
        up, down = (data, sequence, tensor, 1), (data, sequence, 1, tensor)
        return {**rows, joined: (data, sequence, 1, tensor, 1), wide: up, opened: up[:3], narrow: down}

    found, _ = by_hand(sources, outs, {}, count)
    place = {s.producer: "balanced" for s in sources}
    words = make_plan(g.Graph.of(out), machines(count, memory="64GiB"), decide, place=place, objective="words")
    for data, sequence, tensor in [
        (max(1, count // 16), 1, min(count, 16)),  # tensor parallelism as Megatron has it
        (min(count, 32), max(1, count // 32), 1),  # data, then sequence
        (min(count // 4, 32), max(1, count // 128), 4),
    ]:
        plan, other = by_hand(sources, outs, cut(data, sequence, tensor), count)
        assert found.seconds <= plan.seconds * 1.001, (data, sequence, tensor)
        assert simulate(words).words_bytes <= other.words_bytes * 1.001, (data, sequence, tensor)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": -5}, r"plan\(trials\): -5"),
        ({"trials": "x"}, r"plan\(trials\): 'x'"),
        ({"trials": 5, "seed": "x"}, r"plan\(seed\): 'x'"),
        ({"trials": 5, "workers": 0}, r"plan\(workers\): 0"),
        ({"runs": -1}, r"plan\(runs\): -1"),
        ({"place": "moon"}, r"plan\(place\): 'moon' is no mapping"),
        ({"objective": lambda plan: 1.0}, r"plan\(objective\): .* takes other arguments"),
        ({"objective": lambda plan, simulation: "x"}, r"plan\(objective\): .* is 'x'"),
        ({"objective": lambda plan, simulation: float("nan")}, r"plan\(objective\): .* is nan"),
    ],
)
def test_options_of_a_wrong_kind_are_refused(options, said):
    with pytest.raises(PlanError, match=said):
        tw.plan(tw.exp(tw.source(np.ones((8, 8)))), 2, **options)


@pytest.mark.parametrize(
    "cuts", [4, None, True, "411", {"i": "x"}, {"i": 2.7}, {"i": True}, [2.5, 1, 1], {"i": float("nan")}]
)
def test_parts_that_are_no_whole_numbers_are_refused(cuts):
    y = tw.source(np.ones((8, 8))) @ tw.source(np.ones((8, 8)))
    with pytest.raises(PlanError, match=r"plan\(pin\): .* says no parts of matmul"):
        tw.plan(y, 4, pin={y: cuts})
    with pytest.raises(PlanError, match=r"plan\(forbid\): 3 names no dimensions"):
        tw.plan(y, 4, forbid={y: 3})
    for option in ("pin", "forbid"):
        with pytest.raises(PlanError, match=rf"plan\({option}\): .* is no mapping"):
            tw.plan(y, 4, **{option: [(y, 2)]})
