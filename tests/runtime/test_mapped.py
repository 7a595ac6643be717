from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tileweave.runtime.io import files as io
from tileweave.runtime.io import mapped


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
