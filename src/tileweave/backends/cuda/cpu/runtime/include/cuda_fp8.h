// Floats of 8 bits: arithmetic in float; conversions round to nearest even and saturate to the largest finite number.
#pragma once
#include "cuda_fp16.h"

namespace tw {
// A float with `mantissa` explicit bits and an exponent of `exponent` bits; `finite`: without infinities, one NaN.
TW_INLINE float small_to_float(unsigned v, int exponent, int mantissa, bool finite) {
  unsigned sign = v >> 7, e = v >> mantissa & ((1u << exponent) - 1), m = v & ((1u << mantissa) - 1), top = (1u << exponent) - 1;
  float value;
  int bias = (1 << (exponent - 1)) - 1;
  if (e == top && (finite ? m == (1u << mantissa) - 1 : m != 0)) value = __builtin_nanf("");
  else if (e == top && !finite) value = __builtin_inff();
  else if (!e) value = __builtin_ldexpf((float)m, 1 - bias - mantissa);
  else value = __builtin_ldexpf((float)(m | 1u << mantissa), (int)e - bias - mantissa);
  return sign ? -value : value;
}
TW_INLINE unsigned char small_from_float(float f, int exponent, int mantissa, bool finite) {
  unsigned sign = bits<unsigned>(f) >> 31 << 7;
  float a = __builtin_fabsf(f);
  unsigned largest = finite ? 0x7E : 0x7B;
  if (f != f) return sign | 0x7F;
  if (a >= small_to_float(largest, exponent, mantissa, finite)) return sign | largest;
  unsigned low = 0, high = largest;                        // the numbers grow with their bits
  while (high - low > 1) {
    unsigned middle = (low + high) / 2;
    (small_to_float(middle, exponent, mantissa, finite) <= a ? low : high) = middle;
  }
  float below = small_to_float(low, exponent, mantissa, finite), above = small_to_float(high, exponent, mantissa, finite);
  float left = a - below, right = above - a;
  return sign | (left < right || (left == right && !(low & 1)) ? low : high);
}
}  // namespace tw

#define TW_SMALL(name, exponent, mantissa, finite) \
  struct name { \
    unsigned char __x; \
    name() = default; \
    TW_PLAIN explicit name(float f) : __x(tw::small_from_float(f, exponent, mantissa, finite)) {} \
    TW_PLAIN explicit name(double f) : name((float)f) {} \
    TW_PLAIN explicit name(int f) : name((float)f) {} \
    TW_PLAIN explicit name(__half f) : name((float)f) {} \
    TW_PLAIN explicit operator float() const { return tw::small_to_float(__x, exponent, mantissa, finite); } \
    TW_PLAIN explicit operator __half() const { return __half((float)*this); } \
  };
TW_SMALL(__nv_fp8_e4m3, 4, 3, true)
TW_SMALL(__nv_fp8_e5m2, 5, 2, false)
typedef unsigned char __nv_fp8_storage_t;
