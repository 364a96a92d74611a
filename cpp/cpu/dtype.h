// The number formats in which a pool can store K and V.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/errors.h"

namespace agentkv::cpu {

enum class KvDtype { Fp32, Fp16, Bf16 };

// From its name: "fp32", "fp16" or "bf16". Throws InvalidTensor for another.
KvDtype parse_kv_dtype(std::string_view name);
std::size_t kv_dtype_size(KvDtype dtype);  // bytes of one element

}  // namespace agentkv::cpu
