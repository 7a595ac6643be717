"""The kernels of this folder, and a skip where there is no g++."""

import shutil
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent / "kernels"


@pytest.fixture
def text():
    """The text of one of the kernels."""
    return lambda name: (KERNELS / f"{name}.cu").read_text("utf-8")


def pytest_collection_modifyitems(items):
    if shutil.which("g++") is None:
        for item in items:
            if "needs_gxx" in item.keywords or item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason="g++ is not on PATH: CUDA text runs on the CPU through it"))
