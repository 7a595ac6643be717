"""Makes the outline of a plan, from its tasks as they were bound.

Source: own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np

from tileweave.backends.base import ELEMENTS
from tileweave.graph import Graph, Operation, Selector, Sink, Source, Tensor
from tileweave.graph.ops.grouped.steps import FULL
from tileweave.graph.passes.grouping.alike import Places, plain_nodes
from tileweave.lower.again.form import GraphForm
from tileweave.lower.again.outline import (
    LIMITS,
    Amount,
    ArenaBuffer,
    BlockHome,
    Outline,
    PutTogether,
    Rows,
    SeenAs,
    Shaped,
    TaskInput,
    TaskWork,
    pieces_of,
    window_extents,
)
from tileweave.lower.again.programs import StepPrograms
from tileweave.lower.binding import TaskBinding
from tileweave.lower.execute import COPIES, HEAVY, HEAVY_POINTS, SMALL, SMALL_CONTRACTION, is_small
from tileweave.lower.programs import in_order, key_letter, lowering, program_kind, result_of
from tileweave.lower.reads import is_call, is_native
from tileweave.planner.plan import Step
from tileweave.planner.tasks import Read, ReadPiece, Task
from tileweave.planner.tasks.records import identity_of

Array = np.ndarray[Any, Any]


class _NotCovered(Exception):
    """Something of a plan is nothing that an outline says."""


def outline_of(
    form: GraphForm, graph: Graph, fused: Graph, places: Sequence[Places], made: TaskBinding, memory_bytes: int
) -> Outline | None:
    """The outline of what was bound; None where a part of it is not covered.

    Args:
        form: of the graph.
        graph: that was fused.
        fused: of which the plan is.
        places: of the nodes of the fused graph: `tileweave.graph.passes.grouping.alike.Descent.places`.
        made: the plan's tasks, bound.
        memory_bytes: what all blocks may hold.
    """
    try:
        return _Outlining(form, graph, fused, places, made).outline(memory_bytes)
    except _NotCovered:
        return None


class _Outlining:
    """Makes an outline."""

    def __init__(
        self, form: GraphForm, graph: Graph, fused: Graph, places: Sequence[Places], made: TaskBinding
    ) -> None:
        self._form, self._made, self._table = form, made, made.table
        self._first = plain_nodes(graph)
        self._about = dict(zip(plain_nodes(fused), places, strict=True))
        self._task_of = {self._step(task).node: task.number for task in made.tasks}
        self._source_of = {source: number for number, source in enumerate(made.sources)}
        self._leaf: dict[tuple[int, str], tuple[int, int]] = {}
        self._widened = {
            cast("Selector", node.producer).inputs[0][1]: node
            for node, (_, stands) in self._about.items()
            if stands and isinstance(node, Tensor) and getattr(node.producer, "kind", "") == "unsqueeze"
        }
        for node in plain_nodes(fused):
            if isinstance(node, Tensor) and not isinstance(node.producer, Selector):
                leaf = self._leaf_of(node)
                for k in self._about[node][1]:
                    self._leaf[self._place_of(self._first[k])] = leaf

    def _step(self, task: Task) -> Step:
        return self._made.steps[task.step]

    def outline(self, memory_bytes: int) -> Outline:
        """See `outline_of`."""
        made, table, form = self._made, self._table, self._form
        if table.sweeps or made.in_columns or made.python_steps or made.outputs or len(table.kinds) != table.count:
            raise _NotCovered
        if any(step.cuts.count != 1 or step.stage not in ("block", "store") for step in made.steps):
            raise _NotCovered
        sources = list[int]()
        for source in made.sources:
            (place,) = {form.places[self._first[k]] for k in self._about[source][0]}
            if (source in made.constant) == (place in form.bound):
                raise _NotCovered
            sources.append(place)
        homes, views = dict[int, BlockHome](), dict[int, tuple[TaskInput, Shaped]]()
        fixed, works, still = dict[int, Array](), list[TaskWork](), set[int]()
        self._buffers = dict[int, ArenaBuffer]()
        first, last = (one.tolist() for one in made.places.spans())
        puts = {
            int(buffers[t]): (t, k)
            for k, buffers in made.places.gathers.items()
            for t in np.flatnonzero(buffers >= 0).tolist()
        }
        for task in made.tasks:
            number, step = task.number, self._step(task)
            if step.stage == "store":
                sink = table.sinks[cast("Sink", step.node)]
                if not all(made.is_there(piece, sink) for piece in task.reads[0].pieces):
                    raise _NotCovered
                continue
            if len(step.outputs) != 1 or len(task.outs) != 1:
                raise _NotCovered
            node = cast("Operation", step.node)
            out = self._shaped(Tensor(node, step.outputs[0]))
            if number in made.fixed_blocks:
                fixed[number] = made.fixed_blocks[number]
                if not isinstance(fixed[number], np.ndarray):
                    raise _NotCovered
                self._cone(out.place, still)
                continue
            inputs = tuple([self._input(step, read, k, task) for k, read in enumerate(task.reads)])
            if number in made.places.views:
                if isinstance(inputs[0].seen, PutTogether):
                    raise _NotCovered
                views[number] = inputs[0], out
                continue
            home = made.places.home(number)
            if home is None or not table.native[number]:
                raise _NotCovered
            buffer = int(made.places.buffer_of(number))
            width = home.dtype.itemsize
            if home.result >= 0:
                homes[number] = BlockHome(result=home.result)
            elif buffer in puts:
                homes[number] = BlockHome(buffer, inside=puts[buffer])
            else:
                homes[number] = BlockHome(buffer)
                if buffer not in self._buffers:
                    self._buffers[buffer] = ArenaBuffer(first[buffer], last[buffer], out, width)
            for one in inputs:
                if isinstance(one.seen, PutTogether):
                    b, size = one.seen.buffer, one.dtype.itemsize
                    self._buffers[b] = ArenaBuffer(first[b], last[b], one.shaped, size)
            works.append(self._work(task, step, inputs, out))
        order = {buffer: k for k, buffer in enumerate(self._buffers)}
        homes = {t: replace(h, buffer=order.get(h.buffer, -1)) for t, h in homes.items()}
        if any(h.buffer < 0 and h.result < 0 for h in homes.values()):
            raise _NotCovered
        works = [replace(one, inputs=tuple([_renumbered(x, order) for x in one.inputs])) for one in works]
        results = [Shaped(*place) for place in form.results]
        kinds = [form.type_of(*place).dtype for place in form.results]
        stored = {table.sinks[sink] for sink in made.sinks}
        if len(stored) != len(results) or [made.sinks[sink] for sink in made.sinks] != list(range(len(results))):
            raise _NotCovered
        return Outline(
            made.tasks,
            tuple(works),
            homes,
            views,
            fixed,
            tuple(self._buffers.values()),
            tuple(sources),
            tuple([place for place in sources if place in form.bound]),
            tuple(zip(results, kinds, strict=True)),
            tuple(made.apart.over),
            tuple([(k, form.sizes[k]) for k in sorted(still | self._kept_sizes())]),
            self._constants(),
            memory_bytes,
            made.threads,
            self._leaf,
            sum([sample.nbytes for source, sample in made.sources.items() if source in made.constant]),
        )

    # ---- what is where in the form ----------------------------------------------------------------------------------

    def _place_of(self, node: Any) -> tuple[int, str]:
        return self._form.places[node.producer], node.output

    def _leaf_of(self, tensor: Tensor) -> tuple[int, int]:
        """The task or the source whose values a tensor of the fused graph has."""
        if isinstance(tensor.producer, Source):
            return -1, self._source_of.get(tensor.producer, -1)
        return self._task_of.get(cast("Operation", tensor.producer), -1), -1

    def _same(self, node: Any) -> int | None:
        """The place of the one node of the graph that a node of the fused graph is."""
        found = {self._form.places[self._first[k]] for k in self._about[node][0]}
        return found.pop() if len(found) == 1 else None

    def _shaped(self, tensor: Tensor) -> Shaped:
        stands = self._about[tensor][1]
        if stands:
            return Shaped(*self._place_of(self._first[stands[0]]))
        node = tensor.producer
        if isinstance(node, Selector) and (place := self._same(node)) is not None:
            return Shaped(place)
        if tensor in self._widened:  # a rule has left out dimensions of extent 1, and put them back behind it
            wide = self._widened[tensor]
            rows = cast("Selector", wide.producer).parameter("matrix")
            return Shaped(*self._place_of(self._first[self._about[wide][1][0]]), tuple([row.index(1) for row in rows]))
        if isinstance(node, Selector) and node.kind == "unsqueeze":
            inner = self._shaped(node.inputs[0][1])
            at = {row.index(1): k for k, row in enumerate(node.parameter("matrix"))}
            if inner.dims is None:
                return inner._replace(dims=tuple([at.get(k, -1) for k in range(len(node.out.shape))]))
        raise _NotCovered

    def _seen(self, tensor: Tensor) -> SeenAs:
        """How all of a tensor of the fused graph is seen."""
        moves, rows = list[tuple[Rows, int]](), None
        while isinstance(node := tensor.producer, Selector):
            place = self._same(node)
            if node.kind == FULL:
                if moves:
                    raise _NotCovered
                return SeenAs(-1, -1, (node.parameter("value"),) if place is None else place)
            given: Any = node.parameters
            if len(given) != 2 or given[1][0] != "offset" or (place is None and any(given[1][1])):
                raise _NotCovered
            matrix = given[0][1]
            moves.append((matrix, -1 if place is None else place))
            rows = matrix if rows is None else _product(matrix, rows)
            tensor = node.inputs[0][1]
        return SeenAs(*self._leaf_of(tensor), moves=tuple(moves), rows=rows)

    def _input(self, step: Step, read: Read, k: int, task: Task) -> TaskInput:
        if read.partial:
            raise _NotCovered
        node = cast("Operation", step.node)
        if [name for name, _ in node.inputs] != [one.name for one in task.reads]:
            raise _NotCovered
        tensor = node.inputs[k][1]
        if node.operator in ("linear", "linear_relu") and k == 2 and not self._about[tensor][1]:  # a bias of zeros
            rank = len(node.outputs[0][1].shape)
            shaped = self._shaped(Tensor(node))._replace(dims=tuple(range(rank - len(tensor.shape), rank)))
        else:
            shaped = self._shaped(tensor)
        window: tuple[tuple[int, int, int, int], ...] = ()
        if read.box != tensor.type.box:
            window = self._window(node, read, tensor)
        if len(read.pieces) == 1:
            piece, seen = read.pieces[0], self._seen(tensor)
            offset = seen.offset(self._form) or [0] * len(piece.map.offset)
            rows, own = seen.rows or identity_of(read.box.rank), piece.map.matrix
            wide = [k for k, n in enumerate(read.box.shape) if n != 1]  # no other coefficient counts
            matches = piece.constant or (
                (seen.task, seen.source) == (piece.task, self._number(piece))
                and [[row[k] for k in wide] for row in rows] == [[row[k] for k in wide] for row in own]
                and tuple(offset) == piece.map.offset
            )
            if not matches or any(read.box.start) or (piece.constant and seen.fill == -1):
                raise _NotCovered
            seen = seen._replace(rows=None if piece.shifts else own)
            return TaskInput(read.dtype, shaped, seen, window)
        merged = self._made.places.merged(read)
        if len(merged) == 1 or self._table.never_changes(read) or read.box != tensor.type.box:
            raise _NotCovered
        if shaped.dims is not None:
            raise _NotCovered
        found = pieces_of(self._form, shaped, self._leaf)
        buffer = int(self._made.places.gathers[k][task.number])
        if found is None or len(found) != len(read.pieces):
            raise _NotCovered
        found_pieces = list[tuple[int, int, bool]]()
        for (t, s, view), piece in zip(found, read.pieces, strict=True):
            if (t, s) != (piece.task, self._number(piece)) or view.box != piece.box:
                raise _NotCovered
            there = piece.task >= 0 and int(self._made.places.buffer_of(piece.task)) == buffer
            if there and not piece.whole:
                raise _NotCovered
            found_pieces.append((t, s, there))
        return TaskInput(read.dtype, shaped, PutTogether(shaped, tuple(found_pieces), buffer))

    def _number(self, piece: ReadPiece) -> int:
        return -1 if piece.source is None else self._source_of[piece.source]

    def _window(self, node: Operation, read: Read, tensor: Tensor) -> tuple[tuple[int, int, int, int], ...]:
        """Per dimension behind the first two: the points of a window, its steps and gaps."""
        known: Any = dict(node.parameters)
        if "dilation" not in known or read.name != "x" or any(read.box.start):
            raise _NotCovered
        w = dict(node.inputs).get("w")
        points = w.shape[2:] if w is not None else known["window"]
        out = result_of(node)[1].shape
        own = zip(points, known["stride"], known["dilation"], strict=True)
        made = tuple([(2 + k, n, step, gap) for k, (n, step, gap) in enumerate(own)])
        if window_extents(tensor.shape, out, made) != read.box.shape:
            raise _NotCovered
        return made

    def _work(self, task: Task, step: Step, inputs: tuple[TaskInput, ...], out: Shaped) -> TaskWork:
        node = cast("Operation", step.node)
        names = [read.name for read in task.reads]
        dtype = node.output_types[step.outputs[0]].dtype
        order = tuple(in_order(node, {name: k for k, name in enumerate(names)}, -1))
        if is_call(step, task):
            return TaskWork(task.number, inputs, out, dtype, (), None, step, self._amount(node, task))
        if not is_native(step, task) or step.kernel.backend != COPIES:
            raise _NotCovered
        kind = program_kind(node, step.stage, names)
        if kind.long:
            raise _NotCovered
        constant = [read.name for read in task.reads[:2] if self._table.never_changes(read)]  # others are not arranged
        if not lowering(node, step.stage).startswith(("windows", "contraction")):
            constant = []
        values = dict[Any, int]()
        for place, one in enumerate(self._form.order):
            if isinstance(one, Selector) and one.kind == FULL:
                values.setdefault(repr(one.parameter("value")), place)
        numbers = [values.get(repr(number), -1) for number in kind.numbers()]
        if -1 in numbers:
            raise _NotCovered
        operands = [(names[k] if k >= 0 else "") for k in order]
        programs = StepPrograms(kind, tuple(numbers), tuple(operands), frozenset(constant))
        return TaskWork(task.number, inputs, out, dtype, order, programs, step, self._amount(node, task))

    def _amount(self, node: Operation, task: Task) -> Amount:
        known: Any = dict(node.parameters)
        shapes = [x.shape for _, x in node.inputs]
        made = result_of(node)[1].box
        summed: list[tuple[tuple[int, int], ...]] = []
        if node.operator == "attention":
            letters = known["letters"]
            summed = [((1, letters[1].index(key_letter(letters))),)]
        elif "equation" in known:
            terms, kept = known["equation"].split("->")
            owns = terms.split(",")
            for letter in dict.fromkeys("".join(owns)):
                if letter not in kept:
                    summed.append(tuple([(k, own.index(letter)) for k, own in enumerate(owns) if letter in own]))
        elif node.operator == "rows":
            rank = known["rank"]
            for axis in known["axes"]:
                own = [(k, axis - rank + len(shape)) for k, shape in enumerate(shapes)]
                summed.append(tuple([one for one in own if one[1] >= 0]))
        elif "axes" in known:
            summed = [((0, axis),) for axis in known["axes"]]
        length = prod([max([shapes[k][dim] for k, dim in which]) for which in summed])
        points, weight = node.index.size, 1
        filters: tuple[int, ...] = ()
        if "dilation" in known and node.signature is not None:
            flops = dict(node.signature.costs).get("flops", 2.0) / 2
            per, small = flops * points / max(made.size, 1), SMALL_CONTRACTION
            filters = dict(node.inputs)["w"].shape if len(node.inputs) > 1 else ()
        elif "equation" in known:
            small, per = SMALL_CONTRACTION, 1.0 if points == made.size else 0.0
            if not per and points != made.size * length:
                raise _NotCovered
        else:
            steps: Sequence[tuple[Any, ...]] = known.get("program", ())
            heavy = not HEAVY.isdisjoint([step[0] for step in steps] or [node.operator])
            per, small, weight = -1.0, SMALL, HEAVY_POINTS if heavy else 1
        longer = tuple([length > limit for limit in LIMITS])
        large = max(made.size, *(prod(shape) for shape in shapes)) >= ELEMENTS
        amount = Amount(large, tuple(summed), longer, small, per, weight, filters)
        if amount.alone(shapes, made.shape) != is_small(node, task.index):
            raise _NotCovered
        return amount

    # ---- what must be as it was -------------------------------------------------------------------------------------

    def _cone(self, place: int, still: set[int]) -> None:
        """The sizes of all that a value depends on."""
        form, stack, met = self._form, [place], set[int]()
        while stack:
            one = stack.pop()
            if one in met:
                continue
            met.add(one)
            still |= self._sizes_of(one)
            node = form.order[one]
            if not isinstance(node, Source):
                stack += [form.places[x.producer] for _, x in node.inputs]

    def _sizes_of(self, place: int) -> set[int]:
        starts = [*self._form.starts, len(self._form.sizes)]
        return set(range(starts[place], starts[place + 1]))

    def _kept_sizes(self) -> set[int]:
        """Of what rules took into what they made: where selectors begin, and exponents, small ones of which are written
        as products."""
        kept = {k for same, _ in self._about.values() for k in same}
        found = set[int]()
        for k, node in enumerate(self._first):
            if k in kept:
                continue
            if isinstance(node, Selector) and node.parameters and node.parameters[-1][0] == "offset":
                found.add(min(self._sizes_of(self._form.places[node])))
            if isinstance(node, Operation) and node.operator == "power":
                base = node.input("x1").producer
                while isinstance(base, Selector) and base.inputs:
                    base = base.inputs[0][1].producer
                if isinstance(base, Selector):
                    found.add(min(self._sizes_of(self._form.places[base])))
        return found

    def _constants(self) -> tuple[tuple[int, int], ...]:
        """Constants that are equal, by twos: a rule may have taken one for the other."""
        first, pairs = dict[str, int](), list[tuple[int, int]]()
        for place, node in enumerate(self._form.order):
            if isinstance(node, Selector) and node.kind == FULL:
                other = first.setdefault(repr(node.parameter("value")), place)
                if other != place:
                    pairs.append((other, place))
        return tuple(pairs)


def _renumbered(one: TaskInput, order: Mapping[int, int]) -> TaskInput:
    return (
        replace(one, seen=one.seen._replace(buffer=order[one.seen.buffer]))
        if isinstance(one.seen, PutTogether)
        else one
    )


def _product(a: Rows, b: Rows) -> Rows:
    """The matrix of a map behind another one."""
    width = len(b[0]) if b else 0
    return tuple([tuple([sum(c * b[j][k] for j, c in enumerate(row)) for k in range(width)]) for row in a])
