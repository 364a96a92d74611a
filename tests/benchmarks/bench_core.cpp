// Costs of the bookkeeping alone: fork, rollback, plan. Run by hand.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "core/cells.h"

using namespace agentkv;

namespace {

constexpr Cell kCells = 32768;
constexpr SeqId kSequences = 256;

void step(Cells& cells, const std::vector<SeqId>& rows, std::vector<std::int64_t>& fed) {
  cells.begin_step(rows);
  const auto positions = cells.step_positions();
  fed.assign(positions.begin(), positions.end());
  cells.plan(fed, 0);
  cells.commit_step();
}

void fill(Cells& cells, Cell n, std::vector<std::int64_t>& fed) {
  for (Cell at = 0; at < n; at += 512) step(cells, std::vector<SeqId>(512, 0), fed);
}

// Prints the best and the median of many calls.
template <class Call, class Undo>
void report(const char* what, int calls, Call call, Undo undo) {
  std::vector<double> microseconds;
  for (int i = 0; i < calls; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const auto end = std::chrono::steady_clock::now();
    microseconds.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
    undo();
  }
  std::sort(microseconds.begin(), microseconds.end());
  std::printf("%-68s best %8.2f us   median %8.2f us\n", what, microseconds.front(),
              microseconds[microseconds.size() / 2]);
}

void long_trunk() {
  Cells cells(kCells, kSequences);
  std::vector<std::int64_t> fed;
  fill(cells, kCells - 512, fed);
  report("fork of a trunk of 32,256 cells", 2000, [&] { cells.seq_cp(0, 1); }, [&] { cells.seq_rm(1); });
  cells.seq_cp(0, 1);
  report("rollback of all of it, shared", 2000, [&] { cells.seq_rm(1); }, [&] { cells.seq_cp(0, 1); });
  report("decode step (begin, plan, commit) of one branch over it", 256, [&] { step(cells, {1}, fed); }, [] {});
  cells.seq_rm(1);
  report(
      "rollback of 32,256 cells that no other sequence shares", 50, [&] { cells.seq_rm(0); },
      [&] { fill(cells, kCells - 512, fed); });
}

// 256 branches over one trunk, decoding in lockstep: every branch's cells are apart, so its runs are one cell long.
void lockstep() {
  Cells cells(kCells, kSequences);
  std::vector<std::int64_t> fed;
  fill(cells, 8192, fed);
  std::vector<SeqId> all;
  for (SeqId seq = 0; seq < kSequences; ++seq) all.push_back(seq);
  report(
      "256 forks of 8,192 cells", 20,
      [&] {
        for (SeqId seq = 1; seq < kSequences; ++seq) cells.seq_cp(0, seq);
      },
      [&] { cells.seq_keep(0); });
  for (SeqId seq = 1; seq < kSequences; ++seq) cells.seq_cp(0, seq);
  report("256 branches in lockstep, one row each, first 32 tokens", 32, [&] { step(cells, all, fed); }, [] {});
  report("256 branches in lockstep, one row each, last 32 tokens (of 96)", 64, [&] { step(cells, all, fed); }, [] {});
  std::printf("  cells used %d, shared %d, runs of one branch %zu\n", cells.used(), cells.shared(),
              cells.seq_runs(7).size());
  report("rollback of one lockstep branch to the trunk", 1, [&] { cells.seq_rm(9, 8192); }, [] {});
}

// The worst layout that 32,768 cells allow: one cell per run.
void shattered() {
  Cells cells(kCells, kSequences);
  std::vector<std::int64_t> fed;
  for (Cell at = 0; at < kCells / 2 - 1; ++at) step(cells, {0, 1}, fed);
  report("fork of 16,383 runs of one cell", 500, [&] { cells.seq_cp(0, 2); }, [&] { cells.seq_rm(2); });
  cells.seq_cp(0, 2);
  report("rollback of 16,383 shared runs of one cell", 500, [&] { cells.seq_rm(2); }, [&] { cells.seq_cp(0, 2); });
  report(
      "plan of one row over 16,384 runs", 500,
      [&] {
        cells.begin_step(std::vector<SeqId>{0});
        const auto positions = cells.step_positions();
        fed.assign(positions.begin(), positions.end());
        cells.plan(fed, 0);
      },
      [&] { cells.abort_step(); });
}

}  // namespace

int main() {
  long_trunk();
  lockstep();
  shattered();
}
