// make_session(capacity=..., ...) of whatever is loaded into this process and runs over a cache.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "core/byte_layer.h"

namespace agentkv {

template <class Session, class Loaded, class Class>
void def_make_session(Class& loaded) {
  namespace nb = nanobind;
  using namespace nb::literals;
  const CacheOptions defaults;
  loaded.def(
      "make_session",
      [](std::shared_ptr<Loaded> self, Cell capacity, std::string kv_dtype, Cell min_chunk, SeqId max_sequences,
         std::string policy, Pos window, Pos sinks) {
        return std::make_shared<Session>(
            std::move(self),
            CacheOptions{capacity, std::move(kv_dtype), min_chunk, max_sequences, std::move(policy), window, sinks});
      },
      nb::kw_only(), "capacity"_a, "kv_dtype"_a = defaults.kv_dtype, "min_chunk"_a = defaults.min_chunk,
      "max_sequences"_a = defaults.max_sequences, "policy"_a = defaults.policy, "window"_a = defaults.window,
      "sinks"_a = defaults.sinks,
      "A cache of `capacity` cells over these weights. K and V are kept as `kv_dtype` and allocated as needed, "
      "min_chunk cells first; `policy` is one of cache_builders(). With a window no layer looks further back than "
      "so many positions, the first `sinks` apart. Raises InvalidTensor, InvalidRange or RegistryError.");
}

}  // namespace agentkv
