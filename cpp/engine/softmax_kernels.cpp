// Compiled once per instruction set, with AGENTKV_TABLE naming its table, written with vectors of 16 lanes that the
// compiler splits to the machine's width. Built without contraction: fused multiply-adds would give each instruction
// set its own bits. Uses no inline code of the standard library: the linker could pick a copy that needs newer
// instructions for the whole program.
#include "engine/softmax_kernels.h"

namespace agentkv {
namespace {

constexpr std::size_t kLanes = 16;
constexpr float kInfinity = __builtin_inff();

using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Bits = unsigned int __attribute__((vector_size(kLanes * sizeof(float))));

inline Floats splat(float x) { return Floats{} + x; }

inline Floats load(const float* from) {
  Floats v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

// The first n < 16 elements; the rest is -inf, which adds no mass and is never a maximum.
inline Floats load_part(const float* from, std::size_t n) {
  Floats v = splat(-kInfinity);
  __builtin_memcpy(&v, from, n * sizeof(float));
  return v;
}

inline Floats max_of(Floats a, Floats b) { return b > a ? b : a; }

// exp(x) for x <= 0, relative error about 2e-7; 0 below -87; NaN stays NaN.
inline Floats exp_of(Floats x) {
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
  __builtin_memcpy(&scale, &shifted, sizeof scale);
  scale = (scale << 23) + 0x3F800000u;
  Floats two_to_n;
  __builtin_memcpy(&two_to_n, &scale, sizeof scale);
  return x < -87.0f ? splat(0.0f) : p * two_to_n;
}

inline float highest(Floats v) {
  float best = v[0];
  for (std::size_t i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

inline double total(Floats v) {
  double sum = 0;
  for (std::size_t i = 0; i < kLanes; ++i) sum += static_cast<double>(v[i]);
  return sum;
}

float block_max(const float* x, std::size_t n) {
  Floats best[4] = {splat(-kInfinity), splat(-kInfinity), splat(-kInfinity), splat(-kInfinity)};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (std::size_t j = 0; j < 4; ++j) best[j] = max_of(best[j], load(x + i + j * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) best[0] = max_of(best[0], load(x + i));
  if (i < n) best[0] = max_of(best[0], load_part(x + i, n - i));
  return highest(max_of(max_of(best[0], best[1]), max_of(best[2], best[3])));
}

inline Floats term(Floats x, float max, float inv_temperature, float floor) {
  const Floats e = exp_of((x - max) * inv_temperature);
  return x < floor ? splat(0.0f) : e;  // NaN is not below: it stays, and shows in the sum
}

double block_mass(const float* x, std::size_t n, float max, float inv_temperature, float floor) {
  Floats sum[4] = {};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (std::size_t j = 0; j < 4; ++j) sum[j] += term(load(x + i + j * kLanes), max, inv_temperature, floor);
  }
  for (; i + kLanes <= n; i += kLanes) sum[0] += term(load(x + i), max, inv_temperature, floor);
  if (i < n) sum[1] += term(load_part(x + i, n - i), max, inv_temperature, floor);
  return total((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

void softmax_terms(const float* x, std::size_t n, float max, float inv_temperature, float floor, float* terms) {
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Floats e = term(load(x + i), max, inv_temperature, floor);
    __builtin_memcpy(terms + i, &e, sizeof e);
  }
  if (i < n) {
    const Floats e = term(load_part(x + i, n - i), max, inv_temperature, floor);
    __builtin_memcpy(terms + i, &e, (n - i) * sizeof(float));
  }
}

void group_maxima(const float* x, std::size_t n, std::size_t group, float* maxima) {
  for (std::size_t i = 0; i < n; i += group) *maxima++ = block_max(x + i, n - i < group ? n - i : group);
}

}  // namespace

extern const SoftmaxKernels AGENTKV_TABLE;
const SoftmaxKernels AGENTKV_TABLE = {block_max, block_mass, softmax_terms, group_maxima};

}  // namespace agentkv
