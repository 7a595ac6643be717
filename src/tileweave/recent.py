"""Tables of things that were made and may be asked for again: the last ones stay."""

from __future__ import annotations

from typing import Any


def keep_last(kept: dict[Any, Any], most: int) -> None:
    """Drop the entries that came first until ``most`` are left.

    Other threads may read and change the table meanwhile, without a lock: the keys of a plain `dict` are copied in one
    step, in which none of them is hashed or compared. An `OrderedDict` hashes each, and keys whose hash is written in
    Python let other threads in between; it is refused.

    Example:
        >>> kept = {"a": 1, "b": 2, "c": 3}
        >>> keep_last(kept, 2)
        >>> kept
        {'b': 2, 'c': 3}
    """
    if type(kept) is not dict:
        raise TypeError(f"a plain dict is needed, not {type(kept).__name__}")
    while len(kept) > most:
        kept.pop(next(iter(tuple(kept)), None), None)
