"""Code of a program again, for other extents and strides, where everything that was decided for it holds for these.

A `FollowedText` is written from a program whose sizes are followed (`tileweave.index.sizes`): from the
merging of its loops to the last instruction, each decision is recorded. For a program that differs in sizes alone, the
recorded decisions are taken again, in some hundredths of a millisecond, and where they fall as they did the text is the
one that would be written, so none is.

Source: own.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import inf
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.attention.cut import choose_sizes, numbers_of
from tileweave.backends.cpu.attention.match import Attention
from tileweave.backends.cpu.attention.match import match as match_attention
from tileweave.backends.cpu.direct.convolution import Convolution
from tileweave.backends.cpu.direct.cut import DirectCut, Packing, cut_like, cut_of
from tileweave.backends.cpu.direct.cut import numbers_of as direct_numbers
from tileweave.backends.cpu.direct.match import match
from tileweave.backends.cpu.gemm.blocking import NEAR
from tileweave.backends.cpu.kinds import Size, ends_of
from tileweave.backends.cpu.memory import rounded, scratch_offsets
from tileweave.backends.cpu.nest import Nest, emit_program, has_tiny, table_at
from tileweave.backends.cpu.target.target import Target
from tileweave.backends.host import address_of
from tileweave.index.sizes import FollowedObject, Sizes, Table, exactly, shared, unrecorded
from tileweave.kept import keep_last
from tileweave.teir.ir.dtypes import width_bytes
from tileweave.teir.ir.form import number_of
from tileweave.teir.ir.program import Program, TensorSpec
from tileweave.teir.merged.form import Merged, MergedOp, Mode, sizes_of, with_sizes
from tileweave.teir.merged.merge import merged

KEPT = 16
"""Texts of one kind, the last used ones: each is asked before another one is written."""
KINDS = 1024
"""As many kinds are known, the last ones that were written."""


@dataclass(frozen=True, slots=True)
class CallPlaces:
    """Where a call has things, in bytes.

    Args:
        bounds: of each tensor that is not scratch: its first byte and the one behind its last, from its base.
        scratch: where each scratch tensor lies in the memory of a call.
        end: where the memory begins that threads share.
        shared_bytes: how much that is.
        thread_bytes: of each thread.
        packings: how weights of a direct convolution are arranged, by their tensor.
        tables: arrays that the code reads, whose addresses are in the table.
    """

    bounds: tuple[tuple[int, int], ...]
    scratch: dict[str, int]
    end: int
    shared_bytes: int
    thread_bytes: int
    packings: dict[str, Packing]
    tables: tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class FollowedText:
    """A text, and for which sizes it is.

    Args:
        table: numbers of a program -> the table that the code reads and then all of `CallPlaces`; None where it
            is another's.
        words: of the table that the code reads.
        scratch: names of the scratch tensors.
        outside: how many others there are.
        packed: names of the weights that are arranged.
        nears: whether it may serve as a near one.
        one_length: whether it is for rows of one short length alone.
    """

    table: Table
    words: int
    scratch: tuple[str, ...]
    outside: int
    packed: tuple[str, ...]
    nears: bool
    one_length: bool

    def serves(self, numbers: Sequence[float], *, near: float = 0) -> tuple[tuple[int, ...], CallPlaces] | None:
        """The table and the places for a program's numbers; None where the text is not the one that it would get.

        Asked whether it is near, one serves that computes the same bits in so many times the time, by estimate.
        """
        found = self.table.of(numbers, near)
        if found is None:
            return None
        end, shared, each, *rest = found[self.words :]
        first, count = len(self.scratch), len(self.scratch) + 2 * self.outside
        bounds = tuple(zip(rest[first:count:2], rest[first + 1 : count : 2], strict=True))
        scratch, packings = (
            dict(zip(self.scratch, rest, strict=False)),
            dict(zip(self.packed, rest[count:], strict=False)),
        )
        tables = tuple(rest[count + len(packings) :])
        return found[: self.words], CallPlaces(bounds, scratch, end, shared, each, packings, tables)


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


LENGTHS = 2
"""Lengths of short rows of one kind that have code of their own; what comes behind them shares code."""


def write(
    program: Program, target: Target, threads: int, constant: Collection[str] = (), key: Hashable = None
) -> tuple[Nest, FollowedText] | None:
    """The module of a well-formed program, and for which sizes it is; None where it is written in another way.

    Args:
        program: of a kind (`tileweave.teir.ir.form.kind_of`).
        target: the processor.
        threads: that it may use.
        constant: tensors that may be arranged otherwise, once, before the first run: of a direct convolution.
        key: as in `find`.
    """
    alike = [kernel.text for one in _KERNELS.get(key, ()) if (kernel := one()) is not None]
    sizes = Sizes(follows=True, any_length=sum(text.one_length for text in alike) >= LENGTHS)
    own = followed(program, sizes)
    form = merged(own)
    found, made = _convolution(program, form, sizes, target, threads, frozenset(constant))
    if found is None and (constant or has_tiny(form)):
        return None
    numbers = [one for one in made if not isinstance(one, FollowedObject)]
    objects = [one for one in made[len(numbers) :] if one.value is not None]
    whole = (found, numbers) if found is not None else _attention(program, own, sizes, target, threads)
    nest = emit_program(form, target, threads, sizes=sizes, followed=whole)
    reach = nest.bounds
    scratch, end = scratch_offsets(own, reach, rounded(8 * (table_at(own) + len(sizes.slots))))
    spans = [reach.get(spec.name, (0, 0)) for spec in own.tensors if spec.role != "scratch"]
    memory = end, nest.shared_bytes, nest.thread_bytes
    sizes.results = (*memory, *scratch.values(), *(byte for span in spans for byte in span), *objects)
    plain = {name: (unrecorded(low), unrecorded(high)) for name, (low, high) in reach.items()}
    shared, each = unrecorded(nest.shared_bytes), unrecorded(nest.thread_bytes)
    packings = {program.tensors[found.tensors[1]].name: objects[0].value} if found is not None and found.packed else {}
    tables = tuple([one.value for one in objects[len(packings) :]])
    nest = replace(nest, shared_bytes=shared, thread_bytes=each, bounds=plain, packings=packings, tables=tables)
    products = any(step.kind == "Contraction" for step in form.operations())
    about = Table(sizes), len(sizes.slots), tuple(scratch), len(spans), tuple(packings)
    text = FollowedText(*about, nears=found is not None or products, one_length=sizes.one_length)
    sizes.results = ()
    return nest, text


def _convolution(
    program: Program, form: Merged, sizes: Sizes, target: Target, threads: int, packed: frozenset[str]
) -> tuple[Convolution | None, list[Any]]:
    """The direct convolution that a program is; its numbers, followed, its tables' addresses, and how its weights are
    arranged and these tables."""
    steps = [step for step in form.body if isinstance(step, MergedOp)]
    if len(steps) < len(form.body) or all(step.kind != "Contraction" for step in steps):
        return None, []
    tensors = tuple([replace(spec, size_bytes=0) for spec in program.tensors])
    like = _like(tuple(map(_without_sizes, steps)), tensors)
    given = [number for step in steps for number in sizes_of(step)]
    found, cut, kind, _ = _cut(like, tuple(map(unrecorded, given)), target, threads, packed)

    def numbers(given: tuple[int, ...], near: float) -> tuple[Any, ...] | None:
        same, now, other, made = _cut(like, given, target, threads, packed)
        if near and same is not None and cut is not None:
            now = cut_like(same, cut.form, target, threads)
            other, made = (None, []) if now is None else direct_numbers(now)
        if other != kind:
            return None
        if now is None:
            return ()
        tables = now.tables()
        return (*made, *map(address_of, tables), now.packing, *tables)

    made = sizes.answers(numbers, given)
    if found is not None and found.chain is not None:
        found = replace(found, chain=steps[-1])  # with its numbers
    return found, made


@dataclass(frozen=True, slots=True, eq=False)
class _Like:
    """What the steps of programs of one kind have in common, and the tensors' types."""

    steps: tuple[MergedOp, ...]
    tensors: tuple[TensorSpec, ...]


@lru_cache(KINDS)
def _like(steps: tuple[MergedOp, ...], tensors: tuple[TensorSpec, ...]) -> _Like:
    """The only one of these: it is compared by what it is."""
    return _Like(steps, tensors)


def _without_sizes(step: MergedOp) -> MergedOp:
    """A step without numbers."""
    stages = tuple([replace(stage, number=0.0) for stage in step.stages])
    count = len(step.operands)
    modes, offsets = (Mode(0, (0,) * count),) * len(step.modes), (0,) * count
    return replace(step, modes=modes, offsets=offsets, stages=stages)


@lru_cache(16)
def _cut(
    like: _Like, sizes: tuple[int, ...], target: Target, threads: int, packed: frozenset[str]
) -> tuple[Convolution | None, DirectCut | None, Hashable, list[int]]:
    """The convolution that steps of some sizes are, how it is cut, and its `numbers_of`; once for all texts that are
    asked for these sizes."""
    given = iter(sizes)
    body = tuple([with_sizes(step, list(islice(given, len(sizes_of(step))))) for step in like.steps])
    found = match(Merged(Program(like.tensors, (), (), (), ()), body), target, packed)
    if found is None:
        return None, None, None, []
    cut = cut_of(found, target, threads)
    return found, cut, *direct_numbers(cut)


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

    like = _with_sizes(program, [0] * len(_sizes_of(program)))
    matched = shared(_matched, like, target, threads)

    def numbers(given: tuple[int, ...], _near: float) -> tuple[int, ...] | None:
        now = matched(given)
        if now is None or found is None:
            return () if now is found else None
        return tuple(now[1]) if now[0] == kind else None

    return found, sizes.answers(numbers, _sizes_of(own))


def _matched(like: Program, target: Target, threads: int, sizes: tuple[int, ...]) -> tuple[Hashable, list[int]] | None:
    """The `numbers_of` the attention that a program of these sizes is; None where it is none."""
    found = match_attention(_with_sizes(like, sizes), target)
    return None if found is None else numbers_of(found, choose_sizes(found, target, threads))


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


def find(
    key: Hashable, numbers: Sequence[float], *, soon: bool = False
) -> tuple[Any, tuple[int, ...], CallPlaces, bool] | None:
    """(a kernel of a text that serves the numbers of a program, its table, its places, whether it is to stay); None:
    write one. One that is slower serves where it is wanted ``soon``."""
    known = [kernel for one in _KERNELS.get(key, ()) if (kernel := one()) is not None]
    for near in (0, NEAR, inf) if soon else (0, NEAR):
        for kernel in known:
            found = kernel.text.serves(numbers, near=near) if kernel.text.nears or not near else None
            if found is not None:
                return kernel, *found, near < inf
    return None


def keep(key: Hashable, kernel: Any) -> None:
    """Have the text of a kernel found while a kernel of it lives; the last one that is given counts."""
    alive = [(one, kernel_of) for one in _KERNELS.pop(key, ()) if (kernel_of := one()) is not None]
    others = [one for one, other in alive if other.text is not kernel.text]
    _KERNELS[key] = [weakref.ref(kernel), *others[: KEPT - 1]]
    keep_last(_KERNELS, KINDS)


def numbers_with(program: Program, sizes: Sequence[Size]) -> list[float] | None:
    """The numbers of a program with other extents and strides; None where it is of another kind then, where bytes of
    scratch tensors or constants depend on them, or where two indices may meet in a byte."""
    if any(spec.role == "scratch" for spec in program.tensors) or any(map(number_of, program.primitives)):
        return None
    if ends_of(sizes, [width_bytes(spec.dtype) for spec in program.tensors]) is None:
        return None
    numbers: list[float] = []
    for axis, (extent, strides) in zip(program.axes, sizes, strict=True):
        if axis.extent == 1 or list(map(bool, axis.strides)) != list(map(bool, strides)):
            return None
        numbers += [extent, *filter(None, strides)]
    return numbers
