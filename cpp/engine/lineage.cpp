#include "engine/lineage.h"

#include <algorithm>
#include <iterator>

namespace agentkv {

Epoch Lineage::at(Pos length) const {
  const auto behind = std::ranges::lower_bound(stretches_, length, {}, &Stretch::from);
  return behind == stretches_.begin() ? 0 : std::prev(behind)->epoch;
}

void Lineage::cut(Pos length, Epoch next) {
  stretches_.erase(std::ranges::lower_bound(stretches_, length, {}, &Stretch::from), stretches_.end());
  if (stretches_.empty() || stretches_.back().epoch != next) stretches_.push_back({length, next});
}

void Lineage::go_on_as(const Lineage& other, Pos length) {
  cut(length, other.at(length + 1));
  const auto behind = std::ranges::upper_bound(other.stretches_, length, {}, &Stretch::from);
  stretches_.insert(stretches_.end(), behind, other.stretches_.end());
}

}  // namespace agentkv
