"""A merged program becomes one module of IR: loops, guards, addresses, parallel regions, and a function per operation.

Every operation's function has the form ``(env, thread, operands..)``, contractions with two more flags. ``env`` is an
array of 64-bit words that the caller fills::

    0 pool   8 run   16 shared memory   24 threads   32 memory of thread 0   40 bytes per thread   48.. operands
    then, for ``entry_objects`` only: the array object of each operand that is not scratch
    then the table of sizes, where code has one

``entry_objects`` runs nothing and returns 1 where what is written and another operand may share bytes.

Parallel loops that are directly nested are flattened into one range, cut into tasks, and run by the pool. Inside a
parallel region everything is sequential.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from tileweave.backends.cpu.attention.emit import emit_attention
from tileweave.backends.cpu.attention.match import Attention
from tileweave.backends.cpu.attention.match import match as match_attention
from tileweave.backends.cpu.direct.convolution import Convolution
from tileweave.backends.cpu.direct.cut import Packing, cut_of
from tileweave.backends.cpu.direct.emit import emit_direct
from tileweave.backends.cpu.direct.match import match
from tileweave.backends.cpu.gemm.blocking import are_tiny
from tileweave.backends.cpu.gemm.contract import PARAMETERS as CONTRACTION_PARAMETERS
from tileweave.backends.cpu.gemm.contract import (
    Workspace,
    as_numbers,
    emit_contraction,
    emit_scalar,
    may_start_of,
    without_start,
)
from tileweave.backends.cpu.llvm.elements import Element, element
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import run_tasks
from tileweave.backends.cpu.maps.beside import ROWS as BESIDE
from tileweave.backends.cpu.maps.beside import Beside, beside_of
from tileweave.backends.cpu.maps.carried import ROWS, Carried, carried_of, emit_carried, side_by_side
from tileweave.backends.cpu.maps.elementwise import emit_elementwise
from tileweave.backends.cpu.maps.places import PlaceOf, emit_place, place_of
from tileweave.backends.cpu.maps.running import Running, emit_running, running_of
from tileweave.backends.cpu.strategy import Strategy, strategy_of
from tileweave.backends.cpu.target.settings import DEFAULT, Settings
from tileweave.backends.cpu.target.target import Target
from tileweave.backends.host import OBJECT_DATA, address_of
from tileweave.index.sizes import Sizes, plain, shared
from tileweave.kept import cached_property
from tileweave.teir.analysis.calls import bounds
from tileweave.teir.analysis.lower import General
from tileweave.teir.ir.primitives import operands_of
from tileweave.teir.ir.program import Axis, First, Guard, Id, Program
from tileweave.teir.merged.form import Loop, Merged, MergedOp, Step, sizes_of, with_sizes
from tileweave.teir.merged.kind import kind_of
from tileweave.teir.merged.lower import classified
from tileweave.teir.merged.merge import start_of
from tileweave.teir.merged.order import rivals_of

ENV_WORDS = 6
"""Words of the environment before the operands' addresses."""


@dataclass(frozen=True, slots=True)
class Nest:
    """A finished module.

    Args:
        source: its IR; the public functions are ``entry(env)``, and ``entry_objects(env)``, which first takes the
            operands' addresses from their array objects and looks whether they keep apart.
        shared_bytes: working memory shared by all threads.
        thread_bytes: working memory of each thread.
        notes: per operation, what it is classified as and how it is computed.
        bounds: the bytes of every tensor that are touched.
        sizes: those that code reads from a table; None: all are constants of the text.
        packings: tensor -> how its array is arranged before the code reads it.
        tables: arrays that the code reads, whose addresses are among the sizes.
    """

    source: str
    shared_bytes: int
    thread_bytes: int
    notes: Mapping[MergedOp, tuple[str, ...]]
    bounds: Mapping[str, tuple[int, int]]
    sizes: Sizes | None = None
    packings: Mapping[str, Packing] = field(default_factory=dict)
    tables: tuple[NDArray[Any], ...] = ()


def table_at(program: Program) -> int:
    """Words of the environment before the table of sizes."""
    return ENV_WORDS + len(program.tensors) + sum(spec.role != "scratch" for spec in program.tensors)


def emit_program(
    form: Merged,
    target: Target,
    threads: int,
    settings: Settings = DEFAULT,
    *,
    general: bool = False,
    merge: bool = True,
    constant: Collection[str] = (),
    sizes: Sizes | None = None,
    followed: tuple[Convolution | Attention | None, Sequence[int]] = (None, ()),
) -> Nest:
    """The module of a merged program.

    Args:
        form: the program.
        target: the processor.
        threads: that it may use.
        settings: wishes for how contractions are cut.
        general: whether the code serves other sizes as well.
        merge: whether operations may be computed together.
        constant: tensors whose arrays may be arranged otherwise, once, before the first run.
        sizes: where the program's sizes are followed; it is no `has_tiny` then.
        followed: the convolution or attention that such a program is, and its numbers: those of `numbers_of` of
            `direct.cut` and the addresses of its tables, or of `attention.cut`.
    """
    program = form.program
    whole, numbers = followed
    if settings == DEFAULT and sizes is None:
        whole = match(form, target, constant) or (match_attention(program, target) if merge else None)
    packings: dict[str, Packing] = {}
    tables: tuple[NDArray[Any], ...] = ()
    if sizes is None and general and not (has_tiny(form) and whole is None):
        sizes = Sizes()
    emitter = _Emitter(program, target, threads, settings, Module(sizes, 8 * table_at(program)))
    f = Function(emitter.module, "entry", [("ptr", "env")], public=True)
    bases = [f.load("ptr", f.at("%env", 8 * (ENV_WORDS + k)), 8) for k in range(len(program.tensors))]
    if isinstance(whole, Convolution):
        cut = cut_of(whole, target, threads)
        tables = cut.tables()
        if cut.packing is not None:
            packings[program.tensors[whole.tensors[1]].name] = cut.packing
        addresses = numbers[-len(tables) :] if numbers else tuple(map(address_of, tables))
        lines = emit_direct(emitter.module, target, "direct", whole, cut, numbers, addresses, emitter.memory)
        for op in form.operations():
            emitter.note(op, *lines)
        f.call("direct", "ptr %env", "i64 0", *(f"ptr {base}" for base in bases[: max(whole.pointers) + 1]))
    elif whole is not None:
        lines = emit_attention(emitter.module, target, "attention", whole, threads, emitter.memory, numbers)
        emitter.note(list(form.operations())[-1], *lines)
        f.call("attention", "ptr %env", "i64 0", *(f"ptr {base}" for base in bases))
    else:
        emitter.steps(_Place(f, bases, {}, False, "0"), form.body)
    f.ret()
    reach = bounds(program)
    _emit_objects(emitter.module, program, reach)
    memory, notes = emitter.memory, emitter.notes
    return Nest(emitter.module.text(), memory.shared_bytes, memory.thread_bytes, notes, reach, sizes, packings, tables)


def has_tiny(form: Merged) -> bool:
    """Whether there are many products so small that their sizes are constants of the code."""
    return any(op.kind == "Contraction" and are_tiny(op.modes) for op in form.operations())


def _emit_objects(module: Module, program: Program, extents: Mapping[str, tuple[int, int]]) -> None:
    f = Function(module, "entry_objects", [("ptr", "env")], public=True, returns="i64")
    at = 8 * (ENV_WORDS + len(program.tensors))
    outputs = written(program)
    known: list[tuple[bool, Value, Value]] = []  # whether it is written, its first byte, and the one behind its last
    clash: Value = 0
    for k, spec in enumerate(program.tensors):
        if spec.role == "scratch":
            continue
        data = f.load("ptr", f.at(f.load("ptr", f.at("%env", at), 8), OBJECT_DATA), 8)
        f.store("ptr", data, f.at("%env", 8 * (ENV_WORDS + k)), 8)
        at += 8
        base, (first, end) = f.value(f"ptrtoint ptr {data} to i64"), extents.get(spec.name, (0, 0))
        if module.sizes is not None:
            first, end = module.sizes.parameter(first), module.sizes.parameter(end)
        low, high = f.add(base, first), f.add(base, end)
        for other, low2, high2 in known:
            if other or spec.name in outputs:
                clash = f.either(clash, f.both(f.compare("slt", low, high2), f.compare("slt", low2, high)))
        known.append((spec.name in outputs, low, high))

    def run() -> list[Value]:
        f.call("entry", "ptr %env")
        return [0]

    f.ret(f"i64 {f.choose(clash, ['i64'], lambda: [1], run)[0]}")


def written(program: Program) -> frozenset[str]:
    """The tensors that a program writes."""
    return frozenset(operands_of(primitive, program)[-1] for primitive in program.primitives)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where code goes, and what is known there: addresses, indices, whether in a parallel region, the thread."""

    f: Function
    bases: list[str]
    indices: dict[Id, tuple[Value, int]]
    inside: bool
    thread: str


@dataclass
class _Emitter:
    """Writes the functions of one program."""

    program: Program
    target: Target
    threads: int
    settings: Settings = DEFAULT
    module: Module = field(default_factory=Module)
    memory: Workspace = field(default_factory=Workspace)
    operations: list[tuple[tuple[MergedOp | Running | Carried | PlaceOf, bool], str]] = field(default_factory=list)
    regions: int = 0
    axes: dict[Id, Axis] = field(default_factory=dict)
    notes: dict[MergedOp, tuple[str, ...]] = field(default_factory=dict)

    def elements(self, op: MergedOp) -> tuple[Element, ...]:
        return tuple(element(self.program.tensors[j].dtype) for j in op.operands)

    @cached_property
    def tensors(self) -> tuple[Element, ...]:
        """The element types of the program's tensors."""
        return tuple(element(spec.dtype) for spec in self.program.tensors)

    def steps(self, at: _Place, steps: tuple[Step, ...]) -> None:
        carried = carried_of(steps, None, self.program)
        place = None if carried is None else place_of(carried, self.tensors)
        if carried is not None and place is not None:
            self.search(at, carried, place, 1)
            return
        for step in steps:
            at.f.when(_condition(at, step.guard), lambda step=step: self.step(at, step))  # type: ignore[misc]

    def step(self, at: _Place, step: Step) -> None:
        if isinstance(step, MergedOp):
            self.invoke(at, step)
        elif step.parallel and not at.inside:
            self.region(at, step)
        else:
            self.loop(at, step)

    def sized(self, axis: Axis) -> Axis:
        """The axis as code sees it."""
        if self.module.sizes is None:
            return axis
        if axis.id not in self.axes:
            size = self.module.sizes.parameter
            strides = tuple(size(stride) if stride else 0 for stride in axis.strides)
            offsets = tuple(size(offset) if offset else 0 for offset in axis.offsets)
            self.axes[axis.id] = Axis(axis.id, size(axis.extent), strides, offsets)
        return self.axes[axis.id]

    def loop(self, at: _Place, loop: Loop) -> None:
        running = self.running(loop)
        if running is not None:
            self.run(at, loop, running)
            return

        def body(index: Value, _: list[str]) -> None:
            self.steps(_moved(at, self.sized(loop.axis), index), loop.body)

        at.f.loop(0, self.sized(loop.axis).extent, body)

    def running(self, loop: Loop) -> Running | None:
        """The running sum or product that a loop is."""
        op = loop.body[0]
        if not isinstance(op, MergedOp) or loop.parallel:
            return None
        return running_of(loop, self.target, self.elements(op), rivals_of(op, self.program))

    def run(self, at: _Place, loop: Loop, running: Running) -> None:
        """A running sum or product, by a function of its own."""
        op = running.op
        name, new = self.function((running, False))
        if new:
            emit_running(self.module, self.target, name, running, self.elements(op)[0])
            self.note(op, "lanes take in those below them in steps of 1, 2, 4, ..")
        axis = self.sized(loop.axis)
        bases = [at.f.at(at.bases[j], axis.offsets[j]) for j in op.operands]
        arguments = ["ptr %env", f"i64 {at.thread}", *(f"ptr {base}" for base in bases), f"i64 {axis.extent}"]
        at.f.call(name, *arguments)

    def function(self, key: tuple[MergedOp | Running | Carried | PlaceOf, bool]) -> tuple[str, bool]:
        """The name of the function for an operation, and whether it has still to be written."""
        for known, name in self.operations:  # compared, never hashed, so that what is compared of sizes is recorded
            if known == key:
                return name, False
        self.operations.append((key, f"op{len(self.operations)}"))
        return self.operations[-1][1], True

    def note(self, op: MergedOp, *lines: str) -> None:
        """Says of an operation how it is computed, where nothing was said."""
        if self.module.sizes is None or not self.module.sizes.follows:
            self.notes.setdefault(op, lines)

    def invoke(self, at: _Place, op: MergedOp) -> None:
        name, new = self.function((op, at.inside))
        if new:
            self.define(name, op, not at.inside)
        arguments = ["ptr %env", f"i64 {at.thread}", *(f"ptr {at.bases[j]}" for j in op.operands)]
        if op.kind == "Contraction":
            start = arguments.pop() if len(op.operands) > 3 else "ptr null"
            arguments += [f"i1 {_flag(at, op.init)}", f"i1 {_flag(at, op.relu)}", start]
        at.f.call(name, *arguments)

    def define(self, name: str, op: MergedOp, parallel: bool) -> None:
        """Write an operation's function; what it is classified as decides which."""
        follows = self.module.sizes is not None and self.module.sizes.follows
        kernel = General(()) if follows else classified(op, self.program).kernel  # it names sizes
        strategy = strategy_of(op, kernel)
        named = op.kind != "Chain" and not isinstance(kernel, General)
        lines = [str(kernel)] if named or op.kind == "Contraction" else []
        if lines and not follows:
            kind, values = kind_of(op, self.program)
            lines.append(f"kind {kind.key}: {', '.join(f'{name} {value}' for name, value in values.items())}")
        elements = self.elements(op)
        if strategy is Strategy.MAP:
            rivals = rivals_of(op, self.program)
            emit_elementwise(self.module, self.target, name, op, elements, rivals, parallel=parallel)
        else:
            lines += self.contraction(name, op, elements, parallel, strategy)
        self.note(op, *lines)

    def contraction(
        self, name: str, op: MergedOp, elements: tuple[Element, ...], parallel: bool, strategy: Strategy
    ) -> tuple[str, ...]:
        """A contraction, with what its output starts from: in its tiles, or by a copy before it."""
        threads = self.threads if parallel else 1
        if strategy is Strategy.SCALAR:
            emit_scalar(self.module, self.target, name, op, elements)
            return (strategy.value,)
        starts = len(op.operands) > 3
        inside = starts and self.may_start(op, elements, threads)
        sums = without_start(op) if starts else op
        lines = emit_contraction(
            self.module,
            self.target,
            f"{name}.sums" if starts else name,
            sums if inside or not starts else replace(sums, init=None),
            elements[:3],
            self.memory,
            names=[self.program.tensors[j].name for j in op.operands[:2]],
            threads=threads,
            settings=self.settings,
            start=inside,
            alone=not parallel,
        )
        if not starts:
            return lines
        f = Function(self.module, name, CONTRACTION_PARAMETERS)
        start, init = f.at("%start", op.offsets[3]), "%init"
        if not inside:
            copy = start_of(op)
            rivals = rivals_of(copy, self.program)
            two = (elements[3], elements[2])
            emit_elementwise(self.module, self.target, f"{name}.start", copy, two, rivals, parallel=parallel)
            f.when("%init", lambda: f.call(f"{name}.start", "ptr %env", "i64 %thread", "ptr %start", "ptr %p2"))
            init = "false"
        pointers = [f"ptr %p{k}" for k in range(3)]
        f.call(f"{name}.sums", "ptr %env", "i64 %thread", *pointers, f"i1 {init}", "i1 %relu", f"ptr {start}")
        f.ret()
        row = self.program.tensors[op.operands[3]].name
        return (*lines, f"sums start from {row}, in registers" if inside else f"{row} is copied to the output first")

    def may_start(self, op: MergedOp, elements: tuple[Element, ...], threads: int) -> bool:
        """Whether sums begin with what the output starts from."""
        sizes = self.module.sizes
        like = with_sizes(op, [0] * len(sizes_of(op)))
        starts = shared(may_start_of, like, elements, self.target, threads, self.settings)
        outcome: bool = starts(tuple(sizes_of(as_numbers(op))))

        def same(given: tuple[int, ...], _near: float) -> tuple[int, ...] | None:
            return () if starts(given) == outcome else None

        if sizes is not None and sizes.follows:
            sizes.answers(same, sizes_of(op))
        return outcome

    def region(self, at: _Place, loop: Loop) -> None:
        """A chain of parallel loops as tasks of the pool."""
        chain = [loop]
        while len(chain[-1].body) == 1:
            below = chain[-1].body[0]
            if not (isinstance(below, Loop) and below.parallel and not below.guard):
                break
            chain.append(below)
        carried = carried_of(chain[-1].body, chain[-1].axis, self.program)
        if carried is not None and not self.serves(carried):
            carried = None
        beside = beside_of(chain[-1], self.program, self.target) if carried is None else None
        if beside is not None:
            chain[-1] = Loop(beside.rows, True, beside.body)
        extents = [self.sized(one.axis).extent for one in chain]
        together = ROWS if carried is not None else BESIDE if beside is not None else 1
        if together > 1:
            extents[-1] = -(-extents[-1] // together)
        total = 1
        for extent in extents:
            total *= extent
        name = f"region{self.regions}"
        self.regions += 1
        f = at.f
        outside = list(at.indices.items())
        frame = f.slot("i64", 2 + len(at.bases) + len(outside))
        f.store("ptr", "%env", frame, 8)
        threads = f.load("i64", f.at("%env", 24), 8)
        count = f.min(f.mul(threads, 8), total)
        f.store("i64", count, f.at(frame, 8), 8)
        for k, base in enumerate(at.bases):
            f.store("ptr", base, f.at(frame, 16 + 8 * k), 8)
        for k, (_, (index, _extent)) in enumerate(outside):
            f.store("i64", index, f.at(frame, 16 + 8 * (len(at.bases) + k)), 8)
        run_tasks(f, name, frame, count, at.thread)
        self.task(name, chain, total, len(at.bases), outside, carried or beside, together)

    def task(
        self,
        name: str,
        chain: list[Loop],
        total: int,
        tensors: int,
        outside: list[tuple[Id, tuple[Value, int]]],
        rows: Carried | Beside | None,
        together: int,
    ) -> None:
        g = Function(self.module, name, [("ptr", "frame"), ("i64", "task"), ("i64", "thread")])
        env = g.load("ptr", "%frame", 8)
        count = g.load("i64", g.at("%frame", 8), 8)
        bases = [g.load("ptr", g.at("%frame", 16 + 8 * k), 8) for k in range(tensors)]
        indices: dict[Id, tuple[Value, int]] = {
            id: (g.load("i64", g.at("%frame", 16 + 8 * (tensors + k)), 8), extent)
            for k, (id, (_, extent)) in enumerate(outside)
        }
        first = g.div(g.mul("%task", total), count)
        last = g.div(g.mul(g.add("%task", 1), total), count)
        body = Function(
            self.module,
            f"{name}.body",
            [("ptr", "env"), ("i64", "thread"), ("i64", "flat")]
            + [("ptr", f"b{k}") for k in range(tensors)]
            + [("i64", f"i{k}") for k in range(len(outside))],
        )

        def one(index: Value, _: list[str]) -> None:
            g.call(
                f"{name}.body",
                f"ptr {env}",
                "i64 %thread",
                f"i64 {index}",
                *(f"ptr {base}" for base in bases),
                *(f"i64 {value}" for value, _ in indices.values()),
            )

        g.loop(first, last, one)
        g.ret()

        known = {id: (f"%i{k}", extent) for k, (id, (_, extent)) in enumerate(outside)}
        at = _Place(body, [f"%b{k}" for k in range(tensors)], dict(known), True, "%thread")
        rest: Value = "%flat"
        digits: list[Value] = []
        for loop in reversed(chain):
            extent = self.sized(loop.axis).extent
            if together > 1 and loop is chain[-1]:
                extent = -(-extent // together)
            digits.append(body.rem(rest, extent))
            rest = body.div(rest, extent)
        if together > 1:
            digits[0] = body.mul(digits[0], together)
        for loop, digit in zip(chain, reversed(digits), strict=True):
            at = _moved(at, self.sized(loop.axis), digit)
        if rows is not None:
            here = body.min(body.sub(self.sized(chain[-1].axis).extent, digits[0]), together)
            if isinstance(rows, Carried):
                self.carry(at, rows, here)
            else:
                self.pass_together(at, rows, here)
        else:
            self.steps(at, chain[-1].body)
        body.ret()

    def pass_together(self, at: _Place, beside: Beside, count: Value) -> None:
        """Some rows, operation by operation."""
        f, axis = at.f, self.sized(beside.rows)
        whole = f.compare("eq", count, BESIDE)
        self.note(beside.body[0], f"up to {BESIDE} rows pass together, operation by operation")
        for op in beside.body:

            def each(op: MergedOp = op) -> None:
                f.loop(0, count, lambda index, _: self.invoke(_moved(at, axis, index), op))

            vector = beside.together(op)
            if vector is None:
                each()
            else:
                f.when(whole, lambda vector=vector: self.invoke(at, vector), each)  # type: ignore[misc]

    def serves(self, carried: Carried) -> bool:
        """Whether there is code for many rows at a time."""
        return side_by_side(carried, self.tensors) or place_of(carried, self.tensors) is not None

    def carry(self, at: _Place, carried: Carried, count: Value) -> None:
        """Rows that carry values, by a function of their own: side by side, or one after the other."""
        place = place_of(carried, self.tensors)
        if place is not None and not side_by_side(carried, self.tensors):
            self.search(at, carried, place, count)
            return
        name, new = self.function((carried, True))
        if new:
            emit_carried(self.module, self.target, name, carried, self.tensors, self.sized)
            self.note(carried.step, f"vectors across rows, up to {ROWS} of them side by side")
        bases = (f"ptr {base}" for base in at.bases)
        at.f.call(name, "ptr %env", f"i64 {at.thread}", *bases, f"i64 {count}")

    def search(self, at: _Place, carried: Carried, place: PlaceOf, count: Value) -> None:
        """The places of the extreme elements of rows, by a function of its own."""
        along, strides = self.sized(carried.loop.axis), carried.loop.axis.strides
        name, new = self.function((place, True))
        if new:
            rows = self.sized(carried.rows).strides if carried.rows is not None else ()
            moves = (rows[place.x], rows[place.out]) if rows else (0, 0)
            row = along.extent, plain(strides[place.x])
            emit_place(self.module, self.target, name, place, self.tensors, row, moves)
            self.note(carried.step, "lanes keep the best of their elements and its place")
        x, out = at.f.at(at.bases[place.x], along.offsets[place.x]), at.bases[place.out]
        at.f.call(name, "ptr %env", f"i64 {at.thread}", f"ptr {x}", f"ptr {out}", f"i64 {count}")


def _moved(at: _Place, axis: Axis, index: Value) -> _Place:
    f = at.f
    bases = [
        f.at(base, f.add(f.mul(index, stride), offset))
        for base, stride, offset in zip(at.bases, axis.strides, axis.offsets, strict=True)
    ]
    return _Place(f, bases, {**at.indices, axis.id: (index, axis.extent)}, at.inside, at.thread)


def _condition(at: _Place, guard: Guard) -> Value:
    """A guard as an i1, or as 0 or 1 where it is known."""
    result: Value = 1
    for term in guard:
        index, extent = at.indices[term.axis]
        wanted = 0 if isinstance(term, First) else extent - 1
        if isinstance(index, int) or extent == 1:
            holds: Value = int(extent == 1 or index == wanted)
        else:
            holds = at.f.compare("eq", index, wanted)
        result = at.f.both(result, holds)
    return result


def _flag(at: _Place, guard: Guard | None) -> str:
    if guard is None:
        return "false"
    value = _condition(at, guard)
    return {0: "false", 1: "true"}[value] if isinstance(value, int) else value
