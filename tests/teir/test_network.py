"""Einsums of any number of operands, and programs in sequence, against NumPy."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileweave.backends import cpu
from tileweave.errors import DtypeError, GraphError, LayoutError, VerifyError
from tileweave.layout import strided
from tileweave.teir import (
    Operand,
    TensorSpec,
    contraction_tiles,
    dtype_name,
    emit_copy,
    emit_einsum,
    emit_relu,
    interpret,
    numpy_dtype,
    problems,
    races,
    sequence,
    uninitialised,
)


def operand(array: np.ndarray, dtype: str = "INT32") -> Operand:
    return Operand(strided(array.shape, [s // array.itemsize for s in array.strides]), dtype)


@st.composite
def networks(draw):
    """An equation of one to five operands, extents, and a seed; letters may be shared by any number of operands."""
    letters = "abcdefg"[: draw(st.integers(1, 7))]
    extents = {letter: draw(st.integers(1, 3)) for letter in letters}
    count = draw(st.integers(1, 5))
    inputs = ["".join(draw(st.lists(st.sampled_from(letters), max_size=4))) for _ in range(count)]
    known = sorted(set("".join(inputs)))
    output = "".join(draw(st.permutations(known))[: draw(st.integers(0, len(known)))])
    return f"{','.join(inputs)}->{output}", extents, draw(st.integers(0, 2**32))


@settings(max_examples=120, deadline=None)
@given(networks(), st.booleans())
def test_networks_are_einsum(case, tiled):
    equation, extents, seed = case
    rng = np.random.default_rng(seed)
    left, output = equation.split("->")
    arrays = [rng.integers(-2, 3, [extents[c] for c in term]).astype("i4") for term in left.split(",")]
    if rng.random() < 0.5:
        arrays = [array.T.copy().T for array in arrays]
    out = np.full([extents[c] for c in output], 99, "i4")
    flags = {"tiling": contraction_tiles} if tiled else {}
    program = emit_einsum(equation, [operand(a) for a in arrays], operand(out), **flags)
    assert problems(program) == ()
    assert races(program) is None
    assert uninitialised(program) is None
    interpret(program, {f"in{k}": a for k, a in enumerate(arrays)} | {"out": out}, order="random")
    np.testing.assert_array_equal(out, np.einsum(equation, *arrays))


def chain(sizes, dtype="FP32"):
    letters = "abcdefgh"[: len(sizes)]
    shapes = list(itertools.pairwise(sizes))
    equation = ",".join(a + b for a, b in itertools.pairwise(letters)) + f"->{letters[0]}{letters[-1]}"
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-2, 3, shape).astype(numpy_dtype(dtype)) for shape in shapes]
    out = np.zeros((sizes[0], sizes[-1]), numpy_dtype(dtype))
    return equation, arrays, out


def scratch_bytes(program) -> list[int]:
    return [spec.size_bytes for spec in program.tensors if spec.role == "scratch"]


def test_intermediates_share_memory_where_their_lifetimes_do_not_meet():
    equation, arrays, out = chain([10, 20, 30, 40, 50, 60, 7])
    left_to_right = [(0, 1), *((0, len(arrays) - 1 - k) for k in range(1, len(arrays) - 1))]
    program = emit_einsum(equation, [operand(a, "FP32") for a in arrays], operand(out, "FP32"), path=left_to_right)
    # ab, ac, ad, ae, af live two at a time: 10 x 30, 10 x 40, 10 x 50 and 10 x 60 elements take turns in two places
    assert scratch_bytes(program) == [4 * 10 * 50, 4 * 10 * 60]
    assert sum(p.operation == "Contraction" for p in program.primitives) == 5
    interpret(program, {f"in{k}": a for k, a in enumerate(arrays)} | {"out": out})
    np.testing.assert_array_equal(out, np.linalg.multi_dot([a.astype("f8") for a in arrays]))


def test_the_path_is_opt_einsum_s_and_compiled_code_follows_it():
    equation, arrays, out = chain([60, 2, 50, 3, 40])
    program = emit_einsum(equation, [operand(a, "FP32") for a in arrays], operand(out, "FP32"))
    # (AB)C would make 60 x 50 elements first; the cheap order keeps them small
    assert max(scratch_bytes(program)) < 4 * 60 * 50
    cpu.compile(program, threads=2, cache=False)(*arrays, out)
    np.testing.assert_array_equal(out, np.einsum(equation, *arrays, optimize=True))


def test_the_last_pair_takes_bias_relu_and_what_the_output_holds():
    equation, arrays, out = chain([4, 5, 6, 3], "INT32")
    product = arrays[0] @ arrays[1] @ arrays[2]
    bias = np.broadcast_to(np.array([1, -20, 30], "i4"), out.shape)
    program = emit_einsum(equation, [operand(a) for a in arrays], operand(out), init=operand(bias), relu=True)
    assert [spec.name for spec in program.tensors[:5]] == ["in0", "in1", "in2", "out", "bias"]
    interpret(program, {f"in{k}": a for k, a in enumerate(arrays)} | {"out": out, "bias": bias})
    np.testing.assert_array_equal(out, np.maximum(product + bias, 0))
    more = emit_einsum(equation, [operand(a) for a in arrays], operand(out), accumulate=True)
    start = out.copy()
    interpret(more, {f"in{k}": a for k, a in enumerate(arrays)} | {"out": out})
    np.testing.assert_array_equal(out, start + product)


def test_narrow_values_stay_wide_between_steps():
    equation, arrays, out = chain([3, 9, 8, 5], "BF16")
    program = emit_einsum(equation, [operand(a, "BF16") for a in arrays], operand(out, "BF16"))
    assert {spec.dtype for spec in program.tensors if spec.role == "scratch"} == {"FP32"}
    interpret(program, {f"in{k}": a for k, a in enumerate(arrays)} | {"out": out})
    exact = np.linalg.multi_dot([a.astype("f8") for a in arrays])
    np.testing.assert_array_equal(out, exact.astype("f4").astype(out.dtype))
    mixed = [operand(arrays[0], "BF16"), operand(arrays[1], "BF16"), Operand(strided((8, 5), (5, 1)), "INT32")]
    with pytest.raises(DtypeError, match="mix integers and floating point"):
        emit_einsum(equation, mixed, operand(out, "BF16"))


A = Operand(strided((4, 4), (4, 1)), "FP32")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: emit_einsum("->", [], A), GraphError, "no operand is given"),
        (lambda: emit_einsum("ab,bc->ac", [A], A), GraphError, "is not an equation of 1 operand"),
        (lambda: emit_einsum("ab,bc,cd->az", [A] * 3, A), GraphError, "letter 'z' of the output is in no input"),
        (lambda: emit_einsum("ab->ba", [A], A, relu=True), GraphError, "need a contraction"),
        (lambda: emit_einsum("ab,bc,cd->ad", [A] * 3, A, path=[(0, 1)]), GraphError, "the path leaves 2 operands"),
        (lambda: emit_einsum("ab,bc,cd->ad", [A] * 3, A, path=[(0, 3)]), GraphError, r"step \(0, 3\) does not fit"),
        (lambda: emit_einsum("ab,bc,cd->ad", [A] * 3, A, path=[(0,)]), GraphError, r"step \(0,\) does not fit"),
        (
            lambda: emit_einsum("ab,bc,cd->ad", [A, A, Operand(strided((3, 4), (4, 1)), "FP32")], A),
            GraphError,
            "letter 'c' has extents 4 and 3",
        ),
        (
            lambda: emit_einsum("ab,bc,cd->ad", [A] * 3, Operand(strided((4, 4), (1, 1)), "FP32")),
            LayoutError,
            "share memory",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


# ── sequences ──


def test_a_sequence_renames_and_binds():
    x = np.arange(-6, 6, dtype="i4").reshape(3, 4)
    flip, clip = emit_copy(operand(x), operand(np.zeros((4, 3), "i4")), "ab->ba"), emit_relu(operand(x.T.copy()))
    clip = replace(clip, name="clip")
    specs = (TensorSpec("x", "INT32", "in"), TensorSpec("y", "INT32", "out"))
    both = sequence([(flip, {"in0": "x", "out": "y"}), (clip, {"out": "y"}), (clip, {"out": "y"})], specs)
    assert problems(both) == ()
    assert len({node.id for node in both.nodes}) == len(both.nodes)
    assert "relu.2" in {node.id for node in both.nodes}
    out = np.zeros((4, 3), "i4")
    interpret(both, {"x": x, "y": out})
    np.testing.assert_array_equal(out, np.maximum(x.T, 0))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"in0": "x", "out": "z"}, "tensor 'out': it is bound to 'z', which is no common tensor"),
        ({"in0": "x"}, "tensor 'out': it is bound to None"),
        ({"in0": "x", "out": "x"}, "tensor 'out': it is bound to 'x', as another tensor of this part is"),
        ({"in0": "x", "out": "wide"}, "it holds INT32 and is bound to 'wide', which holds INT64"),
    ],
)
def test_refusals_of_sequences(names, message):
    part = emit_copy(operand(np.zeros((2, 3), "i4")), operand(np.zeros((2, 3), "i4")))
    specs = (TensorSpec("x", "INT32", "inout"), TensorSpec("wide", "INT64", "out"))
    with pytest.raises(VerifyError, match=message):
        sequence([(part, names)], specs)


@pytest.mark.parametrize(
    ("equation", "shapes", "sums"),
    [
        ("ij,k->i", [(3, 4), (5,)], 2),
        ("i,j->", [(6,), (7,)], 2),
        ("ij,jk->", [(3, 4), (4, 5)], 2),
        ("ij,j->i", [(3, 4), (4,)], 0),
        ("iij,k->", [(3, 3, 4), (5,)], 2),
        ("ij,jk,kl->j", [(3, 4), (4, 5), (5, 6)], 2),
        ("ij,kj->j", [(1, 4), (5, 4)], 1),
    ],
)
@pytest.mark.parametrize("dtype", ["FP32", "BF16", "INT8"])
def test_letters_of_one_operand_are_summed_first(equation, shapes, sums, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-2, 3, shape).astype(numpy_dtype(dtype)) for shape in shapes]
    wanted = np.einsum(equation, *(array.astype("f8") for array in arrays))
    out = np.zeros(wanted.shape, {"FP32": "f4", "BF16": "f4", "INT8": "i4"}[dtype])
    program = emit_einsum(equation, [operand(a, dtype) for a in arrays], operand(out, dtype_name(out.dtype)))
    assert sum(p.operation == "ReduceSum" for p in program.primitives) == sums
    given = {f"in{k}": array for k, array in enumerate(arrays)}
    interpret(program, {**given, "out": out})
    np.testing.assert_array_equal(out, wanted)
    out[...] = 77
    cpu.compile(program)(*arrays, out)
    np.testing.assert_array_equal(out, wanted)
