import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans import meeting, misbehaving, random_plan, rows_plan
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.folders import HOST
from tileweave.errors import RunError, StorageError
from tileweave.planner import machines, make_plan
from tileweave.runtime import Done, Failed, Progress, Started, run_plan
from tileweave.runtime.io import files as io
from tileweave.runtime.io import mapped, retries
from tileweave.runtime.io.chunks import ChunkFiles
from tileweave.runtime.io.sinks import open_sinks, sweep
from tileweave.runtime.prepare import prepare
from tileweave.space import Box


def plan_of(*observed: Any, count: int = 4, **rates: Any) -> Any:
    from tileweave import lower

    return make_plan(g.Graph.of(*observed), machines(count, memory="1GiB", **rates), lower.decide, io.atom)


def tasks_of_random(seed: int, dtype: str, threads: int) -> int:
    """Checks a random plan of a random graph; how many tasks it had."""
    values = random_graph(seed, dtype)
    tensors = [value.tensor for value in values]
    rng = np.random.default_rng(seed)
    plan = random_plan(
        g.Graph.of(*tensors), machines(int(rng.integers(1, 5)), memory="1GiB"), rng, spill=rng.random() < 0.3
    )
    events: list[Any] = []
    results = run_plan(plan, threads=threads, listeners=[events.append])
    for value, got, expected in zip(values, results, g.evaluate(tensors), strict=True):
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        if expected.dtype.kind == "f":
            bound = float(np.finfo(expected.dtype).eps) * (value.error + 1)
            np.testing.assert_allclose(got, expected, rtol=0, atol=8 * bound)
        else:
            np.testing.assert_array_equal(got, expected)
    *progress, done = (event for event in events if isinstance(event, Progress | Done))
    assert isinstance(done, Done)
    assert sum(event.bytes_read for event in progress) == plan.bytes_read
    assert sum(event.bytes_moved for event in progress) == plan.bytes_moved
    assert all(a <= b for a, b in zip(done.peak_bytes, plan.peak_bytes, strict=True))
    return int(plan.tasks)


@pytest.mark.parametrize("dtype", ["int64", "int32", "float64", "float32"])
def test_any_plan_of_any_graph_computes_what_the_graph_means(dtype: str) -> None:
    assert sum(tasks_of_random(seed, dtype, threads=1 + seed % 3) for seed in range(10)) > 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_many_plans_of_many_graphs(dtype: str) -> None:
    assert sum(tasks_of_random(seed, dtype, threads=1 + seed % 3) for seed in range(1000, 1300)) > 3000


def test_repeated_runs_share_what_was_prepared_and_see_new_arrays() -> None:
    x = g.Tensor(g.Source(g.Hole(), g.TensorType((6, 4), np.dtype("int64")), "x"))
    plan = plan_of(g.sum(x * 2, axis=0))
    assert prepare(plan) is prepare(plan)
    for seed in range(3):
        array = np.random.default_rng(seed).integers(0, 9, (6, 4))
        (got,) = run_plan(plan, bind={x.producer: array})
        np.testing.assert_array_equal(got, (array * 2).sum(axis=0))


def test_results_are_new_arrays() -> None:
    array = np.arange(6.0)
    x = g.as_tensor(array)
    y = x + 1
    whole, part, twice, again = run_plan(plan_of(x, x[1:3], y, y, count=1))
    np.testing.assert_array_equal(again, array + 1)
    for got in (whole, part, twice, again):
        assert got.flags.writeable
        got[...] = -1
    np.testing.assert_array_equal(array, np.arange(6.0))
    assert not np.shares_memory(twice, again)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_small_and_empty_tensors(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = g.as_tensor(np.ones(shape, np.float32))
    y = g.relu(x) + 1
    sinks = [g.Sink(y, io.target(tmp_path / f"a.{suffix}")) for suffix in ("npy", "npz", "zarr")]
    array, total, *paths = run_plan(plan_of(y, g.sum(y), *sinks))
    np.testing.assert_array_equal(array, np.full(shape, 2, np.float32))
    assert total == 2 * array.size
    for path in paths:
        kind, data = io.describe(path)
        np.testing.assert_array_equal(io.open_source(data, kind).read(kind.box), array)


def test_shards_of_different_machines_are_computed_side_by_side() -> None:
    plan = rows_plan(meeting(meeting(g.as_tensor(np.arange(8)))), machines(4, memory="1GiB"), 4)
    (got,) = run_plan(plan, threads=2)
    assert got.tolist() == list(range(2, 10))


def test_tasks_are_issued_in_the_plans_order() -> None:
    plan = rows_plan(g.relu(g.matmul(np.ones((8, 4)), np.ones((4, 4)))), machines(4, memory="1GiB"), 4)
    events: list[Any] = []
    run_plan(plan, threads=1, listeners=[events.append])
    told = [(event.step, event.shard) for event in events if isinstance(event, Progress)]
    assert told == [(task.step, task.shard) for task in prepare(plan).tasks]


# ---------------------------------------------------------------------------------------------------------------------
# memory


def test_the_planned_peak_holds_with_many_threads() -> None:
    x, w = np.ones((256, 256)), np.ones((256, 256))
    y = g.softmax(g.relu(g.matmul(x, w)) + 1)
    z = g.matmul(g.transpose(y), y)
    for parts in (1, 4, 16):
        plan = rows_plan(z, machines(4, memory="1GiB"), parts)
        assert prepare(plan).peak_bytes == plan.peak_bytes
        for threads in (1, 4):
            events: list[Any] = []
            run_plan(plan, threads=threads, listeners=[events.append])
            assert all(a <= b for a, b in zip(events[-1].peak_bytes, plan.peak_bytes, strict=True))


def test_measured_memory_is_the_blocks_that_live(tmp_path: Path) -> None:
    x = g.as_tensor(np.ones((1000, 8)))
    y = misbehaving(misbehaving(misbehaving(x, tmp_path), tmp_path), tmp_path)
    events: list[Any] = []
    run_plan(plan_of(y, count=1), listeners=[events.append])
    assert events[-1].peak_bytes == (2 * 64000,)


# ---------------------------------------------------------------------------------------------------------------------
# events


def test_events_tell_the_run() -> None:
    plan = plan_of(g.matmul(np.ones((8, 8)), np.ones((8, 8))))
    events: list[Any] = []
    run_plan(plan, listeners=[events.append], threads=2)
    started, *progress, done = events
    assert started == Started("local", tuple(prepare(plan).labels), plan.tasks, 4)
    assert [event.done for event in progress] == list(range(1, plan.tasks + 1))
    assert all(isinstance(event, Progress) and event.tasks == plan.tasks for event in progress)
    assert isinstance(done, Done)
    assert done.retries == 0


def test_what_a_listener_raises_stops_the_run(tmp_path: Path) -> None:
    def listener(event: Any) -> None:
        if isinstance(event, Progress) and event.done == 2:
            raise LookupError("enough")

    y = g.Sink(g.as_tensor(np.ones(8)) + 1, io.target(tmp_path / "a.npy"))
    with pytest.raises(LookupError, match="enough"):
        run_plan(rows_plan(y, machines(4), 4), listeners=[listener], threads=2)
    assert list(tmp_path.iterdir()) == []


def test_the_bar_draws_what_happens() -> None:
    import io as text_io

    from rich.console import Console

    from tileweave.runtime.events import Retry
    from tileweave.runtime.trace import ProgressBar

    out = text_io.StringIO()
    bar = ProgressBar(Console(file=out, force_terminal=True, width=80, color_system=None))
    for event in (
        Started("local", ("matmul", "store"), 2, 1),
        Progress(0, 0, 0, 1, 2),
        Retry(0, 3, 0, 2),
        Progress(1, 0, 0, 2, 2),
        Done(1.0, (5,), 1),
    ):
        bar(event)
    assert "matmul shard 3 on machine 0" in out.getvalue()
    assert "2/2" in out.getvalue()
    silent = text_io.StringIO()
    quiet = ProgressBar(Console(file=silent))
    quiet(Started("local", ("matmul",), 1, 1))
    quiet(Failed(ValueError()))
    assert silent.getvalue() == ""
    assert not [t for t in threading.enumerate() if t.name.startswith("tileweave")]


# ---------------------------------------------------------------------------------------------------------------------
# what goes wrong


def test_a_failing_shard_is_named_and_leaves_no_sink(tmp_path: Path) -> None:
    x = g.as_tensor(np.arange(16))
    y = misbehaving(x + 0, tmp_path / "marks", fails_at=8)
    for suffix in ("npy", "npz", "zarr"):
        sink = g.Sink(y, io.target(tmp_path / f"a.{suffix}"))
        events: list[Any] = []
        with pytest.raises(RunError, match="test_misbehaving failed with ArithmeticError") as caught:
            run_plan(rows_plan(sink, machines(4), 4), threads=2, listeners=[events.append])
        assert isinstance(caught.value.__cause__, ArithmeticError)
        assert caught.value.shard == 2
        assert "2 of 4" in str(caught.value)
        assert isinstance(events[-1], Failed)
        assert [path.name for path in tmp_path.iterdir()] == ["marks"]
    assert not [t for t in threading.enumerate() if t.name.startswith("tileweave")]


def test_an_interrupt_stops_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    x = g.as_tensor(np.arange(64))
    y = misbehaving(x, tmp_path / "marks", interrupted_at=0, milliseconds=20)
    sink = g.Sink(y, io.target(tmp_path / "a.npy"))
    with pytest.raises(KeyboardInterrupt):
        run_plan(rows_plan(sink, machines(4), 32), threads=2)
    assert [path.name for path in tmp_path.iterdir()] == ["marks"]
    assert len(list((tmp_path / "marks").iterdir())) < 32
    assert not [t for t in threading.enumerate() if t.name.startswith("tileweave")]


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
sys.path.insert(0, {tests!r})
from plans import meeting, misbehaving, rows_plan
import tileweave as tw
from tileweave import graph as g
from tileweave.planner import machines
from tileweave.runtime import run_plan
from tileweave.runtime.io import files as io
if __name__ == "__main__":
    here = Path({folder!r})
    y = misbehaving(g.as_tensor(np.arange(400)), here / "marks", milliseconds=50)
    sink = g.Sink(y, io.target(here / "a.npy"))
    run_plan(rows_plan(sink, machines(2), 200), threads=2, runtime={runtime!r})
"""


def interrupted(tmp_path: Path, runtime: str, signal_number: int, seconds: float) -> tuple[int, str]:
    """Starts a long run in a process of its own, signals it when it is under way; (status, standard error)."""
    tests = str(Path(__file__).parent)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=tests, folder=str(tmp_path), runtime=runtime))
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    marks = tmp_path / "marks"
    for _ in range(int(seconds * 20)):
        if marks.is_dir() and len(list(marks.iterdir())) >= 6:
            break
        threading.Event().wait(0.05)
    assert any(path.name.startswith(".a.npy.tmp-") for path in tmp_path.iterdir())
    os.kill(process.pid, signal_number)
    _, error = process.communicate(timeout=30)
    return process.returncode, error


def test_ctrl_c_leaves_no_half_file(tmp_path: Path) -> None:
    status, error = interrupted(tmp_path, "local", signal.SIGINT, 30)
    assert "KeyboardInterrupt" in error
    assert status != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "script.py"]
    assert len(list((tmp_path / "marks").iterdir())) < 200


def test_a_request_to_end_leaves_no_half_file(tmp_path: Path) -> None:
    status, _ = interrupted(tmp_path, "local", signal.SIGTERM, 30)
    assert status == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "script.py"]


def test_a_killed_run_leaves_nothing_that_looks_whole_and_the_next_run_sweeps(tmp_path: Path) -> None:
    status, _ = interrupted(tmp_path, "local", signal.SIGKILL, 30)
    assert status == -signal.SIGKILL
    assert not (tmp_path / "a.npy").exists()
    other = tmp_path / f".b.npy.tmp-{HOST}-{os.getpid()}-0123abcd"  # of a run that is under way
    other.touch()
    run_plan(plan_of(g.Sink(g.as_tensor(np.arange(3)) + 1, io.target(tmp_path / "c.npy"))))
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "c.npy", "marks", "script.py"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_ended_at_random_moments_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Forty runs, ended by signals at random moments; the next run sweeps what SIGKILL has left."""
    seed = int.from_bytes(os.urandom(4), "little")
    rng = np.random.default_rng(seed)
    tests = str(Path(__file__).parent)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=tests, folder=str(tmp_path), runtime="local").replace("=50", "=4"))
    for number in range(40):
        process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL, cwd=tmp_path)
        threading.Event().wait(float(rng.uniform(0.3, 2.5)))
        how = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL][number % 3]
        process.send_signal(how)
        process.wait(30)
        if (tmp_path / "a.npy").exists():
            np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(400) + 1)
            (tmp_path / "a.npy").unlink()
        if how is signal.SIGKILL:
            sweep(tmp_path)
        left = {path.name for path in tmp_path.iterdir()}
        assert left <= {"marks", "script.py"}, (seed, number, how, left)


def test_what_a_killed_run_had_set_aside_comes_back(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    aside = tmp_path / f".y.zarr.tmp-{HOST}-{gone.pid}-0123abcd-old"
    aside.mkdir()
    (aside / "zarr.json").write_text("mine")
    (tmp_path / f".y.zarr.tmp-{HOST}-{gone.pid}-0123abcd").mkdir()
    (tmp_path / ".other.tmp-elsewhere-1-0123abcd").touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.tmp-elsewhere-1-0123abcd", "y.zarr"]
    assert (tmp_path / "y.zarr" / "zarr.json").read_text() == "mine"


def test_a_read_that_fails_now_and_then_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(64.0)
    np.save(tmp_path / "x.npy", array)
    kind, data = io.describe(tmp_path / "x.npy")
    plan = rows_plan(g.exp(g.Tensor(g.Source(data, kind)) * 0.01), machines(2, memory="1GiB"), 4)
    failures = {"left": 2}
    read = mapped.MappedReader.read

    def flaky(self: Any, box: Box) -> Any:
        if failures["left"]:
            failures["left"] -= 1
            raise OSError("the storage is away")
        return read(self, box)

    monkeypatch.setattr(mapped.MappedReader, "read", flaky)
    monkeypatch.setattr(retries, "RETRY_SECONDS", (0.0, 0.0))
    np.testing.assert_allclose(run_plan(plan)[0], np.exp(array * 0.01))
    failures["left"] = 10**9
    with pytest.raises(RunError, match=r"StorageError: source\(.*could not be read in 3 tries: the storage is away"):
        run_plan(plan)


def test_a_read_that_no_further_try_helps_names_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(64.0))
    kind, data = io.describe(tmp_path / "x.npy")
    plan, tries = rows_plan(g.exp(g.Tensor(g.Source(data, kind))), machines(1, memory="1GiB"), 1), []

    def denied(self: Any, box: Box) -> Any:
        tries.append(box)
        raise PermissionError("not for you")

    monkeypatch.setattr(mapped.MappedReader, "read", denied)
    with pytest.raises(RunError, match=r"StorageError: source\(.*could not be read: not for you"):
        run_plan(plan)
    assert len(tries) == 1


FULL = """
import resource, sys
import numpy as np
import tileweave as tw
from tileweave import graph as g
import tileweave as tw
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
x = tw.source(np.random.default_rng(0).random((400, 400)))
for suffix in ("npy", "npz", "zarr", "h5", "parquet", "arrow", "safetensors"):
    try:
        keys = ("a", "b") if suffix not in ("npy", "zarr") else ("", "")
        paths = [f"{sys.argv[1]}/{name or k}.{suffix}" for k, name in enumerate(keys)]
        several = [f"{sys.argv[1]}/x.{suffix}" if key else path for key, path in zip(keys, paths)]
        tw.run([tw.sink(x + 1, several[0], key=keys[0]), tw.sink(x + 2, several[1], key=keys[1])])
    except tw.errors.TileweaveError as error:
        named = [path for path in several if f"sink({path!r})" in str(error)]
        print(suffix, bool(named), *(what for what in ("completing", "it cannot", "writing [") if what in str(error)))
"""


@pytest.mark.parametrize(
    ("file_bytes", "doing"),
    [
        (300_000, {"zarr": "writing ["}),
        (
            1_300_000,
            {"npy": None, "zarr": None} | dict.fromkeys(["npz", "parquet", "arrow", "safetensors"], "completing"),
        ),
    ],
)
def test_a_full_disk_is_an_error_that_names_the_sink_and_leaves_nothing(
    tmp_path: Path, file_bytes: int, doing: dict[str, str | None]
) -> None:
    words = [sys.executable, "-c", FULL, str(tmp_path), str(file_bytes)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    formats = ("npy", "npz", "zarr", "h5", "parquet", "arrow", "safetensors")
    wanted = [f"{name} True {doing.get(name, 'it cannot')}" for name in formats if doing.get(name, "it cannot")]
    assert done.stdout.splitlines() == wanted, done.stderr
    assert {path.suffix[1:] for path in tmp_path.iterdir()} == {name for name, what in doing.items() if not what}


SIZED = """
import os, sys, threading
import numpy as np
import tileweave as tw
os.chdir(sys.argv[1])
side, memory, formats = int(sys.argv[2]), sys.argv[3], sys.argv[4:]

def rise(target):
    seen, stop = [held()], threading.Event()
    def watch():
        while not stop.wait(0.002):
            seen.append(held())
    thread = threading.Thread(target=watch)
    thread.start()
    result = tw.run(target, machines=tw.machines(1, memory=memory))
    stop.set()
    thread.join()
    return result, max(seen) - seen[0]

def held():
    # what is resident but for code, which others share: how much of it counts for a process changes when they end
    total, code = 0, False
    with open("/proc/self/smaps") as file:
        for line in file:
            if line[0] in "0123456789abcdef":
                code = ".so" in line
            elif not code and line.startswith("Rss:"):
                total += int(line.split()[1])
    return total << 10

x = np.lib.format.open_memmap("x.npy", "w+", np.float32, (side, side))
for k in range(8):
    x[k * side // 8 : (k + 1) * side // 8] = np.random.default_rng(k).random((side // 8, side), np.float32)
x.flush()
total = x.sum(0, dtype=np.float64)
del x
for suffix in formats:
    warm = "warm." + suffix  # packages and the compiler are loaded, and their code counted, before
    tw.run(tw.sink(tw.source(np.ones((80, 80), np.float32)) * 2, warm))
    tw.run(tw.sum(tw.source(warm), axis=0))
    _, written = rise(tw.sink(tw.source("x.npy") * 2, "y." + suffix))
    got, read = rise(tw.sum(tw.source("y." + suffix), axis=0))
    np.testing.assert_allclose(got, 2 * total, rtol=1e-4)
    print(written, read)
"""
FIXED_BYTES = 32 << 20
"""What a run on files holds beside its budget; for Parquet and its row groups of 8 MiB, twice as much."""


def rises(folder: Path, side: int, memory: str, *formats: str) -> list[list[int]]:
    """By how many bytes the set size of a process rises: per format, while it is written to and while it is read."""
    words = [sys.executable, "-c", SIZED, str(folder), str(side), memory, *formats]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    found = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert len(found) == len(formats), done.stderr
    print("rise in MiB:", [[n >> 20 for n in row] for row in found])
    return found


sized = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell the set size of a process"
)


@sized
def test_mapped_files_give_their_pages_back(tmp_path: Path) -> None:
    """64 MiB under 4 MiB, from rows to columns: each row of a panel lies in pages of its own."""
    for row in rises(tmp_path, 4096, "4MiB", "npy", "npz", "safetensors", "arrow"):
        assert max(row) <= 1.1 * (4 << 20) + FIXED_BYTES


@sized
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("memory", ["16MiB", "64MiB"])
def test_the_set_size_stays_within_the_budget(tmp_path: Path, memory: str) -> None:
    """256 MiB to each format and back."""
    pytest.importorskip("zarr", reason="the optional package zarr is not installed")
    formats = ["npy", "npz", "safetensors", "zarr", "h5", "parquet", "arrow"]
    for suffix, row in zip(formats, rises(tmp_path, 8192, memory, *formats), strict=True):
        fixed = FIXED_BYTES * (1 + (suffix == "parquet"))
        assert max(row) <= 1.1 * (int(memory.removesuffix("MiB")) << 20) + fixed, (suffix, row)


def test_bad_input_is_refused_before_work_starts(tmp_path: Path) -> None:
    hole = g.Tensor(g.Source(g.Hole(), g.TensorType((2,), np.dtype("float64")), "x"))
    y = misbehaving(hole, tmp_path / "marks")
    with pytest.raises(RunError, match="source 'x' float64\\[2\\] has no data"):
        run_plan(plan_of(y))
    with pytest.raises(RunError, match=r"has shape \(3,\) and type float64"):
        run_plan(plan_of(y), bind={hole.producer: np.zeros(3)})
    with pytest.raises(RunError, match="no runtime 'spark'"):
        run_plan(plan_of(y), runtime="spark")  # type: ignore[arg-type]
    with pytest.raises(RunError, match="1 or more"):
        run_plan(plan_of(y), threads=0)
    (tmp_path / "a.npy").write_text("mine")
    plan = plan_of(g.Sink(y, io.target(tmp_path / "a.npy")))
    with pytest.raises(StorageError, match="--overwrite"):
        run_plan(plan, bind={hole.producer: np.zeros(2)})
    np.save(tmp_path / "b.npy", np.zeros(2))
    kind, data = io.describe(tmp_path / "b.npy")
    (tmp_path / "b.npy").write_bytes((tmp_path / "b.npy").read_bytes()[:-1])
    with pytest.raises(StorageError, match="is truncated"):
        run_plan(plan_of(misbehaving(g.Tensor(g.Source(data, kind)), tmp_path / "marks")))
    assert not (tmp_path / "marks" / "0").exists()
    assert (tmp_path / "a.npy").read_text() == "mine"
    run_plan(plan, bind={hole.producer: np.zeros(2)}, overwrite=True)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), [1, 1])


def test_files_are_read_in_parts_and_written_whole(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 100, (40, 30))
    np.save(tmp_path / "x.npy", np.asfortranarray(array))
    np.savez_compressed(tmp_path / "x.npz", x=array)
    sinks = open_sinks([(io.target(tmp_path / "x.zarr"), g.TensorType(array.shape, array.dtype))])
    sinks.writers[0].write(sinks.writers[0]._kind.box, array)  # type: ignore[attr-defined]
    sinks.commit()
    for name in ("x.npy", "x.npz", "x.zarr"):
        kind, data = io.describe(tmp_path / name)
        x = g.Tensor(g.Source(data, kind))
        y = g.matmul(g.transpose(x)[::-2], x * 2)
        targets = [io.target(tmp_path / f"y.{suffix}", overwrite=True) for suffix in ("npy", "npz", "zarr")]
        paths = run_plan(plan_of(*(g.Sink(y, target) for target in targets)), threads=2)
        assert paths == [target.path for target in targets]
        for path in paths:
            made, where = io.describe(path)
            np.testing.assert_array_equal(io.open_source(where, made).read(made.box), array.T[::-2] @ (array * 2))


def test_blas_has_its_threads_back_after_a_run() -> None:
    from threadpoolctl import threadpool_info

    before = [pool["num_threads"] for pool in threadpool_info()]
    run_plan(rows_plan(g.exp(g.as_tensor(np.ones(8))), machines(4), 4), threads=2)
    assert [pool["num_threads"] for pool in threadpool_info()] == before


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_for_several_machines_reads_each_chunk_once_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    import zarr

    rng = np.random.default_rng(seed)
    rows, columns = (int(n) for n in rng.integers(8, 40, 2))
    wanted = rng.random((rows, columns), np.float32)
    zarr.create_array(str(tmp_path / "rows.zarr"), shape=(rows, columns), chunks=(4, columns), dtype="f4")[...] = wanted
    read, plainly = Counter[Box](), ChunkFiles.read
    target = tw.sink(tw.source(tmp_path / "rows.zarr"), tmp_path / "columns.zarr", chunks=(rows, 4))
    plan = tw.plan(target, int(rng.integers(2, 5)))

    def counted(self: ChunkFiles, box: Box, *rest: Any) -> None:
        read[box] += 1
        plainly(self, box, *rest)

    monkeypatch.setattr(ChunkFiles, "read", counted)
    tw.run(plan)
    assert set(read.values()) == {1} and len(read) == -(-rows // 4), seed
    np.testing.assert_array_equal(np.asarray(zarr.open_array(str(tmp_path / "columns.zarr"))[...]), wanted)


def test_shards_that_are_stored_at_once_find_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    from tileweave.runtime import run as entry

    started = threading.Event()

    def slow(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        started.set()
        threading.Event().wait(0.05)
        return np.full(shape, -1, dtype)

    monkeypatch.setattr(entry, "empty", slow)
    memory = entry._Memory(g.Sink(g.as_tensor(np.zeros(2)), g.MemoryTarget()))
    first = threading.Thread(target=lambda: memory.write(Box((0,), (1,)), np.ones(1)))
    first.start()
    started.wait(5)
    memory.write(Box((1,), (1,)), np.full(1, 2.0))
    first.join()
    assert memory.value.tolist() == [1.0, 2.0]
