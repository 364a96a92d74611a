#include "cpu/dtype.h"

#include <iterator>

#include "core/message.h"

namespace agentkv::cpu {
namespace {

// By KvDtype. So many numbers take so many bytes.
constexpr struct {
  std::string_view name;
  std::size_t numbers, bytes;
} kDtypes[] = {{"fp32", 1, 4}, {"fp16", 1, 2}, {"bf16", 1, 2}, {"int8", 1, 1}, {"int4", 32, 16}};

}  // namespace

KvDtype parse_kv_dtype(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kDtypes); ++i) {
    if (kDtypes[i].name == name) return static_cast<KvDtype>(i);
  }
  throw InvalidTensor(error_text("kv_dtype '", name, "' is not one of fp32, fp16, bf16, int8, int4"));
}

bool has_scales(KvDtype dtype) { return dtype >= KvDtype::Int8; }

std::size_t row_bytes(KvDtype dtype, int head_dim) {
  const auto& format = kDtypes[static_cast<int>(dtype)];
  return (static_cast<std::size_t>(head_dim) + format.numbers - 1) / format.numbers * format.bytes;
}

}  // namespace agentkv::cpu
