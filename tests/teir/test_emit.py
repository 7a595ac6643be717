"""Emitted programs against NumPy: every equation, stride, type, tile and remainder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileweave.errors import DtypeError, GraphError, LayoutError, ScheduleError
from tileweave.layout import Iter, Layout, strided
from tileweave.teir import (
    Operand,
    Tiling,
    byte_bounds,
    dtype_name,
    emit_contraction,
    emit_copy,
    emit_relu,
    emit_zero,
    interpret,
    numpy_dtype,
    problems,
    races,
)
from tileweave.teir.emit.schedule import LoopDim, contraction_tiles, elementwise_tiles, fuse_dims, untiled
from tileweave.teir.ir.dtypes import DTYPES, accumulator


def operand(array: np.ndarray, dtype: str) -> Operand:
    return Operand(strided(array.shape, [s // array.itemsize for s in array.strides]), dtype)


def check(program, arrays, expected, order="random"):
    assert problems(program) == ()
    assert races(program) is None
    interpret(program, arrays, order=order)
    np.testing.assert_array_equal(arrays["out"], expected)


def rearranged(rng: np.random.Generator, shape: list[int], dtype: np.dtype) -> np.ndarray:
    """An array of this shape whose axes are permuted, stepped or reversed in memory."""
    order = rng.permutation(len(shape))
    steps = rng.integers(1, 3, len(shape))
    base = rng.integers(-3, 4, [shape[k] * steps[k] for k in order]).astype(dtype)
    view = base.transpose(np.argsort(order))
    return view[(*(slice(None, None, -s if rng.random() < 0.3 else s) for s in steps), ...)]


def cut_at_random(rng: np.random.Generator):
    return lambda dims: Tiling(tuple(int(rng.integers(1, dim.extent + 1)) for dim in dims))


LETTERS = "abcdef"


@st.composite
def contractions(draw):
    """An equation, the extents of its letters, and a seed."""
    count = draw(st.integers(0, 6))
    letters = LETTERS[:count]
    where = [draw(st.sampled_from(["0", "1", "01", "0o", "1o", "01o"])) for _ in letters]
    inputs = ["".join(draw(st.permutations([c for c, w in zip(letters, where, strict=True) if k in w]))) for k in "01"]
    out = "".join(draw(st.permutations([c for c, w in zip(letters, where, strict=True) if "o" in w])))
    extents = {c: draw(st.integers(1, 4)) for c in letters}
    return f"{inputs[0]},{inputs[1]}->{out}", extents, draw(st.integers(0, 2**32))


@settings(max_examples=150, deadline=None)
@given(contractions(), st.sampled_from(sorted(name for name in DTYPES if name[0] != "U")), st.booleans())
def test_contractions_are_einsum(case, dtype, tiled):
    equation, extents, seed = case
    rng = np.random.default_rng(seed)
    left, output = equation.split("->")
    a, b = (rearranged(rng, [extents[c] for c in term], numpy_dtype(dtype)) for term in left.split(","))
    out = rearranged(rng, [extents[c] for c in output], numpy_dtype(dtype))
    start = out.copy()
    wide = numpy_dtype(accumulator(dtype))
    product = np.einsum(equation, a.astype("f8"), b.astype("f8"))
    accumulate, relu = bool(rng.integers(2)), bool(rng.integers(2))
    bias = None if accumulate or rng.random() < 0.5 else rng.integers(-3, 4, out.shape[-1:]).astype(wide)
    broadcast = None if bias is None else np.broadcast_to(bias, out.shape)
    expected = (
        product + (start.astype("f8") if accumulate else 0) + (0 if broadcast is None else broadcast.astype("f8"))
    )
    if relu:
        expected = np.maximum(expected, 0)
    arrays = {"in0": a, "in1": b, "out": out}
    init = None
    if broadcast is not None:
        init = operand(broadcast, dtype_name(wide))
        arrays["bias"] = broadcast
    operands = (operand(a, dtype), operand(b, dtype))
    target = operand(out, dtype)
    tiling = cut_at_random(rng) if tiled else untiled
    program = emit_contraction(equation, operands, target, accumulate=accumulate, init=init, relu=relu, tiling=tiling)
    check(program, arrays, expected.astype(wide).astype(numpy_dtype(dtype)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["FP32", "FP64", "INT32"]))
def test_blocks_that_a_chain_scales_are_added(seed, tiled, dtype):
    """Letters of both inputs and of no output, along which what the chain makes of the sums is added up."""
    rng = np.random.default_rng(seed)
    both = LETTERS[: rng.integers(0, 3)]  # of both inputs and of out
    added, rows, columns, terms = "pq"[: rng.integers(1, 3)], "mr"[: rng.integers(1, 3)], "n", "k"
    extents = {c: int(rng.integers(1, 4)) for c in both + added + rows + columns + terms}
    shuffled = [
        "".join(rng.permutation(list(x))) for x in (both + added + rows + terms, both + added + columns + terms)
    ]
    whole = "".join(rng.permutation(list(both + added + rows + columns)))
    kept = "".join(c for c in whole if c not in added)
    kind = numpy_dtype(dtype)
    a, b = (rearranged(rng, [extents[c] for c in own], kind) for own in shuffled)
    out = rearranged(rng, [extents[c] for c in kept], kind)
    shape = [extents[c] for c in whole]
    scale, more = (rearranged(rng, [n if rng.random() < 0.7 else 1 for n in shape], kind) for _ in range(2))
    wide = np.einsum(f"{shuffled[0]},{shuffled[1]}->{whole}", a.astype("f8"), b.astype("f8"))
    scaled = (wide * scale.astype("f8") + more).sum(tuple(whole.index(c) for c in added))
    spread = [np.broadcast_to(x, shape) for x in (scale, more)]
    program = emit_contraction(
        f"{shuffled[0]},{shuffled[1]}->{whole}", (operand(a, dtype), operand(b, dtype)), operand(out, dtype),
        chain=[("Mul", (0, 1)), ("Add", (-1, 2))], extras=[operand(x, dtype) for x in spread], added=added,
        tiling=cut_at_random(rng) if tiled else untiled,
    )  # fmt: skip
    arrays = {"in0": a, "in1": b, "out": out, "in2": spread[0], "in3": spread[1]}
    check(program, arrays, scaled.astype(kind))
    with pytest.raises(GraphError, match="added along 'm'"):
        emit_contraction("mk,nk->mn", (operand(a, dtype),) * 2, operand(out, dtype), added="m")
    narrow = Operand(strided((2, 3, 3), (9, 3, 1)), "FP16"), Operand(strided((3, 3), (3, 1)), "FP16")
    with pytest.raises(DtypeError, match="results of FP16 are added"):
        emit_contraction(
            "pmk,pnk->pmn", narrow[:1] * 2, narrow[1], chain=[("Add", (0, 1))], extras=narrow[:1], added="p"
        )


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 2**32), st.booleans())
def test_copies_are_transpositions_and_broadcasts(shape, seed, tiled):
    rng = np.random.default_rng(seed)
    out = rearranged(rng, shape, np.dtype("i4"))
    order = rng.permutation(len(shape))
    source = rearranged(rng, [shape[k] for k in order], np.dtype("i4"))
    letters = LETTERS[: len(shape)]
    equation = "".join(letters[k] for k in order) + "->" + letters
    expected = source.transpose(np.argsort(order)).copy()
    tiling = cut_at_random(rng) if tiled else untiled
    program = emit_copy(operand(source, "INT32"), operand(out, "INT32"), equation, tiling=tiling)
    check(program, {"in0": source, "out": out}, expected)
    row = np.broadcast_to(rng.integers(0, 9, out.shape[-1:]).astype("i8"), out.shape)
    check(emit_copy(operand(row, "INT64"), operand(out, "INT32")), {"in0": row, "out": out}, row)


@pytest.mark.parametrize("dtype", ["FP32", "BF16", "INT8"])
def test_zero_and_relu(dtype):
    rng = np.random.default_rng(0)
    kind = numpy_dtype(dtype)
    a = rng.integers(-3, 4, (40, 70)).astype(kind)[::-1, ::2]
    out = np.ones((35, 40), kind).T
    check(emit_relu(operand(a, dtype), operand(out, dtype)), {"in0": a, "out": out}, np.maximum(a, kind.type(0)))
    expected = np.maximum(a, kind.type(0))
    check(emit_relu(operand(a, dtype)), {"out": a}, expected)
    check(emit_zero(operand(a, dtype)), {"out": a}, np.zeros_like(a))


def test_layout_offsets_become_addresses():
    buffer = np.arange(20, dtype=np.float32)
    out = np.zeros(40, np.float32)
    source = Operand(strided((4,), (-2,), 10), "FP32")
    target = Operand(strided((4,), (3,), 5), "FP32")
    program = emit_copy(source, target)
    assert byte_bounds(program) == {"in0": (16, 44), "out": (20, 60)}
    interpret(program, {"in0": buffer, "out": out})
    assert out[5:17:3].tolist() == [10, 8, 6, 4]
    dot = emit_contraction("i,i->", (source, source), Operand(strided((), (), 3), "FP32"))
    interpret(dot, {"in0": buffer, "in1": buffer, "out": out})
    assert out[3] == 100 + 64 + 36 + 16


def test_diagonals_and_sums_over_one_operand():
    rng = np.random.default_rng(2)
    a, b = rng.integers(-3, 4, (5, 5, 3)).astype("i8"), rng.integers(-3, 4, (4,)).astype("i8")
    out = np.zeros((3, 5), "i8")
    program = emit_contraction("iij,k->ji", (operand(a, "INT64"), operand(b, "INT64")), operand(out, "INT64"))
    check(program, {"in0": a, "in1": b, "out": out}, np.einsum("iij,k->ji", a, b))


def test_mixed_types_accumulate_in_the_widest():
    a, b = np.array([[100, 100]], np.int8), np.array([[100], [100]], np.int8)
    out = np.zeros((1, 1), np.int32)
    program = emit_contraction("ik,kj->ij", (operand(a, "INT8"), operand(b, "INT8")), operand(out, "INT32"))
    check(program, {"in0": a, "in1": b, "out": out}, [[20000]])
    x = np.array([[1e8, 1, -1e8]])
    y, narrow = np.ones((3, 1)), np.zeros((1, 1), np.float32)
    program = emit_contraction("ik,kj->ij", (operand(x, "FP64"), operand(y, "FP64")), operand(narrow, "FP32"))
    assert [spec.role for spec in program.tensors] == ["in", "in", "out", "scratch"]
    check(program, {"in0": x, "in1": y, "out": narrow}, [[1]])


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1000), (130, 400, 7), (97, 401, 30), (9, 20, 389), (64, 256, 64), (200, 5, 600)]
)
def test_tiles_of_every_size_cover_the_product(m, n, k):
    rng = np.random.default_rng(5)
    a, b = rng.integers(-2, 3, (m, k)).astype("i4"), rng.integers(-2, 3, (k, n)).astype("i4")
    out = np.full((m, n), 99, "i4")
    operands = (operand(a, "INT32"), operand(b, "INT32"))
    program = emit_contraction("ik,kj->ij", operands, operand(out, "INT32"), tiling=contraction_tiles)
    check(program, {"in0": a, "in1": b, "out": out}, a @ b)


@pytest.mark.parametrize(("shape", "order"), [((70, 200), (1, 0)), ((3, 90, 70), (2, 0, 1)), ((30000,), (0,))])
def test_elementwise_tiles_cover_the_copy(shape, order):
    source = np.arange(np.prod(shape), dtype="i4").reshape(shape).transpose(order)
    out = np.zeros(source.shape, "i4")
    program = emit_copy(operand(source, "INT32"), operand(out, "INT32"), tiling=elementwise_tiles)
    assert len(program.nodes) > 1
    check(program, {"in0": source, "out": out}, source)


def test_the_output_s_fastest_letter_is_an_n_axis():
    a, b = Operand(strided((300, 90), (90, 1)), "FP32"), Operand(strided((90, 200), (200, 1)), "FP32")
    rows = emit_contraction("ik,kj->ij", (a, b), Operand(strided((300, 200), (200, 1)), "FP32"))
    columns = emit_contraction("ik,kj->ij", (a, b), Operand(strided((300, 200), (1, 300)), "FP32"))
    for program, order, fastest in ((rows, ("in0", "in1", "out"), "j"), (columns, ("in1", "in0", "out"), "i")):
        contraction = next(p for p in program.primitives if p.operation == "Contraction")
        assert contraction.operands == order
        assert str(contraction.role("N")[-1]).startswith(fastest)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: emit_contraction("ik,kj", (a, a), a), GraphError, "is not an equation of 2 operand"),
        (lambda a: emit_contraction("ik,kj->ijj", (a, a), a), GraphError, "repeats a letter"),
        (lambda a: emit_contraction("ik,kj->ij", (a,), a), GraphError, "it takes two operands, not 1"),
        (lambda a: emit_contraction("ik,kj->iz", (a, a), a), GraphError, "letter 'z' of the output is in no input"),
        (lambda a: emit_contraction("ikl,kj->ij", (a, a), a), GraphError, "does not fit a shape of 2 indices"),
        (
            lambda a: emit_contraction("ik,kj->ij", (a, Operand(strided((3, 4), (4, 1)), "FP32")), a),
            GraphError,
            "letter 'k' has extents 4 and 3",
        ),
        (lambda a: emit_contraction("ik,kj->ij", (a, a), a, accumulate=True, init="zero"), GraphError, "both"),
        (
            lambda a: emit_contraction("ik,kj->ij", (a, a), Operand(a.layout, "INT32")),
            DtypeError,
            "mix integers and floating point",
        ),
        (
            lambda a: emit_contraction("ik,kj->ij", (a, a), Operand(strided((4, 4), (2, 1)), "FP32")),
            LayoutError,
            r"elements of the output that are \(1, -2\) apart in \(i,j\) share memory",
        ),
        (
            lambda a: emit_copy(a, Operand(Layout(a.layout.shard, (Iter(2, 99),)), "FP32")),
            LayoutError,
            "the output is replicated",
        ),
        (lambda a: emit_zero(Operand(Layout(((4, {"lane": 1}),)), "FP32")), LayoutError, "leaves the memory axis m"),
        (lambda a: emit_copy(a, Operand(a.layout, "INT8")), DtypeError, "no agreed meaning"),
        (lambda a: emit_relu(a, Operand(a.layout, "FP64")), DtypeError, "differ"),
        (lambda a: emit_zero(a, tiling=lambda dims: Tiling((1, 1, 1))), ScheduleError, "do not fit"),
        (lambda a: emit_copy(a, a, "ij->ik"), GraphError, "a letter of the source is not in the output"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call(Operand(strided((4, 4), (4, 1)), "FP32"))


@given(st.lists(st.integers(2, 5000), min_size=1, max_size=5), st.sampled_from("MNK"))
def test_tiles_stay_near_their_targets(extents, role):
    dims = tuple(LoopDim(f"d{k}", n, (4,), role) for k, n in enumerate(extents))
    tiling = contraction_tiles(dims)
    assert all(1 <= tile <= dim.extent for tile, dim in zip(tiling.tiles, dims, strict=True))
    assert np.prod(tiling.tiles) <= {"M": 96, "N": 384, "K": 384}[role]
    assert tiling == contraction_tiles(dims)
    assert str(tiling).startswith(f"{role}: d{len(dims) - 1} ")


@given(st.permutations("abcd"))
def test_contiguous_dims_fuse_to_one(order):
    extents, strides, step = {}, {}, 4
    for letter in reversed("abcd"):
        extents[letter], strides[letter] = ord(letter) - 95, step
        step *= extents[letter]
    fused = fuse_dims([LoopDim(c, extents[c], (strides[c], 2 * strides[c]), "M") for c in order])
    assert fused == (LoopDim("abcd", 2 * 3 * 4 * 5, (4, 8), "M"),)


@pytest.mark.parametrize(
    ("equation", "operands", "why"),
    [(None, (), "it takes two operands"), ("ij,jk->ik", None, "NoneType is given as operands")]
    + [("ij,jk->ik", (np.zeros((2, 2)), np.zeros((2, 2))), "ndarray is given as an operand")],
)
def test_what_is_no_operand_is_refused(equation, operands, why):
    with pytest.raises(GraphError, match=why):
        emit_contraction(equation, operands, Operand(strided((2, 2), (2, 1)), "FP32"))


def test_operands_beyond_64_bits_are_refused():
    a, b, out = (Operand(strided(shape, (shape[1], 1)), "FP32") for shape in ((2**62, 5), (5, 6), (2**62, 6)))
    with pytest.raises(LayoutError, match="beyond addresses of 64 bits"):
        emit_contraction("ij,jk->ik", (a, b), out)


def test_relu_of_narrow_integers_sees_the_whole_sum():
    a, b = (np.full(shape, 3, "int8") for shape in ((2, 16), (16, 2)))
    sums = strided((2, 2), (2, 1))
    operands = Operand(strided((2, 16), (16, 1)), "INT8"), Operand(strided((16, 2), (2, 1)), "INT8")
    out = np.empty((2, 2), "int8")
    program = emit_contraction("ik,kj->ij", operands, Operand(sums, "INT8"), relu=True)
    interpret(program, {"in0": a, "in1": b, "out": out})
    assert (out == np.int8(144 - 256)).all()
