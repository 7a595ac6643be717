// A tensor-core product with a double-buffered pipeline of cp.async: C = A B^T, half precision.
#include <cuda_fp16.h>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int BM = 64, BN = 64, BK = 32, PITCH = BK + 8;

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void copy_16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ void copy_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int N> __device__ void copy_wait() { asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory"); }

__device__ void ldmatrix_x4(unsigned (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p))
               : "memory");
}
__device__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ void load_tile(unsigned short (&tile)[64][PITCH], const unsigned short* x, int rows, int row, int k, int column) {
  for (int c = threadIdx.x; c < 64 * BK / 8; c += 128) {
    int i = c / (BK / 8), j = c % (BK / 8) * 8;
    bool inside = row + i < rows && column + j < k;
    copy_16(&tile[i][j], x + (inside ? (long long)(row + i) * k + column + j : 0), inside ? 16 : 0);
  }
}

__global__ void __launch_bounds__(128) gemm(float* C, const unsigned short* A, const unsigned short* B, int m, int n, int k) {
  __shared__ __align__(16) unsigned short sa[2][BM][PITCH], sb[2][BN][PITCH];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y * BM, column = blockIdx.x * BN;
  int wm = warp / 2 * 32, wn = warp % 2 * 32;
  float acc[2][4][4];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int r = 0; r < 4; r++) acc[i][j][r] = 0.f;
  int steps = (k + BK - 1) / BK;
  load_tile(sa[0], A, m, row, k, 0);
  load_tile(sb[0], B, n, column, k, 0);
  copy_commit();
  for (int s = 0; s < steps; s++) {
    if (s + 1 < steps) {
      load_tile(sa[(s + 1) % 2], A, m, row, k, (s + 1) * BK);
      load_tile(sb[(s + 1) % 2], B, n, column, k, (s + 1) * BK);
    }
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    for (int kk = 0; kk < BK; kk += 16) {
      unsigned a[2][4], b[2][4];
      for (int i = 0; i < 2; i++) ldmatrix_x4(a[i], &sa[s % 2][wm + 16 * i + lane % 16][kk + lane / 16 * 8]);
      for (int j = 0; j < 2; j++) ldmatrix_x4(b[j], &sb[s % 2][wn + 16 * j + lane % 8 + lane / 16 * 8][kk + lane / 8 % 2 * 8]);
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) mma_m16n8k16(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int r = 0; r < 4; r++) {
        int y = row + wm + 16 * i + lane / 4 + r / 2 * 8, x = column + wn + 8 * j + lane % 4 * 2 + r % 2;
        if (y < m && x < n) C[(long long)y * n + x] = acc[i][j][r];
      }
}

int main(int argc, char** argv) {
  int m = argc > 1 ? atoi(argv[1]) : 70, n = argc > 2 ? atoi(argv[2]) : 100, k = argc > 3 ? atoi(argv[3]) : 104;
  std::vector<half> a(m * k), b(n * k);
  std::vector<float> c(m * n);
  for (int i = 0; i < m * k; i++) a[i] = __float2half(float(i * 7 % 9 - 4));
  for (int i = 0; i < n * k; i++) b[i] = __float2half(float(i * 5 % 11 - 5));
  unsigned short *da, *db;
  float* dc;
  cudaMalloc(&da, a.size() * 2);
  cudaMalloc(&db, b.size() * 2);
  cudaMalloc(&dc, c.size() * 4);
  cudaMemcpy(da, a.data(), a.size() * 2, cudaMemcpyHostToDevice);
  cudaMemcpy(db, b.data(), b.size() * 2, cudaMemcpyHostToDevice);
  gemm<<<dim3((n + BN - 1) / BN, (m + BM - 1) / BM), 128>>>(dc, da, db, m, n, k);
  cudaMemcpy(c.data(), dc, c.size() * 4, cudaMemcpyDeviceToHost);
  int wrong = 0;
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      float sum = 0;
      for (int x = 0; x < k; x++) sum += __half2float(a[i * k + x]) * __half2float(b[j * k + x]);
      wrong += c[i * n + j] != sum;
    }
  printf("%d of %d elements are wrong\n", wrong, m * n);
  cudaFree(da);
  cudaFree(db);
  cudaFree(dc);
  return wrong ? 3 : 0;
}
