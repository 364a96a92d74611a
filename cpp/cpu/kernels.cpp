#include "core/isa.h"
#include "cpu/dtype.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {

AGENTKV_DEFINE_KERNELS(KernelTable, kernels)
AGENTKV_DEFINE_DOT_KERNELS(CodeKernelTable, code_kernels)

const RowKernels& row_kernels(KvDtype dtype) {
  const int i = static_cast<int>(dtype);
  return has_scales(dtype) ? code_kernels().rows[i - static_cast<int>(KvDtype::Int8)] : kernels().rows[i];
}

}  // namespace agentkv::cpu
