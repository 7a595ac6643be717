// A warp-specialised product on Hopper: one warp fills a ring of three stages by boxes of tensor maps, a warpgroup
// multiplies with wgmma; C = A B^T, half precision, tiles of 64 x 64 x 64 with the 128-byte swizzle.
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda.h>
#include <cudaTypedefs.h>

constexpr int STAGES = 3, TILE = 64 * 64 * 2;

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void barrier_init(unsigned bar, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
__device__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ void barrier_expect(unsigned bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ void barrier_arrive(unsigned bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
__device__ void barrier_wait(unsigned bar, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra DONE;\n"
      "bra LAB_WAIT;\n"
      "DONE:\n"
      "}" ::"r"(bar), "r"(parity)
      : "memory");
}
__device__ void box_load(unsigned to, const CUtensorMap* map, int x, int y, unsigned bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map), "r"(bar), "r"(x), "r"(y)
               : "memory");
}
__device__ unsigned long long descriptor(unsigned address) { return 1ull << 62 | 64ull << 32 | 1ull << 16 | (address & 0x3FFFF) >> 4; }

__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
__device__ void wgmma_m64n64k16(float (&d)[32], unsigned long long a, unsigned long long b, int keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b), "r"(keep));
}

__global__ void __launch_bounds__(160) ring_gemm(const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B, float* C, int m, int n, int k) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES];
  int row = blockIdx.y * 64, column = blockIdx.x * 64, steps = (k + 63) / 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(shared_address(&full[s]), 1);
      barrier_init(shared_address(&empty[s]), 128);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128)
      for (int i = 0; i < steps; i++) {
        int s = i % STAGES, round = i / STAGES;
        unsigned bar = shared_address(&full[s]), to = shared_address(shared) + s * 2 * TILE;
        barrier_wait(shared_address(&empty[s]), round % 2 ^ 1);
        barrier_expect(bar, 2 * TILE);
        box_load(to, &A, i * 64, row, bar);
        box_load(to + TILE, &B, i * 64, column, bar);
      }
    return;
  }
  float d[32];
  for (int i = 0; i < steps; i++) {
    int s = i % STAGES, round = i / STAGES;
    barrier_wait(shared_address(&full[s]), round % 2);
    unsigned from = shared_address(shared) + s * 2 * TILE;
    wgmma_fence();
    for (int kk = 0; kk < 4; kk++) wgmma_m64n64k16(d, descriptor(from + 32 * kk), descriptor(from + TILE + 32 * kk), i + kk > 0);
    wgmma_commit();
    wgmma_wait<0>();
    barrier_arrive(shared_address(&empty[s]));
  }
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int r = 0; r < 32; r++) {
    int y = row + 16 * warp + lane / 4 + r / 2 % 2 * 8, x = column + r / 4 * 8 + lane % 4 * 2 + r % 2;
    if (y < m && x < n) C[(long long)y * n + x] = d[r];
  }
}

static CUtensorMap map_of(void* base, int rows, int columns) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  if (!encode) {
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", (void**)&encode, cudaEnableDefault, &found);
  }
  CUtensorMap map;
  cuuint64_t dim[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, stride[1] = {columns * sizeof(half)};
  cuuint32_t box[2] = {64, 64}, element[2] = {1, 1};
  CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, base, dim, stride, box, element, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) exit(2);
  return map;
}

int main() {
  int m = 70, n = 100, k = 328;
  std::vector<half> a(m * k), b(n * k);
  std::vector<float> c(m * n);
  for (int i = 0; i < m * k; i++) a[i] = __float2half(float(i * 7 % 9 - 4));
  for (int i = 0; i < n * k; i++) b[i] = __float2half(float(i * 5 % 11 - 5));
  half *da, *db;
  float* dc;
  cudaMalloc(&da, a.size() * 2);
  cudaMalloc(&db, b.size() * 2);
  cudaMalloc(&dc, c.size() * 4);
  cudaMemcpy(da, a.data(), a.size() * 2, cudaMemcpyHostToDevice);
  cudaMemcpy(db, b.data(), b.size() * 2, cudaMemcpyHostToDevice);
  int bytes = STAGES * 2 * TILE;
  cudaFuncSetAttribute(ring_gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  CUtensorMap ma = map_of(da, m, k), mb = map_of(db, n, k);
  ring_gemm<<<dim3((n + 63) / 64, (m + 63) / 64), 160, bytes>>>(ma, mb, dc, m, n, k);
  cudaMemcpy(c.data(), dc, c.size() * 4, cudaMemcpyDeviceToHost);
  int wrong = 0;
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      float sum = 0;
      for (int x = 0; x < k; x++) sum += __half2float(a[i * k + x]) * __half2float(b[j * k + x]);
      wrong += c[i * n + j] != sum;
    }
  printf("%d of %d elements are wrong\n", wrong, m * n);
  return wrong ? 3 : 0;
}
