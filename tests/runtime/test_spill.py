"""Blocks that wait in files: plans that spill, and what runs of them leave behind."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from plans import misbehaving

import tileweave as tw
from tileweave.errors import RunError, StorageError
from tileweave.planner.show.document import from_document, to_document
from tileweave.runtime.events import Done


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TILEWEAVE_SCRATCH", str(folder))
    return folder


def rows(tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[str, np.ndarray[Any, Any]]:
    path = str(tmp_path / "rows.zarr")
    array = zarr.create_array(path, shape=shape, chunks=chunks, dtype=np.float32)
    array[...] = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    return path, np.asarray(array[...])


def spills(plan: Any) -> list[str]:
    return [step.name for step in plan.steps if step.spilled]


@pytest.mark.parametrize("count", [1, 3])
def test_rows_become_columns_with_each_chunk_read_once(tmp_path: Path, scratch: Path, count: int) -> None:
    path, values = rows(tmp_path, (1024, 640), (32, 640))
    budget = values.nbytes // (4 * count)
    plan = tw.plan(
        tw.sink(tw.source(path), tmp_path / "columns.zarr", chunks=(1024, 20)), tw.machines(count, memory=budget)
    )
    assert spills(plan) == ["cast"]
    assert plan.bytes_read == plan.bytes_written == 2 * values.nbytes  # the files, and the blocks between
    done: list[Any] = []
    tw.run(plan, listeners=[done.append])
    np.testing.assert_array_equal(np.asarray(zarr.open_array(str(tmp_path / "columns.zarr"))[...]), values)
    assert isinstance(done[-1], Done)
    assert max(done[-1].peak_bytes) <= budget
    assert not list(scratch.iterdir())


def test_what_fits_in_strips_of_both_files_is_not_spilled(tmp_path: Path) -> None:
    path, values = rows(tmp_path, (1024, 640), (32, 640))
    plan = tw.plan(tw.sink(tw.source(path), tmp_path / "rows2.zarr", chunks=(64, 640)), tw.machines(1, memory="1MiB"))
    assert not spills(plan)
    assert plan.bytes_read == values.nbytes


def test_a_matrix_that_is_read_by_rows_and_by_columns_is_spilled(tmp_path: Path, scratch: Path) -> None:
    x = np.random.default_rng(2).standard_normal((600, 500)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    source = tw.source(tmp_path / "x.npy")
    y = tw.exp(source)
    z = y / tw.sum(y, axis=0, keepdims=True)
    target = tw.sink(z / tw.sum(z, axis=1, keepdims=True), tmp_path / "z.npy")
    plan = tw.plan(target, tw.machines(1, memory=x.nbytes // 3), fuse=False)
    assert spills(plan)
    assert "spilled" in plan.explain()
    assert from_document(to_document(plan), plan.graph).steps == plan.steps
    tw.run(plan)
    wide = np.exp(x.astype(np.float64))
    wide /= wide.sum(0, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), wide / wide.sum(1, keepdims=True), rtol=1e-4)
    assert not list(scratch.iterdir())


def failing(tmp_path: Path, **how: int) -> Any:
    """A plan that spills, and whose later step does as it is told."""
    path, _ = rows(tmp_path, (256, 128), (16, 128))
    x = misbehaving(tw.source(path), tmp_path, **how)
    plan = tw.plan(tw.sink(x, tmp_path / "columns.zarr", chunks=(256, 8)), tw.machines(1, memory=48 << 10))
    assert spills(plan)
    return plan


def test_a_run_that_fails_leaves_no_blocks(tmp_path: Path, scratch: Path) -> None:
    first = int(rows(tmp_path / "values", (256, 128), (16, 128))[1][64, 0])
    with pytest.raises(RunError, match="no result"):
        tw.run(failing(tmp_path, fails_at=first))
    assert not list(scratch.iterdir())
    assert not (tmp_path / "columns.zarr").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = rows(tmp_path, (256, 128), (16, 128))
    plan = tw.plan(
        tw.sink(tw.source(path), tmp_path / "columns.zarr", chunks=(256, 8)), tw.machines(1, memory=48 << 10)
    )
    monkeypatch.setenv("TILEWEAVE_SCRATCH", str(tmp_path / "nowhere"))
    with pytest.raises(StorageError, match="TILEWEAVE_SCRATCH"):
        tw.run(plan)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rows.zarr"]


def test_a_disk_that_is_full_is_named(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = rows(tmp_path, (256, 128), (16, 128))
    target = tw.sink(tw.source(path), tmp_path / "columns.zarr", chunks=(256, 8))
    plan, opened = tw.plan(target, tw.machines(1, memory=48 << 10)), Path.open

    def full(self: Path, mode: str = "r", *rest: Any) -> Any:
        if mode == "wb" and scratch in self.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(self, mode, *rest)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(RunError, match=rf"cannot be spilled to '{scratch}': No space left[^~]*TILEWEAVE_SCRATCH"):
        tw.run(plan)
    assert not list(scratch.iterdir())


KILLED = """
import os, signal, sys
import tileweave as tw
from tileweave.runtime.events import Progress
plan = tw.plan(tw.sink(tw.source(sys.argv[1]), sys.argv[2], chunks=(256, 8)), tw.machines(1, memory=48 << 10))
def kill(event):
    if isinstance(event, Progress) and event.done == 6:
        os.kill(os.getpid(), signal.SIGKILL)
tw.run(plan, listeners=[kill])
"""


def test_blocks_of_a_process_that_was_killed_go_with_the_next_run(tmp_path: Path, scratch: Path) -> None:
    path, values = rows(tmp_path, (256, 128), (16, 128))
    command = [sys.executable, "-c", KILLED, path, str(tmp_path / "columns.zarr")]
    ended = subprocess.run(command, env={**os.environ, "TILEWEAVE_SCRATCH": str(scratch)}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert list(scratch.iterdir())
    tw.run(
        tw.plan(tw.sink(tw.source(path), tmp_path / "columns.zarr", chunks=(256, 8)), tw.machines(1, memory=48 << 10))
    )
    np.testing.assert_array_equal(np.asarray(zarr.open_array(str(tmp_path / "columns.zarr"))[...]), values)
    assert not list(scratch.iterdir())
