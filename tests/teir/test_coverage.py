"""Initialisation and gaps, against the emitters that must leave none."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from tileweave.errors import Undecided
from tileweave.layout import strided
from tileweave.teir import (
    Axis,
    First,
    Invocation,
    Iteration,
    Last,
    Operand,
    Primitive,
    Program,
    TensorSpec,
    Tiling,
    contraction_tiles,
    emit_contraction,
    emit_copy,
    emit_relu,
    problems,
    split,
    uninitialised,
    unwritten,
)
from tileweave.teir.analysis.coverage import _Flags, gaps
from tileweave.teir.ir import examples
from tileweave.teir.ir.dtypes import width_bytes

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


def _crossed(extent: int) -> Program:
    """A Zero and a ReLU of the same elements, whose strides do not nest."""
    axes = tuple(Axis(id, extent, (stride,), (0,)) for id, stride in (("a", 24), ("b", 20)))
    roles = (("M", ("a",)), ("N", ("b",)))
    primitives = (Primitive("z", "Zero", roles, ("out",)), Primitive("r", "ReLU", roles, ("out", "out")))
    nodes = (Invocation("zero", "z"), Invocation("relu", "r"))
    return Program((TensorSpec("out", "FP32", "out"),), axes, ("zero", "relu"), nodes, primitives)


def test_the_bound_is_honest():
    assert uninitialised(_crossed(30)) is None
    with pytest.raises(Undecided):
        uninitialised(_crossed(30), limit=100)


@pytest.mark.parametrize("size", [16, 10**6])
def test_a_missing_zero_is_found_at_any_size(size):
    side = Operand(strided((size, size), (size, 1)), "FP32")
    program = emit_contraction("ik,kj->ij", (side, side), side, tiling=contraction_tiles)
    assert uninitialised(program, limit=0) is None
    zeros = [n.id for n in program.nodes if isinstance(n, Invocation) and str(n.id).startswith("zero")]
    nodes = tuple(
        replace(n, children=tuple(c for c in n.children if c != zeros[0])) if isinstance(n, Iteration) else n
        for n in program.nodes
        if n.id != zeros[0]
    )
    lost = replace(program, nodes=nodes, roots=tuple(root for root in program.roots if root != zeros[0]))
    problem = uninitialised(lost, limit=0)
    assert problem is not None and problem.rule == "output.initialised"


def test_gaps_are_counted_at_any_size():
    n = 10**9 + 7
    line = Operand(strided((n,), (1,)), "INT32")
    program = split(emit_copy(line, line), "copy", 1000, "a")
    assert gaps(program, "out", range(0, 4 * n, 4), limit=0) == (0, 0)
    lost = replace(program, roots=program.roots[:1], nodes=program.nodes[:1])
    assert gaps(lost, "out", range(0, 4 * n, 4), limit=0) == (7, 4 * 10**9)
    assert unwritten(lost, "out", range(0, 4 * n, 4), limit=0) == tuple(range(4 * 10**9, 4 * n, 4))


def _damaged(program: Program, rng: Random) -> Program:
    """The program with guards, children, offsets and extents changed here and there, its tensors empty at first."""
    nodes, axes = list(program.nodes), list(program.axes)
    loops = [node.axis for node in nodes if isinstance(node, Iteration)]
    for _ in range(rng.randint(0, 2)):
        k, choice = rng.randrange(len(nodes)), rng.random()
        node = nodes[k]
        if choice < 0.3:
            nodes[k] = replace(node, guard=())
        elif choice < 0.7 and loops:
            nodes[k] = replace(node, guard=(rng.choice((First, Last))(rng.choice(loops)),))
        elif isinstance(node, Iteration):
            nodes[k] = replace(node, children=tuple(rng.sample(node.children, len(node.children))))
    if axes and rng.random() < 0.4:
        k = rng.randrange(len(axes))
        moved = tuple(offset + rng.choice((0, 0, 4, -4, 8)) for offset in axes[k].offsets)
        axes[k] = replace(axes[k], offsets=moved, extent=max(1, axes[k].extent + rng.choice((-1, 0, 1))))
    tensors = tuple(replace(t, role="out") if t.role == "inout" else t for t in program.tensors)
    return replace(program, tensors=tensors, axes=tuple(axes), nodes=tuple(nodes))


def _any_tiled(rng: Random) -> Program:
    def dense(shape):
        return Operand(strided(shape, (shape[1], 1)), rng.choice(("FP32", "BF16")))

    def tiles(dims):
        return Tiling(tuple(rng.choice((1, 2, 3, dim.extent, dim.extent)) for dim in dims))

    m, n, k = (rng.randint(1, 9) for _ in range(3))
    relu = rng.random() < 0.5
    return emit_contraction("ik,kj->ij", (dense((m, k)), dense((k, n))), dense((m, n)), tiling=tiles, relu=relu)


def test_the_closed_form_is_what_enumeration_finds():
    decided, found = 0, 0
    for seed in range(300):
        rng = Random(seed)
        example = getattr(examples, rng.choice(examples.__all__))
        whole = _any_tiled(rng) if seed % 2 else example({k: rng.randint(1, v) for k, v in E.items()})
        program = _damaged(whole, rng)
        if problems(program):
            continue
        expected = _Flags("uninitialised(program)", program, 10**6).first_problem()
        try:
            problem = uninitialised(program, limit=0)
        except Undecided:
            continue
        assert (problem is None) == (expected is None), f"seed {seed}"
        decided, found = decided + 1, found + (problem is not None)
        for spec in program.tensors:
            wanted = range(0, 40 * width_bytes(spec.dtype), width_bytes(spec.dtype))
            if spec.role == "out":
                assert unwritten(program, spec.name, wanted) == unwritten(program, spec.name, list(wanted)), f"{seed}"
    assert decided > 100
    assert found > 15


def test_bytes_are_bounded_as_well_as_steps():
    program = _crossed(30)
    far = replace(program.axes[0], strides=(2**50 + 4,))
    with pytest.raises(Undecided, match=r"unwritten\(.*reaches over \d+ bytes"):
        unwritten(replace(program, axes=(far, *program.axes[1:])), "out", [0, 4])
