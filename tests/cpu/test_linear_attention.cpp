// Linear attention against its recurrence in float64: through blocks, forks and drafts, and the same bits however rows
// are fed.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/kv_cache.h"
#include "cpu/linear_attention.h"

using namespace agentkv;
using namespace agentkv::cpu;

namespace {

constexpr int kHeads = 3, kKeys = 24, kValues = 40;
constexpr Pos kLength = 200;

// What a token brings to each head.
struct Inputs {
  std::vector<float> q, k, v, decay, beta;  // [T, heads, ...]

  explicit Inputs(Pos length, unsigned seed) {
    std::minstd_rand rng(seed);
    std::normal_distribution<float> normal(0, 1);
    std::uniform_real_distribution<float> unit(0, 1);
    const auto fill = [&](std::vector<float>& x, int width, auto draw) {
      x.resize(static_cast<std::size_t>(length * kHeads * width));
      for (float& value : x) value = draw();
    };
    fill(q, kKeys, [&] { return normal(rng) * 0.3f; });
    fill(k, kKeys, [&] { return normal(rng) * 0.2f; });
    fill(v, kValues, [&] { return normal(rng); });
    fill(decay, 1, [&] { return -0.2f * unit(rng); });
    fill(beta, 1, [&] { return unit(rng); });
  }
};

// Every row by the recurrence, in float64: [T, heads, values].
std::vector<double> recurrence(const Inputs& x, Pos length, bool corrects) {
  std::vector<double> out;
  std::vector<double> state(kHeads * kKeys * kValues, 0.0);
  for (Pos t = 0; t < length; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      const std::size_t row = static_cast<std::size_t>(t * kHeads + h);
      const float *q = x.q.data() + row * kKeys, *k = x.k.data() + row * kKeys, *v = x.v.data() + row * kValues;
      double* s = state.data() + h * kKeys * kValues;
      for (int i = 0; i < kKeys * kValues; ++i) s[i] *= std::exp(double{x.decay[row]});
      for (int d = 0; d < kValues; ++d) {
        double known = 0, y = 0;
        for (int i = 0; i < kKeys; ++i) known += k[i] * s[i * kValues + d];
        const double u = corrects ? x.beta[row] * (v[d] - known) : v[d];
        for (int i = 0; i < kKeys; ++i) s[i * kValues + d] += k[i] * u;
        for (int i = 0; i < kKeys; ++i) y += q[i] * s[i * kValues + d];
        out.push_back(y);
      }
    }
  }
  return out;
}

class Model {
 public:
  explicit Model(bool corrects) : cells_(std::make_shared<Cells>(1024)), corrects_(corrects) {
    CacheConfig config;
    config.capacity = 1024;
    config.kv_dtype = "int8";  // its rows are float32 all the same
    config.n_layers = 1;
    config.n_kv_heads = kHeads;
    config.head_dim = kKeys;
    config.shapes = {{kHeads, kKeys, kValues, Kept::Linear}};
    config.windows = {kStateBlock + 1};
    cache_ = std::make_shared<KvCache>(config, cells_, nullptr);
    cells_->set_layer(cache_);
  }

  Cells& cells() { return *cells_; }
  KvCache& cache() { return *cache_; }

  // Rows [first, first + n) of x, as the next ones of a sequence; [n, heads, values].
  std::vector<float> feed(const Inputs& x, Pos first, Pos n, SeqId seq = 0) {
    const std::vector<SeqId> rows(static_cast<std::size_t>(n), seq);
    cells_->begin_step(rows);
    return run(x, first, n);
  }

  std::vector<float> run(const Inputs& x, Pos first, Pos n) {
    std::vector<std::int64_t> position(cells_->step_positions().begin(), cells_->step_positions().end());
    const auto rows = static_cast<std::size_t>(n), at = static_cast<std::size_t>(first * kHeads);
    std::vector<float> out(rows * kHeads * kValues);
    const auto view = [&](const std::vector<float>& data, int width) {
      return HeadsView{data.data() + at * static_cast<std::size_t>(width), kHeads, n, width, width, kHeads * width};
    };
    const auto per_head = [&](const std::vector<float>& data) {
      return HeadsView{data.data() + at, 1, n, kHeads, 0, kHeads};
    };
    cache_->attend_linear(0, position,
                          {view(x.q, kKeys),
                           view(x.k, kKeys),
                           view(x.v, kValues),
                           per_head(x.decay),
                           corrects_ ? per_head(x.beta) : HeadsView{},
                           {out.data(), kHeads, n, kValues, kValues, kHeads * kValues}});
    cells_->commit_step();
    return out;
  }

 private:
  std::shared_ptr<Cells> cells_;
  std::shared_ptr<KvCache> cache_;
  bool corrects_;
};

void check_close(std::span<const float> got, std::span<const double> want) {
  CHECK_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= 2e-5 * (1 + std::abs(want[i])));
}

void check_equal(std::span<const float> got, std::span<const float> want) {
  CHECK_EQ(got.size(), want.size());
  CHECK(std::memcmp(got.data(), want.data(), got.size_bytes()) == 0);
}

std::size_t floats(Pos n) { return static_cast<std::size_t>(n * kHeads * kValues); }

void rows_are_the_recurrence_however_they_are_fed(bool corrects) {
  const Inputs x(kLength, 1);
  const std::vector<double> want = recurrence(x, kLength, corrects);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    Model whole(corrects);
    const std::vector<float> at_once = whole.feed(x, 0, kLength);
    check_close(at_once, want);
    for (const Pos chunk : {1, 7, 64, 65}) {
      Model model(corrects);
      std::vector<float> got;
      for (Pos first = 0; first < kLength; first += chunk) {
        const std::vector<float> rows = model.feed(x, first, std::min(chunk, kLength - first));
        got.insert(got.end(), rows.begin(), rows.end());
      }
      check_equal(got, at_once);
    }
  }
}

void forks_and_rollbacks_go_on_from_what_is_shared() {
  const Inputs x(kLength, 2);
  Model model(true);
  const std::vector<float> all = model.feed(x, 0, kLength);
  for (const Pos length : {1, 63, 64, 65, 127, 128, 130, 199}) {
    model.cells().seq_cp(0, 1, 0, length);
    const std::vector<float> rest = model.feed(x, length, kLength - length, 1);
    check_equal(rest, std::span(all).subspan(floats(length)));
    model.cells().seq_rm(1);
  }
  model.cells().seq_rm(0, 100);
  check_equal(model.feed(x, 100, kLength - 100), std::span(all).subspan(floats(100)));
}

void drafts_go_on_from_their_parents() {
  const Inputs x(kLength, 3);
  Model model(true);
  const Pos held = 62;  // a chain of three ends a block
  const std::vector<float> all = model.feed(x, 0, kLength);
  model.cells().seq_cp(0, 1, 0, held);
  const std::vector<std::int32_t> parents{-1, -1, 0, 2};
  model.cells().propose(parents, 4, 1);
  model.cells().begin_step(std::vector<SeqId>(4, 1));
  Inputs drafts(4, 4);
  const auto copy = [](std::vector<float>& to, int row, const std::vector<float>& from, Pos at, int width) {
    std::copy_n(from.begin() + at * kHeads * width, kHeads * width, to.begin() + row * kHeads * width);
  };
  for (const auto& [row, at] : {std::pair{0, held}, {2, held + 1}, {3, held + 2}}) {
    copy(drafts.q, row, x.q, at, kKeys), copy(drafts.k, row, x.k, at, kKeys), copy(drafts.v, row, x.v, at, kValues);
    copy(drafts.decay, row, x.decay, at, 1), copy(drafts.beta, row, x.beta, at, 1);
  }
  const std::vector<float> got = model.run(drafts, 0, 4);
  check_equal(std::span(got).first(floats(1)), std::span(all).subspan(floats(held), floats(1)));
  check_equal(std::span(got).subspan(floats(2)), std::span(all).subspan(floats(held + 1), floats(2)));
  model.cells().commit(std::vector<std::int32_t>{0, 2, 3}, 3, 1);
  check_equal(model.feed(x, held + 3, 40, 1), std::span(all).subspan(floats(held + 3), floats(40)));
}

void states_are_given_back_and_missed() {
  const Inputs x(kLength, 5);
  Model model(false);
  const std::size_t empty = model.cache().bytes();
  model.feed(x, 0, kLength);
  const std::size_t state = sizeof(float) * kHeads * kKeys * kValues, full = model.cache().bytes();
  CHECK(full >= empty + 3 * state);
  model.cells().seq_discard(0, 0, 64, 1);
  CHECK(model.cache().bytes() <= full - state);
  model.cells().seq_cp(0, 1, 0, 64);
  CHECK_THROWS(model.feed(x, 64, 1, 1), InvalidStep, "lacks its state at position 63");
  model.cells().abort_step();
  CHECK_EQ(model.cells().seq_len(1), 64);
}

void refusals() {
  const Inputs x(4, 6);
  Model model(false);
  model.cells().begin_step(std::vector<SeqId>(2, 0));
  const std::vector<std::int64_t> position{0, 1};
  LinearAttentionArgs args;
  CHECK_THROWS(model.cache().attend_linear(1, position, args), InvalidTensor, "layer 1");
  CHECK_THROWS(model.cache().attend_linear(0, position, args), InvalidTensor, "q is");
}

}  // namespace

int main() {
  rows_are_the_recurrence_however_they_are_fed(false);
  rows_are_the_recurrence_however_they_are_fed(true);
  forks_and_rollbacks_go_on_from_what_is_shared();
  drafts_go_on_from_their_parents();
  states_are_given_back_and_missed();
  refusals();
}
