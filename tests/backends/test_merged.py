"""The merged form: the schedule that it is again computes what the program computes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from random_programs import any_program, arrays_of, contents, shares
from tests.teir import rows

from tileweave.layout import strided
from tileweave.teir import Operand, emit_contraction, interpret, problems
from tileweave.teir.analysis.lower import Brgemm, Gemm, General
from tileweave.teir.ir import examples
from tileweave.teir.ir.program import Program
from tileweave.teir.merged.form import Loop
from tileweave.teir.merged.kind import bind, kind_of
from tileweave.teir.merged.lower import classified
from tileweave.teir.merged.merge import merged
from tileweave.teir.merged.text import show
from tileweave.teir.merged.unmerge import unmerged

E = {"a": 2, "b": 3, "c": 4, "d": 5, "p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6, "m": 3, "n": 4, "k": 5}


def _same(program: Program, again: Program, seed: int) -> None:
    stores = [contents(Random(seed), program) for _ in range(2)]
    same = shares(Random(seed), program)
    for one, store in zip((program, again), stores, strict=True):
        interpret(one, arrays_of(program, store, same))
    for name, data in stores[0].items():
        assert np.array_equal(data.view("u1"), stores[1][name].view("u1")), f"seed {seed}: {name}"


@pytest.mark.parametrize("block", range(4))
def test_the_merged_form_is_a_program_of_the_same_value(block: int) -> None:
    for seed in range(1000 * block, 1000 * block + 15):
        program = any_program(seed)
        again = unmerged(merged(program, merge=seed % 4 != 3))
        assert problems(again) == (), f"seed {seed}"
        _same(program, again, seed)


@pytest.mark.parametrize("name", examples.__all__)
def test_examples_merge_and_are_schedules_again(name: str) -> None:
    program = getattr(examples, name)(E)
    form = merged(program)
    assert name == "branching" or not any(isinstance(step, Loop) for step in form.body)
    _same(program, unmerged(form), 0)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("batched_gemm_scalar", Gemm),
        ("batched_gemm_reordered", Gemm),
        ("contraction_scalar", General),  # trus,pqtu->pqrs has two axes in M and N
        ("contraction_gemm", General),
        ("guarded_reduction", Gemm),
    ],
)
def test_scalar_schedules_are_classified_as_what_they_merge_to(name: str, kernel: type) -> None:
    form = merged(getattr(examples, name)(E))
    kinds = [classified(op, form.program).kernel for op in form.operations()]
    assert [type(kind) for kind in kinds] == [kernel]


def test_two_summed_axes_are_a_batch_reduction() -> None:
    a, b = Operand(strided((4, 6, 5), (5, 30, 1)), "FP32"), Operand(strided((4, 5, 7), (99, 7, 1)), "FP32")
    form = merged(emit_contraction("tik,tkj->ij", (a, b), Operand(strided((6, 7), (7, 1)), "FP32")))
    kernel = classified(form.body[0], form.program).kernel
    assert isinstance(kernel, Brgemm)
    assert (kernel.br_size, kernel.br_stride_a, kernel.br_stride_b) == (4, 5, 99)


def test_the_form_is_shown() -> None:
    x = Operand(strided((3, 4), (4, 1)), "FP32")
    assert show(merged(rows.softmax(x, x))).splitlines() == [
        "Fill(step4)  scalar",
        "a_chunk  (parallel)",
        "    ReduceMax(in0, step0)  4",
        "    Sub; Exp; ReduceSum(in0, step0, step1, out, step3)  4",
        "    Div(step4, step3, step5)  scalar",
        "    Mul(out, step5, out)  4",
    ]


def test_an_operation_is_its_kind_bound_to_its_sizes() -> None:
    kinds, count = set(), 0
    for seed in range(200):
        form = merged(any_program(seed), merge=seed % 3 != 2)
        for op in form.operations():
            kind, values = kind_of(op, form.program)
            assert bind(kind, values, op.operands) == op, f"seed {seed}"
            kinds.add(kind)
            count += 1
    assert count > len(kinds) > 50


def test_products_of_any_size_are_one_kind() -> None:
    rng, kinds, sizes = Random(0), set(), set()
    for _ in range(50):
        m, n, k = (rng.randint(2, 3000) for _ in range(3))
        a, b, c = (Operand(strided((p, q), (q, 1)), "FP32") for p, q in ((m, k), (k, n), (m, n)))
        form = merged(emit_contraction("ik,kj->ij", (a, b), c))
        kind, values = kind_of(form.body[0], form.program)
        kinds.add(kind)
        sizes.add(tuple(values.values()))
    assert len(kinds) == 1 and len(sizes) == 50
