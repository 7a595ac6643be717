"""Bounds and races against enumeration of every element that a program touches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from tileweave.teir import (
    Axis,
    First,
    Invocation,
    Iteration,
    Primitive,
    Program,
    TensorSpec,
    byte_bounds,
    operands_of,
    out_of_bounds,
    races,
)
from tileweave.teir.ir import examples

Touch = tuple[tuple[tuple[object, int], ...], str, int, bool]


def touches(program: Program) -> Iterator[Touch]:
    """(node and index of every iteration on the path, tensor, first byte of an element, whether it is written)."""

    def go(id: object, env: dict[object, int], trail: tuple[tuple[object, int], ...]) -> Iterator[Touch]:
        node = program.node(id)
        for term in node.guard:
            wanted = 0 if isinstance(term, First) else program.axis(term.axis).extent - 1
            if env[term.axis] != wanted:
                return
        if isinstance(node, Iteration):
            for index in range(program.axis(node.axis).extent):
                for child in node.children:
                    yield from go(child, {**env, node.axis: index}, (*trail, (node.id, index)))
            return
        primitive = program.primitive(node.primitive)
        names = operands_of(primitive, program)
        consumed = [program.axis(id) for _, ids in primitive.axes for id in ids]
        for point in product(*(range(axis.extent) for axis in consumed)):
            full = {**env, **{axis.id: index for axis, index in zip(consumed, point, strict=True)}}
            for k, name in enumerate(names):
                j = program.position(name)
                axes = [program.axis(id) for id in full]
                yield (
                    trail,
                    name,
                    sum(axis.offsets[j] + axis.strides[j] * full[axis.id] for axis in axes),
                    k == len(names) - 1,
                )

    for root in program.roots:
        yield from go(root, {}, ())


def races_by_enumeration(program: Program, width: int) -> bool:
    found = set(touches(program))
    for node in program.nodes:
        if not isinstance(node, Iteration) or node.policy != "parallel":
            continue
        # (iterations above, tensor, byte) -> the indices of this node that touch it, and those that write it
        seen: dict[object, tuple[set[int], set[int]]] = {}
        for trail, tensor, address, writes in found:
            ids = [id for id, _ in trail]
            if node.id not in ids:
                continue
            depth = ids.index(node.id)
            for byte in range(address, address + width):
                touched, written = seen.setdefault((trail[:depth], tensor, byte), (set(), set()))
                touched.add(trail[depth][1])
                if writes:
                    written.add(trail[depth][1])
        if any(written and len(touched) > 1 for touched, written in seen.values()):
            return True
    return False


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_bounds_and_races_are_enumeration(wild, first):
    racy = 0
    for seed in range(first, first + 50):
        program = wild(seed, parallel=0.5)
        low: dict[str, int] = {}
        high: dict[str, int] = {}
        for _, tensor, address, _ in touches(program):
            low[tensor] = min(low.get(tensor, address), address)
            high[tensor] = max(high.get(tensor, address), address + 4)
        assert byte_bounds(program) == {tensor: (low[tensor], high[tensor]) for tensor in low}
        expected = races_by_enumeration(program, 4)
        assert (races(program) is not None) == expected, str(program)
        racy += expected
    assert 0 < racy < 50


def test_a_race_has_a_witness():
    axes = (Axis("i", 4, (8,), (0,)), Axis("j", 3, (4,), (0,)))
    zero = Primitive("zero", "Zero", (("M", ()), ("N", ("j",))), ("out",))
    nodes = (Iteration("i", "i", ("z",), "parallel"), Invocation("z", "zero"))
    program = Program((TensorSpec("out", "FP32", "out"),), axes, ("i",), nodes, (zero,))
    conflict = races(program)
    assert conflict is not None
    (path, first), (_, second) = conflict.first, conflict.second
    assert path == "i/z"
    a, b = dict(first), dict(second)
    assert a["i"] != b["i"]
    assert 8 * a["i"] + 4 * a["j"] == 8 * b["i"] + 4 * b["j"] == conflict.byte
    assert str(conflict) == "byte 8 of 'out': i/z at (i=1, j=0) and i/z at (i=0, j=2)"


def test_out_of_bounds_names_the_access():
    program = examples.contraction_gemm({"p": 2, "q": 2, "r": 2, "s": 2, "t": 2, "u": 2})
    exact = {name: high for name, (_, high) in byte_bounds(program).items()}
    assert out_of_bounds(program, exact) == ()
    problems = out_of_bounds(program, {**exact, "in1": 63})
    assert [str(p) for p in problems] == ["[address.in-bounds] p/r/t/gemm: it touches bytes 0..63 of 'in1'"]
    assert problems[0].legal == "bytes 0..62"


def test_huge_programs_are_decided_at_once():
    n = 10**6
    program = examples.contraction_brgemm({"p": n, "q": 1000, "r": n, "s": 1024, "t": 1000, "u": 1000})
    assert races(program) is None
    assert byte_bounds(program)["out"] == (0, 4 * n * 1000 * n * 1024)


def test_guards_separate_iterations(wild):
    # only the first of the iterations writes
    axes = (Axis("i", 4, (0,), (0,)),)
    zero = Primitive("zero", "Zero", (("M", ()), ("N", ())), ("out",))
    nodes = (Iteration("i", "i", ("z",), "parallel"), Invocation("z", "zero", (First("i"),)))
    program = Program((TensorSpec("out", "FP32", "out"),), axes, ("i",), nodes, (zero,))
    assert races(program) is None
    assert np.unique([address for _, _, address, _ in touches(program)]).tolist() == [0]
