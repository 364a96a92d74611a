// What layers of experts have in common, whatever their weights are: rows by the expert that they meet, and the tasks
// that a call is cut into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/heads_view.h"
#include "cpu/linear/panels.h"

namespace agentkv::cpu {

// Weights [experts, outputs, inputs].
struct ExpertShape {
  int experts = 0, outputs = 0, inputs = 0;
};

// Slots of rows (slot t * k + i is choice i of k of row t), by the expert that each chose; in order where they chose
// the same.
class Routes {
 public:
  // experts [slots]. Keeps its memory for the next call. Throws InvalidTensor for one that is not in [0, n_experts).
  void assign(std::span<const std::int64_t> experts, int n_experts);

  std::span<const std::int32_t> slots() const { return slots_; }
  std::span<const std::int32_t> of(int expert) const { return slots().subspan(begin(expert), count(expert)); }
  std::size_t begin(int expert) const { return begin_[static_cast<std::size_t>(expert)]; }

 private:
  std::size_t count(int expert) const { return begin(expert + 1) - begin(expert); }

  std::vector<std::size_t> begin_;
  std::vector<std::int32_t> slots_;
};

// Some panels of one expert, and all rows that chose it.
struct ExpertTask {
  int expert;
  Panels panels;
  std::size_t first;                    // of its rows, where these are by expert
  std::span<const std::int32_t> slots;  // where each of them goes
};

// The rows of one call, by expert.
class ExpertRows {
 public:
  // x, chosen and y as expert_linear takes them; bias [experts, outputs], or empty. Keeps its memory for the next call.
  // Throws InvalidTensor for shapes that do not fit and for an expert that there is not.
  void assign(const HeadsView& x, std::span<const std::int64_t> chosen, const ExpertShape& shape,
              std::span<const float> bias, const MutableHeadsView& y);

  // Which row of x is at each place.
  std::span<const std::int32_t> of_x() const { return of_x_; }
  std::size_t x_stride() const { return x_stride_; }  // between rows, and between slots, in floats
  std::size_t y_stride() const { return y_stride_; }
  // For weights in panels of so many bytes.
  std::vector<ExpertTask> tasks(std::size_t panel_bytes) const;
  // Of an expert, out of the biases of all.
  std::span<const float> bias_of(int expert, std::span<const float> bias) const;

 private:
  ExpertShape shape_;
  Routes routes_;
  std::vector<std::int32_t> of_x_;
  std::size_t x_stride_ = 0, y_stride_ = 0;
};

}  // namespace agentkv::cpu
