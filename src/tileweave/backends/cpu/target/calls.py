"""Calls of kernels on known arrays, run by one native loop: no Python between two kernels.

Each kernel has an environment, which names its operands; calls that differ in these alone share it, and all calls of a
list share one working memory, since they run one after the other. Operands that change from run to run are taken from
array objects by native code, which first looks whether the objects are what the kernels were bound for.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tileweave.backends.calls import NOWHERE, Apart, CallRow, Keyed, Point, PointColumns, PythonRow, TimedCalls, Wanted
from tileweave.backends.cpu.target.jit import Code
from tileweave.backends.cpu.target.native import code
from tileweave.backends.host import OBJECT_DATA, Block, address_of, interface_address, span

Array = np.ndarray[Any, Any]
IntArray = NDArray[np.int64]
_WORD = struct.Struct("=q")

_ALIGNED, _WRITEABLE = 0x0100, 0x0400
"""NumPy's flags of an array."""
_BUSY = 8
"""The word of a row's table that is 0 while nobody runs it."""
_FASTCALL = 0x0080
"""Python's flag of a builtin that takes an array of arguments."""


class _Method(ctypes.Structure):
    """Python's description of a builtin function."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_RUNS = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_FromLong")
_TAKES = ("Py_IncRef", "Py_DecRef", "PyDict_Size", "PyDict_GetItem", "PyObject_CallNoArgs")


@functools.cache
def _python(names: tuple[str, ...] = _RUNS) -> tuple[int, ...]:
    """The addresses of functions of this interpreter, which native code calls."""
    return tuple(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names)


@functools.cache
def _numpy_empty() -> int:
    """The address of NumPy's `PyArray_Empty`, whose place in the table of its C interface is the same in all versions:
    by way of `numpy.empty` it takes twice the time."""
    home = import_module("numpy._core._multiarray_umath" if hasattr(np, "_core") else "numpy.core._multiarray_umath")
    find = ctypes.pythonapi.PyCapsule_GetPointer
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.cast(find(home._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    return table[_PYARRAY_EMPTY] or 0


_PYARRAY_EMPTY = 184


@functools.cache
def _new_builtin() -> Any:
    """What makes a builtin of its description, what it is called on, and what lives as long as it."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    return make


def _builtin(name: str, head: Any, kept: object) -> Callable[..., Any]:
    """A function of this module's code as a builtin of Python, for a ctypes array; ``kept`` lives as long as it."""
    home = code()  # two threads that ask first may be given one each
    method = _Method(name.encode(), home.addresses[name], _FASTCALL, None)
    made: Callable[..., Any] = _new_builtin()(ctypes.addressof(method), head, (method, home, kept))
    return made


def _takes_objects() -> bool:
    """Whether this interpreter lays arrays, ctypes arrays and calls of builtins out as native code expects."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return address_of is not interface_address and gil and _lies_as_expected()


@functools.cache
def _lies_as_expected() -> bool:
    sample = _words([7])
    return ctypes.c_void_p.from_address(id(sample) + OBJECT_DATA).value == ctypes.addressof(sample)


def new_busy() -> Any:
    """A word that is 0 while nobody is in a call; another number forbids calls."""
    return _words([0])


_IN_TURN: dict[int, tuple[Block, Any]] = {}
"""Working memory that direct calls of several kernels take in turn, by size, and the word that says whether it is."""


def taken_in_turn(size_bytes: int) -> tuple[int, Any]:
    """The address of working memory of at least this size, and the word of the direct calls that take it in turn."""
    size = 1 << (size_bytes - 1).bit_length()
    found = _IN_TURN.get(size) or _IN_TURN.setdefault(size, (Block(size), new_busy()))
    return found[0].address, found[1]


if hasattr(os, "register_at_fork"):  # another thread of the parent may have been in a call
    os.register_at_fork(after_in_child=_IN_TURN.clear)


def direct_call(
    kernel: Code,
    name: str,
    block: Block,
    objects_at: int,
    count: int,
    wanted: Sequence[Wanted],
    busy: Any,
    kept: object,
) -> Callable[..., int] | None:
    """A builtin that runs a kernel on array objects, in an environment of its own, without Python between.

    Where it is running already, or what is written shares bytes with another array, nothing is run and it says 0.

    Args:
        kernel: its code.
        name: of its function on array objects.
        block: the environment, which the builtin keeps.
        objects_at: where the environment names the objects, in bytes.
        count: how many there are.
        wanted: what they have to be, where the builtin is to look: it says 0 to others.
        busy: its `new_busy`, or that of the memory which it takes in turn with others.
        kept: kept alive as well.

    Returns:
        The builtin; None where this interpreter lays objects out otherwise.
    """
    if not _takes_objects():
        return None
    words = (
        ctypes.addressof(busy),
        count,
        block.address + objects_at,
        block.address,
        kernel.addresses[name],
        *_python(),
    )
    looked, extents = _looked(wanted)
    looks = _words([id(np.ndarray), len(wanted), ctypes.addressof(looked)])
    head = _words([*words, ctypes.addressof(looks) if wanted else 0])
    return _builtin("direct", head, (kernel, code(), block, looks, looked, extents, busy, kept))


class Bound:
    """A kernel with its environment.

    Args:
        code: the kernel, its function ``entry``; it is there when the first row of calls is made.
        env_bytes: of the environment.
        work_bytes: of the working memory that it needs.
        positions: where the environment names each operand, in bytes.
    """

    def __init__(self, code: Code, env_bytes: int, work_bytes: int, positions: Sequence[int]) -> None:
        self.code = code
        self.work_bytes = work_bytes
        self.env = ctypes.create_string_buffer(env_bytes + 64)
        self._shift = -ctypes.addressof(self.env) % 64
        self.env = (ctypes.c_char * env_bytes).from_buffer(self.env, self._shift)
        self.address = ctypes.addressof(self.env)
        self.positions = tuple(positions)
        self.place: Callable[[int], None] = lambda memory: None
        """Writes where the working memory begins."""
        self.fault = -1
        """Where the environment has a word that the call sets where it did something else; -1: nowhere."""
        self.check: Callable[[Sequence[int]], None] | None = None
        """Refuses addresses of the operands that the kernel cannot run on; None: arrays are asked for."""
        self.check_columns: Callable[[IntArray], Sequence[int]] | None = None
        """The rows of addresses that `check` has to look at; None: it refuses none."""

    def write(self, position: int, value: int) -> None:
        """Write a word of the environment."""
        _WORD.pack_into(self.env, position, value)


class BindsArrays(Protocol):
    """A kernel of this backend."""

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """The kernel on these arrays."""

    def bind_at(self, addresses: Sequence[int]) -> Bound:
        """As `bind`, on arrays that are known to fit, at these addresses."""


class NativeCalls:
    """Prepared calls; see `tileweave.backends.calls.Calls`.

    Calls that are alike share the environment of their kernel: what each has of its own is a row of addresses of its
    operands, which the native loop writes there before it.
    """

    def __init__(self) -> None:
        self._kernels: list[Bound] = []
        self._kernel_of, self._own = array("q"), array("q")
        """Per call the kernel, by number, and where its own addresses are; 0: in the environment of its kernel."""
        self._wanted: dict[int, tuple[array[int], array[int]]] = {}  # call -> calls like it, and their addresses
        self._tables: list[IntArray] = []  # that hold rows of addresses
        self._memory: Block | None = None

    def add(self, kernel: BindsArrays, arrays: Sequence[Array]) -> int:
        """A call, by number; the arrays are checked."""
        return self._with(kernel.bind(arrays))

    def add_at(self, kernel: BindsArrays, addresses: Sequence[int]) -> int:
        """As `add`, on arrays at these addresses that are known to fit."""
        return self._with(kernel.bind_at(addresses))

    def _with(self, bound: Bound) -> int:
        if self._memory is None or self._memory.size < bound.work_bytes:
            self._memory = Block(max(4096, -(-bound.work_bytes // 4096) * 4096))
            for one in self._kernels:
                one.place(self._memory.address)
        bound.place(self._memory.address)
        self._kernels.append(bound)
        return self._new(len(self._kernels) - 1, [0])

    def _new(self, kernel: int, own: Sequence[int]) -> int:
        """Adds calls of a kernel; the first of them."""
        first = len(self._own)
        self._own.extend(own)
        self._kernel_of.extend([kernel] * len(own))
        return first

    def _bound(self, call: int) -> Bound:
        return self._kernels[self._kernel_of[call]]

    def add_like(self, call: int, addresses: Sequence[int]) -> int | None:
        """A call of an earlier one's kernel; see `tileweave.backends.calls.AddsAlike`."""
        bound = self._bound(call)
        if bound.check is None or bound.fault >= 0:
            return None
        bound.check(addresses)
        number = self._new(self._kernel_of[call], [0])
        numbers, rows = self._wanted.setdefault(call, (array("q"), array("q")))
        numbers.append(number)
        rows.extend(addresses)
        return number

    def add_columns(self, call: int, moved_bytes: IntArray) -> IntArray | None:
        """Calls like an earlier one; see `tileweave.backends.calls.AddsAlike`."""
        bound = self._bound(call)
        if bound.check is None or bound.fault >= 0:
            return None
        addresses = moved_bytes + self._addresses(call)
        if bound.check_columns is not None:
            for row in bound.check_columns(addresses):
                bound.check(addresses[row].tolist())
        self._apart(call)
        first = self._new(self._kernel_of[call], self._rows(addresses))
        return np.arange(first, len(self._own))

    def _rows(self, addresses: IntArray) -> range:
        """Where rows of addresses are, from now on."""
        table = np.ascontiguousarray(addresses)
        self._tables.append(table)
        begin, step = address_of(table), table.itemsize * table.shape[1]
        return range(begin, begin + len(table) * step, step) if step else range(begin, begin + len(table))

    def _apart(self, call: int) -> None:
        """Gives a call a row of its own, since others take its environment in turn with it."""
        if not self._own[call]:
            self._own[call] = self._rows(self._addresses(call)[None])[0]

    def _addresses(self, call: int) -> IntArray:
        """Where the operands of a call lie."""
        at = (int(self.operands([call], k)[0]) for k in range(len(self._bound(call).positions)))
        return np.array([ctypes.c_int64.from_address(one).value for one in at], np.int64)

    def operands(self, calls: Sequence[int] | IntArray, position: int) -> IntArray:
        """Where the address of an operand is named; see `tileweave.backends.calls.AddsAlike`."""
        kernels, own, number = self._chosen(calls)
        shared = np.array([one.address + one.positions[position] for one in kernels], np.int64)[number]
        return np.where(own, own + 8 * position, shared)

    def _named(self, call: int, position: int) -> int:
        """The same of one call."""
        if self._wanted or self._own[call]:
            return int(self.operands([call], position)[0])
        bound = self._bound(call)
        return bound.address + bound.positions[position]

    def _chosen(self, calls: Sequence[int] | IntArray) -> tuple[list[Bound], IntArray, IntArray]:
        """(kernels, per call where its own addresses are, and the place of its kernel among these)."""
        for numbers, rows in self._wanted.values():
            table = np.array(rows, np.int64).reshape(len(numbers), -1)
            for one, at in zip(numbers, self._rows(table), strict=True):
                self._own[one] = at
        firsts = [call for call in self._wanted if not self._own[call]]
        self._wanted.clear()
        for call in firsts:
            self._apart(call)
        if len(calls) < _FEW and not any(self._own[call] for call in calls):
            places = {kernel: k for k, kernel in enumerate(dict.fromkeys([self._kernel_of[call] for call in calls]))}
            number = np.array([places[self._kernel_of[call]] for call in calls], np.int64)
            return [self._kernels[k] for k in places], np.zeros(len(number), np.int64), number
        chosen = np.asarray(calls, np.int64)
        found, number = np.unique(np.array(self._kernel_of, np.int64)[chosen], return_inverse=True)
        own = np.array(self._own, np.int64)[chosen]
        return [self._kernels[k] for k in found.tolist()], own, number.reshape(-1)

    def _row(
        self, calls: Sequence[int], pointed: IntArray, wanted: Sequence[Wanted] = (), apart: Apart = NOWHERE
    ) -> NativeRow:
        return NativeRow(*self._chosen(calls), pointed, wanted, apart, self)

    def sequence(
        self,
        calls: Sequence[int],
        points: Sequence[Point | PointColumns] = (),
        wanted: Sequence[Wanted] = (),
        apart: Apart = NOWHERE,
    ) -> CallRow:
        """These calls in one native loop."""
        pointed = self._pointed(points)
        if _takes_objects():
            return self._row(calls, pointed, wanted, apart)
        head = self._row(calls, _NO_POINTS, (), apart)
        run, address = code().function("run", None, ctypes.c_void_p), ctypes.addressof(head.head)
        faulted = code().function("faulted", ctypes.c_int64, ctypes.c_void_p)

        def alone(_kept: object = head) -> int:
            run(address)
            return int(faulted(address))

        rows = [Point(at, 0, number, offset, None) for number, offset, at in pointed.tolist()]
        write = lambda one, array: _write(one.call, address_of(array) + one.offset_bytes)  # noqa: E731
        return PythonRow(write, alone, rows, wanted, apart)

    def timed(self, calls: Sequence[int]) -> TimedCalls | None:
        """These calls, some after the other; see `tileweave.backends.calls.TimesCalls`."""
        clock = _clock()
        return NativeTimes(self._row(calls, _NO_POINTS), clock) if clock else None

    def _pointed(self, points: Sequence[Point | PointColumns]) -> IntArray:
        """(object, bytes behind its first element, where an environment names the operand); a row per operand."""
        words = list[int]()
        columns = list[IntArray]()
        for one in points:
            if isinstance(one, Point):
                words += one.number, one.offset_bytes, self._named(one.call, one.position)
            else:
                columns.append(np.stack([one.numbers, one.offset_bytes, one.places], 1))
        own = np.array(words, np.int64).reshape(-1, 3)
        return np.concatenate([own, *columns]) if columns else own


class NativeRow:
    """Calls in a row: see `tileweave.backends.calls.CallRow`.

    Args:
        kernels: that are called.
        own: per call where the addresses of its operands are, if not in the environment of its kernel.
        number: per call the place of its kernel among these.
        pointed: (object, bytes behind its first element, the address that takes the operand's), a row per operand.
        wanted: as `Calls.sequence`.
        apart: as `Calls.sequence`.
        kept: kept alive.
    """

    __slots__ = ("_kept", "again", "head", "run")

    def __init__(
        self,
        kernels: Sequence[Bound],
        own: IntArray,
        number: IntArray,
        pointed: IntArray,
        wanted: Sequence[Wanted],
        apart: Apart,
        kept: object,
    ) -> None:
        about = [(one.code.addresses["entry"], one.address, one.fault) for one in kernels]
        entries, envs, where = np.array(about, np.int64).reshape(-1, 3)[number].T
        named, lists = list[Any](), np.zeros(len(own), np.int64)
        if own.any():
            named = [_words([len(one.positions), *one.positions]) for one in kernels]
            lists = np.where(own, np.array([ctypes.addressof(one) for one in named], np.int64)[number], 0)
        rows = _table(np.array([entries, envs, lists, own], np.int64).T)
        looked, extents = _looked(wanted)
        objects = 1 + max([about.number for about in wanted] + pointed[:, :1].max(0, initial=-1).tolist(), default=-1)
        tables = ((len(wanted), looked), (len(pointed), _table(pointed)), (len(own), rows))
        words = [word for count, table in tables for word in (count, ctypes.addressof(table))]
        spans = _spans(apart)
        faults = _table((envs + where)[where >= 0])
        last = int((where >= 0).sum()), ctypes.addressof(faults)
        self.head = _words([id(np.ndarray), *words, ctypes.addressof(spans[0]), 0, objects, *_python(), *last])
        self._kept = (tables, extents, kept, code(), spans, faults, named)
        self.run, self.again = (_builtin(name, self.head, self._kept) for name in ("call", "again"))

    @property
    def running(self) -> bool:
        """As `tileweave.backends.calls.CallRow`."""
        return bool(self.head[_BUSY])

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """As `tileweave.backends.calls.CallRow`."""
        mine = bool(code().function("claim", ctypes.c_int64, ctypes.c_void_p)(ctypes.addressof(self.head)))
        try:
            yield mine
        finally:
            if mine:
                self.head[_BUSY] = 0

    def keyed(self, keys: Sequence[object], new: Callable[[], Array]) -> Keyed:
        """As `tileweave.backends.calls.CallRow`: one native call that takes the objects out of a dict."""
        rows = _words([*map(id, keys)])
        plain = isinstance(new, partial) and new.func is np.empty
        shape, kind = new.args if isinstance(new, partial) and plain else ((), None)
        extents = _words(shape)
        made = id(kind), len(shape) if plain else -1, ctypes.addressof(extents), _numpy_empty() if plain else 0
        words = ctypes.addressof(self.head), len(keys), ctypes.addressof(rows), id(new), id(None), *_python(_TAKES)
        head = _words([*words, *made, id(dict)])
        return _builtin("keyed", head, (self.head, self._kept, tuple(keys), rows, new, extents))


class NativeTimes:
    """Calls with a look at the clock after each: see `tileweave.backends.calls.TimedCalls`.

    Args:
        row: the calls.
        clock: the address of the function that looks.
    """

    def __init__(self, row: NativeRow, clock: int) -> None:
        self._row, self._clock = row, clock
        words = (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        self._run = code().function("timed", None, ctypes.c_void_p, *words)
        self._faulted = code().function("faulted", ctypes.c_int64, ctypes.c_void_p)

    def run(self, low: int, high: int) -> list[float] | None:
        """As `TimedCalls`."""
        head, times = ctypes.addressof(self._row.head), np.zeros((high - low, 2), np.int64)
        self._run(head, low, high, self._clock, time.CLOCK_MONOTONIC, address_of(times))
        return None if self._faulted(head) else (times[:, 0] + times[:, 1] * 1e-9).tolist()


@functools.cache
def _clock() -> int:
    """The address of the function that `time.perf_counter` asks; 0 where that is another than POSIX has."""
    if time.get_clock_info("perf_counter").implementation != "clock_gettime(CLOCK_MONOTONIC)":
        return 0
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0


_NO_POINTS = np.zeros((0, 3), np.int64)
_FEW = 128
"""Calls and points of which a list is sooner gone through than a column is made."""


def _looked(wanted: Sequence[Wanted]) -> tuple[Any, Any]:
    """The table of what objects have to be, and the one of their extents and strides, which it names."""
    extents = _words([x for about in wanted for both in zip(about.shape, about.strides, strict=True) for x in both])
    looks, at = list[int](), ctypes.addressof(extents)
    for about in wanted:
        flags = _ALIGNED * about.aligned | _WRITEABLE * about.written
        looks += (about.number, id(about.dtype), len(about.shape), at, flags)
        at += 16 * len(about.shape)
    return _words(looks), extents


def _spans(apart: Apart) -> tuple[Any, ...]:
    """The table of what has to lie apart, and the tables that it names."""
    alike = [(k, array) for k, array in enumerate(apart.results) if array.size]
    reads = [(k, number, array) for k, (number, array) in enumerate(apart.sources) if array.size]
    places = [*((k + apart.first, array) for k, array in alike), *((number, array) for _, number, array in reads)]
    bounds = [span(array) for _, array in places]
    moving = [
        word
        for place, ((number, array), (first, _)) in enumerate(zip(places, bounds, strict=True))
        if number >= 0
        for word in (place, number, first - address_of(array))
    ]
    over = (ctypes.c_int8 * max(1, len(alike) * len(places)))()
    for row, (k, _) in enumerate(alike):
        for column, (source, _, _) in enumerate(reads, len(alike)):
            over[row * len(places) + column] = source in apart.over[k]
    rows, starts = _words(moving), _words([first for first, _ in bounds])
    lengths = _words([stop - first for first, stop in bounds])
    counts = len(moving) // 3, ctypes.addressof(rows), len(alike), len(places)
    table = _words([*counts, *map(ctypes.addressof, (starts, lengths, over))])
    return table, rows, starts, lengths, over


def _words(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def _table(rows: IntArray) -> Any:
    """Rows of words as native code reads them."""
    made = (ctypes.c_int64 * max(1, rows.size))()
    np.frombuffer(memoryview(made), np.int64)[: rows.size] = rows.ravel()
    return made


def _write(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value
