// What C++ brings into kernels: classes with virtual functions, new and delete, malloc, pointers to functions, recursion.
#include <cstdio>

class Shape {
 public:
  __device__ virtual float area() const = 0;
  __device__ virtual ~Shape() {}
};
class Square : public Shape {
  float side;
 public:
  __device__ explicit Square(float s) : side(s) {}
  __device__ float area() const override { return side * side; }
};
class Disc : public Shape {
  float radius;
 public:
  __device__ explicit Disc(float r) : radius(r) {}
  __device__ float area() const override { return 3 * radius * radius; }
};

typedef float (*Change)(float);
__device__ float twice(float v) { return 2 * v; }
__device__ float negated(float v) { return -v; }
__device__ Change changes[2] = {twice, negated};
__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

__global__ void areas(float *out) {
  const int t = threadIdx.x;
  Shape *shape;
  switch (t % 2) {
    case 0: shape = new Square(t); break;
    default: shape = new Disc(t);
  }
  int *numbers = (int *)malloc(8 * sizeof(int));
  for (int i = 0; i < 8; i++) numbers[i] = fibonacci(i);
  out[t] = changes[t % 2](shape->area()) + numbers[7];
  free(numbers);
  delete shape;
}

__global__ void sums(int *out) {
  volatile __shared__ int box[32];
  const int t = threadIdx.x;
  box[t] = t;
  __syncwarp();
  for (int n = 16; n; n /= 2) {
    int v = box[t] + (t + n < 32 ? box[t + n] : 0);
    __syncwarp();
    box[t] = v;
    __syncwarp();
  }
  if (t == 0) *out = box[0];
}

int main() {
  float found[40], *areas_of;
  int total, *sum;
  cudaMalloc(&areas_of, sizeof found);
  cudaMalloc(&sum, sizeof(int));
  areas<<<1, 40>>>(areas_of);
  sums<<<1, 32>>>(sum);
  if (cudaDeviceSynchronize() != cudaSuccess) return 2;
  cudaMemcpy(found, areas_of, sizeof found, cudaMemcpyDeviceToHost);
  cudaMemcpy(&total, sum, sizeof total, cudaMemcpyDeviceToHost);
  bool right = total == 496;
  for (int t = 0; t < 40; t++) right &= found[t] == (t % 2 ? -3.f * t * t : 2.f * t * t) + 13;
  printf("%s\n", right ? "right" : "wrong");
  cudaFree(areas_of);
  cudaFree(sum);
  return right ? 0 : 3;
}
