"""A small process that outlives the driver: it removes and reports what is left where one is ended by force.

Ray ends a driver natively when its control service is gone, and nobody can clean up after SIGKILL. So a session has
this process beside it, which hears of the session through a pipe. When the pipe closes without a farewell, or the
driver is not its parent any more, the driver is gone: the processes of a cluster that the driver has started end, and
so do its temporary files. When a service of that cluster is gone and the driver does not act, it ends the cluster.

The process needs nothing but the standard library until it has something to remove; it starts in some 20 ms.

Source: own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.5
"""How often it looks."""
GRACE_SECONDS = 5.0
"""How long the driver has to act on a service that is gone."""
SWEEP_SECONDS = 5.0
"""How long processes are looked for that end late, or start late."""


FAREWELL_SECONDS = 8.0
"""How long a driver waits for the process to see to what its cluster has left."""


class Watchdog:
    """The driver's end: starts the process, tells it what there is, and bids it farewell."""

    def __init__(self, **state: Any) -> None:
        words = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
        )
        self.tell(path=sys.path, driver=os.getpid(), **state)

    def tell(self, **state: Any) -> None:
        """What is to be swept from now on: `services` by name, `scratch` folders, `folders` with temporary files."""
        if self._process.stdin is not None:
            with suppress(OSError, ValueError):  # somebody has ended it
                self._process.stdin.write(json.dumps(state) + "\n")
                self._process.stdin.flush()

    def close(self) -> None:
        """There is nothing left to watch."""
        self.tell(farewell=True)
        with suppress(OSError, ValueError, subprocess.TimeoutExpired):
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(FAREWELL_SECONDS)


# ---------------------------------------------------------------------------------------------------------------------
# the process


def main() -> None:
    """Watches until the driver bids farewell or is gone."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    state: dict[str, Any] = {}
    known: dict[int, str] = {}  # process -> when it started, which tells it from a later one of its number
    text, gone_since, swept = b"", 0.0, False
    os.set_blocking(0, False)
    while True:
        ready, _, _ = select.select([0], [], [], LOOK_SECONDS)
        said = os.read(0, 1 << 20) if ready else None
        *lines, text = (text + (said or b"")).split(b"\n")
        for line in lines:
            state.update(json.loads(line))
        if state.get("farewell"):
            _clean(state, known)
            return
        services = state.get("services") or {}
        known.update(family(p for ps in services.values() for p in ps) if services else {})
        if said == b"" or ("driver" in state and os.getppid() != state["driver"]):
            _sweep(state, known)
            return
        dead = [f"{name} ({p})" for name, ps in services.items() for p in ps if not alive(p)]
        gone_since = (gone_since or time.monotonic()) if dead else 0.0
        if dead and not swept and time.monotonic() - gone_since > GRACE_SECONDS:
            ended, swept = end(known), True
            report(f"{', '.join(dead)} of the local cluster is gone; ended {ended} processes")


def _sweep(state: dict[str, Any], known: dict[int, str]) -> None:
    """The driver is gone."""
    sys.path[:] = state.get("path", sys.path)
    removed, ended = 0, _clean(state, known)
    if state.get("folders"):
        from tileweave.runtime.io.sinks import sweep

        removed = sum(sweep(Path(folder)) for folder in state["folders"])
    if ended or removed or state.get("services"):  # services that end by themselves with the driver say nothing
        report(
            f"the driver ({state.get('driver')}) was ended; ended {ended} processes, removed {removed} temporary files"
        )


def _clean(state: dict[str, Any], known: dict[int, str]) -> int:
    """Ends what is left of the cluster, orphans of a service that was killed too, and removes its folders."""
    ended = end(known) if known else 0
    for folder in state.get("scratch", ()):
        clear(Path(folder))
    return ended


def clear(folder: Path) -> None:
    """Removes a folder, in which processes that end may still write logs."""
    import shutil

    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


def report(text: str) -> None:
    """One line for people, on the driver's standard error."""
    with suppress(OSError):
        os.write(2, f"tileweave: {text}\n".encode())


def family(parents: Iterable[int]) -> dict[int, str]:
    """Processes and all that these have started, with the time of their start; those that have ended are left out."""
    table: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112,PTH208 (each second)
        if entry.isdecimal():
            found = _stat(int(entry))
            if found is not None:
                table[int(entry)] = found
    out = {process: table[process][1] for process in parents if process in table}
    grown = True
    while grown:
        more = {p: start for p, (parent, start) in table.items() if parent in out and p not in out}
        out.update(more)
        grown = bool(more)
    return out


def naming(folder: str) -> list[int]:
    """Programs of Ray's whose command names a folder: its agents may outlive what has started them."""
    wanted, found = os.fsencode(folder), list[int]()
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112,PTH208 (as in `family`)
        if entry.isdecimal():
            with suppress(OSError), open(f"/proc/{entry}/cmdline", "rb") as file:  # noqa: PTH123
                command = file.read()
                if wanted in command and b"/ray/" in command:
                    found.append(int(entry))
    return found


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    if Path("/proc/self").exists():
        return _stat(process) is not None
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _stat(process: int) -> tuple[int, str] | None:
    """(parent, time of start) of a process that runs."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:  # noqa: PTH123 (each second, for all processes)
            words = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if words[0] in (b"Z", b"X") else (int(words[1]), words[19].decode())


def end(known: dict[int, str]) -> int:
    """Ends processes and what they start meanwhile; how many there were."""
    ended: set[int] = set()
    until, quiet = time.monotonic() + SWEEP_SECONDS, 0
    while quiet < 3 and time.monotonic() < until:
        known.update({p: start for p, start in family(_same(known)).items() if p not in known})
        left = _same(known)
        for process in left:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
                ended.add(process)
        quiet = 0 if left else quiet + 1
        time.sleep(0.05)
    return len(ended)


def _same(known: dict[int, str]) -> list[int]:
    """Those that still run."""
    return [p for p, start in known.items() if (found := _stat(p)) is not None and found[1] == start]


if __name__ == "__main__":
    main()
