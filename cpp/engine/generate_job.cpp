#include <algorithm>
#include <limits>

#include "core/errors.h"
#include "core/message.h"
#include "engine/digest.h"
#include "engine/jobs.h"

namespace agentkv {

void GenerateOptions::validate(Token vocab_size, Pos length) const {
  if (max_tokens < 1) throw InvalidSampling(error_text("max_tokens is ", max_tokens, ", but must be at least 1"));
  if (top_logprobs < 0 || top_logprobs > kMostTopLogprobs) {
    throw InvalidSampling(error_text("top_logprobs is ", top_logprobs, ", but must be from 0 to ", kMostTopLogprobs));
  }
  for (const auto& [name, count] : {std::pair{"made", made}, std::pair{"output_made", output_made}}) {
    if (count >= 0 && count <= length) continue;
    throw InvalidSampling(error_text(name, " is ", count, ", but the branch holds ", length, " tokens"));
  }
  sampling.validate(vocab_size);
  const bool ordered = std::is_sorted(pauses.begin(), pauses.end()) && (pauses.empty() || pauses.front() >= 0);
  require<InvalidSampling>(ordered && (pauses.empty() || wait_for_room),
                           "pauses are counts of tokens, in order, of a generation that waits for room");
}

GenerateJob::GenerateJob(JobId id, Branch& branch, JobContext& context, const GenerateOptions& options)
    : Job(id, branch, context),
      options_(options),
      before_(branch.log.end() - options.made, branch.log.end()),
      matcher_(options.stop, context.vocabulary) {
  branch.made = {};
  outcome_.prompt_tokens = branch.length();
  if (options_.emit) base_row_ = branch.next_logits;
  if (options_.drafter) speculator_ = context.speculation.begin(options_.drafter);
  if (!options_.constraint) return;
  const Pos length = branch.length();
  Output& output = branch.output;
  if (!output.goes_on(options_.constraint, length))
    output = {options_.constraint, length - options_.output_made, length};
  constrained_.emplace(Constrained{options_.constraint, output.began});
}

void GenerateJob::prepare() {
  if (until_pause() == 0) {
    ++paused_;
    if (asks_for_room()) return;
  }
  if (!branch_.next_logits) return context_.branches.take_last(branch_);
  if (left() == 0) return;  // it asks for room when it is to offer rows
  if (constrained_) return context_.constraints.add(turn(0));
  draw_known();
}

void GenerateJob::draw_known() {
  const LogitsRow row = branch_.next_logits;  // held here: sampling makes the branch let go of it
  if (const char* reason = sample(*row, -1)) finish(reason);
}

PendingTurn GenerateJob::turn(std::int32_t max_depth) {
  return {this, &branch_, &*constrained_, speculator_ ? &*speculator_ : nullptr, max_depth};
}

Draft* GenerateJob::draft() {
  if (constrained_) return &constrained_->ride.draft;
  return speculator_ ? &speculator_->draft : nullptr;
}

std::int32_t GenerateJob::left() const {
  const auto wanted = options_.max_tokens - static_cast<std::int32_t>(outcome_.tokens.size());
  return context_.max_positions == 0 ? wanted : std::min(wanted, context_.max_positions - branch_.length());
}

std::int32_t GenerateJob::until_pause() const {
  if (paused_ == options_.pauses.size()) return std::numeric_limits<std::int32_t>::max();
  return options_.pauses[paused_] - static_cast<std::int32_t>(outcome_.tokens.size());
}

void GenerateJob::offer(Batch& batch) {
  if (left() == 0 && !options_.waits_for_positions()) return finish(reason_at_limit("context_full"));
  if (left() == 0) return no_room(0, batch.free_cells());  // for want of positions
  const auto tokens = branch_.pending();
  if (batch.free_cells() < 1) return no_room(1, batch.free_cells());
  batch.add({.job = this,
             .seq = branch_.seq,
             .branch = &branch_,
             .tokens = tokens,
             .first_logits = tokens.size() - 1,
             .decode = true,
             .draft = draft()});
  // A round makes one token without a draft; deeper than what is still wanted besides, a draft is wasted.
  const std::int32_t deepest = std::min(left(), until_pause()) - 1;
  if (speculator_) speculator_->draft = {};
  if (speculator_ && deepest > 0) context_.speculation.add({this, &branch_, &*speculator_, deepest});
  if (!constrained_) return;
  constrained_->ride = {};
  context_.constraints.add(turn(deepest));
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
    reason = sample(rows.row(rows.segment.begin + last + static_cast<std::size_t>(node + 1)), node);
    if (reason || !rows.segment.entry->draft) break;
    node = rows.segment.entry->draft->child(node, branch_.log.back());
    if (node < 0) break;
    rows.accepted.push_back(node);
  }
  learn(rows.accepted);
  if (reason) finish(reason);
}

void GenerateJob::learn(std::span<const std::int32_t> accepted) {
  if (!constrained_) {
    if (speculator_) context_.speculation.learn(*speculator_, accepted);
    return;
  }
  const ConstrainedDraft& ride = constrained_->ride;
  const std::vector<std::int32_t> guessed = ride.guessed_of(accepted);
  context_.stats.forced += accepted.size() - guessed.size();
  if (!speculator_) return;
  speculator_->draft = ride.guessed();
  context_.speculation.learn(*speculator_, guessed);
}

void GenerateJob::no_room(Cell, Cell) {
  if (!asks_for_room()) finish(reason_at_limit("context_full"));
}

// True where it waits from now on.
bool GenerateJob::asks_for_room() {
  if (!options_.wait_for_room || room_ == Room::Refused) return false;
  room_ = Room::Asked;
  context_.full.push_back(id());
  return true;
}

void GenerateJob::shifted(Pos tokens) {
  outcome_.prompt_tokens += tokens;
  base_row_ = nullptr;
  if (constrained_) constrained_->told += tokens;
}

void GenerateJob::complete() {
  branch_.output.complete = true;
  finish("stop");
}

const char* GenerateJob::sample(std::span<const float> row, std::int32_t node) {
  if (!constrained_) return draw(row, {});
  const TokenMask mask = context_.constraints.mask(*constrained_, node);
  if (is_complete(mask, context_.vocabulary.size())) {
    branch_.output.complete = true;
    return "stop";
  }
  return draw(row, mask);
}

const char* GenerateJob::draw(std::span<const float> row, TokenMask mask) {
  const RandomKey key{options_.seed, branch_.rng_stream, static_cast<std::uint32_t>(branch_.length())};
  const auto [token, logprob] =
      context_.sampler.sample(row, options_.sampling, {branch_.log, outcome_.tokens, before_}, key, mask);
  branch_.log.push_back(token);
  if (constrained_) branch_.output.end = branch_.length();
  branch_.next_logits.reset();
  if (outcome_.tokens.empty()) outcome_.first_token_seconds = seconds();
  outcome_.tokens.push_back(token);
  outcome_.logprobs.push_back(logprob);
  if (context_.digests) outcome_.digests.push_back(digest_of(row));
  if (options_.top_logprobs > 0) outcome_.top_logprobs.push_back(most_likely(row));
  ++context_.stats.generated;

  const char* reason = reason_to_end(token);
  if (reason) matcher_.finish();
  if (options_.emit) {
    context_.emitted.push_back({id(), token, logprob, matcher_.take_shown()});
    if (options_.top_logprobs > 0) context_.emitted.back().top_logprobs = outcome_.top_logprobs.back();
    ++untaken_;
  }
  return reason;
}

std::vector<TokenLogprob> GenerateJob::most_likely(std::span<const float> row) {
  const double normaliser = log_normaliser(row);
  std::vector<TokenLogprob> likely;
  for (const auto [token, logit] : top_.of(row, options_.top_logprobs)) {
    likely.push_back({token, static_cast<float>(static_cast<double>(logit) - normaliser)});
  }
  return likely;
}

const char* GenerateJob::reason_to_end(Token token) {
  const Vocabulary& vocabulary = context_.vocabulary;
  const bool stopped =
      vocabulary.is_special(token) ? matcher_.push_special(token) : matcher_.push(vocabulary.bytes(token));
  if (vocabulary.is_eos(token) && !options_.ignore_eos) {
    if (constrained_) branch_.output.complete = true;
    return matcher_.cut() > 0 ? "stop" : "eos";
  }
  if (stopped) return "stop";
  if (outcome_.tokens.size() == static_cast<std::size_t>(options_.max_tokens)) return reason_at_limit("length");
  const bool asks = options_.waits_for_positions() && room_ != Room::Refused;
  return left() == 0 && !asks ? reason_at_limit("context_full") : nullptr;
}

// What is complete with its last token has not been cut short.
const char* GenerateJob::reason_at_limit(const char* reason) {
  if (!constrained_ || !context_.constraints.is_complete(id(), branch_, *constrained_)) return reason;
  branch_.output.complete = true;
  return "stop";
}

void GenerateJob::conclude() {
  outcome_.text = matcher_.text();
  if (options_.emit) branch_.made = {id(), outcome_.prompt_tokens, base_row_};
  if (!constrained_) return;
  outcome_.output_began = branch_.output.began;
  context_.constraints.ended(id(), *constrained_);
}

}  // namespace agentkv
