"""``tileweave teir`` as a user meets it: results that NumPy agrees with, and what it says to bad input."""

import json
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tileweave.cli.main import main
from tileweave.teir import Axis, First, Invocation, Primitive, Program, TensorSpec, from_json, split, to_json
from tileweave.teir.ir import examples

EXTENTS = {"p": 2, "q": 3, "r": 4, "s": 5, "t": 2, "u": 6}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("a.npy", rng.integers(-4, 5, (6, 3)).astype("f4"))
    np.save("b.npy", rng.integers(-4, 5, (3, 2)).astype("f4"))
    assert main(["teir", "emit", "ij,jk->ik", "6x3", "3x2", "-o", "matmul.json"]) == 0
    assert main(["teir", "emit", "ij,jk->ik", "6x3", "3x2", "--profile", "document", "-o", "plain.json"]) == 0
    return tmp_path


def bad_guard() -> str:
    program = examples.contraction_gemm(EXTENTS)
    nodes = tuple(replace(n, guard=(First("t"),)) if n.id == "zero" else n for n in program.nodes)
    return to_json(replace(program, nodes=nodes))


# ── check ──


def test_check_says_what_it_proved(folder, capsys):
    capsys.readouterr()
    assert main(["teir", "check", "matmul.json"]) == 0
    assert capsys.readouterr().out == (
        "matmul.json: ij_jk_to_ik (tileweave profile): 3 tensors, 3 axes, 2 nodes, 2 primitives: "
        "well formed, no races, no step taken twice, nothing read before it is written\n"
    )
    assert main(["teir", "check", "matmul.json", "in0=a.npy"]) == 0
    assert "inside its arrays" in capsys.readouterr().out


def test_check_complains_like_a_compiler(folder, capsys):
    Path("bad.json").write_text(bad_guard())
    assert main(["teir", "check", "bad.json"]) == 2
    assert capsys.readouterr().err == "\n".join(
        [
            "bad.json: error: p/r/zero: no ancestor iterates axis 't', which its guard names "
            "[guard.axis-iterated-by-ancestor]",
            "  legal  every axis of a guard is iterated by an ancestor of the guarded node",
            "contraction_gemm",
            "p",
            "└── r",
            "    ├── zero  [first(t)]",
            "    └── t",
            "        └── gemm",
            "",
        ]
    )


def test_check_lists_every_problem(folder, capsys):
    program = examples.contraction_gemm(EXTENTS)
    axes = tuple(replace(axis, extent=0) for axis in program.axes)
    Path("bad.json").write_text(to_json(replace(program, axes=axes)))
    assert main(["teir", "check", "bad.json"]) == 2
    assert capsys.readouterr().err.count("error: axis") == 6


def test_check_finds_races_and_what_nothing_wrote(folder, capsys):
    program = examples.contraction_gemm(EXTENTS)
    nodes = tuple(replace(n, policy="parallel") if n.id == "t" else n for n in program.nodes if n.id != "zero")
    nodes = tuple(replace(n, children=("t",)) if n.id == "r" else n for n in nodes)
    Path("bad.json").write_text(to_json(replace(program, nodes=nodes)))
    assert main(["teir", "check", "bad.json"]) == 2
    err = capsys.readouterr().err
    assert "bad.json: error: p/r/t/gemm: parallel iterations race on byte" in err
    assert "bad.json: error: node 'gemm': it reads byte 0 of 'out' before anything writes it" in err


def test_check_with_arrays_names_the_node_that_leaves_them(folder, capsys):
    assert main(["teir", "check", "plain.json", "in0=b.npy"]) == 2
    assert "contraction: it touches bytes 0..71 of 'in0' [address.in-bounds]" in capsys.readouterr().err
    np.save("wide.npy", np.zeros((6, 3)))
    assert main(["teir", "check", "matmul.json", "in0=wide.npy"]) == 2
    assert "tensor 'in0': its array holds float64 [interpret.arrays]" in capsys.readouterr().err


def test_check_says_what_it_did_not_decide(folder, capsys):
    axes = tuple(Axis(id, 400, (stride,), (0,)) for id, stride in (("a", 24), ("b", 20)))  # strides that do not nest
    zero, relu = (Primitive(k, k, (("M", ("a",)), ("N", ("b",))), ("out",) * n) for k, n in (("Zero", 1), ("ReLU", 2)))
    nodes = (Invocation("zero", "Zero"), Invocation("relu", "ReLU"))
    program = Program((TensorSpec("out", "FP32", "out"),), axes, ("zero", "relu"), nodes, (zero, relu))
    Path("crossed.json").write_text(to_json(program))
    assert main(["teir", "check", "crossed.json"]) == 0
    out, err = capsys.readouterr()
    assert "note: initialisation is not decided: the program takes" in err
    assert "nothing read" not in out


def test_check_decides_initialisation_at_any_size(folder, capsys):
    large = examples.contraction_scalar(dict.fromkeys("pqrstu", 1000))
    Path("large.json").write_text(to_json(large))
    assert main(["teir", "check", "large.json"]) == 0
    out, err = capsys.readouterr()
    assert "nothing read before it is written" in out and err == ""
    nodes = tuple(replace(n, children=("t",)) if n.id == "s" else n for n in large.nodes if n.id != "zero")
    Path("lost.json").write_text(to_json(replace(large, nodes=nodes)))
    assert main(["teir", "check", "lost.json"]) == 2
    assert "it reads byte 0 of 'out' before anything writes it" in capsys.readouterr().err


def test_check_counts_what_is_never_written(folder, capsys):
    np.save("c.npy", np.zeros((7, 2), "f4"))
    assert main(["teir", "check", "plain.json", "out=c.npy"]) == 0
    assert "note: 2 elements of 'out' are never written, the first at byte 48" in capsys.readouterr().err
    np.save("c.npy", np.zeros((6, 2), "f4"))
    assert main(["teir", "check", "matmul.json", "out=c.npy"]) == 0
    assert "never written" not in capsys.readouterr().err


def test_check_warns_of_branches_that_overlap(folder, capsys):
    program = split(from_json(Path("matmul.json").read_text()), "contraction", 2, "j")
    early = tuple(replace(a, offsets=(0, 0, 0)) if str(a.id).endswith("_rest") else a for a in program.axes)
    Path("twice.json").write_text(to_json(replace(program, axes=early)))
    assert main(["teir", "check", "twice.json"]) == 0
    out, err = capsys.readouterr()
    assert "note: [branches.overlap] contraction.2: at" in err and "no step taken twice" not in out


# ── show ──


def test_show_prints_text_or_canonical_json(folder, capsys):
    capsys.readouterr()
    text = Path("matmul.json").read_text()
    assert main(["teir", "show", "matmul.json"]) == 0
    assert capsys.readouterr().out == f"{from_json(text)}\n"
    Path("loose.json").write_text(json.dumps(json.loads(text)))
    assert main(["teir", "show", "loose.json", "--json"]) == 0
    assert capsys.readouterr().out == text


def test_show_shows_bad_programs_too(folder, capsys):
    Path("bad.json").write_text(bad_guard())
    assert main(["teir", "show", "bad.json"]) == 0
    out, err = capsys.readouterr()
    assert "├── zero  [first(t)]" in out
    assert "bad.json: error: p/r/zero" in err


def test_show_draws(folder, capsys):
    assert main(["teir", "show", "matmul.json", "--draw", "matmul.svg"]) == 0
    assert xml.etree.ElementTree.parse("matmul.svg").getroot().tag.endswith("svg")
    assert "drawn: matmul.svg" in capsys.readouterr().err
    assert main(["teir", "show", "matmul.json", "--draw", "matmul.svg", "--overwrite"]) == 0


# ── run ──


@pytest.mark.parametrize("how", [[], ["--threads", "1"], ["--interpret"]])
def test_run_is_numpy(folder, capsys, how):
    words = ["in0=a.npy", "in1=b.npy", "-o", "out=c.npy", "--shape", "out=6x2"]
    assert main(["teir", "run", "matmul.json", *words, *how]) == 0
    assert "wrote c.npy  FP32 6x2" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load("c.npy"), np.load("a.npy") @ np.load("b.npy"))


def test_run_prints_what_no_file_takes_and_takes_flags_anywhere(folder, capsys):
    assert main(["teir", "run", "--threads", "1", "matmul.json", "in0=a.npy", "--interpret", "in1=b.npy"]) == 0
    expected = np.load("a.npy") @ np.load("b.npy")
    assert f"out = {expected}" in capsys.readouterr().out


def test_run_accumulates_into_a_copy_of_what_the_output_holds(folder, capsys):
    assert main(["teir", "emit", "ij,jk->ik", "6x3", "3x2", "--accumulate", "-o", "add.json"]) == 0
    start = np.ones((6, 2), "f4")
    np.save("c.npy", start)
    words = ["teir", "run", "add.json", "in0=a.npy", "in1=b.npy", "out=c.npy", "-o", "out=d.npy", "--time"]
    assert main(words) == 0
    assert "median" in (err := capsys.readouterr().err) and "GFLOP/s" in err
    np.testing.assert_array_equal(np.load("d.npy"), start + np.load("a.npy") @ np.load("b.npy"))
    np.testing.assert_array_equal(np.load("c.npy"), start)
    assert main(words) == 2
    assert "the file exists already" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_run_reads_and_writes_bf16_as_bytes(folder):
    values = np.arange(12, dtype="f4").reshape(3, 4).astype(ml_dtypes.bfloat16)
    np.save("x.npy", values)
    assert main(["teir", "emit", "ab->ba", "3x4", "--dtype", "BF16", "-o", "t.json"]) == 0
    assert main(["teir", "run", "t.json", "in0=x.npy", "-o", "out=y.npy", "--shape", "out=4x3"]) == 0
    np.testing.assert_array_equal(np.load("y.npy").view(ml_dtypes.bfloat16), values.T)


def test_run_warns_of_races(folder, capsys):
    racy = examples.guarded_reduction({"m": 6, "n": 2, "k": 3})
    nodes = tuple(replace(n, policy="parallel") if n.id == "k" else n for n in racy.nodes)
    Path("racy.json").write_text(to_json(replace(racy, nodes=nodes)))
    assert main(["teir", "run", "racy.json", "in0=a.npy", "in1=b.npy", "--interpret"]) == 0
    assert "racy.json: warning: parallel iterations race on byte" in capsys.readouterr().err


def test_an_output_has_the_shape_of_its_axes_where_they_are_dense(folder, capsys):
    words = ["in0=a.npy", "in1=b.npy", "-o", "out=c.npy", "--interpret"]
    assert main(["teir", "run", "matmul.json", *words]) == 0
    assert "wrote c.npy  FP32 6x2" in capsys.readouterr().out
    assert main(["teir", "emit", "ij,jk->", "6x3", "3x2", "-o", "sum.json"]) == 0
    assert main(["teir", "run", "sum.json", *words, "--overwrite"]) == 0
    assert np.load("c.npy").shape == ()
    # a branch for the rest, and a gap, say nothing about a shape
    np.save("row.npy", np.ones(7, "f4"))
    assert main(["teir", "emit", "i->i", "7", "--profile", "document", "-o", "copy.json"]) == 0
    program = from_json(Path("copy.json").read_text())
    gaps = tuple(replace(axis, strides=(4, 8)) for axis in program.axes)
    for changed in (split(program, "copy", 3, "i"), replace(program, axes=gaps)):
        Path("copy.json").write_text(to_json(changed))
        assert main(["teir", "run", "copy.json", "in0=row.npy", "-o", "out=c.npy", "--overwrite"]) == 0
        assert np.load("c.npy").ndim == 1


def test_elements_are_taken_by_their_indices_whatever_order_a_file_has(folder, capsys):
    a, b = np.load("a.npy"), np.load("b.npy")
    np.save("columns.npy", np.asfortranarray(a))
    np.save("big.npy", b.astype(">f4"))
    words = ["in0=columns.npy", "in1=big.npy", "-o", "out=c.npy", "--overwrite"]
    for file in ("matmul.json", "plain.json"):
        assert main(["teir", "run", file, *words]) == 0
        np.testing.assert_array_equal(np.load("c.npy"), a @ b)
    assert "warning" not in capsys.readouterr().err


def test_shapes_that_a_program_does_not_state_are_doubted(folder, capsys):
    np.save("wide.npy", np.load("a.npy").reshape(3, 6))
    assert main(["teir", "run", "plain.json", "in0=wide.npy", "in1=b.npy", "--interpret"]) == 0
    said = "plain.json: warning: the program moves over 6x3 of 'in0', whose array is 3x6\n"
    assert capsys.readouterr().err == said
    np.save("flat.npy", np.load("a.npy").ravel())
    for file in ("plain.json", "matmul.json"):
        assert main(["teir", "run", file, "in0=flat.npy", "in1=b.npy", "--shape", "out=3x2x2", "--interpret"]) == 0
    assert "warning" not in capsys.readouterr().err


def test_a_program_states_its_shapes_however_its_axes_are_joined_and_cut(folder, capsys):
    x, w = np.ones((2, 70, 3), "f4"), np.ones((3, 5), "f4")
    np.save("x.npy", x)
    np.save("w.npy", w)
    np.save("y.npy", x.reshape(70, 2, 3))
    assert main(["teir", "emit", "abc,cd->abd", "2x70x3", "3x5", "--tiled", "-o", "joined.json"]) == 0
    assert main(["teir", "run", "joined.json", "in0=x.npy", "in1=w.npy", "-o", "out=c.npy"]) == 0
    np.testing.assert_array_equal(np.load("c.npy"), x @ w)
    assert main(["teir", "run", "joined.json", "in0=y.npy", "in1=w.npy"]) == 2
    assert "its array has the shape 70x2x3" in capsys.readouterr().err


# ── tune ──


def test_tune_explains_and_is_remembered(folder, capsys, monkeypatch):
    monkeypatch.setenv("TILEWEAVE_CACHE", str(folder / "cache"))
    assert main(["teir", "tune", "matmul.json", "--seconds", "1", "--threads", "2", "-o", "best.json"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["time", "of", "own", "model", "choice"]
    assert "timed now" in out and "wrote best.json" in out
    assert main(["teir", "tune", "--threads", "2", "matmul.json"]) == 0
    assert "remembered" in capsys.readouterr().out
    words = ["in0=a.npy", "in1=b.npy", "--again", "--seconds", "0.5"]
    assert main(["teir", "tune", "matmul.json", *words]) == 0
    out = capsys.readouterr().out
    assert "timed now" in out and "program 1" not in out
    for file, how in (("best.json", []), ("matmul.json", ["--tuned", "--threads", "2"])):
        assert main(["teir", "run", file, "in0=a.npy", "in1=b.npy", "-o", "out=c.npy", "--overwrite", *how]) == 0
        np.testing.assert_array_equal(np.load("c.npy").reshape(6, 2), np.load("a.npy") @ np.load("b.npy"))


# ── explain ──


def test_explain_names_kernels_and_asks_the_backend(folder, capsys):
    program = examples.contraction_brgemm(EXTENTS)
    Path("brgemm.json").write_text(to_json(program))
    assert main(["teir", "explain", "brgemm.json", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "zero_sq: ZeroKernel" in out and "brgemm_sqtu: Brgemm" in out
    assert "t is the batch-reduce axis: 2 steps of 120 on A, 6 on B" in out
    assert "cpu backend: " in out and "Contraction(in0, in1, out)" in out


# ── emit ──


def test_emit_writes_programs_that_read_back(folder, capsys):
    capsys.readouterr()
    shapes = ["64x32", "32x16"]
    assert main(["teir", "emit", "ij,jk->ik", *shapes, "--profile", "document", "--tiled", "--dtype", "FP64"]) == 0
    program = from_json(capsys.readouterr().out)
    assert program.profile == "document"
    assert {spec.dtype for spec in program.tensors} == {"FP64"}
    assert main(["teir", "emit", "abc->cba", "2x3x4", "--relu", "--name", "flip"]) == 0
    program = from_json(capsys.readouterr().out)
    assert (program.name, [p.operation for p in program.primitives]) == ("flip", ["ReLU"])
    assert [(s.name, s.shape) for s in program.tensors] == [("in0", (2, 3, 4)), ("out", (4, 3, 2))]
    assert main(["teir", "emit", "ij->j", "2x3"]) == 0
    assert [p.operation for p in from_json(capsys.readouterr().out).primitives] == ["Zero", "ReduceSum"]
    assert main(["teir", "emit", "i,i->", "5", "5", "--dtype", "INT8", "--out-dtype", "INT32"]) == 0
    assert from_json(capsys.readouterr().out).tensors[-1].dtype == "INT32"


def test_emit_writes_reductions_and_elementwise_operations(folder, capsys):
    assert main(["teir", "emit", "ij->j", "6x3", "--op", "max", "-o", "max.json"]) == 0
    assert main(["teir", "run", "max.json", "in0=a.npy", "-o", "out=m.npy", "--interpret"]) == 0
    np.testing.assert_array_equal(np.load("m.npy"), np.load("a.npy").max(0))
    assert main(["teir", "emit", "ij,j->ij", "6x3", "3", "--op", "Sub", "-o", "sub.json"]) == 0
    words = ["in0=a.npy", "in1=m.npy", "-o", "out=s.npy", "--interpret"]
    assert main(["teir", "run", "sub.json", *words]) == 0
    np.testing.assert_array_equal(np.load("s.npy"), np.load("a.npy") - np.load("m.npy"))
    capsys.readouterr()
    assert main(["teir", "explain", "max.json"]) == 0
    assert "the document has no kernel for ReduceMax" in capsys.readouterr().out


def test_emit_writes_einsums_of_many_operands(folder, capsys):
    assert main(["teir", "emit", "ab,bc,cd->ad", "6x3", "3x2", "2x6", "--relu", "-o", "chain.json"]) == 0
    np.save("d.npy", np.arange(12, dtype="f4").reshape(2, 6))
    words = ["in0=a.npy", "in1=b.npy", "in2=d.npy", "-o", "out=c.npy"]
    assert main(["teir", "run", "chain.json", *words]) == 0
    expected = np.maximum(np.load("a.npy") @ np.load("b.npy") @ np.load("d.npy"), 0)
    np.testing.assert_array_equal(np.load("c.npy"), expected)


def test_a_tiled_program_computes_the_same(folder, capsys):
    assert main(["teir", "emit", "ij,jk->ik", "130x40", "40x300", "--tiled", "-o", "tiled.json"]) == 0
    rng = np.random.default_rng(1)
    a, b = rng.integers(-4, 5, (130, 40)).astype("f4"), rng.integers(-4, 5, (40, 300)).astype("f4")
    np.save("a2.npy", a)
    np.save("b2.npy", b)
    assert main(["teir", "run", "tiled.json", "in0=a2.npy", "in1=b2.npy", "-o", "out=c.npy"]) == 0
    np.testing.assert_array_equal(np.load("c.npy").reshape(130, 300), a @ b)


# ── bad input ──


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "missing.json"], "missing.json: the file cannot be opened"),
        (["check", "text.json"], "it is not JSON"),
        (["show", "list.json"], "text"),
        (["check", "matmul.json", "in7=a.npy"], "legal  NAME=FILE.npy with NAME one of in0, in1, out"),
        (["check", "matmul.json", "in0=a.npy", "in0=a.npy"], "is given twice"),
        (["check", "matmul.json", "in0=matmul.json"], "is not a .npy"),
        (["check", "matmul.json", "in0=no.npy"], "cannot be read"),
        (["run", "matmul.json", "in0=a.npy"], "no array is given for tensor 'in1'"),
        (["run", "plain.json", "in0=b.npy", "in1=b.npy"], "contraction: it touches bytes 0..71 of 'in0'"),
        (["run", "matmul.json", "in0=b.npy", "in1=b.npy"], "tensor 'in0': its array has the shape 3x2"),
        (["run", "matmul.json", "in0=a.npy", "in1=b.npy", "--shape", "out=2x6"], "=2x6: the program writes 6x2"),
        (["run", "matmul.json", "in0=a.npy", "in1=b.npy", "--shape", "in0=3x6"], "the run does not make 'in0'"),
        (["run", "matmul.json", "in0=a.npy", "in1=b.npy", "--shape", "2x6"], "--shape 2x6: is not NAME=64x16"),
        (["run", "matmul.json", "a.npy"], "a.npy: is not NAME=FILE.npy"),
        (["run", "matmul.json", "in0="], "in0=: is not NAME=FILE.npy"),
        (["run", "matmul.json", "in0=a.npy", "in1=b.npy", "-o", "out=c.txt"], "'c.txt' is no name for an array"),
        (
            ["run", "matmul.json", "in0=a.npy", "in1=b.npy", "-o", "c.npy"],
            "-o c.npy: is not NAME=FILE.npy\n  legal  NAME=FILE.npy with NAME one of in0, in1, out",
        ),
        (["show", "matmul.json", "--draw", "x.png"], "--draw: 'x.png' is no name for an SVG"),
        (["show", "matmul.json", "--draw", "kept.svg"], "kept.svg: the file exists already"),
        (["tune", "matmul.json", "-o", "best.txt"], "'best.txt' is no name for a program as JSON"),
        (["emit", "i->i", "4", "-o", "x.txt"], "legal  a path that ends in .json"),
        (
            ["run", "matmul.json", "in0=a.npy", "in1=b.npy", "-o", "in0=c.npy"],
            "legal  NAME=FILE.npy with NAME one of out",
        ),
        (["run", "matmul.json", "in0=a.npy", "in1=b.npy", "-o", "out=no/c.npy"], "there is no directory 'no'"),
        (["run", "matmul.json", "in0=a.npy", "in1=b.npy", "--shape", "out=6xx"], "is no shape"),
        (["run", "matmul.json", "in0=a.npy", "in1=b.npy", "--shape", "out=6"], "out=6: the program writes 6x2"),
        (["run", "plain.json", "in0=a.npy", "in1=b.npy", "--shape", "out=6"], "it touches bytes 0..47 of 'out'"),
        (["run", "negative.json", "in0=a.npy"], "touches bytes -20..3 from the base of 'out'"),
        (["run", "bad.json"], "p/r/zero: no ancestor iterates axis 't'"),
        (["explain", "bad.json"], "p/r/zero: no ancestor iterates axis 't'"),
        (["emit", "ij,jk->ik", "2x3"], "the equation has 2 operands, and 1 shape follows it"),
        (["emit", "ij", "4x"], "the equation says no output\n  legal  such as 'ij->ij'"),
        (["emit", "ij->ji", "4x"], "4x: is no shape"),
        (
            ["emit", "ij->ji", "2x3", "--op", "frob"],
            "legal  to reduce sum, prod, max, min; element by element Neg, Abs, Sign",
        ),
        (["emit", "ij,jk->ik", "2x3", "3x4", "--op", "sum"], "'sum' reduces one operand; the equation has 2"),
        (["emit", "ij,ij->ij", "2x3", "2x3", "--op", "add"], "no operation 'add'; 'Add' works element by element"),
        (["emit", "ij->ij", "2x3", "--op", "Max"], "1 operand is given for out = max(in0, in1)"),
        (["emit", "ij->ij", "2x3", "--op", "max"], "--op max has no letter to reduce over"),
        (["emit", "ij->j", "2x3", "--relu"], "needs all of its letters in the output"),
        (["emit", "...ij->...ji", "2x3"], "a letter for every index, and ... names none"),
        (["emit", "ij,jk", "2x3", "3x4"], "legal  such as 'ij,jk->ik'"),
        (["emit", "i1->1i", "2x3"], "legal  letters, as in 'ab->ba'"),
        (["emit", "ij->ji", "9" * 5000 + "x1"], "is no shape"),
        (["emit", "ij,jk->ik", "4294967296x4294967296", "4294967296x1"], "teir emit 'ij,jk->ik': its elements"),
        (["emit", "i->i", "4", "--out-dtype", "FP8"], "--out-dtype: 'FP8' is not an element type"),
        (["emit", "ab,bc,cd->az", "2x3", "3x4", "4x5"], "letter 'z' of the output is in no input"),
        (["check", "empty.json"], '{} is not a TEIR program: an object with "format": "tileweave.teir"'),
        (["tune", "bad.json"], "p/r/zero: no ancestor iterates axis 't'"),
        (["tune", "plain.json", "in0=b.npy", "in1=b.npy"], "contraction: it touches bytes 0..71 of 'in0'"),
        (["run", "outer.json", "in0=a.npy", "in1=a.npy"], "there is no memory for"),
        (["tune", "vast.json"], "there is no memory for"),
        (["tune", "matmul.json", "in0=a.npy"], "no array is given for tensor 'in1'"),
        (
            ["run", "matmul.json", "in0=a.npy", "in1=b.npy", "-o", "out=folder.npy", "--overwrite"],
            "folder.npy: the file",
        ),
        (["emit", "ij,jk->iz", "2x3", "3x4"], "letter 'z' of the output is in no input"),
        (["emit", "ij,jk->ik", "2x3", "4x5"], "extents"),
        (["emit", "ij,jk->ik", "2x0", "0x5"], "2x0: is no shape"),
        (["emit", "ij->ji", "2x3", "--dtype", "FP8"], "legal  FP64, FP32"),
        (["emit", "ij->ji", "2x3", "--accumulate"], "needs a contraction"),
        (["emit", "ij->ji", "2x3", "--op", "Sine"], "there is no operation 'Sine'"),
        (["emit", "ij->i", "2x3", "--op", "sum", "--relu"], "are for contractions"),
        (["emit", "i,i->i", "4", "4", "--dtype", "BF16", "--profile", "document"], "tensors: they are named"),
        (["emit", "i,i->i", "4", "4", "-o", "matmul.json"], "exists already"),
        (["emit", "i,i->i", "4", "4", "-o", "folder.json", "--overwrite"], "folder.json: the file cannot be written"),
        (["show", "matmul.json", "--draw", "no/x.svg"], "no/x.svg: there is no directory 'no'"),
    ],
)
def test_bad_input_is_refused_in_one_message(folder, capsys, words, said):
    Path("text.json").write_text("no json")
    Path("empty.json").write_text("{}")
    Path("folder.npy").mkdir()
    Path("folder.json").mkdir()
    Path("kept.svg").touch()
    assert main(["teir", "emit", "i,j->ij", "100000000", "10000000000", "-o", "outer.json"]) == 0
    assert main(["teir", "emit", "i,j,k,l->ijkl", *["30000"] * 4, "-o", "vast.json"]) == 0
    Path("list.json").write_text('{"format": "text"}')
    Path("bad.json").write_text(bad_guard())
    copy = examples.branching({"r": 1, "s": 3, "t": 3})
    axes = tuple(replace(a, offsets=(a.offsets[0], a.offsets[1] - 20 * (a.id == "r"))) for a in copy.axes)
    Path("negative.json").write_text(to_json(replace(copy, axes=axes)))
    capsys.readouterr()
    assert main(["teir", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert ".part" not in err
    assert not list(folder.glob("*.part"))


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["teir", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("check", "show", "run", "explain", "tune", "emit"))
    for command in ("check", "show", "run", "explain", "tune", "emit"):
        with pytest.raises(SystemExit):
            main(["teir", command, "--help"])
        out = capsys.readouterr().out
        assert ("FILE" in out and "a program as JSON" in out) or command == "emit"
    assert main(["teir", "compile", "x.json"]) == 2
    said = "UsageError: tileweave teir: argument COMMAND: invalid choice: 'compile'\n  legal  check | show | run"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("order", [[], ["--no-merge"]])
def test_a_schedule_runs_as_it_stands(order, folder, capsys):
    scalar = examples.batched_gemm_scalar({"a": 3, "b": 4, "c": 5, "d": 2})
    Path("scalar.json").write_text(to_json(scalar))
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (2, 4, 3)).astype("f4"), rng.integers(-3, 4, (2, 3, 5)).astype("f4")
    np.save("x.npy", a)
    np.save("y.npy", b)
    files = ["in0=x.npy", "in1=y.npy", "-o", "out=z.npy", "--shape", "out=2x4x5", "--overwrite"]
    assert main(["teir", "run", "scalar.json", *files, *order]) == 0
    np.testing.assert_array_equal(np.load("z.npy"), a @ b)
    capsys.readouterr()
    assert main(["teir", "explain", "scalar.json", *order]) == 0
    out = capsys.readouterr().out
    assert ("  a\n" in out) == bool(order)  # the loop over a stays, or is merged
