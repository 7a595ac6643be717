// The functions of the host: memory, copies, errors, devices, tensor maps.
#include "include/cuda_runtime.h"
#include "include/cuda.h"

#include <sys/mman.h>

#include <algorithm>
#include <set>

#include "runtime.h"
#include "tileweave_rules.h"   // generated from the atom table

namespace {
using namespace tw;
thread_local cudaError_t last_error = cudaSuccess;
int devices = 1;
std::map<const void*, int> dynamic_limits;
std::vector<std::pair<const void*, std::string>> unseen;   // launches that were refused while no error has been asked for
cudaError_t result(cudaError_t e) { if (e != cudaSuccess) last_error = e; return e; }

struct Copy { char* to; const char* from; size_t n, rows, to_pitch, from_pitch; int value; const void* pc; uint32_t order = 0; std::vector<char> staged = {}; };
void need_range(const char* p, size_t n, const char* what, const void* pc) {
  Allocation* a = allocation_at(p);
  if (!a) return;
  if (a->freed) fail("use-after-free", pc, "%s uses %s after it was freed", what, a->name.c_str());
  if (p < a->base || p + n > a->base + a->bytes)
    fail("out-of-bounds", pc, "%s of %zu bytes reaches %ld bytes past the end of %s", what, n, (long)(p + n - (a->base + a->bytes)), a->name.c_str());
}
std::vector<Copy*> pending_copies;
void run_copy(void* data) {
  Copy& c = *(Copy*)data;
  pending_copies.erase(std::find(pending_copies.begin(), pending_copies.end(), &c));
  for (size_t r = 0; r < c.rows; r++) {
    char* to = c.to + r * c.to_pitch;
    const char* from = c.from ? c.from + r * c.from_pitch : nullptr;
    need_range(to, c.n, "a copy", c.pc);
    Allocation *a = allocation_at(to), *b = nullptr;
    if (from) { need_range(from, c.n, "a copy", c.pc); b = allocation_at(from); memmove(to, from, c.n); } else memset(to, c.value, c.n);
    if (checking && a && a->valid) {
      if (b && b->valid) memmove(a->valid + (to - a->base), b->valid + (from - b->base), c.n);
      else memset(a->valid + (to - a->base), 1, c.n);
    }
    if (checking) check_copy(to, from, c.n, c.order, c.pc);
  }
  delete &c;
}
cudaError_t copy(const Copy& c, cudaMemcpyKind kind, void* stream, bool wait) {
  TW_ONE_HOST;
  if (captured(stream, [=](void* to) { copy(c, kind, to, false); })) return cudaSuccess;
  auto on_device = [](const void* p) { Allocation* a = allocation_at(p); return a && !a->host && !a->managed; };
  if (c.from && kind == cudaMemcpyHostToDevice && on_device(c.from)) fail("copy-kind", c.pc, "cudaMemcpyHostToDevice from an address of the device");
  if (c.from && kind == cudaMemcpyDeviceToHost && on_device(c.to)) fail("copy-kind", c.pc, "cudaMemcpyDeviceToHost to an address of the device");
  if (c.from && kind == cudaMemcpyHostToDevice && !allocation_at(c.to) && on_device(c.from)) return result(cudaErrorInvalidValue);
  pending_copies.push_back(new Copy(c));
  Copy& mine = *pending_copies.back();
  bool from_pageable = c.from && !allocation_at(c.from), to_pageable = !allocation_at(c.to);
  if (from_pageable && !wait) {                              // pageable memory is read before the call returns
    for (size_t r = 0; r < c.rows; r++) mine.staged.insert(mine.staged.end(), c.from + r * c.from_pitch, c.from + r * c.from_pitch + c.n);
    mine.from = mine.staged.data();
    mine.from_pitch = c.n;
  }
  mine.order = enqueue_action(stream, run_copy, &mine);
  auto pinned = [](const void* p) { Allocation* a = allocation_at(p); return a && a->host; };
  if (to_pageable || (wait && c.from && (from_pageable || pinned(c.from) || pinned(c.to)))) wait_for(stream);
  else if (wait) drain();                                    // copies within a device, and memset, return before they are done
  return cudaSuccess;
}
}  // namespace
bool tw::copy_is_pending(const Allocation* a, bool write) {
  if (a->region == a->base) return false;                    // a variable: copies of pageable memory wait
  auto inside = [&](const char* p) { return p >= a->base && p < a->base + a->bytes; };
  for (auto* c : pending_copies) if (inside(c->to) || (write && c->from && inside(c->from))) return true;
  return false;
}

cudaError_t tw_malloc(void** p, size_t n, bool managed, bool host) {
  TW_ONE_HOST;
  drain();
  if (n > 1ull << 36) return result(cudaErrorMemoryAllocation);
  Allocation* a = allocate(n, format("the buffer of %zu bytes", n).c_str(), managed, host, TW_PC);
  if (!a) return result(cudaErrorMemoryAllocation);
  *p = a->base;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  TW_ONE_HOST;
  wait_for_device();
  if (!p) return cudaSuccess;
  Allocation* a = allocation_at(p);
  if (!a || a->base != p) return result(cudaErrorInvalidValue);
  if (a->freed) fail("double-free", TW_PC, "%s is freed twice", a->name.c_str());
  deallocate(a);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {       // what another stream does to it must be in order with this one
  TW_ONE_HOST;
  Allocation* a = allocation_at(p);
  if (!p) return cudaSuccess;
  if (!a || a->base != p) return result(cudaErrorInvalidValue);
  if (a->freed) fail("double-free", TW_PC, "%s is freed twice", a->name.c_str());
  struct Freed { Allocation* a; const void* pc; uint32_t order; };
  auto* f = new Freed{a, TW_PC, 0};
  f->order = enqueue_action(s, [](void* data) {
    auto* f = (Freed*)data;
    if (f->a->freed) fail("double-free", f->pc, "%s is freed twice", f->a->name.c_str());
    if (checking) check_copy(f->a->base, nullptr, f->a->bytes, f->order, f->pc);
    deallocate(f->a);
    delete f;
  }, f);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind k) { return copy({(char*)to, (const char*)from, n, 1, 0, 0, 0, TW_PC}, k, nullptr, true); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind k, cudaStream_t s) { return copy({(char*)to, (const char*)from, n, 1, 0, 0, 0, TW_PC}, k, s, false); }
cudaError_t cudaMemcpy2D(void* to, size_t tp, const void* from, size_t fp, size_t w, size_t h, cudaMemcpyKind k) { return copy({(char*)to, (const char*)from, w, h, tp, fp, 0, TW_PC}, k, nullptr, true); }
cudaError_t cudaMemcpy2DAsync(void* to, size_t tp, const void* from, size_t fp, size_t w, size_t h, cudaMemcpyKind k, cudaStream_t s) { return copy({(char*)to, (const char*)from, w, h, tp, fp, 0, TW_PC}, k, s, false); }
cudaError_t cudaMemset2D(void* p, size_t pitch, int v, size_t w, size_t h) { return copy({(char*)p, nullptr, w, h, pitch, 0, v, TW_PC}, cudaMemcpyDefault, nullptr, true); }
cudaError_t tw_malloc_pitch(void** p, size_t* pitch, size_t w, size_t h) { *pitch = (w + 511) / 512 * 512; return tw_malloc(p, *pitch * h, false, false); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  TW_ONE_HOST;
  Allocation* a = allocation_at(p);
  *out = {!a ? cudaMemoryTypeUnregistered : a->host ? cudaMemoryTypeHost : a->managed ? cudaMemoryTypeManaged : cudaMemoryTypeDevice, a ? a->device : -1, a ? (void*)p : nullptr, !a || a->managed ? (void*)p : nullptr};
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t n) { return copy({(char*)to, (const char*)from, n, 1, 0, 0, 0, TW_PC}, cudaMemcpyDeviceToDevice, nullptr, true); }
cudaError_t cudaMemset(void* p, int v, size_t n) { return copy({(char*)p, nullptr, n, 1, 0, 0, v, TW_PC}, cudaMemcpyDefault, nullptr, true); }
cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t s) { return copy({(char*)p, nullptr, n, 1, 0, 0, v, TW_PC}, cudaMemcpyDefault, s, false); }
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) { *f = *t = 1ull << 36; return cudaSuccess; }
cudaError_t cudaGetLastError() { auto e = last_error; last_error = cudaSuccess; unseen.clear(); return e; }
cudaError_t cudaPeekAtLastError() { unseen.clear(); return last_error; }
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
#define TW_ERROR(name, number, text) case name: return #name;
#include "include/tileweave_errors.h"
#undef TW_ERROR
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
#define TW_ERROR(name, number, text) case name: return text;
#include "include/tileweave_errors.h"
#undef TW_ERROR
  }
  return "unrecognized error code";
}
cudaError_t cudaSetDevice(int d) { if (d < 0 || d >= devices) return result(cudaErrorInvalidDevice); device_now = d; return cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { *d = device_now; return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { *n = devices; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "simulated device");
  p->totalGlobalMem = 1ull << 36; p->sharedMemPerBlock = 49152; p->sharedMemPerBlockOptin = SHARED_LIMIT; p->sharedMemPerMultiprocessor = 233472; p->regsPerBlock = 65536; p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024; p->maxThreadsDim[2] = 64; p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->major = 9; p->multiProcessorCount = 4; p->maxThreadsPerMultiProcessor = 2048; p->clockRate = p->memoryClockRate = 1000000; p->memoryBusWidth = 512; p->l2CacheSize = 1 << 22;
  p->totalConstMem = 65536; p->memPitch = 2147483647; p->textureAlignment = 512; p->regsPerMultiprocessor = 65536; p->maxBlocksPerMultiProcessor = 32; p->asyncEngineCount = 3;
  p->concurrentKernels = p->deviceOverlap = p->canMapHostMemory = p->streamPrioritiesSupported = 1;
  p->cooperativeLaunch = p->managedMemory = p->concurrentManagedAccess = p->unifiedAddressing = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int) {
  switch (a) {
    case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break;
    case cudaDevAttrMultiProcessorCount: *v = 4; break;
    case cudaDevAttrComputeCapabilityMajor: *v = 9; break;
    case cudaDevAttrWarpSize: *v = 32; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *v = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = SHARED_LIMIT; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 233472; break;
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrMemoryPoolsSupported: case cudaDevAttrManagedMemory: case cudaDevAttrConcurrentManagedAccess: *v = 1; break;
    case cudaDevAttrMaxBlockDimX: *v = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *v = 32; break;
    case cudaDevAttrClockRate: *v = 1000000; break;
    case cudaDevAttrL2CacheSize: *v = 1 << 22; break;
    default: *v = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 1; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t tw_dynamic_limit(const void* kernel, cudaFuncAttribute a, int value) {
  if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || (size_t)value > SHARED_LIMIT) return result(cudaErrorInvalidValue);
    dynamic_limits[kernel] = value;
  }
  return cudaSuccess;
}
int tw_returned(int refused) { return refused ? result((cudaError_t)refused) : cudaSuccess; }
int tw_launched(int refused) {
  if (refused && checking) unseen.push_back({TW_PC, refusal});
  return tw_returned(refused);
}
namespace tw {
cudaError_t error_so_far() { return last_error; }
cudaError_t failed(cudaError_t e) { return result(e); }
void report_unseen() { for (auto& [pc, why] : unseen) note("launch-refused", pc, nullptr, "%s, and nothing asks for the error", why.c_str()); }
// More dynamic shared memory than 48 KiB must have been asked for.
bool dynamic_allowed(const void* kernel, size_t bytes) {
  if (bytes <= 48 << 10 || !kernel) return true;
  auto found = dynamic_limits.find(kernel);
  return found != dynamic_limits.end() && bytes <= (size_t)found->second;
}
}

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult r, const char** s) { *s = r == CUDA_SUCCESS ? "no error" : "invalid argument"; return CUDA_SUCCESS; }
CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType kind, cuuint32_t rank, void* base_address, const cuuint64_t* dim, const cuuint64_t* stride, const cuuint32_t* box,
                                const cuuint32_t* element_stride, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle_kind, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  static const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  uint64_t bytes = sizes[kind], base = (uint64_t)base_address, swizzle = swizzle_kind ? 16u << swizzle_kind : 0;
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) fail("unsupported", TW_PC, "tensor maps with interleave");
  if (const char* broken = tw_map_rule(rank, base, dim, stride, box, element_stride, bytes, swizzle)) {
    note("~tensor-map", TW_PC, nullptr, "cuTensorMapEncodeTiled refuses the map: rule %s", broken);
    return CUDA_ERROR_INVALID_VALUE;
  }
  tw_map m{};
  m.base = base; m.rank = rank; m.kind = kind; m.bytes = bytes; m.swizzle = swizzle; m.fill = fill; m.magic = TW_MAP_MAGIC;
  uint64_t span = bytes;
  for (unsigned d = 0; d < rank; d++) {
    m.dim[d] = dim[d]; m.box[d] = box[d]; m.element_stride[d] = element_stride[d];
    if (d) m.stride[d - 1] = stride[d - 1];
    span += (dim[d] - 1) * (d ? stride[d - 1] : bytes);
  }
  Allocation* a = allocation_at(base_address);
  if (a && (char*)base_address + span > a->base + a->bytes) fail("out-of-bounds", TW_PC, "a tensor map reaches %ld bytes past the end of %s", (long)((char*)base_address + span - (a->base + a->bytes)), a->name.c_str());
  memset(out, 0, sizeof *out);
  memcpy(out, &m, sizeof m);
  return CUDA_SUCCESS;
}
CUresult cuGetProcAddress(const char* symbol, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
  *function = !strcmp(symbol, "cuTensorMapEncodeTiled") ? (void*)cuTensorMapEncodeTiled : nullptr;
  if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  if (status) *status = cudaDriverEntryPointSuccess;
  return cuGetProcAddress(symbol, function, 0, 0, nullptr) == CUDA_SUCCESS ? cudaSuccess : result(cudaErrorInvalidValue);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPoint(symbol, function, flags, status);
}
__attribute__((constructor)) static void begin_host() { if (const char* s = getenv("TW_DEVICES")) devices = std::min(8, std::max(1, atoi(s))); }

// --- the main of a kernel that is run on its own: arrays are files of the working folder
namespace tw {
struct Argument { std::string name; Allocation* memory; size_t bytes; std::string file; };
static std::vector<Argument> arguments;
void* argument_array(const char* name, const char* file, size_t bytes, int device) {
  int before = device_now;
  device_now = device;
  Allocation* a = allocate(bytes, name, true, false, nullptr);
  device_now = before;
  if (!a) fail("resources", nullptr, "no memory for %s", name);
  FILE* f = fopen(file, "rb");
  if (!f || fread(a->base, 1, bytes, f) != bytes) fail("resources", nullptr, "cannot read %s", file);
  fclose(f);
  make_valid(a->base, bytes);
  arguments.push_back({name, a, bytes, file});
  return a->base;
}
void* multicast_array(const char* name, size_t bytes, void* const* members, size_t count) {
  Allocation* a = allocate(bytes, name, true, false, nullptr);
  if (!a) fail("resources", nullptr, "no addresses for %s", name);
  mprotect(a->region, a->region_bytes, PROT_NONE);       // only the memory of the members is real
  for (size_t i = 0; i < count; i++) a->members.push_back((char*)members[i]);
  return a->base;
}
void write_arguments() {
  for (auto& a : arguments) {
    FILE* f = fopen(a.file.c_str(), "wb");
    if (!f || fwrite(a.memory->base, 1, a.bytes, f) != a.bytes) fail("resources", nullptr, "cannot write %s", a.file.c_str());
    fclose(f);
    for (size_t i = a.bytes; i < (a.bytes + 15) / 16 * 16; i++)
      if ((unsigned char)a.memory->base[i] != 0xFF) fail("out-of-bounds", nullptr, "a byte past the end of %s was written (%zu bytes past)", a.name.c_str(), i - a.bytes);
    for (char* p = a.memory->region + 4096; p < a.memory->base; p++)
      if ((unsigned char)*p != 0xFF) fail("out-of-bounds", nullptr, "a byte before the beginning of %s was written", a.name.c_str());
  }
}
}  // namespace tw
