// Compiled once per instruction set, with AGENTKV_TABLE naming its table; see kernels.cpp.
#include "cpu/kernels/fit.h"

namespace agentkv::cpu {
namespace {

constexpr FitKernelTable table() {
  FitKernelTable all{};
#define AGENTKV_FIT(F) all.fit[static_cast<int>(BlockFormat::F)] = fit_block<F>;
  AGENTKV_EACH_FITTED_FORMAT(AGENTKV_FIT)
#undef AGENTKV_FIT
  return all;
}

}  // namespace

extern const FitKernelTable AGENTKV_TABLE;
const FitKernelTable AGENTKV_TABLE = table();

}  // namespace agentkv::cpu
