#include "cpu/dtype.h"

#include <string>

namespace agentkv::cpu {

KvDtype parse_kv_dtype(std::string_view name) {
  if (name == "fp32") return KvDtype::fp32;
  if (name == "fp16") return KvDtype::fp16;
  if (name == "bf16") return KvDtype::bf16;
  throw InvalidTensor("kv_dtype '" + std::string(name) + "' is not one of fp32, fp16, bf16");
}

std::string_view kv_dtype_name(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::fp32:
      return "fp32";
    case KvDtype::fp16:
      return "fp16";
    default:
      return "bf16";
  }
}

std::size_t kv_dtype_size(KvDtype dtype) { return dtype == KvDtype::fp32 ? 4 : 2; }

}  // namespace agentkv::cpu
