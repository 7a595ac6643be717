"""The blocking of a product as a schedule: the interpreter runs it to the value of the product."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tileweave.backends.cpu import Settings, blocked, compile
from tileweave.backends.cpu.target.target import host
from tileweave.errors import ScheduleError
from tileweave.layout import strided
from tileweave.teir import Operand, dtype_name, emit_contraction, emit_relu, interpret, uninitialised

EQUATIONS = ("ik,kj->ij", "ki,jk->ij", "ik,kj->ji", "bik,bkj->bij", "ik,jk->ij", "i,j->ij")


def operand(array: np.ndarray) -> Operand:
    return Operand(strided(array.shape, [s // array.itemsize for s in array.strides]), dtype_name(array.dtype))


def any_settings(rng: Random) -> Settings:
    return Settings(
        mr=rng.choice((None, 3, 4)),
        nr=rng.choice((None, 16, 32)),
        kc=rng.choice((None, 16, 32)),
        mc=rng.choice((None, 20)),
        nc=rng.choice((None, 40)),
        pack_a=rng.choice((None, True, False)),
        pack_b=rng.choice((None, True, False)),
        share_a=rng.choice((None, True, False)),
        resident=rng.choice((None, "a", "b")),
    )


@pytest.mark.parametrize("seed", range(24))
def test_the_blocking_is_a_program_of_the_same_value(seed: int) -> None:
    rng, numbers = Random(seed), np.random.default_rng(seed)
    equation = rng.choice(EQUATIONS)
    sizes = {c: rng.choice((2, 5, 16, 33, 70)) for c in "ijk"} | {"b": 3}
    left, right = equation.split("->")
    a, b = (numbers.integers(-3, 4, [sizes[c] for c in term]).astype("f4") for term in left.split(","))
    out = numbers.integers(-3, 4, [sizes[c] for c in right]).astype("f4")
    options = {"relu": rng.random() < 0.4, "accumulate": rng.random() < 0.3}
    inputs = {"in0": a, "in1": b}
    if not options["accumulate"] and rng.random() < 0.5:
        inputs["bias"] = np.broadcast_to(numbers.integers(-9, 9, out.shape[-1:]).astype("f4"), out.shape)
        options["init"] = operand(inputs["bias"])
    program = emit_contraction(equation, (operand(a), operand(b)), operand(out), **options)
    schedule = blocked(program, threads=rng.choice((1, 2)), settings=any_settings(rng))
    results = [out.copy() for _ in range(3)]
    interpret(program, {**inputs, "out": results[0]})
    interpret(schedule, {**inputs, "out": results[1]})
    compile(schedule, threads=1, merge=False, cache=False).run({**inputs, "out": results[2]})
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])
    assert options["accumulate"] or uninitialised(schedule, limit=0) is None


def test_packing_is_copies_into_scratch() -> None:
    a, b, out = np.zeros((40, 50), "f4"), np.zeros((50, 60), "f4"), np.zeros((40, 60), "f4")
    program = emit_contraction("ik,kj->ij", (operand(a), operand(b)), operand(out))
    kc, nr = 16, 2 * host().lanes(4)  # there are registers for four rows of two vectors on every processor
    wish = Settings(mr=4, nr=nr, kc=kc, pack_a=True, pack_b=True, resident="b")
    schedule = blocked(program, settings=wish)
    scratch = {spec.name: spec.size_bytes for spec in schedule.tensors if spec.role == "scratch"}
    assert scratch == {"a_packed": 4 * kc * 4, "b_packed": -(-60 // nr) * nr * kc * 4}
    copies = {p.operands for p in schedule.primitives if p.operation == "Copy"}
    assert copies == {("in0", "a_packed"), ("in1", "b_packed")}
    kernels = {p.operands for p in schedule.primitives if p.operation == "Contraction"}
    assert kernels == {("a_packed", "b_packed", "out")}


def test_what_has_no_such_schedule_is_refused() -> None:
    x = operand(np.zeros((4, 5), "f4"))
    with pytest.raises(ScheduleError, match="does not merge to one contraction"):
        blocked(emit_relu(x))
    a, b, c = (operand(np.zeros(shape, "f4")) for shape in ((6, 4, 5), (7, 4), (5, 7, 6)))
    with pytest.raises(ScheduleError, match="panels cross the borders"):
        blocked(emit_contraction("adb,cd->bca", (a, b), c))
