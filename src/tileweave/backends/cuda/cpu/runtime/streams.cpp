// What the host puts in order: streams, events and synchronisations, and the queue of launches and copies.
#include <time.h>

#include <algorithm>

#include "runtime.h"
#include "include/tileweave_host.h"

struct CUstream_st { int device; bool blocking; CUgraph_st* capture = nullptr; };
struct CUevent_st { double at; bool recorded; tw::Stamp known; CUevent_st* kept = nullptr; CUgraph_st* graph = nullptr; void* stream = nullptr; size_t after = 0; };
// What was captured: for each operation its stream and how to give it again; of each stream, how much it has and how much others waited for.
struct CUgraph_st {
  void* origin;
  std::vector<std::pair<void*, std::function<void(void*)>>> nodes;
  std::map<void*, size_t> given, joined;
  std::map<void*, cudaStream_t> own = {};                   // what stands for the other streams at a launch
};

namespace tw {
cudaError_t error_so_far();                                 // host.cpp
std::deque<StreamOp*> operations;

namespace {
// A line is a stream, the default one of a device included; an operation knows how many of each line come before it.
struct Line { unsigned number; Stamp known; };
struct Order { unsigned line; uint32_t count; Stamp known; };
std::map<std::pair<int, const void*>, Line> lines;
std::vector<uint32_t> counts;
std::vector<unsigned> free_lines;
std::vector<Order> orders(1);
Stamp host;                                                 // what the host has waited for

void join(Stamp& mine, const Stamp& theirs) {
  if (mine.size() < theirs.size()) mine.resize(theirs.size());
  for (size_t i = 0; i < theirs.size(); i++) mine[i] = std::max(mine[i], theirs[i]);
}
bool covers(const Stamp& s, const Order& o) { return o.line < s.size() && s[o.line] >= o.count; }
Line& line(int device, const void* stream) {
  auto [it, fresh] = lines.try_emplace({device, stream});
  if (!fresh) return it->second;
  if (free_lines.empty()) { free_lines.push_back(counts.size()); counts.push_back(0); }
  it->second.number = free_lines.back();
  free_lines.pop_back();
  return it->second;
}
int device_of(const void* stream) { return stream ? ((const CUstream_st*)stream)->device : device_now; }
double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
}  // namespace

// The default stream waits for the streams that block, and they for it.
static uint32_t enter(const void* stream) {
  int device = device_of(stream);
  Line& mine = line(device, stream);
  join(mine.known, host);
  if (!stream) {
    for (auto& [key, other] : lines) if (key.first == device && key.second && ((const CUstream_st*)key.second)->blocking) join(mine.known, other.known);
  } else if (((const CUstream_st*)stream)->blocking) {
    join(mine.known, line(device, nullptr).known);
  }
  if (mine.known.size() <= mine.number) mine.known.resize(mine.number + 1);
  mine.known[mine.number] = ++counts[mine.number];
  orders.push_back({mine.number, counts[mine.number], mine.known});
  return orders.size() - 1;
}
bool in_order(uint32_t first, uint32_t second) { return !first || (first != second && covers(orders[second].known, orders[first])); }
bool host_waited(uint32_t order) { return covers(host, orders[order]); }
void wait_for(const void* stream) { TW_ONE_HOST; drain(); join(host, line(device_of(stream), stream).known); }
void wait_for_device() {
  TW_ONE_HOST;
  drain();
  for (auto& [key, l] : lines) if (key.first == device_now) join(host, l.known);
}
bool work_is_pending() { return !operations.empty(); }
bool may_start(const StreamOp* op) {
  for (auto* o : operations) {
    if (o == op) break;
    if (in_order(o->order, op->order)) return false;
  }
  return true;
}
uint32_t enqueue_action(const void* stream, void (*action)(void*), void* data) {
  operations.push_back(new StreamOp{device_of(stream), nullptr, action, data, enter(stream)});
  return operations.back()->order;
}
void enqueue_grid(Grid* g) {
  operations.push_back(new StreamOp{device_now, g, nullptr, nullptr, enter(g->options.stream)});
  g->order_number = operations.back()->order;
}
bool captured(const void* stream, std::function<void(void*)> again) {
  CUgraph_st* g = stream ? ((const CUstream_st*)stream)->capture : nullptr;
  if (!g) return false;
  g->nodes.push_back({(void*)stream, std::move(again)});
  g->given[(void*)stream]++;
  return true;
}
}  // namespace tw
using namespace tw;

cudaError_t cudaDeviceSynchronize() { wait_for_device(); return error_so_far(); }
cudaError_t cudaDeviceReset() { wait_for_device(); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) { TW_ONE_HOST; *s = new CUstream_st{device_now, !(flags & cudaStreamNonBlocking)}; line(device_now, *s); return cudaSuccess; }
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  TW_ONE_HOST;
  drain();
  auto it = lines.find({device_of(s), s});
  if (it != lines.end()) { free_lines.push_back(it->second.number); lines.erase(it); }
  delete s;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (s && s->capture) return failed(cudaErrorStreamCaptureUnsupported);
  wait_for(s);
  return error_so_far();
}
cudaError_t cudaStreamQuery(cudaStream_t s) { return cudaStreamSynchronize(s); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  TW_ONE_HOST;
  if (s && e->graph && e->kept) {                           // an event of a capture takes the stream into it
    if (!s->capture) s->capture = e->graph;
    if (e->stream != s) e->graph->joined[e->stream] = std::max(e->graph->joined[e->stream], e->after);
    captured(s, [kept = e->kept](void* to) { cudaStreamWaitEvent((cudaStream_t)to, kept); });
    return cudaSuccess;
  }
  join(line(device_of(s), s).known, e->known);
  return cudaSuccess;
}
namespace { struct Callback { cudaStream_t stream; cudaStreamCallback_t with_status; cudaHostFn_t plain; void* data; }; }
static cudaError_t call_later(const Callback& c) {
  TW_ONE_HOST;
  if (captured(c.stream, [c](void* to) { Callback again = c; again.stream = (cudaStream_t)to; call_later(again); })) return cudaSuccess;
  enqueue_action(c.stream, [](void* p) { auto* c = (Callback*)p; if (c->plain) c->plain(c->data); else c->with_status(c->stream, error_so_far(), c->data); delete c; }, new Callback(c));
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned) { return call_later({s, f, nullptr, data}); }
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) { return call_later({s, nullptr, f, data}); }
cudaError_t cudaEventCreate(cudaEvent_t* e) { *e = new CUevent_st{0, false, {}}; return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return cudaEventCreate(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { TW_ONE_HOST; drain(); delete e; return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  TW_ONE_HOST;
  if (s && s->capture) {
    auto* kept = new CUevent_st{0, false, {}};
    captured(s, [kept](void* to) { cudaEventRecord(kept, (cudaStream_t)to); });
    e->kept = kept; e->graph = s->capture; e->stream = s; e->after = s->capture->given[s];
    return cudaSuccess;
  }
  e->graph = nullptr;
  uint32_t order = enqueue_action(s, [](void* e) { ((CUevent_st*)e)->at = now(); ((CUevent_st*)e)->recorded = true; }, e);
  e->known = orders[order].known;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { TW_ONE_HOST; drain(); join(host, e->known); return error_so_far(); }
cudaError_t cudaEventQuery(cudaEvent_t e) { return cudaEventSynchronize(e); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  drain();
  if (!a->recorded || !b->recorded) return cudaErrorInvalidValue;
  *ms = (float)(1e3 * (b->at - a->at));
  return cudaSuccess;
}

// --- graphs
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  if (!s) return failed(cudaErrorStreamCaptureUnsupported);  // the default stream cannot be captured
  if (s->capture) return failed(cudaErrorIllegalState);
  s->capture = new CUgraph_st{s};
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) { *status = s && s->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  TW_ONE_HOST;
  CUgraph_st* g = s ? s->capture : nullptr;
  *graph = nullptr;
  if (!g || g->origin != s) return failed(cudaErrorIllegalState);
  bool joined = true;
  for (auto& [key, l] : lines) if (key.second && ((CUstream_st*)key.second)->capture == g) ((CUstream_st*)key.second)->capture = nullptr;
  for (auto& [stream, n] : g->given) joined &= stream == s || g->joined[stream] == n;
  if (!joined) return failed(cudaErrorStreamCaptureUnjoined);
  *graph = g;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) {
  TW_ONE_HOST;
  if (!g) return failed(cudaErrorInvalidValue);
  for (auto& [stream, again] : g->nodes) {
    if (stream != g->origin && !g->own.count(stream)) cudaStreamCreateWithFlags(&g->own[stream], cudaStreamNonBlocking);
    again(stream == g->origin ? (void*)s : g->own[stream]);
  }
  return error_so_far();
}
