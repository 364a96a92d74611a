#include <algorithm>

#include "core/errors.h"
#include "core/message.h"
#include "engine/jobs.h"

namespace agentkv {

void GenerateOptions::validate() const {
  if (max_tokens < 1) throw InvalidSampling(error_text("max_tokens is ", max_tokens, ", but must be at least 1"));
  sampling.validate();
}

GenerateJob::GenerateJob(JobId id, Branch& branch, JobContext& context, const GenerateOptions& options)
    : Job(id, branch, context), options_(options), matcher_(options.stop) {
  outcome_.prompt_tokens = branch.length();
  if (options_.drafter) speculator_.emplace(Speculator{context.speculation.attach(options_.drafter)});
}

void GenerateJob::prepare() {
  if (const LogitsRow row = branch_.next_logits) {  // held here: sampling makes the branch let go of it
    if (const char* reason = sample(*row)) return finish(reason);
  }
}

std::int32_t GenerateJob::left() const {
  const auto wanted = options_.max_tokens - static_cast<std::int32_t>(outcome_.tokens.size());
  return context_.max_positions == 0 ? wanted : std::min(wanted, context_.max_positions - branch_.length());
}

void GenerateJob::offer(Batch& batch) {
  const auto tokens = context_.branches.refeed(branch_);
  if (batch.free_cells() < 1) return no_room(1, batch.free_cells());
  batch.add({.job = this,
             .seq = branch_.seq,
             .branch = &branch_,
             .tokens = tokens,
             .first_logits = tokens.size() - 1,
             .decode = true,
             .draft = speculator_ ? &speculator_->draft : nullptr});
  if (!speculator_) return;
  speculator_->draft = {};
  // A round makes one token without a draft; deeper than what is still wanted besides, a draft is wasted.
  if (left() > 1) context_.speculation.add({this, &branch_, &*speculator_, left() - 1});
}

// Draws each token from the target's row as plain decoding does, and goes on in the draft for as long as it has that
// token: what is drawn depends on history and position alone, so a draft changes how many tokens a forward makes and
// never which. For drafts that are chosen, not drawn, this accepts as often as rejection sampling over the tree would
// (a point mass in Leviathan et al. 2023, SpecInfer 2023): with the probability that the target gives to the children.
void GenerateJob::absorb(const RowResults& rows) {
  if (rows.segment.logits_rows() == 0) return;
  const std::size_t last = rows.segment.plain_rows() - 1;  // the row that the draft's roots follow
  const char* reason = nullptr;
  for (std::int32_t node = -1;;) {
    reason = sample(rows.row(rows.segment.begin + last + static_cast<std::size_t>(node + 1)));
    if (reason || !rows.segment.entry->draft) break;
    node = rows.segment.entry->draft->child(node, branch_.log.back());
    if (node < 0) break;
    rows.accepted.push_back(node);
  }
  if (speculator_) context_.speculation.learn(*speculator_, rows.accepted);
  if (reason) finish(reason);
}

void GenerateJob::no_room(Cell, Cell) { finish("context_full"); }

const char* GenerateJob::sample(std::span<const float> row) {
  const RandomKey key{options_.seed, branch_.rng_stream, static_cast<std::uint32_t>(branch_.length())};
  const auto [token, logprob] =
      context_.sampler.sample(row, options_.sampling, branch_.log, key, options_.constraint.get());
  branch_.log.push_back(token);
  branch_.next_logits.reset();
  outcome_.tokens.push_back(token);
  outcome_.logprobs.push_back(logprob);
  ++context_.stats.generated;

  const char* reason = reason_to_end(token);
  if (reason) matcher_.finish();
  if (options_.emit) {
    context_.emitted.push_back({id(), token, logprob, matcher_.take_shown()});
    ++untaken_;
  }
  return reason;
}

const char* GenerateJob::reason_to_end(Token token) {
  const Vocabulary& vocabulary = context_.vocabulary;
  if (vocabulary.is_eos(token) && !options_.ignore_eos) return "eos";
  if (!vocabulary.is_special(token) && matcher_.push(vocabulary.bytes(token))) return "stop";
  if (outcome_.tokens.size() == static_cast<std::size_t>(options_.max_tokens)) return "length";
  return left() == 0 ? "context_full" : nullptr;
}

void GenerateJob::conclude() { outcome_.text = matcher_.text(); }

}  // namespace agentkv
