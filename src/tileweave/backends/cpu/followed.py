"""Code of a program again, for other extents and strides, where everything that was decided for it holds for these.

A `FollowedText` is written from a program whose sizes are followed (`tileweave.backends.cpu.llvm.sizes`): from the
merging of its loops to the last instruction, each decision is recorded. For a program that differs in sizes alone, the
recorded decisions are taken again, in some hundredths of a millisecond, and where they fall as they did the text is the
one that would be written, so none is.

Source: own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from tileweave.backends.cpu.attention.cut import choose_sizes, numbers_of
from tileweave.backends.cpu.attention.match import Attention
from tileweave.backends.cpu.attention.match import match as match_attention
from tileweave.backends.cpu.direct.match import match
from tileweave.backends.cpu.llvm.sizes import Sizes, Table, exactly, unrecorded
from tileweave.backends.cpu.memory import rounded, scratch_offsets
from tileweave.backends.cpu.nest import Nest, emit_program, has_tiny, table_at
from tileweave.backends.cpu.target.target import Target
from tileweave.teir.ir.form import number_of
from tileweave.teir.ir.program import Program
from tileweave.teir.merged.form import Merged, MergedOp, sizes_of, with_sizes
from tileweave.teir.merged.merge import merged

KEPT = 16
"""Texts of one kind, the last used ones: each is asked before another one is written."""


@dataclass(frozen=True, slots=True)
class CallPlaces:
    """Where a call has things, in bytes.

    Args:
        bounds: of each tensor that is not scratch: its first byte and the one behind its last, from its base.
        scratch: where each scratch tensor lies in the memory of a call.
        end: where the memory begins that threads share.
        shared_bytes: how much that is.
        thread_bytes: of each thread.
    """

    bounds: tuple[tuple[int, int], ...]
    scratch: dict[str, int]
    end: int
    shared_bytes: int
    thread_bytes: int


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class FollowedText:
    """A text, and for which sizes it is.

    Args:
        of: numbers of a program -> the table that the code reads and then all of `CallPlaces`; None where it
            is another's.
        words: of the table that the code reads.
        scratch: names of the scratch tensors.
    """

    of: Callable[[Sequence[float]], tuple[int, ...] | None]
    words: int
    scratch: tuple[str, ...]

    def serves(self, numbers: Sequence[float]) -> tuple[tuple[int, ...], CallPlaces] | None:
        """The table and the places for a program's numbers; None where the text is not the one that it would get."""
        found = self.of(numbers)
        if found is None:
            return None
        end, shared, each, *rest = found[self.words :]
        count = len(self.scratch)
        bounds = tuple(zip(rest[count::2], rest[count + 1 :: 2], strict=True))
        places = CallPlaces(bounds, dict(zip(self.scratch, rest, strict=False)), end, shared, each)
        return found[: self.words], places


def followed(program: Program, sizes: Sizes) -> Program:
    """The same program, its sizes followed."""
    size = sizes.followed
    tensors = tuple(
        [
            replace(spec, size_bytes=size(spec.size_bytes)) if spec.role == "scratch" else spec
            for spec in program.tensors
        ]
    )
    axes = tuple(
        [
            replace(axis, extent=size(axis.extent), strides=tuple([size(s) if s else 0 for s in axis.strides]))
            for axis in program.axes
        ]
    )
    primitives = tuple(
        [
            one if number is None else replace(one, metadata=(("value", sizes.followed_number(number)),))
            for one, number in ((one, number_of(one)) for one in program.primitives)
        ]
    )
    return replace(program, tensors=tensors, axes=axes, primitives=primitives)


def write(program: Program, target: Target, threads: int) -> tuple[Nest, FollowedText] | None:
    """The module of a well-formed program, and for which sizes it is; None where it is written in another way."""
    sizes = Sizes(follows=True)
    own = followed(program, sizes)
    form = merged(own)
    if has_tiny(form) or not _no_convolution(form, sizes, target):
        return None
    attention = _attention(program, own, sizes, target, threads)
    nest = emit_program(form, target, threads, sizes=sizes, followed=attention)
    reach = nest.bounds
    scratch, end = scratch_offsets(own, reach, rounded(8 * (table_at(own) + len(sizes.slots))))
    spans = [reach.get(spec.name, (0, 0)) for spec in own.tensors if spec.role != "scratch"]
    memory = end, nest.shared_bytes, nest.thread_bytes
    sizes.results = (*memory, *scratch.values(), *(byte for span in spans for byte in span))
    plain = {name: (unrecorded(low), unrecorded(high)) for name, (low, high) in reach.items()}
    shared, each = unrecorded(nest.shared_bytes), unrecorded(nest.thread_bytes)
    nest = replace(nest, shared_bytes=shared, thread_bytes=each, bounds=plain)
    return nest, FollowedText(Table(sizes).of, len(sizes.slots), tuple(scratch))


def _no_convolution(form: Merged, sizes: Sizes, target: Target) -> bool:
    """Whether a program is no direct convolution, which is written for its very sizes."""
    steps = [step for step in form.body if isinstance(step, MergedOp)]
    if len(steps) < len(form.body) or all(step.kind != "Contraction" for step in steps):
        return True
    widths = list(accumulate(map(len, map(sizes_of, steps)), initial=0))

    def other(numbers: Sequence[int]) -> tuple[int, ...] | None:
        parts = [numbers[first:last] for first, last in pairwise(widths)]
        body = tuple(map(with_sizes, steps, parts))
        return () if match(Merged(form.program, body), target) is None else None

    given = [number for step in steps for number in sizes_of(step)]
    if other(list(map(unrecorded, given))) is None:
        return False
    sizes.answers(other, given)
    return True


def _attention(
    program: Program, own: Program, sizes: Sizes, target: Target, threads: int
) -> tuple[Attention | None, list[int]]:
    """The attention that a program is, and its numbers, followed."""
    if sum(primitive.operation == "Contraction" for primitive in program.primitives) != 2:
        return None, []
    found = match_attention(program, target)
    kind = numbers_of(found, choose_sizes(found, target, threads))[0] if found is not None else None
    for number in filter(None, map(number_of, own.primitives if found is not None else ())):
        exactly(number)  # it stands in the code

    def numbers(given: Sequence[int]) -> tuple[int, ...] | None:
        now = match_attention(_with_sizes(program, given), target)
        if now is None or found is None:
            return () if now is found else None
        like, made = numbers_of(now, choose_sizes(now, target, threads))
        return tuple(made) if like == kind else None

    return found, sizes.answers(numbers, _sizes_of(own))


def _sizes_of(program: Program) -> list[int]:
    """Extents and strides."""
    return [number for axis in program.axes for number in (axis.extent, *axis.strides)]


def _with_sizes(program: Program, sizes: Sequence[int]) -> Program:
    """A program with other extents and strides."""
    rest = iter(sizes)
    axes = [
        replace(axis, extent=next(rest), strides=tuple([next(rest) for _ in axis.strides])) for axis in program.axes
    ]
    return replace(program, axes=tuple(axes))


_KERNELS: dict[Hashable, list[weakref.ref[Any]]] = {}
KINDS = 1024
"""As many kinds are known, the last ones that were written."""


def find(key: Hashable, numbers: Sequence[float]) -> tuple[Any, tuple[int, ...], CallPlaces] | None:
    """(a kernel of a text that serves the numbers of a program, its table, its places); None: write one."""
    for one in _KERNELS.get(key, ()):
        kernel = one()
        found = None if kernel is None else kernel.text.serves(numbers)
        if found is not None:
            return kernel, *found
    return None


def keep(key: Hashable, kernel: Any) -> None:
    """Have the text of a kernel found while a kernel of it lives; the last one that is given counts."""
    alive = [(one, kernel_of) for one in _KERNELS.pop(key, ()) if (kernel_of := one()) is not None]
    others = [one for one, other in alive if other.text is not kernel.text]
    _KERNELS[key] = [weakref.ref(kernel), *others[: KEPT - 1]]
    while len(_KERNELS) > KINDS:
        _KERNELS.pop(next(iter(tuple(_KERNELS)), None), None)  # other threads may change it meanwhile
