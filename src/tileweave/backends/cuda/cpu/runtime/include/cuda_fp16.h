// Half precision: arithmetic in float, rounded to nearest even.
#pragma once
#include "cuda_runtime.h"

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
struct alignas(4) __half2 { __half x, y; __half2() = default; TW_PLAIN __half2(__half a, __half b) : x(a), y(b) {} };
typedef __half half;
typedef __half2 half2;
#define TW_HALF_OP(op) \
  TW_INLINE __half operator op(__half a, __half b) { return __half((float)a op (float)b); } \
  TW_INLINE __half& operator op##=(__half& a, __half b) { return a = a op b; } \
  TW_INLINE __half2 operator op(__half2 a, __half2 b) { return {a.x op b.x, a.y op b.y}; }
TW_HALF_OP(+) TW_HALF_OP(-) TW_HALF_OP(*) TW_HALF_OP(/)
TW_INLINE __half operator-(__half a) { return __half(-(float)a); }
#define TW_HALF_CMP(op) TW_INLINE bool operator op(__half a, __half b) { return (float)a op (float)b; }
TW_HALF_CMP(<) TW_HALF_CMP(>) TW_HALF_CMP(<=) TW_HALF_CMP(>=) TW_HALF_CMP(==) TW_HALF_CMP(!=)
TW_INLINE __half __float2half(float f) { return __half(f); }
TW_INLINE __half __float2half_rn(float f) { return __half(f); }
TW_INLINE __half __double2half(double f) { return __half((float)f); }
TW_INLINE __half __int2half_rn(int f) { return __half((float)f); }
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
TW_INLINE float __low2float(__half2 v) { return (float)v.x; }
TW_INLINE float __high2float(__half2 v) { return (float)v.y; }
TW_INLINE unsigned short __half_as_ushort(__half h) { return tw::bits<unsigned short>(h); }
TW_INLINE __half __ushort_as_half(unsigned short u) { return tw::bits<__half>(u); }
TW_INLINE __half __hadd(__half a, __half b) { return a + b; }
TW_INLINE __half __hsub(__half a, __half b) { return a - b; }
TW_INLINE __half __hmul(__half a, __half b) { return a * b; }
TW_INLINE __half __hdiv(__half a, __half b) { return a / b; }
TW_INLINE __half __hneg(__half a) { return -a; }
TW_INLINE __half __hfma(__half a, __half b, __half c) { return __half((double)(float)a * (float)b + (float)c); }
TW_INLINE __half __hmax(__half a, __half b) { return a < b ? b : a; }
TW_INLINE __half __hmin(__half a, __half b) { return b < a ? b : a; }
TW_INLINE bool __hlt(__half a, __half b) { return a < b; }
TW_INLINE bool __hgt(__half a, __half b) { return a > b; }
TW_INLINE bool __hle(__half a, __half b) { return a <= b; }
TW_INLINE bool __hge(__half a, __half b) { return a >= b; }
TW_INLINE bool __heq(__half a, __half b) { return a == b; }
TW_INLINE __half __habs(__half a) { return __half(fabsf((float)a)); }
TW_INLINE __half hexp(__half a) { return __half(expf((float)a)); }
TW_INLINE __half hlog(__half a) { return __half(logf((float)a)); }
TW_INLINE __half hsqrt(__half a) { return __half(sqrtf((float)a)); }
TW_INLINE __half hrsqrt(__half a) { return __half(1 / sqrtf((float)a)); }
TW_INLINE __half2 __hadd2(__half2 a, __half2 b) { return a + b; }
TW_INLINE __half2 __hsub2(__half2 a, __half2 b) { return a - b; }
TW_INLINE __half2 __hmul2(__half2 a, __half2 b) { return a * b; }
TW_INLINE __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }
TW_INLINE __half2 __hmax2(__half2 a, __half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
TW_INLINE __half atomicAdd(__half* p, __half v) { return tw::atomic(p, [=](__half old) TW_PLAIN { return old + v; }); }
TW_INLINE __half2 atomicAdd(__half2* p, __half2 v) { return tw::atomic(p, [=](__half2 old) TW_PLAIN { return old + v; }); }
