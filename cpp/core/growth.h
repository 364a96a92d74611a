// How pools grow: the same cells in every byte layer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/errors.h"
#include "core/message.h"
#include "core/types.h"

namespace agentkv {

// The size that a pool of `held` cells grows to where `needed` are asked for: doubled from min_chunk, and
// no more than capacity. Throws CacheFull when needed > capacity.
inline Cell grown_cells(Cell held, Cell needed, Cell min_chunk, Cell capacity) {
  if (needed > capacity) {
    throw CacheFull(error_text("a pool of ", needed, " cells was asked for; capacity is ", capacity));
  }
  std::int64_t grown = std::max<std::int64_t>({held, min_chunk, 1});
  while (grown < needed) grown *= 2;
  return static_cast<Cell>(std::min<std::int64_t>(grown, capacity));
}

}  // namespace agentkv
