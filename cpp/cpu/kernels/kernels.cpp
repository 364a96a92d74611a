// Compiled once per instruction set, with AGENTKV_TABLE naming its table. Uses no inline code of the standard library:
// the linker could otherwise pick a copy that needs newer instructions for the whole program.
#include "cpu/kernels/gates.h"
#include "cpu/kernels/packed.h"
#include "cpu/kernels/recurrence.h"
#include "cpu/kernels/row_ops.h"
#include "cpu/kernels/state.h"
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

void scale_query(const float* q, float scale, float* dst, int dim) {
  for (int d = 0; d < dim; ++d) dst[d] = q[d] * scale;
}

void keep_state(float*, int) {}

template <class Row>
constexpr RowKernels kFloatKernels = {store_row<Row>, load_row<Row>, scale_query, keep_state};

}  // namespace

extern const KernelTable AGENTKV_TABLE;
const KernelTable AGENTKV_TABLE = {
    {kFloatKernels<Fp32Row>, kFloatKernels<Fp16Row>, kFloatKernels<Bf16Row>},
    {attend_block<Fp32Row>, attend_block<Fp16Row>, attend_block<Bf16Row>},
    init_state,
    merge_state,
    finish,
    rms_norm_row,
    rotate_row,
    add_row,
    multiply_row,
    convolve_row,
    dot_row,
    faded_dot_row,
    fade_row,
    fades_of,
    add_products_of,
    scan_row,
    weighted_sum_row,
    {gate_row<Silu>, gate_row<TanhGelu>, gate_row<Sigmoid>, gate_row<Softplus>},
};

}  // namespace agentkv::cpu
