"""The code of a recurrent layer: arrange the weights where they are not, then step after step.

Either each way is a task, with all its steps, or one way follows the other and threads share each step. A step is a
loop over panels of the state's elements. A tile of it, some rows of the batch by a panel, holds the sums of all gates
in registers while the terms pass; then the gates become the new state. Where a reset gate multiplies the state before
its product, a step is two such loops: the second multiplies what the first has reset.

Source: own.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tileweave.backends.cpu.llvm import functions, vectors
from tileweave.backends.cpu.llvm.elements import Element, element, vector
from tileweave.backends.cpu.llvm.functions import Floats
from tileweave.backends.cpu.llvm.ir import Function, Module, Value
from tileweave.backends.cpu.llvm.loops import run_tasks
from tileweave.backends.cpu.moves import HEAD
from tileweave.backends.cpu.target.jit import Code, compile_ir
from tileweave.backends.cpu.target.target import Target

_ARRAYS = ("x", "u", "state", "more", "out", "held")
_SIZES = (
    *("steps", "batch", "hidden", "panels", "ways", "backwards", "arranged", "apart", "tasks", "arrangers"),
    "between",
)
_STRIDES = ("x_step", "x_row", "x_way", "u_row", "u_way", "state_row", "state_way", "more_row", "more_way")
_WORDS = (*_ARRAYS, *_SIZES, *_STRIDES)
PLACES = {name: 8 * (HEAD + k) for k, name in enumerate(_WORDS)}
"""Word of the environment -> where it is, in bytes."""
ENV_BYTES = 8 * (HEAD + len(PLACES))
_POINTERS = ("env", "x", "state", "more", "out", "inner", "weights", "reset", "update")
_NOW = {name: 8 * k for k, name in enumerate((*_POINTERS, "state_row", "more_row", "out_row"))}
"""Word of what a step of one way has -> where it is, in bytes."""
_MEMORY = 16
"""Where an environment names the working memory; so many bytes behind its beginning (``between``) stands what the first
of two loops leaves: per way the states that are reset, then the update gates."""
LOOPS = {"early_gru": ((0, 1), (2,))}
"""Cell -> the gates of each of its loops, where it has several."""
_UNROLLED = 4
"""Terms that pass in one turn of a loop."""


@dataclass(frozen=True, slots=True)
class StepTile:
    """What code is made for.

    Args:
        cell: whose gates become the state.
        gates: how many it has.
        type: of the elements, ``float`` or ``double``.
        lanes: of a vector.
        rows: of the batch that are computed at once.
        vectors: of the state's elements in a panel.
    """

    cell: str
    gates: int
    type: str
    lanes: int
    rows: int
    vectors: int

    @property
    def loops(self) -> tuple[tuple[int, ...], ...]:
        """The gates of each loop of a step."""
        return LOOPS.get(self.cell, (tuple(range(self.gates)),))

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return 4 if self.type == "float" else 8

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector."""
        return self.lanes * self.width

    @property
    def term_bytes(self) -> int:
        """Bytes that a panel has of one term."""
        return self.gates * self.vectors * self.vector_bytes

    @property
    def element(self) -> Element:
        """As code names the type."""
        return element("FP32" if self.type == "float" else "FP64")


def _words(f: Function, *names: str, env: str = "%env") -> list[str]:
    """Words of the environment."""
    return [f.load("ptr" if name in _ARRAYS else "i64", f.at(env, PLACES[name]), 8) for name in names]


def _now(f: Function, *names: str) -> list[str]:
    """Words of the step that runs."""
    return [f.load("ptr" if name in _POINTERS else "i64", f.at("%now", _NOW[name]), 8) for name in names]


def _shared(f: Function, task: str, frame: str, tasks: Value) -> None:
    """Run a function once per task."""
    f.when(
        f.compare("sgt", tasks, 1),
        lambda: run_tasks(f, task, frame, tasks, "0"),
        lambda: f.call(task, f"ptr {frame}", "i64 0", "i64 0"),
    )


@functools.cache
def code(tile: StepTile, target: Target) -> Code:
    """``entry(env)``, which runs all steps."""
    module = Module()
    f = Function(module, "entry", [("ptr", "env")], public=True)
    u, arranged, ways, apart, arrangers = _words(f, "u", "arranged", "ways", "apart", "arrangers")
    memory = f.load("ptr", f.at("%env", _MEMORY), 8)
    lacks = f.compare("eq", arranged, 0)
    f.store("ptr", f.value(f"select i1 {lacks}, ptr {memory}, ptr {u}"), f.at("%env", PLACES["held"]), 8)
    f.when(lacks, lambda: _shared(f, "arrange", "%env", arrangers))

    def go(way: Value, _: list[str]) -> None:
        f.call("go", "ptr %env", f"i64 {way}", "i64 0")

    f.when(f.compare("sgt", apart, 0), lambda: run_tasks(f, "go", "%env", ways, "0"), lambda: f.loop(0, ways, go))
    f.ret()
    _arrange(module, tile)
    _go(module, tile)
    for number, gates in enumerate(tile.loops):
        _part(module, tile, target, f"part{number}", gates)
    return compile_ir(module.text(), ("entry",), target)


def _go(module: Module, tile: StepTile) -> None:
    """A task: all steps of a way."""
    f = Function(module, "go", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    steps, batch, hidden, panels, ways, backwards = _words(f, "steps", "batch", "hidden", "panels", "ways", "backwards")
    x, state, more = (
        f.at(base, f.mul("%task", by))
        for base, by in zip(_words(f, "x", "state", "more"), _words(f, "x_way", "state_way", "more_way"), strict=True)
    )
    out, held, tasks = _words(f, "out", "held", "tasks")
    x_step, state_row, more_row = _words(f, "x_step", "state_row", "more_row")
    own = f.mul(hidden, tile.width)
    row = f.mul(own, ways)
    block = f.mul(row, batch)
    out, weights = (
        f.at(out, f.mul("%task", own)),
        f.at(held, f.mul(f.mul("%task", f.mul(panels, hidden)), tile.term_bytes)),
    )
    turned = f.value(f"trunc i64 {f.value(f'lshr i64 {backwards}, %task')} to i1")
    now = f.slot("i8", 8 * len(_NOW))

    def be(**words: Value) -> None:
        for name, word in words.items():
            f.store("ptr" if name in _POINTERS else "i64", word, f.at(now, _NOW[name]), 8)

    be(env="%env", weights=weights, state=state, state_row=state_row, more=more, more_row=more_row, out_row=row)
    if len(tile.loops) > 1:
        both = f.mul(f.mul(own, batch), 2)
        reset = f.at(f.at(f.load("ptr", f.at("%env", _MEMORY), 8), *_words(f, "between")), f.mul("%task", both))
        be(reset=reset, update=f.at(reset, f.mul(own, batch)))

    def step(number: Value, _: list[str]) -> None:
        t = f.value(f"select i1 {turned}, i64 {f.sub(f.sub(steps, 1), number)}, i64 {number}")
        here = f.at(out, f.mul(t, block))
        inner = f.at(here, f.mul(steps, block))
        be(x=f.at(x, f.mul(t, x_step)), out=here, inner=inner)
        for loop in range(len(tile.loops)):
            _shared(f, f"part{loop}", now, tasks)
        be(state=here, state_row=row)
        if tile.cell == "lstm":
            be(more=inner, more_row=row)

    f.loop(0, steps, step)
    f.ret()


def _panels(f: Function, panels: Value, tasks: Value) -> tuple[Value, Value]:
    """The panels of a task, the second exclusive."""
    first, end = (f.div(f.mul(task, panels), tasks) for task in ("%task", f.add("%task", 1)))
    return first, end


def _arrange(module: Module, tile: StepTile) -> None:
    """A task that arranges the weights of some panels of all ways; lanes behind the last element repeat it."""
    f = Function(module, "arrange", [("ptr", "env"), ("i64", "task"), ("i64", "thread")])
    u, held, hidden, panels, u_row = _words(f, "u", "held", "hidden", "panels", "u_row")
    ways, arrangers, u_way = _words(f, "ways", "arrangers", "u_way")
    full, short = vector(tile.type, tile.lanes), vectors.short_row(tile.lanes, tile.type)
    last, wide = f.sub(hidden, 1), tile.vectors * tile.lanes
    whole = f.mul(f.div(hidden, short), short)
    first, end = _panels(f, f.mul(panels, ways), arrangers)

    def panel(number: Value, _: list[str]) -> None:
        begin = f.at(held, f.mul(f.mul(number, hidden), tile.term_bytes))
        source = f.at(u, f.mul(f.div(number, panels), u_way))

        def one(index: Value, _: list[str]) -> None:
            gate, place = f.div(index, tile.vectors), f.rem(index, tile.vectors)
            into = f.at(begin, f.mul(index, tile.vector_bytes))
            start = f.add(f.mul(f.rem(number, panels), wide), f.mul(place, tile.lanes))
            rows = [
                f.at(source, f.mul(f.add(f.mul(gate, hidden), f.min(f.add(start, lane), last)), u_row))
                for lane in range(tile.lanes)
            ]

            def some(term: Value, _: list[str]) -> None:
                at = f.mul(term, tile.width)
                read = [f.load(vector(tile.type, short), f.at(each, at), tile.width) for each in rows]
                for k, made in enumerate(vectors.transpose(f, tile.type, tile.lanes, read)):
                    f.store(full, made, f.at(into, f.mul(f.add(term, k), tile.term_bytes)), tile.width)

            def single(term: Value, _: list[str]) -> None:
                at, to = f.mul(term, tile.width), f.at(into, f.mul(term, tile.term_bytes))
                for lane, each in enumerate(rows):
                    f.store(tile.type, f.load(tile.type, f.at(each, at), tile.width), f.at(to, lane * tile.width), 4)

            f.loop(0, whole, some, step=short)
            f.loop(whole, hidden, single)

        f.loop(0, tile.gates * tile.vectors, one)

    f.loop(first, end, panel)
    f.ret()


def _part(module: Module, tile: StepTile, target: Target, name: str, which: tuple[int, ...]) -> None:
    """A task of a step: the gates of a loop, and what they become, of some panels, for all rows."""
    f = Function(module, name, [("ptr", "now"), ("i64", "task"), ("i64", "thread")])
    (env,) = _now(f, "env")
    batch, panels, tasks = _words(f, "batch", "panels", "tasks", env=env)
    sums = f.slot("i8", tile.rows * tile.vectors * len(which) * tile.vector_bytes)
    first, end = _panels(f, panels, tasks)
    tiles = f.div(f.add(batch, tile.rows - 1), tile.rows)

    def panel(number: Value, _: list[str]) -> None:
        def rows(index: Value, _: list[str]) -> None:
            begin = f.min(f.mul(index, tile.rows), f.sub(batch, tile.rows))  # the last rows may be computed twice
            place = _Place(f, tile, env, str(begin), f.mul(number, tile.vectors * tile.lanes))
            _multiply(f, tile, target, place, which, number, sums)

            def one(each: Value, _: list[str]) -> None:
                at = f.at(sums, f.mul(each, len(which) * tile.vector_bytes))
                gates = [
                    f.load(vector(tile.type, tile.lanes), f.at(at, k * tile.vector_bytes), tile.vector_bytes)
                    for k in range(len(which))
                ]
                _finish(f, tile, target, place, f.div(each, tile.vectors), f.rem(each, tile.vectors), gates)

            f.loop(0, tile.rows * tile.vectors, one)

        f.loop(0, tiles, rows)

    f.loop(first, end, panel)
    f.ret()


class _Place:
    """Where a tile's operands lie.

    Args:
        f: where code goes.
        tile: the tile.
        env: the environment.
        row: its first row.
        begin: its first element of the state.
    """

    def __init__(self, f: Function, tile: StepTile, env: str, row: str, begin: Value) -> None:
        self.f, self.tile, self.row, self.begin = f, tile, row, begin
        self.hidden, self.x_row = _words(f, "hidden", "x_row", env=env)
        self.x, self.state, self.more, self.out, self.inner = _now(f, "x", "state", "more", "out", "inner")
        self.reset, self.update = _now(f, "reset", "update")
        self.dense_row = f.mul(self.hidden, tile.width)
        self.state_row, self.more_row, self.out_row = _now(f, "state_row", "more_row", "out_row")

    def mask(self, number: Value) -> str:
        """The lanes of a vector that are elements of the state."""
        f, lanes = self.f, self.tile.lanes
        return vectors.mask_below(f, str(f.sub(self.hidden, f.add(self.begin, f.mul(number, lanes)))), lanes)

    def at(self, base: str, row_bytes: Value, row: Value, number: Value, gate: int = 0) -> str:
        """Where a vector of an operand lies."""
        f, tile = self.f, self.tile
        index = f.add(f.add(self.begin, f.mul(number, tile.lanes)), f.mul(self.hidden, gate))
        return f.at(f.at(base, f.mul(f.add(self.row, row), row_bytes)), f.mul(index, tile.width))

    def between(self, base: str, row: Value, number: Value) -> str:
        """Where a vector of what a loop leaves for the next one lies."""
        return self.at(base, self.dense_row, row, number)

    def write(self, mask: str, value: str, pointer: str) -> None:
        """Write a vector."""
        if self.tile.lanes == 1:
            self.f.store(self.tile.type, value, pointer, self.tile.width)
        else:
            vectors.store(self.f, self.tile.element, self.tile.lanes, value, pointer, mask)

    def read(self, mask: str, pointer: str) -> str:
        """A vector."""
        if self.tile.lanes == 1:
            return self.f.load(self.tile.type, pointer, self.tile.width)
        return vectors.load(self.f, self.tile.element, self.tile.lanes, pointer, mask)


def _multiply(
    f: Function, tile: StepTile, target: Target, place: _Place, which: tuple[int, ...], panel: Value, sums: str
) -> None:
    """The sums of a tile, all gates of a row and vector side by side."""
    full, hidden = vector(tile.type, tile.lanes), place.hidden
    (weights,) = _now(f, "weights")
    weights = f.at(weights, f.mul(f.mul(panel, hidden), tile.term_bytes))
    masks = [place.mask(k) for k in range(tile.vectors)]
    given = (place.state, place.state_row) if which[0] == 0 else (place.reset, place.dense_row)
    states = [f.at(given[0], f.mul(f.add(place.row, row), given[1])) for row in range(tile.rows)]
    start: list[tuple[str, Value]] = []
    for row in range(tile.rows):
        for gate in which:
            for k in range(tile.vectors):
                late = tile.cell == "gru" and gate == 2  # its inputs are added behind the reset gate
                source = place.at(place.more, 0, 0, k) if late else place.at(place.x, place.x_row, row, k, gate)
                start.append((full, place.read(masks[k], source)))

    v = Floats(f, target, tile.type, tile.lanes)

    def term(number: Value, now: list[str]) -> list[str]:
        at, offset = f.at(weights, f.mul(number, tile.term_bytes)), f.mul(number, tile.width)
        count = len(which) * tile.vectors
        few = count <= tile.rows  # of which fewer are held in registers while the others pass

        def factor(n: int) -> str:
            return f.load(full, f.at(at, (which[0] * tile.vectors + n) * tile.vector_bytes), tile.width)

        def one(row: int) -> str:
            value = f.load(tile.type, f.at(states[row], offset), tile.width)
            return vectors.broadcast(f, tile.type, tile.lanes, value)

        kept = [factor(n) for n in range(count)] if few else [one(row) for row in range(tile.rows)]
        found = list(now)
        for passing in range(tile.rows if few else count):
            each = one(passing) if few else factor(passing)
            for k, value in enumerate(kept):
                at_sum = passing * count + k if few else k * count + passing
                found[at_sum] = v.multiply_add(value, each, now[at_sum])
        return found

    def several(number: Value, now: list[str]) -> list[str]:
        for k in range(_UNROLLED):
            now = term(f.add(number, k), now)
        return now

    whole = f.mul(f.div(hidden, _UNROLLED), _UNROLLED)
    made = f.loop(0, whole, several, step=_UNROLLED, carry=start)
    made = f.loop(whole, hidden, term, carry=[(full, value) for value in made])
    for number, value in enumerate(made):
        each, k = divmod(number, tile.vectors)
        row, gate = divmod(each, len(which))
        place_of = ((row * tile.vectors + k) * len(which) + gate) * tile.vector_bytes
        f.store(full, value, f.at(sums, place_of), tile.vector_bytes)


def _finish(
    f: Function, tile: StepTile, target: Target, place: _Place, row: Value, number: Value, gates: list[str]
) -> None:
    """A vector of the new state of a row, from the sums of its gates; of a first loop, what the second one needs."""
    v, mask = Floats(f, target, tile.type, tile.lanes), place.mask(number)

    def write(base: str, value: str) -> None:
        place.write(mask, value, place.at(base, place.out_row, row, number))

    if tile.cell == "lstm":
        before = place.read(mask, place.at(place.more, place.more_row, row, number))
        enter, forget, leave = (functions.sigmoid(v, gates[k]) for k in (0, 1, 3))
        inner = v.multiply_add(enter, functions.tanh(v, gates[2]), v.mul(forget, before))
        write(place.inner, inner)
        made = v.mul(leave, functions.tanh(v, inner))
    elif tile.cell == "gru":
        before = place.read(mask, place.at(place.state, place.state_row, row, number))
        given = place.read(mask, place.at(place.x, place.x_row, row, number, 2))
        reset, update = (functions.sigmoid(v, gates[k]) for k in (0, 1))
        new = functions.tanh(v, v.multiply_add(reset, gates[2], given))
        made = v.multiply_add(v.sub(v.constant(1.0), update), new, v.mul(update, before))
    elif tile.cell == "early_gru":
        before = place.read(mask, place.at(place.state, place.state_row, row, number))
        if len(gates) > 1:
            reset, update = (functions.sigmoid(v, gate) for gate in gates)
            place.write(mask, v.mul(reset, before), place.between(place.reset, row, number))
            place.write(mask, update, place.between(place.update, row, number))
            return
        update, new = place.read(mask, place.between(place.update, row, number)), functions.tanh(v, gates[0])
        made = v.multiply_add(v.sub(v.constant(1.0), update), new, v.mul(update, before))
    elif tile.cell == "tanh":
        made = functions.tanh(v, gates[0])
    else:
        made = v.select(v.compare("olt", gates[0], v.constant(0.0)), v.constant(0.0), gates[0])
    write(place.out, made)
