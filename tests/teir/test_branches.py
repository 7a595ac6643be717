"""Steps that are taken twice: the answer is that of an enumeration of all steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from tileweave.layout import strided
from tileweave.teir import (
    Axis,
    Invocation,
    Iteration,
    Operand,
    Tiling,
    demote,
    emit_contraction,
    emit_reduction,
    operands_of,
    operation,
    overlap,
    split,
)
from tileweave.teir.ir import examples
from tileweave.teir.ir.walk import index_range, invocations


def enumerated(program) -> bool:
    """Whether some accumulating step is taken twice, by counting the addresses of every step."""
    seen: Counter[object] = Counter()
    for visit in invocations(program):
        primitive = program.primitive(visit.node.primitive)
        if not operation(primitive.operation).contracted:
            continue
        names = operands_of(primitive, program)
        tensors = [program.position(name) for name in names]
        axes = [(program.axis(loop.axis), *index_range(visit, program.axis(loop.axis))) for loop in visit.path]
        axes += [(program.axis(id), 0, program.axis(id).extent - 1) for _, ids in primitive.axes for id in ids]
        for point in product(*(range(low, high + 1) for _, low, high in axes)):
            at = tuple(
                sum(axis.offsets[j] + axis.strides[j] * i for (axis, _, _), i in zip(axes, point, strict=True))
                for j in tensors
            )
            seen[(primitive.operation, names, at)] += 1
    return any(count > 1 for count in seen.values())


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_overlap_is_enumeration(wild, first):
    answers = Counter()
    for seed in range(first, first + 100):
        program = wild(seed)
        problem = overlap(program)
        assert (problem is not None) == enumerated(program), f"seed {seed}\n{program}\n{problem}"
        answers[problem is not None] += 1
    assert min(answers.values()) > 5


def test_emitted_and_split_programs_take_every_step_once():
    rng = np.random.default_rng(0)
    a, b = Operand(strided((7, 9), (9, 1)), "FP32"), Operand(strided((9, 11), (11, 1)), "FP32")
    out = Operand(strided((7, 11), (11, 1)), "FP32")
    for _ in range(20):
        tiling = lambda dims: Tiling(tuple(int(rng.integers(1, dim.extent + 1)) for dim in dims))  # noqa: E731
        assert overlap(emit_contraction("ik,kj->ij", (a, b), out, tiling=tiling)) is None
        assert overlap(emit_reduction("sum", a, Operand(strided((9,), (1,)), "FP32"), "ij->j", tiling=tiling)) is None
    for name in examples.__all__:
        assert overlap(getattr(examples, name)(dict.fromkeys("abcdpqrstumnk", 3))) is None


def test_a_rest_that_begins_too_early_is_found_with_both_steps():
    a, b = Operand(strided((7, 9), (9, 1)), "FP32"), Operand(strided((9, 11), (11, 1)), "FP32")
    program = emit_contraction("ik,kj->ij", (a, b), Operand(strided((7, 11), (11, 1)), "FP32"))
    cut = demote(split(program, "contraction", 4, "k"), "contraction", "k_outer")
    early = tuple(
        replace(x, offsets=tuple(o - s for o, s in zip(x.offsets, x.strides, strict=True))) if x.id == "k_rest" else x
        for x in cut.axes
    )
    problem = overlap(replace(cut, axes=early))
    assert problem is not None and problem.rule == "branches.overlap" and problem.path == "contraction.2"
    assert "it repeats k_outer/contraction at" in problem.message and "k_inner=3" in problem.message


def test_a_loop_that_only_repeats_is_found():
    program = examples.contraction_gemm(dict.fromkeys("pqrstu", 2))
    again = replace(
        program,
        axes=(*program.axes, Axis("again", 2, (0, 0, 0), (0, 0, 0))),
        roots=("again",),
        nodes=(Iteration("again", "again", ("p",)), *program.nodes),
    )
    problem = overlap(again)
    assert problem is not None and "again=1" in problem.message and "again=0" in problem.message
    once = tuple(replace(n, guard=()) if isinstance(n, Invocation) else n for n in program.nodes)
    assert overlap(replace(program, nodes=once)) is None
