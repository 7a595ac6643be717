// The functions of the host that programs call; simulated devices share one memory.
#pragma once
#include <stddef.h>

struct CUevent_st;
typedef CUstream_st* cudaStream_t;
typedef CUevent_st* cudaEvent_t;
enum cudaError_t {
  cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9, cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600, cudaErrorPeerAccessAlreadyEnabled = 704, cudaErrorLaunchFailure = 719, cudaErrorNotSupported = 801
};
typedef cudaError_t cudaError;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9, cudaFuncAttributeNonPortableClusterSizeAllowed = 14 };
enum cudaDeviceAttr { cudaDevAttrMaxThreadsPerBlock = 1, cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75, cudaDevAttrComputeCapabilityMinor = 76,
                      cudaDevAttrMaxSharedMemoryPerBlockOptin = 97, cudaDevAttrCooperativeLaunch = 95, cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81, cudaDevAttrMaxSharedMemoryPerBlock = 8 };
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2, cudaMemAttachGlobal = 1, cudaHostAllocDefault = 0, cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0 };
enum cudaLaunchAttributeID { cudaLaunchAttributeIgnore = 0, cudaLaunchAttributeCooperative = 2, cudaLaunchAttributeClusterDimension = 4, cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttributeValue { struct { unsigned x, y, z; } clusterDim; int cooperative; int programmaticStreamSerializationAllowed; };
struct cudaLaunchAttribute { cudaLaunchAttributeID id; cudaLaunchAttributeValue val; };
struct cudaLaunchConfig_t { dim3 gridDim, blockDim; size_t dynamicSmemBytes = 0; cudaStream_t stream = nullptr; cudaLaunchAttribute* attrs = nullptr; unsigned numAttrs = 0; };
struct cudaDeviceProp {
  char name[256]; size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin, sharedMemPerMultiprocessor; int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
  int major, minor, multiProcessorCount, maxThreadsPerMultiProcessor, clockRate, memoryClockRate, memoryBusWidth, l2CacheSize, cooperativeLaunch, managedMemory, concurrentManagedAccess, unifiedAddressing;
};

cudaError_t tw_malloc(void** p, size_t bytes, bool managed, bool host);
template <class T> TW_INLINE cudaError_t cudaMalloc(T** p, size_t n) { return tw_malloc((void**)p, n, false, false); }
template <class T> TW_INLINE cudaError_t cudaMallocManaged(T** p, size_t n, unsigned = 1) { return tw_malloc((void**)p, n, true, false); }
template <class T> TW_INLINE cudaError_t cudaMallocHost(T** p, size_t n, unsigned = 0) { return tw_malloc((void**)p, n, true, true); }
template <class T> TW_INLINE cudaError_t cudaHostAlloc(T** p, size_t n, unsigned = 0) { return tw_malloc((void**)p, n, true, true); }
template <class T> TW_INLINE cudaError_t cudaMallocAsync(T** p, size_t n, cudaStream_t) { return tw_malloc((void**)p, n, false, false); }
cudaError_t cudaFree(void*);
cudaError_t cudaFreeHost(void*);
cudaError_t cudaFreeAsync(void*, cudaStream_t);
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t = nullptr);
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind);
cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, size_t n);
cudaError_t cudaMemset(void* p, int v, size_t n);
cudaError_t cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t = nullptr);
template <class T> TW_INLINE cudaError_t cudaMemcpyToSymbol(T& s, const void* from, size_t n, size_t at = 0, cudaMemcpyKind k = cudaMemcpyHostToDevice) { return cudaMemcpy((char*)&s + at, from, n, k); }
template <class T> TW_INLINE cudaError_t cudaMemcpyFromSymbol(void* to, T& s, size_t n, size_t at = 0, cudaMemcpyKind k = cudaMemcpyDeviceToHost) { return cudaMemcpy(to, (char*)&s + at, n, k); }
template <class T> TW_INLINE cudaError_t cudaGetSymbolAddress(void** p, T& s) { *p = (void*)&s; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaDeviceReset();
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
cudaError_t tw_dynamic_limit(const void* kernel, cudaFuncAttribute, int value);
template <class F> TW_INLINE cudaError_t cudaFuncSetAttribute(F* kernel, cudaFuncAttribute a, int value) { return tw_dynamic_limit((const void*)kernel, a, value); }
template <class F> TW_INLINE cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, F, int, size_t) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags, cudaDriverEntryPointQueryResult* = nullptr);
TW_INLINE cudaError_t cudaGetDriverEntryPoint(const char* s, void** f, int flags, cudaDriverEntryPointQueryResult* q = nullptr) { return cudaGetDriverEntryPoint(s, f, (unsigned long long)flags, q); }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version, unsigned long long flags, cudaDriverEntryPointQueryResult* = nullptr);
int tw_launched(int refused);

template <class... P, class... A> TW_PLAIN cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(P...), A&&... a) {
  tw::Launch launch("a kernel", dim3(1, 1, 1), c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
  for (unsigned i = 0; i < c->numAttrs; i++) {
    auto& v = c->attrs[i].val;
    if (c->attrs[i].id == cudaLaunchAttributeClusterDimension) launch.options.cluster = dim3(v.clusterDim.x, v.clusterDim.y, v.clusterDim.z);
    if (c->attrs[i].id == cudaLaunchAttributeCooperative) launch.options.cooperative = v.cooperative;
  }
  launch.kernel = (const void*)kernel;
  return (cudaError_t)tw_launched(launch.run([kernel](P... p) TW_PLAIN { kernel(p...); }, static_cast<typename tw::Decay<P>::type>(a)...));
}
template <int... I, class... P> TW_PLAIN int tw_launch_pointers(tw::Launch& l, void (*kernel)(P...), void** a, tw::Seq<I...>) {
  return l.run([kernel](P... p) TW_PLAIN { kernel(p...); }, *(typename tw::Decay<P>::type*)a[I]...);
}
template <class... P> TW_PLAIN cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** args, size_t shared = 0, cudaStream_t stream = nullptr) {
  tw::Launch l("a kernel", dim3(1, 1, 1), grid, block, shared, stream);
  l.kernel = (const void*)kernel;
  return (cudaError_t)tw_launched(tw_launch_pointers(l, kernel, args, typename tw::MakeSeq<sizeof...(P)>::type()));
}
template <class... P> TW_PLAIN cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** args, size_t shared = 0, cudaStream_t stream = nullptr) {
  tw::Launch l("a kernel", dim3(1, 1, 1), grid, block, shared, stream);
  l.options.cooperative = true;
  l.kernel = (const void*)kernel;
  return (cudaError_t)tw_launched(tw_launch_pointers(l, kernel, args, typename tw::MakeSeq<sizeof...(P)>::type()));
}
