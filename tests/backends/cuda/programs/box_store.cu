// Scales tiles through shared memory and stores them by boxes; two buffers, each reused when its box has been read.
#include <cuda_runtime.h>
#include <cuda.h>
#include <cstdio>
#include <cstdlib>

constexpr int ROWS = 8, COLUMNS = 32;

__device__ void store_box(const CUtensorMap* map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(x), "r"(y),
               "r"((unsigned)__cvta_generic_to_shared(from))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int N> __device__ void wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
__device__ void wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__global__ void scale(const __grid_constant__ CUtensorMap out, const float* x, float by, int tiles) {
  __shared__ alignas(128) float buffer[2][ROWS][COLUMNS];
  int i = threadIdx.x / COLUMNS, j = threadIdx.x % COLUMNS;
  for (int t = 0; t < tiles; t++) {
    if (threadIdx.x == 0) wait_read<1>();
    __syncthreads();
    buffer[t % 2][i][j] = by * x[(t * ROWS + i) * COLUMNS + j];
    fence_async();
    __syncthreads();
    if (threadIdx.x == 0) store_box(&out, 0, t * ROWS, buffer[t % 2]);
  }
  if (threadIdx.x == 0) wait_all();
}

int main() {
  const int tiles = 5, n = tiles * ROWS * COLUMNS;
  float *x, *y;
  cudaMallocManaged(&x, n * sizeof(float));
  cudaMallocManaged(&y, n * sizeof(float));
  for (int i = 0; i < n; i++) x[i] = i;
  CUtensorMap map;
  cuuint64_t dim[2] = {COLUMNS, tiles * ROWS}, stride[1] = {COLUMNS * 4};
  cuuint32_t box[2] = {COLUMNS, ROWS}, element[2] = {1, 1};
  if (cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, y, dim, stride, box, element, CU_TENSOR_MAP_INTERLEAVE_NONE,
                             CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))
    return 2;
  scale<<<1, ROWS * COLUMNS>>>(map, x, 2.f, tiles);
  cudaDeviceSynchronize();
  int wrong = 0;
  for (int i = 0; i < n; i++) wrong += y[i] != 2 * x[i];
  printf("%d of %d elements are wrong\n", wrong, n);
  return wrong ? 3 : 0;
}
