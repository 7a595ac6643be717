"""Runs that end early and are gone on with: real processes, killed at random moments; equal bytes in the end."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from object_store import Objects
from plans import misbehaving, rows_plan

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.folders import HOST
from tileweave.errors import RunError, StorageError
from tileweave.planner import machines
from tileweave.runtime import Progress, Started, run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.io import journal, sinks
from tileweave.runtime.io.sinks import open_sinks, sweep
from tileweave.runtime.prepare import prepare
from tileweave.runtime.resume import identity, remaining

TESTS = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _recorded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(journal, "SYNC_SHARE", 1e9)


def plan_of(folder: Path, suffix: str, **how: int) -> Any:
    """Sixteen shards from a file to a sink; each leaves a mark."""
    kind, data = io.describe(folder / "x.npy")
    y = misbehaving(g.Tensor(g.Source(data, kind)) * 2, folder / "marks", **how)
    place = f"objects://{folder}" if suffix.startswith("stored-") else str(folder)
    target = io.target(f"{place}/y.{suffix.removeprefix('stored-')}")
    return rows_plan(g.Sink(y, target), machines(2, memory="1GiB"), 16)


def source(folder: Path, seed: int = 0) -> np.ndarray:
    array = np.random.default_rng(seed).integers(0, 1 << 40, (64, 3))
    array[:, 0] = np.arange(64)
    np.save(folder / "x.npy", array)
    return array


def stopped(folder: Path, suffix: str, after: int) -> None:
    """A run that a listener stops after so many tasks."""

    def stop(event: Any) -> None:
        if isinstance(event, Progress) and event.done == after:
            raise LookupError

    with pytest.raises(LookupError):
        run_plan(plan_of(folder, suffix), threads=1, listeners=[stop], resume=True)


def values(path: Path) -> np.ndarray:
    kind, data = io.describe(path)
    return np.array(io.open_source(data, kind).read(kind.box))


SUFFIXES = ["npy", "zarr", "h5", "npz", "safetensors", "parquet", "arrow"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_goes_on_where_another_was_stopped(tmp_path: Path, suffix: str) -> None:
    x = source(tmp_path)
    run_plan(plan_of(tmp_path, suffix))
    whole = (tmp_path / f"y.{suffix}").read_bytes() if suffix != "zarr" else b""
    (tmp_path / f"y.{suffix}").rename(tmp_path / "whole")
    stopped(tmp_path, suffix, 20)
    assert not (tmp_path / f"y.{suffix}").exists()
    sweep(tmp_path)  # what can be gone on with is nobody's rubbish
    events: list[Any] = []
    run_plan(plan_of(tmp_path, suffix), listeners=[events.append], resume=True)
    np.testing.assert_array_equal(values(tmp_path / f"y.{suffix}"), x * 2 + 1)
    total = len(plan_of(tmp_path, suffix).steps) * 16 if suffix != "zarr" else None
    assert isinstance(events[0], Started)
    assert suffix == "zarr" or events[0].tasks < total
    assert {path.name for path in tmp_path.iterdir()} == {"marks", "x.npy", "whole", f"y.{suffix}"}
    assert suffix == "zarr" or (tmp_path / f"y.{suffix}").read_bytes() == whole


def test_a_zarr_of_many_chunks_goes_on_chunk_by_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tileweave.runtime.io import zarrfile

    monkeypatch.setattr(zarrfile, "CHUNK_BYTES", 8 * 4 * 3)
    x = source(tmp_path)
    stopped(tmp_path, "zarr", 24)
    events: list[Any] = []
    run_plan(plan_of(tmp_path, "zarr"), listeners=[events.append], resume=True)
    assert events[0].tasks <= 48 - 18
    np.testing.assert_array_equal(values(tmp_path / "y.zarr"), x * 2 + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "x.npy", "y.zarr"]


def test_another_plan_or_other_sources_are_refused(tmp_path: Path) -> None:
    source(tmp_path)
    stopped(tmp_path, "npy", 20)
    source(tmp_path, 1)
    with pytest.raises(StorageError, match=r"an unfinished run left it, and source '.*x.npy \(0\)' has changed"):
        run_plan(plan_of(tmp_path, "npy"), resume=True)
    stamps = (tmp_path / "x.npy").stat()
    with pytest.raises(StorageError, match="the plan is another one"):
        run_plan(plan_of(tmp_path, "npy", milliseconds=1), resume=True)
    assert (tmp_path / "x.npy").stat() == stamps
    run_plan(plan_of(tmp_path, "npy"))  # begins anew, and nothing of the other run is left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "x.npy", "y.npy"]


def test_a_plan_for_machines_of_other_rates_goes_on_where_it_cuts_alike(tmp_path: Path) -> None:
    """As machines are described on another host, or by another probe."""
    source(tmp_path)
    kind, data = io.describe(tmp_path / "x.npy")
    sink = g.Sink(g.Tensor(g.Source(data, kind)) * 2, io.target(tmp_path / "y.npy"))
    used = machines(2, memory="1GiB")
    slow = machines(2, memory="2GiB", cores=3, bytes_per_second=1e8, flops_per_second=1e8)
    plans = [rows_plan(sink, used, 16), rows_plan(sink, slow, 16), rows_plan(sink, used, 8)]
    same, also, other = (identity(plan, prepare(plan), {}) for plan in plans)
    assert same == also and same.plan != other.plan and same.sources == other.sources


def test_arrays_are_told_apart_by_their_content(tmp_path: Path) -> None:
    def plan(hole: g.Tensor) -> Any:
        y = g.Sink(misbehaving(hole, tmp_path / "marks", fails_at=3), io.target(tmp_path / "y.npy"))
        return rows_plan(y, machines(1), 8)

    hole = g.Tensor(g.Source(g.Hole(), g.TensorType((8,), np.dtype("int64")), "x"))
    with pytest.raises(RunError):
        run_plan(plan(hole), bind={hole.producer: np.arange(8)}, resume=True, threads=1)
    with pytest.raises(StorageError, match=r"source 'x \(0\)' has changed"):
        run_plan(plan(hole), bind={hole.producer: np.arange(8) * 2}, resume=True)
    with pytest.raises(RunError):
        run_plan(plan(hole), bind={hole.producer: np.arange(8)}, resume=True, threads=1)
    assert (tmp_path / "marks" / "0").read_text().count("\n") == 1  # done once, by the first run


def test_a_line_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    x = source(tmp_path)
    stopped(tmp_path, "npy", 30)
    path = tmp_path / ".y.npy.journal"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:-3])
    events: list[Any] = []
    run_plan(plan_of(tmp_path, "npy"), listeners=[events.append], resume=True)
    assert events[0].tasks == 3 * (16 - 3)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x * 2 + 1)


def test_a_member_that_is_gone_is_no_finished_work(tmp_path: Path) -> None:
    x = source(tmp_path)
    stopped(tmp_path, "npz", 20)
    (member,) = tmp_path.glob(".y.npz.tmp-*-0")
    member.unlink()
    with pytest.raises(StorageError, match=r"an unfinished run left it, and '\.y\.npz\.tmp-.*-0' is gone"):
        run_plan(plan_of(tmp_path, "npz"), resume=True)
    run_plan(plan_of(tmp_path, "npz"))
    np.testing.assert_array_equal(values(tmp_path / "y.npz"), x * 2 + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "x.npy", "y.npz"]


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_what_is_put_together_is_gone_on_with_when_that_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    from tileweave.runtime.io.assembled import AssembledFile

    x = source(tmp_path)
    monkeypatch.setattr(AssembledFile, "publish", lambda self: (_ for _ in ()).throw(LookupError))
    with pytest.raises(LookupError):
        run_plan(plan_of(tmp_path, suffix), resume=True)
    monkeypatch.undo()
    events: list[Any] = []
    run_plan(plan_of(tmp_path, suffix), listeners=[events.append], resume=True)
    assert events[0].tasks == 0
    np.testing.assert_array_equal(values(tmp_path / f"y.{suffix}"), x * 2 + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "x.npy", f"y.{suffix}"]


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    source(tmp_path)
    identified = journal.Identity("p", {})
    kind = g.TensorType((4,), np.dtype("int64"))
    first = open_sinks([(io.target(tmp_path / "y.npy"), kind)], identified)
    with pytest.raises(StorageError, match="another process is writing it"):
        open_sinks([(io.target(tmp_path / "y.npy"), kind)], identified)
    first.abort()
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_a_file_that_had_appeared_before_the_others_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    names = [f"a.{suffix}", f"b.{suffix}"]
    kinds = [(io.target(tmp_path / name), g.TensorType((4,), np.dtype("int64"))) for name in names]
    identified = journal.Identity("p", {})
    files = open_sinks(kinds, identified)
    for (target, kind), writer in zip(kinds, files.writers, strict=True):
        writer.write(kind.box, np.arange(4))
        files.record(target, kind.box)
    second = files._files[str(tmp_path / names[1])].file
    monkeypatch.setattr(type(second), "publish", lambda self: (_ for _ in ()).throw(OSError("gone")))
    first = files._files[str(tmp_path / names[0])].file
    monkeypatch.setattr(first, "publish", lambda: first._temporary.replace(first._path), raising=False)
    with pytest.raises(StorageError, match="gone"):
        files.commit()
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == names[:1]
    files = open_sinks(kinds, identified)
    assert [files.finished(target) for target, _ in kinds] == [{kind.box} for _, kind in kinds]
    files.commit()
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    np.testing.assert_array_equal(values(tmp_path / names[1]), np.arange(4))


def test_a_run_that_was_stopped_behind_its_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files have appeared, and one of two journals is removed: a further run finds files like any others."""
    kinds = [(io.target(tmp_path / name), g.TensorType((4,), np.dtype("int64"))) for name in ("a.npy", "b.npy")]
    identified = journal.Identity("p", {})
    files = open_sinks(kinds, identified)
    for (target, kind), writer in zip(kinds, files.writers, strict=True):
        writer.write(kind.box, np.arange(4))
        files.record(target, kind.box)
    last = files._files[str(tmp_path / "b.npy")].journal
    monkeypatch.setattr(last, "remove", lambda: (_ for _ in ()).throw(LookupError), raising=False)
    with pytest.raises(LookupError):
        files.commit()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".b.npy.journal", "a.npy", "b.npy"]
    with pytest.raises(StorageError, match="it exists"):
        open_sinks(kinds, identified)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "b.npy"]


def test_a_journal_of_which_nothing_can_be_read_tells_of_nothing(tmp_path: Path) -> None:
    x = source(tmp_path)
    for text in (b"", b"rubbish\n"):
        (tmp_path / ".y.npy.journal").write_bytes(text)
        run_plan(plan_of(tmp_path, "npy"), resume=True)
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x * 2 + 1)
        (tmp_path / "y.npy").unlink()
        assert not (tmp_path / ".y.npy.journal").exists()


def test_only_what_is_missing_is_left_to_do() -> None:
    from tileweave.runtime.prepare import prepare

    x = g.as_tensor(np.arange(12.0).reshape(6, 2))
    y = g.matmul(x, g.transpose(x))
    plan = rows_plan(g.sum(y * 2, axis=1), machines(2), 3)
    whole = prepare(plan)
    stores = [task for task in whole.tasks if whole.sink(task) >= 0]
    assert remaining(whole, [set()]) is whole
    assert remaining(whole, [{task.index for task in stores}]).tasks == ()
    left = remaining(whole, [{stores[0].index}])
    assert 0 < len(left.tasks) < len(whole.tasks)
    assert [task.number for task in left.tasks] == list(range(len(left.tasks)))
    assert all(number < task.number for task in left.tasks for number in task.needs)


def test_memory_alone_does_not_resume() -> None:
    with pytest.raises(RunError, match="no sink stays where it is written"):
        tw.run(tw.source(np.ones(3)) + 1, resume=True)


def plan_to(url: str, folder: Path, overwrite: bool = False, shards: int = 8) -> Any:
    kind, data = io.describe(folder / "x.npy")
    chunks = ((64 // shards, 3),) if url.endswith("zarr") else ()
    sink = g.Sink(g.Tensor(g.Source(data, kind)) * 2 + 1, io.target(url, overwrite=overwrite, grid=chunks))
    return rows_plan(sink, machines(2, memory="1GiB"), shards)


@pytest.mark.parametrize(
    "url", ["objects://{}/y.zarr", "memory://resumed/y.zarr", "objects://{}/y.npy", "objects://{}/y.npz"]
)
def test_what_goes_to_a_url_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url, x = url.format(tmp_path), source(tmp_path)

    def stop(event: Any) -> None:
        if isinstance(event, Progress) and event.done == 12:
            raise LookupError

    with pytest.raises(LookupError):
        run_plan(plan_to(url, tmp_path), threads=1, listeners=[stop], resume=True)
    np.save(tmp_path / "x.npy", x + 1)
    with pytest.raises(StorageError, match=r"an unfinished run left it, and source .* has changed"):
        run_plan(plan_to(url, tmp_path), resume=True)
    source(tmp_path)
    os.utime(tmp_path / "x.npy", ns=(1, 1))
    run_plan(plan_to(url, tmp_path), threads=1)  # begins anew, and removes what the other has left
    np.testing.assert_array_equal(tw.run(tw.source(url) * 1), x * 2 + 1)
    with pytest.raises(LookupError):
        run_plan(plan_to(url, tmp_path), threads=1, listeners=[stop], resume=True, overwrite=True)
    counts: list[int] = []
    run_plan(
        plan_to(url, tmp_path),
        threads=1,
        listeners=[lambda event: counts.append(event.tasks) if isinstance(event, Started) else None],
        resume=True,
        overwrite=True,
    )
    assert counts == [12]  # of 24
    np.testing.assert_array_equal(tw.run(tw.source(url) * 1), x * 2 + 1)
    fs = MemoryFileSystem()
    left = {path.name for path in tmp_path.iterdir()} | {path.split("/")[2] for path in fs.find("/resumed")}
    assert left == {"x.npy", url.rpartition("/")[2]}
    fs.store.clear()


@pytest.mark.parametrize("suffix", ["zarr", "npy"])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_store_may_go_after_any_change_of_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, replaces: bool
) -> None:
    """What has the file's name is whole, and the next run goes on; that one may be stopped too."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sinks, "alive", lambda process: False)  # each run takes the others' process to be gone
    url, x = f"objects://{tmp_path}/y.{suffix}", source(tmp_path)
    for first in range(1 << 20):
        if replaces:
            tw.run(tw.sink(tw.source(-x), url, overwrite=True))
        for allowed in (first, 2, first // 2, None):
            monkeypatch.setattr(Objects, "left", allowed)
            try:
                run_plan(plan_to(url, tmp_path, replaces, shards=2), threads=1, resume=True)
                stopped_by = None
            except (StorageError, RunError) as error:
                ended = "it exists" in str(error)  # the run before had come to its end, but for a journal
                stopped_by = None if ended else error
            journal._HELD.clear()
            monkeypatch.setattr(Objects, "left", None)
            if (tmp_path / f"y.{suffix}" / "zarr.json").exists() or (tmp_path / "y.npy").exists():
                got = tw.run(tw.source(url) * 1)
                assert (got == x * 2 + 1).all() or (replaces and (got == -x).all()), (first, allowed)
            if stopped_by is None:
                break
        assert stopped_by is None, (first, stopped_by)
        np.testing.assert_array_equal(tw.run(tw.source(url) * 1), x * 2 + 1)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", f"y.{suffix}"], (first, allowed)
        Objects().rm(str(tmp_path / f"y.{suffix}"), recursive=True)
        if allowed == first:
            break


def test_two_runs_do_not_write_one_url(tmp_path: Path) -> None:
    target = io.target(f"objects://{tmp_path}/y.zarr"), g.TensorType((4,), np.dtype("int64"))
    identified = journal.Identity("p", {})
    files = open_sinks([target], identified)
    with pytest.raises(StorageError, match="another process is writing it"):
        open_sinks([target], identified)
    files.abort()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_has_left_behind_a_url_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for process in (ended.pid, os.getpid()):
        folder = tmp_path / f".a.zarr.tmp-{HOST}-{process}-00000000"
        folder.mkdir()
        (folder / "zarr.json").write_text("{}")
    tw.run(tw.sink(tw.source(np.arange(4)), f"objects://{tmp_path}/y.zarr"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, "y.zarr"]


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, {tests!r})
from test_resume import dies_after, plan_of
from tileweave.runtime import run_plan
import h5py, pyarrow.parquet, zarr  # noqa: F401
from tileweave.runtime.io import journal, zarrfile
if __name__ == "__main__":
    journal.SYNC_SECONDS, zarrfile.CHUNK_BYTES = {seconds}, 8 * 4 * 3
    plan = plan_of(Path({folder!r}), {suffix!r}, milliseconds={milliseconds})
    dies_after({changes})
    print("go", flush=True)
    run_plan(plan, threads={threads}, resume=True,
             runtime={runtime!r})
"""


def dies_after(changes: int | None) -> None:
    """This process ends, as by SIGKILL, at the change of an object that follows so many."""
    left = iter(range(changes or 0))

    def change() -> None:
        if changes is not None and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    Objects._change = staticmethod(change)


def whole(folder: Path, suffix: str) -> bool:
    """Whether the file has appeared; objects are given their names one after the other, the root's metadata last."""
    name = f"y.{suffix.removeprefix('stored-')}"
    return (folder / name / "zarr.json" if suffix == "stored-zarr" else folder / name).exists()


def names(folder: Path) -> list[str]:
    """What a run of another process would see in a folder, once it has removed what killed ones have left."""
    sweep(folder)
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".put"))  # no object yet


def killed_at_random(folder: Path, suffix: str, kills: int, runtime: str = "local") -> None:
    """Starts one run again and again, each ended by SIGKILL at a random moment, until one ends well."""
    seed = int.from_bytes(os.urandom(4), "little")
    rng = np.random.default_rng(seed)
    x = source(folder)
    script, slow = folder / "script.py", 60 if runtime == "local" else 400
    words = {"tests": TESTS, "folder": str(folder), "suffix": suffix, "runtime": runtime}
    words |= {"threads": 2, "changes": None}
    appears = partial(whole, folder, suffix)
    suffix = suffix.removeprefix("stored-")
    done: list[int] = []
    for number in range(kills + 1):
        script.write_text(SCRIPT.format(**words, seconds=rng.choice([0.0, 0.1]), milliseconds=slow))
        process = subprocess.Popen([sys.executable, str(script)], stdout=-1, stderr=-1, text=True)
        if number < kills:
            assert process.stdout is not None and process.stdout.readline() == "go\n"
            threading.Event().wait(float(rng.uniform(0.05, 0.5)))
            process.send_signal(signal.SIGKILL)
        _, error = process.communicate(timeout=100)
        assert process.returncode in (0, -signal.SIGKILL), (seed, error)
        if process.returncode == 0:
            break
        path = folder / f".y.{suffix}.journal"
        if appears():  # killed behind the last step; whole it must be
            np.testing.assert_array_equal(values(folder / f"y.{suffix}"), x * 2 + 1)
            if not path.exists():
                break
        done.append(len(path.read_bytes().splitlines()) if path.exists() else 0)
    print("seed", seed, "lines of the journal after each kill", done)
    assert done == sorted(done), (seed, done)
    np.testing.assert_array_equal(values(folder / f"y.{suffix}"), x * 2 + 1)
    assert names(folder) == ["marks", "script.py", "x.npy", f"y.{suffix}"], seed


@pytest.mark.parametrize("after", ["parts", "some names", "all names"])
def test_a_driver_killed_while_objects_take_their_names_is_gone_on_with(tmp_path: Path, after: str) -> None:
    """Sixteen parts, each recorded; as many objects and the root, each moved in two changes."""
    x = source(tmp_path)
    words = {"tests": TESTS, "folder": str(tmp_path), "suffix": "stored-zarr", "runtime": "local"}
    words |= {"threads": 1, "seconds": 1e9, "milliseconds": 0}
    before = 1 + 1 + 16 + 1 + 2 + 1  # the root, the journal, parts, the first recorded, the others, the mark of naming
    changes = {"parts": before, "some names": before + 13, "all names": before + 2 * 17 + 1}[after]
    for count, ends in ((changes, -signal.SIGKILL), (None, 0)):
        (tmp_path / "script.py").write_text(SCRIPT.format(**words, changes=count))
        done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, timeout=100)
        assert done.returncode == ends, done.stderr
        assert (tmp_path / "y.zarr").exists() == (after != "parts" or not ends)
        assert whole(tmp_path, "stored-zarr") == (after == "all names" or not ends)
        if after == "all names":
            break
    np.testing.assert_array_equal(values(tmp_path / "y.zarr"), x * 2 + 1)
    assert names(tmp_path) == ["marks", "script.py", "x.npy", "y.zarr"]


@pytest.mark.parametrize("suffix", ["npy", "stored-zarr"])
def test_killed_drivers_are_gone_on_with(tmp_path: Path, suffix: str) -> None:
    killed_at_random(tmp_path, suffix, 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suffix", ["npy", "zarr", "h5", "npz", "arrow", "stored-zarr"])
def test_drivers_killed_at_many_moments_are_gone_on_with(tmp_path: Path, suffix: str) -> None:
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        killed_at_random(tmp_path / str(number), suffix, 8)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_goes_on_where_threads_were_stopped(tmp_path: Path) -> None:
    x = source(tmp_path)
    for suffix in ("npy", "h5", "npz"):
        stopped(tmp_path, suffix, 20)
        events: list[Any] = []
        run_plan(plan_of(tmp_path, suffix), runtime="ray", threads=2, listeners=[events.append], resume=True)
        assert events[0].tasks < 48
        np.testing.assert_array_equal(values(tmp_path / f"y.{suffix}"), x * 2 + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "x.npy", "y.h5", "y.npy", "y.npz"]


def test_the_command_line_resumes(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text(
        "import numpy as np, tileweave as tw\n"
        "tw.run(tw.sink(tw.source(np.arange(1000.0)) * 2, 'y.npy'))\n"
        "print(tw.run(tw.sum(tw.source('y.npy'))))\n"
    )
    words = [sys.executable, "-m", "tileweave.cli.main", "run", "--resume", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert float(done.stdout) == 999000, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.py", "y.npy"]
