#include "engine/forward.h"

#include <algorithm>
#include <chrono>

#include "core/errors.h"
#include "core/message.h"
#include "engine/job.h"

namespace agentkv {
namespace {

// Adds the time of its scope to a total, also when the scope is left by an exception.
class Stopwatch {
 public:
  Stopwatch(double& total, double& last) : total_(total), last_(last) {}
  ~Stopwatch() {
    last_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    total_ += last_;
  }

 private:
  double& total_;
  double& last_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

std::span<const float> Forward::run(std::span<const Segment> segments) {
  assemble(segments);
  try {
    for (const Segment& segment : segments) {
      const BatchEntry& entry = *segment.entry;
      if (entry.draft_rows() == 0) continue;
      cache_.propose(entry.draft->parents, static_cast<std::int32_t>(entry.draft_rows()), entry.seq);
    }
    cache_.begin_step(seq_ids_);
    const auto logits = execute(segments);
    cache_.commit_step();
    ++stats_.forwards;
    return logits;
  } catch (...) {
    cache_.abort_step();
    throw;
  }
}

void Forward::assemble(std::span<const Segment> segments) {
  seq_ids_.clear();
  tokens_.clear();
  logits_indices_.clear();
  for (const Segment& segment : segments) {
    const std::size_t shift = tokens_.size() - segment.begin;  // from a row of the entry to a row of the forward
    const auto tokens = segment.entry->tokens.subspan(segment.begin, segment.plain_rows());
    seq_ids_.insert(seq_ids_.end(), segment.count, segment.entry->seq);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    if (segment.entry->draft) {
      const auto& nodes = segment.entry->draft->tokens;
      tokens_.insert(tokens_.end(), nodes.begin(), nodes.end());
    }
    for (std::size_t row = segment.first_logits(); row < segment.begin + segment.count; ++row) {
      logits_indices_.push_back(static_cast<std::int64_t>(row + shift));
    }
  }
}

// A row has the adapter of its position, be it of a draft or of a borrowed sequence.
void Forward::tell_adapters(std::span<const Segment> segments) {
  const auto plain = [](const Segment& segment) { return segment.entry->job->adapters().empty(); };
  if (std::all_of(segments.begin(), segments.end(), plain)) return;
  adapters_.clear();
  for (const Segment& segment : segments) {
    const AdapterSpans& spans = segment.entry->job->adapters();
    for (std::size_t i = 0; i < segment.count; ++i) {
      adapters_.push_back(spans.at(static_cast<Pos>(positions_[adapters_.size()])));
    }
  }
  runner_.set_adapters(adapters_);
}

std::span<const float> Forward::execute(std::span<const Segment> segments) {
  const auto positions = cache_.step_positions();
  positions_.assign(positions.begin(), positions.end());
  tell_adapters(segments);
  const Stopwatch watch(stats_.forward_seconds, seconds_);
  const auto logits = runner_.forward(tokens_, positions_, logits_indices_);
  const std::size_t wanted = logits_indices_.size() * static_cast<std::size_t>(runner_.info().vocab_size);
  if (logits.size() != wanted) {
    throw ForwardFailed(
        error_text("the model runner returned ", logits.size(), " logits, but ", wanted, " were asked for"));
  }
  return logits;
}

}  // namespace agentkv
