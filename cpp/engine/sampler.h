// Draws the next token from a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "engine/field.h"
#include "engine/philox.h"
#include "engine/token_mask.h"
#include "engine/types.h"

namespace agentkv {

// Applied in this order: repetition penalty, temperature, top_k, top_p, min_p, draw. Tokens that tie with the last
// one a filter keeps are kept too.
struct Sampling {
  float temperature = 0;   // 0: the highest logit after the penalty, lowest id on ties
  std::int32_t top_k = 0;  // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;  // as transformers defines it, over every token of the branch

  void validate() const;  // throws InvalidSampling
};

inline constexpr std::tuple kSamplingFields{
    Field{"temperature", &Sampling::temperature},
    Field{"top_k", &Sampling::top_k},
    Field{"top_p", &Sampling::top_p},
    Field{"min_p", &Sampling::min_p},
    Field{"repetition_penalty", &Sampling::repetition_penalty},
};

class Sampler {
 public:
  struct Choice {
    Token token;
    float logprob;  // under the softmax of the row as the model gave it
  };

  // history: the branch's whole log. mask: what may come, whatever the sampling says. Throws ForwardFailed when the row
  // holds NaN or +inf, or nothing finite, and when the mask leaves no token.
  Choice sample(std::span<const float> row, const Sampling& sampling, std::span<const Token> history,
                const RandomKey& key, TokenMask mask = {});

 private:
  struct Candidate {
    float score;
    Token token;
  };

  std::span<const float> masked(std::span<const float> scores, TokenMask mask);
  std::span<const float> penalised(std::span<const float> row, float penalty, std::span<const Token> history);
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
  std::vector<float> scores_;
  std::vector<float> maxima_;
  std::vector<float> order_;
  std::vector<float> terms_;
  std::vector<double> masses_;
  std::vector<double> histogram_;
  std::vector<Candidate> candidates_;
};

// log(sum(exp(row))): an entry less this is its log-probability. Throws ForwardFailed as sample() does.
double log_normaliser(std::span<const float> row);

inline double log_probability(std::span<const float> row, Token token) {
  return static_cast<double>(row[static_cast<std::size_t>(token)]) - log_normaliser(row);
}

}  // namespace agentkv
