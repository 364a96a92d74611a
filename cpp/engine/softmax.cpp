#include "engine/softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

// One body per pass, written with vectors of 16 lanes that the compiler splits to the machine's width, compiled for
// several instruction sets and chosen at run time. Built without contraction: fused multiply-adds would give each
// instruction set its own bits.
#define AGENTKV_INLINE static inline __attribute__((always_inline))

namespace agentkv {
namespace {

constexpr std::size_t kLanes = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Bits = std::uint32_t __attribute__((vector_size(kLanes * sizeof(float))));

AGENTKV_INLINE Floats splat(float x) { return Floats{} + x; }

AGENTKV_INLINE Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// The first n < 16 elements; the rest is -inf, which adds no mass and is never a maximum.
AGENTKV_INLINE Floats load_part(const float* from, std::size_t n) {
  Floats v = splat(-kInfinity);
  std::memcpy(&v, from, n * sizeof(float));
  return v;
}

AGENTKV_INLINE Floats max_of(Floats a, Floats b) { return b > a ? b : a; }

// exp(x) for x <= 0, relative error about 2e-7; 0 below -87; NaN stays NaN.
AGENTKV_INLINE Floats exp_of(Floats x) {
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold
  const Floats shifted = x * 1.44269504f + magic;
  const Floats n = shifted - magic;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  Bits scale;
  std::memcpy(&scale, &shifted, sizeof scale);
  scale = (scale << 23) + 0x3F800000u;
  Floats two_to_n;
  std::memcpy(&two_to_n, &scale, sizeof scale);
  return x < -87.0f ? splat(0.0f) : p * two_to_n;
}

AGENTKV_INLINE float highest(Floats v) {
  float best = v[0];
  for (std::size_t i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

AGENTKV_INLINE double total(Floats v) {
  double sum = 0;
  for (std::size_t i = 0; i < kLanes; ++i) sum += static_cast<double>(v[i]);
  return sum;
}

AGENTKV_INLINE float block_max(const float* x, std::size_t n) {
  Floats best[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (std::size_t j = 0; j < 4; ++j) best[j] = max_of(best[j], load(x + i + j * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) best[0] = max_of(best[0], load(x + i));
  if (i < n) best[0] = max_of(best[0], load_part(x + i, n - i));
  return highest(max_of(max_of(best[0], best[1]), max_of(best[2], best[3])));
}

AGENTKV_INLINE Floats term(Floats x, float max, float inv_temperature, float floor) {
  const Floats e = exp_of((x - max) * inv_temperature);
  return x < floor ? splat(0.0f) : e;  // NaN is not below: it stays, and shows in the sum
}

AGENTKV_INLINE double block_mass(const float* x, std::size_t n, float max, float inv_temperature, float floor) {
  Floats sum[4] = {};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (std::size_t j = 0; j < 4; ++j) sum[j] += term(load(x + i + j * kLanes), max, inv_temperature, floor);
  }
  for (; i + kLanes <= n; i += kLanes) sum[0] += term(load(x + i), max, inv_temperature, floor);
  if (i < n) sum[1] += term(load_part(x + i, n - i), max, inv_temperature, floor);
  return total((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

AGENTKV_INLINE RowSummary summarise_body(const float* x, std::size_t n) {
  float max = -kInfinity;
  double mass = 0;
  std::size_t best = 0;
  for (std::size_t b = 0; b < n; b += kSoftmaxBlock) {
    const std::size_t size = std::min(kSoftmaxBlock, n - b);
    const float here = block_max(x + b, size);
    if (here > max) {
      if (mass != 0) mass *= std::exp(static_cast<double>(max) - static_cast<double>(here));
      max = here;
      best = b;
    }
    mass += block_mass(x + b, size, max == -kInfinity ? 0.0f : max, 1.0f, -kInfinity);
  }
  while (best + 1 < n && !(x[best] == max)) ++best;
  return {max, static_cast<std::int32_t>(best), static_cast<double>(max) + std::log(mass)};
}

AGENTKV_INLINE void masses_body(const float* x, std::size_t n, float max, float inv_temperature, float floor,
                                double* masses) {
  for (std::size_t b = 0; b < n; b += kSoftmaxBlock) {
    *masses++ = block_mass(x + b, std::min(kSoftmaxBlock, n - b), max, inv_temperature, floor);
  }
}

AGENTKV_INLINE void terms_body(const float* x, std::size_t n, float max, float inv_temperature, float floor,
                               float* terms) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats e = term(load(x + i), max, inv_temperature, floor);
    std::memcpy(terms + i, &e, sizeof e);
  }
  if (i < n) {
    const Floats e = term(load_part(x + i, n - i), max, inv_temperature, floor);
    std::memcpy(terms + i, &e, (n - i) * sizeof(float));
  }
}

AGENTKV_INLINE void maxima_body(const float* x, std::size_t n, float* maxima) {
  for (std::size_t i = 0; i < n; i += kMaximaGroup) *maxima++ = block_max(x + i, std::min(kMaximaGroup, n - i));
}

struct Kernels {
  RowSummary (*summarise)(const float*, std::size_t);
  void (*masses)(const float*, std::size_t, float, float, float, double*);
  void (*terms)(const float*, std::size_t, float, float, float, float*);
  void (*maxima)(const float*, std::size_t, float*);
};

#define AGENTKV_KERNELS(name, target)                                                                  \
  struct name {                                                                                        \
    target static RowSummary summarise(const float* x, std::size_t n) { return summarise_body(x, n); } \
    target static void masses(const float* x, std::size_t n, float m, float t, float f, double* out) { \
      masses_body(x, n, m, t, f, out);                                                                 \
    }                                                                                                  \
    target static void terms(const float* x, std::size_t n, float m, float t, float f, float* out) {   \
      terms_body(x, n, m, t, f, out);                                                                  \
    }                                                                                                  \
    target static void maxima(const float* x, std::size_t n, float* out) { maxima_body(x, n, out); }   \
    static constexpr Kernels table() { return {summarise, masses, terms, maxima}; }                    \
  };

AGENTKV_KERNELS(Baseline, )

#if defined(__x86_64__)
AGENTKV_KERNELS(Avx2, __attribute__((target("avx2"))))
AGENTKV_KERNELS(Avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))

Kernels choose() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return Avx512::table();
  }
  return __builtin_cpu_supports("avx2") ? Avx2::table() : Baseline::table();
}
#else
Kernels choose() { return Baseline::table(); }
#endif

const Kernels& kernels() {
  static const Kernels chosen = choose();
  return chosen;
}

}  // namespace

RowSummary summarise(std::span<const float> row) { return kernels().summarise(row.data(), row.size()); }

void block_masses(std::span<const float> row, float max, float inv_temperature, float floor, std::span<double> masses) {
  kernels().masses(row.data(), row.size(), max, inv_temperature, floor, masses.data());
}

void softmax_terms(std::span<const float> row, float max, float inv_temperature, float floor, std::span<float> terms) {
  kernels().terms(row.data(), row.size(), max, inv_temperature, floor, terms.data());
}

void group_maxima(std::span<const float> row, std::span<float> maxima) {
  kernels().maxima(row.data(), row.size(), maxima.data());
}

}  // namespace agentkv
