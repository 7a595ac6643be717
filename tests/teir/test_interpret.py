"""The interpreter: views of any strides, narrow types, checked bytes, and memory that operands share."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tileweave.errors import DtypeError, VerifyError
from tileweave.teir import (
    Axis,
    Invocation,
    Iteration,
    Primitive,
    Program,
    TensorSpec,
    dtype_name,
    interpret,
    numpy_dtype,
    operation,
    register,
)
from tileweave.teir.ir import examples
from tileweave.teir.ir.dtypes import DTYPES, accumulator, contraction_dtype, is_float, width_bytes


def unary(name: str, extent: int, strides: tuple[int, int], dtypes: tuple[str, str]) -> Program:
    """out[i] = operation(in0[i]) for i below extent."""
    tensors = (TensorSpec("in0", dtypes[0], "in"), TensorSpec("out", dtypes[1], "out"))
    primitive = Primitive("p", name, (("M", ()), ("N", ("i",))), ("in0", "out"))
    return Program(tensors, (Axis("i", extent, strides, (0, 0)),), ("c",), (Invocation("c", "p"),), (primitive,))


def matmul(dtypes: tuple[str, str, str], shape: tuple[int, int, int], arrays: list[np.ndarray]) -> Program:
    """out += in0 @ in1, with the strides of the arrays."""
    (a, b, c), (m, n, k) = arrays, shape
    axes = (
        Axis("m", m, (a.strides[0], 0, c.strides[0]), (0, 0, 0)),
        Axis("n", n, (0, b.strides[1], c.strides[1]), (0, 0, 0)),
        Axis("k", k, (a.strides[1], b.strides[0], 0), (0, 0, 0)),
    )
    roles = ("in", "in", "inout")
    tensors = tuple(TensorSpec(t, d, r) for t, d, r in zip(("in0", "in1", "out"), dtypes, roles, strict=True))
    primitive = Primitive("p", "Contraction", (("M", ("m",)), ("N", ("n",)), ("K", ("k",))), ("in0", "in1", "out"))
    return Program(tensors, axes, ("c",), (Invocation("c", "p"),), (primitive,))


@pytest.mark.parametrize("name", DTYPES)
def test_names_and_types_are_inverse(name):
    assert dtype_name(numpy_dtype(name)) == name
    assert numpy_dtype(name).itemsize == width_bytes(name)
    assert is_float(name) == (not np.issubdtype(numpy_dtype(name), np.integer))
    assert contraction_dtype(name) == accumulator(name)


def test_unknown_types_are_refused():
    for bad in (np.dtype("longdouble"), np.dtype(">f4"), np.dtype("complex64")):
        with pytest.raises(DtypeError):
            dtype_name(bad)
    with pytest.raises(DtypeError, match="'FP8' is not an element type"):
        numpy_dtype("FP8")
    with pytest.raises(DtypeError, match="mix"):
        contraction_dtype("INT8", "FP32")


@pytest.mark.parametrize("name", DTYPES)
def test_matmul_in_every_type_on_views_of_any_strides(name):
    rng = np.random.default_rng(1)
    dtype, wide = numpy_dtype(name), numpy_dtype(accumulator(name))
    a = rng.integers(-3, 4, (7, 10)).astype(dtype)[::-2, 1::3]  # (4, 3), negative and wide strides
    b = rng.integers(-3, 4, (5, 3)).astype(dtype).T[:, ::-1]
    c = rng.integers(-3, 4, (8, 10)).astype(wide)[::2, ::2]
    expected = c + np.matmul(a.astype(wide), b.astype(wide))
    interpret(matmul((name, name, dtype_name(wide)), (4, 5, 3), [a, b, c]), {"in0": a, "in1": b, "out": c})
    np.testing.assert_array_equal(c, expected)


def test_integers_wrap_as_in_numpy():
    a, b = np.full((1, 4), 100, np.int8), np.full((4, 1), 100, np.int8)
    c = np.zeros((1, 1), np.int8)
    interpret(matmul(("INT8",) * 3, (1, 1, 4), [a, b, c]), {"in0": a, "in1": b, "out": c})
    assert c[0, 0] == (a @ b)[0, 0]


def test_narrow_sums_in_the_document_profile_round_once_per_step():
    document = replace(examples.guarded_reduction({"m": 1, "n": 1, "k": 300}))
    axes = (Axis("m", 1, (0,) * 3, (0,) * 3), Axis("n", 1, (0,) * 3, (0,) * 3), Axis("k", 300, (2, 2, 0), (0,) * 3))
    program = replace(
        document,
        axes=axes,
        tensors=tuple(replace(t, dtype="BF16") for t in document.tensors),
        primitives=tuple(replace(p, metadata=()) for p in document.primitives),
    )
    ones, out = np.ones(300, ml_dtypes.bfloat16), np.zeros(1, ml_dtypes.bfloat16)
    interpret(program, {"in0": ones, "in1": ones, "out": out})
    assert out[0] == 256  # 256 + 1 is not a BF16 number


def test_relu_keeps_nan_and_negates_nothing():
    source = np.array([np.nan, -np.inf, -1.5, -0.0, 0.0, 2.5, np.inf], np.float32)
    out = np.empty_like(source)
    interpret(unary("ReLU", 7, (4, 4), ("FP32", "FP32")), {"in0": source, "out": out})
    np.testing.assert_array_equal(out, np.maximum(source, 0))


@pytest.mark.parametrize(
    ("source", "target"), [("FP32", "BF16"), ("FP64", "FP16"), ("INT64", "INT8"), ("INT32", "FP32")]
)
def test_copy_converts_as_numpy_does(source, target):
    a = np.array([-300, -1, 0, 1, 3, 257, 1000], numpy_dtype(source))
    out = np.zeros(7, numpy_dtype(target))
    program = unary("Copy", 7, (a.itemsize, out.itemsize), (source, target))
    interpret(program, {"in0": a, "out": out})
    np.testing.assert_array_equal(out, a.astype(out.dtype))


def test_copy_to_integers_from_floating_point_is_refused():
    with pytest.raises(VerifyError, match="no agreed meaning"):
        interpret(unary("Copy", 2, (4, 4), ("FP32", "INT32")), {})


def test_the_base_is_the_first_element_and_the_memory_is_the_owner_s():
    buffer = np.arange(10, dtype=np.float32)
    out = np.zeros(3, np.float32)
    program = unary("Copy", 3, (-4, 4), ("FP32", "FP32"))
    interpret(program, {"in0": buffer[2:], "out": out})
    assert out.tolist() == [2, 1, 0]
    with pytest.raises(VerifyError, match=r"touches bytes -8\.\.3 of 'in0'") as caught:
        interpret(program, {"in0": buffer[1:], "out": out})
    assert caught.value.facts["rule"] == "address.in-bounds"
    assert "bytes -4..35 from its base" in str(caught.value)


def test_a_write_behind_the_end_is_refused_before_it_happens():
    out = np.ones(4, np.float32)
    source = np.zeros(9, np.float32)
    with pytest.raises(VerifyError, match="node 'c' touches bytes"):
        interpret(unary("Copy", 5, (4, 4), ("FP32", "FP32")), {"in0": source, "out": out})
    assert out.tolist() == [1, 1, 1, 1]


def test_arrays_must_fit_the_tensors():
    program = unary("Copy", 2, (4, 4), ("FP32", "FP32"))
    good = np.zeros(2, np.float32)
    frozen = np.zeros(2, np.float32)
    frozen.flags.writeable = False
    for arrays, message in [
        ({"in0": good}, "operand 'out': no array is given"),
        ({"in0": good, "out": good.astype("f8")}, "the array holds float64, the tensor FP32"),
        ({"in0": good, "out": frozen}, "read-only"),
        ({"in0": good, "out": good, "x": good}, "operand 'x': the program has no such operand"),
    ]:
        with pytest.raises(VerifyError, match=message) as caught:
            interpret(program, arrays)
        assert caught.value.facts["rule"] == "interpret.arrays"
    interpret(program, {"in0": frozen, "out": good})  # reading read-only arrays is legal


def test_operands_that_share_memory_run_point_after_point():
    # out[i] = in0[i] with out one element ahead of in0: the first element spreads
    buffer = np.arange(6, dtype=np.float32)
    interpret(unary("Copy", 5, (4, 4), ("FP32", "FP32")), {"in0": buffer[:5], "out": buffer[1:]})
    assert buffer.tolist() == [0, 0, 0, 0, 0, 0]
    buffer = np.array([-1, 2, -3], np.float32)
    interpret(unary("ReLU", 3, (4, 4), ("FP32", "FP32")), {"in0": buffer, "out": buffer})
    assert buffer.tolist() == [0, 2, 0]


def test_unaligned_addresses():
    raw = np.zeros(17, np.uint8)
    view = np.frombuffer(raw.data, np.float32, count=4, offset=1)
    source = np.array([1, 2, 3, 4], np.float32)
    interpret(unary("Copy", 4, (4, 4), ("FP32", "FP32")), {"in0": source, "out": view})
    assert raw[1:17].tobytes() == source.tobytes()
    assert raw[0] == 0


def test_scratch_is_never_zero_on_entry():
    tensors = (TensorSpec("out", "INT32", "out"), TensorSpec("s", "INT32", "scratch", 4))
    copy = Primitive("p", "Copy", (("M", ()), ("N", ())), ("s", "out"))
    program = Program(tensors, (), ("c",), (Invocation("c", "p"),), (copy,))
    out = np.zeros(1, np.int32)
    interpret(program, {"out": out})
    assert out[0] != 0


def test_parallel_order_is_free(wild, run):
    racing = 0
    for seed in range(60):
        program = wild(seed, parallel=0.6)
        from tileweave.teir import races

        if races(program) is not None:
            racing += 1
            continue
        expected = run(program)
        for order in ("reversed", "random"):
            np.testing.assert_array_equal(run(program, order, seed), expected)
    assert racing > 0


def test_zero_dimensional_programs():
    nodes = (Iteration("i", "i", ("c",)), Invocation("c", "p"))
    program = replace(unary("Copy", 1, (0, 0), ("INT8", "INT8")), roots=("i",), nodes=nodes)
    program = replace(program, primitives=(replace(program.primitives[0], axes=(("M", ()), ("N", ()))),))
    source, out = np.array(5, np.int8), np.array(0, np.int8)
    interpret(program, {"in0": source, "out": out})
    assert out == 5


def test_operations_are_registered_once():
    with pytest.raises(VerifyError, match="'Zero' is registered already"):
        register(operation("Zero"))
    with pytest.raises(VerifyError, match="no operation 'Sine' is registered") as caught:
        operation("Sine")
    assert "Zero, Copy, ReLU, Contraction" in str(caught.value)


def one_copy(extent: int, role: str, size_bytes: int = 0) -> Program:
    tensors = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP32", role, size_bytes))
    roles = (("M", ()), ("N", ("n",)))
    axes = (Axis("n", extent, (0, 0), (0, 0)),)
    return Program(tensors, axes, ("i",), (Invocation("i", "p"),), (Primitive("p", "Copy", roles, ("in0", "out")),))


def test_what_memory_cannot_hold_is_refused():
    value = np.zeros(1, "f4")
    with pytest.raises(VerifyError, match=f"it takes {2**62} steps at once"):
        interpret(one_copy(2**62, "out"), {"in0": value, "out": value.copy()})
    with pytest.raises(VerifyError, match=f"no memory for its {2**50} bytes"):
        interpret(one_copy(1, "scratch", 2**50), {"in0": value})


@pytest.mark.parametrize(("arrays", "why"), [(None, "no mapping"), ({"in0": [1.0], "out": [2.0]}, "no array")])
def test_what_are_no_arrays_is_refused(arrays, why):
    with pytest.raises(VerifyError, match=why):
        interpret(one_copy(1, "out"), arrays)


def test_unknown_orders_are_refused():
    with pytest.raises(VerifyError, match="'foo' is no order"):
        interpret(one_copy(1, "out"), {}, order="foo")
