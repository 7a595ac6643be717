// The sum of an array in one launch: each block adds its part, the last block to finish adds the parts of all.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                \
  do {                                                                             \
    cudaError_t status = (call);                                                   \
    if (status != cudaSuccess) {                                                   \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));              \
      exit(2);                                                                     \
    }                                                                              \
  } while (0)

constexpr int THREADS = 128;

__device__ float block_sum(float v) {
  __shared__ float lanes[THREADS], warps[THREADS / 32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  lanes[threadIdx.x] = v;
  __syncwarp();
  if (lane < 16) v += lanes[threadIdx.x + 16];
  for (int step = 8; step; step /= 2) v += __shfl_down_sync(0xffffffffu, v, step);
  if (lane == 0) warps[warp] = v;
  __syncthreads();
  v = 0;
  for (int w = 0; w < THREADS / 32; w++) v += warps[w];
  __syncthreads();
  return v;
}

__global__ void sum(const float* x, int n, float* parts, unsigned* finished, float* total) {
  __shared__ bool last;
  float v = 0;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) v += x[i];
  v = block_sum(v);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = v;
    __threadfence();
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last) {
    v = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += THREADS) v += parts[i];
    v = block_sum(v);
    if (threadIdx.x == 0) *total = v;
  }
}

int main(int argc, char** argv) {
  int n = argc > 1 ? atoi(argv[1]) : 3001, blocks = 7;
  std::vector<float> x(n);
  float expected = 0;
  for (int i = 0; i < n; i++) expected += x[i] = float(i % 17 - 8);
  float *dx, *parts, *total;
  unsigned* finished;
  CHECK(cudaMalloc(&dx, n * sizeof(float)));
  CHECK(cudaMalloc(&parts, blocks * sizeof(float)));
  CHECK(cudaMalloc(&finished, sizeof(unsigned)));
  CHECK(cudaMallocManaged(&total, sizeof(float)));
  CHECK(cudaMemcpy(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemset(finished, 0, sizeof(unsigned)));
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin));
  sum<<<blocks, THREADS>>>(dx, n, parts, finished, total);
  CHECK(cudaEventRecord(end));
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  printf("sum %g, expected %g\n", *total, expected);
  bool right = *total == expected;
  CHECK(cudaFree(dx));
  CHECK(cudaFree(parts));
  CHECK(cudaFree(finished));
  CHECK(cudaFree(total));
  return right ? 0 : 3;
}
