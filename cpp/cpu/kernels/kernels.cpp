// Compiled once per instruction set, with AGENTKV_TABLE naming its table. Uses no inline code of the standard library:
// the linker could otherwise pick a copy that needs newer instructions for the whole program.
#include "cpu/kernels/packed.h"
#include "cpu/kernels/row_ops.h"
#include "cpu/kernels/stream.h"

namespace agentkv::cpu {
namespace {

template <class Row>
void attend_block(const BlockArgs& a) {
  switch (a.n_rows) {
    case 1:
      return stream_block<Row, 1>(a);
    case 2:
      return stream_block<Row, 2>(a);
    case 3:
      return stream_block<Row, 3>(a);
    case 4:
      return stream_block<Row, 4>(a);
    default:
      return packed_block<Row>(a);
  }
}

}  // namespace

extern const KernelTable AGENTKV_TABLE;
const KernelTable AGENTKV_TABLE = {
    {attend_block<Fp32Row>, attend_block<Fp16Row>, attend_block<Bf16Row>},
    {store_row<Fp32Row>, store_row<Fp16Row>, store_row<Bf16Row>},
    init_state,
    merge_state,
    finish,
    rms_norm_row,
    rotate_row,
};

}  // namespace agentkv::cpu
