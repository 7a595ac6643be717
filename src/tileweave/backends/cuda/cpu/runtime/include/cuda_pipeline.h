// Asynchronous copies from global to shared memory, in groups of the thread.
#pragma once
#include "cuda_runtime.h"

TW_FLATTEN void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes, size_t zeros = 0) {
  tw::copy_async(tw::shared_offset(shared), (tw::u64)global, (int)bytes, (int)(bytes - zeros));
}
TW_FLATTEN void __pipeline_commit() { tw::copy_commit(); }
TW_FLATTEN void __pipeline_wait_prior(unsigned pending) { tw::copy_wait((int)pending); }
