"""The command line as a user meets it: results, help, and what it says to bad input."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from tileweave.cli import main as command
from tileweave.cli.main import main

PROGRAM = """
import numpy as np, sys
import tileweave as tw
print("arguments", sys.argv[1:])
x = tw.source("x.npy")
first = tw.sink(tw.relu(x) * 2.0, "first.npy")
tw.run(first)
print("needs a result", tw.run(tw.sum(x)))
tw.run(tw.sink(tw.exp(x), "never-planned.npy"))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(-6.0, 6.0).reshape(4, 3))
    np.save("w.npy", np.arange(6.0).reshape(3, 2))
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_run_executes_the_program(folder, capsys):
    assert main(["run", "program.py", "--machines", "2", "--", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert "arguments ['a', 'b']" in out
    assert "needs a result -6.0" in out
    np.testing.assert_array_equal(np.load("first.npy"), np.maximum(np.load("x.npy"), 0) * 2)


def test_an_existing_sink_needs_the_flag(folder, capsys):
    assert main(["run", "program.py"]) == 0
    before = Path("first.npy").stat().st_mtime_ns
    assert main(["run", "program.py"]) == 1
    assert "first.npy" in (err := capsys.readouterr().err) and "overwrite" in err
    assert Path("first.npy").stat().st_mtime_ns == before
    assert main(["run", "program.py", "--overwrite"]) == 0


def test_plan_prints_each_graph_up_to_the_first_result_and_runs_nothing(folder, capsys):
    assert main(["plan", "program.py", "--machines", "2", "--memory", "1MiB"]) == 0
    out = capsys.readouterr().out
    assert "graph 1 of 2" in out and "graph 2 of 2" in out and "graph 3" not in out
    assert "2 machines x 1 MiB" in out
    assert "needs a result" not in out
    assert not Path("first.npy").exists()


def test_plan_as_json(folder, capsys):
    assert main(["plan", "program.py", "--json", "--machines", "2"]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert len(plans) == 2
    assert plans[0]["steps"][0]["shards"] == 2
    assert {"bytes_moved", "flops", "seconds", "peak_bytes"} <= set(plans[0]["steps"][0])


def test_plan_draws_a_picture(folder, capsys):
    assert main(["plan", "program.py", "--draw", "plan.svg", "--machines", "2"]) == 0
    assert main(["plan", "program.py", "--draw", "plan.svg"]) == 2
    assert "the file exists already" in capsys.readouterr().err
    assert main(["plan", "program.py", "--draw", "plan.svg", "--overwrite"]) == 0
    assert xml.etree.ElementTree.parse("plan.svg").getroot().tag.endswith("svg")


def test_plan_stops_where_a_program_reads_what_no_plan_writes(folder, capsys):
    head = "import numpy as np, tileweave as tw\ntw.run(tw.sink(tw.source('x.npy') * 2, 'made.npy'))\n"
    for rest in ("np.load('made.npy')\n", "open('made.npy', 'rb').read()\n", "tw.run(tw.source('made.npy') + 1)\n"):
        Path("reads.py").write_text(head + rest)
        assert main(["plan", "reads.py"]) == 0
        out, err = capsys.readouterr()
        assert "graph 1 of 1" in out and "Traceback" not in err
        assert ("planned up to where the program reads 'made.npy'" in err) == ("tw.run(tw.source" not in rest)
    Path("reads.py").write_text(head + "open('other.npy')\n")
    assert main(["plan", "reads.py"]) == 1
    assert "FileNotFoundError" in capsys.readouterr().err


def test_plan_leaves_no_folder_that_a_program_makes_for_its_files(folder, capsys):
    """One that was there before stays, and so does one that holds anything."""
    Path("makes.py").write_text(
        "import numpy as np, tileweave as tw\nfrom pathlib import Path\n"
        "for name in ('new', 'new/deep', 'old', 'emptied', 'used'):\n"
        "    Path(name).mkdir(exist_ok=True)\n"
        "    [file.unlink() for file in Path('emptied').glob('before.npy')]\n"
        "    Path('used', 'note').write_text('') if name == 'used' else None\n"
        "    tw.run(tw.sink(tw.source(np.ones(4)) * 2, Path(name, 'made.npy')))\n"
    )
    for name in ("old", "emptied"):
        Path(name).mkdir()
    Path("emptied/before.npy").write_text("")
    assert main(["plan", "makes.py"]) == 0
    found = [Path(name).exists() for name in ("new", "old", "emptied", "emptied/before.npy", "used/note")]
    assert found == [False, True, True, False, True]
    assert main(["run", "makes.py"]) == 0
    assert np.load("new/made.npy").tolist() == [2, 2, 2, 2]


def test_plan_refuses_a_budget_that_nothing_meets(folder, capsys):
    assert main(["plan", "program.py", "--memory", "10"]) == 1
    err = capsys.readouterr().err
    assert "PlanError" in err and "legal" in err and "bytes per machine" in err


def test_einsum_on_files(folder, capsys):
    assert main(["einsum", "ij,jk->ik", "x.npy", "w.npy", "-o", "out.npy"]) == 0
    np.testing.assert_allclose(np.load("out.npy"), np.load("x.npy") @ np.load("w.npy"))
    assert main(["einsum", "ij,jk->ik", "x.npy", "w.npy", "-o", "out.npy"]) == 2
    assert "overwrite" in capsys.readouterr().err
    assert main(["einsum", "ij->j", "x.npy"]) == 0
    assert str(np.load("x.npy").sum(0)) in capsys.readouterr().out


def test_einsum_on_members_of_an_archive(folder):
    np.savez("both.npz", a=np.eye(3), b=np.ones((3, 2)))
    assert main(["einsum", "ij,jk->ik", "both.npz#a", "both.npz#b", "-o", "c.npz#product"]) == 0
    np.testing.assert_array_equal(np.load("c.npz")["product"], np.ones((3, 2)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["einsum", "ij,kl->il", "x.npy", "missing.npy"], "missing.npy"),
        (["einsum", "ij,jk->iz", "x.npy", "w.npy"], "z"),
        (["einsum", "ijk,jk->i", "x.npy", "w.npy"], "rank"),
        (["einsum", "ij,jk->ik", "w.npy", "x.npy"], "extent"),
        (["run", "missing.py"], "no file"),
        (["run", "program.py", "--machines", "none"], "neither"),
        (["run", "program.py", "--machines", "100000"], "65536"),
        (["run", "program.py", "--runtime", "local", "--address", "nowhere:1"], "--runtime ray"),
        (["plan", "program.py", "--draw", "plan.png"], "SVG"),
        (["plan", "program.py", "--draw", "no/such/folder/plan.svg"], "no/such/folder"),
        (["run", "program.py", "--memory", "lots"], "amount of memory"),
        (["run", "program.py", "--machines", "0"], "cannot be used"),
    ],
)
def test_bad_input_is_refused_in_one_message(folder, capsys, words, said):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_program_that_raises_shows_its_own_traceback(folder, capsys):
    (folder / "bad.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    assert main(["run", "bad.py"]) == 1
    err = capsys.readouterr().err
    assert "bad.py" in err and "line 2" in err
    raised = "RunError: tileweave run: the program raises ZeroDivisionError: division by zero"
    assert err.endswith(f"{raised}\n  line  bad.py:2: return 1 / 0\n")
    assert "runpy" not in err and "cli/program.py" not in err
    (folder / "bad.py").write_text("def f(:\n")
    assert main(["plan", "bad.py"]) == 1
    assert "tileweave plan: the program raises SyntaxError: invalid syntax\n  line  bad.py:1: def f(:" in (
        capsys.readouterr().err
    )
    (folder / "bad.py").write_text("import tileweave as tw\ntw.run(tw.source('nowhere.npy'))\n")
    assert main(["run", "bad.py"]) == 1
    err = capsys.readouterr().err
    assert "line 2" in err and "StorageError: source('nowhere.npy')" in err and "contextlib" not in err


def test_a_mistake_in_a_tensor_expression_points_at_the_programs_line(folder, capsys):
    (folder / "bad.py").write_text("import tileweave as tw\nx = tw.source('x.npy')\ntw.linear(x, x, x)\n")
    assert main(["run", "bad.py"]) == 1
    err = capsys.readouterr().err
    assert "line 3" in err and "GraphError: linear(x, w, b)" in err and "float64[4, 3]" in err
    assert "operators.py" not in err


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "tileweave", "layout", "(4,2):(1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("LayoutError: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "(4,2):(1,4"), "layout takes one expression and no command: leave out 'show'"),
        (("(4,2):(1,4)", "8:1", "2:1"), "layout takes one expression, in quotes, and 3 were given"),
    ],
)
def test_more_than_one_layout_is_refused_with_what_was_meant(capsys, words, said):
    assert main(["layout", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_takes_no_files_is_named(folder, capsys):
    if not Path("/proc").is_dir():
        pytest.skip("there is no /proc")
    for words in (
        ["einsum", "ij->ji", "x.npy", "-o", "/proc/x.npy"],
        ["teir", "emit", "i->i", "4", "-o", "/proc/x.json"],
    ):
        assert main(words) == 2
        assert "the folder '/proc' " in capsys.readouterr().err


def test_help_and_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tileweave ")
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "run" in out and "plan" in out and "einsum" in out
    with pytest.raises(SystemExit) as stop:
        main(["plan", "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_unknown_flags_are_refused(folder, capsys):
    assert main(["run", "program.py", "--machnes", "2"]) == 2
    said = "UsageError: tileweave run: unknown argument '--machnes'; a program's own arguments follow --"
    assert capsys.readouterr().err == f"{said}\n  legal  --machines\n"


def test_interrupt_leaves_no_half_file(folder):
    (folder / "long.py").write_text(
        "import numpy as np, tileweave as tw\n"
        "x = tw.source(np.ones((1500, 1500)))\n"
        "y = x\n"
        "for _ in range(400):\n    y = tw.tanh(y @ x)\n"
        "print('starting', flush=True)\n"
        "tw.run(tw.sink(y, 'long.npy'))\n"
    )
    command = [sys.executable, "-m", "tileweave.cli.main", "run", "long.py"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "starting\n"
    time.sleep(2.5)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert [path for path in Path().iterdir() if "long.npy" in path.name] == []


def test_helps_show_commands_that_exist(capsys):
    for room in ([], ["teir"], ["graph"], ["layout"]):
        with pytest.raises(SystemExit):
            main([*room, "--help"])
        shown = capsys.readouterr().out
        lines = re.findall(r"^  tileweave ([^|>\n]*)$", shown[shown.index("examples:") :], re.MULTILINE)
        assert len(lines) >= 4
        parser = command._parser()
        for line in lines:
            options, rest = parser.parse_known_args(command._split(shlex.split(line), command._values_of(parser)))
            assert options.command and not rest


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["run", "program.py", "--machines"], "--machines: expected one argument"),
        (["graph", "rewrite", "graph.json", "--draw"], "--draw: expected one argument"),
        (["teir", "tune", "program.json", "-o"], "expected one argument"),
        (["run"], "required: program\n"),
        (["graph", "diff", "graph.json"], "required: OTHER\n"),
    ],
)
def test_what_is_missing_is_named(folder, capsys, words, missing):
    assert main(words) == 2
    assert missing in capsys.readouterr().err


def test_an_equation_may_begin_with_an_arrow(folder, capsys):
    np.save("number.npy", np.float64(3))
    assert main(["einsum", "->", "number.npy"]) == 0
    assert main(["teir", "emit", "->", "scalar", "-o", "copy.json"]) == 0
    assert capsys.readouterr().out.startswith("3.0\n")
    assert main(["teir", "emit", "->i", "scalar"]) == 2
    assert capsys.readouterr().err.startswith("GraphError: teir emit '->i': ")


def child(words, **environment):
    words = [sys.executable, "-m", "tileweave.cli.main", *words]
    return subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env={**os.environ, **environment})


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_a_terminal_without_some_characters_shows_the_others(folder, environment):
    assert main(["teir", "emit", "αβ,βγ->αγ", "640x640", "640x640", "--tiled", "-o", "tiled.json"]) == 0
    out, err = child(["teir", "show", "tiled.json"], **environment).communicate(timeout=60)
    assert not err and "Operands" in out and "?" in out


def test_a_reader_that_goes_away_ends_a_program_quietly(folder):
    (folder / "speak.py").write_text("while True:\n    print('a line')\n")
    speaking = child(["run", "speak.py"])
    assert speaking.stdout.readline() == "a line\n"
    speaking.stdout.close()
    assert speaking.communicate(timeout=60)[1] == ""
    assert speaking.returncode == 0


def test_a_pipe_of_the_programs_own_that_breaks_is_its_failure(folder, capsys):
    (folder / "bad.py").write_text("raise BrokenPipeError('mine')\n")
    assert main(["run", "bad.py"]) == 1
    assert "BrokenPipeError: mine" in capsys.readouterr().err
