// Compiled once per instruction set, with AGENTKV_TABLE naming its table; see kernels.cpp.
#include "cpu/kernels/linear_float.h"
#include "cpu/kernels/linear_rows.h"
#include "cpu/kernels/linear_stream.h"

#if defined(__AMX_INT8__)
#include "cpu/kernels/linear_tiles.h"
#endif

namespace agentkv::cpu {
namespace {

template <int kGroup>
void multiply(const LinearArgs& a) {
#if defined(__AMX_INT8__)
  if (a.rows >= kTileRows<kGroup>) return tile_panels<kGroup>(a);
#endif
  if constexpr (kGroup == 0) {
    stream_panels(a, kStreamBytes);
  } else {
    stream_panels(a, kStreamGroups<kGroup>);
  }
}

}  // namespace

extern const LinearKernelTable AGENTKV_TABLE;
const LinearKernelTable AGENTKV_TABLE = {quantize_row, multiply<32>, multiply<64>, multiply<0>, multiply_float};

}  // namespace agentkv::cpu
