// What checking knows: vector clocks of threads and asynchronous units, and for every byte who wrote and who read it last.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "runtime.h"

namespace tw {
// --- clocks
void Clocks::join(const Clocks& other) {
  for (auto& theirs : other.parts) {
    auto mine = std::find_if(parts.begin(), parts.end(), [&](auto& p) { return p->block == theirs->block; });
    if (mine == parts.end()) { parts.push_back(theirs); continue; }
    if (*mine == theirs) continue;
    auto &a = (*mine)->at, &b = theirs->at;
    bool covers = a.size() >= b.size(), covered = b.size() >= a.size();
    for (size_t i = 0; i < std::min(a.size(), b.size()); i++) { covers &= a[i] >= b[i]; covered &= a[i] <= b[i]; }
    if (covers) continue;
    if (covered) { *mine = theirs; continue; }
    if (mine->use_count() > 1) *mine = std::make_shared<Lanes>(**mine);
    auto& out = (*mine)->at;
    if (out.size() < b.size()) out.resize(b.size());
    for (size_t i = 0; i < b.size(); i++) out[i] = std::max(out[i], b[i]);
  }
}
void Clocks::set(uint32_t block, unsigned lane, Clock c, size_t lanes) {
  for (auto& p : parts) {
    if (p->block != block) continue;
    if (lane < p->at.size() && p->at[lane] >= c) return;
    if (p.use_count() > 1) p = std::make_shared<Lanes>(*p);
    if (lane >= p->at.size()) p->at.resize(lane + 1);
    p->at[lane] = c;
    return;
  }
  parts.push_back(std::make_shared<Lanes>(Lanes{block, std::vector<Clock>(std::max<size_t>(lanes, lane + 1))}));
  parts.back()->at[lane] = c;
}
void released(Fiber* f) { f->clock++; }
Clocks snapshot(Fiber* f) {
  Clocks c = f->known;
  c.set(f->block->uid, f->linear, f->clock, f->block->threads + ASYNC_SLOTS);
  return c;
}
// cp.async completes in the order of its thread: one slot per thread; other units share a ring of slots.
void take_slot(Async& t) {
  Block* b = t.block;
  b->slots.resize(ASYNC_SLOTS + b->threads);
  unsigned slot = t.what == "cp.async" ? ASYNC_SLOTS + t.fiber->linear : b->next_slot++ % ASYNC_SLOTS;
  t.clock = ++b->slots[slot];
  t.slot = b->threads + slot;
}

// --- what is known of each word; of each byte where accesses were narrower
struct Record { uint32_t block, clock, site; uint16_t lane, flags; };
struct Readers { uint32_t block, clock, site, mask; uint16_t warp, flags; };   // lanes of one warp that read at one time
struct Cell { Record write; uint32_t readers, split; uint32_t unused[2]; };
static_assert(sizeof(Cell) == 32, "allocations reserve 32 bytes for each word");

namespace {
struct Who { const Clocks *known, *proxy; uint32_t block; unsigned lane; Clock clock; uint16_t flags; uint32_t site, first; const Fiber* fiber; const char* unit; const Clocks* alias = nullptr; };
struct BlockFacts { uint3 index; unsigned threads; dim3 extent; uint32_t order; const char* kernel; };
struct Sync { Clocks device, total; std::map<uint32_t, Clocks> block; };
struct BankLog { std::map<uint32_t, std::array<std::vector<uint32_t>, 32>> sites; std::map<uint32_t, unsigned> width; size_t entries = 0; };
struct BankSum { u64 passes = 0, least = 0, requests = 0; unsigned lane_a = 0, lane_b = 0, bank = 0; };

std::vector<std::array<Cell, 4>> splits(1);
std::vector<std::vector<Readers>> readers(1);
std::vector<uint32_t> free_readers;
std::unordered_map<const void*, uint32_t> site_numbers;
std::vector<const void*> sites(1);
std::vector<BlockFacts> blocks(1);
std::unordered_map<u64, Sync> syncs;
std::unordered_map<u64, BankLog> banks;      // by block and warp
std::unordered_map<uint32_t, BankSum> bank_sums;
std::vector<std::pair<char*, char*>> images; // the program and its libraries
Cell* shared_cells = nullptr;
uint8_t* shared_valid = nullptr;

uint32_t site_of(const void* pc) {
  auto [it, fresh] = site_numbers.emplace(pc, (uint32_t)sites.size());
  if (fresh) sites.push_back(pc);
  return it->second;
}
std::string name_of(uint32_t block, unsigned lane) {
  auto& b = blocks[block];
  if (!b.threads) return "a copy";
  if (lane >= b.threads) return format("an asynchronous copy or product of block (%u,%u,%u)", b.index.x, b.index.y, b.index.z);
  return format("thread (%u,%u,%u) of block (%u,%u,%u)", lane % b.extent.x, lane / b.extent.x % b.extent.y, lane / b.extent.x / b.extent.y, b.index.x, b.index.y, b.index.z);
}
std::string place_of(const void* p) {
  if (Block* b = block_of_shared(p)) {
    size_t at = (char*)p - b->shared;
    for (auto& [key, v] : b->grid->variables) if (at >= v.offset && at < v.offset + v.bytes + 16) return format("%s at byte %zu", v.name.c_str(), at - v.offset);
    return format("%s at byte %zu", b->grid->dynamic_name.c_str(), at - 1024);
  }
  if (Allocation* a = allocation_at(p)) return format("%s at byte %ld", a->name.c_str(), (long)((char*)p - a->base));
  return "memory";
}
// Whether it belongs to an operation that streams, events or the host put before this one.
bool earlier(uint32_t block, const Who& w) {
  if (block >= w.first) return false;
  static uint32_t a = 0, b = 0;
  static bool answer = true;
  uint32_t first = blocks[block].order, second = blocks[w.block].order;
  if (first != a || second != b) { a = first; b = second; answer = in_order(a, b); }
  return answer;
}
bool before(uint32_t block, unsigned lane, Clock clock, const Who& w) {
  if (!block || (block == w.block && lane == w.lane) || earlier(block, w)) return true;
  return w.known->get(block, lane) >= clock;
}
bool both_strong(unsigned a, uint32_t block_a, const Who& w) {
  if (!(a & STRONG) || !(w.flags & STRONG)) return false;
  return block_a == w.block || !((a | w.flags) & BLOCK_SCOPE);
}
// Lanes of a warp that speak through volatile shared memory, as when they ran in step.
bool only_in_step(unsigned a, uint32_t block, unsigned lane, const void* p, const Who& w) {
  return (a & w.flags & VOLATILE) && block == w.block && lane / 32 == w.lane / 32 && block_of_shared(p);
}
// A plain read that races with atomics does no harm where it is only what the lane then compares: it waits for the verdict.
struct Doubt { const char* rule; const void *pc, *other; std::string text; };
std::map<std::array<u64, 3>, std::vector<Doubt>> doubts;   // by address, block and lane of the read

void race(const void* p, const Who& w, uint32_t block, unsigned lane, uint32_t site, unsigned flags, const char* did, const char* does) {
  const char *rule = "race-grid", *remedy = "no barrier can order two blocks: use atomics and fences, or another launch";
  bool asynchronous = (flags & ASYNC) || (w.flags & ASYNC);
  bool launches = blocks[block].order != blocks[w.block].order;
  if (launches) { rule = "race-stream"; remedy = "they are of streams that no event orders: cudaStreamWaitEvent() or a synchronisation is missing"; }
  else if (asynchronous) { rule = "race-async"; remedy = "the wait for the asynchronous operation, or the barrier after it, is missing"; }
  else if (only_in_step(flags, block, lane, p, w)) { rule = "race-warp"; remedy = "lanes of a warp do not run in step, volatile or not: __syncwarp() is missing between reading and writing"; }
  else if ((flags & STRONG) && (w.flags & STRONG)) { rule = "race-scope"; remedy = "both are atomic, but one only within its block"; }
  else if (block == w.block && lane / 32 == w.lane / 32) { rule = "race-warp"; remedy = "lanes of a warp do not run in step: __syncwarp() is missing"; }
  else if (block == w.block) { rule = "race-block"; remedy = "__syncthreads() is missing"; }
  else if (block_of_shared(p)) { rule = "race-cluster"; remedy = "a barrier of the cluster is missing"; }
  auto of = [&](uint32_t b) { return launches && blocks[b].threads ? format(" of %s", blocks[b].kernel) : std::string(); };
  std::string me = !blocks[w.block].threads ? "a copy" : w.unit ? format("%s of block (%u,%u,%u)", w.unit, blocks[w.block].index.x, blocks[w.block].index.y, blocks[w.block].index.z) : name_of(w.block, w.lane);
  auto text = format("%s %s %s, which %s %s, and nothing orders the two: %s", (me + of(w.block)).c_str(), does, place_of(p).c_str(), (name_of(block, lane) + of(block)).c_str(), did, remedy);
  bool they_read = !strcmp(did, "read") && !(flags & STRONG) && (w.flags & STRONG), i_read = !strcmp(does, "reads") && !(w.flags & STRONG) && (flags & STRONG);
  if (!asynchronous && !launches && (they_read || i_read)) {
    auto& list = doubts[{(u64)p, they_read ? block : w.block, they_read ? lane : w.lane}];
    if (list.size() < 4) list.push_back({rule, sites[w.site], sites[site], text});
    return;
  }
  note(rule, sites[w.site], sites[site], "%s", text.c_str());
}
void compared(const void* p, size_t size, const Fiber* f) {
  for (size_t i = 0; i < size && !doubts.empty(); i += 4) doubts.erase({(u64)p + i, f->block->uid, f->linear});
}

// One access of one cell against what went before; then the cell knows it.
void visit(Cell& c, const void* p, bool read, bool write, const Who& w) {
  Record& last = c.write;
  if (last.block && !before(last.block, last.lane, last.clock, w)) {
    if (!both_strong(last.flags, last.block, w) || (!write && only_in_step(last.flags, last.block, last.lane, p, w))) race(p, w, last.block, last.lane, last.site, last.flags, (last.flags & READ) ? "updated" : "wrote", write ? "writes" : "reads");
  } else if (last.block >= w.first && last.block && (w.flags & ASYNC) && w.proxy && !(last.flags & ASYNC) && w.proxy->get(last.block, last.lane) < last.clock) {
    note("proxy-fence", sites[w.site], sites[last.site], "%s reaches %s, which %s wrote by ordinary stores, and no fence.proxy.async lies between", w.unit, place_of(p).c_str(), name_of(last.block, last.lane).c_str());
  }
  if (w.alias && last.block && before(last.block, last.lane, last.clock, w) && !earlier(last.block, w) && w.alias->get(last.block, last.lane) < last.clock)
    note("proxy-fence", sites[w.site], sites[last.site], "%s reads %s by a multicast address, %s wrote it by another, and no fence.proxy.alias lies between", name_of(w.block, w.lane).c_str(), place_of(p).c_str(), name_of(last.block, last.lane).c_str());
  if (write && c.readers) {
    for (auto& r : readers[c.readers])
      if (!earlier(r.block, w)) for (unsigned l = 0; l < 32; l++)
        if ((r.mask >> l & 1) && !before(r.block, r.warp * 32u + l, r.clock, w) && (!both_strong(r.flags, r.block, w) || only_in_step(r.flags, r.block, r.warp * 32u, p, w))) { race(p, w, r.block, r.warp * 32u + l, r.site, r.flags, "read", "writes"); break; }
    readers[c.readers].clear();
    free_readers.push_back(c.readers);
    c.readers = 0;
  }
  if (write) { last = {w.block, w.clock, w.site, (uint16_t)w.lane, (uint16_t)(w.flags | (read ? READ : 0))}; return; }
  if (!c.readers) {
    if (free_readers.empty()) { free_readers.push_back(readers.size()); readers.emplace_back(); }
    c.readers = free_readers.back();
    free_readers.pop_back();
  }
  auto& list = readers[c.readers];
  uint16_t warp = w.lane / 32;
  for (auto& r : list) if (r.block == w.block && r.warp == warp && r.clock == w.clock && (r.flags & STRONG) == (w.flags & STRONG)) { r.mask |= 1u << w.lane % 32; return; }
  for (size_t i = 0; i < list.size(); i++) {               // forget reads that happened before this one
    auto& r = list[i];
    bool old = earlier(r.block, w);
    if (!old && r.block == w.block && r.warp == warp) { r.mask &= ~(1u << w.lane % 32); old = !r.mask; }
    if (old) { list[i] = list.back(); list.pop_back(); i--; }
  }
  list.push_back({w.block, w.clock, w.site, 1u << w.lane % 32, warp, (uint16_t)w.flags});
}
void visit_range(Cell* cells, const char* base, size_t at, size_t size, bool read, bool write, const Who& w) {
  for (size_t end = at + size; at < end;) {
    Cell& c = cells[at / 4];
    if (at % 4 == 0 && end - at >= 4 && !c.split) { visit(c, base + at, read, write, w); at += 4; continue; }
    if (!c.split) {
      splits.emplace_back();
      for (auto& b : splits.back()) { b = c; b.readers = 0; }
      if (c.readers) for (auto& b : splits.back()) {
        readers.push_back(readers[c.readers]);
        b.readers = readers.size() - 1;
      }
      c.split = splits.size() - 1;
    }
    visit(splits[c.split][at % 4], base + at, read, write, w);
    at++;
  }
}

// The memory of an address: its cells and what was written; reports what lies outside.
bool find(const void* p, size_t size, const Who& w, Cell** cells, uint8_t** valid, const char** base, size_t* at, const char* does) {
  if (Block* b = block_of_shared(p)) {
    *cells = b->cells; *valid = b->valid; *base = b->shared; *at = (char*)p - b->shared;
    auto& g = *b->grid;
    auto inside = [&](size_t x) {
      if (x >= 1024 && x < 1024 + g.options.shared) return true;
      for (auto& [key, v] : g.variables) if (x >= v.offset && x < v.offset + v.bytes) return true;
      return false;
    };
    if (b->valid[*at] & 2 && b->valid[*at + size - 1] & 2) return true;
    for (size_t i = *at; i < *at + size; i++) {
      if (!inside(i)) { note("out-of-bounds", sites[w.site], nullptr, "%s %s %zu bytes of shared memory outside every variable: %s", name_of(w.block, w.lane).c_str(), does, size, place_of(p).c_str()); return false; }
      b->valid[i] |= 2;
    }
    return true;
  }
  Allocation* a = allocation_at(p);
  if (!a) {
    for (auto& [low, high] : images) if ((char*)p >= low && (char*)p < high) return false;
    note("address-space", sites[w.site], nullptr, "%s %s memory of the host that no cudaMalloc gave", name_of(w.block, w.lane).c_str(), does);
    return false;
  }
  long offset = (char*)p - a->base;
  if (!a->members.empty()) fail("multicast", sites[w.site], "%s %s %s, a multicast address, by what is no multimem instruction", name_of(w.block, w.lane).c_str(), does, a->name.c_str());
  if (a->freed) fail("use-after-free", sites[w.site], "%s %s %s after it was freed", name_of(w.block, w.lane).c_str(), does, a->name.c_str());
  if (offset < 0 || offset + size > a->bytes) {
    note("out-of-bounds", sites[w.site], nullptr, "%s %s %zu bytes at byte %ld of %s, which has %zu", name_of(w.block, w.lane).c_str(), does, size, offset, a->name.c_str(), a->bytes);
    return false;
  }
  *cells = a->cells; *valid = a->valid; *base = a->base; *at = offset;
  return true;
}
void touch(const void* p, size_t size, bool read, bool write, const Who& w) {
  Cell* cells; uint8_t* valid; const char* base; size_t at;
  if (!find(p, size, w, &cells, &valid, &base, &at, write ? "writes" : "reads")) return;
  if (read && !(w.flags & QUIET)) for (size_t i = at; i < at + size; i++)
    if (!(valid[i] & 1)) { note("uninitialised", sites[w.site], nullptr, "%s reads %s, which nothing has written", w.unit ? w.unit : name_of(w.block, w.lane).c_str(), place_of(base + i).c_str()); break; }
  if (write) for (size_t i = at; i < at + size; i++) valid[i] |= 1;
  visit_range(cells, base, at, size, read, write, w);
}

// Strong accesses carry order between threads that fence.
void order_by(Fiber* f, const void* p, int flags) {
  Sync& s = syncs[(u64)p];
  uint32_t me = f->block->uid;
  if (flags & READ) {
    f->pending.join(s.device);
    f->pending_block.join(s.block[me]);
    f->observed.join(s.total);
    if (flags & ACQUIRE) { f->known.join(f->pending_block); if (!(flags & BLOCK_SCOPE)) f->known.join(f->pending); }
  }
  if (flags & WRITE) {
    if (!(flags & READ)) { s.device = {}; s.total = {}; s.block.clear(); }
    s.device.join(f->fenced);
    s.block[me].join(f->fenced_block);
    s.total.join(f->fenced_total);
    if (flags & RELEASE) { auto all = snapshot(f); s.block[me].join(all); if (!(flags & BLOCK_SCOPE)) s.device.join(all); released(f); }
  }
}

void flush_banks(BankLog& log) {
  for (auto& [site, lanes] : log.sites) {
    auto& sum = bank_sums[site];
    unsigned width = log.width[site], group = width <= 4 ? 32 : width == 8 ? 16 : 8;
    size_t most = 0;
    for (auto& l : lanes) most = std::max(most, l.size());
    for (size_t k = 0; k < most; k++) for (unsigned first = 0; first < 32; first += group) {
      std::map<unsigned, std::map<uint32_t, unsigned>> words;         // bank -> word -> lane
      for (unsigned l = first; l < first + group; l++) if (k < lanes[l].size())
        for (unsigned b = 0; b < std::max(width, 4u); b += 4) words[(lanes[l][k] + b) / 4 % 32].emplace((lanes[l][k] + b) / 4, l);
      size_t passes = 0;
      for (auto& [bank, set] : words) if (set.size() > passes) {
        passes = set.size();
        if (passes > 1) { sum.bank = bank; sum.lane_a = set.begin()->second; sum.lane_b = set.rbegin()->second; }
      }
      if (passes) { sum.passes += passes; sum.least++; }
    }
    sum.requests += most;
  }
  log = {};
}
void log_bank(Fiber* f, size_t at, size_t size, uint32_t site) {
  auto& log = banks[(u64)f->block->uid << 8 | f->linear / 32];
  log.sites[site][f->linear % 32].push_back(at);
  log.width[site] = size;
  if (++log.entries > 1 << 18) flush_banks(log);
}
void* reserve(size_t bytes) { return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); }

// The variables of the program itself are followed like a buffer: __device__ variables lie there.
int note_image(dl_phdr_info* info, size_t, void* first) {
  bool program = *(bool*)first;
  *(bool*)first = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    char* low = (char*)info->dlpi_addr + part.p_vaddr;
    images.push_back({low, low + part.p_memsz});
    if (!program || !(part.p_flags & PF_W)) continue;
    auto* a = new Allocation{low, part.p_memsz, "a variable of the program", nullptr, 0, true, true, (uint8_t*)reserve(part.p_memsz + 1), (Cell*)reserve((part.p_memsz + 8) * 8), low, part.p_memsz, false};
    memset(a->valid, 1, a->bytes);
    allocations().push_back(a);
    std::sort(allocations().begin(), allocations().end(), [](auto* x, auto* y) { return x->region < y->region; });
  }
  return 0;
}
}  // namespace

void barrier_opened(Block* b) { for (unsigned w = 0; w < b->warps.size(); w++) { auto it = banks.find((u64)b->uid << 8 | w); if (it != banks.end()) flush_banks(it->second); } }

void check_access(const void* p, size_t size, int flags, const void* pc) {
  Fiber* f = current;
  if (on_stack(p)) {
    if (!f->block->groups[f->linear / 128].accumulators.empty()) { f->pc = pc; check_registers(f, p, size); }
    return;
  }
  if (++f->steps > 4096) { f->pc = pc; yield(true); }
  Who w{&f->known, nullptr, f->block->uid, f->linear, f->clock, (uint16_t)(flags & (STRONG | BLOCK_SCOPE | VOLATILE | QUIET)), site_of(pc), f->block->grid->first_uid, f, nullptr};
  if (flags & ALIAS) w.alias = &f->alias;
  if (Block* b = block_of_shared(p)) need_running(b, pc, "accesses");
  if (Block* b = block_of_shared(p)) if (b == f->block) log_bank(f, (char*)p - b->shared, size, w.site);
  if (flags & COMPARE) compared(p, size, f);
  touch(p, size, flags & READ, flags & WRITE, w);
  if (flags & STRONG) order_by(f, p, flags);
}
void check_doubts() {
  for (auto& [key, list] : doubts) for (auto& d : list) note(d.rule, d.pc, d.other, "%s", d.text.c_str());
  doubts.clear();
}
void check_async(Async& t, const void* p, size_t size, bool write, bool atomic) {
  bool generic_proxy = t.what == "cp.async";
  Who w{&t.known, generic_proxy ? nullptr : &t.proxy, t.block->uid, t.slot, t.clock, (uint16_t)(atomic ? ASYNC | STRONG : ASYNC), site_of(t.pc), t.block->grid->first_uid, nullptr, t.what.c_str()};
  touch(p, size, !write, write, w);
}
// A copy of the host or of a stream is an access of its own; bounds were looked at.
void check_copy(const void* to, const void* from, size_t n, uint32_t order, const void* pc) {
  uint32_t uid = new_unit();
  blocks.resize(uid + 1);
  blocks[uid] = {{}, 0, {}, order, ""};
  Clocks nothing;
  Who w{&nothing, nullptr, uid, 0, 1, 0, site_of(pc), uid, nullptr, nullptr};
  for (bool write : {false, true}) {
    const void* p = write ? to : from;
    Allocation* a = p ? allocation_at(p) : nullptr;
    if (a && a->cells) visit_range(a->cells, a->base, (char*)p - a->base, n, !write, write, w);
  }
}
uint8_t* valid_at(const void* p) {
  if (Block* b = block_of_shared(p)) return b->valid + ((char*)p - b->shared);
  Allocation* a = allocation_at(p);
  return a && a->valid && (char*)p >= a->base && (char*)p < a->base + a->bytes ? a->valid + ((char*)p - a->base) : nullptr;
}
void check_move(void* to, const void* from, size_t n, const void* pc) {
  std::vector<uint8_t> written(n, 1);
  for (size_t i = 0; from && i < n; i++) if (uint8_t* v = valid_at((const char*)from + i)) written[i] = *v & 1;
  for (size_t i = 0; i < n; i += 8) {
    size_t part = std::min<size_t>(8, n - i);
    if (from) check_access((const char*)from + i, part, READ | QUIET, pc);   // what nothing wrote may be moved, such as padding
    check_access((char*)to + i, part, WRITE, pc);
  }
  for (size_t i = 0; i < n; i++) if (!written[i]) if (uint8_t* v = valid_at((char*)to + i)) *v &= ~1;
}
std::string unwaited(const void* p, size_t n, bool write) {
  Allocation* a = allocation_at(p);
  if (!a || !a->cells || (char*)p < a->base || (char*)p + n > a->base + a->bytes) return "";
  auto late = [](uint32_t block) { return block && !host_waited(blocks[block].order); };
  for (size_t at = (char*)p - a->base, end = at + n; at < end; at++) {
    Cell* c = &a->cells[at / 4];
    if (c->split) c = &splits[c->split][at % 4];
    auto who = [](uint32_t block) { return blocks[block].threads ? format("kernel %s", blocks[block].kernel) : std::string("a copy"); };
    if (late(c->write.block)) return who(c->write.block) + " wrote";
    if (write && c->readers) for (auto& r : readers[c->readers]) if (late(r.block)) return who(r.block) + " read";
  }
  return "";
}
void make_valid(const void* p, size_t n) {
  Allocation* a = allocation_at(p);
  if (a && a->valid) memset(a->valid + ((char*)p - a->base), 1, n);
}
void check_start(Grid*) {
  if (!checking || shared_cells) return;
  shared_cells = (Cell*)reserve((size_t)resident * SHARED_BYTES / 4 * sizeof(Cell));
  shared_valid = (uint8_t*)reserve((size_t)resident * SHARED_BYTES);
  bool first = true;
  dl_iterate_phdr(note_image, &first);
}
void check_block(Block* b) {
  if (!checking) return;
  b->cells = shared_cells + b->slot * (SHARED_BYTES / 4);
  b->valid = shared_valid + b->slot * SHARED_BYTES;
  madvise(b->cells, SHARED_BYTES / 4 * sizeof(Cell), MADV_DONTNEED);
  madvise(b->valid, SHARED_BYTES, MADV_DONTNEED);
  blocks.resize(b->uid + 1);
  blocks[b->uid] = {b->index, b->threads, b->grid->options.block, b->grid->order_number, b->grid->options.name};
}
void check_block_end(Block* b) {
  if (!checking) return;
  barrier_opened(b);
  for (unsigned w = 0; w < b->warps.size(); w++) banks.erase((u64)b->uid << 8 | w);
  for (auto& [key, m] : b->mbarriers)
    if (m.pending != m.count || m.bytes) note("mbarrier-unfinished", m.arrive_pc ? m.arrive_pc : m.init_pc, m.init_pc, "a block ends while an mbarrier at shared +%u lacks %u of %u arrivals and %ld bytes", key, m.pending, m.count, m.bytes);
}
void check_grid_end(Grid*, bool last) {
  if (!checking) return;
  check_doubts();
  for (auto& [site, s] : bank_sums)
    if (s.passes > s.least)
      note("~bank-conflict", sites[site], nullptr, "shared memory takes %.1f passes for each that is needed (%llu for %llu); lanes %u and %u meet in bank %u with different words", (double)s.passes / s.least,
           (unsigned long long)s.passes, (unsigned long long)s.least, s.lane_a, s.lane_b, s.bank);
  bank_sums.clear();
  if (last) syncs.clear();                                  // grids of other devices still order by them
}
}  // namespace tw
