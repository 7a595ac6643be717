// Streams, events, pinned memory, a launch through a pointer, functions of the C library in kernels.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>

constexpr int N = 1000, THREADS = 128, BLOCKS = (N + THREADS - 1) / THREADS, LARGE = 60000;

namespace kernels {
template <int FACTOR, class T> __global__ void scale(T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= FACTOR;
}
__global__ void add(float* out, const float* a, const float* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}
__global__ void zeros(char* out) {
  __shared__ char box[64];
  int i = threadIdx.x;
  if (i == 0) memset(box, 0, sizeof box);
  __syncthreads();
  memcpy(out + 16 * i, box, 16);
}
__global__ void reach(float* out) {
  extern __shared__ float large[];
  large[LARGE / 4 - 1 - threadIdx.x] = 1;
  *out = large[LARGE / 4 - 1];
}
}  // namespace kernels

__global__ void twice(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += x[i];
}

int main() {
  float *a, *b, *out, *staging, *result;
  char* bytes;
  cudaMalloc(&a, N * 4); cudaMalloc(&b, N * 4); cudaMalloc(&out, N * 4); cudaMalloc(&bytes, 64 * 16);
  cudaMallocHost(&staging, N * 4); cudaMallocHost(&result, N * 4);
  cudaStream_t before, first, second;
  cudaStreamCreate(&before); cudaStreamCreateWithFlags(&first, cudaStreamDefault); cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEvent_t ready;
  cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);

  for (int i = 0; i < N; i++) staging[i] = 1;
  cudaMemcpyAsync(b, staging, N * 4, cudaMemcpyHostToDevice, before);
  cudaStreamSynchronize(before);
  for (int i = 0; i < N; i++) staging[i] = i;
  cudaMemcpyAsync(a, staging, N * 4, cudaMemcpyHostToDevice, first);
  twice<<<BLOCKS, THREADS, 0, first>>>(a, N);
  cudaEventRecord(ready, first);
  kernels::scale<3><<<BLOCKS, THREADS, 0, second>>>(b, N);
  cudaStreamWaitEvent(second, ready, 0);
  kernels::add<<<BLOCKS, THREADS, 0, second>>>(out, a, b, N);
  cudaMemcpyAsync(result, out, N * 4, cudaMemcpyDeviceToHost, second);
  cudaStreamSynchronize(second);
  for (int i = 0; i < N; i++) if (result[i] != 2 * i + 3) { printf("wrong at %d\n", i); return 3; }

  cudaMemcpyAsync(out, a, N * 4, cudaMemcpyDeviceToDevice, second);
  cudaStreamSynchronize(second);  // before a is filled again
  cudaMemsetAsync(a, 0, N * 4, first);
  cudaMemset(b, 0, N * 4);
  twice<<<BLOCKS, THREADS, 0, first>>>(b, N);
  kernels::zeros<<<1, 64, 0, first>>>(bytes);
  auto kernel = kernels::reach;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, LARGE);
  kernel<<<1, 1, LARGE>>>(a);
  cudaDeviceSynchronize();
  cudaFree(a); cudaFree(b); cudaFree(out); cudaFree(bytes); cudaFreeHost(staging); cudaFreeHost(result);
  puts("as expected");
  return 0;
}
