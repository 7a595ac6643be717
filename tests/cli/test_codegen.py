"""``tileweave codegen`` as a user meets it."""

import os
import shutil
import subprocess
import sys

import pytest

from tileweave.backends import mlir, triton
from tileweave.backends.cuda import templates
from tileweave.cli.main import main


def test_the_kernels_are_listed_and_printed(capsys, tmp_path):
    assert main(["codegen", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in triton.KERNELS) and "BM" in listed
    assert main(["codegen", "matmul", "--set", "M=4096", "N=4096", "K=4096", "b=col"]) == 0
    text = capsys.readouterr().out
    assert text == triton.kernel("matmul").template(M=4096, N=4096, K=4096, b="col").fill("triton").text
    file = tmp_path / "matmul.py"
    assert main(["codegen", "matmul", "--target", "triton", "--set", "BM=32", "-o", str(file)]) == 0
    assert "def matmul(a_ptr, b_ptr, c_ptr, K, M, N):" in file.read_text() and capsys.readouterr().out == ""


def test_the_explanation_has_grid_and_costs(capsys):
    assert main(["codegen", "softmax", "--set", "BN=256", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "grid (M)" in out and "operations, cost" in out and "stays: it fails" in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["conv"], "no kernel 'conv'"),
        ([], "no kernel is named"),
        (["matmul", "--set", "M"], "'M'"),
        (["matmul", "--set", "BM=48"], "no power of two"),
        (["matmul", "--set", "M=0"], "the size M is 0"),
        (["matmul", "--set", "BK=many"], "BK is 'many'"),
        (["softmax", "--set", "Q=1"], "no option Q"),
        (["matmul", "--set", "BM=1048576"], "too many elements in a tile"),
        (["matmul", "--set", "M=3", "M=4"], "M is set twice"),
        (["matmul", "--set", "M=1e3"], "the size M is '1e3'"),
        (["matmul", "--set", "M=--3"], "the size M is '--3'"),
        (["matmul", "--set", "M=\N{SUPERSCRIPT TWO}"], "the size M is '"),
        (["matmul", "-o", ""], "the name of the file is empty"),
        (["matmul", "-o", "/nowhere/matmul.py"], "No such file or directory"),
        (["matmul", "--list"], "it lists kernels and makes none"),
        (["matmul", "--target", "cuda"], "no kernel 'matmul'"),
        (["needleman_wunsch", "--set", "B=0"], "legal  1 .. 128"),
        (["matmul_mma", "--target", "cuda", "--set", "stages=8", "BM=128"], "more than a block has"),
    ],
)
def test_bad_words_are_refused_before_any_text(capsys, words, problem):
    assert main(["codegen", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and problem in err


def test_the_same_text_comes_from_every_process(capsys):
    words = [["grouped_gemm"], ["lud"], ["matmul_mma", "--target", "mlir"], ["stencil", "--set", "r=2"]]
    texts = []
    for seed in ("0", "1"):
        script = f"from tileweave.cli.main import main\nfor w in {words!r}: main(['codegen', *w])"
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        texts.append(done.stdout)
    for one in words:
        assert main(["codegen", *one]) == 0
    assert texts[0] == texts[1] == capsys.readouterr().out != ""


def test_check_says_what_it_ran(capsys):
    if not triton.installed(interpreter=False):
        pytest.skip("triton is installed: compiling is tested with the kernels")
    assert main(["codegen", "softmax", "--check"]) == 0
    assert "not checked: compilation; triton not installed" in capsys.readouterr().err


def test_cuda_kernels_are_printed_and_checked(capsys):
    assert main(["codegen", "--list", "--target", "cuda"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in templates.KERNELS) and "softmax" not in listed
    assert main(["codegen", "transpose_shared", "--set", "shared=padded", "--check"]) == 0
    out, err = capsys.readouterr()
    assert out == templates.kernel("transpose_shared").text(shared="padded").text and "tile[1056]" in out
    if shutil.which("g++"):
        assert "checked: run on the CPU against NumPy: 70 x 101, 1 launches, largest difference 0" in err
    assert ("checked: compiles for sm_80" in err) or ("not checked: compilation" in err)


def test_mlir_kernels_are_printed_and_checked(capsys):
    assert main(["codegen", "--list", "--target", "mlir"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in mlir.KERNELS) and "softmax" not in listed
    assert main(["codegen", "transpose_shared", "--target", "mlir", "--set", "M=40", "N=70", "--check"]) == 0
    out, err = capsys.readouterr()
    assert out == mlir.kernel("transpose_shared").fill(M=40, N=70).text and "gpu.func @transpose_shared" in out
    if mlir.installed():
        assert f"not checked: {mlir.installed()}" in err
    else:
        assert "checked: mlir-opt accepts the text" in err and "checked: lowers to PTX" in err and "failed" not in err
