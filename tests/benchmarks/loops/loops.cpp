// The inner loops of kernels that take most of the time, between marks for llvm-mca: `__main__.py` compiles this for
// each instruction set and counts. Nothing here is run.
#include "cpu/blocks/formats/q4_k.h"
#include "cpu/blocks/formats/q6_k.h"
#include "cpu/blocks/formats/q8_0.h"
#include "cpu/kernels/block_stream.h"
#include "cpu/kernels/code_stream.h"
#include "cpu/kernels/linear_stream.h"
#include "cpu/kernels/stream.h"

#define AGENTKV_BEGIN(name) __asm__ volatile("# LLVM-MCA-BEGIN " name::: "memory")
#define AGENTKV_END() __asm__ volatile("# LLVM-MCA-END" ::: "memory")

namespace agentkv::cpu {

struct Blocks {
  const std::byte *chunk, *scales;
  const std::int8_t* x;
  const std::int32_t* bases;
  int n;
};

// A chunk of 32 inputs and kWidth outputs, with the scales of its groups.
#define AGENTKV_GROUPED_LOOP(Format, kRows, name)                                                      \
  void name(const Blocks& a, IVec* out) {                                                              \
    IVec total[kRows] = {};                                                                            \
    const std::byte *chunk = a.chunk, *scales = a.scales;                                              \
    const std::int8_t* x = a.x;                                                                        \
    const std::int32_t* bases = a.bases;                                                               \
    for (int i = 0; i < a.n; ++i) {                                                                    \
      AGENTKV_BEGIN(#name);                                                                            \
      for (int g = 0; g < 32 / Format::kGroup; ++g) {                                                  \
        IVec acc[kRows];                                                                               \
        if (g == 0) group_of_chunk<Format, 0, kRows>(chunk, x, bases, acc);                            \
        if (g == 1) group_of_chunk<Format, Format::kGroup == 16 ? 4 : 0, kRows>(chunk, x, bases, acc); \
        add_group<Format, kRows>(scales, acc, total);                                                  \
        scales += kPanel, bases += kRows;                                                              \
      }                                                                                                \
      chunk += PanelLayout<Format>::kChunkBytes, x += kChunkInputs * kRows;                            \
      AGENTKV_END();                                                                                   \
    }                                                                                                  \
    for (int r = 0; r < kRows; ++r) out[r] = total[r];                                                 \
  }
AGENTKV_GROUPED_LOOP(Q4_K, 1, q4_k_1)
AGENTKV_GROUPED_LOOP(Q4_K, 4, q4_k_4)
AGENTKV_GROUPED_LOOP(Q6_K, 1, q6_k_1)

void q8_0_1(const Blocks& a, const float* scales, Vec* out) {
  Vec sum = {};
  const std::byte* at = a.chunk;
  for (int b = 0; b < a.n; ++b, at += PanelLayout<Q8_0>::kBlockBytes) {
    AGENTKV_BEGIN("q8_0_1");
    IVec acc[1];
    group_of_chunk<Q8_0, 0, 1>(at + PanelLayout<Q8_0>::kCodesAt, a.x + 32 * b, a.bases + b, acc);
    sum = fused(__builtin_convertvector(acc[0], Vec) * splat(scales[b]), block_scales<Q8_0>(at), sum);
    AGENTKV_END();
  }
  *out = sum;
}

// 64 inputs.
void codes_4_1(const Blocks& a, Vec* out) {
  Vec sum = {};
  const std::byte* at = a.chunk;
  for (int g = 0; g < a.n; ++g, at += group_bytes<64>()) {
    AGENTKV_BEGIN("codes_4_1");
    IVec products[1];
    group_products<64, 1>(at + 2 * kPanel, a.x + g * 64, 0, a.bases + g * (64 / kSums), 0, products);
    sum = fma(__builtin_convertvector(products[0], Vec), load_scales(at), sum);
    AGENTKV_END();
  }
  *out = sum;
}

// kPack * kWidth numbers of a row of K.
void keys_int8_1(const std::byte* row, const std::int32_t* q, int lanes, IVec* out) {
  IVec acc = {};
  for (int lane = 0; lane < lanes; lane += kWidth) {
    AGENTKV_BEGIN("keys_int8_1");
    acc = dot_codes(acc, load_lanes<Int8Row>(row, lane), load_as<IVec>(q + lane));
    AGENTKV_END();
  }
  *out = acc;
}

// 16 numbers of two rows of V.
void values_int8_1(const std::byte* const* rows, const std::int16_t* weights, int end, IVec* out) {
  IVec acc[16 / kWidth] = {};
  for (int p = 0; p < end; p += 2) {
    AGENTKV_BEGIN("values_int8_1");
    IVec v[16 / kWidth];
    load_pairs<Int8Row>(rows[p], rows[p + 1], 0, v);
    const IVec w = splat_int(load_as<std::int32_t>(weights + p));
    for (int i = 0; i < 16 / kWidth; ++i) acc[i] = dot_pairs(acc[i], v[i], w);
    AGENTKV_END();
  }
  for (int i = 0; i < 16 / kWidth; ++i) out[i] = acc[i];
}

// kWidth numbers of kWidth rows of K.
void keys_fp16_1(const std::byte* const* rows, const float* q, int dim, Vec* out) {
  Vec acc = {};
  for (int d = 0; d < dim; d += kWidth) {
    AGENTKV_BEGIN("keys_fp16_1");
    Vec k[kWidth];
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) k[i] = Fp16Row::load(rows[i], d);
    transpose(k);
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) acc = fma(splat(q[d + i]), k[i], acc);
    AGENTKV_END();
  }
  *out = acc;
}

// 4 kWidth numbers of a row of V.
void values_fp16_1(const std::byte* const* rows, const float* weights, int end, Vec* out) {
  Vec acc[4] = {};
  for (int p = 0; p < end; ++p) {
    AGENTKV_BEGIN("values_fp16_1");
    const Vec w = splat(weights[p]);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) acc[c] = fma(w, Fp16Row::load(rows[p], c * kWidth), acc[c]);
    AGENTKV_END();
  }
  for (int c = 0; c < 4; ++c) out[c] = acc[c];
}

}  // namespace agentkv::cpu
