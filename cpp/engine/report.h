// The results of a step: tokens as they are made, and jobs that ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/errors.h"
#include "engine/types.h"

namespace agentkv {

struct TokenLogprob {
  Token token;
  float logprob;
};

// One token of a generation that asked for them.
struct Emitted {
  JobId job;
  Token token;
  float logprob;
  std::string text;  // bytes that may be shown now; those that may begin a stop string are held back
  std::vector<TokenLogprob> top_logprobs = {};  // best first
};

struct Failure {
  ErrorKind kind;
  std::string message;
};

// The end of a job. Which of the later fields are filled depends on its kind.
struct Finished {
  JobId job = 0;
  const char* kind = "";
  std::optional<Failure> error;
  const char* finish_reason = nullptr;  // of a generation, or "cancelled" for any job
  double seconds = 0;                   // that it took
  double first_token_seconds = 0;       // generate: of these, until the first token was there; 0 where none came
  // generate: also filled, up to where it came, when it failed or was cancelled
  std::vector<Token> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // per token, where they were asked for; best first
  std::string text;
  Pos prompt_tokens = 0;
  Pos output_began = -1;  // generate, under a constraint: where in the branch its output begins
  std::vector<std::uint64_t>
      digests;                 // generate: per token, of the row that it was drawn from, where they are asked for
  std::vector<float> logits;   // logits: [vocab_size]
  std::vector<double> scores;  // select
};

// What one branch had in a step.
struct Share {
  enum Kind : std::int32_t { Prefill, Decode, FedAgain };
  BranchId branch;
  Kind kind;
  std::int32_t rows;          // tokens and draft nodes
  std::int32_t drafted = 0;   // of these, draft nodes
  std::int32_t accepted = 0;  // of these, what came true
};

struct StepReport {
  bool idle = true;  // nothing was runnable and nothing is reported
  std::int32_t rows = 0;
  std::int32_t decode_rows = 0;
  std::int32_t prefill_rows = 0;
  std::int32_t branches = 0;  // branches whose rows rode
  std::int32_t forwards = 0;
  std::vector<Emitted> emitted;
  std::vector<Finished> finished;
  std::vector<JobId> out_of_room;  // generations that wait for room
  std::vector<Share> shares;
  double seconds = 0;          // that the step took
  double forward_seconds = 0;  // of these, inside the program
  double draft_seconds = 0;    // and inside drafters
};

}  // namespace agentkv
