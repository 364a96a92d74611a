// The number formats in which pools can store K and V.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/errors.h"

namespace agentkv::cpu {

enum class KvDtype { Fp32, Fp16, Bf16, Int8, Int4 };

// Of a cache's keys and of its values.
struct KvDtypes {
  KvDtype keys, values;
};

// From its name: "fp32", "fp16", "bf16", "int8" or "int4" for both, or "int8/int4". Throws InvalidTensor for another.
KvDtypes parse_kv_dtype(std::string_view name);
// Rows of codes have a float32 scale each.
bool has_scales(KvDtype dtype);
// Bytes of a row without its scale. int4 packs 32 numbers into 16 bytes.
std::size_t row_bytes(KvDtype dtype, int head_dim);

}  // namespace agentkv::cpu
