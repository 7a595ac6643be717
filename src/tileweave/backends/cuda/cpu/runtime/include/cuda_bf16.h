// bfloat16.
#pragma once
#include "tileweave_halves.h"

struct __nv_bfloat16 {
  unsigned short v;
  __nv_bfloat16() = default;
  TW_PLAIN __nv_bfloat16(float f) {
    unsigned u = tw::bits<unsigned>(f);
    v = f != f ? 0x7FFF : (unsigned short)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
  }
  TW_PLAIN __nv_bfloat16(double f) : __nv_bfloat16((float)f) {}
  TW_PLAIN __nv_bfloat16(int f) : __nv_bfloat16((float)f) {}
  TW_PLAIN operator float() const { return tw::bits<float>((unsigned)v << 16); }
};
TW_HALF_PAIR(__nv_bfloat16, __nv_bfloat162)
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
TW_HALF_FUNCTIONS(__nv_bfloat16, __nv_bfloat162)
TW_INLINE __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
TW_INLINE __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
TW_INLINE float __bfloat162float(__nv_bfloat16 h) { return (float)h; }
TW_INLINE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
TW_INLINE float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }
TW_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
TW_INLINE __nv_bfloat162 __float2bfloat162_rn(float f) { return {__nv_bfloat16(f), __nv_bfloat16(f)}; }
TW_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
TW_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
TW_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
TW_INLINE __nv_bfloat16 __double2bfloat16(double f) { return __nv_bfloat16((float)f); }
TW_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
TW_INLINE __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return {v.x, v.x}; }
TW_INLINE __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return {v.y, v.y}; }
TW_INLINE __nv_bfloat16 __int2bfloat16_rn(int v) { return __nv_bfloat16((float)v); }
TW_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
TW_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.v; }
TW_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return tw::bits<__nv_bfloat16>(u); }
