// Numbers in kernels: bits, conversions, arithmetic of a stated rounding, functions that the C library lacks.
#pragma once
#include <cmath>

#include "tileweave_device.h"

TW_INLINE int __popc(unsigned v) { return __builtin_popcount(v); }
TW_INLINE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
TW_INLINE int __clz(int v) { return v ? __builtin_clz(v) : 32; }
TW_INLINE int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
TW_INLINE int __ffs(int v) { return __builtin_ffs(v); }
TW_INLINE int __ffsll(long long v) { return __builtin_ffsll(v); }
TW_INLINE unsigned __brev(unsigned v) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i); return r; }
TW_INLINE unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  tw::u64 v = (tw::u64)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= (unsigned)(v >> (8 * (s >> 4 * i & 7)) & 255) << 8 * i;
  return r;
}
TW_INLINE int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
TW_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((tw::u64)a * b >> 32); }
TW_INLINE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
TW_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
TW_INLINE float __int_as_float(int v) { return tw::bits<float>(v); }
TW_INLINE int __float_as_int(float v) { return tw::bits<int>(v); }
TW_INLINE float __uint_as_float(unsigned v) { return tw::bits<float>(v); }
TW_INLINE unsigned __float_as_uint(float v) { return tw::bits<unsigned>(v); }
TW_INLINE double __longlong_as_double(long long v) { return tw::bits<double>(v); }
TW_INLINE long long __double_as_longlong(double v) { return tw::bits<long long>(v); }
TW_INLINE float __expf(float x) { return expf(x); }
TW_INLINE float __exp10f(float x) { return powf(10, x); }
TW_INLINE float __logf(float x) { return logf(x); }
TW_INLINE float __log2f(float x) { return log2f(x); }
TW_INLINE float __sinf(float x) { return sinf(x); }
TW_INLINE float __cosf(float x) { return cosf(x); }
TW_INLINE float __powf(float x, float y) { return powf(x, y); }
TW_INLINE float __fdividef(float x, float y) { return x / y; }
TW_INLINE float __fdiv_rn(float x, float y) { return x / y; }
TW_INLINE float __frcp_rn(float x) { return 1 / x; }
TW_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
TW_INLINE float __fadd_rn(float x, float y) { return x + y; }
TW_INLINE float __fmul_rn(float x, float y) { return x * y; }
TW_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
TW_INLINE float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
TW_INLINE float rsqrtf(float x) { return 1 / sqrtf(x); }
TW_INLINE double rsqrt(double x) { return 1 / sqrt(x); }
TW_INLINE float __frsqrt_rn(float x) { return 1 / sqrtf(x); }
TW_INLINE float __int2float_rn(int x) { return (float)x; }
TW_INLINE void sincospif(float x, float* s, float* c) { *s = sinf(x * 3.14159265358979f); *c = cosf(x * 3.14159265358979f); }

// --- bits and bytes
TW_INLINE unsigned long long __brevll(unsigned long long v) { return (unsigned long long)__brev((unsigned)v) << 32 | __brev((unsigned)(v >> 32)); }
TW_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) { return (unsigned)((((tw::u64)high << 32 | low) << (n & 31)) >> 32); }
TW_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) { return (unsigned)(((tw::u64)high << 32 | low) >> (n & 31)); }
TW_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned n) { return n >= 32 ? low : __funnelshift_l(low, high, n); }
TW_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned n) { return n >= 32 ? high : __funnelshift_r(low, high, n); }
TW_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }
TW_INLINE long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
TW_INLINE unsigned __sad(int a, int b, unsigned c) { return (a < b ? (unsigned)b - (unsigned)a : (unsigned)a - (unsigned)b) + c; }
TW_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a < b ? b - a : a - b) + c; }
TW_INLINE int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
TW_INLINE int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
TW_INLINE unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((tw::u64)a + b) >> 1); }
TW_INLINE int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
  return c;
}
TW_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}
TW_INLINE double __hiloint2double(int high, int low) { return tw::bits<double>((tw::u64)(unsigned)high << 32 | (unsigned)low); }
TW_INLINE int __double2hiint(double v) { return (int)(tw::bits<tw::u64>(v) >> 32); }
TW_INLINE int __double2loint(double v) { return (int)tw::bits<tw::u64>(v); }

// --- conversions: out of range becomes the nearest end, NaN zero, as on a device
template <class To, class From> TW_INLINE To tw_converted(From x) {
  constexpr bool is_signed = (To)-1 < (To)0;
  constexpr To most = is_signed ? (To)~(To)((tw::u64)1 << (8 * sizeof(To) - 1)) : (To)-1, least = is_signed ? (To)(-most - 1) : 0;
  return x != x ? 0 : x <= (From)least ? least : x >= (From)most ? most : (To)x;
}
#define TW_CONVERT(from, From, to, To) \
  TW_INLINE To __##from##2##to##_rn(From x) { return tw_converted<To>(std::rint(x)); } \
  TW_INLINE To __##from##2##to##_rz(From x) { return tw_converted<To>(std::trunc(x)); } \
  TW_INLINE To __##from##2##to##_rd(From x) { return tw_converted<To>(std::floor(x)); } \
  TW_INLINE To __##from##2##to##_ru(From x) { return tw_converted<To>(std::ceil(x)); }
TW_CONVERT(float, float, int, int) TW_CONVERT(float, float, uint, unsigned)
TW_CONVERT(float, float, ll, long long) TW_CONVERT(float, float, ull, unsigned long long)
TW_CONVERT(double, double, int, int) TW_CONVERT(double, double, uint, unsigned)
TW_CONVERT(double, double, ll, long long) TW_CONVERT(double, double, ull, unsigned long long)
TW_INLINE float __uint2float_rn(unsigned x) { return (float)x; }
TW_INLINE float __ll2float_rn(long long x) { return (float)x; }
TW_INLINE float __ull2float_rn(unsigned long long x) { return (float)x; }
TW_INLINE double __int2double_rn(int x) { return x; }
TW_INLINE double __uint2double_rn(unsigned x) { return x; }
TW_INLINE double __ll2double_rn(long long x) { return (double)x; }
TW_INLINE float __double2float_rn(double x) { return (float)x; }

namespace tw {   // of inline PTX
template <class T> TW_INLINE T field(u64 v, u64 at, u64 n) {   // bfe: the sign of a signed one is its last bit, within the word
  constexpr int bits = 8 * sizeof(T);
  at &= 255; n &= 255;
  bool sign = (T)-1 < (T)0 && n && (v >> (at + n - 1 < bits ? at + n - 1 : bits - 1) & 1);
  u64 low = at < bits ? (v & (~0ull >> (64 - bits))) >> at : 0, mask = n < 64 ? (1ull << n) - 1 : ~0ull;
  if (at + n > bits && sign) mask = at < bits ? (1ull << (bits - at)) - 1 : 0;
  return (T)((low & mask) | (sign ? ~mask : 0));
}
TW_INLINE unsigned permuted(unsigned a, unsigned b, unsigned s) {   // the highest bit of a selector spreads the sign of its byte
  unsigned r = __byte_perm(a, b, s);
  for (int i = 0; i < 4; i++) if (s >> 4 * i & 8) r = (r & ~(255u << 8 * i)) | ((r >> (8 * i + 7) & 1 ? 255u : 0u) << 8 * i);
  return r;
}
template <class T> TW_INLINE T clamped(__int128 v) {
  constexpr bool is_signed = (T)-1 < (T)0;
  __int128 most = is_signed ? ((__int128)1 << (8 * sizeof(T) - 1)) - 1 : ((__int128)1 << 8 * sizeof(T)) - 1, least = is_signed ? -most - 1 : 0;
  return (T)(v < least ? least : v > most ? most : v);
}
}  // namespace tw

// --- arithmetic
TW_INLINE float __fsub_rn(float x, float y) { return x - y; }
TW_INLINE double __dadd_rn(double x, double y) { return x + y; }
TW_INLINE double __dsub_rn(double x, double y) { return x - y; }
TW_INLINE double __dmul_rn(double x, double y) { return x * y; }
TW_INLINE double __ddiv_rn(double x, double y) { return x / y; }
TW_INLINE double __drcp_rn(double x) { return 1 / x; }
TW_INLINE double __dsqrt_rn(double x) { return sqrt(x); }
TW_INLINE double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
TW_INLINE float __log10f(float x) { return log10f(x); }
TW_INLINE float __tanf(float x) { return tanf(x); }
TW_INLINE void __sincosf(float x, float* s, float* c) { *s = sinf(x); *c = cosf(x); }
TW_INLINE float sinpif(float x) { return (float)sin((double)x * 3.14159265358979323846); }
TW_INLINE float cospif(float x) { return (float)cos((double)x * 3.14159265358979323846); }
TW_INLINE double sinpi(double x) { return sin(x * 3.14159265358979323846); }
TW_INLINE double cospi(double x) { return cos(x * 3.14159265358979323846); }
TW_INLINE float rcbrtf(float x) { return 1 / cbrtf(x); }
TW_INLINE float rhypotf(float x, float y) { return 1 / hypotf(x, y); }
TW_INLINE float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
TW_INLINE float rnorm3df(float a, float b, float c) { return 1 / norm3df(a, b, c); }
TW_INLINE float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
#define TW_MIN_MAX(T) TW_INLINE T min(T a, T b) { return b < a ? b : a; } TW_INLINE T max(T a, T b) { return a < b ? b : a; }
TW_MIN_MAX(int) TW_MIN_MAX(unsigned) TW_MIN_MAX(long) TW_MIN_MAX(unsigned long) TW_MIN_MAX(long long) TW_MIN_MAX(unsigned long long)
TW_INLINE float min(float a, float b) { return fminf(a, b); }   // of a NaN and a number, the number
TW_INLINE float max(float a, float b) { return fmaxf(a, b); }
TW_INLINE double min(double a, double b) { return fmin(a, b); }
TW_INLINE double max(double a, double b) { return fmax(a, b); }
TW_INLINE unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
TW_INLINE unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
TW_INLINE unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
TW_INLINE unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
TW_INLINE double min(float a, double b) { return min((double)a, b); }
TW_INLINE double max(float a, double b) { return max((double)a, b); }
TW_INLINE float fdividef(float a, float b) { return a / b; }
