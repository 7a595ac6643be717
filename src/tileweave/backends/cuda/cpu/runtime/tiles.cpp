// Instructions on tiles: mma.sync, ldmatrix, stmatrix, movmatrix, wgmma. Places of elements come from the atom table.
#include <algorithm>
#include <cmath>

#include "runtime.h"

namespace tw {
void meet(unsigned mask, int op, void* record, const void* pc, bool aligned);
extern void (*tile_combine)(Warp&, Meeting&);

namespace {
enum TileOp { MMA = 100, MOVE, LOAD, STORE };
struct TileRecord { const void* first; const void* second; u64* out; const u64 *a, *b, *c; u64 address; bool saturate; const void* pc; };

int width_of(const char* t) {
  std::string s = t;
  if (s == "f64" || s == "b64") return 64;
  if (s == "f32" || s == "s32" || s == "u32" || s == "tf32" || s == "b32") return 32;
  if (s == "f16" || s == "bf16" || s == "b16") return 16;
  if (s == "s4" || s == "u4") return 4;
  return 8;
}
double small_float(unsigned v, int exponent_bits, int mantissa_bits, bool finite_only) {
  unsigned sign = v >> (exponent_bits + mantissa_bits) & 1, e = v >> mantissa_bits & ((1u << exponent_bits) - 1), m = v & ((1u << mantissa_bits) - 1);
  int bias = (1 << (exponent_bits - 1)) - 1;
  unsigned top = (1u << exponent_bits) - 1;
  double x;
  if (e == top && !finite_only) x = m ? NAN : INFINITY;
  else if (finite_only && e == top && m == (1u << mantissa_bits) - 1) x = NAN;
  else if (!e) x = std::ldexp((double)m, 1 - bias - mantissa_bits);
  else x = std::ldexp(1.0 + std::ldexp((double)m, -mantissa_bits), (int)e - bias);
  return sign ? -x : x;
}
double decode(u64 v, const char* type) {
  std::string t = type;
  if (t == "f16") { _Float16 h = bits<_Float16>((uint16_t)v); return (float)h; }
  if (t == "bf16") return bits<float>((uint32_t)(v & 0xFFFF) << 16);
  if (t == "f32") return bits<float>((uint32_t)v);
  if (t == "tf32") return bits<float>((uint32_t)v & 0xFFFFE000u);
  if (t == "f64") return bits<double>(v);
  if (t == "s8") return (int8_t)v;
  if (t == "u8") return (uint8_t)v;
  if (t == "s4") return (int)(v & 15) - ((v & 8) ? 16 : 0);
  if (t == "u4") return v & 15;
  if (t == "s32") return (int32_t)v;
  if (t == "e4m3") return small_float(v & 255, 4, 3, true);
  if (t == "e5m2") return small_float(v & 255, 5, 2, false);
  fail("unsupported", nullptr, "element type %s", type);
}
u64 encode(double x, const char* type, bool saturate) {
  std::string t = type;
  if (t == "f16") return bits<uint16_t>((_Float16)x);
  if (t == "f32") return bits<uint32_t>((float)x);
  if (t == "f64") return bits<u64>(x);
  if (t == "s32") {
    if (saturate) x = std::min(std::max(x, -2147483648.0), 2147483647.0);
    return (uint32_t)(int64_t)x;
  }
  fail("unsupported", nullptr, "element type %s", type);
}
// Element slots of a thread in its registers, low bits first.
u64 slot(const u64* registers, int i, int width) {
  if (width == 64) return registers[i];
  int per = 32 / width;
  u64 word = registers[i / per] >> (i % per * width);
  return width == 32 ? word & 0xFFFFFFFF : word & ((1u << width) - 1);
}
void set_slot(u64* registers, int i, int width, u64 v) {
  if (width == 64) { registers[i] = v; return; }
  int per = 32 / width, shift = i % per * width;
  u64 mask = (width == 32 ? 0xFFFFFFFFull : (1ull << width) - 1) << shift;
  registers[i / per] = (registers[i / per] & ~mask) | (v << shift & mask);
}
void gather(const Fragment& f, int thread, const u64* registers, std::vector<double>& tile) {
  int width = width_of(f.dtype);
  for (int i = 0; i < f.slots; i++) tile[f.place[thread * f.slots + i]] = decode(slot(registers, i, width), f.dtype);
}
// D = A B^T + C: exact products, summed in double, rounded once.
void multiply(const Product& p, const std::vector<double>& a, const std::vector<double>& b, std::vector<double>& c) {
  for (int i = 0; i < p.m; i++) {
    const double* ai = &a[i * p.k];
    for (int j = 0; j < p.n; j++) {
      const double* bj = &b[j * p.k];
      double s = 0;
      for (int k = 0; k < p.k; k++) s += ai[k] * bj[k];
      c[i * p.n + j] += s;
    }
  }
}

TileRecord& at(Meeting& m, unsigned lane) { return *(TileRecord*)m.record[lane]; }

void combine_mma(Meeting& m) {
  auto& p = *(const Product*)at(m, 0).first;
  std::vector<double> a(p.m * p.k), b(p.n * p.k), c(p.m * p.n);
  for (int l = 0; l < 32; l++) {
    auto& r = at(m, l);
    if (r.first != &p && strcmp(((const Product*)r.first)->name, p.name)) fail("warp-divergence", r.pc, "lanes of one warp execute different products: %s and %s", p.name, ((const Product*)r.first)->name);
    gather(p.a, l, r.a, a); gather(p.b, l, r.b, b); gather(p.c, l, r.c, c);
  }
  multiply(p, a, b, c);
  int width = width_of(p.d.dtype);
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < p.d.slots; i++) set_slot(at(m, l).out, i, width, encode(c[p.d.place[l * p.d.slots + i]], p.d.dtype, at(m, l).saturate));
}
void combine_move(Meeting& m) {
  auto &d = *(const Fragment*)at(m, 0).first, &a = *(const Fragment*)at(m, 0).second;
  std::vector<u64> tile(64);
  for (int l = 0; l < 32; l++) for (int i = 0; i < a.slots; i++) tile[a.place[l * a.slots + i]] = slot(at(m, l).a, i, 16);
  for (int l = 0; l < 32; l++) for (int i = 0; i < d.slots; i++) set_slot(at(m, l).out, i, 16, tile[d.place[l * d.slots + i]]);
}
char* row_address(Warp& w, Meeting& m, int lane, bool write) {
  auto& r = at(m, lane);
  Fiber* f = w.block->fibers[w.first + lane];
  char* p = (char*)generic(r.address, SHARED);
  if (r.address % 16) fail("misaligned-row", r.pc, "%s gives row address 0x%llx to ldmatrix or stmatrix: a multiple of 16 is required", thread_name(f).c_str(), (unsigned long long)r.address);
  size_t at = p - block_of_shared(p)->shared;
  if (at < 1024 || at + 16 > SHARED_BYTES) fail("out-of-bounds", r.pc, "%s gives row address 0x%llx outside shared memory", thread_name(f).c_str(), (unsigned long long)r.address);
  if (checking) { Fiber* me = current; current = f; check_access(p, 16, write ? WRITE : READ, r.pc); current = me; }
  return p;
}
void combine_rows(Warp& w, Meeting& m, bool store) {
  auto& f = *(const Fragment*)at(m, 0).first;
  int tiles = f.rows;                                      // 8 x 8 tiles; lane 8 j + r supplies row r of tile j
  for (int row = 0; row < 8 * tiles; row++) row_address(w, m, row, store);
  for (int l = 0; l < 32; l++)
    for (int i = 0; i < f.slots; i++) {
      int place = f.place[l * f.slots + i];
      char* p = (char*)generic(at(m, place / 8).address, SHARED) + place % 8 * 2;
      if (store) { uint16_t v = slot(at(m, l).a, i, 16); memcpy(p, &v, 2); }
      else { uint16_t v; memcpy(&v, p, 2); set_slot(at(m, l).out, i, 16, v); }
    }
}
void combine_tiles(Warp& w, Meeting& m) {
  switch (m.op) {
    case MMA: return combine_mma(m);
    case MOVE: return combine_move(m);
    case LOAD: return combine_rows(w, m, false);
    case STORE: return combine_rows(w, m, true);
  }
}
__attribute__((constructor)) void install() { tile_combine = combine_tiles; }
}  // namespace

void mma(const Product& p, u64* d, const u64* a, const u64* b, const u64* c, bool saturate) {
  TileRecord r{&p, nullptr, d, a, b, c, 0, saturate, TW_PC};
  meet(~0u, MMA, &r, TW_PC, true);
}
void move_matrix(const Fragment& d, const Fragment& a, u64* out, u64 in) {
  TileRecord r{&d, &a, out, &in, nullptr, nullptr, 0, false, TW_PC};
  meet(~0u, MOVE, &r, TW_PC, true);
}
void load_matrix(const Fragment& f, u64* d, u64 address) {
  TileRecord r{&f, nullptr, d, nullptr, nullptr, nullptr, address, false, TW_PC};
  meet(~0u, LOAD, &r, TW_PC, true);
}
void store_matrix(const Fragment& f, const u64* d, u64 address) {
  TileRecord r{&f, nullptr, nullptr, d, nullptr, nullptr, address, false, TW_PC};
  meet(~0u, STORE, &r, TW_PC, true);
}

// --- wgmma: four warps leave their operands; the product is computed when a wait demands it
namespace {
struct GroupRecord { void* const* d; const GroupOperand *a, *b; bool keep; };

// Element (mn, k) of a tile in shared memory: the canonical layouts, then the swizzle on the byte address.
struct Tile {
  u64 start, lbo, sbo; unsigned swizzle; bool transposed; int bytes; Block* block; const void* pc;
  Tile(u64 d, bool transposed, int bytes, Block* block, const void* pc) : transposed(transposed), bytes(bytes), block(block), pc(pc) {
    start = (d & 0x3FFF) << 4; lbo = (d >> 16 & 0x3FFF) << 4; sbo = (d >> 32 & 0x3FFF) << 4;
    unsigned kind = d >> 62;
    swizzle = kind == 0 ? 0 : kind == 1 ? 128 : kind == 2 ? 64 : 32;
    if (d >> 49 & 7) fail("descriptor", pc, "a matrix descriptor has base offset %u: align tiles to the period of the swizzle instead", (unsigned)(d >> 49 & 7));
  }
  char* at(int mn, int k) const {
    u64 o, T = 16 / bytes, w = swizzle / bytes;
    if (!transposed && swizzle) o = mn % 8 * swizzle + mn / 8 * sbo + k * bytes;
    else if (!transposed) o = mn % 8 * 16 + mn / 8 * sbo + k % T * bytes + k / T * lbo;
    else if (swizzle) o = mn % w * bytes + mn / w * lbo + k % 8 * swizzle + k / 8 * sbo;
    else o = mn % T * bytes + mn / T * sbo + k % 8 * 16 + k / 8 * lbo;
    u64 a = start + o;
    if (swizzle) a ^= (a >> 7 & (swizzle / 16 - 1)) << 4;
    if (a < 1024 || a + bytes > SHARED_BYTES) fail("descriptor-outside", pc, "a matrix descriptor reaches shared +%llu for element (%d,%d), outside the block's memory", (unsigned long long)a, mn, k);
    return block->shared + a;
  }
  void read(int mn_extent, int k_extent, const char* type, int scale, std::vector<double>& out, GroupOp& op) const {
    out.resize(mn_extent * k_extent);
    Async t{};
    t.block = block; t.pc = pc; t.known = op.known; t.proxy = op.proxy; t.slot = op.slot; t.clock = op.clock; t.what = "wgmma";
    for (int i = 0; i < mn_extent; i++) for (int k = 0; k < k_extent; k++) {
      char* p = at(i, k);
      if (checking && (u64)p % 16 == 0) check_async(t, p, 16, false);
      u64 v = 0;
      memcpy(&v, p, bytes);
      out[i * k_extent + k] = scale * decode(v, type);
    }
  }
};

void compute(Block* b, GroupBatch& batch) {
  if (batch.done) return;
  batch.done = true;
  for (auto& op : batch.ops) {
    auto& p = *op.product;
    int bytes = width_of(p.b.dtype) / 8;
    std::vector<double> tile_b;
    if (op.a.empty()) Tile(op.desc_a, op.trans_a, bytes, b, op.pc).read(64, p.k, p.a.dtype, op.scale_a, op.a, op);
    Tile(op.desc_b, op.trans_b, bytes, b, op.pc).read(p.n, p.k, p.b.dtype, op.scale_b, tile_b, op);
    if (!op.keep) std::fill(op.d->value.begin(), op.d->value.end(), 0.0);
    multiply(p, op.a, tile_b, op.d->value);
    for (auto& x : op.d->value) x = decode(encode(x, p.d.dtype, false), p.d.dtype);
  }
}
}  // namespace

WarpGroup& group_of(Fiber* f) { return f->block->groups[f->linear / 128]; }

void wgmma(const Product& p, void* const* d, bool keep, const GroupOperand& a, const GroupOperand& b) {
  Fiber* f = current;
  proxies = true;
  unsigned t = f->linear % 128, base = f->linear - t;
  if (base + 128 > f->block->threads) fail("warpgroup-part", TW_PC, "wgmma needs 128 threads of four warps from a warp whose number is a multiple of 4; %s has no such group", thread_name(f).c_str());
  auto& g = group_of(f);
  if (!f->wgmma_fenced) note("wgmma-fence", TW_PC, nullptr, "%s executes wgmma without a wgmma.fence since its registers were last free for other instructions", thread_name(f).c_str());
  int limit = p.d.registers;
  for (int i = 0; i < limit; i++) if (!on_stack(d[i])) fail("wgmma-registers", TW_PC, "an accumulator of wgmma is no local variable");
  GroupRecord r{d, &a, &b, keep};
  auto& m = g.meeting;
  if (!m.arrived) m.product = &p;
  if (m.product != &p && strcmp(m.product->name, p.name)) fail("warp-divergence", TW_PC, "threads of one warpgroup execute different products: %s and %s", m.product->name, p.name);
  m.record[t] = &r;
  f->pc = TW_PC;
  progress();
  if (++m.arrived < 128) { park("the other threads of its warpgroup (wgmma)", 0, TW_PC); return; }
  m.arrived = 0;
  auto at = [&](int i) -> GroupRecord& { return *(GroupRecord*)m.record[i]; };
  GroupOp op{};
  op.product = &p; op.pc = TW_PC; op.keep = keep;
  op.desc_a = a.descriptor; op.desc_b = b.descriptor; op.trans_a = a.transposed; op.trans_b = b.transposed; op.scale_a = a.scale; op.scale_b = b.scale;
  for (int i = 0; i < 128; i++)
    if (at(i).b->descriptor != b.descriptor || at(i).keep != keep || (!a.registers && at(i).a->descriptor != a.descriptor))
      fail("warp-divergence", TW_PC, "threads of one warpgroup give wgmma different descriptors or predicates");
  if (a.registers) { op.a.resize(p.m * p.k); for (int i = 0; i < 128; i++) gather(p.a, i, at(i).a->registers, op.a); for (auto& x : op.a) x *= a.scale; }
  auto& slot_of = g.accumulators[at(0).d[0]];
  int width = width_of(p.d.dtype);
  if (!slot_of) {                                          // from here on only a wait gives the registers back
    slot_of = std::make_shared<Accumulator>();
    slot_of->product = &p;
    slot_of->value.resize(p.m * p.n);
    for (int i = 0; i < 128; i++) {
      u64 words[128];
      for (int j = 0; j < limit; j++) { uint32_t w; memcpy(&w, at(i).d[j], 4); words[j] = w; slot_of->registers[i][j] = at(i).d[j]; memset(at(i).d[j], 0xFF, 4); }
      gather(p.d, i, words, slot_of->value);
    }
  }
  if (slot_of->product->n != p.n || width_of(slot_of->product->d.dtype) != width) fail("wgmma-registers", TW_PC, "accumulators in flight for %s are given to %s", slot_of->product->name, p.name);
  for (int i = 0; i < 128; i++) slot_of->pending[i]++;
  op.d = slot_of;
  if (checking) { Async t{}; t.block = f->block; t.fiber = f; take_slot(t); op.slot = t.slot; op.clock = t.clock; for (int i = 0; i < 128; i++) { Fiber* o = f->block->fibers[base + i]; op.known.join(snapshot(o)); op.proxy.join(o->proxy); } }
  g.open.push_back(std::move(op));
  for (int i = 0; i < 128; i++) if (f->block->fibers[base + i] != f) wake(f->block->fibers[base + i]);
  yield(false);
}
void wgmma_fence() {
  current->wgmma_fenced = true;
}
void wgmma_commit() {
  // one group per warpgroup: the first of its threads to come commits, the others follow
  auto& g = group_of(current);
  if (g.batches.size() == current->batches_seen) {
    auto b = std::make_shared<GroupBatch>();
    b->ops = std::move(g.open);
    g.open.clear();
    g.batches.push_back(b);
  }
  current->batches_seen++;
}
void wgmma_wait(int pending) {
  Fiber* f = current;
  auto& g = group_of(f);
  unsigned t = f->linear % 128;
  unsigned seen = f->batches_seen;
  auto& done = f->batches_waited;                                  // batches that this thread has waited for
  while (done + pending < seen && done < g.batches.size()) {
    auto& batch = *g.batches[done++];
    compute(f->block, batch);
    for (auto& op : batch.ops) {
      if (checking) { f->known.set(f->block->uid, op.slot, op.clock, f->block->threads + ASYNC_SLOTS); }
      auto& d = *op.d;
      if (--d.pending[t]) continue;
      u64 words[128] = {};
      auto& p = *d.product;
      int width = width_of(p.d.dtype);
      for (int i = 0; i < p.d.slots; i++) set_slot(words, i, width, encode(d.value[p.d.place[t * p.d.slots + i]], p.d.dtype, false));
      for (int j = 0; j < p.d.registers; j++) {
        if ((char*)d.registers[t][j] < (char*)__builtin_frame_address(0) && (char*)d.registers[t][j] >= f->stack)
          fail("wgmma-registers", TW_PC, "the accumulators of wgmma left their scope before wgmma.wait_group");
        uint32_t w = words[j];
        memcpy(d.registers[t][j], &w, 4);
      }
      bool last = true;
      for (int i = 0; i < 128; i++) last &= !d.pending[i];
      if (last) for (auto it = g.accumulators.begin(); it != g.accumulators.end(); ++it) if (it->second.get() == &d) { g.accumulators.erase(it); break; }
    }
  }
  bool busy = false;
  for (auto& [key, d] : g.accumulators) busy |= d->pending[t] > 0;
  if (!busy) f->wgmma_fenced = false;
}
void set_registers(unsigned count, bool) {
  if (count % 8 || count < 24 || count > 256) fail("registers", TW_PC, "setmaxnreg %u: a multiple of 8 from 24 to 256 is required", count);
}

// An access to registers that an unfinished wgmma owns.
void check_registers(Fiber* f, const void* p, size_t n) {
  for (auto& [key, d] : group_of(f).accumulators) {
    auto& mine = d->registers[f->linear % 128];
    if (!d->pending[f->linear % 128]) continue;
    for (int j = 0; j < d->product->d.registers; j++)
      if ((char*)mine[j] < (char*)p + n && (char*)p < (char*)mine[j] + 4) { note("wgmma-wait", f->pc, nullptr, "%s uses an accumulator of wgmma before wgmma.wait_group", thread_name(f).c_str()); return; }
  }
}
}  // namespace tw
