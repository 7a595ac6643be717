// Marks for profilers, which change nothing.
#pragma once
#include "../cuda_runtime.h"

typedef unsigned long long nvtxRangeId_t;
TW_INLINE int nvtxRangePushA(const char*) { return 0; }
TW_INLINE int nvtxRangePop() { return 0; }
TW_INLINE void nvtxMarkA(const char*) {}
TW_INLINE nvtxRangeId_t nvtxRangeStartA(const char*) { return 0; }
TW_INLINE void nvtxRangeEnd(nvtxRangeId_t) {}
#define nvtxRangePush nvtxRangePushA
#define nvtxMark nvtxMarkA
#define nvtxRangeStart nvtxRangeStartA
