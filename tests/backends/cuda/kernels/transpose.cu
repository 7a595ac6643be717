// y = x transposed, by tiles of 32 x 32 with one word of padding; m and n are any numbers.
__global__ void transpose(float* y, const float* x, int m, int n) {
  __shared__ float tile[32][33];
  int i = blockIdx.y * 32 + threadIdx.y, j = blockIdx.x * 32 + threadIdx.x;
  for (int k = 0; k < 32; k += 8)
    if (i + k < m && j < n) tile[threadIdx.y + k][threadIdx.x] = x[(i + k) * n + j];
  __syncthreads();
  i = blockIdx.x * 32 + threadIdx.y;
  j = blockIdx.y * 32 + threadIdx.x;
  for (int k = 0; k < 32; k += 8)
    if (i + k < n && j < m) y[(i + k) * m + j] = tile[threadIdx.x][threadIdx.y + k];
}
