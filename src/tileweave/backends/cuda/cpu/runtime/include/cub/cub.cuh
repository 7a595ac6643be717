// The parts of CUB that kernels call: reductions, scans, loads, stores and sorts of a block and of a warp; of the host, the usual
// algorithms of a device. A block's temporary memory is used as the library uses it: to use it again takes a barrier in between.
#pragma once
#include <limits>
#include <type_traits>

#include "../cuda_runtime.h"

namespace cuda {                                           // what newer programs give for cub::Max and cub::Min
template <class = void> struct maximum { template <class T> TW_PLAIN T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
template <class = void> struct minimum { template <class T> TW_PLAIN T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
}  // namespace cuda
namespace cub {
#define TW_CUB __attribute__((always_inline)) inline   // its accesses are those of the caller
struct Sum { template <class T, class U> TW_PLAIN auto operator()(const T& a, const U& b) const { return a + b; } };
using Max = cuda::maximum<>;
using Min = cuda::minimum<>;
template <class K, class V> struct KeyValuePair { using Key = K; using Value = V; K key; V value; };
struct ArgMax { template <class K, class V> TW_PLAIN KeyValuePair<K, V> operator()(const KeyValuePair<K, V>& a, const KeyValuePair<K, V>& b) const { return b.value > a.value || (b.value == a.value && b.key < a.key) ? b : a; } };
struct ArgMin { template <class K, class V> TW_PLAIN KeyValuePair<K, V> operator()(const KeyValuePair<K, V>& a, const KeyValuePair<K, V>& b) const { return b.value < a.value || (b.value == a.value && b.key < a.key) ? b : a; } };
template <class T> struct Uninitialized { alignas(T) char bytes[sizeof(T)]; TW_PLAIN T& Alias() { return *(T*)bytes; } };
TW_INLINE unsigned tw_rank() { auto e = tw::block_extent(); auto t = tw::thread_index(); return (t.z * e.y + t.y) * e.x + t.x; }
TW_INLINE unsigned LaneId() { return tw_rank() % 32; }
template <class T> TW_FLATTEN T tw_down(unsigned mask, T v, unsigned n, int width) {   // of any type, in words
  unsigned words[(sizeof(T) + 3) / 4] = {};
  __builtin_memcpy(words, &v, sizeof v);
  for (auto& w : words) w = __shfl_down_sync(mask, w, n, width);
  __builtin_memcpy((void*)&v, words, sizeof v);
  return v;
}
template <class T> TW_FLATTEN T tw_up(unsigned mask, T v, unsigned n, int width) {
  unsigned words[(sizeof(T) + 3) / 4] = {};
  __builtin_memcpy(words, &v, sizeof v);
  for (auto& w : words) w = __shfl_up_sync(mask, w, n, width);
  __builtin_memcpy((void*)&v, words, sizeof v);
  return v;
}

template <int W> TW_INLINE unsigned tw_mask() { return W == 32 ? ~0u : ((1u << W % 32) - 1) << LaneId() / W * W; }

// --- a warp, or a part of one; only the first lane has a reduction
template <class T, int W = 32> struct WarpReduce {
  struct TempStorage { char unused; };
  TW_PLAIN WarpReduce(TempStorage&) {}
  template <class F> TW_FLATTEN T Reduce(T v, F f, int valid = W) {
    int lane = LaneId() % W;
    for (int n = 1; n < W; n *= 2) { T other = tw_down(tw_mask<W>(), v, n, W); if (lane + n < valid) v = f(v, other); }
    return v;
  }
  TW_FLATTEN T Sum(T v, int valid = W) { return Reduce(v, cub::Sum(), valid); }
};
template <class T, int W = 32> struct WarpScan {
  struct TempStorage { char unused; };
  TW_PLAIN WarpScan(TempStorage&) {}
  template <class F> TW_FLATTEN void InclusiveScan(T v, T& out, F f) {
    int lane = LaneId() % W;
    for (int n = 1; n < W; n *= 2) { T other = tw_up(tw_mask<W>(), v, n, W); if (lane >= n) v = f(other, v); }
    out = v;
  }
  template <class F> TW_FLATTEN void ExclusiveScan(T v, T& out, T first, F f) {
    InclusiveScan(v, v, f);
    v = tw_up(tw_mask<W>(), v, 1, W);
    out = LaneId() % W ? f(first, v) : first;
  }
  TW_FLATTEN void InclusiveSum(T v, T& out) { InclusiveScan(v, out, cub::Sum()); }
  TW_FLATTEN void ExclusiveSum(T v, T& out) { ExclusiveScan(v, out, T(), cub::Sum()); }
  TW_FLATTEN void InclusiveSum(T v, T& out, T& total) { InclusiveSum(v, out); total = __shfl_sync(tw_mask<W>(), out, W - 1, W); }
  TW_FLATTEN void ExclusiveSum(T v, T& out, T& total) { T all; InclusiveSum(v, all, total); out = all - v; }
};

// --- a block; only its first thread has a reduction
enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm { BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE };
enum BlockStoreAlgorithm { BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE };
template <class S> struct tw_block {                        // storage that the caller gives, or the block's own
  using TempStorage = S;
  S& temp;
  TW_PLAIN explicit tw_block(S& s) : temp(s) {}
  TW_PLAIN tw_block() : temp(tw::shared<tw_block, S>("memory of CUB", 16)) {}
};
template <class T, int N> struct tw_values { alignas(T) char bytes[N * sizeof(T)]; TW_CUB T& operator[](int i) { return ((T*)bytes)[i]; } };

template <class T, int X, BlockReduceAlgorithm A = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0>
struct BlockReduce : tw_block<tw_values<T, (X * Y * Z + 31) / 32>> {
  using tw_block<tw_values<T, (X * Y * Z + 31) / 32>>::tw_block;
  template <class F> TW_CUB T Reduce(T v, F f, int valid = X * Y * Z) {
    constexpr int threads = X * Y * Z;
    int rank = tw_rank(), lane = rank % 32;
    unsigned mask = threads - rank / 32 * 32 >= 32 ? ~0u : (1u << threads % 32) - 1;
    for (int n = 1; n < 32; n *= 2) { T other = tw_down(mask, v, lane + n < 32 && mask >> (lane + n) & 1 ? n : 0, 32); if (lane + n < 32 && rank + n < valid) v = f(v, other); }
    if (lane == 0) this->temp[rank / 32] = v;
    __syncthreads();
    if (rank == 0) for (int w = 1; w * 32 < valid; w++) v = f(v, this->temp[w]);
    return v;
  }
  template <int N, class F> TW_CUB T Reduce(T (&v)[N], F f) { T all = v[0]; for (int i = 1; i < N; i++) all = f(all, v[i]); return Reduce(all, f); }
  TW_CUB T Sum(T v, int valid = X * Y * Z) { return Reduce(v, cub::Sum(), valid); }
  template <int N> TW_CUB T Sum(T (&v)[N]) { return Reduce(v, cub::Sum()); }
};
template <class T, int X, BlockScanAlgorithm A = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0>
struct BlockScan : tw_block<tw_values<T, X * Y * Z + 1>> {
  using tw_block<tw_values<T, X * Y * Z + 1>>::tw_block;
  template <class F> TW_CUB T before(T v, F f, T& total) {    // what the threads before this one have; of the first, anything
    int rank = tw_rank();
    this->temp[rank] = v;
    __syncthreads();
    T mine = v, all = this->temp[0];
    for (int i = 1; i < X * Y * Z; i++) { if (i == rank) mine = all; all = f(all, this->temp[i]); }
    total = all;
    return mine;
  }
  template <int N, class F> TW_CUB void InclusiveScan(T (&v)[N], T (&out)[N], F f, T& total) {
    T sum = v[0];
    for (int i = 1; i < N; i++) sum = f(sum, v[i]);
    T first = before(sum, f, total);
    for (int i = 0; i < N; i++) out[i] = first = i || tw_rank() ? f(first, v[i]) : v[i];
  }
  template <int N, class F> TW_CUB void ExclusiveScan(T (&v)[N], T (&out)[N], T start, F f, T& total) {
    T sum = v[0];
    for (int i = 1; i < N; i++) sum = f(sum, v[i]);
    T first = before(sum, f, total);
    first = tw_rank() ? f(start, first) : start;
    for (int i = 0; i < N; i++) { T value = v[i]; out[i] = first; first = f(first, value); }
  }
  template <int N, class F> TW_CUB void InclusiveScan(T (&v)[N], T (&out)[N], F f) { T total; InclusiveScan(v, out, f, total); }
  template <int N, class F> TW_CUB void ExclusiveScan(T (&v)[N], T (&out)[N], T start, F f) { T total; ExclusiveScan(v, out, start, f, total); }
  template <int N> TW_CUB void InclusiveSum(T (&v)[N], T (&out)[N]) { InclusiveScan(v, out, cub::Sum()); }
  template <int N> TW_CUB void InclusiveSum(T (&v)[N], T (&out)[N], T& total) { InclusiveScan(v, out, cub::Sum(), total); }
  template <int N> TW_CUB void ExclusiveSum(T (&v)[N], T (&out)[N]) { ExclusiveScan(v, out, T(), cub::Sum()); }
  template <int N> TW_CUB void ExclusiveSum(T (&v)[N], T (&out)[N], T& total) { ExclusiveScan(v, out, T(), cub::Sum(), total); }
#define TW_ONE(...) { T a[1] = {v}, b[1]; __VA_ARGS__; out = b[0]; }
  template <class F> TW_CUB void InclusiveScan(T v, T& out, F f) TW_ONE(InclusiveScan(a, b, f))
  template <class F> TW_CUB void InclusiveScan(T v, T& out, F f, T& total) TW_ONE(InclusiveScan(a, b, f, total))
  template <class F> TW_CUB void ExclusiveScan(T v, T& out, T start, F f) TW_ONE(ExclusiveScan(a, b, start, f))
  template <class F> TW_CUB void ExclusiveScan(T v, T& out, T start, F f, T& total) TW_ONE(ExclusiveScan(a, b, start, f, total))
  TW_CUB void InclusiveSum(T v, T& out) TW_ONE(InclusiveSum(a, b))
  TW_CUB void InclusiveSum(T v, T& out, T& total) TW_ONE(InclusiveSum(a, b, total))
  TW_CUB void ExclusiveSum(T v, T& out) TW_ONE(ExclusiveSum(a, b))
  TW_CUB void ExclusiveSum(T v, T& out, T& total) TW_ONE(ExclusiveSum(a, b, total))
  // The prefix of a tile: the first thread's answer, given to all.
  template <class P> TW_CUB void ExclusiveSum(T v, T& out, P& prefix) {
    T total;
    ExclusiveSum(v, out, total);
    if (tw_rank() == 0) this->temp[X * Y * Z] = prefix(total);
    __syncthreads();
    out = this->temp[X * Y * Z] + out;
  }
};
template <class T, int X, int N, BlockLoadAlgorithm A = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int = 0> struct BlockLoad : tw_block<tw_values<T, A < BLOCK_LOAD_TRANSPOSE ? 1 : X * Y * Z * N>> {
  using tw_block<tw_values<T, A < BLOCK_LOAD_TRANSPOSE ? 1 : X * Y * Z * N>>::tw_block;
  TW_PLAIN static int at(int i, bool striped = A == BLOCK_LOAD_STRIPED) { return striped ? i * X * Y * Z + tw_rank() : tw_rank() * N + i; }
  template <class F> TW_CUB void load(T (&to)[N], F from) {   // from(place, register)
    if constexpr (A < BLOCK_LOAD_TRANSPOSE) { for (int i = 0; i < N; i++) from(at(i), to[i]); return; }
    for (int i = 0; i < N; i++) { T v{}; from(at(i, true), v); this->temp[at(i, true)] = v; }
    __syncthreads();
    for (int i = 0; i < N; i++) to[i] = this->temp[at(i)];
  }
  template <class It> TW_CUB void Load(It from, T (&to)[N]) { load(to, [&](int i, T& v) __attribute__((always_inline)) { v = from[i]; }); }
  template <class It> TW_CUB void Load(It from, T (&to)[N], int valid) { load(to, [&](int i, T& v) __attribute__((always_inline)) { if (i < valid) v = from[i]; }); }
  template <class It, class U> TW_CUB void Load(It from, T (&to)[N], int valid, U other) { load(to, [&](int i, T& v) __attribute__((always_inline)) { v = i < valid ? (T)from[i] : (T)other; }); }
};
template <class T, int X, int N, BlockStoreAlgorithm A = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0> struct BlockStore : tw_block<tw_values<T, A < BLOCK_STORE_TRANSPOSE ? 1 : X * Y * Z * N>> {
  using tw_block<tw_values<T, A < BLOCK_STORE_TRANSPOSE ? 1 : X * Y * Z * N>>::tw_block;
  template <class It> TW_CUB void Store(It to, T (&from)[N], int valid = X * Y * Z * N) {
    bool through = A >= BLOCK_STORE_TRANSPOSE;
    if (through) { for (int i = 0; i < N; i++) this->temp[tw_rank() * N + i] = from[i]; __syncthreads(); }
    for (int i = 0; i < N; i++) { int at = through || A == BLOCK_STORE_STRIPED ? i * X * Y * Z + tw_rank() : tw_rank() * N + i; if (at < valid) to[at] = through ? this->temp[at] : from[i]; }
  }
};
template <class K, int X, int N, class V = char, int = 0, bool = true, int = 0> struct BlockRadixSort : tw_block<tw_values<K, X * N>> {
  using tw_block<tw_values<K, X * N>>::tw_block;
  template <class F> TW_CUB void sort(K (&keys)[N], V* values, F before) {
    int first = tw_rank() * N, to[N];
    for (int i = 0; i < N; i++) this->temp[first + i] = keys[i];
    __syncthreads();
    for (int i = 0; i < N; i++) { to[i] = 0; for (int k = 0; k < X * N; k++) { K other = this->temp[k]; to[i] += before(other, keys[i]) || (k < first + i && !before(keys[i], other)); } }
    __syncthreads();
    for (int i = 0; i < N; i++) this->temp[to[i]] = keys[i];
    __syncthreads();
    for (int i = 0; i < N; i++) keys[i] = this->temp[first + i];
    if constexpr (sizeof(V) <= sizeof(K)) if (values) {
      __syncthreads();
      for (int i = 0; i < N; i++) *(V*)&this->temp[to[i]] = values[i];
      __syncthreads();
      for (int i = 0; i < N; i++) values[i] = *(V*)&this->temp[first + i];
    }
  }
  TW_CUB void Sort(K (&keys)[N]) { sort(keys, nullptr, [](K a, K b) TW_PLAIN { return a < b; }); }
  TW_CUB void SortDescending(K (&keys)[N]) { sort(keys, nullptr, [](K a, K b) TW_PLAIN { return b < a; }); }
  TW_CUB void Sort(K (&keys)[N], V (&values)[N]) { static_assert(sizeof(V) <= sizeof(K)); sort(keys, values, [](K a, K b) TW_PLAIN { return a < b; }); }
};

// --- algorithms of the host: one thread of a kernel of their own; the first call asks for memory
template <class F, class... A> TW_INLINE cudaError_t tw_device(void* temp, size_t& bytes, cudaStream_t stream, F f, A... a) {
  if (!temp) { bytes = 1; return cudaSuccess; }
  return (cudaError_t)tw_returned(tw::Launch("an algorithm of CUB", dim3(1, 1, 1), dim3(1), dim3(1), 0, stream).run(f, a...));
}
#define TW_ON_DEVICE(...) template <__VA_ARGS__> static cudaError_t
template <class I> using tw_element = std::decay_t<decltype(*std::declval<I>())>;
struct DeviceReduce {
  TW_ON_DEVICE(class I, class O, class F, class T) Reduce(void* temp, size_t& bytes, I in, O out, int n, F f, T first, cudaStream_t s = nullptr) {
    return tw_device(temp, bytes, s, [](I in, O out, int n, F f, T all) { for (int i = 0; i < n; i++) all = f(all, (T)in[i]); *out = all; }, in, out, n, f, first);
  }
  TW_ON_DEVICE(class I, class O) Sum(void* t, size_t& b, I in, O out, int n, cudaStream_t s = nullptr) { return Reduce(t, b, in, out, n, cub::Sum(), tw_element<I>(), s); }
  TW_ON_DEVICE(class I, class O) Max(void* t, size_t& b, I in, O out, int n, cudaStream_t s = nullptr) { return Reduce(t, b, in, out, n, cub::Max(), std::numeric_limits<tw_element<I>>::lowest(), s); }
  TW_ON_DEVICE(class I, class O) Min(void* t, size_t& b, I in, O out, int n, cudaStream_t s = nullptr) { return Reduce(t, b, in, out, n, cub::Min(), std::numeric_limits<tw_element<I>>::max(), s); }
};
struct DeviceScan {
  TW_ON_DEVICE(class I, class O) sum(void* t, size_t& b, I in, O out, int n, bool with, cudaStream_t s) {
    return tw_device(t, b, s, [](I in, O out, int n, bool with) { tw_element<I> all{}; for (int i = 0; i < n; i++) { auto next = all + in[i]; out[i] = with ? next : all; all = next; } }, in, out, n, with);
  }
  TW_ON_DEVICE(class I, class O) InclusiveSum(void* t, size_t& b, I in, O out, int n, cudaStream_t s = nullptr) { return sum(t, b, in, out, n, true, s); }
  TW_ON_DEVICE(class I, class O) ExclusiveSum(void* t, size_t& b, I in, O out, int n, cudaStream_t s = nullptr) { return sum(t, b, in, out, n, false, s); }
};
struct DeviceRadixSort {
  TW_ON_DEVICE(class K, class V) sort(void* t, size_t& b, const K* from, K* to, const V* values, V* out, int n, bool down, cudaStream_t s) {   // by counting: stable
    return tw_device(t, b, s, [](const K* from, K* to, const V* values, V* out, int n, bool down) {
      for (int i = 0; i < n; i++) {
        int at = 0;
        for (int k = 0; k < n; k++) at += (down ? from[i] < from[k] : from[k] < from[i]) || (k < i && from[k] == from[i]);
        to[at] = from[i];
        if (values) out[at] = values[i];
      }
    }, from, to, values, out, n, down);
  }
  TW_ON_DEVICE(class K) SortKeys(void* t, size_t& b, const K* from, K* to, int n, int = 0, int = 8 * sizeof(K), cudaStream_t s = nullptr) { return sort<K, char>(t, b, from, to, nullptr, nullptr, n, false, s); }
  TW_ON_DEVICE(class K) SortKeysDescending(void* t, size_t& b, const K* from, K* to, int n, int = 0, int = 8 * sizeof(K), cudaStream_t s = nullptr) { return sort<K, char>(t, b, from, to, nullptr, nullptr, n, true, s); }
  TW_ON_DEVICE(class K, class V) SortPairs(void* t, size_t& b, const K* from, K* to, const V* v, V* w, int n, int = 0, int = 8 * sizeof(K), cudaStream_t s = nullptr) { return sort(t, b, from, to, v, w, n, false, s); }
};
}  // namespace cub
