"""Kernels as people write them: right four ways; and broken on purpose: the interpreter names the line.

A fault counts as found if a rule is named at a line of the kernel, or a warning says what is seldom meant. The others
change nothing (what does not exist reads as zero) or are another computation, which only values show.
"""

import runpy
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tileweave.backends.cuda.printer.entry import run_together
from tileweave.errors import VerifyError

SOURCE = Path(__file__).with_name("written_kernels.py")
TEXT = SOURCE.read_text()
KERNELS = runpy.run_path(str(SOURCE))
RANDOM = np.random.default_rng(1)


def rows(*shape, dtype=np.float16):
    return RANDOM.standard_normal(shape).astype(dtype)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


A, B, X, W = rows(100, 330), rows(90, 330), rows(13, 300, dtype=np.float32), rows(1, 300, dtype=np.float32)
DY, IMAGE, TAPS = (rows(*s, dtype=np.float32) for s in ((13, 300), (45, 70), (3, 3)))
TURNED, BF16 = rows(330, 100, dtype=ml_dtypes.bfloat16), rows(90, 330, dtype=ml_dtypes.bfloat16)
LINES, PARTS = rows(5, 700), rows(4, 100, 90, dtype=np.float32)
WEIGHTS, SCALE = RANDOM.integers(-127, 127, (90, 330)).astype(np.int8), np.abs(rows(90, 1, dtype=np.float32)) / 20


def split_sums():
    padded = [np.pad(one.astype(float), ((0, 0), (0, 54)))[:, : 4 * 96].reshape(-1, 4, 96) for one in (A, B)]
    return [np.einsum("mpk,npk->pmn", *padded)]


def norms_backward():
    centred = X - X.mean(1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    hat, weighted = centred * scale, W * DY
    slope = weighted - hat * (hat * weighted).mean(1, keepdims=True) - weighted.mean(1, keepdims=True)
    return [slope * scale, np.stack([(DY * hat)[4 * i : 4 * i + 4].sum(0) for i in range(4)])]


def convolved():
    padded = np.pad(IMAGE, 1)
    return [sum(padded[a : a + 45, b : b + 70] * TAPS[a, b] for a in range(3) for b in range(3))]


#: Kernel -> its arguments and what its last ones must hold.
CASES = {
    "split_k": ((A, B, zeros(4, 100, 90)), split_sums),
    "add_parts": ((PARTS, zeros(100, 90)), lambda: [PARTS.astype(float).sum(0)]),
    "layernorm_backward": ((X, W, DY, zeros(13, 300), zeros(4, 300)), norms_backward),
    "cumsum": ((X, zeros(13, 300)), lambda: [np.cumsum(X.astype(float), 1)]),
    "conv2d": ((IMAGE, TAPS, zeros(45, 70)), convolved),
    "argmax": (
        (LINES, zeros(5, 1, dtype=np.float16), zeros(5, 1, dtype=np.int32)),
        lambda: [LINES.max(1, keepdims=True), LINES.argmax(1)[:, None]],
    ),
    "gemm_tn": ((TURNED, BF16, zeros(100, 90)), lambda: [TURNED.astype(float).T @ BF16.astype(float).T]),
    "dequant_gemm": (
        (A, WEIGHTS, SCALE, zeros(100, 90)),
        lambda: [A.astype(float) @ (WEIGHTS * SCALE).astype(np.float16).astype(float).T],
    ),
}


@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_written_kernels_are_right(arch):
    runs, explicit = [], []
    for name, (arrays, wanted) in CASES.items():
        report = KERNELS[name].check(*arrays)
        explicit.append(KERNELS[name].check(*arrays, arch=arch).outputs)
        for found in (report.outputs, explicit[-1]):
            for got, want in zip(list(found.values())[-len(wanted()) :], wanted(), strict=True):
                np.testing.assert_allclose(got.astype(float), want, 1e-4, 1e-4 * np.abs(want).max(), err_msg=name)
        runs.append((KERNELS[name].trace(*arrays), [a.copy() for a in arrays]))
    if shutil.which("g++"):
        run_together(runs, "cpu", arch, optimise=False)
        for (kernel, arrays), want in zip(runs, explicit, strict=True):
            assert all(a.tobytes() == want[p.name].tobytes() for p, a in zip(kernel.params, arrays, strict=True))


SYNC = "            cta.sync()\n"
#: Kernel, what stands there, what is put in its place, the rule that is named or the words of a warning.
FAULTS = [
    ("conv2d", "        cta.sync()\n", "", "race"),
    ("conv2d", "shared((t + 2, t + 2)", "shared((t + 1, t + 1)", "operator"),
    ("conv2d", "s[a : a + t, b : b + t]", "s[a + 1 : a + t + 1, b : b + t]", "inside"),
    ("conv2d", "y.tile(t, t)[i, j]", "y[i * t : i * t + t, j * t : j * t + t]", "bounds"),
    ("conv2d", "x.tile(t, t, halo=1)[i, j]", "x[i * t : i * t + t + 2, j * t : j * t + t + 2]", "bounds"),
    ("conv2d", "y.tile(t, t)[i, j]", "y.tile(t, t)[i, 0]", "race"),
    ("conv2d", "y.tile(t, t)[i, j]", "y.tile(t, t)[j, i]", "are never written"),
    ("dequant_gemm", f"{SYNC}            cta.gemm", "            cta.gemm", "race"),
    ("dequant_gemm", f"m, i], sb)\n{SYNC}", "m, i], sb)\n", "race"),
    ("dequant_gemm", "A.tile(bm, bk)[m, i], sb", "A.tile(bm, bk)[m, i + 1], sb", "zeros are read"),
    ("dequant_gemm", "scale.tile(bn, 1)[n, 0]", "scale[n * bn : n * bn + bn]", "bounds"),
    ("split_k", "P[s].tile", "P[0].tile", "race"),
    ("split_k", "tile(bm, bn)[m, n]", "tile(bm, bn)[m, n + 1]", "nothing is written"),
    ("add_parts", "range(P.shape[0])", "range(P.shape[0] + 1)", "bounds"),
    ("add_parts", "grid(C.shape[0],", "grid(C.shape[0] + 1,", "nothing is written"),
    ("cumsum", "y.tile(1, b)[row, j]", "y.tile(1, b)[row, j + 1]", "extent"),
    ("argmax", "grid(x.blocks(0, 1))", "grid(x.blocks(0, 1) - 1)", "are never written"),
    ("argmax", "store(at[row], first)", "store(at[0], first)", "race"),
    ("layernorm_backward", "dw_parts.tile(1, n)[b, 0]", "dw_parts.tile(1, n)[0, 0]", "race"),
    ("layernorm_backward", "zeros(like=weight)", "zeros((1, n))", "operator"),
    ("gemm_tn", "[i, m].T", "[i, m]", "operator"),
    ("gemm_tn", "range(At.blocks(0, bk)", "range(At.blocks(0, bk) + 1", "zeros are read"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "found"), FAULTS)
def test_faults_are_found_with_their_line(name, old, new, found, tmp_path):
    start = TEXT.index(f"def {name}(")
    end = TEXT.find("@tk.kernel", start)
    part = TEXT[start : end if end >= 0 else len(TEXT)]
    assert old in part
    path = tmp_path / "broken.py"
    path.write_text(TEXT[:start] + part.replace(old, new, 1) + TEXT[start + len(part) :])
    lines = range(TEXT[:start].count("\n"), TEXT[: start + len(part)].count("\n") + 1)
    broken = runpy.run_path(str(path))[name]
    try:
        report = broken.check(*CASES[name][0])
    except VerifyError as error:
        said = [str(error)]
        assert error.rule == found, error
    else:
        said = [text for text in report.warnings if found in text]
    assert said, "nothing is said"
    assert any(f"broken.py:{n}" in said[0] for n in lines), said
