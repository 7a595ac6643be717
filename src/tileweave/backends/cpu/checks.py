"""What the arrays of a call have to be, and what is said of those that are not.

Source: own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.cpu.memory import Span, near, share_bytes
from tileweave.backends.host import address_of, owner
from tileweave.errors import BackendError
from tileweave.teir.ir.program import Program, TensorSpec
from tileweave.teir.merged.order import may_alias

Array = NDArray[Any]
Wanted = tuple[str, np.dtype[Any], bool, int, int]
"""A tensor's name and type, whether it is written, and the bytes that are touched: from its base, the end excluded."""


class Checked(Protocol):
    """A kernel, as far as its arrays are checked."""

    _specs: list[TensorSpec]

    @property
    def program(self) -> Program:
        """What is computed."""
        ...

    @property
    def source(self) -> str:
        """The code."""
        ...


@dataclass(frozen=True, slots=True)
class ArrayChecks:
    """The checks of a kernel's arrays.

    Args:
        wanted: per array.
        pairs: the numbers of arrays of which one is written, two and two.
    """

    wanted: tuple[Wanted, ...]
    pairs: tuple[tuple[int, int], ...]

    def of(self, bounds: Collection[Span]) -> ArrayChecks:
        """Those of a kernel for the same tensors of other sizes."""
        wanted = tuple([(*one[:3], *span) for one, span in zip(self.wanted, bounds, strict=True)])
        return ArrayChecks(wanted, self.pairs)  # `replace` would take longer than all else here

    def addresses(self, kernel: Checked, arrays: tuple[Array, ...]) -> list[int]:
        """The addresses of arrays that the program may run on."""
        if len(arrays) != len(self.wanted):
            raise self.error(kernel, f"{len(arrays)} arrays are given")
        addresses = []
        for array, (name, dtype, output, low, high) in zip(arrays, self.wanted, strict=True):
            if not isinstance(array, np.ndarray) or (array.dtype is not dtype and not _holds(array.dtype, dtype)):
                found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                raise self.error(kernel, f"tensor {name!r} is given {found} instead of {dtype}")
            flags = array.flags
            if output and not flags.writeable:
                raise self.error(kernel, f"tensor {name!r} is written, and its array is read-only")
            address = address_of(array)
            if not (low >= 0 and high <= array.nbytes and flags.c_contiguous):
                self.check_bounds(kernel, array, address, name, low, high)
            addresses.append(address)
        self.check_pairs(kernel, addresses)
        return addresses

    def check_pairs(self, kernel: Checked, addresses: Sequence[int]) -> None:
        """Refuses arrays that share bytes of which some are written."""
        for j, k in self.pairs:
            a, b = self.wanted[j], self.wanted[k]
            if addresses[j] + a[3] < addresses[k] + b[4] and addresses[k] + b[3] < addresses[j] + a[4]:
                self._check_pair(kernel, a[0], addresses[j], b[0], addresses[k])

    def near(self) -> Callable[[NDArray[np.int64]], list[int]]:
        """The rows of addresses of which some pair may share bytes."""
        spans = [one[3:] for one in self.wanted]
        return functools.partial(near, [(j, k, spans[j], spans[k]) for j, k in self.pairs])

    def check_bounds(
        self, kernel: Checked, array: Array, base: int, name: str, extent_low: int, extent_high: int
    ) -> None:
        """Refuses an array that ends before what is touched."""
        low, high = np.lib.array_utils.byte_bounds(owner(array))
        if extent_low < extent_high and (base + extent_low < low or base + extent_high > high):
            raise self.error(
                kernel,
                f"tensor {name!r}: the program touches bytes {extent_low} to {extent_high} from its base, "
                f"and its array holds bytes {low - base} to {high - base}",
            )

    def _check_pair(self, kernel: Checked, name: str, base: int, name2: str, base2: int) -> None:
        program = kernel.program
        if base == base2 and may_alias(program, program.position(name), program.position(name2)):
            return
        if not share_bytes(program, (name, base), (name2, base2)):
            return
        raise self.error(
            kernel,
            f"tensors {name!r} and {name2!r} share memory and one of them is written",
            "separate memory, or the very same elements in the same order for elementwise operations",
        )

    def error(self, kernel: Checked, problem: str, legal: str = "") -> BackendError:
        """What is said of arrays that a kernel cannot run on."""
        wants = ", ".join(f"{spec.name} {spec.dtype}" for spec in kernel._specs)
        return BackendError(
            f"{kernel.program.name}(..)",
            problem,
            legal=legal or f"one array per tensor: {wants}",
            facts={"source": kernel.source, "log": ""},
        )


def pairs_of(written: Sequence[bool]) -> tuple[tuple[int, int], ...]:
    """The numbers of arrays of which one is written, two and two."""
    return tuple((j, k) for k in range(len(written)) for j in range(k) if written[j] or written[k])


def _holds(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether an array's elements are those of a tensor: of its type, or truths, which are 1 or 0 of INT8."""
    return found == wanted or (found == np.bool_ and wanted == np.int8)
