// What half and bfloat16 have in common: arithmetic in float, rounded to nearest even.
#pragma once
#include "cuda_runtime.h"

#define TW_HALF_PAIR(H, H2) struct alignas(4) H2 { H x, y; H2() = default; TW_PLAIN H2(H a, H b) : x(a), y(b) {} };
#define TW_HALF_OPERATOR(H, H2, op) \
  TW_INLINE H operator op(H a, H b) { return H((float)a op (float)b); } \
  TW_INLINE H& operator op##=(H& a, H b) { return a = a op b; } \
  TW_INLINE H2 operator op(H2 a, H2 b) { return {a.x op b.x, a.y op b.y}; } \
  TW_INLINE H2& operator op##=(H2& a, H2 b) { return a = a op b; }
#define TW_HALF_COMPARISON(H, H2, op, name) \
  TW_INLINE bool operator op(H a, H b) { return (float)a op (float)b; } \
  TW_INLINE bool __h##name(H a, H b) { return a op b; } \
  TW_INLINE bool __hb##name##2(H2 a, H2 b) { return a.x op b.x && a.y op b.y; } \
  TW_INLINE H2 __h##name##2(H2 a, H2 b) { return {H(a.x op b.x ? 1.f : 0.f), H(a.y op b.y ? 1.f : 0.f)}; }
#define TW_HALF_BINARY(H, H2, name, value) \
  TW_INLINE H name(H a, H b) { return value; } \
  TW_INLINE H2 name##2(H2 a, H2 b) { return {name(a.x, b.x), name(a.y, b.y)}; }
#define TW_HALF_UNARY(H, H2, name, name2, value) \
  TW_INLINE H name(H h) { float x = (float)h; return H((float)(value)); } \
  TW_INLINE H2 name2(H2 a) { return {name(a.x), name(a.y)}; }
#define TW_HALF_FUNCTIONS(H, H2) \
  TW_HALF_OPERATOR(H, H2, +) TW_HALF_OPERATOR(H, H2, -) TW_HALF_OPERATOR(H, H2, *) TW_HALF_OPERATOR(H, H2, /) \
  TW_INLINE H operator-(H a) { return H(-(float)a); } \
  TW_INLINE H2 operator-(H2 a) { return {-a.x, -a.y}; } \
  TW_HALF_COMPARISON(H, H2, <, lt) TW_HALF_COMPARISON(H, H2, >, gt) TW_HALF_COMPARISON(H, H2, <=, le) \
  TW_HALF_COMPARISON(H, H2, >=, ge) TW_HALF_COMPARISON(H, H2, ==, eq) TW_HALF_COMPARISON(H, H2, !=, ne) \
  TW_HALF_BINARY(H, H2, __hadd, a + b) TW_HALF_BINARY(H, H2, __hsub, a - b) TW_HALF_BINARY(H, H2, __hmul, a * b) TW_HALF_BINARY(H, H2, __hdiv, a / b) \
  TW_HALF_BINARY(H, H2, __hadd_rn, a + b) TW_HALF_BINARY(H, H2, __hsub_rn, a - b) TW_HALF_BINARY(H, H2, __hmul_rn, a * b) \
  TW_HALF_BINARY(H, H2, __hadd_sat, H(__saturatef((float)a + (float)b))) TW_HALF_BINARY(H, H2, __hmul_sat, H(__saturatef((float)a * (float)b))) \
  TW_HALF_BINARY(H, H2, __hmax, H(fmaxf((float)a, (float)b))) TW_HALF_BINARY(H, H2, __hmin, H(fminf((float)a, (float)b))) \
  TW_INLINE H2 __h2div(H2 a, H2 b) { return a / b; } \
  TW_INLINE H __hfma(H a, H b, H c) { return H((double)(float)a * (float)b + (float)c); } \
  TW_INLINE H2 __hfma2(H2 a, H2 b, H2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  TW_INLINE H __hfma_relu(H a, H b, H c) { return __hmax(__hfma(a, b, c), H(0.f)); } \
  TW_INLINE H2 __hfma2_relu(H2 a, H2 b, H2 c) { return {__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)}; } \
  TW_INLINE bool __hisnan(H a) { return (float)a != (float)a; } \
  TW_INLINE int __hisinf(H a) { return isinf((float)a) ? (float)a > 0 ? 1 : -1 : 0; } \
  TW_HALF_UNARY(H, H2, __hneg, __hneg2, -x) TW_HALF_UNARY(H, H2, __habs, __habs2, fabsf(x)) \
  TW_HALF_UNARY(H, H2, hexp, h2exp, expf(x)) TW_HALF_UNARY(H, H2, hexp2, h2exp2, exp2f(x)) TW_HALF_UNARY(H, H2, hexp10, h2exp10, powf(10, x)) TW_HALF_UNARY(H, H2, hlog, h2log, logf(x)) TW_HALF_UNARY(H, H2, hlog10, h2log10, log10f(x)) TW_HALF_UNARY(H, H2, hlog2, h2log2, log2f(x)) \
  TW_HALF_UNARY(H, H2, hsqrt, h2sqrt, sqrtf(x)) TW_HALF_UNARY(H, H2, hrsqrt, h2rsqrt, 1 / sqrtf(x)) TW_HALF_UNARY(H, H2, hrcp, h2rcp, 1 / x) \
  TW_HALF_UNARY(H, H2, hsin, h2sin, sinf(x)) TW_HALF_UNARY(H, H2, hcos, h2cos, cosf(x)) TW_HALF_UNARY(H, H2, htanh, h2tanh, tanhf(x)) \
  TW_HALF_UNARY(H, H2, hfloor, h2floor, floorf(x)) TW_HALF_UNARY(H, H2, hceil, h2ceil, ceilf(x)) TW_HALF_UNARY(H, H2, hrint, h2rint, rintf(x)) TW_HALF_UNARY(H, H2, htrunc, h2trunc, truncf(x)) \
  TW_INLINE float __low2float(H2 v) { return (float)v.x; } \
  TW_INLINE float __high2float(H2 v) { return (float)v.y; } \
  TW_INLINE H atomicAdd(H* p, H v) { return tw::atomic(p, [=](H old) TW_PLAIN { return old + v; }); } \
  TW_INLINE H2 atomicAdd(H2* p, H2 v) { return tw::atomic(p, [=](H2 old) TW_PLAIN { return old + v; }); }
