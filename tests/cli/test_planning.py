"""The planner's options on the command line: the same plans as the arguments of `tw.plan` give."""

import json
from pathlib import Path

import numpy as np
import pytest

import tileweave as tw
from tileweave.cli.main import main

PROGRAM = """
import numpy as np
import tileweave as tw
x, v, w = (tw.source(np.full((64, 64), k, np.float32)) for k in (1.0, 2.0, 0.5))
h = tw.relu(x @ v)
print("sum", tw.run(h @ w).sum())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)


def planned(capsys, *words):
    """The steps of the one plan, as JSON."""
    assert main(["plan", "program.py", "--machines", "4", "--json", *words]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    return plan


def same(**how):
    x, v, w = (tw.source(np.full((64, 64), k, np.float32)) for k in (1.0, 2.0, 0.5))
    return tw.plan(tw.relu(x @ v) @ w, 4, **how).to_json()


def cuts(plan):
    return [(step["operation"], step["cuts"]) for step in plan["steps"]]


@pytest.mark.parametrize(
    ("words", "how"),
    [
        (["--objective", "words"], {"objective": "words"}),
        (["--trials", "600", "--seed", "3", "--workers", "2"], {"trials": 600, "seed": 3, "workers": 2}),
        (["--trials", "600", "--runs", "1"], {"trials": 600, "runs": 1}),
    ],
)
def test_options_are_the_arguments_of_plan(capsys, words, how):
    assert cuts(planned(capsys, *words)) == cuts(same(**how))


@pytest.mark.parametrize(
    ("words", "grids"),
    [
        (["--pin", "matmul#2=2,1,2"], {1: (2, 1, 2)}),
        (["--pin", "matmul=i:4"], {0: (4, 1, 1), 1: (4, 1, 1)}),
        (["--pin", "@6=k:2"], {1: (1, 2, 1)}),
        (["--pin", "matmul#1=1,4,1", "--pin", "matmul#2=j:2,i:2"], {0: (1, 4, 1), 1: (2, 1, 2)}),
    ],
)
def test_operations_are_pinned_by_name_number_and_line(capsys, words, grids):
    plan = planned(capsys, *words)
    products = [s for s in plan["steps"] if s["operation"] in ("matmul", "matmul (partial)")]
    for number, grid in grids.items():
        assert tuple(len(edges) - 1 for edges in products[number]["cuts"]) == grid


def test_a_forbidden_dimension_stays_whole(capsys):
    words = [word for name in ("i", "j") for word in ("--forbid", f"matmul={name}")]
    for step in planned(capsys, *words, "--forbid", "relu=axis0")["steps"]:
        if step["operation"].startswith("matmul") and step["stage"] != "combine":
            assert len(step["cuts"][2]) == 2


def test_plans_are_kept_compared_and_run(capsys):
    assert main(["plan", "program.py", "--machines", "4", "--objective", "words", "--save", "kept.json"]) == 0
    capsys.readouterr()
    assert main(["plan", "program.py", "--load", "kept.json", "--json"]) == 0
    assert cuts(json.loads(capsys.readouterr().out)[0]) == cuts(same(objective="words"))
    assert main(["run", "program.py", "--load", "kept.json"]) == 0
    assert "sum 1.6777216e+07" in capsys.readouterr().out
    for count, said in [("4", "as in kept.json"), ("2", "cuts")]:
        assert main(["plan", "program.py", "--machines", count, "--objective", "words", "--diff", "kept.json"]) == 0
        assert said in capsys.readouterr().out
    assert main(["run", "program.py", "--save", "kept.json"]) == 2
    assert "exists" in capsys.readouterr().err
    kept = json.loads(Path("kept.json").read_text())
    kept[0]["digest"] = "another"
    Path("other.json").write_text(json.dumps(kept))
    assert main(["run", "program.py", "--load", "other.json"]) == 1
    assert "no plan was kept of this graph" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--objective", "wrds"], "'wrds' is no objective"),
        (["--pin", "matmul"], "names no operation"),
        (["--forbid", "matmul"], "such as matmul=k or matmul#2=i,j"),
        (["--forbid", "matmul=4"], "names no dimensions"),
        (["--pin", "matmul=x"], "says no parts"),
        (["--pin", "matmul=2,k:2"], "says no parts"),
        (["--pin", "conv=2,2"], "no graph has the operation"),
        (["--forbid", "@99=i"], "no graph has the operation"),
        (["--seed", "3"], "without trials"),
        (["--load", "none.json"], "cannot be read"),
        (["--load", "program.py"], "cannot be read"),
        (["--load", "deep.json"], "cannot be read"),
        (["--machines", "\u0663"], "neither a count nor a .toml file"),
        (["--load", "kept.json", "--machines", "2"], "run as it is"),
        (["--save", "kept.txt"], "ends in .json"),
        (["--diff", "none.json"], "cannot be read"),
    ],
)
def test_what_the_options_cannot_mean_is_refused(capsys, words, said):
    Path("deep.json").write_text("[" * 100_000)
    assert main(["plan", "program.py", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.parametrize("words", [("--pin", "matmull=4,1,1"), ("--forbid", "linear_relu#1=batch")])
def test_an_operation_that_no_program_can_have_is_refused_before_any_runs(capsys, verb, words):
    assert main([verb, "program.py", "--machines", "2", *words]) == 1
    out, err = capsys.readouterr()
    assert f"no graph has the operation of {words[1]!r}" in err and "matmul#1, relu#1, matmul#2" in err
    assert not out


def test_a_pin_that_cannot_be_points_at_the_programs_line(capsys):
    assert main(["plan", "program.py", "--machines", "2", "--pin", "matmul=z:2"]) == 1
    err = capsys.readouterr().err
    assert "matmul has no dimension 'z'" in err and "program.py" in err


def test_a_pinned_plan_is_compared_with_a_fused_one(capsys):
    assert main(["plan", "program.py", "--machines", "4", "--pin", "matmul#1=1,4,1", "--save", "pinned.json"]) == 0
    capsys.readouterr()
    assert main(["plan", "program.py", "--machines", "4", "--diff", "pinned.json"]) == 0
    out = capsys.readouterr().out
    assert "relu (block): removed" in out and "has no plan" not in out


@pytest.mark.parametrize("words", [["plan", "program.py", "--bind", "x=3"], ["run", "program.py", "-o", "out.npz"]])
def test_options_of_models_are_refused_for_programs(capsys, words):
    assert main(words) == 2
    assert "'program.py' is a program" in capsys.readouterr().err and not Path("out.npz").exists()


def test_a_plan_for_a_cluster_has_margins(capsys):
    program = "import numpy as np, tileweave as tw\ny = tw.source(np.ones((4096, 64), np.float32))\n"
    program += "for _ in range(20):\n    y = tw.stencil(y, np.full((3, 3), 0.1, np.float32))\nprint(tw.run(y).sum())\n"
    Path("heat.py").write_text(program)
    words = ["plan", "heat.py", "--machines", "2", "--pin", "conv=1,1,2,1,1", "--json"]
    found = []
    for runtime in ("local", "ray"):
        assert main([*words, "--runtime", runtime]) == 0
        found += json.loads(capsys.readouterr().out)
    local, cluster = found
    assert cuts(local) == cuts(cluster)
    moved = [[step["bytes_moved"] for step in plan["steps"]] for plan in found]
    assert all(moved[0][1:20]) and sum(map(bool, moved[1])) == 1
    assert main([*words[:-1], "--runtime", "ray"]) == 0
    assert "margins: chains of stencils exchange once" in capsys.readouterr().out
