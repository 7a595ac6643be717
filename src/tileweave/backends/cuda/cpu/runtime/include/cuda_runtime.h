// Our own runtime header: types, functions of the host, functions of kernels.
#pragma once
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifdef __cplusplus
#include <cmath>
#endif

#include "tileweave_device.h"
#include "tileweave_host.h"

#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 900
#endif
#define TILEWEAVE_CPU 1
#define __CUDACC__ 1
#define __NVCC__ 1
#define CUDART_VERSION 13000
#define __align__(n) __attribute__((aligned(n)))
#define CUDART_INF_F (__builtin_inff())
#define CUDART_NAN_F (__builtin_nanf(""))

// --- vectors
#define TW_VECTORS(T, name, a2, a4) \
  struct name##1 { T x; }; \
  struct a2 name##2 { T x, y; }; \
  struct name##3 { T x, y, z; }; \
  struct a4 name##4 { T x, y, z, w; }; \
  TW_INLINE name##1 make_##name##1(T x) { return {x}; } \
  TW_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; } \
  TW_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  TW_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TW_VECTORS(char, char, alignas(2), alignas(4))
TW_VECTORS(unsigned char, uchar, alignas(2), alignas(4))
TW_VECTORS(short, short, alignas(4), alignas(8))
TW_VECTORS(unsigned short, ushort, alignas(4), alignas(8))
TW_VECTORS(int, int, alignas(8), alignas(16))
TW_VECTORS(float, float, alignas(8), alignas(16))
TW_VECTORS(long long, longlong, alignas(16), alignas(16))
TW_VECTORS(unsigned long long, ulonglong, alignas(16), alignas(16))
TW_VECTORS(double, double, alignas(16), alignas(16))
struct uint1 { unsigned x; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
TW_INLINE uint1 make_uint1(unsigned x) { return {x}; }
TW_INLINE uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
TW_INLINE uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
TW_INLINE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// --- barriers, fences, votes, shuffles
#define __syncthreads() ::tw::sync_threads()
#define __syncthreads_count(p) ::tw::sync_threads_reduce(0, (p) != 0)
#define __syncthreads_and(p) ::tw::sync_threads_reduce(1, (p) != 0)
#define __syncthreads_or(p) ::tw::sync_threads_reduce(2, (p) != 0)
#define __threadfence_block() ::tw::fence(0)
#define __threadfence() ::tw::fence(2)
#define __threadfence_system() ::tw::fence(3)
#define TW_FLATTEN __attribute__((always_inline)) TW_INLINE
TW_FLATTEN void __syncwarp(unsigned mask = 0xffffffffu) { tw::warp(tw::SYNC_WARP, mask); }
TW_FLATTEN unsigned __activemask() { return tw::active_mask(); }
TW_FLATTEN unsigned __ballot_sync(unsigned mask, int p) { return tw::warp(tw::BALLOT, mask, p != 0); }
TW_FLATTEN int __any_sync(unsigned mask, int p) { return tw::warp(tw::ANY, mask, p != 0); }
TW_FLATTEN int __all_sync(unsigned mask, int p) { return tw::warp(tw::ALL, mask, p != 0); }
template <class T> TW_FLATTEN unsigned __match_any_sync(unsigned mask, T v) { return tw::warp(tw::MATCH_ANY, mask, tw::bits<tw::u64>(v)); }
template <class T> TW_FLATTEN unsigned __match_all_sync(unsigned mask, T v, int* all) {
  bool flag;
  unsigned r = tw::warp(tw::MATCH_ALL, mask, tw::bits<tw::u64>(v), 0, 31, &flag);
  *all = flag;
  return r;
}
template <class T> TW_FLATTEN T tw_shuffle(int op, unsigned mask, T v, unsigned lane, int width, unsigned clamp) {
  return tw::bits<T>(tw::warp(op, mask, tw::bits<tw::u64>(v), lane, (32 - width) << 8 | clamp));
}
template <class T> TW_FLATTEN T __shfl_sync(unsigned mask, T v, int lane, int width = 32) { return tw_shuffle(tw::SHFL_IDX, mask, v, lane, width, 31); }
template <class T> TW_FLATTEN T __shfl_up_sync(unsigned mask, T v, unsigned n, int width = 32) { return tw_shuffle(tw::SHFL_UP, mask, v, n, width, 0); }
template <class T> TW_FLATTEN T __shfl_down_sync(unsigned mask, T v, unsigned n, int width = 32) { return tw_shuffle(tw::SHFL_DOWN, mask, v, n, width, 31); }
template <class T> TW_FLATTEN T __shfl_xor_sync(unsigned mask, T v, int lane, int width = 32) { return tw_shuffle(tw::SHFL_BFLY, mask, v, lane, width, 31); }
TW_FLATTEN unsigned __reduce_add_sync(unsigned m, unsigned v) { return tw::warp(tw::ADD_U, m, v); }
TW_FLATTEN int __reduce_add_sync(unsigned m, int v) { return tw::warp(tw::ADD_S, m, (unsigned)v); }
TW_FLATTEN unsigned __reduce_min_sync(unsigned m, unsigned v) { return tw::warp(tw::MIN_U, m, v); }
TW_FLATTEN int __reduce_min_sync(unsigned m, int v) { return tw::warp(tw::MIN_S, m, (unsigned)v); }
TW_FLATTEN unsigned __reduce_max_sync(unsigned m, unsigned v) { return tw::warp(tw::MAX_U, m, v); }
TW_FLATTEN int __reduce_max_sync(unsigned m, int v) { return tw::warp(tw::MAX_S, m, (unsigned)v); }
TW_FLATTEN unsigned __reduce_and_sync(unsigned m, unsigned v) { return tw::warp(tw::AND_B, m, v); }
TW_FLATTEN unsigned __reduce_or_sync(unsigned m, unsigned v) { return tw::warp(tw::OR_B, m, v); }
TW_FLATTEN unsigned __reduce_xor_sync(unsigned m, unsigned v) { return tw::warp(tw::XOR_B, m, v); }

// --- atomics
#define TW_ATOMIC(name, expression) \
  template <class T, class U> TW_FLATTEN T name(T* p, U value) { return tw::atomic(p, [=](T old) TW_PLAIN { T v = (T)value; (void)v; (void)old; return (T)(expression); }); } \
  template <class T, class U> TW_FLATTEN T name##_system(T* p, U value) { return name(p, value); } \
  template <class T, class U> TW_FLATTEN T name##_block(T* p, U value) { \
    return tw::atomic(p, [=](T old) TW_PLAIN { T v = (T)value; (void)v; (void)old; return (T)(expression); }, tw::STRONG | tw::BLOCK_SCOPE); }
TW_ATOMIC(atomicAdd, old + v)
TW_ATOMIC(atomicSub, old - v)
TW_ATOMIC(atomicExch, v)
TW_ATOMIC(atomicMin, v < old ? v : old)
TW_ATOMIC(atomicMax, old < v ? v : old)
TW_ATOMIC(atomicAnd, old & v)
TW_ATOMIC(atomicOr, old | v)
TW_ATOMIC(atomicXor, old ^ v)
TW_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
TW_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
template <class T, class U, class V> TW_FLATTEN T atomicCAS(T* p, U expected, V value) { return tw::atomic(p, [=](T old) TW_PLAIN { return old == (T)expected ? (T)value : old; }, tw::STRONG | tw::COMPARE); }
template <class T, class U, class V> TW_FLATTEN T atomicCAS_block(T* p, U e, V v) { return atomicCAS(p, e, v); }
template <class T, class U, class V> TW_FLATTEN T atomicCAS_system(T* p, U e, V v) { return atomicCAS(p, e, v); }

// --- addresses, loads with hints, time
#define __cvta_generic_to_shared(p) ((size_t)::tw::shared_offset((const void*)(p)))
#define __cvta_shared_to_generic(a) (::tw::generic((a), ::tw::SHARED))
#define __cvta_generic_to_global(p) ((size_t)(p))
#define __ldg(p) (*(p))
#define __ldcs(p) (*(p))
#define __ldcg(p) (*(p))
#define __ldca(p) (*(p))
#define __ldlu(p) (*(p))
#define __ldcv(p) (*(p))
#define __stcs(p, v) (*(p) = (v))
#define __stcg(p, v) (*(p) = (v))
#define __stwt(p, v) (*(p) = (v))
#define __nanosleep(n) ((void)(n), ::tw::pause())
#define __prof_trigger(n) ((void)(n))
#define __trap() ::tw::trap("__trap()")
TW_INLINE long long clock64() { return (long long)tw::special("%clock64"); }

// `new` of a kernel's text; the runtime's own, and that of the host, are the library's.
extern "C" char __executable_start, end;
#define TW_QUIET TW_PLAIN __attribute__((no_sanitize_coverage))   // the runtime calls them too, while it switches threads
#define TW_NEW(form) \
  TW_QUIET void* operator new form(size_t n) { \
    char* from = (char*)__builtin_return_address(0); \
    void* p = tw::in_kernel() && from >= &__executable_start && from < &end ? tw::heap_allocate(n) : __builtin_malloc(n ? n : 1); \
    if (!p) __builtin_trap(); \
    return p; \
  } \
  TW_QUIET void operator delete form(void* p) noexcept { if (!tw::heap_free(p, __builtin_return_address(0))) __builtin_free(p); } \
  TW_QUIET void operator delete form(void* p, size_t) noexcept { if (!tw::heap_free(p, __builtin_return_address(0))) __builtin_free(p); }
#ifndef TW_NO_NEW
TW_NEW() TW_NEW([])
#endif

#include "tileweave_numbers.h"
#include "tileweave_textures.h"
