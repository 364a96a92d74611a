// Linear attention against its recurrence in float64: through blocks, forks and drafts, and the same bits however rows
// are fed.
#include <cmath>
#include <cstring>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/kv_cache.h"
#include "cpu/linear_attention.h"
#include "linear_attention_model.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing::linear_attention;

namespace {

constexpr Pos kLength = 200;

// Every row by the recurrence, in float64: [T, heads, values].
std::vector<double> recurrence(const Inputs& x, Pos length, Kind kind) {
  std::vector<double> out;
  std::vector<double> state(kHeads * kKeys * kValues, 0.0);
  for (Pos t = 0; t < length; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      const std::size_t row = static_cast<std::size_t>(t * kHeads + h);
      const std::size_t key_row = static_cast<std::size_t>(t * kind.key_heads() + h / kind.shared());
      const float *q = x.q.data() + key_row * kKeys, *k = x.k.data() + key_row * kKeys;
      const float *v = x.v.data() + row * kValues,
                  *decay = x.decay.data() + row * static_cast<std::size_t>(kind.decays());
      double* s = state.data() + h * kKeys * kValues;
      for (int i = 0; i < kKeys * kValues; ++i) {
        s[i] *= std::exp(double{decay[kind.by_number ? i / kValues : 0]});
      }
      for (int d = 0; d < kValues; ++d) {
        double known = 0, y = 0;
        for (int i = 0; i < kKeys; ++i) known += k[i] * s[i * kValues + d];
        const double u = x.beta[row] * (kind.corrects ? v[d] - known : v[d]);
        for (int i = 0; i < kKeys; ++i) s[i * kValues + d] += k[i] * u;
        for (int i = 0; i < kKeys; ++i) y += q[i] * s[i * kValues + d];
        out.push_back(kind.skips ? y + skip_of(h) * v[d] : y);
      }
    }
  }
  return out;
}

void check_close(std::span<const float> got, std::span<const double> want) {
  CHECK_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= 2e-5 * (1 + std::abs(want[i])));
}

void check_equal(std::span<const float> got, std::span<const float> want) {
  CHECK_EQ(got.size(), want.size());
  CHECK(std::memcmp(got.data(), want.data(), got.size_bytes()) == 0);
}

std::size_t floats(Pos n) { return static_cast<std::size_t>(n * kHeads * kValues); }

void rows_are_the_recurrence_however_they_are_fed(Kind kind) {
  const Inputs x(kLength, 1, kind);
  const std::vector<double> want = recurrence(x, kLength, kind);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    Model whole(kind);
    const std::vector<float> at_once = whole.feed(x, 0, kLength);
    check_close(at_once, want);
    for (const Pos chunk : {1, 7, 64, 65}) {
      Model model(kind);
      std::vector<float> got;
      for (Pos first = 0; first < kLength; first += chunk) {
        const std::vector<float> rows = model.feed(x, first, std::min(chunk, kLength - first));
        got.insert(got.end(), rows.begin(), rows.end());
      }
      check_equal(got, at_once);
    }
  }
}

void forks_and_rollbacks_go_on_from_what_is_shared(Kind kind) {
  const Inputs x(kLength, 2, kind);
  Model model(kind);
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
  const Inputs x(kLength, 3, kDelta);
  Model model(kDelta);
  const Pos held = 62;  // a chain of three ends a block
  const std::vector<float> all = model.feed(x, 0, kLength);
  model.cells().seq_cp(0, 1, 0, held);
  const std::vector<std::int32_t> parents{-1, -1, 0, 2};
  model.cells().propose(parents, 4, 1);
  model.cells().begin_step(std::vector<SeqId>(4, 1));
  Inputs drafts(4, 4, kDelta);
  const auto copy = [](std::vector<float>& to, int row, const std::vector<float>& from, Pos at, int width) {
    std::copy_n(from.begin() + at * width, width, to.begin() + row * width);
  };
  for (const auto& [row, at] : {std::pair{0, held}, {2, held + 1}, {3, held + 2}}) {
    copy(drafts.q, row, x.q, at, kKeyHeads * kKeys), copy(drafts.k, row, x.k, at, kKeyHeads * kKeys);
    copy(drafts.v, row, x.v, at, kHeads * kValues);
    copy(drafts.decay, row, x.decay, at, kHeads), copy(drafts.beta, row, x.beta, at, kHeads);
  }
  const std::vector<float> got = model.run(drafts, 0, 4);
  check_equal(std::span(got).first(floats(1)), std::span(all).subspan(floats(held), floats(1)));
  check_equal(std::span(got).subspan(floats(2)), std::span(all).subspan(floats(held + 1), floats(2)));
  model.cells().commit(std::vector<std::int32_t>{0, 2, 3}, 3, 1);
  check_equal(model.feed(x, held + 3, 40, 1), std::span(all).subspan(floats(held + 3), floats(40)));
}

void states_are_given_back_and_missed() {
  const Inputs x(kLength, 5, kMamba2);
  Model model(kMamba2);
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
  Model model(kMamba2);
  model.cells().begin_step(std::vector<SeqId>(2, 0));
  const std::vector<std::int64_t> position{0, 1};
  LinearAttentionArgs args;
  CHECK_THROWS(model.cache().attend_linear(1, position, args), InvalidTensor, "layer 1");
  CHECK_THROWS(model.cache().attend_linear(0, position, args), InvalidTensor, "q is");
  CHECK_THROWS(model.cache().scan(0, position, {}), InvalidTensor, "keeps no states of this kind");
  CacheConfig config;
  config.capacity = 8;
  config.n_layers = config.n_kv_heads = config.head_dim = 1;
  config.shapes = {{1 << 16, 1 << 16, 1 << 16, Kept::Linear, 1 << 16}};
  CHECK_THROWS(KvCache(config, std::make_shared<Cells>(8), nullptr), InvalidTensor, "a state of");
}

}  // namespace

int main() {
  for (const Kind& kind : {kMamba2, kDelta, kKimi}) {
    rows_are_the_recurrence_however_they_are_fed(kind);
    forks_and_rollbacks_go_on_from_what_is_shared(kind);
  }
  drafts_go_on_from_their_parents();
  states_are_given_back_and_missed();
  refusals();
}
