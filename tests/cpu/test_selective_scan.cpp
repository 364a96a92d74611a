// The selective scan against its recurrence in float64: through blocks, forks and drafts, and the same bits however
// rows are fed.
#include <cmath>
#include <cstring>
#include <vector>

#include "core/cells.h"
#include "core/errors.h"
#include "core/isa.h"
#include "cpp/check.h"
#include "cpu/kv_cache.h"
#include "cpu/selective_scan.h"
#include "selective_scan_model.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing::scan;

namespace {

constexpr Pos kLength = 200;
constexpr std::size_t kStateBytes = sizeof(float) * kChannels * kStates;

std::vector<double> recurrence(const Inputs& in, Pos length) {
  std::vector<double> out, state(kStates * kChannels, 0.0);
  const std::vector<float> rate = rates();
  for (Pos t = 0; t < length; ++t) {
    for (int i = 0; i < kChannels; ++i) {
      double y = 0;
      for (int s = 0; s < kStates; ++s) {
        const auto at = static_cast<std::size_t>(s * kChannels + i);
        state[at] =
            std::exp(double{in.decay[static_cast<std::size_t>(t * kChannels + i)]} * rate[at]) * state[at] +
            double{in.b[static_cast<std::size_t>(t * kStates + s)]} * in.x[static_cast<std::size_t>(t * kChannels + i)];
        y += in.c[static_cast<std::size_t>(t * kStates + s)] * state[at];
      }
      out.push_back(y);
    }
  }
  return out;
}

void check_equal(std::span<const float> got, std::span<const float> want) {
  CHECK_EQ(got.size(), want.size());
  CHECK(std::memcmp(got.data(), want.data(), got.size_bytes()) == 0);
}

std::size_t floats(Pos n) { return static_cast<std::size_t>(n * kChannels); }

void rows_are_the_recurrence_however_they_are_fed() {
  const Inputs in(kLength, 1);
  const std::vector<double> want = recurrence(in, kLength);
  for (const std::string_view isa : available_isas()) {
    set_isa(isa);
    Model whole;
    const std::vector<float> at_once = whole.feed(in, 0, kLength);
    for (std::size_t i = 0; i < want.size(); ++i)
      CHECK(std::abs(at_once[i] - want[i]) <= 2e-5 * (1 + std::abs(want[i])));
    for (const Pos chunk : {1, 7, 64, 65}) {
      Model model;
      std::vector<float> got;
      for (Pos first = 0; first < kLength; first += chunk) {
        const std::vector<float> rows = model.feed(in, first, std::min(chunk, kLength - first));
        got.insert(got.end(), rows.begin(), rows.end());
      }
      check_equal(got, at_once);
    }
  }
}

void forks_and_rollbacks_run_rows_again() {
  const Inputs in(kLength, 2);
  Model model;
  const std::vector<float> all = model.feed(in, 0, kLength);
  for (const Pos length : {1, 63, 64, 65, 127, 128, 130, 199}) {
    model.cells().seq_cp(0, 1, 0, length);
    check_equal(model.feed(in, length, kLength - length, 1), std::span(all).subspan(floats(length)));
    model.cells().seq_rm(1);
  }
  for (const Pos length : {199, 130, 128, 100, 1}) {
    model.cells().seq_rm(0, length);
    check_equal(model.feed(in, length, 1), std::span(all).subspan(floats(length), floats(1)));
  }
}

void drafts_go_on_from_their_parents() {
  const Inputs in(kLength, 3);
  Model model;
  const Pos held = 62;  // a chain of three ends a block
  const std::vector<float> all = model.feed(in, 0, kLength);
  model.cells().seq_cp(0, 1, 0, held);
  const std::vector<std::int32_t> parents{-1, -1, 0, 2, 3};
  model.cells().propose(parents, 5, 1);
  model.cells().begin_step(std::vector<SeqId>(5, 1));
  Inputs drafts(5, 4);
  for (const auto& [row, at] : {std::pair{0, held}, {2, held + 1}, {3, held + 2}, {4, held + 3}})
    drafts.take(row, in, at);
  const std::vector<float> got = model.run(drafts, 0, 5);
  check_equal(std::span(got).first(floats(1)), std::span(all).subspan(floats(held), floats(1)));
  check_equal(std::span(got).subspan(floats(2)), std::span(all).subspan(floats(held + 1), floats(3)));
  model.cells().commit(std::vector<std::int32_t>{0, 2, 3}, 3, 1);
  check_equal(model.feed(in, held + 3, 40, 1), std::span(all).subspan(floats(held + 3), floats(40)));
}

void a_sequence_holds_one_state_beside_those_of_its_blocks() {
  const Inputs in(kLength, 5);
  Model model;
  const auto states = [&] { return model.cache().states(); };
  model.feed(in, 0, 10);
  for (Pos at = 10; at < 63; ++at) {
    model.feed(in, at, 1);
    CHECK_EQ(states(), 1u);
    CHECK(!model.cache().has_state(at));  // it passes on: nobody can rely on it
  }
  model.feed(in, 63, 1);
  CHECK_EQ(states(), 1u);
  CHECK(model.cache().has_state(63));
  model.feed(in, 64, 1);
  CHECK_EQ(states(), 2u);
}

void states_are_read_and_written() {
  const Inputs in(kLength, 7);
  Model model, other;
  const std::vector<float> all = model.feed(in, 0, kLength);
  std::vector<Cell> cells(100), ends{63};
  for (Cell i = 0; i < 100; ++i) cells[static_cast<std::size_t>(i)] = i;
  std::vector<std::byte> rows(cells.size() * model.cache().cell_bytes()), state(kStateBytes);
  model.cache().read_cells(cells, rows);
  model.cache().read_states(ends, state);
  CHECK_THROWS(model.cache().read_states(std::vector<Cell>{5}, state), InvalidRange, "cell 5 has no state");
  other.cells().seq_grow(0, 100);
  CHECK_THROWS(other.cache().write_states(ends, state), InvalidRange, "out of range");
  other.cache().write_cells(cells, rows);
  CHECK_THROWS(other.cache().write_states(ends, std::span(state).first(8)), InvalidRange, "8 bytes for 1 cells");
  other.cache().write_states(ends, state);
  check_equal(other.feed(in, 100, 50), std::span(all).subspan(floats(100), floats(50)));
}

void refusals() {
  const Inputs in(4, 6);
  Model model;
  model.cells().begin_step(std::vector<SeqId>(2, 0));
  const std::vector<std::int64_t> position{0, 1};
  CHECK_THROWS(model.cache().scan(1, position, {}), InvalidTensor, "layer 1");
  CHECK_THROWS(model.cache().scan(0, position, {}), InvalidTensor, "x or decay is");
  CHECK_THROWS(model.cache().attend_linear(0, position, {}), InvalidTensor, "keeps no states of this kind");
}

}  // namespace

int main() {
  rows_are_the_recurrence_however_they_are_fed();
  forks_and_rollbacks_run_rows_again();
  drafts_go_on_from_their_parents();
  a_sequence_holds_one_state_beside_those_of_its_blocks();
  states_are_read_and_written();
  refusals();
}
