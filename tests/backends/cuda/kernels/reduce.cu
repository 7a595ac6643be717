// Sums each row of x by shuffles: one block per row, any number of columns, any multiple of 32 threads.
__device__ float warp_sum(float v) {
  for (int lane = 16; lane; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
  return v;
}

__global__ void row_sums(float* y, const float* x, int n) {
  __shared__ float partial[32];
  float v = 0;
  for (int j = threadIdx.x; j < n; j += blockDim.x) v += x[blockIdx.x * n + j];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.f;
    v = warp_sum(v);
    if (threadIdx.x == 0) y[blockIdx.x] = v;
  }
}
