"""The plan as a value: saved, loaded, compared, drawn."""

import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.base import Decision
from tileweave.errors import PlanError
from tileweave.planner import Level, Machine, load, machine_tree, machines, make_plan
from tileweave.planner.show.explain import frontier


def holes():
    x, w = (tw.source(name=name, shape=shape, dtype="float32") for name, shape in [("x", (64, 32)), ("w", (32, 48))])
    return x, w, tw.softmax(tw.relu(x @ w))


def test_a_plan_that_is_saved_and_loaded_is_equal_and_runs(tmp_path):
    x, _, y = holes()
    for used in (1, 4, machine_tree([Level("node", 2, 1e9), Level("device", 3, 1e10)], Machine("d", 1 << 30))):
        plan = tw.plan(y, used, place={x: "balanced"})
        path = str(tmp_path / "plan.json")
        plan.save(path)
        again = load(path)
        assert again == plan and hash(again) == hash(plan) and plan.diff(again) == ""
        assert load(path, plan.graph) == plan
        data = {"x": np.ones((64, 32), np.float32), "w": np.ones((32, 48), np.float32)}
        np.testing.assert_array_equal(tw.run(again, bind=data), tw.run(plan, bind=data))


def test_equal_plans_compare_equal_and_others_differ_line_by_line():
    _, _, y = holes()
    one, same, other = tw.plan(y, 4), tw.plan(y, 4), tw.plan(y, 2)
    assert one == same and one != other
    lines = one.diff(other).splitlines()
    assert any(line.startswith("machines: 4 machines") for line in lines)
    assert any("cuts" in line for line in lines)


def test_what_is_no_plan_is_refused(tmp_path):
    path = tmp_path / "p.json"
    for text in ("{", "[]", "{}", '{"format": "tileweave plan 1"}'):
        path.write_text(text)
        with pytest.raises(PlanError):
            load(str(path))
    with pytest.raises(PlanError):
        load(str(tmp_path / "missing.json"))
    plan = tw.plan(holes()[2], 2)
    plan.save(str(path))
    with pytest.raises(PlanError, match=r"another graph|broken"):
        load(str(path), g.Graph.of(tw.source(np.ones(3))))


def test_the_page_is_one_well_formed_document_that_loads_nothing():
    _, _, y = holes()
    page = tw.plan(y, 4).html()
    assert page.startswith("<!DOCTYPE html>")
    for heading in ("Graph", "Cuts and costs", "Timeline", "Memory", "Considered"):
        assert f"<h2>{heading}</h2>" in page
    assert "<script" not in page and "src=" not in page and "href=" not in page
    for start in range(page.count("<svg")):
        piece = page.split("<svg")[start + 1].split("</svg>")[0]
        ElementTree.fromstring(f"<svg{piece}</svg>")


def test_a_plan_is_short_in_repr_and_small_in_pickle():
    _, _, y = holes()
    plan = tw.plan(y, 4)
    assert len(repr(plan)) < 120 and "steps" in repr(plan)
    assert "<svg" in plan._repr_html_()
    assert json.dumps(plan.to_json())


def test_explain_prints_the_ratio_to_the_lower_bound():
    a, b = (g.Tensor(g.Source(g.Hole(n), g.TensorType((2048, 2048), "float32"), n)) for n in "ab")
    graph, place = g.Graph.of(g.matmul(a, b)), {a.producer: "balanced", b.producer: "balanced"}
    plan = make_plan(graph, machines(8, memory="1GiB"), lambda o, s: Decision(s), place=place, objective="words")
    assert "1.00 x the lower bound" in plan.explain() and "assumes one copy" not in plan.explain()
    plan = make_plan(graph, machines(8, memory="1GiB"), lambda o, s: Decision(s))
    assert "the bound assumes one copy" in plan.explain()


def test_the_page_shows_moves_memory_over_time_and_the_frontier():
    x, w, y = holes()
    plan = tw.plan(y, 4, place={x: "balanced", w: "balanced"}, objective="peak_memory")
    page = plan.html()
    for title in ("Graph", "Timeline", "Memory", "Moved", "Considered"):
        assert f"<h2>{title}</h2>" in page
    assert "<polyline" in page and "<circle" in page and "all-gather among" in page and "test_show.py" in page
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', ""))
    best = frontier(plan)
    rows = [row[1:] for row in plan.alternatives]
    assert best and all(any(all(a <= b for a, b in zip(rows[j], row, strict=True)) for j in best) for row in rows)
    assert f"*{plan.alternatives[best[0]][0]}" in plan.explain()
    assert len(repr(plan)) < 120 and "<svg" in plan._repr_html_()


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browsed(*words):
    """Output and messages of a headless browser."""
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr")
    return subprocess.run([BROWSER, *quiet, *words], capture_output=True, timeout=120, check=True)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian's package: chromium)")
def test_the_page_opens_in_a_browser_and_shows_every_part(tmp_path):
    from PIL import Image

    _, _, y = holes()
    page, picture = tmp_path / "plan.html", tmp_path / "plan.png"
    page.write_text(tw.plan(y, 4).html(), "utf-8")
    address, folder = page.as_uri(), f"--user-data-dir={tmp_path / 'profile'}"
    found = browsed(folder, "--dump-dom", address)
    dom, said = found.stdout.decode(), found.stderr.decode()
    assert "CONSOLE" not in said and "net_error" not in said, said
    assert dom.count("<svg") == 4 and dom.count("<table") == 3 - ("Nothing moves" in dom)
    browsed(folder, "--window-size=1200,1600", "--hide-scrollbars", f"--screenshot={picture}", address)
    shown = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    coloured = np.ptp(shown, axis=-1) > 40  # the timeline, the memory, the frontier, and boxes of the graph
    rows = np.flatnonzero(coloured.any(1))
    assert rows.min() < 400 < 700 < rows.max() and coloured.mean() > 0.002
