"""A skip where MLIR's tools or g++ are missing, with what to install."""

import shutil
from pathlib import Path

import pytest

from tileweave.backends import mlir

ALONE = {"test_mlir_text.py"}
"""Tests that need no tools."""


def pytest_collection_modifyitems(items):
    missing = mlir.installed() or ("" if shutil.which("g++") else "g++ is not on PATH: it builds the fibers")
    for item in items:
        if missing and item.path.parent == Path(__file__).parent and item.path.name not in ALONE:
            item.add_marker(pytest.mark.skip(reason=missing))
