"""A plan that is read from a document computes its graph, or is refused, whoever has written it."""

import copy
import json
import os
import random

import numpy as np
import pytest

import tileweave as tw
from tileweave.errors import PlanError
from tileweave.planner import Level, Machine, Machines, load, machine_tree
from tileweave.planner.show.document import from_document, to_document


def planned(name, count=3, memory="1MiB"):
    rng = np.random.default_rng(0)
    a, b, c = (tw.source(rng.random(shape)) for shape in ((24, 16), (16, 20), (24, 20)))
    targets = {
        "product": tw.relu(a @ b + c),
        "sum": tw.sum(tw.exp(c), 0),
        "softmax": tw.softmax(tw.transpose(c) @ a),
        "two": [tw.sum(a @ b, 1), tw.exp(c)],
        "tree": a @ b,
        "long sum": tw.sum(tw.source(rng.random((4000, 3))), 0),
    }
    if name == "tree":
        levels = [Level("node", 2, 1e9), Level("device", count // 2, 1e10)]
        return tw.plan(targets[name], machine_tree(levels, Machine("m", 1 << 20)))
    return tw.plan(targets[name], tw.machines(count, memory=memory))


CASES = [
    *((name, count, "1MiB") for name in ("product", "sum", "softmax", "two") for count in (1, 3)),
    ("tree", 4, "1MiB"),
    ("product", 2, "5KiB"),
    ("long sum", 2, "20KiB"),
]


def places(value, at=()):
    """Every path in plain data."""
    yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def mutated(document, chance):
    """A document with one field changed, dropped, doubled or put elsewhere."""
    made = copy.deepcopy(document)
    every = [at for at in places(made) if at and at[0] not in ("graph", "format", "digest")]
    at = chance.choice([one for one in every if one[0] == "steps"] if chance.random() < 0.7 else every)
    parent = made
    for key in at[:-1]:
        parent = parent[key]
    value, how = parent[at[-1]], chance.random()
    if how < 0.15:
        del parent[at[-1]]
    elif how < 0.25 and isinstance(parent, list):
        parent.insert(at[-1], copy.deepcopy(value))
    elif how < 0.35 and isinstance(parent, list):
        other = chance.randrange(len(parent))
        parent[at[-1]], parent[other] = parent[other], parent[at[-1]]
    elif isinstance(value, list):
        parent[at[-1]] = chance.choice([[], None, value[::-1], value[:-1], value + value, 3])
    elif isinstance(value, str):
        parent[at[-1]] = chance.choice(["", "block", "partial", "combine", "store", "x", 3, None])
    elif isinstance(value, (int, float)):
        some = [value + 1, value - 1, 0, -1, 10**6, value * 2, 1.5, None, "x", 2**70, float("nan"), float("inf")]
        parent[at[-1]] = chance.choice(some)
    else:
        parent[at[-1]] = chance.choice([None, [], {}, 3])
    return made, at


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_tampered_plan_is_refused_or_computes_its_graph(case, tmp_path):
    seed = int(os.environ.get("TILEWEAVE_TEST_SEED", "0")) or random.randrange(1 << 30)
    chance, plan = random.Random(seed + case), planned(*CASES[case])
    document, wanted = to_document(plan), tw.run(plan)
    print("seed", seed)
    for _ in range(60):
        made, at = mutated(document, chance)
        (tmp_path / "plan.json").write_text(json.dumps(made))
        try:
            found = load(str(tmp_path / "plan.json"), chance.choice([plan.graph, None]))
        except PlanError:
            continue
        assert found.explain() and found.to_json(), at
        got = tw.run(found)
        for one, other in zip(*((x if isinstance(x, list) else [x]) for x in (got, wanted)), strict=True):
            np.testing.assert_allclose(one, other, err_msg=f"{seed} {at}")


def changed(at, value):
    def change(document):
        parent = document
        for key in at[:-1]:
            parent = parent[key]
        parent[at[-1]] = value(parent[at[-1]]) if callable(value) else value

    return change


def swapped(document):
    document["steps"][:2] = document["steps"][1::-1]


BAD = [
    (("product", 1), changed(("steps",), lambda rows: rows[:-1]), "a sink has no step"),
    (("product", 1), changed(("steps",), lambda rows: rows + rows[-1:]), "a sink has store and store"),
    (("product", 1), changed(("steps", 0, "cuts", 1), [0, 19]), r"step 0 .* has the cuts \[0, 19\]"),
    (("product", 3), changed(("steps", 0, "cuts", 0), [0, 20, 8, 24]), "has the cuts"),
    (("product", 3), changed(("steps", 0, "where", "offset"), 1), "is on the machines 1 to 3; legal: machines 0 to 2"),
    (("product", 1), changed(("steps", 0, "where", "waves", 0), 2), "is placed by"),
    (("product", 1), changed(("steps", 0, "outputs"), ["other"]), r"keeps the outputs \['other'\]"),
    (("product", 1), changed(("steps", 0, "kernel", 2), "abacus"), "is for the backend 'abacus'"),
    (("product", 1), changed(("seconds",), -1), "seconds is -1.0"),
    (("product", 1), changed(("machines", "link_bytes_per_second"), "fast"), "link_bytes_per_second is 'fast'"),
    (
        ("product", 1),
        changed(("machines", "link_bytes_per_second"), 0),
        "link_bytes_per_second is 0; legal: a number abov",
    ),
    (("product", 1), changed(("machines", "task_seconds"), 10**30), "task_seconds is 1000"),
    (("product", 1), changed(("machines", "machines", 0, "memory_bytes"), 0), "memory_bytes is 0"),
    (("product", 1), changed(("machines", "machines", 0, "names", 0), 3), "a machine has the name 3"),
    (("tree", 4), changed(("machines", "groups", 0, 1), 0.0), "is no group of machines"),
    (("tree", 4), changed(("machines", "groups", 1, 3), "fast"), "bytes_per_second is 'fast'"),
    (("softmax", 1), swapped, "comes before a step that it needs"),
    (("softmax", 1), changed(("steps", 0, "stage"), "partial"), "has partial"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_each_rule_refuses_its_bad_plan(number):
    case, change, message = BAD[number]
    document = to_document(planned(*case))
    from_document(copy.deepcopy(document))
    change(document)
    with pytest.raises(PlanError) as caught:
        from_document(document)
    assert pytest.importorskip("re").search(
        message, " ".join(str(caught.value).split()).replace(" legal ", "; legal: ")
    )


def test_links_that_cost_nothing_are_read_again(tmp_path):
    rng = np.random.default_rng(0)
    pair = Machines((Machine("a", 1 << 30), Machine("b", 1 << 30)), link_bytes_per_second=float("inf"))
    plan = tw.plan(tw.sum(tw.source(rng.random((240, 160))), 0), pair)
    plan.save(str(tmp_path / "plan.json"))
    assert load(str(tmp_path / "plan.json"), plan.graph) == plan
