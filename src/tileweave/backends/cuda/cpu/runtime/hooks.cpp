// What g++ calls from instrumented code: alignment, bounds of arrays.
#include <stdio.h>
#include <stdlib.h>

#include "runtime.h"

using namespace tw;

// -fsanitize=alignment,bounds
extern "C" {
struct tw_location { const char* file; uint32_t line, column; };
struct tw_type { uint16_t kind, info; char name[1]; };
struct tw_mismatch { tw_location at; const tw_type* type; unsigned char log_alignment, check; };
struct tw_bounds { tw_location at; const tw_type *array, *index; };
void __ubsan_handle_type_mismatch_v1(tw_mismatch* d, uintptr_t p) {
  if (!current) return;
  if (!p) fail("address", TW_PC, "%s accesses a null pointer", thread_name(current).c_str());
  fail("misaligned", TW_PC, "%s accesses %s at an address that is no multiple of %d", thread_name(current).c_str(), d->type->name, 1 << d->log_alignment);
}
void __ubsan_handle_type_mismatch_v1_abort(tw_mismatch* d, uintptr_t p) { __ubsan_handle_type_mismatch_v1(d, p); }
void __ubsan_handle_out_of_bounds(tw_bounds* d, uintptr_t i) {
  if (!current) return;
  fail("out-of-bounds", TW_PC, "%s uses index %ld of an array of type %s", thread_name(current).c_str(), (long)i, d->array->name);
}
void __ubsan_handle_out_of_bounds_abort(tw_bounds* d, uintptr_t i) { __ubsan_handle_out_of_bounds(d, i); }
}

// assert(): in a kernel, with the thread; on the host as ever.
extern "C" [[noreturn]] void __assert_fail(const char* what, const char* file, unsigned line, const char* function) noexcept {
  if (current) fail("assertion", TW_PC, "%s: assertion `%s' failed", thread_name(current).c_str(), what);
  fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, what);
  abort();
}

// -fsanitize=thread: every access of memory; on the host it must not touch memory of the device.
static void host_access(const void* p, size_t n, const void* pc, bool write) {
  TW_ONE_HOST;
  Allocation* a = allocation_at(p);
  if (!a) return;
  if (a->managed && !a->host) drain();                       // what the device does beside the host is as good as done
  const char* does = write ? "writes" : "reads";
  std::string who;
  if (!a->managed) note("host-access", pc, nullptr, "the host accesses %s, which is memory of the device", a->name.c_str());
  else if (a->host && copy_is_pending(a, write)) note("host-race", pc, nullptr, "the host %s %s while an asynchronous copy of it is pending: cudaStreamSynchronize() is missing", does, a->name.c_str());
  else if ((who = unwaited(p, n, write)).size()) note("host-race", pc, nullptr, "the host %s %s, which %s in a stream that it has not waited for: cudaStreamSynchronize() is missing", does, a->name.c_str(), who.c_str());
}
static void move(void* to, const void* from, size_t n, const void* pc) {
  if (current) return check_move(to, from, n, pc);
  if (!checking) return;
  if (from) host_access(from, n, pc, false);
  host_access(to, n, pc, true);
}
static inline void seen(void* p, size_t size, int flags, const void* pc) {
  if (current) {
    if ((flags & STRONG) && !on_stack(p)) { current->pc = pc; yield(flags & READ); }
    check_access(p, size, flags, pc);
  } else if (checking) host_access(p, size, pc, flags & WRITE);
}
#define TW_HOOKS(n) \
  void __tsan_read##n(void* p) { seen(p, n, READ, TW_PC); } \
  void __tsan_write##n(void* p) { seen(p, n, WRITE, TW_PC); } \
  void __tsan_unaligned_read##n(void* p) { seen(p, n, READ, TW_PC); } \
  void __tsan_unaligned_write##n(void* p) { seen(p, n, WRITE, TW_PC); } \
  void __tsan_volatile_read##n(void* p) { seen(p, n, READ | STRONG | VOLATILE, TW_PC); } \
  void __tsan_volatile_write##n(void* p) { seen(p, n, WRITE | STRONG | VOLATILE, TW_PC); if (current) changed(); } \
  void __tsan_unaligned_volatile_read##n(void* p) { seen(p, n, READ | STRONG | VOLATILE, TW_PC); } \
  void __tsan_unaligned_volatile_write##n(void* p) { seen(p, n, WRITE | STRONG | VOLATILE, TW_PC); if (current) changed(); }
#define TW_FETCH(n, T, name) T __tsan_atomic##n##_fetch_##name(volatile T* p, T v, int) { seen((void*)p, sizeof(T), READ | WRITE | STRONG, TW_PC); return __atomic_fetch_##name(p, v, 5); }
#define TW_COMPARE(n, T, name) int __tsan_atomic##n##_compare_exchange_##name(volatile T* p, T* e, T v, int, int) { seen((void*)p, sizeof(T), READ | WRITE | STRONG, TW_PC); return __atomic_compare_exchange_n(p, e, v, false, 5, 5); }
#define TW_ATOMICS(n, T) \
  T __tsan_atomic##n##_load(const volatile T* p, int) { seen((void*)p, sizeof(T), READ | STRONG, TW_PC); return __atomic_load_n(p, 5); } \
  void __tsan_atomic##n##_store(volatile T* p, T v, int) { seen((void*)p, sizeof(T), WRITE | STRONG, TW_PC); __atomic_store_n(p, v, 5); if (current) changed(); } \
  T __tsan_atomic##n##_exchange(volatile T* p, T v, int) { seen((void*)p, sizeof(T), READ | WRITE | STRONG, TW_PC); return __atomic_exchange_n(p, v, 5); } \
  TW_FETCH(n, T, add) TW_FETCH(n, T, sub) TW_FETCH(n, T, and) TW_FETCH(n, T, or) TW_FETCH(n, T, xor) TW_COMPARE(n, T, strong) TW_COMPARE(n, T, weak)
extern "C" {
TW_HOOKS(1) TW_HOOKS(2) TW_HOOKS(4) TW_HOOKS(8) TW_HOOKS(16)
TW_ATOMICS(8, uint8_t) TW_ATOMICS(16, uint16_t) TW_ATOMICS(32, uint32_t) TW_ATOMICS(64, uint64_t)
void __tsan_read_range(void* p, size_t n) { seen(p, n, READ, TW_PC); }
void __tsan_write_range(void* p, size_t n) { seen(p, n, WRITE, TW_PC); }
// The linker sends the program's calls of these functions here.
void* __wrap_memcpy(void* to, const void* from, size_t n) { move(to, from, n, TW_PC); return memcpy(to, from, n); }
void* __wrap_memmove(void* to, const void* from, size_t n) { move(to, from, n, TW_PC); return memmove(to, from, n); }
void* __wrap_memset(void* to, int value, size_t n) { move(to, nullptr, n, TW_PC); return memset(to, value, n); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
void __tsan_vptr_update(void** p, void*) { seen(p, 8, WRITE, TW_PC); }
void __tsan_vptr_read(void** p) { seen(p, 8, READ, TW_PC); }
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
}

// g++ -fsanitize-coverage=trace-pc: a thread that spins on plain memory lets others run.
extern "C" void __sanitizer_cov_trace_pc() {
  if (tw::current && ++tw::current->steps > 5000) { tw::current->pc = TW_PC; tw::yield(true); }
}
