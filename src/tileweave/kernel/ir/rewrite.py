"""Statements made anew: with other tensors, with symbols replaced; and the symbols that a value speaks of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from tileweave.index import Expr, symbols_of
from tileweave.kernel.ir.values import KernelTensor
from tileweave.layout import Layout

T = TypeVar("T")


def map_values(value: T, function: Callable[[Any], Any]) -> T:
    """The value with `function` applied to every frozen value and expression in it, inner ones first.

    Args:
        value: a kernel, a statement, or any part of one.
        function: gives the value to put in the place of one, or the same value.
    """
    done: dict[int, Any] = {}
    return _mapped(value, function, done)  # type: ignore[no-any-return]


def _mapped(value: Any, function: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_mapped(one, function, done) for one in value)
    if isinstance(value, Expr | Layout):
        return function(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    if id(value) not in done:
        changed = {}
        for one in fields(value):
            before = getattr(value, one.name)
            after = _mapped(before, function, done) if one.init else before
            if after is not before:
                changed[one.name] = after
        done[id(value)] = (value, function(replace(value, **changed) if changed else value))
    return done[id(value)][1]


def replace_tensors(value: T, tensors: Mapping[KernelTensor, KernelTensor]) -> T:
    """The value with some tensors replaced, in declarations and regions alike."""
    return map_values(value, lambda one: tensors.get(one, one) if isinstance(one, KernelTensor) else one)


def free_symbols(value: Any) -> frozenset[Expr]:
    """Every symbol in a value, bound in it or not."""
    found: set[Expr] = set()

    def look(one: Any) -> Any:
        if isinstance(one, Expr):
            found.update(symbols_of(one))
        elif isinstance(one, Layout):
            for coord in (one.offset, *(it.stride for it in (*one.shard, *one.replica))):
                numbers: list[Any] = [v for _, v in coord.terms]
                found.update(*(symbols_of(v) for v in numbers if isinstance(v, Expr)))
        return one

    map_values(value, look)
    return frozenset(found)
