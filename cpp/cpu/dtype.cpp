#include "cpu/dtype.h"

#include <iterator>

#include "core/message.h"

namespace agentkv::cpu {
namespace {

// By KvDtype.
constexpr struct {
  std::string_view name;
  std::size_t size;
} kDtypes[] = {{"fp32", 4}, {"fp16", 2}, {"bf16", 2}};

}  // namespace

KvDtype parse_kv_dtype(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kDtypes); ++i) {
    if (kDtypes[i].name == name) return static_cast<KvDtype>(i);
  }
  throw InvalidTensor(error_text("kv_dtype '", name, "' is not one of fp32, fp16, bf16"));
}

std::size_t kv_dtype_size(KvDtype dtype) { return kDtypes[static_cast<int>(dtype)].size; }

}  // namespace agentkv::cpu
