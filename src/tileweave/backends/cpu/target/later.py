"""Work for threads of their own, beside what the caller does: code that it needs soon, or faster code.

Jobs begin in the order in which they were asked for, as many at once as there are processors. A process that ends does
not wait for those that have not begun, and a forked child has none of its parent's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable

from tileweave.errors import TileweaveError
from tileweave.kept import lock_of_process

THREADS = min(8, os.cpu_count() or 1)
"""Jobs at once; each may make code of its own, which takes some 10 MB meanwhile."""
_LOCK = lock_of_process()
_JOBS: deque[Callable[[], object]] = deque()
_THREADS: list[threading.Thread] = []


def later(job: Callable[[], object]) -> None:
    """Have a job done; what it raises as an error of this package is lost with it."""
    with _LOCK:
        _JOBS.append(job)
        if len(_THREADS) < THREADS:
            with contextlib.suppress(RuntimeError):  # the process ends, or may have no more threads
                thread = threading.Thread(target=_work, name="tileweave-later")
                thread.start()
                _THREADS.append(thread)


def finish() -> None:
    """Return when all jobs that were asked for are done."""
    while True:
        with _LOCK:
            running = list(_THREADS)
        if not running or threading.current_thread() in running:
            return
        running[0].join()


def _work() -> None:
    while True:
        with _LOCK:
            if not _JOBS or not threading.main_thread().is_alive():
                _JOBS.clear()
                _THREADS.remove(threading.current_thread())
                return
            job = _JOBS.popleft()
        with contextlib.suppress(TileweaveError):
            job()


def _after_fork() -> None:
    _JOBS.clear()
    _THREADS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
