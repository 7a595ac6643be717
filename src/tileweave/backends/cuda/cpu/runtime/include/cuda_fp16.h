// Half precision.
#pragma once
#include "tileweave_halves.h"

struct __half_raw { unsigned short x; };
struct __half2_raw { unsigned short x, y; };
struct __half {
  _Float16 v;
  __half() = default;
  TW_PLAIN __half(float f) : v((_Float16)f) {}
  TW_PLAIN __half(double f) : v((_Float16)f) {}
  TW_PLAIN __half(int f) : v((_Float16)f) {}
  TW_PLAIN __half(unsigned f) : v((_Float16)f) {}
  TW_PLAIN __half(long f) : v((_Float16)f) {}
  TW_PLAIN __half(__half_raw r) : v(tw::bits<_Float16>(r.x)) {}
  TW_PLAIN operator float() const { return (float)v; }
  TW_PLAIN operator __half_raw() const { return {tw::bits<unsigned short>(v)}; }
};
TW_HALF_PAIR(__half, __half2)
typedef __half half;
typedef __half2 half2;
TW_HALF_FUNCTIONS(__half, __half2)
TW_INLINE __half __float2half(float f) { return __half(f); }
TW_INLINE __half __float2half_rn(float f) { return __half(f); }
TW_INLINE __half __double2half(double f) { return __half((float)f); }
TW_INLINE __half __int2half_rn(int f) { return __half((float)f); }
TW_INLINE __half __uint2half_rn(unsigned f) { return __half((float)f); }
TW_INLINE __half __short2half_rn(short f) { return __half((float)f); }
TW_INLINE __half __ushort2half_rn(unsigned short f) { return __half((float)f); }
TW_INLINE int __half2int_rz(__half h) { return tw_converted<int>(truncf((float)h)); }
TW_INLINE unsigned __half2uint_rn(__half h) { return tw_converted<unsigned>(rintf((float)h)); }
TW_INLINE short __half_as_short(__half h) { return tw::bits<short>(h); }
TW_INLINE __half __short_as_half(short u) { return tw::bits<__half>(u); }
TW_INLINE __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
TW_INLINE __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
TW_INLINE float __half2float(__half h) { return (float)h; }
TW_INLINE int __half2int_rn(__half h) { return (int)rintf((float)h); }
TW_INLINE __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
TW_INLINE __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
TW_INLINE __half2 __float2half2_rn(float a) { return {__half(a), __half(a)}; }
TW_INLINE float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
TW_INLINE __half2 __halves2half2(__half a, __half b) { return {a, b}; }
TW_INLINE __half2 make_half2(__half a, __half b) { return {a, b}; }
TW_INLINE __half2 __half2half2(__half a) { return {a, a}; }
TW_INLINE __half __low2half(__half2 v) { return v.x; }
TW_INLINE __half __high2half(__half2 v) { return v.y; }
TW_INLINE __half2 __low2half2(__half2 v) { return {v.x, v.x}; }
TW_INLINE __half2 __high2half2(__half2 v) { return {v.y, v.y}; }
TW_INLINE __half2 __lowhigh2highlow(__half2 v) { return {v.y, v.x}; }
TW_INLINE unsigned short __half_as_ushort(__half h) { return tw::bits<unsigned short>(h); }
TW_INLINE __half __ushort_as_half(unsigned short u) { return tw::bits<__half>(u); }
