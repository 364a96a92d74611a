// Rounds of speculation on several sequences: no cell leaks, memory stays flat, and accepted tokens keep their bytes.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "core/cells.h"
#include "cpp/check.h"
#include "cpu/kv_cache.h"
#include "fixture.h"

using namespace agentkv;
using namespace agentkv::cpu;
using namespace agentkv::cpu::testing;

namespace {

constexpr SeqId kSequences = 4;
constexpr int kRounds = 10000, kHeads = 2, kDim = 8;
constexpr std::int32_t kMaxNodes = 24;
constexpr Pos kLongest = 60;

struct Rounds {
  std::shared_ptr<Cells> cells = std::make_shared<Cells>(1024, kSequences);
  std::shared_ptr<KvCache> layer;
  std::mt19937 random{7};
  std::vector<std::vector<float>> logs{kSequences};  // per sequence, the number written at each position
  float number = 0;

  Rounds() {
    CacheConfig config;
    config.n_layers = 1;
    config.n_kv_heads = kHeads;
    config.head_dim = kDim;
    config.capacity = 1024;
    config.min_chunk = 16;
    config.kv_dtype = "fp32";
    layer = std::make_shared<KvCache>(config, cells, nullptr);
    cells->set_layer(layer);
  }

  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

  // One forward: every row writes a number of its own. Returns the numbers.
  std::vector<float> step(const std::vector<SeqId>& rows) {
    cells->begin_step(rows);
    const auto positions = cells->step_positions();
    const std::vector<std::int64_t> fed(positions.begin(), positions.end());
    Tensor k(kHeads, static_cast<int>(rows.size()), kDim);
    std::vector<float> numbers;
    for (int row = 0; row < k.tokens; ++row) {
      numbers.push_back(number += 1);
      for (int head = 0; head < kHeads; ++head) std::fill_n(k.row(head, row), kDim, number);
    }
    read = layer->update_and_fetch(0, fed, k.view(), k.view());
    cells->commit_step();
    return numbers;
  }

  float number_at(Cell cell) const {
    return *reinterpret_cast<const float*>(read.k.data + read.k.head_stride + cell * read.k.row_bytes);
  }

  void round() {
    std::vector<SeqId> rows;
    std::vector<std::vector<std::int32_t>> parents(kSequences);
    for (SeqId seq = 0; seq < kSequences; ++seq) {
      const int nodes = draw(0, kMaxNodes);
      for (int node = 0; node < nodes; ++node) parents[seq].push_back(draw(std::max(-1, node - 4), node - 1));
      if (nodes > 0) cells->propose(parents[seq], nodes, seq);
      rows.insert(rows.end(), static_cast<std::size_t>(nodes + 1), seq);
    }
    const std::vector<float> numbers = step(rows);
    std::size_t first = 0;  // row of the sequence's plain token
    for (SeqId seq = 0; seq < kSequences; ++seq) {
      logs[seq].push_back(numbers[first]);
      std::vector<std::int32_t> chain;
      const auto nodes = static_cast<std::int32_t>(parents[seq].size());
      for (std::int32_t node = draw(-1, nodes - 1); node >= 0; node = parents[seq][node]) {
        chain.insert(chain.begin(), node);
      }
      cells->commit(chain, static_cast<std::int32_t>(chain.size()), seq);
      for (const std::int32_t node : chain) logs[seq].push_back(numbers[first + 1 + node]);
      first += 1 + parents[seq].size();
    }
  }

  // Sequences start over, fork from one another and roll back, so that they stay short.
  void shorten() {
    for (SeqId seq = 0; seq < kSequences; ++seq) {
      if (cells->seq_len(seq) <= kLongest && draw(0, 9) > 0) continue;
      const auto other = static_cast<SeqId>((seq + 1) % kSequences);
      if (draw(0, 1) == 0) {
        const Pos keep = draw(1, cells->seq_len(seq) / 2 + 1);
        cells->seq_rm(seq, keep, -1);
        logs[seq].resize(static_cast<std::size_t>(keep));
      } else {
        const Pos keep = std::min<Pos>(draw(1, 10), cells->seq_len(other));
        cells->seq_rm(seq);
        cells->seq_cp(other, seq, 0, keep);
        logs[seq].assign(logs[other].begin(), logs[other].begin() + keep);
      }
    }
  }

  // Cells used are those of committed tokens, and they hold what was written for them.
  void check() const {
    std::map<Cell, int> owned;
    for (SeqId seq = 0; seq < kSequences; ++seq) {
      CHECK_EQ(cells->frontier_size(seq), 0);
      CHECK_EQ(cells->seq_len(seq), static_cast<Pos>(logs[seq].size()));
      for (const Run& run : cells->seq_runs(seq)) {
        for (Cell i = 0; i < run.length; ++i) {
          ++owned[run.cell + i];
          CHECK_EQ(number_at(run.cell + i), logs[seq][static_cast<std::size_t>(run.position + i)]);
        }
      }
    }
    CHECK_EQ(cells->used(), static_cast<Cell>(owned.size()));
  }

  AttendSpec read;
};

void nothing_leaks() {
  Rounds rounds;
  Cell allocated = 0;
  for (int i = 0; i < kRounds; ++i) {
    rounds.round();
    rounds.check();
    rounds.shorten();
    if (i == kRounds / 10) allocated = rounds.layer->allocated_cells();
  }
  CHECK_EQ(rounds.layer->allocated_cells(), allocated);
  CHECK(allocated <= 512);
  for (SeqId seq = 0; seq < kSequences; ++seq) rounds.cells->seq_rm(seq);
  CHECK_EQ(rounds.cells->used(), 0);
}

// Alone, a sequence is contiguous again after every commit.
void a_lone_sequence_stays_contiguous() {
  Rounds rounds;
  for (int i = 0; i < kRounds; ++i) {
    const int nodes = rounds.draw(1, kMaxNodes);
    std::vector<std::int32_t> parents;
    for (int node = 0; node < nodes; ++node) parents.push_back(rounds.draw(-1, node - 1));
    rounds.cells->propose(parents, nodes, 0);
    rounds.step(std::vector<SeqId>(static_cast<std::size_t>(nodes) + 1, 0));
    std::vector<std::int32_t> chain;
    for (std::int32_t node = rounds.draw(-1, nodes - 1); node >= 0; node = parents[node]) {
      chain.insert(chain.begin(), node);
    }
    rounds.cells->commit(chain, static_cast<std::int32_t>(chain.size()), 0);
    CHECK_EQ(rounds.cells->used(), rounds.cells->seq_len(0));
    rounds.cells->begin_step(std::vector<SeqId>{0});
    const std::vector<std::int64_t> next{rounds.cells->seq_len(0)};
    CHECK(rounds.cells->plan(next, 0).kind == StepPlan::Kind::SingleContiguous);
    rounds.cells->abort_step();
    if (rounds.cells->seq_len(0) > kLongest) rounds.cells->seq_rm(0, 5, -1);
  }
  CHECK(rounds.layer->allocated_cells() <= 128);
}

}  // namespace

int main() {
  nothing_leaks();
  a_lone_sequence_stays_contiguous();
}
