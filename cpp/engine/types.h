// The integers that the step loop adds to the core's.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace agentkv {

using Token = std::int32_t;
using BranchId = std::int64_t;  // never reused, so a stale handle is recognised
using JobId = std::int64_t;
using Epoch = std::int64_t;      // of tokens that were written together; from 1 on
using AdapterId = std::int32_t;  // of a runner's adapters, from 1 on; never reused

inline constexpr AdapterId kNoAdapter = 0;

}  // namespace agentkv
