"""The registry of backends, and one from outside that computes with NumPy."""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

import tileweave as tw
from tileweave import lower
from tileweave.backends import base, host
from tileweave.errors import BackendError, GraphError
from tileweave.teir.ir.primitives import operands_of
from tileweave.teir.ir.program import Invocation

FUNCTIONS = {"Exp": np.exp, "Tanh": np.tanh, "Sqrt": np.sqrt}


class Toy:
    """Takes maps of one operand, and computes them with NumPy."""

    name = "toy"

    def __init__(self) -> None:
        self.ran = 0

    def supports(self, program):
        kinds = [p.operation for p in program.primitives]
        if len(kinds) == 1 and kinds[0] in FUNCTIONS:
            return base.Decision(f"numpy.{FUNCTIONS[kinds[0]].__name__}", "one map", self.name)
        return base.Decision("", "it maps one operand at most")

    def compile(self, program, *, threads=None):
        (invocation,) = [node for node in program.nodes if isinstance(node, Invocation)]
        primitive = program.primitive(invocation.primitive)
        assert operands_of(primitive, program) == ("in0", "out")

        def run(x, out):
            self.ran += 1
            FUNCTIONS[primitive.operation](x, out)

        return base.FunctionKernel(program, run, "NumPy")

    def empty(self, shape, dtype):
        return lambda: np.empty(shape, dtype)

    def calls(self):
        return base.PythonCalls()

    def tune(self, program, *, threads=None, **limits):
        raise BackendError("tune(program)", "there is nothing to tune")


@pytest.fixture
def toy() -> Iterator[Toy]:
    made = Toy()
    base.register(made)
    yield made
    if any(one is made for one in base.backends()):
        base.unregister("toy")


@pytest.mark.parametrize("machines", [1, 3])
def test_a_backend_from_outside_computes_what_it_supports(toy: Toy, machines: int) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((30, 20)), rng.standard_normal((20, 10))
    y = tw.tanh(tw.source(x) @ w)
    plan = tw.plan(y, machines, fuse=False)
    assert "toy: numpy.tanh" in plan.explain() and "cpu: zero, contraction" in plan.explain()
    assert [step["reason"] for step in plan.to_json()["steps"] if step["operation"] == "tanh"] == ["one map"]
    np.testing.assert_allclose(tw.run(plan), np.tanh(x @ w), rtol=1e-12)
    assert toy.ran == 1  # in one process the blocks of all machines are computed at once


def test_who_was_registered_last_is_asked_first_and_a_plan_is_made_anew(toy: Toy) -> None:
    y = tw.exp(tw.source(np.ones(5)))
    assert "toy: numpy.exp" in tw.plan(y).explain()
    base.unregister("toy")
    assert "numpy: exp" in tw.plan(y).explain()
    assert lower.decide(y.producer, "block").reason == f"cpu: 5 elements: compiling pays from {base.ELEMENTS} on"


def test_a_plan_whose_backend_is_gone_says_so(toy: Toy) -> None:
    plan = tw.plan(tw.exp(tw.source(np.ones(5))))
    base.unregister("toy")
    with pytest.raises(tw.TileweaveError, match="there is no such backend"):
        tw.run(plan)


def test_names_are_looked_up_once_and_errors_list_them(toy: Toy) -> None:
    assert [one.name for one in base.backends()] == ["toy", "cpu"]
    assert base.backend("toy") is toy
    for call in (lambda: base.register(toy), lambda: base.backend("gpu"), lambda: base.unregister("gpu")):
        with pytest.raises(BackendError, match="toy"):
            call()


def test_no_backend_is_loaded_before_it_is_asked() -> None:
    code = "import sys, tileweave.lower, tileweave.runtime; print([m for m in sys.modules if 'backends.cpu' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class OnlyDlpack:
    """An array of another library, as the protocol shows it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_dlpack_arrays_are_read_without_a_copy() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(tw.contract("ij,jk->ik", OnlyDlpack(a), OnlyDlpack(b)), a @ b)
    held = tw.source(OnlyDlpack(a)).producer.data.array
    assert np.shares_memory(held, a)
    hole = tw.source(shape=(2, 3), dtype="float64", name="x")
    np.testing.assert_array_equal(tw.run(tw.exp(hole), bind={"x": OnlyDlpack(a)}), np.exp(a))


def test_dlpack_objects_that_fail_are_refused_in_our_words() -> None:
    class Broken:
        def __dlpack__(self, **options):
            raise BufferError("on another device")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(GraphError, match="operand 0"):
        tw.contract("ij->ji", Broken())


def test_the_number_of_threads_is_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host.THREADS_VARIABLE, "3")
    assert host.available_threads() == host.thread_count("here", None) == 3
    assert host.thread_count("here", 2) == 2
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv(host.THREADS_VARIABLE, wrong)
        with pytest.raises(BackendError, match=f"TILEWEAVE_THREADS='{wrong}'"):
            host.available_threads()
    monkeypatch.delenv(host.THREADS_VARIABLE)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert host.available_threads() == (os.cpu_count() or 1)
