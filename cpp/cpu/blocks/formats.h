// All block types whose weights are codes. The next one is a file and a line here.
#pragma once

#include "cpu/blocks/formats/iq4_nl.h"
#include "cpu/blocks/formats/iq4_xs.h"
#include "cpu/blocks/formats/mxfp4.h"
#include "cpu/blocks/formats/q2_k.h"
#include "cpu/blocks/formats/q3_k.h"
#include "cpu/blocks/formats/q4_0.h"
#include "cpu/blocks/formats/q4_1.h"
#include "cpu/blocks/formats/q4_k.h"
#include "cpu/blocks/formats/q5_0.h"
#include "cpu/blocks/formats/q5_1.h"
#include "cpu/blocks/formats/q5_k.h"
#include "cpu/blocks/formats/q6_k.h"
#include "cpu/blocks/formats/q8_0.h"

#define AGENTKV_EACH_BLOCK_FORMAT(APPLY) \
  APPLY(Q4_0)                            \
  APPLY(Q4_1)                            \
  APPLY(Q5_0)                            \
  APPLY(Q5_1)                            \
  APPLY(Q8_0)                            \
  APPLY(Q2_K)                            \
  APPLY(Q3_K)                            \
  APPLY(Q4_K)                            \
  APPLY(Q5_K)                            \
  APPLY(Q6_K)                            \
  APPLY(IQ4_NL)                          \
  APPLY(IQ4_XS)                          \
  APPLY(MXFP4)

namespace agentkv::cpu {

// Where each stands in tables of them.
enum class BlockFormat : int {
#define AGENTKV_FORMAT_NAME(F) F,
  AGENTKV_EACH_BLOCK_FORMAT(AGENTKV_FORMAT_NAME)
#undef AGENTKV_FORMAT_NAME
      Count
};
inline constexpr int kBlockFormats = static_cast<int>(BlockFormat::Count);

}  // namespace agentkv::cpu
