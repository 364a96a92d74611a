#include "cpu/linear_attention.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cpu/kernels/table.h"

namespace agentkv::cpu {
namespace {

std::size_t of(std::int64_t n) { return static_cast<std::size_t>(n); }
float* row_of(Pool& pool, int head, Cell cell) { return reinterpret_cast<float*>(pool.row(head, cell)); }
const float* row_of(const HeadsView& view, std::int32_t head, std::int32_t row) {
  return view.data + head * view.head_stride + row * view.token_stride;
}

// Keys of one head, and their decays since the block began, into the pool.
void write_keys(const BlockRows& rows, const LayerShape& shape, Pool& keys, const LinearAttentionArgs& args, int head) {
  const bool by_number = shape.kept == Kept::GatedLinear;
  const int decays = by_number ? shape.k_dim : shape.v_heads;
  for (std::int32_t row = 0; row < rows.count(); ++row) {
    float* key = row_of(keys, head, rows.cell(row));
    std::copy_n(row_of(args.k, head, row), shape.k_dim, key);
    const float* decay = by_number ? row_of(args.decay, head, row) : row_of(args.decay, 0, row) + head * decays;
    const float* sum = rows.inside(row) == 0 ? nullptr : row_of(keys, head, rows.seen(row)[1]) + shape.k_dim;
    for (int i = 0; i < decays; ++i) key[shape.k_dim + i] = (sum == nullptr ? 0.0f : sum[i]) + decay[i];
  }
}

// What a thread works in; kept, because a decoded row costs little more than its memory would.
struct Scratch {
  std::vector<const float*> keys, values;     // [kStateBlock] of the block
  std::vector<const float*> state_rows;       // [k_dim]
  std::vector<float> dots_q, dots_k;          // [rows, kStateBlock]: q and k of rows times keys of the block
  std::vector<float> faded;                   // [rows, k_dim]
  std::vector<float> left, turned;            // [k_dim] and [k_dim, kStateBlock]
  std::vector<float> from_state_q, known;     // [rows, v_dim]
  std::vector<float> decays, fades, weights;  // [kStateBlock]

  void fit(const LayerShape& shape) {
    const std::size_t block = of(kStateBlock), k = of(shape.k_dim), v = of(shape.v_dim);
    keys.resize(block), values.resize(block), state_rows.resize(k);
    dots_q.resize(block * block), dots_k.resize(block * block), faded.resize(block * k);
    left.resize(k), turned.resize(block * k);
    from_state_q.resize(block * v), known.resize(block * v);
    decays.resize(block), fades.resize(block), weights.resize(block);
  }
};

// Some heads of values that share a head of keys, through all rows of a step.
class Heads {
 public:
  Heads(const BlockRows& rows, const LayerShape& shape, Pool& keys, Pool& values, States& states,
        const LinearAttentionArgs& args, Scratch& scratch)
      : rows_(rows), shape_(shape), keys_(keys), values_(values), states_(states), args_(args), s_(scratch) {
    s_.fit(shape);
  }

  void run(int key_head, int first, int end) {
    key_head_ = key_head;
    for (std::int32_t row = 0; row < rows_.count();) {
      const std::int32_t stretch = stretch_from(row);
      multiply_keys(row, stretch);
      for (int head = first; head < end; ++head) run_stretch(row, stretch, head);
      row += stretch;
    }
  }

 private:
  bool by_number() const { return shape_.kept == Kept::GatedLinear; }

  // Rows that go on from the same state.
  std::int32_t stretch_from(std::int32_t row) const {
    std::int32_t n = 1;
    while (n < kStateBlock && row + n < rows_.count() && rows_.before(row + n) == rows_.before(row)) ++n;
    return n;
  }

  void see_keys(std::int32_t row) {
    const Cell* seen = rows_.seen(row);
    const Pos inside = rows_.inside(row);
    for (Pos j = 0; j <= inside; ++j) s_.keys[of(inside - j)] = row_of(keys_, key_head_, seen[j]);
  }

  // Where each number of a key fades by itself, products are of what has faded.
  void multiply_keys(std::int32_t first, std::int32_t n) {
    const KernelTable& kernel = kernels();
    const int k_dim = shape_.k_dim;
    for (std::int32_t i = 0; i < n; ++i) {
      see_keys(first + i);
      const Pos inside = rows_.inside(first + i);
      const float* own = s_.keys[of(inside)];
      const float* x[2] = {row_of(args_.q, key_head_, first + i), args_.corrects ? own : nullptr};
      for (int which = 0; which < 2; ++which) {
        float* dots = (which == 0 ? s_.dots_q : s_.dots_k).data() + i * kStateBlock;
        for (Pos j = 0; x[which] != nullptr && j <= inside; ++j) {
          const float* key = s_.keys[of(j)];
          dots[j] = by_number() ? kernel.faded_dot(key, x[which], own + k_dim, key + k_dim, k_dim)
                                : kernel.dot(key, x[which], k_dim);
        }
      }
    }
  }

  // y [n, v_dim] = the state's answer to x of some rows, as far as it has faded until then.
  void ask_state(const float* state, const HeadsView& x, std::int32_t first, std::int32_t n, int at, float* y) {
    const int k_dim = shape_.k_dim, v_dim = shape_.v_dim;
    std::fill_n(y, of(n) * of(v_dim), 0.0f);
    if (state == nullptr) return;
    for (std::int32_t i = 0; i < n; ++i) {
      const float* decays = row_of(keys_, key_head_, rows_.cell(first + i)) + k_dim;
      fade(row_of(x, key_head_, first + i), decays, nullptr, at, s_.faded.data() + i * k_dim);
    }
    for (int i = 0; i < k_dim; ++i) s_.state_rows[of(i)] = state + i * v_dim;
    kernels().add_products(s_.state_rows.data(), k_dim, s_.faded.data(), k_dim, n, y, v_dim, v_dim);
  }

  // y [k_dim] = what is left of x, of which `later` and `earlier` (null: nothing) are the decays.
  void fade(const float* x, const float* later, const float* earlier, int at, float* y) const {
    if (by_number()) return kernels().fade(x, later, earlier, y, shape_.k_dim);
    const float since = earlier == nullptr ? 0.0f : earlier[at];
    float left;
    kernels().fades(&since, later[at], &left, 1);
    for (int i = 0; i < shape_.k_dim; ++i) y[i] = left * x[i];
  }

  // How much of each row of the block is left at this one, whose own decay is the last.
  void fade_rows(Pos inside, int at) {
    if (by_number()) return;
    for (Pos j = 0; j <= inside; ++j) s_.decays[of(j)] = s_.keys[of(j)][shape_.k_dim + at];
    kernels().fades(s_.decays.data(), s_.decays[of(inside)], s_.fades.data(), inside + 1);
  }

  void add_rows(const float* dots, Pos n, float* y) {
    for (Pos j = 0; j < n; ++j) s_.weights[of(j)] = by_number() ? dots[j] : s_.fades[of(j)] * dots[j];
    kernels().add_products(s_.values.data(), n, s_.weights.data(), n, 1, y, shape_.v_dim, shape_.v_dim);
  }

  void run_stretch(std::int32_t first, std::int32_t n, int head) {
    const int v_dim = shape_.v_dim, at = head % shape_.v_heads;
    const Cell before = rows_.before(first);
    const std::size_t offset = of(head) * of(shape_.k_dim) * of(v_dim);
    const float* state = before < 0 ? nullptr : states_.find(before) + offset;
    ask_state(state, args_.q, first, n, at, s_.from_state_q.data());
    if (args_.corrects) ask_state(state, args_.k, first, n, at, s_.known.data());
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int32_t row = first + i;
      const Pos inside = rows_.inside(row);
      const Cell* seen = rows_.seen(row);
      for (Pos j = 0; j <= inside; ++j) s_.values[of(inside - j)] = row_of(values_, head, seen[j]);
      see_keys(row);
      fade_rows(inside, at);
      const float* v = row_of(args_.v, head, row);
      const float beta = args_.beta.data == nullptr ? 1.0f : row_of(args_.beta, 0, row)[head];
      float *u = row_of(values_, head, seen[0]), *known = s_.known.data() + i * v_dim;
      if (args_.corrects) add_rows(s_.dots_k.data() + i * kStateBlock, inside, known);
      for (int d = 0; d < v_dim; ++d) u[d] = beta * (args_.corrects ? v[d] - known[d] : v[d]);
      float* y = s_.from_state_q.data() + i * v_dim;
      add_rows(s_.dots_q.data() + i * kStateBlock, inside + 1, y);
      const float skip = args_.skip.empty() ? 0.0f : args_.skip[of(head)];
      float* out = args_.out.data + head * args_.out.head_stride + row * args_.out.token_stride;
      for (int d = 0; d < v_dim; ++d) out[d] = args_.skip.empty() ? y[d] : y[d] + skip * v[d];
      if (inside + 1 == kStateBlock) end_block(states_.find(seen[0]) + offset, state, at);
    }
  }

  // Keys, values and fades are those of the block's last row.
  void end_block(float* state, const float* before, int at) {
    const int k_dim = shape_.k_dim, v_dim = shape_.v_dim;
    const float* own = s_.keys.back() + k_dim;
    std::fill_n(s_.left.begin(), k_dim, 1.0f);
    fade(s_.left.data(), own, nullptr, at, s_.left.data());
    for (int i = 0; i < k_dim * v_dim; ++i) state[i] = before == nullptr ? 0.0f : s_.left[of(i / v_dim)] * before[i];
    for (Pos j = 0; j < kStateBlock; ++j) {
      const float* key = s_.keys[of(j)];
      fade(key, own, key + k_dim, at, s_.left.data());
      for (int i = 0; i < k_dim; ++i) s_.turned[of(i * kStateBlock + j)] = s_.left[of(i)];
    }
    kernels().add_products(s_.values.data(), kStateBlock, s_.turned.data(), kStateBlock, k_dim, state, v_dim, v_dim);
  }

  const BlockRows& rows_;
  const LayerShape& shape_;
  Pool& keys_;
  Pool& values_;
  States& states_;
  const LinearAttentionArgs& args_;
  Scratch& s_;
  int key_head_ = 0;
};

}  // namespace

int linear_key_floats(const LayerShape& shape) {
  const int decays = shape.kept == Kept::GatedLinear ? shape.k_dim : shape.v_heads;
  return (shape.k_dim + decays + 7) / 8 * 8;
}

void linear_attention(const BlockRows& rows, const LayerShape& shape, Pool& keys, Pool& values, States& states,
                      const LinearAttentionArgs& args, const ParallelFor& parallel_for) {
  rows.check([&](Cell cell) { return states.find(cell) != nullptr; });
  states.add_ends(rows);
  for (int head = 0; head < shape.n_kv_heads; ++head) write_keys(rows, shape, keys, args, head);
  constexpr int kTogether = 8;  // heads of values for which keys are multiplied once
  const int tasks_per_key = (shape.v_heads + kTogether - 1) / kTogether;
  const auto task = [&](std::size_t index) {
    static thread_local Scratch scratch;
    const int key_head = static_cast<int>(index) / tasks_per_key, part = static_cast<int>(index) % tasks_per_key;
    const int first = key_head * shape.v_heads + part * kTogether;
    const int end = std::min(first + kTogether, (key_head + 1) * shape.v_heads);
    Heads(rows, shape, keys, values, states, args, scratch).run(key_head, first, end);
  };
  parallel_for(of(shape.n_kv_heads) * of(tasks_per_key), task);
}

}  // namespace agentkv::cpu
