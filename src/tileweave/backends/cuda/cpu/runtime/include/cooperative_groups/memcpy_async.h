// Copies that a group shares: from global to shared memory asynchronous, in the largest pieces that both addresses allow.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {
struct tw_one_thread { TW_PLAIN static unsigned size() { return 1; } TW_PLAIN static unsigned thread_rank() { return 0; } };
#define TW_SPREAD __attribute__((always_inline)) inline   // its accesses are those of the caller
template <class G> TW_SPREAD void tw_spread(const G& group, char* to, const char* from, size_t n) {
  size_t all = (size_t)to | (size_t)from | n, unit = all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : 1;
  bool asynchronous = unit > 1 && tw::is_shared(to) && !tw::is_shared(from);
  for (size_t i = group.thread_rank() * unit; i < n; i += group.size() * unit) {
    if (asynchronous) tw::copy_async(tw::shared_offset(to + i), (tw::u64)(from + i), (int)unit, (int)unit);
    else for (size_t k = i; k < i + unit; k++) to[k] = from[k];
  }
}
template <class G, class T, class U> TW_SPREAD void memcpy_async(const G& group, T* to, const U* from, size_t bytes) {
  tw_spread(group, (char*)to, (const char*)from, bytes);
  tw::copy_commit();
}
template <class G> TW_SPREAD void wait(const G& group) { tw::copy_wait(0); group.sync(); }
template <unsigned N, class G> TW_SPREAD void wait_prior(const G& group) { tw::copy_wait(N); group.sync(); }
}  // namespace cooperative_groups
