#include "cpu/dtype.h"

#include "core/message.h"

namespace agentkv::cpu {
namespace {

// By KvDtype: so many numbers take so many bytes.
constexpr struct {
  std::size_t numbers, bytes;
} kFormats[] = {{1, 4}, {1, 2}, {1, 2}, {1, 1}, {32, 16}};

constexpr struct {
  std::string_view name;
  KvDtypes dtypes;
} kNames[] = {{"fp32", {KvDtype::Fp32, KvDtype::Fp32}}, {"fp16", {KvDtype::Fp16, KvDtype::Fp16}},
              {"bf16", {KvDtype::Bf16, KvDtype::Bf16}}, {"int8", {KvDtype::Int8, KvDtype::Int8}},
              {"int4", {KvDtype::Int4, KvDtype::Int4}}, {"int8/int4", {KvDtype::Int8, KvDtype::Int4}}};

}  // namespace

KvDtypes parse_kv_dtype(std::string_view name) {
  for (const auto& each : kNames) {
    if (each.name == name) return each.dtypes;
  }
  throw InvalidTensor(error_text("kv_dtype '", name, "' is not one of fp32, fp16, bf16, int8, int4, int8/int4"));
}

bool has_scales(KvDtype dtype) { return dtype >= KvDtype::Int8; }

std::size_t row_bytes(KvDtype dtype, int head_dim) {
  const auto& format = kFormats[static_cast<int>(dtype)];
  return (static_cast<std::size_t>(head_dim) + format.numbers - 1) / format.numbers * format.bytes;
}

}  // namespace agentkv::cpu
