// Textures of one and two dimensions, over arrays and over linear and pitched memory; surfaces of two. Layers and mipmaps are not here.
#pragma once

typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;
enum cudaChannelFormatKind { cudaChannelFormatKindSigned, cudaChannelFormatKindUnsigned, cudaChannelFormatKindFloat, cudaChannelFormatKindNone };
struct cudaChannelFormatDesc { int x, y, z, w; cudaChannelFormatKind f; };
struct cudaArray { char* data; size_t width, height, bytes, pitch; cudaChannelFormatDesc desc; };   // `bytes` of an element
typedef cudaArray* cudaArray_t;
typedef const cudaArray* cudaArray_const_t;
enum { cudaArrayDefault = 0, cudaArraySurfaceLoadStore = 2, cudaArrayTextureGather = 8 };
enum cudaResourceType { cudaResourceTypeArray, cudaResourceTypeMipmappedArray, cudaResourceTypeLinear, cudaResourceTypePitch2D };
struct cudaResourceDesc {
  cudaResourceType resType;
  union {
    struct { cudaArray_t array; } array;
    struct { void* devPtr; cudaChannelFormatDesc desc; size_t sizeInBytes; } linear;
    struct { void* devPtr; cudaChannelFormatDesc desc; size_t width, height, pitchInBytes; } pitch2D;
  } res;
};
enum cudaTextureAddressMode { cudaAddressModeWrap, cudaAddressModeClamp, cudaAddressModeMirror, cudaAddressModeBorder };
enum cudaTextureFilterMode { cudaFilterModePoint, cudaFilterModeLinear };
enum cudaTextureReadMode { cudaReadModeElementType, cudaReadModeNormalizedFloat };
enum cudaSurfaceBoundaryMode { cudaBoundaryModeZero, cudaBoundaryModeClamp, cudaBoundaryModeTrap };
struct cudaTextureDesc {
  cudaTextureAddressMode addressMode[3]; cudaTextureFilterMode filterMode; cudaTextureReadMode readMode;
  int sRGB; float borderColor[4]; int normalizedCoords; unsigned maxAnisotropy; cudaTextureFilterMode mipmapFilterMode; float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp; int disableTrilinearOptimization, seamlessCubemap;
};
struct cudaResourceViewDesc;
cudaError_t cudaCreateTextureObject(cudaTextureObject_t*, const cudaResourceDesc*, const cudaTextureDesc*, const cudaResourceViewDesc*);
cudaError_t cudaDestroyTextureObject(cudaTextureObject_t);
cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t*, const cudaResourceDesc*);
cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t);
cudaError_t cudaMallocArray(cudaArray_t*, const cudaChannelFormatDesc*, size_t width, size_t height = 0, unsigned flags = 0);
cudaError_t cudaFreeArray(cudaArray_t);
cudaError_t cudaMemcpy2DToArray(cudaArray_t, size_t at_bytes, size_t row, const void* from, size_t pitch, size_t width, size_t height, cudaMemcpyKind);
cudaError_t cudaMemcpy2DFromArray(void* to, size_t pitch, cudaArray_const_t, size_t at_bytes, size_t row, size_t width, size_t height, cudaMemcpyKind);
TW_INLINE cudaError_t cudaMemcpyToArray(cudaArray_t a, size_t at, size_t row, const void* from, size_t n, cudaMemcpyKind k) { return cudaMemcpy2DToArray(a, at, row, from, n < a->pitch ? n : a->width * a->bytes, n < a->pitch ? n : a->width * a->bytes, n < a->pitch ? 1 : n / (a->width * a->bytes), k); }
TW_INLINE cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind f) { return {x, y, z, w, f}; }

// The channels of a type: what they are, how many.
template <class T> struct tw_channels;
#define TW_CHANNELS(T, name, kind) \
  template <> struct tw_channels<T> { using C = T; static constexpr int count = 1; static constexpr cudaChannelFormatKind format = kind; }; \
  template <> struct tw_channels<name##1> : tw_channels<T> {}; \
  template <> struct tw_channels<name##2> : tw_channels<T> { static constexpr int count = 2; }; \
  template <> struct tw_channels<name##4> : tw_channels<T> { static constexpr int count = 4; };
TW_CHANNELS(signed char, char, cudaChannelFormatKindSigned) TW_CHANNELS(unsigned char, uchar, cudaChannelFormatKindUnsigned)
TW_CHANNELS(short, short, cudaChannelFormatKindSigned) TW_CHANNELS(unsigned short, ushort, cudaChannelFormatKindUnsigned)
TW_CHANNELS(int, int, cudaChannelFormatKindSigned) TW_CHANNELS(unsigned, uint, cudaChannelFormatKindUnsigned)
TW_CHANNELS(float, float, cudaChannelFormatKindFloat)
template <> struct tw_channels<char> : tw_channels<signed char> {};
template <class T> TW_INLINE cudaChannelFormatDesc cudaCreateChannelDesc() {
  using S = tw_channels<T>;
  int bits = 8 * sizeof(typename S::C);
  return {bits, S::count > 1 ? bits : 0, S::count > 2 ? bits : 0, S::count > 2 ? bits : 0, S::format};
}

// A texel is four channels of 32 bits: floats, or integers as the memory has them.
void tw_fetch(unsigned* channels, cudaTextureObject_t, int dims, bool whole, float x, float y);
void tw_surface(void* value, cudaSurfaceObject_t, size_t bytes, int x, int y, cudaSurfaceBoundaryMode, bool write);
template <class T> TW_FLATTEN T tw_texel(cudaTextureObject_t t, int dims, bool whole, float x, float y) {
  using C = typename tw_channels<T>::C;
  unsigned channels[4];
  tw_fetch(channels, t, dims, whole, x, y);
  C out[tw_channels<T>::count];
  for (int i = 0; i < tw_channels<T>::count; i++) if constexpr (sizeof(C) == 4) out[i] = tw::bits<C>(channels[i]); else out[i] = (C)channels[i];
  T v;
  __builtin_memcpy(&v, out, sizeof v);
  return v;
}
template <class T> TW_FLATTEN T tex1Dfetch(cudaTextureObject_t t, int i) { return tw_texel<T>(t, 1, true, (float)i, 0); }
template <class T> TW_FLATTEN T tex1D(cudaTextureObject_t t, float x) { return tw_texel<T>(t, 1, false, x, 0); }
template <class T> TW_FLATTEN T tex2D(cudaTextureObject_t t, float x, float y) { return tw_texel<T>(t, 2, false, x, y); }
template <class T> TW_FLATTEN void tex1Dfetch(T* v, cudaTextureObject_t t, int i) { *v = tex1Dfetch<T>(t, i); }
template <class T> TW_FLATTEN void tex2D(T* v, cudaTextureObject_t t, float x, float y) { *v = tex2D<T>(t, x, y); }
template <class T> TW_FLATTEN T surf2Dread(cudaSurfaceObject_t s, int x, int y, cudaSurfaceBoundaryMode m = cudaBoundaryModeTrap) { T v; tw_surface(&v, s, sizeof v, x, y, m, false); return v; }
template <class T> TW_FLATTEN void surf2Dread(T* v, cudaSurfaceObject_t s, int x, int y, cudaSurfaceBoundaryMode m = cudaBoundaryModeTrap) { *v = surf2Dread<T>(s, x, y, m); }
template <class T> TW_FLATTEN void surf2Dwrite(T v, cudaSurfaceObject_t s, int x, int y, cudaSurfaceBoundaryMode m = cudaBoundaryModeTrap) { tw_surface(&v, s, sizeof v, x, y, m, true); }
