"""A plan's run for other extents, computed from its outline.

Source: own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from operator import mul
from typing import Any, NamedTuple, cast

import numpy as np

from tileweave.backends.base import Arranged, Resizable, backend
from tileweave.backends.calls import Apart, Calls, Wanted
from tileweave.backends.host import address_of, empty
from tileweave.errors import BackendError
from tileweave.kept import keep_last
from tileweave.lower import actions
from tileweave.lower.actions import CallSegment, Found
from tileweave.lower.again.form import GraphForm
from tileweave.lower.again.outline import Outline, PutTogether, SeenAs, TaskWork, pieces_of, window_extents
from tileweave.lower.execute import COPIES, regular
from tileweave.lower.reads import call_of
from tileweave.lower.values import Slot, place_in_time

Array = np.ndarray[Any, Any]
FILLED = 16
"""As many constants of an outline are kept as arrays: those that come from extents are others each time."""
ARENA, THERE = -1, -2
"""Where something lies: in the arena, or at an address; else in an object of a run, by number."""


class ArrayPlace(NamedTuple):
    """Where an array lies.

    Args:
        where: `ARENA`, `THERE`, or the number of an object of the run.
        offset_bytes: of its first element, from the beginning of the arena or the object's first element; or its
            address.
        shape: extents.
        strides: in bytes.
        array: that holds it, where it is at an address.
    """

    where: int
    offset_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    array: Array | None = None


class AgainCall(NamedTuple):
    """A call of a run.

    Args:
        kernel: that is called.
        places: of its operands, in its order.
        number: of its task.
        addresses: of the operands; None: it asks for `arrays`.
        arrays: at these places.
    """

    kernel: Any
    places: Sequence[ArrayPlace]
    number: int
    addresses: Sequence[int] | None = None
    arrays: Sequence[Array] = ()


class _Otherwise(Exception):
    """A decision falls otherwise than it did."""


def dense(shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """The strides of an array in row-major order, in bytes."""
    return tuple([*accumulate(shape[:0:-1], mul, initial=width)][::-1]) if shape else ()


class AgainCalls:
    """The calls of a run of a graph, and where all that they read and write lies.

    Args:
        outline: of a plan of a graph of the same form.
        form: of the graph.
        arrays: for each source that every run brings, it, or one that lies as it will.
        new: makes the array for a result, or one that lies as it will, of its extents and type.
        soon: whether code may serve that is slower.
    """

    def __init__(
        self,
        outline: Outline,
        form: GraphForm,
        arrays: Sequence[Array],
        new: Callable[[tuple[int, ...], np.dtype[Any]], Array],
        soon: bool = False,
    ) -> None:
        self._outline, self._form, self.arrays, self._soon = outline, form, arrays, soon
        sizes = form.sizes
        if any(sizes[k] != value for k, value in outline.still):
            raise _Otherwise
        for one, other in outline.alike:
            if form.order[one].parameters != form.order[other].parameters:
                raise _Otherwise
        self.first_result = len(arrays)
        self.held: list[Any] = []
        """What has to stay alive, beside the constants of the graph."""
        self._blocks: dict[int, ArrayPlace] = {}
        self._puts: dict[tuple[int, int], tuple[tuple[int, ...], list[tuple[int, int, Any]]]] = {}
        kinds = [(shaped.of(form), dtype) for shaped, dtype in outline.results]
        self._lay_out(kinds)
        self.results = [new(*kind) for kind in kinds]
        self.calls: list[AgainCall] = []
        for work in outline.works:
            self._add(work, work.made.of(form))

    # ---- places -----------------------------------------------------------------------------------------------------

    def _lay_out(self, results: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        """Places the buffers of the arena."""
        form, outline = self._form, self._outline
        spans = [(prod(b.shaped.of(form)) * b.width_bytes, b.first, b.last) for b in outline.buffers]
        held = sum([size for size, _, _ in spans]) + sum([prod(shape) * dtype.itemsize for shape, dtype in results])
        if held > outline.memory_bytes:
            raise _Otherwise
        self.arena_bytes = self._base = 0
        self._memory: Array | None = None
        if spans:
            self._starts, self.arena_bytes = place_in_time(spans)
            self._memory = empty((max(self.arena_bytes, 1 << 16),), np.uint8)
            self._base = address_of(self._memory)
            self.held.append(self._memory)

    def _block(self, task: int) -> ArrayPlace:
        """Where the block of a task lies."""
        found = self._blocks.get(task)
        if found is None:
            found = self._blocks[task] = self._home(task)
        return found

    def _home(self, task: int) -> ArrayPlace:
        outline, form = self._outline, self._form
        if task in outline.fixed:
            return _there(outline.fixed[task])
        if task in outline.views:
            one, shaped = outline.views[task]
            seen = self._sight(cast("SeenAs", one.seen), one.shaped.of(form), one.dtype)
            walked = zip(seen.shape, seen.strides, dense(seen.shape, one.dtype.itemsize), strict=True)
            shape = shaped.of(form)
            if any(n != 1 and a != b for n, a, b in walked) or prod(shape) != prod(seen.shape):
                raise _Otherwise
            return ArrayPlace(seen.where, seen.offset_bytes, shape, dense(shape, one.dtype.itemsize), seen.array)
        work, home = outline.works[outline.at[task]], outline.homes[task]
        shape, width = work.made.of(form), work.dtype.itemsize
        if home.result >= 0:
            if self.results[home.result].size != prod(shape) or self.results[home.result].dtype != work.dtype:
                raise _Otherwise
            return ArrayPlace(self.first_result + home.result, 0, shape, dense(shape, width))
        start, strides = self._starts[home.buffer], dense(shape, width)
        if home.inside is not None:
            whole, pieces = self._put(*home.inside)
            (box,) = [piece.box for made, _, piece in pieces if made == task]
            strides = dense(whole, width)
            start += sum([a * s for a, s in zip(box.start, strides, strict=True)])
        return ArrayPlace(ARENA, start, shape, strides)

    def _put(self, task: int, k: int) -> tuple[tuple[int, ...], list[tuple[int, int, Any]]]:
        """The extents of a read that is put together, and its pieces."""
        found = self._puts.get((task, k))
        if found is None:
            one = self._outline.works[self._outline.at[task]].inputs[k]
            put = cast("PutTogether", one.seen)
            pieces = pieces_of(self._form, put.shaped, self._outline.leaves)
            if pieces is None or [piece[:2] for piece in pieces] != [piece[:2] for piece in put.pieces]:
                raise _Otherwise
            found = self._puts[task, k] = put.shaped.of(self._form), pieces
        return found

    def _leaf(self, task: int, source: int) -> ArrayPlace:
        """Where a block or a source lies."""
        if task >= 0:
            return self._block(task)
        place = self._outline.sources[source]
        number = self._outline.numbers.get(place)
        if number is None:
            return _there(self._form.order[place].data.array)
        array = self.arrays[number]
        return ArrayPlace(number, 0, array.shape, array.strides)

    def _sight(self, seen: SeenAs, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayPlace:
        """Where what is seen lies."""
        if seen.fill != -1:
            return self._filled(seen.fill[0] if isinstance(seen.fill, tuple) else self._value(seen.fill), shape, dtype)
        leaf = self._leaf(seen.task, seen.source)
        if seen.rows is None and not seen.moves and leaf.shape == shape:
            return leaf
        strides = leaf.strides if seen.rows is None else _along(seen.rows, leaf.strides, len(shape))
        at, offset = leaf.offset_bytes, seen.offset(self._form)
        if offset is not None:
            at += sum([a * s for a, s in zip(offset, leaf.strides, strict=True)])
        return ArrayPlace(leaf.where, at, shape, strides, leaf.array)

    def _value(self, place: int) -> Any:
        return self._form.order[place].parameters[0][1]

    def _filled(self, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayPlace:
        known, key = self._outline.filled, (dtype, repr(value))
        held = known.get(key)
        if held is None:
            held = np.asarray(value).astype(dtype)
            if value == value:  # all that are not a number are shown alike
                known[key] = held
                keep_last(known, FILLED)
        self.held.append(held)
        return ArrayPlace(THERE, address_of(held), shape, (0,) * len(shape), held)

    def _address(self, place: ArrayPlace) -> int:
        if place.where < 0:
            return place.offset_bytes + (self._base if place.where == ARENA else 0)
        return address_of(self.object(place.where)) + place.offset_bytes

    def object(self, number: int) -> Array:
        """An object of the run, or what lies as it."""
        return self.arrays[number] if number < self.first_result else self.results[number - self.first_result]

    def _array(self, place: ArrayPlace, dtype: np.dtype[Any]) -> Array:
        """An array at a place."""
        held = place.array if place.where == THERE else self._memory if place.where == ARENA else None
        return _at(self._address(place), place, dtype, self.object(place.where) if held is None else held)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _add(self, work: TaskWork, made: tuple[int, ...]) -> None:
        """Adds what a run does for a task."""
        form, outline = self._form, self._outline
        shapes = [one.shaped.of(form) for one in work.inputs]
        alone = work.amount.alone(shapes, made)
        if alone is None:
            raise _Otherwise
        threads = 1 if alone else outline.threads
        places = [self._input(work, k, shape, made) for k, shape in enumerate(shapes)]
        target = self._block(work.number)
        if work.programs is None:
            self._call(work, places, target)
            return
        lies = [(one.dtype, at.shape, at.strides) for one, at in zip(work.inputs, places, strict=True)]
        constants = [self._value(place) for place in work.programs.constants]
        out = work.dtype, made, target.strides
        kernel: Any = work.programs.kernel(COPIES, constants, lies, out, threads, soon=self._soon)
        given = [target if k < 0 else places[k] for k in work.order]
        addresses = [self._address(place) for place in given]
        if work.programs.constant and hasattr(kernel, "arranged"):
            known = [
                self._array(place, work.inputs[k].dtype) if k >= 0 and place.where == THERE else None
                for k, place in zip(work.order, given, strict=True)
            ]
            for k, array in enumerate(cast("Arranged", kernel).arranged(known)):  # type: ignore[arg-type]
                if array is not known[k]:
                    self.held.append(array)
                    addresses[k] = address_of(array)
                    given[k] = ArrayPlace(THERE, addresses[k], (), ())
        self._check(kernel, given)
        self.calls.append(AgainCall(kernel, given, work.number, addresses))

    def _input(self, work: TaskWork, k: int, shape: tuple[int, ...], made: tuple[int, ...]) -> ArrayPlace:
        one = work.inputs[k]
        if not isinstance(one.seen, PutTogether):
            return self._sight(one.seen, window_extents(shape, made, one.window) if one.window else shape, one.dtype)
        whole, pieces = self._put(work.number, k)
        strides = dense(whole, one.dtype.itemsize)
        start = self._starts[one.seen.buffer]
        for (task, source, piece), (_, _, there) in zip(pieces, one.seen.pieces, strict=True):
            if there:
                continue
            at = start + sum([a * s for a, s in zip(piece.box.start, strides, strict=True)])
            target = ArrayPlace(ARENA, at, piece.box.shape, strides)
            if piece.origin is None:
                found = self._filled(piece.fill, piece.box.shape, one.dtype)
            else:
                leaf = self._leaf(task, source)
                seen = _along(piece.map.matrix, leaf.strides, len(piece.box.shape))
                first = sum([a * s for a, s in zip(piece.map(piece.box.start), leaf.strides, strict=True)])
                found = ArrayPlace(leaf.where, leaf.offset_bytes + first, piece.box.shape, seen, leaf.array)
            both = [self._array(found, one.dtype), self._array(target, one.dtype)]
            move = backend(COPIES).mover(*both, self._outline.threads)  # type: ignore[attr-defined]
            if move is None:
                raise _Otherwise
            self.calls.append(AgainCall(move, [found, target], work.number, arrays=both))
        return ArrayPlace(ARENA, start, whole, strides)

    def _call(self, work: TaskWork, places: Sequence[ArrayPlace], target: ArrayPlace) -> None:
        """Adds a call of code for any sizes."""
        arrays = [self._array(place, one.dtype) for place, one in zip(places, work.inputs, strict=True)]
        held = [array if place.where == THERE else None for place, array in zip(places, arrays, strict=True)]
        made = self._array(target, work.dtype)
        call, new = call_of(work.step, arrays, held, made, self._outline.threads)
        if call is None:
            raise _Otherwise
        given = [x if array is None else array for x, array in zip(arrays, new, strict=True)]
        self.held += given
        self.calls.append(AgainCall(call, [*places, target], work.number, arrays=[*given, made]))

    def _check(self, kernel: Any, given: Sequence[ArrayPlace]) -> None:
        """That what a kernel touches lies in the arena or in an object."""
        for place, (low, high) in zip(given, kernel.spans, strict=True):
            if place.where == THERE:
                continue
            least, most = (0, self.arena_bytes) if place.where == ARENA else self._reach(place.where)
            if place.offset_bytes + low < least or place.offset_bytes + high > most:
                raise _Otherwise

    def _reach(self, number: int) -> tuple[int, int]:
        """The bytes of an object, from its first element."""
        one = self.object(number)
        if one.flags.c_contiguous:
            return 0, one.nbytes
        low, high = np.lib.array_utils.byte_bounds(one)
        return low - address_of(one), high - address_of(one)


class AgainBinding:
    """What a run does for a graph, as `tileweave.lower.binding.TaskBinding`.

    Args:
        outline: of a plan of a graph of the same form.
        form: of the graph.
        arrays: for each source that every run brings, one that lies as it will.
    """

    python_steps = combined = in_columns = outputs = 0
    gathered_bytes = np.zeros(0, np.int64)

    def __init__(self, outline: Outline, form: GraphForm, arrays: Sequence[Array]) -> None:
        made = AgainCalls(outline, form, arrays, lambda shape, dtype: _like(shape, dense(shape, dtype.itemsize), dtype))
        self._constants = [form.order[place].data.array for place in outline.constant]
        self._arrays, self._held, self.arena_bytes = arrays, made.held, made.arena_bytes
        self.bound, self.first_result, self.results = tuple(range(len(arrays))), len(arrays), made.results
        native, segment = backend(COPIES).calls(), CallSegment(COPIES)
        self.calls: dict[str, Calls] = {COPIES: native}
        for kernel, places, number, addresses, own in made.calls:
            call = native.add(kernel, own) if addresses is None else cast("Any", native).add_at(kernel, addresses)
            for k, place in enumerate(places):
                if place.where >= 0:
                    slot = Slot(place.where, None, made.object(place.where))
                    segment.points.append((call, k, slot, place.offset_bytes))
            segment.calls.append(call)
            segment.tasks.append(number)
        self.apart = self._apart(outline, form)
        self.kernels, self.fixed = len(segment.calls), len(outline.fixed)
        self.found: list[Found] = [(segment.tasks[-1], segment)] if segment.calls else []

    @property
    def kept(self) -> list[Any]:
        """What has to stay alive."""
        return [*self._held, *self._constants]

    @property
    def bytes(self) -> int:
        """Of all that is kept between runs, but for the constants of the graph."""
        return sum([one.nbytes for one in self._held if isinstance(one, np.ndarray)])

    def wanted(self) -> list[Wanted]:
        """As `TaskBinding`."""
        return [
            *actions.wanted_of(self._arrays, False),
            *actions.wanted_of(self.results, True, self.first_result),
        ]

    def _apart(self, outline: Outline, form: GraphForm) -> Apart:
        """What must not share memory in a run."""
        read, fits = list[tuple[int, Array]](), dict[int, Array]()
        for number, held in enumerate(outline.sources):
            place = outline.numbers.get(held, -1)
            if place >= 0:
                fits[number] = self._arrays[place]
                read.append((place, self._arrays[place]))
            else:
                read.append((-1, form.order[held].data.array))
        lie = [(one.dtype, one.shape, one.strides) for one in self.results]
        over = [
            frozenset([k for k in may if (fits[k].dtype, fits[k].shape, fits[k].strides) == own])
            for may, own in zip(outline.over, lie, strict=True)
        ]
        return Apart(read, self.results, len(self._arrays), over)


def bind_again(outline: Outline, form: GraphForm, arrays: Sequence[Array]) -> AgainBinding | None:
    """What a run does for a graph of the form of an outline, on arrays that lie like these; None where a decision falls
    otherwise than for the plan that the outline is of.

    Args:
        outline: of a plan.
        form: of the graph.
        arrays: for each of `Outline.bound`.
    """
    if not _lie_as_expected(outline, form, arrays):
        return None
    try:
        return AgainBinding(outline, form, [_like(one.shape, one.strides, one.dtype) for one in arrays])
    except _Otherwise:
        return None


def run_again(outline: Outline, form: GraphForm, arrays: Sequence[Array]) -> tuple[list[Array], list[Resizable]] | None:
    """The results of a graph of the form of an outline, for which nothing is made ready that would serve another run,
    and the kernels that ran on slower code; None as `bind_again`, and where something else is called than kernels on
    addresses."""
    if any(work.programs is None for work in outline.works) or not _lie_as_expected(outline, form, arrays):
        return None
    try:
        made = AgainCalls(outline, form, arrays, empty, soon=True)
    except _Otherwise:
        return None
    if any(one.addresses is None or not hasattr(one.kernel, "run_at") for one in made.calls):
        return None
    try:
        for kernel, _, _, addresses, _ in made.calls:
            kernel.run_at(addresses)
    except BackendError:  # the run of a plan says of which step
        return None
    return made.results, [one.kernel for one in made.calls if not one.kernel.settled]


def _lie_as_expected(outline: Outline, form: GraphForm, arrays: Sequence[Array]) -> bool:
    """Whether kernels can read the arrays of a graph where they lie."""
    held = [form.order[place].data.array for place in outline.constant]
    for place, one in zip([*outline.bound, *outline.constant], [*arrays, *held], strict=True):
        if one.dtype is not form.order[place].type.dtype or regular(one) is not one:
            return False
    return True


def _there(array: Array) -> ArrayPlace:
    return ArrayPlace(THERE, address_of(array), array.shape, array.strides, array)


def _along(rows: Sequence[Sequence[int]], strides: Sequence[int], rank: int) -> tuple[int, ...]:
    """The strides of what is seen through a map."""
    found = [0] * rank
    for row, stride in zip(rows, strides, strict=True):
        for k, c in enumerate(row):
            if c:
                found[k] += c * stride
    return tuple(found)


_LINE = empty((1 << 16,), np.uint8)


def _like(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array that lies as another one, whose elements are never touched: it holds none of its memory."""
    return _at(address_of(_LINE), ArrayPlace(THERE, 0, shape, strides), dtype, _LINE)


class _Memory:
    """A stretch of memory as NumPy's array interface names it."""

    def __init__(self, interface: dict[str, Any], base: Array) -> None:
        self.__array_interface__, self.base = interface, base


def _at(address: int, place: ArrayPlace, dtype: np.dtype[Any], base: Array) -> Array:
    """An array of a type at an address, in the memory of another one."""
    plain = np.dtype(f"V{dtype.itemsize}")  # what has no name there is seen as what it is behind that
    about = {"shape": place.shape, "strides": place.strides, "typestr": plain.str, "version": 3}
    return np.asarray(_Memory({**about, "data": (address, False)}, base)).view(dtype)
