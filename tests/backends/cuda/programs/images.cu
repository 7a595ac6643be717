// Images and their helpers: a texture that is filtered, a surface, a graph captured from two streams, sums of CUB,
// lanes in two parts, memory of a stream, threads of the host, managed memory beside a kernel that does not touch it.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/cub.cuh>
#include <cuda/functional>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

namespace cg = cooperative_groups;
constexpr int W = 24, H = 10;

__global__ void shrink(float* out, cudaTextureObject_t image) {
  int x = threadIdx.x, y = threadIdx.y;
  if (x < W / 2 && y < H / 2) out[y * (W / 2) + x] = tex2D<float>(image, 2 * x + 1.0f, 2 * y + 1.0f);
}
__global__ void brighten(cudaSurfaceObject_t image) {
  int x = threadIdx.x, y = threadIdx.y;
  if (x < W && y < H) surf2Dwrite(surf2Dread<float>(image, x * 4, y) + 1, image, x * 4, y);
}
__global__ void normalise(float* v, int n) {
  using Sums = cub::BlockReduce<float, 96>;
  using Scans = cub::BlockScan<int, 96>;
  __shared__ Sums::TempStorage sums;
  __shared__ Scans::TempStorage scans;
  __shared__ float most, total;
  float mine = threadIdx.x < n ? v[threadIdx.x] : 0;
  float m = Sums(sums).Reduce(mine, cuda::maximum<>{});
  if (threadIdx.x == 0) most = m;
  __syncthreads();
  float s = Sums(sums).Sum(mine / most);
  if (threadIdx.x == 0) total = s;
  __syncthreads();
  int before;
  Scans(scans).ExclusiveSum(int(mine > 30), before);
  if (threadIdx.x < n) v[threadIdx.x] = mine / most / total + before;
}
__global__ void parts(int* out) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  int lane = warp.thread_rank();
  auto part = cg::binary_partition(warp, lane % 3 == 0);
  int size = cg::reduce(part, 1, cg::plus<int>());
  out[threadIdx.x] = warp.shfl(size, lane ^ 1);
}
__global__ void add(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += x[i];
}

std::atomic<int> bad{0};
void graph_of(int id) {
  const int n = 100;
  float *x, *y, *z;
  cudaStream_t s, t;
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking);
  cudaEventCreate(&fork), cudaEventCreate(&join);
  std::vector<float> h(n, float(id)), got(n);
  cudaMallocAsync(&x, n * 4, s), cudaMallocAsync(&y, n * 4, s), cudaMallocAsync(&z, n * 4, s);
  cudaMemcpyAsync(x, h.data(), n * 4, cudaMemcpyHostToDevice, s);
  cudaMemsetAsync(y, 0, n * 4, s);
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  cudaMemsetAsync(z, 0, n * 4, s);
  cudaEventRecord(fork, s);
  cudaStreamWaitEvent(t, fork);
  add<<<1, 128, 0, t>>>(z, x, n);
  cudaEventRecord(join, t);
  add<<<1, 128, 0, s>>>(y, x, n);
  cudaStreamWaitEvent(s, join);
  add<<<1, 128, 0, s>>>(y, z, n);
  cudaStreamEndCapture(s, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  for (int i = 0; i < 3; i++) cudaGraphLaunch(exec, s);
  cudaMemcpyAsync(got.data(), y, n * 4, cudaMemcpyDeviceToHost, s);
  cudaFreeAsync(x, s), cudaFreeAsync(y, s), cudaFreeAsync(z, s);
  cudaStreamSynchronize(s);
  for (float v : got) bad += v != 6.0f * id;
}

int main() {
  std::vector<float> image(W * H), half(W * H / 4);
  for (int i = 0; i < W * H; i++) image[i] = i;
  auto channels = cudaCreateChannelDesc<float>();
  cudaArray_t array;
  cudaMallocArray(&array, &channels, W, H, cudaArraySurfaceLoadStore);
  cudaMemcpy2DToArray(array, 0, 0, image.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice);
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray, resource.res.array.array = array;
  cudaTextureDesc how{};
  how.filterMode = cudaFilterModeLinear, how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
  cudaTextureObject_t texture;
  cudaSurfaceObject_t surface;
  cudaCreateTextureObject(&texture, &resource, &how, nullptr);
  cudaCreateSurfaceObject(&surface, &resource);
  float* out;
  int *sizes, *other;
  cudaMalloc(&out, W * H);
  brighten<<<1, dim3(W, H)>>>(surface);
  shrink<<<1, dim3(16, 8)>>>(out, texture);
  cudaMemcpy(half.data(), out, W * H, cudaMemcpyDeviceToHost);
  for (int y = 0; y < H / 2; y++)
    for (int x = 0; x < W / 2; x++) bad += half[y * (W / 2) + x] != 1 + 2 * y * W + 2 * x + (W + 1) / 2.0f;
  normalise<<<1, 96>>>(out, W * H / 4);
  cudaMemcpy(half.data(), out, W * H, cudaMemcpyDeviceToHost);
  bad += int(half[W * H / 4 - 1]) != 50;
  cudaMallocManaged(&sizes, 64 * sizeof(int)), cudaMallocManaged(&other, sizeof(int));
  parts<<<1, 64>>>(sizes);
  *other = 5;
  cudaDeviceSynchronize();
  for (int i = 0; i < 64; i++) bad += sizes[i] != ((i % 32 ^ 1) % 3 == 0 ? 11 : 21);
  std::vector<std::thread> hosts;
  for (int id = 1; id < 4; id++) hosts.emplace_back(graph_of, id);
  for (auto& h : hosts) h.join();
  printf("%s\n", bad || *other != 5 ? "wrong" : "right");
  return bad || *other != 5 ? 3 : 0;
}
