from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tileweave.graph import TensorType
from tileweave.lower.reads import slices
from tileweave.runtime.io import files as io
from tileweave.runtime.io import mapped
from tileweave.runtime.io.npyfile import npy_writer
from tileweave.runtime.io.sinks import Reopened, handle_of


@pytest.mark.parametrize("order", ["C", "F"])
def test_elements_are_streamed_in_row_major_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Any) -> None:
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1 << 19)
    array = np.asarray(np.random.default_rng(0).random((60, 7, 900)), order=order)
    np.save(tmp_path / "x.npy", array)
    kind, data = io.describe(tmp_path / "x.npy")
    reader = io.open_source(data, kind)
    assert isinstance(reader, mapped.MappedReader)
    streamed = [bytes(part) for part in reader.stream()]
    assert len(streamed) > 1
    np.testing.assert_array_equal(np.frombuffer(b"".join(streamed)).reshape(array.shape), array)
    reader.close()


@pytest.mark.parametrize("run_bytes", [1, 1 << 8, 1 << 30])
def test_boxes_of_any_form_are_written_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int
) -> None:
    """By calls of the system and by the mapping, from blocks of any strides, by this process and as another does."""
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1 << 9)
    monkeypatch.setattr(mapped, "RUN_BYTES", run_bytes)
    seed = int(np.random.default_rng().integers(1 << 31))
    rng = np.random.default_rng(seed)
    for number in range(60):
        shape = tuple(rng.integers(1, 12, rng.integers(0, 4)).tolist())
        kind = TensorType(shape, np.dtype(rng.choice(["int8", "int16", "float64", "bool"])))
        wanted = np.zeros(shape, kind.dtype)
        writer = npy_writer(tmp_path / f"{number}.npy", kind)
        handle = handle_of(writer)
        assert handle is not None
        other = Reopened(replace(handle, system=rng.choice([handle.system, ""])))
        for _ in range(5):
            box = kind.box
            for k, extent in enumerate(shape):
                if rng.random() < 0.6:
                    a, b = sorted(rng.integers(0, extent + 1, 2).tolist())
                    box = box.with_range(k, a, b)
            block = rng.integers(0, 100, [3 * n for n in box.shape]).astype(kind.dtype)[
                (*(slice(None, None, 3),) * len(shape), ...)
            ]
            block = [block, np.ascontiguousarray(block).reshape(box.shape), np.asfortranarray(block)][rng.integers(3)]
            (writer if rng.random() < 0.5 else other).write(box, block)
            wanted[slices(box)] = block
        writer.finish()
        made = np.load(tmp_path / f"{number}.npy")
        assert made.dtype == kind.dtype
        np.testing.assert_array_equal(made, wanted, f"seed {seed} file {number}")
