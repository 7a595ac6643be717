"""What every package's tests share: golden texts, updated by ``UPDATE_GOLDEN=1 pytest``."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("tileweave", deadline=None)  # a busy machine is no failure
settings.load_profile("tileweave")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background job, whose children would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function ``golden(name, text)`` that compares a text with ``tests/golden/<name>``."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; write it with UPDATE_GOLDEN=1"
        assert text == path.read_text(encoding="utf-8")

    return compare
