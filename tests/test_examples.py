"""The examples run as a user runs them, and keep what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
DIGITS = ROOT / "examples" / "digits.py"


def tileweave(*words, cwd):
    command = [sys.executable, "-m", "tileweave.cli.main", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)


def right_answers(text: str) -> tuple[int, int]:
    found = re.search(r"(\d+) of (\d+) right", text)
    assert found, text
    return int(found[1]), int(found[2])


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    done = tileweave("run", DIGITS, "--overwrite", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout, np.load(folder / "out" / "logits.npy")


def test_digits_reaches_95_percent_on_the_held_out_third(local):
    right, total = right_answers(local[0])
    assert total == 599
    assert right / total >= 0.95
    assert local[1].shape == (599, 10)


def test_a_language_model_writes_as_well_with_a_cache(tmp_path):
    out = run_example("generate", tmp_path)
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", out).groups())
    assert last < 0.3 * first
    assert "the same without a cache: True" in out
    assert len(re.search("text: (.*)", out)[1].split()) == 26
    assert (tmp_path / "out" / "generate.svg").read_text().startswith("<svg")


@pytest.mark.ray
@pytest.mark.parametrize("runtime", ["local", "ray"])
def test_digits_sharded_over_four_machines_agrees_within_two_images(local, runtime, tmp_path):
    done = tileweave("run", DIGITS, "--runtime", runtime, "--machines", 4, "--memory", "2GiB", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 machines" in done.stdout
    right, total = right_answers(done.stdout)
    assert total == 599
    assert abs(right - right_answers(local[0])[0]) <= 2


def run_example(name, cwd):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"], cwd=cwd, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def number_after(words: str, text: str) -> float:
    found = re.search(re.escape(words) + r":?\s+([\d.]+(?:e-?\d+)?)", text)
    assert found, text
    return float(found[1])


def test_blur_smooths_a_photograph_as_numpy_does(tmp_path):
    pytest.importorskip("PIL", reason="the photographs are JPEG files")
    out = run_example("blur", tmp_path)
    assert "a correct sharding: True" in out
    assert number_after("largest difference from NumPy", out) < 1e-6
    blurred = np.load(tmp_path / "out" / "blurred.npy")
    assert blurred.shape == (3, 1, 427, 640) and blurred.dtype == np.float32
    assert blurred.min() >= 0 and blurred.max() <= 1


def test_heat_drains_through_the_cold_border(tmp_path):
    pytest.importorskip("PIL", reason="the photographs are JPEG files")
    out = run_example("heat", tmp_path)
    heat = [float(total) for total in re.findall(r"heat +([\d.]+)", out)]
    hottest = [float(most) for most in re.findall(r"hottest ([\d.]+)", out)]
    assert len(heat) == 6 and sorted(heat, reverse=True) == heat and sorted(hottest, reverse=True) == hottest
    moved, whole = map(float, re.findall(r"(\d+) KiB", out)[-2:])
    assert 0 < moved < whole / 10
    lines = list(map(int, re.search(r"unlike speed: (\d+), (\d+), (\d+) lines", out).groups()))
    assert sum(lines) in (427, 640) and abs(lines[0] - 2 * lines[1]) <= 2 and abs(lines[1] - lines[2]) <= 1
    assert (tmp_path / "out" / "heat.svg").read_text().startswith("<svg")
    assert number_after("largest difference from NumPy after 80 steps", out) < 1e-5


def test_inference_over_more_images_than_memory(tmp_path):
    out = run_example("inference", tmp_path)
    planned, measured = map(int, re.search(r"planned and measured: (\d+) (\d+)", out).groups())
    assert measured <= planned <= 12 << 20
    assert number_after("largest difference of the scores from NumPy", out) < 1e-4
    right, total = right_answers(out)
    assert total == 600_000 and right / total > 0.75
    assert (tmp_path / "out" / "inference.svg").read_text().startswith("<svg")
    assert "traceEvents" in (tmp_path / "out" / "inference.json").read_text()


def test_convnet_learns_in_a_few_steps(tmp_path):
    out = run_example("convnet", tmp_path)
    right, total = right_answers(out)
    assert total == 599
    assert right / total >= 0.9
    assert number_after("slope", out) == pytest.approx(number_after("difference quotient", out), rel=0.02)
    assert number_after("largest difference of the scores from NumPy", out) < 1e-4


def test_attention_looks_back_over_a_licence(tmp_path):
    out = run_example("attention", tmp_path)
    assert re.search(r"^\d{4} words, \d{3} different", out)
    assert out.count("looks back at") == 3
    assert number_after("whole and in parts differ by", out) < 1e-5
    peaks = [float(peak) for peak in re.findall(r"at most ([\d.]+) MiB", out)]
    assert len(peaks) == 2 and peaks[1] < peaks[0] / 2
