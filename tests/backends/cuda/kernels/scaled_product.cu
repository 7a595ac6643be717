// A block multiplies 128 x 128 by N x 128, in four steps of 32 along k; scales are copied behind the operands.
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned long long matrix(unsigned a, unsigned lbo, unsigned sbo) {
  return (unsigned long long)(a >> 4) | (unsigned long long)(lbo >> 4) << 16 | (unsigned long long)(sbo >> 4) << 32 | 1ull << 46;
}
extern "C" __global__ void __launch_bounds__(128) scaled(
    float* c, const unsigned char* a, const unsigned char* b, const unsigned char* sa, const unsigned char* sb, unsigned number) {
  constexpr int N = @N@;
  __shared__ alignas(1024) unsigned char A[128 * 128], B[N * 128], SA[512], SB[(N + 127) / 128 * 512];
  __shared__ alignas(8) unsigned long long done;
  __shared__ unsigned base;
  int t = threadIdx.x;
  for (int i = t; i < 128 * 128; i += 128) { int m = i / 128, k = i % 128; A[m % 8 * 16 + m / 8 * 1024 + k % 16 + k / 16 * 128] = a[i]; }
  for (int i = t; i < N * 128; i += 128) { int n = i / 128, k = i % 128; B[n % 8 * 16 + n / 8 * 1024 + k % 16 + k / 16 * 128] = b[i]; }
  for (int i = t; i < 512; i += 128) SA[i] = sa[i];
  for (int i = t; i < (N + 127) / 128 * 512; i += 128) SB[i] = sb[i];
  if (t < 32) asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 512;" :: "r"(at(&base)) : "memory");
  if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(&done)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  unsigned d = base, first = d + 256, second = d + 260;
  if (t == 0) {
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(first), "l"(matrix(at(SA), 128, 128)) : "memory");
    for (int p = 0; p < (N + 127) / 128; p++)
      asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(second + 4 * p), "l"(matrix(at(SB) + 512 * p, 128, 128)) : "memory");
    for (int step = 0; step < 4; step++) {
      unsigned id = number | step << 29 | step << 4;
      asm volatile("{ .reg .pred p; setp.ne.u32 p, %6, 0; tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], p; }"
          :: "r"(d), "l"(matrix(at(A) + 256 * step, 128, 1024)), "l"(matrix(at(B) + 256 * step, 128, 1024)), "r"(id), "r"(first), "r"(second), "r"(step) : "memory");
    }
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(at(&done)) : "memory");
  }
  asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }" :: "r"(at(&done)) : "memory");
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  for (int j = 0; j < N; j++) {
    unsigned v;
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(v) : "r"(d + j + (t / 32 * 32 << 16)) : "memory");
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    c[t * N + j] = __uint_as_float(v);
  }
  __syncthreads();
  if (t < 32) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" :: "r"(d));
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }
}
