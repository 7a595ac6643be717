// Threads as fibers: a window of resident blocks, their order, what runs next, deadlocks, reports.
#include "runtime.h"
#include "include/tileweave_host.h"

#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace tw {
TW_THREAD Fiber* current = nullptr;
std::recursive_mutex one_host;
bool checking = false, proxies = false;
char* shared_arena = nullptr;
unsigned resident = 0;
TW_THREAD int device_now = 0;
std::string refusal;
std::vector<Block*> slots;

namespace {
constexpr size_t STACK = 256 << 10;
enum Order { FORWARD, REVERSED, RANDOM };
Order order = FORWARD;
u64 seed = 1;
unsigned window = 8;
FILE* reports = nullptr;
std::set<std::string> reported;
void* scheduler_stack = nullptr;
std::deque<Fiber*> ready;
std::vector<Fiber*> spinners;
std::deque<Task> engine;
std::vector<char*> free_stacks;
char *stacks_low = nullptr, *stacks_high = nullptr;
uint32_t next_uid = 1;
u64 progresses = 0, idle_yields = 0;

u64 random_bits() { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed * 0x2545F4914F6CDD1Dull; }

asm(R"(
.text
.type tw_switch, @function
tw_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
extern "C" void tw_switch(void** save, void* load) asm("tw_switch");

void to_scheduler() { tw_switch(&current->stack_pointer, scheduler_stack); }

void fiber_main() {
  Fiber* f = current;
  f->block->grid->call(f->block->grid->state);
  f = current;
  auto left = [&](const Task& t) { if (!t->read) fail("bulk-left", t->pc, "%s ends before %s has read shared memory: cp.async.bulk.commit_group and wait_group come before", thread_name(f).c_str(), t->what.c_str()); };
  for (auto& g : f->bulk_groups) for (auto& t : g) left(t);
  for (auto& t : f->bulk) left(t);
  for (auto* groups : {&f->copy_groups, &f->bulk_groups})
    for (auto& g : *groups) for (auto& t : g) run_task(t);
  for (auto& t : f->copies) run_task(t);
  for (auto& t : f->bulk) run_task(t);
  f->state = DONE;
  progress();
  lane_left(f);
  if (!--f->block->live) tensor_left(f->block);
  barrier_of_block_left(f->block);
  to_scheduler();
  abort();
}

char* new_stack() {
  if (free_stacks.empty()) {
    constexpr size_t many = 256;
    char* p = (char*)mmap(nullptr, many * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail("resources", nullptr, "no memory for the stacks of %zu threads", many);
    for (size_t i = many; i-- > 0;) { mprotect(p + i * STACK, PAGE, PROT_NONE); free_stacks.push_back(p + i * STACK); }
    if (!stacks_low || p < stacks_low) stacks_low = p;
    if (p + many * STACK > stacks_high) stacks_high = p + many * STACK;
  }
  char* s = free_stacks.back();
  free_stacks.pop_back();
  return s;
}

Fiber* new_fiber(Block* b, unsigned linear) {
  Fiber* f = new Fiber();
  dim3 e = b->grid->options.block;
  f->block = b; f->linear = linear; f->state = READY;
  f->index = {linear % e.x, linear / e.x % e.y, linear / e.x / e.y};
  f->stack = new_stack();
  void** top = (void**)(f->stack + STACK - 64);
  *--top = nullptr;
  *--top = (void*)fiber_main;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  f->stack_pointer = top;
  return f;
}

// Blocks of one cluster, in the order of the launch, enter together.
bool admit(Grid* g) {
  unsigned free_places = 0;
  for (auto* s : slots) free_places += !s;
  if (g->next == g->clusters || free_places < g->cluster_size || g->live + g->cluster_size > g->places) return false;
  unsigned cluster = g->order[g->next++];
  dim3 c = g->options.cluster, n = g->options.grid;
  unsigned cx = n.x / c.x, cy = n.y / c.y;
  uint3 origin = {cluster % cx * c.x, cluster / cx % cy * c.y, cluster / cx / cy * c.z};
  auto* together = new std::vector<Block*>();
  auto* barrier = new NamedBarrier();
  std::vector<Fiber*> fibers;
  for (unsigned r = 0; r < g->cluster_size; r++) {
    Block* b = new Block();
    b->grid = g; b->uid = next_uid++; b->rank = r; b->cluster = together; b->cluster_barrier = barrier;
    b->index = {origin.x + r % c.x, origin.y + r / c.x % c.y, origin.z + r / c.x / c.y};
    b->slot = std::find(slots.begin(), slots.end(), nullptr) - slots.begin();
    slots[b->slot] = b;
    b->shared = shared_arena + b->slot * SHARED_BYTES;
    memset(b->shared, 0xFF, SHARED_BYTES);
    b->threads = b->live = g->threads;
    b->valid = nullptr;
    together->push_back(b);
    for (unsigned t = 0; t < g->threads; t++) b->fibers.push_back(new_fiber(b, t));
    for (unsigned w = 0; w * 32 < g->threads; w++) {
      unsigned count = std::min(32u, g->threads - 32 * w);
      Warp warp; warp.block = b; warp.first = 32 * w; warp.count = count; warp.alive = count == 32 ? ~0u : (1u << count) - 1;
      b->warps.push_back(std::move(warp));
    }
    b->groups.resize((g->threads + 127) / 128);
    check_block(b);
    fibers.insert(fibers.end(), b->fibers.begin(), b->fibers.end());
    g->live++;
  }
  barrier->expected = g->threads * g->cluster_size;
  if (order == REVERSED) std::reverse(fibers.begin(), fibers.end());
  for (auto* f : fibers) ready.push_back(f);
  return true;
}

void leave(Block* b) {
  for (auto* other : *b->cluster) if (other->live) return;   // a cluster leaves whole
  for (auto it = engine.begin(); it != engine.end();) {      // nothing may still write its memory
    auto t = *it;
    if (t->block && t->block->cluster == b->cluster) { it = engine.erase(it); run_task(t); } else ++it;
  }
  auto* together = b->cluster;
  delete b->cluster_barrier;
  for (auto* other : *together) {
    check_block_end(other);
    for (auto* f : other->fibers) { free_stacks.push_back(f->stack); delete f; }
    slots[other->slot] = nullptr;
    other->grid->live--;
    delete other;
  }
  delete together;
}

void run_fiber(Fiber* f) {
  current = f;
  f->steps = 0;
  tw_switch(&scheduler_stack, f->stack_pointer);
  current = nullptr;
  if (f->state == DONE && f->block->live == 0) leave(f->block);
}

Fiber* take() {
  size_t i = order == RANDOM ? random_bits() % ready.size() : 0;
  Fiber* f = ready[i];
  if (order == RANDOM) { ready[i] = ready.back(); ready.pop_back(); } else ready.pop_front();
  return f;
}

void describe_deadlock(std::vector<Grid*>& running) {
  std::string text;
  const void* pc = nullptr;
  int shown = 0, more = 0;
  std::map<std::string, std::vector<Fiber*>> by;
  for (auto* b : slots) if (b) for (auto* f : b->fibers) if (f->state == PARKED) {
    auto what = std::string(f->waits);
    if (what == "mbarrier") {
      auto& m = b->mbarriers[(uint32_t)f->wait_for];
      what = format("mbarrier at shared +%u of block (%u,%u,%u): phase %u is open, %u of %u arrivals and %ld bytes are missing, waited for parity %llu", (unsigned)f->wait_for,
                    b->index.x, b->index.y, b->index.z, m.phase, m.pending, m.count, m.bytes, (unsigned long long)f->wait_parity);
    } else if (what == "barrier") {
      auto& n = b->barriers[f->wait_for];
      what = format("barrier %u of block (%u,%u,%u): %u of %u threads have arrived", (unsigned)f->wait_for, b->index.x, b->index.y, b->index.z, n.arrived, n.expected);
    } else if (what == "warp") {
      what = format("lanes of mask 0x%08x of its warp", (unsigned)f->wait_for);
    }
    by[what].push_back(f);
  }
  for (auto& [what, fibers] : by) {
    if (!pc) pc = fibers[0]->pc;
    if (shown++ < 6) text += format("; %s%s wait%s for %s", thread_name(fibers[0]).c_str(), fibers.size() > 1 ? format(" and %zu more", fibers.size() - 1).c_str() : "", fibers.size() > 1 ? "" : "s", what.c_str());
    else more++;
  }
  for (auto* g : running) if (g->next < g->clusters) text += "; blocks that have not started cannot: CUDA promises no block order, so only a cooperative launch may wait for them";
  fail("deadlock", pc, "no thread can go on%s", text.c_str());
}

void start(Grid* g) {
  g->order.resize(g->clusters);
  for (unsigned i = 0; i < g->clusters; i++) g->order[i] = order == REVERSED ? g->clusters - 1 - i : i;
  if (order == RANDOM) for (unsigned i = g->clusters; i > 1; i--) std::swap(g->order[i - 1], g->order[random_bits() % i]);
  unsigned wanted = std::max(window, g->cluster_size);
  if (g->options.cooperative) wanted = std::max(wanted, g->clusters * g->cluster_size);
  unsigned used = 0;                                       // each grid has places of its own: none starves another
  for (auto* op : operations) if (op->grid && op->started && op->grid != g) used += op->grid->places;
  g->places = wanted;
  if (used + wanted > resident) fail("resources", nullptr, "%u blocks of kernel %s cannot be resident at once: the window holds %u", wanted, g->options.name, resident - used);
  if (slots.size() < used + wanted) slots.resize(used + wanted, nullptr);
  g->first_uid = next_uid;
  check_start(g);
}
}  // namespace

// --- the loop: run what is ready; when nothing is, one step of an asynchronous unit; when there is none, a deadlock
static void own_signal_stack() {                           // for the faults of this thread of the host, also on a full stack
  static thread_local char* alternate = nullptr;
  if (alternate) return;
  stack_t s{};
  s.ss_sp = alternate = new char[64 << 10]; s.ss_size = 64 << 10;
  sigaltstack(&s, nullptr);
}
void drain() {
  if (current) return;
  TW_ONE_HOST;
  own_signal_stack();
  static bool inside = false;
  if (inside) return;
  inside = true;
  while (!operations.empty()) {
    std::vector<Grid*> running;
    for (size_t i = 0; i < operations.size(); i++) {
      auto* op = operations[i];
      if (!op->started && !may_start(op)) continue;
      if (!op->started) {
        op->started = true;
        if (op->grid) start(op->grid);
      }
      if (!op->grid) {
        op->action(op->data);
        operations.erase(operations.begin() + i);
        delete op;
        running.clear();
        i = -1;
        continue;
      }
      running.push_back(op->grid);
    }
    if (running.empty()) continue;
    for (;;) {
      bool finished = false, admitted = true;
      while (admitted) { admitted = false; for (auto* g : running) admitted |= admit(g); }
      for (auto* g : running) finished |= g->next == g->clusters && !g->live;
      if (finished) break;
      if (ready.empty() && spinners.empty() && engine.empty()) describe_deadlock(running);
      bool stuck = ready.empty();
      if (!stuck) { run_fiber(take()); continue; }
      if (!engine.empty()) {
        size_t i = order == RANDOM ? random_bits() % engine.size() : order == REVERSED ? engine.size() - 1 : 0;
        auto t = engine[i];
        engine.erase(engine.begin() + i);
        run_task(t);
      } else if (idle_yields > 20000 + 100 * spinners.size()) {
        fail("deadlock", spinners[0]->pc, "%zu threads spin and nothing changes any more; one is %s", spinners.size(), thread_name(spinners[0]).c_str());
      }
      for (auto* f : spinners) ready.push_back(f);
      spinners.clear();
    }
    for (size_t i = 0; i < operations.size(); i++) {
      auto* op = operations[i];
      Grid* g = op->grid;
      if (!g || !op->started || g->next != g->clusters || g->live) continue;
      for (auto it = engine.begin(); it != engine.end();) { auto t = *it; if (t->device == g->device) { it = engine.erase(it); run_task(t); } else ++it; }
      check_grid_end(g, running.size() < 2 || operations.size() == 1);
      g->drop(g->state);
      delete g;
      delete op;
      operations.erase(operations.begin() + i--);
    }
  }
  inside = false;
}

void progress() { progresses++; idle_yields = 0; }
void changed() { progress(); }

void park(const char* waits, u64 what, const void* pc) {
  current->state = PARKED; current->waits = waits; current->wait_for = what; current->pc = pc;
  to_scheduler();
}
void wake(Fiber* f) {
  if (f->state != PARKED) return;
  f->state = READY;
  progress();
  ready.push_back(f);
}
void yield(bool spin) {
  if (!current) return;
  if (spin) { idle_yields++; spinners.push_back(current); } else ready.push_back(current);
  to_scheduler();
}
void pause() { current->pc = TW_PC; yield(true); }

uint32_t new_unit() { return next_uid++; }

Task submit(Task t) { t->device = t->block->grid->device; engine.push_back(t); return t; }
void run_task(Task& t) {
  if (t->done) return;
  t->done = true;
  t->run(*t);
  progress();
}

void need_host(const char* kernel) {
  if (current) fail("unsupported", TW_PC, "%s launches %s: launches by kernels have no emulation", thread_name(current).c_str(), kernel);
}
int enqueue(const LaunchOptions& o, void* state, void (*call)(void*), void (*drop)(void*), const void* kernel) {
  TW_ONE_HOST;
  Grid* g = new Grid();
  g->options = o; g->state = state; g->call = call; g->drop = drop; g->device = device_now;
  g->threads = o.block.x * o.block.y * o.block.z;
  g->cluster_size = o.cluster.x * o.cluster.y * o.cluster.z;
  g->shared_top = (o.shared + 1024 + 1023) / 1024 * 1024;
  auto &e = o.block, &n = o.grid, &c = o.cluster;
  int error = 0;
  auto refuse = [&](int number, const std::string& why) { error = number; refusal = format("kernel %s is not launched: %s", o.name, why.c_str()); };
  if (!g->threads || g->threads > 1024 || e.z > 64) refuse(cudaErrorInvalidConfiguration, format("a block of %u x %u x %u threads", e.x, e.y, e.z));
  else if (!n.x || !n.y || !n.z || n.x > 0x7FFFFFFF || n.y > 65535 || n.z > 65535) refuse(cudaErrorInvalidConfiguration, format("a grid of %u x %u x %u blocks", n.x, n.y, n.z));
  else if (!g->cluster_size || g->cluster_size > 16 || n.x % c.x || n.y % c.y || n.z % c.z) refuse(cudaErrorInvalidConfiguration, format("clusters of %u x %u x %u blocks in a grid of %u x %u x %u", c.x, c.y, c.z, n.x, n.y, n.z));
  else if (o.shared > SHARED_LIMIT || !dynamic_allowed(kernel, o.shared)) refuse(cudaErrorInvalidValue, format("%zu bytes of dynamic shared memory, more than cudaFuncSetAttribute allowed", o.shared));
  if (error) { drop(state); delete g; return error; }
  auto again = [=](void* to) { auto on = o; on.stream = to; enqueue(on, state, call, [](void*) {}, kernel); };
  if (captured(o.stream, again)) { delete g; return 0; }
  g->clusters = n.x * n.y * n.z / g->cluster_size;
  enqueue_grid(g);
  return 0;
}

// --- where a thread is
#define OUTSIDE(what) if (!current) fail("host-use", TW_PC, "%s is read outside a kernel", what)
uint3 thread_index() noexcept { OUTSIDE("threadIdx"); return current->index; }
uint3 block_index() noexcept { OUTSIDE("blockIdx"); return current->block->index; }
dim3 block_extent() noexcept { OUTSIDE("blockDim"); return current->block->grid->options.block; }
dim3 grid_extent() noexcept { OUTSIDE("gridDim"); return current->block->grid->options.grid; }

u64 special(const char* name) {
  Fiber* f = current;
  Block* b = f->block;
  dim3 c = b->grid->options.cluster, g = b->grid->options.grid, t = b->grid->options.block;
  std::string s = name;
  unsigned lane = f->linear % 32;
  if (s == "%laneid") return lane;
  if (s == "%warpid") return f->linear / 32;
  if (s == "%nwarpid") return (b->threads + 31) / 32;
  if (s == "%smid") return b->slot;
  if (s == "%nsmid") return slots.size();
  if (s == "%lanemask_eq") return 1u << lane;
  if (s == "%lanemask_lt") return (1u << lane) - 1;
  if (s == "%lanemask_le") return (2u << lane) - 1;
  if (s == "%lanemask_gt") return ~((2u << lane) - 1);
  if (s == "%lanemask_ge") return ~((1u << lane) - 1);
  if (s == "%cluster_ctarank") return b->rank;
  if (s == "%cluster_nctarank") return b->grid->cluster_size;
  if (s == "%clock" || s == "%clock64" || s == "%globaltimer" || s == "%clock_hi") { static u64 ticks = 0; return ticks += 32; }
  if (s == "%dynamic_smem_size") return b->grid->options.shared;
  char axis = s.back();
  auto pick = [&](unsigned x, unsigned y, unsigned z) -> u64 { return axis == 'x' ? x : axis == 'y' ? y : z; };
  std::string base = s.substr(0, s.size() - 2);
  if (base == "%tid") return pick(f->index.x, f->index.y, f->index.z);
  if (base == "%ntid") return pick(t.x, t.y, t.z);
  if (base == "%ctaid") return pick(b->index.x, b->index.y, b->index.z);
  if (base == "%nctaid") return pick(g.x, g.y, g.z);
  if (base == "%cluster_ctaid") return pick(b->rank % c.x, b->rank / c.x % c.y, b->rank / c.x / c.y);
  if (base == "%cluster_nctaid") return pick(c.x, c.y, c.z);
  if (base == "%clusterid") return pick(b->index.x / c.x, b->index.y / c.y, b->index.z / c.z);
  if (base == "%nclusterid") return pick(g.x / c.x, g.y / c.y, g.z / c.z);
  fail("unsupported", TW_PC, "special register %s", name);
}

bool on_stack(const void* p) { return (char*)p >= stacks_low && (char*)p < stacks_high; }

// --- reports
std::string format(const char* text, ...) {
  char line[2048];
  va_list args;
  va_start(args, text);
  vsnprintf(line, sizeof line, text, args);
  va_end(args);
  return line;
}
std::string thread_name(const Grid* g, uint3 b, unsigned linear) {
  dim3 e = g->options.block;
  return format("thread (%u,%u,%u) of block (%u,%u,%u)", linear % e.x, linear / e.x % e.y, linear / e.x / e.y, b.x, b.y, b.z);
}
std::string thread_name(const Fiber* f) { return f ? thread_name(f->block->grid, f->block->index, f->linear) : "the host"; }

static void report(const char* kind, const char* rule, const void* pc, const void* other, const std::string& text) {
  if (!reported.insert(format("%s %p %p", rule, pc, other)).second || reported.size() > 200) return;
  if (!reports) { fprintf(stderr, "%s: %s\n", rule, text.c_str()); return; }
  std::string safe;
  for (char c : text) { if (c == '"' || c == '\\') safe += '\\'; safe += c < ' ' ? ' ' : c; }
  fprintf(reports, "{\"kind\": \"%s\", \"rule\": \"%s\", \"pc\": %llu, \"other\": %llu, \"text\": \"%s\"}\n", kind, rule, (unsigned long long)pc, (unsigned long long)other, safe.c_str());
  fflush(reports);
}
void fail(const char* rule, const void* pc, const char* text, ...) {
  char line[4096];
  va_list args;
  va_start(args, text);
  vsnprintf(line, sizeof line, text, args);
  va_end(args);
  check_doubts();
  report("error", rule, pc, nullptr, line);
  fflush(stdout);
  _exit(99);
}
void note(const char* rule, const void* pc, const void* other, const char* text, ...) {
  char line[4096];
  va_list args;
  va_start(args, text);
  vsnprintf(line, sizeof line, text, args);
  va_end(args);
  report(rule[0] == '~' ? "note" : "error", rule[0] == '~' ? rule + 1 : rule, pc, other, line);
  if (!checking && rule[0] != '~') { fflush(stdout); _exit(99); }
}
void trap(const char* what) { fail("trap", TW_PC, "%s stopped the kernel: %s", thread_name(current).c_str(), what); }

// --- faults and the time limit
// Where the program itself was: the first frame that is not in the runtime or a library.
static const void* program_pc(const ucontext_t* context) {
  static char *low = nullptr, *high = nullptr;
  if (!low) dl_iterate_phdr([](dl_phdr_info* info, size_t, void*) {
    for (int i = 0; i < info->dlpi_phnum; i++) if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
      low = (char*)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
      high = low + info->dlpi_phdr[i].p_memsz;
    }
    return 1;                                              // only the first: the program
  }, nullptr);
  char* pc = (char*)context->uc_mcontext.gregs[REG_RIP] + 1;
  char** frame = (char**)context->uc_mcontext.gregs[REG_RBP];
  char* stack = (char*)context->uc_mcontext.gregs[REG_RSP];
  for (int i = 0; i < 32 && (pc < low || pc >= high); i++) {
    if ((char*)frame < stack || (char*)frame > stack + STACK || (u64)frame % 8) break;
    pc = frame[1];
    frame = (char**)frame[0];
  }
  return pc;
}
static void on_fault(int number, siginfo_t* info, void* context) {
  const void* pc = program_pc((const ucontext_t*)context);
  char* at = (char*)info->si_addr;
  std::string who = thread_name(current);
  if (number == SIGALRM) fail("time-limit", pc, "the program still runs; %s is here", who.c_str());
  if (number == SIGFPE) fail("division", pc, "%s divides by zero", who.c_str());
  if (current && at >= current->stack - (long)STACK && at < current->stack + PAGE) fail("resources", pc, "%s overflows its stack of %zu bytes", who.c_str(), STACK);
  for (auto* a : allocations())
    if (at >= a->region && at < a->region + a->region_bytes) {
      if (!a->members.empty()) fail("multicast", pc, "%s accesses %s, a multicast address, by what is no multimem instruction", who.c_str(), a->name.c_str());
      if (a->freed) fail("use-after-free", pc, "%s uses %s after it was freed", who.c_str(), a->name.c_str());
      long past = at - (a->base + a->bytes);
      fail("out-of-bounds", pc, "%s accesses %s %ld bytes %s", who.c_str(), a->name.c_str(), past >= 0 ? past : a->base - at, past >= 0 ? "past its end" : "before its beginning");
    }
  if (!at || info->si_code == SI_KERNEL) fail("address", pc, "%s accesses an address that is null, misaligned or none", who.c_str());
  fail("address", pc, "%s accesses address %p, which no buffer holds", who.c_str(), at);
}

static unsigned number(const char* name, unsigned otherwise) { const char* s = getenv(name); return s ? strtoul(s, nullptr, 10) : otherwise; }
__attribute__((constructor)) static void begin() {
  checking = number("TW_CHECK", 0);
  if (const char* s = getenv("TW_REPORT")) reports = fopen(s, "w");
  if (const char* s = getenv("TW_ORDER")) {
    order = !strcmp(s, "forward") ? FORWARD : !strcmp(s, "reversed") ? REVERSED : RANDOM;
    seed = order == RANDOM ? 2 * strtoull(s, nullptr, 10) + 88172645463325253ull : 1;
  }
  window = number("TW_WINDOW", 8);
  resident = 2048;
  shared_arena = (char*)mmap(nullptr, resident * SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  shared_arena = (char*)(((u64)shared_arena + 1023) / 1024 * 1024);
  resident--;
  own_signal_stack();
  struct sigaction act{};
  act.sa_sigaction = on_fault; act.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int n : {SIGSEGV, SIGBUS, SIGFPE, SIGALRM}) sigaction(n, &act, nullptr);
  if (unsigned seconds = number("TW_SECONDS", 0)) {
    itimerval t{};
    t.it_value.tv_sec = seconds;
    setitimer(ITIMER_REAL, &t, nullptr);
  }
}
__attribute__((destructor)) static void end() { drain(); report_unseen(); }
}  // namespace tw
