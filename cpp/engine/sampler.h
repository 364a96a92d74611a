// Draws the next token from a row of logits.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "engine/field.h"
#include "engine/philox.h"
#include "engine/token_mask.h"
#include "engine/types.h"

namespace agentkv {

// Applied in this order: the penalties and the bias, constraint, temperature, top_k, top_p, min_p, draw. Tokens that
// tie with the last one a filter keeps are kept too.
struct Sampling {
  float temperature = 0;   // 0: the highest score, lowest id on ties
  std::int32_t top_k = 0;  // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;  // as transformers defines it, over every token of the branch
  // As OpenAI defines them, over what the generation has made: subtracted once from the logits of tokens that are in
  // it, and once for each time that they are.
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::map<Token, float> logit_bias = {};  // added last

  void validate(Token vocab_size) const;  // throws InvalidSampling
};

inline constexpr std::tuple kSamplingFields{
    Field{"temperature", &Sampling::temperature},
    Field{"top_k", &Sampling::top_k},
    Field{"top_p", &Sampling::top_p},
    Field{"min_p", &Sampling::min_p},
    Field{"repetition_penalty", &Sampling::repetition_penalty},
    Field{"presence_penalty", &Sampling::presence_penalty},
    Field{"frequency_penalty", &Sampling::frequency_penalty},
    Field{"logit_bias", &Sampling::logit_bias},
};

class Sampler {
 public:
  struct Choice {
    Token token;
    float logprob;  // under the softmax of the row as the model gave it
  };

  // What comes before the token that is drawn.
  struct Past {
    std::span<const Token> log = {};     // of the branch, all of it
    std::span<const Token> made = {};    // by this generation
    std::span<const Token> before = {};  // that it had made already when it was asked to go on
  };

  // mask: what may come, whatever the sampling says. Throws ForwardFailed when the row holds NaN or +inf, or nothing
  // finite, and when the mask leaves no token.
  Choice sample(std::span<const float> row, const Sampling& sampling, const Past& past, const RandomKey& key,
                TokenMask mask = {});

 private:
  struct Candidate {
    float score;
    Token token;
  };

  std::span<const float> allowed(std::span<const float> scores, TokenMask mask);
  std::span<const float> adjusted(std::span<const float> row, const Sampling& sampling, const Past& past);
  void subtract_counted(const Sampling& sampling, const Past& past);
  Token draw(std::span<const float> scores, float max, const Sampling& sampling, double u);
  float kth_largest(std::span<const float> scores, std::size_t k);
  void gather(std::span<const float> scores, float floor);
  float nucleus_of_candidates(float max, const Sampling& sampling, double target);
  float nucleus(std::span<const float> scores, float max, const Sampling& sampling);
  float nucleus_of_all(std::span<const float> scores, float max, const Sampling& sampling, double target);
  double candidate_mass(float max, const Sampling& sampling, float floor) const;
  Token draw_candidate(float max, const Sampling& sampling, float floor, double u) const;
  Token draw_any(std::span<const float> scores, float max, const Sampling& sampling, float floor, double u);

  // Scratch, kept between rows. All but `candidates_` are sized by the vocabulary.
  std::vector<Token> allowed_;  // what a mask leaves to draw from
  std::vector<float> allowed_scores_;
  std::vector<float> scores_;
  std::vector<std::int32_t> counts_;  // zero between calls
  std::vector<float> maxima_;
  std::vector<float> order_;
  std::vector<float> terms_;
  std::vector<double> masses_;
  std::vector<double> histogram_;
  std::vector<Candidate> candidates_;
};

// The row itself. Throws ForwardFailed as sample() does.
std::span<const float> checked_row(std::span<const float> row);

// log(sum(exp(row))): an entry less this is its log-probability. Throws ForwardFailed as sample() does.
double log_normaliser(std::span<const float> row);

inline double log_probability(std::span<const float> row, Token token) {
  return static_cast<double>(row[static_cast<std::size_t>(token)]) - log_normaliser(row);
}

}  // namespace agentkv
