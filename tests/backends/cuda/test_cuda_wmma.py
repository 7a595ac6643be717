"""``nvcuda::wmma``: every shape, type and order equals NumPy; what is misused is named."""

import shutil
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from tileweave.backends.cuda import Launch, compile, run, run_all
from tileweave.errors import BackendError

# C++ type of an element in memory and in a fragment, NumPy's, the type of the result, depth, shapes.
KINDS = (
    ("half", "half", np.float16, "float", 16, ((16, 16), (32, 8), (8, 32))),
    ("half", "half", np.float16, "half", 16, ((16, 16), (32, 8), (8, 32))),
    ("__nv_bfloat16", "__nv_bfloat16", ml_dtypes.bfloat16, "float", 16, ((16, 16), (32, 8), (8, 32))),
    ("float", "wmma::precision::tf32", np.float32, "float", 8, ((16, 16),)),
    ("signed char", "signed char", np.int8, "int", 16, ((16, 16), (32, 8), (8, 32))),
    ("unsigned char", "unsigned char", np.uint8, "int", 16, ((16, 16), (32, 8), (8, 32))),
    ("double", "double", np.float64, "double", 4, ((8, 8),)),
)
RESULTS = {"float": np.float32, "half": np.float16, "int": np.int32, "double": np.float64}
HEAD = """
#include <mma.h>
using namespace nvcuda;
template <int M, int N, int K, class T, class TF, class D, class LA, class LB>
__device__ void tile(D* c, const T* a, const T* b, int lda, int ldb, int ldc, wmma::layout_t lc) {
  wmma::fragment<wmma::matrix_a, M, N, K, TF, LA> fa;
  wmma::fragment<wmma::matrix_b, M, N, K, TF, LB> fb;
  wmma::fragment<wmma::accumulator, M, N, K, D> fc, start;
  wmma::load_matrix_sync(start, c, ldc, lc);
  wmma::load_matrix_sync(fa, a, lda);
  wmma::load_matrix_sync(fb, b, ldb);
  wmma::mma_sync(fc, fa, fb, start);
  wmma::mma_sync(fc, fa, fb, fc);
  for (int i = 0; i < fc.num_elements; i++) fc.x[i] = fc.x[i] * (D)3;
  wmma::store_matrix_sync(c, fc, ldc, lc);
}
"""
CASES = [(kind, shape, *orders) for kind in KINDS for shape in kind[5] for orders in product(("row", "col"), repeat=3)]
FEW = [CASES[k] for k in (0, 14, 21, 27, 53, 74, 98, 122) if k < len(CASES)] + [CASES[-1]]


def stored(values, order, dtype):
    """A matrix in memory, its lines longer than they need be, and the elements of a line."""
    lines = values if order == "row" else values.T
    pitch = (lines.shape[1] + 31) // 32 * 32
    out = np.zeros((lines.shape[0], pitch), dtype)
    out[:, : lines.shape[1]] = lines
    return out, pitch


@pytest.mark.parametrize("cases", [FEW, pytest.param(CASES, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_every_product_equals_numpy(cases):
    rng = np.random.default_rng(31)
    texts, launches, answers = [HEAD], [], []
    for number, ((kept, inner, dtype, result, depth, _), (m, n), la, lb, lc) in enumerate(cases):
        texts.append(
            f"__global__ void k{number}({result}* c, const {kept}* a, const {kept}* b, int lda, int ldb, int ldc) {{ "
            f"tile<{m}, {n}, {depth}, {kept}, {inner}, {result}, wmma::{la}_major, wmma::{lb}_major>"
            f"(c, a, b, lda, ldb, ldc, wmma::mem_{lc}_major); }}"
        )
        low = 0 if dtype is np.uint8 else -4
        a, b = rng.integers(low, 5, (m, depth)), rng.integers(low, 5, (depth, n))
        start = rng.integers(-4, 5, (m, n))
        (ma, lda), (mb, ldb) = stored(a, la, dtype), stored(b, lb, dtype)
        mc, ldc = stored(start, lc, RESULTS[result])
        if dtype is ml_dtypes.bfloat16:
            ma, mb = ma.view(np.uint16), mb.view(np.uint16)
        launches.append(Launch(1, 32, {"c": mc, "a": ma, "b": mb, "lda": lda, "ldb": ldb, "ldc": ldc}, f"k{number}"))
        answers.append((mc, lc, 3 * (2 * (a @ b) + start)))
    run_all("\n".join(texts), launches, check=True)
    for case, (memory, order, wanted) in zip(cases, answers, strict=True):
        found = memory if order == "row" else memory.T
        assert np.array_equal(found[: wanted.shape[0], : wanted.shape[1]], wanted), case


KERNEL = """
#include <mma.h>
using namespace nvcuda;
__global__ void f(float* c, const half* a, int lda, int first) {
  __shared__ __align__(32) half sa[16 * 24];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  for (int i = threadIdx.x; i < 256; i += 32) sa[i / 16 * 24 + i % 16] = a[i];
  __syncwarp();
  wmma::load_matrix_sync(fa, sa + first, lda);
  wmma::load_matrix_sync(fb, a, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
"""


@pytest.mark.parametrize(
    ("old", "new", "lda", "first", "rule"),
    [
        ("", "", 24, 0, ""),
        ("  __syncwarp();\n", "", 24, 0, "uninitialised|race-warp"),
        ("  wmma::mma_sync", "  if (threadIdx.x < 16) wmma::mma_sync", 24, 0, "warp-part"),
        ("", "", 23, 0, "misaligned"),
        ("", "", 24, 8, "misaligned"),
    ],
    ids=["right", "barrier between lanes", "half a warp", "lines of 46 bytes", "begins at 16 bytes"],
)
def test_what_is_misused_is_named_with_the_line_of_the_call(old, new, lda, first, rule):
    text = KERNEL.replace(old, new, 1) if old else KERNEL
    a, c = np.random.default_rng(0).integers(-3, 4, (16, 16)).astype(np.float16), np.zeros((16, 16), np.float32)
    arguments = {"c": c, "a": a, "lda": lda, "first": first}
    if not rule:
        run(text, 1, 32, arguments, check=True)
        assert np.array_equal(c, a.astype(np.float32) @ a.astype(np.float32).T)
        return
    with pytest.raises(BackendError, match=rf"kernel\.cu:\d+: ({rule})"):
        run(text, 1, 32, arguments, check=True)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_the_same_text_compiles_with_the_real_header():
    made = compile(KERNEL, "sm_80")
    assert made.sass.get("HMMA", 2) >= 2
