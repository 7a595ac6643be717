"""Sweeps of stencils over the rows of their fields: the values of the same plan without them, in less memory."""

from __future__ import annotations

import numpy as np
import pytest

import tileweave as tw
from tileweave import graph as g
from tileweave.backends.cpu.target import calls as cpu_calls
from tileweave.lower.sweeps import find, rows
from tileweave.planner import machines
from tileweave.runtime import direct
from tileweave.runtime import prepare as preparing
from tileweave.runtime.prepare import prepare

GRAPHS = 14
FOUND: dict = {}
"""What a plan stores last -> its sweeps."""


def executables(plan) -> list:
    """The executables that are kept with a plan."""
    return [one for idle in prepare(plan).extra.get("executables", {}).values() for one in idle.kept()]


def sweeps_of(plan) -> list:
    """The sweeps of a plan that has run."""
    return FOUND.get(plan.steps[-1].node, [])


@pytest.fixture(autouse=True)
def noted(monkeypatch):
    """Notes the sweeps of plans as they are prepared."""
    FOUND.clear()
    real = find.find

    def noting(steps, *about):
        made = FOUND[steps[-1].node] = real(steps, *about)
        return made

    monkeypatch.setattr(find, "find", noting)


def anew(plan):
    """The plan, about which nothing is kept."""
    preparing._KEPT.clear()
    direct._READY.clear()
    direct.QUICK.clear()
    return plan


@pytest.fixture
def small_panels(monkeypatch):
    """Panels of few rows, so that small fields have several."""
    monkeypatch.setattr(find, "LEAST_BYTES", 1)
    monkeypatch.setattr(find, "SHARE", 9.0)
    monkeypatch.setattr(rows, "PANEL_BYTES", 1 << 10)
    monkeypatch.setattr(rows, "QUANTUM_BYTES", 256)


def steps_by_numpy(x, weights, steps, boundary="constant", value=0):
    """A stencil, from its definition."""
    around = [(n // 2, n // 2) for n in weights.shape]
    for _ in range(steps):
        wide = np.pad(x, around, "reflect") if boundary == "reflect" else np.pad(x, around, constant_values=value)
        windows = np.lib.stride_tricks.sliding_window_view(wide, weights.shape)
        x = (windows * weights).sum(axis=tuple(range(x.ndim, 2 * x.ndim))).astype(x.dtype)
    return x


@pytest.mark.parametrize("boundary, value", [("constant", 0), ("constant", 2.5), ("reflect", 0)])
@pytest.mark.parametrize(
    "shape, extents", [((67, 33), (3, 3)), ((50, 40), (5, 1)), ((3000,), (7,)), ((20, 9, 16), (3, 1, 3))]
)
def test_stencils_of_any_rank_and_boundary(small_panels, shape, extents, boundary, value) -> None:
    rng = np.random.default_rng(len(shape))
    weights = rng.standard_normal(extents, np.float32) / np.float32(np.prod(extents))
    x = tw.source(name="x", shape=shape, dtype="float32")
    y = x
    for _ in range(5):
        y = g.stencil(y, weights, boundary, value)
    plan = anew(tw.plan(y))
    for _ in range(3):
        given = rng.standard_normal(shape, np.float32)
        expected = steps_by_numpy(given, weights, 5, boundary, value)
        np.testing.assert_allclose(tw.run(plan, bind={"x": given}), expected, rtol=1e-4, atol=1e-5)
        out = np.full(shape, 7, np.float32)
        assert tw.run(plan, bind={"x": given}, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
        tw.run(plan, bind={"x": given}, out=given)  # what is read is not written over too early
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    assert all(len(sweep.made) > 1 for sweep in sweeps_of(plan))
    assert sweeps_of(plan)


def random_steps(rng):
    """(results, shape, type) of a graph of stencils, of fields and coefficients in space, and of what is between."""
    rank = int(rng.integers(1, 4))
    shape = [
        (int(rng.integers(1000, 9000)),),
        (int(rng.integers(60, 300)), int(rng.integers(16, 60))),
        (int(rng.integers(40, 90)), int(rng.integers(5, 14)), int(rng.integers(16, 30))),
    ][rank - 1]
    dtype = np.dtype(("float32", "float64")[rng.integers(2)])
    fields = [tw.source(name=name, shape=shape, dtype=dtype.name) for name in "xz"]
    varies = tw.source(rng.standard_normal(shape).astype(dtype) * dtype.type(0.3))
    results = []
    for _ in range(int(rng.integers(3, 14))):
        y, other = fields[rng.integers(len(fields) - 2, len(fields))], fields[rng.integers(len(fields))]
        extents = tuple(min(int(rng.choice([1, 3, 5, 7])), 2 * ((n - 1) // 2) + 1) for n in shape)
        weights = (rng.standard_normal(extents) / np.sqrt(np.prod(extents))).astype(dtype)
        choice, value = rng.integers(8), float(rng.choice([0, 2.5]))
        if choice < 3:
            new = g.stencil(y, weights, "constant", value)
        elif choice == 3:
            new = g.stencil(y, weights, "reflect")
        elif choice == 4:
            new = g.stencil(y, weights) * varies + other
        elif choice == 5:  # of two steps before, as in the wave equation
            new = y * dtype.type(1.6) - other * dtype.type(0.6) + g.stencil(y, weights) * dtype.type(0.1)
        elif choice == 6:  # upstream or downstream alone
            far = int(rng.integers(1, 4))
            edge = g.full((far, *shape[1:]), 0.5, dtype.name)
            moved = g.concat([edge, y[:-far]], 0) if rng.random() < 0.5 else g.concat([y[far:], edge], 0)
            new = y * dtype.type(0.6) + moved * dtype.type(0.4)
        else:
            new = tw.tanh(y)
        fields.append(new)
        if rng.random() < 0.12:
            results.append(tw.sum(new, 0) if rng.random() < 0.4 else new)
    return [*results, fields[-1]], shape, dtype


def test_random_steps_equal_the_plan_without_sweeps_bit_for_bit(monkeypatch) -> None:
    """Fields of other steps, results in between, arrays that are written over, several machines."""
    seed = int(np.random.default_rng().integers(1 << 31))
    swept = 0
    for number in range(seed, seed + GRAPHS):
        print(f"seed {number}")
        rng = np.random.default_rng(number)
        outs, shape, dtype = random_steps(rng)
        monkeypatch.setattr(rows, "PANEL_BYTES", int(rng.choice([64, 256, 1024, 2048])))
        monkeypatch.setattr(rows, "QUANTUM_BYTES", int(rng.choice([256, 1024])))
        monkeypatch.setattr(find, "SHARE", float(rng.choice([0.5, 2, 9])))
        monkeypatch.setattr(find, "MOST_STEPS", int(rng.choice([3, 5, 100])))
        monkeypatch.setattr(find, "LIGHT", 10000)
        used = (None, machines(2), machines(3, memory="64MiB"))[rng.integers(3)]
        arrays = {name: rng.standard_normal(shape).astype(dtype) for name in "xz"}
        plan = tw.plan([*outs, tw.sum(tw.source(name="x", shape=shape, dtype=dtype.name))], used)
        read = {piece.source for task in prepare(plan).tasks for one in task.reads for piece in one.pieces} - {None}
        bind = {name: array for name, array in arrays.items() if name in {source.name for source in read}}
        monkeypatch.setattr(find, "LEAST_BYTES", 1 << 40)
        expected = tw.run(anew(plan), bind=bind, threads=2)
        monkeypatch.setattr(find, "LEAST_BYTES", 1)
        got = tw.run(anew(plan), bind=bind, threads=int(rng.integers(1, 3)))
        swept += bool(sweeps_of(plan))
        for one, wanted in zip(got, expected, strict=True):
            np.testing.assert_array_equal(one, wanted)
        for _ in range(2):  # the array of a source takes a result
            own = {name: array.copy() for name, array in bind.items()}
            out = [None] * len(outs) + [None]
            out[next(k for k, one in enumerate(outs) if one.shape == shape)] = own["x"]
            got = tw.run(plan, bind=own, out=out, threads=2)
            for one, wanted in zip(got, expected, strict=True):
                np.testing.assert_array_equal(one, wanted)
    assert swept > GRAPHS // 4


@pytest.mark.parametrize("seed, length", [(0, 562), (1, 435), (2, 462)])
def test_panels_of_few_elements_are_summed_as_whole_fields_are(monkeypatch, seed, length) -> None:
    """None is a single element: a dot product, whose terms other code adds in another order."""
    rng = np.random.default_rng([seed, 7])
    weights = (rng.standard_normal(7) / 2).astype("f4")
    y = tw.source(name="x", shape=(length,), dtype="float32")
    for _ in range(3):
        y = tw.tanh(g.stencil(y, weights, "reflect"))
    plan, given = tw.plan(y), rng.standard_normal(length, np.float32)
    expected = tw.run(anew(plan), bind={"x": given})
    for name, value in (("LEAST_BYTES", 1), ("SHARE", 9.0)):
        monkeypatch.setattr(find, name, value)
    for name, value in (("PANEL_BYTES", 64), ("QUANTUM_BYTES", 4), ("FEWEST_WAVES", 1)):
        monkeypatch.setattr(rows, name, value)
    np.testing.assert_array_equal(tw.run(anew(plan), bind={"x": given}), expected)
    (sweep,) = sweeps_of(plan)
    panels = [b - a for wave in range(len(sweep.made)) for k in range(3) for a, b in sweep.panels(wave, k)]
    assert min(panels) >= 2
    assert max(panels) <= 20


@pytest.mark.parametrize("objects", [True, False])
def test_a_hundred_steps_hold_their_result_and_a_window(monkeypatch, objects) -> None:
    """In sweeps of some steps each, whose last fields lie in the result, one where the one before it lay."""
    if not objects:
        monkeypatch.setattr(cpu_calls, "_takes_objects", lambda: False)
    monkeypatch.setattr(find, "LEAST_BYTES", 1)
    monkeypatch.setattr(rows, "PANEL_BYTES", 1 << 14)
    x = tw.source(np.random.default_rng(5).random((512, 256), np.float32))
    y, weights = x, np.full((3, 3), 1 / 9, np.float32)
    for _ in range(100):
        y = g.stencil(y, weights)
    plan = anew(tw.plan(y))
    np.testing.assert_allclose(tw.run(plan), steps_by_numpy(np.asarray(x), weights, 100), rtol=1e-4)
    (made,) = executables(plan)
    assert len(sweeps_of(plan)) > 1
    assert not made.python_steps
    assert made.arena_bytes < 0.25 * np.asarray(x).nbytes


def test_a_step_that_needs_the_last_row_first_is_in_no_sweep(small_panels, monkeypatch) -> None:
    """Around a ring every step waits for the whole of the one before it."""
    monkeypatch.setattr(find, "SHARE", 0.5)
    given = np.random.default_rng(8).random((200, 16), np.float32)
    y = tw.source(name="x", shape=given.shape, dtype="float32")
    expected = given
    for _ in range(4):
        y = g.stencil(g.concat([y[-1:], y[:-1]], 0), np.full((3, 3), 1 / 9, np.float32))
        expected = steps_by_numpy(np.roll(expected, 1, 0), np.full((3, 3), 1 / 9, np.float32), 1)
    plan = anew(tw.plan(y))
    np.testing.assert_allclose(tw.run(plan, bind={"x": given}), expected, rtol=1e-4)
    assert not sweeps_of(plan)
    assert len(prepare(plan).tasks) > 2


def test_sweeps_keep_to_the_memory_of_the_machine(small_panels) -> None:
    x = tw.source(np.random.default_rng(6).random((512, 256), np.float32))
    y, weights = x, np.full((3, 3), 1 / 9, np.float32)
    for _ in range(12):
        y = g.stencil(y, weights)
    expected = steps_by_numpy(np.asarray(x), weights, 12)
    for memory in ("1GiB", "1600KiB"):
        plan = anew(tw.plan(y, machines(1, memory=memory)))
        np.testing.assert_allclose(tw.run(plan), expected, rtol=1e-4)
        assert executables(plan)[0].arena_bytes < 1 << 18
