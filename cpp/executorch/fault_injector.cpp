#include "executorch/fault_injector.h"

#include <string>

#include "core/errors.h"

namespace agentkv {

void FaultInjector::fail_at(int layer, std::int64_t after_forwards) {
  if (layer < 0 || after_forwards < 0) {
    throw InvalidRange("fail_at: layer " + std::to_string(layer) + " after " + std::to_string(after_forwards) +
                       " forwards; neither may be negative");
  }
  layer_ = layer;
  after_forwards_ = after_forwards;
  armed_ = true;
}

std::function<void(int)> FaultInjector::next_forward() {
  if (!armed_ || after_forwards_-- > 0) return {};
  return [this](int layer) {
    if (layer != layer_) return;
    armed_ = false;
    throw InvalidTensor("injected failure at layer " + std::to_string(layer));
  };
}

}  // namespace agentkv
