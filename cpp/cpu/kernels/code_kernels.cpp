// Compiled once per instruction set, with AGENTKV_TABLE naming its table; see kernels.cpp.
#include "cpu/kernels/code_packed.h"
#include "cpu/kernels/code_stream.h"

namespace agentkv::cpu {
namespace {

template <class Row>
void attend_code_block(const BlockArgs& a) {
  switch (a.n_rows) {
    case 1:
      return stream_code_block<Row, 1>(a);
    case 2:
      return stream_code_block<Row, 2>(a);
    case 3:
      return stream_code_block<Row, 3>(a);
    case 4:
      return stream_code_block<Row, 4>(a);
    default:
      return packed_code_block<Row>(a);
  }
}

template <class Row>
constexpr RowKernels kCodeKernels = {attend_code_block<Row>, Row::store_row, load_code_row<Row>, prepare_code_query,
                                     turn_state_back};

}  // namespace

extern const CodeKernelTable AGENTKV_TABLE;
const CodeKernelTable AGENTKV_TABLE = {{kCodeKernels<Int8Row>, kCodeKernels<Int4Row>}};

}  // namespace agentkv::cpu
