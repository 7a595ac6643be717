// Textures and surfaces: addresses beside the image, filters, channels; each texel that is read is an access of its thread.
#define TW_NO_NEW
#include "include/cuda_runtime.h"

#include <algorithm>

#include "runtime.h"

namespace {
using namespace tw;
struct Texture { char* data; size_t width, height, pitch; int bytes, channels; cudaChannelFormatKind format; cudaTextureDesc how; cudaArray_t array; bool linear; };
std::vector<Texture> textures(1);                           // 0 is no texture

cudaError_t make(unsigned long long* object, const cudaResourceDesc* r, const cudaTextureDesc& how) {
  TW_ONE_HOST;
  Texture t{};
  t.how = how;
  cudaChannelFormatDesc d;
  if (r->resType == cudaResourceTypeArray) {
    cudaArray_t a = t.array = r->res.array.array;
    d = a->desc; t.data = a->data; t.width = a->width; t.height = std::max<size_t>(a->height, 1); t.pitch = a->pitch;
  } else if (r->resType == cudaResourceTypePitch2D) {
    auto& p = r->res.pitch2D;
    if (p.pitchInBytes % 32 || (u64)p.devPtr % 32) return failed(cudaErrorInvalidValue);
    d = p.desc; t.data = (char*)p.devPtr; t.width = p.width; t.height = p.height; t.pitch = p.pitchInBytes;
  } else if (r->resType == cudaResourceTypeLinear) {
    d = r->res.linear.desc; t.data = (char*)r->res.linear.devPtr; t.height = 1; t.linear = true;
  } else return failed(cudaErrorNotSupported);
  t.channels = (d.x > 0) + (d.y > 0) + (d.z > 0) + (d.w > 0);
  t.bytes = d.x / 8; t.format = d.f;
  if (!t.bytes || t.bytes == 3 || t.bytes > 4 || t.channels == 3 || !t.data) return failed(cudaErrorInvalidValue);
  if (t.linear) t.width = r->res.linear.sizeInBytes / (t.bytes * t.channels);
  bool floats = t.format == cudaChannelFormatKindFloat || how.readMode == cudaReadModeNormalizedFloat;
  if (how.filterMode == cudaFilterModeLinear && !floats) return failed(cudaErrorInvalidValue);   // integers are not blended
  textures.push_back(t);
  *object = textures.size() - 1;
  return cudaSuccess;
}
const Texture& texture(unsigned long long object, const void* pc, const char* what) {
  if (!current) fail("host-use", pc, "a %s is used outside a kernel", what);
  if (!object || object >= textures.size() || !textures[object].data) fail("address", pc, "%s uses a %s that does not exist", thread_name(current).c_str(), what);
  return textures[object];
}
// The place of an index in one dimension, or -1 for the border's colour.
long place(long i, long n, cudaTextureAddressMode mode, bool normalized) {
  if (i >= 0 && i < n) return i;
  if (mode == cudaAddressModeBorder) return -1;
  if (mode == cudaAddressModeClamp || !normalized) return std::clamp(i, 0l, n - 1);   // the others need normalised coordinates
  long period = mode == cudaAddressModeWrap ? n : 2 * n, k = (i % period + period) % period;
  return k < n ? k : 2 * n - 1 - k;
}
void texel(const Texture& t, long x, long y, const void* pc, unsigned out[4]) {
  bool blend = t.how.readMode == cudaReadModeNormalizedFloat && t.format != cudaChannelFormatKindFloat;
  long i = place(x, t.width, t.how.addressMode[0], t.how.normalizedCoords), j = t.height == 1 ? 0 : place(y, t.height, t.how.addressMode[1], t.how.normalizedCoords);
  for (int c = 0; c < 4; c++) out[c] = 0;
  if (i < 0 || j < 0) { for (int c = 0; c < t.channels; c++) out[c] = bits<unsigned>(t.how.borderColor[c]); return; }
  char* p = t.data + j * t.pitch + i * t.bytes * t.channels;
  if (checking) check_access(p, t.bytes * t.channels, READ, pc);
  for (int c = 0; c < t.channels; c++) {
    unsigned v = 0;
    memcpy(&v, p + c * t.bytes, t.bytes);
    bool is_signed = t.format == cudaChannelFormatKindSigned;
    int most = t.bytes < 4 ? (1 << (8 * t.bytes - is_signed)) - 1 : 0;
    int s = is_signed ? t.bytes == 1 ? (int8_t)v : t.bytes == 2 ? (int16_t)v : (int)v : (int)v;
    if (t.format == cudaChannelFormatKindFloat && t.bytes == 2) out[c] = bits<unsigned>(f16::value(v));
    else out[c] = blend ? bits<unsigned>(std::max(-1.f, (float)s / most)) : (unsigned)s;
  }
}
}  // namespace

void tw_fetch(unsigned* out, cudaTextureObject_t object, int dims, bool whole, float x, float y) {
  const void* pc = TW_PC;
  const Texture& t = texture(object, pc, "texture");
  if (whole) {                                              // linear memory: beside it is zero on a device, and a mistake of the program
    if (x < 0 || x >= t.width) note("out-of-bounds", pc, nullptr, "%s fetches texel %ld of a texture of %zu", thread_name(current).c_str(), (long)x, t.width);
    else return texel(t, (long)x, 0, pc, out);
    std::fill(out, out + 4, 0);
    return;
  }
  if (t.linear) fail("unsupported", pc, "tex1D and tex2D of linear memory: tex1Dfetch reads it");
  if (t.how.normalizedCoords) { x *= t.width; y *= t.height; }
  if (t.how.filterMode == cudaFilterModePoint) return texel(t, (long)floorf(x), (long)floorf(y), pc, out);
  x -= 0.5f; y -= 0.5f;
  long i = (long)floorf(x), j = (long)floorf(y);
  float a = rintf((x - i) * 256) / 256, b = dims > 1 ? rintf((y - j) * 256) / 256 : 0, sum[4] = {};   // weights have 8 bits
  for (int k = 0; k < 4; k++) {
    float weight = (k & 1 ? a : 1 - a) * (k & 2 ? b : 1 - b);
    unsigned part[4];
    if (dims == 1 && k > 1) break;
    texel(t, i + (k & 1), j + (k >> 1), pc, part);
    for (int c = 0; c < 4; c++) sum[c] += weight * bits<float>(part[c]);
  }
  for (int c = 0; c < 4; c++) out[c] = bits<unsigned>(sum[c]);
}
void tw_surface(void* value, cudaSurfaceObject_t object, size_t bytes, int x, int y, cudaSurfaceBoundaryMode mode, bool write) {
  const void* pc = TW_PC;
  const Texture& t = texture(object, pc, "surface");
  size_t width = t.width * t.bytes * t.channels;
  if (x % (long)bytes) fail("misaligned", pc, "%s uses a surface at byte %d of a row, no multiple of %zu (x counts bytes)", thread_name(current).c_str(), x, bytes);
  if (x < 0 || x + bytes > width || y < 0 || y >= (long)t.height) {
    if (mode == cudaBoundaryModeTrap) fail("out-of-bounds", pc, "%s uses a surface of %zu bytes by %zu rows at byte %d of row %d (x counts bytes)", thread_name(current).c_str(), width, t.height, x, y);
    if (mode == cudaBoundaryModeZero) { if (!write) memset(value, 0, bytes); return; }
    x = std::clamp<long>(x, 0, width - bytes); y = std::clamp<long>(y, 0, t.height - 1);
  }
  char* p = t.data + y * t.pitch + x;
  if (checking) check_access(p, bytes, write ? WRITE : READ, pc);
  if (write) memcpy(p, value, bytes); else memcpy(value, p, bytes);
}
cudaError_t cudaCreateTextureObject(cudaTextureObject_t* t, const cudaResourceDesc* r, const cudaTextureDesc* how, const cudaResourceViewDesc*) { return make(t, r, *how); }
cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* s, const cudaResourceDesc* r) { return r->resType == cudaResourceTypeArray ? make(s, r, {}) : failed(cudaErrorInvalidValue); }
cudaError_t cudaDestroyTextureObject(cudaTextureObject_t t) { TW_ONE_HOST; drain(); if (t < textures.size()) textures[t].data = nullptr; return cudaSuccess; }
cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t s) { return cudaDestroyTextureObject(s); }
cudaError_t cudaMallocArray(cudaArray_t* a, const cudaChannelFormatDesc* d, size_t width, size_t height, unsigned) {
  size_t bytes = (d->x + d->y + d->z + d->w) / 8, pitch = (width * bytes + 31) / 32 * 32;
  void* data;
  if (auto e = tw_malloc(&data, pitch * std::max<size_t>(height, 1), false, false)) return e;
  *a = new cudaArray{(char*)data, width, height, bytes, pitch, *d};
  return cudaSuccess;
}
cudaError_t cudaFreeArray(cudaArray_t a) { cudaFree(a->data); delete a; return cudaSuccess; }
cudaError_t cudaMemcpy2DToArray(cudaArray_t a, size_t at, size_t row, const void* from, size_t pitch, size_t width, size_t height, cudaMemcpyKind k) {
  if (at + width > a->width * a->bytes || row + height > std::max<size_t>(a->height, 1)) return failed(cudaErrorInvalidValue);
  return cudaMemcpy2D(a->data + row * a->pitch + at, a->pitch, from, pitch, width, height, k);
}
cudaError_t cudaMemcpy2DFromArray(void* to, size_t pitch, cudaArray_const_t a, size_t at, size_t row, size_t width, size_t height, cudaMemcpyKind k) {
  if (at + width > a->width * a->bytes || row + height > std::max<size_t>(a->height, 1)) return failed(cudaErrorInvalidValue);
  return cudaMemcpy2D(to, pitch, a->data + row * a->pitch + at, a->pitch, width, height, k);
}
