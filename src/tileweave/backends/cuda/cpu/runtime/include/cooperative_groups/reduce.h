// Reductions and scans over tiles and lanes that are together: every thread gets its result.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {
template <class T = void> struct plus { TW_PLAIN T operator()(T a, T b) const { return a + b; } };
template <class T = void> struct greater { TW_PLAIN T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T = void> struct less { TW_PLAIN T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T = void> struct bit_and { TW_PLAIN T operator()(T a, T b) const { return a & b; } };
template <class T = void> struct bit_or { TW_PLAIN T operator()(T a, T b) const { return a | b; } };
template <class T = void> struct bit_xor { TW_PLAIN T operator()(T a, T b) const { return a ^ b; } };
template <unsigned N, class P, class T, class F> TW_FLATTEN T reduce(const thread_block_tile<N, P>& tile, T v, F f) {
  for (unsigned n = N / 2; n; n /= 2) v = f(v, tile.shfl_xor(v, n));
  return v;
}
template <class T, class F> TW_FLATTEN T reduce(const coalesced_group& group, T v, F f) {
  T out = group.shfl(v, 0);
  for (unsigned r = 1; r < group.size(); r++) out = f(out, group.shfl(v, r));
  return out;
}
template <class G, class T, class F> TW_FLATTEN T inclusive_scan(const G& group, T v, F f) {
  for (unsigned n = 1; n < group.size(); n *= 2) { T other = group.shfl_up(v, n); if (group.thread_rank() >= n) v = f(other, v); }
  return v;
}
template <class G, class T> TW_FLATTEN T inclusive_scan(const G& group, T v) { return inclusive_scan(group, v, plus<T>()); }
template <class G, class T, class F> TW_FLATTEN T exclusive_scan(const G& group, T v, F f) {
  T before = group.shfl_up(inclusive_scan(group, v, f), 1);
  return group.thread_rank() ? before : T();
}
template <class G, class T> TW_FLATTEN T exclusive_scan(const G& group, T v) { return exclusive_scan(group, v, plus<T>()); }
}  // namespace cooperative_groups
