// What orders threads: block barriers, warp collectives, mbarriers, fences, atomics.
#include <algorithm>

#include "runtime.h"

namespace tw {
namespace {
void acquire(Fiber* f, const Clocks& clocks, const Clocks& proxy) {
  if (!checking) return;
  f->known.join(clocks);
  if (proxies) f->proxy.join(proxy);
}
void release(Fiber* f, Clocks& clocks, Clocks& proxy) {
  if (!checking) return;
  clocks.join(f->known);
  clocks.set(f->block->uid, f->linear, f->clock, f->block->threads + ASYNC_SLOTS);
  if (proxies) proxy.join(f->proxy);
  released(f);
}
void wake_all(std::vector<Fiber*>& waiting) {
  auto list = std::move(waiting);
  waiting.clear();
  for (auto* f : list) wake(f);
}
void open(NamedBarrier& n) {
  for (auto* f : n.waiting) { acquire(f, n.clocks, n.proxy); if (checking) f->observed.join(n.observed); }
  n.count = n.votes;
  if (checking && !n.waiting.empty()) barrier_opened(n.waiting[0]->block);
  n.arrived = 0; n.votes = 0; n.clocks = {}; n.proxy = {}; n.observed = {};
  wake_all(n.waiting);
}
int at_barrier(Block* b, unsigned id, unsigned threads, bool wait, int predicate, const void* pc) {
  NamedBarrier& n = b->barriers[id];
  if (!n.arrived) n.expected = threads;
  if (n.expected != threads) fail("barrier-count", pc, "%s comes to barrier %u with %u threads, others with %u", thread_name(current).c_str(), id, threads, n.expected);
  if (threads == b->threads && b->live < b->threads)
    fail("barrier-part", pc, "barrier %u is reached by a part of block (%u,%u,%u): %u of its %u threads have left", id, b->index.x, b->index.y, b->index.z, b->threads - b->live, b->threads);
  n.votes += predicate;
  release(current, n.clocks, n.proxy);
  if (checking) n.observed.join(current->observed);
  if (wait) n.waiting.push_back(current);
  if (++n.arrived > n.expected) fail("barrier-count", pc, "more than %u threads come to barrier %u", n.expected, id);
  progress();
  if (n.arrived == n.expected) { open(n); if (wait) { yield(false); } }
  else if (wait) park("barrier", id, pc);
  return n.count;
}
}  // namespace

void barrier_of_block_left(Block* b) {
  for (unsigned id = 0; id < 16; id++) {
    auto& n = b->barriers[id];
    if (n.arrived && n.expected == b->threads && !n.waiting.empty())
      fail("barrier-part", n.waiting[0]->pc, "barrier %u is reached by a part of block (%u,%u,%u): %s has left, %u threads wait", id, b->index.x, b->index.y, b->index.z, thread_name(current).c_str(), n.arrived);
  }
}

void sync_threads() { at_barrier(current->block, 0, current->block->threads, true, 0, TW_PC); }
int sync_threads_reduce(int kind, int predicate) {
  int count = at_barrier(current->block, 0, current->block->threads, true, predicate != 0, TW_PC);
  return kind == 0 ? count : kind == 1 ? count == (int)current->block->threads : count > 0;
}
void named_barrier(unsigned id, unsigned threads, bool wait) {
  Block* b = current->block;
  if (!threads) threads = b->threads;
  if (id > 15) fail("barrier-id", TW_PC, "barrier %u: a block has barriers 0 to 15", id);
  if (threads % 32 && threads != b->threads) fail("barrier-count", TW_PC, "barrier %u with %u threads: a multiple of 32 is required", id, threads);
  at_barrier(b, id, threads, wait, 0, TW_PC);
}
void cluster_arrive() {
  NamedBarrier& n = *current->block->cluster_barrier;
  release(current, n.clocks, n.proxy);
  current->cluster_phase = n.count;                               // the phase that it waits for
  if (++n.arrived == n.expected) {
    for (auto* f : n.waiting) acquire(f, n.clocks, n.proxy);
    // threads that come later to the wait learn it there
    n.votes++;
    n.count++; n.arrived = 0;
    for (auto* b : *current->block->cluster) for (auto* f : b->fibers) acquire(f, n.clocks, n.proxy);
    n.clocks = {}; n.proxy = {};
    wake_all(n.waiting);
    progress();
  }
}
void cluster_wait() {
  NamedBarrier& n = *current->block->cluster_barrier;
  if ((unsigned)n.count != current->cluster_phase) return;
  n.waiting.push_back(current);
  park("the barrier of its cluster", 0, TW_PC);
}

void grid_sync() {
  Fiber* f = current;
  Grid* g = f->block->grid;
  if (!g->options.cooperative) fail("grid-sync", TW_PC, "a grid may only synchronise if it was launched as a cooperative one");
  auto& n = g->barrier;
  n.expected = g->threads * g->clusters * g->cluster_size;
  release(f, n.clocks, n.proxy);
  n.waiting.push_back(f);
  if (++n.arrived == n.expected) { open(n); yield(false); }
  else park("the barrier of the grid", 0, TW_PC);
}

// --- warps: lanes leave their operands, the last one computes for all
struct WarpRecord { int op; u64 value; unsigned lane, segment; bool flag; u64 result; };

static void combine(Warp& w, Meeting& m) {
  auto at = [&](unsigned l) -> WarpRecord& { return *(WarpRecord*)m.record[l]; };
  unsigned arrived = m.arrived;
  auto each = [&](auto f) { for (unsigned l = 0; l < 32; l++) if (arrived >> l & 1) f(l); };
  unsigned ballot = 0;
  each([&](unsigned l) { ballot |= (at(l).value != 0) << l; });
  u64 total = 0;
  bool first = true;
  auto f32 = [](u64 v) { return bits<float>((uint32_t)v); };
  if (m.op >= ADD_U && m.op <= MAX_F) each([&](unsigned l) {
    uint32_t v = at(l).value, t = total;
    switch (m.op) {
      case ADD_U: case ADD_S: t = first ? v : t + v; break;
      case MIN_U: t = first ? v : std::min(t, v); break;
      case MAX_U: t = first ? v : std::max(t, v); break;
      case MIN_S: t = first ? v : std::min((int)t, (int)v); break;
      case MAX_S: t = first ? v : std::max((int)t, (int)v); break;
      case AND_B: t = first ? v : t & v; break;
      case OR_B: t = first ? v : t | v; break;
      case XOR_B: t = first ? v : t ^ v; break;
      case MIN_F: t = first ? v : f32(v) < f32(t) ? v : t; break;
      case MAX_F: t = first ? v : f32(v) > f32(t) ? v : t; break;
    }
    total = t; first = false;
  });
  each([&](unsigned l) {
    auto& r = at(l);
    switch (m.op) {
      case SYNC_WARP: break;
      case BALLOT: r.result = ballot; break;
      case ANY: r.result = ballot != 0; break;
      case ALL: r.result = ballot == arrived; break;
      case SHFL_IDX: case SHFL_UP: case SHFL_DOWN: case SHFL_BFLY: {
        // segment: bits 0-4 the last lane (first for up), bits 8-12 the mask of the segment, as in PTX
        unsigned clamp = r.segment & 31, mask = r.segment >> 8 & 31, b = r.lane & 31;
        unsigned lowest = l & mask, highest = lowest | (clamp & ~mask);
        int from = m.op == SHFL_UP ? (int)l - (int)b : m.op == SHFL_DOWN ? (int)(l + b) : m.op == SHFL_BFLY ? (int)(l ^ b) : (int)(lowest | (b & ~mask));
        r.flag = m.op == SHFL_UP ? from >= (int)highest : from <= (int)highest;
        if (!r.flag) from = l;
        if (!(arrived >> from & 1)) {
          unsigned linear = w.first + l;
          fail("lane-outside-mask", w.block->fibers[linear]->pc, "%s reads lane %d by a shuffle, which is not in its mask 0x%08x or has left", thread_name(w.block->fibers[linear]).c_str(), from, m.mask);
        }
        r.result = at(from).value;
        break;
      }
      case MATCH_ANY: case MATCH_ALL: {
        unsigned same = 0;
        each([&](unsigned o) { same |= (at(o).value == r.value) << o; });
        r.flag = same == arrived;
        r.result = m.op == MATCH_ANY || r.flag ? same : 0;
        break;
      }
      case ELECT: r.result = __builtin_ctz(arrived); r.flag = r.result == l; break;
      default: r.result = total;
    }
  });
  if (checking && m.op == SYNC_WARP) {
    Clocks all, proxy;
    each([&](unsigned l) { release(w.block->fibers[w.first + l], all, proxy); });
    each([&](unsigned l) { acquire(w.block->fibers[w.first + l], all, proxy); });
  }
}

static const int TILE = 100;             // operations on tiles, which combine on their own
void (*tile_combine)(Warp&, Meeting&) = nullptr;

static void finish(Warp& w, size_t i) {
  auto m = std::move(w.meetings[i]);
  w.meetings.erase(w.meetings.begin() + i);
  if (m->op >= TILE) tile_combine(w, *m); else combine(w, *m);
  for (unsigned l = 0; l < 32; l++) if ((m->arrived >> l & 1) && w.block->fibers[w.first + l] != current) wake(w.block->fibers[w.first + l]);
}

void meet(unsigned mask, int op, void* record, const void* pc, bool aligned) {
  Fiber* f = current;
  Warp& w = f->block->warps[f->linear / 32];
  unsigned lane = f->linear % 32;
  f->pc = pc;
  if (!(mask >> lane & 1)) fail("lane-outside-mask", pc, "%s is not in its own mask 0x%08x", thread_name(f).c_str(), mask);
  if (aligned && (mask & ~w.alive)) fail("warp-part", pc, "an instruction of the whole warp is reached by a part: lanes 0x%08x of the warp of %s have left or never were", mask & ~w.alive, thread_name(f).c_str());
  for (size_t i = 0;; i++) {
    if (i == w.meetings.size()) {
      for (auto& m : w.meetings) if ((m->arrived & mask) && (m->mask >> lane & 1))   // each waits for the other
        fail("warp-divergence", pc, "%s comes with mask 0x%08x while other lanes of its warp wait with mask 0x%08x", thread_name(f).c_str(), mask, m->mask);
      auto m = std::make_unique<Meeting>();
      m->mask = mask; m->op = op;
      w.meetings.push_back(std::move(m));
    }
    auto& m = *w.meetings[i];
    if (m.mask != mask) continue;
    if (m.op != op) fail("warp-divergence", pc, "%s executes another instruction than the lanes of its mask 0x%08x that wait", thread_name(f).c_str(), mask);
    m.arrived |= 1u << lane;
    m.record[lane] = record;
    progress();
    if ((mask & w.alive) == m.arrived) { finish(w, i); yield(false); }
    else park("warp", mask, pc);
    return;
  }
}

void lane_left(Fiber* f) {
  Warp& w = f->block->warps[f->linear / 32];
  w.alive &= ~(1u << f->linear % 32);
  for (size_t i = 0; i < w.meetings.size(); i++) {
    auto& m = *w.meetings[i];
    if (m.op >= TILE && (m.mask >> f->linear % 32 & 1))
      fail("warp-part", w.block->fibers[w.first + __builtin_ctz(m.arrived)]->pc, "an instruction of the whole warp is reached by a part: %s has left", thread_name(f).c_str());
    if ((m.mask & w.alive) == m.arrived) { finish(w, i); i--; }
  }
}

u64 warp(int op, unsigned mask, u64 value, unsigned lane, unsigned segment, bool* flag) {
  WarpRecord r{op, value, lane, segment, false, 0};
  meet(mask, op, &r, TW_PC, false);
  if (flag) *flag = r.flag;
  return r.result;
}
// The lanes that come to the same place before any of them could go on alone: all others have run as far as they can.
unsigned active_mask() {
  Warp& w = current->block->warps[current->linear / 32];
  unsigned lane = current->linear % 32;
  const void* here = TW_PC;
  w.asking[lane] = current->pc = here;
  yield(true);
  if (!w.together[lane]) {
    unsigned mask = 0;
    for (unsigned l = 0; l < 32; l++) if (w.asking[l] == here && !w.together[l]) mask |= 1u << l;
    for (unsigned l = 0; l < 32; l++) if (mask >> l & 1) w.together[l] = mask;
    progress();
  }
  unsigned mask = w.together[lane];
  w.asking[lane] = nullptr; w.together[lane] = 0;
  return mask;
}

// --- mbarriers: the state lies beside the memory, keyed by its address
MBarrier& mbarrier(u64 at, const char* use, const void* pc, Block** owner) {
  char* p = (char*)generic(at, SHARED);
  Block* b = block_of_shared(p);
  if (owner) *owner = b;
  need_running(b, pc, use);
  uint32_t key = p - b->shared;
  if (key % 8) fail("misaligned", pc, "%s %s an mbarrier at shared +%u, which is no multiple of 8", thread_name(current).c_str(), use, key);
  auto found = b->mbarriers.find(key);
  if (found == b->mbarriers.end()) fail("mbarrier-uninitialised", pc, "%s %s an mbarrier at shared +%u that was never initialised", thread_name(current).c_str(), use, key);
  auto& m = found->second;
  if (checking && !(m.init_block == current->block->uid && m.init_lane == current->linear) && current->known.get(m.init_block, m.init_lane) < m.init_clock)
    note("race", pc, m.init_pc, "%s %s an mbarrier at shared +%u, and nothing orders its initialisation before (a barrier after mbarrier.init is missing)", thread_name(current).c_str(), use, key);
  return m;
}
void barrier_init(u64 at, unsigned count) {
  char* p = (char*)generic(at, SHARED);
  Block* b = block_of_shared(p);
  uint32_t key = p - b->shared;
  if (key % 8) fail("misaligned", TW_PC, "%s initialises an mbarrier at shared +%u, which is no multiple of 8", thread_name(current).c_str(), key);
  if (!count || count >= 1 << 20) fail("mbarrier-count", TW_PC, "mbarrier.init with count %u: 1 to 1048575 are legal", count);
  if (checking) check_access(p, 8, WRITE, TW_PC);
  if (b->mbarriers.count(key)) note("mbarrier-reinitialised", TW_PC, b->mbarriers[key].init_pc, "%s initialises the mbarrier at shared +%u again without mbarrier.inval", thread_name(current).c_str(), key);
  auto& m = b->mbarriers[key] = {};
  m.count = m.pending = count;
  m.init_block = current->block->uid; m.init_lane = current->linear; m.init_clock = current->clock; m.init_pc = TW_PC;
}
void barrier_drop(u64 at) {
  char* p = (char*)generic(at, SHARED);
  Block* b = block_of_shared(p);
  auto& m = mbarrier(at, "invalidates", TW_PC);
  if (!m.waiting.empty()) fail("mbarrier-invalid", TW_PC, "%s invalidates an mbarrier that %zu threads wait for", thread_name(current).c_str(), m.waiting.size());
  b->mbarriers.erase(p - b->shared);
}
void barrier_fence() {
  for (auto* b : *current->block->cluster) for (auto& [key, m] : b->mbarriers)
    if (m.init_block == current->block->uid && m.init_lane == current->linear) m.fenced = true;
}
static void turn(MBarrier& m) {
  if (m.pending || m.bytes) return;
  if (!m.seen && m.phase)
    note("mbarrier-phase", m.arrive_pc, m.init_pc, "an mbarrier completes its phase %u and no thread has waited for phase %u", m.phase, m.phase - 1);
  m.phase++; m.pending = m.count; m.seen = false; m.expected_bytes = 0; m.arrivals = 0;
  m.done.join(m.clocks); m.done_proxy.join(m.proxy);
  m.clocks = {}; m.proxy = {};
  progress();
  wake_all(m.waiting);
}
u64 barrier_arrive(u64 at, unsigned count, unsigned bytes, bool drop) {
  auto& m = mbarrier(at, "arrives at", TW_PC);
  u64 token = m.phase;
  m.arrive_pc = TW_PC;
  if (count > m.pending) fail("mbarrier-count", TW_PC, "%s arrives %u times at an mbarrier that expects %u more of %u arrivals in phase %u", thread_name(current).c_str(), count, m.pending, m.count, m.phase);
  release(current, m.clocks, m.proxy);
  m.bytes += bytes; m.expected_bytes += bytes; m.arrivals += count;
  m.pending -= count;
  if (drop) m.count -= count;
  progress();
  turn(m);
  return token;
}
void barrier_expect(u64 at, unsigned bytes) { auto& m = mbarrier(at, "expects bytes at", TW_PC); m.bytes += bytes; m.expected_bytes += bytes; }
void barrier_complete(u64 at, unsigned bytes) { auto& m = mbarrier(at, "completes bytes at", TW_PC); complete_bytes(m, bytes, nullptr); }
void complete_bytes(MBarrier& m, long bytes, const Async* t) {
  m.bytes -= bytes;
  if (checking && t) { m.clocks.join(t->known); m.clocks.set(t->block->uid, t->slot, t->clock, t->block->threads + ASYNC_SLOTS); m.proxy.join(t->proxy); }
  if (m.bytes < -(1 << 20)) fail("mbarrier-bytes", t ? t->pc : TW_PC, "an mbarrier has %ld bytes more than it expects", -m.bytes);
  if (!m.pending && m.bytes < 0) fail("mbarrier-bytes", t ? t->pc : TW_PC, "%ld bytes complete at an mbarrier that expects %u in this phase", m.expected_bytes - m.bytes, m.expected_bytes);
  turn(m);
}
bool barrier_test(u64 at, u64 phase, bool parity, bool wait) {
  Block* owner;
  auto& m = mbarrier(at, "waits for", TW_PC, &owner);
  if (owner != current->block) fail("mbarrier-remote", TW_PC, "%s waits for an mbarrier of another block: remote threads may only arrive", thread_name(current).c_str());
  auto done = [&] { return parity ? (m.phase & 1) != (phase & 1) : m.phase > phase; };
  if (!done() && wait) {
    m.waiting.push_back(current);
    current->wait_parity = phase;
    park("mbarrier", (char*)generic(at, SHARED) - owner->shared, TW_PC);
  } else if (!done()) {
    current->pc = TW_PC;
    yield(true);
  }
  if (!done()) return false;
  m.seen = true;
  acquire(current, m.done, m.done_proxy);
  return true;
}

// --- fences and accesses by name
// A fence of the total order is also behind what another lane observed before a barrier, if that was behind such a fence.
void fence(int scope, bool total) {
  Fiber* f = current;
  if (!checking) return;
  f->known.join(f->pending_block);
  f->fenced_block = snapshot(f);
  if (scope >= 2 && total) f->known.join(f->observed);
  if (scope >= 1) { f->known.join(f->pending); f->fenced = snapshot(f); }
  if (scope >= 2 && total) f->fenced_total = f->fenced;
  released(f);
}
void proxy_fence() {
  proxies = true;
  barrier_fence();
  if (checking) { current->proxy = snapshot(current); released(current); }
}
void alias_fence() { if (checking) { current->alias = snapshot(current); released(current); } }
void access(const void* p, size_t size, int flags) {
  if (!current) return;
  if ((u64)p % size) fail("misaligned", TW_PC, "%s accesses %zu bytes at %p, which is no multiple", thread_name(current).c_str(), size, p);
  if ((flags & STRONG) && !(flags & NO_YIELD)) { current->pc = TW_PC; yield(flags & READ); }
  if (checking) check_access(p, size, flags, TW_PC);
  else if (Block* b = block_of_shared(p)) {
    need_running(b, TW_PC, "accesses");
    size_t at = (char*)p - b->shared;
    if (at < 1024 || at + size > SHARED_BYTES) fail("out-of-bounds", TW_PC, "%s accesses shared memory at +%zu", thread_name(current).c_str(), at);
  }
}
}  // namespace tw
