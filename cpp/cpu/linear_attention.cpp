#include "cpu/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/errors.h"
#include "core/message.h"
#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

// Cells that a row may look at: its own, those of its block, and the last one of the block before.
constexpr Pos kSeen = kStateBlock + 1;

class Head {
 public:
  Head(const StepPlan& plan, std::span<const Cell> recent, Pool& keys, Pool& values, States& states,
       const LinearAttentionArgs& args, std::int32_t head)
      : plan_(plan), recent_(recent), keys_(keys), values_(values), states_(states), args_(args), head_(head) {
    for (auto* rows : {&keys_seen_, &values_seen_}) rows->resize(kStateBlock);
    weights_.resize(static_cast<std::size_t>(std::max<std::int32_t>(kStateBlock, args.k.dim)));
    state_rows_.resize(static_cast<std::size_t>(args.k.dim));
  }

  void run() {
    for (std::int32_t row = 0; row < plan_.n_tokens(); ++row) step(row);
  }

 private:
  const float* at(const HeadsView& view, std::int32_t row) const {
    return view.data + head_ * view.head_stride + row * view.token_stride;
  }
  float scalar(const HeadsView& view, std::int32_t row) const { return view.data[row * view.token_stride + head_]; }
  float* key(Cell cell) { return reinterpret_cast<float*>(keys_.row(head_, cell)); }
  float* value(Cell cell) { return reinterpret_cast<float*>(values_.row(head_, cell)); }
  std::size_t state_offset() const {
    return static_cast<std::size_t>(head_) * static_cast<std::size_t>(args_.k.dim) *
           static_cast<std::size_t>(args_.v.dim);
  }

  // y += x^T (the state at `decay` behind it, and the n first rows of the block).
  void add_products(const float* x, const float* state, float decay, int n, float* y) {
    const KernelTable& k = kernels();
    if (state != nullptr) {
      const float faded = std::exp(decay);
      for (int i = 0; i < args_.k.dim; ++i) {
        weights_[static_cast<std::size_t>(i)] = faded * x[i];
        state_rows_[static_cast<std::size_t>(i)] = state + static_cast<std::ptrdiff_t>(i) * args_.v.dim;
      }
      k.add_weighted(state_rows_.data(), weights_.data(), args_.k.dim, y, args_.v.dim);
    }
    for (int j = 0; j < n; ++j) {
      const float* key = keys_seen_[static_cast<std::size_t>(j)];
      weights_[static_cast<std::size_t>(j)] = std::exp(decay - key[args_.k.dim]) * k.dot(key, x, args_.k.dim);
    }
    k.add_weighted(values_seen_.data(), weights_.data(), n, y, args_.v.dim);
  }

  void step(std::int32_t row) {
    const Pos inside = plan_.positions[static_cast<std::size_t>(row)] % kStateBlock;  // rows of the block before it
    const Cell* seen = recent_.data() + static_cast<std::size_t>(row) * kSeen;
    for (Pos j = 0; j <= inside; ++j) {
      keys_seen_[static_cast<std::size_t>(inside - j)] = key(seen[j]);
      values_seen_[static_cast<std::size_t>(inside - j)] = value(seen[j]);
    }
    const Cell before = seen[inside + 1];
    const float* state = before < 0 ? nullptr : states_.find(before) + state_offset();
    const float decayed = inside == 0 ? 0.0f : keys_seen_[static_cast<std::size_t>(inside - 1)][args_.k.dim];
    const float decay = decayed + scalar(args_.decay, row);
    const auto k_dim = static_cast<std::size_t>(args_.k.dim), v_dim = static_cast<std::size_t>(args_.v.dim);

    const float *k = at(args_.k, row), *v = at(args_.v, row);
    float *kept_k = key(seen[0]), *u = value(seen[0]);
    if (args_.beta.data == nullptr) {
      std::copy_n(v, v_dim, u);
    } else {
      const float beta = scalar(args_.beta, row);
      known_.assign(v_dim, 0.0f);
      add_products(k, state, decay, inside, known_.data());
      for (std::size_t i = 0; i < v_dim; ++i) u[i] = beta * (v[i] - known_[i]);
    }
    std::copy_n(k, k_dim, kept_k);
    std::fill_n(kept_k + k_dim, kDecayFloats, 0.0f);
    kept_k[k_dim] = decay;

    float* out = args_.out.data + head_ * args_.out.head_stride + row * args_.out.token_stride;
    std::fill_n(out, v_dim, 0.0f);
    add_products(at(args_.q, row), state, decay, inside + 1, out);
    if (inside + 1 == kStateBlock) end_block(seen[0], state, decay);
  }

  void end_block(Cell cell, const float* before, float decay) {
    float* state = states_.find(cell) + state_offset();
    const float faded = std::exp(decay);
    std::vector<float> fades(kStateBlock);
    for (std::size_t j = 0; j < fades.size(); ++j) fades[j] = std::exp(decay - keys_seen_[j][args_.k.dim]);
    for (int i = 0; i < args_.k.dim; ++i, state += args_.v.dim) {
      for (int d = 0; d < args_.v.dim; ++d) state[d] = before == nullptr ? 0.0f : faded * before[i * args_.v.dim + d];
      for (std::size_t j = 0; j < fades.size(); ++j) weights_[j] = fades[j] * keys_seen_[j][i];
      kernels().add_weighted(values_seen_.data(), weights_.data(), kStateBlock, state, args_.v.dim);
    }
  }

  const StepPlan& plan_;
  std::span<const Cell> recent_;  // [T, kSeen]
  Pool& keys_;
  Pool& values_;
  States& states_;
  const LinearAttentionArgs& args_;
  const std::int32_t head_;
  std::vector<const float*> keys_seen_, values_seen_, state_rows_;
  std::vector<float> weights_, known_;
};

// What each row needs is there, or comes before it in this step.
void check_seen(const StepPlan& plan, std::span<const Cell> recent, const States& states) {
  for (std::size_t row = 0; row < plan.positions.size(); ++row) {
    const Pos position = plan.positions[row], inside = position % kStateBlock;
    const Cell* seen = recent.data() + row * kSeen;
    const Pos needed = std::min(position, inside + 1);
    for (Pos j = 0; j <= needed; ++j) {
      require<InvalidStep>(seen[j] >= 0, "a layer of linear attention lacks position ", position - j, " for ",
                           position);
    }
    if (position <= inside) continue;
    const Cell before = seen[inside + 1];
    const bool in_step = std::find(plan.write_cells.begin(), plan.write_cells.end(), before) != plan.write_cells.end();
    require<InvalidStep>(in_step || states.find(before) != nullptr, "a layer of linear attention lacks its state at ",
                         "position ", position - inside - 1);
  }
}

}  // namespace

void linear_attention(const StepPlan& plan, Pool& keys, Pool& values, States& states, const LinearAttentionArgs& args,
                      const ParallelFor& parallel_for) {
  const std::vector<Cell> recent = plan.recent_cells(kSeen);
  check_seen(plan, recent, states);
  for (std::size_t row = 0; row < plan.positions.size(); ++row) {
    if ((plan.positions[row] + 1) % kStateBlock == 0) states.add(plan.write_cells[row]);
  }
  const auto task = [&](std::size_t head) {
    Head(plan, recent, keys, values, states, args, static_cast<std::int32_t>(head)).run();
  };
  parallel_for(static_cast<std::size_t>(args.v.heads), task);
}

}  // namespace agentkv::cpu
