// Groups of threads: the block, tiles of a warp, lanes that are together, the cluster, the grid.
#pragma once
#include "cuda_runtime.h"

namespace cooperative_groups {
using tw_size = unsigned;

struct thread_block {
  TW_FLATTEN static void sync() { tw::sync_threads(); }
  TW_PLAIN static unsigned size() { auto e = tw::block_extent(); return e.x * e.y * e.z; }
  TW_PLAIN static unsigned num_threads() { return size(); }
  TW_PLAIN static unsigned thread_rank() { auto e = tw::block_extent(); auto t = tw::thread_index(); return (t.z * e.y + t.y) * e.x + t.x; }
  TW_PLAIN static dim3 group_index() { return tw::block_index(); }
  TW_PLAIN static dim3 thread_index() { return tw::thread_index(); }
  TW_PLAIN static dim3 group_dim() { return tw::block_extent(); }
  TW_PLAIN static dim3 dim_threads() { return tw::block_extent(); }
};
TW_INLINE thread_block this_thread_block() { return {}; }

// Lanes of one warp, by their mask; ranks count the lanes of the mask.
struct tw_lanes {
  unsigned lanes;
  TW_PLAIN static unsigned lane() { return thread_block::thread_rank() % 32; }
  TW_PLAIN unsigned mask() const { return lanes; }
  TW_PLAIN unsigned size() const { return __popc(lanes); }
  TW_PLAIN unsigned num_threads() const { return size(); }
  TW_PLAIN unsigned thread_rank() const { return __popc(lanes & ((1u << lane()) - 1)); }
  TW_PLAIN unsigned nth(unsigned rank) const {
    unsigned rest = lanes;
    while (rank-- && rest) rest &= rest - 1;
    return rest ? __ffs(rest) - 1 : lane();
  }
  TW_PLAIN unsigned packed(unsigned votes) const {
    unsigned out = 0, at = 0;
    for (unsigned l = 0; l < 32; l++) if (lanes >> l & 1) out |= (votes >> l & 1) << at++;
    return out;
  }
  TW_FLATTEN void sync() const { tw::warp(tw::SYNC_WARP, lanes); }
  template <class T> TW_FLATTEN T shfl(T v, int rank) const { return __shfl_sync(lanes, v, nth((unsigned)rank % size())); }
  template <class T> TW_FLATTEN T shfl_down(T v, unsigned n) const { unsigned r = thread_rank() + n; return __shfl_sync(lanes, v, r < size() ? nth(r) : lane()); }
  template <class T> TW_FLATTEN T shfl_up(T v, unsigned n) const { unsigned r = thread_rank(); return __shfl_sync(lanes, v, r >= n ? nth(r - n) : lane()); }
  template <class T> TW_FLATTEN T shfl_xor(T v, unsigned n) const { unsigned r = thread_rank() ^ n; return __shfl_sync(lanes, v, r < size() ? nth(r) : lane()); }
  TW_FLATTEN unsigned ballot(int p) const { return packed(__ballot_sync(lanes, p)); }
  TW_FLATTEN bool any(int p) const { return __any_sync(lanes, p); }
  TW_FLATTEN bool all(int p) const { return __all_sync(lanes, p); }
  template <class T> TW_FLATTEN unsigned match_any(T v) const { return packed(__match_any_sync(lanes, v)); }
  template <class T> TW_FLATTEN unsigned match_all(T v, int& same) const { return packed(__match_all_sync(lanes, v, &same)); }
};
struct coalesced_group : tw_lanes {
  TW_PLAIN explicit coalesced_group(unsigned mask) : tw_lanes{mask} {}
  TW_PLAIN unsigned meta_group_rank() const { return 0; }
  TW_PLAIN unsigned meta_group_size() const { return 1; }
};
TW_FLATTEN coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <unsigned N, class Parent = void> struct thread_block_tile : tw_lanes {
  TW_PLAIN thread_block_tile() : tw_lanes{N == 32 ? ~0u : ((1u << N % 32) - 1) << (lane() / N * N)} {}
  TW_PLAIN static constexpr unsigned size() { return N; }
  TW_PLAIN static constexpr unsigned num_threads() { return N; }
  TW_PLAIN unsigned thread_rank() const { return lane() % N; }
  TW_PLAIN unsigned meta_group_rank() const { return thread_block::thread_rank() / N; }
  TW_PLAIN unsigned meta_group_size() const { return (thread_block::size() + N - 1) / N; }
  template <class T> TW_FLATTEN T shfl(T v, int rank) const { return __shfl_sync(lanes, v, rank, N); }
  template <class T> TW_FLATTEN T shfl_down(T v, unsigned n) const { return __shfl_down_sync(lanes, v, n, N); }
  template <class T> TW_FLATTEN T shfl_up(T v, unsigned n) const { return __shfl_up_sync(lanes, v, n, N); }
  template <class T> TW_FLATTEN T shfl_xor(T v, unsigned n) const { return __shfl_xor_sync(lanes, v, n, N); }
};
template <unsigned N, class P> TW_INLINE thread_block_tile<N> tiled_partition(const P&) {
  static_assert(N <= 32 && (N & (N - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads here");
  return {};
}
TW_FLATTEN coalesced_group binary_partition(const tw_lanes& group, bool part) {
  unsigned yes = __ballot_sync(group.lanes, part) & group.lanes;
  return coalesced_group(part ? yes : group.lanes & ~yes);
}
template <class T> TW_FLATTEN coalesced_group labeled_partition(const tw_lanes& group, T label) { return coalesced_group(__match_any_sync(group.lanes, label)); }

// Any of the above, of a size known when it runs; the block where `lanes` is 0.
struct thread_group {
  tw_lanes group;
  TW_PLAIN thread_group(const thread_block&) : group{0} {}
  TW_PLAIN thread_group(const tw_lanes& lanes) : group(lanes) {}
  TW_FLATTEN void sync() const { if (group.lanes) group.sync(); else tw::sync_threads(); }
  TW_PLAIN unsigned size() const { return group.lanes ? group.size() : thread_block::size(); }
  TW_PLAIN unsigned num_threads() const { return size(); }
  TW_PLAIN unsigned thread_rank() const { return group.lanes ? group.thread_rank() : thread_block::thread_rank(); }
};
TW_INLINE thread_group tiled_partition(const thread_group& parent, unsigned n) {
  if (!parent.group.lanes) return tw_lanes{n >= 32 ? ~0u : ((1u << n) - 1) << (tw_lanes::lane() / n * n)};
  unsigned first = parent.thread_rank() / n * n, mask = 0;
  for (unsigned r = first; r < first + n && r < parent.size(); r++) mask |= 1u << parent.group.nth(r);
  return tw_lanes{mask};
}
template <class G> TW_FLATTEN void sync(const G& group) { group.sync(); }

struct cluster_group {
  TW_FLATTEN static void sync() { tw::cluster_arrive(); tw::cluster_wait(); }
  TW_PLAIN static unsigned block_rank() { return tw::special("%cluster_ctarank"); }
  TW_PLAIN static unsigned num_blocks() { return tw::special("%cluster_nctarank"); }
  TW_PLAIN static unsigned num_threads() { return num_blocks() * thread_block::size(); }
  TW_PLAIN static unsigned thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
  template <class T> TW_PLAIN T* map_shared_rank(T* p, unsigned rank) const { return (T*)tw::generic(tw::map_rank(tw::shared_offset(p), rank), tw::SHARED); }
};
TW_INLINE cluster_group this_cluster() { return {}; }
struct grid_group {
  TW_FLATTEN static void sync() { tw::grid_sync(); }
  TW_PLAIN static bool is_valid() { return true; }
  TW_PLAIN static unsigned long long num_blocks() { auto g = tw::grid_extent(); return (unsigned long long)g.x * g.y * g.z; }
  TW_PLAIN static unsigned long long block_rank() { auto g = tw::grid_extent(); auto b = tw::block_index(); return (unsigned long long)(b.z * g.y + b.y) * g.x + b.x; }
  TW_PLAIN static dim3 group_dim() { return tw::grid_extent(); }
  TW_PLAIN static unsigned long long size() { return num_blocks() * thread_block::size(); }
  TW_PLAIN static unsigned long long num_threads() { return size(); }
  TW_PLAIN static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
};
TW_INLINE grid_group this_grid() { return {}; }
}  // namespace cooperative_groups

#include "cooperative_groups/reduce.h"
