"""What is made once and kept, by many threads: attributes of objects, the last entries of tables, locks of modules."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


def lock_of_process(kind: Callable[[], Any] = threading.Lock) -> Any:
    """A lock of a module. A forked child begins with it free: the thread that may have held it is not there.

    What it guards has to bear that the thread has stopped anywhere: tables that are changed in single steps do.
    """
    made = kind()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=made._at_fork_reinit)  # as the modules of Python's library do
    return made


class cached_property(Generic[Value]):  # noqa: N801  (it stands for the one of functools)
    """An attribute that a method computes when it is first asked for.

    That of `functools` holds one lock for all objects while it computes, up to Python 3.11: threads wait for each
    other, and a process that is forked meanwhile waits forever. Here two threads may both compute; what they find is
    equal.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.func, self.__doc__, self.__module__ = compute, compute.__doc__, compute.__module__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> cached_property[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type[Any]) -> Value: ...

    def __get__(self, instance: object | None, owner: type[Any]) -> cached_property[Value] | Value:
        if instance is None:
            return self
        value = instance.__dict__[self.name] = self.func(instance)
        return value


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
