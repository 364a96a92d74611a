// The part of a byte layer that the core can see. Backends derive from it and add tensors.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/api.h"
#include "core/types.h"

namespace agentkv {

// What the caller chooses for one cache.
struct CacheOptions {
  Cell capacity = 0;
  std::string kv_dtype = "fp16";
  Cell min_chunk = 256;  // first allocation in cells; doubles up to capacity
  SeqId max_sequences = kDefaultMaxSequences;
  std::string policy = "full";  // which positions stay cached, see cache_builders.h
};

// The same, with what the program says of its layers.
struct CacheConfig : CacheOptions {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
};

class AGENTKV_API ByteLayer {
 public:
  virtual ~ByteLayer() = default;
  virtual std::string_view backend_id() const = 0;
  virtual std::size_t bytes() const = 0;  // K and V bytes allocated now, all layers
  virtual Cell allocated_cells() const = 0;
  // Copies cell src[i] to dst[i] in every layer (compaction after a draft tree was accepted).
  virtual void move_cells(const Cell* src, const Cell* dst, std::size_t n) = 0;
};

}  // namespace agentkv
