"""Trying again what storage fails: such as is reached over a network recovers in seconds.

Source: own.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

RETRY_SECONDS = (0.05, 0.4, 2.0)
"""Pauses before what failed is tried again."""
_FINAL = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLIENTS = ("aiohttp", "botocore", "urllib3")
"""Packages behind fsspec whose errors are no OSError."""


def retried(work: Callable[[], T]) -> T:
    """What work gives, which is tried four times, with growing pauses, where the storage fails it.

    Raises:
        Exception: that of the last try, or the first that will not pass.
    """
    for seconds in RETRY_SECONDS:
        try:
            return work()
        except Exception as error:
            if not may_pass(error):
                raise
        time.sleep(seconds)
    return work()


def may_pass(error: Exception) -> bool:
    """Whether storage that fails so may serve a further try: it is away, busy or cut off, not without the file.

    Example:
        >>> may_pass(ConnectionResetError()), may_pass(FileNotFoundError())
        (True, False)
    """
    status = getattr(error, "status", None)
    if type(status) is int:  # of a client of HTTP
        return status in (408, 429) or status >= 500 or (status == 400 and "length header" in str(error))
    if isinstance(error, (OSError, EOFError)):
        return not isinstance(error, _FINAL) and getattr(error, "errno", None) not in _FULL
    return type(error).__module__.partition(".")[0] in _CLIENTS
