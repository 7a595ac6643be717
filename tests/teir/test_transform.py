"""Transforms keep the value of random programs, or refuse."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tileweave.errors import ScheduleError
from tileweave.teir import (
    Invocation,
    Iteration,
    Program,
    demote,
    fuse,
    fuse_epilogue,
    fuse_prologue,
    hoist,
    merge,
    pack,
    parallelize,
    promote,
    races,
    reorder,
    sequentialize,
    sink,
    split,
    split_tree,
    verify,
)
from tileweave.teir.analysis.lower import Brgemm, Gemm, eligibility
from tileweave.teir.ir import examples
from tileweave.teir.ir.text import tree
from tileweave.teir.ir.walk import walk

E = {"a": 2, "b": 3, "c": 4, "d": 5, "p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6}

LOOP_TRANSFORMS = ("split", "fuse", "reorder", "reorder", "parallelize", "sequentialize", "promote", "promote")
LOOP_TRANSFORMS += ("hoist", "sink", "sink", "merge", "split_tree")


def any_transform(program: Program, rng: random.Random) -> Program:
    """One random transform at a random place; ScheduleError where it would change the value."""
    node = rng.choice(program.nodes)
    if isinstance(node, Iteration):
        extent = program.axis(node.axis).extent
        match rng.choice(LOOP_TRANSFORMS):
            case "split":
                return split(program, node.id, rng.randint(1, extent))
            case "hoist":
                return hoist(program, node.id)
            case "sink":
                return sink(program, rng.choice(program.nodes).id, node.id)
            case "merge":
                return merge(program, node.id, rng.choice(program.nodes).id)
            case "split_tree":
                return split_tree(program, node.id, node.children[-1])
            case "fuse":
                return fuse(program, node.id)
            case "reorder":
                return reorder(program, node.id)
            case "parallelize":
                return parallelize(program, node.id)
            case "sequentialize":
                return sequentialize(program, node.id)
            case _:
                return promote(program, node.id, rng.choice("MNK"))
    match rng.choice(["hoist", "pack", "epilogue", "prologue", "axis", "axis"]):
        case "hoist":
            return hoist(program, node.id)
        case "epilogue":
            return fuse_epilogue(program, node.id)
        case "prologue":
            return fuse_prologue(program, node.id)
        case "pack":
            path = next(visit.path for visit in walk(program) if visit.node == node)
            at = rng.choice([node.id, *(above.id for above in path)])
            return pack(program, node.id, rng.choice(program.primitive(node.primitive).operands), at=at)
    consumed = [id for _, ids in program.primitive(node.primitive).axes for id in ids]
    if not consumed:
        raise ScheduleError("any_transform", "nothing to do")
    axis = rng.choice(consumed)
    if rng.random() < 0.5:
        return demote(program, node.id, axis)
    return split(program, node.id, rng.randint(1, program.axis(axis).extent), axis)


def check_seeds(wild, run, seeds: range, steps: int) -> tuple[int, int]:
    done = refused = 0
    for seed in seeds:
        rng = random.Random(seed)
        program = wild(seed)
        expected = run(program)
        for _ in range(steps):
            if not program.nodes:
                break
            try:
                changed = any_transform(program, rng)
            except ScheduleError:
                refused += 1
                continue
            done += 1
            verify(changed)
            assert races(changed) is None
            order = rng.choice(["forward", "reversed", "random"])
            result = run(changed, order, seed)
            assert np.array_equal(result, expected), f"seed {seed}\n{program}\n\nbecame\n\n{changed}"
            program = changed
    return done, refused


@pytest.mark.parametrize("first", [0, 40, 80])
def test_transforms_keep_the_value_of_random_programs(wild, run, first):
    done, refused = check_seeds(wild, run, range(first, first + 40), 6)
    assert done > 40
    assert refused > 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5000, 500))
def test_transforms_keep_the_value_of_many_random_programs(wild, run, first):
    done, _ = check_seeds(wild, run, range(first, first + 500), 8)
    assert done > 500


def test_split_that_leaves_a_rest_moves_guards_into_the_part_that_holds_them():
    program = examples.guarded_reduction({"m": 2, "n": 3, "k": 7})
    assert tree(split(program, "k", 3)) == "\n".join(
        [
            "k_outer",
            "└── k_inner",
            "    ├── zero  [first(k_outer) and first(k_inner)]",
            "    └── contraction",
            "k_rest",
            "├── contraction.2",
            "└── relu.2  [last(k_rest)]",
        ]
    )


def test_fuse_undoes_an_even_split():
    program = examples.guarded_reduction({"m": 2, "n": 3, "k": 6})
    fused = fuse(split(program, "k", 3), "k_outer")
    assert tree(fused).replace("k_outer_k_inner", "k").replace("k_outer", "k") == tree(program)
    assert [axis.strides for axis in fused.axes][-1] == program.axis("k").strides


def test_the_scalar_contraction_becomes_the_document_s_gemm_and_brgemm():
    program = examples.contraction_scalar(E)
    # p q r s [zero, t u contraction]  ->  p r [zero_sq, t gemm_squ]
    program = reorder(program, "q")
    program = promote(program, "u", "K")
    with pytest.raises(ScheduleError):
        promote(program, "s", "M")  # its child t is an iteration
    brgemm = promote(program, "t", "K")
    brgemm = promote(brgemm, "s", "M")
    brgemm = promote(brgemm, "q", "N")
    brgemm = parallelize(parallelize(brgemm, "r"), "p")
    assert tree(brgemm) == "p  (parallel)\n└── r  (parallel)\n    ├── zero\n    └── contraction"
    kernel = eligibility(brgemm.node("contraction").primitive, brgemm)
    expected = eligibility("brgemm_sqtu", examples.contraction_brgemm(E))
    assert isinstance(kernel, Brgemm)
    assert kernel == expected
    gemm = demote(brgemm, "contraction", "t")
    assert tree(sequentialize(sequentialize(gemm, "p"), "r")).replace("contraction", "gemm") == tree(
        examples.contraction_gemm(E)
    )
    assert isinstance(eligibility(gemm.node("contraction").primitive, gemm), Gemm)


def test_parallelize_refuses_a_reduction_with_a_witness():
    program = examples.contraction_gemm(E)
    with pytest.raises(ScheduleError, match="two iterations conflict: byte 0 of 'out'") as caught:
        parallelize(program, "t")
    witness = caught.value.facts["witness"]
    assert dict(witness.first[1])["t"] != dict(witness.second[1])["t"]


def test_reorder_refuses_what_would_zero_after_the_first_addition():
    program = examples.batched_gemm_reordered(E)
    with pytest.raises(ScheduleError, match="does not have one child"):
        reorder(program, "d")
    moved = reorder(examples.batched_gemm_scalar(E), "a")
    assert tree(moved).splitlines()[0] == "b"


def test_promote_refuses_to_zero_across_a_sum():
    # per k: zero, then add. All zeros first would keep every addition
    program = examples.guarded_reduction({"m": 2, "n": 3, "k": 4})
    nodes = tuple(Invocation(n.id, n.primitive) if isinstance(n, Invocation) else n for n in program.nodes)
    bad = Program(
        program.tensors, program.axes, program.roots, nodes, program.primitives, program.profile, program.name
    )
    with pytest.raises(ScheduleError, match="conflict"):
        promote(bad, "k", "N")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: split(p, "x", 2), "there is no node 'x'"),
        (lambda p: split(p, "t", 3), "the factor does not fit axis 't' of extent 2"),
        (lambda p: split(p, "gemm", 2), "does not consume axis None"),
        (lambda p: split(p, "t", 1, axis="u"), "iterates 't', not 'u'"),
        (lambda p: fuse(p, "p"), "the strides"),
        (lambda p: fuse(p, "t"), "does not have one child"),
        (lambda p: promote(p, "gemm", "K"), "is an invocation"),
        (lambda p: promote(p, "t", "M"), "contraction.free-axes|stands still|iterations conflict"),
        (lambda p: promote(p, "t", "X"), "has no role 'X'"),
        (lambda p: demote(p, "gemm", "t"), "does not consume axis 't'"),
        (lambda p: demote(p, "t", "t"), "is an iteration"),
    ],
)
def test_refusals(change, message):
    from dataclasses import replace

    program = examples.contraction_gemm(E)
    tensors = program.tensors
    primitives = tuple(
        replace(p, operands=("out",) if p.operation == "Zero" else ("in0", "in1", "out")) for p in program.primitives
    )
    program = replace(program, profile="tileweave", tensors=tensors, primitives=primitives)
    with pytest.raises(ScheduleError, match=message):
        change(program)
