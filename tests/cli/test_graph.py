"""``tileweave graph`` as a user meets it: programs and documents shown, checked, rewritten and compared."""

import json
import random
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from tileweave import graph as tw
from tileweave.cli.main import main

PROGRAM = """
import sys
import numpy as np
import tileweave as tw
print("the program speaks", sys.argv[1:])
x, w, b = (tw.source(np.arange(float(n * m)).reshape(n, m)) for n, m in ((8, 4), (4, 3), (1, 3)))
y = tw.relu(x @ w + tw.source(np.ones(3), name="b"))
tw.run(tw.sink(y, "never.npy"))
tw.run(tw.sink(y, "never.npy"))
tw.run(tw.sum(x))
tw.run(tw.exp(x))
"""

BROKEN = """
import numpy as np
import tileweave as tw
from tileweave.graph import Operation, Tensor
good = tw.exp(tw.source(np.ones(3))).producer
bad = Operation("exp", good.index, good.inputs, (("out", good.inputs[0][1][:2].type),), (), good.signature)
tw.run(Tensor(bad))
"""

X = tw.as_tensor(np.arange(40.0).reshape(20, 2))
WHOLE = tw.Graph.of(tw.relu(X @ np.ones((2, 3)) + np.ones(3)))


def sharded(graph, parts=(2, 1, 1)):
    matmul = graph.operations[0]
    return tw.expand(graph, {matmul: tw.partition(matmul, parts)})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    Path("broken.py").write_text(BROKEN)
    Path("whole.json").write_text(tw.to_json(WHOLE))
    Path("sharded.json").write_text(tw.to_json(sharded(WHOLE)))
    return tmp_path


def edited(name, change, source="whole.json"):
    document = json.loads(Path(source).read_text())
    change(document["nodes"])
    Path(name).write_text(json.dumps(document))
    return name


def refused(words, capsys):
    assert main(["graph", *words]) == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in err and not out
    return err


# ── show ──


def test_show_prints_each_distinct_graph_of_a_program_up_to_the_first_result(folder, capsys):
    assert main(["graph", "show", "program.py", "--", "a"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("program.py#1\nt0 = source()")
    assert "program.py#2\n" in out and "program.py#3" not in out
    assert "relu" in out and "sum(t0, axes=(0, 1))" in out and "exp" not in out
    assert "speaks" not in out + err
    assert not Path("never.npy").exists()


def test_show_prints_a_document_as_its_graph(folder, capsys):
    assert main(["graph", "show", "whole.json"]) == 0
    assert capsys.readouterr().out == f"{WHOLE}\n"
    assert main(["graph", "show", "whole.json", "--explain"]) == 0
    assert capsys.readouterr().out == f"{tw.explain(WHOLE)}\n"
    assert main(["graph", "show", "whole.json", "--json"]) == 0
    assert capsys.readouterr().out == Path("whole.json").read_text()


def test_show_chooses_one_graph_of_a_program(folder, capsys):
    assert main(["graph", "show", "program.py#2", "--json"]) == 0
    (total,) = tw.evaluate([sink.tensor for sink in tw.from_json(capsys.readouterr().out).sinks])
    assert total == np.arange(32.0).sum()
    assert "program.py#1 .. program.py#2" in refused(["show", "program.py", "--json"], capsys)
    assert "legal  1..2" in refused(["show", "program.py#3"], capsys)
    assert "'x' is not the number of a graph" in refused(["show", "program.py#x"], capsys)


def test_sources_stay_apart_where_their_arrays_are_left_out(folder, capsys):
    difference = tw.Graph.of(tw.as_tensor(np.ones(3)) - tw.as_tensor(np.zeros(3)))
    Path("difference.json").write_text(tw.to_json(difference))
    assert main(["graph", "show", "difference.json", "--json", "--no-arrays"]) == 0
    text = capsys.readouterr().out
    assert "npy" not in text
    assert sum(isinstance(node, tw.Source) for node in tw.from_json(text).nodes()) == 2


def test_show_draws(folder, capsys):
    assert main(["graph", "show", "program.py", "--draw", "graph.svg"]) == 0
    assert xml.etree.ElementTree.parse("graph.svg").getroot().tag.endswith("svg")
    for words in (["show", "program.py"], ["rewrite", "program.py"]):
        assert main(["graph", *words, "--draw", "graph.svg"]) == 2
        assert "the file exists already" in capsys.readouterr().err
        assert main(["graph", *words, "--draw", "graph.svg", "--overwrite"]) == 0
    assert main(["graph", "show", "whole.json", "--draw", "nowhere/graph.svg"]) == 2
    assert "nowhere/graph.svg: there is no directory 'nowhere'" in capsys.readouterr().err


def test_a_graph_that_fits_no_machine_is_shown(folder, capsys):
    Path("large.py").write_text(
        "import tileweave as tw\n"
        "x = tw.source(shape=(1 << 24, 1 << 24), dtype='float64', name='x')\n"
        "tw.run(tw.exp(x), machines=tw.machines(2, memory='1MiB'))\n"
    )
    assert main(["graph", "show", "large.py"]) == 0
    assert "t1 = exp(t0)" in capsys.readouterr().out


def test_a_program_that_raises_shows_its_own_traceback(folder, capsys):
    Path("bad.py").write_text("import tileweave as tw\n1 / 0\n")
    assert main(["graph", "show", "bad.py"]) == 1
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err and "line 2" in err and "cli/graph.py" not in err
    Path("idle.py").write_text("import tileweave as tw\n")
    for command in (["graph", "show"], ["plan"]):
        assert main([*command, "idle.py"]) == 2
        assert "idle.py runs no graph" in capsys.readouterr().err


# ── check ──


def test_check_counts_what_is_well_formed(folder, capsys):
    assert main(["graph", "check", "program.py"]) == 0
    assert capsys.readouterr().out == (
        "program.py#1: 3 sources, 0 selectors, 3 operations, 1 sink: well formed\n"
        "program.py#2: 1 source, 0 selectors, 1 operation, 1 sink: well formed\n"
    )


def test_check_names_the_node_and_the_rule(folder, capsys):
    def narrow(nodes):
        next(n for n in nodes if n.get("operator") == "relu")["outputs"][0][1]["shape"] = [20, 4]

    err = refused(["check", edited("bad.json", narrow)], capsys)
    assert "bad.json: error: node " in err
    assert "<Operation relu [0:20, 0:3]>: output out has shape (20, 4), the index makes (20, 3)" in err
    assert "[operation.regions-fit]" in err
    for words in (["show"], ["rewrite"], ["diff", "whole.json"]):
        assert "[operation.regions-fit]" in refused([words[0], "bad.json", *words[1:]], capsys)


def test_check_lists_every_broken_node(folder, capsys):
    def unknown(nodes):
        for node in nodes:
            if node["kind"] == "operation":
                node["operator"] += "_of_nobody"

    err = refused(["check", edited("bad.json", unknown)], capsys)
    assert err.count("[operation.operator-known]") == 3 and "'matmul_of_nobody' is not registered" in err


def test_check_of_a_program_with_a_malformed_graph(folder, capsys):
    assert main(["graph", "check", "broken.py"]) == 2
    err = capsys.readouterr().err
    assert "verify(graph) [operation.regions-fit]" in err and "<Operation exp [0:3]>" in err
    assert "line 7" in err and "verify.py" not in err


def test_check_names_the_place_in_a_document(folder, capsys):
    def forget(nodes):
        del nodes[3]["kind"]

    assert "bad.json: $.nodes[3]" in refused(["check", edited("bad.json", forget)], capsys)
    Path("cycle.json").write_text(
        Path("whole.json").read_text().replace('"producer": "source0"', '"producer": "point0"')
    )
    assert "cycle.json: $.nodes[1].producer" in refused(["check", "cycle.json"], capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "missing.json"], "missing.json: the file cannot be opened"),
        (["show", "missing.py"], "there is no file 'missing.py'"),
        (["show", "notes.txt"], "notes.txt: is neither a program nor a document"),
        (["show", "text.json"], "it is not JSON"),
        (["show", "bytes.json"], "it is not JSON"),
        (["show", "list.json"], "is not an object"),
        (["show", "program.json"], 'program.json: $: its format is "tileweave.teir", version 1'),
        (["show", "."], "is neither a program nor a document"),
        (["show", "whole.json", "extra"], "a document takes no argument 'extra'"),
        (["rewrite", "whole.json", "--rules", "linear,nothing"], "'nothing' is no rule"),
        (["rewrite"], "no graph is named"),
        (["diff", "whole.json", "program.py"], "diff takes one graph, the program has 2"),
        (["diff", "whole.json", "idle.py"], "idle.py runs no graph"),
    ],
)
def test_bad_input_is_refused_in_one_message(folder, capsys, words, said):
    Path("text.json").write_text("{")
    Path("bytes.json").write_bytes(b"\xff\xfe\x00")
    Path("list.json").write_text("[]")
    Path("notes.txt").write_text("")
    Path("idle.py").write_text("")
    assert main(["teir", "emit", "ij->ji", "2x3", "-o", "program.json"]) == 0
    capsys.readouterr()
    assert said in refused(words, capsys)


def test_any_damage_to_a_document_is_refused_or_harmless(folder, capsys):
    y = tw.conv(
        tw.pad(tw.as_tensor(np.ones((1, 2, 9))), [(0, 0), (0, 0), (1, 1)], "reflect"), np.ones((3, 2, 3)), stride=2
    )
    graph = tw.Graph.of(tw.softmax(tw.interleave([y, y * 2.0], 2)), tw.argmax(y[:, 0, ::-1], -1), tw.uniform((3,), 4))
    Path("rich.json").write_text(tw.to_json(graph))
    rng = random.Random(0)
    values = [None, True, -1, 7, 10**30, 1.5, "x", "t0", "add", [], [1], [[1]], {}]
    statuses = set()
    for _ in range(150):

        def damage(nodes):
            place = nodes
            while isinstance(place, (dict, list)) and place:
                keys = [key for key in (place if isinstance(place, dict) else range(len(place))) if key != "npy"]
                if not keys:
                    return
                last, key = place, rng.choice(keys)
                place = place[key]
                if rng.random() < 0.15:
                    break
            last[key] = rng.choice(values)

        path = edited("damaged.json", damage, "rich.json")
        for words in (["check", path], ["rewrite", path], ["diff", path, "rich.json"]):
            status = main(["graph", *words])
            assert status in (0, 2) or words[0] == "diff"
            assert "Traceback" not in capsys.readouterr().err
            statuses.add(status)
            if status == 2:
                break
    assert statuses == {0, 1, 2}


# ── rewrite ──


def test_rewrite_prints_the_trace_and_the_result(folder, capsys):
    assert main(["graph", "rewrite", "whole.json"]) == 0
    out = capsys.readouterr().out
    done = tw.rewrite(WHOLE, tw.OPTIMIZATIONS)
    assert out == f"{done}\n\n{done.graph}\n"
    assert "matmul-bias[0]" in out and "linear_relu" in out


def test_rewrite_by_named_rules_keeps_the_value(folder, capsys):
    assert main(["graph", "rewrite", "whole.json", "--json", "--rules", "matmul-bias,relu-as-where"]) == 0
    out, err = capsys.readouterr()
    result = tw.from_json(out)
    assert [operation.operator for operation in result.operations] == ["linear", "less", "where"]
    assert "relu-as-where[0]" in err
    values = [tw.evaluate([graph.sinks[0].tensor])[0] for graph in (WHOLE, result)]
    np.testing.assert_array_equal(values[0], values[1])


def test_rewrite_says_that_nothing_applies_or_that_passes_ran_out(folder, capsys):
    assert main(["graph", "rewrite", "whole.json", "--rules", "idempotent"]) == 0
    assert capsys.readouterr().out.startswith("no rule applies\n")
    assert main(["graph", "rewrite", "whole.json", "--passes", "1"]) == 0
    assert "--passes" in capsys.readouterr().out


def test_rewrite_lists_the_rules(folder, capsys):
    assert main(["graph", "rewrite", "--list"]) == 0
    out = capsys.readouterr().out
    for rule in (*tw.OPTIMIZATIONS, *tw.EXPANSIONS):
        assert rule.name in out and rule.law in out


# ── diff ──


def test_diff_finds_a_program_equal_to_its_document(folder, capsys):
    assert main(["graph", "show", "program.py#1", "--json"]) == 0
    Path("one.json").write_text(capsys.readouterr().out)
    assert main(["graph", "diff", "one.json", "program.py#1"]) == 0
    assert "one.json and program.py#1 are the same graph" in capsys.readouterr().out


def test_diff_recognises_a_correct_sharding_in_either_order(folder, capsys):
    for words in (["whole.json", "sharded.json"], ["sharded.json", "whole.json"]):
        assert main(["graph", "diff", *words]) == 0
        out = capsys.readouterr().out
        assert "sharded.json is a correct sharding of whole.json" in out
        assert "matmul" in out and "concat" in out


def test_diff_names_the_first_shard_that_is_wrong(folder, capsys):
    good, (one, other) = sharded(WHOLE), sharded(WHOLE).operations[:2]
    reads = ((other.inputs[0][0], X[9:19]), *other.inputs[1:])
    wrong = tw.Operation(other.operator, other.index, reads, other.outputs, other.parameters, other.signature)
    joined = tw.concat([tw.Tensor(one), tw.Tensor(wrong)]) + np.ones(3)
    Path("wrong.json").write_text(tw.to_json(tw.Graph.of(tw.relu(joined))))
    assert len(good.sinks) == 1
    assert main(["graph", "diff", "whole.json", "wrong.json"]) == 1
    out = capsys.readouterr().out
    assert "wrong.json is no sharding of whole.json" in out
    assert "<Operation matmul [10:20, 0:3, 0:2]>: its input x0 is not the region [10:20, 0:2]" in out


def test_diff_shows_where_two_graphs_part(folder, capsys):
    Path("other.json").write_text(tw.to_json(tw.Graph.of(tw.tanh(X @ np.ones((2, 3)) + np.ones(3)))))
    assert main(["graph", "diff", "whole.json", "other.json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "- t5 = relu(t4)  float64[20, 3]  index [0:20, 0:3]" in lines
    assert "+ t5 = tanh(t4)  float64[20, 3]  index [0:20, 0:3]" in lines
    assert not any("matmul" in line for line in lines)


def test_diff_of_unlike_graphs(folder, capsys):
    Path("two.json").write_text(tw.to_json(tw.Graph.of(X, X + 1.0)))
    assert main(["graph", "diff", "whole.json", "two.json"]) == 1
    assert "no sharding of two.json: 1 sinks stand for 2 [sinks]" in capsys.readouterr().out
    again = tw.Graph.of(WHOLE.sinks[0].tensor, WHOLE.sinks[0].tensor)
    Path("twice.json").write_text(tw.to_json(again))
    assert main(["graph", "diff", "whole.json", "twice.json"]) == 1
    assert "what is observed" in capsys.readouterr().out
