# ruff: noqa: E501 -- CUDA text stays on one line
"""Every product of the table through printed PTX, and every form of a descriptor, against NumPy."""

import ml_dtypes
import numpy as np
import pytest

from tileweave.backends.cuda import TensorMap, run
from tileweave.kernel.atoms import atom, names

TYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32, "f64": np.float64, "s8": np.int8,
    "u8": np.uint8, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "s32": np.int32,
}  # fmt: skip


def words(fragment, tile):
    """Registers of each thread, as 32-bit (or 64-bit) words, from a tile of small integers."""
    held = np.array([[tile.reshape(-1)[p] for p in slots] for slots in fragment.places()])
    if fragment.dtype in ("s4", "u4"):
        nibbles = (held & 15).astype(np.uint64).reshape(len(held), -1, 8)
        return (nibbles << (4 * np.arange(8, dtype=np.uint64))).sum(-1).astype(np.uint32)
    raw = np.ascontiguousarray(held.astype(TYPES[fragment.dtype]))
    return raw.view(np.uint64 if fragment.dtype == "f64" else np.uint32).reshape(len(held), -1)


def instruction(row, name):
    """A call of the instruction with registers x[role][..], and the constraints of each role."""
    parts, bound, at = [], [], 0
    for role in "dabc":
        count = row[role].registers
        parts.append("{" + ", ".join(f"%{at + i}" for i in range(count)) + "}")
        letter = {"f32": "f", "f64": "d"}.get(row[role].dtype, "r")
        kind = {"f": "float", "d": "double", "r": "unsigned"}[letter]
        sign = "=" if role == "d" else ""
        bound.append((role, [f'"{sign}{letter}"((({kind}*){role})[{i}])' for i in range(count)]))
        at += count
    outputs = ", ".join(bound[0][1])
    inputs = ", ".join(item for _, items in bound[1:] for item in items)
    return f'asm volatile("{name} {", ".join(parts)};" : {outputs} : {inputs});'


def test_every_product_of_a_warp_equals_numpy():
    rng = np.random.default_rng(3)
    rows = list(names("mma"))
    body, arrays, expected = [], {}, []
    for i, name in enumerate(rows):
        row = atom(name)
        tiles = {r: rng.integers(0 if row[r].dtype[0] == "u" else -3, 4, row[r].shape).astype(np.int64) for r in "abc"}
        expected.append((row, tiles["a"] @ tiles["b"].T + tiles["c"]))
        declared = []
        for role in "abc":
            held = words(row[role], tiles[role])
            arrays[f"{role}{i}"] = held
            count, width = held.shape[1], held.itemsize
            kind = "unsigned long long" if width == 8 else "unsigned"
            declared.append(
                f"{kind} {role}[{count}]; for (int r = 0; r < {count}; r++) {role}[r] = {role}{i}[threadIdx.x * {count} + r];"
            )
        shape = (32, row["d"].registers)
        arrays[f"d{i}"] = np.zeros(shape, np.uint64 if row["d"].dtype == "f64" else np.uint32)
        kind = "unsigned long long" if row["d"].dtype == "f64" else "unsigned"
        store = f"for (int r = 0; r < {shape[1]}; r++) d{i}[threadIdx.x * {shape[1]} + r] = d[r];"
        body.append(f"{{ {' '.join(declared)} {kind} d[{shape[1]}]; {instruction(row, name)} {store} }}")
    parameters = ", ".join(f"{'unsigned long long' if v.itemsize == 8 else 'unsigned'}* {k}" for k, v in arrays.items())
    run(f"__global__ void f({parameters}) {{\n" + "\n".join(body) + "\n}", 1, 32, arrays)
    for i, (row, result) in enumerate(expected):
        assert (arrays[f"d{i}"] == words(row["d"], result)).all(), rows[i]


GROUP = """
#include <cuda.h>
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__global__ void f(float* c, const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, int bytes_a, int bytes_b,
                  unsigned long long da, unsigned long long db, int keep) {
  extern __shared__ alignas(1024) unsigned char s[];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(&bar)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(&bar)), "r"(bytes_a + bytes_b) : "memory");
    LOADS
  }
  asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W; }" ::"r"(at(&bar)) : "memory");
  float d[16];
  for (int i = 0; i < 16; i++) d[i] = 1.f;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int k = 0; k < 4; k++) {
    unsigned long long a = da + (at(s) + step_a_of(k) >> 4), b = db + (at(s + bytes_a) + step_b_of(k) >> 4);
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, SIGN, TA, TB; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
        : "l"(a), "l"(b), "r"(keep + k));
  }
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 16; i++) {
    int lane = threadIdx.x % 32;
    c[(threadIdx.x / 32 * 16 + lane / 4 + i / 2 % 2 * 8) * 32 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
  }
}
"""


def operand(matrix, swizzle, transposed):
    """The map, the boxes, the descriptor and the step of 16 along K of an operand (mn, 64) in one layout of shared memory."""
    mn, k = matrix.shape
    w = swizzle // 2
    bits = {128: 1, 64: 2, 32: 3}[swizzle] << 62
    if not transposed:  # K-major, atoms of w columns: one box of rank 3 (w, mn, K/w)
        view = TensorMap(matrix, (w, mn, k // w), swizzle, dims=(w, mn, k // w), strides=(2 * k, 2 * w))
        return (
            view,
            bits | (8 * swizzle >> 4) << 32 | 1 << 16,
            [16 * i // w * mn * swizzle + 16 * i % w * 2 for i in range(4)],
        )
    stored = np.ascontiguousarray(matrix.T)  # (k, mn): MN-major, atoms of w rows
    if mn % w:
        return None
    view = TensorMap(stored, (w, k, mn // w), swizzle, dims=(w, k, mn // w), strides=(2 * mn, 2 * w))
    return view, bits | (8 * swizzle >> 4) << 32 | (k * swizzle >> 4) << 16, [16 * swizzle * i for i in range(4)]


@pytest.mark.parametrize("swizzle", [128, 64, 32])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_descriptors_of_every_swizzle_and_major_order(swizzle, transposed):
    rng = np.random.default_rng(swizzle)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((64, 64), (32, 64)))
    first, second = (
        operand(a, swizzle, transposed[0]),
        operand(b, min(swizzle, 64) if transposed[1] else swizzle, transposed[1]),
    )
    (map_a, da, steps_a), (map_b, db, steps_b) = first, second
    box = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %2}], [%3];"
    loads = "".join(
        f'asm volatile("{box}" ::"r"(at(s) + {offset}), "l"(&{name}), "r"(0), "r"(at(&bar)) : "memory");\n'
        for name, offset in (("A", 0), ("B", 8192))
    )
    text = GROUP.replace("LOADS", loads).replace("SIGN", "-1" if swizzle == 64 else "1")
    text = text.replace("TA", str(int(transposed[0]))).replace("TB", str(int(transposed[1])))
    tables = "".join(
        f"__device__ int step_{n}_of(int k) {{ const int s[] = {{{', '.join(map(str, s))}}}; return s[k]; }}\n"
        for n, s in (("a", steps_a), ("b", steps_b))
    )
    c = np.zeros((64, 32), np.float32)
    arguments = {"c": c, "A": map_a, "B": map_b, "bytes_a": 8192, "bytes_b": 4096, "da": da, "db": db}
    run(tables + text, 1, 128, {**arguments, "keep": 1}, shared=12288, check=True)
    product = a.astype(np.float32) @ b.astype(np.float32).T
    assert (c == 1 + (-product if swizzle == 64 else product)).all()


def test_stmatrix_and_movmatrix_and_transposed_loads():
    text = """
__global__ void f(unsigned* out, const unsigned* x) {
  __shared__ alignas(16) unsigned s[4 * 32];
  unsigned address = (unsigned)__cvta_generic_to_shared(s) + threadIdx.x * 16, r[4], t[4], m;
  for (int i = 0; i < 4; i++) r[i] = x[threadIdx.x * 4 + i];
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
  __syncwarp();
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(t[0]), "=r"(t[1]), "=r"(t[2]), "=r"(t[3]) : "r"(address) : "memory");
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(m) : "r"(t[2]));
  for (int i = 0; i < 4; i++) out[threadIdx.x * 5 + i] = t[i];
  out[threadIdx.x * 5 + 4] = m;
}"""
    tiles = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    load = atom("ldmatrix.sync.aligned.m8n8.x4.shared.b16")["d"]

    def held(t):
        slots = np.array([[t.reshape(-1)[p] for p in row] for row in load.places()])
        return np.ascontiguousarray(slots.astype(np.uint16)).view(np.uint32)

    x, out = held(tiles), np.zeros((32, 5), np.uint32)
    run(text, 1, 32, {"out": out, "x": x}, check=True)
    assert (out[:, :4] == held(tiles.transpose(0, 2, 1))).all()
    assert (out[:, 4] == x[:, 2]).all()
