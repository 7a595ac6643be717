"""Initialisation and gaps, against the emitters that must leave none."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tileweave.errors import Undecided
from tileweave.layout import strided
from tileweave.teir import (
    Iteration,
    Operand,
    contraction_tiles,
    emit_contraction,
    emit_copy,
    emit_relu,
    split,
    uninitialised,
    unwritten,
)
from tileweave.teir.ir import examples

E = {"a": 2, "b": 3, "c": 4, "d": 5, "p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6, "m": 3, "n": 4, "k": 5}


@pytest.mark.parametrize("name", examples.__all__)
def test_the_examples_initialise_what_they_add_to(name):
    assert uninitialised(getattr(examples, name)(E)) is None


def test_accumulation_needs_a_value():
    a = Operand(strided((3, 3), (3, 1)), "FP32")
    assert uninitialised(emit_contraction("ik,kj->ij", (a, a), a)) is None
    adding = emit_contraction("ik,kj->ij", (a, a), a, accumulate=True)
    assert uninitialised(adding) is None
    claimed = replace(adding, tensors=tuple(replace(t, role="out") if t.role == "inout" else t for t in adding.tensors))
    problem = uninitialised(claimed)
    assert problem is not None
    assert str(problem) == (
        "[output.initialised] node 'contraction': it reads byte 0 of 'out' before anything writes it"
    )


def test_a_guard_on_the_wrong_index_is_found():
    program = examples.guarded_reduction(E)
    nodes = tuple(replace(n, guard=program.node("relu").guard) if n.id == "zero" else n for n in program.nodes)
    problem = uninitialised(replace(program, nodes=nodes))
    assert problem is not None
    assert problem.path == "node 'contraction'"


@pytest.mark.parametrize(("m", "n", "k"), [(130, 7, 3), (5, 401, 2), (97, 33, 1)])
def test_tiles_leave_no_gap(m, n, k):
    out = Operand(strided((m, n), (2 * n, 2)), "BF16")
    operands = (Operand(strided((m, k), (k, 1)), "BF16"), Operand(strided((k, n), (n, 1)), "BF16"))
    program = emit_contraction("ik,kj->ij", operands, out, tiling=contraction_tiles)
    assert uninitialised(program) is None
    assert unwritten(program, "out", [2 * (2 * n * i + 2 * j) for i, j in product(range(m), range(n))]) == ()


def test_a_lost_remainder_is_a_gap():
    line = Operand(strided((10,), (1,)), "INT32")
    program = split(emit_copy(line, line), "copy", 4, "a")
    assert unwritten(program, "out", range(0, 40, 4)) == ()
    lost = replace(program, roots=program.roots[:1], nodes=program.nodes[:1])
    assert not isinstance(lost.nodes[0], Iteration)
    assert unwritten(lost, "out", range(0, 40, 4)) == (32, 36)
    assert unwritten(lost, "out", [-4, 400]) == (-4, 400)


def test_what_an_inout_tensor_held_is_not_written():
    line = Operand(strided((4,), (2,)), "INT32")
    assert unwritten(emit_relu(line), "out", range(0, 32, 4)) == (4, 12, 20, 28)


def test_the_bound_is_honest():
    with pytest.raises(Undecided):
        uninitialised(examples.contraction_scalar(E), limit=100)


def test_bytes_are_bounded_as_well_as_steps():
    program = examples.permutation_scalar({"a": 2, "b": 3, "c": 4, "d": 5})
    far = replace(program.axes[0], strides=(2**61, 2**61))
    with pytest.raises(Undecided, match=r"reaches over \d+ bytes"):
        uninitialised(replace(program, axes=(far, *program.axes[1:])))
