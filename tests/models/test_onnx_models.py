"""Models with real weights that ship inside wheels: equal to onnxruntime, whole, sharded, and in little memory."""

from __future__ import annotations

import subprocess
import sys
from difflib import SequenceMatcher
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileweave as tw
from tileweave.frontends.model import Model

onnxruntime = pytest.importorskip("onnxruntime", reason="make test-models installs onnxruntime and the models")


def files(package: str, pattern: str) -> list[Path]:
    """The models in an installed package, without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed; make test-models installs it")
    return sorted(Path(spec.origin).parent.rglob(pattern))


MODELS = {
    "detector": ("rapidocr_onnxruntime", "*det_infer.onnx", {"x": (1, 3, 96, 160)}),
    "recogniser": ("rapidocr_onnxruntime", "*rec_infer.onnx", {"x": (2, 3, 48, 128)}),
    "angle": ("rapidocr_onnxruntime", "*cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    "magika": ("magika", "model.onnx", {"bytes": (3, 2048)}),
}


def loaded(name: str) -> tuple[Model, dict[str, Any], list[Any]]:
    """The model, arrays for its inputs, and what onnxruntime computes."""
    package, pattern, shapes = MODELS[name]
    path = files(package, pattern)[-1]
    model = tw.load(path, bind=shapes)
    draw = np.random.default_rng(7)
    arrays = {}
    for key, source in model.inputs.items():
        kind = source.dtype
        numbers = draw.integers(0, 256, source.shape) if kind.kind in "iu" else draw.random(source.shape) * 2 - 1
        arrays[key] = numbers.astype(kind)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return model, arrays, session.run(None, arrays)


def assert_close(got: Any, expected: Any) -> None:
    """Within rounding of FP32 through a deep network."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_models_equal_onnxruntime(name):
    model, arrays, expected = loaded(name)
    got = model(**arrays)
    assert len(got) == len(expected)
    for one, other in zip(got.values(), expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("name", MODELS)
def test_models_on_four_machines(name):
    model, arrays, expected = loaded(name)
    plan = model.plan(machines=tw.machines(4))
    got = tw.run(plan, bind=model.bind(**arrays))
    for one, other in zip(got if isinstance(got, list) else [got], expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("name", ["recogniser", "magika"])
def test_models_in_a_quarter_of_the_memory(name):
    model, arrays, expected = loaded(name)
    whole = max(model.plan().peak_bytes)
    plan = model.plan(machines=tw.machines(4, memory=f"{whole // 4 // 1024 + 1}KiB"))
    assert max(plan.peak_bytes) <= whole // 4 + 1024
    got = tw.run(plan, bind=model.bind(**arrays))
    for one, other in zip(got if isinstance(got, list) else [got], expected, strict=True):
        assert_close(one, other)


def test_one_recogniser_reads_words_of_any_width():
    package, pattern, _ = MODELS["recogniser"]
    path = files(package, pattern)[-1]
    model = tw.load(path)
    plan = model.plan()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch, width in ((1, 64), (2, 96), (1, 64)):
        x = np.random.default_rng(3).random((batch, 3, 48, width), np.float32) * 2 - 1
        assert_close(tw.run(plan, bind={"x": x}), session.run(None, {"x": x})[0])
    assert len(plan.made) == 2


def test_a_photographed_page_is_read(tmp_path):
    pytest.importorskip("skimage", reason="the photograph is scikit-image's")
    example = Path(__file__).parent.parent.parent / "examples" / "ocr.py"
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out" / "ocr.txt").read_text().splitlines()
    wanted = [
        "Region-based segmentation",
        "Let us first determine markers of the coins and the",
        "background. These markers are pixels that we can label",
        "unambiguously as either object or background. Here,",
        "the markers are found at the two extreme parts of the",
        "histogram of grey values:",
    ]
    for line, truth in zip(lines, wanted, strict=False):
        assert SequenceMatcher(None, line.replace(" ", ""), truth.replace(" ", "")).ratio() > 0.95
    assert len(lines) >= len(wanted)
    assert (tmp_path / "out" / "ocr.svg").read_text().count("<rect") == len(lines) + 1
