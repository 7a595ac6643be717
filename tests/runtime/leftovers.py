"""What tests look for after processes were ended: others that still run, and folders that nobody removes."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path


def descendants(name: str) -> list[str]:
    """The command lines of living processes that hold a text in their environment or arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if name.encode() in words:
                found.append(words.split(b"\0")[0].decode(errors="replace"))
    return found


def nothing_runs(mark: str) -> None:
    """Waits until no process has a text in its environment or arguments."""
    for _ in range(100):
        if not descendants(mark):
            return
        threading.Event().wait(0.1)
    assert descendants(mark) == []


def left_behind(folders: set[Path]) -> set[Path]:
    """Folders that stay and that no process has to do with: other tests start clusters of their own meanwhile."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        commands = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                commands.append(file.read_bytes())
        folders = {one for one in folders if one.exists() and not any(bytes(one) in line for line in commands)}
        if not folders:
            break
        time.sleep(0.5)
    return folders
