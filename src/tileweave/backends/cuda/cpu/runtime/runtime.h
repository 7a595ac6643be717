// The state of the simulation: launches, blocks, threads as fibers, what they wait for, and what checking knows.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "include/tileweave_device.h"

namespace tw {
struct Block; struct Fiber; struct Grid;

// --- vector clocks: per block one array, one entry per thread and per asynchronous slot, shared while equal
using Clock = uint32_t;
struct Lanes { uint32_t block; std::vector<Clock> at; };
struct Clocks {
  std::vector<std::shared_ptr<Lanes>> parts;
  Clock get(uint32_t block, unsigned lane) const {
    for (auto& p : parts) if (p->block == block) return lane < p->at.size() ? p->at[lane] : 0;
    return 0;
  }
  void join(const Clocks& other);
  void set(uint32_t block, unsigned lane, Clock c, size_t lanes);
};

// --- one step of an asynchronous unit, run when no thread can, or when a wait demands it
struct Async { std::string what; void (*run)(Async&); Block* block; int device; u64 a, b, c; unsigned bytes; int rank, at[5]; int multicast; unsigned slot; Clock clock;
               Clocks known, proxy; const void* pc; Fiber* fiber; std::vector<uint8_t> data, map; bool done = false, read = false; };
using Task = std::shared_ptr<Async>;

struct Meeting { unsigned mask; unsigned arrived = 0; int op; void* record[32]; Clocks clocks; };
struct GroupMeeting { unsigned arrived = 0; void* record[128]; const Product* product = nullptr; };
struct Accumulator { const Product* product; std::vector<double> value; void* registers[128][128]; int pending[128] = {}; };
struct GroupOp { const Product* product; std::shared_ptr<Accumulator> d; bool keep; std::vector<double> a; u64 desc_a, desc_b; bool trans_a, trans_b; int scale_a, scale_b; const void* pc; Clocks known, proxy; unsigned slot; Clock clock; };
struct GroupBatch { std::vector<GroupOp> ops; bool done = false; };
struct WarpGroup {
  GroupMeeting meeting;
  std::vector<GroupOp> open;
  std::vector<std::shared_ptr<GroupBatch>> batches;
  std::map<void*, std::shared_ptr<Accumulator>> accumulators;
 
};
struct Warp { Block* block; unsigned first, count, alive; std::vector<std::unique_ptr<Meeting>> meetings; const void* asking[32] = {}; unsigned together[32] = {}; };

struct NamedBarrier { unsigned expected = 0, arrived = 0; std::vector<Fiber*> waiting; Clocks clocks, proxy, observed; int votes = 0, count = 0; };
struct MBarrier {
  unsigned count = 0, pending = 0, phase = 0; long bytes = 0; unsigned expected_bytes = 0;
  bool fenced = false; uint32_t init_block = 0; unsigned init_lane = 0; Clock init_clock = 0; const void* init_pc = nullptr;
  bool seen = true;                       // a wait has observed the last phase
  unsigned arrivals = 0; const void* arrive_pc = nullptr;
  std::vector<Fiber*> waiting;
  Clocks clocks, proxy, done, done_proxy;
};

enum State : uint8_t { READY, PARKED, DONE };
struct Fiber {
  void* stack_pointer; char* stack; Block* block; uint3 index; unsigned linear; State state;
  const char* waits = nullptr; u64 wait_for = 0; u64 wait_parity = 0; const void* pc = nullptr;
  std::vector<Task> copies, bulk; std::deque<std::vector<Task>> copy_groups, bulk_groups;
  unsigned batches_seen = 0, batches_waited = 0, cluster_phase = 0; bool wgmma_fenced = false; u64 tensor_after = 0, stores_after = 0; bool stores_open = false;
  unsigned steps = 0;                     // accesses since it was switched to
  Clock clock = 1; Clocks known, proxy, alias, fenced, fenced_block, pending, pending_block;
  Clocks fenced_total, observed;          // of fences in the one order of all, __threadfence() and fence.sc: what barriers carry on
};
struct Block {
  Grid* grid; uint3 index; uint32_t uid; unsigned slot, rank, live, threads; char* shared; uint8_t* valid; struct Cell* cells; size_t shared_top;
  std::vector<Fiber*> fibers; std::vector<Warp> warps; std::vector<WarpGroup> groups;
  NamedBarrier barriers[16]; NamedBarrier* cluster_barrier; std::unordered_map<uint32_t, MBarrier> mbarriers;
  std::shared_ptr<struct TensorMemory> tensor;
  std::vector<Block*>* cluster; unsigned next_slot = 0; std::vector<Clock> slots;
};
struct SharedVariable { std::string name; size_t offset, bytes; };
struct Grid {
  LaunchOptions options; void* state; void (*call)(void*); void (*drop)(void*);
  int device; unsigned threads, clusters, cluster_size, next = 0, live = 0; std::vector<unsigned> order;
  std::map<const void*, SharedVariable> variables; size_t shared_top; std::string dynamic_name = "dynamic shared memory";
  uint32_t first_uid, order_number = 0; unsigned places = 0; NamedBarrier barrier;
};

struct Allocation { char* base; size_t bytes; std::string name; const void* pc; int device; bool managed, host; uint8_t* valid; struct Cell* cells; char* region; size_t region_bytes; bool freed, heap = false; std::vector<char*> members = {}; };   // members: a multicast address, of the memory of these

#define TW_THREAD thread_local __attribute__((tls_model("initial-exec")))
extern TW_THREAD Fiber* current;   // null on the host
extern std::recursive_mutex one_host;   // threads of the host take turns; whoever waits runs what was given
#define TW_ONE_HOST std::lock_guard<std::recursive_mutex> tw_one_host(tw::one_host)
extern bool checking;           // the program is instrumented
extern bool proxies;            // an asynchronous operation or a proxy fence was seen
constexpr size_t SHARED_BYTES = 256 << 10, PAGE = 4096, SHARED_LIMIT = 232448, ASYNC_SLOTS = 64;
bool copy_is_pending(const Allocation*, bool write);   // into this pinned memory, or (before it is written) from it

// streams.cpp
using Stamp = std::vector<uint32_t>;     // how many operations of each stream come before
struct StreamOp { int device; Grid* grid; void (*action)(void*); void* data; uint32_t order; bool started = false; };
extern std::deque<StreamOp*> operations; // not yet run
bool work_is_pending();                  // whether launches or copies wait for a synchronisation
bool may_start(const StreamOp*);
uint32_t enqueue_action(const void* stream, void (*action)(void*), void* data);
void enqueue_grid(Grid*);
bool in_order(uint32_t first, uint32_t second);   // whether streams, events or the host order two operations
bool host_waited(uint32_t order);
void wait_for(const void* stream), wait_for_device();
bool captured(const void* stream, std::function<void(void* stream)> again);   // whether the stream only keeps it, for a graph

// host.cpp
extern std::string refusal;              // why the last launch was refused
void report_unseen();
void barrier_opened(Block*);
extern char* shared_arena; extern unsigned resident;

// memory.cpp
Block* block_of_shared(const void* p);
void need_running(const Block* other, const void* pc, const char* what);   // a block of the cluster whose memory is reached
std::vector<Allocation*>& allocations();
Allocation* allocation_at(const void* p);
Allocation* allocate(size_t bytes, const char* name, bool managed, bool host, const void* pc);
void deallocate(Allocation*);

// fibers.cpp
extern std::vector<Block*> slots;        // the resident blocks, by their place in the shared arena
void park(const char* waits, u64 what, const void* pc);
void wake(Fiber*);
void yield(bool spin);
void drain();
void progress();
uint32_t new_unit();                      // a number for what is no block: a copy
Task submit(Task);
void run_task(Task&);
std::string thread_name(const Fiber*);
std::string thread_name(const Grid*, uint3 block, unsigned linear);
[[noreturn]] void fail(const char* rule, const void* pc, const char* format, ...) __attribute__((format(printf, 3, 4)));
void note(const char* rule, const void* pc, const void* other, const char* format, ...) __attribute__((format(printf, 4, 5)));
std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
extern TW_THREAD int device_now;   // of the thread of the host
bool dynamic_allowed(const void* kernel, size_t bytes);
bool on_stack(const void* p);

// tiles.cpp
void tensor_left(Block*);       // the threads of a block have left
// sync.cpp
void lane_left(Fiber*);
void barrier_of_block_left(Block*);
MBarrier& mbarrier(u64 at, const char* use, const void* pc, Block** owner = nullptr);
void complete_bytes(MBarrier&, long bytes, const Async*);

// check.cpp
void check_access(const void* p, size_t size, int flags, const void* pc);
void check_async(Async&, const void* p, size_t size, bool write, bool atomic = false);   // by an asynchronous unit
void check_copy(const void* to, const void* from, size_t n, uint32_t order, const void* pc);
void check_move(void* to, const void* from, size_t n, const void* pc);   // memcpy, memmove and memset (from nothing) of a kernel
std::string unwaited(const void* p, size_t n, bool write);               // what did touch it and was not waited for by the host
void check_start(Grid*); void check_block(Block*); void check_block_end(Block*); void check_grid_end(Grid*, bool last);
void released(Fiber*);                                              // its clock moves on
Clocks snapshot(Fiber*);                                            // what it knows, its own clock included
void check_doubts();                                                // reports the races that no comparison has settled
void take_slot(Async&);
void make_valid(const void* p, size_t n);
void check_registers(Fiber*, const void* p, size_t n);
}  // namespace tw

#define TW_PC __builtin_return_address(0)
