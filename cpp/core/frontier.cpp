#include "core/frontier.h"

#include <cstddef>

#include "core/errors.h"
#include "core/message.h"

namespace agentkv {

void Frontier::propose(std::span<const std::int32_t> parents) {
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const std::int32_t node = size() + static_cast<std::int32_t>(i);
    if (parents[i] < -1 || parents[i] >= node) {
      throw InvalidTree(error_text("node ", node, " has parent ", parents[i], "; a parent is in [-1, ", node, ")"));
    }
  }
  // Everything that can throw comes first; add_cell() relies on it too.
  const std::size_t total = parents_.size() + parents.size();
  parents_.reserve(total);
  depths_.reserve(total);
  cells_.reserve(total);
  path_.reserve(total);
  for (const std::int32_t parent : parents) {
    is_path_ = is_path_ && parent == size() - 1;
    depths_.push_back(parent < 0 ? 0 : depth(parent) + 1);
    parents_.push_back(parent);
  }
}

void Frontier::withdraw() noexcept {
  parents_.resize(cells_.size());
  depths_.resize(cells_.size());
  is_path_ = true;
  for (std::size_t node = 0; node < parents_.size(); ++node) {
    is_path_ = is_path_ && parents_[node] == static_cast<std::int32_t>(node) - 1;
  }
}

void Frontier::clear() noexcept {
  cells_.clear();
  withdraw();
}

void Frontier::check_chain(std::span<const std::int32_t> accepted) const {
  std::int32_t above = -1;
  for (const std::int32_t node : accepted) {
    if (node < 0 || node >= live()) {
      throw InvalidTree(error_text("accepted node ", node, " is out of range [0, ", live(), ")"));
    }
    const std::int32_t parent = parents_[static_cast<std::size_t>(node)];
    if (parent != above) {
      throw InvalidTree(error_text("accepted node ", node, " follows node ", above, ", but its parent is ", parent));
    }
    above = node;
  }
}

}  // namespace agentkv
