"""What a backend is: a value behind a small protocol, found by name. Nothing above this package imports one.

A backend is asked whether it has code for a TEIR program, makes that code, and makes arrays for results. Backends are
asked in turn, the one that was registered last first and the CPU's last, so a backend that is registered from outside
takes the programs that it says it supports and leaves the others.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from tileweave.backends.calls import NOWHERE, Apart, CallRow, Calls, Outcome, Point, PointColumns, PythonRow, Wanted
from tileweave.errors import BackendError
from tileweave.kept import lock_of_process
from tileweave.teir.ir.program import Invocation, Program

__all__ = [
    "ELEMENTS",
    "NOWHERE",
    "AnswersByKind",
    "Apart",
    "Arranged",
    "ArrangesConstants",
    "Backend",
    "CallRow",
    "Calls",
    "Compiled",
    "Decision",
    "FunctionKernel",
    "Moves",
    "Outcome",
    "Point",
    "PythonCalls",
    "PythonRow",
    "TakesSmall",
    "Tuning",
    "Wanted",
    "WritesOver",
    "backend",
    "backends",
    "primitives_text",
    "register",
    "unregister",
]

Array = np.ndarray[Any, Any]

ELEMENTS = 1 << 8
"""Work on fewer elements than this that maps or reduces them is NumPy's, which computes them in a microsecond or two:
compiling would not pay. A training step of the digits network with batch 32, whose losses are formed on 320 elements,
takes 0.13 ms with them compiled, and 0.5 with every step of them called from Python (bench/training.py)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What computes something, and why that.

    Args:
        kernel: what it does, such as ``zero, contraction``; empty where there is no kernel.
        reason: why this kernel was chosen, or why there is none.
        backend: name of the backend that has the kernel; empty where NumPy's definition computes it.
        offered: for each kind of device of the machines, what its backend would compute it with, or why nothing.

    Example:
        >>> print(Decision("exp", backend="cpu"), "|", Decision("exp", "fewer than 65536 elements"))
        cpu: exp | numpy: exp
    """

    kernel: str
    reason: str = ""
    backend: str = ""
    offered: tuple[Decision, ...] = ()

    def __str__(self) -> str:
        return f"{self.backend or 'numpy'}: {self.kernel or 'no kernel'}"


class Compiled(Protocol):
    """A compiled program; arrays come in the order of the program's tensors, scratch left out."""

    @property
    def about(self) -> str:
        """The processor and how much of it is used, for people."""

    def __call__(self, *arrays: Array) -> None:
        """Run on arrays that are checked first."""

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Run on arrays by the names of the program's tensors, checked first."""

    @property
    def run_on(self) -> Callable[..., int]:
        """Runs on arrays that are known to fit; false, and nothing is run, where `__call__` is needed after all."""

    def prepare(self, *arrays: Array) -> Callable[[], object]:
        """A function without arguments that runs on these arrays, which are checked now and kept alive."""

    def explain(self) -> str:
        """What was compiled."""


@runtime_checkable
class LooksAtArrays(Protocol):
    """A kernel that can look at its arrays itself."""

    def looking(self, wanted: Sequence[Wanted]) -> Callable[..., int] | None:
        """`run_on` for arrays that are what is wanted, false for other objects; None where there is no such thing."""


@runtime_checkable
class Resizable(Compiled, Protocol):
    """A kernel whose code may serve other sizes."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of its program's axes."""

    def own(self) -> Resizable | None:
        """The kernel that stays for these sizes; None while faster code is made elsewhere, which this asks for."""

    def run_once(self, *arrays: Array) -> int:
        """As `run_on`, for sizes that may not come again: nothing is made ready for further calls."""

    def resized(self, sizes: Sequence[tuple[int, tuple[int, ...]]], *, soon: bool = False) -> Resizable | None:
        """The kernel of the same program for other sizes, where it can be had at once.

        Args:
            sizes: of every axis: the extent, from 2 on, and the bytes between neighbours in every tensor.
            soon: whether a slower one will do, see `own`.
        """


@runtime_checkable
class Arranged(Compiled, Protocol):
    """A kernel that reads constant arrays in an order of its own."""

    def arranged(self, arrays: Sequence[Array]) -> list[Array]:
        """The arrays to run on, in the order of `__call__`: constant ones may be new, in the kernel's order."""


@runtime_checkable
class WritesOver(Compiled, Protocol):
    """A kernel whose output may be the very memory of an operand."""

    def writes_over(self) -> frozenset[int]:
        """The operands that may lie where the output does, by their place among the arrays."""


@runtime_checkable
class AnswersByKind(Protocol):
    """A backend that takes a program of `ELEMENTS` or more, or leaves it, whatever the extents of its axes."""

    by_kind: Literal[True]


@runtime_checkable
class TakesSmall(Protocol):
    """A backend that leaves programs of few elements to NumPy, but has code for them."""

    def supports_small(self, program: Program) -> Decision:
        """As `Backend.supports`, however few the elements."""


@runtime_checkable
class ArrangesConstants(Protocol):
    """A backend that may have constant operands arranged once, before the first run; not every backend is one."""

    def compile_constant(self, program: Program, constant: Collection[str], *, threads: int | None = None) -> Arranged:
        """The program's kernel, to be run on what its `arranged` makes of the arrays of constant tensors."""


@runtime_checkable
class Moves(Protocol):
    """A backend that copies arrays among the calls of its kernels; not every backend is one."""

    def mover(self, source: Array, out: Array, threads: int) -> Any | None:
        """What `Calls.add` takes, with the arrays (source, out), to copy arrays of these layouts; None: nothing."""


@runtime_checkable
class CallsOperators(Protocol):
    """A backend with code for operators that no program holds, among the calls of its kernels; not every one has."""

    def caller(self, operator: str, how: Mapping[str, Any], arrays: Sequence[Array], threads: int) -> Any | None:
        """What `Calls.add` takes, with arrays like these, to compute an operator as its definition does; None: nothing.

        A call that meets a place outside of an array ends as `Outcome.FAULT`. The result may be the very memory of the
        first array where the operator only changes some elements of that.

        Args:
            operator: its name.
            how: its parameters, and as ``output`` which of its outputs is wanted.
            arrays: the inputs, and the result behind them.
            threads: that it may use.
        """


@runtime_checkable
class ArrangesState(Protocol):
    """What runs a recurrent layer, for `Calls.add`."""

    def arranged(self, u: Array, batch: int) -> Array:
        """The weights of the state in the order in which they are read, to be given in their place."""


@runtime_checkable
class OfDevice(Protocol):
    """A backend whose kernels run on a device, which need not be at hand."""

    @property
    def missing(self) -> str:
        """Why nothing runs on such a device here; empty where one is at hand."""


class Tuning(Protocol):
    """The outcome of tuning."""

    @property
    def program(self) -> Program:
        """The program that won."""

    @property
    def kernel(self) -> Compiled:
        """The winner, compiled."""

    def explain(self) -> str:
        """What was tried, and why one won."""


class Backend(Protocol):
    """What makes code for TEIR programs."""

    @property
    def name(self) -> str:
        """Its name in the registry."""

    def supports(self, program: Program) -> Decision:
        """Whether it takes the program: a decision with its name and the kernel, or with neither and the reason.

        It is asked with dense operands of the whole operation, once; all shards are computed alike.
        """

    def compile(self, program: Program, *, threads: int | None = None, merge: bool = True) -> Compiled:
        """The program's kernel.

        Raises:
            BackendError: there is no code for it.
        """

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Callable[[], Array]:
        """A function that makes arrays for results, in row-major order, as its kernels write them fastest."""

    def calls(self) -> Calls:
        """An empty list of prepared calls."""

    def tune(self, program: Program, *, threads: int | None = None, **limits: Any) -> Tuning:
        """The best of several ways to compute the program, found by timing and remembered."""


class FunctionKernel:
    """A kernel that is one Python function of the program's arrays.

    Args:
        program: whose tensors the arrays are, in order.
        function: called with the arrays; it writes what the program writes.
        text: what `explain` says.
    """

    def __init__(self, program: Program, function: Callable[..., object], text: str = "") -> None:
        self.program = program
        self._function = function
        self._text = text

    @property
    def about(self) -> str:
        """The processor and how much of it is used, for people."""
        return "Python"

    def __call__(self, *arrays: Array) -> None:
        """Run the function."""
        wanted = sum(spec.role != "scratch" for spec in self.program.tensors)
        if len(arrays) != wanted:
            problem = f"{len(arrays)} arrays are given"
            raise BackendError(f"{self.program.name}(..)", problem, legal=f"one per tensor: {wanted}")
        self._function(*arrays)

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Run the function on arrays by name."""
        self(*(arrays[spec.name] for spec in self.program.tensors if spec.role != "scratch"))

    def run_on(self, *arrays: Array) -> int:
        """Run the function."""
        self(*arrays)
        return 1

    def prepare(self, *arrays: Array) -> Callable[[], object]:
        """The function with these arrays."""
        return lambda: self(*arrays)

    def explain(self) -> str:
        """The text that was given."""
        return self._text


class PythonCalls:
    """Prepared calls of kernels that are called from Python."""

    def __init__(self) -> None:
        self._calls: list[tuple[Compiled, list[Array]]] = []

    def add(self, kernel: Compiled, arrays: Sequence[Array]) -> int:
        """A call, by number."""
        self._calls.append((kernel, list(arrays)))
        return len(self._calls) - 1

    def sequence(
        self,
        calls: Sequence[int],
        points: Sequence[Point | PointColumns] = (),
        wanted: Sequence[Wanted] = (),
        apart: Apart = NOWHERE,
    ) -> CallRow:
        """These calls one after the other."""
        chosen = [self._calls[call] for call in calls]

        def point(one: Point, array: Array) -> None:
            self._calls[one.call][1][one.position] = array

        def run() -> None:
            for kernel, arrays in chosen:
                kernel(*arrays)

        own = [one for one in points if isinstance(one, Point)]  # it has no columns
        return PythonRow(point, run, own, wanted, apart)


# ---- the registry ---------------------------------------------------------------------------------------------------

_MODULES = {"cpu": "tileweave.backends.cpu.backend"}
"""Backends of this package and the module whose BACKEND each is, loaded on first use."""
_OF_DEVICES = {"sm_": "tileweave.backends.cuda.offered"}
"""Beginnings of the names of kinds of devices, and the module whose ``of_device`` makes their backends."""
_REGISTERED: dict[str, Backend] = {}  # from outside, the last first
_OUTSIDE: tuple[Backend, ...] = ()
_LOADED: dict[str, Backend] = {}
_LOCK = lock_of_process(threading.RLock)


def register(backend: Backend) -> None:
    """Have a backend asked before those that were registered earlier.

    Raises:
        BackendError: a backend has its name already.
    """
    global _OUTSIDE
    with _LOCK:
        if backend.name in _REGISTERED or backend.name in _MODULES:
            problem = f"there is a backend {backend.name!r} already"
            raise BackendError("register(backend)", problem, legal=f"a name other than {_names()}")
        others = dict(_REGISTERED)
        _REGISTERED.clear()
        _REGISTERED.update({backend.name: backend, **others})
        _OUTSIDE = tuple(_REGISTERED.values())


def unregister(name: str) -> None:
    """Forget a backend that was registered; what it compiled stays usable.

    Raises:
        BackendError: none of that name was registered.
    """
    global _OUTSIDE
    with _LOCK:
        if name not in _REGISTERED:
            problem = f"no backend {name!r} was registered"
            raise BackendError(f"unregister({name!r})", problem, legal=", ".join(_REGISTERED) or "none is")
        del _REGISTERED[name]
        _OUTSIDE = tuple(_REGISTERED.values())


def backend(name: str = "cpu") -> Backend:
    """The backend of a name, or of a kind of device such as ``sm_90a``.

    Raises:
        BackendError: there is none; the error lists the names.

    Example:
        >>> backend("cpu").name
        'cpu'
    """
    found = _REGISTERED.get(name) or _LOADED.get(name)
    if found is None:
        module = next((path for start, path in _OF_DEVICES.items() if name.startswith(start)), None)
        if module is not None:
            with _LOCK:
                return _LOADED.setdefault(name, importlib.import_module(module).of_device(name))
        if name not in _MODULES:
            raise BackendError(f"backend({name!r})", "there is no such backend", legal=_names())
        with _LOCK:
            found = _LOADED[name] = importlib.import_module(_MODULES[name]).BACKEND
    return found


def registered() -> tuple[Backend, ...]:
    """The backends from outside; the same object until there are others."""
    return _OUTSIDE


def backends() -> tuple[Backend, ...]:
    """All backends, in the order in which they are asked."""
    with _LOCK:
        return (*_REGISTERED.values(), *map(backend, _MODULES))


def _names() -> str:
    return ", ".join([*_REGISTERED, *_MODULES])


def primitives_text(program: Program) -> str:
    """The operations of a program in the order of its invocations, in words.

    Example:
        >>> from tileweave.layout import strided
        >>> from tileweave.teir import Operand, emit_contraction
        >>> row, square = (Operand(strided((2,), (1,)), "FP32"), Operand(strided((2, 2), (2, 1)), "FP32"))
        >>> primitives_text(emit_contraction("ij,j->i", [square, row], row))
        'zero, contraction'
    """
    operations = {primitive.id: primitive.operation for primitive in program.primitives}
    done = [operations[node.primitive] for node in program.nodes if isinstance(node, Invocation)]
    return ", ".join(re.sub("(?<=[a-z])(?=[A-Z][a-z])", " ", operation).lower() for operation in done)
