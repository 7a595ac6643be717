# ruff: noqa: E501 -- CUDA text stays on one line
"""Instructions that the larger kernels do not use: scalar PTX, atomics, named barriers, bulk copies, clusters."""

import numpy as np
import pytest

from tileweave.backends.cuda import TensorMap, run
from tileweave.backends.cuda.checked import check
from tileweave.errors import BackendError

SCALARS = [  # (type of a and b and the result, PTX, meaning)
    ("unsigned", "add.u32 %0, %1, %2;", lambda a, b: a + b),
    ("unsigned", "mul.hi.u32 %0, %1, %2;", lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)),
    ("unsigned", "shl.b32 %0, %1, %2;", lambda a, b: np.where(b < 32, a << (b % 32), 0)),
    ("unsigned", "lop3.b32 %0, %1, %2, %1, 0x6a;", lambda a, b: (a & b) ^ a),
    ("unsigned", "{ .reg .pred p; setp.lt.u32 p, %1, %2; selp.u32 %0, 7, 9, p; }", lambda a, b: np.where(a < b, 7, 9)),
    ("unsigned", "{ .reg .b32 t; popc.b32 t, %1; mad.lo.u32 %0, t, 3, %2; }", lambda a, b: np.bitwise_count(a) * 3 + b),
    ("unsigned", "prmt.b32 %0, %1, %2, 0x5410;", lambda a, b: a & 0xFFFF | b << 16),
    ("unsigned", "{ .reg .pred p; setp.ge.u32 p, %1, %2; @p bra L; mov.u32 %0, 1; bra E; L: mov.u32 %0, 2; E: }", lambda a, b: np.where(a >= b, 2, 1)),
    ("int", "shr.s32 %0, %1, %2;", lambda a, b: a >> np.minimum(b.view(np.uint32), 31).astype(np.int32)),
    ("int", "max.s32 %0, %1, %2;", np.maximum),
    ("int", "{ .reg .s32 t; sub.s32 t, %1, %2; slct.b32.s32 %0, %1, 7, t; }", lambda a, b: np.where(a >= b, a, 7)),
    ("int", "bfe.s32 %0, %1, 3, 6;", lambda a, b: a << 23 >> 26),
    ("int", "cvt.sat.s8.s32 %0, %1;", lambda a, b: np.clip(a, -128, 127)),
    ("int", "{ .reg .s32 t; sub.s32 t, %1, %2; cvt.s8.s32 %0, t; }", lambda a, b: (a - b).astype(np.int8)),
    ("unsigned", "bfi.b32 %0, %1, %2, 4, 8;", lambda a, b: b & 0xFFFFF00F | (a & 0xFF) << 4),
    ("unsigned", "shf.l.wrap.b32 %0, %1, %2, 9;", lambda a, b: b << 9 | a >> 23),
    ("unsigned", "prmt.b32 %0, %1, %2, 0x8888;", lambda a, b: np.where(a & 0x80, 0xFFFFFFFF, 0)),
    ("unsigned", "{ .reg .pred p, q; setp.lt.u32 q, %2, 1000000000; setp.lt.and.u32 p|q, %1, %2, q; selp.u32 %0, 7, 9, p; @q mov.u32 %0, 8; }",
     lambda a, b: np.where(b < 10**9, np.where(a < b, 7, 8), 9)),
    ("unsigned", "{ .reg .u32 l; add.cc.u32 l, %1, 0xf0000000; addc.u32 %0, %2, 0; }", lambda a, b: b + (a >= 0x10000000)),
    ("unsigned", "{ .reg .u32 l; sub.cc.u32 l, %1, %2; subc.u32 %0, %1, %2; }", lambda a, b: a - b - (a < b)),
    ("unsigned", "{ .reg .u32 l; mad.lo.cc.u32 l, %1, %2, %1; madc.hi.u32 %0, %1, %2, 0; }", lambda a, b: a.astype(np.uint64) * b + a >> np.uint64(32)),
    ("float", "fma.rn.f32 %0, %1, %2, %1;", lambda a, b: (a.astype(np.float64) * b + a).astype(np.float32)),
    ("float", "{ .reg .f32 t; abs.f32 t, %1; sqrt.rn.f32 %0, t; }", lambda a, b: np.sqrt(np.abs(a))),
    ("float", "{ .reg .b32 h; .reg .b16 l, u; cvt.rn.f16x2.f32 h, %2, %1; mov.b32 {l, u}, h; cvt.f32.f16 %0, u; }", lambda a, b: b.astype(np.float16).astype(np.float32)),
]  # fmt: skip


def test_scalar_instructions_equal_numpy():
    rng = np.random.default_rng(5)
    kinds = {"unsigned": ("r", np.uint32), "int": ("r", np.int32), "float": ("f", np.float32)}
    arrays, body = {}, []
    for i, (kind, ptx, _) in enumerate(SCALARS):
        letter, dtype = kinds[kind]
        a, b = (
            rng.integers(0, 2**31, 32).astype(dtype) if kind != "float" else rng.normal(size=32).astype(dtype)
            for _ in "ab"
        )
        if "sh" in ptx[:4]:
            b = rng.integers(0, 40, 32).astype(dtype)
        arrays |= {f"a{i}": a, f"b{i}": b, f"c{i}": np.zeros(32, dtype)}
        body.append(
            f'asm("{ptx}" : "={letter}"(c{i}[threadIdx.x]) : "{letter}"(a{i}[threadIdx.x]), "{letter}"(b{i}[threadIdx.x]));'
        )
    names = {np.dtype(np.uint32): "unsigned", np.dtype(np.int32): "int", np.dtype(np.float32): "float"}
    parameters = ", ".join(f"{names[v.dtype]}* {k}" for k, v in arrays.items())
    run(f"__global__ void f({parameters}) {{\n" + "\n".join(body) + "\n}", 1, 32, arrays)
    for i, (_, ptx, meaning) in enumerate(SCALARS):
        expected = meaning(arrays[f"a{i}"], arrays[f"b{i}"])
        assert (arrays[f"c{i}"] == np.asarray(expected).astype(arrays[f"c{i}"].dtype)).all(), ptx


def test_votes_reductions_and_elections_of_a_warp():
    text = """
__global__ void f(unsigned* out) {
  unsigned lane, ballot, sum, leader, up, elected = 0, like;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, 5; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(ballot) : "r"(lane));
  asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(lane));
  asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffff; @p mov.u32 %1, 1; }" : "=r"(leader), "+r"(elected));
  asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %1, 1, 0, 0xffffffff; @!p mov.u32 %0, 99; }" : "=r"(up) : "r"(lane));
  asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; @p add.u32 %0, %0, 1; }" : "+r"(elected));
  asm volatile("match.any.sync.b32 %0, %1, 0xffffffff;" : "=r"(like) : "r"(lane / 4));
  unsigned* o = out + threadIdx.x * 6;
  o[0] = ballot; o[1] = sum; o[2] = leader; o[3] = up; o[4] = elected; o[5] = like;
}"""
    out = np.zeros((32, 6), np.uint32)
    run(text, 1, 32, {"out": out}, check=True)
    assert (out[:, 0] == 31).all() and (out[:, 1] == 496).all() and out[:, 4].sum() == 2
    assert (out[:, 5] == 0xF << np.arange(32) // 4 * 4).all()
    assert out[:, 3].tolist() == [99, *range(31)]


@pytest.mark.parametrize("order", ["forward", "reversed", 4])
def test_named_barriers_join_parts_of_a_block(order):
    text = """
__global__ void f(int* out) {
  __shared__ int box[32];
  if (threadIdx.x < 32) { box[threadIdx.x] = threadIdx.x; asm volatile("bar.arrive 1, 64;" ::: "memory"); }
  else if (threadIdx.x < 64) { asm volatile("bar.sync 1, 64;" ::: "memory"); out[threadIdx.x - 32] = box[63 - threadIdx.x]; }
}"""
    out = np.zeros(32, np.int32)
    run(text, 1, 96, {"out": out}, check=True, order=order)
    assert out.tolist() == list(range(31, -1, -1))


def test_atomics_of_ptx():
    text = """
__global__ void f(unsigned* x, float* y) {
  unsigned old;
  asm volatile("atom.global.add.u32 %0, [%1], 2;" : "=r"(old) : "l"(x) : "memory");
  asm volatile("red.global.max.u32 [%0], %1;" :: "l"(x + 1), "r"(old) : "memory");
  asm volatile("red.global.add.f32 [%0], %1;" :: "l"(y), "f"(0.5f) : "memory");
  asm volatile("atom.acq_rel.gpu.global.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(x + 2), "r"(0), "r"(threadIdx.x + 1) : "memory");
}"""
    x, y = np.zeros(3, np.uint32), np.zeros(1, np.float32)
    run(text, 2, 64, {"x": x, "y": y}, check=True)
    assert (x[0], x[1], y[0]) == (256, 254, 64) and x[2] > 0


def test_bulk_copies_and_additions_of_boxes():
    text = """
#include <cuda.h>
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__global__ void f(const float* x, float* y, const __grid_constant__ CUtensorMap sum) {
  __shared__ alignas(128) float s[64];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" :: "r"(at(&bar)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" :: "r"(at(s)), "l"(x + 64 * blockIdx.x), "r"(at(&bar)) : "memory");
  }
  __syncthreads();
  unsigned done;
  do asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(&bar)) : "memory"); while (!done);
  s[threadIdx.x] += 1;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" :: "l"(y + 64 * blockIdx.x), "r"(at(s)) : "memory");
    asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group [%0, {%1}], [%2];" :: "l"(&sum), "r"(-4), "r"(at(s)) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}"""
    x, y, total = np.arange(192, dtype=np.float32), np.zeros(192, np.float32), np.zeros(50, np.float32)
    run(text, 3, 64, {"x": x, "y": y, "sum": TensorMap(total, (64,))}, check=True)
    assert (y == x + 1).all()
    assert (total == y.reshape(3, 64)[:, 4:54].sum(0)).all()


def test_a_box_for_all_blocks_of_a_cluster():
    text = """
#include <cuda.h>
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__global__ void __cluster_dims__(2, 1, 1) f(float* y, const __grid_constant__ CUtensorMap x) {
  __shared__ alignas(128) float s[2][32];
  __shared__ unsigned long long bar;
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(at(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" :: "r"(at(&bar)) : "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {0, %2}], [%3], %4;"
                 :: "r"(at(s[rank])), "l"(&x), "r"(rank), "r"(at(&bar)), "h"((unsigned short)3) : "memory");
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W; }" :: "r"(at(&bar)) : "memory");
  for (int r = 0; r < 2; r++) y[(blockIdx.x * 2 + r) * 32 + threadIdx.x] = s[r][threadIdx.x];
  asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
}"""
    x, y = np.random.default_rng(1).random((2, 32), np.float32), np.zeros((2, 2, 32), np.float32)
    run(text, 2, 32, {"y": y, "x": TensorMap(x, (1, 32))}, cluster=2, check=True)
    assert (y == x).all()


def test_copies_that_arrive_at_an_mbarrier():
    text = """
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__global__ void f(float* y, const float4* x) {
  __shared__ float4 s[32];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" :: "r"(at(&bar)) : "memory");
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(at(&s[threadIdx.x])), "l"(x + threadIdx.x) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at(&bar)) : "memory");
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W; }" :: "r"(at(&bar)) : "memory");
  float4 v = s[31 - threadIdx.x];
  y[threadIdx.x] = v.x + v.y + v.z + v.w;
}"""
    x, y = np.arange(128, dtype=np.float32), np.zeros(32, np.float32)
    run(text, 1, 32, {"y": y, "x": x}, check=True)
    assert (y == x.reshape(32, 4).sum(1)[::-1]).all()


def test_a_program_that_does_not_end_is_stopped(tmp_path):
    path = tmp_path / "endless.cu"
    path.write_text(
        "__global__ void f() {\n  volatile int x = 1;\n  while (x) x = 2;\n}\nint main() { f<<<1, 1>>>(); cudaDeviceSynchronize(); }\n"
    )
    (finding,) = check(path, seconds=2).errors
    assert finding.rule == "time-limit" and finding.place.startswith(f"{path}:") and "thread (0,0,0)" in finding.text


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    tempfile.tempdir = None
    try:
        run("__global__ void f(int* x) { x[0] = 1; }", 1, 1, {"x": np.zeros(1, np.int32)})
        with pytest.raises(BackendError):
            run("__global__ void f(int* x) { x[9999] = 1; }", 1, 1, {"x": np.zeros(1, np.int32)})
        assert list(tmp_path.iterdir()) == []
    finally:
        tempfile.tempdir = None
