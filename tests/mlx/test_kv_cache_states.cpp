// A scan on MLX: rows, however they are fed, forked and rolled back, are the recurrence; states move with their cells.
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "core/errors.h"
#include "mlx/owner.h"
#include "rig.h"

using namespace agentkv;
using namespace agentkv::mlx;
using namespace agentkv::mlx::testing;

namespace {

constexpr int kChannels = 16, kStates = 4;
constexpr Pos kLength = 200;
constexpr float kClose = 1e-4f;

CacheConfig of_a_scan() {
  CacheConfig c = config("int8", 512);  // its rows are float32 all the same
  c.n_layers = 1;
  c.shapes = {{1, kStates, kChannels, Kept::Scan}};
  c.windows = {kStateWindow};
  return c;
}

struct Inputs {
  mx::array x = random_array({1, kLength, kChannels}, 1), b = random_array({1, kLength, kStates}, 2),
            c = random_array({1, kLength, kStates}, 3),
            decay = mx::abs(random_array({1, kLength, kChannels}, 4)) * mx::array(0.1f),
            rates = mx::negative(mx::abs(random_array({kStates, kChannels}, 5)));

  ScanInputs of(Pos first, Pos n) const {
    const auto rows = [&](const mx::array& a) { return mx::slice(a, {0, first, 0}, {1, first + n, a.shape(2)}); };
    return {rows(x), rows(decay), rates, rows(b), rows(c)};
  }
};

// [kLength, kChannels], from one row to the next.
std::vector<float> recurrence(const Inputs& in) {
  mx::array x = mx::contiguous(in.x), b = mx::contiguous(in.b), c = mx::contiguous(in.c);
  mx::array decay = mx::contiguous(in.decay), rates = mx::contiguous(in.rates);
  mx::eval(x, b, c, decay, rates);
  std::vector<double> state(kStates * kChannels);
  std::vector<float> out;
  for (Pos t = 0; t < kLength; ++t) {
    for (int i = 0; i < kChannels; ++i) {
      double y = 0;
      for (int s = 0; s < kStates; ++s) {
        double& one = state[static_cast<std::size_t>(s * kChannels + i)];
        const int at = t * kChannels + i;
        one = std::exp(double{decay.data<float>()[at]} * rates.data<float>()[s * kChannels + i]) * one +
              double{b.data<float>()[t * kStates + s]} * x.data<float>()[at];
        y += c.data<float>()[t * kStates + s] * one;
      }
      out.push_back(static_cast<float>(y));
    }
  }
  return out;
}

struct Model {
  Rig rig{of_a_scan()};
  Inputs in;
  std::vector<float> want = recurrence(in);

  // Rows from `first` on, which must be what they are in a fresh run.
  void feed(Pos first, Pos n, SeqId seq = 0) {
    rig.begin(std::vector<SeqId>(static_cast<std::size_t>(n), seq));
    CHECK_EQ(rig.position.front(), first);
    const mx::array out = rig.cache.scan(0, rig.position, in.of(first, n));
    mx::eval(out);
    rig.cache.settle();
    rig.cells->commit_step();
    const mx::array wanted(want.data() + first * kChannels, {1, n, kChannels}, mx::float32);
    CHECK(largest_difference(out, wanted) <= kClose);
  }
};

void rows_are_the_recurrence_however_they_are_fed() {
  for (const Pos step : {1, 7, 64, 150, 200}) {
    Model model;
    for (Pos at = 0; at < kLength; at += step) model.feed(at, std::min(step, kLength - at));
  }
}

void forks_and_rollbacks_run_rows_again() {
  Model model;
  model.feed(0, 150);
  model.rig.cells->seq_cp(0, 1);
  model.feed(150, 30);
  model.feed(150, 1, 1);  // its state went on with the other
  model.rig.cells->seq_rm(1, 130);
  model.feed(130, 5, 1);
  model.rig.cells->seq_rm(0, 64);
  model.feed(64, 100);
}

void a_sequence_holds_one_state_beside_those_of_its_blocks() {
  Model model;
  model.feed(0, 60);
  CHECK_EQ(model.rig.cache.states(), 1u);
  CHECK(!model.rig.cache.has_state(59));  // it passes on: nobody can rely on it
  model.feed(60, 4);
  CHECK_EQ(model.rig.cache.states(), 1u);
  CHECK(model.rig.cache.has_state(63));
  model.feed(64, 1);
  CHECK_EQ(model.rig.cache.states(), 2u);
}

void states_are_stored_moved_and_discarded() {
  Model model, other;
  model.feed(0, 100);
  std::vector<Cell> cells(100), ends{63};
  std::iota(cells.begin(), cells.end(), 0);
  std::vector<std::byte> rows(cells.size() * model.rig.cache.cell_bytes());
  std::vector<std::byte> state(kStates * kChannels * sizeof(float));
  model.rig.cache.read_cells(cells, rows);
  model.rig.cache.read_states(ends, state);
  CHECK_THROWS(model.rig.cache.read_states(std::vector<Cell>{5}, state), InvalidRange, "cell 5 has no state");
  other.rig.cells->seq_grow(0, 100);
  CHECK_THROWS(other.rig.cache.write_states(ends, state), InvalidRange, "out of range");
  other.rig.cache.write_cells(cells, rows);
  CHECK_THROWS(other.rig.cache.write_states(ends, std::span(state).first(8)), InvalidRange, "8 bytes for 1 cells");
  other.rig.cache.write_states(ends, state);
  other.feed(100, 50);

  const Cell from = 63, to = 180;
  other.rig.cache.move_cells(&from, &to, 1);
  CHECK(other.rig.cache.has_state(180) && !other.rig.cache.has_state(63));
  std::vector<std::byte> moved(state.size());
  other.rig.cache.read_states({&to, 1}, moved);
  CHECK(moved == state);
  other.rig.cache.discard({&to, 1}, 1);
  CHECK(!other.rig.cache.has_state(180));
}

void refusals() {
  Model model;
  model.rig.begin({0, 0});
  const auto& position = model.rig.position;
  CHECK_THROWS(model.rig.cache.scan(1, position, model.in.of(0, 2)), InvalidTensor, "layer 1");
  CHECK_THROWS(model.rig.cache.scan(0, position, model.in.of(0, 3)), InvalidTensor, "x is [1, 3, 16]");
  const ScanInputs in = model.in.of(0, 2);
  CHECK_THROWS(model.rig.cache.attend_linear(0, position, {in.x, in.x, in.x, in.decay}), InvalidTensor,
               "keeps no states of this kind");
}

}  // namespace

int main() {
  on_owner([] {
    rows_are_the_recurrence_however_they_are_fed();
    forks_and_rollbacks_run_rows_again();
    a_sequence_holds_one_state_beside_those_of_its_blocks();
    states_are_stored_moved_and_discarded();
    refusals();
  });
}
