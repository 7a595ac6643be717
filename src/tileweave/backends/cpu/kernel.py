"""Compiled programs: what `compile` returns, and how arrays are checked before machine code sees them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import struct
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.calls import Wanted
from tileweave.backends.cpu.checks import ArrayChecks, pairs_of
from tileweave.backends.cpu.direct.arrange import Ordered, arranged_once, reordered
from tileweave.backends.cpu.direct.cut import Packing
from tileweave.backends.cpu.direct.match import match
from tileweave.backends.cpu.followed import CallPlaces, FollowedText, find, keep, numbers_with, write
from tileweave.backends.cpu.kinds import Family, FoundCode, Size, Variant, family_of
from tileweave.backends.cpu.memory import Span, rounded, scratch_offsets
from tileweave.backends.cpu.nest import ENV_WORDS, Nest, emit_program, written
from tileweave.backends.cpu.target.calls import Bound, direct_call, new_busy, taken_in_turn
from tileweave.backends.cpu.target.jit import compile_ir, release
from tileweave.backends.cpu.target.later import later
from tileweave.backends.cpu.target.settings import DEFAULT, Settings, check_settings
from tileweave.backends.cpu.target.target import Target, usable
from tileweave.backends.cpu.target.threads import pool
from tileweave.backends.host import Block, address_of, arena, interface_address, thread_count
from tileweave.errors import BackendError
from tileweave.index.sizes import Table
from tileweave.kept import cached_property, keep_last, lock_of_process
from tileweave.teir.ir.dtypes import numpy_dtype
from tileweave.teir.ir.form import kind_of, numbers_of, with_numbers
from tileweave.teir.ir.program import Program
from tileweave.teir.ir.verify import verify
from tileweave.teir.merged.form import Merged
from tileweave.teir.merged.merge import merged
from tileweave.teir.merged.order import may_alias
from tileweave.teir.merged.text import show

Array = NDArray[Any]


class CpuKernel:
    """A program as one native function.

    Call it with one array per tensor that is not scratch, in the program's order. The address of an array's first
    element is the tensor's base; the program alone says which bytes are touched, and all of them must lie in the
    memory of the array that owns the data. The call releases the GIL; kernels may be called from several threads.

    An output may be the very same memory as an input of the same strides (in place); any other overlap is refused.
    """

    def __init__(self, form: Merged | None, nest: Nest, variant: Variant, family: Family | None, how: _How) -> None:
        program = how.program
        self._own: list[CpuKernel] | None = None
        self.settled = True
        """Whether it runs on code of its own kind of blocks; else on what serves until that is made."""
        self.text: FollowedText | None = None
        """For which sizes its code is, where that was recorded."""
        self._key: Hashable = None
        """By what such code is found."""
        self._like: CpuKernel | None = None
        """By which its code is found again; held, since it is known while it lives."""
        self.threads = how.threads
        self.target = how.target
        self._how = how
        self._family = family
        self._packings: Mapping[str, Packing | Ordered] = nest.packings
        self._tables = nest.tables  # held: code knows where the tables lie
        self._program: Program | None = program
        self._over: frozenset[int] | None = None
        self._numbers: Sequence[float] = ()
        self._plan = show(form, lambda op: nest.notes.get(op, ())) if form is not None else ""
        extents = nest.bounds
        self._specs = [spec for spec in program.tensors if spec.role != "scratch"]
        outputs = written(program)
        self._given = {name: extents[name] for name in nest.packings}
        """The bytes that are read of arrays before they are arranged."""
        extents = {**extents, **{name: (0, packing.size_bytes) for name, packing in nest.packings.items()}}
        self._spans: Sequence[Span] = [extents.get(spec.name, (0, 0)) for spec in self._specs]
        wanted = [
            (spec.name, numpy_dtype(spec.dtype), spec.name in outputs, low, high)
            for spec, (low, high) in zip(self._specs, self._spans, strict=True)
        ]
        self._checks_of: Callable[[], ArrayChecks] = functools.partial(
            ArrayChecks, tuple(wanted), pairs_of([one[2] for one in wanted])
        )
        self._head = struct.Struct(f"={ENV_WORDS}q")
        at = {spec.name: self._head.size + 8 * k for k, spec in enumerate(program.tensors)}
        self._positions = [at[spec.name] for spec in self._specs]
        self._scratch_at = {spec.name: at[spec.name] for spec in program.tensors if spec.role == "scratch"}
        self._bases = struct.Struct(f"={len(program.tensors)}q")
        self._objects = struct.Struct(f"={len(self._specs)}q")
        self._objects_at = self._head.size + self._bases.size
        self._sizes_at = self._objects_at + self._objects.size
        table = nest.sizes.table() if nest.sizes else ()
        self._scratch, end = scratch_offsets(program, extents, rounded(self._sizes_at + 8 * len(table)))
        self._arrange(variant, table, end, nest.shared_bytes, nest.thread_bytes)

    def _arrange(self, variant: Variant, table: tuple[int, ...], end: int, shared: int, per_thread: int) -> None:
        """What differs between kernels of one program for several sizes; working memory begins at ``end``."""
        self._variant = variant
        self._table = table
        self._sizes = _words(len(table))
        self._shared_at = end
        self._thread_at = rounded(end + shared)
        self._thread_bytes = rounded(per_thread)
        self._block_bytes = self._thread_at + self._thread_bytes * self.threads
        self._idle: list[Block] = []
        for known in ("run_on", "_entry", "_entry_objects", "_checks"):
            self.__dict__.pop(known, None)  # of the kernel that this one is made from
        self._directs: list[Any] = []
        _LIVE.add(self)

    @property
    def program(self) -> Program:
        """What is computed."""
        if self._program is None:
            self._program = with_numbers(self._how.program, self._numbers)
        return self._program

    def wait(self) -> None:
        """Return when the code is there, or raise what LLVM says against it."""
        _ = self._variant.code.addresses

    @property
    def source(self) -> str:
        """The code as LLVM reads it."""
        return self._variant.code.source

    @property
    def from_cache(self) -> bool:
        """Whether the object was read from disk."""
        return self._variant.code.from_cache

    @cached_property
    def _entry(self) -> Any:
        """The function on addresses, which waits until the code is there."""
        return self._variant.function("entry", None, ctypes.c_void_p)

    @cached_property
    def _entry_objects(self) -> Any:
        """The function on array objects."""
        return self._variant.function("entry_objects", ctypes.c_int64, ctypes.c_void_p)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the program's axes."""
        return tuple(str(axis.id) for axis in self._how.program.axes)

    @cached_property
    def _checks(self) -> ArrayChecks:
        """What its arrays have to be; made when they are looked at, as those of a further shape are not."""
        return self._checks_of()

    def resized(self, sizes: Sequence[Size], *, soon: bool = False) -> CpuKernel | None:
        """The kernel of the same program for other extents and strides, from code that is there; None: there is none.

        Args:
            sizes: of every axis of the program, in its order: the extent, and the bytes per tensor.
            soon: whether code may serve that is slower, as a kernel that is not `settled`.
        """
        if self.text is None:
            made = self._family.find(sizes, lent=soon) if self._family else None
            return None if made is None else self._of(made, sizes)
        numbers = None if self._packings else numbers_with(self._how.program, sizes)
        return None if numbers is None else self.numbered(numbers, soon=soon)

    @property
    def in_kind(self) -> bool:
        """Whether `numbered` knows code for other sizes."""
        return self.text is not None or self._family is not None

    @property
    def arranges(self) -> bool:
        """Whether it reads constants in an order of its own."""
        return bool(self._packings)

    def numbered(self, numbers: Sequence[float], *, soon: bool = False) -> CpuKernel | None:
        """The kernel of the program of its kind that has these numbers (`teir.ir.form.numbers_of`), from code that is
        there, and that would be taken for it, or may serve `resized`; None: there is none."""
        if self.text is None:
            if self._family is None or self._packings:
                return None
            rest, axes = iter(numbers), self._how.program.axes  # a family's have no others
            sizes = [(int(next(rest)), tuple([s and int(next(rest)) for s in a.strides])) for a in axes]
            return self.resized(sizes, soon=soon)
        found = find(self._key, numbers, soon=soon)
        if found is None:
            return None
        like, table, places, stays = found
        kernel: CpuKernel = like.again(self._how, table, places)
        kernel._program, kernel._numbers, kernel.settled = None, tuple(numbers), stays
        keep(self._key, like)
        return kernel

    def own(self) -> CpuKernel | None:
        """The kernel of these sizes on code of their own; None where another thread makes that, from now on."""
        if not self.settled and self._own is None:
            self._own = made = []
            later(lambda: made.append(compile(self.program, threads=self.threads)))
        return self if self.settled else self._own[0] if self._own else None

    def _of(self, found: FoundCode, sizes: Sequence[Size]) -> CpuKernel:
        """The kernel of the same program for other sizes, on code that serves them."""
        made = object.__new__(CpuKernel)
        made.__dict__.update(self.__dict__)
        made._program, made._plan, made._spans = None, "", [(0, end) for end in found.ends]
        made._numbers = [n for extent, strides in sizes for n in (extent, *filter(None, strides))]
        made._checks_of = functools.partial(self._checks.of, made._spans)
        made.settled, made._own = not found.lent, None
        end = rounded(self._sizes_at + 8 * len(found.table))
        made._arrange(found.variant, found.table, end, *found.table[-2:])
        return made

    def again(self, how: _How, table: tuple[int, ...], places: CallPlaces) -> CpuKernel:
        """The kernel of a program that differs in sizes alone and has the same text."""
        made = object.__new__(CpuKernel)
        made.__dict__.update(self.__dict__)
        made._how, made._program, made._plan, made._over = how, how.program, "", None
        made._like, made._own, made.settled = self._like or self, None, True
        made._packings, made._tables = places.packings, places.tables
        spans, bounds = list(zip(self._specs, places.bounds, strict=True)), places.bounds
        if places.packings:
            made._given = {spec.name: span for spec, span in spans if spec.name in places.packings}
            ends = {name: (0, packing.size_bytes) for name, packing in places.packings.items()}
            bounds = tuple([ends.get(spec.name, span) for spec, span in spans])
        made._checks_of, made._spans = functools.partial(self._checks.of, bounds), bounds
        made._scratch = places.scratch
        made._arrange(self._variant, table, places.end, places.shared_bytes, places.thread_bytes)
        return made

    def __call__(self, *arrays: Array) -> None:
        """Run on arrays in the order of the program's tensors, scratch left out.

        Raises:
            BackendError: arrays that are missing, of another type, read-only, too small, or that overlap.
        """
        self._run(self._checks.addresses(self, arrays))

    def run(self, arrays: Mapping[str, Array]) -> None:
        """Run on arrays by name; as `__call__` otherwise."""
        names = [spec.name for spec in self._specs]
        if not isinstance(arrays, Mapping):
            raise self._checks.error(self, f"{type(arrays).__name__} is given instead of a mapping of arrays by name")
        if set(arrays) != set(names):
            raise self._checks.error(self, f"arrays are given for {', '.join(sorted(arrays)) or 'no tensor'}")
        self(*(arrays[name] for name in names))

    def prepare(self, *arrays: Array) -> Callable[[], None]:
        """A function without arguments that runs on these arrays; they are checked now, once.

        The arrays are kept alive. Calls of the result must not overlap in time.
        """
        addresses = self._checks.addresses(self, arrays)
        block = self._begin()
        self._point(block, addresses)
        entry, address = self._entry, block.address
        kept = (arrays, block)

        def call(_kept: object = kept) -> None:
            entry(address)

        return call

    def arranged(self, arrays: Sequence[Array]) -> list[Array]:
        """The arrays that it runs on, for those that were called constant when it was compiled: some in its order."""
        made = []
        for spec, array in zip(self._specs, arrays, strict=True):
            if spec.name in self._given:
                self._checks.check_bounds(self, array, address_of(array), spec.name, *self._given[spec.name])
            made.append(arranged_once(self._packings[spec.name], array) if spec.name in self._packings else array)
        return made

    def writes_over(self) -> frozenset[int]:
        """The operands that may lie where the output, the last one, does, by their place among the arrays."""
        if self._over is None:  # asked for each shard
            program = self.program
            places = [program.position(spec.name) for spec in self._specs]
            self._over = frozenset(k for k, place in enumerate(places[:-1]) if may_alias(program, place, places[-1]))
        return self._over

    def bind(self, arrays: Sequence[Array]) -> Bound:
        """What a native loop calls to run on these arrays, which are checked now; calls of it must not overlap."""
        return self.bind_at(self._checks.addresses(self, tuple(arrays)))

    def bind_at(self, addresses: Sequence[int]) -> Bound:
        """As `bind`, on arrays that are known to fit, at these addresses."""
        first = min([*self._scratch.values(), self._shared_at])
        bound = Bound(self._variant.code, first, self._block_bytes - first, self._positions)

        def place(memory: int) -> None:
            base = memory - first  # scratch and packed operands lie behind the environment in a call of its own
            self._fill(bound.env, base)
            for name, at in self._scratch_at.items():
                bound.write(at, base + self._scratch[name])

        bound.place, bound.check = place, lambda addresses: self._checks.check_pairs(self, addresses)
        bound.check_columns = lambda addresses: self._checks.near()(addresses)
        for position, address in zip(self._positions, addresses, strict=True):
            bound.write(position, address)
        return bound

    @property
    def spans(self) -> Sequence[Span]:
        """The bytes of each array that are touched: from its first element, the end excluded."""
        return self._spans

    @property
    def about(self) -> str:
        """The processor and how many of its threads, for people."""
        return f"{self.target.cpu}, {self.threads} threads"

    def explain(self) -> str:
        """The loops and operations that were compiled, as a tree."""
        if not self._plan:
            form = merged(self.program, merge=self._how.merge)
            how = self._how
            given: dict[str, Any] = {"general": GENERAL, "merge": how.merge, "constant": how.constant}
            nest = emit_program(form, how.target, how.threads, how.settings, **given)
            lent = () if nest.source == self.source else ("on the code of other sizes, which takes about as long",)
            self._plan = show(form, lambda op: (*nest.notes.get(op, ()), *lent))
        return self._plan

    def __repr__(self) -> str:
        return f"CpuKernel({self.program.name!r}, threads={self.threads}, cpu={self.target.cpu!r})"

    # ---- the call -----------------------------------------------------------------------------------------------

    def looking(self, wanted: Sequence[Wanted]) -> Callable[..., int] | None:
        """A builtin that is `run_on` for what is wanted, and false for other objects; None where there is none."""
        if self._block_bytes > _SHARED_BLOCK:
            return None
        if self._block_bytes <= _SMALL_BLOCK:
            block, busy = self._begin(), new_busy()
        else:
            first = min([*self._scratch.values(), self._shared_at])
            memory, busy = taken_in_turn(self._block_bytes - first)
            block = self._begin(first, memory - first)
        names = block, self._objects_at, len(self._specs)
        made = direct_call(self._variant.code, "entry_objects", *names, wanted, busy, kept=self._tables)
        if made is not None:
            self._directs.append(busy)
        return made

    @cached_property
    def run_on(self) -> Callable[..., int]:
        """Run on arrays whose type, shape, strides and flags the caller knows to fit, unless they may share bytes.

        They must be of the class ndarray itself, in the order of `__call__`. Where what is written and another array
        may share a byte, or another thread is in the same call, nothing is run and the result is false: `__call__`
        knows better. This is most of the overhead of a small call, so it is native where working memory is small.
        """
        made = self.looking(())
        if made is not None:
            return made
        if address_of is interface_address:

            def checked(*arrays: Array) -> int:
                self(*arrays)
                return 1

            return checked
        take, pack, at = self._idle.pop, self._objects.pack_into, self._objects_at
        entry, begin, give = self._entry_objects, self._begin, self._give

        def direct(*arrays: Array) -> int:
            try:
                block = take()  # two calls at once never hold the same memory
            except IndexError:
                block = begin()
            pack(block.memory, at, *map(id, arrays))
            clash = entry(block.address)
            give(block)  # an interrupt before this loses the block, and nothing else
            return not clash

        return direct

    def run_once(self, *arrays: Array) -> int:
        """As `run_on`, for a kernel that may not be called again: in memory that any kernel may have next."""
        if address_of is interface_address:
            return self.run_on(*arrays)
        block = self._begin()
        self._objects.pack_into(block.memory, self._objects_at, *map(id, arrays))
        clash = self._entry_objects(block.address)
        arena.give(block)
        return not clash

    def run_at(self, addresses: Sequence[int]) -> None:
        """As `run_once`, on arrays that are known to fit, at these addresses."""
        block = self._begin(addresses=addresses)
        self._entry(block.address)
        arena.give(block)

    def _run(self, addresses: Sequence[int]) -> None:
        try:
            block = self._idle.pop()
        except IndexError:
            block = self._begin()
        self._point(block, addresses)
        self._entry(block.address)
        self._give(block)

    def _give(self, block: Block) -> None:
        if block.size <= _SMALL_BLOCK and len(self._idle) < 4:
            self._idle.append(block)
        else:
            arena.give(block)

    def _begin(self, size_bytes: int = 0, memory: int = 0, addresses: Sequence[int] = ()) -> Block:
        """Memory of a call, with what never changes at its start; of a size that is given: the environment alone."""
        try:
            block = arena.take(size_bytes or self._block_bytes)
        except (OSError, OverflowError, MemoryError):
            problem = f"there is no memory for {self._block_bytes} bytes of scratch and packed operands"
            raise self._checks.error(self, problem, "scratch that fits in memory, or fewer threads") from None
        self._fill(block.memory, memory or block.address)
        self._point(block, addresses or [0] * len(self._specs), memory)
        return block

    def _fill(self, env: Any, memory: int) -> None:
        """Write what does not change between calls."""
        threads = pool(self.threads)
        words = (threads.address, threads.run, memory + self._shared_at, self.threads, memory + self._thread_at)
        self._head.pack_into(env, 0, *words, self._thread_bytes)
        self._sizes.pack_into(env, self._sizes_at, *self._table)

    def _point(self, block: Block, addresses: Sequence[int], memory: int = 0) -> None:
        """Write the tensors' addresses behind the head."""
        if self._scratch:
            bases = iter(addresses)
            addresses = [
                (memory or block.address) + self._scratch[spec.name] if spec.role == "scratch" else next(bases)
                for spec in self._how.program.tensors  # whose sizes may be others
            ]
        self._bases.pack_into(block.memory, self._head.size, *addresses)


@dataclass(frozen=True, slots=True)
class _How:
    """How a kernel was compiled."""

    program: Program
    threads: int
    target: Target
    merge: bool
    settings: Settings
    constant: frozenset[str] = frozenset()


@functools.cache
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"={count}q")


GENERAL = True
"""Whether code takes sizes as arguments; False, with every size a constant, is for comparisons."""
_SMALL_BLOCK = 1 << 16
"""Working memory up to this size stays with its kernel between calls."""
_SHARED_BLOCK = 1 << 20
"""Up to this size kernels take working memory in turn, without Python: asking for it takes 6 us."""


# ---- compiling --------------------------------------------------------------------------------------------------

_KERNELS: dict[tuple[Any, ...], CpuKernel] = {}
_KERNELS_KEPT = 1024
"""Of those asked for last; code that no kernel holds any more is unmapped."""
_LOCK = lock_of_process()


_TUNERS: list[Callable[..., Any]] = []


def tune_by(tuner: Callable[..., Any]) -> None:
    """From now on, `compile` asks this function where tuning is wanted; it compiles what it times."""
    _TUNERS.append(tuner)


def compile(
    program: Program,
    *,
    threads: int | None = None,
    merge: bool = True,
    target: Target | None = None,
    cache: bool = True,
    settings: Settings = DEFAULT,
    tune: bool = False,
    constant: Collection[str] = (),
    wait: bool = True,
) -> CpuKernel:
    """The program as native code that computes what `tileweave.teir.interpret` computes, sums up to their order.

    A product and the sum that takes it may be fused into one operation that rounds once. BF16 products that the
    processor sums by its own instruction (AVX512_BF16) count subnormal factors and sums as zero.

    Args:
        program: any well-formed program of the registered operations of `tileweave.teir`.
        threads: how many threads its parallel loops and large operations use, 255 at most; None: all processors of the
            process.
        merge: whether loops and operations are merged before code is made (see `tileweave.teir.merged`).
        target: the processor; None: this one. A lesser one of the same kind makes code that runs here, slower.
        cache: whether compiled objects are kept in memory and on disk.
        settings: wishes for how contractions are cut.
        tune: whether good settings are found by timing, and remembered, as `tileweave.backends.cpu.tune` does; they
            stand in for ``settings``.
        constant: tensors whose arrays never change: the kernel runs on what its `arranged` makes of them.
        wait: whether the code is there when this returns; else the first call waits for it, and raises what LLVM says.

    Raises:
        VerifyError: the program is not well formed.
        BackendError: there is no code for an operation or for the target, or LLVM fails; source and log are kept. Or
            ``threads`` is no positive integer, or tuning is asked for together with ``merge=False``.

    Example:
        >>> import numpy as np
        >>> from tileweave.teir.ir.program import Axis, Invocation, Primitive, TensorSpec
        >>> zero = Primitive("z", "Zero", (("M", ()), ("N", ("n",))), ("out",))
        >>> out = TensorSpec("out", "INT32", "out")
        >>> program = Program((out,), (Axis("n", 2, (8,), (0,)),), ("i",), (Invocation("i", "z"),), (zero,))
        >>> array = np.array([3, 1, 4], "int32")
        >>> compile(program)(array)
        >>> array
        array([0, 1, 0], dtype=int32)

    Source: own; what a program means is TEIR, sections 10.2 to 10.6.
    """
    if tune:
        if not merge:
            problem = "tuning chooses how operations are merged and cut, and merge=False leaves nothing to choose"
            raise BackendError("compile(program, merge=False, tune=True)", problem, legal="one of the two")
        found = _TUNERS[-1](program, threads=threads, target=target, cache=cache)
        program, threads, settings = found.program, found.choice.threads, found.choice.settings
    target, threads = usable(target), thread_count("compile(program, threads=..)", threads)
    key = (program, kind_of(program), threads, merge, target, settings, frozenset(constant))  # 0.0 equals -0.0
    if cache:
        with _LOCK, contextlib.suppress(TypeError):  # what has no hash is no program, and is refused below
            if key in _KERNELS:
                _KERNELS[key] = kernel = _KERNELS.pop(key)
                return kernel
    verify(program)
    check_settings(settings)
    kernel = _made(_How(program, threads, target, merge, settings, frozenset(constant)), cache=cache)
    if wait:
        kernel.wait()
    if cache:
        with _LOCK:
            _KERNELS[key] = kernel
            keep_last(_KERNELS, _KERNELS_KEPT)
    return kernel


def _made(how: _How, *, cache: bool) -> CpuKernel:
    """A kernel by the code of its kind where that is there; else it is written."""
    follows = cache and GENERAL and how.merge and how.settings == DEFAULT
    products = any(primitive.operation == "Contraction" for primitive in how.program.primitives)
    kind = kind_of(how.program) if follows else None
    fixed = how.constant if products else frozenset[str]()
    key = (kind, how.threads, how.target, fixed)
    again = find(key, numbers_of(how.program)) if kind is not None else None
    if again is not None:
        like, table, places, _ = again
        kernel: CpuKernel = like.again(how, table, places)
        keep(key, like)
        return kernel
    if kind is not None and not products:  # without a product it is no convolution, and of no family
        new = _written(how, fixed, key)
        if new is not None:
            return new
    form = merged(how.program, merge=how.merge)
    direct = how.settings == DEFAULT and match(form, how.target, fixed) is not None
    family = family_of(form, how.target, how.threads, how.settings) if cache and not how.constant else None
    other = reordered(form, fixed, how.target, how.threads) if fixed and not direct else None
    if other is not None:
        program, orders = other
        made = object.__new__(CpuKernel)
        on_order = _made(replace(how, program=program, constant=frozenset()), cache=cache)
        made.__dict__.update(on_order.__dict__)
        made._packings, made._like, made.text, made._family = orders, on_order, None, None
        return made
    if how.constant and not direct:  # they are read as they lie
        return _made(replace(how, constant=frozenset()), cache=cache)
    known = family.kernel() if family else None
    if known is not None:
        sized: CpuKernel | None = known.resized([(axis.extent, axis.strides) for axis in how.program.axes])
        if sized is not None:
            sized._how, sized._program, sized._like = how, how.program, known
            return sized
    if products and kind is not None and family is None and (direct or not fixed):
        new = _written(how, fixed, key)
        if new is not None:
            return new
    given: dict[str, Any] = {"general": GENERAL, "merge": how.merge, "constant": how.constant}
    nest = emit_program(form, how.target, how.threads, how.settings, **given)
    code = compile_ir(nest.source, ("entry", "entry_objects"), how.target, disk=cache)
    variant = Variant(code, Table(nest.sizes) if nest.sizes and family else None)
    kernel = CpuKernel(form, nest, variant, family, how)
    if family is not None and nest.sizes is not None:
        family.add(next(form.operations()), variant, kernel)
    return kernel


def _written(how: _How, fixed: frozenset[str], key: Hashable) -> CpuKernel | None:
    """A kernel whose text is known to serve others of its kind; None where it is written in another way."""
    made = write(how.program, how.target, how.threads, fixed, key)
    if made is None:
        return None
    nest, text = made
    code = compile_ir(nest.source, ("entry", "entry_objects"), how.target)
    kernel = CpuKernel(None, nest, Variant(code, None), None, how)
    kernel.text, kernel._key = text, key
    keep(key, kernel)
    return kernel


_LIVE: weakref.WeakSet[CpuKernel] = weakref.WeakSet()


def _after_fork() -> None:
    for kernel in list(_LIVE):
        kernel._idle.clear()  # they name the pool of the parent
        for busy in kernel._directs:
            busy[0] = -1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def forget() -> None:
    """Empty the cache in memory; the code of kernels that nobody holds is unmapped."""
    with _LOCK:
        _KERNELS.clear()
    gc.collect()  # kernels and their calls refer to each other
    release()
