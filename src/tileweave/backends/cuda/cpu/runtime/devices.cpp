// Loads of a multicast address: the same place in the memory of all devices, combined from the first to the last.
#include <cmath>

#include "runtime.h"

namespace tw {
namespace {
template <class T> T of(const char* fn, T a, T b) { return *fn == 'a' ? (T)(a + b) : fn[1] == 'i' ? (b < a ? b : a) : (a < b ? b : a); }
template <class T> u64 combined(const std::vector<char*>& at, size_t i, const char* fn) {
  T total = raw<T>(at[0] + i * sizeof(T));
  for (size_t d = 1; d < at.size(); d++) total = of(fn, total, raw<T>(at[d] + i * sizeof(T)));
  return bits<u64>(total);
}
template <class H> u64 added(const std::vector<char*>& at, size_t i) {   // in f32, rounded once
  float total = H::value(raw<uint16_t>(at[0] + 2 * i));
  for (size_t d = 1; d < at.size(); d++) total += H::value(raw<uint16_t>(at[d] + 2 * i));
  return H::make(total);
}
}  // namespace

void multicast_load(const Fragment& f, const char* fn, u64* d, u64 address, int flags) {
  std::string type = f.dtype;
  size_t bytes = type == "f64" || type == "u64" ? 8 : type == "f16" || type == "bf16" ? 2 : 4, size = bytes * f.slots;
  std::string who = thread_name(current);
  if (address % size) fail("misaligned", TW_PC, "%s reads %zu bytes of a multicast address that is no multiple", who.c_str(), size);
  Allocation* a = allocation_at((void*)address);
  if (!a || a->members.empty()) fail("multicast", TW_PC, "%s reads 0x%llx by multimem.ld_reduce, which is no multicast address", who.c_str(), (unsigned long long)address);
  long offset = (char*)address - a->base;
  if (offset < 0 || offset + size > a->bytes) fail("out-of-bounds", TW_PC, "%s reads %zu bytes at byte %ld of %s, which has %zu", who.c_str(), size, offset, a->name.c_str(), a->bytes);
  current->pc = TW_PC;
  if (flags & STRONG) yield(true);
  std::vector<char*> at;
  for (char* p : a->members) {
    at.push_back(p + offset);
    if (checking) check_access(at.back(), size, READ | ALIAS | flags, TW_PC);
  }
  for (int i = 0; i < f.slots; i++) {
    if (bytes == 2) d[i / 2] |= (type == "f16" ? added<f16>(at, i) : added<bf16>(at, i)) << 16 * (i % 2);
    else d[i] = type == "f32" ? combined<float>(at, i, fn) : type == "f64" ? combined<double>(at, i, fn) : type == "u64" ? combined<u64>(at, i, fn) : type == "s32" ? combined<int>(at, i, fn) : combined<unsigned>(at, i, fn);
  }
}
}  // namespace tw
