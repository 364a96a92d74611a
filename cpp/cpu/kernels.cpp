#include "core/isa.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {

AGENTKV_DEFINE_KERNELS(KernelTable, kernels)

}  // namespace agentkv::cpu
