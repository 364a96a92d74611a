#include "core/byte_layer.h"

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

void ByteLayer::check_cells(std::span<const Cell> cells, Cell end, std::size_t n_bytes) const {
  for (const Cell cell : cells) {
    if (cell < 0 || cell >= end) throw InvalidRange(error_text("cell ", cell, " is out of range [0, ", end, ")"));
  }
  if (n_bytes != cells.size() * cell_bytes()) {
    throw InvalidRange(
        error_text(n_bytes, " bytes for ", cells.size(), " cells; they take ", cells.size() * cell_bytes()));
  }
}

}  // namespace agentkv
