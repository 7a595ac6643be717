// nvcuda::wmma on mma.sync: a fragment's elements lie as the instruction wants them, its accesses are seen one by one.
#pragma once
#include "cuda_runtime.h"
#include "cuda_fp16.h"
#include "cuda_bf16.h"

#define TW_WMMA __attribute__((always_inline)) inline
namespace nvcuda { namespace wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32; }

namespace detail {
// Of an element type: how it is kept, the depth of a product, elements of a lane in 16 (or 8) rows and in 8 columns.
template <class T> struct Kind;
template <> struct Kind<__half> { typedef __half kept; static const int depth = 16, big = 8, small = 4, rows = 16; };
template <> struct Kind<__nv_bfloat16> { typedef __nv_bfloat16 kept; static const int depth = 16, big = 8, small = 4, rows = 16; };
template <> struct Kind<precision::tf32> { typedef float kept; static const int depth = 8, big = 4, small = 2, rows = 16; };
template <> struct Kind<signed char> { typedef signed char kept; static const int depth = 16, big = 8, small = 4, rows = 16; };
template <> struct Kind<unsigned char> { typedef unsigned char kept; static const int depth = 16, big = 8, small = 4, rows = 16; };
template <> struct Kind<double> { typedef double kept; static const int depth = 4, big = 1, small = 1, rows = 8; };

struct Place { int line, along; };  // a row (or column) of the product, and the place along the depth (or the other way)
TW_PLAIN inline int lane() { return (int)(tw::thread_index().x + tw::block_extent().x * (tw::thread_index().y + tw::block_extent().y * tw::thread_index().z)) % 32; }
template <class T> TW_PLAIN inline Place place(int e, bool big) {
  const int l = lane();
  if constexpr (Kind<T>::depth == 4) return {l / 4, l % 4};
  else if constexpr (Kind<T>::depth == 8) return {l / 4 + (big ? e % 2 * 8 : 0), l % 4 + (big ? e / 2 : e) * 4};
  else if constexpr (sizeof(T) == 1) return {l / 4 + (big ? e / 4 * 8 : 0), l % 4 * 4 + e % 4};
  else return {l / 4 + (big ? e / 2 % 2 * 8 : 0), l % 4 * 2 + e % 2 + (big ? e / 4 : e / 2) * 8};
}
TW_PLAIN inline Place result(int e) { return {lane() / 4 + e / 2 * 8, lane() % 4 * 2 + e % 2}; }

struct alignas(32) Line { char first; };
struct alignas(16) Chunk { char first; };
template <class T> TW_WMMA void aligned(const T* p, unsigned ldm) {  // what is not is touched, and the sanitizer reports it
  if ((size_t)p % 32) (void)*(const volatile char*)&((const volatile Line*)p)->first;
  if (ldm * sizeof(T) % 16) (void)*(const volatile char*)&((const volatile Chunk*)(p + ldm))->first;
}
template <class To, class From> TW_PLAIN inline To word(const From* p) { To out; __builtin_memcpy(&out, p, sizeof(To)); return out; }
}  // namespace detail

// Shapes: 16 x 16 is one row of tiles and two columns, 32 x 8 two rows; 8 x 32 is 32 x 8 with A and B in each other's place.
template <class Use, int m, int n, int k, class T, class Layout = void> struct fragment;
template <class Use, int m, int n, int k, class T> struct Shape {
  static const bool turned = m == 8 && n == 32;
  static const int rows = turned ? n : m, columns = turned ? m : n;
};
#define TW_FRAGMENT(USE, IS_A)                                                                                            \
  template <int m, int n, int k, class T, class Layout> struct fragment<USE, m, n, k, T, Layout> : Shape<USE, m, n, k, T> {   \
    typedef detail::Kind<T> kind;                                                                                             \
    typedef typename kind::kept element_type;                                                                                 \
    static_assert(k == kind::depth, "wmma: no fragment of that depth for the type");                                          \
    static const bool big = IS_A != fragment::turned;                                                                         \
    static const int line = big ? kind::rows : 8, tiles = (big ? fragment::rows : fragment::columns) / line;                  \
    static const int each = big ? kind::big : kind::small, num_elements = tiles * each;                                       \
    element_type x[num_elements];                                                                                             \
  };
TW_FRAGMENT(matrix_a, true)
TW_FRAGMENT(matrix_b, false)
#undef TW_FRAGMENT
template <int m, int n, int k, class T> struct fragment<accumulator, m, n, k, T, void> : Shape<accumulator, m, n, k, T> {
  typedef T element_type;
  static const int line = sizeof(T) == 8 ? 8 : 16, each = sizeof(T) == 8 ? 2 : 4;
  static const int down = fragment::rows / line, across = fragment::columns / 8, num_elements = down * across * each;
  T x[num_elements];
};

template <class F, class V> TW_PLAIN inline void fill_fragment(F& f, const V& v) {
  for (int e = 0; e < F::num_elements; e++) f.x[e] = (typename F::element_type)v;
}
TW_PLAIN inline float __float_to_tf32(float v) { return tw::bits<float>((tw::bits<unsigned>(v) + 0x1000u) & 0xffffe000u); }

template <class Use, int m, int n, int k, class T, class Layout>
TW_WMMA void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& f, const typename fragment<Use, m, n, k, T, Layout>::element_type* p, unsigned ldm) {
  typedef fragment<Use, m, n, k, T, Layout> F;
  const bool is_a = __is_same(Use, matrix_a), lines = is_a == __is_same(Layout, row_major);  // depth is contiguous
  detail::aligned(p, ldm);
  for (int e = 0; e < F::num_elements; e++) {
    detail::Place at = detail::place<T>(e % F::each, F::big);
    const int line = e / F::each * F::line + at.line;
    f.x[e] = p[lines ? (size_t)line * ldm + at.along : (size_t)at.along * ldm + line];
  }
}
template <int m, int n, int k, class T> TW_PLAIN inline size_t result_offset(int e, unsigned ldm, layout_t layout) {
  typedef fragment<accumulator, m, n, k, T> F;
  const int tile = e / F::each;
  detail::Place at = detail::result(e % F::each);
  int i = tile / F::across * F::line + at.line, j = tile % F::across * 8 + at.along;
  if (F::turned) { int other = i; i = j; j = other; }
  return layout == mem_row_major ? (size_t)i * ldm + j : (size_t)j * ldm + i;
}
template <int m, int n, int k, class T>
TW_WMMA void load_matrix_sync(fragment<accumulator, m, n, k, T>& f, const T* p, unsigned ldm, layout_t layout) {
  detail::aligned(p, ldm);
  for (int e = 0; e < f.num_elements; e++) f.x[e] = p[result_offset<m, n, k, T>(e, ldm, layout)];
}
template <int m, int n, int k, class T>
TW_WMMA void store_matrix_sync(T* p, const fragment<accumulator, m, n, k, T>& f, unsigned ldm, layout_t layout) {
  detail::aligned(p, ldm);
  for (int e = 0; e < f.num_elements; e++) p[result_offset<m, n, k, T>(e, ldm, layout)] = f.x[e];
}

namespace detail {
#define TW_WMMA_16(T, NAME)                                                                                                   \
  TW_WMMA void multiply(float* d, const T* a, const T* b) {                                                                   \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                             \
                 : "r"(word<unsigned>(a)), "r"(word<unsigned>(a + 2)), "r"(word<unsigned>(a + 4)), "r"(word<unsigned>(a + 6)),\
                   "r"(word<unsigned>(b)), "r"(word<unsigned>(b + 2)));                                                       \
  }
TW_WMMA_16(__half, "f16")
TW_WMMA_16(__nv_bfloat16, "bf16")
TW_WMMA void multiply(__half* d, const __half* a, const __half* b) {
  unsigned first = word<unsigned>(d), second = word<unsigned>(d + 2);
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
               : "+r"(first), "+r"(second)
               : "r"(word<unsigned>(a)), "r"(word<unsigned>(a + 2)), "r"(word<unsigned>(a + 4)), "r"(word<unsigned>(a + 6)),
                 "r"(word<unsigned>(b)), "r"(word<unsigned>(b + 2)));
  __builtin_memcpy(d, &first, 4);
  __builtin_memcpy(d + 2, &second, 4);
}
TW_WMMA void multiply(float* d, const float* a, const float* b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(word<unsigned>(a)), "r"(word<unsigned>(a + 1)), "r"(word<unsigned>(a + 2)), "r"(word<unsigned>(a + 3)),
                 "r"(word<unsigned>(b)), "r"(word<unsigned>(b + 1)));
}
#define TW_WMMA_8(T, NAME)                                                                                                    \
  TW_WMMA void multiply(int* d, const T* a, const T* b) {                                                                     \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32." NAME "." NAME ".s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                                             \
                 : "r"(word<unsigned>(a)), "r"(word<unsigned>(a + 4)), "r"(word<unsigned>(b)));                               \
  }
TW_WMMA_8(signed char, "s8")
TW_WMMA_8(unsigned char, "u8")
TW_WMMA void multiply(double* d, const double* a, const double* b) {
  asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+d"(d[0]), "+d"(d[1]) : "d"(a[0]), "d"(b[0]));
}
}  // namespace detail

template <class D, class A, class B, class C>
TW_WMMA void mma_sync(D& d, const A& a, const B& b, const C& c) {
  typename D::element_type sum[D::num_elements];
  for (int e = 0; e < D::num_elements; e++) sum[e] = c.x[e];
  for (int i = 0; i < D::down; i++)
    for (int j = 0; j < D::across; j++) {
      auto* into = sum + (i * D::across + j) * D::each;
      if constexpr (A::turned) detail::multiply(into, b.x + i * B::each, a.x + j * A::each);
      else detail::multiply(into, a.x + i * A::each, b.x + j * B::each);
    }
  for (int e = 0; e < D::num_elements; e++) d.x[e] = sum[e];
}
}}  // namespace nvcuda::wmma
