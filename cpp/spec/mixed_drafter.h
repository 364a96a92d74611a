// Several drafters for one generation.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/drafter.h"

namespace agentkv {

// The engine asks its parts, and verifies of the guesses of all what makes the most tokens per second.
class MixedDrafter final : public Drafter {
 public:
  explicit MixedDrafter(std::vector<std::shared_ptr<Drafter>> parts) : parts_(std::move(parts)) {}

  void propose(std::span<DraftRequest>) override {}  // its parts are asked
  std::vector<std::shared_ptr<Drafter>> parts() const override { return parts_; }

 private:
  const std::vector<std::shared_ptr<Drafter>> parts_;
};

}  // namespace agentkv
