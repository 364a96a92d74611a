// NumPy arrays that own the vector they show.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace agentkv {

// One dimension for each of `sizes`, whose product is the vector's size. Shown as T, which is as wide as Stored.
template <class T, class Stored, class... Sizes>
nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<sizeof...(Sizes)>> array_of(std::vector<Stored> values,
                                                                                 Sizes... sizes) {
  static_assert(sizeof(T) == sizeof(Stored));
  auto* kept = new std::vector<Stored>(std::move(values));
  nanobind::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<Stored>*>(p); });
  return {kept->data(), {static_cast<std::size_t>(sizes)...}, owner};
}

// A copy of a range, as one dimension of T.
template <class T, class Range>
nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>> copied_array(const Range& range) {
  return array_of<T>(std::vector<T>(range.begin(), range.end()), range.size());
}

}  // namespace agentkv
