// Tensors as the byte layer sees them: float32 [heads, tokens, dim] with strides, dim contiguous.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace agentkv::cpu {

struct HeadsView {
  const float* data = nullptr;
  std::int32_t heads = 0, tokens = 0, dim = 0;
  std::int64_t head_stride = 0, token_stride = 0;  // in floats
};

struct MutableHeadsView {
  float* data = nullptr;
  std::int32_t heads = 0, tokens = 0, dim = 0;
  std::int64_t head_stride = 0, token_stride = 0;  // in floats
};

// Runs task(0) ... task(n_tasks - 1), each once, in any order, on any threads, and returns when all have ended. Tasks
// must be handed out dynamically. A null ParallelFor runs them on the caller.
using ParallelFor = std::function<void(std::size_t n_tasks, const std::function<void(std::size_t)>& task)>;

}  // namespace agentkv::cpu
