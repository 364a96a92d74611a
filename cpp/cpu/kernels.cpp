#include "core/isa.h"
#include "cpu/dtype.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {

namespace {

int code_index(KvDtype dtype) { return static_cast<int>(dtype) - static_cast<int>(KvDtype::Int8); }

}  // namespace

AGENTKV_DEFINE_KERNELS(KernelTable, kernels)
AGENTKV_DEFINE_DOT_KERNELS(CodeKernelTable, code_kernels)

const RowKernels& row_kernels(KvDtype dtype) {
  return has_scales(dtype) ? code_kernels().rows[code_index(dtype)] : kernels().rows[static_cast<int>(dtype)];
}

AttendBlock attend_kernel(KvDtype keys, KvDtype values) {
  if (has_scales(keys)) return code_kernels().attend_block[code_index(keys)][code_index(values)];
  return kernels().attend_block[static_cast<int>(keys)];
}

}  // namespace agentkv::cpu
