// Small helpers over MLX arrays. All of it is called on the owner.
#pragma once

#include <mlx/array.h>
#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>
#include <mlx/stream.h>
#include <mlx/transforms.h>

#include <cstddef>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace agentkv::mlx::testing {

namespace mx = ::mlx::core;

// Normal float32 values of a shape.
inline mx::array random_array(const mx::Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::size_t size = 1;
  for (const int n : shape) size *= static_cast<std::size_t>(n);
  std::vector<float> data(size);
  for (float& x : data) x = normal(random);
  return mx::array(data.begin(), shape, mx::float32);
}

// The same shape, dtype and values; NaN equals NaN.
inline bool same(const mx::array& a, const mx::array& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && mx::array_equal(a, b, true).item<bool>();
}

inline float largest_difference(const mx::array& a, const mx::array& b) {
  return mx::max(mx::abs(mx::subtract(mx::astype(a, mx::float32), mx::astype(b, mx::float32)))).item<float>();
}

// The cells [first, first + n) along axis 2.
inline mx::array cells_of(const mx::array& a, int first, int n) {
  return mx::slice(a, mx::Shape{0, 0, first, 0}, mx::Shape{a.shape(0), a.shape(1), first + n, a.shape(3)});
}

// An array whose evaluation fails.
class Failing final : public mx::UnaryPrimitive {
 public:
  using UnaryPrimitive::UnaryPrimitive;
  void eval_cpu(const std::vector<mx::array>&, mx::array&) override { throw std::runtime_error("no memory left"); }
  void eval_gpu(const std::vector<mx::array>&, mx::array&) override { throw std::runtime_error("no memory left"); }
  const char* name() const override { return "Failing"; }
};

inline mx::array failing(const mx::array& like) {
  const mx::Stream stream = mx::default_stream(mx::default_device());
  return mx::array(like.shape(), like.dtype(), std::make_shared<Failing>(stream), {like});
}

// The most bytes that MLX held during a call, beyond what it held before.
template <class Call>
std::size_t peak_of(Call&& call) {
  mx::clear_cache();
  mx::reset_peak_memory();
  const std::size_t before = mx::get_active_memory();
  call();
  const std::size_t peak = mx::get_peak_memory();
  return peak > before ? peak - before : 0;
}

}  // namespace agentkv::mlx::testing
