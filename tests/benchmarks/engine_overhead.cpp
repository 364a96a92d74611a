// What a step costs outside the model: per number of branches, and per way of sampling one row. Run by hand.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "core/cells.h"
#include "engine/engine.h"

using namespace agentkv;

namespace {

class FixedLogits final : public ModelRunner {
 public:
  FixedLogits(std::shared_ptr<Cells> cells, std::int32_t vocab)
      : info_{vocab, 512, 256}, cells_(std::move(cells)), logits_(static_cast<std::size_t>(vocab) * 256) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal(0, 3);
    for (std::size_t i = 0; i < static_cast<std::size_t>(vocab); ++i) logits_[i] = normal(rng);
    for (std::size_t i = static_cast<std::size_t>(vocab); i < logits_.size(); ++i) {
      logits_[i] = logits_[i - static_cast<std::size_t>(vocab)];
    }
  }
  const RunnerInfo& info() const override { return info_; }
  std::span<const float> forward(std::span<const std::int64_t>, std::span<const std::int64_t> positions,
                                 std::span<const std::int64_t> indices) override {
    cells_->plan(positions, 0);
    return std::span(logits_).first(indices.size() * static_cast<std::size_t>(info_.vocab_size));
  }

 private:
  const RunnerInfo info_;
  const std::shared_ptr<Cells> cells_;
  std::vector<float> logits_;
};

double overhead(int branches, std::int32_t vocab, bool emit) {
  auto cells = std::make_shared<Cells>(65536, 256);
  Engine engine(std::make_shared<FixedLogits>(cells, vocab), cells, Vocabulary(vocab, {}, {}, {}));
  const std::vector<Token> prompt(100, 1);
  const BranchId trunk = engine.create().first;
  engine.extend(trunk, prompt);
  engine.step();
  constexpr int kSteps = 200;
  for (int i = 0; i < branches; ++i) {
    engine.generate(engine.fork(trunk), {.max_tokens = kSteps, .ignore_eos = true, .emit = emit});
  }
  engine.step();
  std::vector<double> steps;
  double before = engine.stats().overhead_seconds;
  while (!engine.step().idle) {
    steps.push_back(engine.stats().overhead_seconds - before);
    before = engine.stats().overhead_seconds;
  }
  std::nth_element(steps.begin(), steps.begin() + kSteps / 2, steps.end());
  return steps[kSteps / 2] * 1e6;
}

double per_row(const Sampling& sampling, float spread, std::size_t vocab = 151936) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(vocab);
  for (float& x : row) x = normal(rng);
  std::vector<Token> history(1000);
  for (Token& t : history) t = static_cast<Token>(rng() % vocab);
  Sampler sampler;
  sampler.sample(row, sampling, {history}, {});
  double best = 1e9;
  for (int round = 0; round < 40; ++round) {
    const auto start = std::chrono::steady_clock::now();
    sampler.sample(row, sampling, {history}, {1, 2, static_cast<std::uint32_t>(round)});
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best * 1e6;
}

}  // namespace

int main() {
  std::printf("step outside the program, microseconds (median of 200 steps)\n");
  for (const int branches : {1, 8, 64, 255}) {
    std::printf("  %3d branches, vocabulary 512: %7.1f, with emit %7.1f\n", branches, overhead(branches, 512, false),
                overhead(branches, 512, true));
  }
  std::printf("sampling one row of 151,936, microseconds (best of 40): peaked / flat logits\n");
  const std::pair<const char*, Sampling> ways[] = {
      {"greedy", {}},
      {"greedy, penalty 1.1", {.repetition_penalty = 1.1f}},
      {"temperature 0.7", {.temperature = 0.7f}},
      {"top_k 50", {.temperature = 0.7f, .top_k = 50}},
      {"top_p 0.95", {.temperature = 0.7f, .top_p = 0.95f}},
      {"min_p 0.05", {.temperature = 0.7f, .min_p = 0.05f}},
      {"top_k 50, top_p 0.95, penalty 1.1",
       {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f, .repetition_penalty = 1.1f}},
  };
  for (const auto& [name, sampling] : ways) {
    std::printf("  %-36s %7.1f / %7.1f\n", name, per_row(sampling, 5.0f), per_row(sampling, 0.5f));
  }
}
