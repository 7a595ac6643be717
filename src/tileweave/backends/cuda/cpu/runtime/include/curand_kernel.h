// Random numbers in kernels: the distributions of cuRAND's device functions, from a generator of our own (other values).
#pragma once
#include "cuda_runtime.h"

struct curandStateXORWOW { unsigned long long state, step; };
typedef curandStateXORWOW curandState, curandState_t, curandStateXORWOW_t;
struct curandStatePhilox4_32_10 : curandStateXORWOW {};
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;
struct curandStateMRG32k3a : curandStateXORWOW {};
typedef curandStateMRG32k3a curandStateMRG32k3a_t;

inline unsigned long long tw_mixed(unsigned long long v) {  // splitmix64
  v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9ull;
  v = (v ^ v >> 27) * 0x94D049BB133111EBull;
  return v ^ v >> 31;
}
template <class S> void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, S* s) {
  s->step = tw_mixed(sequence + 0x9E3779B97F4A7C15ull) | 1;
  s->state = tw_mixed(seed) + offset * s->step;
}
template <class S> unsigned curand(S* s) { return (unsigned)(tw_mixed(s->state += s->step) >> 32); }
template <class S> float curand_uniform(S* s) { return ((curand(s) >> 8) + 1) * (1.0f / (1 << 24)); }
template <class S> double curand_uniform_double(S* s) { return ((curand(s) >> 1) + 1.0) / 2147483648.0; }
template <class S> float2 curand_normal2(S* s) {
  float r = sqrtf(-2.0f * logf(curand_uniform(s))), at = 6.2831853f * curand_uniform(s);
  return make_float2(r * cosf(at), r * sinf(at));
}
template <class S> float curand_normal(S* s) { return curand_normal2(s).x; }
template <class S> double curand_normal_double(S* s) { return sqrt(-2.0 * log(curand_uniform_double(s))) * cos(6.283185307179586 * curand_uniform_double(s)); }
template <class S> float curand_log_normal(S* s, float mean, float deviation) { return expf(mean + deviation * curand_normal(s)); }
template <class S> uint4 curand4(S* s) { uint4 v; v.x = curand(s); v.y = curand(s); v.z = curand(s); v.w = curand(s); return v; }
template <class S> float4 curand_uniform4(S* s) { float4 v; v.x = curand_uniform(s); v.y = curand_uniform(s); v.z = curand_uniform(s); v.w = curand_uniform(s); return v; }
template <class S> float4 curand_normal4(S* s) { float2 a = curand_normal2(s), b = curand_normal2(s); return make_float4(a.x, a.y, b.x, b.y); }
template <class S> void skipahead(unsigned long long n, S* s) { s->state += n * s->step; }
