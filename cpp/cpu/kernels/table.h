// The interface between the driver and the vector kernels: plain data, so that a file compiled for one instruction set
// shares no inline code with files compiled for another.
//
// The reduction order is part of the interface (all kernels, all query counts, all instruction sets with FMA give the
// same bits). Over float rows:
//   score(q, p)  = fma chain over d = 0 .. dim - 1 of q[d] * K[p][d], from 0; q already carries scale * log2(e); then
//   scores.h: the cap, and the slope times the distance
//   positions go by blocks [64 b, 64 b + 64); an absent or hidden position has score -inf, so weight 0
//   per block: peak = max, weights = exp2(score - peak), 16 lanes of denominators (lane = p mod 16, the four weights of
//   a lane summed as (w0 + w1) + (w2 + w3)), sum[d] = fma chain over p of w[p] * V[p][d], from sum[d] * fade
//   blocks of a segment in order, then segments merged in order
// Over rows of codes, with integer products, which are exact in any order:
//   score(q, p)  = float(codes of q * codes of K[p]) * scale of K[p] * scale of q; the softmax as above
//   per block: weights times the scales of V become 16-bit integers, sum[d] = fma(float(weights * codes of V), unit,
//   sum[d] * fade)
#pragma once

#include <cstddef>
#include <cstdint>

namespace agentkv::cpu {

inline constexpr int kBlock = 64;     // positions per block
inline constexpr int kSegment = 512;  // positions per segment: one state, reduced on one thread
inline constexpr int kLanes = 16;     // partial denominators
inline constexpr int kMaxHeadDim = 2048;

// A query row's running state in floats: sum [padded dim of V], denominators [kLanes], peak, padding.
inline constexpr int padded_dim(int dim) { return (dim + kLanes - 1) / kLanes * kLanes; }
inline constexpr int state_floats(int dim) { return padded_dim(dim) + 2 * kLanes; }
// A query row as kernels read it, in floats; a multiple of 64 bytes.
inline constexpr int query_floats(int dim) { return kLanes + (dim + 63) / 64 * 64; }
// Floats of scratch that attend_block needs: K and V of a block and the scores of a strip of rows.
inline constexpr int kStripRows = 24;
inline constexpr int scratch_floats(int k_dim, int v_dim) {
  return kBlock * (k_dim + padded_dim(v_dim)) + kStripRows * kBlock;
}

// Some query rows against one block of positions.
struct BlockArgs {
  const std::byte* k;  // this K/V head's rows, cell c at k + c * k_row_bytes
  const std::byte* v;
  const float* k_scales;  // cell c's at k_scales[c]; null where rows are floats
  const float* v_scales;
  std::size_t k_row_bytes, v_row_bytes;
  const std::int32_t* cells;       // [kBlock] cell of each position, -1 where absent
  const std::int32_t* next_cells;  // the block that follows, to prefetch; may be null
  int k_dim, v_dim;
  int n_rows;
  const float* const* q;         // [n_rows] -> [query_floats(k_dim)], as prepare_query wrote it
  const std::uint64_t* visible;  // [n_rows] bit p: the row sees position p of the block; never 0
  float* const* state;           // [n_rows] -> [state_floats(v_dim)], 64-byte aligned
  float cap;                     // scores become cap * tanh(score / cap); with log2(e); 0: none
  const float* slopes;           // [n_rows] a score gains per position that the row is away, with log2(e); null: none
  const float* distances;        // [n_rows] the block's first position less the row's; as slopes
  float* scratch;                // [scratch_floats(k_dim, v_dim)], 64-byte aligned
};

using AttendBlock = void (*)(const BlockArgs&);

// What depends on how a pool keeps its rows.
struct RowKernels {
  // src [n] as the pool keeps it; n a multiple of 8. Writes *scale where rows are codes.
  void (*store_row)(const float* src, std::byte* dst, float* scale, int n);
  // What was stored, as floats; dst [padded_dim(n)]. May read, and never uses, what lies behind the row.
  void (*load_row)(const std::byte* src, float scale, float* dst, int n);
  // Of keys: q times scale, which carries log2(e); dst [query_floats(dim)], 64-byte aligned.
  void (*prepare_query)(const float* q, float scale, float* dst, int dim);
  // Of values: before a state is finished, or meets one of other rows, its sums in the basis in which V came.
  void (*turn_state)(float* state, int dim);
};

// One row of a selective scan (Mamba; Gu and Dao 2023): for each channel and state
//   state = e^(decay rate) state + b x,   out = the sum over states of c times it.
struct ScanRow {
  const float *x, *decay;  // of channels
  const float *b, *c;      // of states; c may be null: no output
  const float* rates;      // of states and channels
  std::ptrdiff_t rate_stride;
  float* state;  // likewise
  std::ptrdiff_t state_stride;
  float* out;  // of channels; may be null
  int n_states;
};

struct KernelTable {
  RowKernels rows[3];           // fp32, fp16, bf16
  AttendBlock attend_block[3];  // the same
  void (*init_state)(float* state, int dim);
  void (*merge_state)(float* into, const float* later, int dim);
  // `sink`: a score, with log2(e), that takes weight and has no value (gpt-oss, 2025); minus infinity: none.
  void (*finish)(const float* state, float sink, float* out, int dim);
  void (*rms_norm)(const float* x, const float* weight, float eps, float* y, int n);
  // Turns pairs (i, i + pairs), or (2 i, 2 i + 1) when interleaved, by the angles of cos and sin [pairs].
  void (*rotate)(const float* x, const float* cos, const float* sin, int pairs, bool interleaved, float* y);
  void (*add)(const float* a, const float* b, float* y, int n);
  void (*multiply)(const float* a, const float* b, float* y, int n);
  // y[i] = bias[i], then plus taps[j][i] * weight[i * width + j] for j = 0, 1, ...; a tap or the bias may be null.
  void (*convolve)(const float* const* taps, int width, const float* weight, const float* bias, float* y, int n);
  float (*dot)(const float* a, const float* b, int n);
  // The same of a [n] times e^(later - earlier), differences of at most 0; a null `earlier` is zeros.
  float (*faded_dot)(const float* a, const float* b, const float* later, const float* earlier, int n);
  // y = x times e^(later - earlier), likewise.
  void (*fade)(const float* x, const float* later, const float* earlier, float* y, int n);
  // y = e^(now - decays).
  void (*fades)(const float* decays, float now, float* y, int n);
  // y[o] += the sum over r of weights[o * weight_stride + r] * rows[r], in order, for each output [n] at o * y_stride.
  void (*add_products)(const float* const* rows, int n_rows, const float* weights, std::ptrdiff_t weight_stride,
                       int n_outputs, float* y, std::ptrdiff_t y_stride, int n);
  void (*scan)(const ScanRow& row, int n);
  // y = the sum over r of weights[r] * rows[r], in order; rows at rows + r * stride, y none of them.
  void (*weighted_sum)(const float* rows, std::ptrdiff_t stride, const float* weights, int n_rows, float* y, int n);
  // y = gate(x) * up, or gate(x) where `up` is null, for each Gate.
  void (*gate[4])(const float* x, const float* up, float* y, int n);
};

// Apart from the others because more instruction sets matter to it.
struct CodeKernelTable {
  RowKernels rows[2];              // int8, int4
  AttendBlock attend_block[2][2];  // by keys, then by values; null for int4 keys over int8 values
};

// For the instruction set in use.
const KernelTable& kernels();
const CodeKernelTable& code_kernels();
enum class KvDtype;
const RowKernels& row_kernels(KvDtype dtype);
// For keys and values of dtypes that parse_kv_dtype() gives.
AttendBlock attend_kernel(KvDtype keys, KvDtype values);

}  // namespace agentkv::cpu
