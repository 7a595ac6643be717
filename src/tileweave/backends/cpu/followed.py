"""Code of a program again, for other extents and strides, where everything that was decided for it holds for these.

A `Followed` text is written from a program whose sizes are followed (`tileweave.backends.cpu.llvm.sizes`): from the
merging of its loops to the last instruction, each decision is recorded. For a program that differs in sizes alone, the
recorded decisions are taken again, in some hundredths of a millisecond, and where they fall as they did the text is the
one that would be written, so none is.

Source: own.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tileweave.backends.cpu.llvm.sizes import Sizes, Table
from tileweave.backends.cpu.memory import Bounds, scratch_offsets
from tileweave.teir.ir.program import Primitive, Program

KEPT = 16
"""Texts of one kind, the last used ones: each is asked before another one is written."""


@dataclass(frozen=True, slots=True)
class Places:
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
        of: numbers of a program -> the table that the code reads and then all of `Places`; None where it is another's.
        words: of the table that the code reads.
        scratch: names of the scratch tensors.
    """

    of: Callable[[Sequence[float]], tuple[int, ...] | None]
    words: int
    scratch: tuple[str, ...]

    def serves(self, numbers: Sequence[float]) -> tuple[tuple[int, ...], Places] | None:
        """The table and the places for a program's numbers; None where the text is not the one that it would get."""
        found = self.of(numbers)
        if found is None:
            return None
        end, shared, each, *rest = found[self.words :]
        count = len(self.scratch)
        bounds = tuple(zip(rest[count::2], rest[count + 1 :: 2], strict=True))
        places = Places(bounds, dict(zip(self.scratch, rest, strict=False)), end, shared, each)
        return found[: self.words], places


def kind_of_program(program: Program) -> Hashable | None:
    """A program without its sizes; None where it is more than operations point by point."""
    if any(primitive.operation == "Contraction" for primitive in program.primitives):
        return None
    axes = tuple([(a.id, tuple(map(bool, a.strides)), a.offsets) for a in program.axes])
    tensors = tuple([(spec.name, spec.dtype, spec.role) for spec in program.tensors])
    # repr: of metadata, 1 and True, 0.0 and -0.0 are equal
    primitives = tuple(
        [
            (p.id, p.operation, p.axes, p.operands, None if _number(p) is not None else repr(p.metadata))
            for p in program.primitives
        ]
    )
    return program.name, program.profile, tensors, axes, program.roots, program.nodes, primitives


def _number(primitive: Primitive) -> float | None:
    """The number that a Fill writes, where it is one that may depend on sizes."""
    if primitive.operation != "Fill" or len(primitive.metadata) != 1:
        return None
    name, value = primitive.metadata[0]
    varies = name == "value" and type(value) is float and math.isfinite(value) and value not in (0.0, 1.0)
    return value if varies else None  # type: ignore[return-value]


def numbers_of(program: Program) -> list[float]:
    """The sizes of a program that are followed, and numbers that may depend on them, in order."""
    found: list[float] = [spec.size_bytes for spec in program.tensors if spec.role == "scratch"]
    for axis in program.axes:
        found += [axis.extent, *filter(None, axis.strides)]
    return found + [number for number in map(_number, program.primitives) if number is not None]


def followed(program: Program, sizes: Sizes) -> Program:
    """The same program, its sizes followed."""
    size = sizes.followed
    tensors = tuple(
        [replace(spec, size_bytes=size(spec.size_bytes)) if spec.role == "scratch" else spec for spec in program.tensors]
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
            for one, number in ((one, _number(one)) for one in program.primitives)
        ]
    )
    return replace(program, tensors=tensors, axes=axes, primitives=primitives)


def text_of(
    program: Program, sizes: Sizes, bounds: Bounds, begin: int, shared_bytes: int, thread_bytes: int
) -> FollowedText:
    """What a finished text is for.

    Args:
        program: whose sizes were followed.
        sizes: what was recorded.
        bounds: of its tensors, followed as well.
        begin: the first free byte of a call's memory.
        shared_bytes, thread_bytes: as `Places`.
    """
    scratch, end = scratch_offsets(program, bounds, begin)
    spans = [bounds.get(spec.name, (0, 0)) for spec in program.tensors if spec.role != "scratch"]
    places = end, shared_bytes, thread_bytes, *scratch.values(), *(byte for span in spans for byte in span)
    sizes.results = places
    return FollowedText(Table(sizes).of, len(sizes.slots), tuple(scratch))


_TEXTS: dict[Hashable, list[tuple[weakref.ref[Any], FollowedText]]] = {}
KINDS = 1024
"""As many kinds are known, the last ones that were written."""


def find(key: Hashable, numbers: Sequence[float]) -> tuple[Any, FollowedText, tuple[int, ...], Places] | None:
    """(a kernel of the same text, the text, its table, its places) for the numbers of a program; None: write one."""
    for kernel, text in _TEXTS.get(key, ()):
        alive = kernel()
        if alive is None:
            continue
        found = text.serves(numbers)
        if found is not None:
            return alive, text, *found
    return None


def keep(key: Hashable, kernel: Any, text: FollowedText) -> None:
    """Have a text found while a kernel of it lives; the last one that is given counts."""
    others = [one for one in _TEXTS.pop(key, ()) if one[1] is not text and one[0]() is not None]
    _TEXTS[key] = [(weakref.ref(kernel), text), *others[: KEPT - 1]]
    while len(_TEXTS) > KINDS:
        _TEXTS.pop(next(iter(tuple(_TEXTS)), None), None)  # other threads may change it meanwhile
