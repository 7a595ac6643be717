"""Tuning: every choice keeps the value, the winner is the fastest or the backend's own, and files are never trusted."""

import json
import multiprocessing
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tileweave.backends import cpu
from tileweave.backends.cpu import Settings, tune
from tileweave.errors import BackendError
from tileweave.layout import strided
from tileweave.teir import Operand, TensorSpec, demote, emit_contraction, emit_copy, parallelize, split

M, N, K = 70, 90, 110


def operand(*shape, dtype="FP32"):
    strides = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
    return Operand(strided(shape, strides), dtype)


def product(m=M, n=N, k=K):
    return emit_contraction("ik,kj->ij", (operand(m, k), operand(k, n)), operand(m, n))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWEAVE_CACHE", str(tmp_path))
    return tmp_path


def files(folder: Path) -> list[Path]:
    return sorted((folder / "tuned").glob("*/*"))


def check(kernel):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (M, K)).astype("f4"), rng.integers(-3, 4, (K, N)).astype("f4")
    out = np.full((M, N), np.nan, "f4")
    kernel(a, b, out)
    np.testing.assert_array_equal(out, a @ b)


def test_the_winner_is_the_fastest_of_what_was_timed_or_the_backend_s_own(folder):
    tuned = tune(product(), threads=2, seconds=10)
    own = tuned.trials[0]
    assert own.choice.settings == Settings() and own.choice.threads == 2
    best = next(trial for trial in tuned.trials if trial.choice == tuned.choice)
    assert tuned.choice == own.choice or best.seconds <= 0.98 * own.seconds
    assert len(tuned.trials) > 5
    assert len({trial.choice for trial in tuned.trials}) == len(tuned.trials)
    assert all(trial.cycles > 0 and trial.seconds > 0 for trial in tuned.trials)
    check(tuned.kernel)
    for trial in tuned.trials:
        check(cpu.compile(tuned.program, threads=trial.choice.threads, settings=trial.choice.settings))


def test_compile_tunes_where_it_is_asked_to(folder):
    program = product(12, 20, 16)
    kernel = cpu.compile(program, threads=2, tune=True)
    assert len(files(folder)) == 1
    found = tune(program, threads=2)
    assert found.remembered and found.kernel is kernel


def test_arrays_to_time_on_may_have_gaps_and_run_backwards():
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (12, 16)).astype("f4"), rng.integers(-3, 4, (16, 20)).astype("f4")
    whole = np.full((24, 60), 7, "f4")
    for out in (whole[::2, ::3], whole[11::-1, 20:40], whole[:12, 40:20:-1]):
        kept = whole.copy()
        layout = strided(out.shape, [s // 4 for s in out.strides])
        program = emit_contraction("ik,kj->ij", (operand(12, 16), operand(16, 20)), Operand(layout, "FP32"))
        tuned = tune(program, threads=1, arrays={"in0": a, "in1": b, "out": out}, seconds=0.1)
        np.testing.assert_array_equal(whole, kept)  # what the program writes was copied
        tuned.kernel(a, b, out)
        np.testing.assert_array_equal(out, a @ b)


def test_tuning_without_a_cache_leaves_nothing_on_disk(folder):
    program = product(12, 20, 16)
    cpu.compile(program, threads=1)(np.zeros((12, 16), "f4"), np.zeros((16, 20), "f4"), np.zeros((12, 20), "f4"))
    kept = sorted(folder.rglob("*.o"))  # the program's own object, and perhaps that of the threads
    tune(program, threads=1, seconds=0.1, cache=False)
    kernel = cpu.compile(program, threads=1, tune=True, cache=False)
    assert not kernel.from_cache
    assert sorted(folder.rglob("*.o")) == kept and files(folder) == []


def test_tuning_needs_operations_that_may_be_merged():
    with pytest.raises(BackendError, match="merge=False"):
        cpu.compile(product(12, 20, 16), merge=False, tune=True)


def test_every_choice_is_explained():
    text = tune(product(), threads=2, seconds=1).explain()
    lines = text.splitlines()
    assert lines[0].split() == ["time", "of", "own", "model", "choice"]
    assert any(re.search(r"1\.00 +1\.00 .the backend's own choice, 2 threads", line) for line in lines)
    assert sum("*" in line for line in lines) == 1
    assert lines[-1].startswith("winner: ") and "timed now" in lines[-1]


def test_a_winner_is_remembered_until_it_is_asked_for_again(folder, monkeypatch):
    program = product()
    first = tune(program, threads=1, seconds=1)
    assert not first.remembered and not first.unkept
    assert len(files(folder)) == 1
    second = tune(program, threads=1)
    assert second.remembered
    assert (second.program, second.choice, second.trials, second.notes) == (
        first.program,
        first.choice,
        first.trials,
        first.notes,
    )
    assert "remembered" in second.explain()
    assert not tune(program, threads=1, seconds=1, again=True).remembered
    assert not tune(product(k=K + 1), threads=1, seconds=0.1).remembered
    assert not tune(program, threads=2, seconds=0.1).remembered
    assert len(files(folder)) == 3
    cpu.forget_tuned()
    assert files(folder) == []
    assert not tune(program, threads=1, seconds=0.1, cache=False).remembered
    assert files(folder) == []


def changed(path, value):
    def change(text):
        document = json.loads(text)
        place = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return json.dumps(document)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: "\x00\xff",
        changed(["format"], "other"),
        changed(["key"], "0" * 62),
        changed(["winner"], 99),
        changed(["winner"], -1),
        changed(["winner"], True),
        changed(["trials"], {}),
        changed(["trials", 0, "threads"], 64),
        changed(["trials", 0, "program"], 1),
        changed(["programs"], []),
        changed(["programs"], ["x"] * 9),
        changed(["trials", 0, "seconds"], float("nan")),
        changed(["trials", 0, "seconds"], 10**400),
        changed(["trials", 0, "settings"], {"rows": -1}),
        changed(["trials", 0, "settings"], {"color": 1}),
        changed(["trials", 0, "settings"], 7),
    ],
)
def test_damaged_and_foreign_files_are_ignored_and_written_anew(folder, damage):
    program = product(20, 30, 10)
    tune(program, threads=1, seconds=0.05)
    (file,) = files(folder)
    file.write_text(damage(file.read_text()), "utf-8")
    assert not tune(program, threads=1, seconds=0.05).remembered
    assert tune(program, threads=1).remembered
    assert files(folder) == [file]


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWEAVE_CACHE", str(tmp_path / "file"))
    tuned = tune(product(), threads=1, seconds=0.1)
    check(tuned.kernel)
    assert "it will not be remembered: " in tuned.explain() and str(tmp_path / "file") in tuned.unkept


def _tune_once(_: int) -> str:
    return str(tune(product(24, 40, 16), threads=1, seconds=0.1).choice)


@pytest.mark.slow
def test_processes_that_tune_at_once_leave_one_whole_file(folder):
    with multiprocessing.get_context("spawn").Pool(4) as workers:
        assert len(workers.map(_tune_once, range(8))) == 8
    (file,) = files(folder)
    assert json.loads(file.read_text())["key"] == file.stem
    assert tune(product(24, 40, 16), threads=1).remembered


def test_other_programs_of_the_same_value_take_part():
    program = product()
    tiled = demote(split(program, "contraction", 20, "i"), "contraction", "i_outer")
    tiled = parallelize(tiled, "i_outer")
    tuned = tune(program, threads=2, programs=[tiled], seconds=30)
    assert {trial.choice.program for trial in tuned.trials} >= {0, 1}
    assert "program 1, 2 threads" in tuned.explain()
    check(tuned.kernel)
    check(replace(tuned, choice=replace(tuned.choice, program=1)).kernel)
    other = replace(program, tensors=(*program.tensors[:2], TensorSpec("out", "FP32", "inout")))
    with pytest.raises(BackendError, match="'contraction' has other tensors"):
        tune(program, programs=[other])


def test_a_further_program_that_has_no_code_is_left_out(monkeypatch):
    from tileweave.backends.cpu import tuning

    program, compile = product(), tuning.compile

    def only_the_given(other, **options):
        if other != program:
            raise BackendError("compile(program)", "no code")
        return compile(other, **options)

    monkeypatch.setattr(tuning, "compile", only_the_given)
    assert {trial.choice.program for trial in tune(program, threads=1, seconds=1).trials} == {0}
    with pytest.raises(BackendError, match="no code"):
        tune(product(k=K + 1), threads=1)


def test_given_arrays_are_timed_on_and_stay_as_they_are():
    rng = np.random.default_rng(0)
    arrays = {"in0": rng.random((M, K), "f4"), "in1": rng.random((K, N), "f4"), "out": np.full((M, N), 7, "f4")}
    tune(product(), threads=1, arrays=arrays, seconds=0.2)
    assert (arrays["out"] == 7).all()
    with pytest.raises(BackendError, match="no array is given for 'in1'"):
        tune(product(), threads=1, arrays={"in0": arrays["in0"]}, seconds=0.2, again=True)


def test_what_has_nothing_to_choose_but_threads_is_tuned_too():
    flip = emit_copy(operand(64, 32), operand(32, 64), "ab->ba")
    tuned = tune(flip, threads=2, seconds=1)
    assert [trial.choice.threads for trial in tuned.trials] == [2, 1]
    assert " - " in tuned.explain()
    backwards = Operand(strided((8,), (-1,), 7), "INT32")
    below = Operand(strided((8,), (-1,)), "INT32")  # addresses below the base
    assert tune(emit_copy(backwards, below), threads=1, seconds=0.1).trials
