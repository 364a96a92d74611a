// Compiled once per instruction set, with AGENTKV_TABLE naming its table; see kernels.cpp.
#include "cpu/kernels/code_packed.h"
#include "cpu/kernels/code_stream.h"

namespace agentkv::cpu {
namespace {

template <class KeyRow, class ValueRow>
void attend_code_block(const BlockArgs& a) {
  switch (a.n_rows) {
    case 1:
      return stream_code_block<KeyRow, ValueRow, 1>(a);
    case 2:
      return stream_code_block<KeyRow, ValueRow, 2>(a);
    case 3:
      return stream_code_block<KeyRow, ValueRow, 3>(a);
    case 4:
      return stream_code_block<KeyRow, ValueRow, 4>(a);
    default:
      return packed_code_block<KeyRow, ValueRow>(a);
  }
}

template <class Row>
constexpr RowKernels kCodeKernels = {Row::store_row, load_code_row<Row>, prepare_code_query, turn_state_back};

}  // namespace

extern const CodeKernelTable AGENTKV_TABLE;
const CodeKernelTable AGENTKV_TABLE = {{kCodeKernels<Int8Row>, kCodeKernels<Int4Row>},
                                       {{attend_code_block<Int8Row, Int8Row>, attend_code_block<Int8Row, Int4Row>},
                                        {nullptr, attend_code_block<Int4Row, Int4Row>}}};

}  // namespace agentkv::cpu
