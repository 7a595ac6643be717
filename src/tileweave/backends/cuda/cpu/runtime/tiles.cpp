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
  u64 start, lbo, sbo; unsigned swizzle; bool transposed; int bytes; Block* block; const void* pc; Block* issuer = nullptr;
  Tile(u64 d, bool transposed, int bytes, Block* block, const void* pc, bool fifth = false) : transposed(transposed), bytes(bytes), block(block), pc(pc) {
    start = (d & 0x3FFF) << 4; lbo = (d >> 16 & 0x3FFF) << 4; sbo = (d >> 32 & 0x3FFF) << 4;
    unsigned kind = d >> 62;
    swizzle = kind == 0 ? 0 : kind == 1 ? 128 : kind == 2 ? 64 : 32;
    if (fifth) {
      kind = d >> 61;
      swizzle = kind == 2 ? 128 : kind == 4 ? 64 : kind == 6 ? 32 : 0;
      if ((d >> 46 & 7) != 1 || kind % 2) fail("descriptor", pc, "a matrix descriptor of tcgen05 has bits 46..48 = %u and swizzle %u: 1, and 0, 2, 4 or 6 are right", (unsigned)(d >> 46 & 7), kind);
    }
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
    t.block = issuer ? issuer : block; t.pc = pc; t.known = op.known; t.proxy = op.proxy; t.slot = op.slot; t.clock = op.clock; t.what = "wgmma";
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

// --- tensor memory
// A product, or a copy of scales (`copy`: from descriptor a to 4 columns from d on). Scales of a product lie from columns
// scale_a and scale_b on, in byte id_a and id_b of each cell.
struct TensorOp { bool pair, keep, whole, trans_a, trans_b, inside; const char *type_a, *type_b; int m, n, k, bytes; uint32_t d; u64 a, b; Async at; bool copy, scaled; uint32_t scale_a, scale_b; int id_a, id_b; };
struct TensorMemory {
  std::vector<uint32_t> cells = std::vector<uint32_t>(128 * 512, ~0u);
  uint16_t owner[512] = {};                // columns of the allocation, 0: free
  u64 written[512] = {};                   // which completion wrote the column, or read it as A
  u64 completions = 0;
  u64 stored[512] = {}, stores = 0;        // which tcgen05.st wrote the column last
  bool relinquished = false, pair = false;
  std::deque<TensorOp> open;
  std::deque<Task> commits;                // complete in order
  Clocks done;                             // what a commit tells
  u64 issued = 0;                          // products, of which open holds the last ones
};
namespace {
TensorMemory& tensor_of(Block* b) { if (!b->tensor) b->tensor = std::make_shared<TensorMemory>(); return *b->tensor; }
void need_columns(Block* b, uint32_t at, unsigned columns, const void* pc, const char* what) {
  auto& t = tensor_of(b);
  for (unsigned c = at & 0xFFFF; c < (at & 0xFFFF) + columns; c++)
    if (c >= 512 || !t.owner[c]) fail("tensor-memory", pc, "%s reaches column %u of tensor memory, which block (%u,%u,%u) has not allocated", what, c, b->index.x, b->index.y, b->index.z);
}
// The scale of row (of B: column) i of a product: lane i % 32, which tcgen05.cp fills alike in all four warps' lanes.
double scale_of(TensorMemory& t, uint32_t at, int id, int i, const void* pc) {
  uint32_t column = (at & 0xFFFF) + i / 32;
  unsigned exponent = t.cells[(i % 32) * 512 + column] >> 8 * id & 0xFF;
  for (int w = 1; w < 4; w++) if ((t.cells[(w * 32 + i % 32) * 512 + column] >> 8 * id & 0xFF) != exponent) { fail("tensor-scales", pc, "the scales in column %u of tensor memory differ between lanes %d and %d: all four warps' lanes hold them", column, i % 32, w * 32 + i % 32); }
  return exponent == 0xFF ? NAN : ldexp(1.0, (int)exponent - 127);
}
void run_copy(Block* b, TensorOp& op) {
  Tile tile(op.a, false, 1, b, op.at.pc, true);
  auto& t = tensor_of(b);
  Async from = op.at;
  from.block = b;
  for (int i = 0; i < 32; i++) {
    char* row = tile.at(i, 0);
    if (checking) check_async(from, row, 16, false);
    for (int w = 0; w < 4; w++) memcpy(&t.cells[(w * 32 + i) * 512 + (op.d & 0xFFFF)], row, 16);
  }
  for (int c = 0; c < 4; c++) t.written[(op.d & 0xFFFF) + c] = t.completions + 1;
}
void run_tensor(Block* b, TensorOp& op) {
  if (op.copy) return run_copy(b, op);
  std::vector<double> tile_b;
  int parts = op.pair ? 2 : 1, rows = op.m / parts, columns = op.n / parts;
  GroupOp like{};
  like.known = op.at.known; like.proxy = op.at.proxy; like.slot = op.at.slot; like.clock = op.at.clock;
  for (int r = 0; r < parts; r++) {
    Block* of = op.pair ? (*b->cluster)[b->rank + r] : b;
    std::vector<double> part;
    Tile tile(op.b, op.trans_b, op.bytes, of, op.at.pc, true);
    tile.issuer = b;
    tile.read(columns, op.k, op.type_b, 1, part, like);
    tile_b.insert(tile_b.end(), part.begin(), part.end());
  }
  for (int r = 0; r < parts; r++) {
    Block* of = op.pair ? (*b->cluster)[b->rank + r] : b;
    std::vector<double> tile_a;
    auto& t = tensor_of(of);
    unsigned from = op.a & 0xFFFF, per = 4 / op.bytes;
    if (op.inside) {
      for (int i = 0; i < rows; i++) for (int k = 0; k < op.k; k++)
        tile_a.push_back(decode(t.cells[i * 512 + from + k / per] >> k % per * op.bytes * 8 & (u64)~0u >> (32 - 8 * op.bytes), op.type_a));
      for (int c = 0; c < op.k / (int)per; c++) t.written[from + c] = t.completions + 1;
    } else {
      Tile tile(op.a, op.trans_a, op.bytes, of, op.at.pc, true);
      tile.issuer = b;
      tile.read(rows, op.k, op.type_a, 1, tile_a, like);
    }
    for (int i = 0; i < rows; i++) for (int j = 0; j < op.n; j++) {
      int lane = op.m == 64 ? i / 16 * 32 + i % 16 : i;
      uint32_t& cell = t.cells[lane * 512 + (op.d & 0xFFFF) + j];
      double s = !op.keep ? 0.0 : op.whole ? (double)(int32_t)cell : (double)bits<float>(cell), p = 0;
      for (int k = 0; k < op.k; k++) p += tile_a[i * op.k + k] * tile_b[j * op.k + k];
      if (op.scaled) p *= scale_of(t, op.scale_a, op.id_a, i, op.at.pc) * scale_of(t, op.scale_b, op.id_b, j, op.at.pc);
      cell = op.whole ? (uint32_t)(int64_t)(s + p) : bits<uint32_t>((float)(s + p));
    }
    for (int j = 0; j < op.n; j++) t.written[(op.d & 0xFFFF) + j] = t.completions + 1;
  }
}
}  // namespace

void tensor_alloc(u64 shared, unsigned columns, bool pair) {
  Fiber* f = current;
  auto& t = tensor_of(f->block);
  if (columns < 32 || columns > 512 || columns & (columns - 1)) fail("tensor-memory", TW_PC, "tcgen05.alloc of %u columns: a power of two from 32 to 512 is required", columns);
  warp(SYNC_WARP, ~0u);
  if (f->linear % 32 == 0) {
    if (t.relinquished) fail("tensor-memory", TW_PC, "tcgen05.alloc after relinquish_alloc_permit");
    t.pair = pair;
    unsigned at = 0;
    for (; at + columns <= 512; at += columns) { bool taken = false; for (unsigned c = at; c < at + columns; c++) taken |= t.owner[c]; if (!taken) break; }
    if (at + columns > 512) fail("tensor-memory", TW_PC, "tcgen05.alloc of %u columns: the block has no more of its 512", columns);
    for (unsigned c = at; c < at + columns; c++) t.owner[c] = columns;
    uint32_t* to = (uint32_t*)generic(shared, SHARED);
    access(to, 4, WRITE);
    *to = at;
  }
  warp(SYNC_WARP, ~0u);
}
void tensor_free(uint32_t at, unsigned columns, bool pair) {
  Fiber* f = current;
  auto& t = tensor_of(f->block);
  warp(SYNC_WARP, ~0u);
  if (f->linear % 32) return;
  if (pair != t.pair) fail("tensor-memory", TW_PC, "tcgen05.dealloc is of another cta_group than tcgen05.alloc");
  for (unsigned c = at; c < at + columns; c++) {
    if (c >= 512 || t.owner[c] != columns) fail("tensor-memory", TW_PC, "tcgen05.dealloc of %u columns from %u, which were not allocated so", columns, at);
    t.owner[c] = 0;
  }
}
void tensor_relinquish() { warp(SYNC_WARP, ~0u); if (current->linear % 32 == 0) tensor_of(current->block).relinquished = true; }
void tensor_left(Block* b) {
  if (!b->tensor) return;
  for (unsigned c = 0; c < 512; c++) if (b->tensor->owner[c]) fail("tensor-leak", nullptr, "block (%u,%u,%u) ends and has not given back column %u of tensor memory (tcgen05.dealloc)", b->index.x, b->index.y, b->index.z, c);
  if (!b->tensor->open.empty()) fail("tensor-order", b->tensor->open[0].at.pc, "block (%u,%u,%u) ends while products into tensor memory are not known to be complete", b->index.x, b->index.y, b->index.z);
}
namespace {
void issue(TensorOp& op, const char* what, const void* pc) {
  Fiber* f = current;
  op.at.what = what; op.at.block = f->block; op.at.pc = pc; op.at.fiber = f; op.at.device = f->block->grid->device;
  if (checking) { take_slot(op.at); op.at.known = snapshot(f); op.at.proxy = f->proxy; released(f); }
  tensor_of(f->block).open.push_back(op);
  tensor_of(f->block).issued++;
}
}  // namespace
void tensor_mma(const char* kind, bool pair, uint32_t d, bool inside, u64 a, u64 b, uint32_t number, bool keep) {
  Fiber* f = current;
  proxies = true;
  std::string k = kind;
  TensorOp op{};
  unsigned ta = number >> 7 & 7, tb = number >> 10 & 7;
  auto type = [&](unsigned v) -> const char* {
    if (k == "f16" && v < 2) return v ? "bf16" : "f16";
    if (k == "tf32" && v == 2) return "tf32";
    if (k == "f8f6f4" && v < 2) return v ? "e5m2" : "e4m3";
    if (k == "i8" && v < 2) return v ? "s8" : "u8";
    fail("tensor-descriptor", TW_PC, "the instruction descriptor 0x%08x names element type %u, which kind::%s has not (or which is not emulated)", number, v, kind);
  };
  op.type_a = type(ta); op.type_b = type(tb);
  op.pair = pair; op.keep = keep; op.trans_a = number >> 15 & 1; op.trans_b = number >> 16 & 1;
  op.bytes = width_of(op.type_a) / 8; op.k = 32 / op.bytes;
  op.n = (number >> 17 & 63) * 8; op.m = (number >> 24 & 31) * 16;
  op.d = d; op.a = a; op.b = b; op.inside = inside;
  op.whole = k == "i8";
  if ((number >> 4 & 3) != (op.whole ? 2 : 1)) fail("tensor-descriptor", TW_PC, "the instruction descriptor 0x%08x: of kind::%s only results in %s are emulated", number, kind, op.whole ? "s32" : "f32");
  if (op.whole && op.n > 32 && op.n % 16) fail("tensor-descriptor", TW_PC, "the instruction descriptor 0x%08x: n %d of kind::i8 is no multiple of 16", number, op.n);
  if ((pair ? op.m != 256 : op.m != 128 && op.m != 64) || op.n < 8 || op.n > 256 || op.n % (op.m / 8)) fail("tensor-descriptor", TW_PC, "the instruction descriptor 0x%08x: m %d, n %d of a product of %s", number, op.m, op.n, pair ? "two blocks" : "one block");
  if ((op.trans_a || op.trans_b) && op.bytes != 2) fail("tensor-descriptor", TW_PC, "a transposed operand of kind::%s", kind);
  if (pair != tensor_of(f->block).pair) fail("tensor-memory", TW_PC, "tcgen05.mma is of another cta_group than tcgen05.alloc");
  if (pair && (f->block->rank % 2 || f->block->cluster->size() < f->block->rank + 2u)) fail("cluster-rank", TW_PC, "a product of two blocks is issued by the second of them, or in a cluster without pairs");
  auto need = [&](uint32_t at, int columns) {
    for (int r = 0; r < (pair ? 2 : 1); r++) {
      Block* of = pair ? (*f->block->cluster)[f->block->rank + r] : f->block;
      need_columns(of, at, columns, TW_PC, "tcgen05.mma");
      if (of == f->block) for (int c = 0; c < columns; c++)
        if (tensor_of(of).stored[(at & 0xFFFF) + c] > f->stores_after) fail("tensor-fence", TW_PC, "%s multiplies column %u of tensor memory, which tcgen05.st wrote, and no tcgen05.fence::after_thread_sync lies between", thread_name(f).c_str(), (at & 0xFFFF) + c);
    }
  };
  need(d, op.n);
  if (inside) need(a, 32 / 4);
  if (inside && (op.trans_a || a >> 16 || op.m == 64)) fail("tensor-descriptor", TW_PC, "the left operand in tensor memory begins at lane %u, or is transposed", (unsigned)(a >> 16));
  issue(op, "tcgen05.mma", TW_PC);
}
void tensor_copy(bool pair, uint32_t d, u64 source) {
  proxies = true;
  if (pair) fail("unsupported", TW_PC, "tcgen05.cp of two blocks is not emulated");
  need_columns(current->block, d, 4, TW_PC, "tcgen05.cp");
  TensorOp op{};
  op.copy = true; op.d = d; op.a = source; op.n = 4;
  issue(op, "tcgen05.cp", TW_PC);
}
void tensor_mma_scaled(const char* kind, bool pair, uint32_t d, u64 a, u64 b, uint32_t number, uint32_t scale_a, uint32_t scale_b, bool keep) {
  Fiber* f = current;
  proxies = true;
  TensorOp op{};
  unsigned ta = number >> 7 & 7, tb = number >> 10 & 7;
  if (pair) fail("unsupported", TW_PC, "a scaled product of two blocks is not emulated");
  if (ta > 1 || tb > 1) fail("tensor-descriptor", TW_PC, "the instruction descriptor 0x%08x names element types %u and %u: of kind::%s only e4m3 (0) and e5m2 (1) are emulated", number, ta, tb, kind);
  op.type_a = ta ? "e5m2" : "e4m3"; op.type_b = tb ? "e5m2" : "e4m3";
  op.bytes = 1; op.k = 32; op.keep = keep; op.scaled = true;
  op.n = (number >> 17 & 63) * 8; op.m = (number >> 27 & 3) * 128;
  op.d = d; op.a = a; op.b = b; op.scale_a = scale_a; op.scale_b = scale_b; op.id_a = number >> 29 & 3; op.id_b = number >> 4 & 3;
  if (!(number >> 23 & 1)) fail("tensor-descriptor", TW_PC, "the instruction descriptor 0x%08x: kind::%s has scales of type e8m0, bit 23", number, kind);
  if (number & 0x8701E04F) fail("tensor-descriptor", TW_PC, "the instruction descriptor 0x%08x: signs, transposed operands, sparsity and bits 24 to 26 and 31 are 0", number);
  if (op.m != 128 || op.n < 8 || op.n > 256 || op.n % 8) fail("tensor-descriptor", TW_PC, "the instruction descriptor 0x%08x: m %d, n %d of a scaled product of one block", number, op.m, op.n);
  need_columns(f->block, d, op.n, TW_PC, "tcgen05.mma");
  need_columns(f->block, scale_a, 4, TW_PC, "tcgen05.mma");
  need_columns(f->block, scale_b, (op.n + 31) / 32, TW_PC, "tcgen05.mma");
  auto& t = tensor_of(f->block);
  for (uint32_t at : {scale_a & 0xFFFF, scale_b & 0xFFFF})
    for (uint32_t c = at; c < at + (at == (scale_a & 0xFFFF) ? 4 : (op.n + 31) / 32); c++)
      if (t.stored[c] > f->stores_after) fail("tensor-fence", TW_PC, "%s scales by column %u of tensor memory, which tcgen05.st wrote, and no tcgen05.fence::after_thread_sync lies between", thread_name(f).c_str(), c);
  issue(op, "tcgen05.mma", TW_PC);
}
void tensor_commit(u64 barrier, int mask, bool pair) {
  Fiber* f = current;
  Block* b = f->block;
  if (pair != tensor_of(b).pair) fail("tensor-memory", TW_PC, "tcgen05.commit is of another cta_group than tcgen05.alloc");
  if (mask >= 0 && (!mask || mask >> b->cluster->size())) fail("cluster-mask", TW_PC, "tcgen05.commit to the blocks of mask 0x%x: the cluster has %zu", (unsigned)mask, b->cluster->size());
  auto t = std::make_shared<Async>();
  t->what = "tcgen05.commit"; t->block = b; t->fiber = f; t->pc = TW_PC; t->device = b->grid->device;
  t->a = tensor_of(b).issued; t->b = (char*)generic(barrier, SHARED) - b->shared; t->multicast = mask < 0 ? 1 << b->rank : mask; t->c = pair;
  mbarrier(barrier, "commits to", TW_PC);
  if (checking) { take_slot(*t); t->known = snapshot(f); t->proxy = f->proxy; released(f); }
  t->run = [](Async& t) {
    auto& memory = tensor_of(t.block);
    while (memory.commits.front().get() != &t) { auto earlier = memory.commits.front(); run_task(earlier); }
    memory.commits.pop_front();
    while (memory.issued - memory.open.size() < t.a) {
      auto& op = memory.open.front();
      run_tensor(t.block, op);
      if (checking) { memory.done.join(op.at.known); memory.done.set(t.block->uid, op.at.slot, op.at.clock, t.block->threads + ASYNC_SLOTS); }
      memory.open.pop_front();
    }
    for (int r = 0; r < (t.c ? 2 : 1); r++) tensor_of(t.c ? (*t.block->cluster)[t.block->rank + r] : t.block).completions++;
    for (auto* b : *t.block->cluster) {
      if (!(t.multicast >> b->rank & 1)) continue;
      if (!b->live) fail("cluster-left", t.pc, "tcgen05.commit of %s arrives at block (%u,%u,%u), all of whose threads have left", thread_name(t.fiber).c_str(), b->index.x, b->index.y, b->index.z);
      auto found = b->mbarriers.find((uint32_t)t.b);
      if (found == b->mbarriers.end()) fail("mbarrier-uninitialised", t.pc, "tcgen05.commit arrives where no mbarrier is");
      auto& m = found->second;
      if (!m.pending) fail("mbarrier-count", t.pc, "tcgen05.commit of %s arrives at an mbarrier that expects no more arrivals in phase %u", thread_name(t.fiber).c_str(), m.phase);
      m.pending--; m.arrivals++; m.arrive_pc = t.pc;
      if (checking) m.clocks.join(memory.done);
      complete_bytes(m, 0, &t);
    }
  };
  tensor_of(b).commits.push_back(t);
  submit(t);
}
void tensor_fence(bool after) {
  Fiber* f = current;
  if (after) { f->tensor_after = tensor_of(f->block).completions; f->stores_after = tensor_of(f->block).stores; }
  else if (f->stores_open) fail("tensor-wait", TW_PC, "%s has a tcgen05.st without tcgen05.wait::st before tcgen05.fence::before_thread_sync", thread_name(f).c_str());
}
void tensor_wait(bool store) { if (store) current->stores_open = false; }
void tensor_move(const Fragment& p, u64* registers, uint32_t at, bool store) {
  Fiber* f = current;
  auto& t = tensor_of(f->block);
  unsigned lane = at >> 16, column = at & 0xFFFF, first = f->linear / 32 % 4 * 32;
  warp(SYNC_WARP, ~0u);
  need_columns(f->block, at, p.columns, TW_PC, store ? "tcgen05.st" : "tcgen05.ld");
  if (lane < first || lane + p.rows > first + 32) fail("tensor-lanes", TW_PC, "%s reaches lanes %u..%u of tensor memory: its warp has lanes %u..%u", thread_name(f).c_str(), lane, lane + p.rows - 1, first, first + 31);
  Block* issuer = t.pair ? (*f->block->cluster)[f->block->rank & ~1u] : f->block;
  for (auto& op : tensor_of(issuer).open) {
    auto reads = [&](uint32_t at, int n) { at &= 0xFFFF; return op.scaled && at < column + p.columns && column < at + n; };
    if (store && (reads(op.scale_a, 4) || reads(op.scale_b, (op.n + 31) / 32))) fail("tensor-order", TW_PC, "%s writes column %u of tensor memory, and a product that is scaled by it is not known to be complete (tcgen05.commit and a wait)", thread_name(f).c_str(), column);
    if (store && op.inside && (op.a & 0xFFFF) < column + p.columns && column < (op.a & 0xFFFF) + 32 / 4) fail("tensor-order", TW_PC, "%s writes column %u of tensor memory, and a product that reads it is not known to be complete (tcgen05.commit and a wait)", thread_name(f).c_str(), column);
    if ((op.d & 0xFFFF) < column + p.columns && column < (op.d & 0xFFFF) + op.n) { fail("tensor-order", TW_PC, "%s reaches column %u of tensor memory, and a product that writes it is not known to be complete (tcgen05.commit and a wait)", thread_name(f).c_str(), column); }
  }
  for (int c = 0; c < p.columns; c++)
    if (t.written[column + c] > f->tensor_after) fail("tensor-fence", TW_PC, "%s reaches column %u of tensor memory, and no tcgen05.fence::after_thread_sync lies behind its wait", thread_name(f).c_str(), column + c);
  for (int i = 0; i < p.slots; i++) {
    int place = p.place[(f->linear % 32) * p.slots + i];
    uint32_t& cell = t.cells[(lane + place / p.columns) * 512 + column + place % p.columns];
    if (store) cell = registers[i]; else registers[i] = cell;
  }
  if (!store) return;
  f->stores_open = true;
  t.stores++;
  for (int c = 0; c < p.columns; c++) t.stored[column + c] = t.stores;
}
}  // namespace tw
