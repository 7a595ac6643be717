// What kernels and generated code see of the runtime: coordinates, shared variables, launches, collectives, atomics.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TW_PLAIN __attribute__((no_sanitize("thread", "alignment", "bounds")))
#define TW_INLINE TW_PLAIN inline
#define TW_RAW TW_PLAIN __attribute__((noinline))   // the access itself, which access() has announced

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  operator uint3() const { return {x, y, z}; }
};
struct CUstream_st;

namespace tw {
using u64 = uint64_t;

// --- coordinates of the running thread
uint3 thread_index() noexcept __attribute__((const));
uint3 block_index() noexcept __attribute__((const));
dim3 block_extent() noexcept __attribute__((const));
dim3 grid_extent() noexcept __attribute__((const));
u64 special(const char* name);  // %laneid, %clusterid.x, ..; fails by name

// --- shared memory
void* shared_variable(const void* key, size_t bytes, size_t align, const char* name);
void* dynamic_shared(const char* name, size_t align);
template <class Key, class T> TW_INLINE T& shared(const char* name, size_t align) {
  static const char key = 0;
  return *static_cast<T*>(shared_variable(&key, sizeof(T), align > alignof(T) ? align : alignof(T), name));
}
template <class T> TW_INLINE T* dynamic(const char* name, size_t align) {
  return static_cast<T*>(dynamic_shared(name, align > alignof(T) ? align : alignof(T)));
}
bool is_shared(const void* p);
uint32_t shared_offset(const void* p);       // the 32-bit address that instructions take
void* generic(u64 address, int space);       // the host address of a PTX address
enum Space { GENERIC, SHARED, GLOBAL, LOCAL, CONSTANT };

// --- the heap of kernels: new and malloc, delete and free
bool in_kernel() noexcept;
void* heap_allocate(size_t bytes);
bool heap_free(void* p, const void* pc = nullptr);   // whether it was of that heap
TW_INLINE void* malloc(size_t bytes) { return in_kernel() ? heap_allocate(bytes) : __builtin_malloc(bytes); }
__attribute__((always_inline)) TW_INLINE void free(void* p) { if (!heap_free(p)) __builtin_free(p); }

// --- launches; the runtime keeps a copy of the arguments until the grid has run
struct LaunchOptions { dim3 grid, block, cluster; size_t shared = 0; void* stream = nullptr; bool cooperative = false; const char* name = ""; };
void need_host(const char* kernel);          // launches by kernels have no emulation
int enqueue(const LaunchOptions&, void* state, void (*call)(void*), void (*drop)(void*), const void* kernel);
template <class F, class Tuple, size_t... I> TW_INLINE void apply(F& f, Tuple& args);
template <int... I> struct Seq {};
template <int N, int... I> struct MakeSeq : MakeSeq<N - 1, N - 1, I...> {};
template <int... I> struct MakeSeq<0, I...> { using type = Seq<I...>; };
template <class T> struct Decay { using type = T; };
template <class T> struct Decay<T&> { using type = typename Decay<T>::type; };
template <class T> struct Decay<T&&> { using type = typename Decay<T>::type; };
template <class T> struct Decay<const T> { using type = T; };
template <class T, size_t N> struct Decay<T[N]> { using type = T*; };
template <class T, size_t N> struct Decay<const T[N]> { using type = const T*; };
template <int I, class T> struct Leaf { T value; };
template <class S, class... T> struct Pack;
template <int... I, class... T> struct Pack<Seq<I...>, T...> : Leaf<I, T>... {
  template <class... A> TW_PLAIN Pack(const A&... a) : Leaf<I, T>{(T)a}... {}
  template <class F> TW_PLAIN void call(F& f) { f(static_cast<Leaf<I, T>&>(*this).value...); }
};
template <class F, class... T> struct Call {
  F body;
  Pack<typename MakeSeq<sizeof...(T)>::type, T...> args;
  template <class... A> TW_PLAIN Call(F f, const A&... a) : body(f), args(a...) {}
  TW_PLAIN static void run(void* self) { static_cast<Call*>(self)->args.call(static_cast<Call*>(self)->body); }
  TW_PLAIN static void drop(void* self) { delete static_cast<Call*>(self); }
};
template <class... P> TW_INLINE const void* address_of(void (*kernel)(P...)) { return (const void*)kernel; }
template <class F> TW_INLINE const void* address_of(const F&) { return nullptr; }   // something else that can be called
struct Launch {
  LaunchOptions options;
  const void* kernel = nullptr;
  TW_PLAIN Launch(const char* name, dim3 cluster, dim3 grid, dim3 block, size_t shared = 0, void* stream = nullptr) {
    options.name = name; options.cluster = cluster; options.grid = grid; options.block = block;
    options.shared = shared; options.stream = stream;
  }
  TW_PLAIN Launch& of(const void* k) { kernel = k; return *this; }
  template <class F, class... A> __attribute__((always_inline)) TW_INLINE int run(F body, const A&... a) {
    using C = Call<F, typename Decay<A>::type...>;
    need_host(options.name);
    return enqueue(options, new C(body, a...), C::run, C::drop, kernel);
  }
};

// --- collectives
void sync_threads();
int sync_threads_reduce(int kind, int predicate);   // 0 count, 1 and, 2 or
void named_barrier(unsigned id, unsigned threads, bool wait);
enum WarpOp { SYNC_WARP, BALLOT, ANY, ALL, SHFL_IDX, SHFL_UP, SHFL_DOWN, SHFL_BFLY, MATCH_ANY, MATCH_ALL, ADD_U, ADD_S, MIN_U, MIN_S,
              MAX_U, MAX_S, AND_B, OR_B, XOR_B, MIN_F, MAX_F, ELECT };
u64 warp(int op, unsigned mask, u64 value = 0, unsigned lane = 0, unsigned segment = 31, bool* flag = nullptr);
unsigned active_mask();
void cluster_arrive(), cluster_wait(), grid_sync();
void fence(int scope, bool total = true);   // 0 block, 1 cluster, 2 device, 3 system; whether in one order of all
void proxy_fence(), alias_fence();
void pause();                // lets other threads run
void trap(const char* what) __attribute__((noreturn));

// --- atomics: the thread yields first, then the operation is whole
enum Access { READ = 1, WRITE = 2, STRONG = 4, ACQUIRE = 8, RELEASE = 16, BLOCK_SCOPE = 32, SYSTEM_SCOPE = 64, NO_YIELD = 128, ASYNC = 256, COMPARE = 512, VOLATILE = 1024, QUIET = 2048, ALIAS = 4096 };
void access(const void* p, size_t size, int flags);
void changed();              // an atomic has changed memory: a thread that spins may go on
template <class T, class F> TW_RAW T update(T* p, F f) {
  T old = *p, now = f(old);
  if (__builtin_memcmp(&old, &now, sizeof(T))) changed();
  *p = now;
  return old;
}
template <class T, class F> __attribute__((always_inline)) TW_INLINE T atomic(T* p, F f, int flags = STRONG) {
  access(p, sizeof(T), READ | WRITE | flags);
  return update(p, f);
}
template <class T> TW_RAW T raw(const char* p) { T v; __builtin_memcpy(&v, p, sizeof v); return v; }
template <class T> TW_RAW void put(char* p, T v) { __builtin_memcpy(p, &v, sizeof v); }

// --- registers of inline PTX: 64 raw bits
template <class To, class From> TW_INLINE To bits(From v) { To t{}; __builtin_memcpy(&t, &v, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From)); return t; }
template <char C> struct Width { static constexpr size_t value = C == 'h' ? 2 : (C == 'r' || C == 'f') ? 4 : C == 'b' ? 1 : 8; };
template <char C, class T> TW_INLINE u64 in(const T& v) {
  if constexpr (C == 'n') return (u64)v;
  else { static_assert(sizeof(T) == Width<C>::value, "an asm operand whose size does not fit its constraint"); return bits<u64>(v); }
}
template <char C, class T> TW_INLINE void out(T& v, u64 r) {
  static_assert(sizeof(T) == Width<C>::value, "an asm operand whose size does not fit its constraint");
  v = bits<T>(r);
}

// --- instructions on tiles; tables come from the layouts of the atom table
struct Fragment { const char* dtype; int slots, registers, rows, columns; const uint16_t* place; };  // place[thread * slots + slot]
struct Product { const char* name; int m, n, k; Fragment d, a, b, c; };
void mma(const Product&, u64* d, const u64* a, const u64* b, const u64* c, bool saturate = false);
void move_matrix(const Fragment& d, const Fragment& a, u64* out, u64 in);
void load_matrix(const Fragment&, u64* d, u64 address);
void store_matrix(const Fragment&, const u64* d, u64 address);
struct GroupOperand { const u64* registers; u64 descriptor; bool transposed; int scale; };
void wgmma(const Product&, void* const* d, bool keep, const GroupOperand& a, const GroupOperand& b);
void wgmma_fence(), wgmma_commit(), wgmma_wait(int pending);
void set_registers(unsigned count, bool more);

void multicast_load(const Fragment&, const char* fn, u64* d, u64 address, int flags);   // of the memory of all devices

// --- tensor memory: 128 lanes of 512 columns of 32 bits a block; products run in the order of their block
void tensor_alloc(u64 shared, unsigned columns, bool pair), tensor_free(uint32_t at, unsigned columns, bool pair), tensor_relinquish();
void tensor_mma(const char* kind, bool pair, uint32_t d, bool inside, u64 a, u64 b, uint32_t number, bool keep);
void tensor_mma_scaled(const char* kind, bool pair, uint32_t d, u64 a, u64 b, uint32_t number, uint32_t scale_a, uint32_t scale_b, bool keep);
void tensor_copy(bool pair, uint32_t d, u64 source);
void tensor_commit(u64 barrier, int mask, bool pair);
void tensor_fence(bool after);
void tensor_wait(bool stores);
void tensor_move(const Fragment&, u64* registers, uint32_t at, bool store);

// --- asynchronous copies
void copy_async(u64 shared, u64 global, int bytes, int source_bytes);
void copy_commit(), copy_wait(int pending), copy_arrive(u64 barrier, bool noinc);
void box_load(u64 shared, const void* map, int rank, const int* at, u64 barrier, int multicast, bool pair = false);
void box_store(const void* map, int rank, const int* at, u64 shared, bool add);
void bulk_load(u64 shared, u64 global, unsigned bytes, u64 barrier, int multicast);
void bulk_store(u64 global, u64 shared, unsigned bytes);
void bulk_commit(), bulk_wait(int pending, bool read);

// --- mbarrier
void barrier_init(u64 at, unsigned count);
void barrier_drop(u64 at);
u64 barrier_arrive(u64 at, unsigned count, unsigned bytes, bool drop = false);
void barrier_expect(u64 at, unsigned bytes);
void barrier_complete(u64 at, unsigned bytes);
bool barrier_test(u64 at, u64 phase, bool parity, bool wait);
void barrier_fence();
u64 map_rank(u64 address, unsigned rank);
u64 map_generic(u64 address, unsigned rank);
}  // namespace tw

constexpr int warpSize = 32;

// --- halves in the registers of inline PTX
namespace tw {
struct f16 {
  static float value(uint16_t v) { return (float)bits<_Float16>(v); }
  static uint16_t make(float f) { return bits<uint16_t>((_Float16)f); }
};
struct bf16 {
  static float value(uint16_t v) { return bits<float>((uint32_t)v << 16); }
  static uint16_t make(float f) { uint32_t u = bits<uint32_t>(f); return f != f ? 0x7FFF : (u + 0x7FFF + (u >> 16 & 1)) >> 16; }
};
template <class H> TW_INLINE float half_value(u64 v) { return H::value((uint16_t)v); }
template <class H> TW_INLINE uint16_t half_bits(float f) { return H::make(f); }
template <class H> TW_INLINE uint32_t pack(float low, float high) { return H::make(low) | (uint32_t)H::make(high) << 16; }
template <class H, class F> TW_INLINE uint32_t pairs(u64 a, u64 b, F f) {
  return pack<H>(f(H::value((uint16_t)a), H::value((uint16_t)b)), f(H::value((uint16_t)(a >> 16)), H::value((uint16_t)(b >> 16))));
}
template <class H> TW_INLINE uint32_t pairs(u64 a, u64 b, u64 c) {
  return pack<H>((float)((double)H::value((uint16_t)a) * H::value((uint16_t)b) + H::value((uint16_t)c)),
                 (float)((double)H::value((uint16_t)(a >> 16)) * H::value((uint16_t)(b >> 16)) + H::value((uint16_t)(c >> 16))));
}
TW_INLINE uint32_t to_tf32(float f) { uint32_t u = bits<uint32_t>(f); return f != f ? u : (u + 0x1000) & 0xFFFFE000u; }
}  // namespace tw
