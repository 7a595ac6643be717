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


@pytest.mark.ray
@pytest.mark.parametrize("runtime", ["local", "ray"])
def test_digits_sharded_over_four_machines_agrees_within_two_images(local, runtime, tmp_path):
    done = tileweave("run", DIGITS, "--runtime", runtime, "--machines", 4, "--memory", "2GiB", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 machines" in done.stdout
    right, total = right_answers(done.stdout)
    assert total == 599
    assert abs(right - right_answers(local[0])[0]) <= 2
