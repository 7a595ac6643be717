"""Kernel eligibility: the document's example, every order, and reasons where no kernel fits."""

from __future__ import annotations

from itertools import product

import pytest

from tileweave.errors import VerifyError
from tileweave.teir import Axis, Primitive, Program, TensorSpec, as_tileweave, eligibility, explain, pack
from tileweave.teir.analysis.lower import Brgemm, CopyKernel, Gemm, General, ReluKernel, ScalarKernel, ZeroKernel
from tileweave.teir.ir import examples

Strides = tuple[int, ...]


def contraction(inner: tuple[str, ...] = ("k",), dtype: str = "FP32", **axes: tuple[int, Strides]) -> Program:
    tensors = tuple(TensorSpec(n, dtype, "inout" if n == "out" else "in") for n in ("in0", "in1", "out"))
    roles = (("M", ("m",)), ("N", ("n",)), ("K", inner))
    return Program(
        tensors,
        tuple(Axis(id, extent, strides, (0, 0, 0)) for id, (extent, strides) in axes.items()),
        (),
        (),
        (Primitive("p", "Contraction", roles, ("in0", "in1", "out")),),
    )


def test_the_lowering_example():
    program = contraction(m=(8, (4, 0, 4)), n=(4, (0, 64, 32)), k=(16, (32, 4, 0)))
    assert eligibility("p", program) == Gemm(8, 4, 16, 8, 16, 8, ("column-major",) * 3, "FP32")
    assert str(explain("p", program)) == "\n".join(
        [
            "p: Gemm",
            "  roles: |M| = 1, |N| = 1, |K| = 1",
            "  A = in0: column-major, unit stride on m, leading dimension 8 on k",
            "  B = in1: column-major, unit stride on k, leading dimension 16 on n",
            "  C = out: column-major, unit stride on m, leading dimension 8 on n",
        ]
    )


def test_packed_operands_are_named_with_their_copies():
    program = as_tileweave(examples.contraction_gemm(dict.fromkeys("pqrstu", 4)))
    packed = pack(pack(program, "gemm", "in1"), "gemm", "out", at="t")
    assert explain("gemm_squ", packed).lines[-3:] == (
        "in1_packed is packed: pack_in1 brings in1",
        "out_packed is packed: pack_out brings out",
        "out_packed is scratch: unpack_out brings it to out",
    )
    assert "packed" not in str(explain("gemm_squ", program))


@pytest.mark.parametrize(("a", "b", "c"), list(product(("column-major", "row-major"), repeat=3)))
def test_every_order(a, b, c):
    m, n, k, w = 8, 4, 16, 8

    def place(order: str, rows: int, columns: int) -> tuple[int, int]:
        return (w, w * rows) if order == "column-major" else (w * columns, w)

    (am, ak), (bk, bn), (cm, cn) = place(a, m, k), place(b, k, n), place(c, m, n)
    program = contraction(dtype="FP64", m=(m, (am, 0, cm)), n=(n, (0, bn, cn)), k=(k, (ak, bk, 0)))
    kernel = eligibility("p", program)
    assert isinstance(kernel, Gemm)
    assert kernel.orders == (a, b, c)
    assert (kernel.lda, kernel.ldb, kernel.ldc) == (
        m if a == "column-major" else k,
        k if b == "column-major" else n,
        m if c == "column-major" else n,
    )


def test_batch_reduce_strides_are_free():
    axes = {"m": (8, (4, 0, 4)), "n": (4, (0, 64, 32)), "k": (16, (32, 4, 0))}
    program = contraction(("b", "k"), **axes, b=(3, (-8, 0, 0)))
    kernel = eligibility("p", program)
    assert isinstance(kernel, Brgemm)
    assert (kernel.br_size, kernel.br_stride_a, kernel.br_stride_b) == (3, -2, 0)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (contraction((), m=(8, (4, 0, 4)), n=(4, (0, 64, 32))), "GEMM has one axis each"),
        (contraction(m=(8, (8, 0, 4)), n=(4, (0, 64, 32)), k=(16, (64, 4, 0))), "in0 needs one axis with stride 4"),
        (contraction(m=(8, (4, 0, 4)), n=(4, (0, 64, 32)), k=(16, (30, 4, 0))), "is no multiple of 4"),
        (contraction(m=(8, (4, 0, 4)), n=(4, (0, 64, 32)), k=(16, (-32, 4, 0))), "positive leading dimension"),
        (
            contraction(m=(8, (4, 0, 4)), n=(4, (0, 64, 28)), k=(16, (32, 4, 0))),
            "the leading dimension of out, 7 on n, is less than the 8 of m, which has unit stride",
        ),
        (
            contraction(m=(8, (4, 0, 4)), n=(4, (0, 64, 32)), k=(16, (4, 4, 0))),  # overlapping windows of in0
            "the leading dimension of in0, 1 on m, is less than the 16 of k, which has unit stride",
        ),
        (contraction(m=(8, (4, 4, 4)), n=(4, (0, 64, 32)), k=(16, (32, 4, 0))), "axis m moves in1"),
        (
            contraction(("b", "k"), m=(8, (4, 0, 4)), n=(4, (0, 64, 32)), k=(16, (32, 4, 0)), b=(2, (2, 4, 0))),
            "the batch-reduce stride of in0, 2 bytes on b",
        ),
    ],
)
def test_what_fits_no_kernel_says_why(program, reason):
    kernel = eligibility("p", program)
    assert isinstance(kernel, General)
    assert reason in kernel.reasons[0]
    assert f"no kernel of the document: {kernel.reasons[0]}" in str(explain("p", program))


def test_an_output_matrix_is_what_blas_calls_one():
    """Enumerated: eligible exactly where BLAS, given order and leading dimension, reaches the same elements, apart."""
    for m, n, row, column in product((1, 2, 3), (1, 2, 3), range(1, 5), range(1, 5)):
        program = contraction(m=(m, (16, 0, 4 * row)), n=(n, (0, 4, 4 * column)), k=(4, (4, 16, 0)))
        addresses = [[row * i + column * j for j in range(n)] for i in range(m)]
        matrices = [
            (order, ld)
            for order, rows in (("column-major", m), ("row-major", n))
            for ld in range(rows, 16)
            if [[i + ld * j if order == "column-major" else ld * i + j for j in range(n)] for i in range(m)]
            == addresses
        ]
        kernel = eligibility("p", program)
        if isinstance(kernel, Gemm):
            assert (kernel.orders[2], kernel.ldc) in matrices
            assert len({x for line in addresses for x in line}) == m * n
        else:
            assert m == 1 or n == 1 or not matrices  # a stride that nothing walks may still be no leading dimension


def test_mixed_types_are_no_gemm():
    program = contraction(m=(8, (2, 0, 4)), n=(4, (0, 32, 32)), k=(16, (16, 2, 0)))
    tensors = (TensorSpec("in0", "BF16", "in"), TensorSpec("in1", "BF16", "in"), TensorSpec("out", "FP32", "inout"))
    mixed = Program(tensors, program.axes, (), (), program.primitives)
    assert isinstance(eligibility("p", mixed), General)
    assert "its operands hold BF16, FP32" in str(explain("p", mixed))


def test_elementwise_kernels():
    tensors = (TensorSpec("in0", "FP32", "in"), TensorSpec("out", "FP32", "out"))
    axes = (Axis("r", 6, (4, 40), (0, 0)), Axis("c", 5, (32, 4), (0, 0)))
    roles = (("M", ("r",)), ("N", ("c",)))

    def kernel(operation: str, *operands: str, roles: tuple[tuple[str, tuple[str, ...]], ...] = roles) -> object:
        primitive = Primitive("p", operation, roles, operands)
        return eligibility(primitive, Program(tensors, axes, (), (), (primitive,)))

    assert kernel("Copy", "in0", "out") == CopyKernel(6, 5, "column-major", "row-major", 8, 10, "FP32")
    assert kernel("ReLU", "out", "out") == ReluKernel(6, 5, "row-major", "row-major", 10, 10, "FP32")
    assert kernel("Zero", "out") == ZeroKernel(6, 5, "row-major", 10, "FP32")
    assert kernel("Zero", "out", roles=(("M", ()), ("N", ()))) == ScalarKernel("Zero")
    assert isinstance(kernel("Zero", "out", roles=(("M", ("r", "c")), ("N", ()))), General)


def test_unknown_primitives_are_refused():
    with pytest.raises(VerifyError, match="there is no primitive 'x'") as caught:
        explain("x", contraction(m=(1, (0, 0, 0)), n=(1, (0, 0, 0)), k=(1, (0, 0, 0))))
    assert "legal  p" in str(caught.value)
