// What g++ calls from instrumented code: alignment, bounds of arrays.
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
