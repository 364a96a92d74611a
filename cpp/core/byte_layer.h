// The part of a byte layer that the core can see. Backends derive from it and add tensors.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/api.h"
#include "core/types.h"

namespace agentkv {

// The caller's choices for one cache. Facts of the architecture come with the program.
struct CacheConfig {
  // facts of the program
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  // choices of the caller
  Cell capacity = 0;
  Cell min_chunk = 256;  // first allocation in cells; doubles up to capacity
  const char* kv_dtype = "fp16";
  SeqId max_sequences = kDefaultMaxSequences;
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
