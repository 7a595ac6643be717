// Groups of threads: the block, tiles of a warp, the grid, the cluster.
#pragma once
#include "cuda_runtime.h"

namespace cooperative_groups {
struct thread_block {
  TW_FLATTEN static void sync() { tw::sync_threads(); }
  TW_PLAIN static unsigned size() { auto e = tw::block_extent(); return e.x * e.y * e.z; }
  TW_PLAIN static unsigned num_threads() { return size(); }
  TW_PLAIN static unsigned thread_rank() { auto e = tw::block_extent(); auto t = tw::thread_index(); return (t.z * e.y + t.y) * e.x + t.x; }
  TW_PLAIN static dim3 group_index() { return tw::block_index(); }
  TW_PLAIN static dim3 thread_index() { return tw::thread_index(); }
};
TW_INLINE thread_block this_thread_block() { return {}; }
template <unsigned N, class Parent = void> struct thread_block_tile {
  TW_PLAIN unsigned lane() const { return thread_block::thread_rank() % 32; }
  TW_PLAIN unsigned mask() const { return N == 32 ? ~0u : ((1u << N) - 1) << (lane() / N * N); }
  TW_FLATTEN void sync() const { tw::warp(tw::SYNC_WARP, mask()); }
  TW_PLAIN unsigned thread_rank() const { return lane() % N; }
  TW_PLAIN unsigned meta_group_rank() const { return thread_block::thread_rank() / N; }
  TW_PLAIN unsigned meta_group_size() const { return (thread_block::size() + N - 1) / N; }
  TW_PLAIN static constexpr unsigned size() { return N; }
  TW_PLAIN static constexpr unsigned num_threads() { return N; }
  template <class T> TW_FLATTEN T shfl(T v, int lane) const { return __shfl_sync(mask(), v, lane, N); }
  template <class T> TW_FLATTEN T shfl_down(T v, unsigned n) const { return __shfl_down_sync(mask(), v, n, N); }
  template <class T> TW_FLATTEN T shfl_up(T v, unsigned n) const { return __shfl_up_sync(mask(), v, n, N); }
  template <class T> TW_FLATTEN T shfl_xor(T v, unsigned n) const { return __shfl_xor_sync(mask(), v, n, N); }
  TW_FLATTEN bool any(int p) const { return (__ballot_sync(mask(), p) & mask()) != 0; }
  TW_FLATTEN bool all(int p) const { return (__ballot_sync(mask(), p) & mask()) == mask(); }
  TW_FLATTEN unsigned ballot(int p) const { return (__ballot_sync(mask(), p) & mask()) >> (lane() / N * N); }
};
template <unsigned N, class P> TW_INLINE thread_block_tile<N> tiled_partition(const P&) { return {}; }
template <class G> TW_FLATTEN void sync(const G& group) { group.sync(); }
template <class T> struct plus { TW_PLAIN T operator()(T a, T b) const { return a + b; } };
template <class T> struct greater { TW_PLAIN T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct less { TW_PLAIN T operator()(T a, T b) const { return b < a ? b : a; } };
template <unsigned N, class P, class T, class F> TW_FLATTEN T reduce(const thread_block_tile<N, P>& tile, T v, F f) {
  for (unsigned n = N / 2; n; n /= 2) v = f(v, tile.shfl_xor(v, n));
  return v;
}
struct cluster_group {
  TW_FLATTEN static void sync() { tw::cluster_arrive(); tw::cluster_wait(); }
  TW_PLAIN static unsigned block_rank() { return tw::special("%cluster_ctarank"); }
  TW_PLAIN static unsigned num_blocks() { return tw::special("%cluster_nctarank"); }
  template <class T> TW_PLAIN T* map_shared_rank(T* p, unsigned rank) const { return (T*)tw::generic(tw::map_rank(tw::shared_offset(p), rank), tw::SHARED); }
};
TW_INLINE cluster_group this_cluster() { return {}; }
struct grid_group {
  TW_FLATTEN static void sync() { tw::grid_sync(); }
  TW_PLAIN static bool is_valid() { return true; }
  TW_PLAIN static unsigned long long size() { auto g = tw::grid_extent(); return (unsigned long long)g.x * g.y * g.z * thread_block::size(); }
  TW_PLAIN static unsigned long long thread_rank() { auto g = tw::grid_extent(); auto b = tw::block_index(); return ((unsigned long long)(b.z * g.y + b.y) * g.x + b.x) * thread_block::size() + thread_block::thread_rank(); }
};
TW_INLINE grid_group this_grid() { return {}; }
}  // namespace cooperative_groups
