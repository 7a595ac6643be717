"""Exports between the profiles: the same meaning, or a list of what has no word."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from tileweave.errors import VerifyError
from tileweave.layout import strided
from tileweave.teir import Operand, as_document, as_tileweave, emit_contraction, emit_copy, interpret, problems
from tileweave.teir.ir import examples

E = {"a": 2, "b": 3, "c": 4, "d": 5, "p": 4, "q": 2, "r": 3, "s": 5, "t": 2, "u": 6, "m": 3, "n": 4, "k": 5}


@pytest.mark.parametrize("name", examples.__all__)
def test_there_and_back(name):
    program = getattr(examples, name)(E)
    named = as_tileweave(program)
    assert named.profile == "tileweave"
    assert as_document(named) == program
    assert as_document(program) == program
    assert as_tileweave(named) == named


def test_an_emitted_contraction_exports_and_means_the_same():
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.zeros((2, 4), np.float32)
    operands = (Operand(strided((2, 3), (3, 1)), "FP32"), Operand(strided((3, 4), (4, 1)), "FP32"))
    exported = as_document(emit_contraction("ik,kj->ij", operands, Operand(strided((2, 4), (4, 1)), "FP32")))
    assert dict(exported.primitives[0].metadata) == {"data_type": "FP32"}
    interpret(exported, {"in0": a, "in1": b, "out": out})
    np.testing.assert_array_equal(out, a @ b)


def test_what_the_document_cannot_say():
    rows = Operand(strided((4,), (1,)), "FP16")
    with pytest.raises(VerifyError) as caught:
        as_document(emit_copy(Operand(strided((4,), (-1,)), "FP16"), rows))
    assert [problem.rule for problem in caught.value.facts["problems"]] == ["axis.strides-not-negative"]
    with pytest.raises(VerifyError) as caught:
        as_document(emit_contraction("i,i->i", (rows, rows), rows, init=rows))
    rules = {problem.rule for problem in caught.value.facts["problems"]}
    assert rules == {"primitive.operands-by-position", "tensor.by-position"}
    assert "position binds in0, out; it names" in str(caught.value)


def test_a_narrow_sum_is_not_in_our_profile():
    program = examples.guarded_reduction(E)
    narrow = replace(
        program,
        tensors=tuple(replace(t, dtype="BF16") for t in program.tensors),
        primitives=tuple(replace(p, metadata=()) for p in program.primitives),
    )
    with pytest.raises(VerifyError, match="accumulates in BF16") as caught:
        as_tileweave(narrow)
    assert caught.value.facts["rule"] == "primitive.dtypes"


USUAL = """
ik,kj->ij ik,jk->ij ki,kj->ij ki,jk->ij ik,kj->ji i,j->ij ik,k->i k,kj->j i,i-> bik,bkj->bij bik,bjk->bij
ibk,kbj->ibj trus,pqtu->pqrs abk,kc->abc abc,cdb->ad abcd,cd->ab ab,cb->ca ijk,k->ij ij,jkl->ikl bhqd,bhkd->bhqk
bhqk,bhkd->bhqd acd,dbc->ab dbea,ec->abcd aebf,dfce->abcd ae,dcbe->dcba
""".split()  # noqa: SIM905


@pytest.mark.parametrize("equation", USUAL)
def test_contractions_of_any_order_are_programs_of_the_document(equation):
    left, out = equation.split("->")
    terms = left.split(",")
    extents = {letter: 2 + k % 3 for k, letter in enumerate(dict.fromkeys("".join(terms)))}
    shapes = [tuple(extents[letter] for letter in letters) for letters in (*terms, out)]
    dense = [Operand(strided(s, [prod(s[k + 1 :]) for k in range(len(s))]), "FP64") for s in shapes]
    program = emit_contraction(equation, dense[:2], dense[2])
    document = as_document(program)
    assert document.profile == "document" and problems(document) == ()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-5, 6, shape).astype("f8") for shape in shapes[:2])
    found = np.empty(shapes[2])
    interpret(document, {"in0": a, "in1": b, "out": found})
    assert np.array_equal(found, np.einsum(equation, a, b))
