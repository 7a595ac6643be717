"""CUDA texts on the fibers: exact against NumPy at sizes that divide nothing, in three orders."""

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tileweave.backends.cuda import Launch, Peers, PerDevice, TensorMap, run, run_all
from tileweave.errors import BackendError

ORDERS = ("forward", "reversed", 5)


def halves(rng, shape):
    return rng.integers(-4, 5, shape).astype(np.float16)


def run_mma(text, m, n, k, order="forward", **options):
    rng = np.random.default_rng([m, n, k])
    a, b, c = halves(rng, (m, k)), halves(rng, (n, k)), np.full((m, n), np.nan, np.float32)
    arrays = {"C": c, "A": a.view(np.uint16), "B": b.view(np.uint16), "m": m, "n": n, "k": k}
    run(text, (-(-n // 64), -(-m // 64)), 128, arrays, order=order, **options)
    return bool((c == a.astype(np.float32) @ b.astype(np.float32).T).all())


def run_ring(text, m, n, k, order="forward", **options):
    rng = np.random.default_rng([m, n, k])
    a, b, c = halves(rng, (m, k)), halves(rng, (n, k)), np.full((m, n), np.nan, np.float32)
    maps = {"A": TensorMap(a, (64, 64), 128), "B": TensorMap(b, (64, 64), 128)}
    grid = -(-n // 64), -(-m // 64)
    run(text, grid, 160, {**maps, "C": c, "m": m, "n": n, "k": k}, shared=3 * 2 * 8192, order=order, **options)
    return bool((c == a.astype(np.float32) @ b.astype(np.float32).T).all())


@pytest.mark.parametrize("order", ORDERS)
def test_a_reduction_by_shuffles(text, order):
    x = np.random.default_rng(1).integers(-9, 9, (5, 77)).astype(np.float32)
    y = np.full(5, np.nan, np.float32)
    run(text("reduce"), 5, 96, {"y": y, "x": x, "n": 77}, order=order)
    assert (y == x.sum(1)).all()


@pytest.mark.parametrize("order", ORDERS)
def test_a_tiled_transpose(text, order):
    x = np.random.default_rng(2).random((70, 45), np.float32)
    y = np.zeros((45, 70), np.float32)
    run(text("transpose"), (2, 3), (32, 8), {"y": y, "x": x, "m": 70, "n": 45}, order=order)
    assert (y == x.T).all()


@pytest.mark.parametrize("order", ORDERS)
def test_a_product_by_cp_async_ldmatrix_and_mma(text, order):
    assert run_mma(text("mma_gemm"), 100, 70, 72, order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_product_by_boxes_a_ring_of_mbarriers_and_wgmma(text, order):
    assert run_ring(text("ring_gemm"), 100, 70, 328, order)


# --- operands as they are bound: each swap of two operands in a helper is refused, or gives another value
MMA_SWAPS = [("[%0], [%1], 16, %2", "[%1], [%0], 16, %2"), ("{%0, %1, %2, %3}, [%4]", "{%1, %0, %2, %3}, [%4]"),
             ("{%4, %5, %6, %7}", "{%5, %4, %6, %7}"), ("{%4, %5, %6, %7}", "{%4, %6, %5, %7}"),
             ("{%8, %9}", "{%9, %8}"),
             ("f16.f16.f32 {%0, %1, %2, %3}, ", "f16.f16.f32 {%0, %2, %1, %3}, ")]  # fmt: skip
RING_SWAPS = [("mbarrier.init.shared::cta.b64 [%0], %1", "mbarrier.init.shared::cta.b64 [%1], %0"),
              ("_, [%0], %1", "_, [%1], %0"), ("P1, [%0], %1", "P1, [%1], %0"), ("{%3, %4}], [%2]", "{%4, %3}], [%2]"),
              ("[%0], [%1, {%3, %4}], [%2]", "[%2], [%1, {%3, %4}], [%0]"), ("%32, %33, p", "%33, %32, p"),
              ("{%0, %1, %2, %3, %4, %5, %6", "{%0, %1, %3, %2, %4, %5, %6")]  # fmt: skip


@pytest.mark.slow  # builds the runtime
def test_texts_run_where_nothing_can_be_kept_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "scratch").mkdir()
    program = (
        "import numpy as np\nfrom tileweave.backends.cuda import run\nx = np.zeros(3, np.float32)\n"
        "run('__global__ void two(float* x) { x[threadIdx.x] = 2.0f; }', 1, 3, {'x': x})\nprint(x.sum())"
    )
    where = {"TILEWEAVE_CACHE": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "scratch")}
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | where, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("6.0\n", 0), done.stderr
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize(("old", "new"), MMA_SWAPS + RING_SWAPS)
def test_a_swap_of_two_operands_in_a_helper_is_found(text, old, new):
    name, runs = ("mma_gemm", run_mma) if (old, new) in MMA_SWAPS else ("ring_gemm", run_ring)
    source = text(name)
    assert source.count(old) == 1
    try:
        right = runs(source.replace(old, new), 70, 70, 72, seconds=20)
    except BackendError:
        right = False
    assert not right


# --- errors by name
def broken(text, arrays=None, block=64, match=None, **options):
    with pytest.raises(BackendError, match=match) as raised:
        run(text, options.pop("grid", 1), block, arrays or {}, **options)
    return raised.value


def test_a_barrier_that_a_part_of_the_block_reaches():
    source = "__global__ void f() {\n  if (threadIdx.x < 40)\n    __syncthreads();\n}"
    error = broken(source, match=r"kernel\.cu:3: barrier-part: barrier 0 is reached by a part of block \(0,0,0\)")
    assert error.findings[0].rule == "barrier-part"


def test_a_lane_outside_its_mask():
    source = "__global__ void f(int* x) {\n  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0xff00u, 1, 8);\n}"
    assert "is not in its own mask 0x0000ff00" in str(
        broken(source, {"x": np.zeros(32, np.int32)}, 32, "lane-outside-mask")
    )


def test_a_shuffle_from_a_lane_that_is_not_in_the_mask():
    source = "__global__ void f(int* x) {\n  if (threadIdx.x < 16) x[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);\n}"
    assert "reads lane 20" in str(broken(source, {"x": np.zeros(32, np.int32)}, 32, "lane-outside-mask"))


def test_a_misaligned_row_of_ldmatrix(text):
    source = text("mma_gemm").replace("PITCH = BK + 8", "PITCH = BK + 4")
    with pytest.raises(BackendError, match=r"misaligned"):
        run_mma(source, 64, 64, 32)


def test_a_descriptor_outside_the_memory_of_the_block(text):
    source = text("ring_gemm").replace("64ull << 32 |", "16383ull << 32 |")
    with pytest.raises(BackendError, match="descriptor-outside"):
        run_ring(source, 64, 64, 64)


def test_a_deadlock_says_who_waits_for_whom(text):
    source = text("ring_gemm").replace("barrier_expect(bar, 2 * TILE)", "barrier_expect(bar, 3 * TILE)")
    with pytest.raises(BackendError, match=r"waits? for mbarrier at shared .* 8192 bytes are missing"):
        run_ring(source, 64, 64, 64)


def test_an_access_past_the_end_of_a_buffer_is_named():
    source = "__global__ void f(float* data) {\n  data[threadIdx.x * 64] = 1;\n}"
    error = broken(source, {"data": np.zeros(100, np.float32)}, match=r"kernel\.cu:2: out-of-bounds")
    assert "accesses data " in str(error)


def test_a_misaligned_vector_is_named():
    source = "__global__ void f(float* x) {\n  *(float4*)(x + 1) = make_float4(1, 2, 3, 4);\n}"
    assert "misaligned" in str(broken(source, {"x": np.zeros(32, np.float32)}, 1, "misaligned"))


def test_unwritten_shared_memory_reads_as_nan():
    x = np.zeros(32, np.float32)
    run("__global__ void f(float* x) { __shared__ float s[32]; x[threadIdx.x] = s[threadIdx.x]; }", 1, 32, {"x": x})
    assert np.isnan(x).all()


def test_threads_that_spin_for_ever_are_named():
    source = "__global__ void f(volatile int* x) {\n  while (x[0] == 0);\n}"
    assert "spin" in str(broken(source, {"x": np.zeros(1, np.int32)}, 32, "deadlock"))


# --- blocks, clusters, devices
def test_threads_that_spin_let_others_run():
    source = """__global__ void f(int* x, volatile int* flag) {
      if (blockIdx.x == 0) { while (flag[0] == 0); x[0] = flag[0]; }
      else if (threadIdx.x == 0) flag[0] = 7;
    }"""
    x, flag = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run(source, 2, 32, {"x": x, "flag": flag})
    assert x[0] == 7


def test_blocks_of_a_cluster_read_one_another():
    source = """#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    __global__ void f(int* x) {
      __shared__ int mine;
      auto cluster = cg::this_cluster();
      if (threadIdx.x == 0) mine = 10 * blockIdx.x;
      cluster.sync();
      x[blockIdx.x] = *cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
      cluster.sync();
    }"""
    x = np.zeros(6, np.int32)
    run(source, 6, 32, {"x": x}, cluster=2)
    assert x.tolist() == [10, 0, 30, 20, 50, 40]


def test_a_cooperative_grid_synchronises():
    source = """#include <cooperative_groups.h>
    __global__ void f(int* x, int* y, int n) {
      x[blockIdx.x] = blockIdx.x;
      cooperative_groups::this_grid().sync();
      y[blockIdx.x] = x[(blockIdx.x + 1) % n];
    }"""
    x, y = np.zeros(20, np.int32), np.zeros(20, np.int32)
    run(source, 20, 1, {"x": x, "y": y, "n": 20}, cooperative=True)
    assert y.tolist() == [*range(1, 20), 0]


def test_devices_wait_for_one_another_through_peer_memory():
    source = """__global__ void f(int* const* box, int* out, int device, int devices) {
      int next = (device + 1) % devices;
      atomicExch(&box[next][0], 100 + device);
      while (atomicAdd(&box[device][0], 0) == 0);
      out[0] = box[device][0];
    }"""
    boxes = tuple(np.zeros(4, np.int32) for _ in range(3))
    outs = tuple(np.zeros(1, np.int32) for _ in range(3))
    run(
        source,
        1,
        1,
        {"box": Peers(boxes), "out": PerDevice(outs), "device": PerDevice((0, 1, 2)), "devices": 3},
        devices=3,
    )
    assert [int(o[0]) for o in outs] == [102, 100, 101]


def test_a_kernel_that_is_a_template_and_takes_a_struct_of_halves():
    source = """#include <cuda_fp16.h>
    template <class T, int N> __global__ void scale(T* x, float by) {
      for (int i = 0; i < N; i++) x[i] = T(float(x[i]) * by);
    }
    __global__ void other() {}"""
    x = np.arange(4, dtype=np.float16)
    run(source, 1, 1, {"x": x, "by": 2.5}, kernel="scale<half, 4>")
    assert x.tolist() == [0, 2.5, 5, 7.5]
    assert "name one" in str(broken(source, {}, match="2 kernels"))


def test_bad_arguments_are_refused_before_anything_runs():
    source = "__global__ void f(float* x, int n) {}"
    assert "no value for n" in str(broken(source, {"x": np.zeros(3, np.float32)}))
    assert "no parameter m" in str(broken(source, {"x": np.zeros(3, np.float32), "n": 1, "m": 2}))
    assert "not contiguous" in str(broken(source, {"x": np.zeros((4, 4), np.float32)[:, ::2], "n": 1}))
    assert "1 to 8" in str(broken(source, {"x": np.zeros(3, np.float32), "n": 1}, devices=9))
    assert "refused" in str(broken(source, {"x": np.zeros(3, np.float32), "n": 1}, block=2000))
    assert "does not accept" in str(broken("__global__ void f(float* x) { y = 1; }", {"x": np.zeros(3, np.float32)}))
    with pytest.raises(BackendError, match="swizzle-row"):
        TensorMap(np.zeros((64, 128), np.float16), (64, 128), 128)


def test_several_launches_run_in_order_on_the_same_arrays():
    text = "__global__ void add(int* x, int n) { x[threadIdx.x] += n; }\n"
    text += "__global__ void twice(int* x) { x[threadIdx.x] *= 2; }"
    x, other = np.arange(4, dtype=np.int32), np.zeros(2, np.int32)
    add, twice = Launch(1, 4, {"x": x, "n": 3}, "add"), Launch(1, 4, {"x": x}, "twice")
    run_all(text, [add, twice, add, Launch(1, 2, {"x": other, "n": 7}, "add")])
    assert x.tolist() == [9, 11, 13, 15] and other.tolist() == [7, 7]
    with pytest.raises(BackendError, match="2 kernels: name one"):
        run_all(text, [Launch(1, 4, {"x": x})])


FLAGS = r"""
__global__ void gather(float* const* P, unsigned* const* flags, float* sums, int device) {
  int b = (device + blockIdx.x + 1) % 12, lane = threadIdx.x;
  P[device][b * 32 + lane] = 100 * device + lane;
  __syncthreads();
  if (lane == 0)
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(&flags[device][b]), "r"(1) : "memory");
  if (b != device) return;
  float sum = 0;
  for (int d = 0; d < 4; d++) {
    unsigned seen = 0;
    while (lane == 0 && seen < 1)
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(&flags[d][b]) : "memory");
    __syncthreads();
    sum += P[d][b * 32 + lane];
  }
  sums[lane] = sum;
}
"""


def test_order_between_devices_outlives_the_grids_that_end_first():
    P = Peers(tuple(np.zeros(12 * 32, np.float32) for _ in range(4)))
    flags = Peers(tuple(np.zeros(12, np.uint32) for _ in range(4)))
    sums = PerDevice(tuple(np.zeros(32, np.float32) for _ in range(4)))
    arrays = {"P": P, "flags": flags, "sums": sums, "device": PerDevice((0, 1, 2, 3))}
    run(FLAGS, 12, 32, arrays, devices=4, check=True)
    assert all((one == 600 + 4 * np.arange(32)).all() for one in sums.values)


def test_registers_are_read_through_wider_types():
    text = """
    __global__ void copy(float* y, const float* x) {
      float r[4];
      for (int i = 0; i < 4; i++) r[i] = x[4 * threadIdx.x + i] + 1;
      *reinterpret_cast<uint4*>(y + 4 * threadIdx.x) = *reinterpret_cast<const uint4*>(r);
    }"""
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    run(text, 1, 32, {"y": y, "x": x})
    assert (y == x + 1).all()


@pytest.mark.parametrize(
    ("name", "dtype"), [("__nv_fp8_e4m3", ml_dtypes.float8_e4m3fn), ("__nv_fp8_e5m2", ml_dtypes.float8_e5m2)]
)
def test_floats_of_eight_bits_convert_as_they_should(name, dtype):
    text = f"""#include <cuda_fp8.h>
    __global__ void k(unsigned char* y, float* z, const float* x, const unsigned char* all) {{
      int i = blockIdx.x * 32 + threadIdx.x;
      y[i] = {name}(x[i]).__x;
      {name} v;
      v.__x = all[i % 256];
      z[i % 256] = float(v);
    }}"""
    random = np.random.default_rng(0)
    x = (random.standard_normal(1024) * np.exp(random.uniform(-12, 12, 1024))).astype(np.float32)
    x[:6] = 0, -0.0, 448, 464, np.inf, -np.inf
    y, z, every = np.zeros(1024, np.uint8), np.zeros(256, np.float32), np.arange(256, dtype=np.uint8)
    run(text, 32, 32, {"y": y, "z": z, "x": x, "all": every})
    most = float(ml_dtypes.finfo(dtype).max)
    assert (y == np.clip(x, -most, most).astype(dtype).view(np.uint8)).all()
    np.testing.assert_array_equal(z, every.view(dtype).astype(np.float32))


def run_exchange(source, order="forward", **options):
    x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    run(source, 4, 64, {"out": y, "in": x}, cluster=2, order=order, **options)
    return bool((y.reshape(2, 2, 64) == x.reshape(2, 2, 64)[:, ::-1]).all())


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_of_a_cluster_exchange_tiles_by_bulk_copies(text, order):
    assert run_exchange(text("exchange"), order, check=order != 5)


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("rank ^ 1))\n                 :", "rank))\n                 :", "mbarrier-place"),
        ('  asm volatile("{\\n.reg', '  if (0) asm volatile("{\\n.reg', "uninitialised"),
        pytest.param("[%0], 256;", "[%0], 128;", "mbarrier-bytes", marks=pytest.mark.slow),
        pytest.param("  asm volatile(\"fence.proxy.async.shared::cta;\"", "  if (0) asm volatile(\"fence.proxy.async\"",
                     "proxy-fence", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_faulty_exchange_between_blocks_is_named(text, old, new, rule):
    source = text("exchange")
    assert source.count(old) == 1
    with pytest.raises(BackendError, match=rule):
        run_exchange(source.replace(old, new), check=True, seconds=20)


@pytest.mark.parametrize(
    ("kind", "name", "pair"),
    [(np.float16, "__half", "__half2"), (ml_dtypes.bfloat16, "__nv_bfloat16", "__nv_bfloat162")],
)
def test_functions_of_halves_round_once(kind, name, pair):
    values = np.random.default_rng(8).uniform(0.25, 4, (3, 64)).astype(kind)
    values[0, :2] = np.nan
    body = [
        "__hadd(a, b)",
        "__hsub2(p, q).x",
        "__hmul2(p, q).y",
        "__hdiv(a, b)",
        "hsqrt(a)",
        "h2sqrt(p).x",
        "__hneg(a)",
        "__hmax(a, b)",
        "__hmin2(p, q).y",
        "hfloor(a)",
        "__hfma2(p, q, r).x",
    ]
    header = "cuda_fp16.h" if kind is np.float16 else "cuda_bf16.h"
    lines = "".join(f"  y[{i} * 64 + t] = {line};\n" for i, line in enumerate(body))
    text = f"""#include <{header}>
__global__ void f({name}* y, const {name}* x) {{
  int t = threadIdx.x;
  {name} a = x[t], b = x[64 + t], c = x[128 + t];
  {pair} p(a, a), q(b, b), r(c, c);
{lines}}}
"""
    y = np.zeros((len(body), 64), np.uint16)
    run(text, 1, 64, {"y": y, "x": values.view(np.uint16)})
    a, b, c = values.astype(np.float64)
    want = [
        a + b,
        a - b,
        a * b,
        a / b,
        np.sqrt(a),
        np.sqrt(a),
        -a,
        np.fmax(a, b),
        np.fmin(a, b),
        np.floor(a),
        a * b + c,
    ]
    assert np.array_equal(
        y.view(kind).astype(np.float64), np.array(want).astype(kind).astype(np.float64), equal_nan=True
    )
