"""Kernels one after the other on arrays that are known to fit, which is most of the overhead of a small call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tileweave.backends.base import Compiled, LooksAtArrays
from tileweave.backends.calls import Wanted

Array = np.ndarray[Any, Any]
Call = Callable[..., Array]


@dataclass(frozen=True, slots=True, eq=False)
class KernelStep:
    """One kernel of an einsum, and what makes its result; values have places, operands first, results behind them."""

    kernel: Compiled
    inputs: tuple[int, ...]
    new: Callable[[], Array]

    def of(self, values: Sequence[Array]) -> list[Array]:
        """Its operands."""
        return [values[k] for k in self.inputs]


Quick = tuple[Callable[[], Array], Callable[..., int]]
"""What makes a result, and what runs on operands and a result, or is false where they are not what it was made for."""


def quick_of(steps: tuple[KernelStep, ...], about: Sequence[tuple[Any, ...]]) -> Quick | None:
    """For the only kernel of an einsum, its operands and its result."""
    step, last = steps[0], len(about) - 1
    if not _alone(steps) or not hasattr(step.kernel, "looking"):
        return None
    wanted = [Wanted(k, dtype, shape, lies, True, k == last) for k, (dtype, shape, lies) in enumerate(about)]
    run = cast("LooksAtArrays", step.kernel).looking(wanted)
    return None if run is None else (step.new, run)


def into_new(steps: tuple[KernelStep, ...], quick: Quick | None) -> Call:
    """The kernels on arrays whose types, shapes and strides are known to fit, into a new array."""

    def call(*arrays: Array) -> Array:
        values = list(arrays)
        for step in steps:
            out = step.new()
            _run(step, values, out)
            values.append(out)
        return out

    def call_one(*arrays: Array) -> Array:
        out = new()
        if not run_on(*arrays, out):
            kernel(*arrays, out)  # another thread is in the same call
        return out

    kernel, new = steps[0].kernel, steps[0].new
    run_on = quick[1] if quick else kernel.run_on
    return call_one if _alone(steps) else call


def _run(step: KernelStep, values: Sequence[Array], out: Array) -> None:
    if not step.kernel.run_on(*step.of(values), out):
        step.kernel(*step.of(values), out)


def _alone(steps: tuple[KernelStep, ...]) -> bool:
    return len(steps) == 1 and steps[0].inputs == tuple(range(len(steps[0].inputs)))


def into(steps: tuple[KernelStep, ...], quick: Quick | None) -> Call:
    """The kernels on arrays whose types, shapes and strides are known to fit, into the one that comes behind them."""
    before, last = steps[:-1], steps[-1]
    run_on = quick[1] if quick else last.kernel.run_on

    def call(*given: Array) -> Array:
        *values, out = given
        for step in before:
            made = step.new()
            _run(step, values, made)
            values.append(made)
        inputs = last.of(values)
        if not (out.flags.writeable and run_on(*inputs, out)):
            last.kernel(*inputs, out)  # where it may run nevertheless, or says why not
        return out

    def call_one(*given: Array) -> Array:
        if not (given[-1].flags.writeable and run_on(*given)):
            last.kernel(*given)
        return given[-1]

    return call_one if _alone(steps) else call
