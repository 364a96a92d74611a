// What a pool stores its elements as.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/errors.h"

namespace agentkv::cpu {

enum class KvDtype { fp32, fp16, bf16 };

// "fp32", "fp16" or "bf16"; anything else throws InvalidTensor.
KvDtype parse_kv_dtype(std::string_view name);
std::string_view kv_dtype_name(KvDtype dtype);
std::size_t kv_dtype_size(KvDtype dtype);  // bytes of one element

}  // namespace agentkv::cpu
