// bfloat16: arithmetic in float, rounded to nearest even.
#pragma once
#include "cuda_runtime.h"

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
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; __nv_bfloat162() = default; TW_PLAIN __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {} };
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
#define TW_BF_OP(op) \
  TW_INLINE __nv_bfloat16 operator op(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat16((float)a op (float)b); } \
  TW_INLINE __nv_bfloat16& operator op##=(__nv_bfloat16& a, __nv_bfloat16 b) { return a = a op b; } \
  TW_INLINE __nv_bfloat162 operator op(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x op b.x, a.y op b.y}; }
TW_BF_OP(+) TW_BF_OP(-) TW_BF_OP(*) TW_BF_OP(/)
TW_INLINE __nv_bfloat16 operator-(__nv_bfloat16 a) { return __nv_bfloat16(-(float)a); }
TW_INLINE __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
TW_INLINE __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
TW_INLINE float __bfloat162float(__nv_bfloat16 h) { return (float)h; }
TW_INLINE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__nv_bfloat16(a), __nv_bfloat16(b)}; }
TW_INLINE float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }
TW_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
TW_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return {a, a}; }
TW_INLINE float __low2float(__nv_bfloat162 v) { return (float)v.x; }
TW_INLINE float __high2float(__nv_bfloat162 v) { return (float)v.y; }
TW_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.v; }
TW_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) { return tw::bits<__nv_bfloat16>(u); }
TW_INLINE __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) { return a + b; }
TW_INLINE __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b) { return a * b; }
TW_INLINE __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) { return (float)a < (float)b ? b : a; }
TW_INLINE __nv_bfloat16 atomicAdd(__nv_bfloat16* p, __nv_bfloat16 v) { return tw::atomic(p, [=](__nv_bfloat16 old) TW_PLAIN { return old + v; }); }
