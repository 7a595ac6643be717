"""``tileweave run`` and ``plan`` on an ONNX model: outputs by name, shapes bound, bad input refused before work."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tileweave.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model of two outputs, and an input for it."""
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"]), helper.make_node("Relu", ["y"], ["z"], name="top")]
    values = [numpy_helper.from_array(-np.ones((4, 3), np.float32), "w")]
    values.append(numpy_helper.from_array(np.array([0, 5, 9], np.float32), "b"))
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, ["batch", 4])]
    outputs = [info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("z", "y")]
    graph = helper.make_graph(nodes, "net", inputs, outputs, values)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(tmp_path / "net.onnx"))
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    np.save(tmp_path / "wide.npy", np.ones((2, 5), np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


EXPECTED = np.array([[-4, 1, 5]] * 2, np.float32)


def test_every_output_is_written_under_its_name(folder, capsys):
    assert main(["run", "net.onnx", "x=x.npy", "--bind", "batch=2", "-o", "out.npz"]) == 0
    assert capsys.readouterr().out == "wrote out.npz#z\nwrote out.npz#y\n"
    with np.load("out.npz") as made:
        np.testing.assert_array_equal(made["y"], EXPECTED)
        np.testing.assert_array_equal(made["z"], np.maximum(EXPECTED, 0))


def test_outputs_are_printed_and_one_input_needs_no_name(folder, capsys):
    assert main(["run", "net.onnx", "--bind", "x=2x4", "x.npy"]) == 0
    assert capsys.readouterr().out == "z  float32[2, 3]  0 1 5 0 1 5\ny  float32[2, 3]  -4 1 5 -4 1 5\n"


def test_extents_are_those_of_the_arrays(folder, capsys):
    assert main(["run", "net.onnx", "x=x.npy"]) == 0
    assert capsys.readouterr().out == "z  float32[2, 3]  0 1 5 0 1 5\ny  float32[2, 3]  -4 1 5 -4 1 5\n"
    assert main(["plan", "net.onnx", "x=x.npy", "--machines", "2"]) == 0
    assert "plan for 2 machines" in capsys.readouterr().out
    assert main(["plan", "net.onnx"]) == 2
    assert "dimension 'batch' has no extent" in capsys.readouterr().err


def test_the_plan_of_a_model_needs_no_arrays(folder, capsys):
    assert main(["plan", "net.onnx", "--bind", "batch=8", "--machines", "2"]) == 0
    assert "plan for 2 machines" in capsys.readouterr().out


def test_the_graph_of_a_model_is_shown(folder, capsys):
    assert main(["graph", "show", "net.onnx", "batch=8"]) == 0
    out = capsys.readouterr().out
    assert "float32[8, 3]" in out and "relu" in out
    assert main(["graph", "show", "net.onnx"]) != 0
    assert "dimension 'batch' has no extent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x=wide.npy"], "input 'x' is float32[2, 4], the array has shape (2, 5)"),
        ([], "no array for x float32[batch, 4]"),
        ([], "legal  x=FILE.npy"),
        (["--bind", "batch=2"], "no array for x float32[2, 4]"),
        (["--bind", "batch=2", "x=wide.npy"], "input 'x' is float32[2, 4], the array has shape (2, 5)"),
        (["--bind", "batch=2", "q=x.npy"], "'q' is no input"),
        (["--bind", "batch=2", "x=none.npy"], "'none.npy' cannot be read as an array"),
        (["--bind", "batch=2", "x=net.onnx"], "it is no NumPy file"),
        (["--bind", "batch=2", "--bind", "depth=3", "x=x.npy"], "'depth' is no input or dimension"),
        (["--bind", "batch", "x=x.npy"], "'batch' is no NAME=8"),
        (["--bind", "batch=1", "--bind", "batch=2", "x=x.npy"], "'batch' is given twice"),
        (["x=x.npy", "x=wide.npy"], "'x' is given twice"),
        (["x=two.npz"], "legal  two.npz#x | two.npz#wide"),
        (["x=two.npz#q"], "'two.npz' has no array 'q'"),
        (["x=none.npz"], "'none.npz' holds 0 arrays"),
        (["x=wrong.npz"], "'wrong.npz' cannot be read as an array: Bad CRC-32"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(folder, capsys, words, said):
    np.savez("two.npz", x=np.load("x.npy"), wide=np.load("wide.npy"))
    np.savez("none.npz")
    np.savez("one.npz", x=np.load("x.npy"))
    whole = (folder / "one.npz").read_bytes()
    at = whole.index(np.load("x.npy").tobytes())
    (folder / "wrong.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert main(["run", "net.onnx", "-o", "out.npz", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "out.npz").exists()
