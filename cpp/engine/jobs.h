// The kinds of job.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "engine/field.h"
#include "engine/job.h"
#include "engine/stop_matcher.h"
#include "engine/top_tokens.h"

namespace agentkv {

// A job that computes a history which another one begins alike: the first `length` tokens.
struct SharedPrefill {
  JobId job;
  BranchId branch;
  Pos length;
};

// Feeds tokens, in chunks, and keeps the logits after the last. All or nothing.
class ExtendJob final : public Job {
 public:
  ExtendJob(JobId id, Branch& branch, JobContext& context, std::span<const Token> tokens);

  const char* kind() const override { return "extend"; }
  bool rides_with_decode() const override;
  void offer(Batch& batch) override;
  void absorb(const RowResults& rows) override;
  Pos awaits(BranchId branch) const override { return ahead_ && ahead_->branch == branch ? ahead_->length : 0; }
  std::size_t to_be_shared() const;  // of its rows, those that another job computes, whose cells it will have

 private:
  void prepare() override;
  void restore() override;

  bool waits(const Batch& batch);
  bool take_what_is_there(const Branch* other, Pos length, const Batch& batch);
  std::optional<SharedPrefill> find_ahead() const;
  Pos common_with(const ExtendJob& other) const;
  void advance(std::size_t count);
  Token key_at(Pos position) const;  // see CacheKeys
  Pos total() const { return base_length_ - static_cast<Pos>(n_pending_) + static_cast<Pos>(tokens_.size()); }

  std::vector<Token> tokens_;  // the branch's last token, where it is pending, and the new ones
  std::size_t fed_ = 0;
  std::optional<SharedPrefill> ahead_;
  const std::size_t n_pending_;
  const Pos base_length_;
  const LogitsRow base_row_;
};

// Makes sure that the branch has its row of logits, and returns it.
class LogitsJob final : public Job {
 public:
  using Job::Job;

  const char* kind() const override { return "logits"; }
  bool rides_with_decode() const override { return true; }
  void offer(Batch& batch) override;
  void absorb(const RowResults& rows) override;

 private:
  void prepare() override;
};

inline constexpr std::int32_t kMostTopLogprobs = 20;

struct GenerateOptions {
  std::int32_t max_tokens = 0;
  std::vector<std::string> stop = {};
  Sampling sampling = {};
  std::uint64_t seed = 0;
  bool ignore_eos = false;
  bool emit = false;
  std::int32_t emit_ahead = 0;            // pauses when so many emitted tokens are not taken; 0: never
  bool wait_for_room = false;             // where there is none, until resume()
  bool wait_for_cells_alone = false;      // which it does for want of cells, not of positions
  std::vector<std::int32_t> pauses = {};  // and once it has made so many tokens, in order, whatever room there is
  std::int32_t top_logprobs = 0;          // so many of the likeliest tokens are told beside each one
  // What an earlier generation, which this one goes on with, had put at the end of the log:
  std::int32_t made = 0;                             // tokens that penalties count
  std::int32_t output_made = 0;                      // tokens of the output under the constraint
  std::shared_ptr<Drafter> drafter = nullptr;        // speculates; null for plain decoding
  std::shared_ptr<Constraint> constraint = nullptr;  // null: any token may come

  void validate(Token vocab_size, Pos length) const;  // throws InvalidSampling
  bool waits_for_positions() const { return wait_for_room && !wait_for_cells_alone; }
};

inline constexpr std::tuple kGenerateFields{
    Field{"max_tokens", &GenerateOptions::max_tokens},
    Field{"stop", &GenerateOptions::stop},
    Field{"sampling", &GenerateOptions::sampling},
    Field{"seed", &GenerateOptions::seed},
    Field{"ignore_eos", &GenerateOptions::ignore_eos},
    Field{"emit", &GenerateOptions::emit},
    Field{"emit_ahead", &GenerateOptions::emit_ahead},
    Field{"top_logprobs", &GenerateOptions::top_logprobs},
    Field{"wait_for_room", &GenerateOptions::wait_for_room},
    Field{"wait_for_cells_alone", &GenerateOptions::wait_for_cells_alone},
    Field{"drafter", &GenerateOptions::drafter},
    Field{"constraint", &GenerateOptions::constraint},
    Field{"made", &GenerateOptions::made},
    Field{"output_made", &GenerateOptions::output_made},
    Field{"pauses", &GenerateOptions::pauses},
};

// Samples tokens until something ends it. Every token goes into the log; the last one is not in the cache.
class GenerateJob final : public Job {
 public:
  GenerateJob(JobId id, Branch& branch, JobContext& context, const GenerateOptions& options);

  const char* kind() const override { return "generate"; }
  bool rides_with_decode() const override { return true; }
  void offer(Batch& batch) override;
  void draw_known() override;
  void absorb(const RowResults& rows) override;
  void no_room(Cell needed, Cell free) override;
  void complete() override;
  bool paused() const override {
    return waits_for_room() || (options_.emit_ahead > 0 && untaken_ >= options_.emit_ahead);
  }
  bool waits_for_room() const override { return room_ == Room::Asked; }
  void resume(bool made_room) override { room_ = made_room ? Room::Enough : Room::Refused; }
  bool is_constrained() const override { return constrained_.has_value(); }
  void shifted(Pos tokens) override;
  void ack(std::int32_t tokens) override { untaken_ -= tokens; }

 private:
  void prepare() override;
  std::int32_t left() const;  // tokens that it may still make
  std::int32_t until_pause() const;
  Draft* draft();
  PendingTurn turn(std::int32_t max_depth);
  // After a node of what rides, or after the log (-1). Returns the reason to end, or null to go on.
  const char* sample(std::span<const float> row, std::int32_t node);
  const char* draw(std::span<const float> row, TokenMask mask);
  std::vector<TokenLogprob> most_likely(std::span<const float> row);
  const char* reason_to_end(Token token);
  const char* reason_at_limit(const char* reason);
  void learn(std::span<const std::int32_t> accepted);
  void conclude() override;

  GenerateOptions options_;
  std::vector<Token> before_;  // that it made already, where penalties count them
  enum class Room { Enough, Asked, Refused };

  bool asks_for_room();

  std::size_t paused_ = 0;  // so many times it did
  Room room_ = Room::Enough;
  LogitsRow base_row_ = {};  // of the branch when it began, where its reader may take everything back
  StopMatcher matcher_;
  TopTokens top_;
  std::optional<Speculator> speculator_;
  std::optional<Constrained> constrained_;
  std::int32_t untaken_ = 0;  // emitted tokens that the reader has not taken
};

// Scores each choice as a continuation, on borrowed sequences that live for one step. The branch's tokens stay.
class SelectJob final : public Job {
 public:
  SelectJob(JobId id, Branch& branch, JobContext& context, std::vector<std::vector<Token>> choices);

  const char* kind() const override { return "select"; }
  bool rides_with_decode() const override { return false; }
  void offer(Batch& batch) override;
  void absorb(const RowResults& rows) override;

 private:
  void prepare() override;
  void give_back() override;
  bool offer_prime(Batch& batch);
  bool offer_choice(Batch& batch, std::size_t n_pending);
  void score_first_tokens(std::span<const float> row);
  void finish_if_scored();

  static constexpr std::size_t kPrime = ~std::size_t{0};  // tag of the branch's own row

  const std::vector<std::vector<Token>> choices_;
  std::vector<std::vector<Token>> inputs_;  // per choice: what is pending, then all its tokens but the last
  std::vector<double> first_scores_;        // per choice: log-probability of its first token
  std::vector<double> rest_scores_;         // per choice: of the others
  bool primed_ = false;                     // the first tokens are scored
  std::size_t next_ = 0;                    // choices before it were offered
  std::size_t scored_ = 0;                  // choices of which every later token is scored
  bool offered_ = false;                    // something rides in this step
  std::vector<SequenceLease> borrowed_;     // for this step
};

}  // namespace agentkv
