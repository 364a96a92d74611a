#include "core/message.h"
#include "engine/errors.h"
#include "engine/jobs.h"

namespace agentkv {

void GenerateOptions::validate() const {
  if (max_tokens < 1) throw InvalidSampling(error_text("max_tokens is ", max_tokens, ", but must be at least 1"));
  sampling.validate();
}

GenerateJob::GenerateJob(JobId id, Branch& branch, JobContext& context, const GenerateOptions& options)
    : Job(id, branch, context), options_(options), matcher_(options.stop) {
  outcome_.prompt_tokens = branch.length();
}

void GenerateJob::prepare() {
  if (const LogitsRow row = branch_.row) sample(*row);  // held here: sampling makes the branch let go of it
}

void GenerateJob::offer(Batch& batch) {
  const auto tokens = context_.branches.refeed(branch_);
  if (batch.free_cells() < 1) return no_room(1, batch.free_cells());
  batch.add({.job = this, .seq = branch_.seq, .branch = &branch_, .tokens = tokens, .decode = true});
}

void GenerateJob::absorb(const FedRows& rows) { sample(rows.row(0)); }

void GenerateJob::no_room(Cell, Cell) { finish("context_full"); }

void GenerateJob::sample(std::span<const float> row) {
  const RandomKey key{options_.seed, branch_.stream, static_cast<std::uint32_t>(branch_.length())};
  const auto [token, logprob] = context_.sampler.sample(row, options_.sampling, branch_.log, key);
  branch_.log.push_back(token);
  branch_.row.reset();
  outcome_.tokens.push_back(token);
  outcome_.logprobs.push_back(logprob);
  ++context_.stats.tokens_generated;

  const char* reason = reason_to_end(token);
  if (reason) matcher_.finish();
  if (options_.emit) context_.emitted.push_back({id(), token, logprob, matcher_.take_shown()});
  if (reason) finish(reason);
}

const char* GenerateJob::reason_to_end(Token token) {
  const Vocabulary& vocabulary = context_.vocabulary;
  if (vocabulary.is_eos(token) && !options_.ignore_eos) return "eos";
  if (!vocabulary.is_special(token) && matcher_.push(vocabulary.bytes(token))) return "stop";
  return outcome_.tokens.size() == static_cast<std::size_t>(options_.max_tokens) ? "length" : nullptr;
}

void GenerateJob::conclude() { outcome_.text = matcher_.text(); }

}  // namespace agentkv
