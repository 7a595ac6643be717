"""Tasks in columns, against the tasks made one by one: random graphs in random plans, and shapes of reads by hand."""

import numpy as np
import pytest
from plans import random_plan
from random_graphs import random_graph

import tileweave as tw
from tileweave import graph as g
from tileweave import lower
from tileweave.planner import Plan, machines, tasks
from tileweave.planner.count import task_memory
from tileweave.planner.steps import steps_of
from tileweave.planner.tasks import Tasks
from tileweave.planner.tasks.columns import form

SEED = 20261124


def agree(made: Tasks) -> int:
    """Holds every row of the columns against its task; the number of kinds."""
    step_of, seen = [task.step for task in made], set()
    for kind in made.kinds:
        alike = form(kind.sample, step_of)
        assert kind.sample == made[int(kind.numbers[0])]
        needs = kind.needs.tolist()
        for row, number in enumerate(kind.numbers.tolist()):
            task = made[number]
            assert form(task, step_of) == alike and task.number == number and number not in seen
            seen.add(number)
            assert task.machine == kind.machines[row] and task.index.start == tuple(kind.index[row])
            assert tuple(n for n in needs[row] if n >= 0) == task.needs
            assert [out.start for out in task.outs] == [tuple(out[row]) for out in kind.outs]
            for read, columns in zip(task.reads, kind.reads, strict=True):
                assert read.box.start == tuple(columns.boxes[row])
                for piece, column in zip(read.pieces, columns.pieces, strict=True):
                    assert piece.task == column.tasks[row] and piece.box.start == tuple(column.boxes[row])
                    starts = piece.region.start, piece.block.start
                    assert starts == (tuple(column.regions[row]), tuple(column.blocks[row]))
    assert seen == {*range(len(made))}
    return len(made.kinds)


@pytest.mark.parametrize("seed", range(40))
def test_columns_are_the_tasks_of_random_plans(seed: int) -> None:
    print("seed", SEED + seed)
    rng = np.random.default_rng(SEED + seed)
    graph = g.Graph.of(*(value.tensor for value in random_graph(SEED + seed, "float32")))
    plan = random_plan(graph, machines(int(rng.integers(1, 7))), rng, spill=seed % 3 == 0)
    made = tasks(plan)
    agree(made)
    memory = task_memory(plan.steps, made.kinds)
    readers = np.zeros(len(made), int)
    for task in made:
        readers[[*task.needs]] += 1
    assert memory.readers.tolist() == readers.tolist()


class Forgets(dict):
    """A table from which another thread takes at once what is put into it."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


def test_what_another_thread_forgets_is_found_again() -> None:
    graph = g.Graph.of(*(value.tensor for value in random_graph(SEED, "float32")))
    plan = random_plan(graph, machines(3), np.random.default_rng(SEED))
    made = Tasks(plan.steps, plan.machines.order)
    made.enumerator._views = Forgets()
    agree(made)
    assert [*made] == [*tasks(plan)]


def reads() -> dict[str, g.Tensor]:
    """Results that read a made field of 24 x 30 in several ways."""
    x = tw.exp(tw.source(np.random.default_rng(0).random((24, 30)).astype(np.float32)))
    image = tw.exp(tw.source(np.random.default_rng(0).random((1, 2, 24, 30)).astype(np.float32)))
    weight = tw.source(np.random.default_rng(1).random((4, 2, 3, 3)).astype(np.float32))
    return {
        "slices": x[:-2, :-3] + x[2:, 3:],
        "stencil": x[1:-1, 1:-1] * 4 + x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2],
        "transpose": tw.exp(tw.transpose(x)),
        "concat": tw.exp(tw.concat([x[3:], x[:3] * 2, x], 0)),
        "mirrored": x[::-1, ::-1] * 2,
        "stepped": x[::2, 1::3] * 2,
        "broadcast": x + x[:1] + x[:, :1],
        "padded": tw.exp(tw.pad(x, ((1, 2), (0, 3)))),
        "windows": tw.nn.conv(image, weight),
        "product": x @ tw.transpose(x),
        "rows": tw.sum(x, axis=1) + tw.max(x, axis=1),
    }


@pytest.mark.parametrize("name", reads())
def test_inner_shards_are_of_one_kind(name: str) -> None:
    graph = g.Graph.of(reads()[name])
    for parts in (5, 8):
        grids = {
            o: tuple(
                1 if o.signature is None or k in o.signature.monoids else min(parts, n)
                for k, n in enumerate(o.index.shape)
            )
            for o in graph.operations
        }
        steps = steps_of(graph, grids, 1, lower.decide, lambda sink: None)
        made = tasks(Plan(graph, machines(1), steps))
        kinds = agree(made)
        assert parts < 8 or kinds < len(made) / 3
