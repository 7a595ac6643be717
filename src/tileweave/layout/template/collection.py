"""Named kernels that are made from templates: their options, and the refusal of names that there are not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tileweave.errors import LayoutError

Entry = TypeVar("Entry")


def options_of(build: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the options that a function takes."""
    return tuple(inspect.signature(build).parameters)


def check_options(name: str, build: Callable[..., Any], given: Iterable[str]) -> None:
    """Refuse options that the kernel's function does not take.

    Raises:
        LayoutError: an unknown option.
    """
    known = options_of(build)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise LayoutError(f"kernel({name!r})", f"no option {', '.join(unknown)}", legal=", ".join(known))


def named(kernels: Mapping[str, Entry], name: str) -> Entry:
    """The kernel of that name.

    Raises:
        LayoutError: there is none; the message lists the names.
    """
    if name not in kernels:
        raise LayoutError("kernel(name)", f"no kernel {name!r}", legal=", ".join(kernels))
    return kernels[name]
