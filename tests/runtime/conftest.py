"""Makes helpers of this folder and of others importable; one Ray cluster for all tests that need one."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).parent),
    *(str(Path(__file__).parent.parent / name) for name in ("graph", "planner")),
]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local cluster of two cores, started once, ended at the end."""
    pytest.importorskip("ray", reason="the optional package ray is not installed")
    from tileweave.runtime import ray

    ray.connect(2)
    yield
    ray.shutdown()
