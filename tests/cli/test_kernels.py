"""``tileweave kernel``: what it prints, and that every bad input gives the error form."""

from pathlib import Path

import numpy as np
import pytest

from tileweave.cli.main import main

KERNELS = Path(__file__).resolve().parents[2] / "examples" / "kernels"
SOFTMAX, MATMUL = KERNELS / "softmax.py", KERNELS / "matmul.py"
HANGS = """
from tileweave import kernel as tk

@tk.kernel
def hangs(k, x, y):
    row = k.grid(2)
    with k.cta(threads=32) as cta:
        cta.wait(y, row)
"""


def run(capsys, *words):
    status = main(["kernel", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_check(capsys):
    status, out, _ = run(capsys, "check", SOFTMAX, "f32:3x70", "f16:3x70")
    assert (status, out) == (0, "3 blocks, 42 statements, 48 accesses: every claim holds\n")


def test_text(capsys):
    status, out, _ = run(capsys, "text", f"{MATMUL}:matmul", "f16:70x40", "f16:50x40", "f16:70x50", "--set", "bm=32")
    assert status == 0 and out.startswith("kernel matmul") and "alloc acc: f32[32, 256] register ?" in out


def test_run(capsys, tmp_path):
    x = np.random.default_rng(0).standard_normal((4, 30)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("run", SOFTMAX, tmp_path / "x.npy", "f32:4x30", "-o", f"y={tmp_path / 'y.npy'}")
    assert run(capsys, *words)[0] == 0
    assert np.allclose(np.load(tmp_path / "y.npy").sum(1), 1)
    status, _, err = run(capsys, *words)
    assert status == 2 and "exists already" in err
    status, out, _ = run(capsys, "run", SOFTMAX, tmp_path / "x.npy", "f32:4x30")
    assert status == 0 and "y =" in out


def test_a_kernel_that_hangs_says_who_waits(capsys, tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS)
    status, _, err = run(capsys, "check", tmp_path / "hangs.py", "f32:2x3", "f32:2x3")
    assert status == 2 and "waits for y_flags[0] to reach 1: it is 0" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\0", "SyntaxError: source code"),
        ("def f(:\n  pass\n", "broken.py:1"),
        ("x = 1\nraise SystemExit(3)\n", "SystemExit: 3\n  line  {path}:2"),
        ("import numpy as np\n\nx = np.random.default_rng('seed')\n", "{path}:3"),
        ("import json\njson.loads('{')\n", "JSONDecodeError"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "explain", "text", "run"])
def test_a_file_that_cannot_be_run_is_named_with_its_line(capsys, tmp_path, text, said, verb):
    path = tmp_path / "broken.py"
    path.write_text(text)
    status, _, err = run(capsys, verb, path, "f32:2x3", "f32:2x3")
    assert status == 2 and said.format(path=path) in err, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "nofile.py"), "no file"),
        (("check", MATMUL, "f16:2x2"), "has 2 kernels"),
        (("check", f"{MATMUL}:gemm"), "no kernel 'gemm'"),
        (("check", SOFTMAX, "f32:3x70"), "1 arguments"),
        (("check", SOFTMAX, "f32:3x70", "f32:3"), "cta.store: div of shape (70,) does not fit y, of ()"),
        (("check", SOFTMAX, "f32:3x70", "f32:2x70"), "y is too small: 2 in dimension 0, 3 are written\n  rule"),
        (("run", SOFTMAX, "f32:3x70", "f32:2x70", "--on", "cpu"), "y is too small: 2 in dimension 0, 3 are written"),
        (
            ("run", f"{MATMUL}:matmul", "f16:70x40", "f16:50x40", "f16:60x50"),
            "C is too small: 60 in dimension 0, 70 are written\n  rule     extent\n  shape    (60, 50)",
        ),
        (("check", SOFTMAX, "f31:3x70", "f32:3x70"), "no element type"),
        (("check", SOFTMAX, "f32:0x70", "f32:3x70"), "TYPE:SHAPE"),
        (("check", SOFTMAX, "x.npy", "f32:3x70"), "cannot be read"),
        (("check", SOFTMAX, "f32:3x70", "f32:3x70", "--set", "bm=3"), "unknown options bm"),
        (("check", f"{MATMUL}:matmul", "f16:2x2", "f16:2x2", "f16:2x2", "--set", "bm=abc"), "option bm is 'abc'"),
        (("check", SOFTMAX, "f32:3x70", "f32:3x70", "--set", "bm"), "NAME=VALUE"),
        (("text", SOFTMAX, "f32:3x70", "f32:3x70", "--target", "ptx"), "no target 'ptx'"),
        (("verb", SOFTMAX), "UsageError: tileweave kernel: argument COMMAND: invalid choice: 'verb'\n  legal  check |"),
        (
            ("check", SOFTMAX, "f32:3x70", "f32:3x70", "--sets", "t=3"),
            "check: unknown argument '--sets'\n  legal  --set\n",
        ),
        (("check", SOFTMAX, "--block", "3"), "unknown argument '--block'\n  legal  tileweave kernel check [-h]"),
        (("run", SOFTMAX, "--seed", "a"), "argument --seed: invalid int value: 'a'"),
        (
            ("run", f"{MATMUL}:matmul", "f32:9x9", "f16:9x9", "f16:9x9", "--on", "cpu"),
            "launch is refused: 262144 bytes of shared memory\n  legal  at most 232448: smaller tiles, fewer stages",
        ),
        (("explain",), "required: FILE.py[:NAME]\n  legal  tileweave kernel explain"),
        (("text", SOFTMAX, "--arch"), "argument --arch: expected one argument"),
        (("run", SOFTMAX, "f32:3x70", "f32:3x70", "--on", "tpu"), "no target 'tpu'"),
        (("run", SOFTMAX, "f32:3x70", "f32:3x70", "-o", "z=z.npy"), "no tensor"),
    ],
)
def test_bad_input(words, said, capsys):
    status, out, err = run(capsys, *words)
    assert status == 2 and said in err and "Traceback" not in err and not out


FAULTY = """
from tileweave import kernel as tk

@tk.kernel
def raises(k, x):
    raise ValueError("not mine")

@tk.kernel
def spins(k, x):
    n = k.var(0)
    with k.cta(threads=32) as cta, k.while_(n.value < 5):
        cta.sync()

@tk.kernel
def runs_away(k, x):
    n = k.var(0)
    with k.cta(threads=32) as cta, k.while_(n.value < 5):
        n.set(n.value - 1)

@tk.kernel
def forced(k, x):
    with k.cta(warps=1) as cta:
        cta.gemm(cta.zeros((16, 16)), x, x, use="wgmma")

@tk.kernel
def rows(k, x):
    k.grid(x.blocks(2, 1))

@tk.kernel
def text(k, x):
    with k.cta(threads=32) as cta:
        cta.load(x[0]) + "a"

@tk.kernel
def swizzled(k, x):
    k.shared((10, 10), like=x, swizzle=100)

@tk.kernel
def waits(k, x):
    with k.cta(threads=32) as cta:
        cta.wait_group(-1)

@tk.kernel
def depths(k, x):
    with k.cta(threads=32) as cta:
        cta.gemm(cta.zeros((16, 16)), x.tile(16, 16)[0, 0], x.tile(16, 32)[0, 0])
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "faulty.py:raises", "f32:2x2"), "the file raises ValueError: not mine\n  line  faulty.py:6"),
        (("check", "faulty.py:spins", "f32:2x2"), "a turn changes no index, and n < 5 holds"),
        (("check", "faulty.py:runs_away", "f32:2x2"), "no end after 20000 turns"),
        (("explain", "faulty.py:forced", "f16:16x16"), "gemm(.., use='wgmma'): 1 warps are no warpgroups"),
        (("check", "faulty.py:rows", "f16:16x16"), "a view of rank 2 has no axis 2"),
        (("check", "faulty.py:text", "f16:16x16"), "'a' is no operand\n  line   faulty.py:32: cta.load(x[0]) +"),
        (("check", "faulty.py:swizzled", "f16:16x16"), "line   faulty.py:36: k.shared((10, 10), like=x, swizzle=100)"),
        (("check", "faulty.py:waits", "f16:16x16"), "wait_group(pending): -1 groups\n  line   faulty.py:41"),
        (("check", "faulty.py:depths", "f16:16x64"), "C (16, 16), A (16, 16), B (16, 32) are not (m, n), (m, k)"),
        (("check", "broken.py"), "the file raises SyntaxError"),
        (("check", "lonely.py"), "the file raises ModuleNotFoundError: No module named 'nobody_has_this'"),
        (("check", "x.npy"), "no file of Python"),
    ],
)
def test_faults_of_the_users_file(words, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "broken.py").write_text("def f(:")
    (tmp_path / "lonely.py").write_text("import nobody_has_this")
    np.save(tmp_path / "x.npy", np.zeros(3))
    status, out, err = run(capsys, *words)
    assert status == 2 and said in err and not out, err


@pytest.mark.parametrize("verb", [["explain"], ["text", "--target", "cuda"], ["check"], ["run", "--on", "cpu"]])
@pytest.mark.parametrize("arch", ["foo", "sm_12", "gfx942"])
def test_an_unknown_architecture_is_refused(capsys, verb, arch):
    status, _, err = run(capsys, *verb, SOFTMAX, "f32:3x70", "f32:3x70", "--arch", arch)
    assert status == 2 and f"{arch!r} is no architecture that is known" in err and "sm_90" in err


@pytest.mark.parametrize("arch", ["nonsense", "sm_91", "sm_80a"])
@pytest.mark.parametrize("verb", ["check", "explain", "text", "run"])
def test_an_unknown_architecture_is_refused_by_every_verb(capsys, verb, arch):
    status, out, err = run(capsys, verb, SOFTMAX, "f32:3x70", "f32:3x70", "--arch", arch)
    assert (status, out) == (2, "") and f"{arch!r} is no architecture that is known" in err and "  legal  sm_70" in err


def test_an_architecture_is_that_of_the_explicit_program(capsys, tmp_path):
    words = (f"{MATMUL}:matmul", "f16:70x200", "f16:50x200", "f32:70x50", "--set", "bm=32")
    status, out, _ = run(capsys, "text", *words, "--arch", "sm_80")
    assert status == 0 and "copy_async" in out
    found = []
    for more in ((), ("--arch", "sm_80"), ("--arch", "sm_80", "--on", "cpu")):
        path = tmp_path / f"{len(found)}.npy"
        assert run(capsys, "run", *words, *more, "-o", f"C={path}")[0] == 0
        found.append(np.load(path))
    assert found[1].tobytes() == found[2].tobytes() != found[0].tobytes()  # sums in the order of the target
