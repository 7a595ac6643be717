// Memory: of blocks, where a variable, a cluster's address and a pointer are one; of the device, and the heap of kernels.
#include <sys/mman.h>

#include <algorithm>

#include "runtime.h"

namespace tw {
namespace {
std::vector<Allocation*> all;
Allocation* last_found = nullptr;
}  // namespace

// --- shared memory: dynamic from offset 1024, variables after it, an unused gap after each
void* shared_variable(const void* key, size_t bytes, size_t align, const char* name) {
  if (!current) fail("host-use", TW_PC, "shared variable %s is used outside a kernel", name);
  Grid* g = current->block->grid;
  auto found = g->variables.find(key);
  if (found == g->variables.end()) {
    size_t at = (g->shared_top + std::max<size_t>(align, 16) - 1) / std::max<size_t>(align, 16) * std::max<size_t>(align, 16);
    size_t total = 0;
    for (auto& [k, v] : g->variables) total += v.bytes;
    if (total + bytes > 48 << 10) fail("resources", TW_PC, "static shared memory %zu bytes: a block may have 49152", total + bytes);
    g->shared_top = at + bytes + 16;
    if (g->shared_top > SHARED_BYTES || total + bytes + g->options.shared > SHARED_LIMIT)
      fail("resources", TW_PC, "shared memory %zu bytes: a block may have %zu", total + bytes + g->options.shared, SHARED_LIMIT);
    found = g->variables.emplace(key, SharedVariable{name, at, bytes}).first;
  }
  return current->block->shared + found->second.offset;
}
void* dynamic_shared(const char* name, size_t) {
  if (!current) fail("host-use", TW_PC, "shared variable %s is used outside a kernel", name);
  current->block->grid->dynamic_name = name;
  return current->block->shared + 1024;
}
Block* block_of_shared(const void* p) {
  if ((char*)p < shared_arena) return nullptr;
  size_t slot = ((char*)p - shared_arena) / SHARED_BYTES;
  return slot < slots.size() ? slots[slot] : nullptr;
}
bool is_shared(const void* p) { return block_of_shared(p); }
uint32_t shared_offset(const void* p) {
  Block* b = block_of_shared(p);
  if (!b) fail("address-space", TW_PC, "%p is not an address in shared memory", p);
  uint32_t at = (char*)p - b->shared;
  return b == current->block ? at : at | (b->rank + 1) << 24;
}
void* generic(u64 a, int space) {
  if (space != SHARED) return (void*)a;
  Block* b = current->block;
  uint32_t rank = (uint32_t)a >> 24, at = a & 0xFFFFFF;
  if (a >> 32 || rank > b->grid->cluster_size || at >= SHARED_BYTES)
    fail("address-space", TW_PC, "0x%llx is not an address of shared memory (a 64-bit pointer without __cvta_generic_to_shared?)", (unsigned long long)a);
  return (rank ? (*b->cluster)[rank - 1] : b)->shared + at;
}
u64 map_rank(u64 a, unsigned rank) {
  if (rank >= current->block->grid->cluster_size) fail("cluster-rank", TW_PC, "mapa to rank %u of a cluster of %u", rank, current->block->grid->cluster_size);
  return (a & 0xFFFFFF) | (u64)(rank + 1) << 24;
}
u64 map_generic(u64 a, unsigned rank) {
  Block* b = block_of_shared((void*)a);
  if (!b) fail("address-space", TW_PC, "mapa of 0x%llx, which is not an address in shared memory", (unsigned long long)a);
  if (rank >= b->grid->cluster_size) fail("cluster-rank", TW_PC, "mapa to rank %u of a cluster of %u", rank, b->grid->cluster_size);
  return (u64)((*b->cluster)[rank]->shared + ((char*)a - b->shared));
}
void need_running(const Block* b, const void* pc, const char* what) {
  if (current && b != current->block && !b->live)
    fail("cluster-left", pc, "%s %s shared memory of block (%u,%u,%u) of its cluster, all of whose threads have left: a barrier of the cluster is missing at the end", thread_name(current).c_str(), what, b->index.x, b->index.y, b->index.z);
}

// --- global memory: each buffer ends at a guard page, filled with NaN patterns
std::vector<Allocation*>& allocations() { return all; }
Allocation* allocate(size_t bytes, const char* name, bool managed, bool host, const void* pc) {
  size_t body = (bytes + 15) / 16 * 16, pages = (body + PAGE - 1) / PAGE * PAGE;
  if (checking) pages = (body + 2 * PAGE) / PAGE * PAGE;
  char* p = (char*)mmap(nullptr, pages + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  mprotect(p, PAGE, PROT_NONE);
  mprotect(p + PAGE + pages, PAGE, PROT_NONE);
  memset(p + PAGE, 0xFF, pages);
  auto* a = new Allocation{checking ? p + PAGE : p + PAGE + pages - body, bytes, name, pc, device_now, managed, host, nullptr, nullptr, p, pages + 2 * PAGE, false};
  all.push_back(a);
  if (checking) {
    a->valid = (uint8_t*)mmap(nullptr, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (managed) memset(a->valid, 1, bytes);               // the host writes it by means that nobody follows
    a->cells = (Cell*)mmap(nullptr, (bytes + 8) / 4 * 32, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  std::sort(all.begin(), all.end(), [](auto* x, auto* y) { return x->region < y->region; });
  return a;
}
void deallocate(Allocation* a) {
  a->freed = true;
  mprotect(a->region, a->region_bytes, PROT_NONE);       // a later use is a fault with a name
}
char *heap_low = (char*)~0ull, *heap_high = nullptr;   // a pointer outside is of no interest, also when the program ends
bool in_kernel() noexcept { return current; }
void* heap_allocate(size_t n) {
  Allocation* a = allocate(n, format("the %zu bytes that a kernel allocated", n).c_str(), false, false, TW_PC);
  if (!a) return nullptr;
  a->heap = true;
  heap_low = std::min(heap_low, a->region);
  heap_high = std::max(heap_high, a->region + a->region_bytes);
  return a->base;
}
bool heap_free(void* p, const void* from) {
  if ((char*)p < heap_low || (char*)p >= heap_high) return false;
  Allocation* a = allocation_at(p);
  if (!a || !a->heap) return false;
  const void* pc = from ? from : TW_PC;
  if (!current) fail("host-free", pc, "the host frees %s", a->name.c_str());
  if (a->freed) fail("double-free", pc, "%s frees %s twice", thread_name(current).c_str(), a->name.c_str());
  deallocate(a);
  return true;
}
Allocation* allocation_at(const void* p) {
  char* c = (char*)p;
  if (last_found && c >= last_found->region && c < last_found->region + last_found->region_bytes) return last_found;
  auto it = std::upper_bound(all.begin(), all.end(), c, [](char* x, Allocation* a) { return x < a->region; });
  if (it == all.begin()) return nullptr;
  Allocation* a = *--it;
  return c < a->region + a->region_bytes ? last_found = a : nullptr;
}
}  // namespace tw
