// The functions of the host that programs call; simulated devices share one memory.
#pragma once
#include <stddef.h>

struct CUevent_st;
typedef CUstream_st* cudaStream_t;
typedef CUevent_st* cudaEvent_t;
enum cudaError_t {
#define TW_ERROR(name, number, text) name = number,
#include "tileweave_errors.h"
#undef TW_ERROR
};
typedef cudaError_t cudaError;
namespace tw { cudaError_t failed(cudaError_t); }           // the last error from now on
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9, cudaFuncAttributeNonPortableClusterSizeAllowed = 14 };
enum cudaDeviceAttr { cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrWarpSize = 10, cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76,
                      cudaDevAttrMaxSharedMemoryPerBlockOptin = 97, cudaDevAttrCooperativeLaunch = 95, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81, cudaDevAttrMaxSharedMemoryPerBlock = 8, cudaDevAttrMemoryPoolsSupported = 115,
                      cudaDevAttrMaxBlockDimX = 2, cudaDevAttrClockRate = 13, cudaDevAttrL2CacheSize = 38, cudaDevAttrMaxThreadsPerMultiProcessor = 39, cudaDevAttrManagedMemory = 83, cudaDevAttrConcurrentManagedAccess = 89, cudaDevAttrMaxBlocksPerMultiprocessor = 106 };
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2, cudaMemAttachGlobal = 1, cudaMemAttachHost = 2, cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaHostAllocWriteCombined = 4, cudaHostRegisterDefault = 0, cudaDeviceScheduleAuto = 0, cudaDeviceMapHost = 8, cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum cudaLaunchAttributeID { cudaLaunchAttributeIgnore = 0, cudaLaunchAttributeCooperative = 2, cudaLaunchAttributeClusterDimension = 4, cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttributeValue { struct { unsigned x, y, z; } clusterDim; int cooperative; int programmaticStreamSerializationAllowed; };
struct cudaLaunchAttribute { cudaLaunchAttributeID id; cudaLaunchAttributeValue val; };
struct cudaLaunchConfig_t { dim3 gridDim, blockDim; size_t dynamicSmemBytes = 0; cudaStream_t stream = nullptr; cudaLaunchAttribute* attrs = nullptr; unsigned numAttrs = 0; };
struct cudaDeviceProp {
  char name[256]; size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor; int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
  int major, minor, multiProcessorCount, maxThreadsPerMultiProcessor, clockRate, memoryClockRate, memoryBusWidth, l2CacheSize, cooperativeLaunch, managedMemory, concurrentManagedAccess, unifiedAddressing;
  size_t totalConstMem, memPitch, textureAlignment; int regsPerMultiprocessor, maxBlocksPerMultiProcessor, asyncEngineCount, concurrentKernels, deviceOverlap, canMapHostMemory, integrated, ECCEnabled,
      kernelExecTimeoutEnabled, computeMode, streamPrioritiesSupported, pageableMemoryAccess, pciBusID, pciDeviceID, pciDomainID;
};

cudaError_t tw_malloc(void** p, size_t bytes, bool managed, bool host);
template <class T> TW_INLINE cudaError_t cudaMalloc(T** p, size_t n) { return tw_malloc((void**)p, n, false, false); }
template <class T> TW_INLINE cudaError_t cudaMallocManaged(T** p, size_t n, unsigned = 1) { return tw_malloc((void**)p, n, true, false); }
template <class T> TW_INLINE cudaError_t cudaMallocHost(T** p, size_t n, unsigned = 0) { return tw_malloc((void**)p, n, true, true); }
template <class T> TW_INLINE cudaError_t cudaHostAlloc(T** p, size_t n, unsigned = 0) { return tw_malloc((void**)p, n, true, true); }
template <class T> TW_INLINE cudaError_t cudaMallocAsync(T** p, size_t n, cudaStream_t) { return tw_malloc((void**)p, n, false, false); }
typedef struct CUmemPool_st* cudaMemPool_t;                // there is one of each device, and it needs no care
enum cudaMemPoolAttr { cudaMemPoolReuseFollowEventDependencies = 1, cudaMemPoolReuseAllowOpportunistic, cudaMemPoolReuseAllowInternalDependencies, cudaMemPoolAttrReleaseThreshold };
TW_INLINE cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { *pool = nullptr; return cudaSuccess; }
TW_INLINE cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int) { *pool = nullptr; return cudaSuccess; }
TW_INLINE cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
TW_INLINE cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
template <class T> TW_INLINE cudaError_t cudaMallocFromPoolAsync(T** p, size_t n, cudaMemPool_t, cudaStream_t) { return tw_malloc((void**)p, n, false, false); }
cudaError_t cudaFree(void*);
cudaError_t cudaFreeHost(void*);
cudaError_t cudaFreeAsync(void*, cudaStream_t);
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t = nullptr);
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind);
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind, cudaStream_t = nullptr);
cudaError_t cudaMemset2D(void* p, size_t pitch, int v, size_t width, size_t height);
cudaError_t tw_malloc_pitch(void** p, size_t* pitch, size_t width, size_t height);
template <class T> TW_INLINE cudaError_t cudaMallocPitch(T** p, size_t* pitch, size_t width, size_t height) { return tw_malloc_pitch((void**)p, pitch, width, height); }
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t n);
cudaError_t cudaMemset(void* p, int v, size_t n);
cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t = nullptr);
template <class T> TW_INLINE cudaError_t cudaMemcpyToSymbol(T& s, const void* from, size_t n, size_t at = 0, cudaMemcpyKind k = cudaMemcpyHostToDevice) { return cudaMemcpy((char*)&s + at, from, n, k); }
template <class T> TW_INLINE cudaError_t cudaMemcpyFromSymbol(void* to, T& s, size_t n, size_t at = 0, cudaMemcpyKind k = cudaMemcpyDeviceToHost) { return cudaMemcpy(to, (char*)&s + at, n, k); }
template <class T> TW_INLINE cudaError_t cudaGetSymbolAddress(void** p, T& s) { *p = (void*)&s; return cudaSuccess; }
template <class T> TW_INLINE cudaError_t cudaMemcpyToSymbolAsync(T& s, const void* from, size_t n, size_t at, cudaMemcpyKind k, cudaStream_t stream = nullptr) { return cudaMemcpyAsync((char*)&s + at, from, n, k, stream); }
template <class T> TW_INLINE cudaError_t cudaMemcpyFromSymbolAsync(void* to, T& s, size_t n, size_t at, cudaMemcpyKind k, cudaStream_t stream = nullptr) { return cudaMemcpyAsync(to, (char*)&s + at, n, k, stream); }
template <class T> TW_INLINE cudaError_t cudaGetSymbolSize(size_t* n, T&) { *n = sizeof(T); return cudaSuccess; }
template <class T> TW_INLINE cudaError_t cudaHostGetDevicePointer(T** device, void* host, unsigned) { *device = (T*)host; return cudaSuccess; }
struct cudaPointerAttributes { int type, device; void *devicePointer, *hostPointer; };
enum { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeHost = 1, cudaMemoryTypeDevice = 2, cudaMemoryTypeManaged = 3 };
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*);
// Advice that changes no result.
enum cudaMemoryAdvise { cudaMemAdviseSetReadMostly = 1, cudaMemAdviseUnsetReadMostly, cudaMemAdviseSetPreferredLocation, cudaMemAdviseUnsetPreferredLocation, cudaMemAdviseSetAccessedBy, cudaMemAdviseUnsetAccessedBy };
enum { cudaCpuDeviceId = -1, cudaInvalidDeviceId = -2 };
enum cudaMemLocationType { cudaMemLocationTypeInvalid, cudaMemLocationTypeDevice, cudaMemLocationTypeHost };
struct cudaMemLocation { cudaMemLocationType type; int id; };
TW_INLINE cudaError_t cudaMemPrefetchAsync(const void*, size_t, int, cudaStream_t = nullptr) { return cudaSuccess; }
TW_INLINE cudaError_t cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t = nullptr) { return cudaSuccess; }
TW_INLINE cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, int) { return cudaSuccess; }
TW_INLINE cudaError_t cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
TW_INLINE cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
TW_INLINE cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum cudaSharedMemConfig { cudaSharedMemBankSizeDefault, cudaSharedMemBankSizeFourByte, cudaSharedMemBankSizeEightByte };
enum cudaLimit { cudaLimitStackSize, cudaLimitPrintfFifoSize, cudaLimitMallocHeapSize };
TW_INLINE cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
TW_INLINE cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
TW_INLINE cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
template <class F> TW_INLINE cudaError_t cudaFuncSetCacheConfig(F*, cudaFuncCache) { return cudaSuccess; }
TW_INLINE cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
TW_INLINE cudaError_t cudaProfilerStart() { return cudaSuccess; }
TW_INLINE cudaError_t cudaProfilerStop() { return cudaSuccess; }
TW_INLINE cudaError_t cudaRuntimeGetVersion(int* v) { *v = 13000; return cudaSuccess; }
TW_INLINE cudaError_t cudaDriverGetVersion(int* v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceReset();
TW_INLINE cudaError_t cudaThreadSynchronize() { return cudaDeviceSynchronize(); }  // the names of old programs
TW_INLINE cudaError_t cudaThreadExit() { return cudaDeviceReset(); }
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t);
const char* cudaGetErrorName(cudaError_t);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDevice(int*);
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int);
cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int);
cudaError_t cudaDeviceCanAccessPeer(int*, int, int);
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned);
cudaError_t cudaStreamCreate(cudaStream_t*);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);
#define CUDART_CB
typedef void (*cudaStreamCallback_t)(cudaStream_t, cudaError_t, void*);
typedef void (*cudaHostFn_t)(void*);
cudaError_t cudaStreamAddCallback(cudaStream_t, cudaStreamCallback_t, void* data, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t, void* data);
TW_INLINE cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int) { return cudaStreamCreateWithFlags(s, flags); }
TW_INLINE cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = *greatest = 0; return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0);
cudaError_t cudaEventCreate(cudaEvent_t*);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t);
// Graphs by capture: what streams are given between two calls is kept, and given again at each launch.
struct CUgraph_st;
typedef CUgraph_st *cudaGraph_t, *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode = cudaStreamCaptureModeGlobal);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*);
TW_INLINE cudaError_t cudaGraphInstantiate(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long = 0) { *e = g; return g ? cudaSuccess : tw::failed(cudaErrorInvalidValue); }
TW_INLINE cudaError_t cudaGraphInstantiate(cudaGraphExec_t* e, cudaGraph_t g, void*, char*, size_t) { *e = g; return g ? cudaSuccess : tw::failed(cudaErrorInvalidValue); }
TW_INLINE cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long) { *e = g; return g ? cudaSuccess : tw::failed(cudaErrorInvalidValue); }
TW_INLINE cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
TW_INLINE cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
TW_INLINE cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t tw_dynamic_limit(const void* kernel, cudaFuncAttribute, int value);
template <class F> TW_INLINE cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute a, int value) { return tw_dynamic_limit((const void*)kernel, a, value); }
template <class F> TW_INLINE cudaError_t cudaOccupancyMaxPotentialBlockSize(int* grid, int* block, F, size_t = 0, int limit = 0) { *grid = 4; *block = limit ? limit : 256; return cudaSuccess; }
template <class F> TW_INLINE cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, F, int, size_t) { *n = 1; return cudaSuccess; }
struct cudaFuncAttributes { size_t sharedSizeBytes, constSizeBytes, localSizeBytes; int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes; };
template <class F> TW_INLINE cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, F) { *a = {0, 0, 0, 1024, 32, 90, 90, 49152}; return cudaSuccess; }
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags, cudaDriverEntryPointQueryResult* = nullptr);
TW_INLINE cudaError_t cudaGetDriverEntryPoint(const char* s, void** f, int flags, cudaDriverEntryPointQueryResult* q = nullptr) { return cudaGetDriverEntryPoint(s, f, (unsigned long long)flags, q); }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long flags, cudaDriverEntryPointQueryResult* = nullptr);
int tw_launched(int refused);   // of <<<>>>, which returns nothing
int tw_returned(int refused);

template <class... P, class... A> TW_PLAIN cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(P...), A&&... a) {
  tw::Launch launch("a kernel", dim3(1, 1, 1), c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
  for (unsigned i = 0; i < c->numAttrs; i++) {
    auto& v = c->attrs[i].val;
    if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) launch.options.cluster = dim3(v.clusterDim.x, v.clusterDim.y, v.clusterDim.z);
    if (c->attrs[i].id == cudaLaunchAttributeCooperative) launch.options.cooperative = v.cooperative;
  }
  launch.kernel = (const void*)kernel;
  return (cudaError_t)tw_returned(launch.run([kernel](P... p) TW_PLAIN { kernel(p...); }, static_cast<typename tw::Decay<P>::type>(a)...));
}
template <int... I, class... P> TW_PLAIN int tw_launch_pointers(tw::Launch& l, void (*kernel)(P...), void** a, tw::Seq<I...>) {
  return l.run([kernel](P... p) TW_PLAIN { kernel(p...); }, *(typename tw::Decay<P>::type*)a[I]...);
}
template <class... P> TW_PLAIN cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** args, size_t shared = 0, cudaStream_t stream = nullptr) {
  tw::Launch l("a kernel", dim3(1, 1, 1), grid, block, shared, stream);
  l.kernel = (const void*)kernel;
  return (cudaError_t)tw_returned(tw_launch_pointers(l, kernel, args, typename tw::MakeSeq<sizeof...(P)>::type()));
}
template <class... P> TW_PLAIN cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** args, size_t shared = 0, cudaStream_t stream = nullptr) {
  tw::Launch l("a kernel", dim3(1, 1, 1), grid, block, shared, stream);
  l.options.cooperative = true;
  l.kernel = (const void*)kernel;
  return (cudaError_t)tw_returned(tw_launch_pointers(l, kernel, args, typename tw::MakeSeq<sizeof...(P)>::type()));
}
