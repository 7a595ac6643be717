# ruff: noqa: E501 -- one bug a line
"""Seeded bugs: a program, what is changed in it, and the rule that must name the fault;
``value``: nothing is illegal, but the program finds its own result wrong."""

from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"

BUGS = {
    # reduction.cu
    "barrier before the sums of warps are read": ("reduction", "= v;\n  __syncthreads();\n  v = 0;", "= v;\n  v = 0;", "race-block"),
    "barrier before a flag is read": ("reduction", "  }\n  __syncthreads();\n  if (last) {", "  }\n  if (last) {", "race-block"),
    "__syncwarp between lanes": ("reduction", "  __syncwarp();\n", "", "race-warp"),
    "__threadfence before the ticket": ("reduction", "= v;\n    __threadfence();", "= v;", "race-grid"),
    "fence of the block instead of the device": ("reduction", "= v;\n    __threadfence();", "= v;\n    __threadfence_block();", "race-grid"),
    "ticket of the block's scope": ("reduction", "atomicAdd(finished, 1u)", "atomicAdd_block(finished, 1u)", "race-scope"),
    "ticket without an atomic": ("reduction", "atomicAdd(finished, 1u)", "(*finished)++", "race-grid"),
    "ticket that is never zeroed": ("reduction", "  CHECK(cudaMemset(finished, 0, sizeof(unsigned)));\n", "", "uninitialised"),
    "loop that goes one too far": ("reduction", "i < n; i += gridDim.x", "i <= n; i += gridDim.x", "out-of-bounds"),
    "barrier in a branch": ("reduction", "  __syncthreads();\n  if (last) {", "  if (threadIdx.x < 64) __syncthreads();\n  if (last) {", "barrier-part"),
    "result read before the kernel has run": ("reduction", "  CHECK(cudaDeviceSynchronize());\n", "", "host-race"),
    "host that reads memory of the device": ("reduction", "bool right = *total", "bool right = *parts", "host-access"),
    "copy larger than the buffer": ("reduction", "x.data(), n * sizeof(float)", "x.data(), n * sizeof(double)", "out-of-bounds"),
    # mma_gemm.cu
    "wait for cp.async": ("mma_gemm", "    copy_wait<1>();\n", "", "race-async"),
    "wait that leaves one group too many": ("mma_gemm", "copy_wait<1>()", "copy_wait<2>()", "race-async"),
    "barrier after the wait": ("mma_gemm", "    copy_wait<1>();\n    __syncthreads();", "    copy_wait<1>();", "race-async"),
    "barrier before the buffer is filled again": ("mma_gemm", "    }\n    __syncthreads();\n  }", "    }\n  }", "race-async"),
    "rows that are not masked": ("mma_gemm", "bool inside = row + i < rows && ", "bool inside = ", "out-of-bounds"),
    "tiles without padding": ("mma_gemm", "PITCH = BK + 8", "PITCH = BK", "bank-conflict"),
    "rows that are not aligned": ("mma_gemm", "PITCH = BK + 8", "PITCH = BK + 4", "misaligned"),
    # objects.cu
    "object used after delete": ("objects", "  out[t] = changes", "  delete shape;\n  out[t] = changes", "use-after-free"),
    "memory freed twice": ("objects", "  free(numbers);\n", "  free(numbers);\n  free(numbers);\n", "double-free"),
    "object deleted twice": ("objects", "  delete shape;\n", "  delete shape;\n  if (t == 39) delete shape;\n", "use-after-free"),
    "memory of a kernel read before it is written": ("objects", "i < 8; i++) numbers", "i < 7; i++) numbers", "uninitialised"),
    "array of a kernel that is too short": ("objects", "malloc(8 *", "malloc(7 *", "out-of-bounds"),
    # library.cu
    "flag without release": ("library", "ready.store(1, cuda::memory_order_release)", "ready.store(1, cuda::memory_order_relaxed)", "race-grid"),
    "flag without acquire": ("library", "ready.load(cuda::memory_order_acquire)", "ready.load(cuda::memory_order_relaxed)", "race-grid"),
    "arrival without a wait": ("library", "full.arrive_and_wait()", "full.arrive()", "race-async"),
    "wait for the copy of a group": ("library", "  cg::wait(block);\n", "", "race-async"),
    "wait of a pipeline": ("library", "      pipe.consumer_wait();\n", "", "race-async"),
    # ring_gemm.cu
    "count of arrivals too small": ("ring_gemm", "barrier_init(shared_address(&empty[s]), 128)", "barrier_init(shared_address(&empty[s]), 127)", "mbarrier-unfinished"),
    "count of arrivals too large": ("ring_gemm", "barrier_init(shared_address(&empty[s]), 128)", "barrier_init(shared_address(&empty[s]), 129)", "deadlock"),
    "fence after mbarrier.init": ("ring_gemm", "    barrier_init_fence();\n", "", "mbarrier-fence"),
    "barrier after mbarrier.init": ("ring_gemm", "  __syncthreads();\n", "", "race"),
    "half the bytes expected": ("ring_gemm", "barrier_expect(bar, 2 * TILE)", "barrier_expect(bar, TILE)", "race-async"),
    "too many bytes expected": ("ring_gemm", "barrier_expect(bar, 2 * TILE)", "barrier_expect(bar, 3 * TILE)", "deadlock"),
    "parity of the consumers": ("ring_gemm", "round % 2);\n    unsigned from", "round % 2 ^ 1);\n    unsigned from", "uninitialised"),
    "parity of the producer": ("ring_gemm", "round % 2 ^ 1);", "round % 2);", "deadlock"),
    "wait for an empty stage": ("ring_gemm", "        barrier_wait(shared_address(&empty[s]), round % 2 ^ 1);\n", "", "mbarrier-count"),
    "wait for a full stage": ("ring_gemm", "    barrier_wait(shared_address(&full[s]), round % 2);\n", "", "uninitialised"),
    "wgmma.fence": ("ring_gemm", "    wgmma_fence();\n", "", "wgmma-fence"),
    "wait for wgmma": ("ring_gemm", "    wgmma_wait<0>();\n", "", "wgmma-wait"),
    "stages that overlap": ("ring_gemm", "shared_address(shared) + s * 2 * TILE;\n        barrier_wait", "shared_address(shared) + s * TILE;\n        barrier_wait", "race-async"),
    "half the stride of a descriptor": ("ring_gemm", "64ull << 32", "32ull << 32", "value"),
    "another swizzle in the descriptor": ("ring_gemm", "1ull << 62", "2ull << 62", "value"),
    "half a step along K": ("ring_gemm", "descriptor(from + 32 * kk), ", "descriptor(from + 16 * kk), ", "value"),
    "columns of the result": ("ring_gemm", "r / 4 * 8 + lane % 4 * 2", "r / 4 * 8 + lane % 4", "value"),
    "old accumulators that are kept": ("ring_gemm", "i + kk > 0);", "1);", "value"),
    # box_store.cu
    "fence.proxy.async": ("box_store", "    fence_async();\n", "", "proxy-fence"),
    "barrier before the box is stored": ("box_store", "    fence_async();\n    __syncthreads();", "    fence_async();", "race-async"),
    "wait for the source of a box": ("box_store", "    if (threadIdx.x == 0) wait_read<1>();\n", "", "race-async"),
    "buffer that is not aligned": ("box_store", "alignas(128) float buffer", "alignas(16) float pad[4], buffer", "misaligned-box"),
    # everyday.cu
    "barrier of a group": ("everyday", "    scratch[rank] = v;\n    group.sync();", "    scratch[rank] = v;", "race-block"),
    "a plain read that no atomicCAS settles": ("everyday", "  add_by_compare(total, 0.5f);", "  float now = *total;\n  atomicAdd(total, now < 0 ? 0 : 0.5f);", "race-block"),
    "one group of __pipeline_wait_prior too many": ("everyday", "__pipeline_wait_prior(0)", "__pipeline_wait_prior(1)", "race-async"),
    "lanes of a group that left": ("everyday", "coalesced_group together = cg::coalesced_threads();", "thread_block_tile<32> together = cg::tiled_partition<32>(cg::this_thread_block());", "lane-outside-mask"),
    "result read before the stream has run": ("everyday", "  cudaDeviceSynchronize();\n", "", "host-race"),
    "pitch taken for elements": ("everyday", "pitch / sizeof(float), columns", "pitch, columns", "out-of-bounds"),
    # streams.cu
    "event recorded too early": ("streams", "  twice<<<BLOCKS, THREADS, 0, first>>>(a, N);\n  cudaEventRecord(ready, first);", "  cudaEventRecord(ready, first);\n  twice<<<BLOCKS, THREADS, 0, first>>>(a, N);", "race-stream"),
    "wait for an event": ("streams", "  cudaStreamWaitEvent(second, ready, 0);\n", "", "race-stream"),
    "the wrong stream is waited for": ("streams", "cudaStreamSynchronize(second);\n  for", "cudaStreamSynchronize(first);\n  for", "host-race"),
    "buffer filled again while a copy reads it": ("streams", "  cudaStreamSynchronize(second);  // before a is filled again\n", "", "race-stream"),
    "default stream beside one that does not block": ("streams", "first, cudaStreamDefault", "first, cudaStreamNonBlocking", "race-stream"),
    "staging memory written while it is copied": ("streams", "  cudaStreamSynchronize(before);\n", "", "host-race"),
    "barrier behind memset": ("streams", "memset(box, 0, sizeof box);\n  __syncthreads();", "memset(box, 0, sizeof box);", "race-block"),
    "memcpy of one byte too many": ("streams", "memcpy(out + 16 * i, box, 16);", "memcpy(out + 16 * i, box, 17);", "out-of-bounds"),
    "shared memory that was not asked for": ("streams", "  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, LARGE);\n", "", "launch-refused"),
    # images.cu
    "image that was never copied": ("images", "  cudaMemcpy2DToArray(array, 0, 0, image.data(), W * 4, W * 4, H, cudaMemcpyHostToDevice);\n", "", "uninitialised"),
    "surface by elements instead of bytes": ("images", "(image, x * 4, y) + 1, image, x * 4, y)", "(image, x, y) + 1, image, x, y)", "misaligned"),
    "surface beyond its rows": ("images", "x * 4, y) + 1", "x * 4, y + 1) + 1", "out-of-bounds"),
    "barrier between two sums of CUB": ("images", "  __syncthreads();\n  float s =", "  float s =", "race-block"),
    "fork of a graph": ("images", "  cudaStreamWaitEvent(t, fork);\n", "", "race-stream"),
    "join of a graph": ("images", "  cudaStreamWaitEvent(s, join);\n", "", "value"),
    "memory freed in a stream beside its use": ("images", "  cudaMemcpyAsync(got.data(), y, n * 4, cudaMemcpyDeviceToHost, s);\n  cudaFreeAsync(x, s), ", "  cudaFreeAsync(x, t);\n  cudaMemcpyAsync(got.data(), y, n * 4, cudaMemcpyDeviceToHost, s);\n  ", "race-stream"),
    "managed memory that a kernel writes": ("images", "*other = 5;", "sizes[3] = *other = 5;", "host-race"),
}  # fmt: skip


def seeded(name, folder):
    """The file of a bug, and the line that was changed."""
    program, old, new, _ = BUGS[name]
    text = (PROGRAMS / f"{program}.cu").read_text("utf-8")
    if text.count(old) != 1:
        raise ValueError(f"{name}: {text.count(old)} places")
    path = folder / f"{program}.cu"
    path.write_text(text.replace(old, new), "utf-8")
    return path
