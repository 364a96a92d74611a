// Runs one forward over segments as a transaction on the cache.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/cache.h"
#include "engine/batch.h"
#include "engine/model_runner.h"
#include "engine/stats.h"

namespace agentkv {

class Forward {
 public:
  Forward(ModelRunner& runner, TreeSeqCache& cache, Stats& stats) : runner_(runner), cache_(cache), stats_(stats) {}

  // The logits of all segments' logits rows, in order; valid until the next run. When it throws, the cache is as it
  // was before.
  std::span<const float> run(std::span<const Segment> segments);

  // Of the last run: [rows, feature_dim], and how long its forward took.
  std::span<const float> features() const { return runner_.features(); }
  double seconds() const { return seconds_; }

 private:
  void assemble(std::span<const Segment> segments);
  std::span<const float> execute(std::span<const Segment> segments);
  void tell_adapters(std::span<const Segment> segments);

  ModelRunner& runner_;
  TreeSeqCache& cache_;
  Stats& stats_;
  double seconds_ = 0;
  std::vector<SeqId> seq_ids_;
  std::vector<std::int64_t> tokens_;
  std::vector<std::int64_t> positions_;
  std::vector<std::int64_t> logits_indices_;
  std::vector<AdapterId> adapters_;
};

}  // namespace agentkv
