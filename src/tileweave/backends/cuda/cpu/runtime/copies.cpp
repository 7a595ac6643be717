// Asynchronous copies: cp.async per thread, boxes and bulk copies through an engine that works as late as it may.
#include <algorithm>

#include "include/cuda.h"
#include "runtime.h"

namespace tw {
namespace {
Task task(const char* what, void (*run)(Async&), const void* pc) {
  auto t = std::make_shared<Async>();
  t->what = what; t->run = run; t->block = current->block; t->fiber = current; t->pc = pc; t->device = current->block->grid->device;
  if (checking) { take_slot(*t); t->known = snapshot(current); t->proxy = current->proxy; released(current); }
  return t;
}
void note_end(Fiber* f, const Task& t) {                   // what the unit did is known to a thread that waited for it
  if (checking) f->known.set(t->block->uid, t->slot, t->clock, t->block->threads + ASYNC_SLOTS);
}
void need_aligned(const char* what, u64 a, unsigned n, const void* pc) {
  if (a % n) fail("misaligned", pc, "%s gives address 0x%llx to %s: a multiple of %u is required", thread_name(current).c_str(), (unsigned long long)a, what, n);
}
void need_shared(const Async& t, const char* p, size_t n) {
  Block* b = block_of_shared(p);
  if (!b || p < b->shared + 1024 || p + n > b->shared + SHARED_BYTES) fail("out-of-bounds", t.pc, "%s of %s reaches outside shared memory", t.what.c_str(), thread_name(t.fiber).c_str());
}
void run_copy(Async& t) {
  char* to = (char*)t.a;
  if (checking) { t.read = true; if (t.rank) check_async(t, (void*)t.b, t.rank, false); check_async(t, to, t.bytes, true); }
  if (t.rank) memcpy(to, (void*)t.b, t.rank);
  memset(to + t.rank, 0, t.bytes - t.rank);
}
}  // namespace

void copy_async(u64 shared, u64 global, int bytes, int source_bytes) {
  need_aligned("cp.async", shared, bytes, TW_PC);
  need_aligned("cp.async", global, bytes, TW_PC);
  if (source_bytes < 0 || source_bytes > bytes) fail("source-bytes", TW_PC, "cp.async of %d bytes with source size %d", bytes, source_bytes);
  auto t = task("cp.async", run_copy, TW_PC);
  t->a = (u64)generic(shared, SHARED); t->b = global; t->bytes = bytes; t->rank = source_bytes; t->c = 1;
  need_shared(*t, (char*)t->a, bytes);
  current->copies.push_back(t);
}
void copy_commit() { current->copy_groups.push_back(std::move(current->copies)); current->copies.clear(); }
void copy_wait(int pending) {
  Fiber* f = current;
  if (pending < 0) copy_commit();
  while ((int)f->copy_groups.size() > std::max(pending, 0)) {
    for (auto& t : f->copy_groups.front()) { run_task(t); note_end(f, t); }
    f->copy_groups.pop_front();
  }
}
void copy_arrive(u64 barrier, bool noinc) {
  auto t = task("cp.async.mbarrier.arrive", [](Async& t) {
    auto* copies = (std::vector<Task>*)t.a;
    auto& m = *(MBarrier*)t.b;
    for (auto& c : *copies) { run_task(c); if (checking) { m.clocks.set(c->block->uid, c->slot, c->clock, c->block->threads + ASYNC_SLOTS); m.clocks.join(c->known); } }
    delete copies;
    if (!m.pending) fail("mbarrier-count", t.pc, "cp.async.mbarrier.arrive at an mbarrier that expects no more arrivals in phase %u", m.phase);
    m.pending--;
    complete_bytes(m, 0, nullptr);
  }, TW_PC);
  auto& m = mbarrier(barrier, "arrives at", TW_PC);
  if (!noinc) m.pending++;
  auto* copies = new std::vector<Task>();
  for (auto& g : current->copy_groups) copies->insert(copies->end(), g.begin(), g.end());
  copies->insert(copies->end(), current->copies.begin(), current->copies.end());
  t->a = (u64)copies; t->b = (u64)&m;
  submit(t);
}

// --- boxes: rows of a tensor map, innermost dimension first, through the swizzle of the shared address
namespace {
const tw_map& map_of(const void* p, const void* pc) {
  auto& m = *(const tw_map*)p;
  if ((u64)p % 64) fail("tensor-map", pc, "a tensor map lies at %p, which is no multiple of 64", p);
  if (m.magic != TW_MAP_MAGIC) fail("tensor-map", pc, "a box is copied through memory that holds no tensor map");
  return m;
}
u64 swizzled(u64 at, unsigned width) { return width ? at ^ (at >> 7 & (width / 16 - 1)) << 4 : at; }

// Calls f(shared byte address, global address or 0, bytes) for each run of 16 bytes of the box.
template <class F> void for_box(const tw_map& m, const int* start, char* shared, F f) {
  Block* b = block_of_shared(shared);
  u64 base = shared - b->shared, row_bytes = (u64)m.box[0] * m.bytes;
  int at[5] = {};
  unsigned rows = 1;
  for (int d = 1; d < m.rank; d++) rows *= m.box[d];
  for (unsigned row = 0; row < rows; row++) {
    unsigned rest = row;
    bool inside = true;
    u64 global = m.base;
    for (int d = 1; d < m.rank; d++) {
      at[d] = start[d] + (int)(rest % m.box[d]) * m.element_stride[d];
      rest /= m.box[d];
      inside &= at[d] >= 0 && (u64)at[d] < m.dim[d];
      if (inside) global += at[d] * m.stride[d - 1];
    }
    for (u64 x = 0; x < row_bytes; x += m.bytes) {
      long column = start[0] + (long)(x / m.bytes);
      bool in = inside && column >= 0 && (u64)column < m.dim[0];
      f(b->shared + swizzled(base + row * row_bytes + x, m.swizzle), in ? global + column * m.bytes : 0, m.bytes);
    }
  }
}
u64 box_bytes(const tw_map& m) { u64 n = m.bytes; for (int d = 0; d < m.rank; d++) n *= m.box[d]; return n; }

void need_mask(int mask, const void* pc) {
  unsigned size = current->block->grid->cluster_size;
  if (mask >= 0 && (!mask || mask >> size)) fail("cluster-mask", pc, "%s copies to the blocks of mask 0x%x: its cluster has %u", thread_name(current).c_str(), (unsigned)mask, size);
}
void need_box(const tw_map& m, u64 shared, int rank, const void* pc) {
  if (m.rank != rank) fail("tensor-map", pc, "a box of rank %d is copied through a tensor map of rank %d", rank, m.rank);
  unsigned align = m.swizzle ? 8 * m.swizzle : 128;
  if ((shared & 0xFFFFFF) % align) fail("misaligned-box", pc, "%s gives shared +%llu to a box: a multiple of %u is required%s", thread_name(current).c_str(), (unsigned long long)(shared & 0xFFFFFF), align, m.swizzle ? " by its swizzle" : "");
}
void run_box_load(Async& t) {
  auto& m = *(const tw_map*)t.data.data();
  for (auto* b : *t.block->cluster) {
    if (!(t.multicast >> b->rank & 1)) continue;
    if (!b->live) fail("cluster-left", t.pc, "a box of %s reaches block (%u,%u,%u) of its cluster, all of whose threads have left", thread_name(t.fiber).c_str(), b->index.x, b->index.y, b->index.z);
    char* shared = b->shared + t.a;
    need_shared(t, shared, box_bytes(m));
    if (checking) check_async(t, shared, box_bytes(m), true);
    for_box(m, t.at, shared, [&](char* s, u64 g, int n) {
      if (g) { if (checking) check_async(t, (void*)g, n, false); memcpy(s, (void*)g, n); }
      else if (m.fill) memset(s, 0xFF, n);
      else memset(s, 0, n);
    });
    Block* told = t.c ? (*t.block->cluster)[t.c - 1] : b;
    auto found = told->mbarriers.find((uint32_t)t.b);
    if (found == told->mbarriers.end()) fail("mbarrier-uninitialised", t.pc, "a box of %s completes at shared +%llu of block rank %u, where no mbarrier is", thread_name(t.fiber).c_str(), (unsigned long long)t.b, b->rank);
    if (checking && !found->second.fenced) note("mbarrier-fence", t.pc, found->second.init_pc, "an asynchronous copy completes at an mbarrier whose initialisation no fence made visible (fence.mbarrier_init or fence.proxy.async after mbarrier.init)");
    complete_bytes(found->second, box_bytes(m), &t);
  }
}
void read_box(Async& t) {                                  // the source may be reused after this
  if (t.read) return;
  t.read = true;
  auto& m = *(const tw_map*)t.map.data();
  u64 n = box_bytes(m);
  char* shared = (char*)t.a;
  need_shared(t, shared, n);
  if (checking) check_async(t, shared, n, false);
  t.data.clear();
  for_box(m, t.at, shared, [&](char* s, u64, int bytes) { t.data.insert(t.data.end(), s, s + bytes); });
}
template <class T> void add_to(u64 g, const uint8_t* v) { T a, b; memcpy(&a, (void*)g, sizeof a); memcpy(&b, v, sizeof b); a = (T)(a + b); memcpy((void*)g, &a, sizeof a); }
void run_box_store(Async& t) {
  read_box(t);
  auto& m = *(const tw_map*)t.map.data();
  size_t i = 0;
  for_box(m, t.at, (char*)t.a, [&](char*, u64 g, int bytes) {
    if (g) {
      if (checking) check_async(t, (void*)g, bytes, true, t.multicast);
      if (!t.multicast) memcpy((void*)g, &t.data[i], bytes);
      else switch (m.kind) {
        case 0: add_to<uint8_t>(g, &t.data[i]); break;
        case 2: add_to<uint32_t>(g, &t.data[i]); break;
        case 3: add_to<int>(g, &t.data[i]); break;
        case 6: add_to<_Float16>(g, &t.data[i]); break;
        case 7: add_to<float>(g, &t.data[i]); break;
        default: fail("unsupported", t.pc, "an addition of boxes of this element type");
      }
    }
    i += bytes;
  });
}
}  // namespace

void box_load(u64 shared, const void* map, int rank, const int* at, u64 barrier, int multicast, bool pair) {
  proxies = true;
  auto& m = map_of(map, TW_PC);
  need_box(m, shared, rank, TW_PC);
  need_mask(multicast, TW_PC);
  auto t = task("a box", run_box_load, TW_PC);
  char* to = (char*)generic(shared, SHARED);
  Block* owner = block_of_shared(to);
  mbarrier(barrier, "completes at", TW_PC);
  t->data.assign((const uint8_t*)&m, (const uint8_t*)(&m + 1));  // the map travels with the copy
  std::copy(at, at + rank, t->at);
  t->a = to - owner->shared;
  Block* told = block_of_shared(generic(barrier, SHARED));
  if (told != owner && !pair) fail("mbarrier-remote", TW_PC, "%s copies a box to its own memory and completes it at an mbarrier of another block: only .cta_group::2 may", thread_name(current).c_str());
  if (told->rank / 2 != owner->rank / 2) fail("mbarrier-remote", TW_PC, "%s completes a box at an mbarrier of a block that is not in its pair", thread_name(current).c_str());
  t->b = (char*)generic(barrier, SHARED) - told->shared;
  t->c = pair ? told->rank + 1 : 0;
  t->multicast = multicast < 0 ? 1 << owner->rank : multicast;
  submit(t);
}
void box_store(const void* map, int rank, const int* at, u64 shared, bool add) {
  proxies = true;
  auto& m = map_of(map, TW_PC);
  need_box(m, shared, rank, TW_PC);
  auto t = task("a box", run_box_store, TW_PC);
  t->map.assign((const uint8_t*)&m, (const uint8_t*)(&m + 1));  // the parameter may be gone when the copy is done
  t->a = (u64)generic(shared, SHARED);
  std::copy(at, at + rank, t->at);
  t->multicast = add;
  current->bulk.push_back(t);
}
void bulk_load(u64 shared, u64 global, unsigned bytes, u64 barrier, int multicast) {
  proxies = true;
  need_aligned("cp.async.bulk", shared, 16, TW_PC);
  need_aligned("cp.async.bulk", global, 16, TW_PC);
  need_aligned("the size of cp.async.bulk", bytes, 16, TW_PC);
  need_mask(multicast, TW_PC);
  auto t = task("a bulk copy", [](Async& t) {
    for (auto* b : *t.block->cluster) {
      if (!(t.multicast >> b->rank & 1)) continue;
      need_shared(t, b->shared + t.a, t.bytes);
      if (checking) { check_async(t, (void*)t.c, t.bytes, false); check_async(t, b->shared + t.a, t.bytes, true); }
      memcpy(b->shared + t.a, (void*)t.c, t.bytes);
      auto found = b->mbarriers.find((uint32_t)t.b);
      if (found == b->mbarriers.end()) fail("mbarrier-uninitialised", t.pc, "a bulk copy completes where no mbarrier is");
      if (checking && !found->second.fenced) note("mbarrier-fence", t.pc, found->second.init_pc, "an asynchronous copy completes at an mbarrier whose initialisation no fence made visible (fence.mbarrier_init or fence.proxy.async after mbarrier.init)");
      complete_bytes(found->second, t.bytes, &t);
    }
  }, TW_PC);
  char* to = (char*)generic(shared, SHARED);
  Block* owner = block_of_shared(to);
  Block* completes = nullptr;
  mbarrier(barrier, "completes at", TW_PC, &completes);
  if (completes != owner) fail("mbarrier-place", TW_PC, "%s copies to shared memory of one block and completes at an mbarrier of another", thread_name(current).c_str());
  t->a = to - owner->shared; t->b = (char*)generic(barrier, SHARED) - owner->shared; t->c = global; t->bytes = bytes;
  t->multicast = multicast < 0 ? 1 << owner->rank : multicast;
  submit(t);
}
void bulk_store(u64 global, u64 shared, unsigned bytes) {
  proxies = true;
  need_aligned("cp.async.bulk", shared, 16, TW_PC);
  need_aligned("cp.async.bulk", global, 16, TW_PC);
  need_aligned("the size of cp.async.bulk", bytes, 16, TW_PC);
  auto t = task("a bulk copy", [](Async& t) {
    if (!t.read) { if (checking) check_async(t, (void*)t.a, t.bytes, false); t.data.assign((uint8_t*)t.a, (uint8_t*)t.a + t.bytes); t.read = true; }
    if (checking) check_async(t, (void*)t.b, t.bytes, true);
    memcpy((void*)t.b, t.data.data(), t.bytes);
  }, TW_PC);
  t->a = (u64)generic(shared, SHARED); t->b = global; t->bytes = bytes;
  need_shared(*t, (char*)t->a, bytes);
  current->bulk.push_back(t);
}
void bulk_commit() { current->bulk_groups.push_back(std::move(current->bulk)); current->bulk.clear(); }
void bulk_wait(int pending, bool read) {
  Fiber* f = current;
  if (read) {                                              // only the sources: the destinations stay open
    for (size_t i = 0; i + pending < f->bulk_groups.size(); i++)
      for (auto& t : f->bulk_groups[i]) {
        if (!t->map.empty()) read_box(*t);
        else if (!t->read) { if (checking) check_async(*t, (void*)t->a, t->bytes, false); t->data.assign((uint8_t*)t->a, (uint8_t*)t->a + t->bytes); t->read = true; }
        note_end(f, t);
      }
    return;
  }
  while ((int)f->bulk_groups.size() > pending) {
    for (auto& t : f->bulk_groups.front()) { run_task(t); note_end(f, t); }
    f->bulk_groups.pop_front();
  }
}
}  // namespace tw
