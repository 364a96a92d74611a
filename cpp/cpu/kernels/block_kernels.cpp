// Compiled once per instruction set, with AGENTKV_TABLE naming its table; see kernels.cpp.
#include "cpu/kernels/block_expanded.h"
#include "cpu/kernels/block_floats.h"
#include "cpu/kernels/block_rows.h"
#include "cpu/kernels/block_stream.h"

#if defined(__AMX_INT8__)
#include "cpu/kernels/block_tiles.h"
#endif

namespace agentkv::cpu {
namespace {

int rows_together([[maybe_unused]] int rows) {
#if defined(__AMX_INT8__)
  if (rows >= kBlockTileRows) return 1;
#endif
  return kStreamRows;
}

template <class F>
void multiply_blocks(const BlockLinearArgs& a) {
#if defined(__AMX_INT8__)
  if (a.rows >= kBlockTileRows) return tile_block_panels<F>(a);
#endif
  if (a.rows >= kExpandedRows) return expanded_panels<F>(a);
  stream_panels(a, kStreamBlocks<F>);
}

#define AGENTKV_QUANTIZE(F) quantize_blocks<F>,
#define AGENTKV_MULTIPLY(F) multiply_blocks<F>,

}  // namespace

extern const BlockKernelTable AGENTKV_TABLE;
const BlockKernelTable AGENTKV_TABLE = {rows_together,
                                        {AGENTKV_EACH_BLOCK_FORMAT(AGENTKV_QUANTIZE)},
                                        {AGENTKV_EACH_BLOCK_FORMAT(AGENTKV_MULTIPLY)},
                                        multiply_float_blocks<Fp32Row>,
                                        multiply_float_blocks<Fp16Row>,
                                        multiply_float_blocks<Bf16Row>};

}  // namespace agentkv::cpu
