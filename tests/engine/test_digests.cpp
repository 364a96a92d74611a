// Passes over rows of logits give the same bits on every machine: digests against
// tests/data/digests/engine.txt. After a change of the arithmetic, `engine_test_digests --print` writes that anew.
#include <random>
#include <string>
#include <vector>

#include "cpp/digest.h"
#include "cpp/numbers.h"
#include "engine/softmax.h"

using namespace agentkv;
using agentkv::testing::Digest;
using agentkv::testing::DigestRow;

namespace {

std::vector<float> logits(std::size_t n) {
  std::mt19937 rng(static_cast<unsigned>(n));
  std::vector<float> row(n);
  for (float& x : row) x = 6 * agentkv::testing::normal(rng);
  return row;
}

void summaries(Digest& digest, const std::vector<float>& row) {
  const RowSummary s = summarise(row);
  digest.add(std::vector<float>{s.max, static_cast<float>(s.argmax)});
  digest.add(std::vector<double>{s.log_sum_exp});
}

void masses(Digest& digest, const std::vector<float>& row) {
  const float max = summarise(row).max;
  std::vector<double> masses(softmax_blocks(row.size()));
  block_masses(row, max, 1.25f, max - 9, masses);
  digest.add(masses);
  std::vector<float> terms(row.size()), maxima(maxima_groups(row.size()));
  softmax_terms(row, max, 1.25f, max - 9, terms);
  group_maxima(row, maxima);
  digest.add(terms), digest.add(maxima);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<DigestRow> rows;
  for (const std::size_t n : {17, 1024, 5003, 32000}) {
    const std::string size = std::to_string(n) + " logits";
    rows.push_back({"summary of " + size, [=](Digest& digest) { summaries(digest, logits(n)); }});
    rows.push_back({"masses of " + size, [=](Digest& digest) { masses(digest, logits(n)); }});
  }
  return agentkv::testing::check_digests(rows, AGENTKV_DIGESTS, "What tests/engine/test_digests.cpp computes.", argc,
                                         argv);
}
